/* test_batch_run.c - the loop of run-batch with a scripted engine: what it writes, skips, puts back
 * and refuses, for every behaviour of the engine. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/offline/batch_drive.h"
#include "engine/offline/batch_line.h"
#include "tests/lib/chat_params.h"

/* ---- the engine: takes max_queue requests and answers each with "echo <custom_id>", one token per
 * step, in max_tokens steps (default 2). The prompt "loop" ends in a loop unless the request has
 * full KV or a budget of 1000 tokens; budgets above 3000 are refused. A token's logprob is -1 under
 * full KV, else -0.5. ---- */

enum { MAX_REQUESTS = 4096 };

typedef struct fake_request {
    bool live, cancelled, loops, forced, wants_logprobs;
    uint32_t left, begun;
    float logprob;
    char text[64];
    cn_event_fn fn;
    void *user;
} fake_request;

struct cn_engine {
    fake_request requests[MAX_REQUESTS];
    uint64_t n_requests;
    uint32_t max_queue, most_live;
    uint64_t fail_step; /* the step that fails; 0: none */
    uint32_t max_running; /* more requests wait */
    uint64_t n_forced; /* requests with forced tokens */
    cn_kv_params kv;      /* the default of a request */
    void (*at_step)(uint64_t step);
    cn_stats stats;
};

static cn_engine fake;

static uint32_t live_requests(void)
{
    uint32_t n = 0;
    for (uint64_t i = 0; i < fake.n_requests; i++) n += fake.requests[i].live;
    return n;
}

void cn_engine_default_sampling(const cn_engine *e, cn_sampling *out)
{
    (void)e;
    *out = (cn_sampling){.n = 1, .logprobs = -1, .thinking_token_budget = -1};
}

void cn_engine_default_kv(const cn_engine *e, cn_kv_params *out)
{
    *out = e->kv;
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
    const char *prompt = p->chat ? chat_text(p, 0, "content") : p->text;
    if (strcmp(prompt, "long") == 0) return cn_fail(CN_ERR_ARG, "the prompt has 9 tokens");
    if (strcmp(prompt, "sick") == 0) return cn_fail(CN_ERR_DEVICE, "the device is gone");
    if (p->kv.policy != CN_KV_FULL && p->kv.budget_tokens > 3000)
        return cn_fail(CN_ERR_ARG, "the pool is smaller");
    if (live_requests() >= e->max_queue) return cn_fail(CN_ERR_BUSY, "the queue is full");
    CN_ASSERT(e->n_requests < MAX_REQUESTS);
    fake_request *r = &e->requests[e->n_requests];
    *r = (fake_request){.live = true, .fn = fn, .user = user, .forced = p->n_forced > 0};
    r->loops = strcmp(prompt, "loop") == 0 && p->kv.policy != CN_KV_FULL &&
               p->kv.budget_tokens < 1000 && !r->forced;
    r->wants_logprobs = p->sampling.logprobs >= 0;
    r->logprob = p->kv.policy == CN_KV_FULL ? -1.0f : -0.5f;
    e->n_forced += r->forced;
    r->left = p->sampling.max_tokens ? p->sampling.max_tokens : 2;
    snprintf(r->text, sizeof r->text, "%s %s", strcmp(prompt, "fail") == 0 ? "fail" : "echo",
             p->custom_id);
    e->n_requests++;
    e->most_live = cn_max_u32(e->most_live, live_requests());
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
    const cn_logprob best = {token, r->logprob};
    const cn_token_logprobs logprobs = {best, &best, 1, 0};
    cn_event ev = {.request = (uint64_t)(r - e->requests), .text = "", .tokens = &token,
                   .n_tokens = 1, .logprobs = r->wants_logprobs ? &logprobs : NULL};
    r->begun++;
    e->stats.generation_tokens++;
    const bool fails = strncmp(r->text, "fail", 4) == 0;
    if (r->cancelled) {
        ev.finish = CN_FINISH_CANCELLED;
    } else if (fails) {
        ev.finish = CN_FINISH_ERROR;
        ev.error = "it failed";
    } else if (--r->left == 0) {
        ev.text = r->text;
        ev.text_len = strlen(r->text);
        ev.finish = r->loops    ? CN_FINISH_REPETITION
                    : r->forced ? CN_FINISH_LENGTH
                                : CN_FINISH_STOP;
    }
    if (ev.finish != CN_FINISH_NONE) {
        ev.usage = &usage;
        ev.last = true;
        r->live = false;
    }
    r->fn(r->user, &ev);
}

