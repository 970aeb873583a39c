/* merge_file.c - see merge_file.h. A thread writes one buffer while the merge fills the other. */
#include "engine/offline/merge_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/lock_file.h"
#include "engine/base/replace_file.h"

enum { BUFFER_BYTES = 1 << 20 };

struct cn_merge_file {
    char *path;
    cn_buf real, beside; /* the file that the path names, and the one that is written */
    int fd, old;         /* old: the file that is replaced, which is locked; -1: none */
    cn_buf waiting;      /* the merge fills it */
    bool owned;          /* the file beside is this merge's, to be removed */

    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    cn_buf writing; /* the thread's while it is not empty */
    bool ends;      /* no more bytes come */
    int failed;     /* errno of a write; 0: none has failed */
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

/* ---- the thread ---- */

/* Writes all bytes; returns 0 or errno. */
static int write_bytes(int fd, const cn_buf *bytes, off_t at)
{
    if (cn_write_all(fd, bytes->data, bytes->len) != bytes->len) return errno ? errno : EIO;
    /* The disk begins now, not at the end. */
    sync_file_range(fd, at, (off_t)bytes->len, SYNC_FILE_RANGE_WRITE);
    return 0;
}

static void *write_buffers(void *file)
{
    cn_merge_file *f = file;
    off_t written = 0;
    pthread_mutex_lock(&f->lock);
    while (!f->ends || f->writing.len > 0) {
        if (f->writing.len == 0) {
            pthread_cond_wait(&f->changed, &f->lock);
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        const int failed = f->failed ? f->failed : write_bytes(f->fd, &f->writing, written);
        written += (off_t)f->writing.len;
        pthread_mutex_lock(&f->lock);
        f->failed = failed;
        cn_buf_clear(&f->writing);
        pthread_cond_broadcast(&f->changed);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

static cn_status start_writer(cn_merge_file *f)
{
    const int error = pthread_create(&f->thread, NULL, write_buffers, f);
    f->has_thread = error == 0;
    if (f->has_thread) return CN_OK;
    return cn_fail(CN_ERR_IO, "%s: cannot start the thread that writes it: %s", f->path,
                   strerror(error));
}

/* Gives the thread what waits, once it has written what it has. */
static cn_status hand_over(cn_merge_file *f)
{
    pthread_mutex_lock(&f->lock);
    while (f->writing.len > 0) pthread_cond_wait(&f->changed, &f->lock);
    const cn_buf empty = f->writing;
    f->writing = f->waiting;
    f->waiting = empty;
    errno = f->failed;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return errno ? fail_merge_io(f, "write") : CN_OK;
}

static void end_writer(cn_merge_file *f)
{
    if (!f->has_thread) return;
    pthread_mutex_lock(&f->lock);
    f->ends = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    f->has_thread = false;
}

/* ---- the file ---- */

cn_status cn_merge_file_open(cn_merge_file **out, const char *path)
{
    struct stat st;
    if (cn_is_stream(path) || (stat(path, &st) == 0 && !S_ISREG(st.st_mode)))
        return cn_fail(CN_ERR_ARG, "%s: expected a regular file, which is replaced when the merge "
                                   "is complete", path);
    cn_merge_file *f = cn_calloc(1, sizeof *f);
    if (!f) return cn_fail(CN_ERR_MEMORY, "%s: out of memory", path);
    f->fd = f->old = -1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->path = cn_strdup(path);
    f->real.data = cn_resolve_path(path);
    cn_status status = f->path && f->real.data
                           ? cn_buf_addf(&f->beside, "%s.cinch-tmp", f->real.data)
                           : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    if (status == CN_OK) status = open_merge_beside(f);
    if (status == CN_OK) status = start_writer(f);
    if (status != CN_OK) {
        cn_merge_file_close(f);
        return status;
    }
    *out = f;
    return CN_OK;
}

cn_status cn_merge_file_add(cn_merge_file *f, const cn_buf *line)
{
    CN_TRY(cn_buf_add(&f->waiting, line->data, line->len));
    return f->waiting.len >= BUFFER_BYTES ? hand_over(f) : CN_OK;
}

cn_status cn_merge_file_commit(cn_merge_file *f)
{
    CN_TRY(hand_over(f));
    end_writer(f);
    errno = f->failed;
    if (errno) return fail_merge_io(f, "write");
    if (fsync(f->fd) != 0) return fail_merge_io(f, "fsync");
    if (rename(f->beside.data, f->real.data) != 0) return fail_merge_io(f, "rename");
    f->owned = false;
    return CN_OK;
}

void cn_merge_file_close(cn_merge_file *f)
{
    if (!f) return;
    end_writer(f);
    if (f->owned) unlink(f->beside.data);
    if (f->fd >= 0) close(f->fd);
    if (f->old >= 0) close(f->old);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    cn_buf_free(&f->waiting);
    cn_buf_free(&f->writing);
    cn_buf_free(&f->beside);
    cn_free(f->real.data);
    cn_free(f->path);
    cn_free(f);
}
