/* first_lines.c - see first_lines.h. */
#include "engine/offline/first_lines.h"

#include <sys/stat.h>

#include "engine/base/json.h"

enum { NAME_BYTES = 64, LIST_BYTES = 512 };

/* ---- the fields of a line ---- */

/* "it has the fields id, question and answer" */
static void list_fields(char text[LIST_BYTES], json_t *object)
{
    const size_t n = json_object_size(object);
    size_t used = 0, i = 0;
    const char *name;
    json_t *value;
    if (n == 0) {
        snprintf(text, LIST_BYTES, "it has no fields");
        return;
    }
    used = (size_t)snprintf(text, LIST_BYTES, "it has the field%s ", n == 1 ? "" : "s");
    json_object_foreach(object, name, value)
    {
        char shown[NAME_BYTES];
        const char *before = i == 0 ? "" : i + 1 == n ? " and " : ", ";
        if (used < LIST_BYTES - 2 * NAME_BYTES)
            used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s", before,
                                     cn_json_printable(name, shown, sizeof shown));
        i++;
    }
}

static cn_status check_field(const cn_batch_item *item, const char *option, const char *field)
{
    if (!field || json_object_get(item->object, field)) return CN_OK;
    char fields[LIST_BYTES];
    list_fields(fields, item->object);
    return cn_fail(CN_ERR_ARG, "--%s %s: line %llu, the first, has no such field; %s", option,
                   field, (unsigned long long)item->line, fields);
}

cn_status cn_first_line_check(const cn_batch_item *item, const cn_batch_format *format)
{
    if (!json_is_object(item->object)) return CN_OK;
    CN_TRY(check_field(item, "prompt-field", format->prompt_field));
    return check_field(item, "id-field", format->id_field);
}

/* ---- the first line of a file ---- */

typedef cn_status (*line_fn)(const cn_line *line, void *user);

/* Calls fn for the first line of a regular file. */
static cn_status with_first_line(const char *path, line_fn fn, void *user)
{
    struct stat st;
    cn_line_reader *reader;
    cn_line line;
    cn_line_state state;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return CN_OK;
    CN_TRY(cn_line_reader_open(&reader, path, CN_BATCH_MAX_LINE_BYTES));
    cn_status status = cn_line_reader_next(reader, 0, &line, &state);
    if (status == CN_OK && state == CN_LINE_READY) status = fn(&line, user);
    cn_line_reader_close(reader);
    return status;
}

static cn_status check_line(const cn_line *line, void *user)
{
    const cn_batch_format *format = user;
    cn_batch_item item = {0};
    cn_status status = cn_batch_item_identify(&item, line, format);
    if (status == CN_ERR_ARG) status = CN_OK; /* for the run, which writes an error line */
    if (status == CN_OK) status = cn_first_line_check(&item, format);
    cn_batch_item_free(&item);
    return status;
}

cn_status cn_first_line_check_file(const char *path, const cn_batch_format *format)
{
    cn_batch_format copy = *format;
    return with_first_line(path, check_line, &copy);
}

static cn_status hash_line(const cn_line *line, void *user)
{
    const uint64_t hash = cn_hash64(0, line->text, line->n);
    *(uint64_t *)user = hash ? hash : 1;
    return CN_OK;
}

cn_status cn_first_line_hash(const char *path, uint64_t *hash)
{
    *hash = 0;
    return with_first_line(path, hash_line, hash);
}

/* ---- one reason ---- */

/* The invalid field, or the message up to its first colon or digit: what follows is a value. */
static void put_reason(char *reason, size_t size, const char *param, const char *message)
{
    if (param && *param)
        snprintf(reason, size, "%s", param);
    else
        snprintf(reason, size, "%.*s", (int)strcspn(message, ":0123456789"), message);
}

static void put_cause(cn_first_lines *f, const cn_batch_item *item, const cn_batch_format *format,
                      const char *message)
{
    char fields[LIST_BYTES];
    const bool openai = !format->prompt_field && json_is_object(item->object) &&
                        !json_object_get(item->object, "url") &&
                        !json_object_get(item->object, "body");
    const int n = snprintf(f->cause, sizeof f->cause, "line %llu: %s",
                           (unsigned long long)item->line, message);
    if (n < 0 || (size_t)n >= sizeof f->cause) return;
    if (openai) {
        list_fields(fields, item->object);
        snprintf(f->cause + n, sizeof f->cause - (size_t)n,
                 "; the line is not an OpenAI batch request: add --prompt-field with the name of "
                 "the field that has the prompt; %s",
                 fields);
    } else if (!json_is_object(item->object)) {
        snprintf(f->cause + n, sizeof f->cause - (size_t)n,
                 "; --input-file expects one JSON object per line");
    }
}

bool cn_first_lines_failed(cn_first_lines *f, const cn_batch_item *item,
                           const cn_batch_format *format, const char *param, const char *message)
{
    char reason[sizeof f->reason];
    if (!f->watching) return false;
    put_reason(reason, sizeof reason, param, message);
    if (f->n_failed == 0) {
        snprintf(f->reason, sizeof f->reason, "%s", reason);
        put_cause(f, item, format, message);
    }
    f->watching = strcmp(f->reason, reason) == 0;
    return f->watching && ++f->n_failed >= CN_FIRST_LINES;
}
