/* test_serve_stop.c - the access log, with a full disk and after it was renamed; and the end of the
 * server: what new, running and unfinished requests are answered. */
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
#include "tests/lib/sanitizer.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/serve_rig.h"

static void wait_stopped(serve_rig *rig)
{
    pthread_join(rig->thread, NULL);
    rig->running = false;
    assert_int_equal(rig->end, CN_OK);
}

/* ---- the log ---- */

static void a_full_disk_of_the_log_does_not_stop_requests(void **state)
{
    (void)state;
    static const char *const options[] = {"--access-log", "/dev/full", NULL};
    serve_rig rig;
    cn_serve_figures f;
    serve_rig_open(&rig, options);
    for (int i = 0; i < 3; i++) assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    serve_rig_stop(&rig);
    serve_rig_figures(&rig, &f);
    assert_int_equal(f.log_lines_lost, 3);
    serve_rig_close(&rig);
}

static void the_log_has_a_line_per_request(void **state)
{
    (void)state;
    serve_rig rig;
    scratch_dir dir;
    char path[128], line[1024];
    scratch_dir_open(&dir);
    snprintf(path, sizeof path, "%s/log", dir.path);
    const char *const options[] = {"--access-log", path, "--api-key", "ann:ann-secret-1", NULL};
    serve_rig_open(&rig, options);
    http_reply r;
    http_ask(rig.port, "POST", "/v1/completions", "ann-secret-1", serve_long_body(7, false), &r);
    http_reply_free(&r);
    serve_get_status(rig.port, "/%22%0a%ff", "ann-secret-1");
    serve_rig_close(&rig);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    json_t *entry = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(entry, "key")), "ann");
    assert_string_equal(json_string_value(json_object_get(entry, "path")), "/v1/completions");
    assert_int_equal(json_integer_value(json_object_get(entry, "status")), 200);
    assert_int_equal(json_integer_value(json_object_get(entry, "output_tokens")), 7);
    assert_null(strstr(line, "ann-secret"));
    json_decref(entry);
    assert_non_null(fgets(line, sizeof line, f));
    entry = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(entry, "path")), "/\"\n\xef\xbf\xbd");
    json_decref(entry);
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    scratch_dir_put(&dir, "log", NULL, 0);
    scratch_dir_close(&dir);
}

/* Returns the first line of the log, parsed. */
static json_t *first_entry(const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    json_t *entry = json_loads(line, 0, NULL);
    assert_non_null(entry);
    return entry;
}

static json_int_t count_of(const json_t *entry, const char *key)
{
    return json_integer_value(json_object_get(entry, key));
}

/* Requests that do not end have generated tokens too: of a client that disconnects (0, 1), or cut
 * at the end of the server (2, 3); whole (0, 2) or streamed. */
static void the_log_has_the_tokens_of_unfinished_requests(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        serve_rig rig;
        scratch_dir dir;
        char path[128];
        scratch_dir_open(&dir);
        snprintf(path, sizeof path, "%s/log", dir.path);
        const char *const options[] = {"--access-log", path, "--shutdown-timeout", "0", NULL};
        serve_rig_open(&rig, options);
        const int fd = serve_begin(rig.port, NULL, 7900, i % 2);
        cn_stats s = {0};
        while (s.generation_tokens < 5) cn_service_engine_stats(cn_server_service(rig.server), &s);
        if (i < 2) close(fd);
        if (i < 2) assert_true(serve_rig_wait_running(&rig, 0));
        serve_rig_close(&rig);
        if (i >= 2) close(fd);
        json_t *entry = first_entry(path);
        assert_string_equal(json_string_value(json_object_get(entry, "end")),
                            i < 2 ? "client disconnected" : "sent");
        assert_true(count_of(entry, "prompt_tokens") > 0);
        assert_in_range(count_of(entry, "output_tokens"), 4, 7899);
        json_decref(entry);
        scratch_dir_put(&dir, "log", NULL, 0);
        scratch_dir_close(&dir);
    }
}

/* Counts the lines of a file. */
static int n_lines(const char *dir, const char *name)
{
    char path[160];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    for (int c; (c = fgetc(f)) != EOF;) n += c == '\n';
    fclose(f);
    return n;
}

