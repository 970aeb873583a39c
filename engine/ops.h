/* ops.h - the operations of a forward pass, of sampling and of compression, as one plain argument
 * struct each and a table of functions, the backend. A leaf: kernels include nothing else.
 *
 * The model (engine/model.c) is written once over this table. The CPU backend is the readable
 * specification of every op; another backend is compared with it on awkward shapes.
 *
 * Conventions. Row-major; shapes in brackets, the last dimension contiguous. T tokens of the
 * step, S sequences, h hidden size, d head_dim, hq / hk query / kv heads, V vocabulary, I
 * intermediate size. "act" is the backend's activation dtype (f32 on the CPU, bf16 on a GPU).
 * Sums are f32 at least. All pointers are device pointers unless a comment says host. Index
 * arrays are valid until the stream has run the op. Ops enqueue on `stream` and return; they
 * neither allocate nor synchronise. A NULL entry means the backend lacks the op: refused at
 * start, by name.
 *
 * Padding. A graph (cn_graph) replays a batch of fixed size: rows beyond the real ones are stored
 * nowhere (kv_slots = CN_NO_SLOT, q_rows = -1) and sequences beyond the real ones have kv_len 0;
 * what an op writes to their outputs is not defined. Only a backend with graphs meets them. */
#ifndef CN_OPS_H
#define CN_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base.h"
#include "engine/dtype.h"
#include "paged/planes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cn_backend cn_backend;
typedef struct cn_stream cn_stream; /* in-order queue of device work */
typedef enum cn_priority { CN_PRIORITY_HIGH, CN_PRIORITY_LOW } cn_priority;
typedef struct cn_fence cn_fence;   /* a point in a stream; reusable */
typedef struct cn_graph cn_graph;   /* recorded ops that one call starts again */

#define CN_NO_SLOT UINT32_MAX /* in kv_slots: a row of padding */

/* The step's batch as flat arrays. Sequences come decode first: the first n_decode have exactly
 * one query token; token order follows sequence order. */
typedef struct cn_batch_view {
    uint32_t n_tokens, n_seqs, n_decode;
    const uint32_t *tokens;    /* [T] ids */
    /* A device runs a step before the host has read the last one's tokens: where sampled_row[t] >=
     * 0 the id is sampled[sampled_row[t]], not tokens[t]. [T], and the last step's sample output;
     * both NULL when all ids are known. */
    const int32_t *sampled_row;
    const uint32_t *sampled;
    const uint32_t *positions; /* [T] logical position: RoPE and the query ring use it */
    const uint32_t *kv_slots;  /* [T] block * block_tokens + slot where K and V are stored */
    const int32_t *q_rows;     /* [T] query slot * window + ring row, or -1: not observed */
    const uint32_t *q_start;   /* [S+1] first token of each sequence */
    const uint32_t *kv_len;    /* [S] resident slots including this step's tokens */
    const uint32_t *tables;    /* [S, table_stride] physical block of each logical block */
    uint32_t table_stride;
    uint32_t max_q, max_kv; /* host knowledge of the largest n_q and kv_len */
} cn_batch_view;

/* out[n] = elements 0 to n - 1 of a tensor of dummy weights (engine/checkpoint/dummy_weight.h). */
typedef struct cn_dummy_fill_args {
    void *out;
    cn_dtype dtype;
    uint64_t n, key;
    float scale;
} cn_dummy_fill_args;

/* out[T,h] = table[id[T], h], the ids as the batch view has them. */
typedef struct cn_embed_args {
    void *out;
    const void *table; /* [V,h] weight dtype */
    const uint32_t *tokens;
    const int32_t *sampled_row; /* as in cn_batch_view; may be NULL */
    const uint32_t *sampled;
    uint32_t n_tokens, hidden, vocab;
} cn_embed_args;

/* residual[T,h] += x (when x is not NULL); out = residual / rms(residual) * weight. */
typedef struct cn_rmsnorm_args {
    void *out;          /* [T,h] act */
    void *residual;     /* [T,h] act, updated in place */
    const void *x;      /* [T,h] act or NULL */
    const void *weight; /* [h] */
    uint32_t n_tokens, hidden;
    float eps;
} cn_rmsnorm_args;

/* out[T,N] = x[T,K] * weight[N,K]^T (+ bias[N]). A row's value depends on that row alone: not on
 * T nor on its place, bit for bit (on a GPU under --batch-invariant). */