cn_status cn_engine_step(cn_engine *e, bool *idle)
{
    e->stats.steps++;
    if (e->stats.steps == e->fail_step) return cn_fail(CN_ERR_DEVICE, "a device fault");
    if (e->at_step) e->at_step(e->stats.steps);
    uint32_t running = 0;
    for (uint64_t i = 0; i < e->n_requests; i++) {
        fake_request *r = &e->requests[i];
        if (!r->live || (!r->cancelled && running >= e->max_running)) continue;
        running++;
        step_request(e, r);
    }
    *idle = live_requests() == 0;
    return CN_OK;
}

/* ---- a run over files in a temporary directory ---- */

static char dir[] = "/tmp/cinch_run_XXXXXX";
static char in_path[64], out_path[64];
static volatile int signals;

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/cinch_run_XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(in_path, sizeof in_path, "%s/in.jsonl", dir);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", dir);
    memset(&fake, 0, sizeof fake);
    fake.max_queue = fake.max_running = 1000;
    fake.kv.budget_tokens = 2048;
    signals = 0;
    cn_log_set_level(CN_LOG_ERROR);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void add_text(const char *text)
{
    FILE *f = fopen(in_path, "a");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void add_line(const char *id, const char *prompt)
{
    char line[512];
    snprintf(line, sizeof line,
             "{\"custom_id\": \"%s\", \"url\": \"/v1/chat/completions\", \"answer\": \"echo a\", "
             "\"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}}\n",
             id, prompt);
    add_text(line);
}

static void add_lines(int n)
{
    char id[16];
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "r%d", i);
        add_line(id, "hi");
    }
}

static cn_lanes *one_lane(void)
{
    static cn_engine *const engines[] = {&fake};
    cn_lanes *lanes;
    assert_int_equal(cn_lanes_create(&lanes, &(cn_lanes_opts){.engines = engines, .n = 1}), CN_OK);
    return lanes;
}

typedef struct outcome {
    cn_batch_state state;
    bool failed;
    char why[CN_BATCH_WHY_BYTES];
    uint64_t n_answered, n_errors, n_skipped, n_put_back, n_rescued;
    cn_batch_totals totals;
    cn_agreement agreement;
    cn_usage replayed;
    bool engine_failed;
} outcome;

static cn_config *make_config(void)
{
    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->model = cn_strdup("m");
    c->progress = CN_OPT_PROGRESS_NONE;
    return c;
}

/* Runs as with --resume: lines that the output has are skipped. */
static outcome run_with(const cn_config *c)
{
    cn_batch_run run = {.config = c};
    cn_batch_drive drive = {.lanes = one_lane(), .stop_asked = &signals};
    assert_int_equal(cn_line_reader_open(&run.input, in_path, CN_BATCH_MAX_LINE_BYTES), CN_OK);
    assert_int_equal(cn_batch_output_open(&run.output, out_path, 0666), CN_OK);
    assert_int_equal(cn_resume_scan(run.output, c->retry_errors, &run.ids, &run.totals), CN_OK);
    cn_progress_begin(&drive.progress, c->progress, stderr);
    cn_batch_drive_all(&drive, &run);
    outcome o = {run.state, run.failed, "", run.n_answered, run.n_errors, run.n_skipped,
                 run.n_put_back + run.inflight.n, run.n_rescued, run.totals, run.agreement,
                 run.replayed, run.engine_failed};
    snprintf(o.why, sizeof o.why, "%s", run.why);
    cn_lanes_free(drive.lanes);
    cn_batch_run_end(&run);
    cn_batch_output_close(run.output);
    cn_line_reader_close(run.input);
    return o;
}

