/* model_ranks.h - what the model of one rank knows of the others when a model is split
 * (engine/rank_ops.h).
 *
 * Owner: the engine's ranks. Thread: any; it does not change after start. Stage: 6 of the path of a
 * request. */
#pragma once

#include "engine/checkpoint/model_config.h"

typedef struct cn_model_ranks {
    cn_barrier *barrier;
    void *memory[CN_MAX_RANKS]; /* cn_model_opts.memory of each, in the same layout */
} cn_model_ranks;

/* The sum of the branches at an offset of these memories, on the rank of c. The rest is to be set.
 */
static inline cn_reduce_norm_args cn_model_ranks_sum(const cn_model_ranks *r,
                                                     const cn_model_config *c, size_t branch)
{
    cn_reduce_norm_args a = {.barrier = r->barrier,
                             .rank = c->rank,
                             .n_ranks = c->n_ranks,
                             .hidden = c->hidden,
                             .eps = c->rms_eps};
    for (uint32_t i = 0; i < c->n_ranks; i++) a.branch[i] = (char *)r->memory[i] + branch;
    return a;
}

/* Where the rows of the head of the rank of c begin in the logits, which rank 0 has. */
static inline float *cn_model_ranks_logits(const cn_model_ranks *r, const cn_model_config *c,
                                           size_t logits)
{
    float *all = (float *)(void *)((char *)r->memory[0] + logits);
    return all + cn_head_first_row(c, c->rank);
}
