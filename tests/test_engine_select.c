/* test_engine_select.c - selection inside the engine: results depend neither on batch composition
 * nor on chunks, preemption, prefix sharing, forks or asynchronous scheduling; selectors and
 * policies mix in one batch; usage adds up; wrong parameters are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "compress/selector.h"
#include "tests/lib/run_engine.h"

enum { N_PROMPTS = CN_N_SELECTORS + 1, MAX_TOKENS = 100, LIST = 64 };
static const char *prompts[N_PROMPTS];

static const char *const options[] = {
    "block-size", "64", "kv-policies", "full,zip", "kv-selectors", "*",
    "select-tokens", "128", "select-tiles", "4", "kv-budget", "128",
    "select-dense-layers", "1", "enable-prefix-caching", "false", NULL};

/* Request i has selector i; the last one compresses instead. */
static void set_kv(cn_kv_params *kv, uint32_t i)
{
    if (i == CN_N_SELECTORS) {
        kv->policy = CN_KV_ZIP;
        return;
    }
    kv->select = (cn_kv_select)i;
    kv->select_tokens = LIST;
    kv->select_tiles = 3;
}

static uint32_t submit(run *r, uint32_t i, uint32_t n)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
    set_kv(&p.kv, i);
    p.sampling.ignore_eos = true;
    p.sampling.logprobs = 0;
    p.sampling.n = n;
    if (n > 1) {
        p.sampling.temperature = 1;
        p.sampling.has_seed = true;
        p.sampling.seed = 7;
    }
    return run_submit(r, &p);
}

static run *run_all(const char *const *extra)
{
    run *r = run_new(options, extra);
    for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, 1);
    run_finish(r);
    return r;
}

static run *reference;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_PROMPTS), N_PROMPTS);
    reference = run_all(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(reference);
    return 0;
}

/* Equal bits of the log-probabilities show that the lists were the same. */
static void assert_same(const run *got)
{
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same_bits(reference, i, got, i, 0);
}

static void assert_same_with(const char *const *extra)
{
    run *got = run_all(extra);
    assert_same(got);
    run_free(got);
}

static void usage_counts_what_steps_attended_to(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        const cn_usage *u = &reference->samples[i][0].usage;
        const bool selects = i != CN_SELECT_NONE && i < CN_N_SELECTORS;
        assert_true((u->kv.selected_steps > 0) == selects);
        if (!selects) continue;
        assert_int_equal(u->kv.params.select, i);
        assert_true(u->kv.selected_steps < u->completion_tokens);
        assert_true(u->kv.selected_tokens < u->kv.candidate_tokens);
        /* The list and the sinks, and a tail of at least one token. */
        assert_true(u->kv.selected_tokens > u->kv.selected_steps * (LIST + 4));
    }
    run_assert_accounts(reference);
}

/* Selectors read other tokens, so each gives other log-probabilities than full attention. */
static void every_selector_changes_the_result(void **state)
{
    (void)state;
    run *full = run_new(options, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        cn_message m;
        cn_request_params p = run_params(full, prompts[i], &m, MAX_TOKENS);
        p.sampling.ignore_eos = true;
        p.sampling.logprobs = 0;
        run_submit(full, &p);
    }
    run_finish(full);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        const bool same = full->samples[i][0].logprob_hash == reference->samples[i][0].logprob_hash;
        assert_true(same == (i == CN_SELECT_NONE));
    }
    run_free(full);
}

/* A list longer than the context selects nothing. */
static void a_short_sequence_is_dense(void **state)
{
    (void)state;
    run *r =
        run_new(options, (const char *[]){"select-tokens", "4096", "select-tiles", "128", NULL});
    for (uint32_t i = 0; i < CN_N_SELECTORS; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[0], &m, 80);
        p.kv.select = (cn_kv_select)i;
        p.sampling.logprobs = 0;
        run_submit(r, &p);
    }
    run_finish(r);
    for (uint32_t i = 1; i < CN_N_SELECTORS; i++) run_assert_same_bits(r, 0, r, i, 0);
    assert_int_equal(r->stats.selected_steps, 0);
    run_free(r);
}

static void a_request_alone_gives_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"max-num-seqs", "1", NULL});
}

