/* command_files.c - see command_files.h. */
#include "engine/cmd/command_files.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/replace_file.h"
#include "engine/checkpoint/select_file.h"
#include "engine/offline/fingerprint.h"
#include "engine/offline/resume.h"
#include "engine/options/option_value.h"
#include "engine/text/chat_template.h"

static bool is_standard(const char *path) { return strcmp(path, "-") == 0; }

/* ---- files that can be written ---- */

/* Whether a file can be written at `path`, which need not exist. Sets errno if not. */
static bool can_write(const char *path)
{
    struct stat s;
    if (stat(path, &s) == 0) {
        if (!S_ISDIR(s.st_mode)) return access(path, W_OK) == 0;
        errno = EISDIR;
        return false;
    }
    if (errno != ENOENT) return false;
    const char *slash = strrchr(path, '/');
    if (!slash) return access(".", W_OK | X_OK) == 0;
    char *folder = cn_strdup(path);
    if (!folder) return false;
    folder[slash == path ? 1 : slash - path] = '\0';
    const bool ok = access(folder, W_OK | X_OK) == 0;
    cn_free(folder);
    return ok;
}

/* The file of an option, or NULL. */
static const char *file_of(const cn_option *o, const cn_config *c, uint32_t flags)
{
    if (!(o->flags & flags)) return NULL;
    const char *path = *(char *const *)cn_option_field(o, c);
    const bool no_file =
        path && (const void *)path == c->chat_template && cn_chat_template_is_known(path);
    return no_file ? NULL : path;
}

/* ---- files that can be read or written ---- */

static bool can_read(const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0) return false;
    if (!S_ISDIR(s.st_mode)) return access(path, R_OK) == 0;
    errno = EISDIR;
    return false;
}

/* "-" is a standard stream for the input and the output of requests, and for nothing else. */
static cn_status check_standard(const cn_config *c, const cn_option *o, const char *path)
{
    if (path == c->input_file || path == c->output_file) return CN_OK;
    if (o->flags & CN_OPTION_READ)
        return cn_fail(CN_ERR_ARG, "--%s -: expected a file, not standard input", o->name);
    return cn_fail(CN_ERR_ARG, "--%s -: expected a file; standard output is /dev/stdout", o->name);
}

/* Checks the files of the options with a flag, before a model is loaded and before hours of work.
 * A chat template that cannot be read may be a misspelled name, which its loader reports. */
static cn_status check_options(const cn_config *c, uint32_t sections, uint32_t flag,
                               bool (*can)(const char *path))
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        const char *path = o[i].section & sections ? file_of(&o[i], c, flag) : NULL;
        if (path && is_standard(path)) CN_TRY(check_standard(c, &o[i], path));
        if (path && path != c->chat_template && !is_standard(path) && !can(path))
            return cn_fail(CN_ERR_ARG, "--%s %s: %s", o[i].name, path, strerror(errno));
    }
    return CN_OK;
}

/* The positional arguments of a command that has an input are files of it. */
static bool has_input(uint32_t sections)
{
    return sections & (CN_SECTION_COMPARE | CN_SECTION_CALIBRATE | CN_SECTION_MERGE);
}

static cn_status check_more(uint32_t sections, char *const *more, int n_more)
{
    for (int i = 0; has_input(sections) && i < n_more; i++) {
        if (is_standard(more[i]) && sections & (CN_SECTION_CALIBRATE | CN_SECTION_MERGE))
            return cn_fail(CN_ERR_ARG, "-: expected a file, not standard input");
        if (!is_standard(more[i]) && !can_read(more[i]))
            return cn_fail(CN_ERR_ARG, "%s: %s", more[i], strerror(errno));
    }
    return CN_OK;
}

/* ---- files that are given twice ---- */

/* A file of the command and what it is, for messages. */
typedef struct named_file {
    const char *path;
    const char *option; /* its name, or NULL */
    const char *what;   /* without an option */
    bool written;
} named_file;

typedef struct named_files {
    named_file *at;
    size_t n;
    cn_buf record; /* the path of the record of --output-file */
} named_files;

/* Input and output "-" are what the shell redirected. */
static bool stat_file(const named_file *f, struct stat *s)
{
    if (!is_standard(f->path)) return stat(f->path, s) == 0;
    return fstat(f->written ? STDOUT_FILENO : STDIN_FILENO, s) == 0;
}

