/* test_grammar.c - grammars on texts: schemas, expressions, choices; token masks against the rule
 * that a token may follow if and only if its bytes can; bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/grammar_open.h"

enum { BYTES = 256, WORDS = 12, EOS = BYTES + WORDS, VOCAB = EOS + 1 };

static const char *const words[WORDS] = {"{\"", "\":", "\": ", ", \"", "true",     "null",
                                         "12",  "\"}", "ab",   "ab",   "\xc3\xa9", "a\n"};

static cn_grammars *make(uint64_t most) { return grammar_words(words, WORDS, most); }

static const char *whitespace = CN_JSON_WHITESPACE_ANY; /* of the next grammars */
static bool strict;

static cn_grammar *open_grammar(cn_grammars *g, cn_structure_kind kind, const char *text)
{
    const cn_structure s = {kind, text, whitespace, strict};
    cn_grammar *grammar = NULL;
    if (grammar_open(g, &s, &grammar) != CN_OK) fail_msg("%s: %s", text, cn_last_error());
    return grammar;
}

/* Lists end with NULL. */
static void check(cn_structure_kind kind, const char *text, const char *const *good,
                  const char *const *bad)
{
    cn_grammars *g = make(0);
    cn_grammar *grammar = open_grammar(g, kind, text);
    grammar_check_texts(grammar, text, good, bad);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SCHEMA(text, good, bad) check(CN_STRUCTURE_SCHEMA, text, good, bad)
#define REGEX(text, good, bad) check(CN_STRUCTURE_REGEX, text, good, bad)

static void scalars(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"string\"}", LIST("\"\"", "\"a\\n\\u00e9\\ud83d\\ude00é\""),
           LIST("\"", "\"\n\"", "\"\\x\"", "\"\\ud800\"", "\"\\udc00\"", "\"\xff\"", "1"));
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           LIST("\"éé\"", "\"\\u0041b\\\"\"", "\"\\ud83d\\ude00x\""),
           LIST("\"é\"", "\"abcd\"", "\"\\ud83d\\ude00\""));
    SCHEMA("{\"type\":[\"boolean\",\"null\"]}", LIST("true", "false", "null"), LIST("1", "tru"));
    SCHEMA("{\"type\":\"number\"}", LIST("0", "-0.5", "1e9", "12.25E-3", "999999999999999"),
           LIST("01", ".5", "1.", "+1", "1e", "-", "1000000000000000", "NaN"));
    SCHEMA("{\"enum\":[1,\"a\\\"b\",null,[1,2],\"é\"]}",
           LIST("1", "\"a\\\"b\"", "null", "[1,2]", "\"é\""), LIST("2", "\"a\"", "[1]", "1.0"));
    SCHEMA("{\"type\":\"string\",\"enum\":[1,\"x\"]}", LIST("\"x\""), LIST("1"));
    SCHEMA("{\"const\":{\"a\":true}}", LIST("{\"a\":true}"), LIST("{}", "{\"a\":false}"));
}

static void numbers_keep_their_bounds(void **state)
{
    (void)state;
    static const int64_t bounds[] = {-1000, -999, -101, -100, -10, -9, -1, 0, 1, 7, 10, 99, 123};
    enum { N = sizeof bounds / sizeof *bounds };
    cn_grammars *g = make(0);
    for (int i = 0; i < N; i++)
        for (int k = i; k < N; k++) {
            char schema[96], text[32];
            const long long lo = bounds[i], hi = bounds[k];
            snprintf(schema, sizeof schema,
                     "{\"type\":\"integer\",\"minimum\":%lld,\"maximum\":%lld}", lo, hi);
            cn_grammar *grammar = open_grammar(g, CN_STRUCTURE_SCHEMA, schema);
            for (long long x = -1100; x <= 1100; x++) {
                snprintf(text, sizeof text, "%lld", x);
                if (grammar_matches(grammar, text) != (x >= lo && x <= hi))
                    fail_msg("%s %s", schema, text);
            }
            cn_grammars_close(grammar);
        }
    cn_grammars_free(g);
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":2}",
           LIST("1", "2", "0.5", "0.001", "1.999"), LIST("0", "0.0", "0.00", "-1", "2.5", "2.0e1"));
    SCHEMA("{\"type\":\"number\",\"minimum\":-2,\"exclusiveMaximum\":-0.0}",
           LIST("-2", "-1.5", "-0.5", "-1.0"), LIST("0", "-0.0", "0.5", "-2.5", "1"));
    SCHEMA("{\"type\":\"integer\",\"exclusiveMinimum\":3,\"exclusiveMaximum\":5.5}", LIST("4", "5"),
           LIST("3", "6", "4.0"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":95,\"maximum\":1234567}",
           LIST("95", "99", "100", "999", "1000", "999999", "1000000", "1234567"),
           LIST("0", "9", "94", "-100", "0100", "1234568", "2000000", "10000000"));
    SCHEMA("{\"type\":\"integer\"}", LIST("0", "-1", "10", "999999999999999", "-999999999999999"),
           LIST("-0", "00", "01", "1.0", "1000000000000000", "-", ""));
}

/* Appends an object schema with n required members p0, p1, ... of a type, or a text with their
 * values. */
static void put_object(char *out, size_t size, uint32_t n, const char *type, const char *value)
{
    size_t at = 0;
    if (type) at += (size_t)snprintf(out, size, "{\"type\":\"object\",\"properties\":");
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(out + at, size - at,
                               type ? "%c\"p%u\":{\"type\":\"%s\"}" : "%c\"p%u\":%s", i ? ',' : '{',
                               i, type ? type : value);
    at += (size_t)snprintf(out + at, size - at, "}");
    for (uint32_t i = 0; type && i < n; i++)
        at += (size_t)snprintf(out + at, size - at, "%s\"p%u\"", i ? "," : ",\"required\":[", i);
    if (type) at += (size_t)snprintf(out + at, size - at, "]}");
    assert_true(at < size);
}

