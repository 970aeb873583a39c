/* batch_jobs.h - the batches of a server: many at once on one engine, each a cn_batch_run, kept in
 * a spool so that a process killed at any instant loses no finished line and repeats none.
 *
 * Owner: spool_thread.c, or a test. Thread: one, the batch thread; so also what opts.submit's jobs
 * come back on.
 *
 *   files/<output id>, files/<error id>   lines as they finish, each by one write; they become
 *                                         files of /v1/files when the batch is over
 *   batches/<id>.json                     written whole at each change of status, before the change
 *                                         is visible
 *
 * Invariants:
 *   1. What a batch has done is what its two files hold: no other count is trusted after a start.
 *   2. A batch that has begun goes on only with a model and options that give the same answers.
 *   3. At most max_inflight lines of all batches are with the engine, the same number of each batch
 *      that has as many to ask.
 *   4. A failure to write pauses the batch it meets, with the cause, and is tried again. */
#ifndef CN_BATCH_JOBS_H
#define CN_BATCH_JOBS_H

#include "engine/offline/batch_run.h"
#include "engine/serve/batch_jobs_record.h"
#include "engine/serve/spool_files.h"

typedef struct cn_batches cn_batches;

typedef struct cn_batches_opts {
    const char *dir;
    const cn_config *config; /* borrowed: the engine's */
    const char *model;       /* as clients know it; borrowed */
    cn_file_limits files;
    uint64_t max_lines;    /* of one batch */
    uint32_t max_batches;  /* that are not over */
    uint32_t max_inflight; /* lines with the engine */
    int64_t (*now)(void);  /* seconds since the epoch; NULL: the clock */
    /* The way to the engine, as in cn_batch_port. */
    void *user;
    cn_api_defaults defaults;
    cn_status (*submit)(void *user, cn_batch_job *job);
    void (*cancel)(void *user, cn_batch_job *job);
    uint64_t (*n_tokens)(void *user, cn_batch_job *job);
} cn_batches_opts;

/* Opens the spool and takes up what is in it, a line of log for each batch that is not over. */
cn_status cn_batches_open(cn_batches **out, const cn_batches_opts *o);
/* Ends what is in flight, leaving every batch to the next start. Nothing is freed while lines are
 * with the engine: pump until idle first. */
void cn_batches_abandon(cn_batches *b);
void cn_batches_close(cn_batches *b); /* NULL is fine */

/* Writes what came back, asks what there is room for, moves batches on. To be called when jobs came
 * back, and after *wait_ms at the latest. */
void cn_batches_pump(cn_batches *b, int *wait_ms);

/* Begins no more lines; what has tokens may finish. */
void cn_batches_drain(cn_batches *b);
/* Whether no line is with the engine. */
bool cn_batches_is_idle(const cn_batches *b);

cn_files *cn_batches_files(cn_batches *b);

/* ---- what clients ask ---- */

/* From the body of POST /v1/batches. CN_ERR_ARG, *param the field at fault; CN_ERR_BUSY when there
 * are max_batches; CN_ERR_IO when it could not be written. */
cn_status cn_batches_create(cn_batches *b, const json_t *body, const char **param,
                            json_t **batch);
/* CN_ERR_ARG when its state does not allow it. */
cn_status cn_batches_cancel(cn_batches *b, const cn_spool_id *id, json_t **batch);
/* NULL: there is none, or no memory. */
json_t *cn_batches_get(const cn_batches *b, const cn_spool_id *id);
/* The newest first, from behind `after` (NULL: from the start): an OpenAI list. CN_ERR_ARG when
 * there is no such batch. */
cn_status cn_batches_list(const cn_batches *b, const cn_spool_id *after, uint32_t limit,
                          json_t **list);
/* The unfinished batch that reads this file, or NULL. */
const cn_batch_record *cn_batches_reader_of(const cn_batches *b, const cn_spool_id *file);

#endif
