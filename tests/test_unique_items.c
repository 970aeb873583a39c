/* test_unique_items.c - arrays whose items differ: which texts match, and that masks allow what can
 * be completed and nothing else, with tokens of several items. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/base/philox.h"
#include "engine/grammar/unique_masks.h"
#include "tests/lib/grammar_open.h"

static const char *const words[] = {"\",\"",         "\",",   "[\"",  "\"]",   "1,",  ",1",
                                    "1,1",           "[1,1",  "1]",   "a\"",   "ab",  ",\"a",
                                    "[\"a\",\"a\"]", "00",    ".0",   "\\u00", "61",  "true",
                                    ",true",         "true,", "1,23", "12,3",  ",23", "2,3"};
enum { WORDS = sizeof words / sizeof *words, EOS = 256 + WORDS, LONGEST = 160 };

static const char *whitespace; /* of the next schemas */

static cn_grammar *open_schema(cn_grammars *g, const char *text)
{
    const cn_structure s = {CN_STRUCTURE_SCHEMA, text, whitespace, true};
    cn_grammar *grammar = NULL;
    if (grammar_open(g, &s, &grammar) != CN_OK) fail_msg("%s: %s", text, cn_last_error());
    return grammar;
}

#define UNIQUE "\"uniqueItems\":true"
#define LIST(...)         \
    {                     \
        __VA_ARGS__, NULL \
    }

/* Two objects: different strings, or three times `true`. */
#define STRINGS_OF_TRUE                                                                           \
    "{\"type\":\"object\",\"required\":[\"t\"],\"properties\":{\"t\":{\"items\":{\"type\":"       \
    "\"string\"}," UNIQUE "}}},{\"type\":\"object\",\"required\":[\"t\"],\"properties\":{\"t\":{" \
    "\"items\":{\"const\":true},\"minItems\":3,\"maxItems\":3}}}"

