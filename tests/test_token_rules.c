/* test_token_rules.c - allowed_token_ids and bad_words: the tokens that the rules ban, and engines
 * that keep the rules in any schedule, beside structured output and min_tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/utf8.h"
#include "engine/engine_state.h"
#include "tests/lib/run_engine.h"

enum { N_REQUESTS = 12, VOCAB = 70 };

static cn_tokenizer *load_tokenizer(void)
{
    cn_tokenizer *t;
    assert_int_equal(cn_tokenizer_load(&t, "examples/tiny-reasoner"), CN_OK);
    return t;
}

static cn_tokens encode(cn_tokenizer *t, const char *text)
{
    cn_tokens out = {0};
    assert_int_equal(cn_tokenizer_encode(t, text, strlen(text), false, &out), CN_OK);
    return out;
}

static cn_status make_rules(cn_token_rules *out, const cn_sampling *s, cn_tokenizer *t,
                            uint32_t vocab)
{
    cn_bad_words *bad;
    CN_TRY(cn_bad_words_make(&bad, s, t, vocab, NULL));
    const cn_status status = cn_token_rules_make(out, s, bad, vocab);
    cn_bad_words_free(bad); /* the rules share it */
    return status;
}

static uint32_t count_allowed(const cn_token_rules *r, const uint32_t *output, uint32_t n,
                              uint32_t vocab, uint32_t *mask)
{
    uint32_t count = 0;
    cn_mask_fill(mask, vocab);
    cn_token_rules_apply(r, output, n, vocab, mask);
    for (uint32_t i = 0; i < vocab; i++) count += mask[i / 32] >> i % 32 & 1;
    return count;
}

static void only_listed_tokens_are_allowed(void **state)
{
    (void)state;
    const uint32_t ids[] = {3, 64, 64, 69};
    const cn_sampling s = {.allowed_token_ids = ids, .n_allowed_token_ids = 4};
    cn_token_rules r;
    uint32_t mask[3];
    cn_mask_fill(mask, VOCAB);
    assert_int_equal(mask[2], (1 << (VOCAB - 64)) - 1);
    assert_int_equal(make_rules(&r, &s, NULL, VOCAB), CN_OK);
    assert_true(cn_token_rules_apply_ever(&r));
    assert_int_equal(count_allowed(&r, NULL, 0, VOCAB, mask), 3);
    assert_true(mask[0] == 1 << 3 && mask[1] == 0 && mask[2] == (1 | 1 << 5));
    cn_token_rules_free(&r);
    const cn_sampling none = {.n = 1};
    assert_int_equal(make_rules(&r, &none, NULL, VOCAB), CN_OK);
    assert_false(cn_token_rules_apply_ever(&r));
}

static bool is_banned(const cn_token_rules *r, const cn_tokens *word, uint32_t vocab,
                      uint32_t *mask)
{
    const uint32_t last = word->ids[word->len - 1];
    count_allowed(r, word->ids, (uint32_t)word->len - 1, vocab, mask);
    return !(mask[last / 32] >> last % 32 & 1);
}

/* Every word of the vocabulary, at the start of the output and after a space, whatever the numbers
 * of tokens of the two. */
static void words_are_banned_in_both_spellings(void **state)
{
    (void)state;
    cn_tokenizer *t = load_tokenizer();
    const uint32_t vocab = cn_tokenizer_vocab_size(t);
    uint32_t *mask = cn_calloc(cn_mask_words(vocab), sizeof *mask);
    uint32_t n_other_length = 0, n_covered = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        const char *bytes;
        size_t n;
        bool special;
        char spaced[64];
        if (!cn_tokenizer_token(t, id, &bytes, &n, &special) || special || n > 40) continue;
        snprintf(spaced, sizeof spaced, " %.*s", (int)n, bytes);
        const char *bare = spaced + strspn(spaced, CN_WHITE_SPACE);
        if (!*bare || cn_utf8_valid_prefix(bare, strlen(bare)) < strlen(bare)) continue;
        const cn_sampling s = {.bad_words = &bare, .n_bad_words = 1};
        cn_tokens a = encode(t, bare), b = encode(t, bare - 1);
        cn_token_rules r;
        assert_int_equal(make_rules(&r, &s, t, vocab), CN_OK);
        if (!is_banned(&r, &a, vocab, mask)) fail_msg("\"%s\" is not banned", bare);
        if (!is_banned(&r, &b, vocab, mask)) fail_msg("\"%s\" is not banned", bare - 1);
        n_other_length += cn_bad_words_count(r.bad) == 2 && a.len != b.len;
        n_covered += cn_bad_words_count(r.bad) == 1;
        cn_token_rules_free(&r);
        cn_tokens_free(&a);
        cn_tokens_free(&b);
    }
    assert_true(n_other_length > 100 && n_covered > 0);
    cn_free(mask);
    cn_tokenizer_free(t);
}

