/* test_api_call_results.c - tool calls in the bodies and chunks of a response. test_api_tools.c has
 * how they are found in its text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/api/api_response.h"
#include "engine/api/api_tools.h"
#include "engine/text/call_marks.h"

#define HERMES CN_OPT_TOOLS_HERMES
#define CALL(name, args) \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

static json_t *tools; /* a body's, of the functions f and g */

static int make_tools(void **state)
{
    (void)state;
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
                       "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]",
                       0, NULL);
    return tools ? 0 : -1;
}

static int free_tools(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

static cn_api_result *result_with(const char *const *pieces, cn_api_tool_choice choice,
                                  cn_finish finish)
{
    json_t *chat = json_pack("{s:O}", "tools", tools);
    const cn_api_request request = {.endpoint = CN_API_CHAT,
                                    .chat = chat,
                                    .params = {.sampling = {.n = 1, .logprobs = -1}},
                                    .tool_choice = choice,
                                    .tool_parser = HERMES};
    cn_api_result *r;
    assert_int_equal(cn_api_result_create(&r, &request, NULL, NULL), CN_OK);
    json_decref(chat);
    for (; *pieces; pieces++) {
        const bool end = !pieces[1];
        const cn_event ev = {.text = *pieces,
                             .text_len = strlen(*pieces),
                             .n_tokens = 1,
                             .stop_token = -1,
                             .finish = end ? finish : CN_FINISH_NONE,
                             .last = end};
        cn_api_result_add(r, &ev);
    }
    return r;
}

static cn_api_result *result_of(const char *const *pieces, cn_api_tool_choice choice)
{
    return result_with(pieces, choice, CN_FINISH_STOP);
}

static json_t *body_of(const cn_api_result *r)
{
    cn_api_writer writer = {.id = "x", .model = "m", .created = 1, .digits = 17};
    cn_buf text = {0};
    bool done = false;
    assert_int_equal(cn_api_result_write(r, &writer, &text, SIZE_MAX, &done), CN_OK);
    assert_true(done);
    json_t *body = json_loadb(text.data, text.len, 0, NULL);
    cn_buf_free(&text);
    return body;
}

static void a_body_has_the_calls(void **state)
{
    (void)state;
    const char *const pieces[] = {"<tool_call>{\"name\": \"f\", \"arguments\": null}</tool",
                                  "_call>", NULL};
    cn_api_result *r = result_of(pieces, CN_API_TOOL_AUTO);
    json_t *body = body_of(r);
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "tool_calls");
    assert_true(json_is_null(json_object_get(message, "content")));
    assert_null(json_object_get(call, "index"));
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(call, "function"), "name")), "f");
    json_decref(body);
    cn_api_result_free(r);
}

/* The deltas of all chunks. The last chunk, and only it, has the finish. */
typedef struct streamed {
    char content[2048], calls[2048], finish[32];
    int n_chunks;
} streamed;

static streamed stream_of(cn_api_result *r)
{
    streamed out = {0};
    for (json_t *chunk; (chunk = cn_api_result_take_chunk(r, "x", "m", 1, false)); out.n_chunks++) {
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const json_t *delta = json_object_get(choice, "delta");
        const json_t *calls = json_object_get(delta, "tool_calls");
        const json_t *function = json_object_get(json_array_get(calls, 0), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *texts[] = {json_string_value(json_object_get(delta, "content")),
                               json_string_value(json_object_get(function, "arguments")),
                               json_string_value(json_object_get(choice, "finish_reason"))};
        assert_string_equal(out.finish, "");
        assert_int_equal(json_array_size(calls), calls ? 1 : 0);
        if (name) strcat(strcat(strcat(out.calls, *out.calls ? ";" : ""), name), " ");
        strcat(out.content, texts[0] ? texts[0] : "");
        strcat(out.calls, texts[1] ? texts[1] : "");
        strcat(out.finish, texts[2] ? texts[2] : "");
        json_decref(chunk);
    }
    return out;
}

/* As in OpenAI: "stop" if tool_choice names the function. The length is told in any case. */
static void the_finish_depends_on_the_tool_choice(void **state)
{
    (void)state;
    static const char *const finishes[] = {
        [CN_API_TOOL_AUTO] = "tool_calls",
        [CN_API_TOOL_REQUIRED] = "tool_calls",
        [CN_API_TOOL_NAMED] = "stop",
    };
    const char *const pieces[] = {CALL("f", "{}"), NULL};
    for (int choice = CN_API_TOOL_AUTO; choice <= CN_API_TOOL_NAMED; choice++) {
        cn_api_result *r = result_of(pieces, (cn_api_tool_choice)choice);
        json_t *body = body_of(r);
        const json_t *c = json_array_get(json_object_get(body, "choices"), 0);
        const json_t *message = json_object_get(c, "message");
        const streamed chunks = stream_of(r);
        assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 1);
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")),
                            finishes[choice]);
        assert_string_equal(chunks.calls, "f {}");
        assert_string_equal(chunks.finish, finishes[choice]);
        json_decref(body);
        cn_api_result_free(r);
    }
}

