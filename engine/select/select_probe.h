/* select_probe.h - measures what selectors choose, on a sample of decode steps: the attention mass
 * that a step reads, the agreement of its lists with those of `oracle`, and how lists change from
 * step to step. For experiments: it reads the KV of all tokens, on one thread.
 *
 * Owner: cn_engine. Thread: engine. Stage: 6 of the path of a request. CPU backend only: ops have
 * run when they return, and device memory is host memory. */
#pragma once

#include "engine/select/select_step.h"

/* Sums over units (layer and kv head) of the probed steps; a step is one of one sequence. */
typedef struct cn_select_figures {
    uint64_t steps, units;
    uint64_t n_churn; /* units whose sequence had a list in the previous step */
    /* mass: the softmax over all tokens, summed over the tokens that the step attended to; mean of
     * the group's query heads. overlap: the share of the list's tokens that `oracle` selects from
     * the same candidates. churn: the share that was not in the list of the previous step. Sinks
     * and tail count in the mass only. */
    double mass, overlap, churn;
} cn_select_figures;

/* Probes the steps whose position is a multiple of `every`. */
typedef struct cn_select_probe_opts {
    uint32_t every, max_rows;
    const cn_pools *pools;            /* borrowed for the call */
    const cn_select_scratch *scratch; /* borrowed for the call */
    uint32_t first_layer;             /* layers below it are dense */
} cn_select_probe_opts;
cn_status cn_select_probe_create(cn_select_probe **out, const cn_select_probe_opts *o);
void cn_select_probe_free(cn_select_probe *p); /* NULL is fine */

/* Call when the attention of a layer has run. Uses the scratch of scores and logits. */
cn_status cn_select_probe_observe(cn_select_probe *p, const cn_select_step *step,
                                  const cn_attend_selected_args *a);

/* Returns the sums since the last call and forgets all lists. */
cn_select_figures cn_select_probe_take(cn_select_probe *p);
