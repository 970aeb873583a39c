/* replace_file.h - writes a whole file.
 *
 * Owner: the caller. Thread: any. Stage: reports and results. */
#ifndef CN_REPLACE_FILE_H
#define CN_REPLACE_FILE_H

#include "engine/base.h"

/* Replaces the file when the new text is complete, so that there is never a partial file. Writes
 * directly to a pipe or a device (/dev/stdout), because a rename would put a file in its place.
 * CN_ERR_IO names the path. */
cn_status cn_replace_file(const char *path, const char *text, size_t n);

#endif
