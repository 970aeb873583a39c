/* batch_jobs.c - the list of batches: opens the spool, shares the lines in flight among batches and
 * answers client requests. See batch_jobs.h. */
#include "engine/serve/spool/batch_jobs.h"

#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/serve/spool/batch_jobs_state.h"

enum {
    MEASURE_MS = 1000,
    MAX_FAULTS_LOGGED = 10,
    MAX_METADATA = 16,
    MAX_METADATA_KEY = 64,
    MAX_METADATA_VALUE = 512,
    HELD_PART = 4 /* lines of batches hold at most this part of --max-buffered-bytes */
};

/* ---- access to the engine ---- */

static cn_status port_submit(void *batches, cn_batch_job *job)
{
    const cn_batches *b = batches;
    return b->opts.submit(b->opts.user, job,
                          CN_CONTAINER_OF(job->run, cn_batch, run)->record.owner);
}

static void port_cancel(void *batches, cn_batch_job *job)
{
    const cn_batches *b = batches;
    b->opts.cancel(b->opts.user, job);
}

static uint64_t port_n_tokens(void *batches, cn_batch_job *job)
{
    const cn_batches *b = batches;
    return b->opts.n_tokens(b->opts.user, job);
}

static bool port_interrupted(void *batches)
{
    cn_batches *b = batches;
    if (b->slice_left == 0) return true;
    b->slice_left--;
    return false;
}

static void port_fault(void *batches, const cn_batch_run *run, uint64_t line, const char *message)
{
    const cn_batches *b = batches;
    if (run->n_errors >= MAX_FAULTS_LOGGED) return;
    for (size_t i = 0; i < b->n; i++)
        if (&b->all[i]->run == run)
            cn_log(CN_LOG_WARN, "%s: line %llu: %s", b->all[i]->record.id.text,
                   (unsigned long long)line, message);
}

/* ---- the list ---- */

static size_t index_of(const cn_batches *b, const cn_spool_id *id)
{
    size_t i = 0;
    while (i < b->n && strcmp(b->all[i]->record.id.text, id->text) != 0) i++;
    return i;
}

static bool is_over(const cn_batch *b) { return cn_batch_status_is_final(b->record.status); }

static uint32_t count_unfinished(const cn_batches *b)
{
    uint32_t n = 0;
    for (size_t i = 0; i < b->n; i++) n += !is_over(b->all[i]);
    return n;
}

/* Takes over the record, even on failure. */
static cn_status add_batch_record(cn_batches *b, cn_batch_record *record)
{
    cn_batch *batch = cn_calloc(1, sizeof *batch);
    if (!batch || CN_ROOM(&b->all, b->n, "the list of batches") != CN_OK) {
        cn_free(batch);
        cn_batch_record_free(record);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the list of batches");
    }
    *batch = (cn_batch){.all = b, .record = *record};
    *record = (cn_batch_record){0};
    b->all[b->n++] = batch;
    const uint64_t order = batch->record.order;
    if (order >= b->next_order) b->next_order = cn_spool_order_after(order);
    return CN_OK;
}

static void drop_job(cn_batches *b, size_t i)
{
    cn_batch_close(b->all[i]);
    cn_free(b->all[i]);
    memmove(&b->all[i], &b->all[i + 1], (b->n - i - 1) * sizeof *b->all);
    b->n--;
    if (b->first_live > i) b->first_live--;
}

const cn_batch_record *cn_batches_reader_of(const cn_batches *b, const cn_spool_id *file)
{
    for (size_t i = 0; i < b->n; i++)
        if (!is_over(b->all[i]) && strcmp(b->all[i]->record.input.text, file->text) == 0)
            return &b->all[i]->record;
    return NULL;
}

/* ---- opening ---- */

static cn_status take_job_name(void *user, const char *name)
{
    cn_batches *b = user;
    cn_spool_id id;
    cn_batch_record record;
    json_t *o = NULL;
    if (!cn_spool_is_record(name, cn_batch_prefix, &id)) return CN_OK;
    cn_status status = cn_spool_get_record(b->spool, CN_SPOOL_BATCHES, &id, &o);
    if (status == CN_OK) {
        status = cn_batch_record_read(&record, &id, o);
        json_decref(o);
    }
    if (status == CN_OK) return add_batch_record(b, &record);
    cn_log(CN_LOG_WARN, "spool: ignored batch %s, whose record must be repaired or removed: %s",
           id.text, cn_last_error());
    b->n_unread++;
    return status == CN_ERR_MEMORY ? status : CN_OK;
}

