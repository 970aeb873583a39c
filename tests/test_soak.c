/* test_soak.c - an engine under random traffic, with its accounting checked at every step:
 * arrivals, cancels, shared prefixes, several samples, all policies and selectors, too few blocks.
 * Every request ends once, nothing is left in use, and a request that is repeated gives the same
 * answer. Engines with an even seed have small blocks and no selectors.
 *
 *   build/tests/test_soak [SECONDS [DEVICE [SEED [OPTION VALUE]...]]]     default: 4 cpu 1
 *   build/tests/test_soak 60 late 1        the late device (late_device.h) instead of the CPU
 *   build/tests/test_soak 60 cpu 1 model tests/golden/models/qwen3-bf16 load-format dummy
 *   build/tests/test_soak 60 cuda 1 kv-homes device,peer home-space 0.02 cache-device auto
 *   build/tests/test_soak 60 cuda 1 kv-selectors ds      kernels for labels alone: cuda/select/
 *
 * Without arguments the second run has both homes, on a pair of CPU backends. Where homes are
 * declared, half of the requests with a selector has one.
 *
 * Repeated requests are compared where results do not depend on batch composition: on a CPU, and on
 * a GPU with "batch-invariant true". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "compress/rule.h"
#include "compress/selector.h"
#include "engine/engine.h"
#include "tests/lib/late_device.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/run_engine.h"

enum { MAX_LIVE = 64, MAX_PROMPT = 400, CANARY_TOKENS = 60 };
/* Requests that are repeated: full KV, zip, zip that counts more queries than its window has, then
 * one for each selector. */
enum { N_PLAIN_CANARIES = 3, N_CANARIES = N_PLAIN_CANARIES + CN_N_SELECTORS - 1 };
/* Most that a request with a selector may have. */
enum { SELECT_TOKENS = 128, SELECT_TILES = 4, SELECT_WINDOW = 12 };
enum { BUDGET = 64, OBSERVE = 150 }; /* tokens, of each engine and of a request at most */

/* A request in flight. */
typedef struct soak_request {
    struct soak *soak;
    uint64_t id;
    bool live;
    int32_t canary; /* its number, or -1 */
    uint32_t n_samples, n_ended, n_tokens, max_tokens;
    uint32_t tokens[CANARY_TOKENS]; /* of a canary, with their logprobs */
    float logprobs[CANARY_TOKENS];
} soak_request;

typedef struct soak {
    cn_engine *engine;
    test_rng rng;
    uint32_t vocab;
    bool compresses, selects, repeats;
    uint32_t selectors; /* bit 1 << cn_kv_select: that requests may have, and none */
    uint32_t homes; /* bit 1 << cn_kv_home: that requests may have besides the device */
    soak_request requests[MAX_LIVE];
    uint32_t n_live;
    uint64_t submitted, ended, cancelled, canaries;
    uint32_t canary_tokens[N_CANARIES][CANARY_TOKENS];
    float canary_logprobs[N_CANARIES][CANARY_TOKENS];
    bool canary_known[N_CANARIES];
    uint64_t preempted; /* preempted canaries */
    uint64_t observing; /* zip requests that count more queries than their window has */
    bool canary_runs;
} soak;

static double seconds = 4;
static const char *device = "cpu";
static uint32_t seed = 1;
static char **options; /* name, value, ..., NULL */

static uint32_t below(soak *s, uint32_t n) { return test_rng_below(&s->rng, n); }
static bool one_in(soak *s, uint32_t n) { return below(s, n) == 0; }

/* ---- the engine ---- */

