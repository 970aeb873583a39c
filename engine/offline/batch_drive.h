/* batch_drive.h - runs a batch on its own engines, for `cinch run-batch`: lets them work, and
 * meanwhile checks for signals, checks the clock and shows the progress.
 *
 * Owner: cmd_run_batch.c. Thread: one; a single engine's. Stage: the loop around all stages. A
 * signal drains the run. */
#pragma once

#include "engine/engine.h"
#include "engine/offline/batch_run.h"
#include "engine/offline/lanes.h"
#include "engine/offline/progress.h"

typedef struct cn_batch_drive {
    /* Set by the caller, who owns them. */
    cn_lanes *lanes;
    int64_t until; /* admit nothing from this time on (seconds since the epoch); 0: no limit */
    uint32_t drain_timeout_s; /* stop this long after a drain began; 0: never */
    const volatile int *stop_asked; /* set by the caller's signal handler: drain */
    cn_progress progress;
    bool hangs; /* for the caller: cn_lanes_stop failed */

    /* Internal. */
    cn_batch_port port;
    cn_api_unknown unknown;
    cn_served_names names;
    bool stop_seen;
    double drain_ends_s; /* cn_now_s(); 0: no drain began */
    uint64_t tokens_earlier; /* output tokens of earlier runs */
    uint64_t most_tokens;    /* that a line so far may have */
} cn_batch_drive;

/* Runs until the batch ends or is stopped: see run->state, run->why and the counts. Sets run->port,
 * which is part of d, and run->max_inflight. After a stop the engines may still hold requests:
 * call cn_lanes_stop, and free them. */
void cn_batch_drive_all(cn_batch_drive *d, cn_batch_run *run);

/* The next time after `now` at which local clocks show `minutes` after midnight. Both times are in
 * seconds since the epoch. */
int64_t cn_next_time_of_day(int32_t minutes, int64_t now);
