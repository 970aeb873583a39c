/* done_files.c - see done_files.h. */
#include "engine/offline/done_files.h"

#include <glob.h>
#include <sys/stat.h>

#include "engine/offline/output_scan.h"
#include "engine/offline/resume.h"

typedef cn_status (*file_fn)(void *user, const char *path);

static bool is_own_output(const cn_config *c, const char *path)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat(c->output_file, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static cn_status each_match(const cn_config *c, const char *pattern, file_fn fn, void *user)
{
    glob_t found = {0};
    size_t n_outputs = 0;
    const int failed = glob(pattern, GLOB_ERR, NULL, &found);
    cn_status status = CN_OK;
    if (failed == GLOB_NOSPACE)
        status = cn_fail(CN_ERR_MEMORY, "--done %s: out of memory", pattern);
    if (failed == GLOB_ABORTED)
        status = cn_fail(CN_ERR_IO, "--done %s: a directory cannot be read", pattern);
    for (size_t i = 0; status == CN_OK && !failed && i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i];
        if (cn_output_is_beside(path)) continue;
        n_outputs++;
        if (!is_own_output(c, path) && !cn_run_record_is_awaited(path)) status = fn(user, path);
    }
    globfree(&found);
    if (status == CN_OK && n_outputs == 0)
        status = cn_fail(CN_ERR_ARG,
                         "--done %s: no output has such a name: correct the pattern, or leave it "
                         "out", pattern);
    return status;
}

/* Calls fn for the files of all patterns. */
static cn_status each_file(const cn_config *c, file_fn fn, void *user)
{
    cn_status status = CN_OK;
    for (const char *at = c->done; at && *at && status == CN_OK;) {
        const size_t n = strcspn(at, "\n");
        char *pattern = cn_strndup(at, n);
        status = pattern ? each_match(c, pattern, fn, user)
                         : cn_fail(CN_ERR_MEMORY, "out of memory for --done");
        cn_free(pattern);
        at += n + (at[n] == '\n');
    }
    return status;
}

typedef struct reading {
    const cn_config *config;
    json_t *record;
    cn_id_set *ids;
    uint64_t n_lines;
} reading;

static cn_status take_done_line(void *user, const cn_output_line *line)
{
    reading *r = user;
    if (line->is_error && r->config->retry_errors) return CN_OK;
    r->n_lines++;
    CN_TRY(cn_id_set_add(r->ids, line->id, CN_ID_DONE));
    cn_id_set_put_hash(r->ids, line->id, line->request_hash);
    return CN_OK;
}

static cn_status read_done_file(void *user, const char *path)
{
    reading *r = user;
    cn_output_flaws flaws;
    cn_status status = cn_run_record_check_other(path, r->record);
    if (status != CN_OK) return cn_fail_within(status, "--done");
    CN_TRY(cn_output_scan(path, take_done_line, user, &flaws));
    cn_output_flaws_log(path, &flaws);
    return CN_OK;
}

cn_status cn_done_files_read(const cn_config *c, const cn_buf *record, cn_id_set *ids)
{
    reading r = {.config = c, .ids = ids};
    if (!c->done) return CN_OK;
    CN_TRY(cn_run_record_parse(&r.record, record));
    const cn_status status = each_file(c, read_done_file, &r);
    json_decref(r.record);
    CN_TRY(status);
    cn_log(CN_LOG_INFO, "--done: %llu requests have their line in other outputs",
           (unsigned long long)r.n_lines);
    return CN_OK;
}

static cn_status check_file_backend(void *user, const char *path)
{
    const cn_status status = cn_run_record_check_backend(path, user);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "--done");
}

cn_status cn_done_files_check_backend(const cn_config *c, const char *backend)
{
    return each_file(c, check_file_backend, (void *)(uintptr_t)backend);
}
