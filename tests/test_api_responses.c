/* test_api_responses.c - bodies of /v1/responses become the same requests as those of chats, and
 * what cinch cannot do is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/api/api_request.h"
#include "engine/base/json.h"

static const cn_api_defaults defaults = {
    .sampling = {.n = 1,
                 .temperature = 0.6f,
                 .top_p = 1,
                 .repetition_penalty = 1,
                 .logprobs = -1,
                 .thinking_token_budget = -1,
                 .skip_special_tokens = true},
    .kv = {.policy = CN_KV_FULL, .budget_tokens = 2048, .window_tokens = 16, .sink_tokens = 4},
    .tool_parser = CN_OPT_TOOLS_HERMES,
};

static cn_status parse_with(cn_api_request *r, const cn_api_defaults *with, const char *text)
{
    json_t *body;
    assert_int_equal(
        cn_json_parse(&body, text, strlen(text), "body", 1 << 20, CN_API_MAX_DEPTH, CN_ERR_ARG),
        CN_OK);
    const cn_status status = cn_api_request_parse(r, CN_API_RESPONSES, body, with);
    json_decref(body);
    return status;
}

static void accept(cn_api_request *r, const char *text)
{
    if (parse_with(r, &defaults, text) != CN_OK) fail_msg("%s: %s", text, cn_last_error());
}

static void assert_json(const json_t *found, const char *want, const char *where)
{
    json_t *expected = json_loads(want, JSON_DECODE_ANY, NULL);
    assert_non_null(expected);
    char *text = found ? json_dumps(found, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (!found || !json_equal(found, expected)) fail_msg("%s: %s, not %s", where, text, want);
    free(text);
    json_decref(expected);
}

/* ---- the input ---- */

#define REASONING(text)                                                       \
    "{\"type\": \"reasoning\", \"id\": \"r\", \"summary\": [], \"content\": " \
    "[{\"type\": \"reasoning_text\", \"text\": \"" text "\"}]}"
#define SAID(text)                                                                   \
    "{\"type\": \"message\", \"id\": \"m\", \"status\": \"completed\", \"role\": "   \
    "\"assistant\", \"content\": [{\"type\": \"output_text\", \"annotations\": [], " \
    "\"text\": \"" text "\", \"logprobs\": []}]}"
#define CALL(id)                                                                       \
    "{\"type\": \"function_call\", \"id\": \"f\", \"call_id\": \"" id "\", \"name\": " \
    "\"add\", \"arguments\": \"{\\\"a\\\": 1}\", \"status\": \"completed\"}"
#define OUTPUT(id) \
    "{\"type\": \"function_call_output\", \"call_id\": \"" id "\", \"output\": \"7\"}"

#define USER "{\"role\": \"user\", \"content\": \"hi\"}"
#define TOOL_CALL(id)                                                        \
    "{\"type\": \"function\", \"id\": \"" id "\", \"function\": {\"name\": " \
    "\"add\", \"arguments\": {\"a\": 1}}}"
#define TOOL(id) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"7\"}"

