/* engine_state.h - the engine's own structs, shared by engine.c (the step), engine_load.c (start
 * and end) and engine_request.c (submit, deliver, cancel). Internal to these three. */
#ifndef CN_ENGINE_STATE_H
#define CN_ENGINE_STATE_H

#include "compress/events.h"
#include "engine/batch.h"
#include "engine/checkpoint/generation_config.h"
#include "engine/engine.h"
#include "engine/engine_probe.h"
#include "engine/list.h"
#include "engine/model.h"
#include "engine/output.h"
#include "engine/planner.h"
#include "engine/sampler.h"
#include "engine/start_plan.h"
#include "engine/text/chat_template.h"
#include "engine/weights.h"

typedef struct cn_engine_request cn_engine_request;

/* One of a request's n samples: a sequence of the scheduler and its output so far. */
typedef struct cn_sample {
    cn_engine_request *request;
    cn_seq *seq;
    cn_output *output;
    uint64_t seed;
    int32_t count_slot; /* row of the penalty counts, or -1 */
    uint32_t n_in_flight; /* launched steps that will bring it a token */
    bool done;
} cn_sample;

struct cn_engine_request {
    cn_list_node node; /* of the engine's */
    uint64_t id;
    cn_event_fn fn;
    void *user;
    cn_sampling sampling; /* the four lists are owned */
    uint32_t *bans;       /* [n_bans] EOS and stop ids: banned below min_tokens */
    uint32_t n_bans;
    uint32_t *forced; /* [n_forced] the first output tokens, not sampled */
    uint32_t n_forced;
    bool needs_counts;
    bool cancelled;
    uint32_t n_samples, n_live;
    cn_sample samples[];
};

/* The bytes of a space (paged/space.h): where its items lie, and the stream that copies them to and
 * from the device. Swap copies on the model's stream, before the rows that use the blocks. */
typedef struct cn_space_memory {
    cn_planes planes;
    cn_stream *copies;
} cn_space_memory;

/* A launched step until its tokens are read. With asynchronous scheduling the next one is launched
 * before that; so there are two, used in turn, and a device array of one is never written while
 * the host or the next step reads it. */
typedef struct cn_flight {
    cn_fence *fence;
    cn_seq **seqs; /* [max_num_seqs] of each row */
    uint32_t n_rows;
    bool logprobs; /* some row wants them */
    /* device, and their host copies; [max_num_seqs] rows */
    uint32_t *tokens;
    float *token_logprobs;
    cn_logprob *top; /* [max_num_seqs, CN_MAX_LOGPROBS] */
    uint32_t *host_tokens;
    float *host_logprobs;
    cn_logprob *host_top;
} cn_flight;

enum { CN_FLIGHTS = 2 };

struct cn_engine {
    cn_config *config; /* a copy */
    cn_model_config model_config;
    cn_generation_config generation;
    uint32_t eos[2 * CN_MAX_EOS];
    uint32_t n_eos;
    uint32_t max_model_len;
    uint32_t max_rows; /* of a step: max_num_seqs and padding */
    cn_sampling default_sampling;
    cn_output_reasoning reasoning;

    cn_tokenizer *tokenizer; /* NULL beside dummy weights: ids in, ids out */
    cn_chat_template *chat;

    cn_backend *backend;
    cn_stream *stream;       /* of the model, HIGH */
    cn_stream *event_stream; /* of compression, LOW */
    cn_start_plan plan;
    void *weights_memory, *workspace, *batch_memory; /* of the three below */
    cn_weights *weights;
    cn_model *model;
    cn_dump *dump; /* NULL: nothing is dumped */
    cn_pools pools;
    cn_space_memory device; /* of the pools */
    void *swap_memory;      /* of host_alloc; NULL: none */
    cn_space_memory swap;   /* of swap_memory */
    cn_scheduler *scheduler;
    cn_batch *batch;

    uint16_t *counts; /* device, [max_num_seqs, V] */
    void *sample_scratch;
    size_t sample_scratch_bytes;
    cn_flight flights[CN_FLIGHTS];
    uint32_t flight_head, flight_tail; /* oldest in flight, next to launch */
    cn_graph **graphs;                 /* [n_graph_buckets, CN_FLIGHTS], see step_graph.h */
    uint32_t n_graph_buckets;
    uint32_t max_in_flight;            /* left unread when a step returns: 0 or 1 */
    uint32_t *count_tokens; /* device, [max_model_len]: a history to recount */
    cn_sample **count_owner; /* [max_num_seqs] */

    cn_events *events; /* NULL: no declared policy compresses */
    void *compress_scratch;

    cn_list requests; /* all live ones, by arrival */
    uint64_t next_id;
    cn_tokens prompt; /* scratch of submit */
    cn_buf prompt_text;
    cn_stats *stats; /* the scheduler's */
};

/* The flight that is not f: that of the step before. */
static inline const cn_flight *cn_flight_other(const cn_engine *e, const cn_flight *f)
{
    return &e->flights[f == e->flights];
}

/* engine_request.c */
void cn_engine_deliver(cn_engine *e, cn_sample *sample, cn_finish finish, const char *error);
void cn_engine_sweep_cancelled(cn_engine *e);
/* A flight has landed: one fewer refers to the sample, which may now go. */
void cn_engine_land_sample(cn_engine *e, cn_sample *sample);
void cn_engine_drop_request(cn_engine *e, cn_engine_request *r);

#endif
