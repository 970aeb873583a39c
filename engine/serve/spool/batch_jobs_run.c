/* batch_jobs_run.c - moves one batch through the states of batch_jobs_record.h. Every step may fail
 * and is then retried, so every step may run twice. */
#include <math.h>
#include <time.h>

#include "engine/offline/batch_line.h"
#include "engine/serve/spool/batch_jobs_state.h"

enum {
    LINES_PER_SLICE = 256,
    RETRY_AFTER_S = 2,
    PAUSE_AFTER_S = 2,
    SYNC_EVERY_S = 5,
    IDLE_WAIT_MS = 1000,
    BUSY_WAIT_MS = 20
};
#define MAX_TOKENS 9007199254740992.0 /* 2^53: a record may count more lines than can be true */

int64_t cn_batches_now(const cn_batches *b)
{
    return b->opts.now ? b->opts.now() : (int64_t)time(NULL);
}

static void wait_at_most(int *wait_ms, int ms)
{
    if (*wait_ms > ms) *wait_ms = ms;
}

/* ---- pausing ---- */

static void pause(cn_batch *b, const char *why)
{
    if (strcmp(b->paused, why) != 0)
        cn_log(CN_LOG_WARN, "%s: paused: %s", b->record.id.text, why);
    snprintf(b->paused, sizeof b->paused, "%s", why);
    b->retry_at = cn_batches_now(b->all) + RETRY_AFTER_S;
}

static void unpause(cn_batch *b)
{
    if (*b->paused) cn_log(CN_LOG_INFO, "%s: resumed", b->record.id.text);
    b->paused[0] = '\0';
}

bool cn_batch_enter(cn_batch *b, cn_batch_status status)
{
    cn_batch_record *r = &b->record;
    const cn_batch_status before = r->status;
    const int64_t began_before = r->began_at[status];
    cn_batch_record_enter(r, status, cn_batches_now(b->all));
    json_t *record = cn_batch_record_json(r);
    cn_status done = record ? cn_spool_put_record(b->all->spool, CN_SPOOL_BATCHES, &r->id, record)
                            : cn_fail(CN_ERR_MEMORY, "%s: out of memory", r->id.text);
    json_decref(record);
    if (done == CN_OK) {
        unpause(b);
        return true;
    }
    r->status = before;
    r->began_at[status] = began_before;
    pause(b, cn_last_error());
    return false;
}

/* ---- validating ---- */

static cn_status open_check(cn_batch *b)
{
    const cn_batch_record *r = &b->record;
    cn_buf path = {0};
    CN_TRY(cn_spool_path(b->all->spool, CN_SPOOL_FILES, r->input.text, &path));
    cn_status status =
        cn_batch_check_open(&b->check, path.data, r->endpoint, b->all->opts.max_lines);
    cn_buf_free(&path);
    b->checking = true;
    return status;
}

static void close_check(cn_batch *b)
{
    if (b->checking) cn_batch_check_close(&b->check);
    b->checking = false;
}

/* Writes the result of the validation to disk. */
static void conclude_check(cn_batch *b)
{
    cn_batch_record *r = &b->record;
    if (b->check.n_faults) {
        json_decref(r->faults);
        r->faults = json_incref(b->check.faults);
        if (!cn_batch_enter(b, CN_BATCH_STATUS_FAILED)) return;
        cn_log(CN_LOG_INFO, "%s: failed: %llu errors in the input file", r->id.text,
               (unsigned long long)b->check.n_faults);
    } else {
        r->counts.total = b->check.n_lines;
        cn_free(r->run_record);
        r->run_record = cn_strdup(b->all->run_record.data);
        if (!r->run_record) {
            pause(b, "out of memory");
            return;
        }
        if (!cn_batch_enter(b, CN_BATCH_STATUS_IN_PROGRESS)) return;
    }
    close_check(b);
}