static bool is_same_file(const named_file *a, const named_file *b)
{
    struct stat sa, sb;
    if (cn_is_stream(a->path) || cn_is_stream(b->path)) return false;
    if (is_standard(a->path) && is_standard(b->path)) return false;
    const bool a_exists = stat_file(a, &sa), b_exists = stat_file(b, &sb);
    if (a_exists && b_exists)
        return S_ISREG(sa.st_mode) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
    if (a_exists || b_exists) return false;
    char *real_a = cn_resolve_path(a->path), *real_b = cn_resolve_path(b->path);
    const bool same = real_a && real_b && strcmp(real_a, real_b) == 0;
    cn_free(real_a);
    cn_free(real_b);
    return same;
}

/* `a` comes before `b` in the list and is an option. */
static cn_status refuse_same(const named_file *a, const named_file *b)
{
    const named_file *first = b->written && b->option && !a->written ? b : a;
    const named_file *other = first == a ? b : a;
    return cn_fail(CN_ERR_ARG, "--%s %s is the same file as %s%s: use two files", first->option,
                   first->path, other->option ? "--" : "",
                   other->option ? other->option : other->what);
}

static cn_status compare_files(const named_files *files)
{
    for (size_t i = 0; i < files->n; i++)
        for (size_t k = 0; k < i; k++) {
            const named_file *a = &files->at[k], *b = &files->at[i];
            if ((a->written || b->written) && is_same_file(a, b)) return refuse_same(a, b);
        }
    return CN_OK;
}

/* ---- files of the checkpoint ---- */

/* Refuses to write the file `name` of the directory `dir`, but `cinch calibrate` may write the
 * channels. */
static cn_status check_checkpoint_file(const named_files *files, const cn_config *c,
                                       const char *dir, const char *name)
{
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/%s", dir, name));
    const named_file own = {.path = path.data};
    const bool is_channels = strcmp(name, CN_SELECT_FILE) == 0;
    cn_status status = CN_OK;
    for (size_t i = 0; i < files->n && status == CN_OK; i++) {
        const named_file *f = &files->at[i];
        const bool may_write = is_channels && f->path == c->calibrate_output;
        if (!f->written || !f->option || may_write || !is_same_file(f, &own)) continue;
        status = cn_fail(CN_ERR_ARG, "--%s %s is a file of the checkpoint %s: use another file",
                         f->option, f->path, dir);
    }
    cn_buf_free(&path);
    return status;
}

/* dir may be missing: what loads it reports that. */
static cn_status check_checkpoint(const named_files *files, const cn_config *c, const char *dir)
{
    DIR *d = dir ? opendir(dir) : NULL;
    cn_status status = CN_OK;
    for (struct dirent *e; d && status == CN_OK && (e = readdir(d));)
        if (cn_fingerprint_covers(e->d_name))
            status = check_checkpoint_file(files, c, dir, e->d_name);
    if (d) closedir(d);
    return status;
}

static cn_status collect_command(named_files *files, const cn_config *c, uint32_t sections,
                                 char *const *more, int n_more)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        if (!(o[i].section & sections)) continue;
        const char *path = file_of(&o[i], c, CN_OPTION_WRITTEN | CN_OPTION_READ);
        const bool written = o[i].flags & CN_OPTION_WRITTEN;
        if (path) files->at[files->n++] = (named_file){path, o[i].name, NULL, written};
    }
    for (int i = 0; has_input(sections) && i < n_more; i++)
        files->at[files->n++] = (named_file){.path = more[i], .what = "an input file"};
    if (!(sections & CN_SECTION_RUN_BATCH) || is_standard(c->output_file)) return CN_OK;
    CN_TRY(cn_run_record_path(&files->record, c->output_file));
    files->at[files->n++] = (named_file){.path = files->record.data,
                                         .what = "the record beside --output-file",
                                         .written = true};
    return CN_OK;
}

cn_status cn_command_check_files(const cn_config *c, uint32_t sections, char *const *more,
                                 int n_more)
{
    CN_TRY(check_options(c, sections, CN_OPTION_WRITTEN, can_write));
    named_files files = {0};
    files.at = cn_calloc((size_t)n_more + CN_OPTION_MAX + 1, sizeof *files.at);
    if (!files.at) return cn_fail(CN_ERR_MEMORY, "out of memory for %d files", n_more);
    cn_status status = collect_command(&files, c, sections, more, n_more);
    if (status == CN_OK) status = compare_files(&files);
    if (status == CN_OK) status = check_checkpoint(&files, c, c->model);
    if (status == CN_OK) status = check_checkpoint(&files, c, c->tokenizer);
    cn_buf_free(&files.record);
    cn_free(files.at);
    CN_TRY(status);
    CN_TRY(check_options(c, sections, CN_OPTION_READ, can_read));
    return check_more(sections, more, n_more);
}
