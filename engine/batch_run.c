/* batch_run.c - see batch_run.h. */
#include "engine/batch_run.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "engine/api_response.h"
#include "engine/batch_line.h"
#include "engine/grade.h"

enum { HTTP_OK = 200, HTTP_BAD_REQUEST = 400, HTTP_INTERNAL = 500, IDLE_WAIT_MS = 200 };
enum { MAX_ERRORS_SHOWN = 10 }; /* all are in the output */

struct cn_batch_job {
    cn_batch_run *run;
    cn_batch_job *prev, *next; /* in flight */
    cn_batch_job *next_finished; /* or next of those to be submitted again */
    cn_batch_item item;
    cn_api_result *result;
    cn_api_result *second; /* of a rescue, until the engine has taken it */
    uint64_t request;      /* the engine's */

    bool looped;            /* some sample was stopped by repetition detection */
    const char *rescued_by; /* NULL: asked once */
    cn_usage first;         /* of the attempt that looped */

    bool audited, replays;
    cn_transcript said; /* by the first sample, when audited */
    uint32_t n_replayed;
};

/* ---- jobs ---- */

static void free_job(cn_batch_job *job)
{
    cn_batch_item_free(&job->item);
    cn_api_result_free(job->result);
    cn_api_result_free(job->second);
    cn_transcript_free(&job->said);
    cn_free(job);
}

static void link_job(cn_batch_run *run, cn_batch_job *job)
{
    job->next = run->inflight;
    if (job->next) job->next->prev = job;
    run->inflight = job;
    run->n_inflight++;
}

static void unlink_job(cn_batch_run *run, cn_batch_job *job)
{
    if (job->next) job->next->prev = job->prev;
    *(job->prev ? &job->prev->next : &run->inflight) = job->next;
    job->prev = job->next = NULL;
    run->n_inflight--;
}

/* ---- stopping ---- */

/* Gives up second submissions: a rescue is put back, a replay has its line already. */
static void drop_again(cn_batch_run *run)
{
    while (run->again) {
        cn_batch_job *job = run->again;
        run->again = job->next_finished;
        run->n_put_back += !job->replays;
        free_job(job);
    }
}

