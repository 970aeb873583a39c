/* batch_jobs_check.h - a look over a batch's input before its first line is asked: what OpenAI
 * calls validating. A line's own request is read when it is its turn; here it must be a line of a
 * batch, for this endpoint, with a custom_id of its own.
 *
 * Owner: cn_batch. Thread: the batch thread. In pieces, so that nothing else waits for it. */
#ifndef CN_BATCH_JOBS_CHECK_H
#define CN_BATCH_JOBS_CHECK_H

#include "engine/offline/batch_input.h"

typedef struct cn_batch_check {
    cn_line_reader *reader;
    cn_api_endpoint endpoint;
    uint64_t max_lines, n_lines;
    cn_id_set ids;
    json_t *faults; /* array of {code, message, param, line}: the first CN_BATCH_FAULTS_SHOWN */
    uint64_t n_faults;
} cn_batch_check;

enum { CN_BATCH_FAULTS_SHOWN = 100 };

cn_status cn_batch_check_open(cn_batch_check *c, const char *path, cn_api_endpoint endpoint,
                              uint64_t max_lines);
/* Looks at the next n lines at most. *done: all were seen, or enough to refuse the file. */
cn_status cn_batch_check_some(cn_batch_check *c, uint32_t n, bool *done);
void cn_batch_check_close(cn_batch_check *c); /* an empty one is fine */

#endif
