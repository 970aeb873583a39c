/* resume.c - see resume.h. */
#include "engine/offline/resume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compress/selector.h"
#include "engine/base/json.h"
#include "engine/offline/batch_line.h"
#include "engine/offline/fingerprint.h"
#include "engine/offline/first_lines.h"
#include "engine/base/replace_file.h"
#include "engine/options/option_value.h"

enum { RECORD_FORMAT = 1, MAX_RECORD_BYTES = 1 << 20, MAX_RECORD_DEPTH = 4 };
static const char record_suffix[] = ".cinch-run";
static const char rules_key[] = "rule_defaults"; /* defaults of options depended on --kv-rule */

/* ---- the record ---- */

/* One name for a value that has two. */
static void use_one_name(json_t *options)
{
    static const char option[] = "kv-cache-dtype";
    const char *value = json_string_value(json_object_get(options, option));
    if (value && strcmp(value, "fp8_e4m3") == 0)
        json_object_set_new(options, option, json_string("fp8"));
}

/* Converts "option=value" lines to {"option": "value"}. */
static json_t *options_json(const cn_buf *lines)
{
    json_t *options = json_object();
    for (const char *at = lines->data; options && at && *at;) {
        const size_t n = strcspn(at, "\n"), name = strcspn(at, "=");
        char *key = cn_strndup(at, name);
        if (!key || name >= n ||
            json_object_set_new(options, key, json_stringn(at + name + 1, n - name - 1)) != 0) {
            json_decref(options);
            options = NULL;
        }
        cn_free(key);
        at += n + (at[n] == '\n');
    }
    use_one_name(options);
    return options;
}

/* Which shard a run answers; NULL: the whole input. */
static json_t *shard_json(const cn_config *c)
{
    if (c->shard_of == 0) return NULL;
    return json_pack("{s:I, s:I, s:s}", "index", (json_int_t)c->shard_index, "of",
                     (json_int_t)c->shard_of, "by",
                     c->shard_by == CN_OPT_SHARD_BY_BYTES ? "bytes" : "line");
}

/* The path of the input and a hash of its first line, with a shard also its size: null for standard
 * input and pipes. */
static cn_status describe_input(json_t **out, const char *input_path, bool has_size)
{
    uint64_t first = 0;
    char text[17];
    *out = json_null();
    if (!input_path) return CN_OK;
    CN_TRY(cn_first_line_hash(input_path, &first));
    char *path = first ? realpath(input_path, NULL) : NULL;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)first);
    json_t *input = path ? json_pack("{s:s, s:s}", "path", path, "first_line", text) : NULL;
    struct stat st;
    if (input && has_size && stat(path, &st) == 0)
        json_object_set_new(input, "bytes", json_integer((json_int_t)st.st_size));
    if (input) *out = input;
    free(path);
    return CN_OK;
}

/* Appends a record as the text of its file. record: NULL if out of memory. */
static cn_status add_text(cn_buf *out, const json_t *record)
{
    char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
    if (!text)
        return cn_fail(CN_ERR_MEMORY, "options as JSON: out of memory, or a value is not UTF-8");
    const cn_status status = cn_buf_addf(out, "%s\n", text);
    free(text);
    return status;
}

