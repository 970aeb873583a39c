/* test_lanes.c - several engines that share the lines of a run: who gets what, engines that fail or
 * hang, cancellation, busy engines. The engines are scripted and run on the lanes' threads. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/offline/batch_drive.h"
#include "engine/offline/batch_job.h"
#include "tests/lib/chat_params.h"
#include "tests/lib/scratch_dir.h"

/* ---- an engine: answers each request with "echo <custom_id>", a token per step, in max_tokens
 * steps (default 2). It fails while it has the prompt "poison". ---- */

enum { MAX_REQUESTS = 4096, MAX_ENGINES = 4, SEATS = 4 };

typedef struct fake_request {
    bool live, cancelled, poisons;
    uint32_t left, begun, sample_n;
    char text[64];
    cn_event_fn fn;
    void *user;
} fake_request;

struct cn_engine {
    fake_request requests[MAX_REQUESTS];
    uint64_t n_requests;
    uint32_t max_queue, most_live;
    uint32_t kv_room; /* requests that run at once; others wait. 0: all run */
    uint32_t begin_most; /* requests that begin in a step; others wait. 0: all do */
    uint64_t fail_step, hang_step; /* 0: none */
    uint64_t fail_requests; /* a step fails after more requests than these; 0: none does */
    useconds_t hang_ms, step_us;
    bool fails_to_load;
    bool samples_end_early; /* all but a request's last, with its first token */
    cn_stats stats;
};

static cn_engine fakes[MAX_ENGINES];
static cn_engine *const engines[MAX_ENGINES] = {&fakes[0], &fakes[1], &fakes[2], &fakes[3]};
static volatile int signals;
static pthread_t run_thread;
static atomic_uint signal_after; /* requests of all engines; 0: never */

static void on_signal(int number)
{
    (void)number;
    signals = 1;
}

static uint32_t live_samples(const cn_engine *e)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < e->n_requests; i++)
        n += e->requests[i].live ? e->requests[i].sample_n : 0;
    return n;
}

void cn_engine_default_sampling(const cn_engine *e, cn_sampling *out)
{
    (void)e;
    *out = (cn_sampling){.n = 1, .logprobs = -1, .thinking_token_budget = -1};
}

void cn_engine_default_kv(const cn_engine *e, cn_kv_params *out)
{
    (void)e;
    *out = (cn_kv_params){.budget_tokens = 2048};
}

const char *cn_engine_token_bytes(void *engine, uint32_t token, size_t *n_bytes, bool *special)
{
    (void)engine, (void)token, (void)n_bytes, (void)special;
    return NULL;
}

uint32_t cn_engine_max_model_len(const cn_engine *e)
{
    (void)e;
    return 4096;
}

void cn_engine_stats(const cn_engine *e, cn_stats *out) { *out = e->stats; }

static cn_status submit(cn_engine *e, const cn_request_params *p, cn_event_fn fn, void *user)
{
    const char *prompt = p->chat ? chat_text(p, 0, "content") : p->text ? p->text : "";
    if (strcmp(prompt, "long") == 0) return cn_fail_param("prompt", "the prompt has 9 tokens");
    if (live_samples(e) >= e->max_queue) return cn_fail(CN_ERR_BUSY, "the queue is full");
    CN_ASSERT(e->n_requests < MAX_REQUESTS);
    fake_request *r = &e->requests[e->n_requests++];
    *r = (fake_request){.live = true,
                        .fn = fn,
                        .user = user,
                        .poisons = strcmp(prompt, "poison") == 0,
                        .sample_n = p->sampling.n,
                        .left = p->sampling.max_tokens ? p->sampling.max_tokens : 2};
    snprintf(r->text, sizeof r->text, "echo %s", p->custom_id);
    e->most_live = cn_max_u32(e->most_live, live_samples(e));
    const uint32_t after = atomic_load(&signal_after);
    if (after && atomic_fetch_sub(&signal_after, 1) == 1) pthread_kill(run_thread, SIGUSR1);
    return CN_OK;
}

