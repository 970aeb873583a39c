/* fuzz_jinja.c - feeds hostile chat templates. Must hold: no crash and no hang; a failure has a
 * printable text and leaves the output as it was; rendering twice gives the same text; the text of
 * valid variables is valid UTF-8 if the template is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/jinja/jinja.h"
#include "tests/lib/fuzz.h"

static json_t *variables;

static void check_error(void)
{
    for (const char *p = cn_last_error(); *p; p++) FUZZ_CHECK(*p >= 0x20 && *p < 0x7f);
}

static void run(const uint8_t *data, size_t size)
{
    cn_jinja *t;
    const char *source = (const char *)data;
    cn_status status = cn_jinja_parse(&t, source, size);
    if (status != CN_OK) {
        FUZZ_CHECK(status == CN_ERR_MODEL && !t);
        check_error();
        return;
    }
    cn_jinja_loops_over(t, "content");
    cn_jinja_has_variable(t, "tools");
    cn_buf one = {0}, two = {0};
    bool exceeded[2];
    FUZZ_CHECK(cn_buf_add(&one, "before", 6) == CN_OK);
    status = cn_jinja_render(t, variables, &one, &exceeded[0]);
    FUZZ_CHECK(status == CN_OK || status == CN_ERR_ARG);
    FUZZ_CHECK(status == CN_OK || one.len == 6);
    if (status != CN_OK) check_error();
    FUZZ_CHECK(memcmp(one.data, "before", 6) == 0);
    FUZZ_CHECK(cn_jinja_render(t, variables, &two, &exceeded[1]) == status);
    FUZZ_CHECK(exceeded[0] == exceeded[1] && !(exceeded[0] && status == CN_OK));
    FUZZ_CHECK(status != CN_OK || one.len == two.len + 6);
    /* strftime_now may give another second, but no other length. */
    bool clock = memmem(source, size, "strftime", 8) != NULL;
    if (status == CN_OK && !clock && two.len)
        FUZZ_CHECK(memcmp(one.data + 6, two.data, two.len) == 0);
    if (status == CN_OK && cn_utf8_valid_prefix(source, size) == size)
        FUZZ_CHECK(cn_utf8_valid_prefix(one.data, one.len) == one.len);
    cn_buf_free(&one);
    cn_buf_free(&two);
    cn_jinja_free(t);
}

static const char *const words[] = {
    "{{ ",
    " }}",
    "{%- ",
    " -%}",
    "{#",
    "#}",
    "{% if ",
    "{% elif ",
    "{% else %}",
    "{% endif %}",
    "{% for m in messages %}",
    "{% for k, v in d.items() %}",
    "{% endfor %}",
    " recursive",
    "{% set x = ",
    "{% set ns.x = ",
    "{% set y %}",
    "{% endset %}",
    "{% macro f(a, b=1) %}",
    "{% endmacro %}",
    "f(f)",
    "{% call f() %}",
    "{% endcall %}",
    "caller()",
    "{% break %}",
    "{% continue %}",
    "{% raw %}",
    "{% endraw %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% with a = 1 %}",
    "{% endwith %}",
    "{% generation %}",
    "{% endgeneration %}",
    "loop.index",
    "loop.nextitem",
    "loop(m)",
    "loop.changed(m)",
    "loop.cycle(1, 2)",
    "namespace(x=[])",
    "messages[0]['content']",
    "messages[::-1]",
    "[1:",
    ":-2]",
    "m.content",
    ".split('a')",
    ".strip()",
    ".replace('a', '')",
    ".format(1)",
    ".join(d)",
    ".rsplit('o', 1)",
    ".splitlines()",
    ".find('l')",
    ".zfill(9)",
    " | tojson",
    " | tojson(indent=2)",
    " | list",
    " | length",
    " | sort",
    " | reverse",
    " | map(attribute='role')",
    " | selectattr('role', 'equalto', 'user')",
    " | join(',')",
    " | indent(3)",
    " | batch(2)",
    " | slice(3)",
    " | groupby('role')",
    " | unique",
    " | dictsort",
    " | truncate(5)",
    " | int",
    " | round(1)",
    " | default('x', true)",
    " | title",
    " | format(1, 2)",
    " | center(20)",
    " | urlencode",
    " | items",
    " | first",
    " is defined",
    " is string",
    " is not none",
    " is divisibleby 3",
    " is in ",
    " not in ",
    " and ",
    " or ",
    "not ",
    " ~ ",
    " // ",
    " ** ",
    " % ",
    "'%5.3f %s'",
    "range(9)",
    "range(-9, 9, 2)",
    "dict(a=1)",
    "raise_exception('x')",
    "strftime_now('%Y')",
    "9223372036854775807",
    "-1",
    "1e308",
    "0.1",
    "'é\\u00e9'",
    "'\\x",
    "none",
    "true",
    "*l",
    "**d",
    "(1, 2)",
    "{'a': 1}",
    "\r\n",
    "\xc3",
    "\xf0\x9f\x99\x82",
};

