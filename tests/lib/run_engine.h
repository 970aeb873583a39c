/* run_engine.h - runs requests through an engine made from option strings. Keeps the tokens, text
 * and usage of each sample, which the engine tests compare. */
#pragma once

#include "engine/base/base.h"

enum { RUN_MAX_REQUESTS = 128, RUN_MAX_SAMPLES = 8 };

typedef struct run_sample {
    uint32_t *tokens;
    uint32_t n_tokens, cap;
    cn_buf text, reasoning;
    uint64_t logprob_hash; /* of all log-probabilities, in order; 0 when not requested */
    cn_finish finish;
    cn_usage usage;
    char stop_reason[64], error[256], param[64]; /* cut; "": none */
    bool invalid;
} run_sample;

typedef struct run {
    cn_engine *engine;
    uint32_t n_requests, n_done;
    run_sample samples[RUN_MAX_REQUESTS][RUN_MAX_SAMPLES];
    uint64_t ids[RUN_MAX_REQUESTS];
    cn_stats stats;        /* at the end */
    uint32_t peak_running; /* over all steps */
    uint64_t step_allocs;  /* heap allocations in steps in which no sample began or ended */
    uint32_t n_begun;      /* samples with output */
    uint64_t callback_allocs; /* allocations of this file, not counted above */
    struct run_slot {
        struct run *run;
        uint32_t request;
    } slots[RUN_MAX_REQUESTS];
} run;

/* Sets an option. The value "*" is all names of a set but `none`. Fails the test with the error
 * text when that fails. */
void run_set_option(cn_config *c, const char *name, const char *value);
/* Opens an engine on the bundled checkpoint with options {"name", "value", ..., NULL}, as
 * run_set_option sets them. Fails the test with the error text when that fails. */
void run_open(run *r, const char *const *options);
/* Does the same with a run on the heap. The options of `more`, which may be NULL, follow those of
 * `options`. */
run *run_new(const char *const *options, const char *const *more);
/* Returns the engine's default parameters with greedy decoding and this max_tokens. */
cn_request_params run_params(const run *r, const char *chat_user_text, cn_message *message,
                             uint32_t max_tokens);
/* Submits a request and returns its number in this run. */
uint32_t run_submit(run *r, const cn_request_params *p);
/* Runs n steps and reads the statistics. */
void run_steps(run *r, uint32_t n);
/* Runs steps until the engine is idle. */
void run_finish(run *r);
void run_close(run *r);
/* Closes and frees a run of run_new. */
void run_free(run *r);

/* Fails the test unless sample s of request a in `x` has the tokens of sample s of b in `y`. */
void run_assert_same(const run *x, uint32_t a, const run *y, uint32_t b, uint32_t s);
/* Does the same, also for the bits of the log-probabilities, which both must have requested. */
void run_assert_same_bits(const run *x, uint32_t a, const run *y, uint32_t b, uint32_t s);
/* Fails the test unless the usage of all samples adds up to what the engine counted. All requests
 * have ended. */
void run_assert_accounts(const run *r);

/* Fails the test unless the request, which is submitted, ends with an error that has `text` and is
 * about `param`. */
void run_assert_invalid(run *r, const cn_request_params *p, const char *param, const char *text);
/* Fails the test unless the engine refuses a request with CN_ERR_ARG and an error that has `text`.
 * The first form takes a request, the second one `kv` of a request with two prompt tokens. */
void run_assert_refused(const run *r, const cn_request_params *p, const char *text);
void run_assert_kv_refused(const run *r, const cn_kv_params *kv, const char *text);
/* Fails the test unless an engine on a CPU with these options is refused at start with CN_ERR_ARG
 * and an error that has `text`. */
void run_assert_start_refused(const char *const *options, const char *text);

/* Loads the first `n` prompts of a task of the bundled checkpoint. The strings live until exit. */
uint32_t run_load_prompts(const char *task, const char **prompts, const char **answers, uint32_t n);