/* A batch whose record could not be read may own any file. */
static bool is_being_written(void *user, const cn_spool_id *file)
{
    const cn_batches *b = user;
    if (b->n_unread > 0) return true;
    for (size_t i = 0; i < b->n; i++) {
        const cn_batch_record *r = &b->all[i]->record;
        if (!is_over(b->all[i]) && (strcmp(r->output.text, file->text) == 0 ||
                                    strcmp(r->errors.text, file->text) == 0))
            return true;
    }
    return false;
}

static int by_order(const void *a, const void *b)
{
    const cn_batch_record *x = &(*(const cn_batch *const *)a)->record;
    const cn_batch_record *y = &(*(const cn_batch *const *)b)->record;
    const int order = (x->order > y->order) - (x->order < y->order);
    return order ? order : strcmp(x->id.text, y->id.text);
}

static cn_status open_spool(cn_batches *b, const cn_batches_opts *o)
{
    CN_TRY(cn_run_record_make(&b->run_record, o->config));
    CN_TRY(cn_spool_open(&b->spool, o->dir));
    CN_TRY(cn_spool_each(b->spool, CN_SPOOL_BATCHES, take_job_name, b));
    if (b->n) qsort(b->all, b->n, sizeof *b->all, by_order);
    CN_TRY(cn_files_open(&b->files, b->spool, &o->files, is_being_written, b));
    for (size_t i = 0; i < b->n; i++)
        if (!is_over(b->all[i]))
            cn_log(CN_LOG_INFO, "spool: loaded batch %s, %s", b->all[i]->record.id.text,
                   cn_batch_status_name(b->all[i]->record.status));
    return CN_OK;
}

cn_status cn_batches_open(cn_batches **out, const cn_batches_opts *o)
{
    cn_batches *b = cn_calloc(1, sizeof *b);
    if (!b) return cn_fail(CN_ERR_MEMORY, "out of memory for the list of batches");
    b->opts = *o;
    b->port = (cn_batch_port){.user = b,
                              .defaults = o->defaults,
                              .model = o->names->names[0],
                              .names = o->names,
                              .shared = true,
                              .borrows = true,
                              .submit = port_submit,
                              .cancel = port_cancel,
                              .n_tokens = port_n_tokens,
                              .interrupted = port_interrupted,
                              .fault = port_fault};
    cn_status status = open_spool(b, o);
    if (status == CN_OK)
        *out = b;
    else
        cn_batches_close(b);
    return status;
}

void cn_batches_close(cn_batches *b)
{
    if (!b) return;
    while (b->n) drop_job(b, b->n - 1);
    cn_free(b->all);
    cn_files_close(b->files);
    cn_spool_close(b->spool);
    cn_buf_free(&b->run_record);
    cn_free(b);
}

cn_files *cn_batches_files(cn_batches *b) { return b->files; }

/* ---- sharing the engine ---- */

static uint32_t count_inflight(const cn_batches *b)
{
    uint32_t n = 0;
    for (size_t i = b->first_live; i < b->n; i++) n += b->all[i]->run.inflight.n;
    return n;
}

/* Counts, once per pump, the batches that have lines to submit, and the bytes of unfinished batches
 * that count against the quota. */
static void take_stock(cn_batches *b)
{
    uint64_t bytes = 0;
    while (b->first_live < b->n && is_over(b->all[b->first_live])) b->first_live++;
    b->n_asking = 0;
    for (size_t i = b->first_live; i < b->n; i++) {
        b->n_asking +=
            b->all[i]->record.status == CN_BATCH_STATUS_IN_PROGRESS && !*b->all[i]->paused;
        bytes += is_over(b->all[i]) ? 0 : cn_batch_bytes(b->all[i]);
    }
    cn_files_set_unlisted_bytes(b->files, bytes);
}

/* Gives each batch an equal share of max_inflight, limited by what is free. A share that a batch
 * does not use stays free for the next new batch. */
static void give_room(cn_batches *b, cn_batch *batch)
{
    const uint32_t n_inflight = count_inflight(b);
    const uint32_t share = cn_max_u32(1, b->opts.max_inflight / cn_max_u32(1, b->n_asking));
    const uint32_t room = b->opts.max_inflight - cn_min_u32(n_inflight, b->opts.max_inflight);
    batch->run.max_inflight = cn_min_u32(share, batch->run.inflight.n + room);
    batch->run.max_held_bytes =
        b->opts.config->max_buffered_bytes / HELD_PART / cn_max_u32(1, b->n_asking);
}

