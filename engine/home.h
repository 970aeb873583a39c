/* home.h - where the full KV of away requests lies: on a cache device (home `peer`) or in host
 * memory (home `host`). Runs the exchanges of steps beside the model, and what compression events
 * do beside the compression: puts, digests, and the first exchange of a request. DESIGN.md §7.
 *
 * Owner: cn_engine. Thread: the engine's. Stage: 6 of a request's way.
 *
 * Streams. The exchange of pack p of a step runs on `stream` behind the pack's last layer. Pack p
 * of the next step waits for it, and for nothing else of the exchange. Every event and every copy
 * of device blocks waits for the exchanges of all packs. */
#ifndef CN_HOME_H
#define CN_HOME_H

#include "engine/exchange.h"
#include "engine/planner.h"
#include "scheduler/scheduler.h"

/* What is fixed at start; borrowed. */
typedef struct cn_home_opts {
    cn_backend *model_be;
    cn_stream *model_stream, *event_stream; /* of model_be */
    const cn_config *config;
    const cn_model_config *model;
    const cn_memory_plan *plan;
    cn_pools local;         /* the device's pools */
    const float *cos, *sin; /* rope tables */
} cn_home_opts;

/* The dense layers of a step's decode rows; slots NULL: no row reads the plane. */
typedef struct cn_plane_view {
    const uint32_t *slots;   /* [T] as kv_slots, in the plane; CN_NO_SLOT: not in the plane */
    const uint32_t *tables;  /* [n_decode, table_stride] home blocks */
    const uint32_t *lengths; /* [n_decode] slots of the plane; 0: the row reads the pool */
    const uint32_t *pool_lengths; /* [n_decode] slots of the pool; 0: the row reads the plane */
    uint32_t table_stride, max_kv;
} cn_plane_view;

typedef struct cn_home {
    cn_backend *be; /* runs exchanges: the cache device, or model_be; NULL: no home is declared */
    cn_home_opts o;
    cn_exchange_env env; /* env.home: the home space */
    /* K and V of the dense layers by home block, on the device; NULL without dense layers. */
    cn_pools plane;
    cn_packs packs;
    cn_stream *stream; /* exchanges of steps */
    cn_stream *fills;  /* digests and exchanges of events; the event stream with home `host` */
    cn_fence *stepped[CN_MAX_PACKS], *done[CN_MAX_PACKS]; /* of pack p: its layers, its exchange */
    cn_fence *put, *compressed, *filled;                  /* of events */
    cn_exchange_scratch step, fill;
    cn_exchange_rows fill_rows;
    char *fill_arrays;     /* host, [n_slots] cn_exchange_bytes of fill_rows, by home slot */
    cn_digest_tile *tiles; /* host, [N_home * tiles of a block]: all tiles, by home block */
    /* The pass of the model that is being enqueued; NULL: no step with exchanges. */
    const cn_exchange_rows *rows;
    bool in_pass;
    cn_plane_view plane_view;
    uint64_t put_blocks;
    double stall_s; /* of the host, in cn_home_enter_layer */
} cn_home;

/* CN_ERR_ARG when the options of homes are not possible. */
cn_status cn_home_check_start(const cn_config *c);
/* Checks the ops of the model's backend, and creates the stream of home `host` there. Call before
 * the memory plan, because a stream takes device memory. CN_ERR_DEVICE names a missing op. */
cn_status cn_home_open_beside(cn_home *h, const cn_config *c, cn_backend *model_be);
/* Opens the cache device of --cache-device with this much memory. The options have been checked.
 * CN_ERR_DEVICE names an op that the backend lacks. */
cn_status cn_home_open(cn_home *h, const cn_config *c, const cn_model_config *m,
                       cn_backend *model_be, uint64_t bytes);
/* Call when the memory of the start plan is allocated. */
cn_status cn_home_create(cn_home *h, const cn_home_opts *o);
/* Waits for all work of the home. */
void cn_home_sync(cn_home *h);
/* Frees streams, fences and host memory. h may be zeroed. */
void cn_home_free(cn_home *h);
/* Closes the cache device, whose memory the caller has freed. */
void cn_home_close(cn_home *h, const cn_backend *model_be);

/* Checks a request against the options: its home is declared, its cap fits. Completes kv. */
cn_status cn_home_check(const cn_config *c, cn_kv_params *kv, uint32_t block_tokens);

/* ---- steps ---- */

/* Begins a step whose layers call cn_home_enter_layer and cn_home_leave_layer. Uploads the rows,
 * which may be none. */
cn_status cn_home_begin_step(cn_home *h, const cn_exchange_rows *rows, const cn_plane_view *plane);
/* Ends it: reads the counts of the rows back to `counts` (host_alloc, 2 * cn_exchange_counts). They
 * are there when `read`, a fence of h->be, is done. */
cn_status cn_home_end_step(cn_home *h, uint32_t *counts, cn_fence *read);
cn_status cn_home_enter_layer(cn_home *h, uint32_t layer);
cn_status cn_home_leave_layer(cn_home *h, uint32_t layer);
/* Lets a stream of model_be wait for the exchanges of the last step. */
cn_status cn_home_wait(cn_home *h, cn_stream *s);

/* ---- compression events ---- */

/* What events do before and after the compression, on the event stream. */
cn_status cn_home_before_events(cn_home *h, cn_sched_event *const *events, uint32_t n);
cn_status cn_home_after_events(cn_home *h, cn_sched_event *const *events, uint32_t n);

#endif