static const struct {
    const char *schema, *good[8], *bad[8];
} cases[] = {
    {"{\"items\":{\"type\":\"string\"}," UNIQUE "}",
     LIST("[]", "[\"a\",\"b\",\"\"]", "[\"a\\\"\",\"a\"]", "[\"A\",\"a\"]",
          "[\"\\ud83d\\ude00\",\"\\ud83d\\ude01\"]"),
     LIST("[\"a\",\"a\"]", "[\"a\",\"b\",\"\\u0061\"]", "[\"\",\"\"]", "[\"/\",\"\\/\"]",
          "[\"é\",\"\\u00e9\"]", "[\"\\ud83d\\ude00\",\"😀\"]")},
    {"{\"items\":{\"type\":\"number\"}," UNIQUE "}",
     LIST("[1,2,10,1.5]", "[1e2,1e3]", "[0.1,0.10000001]"),
     LIST("[1,1.0]", "[1,2,10e-1]", "[0,-0.0]", "[100,1E2]", "[0.5,0.50]", "[-1,-1.0e0]",
          "[100000000000000000000,1e20]")},
    /* Values that are equal in a list. */
    {"{\"items\":{\"enum\":[1,1.0,2]}," UNIQUE "}", LIST("[1,2]", "[2,1]"),
     LIST("[1,1.0]", "[1.0,1]", "[1,1]")},
    {"{\"items\":{\"enum\":[9007199254740992,9007199254740993,[1],[1.0]]}," UNIQUE "}",
     LIST("[9007199254740992,9007199254740993]", "[[1],9007199254740993]"), LIST("[[1],[1.0]]")},
    {"{\"items\":{\"type\":[\"integer\",\"string\",\"boolean\",\"null\"]}," UNIQUE "}",
     LIST("[1,\"1\",true,\"true\",null,\"null\",false]"),
     LIST("[true,1,true]", "[null,null]", "[12,1,12]")},
    {"{\"items\":{\"enum\":[1,2,3,4,5,6,7,8]}," UNIQUE ",\"minItems\":8}",
     LIST("[8,7,6,5,4,3,2,1]", "[2,4,6,8,1,3,5,7]"), LIST("[1,2,3,4,5,6,7]", "[1,1,2,3,4,5,6,7]")},
    {"{\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/s\"},{\"const\":7}]}," UNIQUE
     ",\"$defs\":{\"s\":{\"minLength\":1}}}",
     LIST("[7,\"7\"]"), LIST("[7,7]")},
    /* Arrays after one another, and arrays that an object is in. */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"items\":{\"type\":\"integer\"}," UNIQUE
     "},\"b\":{\"items\":{\"type\":\"integer\"}," UNIQUE "},\"c\":{\"items\":{\"type\":"
     "\"integer\"}}}}",
     LIST("{\"a\":[1,2],\"b\":[2,1],\"c\":[1,1]}"),
     LIST("{\"a\":[1,1]}", "{\"a\":[1,2],\"b\":[2,2]}")},
    {"{\"items\":{\"items\":{\"type\":\"string\"}," UNIQUE "}}",
     LIST("[[\"a\"],[\"a\"],[\"]\",\"[\"]]"), LIST("[[\"a\"],[\"b\",\"b\"]]")},
    {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"string\"}," UNIQUE "}",
     LIST("[1,\"1\",\"2\"]"), LIST("[1,\"1\",\"1\"]")},
    {"{\"anyOf\":[{\"items\":{\"type\":\"string\"}," UNIQUE
     ",\"type\":\"array\"},{\"items\":{\"type\":\"object\"},\"type\":\"array\"}]}",
     LIST("[{},{}]", "[\"a\"]"), LIST("[\"a\",\"a\"]")},
    {"{" UNIQUE ",\"anyOf\":[{\"items\":{\"type\":\"string\"}},{\"items\":{\"type\":\"integer\"}}],"
     "\"type\":\"array\"}",
     LIST("[\"a\",\"b\"]", "[1,2]"), LIST("[\"a\",\"a\"]", "[1,1]")},
    /* Alternatives that are arrays of both kinds. */
    {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},"
     "{\"type\":\"array\",\"items\":{\"type\":\"number\"}," UNIQUE "}]}",
     LIST("[1,1]", "[1,2.5]", "[2.5,1,2]"), LIST("[1,1,2.5]", "[2.5,1,1]", "[2.5,2.50]")},
    {"{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"array\"," UNIQUE
     ",\"items\":{\"type\":\"string\"}}],"
     "\"$defs\":{\"a\":{\"oneOf\":[{\"type\":\"array\",\"items\":{}},{\"type\":\"null\"}]}}}",
     LIST("[\"a\",\"a\"]", "[1,[1,1]]", "null"), LIST("1")},
    {"{\"anyOf\":[{\"type\":\"array\",\"maxItems\":2},{\"type\":\"array\"," UNIQUE
     ",\"items\":{\"type\":\"integer\"}}]}",
     LIST("[1,1]", "[1,2,3]", "[{},{}]"), LIST("[1,1,2]", "[1,2,1]", "[1,2,[]]")},
    /* Objects with the same member. */
    {"{\"type\":\"object\",\"required\":[\"t\",\"k\"],\"anyOf\":["
     "{\"properties\":{\"t\":{\"items\":{\"type\":\"integer\"}," UNIQUE "},\"k\":{\"const\":1}}},"
     "{\"properties\":{\"t\":{\"items\":{\"type\":\"integer\"}},\"k\":{\"const\":2}}}]}",
     LIST("{\"t\":[1,2],\"k\":1}", "{\"t\":[1,1],\"k\":2}", "{\"t\":[1,1,1],\"k\":2}"),
     LIST("{\"t\":[1,1],\"k\":1}", "{\"t\":[1,2,1,3],\"k\":1}", "{\"t\":[1,1],\"k\":3}")},
    {"{\"anyOf\":[{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"t\":{"
     "\"items\":{\"type\":\"string\"}," UNIQUE "},\"k\":{\"const\":1}}},"
     "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\"}}]}",
     LIST("{\"t\":[\"a\",\"a\"],\"k\":[]}", "{\"t\":[\"a\",\"b\"],\"k\":1}",
          "{\"t\":[\"a\",\"a\",{}]}"),
     LIST("{\"t\":[\"a\",\"a\"],\"k\":1}", "{\"t\":[\"\\u0061\",\"a\"],\"k\":1}")},
    {"{\"anyOf\":[" STRINGS_OF_TRUE "]}", LIST("{\"t\":[true,true,true]}", "{\"t\":[\"a\",\"b\"]}"),
     LIST("{\"t\":[\"a\",\"a\"]}")},
    /* Arrays in arrays. */
    {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"string\"}," UNIQUE "},"
     "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}," UNIQUE
     "}}]}",
     LIST("[\"a\",\"b\"]", "[[1,2],[1]]", "[[],[]]"),
     LIST("[[1,1]]", "[[1],[2,3,2]]", "[\"a\",\"a\"]")},
};

