/* cinch.h - the one public header of libcinch: an engine, requests, and a callback for their
 * output. Everything else in the tree is internal and may change.
 *
 * Use: create a cn_config, change it by option name with cn_config_set(), create an engine, submit
 * requests, call cn_engine_step() until it says idle.
 * Callbacks run inside cn_engine_step(), on the thread that calls it.
 *
 * Threads: one engine belongs to one thread at a time; cn_last_error() is per thread.
 * Ownership: pointers passed in are borrowed for the call and copied where kept; pointers in a
 * cn_event are valid during the callback only. */
#ifndef CINCH_H
#define CINCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CINCH_VERSION "0.1.0"

typedef enum cn_status {
    CN_OK = 0,
    CN_ERR_ARG,      /* an option or a request field: the caller can mend it */
    CN_ERR_IO,       /* a file or a socket */
    CN_ERR_MODEL,    /* the checkpoint: missing, damaged, or unsupported */
    CN_ERR_MEMORY,   /* host or device memory */
    CN_ERR_DEVICE,   /* the backend: missing library, CUDA error */
    CN_ERR_SHAPE,    /* an op was asked for a shape it does not have */
    CN_ERR_BUSY,     /* a bounded queue is full: try again later */
    CN_ERR_CANCELLED /* the caller asked for it */
} cn_status;

/* Text of this thread's last failed call. Never NULL. */
const char *cn_last_error(void);
const char *cn_status_name(cn_status s); /* "CN_ERR_ARG" */

/* ---- key/value cache policy, per request (docs/DESIGN.md §2) ---- */
typedef enum cn_kv_policy { CN_KV_FULL, CN_KV_WINDOW, CN_KV_ZIP } cn_kv_policy;
const char *cn_kv_policy_name(cn_kv_policy p); /* "zip" */
typedef enum cn_kv_pooling { CN_POOLING_FIRST, CN_POOLING_NEVER, CN_POOLING_ALWAYS } cn_kv_pooling;
typedef enum cn_kv_redundancy {
    CN_REDUNDANCY_LIGHTNING,
    CN_REDUNDANCY_FLASH,
    CN_REDUNDANCY_NONE
} cn_kv_redundancy;
typedef enum cn_kv_combine { CN_COMBINE_CONVEX, CN_COMBINE_SUBTRACT } cn_kv_combine;
typedef enum cn_kv_move { CN_MOVE_ORDER, CN_MOVE_FILL } cn_kv_move;

typedef struct cn_kv_params {
    cn_kv_policy policy;
    uint32_t budget_tokens; /* kept per (layer, kv head); rounded up to the block size */
    uint32_t window_tokens; /* observation window w; at most the engine's --kv-window */
    uint32_t sink_tokens;   /* `window` policy: first tokens always kept */
    bool global_score;      /* decayed global score on */
    float alpha;            /* decay of the global score */
    cn_kv_pooling pooling;
    cn_kv_redundancy redundancy;
    float redundancy_p;   /* cosine above which two keys count as twins */
    float redundancy_tau; /* temperature of the redundancy softmax */
    float lambda;         /* weight between attention score and redundancy */
    cn_kv_combine combine;
    /* Where kept tokens go: to the front in their order, or only those from behind the budget, each
     * to the place of an evicted one. `fill` takes windows of at most a block. */
    cn_kv_move move;
} cn_kv_params;

/* ---- sampling, per request: vLLM's names, defaults and meanings ---- */
typedef struct cn_logit_bias {
    uint32_t token;
    float bias;
} cn_logit_bias;

