/* test_chat_template.c - chats must render as in transformers (golden/chat_template). Also tests
 * templates that must be refused, and the effect of --chat-template. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/text/chat_template.h"
#include "tests/lib/scratch_dir.h"

static json_t *golden;
static scratch_dir dir;

static int open_golden(void **state)
{
    (void)state;
    json_error_t error;
    golden = json_load_file("tests/golden/chat_template/cases.json", 0, &error);
    if (!golden) fail_msg("tests/golden/chat_template/cases.json: %s", error.text);
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

static void put_config(const char *program, const char *bos)
{
    json_t *config = json_pack("{s:s?,s:s?}", "chat_template", program, "bos_token", bos);
    char *text = json_dumps(config, 0);
    scratch_dir_put(&dir, "tokenizer_config.json", text, strlen(text));
    free(text);
    json_decref(config);
}

static cn_chat_template *load(cn_opt_chat_template family)
{
    cn_chat_template *t;
    if (cn_chat_template_load(&t, dir.path, family) != CN_OK) fail_msg("%s", cn_last_error());
    return t;
}

static char *render(const cn_chat_template *t, const char *const *pairs, int thinking)
{
    cn_message messages[8];
    size_t n = 0;
    for (; pairs[2 * n]; n++)
        messages[n] = (cn_message){.role = pairs[2 * n], .content = pairs[2 * n + 1]};
    cn_buf out = {0};
    if (cn_chat_template_render(t, messages, n, thinking, &out) != CN_OK)
        fail_msg("%s", cn_last_error());
    return out.data;
}
#define CHAT(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Replaces today's date with the mark, as the script of the golden file does. */
static void put_today(cn_buf *text)
{
    static const char mark[] = "<<today>>";
    char today[32];
    time_t now = time(NULL);
    strftime(today, sizeof today, "%d %b %Y", localtime(&now));
    char *at = strstr(text->data, today);
    if (!at) return;
    cn_buf out = {0};
    cn_buf_add(&out, text->data, (size_t)(at - text->data));
    cn_buf_addf(&out, "%s%s", mark, at + strlen(today));
    cn_buf_free(text);
    *text = out;
}

static void check_case(const cn_chat_template *t, const json_t *c, size_t index)
{
    const json_t *list = json_object_get(c, "messages");
    size_t n = json_array_size(list);
    cn_message *messages = calloc(n, sizeof *messages);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(list, i);
        messages[i] = (cn_message){
            .role = json_string_value(json_object_get(m, "role")),
            .content = json_string_value(json_object_get(m, "content")),
            .reasoning = json_string_value(json_object_get(m, "reasoning_content")),
        };
    }
    int thinking = (int)json_integer_value(json_object_get(c, "thinking"));
    const char *want = json_string_value(json_object_get(c, "text"));
    cn_buf out = {0};
    cn_buf_add(&out, "before ", 7);
    if (cn_chat_template_render(t, messages, n, thinking, &out) != CN_OK)
        fail_msg("case %zu: %s", index, cn_last_error());
    if (strstr(want, "<<today>>")) put_today(&out);
    if (strcmp(out.data + 7, want) != 0)
        fail_msg("case %zu:\nexpected %s\ngot      %s", index, want, out.data + 7);
    free(messages);
    cn_buf_free(&out);
}

/* Each template of the golden file has its family, and renders as the checkpoint's own template. */
static void renders_as_transformers(void **state)
{
    (void)state;
    const char *name;
    json_t *entry;
    size_t checked = 0;
    json_object_foreach(json_object_get(golden, "templates"), name, entry)
    {
        put_config(json_string_value(json_object_get(entry, "program")),
                   json_string_value(json_object_get(entry, "bos")));
        cn_chat_template *t = load(CN_OPT_CHAT_AUTO);
        if (cn_chat_template_check(t) != CN_OK) fail_msg("%s: %s", name, cn_last_error());
        const char *family = json_string_value(json_object_get(entry, "family"));
        assert_string_equal(cn_chat_template_name(t), family);
        assert_false(cn_chat_template_add_special(t));
        size_t i;
        json_t *c;
        json_array_foreach(json_object_get(golden, "cases"), i, c)
        {
            if (strcmp(json_string_value(json_object_get(c, "template")), name) != 0) continue;
            check_case(t, c, i);
            checked++;
        }
        cn_chat_template_free(t);
    }
    assert_true(checked > 300 && checked == json_array_size(json_object_get(golden, "cases")));
}

static void unknown_templates_are_refused(void **state)
{
    (void)state;
    const char *name;
    json_t *program;
    json_object_foreach(json_object_get(golden, "unknown"), name, program)
    {
        put_config(json_string_value(program), "<s>");
        cn_chat_template *t = load(CN_OPT_CHAT_AUTO);
        if (cn_chat_template_check(t) == CN_OK)
            fail_msg("%s was recognised as %s", name, cn_chat_template_name(t));
        assert_int_equal(cn_chat_template_check(t), CN_ERR_MODEL);
        assert_non_null(strstr(cn_last_error(), "--chat-template"));
        assert_string_equal(cn_chat_template_name(t), "unknown");
        cn_buf out = {0};
        cn_message hi = {.role = "user", .content = "hi"};
        assert_int_equal(cn_chat_template_render(t, &hi, 1, -1, &out), CN_ERR_MODEL);
        assert_int_equal(out.len, 0);
        cn_buf_free(&out);
        cn_chat_template_free(t);
    }
}