typedef struct cn_gemm_args {
    void *out;
    const void *x, *weight, *bias; /* bias may be NULL */
    uint32_t n_tokens, n, k;
    bool out_f32; /* logits: f32 out whatever the activation dtype */
} cn_gemm_args;

/* out[T,I] = silu(y[T, 0:I]) * y[T, I:2I] of y = x[T,K] * weight[2I,K]^T: gemm and silu_mul in
 * one, for backends where y need not go through memory. */
typedef struct cn_gemm_silu_mul_args {
    void *out;
    const void *x, *weight;
    void *gate_up; /* [T,2I] workspace: y, or undefined afterwards */
    uint32_t n_tokens, intermediate, k;
} cn_gemm_silu_mul_args;

/* Splits qkv[T, (hq+2hk)*d] into heads, applies the per-head RMS norm of Qwen3 (when the norms are
 * not NULL) and RoPE (rotate-half) to q and k, stores k and v at kv_slots, q at q, and q once more
 * in the observation window at q_rows when that is >= 0. */
typedef struct cn_rope_store_args {
    void *q; /* [T, hq, d] out */
    const void *qkv;
    const void *q_norm, *k_norm; /* [d] or NULL */
    float eps;
    const float *cos, *sin; /* [max_position, d/2] f32, scaling and attention factor included */
    const cn_batch_view *batch;
    uint32_t n_heads, layer;
    cn_kv_layout layout;
    void *kv;       /* the pool */
    void *q_window; /* [L, n_query_slots, window, hq, d] or NULL */
    uint32_t n_query_slots, window;
} cn_rope_store_args;

/* Paged causal attention. Query i of a sequence with n_q queries and kv_len resident slots sees
 * the first kv_len - n_q + i + 1 slots. attn_decode handles sequences [0, n_decode), attn_prefill
 * the rest; the same query gives the same bits in both on the CPU. */
typedef struct cn_attn_args {
    void *out;     /* [T, hq, d] */
    const void *q; /* [T, hq, d] */
    const void *kv;
    const cn_batch_view *batch;
    cn_kv_layout layout;
    uint32_t n_heads, layer;
    float scale; /* 1/sqrt(d) */
} cn_attn_args;

/* One query per sequence over a list of its resident slots per kv head (decode-time selection). */
typedef struct cn_attn_sparse_args {
    cn_attn_args attn;
    const uint32_t *index;   /* [n_decode, hk, index_stride] slot numbers in the sequence */
    const uint32_t *n_index; /* [n_decode, hk] */
    uint32_t index_stride;
} cn_attn_sparse_args;

/* out[T,I] = silu(gate_up[T, 0:I]) * gate_up[T, I:2I] */
typedef struct cn_silu_mul_args {
    void *out;
    const void *gate_up;
    uint32_t n_tokens, intermediate;
} cn_silu_mul_args;

/* out[n,h] = x[rows[n], h]: the rows whose logits are wanted. */
typedef struct cn_gather_args {
    void *out;
    const void *x;
    const uint32_t *rows;
    uint32_t n_rows, hidden;
} cn_gather_args;

enum { CN_MAX_LOGPROBS = 20 };

/* One row to sample. Order of effects, as vLLM's: logprobs are of the raw logits; then bans and
 * biases, repetition, frequency and presence penalties; temperature 0 takes the largest (ties:
 * lower id); else divide by temperature, min_p, top_k, top_p over what is left (ties at the
 * threshold are all kept), and draw u = philox(seed; sample, position): the first id, in id order,
 * whose cumulative weight exceeds u. A NaN logit counts as -inf; with no logit above -inf the token
 * is 0 and every logprob -inf. engine/sample_math.h defines the arithmetic: integer weights, so
 * that every backend keeps and draws the same tokens whatever the order of its sums. top_k and
 * top_p compare logits after the temperature, min_p and the mass of top_p are in weights. */
typedef struct cn_sample_row {
    uint64_t seed;
    uint32_t sample, position;
    float temperature, top_p, min_p;
    int32_t top_k; /* <= 0: off */
    float presence_penalty, frequency_penalty, repetition_penalty;
    int32_t count_slot; /* row of counts, or -1: no penalties */
    /* >= 0: take this token whatever the logits, unless the sequence's last token was it already;
     * that one is prev_tokens[prev_row] where prev_row >= 0, else known not to be. */
    int32_t force_token, prev_row;
    int32_t n_logprobs;  /* -1: none; 0: of the chosen one only; else the min(n_logprobs, V) best */
    uint32_t ban_start, n_ban;   /* into bans[] */
    uint32_t bias_start, n_bias; /* into biases[] */
} cn_sample_row;