typedef struct cn_sampling {
    uint32_t n;
    float temperature; /* 0 = greedy; above 0 at least 0.01 is used */
    float top_p;
    int32_t top_k; /* 0 or -1 = off */
    float min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
    bool has_seed;
    uint64_t seed;
    uint32_t max_tokens; /* 0 = up to the context length */
    uint32_t min_tokens;
    bool ignore_eos;
    bool include_stop_str_in_output;
    bool skip_special_tokens;
    int32_t logprobs;              /* -1 = off, else number of alternatives, at most 20 */
    int32_t thinking_token_budget; /* -1 = none */
    /* Repetition detection: stop when the last tokens are one pattern of min..max_pattern_size
     * tokens repeated min_count times. max_pattern_size 0 = off. */
    uint32_t repetition_max_pattern_size, repetition_min_pattern_size, repetition_min_count;
    const char *const *stop; /* [n_stop] */
    size_t n_stop;
    const uint32_t *stop_token_ids; /* [n_stop_token_ids] */
    size_t n_stop_token_ids;
    const cn_logit_bias *logit_bias; /* [n_logit_bias] */
    size_t n_logit_bias;
} cn_sampling;

/* ---- engine configuration: one field per row of the option table (docs/CONFIG.md) ---- */
typedef struct cn_config cn_config;

cn_config *cn_config_create(void); /* defaults; NULL when memory is out */
void cn_config_free(cn_config *c);
/* Sets one option by its flag name without dashes ("kv-budget"), from text. CN_ERR_ARG names the
 * option, the value and the bounds. */
cn_status cn_config_set(cn_config *c, const char *name, const char *value);

/* ---- engine ---- */
typedef struct cn_engine cn_engine;

cn_status cn_engine_create(cn_engine **out, const cn_config *c);
void cn_engine_free(cn_engine *e); /* NULL is fine; running requests are dropped silently */

/* The sampling and kv defaults this engine gives a request that says nothing: option table, then
 * the checkpoint's generation_config.json unless --generation-config vllm. */
void cn_engine_default_sampling(const cn_engine *e, cn_sampling *out);
void cn_engine_default_kv(const cn_engine *e, cn_kv_params *out);

typedef enum cn_finish {
    CN_FINISH_NONE,       /* still running */
    CN_FINISH_STOP,       /* EOS, a stop token or a stop string */
    CN_FINISH_LENGTH,     /* max_tokens or the context length */
    CN_FINISH_REPETITION, /* repetition detection */
    /* The thinking budget is spent and the vocabulary has no </think> to go on to the answer with.
     * Where it has one the model is made to take it, the request runs on to an ordinary finish,
     * and cn_usage.thinking_truncated is set. */
    CN_FINISH_THINKING_BUDGET,
    CN_FINISH_CANCELLED,
    CN_FINISH_ERROR
} cn_finish;
const char *cn_finish_name(cn_finish f); /* "stop", "length", "repetition", ... */

typedef struct cn_logprob {
    uint32_t token;
    float logprob;
} cn_logprob;

typedef struct cn_token_logprobs {
    cn_logprob chosen;
    const cn_logprob *top; /* [n_top], best first */
    uint32_t n_top;
} cn_token_logprobs;

typedef struct cn_kv_usage {
    cn_kv_params params;    /* what was in force, budget rounded up */
    uint32_t compressions;  /* events */
    uint64_t evicted;       /* tokens, per (layer, kv head) */
    uint32_t peak_tokens;   /* most resident slots at once */
    /* Blocks that compressions emptied, all layers: given back, or left to the request to go on in,
     * which would otherwise have taken another. */
    uint64_t freed_bytes;
} cn_kv_usage;

typedef struct cn_usage {
    uint32_t prompt_tokens, cached_tokens;
    uint32_t completion_tokens, reasoning_tokens;
    bool thinking_truncated; /* the thinking budget ended the reasoning, not the model */
    uint32_t preemptions;
    uint64_t recomputed_tokens;
    cn_kv_usage kv;
} cn_usage;