static void many_required_members(void **state)
{
    (void)state;
    enum { SIZE = 1 << 17 };
    static const uint32_t sizes[] = {49, 50, 200, 1000};
    static char object[SIZE], schema[2 * SIZE], text[SIZE], array[2 * SIZE];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        put_object(object, SIZE, sizes[i], "integer", NULL);
        put_object(text, SIZE, sizes[i], NULL, "-12");
        SCHEMA(object, LIST(text), LIST("{}", "{\"p0\":1}"));
        snprintf(schema, sizeof schema, "{\"anyOf\":[%s,{\"const\":\"z\"}]}", object);
        SCHEMA(schema, LIST(text, "\"z\""), LIST("{}"));
        snprintf(schema, sizeof schema, "{\"type\":\"array\",\"items\":%s}", object);
        snprintf(array, sizeof array, "[%s]", text);
        SCHEMA(schema, LIST("[]", array), LIST("[{}]"));
    }
}

static void objects(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
           "\"null\"},\"c\":{\"const\":1}},\"required\":[\"b\"],\"additionalProperties\":false}",
           LIST("{\"b\":null}", "{\"a\": 1,\"b\":null}", "{\n  \"a\":1, \"b\": null, \"c\":1\n}",
                "{\"b\":null,\"c\":1}"),
           LIST("{}", "{\"a\":1}", "{\"c\":1,\"b\":null}", "{\"b\":null,}", "{\"b\":null,\"d\":1}",
                "{\"b\":null,\"b\":null}", "{\"b\":null} ", " {\"b\":null}"));
    SCHEMA("{\"properties\":{\"a\":{},\"b\":{}}}",
           LIST("{}", "{\"a\":[1]}", "{\"b\":{\"x\":[]}}", "{\"a\":1,\"b\":2}"), LIST("{\"c\":1}"));
    SCHEMA(
        "{\"type\":\"object\",\"properties\":{\"ab\":{\"const\":1},\"b\":{\"const\":2},"
        "\"é\":{\"const\":3}},\"additionalProperties\":{\"type\":\"boolean\"}}",
        LIST("{}", "{\"ab\":1}", "{\"a\":true}", "{\"abc\":true}", "{\"\":false}",
             "{\"ab\":1,\"b\":2,\"x\":true,\"yé\":false}", "{\"b\":2,\"\\\"\":true}"),
        LIST("{\"ab\":true}", "{\"b\":true}", "{\"é\":true}", "{\"\\u0062\":true}", "{\"x\":1}"));
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}",
           LIST("{}", "{\"a\":null, \"b\":null}"), LIST("{\"a\":1}"));
    SCHEMA("{\"type\":\"object\",\"required\":[\"x\"]}", LIST("{\"x\":1}", "{\"x\":1,\"y\":2}"),
           LIST("{}", "{\"y\":1}"));
}

static void arrays(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"null\"}}",
           LIST("[]", "[null]", "[null, null]"), LIST("[1]", "[null,]", "[,]"));
    SCHEMA("{\"items\":{\"const\":1},\"minItems\":2,\"maxItems\":3}", LIST("[1,1]", "[1,1,1]"),
           LIST("[]", "[1]", "[1,1,1,1]"));
    SCHEMA("{\"items\":{\"const\":1},\"minItems\":1}", LIST("[1]", "[1,1,1,1]"), LIST("[]"));
    SCHEMA("{\"items\":{\"const\":1},\"maxItems\":0}", LIST("[]"), LIST("[1]"));
    SCHEMA("{\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}",
           LIST("[]", "[1]", "[1,2]"), LIST("[2]", "[1,2,3]"));
    SCHEMA("{\"type\":\"array\"}", LIST("[]", "[1,\"a\",{}]"), LIST("[", "{}"));
}

static void references(void **state)
{
    (void)state;
    SCHEMA("{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":"
           "{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#/$defs/node\"},"
           "{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
           LIST("{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"),
           LIST("{\"v\":1}", "{\"v\":1,\"next\":{}}"));
    SCHEMA("{\"anyOf\":[{\"$ref\":\"#\"},{\"const\":1}]}", LIST("1"), LIST("2"));
    SCHEMA("{\"allOf\":[{\"type\":\"null\"}],\"description\":\"x\"}", LIST("null"), LIST("1"));
    SCHEMA("{\"$defs\":{\"a/b\":{\"const\":1}},\"items\":{\"$ref\":\"#/$defs/a~1b\"}}", LIST("[1]"),
           LIST("[2]"));
}

#define TAGGED_OBJECT(tag)                                                 \
    "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"" tag "\"}}," \
    "\"required\":[\"k\"]}"

static void one_of_disjoint_schemas(void **state)
{
    (void)state;
    SCHEMA("{\"oneOf\":[{\"type\":\"integer\"},{\"type\":[\"null\",\"boolean\"]},"
           "{\"const\":\"a\"}]}",
           LIST("1", "null", "true", "\"a\""), LIST("\"b\"", "[]", "1.5"));
    SCHEMA("{\"oneOf\":[{\"enum\":[1,\"a\"]},{\"enum\":[2,\"b\"]},{\"type\":\"array\"}]}",
           LIST("1", "\"b\"", "[1]"), LIST("3", "{}"));
    SCHEMA("{\"oneOf\":[{\"$ref\":\"#/$defs/cat\"},{\"$ref\":\"#/$defs/dog\"}],\"discriminator\":"
           "{\"propertyName\":\"k\"},\"$defs\":{\"cat\":" TAGGED_OBJECT(
               "cat") ",\"dog\":" TAGGED_OBJECT("dog") "}}",
           LIST("{\"k\":\"cat\"}", "{\"k\":\"dog\"}"), LIST("{}", "{\"k\":\"cow\"}"));
    SCHEMA("{\"oneOf\":[{\"anyOf\":[" TAGGED_OBJECT("a") "," TAGGED_OBJECT("b") "]}," TAGGED_OBJECT(
               "c") "]}",
           LIST("{\"k\":\"b\"}", "{\"k\":\"c\"}"), LIST("{\"k\":\"d\"}"));
    SCHEMA("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"null\"}},"
           "\"required\":[\"x\"]},{\"type\":\"object\",\"properties\":{\"y\":{\"type\":\"null\"}},"
           "\"additionalProperties\":false}]}",
           LIST("{\"x\":null}", "{\"y\":null}", "{}"), LIST("{\"x\":null,\"y\":null}"));
}

