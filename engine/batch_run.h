/* batch_run.h - a batch file through the engine: lines in, lines out, in bounded memory.
 *
 * Owner: cmd_run_batch.c. Thread: the engine's. Stage: 1 and 8 of a request's way, and the loop
 * around them.
 *
 *                     line                   last event
 *   input --read--> item --submit--> job in flight --------> finished --write--> output
 *                    | already done: skipped   ^                | cancelled: put back, unwritten
 *                    `- at fault: an error line|                | failed: an error line
 *                                              |                |
 *                                              `---- again <----+ looped: --loop-rescue
 *                                                               `- written, picked by --audit
 *
 * Invariants:
 *   1. A line of the input is in the output at most once, and is written after its request ended.
 *   2. At most max_inflight jobs are between read and write; nothing else grows but the id set.
 *   3. Stopping never loses: what is not in the output is asked again by --resume.
 *
 *   RUNNING --end of input, signal, --until, --strict--> DRAINING --no job left--> done
 *      `------------ second signal, disk full, engine failure ------------------> STOPPED
 *
 * A job may be submitted again: once to be rescued from a loop, before its line is written, and
 * once to be replayed under full KV, after that.
 *
 * Draining puts back what has not produced a token, and what would have to be rescued, ends replays
 * and finishes the rest. */
#ifndef CN_BATCH_RUN_H
#define CN_BATCH_RUN_H

#include "engine/audit.h"
#include "engine/batch_input.h"
#include "engine/batch_output.h"
#include "engine/engine.h"
#include "engine/progress.h"
#include "engine/resume.h"

typedef enum cn_batch_state {
    CN_BATCH_RUNNING,
    CN_BATCH_DRAINING,
    CN_BATCH_STOPPED
} cn_batch_state;

typedef struct cn_batch_job cn_batch_job;

typedef struct cn_batch_run {
    /* Set by the caller, and its own. */
    const cn_config *config;
    cn_line_reader *input;
    cn_batch_output *output;
    cn_engine *engine;
    int64_t until; /* admit nothing from this time on (seconds since the epoch); 0: never */
    const volatile int *n_signals; /* counted by the caller's handler */
    cn_id_set ids;          /* of earlier runs: done */
    cn_batch_totals totals; /* of the whole file; starts with those of earlier runs */
    cn_progress progress;

    /* The run's. */
    cn_batch_state state;
    char why[256];          /* it drained or stopped before the end of the input; else "" */
    bool failed;            /* for an error, not for a wish */
    bool input_ended;
    uint64_t n_read, n_skipped;                       /* lines */
    uint64_t n_answered, n_errors, n_put_back;        /* of this run */
    uint32_t n_inflight;
    cn_batch_job *inflight; /* all, newest first */
    cn_batch_job *finished; /* of the last step, not yet written */
    cn_batch_job *waiting;  /* read, but the engine's queue was full */
    cn_batch_job *again;    /* to be submitted again, newest first */
    uint64_t n_rescued;     /* written lines that were asked twice */
    cn_agreement agreement; /* of the replays so far */
    cn_usage replayed;      /* prompt, cached and output tokens of replays */
    cn_buf line;            /* scratch */
} cn_batch_run;

/* Runs to the end, or to a stop: run->state, why and the counts say which. The engine may hold
 * requests still after a stop; free it. */
void cn_batch_run_all(cn_batch_run *run);

/* Drops what the run itself holds; after the engine is freed. */
void cn_batch_run_end(cn_batch_run *run);

/* The next moment at which local clocks show `minutes` after midnight, later than now. */
int64_t cn_next_time_of_day(int32_t minutes, int64_t now);

#endif