cn_status cn_run_record_make(cn_buf *out, const cn_config *c)
{
    uint64_t model, channels, chat, head;
    char model_text[17], channels_text[17], chat_text[17], head_text[17];
    json_t *input;
    const cn_selector_needs needs = cn_selectors_need(cn_config_selectors(c));
    CN_TRY(cn_fingerprint(&model, c->model, c->tokenizer));
    CN_TRY(cn_fingerprint_channels(&channels, c->model));
    CN_TRY(cn_fingerprint_head(&head, c->model));
    CN_TRY(cn_fingerprint_template(&chat, c->chat_template));
    snprintf(head_text, sizeof head_text, "%016llx", (unsigned long long)head);
    snprintf(chat_text, sizeof chat_text, "%016llx", (unsigned long long)chat);
    snprintf(model_text, sizeof model_text, "%016llx", (unsigned long long)model);
    snprintf(channels_text, sizeof channels_text, "%016llx", (unsigned long long)channels);
    CN_TRY(describe_input(&input, c->input_file, c->shard_of > 0));
    cn_buf lines = {0};
    cn_status status = cn_config_result_text(c, &lines);
    json_t *record = NULL;
    if (status == CN_OK)
        record = json_pack("{s:i, s:s, s:s, s:s*, s:s*, s:s*, s:b, s:O, s:o*, s:o}", "cinch_run",
                           RECORD_FORMAT, "version", CINCH_VERSION, "model", model_text, "channels",
                           needs.labels ? channels_text : NULL, "retrieval_head",
                           needs.head ? head_text : NULL, "chat_template", chat ? chat_text : NULL,
                           rules_key, 1, "input", input, "shard", shard_json(c), "options",
                           options_json(&lines));
    json_decref(input);
    if (status == CN_OK) status = add_text(out, record);
    json_decref(record);
    cn_buf_free(&lines);
    return status;
}

cn_status cn_run_record_path(cn_buf *out, const char *output_path)
{
    char *real = cn_resolve_path(output_path);
    const cn_status status = cn_buf_addf(out, "%s%s", real ? real : output_path, record_suffix);
    cn_free(real);
    return status;
}

/* Replaces what has this name instead of writing through it: it may be a link. */
static cn_status write_whole(const char *path, const cn_buf *text)
{
    if (unlink(path) != 0 && errno != ENOENT)
        return cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    cn_status status = CN_OK;
    if (cn_write_all(fd, text->data, text->len) != text->len || fsync(fd) != 0)
        status = cn_fail(CN_ERR_IO, "%s: write: %s", path, strerror(errno));
    close(fd);
    if (status != CN_OK) unlink(path);
    return status;
}

void cn_run_record_remove(const char *output_path)
{
    cn_buf path = {0};
    if (cn_run_record_path(&path, output_path) == CN_OK) unlink(path.data);
    cn_buf_free(&path);
}

bool cn_run_record_is_awaited(const char *output_path)
{
    struct stat st;
    cn_buf path = {0};
    const bool none =
        cn_run_record_path(&path, output_path) == CN_OK && access(path.data, F_OK) != 0;
    cn_buf_free(&path);
    return none && stat(output_path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
}

cn_status cn_run_record_write(const char *output_path, const cn_buf *record)
{
    cn_buf path = {0}, beside = {0};
    cn_status status = cn_run_record_path(&path, output_path);
    if (status == CN_OK) status = cn_buf_addf(&beside, "%s.tmp", path.data);
    if (status == CN_OK) status = write_whole(beside.data, record);
    if (status == CN_OK && rename(beside.data, path.data) != 0)
        status = cn_fail(CN_ERR_IO, "%s: rename: %s", path.data, strerror(errno));
    cn_buf_free(&path);
    cn_buf_free(&beside);
    return status;
}

/* ---- comparing ---- */

/* Gives a record of an older version the options that it lacks: what cinch did before they existed
 * (cn_option.before), which is their default if the row has no other value. */
static cn_status add_missing_options(json_t *options)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    cn_config *c = cn_config_create();
    cn_status status = c ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a configuration");
    use_one_name(options);
    for (size_t i = 0; status == CN_OK && i < n; i++) {
        cn_buf text = {0};
        if (!(o[i].flags & CN_OPTION_RESULT) || json_object_get(options, o[i].name)) continue;
        if (o[i].before) status = cn_option_set_text(c, &o[i], o[i].before);
        if (status == CN_OK) status = cn_option_format(&o[i], c, &text);
        if (status == CN_OK)
            json_object_set_new(options, o[i].name, json_string(text.data ? text.data : ""));
        cn_buf_free(&text);
    }
    cn_config_free(c);
    return status;
}