static const struct {
    const char *body, *messages;
} inputs[] = {
    {"{\"input\": \"hi\"}", "[" USER "]"},
    {"{\"input\": \"hi\", \"instructions\": \"be\", \"store\": true}",
     "[{\"role\": \"system\", \"content\": \"be\"}, " USER "]"},
    {"{\"input\": [], \"instructions\": \"be\"}", "[{\"role\": \"system\", \"content\": \"be\"}]"},
    {"{\"input\": [" USER "]}", "[" USER "]"},
    {"{\"input\": [{\"type\": \"message\", \"role\": \"developer\", \"content\": [{\"type\": "
     "\"input_text\", \"text\": \"a\"}, {\"type\": \"input_text\", \"text\": \"b\"}]}]}",
     "[{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
     "\"text\", \"text\": \"b\"}]}]"},
    /* What one answer wrote is one message. */
    {"{\"input\": [" USER ", " REASONING("why") ", " SAID("so") ", " CALL("c1") ", " CALL(
         "c2") ", " OUTPUT("c1") ", " OUTPUT("c2") ", " SAID("7") "]}",
     "[" USER ", {\"role\": \"assistant\", \"content\": \"so\", \"reasoning_content\": \"why\", "
     "\"reasoning\": \"why\", \"tool_calls\": [" TOOL_CALL("c1") ", " TOOL_CALL("c2") "]}, " TOOL(
         "c1") ", " TOOL("c2") ", {\"role\": \"assistant\", \"content\": \"7\"}]"},
    {"{\"input\": [" CALL("c") ", " SAID("after") ", " OUTPUT("c") "]}",
     "[{\"role\": \"assistant\", \"content\": \"after\", \"tool_calls\": [" TOOL_CALL(
         "c") "]}, " TOOL("c") "]"},
    /* A new answer begins with reasoning, and with a second message. */
    {"{\"input\": [" SAID("a") ", " SAID("b") ", " REASONING("x") ", " REASONING("y") ", " SAID(
         "c") "]}",
     "[{\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
     "\"b\"}, {\"role\": \"assistant\", \"content\": \"c\", \"reasoning_content\": \"x\\ny\", "
     "\"reasoning\": \"x\\ny\"}]"},
    {"{\"input\": [" CALL("c") ", " REASONING("x") ", " CALL("d") "]}",
     "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [" TOOL_CALL(
         "c") "]}, "
              "{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"x\", "
              "\"reasoning\": "
              "\"x\", \"tool_calls\": [" TOOL_CALL("d") "]}]"},
    {"{\"input\": [{\"type\": \"reasoning\", \"summary\": [{\"type\": \"summary_text\", \"text\": "
     "\"s\"}], \"encrypted_content\": null}, " SAID("a") "]}",
     "[{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"s\", \"reasoning\": "
     "\"s\"}]"},
    {"{\"input\": [" USER ", {\"type\": \"reasoning\", \"id\": \"r\", \"summary\": []}]}",
     "[" USER "]"},
    {"{\"input\": [{\"role\": \"assistant\", \"content\": null}, " USER "]}",
     "[{\"role\": \"assistant\", \"content\": \"\"}, " USER "]"},
    {"{\"input\": [{\"role\": \"assistant\", \"content\": [{\"type\": \"refusal\", \"refusal\": "
     "\"no\"}, {\"type\": \"output_text\", \"text\": \"!\"}]}]}",
     "[{\"role\": \"assistant\", \"content\": \"no!\"}]"},
    {"{\"input\": [{\"type\": \"function_call_output\", \"call_id\": \"c\", \"output\": "
     "[{\"type\": "
     "\"input_text\", \"text\": \"7\"}]}]}",
     "[{\"role\": \"tool\", \"tool_call_id\": \"c\", \"content\": [{\"type\": \"text\", \"text\": "
     "\"7\"}]}]"},
};

static void items_become_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        cn_api_request r;
        accept(&r, inputs[i].body);
        assert_json(json_object_get(r.params.chat, "messages"), inputs[i].messages, inputs[i].body);
        assert_null(r.warnings);
        cn_api_request_free(&r);
    }
}

/* ---- other members ---- */

#define ADD                                                                                \
    "{\"type\": \"function\", \"name\": \"add\", \"description\": \"d\", \"parameters\": " \
    "{\"type\": \"object\"}, \"strict\": true}"
#define SUB "{\"type\": \"function\", \"name\": \"sub\", \"parameters\": null, \"strict\": false}"

static void members_are_those_of_a_chat(void **state)
{
    (void)state;
    cn_api_request r;
    accept(&r, "{\"input\": \"hi\", \"max_output_tokens\": 9, \"temperature\": 0.5, \"top_k\": 3, "
               "\"include\": [\"message.output_text.logprobs\", \"reasoning.encrypted_content\"], "
               "\"top_logprobs\": 2, \"reasoning\": {\"effort\": \"low\", \"summary\": \"auto\"}, "
               "\"kv\": {\"policy\": \"zip\", \"budget\": 512}, \"stop\": [\"x\"], \"seed\": 4, "
               "\"stream\": true, \"stream_options\": {\"include_obfuscation\": false}, "
               "\"parallel_tool_calls\": false, \"user\": \"u\", \"n\": 1, \"background\": false, "
               "\"metadata\": {\"a\": \"b\"}, \"truncation\": \"auto\", \"text\": {\"verbosity\": "
               "\"low\"}}");
    const cn_sampling *s = &r.params.sampling;
    assert_true(s->max_tokens == 9 && s->temperature == 0.5f && s->top_k == 3 && s->logprobs == 2);
    assert_true(s->has_seed && s->n_stop == 1 && r.stream && r.one_tool_call && r.summarizes);
    assert_int_equal(r.params.kv.policy, CN_KV_ZIP);
    assert_int_equal(r.params.truncate_prompt, CN_TRUNCATE_TO_ROOM);
    assert_json(json_object_get(r.params.chat, "reasoning_effort"), "\"low\"", "effort");
    assert_json(json_object_get(r.params.chat, "enable_thinking"), "true", "thinking");
    assert_null(r.warnings);
    assert_non_null(strstr(r.repeated.data, "\"metadata\":{\"a\":\"b\"}"));
    assert_non_null(strstr(r.repeated.data, "\"temperature\":0.5,"));
    assert_non_null(strstr(r.repeated.data, "\"max_output_tokens\":9"));
    assert_non_null(strstr(r.repeated.data, "\"store\":false"));
    cn_api_request_free(&r);
}

