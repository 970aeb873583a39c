/* batch_jobs_state.h - the internals of cn_batches, shared by batch_jobs.c (the list and client
 * requests) and batch_jobs_run.c (the progress of one batch). Internal to these. */
#pragma once

#include "engine/serve/spool/batch_jobs.h"
#include "engine/serve/spool/batch_jobs_check.h"

typedef struct cn_batch {
    cn_batches *all;
    cn_batch_record record;

    cn_batch_check check; /* while VALIDATING */
    bool checking;

    cn_batch_run run;   /* from IN_PROGRESS on */
    cn_batch_port port; /* of the run: all->port, with the defaults that the batch began with */
    bool running;     /* run has its files open */
    bool expiring;    /* the input is read again for the lines that were not answered in time */
    cn_pace pace;
    uint64_t synced_bytes;
    int64_t synced_at;

    char paused[CN_BATCH_WHY_BYTES]; /* why the batch is paused; "" when it is not */
    bool held;        /* paused until the next start or a cancel: another configuration */
    int64_t retry_at;
    int64_t refused_at; /* since when every line is refused; 0: not the case */
    uint64_t ended;     /* lines answered or failed, as of the last submission */
    double ask_at_s;    /* cn_files_now_s; no line is submitted before, because one was refused */
} cn_batch;

struct cn_batches {
    cn_batches_opts opts;
    cn_batch_port port;
    cn_spool *spool;
    cn_files *files;
    cn_buf run_record; /* of this server: what answers depend on (resume.h) */
    cn_batch **all;    /* [n], by order */
    size_t n;
    size_t first_live; /* all batches before it have ended */
    uint32_t n_unread; /* records that could not be loaded */
    uint64_t next_order;
    size_t turn;         /* rotates which batch a pump serves first */
    uint32_t n_asking;   /* batches that have lines to submit, as of the last pump */
    uint32_t slice_left; /* lines that this batch may still read in this pump */
    bool draining;
};

/* batch_jobs_run.c: */

int64_t cn_batches_now(const cn_batches *b);
/* Advances a batch. Lowers *wait_ms to the time at which the batch must be called again. */
void cn_batch_go_on(cn_batch *b, int *wait_ms);
/* Enters a status after its record is on disk. False: that failed and the batch is paused. */
bool cn_batch_enter(cn_batch *b, cn_batch_status status);
/* Stops the run and cancels its lines in flight. */
void cn_batch_abandon(cn_batch *b);
/* Closes the files. No line may be in flight. */
void cn_batch_close(cn_batch *b);
cn_batch_counts cn_batch_counts_now(const cn_batch *b);
/* Samples the pace of a running batch, at most once a second. */
void cn_batch_measure(cn_batch *b);
/* {"output_tokens", "output_tokens_to_come", "at_most", "output_tokens_per_s", "seconds_left"} of a
 * running batch; null otherwise. NULL: out of memory. */
json_t *cn_batch_progress_json(const cn_batch *b);
/* Bytes of the batch's two files while they are not yet in /v1/files. */
uint64_t cn_batch_bytes(const cn_batch *b);