static void equal_items_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_grammars *g = grammar_words(NULL, 0, 0);
        cn_grammar *grammar = open_schema(g, cases[i].schema);
        assert_null(cn_grammar_warnings(grammar));
        for (const char *const *t = cases[i].good; *t; t++)
            if (!grammar_matches(grammar, *t)) fail_msg("%s: not %s", cases[i].schema, *t);
        for (const char *const *t = cases[i].bad; *t; t++)
            if (grammar_matches(grammar, *t)) fail_msg("%s: %s", cases[i].schema, *t);
        cn_grammars_close(grammar);
        cn_grammars_free(g);
    }
}

/* ---- masks ---- */

static const char *text_of(uint32_t token, size_t *n)
{
    const char *text = token < 256 ? &grammar_bytes[token] : words[token - 256];
    *n = token < 256 ? 1 : strlen(text);
    return text;
}

static bool can_push(cn_grammar *grammar, const char *text, size_t n, uint32_t token)
{
    cn_matcher m;
    size_t len;
    const char *add = text_of(token, &len);
    cn_grammar_match(grammar, &m);
    assert_int_equal(cn_matcher_push(&m, text, n), CN_OK);
    const bool ok = cn_matcher_push(&m, add, len) == CN_OK;
    cn_matcher_end(&m);
    return ok;
}

/* Writes the mask of a text and returns the number of its tokens. */
static uint32_t make_mask(cn_grammars *g, cn_matcher *m, uint32_t *mask, uint32_t *allowed)
{
    const uint32_t *shared;
    uint64_t steps = 0;
    uint32_t n = 0;
    assert_int_equal(grammar_mask(g, m, &shared), CN_OK);
    memcpy(mask, shared, (EOS / 32 + 1) * sizeof *mask);
    assert_int_equal(cn_matcher_exclude(m, mask, &steps), CN_OK);
    for (uint32_t i = 0; i <= EOS; i++)
        if (mask[i / 32] >> i % 32 & 1) allowed[n++] = i;
    return n;
}

/* Draws a text; it must not get stuck. A token that is not allowed cannot be pushed, or has no way
 * on, which the draws show: what is allowed always has one. */
static void draw(cn_grammars *g, cn_grammar *grammar, const char *schema, uint32_t *seed)
{
    char text[LONGEST + 32] = "";
    size_t n = 0, len;
    uint32_t mask[EOS / 32 + 1], allowed[EOS + 1];
    cn_matcher m;
    cn_grammar_match(grammar, &m);
    while (n < LONGEST && !cn_matcher_is_complete(&m)) {
        const uint32_t n_allowed = make_mask(g, &m, mask, allowed);
        if (n_allowed == 0) fail_msg("%s: no token after %s", schema, text);
        uint32_t token = allowed[cn_philox_u64(3, 0, (*seed)++) % n_allowed];
        /* A short way to the end of items, which are equal more often then. */
        for (uint32_t i = 0; i < n_allowed && cn_philox_u64(3, 1, *seed) % 2; i++)
            if (allowed[i] < 256 && strchr("\",]1a", (int)allowed[i])) token = allowed[i];
        for (uint32_t i = 0; i < n_allowed; i++)
            if (allowed[i] != EOS && !can_push(grammar, text, n, allowed[i]))
                fail_msg("%s: token %u after %s", schema, allowed[i], text);
        if (token == EOS) break;
        const char *add = text_of(token, &len);
        assert_int_equal(cn_matcher_push(&m, add, len), CN_OK);
        memcpy(text + n, add, len);
        text[n += len] = '\0';
    }
    if (cn_matcher_is_complete(&m)) assert_true(cn_matcher_accepts(&m));
    cn_matcher_end(&m);
}

