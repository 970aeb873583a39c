/* test_stop.c - ends of a sample, compared with brute force where several ends are possible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/stop.h"
#include "tests/lib/defaults.h"

static cn_stop_rules *create_rules(const cn_sampling *p, uint32_t max_output)
{
    static const uint32_t eos[] = {100, 101};
    cn_stop_opts o = {p, eos, 2, max_output};
    cn_stop_rules *rules = NULL;
    assert_int_equal(cn_stop_rules_create(&rules, &o), CN_OK);
    return rules;
}

static cn_stop_rules *kept; /* of the sample that create() returned last */

static cn_stop *create(const cn_sampling *p, uint32_t max_output)
{
    cn_stop *s = NULL;
    kept = create_rules(p, max_output);
    assert_int_equal(cn_stop_create(&s, kept), CN_OK);
    return s;
}

static void destroy(cn_stop *s)
{
    cn_stop_free(s);
    cn_stop_rules_free(kept);
    kept = NULL;
}

/* ---- tokens ---- */

static void eos_stop_tokens_and_length_end(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    static const uint32_t ids[] = {7, 8};
    p.stop_token_ids = ids;
    p.n_stop_token_ids = 2;
    cn_stop *s = create(&p, 3);
    assert_int_equal(cn_stop_push_token(s, 1), CN_FINISH_NONE);
    assert_int_equal(cn_stop_push_token(s, 101), CN_FINISH_STOP);
    assert_int_equal(cn_stop_token(s), -1);
    assert_int_equal(cn_stop_push_token(s, 8), CN_FINISH_STOP); /* comes before the length */
    assert_int_equal(cn_stop_token(s), 8);
    destroy(s);

    p.ignore_eos = true;
    s = create(&p, 2);
    assert_int_equal(cn_stop_push_token(s, 100), CN_FINISH_NONE);
    assert_int_equal(cn_stop_push_token(s, 100), CN_FINISH_LENGTH);
    destroy(s);
}

static void min_tokens_prevents_every_end_except_the_length(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    p.min_tokens = 3;
    p.repetition_max_pattern_size = 1;
    p.repetition_min_count = 2;
    cn_stop *s = create(&p, 10);
    assert_true(cn_stop_bans_apply(s, 0));
    assert_int_equal(cn_stop_push_token(s, 100), CN_FINISH_NONE);
    assert_int_equal(cn_stop_push_token(s, 100), CN_FINISH_NONE);
    assert_true(cn_stop_bans_apply(s, 0)); /* the third token must not be an EOS */
    assert_int_equal(cn_stop_push_token(s, 5), CN_FINISH_NONE);
    assert_false(cn_stop_bans_apply(s, 0));
    assert_int_equal(cn_stop_push_token(s, 100), CN_FINISH_STOP);
    destroy(s);
    s = create(&p, 2); /* the context may be shorter than min_tokens */
    assert_int_equal(cn_stop_push_token(s, 1), CN_FINISH_NONE);
    assert_int_equal(cn_stop_push_token(s, 1), CN_FINISH_LENGTH);
    destroy(s);
}

/* The check of vLLM, over the whole list. */
static bool ends_in_repetition(const uint32_t *t, uint32_t n, uint32_t least, uint32_t most,
                               uint32_t count)
{
    for (uint32_t size = least; size <= most && size * count <= n; size++) {
        bool same = true;
        for (uint32_t i = n - size * (count - 1); i < n && same; i++) same = t[i] == t[i - size];
        if (same) return true;
    }
    return false;
}

static void repetition_equals_brute_force(void **state)
{
    (void)state;
    unsigned seed = 1;
    for (int round = 0; round < 400; round++) {
        cn_sampling p = default_sampling();
        uint32_t most = 1 + (uint32_t)rand_r(&seed) % 6;
        uint32_t least = (uint32_t)rand_r(&seed) % (most + 1);
        p.repetition_max_pattern_size = most;
        p.repetition_min_pattern_size = least;
        p.repetition_min_count = 2 + (uint32_t)rand_r(&seed) % 3;
        cn_stop *s = create(&p, 1000);
        uint32_t tokens[60], letters = 1 + (uint32_t)rand_r(&seed) % 3;
        for (uint32_t n = 0; n < 60; n++) {
            tokens[n] = (uint32_t)rand_r(&seed) % letters;
            bool want = ends_in_repetition(tokens, n + 1, least ? least : 1, most,
                                           p.repetition_min_count);
            assert_int_equal(cn_stop_push_token(s, tokens[n]),
                             want ? CN_FINISH_REPETITION : CN_FINISH_NONE);
        }
        destroy(s);
    }
}

/* ---- text ---- */

/* Feeds text in pieces. Returns the length of the text that remains, or -1 when no stop matched.
 * `held` must cover the longest end of the text that starts a stop string. */
static long feed(cn_stop *s, const char *text, size_t piece, const char **reason)
{
    size_t n = strlen(text);
    for (size_t at = 0; at < n; at += piece) {
        size_t len = n - at < piece ? n - at : piece;
        cn_stop_match m;
        cn_stop_push_token(s, 1);
        if (!cn_stop_push_text(s, text + at, len, &m)) continue;
        *reason = m.text;
        return (long)(at + m.end - m.length);
    }
    return -1;
}