int main(int argc, char **argv)
{
    const fuzz_input corpus[] = {
        FUZZ_TEXT("{{- bos_token }}\n{%- for m in messages %}\n    {%- if m['role'] == 'user' and "
                  "not loop.first %}\n{{ '<' ~ m.role ~ '>' + m.content | trim }}\n{%- else -%}\n"
                  "{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}\n{%- endfor %}"),
        FUZZ_TEXT("{%- macro t(s, deep=0) -%}{%- if s is mapping and deep < 4 -%}{%- for k, v in "
                  "s.items() -%}{{ k }}:{{ t(v, deep + 1) }}{{ ', ' if not loop.last }}{%- endfor "
                  "-%}{%- else -%}{{ s | tojson }}{%- endif -%}{%- endmacro -%}{{ t(d) }}"),
        FUZZ_TEXT(
            "{% set ns = namespace(a=[], n=0) %}{% for x in l if x is not none %}{% set "
            "ns.n = ns.n + 1 %}{% set ns.a = ns.a + [x ~ ''] %}{% endfor %}{{ ns.a | join('-') }} "
            "{{ ns.n }} {{ l[1:3] }} {{ s[::-1] }} {{ '%s|%5d' % (s, 3) }}"),
        FUZZ_TEXT(
            "{% set b %}{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
            "{% endfor %}{% endset %}{{ b | upper | indent(2, true) }}{% raw %}{{ x }}"
            "{% endraw %}{# c #}{% call(v) f(1) %}{{ v }}{% endcall %}"),
        FUZZ_TEXT("{{ messages | map(attribute='content') | select('string') | list | "
                  "tojson(indent=2) }}{{ d | dictsort }}{{ messages | groupby('role') }}{{ "
                  "s.partition('l') }}"),
    };
    const fuzz_target target = {.name = "jinja",
                                .run = run,
                                .corpus = corpus,
                                .n_corpus = sizeof corpus / sizeof *corpus,
                                .words = words,
                                .n_words = sizeof words / sizeof *words,
                                .max_size = 2048};
    static const char given[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
        "\"content\": \" h\\u00e9llo\\r\\n\"}, {\"role\": \"assistant\", \"content\": \"<think>x"
        "</think>y\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": "
        "1.5}}}]}, {\"role\": \"tool\", \"content\": null}], \"d\": {\"b\": 1, \"a\": [null, "
        "true]}, \"l\": [3, \"x\", null, [1, 2]], \"s\": \"h\\u00e9llo \\ud83d\\ude42\", "
        "\"bos_token\": \"<s>\"}";
    json_error_t error;
    variables = json_loads(given, 0, &error);
    if (!variables) {
        fprintf(stderr, "fuzz_jinja: %s\n", error.text);
        return 1;
    }
    int code = fuzz_main(argc, argv, &target);
    json_decref(variables);
    return code;
}