static void masks_lead_to_different_items(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"items\":{\"type\":\"integer\",\"minimum\":8,\"maximum\":12}," UNIQUE ",\"minItems\":5}",
        "{\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":11}," UNIQUE ",\"minItems\":9}",
        "{\"items\":{\"type\":\"string\",\"pattern\":\"^[ab]{0,2}$\"}," UNIQUE ",\"minItems\":7}",
        "{\"items\":{\"type\":\"string\",\"maxLength\":1}," UNIQUE ",\"minItems\":12}",
        "{\"items\":{\"type\":\"number\",\"minimum\":0.9,\"maximum\":1}," UNIQUE ",\"minItems\":9}",
        "{\"items\":{\"type\":[\"boolean\",\"integer\"],\"maximum\":2,\"minimum\":0}," UNIQUE
        ",\"minItems\":5}",
        "{\"items\":{\"type\":\"string\"}," UNIQUE ",\"minItems\":3}",
        "{\"anyOf\":[" STRINGS_OF_TRUE "]}",
        "{\"type\":\"array\",\"anyOf\":[{\"items\":{\"enum\":[1,2,3]},\"minItems\":3," UNIQUE
        "},{\"items\":{\"enum\":[1,4]},\"minItems\":4,\"maxItems\":5}]}",
        "{\"type\":\"array\",\"anyOf\":[{\"items\":{\"type\":\"integer\"}," UNIQUE
        ",\"minItems\":4},{\"items\":{\"type\":\"number\"}}]}",
    };
    const size_t n_schemas = sizeof schemas / sizeof *schemas;
    uint32_t seed = 0;
    for (size_t i = 0; i < 2 * n_schemas; i++) {
        whitespace = i < n_schemas ? NULL : CN_JSON_WHITESPACE_ANY;
        cn_grammars *g = grammar_words(words, WORDS, 0);
        cn_grammar *grammar = open_schema(g, schemas[i % n_schemas]);
        for (int k = 0; k < 5; k++) draw(g, grammar, schemas[i % n_schemas], &seed);
        cn_grammars_close(grammar);
        cn_grammars_free(g);
    }
    whitespace = NULL;
}