static void tools_have_the_flat_form(void **state)
{
    (void)state;
    static const struct {
        const char *choice, *tools;
        cn_api_tool_choice is;
        cn_opt_tool_parser parser;
    } cases[] = {
        {"\"auto\"", "add sub", CN_API_TOOL_AUTO, CN_OPT_TOOLS_HERMES},
        {"null", "add sub", CN_API_TOOL_AUTO, CN_OPT_TOOLS_HERMES},
        {"\"none\"", "", CN_API_TOOL_AUTO, CN_OPT_TOOLS_NONE},
        {"\"required\"", "add sub", CN_API_TOOL_REQUIRED, CN_OPT_TOOLS_HERMES},
        {"{\"type\": \"function\", \"name\": \"sub\"}", "add sub", CN_API_TOOL_NAMED,
         CN_OPT_TOOLS_HERMES},
        {"{\"type\": \"allowed_tools\", \"mode\": \"required\", \"tools\": [{\"type\": "
         "\"function\", \"name\": \"sub\"}]}",
         "sub", CN_API_TOOL_REQUIRED, CN_OPT_TOOLS_HERMES},
        {"{\"type\": \"allowed_tools\", \"mode\": \"auto\", \"tools\": [{\"type\": \"function\", "
         "\"name\": \"add\"}]}",
         "add", CN_API_TOOL_AUTO, CN_OPT_TOOLS_HERMES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[1024], names[64] = "";
        size_t k;
        json_t *tool;
        cn_api_request r;
        snprintf(body, sizeof body,
                 "{\"input\": \"hi\", \"tools\": [" ADD ", " SUB "], \"tool_choice\": %s}",
                 cases[i].choice);
        accept(&r, body);
        json_array_foreach(json_object_get(r.params.chat, "tools"), k, tool)
        {
            const json_t *f = json_object_get(tool, "function");
            strcat(strcat(names, k ? " " : ""), json_string_value(json_object_get(f, "name")));
        }
        assert_string_equal(names, cases[i].tools);
        assert_int_equal(r.tool_choice, cases[i].is);
        assert_int_equal(r.tool_parser, cases[i].parser);
        cn_api_request_free(&r);
    }
}

static void a_text_format_is_a_structure(void **state)
{
    (void)state;
    cn_api_request r;
    accept(&r, "{\"input\": \"hi\", \"text\": {\"format\": {\"type\": \"json_schema\", \"name\": "
               "\"p\", \"strict\": true, \"schema\": {\"type\": \"object\"}}}}");
    assert_int_equal(r.params.structure.kind, CN_STRUCTURE_SCHEMA);
    assert_string_equal(r.params.structure.text, "{\"type\":\"object\"}");
    assert_string_equal(r.structure_key, "text");
    cn_api_request_free(&r);
    accept(&r, "{\"input\": \"hi\", \"text\": {\"format\": {\"type\": \"json_object\"}}}");
    assert_int_equal(r.params.structure.kind, CN_STRUCTURE_JSON);
    cn_api_request_free(&r);
    accept(&r, "{\"input\": \"hi\", \"text\": {\"format\": {\"type\": \"text\"}}}");
    assert_int_equal(r.params.structure.kind, CN_STRUCTURE_NONE);
    cn_api_request_free(&r);
}

/* ---- what is refused, and what gives a warning ---- */

static const struct {
    const char *rest, *param, *text;
} faults[] = {
    {"\"input\": null", "input", "missing"},
    {"\"input\": 7", "input", "7"},
    {"\"input\": []", "input", "at least one"},
    {"\"input\": [3]", "input", "input[0]"},
    {"\"input\": [{\"role\": \"tool\", \"content\": \"x\"}]", "input", "\"tool\""},
    {"\"input\": [{\"role\": \"user\"}]", "input", "input[0].content: missing"},
    {"\"input\": [{\"role\": \"user\", \"content\": 4}]", "input", "input[0].content"},
    {"\"input\": [{\"content\": \"x\"}]", "input", "role is missing"},
    {"\"input\": [{\"type\": \"item_reference\", \"id\": \"m\"}]", "input", "item_reference"},
    {"\"input\": [{\"id\": \"m\"}]", "input", "item_reference"},
    {"\"input\": [{\"type\": \"web_search_call\", \"id\": \"m\"}]", "input", "web_search_call"},
    {"\"input\": [{\"type\": \"sonnet\"}]", "input", "sonnet"},
    {"\"input\": [{\"type\": 3}]", "input", "type as a string"},
    {"\"input\": [{\"type\": \"function_call\", \"arguments\": \"{}\"}]", "input", "a name"},
    {"\"input\": [{\"type\": \"function_call\", \"name\": \"f\", \"arguments\": 3}]", "input",
     "arguments"},
    {"\"input\": [{\"type\": \"function_call_output\", \"call_id\": \"c\"}]", "input",
     "input[0].output: missing"},
    {"\"input\": [{\"type\": \"reasoning\", \"content\": [{\"type\": \"x\"}]}]", "input",
     "input[0].content[0]"},
    {"\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\", \"image_url\": "
     "\"u\"}]}]",
     "input", "input_image"},
    {"\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_file\"}]}]", "input",
     "input_file"},
    {"\"input\": \"a\", \"instructions\": 3", "instructions", "3"},
    {"\"input\": \"a\", \"previous_response_id\": \"resp_1\"", "previous_response_id", "in input"},
    {"\"input\": \"a\", \"conversation\": {\"id\": \"c\"}", "conversation", "in input"},
    {"\"input\": \"a\", \"background\": true", "background", "/v1/batches"},
    {"\"input\": \"a\", \"prompt\": {\"id\": \"p\"}", "prompt", "instructions"},
    {"\"input\": \"a\", \"tools\": [{\"type\": \"web_search\"}]", "tools", "\"web_search\""},
    {"\"input\": \"a\", \"tools\": [{\"type\": \"mcp\", \"server_label\": \"x\"}]", "tools",
     "\"mcp\""},
    {"\"input\": \"a\", \"tools\": [{\"type\": \"function\"}]", "tools", "a name"},
    {"\"input\": \"a\", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
     "tools", "a name"},
    {"\"input\": \"a\", \"tools\": {}", "tools", "array"},
    {"\"input\": \"a\", \"tools\": [" ADD "], \"tool_choice\": \"any\"", "tool_choice", "\"any\""},
    {"\"input\": \"a\", \"tools\": [" ADD "], \"tool_choice\": {\"type\": \"file_search\"}",
     "tool_choice", "file_search"},
    {"\"input\": \"a\", \"tools\": [" ADD "], \"tool_choice\": {\"type\": \"function\", \"name\": "
     "\"no\"}",
     "tool_choice", "one of the tools"},
    {"\"input\": \"a\", \"tools\": [" ADD "], \"tool_choice\": {\"type\": \"allowed_tools\", "
     "\"mode\": \"auto\", \"tools\": [{\"type\": \"function\", \"name\": \"no\"}]}",
     "tool_choice", "among the tools"},
    {"\"input\": \"a\", \"tool_choice\": \"required\"", "tool_choice", "tools beside it"},
    {"\"input\": \"a\", \"text\": 1", "text", "object"},
    {"\"input\": \"a\", \"text\": {\"format\": {\"type\": \"xml\"}}", "text", "json_schema"},
    {"\"input\": \"a\", \"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"n\"}}",
     "text", "text.format.schema"},
    {"\"input\": \"a\", \"reasoning\": {\"effort\": \"huge\"}", "reasoning", "reasoning.effort"},
    {"\"input\": \"a\", \"reasoning\": {\"summary\": \"huge\"}", "reasoning", "huge"},
    {"\"input\": \"a\", \"include\": [\"x\"]", "include", "\"x\""},
    {"\"input\": \"a\", \"include\": \"x\"", "include", "array"},
    {"\"input\": \"a\", \"top_logprobs\": 2", "top_logprobs", "include"},
    {"\"input\": \"a\", \"top_logprobs\": 21", "top_logprobs", "21"},
    {"\"input\": \"a\", \"n\": 2", "n", "one output"},
    {"\"input\": \"a\", \"max_output_tokens\": -1", "max_output_tokens", "-1"},
    {"\"input\": \"a\", \"truncation\": \"some\"", "truncation", "some"},
    {"\"input\": \"a\", \"metadata\": 3", "metadata", "object"},
    {"\"input\": \"a\", \"temperature\": \"hot\"", "temperature", "hot"},
    {"\"input\": \"a\", \"max_tokens\": 3", "max_tokens", "max_output_tokens"},
    {"\"input\": \"a\", \"messages\": []", "messages", "use input"},
    {"\"input\": \"a\", \"nonsense\": 3", "nonsense", "unknown"},
    {"\"input\": \"a\", \"text\": {\"format\": {\"type\": \"json_object\"}}, \"tools\": [" ADD
     "], \"tool_choice\": \"required\"",
     "tool_choice", "text: no effect"},
};

static void faults_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char body[1024];
        cn_api_request r;
        cn_buf param = {0};
        snprintf(body, sizeof body, "{%s}", faults[i].rest);
        if (parse_with(&r, &defaults, body) != CN_ERR_ARG) fail_msg("took %s", body);
        if (!strstr(cn_last_error(), faults[i].text))
            fail_msg("%s: \"%s\" does not say \"%s\"", body, cn_last_error(), faults[i].text);
        cn_api_note_param(&r, &param);
        assert_string_equal(param.data, faults[i].param);
        cn_buf_free(&param);
    }
}

