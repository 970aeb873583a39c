/* engine_state.h - the engine's structs. Internal to the files of the engine: engine.c (the step),
 * engine_load.c (start and end), engine_request.c (submit, deliver, cancel), engine_probe.c,
 * prompt_scores.c, structure.c, token_masks.c, engine_memory.c and step_graph.c. */
#pragma once

#include "compress/events.h"
#include "engine/batch.h"
#include "engine/checkpoint/generation_config.h"
#include "engine/engine.h"
#include "engine/engine_probe.h"
#include "engine/home/home_step.h"
#include "engine/grammar/grammars.h"
#include "engine/base/list.h"
#include "engine/model/model.h"
#include "engine/output.h"
#include "engine/start/planner.h"
#include "engine/prompt_scores.h"
#include "engine/rank.h"
#include "engine/sampler.h"
#include "engine/start/gpu_uuid.h"
#include "engine/start/load_gate.h"
#include "engine/start/start_plan.h"
#include "engine/text/chat_template.h"
#include "engine/token_rules.h"
#include "engine/model/weights.h"

typedef struct cn_engine_request cn_engine_request;

/* One of a request's n samples: its sequence in the scheduler and its output so far. */
typedef struct cn_sample {
    cn_engine_request *request;
    cn_seq *seq;
    cn_output *output; /* NULL before its first token is sampled */
    uint64_t seed;
    int32_t count_slot; /* row of the penalty counts, or -1 */
    uint32_t n_in_flight; /* launched steps whose token for it is unread */
    cn_matcher matcher;   /* of the request's grammar */
    uint64_t mask_cost;   /* of its masks so far, in automaton steps */
    /* While the mask of its next token is late: in cn_engine.late. late_mask and late_row: where
     * the mask belongs in the step that is being launched; NULL: the sample is not in it. */
    cn_list_node late_node;
    bool is_late;
    uint32_t late_row, *late_mask;
    /* The tokens that continue the text of kept_at tokens, if uniqueItems applies; see
     * token_masks.c. [ceil(V / 32)] NULL: none were kept. */
    uint32_t *kept, kept_at;
    const char *mask_error; /* why the last mask could not be made, or NULL */
    bool done;
} cn_sample;

struct cn_engine_request {
    cn_list_node node; /* in cn_engine.requests */
    uint64_t id;
    cn_event_fn fn;
    void *user;
    cn_sampling sampling; /* owns its lists */
    uint32_t max_output;  /* tokens of a sample */
    cn_stop_rules *stop;  /* of all samples; NULL before the first token is sampled */
    uint32_t *bans;       /* [n_bans] EOS and stop ids, banned below min_tokens */
    uint32_t n_bans;
    uint32_t *forced; /* [n_forced] the first output tokens, forced instead of sampled */
    uint32_t n_forced;
    cn_form form;        /* of structured output, until the grammar is made; else without a text */
    bool compiling;      /* the form was given to the compiler for this request */
    bool was_compiled;   /* or has been */
    bool is_unready;     /* UNREADY in the scheduler: its grammar is not made */
    bool is_refused;     /* the form, or what else the request asks for beside it */
    char *refusal;       /* why the request could not begin, or NULL */
    char refused_param[64];
    cn_grammar *grammar; /* of structured output, or NULL */
    bool is_away;        /* has a grammar or form, and its KV may lie elsewhere */
    cn_token_rules rules;
    bool has_mask; /* each row has a token mask, because of the grammar or the rules */
    cn_prompt_scores *scores; /* NULL: the prompt is not scored */
    bool no_output, whole_text, finds_calls;
    bool needs_counts;
    bool cancelled;
    double submitted_s, admitted_s; /* cn_now_s; admitted_s of the first sample, 0: not yet */
    uint32_t n_samples, n_live;
    cn_sample samples[];
};

/* The memory of a space (paged/space.h), and the stream that copies blocks and query slots between
 * this memory and the device. Swap uses the model's stream, so its copies run before the rows that
 * use the blocks. */
typedef struct cn_space_memory {
    cn_planes planes;
    cn_stream *copies;
} cn_space_memory;

