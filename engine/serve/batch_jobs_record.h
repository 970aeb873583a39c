/* batch_jobs_record.h - a batch as the spool keeps it and as clients see it: OpenAI's object.
 *
 *   VALIDATING --> FAILED
 *       |-----------> IN_PROGRESS --> FINALIZING --> COMPLETED
 *       |                 |-------------(its window is over)--> EXPIRED
 *       `-----------------+--> CANCELLING --> CANCELLED
 *
 * Owner: cn_batches. Thread: the batch thread. Each state has the time at which it began. */
#ifndef CN_BATCH_JOBS_RECORD_H
#define CN_BATCH_JOBS_RECORD_H

#include "engine/api/api_request.h"
#include "engine/serve/spool.h"

typedef enum cn_batch_status {
    CN_BATCH_STATUS_VALIDATING,
    CN_BATCH_STATUS_FAILED,
    CN_BATCH_STATUS_IN_PROGRESS,
    CN_BATCH_STATUS_FINALIZING,
    CN_BATCH_STATUS_COMPLETED,
    CN_BATCH_STATUS_EXPIRED,
    CN_BATCH_STATUS_CANCELLING,
    CN_BATCH_STATUS_CANCELLED,
    CN_BATCH_N_STATUSES
} cn_batch_status;
const char *cn_batch_status_name(cn_batch_status s); /* "in_progress" */
/* Whether a batch stays in it for good. */
bool cn_batch_status_is_final(cn_batch_status s);

typedef struct cn_batch_counts {
    uint64_t total, completed, failed; /* lines */
    uint64_t input_tokens, cached_tokens, output_tokens, reasoning_tokens;
} cn_batch_counts;

typedef struct cn_batch_record {
    cn_spool_id id, input, output, errors; /* the two latter are named from the start */
    bool has_output, has_errors;           /* once the batch is over: they have lines */
    uint64_t order;
    cn_api_endpoint endpoint;
    char window[16]; /* "24h", as it was asked */
    cn_batch_status status;
    int64_t created_at, expires_at;
    int64_t began_at[CN_BATCH_N_STATUSES]; /* each status; 0: never */
    cn_batch_counts counts;                /* final ones, but for total */
    json_t *faults;   /* array of {code, message, param, line}, or NULL */
    json_t *metadata; /* object, or NULL */
    char *run_record; /* what its answers depend on (resume.h), from IN_PROGRESS on, or NULL */
} cn_batch_record;    /* zero-initialise */

void cn_batch_record_free(cn_batch_record *r); /* leaves an empty one */

/* Enters a status at `now`. */
void cn_batch_record_enter(cn_batch_record *r, cn_batch_status status, int64_t now);

/* What clients see. `counts`: as they are now; paused: why nothing goes on, or NULL (a member of
 * ours, "paused"). NULL when memory is out. */
json_t *cn_batch_record_public(const cn_batch_record *r, const cn_batch_counts *counts,
                               const char *model, const char *paused);

/* What the spool keeps, and back. CN_ERR_MODEL when it is none. */
json_t *cn_batch_record_json(const cn_batch_record *r);
cn_status cn_batch_record_read(cn_batch_record *r, const cn_spool_id *id, const json_t *o);

/* "24h", "90m", "7d", "30s" in seconds; false when it is none of these, or beyond 30 days. */
bool cn_batch_window_read(const char *text, int64_t *seconds);

#endif
