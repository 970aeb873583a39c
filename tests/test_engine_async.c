/* test_engine_async.c - compression beside the model gives the same tokens, and the same bits of
 * their log-probabilities, as compression inside the step. A device that runs all ops late
 * (tests/lib/late_device.h) and runs steps from recorded graphs gives the same too. An engine may
 * be freed while events are in flight.
 *     test_engine_async [SEEDS [FIRST [DEVICE [CACHE]]]]
 * DEVICE runs the model: cpu (the default), cuda or cuda:N. CACHE holds the KV of requests with
 * home `peer`; by default it is DEVICE, which then has both roles.
 *     test_engine_async 12 1 cuda cuda:1
 *
 * A seed draws a model with random weights, one in five with latent attention, an engine, and
 * requests that arrive over time. They have different policies, selectors, homes, budgets, scores
 * and classes, shared prefixes and samples; some are greedy, some are cancelled. The scenario runs
 * twice, the second time synchronously and without swap space. The seed also chooses when an event
 * commits: whenever the worker thread is done, as late as possible, as early as possible, or
 * together with all others. In the first case the timing varies between runs of a seed. The thread
 * sanitizer checks all cases (TSAN_TESTS).
 *
 * No request has home `auto`, because its home depends on batch composition. Group rule `max` needs
 * no exception: its weights are added up in an order that depends on positions alone
 * (engine/select/select_math.h), so a list has the same entries in every batch and every pack, on
 * a GPU too.
 *
 * A GPU runs with --batch-invariant, and only tokens are compared there. Engines without homes have
 * ample memory there and compute prompts at once, so that no request is preempted. Engines with
 * homes are short of memory on every device, so that requests are preempted or swapped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "compress/policy.h"
#include "compress/rule.h"
#include "compress/selector.h"
#include "engine/cpu/score.h"
#include "engine/engine_state.h"
#include "tests/lib/commit_time.h"
#include "tests/lib/late_device.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/scratch_dir.h"

enum { MAX_REQUESTS = 16, MAX_PROMPT = 120, MAX_OUTPUT = 120, MAX_OPTIONS = 80, CONTEXT = 256 };
/* Of engines with selectors. spade and last select from position 256 on. */
enum { SELECT_CONTEXT = 400, SELECT_TOKENS = 64, SELECT_TILES = 3, SELECT_WINDOW = 8 };
/* Of engines with homes. The first event of most requests comes at 192 to 384 tokens, so these
 * engines run longer. HOME_BLOCKS: device blocks beyond those of the longest request. */
enum { HOME_CONTEXT = 448, HOME_STEPS = 1000, HOME_BLOCKS = 11, HOME_CAP = 16 };
/* One in LATE_SHARE seeds also runs on the late device, and every seed with homes. Fewer do under
 * the thread sanitizer, because that device has no threads. */
enum { LATE_SHARE = BY_SANITIZER(2, 2, 10), LATE_HOMES = BY_SANITIZER(true, true, false) };
enum { LATENT_SEEDS = 5 }; /* one in so many seeds has latent attention */
static uint32_t n_seeds = 20, first_seed = 1;
static const char *device = "cpu", *cache = "cpu";
static bool on_gpu;

typedef struct ask {
    uint32_t prompt[MAX_PROMPT], n_prompt;
    uint32_t at_step;    /* the step at which it arrives */
    uint32_t cancel_at;  /* the step at which it is cancelled; 0: never */
    uint32_t cancel_tokens; /* it is cancelled when its first sample has so many; 0: never */
    cn_kv_params kv;
    uint32_t n, max_tokens;
    uint32_t min_tokens;
    bool greedy, ignore_eos, penalised;
    cn_class klass;
} ask;

typedef struct scenario {
    test_rng rng;
    scratch_dir dir; /* holds the model's config.json */
    char values[MAX_OPTIONS][32];
    const char *options[MAX_OPTIONS + 1]; /* name, value, ..., NULL */
    uint32_t n_options, block, window, vocab, n_layers, context;
    uint32_t token_floats; /* of K and V, all layers */
    uint32_t homes; /* bit 1 << cn_kv_home: those that requests may have besides the device */
    ask asks[MAX_REQUESTS];
    uint32_t n_asks;
    bool swaps, selects, is_ample, groups_heads, is_latent;
} scenario;

