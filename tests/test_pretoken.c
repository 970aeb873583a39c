/* test_pretoken.c - the hand-written ASCII split compared with PCRE2, and PCRE2 compared with known
 * words of the regular expressions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/text/pretoken.h"

static cn_pretoken *create(cn_split_rule rule)
{
    cn_pretoken *p;
    if (cn_pretoken_create(&p, rule) != CN_OK) fail_msg("%s", cn_last_error());
    return p;
}

/* Checks the words of a text; `words` separates them with '|'. */
static void expect_words(cn_split_rule rule, const char *text, const char *words)
{
    cn_pretoken *p = create(rule);
    cn_buf got = {0};
    size_t n = strlen(text);
    for (size_t at = 0, end; at < n; at = end) {
        assert_int_equal(cn_pretoken_next(p, text, n, at, &end), CN_OK);
        assert_true(end > at && end <= n);
        assert_int_equal(cn_buf_addf(&got, "%s%.*s", at ? "|" : "", (int)(end - at), text + at),
                         CN_OK);
    }
    assert_string_equal(got.data, words);
    cn_buf_free(&got);
    cn_pretoken_free(p);
}

static void known_words(void **state)
{
    (void)state;
    expect_words(CN_SPLIT_GPT2, "Hello world's 123 !!", "Hello| world|'s| 123| !!");
    expect_words(CN_SPLIT_GPT2, "IT'S x\n\n  y", "IT|'|S| x|\n\n | y");
    expect_words(CN_SPLIT_GPT2, "a  ", "a|  ");
    expect_words(CN_SPLIT_QWEN2, "IT'S 123.", "IT|'S| |1|2|3|.");
    expect_words(CN_SPLIT_QWEN2, "x =\r\n\r\n y", "x| =\r\n\r\n| y");
    expect_words(CN_SPLIT_QWEN2, "(foo)\tbar  baz", "(foo|)|\tbar| | baz");
    expect_words(CN_SPLIT_QWEN2, "a \n \n b", "a| \n \n| b");
    expect_words(CN_SPLIT_QWEN2, "é'ſ中 文", "é|'ſ|中| 文");
    expect_words(CN_SPLIT_QWEN2, "a\u180Eb\u3000c", "a|\u180Eb|\u3000c");
    expect_words(CN_SPLIT_LLAMA3, "1234567 we'Re", "123|456|7| we|'Re");
    expect_words(CN_SPLIT_LLAMA3, "١٢٣٤ \U0001D2C0", "١٢٣|٤| |\U0001D2C0");
}

static void rules_are_recognised_by_their_text(void **state)
{
    (void)state;
    static const char qwen2[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    cn_split_rule rule;
    assert_true(cn_split_rule_of_regex(qwen2, &rule));
    assert_int_equal(rule, CN_SPLIT_QWEN2);
    assert_false(cn_split_rule_of_regex("\\s+", &rule));
    assert_false(cn_split_rule_of_regex("", &rule));
}

static uint32_t draw(uint64_t *seed, uint32_t n)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

/* Draws texts from a few kinds of characters, so that runs and their ends are frequent. */
static size_t draw_text(uint64_t *seed, char *text)
{
    static const char *const chars[] = {
        "a",  "s", "T", "l",  "re",   "'S",   "'", "1",  "9",      " ",      " ", "\n", "\r",
        "\t", ".", "=", "\v", "\x01", "\x1f", "é", "中", "\u3000", "\u0301", "ſ", "½",  "🙂",
    };
    enum { KINDS = sizeof chars / sizeof *chars };
    const char *few[4];
    for (int i = 0; i < 4; i++) few[i] = chars[draw(seed, KINDS)];
    size_t n = 0;
    for (uint32_t i = 0, length = 1 + draw(seed, 24); i < length; i++) {
        const char *c = few[draw(seed, 4)];
        memcpy(text + n, c, strlen(c));
        n += strlen(c);
    }
    return n;
}

static void ascii_words_equal_those_of_pcre2(void **state)
{
    (void)state;
    for (cn_split_rule rule = CN_SPLIT_GPT2; rule <= CN_SPLIT_LLAMA3; rule++) {
        cn_pretoken *p = create(rule);
        uint64_t seed = 1 + rule;
        for (int i = 0; i < 30000; i++) {
            char text[128];
            size_t n = draw_text(&seed, text);
            for (size_t at = 0, end, want; at < n; at = end) {
                assert_int_equal(cn_pretoken_next(p, text, n, at, &end), CN_OK);
                assert_int_equal(cn_pretoken_next_pcre2(p, text, n, at, &want), CN_OK);
                if (end != want)
                    fail_msg("rule %d: '%.*s' at %zu: %zu, PCRE2 %zu", (int)rule, (int)n, text, at,
                             end, want);
            }
        }
        cn_pretoken_free(p);
    }
}

/* A rule matches any text but the empty one. */
static void a_failed_split_is_told_in_our_words(void **state)
{
    (void)state;
    size_t end;
    cn_pretoken *p = create(CN_SPLIT_GPT2);
    assert_int_equal(cn_pretoken_next_pcre2(p, "ab", 2, 2, &end), CN_ERR_ARG);
    assert_string_equal(cn_last_error(),
                        "a text of 2 bytes cannot be split into words after byte 2");
    cn_pretoken_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_words),
        cmocka_unit_test(rules_are_recognised_by_their_text),
        cmocka_unit_test(ascii_words_equal_those_of_pcre2),
        cmocka_unit_test(a_failed_split_is_told_in_our_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
