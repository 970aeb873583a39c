/* lanes.h - the engines of a batch run: one, or several that share the lines.
 *
 *                      a seat is free             last event
 *   job --submit--> ready -------> call of a lane ----------> returned
 *                     ^                | the engine is lost
 *                     `-- a new job ---'
 *
 * Owner: batch_drive.h. Thread: the run's. A single engine is stepped by this thread and takes each
 * job at once, as its own queue orders them. Of several, each has a thread (lane.h), and takes the
 * next job while few of its samples wait for a seat or for KV. All samples of a job are on one
 * engine.
 *
 * An engine is lost if a step fails, or does not end for stall_s seconds. Then its jobs are
 * submitted again, to any engine, and what it still says of them is dropped. When one engine is
 * left, they wait until the other lines have ended: one of them may be the cause. A line that is
 * alone in the last engine when that fails is an error line. */
#pragma once

#include "engine/lanes/lane.h"
#include "engine/offline/batch_run.h"

typedef struct cn_lanes cn_lanes;

typedef struct cn_lanes_opts {
    cn_engine *const *engines; /* [n], borrowed */
    uint32_t n;
    uint32_t n_seats; /* samples that an engine runs at once */
    double stall_s;   /* 0: never */
    bool by_priority; /* jobs are taken by their priority, not in their order */
    cn_status (*load)(cn_engine *engine); /* on the thread of each engine; NULL: they are loaded */
} cn_lanes_opts;

/* Starts the lanes and loads their engines, all at once. After a failure, unless *out is NULL, the
 * others may still load: stop them. */
cn_status cn_lanes_create(cn_lanes **out, const cn_lanes_opts *o);
/* Ends the threads. cn_lanes_stats still works, and engines and jobs may be freed; false: a thread
 * hangs in its step, and none of them can be. */
bool cn_lanes_stop(cn_lanes *l);
void cn_lanes_free(cn_lanes *l); /* NULL is fine; after cn_lanes_stop returned true */

/* For the port of a run. With several engines it is shared and borrows (batch_run.h). */
cn_status cn_lanes_submit(cn_lanes *l, cn_batch_job *job);
void cn_lanes_cancel(cn_lanes *l, cn_batch_job *job);
uint64_t cn_lanes_n_tokens(const cn_batch_job *job);

/* Steps a single engine; with several, waits for one to return a job, at most wait_ms. An error:
 * no engine is left. */
cn_status cn_lanes_work(cn_lanes *l, int wait_ms);

uint32_t cn_lanes_n(const cn_lanes *l);
/* Engine i, for getters of what does not change. */
cn_engine *cn_lanes_engine(const cn_lanes *l, uint32_t i);
/* Of lane i: the figures, and NULL or why it was lost. */
const char *cn_lanes_stats_of(cn_lanes *l, uint32_t i, cn_stats *out);
/* Sums over all lanes, of the figures that a summary and the progress show. */
void cn_lanes_stats(cn_lanes *l, cn_stats *out);
