/* away_scenario.h - draws engines and requests whose full KV may lie elsewhere, and runs them. */
#pragma once

#include "tests/lib/commit_time.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/scratch_dir.h"

enum {
    AWAY_CONTEXT = 640,
    AWAY_MAX_OPTIONS = 80,
    AWAY_MAX_REQUESTS = 10,
    AWAY_SELECT_WINDOW = 6,
    AWAY_MAX_LIST = 192
};

typedef struct away_ask {
    uint32_t prompt[AWAY_CONTEXT], n_prompt, max_tokens, n;
    uint32_t forced[AWAY_CONTEXT];
    bool is_forced, greedy;
    uint32_t at_step, cancel_at;
    cn_kv_params kv;
    cn_class klass;
} away_ask;

typedef struct away_scenario {
    test_rng rng;
    scratch_dir dir; /* holds the model's config.json */
    char values[AWAY_MAX_OPTIONS][32];
    const char *options[AWAY_MAX_OPTIONS + 1];
    uint32_t n_options, block, n_layers, vocab;
    bool zip;
    away_ask asks[AWAY_MAX_REQUESTS];
    uint32_t n_asks;
} away_scenario;

uint32_t away_below(away_scenario *x, uint32_t n);
uint32_t away_between(away_scenario *x, uint32_t a, uint32_t b); /* both included */
bool away_chance(away_scenario *x, uint32_t percent);

/* Add an option of the engine. */
void away_set_text(away_scenario *x, const char *name, const char *text);
void away_set(away_scenario *x, const char *name, uint32_t value);
/* Options of an engine with this home: "peer", "host", or "peer,host" for both. */
void away_set_home(away_scenario *x, const char *home);

/* Draws config.json, block size and packs. Every third seed has latent attention. */
away_scenario *away_draw_scenario(uint64_t seed, uint32_t most_layers);
/* Draws the homes and sets the options of an engine with all policies and all selectors that can
 * have a home. Returns the homes: "peer", "host" or "peer,host". */
const char *away_draw_homes(away_scenario *x);
/* Draws the parameters of `spade` or `last`, without a home. */
void away_draw_select(away_scenario *x, cn_kv_params *kv);
/* Draws the window of `zip` and sets its other parameters. */
void away_draw_zip(away_scenario *x, cn_kv_params *kv);
void away_free_scenario(away_scenario *x);

run *away_open_run(away_scenario *x);
void away_submit(run *r, const away_ask *a);

/* How away_run_asks runs the requests of a scenario. */
typedef struct away_plan {
    commit_time commits;
    uint32_t n_steps; /* at least */
    bool cancels;     /* requests are cancelled at their step */
    void (*before)(run *r);                  /* before the first step; may be NULL */
    void (*after)(const run *r, void *user); /* after each step; may be NULL */
    void *user;
} away_plan;
/* Opens an engine, submits each request at its step and runs until all have ended. Fails the test
 * if blocks or slots are in use then. */
run *away_run_asks(away_scenario *x, const away_plan *plan);
/* Fails the test if blocks or slots of the device, or blocks of a home, are in use. */
void away_assert_empty(run *r);
/* Fails the test unless `a` has the tokens, log-probabilities and usage of `b`, the same request
 * alone. Of a cancelled `a` only its tokens count. Returns false for a cancelled `a`. */
bool away_assert_alone(const run_sample *a, const run_sample *b, uint64_t seed, uint32_t request);
