/* test_serve_health.c - /health while the engine is idle, works, or does not come back from a step:
 * 503 with the reason after --health-stall seconds, and 200 again when the step has ended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/serve/calls/service_state.h"
#include "tests/lib/http_client.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/serve_rig.h"

static serve_hang hang;

/* Waits until /health has the status. */
static void expect_health(const serve_rig *rig, int status)
{
    enum { WAIT_MS = 60000, LOOK_MS = 20 };
    for (int ms = 0; serve_get_status(rig->port, "/health", NULL) != status; ms += LOOK_MS) {
        if (ms > WAIT_MS) fail_msg("/health is not %d", status);
        serve_pause_ms(LOOK_MS);
    }
}

static void expect_stall_is_told(const serve_rig *rig)
{
    json_t *health = http_ask_json(rig->port, "GET", "/health", NULL, 503);
    const json_t *error = json_object_get(health, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "engine_stalled");
    const char *text = json_string_value(json_object_get(error, "message"));
    assert_non_null(strstr(text, "(--health-stall 1)"));
    json_decref(health);
    json_t *stats = http_ask_json(rig->port, "GET", "/stats", NULL, 200);
    text = json_string_value(json_object_get(stats, "failure"));
    assert_non_null(text);
    assert_non_null(strstr(text, "has not ended for"));
    json_decref(stats);
    http_reply metrics;
    http_ask(rig->port, "GET", "/metrics", NULL, NULL, &metrics);
    text = strstr(metrics.body.data, "\ncinch_engine_step_age_seconds{");
    assert_non_null(text);
    assert_true(strtod(strchr(text, '}') + 1, NULL) > 1);
    http_reply_free(&metrics);
}

/* ---- tests ---- */

static void a_stalled_engine_is_not_healthy(void **state)
{
    (void)state;
    static const char *const options[] = {"--health-stall", "1", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    serve_pause_ms(1200); /* an idle engine has no step that could end */
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 200);
    for (int i = 0; i < 2; i++) {
        serve_hang_begin(&hang, &rig, 0);
        expect_health(&rig, 503);
        expect_stall_is_told(&rig);
        serve_hang_end(&hang);
        expect_health(&rig, 200);
    }
    serve_rig_close(&rig);
}

/* Sends a request whose prompt is one long step. */
static void send_slow(int fd)
{
    enum { WORDS = BY_SANITIZER(7500, 2000, 1000), WORD_BYTES = 5 };
    static const char before[] = "{\"max_tokens\": 1, \"prompt\": \"", after[] = "\"}";
    char head[160];
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: %zu\r\n\r\n%s",
             sizeof before - 1 + WORDS * WORD_BYTES + sizeof after - 1, before);
    assert_true(http_send_text(fd, head));
    for (int i = 0; i < WORDS; i++) assert_true(http_send_text(fd, "word "));
    assert_true(http_send_text(fd, after));
}

static void a_long_step_is_a_stall(void **state)
{
    (void)state;
    static const char *const options[] = {"--health-stall",           "1",    "--threads", "1",
                                          "--max-num-batched-tokens", "8192", NULL};
    serve_rig rig;
    serve_rig_open(&rig, options);
    char reply[64] = "";
    const int fd = http_connect(rig.port);
    send_slow(fd);
    expect_health(&rig, 503);
    expect_stall_is_told(&rig);
    assert_true(read(fd, reply, sizeof reply - 1) > 0); /* the step has ended */
    assert_non_null(strstr(reply, "200 OK"));
    expect_health(&rig, 200);
    close(fd);
    serve_rig_close(&rig);
}

/* Opens a server and holds its engine. Returns true if that is a stall after so many seconds. */
static bool stalls_after(const char *const *options, double seconds)
{
    serve_rig rig;
    serve_rig_open(&rig, options);
    const cn_service *service = cn_server_service(rig.server);
    serve_hang_begin(&hang, &rig, 0);
    const bool stalled = cn_service_is_stalled(service, cn_now_s() + seconds);
    serve_hang_end(&hang);
    serve_rig_close(&rig);
    return stalled;
}

static void the_limit_is_that_of_the_option(void **state)
{
    (void)state;
    static const char *const minute[] = {"--health-stall", "60", NULL};
    static const char *const never[] = {"--health-stall", "0", NULL};
    assert_false(stalls_after(minute, 30));
    assert_true(stalls_after(minute, 61));
    assert_false(stalls_after(never, 1e6));
    assert_false(stalls_after(NULL, 1e6)); /* the default on a CPU */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stalled_engine_is_not_healthy),
        cmocka_unit_test(a_long_step_is_a_stall),
        cmocka_unit_test(the_limit_is_that_of_the_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