cn_status cn_engine_submit_all(cn_engine *e, const cn_request_params *p, size_t n, cn_event_fn fn,
                               void *user, uint64_t *first)
{
    *first = e->n_requests;
    for (size_t i = 0; i < n; i++) CN_TRY(submit(e, &p[i], fn, user));
    return CN_OK;
}

void cn_engine_cancel(cn_engine *e, uint64_t request) { e->requests[request].cancelled = true; }

static void step_request(cn_engine *e, fake_request *r)
{
    const cn_usage usage = {.prompt_tokens = 3, .completion_tokens = r->begun + 1};
    const uint32_t token = r->begun;
    const bool r_ends = r->cancelled || --r->left == 0;
    r->begun++;
    e->stats.generation_tokens++;
    r->live = !r_ends;
    for (uint32_t i = 0; i < r->sample_n; i++) {
        const bool is_early = e->samples_end_early && i + 1 < r->sample_n;
        const bool ends = is_early ? r->begun == 1 : r_ends;
        if (is_early && !ends) continue;
        cn_event ev = {.request = (uint64_t)(r - e->requests),
                       .sample = i,
                       .text = ends ? r->text : "",
                       .text_len = ends ? strlen(r->text) : 0,
                       .tokens = &token,
                       .n_tokens = 1};
        if (ends) {
            ev.finish = r->cancelled ? CN_FINISH_CANCELLED : CN_FINISH_STOP;
            ev.usage = &usage;
            ev.last = i + 1 == r->sample_n;
        }
        r->fn(r->user, &ev);
    }
}

cn_status cn_engine_step(cn_engine *e, bool *idle)
{
    e->stats.steps++;
    if (e->step_us) usleep(e->step_us);
    const bool has_too_many = e->fail_requests && e->n_requests > e->fail_requests;
    if (has_too_many || e->stats.steps == e->fail_step)
        return cn_fail(CN_ERR_DEVICE, "a device fault");
    if (e->stats.steps == e->hang_step) usleep(e->hang_ms * 1000);
    uint32_t n = 0, n_begun = 0;
    e->stats.waiting = 0;
    for (uint64_t i = 0; i < e->n_requests; i++) {
        if (!e->requests[i].live) continue;
        if (e->requests[i].poisons) return cn_fail(CN_ERR_DEVICE, "poisoned");
        const bool begins = e->begin_most && e->requests[i].begun == 0;
        if ((e->kv_room && ++n > e->kv_room) || (begins && ++n_begun > e->begin_most))
            e->stats.waiting += e->requests[i].sample_n;
        else
            step_request(e, &e->requests[i]);
    }
    *idle = live_samples(e) == 0;
    return CN_OK;
}

static cn_status load(cn_engine *e)
{
    return e->fails_to_load ? cn_fail(CN_ERR_MEMORY, "no room for weights") : CN_OK;
}

/* ---- a run over files in a temporary directory ---- */

static scratch_dir dir;
static char in_path[96], out_path[96];

static int set_up(void **state)
{
    (void)state;
    scratch_dir_open(&dir);
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", dir.path);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", dir.path);
    memset(fakes, 0, sizeof fakes);
    for (int i = 0; i < MAX_ENGINES; i++) fakes[i].max_queue = 1000;
    atomic_store(&signal_after, 0);
    signals = 0;
    run_thread = pthread_self();
    signal(SIGUSR1, on_signal);
    cn_log_set_level(CN_LOG_ERROR);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_dir_close(&dir);
    return 0;
}

static void add_line_of(const char *id, const char *prompt, uint32_t n, uint32_t n_steps)
{
    FILE *f = fopen(in_path, "a");
    assert_non_null(f);
    fprintf(f,
            "{\"custom_id\": \"%s\", \"url\": \"/v1/chat/completions\", \"body\": {\"n\": %u, "
            "\"max_tokens\": %u, \"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}}\n",
            id, n, n_steps, prompt);
    fclose(f);
}

static void add_line(const char *id, const char *prompt, uint32_t n)
{
    add_line_of(id, prompt, n, 2);
}

static void add_lines(int n)
{
    char id[16];
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line(id, "hi", 1);
    }
}

typedef struct outcome {
    cn_batch_state state;
    bool failed;
    char why[CN_BATCH_WHY_BYTES];
    uint64_t n_answered, n_errors, n_skipped;
    uint32_t n_lost;
} outcome;