/* Drops what no longer exists from a record of an older version. CN_ERR_ARG: its value is not what
 * cinch does now. */
static cn_status drop_removed_options(json_t *options)
{
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(options, next, name, value)
    {
        const cn_removed_option *o = cn_option_find(name) ? NULL : cn_removed_option_find(name);
        if (!o) continue;
        CN_TRY(cn_removed_option_check(o, json_string_value(value)));
        json_object_del(options, name);
    }
    return CN_OK;
}

/* An option that is not set is recorded as an empty text. */
static const char *shown_resume(const json_t *v)
{
    const char *text = json_string_value(v);
    return text && *text ? text : "unset";
}

static bool same_option(const json_t *a, const json_t *b)
{
    return a == b || (a && b && json_equal(a, b));
}

/* Whether an option may differ: its default is not that of an older version, and no request of this
 * engine reads it. */
static bool may_differ(const cn_config *c, const char *name)
{
    const cn_option *o = c ? cn_option_find(name) : NULL;
    return o && o->before && o->section == CN_SECTION_KV && !cn_config_reads_kv(c, o);
}

/* Fails at the first option that differs or that only one of the two has. c NULL: none may differ.
 */
static cn_status compare_options(json_t *then, json_t *now, const cn_config *c)
{
    const char *name;
    json_t *v;
    json_t *const both[] = {then, now};
    for (int i = 0; i < 2; i++)
        json_object_foreach(both[i], name, v)
        {
            const json_t *a = json_object_get(then, name), *b = json_object_get(now, name);
            if (!same_option(a, b) && !may_differ(c, name))
                return cn_fail(CN_ERR_ARG, "--%s was %s and is now %s, which changes results", name,
                               shown_resume(a), shown_resume(b));
        }
    return CN_OK;
}

/* Refuses another file with another first line. A file that moved, grew or was edited in place is
 * the same input. */
static cn_status compare_inputs(const json_t *then, const json_t *now)
{
    const char *old = json_string_value(json_object_get(then, "path"));
    const char *path = json_string_value(json_object_get(now, "path"));
    const json_t *first = json_object_get(then, "first_line");
    if (!old || !path || strcmp(old, path) == 0 ||
        json_equal(first, json_object_get(now, "first_line")))
        return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "the run reads %s, and %s is another input: its first line differs", old, path);
}

static cn_status compare_resume(json_t *then, json_t *now, const cn_config *c)
{
    const json_t *format = json_object_get(then, "cinch_run");
    const json_t *model = json_object_get(then, "model");
    const json_t *version = json_object_get(then, "version");
    json_t *options = json_object_get(then, "options");
    const char *name;
    json_t *v;
    if (json_integer_value(format) != RECORD_FORMAT || !json_is_string(model) ||
        !json_is_string(version) || !json_is_object(options))
        return cn_fail(CN_ERR_ARG, "is not the record of a run");
    CN_TRY(add_missing_options(options));
    json_object_foreach(options, name, v) if (!json_is_string(v))
        return cn_fail(CN_ERR_ARG, "is not the record of a run: option %s: expected a string",
                       name);
    if (!json_equal(model, json_object_get(now, "model")))
        return cn_fail(CN_ERR_ARG, "the checkpoint differs from that of the run");
    CN_TRY(compare_inputs(json_object_get(then, "input"), json_object_get(now, "input")));
    const json_t *channels = json_object_get(then, "channels");
    const json_t *channels_now = json_object_get(now, "channels");
    if (channels && channels_now && !json_equal(channels, channels_now))
        return cn_fail(CN_ERR_ARG, "select.safetensors differs from that of the run");
    const json_t *head = json_object_get(then, "retrieval_head");
    const json_t *head_now = json_object_get(now, "retrieval_head");
    if (head && head_now && !json_equal(head, head_now))
        return cn_fail(CN_ERR_ARG,
                       "retrieval.safetensors or retrieval.json differs from that of the run");
    const json_t *chat = json_object_get(then, "chat_template");
    const json_t *chat_now = json_object_get(now, "chat_template");
    if (chat && chat_now && !json_equal(chat, chat_now))
        return cn_fail(CN_ERR_ARG, "the file of --chat-template differs from that of the run");
    if (!json_equal(version, json_object_get(now, "version")))
        cn_log(CN_LOG_WARN, "the run began with cinch %s, this is cinch %s",
               json_string_value(version), CINCH_VERSION);
    CN_TRY(drop_removed_options(options));
    return compare_options(options, json_object_get(now, "options"), c);
}

