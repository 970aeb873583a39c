/* test_serve_lost.c - a server with several engines on the CPU of which some fail: what becomes of
 * their requests. tests/serve_lanes_check.sh does it with GPUs of the fake runtime. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/engine_state.h"
#include "engine/serve/calls/service_state.h"
#include "tests/lib/http_client.h"
#include "tests/lib/serve_ask.h"
#include "tests/lib/serve_rig.h"

enum { MAX_OPTIONS = 24, POISON_TOKENS = 300, LONG = 400 };

static serve_rig rig;

/* ---- engines that fail ---- */

typedef cn_status store_fn(cn_stream *s, const cn_rope_store_args *a);
static store_fn *real_store;
static atomic_bool failing;

/* A long prompt makes an engine fail. */
static cn_status store_poisoned(cn_stream *s, const cn_rope_store_args *a)
{
    if (a->batch->n_tokens >= POISON_TOKENS) return cn_fail(CN_ERR_DEVICE, "poisoned");
    return real_store(s, a);
}

static cn_status store_failing(cn_stream *s, const cn_rope_store_args *a)
{
    if (atomic_load(&failing)) return cn_fail(CN_ERR_DEVICE, "lost");
    return real_store(s, a);
}

static cn_service *service(void) { return cn_server_service(rig.server); }

/* Before the engine has a request. */
static void set_store(uint32_t engine, store_fn *store)
{
    cn_backend *be = service()->engines.at[engine]->backend;
    if (!real_store) real_store = be->rope_store;
    be->rope_store = store;
}

static uint32_t n_failed(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < service()->n_lanes; i++)
        n += cn_lane_failure(&service()->lanes[i].lane) != NULL;
    return n;
}

static void open_engines(const char *n, const char *const *more)
{
    const char *options[MAX_OPTIONS] = {"--data-parallel-size", n, "--device", "cpu",
                                        "--threads", "1", "--kv-cache-memory-bytes", "64M"};
    for (int at = 8; more && *more && at < MAX_OPTIONS - 1; at++) options[at] = *more++;
    atomic_store(&failing, false);
    serve_rig_open(&rig, options);
}

static void add_poison(cn_buf *out)
{
    for (int i = 0; i < POISON_TOKENS; i++) assert_int_equal(cn_buf_addf(out, " %d", i), CN_OK);
}

/* ---- requests that make engines fail ---- */

