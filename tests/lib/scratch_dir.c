/* scratch_dir.c - see scratch_dir.h. */
#include "tests/lib/scratch_dir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/base/base.h"

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

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void scratch_dir_close(scratch_dir *d)
{
    CN_ASSERT(nftw(d->path, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0);
}