/* Runs as with --resume. */
static outcome run_seats(uint32_t n_engines, uint32_t n_seats, double stall_s,
                         uint32_t max_inflight)
{
    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->model = cn_strdup("m");
    c->progress = CN_OPT_PROGRESS_NONE;
    c->max_inflight = max_inflight;
    cn_batch_run run = {.config = c};
    cn_batch_drive drive = {.stop_asked = &signals};
    const cn_lanes_opts o = {.engines = engines,
                             .n = n_engines,
                             .n_seats = n_seats,
                             .stall_s = stall_s,
                             .load = load};
    for (uint32_t i = 0; i < n_engines; i++) fakes[i].n_requests = fakes[i].stats.steps = 0;
    assert_int_equal(cn_lanes_create(&drive.lanes, &o), CN_OK);
    assert_int_equal(cn_line_reader_open(&run.input, in_path, CN_BATCH_MAX_LINE_BYTES), CN_OK);
    assert_int_equal(cn_batch_output_open(&run.output, out_path, 0666), CN_OK);
    assert_int_equal(cn_resume_scan(run.output, false, &run.ids, &run.totals), CN_OK);
    run.first.watching = true;
    cn_progress_begin(&drive.progress, c->progress, stderr);
    cn_batch_drive_all(&drive, &run);
    outcome q = {run.state, run.failed, "", run.n_answered, run.n_errors, run.n_skipped, 0};
    snprintf(q.why, sizeof q.why, "%s", run.why);
    assert_true(cn_lanes_stop(drive.lanes));
    for (uint32_t i = 0; i < n_engines; i++) {
        cn_stats stats;
        q.n_lost += cn_lanes_stats_of(drive.lanes, i, &stats) != NULL;
    }
    cn_lanes_free(drive.lanes);
    cn_batch_run_end(&run);
    cn_batch_output_close(run.output);
    cn_line_reader_close(run.input);
    cn_config_free(c);
    return q;
}

static outcome run_on(uint32_t n_engines, double stall_s, uint32_t max_inflight)
{
    return run_seats(n_engines, SEATS, stall_s, max_inflight);
}

/* The output has exactly one line of each of r0 to r(n - 1), with its own answer. */
static void expect_answers(int n)
{
    char want[64];
    int *seen = calloc((size_t)n, sizeof *seen), total = 0;
    FILE *f = fopen(out_path, "r");
    assert_non_null(f);
    for (json_t *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(line)) {
        const char *id = json_string_value(json_object_get(line, "custom_id"));
        json_t *body = json_object_get(json_object_get(line, "response"), "body");
        json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
        if (!choice) continue;
        snprintf(want, sizeof want, "echo %s", id);
        json_t *message = json_object_get(choice, "message");
        assert_string_equal(json_string_value(json_object_get(message, "content")), want);
        assert_int_equal(seen[atoi(id + 1)]++, 0);
        total++;
    }
    fclose(f);
    free(seen);
    assert_int_equal(total, n);
}

/* ---- tests ---- */

static void engines_share_the_lines(void **state)
{
    (void)state;
    add_lines(1000);
    for (int i = 0; i < 3; i++) fakes[i].step_us = 1000;
    const outcome o = run_on(3, 0, 0);
    assert_int_equal(o.n_answered, 1000);
    assert_string_equal(o.why, "");
    expect_answers(1000);
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        assert_in_range(fakes[i].n_requests, 20, 1000);
        assert_in_range(fakes[i].most_live, 1, SEATS + 8);
        sum += fakes[i].n_requests;
    }
    assert_int_equal(sum, 1000);
}

static void a_slow_engine_gets_fewer_lines(void **state)
{
    (void)state;
    add_lines(600);
    fakes[0].step_us = 500;
    fakes[1].step_us = 50000;
    assert_int_equal(run_on(2, 0, 0).n_answered, 600);
    expect_answers(600);
    assert_true(fakes[0].n_requests > 2 * fakes[1].n_requests);
}

