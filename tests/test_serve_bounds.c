/* test_serve_bounds.c - what a client may cost at most: memory and time of a request, of a key and
 * of a batch, and who waits for whom. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/serve_rig.h"

/* Ends a test that measures memory: a sanitizer's own would be counted. */
static void skip_under_sanitizer(void)
{
    if (BY_SANITIZER(false, true, true)) skip();
}

static int ask(uint16_t port, const char *path, const char *key, const char *body, cn_buf *text)
{
    http_reply r;
    http_ask(port, "POST", path, key, body, &r);
    const int status = r.status;
    if (text) {
        cn_buf_clear(text);
        assert_int_equal(cn_buf_add(text, r.body.data ? r.body.data : "", r.body.len), CN_OK);
    }
    http_reply_free(&r);
    return status;
}

/* Waits until no request holds memory of the budget. */
static void wait_free_memory(serve_rig *rig)
{
    const struct timespec look = {.tv_nsec = 5000000};
    cn_budget *memory = cn_service_memory(cn_server_service(rig->server));
    for (int i = 0; i < 2000 && atomic_load(&memory->used) > 0; i++) nanosleep(&look, NULL);
    assert_int_equal(atomic_load(&memory->used), 0);
}

/* Waits until the engine runs at least n samples. */
static void wait_running(serve_rig *rig, uint32_t n)
{
    cn_stats s = {0};
    for (int i = 0; i < 6000 && s.running < n; i++) {
        cn_service_engine_stats(cn_server_service(rig->server), &s);
        serve_pause_ms(5);
    }
    assert_true(s.running >= n);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

/* Sends a request whose reply is not read yet. */
static int begin(uint16_t port, const char *key, const char *body)
{
    cn_buf request = {0};
    int fd = http_connect(port);
    assert_true(fd >= 0);
    assert_int_equal(cn_buf_addf(&request,
                                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                 "Content-Type: application/json\r\n%s%s%s"
                                 "Content-Length: %zu\r\n\r\n%s",
                                 key ? "Authorization: Bearer " : "", key ? key : "",
                                 key ? "\r\n" : "", strlen(body), body),
                     CN_OK);
    assert_true(http_send(fd, request.data, request.len));
    cn_buf_free(&request);
    return fd;
}

/* ---- samples ---- */

/* A completion of n samples that runs until it is cancelled, with 64 stop strings. */
static const char *worst_body(int n, bool stream)
{
    static cn_buf b;
    cn_buf_clear(&b);
    assert_int_equal(
        cn_buf_addf(&b,
                    "{\"prompt\": \"Compute 12 * 34\", \"n\": %d, \"ignore_eos\": true, "
                    "\"max_tokens\": 4000, \"stream\": %s, \"stop\": [",
                    n, stream ? "true" : "false"),
        CN_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(cn_buf_addf(&b, "%s\"%c%01023d\"", i ? "," : "", '0' + i % 10, i), CN_OK);
    assert_int_equal(cn_buf_addf(&b, "]}"), CN_OK);
    return b.data;
}

static void a_key_pays_for_its_samples(void **state)
{
    (void)state;
    static const char *const options[] = {"--api-key", "ann:ann-secret-1,bob:bob-secret-2",
                                          "--max-requests-per-key", "4", NULL};
    static const char two[] = "{\"prompt\": \"a\", \"max_tokens\": 1, \"n\": 2}";
    static const char four[] = "{\"prompt\": \"a\", \"max_tokens\": 1, \"n\": 4}";
    static const char five[] = "{\"prompt\": \"a\", \"max_tokens\": 1, \"n\": 5}";
    serve_rig rig;
    cn_buf text = {0};
    serve_rig_open(&rig, options);
    assert_int_equal(ask(rig.port, "/v1/completions", "ann-secret-1", five, &text), 400);
    assert_non_null(strstr(text.data, "--max-requests-per-key"));
    int fd = begin(rig.port, "ann-secret-1", worst_body(3, true));
    assert_true(serve_rig_wait_running(&rig, 3));
    assert_int_equal(ask(rig.port, "/v1/completions", "ann-secret-1", two, &text), 429);
    assert_non_null(strstr(text.data, "no room for 2 samples"));
    assert_int_equal(ask(rig.port, "/v1/completions", "bob-secret-2", four, NULL), 200);
    close(fd);
    assert_true(serve_rig_wait_running(&rig, 0));
    wait_free_memory(&rig);
    assert_int_equal(ask(rig.port, "/v1/completions", "ann-secret-1", four, NULL), 200);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

static void a_cancel_returns_the_memory(void **state)
{
    (void)state;
    skip_under_sanitizer();
    static const char *const options[] = {"--max-num-seqs", "64", "--max-n", "1024", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            ask(rig.port, "/v1/completions", NULL, "{\"prompt\": \"a\", \"n\": 64}", NULL), 200);
    const uint64_t before = process_reset_peak_kib();
    int fd = begin(rig.port, NULL, worst_body(1024, false));
    wait_running(&rig, 16);
    /* 335 MB when each sample had its own automata */
    assert_true(process_growth_kib(before) < 64 << 10);
    close(fd);
    assert_true(serve_rig_wait_running(&rig, 0));
    wait_free_memory(&rig);
    assert_true(process_idle_rss_kib() <= before + before / 10);
    serve_rig_close(&rig);
}

/* ---- batches ---- */

static char *upload(uint16_t port, const char *key, const char *content)
{
    cn_buf form = {0}, request = {0};
    http_reply r;
    assert_int_equal(cn_buf_addf(&form,
                                 "--edge\r\nContent-Disposition: form-data; name=\"purpose\""
                                 "\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: form-data; "
                                 "name=\"file\"; filename=\"in.jsonl\"\r\n\r\n%s\r\n--edge--\r\n",
                                 content),
                     CN_OK);
    assert_int_equal(
        cn_buf_addf(&request,
                    "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                    "multipart/form-data; boundary=edge\r\n%s%s%sContent-Length: %zu\r\n"
                    "\r\n%s",
                    key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "",
                    form.len, form.data),
        CN_OK);
    int fd = http_connect(port);
    assert_true(http_send(fd, request.data, request.len));
    http_read(fd, false, &r);
    close(fd);
    if (r.status != 200) fail_msg("upload: %d %s", r.status, r.body.data);
    json_t *file = json_loadb(r.body.data, r.body.len, 0, NULL);
    char *id = cn_strdup(text_of(file, "id"));
    json_decref(file);
    http_reply_free(&r);
    cn_buf_free(&form);
    cn_buf_free(&request);
    return id;
}

static void create_batch(uint16_t port, const char *key, const char *file, char id[64])
{
    char body[256];
    cn_buf text = {0};
    snprintf(body, sizeof body, "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\"}",
             file);
    assert_int_equal(ask(port, "/v1/batches", key, body, &text), 200);
    json_t *batch = json_loads(text.data, 0, NULL);
    snprintf(id, 64, "%s", text_of(batch, "id"));
    json_decref(batch);
    cn_buf_free(&text);
}

/* Waits until the batch has this status, or a "paused" that contains `paused`. */
static json_t *await_batch(uint16_t port, const char *id, const char *status, const char *paused)
{
    char path[96];
    snprintf(path, sizeof path, "/v1/batches/%s", id);
    for (int i = 0; i < 600; i++) {
        json_t *batch = http_ask_json(port, "GET", path, NULL, 200);
        if (status && strcmp(text_of(batch, "status"), status) == 0) return batch;
        if (paused && strstr(text_of(batch, "paused"), paused)) return batch;
        json_decref(batch);
        serve_pause_ms(50);
    }
    fail_msg("%s is not %s", id, status ? status : paused);
    return NULL;
}

/* Lines that do not fit beside a running request wait: their batch says why, other clients are
 * answered, and the batch goes on when there is room. A line that can never fit is an error line.
 */
static void a_batch_that_does_not_fit_is_paused(void **state)
{
    (void)state;
    serve_rig rig;
    scratch_dir dir;
    char spool[128], id[64];
    scratch_dir_open(&dir);
    snprintf(spool, sizeof spool, "%s/spool", dir.path);
    const char *const options[] = {"--spool", spool, "--max-buffered-bytes", "1M", NULL};
    serve_rig_open(&rig, options);
    cn_buf lines = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(cn_buf_addf(&lines,
                                     "{\"custom_id\": \"%d\", \"method\": \"POST\", \"url\": "
                                     "\"/v1/completions\", \"body\": {\"prompt\": \"a\", "
                                     "\"max_tokens\": 1, \"logprobs\": %d, \"n\": 100}}\n",
                                     i, i == 3 ? 20 : 0),
                         CN_OK);
    char *file = upload(rig.port, NULL, lines.data);
    int fd = begin(rig.port, NULL, worst_body(100, true));
    wait_running(&rig, 16);
    create_batch(rig.port, NULL, file, id);
    json_t *batch = await_batch(rig.port, id, NULL, "--max-buffered-bytes");
    assert_string_equal(text_of(batch, "status"), "in_progress");
    json_decref(batch);
    assert_int_equal(
        ask(rig.port, "/v1/completions", NULL, "{\"prompt\": \"a\", \"max_tokens\": 1}", NULL),
        200);
    close(fd);
    batch = await_batch(rig.port, id, "completed", NULL);
    const json_t *counts = json_object_get(batch, "request_counts");
    assert_int_equal(json_integer_value(json_object_get(counts, "completed")), 3);
    assert_int_equal(json_integer_value(json_object_get(counts, "failed")), 1);
    json_decref(batch);
    cn_free(file);
    cn_buf_free(&lines);
    serve_rig_close(&rig);
    scratch_dir_close(&dir);
}

/* ---- keys ---- */

#define KEYS "ann:ann-secret-1 priority=-5,bob:bob-secret-2,root:root-secret-3 admin"

static int ask_path(uint16_t port, const char *method, const char *key, const char *format,
                    const char *id, cn_buf *text)
{
    char path[128];
    http_reply r;
    snprintf(path, sizeof path, format, id);
    http_ask(port, method, path, key, NULL, &r);
    const int status = r.status;
    if (text) {
        cn_buf_clear(text);
        assert_int_equal(cn_buf_addf(text, "%s", r.body.data ? r.body.data : ""), CN_OK);
    }
    http_reply_free(&r);
    return status;
}

/* Checks that the file and the batch exist for a key, or do not. */
static void expect_access(uint16_t port, const char *key, const char *file, const char *batch,
                          bool sees)
{
    cn_buf text = {0};
    const int want = sees ? 200 : 404;
    assert_int_equal(ask_path(port, "GET", key, "/v1/files/%s", file, NULL), want);
    assert_int_equal(ask_path(port, "GET", key, "/v1/files/%s/content", file, NULL), want);
    assert_int_equal(ask_path(port, "GET", key, "/v1/batches/%s", batch, NULL), want);
    assert_int_equal(ask_path(port, "GET", key, "/v1/files%s", "", &text), 200);
    assert_int_equal(strstr(text.data, file) != NULL, sees);
    assert_int_equal(ask_path(port, "GET", key, "/v1/files?after=%s", file, NULL),
                     sees ? 200 : 400);
    assert_int_equal(ask_path(port, "GET", key, "/v1/batches%s", "", &text), 200);
    assert_int_equal(strstr(text.data, batch) != NULL, sees);
    assert_int_equal(ask_path(port, "GET", key, "/v1/batches?after=%s", batch, NULL),
                     sees ? 200 : 400);
    cn_buf_free(&text);
}

static void files_and_batches_belong_to_their_key(void **state)
{
    (void)state;
    serve_rig rig;
    scratch_dir dir;
    char spool[128], id[64], body[256];
    cn_buf text = {0};
    scratch_dir_open(&dir);
    snprintf(spool, sizeof spool, "%s/spool", dir.path);
    const char *const options[] = {"--spool", spool, "--api-key", KEYS, NULL};
    serve_rig_open(&rig, options);
    char *file =
        upload(rig.port, "ann-secret-1",
               "{\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/completions\", "
               "\"body\": {\"prompt\": \"a\", \"max_tokens\": 2}}\n");
    snprintf(body, sizeof body, "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\"}",
             file);
    assert_int_equal(ask(rig.port, "/v1/batches", "bob-secret-2", body, &text), 400);
    assert_non_null(strstr(text.data, "no such file"));
    create_batch(rig.port, "ann-secret-1", file, id);
    for (int restarted = 0; restarted < 2; restarted++) {
        expect_access(rig.port, "ann-secret-1", file, id, true);
        expect_access(rig.port, "bob-secret-2", file, id, false);
        expect_access(rig.port, "root-secret-3", file, id, true);
        assert_int_equal(
            ask_path(rig.port, "POST", "bob-secret-2", "/v1/batches/%s/cancel", id, NULL), 404);
        assert_int_equal(ask_path(rig.port, "DELETE", "bob-secret-2", "/v1/files/%s", file, NULL),
                         404);
        for (int i = 0; i < 200; i++) { /* its output belongs to ann too */
            assert_int_equal(ask_path(rig.port, "GET", "ann-secret-1", "/v1/batches/%s", id, &text),
                             200);
            if (strstr(text.data, "\"completed\",")) break;
            serve_pause_ms(50);
        }
        json_t *batch = json_loads(text.data, 0, NULL);
        expect_access(rig.port, "ann-secret-1", text_of(batch, "output_file_id"), id, true);
        expect_access(rig.port, "bob-secret-2", text_of(batch, "output_file_id"), id, false);
        json_decref(batch);
        if (restarted) break;
        serve_rig_close(&rig);
        serve_rig_open(&rig, options);
    }
    assert_int_equal(ask_path(rig.port, "DELETE", "root-secret-3", "/v1/files/%s", file, NULL),
                     200);
    cn_free(file);
    cn_buf_free(&text);
    serve_rig_close(&rig);
    scratch_dir_close(&dir);
}

static int64_t cached_tokens(uint16_t port, const char *key)
{
    static char body[2048];
    cn_buf text = {0};
    snprintf(body, sizeof body, "{\"max_tokens\": 1, \"prompt\": \"%0600d\"}", 7);
    assert_int_equal(ask(port, "/v1/completions", key, body, &text), 200);
    json_t *reply = json_loads(text.data, 0, NULL);
    json_t *usage = json_object_get(reply, "usage");
    json_t *n = json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    const int64_t cached = json_integer_value(n);
    json_decref(reply);
    cn_buf_free(&text);
    return cached;
}

static void a_key_does_not_see_what_others_asked(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        const char *const options[] = {"--api-key", KEYS, shared ? "--share-prefix-cache" : NULL,
                                       NULL};
        serve_rig rig;
        serve_rig_open(&rig, options);
        assert_int_equal(cached_tokens(rig.port, "ann-secret-1"), 0);
        assert_true(cached_tokens(rig.port, "ann-secret-1") > 0);
        assert_int_equal(cached_tokens(rig.port, "bob-secret-2") > 0, shared);
        serve_rig_close(&rig);
    }
}

static void a_key_has_a_lowest_priority(void **state)
{
    (void)state;
    static const char low[] = "{\"prompt\": \"a\", \"max_tokens\": 1, \"priority\": -5}";
    static const char lower[] = "{\"prompt\": \"a\", \"max_tokens\": 1, \"priority\": -6}";
    static const char none[] = "{\"prompt\": \"a\", \"max_tokens\": 1}";
    const char *const options[] = {"--api-key", KEYS, "--scheduling-policy", "priority", NULL};
    serve_rig rig;
    cn_buf text = {0};
    serve_rig_open(&rig, options);
    assert_int_equal(ask(rig.port, "/v1/completions", "ann-secret-1", low, NULL), 200);
    assert_int_equal(ask(rig.port, "/v1/completions", "ann-secret-1", lower, &text), 400);
    assert_non_null(strstr(text.data, "may set -5 or more, got -6"));
    assert_non_null(strstr(text.data, "\"param\":\"priority\""));
    assert_int_equal(ask(rig.port, "/v1/completions", "bob-secret-2", low, NULL), 400);
    assert_int_equal(ask(rig.port, "/v1/completions", "bob-secret-2", none, NULL), 200);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

/* One key fills the engine with samples that run until they are cancelled. */
static void a_key_is_answered_beside_many_samples_of_another(void **state)
{
    (void)state;
    const char *const options[] = {"--api-key", KEYS, "--max-num-seqs", "16", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    int fd = begin(rig.port, "ann-secret-1", worst_body(128, true));
    wait_running(&rig, 16);
    const double began = cn_now_s();
    assert_int_equal(ask(rig.port, "/v1/completions", "bob-secret-2",
                         "{\"prompt\": \"a\", \"max_tokens\": 8}", NULL),
                     200);
    cn_stats s;
    cn_service_engine_stats(cn_server_service(rig.server), &s);
    assert_true(s.generation_tokens < 16 * 1000 && cn_now_s() - began < 60);
    close(fd);
    serve_rig_close(&rig);
}

/* ---- pages of other sites ---- */

static int status_of(uint16_t port, const char *head)
{
    http_reply r;
    cn_buf request = {0};
    int fd = http_connect(port);
    assert_int_equal(cn_buf_addf(&request, "%s\r\n\r\n", head), CN_OK);
    assert_true(http_send(fd, request.data, request.len));
    http_read(fd, false, &r);
    const int status = r.status;
    http_reply_free(&r);
    cn_buf_free(&request);
    close(fd);
    return status;
}

#define GET_MODELS "GET /v1/models HTTP/1.1\r\n"

static void without_keys_the_host_and_the_origin_count(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        int status, with_key;
    } cases[] = {
        {GET_MODELS "Host: localhost:8000", 200, 401},
        {GET_MODELS "Host: 127.0.0.1:8000", 200, 401},
        {GET_MODELS "Host: [::1]:8000", 200, 401},
        {GET_MODELS "Host: 192.168.7.9", 200, 401},
        {GET_MODELS "Host: LocalHost", 200, 401},
        {GET_MODELS "Host: good.example", 200, 401},
        {GET_MODELS "Host: evil.example", 403, 401},
        {GET_MODELS "Host: evil.example:8000", 403, 401},
        {GET_MODELS "Host: localhost.evil.example", 403, 401},
        {GET_MODELS "Host: ", 403, 401},
        {GET_MODELS "Host: localhost:8000\r\nOrigin: http://localhost:8000", 200, 401},
        {GET_MODELS "Host: localhost:8000\r\nOrigin: http://localhost:9000", 403, 401},
        {GET_MODELS "Host: localhost:8000\r\nOrigin: https://evil.example", 403, 401},
        {GET_MODELS "Host: localhost:8000\r\nOrigin: null", 403, 401},
        {"GET /health HTTP/1.1\r\nHost: evil.example", 200, 200},
        /* The host of a target in absolute form counts instead of the field. */
        {"GET http://localhost:8000/v1/models HTTP/1.1\r\nHost: evil.example", 200, 401},
        {"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost", 403, 401},
        {"GET http://evil.example/v1/models HTTP/1.0", 403, 401},
        {"GET http://localhost:8000/v1/models HTTP/1.0\r\nOrigin: http://localhost:8000", 200, 401},
        {GET_MODELS "Host: evil.example\r\nOrigin: https://evil.example\r\nAuthorization: Bearer "
                    "ann-secret-1",
         403, 200},
    };
    for (int keyed = 0; keyed < 2; keyed++) {
        const char *const options[] = {"--allowed-hosts", "other.example,good.example",
                                       keyed ? "--api-key" : NULL, KEYS, NULL};
        serve_rig rig;
        serve_rig_open(&rig, options);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const int want = keyed ? cases[i].with_key : cases[i].status;
            const int got = status_of(rig.port, cases[i].head);
            if (got != want) fail_msg("%s: expected %d, got %d", cases[i].head, want, got);
        }
        serve_rig_close(&rig);
    }
}

/* A page of another site can send these types without asking the server first. */
static void other_types_are_refused(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/completions",
                                        "/v1/chat/completions",
                                        "/tokenize",
                                        "/detokenize",
                                        "/v1/batches",
                                        "/v1/files",
                                        "/v1/batches/batch_000000000000000000000000/cancel"};
    static const char *const types[] = {"", "Content-Type: text/plain\r\n",
                                        "Content-Type: application/x-www-form-urlencoded\r\n",
                                        "Content-Type: application/jsonx\r\n"};
    serve_rig rig;
    scratch_dir dir;
    char spool[128], head[512];
    scratch_dir_open(&dir);
    snprintf(spool, sizeof spool, "%s/spool", dir.path);
    const char *const options[] = {"--spool", spool, NULL};
    serve_rig_open(&rig, options);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 2", paths[i],
                     types[k]);
            if (status_of(rig.port, head) != 415) fail_msg("%s %s", paths[i], types[k]);
        }
    serve_rig_close(&rig);
    scratch_dir_close(&dir);
}

