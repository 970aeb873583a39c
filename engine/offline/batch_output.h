/* batch_output.h - the output file of a batch: whole lines, each appended by one write(2) unless
 * the system takes a part, so that a process killed at any instant leaves whole lines and at most
 * one torn one at the end.
 *
 * Owner: cn_batch_run. Thread: one. Stage: 7. Two runs on one file are kept apart by a lock. */
#ifndef CN_BATCH_OUTPUT_H
#define CN_BATCH_OUTPUT_H

#include "engine/base.h"

typedef struct cn_batch_output cn_batch_output;

/* Opens or creates path; "-" is standard output, which can only be appended to. CN_ERR_IO when it
 * cannot be written, CN_ERR_BUSY when another run has it. */
cn_status cn_batch_output_open(cn_batch_output **out, const char *path);
void cn_batch_output_close(cn_batch_output *o); /* NULL is fine */

bool cn_batch_output_is_file(const cn_batch_output *o);
uint64_t cn_batch_output_bytes(const cn_batch_output *o);
int cn_batch_output_fd(const cn_batch_output *o);

/* Cuts off what stands behind the last newline. */
cn_status cn_batch_output_repair(cn_batch_output *o, uint64_t *removed_bytes);

/* Calls fn for every line, text[n] without its newline; stops at the first that fails. */
typedef cn_status (*cn_output_line_fn)(void *user, const char *text, size_t n, uint64_t number);
cn_status cn_batch_output_each(cn_batch_output *o, cn_output_line_fn fn, void *user);

/* Keeps the lines for which keep() is true, in their order. Written beside and renamed: a process
 * killed meanwhile leaves the old file. */
typedef bool (*cn_output_keep_fn)(void *user, const char *text, size_t n);
cn_status cn_batch_output_filter(cn_batch_output *o, cn_output_keep_fn keep, void *user);

/* Appends text[n], which ends in its only newline. On failure (disk full) the file is as before. */
cn_status cn_batch_output_append(cn_batch_output *o, const char *text, size_t n);

/* Brings what was written to the disk. */
cn_status cn_batch_output_sync(cn_batch_output *o);

#endif