static void a_word_loses_its_first_spaces(void **state)
{
    (void)state;
    static const char *const words[] = {"  and so on"};
    const cn_sampling s = {.bad_words = words, .n_bad_words = 1};
    cn_tokenizer *t = load_tokenizer();
    const uint32_t vocab = cn_tokenizer_vocab_size(t);
    uint32_t *mask = cn_calloc(cn_mask_words(vocab), sizeof *mask);
    cn_tokens bare = encode(t, "and so on");
    cn_token_rules r;
    assert_int_equal(make_rules(&r, &s, t, vocab), CN_OK);
    assert_true(is_banned(&r, &bare, vocab, mask));
    cn_token_rules_free(&r);
    cn_tokens_free(&bare);
    cn_free(mask);
    cn_tokenizer_free(t);
}

/* ---- in an engine ---- */

static const uint32_t few[] = {40, 41, 42, 43, 44, 45, 46, 47, 300, 301};
enum { N_FEW = sizeof few / sizeof *few };
static const char *const bad[] = {"a", "e", "the", "is", "and", "Compute", "0", "1", "2", "3"};
enum { N_BAD = sizeof bad / sizeof *bad };

static void submit_all(run *r)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        cn_message message;
        cn_request_params p = run_params(r, "Compute 12 * 34 by hand.", &message, 30);
        p.sampling.temperature = i % 2 ? 2.0f : 0.0f;
        p.sampling.has_seed = true;
        p.sampling.seed = i;
        p.sampling.n = 1 + i % 2;
        if (i % 3 == 0) p.sampling.allowed_token_ids = few, p.sampling.n_allowed_token_ids = N_FEW;
        if (i % 3 == 1) p.sampling.bad_words = bad, p.sampling.n_bad_words = N_BAD;
        if (i == 4 || i == 7)
            p.structure = (cn_structure){CN_STRUCTURE_REGEX, "[a-z0-9 ]{20}", NULL, false};
        run_submit(r, &p);
    }
    run_finish(r);
}

static bool contains(const run_sample *s, const cn_tokens *word)
{
    for (uint32_t i = 0; i + word->len <= s->n_tokens; i++)
        if (memcmp(s->tokens + i, word->ids, word->len * sizeof *word->ids) == 0) return true;
    return false;
}

static bool is_few(uint32_t token)
{
    for (uint32_t i = 0; i < N_FEW; i++)
        if (few[i] == token) return true;
    return false;
}

static void check_rules(cn_tokenizer *t, uint32_t i, const run_sample *s, uint32_t *n_bad)
{
    assert_true(s->n_tokens > 0 && s->finish != CN_FINISH_ERROR);
    for (uint32_t k = 0; i % 3 == 0 && k < s->n_tokens; k++) assert_true(is_few(s->tokens[k]));
    for (uint32_t k = 0; k < N_BAD; k++) {
        cn_tokens word = encode(t, bad[k]);
        if (i % 3 == 1) assert_false(contains(s, &word));
        if (i % 3 == 2) *n_bad += contains(s, &word);
        cn_tokens_free(&word);
    }
}

static void rules_hold_in_any_schedule(void **state)
{
    (void)state;
    static run sync, async, small;
    cn_tokenizer *t = load_tokenizer();
    uint32_t n_bad = 0;
    run_open(&sync, (const char *[]){"async-scheduling", "off", NULL});
    run_open(&async, (const char *[]){"async-scheduling", "on", NULL});
    run_open(&small, (const char *[]){"async-scheduling", "on", "max-num-seqs", "3", NULL});
    submit_all(&sync);
    submit_all(&async);
    submit_all(&small);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        for (uint32_t s = 0; s < 1 + i % 2; s++) {
            run_assert_same(&sync, i, &async, i, s);
            run_assert_same(&sync, i, &small, i, s);
            check_rules(t, i, &sync.samples[i][s], &n_bad);
        }
    assert_true(n_bad > 0); /* without rules the words appear */
    cn_tokenizer_free(t);
    run_close(&sync);
    run_close(&async);
    run_close(&small);
}

