/* replace_file.h - writes a whole file, and says which file a path names.
 *
 * Owner: the caller. Thread: any. Stage: reports and results. */
#pragma once

#include "engine/base/base.h"

/* Replaces the file when the new text is complete, so that there is never a partial file. Follows a
 * symbolic link. Writes directly to a pipe or a device (/dev/stdout), because a rename would put a
 * file in its place, and to a file whose folder allows no new file. After a failure the old file is
 * unchanged. CN_ERR_IO names the path and the cause. */
cn_status cn_replace_file(const char *path, const char *text, size_t n);

/* Whether the path names a device, a pipe, a terminal, or an open descriptor such as /dev/stdout:
 * what is written there is added to what others write. */
bool cn_is_stream(const char *path);

/* Returns the absolute path of the file, without symbolic links. The file need not exist, but its
 * folder must. NULL with errno on failure. The caller frees the text with cn_free. */
char *cn_resolve_path(const char *path);