/* ---- the intake ---- */

static int begin_tokenize(uint16_t port, const cn_buf *body)
{
    cn_buf head = {0};
    int fd = http_connect(port);
    assert_int_equal(cn_buf_addf(&head,
                                 "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                 "application/json\r\nContent-Length: %zu\r\n\r\n",
                                 body->len),
                     CN_OK);
    assert_true(http_send(fd, head.data, head.len) && http_send(fd, body->data, body->len));
    cn_buf_free(&head);
    return fd;
}

/* Long requests have a limit, and wait behind short ones. */
static void long_texts_do_not_delay_short_ones(void **state)
{
    (void)state;
    enum { N_LONG = BY_SANITIZER(144, 72, 36) };
    serve_rig rig;
    http_reply r;
    cn_buf body = {0};
    const char *const options[] = {"--max-model-len", "8192", NULL};
    serve_rig_open(&rig, options);
    assert_int_equal(cn_buf_addf(&body, "{\"prompt\": \""), CN_OK);
    while (body.len < 400000) /* words of letters are the slowest to encode */
        assert_int_equal(cn_buf_addf(&body, "%.*s ", 20 + (int)(body.len % 40),
                                     "qwertzuiopasdfghjklyxcvbnmqwertzuiopasdfghjklyxcvbnmqwertz"),
                         CN_OK);
    assert_int_equal(cn_buf_addf(&body, "\"}"), CN_OK);
    int fds[N_LONG];
    for (int i = 0; i < N_LONG; i++) fds[i] = begin_tokenize(rig.port, &body);
    serve_pause_ms(10); /* the first ones are being encoded */
    assert_int_equal(ask(rig.port, "/tokenize", NULL, "{\"prompt\": \"short\"}", NULL), 200);
    assert_int_equal(
        ask(rig.port, "/v1/completions", NULL, "{\"prompt\": \"a\", \"max_tokens\": 1}", NULL),
        200);
    struct pollfd last = {.fd = fds[N_LONG - 1], .events = POLLIN};
    assert_int_equal(poll(&last, 1, 0), 0); /* the last long one still waits */
    for (int i = 0; i < N_LONG; i++) {
        http_read(fds[i], false, &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
        close(fds[i]);
    }
    cn_buf_clear(&body);
    assert_int_equal(cn_buf_addf(&body, "{\"tokens\": [%*s1]}", 1 << 20, ""), CN_OK);
    assert_int_equal(ask(rig.port, "/detokenize", NULL, body.data, NULL), 413);
    assert_int_equal(ask(rig.port, "/tokenize", NULL, body.data, NULL), 413);
    cn_buf_free(&body);
    serve_rig_close(&rig);
}

/* ---- responses ---- */

static json_t *chat_of(const char *more)
{
    static char body[512];
    snprintf(body, sizeof body,
             "{\"messages\": [{\"role\": \"user\", \"content\": \"1 2 3\"}], \"logprobs\": true, "
             "\"top_logprobs\": 20, \"ignore_eos\": true, %s}",
             more);
    return json_string(body);
}

/* A body with many logprobs comes in parts, and is whole. */
static void a_long_response_comes_in_parts(void **state)
{
    (void)state;
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, NULL);
    json_t *body = chat_of("\"max_tokens\": 300, \"n\": 3");
    http_ask(rig.port, "POST", "/v1/chat/completions", NULL, json_string_value(body), &r);
    assert_int_equal(r.status, 200);
    assert_false(r.truncated);
    assert_true(r.body.len > 1 << 20);
    assert_non_null(http_field(&r, "Transfer-Encoding"));
    json_t *reply = json_loadb(r.body.data, r.body.len, JSON_ALLOW_NUL, NULL), *choice;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(reply, "choices")), 3);
    json_array_foreach(json_object_get(reply, "choices"), i, choice)
    {
        json_t *content = json_object_get(json_object_get(choice, "logprobs"), "content");
        assert_int_equal(json_array_size(content), 300);
        assert_int_equal(
            json_array_size(json_object_get(json_array_get(content, 299), "top_logprobs")), 20);
    }
    json_decref(reply);
    json_decref(body);
    http_reply_free(&r);
    serve_rig_close(&rig);
}

