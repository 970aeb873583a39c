/* scratch_dir.c - see scratch_dir.h. */
#include "tests/lib/scratch_dir.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base.h"

void scratch_dir_open(scratch_dir *d)
{
    snprintf(d->path, sizeof d->path, "/tmp/cinch-test-XXXXXX");
    CN_ASSERT(mkdtemp(d->path));
}

void scratch_dir_put(const scratch_dir *d, const char *name, const char *data, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    unlink(path);
    if (n == 0) return;
    FILE *f = fopen(path, "wb");
    CN_ASSERT(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

void scratch_dir_close(scratch_dir *d)
{
    DIR *dir = opendir(d->path);
    CN_ASSERT(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", d->path, e->d_name);
        unlink(path);
    }
    closedir(dir);
    rmdir(d->path);
}
