/* test_nfc.c - normalization form C in pieces compared with utf8proc over the whole text. Proves
 * for every code point that a text can be cut where cn_nfc_is_boundary says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <utf8proc.h>

#include "engine/base/utf8.h"
#include "engine/text/nfc.h"

enum { CODE_POINTS = 0x110000 };

static bool is_surrogate(uint32_t cp) { return cp >= 0xD800 && cp <= 0xDFFF; }

/* Marks every code point that is not the first of some canonical decomposition. Only these, and
 * Hangul vowels and finals, compose with the characters before them. */
static bool *joining(void)
{
    bool *joins = calloc(CODE_POINTS, 1);
    assert_non_null(joins);
    for (int32_t cp = 0; cp < CODE_POINTS; cp++) {
        int32_t parts[8];
        if (is_surrogate((uint32_t)cp)) continue;
        utf8proc_ssize_t n =
            utf8proc_decompose_char(cp, parts, 8, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
        for (utf8proc_ssize_t i = 1; i < n; i++) joins[parts[i]] = true;
    }
    return joins;
}

static void boundaries_do_not_change_or_compose(void **state)
{
    (void)state;
    bool *joins = joining();
    size_t boundaries = 0;
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) {
        if (is_surrogate(cp) || !cn_nfc_is_boundary(cp) || cn_nfc_is_younger(cp)) continue;
        boundaries++;
        utf8proc_uint8_t text[8] = {0};
        cn_utf8_write((char *)text, cp);
        if (joins[cp]) fail_msg("U+%04X composes with the character before it", cp);
        if (utf8proc_get_property((int32_t)cp)->combining_class) fail_msg("U+%04X is a mark", cp);
        if (cp == 0) continue; /* ends a C string */
        utf8proc_uint8_t *normal = utf8proc_NFC(text);
        if (strcmp((char *)normal, (char *)text) != 0) fail_msg("U+%04X changes", cp);
        free(normal);
    }
    assert_true(boundaries > 40000);
    free(joins);
}

/* Code points added after Unicode 9 that utf8proc would reorder or compose must be known as
 * younger. The comparison with the package tokenizers (golden/tokenizer/compare.py) checks that. */
static void pieces_are_normalized_like_the_whole_text(void **state)
{
    (void)state;
    static const uint32_t pool[] = {
        'a',    'e',    'n',    ' ',    '\n',   0xE9,   0x300,  0x301,   0x323,   0x307,  0x327,
        0x345,  0x334,  0x308,  0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01,  0x958,   0x915,  0x93C,
        0x212B, 0x2126, 0xFB1D, 0x1F71, 0x2ADC, 0x4E2D, 0xF900, 0x1D15E, 0x1F469, 0x200D, 0x0F73,
        0x0344, 0x0B4B, 0x3046, 0x3099, 0x1E69, 0x0F71, 0x0F72, 0x40000};
    cn_nfc w = {0};
    uint64_t seed = 5;
    for (int round = 0; round < 60000; round++) {
        char text[256];
        size_t n = 0, got_n;
        seed = seed * UINT64_C(6364136223846793005) + 1;
        for (uint64_t i = seed >> 60; i-- > 0;) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            n += cn_utf8_write(text + n, pool[(seed >> 33) % (sizeof pool / sizeof *pool)]);
        }
        text[n] = '\0';
        utf8proc_uint8_t *want = utf8proc_NFC((utf8proc_uint8_t *)text);
        const char *got;
        assert_int_equal(cn_nfc_apply(&w, text, n, &got, &got_n), CN_OK);
        if (got_n != strlen((char *)want) || memcmp(got, want, got_n) != 0)
            fail_msg("round %d: %s", round, text);
        free(want);
    }
    cn_nfc_free(&w);
}

/* ---- Hangul, as the Unicode standard composes it (section 3.12) ---- */

enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7 };
enum { L_COUNT = 19, V_COUNT = 21, T_COUNT = 28, S_COUNT = L_COUNT * V_COUNT * T_COUNT };

/* The character that `last` and `cp` compose to, or 0. */
static uint32_t composed_hangul(uint32_t last, uint32_t cp)
{
    if (last >= L_BASE && last < L_BASE + L_COUNT && cp >= V_BASE && cp < V_BASE + V_COUNT)
        return S_BASE + ((last - L_BASE) * V_COUNT + (cp - V_BASE)) * T_COUNT;
    const bool open = last >= S_BASE && last < S_BASE + S_COUNT && (last - S_BASE) % T_COUNT == 0;
    return open && cp > T_BASE && cp < T_BASE + T_COUNT ? last + (cp - T_BASE) : 0;
}

