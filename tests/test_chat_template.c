/* test_chat_template.c - chats must render as in transformers (golden/chat_template). Also tests
 * where the template comes from, its variables, and the templates that come with cinch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/options/options.h"
#include "engine/text/chat_family.h"
#include "engine/text/chat_template.h"
#include "tests/lib/chat_golden.h"
#include "tests/lib/scratch_dir.h"

static json_t *golden;
static scratch_dir dir;

static int open_golden(void **state)
{
    (void)state;
    golden = chat_golden_load();
    scratch_dir_open(&dir);
    return 0;
}

static int close_golden(void **state)
{
    (void)state;
    json_decref(golden);
    scratch_dir_close(&dir);
    return 0;
}

/* Writes tokenizer_config.json: {key: value}, with BOS "[B]". */
static void put_config(json_t *programs)
{
    json_t *config =
        json_pack("{s:{s:s},s:o*}", "bos_token", "content", "[B]", "chat_template", programs);
    char *text = json_dumps(config, 0);
    scratch_dir_put(&dir, "tokenizer_config.json", text, strlen(text));
    free(text);
    json_decref(config);
}

static cn_chat_template *load(const char *choice)
{
    cn_chat_template *t;
    if (cn_chat_template_load(&t, dir.path, choice) != CN_OK) fail_msg("%s", cn_last_error());
    return t;
}

/* Renders variables given as JSON; NULL: the rendering failed. */
static char *render(const cn_chat_template *t, const char *variables)
{
    json_error_t error;
    json_t *v = json_loads(variables, 0, &error);
    if (!v) fail_msg("%s: %s", variables, error.text);
    cn_buf out = {0};
    cn_buf_add(&out, "before ", 7);
    const cn_status status = cn_chat_template_render(t, v, &out);
    json_decref(v);
    assert_memory_equal(out.data, "before ", 7);
    if (status != CN_OK) assert_int_equal(out.len, 7);
    char *text = status == CN_OK ? strdup(out.data + 7) : NULL;
    cn_buf_free(&out);
    return text;
}

static void expect(const cn_chat_template *t, const char *variables, const char *want)
{
    char *text = render(t, variables);
    if (!text) fail_msg("%s: %s", variables, cn_last_error());
    assert_string_equal(text, want);
    free(text);
}

/* ---- golden chats ---- */

static void check_case(const cn_chat_template *t, const char *name, const char *chat,
                       const json_t *want)
{
    cn_buf out = {0};
    const json_t *variables = json_object_get(json_object_get(golden, "chats"), chat);
    const cn_status status = cn_chat_template_render(t, variables, &out);
    if (json_is_null(want) != (status != CN_OK))
        fail_msg("%s, %s: expected %s, got %s", name, chat,
                 json_is_null(want) ? "an error" : "text", status ? cn_last_error() : out.data);
    if (status == CN_OK) {
        char *text = chat_golden_dates(json_string_value(want));
        if (strcmp(out.data, text) != 0)
            fail_msg("%s, %s:\nexpected %s\ngot      %s", name, chat, text, out.data);
        free(text);
    }
    cn_buf_free(&out);
}

static void renders_as_transformers(void **state)
{
    (void)state;
    size_t i, n_texts = 0;
    json_t *c;
    const char *loaded = "";
    cn_chat_template *t = NULL;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        const char *name = json_string_value(json_array_get(c, 0));
        if (strcmp(name, loaded) != 0) {
            char path[256];
            cn_chat_template_free(t);
            chat_golden_put_tokens(golden, &dir);
            snprintf(path, sizeof path, "tests/golden/chat_template/templates/%s.jinja", name);
            t = load(path);
            loaded = name;
        }
        check_case(t, name, json_string_value(json_array_get(c, 1)), json_array_get(c, 2));
        n_texts += json_is_string(json_array_get(c, 2));
    }
    cn_chat_template_free(t);
    assert_true(n_texts > 600);
}

/* ---- where the template comes from ---- */

