/* home.h - where the full KV of away requests lies: on a cache device (home `peer`) or in host
 * memory (home `host`); an engine may have both. Runs the exchanges of steps beside the model, and
 * what compression events do beside the compression: puts, digests, and the first exchange of a
 * request. HOMES.md.
 *
 * Owner: cn_engine. Thread: the engine's. Stage: 6 of the path of a request.
 *
 * Streams. Behind the last layer of pack p of a step its exchange predicts on `predicts`, beside
 * the rank of the pack before it. Then it ranks on `stream`, and pushes on `pushes`, beside the
 * ranks of the packs after it, and of the next step. Pack p of the next step waits for the push,
 * and for nothing else of the exchange. Every event and every copy of device blocks waits for the
 * pushes of all packs.
 *
 * Selector `spec` ranks before layer 0, with the query of the step itself, on the model's stream.
 * Then all packs are pushed on `pushes`, and each pack of the same step waits for its own.
 *
 * A prompt goes home on `puts`, beside the steps that compute the rest of it, and its digests are
 * made on `digests`. Its first event waits for both. */
#pragma once

#include "engine/home/exchange.h"
#include "engine/model/pass.h"
#include "engine/start/planner.h"
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

/* Rows that exchange in one way: behind the step, or ahead of it. */
enum { CN_HOME_BEHIND, CN_HOME_AHEAD, CN_HOME_WAYS };
typedef struct cn_home_rows {
    cn_exchange_rows rows;
    cn_seq **seqs;      /* [max_num_seqs] of the rows; NULL: the row exchanges nothing */
    uint32_t n_counted; /* leading rows that have been counted, or have no token */
    uint32_t *counts;   /* host, [2, max_num_seqs, layers, hk] moved, then missed */
} cn_home_rows;

/* The away rows of a step with one home (home_step.h). Ahead, rows are those of all decode rows of
 * the step, because these have the queries. */
typedef struct cn_home_step {
    cn_home_rows by[CN_HOME_WAYS];
    cn_fence *read; /* of the home's backend: the counts of the rows behind have been written */
} cn_home_step;

/* Timed fences of the exchanges of one step with one home: of ranks and pushes, by pack.
 * Predictions are not timed. */
enum { CN_HOME_RANKS, CN_HOME_PUSHES, CN_HOME_WORKS };
typedef struct cn_home_span {
    cn_fence *begins[CN_HOME_WORKS][CN_MAX_PACKS], *ends[CN_HOME_WORKS][CN_MAX_PACKS];
    bool recorded;
} cn_home_span;

/* Timed fences of one step, for benchmarks. */
typedef struct cn_home_clock {
    cn_fence *waits[CN_MAX_PACKS], *goes[CN_MAX_PACKS]; /* of pack p: before and behind its wait */
    bool waited;                                        /* they are recorded */
    cn_home_span spans[CN_N_HOMES];
} cn_home_clock;

/* Times steps, for benchmarks. `begin` returns the fences that a step with exchanges records, or
 * NULL. `end` gets them when the tokens and the counts of the step have been read. */
typedef struct cn_home_timer {
    cn_home_clock *(*begin)(void *ctx);
    cn_status (*end)(void *ctx, cn_home_clock *clock);
    void *ctx;
} cn_home_timer;

/* Exchanges ahead with one home. They rank on the device of the model, where the keys of the
 * retrieval head are. */
typedef struct cn_home_ahead {
    cn_exchange_env env; /* env.home: the head's keys by home block; env.chosen: of one layer */
    cn_exchange_scratch step, fill;
    cn_exchange_rows fill_rows;
    char *fill_arrays; /* as in cn_home */
    uint16_t *zeros;   /* env.zeros */
    cn_fence *ranked;  /* of the model's device */
    cn_churn churn;
} cn_home_ahead;

/* One home: `peer` or `host`. */
typedef struct cn_home {
    cn_backend *be; /* runs exchanges: the cache device, or model_be; NULL: it is not declared */
    cn_exchange_env env; /* env.home: the home space */
    cn_stream *predicts; /* uploads and predictions of steps; `stream` with home `host` */
    cn_stream *stream;   /* ranks of steps */
    cn_stream *pushes;   /* of steps */
    cn_stream *fills;  /* digests and exchanges of events; the event stream with home `host` */
    cn_stream *digests; /* of the puts of prompts; `puts` with home `host` */
    uint32_t n_turns;               /* steps with exchanges */
    cn_fence *predicted;            /* the newest prediction */
    cn_fence *ranked[CN_MAX_PACKS]; /* the rank of pack p */
    cn_fence *done[CN_MAX_PACKS];   /* the push of pack p */
    cn_fence *filled;             /* the fills of events */
    cn_fence *sent;               /* the newest puts of prompts, and their digests */
    cn_exchange_scratch step, fill;
    cn_exchange_rows fill_rows;
    char *fill_arrays;     /* host, [n_slots] cn_exchange_bytes of fill_rows, by home slot */
    cn_digest_tile *tiles; /* host, [N_home * tiles of a block]: all tiles, by home block */
    uint32_t plane_first;  /* its first block in the plane */
    uint64_t put_blocks;
    double link_bytes_per_s; /* of copies to the home; 0: not measured, as on a CPU */
    cn_churn churn;
    cn_home_ahead ahead;
} cn_home;

