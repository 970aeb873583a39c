/* test_serve_limits.c - clients that are slow, misbehave, are many or have no key; and a full
 * queue. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"
#include "tests/lib/result_body.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/serve_rig.h"

static void expect_refused(serve_rig *rig, uint64_t busy, uint64_t invalid)
{
    cn_serve_figures f;
    serve_rig_figures(rig, &f);
    assert_int_equal(f.rejected_busy, busy);
    assert_int_equal(f.rejected_invalid, invalid);
    assert_int_equal(f.finished[CN_FINISH_ERROR], 0);
}

/* Reads until the peer closes. Returns the seconds that took. */
static double drain_socket(int fd, cn_buf *out)
{
    char piece[4096];
    const double began = cn_now_s();
    for (ssize_t got; (got = recv(fd, piece, sizeof piece, 0)) > 0;)
        assert_int_equal(cn_buf_add(out, piece, (size_t)got), CN_OK);
    return cn_now_s() - began;
}

/* ---- keys ---- */

static void keys_give_access_to_their_routes(void **state)
{
    (void)state;
    serve_rig rig;
    scratch_dir dir;
    char path[128];
    scratch_dir_open(&dir);
    static const char keys[] = "# people\nann:ann-secret-1\n\njust-a-key-2\n";
    scratch_dir_put(&dir, "keys", keys, strlen(keys));
    snprintf(path, sizeof path, "%s/keys", dir.path);
    assert_int_equal(chmod(path, 0600), 0);
    const char *const options[] = {"--api-key", "bob:bob-secret-3", "--api-key-file", path, NULL};
    serve_rig_open(&rig, options);
    static const struct {
        const char *key;
        int status;
    } cases[] = {
        {"ann-secret-1", 200}, {"just-a-key-2", 200}, {"bob-secret-3", 200}, {NULL, 401},
        {"", 401},             {"ann-secret-", 401},  {"ann-secret-12", 401}, {"ann", 401},
        {"ann:ann-secret-1", 401},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(serve_get_status(rig.port, "/v1/models", cases[i].key), cases[i].status);
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    assert_int_equal(serve_get_status(rig.port, "/no/such/path", NULL), 401);
    assert_int_equal(serve_get_status(rig.port, "/no/such/path", "ann-secret-1"), 404);
    /* Browsers send the user's key as a password. It is accepted only for reading. */
    http_reply r;
    int fd = http_connect(rig.port);
    assert_true(http_send_text(fd,
                               "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic "
                               "eDphbm4tc2VjcmV0LTE=\r\n\r\n"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    assert_true(http_send_text(fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                   "application/json\r\nAuthorization: Basic "
                                   "eDphbm4tc2VjcmV0LTE=\r\nContent-Length: 2\r\n\r\n{}"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 401);
    http_reply_free(&r);
    close(fd);
    serve_rig_close(&rig);
    scratch_dir_close(&dir);
}

/* A body is not read before the key is checked. */
static void a_body_without_a_key_is_not_read(void **state)
{
    (void)state;
    static const char *const options[] = {"--api-key", "ann:ann-secret-1", NULL};
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    int fd = http_connect(rig.port);
    assert_true(http_send_text(
        fd, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Content-Length: 1000000\r\n\r\n"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 401);
    assert_string_equal(http_field(&r, "Connection"), "close");
    http_reply_free(&r);
    close(fd);
    serve_rig_close(&rig);
}

static void bad_keys_are_refused_at_start(void **state)
{
    (void)state;
    cn_api_keys *k;
    assert_int_equal(cn_api_keys_load(&k, "short", NULL), CN_ERR_ARG);
    assert_int_equal(cn_api_keys_load(&k, "a:long-enough,a:long-enough-2", NULL), CN_ERR_ARG);
    assert_int_equal(cn_api_keys_load(&k, "with a blank", NULL), CN_ERR_ARG);
    assert_int_equal(cn_api_keys_load(&k, ":no-name-here", NULL), CN_ERR_ARG);
    assert_int_equal(cn_api_keys_load(&k, NULL, "/no/such/file"), CN_ERR_IO);
    assert_int_equal(cn_api_keys_load(&k, NULL, NULL), CN_OK);
    assert_int_equal(cn_api_keys_count(k), 0);
    assert_int_equal(cn_api_keys_find(k, "Bearer ", true), CN_API_KEY_NONE);
    cn_api_keys_free(k);
    assert_int_equal(cn_api_keys_load(&k, "first-key-0,b:second-key", NULL), CN_OK);
    assert_int_equal(cn_api_keys_find(k, "bearer second-key", false), 1);
    assert_int_equal(cn_api_keys_find(k, "Basic !!!", true), CN_API_KEY_NONE);
    assert_int_equal(cn_api_keys_find(k, NULL, true), CN_API_KEY_NONE);
    cn_api_keys_free(k);
    scratch_dir dir;
    char path[128];
    scratch_dir_open(&dir);
    scratch_dir_put(&dir, "keys", "long-enough\n", 12);
    snprintf(path, sizeof path, "%s/keys", dir.path);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(cn_api_keys_load(&k, NULL, path), CN_ERR_ARG);
    scratch_dir_close(&dir);
}

static void a_key_has_a_limit_of_requests(void **state)
{
    (void)state;
    static const char *const options[] = {"--api-key", "ann:ann-secret-1,bob:bob-secret-2",
                                          "--max-requests-per-key", "2", NULL};
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    int first = serve_begin(rig.port, "ann-secret-1", 4000, true);
    int second = serve_begin(rig.port, "ann-secret-1", 4000, true);
    assert_true(serve_rig_wait_running(&rig, 2));
    http_ask(rig.port, "POST", "/v1/completions", "ann-secret-1", serve_long_body(1, false), &r);
    assert_int_equal(r.status, 429);
    assert_non_null(http_field(&r, "Retry-After"));
    http_reply_free(&r);
    http_ask(rig.port, "POST", "/v1/completions", "bob-secret-2", serve_long_body(1, false), &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    close(first);
    close(second);
    assert_true(serve_rig_wait_running(&rig, 0));
    http_ask(rig.port, "POST", "/v1/completions", "ann-secret-1", serve_long_body(1, false), &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    expect_refused(&rig, 1, 0);
    serve_rig_close(&rig);
}

/* ---- clients that disconnect ---- */

static void a_disconnect_frees_the_memory(void **state)
{
    (void)state;
    serve_rig rig;
    cn_stats before, after;
    serve_rig_open(&rig, NULL);
    cn_service *s = cn_server_service(rig.server);
    for (int stream = 0; stream < 2; stream++) {
        int fd = serve_begin(rig.port, NULL, 7000, stream);
        assert_true(serve_rig_wait_running(&rig, 1));
        cn_service_engine_stats(s, &before);
        assert_true(before.blocks_used > 0);
        close(fd);
        assert_true(serve_rig_wait_running(&rig, 0));
        cn_service_engine_stats(s, &after);
        assert_true(after.generation_tokens < 6000);
    }
    cn_serve_figures f;
    serve_rig_figures(&rig, &f);
    assert_int_equal(f.disconnects, 2);
    assert_int_equal(f.finished[CN_FINISH_CANCELLED], 2);
    serve_rig_close(&rig);
}

/* Counts the steps between a cancel and the end of the request: at most two. */
typedef struct step_count {
    cn_service *service;
    bool over;
} step_count;

static void on_update(void *user, cn_call *call)
{
    ((step_count *)user)->over = cn_call_is_over(call);
}

static void a_cancel_frees_within_two_steps(void **state)
{
    (void)state;
    serve_rig rig;
    cn_mailbox *box;
    cn_stats at_cancel, at_end;
    serve_rig_open(&rig, NULL);
    cn_service *s = cn_server_service(rig.server);
    assert_int_equal(cn_mailbox_create(&box, 16), CN_OK);
    for (int round = 0; round < 5; round++) {
        step_count count = {.service = s};
        cn_call_opts o = {.klass = CN_CLASS_BATCH, .reply_to = box, .update = on_update,
                          .user = &count, .endpoint = CN_API_COMPLETION};
        assert_int_equal(cn_buf_addf(&o.body, "%s", serve_long_body(7000, false)), CN_OK);
        cn_call *call;
        assert_int_equal(cn_call_start(&call, s, &o), CN_OK);
        assert_true(serve_rig_wait_running(&rig, 1));
        cn_call_cancel(call);
        cn_service_engine_stats(s, &at_cancel);
        while (!count.over) {
            cn_mailbox_wait(box, 10000);
            cn_mailbox_open_all(box);
        }
        assert_int_equal(cn_call_status(call), CN_ERR_CANCELLED);
        assert_true(serve_rig_wait_running(&rig, 0));
        cn_service_engine_stats(s, &at_end);
        assert_true(at_end.steps - at_cancel.steps <= 2);
        cn_call_release(call);
    }
    while (cn_mailbox_open_all(box) > 0) continue;
    cn_mailbox_free(box);
    serve_rig_close(&rig);
}

/* ---- clients that are slow ---- */

static void slow_senders_are_dropped(void **state)
{
    (void)state;
    static const char *const options[] = {"--request-timeout", "1", "--idle-timeout", "1", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    static const char *const beginnings[] = {
        "",
        "GET /hea",
        "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        "application/json\r\nContent-Length: 100\r\n\r\n{\"pro",
    };
    for (size_t i = 0; i < 4; i++) {
        cn_buf out = {0};
        int fd = http_connect(rig.port);
        const struct timespec pause = {.tv_nsec = 100000000};
        double began = cn_now_s();
        bool open = http_send_text(fd, beginnings[i]);
        /* A byte from time to time does not extend the deadline. */
        while (open && cn_now_s() - began < 30 && *beginnings[i]) {
            char byte;
            nanosleep(&pause, NULL);
            open = http_send(fd, "x", 1) && recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 0 &&
                   recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 1;
        }
        drain_socket(fd, &out);
        assert_true(cn_now_s() - began < 20); /* the timeout is a second */
        if (i == 3) assert_non_null(strstr(out.data, "HTTP/1.1 408 "));
        cn_buf_free(&out);
        close(fd);
    }
    /* A connection that is idle after a request is closed too. */
    http_reply r;
    cn_buf out = {0};
    int fd = http_connect(rig.port);
    assert_true(http_send_text(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    assert_true(drain_socket(fd, &out) < 20);
    assert_int_equal(out.len, 0);
    close(fd);
    serve_rig_close(&rig);
}

/* Returns a body with four samples and all their logprobs: far more than the server buffers for a
 * slow reader. */
static char *wordy_body(bool stream)
{
    static char body[512];
    snprintf(body, sizeof body,
             "{\"prompt\": \"Compute 12 * 34\", \"max_tokens\": 300, \"ignore_eos\": true, "
             "\"temperature\": 3, \"seed\": 1, \"n\": 4, \"logprobs\": 20, \"stream\": %s}",
             stream ? "true" : "false");
    return body;
}

/* One client reads nothing of a long stream. Others are answered meanwhile. The slow client gets
 * everything when it reads at last. */
static void a_slow_reader_does_not_delay_others(void **state)
{
    (void)state;
    serve_rig rig;
    http_reply whole, late, r;
    serve_rig_open(&rig, NULL);
    int fd = http_connect_narrow(rig.port);
    serve_send(fd, NULL, wordy_body(true));
    for (int i = 0; i < 5; i++) {
        http_ask(rig.port, "POST", "/v1/completions", NULL, serve_long_body(20, false), &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
    }
    assert_true(serve_rig_wait_running(&rig, 0)); /* the engine did not wait for the reader */
    const int wide = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wide, sizeof wide);
    http_read(fd, false, &late);
    assert_true(late.body.len > 2 * CN_HTTP_SEND_HIGH);
    http_ask(rig.port, "POST", "/v1/completions", NULL, wordy_body(false), &whole);
    assert_int_equal(whole.status, 200);
    json_t *json = json_loads(whole.body.data, 0, NULL);
    for (int i = 0; i < 4; i++) {
        json_t *choice = json_array_get(json_object_get(json, "choices"), (size_t)i);
        http_stream s;
        http_stream_read(late.body.data, i, &s);
        assert_true(s.done && !late.truncated);
        assert_string_equal(s.text.data, json_string_value(json_object_get(choice, "text")));
        http_stream_free(&s);
    }
    json_decref(json);
    http_reply_free(&late);
    http_reply_free(&whole);
    close(fd);
    serve_rig_close(&rig);
}

/* ---- many clients ---- */

static void silent_connections_are_closed_for_new_clients(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-connections", "8", NULL};
    serve_rig rig;
    int crowd[40];
    serve_rig_open(&rig, options);
    int busy = serve_begin(rig.port, NULL, 400, true);
    assert_true(serve_rig_wait_running(&rig, 1));
    for (int i = 0; i < 40; i++) {
        crowd[i] = http_connect(rig.port);
        http_send_text(crowd[i], i % 2 ? "GET /" : "");
    }
    for (int i = 0; i < 10; i++) assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    http_reply r;
    http_read(busy, false, &r); /* its request is running: it was not closed */
    assert_false(r.truncated);
    assert_non_null(strstr(r.body.data, "[DONE]"));
    http_reply_free(&r);
    for (int i = 0; i < 40; i++) close(crowd[i]);
    close(busy);
    serve_rig_close(&rig);
}

/* Connections that send nothing or a byte from time to time, more than --max-connections. Each is
 * opened again as soon as the server closes it. */
typedef struct flood {
    uint16_t port;
    atomic_bool over;
    pthread_t thread;
} flood;

static void *flood_main(void *arg)
{
    enum { N = 48 };
    flood *f = arg;
    struct pollfd fds[N];
    for (int i = 0; i < N; i++) fds[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    while (!atomic_load(&f->over)) {
        for (int i = 0; i < N; i++) {
            if (fds[i].fd < 0) fds[i].fd = http_connect(f->port);
            if (i % 2) send(fds[i].fd, "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        if (poll(fds, N, 20) <= 0) continue;
        for (int i = 0; i < N; i++) {
            if (!fds[i].revents) continue;
            close(fds[i].fd);
            fds[i].fd = -1;
        }
    }
    for (int i = 0; i < N; i++) close(fds[i].fd);
    return NULL;
}

static void expect_status(int fd, int status)
{
    http_reply r;
    http_read(fd, false, &r);
    assert_int_equal(r.status, status);
    http_reply_free(&r);
}

static const char health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/* The tokens of an answer that takes as long as the flood, some seconds. */
enum { FLOOD_TOKENS = BY_SANITIZER(4000, 800, 300) };

/* One client pauses before and inside a request. One keeps its connection between two requests. One
 * sends a long body at 200 KB/s. None of them is closed or refused. */
static void a_flood_does_not_close_active_connections(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-connections", "32", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    flood f = {.port = rig.port};
    int busy = serve_begin(rig.port, NULL, FLOOD_TOKENS, true);
    int kept = http_connect(rig.port);
    assert_true(http_send_text(kept, health));
    expect_status(kept, 200);
    assert_int_equal(pthread_create(&f.thread, NULL, flood_main, &f), 0);
    for (int round = 0; round < 3; round++) {
        int fd = http_connect(rig.port);
        serve_pause_ms(200);
        assert_true(http_send(fd, health, 10));
        serve_pause_ms(100);
        assert_true(http_send_text(fd, health + 10));
        expect_status(fd, 200);
        close(fd);
        assert_true(http_send_text(kept, health));
        expect_status(kept, 200);
    }
    char piece[20000];
    memset(piece, 'x', sizeof piece);
    int upload = http_connect(rig.port);
    assert_true(http_send_text(
        upload, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 300000\r\n\r\n"));
    for (int i = 0; i < 15; i++) {
        assert_true(http_send(upload, piece, sizeof piece));
        serve_pause_ms(100);
    }
    expect_status(upload, 400); /* complete, but not JSON */
    atomic_store(&f.over, true);
    pthread_join(f.thread, NULL);
    http_reply r;
    http_read(busy, false, &r);
    assert_non_null(strstr(r.body.data, "[DONE]"));
    http_reply_free(&r);
    cn_serve_figures figures;
    serve_rig_figures(&rig, &figures);
    assert_int_equal(figures.connections_refused, 0);
    assert_true(figures.connections_accepted > 100); /* there was a flood */
    close(upload);
    close(kept);
    close(busy);
    serve_rig_close(&rig);
}

/* An idle connection is closed before a fast upload, although only the idle one has had a
 * request. */
static void an_idle_connection_is_closed_before_a_fast_upload(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-connections", "2", NULL};
    static char body[300000];
    serve_rig rig;
    cn_buf rest = {0};
    serve_rig_open(&rig, options);
    int idle = http_connect(rig.port);
    assert_true(http_send_text(idle, health));
    expect_status(idle, 200);
    serve_pause_ms(700);
    int upload = http_connect(rig.port);
    memset(body, 'x', sizeof body);
    assert_true(http_send_text(
        upload, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                "Content-Length: 300001\r\n\r\n"));
    assert_true(http_send(upload, body, sizeof body));
    serve_pause_ms(200);
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    assert_true(drain_socket(idle, &rest) < 1 && rest.len == 0);
    assert_true(http_send(upload, "x", 1));
    expect_status(upload, 400); /* complete, but not JSON */
    close(idle);
    close(upload);
    serve_rig_close(&rig);
}

/* Every connection has a request in flight: the next client gets 503 at once. */
static void full_connections_answer_503(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-connections", "2", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    int busy[2];
    for (int i = 0; i < 2; i++) busy[i] = serve_begin(rig.port, NULL, 7000, false);
    assert_true(serve_rig_wait_running(&rig, 2));
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 503);
    for (int i = 0; i < 2; i++) close(busy[i]);
    assert_true(serve_rig_wait_running(&rig, 0));
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    serve_rig_close(&rig);
}

/* The form allows no token that the request allows after "x" (token 87): its own fault. */
static void a_request_without_a_next_token_is_invalid(void **state)
{
    (void)state;
    serve_rig rig;
    serve_rig_open(&rig, (const char *[]){NULL});
    static const char *const body = "{\"prompt\": \"a\", \"allowed_token_ids\": [87], "
                                    "\"structured_outputs\": {\"regex\": \"x{2}y\"}}";
    json_t *error = http_ask_json(rig.port, "POST", "/v1/completions", body, 400);
    const json_t *text = json_object_get(json_object_get(error, "error"), "message");
    assert_non_null(strstr(json_string_value(text), "no token of the vocabulary"));
    json_decref(error);
    expect_refused(&rig, 0, 1);
    serve_rig_close(&rig);
}

static void a_full_queue_answers_429(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-num-seqs", "1", "--max-queue", "2", NULL};
    serve_rig rig;
    http_reply r;
    int waiting[3];
    serve_rig_open(&rig, options);
    static const char *const too_many = "{\"prompt\": [\"a\", \"b\", \"c\"], \"max_tokens\": 1}";
    json_t *error = http_ask_json(rig.port, "POST", "/v1/completions", too_many, 400);
    json_decref(error); /* it would never find room: 429 would make clients try for ever */
    waiting[0] = serve_begin(rig.port, NULL, 6000, true);
    assert_true(serve_rig_wait_running(&rig, 1));
    for (int i = 1; i < 3; i++) waiting[i] = serve_begin(rig.port, NULL, 10, false);
    cn_stats s = {0};
    const double began = cn_now_s();
    while (s.waiting < 2 && cn_now_s() - began < 120)
        cn_service_engine_stats(cn_server_service(rig.server), &s);
    cn_serve_figures f;
    serve_rig_figures(&rig, &f);
    assert_int_equal(f.active_class[CN_CLASS_INTERACTIVE], 3);
    http_ask(rig.port, "POST", "/v1/completions", NULL, serve_long_body(10, false), &r);
    assert_int_equal(r.status, 429);
    assert_in_range(strtoul(http_field(&r, "Retry-After"), NULL, 10), 1, 60);
    assert_non_null(strstr(r.body.data, "queue_full"));
    http_reply_free(&r);
    close(waiting[0]);
    for (int i = 1; i < 3; i++) {
        http_read(waiting[i], false, &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
        close(waiting[i]);
    }
    expect_refused(&rig, 1, 1);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_figures(&rig, &f);
    assert_int_equal(f.active_class[CN_CLASS_INTERACTIVE], 0);
    assert_true(f.mean_s_class[CN_CLASS_INTERACTIVE] > 0);
    serve_rig_close(&rig);
}

static const char *first_text(const json_t *body)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(body, "choices"), 0), "text"));
}

/* A batch request holds the only seat. A chat preempts it at once, and the batch answer is still
 * the same as alone. */
static void an_interactive_request_comes_before_batch(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-num-seqs", "1", NULL};
    serve_rig rig;
    http_reply r;
    cn_mailbox *box;
    cn_call *call;
    serve_rig_open(&rig, options);
    cn_service *s = cn_server_service(rig.server);
    step_count count = {.service = s};
    assert_int_equal(cn_mailbox_create(&box, 16), CN_OK);
    cn_call_opts o = {.klass = CN_CLASS_BATCH, .reply_to = box, .update = on_update, .user = &count,
                      .endpoint = CN_API_COMPLETION};
    assert_int_equal(cn_buf_addf(&o.body, "%s", serve_long_body(300, false)), CN_OK);
    assert_int_equal(cn_call_start(&call, s, &o), CN_OK);
    assert_true(serve_rig_wait_running(&rig, 1));
    http_ask(rig.port, "POST", "/v1/completions", NULL, serve_long_body(5, false), &r);
    assert_int_equal(r.status, 200);
    assert_int_equal(cn_mailbox_length(box), 0); /* the batch request has not ended */
    http_reply_free(&r);
    while (!count.over) {
        cn_mailbox_wait(box, 10000);
        cn_mailbox_open_all(box);
    }
    assert_int_equal(cn_call_status(call), CN_OK);
    json_t *alone =
        http_ask_json(rig.port, "POST", "/v1/completions", serve_long_body(300, false), 200);
    json_t *beside = result_body(cn_call_lock(call), "1", "m", 0);
    cn_call_unlock(call);
    assert_string_equal(first_text(beside), first_text(alone));
    json_decref(beside);
    cn_call_release(call);
    json_decref(alone);
    cn_mailbox_free(box);
    serve_rig_close(&rig);
}

static void buffered_bodies_have_a_limit(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-buffered-bytes", "20000", NULL};
    static char body[15001];
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, options);
    memset(body, 'x', sizeof body - 1);
    const char head[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                        "application/json\r\nContent-Length: 16000\r\n\r\n";
    int first = http_connect(rig.port), second = http_connect(rig.port);
    assert_true(http_send_text(first, head) && http_send_text(first, body));
    const struct timespec pause = {.tv_nsec = 200000000};
    nanosleep(&pause, NULL);
    assert_true(http_send_text(second, head) && http_send_text(second, body));
    http_read(second, false, &r);
    assert_int_equal(r.status, 503);
    http_reply_free(&r);
    close(second);
    assert_true(http_send(first, body, 1000));
    http_read(first, false, &r);
    assert_int_equal(r.status, 400); /* complete, but not JSON */
    http_reply_free(&r);
    close(first);
    expect_refused(&rig, 1, 0);
    serve_rig_close(&rig);
}

/* The batch thread submits a refused line again. No client was refused. */
static void a_refused_line_is_no_refused_client(void **state)
{
    (void)state;
    static const char *const options[] = {"--max-num-seqs", "1", "--max-queue", "1", NULL};
    serve_rig rig;
    cn_mailbox *box;
    cn_call *calls[3];
    serve_rig_open(&rig, options);
    cn_service *s = cn_server_service(rig.server);
    step_count counts[3] = {0};
    assert_int_equal(cn_mailbox_create(&box, 16), CN_OK);
    for (int i = 0; i < 3; i++) {
        cn_call_opts o = {.klass = CN_CLASS_BATCH, .reply_to = box, .update = on_update,
                          .user = &counts[i], .endpoint = CN_API_COMPLETION};
        assert_int_equal(cn_buf_addf(&o.body, "%s", serve_long_body(7000, false)), CN_OK);
        assert_int_equal(cn_call_start(&calls[i], s, &o), CN_OK);
        if (i == 0) assert_true(serve_rig_wait_running(&rig, 1));
    }
    while (!counts[2].over) {
        cn_mailbox_wait(box, 10000);
        cn_mailbox_open_all(box);
    }
    assert_int_equal(cn_call_status(calls[2]), CN_ERR_BUSY);
    expect_refused(&rig, 0, 0);
    for (int i = 0; i < 3; i++) cn_call_release(calls[i]);
    assert_true(serve_rig_wait_running(&rig, 0));
    while (cn_mailbox_open_all(box) > 0) continue;
    serve_rig_stop(&rig);
    cn_mailbox_free(box);
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_give_access_to_their_routes),
        cmocka_unit_test(a_body_without_a_key_is_not_read),
        cmocka_unit_test(bad_keys_are_refused_at_start),
        cmocka_unit_test(a_key_has_a_limit_of_requests),
        cmocka_unit_test(a_disconnect_frees_the_memory),
        cmocka_unit_test(a_cancel_frees_within_two_steps),
        cmocka_unit_test(slow_senders_are_dropped),
        cmocka_unit_test(a_slow_reader_does_not_delay_others),
        cmocka_unit_test(silent_connections_are_closed_for_new_clients),
        cmocka_unit_test(a_flood_does_not_close_active_connections),
        cmocka_unit_test(an_idle_connection_is_closed_before_a_fast_upload),
        cmocka_unit_test(full_connections_answer_503),
        cmocka_unit_test(a_request_without_a_next_token_is_invalid),
        cmocka_unit_test(a_full_queue_answers_429),
        cmocka_unit_test(a_refused_line_is_no_refused_client),
        cmocka_unit_test(an_interactive_request_comes_before_batch),
        cmocka_unit_test(buffered_bodies_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