static void chunks_of_a_prompt_give_the_same_tokens(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"max-num-batched-tokens", "48", "max-num-seqs", "16", NULL});
}

static void asynchronous_scheduling_gives_the_same_tokens(void **state)
{
    (void)state;
    run *r = run_all((const char *[]){"async-scheduling", "on", NULL});
    assert_same(r);
    assert_int_equal(r->stats.selected_tokens, reference->stats.selected_tokens);
    run_free(r);
}

/* Decoded tokens come back by decoding, so that their KV is that of the lists. */
static void preemption_changes_nothing(void **state)
{
    (void)state;
    run *r = run_all((const char *[]){"num-gpu-blocks-override", "20", NULL});
    assert_true(r->stats.preemptions > 0 && r->stats.recomputed_tokens > 0);
    assert_same(r);
    run_free(r);
}

/* The second turn finds the prompt in the prefix cache, with its digests; never decoded tokens. */
static void a_prefix_hit_changes_nothing(void **state)
{
    (void)state;
    run *r = run_new(options, (const char *[]){"enable-prefix-caching", "true", NULL});
    for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, 1);
    run_finish(r);
    for (uint32_t i = 0; i < N_PROMPTS; i++) submit(r, i, 1);
    run_finish(r);
    uint32_t n_hits = 0;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        run_assert_same_bits(reference, i, r, i, 0);
        run_assert_same_bits(reference, i, r, N_PROMPTS + i, 0);
        n_hits += r->samples[N_PROMPTS + i][0].usage.cached_tokens > 0;
    }
    assert_true(n_hits >= N_PROMPTS - 2); /* a ring leaves short prompts without a hit */
    run_free(r);
}

/* Samples share the prompt's blocks and copy the ring of the first one. Alone, without a free
 * slot for the copy, a sample waits and gives the same tokens. */
static void forks_give_the_same_tokens(void **state)
{
    (void)state;
    static const uint32_t forked[] = {CN_SELECT_TLS, CN_SELECT_SPADE};
    enum { N_FORKED = sizeof forked / sizeof *forked };
    run *together = run_new(options, NULL);
    run *apart = run_new(options, (const char *[]){"max-num-seqs", "1", NULL});
    for (uint32_t i = 0; i < N_FORKED; i++)
        submit(together, forked[i], 2), submit(apart, forked[i], 2);
    run_finish(together);
    run_finish(apart);
    for (uint32_t i = 0; i < N_FORKED; i++)
        for (uint32_t s = 0; s < 2; s++) {
            assert_true(together->samples[i][s].usage.kv.selected_steps > 0);
            run_assert_same_bits(together, i, apart, i, s);
        }
    run_free(together);
    run_free(apart);
}

static void other_options_change_nothing(void **state)
{
    (void)state;
    assert_same_with((const char *[]){"swap-space", "0.05", "hybrid-scheduling", "false",
                                      "enforce-eager", "true", "batch-invariant", "true",
                                      "enable-prefix-caching", "true", NULL});
}

/* ---- unusual requests ---- */

enum { EDGE_TOKENS = 280, N_EDGE = CN_N_SELECTORS + 3 };

/* The engine's default is `ds` with a list of 16 tokens. Requests 0 to 7 name each selector and
 * have a prompt of one token, fewer than a ring holds. */