/* A launched step until its tokens are read. With asynchronous scheduling the next step is launched
 * before that. There are therefore two flights, used alternately: no device array is written while
 * the host or the next step reads it. */
typedef struct cn_flight {
    cn_fence *fence;
    cn_seq **seqs; /* [max_rows] the sequence of each row */
    uint32_t n_rows;
    bool logprobs; /* some row has logprobs on */
    uint32_t n_masks; /* rows with a token mask */
    bool *sits_out;   /* [max_rows] the row has no token, because its mask was late */
    uint32_t *n_selected; /* [max_rows] as in cn_plan_row */
    cn_digest_tile *tiles; /* host: tiles that the step completed; NULL: no digests */
    /* Device arrays and their host copies, [max_rows]. */
    uint32_t *tokens;
    float *token_logprobs;
    cn_logprob *top; /* [max_rows, CN_MAX_LOGPROBS] */
    uint32_t *host_tokens;
    float *host_logprobs;
    cn_logprob *host_top;
    cn_home_flight homes;
} cn_flight;

enum { CN_FLIGHTS = 2, CN_MASK_SHARE = 3000000 };

struct cn_engine {
    cn_config *config; /* a copy */
    cn_model_config model_config;
    cn_model_config rank_config; /* what rank 0 has of a split model; else model_config */
    cn_generation_config generation;
    uint32_t eos[2 * CN_MAX_EOS];
    uint32_t n_eos;
    uint32_t max_model_len;
    uint32_t max_rows; /* of a step: max_num_seqs plus padding */
    cn_sampling default_sampling;
    uint32_t default_max_tokens; /* of a request that sets none; 0: up to the context length */
    cn_output_reasoning reasoning;

    cn_tokenizer *tokenizer; /* may be NULL with dummy weights: prompt and output are ids */
    cn_chat_template *chat;

    cn_backend *backend;
    cn_load_gate *gate; /* borrowed; NULL: it is loaded alone */
    char gpu_uuid[CN_GPU_UUID_BYTES]; /* "": no GPU, or not known */
    cn_stream *stream;       /* priority HIGH: runs the model */
    cn_stream *event_stream; /* priority LOW: runs compression events */
    cn_start_plan plan;
    void *weights_memory, *workspace, *batch_memory; /* for weights, model and batch */
    cn_weights *weights;
    cn_draft draft; /* of selector `spec` */
    cn_model *model;
    cn_dump *dump; /* NULL without --dump */
    cn_pools pools;
    const void **latent_keys; /* [L] key matrices of latent attention; NULL: there are none */
    cn_space_memory device; /* the pools */
    void *swap_memory;      /* from host_alloc; NULL without --swap-space */
    cn_space_memory swap;   /* in swap_memory */
    cn_scheduler *scheduler;
    cn_batch *batch;

    cn_prompt_piece piece;
    uint32_t n_scored; /* live requests whose prompts are scored */
    uint16_t *counts; /* device, [max_num_seqs, V] */
    void *sample_scratch;
    size_t sample_scratch_bytes;
    cn_grammars *grammars; /* NULL before the first request with structured output */
    uint32_t n_unready;    /* requests with is_unready */
    bool forms_changed;    /* a form may be compiled or used that could not be before */
    uint32_t n_away_forms; /* live requests with is_away */
    cn_list late;          /* samples whose next mask is not made */
    uint64_t mask_share;   /* automaton steps that the masks of a step take: CN_MASK_SHARE */
    uint64_t mask_work;    /* automaton steps that are left in this step */
    bool has_mask_room;    /* the grammars' memory was bounded in this step */
    /* Host memory that the sample op reads, [max_rows, ceil(V / 32)]. Written when the tokens of
     * all steps before are read, so that no launched step reads it any more. */
    uint32_t *masks;
    cn_flight flights[CN_FLIGHTS];
    uint32_t flight_head, flight_tail; /* oldest in flight, next to launch */
    cn_graph **graphs;                 /* see step_graph.c */
    uint32_t n_graph_buckets, n_routes;
    uint32_t routes[CN_MAX_ROUTES]; /* of recorded steps */
    cn_sel_forms recorded_forms;    /* that their rows can have */
    cn_step_shape last_shape;          /* of the last launched step */
    uint32_t max_in_flight;            /* flights left unread when a step returns: 0 or 1 */
    uint32_t *count_tokens; /* device, [max_model_len]: tokens from which counts are rebuilt */
    cn_sample **count_owner; /* [max_num_seqs] the sample that uses each row of counts, or NULL */

