/* cuda_ops.h - private header of the CUDA backend: its state, the conversion of CUDA errors to
 * status codes, and the launcher of each op.
 *
 * Owner: cn_backend_cuda_open. Thread: the engine's. A launcher checks its arguments, launches and
 * returns. It neither allocates nor synchronises, so that a graph can record it. engine/ops.h
 * defines argument structs and shapes. All device memory is in the one allocation, except what the
 * driver and cuBLAS take for code. */
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/cuda_switches.h"
#include "engine/base/base.h"
#include "engine/ops.h"
#include "engine/select/selected_stages.h"

CN_BEGIN_C

enum {
    CN_CUDA_SIDE_STREAMS = 4, /* LOW streams that the arena has room for */
    CN_CUDA_STAGES = 16, /* pinned chunks of a stream */
    CN_CUDA_STAGE_BYTES = 2 << 20,        /* of a chunk of a HIGH stream */
    CN_CUDA_SIDE_STAGE_BYTES = 512 << 10, /* of a chunk of a LOW stream, which copies only tables */
    CN_CUDA_GEMM_SCRATCH_BYTES = 32 << 20 /* of a HIGH stream */
};

enum { CN_CUDA_LIST_DONE = 8 }; /* count of a finished list: `select` counts eighths */

typedef struct cn_cuda cn_cuda;
typedef struct cn_cuda_gemm_state cn_cuda_gemm_state;

/* The pinned chunks of a stream. Copies from host memory go through them, in rotation. */
typedef struct cn_cuda_staging {
    char *host; /* [CN_CUDA_STAGES, chunk_bytes] */
    size_t chunk_bytes;
    cudaEvent_t done[CN_CUDA_STAGES]; /* the device has read the chunk */
    uint32_t next;
} cn_cuda_staging;

struct cn_stream {
    cn_cuda *cuda;
    cudaStream_t handle;
    /* NULL where no matrix products and no decode attention run: on LOW streams, and on a backend
     * beside the model's. */
    void *gemm_scratch; /* CN_CUDA_GEMM_SCRATCH_BYTES */
    void *attn_scratch; /* partial results of split sequences; zeroed at start */
    void *plain_rows;   /* plain_bytes for attn_plain.cu; NULL: that kernel is not used */
    void *select_scratch; /* of `score` (score.cu); zeroed at start, and what must be is kept so */
    bool recording;     /* between graph_begin and graph_end */
    cn_cuda_staging staging;
};

struct cn_fence {
    cn_cuda *cuda;
    cudaEvent_t event;
};

struct cn_graph {
    cudaGraphExec_t exec;
};

/* Properties of the device. */
typedef struct cn_cuda_device {
    int ordinal;
    char name[256];
    bool hopper; /* code for exactly 9.0 runs; else the code for 8.0, also on newer devices */
    uint32_t n_sms;
    size_t shared_bytes; /* most shared memory of a block */
    size_t max_pitch;    /* largest stride of a 2-D copy, bytes */
    char bus[40];        /* its PCI address, as sysfs writes it */
    bool registers;      /* it addresses registered host memory as the host does */
} cn_cuda_device;

enum { CN_CUDA_ALIGN_BYTES = 256 };

/* The spans of the one allocation that are in use, by address. */
typedef struct cn_cuda_span {
    size_t at, bytes;
} cn_cuda_span;

typedef struct cn_cuda_arena {
    char *base;
    size_t bytes;
    size_t planned_bytes; /* device memory in use: these bytes, and what was in use before */
    cn_cuda_span *used;
    size_t n_used, capacity;
} cn_cuda_arena;

/* A piece of host memory that is mapped and registered. */
typedef struct cn_cuda_pinned {
    char *mapped; /* [mapped_bytes] */
    size_t mapped_bytes;
    char *at; /* its first huge page: what the caller has */
    bool registered;
    struct cn_cuda_pinned *next;
} cn_cuda_pinned;

/* The backend's ctx. */
struct cn_cuda {
    cn_backend table;
    cn_cuda_backend_opts opts;
    cn_cuda_switches switches;
    cn_cuda_device device;
    cn_cuda_arena arena;
    cn_cuda_pinned *pinned; /* the large pieces of host memory; NULL: none */
    int priority[2];    /* CUDA's value of each cn_priority */
    uint32_t n_streams; /* created and not yet freed */
    cn_cuda_gemm_state *gemm;
    size_t attn_scratch_bytes, plain_bytes, select_scratch_bytes;
    cn_cuda *next_open; /* of the open backends of the process */
};

