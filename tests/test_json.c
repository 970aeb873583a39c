/* test_json.c - strict JSON reading: limits, duplicates, typed getters, error texts. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/json.h"
#include "tests/lib/sanitizer.h"

static const cn_json_limits limits = {1 << 20, 1 << 20, 8};

static json_t *parse(const char *text)
{
    json_t *tree = NULL;
    assert_int_equal(cn_json_parse(&tree, text, strlen(text), "t", 1 << 20, 8, CN_ERR_ARG), CN_OK);
    return tree;
}

static void expect_refusal(const char *text, size_t n, const char *words)
{
    json_t *tree = (json_t *)1;
    assert_int_equal(cn_json_parse(&tree, text, n, "in", 64, 3, CN_ERR_ARG), CN_ERR_ARG);
    assert_null(tree);
    if (!strstr(cn_last_error(), words)) fail_msg("%s lacks %s", cn_last_error(), words);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "not JSON"},
        {"{", "in: column 1"},
        {"{\n  x}", "in: line 2, column 3"},
        {"{\"a\": 1} x", "more text after the value near"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"\"\xff\xfe\"", "in: not JSON: byte 2 is not UTF-8"},
        {"\"\xed\xa0\x80\"", "in: not JSON: byte 2 is not UTF-8"},
        {"[\"\\u0000\"]", "not JSON"},
        {"[[[[1]]]]", "nested 4 deep"},
        {"[1e999]", "a number is too large"},
        {"[NaN]", "NaN or Infinity, which JSON does not have"},
        {"[-Infinity]", "NaN or Infinity, which JSON does not have"},
        {"[-]", "unexpected text"},
        {"[Infinity]", "NaN or Infinity, which JSON does not have"},
        {"[\"\\ud83d\"]", "half of a surrogate pair (\\uD800 to \\uDFFF)"},
        {"[01]", "not JSON"},
        {"['a']", "not JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].text, strlen(cases[i].text), cases[i].words);
    char big[65];
    memset(big, ' ', sizeof big);
    expect_refusal(big, sizeof big, "65 bytes of JSON exceed the limit of 64");
    expect_refusal("[1]\0", 4, "not JSON");
}

static void test_nul_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"a\": \"x\\u0000\"}", "body.a: a text with a NUL"},
        {"{\"a\": [1, {\"b\": \"\\u0000\"}]}", "body.a[1].b: a text with a NUL"},
        {"\"\\u0000y\"", "body: a text with a NUL"},
    };
    json_t *tree;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        assert_int_equal(cn_json_parse_request(&tree, text, strlen(text), "t", &limits), CN_OK);
        assert_int_equal(cn_json_refuse_nul(tree, "body", CN_ERR_MODEL), CN_ERR_MODEL);
        if (!strstr(cn_last_error(), cases[i].says))
            fail_msg("'%s' lacks '%s'", cn_last_error(), cases[i].says);
        json_decref(tree);
    }
    const char *s = "kept";
    static const char text[] = "{\"a\": \"x\\u0000\", \"b\": \"\\\\u0000\"}";
    assert_int_equal(cn_json_parse_request(&tree, text, strlen(text), "t", &limits), CN_OK);
    const cn_json_at at = {tree, "cfg", CN_ERR_ARG};
    assert_int_equal(cn_json_str(&at, "a", CN_JSON_REQUIRED, &s), CN_ERR_ARG);
    assert_string_equal(s, "kept");
    assert_non_null(strstr(cn_last_error(), "cfg: a: a text with a NUL"));
    assert_int_equal(cn_json_str(&at, "b", CN_JSON_REQUIRED, &s), CN_OK);
    assert_string_equal(s, "\\u0000");
    assert_int_equal(cn_json_refuse_nul(json_object_get(tree, "b"), "b", CN_ERR_ARG), CN_OK);
    assert_int_equal(cn_json_refuse_nul(NULL, "c", CN_ERR_ARG), CN_OK);
    json_decref(tree);
    static const char key[] = "{\"a\\u0000\": 1}";
    assert_int_equal(cn_json_parse_request(&tree, key, strlen(key), "t", &limits), CN_ERR_ARG);
}

/* An integer beyond 64 bits is read as a real number. Those beside it stay integers. */
static void test_large_integers(void **state)
{
    (void)state;
    json_t *a = parse("[18446744073709551615, 7,"
                      " \"99999999999999999999\\\"99999999999999999999\","
                      " -9223372036854775809, 9223372036854775807, -9223372036854775808, 1.5e3,"
                      " 99999999999999999999e0,"
                      " {\"9999999999999999999\": 1234567890123456789012345678901234567890}]");
    static const json_type types[] = {JSON_REAL,    JSON_INTEGER, JSON_STRING,
                                      JSON_REAL,    JSON_INTEGER, JSON_INTEGER,
                                      JSON_REAL,    JSON_REAL,    JSON_OBJECT};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        assert_int_equal(json_typeof(json_array_get(a, i)), types[i]);
    assert_true(json_real_value(json_array_get(a, 0)) == 18446744073709551615.0);
    assert_string_equal(json_string_value(json_array_get(a, 2)),
                        "99999999999999999999\"99999999999999999999");
    assert_true(json_integer_value(json_array_get(a, 4)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(a, 5)) == INT64_MIN);
    assert_true(json_is_real(json_object_get(json_array_get(a, 8), "9999999999999999999")));
    json_decref(a);
    expect_refusal("[99999999999999999999, 1e999]", 29, "a number is too large");
    expect_refusal("[99999999999999999999, ]", 24, "unexpected text");
}

