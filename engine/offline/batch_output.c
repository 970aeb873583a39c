/* batch_output.c - see batch_output.h. */
#include "engine/offline/batch_output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/line_reader.h"
#include "engine/base/lock_file.h"
#include "engine/base/replace_file.h"

enum { TAIL_BYTES = 64 << 10 };

struct cn_batch_output {
    char *path; /* as given, for messages */
    char *real; /* without symbolic links; NULL for a stream */
    int fd;
    bool is_new;    /* this process created the file */
    bool is_file;   /* false: a stream, such as standard output, a pipe or /dev/null */
    uint64_t bytes; /* of the file */
};

static cn_status fail_io(const cn_batch_output *o, const char *what)
{
    return cn_fail(CN_ERR_IO, "%s: %s: %s", o->path, what, strerror(errno));
}

/* Finds the file that later calls open and replace by name. Between open and lock another run may
 * have replaced it (cn_batch_output_filter): this run then has locked a file without a name. */
static cn_status find_real_path(cn_batch_output *o, const struct stat *opened)
{
    struct stat named;
    o->real = cn_resolve_path(o->path);
    if (!o->real || stat(o->real, &named) != 0) return fail_io(o, "find the file");
    if (named.st_dev == opened->st_dev && named.st_ino == opened->st_ino) return CN_OK;
    return cn_fail(CN_ERR_BUSY, "%s: another run is writing this file", o->path);
}

/* Measures after locking, because until then another run may append. */
static cn_status lock_and_measure(cn_batch_output *o)
{
    struct stat st;
    if (fstat(o->fd, &st) != 0) return fail_io(o, "stat");
    o->is_file = S_ISREG(st.st_mode);
    if (!o->is_file) return CN_OK;
    if (!cn_lock_file(o->fd)) {
        if (errno != EWOULDBLOCK) return fail_io(o, "lock");
        return cn_fail(CN_ERR_BUSY, "%s: another run is writing this file", o->path);
    }
    if (fstat(o->fd, &st) != 0) return fail_io(o, "stat");
    o->bytes = (uint64_t)st.st_size;
    return find_real_path(o, &st);
}

/* Opens a pipe only for writing: a process that could also read from it would never learn that its
 * reader has gone. This waits for a reader. */
