/* test_bpe_part.c - long words in parts: the tokens are those of the whole word, for merges and
 * words of any form, and memory and time of a part do not depend on the word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/bpe_state.h"
#include "tests/lib/paged_batch.h"

enum { MAX_MERGES = 400, N_TABLES = 60, WORDS_PER_TABLE = 10, MAX_WORD = 2000 };

/* Adds up to n merges of bytes of an alphabet. Trained: a merge comes after those of its parts. */
static void add_merges(test_rng *d, cn_bpe *b, uint32_t n, uint32_t letters, bool trained)
{
    uint32_t n_ids = letters;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t known = trained ? n_ids : letters + n;
        const uint32_t left = test_rng_below(d, known), right = test_rng_below(d, known);
        cn_bpe_add_merge(b, left, right, n_ids++);
    }
}

static cn_bpe *make_bpe(test_rng *d, uint32_t letters, bool trained, bool odd)
{
    cn_bpe *b;
    cn_bpe_bytes bytes = {.unknown = CN_BPE_NO_TOKEN};
    const uint32_t n = 1 + test_rng_below(d, MAX_MERGES);
    memset(bytes.ids, 0xff, sizeof bytes.ids);
    memset(bytes.substitutes, 0xff, sizeof bytes.substitutes);
    for (uint32_t i = 0; i < letters; i++) bytes.ids['a' + i] = i;
    if (odd && test_rng_below(d, 2)) bytes.unknown = letters + n;
    bytes.fuse_unknown = test_rng_below(d, 2);
    if (odd) bytes.substitutes['z'][0] = 0, bytes.substitutes['z'][1] = 1;
    assert_int_equal(cn_bpe_create(&b, &bytes, n), CN_OK);
    add_merges(d, b, n, letters, trained);
    return b;
}

/* A word of random bytes, of one repeated piece, or of both. */
static size_t draw_word(test_rng *d, uint32_t letters, bool odd, char *word)
{
    const size_t n = 1 + test_rng_below(d, MAX_WORD), period = 1 + test_rng_below(d, 7);
    const bool repeats = test_rng_below(d, 2);
    for (size_t i = 0; i < n; i++) {
        const bool again = repeats && i >= period && test_rng_below(d, 500) > 0;
        word[i] = again ? word[i - period] : (char)('a' + test_rng_below(d, letters));
        if (odd && !again && test_rng_below(d, 4) == 0) word[i] = test_rng_below(d, 2) ? 'z' : '?';
    }
    return n;
}

static void whole_word(cn_bpe *b, const char *word, size_t n, cn_tokens *out)
{
    cn_bpe_reader r = {0};
    assert_int_equal(cn_bpe_reserve(&b->probe, 2 * n), CN_OK);
    r.ids = b->probe.ids;
    for (size_t i = 0; i < n; i++) cn_bpe_read_byte(&b->bytes, &r, word[i]);
    cn_bpe_read_end(&b->bytes, &r);
    cn_bpe_merge_symbols(b, &b->probe, r.ids, r.len);
    if (r.len > 0) assert_int_equal(cn_bpe_add_symbols(&b->probe, CN_BPE_NOWHERE, out), CN_OK);
}

static uint32_t parts_of(cn_bpe *b, const char *word, size_t n, cn_tokens *out)
{
    uint32_t count = 0;
    for (size_t at = 0, used; at < n; at += used, count++) {
        assert_int_equal(cn_bpe_encode_part(b, word + at, n - at, out, &used), CN_OK);
        assert_true(used > 0 && used <= n - at);
    }
    return count;
}

static void assert_same_tokens(const cn_tokens *a, const cn_tokens *b)
{
    assert_int_equal(a->len, b->len);
    if (a->len) assert_memory_equal(a->ids, b->ids, a->len * sizeof *a->ids);
}

static void check_tables(uint64_t seed, bool trained, bool odd, uint32_t *n_parts)
{
    test_rng d = {seed};
    static char word[MAX_WORD];
    cn_tokens whole = {0}, parts = {0};
    for (int table = 0; table < N_TABLES; table++) {
        const uint32_t letters = 2 + test_rng_below(&d, 6);
        cn_bpe *b = make_bpe(&d, letters, trained, odd);
        for (int i = 0; i < WORDS_PER_TABLE; i++) {
            const size_t n = draw_word(&d, letters, odd, word);
            whole.len = parts.len = 0;
            whole_word(b, word, n, &whole);
            *n_parts += parts_of(b, word, n, &parts);
            b->part_bytes = 16 + test_rng_below(&d, 500);
            assert_same_tokens(&whole, &parts);
        }
        cn_bpe_free(b);
    }
    cn_tokens_free(&whole);
    cn_tokens_free(&parts);
}

static void parts_have_the_tokens_of_the_word(void **state)
{
    (void)state;
    uint32_t n = 0;
    check_tables(1, true, false, &n);
    assert_true(n > 2 * N_TABLES * WORDS_PER_TABLE);
}

static void bytes_without_a_token_do_not_matter(void **state)
{
    (void)state;
    uint32_t n = 0;
    check_tables(2, true, true, &n);
    assert_true(n > N_TABLES * WORDS_PER_TABLE);
}

/* Merges in an order that no trainer makes. */
static void any_merges_are_right(void **state)
{
    (void)state;
    uint32_t n = 0;
    check_tables(3, false, false, &n);
}

static void a_part_of_a_long_word_is_small(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20 };
    test_rng d = {4};
    cn_bpe *b = make_bpe(&d, 2, true, false);
    char *word = malloc(BYTES);
    assert_non_null(word);
    memset(word, 'a', BYTES);
    cn_tokens out = {0};
    size_t used = 0;
    for (size_t at = 0; at < BYTES; at += used) {
        assert_int_equal(cn_bpe_encode_part(b, word + at, BYTES - at, &out, &used), CN_OK);
        assert_true(used <= 4 * b->part_bytes);
    }
    assert_true(b->work.cap <= 8 * b->part_bytes);
    cn_tokens_free(&out);
    free(word);
    cn_bpe_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_tokens_of_the_word),
        cmocka_unit_test(bytes_without_a_token_do_not_matter),
        cmocka_unit_test(any_merges_are_right),
        cmocka_unit_test(a_part_of_a_long_word_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
