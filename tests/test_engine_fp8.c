/* test_engine_fp8.c - engines with --kv-cache-dtype fp8: results depend neither on batch
 * composition, chunks, a prefix hit, a preemption nor forks, because attention reads the stored
 * rows everywhere; and they are not those of plain rows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_state.h"
#include "engine/start/device_choice.h"
#include "tests/lib/run_engine.h"

enum { N_REQUESTS = 6, MAX_TOKENS = 80 };
static const char *prompts[N_REQUESTS];

static const char *const options[] = {
    "kv-cache-dtype", "fp8", "block-size", "64", "kv-policies", "full,window,zip",
    "kv-selectors", "ds,tls,quest", "kv-budget", "128", "kv-window", "16", "select-tokens", "128",
    "select-dense-layers", "1", NULL};

/* Full KV, a policy or a selector, by the number of the request. */
static void submit(run *r, uint32_t i, uint32_t n)
{
    static const cn_kv_select selects[] = {CN_SELECT_NONE, CN_SELECT_NONE, CN_SELECT_NONE,
                                           CN_SELECT_DS, CN_SELECT_QUEST, CN_SELECT_TLS};
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
    if (i == 1 || i == 2) p.kv.policy = i == 1 ? CN_KV_ZIP : CN_KV_WINDOW;
    p.kv.select = selects[i];
    p.kv.select_tokens = i == 5 ? 128 : 64;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = 0;
    p.sampling.logprobs = 0;
    p.sampling.n = n;
    run_submit(r, &p);
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
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_REQUESTS), N_REQUESTS);
    reference = run_all(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(reference);
    return 0;
}

static void policies_and_selectors_take_effect(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const run_sample *s = &reference->samples[i][0];
        assert_int_equal(s->n_tokens, MAX_TOKENS);
        assert_true((s->usage.kv.compressions > 0) == (i == 1 || i == 2));
        assert_true((s->usage.kv.selected_steps > 0) == (i >= 3));
    }
    run_assert_accounts(reference);
}

/* Rows in eight bits hold almost four times the tokens of f32, and give other bits. */
static void rows_are_smaller_and_rounded(void **state)
{
    (void)state;
    const char *const plain[] = {"kv-cache-dtype", "auto", NULL};
    run *r = run_all(plain);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        assert_true(reference->samples[i][0].logprob_hash != r->samples[i][0].logprob_hash);
    const cn_kv_layout *l = &r->engine->pools.layout, *l8 = &reference->engine->pools.layout;
    assert_int_equal(l->block_bytes, (size_t)l->n_kv_heads * 64 * 8 * l->head_dim);
    assert_int_equal(l8->block_bytes, (size_t)l->n_kv_heads * 64 * (2 * l->head_dim + 4));
    assert_int_equal(reference->stats.freed_bytes % reference->engine->plan.kv.block_bytes, 0);
    run_free(r);
}

static void assert_same(const char *const *extra)
{
    run *r = run_all(extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) run_assert_same_bits(reference, i, r, i, 0);
    run_free(r);
}

static void a_request_alone_has_the_same_bits(void **state)
{
    (void)state;
    assert_same((const char *[]){"max-num-seqs", "1", NULL});
}

static void chunks_and_scheduling_change_no_bit(void **state)
{
    (void)state;
    assert_same((const char *[]){"max-num-batched-tokens", "64", "max-num-seqs", "5", NULL});
    assert_same((const char *[]){"max-num-batched-tokens", "17", NULL});
    assert_same((const char *[]){"async-scheduling", "on", NULL});
    assert_same((const char *[]){"sync-compression", "true", "threads", "1", NULL});
}

static void a_prefix_hit_changes_no_bit(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    for (uint32_t i = 0; i < 2 * N_REQUESTS; i++) {
        submit(r, i / 2, 1);
        run_finish(r);
        run_assert_same_bits(reference, i / 2, r, i, 0);
    }
    assert_true(r->samples[1][0].usage.cached_tokens >= 64);
    run_free(r);
}

static void a_preemption_changes_no_bit(void **state)
{
    (void)state;
    const char *const much[] = {"kv-cache-dtype", "fp8", "block-size", "16", "max-model-len",
                                "640", NULL};
    const char *const little[] = {"num-gpu-blocks-override", "60", NULL};
    run *r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = run_new(much, i ? little : NULL);
        for (uint32_t j = 0; j < 2 * N_REQUESTS; j++) {
            cn_message m;
            cn_request_params p = run_params(r[i], prompts[j % N_REQUESTS], &m, MAX_TOKENS + j);
            p.sampling.ignore_eos = true;
            p.sampling.logprobs = 0;
            run_submit(r[i], &p);
        }
        run_finish(r[i]);
    }
    for (uint32_t i = 0; i < 2 * N_REQUESTS; i++) run_assert_same_bits(r[0], i, r[1], i, 0);
    assert_true(r[0]->stats.preemptions == 0 && r[1]->stats.preemptions > 0);
    run_free(r[0]);
    run_free(r[1]);
}

