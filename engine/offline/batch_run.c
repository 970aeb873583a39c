/* batch_run.c - see batch_run.h. */
#include "engine/offline/batch_run.h"

#include <stdarg.h>
#include <time.h>

#include "engine/api/http_status.h"
#include "engine/base/json.h"
#include "engine/offline/batch_job.h"
#include "engine/offline/batch_line.h"
#include "engine/offline/grade.h"

/* ---- jobs ---- */

/* Removes and returns the first job; NULL if there is none. */
static cn_batch_job *pop(cn_list *jobs)
{
    return CN_CONTAINER_OF(cn_list_pop(jobs), cn_batch_job, node);
}

static const char *error_of(const cn_batch_job *job)
{
    return job->error.len ? job->error.data : cn_status_name(job->status);
}

static void note_refusal(cn_batch_run *run, const char *why)
{
    run->refused = true;
    snprintf(run->refusal, sizeof run->refusal, "%s", why);
}

/* ---- stopping ---- */

/* Drops the jobs that wait for a second submission. A rescue is put back; a replay has its line
 * already. */
static void drop_again(cn_batch_run *run)
{
    for (cn_batch_job *job; (job = pop(&run->again));) {
        run->n_put_back += !job->replays;
        cn_batch_job_free(job);
    }
}

void cn_batch_run_drain(cn_batch_run *run, bool failed, const char *fmt, ...)
{
    if (run->state != CN_BATCH_RUNNING) return;
    run->state = CN_BATCH_DRAINING;
    run->failed = failed;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(run->why, sizeof run->why, fmt, ap);
    va_end(ap);
    if (run->waiting) {
        cn_batch_job_free(run->waiting);
        run->waiting = NULL;
        run->n_put_back++;
    }
    drop_again(run);
    const cn_batch_port *port = run->port;
    CN_LIST_EACH(cn_batch_job, job, &run->inflight, node) {
        if (job->replays || port->n_tokens(port->user, job) == 0) port->cancel(port->user, job);
    }
}

/* Keeps the waiting job for cn_batch_run_end, because a call of submit may still use its
 * request. */
void cn_batch_run_stop(cn_batch_run *run, bool failed, const char *why)
{
    if (run->state == CN_BATCH_STOPPED) return;
    run->state = CN_BATCH_STOPPED;
    run->paused = false;
    run->failed = failed;
    drop_again(run);
    snprintf(run->why, sizeof run->why, "%s", why);
}

/* ---- writing ---- */

enum { MAX_KEPT_LINE_BYTES = 1 << 20 }; /* capacity of the scratch line between two lines */

/* Stops the run, or pauses it if `pauses` is set, because a line could not be written. */
static void handle_write_failure(cn_batch_run *run)
{
    if (!run->pauses) {
        cn_batch_run_stop(run, true, cn_last_error());
        return;
    }
    run->paused = true;
    snprintf(run->why, sizeof run->why, "%s", cn_last_error());
}

/* Writes run->line if status is OK. On a failure, stops or pauses the run and returns false. */
static bool put_line(cn_batch_run *run, cn_batch_output *to, cn_status status,
                     const cn_batch_notes *notes)
{
    if (status == CN_OK) status = cn_batch_output_append(to, run->line.data, run->line.len);
    if (run->line.cap > MAX_KEPT_LINE_BYTES) cn_buf_free(&run->line);
    if (status != CN_OK) {
        handle_write_failure(run);
        return false;
    }
    if (!notes->reference) return true;
    run->totals.graded += notes->of;
    run->totals.matched += notes->matched;
    return true;
}

/* Fails the run because its first lines all failed for one reason. Removes their lines. */
static void fail_for_one_reason(cn_batch_run *run)
{
    run->first.watching = false;
    cn_batch_run_drain(run, true, "the first %d lines all fail for one reason: %s",
                       (int)CN_FIRST_LINES, run->first.cause);
    if (cn_batch_output_is_file(run->output) && cn_batch_output_empty(run->output) != CN_OK) {
        handle_write_failure(run);
        return;
    }
    run->n_errors = run->totals.errors = 0;
    run->totals.graded = run->totals.matched = 0;
}