static void validate(cn_batch *b, int *wait_ms)
{
    bool done = false;
    cn_status status = CN_OK;
    if (b->all->draining) return;
    if (!b->checking) status = open_check(b);
    if (status == CN_OK) status = cn_batch_check_some(&b->check, LINES_PER_SLICE, &done);
    if (status != CN_OK) {
        pause(b, cn_last_error());
        close_check(b);
    } else if (done) {
        conclude_check(b);
        if (*b->paused) close_check(b);
    }
    if (!*b->paused) wait_at_most(wait_ms, 0);
}

/* ---- opening the files ---- */

static cn_status open_output(cn_batch *b, const cn_spool_id *id, cn_batch_output **out)
{
    cn_buf path = {0};
    uint64_t removed = 0;
    CN_TRY(cn_spool_path(b->all->spool, CN_SPOOL_FILES, id->text, &path));
    cn_status status = cn_batch_output_open(out, path.data, 0600);
    cn_buf_free(&path);
    CN_TRY(status);
    CN_TRY(cn_batch_output_repair(*out, &removed));
    if (removed)
        cn_log(CN_LOG_INFO, "%s: removed an incomplete last line of %llu bytes", b->record.id.text,
               (unsigned long long)removed);
    return cn_resume_scan(*out, false, &b->run.ids, &b->run.totals);
}

static cn_status open_run_files(cn_batch *b)
{
    cn_batch_run *run = &b->run;
    cn_buf path = {0};
    CN_TRY(cn_spool_path(b->all->spool, CN_SPOOL_FILES, b->record.input.text, &path));
    cn_status status = CN_OK;
    /* Later statuses do not read the input. */
    if (b->record.status == CN_BATCH_STATUS_IN_PROGRESS)
        status = cn_line_reader_open(&run->input, path.data, CN_BATCH_MAX_LINE_BYTES);
    cn_buf_free(&path);
    CN_TRY(status);
    CN_TRY(open_output(b, &b->record.output, &run->output));
    return open_output(b, &b->record.errors, &run->errors);
}

static void close_run(cn_batch *b)
{
    CN_ASSERT(b->run.inflight.n == 0);
    cn_batch_run_end(&b->run);
    cn_line_reader_close(b->run.input);
    cn_batch_output_close(b->run.output);
    cn_batch_output_close(b->run.errors);
    b->run = (cn_batch_run){0};
    b->running = b->expiring = false;
    b->refused_at = 0;
}

/* Returns true when a batch that has begun may resume on this server. */
static bool may_go_on(cn_batch *b)
{
    if (b->record.status != CN_BATCH_STATUS_IN_PROGRESS || !b->record.run_record) return true;
    if (cn_batches_now(b->all) >= b->record.expires_at) return true;
    if (cn_run_record_compare(b->record.run_record, b->all->run_record.data, b->all->opts.config,
                              &b->port.defaults.any_rule) == CN_OK)
        return true;
    cn_fail_within(CN_ERR_ARG, "cannot resume: the answers would change (restart the server as "
                               "before, or cancel the batch)");
    pause(b, cn_last_error());
    b->held = true;
    return false;
}

static bool open_batch_run(cn_batch *b)
{
    if (b->running) return true;
    b->port = b->all->port;
    b->run = (cn_batch_run){.config = b->all->opts.config, .port = &b->port, .pauses = true};
    cn_status status = open_run_files(b);
    if (status != CN_OK) {
        pause(b, cn_last_error());
        close_run(b);
        return false;
    }
    b->running = true;
    if (!may_go_on(b)) {
        b->record.counts = cn_batch_counts_now(b); /* the record may have older ones */
        close_run(b);
        return false;
    }
    b->synced_bytes = cn_batch_bytes(b);
    return true;
}

void cn_batch_abandon(cn_batch *b)
{
    if (!b->running) return;
    cn_batch_run_stop(&b->run, false, "abandoned");
    for (cn_list_node *at = b->run.inflight.head; at; at = at->next)
        b->all->port.cancel(b->all->port.user, CN_CONTAINER_OF(at, cn_batch_job, node));
}

void cn_batch_close(cn_batch *b)
{
    close_check(b);
    if (b->running) close_run(b);
    cn_batch_record_free(&b->record);
}