/* The samples of a request start from the same blocks. */
static void forks_change_no_bit(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    for (uint32_t i = 0; i < N_REQUESTS; i++) submit(r, i, 3);
    run_finish(r);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        for (uint32_t s = 0; s < 3; s++)
            assert_true(r->samples[i][s].logprob_hash == reference->samples[i][0].logprob_hash);
    run_free(r);
}

static void homes_read_the_same_rows(void **state)
{
    (void)state;
    const char *const away[] = {"kv-homes", "device,host", "host-space", "0.02",
                                "select-tiles", "3", NULL};
    const char *const plain[] = {"kv-homes", "device,host", "host-space", "0.02",
                                 "select-tiles", "3", "kv-cache-dtype", "auto", NULL};
    uint64_t hash[2];
    uint32_t tokens[900];
    for (uint32_t i = 0; i < 900; i++) tokens[i] = 100 + i * 37 % 1500;
    for (int form = 0; form < 2; form++) {
        run *r = run_new(options, form ? plain : away);
        cn_message m;
        cn_request_params p = run_params(r, "", &m, MAX_TOKENS);
        p.messages = NULL;
        p.n_messages = 0;
        p.tokens = tokens;
        p.n_tokens = 900;
        p.kv.select = CN_SELECT_TLS;
        p.kv.select_tokens = 128;
        p.kv.home = CN_HOME_HOST;
        p.sampling.ignore_eos = true;
        p.sampling.logprobs = 0;
        run_submit(r, &p);
        run_submit(r, &p);
        run_finish(r);
        run_assert_same_bits(r, 0, r, 1, 0);
        assert_true(r->stats.exchanges > 0);
        hash[form] = r->samples[0][0].logprob_hash;
        run_free(r);
    }
    assert_true(hash[0] != hash[1]);
}

/* What a backend lacks is refused by name before it is used. */
static void backends_without_the_ops_are_refused_by_name(void **state)
{
    (void)state;
    cn_backend lacking = *reference->engine->backend;
    const cn_model_config *m = &reference->engine->model_config;
    cn_config *c = cn_config_create();
    run_set_option(c, "kv-cache-dtype", "fp8_e4m3");
    run_set_option(c, "kv-selectors", "spade");
    run_set_option(c, "kv-homes", "device,host");
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_OK);
    const struct {
        uint32_t *forms;
        const char *text;
    } lacks[] = {{&lacking.home_kv_forms, "with homes"},
                 {&lacking.row_kv_forms, "can rank rows of K"},
                 {&lacking.select_kv_forms, "with selectors (--kv-select"},
                 {&lacking.kv_forms, "does not support it: set --kv-cache-dtype auto"}};
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
        *lacks[i].forms = 1U << CN_KV_PLAIN;
        assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_ERR_DEVICE);
        assert_non_null(strstr(cn_last_error(), lacks[i].text));
    }
    lacking.kv_forms |= 1U << CN_KV_FP8;
    lacking.select_kv_forms |= 1U << CN_KV_FP8;
    run_set_option(c, "kv-selectors", "ds,tls,quest,random");
    run_set_option(c, "kv-homes", "device");
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_OK); /* they rank labels and bounds */
    lacking.kv_forms = 1U << CN_KV_PLAIN;
    run_set_option(c, "kv-cache-dtype", "auto");
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_OK);
    run_set_option(c, "kv-head-rule", "mean");
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_OK); /* no policy reads it */
    run_set_option(c, "kv-policies", "zip");
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_OK);
    lacking.head_rules = 1U << CN_HEADS_MAX;
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "--kv-head-rule mean: the cpu backend"));
    assert_int_equal(cn_config_set(c, "kv-cache-dtype", "fp8_e5m2"), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "fp8_e5m2: expected one of auto|fp8|fp8_e4m3"));
    cn_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_and_selectors_take_effect),
        cmocka_unit_test(rows_are_smaller_and_rounded),
        cmocka_unit_test(a_request_alone_has_the_same_bits),
        cmocka_unit_test(chunks_and_scheduling_change_no_bit),
        cmocka_unit_test(a_prefix_hit_changes_no_bit),
        cmocka_unit_test(a_preemption_changes_no_bit),
        cmocka_unit_test(forks_change_no_bit),
        cmocka_unit_test(homes_read_the_same_rows),
        cmocka_unit_test(backends_without_the_ops_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