static run *run_edges(const char *const *extra)
{
    static const uint32_t prompt[] = {65};
    static const char *const stops[] = {"Answer", "so"};
    run *r = run_new(options, extra);
    for (uint32_t i = 0; i < N_EDGE; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[0], &m, EDGE_TOKENS);
        p.sampling.ignore_eos = true;
        p.sampling.logprobs = 3;
        if (i < CN_N_SELECTORS) {
            p.kv.select = (cn_kv_select)i;
            p.kv.select_tiles = 3;
            p.messages = NULL;
            p.n_messages = 0;
            p.tokens = prompt;
            p.n_tokens = 1;
        } else if (i == CN_N_SELECTORS) {
            p.sampling.max_tokens = 1;
        } else if (i == CN_N_SELECTORS + 1) {
            p.sampling.temperature = 1;
            p.sampling.has_seed = true;
            p.sampling.repetition_penalty = 1.2f;
            p.sampling.frequency_penalty = 0.3f;
        } else {
            p.sampling.stop = stops;
            p.sampling.n_stop = 2;
            p.kv.select = CN_SELECT_NONE;
            p.kv.policy = CN_KV_ZIP;
        }
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

#define EDGE_OPTIONS "kv-select", "ds", "select-tokens", "16", "recent-tokens", "0"

static void unusual_requests_give_the_same_tokens(void **state)
{
    (void)state;
    run *r = run_edges((const char *[]){EDGE_OPTIONS, NULL});
    run *tight = run_edges((const char *[]){EDGE_OPTIONS, "async-scheduling", "on",
                                            "num-gpu-blocks-override", "20", "swap-space", "0.05",
                                            NULL});
    assert_true(tight->stats.preemptions > 0);
    for (uint32_t i = 0; i < N_EDGE; i++) {
        const run_sample *s = &r->samples[i][0];
        run_assert_same_bits(r, i, tight, i, 0);
        const bool selects = i < CN_N_SELECTORS ? i != CN_SELECT_NONE : i == CN_N_SELECTORS + 1;
        assert_true((s->usage.kv.selected_steps > 0) == selects);
    }
    assert_int_equal(r->samples[CN_N_SELECTORS][0].n_tokens, 1);
    assert_int_equal(r->samples[CN_N_SELECTORS + 1][0].usage.kv.params.select, CN_SELECT_DS);
    run_free(r);
    run_free(tight);
}

/* ---- refusals ---- */

static void wrong_starts_are_refused(void **state)
{
    (void)state;
    run_assert_start_refused((const char *[]){"kv-selectors", "ds", "block-size", "32", NULL},
                             "--block-size 32");
    run_assert_start_refused((const char *[]){"kv-select", "tls", "kv-policy", "zip", NULL},
                             "kv select tls with kv policy zip");
    run_assert_start_refused((const char *[]){"kv-select", "ds", "select-dense-layers", "64", NULL},
                             "--select-dense-layers 64");
    run_assert_start_refused((const char *[]){"kv-select", "tls", "select-tiles", "2", NULL},
                             "select_tiles of 2");
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    run *r = run_new(options, (const char *[]){"kv-selectors", "ds,tls,spade", NULL});
    cn_kv_params good, kv;
    cn_engine_default_kv(r->engine, &good);
    good.select = CN_SELECT_TLS;
    kv = good, kv.select = CN_SELECT_QUEST;
    run_assert_kv_refused(r, &kv, "kv.select quest is not enabled: add it to --kv-selectors");
    kv = good, kv.policy = CN_KV_ZIP;
    run_assert_kv_refused(r, &kv, "kv select tls with kv policy zip");
    kv.select = CN_SELECT_NONE; /* needs no entry in --kv-selectors */
    cn_message m;
    cn_request_params p = run_params(r, prompts[0], &m, 1);
    p.kv = kv;
    run_submit(r, &p);
    run_finish(r);
    kv = good, kv.select_tokens = 129;
    run_assert_kv_refused(r, &kv, "kv select_tokens 129: expected 1 to 128; raise --select-tokens");
    kv = good, kv.select_tiles = 5;
    run_assert_kv_refused(r, &kv, "kv select_tiles 5: expected 1 to 4; raise --select-tiles");
    kv = good, kv.sink_tokens = 5;
    run_assert_kv_refused(r, &kv, "kv sinks of 5 tokens with selector tls: expected at most 4");
    kv = good, kv.select = CN_SELECT_SPADE, kv.select_window = 17;
    run_assert_kv_refused(r, &kv, "kv select_window 17: expected 1 to 16; raise --select-window");
    run_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_counts_what_steps_attended_to),
        cmocka_unit_test(every_selector_changes_the_result),
        cmocka_unit_test(a_short_sequence_is_dense),
        cmocka_unit_test(a_request_alone_gives_the_same_tokens),
        cmocka_unit_test(chunks_of_a_prompt_give_the_same_tokens),
        cmocka_unit_test(asynchronous_scheduling_gives_the_same_tokens),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(a_prefix_hit_changes_nothing),
        cmocka_unit_test(forks_give_the_same_tokens),
        cmocka_unit_test(other_options_change_nothing),
        cmocka_unit_test(unusual_requests_give_the_same_tokens),
        cmocka_unit_test(wrong_starts_are_refused),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
