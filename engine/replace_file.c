/* replace_file.c - see replace_file.h. */
#include "engine/replace_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

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