/* Which tokens a text leaves. The last item is forced where only one value is left. */
static void tokens_that_end_equal_items_are_banned(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text, *allowed, *banned; /* tokens, each with a space after it */
    } masks[] = {
        {"{\"items\":{\"type\":\"string\"}," UNIQUE "}", "[\"a\",\"ab\",\"a", "\\u00 a b ab ",
         "\" \"] \", \",\" "},
        {"{\"items\":{\"type\":\"string\"}," UNIQUE "}", "[\"a\",\"\\u00", "61 0 ", ""},
        {"{\"items\":{\"type\":\"string\"}," UNIQUE "}", "[\"a\"", "] , ", ",\"a\" "},
        {"{\"items\":{\"type\":\"string\"}," UNIQUE "}", "[\"\",\"x", "\" \", \",\" a\" ", ""},
        {"{\"items\":{\"type\":\"string\",\"maxLength\":1}," UNIQUE "}", "[\"a\",\"", "b ",
         "a a\" \" ab "},
        {"{\"items\":{\"type\":\"integer\"}," UNIQUE "}", "", "[ [1,1 ", "[\"a\",\"a\"] "},
        {"{\"items\":{\"type\":\"integer\",\"maximum\":9}," UNIQUE "}", "", "[ ", "[1,1 "},
        {"{\"items\":{\"type\":\"string\"}," UNIQUE "}", "", "[ [\" ", "[\"a\",\"a\"] "},
        {"{\"items\":{\"type\":\"integer\"}," UNIQUE "}", "[1,", "1 2 ", "1, 1,1 1] "},
        {"{\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":2}," UNIQUE "}", "[1", ", ] ",
         ",1 "},
        {"{\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":2}," UNIQUE "}", "[1,", "2 ",
         "1 "},
        {"{\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":2}," UNIQUE "}", "[1,2", "] ",
         ", "},
        {"{\"items\":{\"type\":[\"boolean\",\"null\"]}," UNIQUE "}", "[true,", "f n ", "t true "},
        /* Tokens with other items, but the same digits. */
        {"{\"items\":{\"enum\":[1,2,3,4,12,23,5,6]}," UNIQUE "}", "[3,", "1,23 ", "12,3 "},
        {"{\"items\":{\"enum\":[1,2,3,4,12,23,5,6]}," UNIQUE "}", "[3,1", ", ] ,23 ", "2,3 "},
        {"{\"items\":{\"enum\":[1,2,3,4,12,23,5,6]}," UNIQUE "}", "[23,", "12,3 ", "1,23 "},
        {"{\"items\":{\"enum\":[1,2,3,4,12,23,5,6]}," UNIQUE "}", "[23,1", "2,3 ", ",23 "},
        /* Beside an alternative whose items may be equal, and which ends earlier, or differs. */
        {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"string\"}," UNIQUE "},{\"type\":"
         "\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":2}]}", "[\"a\",\"a",
         "\" \"] a b ", "\", \",\" "},
        {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"integer\"}," UNIQUE "},{\"type\":"
         "\"array\",\"items\":{\"const\":1}}]}", "[1,", "1, 1,1 ", "1,23 "},
    };
    cn_grammars *g = grammar_words(words, WORDS, 0);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        cn_grammar *grammar = open_schema(g, masks[i].schema);
        uint32_t mask[EOS / 32 + 1], allowed[EOS + 1];
        cn_matcher m;
        cn_grammar_match(grammar, &m);
        assert_int_equal(cn_matcher_push(&m, masks[i].text, strlen(masks[i].text)), CN_OK);
        make_mask(g, &m, mask, allowed);
        for (uint32_t t = 0; t < EOS; t++) {
            char name[32];
            size_t n;
            const char *text = text_of(t, &n);
            snprintf(name, sizeof name, "%.*s ", (int)n, text);
            const char *good = strstr(masks[i].allowed, name), *bad = strstr(masks[i].banned, name);
            const bool is_good = good && (good == masks[i].allowed || good[-1] == ' ');
            const bool is_bad = bad && (bad == masks[i].banned || bad[-1] == ' ');
            const bool is_allowed = mask[t / 32] >> t % 32 & 1;
            if (n > 0 && *text > ' ' && ((is_good && !is_allowed) || (is_bad && is_allowed)))
                fail_msg("%s: token '%s' after %s", masks[i].schema, name, masks[i].text);
        }
        cn_matcher_end(&m);
        cn_grammars_close(grammar);
    }
    cn_grammars_free(g);
}