static void a_missing_template_is_refused_until_one_is_chosen(void **state)
{
    (void)state;
    put_config(NULL, NULL);
    cn_chat_template *t = load(CN_OPT_CHAT_AUTO);
    assert_int_equal(cn_chat_template_check(t), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "the checkpoint has none"));
    cn_chat_template_free(t);
    scratch_dir_put(&dir, "tokenizer_config.json", NULL, 0);
    t = load(CN_OPT_CHAT_CHATML);
    assert_int_equal(cn_chat_template_check(t), CN_OK);
    char *text = render(t, CHAT("user", "x"), -1);
    assert_string_equal(text, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    cn_chat_template_free(t);
}

static void overrides_choose_a_family(void **state)
{
    (void)state;
    static const struct {
        cn_opt_chat_template family;
        const char *name, *text;
    } cases[] = {
        {CN_OPT_CHAT_CHATML, "chatml", "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"},
        {CN_OPT_CHAT_QWEN2, "qwen2",
         "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
         "assistant.<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"},
        {CN_OPT_CHAT_QWEN3, "qwen3",
         "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
        {CN_OPT_CHAT_LLAMA3, "llama3",
         "[B]<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {CN_OPT_CHAT_DEEPSEEK_R1, "deepseek-r1", "[B]<｜User｜>x<｜Assistant｜><think>\n"},
        {CN_OPT_CHAT_NONE, "none", "x"},
    };
    put_config("{{ 'unknown' }}", "[B]");
    assert_int_equal(sizeof cases / sizeof *cases, CN_OPT_N_CHAT - 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_chat_template *t = load(cases[i].family);
        char *text = render(t, CHAT("user", "x"), 0);
        assert_string_equal(text, cases[i].text);
        assert_string_equal(cn_chat_template_name(t), cases[i].name);
        assert_int_equal(cn_chat_template_add_special(t), cases[i].family == CN_OPT_CHAT_NONE);
        free(text);
        cn_chat_template_free(t);
    }
}

/* Choosing a checkpoint's own family keeps the details of its template. */
static void an_override_keeps_the_details_of_its_family(void **state)
{
    (void)state;
    json_t *entry = json_object_get(json_object_get(golden, "templates"), "Llama 3.1");
    put_config(json_string_value(json_object_get(entry, "program")), "[B]");
    cn_chat_template *t = load(CN_OPT_CHAT_LLAMA3);
    char *text = render(t, CHAT("user", "x"), -1);
    assert_non_null(strstr(text, "Cutting Knowledge Date"));
    free(text);
    cn_chat_template_free(t);
}

static void a_template_file_comes_before_the_config(void **state)
{
    (void)state;
    json_t *entry = json_object_get(json_object_get(golden, "templates"), "plain");
    const char *program = json_string_value(json_object_get(entry, "program"));
    put_config("{{ 'unknown' }}", NULL);
    scratch_dir_put(&dir, "chat_template.jinja", program, strlen(program));
    cn_chat_template *t = load(CN_OPT_CHAT_AUTO);
    assert_string_equal(cn_chat_template_name(t), "chatml");
    cn_chat_template_free(t);
    scratch_dir_put(&dir, "chat_template.jinja", NULL, 0);

    json_t *config = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "chat_template", "name", "tool_use",
                               "template", "{{ 1 }}", "name", "default", "template", program);
    char *text = json_dumps(config, 0);
    scratch_dir_put(&dir, "tokenizer_config.json", text, strlen(text));
    free(text);
    json_decref(config);
    t = load(CN_OPT_CHAT_AUTO);
    assert_string_equal(cn_chat_template_name(t), "chatml");
    cn_chat_template_free(t);
}

static void bad_chats_are_refused(void **state)
{
    (void)state;
    put_config(NULL, NULL);
    cn_chat_template *t = load(CN_OPT_CHAT_DEEPSEEK_R1);
    cn_buf out = {0};
    cn_message tool = {.role = "tool", .content = "42"};
    assert_int_equal(cn_chat_template_render(t, &tool, 1, -1, &out), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "\"tool\""));
    assert_int_equal(cn_chat_template_render(t, &tool, 0, -1, &out), CN_ERR_ARG);
    assert_int_equal(out.len, 0);
    cn_chat_template_free(t);
    cn_buf_free(&out);
}

static void the_bundled_checkpoint_is_chatml(void **state)
{
    (void)state;
    cn_chat_template *t;
    assert_int_equal(cn_chat_template_load(&t, "examples/tiny-reasoner", CN_OPT_CHAT_AUTO), CN_OK);
    assert_int_equal(cn_chat_template_check(t), CN_OK);
    assert_string_equal(cn_chat_template_name(t), "chatml");
    cn_chat_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(renders_as_transformers),
        cmocka_unit_test(unknown_templates_are_refused),
        cmocka_unit_test(a_missing_template_is_refused_until_one_is_chosen),
        cmocka_unit_test(overrides_choose_a_family),
        cmocka_unit_test(an_override_keeps_the_details_of_its_family),
        cmocka_unit_test(a_template_file_comes_before_the_config),
        cmocka_unit_test(bad_chats_are_refused),
        cmocka_unit_test(the_bundled_checkpoint_is_chatml),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