typedef struct cn_sample_args {
    float *logits; /* [n_rows, V]; undefined afterwards */
    uint32_t n_rows, vocab;
    const cn_sample_row *rows;
    const uint32_t *bans;
    const cn_logit_bias *biases;
    /* Token counts of penalised requests: low 15 bits = times in the output (saturating), high bit
     * = in the prompt. [n_count_slots, V]; the op adds the sampled token. */
    uint16_t *counts;
    const uint32_t *prev_tokens; /* the last step's `tokens`; NULL when no row has a prev_row */
    uint32_t *tokens;      /* [n_rows] out */
    float *token_logprobs; /* [n_rows] out, rows with n_logprobs >= 0 */
    cn_logprob *top;       /* [n_rows, CN_MAX_LOGPROBS] out, best first, ties: lower id */
    void *scratch;         /* scratch_bytes, from backend->sample_scratch_bytes; 64-byte aligned */
    size_t scratch_bytes;
} cn_sample_args;

/* Rebuilds one row of counts (a request starts, or returns after a preemption). */
typedef struct cn_count_reset_args {
    uint16_t *counts;
    uint32_t vocab, slot;
    const uint32_t *prompt; /* [n_prompt] */
    const uint32_t *output; /* [n_output] */
    uint32_t n_prompt, n_output;
} cn_count_reset_args;

/* What a device keeps of blocks and query slots. Optional arrays are NULL. */
typedef struct cn_pools {
    cn_kv_layout layout;
    void *kv;
    float *score;     /* F, f32 */
    uint32_t *origin; /* P */
    void *q_window;   /* [L, n_query_slots, window, hq, d] */
    uint32_t n_query_slots, window; /* window: rows of the ring, the engine's largest w */
    uint32_t n_heads;
    cn_dtype act_dtype; /* of q_window */
} cn_pools;

/* The same as planes. */
static inline cn_planes cn_pools_planes(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    const size_t slot_bytes = (size_t)p->window * p->n_heads * l->head_dim *
                              cn_dtype_bytes(p->act_dtype);
    cn_planes out;
    out.n_layers = l->n_layers;
    out.where = CN_ON_DEVICE;
    void *const bases[CN_N_BLOCK_PLANES] = {p->kv, p->score, p->origin};
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        out.block[i] = cn_plane_by_layer(bases[i], cn_block_plane_bytes(l, (cn_block_plane)i),
                                         l->n_blocks);
    out.slot[CN_PLANE_QUERIES] = cn_plane_by_layer(p->q_window, slot_bytes, p->n_query_slots);
    return out;
}

typedef struct cn_block_copy {
    uint32_t src, dst;
} cn_block_copy;

/* Whole blocks and whole query slots, all layers and planes. */
typedef struct cn_copy_list {
    const cn_block_copy *blocks; /* host, [n_blocks] */
    uint32_t n_blocks;
    const cn_block_copy *slots; /* host, [n_slots] */
    uint32_t n_slots;
} cn_copy_list;

/* Copies items from one memory to another, bit for bit: forks inside the pool, swap to host memory
 * and back. Both memories have the same planes. Inside one memory copies take effect in the order
 * of the list; between two memories no copy of a list depends on another. CN_ERR_SHAPE when query
 * slots are listed and there are none. */
typedef struct cn_copy_args {
    cn_planes from, to;
    cn_copy_list list;
} cn_copy_args;

static inline cn_status cn_copy_check(const cn_copy_args *a)
{
    if (a->list.n_slots > 0 && !a->from.slot[CN_PLANE_QUERIES].base)
        return cn_fail(CN_ERR_SHAPE, "copy_blocks: %u query slots are listed, but there are none",
                       a->list.n_slots);
    return CN_OK;
}

/* How an event chooses the slots that it keeps. A policy has one of these (compress/policy.h). */
typedef enum cn_keep {
    CN_KEEP_ALL,    /* no events */
    CN_KEEP_RECENT, /* the first sink_tokens and the newest */
    CN_KEEP_BEST,   /* the highest scores, the observation window among them */
    CN_N_KEEPS
} cn_keep;

/* One request of a compression event (DESIGN.md §2). n = n_blocks * block_tokens resident slots,
 * all full. The window's query u (0 = oldest) was written at ring row (position_end - w + u) mod w,
 * where position_end is the number of tokens so far. */