/* A line with more samples than an engine has seats is taken by an empty one. */
static void samples_stay_together(void **state)
{
    (void)state;
    add_line("r0", "hi", 50);
    for (int i = 1; i < 40; i++) {
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        add_line(id, "hi", 3);
    }
    assert_int_equal(run_on(2, 0, 0).n_answered, 40);
    expect_answers(40);
    assert_int_equal(fakes[0].n_requests + fakes[1].n_requests, 40);
}

/* An engine whose seats are taken gets no line while the other still fills its own: the seats are
 * for all lines, so every line has the first turn. */
static void lines_get_free_seats_first(void **state)
{
    (void)state;
    enum { N_SEATS = 64, STEPS = 60 };
    char id[16];
    for (int i = 0; i < 2 * N_SEATS; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line_of(id, "hi", 1, STEPS);
    }
    fakes[0].step_us = 10000;
    fakes[1].step_us = 20000;
    fakes[1].begin_most = 4;
    assert_int_equal(run_seats(2, N_SEATS, 0, 0).n_answered, 2 * N_SEATS);
    for (int i = 0; i < 2; i++) assert_int_equal(fakes[i].n_requests, N_SEATS);
}

/* Lines wait in the run, not in an engine whose KV cache has room for fewer than its seats. */
static void lines_wait_for_kv_outside_of_engines(void **state)
{
    (void)state;
    char id[16];
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line_of(id, "hi", 1, i % 2 ? 2 : 60);
    }
    for (int i = 0; i < 2; i++) fakes[i].kv_room = 2, fakes[i].step_us = 1000;
    const outcome o = run_seats(2, 64, 0, 0);
    assert_int_equal(o.n_answered, 40);
    for (int i = 0; i < 2; i++) assert_in_range(fakes[i].most_live, 1, 2 + 8);
    expect_answers(40);
}

/* A line of many samples does not need an engine without others. */
static void lines_of_many_samples_share_an_engine(void **state)
{
    (void)state;
    char id[16];
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line_of(id, "hi", 20, 150);
    }
    for (int i = 0; i < 2; i++) fakes[i].step_us = 1000;
    assert_int_equal(run_seats(2, 64, 0, 0).n_answered, 20);
    for (int i = 0; i < 2; i++) assert_in_range(fakes[i].most_live, 41, 64 + 8);
}

/* The seats of samples that have ended are taken while the last of the line runs. */
static void seats_of_ended_samples_are_taken(void **state)
{
    (void)state;
    char id[16];
    for (int i = 0; i < 2; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line_of(id, "hi", SEATS + 8, 200);
        fakes[i].step_us = 1000;
        fakes[i].samples_end_early = true;
    }
    for (int i = 2; i < 4; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line_of(id, "hi", SEATS, 2);
    }
    assert_int_equal(run_on(2, 0, 0).n_answered, 4);
    for (int i = 0; i < 2; i++) assert_in_range(fakes[i].stats.steps, 200, 202);
}

static void lines_of_a_failed_engine_go_to_others(void **state)
{
    (void)state;
    add_lines(300);
    for (int i = 0; i < 3; i++) fakes[i].step_us = 1000; /* engine 1 has its share of the steps */
    fakes[1].fail_step = 7;
    const outcome o = run_on(3, 0, 0);
    assert_int_equal(o.n_answered, 300);
    assert_int_equal(o.n_errors, 0);
    assert_int_equal(o.n_lost, 1);
    assert_string_equal(o.why, "");
    expect_answers(300);
}

static void add_line_of_tokens(const char *id, uint32_t n_steps)
{
    FILE *f = fopen(in_path, "a");
    assert_non_null(f);
    fprintf(f, "{\"custom_id\": \"%s\", \"url\": \"/v1/completions\", \"body\": "
               "{\"prompt\": [1, 2, 3], \"max_tokens\": %u}}\n", id, n_steps);
    fclose(f);
}

