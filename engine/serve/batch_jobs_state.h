/* batch_jobs_state.h - the insides of cn_batches, shared by batch_jobs.c (the list, and what
 * clients ask) and batch_jobs_run.c (how one batch goes on). Internal to these. */
#ifndef CN_BATCH_JOBS_STATE_H
#define CN_BATCH_JOBS_STATE_H

#include "engine/serve/batch_jobs.h"
#include "engine/serve/batch_jobs_check.h"

typedef struct cn_batch {
    cn_batches *all;
    cn_batch_record record;

    cn_batch_check check; /* while VALIDATING */
    bool checking;

    cn_batch_run run; /* from IN_PROGRESS on */
    bool running;     /* run has its files */
    bool expiring;    /* and is read once more for the lines that were not answered in time */
    uint64_t synced_bytes;
    int64_t synced_at;

    char paused[256]; /* why nothing goes on; "" when it does */
    bool held;        /* until the next start, or a cancel */
    int64_t retry_at;
} cn_batch;

struct cn_batches {
    cn_batches_opts opts;
    cn_batch_port port;
    cn_spool *spool;
    cn_files *files;
    cn_buf run_record; /* of this server: what answers depend on */
    cn_batch **all;    /* [n], by order */
    size_t n, cap;
    size_t first_live; /* all before it are over */
    uint32_t n_unread; /* records that could not be taken up */
    uint64_t next_order;
    size_t turn;         /* who is first at the next pump */
    uint32_t n_asking;   /* batches that have lines to ask, as of the last pump */
    uint32_t slice_left; /* lines that may be read before others get their turn */
    bool draining;
};

/* batch_jobs_run.c: */

int64_t cn_batches_now(const cn_batches *b);
/* Moves a batch on; *wait_ms is lowered to when it wants its next turn. */
void cn_batch_go_on(cn_batch *b, int *wait_ms);
/* Enters a status, on the disk first. False: paused. */
bool cn_batch_enter(cn_batch *b, cn_batch_status status);
/* Ends what is in flight; nothing more is written. */
void cn_batch_abandon(cn_batch *b);
/* Closes files; nothing may be in flight. */
void cn_batch_close(cn_batch *b);
cn_batch_counts cn_batch_counts_now(const cn_batch *b);
/* Of its two files, while they are no files of /v1/files. */
uint64_t cn_batch_bytes(const cn_batch *b);

#endif
