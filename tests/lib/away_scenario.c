/* away_scenario.c - see away_scenario.h. */
#include "tests/lib/away_scenario.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

uint32_t away_below(away_scenario *x, uint32_t n) { return test_rng_below(&x->rng, n); }

uint32_t away_between(away_scenario *x, uint32_t a, uint32_t b)
{
    return a + away_below(x, b - a + 1);
}

bool away_chance(away_scenario *x, uint32_t percent) { return away_below(x, 100) < percent; }

void away_set_text(away_scenario *x, const char *name, const char *text)
{
    assert_true(x->n_options + 2 <= AWAY_MAX_OPTIONS);
    x->options[x->n_options++] = name;
    x->options[x->n_options++] = text;
}

void away_set(away_scenario *x, const char *name, uint32_t value)
{
    char *text = x->values[x->n_options];
    snprintf(text, sizeof x->values[0], "%u", value);
    away_set_text(x, name, text);
}

#define COMMON_KEYS                                                                   \
    "\"hidden_size\": %u, \"intermediate_size\": %u, \"num_hidden_layers\": %u,"        \
    "\"vocab_size\": %u, \"max_position_embeddings\": %u, \"eos_token_id\": 3,"         \
    "\"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"hidden_act\": \"silu\","  \
    "\"attention_bias\": false, \"initializer_range\": 0.4,"

static void draw_model(away_scenario *x, uint32_t most_layers, bool latent)
{
    static const uint32_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {4, 1}, {3, 3}};
    const uint32_t *h = heads[away_below(x, sizeof heads / sizeof *heads)];
    x->vocab = away_between(x, 60, 200);
    x->n_layers = away_between(x, 1, most_layers);
    char text[1024];
    const uint32_t hidden = 16 * away_between(x, 1, 3), width = 16 * away_between(x, 1, 3);
    const uint32_t dim = 16 * away_between(x, 1, 3);
    int n = snprintf(text, sizeof text, "{" COMMON_KEYS, hidden, width, x->n_layers, x->vocab,
                     AWAY_CONTEXT);
    n += latent ? snprintf(text + n, sizeof text - (size_t)n,
                           "\"architectures\": [\"DeepseekV3ForCausalLM\"],"
                           "\"num_attention_heads\": %u, \"q_lora_rank\": null,"
                           "\"kv_lora_rank\": %u, \"qk_rope_head_dim\": 16,"
                           "\"qk_nope_head_dim\": 24, \"v_head_dim\": 16,"
                           "\"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"n_group\": 1,"
                           "\"topk_group\": 1, \"moe_intermediate_size\": 16,"
                           "\"first_k_dense_replace\": 1}",
                           h[0] + 1, dim)
                : snprintf(text + n, sizeof text - (size_t)n,
                           "\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\","
                           "\"num_attention_heads\": %u, \"num_key_value_heads\": %u,"
                           "\"head_dim\": %u, \"rms_norm_eps\": 1e-6}",
                           h[0], h[1], dim);
    scratch_dir_open(&x->dir);
    scratch_dir_put(&x->dir, "config.json", text, (size_t)n);
    away_set_text(x, "model", x->dir.path);
    away_set_text(x, "load-format", "dummy");
    away_set(x, "seed", away_below(x, 1000));
    away_set_text(x, "device", "cpu");
    away_set(x, "threads", 1);
    x->block = 64u << away_below(x, 2);
    away_set(x, "block-size", x->block);
    away_set(x, "max-model-len", AWAY_CONTEXT);
    /* Room for all requests at once. More would be slow, because each step checks all blocks. */
    away_set(x, "num-gpu-blocks-override", 400);
    away_set_text(x, "kv-selectors", "spade,last");
    away_set(x, "select-tokens", AWAY_MAX_LIST);
    away_set(x, "select-window", AWAY_SELECT_WINDOW);
    away_set(x, "packs", away_between(x, 1, 3));
}

away_scenario *away_draw_scenario(uint64_t seed, uint32_t most_layers)
{
    away_scenario *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->rng.state = seed;
    draw_model(x, most_layers, seed % 3 == 0);
    return x;
}

const char *away_draw_homes(away_scenario *x)
{
    static const char *const homes[] = {"peer", "host", "peer,host", "peer,host"};
    const char *home = homes[away_below(x, 4)];
    away_set_home(x, home);
    away_set_text(x, "kv-policies", "full,window,zip");
    away_set(x, "kv-budget", 128);
    away_set(x, "kv-window", 8);
    away_set_text(x, "kv-selectors", "spade,last,tls,spec");
    away_set(x, "select-tiles", 3);
    away_set(x, "select-dense-layers", away_below(x, x->n_layers));
    return home;
}

