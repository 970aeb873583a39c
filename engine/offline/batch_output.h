/* batch_output.h - the output file of a batch. Each line is appended by one write(2), or by more if
 * the system writes only a part. A process killed at any time leaves whole lines and at most one
 * incomplete line at the end.
 *
 * Owner: cn_batch_run. Thread: one. Stage: 8. A file lock prevents two runs from writing one
 * file. */
#pragma once

#include <sys/types.h>

#include "engine/base/base.h"

typedef struct cn_batch_output cn_batch_output;

/* Opens path, or creates it with this mode less the umask. "-" is standard output, which only
 * supports appending. CN_ERR_IO if it cannot be opened, CN_ERR_BUSY if another run has locked
 * it. */
cn_status cn_batch_output_open(cn_batch_output **out, const char *path, mode_t mode);
void cn_batch_output_close(cn_batch_output *o); /* NULL is fine */

bool cn_batch_output_is_file(const cn_batch_output *o);
uint64_t cn_batch_output_bytes(const cn_batch_output *o);
int cn_batch_output_fd(const cn_batch_output *o);

/* Removes all lines. Only for a regular file. */
cn_status cn_batch_output_empty(cn_batch_output *o);
/* Removes the file if this output created it and it is empty. */
void cn_batch_output_discard(cn_batch_output *o);

/* Removes the text after the last newline. */
cn_status cn_batch_output_repair(cn_batch_output *o, uint64_t *removed_bytes);

/* Calls fn for every line, text[n] without its newline. Stops at the first call that fails. */
typedef cn_status (*cn_output_line_fn)(void *user, const char *text, size_t n, uint64_t number);
cn_status cn_batch_output_each(cn_batch_output *o, cn_output_line_fn fn, void *user);

/* Keeps the lines for which keep() is true, in their order. Writes a new file and renames it, so
 * that a process killed meanwhile leaves the old file. */
typedef bool (*cn_output_keep_fn)(void *user, const char *text, size_t n);
cn_status cn_batch_output_filter(cn_batch_output *o, cn_output_keep_fn keep, void *user);

/* Appends text[n], whose only newline is at its end. On failure (disk full) removes the part that
 * was written. */
cn_status cn_batch_output_append(cn_batch_output *o, const char *text, size_t n);

/* Flushes the written lines to the disk (fsync). CN_ERR_IO also when another process has removed,
 * replaced or changed the file, so that lines are missing. */
cn_status cn_batch_output_sync(cn_batch_output *o);