static bool has_first_line(const cn_list *jobs)
{
    CN_LIST_EACH(cn_batch_job, job, jobs, node) {
        if (job->item.line <= CN_FIRST_LINES) return true;
    }
    return false;
}

/* One of the first lines may still succeed, or has, and is not written yet. */
static bool has_open_first_line(const cn_batch_run *run)
{
    return has_first_line(&run->inflight) || has_first_line(&run->finished) ||
           has_first_line(&run->again);
}

cn_status cn_batch_run_number(cn_batch_run *run, uint64_t *number)
{
    while (run->number == 0) CN_TRY(cn_random_bytes(&run->number, sizeof run->number));
    *number = run->number;
    return CN_OK;
}

/* Gives a line that has to be named its number in the input: a part by bytes numbers its own
 * lines. */
static uint64_t number_of(cn_batch_job *job)
{
    uint64_t before = 0;
    if (job->numbered) return job->item.line;
    if (cn_line_reader_lines_before(job->run->input, &before) != CN_OK)
        cn_log(CN_LOG_WARN, "%s: lines are numbered from the beginning of the shard",
               cn_last_error());
    job->numbered = true;
    return job->item.line += before;
}

/* Writes an error line; under --strict drains the run instead. False: the run is paused, try again
 * later. */
static bool reject(cn_batch_run *run, cn_batch_job *job, int http_status, const char *message)
{
    const cn_batch_item *item = &job->item;
    if (run->state == CN_BATCH_STOPPED) return true;
    const unsigned long long line = number_of(job);
    if (run->config->strict) {
        cn_batch_run_drain(run, true, "line %llu: %s", line, message);
        return true;
    }
    json_t *body = cn_api_error_body(http_status, message, job->at_fault.data, job->code, line);
    cn_batch_notes notes = {
        .request_hash = item->request_hash, .reference = item->reference, .of = 1};
    cn_status status = cn_batch_run_number(run, &notes.run);
    run->port->fault(run->port->user, run, line, message);
    cn_batch_output *to = run->errors ? run->errors : run->output;
    cn_buf_clear(&run->line);
    if (status == CN_OK)
        status = cn_batch_line_format(&run->line, item->id, item->custom_id, http_status, body,
                                      &notes);
    else
        json_decref(body);
    if (!put_line(run, to, status, &notes)) return !run->paused;
    run->n_errors++;
    run->totals.errors++;
    const cn_batch_format format = cn_batch_run_format(run);
    if (cn_first_lines_failed(&run->first, item, &format, job->at_fault.data, message) &&
        !has_open_first_line(run))
        fail_for_one_reason(run);
    return true;
}

static uint32_t count_matches(const cn_batch_run *run, const cn_batch_job *job)
{
    uint32_t matched = 0;
    for (uint32_t i = 0; job->item.reference && i < cn_api_result_n_choices(job->result); i++) {
        size_t n;
        const char *answer = cn_api_result_answer(job->result, i, &n);
        matched += cn_grade(run->config->grade, answer, n, job->item.reference);
    }
    return matched;
}

/* Makes run->line from the result of a job. */
static cn_status format_answer(cn_batch_run *run, const cn_batch_job *job, cn_batch_notes *notes)
{
    char id[CN_ANSWER_ID_BYTES];
    bool done;
    CN_TRY(cn_batch_run_number(run, &notes->run));
    cn_batch_answer_id(job->item.id, notes->run, id);
    cn_api_writer w = {.id = id,
                       .model = run->port->model,
                       .created = (int64_t)time(NULL),
                       .digits = CN_LINE_DIGITS};
    cn_buf_clear(&run->line);
    CN_TRY(cn_batch_line_begin(&run->line, job->item.id, job->item.custom_id, CN_HTTP_OK, notes));
    CN_TRY(cn_api_result_write(job->result, &w, &run->line, SIZE_MAX, &done));
    return cn_batch_line_end(&run->line, notes);
}