typedef struct cn_compress_req {
    cn_kv_params params; /* move: which target slot takes which kept one (cn_kv_move) */
    uint32_t n_blocks, n_target; /* kept = n_target * block_tokens */
    const uint32_t *table;       /* host, [n_blocks] sources */
    const uint32_t *target;      /* host, [n_target]; may overlap the sources */
    uint32_t query_slot;         /* unused by the window policy */
    uint32_t position_end;
    bool first_event;
    uint32_t n_history; /* slots [0, n_history) hold a global score from the last event */
} cn_compress_req;

typedef struct cn_compress_args {
    cn_pools pools;
    const cn_compress_req *reqs; /* host */
    uint32_t n_reqs;
    void *scratch; /* scratch_bytes, from backend->compress_scratch_bytes */
    size_t scratch_bytes;
} cn_compress_args;

struct cn_backend {
    const char *name;      /* "cpu", "cuda" */
    cn_dtype matrix_dtype; /* of weights: matrices, */
    cn_dtype vector_dtype; /* norms and biases */
    cn_dtype act_dtype;
    cn_dtype kv_dtype;
    uint32_t default_block_tokens; /* of a KV block, where --block-size does not say */
    bool async; /* ops return before they have run */
    size_t mem_align; /* mem_alloc takes multiples of it */
    uint32_t keeps;   /* ways of choosing that its events know: bit i is cn_keep i */
    void *ctx;  /* the backend's own */

    void (*close)(cn_backend *be);
    /* A thread calls this before any other of these functions, but for the one that opened the
     * backend; again is harmless. NULL: threads make no difference. */
    void (*enter)(cn_backend *be);
    /* Device memory, zeroed. Taken at start only. */
    cn_status (*mem_alloc)(cn_backend *be, size_t bytes, void **out);
    void (*mem_free)(cn_backend *be, void *p);
    /* Bytes that one mem_alloc can still get. NULL: the host's memory, without a limit of its
     * own. */
    size_t (*mem_avail)(cn_backend *be);
    /* Bytes of the device's memory: what the options let it be filled to at open, and what is in
     * use now, by whomever. NULL where mem_avail is. */
    void (*mem_usage)(cn_backend *be, uint64_t *planned, uint64_t *used);
    /* Host memory, zeroed, that the device reads and writes directly. Taken at start only. */
    cn_status (*host_alloc)(cn_backend *be, size_t bytes, void **out);
    void (*host_free)(cn_backend *be, void *p);
    /* `host` may change as soon as mem_write returns on a HIGH stream; on another once the stream
     * has run it. mem_read has filled `host` once the stream has run it; when `host` is not memory
     * of host_alloc the call may wait for that. */
    cn_status (*mem_write)(cn_stream *s, void *dst, const void *host, size_t bytes);
    cn_status (*mem_read)(cn_stream *s, void *host, const void *src, size_t bytes);
    /* *out (device) = sum of the 32-bit words of src[bytes], 16-byte aligned: one pass of reading,
     * the yardstick of benchmarks. May be NULL. */
    cn_status (*mem_sum)(cn_stream *s, const void *src, size_t bytes, uint64_t *out);

    /* A queue of work on this device. Kernels of a HIGH stream start before those of LOW ones. On
     * the CPU a HIGH stream runs its ops on the calling thread and the worker threads before they
     * return, unless the backend is threaded; every other stream has a thread of its own. Taken at
     * start only. stream_free waits for the stream; a backend is closed after its streams. */
    cn_status (*stream_create)(cn_backend *be, cn_priority priority, cn_stream **out);
    void (*stream_free)(cn_stream *s); /* NULL is fine */
    cn_status (*stream_sync)(cn_stream *s);
    cn_status (*fence_create)(cn_backend *be, cn_fence **out);
    void (*fence_free)(cn_fence *f);
    cn_status (*fence_record)(cn_fence *f, cn_stream *s);
    cn_status (*fence_wait)(cn_stream *s, cn_fence *f); /* the stream waits, not the host */
    cn_status (*fence_done)(cn_fence *f, bool *done);   /* poll; an error of the work shows here */
    cn_status (*fence_sync)(cn_fence *f);               /* the host waits */

    /* Between begin and end ops of s are recorded, not run: with the addresses and numbers of their
     * arguments, but with what arrays hold at each launch. mem_write and mem_read cannot be
     * recorded. NULL: the backend runs ops one by one only. */
    cn_status (*graph_begin)(cn_stream *s);
    cn_status (*graph_end)(cn_stream *s, cn_graph **out);
    cn_status (*graph_launch)(cn_stream *s, cn_graph *g);
    void (*graph_free)(cn_graph *g);