static size_t compose_hangul(const uint32_t *cps, size_t n, char *out)
{
    uint32_t done[16];
    size_t n_done = 0, bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t one = n_done ? composed_hangul(done[n_done - 1], cps[i]) : 0;
        if (one)
            done[n_done - 1] = one;
        else
            done[n_done++] = cps[i];
    }
    for (size_t i = 0; i < n_done; i++) bytes += cn_utf8_write(out + bytes, done[i]);
    return bytes;
}

/* utf8proc cannot be the reference here: it drops U+11A7 after a syllable without a final. */
static void hangul_composes_as_the_standard_says(void **state)
{
    (void)state;
    static const uint32_t pool[] = {0x1100, 0x1112, 0x1113, 0x1161, 0x1175, 0x1176, 0x11A7, 0x11A7,
                                    0x11A8, 0x11C2, 0x11C3, 0xAC00, 0xAC00, 0xAC01, 0xAC1C, 0xD788,
                                    0xD7A3, 0xD7B0, 0xD7CB, 0xA960, 'a',    0x4E2D};
    cn_nfc w = {0};
    uint64_t seed = 11;
    for (int round = 0; round < 60000; round++) {
        uint32_t cps[15];
        char text[64], want[64];
        size_t count = 0, n = 0, got_n;
        seed = seed * UINT64_C(6364136223846793005) + 1;
        for (uint64_t i = seed >> 60; i-- > 0;) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            cps[count] = pool[(seed >> 33) % (sizeof pool / sizeof *pool)];
            n += cn_utf8_write(text + n, cps[count++]);
        }
        const size_t want_n = compose_hangul(cps, count, want);
        const char *got;
        assert_int_equal(cn_nfc_apply(&w, text, n, &got, &got_n), CN_OK);
        if (got_n != want_n || memcmp(got, want, got_n) != 0)
            fail_msg("round %d: %.*s", round, (int)n, text);
    }
    cn_nfc_free(&w);
}

static void text_in_form_c_is_returned_uncopied(void **state)
{
    (void)state;
    static const char text[] = "plain, déjà vu, 中文, Привет, 한국어, Việt";
    cn_nfc w = {0};
    const char *out;
    size_t n;
    assert_int_equal(cn_nfc_apply(&w, text, sizeof text - 1, &out, &n), CN_OK);
    assert_ptr_equal(out, text);
    assert_int_equal(n, sizeof text - 1);
    cn_nfc_free(&w);
}

/* A mark of Unicode 10 is not reordered, because the data of the package tokenizers is older. */
static void marks_added_after_unicode_9_are_not_reordered(void **state)
{
    (void)state;
    static const char text[] = "c\u0312\u0329\u1DF7"; /* 230, 220, and 228 since Unicode 10 */
    cn_nfc w = {0};
    const char *out;
    size_t n;
    assert_int_equal(cn_nfc_apply(&w, text, sizeof text - 1, &out, &n), CN_OK);
    static const char want[] = "c\u0329\u0312\u1DF7";
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(out, want, n);
    cn_nfc_free(&w);
}

static void code_points_are_read_back_as_written(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) {
        char text[4];
        uint32_t back;
        size_t len, n = cn_utf8_write(text, cp);
        cn_utf8_kind kind = cn_utf8_read(text, n, &back, &len);
        if (is_surrogate(cp)) {
            assert_int_equal(kind, CN_UTF8_BAD);
            continue;
        }
        assert_true(kind == CN_UTF8_CHAR && back == cp && len == n);
        assert_int_equal(cn_utf8_valid_prefix(text, n), n);
        if (n > 1) assert_int_equal(cn_utf8_read(text, n - 1, &back, &len), CN_UTF8_CUT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boundaries_do_not_change_or_compose),
        cmocka_unit_test(pieces_are_normalized_like_the_whole_text),
        cmocka_unit_test(hangul_composes_as_the_standard_says),
        cmocka_unit_test(text_in_form_c_is_returned_uncopied),
        cmocka_unit_test(marks_added_after_unicode_9_are_not_reordered),
        cmocka_unit_test(code_points_are_read_back_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
