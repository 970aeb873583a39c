/* gemm.h - matrix products of the CUDA backend: the choice of a kernel for each shape, and the
 * timings behind it.
 *
 * Owner: cn_cuda. Thread: the engine's. Stage: timed at start, looked up in every step.
 *
 * Batch sizes are grouped into buckets. A plan is chosen for (n, k, kind of output) and bucket.
 * There are two kinds of plan: cuBLASLt with one of its algorithms, and own kernels for small
 * batches on Hopper (gemm_skinny.cu). Without timings the library's first proposal is used. */
#pragma once

#include <cublasLt.h>

#include "cuda/cuda_ops.h"

CN_BEGIN_C

enum {
    CN_GEMM_BUCKETS = 38,
    CN_GEMM_MAX_SHAPES = 16,
    CN_GEMM_MAX_SKINNY = 256,
    CN_GEMM_MAX_LINK = 64, /* rows of a cn_norm_link: with more it takes longer than a norm */
    /* h of a link is a multiple of this: squares are read four at a time. */
    CN_GEMM_LINK_COLUMNS = 4 * CN_NORM_COLUMNS
};

/* The most rows of each bucket. The last bucket also takes larger batches. */
extern const uint32_t cn_gemm_buckets[CN_GEMM_BUCKETS];
uint32_t cn_gemm_bucket(uint32_t n_tokens);

/* How cuBLASLt reads a product of e4m3 values: x_scales is [K / 128, T]. */
typedef enum cn_gemm_fp8 {
    CN_GEMM_NO_FP8,
    CN_GEMM_FP8_BLOCKS, /* weight_scales [N / 128, K / 128] rounded up, K / 128 a multiple of 4 */
    CN_GEMM_FP8_ROWS,   /* weight_scales [K / 128, N] */
} cn_gemm_fp8;

typedef struct cn_gemm_shape {
    uint32_t n, k;
    bool out_f32, has_bias;
    bool gated; /* gemm_silu_mul: n = 2I, out has n / 2 columns */
    cn_gemm_fp8 fp8; /* N, K and T are multiples of 16, 128 and 4 */
} cn_gemm_shape;

/* A product to run. */
typedef struct cn_gemm_call {
    cn_gemm_shape shape;
    void *out;
    const void *x, *weight, *bias;
    const float *weight_scales, *x_scales; /* as cn_gemm_fp8 says */
    void *gate_up; /* gated: the library's output before the gate, [T, 2I] */
    uint32_t n_tokens;
    const cn_norm_link *adds, *norms; /* as in cn_gemm_args; own kernels only */
} cn_gemm_call;

/* The configuration of an own kernel. A block multiplies `rows` weight rows by all tokens over
 * 1/splits of k. In a cluster of splits * sharers blocks, the sums of the splits are added, and the
 * sharers share their reads of x. */
typedef struct cn_gemm_skinny {
    uint32_t rows;    /* 64, 128 or 192 */
    uint32_t splits;  /* 1, 2, 4 or 8 */
    uint32_t sharers; /* 1, 2, 4 or 8 */
    uint32_t stages;  /* stages in shared memory that are filled ahead */
} cn_gemm_skinny;

typedef enum cn_gemm_kind {
    CN_GEMM_UNPLANNED,
    CN_GEMM_LIBRARY,
    CN_GEMM_SKINNY,
    CN_GEMM_NONE /* neither multiplies this */
} cn_gemm_kind;

typedef struct cn_gemm_plan {
    cn_gemm_kind kind;
    cublasLtMatmulAlgo_t algorithm; /* CN_GEMM_LIBRARY */
    cn_gemm_skinny skinny;          /* CN_GEMM_SKINNY */
} cn_gemm_plan;

typedef struct cn_gemm_entry {
    cn_gemm_shape shape;
    cn_gemm_plan plans[CN_GEMM_BUCKETS];
} cn_gemm_entry;

struct cn_cuda_gemm_state {
    cublasLtHandle_t library;
    cn_gemm_entry entries[CN_GEMM_MAX_SHAPES];
    uint32_t n_entries;
};

cn_status cn_cuda_gemm_open(cn_cuda *c);
void cn_cuda_gemm_close(cn_cuda *c);

/* Returns the entry of a shape, adding it if missing; NULL when the table is full. */
cn_gemm_entry *cn_gemm_find(cn_cuda_gemm_state *g, cn_gemm_shape shape);

/* Returns whether two products with these plans can be the two of a cn_norm_link. */
bool cn_gemm_links(cn_gemm_shape first, const cn_gemm_plan *first_plan, cn_gemm_shape second,
                   const cn_gemm_plan *second_plan, uint32_t n_tokens);

/* Runs a product by the plan. */
cn_status cn_gemm_run(cn_stream *s, const cn_gemm_call *call, const cn_gemm_plan *plan);

/* Plans a product at the first call of its shape and bucket, and runs it. */
cn_status cn_gemm_run_planned(cn_stream *s, const cn_gemm_call *call);

/* Returns whether cn_gemm_run_planned has a plan for such a call, which it makes if need be. */
bool cn_gemm_has_plan(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens);

/* The scratch memory of the library. After it there is room for scales of CN_GEMM_FP8_ROWS. */
size_t cn_gemm_scratch_bytes(cn_gemm_shape shape);

/* Gets up to `most` plans of the library for this number of rows, in its order of preference. *n
 * may be 0. */
cn_status cn_gemm_propose(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens, cn_gemm_plan *plans,
                          uint32_t most, uint32_t *n);

/* Returns true when the library can run the plan for this number of rows. */
bool cn_gemm_library_accepts(cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                             const cn_gemm_plan *plan);

/* ---- own kernels: gemm_skinny.cu ---- */
cn_status cn_gemm_skinny_open(cn_cuda *c);
bool cn_gemm_skinny_fits(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                         cn_gemm_skinny config);
/* Returns the most stages with which blocks_per_sm blocks of a kernel fit in an SM, but never fewer
 * than a kernel needs. */
uint32_t cn_gemm_skinny_stages(const cn_cuda *c, uint32_t n_tokens, uint32_t rows,
                               uint32_t blocks_per_sm);
/* Returns the blocks of a launch. */
uint32_t cn_gemm_skinny_blocks(cn_gemm_shape shape, cn_gemm_skinny config);
/* Returns the configuration to use without timings; rows = 0 when no own kernel fits. */
cn_gemm_skinny cn_gemm_skinny_default(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens);
cn_status cn_gemm_skinny_run(cn_stream *s, const cn_gemm_call *call, cn_gemm_skinny config);

/* ---- timing: gemm_tune.c and gemm_cache.c ---- */

/* Plans the model's shapes for all buckets: from the cache file, or else by timing them in memory
 * that is not in use yet. */
cn_status cn_gemm_tune(cn_cuda *c);

/* Reads plans from the cache file. Returns false when there is no file for this GPU and these
 * versions, or when the file is damaged. */
bool cn_gemm_cache_load(cn_cuda *c);
/* Writes the cache file. Logs a warning if that fails. */
void cn_gemm_cache_save(const cn_cuda *c);

/* Fills out with n random bf16 values in (-1, 1). The same seed gives the same values. */
cn_status cn_gemm_fill_random(cn_stream *s, void *out, size_t n, uint64_t seed);

CN_END_C