static cn_status parse_record(json_t **out, const char *text, size_t n)
{
    return cn_json_parse(out, text, n, "the run's record", MAX_RECORD_BYTES, MAX_RECORD_DEPTH,
                         CN_ERR_ARG);
}

cn_status cn_run_record_compare(const char *then, const char *now, const cn_config *c,
                                bool *any_rule)
{
    json_t *a = NULL, *b = NULL;
    cn_status status = parse_record(&a, then, strlen(then));
    *any_rule = !json_is_true(json_object_get(a, rules_key));
    if (status == CN_OK) status = parse_record(&b, now, strlen(now));
    if (status == CN_OK) status = compare_resume(a, b, c);
    json_decref(a);
    json_decref(b);
    return status;
}

/* Whether the option had this value by default, with any rule. */
static bool is_old_default(const cn_option *o, const char *value)
{
    return cn_option_follows_rule(o) && strcmp(value, o->fallback) == 0;
}

/* Takes the values that the run began with, of options with a value `before`. In a run of a version
 * whose defaults did not depend on the rule (has_rules false), the options that have such defaults
 * now count as given: requests keep them with any rule. A value that no longer exists is left to
 * cn_run_record_check. */
static cn_status adopt(json_t *options, bool has_rules, cn_config *c)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    CN_TRY(add_missing_options(options));
    for (size_t i = 0; i < n; i++) {
        const char *value = json_string_value(json_object_get(options, o[i].name));
        if (!value || c->given[i]) continue;
        const bool keeps = !has_rules && is_old_default(&o[i], value);
        if (!o[i].before && !keeps) continue;
        const cn_status status = cn_option_set_text(c, &o[i], value);
        if (status == CN_ERR_MEMORY) return status;
        c->given[i] = keeps;
    }
    return CN_OK;
}

cn_status cn_run_record_adopt(const char *output_path, cn_config *c)
{
    cn_buf path = {0};
    json_t *record = NULL;
    CN_TRY(cn_run_record_path(&path, output_path));
    const bool readable =
        access(path.data, F_OK) == 0 &&
        cn_json_load_file(&record, path.data, MAX_RECORD_BYTES, MAX_RECORD_DEPTH) == CN_OK;
    cn_buf_free(&path);
    cn_status status = CN_OK; /* cn_run_record_check says what is wrong with the record */
    json_t *options = json_object_get(record, "options");
    if (readable && json_is_object(options))
        status = adopt(options, json_is_true(json_object_get(record, rules_key)), c);
    json_decref(record);
    return status;
}

/* "shard 3 of 64 by line", or "all lines" */
static void name_shard(char *text, size_t size, const json_t *shard)
{
    if (json_is_object(shard))
        snprintf(text, size, "shard %lld of %lld by %s",
                 (long long)json_integer_value(json_object_get(shard, "index")),
                 (long long)json_integer_value(json_object_get(shard, "of")),
                 json_string_value(json_object_get(shard, "by")));
    else
        snprintf(text, size, "all lines");
}

