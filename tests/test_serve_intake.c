/* test_serve_intake.c - large texts at the intake: a small request of another key is answered
 * beside them, their memory returns, and what cannot fit is refused unread. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/lib/http_client.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/serve_rig.h"

enum {
    N_LARGE = 4,
    LARGE_BYTES = BY_SANITIZER(31 << 20, 4 << 20, 2 << 20),
    SMALL_MS = BY_SANITIZER(2000, 20000, 20000), /* most, of a small request */
    KEPT_KIB = 24 << 10
};

static serve_rig rig;

static int open_rig(void **state)
{
    (void)state;
    static const char *const options[] = {"--api-key", "ann:ann-secret-1,bob:bob-secret-2",
                                          "--kv-cache-memory-bytes", "16M", "--max-model-len",
                                          "1024", NULL};
    serve_rig_open(&rig, options);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    serve_rig_close(&rig);
    return 0;
}

/* start, n bytes of one piece, end. */
static void put_body(cn_buf *body, const char *start, const char *piece, size_t n, const char *end)
{
    cn_buf_clear(body);
    assert_int_equal(cn_buf_addf(body, "%s", start), CN_OK);
    const size_t len = strlen(piece), first = body->len;
    while (body->len - first + len <= n) assert_int_equal(cn_buf_add(body, piece, len), CN_OK);
    assert_int_equal(cn_buf_addf(body, "%s", end), CN_OK);
}

static int begin(const char *path, const char *key, const cn_buf *body)
{
    cn_buf head = {0};
    const int fd = http_connect(rig.port);
    assert_int_equal(cn_buf_addf(&head,
                                 "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                 "application/json\r\nAuthorization: Bearer %s\r\n"
                                 "Content-Length: %zu\r\n\r\n",
                                 path, key, body->len),
                     CN_OK);
    assert_true(http_send(fd, head.data, head.len) && http_send(fd, body->data, body->len));
    cn_buf_free(&head);
    return fd;
}

static int finish(int fd)
{
    http_reply r;
    http_read(fd, false, &r);
    const int status = r.status;
    http_reply_free(&r);
    close(fd);
    return status;
}

/* Milliseconds until a request of bob is answered with 200. */
static int time_of_bob(const char *path, const cn_buf *body)
{
    const double began = cn_now_s();
    assert_int_equal(finish(begin(path, "bob-secret-2", body)), 200);
    return (int)((cn_now_s() - began) * 1000);
}

static bool is_answered(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Sends large texts of ann, and small and middle ones of bob until ann's are answered. Returns the
 * longest time of bob. */
static int beside(const char *path, const cn_buf *large)
{
    cn_buf small = {0}, middle = {0};
    int fds[N_LARGE], most = 0;
    put_body(&small, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"",
             "hi ", 3, "\"}]}");
    put_body(&middle, "{\"max_tokens\": 1, \"truncate_prompt_tokens\": 9, \"prompt\": \"", "hi ",
             200000, "\"}");
    for (int i = 0; i < N_LARGE; i++) fds[i] = begin(path, "ann-secret-1", large);
    do {
        const int a = time_of_bob("/v1/chat/completions", &small);
        const int b = time_of_bob("/v1/completions", &middle);
        if (a > most) most = a;
        if (b > most) most = b;
    } while (!is_answered(fds[N_LARGE - 1]));
    for (int i = 0; i < N_LARGE; i++) assert_int_equal(finish(fds[i]), 200);
    cn_buf_free(&small);
    cn_buf_free(&middle);
    return most;
}

/* Texts that make each stage of the way to tokens long. */
static void large_texts_do_not_delay_another_key(void **state)
{
    (void)state;
    static const char start[] = "{\"max_tokens\": 1, \"truncate_prompt_tokens\": 9, \"prompt\": \"";
    static const char chat[] = "{\"max_tokens\": 1, \"truncate_prompt_tokens\": -1, "
                               "\"messages\": [{\"role\": \"user\", \"content\": \"";
    static const struct {
        const char *name, *path, *start, *piece, *end;
    } cases[] = {
        {"one word", "/v1/completions", start, "a", "\"}"},
        {"added tokens that are none", "/v1/completions", start, "<", "\"}"},
        {"marks out of order", "/v1/completions", start, "\xCC\x81\xCC\xA7", "\"}"},
        {"one word in a chat", "/v1/chat/completions", chat, "a", "\"}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_buf large = {0};
        put_body(&large, cases[i].start, cases[i].piece, LARGE_BYTES, cases[i].end);
        const int ms = beside(cases[i].path, &large);
        print_message("%s: %d ms\n", cases[i].name, ms);
        if (ms > SMALL_MS) fail_msg("%s: a small request took %d ms", cases[i].name, ms);
        cn_buf_free(&large);
    }
}

static void the_memory_of_large_texts_returns(void **state)
{
    (void)state;
    if (BY_SANITIZER(false, true, true)) skip();
    cn_buf large = {0};
    put_body(&large, "{\"max_tokens\": 1, \"truncate_prompt_tokens\": 9, \"prompt\": \"", "ab",
             LARGE_BYTES, "\"}");
    const uint64_t before = process_reset_peak_kib();
    assert_int_equal(finish(begin("/v1/completions", "ann-secret-1", &large)), 200);
    /* the body and its text, in the HTTP thread and in JSON; 690 MB when a word was one piece */
    assert_true(process_growth_kib(before) < 4 * (LARGE_BYTES >> 10));
    assert_true(process_idle_rss_kib() < before + KEPT_KIB);
    cn_buf_free(&large);
}

static void a_text_beyond_the_context_is_refused_unread(void **state)
{
    (void)state;
    static const struct {
        const char *path, *start, *end;
    } cases[] = {
        {"/v1/completions", "{\"max_tokens\": 1, \"prompt\": \"", "\"}"},
        {"/v1/chat/completions", "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", "
                                 "\"content\": \"", "\"}]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_buf body = {0};
        http_reply r;
        put_body(&body, cases[i].start, "a", 1 << 20, cases[i].end);
        http_ask(rig.port, "POST", cases[i].path, "ann-secret-1", body.data, &r);
        assert_int_equal(r.status, 400);
        assert_non_null(strstr(r.body.data, "context_length_exceeded"));
        assert_non_null(strstr(r.body.data, "bytes, and no token has more than"));
        assert_non_null(strstr(r.body.data, "truncate_prompt_tokens"));
        http_reply_free(&r);
        cn_buf_free(&body);
    }
}

/* A client that disconnects does not leave its text behind. */
static void a_cancelled_text_is_not_read_on(void **state)
{
    (void)state;
    cn_buf large = {0}, body = {0};
    put_body(&large, "{\"max_tokens\": 1, \"truncate_prompt_tokens\": 9, \"prompt\": \"", "a",
             LARGE_BYTES, "\"}");
    put_body(&body, "{\"max_tokens\": 1, \"truncate_prompt_tokens\": 9, \"prompt\": \"", "hi ",
             200000, "\"}");
    for (int i = 0; i < N_LARGE; i++) close(begin("/v1/completions", "bob-secret-2", &large));
    assert_true(time_of_bob("/v1/completions", &body) < SMALL_MS);
    cn_buf_free(&large);
    cn_buf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_memory_of_large_texts_returns),
        cmocka_unit_test(large_texts_do_not_delay_another_key),
        cmocka_unit_test(a_text_beyond_the_context_is_refused_unread),
        cmocka_unit_test(a_cancelled_text_is_not_read_on),
    };
    process_use_one_arena();
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