/* Writes the line of an answered job. False: the run is paused, try again later. */
static bool answer(cn_batch_run *run, const cn_batch_job *job)
{
    cn_usage u, first = {0};
    cn_api_result_usage(job->result, &u);
    if (job->unrescued) cn_api_result_usage(job->unrescued, &first);
    cn_batch_notes notes = {.request_hash = job->item.request_hash,
                            .reference = job->item.reference,
                            .matched = count_matches(run, job),
                            .of = cn_api_result_n_choices(job->result),
                            .rescued_by = job->rescued_by,
                            .first = &first};
    if (!put_line(run, run->output, format_answer(run, job, &notes), &notes)) return !run->paused;
    run->n_warned += cn_api_result_has_warnings(job->result);
    run->n_rescued += job->rescued_by != NULL;
    run->n_answered++;
    run->totals.answered++;
    run->totals.prompt_tokens += u.prompt_tokens;
    run->totals.cached_tokens += u.cached_tokens;
    run->totals.completion_tokens += u.completion_tokens;
    run->totals.reasoning_tokens += u.reasoning_tokens;
    cn_lengths_add(&run->totals.lengths, u.completion_tokens);
    return true;
}

/* ---- submitting ---- */

enum { RESCUE_BUDGET_FACTOR = 4 };

static void enlarge(const cn_config *c, cn_kv_params *kv)
{
    if (c->loop_rescue == CN_OPT_RESCUE_FULL) {
        cn_kv_keep_all(kv);
    } else if (__builtin_mul_overflow(kv->budget_tokens, RESCUE_BUDGET_FACTOR,
                                      &kv->budget_tokens)) {
        kv->budget_tokens = UINT32_MAX;
    }
}

/* True if a loop of this job would lead to a second attempt. */
static bool may_be_rescued(const cn_batch_run *run, const cn_batch_job *job)
{
    return run->config->loop_rescue != CN_OPT_RESCUE_OFF && !job->rescued_by &&
           job->item.request.n_prompts == 1 &&
           job->item.request.params.kv.policy != CN_KV_FULL;
}

/* Submits the job's next request to the engine. */
static cn_status submit_request(cn_batch_run *run, cn_batch_job *job)
{
    job->attempt = job->item.request;
    job->status = CN_OK;
    cn_request_params *p = &job->attempt.params;
    if (job->replays) {
        cn_audit_params(p, &job->said);
    } else {
        if (job->unrescued) enlarge(run->config, &p->kv);
        if (job->audited && p->sampling.logprobs < CN_AUDIT_LOGPROBS)
            p->sampling.logprobs = CN_AUDIT_LOGPROBS;
    }
    CN_TRY(run->port->submit(run->port->user, job));
    if (!run->port->shared) run->first.watching = false; /* the engine has checked the request */
    cn_list_append(&run->inflight, &job->node);
    if (!run->port->borrows && !job->audited && !may_be_rescued(run, job))
        cn_batch_item_drop_request(&job->item);
    return CN_OK;
}

/* True if a BUSY engine will get room: this run has jobs in flight, or others use the engine
 * too. */
static bool is_worth_waiting(const cn_batch_run *run)
{
    return run->inflight.n > 0 || run->port->shared;
}

static void conclude(cn_batch_run *run, cn_batch_job *job);

