/* test_serve_structure.c - forms of structured output that are made to take long: a request of
 * another key is answered beside them within 2 s, and each of them is refused or answered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/api/http_status.h"
#include "tests/lib/http_client.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/serve_rig.h"

#define KEYS "ann:ann-secret-1,bob:bob-secret-2"
static const double MOST_S = BY_SANITIZER(2, 20, 20);
enum { N_ATTACKS = 6, N_WAITING = 40 };

static const char *const options[] = {"--api-key", KEYS, "--max-num-seqs", "8", NULL};

static int ask(uint16_t port, const char *key, const char *body, const char *text)
{
    http_reply r;
    http_ask(port, "POST", "/v1/completions", key, body, &r);
    const int status = r.status;
    if (text && !strstr(r.body.data ? r.body.data : "", text))
        fail_msg("status %d: '%s' lacks '%s'", status, r.body.data, text);
    http_reply_free(&r);
    return status;
}

static void send_regex(int *fd, uint16_t port, const char *expression, int max_tokens)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"prompt\":\"x\",\"max_tokens\":%d,\"temperature\":2,\"structured_outputs\":"
             "{\"regex\":\"%s\"}}",
             max_tokens, expression);
    *fd = http_connect(port);
    serve_send(*fd, "ann-secret-1", body);
}

/* Bob asks several times, without and with a form of his own. */
static void expect_answers(uint16_t port)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"a\",\"max_tokens\":8}",
        "{\"prompt\":\"a\",\"max_tokens\":8,\"structured_outputs\":{\"choice\":[\"yes\",\"no\"]}}"};
    for (int i = 0; i < 6; i++) {
        const double began = cn_now_s();
        assert_int_equal(ask(port, "bob-secret-2", bodies[i % 2], NULL), CN_HTTP_OK);
        const double most = i % 2 ? 2 * MOST_S : MOST_S; /* a form waits for the compiler */
        if (cn_now_s() - began > most) fail_msg("answered after %.1f s", cn_now_s() - began);
        serve_pause_ms(50);
    }
}

static void a_key_is_answered_beside_slow_forms(void **state)
{
    (void)state;
    serve_rig rig;
    int fds[N_ATTACKS];
    serve_rig_open(&rig, options);
    for (int i = 0; i < N_ATTACKS; i++) {
        char expression[64];
        snprintf(expression, sizeof expression, "(((){65535}){65535}){%d}", 60000 + i);
        send_regex(&fds[i], rig.port, expression, 8);
    }
    expect_answers(rig.port);
    for (int i = 0; i < N_ATTACKS; i++) {
        http_reply r;
        http_read(fds[i], false, &r);
        assert_int_equal(r.status, CN_HTTP_BAD_REQUEST);
        assert_non_null(strstr(r.body.data, "\"param\":\"structured_outputs\""));
        http_reply_free(&r);
        close(fds[i]);
    }
    const double began = cn_now_s(); /* it is remembered */
    assert_int_equal(ask(rig.port, "ann-secret-1",
                         "{\"prompt\":\"x\",\"max_tokens\":8,\"structured_outputs\":{\"regex\":"
                         "\"(((){65535}){65535}){60000}\"}}",
                         "steps"),
                     CN_HTTP_BAD_REQUEST);
    assert_true(cn_now_s() - began < MOST_S / 4);
    serve_rig_close(&rig);
}

static void a_key_is_answered_beside_costly_masks(void **state)
{
    (void)state;
    serve_rig rig;
    int fds[N_ATTACKS];
    serve_rig_open(&rig, options);
    for (int i = 0; i < N_ATTACKS; i++) {
        char expression[128];
        snprintf(expression, sizeof expression, "(?:[a-m].{9,900}|[n-z].{9,%d}|[^a-z].{9,900}){40}",
                 1000 + i);
        send_regex(&fds[i], rig.port, expression, 200);
    }
    assert_true(serve_rig_wait_running(&rig, N_ATTACKS));
    expect_answers(rig.port);
    for (int i = 0; i < N_ATTACKS; i++) close(fds[i]);
    serve_rig_close(&rig);
}

static void a_key_finds_memory_beside_large_forms(void **state)
{
    (void)state;
    serve_rig rig;
    int fds[N_WAITING];
    serve_rig_open(&rig, options);
    for (int i = 0; i < N_WAITING; i++) {
        char expression[64];
        snprintf(expression, sizeof expression, "[acegikmoqsuwy]{%d}", 38000 - i);
        send_regex(&fds[i], rig.port, expression, 6000);
    }
    serve_pause_ms(500);
    expect_answers(rig.port);
    for (int i = 0; i < N_WAITING; i++) close(fds[i]);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

static void a_grammar_forms_the_answer(void **state)
{
    (void)state;
    static const struct {
        const char *outputs, *text;
        int status;
    } cases[] = {
        {"{\"grammar\":\"root ::= x{2} \\\"!\\\" # one text\\nx ::= [q]\"}", "\"text\":\"qq!\"",
         CN_HTTP_OK},
        {"{\"grammar\":\"start: A \\\"b\\\"~3\\nA: /x\\\\d{0}/\"}", "\"text\":\"xbbb\"",
         CN_HTTP_OK},
        {"{\"grammar\":\"start: a\\na: b\"}", "(grammar): line 2, column 4: rule b is not defined",
         CN_HTTP_BAD_REQUEST},
        {"{\"grammar\":{}}", "structured_outputs.grammar: expected the text of a grammar",
         CN_HTTP_BAD_REQUEST},
        {"{\"structural_tag\":\"{}\"}", "structural_tag is not supported: use tool_choice",
         CN_HTTP_BAD_REQUEST},
    };
    serve_rig rig;
    serve_rig_open(&rig, options);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"prompt\":\"x\",\"max_tokens\":16,\"temperature\":2,\"structured_outputs\":%s}",
                 cases[i].outputs);
        assert_int_equal(ask(rig.port, "ann-secret-1", body, cases[i].text), cases[i].status);
    }
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_forms_the_answer),
        cmocka_unit_test(a_key_is_answered_beside_slow_forms),
        cmocka_unit_test(a_key_is_answered_beside_costly_masks),
        cmocka_unit_test(a_key_finds_memory_beside_large_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
