/* compress.h - a compression event in the CUDA backend: the structs that the host packs for the
 * kernels, the layout of the scratch, and the functions that launch the kernels. DESIGN.md §2. CPU
 * versions: engine/cpu/cpu_compress.c, cpu_score.c, cpu_select.c, cpu_compact.c. Thread: the
 * engine's; all work runs on the stream of the call.
 *
 * compress.c checks the requests and sorts them into groups of one shape (policy, blocks, window,
 * kind of redundancy and of move, form of the rule). It cuts every group into chunks of (jobs x
 * layers) whose scores fit the scratch.
 * A unit is one (job, layer, kv head) of a chunk; units share no data. A chunk runs up to five
 * steps in stream order:
 *
 *   queries   Q of latent attention                cn_compress_queries
 *   score     K, Q, F -> score, redundancy         cn_compress_score
 *   select    score, redundancy -> kept, F         cn_compress_select
 *   set aside blocks that a move would overwrite   cn_compress_set_aside
 *   move      kept, K, V, P -> target blocks       cn_compress_move
 *
 * Policy window runs only the last two. With latent attention there is one part, K.
 * In the pools only the targets are written. Not even F of
 * the sources is written, because requests of one event may share the sources. */
#pragma once

#include "cuda/cuda_ops.h"

CN_BEGIN_C

enum {
    CN_COMPRESS_SPAN = 256, /* slots; a whole number of blocks of any size */
    /* In cn_compress_job.table, CN_COMPRESS_ASIDE + i: the block was set aside as number i. */
    CN_COMPRESS_ASIDE = 1 << 30
};

/* One request, in device memory. */
typedef struct cn_compress_job {
    const uint32_t *source; /* [n_blocks] source blocks; read by the scores */
    const uint32_t *table;  /* [n_blocks] for the move: source block, or CN_COMPRESS_ASIDE + i */
    const uint32_t *target; /* [n_target] */
    uint32_t n_target;      /* blocks kept */
    uint32_t query_slot;
    uint32_t ring_start; /* query u (0 = oldest) is at ring row (ring_start + u) % ring */
    uint32_t n_history;  /* slots [0, n_history) have a valid F; 0 without global score */
    /* P moves with slots [0, n_placed); slot i from there on has position first_position + i. */
    uint32_t n_placed, first_position;
    /* First and newest slots that are always kept. Under CN_KEEP_RECENT the newest follow from the
     * number of targets. */
    uint32_t n_sinks, n_newest;
    bool global;         /* F is updated */
    bool pool;           /* this event pools */
    bool follow;         /* instead, S also counts for the slots that follow (CN_FORM_FOLLOW) */
    float alpha;         /* factor of F */
    float decay_log2;    /* of a probability, per token that its query is older than the newest */
    float redundancy_p;
    float redundancy_scale; /* R = base-2 softmax of (redundancy_scale * row sums) */
    float score_sum; /* S is scaled to this sum over the n slots, after pooling; 0: it is not */
    float score_weight, redundancy_weight; /* final = score_weight * S - redundancy_weight * R */
} cn_compress_job;