/* Submits the job, keeps it as waiting, or ends it: with an error line, or by draining the run. */
static void submit_line(cn_batch_run *run, cn_batch_job *job)
{
    cn_status status = submit_request(run, job);
    if (status == CN_OK) return;
    if (status == CN_ERR_BUSY && is_worth_waiting(run)) {
        run->waiting = job;
        note_refusal(run, cn_last_error());
        return;
    }
    if (status == CN_ERR_ARG) {
        cn_batch_job_fail(job, status, NULL);
        conclude(run, job);
        return;
    }
    cn_batch_run_drain(run, true, "line %llu: %s", (unsigned long long)number_of(job),
                       cn_last_error());
    cn_batch_job_free(job);
}

/* ---- the end of a line ---- */

/* Queues a job that looped for its rescue. Keeps only the usage of the output that looped. */
static void begin_rescue(cn_batch_run *run, cn_batch_job *job)
{
    job->unrescued = job->result;
    job->result = NULL;
    job->looped = false;
    job->rescued_by = run->config->loop_rescue == CN_OPT_RESCUE_FULL ? "full" : "budget";
    cn_transcript_free(&job->said);
    cn_list_prepend(&run->again, &job->node);
}

/* The engine cannot run the rescue, so the answer is the output that looped. */
static void keep_unrescued(cn_batch_job *job)
{
    cn_api_result_free(job->result);
    job->result = job->unrescued;
    job->unrescued = NULL;
    job->rescued_by = NULL;
    job->status = CN_OK;
}

/* The HTTP status of a job that has no answer. */
static int refusal_of(const cn_batch_job *job)
{
    if (job->code && strcmp(job->code, CN_BATCH_ENGINE_FAILED) == 0)
        return CN_HTTP_INTERNAL_ERROR;
    const bool no_model = job->code && strcmp(job->code, CN_API_MODEL_NOT_FOUND) == 0;
    return no_model ? CN_HTTP_NOT_FOUND : CN_HTTP_BAD_REQUEST;
}

static bool settle(cn_batch_run *run, cn_batch_job *job);

/* Settles a job without a result. */
static bool settle_failure(cn_batch_run *run, cn_batch_job *job)
{
    if (job->status == CN_ERR_BUSY && run->state == CN_BATCH_RUNNING) {
        note_refusal(run, error_of(job));
        cn_list_prepend(&run->again, &job->node);
        return true;
    }
    if (job->status == CN_ERR_ARG && job->unrescued) {
        keep_unrescued(job);
        return settle(run, job);
    }
    if (job->status == CN_ERR_ARG && !job->replays) {
        if (!reject(run, job, refusal_of(job), error_of(job))) return false;
    } else {
        run->n_put_back += !job->replays;
        if (job->status != CN_ERR_CANCELLED && job->status != CN_ERR_BUSY)
            cn_batch_run_drain(run, true, "line %llu: %s", (unsigned long long)number_of(job),
                               error_of(job));
    }
    cn_batch_job_free(job);
    return true;
}

/* Settles a returned job: writes its line, puts it back, or queues it again. Frees the job unless
 * it is queued. False: the run is paused and the job is unchanged. */
static bool settle(cn_batch_run *run, cn_batch_job *job)
{
    const bool running = run->state == CN_BATCH_RUNNING;
    const bool stopped = run->state == CN_BATCH_STOPPED;
    if (job->status != CN_OK && !stopped) return settle_failure(run, job);
    run->first.watching = false;
    const bool lost = stopped || (!job->replays && cn_api_result_was_cancelled(job->result));
    const bool to_rescue = !lost && job->looped && may_be_rescued(run, job);
    if (job->replays) {
        /* Its line is written already. */
    } else if (lost) {
        run->n_put_back++;
    } else if (cn_api_result_error(job->result)) {
        const bool invalid = cn_api_result_fail(job->result) == CN_ERR_ARG;
        cn_api_note_param(&job->item.request, &job->at_fault);
        if (!reject(run, job, invalid ? CN_HTTP_BAD_REQUEST : CN_HTTP_INTERNAL_ERROR,
                    cn_api_result_error(job->result)))
            return false;
    } else if (to_rescue && !running) {
        run->n_put_back++;
    } else if (to_rescue) {
        begin_rescue(run, job);
        return true;
    } else {
        if (!answer(run, job)) return false;
        if (job->audited && running && run->state == CN_BATCH_RUNNING) {
            job->replays = true;
            cn_list_prepend(&run->again, &job->node);
            return true;
        }
    }
    cn_batch_job_free(job);
    return true;
}