/* The text of an error must not contain bytes that control a terminal. */
static void test_error_text_is_printable(void **state)
{
    (void)state;
    expect_refusal("[\x1b[31mred]", 10, "not JSON");
    for (const char *p = cn_last_error(); *p; p++) assert_in_range(*p, 0x20, 0x7e);

    char buf[12];
    assert_string_equal(cn_json_printable("a\x01", buf, sizeof buf), "a\\x01");
    assert_string_equal(cn_json_printable("abcdefghijklmnop", buf, sizeof buf), "abcdefgh...");
}

static void test_getters(void **state)
{
    (void)state;
    json_t *tree = parse("{\"u\": 7, \"whole\": 7.0, \"half\": 7.5, \"neg\": -1, \"s\": \"x\","
                         " \"b\": true, \"n\": null, \"o\": {}, \"l\": [1], \"r\": 0.25}");
    cn_json_at a = {tree, "cfg", CN_ERR_MODEL};
    uint32_t u = 3;
    double r = 0;
    bool b = false;
    const char *s = NULL;
    json_t *child = NULL;

    assert_int_equal(cn_json_u32(&a, "u", CN_JSON_REQUIRED, 1, 7, &u), CN_OK);
    assert_int_equal(u, 7);
    assert_int_equal(cn_json_u32(&a, "whole", CN_JSON_REQUIRED, 1, 7, &u), CN_OK);
    assert_int_equal(cn_json_f64(&a, "r", CN_JSON_REQUIRED, 0, 1, &r), CN_OK);
    assert_true(r == 0.25);
    assert_int_equal(cn_json_f64(&a, "u", CN_JSON_REQUIRED, 0, 9, &r), CN_OK);
    assert_int_equal(cn_json_bool(&a, "b", CN_JSON_REQUIRED, &b), CN_OK);
    assert_true(b);
    assert_int_equal(cn_json_str(&a, "s", CN_JSON_REQUIRED, &s), CN_OK);
    assert_string_equal(s, "x");
    assert_int_equal(cn_json_obj(&a, "o", CN_JSON_REQUIRED, &child), CN_OK);
    assert_int_equal(cn_json_arr(&a, "l", CN_JSON_REQUIRED, &child), CN_OK);

    /* Absent and null optional keys leave the value unchanged. */
    u = 3;
    assert_int_equal(cn_json_u32(&a, "none", CN_JSON_OPTIONAL, 0, 9, &u), CN_OK);
    assert_int_equal(cn_json_u32(&a, "n", CN_JSON_OPTIONAL, 0, 9, &u), CN_OK);
    assert_int_equal(u, 3);

    assert_int_equal(cn_json_u32(&a, "n", CN_JSON_REQUIRED, 0, 9, &u), CN_ERR_MODEL);
    assert_string_equal(cn_last_error(), "cfg: n: missing");
    assert_int_equal(cn_json_u32(&a, "u", CN_JSON_REQUIRED, 8, 9, &u), CN_ERR_MODEL);
    assert_string_equal(cn_last_error(), "cfg: u: expected a whole number from 8 to 9, got 7");
    assert_int_equal(cn_json_u32(&a, "neg", CN_JSON_REQUIRED, 0, 9, &u), CN_ERR_MODEL);
    assert_int_equal(cn_json_u32(&a, "half", CN_JSON_REQUIRED, 0, 9, &u), CN_ERR_MODEL);
    assert_int_equal(cn_json_u32(&a, "s", CN_JSON_OPTIONAL, 0, 9, &u), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "got \"x\""));
    assert_int_equal(cn_json_f64(&a, "l", CN_JSON_OPTIONAL, 0, 9, &r), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "got an array of 1"));
    assert_int_equal(cn_json_bool(&a, "u", CN_JSON_OPTIONAL, &b), CN_ERR_MODEL);
    assert_int_equal(cn_json_str(&a, "o", CN_JSON_OPTIONAL, &s), CN_ERR_MODEL);
    assert_int_equal(cn_json_obj(&a, "l", CN_JSON_OPTIONAL, &child), CN_ERR_MODEL);
    assert_int_equal(cn_json_arr(&a, "o", CN_JSON_OPTIONAL, &child), CN_ERR_MODEL);
    assert_int_equal(u, 3);
    json_decref(tree);
}

