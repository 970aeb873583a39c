/* merge_file.h - a file that is written beside its name and gets the name when it is complete. A
 * process that is killed before leaves the old file.
 *
 * Owner: merge.c. Thread: one; a thread of its own writes meanwhile. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_merge_file cn_merge_file;

/* CN_ERR_BUSY: a run or another merge writes the file. CN_ERR_ARG: the path is not a regular
 * file. */
cn_status cn_merge_file_open(cn_merge_file **out, const char *path);
cn_status cn_merge_file_add(cn_merge_file *f, const cn_buf *line);
/* Writes everything to the disk (fsync) and renames the file. */
cn_status cn_merge_file_commit(cn_merge_file *f);
/* Removes what was written and not committed. NULL is fine. */
void cn_merge_file_close(cn_merge_file *f);