/* --max-reply-bytes bounds text that may become a call, and calls. */
static void calls_count_as_bytes_of_the_result(void **state)
{
    (void)state;
    static const char head[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
    static char text[sizeof head + 1000];
    memcpy(text, head, sizeof head - 1);
    memset(text + sizeof head - 1, 'x', 1000);
    cn_event ev = {.text = text, .text_len = sizeof head + 999, .n_tokens = 1, .stop_token = -1};
    cn_api_result *r = result_of((const char *const[]){NULL}, CN_API_TOOL_AUTO);
    cn_api_result_add(r, &ev);
    assert_in_range(cn_api_result_bytes(r), 1000, 1200);
    ev.text = "\"}}</tool_call>";
    ev.text_len = strlen(ev.text);
    cn_api_result_add(r, &ev);
    assert_in_range(cn_api_result_bytes(r), 1000, 1300);
    stream_of(r);
    assert_in_range(cn_api_result_bytes(r), 1, 200); /* the arguments were taken */
    cn_api_result_free(r);
}

/* The schema of the arguments may allow a string or null. */
static void forced_arguments_are_as_they_are(void **state)
{
    (void)state;
    static const char *const arguments[][2] = {
        {"7", "7"}, {"null", "{}"}, {"[]", "{}"}, {"\"\"", "{}"}, {"\"{\"", "{"}};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
        char text[128];
        snprintf(text, sizeof text, "<tool_call>{\"name\": \"f\", \"arguments\": %s}</tool_call>",
                 arguments[i][0]);
        const char *const pieces[] = {text, NULL};
        for (int choice = CN_API_TOOL_AUTO; choice <= CN_API_TOOL_NAMED; choice++) {
            cn_api_result *r = result_of(pieces, (cn_api_tool_choice)choice);
            json_t *body = body_of(r);
            const json_t *c = json_array_get(json_object_get(body, "choices"), 0);
            const json_t *message = json_object_get(c, "message");
            const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
            const json_t *function = json_object_get(call, "function");
            assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                                arguments[i][choice == CN_API_TOOL_AUTO]);
            json_decref(body);
            cn_api_result_free(r);
        }
    }
}

/* The name of a call is in one chunk and its arguments are in the next, also when all are there. */
static void a_stream_has_chunks_for_each_call(void **state)
{
    (void)state;
    const char *const pieces[] = {"Hm. " CALL("f", "null"), CALL("g", "{\"a\": 1}"), NULL};
    cn_api_result *r = result_of(pieces, CN_API_TOOL_AUTO);
    const streamed chunks = stream_of(r);
    assert_string_equal(chunks.content, "Hm.");
    assert_string_equal(chunks.calls, "f {};g {\"a\": 1}");
    assert_string_equal(chunks.finish, "tool_calls");
    assert_int_equal(chunks.n_chunks, 4);
    cn_api_result_free(r);
}

/* As in OpenAI, whole and streamed: it has the arguments so far, and the finish is "length". */
static void a_call_that_max_tokens_cuts_off_is_a_call(void **state)
{
    (void)state;
    const char *const pieces[] = {"<tool_call>{\"name\": \"f\", \"argu", "ments\": {\"a\": \"x",
                                  NULL};
    for (int choice = CN_API_TOOL_AUTO; choice <= CN_API_TOOL_NAMED; choice++) {
        cn_api_result *r = result_with(pieces, (cn_api_tool_choice)choice, CN_FINISH_LENGTH);
        json_t *body = body_of(r);
        const json_t *c = json_array_get(json_object_get(body, "choices"), 0);
        const json_t *message = json_object_get(c, "message");
        const json_t *call = json_array_get(json_object_get(message, "tool_calls"), 0);
        const json_t *function = json_object_get(call, "function");
        const streamed chunks = stream_of(r);
        assert_true(json_is_null(json_object_get(message, "content")));
        assert_string_equal(json_string_value(json_object_get(function, "arguments")),
                            "{\"a\": \"x");
        assert_string_equal(json_string_value(json_object_get(c, "finish_reason")), "length");
        assert_string_equal(chunks.content, "");
        assert_string_equal(chunks.calls, "f {\"a\": \"x");
        assert_string_equal(chunks.finish, "length");
        json_decref(body);
        cn_api_result_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_has_the_calls),
        cmocka_unit_test(the_finish_depends_on_the_tool_choice),
        cmocka_unit_test(calls_count_as_bytes_of_the_result),
        cmocka_unit_test(forced_arguments_are_as_they_are),
        cmocka_unit_test(a_stream_has_chunks_for_each_call),
        cmocka_unit_test(a_call_that_max_tokens_cuts_off_is_a_call),
    };
    return cmocka_run_group_tests(tests, make_tools, free_tools);
}
