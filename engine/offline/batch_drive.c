/* batch_drive.c - see batch_drive.h. */
#include "engine/offline/batch_drive.h"

#include <time.h>

enum { IDLE_WAIT_MS = 200, MAX_ERRORS_SHOWN = 10 /* the output has all of them */ };

/* ---- the port to the engine ---- */

static cn_status submit_to_engine(void *drive, cn_batch_job *job)
{
    cn_batch_drive *d = drive;
    if (!job->result)
        CN_TRY(cn_api_result_create(&job->result, &job->item.request,
                                    cn_engine_token_bytes, d->engine));
    job->n_left = job->attempt.n_prompts;
    return cn_api_request_submit(&job->attempt, d->engine, cn_batch_job_event, job, &job->request);
}

static void cancel(void *drive, cn_batch_job *job)
{
    for (uint32_t i = 0; i < job->attempt.n_prompts; i++)
        cn_engine_cancel(((cn_batch_drive *)drive)->engine, job->request + i);
}

static uint64_t n_tokens(void *drive, cn_batch_job *job)
{
    (void)drive;
    return cn_api_result_n_tokens(job->result);
}

static bool interrupted(void *drive)
{
    const cn_batch_drive *d = drive;
    return *d->stop_asked && !d->stop_seen;
}

static void show_fault(void *drive, const cn_batch_run *run, uint64_t line, const char *message)
{
    (void)drive;
    if (run->n_errors > MAX_ERRORS_SHOWN) return;
    if (run->n_errors < MAX_ERRORS_SHOWN)
        cn_log(CN_LOG_WARN, "line %llu: %s", (unsigned long long)line, message);
    else
        cn_log(CN_LOG_WARN, "further error lines are only in the output");
}

static void open_port(cn_batch_drive *d, const cn_config *c)
{
    d->port = (cn_batch_port){.user = d,
                              .submit = submit_to_engine,
                              .cancel = cancel,
                              .n_tokens = n_tokens,
                              .interrupted = interrupted,
                              .fault = show_fault};
    cn_engine_default_sampling(d->engine, &d->port.defaults.sampling);
    cn_engine_default_kv(d->engine, &d->port.defaults.kv);
    d->port.defaults.config = c;
    d->port.defaults.tool_parser = c->tool_call_parser;
    d->port.defaults.cap_max_tokens = c->cap_max_tokens;
    d->port.defaults.json_whitespace = c->json_whitespace;
    d->port.defaults.unknown = &d->unknown;
    d->port.model = d->names.names[0];
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

/* Drains the run after a signal and from the time of --until on. */
static void check_stop_requests(cn_batch_drive *d, cn_batch_run *run)
{
    d->stop_seen = *d->stop_asked;
    if (d->stop_seen && run->state == CN_BATCH_RUNNING) {
        cn_batch_run_drain(run, false, "interrupted");
        cn_log(CN_LOG_INFO, "finishing the running requests; interrupt again to stop immediately");
    }
    if (d->until && (int64_t)time(NULL) >= d->until)
        cn_batch_run_drain(run, false, "the time of --until is reached");
}

/* Stops a run that drains for longer than --drain-timeout. */
static void check_drain(cn_batch_drive *d, cn_batch_run *run)
{
    char why[CN_BATCH_WHY_BYTES + 128];
    if (d->drain_timeout_s == 0 || run->state != CN_BATCH_DRAINING) return;
    const double now_s = cn_now_s();
    if (d->drain_ends_s == 0) d->drain_ends_s = now_s + d->drain_timeout_s;
    if (now_s < d->drain_ends_s || run->inflight.n == 0) return;
    snprintf(why, sizeof why, "%s, and %llu requests did not finish within --drain-timeout %u",
             run->why, (unsigned long long)run->inflight.n, d->drain_timeout_s);
    cn_batch_run_stop(run, run->failed, why);
}

static void show_progress(cn_batch_drive *d, const cn_batch_run *run)
{
    if (!cn_progress_is_due(&d->progress)) return;
    const cn_batch_work work = cn_batch_run_work(run, 0, cn_engine_max_model_len(d->engine), 0);
    if (work.most_tokens > d->most_tokens) d->most_tokens = work.most_tokens;
    cn_progress_figures g = {
        .read = run->n_read,
        .done = run->n_skipped + run->n_answered + run->n_errors,
        .errors = run->totals.errors,
        .answered_now = run->n_answered,
        .input_bytes = cn_line_reader_bytes_done(run->input),
        .input_bytes_total = cn_line_reader_bytes_total(run->input),
        .input_ended = run->input_ended,
        .tokens_earlier = d->tokens_earlier,
        .most_tokens = d->most_tokens,
        .running_tokens = work.running_tokens,
    };
    cn_engine_stats(d->engine, &g.stats);
    cn_progress_show(&d->progress, &g);
}

void cn_batch_drive_all(cn_batch_drive *d, cn_batch_run *run)
{
    cn_api_unknown_init(&d->unknown, run->config->unknown_fields == CN_OPT_UNKNOWN_REFUSE);
    if (cn_served_names_make(&d->names, run->config) != CN_OK)
        cn_batch_run_stop(run, true, cn_last_error());
    open_port(d, run->config);
    run->port = &d->port;
    run->max_inflight = run->config->max_inflight;
    d->tokens_earlier = run->totals.completion_tokens;
    for (;;) {
        check_stop_requests(d, run);
        check_drain(d, run);
        cn_batch_run_admit(run, IDLE_WAIT_MS);
        if (run->state == CN_BATCH_STOPPED || cn_batch_run_is_over(run)) break;
        if (run->inflight.n > 0) {
            bool idle;
            if (cn_engine_step(d->engine, &idle) != CN_OK)
                cn_batch_run_stop(run, true, cn_last_error());
            cn_batch_run_settle(run);
        }
        show_progress(d, run);
    }
    cn_batch_run_look_for_rest(run);
    cn_api_unknown_destroy(&d->unknown);
    cn_served_names_free(&d->names);
    cn_progress_end(&d->progress);
}
