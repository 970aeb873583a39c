/* test_serve_refusals.c - requests that the server refuses: the status, and the error object in
 * OpenAI's format, whose `param` names the member that is at fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"
#include "tests/lib/serve_rig.h"

static serve_rig rig;

static int open_rig(void **state)
{
    static const char *const options[] = {"--kv-policies", "full,zip", "--max-body-bytes", "65536",
                                          "--max-header-bytes", "4096", "--max-model-len", "1024",
                                          NULL};
    (void)state;
    serve_rig_open(&rig, options);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    serve_rig_close(&rig);
    return rig.end == CN_OK ? 0 : -1;
}

/* Returns a chat with more members appended. */
static const char *chat_body(const char *more)
{
    static char body[2048];
    snprintf(body, sizeof body,
             "{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"a\"}], %s}",
             more);
    return body;
}

/* Checks the error object of a refused request. param NULL: its param is null. */
static void assert_error(const char *method, const char *path, const char *body, int status,
                         const char *param)
{
    json_t *r = http_ask_json(rig.port, method, path, body, status);
    json_t *error = json_object_get(r, "error");
    assert_true(json_is_string(json_object_get(error, "message")));
    assert_string_equal(json_string_value(json_object_get(error, "type")), "invalid_request_error");
    assert_non_null(json_object_get(error, "code"));
    const json_t *found = json_object_get(error, "param");
    const char *text = json_string_value(json_object_get(error, "message"));
    if (!param && !json_is_null(found))
        fail_msg("expected param null, got %s: %s", json_string_value(found), text);
    if (param && (!json_is_string(found) || strcmp(json_string_value(found), param) != 0))
        fail_msg("expected param %s, got %s: %s", param,
                 json_is_string(found) ? json_string_value(found) : "null", text);
    json_decref(r);
}

static void tokens_name_unknown_members_and_models(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body, *warning; /* NULL: none */
    } cases[] = {
        {"/tokenize", "{\"prompt\": \"a\", \"tempo\": 1}", "tempo: unknown field, ignored"},
        {"/tokenize", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tempo\": 1}",
         "tempo: unknown field, ignored"},
        {"/detokenize", "{\"tokens\": [1], \"tempo\": 1}", "tempo: unknown field, ignored"},
        {"/tokenize", "{\"model\": \"tiny\", \"prompt\": \"a\", \"tempo\": null}", NULL},
        {"/detokenize", "{\"model\": \"tiny\", \"tokens\": [1]}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *r = http_ask_json(rig.port, "POST", cases[i].path, cases[i].body, 200);
        const json_t *warnings = json_object_get(r, "warnings");
        assert_int_equal(json_array_size(warnings), cases[i].warning != NULL);
        if (cases[i].warning)
            assert_string_equal(json_string_value(json_array_get(warnings, 0)), cases[i].warning);
        json_decref(r);
    }
    assert_error("POST", "/tokenize", "{\"model\": \"b\", \"prompt\": \"a\"}", 404, "model");
    assert_error("POST", "/tokenize", "{\"model\": \"b\", \"messages\": []}", 404, "model");
    assert_error("POST", "/detokenize", "{\"model\": \"b\", \"tokens\": [1]}", 404, "model");
}

static void tokens_refuse_unknown_members(void **state)
{
    (void)state;
    static const char *const options[] = {"--unknown-fields", "refuse", NULL};
    static const char *const asks[][2] = {
        {"/tokenize", "{\"prompt\": \"a\", \"tempo\": 1}"},
        {"/tokenize", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tempo\": 1}"},
        {"/detokenize", "{\"tokens\": [1], \"tempo\": 1}"},
    };
    serve_rig own;
    serve_rig_open(&own, options);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        json_t *r = http_ask_json(own.port, "POST", asks[i][0], asks[i][1], 400);
        const json_t *error = json_object_get(r, "error");
        assert_string_equal(json_string_value(json_object_get(error, "param")), "tempo");
        json_decref(r);
    }
    serve_rig_close(&own);
}