/* Look-ahead at the beginning, as Pydantic and Zod write it. */
static void look_ahead(void **state)
{
    (void)state;
    SCHEMA("{\"pattern\":\"^(?!^[-+.]*$)[+-]?0*\\\\d*\\\\.?\\\\d*$\"}",
           LIST("\"1\"", "\"-0.5\"", "\"+.7\"", "\"007.\""),
           LIST("\"\"", "\"-\"", "\".\"", "\"1a\""));
    SCHEMA(
        "{\"format\":\"email\",\"pattern\":\"^(?!\\\\.)(?!.*\\\\.\\\\.)([A-Za-z0-9_'+\\\\-\\\\.]*)"
        "[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$\"}",
        LIST("\"a.b@c.de\"", "\"a@x.y.zz\""), LIST("\".a@c.de\"", "\"a..b@c.de\"", "\"a@c\""));
    SCHEMA("{\"pattern\":\"^(?=.*[A-Z])(?=.*\\\\d).{3,5}$\"}", LIST("\"aB1\"", "\"1xxxB\""),
           LIST("\"ab1\"", "\"AB\"", "\"abcdeB1\"", "\"Ab\\n1\""));
    SCHEMA("{\"pattern\":\"^(?=.{2,4}$)[a-c]+(?:-[a-c]+)*$\"}", LIST("\"ab\"", "\"a-bc\""),
           LIST("\"a\"", "\"abc-a\""));
    SCHEMA("{\"pattern\":\"^(?!a|b)\"}", LIST("\"\"", "\"ca\"", "\"é\""), LIST("\"a\"", "\"bc\""));
    SCHEMA("{\"pattern\":\"^(?!(?!ab)a)[a-c]*$\"}", LIST("\"ab\"", "\"b\"", "\"\""),
           LIST("\"a\"", "\"ac\""));
    SCHEMA("{\"pattern\":\"^(?!0)\\\\d+$\",\"maxLength\":2}", LIST("\"1\"", "\"20\""),
           LIST("\"0\"", "\"123\""));
    SCHEMA("{\"type\":\"object\",\"patternProperties\":{\"^(?!_)[a-z_]+$\":{\"const\":1}},"
           "\"additionalProperties\":false}",
           LIST("{\"a_\":1}"), LIST("{\"_a\":1}"));
    /* A negative look-ahead excludes what a class has in any dialect. */
    SCHEMA("{\"pattern\":\"^(?!\\\\w)\"}", LIST("\"-\""), LIST("\"a\"", "\"é\""));
    SCHEMA("{\"pattern\":\"^(?!\\\\W)\"}", LIST("\"a\"", "\"\""), LIST("\"-\"", "\"é\""));
    SCHEMA("{\"pattern\":\"^(?![^\\\\s])\"}", LIST("\" \""), LIST("\"a\"", "\"é\""));
    SCHEMA("{\"pattern\":\"^(?!.)\"}", LIST("\"\"", "\"\\n\""), LIST("\"\\r\"", "\"a\""));
    REGEX("^(?=.*a)[ab]{2}", LIST("ab", "ba"), LIST("bb", "a"));
    REGEX("(?!b)[ab]{2}", LIST("ab", "aa"), LIST("ba"));
    REGEX("(?P<x>a|b)(?<y>c)", LIST("ac", "bc"), LIST("c"));
}

static void patterns(void **state)
{
    (void)state;
    SCHEMA("{\"pattern\":\"^a+$\"}", LIST("\"a\"", "\"aa\""), LIST("\"\"", "\"ab\""));
    SCHEMA("{\"pattern\":\"b\"}", LIST("\"b\"", "\"abc\"", "\"é\\\"b\""), LIST("\"ac\""));
    SCHEMA("{\"pattern\":\"^a|b$\"}", LIST("\"ax\"", "\"xb\""), LIST("\"xa\"", "\"bx\""));
    SCHEMA("{\"pattern\":\"^[^x]$\"}", LIST("\"a\"", "\"\\\"\"", "\"\\n\"", "\"é\""),
           LIST("\"x\"", "\"\n\"", "\"\"\""));
    SCHEMA("{\"type\":\"string\",\"format\":\"date\"}",
           LIST("\"2024-12-31\"", "\"2024-02-29\"", "\"2000-02-29\"", "\"3000-01-01\""),
           LIST("\"2024-02-30\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"2023-02-29\"",
                "\"1900-02-29\""));
    SCHEMA("{\"format\":\"email\"}",
           LIST("\"info@my-company-name.com\"", "\"x@mail.example3.de\"", "\"o'neil+a/b@a.bc\"",
                "\"a.b@eng.cs.uni.ac.uk\""),
           LIST("\"a@b\"", "\"@b.com\"", "\"a..b@c.com\"", "\"a@-b.com\"", "\"a@b-.com\"",
                "\"a@b.c3\"", "\"a b@c.com\""));
    REGEX("[a-c]{2,3}(?:x|yy)*\\d?", LIST("ab", "abcx", "aayyx7"), LIST("a", "abcd", "aby"));
    REGEX("\\w+@[^\\s@]+\\.com", LIST("a_b@c.com"), LIST("@c.com", "a@ .com", "a@\xc3\xa9.com"));
    REGEX("[\\u00e0-\\u00ff]{1,2}|\\x41.", LIST("é", "éê", "Ab", "Aé"), LIST("e", "A\n", "B"));
    REGEX("[^\\s]|\\S", LIST("a", "\x01"), LIST(" ", "\x1c", "\x1f", "\xc3\xa9"));
    REGEX("", LIST(""), LIST("a"));
    REGEX("(a|)b*?", LIST("", "a", "abb", "b"), LIST("ba"));
    check(CN_STRUCTURE_CHOICE, "[\"yes\",\"no\",\"nope\"]", LIST("yes", "no", "nope"),
          LIST("y", "nop", "yesno"));
    check(CN_STRUCTURE_JSON, NULL, LIST("{}", "{\"a\":[{\"b\":1e5}]}"), LIST("[]", "1"));
}