cn_batch_counts cn_batch_counts_now(const cn_batch *b)
{
    cn_batch_counts c = b->record.counts;
    if (!b->running) return c;
    const cn_batch_totals *t = &b->run.totals;
    c.completed = t->answered;
    c.failed = t->errors;
    c.input_tokens = t->prompt_tokens;
    c.cached_tokens = t->cached_tokens;
    c.output_tokens = t->completion_tokens;
    c.reasoning_tokens = t->reasoning_tokens;
    return c;
}

static bool is_measured(const cn_batch *b)
{
    return b->running && b->record.status == CN_BATCH_STATUS_IN_PROGRESS && !*b->paused;
}

static cn_batch_work work_now(const cn_batch *b)
{
    const cn_batch_counts c = cn_batch_counts_now(b);
    const uint64_t begun = c.completed + c.failed + b->run.inflight.n + b->run.finished.n +
                           b->run.again.n + (b->run.waiting != NULL);
    const uint64_t unread = c.total > begun ? c.total - begun : 0;
    const cn_batches_opts *o = &b->all->opts;
    return cn_batch_run_work(&b->run, unread, o->max_model_len, o->cost.most_kv);
}

void cn_batch_measure(cn_batch *b)
{
    if (!is_measured(b)) {
        b->pace = (cn_pace){0};
        return;
    }
    const double now_s = cn_files_now_s(&b->all->opts.files);
    if (now_s - b->pace.at_s < 1) return;
    const cn_batch_work w = work_now(b);
    cn_pace_add(&b->pace, now_s, &b->all->opts.cost, &w);
}

json_t *cn_batch_progress_json(const cn_batch *b)
{
    if (!is_measured(b)) return json_null();
    const cn_batch_work w = work_now(b);
    return json_pack("{s:I, s:I, s:b, s:f, s:o}", "output_tokens", (json_int_t)w.tokens,
                     "output_tokens_to_come", (json_int_t)(fmin(w.to_come, MAX_TOKENS) + 0.5),
                     "at_most", (int)w.at_most, "output_tokens_per_s",
                     cn_pace_tokens_per_s(&b->pace), "seconds_left",
                     b->pace.tokens > 0 ? json_real(b->pace.left_s) : json_null());
}

uint64_t cn_batch_bytes(const cn_batch *b)
{
    if (!b->running) return 0;
    return cn_batch_output_bytes(b->run.output) + cn_batch_output_bytes(b->run.errors);
}

/* ---- the end ---- */

static cn_status publish_run(cn_batch *b, cn_batch_output *o, const cn_spool_id *id,
                             const char *what, bool *has)
{
    char name[CN_SPOOL_ID_BYTES + 16];
    *has = cn_batch_output_bytes(o) > 0;
    if (!*has) return cn_spool_remove(b->all->spool, CN_SPOOL_FILES, id->text);
    snprintf(name, sizeof name, "%s_%s.jsonl", b->record.id.text, what);
    CN_TRY(cn_batch_output_sync(o));
    return cn_files_publish(b->all->files, id, b->record.owner, name, cn_batch_output_bytes(o));
}

/* Publishes the output and error files, then enters a final status. */
static void finish_run(cn_batch *b, cn_batch_status final)
{
    cn_batch_record *r = &b->record;
    if (!open_batch_run(b)) return;
    cn_status status = publish_run(b, b->run.output, &r->output, "output", &r->has_output);
    if (status == CN_OK)
        status = publish_run(b, b->run.errors, &r->errors, "error", &r->has_errors);
    if (status != CN_OK) {
        pause(b, cn_last_error());
        return;
    }
    r->counts = cn_batch_counts_now(b);
    if (!cn_batch_enter(b, final)) return;
    close_run(b);
    cn_log(CN_LOG_INFO, "%s: %s: %llu answered and %llu failed of %llu lines", r->id.text,
           cn_batch_status_name(final), (unsigned long long)r->counts.completed,
           (unsigned long long)r->counts.failed, (unsigned long long)r->counts.total);
}

