/* test_audit.c - arithmetic of transcripts and agreement over scripted events, and which lines an
 * audit picks. test_forced.c and test_compare.c test the replay itself on an engine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/offline/audit.h"

enum { N = 1000 };

/* Feeds an event of n tokens from `first` on. Token i has logprob -i * step. The best token is the
 * token itself, except at every third token when `parts` is set. */
static void feed(cn_transcript *t, cn_agreement *a, const cn_transcript *against, uint32_t *at,
                 uint32_t first, uint32_t n, float step, bool parts)
{
    static uint32_t tokens[N];
    static cn_logprob top[N];
    static cn_token_logprobs lp[N];
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t token = first + i;
        tokens[i] = token;
        top[i] = (cn_logprob){parts && token % 3 == 0 ? token + 1 : token, 0};
        lp[i] = (cn_token_logprobs){{token, -(float)token * step}, &top[i], 1, 0};
    }
    const cn_event ev = {.tokens = tokens, .n_tokens = n, .logprobs = lp,
                         .last = first + n == N, .finish = CN_FINISH_LENGTH};
    if (t) assert_int_equal(cn_transcript_add(t, &ev), CN_OK);
    if (a) cn_audit_add(a, against, at, &ev);
}

static void agreement_counts_tokens_and_gaps(void **state)
{
    (void)state;
    cn_transcript own = {0};
    feed(&own, NULL, NULL, NULL, 0, 1, 0.5f, false);
    feed(&own, NULL, NULL, NULL, 1, 0, 0.5f, false);
    feed(&own, NULL, NULL, NULL, 1, N - 1, 0.5f, false);
    assert_int_equal(own.n, N);

    cn_agreement a = {0};
    uint32_t at = 0;
    feed(NULL, &a, &own, &at, 0, 600, 0.75f, true);
    feed(NULL, &a, &own, &at, 600, N - 600, 0.75f, true);
    assert_int_equal(at, N);
    assert_int_equal(a.outputs, 1);
    assert_int_equal(a.tokens, N);
    assert_int_equal(a.same_best, N - 334); /* 0, 3 .. 999 */
    /* -0.5 i + 0.75 i summed over i < 1000, a quarter of 499500 */
    assert_true(a.gap_nats == 124875.0);
    assert_true(cn_agreement_gap(&a) == 124.875);
    assert_true(cn_agreement_share(&a) == 0.666);
    cn_transcript_free(&own);
}

static void equal_tokens_need_no_replay(void **state)
{
    (void)state;
    cn_transcript own = {0}, full = {0};
    feed(&own, NULL, NULL, NULL, 0, N, 0.5f, true);
    feed(&full, NULL, NULL, NULL, 0, N, 0.25f, false);
    cn_agreement by_replay = {0}, between = {0};
    uint32_t at = 0;
    feed(NULL, &by_replay, &own, &at, 0, N, 0.25f, false);
    cn_agreement_between(&between, &own, &full);
    assert_int_equal(between.outputs, by_replay.outputs);
    assert_int_equal(between.tokens, by_replay.tokens);
    assert_int_equal(between.same_best, by_replay.same_best);
    assert_true(between.gap_nats == by_replay.gap_nats);
    cn_transcript_free(&own);
    cn_transcript_free(&full);
}

static void an_empty_agreement_is_full(void **state)
{
    (void)state;
    const cn_agreement none = {0};
    assert_true(isnan(cn_agreement_share(&none)));
    assert_true(isnan(cn_agreement_gap(&none)));
}

static uint32_t picked(float percent, uint64_t seed)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < 100000; i++) n += cn_audit_picks(percent, seed, &i, sizeof i);
    return n;
}

static void the_picked_share_is_the_requested_one(void **state)
{
    (void)state;
    assert_int_equal(picked(0, 1), 0);
    assert_int_equal(picked(100, 1), 100000);
    /* 1 % of 100,000, within 6 standard deviations of 31. */
    for (uint64_t seed = 0; seed < 4; seed++) assert_in_range(picked(1, seed), 811, 1189);
    uint32_t same = 0, n = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        const bool a = cn_audit_picks(10, 1, &i, sizeof i);
        assert_int_equal(a, cn_audit_picks(10, 1, &i, sizeof i));
        n += a;
        same += a && cn_audit_picks(10, 2, &i, sizeof i);
    }
    assert_in_range(n, 820, 1180);
    assert_in_range(same, 40, 160); /* another seed picks other lines: 1 % in common */
}

static void a_replay_uses_full_kv_and_no_stop_rules(void **state)
{
    (void)state;
    cn_transcript t = {0};
    feed(&t, NULL, NULL, NULL, 0, N, 1, false);
    const char *const stop[] = {"a"};
    cn_request_params p = {.text = "x", .kv = {.policy = CN_KV_ZIP},
                           .sampling = {.n = 4, .temperature = 1, .stop = stop, .n_stop = 1,
                                        .repetition_max_pattern_size = 9, .min_tokens = 3}};
    cn_audit_params(&p, &t);
    assert_string_equal(p.text, "x");
    assert_ptr_equal(p.forced, t.tokens);
    assert_int_equal(p.n_forced, N);
    assert_int_equal(p.kv.policy, CN_KV_FULL);
    assert_int_equal(p.sampling.n, 1);
    assert_int_equal(p.sampling.max_tokens, N);
    assert_true(p.sampling.ignore_eos);
    assert_int_equal(p.sampling.n_stop + p.sampling.repetition_max_pattern_size, 0);
    cn_transcript_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agreement_counts_tokens_and_gaps),
        cmocka_unit_test(equal_tokens_need_no_replay),
        cmocka_unit_test(an_empty_agreement_is_full),
        cmocka_unit_test(the_picked_share_is_the_requested_one),
        cmocka_unit_test(a_replay_uses_full_kv_and_no_stop_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