void cn_batches_pump(cn_batches *b, int *wait_ms)
{
    *wait_ms = 60000;
    take_stock(b);
    const size_t first = b->first_live, n = b->n - first;
    if (n == 0) return;
    b->turn = (b->turn + 1) % n;
    for (size_t i = 0; i < n; i++) {
        cn_batch *batch = b->all[first + (b->turn + i) % n];
        if (is_over(batch)) continue;
        give_room(b, batch);
        cn_batch_go_on(batch, wait_ms);
        cn_batch_measure(batch);
        if (batch->running && *wait_ms > MEASURE_MS) *wait_ms = MEASURE_MS;
    }
}

void cn_batches_drain(cn_batches *b)
{
    uint32_t n_lines = 0;
    b->draining = true;
    for (size_t i = 0; i < b->n; i++) {
        if (!b->all[i]->running) continue;
        cn_batch_run_drain(&b->all[i]->run, false, "server stopping");
        n_lines += b->all[i]->run.inflight.n;
    }
    if (n_lines > 0)
        cn_log(CN_LOG_INFO, "stopping: %u lines of batches are in flight, too; those that do not "
               "finish are answered after the next start", n_lines);
}

void cn_batches_abandon(cn_batches *b)
{
    b->draining = true;
    for (size_t i = 0; i < b->n; i++) cn_batch_abandon(b->all[i]);
}

bool cn_batches_is_idle(const cn_batches *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->all[i]->running && b->all[i]->run.inflight.n > 0) return false;
    return true;
}

/* ---- create ---- */

/* Characters of valid UTF-8. */
static size_t count_chars(const char *text, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    return chars;
}

/* The limits are OpenAI's. */
static cn_status read_job_metadata(const cn_json_at *at, cn_batch_record *r)
{
    const char *key;
    json_t *v, *metadata = NULL;
    CN_TRY(cn_json_obj(at, "metadata", CN_JSON_OPTIONAL, &metadata));
    if (json_object_size(metadata) > MAX_METADATA)
        return cn_fail(CN_ERR_ARG, "metadata: expected at most %d pairs, got %zu",
                       (int)MAX_METADATA, json_object_size(metadata));
    json_object_foreach(metadata, key, v)
    {
        char shown[96];
        const size_t n_key = count_chars(key, strlen(key));
        if (n_key > MAX_METADATA_KEY)
            return cn_fail(CN_ERR_ARG, "metadata: expected keys of at most %d characters, got %zu",
                           (int)MAX_METADATA_KEY, n_key);
        if (!json_is_string(v) ||
            count_chars(json_string_value(v), json_string_length(v)) > MAX_METADATA_VALUE)
            return cn_fail(CN_ERR_ARG,
                           "metadata: expected a string of at most %d characters, got %s",
                           (int)MAX_METADATA_VALUE, cn_json_describe(v, shown, sizeof shown));
    }
    r->metadata = json_incref(metadata);
    return CN_OK;
}

static cn_status read_job_input(const cn_batches *b, const cn_viewer *v, const cn_json_at *at,
                                cn_batch_record *r)
{
    char shown[96];
    const char *text = NULL;
    CN_TRY(cn_json_str(at, "input_file_id", CN_JSON_REQUIRED, &text));
    const cn_file *file = cn_spool_id_read(&r->input, cn_file_prefix, text)
                              ? cn_files_find(b->files, &r->input)
                              : NULL;
    if (!file || !cn_viewer_sees(v, file->owner))
        return cn_fail(CN_ERR_ARG, "input_file_id: no such file: \"%s\"",
                       cn_json_printable(text, shown, sizeof shown));
    if (strcmp(file->purpose, "batch") != 0)
        return cn_fail(CN_ERR_ARG, "input_file_id: expected a file with purpose batch, got %s with "
                       "purpose %s", file->id.text, file->purpose);
    return CN_OK;
}

static cn_status read_endpoint(const cn_json_at *at, cn_batch_record *r)
{
    char shown[96];
    const char *text = NULL;
    CN_TRY(cn_json_str(at, "endpoint", CN_JSON_REQUIRED, &text));
    if (cn_api_endpoint_find(text, &r->endpoint)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "endpoint: expected %s, %s or %s, got \"%s\"",
                   cn_api_endpoint_path(CN_API_CHAT), cn_api_endpoint_path(CN_API_COMPLETION),
                   cn_api_endpoint_path(CN_API_RESPONSES),
                   cn_json_printable(text, shown, sizeof shown));
}

