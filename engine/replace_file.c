/* replace_file.c - see replace_file.h. */
#include "engine/replace_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
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
static bool follow(cn_buf *path, const char *link, const char *target)
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
        ok = follow(&at, real.data, target);
    }
    cn_buf_free(&at);
    if (ok && n < 0) return real.data;
    if (ok) errno = ELOOP;
    cn_buf_free(&real);
    return NULL;
}

cn_status cn_replace_file(const char *path, const char *text, size_t n)
{
    struct stat s;
    const bool is_file = stat(path, &s) != 0 || S_ISREG(s.st_mode);
    cn_buf tmp = {0};
    CN_TRY(cn_buf_addf(&tmp, "%s%s", path, is_file ? ".tmp" : ""));
    FILE *f = fopen(tmp.data, "w");
    bool ok = f && fwrite(text, 1, n, f) == n;
    if (f && fclose(f) != 0) ok = false;
    if (ok && is_file) ok = rename(tmp.data, path) == 0;
    cn_buf_free(&tmp);
    return ok ? CN_OK : cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
}
