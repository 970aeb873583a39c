/* test_grammar_limits.c - the budget of a compilation: expressions and schemas that are made to
 * take long are refused with their place, in a number of steps; ordinary large ones are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/grammar/schema.h"
#include "tests/lib/grammar_open.h"

enum { BYTES = 256, TEXT_BYTES = CN_SCHEMA_MAX_BYTES + 4096 };

static cn_grammars *make(void) { return grammar_words(NULL, 0, 0); }

/* `error`: a part of the message; NULL: the text compiles. */
static void check(cn_structure_kind kind, const char *text, const char *error)
{
    cn_grammars *g = make();
    cn_grammar *grammar = NULL;
    const cn_structure s = {kind, text, NULL, true};
    const cn_status status = grammar_open(g, &s, &grammar);
    if (!error && status != CN_OK) fail_msg("%.200s: %s", text, cn_last_error());
    if (error && (status != CN_ERR_ARG || !strstr(cn_last_error(), error)))
        fail_msg("%.200s: status %d, %s", text, (int)status, status ? cn_last_error() : "");
    cn_grammars_close(grammar);
    cn_grammars_free(g);
}

/* A text that grows; it must fit. */
static char text[TEXT_BYTES];
static size_t n_text;

static void add(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    n_text += (size_t)vsnprintf(text + n_text, sizeof text - n_text, fmt, ap);
    va_end(ap);
    assert_true(n_text < sizeof text);
}

/* Numbers from `first` on. */
static void add_enum(const char *name, int first, int n)
{
    add("\"%s\":{\"enum\":[", name);
    for (int i = 0; i < n; i++) add(i ? ",%d" : "%d", first + i);
    add("]}");
}

static void expressions_have_a_budget(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        /* Empty groups make no nodes. */
        {"(((){65535}){65535}){65535}", "byte 3: compiling it takes more than 30000000 steps"},
        {"x(?:(){9999}){9999}", "byte 5: compiling it takes more than"},
        {"(){65535}", NULL},
        {"((){999}){999}", NULL},
        {"((a{0,99}){0,99}){0,99}", "byte 3: the grammar needs more than 131072 nodes"},
        {"((|){1,9999}){1,9999}", "byte 3: the grammar needs more"},
        {"((()?){65535}){65535}", "the grammar needs more"},
        {"([\\u0100-\\uffff]{0,999}){0,999}", "the grammar needs more"},
        {"(|){1,9999}", NULL},
        {"[\\u0100-\\uffff]{0,9999}", NULL},
        {".{0,65535}", NULL},
        {"(a?){60000}", "more than 8192 places of it at once"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(CN_STRUCTURE_REGEX, cases[i].text, cases[i].error);
    check(CN_STRUCTURE_SCHEMA,
          "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"pattern\":\"((){65535}){65535}\"}}}",
          "schema at #/properties/b: pattern: regular expression, byte 2: compiling it takes more");
}

/* Alternatives with two long lists of constants. With `tag` one property differs in all. Without it
 * each pair differs in a property of its own. */
static void put_one_of(int n, int n_values, bool tag)
{
    n_text = 0;
    add("{\"$defs\":{");
    add_enum("A", 1000, n_values);
    add(",");
    add_enum("B", 5000, n_values);
    add("},\"oneOf\":[");
    for (int i = 0; i < n; i++) {
        add("%s{\"type\":\"object\",\"properties\":{", i ? "," : "");
        for (int b = 0; b < (tag ? 1 : 8); b++)
            add("%s\"p%d\":{\"$ref\":\"#/$defs/%c\"}", b ? "," : "", b, i >> b & 1 ? 'B' : 'A');
        if (tag) add(",\"k\":{\"const\":%d}", i);
        add(tag ? "},\"required\":[\"p0\",\"k\"]}"
                : "},\"required\":[\"p0\",\"p1\",\"p2\",\"p3\",\"p4\",\"p5\",\"p6\",\"p7\"]}");
    }
    add("]}");
}

static void one_of_has_a_budget(void **state)
{
    (void)state;
    put_one_of(400, 1500, true);
    check(CN_STRUCTURE_SCHEMA, text, NULL);
    put_one_of(100, 1500, false);
    check(CN_STRUCTURE_SCHEMA, text, "schema at #: compiling it takes more than");
    put_one_of(30, 20, false);
    check(CN_STRUCTURE_SCHEMA, text, NULL);
}

static void functions_share_a_budget(void **state)
{
    (void)state;
    n_text = 0;
    add("{\"begin\":\"\",\"between\":\"\",\"end\":\"\",\"arguments\":\"a\",\"functions\":[");
    for (int i = 0; i < 60; i++)
        add("%s{\"name\":\"f%d\",\"parameters\":{\"properties\":{\"x\":{\"pattern\":"
            "\"((){999}){999}\"}}}}",
            i ? "," : "", i);
    add("]}");
    check(CN_STRUCTURE_CALLS, text,
          "at #/properties/x: pattern: regular expression, byte 2: compil");
}

static void large_schemas_compile(void **state)
{
    (void)state;
    n_text = 0;
    add("{\"enum\":[");
    for (int i = 0; i < 4500; i++) add("%s\"value-%d\"", i ? "," : "", i);
    add("]}");
    check(CN_STRUCTURE_SCHEMA, text, NULL);
    n_text = 0; /* names that are not in `properties` */
    add("{\"required\":[");
    for (int i = 0; i < 3000; i++) add("%s\"a%d\"", i ? "," : "", i);
    add("]}");
    check(CN_STRUCTURE_SCHEMA, text, NULL);
    n_text = 0; /* a chain of references, used often */
    add("{\"$defs\":{");
    for (int i = 0; i < 60; i++) add("\"a%d\":{\"$ref\":\"#/$defs/a%d\"},", i, i + 1);
    add("\"a60\":{\"type\":\"null\"}},\"prefixItems\":[");
    for (int i = 0; i < 2000; i++) add("%s{\"$ref\":\"#/$defs/a0\"}", i ? "," : "");
    add("]}");
    check(CN_STRUCTURE_SCHEMA, text, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_have_a_budget),
        cmocka_unit_test(one_of_has_a_budget),
        cmocka_unit_test(functions_share_a_budget),
        cmocka_unit_test(large_schemas_compile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