static void bad_requests_are_refused_by_name(void **state)
{
    (void)state;
    static const char chat[] = "/v1/chat/completions";
    assert_error("POST", chat, "{\"messages\": ", 400, NULL);
    assert_error("POST", chat, "[]", 400, NULL);
    assert_error("POST", chat, "{}", 400, "messages");
    assert_error("POST", chat, "", 400, NULL);
    assert_error("POST", chat, chat_body("\"temperature\": -1"), 400, "temperature");
    assert_error("POST", chat, chat_body("\"kv\": {\"unheard\": 1}"), 400, "kv");
    assert_error("POST", chat, chat_body("\"n\": 1, \"n\": 2"), 400, NULL);
    assert_error("POST", chat, chat_body("\"stop\": \"\\u0000\""), 400, "stop");
    assert_error("POST", chat,
                 "{\"messages\": [{\"role\": \"user\\u0000\", \"content\": \"ab\"}]}", 400,
                 "messages");
    assert_error("POST", chat, chat_body("\"user\": \"\\u0000\""), 400, "user");
    assert_error("POST", "/tokenize", "{\"prompt\": 5}", 400, "prompt");
    assert_error("POST", "/tokenize", "{\"prompt\": \"a\", \"add_special_tokens\": 1}", 400,
                 "add_special_tokens");
    assert_error("POST", "/detokenize", "{\"tokens\": [1, -1]}", 400, "tokens");
    assert_error("POST", "/detokenize", "{}", 400, "tokens");
    assert_error("POST", chat, "{\"model\": \"gpt\", \"messages\": []}", 404, "model");
    assert_error("POST", chat, "{\"model\": 5, \"messages\": []}", 404, "model");
    assert_error("POST", "/v1/nothing", "{}", 404, NULL);
    assert_error("GET", "/../etc/passwd", NULL, 404, NULL);
    assert_error("GET", "/v1/models/..", NULL, 404, "model");
    assert_error("POST", "/v1/models/a/b", "{}", 405, NULL);
    assert_error("GET", chat, NULL, 405, NULL);
    assert_error("DELETE", "/health", NULL, 405, NULL);
    char deep[256] = "{\"messages\": ";
    memset(deep + strlen(deep), '[', 100);
    assert_error("POST", chat, deep, 400, NULL);
}

/* The parser accepts these members of a chat and of a completion. The engine, or a limit of the
 * server, refuses them. */
static void what_the_engine_refuses_is_named_too(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"max_tokens\": 1024", "max_tokens"},
        {"\"max_tokens\": 1000000", "max_tokens"},
        {"\"min_tokens\": 5, \"max_tokens\": 4", "min_tokens"},
        {"\"min_tokens\": 2000", "min_tokens"},
        {"\"n\": 1024", "n"},
        {"\"top_p\": 1e-60", "top_p"},
        {"\"priority\": 1", "priority"},
        {"\"stop_token_ids\": [100000]", "stop_token_ids"},
        {"\"allowed_token_ids\": [100000]", "allowed_token_ids"},
        {"\"logit_bias\": {\"100000\": 1}", "logit_bias"},
        {"\"bad_words\": [\" \"]", "bad_words"},
        {"\"kv\": {\"policy\": \"window\"}", "kv"},
        {"\"kv\": {\"select\": \"ds\"}", "kv"},
        {"\"kv\": {\"policy\": \"zip\", \"budget\": 4000000000}", "kv"},
        {"\"structured_outputs\": {\"regex\": \"(\"}", "structured_outputs"},
        {"\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", "
         "\"schema\": {\"type\": \"tree\"}}}",
         "response_format"},
        {"\"response_format\": {\"type\": \"json_object\"}, \"min_tokens\": 1", "min_tokens"},
    };
    char body[2048];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_error("POST", "/v1/chat/completions", chat_body(cases[i][0]), 400, cases[i][1]);
        snprintf(body, sizeof body, "{\"prompt\": [1], %s}", cases[i][0]);
        assert_error("POST", "/v1/completions", body, 400, cases[i][1]);
    }
    assert_error("POST", "/v1/chat/completions", chat_body("\"max_completion_tokens\": 1024"), 400,
                 "max_completion_tokens");
    assert_error("POST", "/v1/completions", "{\"prompt\": [100000]}", 400, "prompt");
    assert_error("POST", "/v1/completions", "{\"prompt\": [[1], [100000]]}", 400, "prompt");
    assert_error("POST", "/v1/completions", "{\"prompt\": \"\"}", 400, "prompt");
}

/* Sets body to start, a prompt of two bytes a token, and end. */
static void put_prompt(cn_buf *body, const char *start, size_t n_bytes, const char *end)
{
    cn_buf_clear(body);
    assert_int_equal(cn_buf_addf(body, "%s", start), CN_OK);
    while (body->len < n_bytes) assert_int_equal(cn_buf_add(body, "1 ", 2), CN_OK);
    assert_int_equal(cn_buf_addf(body, "%s", end), CN_OK);
}