void cn_batch_run_settle(cn_batch_run *run)
{
    while (run->finished.n > 0 && !run->paused) {
        cn_batch_job *job = pop(&run->finished);
        if (!settle(run, job)) cn_list_prepend(&run->finished, &job->node);
    }
}

/* Settles a job that was not in flight. */
static void conclude(cn_batch_run *run, cn_batch_job *job)
{
    if (!settle(run, job)) cn_list_append(&run->finished, &job->node);
}

void cn_batch_run_retry(cn_batch_run *run)
{
    if (!run->paused) return;
    run->paused = false;
    run->why[0] = '\0';
    cn_batch_run_settle(run);
}

/* Submits the first job of `again`; false if it has to wait. */
static bool submit_again(cn_batch_run *run)
{
    cn_batch_job *job = pop(&run->again);
    cn_status status = submit_request(run, job);
    if (status == CN_ERR_BUSY && is_worth_waiting(run)) {
        cn_list_prepend(&run->again, &job->node);
        note_refusal(run, cn_last_error());
        return false;
    }
    if (status == CN_OK) return true;
    if (job->unrescued && (status == CN_ERR_ARG || status == CN_ERR_MEMORY)) {
        keep_unrescued(job);
        conclude(run, job);
    } else if (status == CN_ERR_ARG && !job->replays) {
        cn_batch_job_fail(job, status, NULL);
        conclude(run, job);
    } else {
        run->n_put_back += !job->replays;
        cn_batch_run_drain(run, true, "line %llu: %s", (unsigned long long)number_of(job),
                           cn_last_error());
        cn_batch_job_free(job);
    }
    return true;
}

/* ---- reading ---- */

/* Counts a finished line whose request differs from the one that its output line answers. */
static cn_status count_change(cn_batch_run *run, const cn_batch_item *item)
{
    enum { CHANGED_SHOWN = 3, ID_SHOWN_BYTES = 80 };
    char shown[ID_SHOWN_BYTES];
    const uint64_t then = cn_id_set_hash(&run->ids, item->id);
    const uint64_t now = item->request_hash;
    if (then == 0 || now == 0 || now == then || !item->custom_id) return CN_OK;
    run->n_changed++;
    if (run->n_changed > CHANGED_SHOWN + 1) return CN_OK;
    if (run->n_changed > CHANGED_SHOWN) return cn_buf_addf(&run->changed, ", ...");
    return cn_buf_addf(&run->changed, "%s%s", run->changed.len ? ", " : "",
                       cn_json_printable(item->custom_id, shown, sizeof shown));
}

/* Identifies the item by its custom_id, or by its number in the input. */
static cn_status identify_line(cn_batch_job *job, cn_line *line, const cn_batch_format *format)
{
    uint64_t before = 0;
    cn_batch_item *item = &job->item;
    const bool by_number = format->prompt_field && !format->id_field;
    if (by_number) CN_TRY(cn_line_reader_lines_before(job->run->input, &before));
    line->number += before;
    job->numbered = by_number;
    const cn_status status = cn_batch_item_identify(item, line, format);
    if (status != CN_ERR_ARG || item->custom_id || by_number) return status;
    line->number = number_of(job);
    cn_batch_item_use_line_id(item, line);
    return status;
}

/* Identifies the item. *skip: the output has its line. CN_ERR_ARG: the line is invalid; *code may
 * hold the code of the error. */