/* Refuses to continue the output of another shard, and one by bytes if the parts are others. */
static cn_status compare_shards(const char *output_path, const json_t *then, const json_t *now)
{
    const json_t *a = json_object_get(then, "shard"), *b = json_object_get(now, "shard");
    const json_t *by = json_object_get(b, "by");
    const json_t *old = json_object_get(json_object_get(then, "input"), "bytes");
    const json_t *size = json_object_get(json_object_get(now, "input"), "bytes");
    char names[2][96];
    name_shard(names[0], sizeof names[0], a);
    name_shard(names[1], sizeof names[1], b);
    if (strcmp(names[0], names[1]) != 0)
        return cn_fail(CN_ERR_ARG,
                       "the output holds %s, and this is %s: use another --output-file, and --done "
                       "'%s' to keep these answers", names[0], names[1], output_path);
    if (!by || strcmp(json_string_value(by), "bytes") != 0 || json_equal(old, size)) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "%s: the input had %lld bytes and has %lld now, so the parts are others: use "
                   "another --output-file, and --done '%s' to keep these answers", names[0],
                   (long long)json_integer_value(old), (long long)json_integer_value(size),
                   output_path);
}

/* Reads the record beside an output, which has this path. CN_ERR_ARG: there is none, and why it is
 * needed is appended. */
static cn_status load_record(json_t **out, const cn_buf *path, const char *why)
{
    if (access(path->data, F_OK) != 0)
        return cn_fail(CN_ERR_ARG, "%s does not exist: %s", path->data, why);
    const cn_status status =
        cn_json_load_file(out, path->data, MAX_RECORD_BYTES, MAX_RECORD_DEPTH);
    return status == CN_ERR_MODEL /* it could be read */
               ? cn_fail_within(status, "the record of the run is damaged (write another output "
                                        "file)")
               : status;
}

cn_status cn_run_record_check(const char *output_path, const cn_buf *record)
{
    cn_buf path = {0};
    CN_TRY(cn_run_record_path(&path, output_path));
    json_t *then = NULL, *now = NULL;
    cn_status status = load_record(&then, &path,
                                   "--resume only continues an output that run-batch began");
    if (status == CN_OK) status = parse_record(&now, record->data, record->len);
    if (status == CN_OK) {
        status = compare_resume(then, now, NULL);
        if (status == CN_OK) status = compare_shards(output_path, then, now);
        if (status != CN_OK)
            cn_fail_within(status,
                           "%s: cannot resume (use what the run began with, or write another "
                           "output file)",
                           path.data);
    }
    json_decref(then);
    json_decref(now);
    cn_buf_free(&path);
    return status;
}

cn_status cn_run_record_load(json_t **out, const char *output_path)
{
    cn_buf path = {0};
    CN_TRY(cn_run_record_path(&path, output_path));
    *out = NULL;
    cn_status status = load_record(out, &path, "only outputs of run-batch have one");
    if (status == CN_OK) {
        json_t *options = json_object_get(*out, "options");
        status = json_is_object(options) ? add_missing_options(options)
                                         : cn_fail(CN_ERR_ARG, "%s is not the record of a run",
                                                   path.data);
    }
    cn_buf_free(&path);
    return status;
}

cn_status cn_run_record_check_other(const char *output_path, json_t *record)
{
    json_t *other = NULL;
    cn_status status = cn_run_record_load(&other, output_path);
    if (status == CN_OK) {
        status = compare_resume(other, record, NULL);
        const json_t *a = json_object_get(other, "backend");
        const json_t *b = json_object_get(record, "backend");
        if (status == CN_OK && a && b && !json_equal(a, b))
            status = cn_fail(CN_ERR_ARG, "the run began on %s and is now %s, which changes results",
                             json_string_value(a), json_string_value(b));
        if (status != CN_OK) cn_fail_within(status, "%s is the output of another run", output_path);
    }
    json_decref(other);
    return status;
}

static cn_status compare_backend(const char *path, const json_t *then, const char *backend)
{
    if (strcmp(json_string_value(then), backend) == 0) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "%s: the run began on %s, and this is %s, which changes results "
                   "(choose the first with --device, or write another output file)",
                   path, json_string_value(then), backend);
}

