/* events.h - compression events in flight: enqueued on the backend's compression stream, reported
 * when they are done.
 *
 * Owner: cn_engine. Thread: the engine's. Stage 3 of a request's way.
 *
 * An event is one request of the op `compress` and a pointer of the caller's, which is handed back
 * when the event is done. Events that are started together form a batch: the batch waits for all
 * that the model's stream has been given so far, and one fence says when all of its events are
 * done. Only cn_events_wait() waits for the device, and cn_events_start() when too many batches
 * are in flight. */
#ifndef CN_EVENTS_H
#define CN_EVENTS_H

#include "engine/ops.h"

typedef struct cn_events cn_events;

typedef struct cn_events_opts {
    cn_backend *backend;
    cn_stream *model_stream, *stream; /* what events wait for, and where they run */
    cn_pools pools;
    uint32_t max_batch_events; /* most events between two starts */
    void *scratch;             /* scratch_bytes, from backend->compress_scratch_bytes; borrowed */
    size_t scratch_bytes;
    void (*done)(void *ctx, void *user); /* an event is done; must not call into cn_events */
    void *ctx;
} cn_events_opts;

/* CN_ERR_MEMORY, or what creating a fence returns. */
cn_status cn_events_create(cn_events **out, const cn_events_opts *o);
/* NULL is fine. Both streams must be idle. */
void cn_events_free(cn_events *v);

/* Adds an event to the batch that the next start enqueues. *req is copied; its tables must stay
 * valid until the event is done. */
void cn_events_add(cn_events *v, const cn_compress_req *req, void *user);

/* Enqueues the events that were added, if any. `step`, here and below, is the number of steps that
 * the model has been given so far. */
cn_status cn_events_start(cn_events *v, uint64_t step);

/* Reports every event whose fence is done. Poll never waits. Wait waits for all of them. */
cn_status cn_events_poll(cn_events *v, uint64_t step);
cn_status cn_events_wait(cn_events *v, uint64_t step);

/* True while an event is started and not reported. */
bool cn_events_in_flight(const cn_events *v);

enum { CN_MISSED_STEPS_MAX = 63 }; /* the last bin also counts what is above it */

typedef struct cn_event_stats {
    /* Events by the number of steps that were launched without their request. */
    uint64_t missed[CN_MISSED_STEPS_MAX + 1];
    double total_s;   /* from start to report, summed over events */
    double stalled_s; /* the caller waited for events */
} cn_event_stats;

/* Totals since creation, of events that are done. */
const cn_event_stats *cn_events_stats(const cn_events *v);

#endif
