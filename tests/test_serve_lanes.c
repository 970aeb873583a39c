/* test_serve_lanes.c - a server with several engines: which engine gets a request, results that do
 * not depend on their number, an engine that does not come back from a step, and the drain.
 * tests/serve_lanes_check.sh has engines that fail. */
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
#include "tests/lib/serve_rig.h"

enum { LONG = 2000, MAX_CLIENTS = 16 };

static cn_stats stats_of(serve_rig *rig, uint32_t i)
{
    cn_engine_figures f;
    cn_service_engine_figures(cn_server_service(rig->server), i, &f);
    return f.stats;
}

static void open_two(serve_rig *rig, const char *name, const char *value)
{
    const char *const options[] = {"--data-parallel-size", "2", "--device", "cpu",
                                   "--kv-cache-memory-bytes", "32M", "--max-num-seqs", "4",
                                   name, value, NULL};
    serve_rig_open(rig, options);
}

/* Requests that run until they are closed. */
typedef struct clients {
    int fd[MAX_CLIENTS], n;
} clients;

static void begin(clients *c, const serve_rig *rig, int n)
{
    for (int i = 0; i < n; i++) c->fd[c->n++] = serve_begin(rig->port, NULL, LONG, true);
}

static void end(clients *c)
{
    while (c->n > 0) close(c->fd[--c->n]);
}

static void expect_running(serve_rig *rig, uint32_t first, uint32_t second)
{
    assert_true(serve_rig_wait_running(rig, first + second));
    const uint32_t a = stats_of(rig, 0).running, b = stats_of(rig, 1).running;
    if (a != first || b != second)
        fail_msg("%u and %u run, expected %u and %u", a, b, first, second);
}

/* ---- who gets a request ---- */

