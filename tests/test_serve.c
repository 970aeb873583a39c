/* test_serve.c - the server over real sockets with the bundled checkpoint: answers equal those of
 * the engine, streams give the same text as whole replies, and errors have OpenAI's format.
 * test_serve_limits.c tests slow, misbehaving and many clients. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/serve_rig.h"

#define QUESTION "Compute 12 * 34 by hand."

static serve_rig rig; /* shared by tests that do not change it */

static int open_rig(void **state)
{
    static const char *const options[] = {"--kv-policies", "full,zip", "--max-body-bytes", "65536",
                                          "--max-header-bytes", "4096", NULL};
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

/* Returns a chat about QUESTION with more members appended. */
static char *chat_body(const char *more)
{
    static char body[2048];
    snprintf(body, sizeof body,
             "{\"model\": \"tiny\", \"messages\": [{\"role\": \"user\", \"content\": \"" QUESTION
             "\"}]%s%s}", *more ? ", " : "", more);
    return body;
}

static json_t *ask_chat(const char *more)
{
    return http_ask_json(rig.port, "POST", "/v1/chat/completions", chat_body(more), 200);
}

static const char *content_of(const json_t *reply, size_t choice)
{
    json_t *c = json_array_get(json_object_get(reply, "choices"), choice);
    return json_string_value(json_object_get(json_object_get(c, "message"), "content"));
}

/* ---- answers ---- */

static void the_answer_equals_the_engines(void **state)
{
    (void)state;
    static run r; /* large */
    static const char *const options[] = {NULL};
    cn_message message;
    run_open(&r, options);
    cn_request_params p = run_params(&r, QUESTION, &message, 60);
    p.sampling.temperature = 3;
    p.sampling.has_seed = true;
    p.sampling.seed = 11;
    p.sampling.n = 2;
    run_submit(&r, &p);
    run_finish(&r);
    json_t *reply = ask_chat("\"seed\": 11, \"temperature\": 3, \"n\": 2, \"max_tokens\": 60");
    for (uint32_t i = 0; i < 2; i++)
        assert_string_equal(content_of(reply, i), r.samples[0][i].text.data);
    json_t *usage = json_object_get(reply, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")),
                     r.samples[0][0].usage.prompt_tokens);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")),
                     r.samples[0][0].n_tokens + r.samples[0][1].n_tokens);
    assert_string_not_equal(content_of(reply, 0), content_of(reply, 1));
    json_decref(reply);
    run_close(&r);
}

static void a_stream_equals_a_whole_reply(void **state)
{
    (void)state;
    static const char same[] = "\"seed\": 5, \"temperature\": 3, \"n\": 3, \"max_tokens\": 50";
    char more[256];
    json_t *whole = ask_chat(same);
    snprintf(more, sizeof more, "%s, \"stream\": true, \"stream_options\": "
             "{\"include_usage\": true}", same);
    http_reply r;
    http_ask(rig.port, "POST", "/v1/chat/completions", NULL, chat_body(more), &r);
    assert_int_equal(r.status, 200);
    assert_false(r.truncated);
    assert_string_equal(http_field(&r, "Content-Type"), "text/event-stream");
    for (int i = 0; i < 3; i++) {
        http_stream s;
        http_stream_read(r.body.data, i, &s);
        assert_true(s.done);
        assert_string_equal(s.text.data, content_of(whole, (size_t)i));
        json_t *choice = json_array_get(json_object_get(whole, "choices"), (size_t)i);
        assert_string_equal(s.finish, json_string_value(json_object_get(choice, "finish_reason")));
        assert_non_null(s.usage);
        json_t *first = json_array_get(s.events, 0), *last;
        assert_true(json_is_null(json_object_get(first, "usage")));
        last = json_array_get(s.events, json_array_size(s.events) - 1);
        assert_int_equal(json_array_size(json_object_get(last, "choices")), 0);
        assert_true(json_equal(json_object_get(s.usage, "completion_tokens"),
                               json_object_get(json_object_get(whole, "usage"),
                                               "completion_tokens")));
        http_stream_free(&s);
    }
    http_reply_free(&r);
    json_decref(whole);
}

