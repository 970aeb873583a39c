/* merge.c - see merge.h. */
#include "engine/offline/merge.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/api/api_response.h"
#include "engine/api/http_status.h"
#include "engine/base/json.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/offline/batch_line.h"
#include "engine/offline/batch_run.h"
#include "engine/offline/merge_file.h"
#include "engine/offline/merge_table.h"
#include "engine/offline/output_scan.h"
#include "engine/offline/resume.h"

/* Lines of the input that are parsed together. */
enum { BATCH_LINES = 1024, BATCH_BYTES = 1 << 20, TASK_LINES = 32, MAX_THREADS = 16 };

/* Of so many lines one is always parsed, to see whether the input has changed since. */
enum { COMPARED_LINES = 16 };

typedef struct input_line {
    cn_line line;
    size_t at; /* in the batch's text */
    cn_merge_entry *quick; /* its only line, an answer; else NULL, and the item is parsed */
    cn_batch_item item;
    cn_status status;
} input_line;

typedef struct input_batch {
    input_line *at; /* [BATCH_LINES] */
    uint32_t n;
    cn_buf text;
    const cn_batch_format *format;
    const cn_merge_table *table;
} input_batch;

typedef struct merge {
    const cn_config *config;
    char *const *files;
    int *fds; /* [n_files] */
    uint32_t n_files;
    cn_merge_table table;
    cn_merge_report *report;

    json_t *record; /* of the first file; the others agree with it */
    cn_batch_format format;
    bool graded;
    cn_line_part part; /* of a shard, its index aside */
    cn_line_part *parts; /* [n_files] of the file; of 0: the whole input */
    uint8_t *gap;      /* [part.of] bits: shards with missing lines */

    cn_merge_file *output, *errors; /* errors NULL: they are in the output */
    bool writes;
    uint64_t run; /* random, in the ids of lines that the merge adds */
    cn_buf line;
    cn_cpu_pool *pool;
    input_batch batch;

    pthread_mutex_t lock; /* of the table and what follows, while outputs are scanned */
    cn_status failed;
    char why[1024];
} merge;

/* ---- the records ---- */

static const char *option_of(const json_t *record, const char *name)
{
    const char *text = json_string_value(json_object_get(json_object_get(record, "options"), name));
    return text && *text ? text : NULL;
}

/* Remembers which shard an output is of, and how the first such output says the input was split. */
static void take_shard(merge *m, uint32_t file, const json_t *record)
{
    const json_t *shard = json_object_get(record, "shard");
    const json_int_t of = json_integer_value(json_object_get(shard, "of"));
    const char *by = json_string_value(json_object_get(shard, "by"));
    if (of < 1 || of > CN_MAX_SHARDS || !by) return;
    const json_int_t index = json_integer_value(json_object_get(shard, "index"));
    m->parts[file] = (cn_line_part){
        .index = (uint32_t)index, .of = (uint32_t)of, .by_bytes = strcmp(by, "bytes") == 0};
    if (m->part.of == 0)
        m->part = (cn_line_part){.of = (uint32_t)of, .by_bytes = strcmp(by, "bytes") == 0};
    m->report->same_of &= m->part.of == (uint32_t)of;
    m->report->shard_of = m->part.of;
}

static cn_status read_records(merge *m)
{
    m->report->same_of = true;
    m->parts = cn_calloc(m->n_files, sizeof *m->parts);
    if (!m->parts) return cn_fail(CN_ERR_MEMORY, "out of memory for %u files", m->n_files);
    for (uint32_t i = 0; i < m->n_files; i++) {
        json_t *record = NULL;
        if (cn_run_record_is_awaited(m->files[i])) {
            cn_log(CN_LOG_WARN, "%s: a run has made it and written no line: ignored", m->files[i]);
            continue;
        }
        cn_status status = cn_run_record_load(&record, m->files[i]);
        if (status == CN_OK && m->record)
            status = cn_run_record_check_other(m->files[i], m->record);
        if (status == CN_OK) take_shard(m, i, record);
        if (status == CN_OK && !m->record)
            m->record = record;
        else
            json_decref(record);
        CN_TRY(status);
    }
    if (!m->record)
        return cn_fail(CN_ERR_ARG, "no output has a record: wait until a run has begun to write");
    m->format.prompt_field = option_of(m->record, "prompt-field");
    m->format.id_field = option_of(m->record, "id-field");
    const char *grade = option_of(m->record, "grade");
    m->graded = grade && strcmp(grade, "none") != 0;
    return cn_run_record_check_input(m->record, m->config->merge_input);
}

