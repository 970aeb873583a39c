/* away_scenario.h - draws engines and requests whose full KV may lie elsewhere, and runs them. */
#ifndef CN_TEST_AWAY_SCENARIO_H
#define CN_TEST_AWAY_SCENARIO_H

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

/* Draws config.json, block size and packs. */
void away_draw_model(away_scenario *x, uint32_t most_layers);
/* Draws the parameters of `spade` or `last`, without a home. */
void away_draw_select(away_scenario *x, cn_kv_params *kv);
void away_free_scenario(away_scenario *x);

run *away_open_run(away_scenario *x);
void away_close_run(run *r);
void away_submit(run *r, const away_ask *a);
void away_step(run *r);

#endif