/* ---- expiry ---- */

static cn_status write_expired(cn_batch *b, const cn_line *line)
{
    cn_batch_run *run = &b->run;
    cn_batch_item item = {0};
    const cn_batch_format format = {0};
    cn_status status = cn_batch_item_identify(&item, line, &format);
    const bool done = cn_id_set_marks(&run->ids, item.id) & CN_ID_DONE;
    if (status == CN_ERR_ARG) status = CN_OK; /* an invalid line still has the id of its line */
    if (status == CN_OK && !done) {
        uint64_t number = 0;
        cn_buf_clear(&run->line);
        status = cn_batch_run_number(run, &number);
        if (status == CN_OK)
            status = cn_batch_line_format_unsubmitted(
                &run->line, item.id, number, item.custom_id, "batch_expired",
                "This request could not be executed before the completion window expired.");
        if (status == CN_OK)
            status = cn_batch_output_append(run->errors, run->line.data, run->line.len);
        if (status == CN_OK) status = cn_id_set_add(&run->ids, item.id, CN_ID_DONE);
        if (status == CN_OK) run->totals.errors++;
    }
    cn_batch_item_free(&item);
    return status;
}

/* Writes error lines for a slice of the lines that were not answered in time. */
static cn_status expire_some(cn_batch *b, bool *done)
{
    for (uint32_t i = 0; i < LINES_PER_SLICE; i++) {
        cn_line line;
        cn_line_state state;
        CN_TRY(cn_line_reader_next(b->run.input, 0, &line, &state));
        if (state == CN_LINE_END) {
            *done = true;
            return CN_OK;
        }
        if (state == CN_LINE_READY) CN_TRY(write_expired(b, &line));
    }
    return CN_OK;
}

/* Cancels the lines in flight, reopens the files and writes an error line for each line without an
 * answer. After a failure the next call starts over: the scan of the files finds the lines that are
 * already written. */
static void expire(cn_batch *b, int *wait_ms)
{
    bool done = false;
    if (b->running && !b->expiring) {
        if (b->run.state != CN_BATCH_STOPPED) cn_batch_abandon(b);
        if (!cn_batch_run_is_over(&b->run)) return;
        close_run(b);
    }
    if (!open_batch_run(b)) return;
    b->expiring = true;
    if (expire_some(b, &done) != CN_OK) {
        pause(b, cn_last_error());
        close_run(b);
        return;
    }
    if (done)
        finish_run(b, CN_BATCH_STATUS_EXPIRED);
    else
        wait_at_most(wait_ms, 0);
}

/* ---- in progress ---- */

/* Syncs at most every SYNC_EVERY_S, so that a power failure loses few lines. */
static void sync_lines(cn_batch *b)
{
    const int64_t now = cn_batches_now(b->all);
    const uint64_t bytes = cn_batch_bytes(b);
    if (bytes == b->synced_bytes || now - b->synced_at < SYNC_EVERY_S) return;
    b->synced_at = now;
    b->synced_bytes = bytes;
    if (cn_batch_output_sync(b->run.output) != CN_OK ||
        cn_batch_output_sync(b->run.errors) != CN_OK)
        cn_log(CN_LOG_WARN, "%s: %s", b->record.id.text, cn_last_error());
}

/* Returns true when the quota allows more lines to be submitted. Lines in flight are written in any
 * case. */
static bool has_run_room(cn_batch *b)
{
    if (cn_files_have_room(b->all->files, 0)) return true;
    pause(b, "the spool is full (--max-spool-bytes): delete files to resume");
    return false;
}

/* The run has ended: all lines are done, or it was drained or stopped. */
static void conclude_run(cn_batch *b)
{
    if (b->run.state == CN_BATCH_RUNNING) {
        cn_batch_enter(b, CN_BATCH_STATUS_FINALIZING);
        return;
    }
    if (b->run.failed) pause(b, b->run.why);
    close_run(b);
}