static cn_status create(soak *s, const char *policies)
{
    static const char *const fixed[] = {
        "model",          "examples/tiny-reasoner", "check-invariants", "true",
        "kv-budget",      "64",                     "max-model-len",    "1024",
        "kv-observe",     "150",
        "max-num-seqs",   "24",                     "max-num-batched-tokens", "96",
        "gpu-memory-utilization", "0.5",            NULL,
    };
    static const char *const dense[] = {"block-size", "16", "num-gpu-blocks-override", "96", NULL};
    static const char *const selecting[] = {
        "block-size",    "64",  "num-gpu-blocks-override", "28",
        "kv-selectors",  "*",
        "select-tokens", "128", "select-tiles",            "4",
        "select-window", "12",  "select-dense-layers",     "1",  NULL,
    };
    cn_config *c = cn_config_create();
    assert_non_null(c);
    for (size_t i = 0; fixed[i]; i += 2)
        assert_int_equal(cn_config_set(c, fixed[i], fixed[i + 1]), CN_OK);
    for (const char *const *o = s->selects ? selecting : dense; *o; o += 2)
        run_set_option(c, o[0], o[1]);
    const bool late = strcmp(device, "late") == 0;
    late_device_choose(late ? seed + 1 : 0);
    assert_int_equal(cn_config_set(c, "device", late ? "cpu" : device), CN_OK);
    run_set_option(c, "kv-policies", policies);
    if (s->compresses) assert_int_equal(cn_config_set(c, "swap-space", "0.05"), CN_OK);
    s->repeats = late || strcmp(device, "cpu") == 0;
    for (char **o = options; o && o[0]; o += 2) {
        if (!o[1] || cn_config_set(c, o[0], o[1]) != CN_OK) fail_msg("%s", cn_last_error());
        if (strcmp(o[0], "batch-invariant") == 0) s->repeats |= strcmp(o[1], "true") == 0;
    }
    const cn_status status = cn_engine_create(&s->engine, c);
    cn_config_free(c);
    return status;
}

/* Opens an engine. A backend without the ops of selection or compression runs without them. */
static void open_engine(soak *s)
{
    s->compresses = true;
    s->selects = seed % 2 == 1;
    if (create(s, "*") == CN_OK) return;
    if (s->selects && strstr(cn_last_error(), "lacks the op")) {
        print_message("    without selectors: %s\n", cn_last_error());
        s->selects = false;
        if (create(s, "*") == CN_OK) return;
    }
    s->compresses = false;
    if (!strstr(cn_last_error(), "lacks the op compress") || create(s, "full") != CN_OK)
        fail_msg("%s", cn_last_error());
    print_message("    full KV only: this backend does not compress\n");
}

/* ---- requests ---- */

static void check_canary(soak_request *g, const cn_usage *u)
{
    soak *s = g->soak;
    uint32_t *known = s->canary_tokens[g->canary];
    float *worth = s->canary_logprobs[g->canary];
    s->canary_runs = false;
    s->canaries++;
    assert_int_equal(g->n_tokens, CANARY_TOKENS);
    s->preempted += u->preemptions > 0;
    if (!s->canary_known[g->canary]) {
        memcpy(known, g->tokens, sizeof g->tokens);
        memcpy(worth, g->logprobs, sizeof g->logprobs);
    }
    s->canary_known[g->canary] = true;
    assert_true((u->kv.selected_steps > 0) == (g->canary >= N_PLAIN_CANARIES));
    for (uint32_t i = 0; s->repeats && i < CANARY_TOKENS; i++)
        if (g->tokens[i] != known[i] || g->logprobs[i] != worth[i])
            fail_msg("canary %d (selector %s), token %u: %u (%.9g), the first time %u (%.9g); %llu "
                     "were asked before; this time %u tokens were cached, %u compressions, %u "
                     "preemptions",
                     g->canary, cn_kv_select_name(u->kv.params.select), i, g->tokens[i],
                     (double)g->logprobs[i], known[i], (double)worth[i],
                     (unsigned long long)s->canaries - 1, u->cached_tokens, u->kv.compressions,
                     u->preemptions);
}

static void on_event(void *user, const cn_event *ev)
{
    soak_request *g = user;
    assert_true(g->live);
    assert_true(ev->request == g->id || g->id == 0);
    assert_true(ev->sample < g->n_samples);
    for (uint32_t i = 0; i < ev->n_tokens; i++) {
        assert_true(ev->tokens[i] < g->soak->vocab);
        if (g->canary < 0 || g->n_tokens + i >= CANARY_TOKENS) continue;
        g->tokens[g->n_tokens + i] = ev->tokens[i];
        g->logprobs[g->n_tokens + i] = ev->logprobs[i].chosen.logprob;
    }
    g->n_tokens += ev->n_tokens;
    assert_true(g->n_tokens <= g->n_samples * g->max_tokens);
    if (ev->finish == CN_FINISH_ERROR) fail_msg("a request failed: %s", ev->error);
    if (ev->finish != CN_FINISH_NONE) g->n_ended++;
    if (!ev->last) return;
    assert_int_equal(g->n_ended, g->n_samples);
    if (g->canary >= 0) check_canary(g, ev->usage);
    g->live = false;
    g->soak->n_live--;
    g->soak->ended++;
}