static cn_status read_job_window(const cn_json_at *at, cn_batch_record *r)
{
    char shown[96];
    const char *text = "24h";
    int64_t window_s = 0;
    CN_TRY(cn_json_str(at, "completion_window", CN_JSON_OPTIONAL, &text));
    if (!cn_batch_window_read(text, &window_s))
        return cn_fail(CN_ERR_ARG,
                       "completion_window: expected a time such as 24h, 90m or 7d, at most 30 "
                       "days, got \"%s\"",
                       cn_json_printable(text, shown, sizeof shown));
    snprintf(r->window, sizeof r->window, "%s", text);
    r->expires_at = r->created_at + window_s;
    return CN_OK;
}

static cn_status read_request(const cn_batches *b, const cn_viewer *v, const json_t *body,
                              cn_batch_record *r)
{
    const cn_json_at at = {body, "batch", CN_ERR_ARG};
    CN_TRY(cn_for_param(read_job_input(b, v, &at, r), "input_file_id"));
    CN_TRY(cn_for_param(read_endpoint(&at, r), "endpoint"));
    CN_TRY(cn_for_param(read_job_window(&at, r), "completion_window"));
    CN_TRY(cn_for_param(read_job_metadata(&at, r), "metadata"));
    r->owner = cn_strdup(v->name);
    if (!r->owner) return cn_fail(CN_ERR_MEMORY, "out of memory for a batch");
    CN_TRY(cn_spool_id_make(&r->id, cn_batch_prefix));
    CN_TRY(cn_spool_id_make(&r->output, cn_file_prefix));
    return cn_spool_id_make(&r->errors, cn_file_prefix);
}

static int by_owner(const void *a, const void *b)
{
    const cn_batch *const *x = a, *const *y = b;
    const int order = strcmp((*x)->record.owner, (*y)->record.owner);
    return order ? order : by_order(a, b);
}

/* The oldest finished record of the owner that has the most, or of the creator if nobody has more
 * than the creator. sorted[b->n]: by_owner. NULL: all records of that owner are unfinished. */
static const cn_batch *pick_old(const cn_batches *b, cn_batch *const *sorted, const char *creator)
{
    const cn_batch *oldest = NULL;
    size_t most = 0;
    for (size_t i = 0, n; i < b->n; i += n) {
        const char *owner = sorted[i]->record.owner;
        const cn_batch *finished = NULL;
        for (n = 0; i + n < b->n && strcmp(sorted[i + n]->record.owner, owner) == 0; n++)
            if (!finished && is_over(sorted[i + n])) finished = sorted[i + n];
        if (n < most || (n == most && strcmp(owner, creator) != 0)) continue;
        most = n;
        oldest = finished;
    }
    return oldest;
}

/* Removes one record for a new one of the creator. False: none may be removed, or that failed. */
static bool forget_one(cn_batches *b, const char *creator)
{
    cn_batch **sorted = cn_calloc(b->n, sizeof *sorted);
    if (!sorted) return false;
    memcpy(sorted, b->all, b->n * sizeof *sorted);
    qsort(sorted, b->n, sizeof *sorted, by_owner);
    const cn_batch *old = pick_old(b, sorted, creator);
    cn_free(sorted);
    if (!old) return false;
    const cn_spool_id id = old->record.id;
    if (cn_spool_remove_record(b->spool, CN_SPOOL_BATCHES, &id) != CN_OK) {
        cn_log(CN_LOG_WARN, "spool: kept old batch %s: %s", id.text, cn_last_error());
        return false;
    }
    cn_log(CN_LOG_INFO, "spool: removed the record of %s, the oldest finished batch of \"%s\": %u "
           "are kept", id.text, old->record.owner, b->opts.max_kept);
    drop_job(b, index_of(b, &id));
    return true;
}

static json_t *public(const cn_batch *b)
{
    const cn_batch_counts counts = cn_batch_counts_now(b);
    json_t *o = cn_batch_record_public(&b->record, &counts, b->all->opts.names->names[0],
                                       *b->paused ? b->paused : NULL);
    const cn_file *input = cn_files_find(b->all->files, &b->record.input);
    bool ok = o && json_object_set_new(o, "progress", cn_batch_progress_json(b)) == 0;
    if (ok && input)
        ok = json_object_set_new(o, "input_filename", json_string(input->filename)) == 0;
    if (ok) return o;
    json_decref(o);
    return NULL;
}

static cn_status show_job(const cn_batch *b, json_t **batch)
{
    *batch = public(b);
    return *batch ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a batch");
}

