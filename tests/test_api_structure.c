/* test_api_structure.c - the members of a body that ask for structured output: what they set, warn
 * of and refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/api/api_request.h"
#include "engine/base/json.h"

#define CHAT_START "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "
#define TOOL "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"

static cn_api_unknown unknown;

static cn_status parse(cn_api_request *r, const char *rest)
{
    const cn_api_defaults defaults = {
        .sampling = {.n = 1, .temperature = 1, .top_p = 1, .repetition_penalty = 1, .logprobs = -1},
        .tool_parser = CN_OPT_TOOLS_HERMES,
        .unknown = &unknown,
    };
    char text[4096];
    json_t *body;
    snprintf(text, sizeof text, CHAT_START "%s}", rest);
    assert_int_equal(
        cn_json_parse(&body, text, strlen(text), "body", 1 << 20, CN_API_MAX_DEPTH, CN_ERR_ARG),
        CN_OK);
    const cn_status status = cn_api_request_parse(r, CN_API_CHAT, body, &defaults);
    json_decref(body); /* the request must hold its own reference */
    return status;
}

static void accept_chat(cn_api_request *r, const char *rest)
{
    if (parse(r, rest) != CN_OK) fail_msg("%s: %s", rest, cn_last_error());
}

static void structured_output_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *text;
        cn_structure_kind kind;
    } cases[] = {
        {"\"response_format\": {\"type\": \"text\"}", NULL, CN_STRUCTURE_NONE},
        {"\"response_format\": null, \"structured_outputs\": null", NULL, CN_STRUCTURE_NONE},
        {"\"response_format\": {\"type\": \"json_object\"}", NULL, CN_STRUCTURE_JSON},
        {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"n\","
         "\"strict\": true, \"schema\": {\"type\": \"object\", \"a\": 1}}}",
         "{\"type\":\"object\",\"a\":1}", CN_STRUCTURE_SCHEMA},
        {"\"structured_outputs\": {\"json\": {\"b\": 1, \"a\": 2}}", "{\"b\":1,\"a\":2}",
         CN_STRUCTURE_SCHEMA},
        {"\"structured_outputs\": {\"json\": \"{ }\", \"regex\": null}", "{ }",
         CN_STRUCTURE_SCHEMA},
        {"\"structured_outputs\": {\"regex\": \"a+\"}", "a+", CN_STRUCTURE_REGEX},
        {"\"structured_outputs\": {\"choice\": [\"a\", \"b\"]}", "[\"a\",\"b\"]",
         CN_STRUCTURE_CHOICE},
        {"\"structured_outputs\": {\"grammar\": \"root ::= [a]\", \"json\": null}", "root ::= [a]",
         CN_STRUCTURE_GRAMMAR},
        {"\"structured_outputs\": {\"json_object\": true}", NULL, CN_STRUCTURE_JSON},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_request r;
        accept_chat(&r, cases[i].rest);
        assert_int_equal(r.params.structure.kind, cases[i].kind);
        if (cases[i].text) assert_string_equal(r.params.structure.text, cases[i].text);
        cn_api_request_free(&r);
    }
}

static void white_space_of_json_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *whitespace, *warning;
    } cases[] = {
        {"\"response_format\": {\"type\": \"json_object\"}", NULL, NULL},
        {"\"structured_outputs\": {\"json\": {}, \"disable_any_whitespace\": false}",
         CN_JSON_WHITESPACE_ANY, NULL},
        {"\"structured_outputs\": {\"json\": {}, \"disable_any_whitespace\": true}", NULL, NULL},
        {"\"structured_outputs\": {\"whitespace_pattern\": \" ?\", \"json_object\": true}", " ?",
         NULL},
        {"\"structured_outputs\": {\"disable_any_whitespace\": false}, \"response_format\": "
         "{\"type\": \"json_object\"}",
         CN_JSON_WHITESPACE_ANY, NULL},
        {"\"tools\": [" TOOL "], \"tool_choice\": \"required\", \"structured_outputs\": "
         "{\"whitespace_pattern\": \"\\\\n*\"}",
         "\\n*", NULL},
        {"\"structured_outputs\": {\"regex\": \"a\", \"whitespace_pattern\": \" \"}", NULL,
         "its white space concerns forced JSON only"},
        {"\"structured_outputs\": {\"disable_any_whitespace\": true}", NULL, "forced JSON only"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_request r;
        accept_chat(&r, cases[i].rest);
        const char *warning = json_string_value(json_array_get(r.warnings, 0));
        if (cases[i].whitespace)
            assert_string_equal(r.params.structure.whitespace, cases[i].whitespace);
        else
            assert_null(r.params.structure.whitespace);
        if (cases[i].warning)
            assert_non_null(strstr(warning, cases[i].warning));
        else
            assert_null(warning);
        cn_api_request_free(&r);
    }
}

