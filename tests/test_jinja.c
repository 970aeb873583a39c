/* test_jinja.c - single constructs must render as in jinja2 (golden/chat_template), and a hostile
 * template must end in an error that says why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/text/jinja/jinja.h"
#include "tests/lib/chat_golden.h"

static bool exceeded; /* the last rendering exceeded a limit */

/* Renders source with the variables. NULL: it failed, with cn_last_error. */
static char *render(const char *source, size_t n, const json_t *variables)
{
    cn_jinja *t;
    cn_buf out = {0};
    exceeded = false;
    cn_status status = cn_jinja_parse(&t, source, n);
    if (status == CN_OK) status = cn_jinja_render(t, variables, &out, &exceeded);
    cn_jinja_free(t);
    if (status != CN_OK) cn_buf_free(&out);
    return out.data;
}

static void snippets_render_as_in_jinja2(void **state)
{
    (void)state;
    json_t *golden = chat_golden_load(), *row;
    const json_t *variables = json_object_get(golden, "variables");
    size_t i, n_texts = 0, n_errors = 0;
    json_array_foreach(json_object_get(golden, "snippets"), i, row)
    {
        const json_t *source = json_array_get(row, 0);
        const char *want = json_string_value(json_array_get(row, 1));
        char *text = render(json_string_value(source), json_string_length(source), variables);
        if (!want && text)
            fail_msg("%s: expected an error, got %s", json_string_value(source), text);
        if (want && !text) fail_msg("%s: %s", json_string_value(source), cn_last_error());
        if (want && strcmp(text, want) != 0)
            fail_msg("%s\nexpected %s\ngot      %s", json_string_value(source), want, text);
        n_texts += want != NULL;
        n_errors += want == NULL;
        free(text);
    }
    json_decref(golden);
    assert_true(n_texts > 60 && n_errors > 80);
}

static void expect_error(const char *source, const char *want)
{
    json_t *variables = json_object();
    char *text = render(source, strlen(source), variables);
    json_decref(variables);
    if (text) fail_msg("%.200s: expected an error, got %.200s", source, text);
    if (!strstr(cn_last_error(), want))
        fail_msg("%.200s: expected an error with '%s', got '%s'", source, want, cn_last_error());
}

static void hostile_templates_end_in_an_error(void **state)
{
    (void)state;
    static const struct {
        const char *source, *error;
    } cases[] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested"},
        {"{% macro f(x) %}{{ x() }}{% endmacro %}{% macro g() %}{{ f(g) }}{% endmacro %}{{ g() }}",
         "nested"},
        {"{% for i in [[]] recursive %}{{ loop([[]]) }}{% endfor %}", "nested"},
        {"{% set n = namespace() %}{% set n.n = n %}{{ n }}", "nested"},
        {"{% set n = namespace() %}{% set n.n = [n] %}{{ n.n | tojson }}", "Namespace"},
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
         "values of the template exceed"},
        {"{% set l = range(100000) %}{% for i in range(1000) %}{{ 0.5 in l }}{% endfor %}",
         "steps"},
        {"{% set s = 'ab' * 1000000 %}{% for i in range(1000) %}{{ 'aa' in s }}{% endfor %}",
         "steps"},
        {"{% set s = 'x' * 100000 %}{% for i in range(100000) %}{{ s }}{% endfor %}",
         "text exceeds"},
        {"{{ 'x' * 9223372036854775807 }}", "steps"},
        {"{{ '' | indent(9223372036854775807, true) }}", "steps"},
        {"{{ [1] * 9223372036854775807 }}", "exceed"},
        {"{{ [[]] * 9223372036854775807 }}", "exceed"},
        {"{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}"
         "{% set n.s = n.s + n.s %}{% endfor %}",
         "exceed"},
        {"{% set n = namespace(l=[1]) %}{% for i in range(99) %}"
         "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
         "steps"},
        {"{% set n = namespace(l=[1]) %}{% for i in range(40) %}"
         "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == n.l }}",
         "steps"},
        {"{{ range(9223372036854775807) }}", "more than 100000 numbers"},
        {"{{ range(0, -9223372036854775807, -1) }}", "more than 100000 numbers"},
        {"{{ 9223372036854775807 + 1 }}", "64 bits"},
        {"{{ -9223372036854775807 - 2 }}", "64 bits"},
        {"{{ (0 - 9223372036854775807 - 1) // -1 }}", "64 bits"},
        {"{{ 10 ** 19 }}", "64 bits"},
        {"{{ 2 ** 9223372036854775807 }}", "64 bits"},
        {"{{ 99999999999999999999 }}", "too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *error = cases[i].error;
        expect_error(cases[i].source, error);
        assert_int_equal(exceeded, !strcmp(error, "nested") || !strcmp(error, "steps") ||
                                       strstr(error, "exceed"));
    }
}