static void a_missing_template_is_refused_until_one_is_chosen(void **state)
{
    (void)state;
    put_config(NULL);
    cn_chat_template *t = load("auto");
    assert_int_equal(cn_chat_template_check(t), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "the checkpoint has no chat template"));
    assert_non_null(strstr(cn_last_error(), "--chat-template"));
    assert_null(render(t, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}"));
    cn_chat_template_free(t);
    scratch_dir_put(&dir, "tokenizer_config.json", NULL, 0);
    t = load("chatml");
    assert_int_equal(cn_chat_template_check(t), CN_OK);
    expect(t, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
           "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
    cn_chat_template_free(t);
}

static void a_syntax_error_of_the_checkpoint_is_told_at_the_first_chat(void **state)
{
    (void)state;
    put_config(json_string("line one\n{% if %}"));
    cn_chat_template *t = load("auto");
    assert_int_equal(cn_chat_template_check(t), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "line 2: expected an expression, got %}"));
    assert_non_null(strstr(cn_last_error(), CN_CHAT_FAMILY_NAMES));
    cn_chat_template_free(t);
}

static void a_chosen_file_must_be_usable(void **state)
{
    (void)state;
    cn_chat_template *t;
    put_config(json_string("own"));
    assert_int_equal(cn_chat_template_load(&t, dir.path, "/no/such"), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--chat-template /no/such"));
    char path[128];
    snprintf(path, sizeof path, "%s/chosen.jinja", dir.path);
    scratch_dir_put(&dir, "chosen.jinja", "{{ 1 + }}", 9);
    assert_int_equal(cn_chat_template_load(&t, dir.path, path), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "expected an expression"));
    scratch_dir_put(&dir, "chosen.jinja", "{{ bos_token }}chosen", 21);
    t = load(path);
    expect(t, "{\"messages\": [{}]}", "[B]chosen");
    cn_chat_template_free(t);
    scratch_dir_put(&dir, "chosen.jinja", NULL, 0);
}

static void a_template_file_comes_before_the_config(void **state)
{
    (void)state;
    static const char one[] = "{\"messages\": [{}]}";
    put_config(json_string("config"));
    scratch_dir_put(&dir, "chat_template.jinja", "file\n", 5);
    cn_chat_template *t = load("auto");
    expect(t, one, "file");
    cn_chat_template_free(t);
    scratch_dir_put(&dir, "chat_template.jinja", NULL, 0);
    t = load("auto");
    expect(t, one, "config");
    cn_chat_template_free(t);
}

static void named_templates_are_for_chats_with_and_without_tools(void **state)
{
    (void)state;
    put_config(json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "name", "rag", "template", "{{", "name",
                         "default", "template", "plain", "name", "tool_use", "template", "tools"));
    cn_chat_template *t = load("auto");
    expect(t, "{\"messages\": [{}]}", "plain");
    expect(t, "{\"messages\": [{}], \"tools\": []}", "plain");
    expect(t, "{\"messages\": [{}], \"tools\": [{}]}", "tools");
    cn_chat_template_free(t);
}

/* ---- variables ---- */

static void a_template_gets_the_variables_of_transformers(void **state)
{
    (void)state;
    put_config(json_string("{{ tools }} {{ documents }} {{ add_generation_prompt }} "
                           "{{ bos_token }} {{ eos_token is defined }} {{ mode }} "
                           "{{ continue_final_message is defined }}"));
    cn_chat_template *t = load("auto");
    expect(t, "{\"messages\": [{}]}", "None None True [B] False  False");
    expect(t,
           "{\"messages\": [{}], \"tools\": [1], \"documents\": [2], \"mode\": \"m\", "
           "\"add_generation_prompt\": false, \"bos_token\": \"X\"}",
           "[1] [2] False X False m False");
    assert_null(render(t, "{\"messages\": []}"));
    assert_non_null(strstr(cn_last_error(), "at least one message"));
    cn_chat_template_free(t);
}

static void text_parts_are_joined_unless_the_template_reads_them(void **state)
{
    (void)state;
    static const char parts[] = "{\"messages\": [{\"content\": [{\"type\": \"text\", \"text\": "
                                "\"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]}";
    static const char *const readers[] = {
        "{% for m in messages %}{% for p in m['content'] %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% macro f(content) %}{% for p in content if p.type == 'text' %}<{{ p.text }}>{% endfor %}"
        "{% endmacro %}{{ f(messages[0].content) }}",
    };
    for (size_t i = 0; i < 2; i++) {
        put_config(json_string(readers[i]));
        cn_chat_template *t = load("auto");
        expect(t, parts, "<a><b>");
        cn_chat_template_free(t);
    }
    put_config(json_string("{% for m in messages %}{{ m.content }}{% endfor %}"));
    cn_chat_template *t = load("auto");
    expect(t, parts, "a\nb");
    cn_chat_template_free(t);
}