/* The work of one launch of each kernel. It is the kernel's argument, by value. */
typedef struct cn_compress_chunk {
    cn_pools pools;
    const cn_compress_job *jobs; /* device, [n_jobs] */
    uint32_t n_jobs, first_layer, n_layers;

    cn_keep keep; /* the same for all jobs, like the next fields */
    cn_kv_redundancy redundancy_kind;
    bool fills; /* CN_KEEP_BEST with CN_MOVE_FILL */
    uint32_t n_blocks, n; /* n = n_blocks * block_tokens resident slots */
    uint32_t window;      /* queries that count */
    uint32_t ring;        /* rows of the ring of queries, at least `window` */
    bool peak;            /* S is the largest decayed probability, not the mean (cn_rule_form) */
    uint32_t group;       /* query heads of a kv head */
    uint32_t n_spans;     /* of CN_COMPRESS_SPAN slots; the last may be shorter */
    uint32_t max_target;  /* largest n_target */
    uint32_t n_aside;     /* most blocks that a job sets aside */
    bool moves_scores;    /* at least one job is not `global`: its F moves unchanged */

    /* Device scratch of the units, 16-byte aligned, undefined at the start of a chunk. */
    float *score;      /* [units, n] */
    float *redundancy; /* [units, n] */
    uint32_t *work;    /* [units, work_words]: used by the score launch, then the kept slots */
    /* At least 2 n and at least 2 * n_spans * window * group. */
    uint32_t work_words;
    void *queries; /* [units, window, n_heads, head_dim] bf16 with latent attention; or NULL */
    char *aside; /* [units, n_aside, cn_compress_aside_bytes] */
} cn_compress_chunk;

static inline uint32_t cn_compress_units(const cn_compress_chunk *c)
{
    return c->n_jobs * c->n_layers * c->pools.layout.n_kv_heads;
}

/* Bytes of a block of one (layer, kv head) that is set aside: K and V as in the pool, then P and F,
 * [block_tokens] each. */
CN_KV_FN size_t cn_compress_aside_bytes(const cn_kv_layout *l)
{
    return l->head_bytes + 2 * (size_t)l->block_tokens * sizeof(uint32_t);
}

/* Multiplies the queries that count by the key matrices of their heads. */
cn_status cn_compress_queries(cn_stream *s, const cn_compress_chunk *c);

/* Computes the scores of every unit, with unit = (job * n_layers + layer - first_layer) *
 * n_kv_heads + kv_head, like the CPU's table of scores (engine/cpu/score.h). Sums are f32, in an
 * order that does not depend on other units:
 *
 *   score[v]       S before pooling: mean over the window's queries of the largest softmax over the
 *                  group's heads; with `peak` the largest, times 2^(decay_log2 * age), where the
 *                  newest query has age 0. The softmax is over all n slots; query u sees the first
 *                  n - window + u + 1. Then max(alpha * F[v], S) if v < n_history. F is at
 *                  cn_kv_side(layer, source[v / b], kv_head, v % b) and is only read.
 *   redundancy[v]  the sum of row v of the keys' cosines over its block (lightning) or all slots
 *                  (flash), without scaling and softmax. The diagonal is 0, and in each column the
 *                  last row above redundancy_p is 0. Cosines of a zero key are 0. Unchanged with
 *                  CN_REDUNDANCY_NONE.
 *
 * It may use `work` but not `aside`. Queries are bf16. */
cn_status cn_compress_score(cn_stream *s, const cn_compress_chunk *c);

/* The same with the tensor cores of compute capability 9.0. It makes one pass over K, two for long
 * sequences and wide windows. cn_compress_score uses it if it fits: if all queries of the ring
 * count, among other things. */
bool cn_compress_score_sm90_fits(const cn_stream *s, const cn_compress_chunk *c);
cn_status cn_compress_score_sm90(cn_stream *s, const cn_compress_chunk *c);

/* work[unit][i] = the kept slot that target slot i < n_target * b receives. With move `order` these
 * ascend. With move `fill` it is i itself if slot i is kept; the others ascend. Where the job is
 * `global`, writes score[v] of these slots to F of the targets. `score` must therefore still be the
 * global score. A score that comes after it needs an array of its own, which this step adds. */
cn_status cn_compress_select(cn_stream *s, const cn_compress_chunk *c);

/* Copies the blocks marked CN_COMPRESS_ASIDE. Does nothing if n_aside is 0. */
cn_status cn_compress_set_aside(cn_stream *s, const cn_compress_chunk *c);

/* Target slot i receives K, V and, if select has not written it, F of slot work[unit][i]; and the
 * position of that slot as P. */
cn_status cn_compress_move(cn_stream *s, const cn_compress_chunk *c);

CN_END_C