static void random_sampling(soak *s, cn_sampling *p)
{
    p->n = one_in(s, 5) ? 1 + below(s, 4) : 1;
    p->temperature = one_in(s, 3) ? 0 : 0.5f + (float)below(s, 100) / 50;
    p->top_k = one_in(s, 2) ? (int32_t)below(s, 50) : 0;
    p->top_p = one_in(s, 2) ? 0.5f + (float)below(s, 50) / 100 : 1;
    p->min_p = one_in(s, 4) ? 0.05f : 0;
    p->repetition_penalty = one_in(s, 4) ? 1.2f : 1;
    p->presence_penalty = one_in(s, 6) ? 0.5f : 0;
    p->max_tokens = 1 + below(s, one_in(s, 4) ? 500 : 80);
    p->min_tokens = one_in(s, 6) ? below(s, p->max_tokens) : 0;
    p->ignore_eos = one_in(s, 2);
    p->logprobs = one_in(s, 5) ? (int32_t)below(s, 6) : -1;
    p->thinking_token_budget = one_in(s, 8) ? (int32_t)below(s, 40) : -1;
}

/* A third of the prompts share a prefix with one of the last hundred. */
static uint32_t random_prompt(soak *s, uint32_t *tokens)
{
    const uint32_t n = 1 + below(s, one_in(s, 4) ? MAX_PROMPT : 60);
    const uint32_t shared = one_in(s, 3) ? below(s, n) : 0, family = (uint32_t)(s->submitted / 100);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = i < shared ? (family * 7919 + i * 31) % s->vocab : below(s, s->vocab);
    return n;
}

static soak_request *find_free_request(soak *s)
{
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (!s->requests[i].live) return &s->requests[i];
    return NULL;
}

static bool may_have(const soak *s, cn_kv_select select) { return s->selectors >> select & 1; }

/* A home, with a selector and a policy that it accepts. */
static void random_home(soak *s, cn_kv_params *kv)
{
    const cn_kv_select selectors[] = {CN_SELECT_SPADE, CN_SELECT_LAST, CN_SELECT_TLS,
                                      CN_SELECT_SPEC};
    const bool both = s->homes == (1U << CN_HOME_PEER | 1U << CN_HOME_HOST);
    const bool peer = both ? one_in(s, 2) : s->homes >> CN_HOME_PEER & 1;
    kv->home = peer ? CN_HOME_PEER : CN_HOME_HOST;
    do kv->select = selectors[below(s, 4)];
    while (!may_have(s, kv->select));
    if (kv->select == CN_SELECT_TLS) kv->policy = CN_KV_FULL; /* it keeps a tile of sinks */
    if (kv->select == CN_SELECT_SPEC && kv->policy == CN_KV_ZIP) kv->policy = CN_KV_FULL;
    kv->select_tokens = 1 + below(s, SELECT_TOKENS / 2);
    kv->select_tiles = 1 + below(s, 2);
    kv->select_query = (cn_select_query)below(s, 2);
    kv->select_keys = kv->home == CN_HOME_PEER ? (cn_select_keys)below(s, 2) : CN_SELECT_LABELS;
    kv->select_cap = one_in(s, 2) ? 0 : 1;
    kv->select_group = (cn_select_group)below(s, 2);
    kv->select_window = 1 + below(s, SELECT_WINDOW);
    kv->select_weights = (cn_select_weights)below(s, 2);
    kv->select_rotate = !one_in(s, 3);
}

/* The rule of zip, what it always keeps, and the queries that it counts: none to all of them up to
 * the first event. */
static void random_rule(soak *s, cn_kv_params *kv)
{
    kv->rule = (cn_kv_rule)below(s, CN_N_RULES);
    kv->window_tokens = 1 + below(s, one_in(s, 3) ? BUDGET / 2 : 16);
    if (kv->home != CN_HOME_DEVICE) /* the selector reads queries of the window */
        kv->window_tokens = cn_max_u32(kv->window_tokens, 2);
    kv->sink_tokens = below(s, 5); /* as many as --kv-sinks, for a selector */
    kv->recent = one_in(s, 2) ? (float)below(s, 4) / 4 : (float)below(s, BUDGET - 8);
    kv->observe_tokens = one_in(s, 3) ? 0 : below(s, OBSERVE + 1);
    kv->pooling = (cn_kv_pooling)below(s, CN_POOLING_ALWAYS + 1);
    kv->head_rule = (cn_kv_head_rule)below(s, CN_N_HEAD_RULES);
    if (strncmp(device, "cuda", 4) == 0) kv->head_rule = CN_HEADS_MAX;
    kv->redundancy = (cn_kv_redundancy)below(s, CN_REDUNDANCY_NONE + 1);
    kv->global_score = !one_in(s, 3);
    s->observing += cn_rule_queries(kv) > kv->window_tokens;
}