/* A line has its prompt and its parameters at the second engine, too. */
static void a_lost_line_keeps_its_request(void **state)
{
    (void)state;
    enum { N = 40, STEPS = 9 };
    char id[16];
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "r%d", i);
        if (i % 2)
            add_line_of(id, "hi", 1, STEPS);
        else
            add_line_of_tokens(id, STEPS);
    }
    fakes[1].fail_step = 5;
    const outcome o = run_on(2, 0, 0);
    assert_string_equal(o.why, "");
    assert_int_equal(o.n_answered, N);
    assert_int_equal(o.n_lost, 1);
    FILE *f = fopen(out_path, "r");
    assert_non_null(f);
    for (json_t *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(line)) {
        json_t *body = json_object_get(json_object_get(line, "response"), "body");
        json_t *usage = json_object_get(body, "usage");
        assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), STEPS);
    }
    fclose(f);
}

static void a_run_without_engines_can_be_resumed(void **state)
{
    (void)state;
    add_lines(300);
    /* More than an engine gets at once, so the run has seen answers of each. */
    for (int i = 0; i < 2; i++) fakes[i].fail_requests = 20;
    outcome o = run_on(2, 0, 0);
    assert_int_equal(o.state, CN_BATCH_STOPPED);
    assert_true(o.failed);
    assert_non_null(strstr(o.why, "no engine is left"));
    assert_non_null(strstr(o.why, "a device fault"));
    assert_in_range(o.n_answered, 1, 299);
    for (int i = 0; i < 2; i++) fakes[i].fail_requests = 0;
    const uint64_t before = o.n_answered;
    o = run_on(2, 0, 0);
    assert_int_equal(o.n_skipped, before);
    assert_int_equal(o.n_answered, 300 - before);
    expect_answers(300);
}

/* Only this line is: not those that were on the same engines. */
static void a_line_that_fails_three_engines_is_an_error(void **state)
{
    (void)state;
    char text[4096] = "";
    add_lines(10);
    add_line("p", "poison", 1);
    for (int i = 10; i < 20; i++) {
        snprintf(text, sizeof text, "r%d", i);
        add_line(text, "hi", 1);
    }
    const outcome o = run_on(4, 0, 0);
    assert_int_equal(o.n_answered, 20);
    assert_int_equal(o.n_errors, 1);
    assert_int_equal(o.n_lost, 3);
    assert_string_equal(o.why, "");
    expect_answers(20);
    snprintf(text, sizeof text, "grep -c '\"custom_id\":\"p\".*\"status_code\":500.*3 engines "
                                "failed.*poisoned.*engine_failed' %s >/dev/null", out_path);
    assert_int_equal(system(text), 0);
}

/* It is not given to the last engine before the other lines have ended. Each run that is resumed
 * gives it to an engine with half as many. */
static void a_line_does_not_fail_the_last_engine_of(uint32_t n_engines)
{
    enum { N = 200, MOST_RUNS = 6 };
    uint64_t n_answered = 0, n_errors = 0;
    add_line("p", "poison", 1);
    add_lines(N);
    for (int i = 0; i < MOST_RUNS && n_errors == 0; i++) {
        const outcome o = run_on(n_engines, 0, 0);
        n_answered += o.n_answered;
        n_errors += o.n_errors;
        assert_int_equal(o.n_lost, n_engines);
        assert_non_null(strstr(o.why, "no engine is left"));
        assert_true(i > 0 || n_answered >= N - (n_engines - 1) * (SEATS + 8));
    }
    assert_int_equal(n_errors, 1);
    const outcome o = run_on(n_engines, 0, 0);
    assert_int_equal(o.n_lost, 0);
    assert_int_equal(n_answered + o.n_answered, N);
    expect_answers(N);
}

static void a_line_does_not_fail_the_last_engine_early(void **state)
{
    (void)state;
    a_line_does_not_fail_the_last_engine_of(2);
}

static void a_line_does_not_fail_the_third_engine_early(void **state)
{
    (void)state;
    a_line_does_not_fail_the_last_engine_of(3);
}

static void lines_of_an_engine_that_hangs_go_to_others(void **state)
{
    (void)state;
    add_lines(300);
    fakes[0].hang_step = 3;
    fakes[0].hang_ms = 700;
    const outcome o = run_on(2, 0.1, 0);
    assert_int_equal(o.n_answered, 300);
    assert_int_equal(o.n_lost, 1);
    expect_answers(300); /* also after the step has ended */
}