/* ---- errors ---- */

/* Returns the status of a failed CUDA call and sets its text: "CUDA: what: reason". */
cn_status cn_cuda_failed(cudaError_t error, const char *what);

#define CN_CUDA(call)                                                                              \
    do {                                                                                           \
        cudaError_t cn_cuda_error_ = (call);                                                       \
        if (cn_cuda_error_ != cudaSuccess) return cn_cuda_failed(cn_cuda_error_, #call);           \
    } while (0)

/* Sets the program's functions for errors, logging and memory (cuda_host.c). */
void cn_cuda_host_set(const cn_base_calls *calls);

/* ---- device, memory, streams: cuda_device.c and cuda_stream.c ---- */

/* Finds the device of the options and makes it current. The text of CN_ERR_DEVICE is one line that
 * names what is missing. */
cn_status cn_cuda_device_open(cn_cuda_device *out, const cn_cuda_backend_opts *o);

/* Makes the backend's device current. A process may have several CUDA backends, so every function
 * of the table that calls CUDA calls this first. */
void cn_cuda_use(const cn_cuda *c);

/* Lets kernels of each of two backends address the memory of the other. */
cn_status cn_cuda_join(const cn_cuda *a, const cn_cuda *b);

/* Makes the one allocation, sized by the options. */
cn_status cn_cuda_arena_open(cn_cuda_arena *a, const cn_cuda_backend_opts *o);
void cn_cuda_arena_close(cn_cuda_arena *a);
/* Takes bytes, aligned to CN_CUDA_ALIGN_BYTES and not zeroed. CN_ERR_MEMORY with the numbers. */
cn_status cn_cuda_arena_take(cn_cuda_arena *a, size_t bytes, void **out);
void cn_cuda_arena_give(cn_cuda_arena *a, void *p);
size_t cn_cuda_arena_largest(const cn_cuda_arena *a); /* the most that one take can get */
void cn_cuda_mem_usage(cn_backend *be, uint64_t *planned, uint64_t *used);

/* host_alloc and host_free of the table: cuda_pinned.c. Large memory logs its progress. */
cn_status cn_cuda_host_alloc(cn_backend *be, size_t bytes, void **out);
void cn_cuda_host_free(cn_backend *be, void *p);

cn_status cn_cuda_stream_create(cn_backend *be, cn_priority priority, cn_stream **out);
void cn_cuda_stream_free(cn_stream *s);
/* Bytes that the HIGH streams and CN_CUDA_SIDE_STREAMS LOW streams take from the arena. */
size_t cn_cuda_stream_bytes(const cn_cuda *c);
cn_status cn_cuda_stream_sync(cn_stream *s);
cn_status cn_cuda_fence_create(cn_backend *be, cn_fence **out);
void cn_cuda_fence_free(cn_fence *f);
cn_status cn_cuda_fence_record(cn_fence *f, cn_stream *s);
cn_status cn_cuda_fence_wait(cn_stream *s, cn_fence *f);
cn_status cn_cuda_fence_done(cn_fence *f, bool *done);
cn_status cn_cuda_fence_sync(cn_fence *f);
cn_status cn_cuda_timed_fence_create(cn_backend *be, cn_fence **out);
cn_status cn_cuda_fence_seconds(cn_fence *from, cn_fence *to, double *seconds);
cn_status cn_cuda_mem_write(cn_stream *s, void *dst, const void *host, size_t bytes);
/* stage_take returns the next chunk, after the device has read its last content. stage_send copies
 * `bytes` of that chunk to dst. */
cn_status cn_cuda_stage_take(cn_stream *s, char **chunk);
cn_status cn_cuda_stage_send(cn_stream *s, void *dst, size_t bytes);
cn_status cn_cuda_mem_read(cn_stream *s, void *host, const void *src, size_t bytes);

/* ---- graphs: cuda_graph.c ---- */
cn_status cn_cuda_graph_begin(cn_stream *s);
cn_status cn_cuda_graph_end(cn_stream *s, cn_graph **out);
cn_status cn_cuda_graph_launch(cn_stream *s, cn_graph *g);
void cn_cuda_graph_free(cn_graph *g);

/* ---- ops ---- */
/* X(op, arguments). cn_cuda_<op> is the launcher. digest copies the list of tiles: the caller may
 * change it as soon as the call returns. The arrays by sequence of predict are in device memory, so
 * their values are not checked. */
#define CN_CUDA_OPS(X)                                                                             \
    X(dummy_fill, cn_dummy_fill_args)                                                              \
    X(embed, cn_embed_args)                                                                        \
    X(rmsnorm, cn_rmsnorm_args)                                                                    \
    X(gemm, cn_gemm_args)                                                                          \
    X(gemm_silu_mul, cn_gemm_silu_mul_args)                                                        \
    X(rope_store, cn_rope_store_args)                                                              \
    X(draft_store, cn_draft_store_args)                                                            \
    X(draft_part, cn_draft_part_args)                                                              \
    X(draft_before, cn_draft_before_args)                                                          \
    X(draft_keep, cn_draft_keep_args)                                                              \
    X(attn_decode, cn_attn_args)                                                                   \
    X(attn_prefill, cn_attn_args)                                                                  \
    X(digest, cn_digest_args)                                                                      \
    X(predict, cn_predict_args)                                                                    \
    X(score, cn_score_args)                                                                        \
    X(select, cn_select_args)                                                                      \
    X(attend_selected, cn_attend_selected_args)                                                    \
    X(exchange, cn_exchange_args)                                                                  \
    X(fetch, cn_fetch_args)                                                                        \
    X(silu_mul, cn_silu_mul_args)                                                                  \
    X(route, cn_route_args)                                                                        \
    X(expert_gate_up, cn_expert_gate_up_args)                                                      \
    X(expert_down, cn_expert_down_args)                                                            \
    X(expert_sum, cn_expert_sum_args)                                                              \
    X(gather, cn_gather_args)                                                                      \
    X(sample, cn_sample_args)                                                                      \
    X(count_reset, cn_count_reset_args)                                                            \
    X(copy_blocks, cn_copy_args)                                                                   \
    X(compress, cn_compress_args)

#define CN_CUDA_DECLARE(op, type) cn_status cn_cuda_##op(cn_stream *s, const type *a);
CN_CUDA_OPS(CN_CUDA_DECLARE)
#undef CN_CUDA_DECLARE
cn_status cn_cuda_mem_sum(cn_stream *s, const void *src, size_t bytes, uint64_t *out);
bool cn_cuda_links_norm(cn_cuda *c, uint32_t n_tokens, const cn_product_shape *first,
                        const cn_product_shape *second);
/* Scratch that attn_decode and attend_selected need for the largest step under these options. */
size_t cn_cuda_attn_scratch_bytes(const cn_cuda_backend_opts *o);
/* Of opts.plain_bytes, what the device uses. */
size_t cn_cuda_plain_bytes(const cn_cuda *c);
/* With the switch `latent`: ops, and attn_decode and attn_prefill where rows of K contain V. */
cn_status cn_cuda_latent_store(cn_stream *s, const cn_latent_store_args *a);
cn_status cn_cuda_heads_gemm(cn_stream *s, const cn_heads_gemm_args *a);
cn_status cn_cuda_attn_latent_decode(cn_stream *s, const cn_attn_args *a);
cn_status cn_cuda_attn_latent_prefill(cn_stream *s, const cn_attn_args *a);
/* Scratch that score and attend_selected need for the largest step under these options. */
size_t cn_cuda_select_scratch_bytes(const cn_cuda_backend_opts *o);
/* Attention to lists. done: the `select` before it has made all lists of these rows, and counts
 * their finished parts there; or NULL. */
cn_status cn_cuda_attn_lists(cn_stream *s, const cn_list_attn_args *a, const uint32_t *done);
uint32_t cn_cuda_select_route(const cn_sel_forms *need, const cn_sel_forms *declared);
/* Sets the largest chosen_stride for which a thread block has enough shared memory. */
cn_status cn_cuda_exchange_limit(const cn_cuda_device *d, uint32_t *most);
size_t cn_cuda_sample_scratch_bytes(cn_backend *be, uint32_t max_rows, uint32_t vocab);
/* Room for the scores of one layer of a request of n_max slots, and for all layers of an ordinary
 * event. */
size_t cn_cuda_compress_scratch_bytes(cn_backend *be, const cn_pools *pools, uint32_t n_max);

CN_END_C
