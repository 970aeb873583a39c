/* events.h - enqueues compression events on the event streams and reports finished ones.
 *
 * Owner: cn_engine. Thread: the engine's. Stage 3 of the path of a request.
 *
 * An event is one request of the op `compress` and a pointer of the caller. `done` receives the
 * pointer when the event is done. Events that are started together form a batch. A batch runs
 * after all work that the model's stream has so far, and one fence is done when all of its events
 * are. With several devices, the ranks of a split model, each device runs the events for its kv
 * heads, and an event is done when it is on all of them. Two functions wait for the devices:
 * cn_events_wait(), and cn_events_start() when too many batches are in flight. */
#pragma once

#include "engine/ops.h"

typedef struct cn_events cn_events;

typedef struct cn_event_device {
    cn_backend *backend;
    cn_stream *model_stream; /* a batch of events runs after a fence of this stream */
    cn_stream *stream;       /* the event stream: runs the events */
    cn_pools pools;
    void *scratch; /* scratch_bytes, from backend->compress_scratch_bytes; borrowed */
    size_t scratch_bytes;
} cn_event_device;

typedef struct cn_events_opts {
    cn_event_device devices[CN_MAX_RANKS];
    uint32_t n_devices;
    uint32_t max_batch_events; /* most events between two starts */
    /* Enqueue on `stream` of the first device what a batch does besides, before and after its
     * compressions. The fence of the batch covers both. May be NULL. */
    cn_status (*before)(void *ctx, void *const *users, uint32_t n);
    cn_status (*after)(void *ctx, void *const *users, uint32_t n);
    void (*done)(void *ctx, void *user); /* called for a done event; must not call cn_events_* */
    void *ctx;
} cn_events_opts;

/* CN_ERR_MEMORY, or the error of creating a fence. */
cn_status cn_events_create(cn_events **out, const cn_events_opts *o);
/* v may be NULL. Both streams must be idle. */
void cn_events_free(cn_events *v);

/* Adds an event to the batch that the next start enqueues. *req is copied; its tables must stay
 * valid until the event is done. */
void cn_events_add(cn_events *v, const cn_compress_req *req, void *user);

/* Enqueues the events that were added, if any. `step`, here and below, is the number of steps
 * launched so far. */
cn_status cn_events_start(cn_events *v, uint64_t step);

/* Report every event whose fence is done. cn_events_poll never waits; cn_events_wait first waits
 * until all events are done. */
cn_status cn_events_poll(cn_events *v, uint64_t step);
cn_status cn_events_wait(cn_events *v, uint64_t step);

/* Returns true while an event is started and not reported. */
bool cn_events_in_flight(const cn_events *v);

enum { CN_MISSED_STEPS_MAX = 63 }; /* the last bin also counts higher numbers */

typedef struct cn_event_stats {
    /* missed[i]: events during which i steps were launched without their request. */
    uint64_t missed[CN_MISSED_STEPS_MAX + 1];
    double total_s;   /* time from start to report, summed over events */
    double stalled_s; /* time in cn_events_wait */
} cn_event_stats;

/* Totals since creation, over done events. */
const cn_event_stats *cn_events_stats(const cn_events *v);