/* ---- the table ---- */

typedef struct file_scan {
    merge *m;
    uint32_t file;
} file_scan;

static cn_status take_output_line(void *user, const cn_output_line *line)
{
    const file_scan *s = user;
    if (line->n >= UINT32_MAX)
        return cn_fail(CN_ERR_ARG, "%s: a line of %zu bytes is too long", s->m->files[s->file],
                       line->n);
    cn_merge_entry e = {.id = line->id,
                        .request_hash = line->request_hash,
                        .offset = line->offset,
                        .file = s->file,
                        .n = (uint32_t)line->n};
    e.id.lo |= line->is_error;
    pthread_mutex_lock(&s->m->lock);
    const cn_status status = cn_merge_table_add(&s->m->table, &e);
    pthread_mutex_unlock(&s->m->lock);
    return status;
}

static void scan_output(void *user, uint32_t file, uint32_t worker)
{
    (void)worker;
    merge *m = user;
    file_scan s = {m, file};
    cn_output_flaws flaws;
    const cn_status status = cn_output_scan(m->files[file], take_output_line, &s, &flaws);
    pthread_mutex_lock(&m->lock);
    if (status == CN_OK) {
        cn_output_flaws_log(m->files[file], &flaws);
        m->report->n_flawed += flaws.n_damaged + (flaws.torn_bytes > 0);
    } else if (m->failed == CN_OK) {
        m->failed = status;
        snprintf(m->why, sizeof m->why, "%s", cn_last_error());
    }
    pthread_mutex_unlock(&m->lock);
}

/* Opens all outputs, which the merge reads at random. */
static cn_status open_outputs(merge *m)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* otherwise open may fail, and says so */
    }
    for (uint32_t i = 0; i < m->n_files; i++) {
        m->fds[i] = open(m->files[i], O_RDONLY | O_CLOEXEC);
        if (m->fds[i] < 0)
            return cn_fail(CN_ERR_IO, "%s: %s%s", m->files[i], strerror(errno),
                           errno == EMFILE ? ": raise ulimit -n above the number of outputs" : "");
    }
    return CN_OK;
}

/* Checks that the files that were scanned, by name, are those that are open. */
static cn_status check_scanned(const merge *m)
{
    struct stat opened, named;
    for (uint32_t i = 0; i < m->n_files; i++)
        if (fstat(m->fds[i], &opened) != 0 || stat(m->files[i], &named) != 0 ||
            opened.st_dev != named.st_dev || opened.st_ino != named.st_ino)
            return cn_fail(CN_ERR_BUSY, "%s: a run replaced it while it was read: merge again",
                           m->files[i]);
    return CN_OK;
}

static cn_status scan_outputs(merge *m)
{
    CN_TRY(open_outputs(m));
    cn_cpu_pool_run(m->pool, m->n_files, scan_output, m);
    if (m->failed != CN_OK) return cn_fail(m->failed, "%s", m->why);
    CN_TRY(check_scanned(m));
    CN_TRY(cn_merge_table_sort(&m->table));
    m->report->n_foreign = m->table.len;
    return CN_OK;
}