/* The tokens in the logprobs of each choice of a stream must spell its text. */
static void streamed_logprobs_are_complete(void **state)
{
    (void)state;
    http_reply r;
    http_ask(rig.port, "POST", "/v1/completions", NULL,
             "{\"prompt\": \"1 2 3\", \"max_tokens\": 12, \"logprobs\": 2, \"stream\": true, "
             "\"temperature\": 0}", &r);
    http_stream s;
    http_stream_read(r.body.data, 0, &s);
    json_t *whole = http_ask_json(rig.port, "POST", "/v1/completions",
                                  "{\"prompt\": \"1 2 3\", \"max_tokens\": 12, \"logprobs\": 2, "
                                  "\"temperature\": 0}", 200);
    json_t *choice = json_array_get(json_object_get(whole, "choices"), 0), *event;
    assert_string_equal(s.text.data, json_string_value(json_object_get(choice, "text")));
    json_t *joined = json_object();
    static const char *const parts[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    size_t i;
    for (size_t k = 0; k < 4; k++) json_object_set_new(joined, parts[k], json_array());
    json_array_foreach(s.events, i, event)
    {
        json_t *c = json_array_get(json_object_get(event, "choices"), 0);
        for (size_t k = 0; c && k < 4; k++)
            json_array_extend(json_object_get(joined, parts[k]),
                              json_object_get(json_object_get(c, "logprobs"), parts[k]));
    }
    assert_int_equal(json_array_size(json_object_get(joined, "tokens")), 12);
    assert_true(json_equal(joined, json_object_get(choice, "logprobs")));
    json_decref(joined);
    json_decref(whole);
    http_stream_free(&s);
    http_reply_free(&r);
}

/* Token 188 of the bundled tokenizer is a NUL byte. The bias makes it the only sampled token. */
#define SAYS_NUL                                                                                   \
    "\"max_tokens\": 3, \"temperature\": 0, \"logit_bias\": {\"188\": 100}"

static void expect_nuls(const json_t *text, size_t n)
{
    assert_int_equal(json_string_length(text), n);
    for (size_t i = 0; i < n; i++) assert_int_equal(json_string_value(text)[i], '\0');
}

/* A NUL is a token like any other, in a chat and in a prompt. */
static void a_nul_of_a_prompt_reaches_the_model(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\": \"a\\u0000b\", \"max_tokens\": 1, \"return_token_ids\": true, "
        "\"echo\": true}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\\u0000b\"}], \"max_tokens\": 1, "
        "\"return_token_ids\": true}"};
    for (int chat = 0; chat < 2; chat++) {
        json_t *r = http_ask_json(rig.port, "POST",
                                  chat ? "/v1/chat/completions" : "/v1/completions", bodies[chat],
                                  200);
        const json_t *choice = json_array_get(json_object_get(r, "choices"), 0);
        const json_t *ids = json_object_get(chat ? r : choice, "prompt_token_ids");
        size_t n = 0, i;
        const json_t *id;
        json_array_foreach(ids, i, id) n += json_integer_value(id) == 188;
        assert_int_equal(n, 1);
        const char *text = json_string_value(json_object_get(choice, "text"));
        if (!chat) assert_memory_equal(text, "a\0b", 3);
        json_decref(r);
    }
    json_t *r = http_ask_json(rig.port, "POST", "/tokenize", "{\"prompt\": \"\\u0000\"}", 200);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(r, "tokens"), 0)), 188);
    json_decref(r);
}

