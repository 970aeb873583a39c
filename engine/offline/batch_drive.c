/* batch_drive.c - see batch_drive.h. */
#include "engine/offline/batch_drive.h"

#include <time.h>

enum {
    IDLE_WAIT_MS = 200,
    READ_WAIT_MS = 20,
    READ_AHEAD = 1024,    /* lines */
    MAX_ERRORS_SHOWN = 10 /* the output has all of them */
};

/* ---- the port to the engines ---- */

static cn_status submit(void *drive, cn_batch_job *job)
{
    return cn_lanes_submit(((cn_batch_drive *)drive)->lanes, job);
}

static void cancel(void *drive, cn_batch_job *job)
{
    cn_lanes_cancel(((cn_batch_drive *)drive)->lanes, job);
}

static uint64_t n_job_tokens(void *drive, cn_batch_job *job)
{
    (void)drive;
    return cn_lanes_n_tokens(job);
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
    const cn_engine *engine = cn_lanes_engine(d->lanes, 0);
    const bool several = cn_lanes_n(d->lanes) > 1;
    d->port = (cn_batch_port){.user = d,
                              .shared = several,
                              .borrows = several,
                              .loses = several,
                              .submit = submit,
                              .cancel = cancel,
                              .n_tokens = n_job_tokens,
                              .interrupted = interrupted,
                              .fault = show_fault};
    cn_engine_default_sampling(engine, &d->port.defaults.sampling);
    cn_engine_default_kv(engine, &d->port.defaults.kv);
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

static void find_spread(cn_lanes *lanes, cn_progress_figures *g)
{
    for (uint32_t i = 0; i < cn_lanes_n(lanes); i++) {
        cn_stats s;
        cn_lanes_stats_of(lanes, i, &s);
        if (i == 0 || s.generation_tokens < g->least.tokens)
            g->least.tokens = s.generation_tokens, g->least.engine = i;
        if (i == 0 || s.generation_tokens > g->most.tokens)
            g->most.tokens = s.generation_tokens, g->most.engine = i;
    }
}

static void show_drive_progress(cn_batch_drive *d, const cn_batch_run *run)
{
    if (!cn_progress_is_due(&d->progress)) return;
    const uint32_t context = cn_engine_max_model_len(cn_lanes_engine(d->lanes, 0));
    const cn_batch_work work = cn_batch_run_work(run, 0, context, 0);
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
    cn_lanes_stats(d->lanes, &g.stats);
    find_spread(d->lanes, &g);
    cn_progress_show(&d->progress, &g);
}

/* The larger of READ_AHEAD and four times the samples that all engines run at once. */
static uint32_t max_jobs_inflight(const cn_batch_drive *d, const cn_config *c)
{
    const uint64_t seats = (uint64_t)cn_lanes_n(d->lanes) * c->max_num_seqs;
    if (c->max_inflight > 0) return c->max_inflight;
    return (uint32_t)(4 * seats > READ_AHEAD ? 4 * seats : READ_AHEAD);
}

/* Lets the engines work, or waits for them. What they returned before a failure is written. */
static void work(cn_batch_drive *d, cn_batch_run *run)
{
    char why[CN_BATCH_WHY_BYTES];
    const bool may_read = run->state == CN_BATCH_RUNNING && !run->input_ended &&
                          cn_batch_run_has_room(run);
    const cn_status status = cn_lanes_work(d->lanes, may_read ? READ_WAIT_MS : IDLE_WAIT_MS);
    if (status != CN_OK) snprintf(why, sizeof why, "%s", cn_last_error());
    cn_batch_run_settle(run);
    if (status == CN_OK) return;
    run->engine_failed = true;
    cn_batch_run_stop(run, true, why);
    cn_batch_run_settle(run);
}

void cn_batch_drive_all(cn_batch_drive *d, cn_batch_run *run)
{
    cn_api_unknown_init(&d->unknown, run->config->unknown_fields == CN_OPT_UNKNOWN_REFUSE);
    if (cn_served_names_make(&d->names, run->config) != CN_OK)
        cn_batch_run_stop(run, true, cn_last_error());
    open_port(d, run->config);
    run->port = &d->port;
    run->max_inflight = max_jobs_inflight(d, run->config);
    d->tokens_earlier = run->totals.completion_tokens;
    for (;;) {
        check_stop_requests(d, run);
        check_drain(d, run);
        cn_batch_run_admit(run, IDLE_WAIT_MS);
        if (run->state == CN_BATCH_STOPPED || cn_batch_run_is_over(run)) break;
        if (run->inflight.n > 0) work(d, run);
        show_drive_progress(d, run);
    }
    cn_batch_run_look_for_rest(run);
    cn_api_unknown_destroy(&d->unknown);
    cn_served_names_free(&d->names);
    cn_progress_end(&d->progress);
}
