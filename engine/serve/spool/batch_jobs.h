/* batch_jobs.h - the batches of a server: many cn_batch_runs at once on one engine.
 *
 * A spool holds their state. A process that is killed at any instant loses no finished line and
 * repeats none.
 *
 * Owner: spool_thread.c, or a test. Thread: the batch thread only; jobs given to opts.submit must
 * also end on it.
 *
 *   files/<output id>, files/<error id>   lines as they finish, each appended with one write; the
 *                                         files appear in /v1/files when the batch ends
 *   batches/<id>.json                     replaced whole at each change of status, before clients
 *                                         can see the change
 *
 * Invariants:
 *   1. The two files of a batch define which lines are done. After a start no other count is used.
 *   2. A batch that has begun resumes only with a model and options that give the same answers.
 *   3. At most max_inflight lines of all batches are in flight. Each batch gets the same share of
 *      them if it has enough lines.
 *   4. A failed write pauses its batch, records the cause, and is retried. */
#pragma once

#include "engine/offline/batch_run.h"
#include "engine/serve/spool/batch_jobs_record.h"
#include "engine/serve/spool/spool_files.h"

typedef struct cn_batches cn_batches;

enum { CN_BATCHES_KEPT = 10000 };

typedef struct cn_batches_opts {
    const char *dir;
    const cn_config *config; /* borrowed: the engine's */
    const cn_served_names *names; /* that lines may ask for; responses have the first; borrowed */
    cn_file_limits files;
    uint64_t max_lines;    /* of one batch */
    uint32_t max_batches;  /* unfinished batches */
    uint32_t max_kept;     /* records; a new one replaces an old one of who has most */
    uint32_t max_inflight; /* lines in flight, all batches */
    uint32_t max_model_len; /* most tokens of a request */
    cn_step_cost cost;      /* for the time left */
    int64_t (*now)(void);  /* seconds since the epoch; NULL: the system clock */
    /* Access to the engine, as in cn_batch_port. */
    void *user;
    cn_api_defaults defaults;
    cn_status (*submit)(void *user, cn_batch_job *job, const char *owner);
    void (*cancel)(void *user, cn_batch_job *job);
    uint64_t (*n_tokens)(void *user, cn_batch_job *job);
    /* False while the job waits at the intake, which may still refuse it. */
    bool (*is_accepted)(void *user, const cn_batch_job *job);
} cn_batches_opts;

/* Opens the spool and loads its batches. Logs one line for each unfinished batch. */
cn_status cn_batches_open(cn_batches **out, const cn_batches_opts *o);
/* Cancels the lines in flight. The batches resume at the next start. Frees nothing: call
 * cn_batches_pump until cn_batches_is_idle, then cn_batches_close. */
void cn_batches_abandon(cn_batches *b);
void cn_batches_close(cn_batches *b); /* NULL is fine */

/* Writes finished lines, submits new ones while there is room, and advances the batches. Call it
 * when jobs have ended, and after *wait_ms at the latest. */
void cn_batches_pump(cn_batches *b, int *wait_ms);

/* Starts no more lines. Lines that have tokens may finish. */
void cn_batches_drain(cn_batches *b);
/* Returns true when no line is in flight. */
bool cn_batches_is_idle(const cn_batches *b);

cn_files *cn_batches_files(cn_batches *b);

/* ---- client requests ---- */

/* A batch that the viewer does not see does not exist for it, nor does a file. */

/* Creates a batch of the viewer from the body of POST /v1/batches. When max_kept records are kept,
 * removes the oldest finished one of the owner that has the most records, of the viewer if nobody
 * has more; the files of that batch stay. *batch has "warnings" if the body has unknown fields.
 * CN_ERR_ARG: the body is invalid; cn_last_param() is the invalid field.
 * CN_ERR_BUSY: max_batches are unfinished. CN_ERR_IO: the record could not be written. */
cn_status cn_batches_create(cn_batches *b, const cn_viewer *v, const json_t *body, json_t **batch);
/* CN_ERR_ARG: no such batch, or its status does not allow a cancel. CN_ERR_IO: the record could not
 * be written. */
cn_status cn_batches_cancel(cn_batches *b, const cn_viewer *v, const cn_spool_id *id,
                            json_t **batch);
/* NULL: no such batch, or out of memory. */
json_t *cn_batches_get(const cn_batches *b, const cn_viewer *v, const cn_spool_id *id);
/* An OpenAI list of batches, newest first, that starts after the batch `after` (NULL: with the
 * newest). CN_ERR_ARG: there is no batch `after`. */
cn_status cn_batches_list(const cn_batches *b, const cn_viewer *v, const cn_spool_id *after,
                          uint32_t limit, json_t **list);
/* The unfinished batch whose input is this file, or NULL. */
const cn_batch_record *cn_batches_reader_of(const cn_batches *b, const cn_spool_id *file);