static void unknown_members_give_warnings(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *warning;
    } cases[] = {
        {"\"input\": \"a\", \"nonsense\": 3", "nonsense: unknown field"},
        {"\"input\": \"a\", \"max_tokens\": 3",
         "max_tokens: unknown field (use max_output_tokens)"},
        {"\"input\": [{\"role\": \"user\", \"content\": \"a\", \"mood\": 1}]", "input[].mood"},
        {"\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": "
         "\"a\", \"mood\": 1}]}]",
         "input[].content[].mood"},
        {"\"input\": [{\"role\": \"user\", \"content\": \"a\"}, {\"type\": \"reasoning\", "
         "\"summary\": [], \"encrypted_content\": \"zzz\"}]",
         "input[].encrypted_content"},
        {"\"input\": \"a\", \"text\": {\"mood\": 1}", "text.mood"},
        {"\"input\": \"a\", \"reasoning\": {\"mood\": 1}", "reasoning.mood"},
        {"\"input\": \"a\", \"tools\": [{\"type\": \"function\", \"name\": \"f\", \"mood\": 1}]",
         "tools[].mood"},
        {"\"input\": \"a\", \"text\": {\"format\": {\"type\": \"json_object\"}}, \"tools\": [" ADD
         "], \"tool_choice\": {\"type\": \"function\", \"name\": \"add\"}",
         "text: no effect where tool_choice requires calls"},
    };
    cn_api_unknown unknown;
    cn_api_defaults accepting = defaults;
    accepting.unknown = &unknown;
    cn_api_unknown_init(&unknown, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];
        cn_api_request r;
        snprintf(body, sizeof body, "{%s}", cases[i].rest);
        if (parse_with(&r, &accepting, body) != CN_OK) fail_msg("%s: %s", body, cn_last_error());
        assert_int_equal(json_array_size(r.warnings), 1);
        const char *text = json_string_value(json_array_get(r.warnings, 0));
        if (!strstr(text, cases[i].warning)) fail_msg("%s: %s", body, text);
        cn_api_request_free(&r);
    }
    cn_api_unknown_destroy(&unknown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_become_messages),    cmocka_unit_test(members_are_those_of_a_chat),
        cmocka_unit_test(tools_have_the_flat_form), cmocka_unit_test(a_text_format_is_a_structure),
        cmocka_unit_test(faults_are_named),         cmocka_unit_test(unknown_members_give_warnings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
