/* op_cases.h - compares the GPU's ops with the CPU's ops. Each case is drawn again for every seed.
 * Inputs are bf16 values, which both sides store exactly, and each case returns one error figure.
 *
 * A test file has a table of cases and calls op_cases_main. Without a GPU or without cinch-cuda.so,
 * all cases are skipped and the reason is printed. Arguments: [PATTERN [N]], a pattern of case
 * names and the most seeds per case (sanitizers are slow). Thread: main. */
#pragma once

#include "cuda/cuda_switches.h"
#include "engine/ops.h"
#include "tests/lib/paged_batch.h"

typedef struct op_env {
    cn_backend *cpu, *cuda;
    cn_stream *cpu_stream, *cuda_stream; /* of priority HIGH */
    cn_stream *cuda_side;                /* of priority LOW */
    test_rng rng;                        /* seeded with the case's seed */
    bool fp8;                            /* K and V of the GPU's pool are in eight bits */
    bool portable;                       /* the backend has only the portable kernels */
    char shape[160];                     /* the case describes here what it drew */
    /* Counts of the whole run: compared choices between scores, and choices where the GPU took the
     * other one of two nearly equal scores. A case defines "nearly equal", counts both, and fails
     * on any other difference. op_cases_main fails the run above OP_MOST_NEAR_TIES. */
    uint64_t n_decisions, n_near_ties;
} op_env;

#define OP_MOST_NEAR_TIES 1e-3 /* share of the decisions */

enum { OP_LATENT_DIM = 576 };

typedef struct op_case {
    const char *name; /* the op and the variant */
    uint32_t n_seeds;
    double tolerance; /* largest error that run may return; 0: exact */
    /* Draws shapes and inputs from e->rng, runs the op on both sides and returns the error. Frees
     * what it allocated. */
    double (*run)(op_env *e, uint32_t seed);
    cn_cuda_gemm_kind gemm; /* options to open the backend with */
    bool batch_invariant, portable, impatient;
    bool latent; /* the backend has the ops of latent attention, of rows of OP_LATENT_DIM */
    bool fp8; /* set in op_env; cases that read it say so */
    cn_cuda_expert_tile experts;
} op_case;

int op_cases_main(const op_case *cases, size_t n, int argc, char **argv);

/* Draws. */
uint32_t op_between(op_env *e, uint32_t low, uint32_t high);
bool op_coin(op_env *e);
uint32_t op_some_rows(op_env *e); /* mostly few, sometimes many */

/* Waits for both sides. */
void op_sync(op_env *e);

/* Runs an op on both sides and waits for both. */
#define OP_RUN_BOTH(e, op, cpu_args, cuda_args)                                                    \
    do {                                                                                           \
        OP_OK((e)->cpu->op((e)->cpu_stream, cpu_args));                                            \
        OP_OK((e)->cuda->op((e)->cuda_stream, cuda_args));                                         \
        op_sync(e);                                                                                \
    } while (0)

#define OP_SHAPE(e, ...) snprintf((e)->shape, sizeof(e)->shape, __VA_ARGS__)

/* Returns the layout of a pool of the same shape with another dtype, for the other side. */
cn_kv_layout op_layout_as(const cn_kv_layout *l, cn_dtype dtype);

/* An array on both sides. floats: f32 on the CPU, `dtype` on the GPU. words: the same on both. */
typedef struct op_tensor {
    size_t n;
    cn_dtype dtype; /* on the GPU */
    void *cpu, *cuda;
} op_tensor;

op_tensor op_random(op_env *e, size_t n);              /* bf16 values in (-1, 1) */
op_tensor op_random_f32(op_env *e, size_t n);          /* f32 on both sides, in (-1, 1) */
op_tensor op_poison(op_env *e, size_t n, cn_dtype d);  /* all NaN, for outputs */
op_tensor op_floats(op_env *e, const float *values, size_t n, cn_dtype d); /* rounded to d */
op_tensor op_words(op_env *e, const void *words, size_t n); /* 32-bit */
/* Random e4m3 values [n, k] without NaN, in rows of `stride` bytes, a multiple of 4. */
op_tensor op_fp8_codes(op_env *e, size_t n, size_t k, size_t stride);
/* f32 scales between 0.5 and 1.5 of `unit`, a power of two. */
op_tensor op_fp8_scales(op_env *e, size_t n, float unit);
void op_tensor_free(op_env *e, op_tensor *t);

/* Copies the CPU's side to the GPU's side. */
void op_send(op_env *e, const op_tensor *t);
/* Reads the GPU's side as f32 into out[n]. */
void op_read(op_env *e, const op_tensor *t, float *out);
/* Returns the GPU's side as stored there. Free with cn_free. */
void *op_take(op_env *e, const op_tensor *t);

/* Distance of the GPU's side from the CPU's: the larger of ||gpu - cpu|| / ||cpu|| and a tenth of
 * max |gpu - cpu| / rms(cpu). NaN equals NaN; a NaN on one side only gives infinity. */
double op_error(op_env *e, const op_tensor *t);
/* The same for two arrays of the host. */
double op_error_of(const float *got, const float *want, size_t n);
/* The largest ||gpu - cpu|| / ||cpu|| of all rows of d values; adds the row to e->shape. Any NaN
 * gives infinity. */
double op_rows_error(op_env *e, const op_tensor *t, uint32_t d);
/* The same for one row of two arrays of the host. */
double op_row_error_of(const float *got, const float *want, uint32_t d);
/* Returns 0 when the words of both sides are equal, else infinity. */
double op_words_error(op_env *e, const op_tensor *t);

/* The arrays of a paged batch on the GPU. Its pool is a separate op_tensor of the test. */
typedef struct op_batch {
    cn_batch_view view; /* device pointers */
    void *memory;
} op_batch;
op_batch op_batch_upload(op_env *e, const paged_batch *b);
void op_batch_free(op_env *e, op_batch *b);

/* Fails the test with cn_last_error() unless the call returns CN_OK. */
#define OP_OK(call) op_ok((call), #call)
void op_ok(cn_status status, const char *call);