    /* At start. NULL: dummy weights are made on the host and written. */
    cn_status (*dummy_fill)(cn_stream *s, const cn_dummy_fill_args *a);

    cn_status (*embed)(cn_stream *s, const cn_embed_args *a);
    cn_status (*rmsnorm)(cn_stream *s, const cn_rmsnorm_args *a);
    cn_status (*gemm)(cn_stream *s, const cn_gemm_args *a);
    cn_status (*gemm_silu_mul)(cn_stream *s, const cn_gemm_silu_mul_args *a); /* may be NULL */
    cn_status (*rope_store)(cn_stream *s, const cn_rope_store_args *a);
    cn_status (*attn_decode)(cn_stream *s, const cn_attn_args *a);
    cn_status (*attn_prefill)(cn_stream *s, const cn_attn_args *a);
    cn_status (*attn_sparse)(cn_stream *s, const cn_attn_sparse_args *a);
    cn_status (*silu_mul)(cn_stream *s, const cn_silu_mul_args *a);
    cn_status (*gather)(cn_stream *s, const cn_gather_args *a);
    /* Scratch for a step of at most max_rows rows. */
    size_t (*sample_scratch_bytes)(cn_backend *be, uint32_t max_rows, uint32_t vocab);
    cn_status (*sample)(cn_stream *s, const cn_sample_args *a);
    cn_status (*count_reset)(cn_stream *s, const cn_count_reset_args *a);
    cn_status (*copy_blocks)(cn_stream *s, const cn_copy_args *a);
    /* Score, select and move all requests of an event. Scratch for one request of n_max slots. */
    size_t (*compress_scratch_bytes)(cn_backend *be, const cn_pools *p, uint32_t n_max);
    cn_status (*compress)(cn_stream *s, const cn_compress_args *a);
};

typedef struct cn_cpu_backend_opts {
    uint32_t n_threads; /* 0 = cores; includes the calling thread */
    bool threaded;      /* every stream has a thread of its own: a second device beside the first */
} cn_cpu_backend_opts;

/* The CPU backend. */
cn_status cn_backend_cpu_open(cn_backend **out, const cn_cpu_backend_opts *o);

/* Which matrix products a CUDA backend uses: what was fastest, or one kind alone (benchmarks). */
typedef enum cn_cuda_gemm_kind {
    CN_CUDA_GEMM_FASTEST,
    CN_CUDA_GEMM_LIBRARY,
    CN_CUDA_GEMM_OWN /* where there is one */
} cn_cuda_gemm_kind;

/* Pointers are borrowed for the call. */
typedef struct cn_cuda_backend_opts {
    /* Set by cn_backend_cuda_load (engine/backend.h): who calls. */
    const cn_base_calls *base;
    const char *version; /* CINCH_VERSION */
    size_t header_bytes; /* cn_cuda_header_bytes(): another one was built from other headers */

    uint32_t device; /* ordinal */
    /* The one allocation of device memory: memory_bytes of it, or (0) memory_share of the device's
     * memory less what is in use. wanted_bytes, where it is not NULL, is asked first, when the
     * table's functions of sizes work and before there is memory: *bytes for the caller, beside
     * what the backend takes for itself; 0 leaves the choice to the two. */
    uint64_t memory_bytes;
    float memory_share;
    cn_status (*wanted_bytes)(const void *ctx, cn_backend *be, uint64_t *bytes);
    const void *wanted_ctx;

    /* The model and the largest step: workspace, and the matrix products to time at start. With
     * hidden 0 nothing is timed. */
    uint32_t n_heads, n_kv_heads, head_dim, hidden, intermediate, vocab;
    uint32_t max_seqs, max_tokens;

    bool batch_invariant; /* a row's bits do not depend on its batch */
    bool portable; /* only what compute capability 8.0 has, whatever the device (tests) */
    cn_cuda_gemm_kind gemm;
    const char *cache_dir; /* where timings are kept, made when missing; NULL: nowhere */
} cn_cuda_backend_opts;

static inline size_t cn_cuda_header_bytes(void)
{
    return sizeof(cn_backend) + sizeof(cn_cuda_backend_opts);
}

/* The CUDA backend, the one symbol of cinch-cuda.so. */
cn_status cn_backend_cuda_open(cn_backend **out, const cn_cuda_backend_opts *o);
typedef cn_status (*cn_backend_cuda_open_fn)(cn_backend **out, const cn_cuda_backend_opts *o);

#ifdef __cplusplus
}
#endif
#endif