void away_set_home(away_scenario *x, const char *home)
{
    const bool host = strstr(home, "host") != NULL, peer = strstr(home, "peer") != NULL;
    away_set_text(x, "kv-homes",
                  host && peer ? "device,peer,host" : peer ? "device,peer" : "device,host");
    away_set_text(x, "home-space", "0.1");
    if (host && peer) away_set_text(x, "host-space", "0.05");
    if (peer) away_set_text(x, "cache-device", "cpu");
}

void away_draw_select(away_scenario *x, cn_kv_params *kv)
{
    *kv = (cn_kv_params){
        .select = away_chance(x, 70) ? CN_SELECT_SPADE : CN_SELECT_LAST,
        .select_tokens = away_between(x, 1, x->block),
        .select_keys = (cn_select_keys)away_below(x, 2),
        .select_window = away_between(x, 1, AWAY_SELECT_WINDOW),
        .select_weights = (cn_select_weights)away_below(x, 2),
        .select_rotate = away_chance(x, 70),
        .sink_tokens = away_below(x, 5),
        .budget_tokens = 128,
    };
}

void away_draw_zip(away_scenario *x, cn_kv_params *kv)
{
    kv->window_tokens = away_between(x, 2, 8);
    kv->alpha = 0.8f;
    kv->lambda = 0.2f;
    kv->redundancy = CN_REDUNDANCY_NONE;
    kv->redundancy_tau = 0.4f;
}

run *away_open_run(away_scenario *x)
{
    x->options[x->n_options] = NULL;
    return run_new(x->options, NULL);
}

void away_submit(run *r, const away_ask *a)
{
    cn_request_params p = {.tokens = a->prompt, .n_tokens = a->n_prompt, .kv = a->kv,
                           .klass = a->klass};
    cn_engine_default_sampling(r->engine, &p.sampling);
    p.sampling.max_tokens = a->max_tokens;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = a->greedy ? 0 : 1;
    p.sampling.logprobs = 0;
    p.sampling.n = a->n;
    if (a->is_forced) {
        p.forced = a->forced;
        p.n_forced = a->max_tokens;
    }
    run_submit(r, &p);
}

run *away_run_asks(away_scenario *x, const away_plan *plan)
{
    run *r = away_open_run(x);
    if (plan->before) plan->before(r);
    commit_time_choose(r->engine, plan->commits);
    for (uint32_t n = 0, next = 0; next < x->n_asks || n < plan->n_steps; n++) {
        while (next < x->n_asks && x->asks[next].at_step <= n) away_submit(r, &x->asks[next++]);
        for (uint32_t i = 0; plan->cancels && i < next; i++)
            if (x->asks[i].cancel_at == n && n > 0) cn_engine_cancel(r->engine, r->ids[i]);
        run_steps(r, 1);
        if (plan->after) plan->after(r, plan->user);
    }
    run_finish(r);
    away_assert_empty(r);
    return r;
}

void away_assert_empty(run *r)
{
    cn_engine_stats(r->engine, &r->stats);
    assert_int_equal(r->stats.home_blocks_used, 0);
    assert_int_equal(r->stats.blocks_used, 0);
    assert_int_equal(r->stats.slots_used, 0);
}

bool away_assert_alone(const run_sample *a, const run_sample *b, uint64_t seed, uint32_t request)
{
    const unsigned long long of = seed;
    assert_true(a->n_tokens <= b->n_tokens);
    for (uint32_t t = 0; t < a->n_tokens; t++)
        if (a->tokens[t] != b->tokens[t])
            fail_msg("seed %llu, request %u: token %u is %u, alone at home %s %u", of, request, t,
                     a->tokens[t], cn_kv_home_name(b->usage.kv.params.home), b->tokens[t]);
    if (a->finish == CN_FINISH_CANCELLED) return false;
    assert_int_equal(a->n_tokens, b->n_tokens);
    if (a->logprob_hash != b->logprob_hash)
        fail_msg("seed %llu, request %u: other log-probabilities", of, request);
    const cn_kv_usage *u = &a->usage.kv, *v = &b->usage.kv;
    assert_int_equal(u->params.home, v->params.home);
    assert_int_equal(u->exchanges, v->exchanges);
    assert_int_equal(u->fetched_entries, v->fetched_entries);
    assert_int_equal(u->missed_entries, v->missed_entries);
    assert_int_equal(u->selected_steps, v->selected_steps);
    assert_int_equal(u->selected_tokens, v->selected_tokens);
    return true;
}

void away_free_scenario(away_scenario *x)
{
    scratch_dir_close(&x->dir);
    free(x);
}
