/* cpu_ops.h - private header of the CPU backend: its state, its parallel loop, and the ops.
 *
 * Owner: cn_backend_cpu_open. Thread: ops of an immediate stream run on the engine thread and the
 * pool; ops of a threaded stream run on that stream's thread alone. Each cn_cpu_<op> returns when
 * it is done; the table in cpu_backend.c does the queueing. engine/ops.h defines argument structs
 * and shapes. */
#pragma once

#include "engine/base/base.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/cpu/cpu_stream.h"
#include "engine/ops.h"
#include "engine/select/selected_stages.h"

enum {
    CN_CPU_MAX_STREAMS = 8, /* threaded streams that exist at once */
    CN_CPU_MAX_HEAD_DIM = 576,
    CN_CPU_MAX_CHANNELS = CN_CPU_MAX_HEAD_DIM / 4, /* of a label */
    CN_CPU_MAX_TILE = 64, /* tokens; the KV layout's tile */
    CN_CPU_MARKED = 1 << 15, /* candidates that exchange marks at once */
    CN_CPU_ATTN_ROWS = 64 /* query rows that share one pass over keys and values */
};

/* Working memory of one thread in attention. Rows are query heads of neighbouring tokens. */
typedef struct cn_cpu_attn_scratch {
    float q[CN_CPU_ATTN_ROWS * CN_CPU_MAX_HEAD_DIM];   /* [rows, d], times scale */
    float keys[CN_CPU_MAX_HEAD_DIM * CN_CPU_MAX_TILE]; /* [d, tile]: one tile, transposed */
    float weights[CN_CPU_ATTN_ROWS * CN_CPU_MAX_TILE]; /* [rows, tile]: scores, then weights */
    float split_out[CN_CPU_ATTN_ROWS * CN_CPU_MAX_HEAD_DIM];
    float out[CN_CPU_ATTN_ROWS * CN_CPU_MAX_HEAD_DIM];
    float split_max[CN_CPU_ATTN_ROWS], split_sum[CN_CPU_ATTN_ROWS];
    float max[CN_CPU_ATTN_ROWS], sum[CN_CPU_ATTN_ROWS], rescale[CN_CPU_ATTN_ROWS];
    /* A tile gathered by index or made f32: its keys, then its values. */
    float gathered[2 * CN_CPU_MAX_TILE * CN_CPU_MAX_HEAD_DIM];
} cn_cpu_attn_scratch;

/* Working memory of one thread in predict (recent queries of a head, and their Gram matrix) and in
 * exchange (a bit for each of some candidates). */
typedef struct cn_cpu_select_scratch {
    float rows[(CN_MAX_SELECT_WINDOW + 1) * CN_CPU_MAX_HEAD_DIM];
    float sum[CN_CPU_MAX_HEAD_DIM];
    double factor[CN_MAX_SELECT_WINDOW * CN_MAX_SELECT_WINDOW];
    uint64_t held[CN_CPU_MARKED / 64], chosen[CN_CPU_MARKED / 64];
} cn_cpu_select_scratch;

typedef struct cn_cpu_gemm cn_cpu_gemm;

/* The backend's ctx. */
typedef struct cn_cpu {
    cn_backend table;
    cn_cpu_pool *pool;
    bool threaded;             /* every stream is threaded (cn_cpu_backend_opts) */
    uint64_t used_workers;     /* bit i: a threaded stream uses worker (threads of the pool + i) */
    uint32_t n_streams;        /* created and not yet freed */
    uint32_t n_workers;        /* threads of the pool, plus CN_CPU_MAX_STREAMS threaded streams */
    cn_cpu_attn_scratch *attn; /* [n_workers] */
    cn_cpu_select_scratch *select; /* [n_workers] */
    cn_cpu_gemm *gemm;
    /* Partial results of attention over parts of a long sequence; immediate streams only. */
    float *attn_parts;
    size_t n_attn_parts; /* floats */
} cn_cpu;

/* Runs fn over tasks [0, n_tasks): on the pool for an immediate stream, one after the other for a
 * threaded stream. The `worker` passed to fn is always below cn_cpu.n_workers. A task's result must
 * not depend on the worker that runs it. */