/* The new file gets the lines after it was opened. When that fails, the old one gets them. */
static void the_log_is_opened_again(void **state)
{
    (void)state;
    serve_rig rig;
    scratch_dir dir;
    char path[128], old[128];
    scratch_dir_open(&dir);
    snprintf(path, sizeof path, "%s/log", dir.path);
    snprintf(old, sizeof old, "%s/log.1", dir.path);
    const char *const options[] = {"--access-log", path, NULL};
    serve_rig_open(&rig, options);
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    assert_int_equal(rename(path, old), 0);
    cn_server_reopen_log(rig.server);
    const double began = cn_now_s();
    while (access(path, F_OK) != 0 && cn_now_s() - began < 120) serve_pause_ms(5);
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    serve_rig_stop(&rig);
    assert_int_equal(n_lines(dir.path, "log.1"), 2);
    assert_int_equal(n_lines(dir.path, "log"), 1);
    serve_rig_close(&rig);
    scratch_dir_put(&dir, "log", NULL, 0);
    scratch_dir_put(&dir, "log.1", NULL, 0);
    scratch_dir_close(&dir);
}

/* ---- the end ---- */

static void a_stop_lets_requests_finish(void **state)
{
    (void)state;
    static const char *const options[] = {"--shutdown-timeout", "120", NULL};
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    int idle = http_connect(rig.port);
    int fd = serve_begin(rig.port, NULL, 200, true);
    assert_true(serve_rig_wait_running(&rig, 1));
    cn_server_stop(rig.server);
    http_read(fd, false, &r);
    http_stream s;
    http_stream_read(r.body.data, 0, &s);
    assert_true(s.done && !r.truncated);
    assert_string_equal(s.finish, "length");
    wait_stopped(&rig);
    http_stream_free(&s);
    http_reply_free(&r);
    serve_rig_close(&rig);
    close(fd);
    close(idle);
}

static void expect_draining(uint16_t port, const char *method, const char *path, const char *body)
{
    http_reply r;
    http_ask(port, method, path, NULL, body, &r);
    assert_int_equal(r.status, 503);
    assert_non_null(http_field(&r, "Retry-After"));
    assert_string_equal(http_field(&r, "Connection"), "close");
    assert_non_null(strstr(r.body.data, "\"code\":\"draining\""));
    http_reply_free(&r);
}

/* New requests over new connections are refused while a request still runs. One that keeps its
 * connection open and sends nothing does not keep the server from ending. */
static void a_stopping_server_answers_503(void **state)
{
    (void)state;
    static const char *const options[] = {"--shutdown-timeout", "120", NULL};
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    /* The request runs for some seconds, and the checks take place beside it. */
    const int fd = serve_begin(rig.port, NULL, BY_SANITIZER(1500, 700, 300), true);
    assert_true(serve_rig_wait_running(&rig, 1));
    cn_server_stop(rig.server);
    while (serve_get_status(rig.port, "/health", NULL) == 200) serve_pause_ms(5);
    expect_draining(rig.port, "GET", "/health", NULL);
    expect_draining(rig.port, "GET", "/v1/models", NULL);
    expect_draining(rig.port, "GET", "/no/such/path", NULL);
    expect_draining(rig.port, "POST", "/v1/completions", serve_long_body(1, false));
    json_t *stats = http_ask_json(rig.port, "GET", "/stats", NULL, 200);
    assert_true(json_is_true(json_object_get(stats, "draining")));
    json_decref(stats);
    assert_int_equal(serve_get_status(rig.port, "/metrics", NULL), 200);
    const int silent = http_connect(rig.port), partial = http_connect(rig.port);
    assert_true(http_send_text(partial, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                        "Content-Type: application/json\r\n"
                                        "Content-Length: 5\r\n\r\n"));
    http_read(fd, false, &r);
    const double ended = cn_now_s();
    assert_false(r.truncated);
    assert_non_null(strstr(r.body.data, "[DONE]"));
    http_reply_free(&r);
    wait_stopped(&rig);
    assert_true(cn_now_s() - ended < 60); /* half of the timeout: a busy machine may be slow */
    serve_rig_close(&rig);
    close(fd);
    close(silent);
    close(partial);
}