static void a_nul_is_kept_in_whole_and_streamed_replies(void **state)
{
    (void)state;
    static const char *const streamed[] = {"", ", \"stream\": true"};
    json_t *whole = ask_chat(SAYS_NUL ", \"logprobs\": true");
    json_t *choice = json_array_get(json_object_get(whole, "choices"), 0);
    const json_t *content = json_object_get(json_object_get(choice, "logprobs"), "content");
    expect_nuls(json_object_get(json_object_get(choice, "message"), "content"), 3);
    expect_nuls(json_object_get(json_array_get(content, 2), "token"), 1);
    json_decref(whole);
    for (int i = 0; i < 2; i++) {
        char body[256];
        http_reply r;
        snprintf(body, sizeof body, "{\"prompt\": \"1 2 3\", " SAYS_NUL "%s}", streamed[i]);
        http_ask(rig.port, "POST", "/v1/completions", NULL, body, &r);
        assert_int_equal(r.status, 200);
        assert_null(memchr(r.body.data, '\0', r.body.len));
        if (i == 0) {
            whole = json_loadb(r.body.data, r.body.len, JSON_ALLOW_NUL, NULL);
            choice = json_array_get(json_object_get(whole, "choices"), 0);
            expect_nuls(json_object_get(choice, "text"), 3);
            json_decref(whole);
        } else {
            http_stream s;
            http_stream_read(r.body.data, 0, &s);
            assert_true(s.done);
            assert_int_equal(s.text.len, 3);
            assert_memory_equal(s.text.data, "\0\0\0", 3);
            http_stream_free(&s);
        }
        http_reply_free(&r);
    }
    /* The member of top_logprobs for the sampled token. jansson does not read such a key. */
    http_reply r;
    http_ask(rig.port, "POST", "/v1/completions", NULL,
             "{\"prompt\": \"1 2 3\", " SAYS_NUL ", \"logprobs\": 0}", &r);
    assert_non_null(strstr(r.body.data, "{\"\\u0000\":"));
    assert_null(memchr(r.body.data, '\0', r.body.len));
    http_reply_free(&r);
    whole = http_ask_json(rig.port, "POST", "/detokenize", "{\"tokens\": [188]}", 200);
    expect_nuls(json_object_get(whole, "prompt"), 1);
    json_decref(whole);
}

/* Asks for a completion. Returns the reply, and its text in *text. */
static json_t *ask_completion(const char *body, const char **text)
{
    json_t *reply = http_ask_json(rig.port, "POST", "/v1/completions", body, 200);
    json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    *text = json_string_value(json_object_get(choice, "text"));
    return reply;
}

/* Here the model may only write digits and the tags of reasoning, in any order. */
static void a_completion_has_all_its_text(void **state)
{
    (void)state;
    const char *text;
    char body[512];
    json_t *reply = ask_completion(
        "{\"prompt\": \"a\", \"max_tokens\": 24, \"seed\": 1, \"temperature\": 100, "
        "\"ignore_eos\": true, \"skip_special_tokens\": false, \"return_token_ids\": true, "
        "\"allowed_token_ids\": [2046, 2047, 15, 16, 17, 18]}", &text);
    assert_true(strstr(text, "<think>") > text && strstr(text, "</think>"));
    json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    char *ids = json_dumps(json_object_get(choice, "token_ids"), 0);
    snprintf(body, sizeof body, "{\"tokens\": %s}", ids);
    json_t *back = http_ask_json(rig.port, "POST", "/detokenize", body, 200);
    assert_string_equal(json_string_value(json_object_get(back, "prompt")), text);
    free(ids);
    json_decref(back);
    json_decref(reply);

    /* Without a form the model begins this answer with <think>. */
    reply = ask_completion("{\"prompt\": \"Solve mod 100: 83-89 54+75 60-88 75+62 81+60\", "
                           "\"max_tokens\": 4, \"temperature\": 0, "
                           "\"response_format\": {\"type\": \"json_object\"}}", &text);
    assert_int_equal(text[0], '{');
    json_decref(reply);

    reply = ask_completion("{\"prompt\": \"The grey cat sat.\", \"max_tokens\": 2, \"echo\": true, "
                           "\"truncate_prompt_tokens\": 1}", &text);
    assert_int_equal(text[0], '.');
    json_decref(reply);
}