/* Clients look for the code, or for the beginning of the message. */
static void a_request_beyond_the_context_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *path, *start, *end, *param;
    } cases[] = {
        {"/v1/completions", "{\"prompt\": \"", "\"}", "prompt"},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"", "\"}]}",
         "messages"},
    };
    static const size_t lengths[] = {20000, 60000}; /* the second cannot fit, by its bytes */
    cn_buf body = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            put_prompt(&body, cases[i].start, lengths[k], cases[i].end);
            assert_error("POST", cases[i].path, body.data, 400, cases[i].param);
            json_t *r = http_ask_json(rig.port, "POST", cases[i].path, body.data, 400);
            json_t *error = json_object_get(r, "error");
            const char *message = json_string_value(json_object_get(error, "message"));
            assert_string_equal(json_string_value(json_object_get(error, "code")),
                                "context_length_exceeded");
            static const char start[] = "This model's maximum context length is 1024 tokens, but ";
            assert_memory_equal(message, start, sizeof start - 1);
            json_decref(r);
        }
    }
    json_t *r = http_ask_json(rig.port, "POST", "/v1/chat/completions",
                              chat_body("\"max_tokens\": 2000"), 400);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(r, "error"), "code")),
        "context_length_exceeded");
    json_decref(r);
    cn_buf_free(&body);
}

/* A schema as deep as one may be is a member of a body, too. */
static void a_deep_schema_is_accepted(void **state)
{
    (void)state;
    enum { LEVELS = 30 };
    cn_buf body = {0};
    static const char start[] = "{\"prompt\": \"a\", \"max_tokens\": 1, \"response_format\": "
                                "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", "
                                "\"schema\": ";
    assert_int_equal(cn_buf_addf(&body, "%s", start), CN_OK);
    for (int i = 0; i < LEVELS; i++)
        assert_int_equal(
            cn_buf_addf(&body, "{\"type\": \"object\", \"properties\": {\"a\": "), CN_OK);
    assert_int_equal(cn_buf_addf(&body, "{\"type\": \"null\"}"), CN_OK);
    for (int i = 0; i < LEVELS; i++) assert_int_equal(cn_buf_addf(&body, "}}"), CN_OK);
    assert_int_equal(cn_buf_addf(&body, "}}}"), CN_OK);
    json_decref(http_ask_json(rig.port, "POST", "/v1/completions", body.data, 200));
    cn_buf_free(&body);
}

/* A body that never fits is refused for good: a client repeats a 503. */
static void a_body_beyond_the_memory_for_bodies_is_too_large(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-buffered-bytes", "65536", NULL};
    cn_buf body = {0};
    serve_rig own;
    serve_rig_open(&own, options);
    put_prompt(&body, "{\"prompt\": \"", 70000, "\"}");
    json_t *r = http_ask_json(own.port, "POST", "/v1/completions", body.data, 413);
    const char *message =
        json_string_value(json_object_get(json_object_get(r, "error"), "message"));
    assert_non_null(strstr(message, "at most 65536 bytes"));
    assert_non_null(strstr(message, "--max-buffered-bytes"));
    json_decref(r);
    cn_buf_free(&body);
    serve_rig_close(&own);
}

static void a_truncated_prompt_may_have_any_length(void **state)
{
    (void)state;
    cn_buf body = {0};
    put_prompt(&body, "{\"prompt\": \"", 60000,
               "\", \"truncate_prompt_tokens\": 100, \"max_tokens\": 1}");
    json_t *r = http_ask_json(rig.port, "POST", "/v1/completions", body.data, 200);
    const json_t *usage = json_object_get(r, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 100);
    json_decref(r);
    cn_buf_free(&body);
}

/* -1 leaves room for max_tokens, or for one token. */
static void a_prompt_is_truncated_to_the_room(void **state)
{
    (void)state;
    static const char *const rests[] = {
        "\", \"truncate_prompt_tokens\": -1, \"max_tokens\": 7}",
        "\", \"truncate_prompt_tokens\": -1, \"max_tokens\": 5, \"min_tokens\": 5}"};
    static const int rooms[] = {7, 5};
    cn_buf body = {0};
    const int most = (int)cn_service_max_model_len(cn_server_service(rig.server));
    for (int i = 0; i < 2; i++) {
        put_prompt(&body, "{\"prompt\": \"", 60000, rests[i]);
        json_t *r = http_ask_json(rig.port, "POST", "/v1/completions", body.data, 200);
        const json_t *usage = json_object_get(r, "usage");
        assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")),
                         most - rooms[i]);
        json_decref(r);
    }
    put_prompt(&body, "{\"messages\": [{\"role\": \"user\", \"content\": \"", 60000,
               "\"}], \"truncate_prompt_tokens\": -1, \"max_tokens\": 3}");
    json_t *r = http_ask_json(rig.port, "POST", "/v1/chat/completions", body.data, 200);
    json_decref(r);
    cn_buf_free(&body);
}