/* Totals over all seeds, so that the test fails when nothing was tested. */
static struct {
    uint64_t compressions, preemptions, cancelled, cached, beside, moved;
    struct {
        uint64_t compressions, preemptions, cached, moved;
    } latent; /* the same, of models with latent attention */
    uint64_t selected[CN_N_SELECTORS]; /* steps, by selector */
    uint32_t scores; /* bit i: score i of the table applies to an event of some request */
    /* Steps that ran from a graph, by the late device's route; 0: without selection. */
    uint64_t recorded[N_LATE_ROUTES];
    /* Of seeds with homes. cancelled: requests that were cancelled after an exchange. */
    struct {
        uint64_t seeds, exchanges[CN_N_HOMES], compressions, cancelled, moved, preemptions, beside;
    } homes;
} seen;

/* ---- drawing ---- */

static uint32_t below(scenario *x, uint32_t n) { return test_rng_below(&x->rng, n); }
static uint32_t between(scenario *x, uint32_t a, uint32_t b) { return a + below(x, b - a + 1); }
static bool chance(scenario *x, uint32_t percent) { return below(x, 100) < percent; }

static void set_text(scenario *x, const char *name, const char *text)
{
    assert_true(x->n_options + 2 <= MAX_OPTIONS);
    x->options[x->n_options++] = name;
    x->options[x->n_options++] = text;
}

static void set(scenario *x, const char *name, uint32_t value)
{
    assert_true(x->n_options + 2 <= MAX_OPTIONS);
    char *text = x->values[x->n_options];
    snprintf(text, sizeof x->values[0], "%u", value);
    set_text(x, name, text);
}

static void set_switch(scenario *x, const char *name, bool on)
{
    set_text(x, name, on ? "true" : "false");
}

/* Latent attention, with a layer of experts after a dense one. */
static int write_latent(scenario *x, char *text, size_t size)
{
    static const char *const ranks[] = {"null", "24", "48"};
    const uint32_t heads = between(x, 1, 20);
    x->groups_heads = heads > 1;
    x->vocab = between(x, 60, 200);
    x->n_layers = between(x, 1, 3);
    const uint32_t rank = 16 * between(x, 1, 5), rope = 16 * between(x, 1, 2);
    x->token_floats = x->n_layers * (rank + rope);
    return snprintf(text, size,
                    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": %u,"
                    "\"intermediate_size\": %u, \"num_hidden_layers\": %u,"
                    "\"num_attention_heads\": %u, \"q_lora_rank\": %s, \"kv_lora_rank\": %u,"
                    "\"qk_rope_head_dim\": %u, \"qk_nope_head_dim\": %u, \"v_head_dim\": %u,"
                    "\"vocab_size\": %u, \"max_position_embeddings\": %u, \"eos_token_id\": 3,"
                    "\"n_routed_experts\": 6, \"n_group\": 3, \"topk_group\": 2,"
                    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16,"
                    "\"first_k_dense_replace\": 1, \"tie_word_embeddings\": true,"
                    "\"initializer_range\": 0.4}",
                    16 * between(x, 1, 4), 16 * between(x, 1, 4), x->n_layers, heads,
                    ranks[below(x, 3)], rank, rope, 8 * between(x, 1, 4), 16 * between(x, 1, 3),
                    x->vocab, HOME_CONTEXT);
}

static int write_heads(scenario *x, char *text, size_t size)
{
    static const uint32_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {4, 1}, {6, 2}, {3, 3}, {8, 1}};
    const uint32_t *h = heads[below(x, sizeof heads / sizeof *heads)];
    x->groups_heads = h[0] > h[1];
    x->vocab = between(x, 60, 200);
    x->n_layers = between(x, 1, 3);
    const uint32_t head_dim = 16 * between(x, 1, 4);
    x->token_floats = 2 * x->n_layers * h[1] * head_dim;
    return snprintf(text, size,
                     "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\","
                     "\"hidden_size\": %u, \"intermediate_size\": %u, \"num_hidden_layers\": %u,"
                     "\"num_attention_heads\": %u, \"num_key_value_heads\": %u, \"head_dim\": %u,"
                     "\"vocab_size\": %u, \"max_position_embeddings\": %u, \"eos_token_id\": 3,"
                     "\"rope_theta\": 10000.0, \"rms_norm_eps\": 1e-6,"
                     "\"tie_word_embeddings\": true, \"hidden_act\": \"silu\","
                     "\"attention_bias\": false, \"initializer_range\": 0.4}",
                     16 * between(x, 1, 4), 16 * between(x, 1, 4), x->n_layers, h[0], h[1],
                     head_dim, x->vocab, HOME_CONTEXT);
}