static void stop_strings_and_kv_options_work(void **state)
{
    (void)state;
    json_t *reply = ask_chat("\"temperature\": 0, \"max_tokens\": 80, \"stop\": [\"digit 3\"]");
    json_t *choice = json_array_get(json_object_get(reply, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    assert_string_equal(json_string_value(json_object_get(choice, "stop_reason")), "digit 3");
    assert_null(strstr(content_of(reply, 0), "digit 3"));
    json_decref(reply);
    reply = ask_chat("\"temperature\": 0, \"max_tokens\": 300, \"ignore_eos\": true, "
                     "\"kv\": {\"policy\": \"zip\", \"budget\": 128}");
    json_t *kv = json_object_get(json_object_get(reply, "usage"), "kv");
    assert_string_equal(json_string_value(json_object_get(kv, "policy")), "zip");
    assert_int_equal(json_integer_value(json_object_get(kv, "budget")), 128);
    assert_true(json_integer_value(json_object_get(kv, "compressions")) > 0);
    json_decref(reply);
}

static void detokenize_inverts_tokenize(void **state)
{
    (void)state;
    json_t *r = http_ask_json(rig.port, "POST", "/tokenize",
                              "{\"prompt\": \"12 * 34 = \\u00e4\", \"return_token_strs\": true}",
                              200);
    char *ids = json_dumps(json_object_get(r, "tokens"), 0);
    char body[512];
    assert_int_equal(json_integer_value(json_object_get(r, "count")),
                     json_array_size(json_object_get(r, "tokens")));
    assert_int_equal(json_array_size(json_object_get(r, "token_strs")),
                     json_array_size(json_object_get(r, "tokens")));
    snprintf(body, sizeof body, "{\"tokens\": %s}", ids);
    json_t *back = http_ask_json(rig.port, "POST", "/detokenize", body, 200);
    assert_string_equal(json_string_value(json_object_get(back, "prompt")), "12 * 34 = \xc3\xa4");
    json_t *chat = http_ask_json(rig.port, "POST", "/tokenize", chat_body(""), 200);
    json_t *answer = ask_chat("\"max_tokens\": 1");
    assert_true(json_equal(json_object_get(chat, "count"),
                           json_object_get(json_object_get(answer, "usage"), "prompt_tokens")));
    json_decref(http_ask_json(rig.port, "POST", "/detokenize", "{\"tokens\": [99999999]}", 400));
    json_decref(http_ask_json(rig.port, "POST", "/detokenize", "{\"tokens\": [-1]}", 400));
    json_decref(http_ask_json(rig.port, "POST", "/tokenize",
                              "{\"prompt\": \"a\", \"messages\": null}", 200));
    json_decref(http_ask_json(rig.port, "POST", "/tokenize", "{\"prompt\": 3}", 400));
    json_decref(http_ask_json(rig.port, "POST", "/tokenize", "[]", 400));
    json_decref(http_ask_json(rig.port, "POST", "/tokenize", "{}", 400));
    json_decref(http_ask_json(rig.port, "POST", "/tokenize",
                              "{\"prompt\": \"a\", \"messages\": [true]}", 400));
    free(ids);
    json_decref(r);
    json_decref(back);
    json_decref(chat);
    json_decref(answer);
}

static void a_model_name_may_have_slashes(void **state)
{
    (void)state;
    static const char *const options[] = {"--served-model-name", "org/tiny:1,b", NULL};
    static const struct {
        const char *path, *name;
        int status;
    } cases[] = {
        {"/v1/models/org/tiny:1", "org/tiny:1", 200},
        {"/v1/models/org%2Ftiny%3A1", "org/tiny:1", 200},
        {"/v1/models/b", "b", 200},
        {"/v1/models/org", "org", 404},
        {"/v1/models/org/tiny:1/", "org/tiny:1", 200},
        {"/v1/models/tiny:1", "tiny:1", 404},
    };
    serve_rig own;
    serve_rig_open(&own, options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *r = http_ask_json(own.port, "GET", cases[i].path, NULL, cases[i].status);
        const json_t *error = json_object_get(r, "error");
        char wanted[64];
        snprintf(wanted, sizeof wanted, "\"%s\"", cases[i].name);
        if (error) {
            assert_string_equal(json_string_value(json_object_get(error, "code")),
                                "model_not_found");
            assert_non_null(strstr(json_string_value(json_object_get(error, "message")), wanted));
        } else {
            assert_string_equal(json_string_value(json_object_get(r, "id")), cases[i].name);
        }
        json_decref(r);
    }
    serve_rig_close(&own);
}

static void small_routes_answer(void **state)
{
    (void)state;
    json_t *r = http_ask_json(rig.port, "GET", "/v1/models", NULL, 200);
    json_t *model = json_array_get(json_object_get(r, "data"), 0);
    assert_string_equal(json_string_value(json_object_get(model, "id")), "tiny");
    assert_true(json_integer_value(json_object_get(model, "max_model_len")) > 0);
    json_decref(r);
    json_decref(http_ask_json(rig.port, "GET", "/v1/models/tiny", NULL, 200));
    json_decref(http_ask_json(rig.port, "GET", "/v1/models/other", NULL, 404));
    r = http_ask_json(rig.port, "GET", "/version", NULL, 200);
    assert_string_equal(json_string_value(json_object_get(r, "version")), CINCH_VERSION);
    json_decref(r);
    json_decref(http_ask_json(rig.port, "GET", "/health", NULL, 200));
    http_reply head;
    http_ask(rig.port, "HEAD", "/health", NULL, NULL, &head);
    assert_int_equal(head.status, 200);
    assert_int_equal(head.body.len, 0);
    http_reply_free(&head);
}

/* ---- connections ---- */

static void a_connection_is_used_again(void **state)
{
    (void)state;
    int fd = http_connect(rig.port);
    for (int i = 0; i < 3; i++) {
        http_reply r;
        assert_true(http_send_text(fd, "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        http_read(fd, false, &r);
        assert_int_equal(r.status, 200);
        assert_string_equal(http_field(&r, "Connection"), "keep-alive");
        http_reply_free(&r);
    }
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    static const char two[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: 16\r\n\r\n"
        "{\"prompt\": \"abc\"}"
        "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    http_reply first, second;
    int fd = http_connect(rig.port);
    char byte;
    cn_buf text = {0};
    assert_int_equal(cn_buf_addf(&text, "%s", two), CN_OK);
    memcpy(strstr(text.data, "16"), "17", 2);
    assert_true(http_send(fd, text.data, text.len));
    http_read(fd, false, &first);
    http_read(fd, false, &second);
    assert_int_equal(first.status, 200);
    assert_non_null(strstr(first.body.data, "\"tokens\""));
    assert_int_equal(second.status, 200);
    assert_non_null(strstr(second.body.data, "\"version\""));
    assert_int_equal(read(fd, &byte, 1), 0); /* closed as asked */
    cn_buf_free(&text);
    http_reply_free(&first);
    http_reply_free(&second);
    close(fd);
}

static void a_chunked_request_is_read_in_pieces(void **state)
{
    (void)state;
    static const char *const pieces[] = {
        "POST /tokenize HTT",
        "P/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chu",
        "nked\r\n\r\n5\r",
        "\n{\"pro\r\nc\r\nmpt\": \"ab",
        "c\"}\r",
        "\n0\r\n\r",
        "\n",
    };
    const struct timespec pause = {.tv_nsec = 5000000};
    http_reply r;
    int fd = http_connect(rig.port);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        assert_true(http_send_text(fd, pieces[i]));
        nanosleep(&pause, NULL);
    }
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    close(fd);
}

static void continue_is_sent_when_expected(void **state)
{
    (void)state;
    http_reply r;
    int fd = http_connect(rig.port);
    assert_true(http_send_text(fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                   "application/json\r\nContent-Length: 17\r\n"
                                   "Expect: 100-continue\r\n\r\n"));
    http_read(fd, true, &r);
    assert_int_equal(r.status, 100);
    http_reply_free(&r);
    assert_true(http_send_text(fd, "{\"prompt\": \"abc\"}"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    close(fd);
}

/* ---- other servers ---- */

static void a_unix_socket_serves(void **state)
{
    (void)state;
    serve_rig unix_rig;
    char path[64];
    snprintf(path, sizeof path, "/tmp/cinch-test-%d.sock", (int)getpid());
    const char *const options[] = {"--uds", path, NULL};
    for (int round = 0; round < 2; round++) {
        serve_rig_open(&unix_rig, options);
        http_reply r;
        int fd = http_connect_unix(path);
        assert_true(fd >= 0);
        assert_true(http_send_text(fd, "GET /health HTTP/1.0\r\n\r\n"));
        http_read(fd, false, &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
        close(fd);
        serve_rig_close(&unix_rig);
        assert_int_not_equal(access(path, F_OK), 0);
    }
}

/* ---- the start ---- */

/* Only a socket on which nothing listens is removed. This one refuses streams for another reason,
 * as the socket of another user's server does. */
static void a_socket_in_use_is_not_removed(void **state)
{
    (void)state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/cinch-test-%d.sock", (int)getpid());
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0);
    const char *const options[] = {"--uds", at.sun_path, NULL};
    cn_config *config = serve_rig_config(options);
    cn_server *s = NULL;
    assert_int_equal(cn_server_create(&s, config), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "choose another path"));
    assert_int_equal(access(at.sun_path, F_OK), 0);
    cn_config_free(config);
    close(fd);
    unlink(at.sun_path);
}

/* A port in use is reported before anything is loaded: the model of this test does not exist. */
static void a_taken_port_is_refused_at_once(void **state)
{
    (void)state;
    char port[8], want[64];
    snprintf(port, sizeof port, "%u", rig.port);
    snprintf(want, sizeof want, "port %u: Address already in use", rig.port);
    const char *const options[] = {"--model", "/no/such/model", "--port", port, NULL};
    cn_config *config = serve_rig_config(options);
    cn_server *second = NULL;
    assert_int_equal(cn_server_create(&second, config), CN_ERR_IO);
    assert_null(second);
    assert_non_null(strstr(cn_last_error(), want));
    assert_non_null(strstr(cn_last_error(), "another --port"));
    cn_config_free(config);
}

static void a_failed_load_reports_the_cause(void **state)
{
    (void)state;
    static const char *const options[] = {"--model", "/no/such/model", NULL};
    cn_config *config = serve_rig_config(options);
    cn_server *s = NULL;
    assert_int_not_equal(cn_server_create(&s, config), CN_OK);
    assert_non_null(strstr(cn_last_error(), "/no/such/model"));
    cn_config_free(config);
}

typedef struct slow_start {
    cn_config *config;
    cn_server *server;
    cn_status status;
} slow_start;

static void *create_server(void *arg)
{
    slow_start *s = arg;
    s->status = cn_server_create(&s->server, s->config);
    return NULL;
}

static void expect_loading(const char *path, const char *request)
{
    http_reply r;
    const struct timespec look = {.tv_nsec = 5000000};
    int fd = -1;
    for (int i = 0; i < 2000 && (fd = http_connect_unix(path)) < 0; i++) nanosleep(&look, NULL);
    assert_true(fd >= 0 && http_send_text(fd, request));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"loading\""));
    assert_non_null(http_field(&r, "Retry-After"));
    http_reply_free(&r);
    close(fd);
}

/* The chat template is a pipe, so loading waits until the test opens it. */
static void loading_is_answered_503(void **state)
{
    (void)state;
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    scratch_dir dir;
    char from[512], to[512], path[300], pipe[300];
    scratch_dir_open(&dir);
    for (int i = 0; i < 2; i++) {
        snprintf(to, sizeof to, "%s/%s", dir.path, files[i]);
        snprintf(from, sizeof from, "examples/tiny-reasoner/%s", files[i]);
        char *whole = realpath(from, NULL);
        assert_true(whole && symlink(whole, to) == 0);
        free(whole);
    }
    snprintf(path, sizeof path, "%s/socket", dir.path);
    snprintf(pipe, sizeof pipe, "%s/chat_template.jinja", dir.path);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    const char *const options[] = {"--uds", path, "--tokenizer", dir.path, NULL};
    slow_start s = {.config = serve_rig_config(options)};
    serve_rig slow = {.config = s.config};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, create_server, &s), 0);
    expect_loading(path, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    expect_loading(
        path, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
    int gate = open(pipe, O_WRONLY); /* waits for the reader */
    assert_true(gate >= 0 && unlink(pipe) == 0);
    close(gate);
    pthread_join(thread, NULL);
    assert_int_equal(s.status, CN_OK);
    slow.server = s.server;
    serve_rig_run(&slow);
    http_reply r;
    int fd = http_connect_unix(path);
    assert_true(http_send_text(fd, "GET /health HTTP/1.0\r\n\r\n"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    close(fd);
    serve_rig_close(&slow);
    scratch_dir_close(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_answer_equals_the_engines),
        cmocka_unit_test(a_stream_equals_a_whole_reply),
        cmocka_unit_test(streamed_logprobs_are_complete),
        cmocka_unit_test(a_nul_is_kept_in_whole_and_streamed_replies),
        cmocka_unit_test(a_nul_of_a_prompt_reaches_the_model),
        cmocka_unit_test(a_completion_has_all_its_text),
        cmocka_unit_test(stop_strings_and_kv_options_work),
        cmocka_unit_test(detokenize_inverts_tokenize),
        cmocka_unit_test(small_routes_answer),
        cmocka_unit_test(a_model_name_may_have_slashes),
        cmocka_unit_test(a_connection_is_used_again),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_chunked_request_is_read_in_pieces),
        cmocka_unit_test(continue_is_sent_when_expected),
        cmocka_unit_test(a_unix_socket_serves),
        cmocka_unit_test(a_socket_in_use_is_not_removed),
        cmocka_unit_test(a_taken_port_is_refused_at_once),
        cmocka_unit_test(a_failed_load_reports_the_cause),
        cmocka_unit_test(loading_is_answered_503),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