static outcome run_default(void)
{
    cn_config *c = make_config();
    outcome o = run_with(c);
    cn_config_free(c);
    return o;
}

/* Returns the output's lines as an array of JSON objects. */
static json_t *output(void)
{
    json_t *all = json_array(), *line;
    FILE *f = fopen(out_path, "r");
    assert_non_null(f);
    while ((line = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) json_array_append_new(all, line);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    return all;
}

static json_t *line_of(json_t *all, const char *custom_id, json_int_t error_line)
{
    json_t *found = NULL, *line;
    size_t i;
    json_array_foreach(all, i, line)
    {
        const char *id = json_string_value(json_object_get(line, "custom_id"));
        json_t *body = json_object_get(json_object_get(line, "response"), "body");
        json_t *error = json_object_get(body, "error");
        json_int_t at = json_integer_value(json_object_get(error, "line"));
        const bool same_id = custom_id ? id && strcmp(id, custom_id) == 0 : !id;
        if (!same_id || at != error_line) continue;
        if (found) fail_msg("two lines of %s", custom_id ? custom_id : "a nameless one");
        found = line;
    }
    return found;
}

static void expect_answers(json_t *all, int n)
{
    char id[16], want[32];
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "r%d", i);
        snprintf(want, sizeof want, "echo r%d", i);
        json_t *line = line_of(all, id, 0), *choice, *body;
        if (!line) fail_msg("no line of %s", id);
        body = json_object_get(json_object_get(line, "response"), "body");
        choice = json_array_get(json_object_get(body, "choices"), 0);
        assert_string_equal(json_string_value(json_object_get(json_object_get(choice, "message"),
                                                              "content")),
                            want);
    }
    assert_int_equal(json_array_size(all), n);
}

/* ---- tests ---- */

static void every_line_is_answered_once(void **state)
{
    (void)state;
    add_lines(500);
    cn_config *c = make_config();
    c->max_inflight = 7;
    outcome o = run_with(c);
    cn_config_free(c);
    assert_int_equal(o.n_answered, 500);
    assert_string_equal(o.why, "");
    assert_int_equal(fake.most_live, 7);
    json_t *all = output();
    expect_answers(all, 500);
    json_decref(all);

    o = run_default();
    assert_int_equal(o.n_answered, 0);
    assert_int_equal(o.n_skipped, 500);
    assert_int_equal(o.totals.answered, 500);
}

static void the_run_waits_for_a_full_queue(void **state)
{
    (void)state;
    add_lines(50);
    fake.max_queue = 3;
    outcome o = run_default();
    assert_int_equal(o.n_answered, 50);
    assert_int_equal(fake.most_live, 3);
}