static cn_status identify(cn_batch_job *job, cn_line *line, const cn_batch_format *format,
                          bool *skip, const char **code)
{
    cn_batch_run *run = job->run;
    cn_batch_item *item = &job->item;
    cn_status status = identify_line(job, line, format);
    if (status != CN_OK && status != CN_ERR_ARG) return status;
    if (item->custom_id && cn_id_set_marks(&run->ids, item->id) & CN_ID_SEEN) {
        status = cn_fail(CN_ERR_ARG,
                         CN_BATCH_DUPLICATE_TEXT, item->custom_id);
        *code = CN_BATCH_DUPLICATE;
        line->number = number_of(job);
        cn_batch_item_use_line_id(item, line);
    }
    *skip = cn_id_set_marks(&run->ids, item->id) & CN_ID_DONE;
    if (*skip) CN_TRY(count_change(run, item));
    CN_TRY(cn_id_set_add(&run->ids, item->id, CN_ID_SEEN));
    return status;
}

static cn_status check_line_model(const cn_batch_run *run, const cn_batch_item *item,
                                  const char **code)
{
    if (!run->port->names) return CN_OK;
    const json_t *body = json_object_get(item->object, "body");
    cn_status status = cn_api_model_check(run->port->names, json_object_get(body, "model"));
    if (status == CN_ERR_ARG) *code = CN_API_MODEL_NOT_FOUND;
    return status;
}

/* Parses the item's request and decides whether it is audited. CN_ERR_ARG as in identify(). */
static cn_status prepare(cn_batch_run *run, cn_batch_job *job, const char **code)
{
    CN_TRY(check_line_model(run, &job->item, code));
    return cn_batch_job_prepare(job);
}

static void take_line(cn_batch_run *run, cn_line *line)
{
    const cn_batch_format format = cn_batch_run_format(run);
    cn_batch_job *job = cn_calloc(1, sizeof *job);
    if (!job) {
        cn_batch_run_drain(run, true, "out of memory for a request");
        return;
    }
    job->run = run;
    bool skip = false;
    const char *code = NULL;
    cn_status status = identify(job, line, &format, &skip, &code);
    job->held_bytes = line->n;
    if (job->item.object) job->held_bytes += cn_json_measure_tree(job->item.object).bytes;
    run->held_bytes += job->held_bytes;
    if (skip && (status == CN_OK || status == CN_ERR_ARG)) {
        run->n_skipped++;
        cn_batch_job_free(job);
        return;
    }
    if (run->first.watching && run->n_read == 1 &&
        cn_first_line_check(&job->item, &format) != CN_OK) {
        cn_batch_run_drain(run, true, "%s", cn_last_error());
        cn_batch_job_free(job);
        return;
    }
    if (status == CN_OK && run->port->loses) status = cn_buf_add(&job->text, line->text, line->n);
    if (status == CN_OK) status = prepare(run, job, &code);
    if (status == CN_OK) {
        submit_line(run, job);
        return;
    }
    if (status == CN_ERR_ARG) {
        cn_batch_job_fail(job, status, code);
        conclude(run, job);
        return;
    }
    cn_batch_run_drain(run, true, "line %llu: %s", (unsigned long long)number_of(job),
                       cn_last_error());
    cn_batch_job_free(job);
}

bool cn_batch_run_has_room(const cn_batch_run *run)
{
    return run->inflight.n < run->max_inflight &&
           (run->max_held_bytes == 0 || run->held_bytes < run->max_held_bytes);
}

