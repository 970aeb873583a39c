/* test_grammar_calls.c - the form of tool calls on texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/grammar_open.h"

static const char *whitespace = CN_JSON_WHITESPACE_ANY; /* of the next forms */

static cn_grammar *open_form(cn_grammars *g, const char *text)
{
    const cn_structure s = {CN_STRUCTURE_CALLS, text, whitespace, false};
    cn_grammar *grammar = NULL;
    if (grammar_open(g, &s, &grammar) != CN_OK) fail_msg("%s: %s", text, cn_last_error());
    return grammar;
}

/* Lists end with NULL. */
static void check(const char *text, const char *const *good, const char *const *bad)
{
    cn_grammars *g = grammar_words(NULL, 0, 0);
    cn_grammar *grammar = open_form(g, text);
    grammar_check_texts(grammar, text, good, bad);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
/* Functions f(a: integer), fg() and h(any). */
#define FUNCTIONS                                                           \
    "\"functions\":[{\"name\":\"f\",\"parameters\":{\"type\":\"object\","   \
    "\"properties\":{\"a\":{\"$ref\":\"#/$defs/x\"}},\"required\":[\"a\"]," \
    "\"$defs\":{\"x\":{\"type\":\"integer\"}}}},"                           \
    "{\"name\":\"fg\"},{\"name\":\"h\",\"parameters\":{}}]}"
#define CALL(name, args) "{\"name\":\"" name "\",\"args\":" args "}"
#define TAGGED(name, args) "<c>" CALL(name, args) "</c>"

static void calls(void **state)
{
    (void)state;
    check("{\"begin\":\"<c>\",\"between\":\"\",\"end\":\"</c>\",\"arguments\":\"args\","
          "\"one\":true," FUNCTIONS,
          LIST(TAGGED("f", "{\"a\":1}"), TAGGED("fg", "{}"), TAGGED("h", "{\"b\":[1]}"),
               "<c>\n{\"name\": \"f\", \"args\": {\"a\": 12}}\n</c>"),
          LIST("", "<c></c>", CALL("fg", "{}"), TAGGED("f", "{}"), TAGGED("f", "{\"a\":\"x\"}"),
               TAGGED("g", "{}"), TAGGED("fg", "{\"a\":1}"), "<c>{\"name\":\"fg\"}</c>",
               TAGGED("h", "1"), TAGGED("fg", "{}") TAGGED("fg", "{}")));
    check("{\"begin\":\"\",\"between\":\";\",\"end\":\"\",\"arguments\":\"args\",\"one\":"
          "false," FUNCTIONS,
          LIST(CALL("fg", "{}"), CALL("f", "{\"a\":1}") "; " CALL("fg", "{}") ";" CALL("h", "{}")),
          LIST(CALL("fg", "{}") ";", CALL("fg", "{}") CALL("fg", "{}"),
               CALL("fg", "{}") " " CALL("fg", "{}")));
}

static void calls_or_a_message(void **state)
{
    (void)state;
    check("{\"begin\":\"<c>\",\"between\":\"\",\"end\":\"</c>\",\"arguments\":\"args\","
          "\"message\":{\"properties\":{\"name\":{\"const\":\"Bob\"}},\"required\":[\"name\"]},"
          "\"one\":"
          "false," FUNCTIONS,
          LIST(TAGGED("f", "{\"a\":1}") TAGGED("fg", "{}"), "{\"name\":\"Bob\"}"),
          LIST("", "{\"name\":\"f\"}", TAGGED("fg", "{}") "{\"name\":\"Bob\"}",
               "{\"name\":\"Bob\"}" TAGGED("fg", "{}")));
}

static void warnings_name_the_function(void **state)
{
    (void)state;
    cn_grammars *g = grammar_words(NULL, 0, 0);
    cn_grammar *grammar = open_form(
        g, "{\"arguments\":\"a\",\"functions\":[{\"name\":\"f\",\"parameters\":{\"if\":{}}},"
           "{\"name\":\"g\",\"parameters\":{\"if\":{}}}],\"message\":{\"if\":{}}}");
    const char *line = "schema at #: keyword 'if' is not supported, which is not enforced\n";
    char expected[512];
    snprintf(expected, sizeof expected,
             "%sparameters of function f: %sparameters of function g: %s", line, line, line);
    assert_string_equal(cn_grammar_warnings(grammar), expected);
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

static void white_space_is_only_around_calls(void **state)
{
    (void)state;
    whitespace = NULL;
    check("{\"begin\":\"<c>\",\"between\":\"\",\"end\":\"</c>\",\"arguments\":\"args\","
          "\"one\":true," FUNCTIONS,
          LIST(TAGGED("f", "{\"a\":1}"), "<c>\n" CALL("fg", "{}") "\n</c>"),
          LIST(TAGGED("f", "{\"a\": 1}"), "<c> " CALL("fg", "{}") "</c>",
               "<c>{\"name\": \"fg\",\"args\":{}}</c>"));
    whitespace = CN_JSON_WHITESPACE_ANY;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls),
        cmocka_unit_test(calls_or_a_message),
        cmocka_unit_test(warnings_name_the_function),
        cmocka_unit_test(white_space_is_only_around_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