static void numbers_are_valid_for_readers_with_doubles(void **state)
{
    (void)state;
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":99,\"exclusiveMaximum\":100}",
           LIST("99.5", "99.000000000001", "99.99999999999998"),
           LIST("99", "100", "99.0", "99.999999999999999", "99.000000000000001"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.5,\"maximum\":0.95}",
           LIST("0.5", "0.50", "0.95", "0.7", "0.949999999999999"),
           LIST("0.49", "0.951", "1", "0", "-0.7"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.1}", LIST("0.1", "0.10", "999999999999999.5", "7"),
           LIST("0.09", "0.099999999999999", "0", "1e3"));
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1}",
           LIST("0.000000000000001", "1", "1.0", "0.5"),
           LIST("0", "0.0", "-1", "1.1", "0.000000000000000"));
    SCHEMA("{\"type\":\"number\",\"exclusiveMaximum\":-0.25,\"minimum\":-3}",
           LIST("-0.26", "-3", "-3.0", "-1"), LIST("-0.25", "-0.2", "0", "-3.1"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0,\"exclusiveMinimum\":true}", LIST("1"), LIST("0"));
    SCHEMA("{\"type\":\"number\",\"minimum\":-0.5,\"maximum\":0.5}",
           LIST("0", "-0.5", "0.5", "-0.1"), LIST("-0.0", "1", "-0.51"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
           LIST("0", "-5", "999999999999999"), LIST("1.5", "-0"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":1600000000000000}",
           LIST("1600000000000000", "999999999999999999"), LIST("1599999999999999"));
    SCHEMA("{\"type\":\"integer\",\"maximum\":18446744073709551615,\"minimum\":0}", LIST("0", "7"),
           LIST("-1"));
    SCHEMA("{\"type\":\"integer\",\"format\":\"int32\"}", LIST("2147483647", "-2147483648"),
           LIST("2147483648"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":5}", LIST("0", "5", "-10", "1000000"),
           LIST("3", "12", "-7"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":10,\"maximum\":30}",
           LIST("14", "21", "28"), LIST("7", "35", "15"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":1.5}", LIST("0", "3", "-6"),
           LIST("1", "2", "1.5"));
    SCHEMA("{\"type\":\"number\",\"multipleOf\":100}", LIST("300", "-100"), LIST("50", "100.5"));
}

static void keywords_stand_beside_one_another(void **state)
{
    (void)state;
    SCHEMA("{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},"
           "\"required\":[\"a\"]},{\"properties\":{\"a\":{\"minimum\":5},\"b\":{\"const\":1}},"
           "\"required\":[\"b\"]}]}",
           LIST("{\"a\":7,\"b\":1}"), LIST("{\"a\":4,\"b\":1}", "{\"a\":7}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},"
           "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
           LIST("{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"), LIST("{}"));
    SCHEMA("{\"type\":[\"string\",\"null\"],\"anyOf\":[{\"minLength\":2},{\"type\":\"null\"},{"
           "\"type\":\"integer\"}]}",
           LIST("\"ab\"", "null"), LIST("\"a\"", "1"));
    SCHEMA("{\"type\":\"string\",\"enum\":[\"a\",\"abc\",3],\"minLength\":2}", LIST("\"abc\""),
           LIST("\"a\"", "3"));
    SCHEMA("{\"$ref\":\"#/$defs/"
           "n\",\"maximum\":3,\"$defs\":{\"n\":{\"type\":\"integer\",\"minimum\":1}}}",
           LIST("1", "3"), LIST("0", "4"));
    SCHEMA("{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"allOf\":[{\"$ref\":\"#/$defs/"
           "b\"},{\"properties\":{\"c\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
           "t\"},{\"type\":\"null\"}]}},\"required\":[\"c\"]}]},\"b\":{\"type\":\"object\","
           "\"properties\":{\"v\":{\"type\":\"integer\"}},\"required\":[\"v\"]}}}",
           LIST("{\"v\":1,\"c\":null}", "{\"v\":1,\"c\":{\"v\":2,\"c\":null}}"),
           LIST("{\"v\":1}", "{\"v\":1,\"c\":{\"v\":2}}"));
    SCHEMA("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\",\"default\":"
           "\"a\"},\"x\":{\"type\":\"null\"}}},{\"type\":\"object\",\"properties\":{\"k\":{"
           "\"const\":\"b\",\"default\":\"b\"}}}]}",
           LIST("{\"k\":\"a\"}", "{\"k\":\"b\"}", "{\"k\":\"a\",\"x\":null}"),
           LIST("{}", "{\"x\":null}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"unevaluatedProperties\":"
           "false,\"allOf\":[{\"properties\":{\"b\":{\"const\":2}}}]}",
           LIST("{\"a\":1,\"b\":2}", "{}"), LIST("{\"c\":1}"));
    SCHEMA("{\"not\":false,\"type\":\"null\"}", LIST("null"), LIST("1"));
    SCHEMA("{\"type\":\"array\",\"items\":[{\"const\":1},{\"const\":2}],\"additionalItems\":false,"
           "\"minItems\":2}",
           LIST("[1,2]"), LIST("[1]", "[1,2,3]"));
}

static void conditions_on_strings_hold_together(void **state)
{
    (void)state;
    SCHEMA("{\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":4}", LIST("\"ab\"", "\"abcd\""),
           LIST("\"a\"", "\"abcde\"", "\"A1\""));
    SCHEMA("{\"pattern\":\"^\\\\S\",\"maxLength\":3}", LIST("\"a b\"", "\"a\""),
           LIST("\" a\"", "\"abcd\"", "\"\""));
    SCHEMA("{\"pattern\":\"a\",\"allOf\":[{\"pattern\":\"b\"}]}", LIST("\"ab\"", "\"xbya\""),
           LIST("\"a\"", "\"b\""));
    SCHEMA("{\"format\":\"date\",\"pattern\":\"^2024-\"}", LIST("\"2024-02-29\""),
           LIST("\"2023-01-01\"", "\"2024-02-30\""));
    SCHEMA("{\"format\":\"email\",\"maxLength\":20}", LIST("\"ab@cd.ef\""),
           LIST("\"abcdefghijklmnop@cd.ef\"", "\"ab\""));
    SCHEMA("{\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
           LIST("\"https://a.bc/d?e=f#g\""), LIST("\"\"", "\"a\""));
    SCHEMA("{\"minLength\":1,\"maxLength\":300000}", LIST("\"a\""), LIST("\"\""));
    SCHEMA("{\"pattern\":\"^.{3,5}$\",\"minLength\":4}", LIST("\"a\\\"bc\"", "\"éééé\""),
           LIST("\"abc\"", "\"abcdef\""));
}

static void names_are_bounded(void **state)
{
    (void)state;
    SCHEMA("{\"patternProperties\":{\"^x\":{\"const\":1},\"y$\":{\"const\":2}},"
           "\"additionalProperties\":false}",
           LIST("{\"xa\":1}", "{\"ay\":2}", "{}"), LIST("{\"xa\":2}", "{\"a\":1}", "{\"xy\":1}"));
    SCHEMA("{\"patternProperties\":{\"^x\":{\"const\":1}},\"additionalProperties\":{\"const\":3},"
           "\"properties\":{\"xk\":{},\"b\":{\"const\":2}}}",
           LIST("{\"xk\":1,\"b\":2,\"xa\":1,\"c\":3}"),
           LIST("{\"xk\":2}", "{\"c\":1}", "{\"b\":3}"));
    SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-c]{2}$\"},"
           "\"additionalProperties\":{\"type\":\"null\"}}",
           LIST("{\"ab\":null}", "{}"), LIST("{\"ad\":null}", "{\"a\":null}"));
    SCHEMA("{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},"
           "\"additionalProperties\":{\"type\":\"null\"}}",
           LIST("{\"a\":null,\"b\":null}"), LIST("{\"c\":null}"));
    SCHEMA("{\"type\":\"object\",\"minProperties\":1}", LIST("{\"a\":1}"), LIST("{}"));
    SCHEMA("{\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}},"
           "\"minProperties\":2,\"maxProperties\":2}",
           LIST("{\"a\":1,\"c\":3}", "{\"b\":2,\"c\":3}"),
           LIST("{}", "{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3}"));
    SCHEMA("{\"properties\":{\"a\":{\"const\":1}},\"additionalProperties\":{\"const\":2},"
           "\"maxProperties\":2,\"minProperties\":1}",
           LIST("{\"a\":1,\"x\":2}", "{\"x\":2,\"y\":2}", "{\"a\":1}"),
           LIST("{}", "{\"a\":1,\"x\":2,\"y\":2}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{},\"minProperties\":0}", LIST("{}"),
           LIST("{\"a\":1}"));
}

static void items_from_a_list_differ(void **state)
{
    (void)state;
    SCHEMA("{\"items\":{\"enum\":[\"a\",\"b\",\"c\"]},\"uniqueItems\":true}",
           LIST("[]", "[\"b\",\"a\"]", "[\"a\",\"b\",\"c\"]"), LIST("[\"a\",\"a\"]", "[\"d\"]"));
    SCHEMA("{\"items\":{\"type\":\"boolean\"},\"uniqueItems\":true,\"minItems\":2}",
           LIST("[true,false]"), LIST("[true]", "[true,true]"));
    SCHEMA("{\"items\":{\"enum\":[1,2,3,4,5,6,7,8,9]},\"uniqueItems\":true,\"minItems\":2,"
           "\"maxItems\":3}",
           LIST("[1,2]", "[9,5,1]"), LIST("[1]", "[1,1]", "[1,2,3,4]"));
    SCHEMA("{\"items\":{\"enum\":[[1],[2],[3],[4],[5],[6],[7]]},\"uniqueItems\":true}",
           LIST("[[1],[2]]", "[[1],[7]]"), LIST("[[1],[1]]", "[[2],[1]]"));
    SCHEMA("{\"items\":{\"type\":\"integer\"},\"uniqueItems\":false,\"maxItems\":3}",
           LIST("[7,7,7]"), LIST("[1,2,3,4]"));
}

static void references_take_every_form(void **state)
{
    (void)state;
    SCHEMA("{\"$defs\":{\"a "
           "b\":{\"const\":1},\"c%d\":{\"const\":2},\"\":{\"const\":3},\"e~f\":[{\"const\":4}],"
           "\"g\":{\"$anchor\":\"here\",\"const\":5}},\"prefixItems\":[{\"$ref\":\"#/$defs/"
           "a%20b\"},{\"$ref\":\"#/$defs/c%25d\"},{\"$ref\":\"#/$defs/\"},{\"$ref\":\"#/$defs/e~0f/"
           "0\"},{\"$ref\":\"#here\"}]}",
           LIST("[1,2,3,4,5]"), LIST("[2]"));
    SCHEMA("{\"$id\":\"https://x.y/z\",\"items\":{\"$ref\":\"https://x.y/z#/$defs/"
           "a\"},\"$defs\":{\"a\":{\"const\":1}}}",
           LIST("[1]"), LIST("[2]"));
}

static void refuse(cn_structure_kind kind, const char *text, const char *error)
{
    cn_grammars *g = make(0);
    const cn_structure s = {kind, text, whitespace, strict};
    cn_grammar *grammar;
    const cn_status status = grammar_open(g, &s, &grammar);
    if (status != CN_ERR_ARG || !strstr(cn_last_error(), error))
        fail_msg("%s: status %d, %s", text, (int)status, cn_last_error());
    cn_grammars_free(g);
}

static void white_space_is_what_the_request_asks_for(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"properties\":{\"a\":{\"type\":\"array\"},\"b\":{\"enum\":[[1,2]]},\"c\":{}},"
        "\"required\":[\"a\"],\"additionalProperties\":true}";
    static const char *const compact[] = {"{\"a\":[],\"b\":[1,2],\"x\":{\"y\":[1,{}]}}",
                                          "{\"a\":[1,\"a b\"]}", NULL};
    static const char *const spaced[] = {"{ \"a\":[]}",
                                         "{\"a\": []}",
                                         "{\"a\":[] }",
                                         "{\"a\":[1, 2]}",
                                         "{\"a\":[ 1]}",
                                         "{\"a\":[1 ]}",
                                         "{\"a\":[], \"c\":1}",
                                         "{\"a\":[],\"c\":{\"d\": 1}}",
                                         NULL};
    static const char *const broken[] = {"{\"a\":\n[]}", "{\"a\":[1,\n  2]}", NULL};
    whitespace = NULL;
    SCHEMA(schema, compact, spaced);
    SCHEMA(schema, compact, broken);
    whitespace = " ?";
    SCHEMA(schema, compact, broken);
    SCHEMA(schema, spaced, broken);
    whitespace = "\\s*";
    SCHEMA(schema, compact, LIST("{\"a\":\v[]}"));
    SCHEMA(schema, spaced, LIST("{\"a\":\xc2\xa0[]}"));
    SCHEMA(schema, broken, LIST("{\"a\":[]}\n"));
    whitespace = "a?";
    refuse(CN_STRUCTURE_JSON, NULL, "whitespace_pattern: regular expression, byte 1: expected sp");
    whitespace = "(";
    refuse(CN_STRUCTURE_JSON, NULL, "whitespace_pattern: regular expression, byte 1");
    whitespace = NULL;
    whitespace = CN_JSON_WHITESPACE_ANY;
}

static void warns(const char *text, const char *warning)
{
    cn_grammars *g = make(0);
    cn_grammar *grammar = open_grammar(g, CN_STRUCTURE_SCHEMA, text);
    const char *found = cn_grammar_warnings(grammar);
    if (warning ? !found || !strstr(found, warning) : found != NULL)
        fail_msg("%s: warnings %s", text, found ? found : "none");
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

/* Strict requests are refused, others get a warning. */
static void what_is_not_enforced_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
    } schemas[] = {
        {"{\"properties\":{\"a\":{\"items\":{\"not\":{\"type\":\"null\"}}}}}",
         "schema at #/properties/a/items: keyword 'not' is not supported"},
        {"{\"if\":{\"type\":\"null\"}}", "keyword 'if' is not supported"},
        {"{\"type\":\"array\",\"contains\":{\"const\":1}}", "keyword 'contains'"},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "keyword 'dependentRequired'"},
        {"{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"integer\"},{\"type\":\"number\"}]}",
         "both schema 1 and schema 2"},
        {"{\"oneOf\":[{\"const\":1},{\"enum\":[2,1.0]}]}", "both schema 0 and schema 1"},
        {"{\"oneOf\":[{\"pattern\":\"a\"},{\"type\":\"null\"}]}", "or use anyOf"},
        {"{\"oneOf\":[" TAGGED_OBJECT("a") ",{\"properties\":{\"k\":{\"const\":\"b\"}}}]}",
         "or use anyOf"},
        {"{\"oneOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "or use anyOf"},
        {"{\"anyOf\":[{},{\"type\":\"number\",\"multipleOf\":0.1}]}",
         "at #/anyOf/1: multipleOf 0.1"},
        {"{\"uniqueItems\":true}", "uniqueItems of items"},
        {"{\"pattern\":\"(?=a)\"}", "pattern: regular expression, byte 1: only groups"},
        {"{\"pattern\":\"a\\\\b\"}", "byte 2: this escape"},
        {"{\"patternProperties\":{\"(?=a)\":{}}}", "patternProperties '(?=a)': regular expression"},
        {"{\"propertyNames\":{\"not\":{}}}", "propertyNames: only conditions on a string"},
        {"{\"minProperties\":3}", "minProperties beyond 1"},
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        warns(schemas[i].text, schemas[i].name);
        strict = true;
        refuse(CN_STRUCTURE_SCHEMA, schemas[i].text, schemas[i].name);
        refuse(CN_STRUCTURE_SCHEMA, schemas[i].text, "set strict to false");
        strict = false;
    }
    /* Annotations concern no answer: strict allows them. */
    strict = true;
    warns("{\"format\":\"iri\"}", "format \"iri\" is unknown and has no effect");
    warns("{\"type\":\"null\",\"minlength\":3}", "keyword 'minlength' is unknown");
    warns("{\"type\":\"string\",\"nullable\":true,\"x-order\":1,\"contentMediaType\":\"a/b\","
          "\"examples\":[1],\"strict\":true,\"title\":\"t\",\"format\":\"password\"}",
          NULL);
    warns("{\"type\":\"integer\",\"format\":\"int64\"}", NULL);
    strict = false;
}

static void what_is_wrong_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } schemas[] = {
        {"{\"oneOf\":[]}", "oneOf: expected an array of schemas"},
        {"{\"allOf\":[]}", "allOf: expected an array of schemas"},
        {"{\"type\":\"text\"}", "expected the name of a JSON type, got \"text\""},
        {"{\"$ref\":\"#/$defs/x\"}", "$ref: expected a part of this schema"},
        {"{\"$ref\":\"http://x/y\"}", "$ref: expected a part of this schema"},
        {"{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"items\":{\"$ref\":\"#/$defs/a\"}}",
         "refers to itself"},
        {"{\"enum\":[]}", "enum: expected an array of values"},
        {"{\"enum\":[1],\"const\":2}", "no text matches"},
        {"{\"type\":\"integer\",\"minimum\":1,\"maximum\":0}", "expected bounds with a number"},
        {"{\"type\":\"integer\",\"minimum\":0.1,\"maximum\":0.9}", "expected bounds with a number"},
        {"{\"type\":\"number\",\"minimum\":1e20}", "expected bounds with a number"},
        {"{\"type\":\"number\",\"multipleOf\":0}", "multipleOf: expected a number above 0"},
        {"{\"maxLength\":-1}", "maxLength: expected a whole number"},
        {"{\"minLength\":3,\"maxLength\":2}", "no text matches"},
        {"{\"properties\":{\"a\":false},\"required\":[\"a\"]}", "schema at #: no text matches"},
        {"{\"properties\":{\"a\":{\"items\":{\"not\":{}},\"minItems\":1},\"b\":{\"not\":{}}},"
         "\"required\":[\"a\"]}",
         "schema at #/properties/a/items: no text matches"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "no text matches"},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", "which is not a property"},
        {"{", "schema"},
        {"3", "expected an object, true or false, got 3"},
    };
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        refuse(CN_STRUCTURE_SCHEMA, schemas[i].text, schemas[i].error);
    refuse(CN_STRUCTURE_REGEX, "a{3,2}", "bounds are swapped");
    refuse(CN_STRUCTURE_REGEX, "(a", "byte 2: expected )");
    refuse(CN_STRUCTURE_REGEX, "a(?=b)b", "only groups (...), (?:...) and (?<name>...)");
    refuse(CN_STRUCTURE_REGEX, "^(?=a)b|c", "only groups");
    refuse(CN_STRUCTURE_REGEX, "^(?=a(?<=b))b",
           "look-ahead: regular expression, byte 3: only groups");
    refuse(CN_STRUCTURE_REGEX, "^(?=a", "only groups");
    refuse(CN_STRUCTURE_REGEX, "^(?=a)*", "nothing to repeat");
    refuse(CN_STRUCTURE_REGEX, "(?<=a)b", "only groups");
    refuse(CN_STRUCTURE_REGEX, "(?Pa)", "only groups");
    refuse(CN_STRUCTURE_REGEX, "(?=a)b", "no text matches");
    refuse(CN_STRUCTURE_REGEX, "a)", "expected ( before )");
    refuse(CN_STRUCTURE_REGEX, "[a", "expected ]");
    refuse(CN_STRUCTURE_REGEX, "*a", "nothing to repeat");
    refuse(CN_STRUCTURE_REGEX, "a^b", "at the ends of the expression only");
    refuse(CN_STRUCTURE_REGEX, "((((a{9999}){9999}){9999}){9999}){9999}", "needs more than");
    refuse(CN_STRUCTURE_CHOICE, "[]", "1 to 4096 strings");
    refuse(CN_STRUCTURE_CHOICE, "[\"a\",3]", "non-empty strings");
}

/* ---- masks ---- */

static bool allowed(const uint32_t *mask, uint32_t token)
{
    return mask[token / 32] >> token % 32 & 1;
}

static bool can_follow(cn_grammar *grammar, const char *text, size_t n, uint32_t token)
{
    cn_matcher m;
    cn_grammar_match(grammar, &m);
    assert_int_equal(cn_matcher_push(&m, text, n), CN_OK);
    const bool ok = token == EOS    ? cn_matcher_accepts(&m)
                    : token < BYTES ? cn_matcher_push(&m, &grammar_bytes[token], 1) == CN_OK
                                    : cn_matcher_push(&m, words[token - BYTES],
                                                      strlen(words[token - BYTES])) == CN_OK;
    cn_matcher_end(&m);
    return ok;
}

static const char *const drawn[] = {
    "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"string\",\"maxLength\":4},\"t\":{"
    "\"type\":\"boolean\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"t\"]}",
    "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]},"
    "\"maxItems\":4}",
    "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"properties\":{\"ab\":{\"items\":{\"$ref\":"
    "\"#/$defs/t\"}}}}}}",
    "{\"type\":\"object\",\"properties\":{\"ab\":{}},\"additionalProperties\":true}",
};

/* Draws a text token by token from the masks; `most` bounds the memory. Every drawn text must end
 * in a state that accepts, or go on. */
static void draw_texts(uint64_t most, uint32_t n_texts, bool compare)
{
    cn_grammars *g = make(most);
    uint64_t h = 7;
    uint32_t n_whole = 0;
    for (uint32_t i = 0; i < n_texts; i++) {
        cn_grammar *grammar =
            open_grammar(g, CN_STRUCTURE_SCHEMA, drawn[i % (sizeof drawn / sizeof *drawn)]);
        char text[256];
        size_t n = 0;
        cn_matcher m;
        cn_grammar_match(grammar, &m);
        while (n < 100) {
            const uint32_t *mask;
            assert_int_equal(grammar_mask(g, &m, &mask), CN_OK);
            uint32_t can[VOCAB], n_can = 0;
            for (uint32_t t = 0; t < VOCAB; t++) {
                if (allowed(mask, t)) can[n_can++] = t;
                if (compare) assert_int_equal(allowed(mask, t), can_follow(grammar, text, n, t));
            }
            assert_true(n_can > 0);
            h = cn_hash64(h, &i, sizeof i);
            const uint32_t token = can[h % n_can];
            if (token == EOS) {
                assert_true(cn_matcher_accepts(&m));
                n_whole++;
                break;
            }
            const char *add = token < BYTES ? &grammar_bytes[token] : words[token - BYTES];
            const size_t len = token < BYTES ? 1 : strlen(add);
            assert_int_equal(cn_matcher_push(&m, add, len), CN_OK);
            memcpy(text + n, add, len);
            n += len;
            assert_true(!cn_matcher_is_complete(&m) || cn_matcher_accepts(&m));
        }
        cn_matcher_end(&m);
        cn_grammars_close(grammar);
    }
    assert_true(n_whole > n_texts / 8);
    cn_grammars_free(g);
}

static void masks_have_the_tokens_that_may_follow(void **state)
{
    (void)state;
    draw_texts(0, 24, true);
}

static void forgotten_states_are_made_again(void **state)
{
    (void)state;
    draw_texts(1, 100, false); /* every mask is made with the memory full */
}

static void equal_grammars_are_one(void **state)
{
    (void)state;
    cn_grammars *g = make(0);
    cn_grammar *a = open_grammar(g, CN_STRUCTURE_SCHEMA, "{\"type\":\"null\"}");
    cn_grammar *b = open_grammar(g, CN_STRUCTURE_SCHEMA, "{\"type\":\"null\"}");
    cn_grammar *c = open_grammar(g, CN_STRUCTURE_REGEX, "null");
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    cn_grammars_close(a);
    cn_grammars_close(b);
    cn_grammars_close(c);
    assert_ptr_equal(open_grammar(g, CN_STRUCTURE_SCHEMA, "{\"type\":\"null\"}"), a);
    cn_grammars_close(a);
    cn_grammars_free(g);
}

static void hostile_expressions_stay_within_bounds(void **state)
{
    (void)state;
    cn_grammars *g = make(1 << 20);
    /* 2^40 states in a deterministic automaton. */
    cn_grammar *grammar = open_grammar(g, CN_STRUCTURE_REGEX, "(a|b)*a(a|b){40}");
    cn_matcher m;
    uint64_t h = 3;
    cn_grammar_match(grammar, &m);
    for (int i = 0; i < 3000; i++) {
        const uint32_t *mask;
        h = cn_hash64(h, &i, sizeof i);
        assert_int_equal(grammar_mask(g, &m, &mask), CN_OK);
        assert_true(allowed(mask, 'a') && allowed(mask, 'b') && !allowed(mask, 'c'));
        assert_int_equal(cn_matcher_push(&m, h & 1 ? "a" : "b", 1), CN_OK);
    }
    cn_matcher_end(&m);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

static void values_inside_one_another_end(void **state)
{
    (void)state;
    cn_grammars *g = make(0);
    cn_grammar *grammar = open_grammar(g, CN_STRUCTURE_SCHEMA, "{\"type\":\"array\"}");
    cn_matcher m;
    cn_grammar_match(grammar, &m);
    uint32_t depth = 0;
    while (cn_matcher_push(&m, "[", 1) == CN_OK) depth++;
    cn_matcher_end(&m);
    assert_in_range(depth, 50, CN_NET_MAX_DEPTH);
    cn_grammar_match(grammar, &m);
    for (uint32_t i = 0; i < depth; i++) assert_int_equal(cn_matcher_push(&m, "[", 1), CN_OK);
    for (uint32_t i = 0; i < depth; i++) assert_int_equal(cn_matcher_push(&m, "]", 1), CN_OK);
    assert_true(cn_matcher_is_complete(&m));
    cn_matcher_end(&m);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),
        cmocka_unit_test(numbers_keep_their_bounds),
        cmocka_unit_test(many_required_members),
        cmocka_unit_test(objects),
        cmocka_unit_test(arrays),
        cmocka_unit_test(references),
        cmocka_unit_test(one_of_disjoint_schemas),
        cmocka_unit_test(patterns),
        cmocka_unit_test(look_ahead),
        cmocka_unit_test(numbers_are_valid_for_readers_with_doubles),
        cmocka_unit_test(keywords_stand_beside_one_another),
        cmocka_unit_test(conditions_on_strings_hold_together),
        cmocka_unit_test(names_are_bounded),
        cmocka_unit_test(items_from_a_list_differ),
        cmocka_unit_test(references_take_every_form),
        cmocka_unit_test(white_space_is_what_the_request_asks_for),
        cmocka_unit_test(what_is_not_enforced_is_named),
        cmocka_unit_test(what_is_wrong_is_refused_by_name),
        cmocka_unit_test(masks_have_the_tokens_that_may_follow),
        cmocka_unit_test(forgotten_states_are_made_again),
        cmocka_unit_test(equal_grammars_are_one),
        cmocka_unit_test(hostile_expressions_stay_within_bounds),
        cmocka_unit_test(values_inside_one_another_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