static void draw_model(scenario *x)
{
    char text[1024];
    const int n = x->is_latent ? write_latent(x, text, sizeof text)
                               : write_heads(x, text, sizeof text);
    scratch_dir_open(&x->dir);
    scratch_dir_put(&x->dir, "config.json", text, (size_t)n);
    set_text(x, "model", x->dir.path);
    set_text(x, "load-format", "dummy");
    set(x, "seed", below(x, 1000));
}

static void draw_selection(scenario *x)
{
    if (!x->selects) return;
    set_text(x, "kv-selectors", "*");
    set(x, "select-tokens", SELECT_TOKENS);
    set(x, "select-tiles", SELECT_TILES);
    set(x, "select-window", SELECT_WINDOW);
    set(x, "select-dense-layers", below(x, x->n_layers));
}

/* Room for two to six requests in GiB, with a quarter more for digests. */
static void set_space(scenario *x, const char *name)
{
    const uint32_t most = (uint32_t)cn_ceil_div(HOME_CONTEXT, x->block) * x->block;
    const double bytes = 1.25 * between(x, 2, 6) * most * x->token_floats * sizeof(float);
    char *text = x->values[x->n_options];
    snprintf(text, sizeof x->values[0], "%.8f", bytes / (1 << 30));
    set_text(x, name, text);
}

static void draw_homes(scenario *x)
{
    if (!x->homes) return;
    const uint32_t kind = below(x, 4);
    const bool peer = kind > 0, host = kind < 2;
    x->homes = (uint32_t)peer << CN_HOME_PEER | (uint32_t)host << CN_HOME_HOST;
    set_text(x, "kv-homes", !host ? "device,peer" : peer ? "device,peer,host" : "device,host");
    set_space(x, "home-space");
    if (peer && host && chance(x, 50)) set_space(x, "host-space");
    if (peer) set_text(x, "cache-device", cache);
    set(x, "select-cap", HOME_CAP);
    set(x, "packs", cn_min_u32(between(x, 1, 4), x->n_layers));
}

static void draw_engine(scenario *x)
{
    x->block = 16u << below(x, 4);
    x->selects = x->block >= CN_DIGEST_TILE;
    x->homes = x->selects && chance(x, x->block == CN_DIGEST_TILE ? 80 : 20);
    x->is_ample = on_gpu && !x->homes;
    x->context = x->homes ? HOME_CONTEXT : x->selects ? SELECT_CONTEXT : CONTEXT;
    set(x, "max-model-len", x->context);
    x->window = between(x, 1, 32);
    set_text(x, "kv-policies", "*");
    set(x, "block-size", x->block);
    set(x, "kv-window", x->window);
    set(x, "kv-budget", 32);
    set(x, "threads", between(x, 1, 2));
    set(x, "max-num-seqs", cn_max_u32(between(x, 1, 12), x->homes ? 4 : 1));
    const uint32_t batched = between(x, 16, 200);
    set(x, "max-num-batched-tokens", x->is_ample ? MAX_REQUESTS * MAX_PROMPT : batched);
    /* From a pool that just holds the longest request to a pool that holds all requests. */
    const uint32_t most = (uint32_t)cn_ceil_div(x->context, x->block);
    const uint32_t least = x->homes ? most + HOME_BLOCKS : most;
    const uint32_t n_blocks = least + below(x, chance(x, x->homes ? 80 : 50) ? 4 : 30);
    set(x, "num-gpu-blocks-override", x->is_ample ? 3 * MAX_REQUESTS * most : n_blocks);
    set_switch(x, "hybrid-scheduling", chance(x, 80));
    set_switch(x, "enable-prefix-caching", chance(x, 70) && !x->is_ample);
    set_text(x, "device", device);
    if (on_gpu) set_switch(x, "batch-invariant", true);
    set_text(x, "async-scheduling", chance(x, 50) ? "on" : "off");
    /* Without a draw of its own. A GPU has no kernel that ranks rows in eight bits. */
    const bool has_fp8 = !(on_gpu && x->selects) && !x->is_latent;
    if (has_fp8 && x->window % 3 == 0) set_text(x, "kv-cache-dtype", "fp8");
    draw_selection(x);
    draw_homes(x);
}