cn_status cn_run_record_check_backend(const char *output_path, const char *backend)
{
    json_t *record = NULL;
    cn_status status = cn_run_record_load(&record, output_path);
    const json_t *then = json_object_get(record, "backend");
    if (status == CN_OK && json_is_string(then))
        status = compare_backend(output_path, then, backend);
    json_decref(record);
    return status;
}

cn_status cn_run_record_check_input(const json_t *record, const char *input_path)
{
    json_t *input;
    CN_TRY(describe_input(&input, input_path, false));
    const cn_status status = compare_inputs(json_object_get(record, "input"), input);
    json_decref(input);
    return status;
}

cn_status cn_run_record_write_json(const char *output_path, const json_t *record)
{
    cn_buf text = {0};
    cn_status status = add_text(&text, record);
    if (status == CN_OK) status = cn_run_record_write(output_path, &text);
    cn_buf_free(&text);
    return status;
}

cn_status cn_run_record_parse(json_t **out, const cn_buf *record)
{
    return parse_record(out, record->data, record->len);
}

cn_status cn_run_record_backend(const char *output_path, const char *backend)
{
    cn_buf path = {0}, text = {0};
    json_t *record = NULL;
    CN_TRY(cn_run_record_path(&path, output_path));
    cn_status status =
        cn_json_load_file(&record, path.data, MAX_RECORD_BYTES, MAX_RECORD_DEPTH);
    const json_t *then = json_object_get(record, "backend");
    if (status == CN_OK && json_is_string(then)) {
        status = compare_backend(path.data, then, backend);
        if (status != CN_OK) cn_fail_within(status, "cannot resume");
    } else if (status == CN_OK) {
        json_object_set_new(record, "backend", json_string(backend));
        status = add_text(&text, record);
        if (status == CN_OK) status = cn_run_record_write(output_path, &text);
    }
    json_decref(record);
    cn_buf_free(&path);
    cn_buf_free(&text);
    return status;
}

/* ---- the lines ---- */

typedef struct scan {
    bool retry_errors;
    cn_id_set *ids;
    cn_batch_totals *totals;
    uint64_t n_retried;
} scan;

static void add_to_totals(cn_batch_totals *t, const cn_batch_line_figures *f)
{
    *(f->is_error ? &t->errors : &t->answered) += 1;
    t->prompt_tokens += f->prompt_tokens;
    t->cached_tokens += f->cached_tokens;
    t->completion_tokens += f->completion_tokens;
    t->reasoning_tokens += f->reasoning_tokens;
    if (!f->is_error) cn_lengths_add(&t->lengths, f->completion_tokens);
    t->graded += f->graded;
    t->matched += f->matched;
}

static cn_status scan_line(void *user, const char *text, size_t n, uint64_t number)
{
    scan *s = user;
    cn_batch_line_figures f;
    cn_status status = cn_batch_line_parse(&f, text, n);
    if (status != CN_OK)
        return cn_fail_within(status,
                              "output line %llu is damaged, or run-batch did not write it (remove "
                              "the line, and its request is answered again)",
                              (unsigned long long)number);
    if (f.is_error && s->retry_errors) {
        s->n_retried++;
        return CN_OK;
    }
    add_to_totals(s->totals, &f);
    CN_TRY(cn_id_set_add(s->ids, f.id, CN_ID_DONE));
    cn_id_set_put_hash(s->ids, f.id, f.request_hash);
    return CN_OK;
}

static bool is_answer(void *user, const char *text, size_t n)
{
    (void)user;
    cn_batch_line_figures f;
    return cn_batch_line_parse(&f, text, n) == CN_OK && !f.is_error;
}

cn_status cn_resume_scan(cn_batch_output *o, bool retry_errors, cn_id_set *ids,
                         cn_batch_totals *totals)
{
    scan s = {.retry_errors = retry_errors, .ids = ids, .totals = totals};
    CN_TRY(cn_batch_output_each(o, scan_line, &s));
    return s.n_retried ? cn_batch_output_filter(o, is_answer, NULL) : CN_OK;
}