static void a_final_message_can_be_continued(void **state)
{
    (void)state;
    put_config(json_string("{% for m in messages %}[{{ m.content }}]{% endfor %}"
                           "{{ 'A:' if add_generation_prompt }}"));
    cn_chat_template *t = load("auto");
#define CONTINUE(content)                                          \
    "{\"messages\": [{\"content\": \"x\"}, {\"content\": " content \
    "}], \"add_generation_prompt\": false, \"continue_final_message\": true}"
    expect(t, CONTINUE("\"The sky \""), "[x][The sky ");
    assert_null(render(t, CONTINUE("null")));
    cn_chat_template_free(t);
    put_config(json_string("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"));
    t = load("auto");
    expect(t, CONTINUE("\" The sky \""), "[x][The sky");
    cn_chat_template_free(t);
    put_config(json_string("{{ messages[0].content }}"));
    t = load("auto");
    assert_null(render(t, CONTINUE("\"gone\"")));
    assert_non_null(strstr(cn_last_error(), "continue_final_message"));
    cn_chat_template_free(t);
}

/* Some templates test for None and others expect text. A further rendering must not hide the error
 * of the first, nor repeat one that takes long. */
static void calls_are_rendered_in_the_form_that_the_template_takes(void **state)
{
    (void)state;
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                               "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": ["
                               "{\"function\": {\"arguments\": {\"x\": [0.1, \"é\"]}}}, "
                               "{\"function\": {\"arguments\": \"{cut\"}}, {}]}]}";
#define LOOP(body) "{% for m in messages %}" body "{% endfor %}"
    static const struct {
        const char *source, *want, *error;
    } cases[] = {
        {LOOP("{{ '[' + m.content + ']' }}"), "[a][]", NULL},
        {LOOP("{{ 'none' if m['content'] is none else m.content }}"), "anone", NULL},
        {LOOP("{% if m.content is not string %}{{ raise_exception('no text') }}{% endif %}|"), "||",
         NULL},
        /* As DeepSeek-R1-Distill's: without its calls the chat would render too. */
        {LOOP("{% if m.content is none %}{% for c in m.tool_calls[:2] %}"
              "{{ '<' + c.function.arguments + '>' }}{% endfor %}{% else %}"
              "{{ m.content + ';' }}{% endif %}"), "a;<{\"x\": [0.1, \"é\"]}><{cut>", NULL},
        {LOOP("{{ m.content + ';' }}") "{{ '<' + messages[1].tool_calls[0].function.arguments }}",
         "a;;<{\"x\": [0.1, \"é\"]}", NULL},
        {LOOP("{{ m.content + ';' }}") "{{ messages[1].tool_calls[0].function.arguments.x[0] }}",
         "a;;0.1", NULL},
        {LOOP("{{ m.content + raise_exception(m.role) }}"), NULL, "line 1: user"},
        {LOOP("{{ m.content + 'x' }}") "\n{{ raise_exception('later') }}", NULL,
         "line 1: operator + does not take a NoneType"},
        {"{% if messages[1].content is none %}" LOOP("{% for i in range(99999) %}"
         "{% for j in range(99999) %}{% endfor %}{% endfor %}") "{% endif %}", NULL, "exceed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_config(json_string(cases[i].source));
        cn_chat_template *t = load("auto");
        if (cases[i].want)
            expect(t, chat, cases[i].want);
        else
            assert_null(render(t, chat));
        if (cases[i].error && !strstr(cn_last_error(), cases[i].error))
            fail_msg("expected '%s', got '%s'", cases[i].error, cn_last_error());
        cn_chat_template_free(t);
    }
}

static void an_exception_of_the_template_is_the_error(void **state)
{
    (void)state;
    put_config(json_string("\n{{ raise_exception('roles must \\u00e4lternate') }}"));
    cn_chat_template *t = load("auto");
    assert_null(render(t, "{\"messages\": [{}]}"));
    assert_string_equal(cn_last_error(), "chat template, line 2: roles must \\xc3\\xa4lternate");
    cn_chat_template_free(t);
}

/* ---- the templates that come with cinch ---- */

/* Each must render as the public template of the same family, where both render the chat. */
static void families_render_as_the_public_templates(void **state)
{
    (void)state;
    static const struct {
        const char *family, *public;
    } pairs[] = {{"chatml", "chatml"},
                 {"qwen2", "qwen2.5"},
                 {"qwen3", "qwen3"},
                 {"llama3", "llama3"},
                 {"deepseek-r1", "deepseek_r1_distill"}};
    chat_golden_put_tokens(golden, &dir);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t k, checked = 0;
        json_t *c;
        cn_chat_template *t = load(pairs[i].family);
        assert_int_equal(cn_chat_template_check(t), CN_OK);
        assert_false(cn_chat_template_add_special(t));
        json_array_foreach(json_object_get(golden, "cases"), k, c)
        {
            const char *chat = json_string_value(json_array_get(c, 1));
            if (strstr(chat, "call") && strncmp(pairs[i].family, "qwen", 4) != 0) continue;
            if (strcmp(json_string_value(json_array_get(c, 0)), pairs[i].public) != 0) continue;
            if (json_is_null(json_array_get(c, 2))) continue;
            check_case(t, pairs[i].family, chat, json_array_get(c, 2));
            checked++;
        }
        assert_true(checked >= 9);
        cn_chat_template_free(t);
    }
}

static void the_family_none_writes_contents(void **state)
{
    (void)state;
    cn_chat_template *t = load("none");
    assert_true(cn_chat_template_add_special(t));
    expect(t, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"content\": \"b\"}]}",
           "a\nb");
    cn_chat_template_free(t);
}

/* The help and the error list each family, and no other. */
static void the_names_of_families_are_the_table(void **state)
{
    (void)state;
    char names[] = CN_CHAT_FAMILY_NAMES, *save;
    size_t n = 0;
    const cn_option *option = cn_option_find("chat-template");
    assert_non_null(strstr(option->help, CN_CHAT_FAMILY_NAMES));
    for (char *name = strtok_r(names, ", ", &save); name; name = strtok_r(NULL, ", ", &save), n++) {
        assert_non_null(cn_chat_family_find(name));
        assert_true(cn_chat_template_is_known(name));
    }
    assert_int_equal(n, cn_chat_family_count());
    assert_true(cn_chat_template_is_known("auto"));
    assert_false(cn_chat_template_is_known("vicuna"));
}

static void deepseek_refuses_the_role_of_tools(void **state)
{
    (void)state;
    cn_chat_template *t = load("deepseek-r1");
    assert_null(render(t, "{\"messages\": [{\"role\": \"tool\", \"content\": \"42\"}]}"));
    assert_non_null(strstr(cn_last_error(), "\"tool\""));
    cn_chat_template_free(t);
}

static void the_bundled_checkpoint_is_chatml(void **state)
{
    (void)state;
    cn_chat_template *t;
    assert_int_equal(cn_chat_template_load(&t, "examples/tiny-reasoner", "auto"), CN_OK);
    assert_int_equal(cn_chat_template_check(t), CN_OK);
    expect(t, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
           "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
    cn_chat_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_as_transformers),
        cmocka_unit_test(a_missing_template_is_refused_until_one_is_chosen),
        cmocka_unit_test(a_syntax_error_of_the_checkpoint_is_told_at_the_first_chat),
        cmocka_unit_test(a_chosen_file_must_be_usable),
        cmocka_unit_test(a_template_file_comes_before_the_config),
        cmocka_unit_test(named_templates_are_for_chats_with_and_without_tools),
        cmocka_unit_test(a_template_gets_the_variables_of_transformers),
        cmocka_unit_test(text_parts_are_joined_unless_the_template_reads_them),
        cmocka_unit_test(a_final_message_can_be_continued),
        cmocka_unit_test(calls_are_rendered_in_the_form_that_the_template_takes),
        cmocka_unit_test(an_exception_of_the_template_is_the_error),
        cmocka_unit_test(families_render_as_the_public_templates),
        cmocka_unit_test(the_family_none_writes_contents),
        cmocka_unit_test(the_names_of_families_are_the_table),
        cmocka_unit_test(deepseek_refuses_the_role_of_tools),
        cmocka_unit_test(the_bundled_checkpoint_is_chatml),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