static void faulty_lines_get_error_lines_and_the_run_continues(void **state)
{
    (void)state;
    add_line("r0", "hi");
    add_text("{\"custom_id\": \"torn\n");                 /* 2: not JSON */
    add_line("r0", "again");                                /* 3: a duplicate */
    add_line("over", "long");                               /* 4: refused by the engine */
    add_line("bad", "fail");                                /* 5: fails in the engine */
    add_text("{\"custom_id\": \"odd\", \"url\": \"/v1/chat/completions\", \"body\": "
             "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
             "\"kv\": {\"tempo\": 1}}}\n");            /* 6 */
    add_line("r0", "and again");                            /* 7 */
    outcome o = run_default();
    assert_int_equal(o.n_answered, 1);
    assert_int_equal(o.n_errors, 6);
    json_t *all = output();
    assert_int_equal(json_array_size(all), 7);
    static const struct {
        const char *id;
        int line, status;
        const char *param, *code;
    } wanted[] = {{NULL, 2, 400, NULL, NULL},       {"r0", 3, 400, NULL, "duplicate_custom_id"},
                  {"over", 4, 400, NULL, NULL},     {"bad", 5, 500, NULL, NULL},
                  {"odd", 6, 400, "kv", NULL},   {"r0", 7, 400, NULL, "duplicate_custom_id"}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        json_t *line = line_of(all, wanted[i].id, wanted[i].line);
        if (!line) fail_msg("no error line for line %d", wanted[i].line);
        json_t *response = json_object_get(line, "response");
        json_t *error = json_object_get(json_object_get(response, "body"), "error");
        assert_int_equal(json_integer_value(json_object_get(response, "status_code")),
                         wanted[i].status);
        assert_true(json_is_null(json_object_get(line, "error")));
        const char *param = json_string_value(json_object_get(error, "param"));
        const char *code = json_string_value(json_object_get(error, "code"));
        assert_string_equal(param ? param : "", wanted[i].param ? wanted[i].param : "");
        assert_string_equal(code ? code : "", wanted[i].code ? wanted[i].code : "");
    }
    json_decref(all);

    /* Resumed: no line is repeated, including error lines without a custom_id and of duplicates. */
    o = run_default();
    assert_int_equal(o.n_skipped, 7);
    assert_int_equal(o.n_answered + o.n_errors, 0);
    assert_int_equal(o.totals.errors, 6);

    /* Retried: only the failed lines are submitted again. */
    cn_config *c = make_config();
    c->resume = c->retry_errors = true;
    o = run_with(c);
    cn_config_free(c);
    assert_int_equal(o.n_skipped, 1);
    assert_int_equal(o.n_errors, 6);
    all = output();
    assert_int_equal(json_array_size(all), 7);
    json_decref(all);
}

static void strict_stops_at_the_first_fault_without_writing_it(void **state)
{
    (void)state;
    add_line("r0", "hi");
    add_line("r1", "long");
    add_line("r2", "hi");
    cn_config *c = make_config();
    c->strict = true;
    outcome o = run_with(c);
    cn_config_free(c);
    assert_true(o.failed);
    assert_non_null(strstr(o.why, "line 2"));
    assert_int_equal(o.n_errors, 0);
    json_t *all = output();
    assert_null(line_of(all, "r1", 2));
    assert_null(line_of(all, "r2", 0));
    json_decref(all);
}

static void interrupt_at_5(uint64_t step)
{
    if (step == 5) signals = 1;
}

static void an_interrupt_finishes_running_requests_and_puts_back_the_rest(void **state)
{
    (void)state;
    add_lines(100);
    fake.max_running = 10;
    fake.at_step = interrupt_at_5;
    outcome o = run_default();
    assert_int_equal(o.state, CN_BATCH_DRAINING);
    assert_false(o.failed);
    assert_true(o.n_answered >= 20 && o.n_answered <= 40);
    assert_int_equal(o.n_answered + o.n_put_back, 100);
    signals = 0;
    fake.at_step = NULL;
    o = run_default();
    assert_int_equal(o.totals.answered, 100);
    json_t *all = output();
    expect_answers(all, 100);
    json_decref(all);
}

static void until_stops_reading_lines(void **state)
{
    (void)state;
    add_lines(20);
    cn_config *c = make_config();
    cn_batch_run run = {.config = c};
    cn_batch_drive drive = {
        .lanes = one_lane(), .stop_asked = &signals, .until = (int64_t)time(NULL) - 1};
    assert_int_equal(cn_line_reader_open(&run.input, in_path, CN_BATCH_MAX_LINE_BYTES), CN_OK);
    assert_int_equal(cn_batch_output_open(&run.output, out_path, 0666), CN_OK);
    cn_batch_drive_all(&drive, &run);
    assert_int_equal(run.n_read, 0);
    assert_non_null(strstr(run.why, "--until"));
    assert_false(run.failed);
    cn_lanes_free(drive.lanes);
    cn_batch_run_end(&run);
    cn_batch_output_close(run.output);
    cn_line_reader_close(run.input);
    cn_config_free(c);
    outcome o = run_default();
    assert_int_equal(o.n_answered, 20);
}