    cn_homes homes; /* peer and host, where declared */
    cn_ranks ranks; /* the other devices of a split model */
    cn_events *events; /* NULL: no declared policy compresses */
    void *compress_scratch;
    cn_select_scratch select;
    cn_select_probe *select_probe; /* NULL: selection is not measured */

    cn_list requests; /* all live requests, in order of arrival */
    uint64_t next_id;
    cn_tokens prompt; /* scratch of cn_engine_submit */
    size_t longest_token; /* bytes */
    cn_stats *stats; /* owned by the scheduler */
};

/* The flight of the step before f's. */
static inline const cn_flight *cn_flight_other(const cn_engine *e, const cn_flight *f)
{
    return &e->flights[f == e->flights];
}

/* structure.c */
/* Makes the token rules of a request, and its grammar or form. With a form it is not ready.
 * CN_ERR_ARG says what is wrong with them. */
cn_status cn_structure_open(cn_engine *e, const cn_request_params *p, cn_engine_request *r);
void cn_structure_close(cn_engine *e, cn_engine_request *r);
/* Takes what was compiled, and has more forms compiled: requests become ready or are refused. */
void cn_structure_prepare(cn_engine *e);
/* Whether a request is not ready. Waits a few milliseconds for the compiler then. */
bool cn_structure_wait(cn_engine *e);
/* Takes a token of the answer. *finish becomes CN_FINISH_STOP when the text is complete. */
cn_status cn_structure_push(cn_engine *e, cn_sample *s, uint32_t token, cn_finish *finish);

/* token_masks.c */
void cn_structure_begin_step(cn_engine *e);
/* These three need that the tokens of all launched steps have been read. */
/* Before a step is planned: pauses away samples whose masks are not made. */
void cn_structure_make_early(cn_engine *e);
/* Works on the masks of samples that sit out. */
void cn_structure_make_late(cn_engine *e);
/* Writes the masks of a flight's rows, or lets rows sit out; and works on those that do already. */
void cn_structure_write_masks(cn_engine *e, cn_flight *f);
void cn_structure_end_late(cn_engine *e, cn_sample *s); /* one that is not late is fine */

/* engine_request.c */
/* Makes the output of a sample that samples its first token. */
cn_status cn_engine_open_output(const cn_engine *e, cn_sample *sample);
void cn_engine_deliver(cn_engine *e, cn_sample *sample, cn_finish finish, const char *error);
/* Ends a sample of which no step is in flight with an error. */
void cn_engine_fail_sample(cn_engine *e, cn_sample *sample, const char *error);
void cn_engine_sweep_cancelled(cn_engine *e);
/* Call when the tokens of a flight with a row of this sample have been read. Drops the request if
 * it has ended and no other flight refers to it. */
void cn_engine_land_sample(cn_engine *e, cn_sample *sample);
void cn_engine_drop_request(cn_engine *e, cn_engine_request *r);

/* step_graph.c */
/* Records all buckets up to max_num_seqs in each route and logs one line. Does nothing for a
 * backend without graphs, with --enforce-eager, or with --dump. */
cn_status cn_step_graphs_record(cn_engine *e);
void cn_step_graphs_free(cn_engine *e);
/* The smallest bucket that holds the plan, and the route that it needs; 0 rows when it must run
 * op by op. */
cn_step_shape cn_step_graph_shape(const cn_engine *e, const cn_plan *plan);
/* Replays the model's ops of a shape (from cn_step_graph_shape) for flight f. */
cn_status cn_step_graph_launch(cn_engine *e, cn_step_shape shape, const cn_flight *f);

/* engine.c */
/* Enqueues the model's ops of a step, for n_rows logit rows. hook: as in cn_model_pass. */
cn_status cn_engine_run_model(cn_engine *e, uint32_t n_rows, const cn_layer_hook *hook);