/* OpenAI's clients do not ask again, and the fourth engine works. */
static void a_poison_request_ends_three_engines(void **state)
{
    (void)state;
    cn_buf body = {0};
    http_reply r;
    open_engines("4", NULL);
    for (uint32_t i = 0; i < 4; i++) set_store(i, store_poisoned);
    assert_int_equal(cn_buf_addf(&body, "{\"max_tokens\": 4, \"prompt\": \""), CN_OK);
    add_poison(&body);
    assert_int_equal(cn_buf_addf(&body, "\"}"), CN_OK);
    http_ask(rig.port, "POST", "/v1/completions", NULL, body.data, &r);
    assert_int_equal(r.status, 500);
    assert_non_null(strstr(r.body.data, "3 engines failed while they had this request"));
    assert_non_null(strstr(r.body.data, "\"engine_failed\""));
    assert_non_null(strstr(r.head.data, "x-should-retry: false"));
    http_reply_free(&r);
    cn_buf_free(&body);
    assert_int_equal(n_failed(), 3);
    http_ask(rig.port, "POST", "/v1/completions", NULL, serve_long_body(4, false), &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    serve_rig_close(&rig);
}

/* ---- full queues ---- */

static const char *const one_seat[] = {"--max-num-seqs", "1", "--max-queue", "1", NULL};

static cn_stats stats_of(uint32_t i)
{
    cn_engine_figures f;
    cn_service_engine_figures(service(), i, &f);
    return f.stats;
}

/* Waits until so many requests run and wait in both engines together. */
static void wait_for(uint32_t running, uint32_t waiting)
{
    enum { WAIT_MS = 30000, LOOK_MS = 2 };
    for (int ms = 0; ms < WAIT_MS; ms += LOOK_MS) {
        const cn_stats a = stats_of(0), b = stats_of(1);
        if (a.running + b.running == running && a.waiting + b.waiting == waiting) return;
        serve_pause_ms(LOOK_MS);
    }
    fail_msg("%u do not run, %u do not wait", running, waiting);
}

/* A request that ran is not refused by --max-queue of the engine that gets it. Its time to the
 * first token is observed once. */
static void a_lost_request_enters_a_full_queue(void **state)
{
    (void)state;
    enum { N = 3 };
    int fd[N];
    cn_serve_figures figures;
    open_engines("2", one_seat);
    for (uint32_t i = 0; i < 2; i++) set_store(i, store_failing);
    for (uint32_t i = 0; i < N; i++) {
        fd[i] = serve_begin(rig.port, NULL, LONG, false);
        wait_for(cn_min_u32(i + 1, 2), i == 2);
    }
    serve_rig_figures(&rig, &figures);
    const uint32_t lost = stats_of(0).waiting == 1; /* the other has the full queue */
    set_store(1 - lost, real_store);
    atomic_store(&failing, true);
    for (int i = 0; i < N; i++) {
        http_reply r;
        http_read(fd[i], false, &r);
        if (r.status != 200) fail_msg("request %d: %d %s", i, r.status, r.body.data);
        http_reply_free(&r);
        close(fd[i]);
    }
    assert_int_equal(n_failed(), 1);
    serve_rig_figures(&rig, &figures);
    assert_int_equal(figures.histograms[CN_HIST_E2E_S].n, N);
    assert_int_equal(figures.histograms[CN_HIST_TTFT_S].n, N);
    serve_rig_close(&rig);
}

/* The engine with more tokens to its requests has room, the other has not. */
static void a_full_queue_is_no_choice(void **state)
{
    (void)state;
    enum { N = 4, AHEAD = 800, MORE = 2000 };
    int fd[N];
    open_engines("2", one_seat);
    fd[0] = serve_begin(rig.port, NULL, MORE, true);
    while (stats_of(0).generation_tokens + stats_of(1).generation_tokens < AHEAD)
        serve_pause_ms(1);
    for (uint32_t i = 1; i < N; i++) {
        fd[i] = serve_begin(rig.port, NULL, MORE, true);
        wait_for(2, i - 1);
    }
    for (int i = 0; i < N; i++) close(fd[i]);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

/* ---- batches ---- */

static void upload(const char *lines, char id[64])
{
    cn_buf form = {0}, head = {0};
    http_reply r;
    const int fd = http_connect(rig.port);
    assert_int_equal(cn_buf_addf(&form,
                                 "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n"
                                 "\r\nbatch\r\n--edge\r\nContent-Disposition: form-data; "
                                 "name=\"file\"; filename=\"in.jsonl\"\r\n\r\n%s\r\n--edge--\r\n",
                                 lines),
                     CN_OK);
    assert_int_equal(cn_buf_addf(&head,
                                 "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                 "multipart/form-data; boundary=edge\r\nContent-Length: "
                                 "%zu\r\n\r\n",
                                 form.len),
                     CN_OK);
    http_send(fd, head.data, head.len);
    http_send(fd, form.data, form.len);
    http_read(fd, false, &r);
    assert_int_equal(r.status, 200);
    json_t *file = json_loads(r.body.data, 0, NULL);
    snprintf(id, 64, "%s", json_string_value(json_object_get(file, "id")));
    json_decref(file);
    http_reply_free(&r);
    close(fd);
    cn_buf_free(&form);
    cn_buf_free(&head);
}

/* Waits for the end of a batch and returns it. */
static json_t *run_batch(const char *lines)
{
    enum { WAIT_MS = 60000, LOOK_MS = 20 };
    char file[64], body[256], path[96];
    upload(lines, file);
    snprintf(body, sizeof body, "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", "
             "\"completion_window\": \"24h\"}", file);
    json_t *batch = http_ask_json(rig.port, "POST", "/v1/batches", body, 200);
    snprintf(path, sizeof path, "/v1/batches/%s",
             json_string_value(json_object_get(batch, "id")));
    for (int ms = 0; ms < WAIT_MS; ms += LOOK_MS) {
        json_decref(batch);
        batch = http_ask_json(rig.port, "GET", path, NULL, 200);
        if (strcmp(json_string_value(json_object_get(batch, "status")), "completed") == 0)
            return batch;
        serve_pause_ms(LOOK_MS);
    }
    fail_msg("the batch has not ended: %s", json_dumps(batch, 0));
    return NULL;
}

static void expect_error_line(const json_t *batch)
{
    char path[96];
    http_reply r;
    snprintf(path, sizeof path, "/v1/files/%s/content",
             json_string_value(json_object_get(batch, "error_file_id")));
    http_ask(rig.port, "GET", path, NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "\"custom_id\":\"r3\""));
    assert_non_null(strstr(r.body.data, "\"engine_failed\""));
    assert_non_null(strstr(r.body.data, "\"status_code\":500"));
    http_reply_free(&r);
}

static void a_poison_line_gets_an_error_line(void **state)
{
    (void)state;
    enum { N = 12, POISON = 3 };
    char dir[] = "/tmp/cinch_lost_XXXXXX", command[64];
    cn_buf lines = {0};
    assert_non_null(mkdtemp(dir));
    open_engines("5", (const char *const[]){"--spool", dir, NULL});
    for (uint32_t i = 0; i < 5; i++) set_store(i, store_poisoned);
    for (int i = 0; i < N; i++) {
        assert_int_equal(cn_buf_addf(&lines, "{\"custom_id\": \"r%d\", \"method\": \"POST\", "
                                             "\"url\": \"/v1/completions\", \"body\": "
                                             "{\"max_tokens\": 40, \"ignore_eos\": true, "
                                             "\"prompt\": \"Compute", i),
                         CN_OK);
        if (i == POISON) add_poison(&lines);
        assert_int_equal(cn_buf_addf(&lines, "\"}}\n"), CN_OK);
    }
    json_t *batch = run_batch(lines.data);
    const json_t *counts = json_object_get(batch, "request_counts");
    assert_int_equal(json_integer_value(json_object_get(counts, "completed")), N - 1);
    assert_int_equal(json_integer_value(json_object_get(counts, "failed")), 1);
    expect_error_line(batch);
    assert_int_equal(n_failed(), 3);
    json_decref(batch);
    cn_buf_free(&lines);
    serve_rig_close(&rig);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

/* ---- an engine that hangs ---- */

static serve_hang hang;

/* From here on, stderr is this file. Returns what it was. */
static int begin_log(char *path)
{
    const int file = mkstemp(path), before = dup(2);
    assert_true(file >= 0 && before >= 0);
    dup2(file, 2);
    close(file);
    return before;
}

static void expect_logged(const char *path, const char *text)
{
    enum { WAIT_MS = 20000, LOOK_MS = 20 };
    char log[4096];
    for (int ms = 0; ms < WAIT_MS; ms += LOOK_MS) {
        const int fd = open(path, O_RDONLY);
        const ssize_t n = read(fd, log, sizeof log - 1);
        close(fd);
        log[n > 0 ? n : 0] = '\0';
        if (strstr(log, text)) return;
        serve_pause_ms(LOOK_MS);
    }
    fail_msg("not logged: %s", text);
}

/* The engine that runs the only request, besides those of a mask; -1: none does yet. */
static int runs_in(uint32_t n, uint32_t but)
{
    for (uint32_t i = 0; i < n; i++)
        if (!(but >> i & 1) && stats_of(i).running > 0) return (int)i;
    return -1;
}

static void end_with_the_third_hang(uint32_t n_engines)
{
    enum { MORE = 2000, LOOK_MS = 2 };
    static serve_hang hangs[3];
    uint32_t hung = 0;
    http_reply r;
    open_engines(n_engines == 3 ? "3" : "4",
                 (const char *const[]){"--health-stall", "1", "--log-level", "error", NULL});
    const int fd = serve_begin(rig.port, NULL, MORE, false);
    for (int k = 0; k < 3; k++) {
        int at;
        while ((at = runs_in(n_engines, hung)) < 0) serve_pause_ms(LOOK_MS);
        serve_hang_begin(&hangs[k], &rig, (uint32_t)at);
        hung |= 1U << at;
    }
    http_read(fd, false, &r);
    assert_int_equal(r.status, 500);
    assert_non_null(strstr(r.body.data, "3 engines failed while they had this request"));
    assert_non_null(strstr(r.body.data, "a step has not ended (--health-stall)"));
    assert_int_equal(strstr(r.head.data, "x-should-retry: false") != NULL, n_engines > 3);
    http_reply_free(&r);
    close(fd);
    assert_int_equal(n_failed(), 0);
    for (int k = 0; k < 3; k++) serve_hang_end(&hangs[k]);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

/* The fourth engine works, and the client is told not to try again. */
static void a_request_whose_third_engine_hangs_ends(void **state)
{
    (void)state;
    end_with_the_third_hang(4);
}

static void a_request_that_hangs_the_last_engine_ends(void **state)
{
    (void)state;
    end_with_the_third_hang(3);
}

static const char *const with_key[] = {"--health-stall", "1", "--max-requests-per-key", "4",
                                       "--log-level", "warning",
                                       "--api-key", "ann:ann-secret-1", NULL};

/* A client that has gone gets its samples back before the step ends, and the log tells of both. */
static void a_hang_is_told_and_frees_what_is_cancelled(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\": \"Compute\", \"max_tokens\": 2000, \"n\": 4, "
                               "\"ignore_eos\": true, \"stream\": true}";
    char path[] = "/tmp/cinch_log_XXXXXX";
    http_reply r;
    open_engines("2", with_key);
    const int before = begin_log(path), fd = http_connect(rig.port);
    serve_send(fd, "ann-secret-1", body);
    assert_true(serve_rig_wait_running(&rig, 4));
    const uint32_t hung = stats_of(1).running > 0;
    serve_hang_begin(&hang, &rig, hung);
    close(fd);
    expect_logged(path, hung ? "engine 1 (cpu): a step has not ended for"
                             : "engine 0 (cpu): a step has not ended for");
    for (int i = 0; i < 500; i++) {
        http_ask(rig.port, "POST", "/v1/completions", "ann-secret-1",
                 "{\"prompt\": \"Compute\", \"max_tokens\": 4, \"n\": 4}", &r);
        const int status = r.status;
        http_reply_free(&r);
        if (status == 200) break;
        assert_int_equal(status, 429);
        assert_true(i < 499);
        serve_pause_ms(20);
    }
    serve_hang_end(&hang);
    expect_logged(path, "the step has ended: the engine goes on");
    dup2(before, 2);
    close(before);
    unlink(path);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

/* The calls of clients that have gone end with the hang of the only engine, not with its step. */
static void the_only_engine_frees_what_is_cancelled(void **state)
{
    (void)state;
    enum { WAIT_MS = 20000, LOOK_MS = 20 };
    cn_serve_figures figures;
    http_reply r;
    open_engines("1", (const char *const[]){"--health-stall", "1", "--log-level", "error", NULL});
    const int fd = serve_begin(rig.port, NULL, 2000, true);
    assert_true(serve_rig_wait_running(&rig, 1));
    serve_hang_begin(&hang, &rig, 0);
    close(fd);
    for (int ms = 0;; ms += LOOK_MS) {
        serve_rig_figures(&rig, &figures);
        if (figures.active_class[CN_CLASS_INTERACTIVE] == 0) break;
        assert_true(ms < WAIT_MS);
        serve_pause_ms(LOOK_MS);
    }
    serve_hang_end(&hang);
    http_ask(rig.port, "POST", "/v1/completions", NULL, serve_long_body(4, false), &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    assert_true(serve_rig_wait_running(&rig, 0));
    serve_rig_close(&rig);
}

/* The lines are still with the engine when the drain ends. The last test: the server stays. */
static void a_stop_does_not_wait_for_a_hang(void **state)
{
    (void)state;
    char dir[] = "/tmp/cinch_hung_XXXXXX", command[64];
    cn_buf lines = {0};
    char file[64], body[256];
    assert_non_null(mkdtemp(dir));
    open_engines("2", (const char *const[]){"--spool", dir, "--health-stall", "4",
                                            "--shutdown-timeout", "1", NULL});
    for (int i = 0; i < 8; i++)
        assert_int_equal(cn_buf_addf(&lines, "{\"custom_id\": \"r%d\", \"method\": \"POST\", "
                                             "\"url\": \"/v1/completions\", \"body\": "
                                             "{\"max_tokens\": 2000, \"ignore_eos\": true, "
                                             "\"prompt\": \"Compute\"}}\n", i),
                         CN_OK);
    upload(lines.data, file);
    cn_buf_free(&lines);
    snprintf(body, sizeof body, "{\"input_file_id\": \"%s\", \"endpoint\": \"/v1/completions\", "
             "\"completion_window\": \"24h\"}", file);
    json_decref(http_ask_json(rig.port, "POST", "/v1/batches", body, 200));
    assert_true(serve_rig_wait_running(&rig, 8));
    serve_hang_begin(&hang, &rig, 0);
    const double began_s = cn_now_s();
    serve_rig_close(&rig);
    assert_true(rig.hangs);
    assert_true(cn_now_s() - began_s < 20);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_poison_request_ends_three_engines),
        cmocka_unit_test(a_lost_request_enters_a_full_queue),
        cmocka_unit_test(a_full_queue_is_no_choice),
        cmocka_unit_test(a_poison_line_gets_an_error_line),
        cmocka_unit_test(a_hang_is_told_and_frees_what_is_cancelled),
        cmocka_unit_test(a_request_whose_third_engine_hangs_ends),
        cmocka_unit_test(a_request_that_hangs_the_last_engine_ends),
        cmocka_unit_test(the_only_engine_frees_what_is_cancelled),
        cmocka_unit_test(a_stop_does_not_wait_for_a_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