static void draw_select(scenario *x, cn_kv_params *kv)
{
    if (!x->selects || chance(x, 50)) return;
    kv->policy = CN_KV_FULL;
    kv->select = (cn_kv_select)between(x, 1, CN_N_SELECTORS - 1);
    kv->select_tokens = between(x, 1, SELECT_TOKENS);
    kv->select_tiles = between(x, 2, SELECT_TILES);
    kv->select_keys = (cn_select_keys)below(x, 2);
    kv->select_group = (cn_select_group)below(x, 2);
    kv->select_window = between(x, 1, SELECT_WINDOW);
    kv->select_weights = (cn_select_weights)below(x, 2);
    kv->select_rotate = chance(x, 70);
    kv->recent_tokens = chance(x, 50) ? below(x, 65) : 0;
}

/* A home, with a selector and a policy that it accepts. */
static bool draw_home(scenario *x, cn_kv_params *kv)
{
    const cn_kv_select selectors[] = {CN_SELECT_SPADE, CN_SELECT_LAST, CN_SELECT_TLS,
                                      CN_SELECT_SPEC};
    if (!x->homes || chance(x, 25)) return false;
    const bool has_peer = x->homes >> CN_HOME_PEER & 1, has_host = x->homes >> CN_HOME_HOST & 1;
    kv->home = has_peer && (!has_host || chance(x, 50)) ? CN_HOME_PEER : CN_HOME_HOST;
    kv->select = selectors[below(x, 4)];
    const bool has_tiles = kv->select == CN_SELECT_TLS, ahead = kv->select == CN_SELECT_SPEC;
    /* tls keeps a tile of sinks, more than these budgets. zip has the ring in its window, and none
     * of the selectors with one list for all layers. */
    if (has_tiles || (ahead && kv->policy == CN_KV_ZIP) || !cn_policy_of(kv->policy)->away)
        kv->policy = CN_KV_FULL;
    else if (kv->policy == CN_KV_ZIP && kv->window_tokens < 2) kv->policy = CN_KV_WINDOW;
    kv->select_tokens = between(x, 1, SELECT_TOKENS);
    kv->select_tiles = chance(x, 70) ? 2 : SELECT_TILES;
    kv->select_query = (cn_select_query)below(x, 2);
    kv->select_cap = chance(x, 50) ? 0 : has_tiles ? 1 : between(x, 1, HOME_CAP);
    kv->select_keys = kv->home == CN_HOME_PEER ? (cn_select_keys)below(x, 2) : CN_SELECT_LABELS;
    kv->select_group = (cn_select_group)below(x, 2);
    kv->select_window = between(x, 1, SELECT_WINDOW);
    kv->select_weights = (cn_select_weights)below(x, 2);
    kv->select_rotate = chance(x, 70);
    return true;
}

/* Notes the scores that apply to a first event, or to a later one, with these parameters. */
static void note_scores(const cn_kv_params *kv)
{
    size_t n;
    const cn_score *rows = cn_score_table(&n);
    if (!cn_policy_ranks(kv->policy)) return;
    for (size_t i = 0; i < 2 * n; i++) {
        const cn_compress_req req = {.params = *kv, .first_event = i % 2};
        if (rows[i / 2].applies(&req)) seen.scores |= 1U << i / 2;
    }
}