static void random_selector(soak *s, cn_kv_params *kv)
{
    do kv->select = (cn_kv_select)below(s, CN_N_SELECTORS);
    while (!may_have(s, kv->select));
    kv->select_tokens = 1 + below(s, SELECT_TOKENS);
    kv->select_tiles = SELECT_TILES - below(s, 2);
    if (kv->select == CN_SELECT_TLS) kv->select_tokens = 1 + below(s, SELECT_TOKENS / 2);
    kv->select_keys = (cn_select_keys)below(s, 2);
    kv->select_group = (cn_select_group)below(s, 2);
    kv->select_window = 1 + below(s, SELECT_WINDOW);
    kv->select_weights = (cn_select_weights)below(s, 2);
    kv->select_rotate = !one_in(s, 3);
    kv->recent_tokens = one_in(s, 2) ? 0 : below(s, 130);
}

static void random_kv(soak *s, cn_kv_params *kv)
{
    const cn_kv_policy policies[] = {CN_KV_FULL, CN_KV_WINDOW, CN_KV_ZIP};
    if (s->compresses) kv->policy = policies[below(s, 3)];
    if (s->selects && s->homes && one_in(s, 2))
        random_home(s, kv);
    else if (s->selects && kv->policy == CN_KV_FULL)
        random_selector(s, kv);
    if (kv->policy == CN_KV_ZIP) random_rule(s, kv);
}

static cn_kv_select selector_of_canary(int32_t canary)
{
    if (canary < N_PLAIN_CANARIES) return CN_SELECT_NONE;
    return (cn_kv_select)(CN_SELECT_NONE + 1 + canary - N_PLAIN_CANARIES);
}

/* Returns the number of a canary whose selector requests may have. */
static int32_t draw_canary(soak *s)
{
    const uint32_t n = s->selects ? N_CANARIES : N_PLAIN_CANARIES;
    int32_t canary;
    do canary = (int32_t)below(s, n);
    while (!may_have(s, selector_of_canary(canary)));
    return canary;
}

/* A prompt of 90 tokens, and more where a selector needs more to have candidates. */
static void make_canary(const soak *s, int32_t canary, uint32_t *tokens, cn_request_params *p)
{
    const cn_kv_select select = selector_of_canary(canary);
    p->n_tokens = cn_selector_of(select)->predicts ? 300 : 90;
    for (uint32_t i = 0; i < p->n_tokens; i++) tokens[i] = (i * 37 + 5) % s->vocab;
    p->sampling.temperature = 0;
    p->sampling.max_tokens = CANARY_TOKENS;
    p->sampling.ignore_eos = true;
    p->sampling.logprobs = 0;
    if (canary < N_PLAIN_CANARIES && canary > 0 && s->compresses) p->kv.policy = CN_KV_ZIP;
    if (canary == 2) {
        p->kv.rule = CN_RULE_PEAK;
        p->kv.observe_tokens = 60;
    }
    p->kv.select = select;
    p->kv.select_tokens = 16;
    p->kv.recent_tokens = 0;
}

static void submit(soak *s, int32_t canary)
{
    uint32_t tokens[MAX_PROMPT];
    soak_request *g = find_free_request(s);
    if (!g) return;
    cn_request_params p = {.tokens = tokens, .enable_thinking = -1};
    cn_engine_default_sampling(s->engine, &p.sampling);
    cn_engine_default_kv(s->engine, &p.kv);
    if (canary >= 0) {
        make_canary(s, canary, tokens, &p);
    } else {
        p.n_tokens = random_prompt(s, tokens);
        random_sampling(s, &p.sampling);
        random_kv(s, &p.kv);
        p.klass = one_in(s, 3) ? CN_CLASS_INTERACTIVE : CN_CLASS_BATCH;
    }
    *g = (soak_request){.soak = s,
                        .live = true,
                        .canary = canary,
                        .n_samples = p.sampling.n,
                        .max_tokens = p.sampling.max_tokens};
    const cn_status status = cn_engine_submit(s->engine, &p, on_event, g, &g->id);
    if (status != CN_OK) fail_msg("%s", cn_last_error());
    s->submitted++;
    s->n_live++;
    s->canary_runs |= canary >= 0;
}