/* A second stop ends running requests at once, and without an answer. */
static void a_second_stop_ends_at_once(void **state)
{
    (void)state;
    static const char *const options[] = {"--shutdown-timeout", "100", NULL};
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    const int fd = serve_begin(rig.port, NULL, 7900, false);
    assert_true(serve_rig_wait_running(&rig, 1));
    const double began = cn_now_s();
    cn_server_stop(rig.server);
    cn_server_stop(rig.server);
    wait_stopped(&rig);
    assert_true(cn_now_s() - began < 50); /* half of the timeout */
    serve_rig_close(&rig);
    http_read(fd, false, &r);
    assert_int_equal(r.status, 0);
    http_reply_free(&r);
    close(fd);
}

/* At the deadline a request without a reply gets 503, also one that waits for admission, and a
 * stream ends with an error event. */
static void requests_get_an_error_at_the_deadline(void **state)
{
    (void)state;
    static const char *const options[] = {"--shutdown-timeout", "1", "--max-num-seqs", "3", NULL};
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    int fds[4];
    for (int i = 0; i < 4; i++) {
        if (i == 3) assert_true(serve_rig_wait_running(&rig, 3));
        fds[i] = serve_begin(rig.port, NULL, 7900, i == 1);
    }
    cn_stats s = {0};
    while (s.waiting < 1) cn_service_engine_stats(cn_server_service(rig.server), &s);
    const double began = cn_now_s();
    cn_server_stop(rig.server);
    for (int i = 0; i < 4; i++) {
        http_read(fds[i], false, &r);
        assert_int_equal(r.status, i == 1 ? 200 : 503);
        assert_false(r.truncated);
        const char *error = strstr(r.body.data, "\"error\":");
        assert_non_null(error);
        assert_non_null(strstr(error, "the server is stopping"));
        assert_non_null(strstr(error, "\"code\":\"draining\""));
        if (i == 1) assert_non_null(strstr(error, "data: [DONE]"));
        http_reply_free(&r);
        close(fds[i]);
    }
    wait_stopped(&rig);
    assert_true(cn_now_s() - began < 30); /* the timeout is a second */
    serve_rig_close(&rig);
}

/* A stream of /v1/responses ends with response.failed instead. */
static void a_response_fails_at_the_deadline(void **state)
{
    (void)state;
    static const char *const options[] = {"--shutdown-timeout", "1", NULL};
    static const char body[] = "{\"input\": \"Compute 12 * 34\", \"max_output_tokens\": 7900, "
                               "\"ignore_eos\": true, \"temperature\": 0, \"stream\": true}";
    char request[512];
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    const int fd = http_connect(rig.port);
    assert_true(fd >= 0);
    snprintf(request, sizeof request,
             "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof body - 1, body);
    assert_true(http_send_text(fd, request));
    assert_true(serve_rig_wait_running(&rig, 1));
    serve_pause_ms(500);
    cn_server_stop(rig.server);
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    assert_false(r.truncated);
    const char *failed = strstr(r.body.data, "event: response.failed\n");
    assert_non_null(failed);
    assert_non_null(strstr(failed, "\"message\":\"the server is stopping\""));
    assert_null(strstr(failed + 1, "event: "));
    assert_null(strstr(r.body.data, "[DONE]"));
    http_reply_free(&r);
    close(fd);
    wait_stopped(&rig);
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_of_the_log_does_not_stop_requests),
        cmocka_unit_test(the_log_has_a_line_per_request),
        cmocka_unit_test(the_log_has_the_tokens_of_unfinished_requests),
        cmocka_unit_test(the_log_is_opened_again),
        cmocka_unit_test(a_stop_lets_requests_finish),
        cmocka_unit_test(a_stopping_server_answers_503),
        cmocka_unit_test(a_second_stop_ends_at_once),
        cmocka_unit_test(requests_get_an_error_at_the_deadline),
        cmocka_unit_test(a_response_fails_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