/* A token whose text, twice, is the token twice. */
static uint32_t find_repeatable(cn_tokenizer *t, char *twice, size_t size)
{
    for (uint32_t id = 0; id < cn_tokenizer_vocab_size(t); id++) {
        const char *bytes;
        size_t n;
        bool special;
        if (!cn_tokenizer_token(t, id, &bytes, &n, &special) || special || n != 1) continue;
        if (*bytes <= ' ' || *bytes > '~') continue;
        snprintf(twice, size, "%c%c", *bytes, *bytes);
        cn_tokens ids = encode(t, twice);
        const bool found = ids.len == 2 && ids.ids[0] == id && ids.ids[1] == id;
        cn_tokens_free(&ids);
        if (found) return id;
    }
    fail_msg("no token is repeatable");
    return 0;
}

/* A request that no token can continue fails alone. */
static void a_request_without_tokens_left_fails(void **state)
{
    (void)state;
    static run r;
    for (int async = 0; async < 2; async++) {
        run_open(&r, (const char *[]){"async-scheduling", async ? "on" : "off", NULL});
        char twice[8];
        const char *const words[] = {twice};
        const uint32_t token = find_repeatable(r.engine->tokenizer, twice, sizeof twice);
        cn_message message;
        cn_request_params p = run_params(&r, "x", &message, 10);
        const uint32_t other = run_submit(&r, &p);
        p.sampling.allowed_token_ids = &token;
        p.sampling.n_allowed_token_ids = 1;
        p.sampling.ignore_eos = true;
        const uint32_t whole = run_submit(&r, &p);
        p.sampling.bad_words = words;
        p.sampling.n_bad_words = 1;
        const uint32_t stuck = run_submit(&r, &p);
        const uint32_t ids[] = {r.engine->eos[0], token};
        p.sampling.allowed_token_ids = ids;
        p.sampling.n_allowed_token_ids = 2;
        p.sampling.min_tokens = 3; /* EOS is left, and banned until then */
        const uint32_t early = run_submit(&r, &p);
        run_finish(&r);
        assert_int_equal(r.samples[early][0].finish, CN_FINISH_ERROR);
        assert_int_equal(r.samples[early][0].tokens[0], token);
        assert_int_equal(r.samples[whole][0].n_tokens, 10);
        assert_int_equal(r.samples[whole][0].finish, CN_FINISH_LENGTH);
        assert_int_equal(r.samples[stuck][0].finish, CN_FINISH_ERROR);
        assert_int_equal(r.samples[stuck][0].tokens[0], token);
        assert_int_not_equal(r.samples[other][0].finish, CN_FINISH_ERROR);
        run_close(&r);
    }
}

/* EOS is banned below min_tokens, and ends the output then. */
static void rules_and_min_tokens_hold_together(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){NULL});
    cn_message message;
    cn_request_params p = run_params(&r, "x", &message, 20);
    const uint32_t ids[] = {r.engine->eos[0], 300};
    const cn_logit_bias bias = {300, -100};
    p.sampling.allowed_token_ids = ids;
    p.sampling.n_allowed_token_ids = 2;
    p.sampling.logit_bias = &bias;
    p.sampling.n_logit_bias = 1;
    p.sampling.min_tokens = 4;
    const uint32_t i = run_submit(&r, &p);
    run_finish(&r);
    assert_int_equal(r.samples[i][0].finish, CN_FINISH_STOP);
    assert_int_equal(r.samples[i][0].n_tokens, 5);
    p.sampling.n_allowed_token_ids = 1;
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "allowed_token_ids: expected a token that"));
    p.sampling.min_tokens = 0;
    p.structure = (cn_structure){CN_STRUCTURE_CHOICE, "[\"yes\",\"no\"]", NULL, false};
    run_assert_invalid(&r, &p, "allowed_token_ids", "expected a token that structured output");
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_listed_tokens_are_allowed),
        cmocka_unit_test(words_are_banned_in_both_spellings),
        cmocka_unit_test(a_word_loses_its_first_spaces),
        cmocka_unit_test(rules_hold_in_any_schedule),
        cmocka_unit_test(a_request_without_tokens_left_fails),
        cmocka_unit_test(rules_and_min_tokens_hold_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