static void cancel_one(soak *s)
{
    soak_request *g = &s->requests[below(s, MAX_LIVE)];
    if (g->canary >= 0) return;
    cn_engine_cancel(s->engine, g->id); /* ignored when it has ended */
    s->cancelled += g->live;
}

static void step(soak *s, bool *idle)
{
    if (cn_engine_step(s->engine, idle) != CN_OK) fail_msg("%s", cn_last_error());
}

/* The traffic rises and falls to zero, so that the engine also becomes idle. */
static void run_traffic(soak *s)
{
    static const uint32_t tide[] = {40, 60, 12, 0, 4};
    enum { N_TIDES = sizeof tide / sizeof *tide, TIDE_TURNS = 80 };
    const double end_s = cn_now_s() + seconds;
    for (uint64_t turn = 0; turn < 2 * TIDE_TURNS || cn_now_s() < end_s; turn++) {
        bool idle;
        const uint32_t most = tide[turn / TIDE_TURNS % N_TIDES];
        while (s->n_live < most && one_in(s, 2)) submit(s, -1);
        if (!s->canary_runs && most > 0) submit(s, draw_canary(s));
        if (one_in(s, 10)) cancel_one(s);
        step(s, &idle);
    }
}

static void after_the_traffic_nothing_is_in_use(void **state)
{
    (void)state;
    soak *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->rng = (test_rng){seed};
    open_engine(s);
    s->vocab = cn_engine_model_config(s->engine)->vocab;
    s->selectors = cn_config_selectors(cn_engine_config(s->engine));
    s->homes = cn_config_away(cn_engine_config(s->engine));
    run_traffic(s);
    for (bool idle = false; !idle;) step(s, &idle);
    cn_stats stats;
    cn_engine_stats(s->engine, &stats);
    print_message("    %s, %.0f s: %llu requests, %llu cancelled, %llu steps, %llu tokens, %llu "
                  "preemptions, %llu compressions, %llu moves to swap space, %llu selected steps, "
                  "%llu exchanges, %llu observing requests, %llu repeated requests, %llu of them "
                  "preempted\n",
                  device, seconds, (unsigned long long)s->submitted,
                  (unsigned long long)s->cancelled, (unsigned long long)stats.steps,
                  (unsigned long long)stats.generation_tokens,
                  (unsigned long long)stats.preemptions, (unsigned long long)stats.compressions,
                  (unsigned long long)stats.swap_outs, (unsigned long long)stats.selected_steps,
                  (unsigned long long)stats.exchanges, (unsigned long long)s->observing,
                  (unsigned long long)s->canaries,
                  (unsigned long long)s->preempted);
    assert_int_equal(s->n_live, 0);
    assert_int_equal(s->ended, s->submitted);
    assert_int_equal(stats.running + stats.waiting + stats.slots_used + stats.compressing, 0);
    assert_int_equal(stats.blocks_used + stats.swapped + stats.swap_blocks_used, 0);
    assert_true(s->canaries > 0 && s->cancelled > 0);
    assert_true(!s->compresses || (stats.compressions > 0 && s->observing > 0));
    assert_true(!s->selects || stats.selected_steps > 0);
    assert_true(!s->selects || !s->homes || stats.exchanges > 0);
    assert_int_equal(stats.home_blocks_used, 0);
    cn_engine_free(s->engine);
    free(s);
}

static int declare_homes(void **state)
{
    static char *pair[] = {"kv-homes",   "device,peer,host", "home-space", "0.02",
                           "cache-device", "cpu",              NULL};
    (void)state;
    options = pair;
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(after_the_traffic_nothing_is_in_use)};
    const struct CMUnitTest both[] = {
        cmocka_unit_test(after_the_traffic_nothing_is_in_use),
        cmocka_unit_test_setup(after_the_traffic_nothing_is_in_use, declare_homes)};
    if (argc > 1) seconds = strtod(argv[1], NULL);
    if (argc > 2) device = argv[2];
    if (argc > 3) seed = (uint32_t)strtoul(argv[3], NULL, 10);
    if (argc > 4) options = argv + 4;
    return argc > 1 ? cmocka_run_group_tests_name("soak", tests, NULL, NULL)
                    : cmocka_run_group_tests_name("soak", both, NULL, NULL);
}