static cn_status create_job(cn_batches *b, const cn_viewer *v, const json_t *body, json_t **batch)
{
    if (count_unfinished(b) >= b->opts.max_batches)
        return cn_fail(CN_ERR_BUSY,
                       "there are already %u unfinished batches (--max-batches): wait until one "
                       "finishes, or cancel one",
                       b->opts.max_batches);
    cn_batch_record r = {.created_at = cn_batches_now(b), .order = b->next_order};
    cn_status status = read_request(b, v, body, &r);
    if (status != CN_OK) {
        cn_batch_record_free(&r);
        return status;
    }
    /* Unfinished records stay, so there may be up to max_batches more than max_kept. */
    while (b->n >= b->opts.max_kept && forget_one(b, r.owner)) continue;
    CN_TRY(add_batch_record(b, &r));
    cn_batch *made = b->all[b->n - 1];
    if (cn_batch_enter(made, CN_BATCH_STATUS_VALIDATING)) return show_job(made, batch);
    cn_buf why = {0};
    status = cn_buf_addf(&why, "%s", cn_last_error()) == CN_OK ? CN_ERR_IO : CN_ERR_MEMORY;
    (void)cn_spool_remove_record(b->spool, CN_SPOOL_BATCHES, &made->record.id);
    drop_job(b, b->n - 1);
    cn_fail(status, "%s", why.data ? why.data : "out of memory for a batch");
    cn_buf_free(&why);
    return status;
}

cn_status cn_batches_create(cn_batches *b, const cn_viewer *v, const json_t *body, json_t **batch)
{
    /* The last has no effect: output files stay until they are deleted. */
    static const char *const known[] = {"input_file_id", "endpoint", "completion_window",
                                        "metadata", "output_expires_after", NULL};
    json_t *warnings = NULL;
    cn_status status = cn_api_unknown_members(b->opts.defaults.unknown, body, known, &warnings);
    if (status == CN_OK) status = create_job(b, v, body, batch);
    if (status == CN_OK && warnings && json_object_set(*batch, "warnings", warnings) != 0) {
        json_decref(*batch);
        status = cn_fail(CN_ERR_MEMORY, "out of memory for a batch");
    }
    json_decref(warnings);
    return status;
}

/* ---- get, list, cancel ---- */

static bool is_seen(const cn_viewer *v, const cn_batch *b)
{
    return cn_viewer_sees(v, b->record.owner);
}

/* b->n: no such batch for this viewer. */
static size_t find_seen(const cn_batches *b, const cn_viewer *v, const cn_spool_id *id)
{
    const size_t i = index_of(b, id);
    return i < b->n && is_seen(v, b->all[i]) ? i : b->n;
}

json_t *cn_batches_get(const cn_batches *b, const cn_viewer *v, const cn_spool_id *id)
{
    const size_t i = find_seen(b, v, id);
    return i < b->n ? public(b->all[i]) : NULL;
}

cn_status cn_batches_list(const cn_batches *b, const cn_viewer *v, const cn_spool_id *after,
                          uint32_t limit, json_t **list)
{
    size_t i = after ? find_seen(b, v, after) : b->n;
    if (after && i == b->n)
        return cn_fail(CN_ERR_ARG, "after: no such batch: \"%s\"", after->text);
    json_t *data = json_array();
    bool ok = data != NULL, more = false;
    for (; ok && i > 0 && !more; i--) {
        if (!is_seen(v, b->all[i - 1])) continue;
        more = json_array_size(data) == limit;
        if (!more) ok = json_array_append_new(data, public(b->all[i - 1])) == 0;
    }
    *list = ok ? cn_spool_list_json(data, more) : NULL;
    json_decref(data);
    return *list ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a list of batches");
}

cn_status cn_batches_cancel(cn_batches *b, const cn_viewer *v, const cn_spool_id *id,
                            json_t **batch)
{
    const size_t i = find_seen(b, v, id);
    if (i == b->n) return cn_fail(CN_ERR_ARG, "no such batch: \"%s\"", id->text);
    cn_batch *batch_i = b->all[i];
    const cn_batch_status now = batch_i->record.status;
    if (now == CN_BATCH_STATUS_CANCELLING) return show_job(batch_i, batch);
    if (now != CN_BATCH_STATUS_VALIDATING && now != CN_BATCH_STATUS_IN_PROGRESS)
        return cn_fail(CN_ERR_ARG, "cannot cancel %s: expected status validating or in_progress, "
                       "got %s", id->text, cn_batch_status_name(now));
    if (!cn_batch_enter(batch_i, CN_BATCH_STATUS_CANCELLING))
        return cn_fail(CN_ERR_IO, "%s", batch_i->paused);
    cn_batch_abandon(batch_i);
    return show_job(batch_i, batch);
}