static cn_kv_params draw_kv(scenario *x)
{
    const uint32_t policy = below(x, CN_N_POLICIES + 3);
    const cn_kv_move move = (cn_kv_move)below(x, 2);
    const uint32_t widest = move == CN_MOVE_FILL ? cn_min_u32(x->window, x->block) : x->window;
    cn_kv_params kv = {
        .policy = policy < CN_N_POLICIES ? (cn_kv_policy)policy : CN_KV_ZIP,
        .budget_tokens = between(x, 36, 80), /* room for the window and the sinks */
        .window_tokens = between(x, 1, widest),
        .sink_tokens = below(x, 5),
        .recent = (float)below(x, 13),
        .observe_tokens = below(x, x->window + 1),
        .rule = (cn_kv_rule)below(x, CN_N_RULES),
        .global_score = chance(x, 70),
        .alpha = (float)below(x, 11) / 10,
        .pooling = (cn_kv_pooling)below(x, 3),
        .redundancy = (cn_kv_redundancy)below(x, 3),
        .redundancy_p = (float)below(x, 10) / 10,
        .redundancy_tau = 0.4f,
        .lambda = (float)below(x, 11) / 10,
        .combine = (cn_kv_combine)below(x, 2),
        .move = move,
    };
    if (x->groups_heads && !on_gpu) kv.head_rule = (cn_kv_head_rule)below(x, CN_N_HEAD_RULES);
    if (!draw_home(x, &kv)) draw_select(x, &kv);
    note_scores(&kv);
    return kv;
}

/* The prompts of a scenario share a prefix. */
static void draw_asks(scenario *x)
{
    uint32_t common[MAX_PROMPT];
    for (uint32_t i = 0; i < MAX_PROMPT; i++) common[i] = below(x, x->vocab);
    x->n_asks = between(x, 4, MAX_REQUESTS);
    for (uint32_t r = 0; r < x->n_asks; r++) {
        ask *a = &x->asks[r];
        a->n_prompt = between(x, 1, MAX_PROMPT);
        const uint32_t alike = chance(x, 50) ? below(x, a->n_prompt) : 0;
        for (uint32_t i = 0; i < a->n_prompt; i++)
            a->prompt[i] = i < alike ? common[i] : below(x, x->vocab);
        a->kv = draw_kv(x);
        a->n = chance(x, 80) ? 1 : between(x, 2, 3);
        a->max_tokens = between(x, chance(x, 10) ? 1 : 40, MAX_OUTPUT);
        if ((cn_selector_of(a->kv.select)->predicts || a->kv.home) && chance(x, 90))
            a->max_tokens = x->context - a->n_prompt - below(x, 60);
        a->greedy = chance(x, 75);
        a->ignore_eos = chance(x, 80);
        a->at_step = chance(x, 50) ? 0 : below(x, 100);
        a->cancel_at = chance(x, 20) ? a->at_step + between(x, 1, 120) : 0;
        if (a->kv.home && chance(x, 30))
            a->cancel_tokens = between(x, a->max_tokens / 2, a->max_tokens);
    }
    /* The last requests arrive when others have filled the pool. */
    x->swaps = chance(x, x->homes ? 90 : 70);
    for (uint32_t r = 0; r < x->n_asks; r++) {
        ask *a = &x->asks[r];
        a->klass = r < x->n_asks * 2 / 3 ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
        const bool is_late = a->klass == CN_CLASS_INTERACTIVE;
        const uint32_t later = !is_late ? 0 : x->homes ? between(x, 150, 400) : between(x, 30, 120);
        a->at_step += later;
        if (a->cancel_at > 0) a->cancel_at += later;
        a->penalised = chance(x, 25);
        a->min_tokens = chance(x, 25) ? below(x, a->max_tokens) : 0;
    }
}

static void submit(run *r, const ask *a)
{
    cn_request_params p = {.tokens = a->prompt, .n_tokens = a->n_prompt, .kv = a->kv,
                           .klass = a->klass};
    cn_engine_default_sampling(r->engine, &p.sampling);
    p.sampling.max_tokens = a->max_tokens;
    p.sampling.ignore_eos = a->ignore_eos;
    p.sampling.temperature = a->greedy ? 0 : 1;
    p.sampling.logprobs = 0;
    p.sampling.n = a->n;
    p.sampling.min_tokens = a->min_tokens;
    if (a->penalised) p.sampling.repetition_penalty = 1.3f;
    run_submit(r, &p);
}