/* Reads the line of an entry, with a newline, into m->line. */
static cn_status read_entry(merge *m, const cn_merge_entry *e)
{
    cn_buf_clear(&m->line);
    CN_TRY(cn_buf_reserve(&m->line, (size_t)e->n + 1));
    for (size_t done = 0; done < e->n;) {
        const ssize_t got = pread(m->fds[e->file], m->line.data + done, e->n - done,
                                  (off_t)(e->offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return cn_fail(CN_ERR_IO, "%s: read: %s", m->files[e->file],
                           got < 0 ? strerror(errno) : "it changed while it was read");
        done += (size_t)got;
    }
    m->line.len = e->n;
    return cn_buf_add(&m->line, "\n", 1);
}

/* ---- one request ---- */

static bool is_better(const cn_merge_entry *a, const cn_merge_entry *b, uint64_t hash)
{
    if (cn_merge_entry_is_error(a) != cn_merge_entry_is_error(b))
        return cn_merge_entry_is_error(b);
    return a->request_hash == hash && b->request_hash != hash;
}

/* What a model said in a line, without what differs between runs. */
static json_t *said_in(merge *m, const cn_merge_entry *e)
{
    json_error_t error;
    if (read_entry(m, e) != CN_OK) return NULL;
    json_t *line = json_loadb(m->line.data, m->line.len, JSON_ALLOW_NUL, &error);
    const json_t *body = json_object_get(json_object_get(line, "response"), "body");
    json_t *said = json_object_get(body, "choices");
    size_t i;
    json_t *item;
    if (!said) said = json_object_get(body, "output");
    json_array_foreach(said, i, item) json_object_del(item, "id");
    json_incref(said);
    json_decref(line);
    return said;
}

/* Counts the lines of a request beside the one that is used. */
static void count_duplicates(merge *m, const cn_merge_entry *first, size_t n,
                             const cn_merge_entry *best)
{
    for (size_t i = 0; i < n; i++) {
        if (&first[i] == best || first[i].input_line) continue;
        m->report->n_duplicates++;
        if (cn_merge_entry_is_error(&first[i]) || cn_merge_entry_is_error(best)) continue;
        json_t *a = said_in(m, &first[i]), *b = said_in(m, best);
        m->report->n_different += a && b && !json_equal(a, b);
        json_decref(a);
        json_decref(b);
    }
}

/* Writes m->line, the line of this entry, or of none. */
static cn_status put_merge_line(merge *m, bool is_error)
{
    cn_batch_line_figures f;
    cn_merge_report *r = m->report;
    if (is_error)
        r->n_errors++;
    else
        r->n_answered++;
    if (m->graded && cn_batch_line_parse(&f, m->line.data, m->line.len) == CN_OK) {
        r->graded += f.graded;
        r->matched += f.matched;
    }
    if (!m->writes) return CN_OK;
    return cn_merge_file_add(is_error && m->errors ? m->errors : m->output, &m->line);
}

static bool in_input_order(const merge *m) { return m->config->order == CN_OPT_ORDER_INPUT; }

/* Writes the error line of a line whose custom_id an earlier line has: their shards did not know of
 * each other. */
static cn_status put_duplicate(merge *m, cn_batch_item *item, uint64_t earlier)
{
    char text[CN_MERGE_ID_BYTES + sizeof CN_BATCH_DUPLICATE_TEXT], shown[CN_MERGE_ID_BYTES];
    snprintf(text, sizeof text, CN_BATCH_DUPLICATE_TEXT,
             cn_json_printable(item->custom_id, shown, sizeof shown));
    cn_log(CN_LOG_WARN, "lines %llu and %llu have the same custom_id \"%s\"",
           (unsigned long long)earlier, (unsigned long long)item->line, shown);
    const cn_batch_notes notes = {.request_hash = item->request_hash, .run = m->run};
    json_t *body =
        cn_api_error_body(CN_HTTP_BAD_REQUEST, text, NULL, CN_BATCH_DUPLICATE, item->line);
    cn_buf_clear(&m->line);
    CN_TRY(cn_batch_line_format(&m->line, item->id, item->custom_id, CN_HTTP_BAD_REQUEST, body,
                                &notes));
    return put_merge_line(m, true);
}

/* ---- missing lines ---- */

/* The shard that a line of the input belongs to, where it is split as for this part. */
static uint32_t shard_of(cn_line_part part, const cn_line *line, uint64_t input_bytes)
{
    if (!part.by_bytes) return (uint32_t)((line->number - 1) % part.of);
    uint64_t from, to;
    if (line->offset >= input_bytes) return part.of - 1; /* the input grew after it was opened */
    part.index = (uint32_t)((unsigned __int128)line->offset * part.of / input_bytes);
    for (;; part.index++) { /* the quotient may be one too small */
        cn_line_part_bytes(&part, input_bytes, &from, &to);
        if (line->offset < to || part.index + 1 == part.of) return part.index;
    }
}

static void note_missing(merge *m, const cn_batch_item *item, const cn_line *line,
                         uint64_t input_bytes)
{
    cn_merge_report *r = m->report;
    char shown[CN_MERGE_ID_BYTES];
    if (r->n_missing < CN_MERGE_IDS_SHOWN && item->custom_id)
        snprintf(r->missing[r->n_missing], CN_MERGE_ID_BYTES, "%s",
                 cn_json_printable(item->custom_id, shown, sizeof shown));
    else if (r->n_missing < CN_MERGE_IDS_SHOWN)
        snprintf(r->missing[r->n_missing], CN_MERGE_ID_BYTES, "line %llu",
                 (unsigned long long)line->number);
    r->n_missing++;
    m->writes &= m->config->allow_missing;
    if (m->part.of == 0) return;
    const uint32_t shard = shard_of(m->part, line, input_bytes);
    m->gap[shard / 8] = (uint8_t)(m->gap[shard / 8] | 1U << shard % 8);
}

/* Appends the shards with missing lines as Slurm writes an array: "3,17-19". */
static cn_status list_missing_shards(merge *m)
{
    for (uint32_t i = 0; i < m->part.of; i++) {
        uint32_t end = i;
        while (end < m->part.of && m->gap[end / 8] >> end % 8 & 1) end++;
        if (end == i) continue;
        cn_buf *text = &m->report->missing_shards;
        CN_TRY(cn_buf_addf(text, "%s%u", text->len ? "," : "", i));
        if (end > i + 1) CN_TRY(cn_buf_addf(text, "-%u", end - 1));
        i = end;
    }
    return CN_OK;
}

/* ---- the input ---- */

/* Whether the entry's output had to answer this line. An output of another shard may answer a later
 * line with the same custom_id. */
static bool owns_merge(const merge *m, const cn_merge_entry *e, const cn_line *line,
                       uint64_t input_bytes)
{
    const cn_line_part *part = &m->parts[e->file];
    return part->of == 0 || shard_of(*part, line, input_bytes) == part->index;
}

/* Finds the lines of an item. An item whose custom_id an earlier line has is identified by its line
 * instead, as a run does; *earlier is then the number of that line. */
static cn_merge_entry *find_item(const merge *m, cn_batch_item *item, const cn_line *line,
                                 uint64_t *earlier, size_t *n)
{
    cn_merge_entry *first = cn_merge_table_find(&m->table, item->id, n);
    *earlier = 0;
    for (size_t i = 0; item->custom_id && i < *n; i++)
        if (first[i].input_line) *earlier = first[i].input_line;
    if (!*earlier) return first;
    cn_batch_item_use_line_id(item, line);
    return cn_merge_table_find(&m->table, item->id, n);
}

/* Answers a line of the input with this entry. */
static cn_status use_entry(merge *m, cn_merge_entry *e, const cn_line *line)
{
    e->input_line = line->number;
    m->report->n_foreign--;
    if (!in_input_order(m)) return CN_OK;
    if (m->writes || m->graded) CN_TRY(read_entry(m, e));
    return put_merge_line(m, cn_merge_entry_is_error(e));
}

static cn_status take_item(merge *m, cn_batch_item *item, const cn_line *line,
                           uint64_t input_bytes)
{
    uint64_t earlier;
    size_t n;
    cn_merge_entry *first = find_item(m, item, line, &earlier, &n);
    if (!first && earlier) return put_duplicate(m, item, earlier);
    if (!first) {
        note_missing(m, item, line, input_bytes);
        return CN_OK;
    }
    cn_merge_entry *best = NULL;
    for (size_t i = 0; i < n; i++) {
        const bool same = item->request_hash && first[i].request_hash == item->request_hash;
        if (!same && !owns_merge(m, &first[i], line, input_bytes)) continue;
        if (!best || is_better(&first[i], best, item->request_hash)) best = &first[i];
    }
    if (!best) {
        note_missing(m, item, line, input_bytes);
        return CN_OK;
    }
    count_duplicates(m, first, n, best);
    m->report->n_foreign -= n - 1;
    if (best->request_hash && item->request_hash && item->custom_id) {
        m->report->n_compared++;
        m->report->n_changed += best->request_hash != item->request_hash;
    }
    return use_entry(m, best, line);
}

/* Reads the id of a line without parsing it: its number, or a string without escapes that is the
 * first member. The guess may be wrong about a line that runs found invalid. */
static bool guess_id(const cn_line *line, const cn_batch_format *format, cn_id *out)
{
    char number[24];
    const bool by_number = format->prompt_field && !format->id_field;
    const char *field = format->prompt_field ? format->id_field : "custom_id";
    if (by_number) {
        const int n =
            snprintf(number, sizeof number, "%llu", (unsigned long long)line->number);
        *out = cn_id_of("custom_id", number, (size_t)n);
        return true;
    }
    const size_t n_field = strlen(field);
    const char *at = line->text, *end = at + line->n;
    if (line->n < n_field + 8 || memcmp(at, "{\"", 2) != 0 || memcmp(at + 2, field, n_field) != 0)
        return false;
    at += 2 + n_field;
    if (memcmp(at, "\":", 2) != 0) return false;
    at += at[2] == ' ' ? 3 : 2;
    if (*at++ != '"') return false;
    const char *quote = memchr(at, '"', (size_t)(end - at));
    if (!quote || memchr(at, '\\', (size_t)(quote - at))) return false;
    *out = cn_id_of("custom_id", at, (size_t)(quote - at));
    return true;
}

/* Whether the outputs have an error line for a line that is identified by its number and text. */
static bool is_found_invalid(const input_batch *b, const cn_line *line)
{
    size_t n;
    cn_batch_item invalid = {0};
    if (b->table->n_errors == 0) return false;
    cn_batch_item_use_line_id(&invalid, line);
    return cn_merge_table_find(b->table, invalid.id, &n) != NULL;
}

/* The answer to a line that has one line in the outputs. It is not parsed: the answer shows that a
 * run found it valid, and there is no choice that the request could decide. */
static cn_merge_entry *quick_answer(const input_batch *b, const cn_line *line)
{
    cn_id id;
    size_t n;
    const bool compared = line->number % COMPARED_LINES == 1;
    if (compared || !guess_id(line, b->format, &id)) return NULL;
    if (is_found_invalid(b, line)) return NULL;
    cn_merge_entry *e = cn_merge_table_find(b->table, id, &n);
    return n == 1 && !cn_merge_entry_is_error(e) ? e : NULL;
}

static void identify_merge_line(const input_batch *b, input_line *l)
{
    l->status = cn_batch_item_identify(&l->item, &l->line, b->format);
    if (l->status == CN_ERR_ARG) l->status = CN_OK; /* an invalid line has an error line */
    cn_batch_item_drop_request(&l->item);
}

static void identify_lines(void *user, uint32_t task, uint32_t worker)
{
    (void)worker;
    input_batch *b = user;
    const uint32_t end = cn_min_u32((task + 1) * TASK_LINES, b->n);
    for (uint32_t i = task * TASK_LINES; i < end; i++) {
        input_line *l = &b->at[i];
        l->line.text = b->text.data + l->at;
        l->quick = quick_answer(b, &l->line);
        if (!l->quick) identify_merge_line(b, l);
    }
}

/* Reads and parses the next lines; b->n is 0 at the end. */
static cn_status read_batch(merge *m, cn_line_reader *reader)
{
    input_batch *b = &m->batch;
    b->n = 0;
    cn_buf_clear(&b->text);
    while (b->n < BATCH_LINES && b->text.len < BATCH_BYTES) {
        cn_line line;
        cn_line_state state;
        CN_TRY(cn_line_reader_next(reader, -1, &line, &state));
        if (state == CN_LINE_END) break;
        if (state != CN_LINE_READY) continue;
        b->at[b->n++] = (input_line){.line = line, .at = b->text.len};
        CN_TRY(cn_buf_add(&b->text, line.text, line.n));
    }
    cn_cpu_pool_run(m->pool, (b->n + TASK_LINES - 1) / TASK_LINES, identify_lines, b);
    return CN_OK;
}

static cn_status take_batch(merge *m, uint64_t input_bytes)
{
    cn_status status = CN_OK;
    for (uint32_t i = 0; i < m->batch.n && status == CN_OK; i++) {
        input_line *l = &m->batch.at[i];
        if (l->quick && !l->quick->input_line && owns_merge(m, l->quick, &l->line, input_bytes)) {
            status = use_entry(m, l->quick, &l->line);
            continue;
        }
        if (l->quick) identify_merge_line(&m->batch, l); /* another line has its custom_id */
        if (l->status != CN_OK)
            status = cn_fail(l->status, "line %llu cannot be read: out of memory",
                             (unsigned long long)l->line.number);
        if (status == CN_OK) status = take_item(m, &l->item, &l->line, input_bytes);
    }
    for (uint32_t i = 0; i < m->batch.n; i++) cn_batch_item_free(&m->batch.at[i].item);
    m->report->n_lines += m->batch.n;
    return status;
}

static cn_status read_input(merge *m, cn_line_reader *reader)
{
    const uint64_t input_bytes = cn_line_reader_bytes_total(reader);
    do {
        CN_TRY(read_batch(m, reader));
        CN_TRY(take_batch(m, input_bytes));
    } while (m->batch.n > 0);
    return CN_OK;
}

/* The lines that the input has chosen, in the order of the outputs. */
static cn_status copy_chosen(merge *m)
{
    cn_merge_table_sort_by_place(&m->table);
    for (size_t i = 0; i < m->table.len; i++) {
        const cn_merge_entry *e = &m->table.at[i];
        if (!e->input_line) continue;
        if (m->writes || m->graded) CN_TRY(read_entry(m, e));
        CN_TRY(put_merge_line(m, cn_merge_entry_is_error(e)));
    }
    return CN_OK;
}

/* ---- the whole ---- */

static cn_status open_files(merge *m, cn_line_reader **reader)
{
    const cn_config *c = m->config;
    m->fds = cn_calloc(m->n_files, sizeof *m->fds);
    m->gap = cn_calloc(m->part.of / 8 + 1, 1);
    m->batch.at = cn_calloc(BATCH_LINES, sizeof *m->batch.at);
    m->batch.format = &m->format;
    m->batch.table = &m->table;
    if (!m->fds || !m->gap || !m->batch.at)
        return cn_fail(CN_ERR_MEMORY, "out of memory for %u files", m->n_files);
    for (uint32_t i = 0; i < m->n_files; i++) m->fds[i] = -1;
    CN_TRY(cn_cpu_pool_create(&m->pool, cn_min_u32(cn_cpu_count(), MAX_THREADS)));
    CN_TRY(cn_random_bytes(&m->run, sizeof m->run));
    CN_TRY(cn_line_reader_open(reader, c->merge_input, CN_BATCH_MAX_LINE_BYTES));
    if (cn_line_reader_bytes_total(*reader) == 0)
        return cn_fail(CN_ERR_ARG, "--input-file %s: expected a file with lines: that of the runs",
                       c->merge_input);
    CN_TRY(cn_merge_file_open(&m->output, c->merge_output));
    if (c->merge_errors) CN_TRY(cn_merge_file_open(&m->errors, c->merge_errors));
    m->writes = true;
    return CN_OK;
}

/* Gives the files their names, and the output the record of a run over the whole input. */
static cn_status finish(merge *m)
{
    if (m->errors) CN_TRY(cn_merge_file_commit(m->errors));
    cn_run_record_remove(m->config->merge_output); /* that of the file which is replaced */
    CN_TRY(cn_merge_file_commit(m->output));
    json_object_del(m->record, "shard");
    json_object_del(json_object_get(m->record, "input"), "bytes");
    CN_TRY(cn_run_record_write_json(m->config->merge_output, m->record));
    m->report->written = true;
    return CN_OK;
}

static cn_status run_merge(merge *m)
{
    cn_line_reader *reader = NULL;
    CN_TRY(read_records(m));
    cn_status status = open_files(m, &reader);
    if (status == CN_OK) status = scan_outputs(m);
    if (status == CN_OK) status = read_input(m, reader);
    cn_line_reader_close(reader);
    CN_TRY(status);
    if (!in_input_order(m)) CN_TRY(copy_chosen(m));
    CN_TRY(list_missing_shards(m));
    return m->writes ? finish(m) : CN_OK;
}

cn_status cn_merge(const cn_config *c, char *const *files, uint32_t n_files, cn_merge_report *out)
{
    *out = (cn_merge_report){0};
    merge m = {.config = c,
               .files = files,
               .n_files = n_files,
               .report = out,
               .lock = PTHREAD_MUTEX_INITIALIZER};
    const cn_status status = run_merge(&m);
    for (uint32_t i = 0; m.fds && i < n_files; i++)
        if (m.fds[i] >= 0) close(m.fds[i]);
    cn_merge_file_close(m.output);
    cn_merge_file_close(m.errors);
    cn_cpu_pool_free(m.pool);
    cn_merge_table_free(&m.table);
    cn_buf_free(&m.batch.text);
    cn_free(m.batch.at);
    cn_buf_free(&m.line);
    cn_free(m.fds);
    cn_free(m.parts);
    cn_free(m.gap);
    json_decref(m.record);
    return status;
}

void cn_merge_report_free(cn_merge_report *r) { cn_buf_free(&r->missing_shards); }