void cn_cpu_parallel(cn_stream *s, uint32_t n_tasks, cn_cpu_task_fn fn, void *ctx);

/* Runs fn(args, row) for rows [0, n_rows), in parallel if they are long together. */
void cn_cpu_for_rows(cn_stream *s, const void *args, uint32_t n_rows, uint32_t row_elems,
                     void (*row)(const void *args, uint32_t row));

/* Returns the items per task for which a task reads about 16 Ki elements. Small loops then stay on
 * one thread. */
static inline uint32_t cn_cpu_grain(uint32_t elems_per_item)
{
    return cn_max_u32(1, 16384 / cn_max_u32(1, elems_per_item));
}

/* For n_workers threads. */
cn_status cn_cpu_gemm_create(cn_cpu_gemm **out, uint32_t n_workers);
void cn_cpu_gemm_free(cn_cpu_gemm *g);

/* X(op, arguments): the ops that are queued with a copy of their arguments. cn_cpu_<op> runs one.
 * cpu_backend.c has the other ops. */
#define CN_CPU_OPS(X)                                                                   \
    X(embed, cn_embed_args)                                                             \
    X(rmsnorm, cn_rmsnorm_args)                                                         \
    X(reduce_norm, cn_reduce_norm_args)                                                 \
    X(draft_store, cn_draft_store_args)                                                 \
    X(draft_part, cn_draft_part_args)                                                   \
    X(draft_before, cn_draft_before_args)                                               \
    X(draft_keep, cn_draft_keep_args)                                                   \
    X(digest, cn_digest_args)                                                           \
    X(predict, cn_predict_args)                                                         \
    X(score, cn_score_args)                                                             \
    X(select, cn_select_args)                                                           \
    X(exchange, cn_exchange_args)                                                       \
    X(fetch, cn_fetch_args)                                                             \
    X(silu_mul, cn_silu_mul_args)                                                       \
    X(gather, cn_gather_args)                                                           \
    X(route, cn_route_args)                                                             \
    X(expert_gate_up, cn_expert_gate_up_args)                                           \
    X(expert_down, cn_expert_down_args)                                                 \
    X(expert_sum, cn_expert_sum_args)                                                   \
    X(heads_gemm, cn_heads_gemm_args)

/* X(op, arguments, batch view): the same for ops with a batch view. */
#define CN_CPU_BATCH_OPS(X)                                 \
    X(rope_store, cn_rope_store_args, batch)                \
    X(attn_decode, cn_attn_args, batch)                     \
    X(attn_prefill, cn_attn_args, batch)                    \
    X(attend_selected, cn_attend_selected_args, attn.batch) \
    X(latent_store, cn_latent_store_args, batch)

#define CN_CPU_DECLARE(op, type, ...) cn_status cn_cpu_##op(cn_stream *s, const type *a);
CN_CPU_OPS(CN_CPU_DECLARE)
CN_CPU_BATCH_OPS(CN_CPU_DECLARE)
#undef CN_CPU_DECLARE
cn_status cn_cpu_gemm_run(cn_stream *s, const cn_gemm_args *a);
/* Returns the input of a product with `weight`: x [n_tokens, k], or room with x rounded. */
const float *cn_cpu_gemm_round(cn_stream *s, const cn_matrix *weight, const float *x, float *room,
                               uint32_t n_tokens, uint32_t k);
/* The attention of attend_selected. */
cn_status cn_cpu_attn_lists(cn_stream *s, const cn_list_attn_args *a);
/* heads_gemm on the calling thread. */
void cn_cpu_heads_run(const cn_heads_gemm_args *a);
cn_status cn_cpu_copy_blocks(cn_stream *s, const cn_copy_args *a);

/* Checks the shape of pools that digest and score read; `op` names the op in the error. */
cn_status cn_cpu_check_selection(const cn_pools *p, const char *op);

/* out[n_channels] = the channels of a (layer, kv head), counted in this order. */
void cn_cpu_read_channels(const cn_digest *g, size_t unit, uint16_t *out);

/* out[n] = x[n] / rms(x) * weight[n], with the sum of squares in a fixed order. */
void cn_cpu_rms_scale(float *out, const float *x, const float *weight, uint32_t n, float eps);