/* Cancels that come late are repeated and have no effect. */
static bool is_cancelled(const run *r, const ask *a, uint32_t i, uint32_t step)
{
    const bool has_tokens = a->cancel_tokens > 0 && r->samples[i][0].n_tokens >= a->cancel_tokens;
    return (step > 0 && a->cancel_at == step) || has_tokens;
}

/* late_seed: the seed of a late device, or 0 for the CPU backend. */
static run *run_scenario(scenario *x, bool synchronous, commit_time chosen, uint64_t late_seed)
{
    const uint32_t n_options = x->n_options;
    set_switch(x, "sync-compression", synchronous);
    set_text(x, "swap-space", x->swaps && !synchronous ? "0.02" : "0");
    if (on_gpu) { /* memory of the first engine counts as in use */
        set_text(x, "gpu-memory-utilization", synchronous ? "0.2" : "0.1");
    }
    x->options[x->n_options] = NULL;
    late_device_choose(late_seed);
    run *r = run_new(x->options, NULL);
    assert_true(r->engine->backend->async == (on_gpu || late_seed > 0));
    x->n_options = n_options;
    commit_time_choose(r->engine, chosen);
    const uint32_t n_steps = x->homes ? HOME_STEPS : 250;
    for (uint32_t step = 0, next = 0; next < x->n_asks || step < n_steps; step++) {
        /* Submitted in order, so that a request has the same number and seed in both runs. */
        while (next < x->n_asks && x->asks[next].at_step <= step) submit(r, &x->asks[next++]);
        for (uint32_t i = 0; i < next; i++)
            if (is_cancelled(r, &x->asks[i], i, step)) cn_engine_cancel(r->engine, r->ids[i]);
        run_steps(r, 1);
        seen.beside += !synchronous && r->stats.compressing > 0;
        seen.homes.beside += x->homes && !synchronous && r->stats.compressing > 0;
        const cn_step_shape shape = r->engine->last_shape;
        if (shape.rows > 0 && !on_gpu) seen.recorded[shape.route]++;
    }
    run_finish(r);
    return r;
}

/* Runs steps until events are in flight, and leaves them in flight. */
static run *run_until_compressing(scenario *x)
{
    x->options[x->n_options] = NULL;
    run *r = run_new(x->options, NULL);
    commit_time_choose(r->engine, AT_ONCE);
    for (uint32_t i = 0; i < x->n_asks; i++) submit(r, &x->asks[i]);
    for (bool idle = false; !idle && r->stats.compressing == 0;) {
        if (cn_engine_step(r->engine, &idle) != CN_OK) fail_msg("%s", cn_last_error());
        cn_engine_stats(r->engine, &r->stats);
    }
    return r;
}

static uint32_t compare_sample(const run_sample *a, const run_sample *b, uint64_t seed, uint32_t i)
{
    const bool cut = a->finish == CN_FINISH_CANCELLED || b->finish == CN_FINISH_CANCELLED;
    const uint32_t n = cn_min_u32(a->n_tokens, b->n_tokens);
    for (uint32_t t = 0; t < n; t++)
        if (a->tokens[t] != b->tokens[t])
            fail_msg("seed %llu, request %u: token %u is %u, sync %u", (unsigned long long)seed,
                     i, t, a->tokens[t], b->tokens[t]);
    const bool same_bits = a->logprob_hash == b->logprob_hash || on_gpu;
    if (!cut && (a->n_tokens != b->n_tokens || !same_bits || a->finish != b->finish))
        fail_msg("seed %llu, request %u: %u tokens, %s, hash %llx; sync %u, %s, %llx",
                 (unsigned long long)seed, i, a->n_tokens, cn_finish_name(a->finish),
                 (unsigned long long)a->logprob_hash, b->n_tokens, cn_finish_name(b->finish),
                 (unsigned long long)b->logprob_hash);
    const cn_kv_usage *u = &a->usage.kv, *v = &b->usage.kv;
    if (!cut && !on_gpu) {
        assert_int_equal(u->exchanges, v->exchanges);
        assert_int_equal(u->fetched_entries, v->fetched_entries);
        assert_int_equal(u->missed_entries, v->missed_entries);
    }
    return cut;
}

