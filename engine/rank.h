/* rank.h - the ranks of a split model (--tensor-parallel-size): devices that run a model together.
 *
 * Owner: cn_engine. Thread: the engine's; each rank but 0 has a thread that enqueues its ops.
 * Stage: start, then 6 of the path of a request.
 *
 * Each rank has a slice of the weights (engine/model/weight_slice.h) and the KV of its kv heads.
 * The engine's own device is rank 0, which also samples. A cn_rank is all that belongs to another
 * device. There is one scheduler, one plan and one batch: block numbers, tables, lengths and the
 * order of events are the same everywhere, and what a kv head keeps or selects is decided on its
 * rank. The ranks meet in the op reduce_norm (engine/rank_ops.h).
 *
 *   cn_ranks_start    the threads enqueue a function's ops, after what rank 0 has so far
 *   ...               the engine enqueues the ops of rank 0
 *   cn_ranks_join     rank 0's stream waits for all of them
 *
 * With one rank all of these do nothing. */
#pragma once

#include <pthread.h>

#include "compress/events.h"
#include "engine/batch.h"
#include "engine/model/model.h"
#include "engine/start/start_plan.h"

typedef struct cn_ranks cn_ranks;

typedef struct cn_rank {
    cn_ranks *ranks;
    cn_model_config config; /* of this rank */
    cn_backend *backend;
    cn_stream *stream, *event_stream; /* as in cn_engine */
    cn_start_plan plan;
    void *weights_memory, *workspace, *batch_memory, *compress_scratch, *swap_memory;
    cn_weights *weights;
    cn_model *model;
    cn_pools pools;
    cn_select_scratch select;
    cn_batch *batch;     /* a copy of the engine's */
    cn_planes swap;      /* in swap_memory */
    uint32_t *more_rows; /* device, [max_rows]: logit rows of prompt scores */
    cn_fence *done;      /* the ops of its last command */
    /* Its thread. The mutex of the ranks guards the last three. */
    pthread_t thread;
    bool has_thread;
    uint64_t n_run; /* commands */
    cn_status status;
    char error[512];
} cn_rank;

typedef cn_status (*cn_rank_fn)(cn_rank *rank, void *ctx);

struct cn_ranks {
    uint32_t n; /* besides rank 0; 0: the model is not split */
    cn_rank at[CN_MAX_RANKS - 1];
    cn_backend *lead; /* borrowed: rank 0 */
    cn_stream *lead_stream;
    cn_model_ranks model; /* for the models of all ranks */
    cn_fence *began;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t changed;
    uint64_t n_posted; /* commands */
    cn_rank_fn fn;
    void *ctx;
    bool stop;
}; /* zero-initialise */

/* ---- life ---- */

/* Opens the devices, streams and threads of the ranks besides `lead`, which is rank 0. Does nothing
 * if the options do not split the model. After a failure cn_ranks_free is still needed. */
cn_status cn_ranks_open(cn_ranks *r, const cn_config *c, const cn_model_config *whole,
                        cn_backend *lead, cn_stream *lead_stream);
/* Plans their memory: blocks and slots are those of rank 0. */
void cn_ranks_plan(cn_ranks *r, const cn_config *c, const cn_memory_plan *kv);
cn_status cn_ranks_allocate(cn_ranks *r, void *lead_workspace);
/* Reads their weights; run it with cn_ranks_start. ctx: the checkpoint. */
cn_status cn_rank_load_weights(cn_rank *k, void *checkpoint);
/* Makes their models and batches, as those of rank 0. config and select are the rank's own. */
cn_status cn_ranks_create_models(cn_ranks *r, const cn_model_opts *lead);
cn_status cn_ranks_create_batches(cn_ranks *r, const cn_batch *lead);
/* Adds them to the devices of events, after rank 0. */
void cn_ranks_add_events(cn_ranks *r, cn_events_opts *o);
/* Ends the threads and waits for the streams. Before what they use is freed. False: after an error
 * one of them stands still, and nothing that it may use can be freed. */
bool cn_ranks_stop(cn_ranks *r);
void cn_ranks_free(cn_ranks *r);

/* ---- steps ---- */

/* fn and ctx are used until cn_ranks_join, which is always called after CN_OK. */
cn_status cn_ranks_start(cn_ranks *r, cn_rank_fn fn, void *ctx);
/* lead: the status of the engine's own part, which is returned if it is an error; else the first
 * error of a rank. */
cn_status cn_ranks_join(cn_ranks *r, cn_status lead);

/* What the ranks run in a step. */
typedef struct cn_rank_step {
    const cn_batch *batch;
    const uint32_t *sampled; /* of rank 0, as for cn_batch_upload */
    uint32_t n_rows, end_position;
    const cn_digest_tile *tiles;
    uint32_t n_tiles;
    const cn_copy_list *forks;
} cn_rank_step;
cn_status cn_rank_run_step(cn_rank *k, void *step);

/* The logits of other tokens of the last step. */
typedef struct cn_rank_rows {
    const uint32_t *rows; /* host */
    uint32_t n;
} cn_rank_rows;
cn_status cn_rank_more_logits(cn_rank *k, void *rows);

/* Copies blocks and slots from the device of each rank to its swap space, and back. */
cn_status cn_ranks_swap(cn_ranks *r, const cn_copy_list *out, const cn_copy_list *in);

/* Waits for a fence of rank 0, but not when another rank has failed: returns its error then. */
cn_status cn_ranks_sync(cn_ranks *r, cn_fence *fence);
