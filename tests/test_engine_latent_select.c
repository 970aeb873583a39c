/* test_engine_latent_select.c - selectors over the rows of latent attention, inside the engine:
 * results depend neither on batch composition nor on chunks, preemption, a prefix hit or a fork;
 * `oracle` finds the most attention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "compress/selector.h"
#include "engine/engine_probe.h"
#include "engine/engine_state.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/tensor_file.h"

enum { MAX_TOKENS = 130, LIST = 64, N_ALIKE = 150 };
static const cn_kv_select selectors[] = {CN_SELECT_NONE,  CN_SELECT_ORACLE, CN_SELECT_QUEST,
                                         CN_SELECT_DS,    CN_SELECT_TLS,    CN_SELECT_SPADE,
                                         CN_SELECT_LAST,  CN_SELECT_RANDOM, CN_SELECT_SPEC};
enum { N_REQUESTS = 2 * (sizeof selectors / sizeof *selectors) };
static const char *prompts[N_REQUESTS];
static char folder[64];

/* In every second request groups are the mean and predictions rank rows of K. */
static const char config_text[] =
    "{\"architectures\": [\"Glm4MoeLiteForCausalLM\"], \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 20,"
    " \"q_lora_rank\": 24, \"kv_lora_rank\": 256, \"qk_rope_head_dim\": 32, \"v_head_dim\": 24,"
    " \"qk_nope_head_dim\": 24, \"vocab_size\": 2048, \"n_routed_experts\": 8,"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"n_group\": 1, \"topk_group\": 1,"
    " \"first_k_dense_replace\": 1, \"max_position_embeddings\": 4096, \"eos_token_id\": 2045,"
    " \"initializer_range\": 0.2}";

static const char *const options[] = {
    "model", folder, "tokenizer", "examples/tiny-reasoner", "load-format", "dummy",
    "block-size", "64", "kv-selectors", "oracle,quest,ds,tls,spade,last,random,spec",
    "select-tokens", "128", "select-tiles", "4", "recent-tokens", "32",
    "select-dense-layers", "1", "enable-prefix-caching", "false", NULL};

static uint32_t submit(run *r, uint32_t i, uint32_t n)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
    p.kv.select = selectors[i / 2];
    p.kv.select_tokens = LIST;
    p.kv.select_tiles = 3;
    p.kv.select_group = i % 2 ? CN_SELECT_MEAN : CN_SELECT_MAX;
    p.kv.select_keys = i % 2 ? CN_SELECT_ROWS : CN_SELECT_LABELS;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = n > 1 ? 1 : 0;
    p.sampling.has_seed = true;
    p.sampling.seed = 7;
    p.sampling.logprobs = 0;
    p.sampling.n = n;
    return run_submit(r, &p);
}

static run *run_all(const char *const *extra)
{
    run *r = run_new(options, extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) submit(r, i, 1);
    run_finish(r);
    return r;
}

static run *reference;

static int setup(void **state)
{
    (void)state;
    make_model_folder(folder, config_text);
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_REQUESTS), N_REQUESTS);
    reference = run_all(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(reference);
    remove_folder(folder);
    return 0;
}

static void check_same(const char *const *extra, bool preempts)
{
    run *r = run_all(extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) run_assert_same_bits(reference, i, r, i, 0);
    if (preempts) assert_true(r->stats.preemptions > 0);
    run_free(r);
}

/* Each selector reads other tokens, so its log-probabilities are not those of full attention. */
static void every_selector_selects(void **state)
{
    (void)state;
    run *full = run_new(options, NULL);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        cn_message m;
        cn_request_params p = run_params(full, prompts[i], &m, MAX_TOKENS);
        p.sampling.ignore_eos = true;
        p.sampling.temperature = 0;
        p.sampling.logprobs = 0;
        run_submit(full, &p);
    }
    run_finish(full);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const run_sample *s = &reference->samples[i][0];
        const bool selects = selectors[i / 2] != CN_SELECT_NONE;
        assert_int_equal(s->n_tokens, MAX_TOKENS);
        assert_true((s->usage.kv.selected_steps > 0) == selects);
        assert_true((full->samples[i][0].logprob_hash == s->logprob_hash) == !selects);
    }
    run_assert_accounts(reference);
    run_free(full);
}

static void batches_and_chunks_change_no_bit(void **state)
{
    (void)state;
    check_same((const char *[]){"max-num-seqs", "1", NULL}, false);
    check_same((const char *[]){"max-num-batched-tokens", "48", "max-num-seqs", "16", NULL}, false);
    check_same((const char *[]){"enforce-eager", "true", "async-scheduling", "off", NULL}, false);
    check_same((const char *[]){"async-scheduling", "on", NULL}, false);
}

static void preemption_changes_no_bit(void **state)
{
    (void)state;
    check_same((const char *[]){"num-gpu-blocks-override", "20", "max-model-len", "1024", NULL},
               true);
}

/* The second turn finds the prompts and their digests in the prefix cache. */
static void a_prefix_hit_changes_no_bit(void **state)
{
    (void)state;
    run *r = run_new(options, (const char *[]){"enable-prefix-caching", "true", NULL});
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < 2 * N_REQUESTS; i++) {
        submit(r, i % N_REQUESTS, 1);
        if (i == N_REQUESTS - 1) run_finish(r);
    }
    run_finish(r);
    for (uint32_t i = 0; i < 2 * N_REQUESTS; i++) {
        run_assert_same_bits(reference, i % N_REQUESTS, r, i, 0);
        n_hits += i >= N_REQUESTS && r->samples[i][0].usage.cached_tokens > 0;
    }
    assert_true(n_hits > 0);
    run_free(r);
}

