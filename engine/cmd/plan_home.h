/* plan_home.h - what a home besides the device adds to a plan: its blocks, and for each selector
 * the bytes that a step of a request moves at most, and the batch up to which these transfers hide
 * behind the step. Only `cinch plan` uses it.
 *
 * Owner: the caller; plain values. Thread: main. Stage: none. */
#pragma once

#include <jansson.h>

#include "engine/home/exchange_cost.h"
#include "engine/start/start_plan.h"

typedef struct cn_plan_home {
    cn_kv_home home;
    cn_home_plan plan; /* no blocks: the home is not declared, and nothing is printed */
    uint32_t block_tokens, n_packs;
    uint32_t max_model_len, n_longest; /* requests of this length that fit the home space */
    uint64_t cache_bytes; /* memory of the cache device */
    cn_exchange_cost exchanges[CN_N_SELECTORS];
    uint32_t n_exchanges;
} cn_plan_home;

/* Requests of n_tokens that fit the space of a home besides the device. */
uint32_t cn_plan_home_longest(const cn_memory_plan *m, cn_kv_home home, uint32_t n_tokens);
/* be: of the device that runs the model. read_bytes_per_s: its rate; 0: not measured. */
void cn_plan_home_make(cn_plan_home *out, const cn_config *c, const cn_model_config *m,
                       const cn_start_plan *start, cn_kv_home home, const cn_backend *be,
                       double read_bytes_per_s);
void cn_plan_home_print(const cn_plan_home *p);
/* NULL when out of memory. */
json_t *cn_plan_home_json(const cn_plan_home *p);

/* The largest batch that fits to its end with each home, by the context of its requests: from
 * --max-model-len down by halves, the largest batch first. Printed if a home besides the device is
 * declared. The JSON is null without one. */
void cn_plan_batches_print(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs);
json_t *cn_plan_batches_json(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs);

/* The thresholds of home `auto`: the longest request that fits to its end with each home, by the
 * number of equally long requests that run. Printed for 1, 2, 4, ... requests, if a home besides
 * the device is declared. The JSON is null without one. */
void cn_plan_auto_print(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs);
json_t *cn_plan_auto_json(const cn_memory_plan *m, uint32_t max_model_len, uint32_t max_seqs);