/* Models without a length limit have 10^30 as an integer in tokenizer_config.json. */
static void test_huge_integer_is_read(void **state)
{
    (void)state;
    json_t *tree = parse("{\"model_max_length\": 1000000000000000019884624838656, \"k\": 5}");
    cn_json_at a = {tree, "t", CN_ERR_MODEL};
    uint32_t k = 0;
    double length = 0;
    assert_int_equal(cn_json_u32(&a, "k", CN_JSON_REQUIRED, 0, 9, &k), CN_OK);
    assert_int_equal(k, 5);
    assert_int_equal(cn_json_f64(&a, "model_max_length", CN_JSON_REQUIRED, 0, 1e31, &length),
                     CN_OK);
    assert_true(length == 1e30);
    assert_int_equal(cn_json_u32(&a, "model_max_length", CN_JSON_REQUIRED, 0, 9, &k), CN_ERR_MODEL);
    json_decref(tree);
}

static void test_token_ids(void **state)
{
    (void)state;
    json_t *tree = parse("{\"one\": 4, \"two\": [4, 9], \"bad\": [4, 10], \"text\": \"4\"}");
    cn_json_at a = {tree, "g", CN_ERR_MODEL};
    uint32_t ids[2], n = 7;
    assert_int_equal(cn_json_token_ids(&a, "none", 10, 2, ids, &n), CN_OK);
    assert_int_equal(n, 0);
    assert_int_equal(cn_json_token_ids(&a, "one", 10, 2, ids, &n), CN_OK);
    assert_int_equal(n, 1);
    assert_int_equal(cn_json_token_ids(&a, "two", 10, 2, ids, &n), CN_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], 9);
    assert_int_equal(cn_json_token_ids(&a, "two", 10, 1, ids, &n), CN_ERR_MODEL);
    assert_int_equal(cn_json_token_ids(&a, "bad", 10, 2, ids, &n), CN_ERR_MODEL);
    assert_string_equal(cn_last_error(), "g: bad: expected token ids below 10, got 10");
    assert_int_equal(cn_json_token_ids(&a, "text", 10, 2, ids, &n), CN_ERR_MODEL);
    json_decref(tree);
}

