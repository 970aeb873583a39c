/* output_scan.c - see output_scan.h. */
#include "engine/offline/output_scan.h"

#include "engine/base/line_reader.h"
#include "engine/offline/batch_line.h"

bool cn_output_is_beside(const char *path)
{
    static const char *const suffixes[] = {".cinch-run", ".cinch-run.tmp", ".cinch-tmp"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        const size_t n_suffix = strlen(suffixes[i]);
        if (n > n_suffix && strcmp(path + n - n_suffix, suffixes[i]) == 0) return true;
    }
    return false;
}

/* ---- lines as run-batch writes them ---- */

enum { PLAIN_BYTES = 32 };

typedef struct cursor {
    const char *at, *end;
} cursor;

/* Advances past the text, or returns false. */
static bool pass(cursor *c, const char *text)
{
    const size_t n = strlen(text);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0) return false;
    c->at += n;
    return true;
}

/* Advances past text without marks, PLAIN_BYTES at a time. A loop without a way out in it is
 * compiled to vector instructions. */
static void pass_plain(cursor *c)
{
    while (c->end - c->at >= PLAIN_BYTES) {
        uint8_t n_marks = 0;
        for (int i = 0; i < PLAIN_BYTES; i++) {
            const uint8_t ch = (uint8_t)c->at[i];
            n_marks = (uint8_t)(n_marks + ((ch < ' ') | (ch == '"') | (ch == '\\')));
        }
        if (n_marks) return;
        c->at += PLAIN_BYTES;
    }
}

/* Advances past a string whose first mark was passed. */
static bool pass_string(cursor *c)
{
    pass_plain(c);
    while (c->at < c->end && *c->at != '"') {
        if ((unsigned char)*c->at < ' ') return false;
        const bool escape = *c->at == '\\';
        c->at += escape ? 2 : 1;
        if (escape) pass_plain(c);
    }
    return c->at++ < c->end;
}

/* Reads an id of 32 digits, and then '-'. */
static bool pass_id(cursor *c, cn_id *out)
{
    char id[CN_ID_TEXT_BYTES];
    if ((size_t)(c->end - c->at) < sizeof id || c->at[sizeof id - 1] != '-') return false;
    memcpy(id, c->at, sizeof id - 1);
    id[sizeof id - 1] = '\0';
    c->at += sizeof id;
    return cn_id_parse(id, out);
}

static bool pass_hash(cursor *c, uint64_t *out)
{
    const char *const digits = "0123456789abcdef";
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char *digit = c->at < c->end && *c->at ? strchr(digits, *c->at) : NULL;
        if (!digit) return false;
        *out = *out << 4 | (uint64_t)(digit - digits);
        c->at++;
    }
    return true;
}

/* {"id":"cinch-ID-RUN","custom_id":...,"response":{"status_code":N,"request_id":
 * "cinch-batch-ID-HASH-RUN","body": */
static bool read_head(cursor *c, cn_output_line *out)
{
    uint64_t run;
    cn_id again;
    if (!pass(c, "{\"id\":\"cinch-") || !pass_id(c, &out->id) || !pass_hash(c, &run)) return false;
    if (!pass(c, "\",\"custom_id\":")) return false;
    if (pass(c, "\"") ? !pass_string(c) : !pass(c, "null")) return false;
    if (!pass(c, ",\"response\":{\"status_code\":")) return false;
    out->is_error = !pass(c, "200,");
    for (int i = 0; out->is_error && i < 3; i++)
        if (c->at >= c->end || *c->at < '0' || *c->at++ > '9') return false;
    if (out->is_error && !pass(c, ",")) return false;
    return pass(c, "\"request_id\":\"cinch-batch-") && pass_id(c, &again) &&
           pass_hash(c, &out->request_hash) && pass(c, "-") && pass_hash(c, &run) &&
           pass(c, "\",\"body\":");
}

/* Whether the text is one value to its end: every string, object and array that begins also ends. A
 * line that was cut, or has the rest of another one in it, fails. */
static bool is_whole(const char *text, size_t n)
{
    cursor c = {text, text + n};
    size_t depth = 0;
    while (c.at < c.end) {
        const char ch = *c.at++;
        if (ch == '"' && !pass_string(&c)) return false;
        if ((unsigned char)ch < ' ') return false;
        depth += ch == '{' || ch == '[';
        if (ch != '}' && ch != ']') continue;
        if (depth == 0 || (--depth == 0 && c.at < c.end)) return false;
    }
    return depth == 0 && c.at == c.end;
}

/* False: the line is no answer. */
static bool read_line(cn_output_line *out, const cn_line *line)
{
    cursor c = {line->text, line->text + line->n};
    cn_batch_line_figures f;
    *out = (cn_output_line){.text = line->text, .n = line->n, .offset = line->offset};
    if (read_head(&c, out)) return is_whole(line->text, line->n);
    if (cn_batch_line_parse(&f, line->text, line->n) != CN_OK) return false;
    out->id = f.id;
    out->is_error = f.is_error;
    out->request_hash = f.request_hash;
    return true;
}

/* ---- the file ---- */

cn_status cn_output_scan(const char *path, cn_output_scan_fn fn, void *user,
                         cn_output_flaws *flaws)
{
    cn_line_reader *reader;
    *flaws = (cn_output_flaws){0};
    CN_TRY(cn_line_reader_open(&reader, path, SIZE_MAX / 4));
    cn_status status = CN_OK;
    while (status == CN_OK) {
        cn_line line;
        cn_line_state state;
        cn_output_line out;
        status = cn_line_reader_next(reader, -1, &line, &state);
        if (status != CN_OK || state == CN_LINE_END) break;
        if (state != CN_LINE_READY) continue;
        if (cn_line_reader_bytes_done(reader) == line.offset + line.n) {
            flaws->torn_bytes = line.n;
        } else if (read_line(&out, &line)) {
            status = fn(user, &out);
        } else {
            if (flaws->n_damaged++ == 0) flaws->first_damaged = line.number;
        }
    }
    cn_line_reader_close(reader);
    return status;
}

void cn_output_flaws_log(const char *path, const cn_output_flaws *flaws)
{
    if (flaws->torn_bytes)
        cn_log(CN_LOG_WARN, "%s: ignored an incomplete last line of %llu bytes", path,
               (unsigned long long)flaws->torn_bytes);
    if (flaws->n_damaged)
        cn_log(CN_LOG_WARN, "%s: ignored %llu lines that are damaged, or that run-batch did not "
                            "write: the first is line %llu",
               path, (unsigned long long)flaws->n_damaged,
               (unsigned long long)flaws->first_damaged);
}