static void a_response_has_a_limit(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-reply-bytes", "200K", NULL};
    serve_rig rig;
    cn_buf text = {0};
    serve_rig_open(&rig, options);
    json_t *body = chat_of("\"max_tokens\": 2000");
    assert_int_equal(ask(rig.port, "/v1/chat/completions", NULL, json_string_value(body), &text),
                     400);
    assert_non_null(strstr(text.data, "--max-reply-bytes"));
    assert_true(serve_rig_wait_running(&rig, 0));
    cn_stats s;
    cn_service_engine_stats(cn_server_service(rig.server), &s);
    assert_true(s.generation_tokens < 200);
    json_decref(body);
    body = chat_of("\"max_tokens\": 200, \"stream\": true");
    assert_int_equal(ask(rig.port, "/v1/chat/completions", NULL, json_string_value(body), NULL),
                     200);
    json_decref(body);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

/* ---- JSON ---- */

/* Returns {"prompt": "hi", "max_tokens": 1, "metadata": [{},{},...]} with n objects. */
static cn_buf body_of_objects(size_t n)
{
    cn_buf b = {0};
    assert_int_equal(cn_buf_addf(&b, "{\"prompt\": \"hi\", \"max_tokens\": 1, \"metadata\": [{}"),
                     CN_OK);
    for (size_t i = 1; i < n; i++) assert_int_equal(cn_buf_add(&b, ",{}", 3), CN_OK);
    assert_int_equal(cn_buf_addf(&b, "]}"), CN_OK);
    return b;
}

static void a_body_of_many_objects_is_refused_unparsed(void **state)
{
    (void)state;
    skip_under_sanitizer();
    serve_rig rig;
    cn_buf text = {0}, body = body_of_objects(10 << 20);
    serve_rig_open(&rig, NULL);
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, "{\"prompt\": \"a\"}", NULL), 200);
    const uint64_t before = process_reset_peak_kib();
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, &text), 400);
    assert_non_null(strstr(text.data, "JSON values exceed the limit"));
    assert_true(process_growth_kib(before) < 200 << 10);
    assert_int_equal(ask(rig.port, "/tokenize", NULL, body.data, &text), 413);
    assert_non_null(strstr(text.data, "too large: /tokenize takes at most "));
    assert_true(process_growth_kib(before) < 200 << 10);
    cn_buf_free(&body);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