static void test_files(void **state)
{
    (void)state;
    char dir[] = "/tmp/cn_json_XXXXXX", path[64];
    json_t *tree;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a.json", dir);
    assert_int_equal(cn_json_load_file(&tree, path, 100, 4), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "a.json: No such file"));
    assert_int_equal(cn_json_load_file(&tree, dir, 100, 4), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "not a regular file"));

    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"a\": 1}", f);
    fclose(f);
    assert_int_equal(cn_json_load_file(&tree, path, 7, 4), CN_ERR_MODEL);
    assert_int_equal(cn_json_load_file(&tree, path, 8, 4), CN_OK);
    assert_int_equal(json_object_size(tree), 1);
    json_decref(tree);
    unlink(path);
    rmdir(dir);
}

/* ---- memory ---- */

static void test_values_are_counted_before_parsing(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t values;
    } cases[] = {
        {"1", 1}, {"[1,2]", 3}, {"{\"a\": [{}, 2], \"b\": 3}", 5}, {"\"a,[{\\\",[\"", 1},
        {"[[],{}]", 3}, {"[\"\\\\\",\",,,\"]", 3},
    };
    json_t *tree;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        const cn_json_size size = cn_json_measure(text, strlen(text));
        assert_true(size.values >= cases[i].values && size.values <= cases[i].values + 1);
    }
    static const char text[] = "{\"metadata\": [{},{},{},{},{},{},{},{}]}";
    const cn_json_limits few = {1 << 20, 9, 8};
    assert_int_equal(cn_json_parse_request(&tree, text, strlen(text), "body", &few), CN_ERR_ARG);
    assert_null(tree);
    assert_non_null(strstr(cn_last_error(), "JSON values exceed the limit of 9"));
}

static size_t heap_bytes(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* Both measures must cover what the tree takes, and not exceed it much. The allocator of a
 * sanitizer does not count. */
static void test_measures_cover_the_heap(void **state)
{
    (void)state;
    if (BY_SANITIZER(false, true, true)) skip();
    enum { N = 20000 };
    static const char *const items[] = {"{}", "[]", "12", "\"a\"", "[[[[1]]]]",
                                        "{\"a\":1,\"b\":{\"c\":[]}}", "null", "{\"k\":\"v\"}"};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
        cn_buf text = {0};
        for (int k = 0; k < N; k++)
            assert_int_equal(cn_buf_addf(&text, "%c%s", k ? ',' : '[', items[i]), CN_OK);
        assert_int_equal(cn_buf_addf(&text, "]"), CN_OK);
        const cn_json_size said = cn_json_measure(text.data, text.len);
        const size_t before = heap_bytes();
        json_t *tree;
        assert_int_equal(cn_json_parse_request(&tree, text.data, text.len, "t", &limits), CN_OK);
        const size_t took = heap_bytes() - before;
        const size_t kept = cn_json_measure_tree(tree).bytes;
        if (said.bytes < took || kept < took || kept > 10 * took ||
            said.bytes > 10 * took)
            fail_msg("%s: %zu bytes, measured %zu and %zu", items[i], took, said.bytes, kept);
        json_decref(tree);
        cn_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_error_text_is_printable),
        cmocka_unit_test(test_nul_is_refused_by_name),
        cmocka_unit_test(test_large_integers),
        cmocka_unit_test(test_getters),   cmocka_unit_test(test_huge_integer_is_read),
        cmocka_unit_test(test_token_ids), cmocka_unit_test(test_files),
        cmocka_unit_test(test_values_are_counted_before_parsing),
        cmocka_unit_test(test_measures_cover_the_heap),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
