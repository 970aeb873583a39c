/* scratch_dir.h - a temporary directory with files that a test writes. Thread: the test's. */
#pragma once

#include <stddef.h>

typedef struct scratch_dir {
    char path[64];
} scratch_dir;

/* Creates an empty directory. Aborts on failure. */
void scratch_dir_open(scratch_dir *d);
/* Writes a file of n bytes; n = 0 removes it. */
void scratch_dir_put(const scratch_dir *d, const char *name, const char *data, size_t n);
/* Removes the directory and all that is in it. Aborts on failure. */
void scratch_dir_close(scratch_dir *d);