static int open_path(cn_batch_output *o, mode_t mode)
{
    const int flags = O_RDWR | O_APPEND | O_CLOEXEC;
    struct stat st;
    if (stat(o->path, &st) == 0 && !S_ISREG(st.st_mode))
        return open(o->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    const int fd = open(o->path, flags | O_CREAT | O_EXCL, mode);
    o->is_new = fd >= 0;
    return fd < 0 && errno == EEXIST ? open(o->path, flags | O_CREAT, mode) : fd;
}

cn_status cn_batch_output_open(cn_batch_output **out, const char *path, mode_t mode)
{
    cn_batch_output *o = cn_calloc(1, sizeof *o);
    if (o) o->path = cn_strdup(path);
    if (!o || !o->path) {
        cn_free(o);
        return cn_fail(CN_ERR_MEMORY, "%s: out of memory", path);
    }
    cn_status status = CN_OK;
    if (strcmp(path, "-") == 0) {
        o->fd = STDOUT_FILENO;
    } else {
        o->fd = open_path(o, mode);
        status = o->fd < 0 ? fail_io(o, "open") : lock_and_measure(o);
    }
    if (status != CN_OK) {
        cn_batch_output_close(o);
        return status;
    }
    *out = o;
    return CN_OK;
}

void cn_batch_output_close(cn_batch_output *o)
{
    if (!o) return;
    if (o->fd > STDOUT_FILENO) close(o->fd);
    cn_free(o->path);
    cn_free(o->real);
    cn_free(o);
}

bool cn_batch_output_is_file(const cn_batch_output *o) { return o->is_file; }
uint64_t cn_batch_output_bytes(const cn_batch_output *o) { return o->bytes; }
int cn_batch_output_fd(const cn_batch_output *o) { return o->fd; }

static cn_status truncate_to(cn_batch_output *o, uint64_t bytes)
{
    if (ftruncate(o->fd, (off_t)bytes) != 0) return fail_io(o, "truncate");
    o->bytes = bytes;
    return CN_OK;
}

cn_status cn_batch_output_empty(cn_batch_output *o) { return truncate_to(o, 0); }

void cn_batch_output_discard(cn_batch_output *o)
{
    if (o->is_new && o->is_file && o->bytes == 0) unlink(o->real);
}

cn_status cn_batch_output_repair(cn_batch_output *o, uint64_t *removed_bytes)
{
    CN_ASSERT(o->is_file);
    char tail[TAIL_BYTES];
    const uint64_t before = o->bytes;
    uint64_t keep = before;
    const char *newline = NULL;
    while (keep > 0 && !newline) {
        const size_t n = keep < TAIL_BYTES ? (size_t)keep : TAIL_BYTES;
        ssize_t got = pread(o->fd, tail, n, (off_t)(keep - n));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_io(o, "read");
        if ((size_t)got != n) return cn_fail(CN_ERR_IO, "%s: changed while it was read", o->path);
        newline = memrchr(tail, '\n', n);
        keep -= newline ? n - (size_t)(newline - tail) - 1 : n;
    }
    *removed_bytes = before - keep;
    return keep == before ? CN_OK : truncate_to(o, keep);
}

cn_status cn_batch_output_append(cn_batch_output *o, const char *text, size_t n)
{
    CN_ASSERT(n > 0 && memchr(text, '\n', n) == text + n - 1);
    const size_t done = cn_write_all(o->fd, text, n);
    if (done == n) {
        if (o->is_file) o->bytes += n;
        return CN_OK;
    }
    cn_status status = fail_io(o, "write");
    if (done > 0 && o->is_file && ftruncate(o->fd, (off_t)o->bytes) != 0)
        cn_log(CN_LOG_WARN, "%s: an incomplete last line remains; --resume removes it", o->path);
    return status;
}

/* Fails when the file of this name is another one than that of o, or has not the lines of o. */
static cn_status check_unchanged(const cn_batch_output *o)
{
    struct stat named, own;
    if (fstat(o->fd, &own) != 0) return fail_io(o, "stat");
    if (stat(o->real, &named) != 0 || named.st_dev != own.st_dev || named.st_ino != own.st_ino)
        return cn_fail(CN_ERR_IO, "%s: removed or replaced while answers were written to it",
                       o->path);
    if ((uint64_t)own.st_size != o->bytes)
        return cn_fail(CN_ERR_IO,
                       "%s: changed while answers were written to it: %llu bytes instead of %llu",
                       o->path, (unsigned long long)own.st_size, (unsigned long long)o->bytes);
    return CN_OK;
}

cn_status cn_batch_output_sync(cn_batch_output *o)
{
    if (!o->is_file) return CN_OK;
    if (fsync(o->fd) != 0) return fail_io(o, "fsync");
    const int copy = dup(o->fd); /* a network file system may tell an error only when one closes */
    if (copy < 0 || close(copy) != 0) return fail_io(o, "close");
    return check_unchanged(o);
}

/* ---- reading back ---- */

cn_status cn_batch_output_each(cn_batch_output *o, cn_output_line_fn fn, void *user)
{
    CN_ASSERT(o->is_file);
    cn_line_reader *reader;
    CN_TRY(cn_line_reader_open(&reader, o->real, SIZE_MAX / 4));
    cn_status status = CN_OK;
    for (;;) {
        cn_line line;
        cn_line_state state;
        status = cn_line_reader_next(reader, -1, &line, &state);
        if (status != CN_OK || state == CN_LINE_END) break;
        if (state == CN_LINE_READY) status = fn(user, line.text, line.n, line.number);
        if (status != CN_OK) break;
    }
    cn_line_reader_close(reader);
    return status;
}

typedef struct filter {
    cn_batch_output *to;
    cn_output_keep_fn keep;
    void *user;
    cn_buf line;
} filter;

static cn_status copy_line(void *user, const char *text, size_t n, uint64_t number)
{
    (void)number;
    filter *f = user;
    if (!f->keep(f->user, text, n)) return CN_OK;
    cn_buf_clear(&f->line);
    CN_TRY(cn_buf_add(&f->line, text, n));
    CN_TRY(cn_buf_add(&f->line, "\n", 1));
    return cn_batch_output_append(f->to, f->line.data, f->line.len);
}

/* Writes the kept lines to the file `to` and renames it to that of o. */
static cn_status replace_by(cn_batch_output *o, cn_batch_output *to, filter *f)
{
    struct stat st;
    CN_TRY(truncate_to(to, 0));
    CN_TRY(cn_batch_output_each(o, copy_line, f));
    if (fstat(o->fd, &st) != 0 || fchmod(to->fd, st.st_mode & 07777) != 0)
        return fail_io(o, "copy the file mode");
    CN_TRY(cn_batch_output_sync(to));
    if (rename(to->real, o->real) != 0) return fail_io(o, "rename");
    const int old = o->fd;
    o->fd = to->fd;
    to->fd = old;
    o->bytes = to->bytes;
    return CN_OK;
}

cn_status cn_batch_output_filter(cn_batch_output *o, cn_output_keep_fn keep, void *user)
{
    CN_ASSERT(o->is_file);
    cn_buf beside = {0};
    CN_TRY(cn_buf_addf(&beside, "%s.cinch-tmp", o->real));
    filter f = {.keep = keep, .user = user};
    cn_status status = cn_batch_output_open(&f.to, beside.data, 0600);
    if (status == CN_OK) {
        status = replace_by(o, f.to, &f);
        if (status != CN_OK) unlink(beside.data);
    }
    cn_batch_output_close(f.to);
    cn_buf_free(&f.line);
    cn_buf_free(&beside);
    return status;
}