/* n times `open`, then n times `close`. */
static void expect_deep_error(const char *before, const char *open, const char *middle,
                              const char *close, const char *after, const char *want)
{
    cn_buf source = {0};
    cn_buf_addf(&source, "%s", before);
    for (int i = 0; i < 20000; i++) cn_buf_addf(&source, "%s", open);
    cn_buf_addf(&source, "%s", middle);
    for (int i = 0; i < 20000; i++) cn_buf_addf(&source, "%s", close);
    cn_buf_addf(&source, "%s", after);
    expect_error(source.data, want);
    cn_buf_free(&source);
}

static void deep_nesting_ends_in_an_error(void **state)
{
    (void)state;
    expect_deep_error("{{ ", "(", "1", ")", " }}", "nested");
    expect_deep_error("{{ ", "[", "1", "]", " }}", "nested");
    expect_deep_error("{{ ", "{1:", "1", "}", " }}", "nested");
    expect_deep_error("{{ ", "-", "1", "", " }}", "nested");
    expect_deep_error("{{ ", "not ", "1", "", " }}", "nested");
    expect_deep_error("{{ ", "x[", "1", "]", " }}", "nested");
    expect_deep_error("{{ ", "f(", "1", ")", " }}", "nested");
    expect_deep_error("{{ ", "1 if 1 else ", "1", "", " }}", "nested");
    expect_deep_error("", "{% if 1 %}", "x", "{% endif %}", "", "nested");
    expect_deep_error("{% if 0 %}", "{% elif 0 %}", "x", "", "{% endif %}", "nested");
    expect_deep_error("{% set ", "(", "a", ")", " = 1 %}", "nested");
    expect_deep_error("{{ 1", " + 1", "", "", " }}", "nested");
    expect_deep_error("{{ x", ".y", "", "", " }}", "nested");
    expect_deep_error("{{ x", " | upper", "", "", " }}", "nested");
    expect_deep_error("{{ x", " is odd", "", "", " }}", "chained");
    /* Long but not deep. */
    cn_buf source = {0};
    for (int i = 0; i < 20000; i++) cn_buf_addf(&source, "{{ 1 ~ 2 }}{%% set a = [1, 2, 3] %%}");
    json_t *none = json_object();
    char *text = render(source.data, source.len, none);
    assert_non_null(text);
    assert_int_equal(strlen(text), 40000);
    free(text);
    json_decref(none);
    cn_buf_free(&source);
}

/* Variables nested deeper than a request may have. */
static void deep_variables_end_in_an_error(void **state)
{
    (void)state;
    json_t *value = json_integer(1);
    for (int i = 0; i < 1000; i++) value = json_pack("[o]", value);
    json_t *variables = json_pack("{s:o}", "x", value);
    assert_null(render("{{ x }}", 7, variables));
    assert_non_null(strstr(cn_last_error(), "nested"));
    json_decref(variables);
}