static void an_engine_failure_keeps_the_written_lines(void **state)
{
    (void)state;
    add_lines(100);
    fake.max_running = 10;
    fake.fail_step = 9;
    outcome o = run_default();
    assert_int_equal(o.state, CN_BATCH_STOPPED);
    assert_true(o.failed);
    assert_string_equal(o.why, "a device fault");
    assert_true(o.engine_failed);
    assert_int_equal(o.n_answered, 40);
    assert_int_equal(o.n_answered + o.n_put_back, 100);
    memset(&fake, 0, sizeof fake);
    fake.max_queue = fake.max_running = 1000;
    o = run_default();
    json_t *all = output();
    expect_answers(all, 100);
    json_decref(all);

    add_line("x", "sick");
    o = run_default();
    assert_true(o.failed);
    assert_non_null(strstr(o.why, "line 101: the device is gone"));
}

static void grades_add_up_over_runs(void **state)
{
    (void)state;
    add_line("a", "hi");
    add_line("b", "hi");
    add_line("c", "fail");
    cn_config *c = make_config();
    c->answer_field = cn_strdup("answer");
    c->grade = CN_OPT_GRADE_EXACT;
    outcome o = run_with(c);
    assert_int_equal(o.totals.graded, 3);
    assert_int_equal(o.totals.matched, 1);
    add_line("d", "hi");
    o = run_with(c);
    assert_int_equal(o.n_skipped, 3);
    assert_int_equal(o.totals.graded, 4);
    assert_int_equal(o.totals.matched, 1);
    cn_config_free(c);
}

static void a_line_may_have_many_prompts(void **state)
{
    (void)state;
    add_text("{\"custom_id\": \"a\", \"url\": \"/v1/completions\", \"body\": "
             "{\"prompt\": [\"hi\", \"there\"], \"n\": 1}}\n");
    outcome o = run_default();
    assert_int_equal(o.n_answered, 1);
    assert_int_equal(fake.n_requests, 2);
    json_t *all = output();
    json_t *body = json_object_get(json_object_get(json_array_get(all, 0), "response"), "body");
    json_t *choices = json_object_get(body, "choices");
    assert_int_equal(json_array_size(choices), 2);
    json_t *second = json_array_get(choices, 1);
    assert_int_equal(json_integer_value(json_object_get(second, "index")), 1);
    assert_string_equal(json_string_value(json_object_get(second, "text")), "echo a");
    json_decref(all);
}

/* ---- requests that are submitted again ---- */

/* Runs one "loop" line among others under zip with this budget. Returns its output line, which is
 * in *all. */
static json_t *run_loop(cn_opt_rescue rescue, uint32_t budget, outcome *o, json_t **all)
{
    add_line("a", "hi");
    add_line("b", "loop");
    add_line("c", "hi");
    fake.kv = (cn_kv_params){.policy = CN_KV_ZIP, .budget_tokens = budget};
    cn_config *c = make_config();
    c->loop_rescue = rescue;
    *o = run_with(c);
    cn_config_free(c);
    assert_int_equal(o->n_answered, 3);
    *all = output();
    assert_int_equal(json_array_size(*all), 3);
    assert_null(json_object_get(line_of(*all, "a", 0), "loop_rescue"));
    return line_of(*all, "b", 0);
}

static const char *finish_of(const json_t *line)
{
    json_t *body = json_object_get(json_object_get(line, "response"), "body");
    json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    return json_string_value(json_object_get(choice, "finish_reason"));
}

