/* test_engine_zip.c - compression inside the engine: the cap holds, results depend neither on when
 * an event commits nor on batch composition, policies mix in one batch, and all totals agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/run_engine.h"

enum { N_PROMPTS = 3, MAX_TOKENS = 160, BLOCK = 16, BUDGET = 64 };
static const char *prompts[N_PROMPTS];

static const char *const zip_options[] = {"block-size", "16", "kv-policies", "full,window,zip",
                                          "kv-budget", "64", "kv-window", "16", NULL};

/* Runs the prompts with alternating policies. `extra` follows zip_options. */
static run *run_policies(const char *const *extra, const cn_kv_policy *policies, uint32_t n)
{
    run *r = run_new(zip_options, extra);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
        p.kv.policy = policies[i % n];
        p.sampling.ignore_eos = true;
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

static const cn_kv_policy zip_only[] = {CN_KV_ZIP};
static const cn_kv_policy mixed[] = {CN_KV_ZIP, CN_KV_FULL, CN_KV_WINDOW};
static run *reference; /* zip, asynchronous */

static int setup(void **state)
{
    (void)state;
    assert_int_equal(run_load_prompts("ledger", prompts, NULL, N_PROMPTS), N_PROMPTS);
    reference = run_policies(NULL, zip_only, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(reference);
    return 0;
}

static void assert_same_with(const char *const *extra)
{
    run *got = run_policies(extra, zip_only, 1);
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same(reference, i, got, i, 0);
    run_free(got);
}

static void the_cap_holds_and_usage_reports_it(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        const cn_usage *u = &reference->samples[i][0].usage;
        assert_int_equal(u->kv.params.policy, CN_KV_ZIP);
        assert_int_equal(u->kv.params.budget_tokens, BUDGET);
        assert_true(u->kv.compressions > 0);
        assert_true(u->kv.peak_tokens <= BUDGET + BLOCK || u->prompt_tokens > BUDGET);
        /* An event keeps at most the budget. Tokens that were not evicted are still resident. */
        assert_true(u->kv.evicted + BUDGET + BLOCK >= u->prompt_tokens + u->completion_tokens);
    }
    run_assert_accounts(reference);
}

static void synchronous_gives_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"sync-compression", "true", NULL});
}

static void asynchronous_scheduling_gives_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"async-scheduling", "on", NULL});
}

static void a_request_alone_gives_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"max-num-seqs", "1", NULL});
}

static void constrained_scheduling_gives_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"hybrid-scheduling", "false", NULL});
}

static void little_memory_gives_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"num-gpu-blocks-override", "17", "max-model-len", "272",
                                      "enable-prefix-caching", "false", NULL});
}

/* Whatever the batch, chunks, hits or preemptions, of rule `name` with an option of its own. */
static void assert_rule_is_independent(const char *name, const char *option, const char *value)
{
#define RULE "kv-rule", name, option, value
    run *want = run_policies((const char *[]){RULE, NULL}, zip_only, 1);
    const char *alone[] = {RULE, "max-num-seqs", "1", "max-num-batched-tokens", "37", NULL};
    const char *tight[] = {RULE,  "num-gpu-blocks-override", "17",    "max-model-len",
                           "272", "enable-prefix-caching",   "false", NULL};
#undef RULE
    const char *const *const others[] = {alone, tight};
    for (int k = 0; k < 2; k++) {
        run *got = run_policies(others[k], zip_only, 1);
        for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same(want, i, got, i, 0);
        run_free(got);
    }
    uint32_t n_other = 0; /* the rule changes what is kept */
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        n_other += strcmp(want->samples[i][0].text.data, reference->samples[i][0].text.data) != 0;
    assert_true(n_other > 0);
    run_free(want);
}

static void rules_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    /* Queries before the first event count. */
    assert_rule_is_independent("peak", "kv-observe", "150");
    assert_rule_is_independent("follow", "kv-recent", "0.5");
}

static void policies_mix_in_one_batch(void **state)
{
    (void)state;
    const cn_kv_policy full_only[] = {CN_KV_FULL};
    run *full = run_policies(NULL, full_only, 1), *mix = run_policies(NULL, mixed, 3);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        const run *want = i % 3 == 0 ? reference : full;
        if (i % 3 != 2) run_assert_same(want, i, mix, i, 0);
        const cn_usage *u = &mix->samples[i][0].usage;
        assert_int_equal(u->kv.params.policy, mixed[i % 3]);
        assert_int_equal(u->kv.compressions > 0, mixed[i % 3] != CN_KV_FULL);
    }
    assert_int_equal(full->stats.compressions, 0);
    run_free(full);
    run_free(mix);
}