/* A response_format is the form of a message: it rules where the answer may be one. */
static void calls_replace_a_response_format(void **state)
{
    (void)state;
    static const struct {
        const char *choice;
        cn_structure_kind kind;
    } cases[] = {
        {"\"required\"", CN_STRUCTURE_CALLS},
        {"{\"type\": \"function\", \"function\": {\"name\": \"f\"}}", CN_STRUCTURE_CALLS},
        {"\"none\"", CN_STRUCTURE_SCHEMA},
        {"null", CN_STRUCTURE_SCHEMA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_request r;
        char rest[512];
        snprintf(rest, sizeof rest,
                 "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": "
                 "\"p\", \"strict\": true, \"schema\": {}}}, \"tools\": [" TOOL
                 "], \"tool_choice\": %s",
                 cases[i].choice);
        accept_chat(&r, rest);
        const bool calls = cases[i].kind == CN_STRUCTURE_CALLS;
        const char *warning = json_string_value(json_array_get(r.warnings, 0));
        assert_int_equal(r.params.structure.kind, cases[i].kind);
        assert_int_equal(r.params.structure.strict, !calls);
        assert_int_equal(r.params.finds_calls, calls);
        assert_string_equal(r.structure_key, calls ? "tool_choice" : "response_format");
        if (calls)
            assert_string_equal(warning, "response_format: no effect where tool_choice requires "
                                         "calls, ignored");
        else
            assert_null(warning);
        cn_api_request_free(&r);
    }
}

/* With "auto" the answer is calls, or the JSON of the format. */
static void auto_allows_calls_beside_a_response_format(void **state)
{
    (void)state;
    static const struct {
        const char *format, *message;
        bool strict;
    } cases[] = {
        {"{\"type\": \"json_object\"}", "\"message\":{\"type\":\"object\"}", false},
        {"{\"type\": \"json_schema\", \"json_schema\": {\"strict\": true, \"schema\": {\"const\": "
         "1}}}",
         "\"message\":{\"const\":1}", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_request r;
        char rest[512];
        snprintf(rest, sizeof rest,
                 "\"response_format\": %s, \"tools\": [" TOOL "], \"tool_choice\": \"auto\"",
                 cases[i].format);
        accept_chat(&r, rest);
        assert_int_equal(r.params.structure.kind, CN_STRUCTURE_CALLS);
        assert_non_null(strstr(r.params.structure.text, cases[i].message));
        assert_int_equal(strstr(r.params.structure.text, "strict\":true") != NULL, cases[i].strict);
        assert_true(r.either && r.params.finds_calls && r.tool_choice == CN_API_TOOL_AUTO);
        assert_string_equal(r.structure_key, "response_format");
        assert_null(r.warnings);
        cn_api_request_free(&r);
    }
}

static const struct refusal {
    const char *rest, *key, *text;
} refusals[] = {
    {"\"response_format\": \"json\"", "response_format", "\"json\""},
    {"\"response_format\": {\"type\": \"xml\"}", "response_format", "\"xml\""},
    {"\"response_format\": {\"type\": \"structural_tag\", \"structures\": []}", "response_format",
     "structural_tag is not supported: use tool_choice"},
    {"\"response_format\": {\"type\": \"json_object\", \"schema\": {}}", "response_format",
     "'schema'"},
    {"\"response_format\": {\"type\": \"json_schema\"}", "response_format",
     "json_schema: expected an object"},
    {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"a\": 1}}",
     "response_format", "'a'"},
    {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {}}", "response_format",
     "schema: expected an object"},
    {"\"structured_outputs\": {}", "structured_outputs", "got none"},
    {"\"structured_outputs\": {\"json\": null}", "structured_outputs", "got none"},
    {"\"structured_outputs\": {\"whitespace_pattern\": 1}", "structured_outputs", "a string"},
    {"\"structured_outputs\": {\"disable_any_whitespace\": 1}", "structured_outputs",
     "true or false"},
    {"\"structured_outputs\": {\"disable_any_whitespace\": true, \"whitespace_pattern\": \" \"}",
     "structured_outputs", "got both"},
    {"\"structured_outputs\": {\"lark\": \"x\"}", "structured_outputs", "'lark'"},
    {"\"structured_outputs\": {\"regex\": 1}", "structured_outputs", "a string"},
    {"\"structured_outputs\": {\"choice\": \"a\"}", "structured_outputs", "an array"},
    {"\"structured_outputs\": {\"json\": 3}", "structured_outputs", "a schema"},
    {"\"structured_outputs\": {\"regex\": \"a\", \"json\": {}}", "structured_outputs",
     "another structure"},
};

static void the_rest_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        cn_api_request r;
        const struct refusal *f = &refusals[i];
        if (parse(&r, f->rest) != CN_ERR_ARG || !strstr(cn_last_error(), f->key) ||
            !strstr(cn_last_error(), f->text))
            fail_msg("%s: %s", f->rest, cn_last_error());
    }
}

int main(void)
{
    cn_api_unknown_init(&unknown, false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structured_output_is_read),
        cmocka_unit_test(white_space_of_json_is_read),
        cmocka_unit_test(calls_replace_a_response_format),
        cmocka_unit_test(auto_allows_calls_beside_a_response_format),
        cmocka_unit_test(the_rest_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
