/* test_serve_attacks.c - clients without a key that try to hold every connection. A normal client
 * is answered beside each of them. */
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

#include "tests/lib/http_client.h"
#include "tests/lib/serve_rig.h"

enum { N_CONNECTIONS = 200, N_ATTACKERS = 260, N_ASKED = 8, PIECE_BYTES = 64 << 10 };
static const double MOST_S = 2;

typedef struct attack {
    const char *name;
    const char *first;  /* sent once on each connection */
    const char *repeat; /* sent for as long as the connection takes it, or NULL */
} attack;

static const attack attacks[] = {
    {"empty lines", "\r\n", "\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n"},
    {"long heads", "GET / HTTP/1.1\r\n", NULL},
    {"requests whose replies are not read", "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
     "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {"short requests whose replies are not read", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
     "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"},
    {"connections that are not closed",
     "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", NULL},
};

typedef struct attacker {
    const attack *attack;
    uint16_t port;
    atomic_bool over;
    pthread_t thread;
    char piece[PIECE_BYTES];
    size_t n_piece;
} attacker;

/* Keeps N_ATTACKERS connections open and never reads. Opens each again that the server resets. */
static void *attacker_main(void *arg)
{
    attacker *a = arg;
    static struct pollfd fds[N_ATTACKERS];
    for (int i = 0; i < N_ATTACKERS; i++) fds[i].fd = -1;
    while (!atomic_load(&a->over)) {
        for (int i = 0; i < N_ATTACKERS; i++) {
            fds[i].events = a->n_piece ? POLLOUT : 0;
            if (fds[i].fd >= 0) continue;
            fds[i].fd = http_connect_narrow(a->port);
            send(fds[i].fd, a->attack->first, strlen(a->attack->first),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        poll(fds, N_ATTACKERS, 10);
        for (int i = 0; i < N_ATTACKERS; i++) {
            if (fds[i].revents & (POLLERR | POLLHUP | POLLNVAL)) {
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
    static const char *const options[] = {"--max-connections", "200", NULL};
    static attacker a;
    for (size_t k = 0; k < sizeof attacks / sizeof *attacks; k++) {
        serve_rig rig;
        serve_rig_open(&rig, options);
        begin(&a, &attacks[k], rig.port);
        cn_serve_figures f = {0};
        const struct timespec pause = {.tv_nsec = 300000000};
        for (int i = 0; i < 20 && f.connections_open < N_CONNECTIONS; i++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_lines_have_a_limit),
        cmocka_unit_test(a_normal_client_is_answered_beside_each_attack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