static void stops_match_across_tokens_earliest_first(void **state)
{
    (void)state;
    static const struct {
        const char *stops[3];
        const char *text, *reason;
        long left;
    } cases[] = {
        {{"stop"}, "never st op", NULL, -1},
        {{"stop"}, "ststop", "stop", 2},
        {{"aab"}, "aaab", "aab", 1},
        {{"abcdef", "cd"}, "xabcdef", "cd", 3}, /* ends first */
        {{"b", "ab"}, "xab", "ab", 1},          /* same end: the longer */
        {{"ab", "b"}, "xab", "ab", 1},
        {{"\n\n", "END"}, "a\nb\n\nEND", "\n\n", 3},
        {{"é"}, "èé!", "é", 2},
        {{"abab"}, "abacabab", "abab", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t piece = 1; piece < 9; piece++) {
            cn_sampling p = default_sampling();
            p.stop = cases[i].stops;
            while (p.n_stop < 3 && p.stop[p.n_stop]) p.n_stop++;
            cn_stop *s = create(&p, 1000);
            const char *reason = NULL;
            assert_int_equal(feed(s, cases[i].text, piece, &reason), cases[i].left);
            if (cases[i].reason) assert_string_equal(reason, cases[i].reason);
            destroy(s);
        }
    }
}

static void held_text_is_the_longest_start_of_a_stop(void **state)
{
    (void)state;
    static const char *const stops[] = {"aba", "cc", "bcab"};
    cn_sampling p = default_sampling();
    p.stop = stops;
    p.n_stop = 3;
    p.min_tokens = 1000; /* matches do not end the sample */
    unsigned seed = 3;
    char text[200];
    cn_stop *s = create(&p, 2000);
    for (size_t n = 0; n < sizeof text;) {
        text[n++] = (char)('a' + rand_r(&seed) % 3);
        cn_stop_match m;
        cn_stop_push_token(s, 1);
        assert_false(cn_stop_push_text(s, text + n - 1, 1, &m));
        size_t want = 0;
        for (int j = 0; j < 3; j++) {
            for (size_t k = 1; k < strlen(stops[j]) && k <= n; k++)
                if (memcmp(text + n - k, stops[j], k) == 0 && k > want) want = k;
        }
        assert_int_equal(cn_stop_held(s), want);
    }
    cn_stop_cut_text(s);
    assert_int_equal(cn_stop_held(s), 0);
    destroy(s);
}

static void stop_strings_wait_for_min_tokens(void **state)
{
    (void)state;
    static const char *const stops[] = {"ab"};
    cn_sampling p = default_sampling();
    p.stop = stops;
    p.n_stop = 1;
    p.min_tokens = 3;
    cn_stop *s = create(&p, 100);
    cn_stop_match m;
    const char *pieces[] = {"ab", "ab", "aba"};
    for (int i = 0; i < 3; i++) {
        cn_stop_push_token(s, 1);
        assert_false(cn_stop_push_text(s, pieces[i], strlen(pieces[i]), &m));
    }
    cn_stop_push_token(s, 1);
    assert_true(cn_stop_push_text(s, "b", 1, &m)); /* starts before, ends after */
    assert_int_equal(m.length, 2);
    assert_int_equal(m.end, 1);
    destroy(s);
}

/* Samples of a request share the rules and keep their own place in them. */
static void samples_share_the_rules(void **state)
{
    (void)state;
    enum { N_STOPS = 64, N_SAMPLES = 32 };
    static char texts[N_STOPS][1025];
    const char *stops[N_STOPS];
    for (int i = 0; i < N_STOPS; i++) {
        memset(texts[i], 'a' + i % 26, sizeof texts[i] - 1);
        texts[i][0] = 'A';
        stops[i] = texts[i];
    }
    cn_sampling p = default_sampling();
    p.stop = stops;
    p.n_stop = N_STOPS;
    cn_stop_rules *rules = create_rules(&p, 5000);
    cn_stop *samples[N_SAMPLES];
    const uint64_t allocs = cn_alloc_count();
    for (int i = 0; i < N_SAMPLES; i++)
        assert_int_equal(cn_stop_create(&samples[i], rules), CN_OK);
    assert_true(cn_alloc_count() - allocs <= 4 * N_SAMPLES);
    cn_stop_match m;
    for (int i = 0; i < N_SAMPLES; i++) cn_stop_push_token(samples[i], 1);
    assert_false(cn_stop_push_text(samples[0], texts[2], 1000, &m));
    assert_int_equal(cn_stop_held(samples[0]), 1000);
    assert_int_equal(cn_stop_held(samples[1]), 0);
    assert_false(cn_stop_push_text(samples[1], texts[2] + 1000, 24, &m));
    assert_true(cn_stop_push_text(samples[0], texts[2] + 1000, 24, &m));
    assert_int_equal(m.length, 1024);
    for (int i = 0; i < N_SAMPLES; i++) cn_stop_free(samples[i]);
    cn_stop_rules_free(rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eos_stop_tokens_and_length_end),
        cmocka_unit_test(min_tokens_prevents_every_end_except_the_length),
        cmocka_unit_test(repetition_equals_brute_force),
        cmocka_unit_test(stops_match_across_tokens_earliest_first),
        cmocka_unit_test(held_text_is_the_longest_start_of_a_stop),
        cmocka_unit_test(stop_strings_wait_for_min_tokens),
        cmocka_unit_test(samples_share_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