static void expect_rescue(json_t *line, const char *by, json_int_t first_tokens)
{
    json_t *mark = json_object_get(line, "loop_rescue"), *first = json_object_get(mark, "first");
    assert_string_equal(json_string_value(json_object_get(mark, "by")), by);
    assert_int_equal(json_integer_value(json_object_get(first, "completion_tokens")), first_tokens);
    assert_true(json_is_object(json_object_get(first, "kv")));
}

static void a_loop_is_retried_once_with_more_kv(void **state)
{
    (void)state;
    static const cn_opt_rescue rescues[] = {CN_OPT_RESCUE_BUDGET, CN_OPT_RESCUE_FULL};
    static const char *const names[] = {"budget", "full"};
    outcome o;
    json_t *all;
    for (int i = 0; i < 2; i++) {
        json_t *line = run_loop(rescues[i], 256, &o, &all);
        assert_int_equal(fake.n_requests, 4);
        assert_int_equal(o.n_rescued, 1);
        assert_string_equal(finish_of(line), "stop");
        expect_rescue(line, names[i], 2);
        json_decref(all);
        assert_int_equal(tear_down(NULL), 0);
        assert_int_equal(set_up(NULL), 0);
    }
}

static void a_second_loop_is_the_answer(void **state)
{
    (void)state;
    outcome o;
    json_t *all, *line = run_loop(CN_OPT_RESCUE_BUDGET, 100, &o, &all);
    assert_int_equal(fake.n_requests, 4); /* the loop is submitted twice, not more often */
    assert_string_equal(finish_of(line), "repetition");
    expect_rescue(line, "budget", 2);
    json_decref(all);
}

static void a_rescue_that_exceeds_the_pool_keeps_the_first_answer(void **state)
{
    (void)state;
    outcome o;
    json_t *all, *line = run_loop(CN_OPT_RESCUE_BUDGET, 900, &o, &all);
    assert_int_equal(fake.n_requests, 3);
    assert_int_equal(o.n_rescued, 0);
    assert_string_equal(finish_of(line), "repetition");
    assert_null(json_object_get(line, "loop_rescue"));
    json_decref(all);
}

static void no_rescue_without_the_option_and_with_full_kv(void **state)
{
    (void)state;
    outcome o;
    json_t *all, *line = run_loop(CN_OPT_RESCUE_OFF, 100, &o, &all);
    assert_int_equal(fake.n_requests, 3);
    assert_string_equal(finish_of(line), "repetition");
    assert_null(json_object_get(line, "loop_rescue"));
    json_decref(all);
}

static void an_audit_replays_the_picked_lines(void **state)
{
    (void)state;
    add_lines(200);
    add_line("bad", "fail");
    add_line("loopy", "loop");
    fake.kv = (cn_kv_params){.policy = CN_KV_ZIP, .budget_tokens = 256};
    fake.max_queue = 3;
    cn_config *c = make_config();
    c->audit_percent = 100;
    c->loop_rescue = CN_OPT_RESCUE_BUDGET;
    outcome o = run_with(c);
    assert_int_equal(o.n_answered, 201);
    assert_int_equal(fake.most_live, 3);
    assert_int_equal(fake.n_forced, 201);
    assert_int_equal(o.agreement.outputs, 201);
    assert_int_equal(o.agreement.tokens, 402);
    assert_int_equal(o.agreement.same_best, 402);
    assert_true(cn_agreement_gap(&o.agreement) == 0.5);
    assert_int_equal(o.replayed.completion_tokens, 402);
    assert_int_equal(o.replayed.prompt_tokens, 603);
    json_t *all = output();
    assert_int_equal(json_array_size(all), 202);
    json_t *body = json_object_get(json_object_get(line_of(all, "r7", 0), "response"), "body");
    json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    assert_true(json_is_null(json_object_get(choice, "logprobs"))); /* not requested */
    json_decref(all);

    /* A share picks the same lines in any order and with any other lines. */
    uint64_t picked = 0;
    for (int i = 0; i < 200; i++) {
        char id[16];
        snprintf(id, sizeof id, "s%d", i);
        const cn_id key = cn_id_of("custom_id", id, strlen(id));
        picked += cn_audit_picks(20, 0, &key, sizeof key);
        add_line(id, "hi");
    }
    c->audit_percent = 20;
    o = run_with(c);
    assert_int_equal(o.n_answered, 200);
    assert_in_range(picked, 10, 80);
    assert_int_equal(o.agreement.outputs, picked);
    cn_config_free(c);
}