/* Drains, keeping the first reason. */
static void begin_drain(cn_batch_run *run, bool failed, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void begin_drain(cn_batch_run *run, bool failed, const char *fmt, ...)
{
    if (run->state != CN_BATCH_RUNNING) return;
    run->state = CN_BATCH_DRAINING;
    run->failed = failed;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(run->why, sizeof run->why, fmt, ap);
    va_end(ap);
    if (run->waiting) {
        free_job(run->waiting);
        run->waiting = NULL;
        run->n_put_back++;
    }
    drop_again(run);
    for (cn_batch_job *job = run->inflight; job; job = job->next)
        if (job->replays || cn_api_result_n_tokens(job->result) == 0)
            cn_engine_cancel(run->engine, job->request);
}

/* Ends the run where it stands. */
static void stop(cn_batch_run *run, bool failed, const char *why)
{
    if (run->state == CN_BATCH_STOPPED) return;
    run->state = CN_BATCH_STOPPED;
    run->failed = failed;
    drop_again(run);
    snprintf(run->why, sizeof run->why, "%s", why);
}

/* ---- writing ---- */

/* Writes the line of a job; takes over body. Disk full stops the run. */
static bool write_line(cn_batch_run *run, const cn_batch_item *item, int http_status, json_t *body,
                       const cn_batch_notes *notes)
{
    cn_buf_clear(&run->line);
    cn_status status = cn_batch_line_format(&run->line, item->id, item->custom_id, http_status,
                                            body, notes);
    if (status == CN_OK)
        status = cn_batch_output_append(run->output, run->line.data, run->line.len);
    if (status != CN_OK) {
        stop(run, true, cn_last_error());
        return false;
    }
    if (!notes->reference) return true;
    run->totals.graded += notes->of;
    run->totals.matched += notes->matched;
    return true;
}

/* An error line; under --strict the end of the run instead. */
static void reject(cn_batch_run *run, const cn_batch_item *item, int http_status,
                   const char *message, const char *code)
{
    const unsigned long long line = item->line;
    if (run->state == CN_BATCH_STOPPED) return;
    if (run->config->strict) {
        begin_drain(run, true, "line %llu: %s", line, message);
        return;
    }
    if (run->n_errors < MAX_ERRORS_SHOWN) {
        cn_progress_end(&run->progress);
        cn_log(CN_LOG_WARN, "line %llu: %s", line, message);
    }
    json_t *body = cn_api_error_body(http_status, message, item->at_fault.data, code, line);
    const cn_batch_notes notes = {.reference = item->reference, .of = 1};
    if (!write_line(run, item, http_status, body, &notes)) return;
    run->n_errors++;
    run->totals.errors++;
}

static uint32_t count_matches(const cn_batch_run *run, const cn_batch_job *job)
{
    uint32_t matched = 0;
    for (uint32_t i = 0; job->item.reference && i < cn_api_result_n_choices(job->result); i++)
        matched += cn_grade(run->config->grade, cn_api_result_answer(job->result, i),
                            job->item.reference);
    return matched;
}

static void answer(cn_batch_run *run, const cn_batch_job *job)
{
    const cn_config *c = run->config;
    const char *model = c->served_model_name ? c->served_model_name : c->model;
    char id[CN_ID_TEXT_BYTES];
    cn_id_format(job->item.id, id);
    json_t *body = cn_api_result_body(job->result, id, model, (int64_t)time(NULL));
    const cn_batch_notes notes = {.reference = job->item.reference,
                                  .matched = count_matches(run, job),
                                  .of = cn_api_result_n_choices(job->result),
                                  .rescued_by = job->rescued_by,
                                  .first = &job->first};
    if (!write_line(run, &job->item, HTTP_OK, body, &notes)) return;
    run->n_rescued += job->rescued_by != NULL;
    cn_usage u;
    cn_api_result_usage(job->result, &u);
    run->n_answered++;
    run->totals.answered++;
    run->totals.prompt_tokens += u.prompt_tokens;
    run->totals.completion_tokens += u.completion_tokens;
}

/* ---- submitting ---- */

static void take_replay(cn_batch_run *run, cn_batch_job *job, const cn_event *ev)
{
    cn_audit_add(&run->agreement, &job->said, &job->n_replayed, ev);
    if (!ev->usage) return;
    run->replayed.prompt_tokens += ev->usage->prompt_tokens;
    run->replayed.cached_tokens += ev->usage->cached_tokens;
    run->replayed.completion_tokens += ev->usage->completion_tokens;
}

static void take_output(cn_batch_job *job, const cn_event *ev)
{
    cn_api_result_add(job->result, ev);
    job->looped |= ev->finish == CN_FINISH_REPETITION;
    if (job->audited && ev->sample == 0 && cn_transcript_add(&job->said, ev) != CN_OK)
        job->audited = false; /* no memory: the answer counts */
}

static void on_event(void *user, const cn_event *ev)
{
    cn_batch_job *job = user;
    if (job->replays)
        take_replay(job->run, job, ev);
    else
        take_output(job, ev);
    if (!ev->last) return;
    unlink_job(job->run, job);
    job->next_finished = NULL;
    cn_batch_job **end = &job->run->finished;
    while (*end) end = &(*end)->next_finished; /* a step ends few */
    *end = job;
}

enum { RESCUE_BUDGET_FACTOR = 4 };

static void enlarge(const cn_config *c, cn_kv_params *kv)
{
    if (c->loop_rescue == CN_OPT_RESCUE_FULL)
        kv->policy = CN_KV_FULL;
    else if (__builtin_mul_overflow(kv->budget_tokens, RESCUE_BUDGET_FACTOR, &kv->budget_tokens))
        kv->budget_tokens = UINT32_MAX;
}

/* Gives the engine what the job has to ask next. */
static cn_status hand_over(cn_batch_run *run, cn_batch_job *job)
{
    cn_request_params p = job->item.request.params;
    if (job->replays) {
        cn_audit_params(&p, &job->said);
    } else {
        if (job->looped) enlarge(run->config, &p.kv);
        if (job->audited && p.sampling.logprobs < CN_AUDIT_LOGPROBS)
            p.sampling.logprobs = CN_AUDIT_LOGPROBS;
    }
    CN_TRY(cn_engine_submit(run->engine, &p, on_event, job, &job->request));
    link_job(run, job);
    return CN_OK;
}

/* Whether a loop would be answered by a second attempt. */
static bool may_be_rescued(const cn_batch_run *run, const cn_batch_job *job)
{
    return run->config->loop_rescue != CN_OPT_RESCUE_OFF && !job->rescued_by &&
           job->item.request.params.kv.policy != CN_KV_FULL;
}

/* Hands the job to the engine, keeps it as waiting, or ends it with an error line. */
static void submit(cn_batch_run *run, cn_batch_job *job)
{
    cn_status status = hand_over(run, job);
    if (status == CN_OK) {
        if (!job->audited && !may_be_rescued(run, job)) cn_batch_item_drop_request(&job->item);
        return;
    }
    if (status == CN_ERR_BUSY && run->n_inflight > 0) {
        run->waiting = job;
        return;
    }
    if (status == CN_ERR_ARG)
        reject(run, &job->item, HTTP_BAD_REQUEST, cn_last_error(), NULL);
    else
        begin_drain(run, true, "line %llu: %s", (unsigned long long)job->item.line,
                    cn_last_error());
    free_job(job);
}

/* ---- again: rescues and replays ---- */

static void push_again(cn_batch_run *run, cn_batch_job *job)
{
    job->next_finished = run->again;
    run->again = job;
}

static const char *token_bytes(void *user, uint32_t token, size_t *n_bytes)
{
    const char *bytes;
    bool special;
    const cn_tokenizer *t = cn_engine_tokenizer(user);
    return cn_tokenizer_token(t, token, &bytes, n_bytes, &special) ? bytes : NULL;
}

/* Without memory for a second attempt the first one counts. */
static bool make_second(cn_batch_run *run, cn_batch_job *job)
{
    return cn_api_result_create(&job->second, &job->item.request, token_bytes, run->engine) ==
           CN_OK;
}

/* The engine has taken the job that looped: what it said is forgotten. */
static void begin_second(cn_batch_run *run, cn_batch_job *job)
{
    cn_api_result_usage(job->result, &job->first);
    cn_api_result_free(job->result);
    job->result = job->second;
    job->second = NULL;
    cn_transcript_free(&job->said);
    job->looped = false;
    job->rescued_by = run->config->loop_rescue == CN_OPT_RESCUE_FULL ? "full" : "budget";
    if (!job->audited) cn_batch_item_drop_request(&job->item);
}

/* Says what is left to say about a job whose request has ended, and frees it unless it goes on. */
static void settle(cn_batch_run *run, cn_batch_job *job)
{
    const bool running = run->state == CN_BATCH_RUNNING;
    if (job->replays) {
        free_job(job);
        return;
    }
    if (run->state == CN_BATCH_STOPPED || cn_api_result_was_cancelled(job->result)) {
        run->n_put_back++;
    } else if (cn_api_result_error(job->result)) {
        reject(run, &job->item, HTTP_INTERNAL, cn_api_result_error(job->result), NULL);
    } else if (job->looped && may_be_rescued(run, job) && !running) {
        run->n_put_back++;
    } else if (job->looped && may_be_rescued(run, job) && make_second(run, job)) {
        push_again(run, job);
        return;
    } else {
        answer(run, job);
        if (job->audited && running && run->state == CN_BATCH_RUNNING) {
            job->replays = true;
            push_again(run, job);
            return;
        }
    }
    free_job(job);
}

static void settle_finished(cn_batch_run *run)
{
    while (run->finished) {
        cn_batch_job *job = run->finished;
        run->finished = job->next_finished;
        settle(run, job);
    }
}

/* Submits the first of those that go again; false when it has to wait. When the engine cannot hold
 * a rescue at all, the answer is the one that looped. */
static bool submit_again(cn_batch_run *run)
{
    cn_batch_job *job = run->again;
    cn_status status = hand_over(run, job);
    if (status == CN_ERR_BUSY && run->n_inflight > 0) return false;
    run->again = job->next_finished;
    if (status == CN_OK) {
        if (!job->replays) begin_second(run, job);
    } else if (status == CN_ERR_ARG && !job->replays) {
        job->looped = false;
        settle(run, job);
    } else {
        run->n_put_back += !job->replays;
        begin_drain(run, true, "line %llu: %s", (unsigned long long)job->item.line,
                    cn_last_error());
        free_job(job);
    }
    return true;
}

/* ---- reading ---- */

/* Tells the item by its id: *skip when the output has its line. CN_ERR_ARG: the line is at fault,
 * and *code may say in which way. */
static cn_status identify(cn_batch_run *run, cn_batch_item *item, const cn_line *line,
                          const cn_batch_format *format, bool *skip, const char **code)
{
    cn_status status = cn_batch_item_identify(item, line, format);
    if (status != CN_OK && status != CN_ERR_ARG) return status;
    if (item->custom_id && cn_id_set_marks(&run->ids, item->id) & CN_ID_SEEN) {
        status = cn_fail(CN_ERR_ARG, "custom_id \"%s\" stands in an earlier line: each has its own",
                         item->custom_id);
        *code = "duplicate_custom_id";
        cn_batch_item_use_line_id(item, line);
    }
    *skip = cn_id_set_marks(&run->ids, item->id) & CN_ID_DONE;
    CN_TRY(cn_id_set_add(&run->ids, item->id, CN_ID_SEEN));
    return status;
}

/* Makes the item's request and the place for its result. */
static cn_status prepare(cn_batch_run *run, cn_batch_job *job, const cn_batch_format *format)
{
    cn_api_defaults defaults;
    cn_engine_default_sampling(run->engine, &defaults.sampling);
    cn_engine_default_kv(run->engine, &defaults.kv);
    CN_TRY(cn_batch_item_read(&job->item, format, &defaults));
    job->audited = cn_audit_picks(run->config->audit_percent, run->config->seed, &job->item.id,
                                  sizeof job->item.id);
    return cn_api_result_create(&job->result, &job->item.request, token_bytes, run->engine);
}

static void take_line(cn_batch_run *run, const cn_line *line)
{
    const cn_config *c = run->config;
    const cn_batch_format format = {c->prompt_field, c->id_field, c->answer_field};
    cn_batch_job *job = cn_calloc(1, sizeof *job);
    if (!job) {
        begin_drain(run, true, "out of memory for a request");
        return;
    }
    job->run = run;
    bool skip = false;
    const char *code = NULL;
    cn_status status = identify(run, &job->item, line, &format, &skip, &code);
    if (skip && (status == CN_OK || status == CN_ERR_ARG)) {
        run->n_skipped++;
        free_job(job);
        return;
    }
    if (status == CN_OK) status = prepare(run, job, &format);
    if (status == CN_OK) {
        submit(run, job);
        return;
    }
    if (status == CN_ERR_ARG)
        reject(run, &job->item, HTTP_BAD_REQUEST, cn_last_error(), code);
    else
        begin_drain(run, true, "line %llu: %s", (unsigned long long)line->number, cn_last_error());
    free_job(job);
}

/* Reads and submits while there is room and something to read. Waits for a pipe only when the
 * engine has nothing to do. */
static void admit(cn_batch_run *run)
{
    while (run->again)
        if (!submit_again(run)) return;
    if (run->waiting) {
        cn_batch_job *job = run->waiting;
        run->waiting = NULL;
        submit(run, job);
        if (run->waiting) return;
    }
    const int signals = *run->n_signals;
    while (run->state == CN_BATCH_RUNNING && !run->input_ended && !run->waiting &&
           *run->n_signals == signals && run->n_inflight < run->config->max_inflight) {
        cn_line line;
        cn_line_state state;
        const int wait_ms = run->n_inflight ? 0 : IDLE_WAIT_MS;
        if (cn_line_reader_next(run->input, wait_ms, &line, &state) != CN_OK) {
            begin_drain(run, true, "%s", cn_last_error());
            return;
        }
        if (state == CN_LINE_END) run->input_ended = true;
        if (state != CN_LINE_READY) return;
        run->n_read++;
        take_line(run, &line);
    }
}

/* ---- the loop ---- */

int64_t cn_next_time_of_day(int32_t minutes, int64_t now)
{
    time_t t = (time_t)now;
    struct tm local;
    localtime_r(&t, &local);
    local.tm_hour = minutes / 60;
    local.tm_min = minutes % 60;
    local.tm_sec = 0;
    local.tm_isdst = -1;
    struct tm today = local;
    if ((int64_t)mktime(&today) > now) return (int64_t)mktime(&local);
    local.tm_mday++;
    return (int64_t)mktime(&local);
}

static void heed_wishes(cn_batch_run *run)
{
    const int signals = *run->n_signals;
    if (signals > 0 && run->state == CN_BATCH_RUNNING) {
        begin_drain(run, false, "interrupted");
        cn_log(CN_LOG_INFO, "finishing the requests that run; interrupt again to stop at once");
    }
    if (signals > 1) stop(run, false, "interrupted twice");
    if (run->until && (int64_t)time(NULL) >= run->until)
        begin_drain(run, false, "the time of --until has come");
}

static void show_progress(cn_batch_run *run)
{
    if (!cn_progress_is_due(&run->progress)) return;
    cn_progress_figures g = {
        .read = run->n_read,
        .done = run->n_skipped + run->n_answered + run->n_errors,
        .errors = run->totals.errors,
        .answered_now = run->n_answered,
        .input_bytes = cn_line_reader_bytes_done(run->input),
        .input_bytes_total = cn_line_reader_bytes_total(run->input),
        .input_ended = run->input_ended,
    };
    cn_engine_stats(run->engine, &g.stats);
    cn_progress_show(&run->progress, &g);
}

void cn_batch_run_all(cn_batch_run *run)
{
    for (;;) {
        heed_wishes(run);
        if (run->state == CN_BATCH_RUNNING) admit(run);
        if (run->state == CN_BATCH_STOPPED) break;
        if (run->n_inflight > 0) {
            bool idle;
            if (cn_engine_step(run->engine, &idle) != CN_OK) stop(run, true, cn_last_error());
            settle_finished(run);
        } else if ((run->input_ended && !run->again) || run->state != CN_BATCH_RUNNING) {
            CN_ASSERT(!run->waiting && !run->again);
            break;
        }
        show_progress(run);
    }
    cn_progress_end(&run->progress);
}

void cn_batch_run_end(cn_batch_run *run)
{
    while (run->inflight) {
        cn_batch_job *job = run->inflight;
        unlink_job(run, job);
        free_job(job);
    }
    if (run->waiting) free_job(run->waiting);
    run->waiting = NULL;
    cn_buf_free(&run->line);
    cn_id_set_free(&run->ids);
}