/* Returns true when the engine has accepted a line in flight. The intake returns lines one at a
 * time, so a batch whose lines are all refused may have lines in flight at any moment. */
static bool has_accepted_line(const cn_batch *b)
{
    const cn_batches_opts *o = &b->all->opts;
    for (const cn_list_node *at = b->run.inflight.head; at; at = at->next)
        if (o->is_accepted(o->user, CN_CONTAINER_OF(at, cn_batch_job, node))) return true;
    return false;
}

/* Submits lines. A line that came back refused waits, so that the threads do not pass it back and
 * forth. Returns false when every line has been refused for a while: the batch is paused. */
static bool submit_lines(cn_batch *b, int *wait_ms)
{
    cn_batch_run *run = &b->run;
    const int64_t now = cn_batches_now(b->all);
    const double now_s = cn_files_now_s(&b->all->opts.files);
    const uint64_t ended = run->n_answered + run->n_errors;
    bool refused = run->refused;
    if (refused && run->again.n > 0 && b->ask_at_s < now_s)
        b->ask_at_s = now_s + BUSY_WAIT_MS / 1e3;
    run->refused = false;
    if (now_s >= b->ask_at_s)
        cn_batch_run_admit(run, 0);
    else
        wait_at_most(wait_ms, BUSY_WAIT_MS);
    refused |= run->refused;
    const bool accepted = (refused || b->refused_at != 0) && has_accepted_line(b);
    if (ended != b->ended || accepted) b->refused_at = 0;
    b->ended = ended;
    if (!refused || accepted) return true;
    if (b->refused_at == 0) b->refused_at = now;
    if (now - b->refused_at < PAUSE_AFTER_S) return true;
    pause(b, run->refusal);
    return false;
}

static void run_lines(cn_batch *b, int *wait_ms)
{
    const bool opens = !b->running;
    if (opens && b->all->draining) return;
    if (!open_batch_run(b)) return;
    if (opens) wait_at_most(wait_ms, 0); /* the next pump computes its share */
    cn_batch_run *run = &b->run;
    b->all->slice_left = LINES_PER_SLICE;
    cn_batch_run_retry(run);
    cn_batch_run_settle(run);
    if (!run->paused && !run->input_ended && !has_run_room(b)) return;
    if (!submit_lines(b, wait_ms)) return;
    if (run->paused) {
        pause(b, run->why);
        return;
    }
    if (b->refused_at == 0) unpause(b);
    sync_lines(b);
    if (cn_batch_run_is_over(run)) {
        conclude_run(b);
        if (!*b->paused && !b->all->draining) wait_at_most(wait_ms, 0);
    } else if (run->refused) {
        wait_at_most(wait_ms, BUSY_WAIT_MS);
    } else if (run->state == CN_BATCH_RUNNING && !run->input_ended && cn_batch_run_has_room(run)) {
        wait_at_most(wait_ms, 0);
    }
}

void cn_batch_go_on(cn_batch *b, int *wait_ms)
{
    const int64_t now = cn_batches_now(b->all);
    wait_at_most(wait_ms, IDLE_WAIT_MS);
    if (b->running && b->run.state == CN_BATCH_STOPPED) cn_batch_run_settle(&b->run);
    const bool in_time = now < b->record.expires_at;
    if (b->held && b->record.status == CN_BATCH_STATUS_IN_PROGRESS && in_time) return;
    if (*b->paused && now < b->retry_at) return;
    switch (b->record.status) {
    case CN_BATCH_STATUS_VALIDATING: validate(b, wait_ms); break;
    case CN_BATCH_STATUS_IN_PROGRESS:
        if (in_time)
            run_lines(b, wait_ms);
        else
            expire(b, wait_ms);
        break;
    case CN_BATCH_STATUS_FINALIZING: finish_run(b, CN_BATCH_STATUS_COMPLETED); break;
    case CN_BATCH_STATUS_CANCELLING:
        if (!b->running || cn_batch_run_is_over(&b->run)) finish_run(b, CN_BATCH_STATUS_CANCELLED);
        break;
    default: break;
    }
}
