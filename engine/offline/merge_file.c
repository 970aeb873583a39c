/* merge_file.c - see merge_file.h. */
#include "engine/offline/merge_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/lock_file.h"
#include "engine/base/replace_file.h"

enum { BUFFER_BYTES = 1 << 20 };

struct cn_merge_file {
    char *path;
    cn_buf real, beside; /* the file that the path names, and the one that is written */
    int fd, old;         /* old: the file that is replaced, which is locked; -1: none */
    cn_buf waiting;      /* not yet written */
    uint64_t written;    /* bytes */
    bool owned;          /* the file beside is this merge's, to be removed */
};

static cn_status fail_merge_io(const cn_merge_file *f, const char *what)
{
    return cn_fail(CN_ERR_IO, "%s: %s: %s", f->path, what, strerror(errno));
}

static cn_status lock(const cn_merge_file *f, int fd)
{
    if (cn_lock_file(fd)) return CN_OK;
    if (errno != EWOULDBLOCK) return fail_merge_io(f, "lock");
    return cn_fail(CN_ERR_BUSY, "%s: a run or another merge is writing this file", f->path);
}

/* Opens the old file, which no run may write meanwhile, and gives the new one its mode. */
static cn_status lock_old(cn_merge_file *f)
{
    struct stat st;
    f->old = open(f->real.data, O_RDONLY | O_CLOEXEC);
    if (f->old < 0 && errno == ENOENT) return CN_OK;
    if (f->old < 0 || fstat(f->old, &st) != 0) return fail_merge_io(f, "open");
    if (fchmod(f->fd, st.st_mode & 07777) != 0) return fail_merge_io(f, "copy the file mode");
    return lock(f, f->old);
}

static cn_status open_merge_beside(cn_merge_file *f)
{
    f->fd = open(f->beside.data, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0) return fail_merge_io(f, "open a file beside it");
    CN_TRY(lock(f, f->fd));
    struct stat named, own; /* another merge may have renamed it before it was locked */
    if (fstat(f->fd, &own) != 0) return fail_merge_io(f, "stat");
    f->owned = stat(f->beside.data, &named) == 0 && named.st_dev == own.st_dev &&
               named.st_ino == own.st_ino;
    if (!f->owned) return cn_fail(CN_ERR_BUSY, "%s: another merge is writing this file", f->path);
    if (ftruncate(f->fd, 0) != 0) return fail_merge_io(f, "truncate");
    return lock_old(f);
}

cn_status cn_merge_file_open(cn_merge_file **out, const char *path)
{
    struct stat st;
    if (cn_is_stream(path) || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)))
        return cn_fail(CN_ERR_ARG, "%s: expected a regular file, which is replaced when the merge "
                                   "is complete", path);
    cn_merge_file *f = cn_calloc(1, sizeof *f);
    if (!f) return cn_fail(CN_ERR_MEMORY, "%s: out of memory", path);
    f->fd = f->old = -1;
    f->path = cn_strdup(path);
    f->real.data = cn_resolve_path(path);
    cn_status status = f->path && f->real.data
                           ? cn_buf_addf(&f->beside, "%s.cinch-tmp", f->real.data)
                           : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    if (status == CN_OK) status = open_merge_beside(f);
    if (status != CN_OK) {
        cn_merge_file_close(f);
        return status;
    }
    *out = f;
    return CN_OK;
}

static cn_status write_waiting(cn_merge_file *f)
{
    if (cn_write_all(f->fd, f->waiting.data, f->waiting.len) != f->waiting.len)
        return fail_merge_io(f, "write");
    /* The disk begins now, not at the end. */
    sync_file_range(f->fd, (off_t)f->written, (off_t)f->waiting.len, SYNC_FILE_RANGE_WRITE);
    f->written += f->waiting.len;
    cn_buf_clear(&f->waiting);
    return CN_OK;
}

cn_status cn_merge_file_add(cn_merge_file *f, const cn_buf *line)
{
    CN_TRY(cn_buf_add(&f->waiting, line->data, line->len));
    return f->waiting.len >= BUFFER_BYTES ? write_waiting(f) : CN_OK;
}

cn_status cn_merge_file_commit(cn_merge_file *f)
{
    CN_TRY(write_waiting(f));
    if (fsync(f->fd) != 0) return fail_merge_io(f, "fsync");
    if (rename(f->beside.data, f->real.data) != 0) return fail_merge_io(f, "rename");
    f->owned = false;
    return CN_OK;
}

void cn_merge_file_close(cn_merge_file *f)
{
    if (!f) return;
    if (f->owned) unlink(f->beside.data);
    if (f->fd >= 0) close(f->fd);
    if (f->old >= 0) close(f->old);
    cn_buf_free(&f->waiting);
    cn_buf_free(&f->beside);
    cn_free(f->real.data);
    cn_free(f->path);
    cn_free(f);
}