static void forks_change_no_bit(void **state)
{
    (void)state;
    run *together = run_new(options, NULL);
    run *apart = run_new(options, (const char *[]){"max-num-seqs", "1", NULL});
    for (uint32_t i = 2; i < N_REQUESTS; i += 3) {
        const uint32_t a = submit(together, i, 2), b = submit(apart, i, 2);
        run_finish(together);
        run_finish(apart);
        for (uint32_t s = 0; s < 2; s++) {
            assert_true(together->samples[a][s].usage.kv.selected_steps > 0);
            run_assert_same_bits(together, a, apart, b, s);
        }
    }
    run_free(together);
    run_free(apart);
}

/* A list longer than the context selects nothing. */
static void a_short_sequence_is_dense(void **state)
{
    (void)state;
    run *r =
        run_new(options, (const char *[]){"select-tokens", "4096", "select-tiles", "80", NULL});
    for (uint32_t i = 0; i < N_REQUESTS; i += 2) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[0], &m, MAX_TOKENS);
        p.kv.select = selectors[i / 2];
        p.sampling.ignore_eos = true;
        p.sampling.temperature = 0;
        p.sampling.logprobs = 0;
        run_submit(r, &p);
    }
    run_finish(r);
    for (uint32_t i = 0; i < N_REQUESTS / 2; i++) run_assert_same_bits(reference, 0, r, i, 0);
    assert_int_equal(r->stats.selected_steps, 0);
    run_free(r);
}

/* The attention that the lists of a selector find. */
static cn_select_figures figures_of(run *r, cn_kv_select select)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[0], &m, MAX_TOKENS);
    p.kv.select = select;
    p.kv.select_tokens = LIST;
    p.sampling.ignore_eos = true;
    run_submit(r, &p);
    run_finish(r);
    const cn_select_figures f = cn_engine_take_selection(r->engine);
    assert_true(f.units > 0 && f.units % 3 == 0); /* one list a layer */
    return f;
}

static void oracle_finds_the_most_attention(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    assert_int_equal(cn_engine_probe_selection(r->engine, 4), CN_OK);
    const cn_select_figures oracle = figures_of(r, CN_SELECT_ORACLE);
    const cn_select_figures hashed = figures_of(r, CN_SELECT_RANDOM);
    assert_true(oracle.overlap == (double)oracle.units);
    assert_true(hashed.overlap < 0.7 * (double)hashed.units);
    assert_true(oracle.mass > hashed.mass);
    run_free(r);
}

/* Greedy tokens of a request whose KV lies in `home`, with two dense layers. */
static run *run_with_home(cn_kv_home home, cn_kv_select select, uint32_t i)
{
    const char *const extra[] = {"kv-homes", "device,peer,host", "kv-policies", "full,window",
                                 "cache-device", "cpu", "home-space", "0.2", "host-space", "0.2",
                                 "select-dense-layers", "2", "select-cap", "64", NULL};
    run *r = run_new(options, extra);
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, 2 * MAX_TOKENS);
    p.kv.home = home;
    p.kv.policy = home == CN_HOME_DEVICE ? CN_KV_FULL : CN_KV_WINDOW;
    p.kv.budget_tokens = 128;
    p.kv.select = select;
    p.kv.select_tokens = LIST;
    p.kv.select_cap = LIST;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = 0;
    run_submit(r, &p);
    run_finish(r);
    return r;
}

/* Lists are the same sets wherever the KV lies, so attention differs in its last bits alone, which
 * change a token at last. Dense layers read the plane. */
static void homes_give_the_tokens_of_the_device(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const cn_kv_select select = i % 2 ? CN_SELECT_LAST : CN_SELECT_SPADE;
        run *here = run_with_home(CN_HOME_DEVICE, select, i);
        run *there = run_with_home(i < 2 ? CN_HOME_PEER : CN_HOME_HOST, select, i);
        const run_sample *a = &here->samples[0][0], *b = &there->samples[0][0];
        assert_true(a->usage.kv.selected_steps > 20 && b->usage.kv.exchanges > 20);
        for (uint32_t t = 0; t < N_ALIKE; t++) assert_int_equal(a->tokens[t], b->tokens[t]);
        run_free(here);
        run_free(there);
    }
}

/* Digests of a token: labels of 64 of 288 channels with their scale, and both bounds. */
static void a_token_has_the_digests_of_one_head(void **state)
{
    (void)state;
    const cn_kv_layout *l = &reference->engine->pools.layout;
    assert_int_equal(l->n_kv_heads, 1);
    assert_int_equal(reference->engine->pools.digest.n_channels, 64);
    assert_int_equal(cn_block_plane_bytes(l, CN_PLANE_LABELS), 64 * 32);
    assert_int_equal(cn_block_plane_bytes(l, CN_PLANE_BOUNDS_64), 2 * 288 * 4);
    assert_non_null(reference->engine->pools.digest.wide_channels);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_selector_selects),
        cmocka_unit_test(batches_and_chunks_change_no_bit),
        cmocka_unit_test(preemption_changes_no_bit),
        cmocka_unit_test(a_prefix_hit_changes_no_bit),
        cmocka_unit_test(forks_change_no_bit),
        cmocka_unit_test(a_short_sequence_is_dense),
        cmocka_unit_test(oracle_finds_the_most_attention),
        cmocka_unit_test(homes_give_the_tokens_of_the_device),
        cmocka_unit_test(a_token_has_the_digests_of_one_head),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
