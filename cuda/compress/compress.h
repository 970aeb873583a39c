/* compress.h - a compression event inside the CUDA backend: what the host packs for the kernels,
 * where the scores lie, and who launches what. DESIGN.md §2; twins: engine/cpu/cpu_compress.c,
 * cpu_score.c, cpu_select.c, cpu_compact.c. Thread: the engine's; all work runs on the stream of
 * the call.
 *
 * compress.c checks the requests, sorts them into groups of one shape (policy, blocks, window, kind
 * of redundancy and of move) and cuts every group into chunks of (jobs x layers) whose scores fit
 * the scratch.
 * A unit is one (job, layer, kv head) of a chunk; units share nothing. A chunk takes up to four
 * steps in stream order:
 *
 *   score     K, Q, F -> score, redundancy         cn_compress_score
 *   select    score, redundancy -> kept, F         cn_compress_select
 *   set aside blocks that a move would overwrite   cn_compress_set_aside
 *   move      kept, K, V, P -> target blocks       cn_compress_move
 *
 * The window policy has the last two alone. Nothing but the targets is ever written, not even F at
 * the sources, which requests of one event may share. */
#ifndef CN_CUDA_COMPRESS_H
#define CN_CUDA_COMPRESS_H

#include "cuda/cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CN_COMPRESS_SPAN = 256, /* slots: whole blocks, whatever their size */
    /* In cn_compress_job.table: the block's rows were set aside, under the number that is left. */
    CN_COMPRESS_ASIDE = 1 << 30
};

/* One request, in device memory. */
typedef struct cn_compress_job {
    const uint32_t *source; /* [n_blocks] blocks, for the scores */
    const uint32_t *table;  /* [n_blocks] the same for the move: block, or CN_COMPRESS_ASIDE + i */
    const uint32_t *target; /* [n_target] */
    uint32_t n_target;      /* blocks kept */
    uint32_t query_slot;
    uint32_t ring_start; /* window query u (0 = oldest) is at ring row (ring_start + u) % window */
    uint32_t n_history;  /* slots [0, n_history) have an F that counts; 0 without global score */
    uint32_t n_sinks;    /* window policy */
    bool global;         /* keep F */
    bool pool;           /* this event pools */
    float alpha;         /* decay of F */
    float redundancy_p;
    float redundancy_scale; /* R = softmax of row sums in base 2, these times this */
    float score_weight, redundancy_weight; /* final = the one times S - the other times R */
} cn_compress_job;

/* What one launch of each kernel does, its argument by value. */
typedef struct cn_compress_chunk {
    cn_pools pools;
    const cn_compress_job *jobs; /* device, [n_jobs] */
    uint32_t n_jobs, first_layer, n_layers;

    cn_keep keep; /* of all jobs, as what follows */
    cn_kv_redundancy redundancy_kind;
    bool fills; /* zip with CN_MOVE_FILL */
    uint32_t n_blocks, n; /* n = n_blocks * block_tokens resident slots */
    uint32_t window;      /* queries */
    uint32_t group;       /* query heads of a kv head */
    uint32_t n_spans;     /* of CN_COMPRESS_SPAN slots; the last may be shorter */
    uint32_t max_target;  /* largest n_target */
    uint32_t n_aside;     /* most blocks that a job has set aside */
    bool moves_scores;    /* some job has not global: its F moves as it is */

    /* Device scratch of the units, 16-byte aligned, undefined at the start of a chunk. */
    float *score;      /* [units, n] */
    float *redundancy; /* [units, n] */
    uint32_t *work;    /* [units, work_words]: the score launch's own, then kept */
    /* At least 2 n and 2 * n_spans * window * group. */
    uint32_t work_words;
    char *aside; /* [units, n_aside, cn_compress_aside_bytes] */
} cn_compress_chunk;

static inline uint32_t cn_compress_units(const cn_compress_chunk *c)
{
    return c->n_jobs * c->n_layers * c->pools.layout.n_kv_heads;
}

/* A block of one (layer, kv head) set aside: its tiles as in the pool, then P and F,
 * [block_tokens] each. */
CN_KV_FN size_t cn_compress_aside_bytes(const cn_kv_layout *l)
{
    return l->head_bytes + 2 * (size_t)l->block_tokens * sizeof(uint32_t);
}

/* Fills for every unit (unit = (job * n_layers + layer - first_layer) * n_kv_heads + kv_head), as
 * the CPU's rows do it (engine/cpu/score.h), all sums in f32 and in one order whatever else runs:
 *
 *   score[v]       S before pooling: mean over the window's queries of the largest softmax over the
 *                  group's heads, softmax over all n slots, query u seeing the first
 *                  n - window + u + 1; then max(alpha * F[v], S) where v < n_history. F stands at
 *                  cn_kv_side(layer, source[v / b], kv_head, v % b) and is read only.
 *   redundancy[v]  the sum of row v of the keys' cosines over its block (lightning) or all slots
 *                  (flash), with the diagonal 0 and, per column, the last row above redundancy_p
 *                  0; neither scaled nor softmaxed. A zero key's cosines are 0. Untouched with
 *                  CN_REDUNDANCY_NONE.
 *
 * It may use work, and aside not. Keys and queries bf16. */
cn_status cn_compress_score(cn_stream *s, const cn_compress_chunk *c);

/* The same by Hopper's tensor cores, one pass over K, two for long sequences and wide windows;
 * cn_compress_score takes it where it fits. */
bool cn_compress_score_sm90_fits(const cn_stream *s, const cn_compress_chunk *c);
cn_status cn_compress_score_sm90(cn_stream *s, const cn_compress_chunk *c);

/* work[unit][i] = the kept slot that target slot i < n_target * b takes: ascending; or, where holes
 * are filled, i itself if it is kept, the others ascending. F of the targets = score of these. */
cn_status cn_compress_select(cn_stream *s, const cn_compress_chunk *c);

/* Copies the blocks marked CN_COMPRESS_ASIDE; nothing to do with n_aside 0. */
cn_status cn_compress_set_aside(cn_stream *s, const cn_compress_chunk *c);

/* Target slot i takes K, V, P and, where select has not written it, F of slot work[unit][i]. */
cn_status cn_compress_move(cn_stream *s, const cn_compress_chunk *c);

#ifdef __cplusplus
}
#endif
#endif
