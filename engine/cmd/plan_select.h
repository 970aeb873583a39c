/* plan_select.h - what selection adds to a plan: digests, scratch, and from how many tokens in the
 * batch each declared selector makes a decode step shorter with KV home device. Only `cinch plan`
 * uses it.
 *
 * Owner: the caller; plain values. Thread: main. Stage: none. */
#pragma once

#include <jansson.h>

#include "engine/select/select_cost.h"
#include "engine/start/start_plan.h"

enum { CN_PLAN_SPEED_UPS = 5 };

typedef struct cn_plan_selector {
    cn_kv_select select;
    char refused[256]; /* why requests with the default sizes are refused; empty: they are not */
    /* Tokens in the batch from which a step is 1, 1.2, 1.5, 2 and 3 times as fast; 0: not even with
     * requests of the longest length. */
    uint64_t batch_tokens[CN_PLAN_SPEED_UPS];
    double speed_up; /* with requests of mean length */
} cn_plan_selector;

typedef struct cn_plan_selection {
    cn_select_shape shape;
    uint32_t n_rows;       /* requests with full KV that run at once, each as long as possible */
    uint32_t mean_tokens;  /* of such a request, half of its final length */
    uint64_t digest_bytes; /* of a token */
    uint64_t scratch_bytes;
    cn_plan_selector selectors[CN_N_SELECTORS];
    uint32_t n; /* 0: no selector is declared, and nothing is printed */
} cn_plan_selection;

void cn_plan_selection_make(cn_plan_selection *out, const cn_config *c, const cn_model_config *m,
                            const cn_start_plan *start, const cn_backend *be);

void cn_plan_selection_print(const cn_plan_selection *p);

/* Returns null without selectors; NULL when out of memory. */
json_t *cn_plan_selection_json(const cn_plan_selection *p);