void cn_batch_run_admit(cn_batch_run *run, int wait_ms)
{
    const cn_batch_port *port = run->port;
    if (run->state != CN_BATCH_RUNNING || run->paused) return;
    run->refused = false;
    while (run->again.n > 0 && !run->paused)
        if (!submit_again(run)) return;
    if (run->waiting && !run->paused) {
        cn_batch_job *job = run->waiting;
        run->waiting = NULL;
        submit_line(run, job);
    }
    while (run->state == CN_BATCH_RUNNING && !run->paused && !run->input_ended && !run->waiting &&
           !port->interrupted(port->user) && cn_batch_run_has_room(run)) {
        cn_line line;
        cn_line_state state;
        if (cn_line_reader_next(run->input, run->inflight.n ? 0 : wait_ms, &line, &state) !=
            CN_OK) {
            cn_batch_run_drain(run, true, "%s", cn_last_error());
            return;
        }
        if (state == CN_LINE_END) run->input_ended = true;
        if (state != CN_LINE_READY) return;
        run->n_read++;
        take_line(run, &line);
    }
}

/* ---- tokens ---- */

/* Most output tokens of a job: max_tokens of each sample, or else the context. */
static uint64_t most_tokens(const cn_batch_job *job, uint32_t context)
{
    const cn_sampling *s = &job->attempt.params.sampling;
    const uint64_t each = s->max_tokens ? cn_min_u32(s->max_tokens, context) : context;
    return each * (s->n ? s->n : 1);
}

cn_batch_work cn_batch_run_work(const cn_batch_run *run, uint64_t unread, uint32_t context,
                                double most_kv)
{
    const cn_batch_port *port = run->port;
    const cn_batch_totals *t = &run->totals;
    uint64_t most = 0;
    cn_unfinished u = {.unread = unread + run->again.n + (run->waiting != NULL),
                       .limit = context,
                       .prompt = t->answered ? (double)t->prompt_tokens / (double)t->answered : 0,
                       .most_kv = most_kv};
    CN_LIST_EACH(cn_batch_job, job, &run->inflight, node) {
        if (job->replays) continue;
        cn_lengths_add(&u.running, port->n_tokens(port->user, job));
        const uint64_t limit = most_tokens(job, context);
        u.limit_sum += limit;
        if (limit > most) most = limit;
    }
    const uint64_t running = u.running.count - u.running.n[0];
    const cn_to_come to_come = cn_tokens_to_come(&t->lengths, &u);
    return (cn_batch_work){.tokens = t->completion_tokens + u.running.sum,
                           .begun = t->answered + running,
                           .running = running,
                           .running_tokens = u.running.sum,
                           .most_tokens = most,
                           .to_begin = u.unread + u.running.n[0],
                           .kv = cn_kv_now(&u),
                           .to_come = to_come.tokens,
                           .kv_to_come = to_come.kv,
                           .steps = cn_steps_to_come(&t->lengths, &u),
                           .at_most = t->lengths.count == 0};
}

/* ---- the end ---- */

bool cn_batch_run_is_over(const cn_batch_run *run)
{
    if (run->inflight.n + run->finished.n > 0) return false;
    const bool all_read = run->input_ended && run->again.n == 0 && !run->waiting;
    return all_read || run->state != CN_BATCH_RUNNING;
}

void cn_batch_run_look_for_rest(cn_batch_run *run)
{
    cn_line line;
    cn_line_state state;
    if (run->state != CN_BATCH_DRAINING || run->failed || run->input_ended) return;
    if (cn_line_reader_next(run->input, 0, &line, &state) == CN_OK)
        run->input_ended = state == CN_LINE_END;
}

bool cn_batch_run_is_complete(const cn_batch_run *run)
{
    return run->input_ended && run->n_put_back == 0 && run->again.n == 0 &&
           run->state != CN_BATCH_STOPPED && !run->failed;
}

static void free_all(cn_list *jobs)
{
    for (cn_batch_job *job; (job = pop(jobs));) cn_batch_job_free(job);
}

void cn_batch_run_end(cn_batch_run *run)
{
    free_all(&run->inflight);
    free_all(&run->finished);
    free_all(&run->again);
    if (run->waiting) cn_batch_job_free(run->waiting);
    run->waiting = NULL;
    cn_buf_free(&run->line);
    cn_buf_free(&run->changed);
    cn_id_set_free(&run->ids);
}