/* One delivery: new text of one sample, or its end, or both. */
typedef struct cn_event {
    uint64_t request;     /* from cn_engine_submit */
    uint32_t sample;      /* 0 .. n-1 */
    /* New content and, when the reasoning parser is on, new text before </think>: UTF-8, never a
     * split character, "" where there is none. Both end with a NUL, but a model may say U+0000 too:
     * the lengths count. */
    const char *text, *reasoning;
    size_t text_len, reasoning_len; /* bytes */
    const uint32_t *tokens; /* [n_tokens] new token ids */
    uint32_t n_tokens;
    const cn_token_logprobs *logprobs; /* [n_tokens] or NULL */
    cn_finish finish;
    const char *stop_reason; /* the stop string or NULL */
    int64_t stop_token;      /* the entry of stop_token_ids or -1; an EOS is none */
    /* At the end of a sample: byte of all its text at which the answer begins. What stands before
     * it is reasoning that no reasoning parser set apart; all of it, when that never ended. */
    size_t answer_at;
    const char *error;       /* with CN_FINISH_ERROR */
    const cn_usage *usage;   /* of this sample, at its end, else NULL */
    bool last;               /* no further event for this request */
} cn_event;
typedef void (*cn_event_fn)(void *user, const cn_event *ev);

typedef struct cn_message {
    const char *role, *content;
    /* Reasoning of an assistant message, apart from its content, for chat templates that render it;
     * NULL: none, and content may hold it inside <think>. */
    const char *reasoning;
} cn_message;

typedef enum cn_class { CN_CLASS_INTERACTIVE, CN_CLASS_BATCH } cn_class;

typedef struct cn_request_params {
    const char *custom_id; /* enters the seed when the request has none; may be NULL */
    /* Exactly one of: messages (through the chat template), text, tokens. */
    const cn_message *messages;
    size_t n_messages;
    int enable_thinking; /* chat template switch: -1 template's default, 0, 1 */
    const char *text;
    const uint32_t *tokens;
    size_t n_tokens;
    /* Teacher forcing: the first n_forced output tokens are these, whatever the logits; logprobs
     * are still the model's. At most as many as the request may generate. */
    const uint32_t *forced;
    size_t n_forced;
    cn_sampling sampling;
    cn_kv_params kv;
    cn_class klass;
    int32_t priority; /* lower first inside a class */
} cn_request_params;

/* Queues a request. CN_ERR_ARG when the request is at fault (over-long prompt, bad field),
 * CN_ERR_BUSY when the queue is full. Nothing is kept on failure. */
cn_status cn_engine_submit(cn_engine *e, const cn_request_params *p, cn_event_fn fn, void *user,
                           uint64_t *request);
/* Ends a request with CN_FINISH_CANCELLED at the next step. Unknown or ended ids are ignored. */
void cn_engine_cancel(cn_engine *e, uint64_t request);

/* One step: schedule, run, sample, deliver. *idle is set when nothing is left to do. An error
 * here is an engine failure (a device fault); a request's own failure is an event. */
cn_status cn_engine_step(cn_engine *e, bool *idle);

typedef struct cn_stats {
    uint64_t steps, prompt_tokens, cached_tokens, generation_tokens;
    uint64_t requests_done, preemptions, recomputed_tokens;
    uint64_t prefix_queries; /* prompt tokens looked up in the prefix cache; cached_tokens hit */
    uint64_t holder_preemptions; /* of preemptions: of a request with a query slot or reservation */
    uint32_t running, waiting;
    uint32_t blocked; /* running, but without the slot or the block that the next token needs */
    uint32_t blocks_total, blocks_used, blocks_cached; /* used: in a table; cached: only cached */
    /* Blocks that running requests would hold beyond those they do, had nothing been evicted. */
    uint64_t blocks_spared;
    uint32_t block_tokens;
    uint64_t block_bytes; /* all layers, K, V and what moves with them */
    uint64_t compressions, evicted_tokens, freed_bytes;
    uint64_t relaxed_blocks; /* taken beyond caps (--tail-relaxation) */
    double compression_s; /* from the enqueueing of an event to its end, summed over events */
    uint32_t slots_total, slots_used, compressing;
    uint32_t swapped; /* their KV is in the swap space, neither running nor waiting */
    uint32_t swap_blocks_total, swap_blocks_used;
    uint32_t swap_windows_used; /* query windows there */
    uint64_t swap_outs, swap_ins; /* requests moved there and back, and what moved */
    uint64_t swapped_out_blocks, swapped_in_blocks, swapped_out_bytes, swapped_in_bytes;
} cn_stats;
void cn_engine_stats(const cn_engine *e, cn_stats *out);

#ifdef __cplusplus
}
#endif
#endif