/* The sums of the requests' usage must equal what the engine counted. */
static void check_accounts(const scenario *x, const run *r)
{
    for (uint32_t i = 0; i < x->n_asks; i++)
        for (uint32_t s = 0; s < x->asks[i].n; s++)
            seen.selected[x->asks[i].kv.select] += r->samples[i][s].usage.kv.selected_steps;
    run_assert_accounts(r);
    assert_int_equal(r->stats.home_blocks_used, 0);
}

static scenario *draw_scenario(uint64_t seed)
{
    scenario *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->rng.state = seed;
    x->is_latent = !on_gpu && seed % LATENT_SEEDS == 0;
    draw_model(x);
    draw_engine(x);
    draw_asks(x);
    return x;
}

static void free_scenario(scenario *x)
{
    scratch_dir_close(&x->dir);
    free(x);
}

static void count_homes(const scenario *x, const run *r)
{
    if (!x->homes) return;
    seen.homes.seeds++;
    seen.homes.compressions += r->stats.compressions;
    seen.homes.preemptions += r->stats.preemptions;
    seen.homes.moved += r->stats.swap_outs;
    for (uint32_t i = 0; i < x->n_asks; i++)
        for (uint32_t s = 0; s < x->asks[i].n; s++) {
            const run_sample *sample = &r->samples[i][s];
            const uint64_t exchanges = sample->usage.kv.exchanges;
            seen.homes.exchanges[x->asks[i].kv.home] += exchanges;
            seen.homes.cancelled += sample->finish == CN_FINISH_CANCELLED && exchanges > 0;
        }
}

/* Runs a scenario both ways, compares the runs and frees the scenario. */
static void run_twice(scenario *x, uint64_t seed, bool late)
{
    run *beside = run_scenario(x, false, (commit_time)(seed % N_COMMIT_TIMES), late ? seed : 0);
    run *in_line = run_scenario(x, true, BY_LUCK, 0);
    for (uint32_t i = 0; i < x->n_asks; i++)
        for (uint32_t s = 0; s < x->asks[i].n; s++)
            seen.cancelled +=
                compare_sample(&beside->samples[i][s], &in_line->samples[i][s], seed, i);
    check_accounts(x, beside);
    check_accounts(x, in_line);
    seen.compressions += beside->stats.compressions;
    seen.preemptions += beside->stats.preemptions;
    seen.cached += beside->stats.cached_tokens;
    seen.moved += beside->stats.swap_outs;
    if (x->is_latent) {
        seen.latent.compressions += beside->stats.compressions;
        seen.latent.preemptions += beside->stats.preemptions;
        seen.latent.cached += beside->stats.cached_tokens;
        seen.latent.moved += beside->stats.swap_outs;
    }
    count_homes(x, beside);
    run_free(beside);
    run_free(in_line);
    free_scenario(x);
}

/* Prints what the seeds with homes did in a test, and fails if several of them did too little. */
static void check_homes(void)
{
    const uint64_t peer = seen.homes.exchanges[CN_HOME_PEER];
    const uint64_t host = seen.homes.exchanges[CN_HOME_HOST], n = seen.homes.seeds;
    const uint64_t cancelled = seen.homes.cancelled, moved = seen.homes.moved;
    print_message("%llu seeds with homes: %llu exchanges with peer, %llu with host, %llu "
                  "compressions, %llu steps beside them, %llu preemptions, %llu cancelled after an "
                  "exchange, %llu moves to swap space\n",
                  (unsigned long long)n, (unsigned long long)peer, (unsigned long long)host,
                  (unsigned long long)seen.homes.compressions,
                  (unsigned long long)seen.homes.beside,
                  (unsigned long long)seen.homes.preemptions, (unsigned long long)cancelled,
                  (unsigned long long)moved);
    assert_true(n < 2 || (peer + host > 100 * n && seen.homes.compressions > 2 * n));
    assert_true(n < 2 || cancelled + moved + seen.homes.preemptions > 0);
    assert_true(n < 5 || (peer > 0 && host > 0 && seen.homes.beside > n));
    assert_true(n < 10 || (cancelled > 0 && moved > 0 && seen.homes.preemptions > 0));
}