/* Steps do not hang while the process is stopped. */
static void a_stopped_process_loses_no_engine(void **state)
{
    (void)state;
    int status;
    add_lines(40);
    for (int i = 0; i < 2; i++) fakes[i].hang_step = 2, fakes[i].hang_ms = 3500;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const outcome o = run_on(2, 2, 0);
        _exit(o.n_lost == 0 && o.n_answered == 40 ? 0 : 1);
    }
    usleep(600000);
    assert_int_equal(kill(child, SIGSTOP), 0);
    usleep(2500000);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- a port that keeps the jobs ---- */

enum { N_KEPT = 200 };
static cn_batch_job *kept[N_KEPT];
static uint32_t n_kept;

static cn_status keep_job(void *user, cn_batch_job *job)
{
    (void)user;
    CN_ASSERT(n_kept < N_KEPT);
    kept[n_kept++] = job;
    return CN_OK;
}

static void cancel_no_job(void *user, cn_batch_job *job) { (void)user, (void)job; }

static uint64_t no_tokens(void *user, cn_batch_job *job)
{
    (void)user, (void)job;
    return 0;
}

static bool never(void *user)
{
    (void)user;
    return false;
}

static void show_no_fault(void *user, const cn_batch_run *run, uint64_t line, const char *message)
{
    (void)user, (void)run, (void)line, (void)message;
}

/* The others of the first lines fail, and then the first is returned (busy) or lost. Whether it
 * would fail is not known. */
static void errors_do_not_end_a_run_before_its_first_line(bool is_lost)
{
    cn_config *c = cn_config_create();
    cn_batch_run run = {.config = c, .max_inflight = N_KEPT, .first.watching = true};
    cn_batch_port port = {.submit = keep_job,
                          .cancel = cancel_no_job,
                          .n_tokens = no_tokens,
                          .interrupted = never,
                          .fault = show_no_fault,
                          .shared = true,
                          .borrows = true,
                          .loses = true,
                          .defaults.config = c};
    cn_engine_default_sampling(NULL, &port.defaults.sampling);
    cn_engine_default_kv(NULL, &port.defaults.kv);
    run.port = &port;
    n_kept = 0;
    assert_int_equal(cn_line_reader_open(&run.input, in_path, CN_BATCH_MAX_LINE_BYTES), CN_OK);
    assert_int_equal(cn_batch_output_open(&run.output, out_path, 0666), CN_OK);
    cn_batch_run_admit(&run, 0);
    assert_int_equal(n_kept, 150);
    for (uint32_t i = 1; i < 150; i++)
        cn_batch_job_end(kept[i], cn_fail(CN_ERR_ARG, "too long"));
    if (is_lost) {
        cn_batch_job_lose(kept[0], "it hangs", false);
        cn_batch_job_free(kept[0]);
    } else {
        cn_batch_job_end(kept[0], cn_fail(CN_ERR_BUSY, "the queue is full"));
    }
    cn_batch_run_settle(&run);
    assert_int_equal(run.state, CN_BATCH_RUNNING);
    assert_int_equal(run.n_errors, 149);
    cn_batch_run_admit(&run, 0);
    assert_int_equal(n_kept, 151);
    cn_batch_job_end(kept[150], cn_fail(CN_ERR_ARG, "too long"));
    cn_batch_run_settle(&run);
    assert_true(run.failed); /* it fails as the others did */
    cn_batch_run_end(&run);
    cn_batch_output_close(run.output);
    cn_line_reader_close(run.input);
    cn_config_free(c);
}

static void a_first_line_of_a_lost_engine_may_succeed(void **state)
{
    (void)state;
    add_lines(150);
    errors_do_not_end_a_run_before_its_first_line(true);
}

static void a_first_line_that_is_not_written_may_succeed(void **state)
{
    (void)state;
    add_lines(150);
    errors_do_not_end_a_run_before_its_first_line(false);
}

/* The step that hung ends, with answers to lines that the other engine has. */
static void late_results_are_dropped(void **state)
{
    (void)state;
    add_lines(400);
    fakes[0].hang_step = 3;
    fakes[0].hang_ms = 800;
    fakes[1].step_us = 20000;
    const outcome o = run_on(2, 0.4, 0);
    assert_int_equal(o.n_answered, 400);
    assert_int_equal(o.n_lost, 1);
    assert_true(fakes[1].stats.steps * fakes[1].step_us / 1000 > fakes[0].hang_ms);
    expect_answers(400);
}

