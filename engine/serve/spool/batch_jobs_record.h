/* batch_jobs_record.h - the record of a batch: OpenAI's batch object, plus what the spool needs.
 *
 *   VALIDATING --> FAILED
 *       |-----------> IN_PROGRESS --> FINALIZING --> COMPLETED
 *       |                 |---------(completion window over)--> EXPIRED
 *       `-----------------+--> CANCELLING --> CANCELLED
 *
 * Owner: cn_batches. Thread: the batch thread. The record has the start time of each status. */
#pragma once

#include "engine/api/api_request.h"
#include "engine/serve/spool/spool.h"

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
/* Returns true for a status that a batch never leaves. */
bool cn_batch_status_is_final(cn_batch_status s);

typedef struct cn_batch_counts {
    uint64_t total, completed, failed; /* lines */
    uint64_t input_tokens, cached_tokens, output_tokens, reasoning_tokens;
} cn_batch_counts;

typedef struct cn_batch_record {
    cn_spool_id id, input, output, errors; /* output and errors get their ids at creation */
    bool has_output, has_errors;           /* set when the batch ends: the file has lines */
    char *owner; /* name of the API key that made it; "": none */
    uint64_t order;
    cn_api_endpoint endpoint;
    char window[16]; /* completion_window as requested, for example "24h" */
    cn_batch_status status;
    int64_t created_at, expires_at;
    int64_t began_at[CN_BATCH_N_STATUSES]; /* start time of each status; 0: never entered */
    cn_batch_counts counts; /* total from IN_PROGRESS on; the others when the batch ends */
    json_t *faults;   /* array of {code, message, param, line}, or NULL */
    json_t *metadata; /* object, or NULL */
    char *run_record; /* what the answers depend on (resume.h), from IN_PROGRESS on, or NULL */
} cn_batch_record;    /* zero-initialise */

void cn_batch_record_free(cn_batch_record *r); /* leaves a zeroed one */

/* Sets the status and its start time `now`, in seconds since the epoch. */
void cn_batch_record_enter(cn_batch_record *r, cn_batch_status status, int64_t now);

/* The object that clients get. counts: the current counts. paused: why the batch is paused, or
 * NULL; it becomes the member "paused", which OpenAI does not have. NULL: out of memory. */
json_t *cn_batch_record_public(const cn_batch_record *r, const cn_batch_counts *counts,
                               const char *model, const char *paused);

/* Converts to and from the spool's JSON record. CN_ERR_MODEL: o is not a batch record. */
json_t *cn_batch_record_json(const cn_batch_record *r);
cn_status cn_batch_record_read(cn_batch_record *r, const cn_spool_id *id, const json_t *o);

/* Reads a time such as "24h", "90m", "7d" or "30s" as seconds. False when text is not such a time,
 * is zero, or exceeds 30 days. */
bool cn_batch_window_read(const char *text, int64_t *seconds);