static void asynchronous_and_synchronous_events_give_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++)
        run_twice(draw_scenario(seed), seed, false);
    print_message("%u seeds: %llu compressions, %llu steps beside compressions, %llu preemptions, "
                  "%llu cached tokens, %llu cancelled, %llu moves to swap space\n",
                  n_seeds, (unsigned long long)seen.compressions, (unsigned long long)seen.beside,
                  (unsigned long long)seen.preemptions, (unsigned long long)seen.cached,
                  (unsigned long long)seen.cancelled, (unsigned long long)seen.moved);
    check_homes();
    print_message("latent: %llu compressions, %llu preemptions, %llu cached tokens, %llu moves\n",
                  (unsigned long long)seen.latent.compressions,
                  (unsigned long long)seen.latent.preemptions,
                  (unsigned long long)seen.latent.cached, (unsigned long long)seen.latent.moved);
    if (n_seeds < 20) return;
    assert_true(on_gpu || (seen.latent.compressions > n_seeds && seen.latent.preemptions > 0 &&
                           seen.latent.cached > 0));
    assert_true(seen.homes.seeds > 0);
    uint64_t n_selected = 0;
    for (uint32_t i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++) {
        n_selected += seen.selected[i];
        if (n_seeds >= 100 && seen.selected[i] == 0 && !on_gpu)
            fail_msg("no step of selector %s attended to a list", cn_kv_select_name(i));
    }
    assert_true(on_gpu || n_selected > n_seeds);
    if (seen.scores != (1U << CN_N_SCORES) - 1) fail_msg("draw_kv draws no request of some score");
    assert_true(seen.compressions > 5 * n_seeds && seen.beside > n_seeds && seen.cancelled > 0);
    assert_true(on_gpu || (seen.preemptions > 0 && seen.cached > n_seeds && seen.moved > 0));
}

static void a_device_that_runs_late_gives_the_same_bits(void **state)
{
    (void)state;
    if (on_gpu) skip();
    const uint32_t n_late = n_seeds / LATE_SHARE;
    memset(seen.recorded, 0, sizeof seen.recorded);
    memset(&seen.homes, 0, sizeof seen.homes);
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        scenario *x = draw_scenario(seed);
        if (seed < first_seed + n_late || (LATE_HOMES && x->homes)) run_twice(x, seed, true);
        else free_scenario(x);
    }
    check_homes();
    uint64_t selected = 0;
    for (uint32_t i = 1; i < N_LATE_ROUTES; i++) {
        selected += seen.recorded[i];
        if (n_late >= 50 && seen.recorded[i] == 0)
            fail_msg("no step of route %u ran from a graph", i);
    }
    if (n_late < 10) return;
    assert_true(selected > 2 * n_late && seen.recorded[0] > 2 * n_late);
}

/* Recorded steps have padding rows, also when --max-num-batched-tokens has no tokens for them. */
static void padding_needs_no_tokens(void **state)
{
    (void)state;
    if (on_gpu) skip();
    static const uint32_t most[] = {1, 3, 5, 9};
    for (uint32_t i = 0; i < sizeof most / sizeof *most; i++) {
        scenario *x = draw_scenario(first_seed + i);
        set(x, "max-num-seqs", most[i]);
        set(x, "max-num-batched-tokens", most[i]);
        run_twice(x, first_seed + i, true);
    }
}

static void an_engine_can_be_freed_while_events_are_in_flight(void **state)
{
    (void)state;
    uint32_t n_compressing = 0;
    for (uint32_t i = 0; i < 4; i++) {
        scenario *x = draw_scenario(first_seed + i);
        late_device_choose(on_gpu || i % 2 == 0 ? 0 : first_seed + i);
        run *r = run_until_compressing(x);
        n_compressing += r->stats.compressing;
        run_free(r);
        free_scenario(x);
    }
    assert_true(n_compressing > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_seeds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2) first_seed = (uint32_t)strtoul(argv[2], NULL, 10);
    if (argc > 3) device = cache = argv[3];
    if (argc > 4) cache = argv[4];
    on_gpu = strncmp(device, "cuda", 4) == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asynchronous_and_synchronous_events_give_the_same_bits),
        cmocka_unit_test(a_device_that_runs_late_gives_the_same_bits),
        cmocka_unit_test(padding_needs_no_tokens),
        cmocka_unit_test(an_engine_can_be_freed_while_events_are_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