/* The tree of a body counts against --max-buffered-bytes while it is there. */
static void values_count_as_memory(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-buffered-bytes", "2M", NULL};
    serve_rig rig;
    cn_buf text = {0}, body = body_of_objects(20000);
    serve_rig_open(&rig, options);
    /* Its tree alone exceeds the limit, so that it would never find room. */
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, &text), 400);
    assert_non_null(strstr(text.data, "but --max-buffered-bytes is 2097152"));
    cn_buf_free(&body);
    body = body_of_objects(3000);
    for (int i = 0; i < 10; i++)
        assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, NULL), 200);
    assert_true(serve_rig_wait_running(&rig, 0));
    wait_free_memory(&rig);
    cn_buf_free(&body);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

/* ---- the worst request ---- */

/* The formula of docs/DEPLOY.md, section "What a request costs". */
static uint64_t most_bytes(uint64_t body, uint64_t values, uint64_t n, uint64_t context,
                           uint64_t reply)
{
    return 2 * body + 528 * values + n * (49152 + 5 * context) + 2 * reply + (8 << 20);
}

/* Everything that makes a request large, at once: a long body with as many JSON values as may be,
 * the most samples, stop strings, alternatives, and an answer without an end. */
static cn_buf worst_request(uint32_t n_values)
{
    cn_buf b = {0};
    assert_int_equal(
        cn_buf_addf(&b,
                    "{\"prompt\": \"Compute 12 * 34\", \"n\": 128, \"ignore_eos\": true, "
                    "\"logprobs\": 20, \"temperature\": 3, "
                    "\"user\": \"%01000000d\", "
                    "\"max_tokens\": 4000, \"metadata\": [{}",
                    7),
        CN_OK);
    for (uint32_t i = 0; i < n_values; i++) assert_int_equal(cn_buf_add(&b, ",{}", 3), CN_OK);
    assert_int_equal(cn_buf_addf(&b, "], \"stop\": ["), CN_OK);
    for (int i = 0; i < 64; i++)
        assert_int_equal(cn_buf_addf(&b, "%s\"%c%01023d\"", i ? "," : "", '0' + i % 10, i), CN_OK);
    assert_int_equal(cn_buf_addf(&b, "]}"), CN_OK);
    return b;
}

