/* replace_file.c - see replace_file.h. */
#include "engine/base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bool cn_is_stream(const char *path)
{
    static const char *const descriptors[] = {"/dev/std", "/dev/fd/", "/proc/"};
    struct stat s;
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++)
        if (strncmp(path, descriptors[i], strlen(descriptors[i])) == 0) return true;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
}

enum { MAX_LINKS = 40 }; /* as many as Linux follows */

/* Sets *out to the real path of the folder of `path`, followed by its last name. */
static bool resolve_folder(cn_buf *out, const char *path)
{
    char real[PATH_MAX];
    const char *slash = strrchr(path, '/');
    char *folder = slash ? cn_strndup(path, slash == path ? 1 : (size_t)(slash - path))
                         : cn_strdup(".");
    const bool ok = folder && realpath(folder, real);
    cn_free(folder);
    cn_buf_clear(out);
    return ok && cn_buf_addf(out, "%s/%s", strcmp(real, "/") == 0 ? "" : real,
                             slash ? slash + 1 : path) == CN_OK;
}

/* Replaces *path by the target of a link in the folder of `link`. */
static bool follow_link(cn_buf *path, const char *link, const char *target)
{
    const int folder = *target == '/' ? 0 : (int)(strrchr(link, '/') - link + 1);
    cn_buf_clear(path);
    return cn_buf_addf(path, "%.*s%s", folder, link, target) == CN_OK;
}

char *cn_resolve_path(const char *path)
{
    char target[PATH_MAX];
    cn_buf at = {0}, real = {0};
    ssize_t n = 0;
    bool ok = cn_buf_addf(&at, "%s", path) == CN_OK;
    for (int i = 0; ok && i < MAX_LINKS; i++) {
        ok = resolve_folder(&real, at.data);
        n = ok ? readlink(real.data, target, sizeof target - 1) : -1;
        if (n < 0) break;
        target[n] = '\0';
        ok = follow_link(&at, real.data, target);
    }
    cn_buf_free(&at);
    if (ok && n < 0) return real.data;
    if (ok) errno = ELOOP;
    cn_buf_free(&real);
    return NULL;
}

/* Closes fd, also after a failure, whose errno it keeps. */
static bool write_and_close(int fd, const char *text, size_t n)
{
    const bool ok = cn_write_all(fd, text, n) == n;
    const int cause = errno;
    if (close(fd) != 0 && ok) return false;
    errno = cause;
    return ok;
}

/* Opens a file that exists. One that is standard output or error shares the descriptor's position,
 * so that a log or a table in the same file is kept. */
static int open_in_place(const char *path)
{
    struct stat s, open_file;
    if (stat(path, &s) != 0) return -1;
    fflush(stdout);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &open_file) == 0 && s.st_dev == open_file.st_dev &&
            s.st_ino == open_file.st_ino)
            return dup(fd);
    return open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
}

static bool write_in_place(const char *path, const char *text, size_t n)
{
    const int fd = open_in_place(path);
    return fd >= 0 && write_and_close(fd, text, n);
}

/* Writes a file beside `path` and renames it. The new file has the mode of the old one. */
static bool write_and_rename(const char *path, const char *text, size_t n)
{
    struct stat old;
    cn_buf tmp = {0};
    errno = ENOMEM;
    if (cn_buf_addf(&tmp, "%s.cinch-tmp", path) != CN_OK) return false;
    const int fd = open(tmp.data, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0 && stat(path, &old) == 0) (void)fchmod(fd, old.st_mode & 07777);
    const bool ok =
        fd >= 0 && write_and_close(fd, text, n) && rename(tmp.data, path) == 0;
    const int cause = errno;
    if (fd >= 0 && !ok) unlink(tmp.data);
    cn_buf_free(&tmp);
    errno = cause;
    return ok;
}

/* Whether only the folder prevents writing: it is read-only, or the file is a mount of its own. */
static bool is_fixed(const char *path, int cause)
{
    const bool folder = cause == EACCES || cause == EPERM || cause == EROFS || cause == EBUSY;
    const bool fixed = folder && access(path, W_OK) == 0;
    errno = cause;
    return fixed;
}

cn_status cn_replace_file(const char *path, const char *text, size_t n)
{
    bool ok;
    if (cn_is_stream(path)) {
        ok = write_in_place(path, text, n);
    } else {
        char *real = cn_resolve_path(path);
        ok = real && write_and_rename(real, text, n);
        if (real && !ok && is_fixed(real, errno)) ok = write_in_place(real, text, n);
        cn_free(real);
    }
    return ok ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
}