/* Sends raw bytes over a new connection. Returns the status, or 0 without a reply. */
static int raw_status(const char *bytes)
{
    http_reply r;
    int fd = http_connect(rig.port);
    assert_true(http_send_text(fd, bytes));
    http_read(fd, false, &r);
    int status = r.status;
    if (status) {
        json_t *body = json_loadb(r.body.data, r.body.len, 0, NULL);
        const json_t *error = json_object_get(body, "error");
        if (status >= 300)
            assert_string_equal(json_string_value(json_object_get(error, "type")),
                                "invalid_request_error");
        json_decref(body);
    }
    http_reply_free(&r);
    close(fd);
    return status;
}

/* Without a spool, the routes of files and batches name the missing option. */
static void routes_that_need_a_spool_name_the_option(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *body;
    } asked[] = {{"POST", "/v1/files", "x"},
                 {"GET", "/v1/files", NULL},
                 {"GET", "/v1/files/file-1/content", NULL},
                 {"POST", "/v1/batches", "{}"}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        http_reply r;
        http_ask(rig.port, asked[i].method, asked[i].path, NULL, asked[i].body, &r);
        assert_int_equal(r.status, 404);
        assert_non_null(strstr(r.body.data, "--spool"));
        http_reply_free(&r);
    }
}

static void malformed_http_is_refused_in_json(void **state)
{
    (void)state;
    assert_int_equal(raw_status("nonsense\r\n\r\n"), 400);
    assert_int_equal(raw_status("GET /health HTTP/3.0\r\n\r\n"), 505);
    assert_int_equal(raw_status("GET /health HTTP/1.1\r\n\r\n"), 400);
    assert_int_equal(raw_status("BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
    assert_int_equal(raw_status("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                "application/json\r\nContent-Length: 70000\r\n"
                                "\r\n"),
                     413);
    assert_int_equal(
        raw_status("POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"), 405);
    assert_int_equal(raw_status("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                "application/json\r\nTransfer-Encoding: chunked"
                                "\r\n\r\nxyz\r\n"),
                     400);
    assert_int_equal(
        raw_status("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                   "Content-Type: text/plain\r\n\r\n{}"),
        415);
    assert_int_equal(
        raw_status("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                   "Content-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n{}"),
        415);
    assert_int_equal(raw_status("\r\n\r\nGET /health HTTP/1.0\r\n\r\n"), 200);
    char large[8192] = "GET /health HTTP/1.1\r\nHost: ";
    memset(large + strlen(large), 'h', 5000);
    assert_int_equal(raw_status(large), 431);
    /* The length of a chunked body is unknown until it has arrived. */
    cn_buf body = {0};
    assert_int_equal(
        cn_buf_addf(
            &body,
            "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"),
        CN_OK);
    char piece[4096];
    memset(piece, 'x', sizeof piece);
    for (int i = 0; i < 17; i++) {
        assert_int_equal(cn_buf_addf(&body, "1000\r\n"), CN_OK);
        assert_int_equal(cn_buf_add(&body, piece, sizeof piece), CN_OK);
        assert_int_equal(cn_buf_addf(&body, "\r\n"), CN_OK);
    }
    assert_int_equal(raw_status(body.data), 413);
    cn_buf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_name_unknown_members_and_models),
        cmocka_unit_test(tokens_refuse_unknown_members),
        cmocka_unit_test(bad_requests_are_refused_by_name),
        cmocka_unit_test(what_the_engine_refuses_is_named_too),
        cmocka_unit_test(a_request_beyond_the_context_is_named),
        cmocka_unit_test(a_truncated_prompt_may_have_any_length),
        cmocka_unit_test(a_prompt_is_truncated_to_the_room),
        cmocka_unit_test(a_deep_schema_is_accepted),
        cmocka_unit_test(a_body_beyond_the_memory_for_bodies_is_too_large),
        cmocka_unit_test(routes_that_need_a_spool_name_the_option),
        cmocka_unit_test(malformed_http_is_refused_in_json),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