static void the_worst_request_stays_within_the_formula(void **state)
{
    (void)state;
    skip_under_sanitizer();
    enum { REPLY = 8 << 20, VALUES = 73000 };
    const char *const options[] = {"--max-reply-bytes", "8M", "--kv-cache-memory-bytes", "32M",
                                   "--max-model-len", "8192", NULL};
    serve_rig rig;
    cn_buf text = {0}, body = worst_request(VALUES);
    serve_rig_open(&rig, options);
    for (int i = 0; i < 2; i++) /* the memory that any request needs */
        assert_int_equal(
            ask(rig.port, "/v1/completions", NULL,
                "{\"prompt\": \"a\", \"n\": 128, \"max_tokens\": 20, \"ignore_eos\": true}", NULL),
            200);
    assert_true(serve_rig_wait_running(&rig, 0));
    wait_free_memory(&rig);
    const uint64_t before = process_reset_peak_kib();
    assert_int_equal(ask(rig.port, "/v1/completions", NULL, body.data, &text), 400);
    if (!strstr(text.data, "--max-reply-bytes")) fail_msg("%s", text.data);
    const uint64_t took = process_growth_kib(before) * 1024;
    const uint64_t most = most_bytes(body.len, VALUES + 200, 128, 8192, REPLY);
    if (took > most || took < most / 20)
        fail_msg("took %llu bytes, the formula says at most %llu", (unsigned long long)took,
                 (unsigned long long)most);
    cn_buf_free(&body);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_pays_for_its_samples),
        cmocka_unit_test(a_cancel_returns_the_memory),
        cmocka_unit_test(a_batch_that_does_not_fit_is_paused),
        cmocka_unit_test(files_and_batches_belong_to_their_key),
        cmocka_unit_test(a_key_does_not_see_what_others_asked),
        cmocka_unit_test(a_key_has_a_lowest_priority),
        cmocka_unit_test(a_key_is_answered_beside_many_samples_of_another),
        cmocka_unit_test(without_keys_the_host_and_the_origin_count),
        cmocka_unit_test(other_types_are_refused),
        cmocka_unit_test(long_texts_do_not_delay_short_ones),
        cmocka_unit_test(a_long_response_comes_in_parts),
        cmocka_unit_test(a_response_has_a_limit),
        cmocka_unit_test(a_body_of_many_objects_is_refused_unparsed),
        cmocka_unit_test(values_count_as_memory),
        cmocka_unit_test(the_worst_request_stays_within_the_formula),
    };
    process_use_one_arena();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
