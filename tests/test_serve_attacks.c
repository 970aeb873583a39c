/* test_serve_attacks.c - clients that try to hold every connection. A normal client is answered
 * beside each of them. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/api/http_status.h"
#include "tests/lib/http_client.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/scratch_dir.h"
#include "tests/lib/serve_rig.h"

enum { N_CONNECTIONS = 200, N_ATTACKERS = 260, PIECE_BYTES = 64 << 10 };
enum { N_ASKED = BY_SANITIZER(8, 4, 4) };
static const double MOST_S = 2;

typedef struct attack {
    const char *name;
    const char *first;  /* sent once on each connection */
    const char *repeat; /* sent for as long as the connection takes it, or NULL */
    const char *again;  /* sent after each piece of a reply that has been read, or NULL */
    bool reads;         /* what arrives */
} attack;

#define HEALTH "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define OPENAPI "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
#define LONG_BODY "{\"prompt\": \"a\", \"max_tokens\": 7000, \"ignore_eos\": true}"
#define LONG_REQUEST                                                                              \
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
    "Content-Length: 55\r\n\r\n" LONG_BODY
_Static_assert(sizeof LONG_BODY == 55 + 1, "the Content-Length of LONG_REQUEST");

static const attack attacks[] = {
    {.name = "empty lines", .first = "\r\n", .repeat = "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"},
    {.name = "long heads", .first = "GET / HTTP/1.1\r\n"},
    {.name = "requests whose replies are not read", .first = OPENAPI, .repeat = OPENAPI},
    {.name = "short requests whose replies are not read", .first = HEALTH, .repeat = HEALTH},
    {.name = "connections that are not closed",
     .first = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"},
    {.name = "short requests without a pause", .first = HEALTH, .again = HEALTH, .reads = true},
    {.name = "running requests", .first = LONG_REQUEST, .reads = true},
};

typedef struct attacker {
    const attack *attack;
    uint16_t port;
    atomic_bool over;
    pthread_t thread;
    char piece[PIECE_BYTES];
    size_t n_piece;
} attacker;

/* Reads what has arrived and sends the next request. Returns false at the end. */
static bool read_some(const attacker *a, int fd)
{
    char scratch[4096];
    if (recv(fd, scratch, sizeof scratch, MSG_DONTWAIT) <= 0) return false;
    if (a->attack->again)
        send(fd, a->attack->again, strlen(a->attack->again), MSG_NOSIGNAL | MSG_DONTWAIT);
    return true;
}

/* Keeps N_ATTACKERS connections open. Opens each again that the server closes. */
static void *attacker_main(void *arg)
{
    attacker *a = arg;
    static struct pollfd fds[N_ATTACKERS];
    for (int i = 0; i < N_ATTACKERS; i++) fds[i].fd = -1;
    while (!atomic_load(&a->over)) {
        for (int i = 0; i < N_ATTACKERS; i++) {
            fds[i].events = a->n_piece ? POLLOUT : a->attack->reads ? POLLIN : 0;
            if (fds[i].fd >= 0) continue;
            fds[i].fd = http_connect_narrow(a->port);
            send(fds[i].fd, a->attack->first, strlen(a->attack->first),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        poll(fds, N_ATTACKERS, 10);
        for (int i = 0; i < N_ATTACKERS; i++) {
            const bool closed = fds[i].revents & (POLLERR | POLLHUP | POLLNVAL);
            if (closed || (fds[i].revents & POLLIN && !read_some(a, fds[i].fd))) {
                close(fds[i].fd);
                fds[i].fd = -1;
            } else if (fds[i].revents & POLLOUT) {
                send(fds[i].fd, a->piece, a->n_piece, MSG_NOSIGNAL | MSG_DONTWAIT);
            }
        }
        const struct timespec pause = {.tv_nsec = 5000000};
        nanosleep(&pause, NULL);
    }
    for (int i = 0; i < N_ATTACKERS; i++)
        if (fds[i].fd >= 0) close(fds[i].fd);
    return NULL;
}

static void begin(attacker *a, const attack *what, uint16_t port)
{
    *a = (attacker){.attack = what, .port = port};
    const size_t n = what->repeat ? strlen(what->repeat) : 0;
    while (n > 0 && a->n_piece + n <= sizeof a->piece) {
        memcpy(a->piece + a->n_piece, what->repeat, n);
        a->n_piece += n;
    }
    assert_int_equal(pthread_create(&a->thread, NULL, attacker_main, a), 0);
}

static void a_normal_client_is_answered_beside_each_attack(void **state)
{
    (void)state;
    /* An engine with few seats and one thread leaves processor time to the attacker. */
    static const char *const options[] = {"--max-connections", "200", "--threads", "1",
                                          "--max-num-seqs", "8", NULL};
    static attacker a;
    for (size_t k = 0; k < sizeof attacks / sizeof *attacks; k++) {
        serve_rig rig;
        serve_rig_open(&rig, options);
        begin(&a, &attacks[k], rig.port);
        cn_serve_figures f = {0};
        const struct timespec pause = {.tv_nsec = 100000000};
        for (int i = 0; i < 60 && f.connections_open < N_CONNECTIONS; i++) {
            nanosleep(&pause, NULL);
            serve_rig_figures(&rig, &f);
        }
        for (int i = 0; i < N_ASKED; i++) {
            http_reply r;
            const double began = cn_now_s();
            http_ask(rig.port, "GET", "/health", NULL, NULL, &r);
            if (r.status != 200 || cn_now_s() - began > MOST_S)
                fail_msg("%s: status %d after %.1f s", attacks[k].name, r.status,
                         cn_now_s() - began);
            http_reply_free(&r);
            nanosleep(&pause, NULL);
        }
        atomic_store(&a.over, true);
        pthread_join(a.thread, NULL);
        serve_rig_close(&rig);
    }
}

/* ---- requests that take long ---- */

enum { N_SMALL = 16, N_LONG = N_SMALL - N_SMALL / 8 };
static const char *const small[] = {"--max-connections", "16", "--max-num-seqs", "32", NULL};

static int ask(uint16_t port, const char *method, const char *path, const char *body, cn_buf *text)
{
    http_reply r;
    http_ask(port, method, path, NULL, body, &r);
    const int status = r.status;
    const char *retry = http_field(&r, "Retry-After");
    if (status == CN_HTTP_TOO_MANY_REQUESTS) assert_in_range(retry ? atoi(retry) : 0, 1, 60);
    if (text) assert_int_equal(cn_buf_addf(text, "%s", r.body.data ? r.body.data : ""), CN_OK);
    http_reply_free(&r);
    return status;
}

#define SHORT_BODY "{\"prompt\": \"a\", \"max_tokens\": 1}"

static void running_requests_leave_connections_to_others(void **state)
{
    (void)state;
    serve_rig rig;
    int fds[N_LONG];
    cn_buf text = {0};
    serve_rig_open(&rig, small);
    for (int i = 0; i < N_LONG; i++) {
        fds[i] = http_connect(rig.port);
        assert_true(http_send_text(fds[i], LONG_REQUEST));
    }
    assert_true(serve_rig_wait_running(&rig, N_LONG));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ask(rig.port, "GET", "/health", NULL, NULL), 200);
        assert_int_equal(ask(rig.port, "POST", "/tokenize", SHORT_BODY, NULL), 429);
    }
    assert_int_equal(ask(rig.port, "POST", "/v1/completions", SHORT_BODY, &text), 429);
    assert_non_null(strstr(text.data, "14 requests are in flight"));
    assert_non_null(strstr(text.data, "--max-connections"));
    close(fds[0]);
    assert_true(serve_rig_wait_running(&rig, N_LONG - 1));
    assert_int_equal(ask(rig.port, "POST", "/v1/completions", SHORT_BODY, NULL), 200);
    for (int i = 1; i < N_LONG; i++) close(fds[i]);
    cn_buf_free(&text);
    serve_rig_close(&rig);
}

/* Uploads a file of n bytes and writes a request for its content. */
static void upload(uint16_t port, size_t n, char request[200])
{
    static const char edge[] = "--edge\r\nContent-Disposition: form-data; name=";
    cn_buf form = {0}, head = {0};
    http_reply r;
    assert_int_equal(cn_buf_addf(&form, "%s\"purpose\"\r\n\r\nbatch\r\n%s\"file\"; "
                                 "filename=\"a\"\r\n\r\n%*s\r\n--edge--\r\n",
                                 edge, edge, (int)n, ""), CN_OK);
    assert_int_equal(cn_buf_addf(&head, "POST /v1/files HTTP/1.1\r\nHost: localhost\r\n"
                                 "Content-Type: multipart/form-data; boundary=edge\r\n"
                                 "Content-Length: %zu\r\n\r\n", form.len), CN_OK);
    int fd = http_connect(port);
    assert_true(http_send(fd, head.data, head.len) && http_send(fd, form.data, form.len));
    http_read(fd, false, &r);
    close(fd);
    if (r.status != 200) fail_msg("upload: %d %s", r.status, r.body.data);
    json_t *file = json_loadb(r.body.data, r.body.len, 0, NULL);
    snprintf(request, 200, "GET /v1/files/%s/content HTTP/1.1\r\nHost: localhost\r\n\r\n",
             json_string_value(json_object_get(file, "id")));
    json_decref(file);
    http_reply_free(&r);
    cn_buf_free(&form);
    cn_buf_free(&head);
}

/* Clients that download a file and do not read it use all that long replies may have. */
static void unread_replies_make_room_for_requests(void **state)
{
    (void)state;
    const struct timespec grace = {.tv_nsec = 700000000};
    serve_rig rig;
    scratch_dir dir;
    char spool[128], request[200];
    int fds[N_LONG];
    scratch_dir_open(&dir);
    snprintf(spool, sizeof spool, "%s/spool", dir.path);
    const char *const options[] = {"--spool", spool, small[0], small[1], NULL};
    serve_rig_open(&rig, options);
    upload(rig.port, 16 << 20, request);
    for (int i = 0; i < N_LONG; i++) {
        fds[i] = http_connect_narrow(rig.port);
        assert_true(http_send_text(fds[i], request));
    }
    nanosleep(&grace, NULL);
    assert_int_equal(ask(rig.port, "POST", "/v1/completions", SHORT_BODY, NULL), 200);
    for (int i = 0; i < N_LONG; i++) close(fds[i]);
    serve_rig_close(&rig);
    scratch_dir_close(&dir);
}

static void empty_lines_have_a_limit(void **state)
{
    (void)state;
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, NULL);
    int fd = http_connect(rig.port);
    assert_true(http_send_text(fd, "\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    for (int i = 0; i < 9; i++) assert_true(http_send_text(fd, "\r\n"));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "empty lines"));
    http_reply_free(&r);
    close(fd);
    serve_rig_close(&rig);
}

/* A client that speaks TLS waits for an answer, so it must not wait for the end of a head. */
static void tls_is_refused_at_once(void **state)
{
    (void)state;
    serve_rig rig;
    http_reply r;
    serve_rig_open(&rig, NULL);
    int fd = http_connect(rig.port);
    assert_true(http_send(fd, "\x16\x03\x01\x02", 4));
    http_read(fd, false, &r);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "http://"));
    http_reply_free(&r);
    close(fd);
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tls_is_refused_at_once),
        cmocka_unit_test(empty_lines_have_a_limit),
        cmocka_unit_test(running_requests_leave_connections_to_others),
        cmocka_unit_test(unread_replies_make_room_for_requests),
        cmocka_unit_test(a_normal_client_is_answered_beside_each_attack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
