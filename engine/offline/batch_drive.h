/* batch_drive.h - runs a batch on an engine of its own, as `cinch run-batch` does: steps the engine
 * and heeds signals, the clock and the terminal between steps.
 *
 * Owner: cmd_run_batch.c. Thread: the engine's. Stage: the loop around all of them. A first signal
 * drains, a second one stops. */
#ifndef CN_BATCH_DRIVE_H
#define CN_BATCH_DRIVE_H

#include "engine/engine.h"
#include "engine/offline/batch_run.h"
#include "engine/offline/progress.h"

typedef struct cn_batch_drive {
    /* Set by the caller, and its own. */
    cn_engine *engine;
    int64_t until; /* admit nothing from this time on (seconds since the epoch); 0: never */
    const volatile int *n_signals; /* counted by the caller's handler */
    cn_progress progress;

    /* The drive's. */
    cn_batch_port port;
    int n_heeded; /* signals */
} cn_batch_drive;

/* Runs to the end, or to a stop: run->state, why and the counts say which. Sets run->port, which
 * is part of d, and run->max_inflight. The engine may hold requests still after a stop; free it. */
void cn_batch_drive_all(cn_batch_drive *d, cn_batch_run *run);

/* The next moment at which local clocks show `minutes` after midnight, later than now. */
int64_t cn_next_time_of_day(int32_t minutes, int64_t now);

#endif
