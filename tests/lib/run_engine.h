/* run_engine.h - runs a set of requests through an engine made from option strings and keeps each
 * sample's tokens, text and usage: what the engine tests compare. */
#ifndef CN_TEST_RUN_ENGINE_H
#define CN_TEST_RUN_ENGINE_H

#include "engine/base.h"

enum { RUN_MAX_REQUESTS = 128, RUN_MAX_SAMPLES = 8 };

typedef struct run_sample {
    uint32_t *tokens;
    uint32_t n_tokens, cap;
    cn_buf text, reasoning;
    uint64_t logprob_hash; /* of every token's log-probability, in order; 0 when not asked for */
    cn_finish finish;
    cn_usage usage;
    char stop_reason[64];
} run_sample;

typedef struct run {
    cn_engine *engine;
    uint32_t n_requests, n_done;
    run_sample samples[RUN_MAX_REQUESTS][RUN_MAX_SAMPLES];
    uint64_t ids[RUN_MAX_REQUESTS];
    cn_stats stats;        /* at the end */
    uint32_t peak_running; /* over all steps */
    uint64_t step_allocs;  /* heap allocations of steps in which no request ended */
    uint64_t callback_allocs; /* those of this file, not counted above */
    struct run_slot {
        struct run *run;
        uint32_t request;
    } slots[RUN_MAX_REQUESTS];
} run;

/* Opens an engine on the bundled checkpoint with options {"name", "value", ..., NULL}; aborts the
 * test with the error text when that fails. */
void run_open(run *r, const char *const *options);
/* The engine's defaults, greedy, max_tokens as given. */
cn_request_params run_params(const run *r, const char *chat_user_text, cn_message *message,
                             uint32_t max_tokens);
/* Submits; the request's number in this run. */
uint32_t run_submit(run *r, const cn_request_params *p);
/* Steps until idle. */
void run_finish(run *r);
void run_close(run *r);

/* Fails the test unless sample s of request a in `x` has the same tokens as that of b in `y`. */
void run_assert_same(const run *x, uint32_t a, const run *y, uint32_t b, uint32_t s);

/* The first `n` prompts of a task of the bundled checkpoint, strings that live until exit. */
uint32_t run_load_prompts(const char *task, const char **prompts, const char **answers, uint32_t n);

#endif