static void a_signal_drains_all_engines(void **state)
{
    (void)state;
    add_lines(400);
    for (int i = 0; i < 4; i++) fakes[i].step_us = 300;
    atomic_store(&signal_after, 100);
    outcome o = run_on(4, 0, 0);
    assert_string_equal(o.why, "interrupted");
    assert_false(o.failed);
    assert_in_range(o.n_answered, 1, 399);
    const uint64_t before = o.n_answered;
    signals = 0;
    o = run_on(4, 0, 0);
    assert_int_equal(o.n_skipped, before);
    expect_answers(400);
}

static void a_busy_engine_is_asked_again(void **state)
{
    (void)state;
    add_lines(300);
    for (int i = 0; i < 2; i++) fakes[i].max_queue = 2, fakes[i].step_us = 100;
    assert_int_equal(run_on(2, 0, 0).n_answered, 300);
    expect_answers(300);
    assert_int_equal(fakes[0].most_live, 2);
}

static void an_invalid_line_is_an_error_line(void **state)
{
    (void)state;
    add_lines(50);
    add_line("bad", "long", 1);
    const outcome o = run_on(2, 0, 0);
    assert_int_equal(o.n_answered, 50);
    assert_int_equal(o.n_errors, 1);
    char text[256];
    snprintf(text, sizeof text, "grep -c '\"custom_id\":\"bad\".*400.*the prompt has 9 tokens.*"
                                "\"param\":\"messages\"' %s >/dev/null", out_path);
    assert_int_equal(system(text), 0);
}

static void a_run_whose_first_lines_all_fail_ends(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) add_line("x", "long", 1);
    outcome o = run_on(2, 0, 0);
    assert_int_equal(o.n_errors, 300); /* duplicates are another reason */
    char command[256], id[16];
    snprintf(command, sizeof command, "rm %s %s", in_path, out_path);
    assert_int_equal(system(command), 0);
    for (int i = 0; i < 300; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line(id, "long", 1);
    }
    o = run_on(2, 0, 0);
    assert_true(o.failed);
    assert_non_null(strstr(o.why, "the prompt has 9 tokens"));
    expect_answers(0);
}

static void an_engine_that_does_not_load_ends_the_start(void **state)
{
    (void)state;
    cn_lanes *lanes;
    fakes[2].fails_to_load = true;
    const cn_lanes_opts o = {.engines = engines, .n = 3, .n_seats = SEATS, .load = load};
    assert_int_equal(cn_lanes_create(&lanes, &o), CN_ERR_MEMORY);
    assert_string_equal(cn_last_error(), "engine 2: no room for weights");
    assert_true(cn_lanes_stop(lanes));
    cn_lanes_free(lanes);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(engines_share_the_lines),
        TEST(a_slow_engine_gets_fewer_lines),
        TEST(samples_stay_together),
        TEST(lines_get_free_seats_first),
        TEST(lines_wait_for_kv_outside_of_engines),
        TEST(lines_of_many_samples_share_an_engine),
        TEST(seats_of_ended_samples_are_taken),
        TEST(a_stopped_process_loses_no_engine),
        TEST(a_first_line_of_a_lost_engine_may_succeed),
        TEST(a_first_line_that_is_not_written_may_succeed),
        TEST(lines_of_a_failed_engine_go_to_others),
        TEST(a_lost_line_keeps_its_request),
        TEST(a_run_without_engines_can_be_resumed),
        TEST(a_line_that_fails_three_engines_is_an_error),
        TEST(a_line_does_not_fail_the_last_engine_early),
        TEST(a_line_does_not_fail_the_third_engine_early),
        TEST(lines_of_an_engine_that_hangs_go_to_others),
        TEST(late_results_are_dropped),
        TEST(a_signal_drains_all_engines),
        TEST(a_busy_engine_is_asked_again),
        TEST(an_invalid_line_is_an_error_line),
        TEST(a_run_whose_first_lines_all_fail_ends),
        TEST(an_engine_that_does_not_load_ends_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