static void engines_share_the_requests(void **state)
{
    (void)state;
    serve_rig rig;
    clients c = {0};
    open_two(&rig, NULL, NULL);
    begin(&c, &rig, 8);
    expect_running(&rig, 4, 4); /* all seats: nobody waits while the other engine has one */
    assert_int_equal(stats_of(&rig, 0).waiting + stats_of(&rig, 1).waiting, 0);
    end(&c);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

static void samples_of_a_request_share_an_engine(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\": \"Compute\", \"max_tokens\": 2000, \"n\": 3, "
                               "\"ignore_eos\": true, \"stream\": true}";
    serve_rig rig;
    open_two(&rig, NULL, NULL);
    clients c = {.n = 2};
    for (int i = 0; i < 2; i++) serve_send(c.fd[i] = http_connect(rig.port), NULL, body);
    expect_running(&rig, 3, 3);
    end(&c);
    serve_rig_close(&rig);
}

static void ask(uint16_t port, const char *body, int status)
{
    http_reply r;
    http_ask(port, "POST", "/v1/completions", NULL, body, &r);
    if (r.status != status) fail_msg("%d: %s", r.status, r.body.data);
    http_reply_free(&r);
}

/* A seat of an engine that has ended its requests is taken before one of a loaded engine. */
static void the_idle_engine_is_next(void **state)
{
    (void)state;
    serve_rig rig;
    clients c = {0};
    open_two(&rig, NULL, NULL);
    begin(&c, &rig, 1);
    assert_true(serve_rig_wait_running(&rig, 1));
    const uint32_t busy = stats_of(&rig, 1).running;
    const uint64_t before = stats_of(&rig, busy).prompt_tokens;
    for (int i = 0; i < 3; i++) ask(rig.port, serve_long_body(4, false), 200);
    assert_int_equal(stats_of(&rig, busy).prompt_tokens, before);
    assert_true(stats_of(&rig, 1 - busy).prompt_tokens > 0);
    end(&c);
    serve_rig_close(&rig);
}

/* Asks for the same long prompt again; returns the tokens of it that were cached. */
static json_int_t ask_prompt(uint16_t port, char letter)
{
    enum { WORDS = 150 };
    char body[WORDS * 3 + 64] = "{\"max_tokens\": 2, \"prompt\": \"";
    size_t n = strlen(body);
    for (int i = 0; i < WORDS; i++, n += 3) snprintf(body + n, 4, " %c%c", letter, letter);
    strcpy(body + n, "\"}");
    json_t *json = http_ask_json(port, "POST", "/v1/completions", body, 200);
    const json_t *usage = json_object_get(json, "usage");
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    const json_int_t cached = json_integer_value(json_object_get(details, "cached_tokens"));
    assert_true(json_integer_value(json_object_get(usage, "prompt_tokens")) >= WORDS);
    json_decref(json);
    return cached;
}

/* By turns, the third request and others would miss. */
static void a_prompt_goes_to_the_engine_that_has_it(void **state)
{
    (void)state;
    static const char order[] = "abaabbabba";
    serve_rig rig;
    open_two(&rig, "--block-size", "16");
    for (int i = 0; order[i]; i++) {
        const json_int_t cached = ask_prompt(rig.port, order[i]);
        if (i < 2) assert_int_equal(cached, 0);
        if (i >= 2 && cached < 128) fail_msg("request %d: %d tokens cached", i, (int)cached);
    }
    for (uint32_t i = 0; i < 2; i++) assert_true(stats_of(&rig, i).prompt_tokens > 500);
    serve_rig_close(&rig);
}

static void a_key_has_its_limit_over_all_engines(void **state)
{
    (void)state;
    static const char *const options[] = {"--data-parallel-size", "2", "--device", "cpu",
                                          "--max-requests-per-key", "3", "--api-key",
                                          "ann:ann-secret-1,bob:bob-secret-2",
                                          "--kv-cache-memory-bytes", "32M", NULL};
    serve_rig rig;
    http_reply r;
    int fd[3];
    serve_rig_open(&rig, options);
    for (int i = 0; i < 3; i++) fd[i] = serve_begin(rig.port, "ann-secret-1", LONG, true);
    assert_true(serve_rig_wait_running(&rig, 3));
    for (int i = 0; i < 2; i++) {
        http_ask(rig.port, "POST", "/v1/completions", i ? "bob-secret-2" : "ann-secret-1",
                 serve_long_body(4, false), &r);
        assert_int_equal(r.status, i ? 200 : 429);
        http_reply_free(&r);
    }
    for (int i = 0; i < 3; i++) close(fd[i]);
    serve_rig_close(&rig);
}

/* ---- results ---- */

static char *answer_of(uint16_t port, int i)
{
    char body[256];
    http_reply r;
    snprintf(body, sizeof body, "{\"prompt\": \"Compute %d * 34\", \"max_tokens\": 24, "
             "\"temperature\": 0.8, \"seed\": %d, \"n\": 2, \"logprobs\": 1}", i, i);
    http_ask(port, "POST", "/v1/completions", NULL, body, &r);
    assert_int_equal(r.status, 200);
    json_t *json = json_loads(r.body.data, 0, NULL);
    char *text = json_dumps(json_object_get(json, "choices"), JSON_COMPACT);
    assert_non_null(text);
    json_decref(json);
    http_reply_free(&r);
    return text;
}

static void answers_do_not_depend_on_the_engines(void **state)
{
    (void)state;
    static const char *const one[] = {"--device", "cpu", NULL};
    enum { N = 6 };
    char *want[N];
    serve_rig rig;
    serve_rig_open(&rig, one);
    for (int i = 0; i < N; i++) want[i] = answer_of(rig.port, i);
    serve_rig_close(&rig);
    open_two(&rig, NULL, NULL);
    for (int i = 0; i < N; i++) {
        char *got = answer_of(rig.port, i);
        assert_string_equal(got, want[i]);
        free(got);
        free(want[i]);
    }
    for (uint32_t i = 0; i < 2; i++) assert_true(stats_of(&rig, i).generation_tokens > 0);
    serve_rig_close(&rig);
}

/* ---- an engine whose step does not end ---- */

static serve_hang hangs[2];

/* What /health says of an engine: 1 up, 0 not, -1: no engine is. */
static int state_of(const serve_rig *rig, int engine)
{
    http_reply r;
    int up = -1;
    http_ask(rig->port, "GET", "/health", NULL, NULL, &r);
    if (r.status == 200) {
        json_t *health = json_loads(r.body.data, 0, NULL);
        const json_t *one = json_array_get(json_object_get(health, "engines"), (size_t)engine);
        assert_string_equal(json_string_value(json_object_get(one, "device")), "cpu");
        up = json_is_true(json_object_get(one, "up"));
        json_decref(health);
    }
    http_reply_free(&r);
    return up;
}

/* Waits until an engine is up or not, on a busy machine too, where a step is slow. */
static void expect_up(const serve_rig *rig, int engine, bool up)
{
    enum { WAIT_MS = 60000, LOOK_MS = 20 };
    char line[96];
    http_reply metrics;
    snprintf(line, sizeof line, "\ncinch_engine_up{model_name=\"tiny\",engine=\"%d\"} %d\n", engine,
             up);
    for (int ms = 0; ms < WAIT_MS; ms += LOOK_MS) {
        http_ask(rig->port, "GET", "/metrics", NULL, NULL, &metrics);
        const bool told = strstr(metrics.body.data, line) != NULL;
        http_reply_free(&metrics);
        if (told && state_of(rig, engine) == up) return;
        serve_pause_ms(LOOK_MS);
    }
    fail_msg("engine %d is not %s", engine, up ? "up" : "down");
}

static void a_stalled_engine_gets_no_requests(void **state)
{
    (void)state;
    serve_rig rig;
    open_two(&rig, "--health-stall", "1");
    serve_hang_begin(&hangs[0], &rig, 0);
    expect_up(&rig, 0, false);
    expect_up(&rig, 1, true);
    for (int i = 0; i < 4; i++) ask(rig.port, serve_long_body(4, false), 200);
    serve_hang_begin(&hangs[1], &rig, 1);
    serve_pause_ms(1300);
    assert_int_equal(serve_get_status(rig.port, "/health", NULL), 503);
    for (int i = 0; i < 2; i++) serve_hang_end(&hangs[i]);
    expect_up(&rig, 0, true);
    ask(rig.port, serve_long_body(4, false), 200);
    serve_rig_close(&rig);
}

/* Requests of an engine that hangs: those of which the client has nothing end at the other engine,
 * those in its mailbox too; a stream that has begun goes on when the step has ended. */
static void requests_leave_a_stalled_engine(void **state)
{
    (void)state;
    enum { STREAMS = 2, N = 6, LATE = 2, TOKENS = 300 }; /* a late one for each engine */
    serve_rig rig;
    open_two(&rig, "--health-stall", "1");
    int fd[N + LATE];
    for (int i = 0; i < N; i++) fd[i] = serve_begin(rig.port, NULL, TOKENS, i < STREAMS);
    assert_true(serve_rig_wait_running(&rig, N));
    serve_pause_ms(300); /* the streams have begun */
    serve_hang_begin(&hangs[0], &rig, 0);
    for (int i = N; i < N + LATE; i++) fd[i] = serve_begin(rig.port, NULL, 4, false);
    for (int i = STREAMS; i < N + LATE; i++) {
        http_reply r;
        http_read(fd[i], false, &r);
        assert_int_equal(r.status, 200);
        json_t *json = json_loads(r.body.data, 0, NULL);
        const json_t *usage = json_object_get(json, "usage");
        assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")),
                         i < N ? TOKENS : 4);
        json_decref(json);
        http_reply_free(&r);
        close(fd[i]);
    }
    expect_up(&rig, 0, false);
    serve_hang_end(&hangs[0]);
    for (int i = 0; i < STREAMS; i++) {
        http_reply r;
        http_read(fd[i], false, &r);
        assert_int_equal(r.status, 200);
        assert_non_null(strstr(r.body.data, "[DONE]"));
        http_reply_free(&r);
        close(fd[i]);
    }
    assert_true(serve_rig_wait_running(&rig, 0));
    ask(rig.port, serve_long_body(4, false), 200);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

/* ---- the end ---- */

static void a_drain_waits_for_all_engines(void **state)
{
    (void)state;
    serve_rig rig;
    open_two(&rig, NULL, NULL);
    int fd[4];
    for (int i = 0; i < 4; i++) fd[i] = serve_begin(rig.port, NULL, 60, false);
    assert_true(serve_rig_wait_running(&rig, 4));
    serve_rig_stop(&rig);
    for (int i = 0; i < 4; i++) {
        http_reply r;
        http_read(fd[i], false, &r);
        assert_int_equal(r.status, 200);
        http_reply_free(&r);
        close(fd[i]);
    }
    serve_rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_share_the_requests),
        cmocka_unit_test(samples_of_a_request_share_an_engine),
        cmocka_unit_test(the_idle_engine_is_next),
        cmocka_unit_test(a_prompt_goes_to_the_engine_that_has_it),
        cmocka_unit_test(a_key_has_its_limit_over_all_engines),
        cmocka_unit_test(answers_do_not_depend_on_the_engines),
        cmocka_unit_test(a_stalled_engine_gets_no_requests),
        cmocka_unit_test(requests_leave_a_stalled_engine),
        cmocka_unit_test(a_drain_waits_for_all_engines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