static void samples_and_shared_prefixes_give_the_same_tokens(void **state)
{
    (void)state;
    run r;
    run_open(&r, zip_options);
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, MAX_TOKENS);
    p.kv.policy = CN_KV_ZIP;
    p.sampling.ignore_eos = true;
    p.sampling.n = 3;
    uint32_t many = run_submit(&r, &p);
    run_finish(&r);
    p.sampling.n = 1;
    uint32_t again = run_submit(&r, &p); /* uses blocks that the first left in the prefix cache */
    run_finish(&r);
    run_assert_same(reference, 0, &r, many, 0);
    run_assert_same(reference, 0, &r, again, 0);
    for (uint32_t s = 1; s < 3; s++) {
        assert_int_equal(r.samples[many][s].n_tokens, r.samples[many][0].n_tokens);
        assert_memory_equal(r.samples[many][s].tokens, r.samples[many][0].tokens,
                            r.samples[many][0].n_tokens * sizeof(uint32_t));
    }
    run_close(&r);
}

/* A stop string late in the text, after several compressions, with log-probabilities. */
static void stop_strings_and_logprobs_work_after_compressions(void **state)
{
    (void)state;
    const run_sample *want = &reference->samples[0][0];
    char stop[13] = {0};
    memcpy(stop, want->text.data + want->text.len * 3 / 4, sizeof stop - 1);
    const size_t text_bytes = (size_t)(strstr(want->text.data, stop) - want->text.data);
    const char *const stops[] = {"never said", stop};
    run r;
    run_open(&r, zip_options);
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, MAX_TOKENS);
    p.kv.policy = CN_KV_ZIP;
    p.sampling.ignore_eos = true;
    p.sampling.stop = stops;
    p.sampling.n_stop = 2;
    p.sampling.logprobs = 2;
    run_submit(&r, &p);
    run_finish(&r);
    const run_sample *got = &r.samples[0][0];
    assert_int_equal(got->finish, CN_FINISH_STOP);
    assert_string_equal(got->stop_reason, stop);
    assert_int_equal(got->text.len, text_bytes);
    assert_memory_equal(got->text.data, want->text.data, text_bytes);
    assert_memory_equal(got->tokens, want->tokens, got->n_tokens * sizeof *got->tokens);
    assert_true(got->usage.kv.compressions > 1 && got->logprob_hash != 0);
    run_close(&r);
}

static void a_cancel_at_any_step_frees_everything(void **state)
{
    (void)state;
    run r;
    run_open(&r, zip_options);
    for (uint32_t round = 0; round < 12; round++) {
        cn_message m;
        cn_request_params p = run_params(&r, prompts[round % N_PROMPTS], &m, MAX_TOKENS);
        p.kv.policy = CN_KV_ZIP;
        p.sampling.ignore_eos = true;
        uint32_t i = run_submit(&r, &p);
        run_steps(&r, 20 + round * 7);
        cn_engine_cancel(r.engine, r.ids[i]);
    }
    run_finish(&r);
    run_close(&r);
}

static void impossible_kv_is_refused_with_its_numbers(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"block-size", "32", "kv-policies", "full,zip", "kv-budget", "128",
                                  "kv-window", "16", "num-gpu-blocks-override", "20",
                                  NULL});
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, 64);
    p.kv.policy = CN_KV_WINDOW;
    run_assert_refused(&r, &p, "--kv-policies");
    p.kv.policy = CN_KV_ZIP;
    p.kv.window_tokens = 200;
    run_assert_refused(&r, &p, "200");
    p.kv.window_tokens = 16;
    p.kv.budget_tokens = 100000;
    run_assert_refused(&r, &p, "exceeds the pool of 20 blocks");
    run_finish(&r);
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cap_holds_and_usage_reports_it),
        cmocka_unit_test(synchronous_gives_the_same_tokens),
        cmocka_unit_test(asynchronous_scheduling_gives_the_same_tokens),
        cmocka_unit_test(a_request_alone_gives_the_same_tokens),
        cmocka_unit_test(constrained_scheduling_gives_the_same_tokens),
        cmocka_unit_test(little_memory_gives_the_same_tokens),
        cmocka_unit_test(rules_do_not_depend_on_the_batch),
        cmocka_unit_test(policies_mix_in_one_batch),
        cmocka_unit_test(samples_and_shared_prefixes_give_the_same_tokens),
        cmocka_unit_test(stop_strings_and_logprobs_work_after_compressions),
        cmocka_unit_test(a_cancel_at_any_step_frees_everything),
        cmocka_unit_test(impossible_kv_is_refused_with_its_numbers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