typedef struct cn_homes {
    cn_home at[CN_N_HOMES]; /* by cn_kv_home, `device` unused */
    cn_home_opts o;
    /* K and V of the dense layers by home block, on the device; the blocks of all homes. NULL
     * without dense layers. */
    cn_pools plane;
    cn_packs packs;
    cn_fence *stepped[CN_MAX_PACKS]; /* the layers of pack p */
    cn_fence *put, *compressed;      /* of events */
    cn_stream *puts;                 /* of model_be: copies of prompts to homes */
    cn_fence *computed, *copied;     /* of prompts: the steps before a put, and the put */
    /* The pass of the model that is being enqueued; by home, NULL: no step with exchanges. */
    cn_home_step *steps;
    cn_home_clock *clock; /* NULL: the step is not timed */
    const cn_home_timer *timer; /* NULL: no step is timed */
    cn_layer_hook hook;
    double stall_s; /* of the host, in the hook's `enter` */
    double read_bytes_per_s; /* of the model's device; 0: not measured */
} cn_homes;

/* Measures how fast blocks are copied to each home, and how fast the model's device reads. Nothing
 * else runs, and no block has content yet. */
cn_status cn_homes_measure_links(cn_homes *hs);
/* The homes that `auto` leaves to requests the device cannot hold (HOMES.md §13), after
 * cn_homes_measure_links. Logs which and why. */
uint32_t cn_homes_slow(cn_homes *hs);

/* Allocates host memory of the fills of events, of one way to exchange. Nothing if no declared
 * selector exchanges so. */
cn_status cn_home_create_fills(const cn_homes *hs, const cn_home *h, bool ahead,
                               cn_exchange_rows *rows, char **arrays);

/* Forces churn on the exchanges that are launched from now on. share: 0: scores decide. */
void cn_home_force_churn(cn_home *h, float share);

/* Returns true when a home besides the device is declared. */
bool cn_homes_any(const cn_homes *hs);
/* The home of a sequence, which is away. */
cn_home *cn_home_of_seq(cn_homes *hs, const cn_seq *q);
/* Bytes that have been put to homes. */
uint64_t cn_homes_put_bytes(const cn_homes *hs);

/* CN_ERR_ARG when the options of homes are not possible. */
cn_status cn_home_check_start(const cn_config *c);
/* Opens the cache device of home `peer` (cn_home_open_cache) and creates its streams. Call
 * before the backend of the model is opened. The options have been checked. CN_ERR_DEVICE names an
 * op that the backend lacks. */
cn_status cn_home_open(cn_homes *hs, const cn_config *c, const cn_model_config *m);
/* Checks the ops of the model's backend, and creates the other streams of homes there. Call before
 * the memory plan, because streams take device memory. CN_ERR_DEVICE names a missing op. */
cn_status cn_home_open_beside(cn_homes *hs, const cn_config *c, cn_backend *model_be);
/* Call when the memory of the start plan is allocated. */
cn_status cn_home_create(cn_homes *hs, const cn_home_opts *o);
/* Waits for all work of the homes. Returns the first error of their streams. */
cn_status cn_home_sync(cn_homes *hs);
/* Frees streams, fences and host memory. hs may be zeroed. */
void cn_home_free(cn_homes *hs);
/* Closes the cache device, whose memory the caller has freed. */
void cn_home_close(cn_homes *hs, const cn_backend *model_be);

/* Checks a request against the options: its home is declared, its cap fits, and its selector and
 * policy are valid. Completes kv. With home `auto` each declared home is checked, and kv gets the
 * form of the first. window_tokens: as in cn_policy_check. */
cn_status cn_home_check_kv(const cn_config *c, cn_kv_params *kv, uint32_t block_tokens,
                           uint32_t window_tokens);

/* ---- steps ---- */

/* Begins a step whose pass has the hook cn_home_hook. Uploads the rows of steps[CN_N_HOMES], which
 * may be none. clock may be NULL. */
cn_status cn_home_begin_step(cn_homes *hs, cn_home_step *steps, cn_home_clock *clock);
/* Ends it. */
void cn_home_end_step(cn_homes *hs);
/* The hook of a pass between these two. `drafted` starts the exchanges ahead. At the first layer of
 * a pack, `enter` lets the model's stream wait for these, and for the pack's exchange of the
 * previous step. After the last layer of a pack, `leave`
 * starts the pack's exchange with each home that the step has rows of. Errors are those of the
 * backends. */
const cn_layer_hook *cn_home_hook(const cn_homes *hs); /* NULL: no home is declared */
/* Lets a stream of model_be wait for the exchanges of the last step. */
cn_status cn_home_wait(cn_homes *hs, cn_stream *s);

/* ---- prompts ---- */

/* Enqueues the puts of a begin plan, behind all steps enqueued so far. */
cn_status cn_home_put(cn_homes *hs, const cn_sched_put *puts, uint32_t n);
/* Lets the model's stream wait for all puts enqueued so far. */
cn_status cn_home_after_puts(cn_homes *hs);

/* ---- compression events ---- */

/* What events do before and after the compression, on the event stream. */
cn_status cn_home_before_events(cn_homes *hs, cn_sched_event *const *events, uint32_t n);
cn_status cn_home_after_events(cn_homes *hs, cn_sched_event *const *events, uint32_t n);