/* Draining ends replays, puts back requests that would be rescued, and loses no line. */
static void an_interrupt_ends_replays_and_rescues(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        add_line(id, i % 2 ? "loop" : "hi");
    }
    fake.kv = (cn_kv_params){.policy = CN_KV_ZIP, .budget_tokens = 256};
    fake.max_running = 10;
    fake.at_step = interrupt_at_5;
    cn_config *c = make_config();
    c->audit_percent = 100;
    c->loop_rescue = CN_OPT_RESCUE_FULL;
    outcome o = run_with(c);
    assert_int_equal(o.state, CN_BATCH_DRAINING);
    assert_true(o.n_put_back > 0);
    assert_int_equal(o.n_answered + o.n_put_back, 60);
    signals = 0;
    fake.at_step = NULL;
    o = run_with(c);
    assert_int_equal(o.totals.answered, 60);
    json_t *all = output();
    expect_answers(all, 60);
    size_t i;
    json_t *line;
    json_array_foreach(all, i, line) assert_string_equal(finish_of(line), "stop");
    json_decref(all);
    cn_config_free(c);
}

static void the_next_time_of_day_is_later_and_within_a_day(void **state)
{
    (void)state;
    setenv("TZ", "Europe/Berlin", 1);
    tzset();
    for (int64_t now = 1700000000; now < 1700000000 + 400 * 86400; now += 40000) {
        const int32_t minutes = (int32_t)(now / 40000 * 37 % 1440);
        const int64_t then = cn_next_time_of_day(minutes, now);
        const time_t t = (time_t)then;
        struct tm local;
        localtime_r(&t, &local);
        assert_true(then > now && then <= now + 25 * 3600);
        /* Except in an hour that a clock change skips or repeats. */
        const bool shift = minutes >= 120 && minutes < 180;
        if (!shift) assert_int_equal(local.tm_hour * 60 + local.tm_min, minutes);
        assert_int_equal(local.tm_sec, 0);
    }
    const int64_t noon = cn_next_time_of_day(720, 1700000000);
    assert_true(cn_next_time_of_day(720, noon) - noon >= 23 * 3600);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(every_line_is_answered_once),
        IN_DIR(the_run_waits_for_a_full_queue),
        IN_DIR(faulty_lines_get_error_lines_and_the_run_continues),
        IN_DIR(strict_stops_at_the_first_fault_without_writing_it),
        IN_DIR(an_interrupt_finishes_running_requests_and_puts_back_the_rest),
        IN_DIR(until_stops_reading_lines),
        IN_DIR(an_engine_failure_keeps_the_written_lines),
        IN_DIR(grades_add_up_over_runs),
        IN_DIR(a_line_may_have_many_prompts),
        IN_DIR(a_loop_is_retried_once_with_more_kv),
        IN_DIR(a_second_loop_is_the_answer),
        IN_DIR(a_rescue_that_exceeds_the_pool_keeps_the_first_answer),
        IN_DIR(no_rescue_without_the_option_and_with_full_kv),
        IN_DIR(an_audit_replays_the_picked_lines),
        IN_DIR(an_interrupt_ends_replays_and_rescues),
        IN_DIR(the_next_time_of_day_is_later_and_within_a_day),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