/* Many items that begin alike. An item that is equal to one of them is still refused. */
static void many_items_take_few_steps(void **state)
{
    (void)state;
    enum { N = 5000, ITEM = 24 };
    static char text[N * (ITEM + 3) + 2] = "[";
    cn_grammars *g = grammar_words(words, WORDS, 0);
    cn_grammar *grammar = open_schema(g, "{\"items\":{\"type\":\"string\"}," UNIQUE "}");
    uint32_t mask[EOS / 32 + 1], allowed[EOS + 1];
    size_t n = 1;
    cn_matcher m;
    for (uint32_t i = 0; i < N; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "\"aaaaaaaaaaaaaaa%08u\",", i);
    cn_grammar_match(grammar, &m);
    assert_int_equal(cn_matcher_push(&m, text, n), CN_OK);
    assert_int_equal(cn_matcher_push(&m, "\"aaaaaaaaaaaaaaa0000499", 23), CN_OK);
    make_mask(g, &m, mask, allowed);
    assert_in_range(m.items.steps, 1, 100 * N);
    assert_int_equal(cn_matcher_push(&m, "9\"", 2), CN_ERR_ARG);
    cn_matcher_end(&m);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

/* An item may go on for long before it can differ. n: its bytes that are always the same. */
static void check_long_items(uint32_t n, bool both)
{
    cn_grammars *g = grammar_words(words, WORDS, 0);
    uint32_t mask[EOS / 32 + 1], allowed[EOS + 1];
    char schema[128], item[4000] = "\"";
    cn_matcher m;
    snprintf(schema, sizeof schema,
             "{\"items\":{\"type\":\"string\",\"pattern\":\"^z{%u}[ab]$\"}," UNIQUE "}", n);
    cn_grammar *grammar = open_schema(g, schema);
    memset(item + 1, 'z', n);
    memcpy(item + 1 + n, "a\",", 4);
    cn_grammar_match(grammar, &m);
    assert_int_equal(cn_matcher_push(&m, "[", 1), CN_OK);
    assert_int_equal(cn_matcher_push(&m, item, n + 4), CN_OK);
    make_mask(g, &m, mask, allowed);
    assert_true(mask['"' / 32] >> '"' % 32 & 1);
    item[1 + n] = 'b';
    assert_int_equal(cn_matcher_push(&m, item, n + 3), CN_OK);
    if (both) make_mask(g, &m, mask, allowed);
    assert_true(!both || mask[']' / 32] >> ']' % 32 & 1);
    assert_false(both && mask[',' / 32] >> ',' % 32 & 1);
    cn_matcher_end(&m);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

static void long_items_have_masks(void **state)
{
    (void)state;
    check_long_items(3000, false);
    check_long_items(600, true);
}

static void what_cannot_be_filled_or_followed_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *error;
    } refused[] = {
        {"{\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":3}," UNIQUE ",\"minItems\":4}",
         "uniqueItems: expected a minItems of at most 3"},
        {"{\"items\":{\"pattern\":\"^[ab]$\",\"type\":\"string\"}," UNIQUE ",\"minItems\":3}",
         "minItems of at most 2"},
        {"{\"properties\":{\"a\":{\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":100}"
         "," UNIQUE ",\"minItems\":101}}}",
         "schema at #/properties/a: uniqueItems: expected a minItems of at most 100"},
        {"{\"items\":{\"enum\":[1,2,3,4,5,6,7]}," UNIQUE ",\"minItems\":8}", "no text matches"},
        {"{\"items\":{\"type\":[\"string\",\"object\"]}," UNIQUE "}",
         "uniqueItems of items that may be"},
        {"{\"items\":{\"items\":{}}," UNIQUE "}", "uniqueItems of items that may be"},
        {"{\"prefixItems\":[{\"const\":1}],\"items\":{\"type\":\"integer\"}," UNIQUE
         ",\"minItems\":2}",
         "or of prefixItems with minItems"},
    };
    cn_grammars *g = grammar_words(NULL, 0, 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const cn_structure s = {CN_STRUCTURE_SCHEMA, refused[i].schema, NULL, true};
        cn_grammar *grammar;
        if (grammar_open(g, &s, &grammar) != CN_ERR_ARG ||
            !strstr(cn_last_error(), refused[i].error))
            fail_msg("%s: %s", refused[i].schema, cn_last_error());
    }
    cn_grammars_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_items_are_refused),
        cmocka_unit_test(masks_lead_to_different_items),
        cmocka_unit_test(tokens_that_end_equal_items_are_banned),
        cmocka_unit_test(many_items_take_few_steps),
        cmocka_unit_test(long_items_have_masks),
        cmocka_unit_test(what_cannot_be_filled_or_followed_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