static void a_failed_rendering_leaves_the_output(void **state)
{
    (void)state;
    cn_jinja *t;
    cn_buf out = {0};
    json_t *none = json_object();
    static const char source[] = "text {% set x %}more{{ 1 / 0 }}{% endset %}";
    assert_int_equal(cn_jinja_parse(&t, source, strlen(source)), CN_OK);
    cn_buf_add(&out, "before", 6);
    assert_int_equal(cn_jinja_render(t, none, &out, &exceeded), CN_ERR_ARG);
    assert_false(exceeded);
    assert_string_equal(out.data, "before");
    assert_string_equal(cn_last_error(), "chat template, line 1: division by zero");
    cn_jinja_free(t);
    cn_buf_free(&out);
    json_decref(none);
}

/* A template, and whether a function finds a name in it. */
typedef struct search {
    const char *source;
    bool found;
} search;

static void check_searches(const search *cases, size_t n,
                           bool (*finds)(const cn_jinja *t, const char *name), const char *name)
{
    for (size_t i = 0; i < n; i++) {
        cn_jinja *t;
        assert_int_equal(cn_jinja_parse(&t, cases[i].source, strlen(cases[i].source)), CN_OK);
        if (finds(t, name) != cases[i].found) fail_msg("%s", cases[i].source);
        cn_jinja_free(t);
    }
}

static void loops_over_a_content_are_found(void **state)
{
    (void)state;
    static const search cases[] = {
        {"{% for p in m.content %}{% endfor %}", true},
        {"{% for p in m['content'] if p %}{% endfor %}", true},
        {"{% for p in content | reverse %}{% endfor %}", true},
        {"{% for m in x %}{% if a %}{% elif b %}{% else %}{% set y %}{% macro f() %}"
         "{% for p in m.content %}{% endfor %}{% endmacro %}{% endset %}{% endif %}{% endfor %}",
         true},
        {"{% generation %}{% for p in content %}{% endfor %}{% endgeneration %}", true},
        {"{% for p in content.parts %}{{ content }}{% endfor %}{{ m.content }}", false},
        {"{% for p in m[content] %}{% endfor %}", false},
        {"{% for content in messages %}{% endfor %}", false},
    };
    check_searches(cases, sizeof cases / sizeof *cases, cn_jinja_loops_over, "content");
}

static void variables_are_found(void **state)
{
    (void)state;
    static const search cases[] = {
        {"{% if tools %}{% endif %}", true},
        {"{{ f(a, x=[1, {'k': tools[0]}]) }}", true},
        {"{% for t in a %}{% macro f(b=tools) %}{% endmacro %}{% endfor %}", true},
        {"{% set x = a if b else (tools or c) | length %}", true},
        {"{% if 1 < 2 < tools %}{% endif %}", true},
        {"tools {{ message.tools }} {{ m['tools'] }} {# tools #}", false},
    };
    check_searches(cases, sizeof cases / sizeof *cases, cn_jinja_has_variable, "tools");
}

/* A chain may be as long as a template. */
static void variables_behind_long_chains_are_found(void **state)
{
    (void)state;
    enum { LINKS = 400000 };
    static const char *const links[] = {" or a", " + a", "|trim", ".x", "[0]"};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        cn_buf source = {0};
        cn_jinja *t;
        assert_int_equal(cn_buf_addf(&source, "{{ tools"), CN_OK);
        for (int k = 0; k < LINKS; k++)
            assert_int_equal(cn_buf_addf(&source, "%s", links[i]), CN_OK);
        assert_int_equal(cn_buf_addf(&source, " }}"), CN_OK);
        if (cn_jinja_parse(&t, source.data, source.len) != CN_OK) fail_msg("%s", cn_last_error());
        assert_true(cn_jinja_has_variable(t, "tools"));
        assert_false(cn_jinja_has_variable(t, "documents"));
        cn_jinja_free(t);
        cn_buf_free(&source);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snippets_render_as_in_jinja2),
        cmocka_unit_test(hostile_templates_end_in_an_error),
        cmocka_unit_test(deep_nesting_ends_in_an_error),
        cmocka_unit_test(deep_variables_end_in_an_error),
        cmocka_unit_test(a_failed_rendering_leaves_the_output),
        cmocka_unit_test(loops_over_a_content_are_found),
        cmocka_unit_test(variables_are_found),
        cmocka_unit_test(variables_behind_long_chains_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
