/* cinch.h - the public header of libcinch: an engine, requests, and a callback for their output.
 * Everything else in the tree is internal and may change.
 *
 * Use:
 *   1. cn_config_create(), then cn_config_set() for each option that differs from its default.
 *   2. cn_engine_create(). It reads the checkpoint and allocates all memory of the engine.
 *   3. cn_engine_submit() for each request.
 *   4. cn_engine_step() until *idle is true. It calls the callbacks, on the calling thread.
 *   5. cn_engine_free(), cn_config_free().
 * examples/offline.c and examples/stream.c are complete programs.
 *
 * Threads: one engine belongs to one thread at a time. cn_last_error() is per thread.
 * Ownership: a pointer passed in is borrowed for the call; the library copies what it keeps. A
 * pointer in a cn_event is valid only during the callback.
 * Errors: a function that can fail returns a cn_status, and cn_last_error() has the text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* They stand around declarations that C++ reads too. */
#ifdef __cplusplus
#define CN_BEGIN_C extern "C" {
#define CN_END_C }
#else
#define CN_BEGIN_C
#define CN_END_C
#endif

CN_BEGIN_C

#define CINCH_VERSION "0.1.0"

typedef enum cn_status {
    CN_OK = 0,
    CN_ERR_ARG,      /* an option or a request field is invalid: the caller can correct it */
    CN_ERR_IO,       /* a file or a socket */
    CN_ERR_MODEL,    /* the checkpoint: missing, damaged, or unsupported */
    CN_ERR_MEMORY,   /* out of host or device memory */
    CN_ERR_DEVICE,   /* the backend: missing library, CUDA error */
    CN_ERR_SHAPE,    /* an op does not support this shape */
    CN_ERR_BUSY,     /* a bounded queue is full: try again later */
    CN_ERR_CANCELLED /* the caller cancelled the operation */
} cn_status;

/* Text of this thread's last failure. Never NULL; valid until the thread's next failure. */
const char *cn_last_error(void);
/* In the text of an error about a request that exceeds the context length. OpenAI and vLLM use the
 * same words, and clients search for them. */
#define CN_CONTEXT_ERROR "This model's maximum context length is"
const char *cn_status_name(cn_status s); /* "CN_ERR_ARG" */

/* ---- key/value cache policy, per request (docs/DESIGN.md §2) ----
 * Start from cn_engine_default_kv() and change fields. The engine accepts the policies of
 * --kv-policies and --kv-policy. */
typedef enum cn_kv_policy {
    CN_KV_FULL,   /* keep all tokens */
    CN_KV_WINDOW, /* keep the first and the newest tokens */
    CN_KV_ZIP     /* keep the tokens with the best scores and the newest */
} cn_kv_policy;
const char *cn_kv_policy_name(cn_kv_policy p); /* "zip" */

/* How `zip` scores tokens. */
typedef enum cn_kv_rule {
    CN_RULE_ZIPAGE, /* the paper's: the attention of the observation window, less redundancy */
    CN_RULE_SCALED, /* the same, with the attention of each head brought to a constant sum; keeps
                     * the first and the newest tokens */
    CN_RULE_PEAK,   /* the largest probability that a query gave a token, decayed by its age and
                     * scaled, less redundancy; keeps the same ends */
    CN_RULE_FOLLOW  /* the attention of the observation window, which also counts for the tokens
                     * that follow; keeps the same ends */
} cn_kv_rule;

/* Which probability counts for `zip`, of those that the query heads of a kv head give a token. With
 * latent attention all heads have one kv head. */
typedef enum cn_kv_head_rule { CN_HEADS_MAX, CN_HEADS_MEAN } cn_kv_head_rule;

/* At which compressions of a request the scores are max-pooled. */
typedef enum cn_kv_pooling { CN_POOLING_FIRST, CN_POOLING_NEVER, CN_POOLING_ALWAYS } cn_kv_pooling;

/* Which keys are compared with each other to find redundant tokens. */
typedef enum cn_kv_redundancy {
    CN_REDUNDANCY_LIGHTNING, /* keys of the same block */
    CN_REDUNDANCY_FLASH,     /* all keys of the request */
    CN_REDUNDANCY_NONE
} cn_kv_redundancy;

/* How attention score S and redundancy R combine: CONVEX is lambda * S - (1 - lambda) * R, SUBTRACT
 * is S - lambda * R. */
typedef enum cn_kv_combine { CN_COMBINE_CONVEX, CN_COMBINE_SUBTRACT } cn_kv_combine;

/* Where a compression puts the kept tokens. ORDER moves them to the front, in token order. FILL
 * moves only the kept tokens behind the budget, each to the place of an evicted token; it requires
 * window_tokens of at most one block. */
typedef enum cn_kv_move { CN_MOVE_ORDER, CN_MOVE_FILL } cn_kv_move;

/* Which tokens a decode step attends to, beside the first and the newest (docs/SELECTION.md). The
 * KV cache keeps all tokens. The engine accepts the selectors of --kv-selectors and --kv-select. */
typedef enum cn_kv_select {
    CN_SELECT_NONE,   /* all tokens */
    CN_SELECT_ORACLE, /* highest attention weights: the upper bound; reads all keys */
    CN_SELECT_QUEST,  /* pages of 16 tokens, by bounds of their keys (Quest) */
    CN_SELECT_DS,     /* tokens, by 4-bit labels of their keys (Double Sparsity) */
    CN_SELECT_TLS,    /* tiles of 64 tokens by bounds, then tokens by labels (AsyncTLS) */
    CN_SELECT_SPADE,  /* tokens, by the predicted query (AsyncSpade) */
    CN_SELECT_LAST,   /* tokens, by the query of the step before */
    CN_SELECT_RANDOM, /* random tokens: a baseline */
    CN_SELECT_SPEC    /* tokens, by a retrieval head before the first layer (SpeContext) */
} cn_kv_select;
const char *cn_kv_select_name(cn_kv_select s); /* "ds" */

/* What `spade` and `last` compare the query with. */
typedef enum cn_select_keys { CN_SELECT_LABELS, CN_SELECT_ROWS } cn_select_keys;

/* How labels are ranked for the query heads of a kv head: by the largest attention share of any
 * head, or by the mean of their logits. */
typedef enum cn_select_group { CN_SELECT_MAX, CN_SELECT_MEAN } cn_select_group;

/* How `spade` weights the recent queries. */
typedef enum cn_select_weights {
    CN_WEIGHTS_SOFTMAX, /* softmax of the ridge regression */
    CN_WEIGHTS_RAW      /* the ridge regression alone */
} cn_select_weights;

/* Where the full KV of a request lies (docs/HOMES.md). The engine accepts the homes of
 * --kv-homes and --kv-home. */
typedef enum cn_kv_home {
    CN_HOME_DEVICE, /* in the KV cache of the device that runs the model */
    CN_HOME_PEER,   /* in the memory of the cache device (--cache-device) */
    CN_HOME_HOST,   /* in host memory */
    CN_HOME_AUTO    /* one of these, chosen at each admission; usage tells which */
} cn_kv_home;
const char *cn_kv_home_name(cn_kv_home h); /* "peer" */

/* With which query `tls` ranks its tiles when the KV lies elsewhere: one step ahead. */
typedef enum cn_select_query {
    CN_QUERY_LAST,     /* the newest, rotated to the step */
    CN_QUERY_PREDICTED /* as `spade` predicts it */
} cn_select_query;

typedef struct cn_kv_params {
    cn_kv_policy policy;
    uint32_t budget_tokens; /* kept per (layer, kv head); rounded up to the block size */
    /* `zip`: observation window w; at most the engine's --kv-window or --kv-observe, whichever is
     * larger. cn_engine_default_kv has the defaults of --kv-rule. Who sets another rule sets this,
     * recent, alpha and pooling too. */
    uint32_t window_tokens;
    /* First tokens that `window` and every rule but `zipage` always keep (fewer than
     * budget_tokens), and that a selector always attends to. */
    uint32_t sink_tokens;
    float recent; /* newest tokens that every rule but `zipage` always keeps, at least
                   * window_tokens: a share of the budget if below 1, else a whole number */
    cn_kv_rule rule;        /* of `zip` */
    cn_kv_head_rule head_rule; /* not max requires several query heads for each kv head */
    /* Rules `scaled` and `peak`: queries before the first compression that count, and all that
     * follow; at most the engine's --kv-observe or --kv-window, whichever is larger. 0: those of
     * the window. */
    uint32_t observe_tokens;
    bool global_score; /* carry a decayed score from one compression to the next; this and the next
                        * members up to combine have no effect with rule `follow` */
    float alpha; /* decay of the global score, 0 to 1: with rule `peak` in 64 tokens, else from one
                  * compression to the next */
    cn_kv_pooling pooling;
    cn_kv_redundancy redundancy;
    float redundancy_p;   /* cosine above which two keys are similar, -1 to 1 */
    float redundancy_tau; /* temperature of the redundancy softmax, above 0, at most 100 */
    float lambda;         /* weight between attention score and redundancy, 0 to 1 */
    cn_kv_combine combine;
    cn_kv_move move;
    cn_kv_select select;    /* with home `device`, not `none` requires policy `full` */
    uint32_t select_tokens; /* k, tokens of a list; rounded up to 16, or to the block size */
    uint32_t select_tiles;  /* `tls`: tiles of 64 tokens whose labels are ranked */
    cn_select_keys select_keys;
    cn_select_group select_group;
    uint32_t select_window; /* `spade`: recent queries that predict the next one, W; `tls` away:
                             * those of select_query predicted */
    cn_select_weights select_weights;
    bool select_rotate;     /* `spade`, `last`: rotate past queries to the position of the step */
    uint32_t recent_tokens; /* newest tokens always attended to; rounded up to a tile of 64 */
    cn_kv_home home;        /* not `device` requires a selector that ranks ahead */
    uint32_t select_cap;    /* most entries that an exchange replaces in a unit; 0: a share of the
                             * exchange area that depends on the home (cn_away_of) */
    cn_select_query select_query; /* `tls` away; others do not read it */
} cn_kv_params;

/* ---- sampling, per request: vLLM's names, defaults and meanings ----
 * Start from cn_engine_default_sampling() and change fields. */
typedef struct cn_logit_bias {
    uint32_t token;
    float bias; /* -100 to 100 */
} cn_logit_bias;

typedef struct cn_sampling {
    uint32_t n;        /* samples, 1 to 1024 */
    float temperature; /* 0 = greedy; a value between 0 and 0.01 is raised to 0.01 */
    float top_p;       /* above 0, at most 1 = off */
    int32_t top_k;     /* 0 or -1 = off */
    float min_p;       /* 0 = off, to 1 */
    float presence_penalty, frequency_penalty; /* -2 to 2; 0 = off */
    float repetition_penalty;                  /* above 0; 1 = off */
    bool has_seed;
    uint64_t seed; /* with has_seed; else derived, see cn_request_params.custom_id */
    uint32_t max_tokens; /* 0 = max_new_tokens of the checkpoint, up to the context length */
    uint32_t min_tokens; /* EOS and stop tokens are banned before it; at most max_tokens */
    bool ignore_eos;
    bool include_stop_str_in_output;
    bool skip_special_tokens;
    int32_t logprobs;              /* -1 = off, else number of alternatives, at most 20 */
    int32_t thinking_token_budget; /* most tokens inside <think>; -1 = no limit */
    /* Repetition detection: stop when the last tokens are one pattern of min_pattern_size to
     * max_pattern_size tokens, repeated min_count times (at least 2). max_pattern_size is at most
     * 1024; 0 = off. */
    uint32_t repetition_max_pattern_size, repetition_min_pattern_size, repetition_min_count;
    const char *const *stop; /* [n_stop] UTF-8 strings of 1 to 1024 bytes; at most 64 */
    size_t n_stop;
    const uint32_t *stop_token_ids; /* [n_stop_token_ids], at most 1024 */
    size_t n_stop_token_ids;
    const cn_logit_bias *logit_bias; /* [n_logit_bias], at most 1024, each token once */
    size_t n_logit_bias;
    /* Only these tokens are sampled; no more than the vocabulary has. None: all. An EOS that is not
     * among them never ends the output. */
    const uint32_t *allowed_token_ids;
    size_t n_allowed_token_ids;
    /* Texts that the output does not contain in the tokens that the tokenizer makes of the text, or
     * of a space and the text. UTF-8 strings of 1 to 1024 bytes that are not only white space; at
     * most 1024. */
    const char *const *bad_words;
    size_t n_bad_words;
} cn_sampling;

/* ---- structured output, per request ----
 * The answer is a text of this form. Only tokens that continue such a text are sampled, and the
 * sample ends when the text cannot continue. max_tokens may cut it. Reasoning before </think> is
 * free. docs/STRUCTURED_OUTPUT.md lists the keywords of schemas and the syntax of expressions. */
typedef enum cn_structure_kind {
    CN_STRUCTURE_NONE,
    CN_STRUCTURE_JSON,   /* any JSON object; text is not read */
    CN_STRUCTURE_SCHEMA, /* JSON that is valid under the JSON Schema in text */
    CN_STRUCTURE_REGEX,  /* a match of the regular expression in text */
    CN_STRUCTURE_CHOICE, /* one of the strings of the JSON array in text */
    CN_STRUCTURE_CALLS,  /* calls of functions, as the JSON object in text describes them */
    CN_STRUCTURE_GRAMMAR /* a text of the grammar in text: GBNF if it has ::=, else Lark */
} cn_structure_kind;

/* White space between values and marks of JSON: one space, or a line break and at most 20 spaces or
 * tabs. */
#define CN_JSON_WHITESPACE_ANY " |\\n[ \\t]{0,20}|"

typedef struct cn_structure {
    cn_structure_kind kind;
    const char *text;
    /* Of JSON and calls: a regular expression of the white space that may stand between values and
     * marks, such as CN_JSON_WHITESPACE_ANY. NULL: none. */
    const char *whitespace;
    bool strict; /* refuse a schema with a keyword that cannot be enforced */
} cn_structure;

/* ---- engine configuration: one field per row of the option table (docs/CONFIG.md) ---- */
typedef struct cn_config cn_config;

cn_config *cn_config_create(void); /* all options at their defaults; NULL when out of memory */
void cn_config_free(cn_config *c); /* NULL is fine */
/* Sets one option from text. `name` is the flag without its dashes ("kv-budget"). CN_ERR_ARG names
 * the option, the value and the bounds. */
cn_status cn_config_set(cn_config *c, const char *name, const char *value);

/* ---- engine ---- */
typedef struct cn_engine cn_engine;

/* Reads the checkpoint of option `model`, allocates all memory and starts the backend. The engine
 * keeps a copy of c. */
cn_status cn_engine_create(cn_engine **out, const cn_config *c);
/* Frees the engine. Running requests end without a callback. NULL is fine. */
void cn_engine_free(cn_engine *e);

/* The sampling parameters for a request that sets none. In order of precedence: options set with
 * cn_config_set(), the checkpoint's generation_config.json (unless --generation-config vllm), the
 * defaults of the option table. max_tokens stays 0 if only the checkpoint sets it. */
void cn_engine_default_sampling(const cn_engine *e, cn_sampling *out);
/* The KV parameters for a request that sets none: the kv options of the configuration. */
void cn_engine_default_kv(const cn_engine *e, cn_kv_params *out);

/* ---- what a request delivers ---- */
typedef enum cn_finish {
    CN_FINISH_NONE,       /* still running */
    CN_FINISH_STOP,       /* EOS, a stop token or a stop string */
    CN_FINISH_LENGTH,     /* max_tokens or the context length */
    CN_FINISH_REPETITION, /* repetition detection */
    /* The thinking budget is spent and the vocabulary has no </think>. When it has one, the engine
     * forces that token and the request continues to another finish; cn_usage.thinking_truncated
     * is then set. */
    CN_FINISH_THINKING_BUDGET,
    CN_FINISH_CANCELLED,
    CN_FINISH_ERROR /* cn_event.error has the text */
} cn_finish;
const char *cn_finish_name(cn_finish f); /* "stop", "length", "repetition", ... */

typedef struct cn_logprob {
    uint32_t token;
    float logprob; /* natural logarithm */
} cn_logprob;

typedef struct cn_token_logprobs {
    cn_logprob chosen;
    const cn_logprob *top; /* [n_top], best first */
    uint32_t n_top;
    uint32_t rank; /* of a prompt's token: how many tokens are at least as likely; else 0 */
} cn_token_logprobs;

/* What compression and selection did to one sample. */
typedef struct cn_kv_usage {
    cn_kv_params params;    /* in force; the budget is rounded up */
    uint32_t compressions;  /* events */
    uint64_t evicted;       /* tokens per (layer, kv head) */
    uint32_t peak_tokens;   /* most resident slots at once */
    /* Bytes of the blocks that compressions emptied, all layers: given up, also if others share
     * them or the prefix cache has them, or left to the request in place of a new block. */
    uint64_t freed_bytes;
    /* Selection: decode steps that attended to a list, and the sums over them of the tokens that
     * they attended to and of the tokens that they could have attended to. */
    uint64_t selected_steps, selected_tokens, candidate_tokens;
    /* Away requests: steps with an exchange, and the sums over steps, layers and kv heads of the
     * entries that were fetched and of those that the cap left out. */
    uint64_t exchanges, fetched_entries, missed_entries;
} cn_kv_usage;

typedef struct cn_usage {
    uint32_t prompt_tokens;
    uint32_t cached_tokens; /* prompt tokens that the prefix cache had */
    uint32_t completion_tokens, reasoning_tokens;
    bool thinking_truncated; /* the thinking budget ended the reasoning, not the model */
    uint32_t preemptions;
    uint64_t recomputed_tokens; /* after preemptions */
    cn_kv_usage kv;
} cn_usage;

/* One delivery: new text of one sample, or its end, or both. */
typedef struct cn_event {
    uint64_t request;     /* id from cn_engine_submit */
    uint32_t sample;      /* 0 .. n-1 */
    /* New content and new reasoning. Reasoning is the text before </think>, when the reasoning
     * parser is on. Both are UTF-8, hold whole characters only, and are "" when there is nothing
     * new. Both end with a NUL but may also contain U+0000: use the lengths. */
    const char *text, *reasoning;
    size_t text_len, reasoning_len; /* bytes */
    const uint32_t *prompt; /* [n_prompt] token ids of the prompt */
    uint32_t n_prompt;
    /* [n_prompt] with cn_request_params.score_prompt, once the prompt is computed; else NULL. The
     * first token has no context: its logprob is NAN. */
    const cn_token_logprobs *prompt_logprobs;
    const uint32_t *tokens; /* [n_tokens] new token ids */
    uint32_t n_tokens;
    const cn_token_logprobs *logprobs; /* [n_tokens], or NULL */
    cn_finish finish;
    const char *stop_reason; /* the stop string that ended the sample, or NULL */
    int64_t stop_token;      /* the entry of stop_token_ids that ended it, or -1; -1 for an EOS */
    /* At the end of a sample: byte offset of the answer in all its content. Content before it is
     * reasoning that no reasoning parser separated. The length of the content when that reasoning
     * never ended. */
    size_t answer_at;
    const char *error;       /* with CN_FINISH_ERROR, else NULL */
    /* With CN_FINISH_ERROR: the request is at fault. Its structure cannot be used, or its
     * parameters exclude every next token. param: the field, or NULL. */
    bool invalid;
    const char *param;
    const cn_usage *usage;   /* of this sample, at its end, else NULL */
    const char *warnings; /* what the structure of the request does not enforce: lines, or NULL */
    /* Seconds that the request waited: from its submission to the first admission of a sample, or
     * until now if none has been admitted. */
    double waited_s;
    bool last;               /* the last event of this request */
} cn_event;
/* The callback may call cn_engine_submit() and cn_engine_cancel(). It must not call
 * cn_engine_step() or cn_engine_free(). */
typedef void (*cn_event_fn)(void *user, const cn_event *ev);

/* ---- requests ---- */
typedef struct cn_message {
    const char *role, *content;
    /* Reasoning of an assistant message, separate from its content, for chat templates that render
     * it. NULL: none, and content may hold it inside <think>. */
    const char *reasoning;
} cn_message;

#define CN_TRUNCATE_TO_ROOM UINT32_MAX

/* Interactive requests are admitted before batch requests. */
typedef enum cn_class { CN_CLASS_INTERACTIVE, CN_CLASS_BATCH } cn_class;

typedef struct cn_request_params {
    /* Without a sampling.seed, the seed is a hash of the engine's seed and custom_id, or of the
     * request's id when custom_id is NULL. */
    const char *custom_id;
    /* Set exactly one of: messages and chat (both rendered by the chat template), text, tokens. */
    const cn_message *messages;
    size_t n_messages;
    int enable_thinking; /* of `messages`: -1 = the template's default, 0 = off, 1 = on */
    /* The variables of the chat template, an object of the library jansson: "messages" and, where
     * wanted, "tools", "documents", "add_generation_prompt", "continue_final_message" and those
     * that only this template has. It must stay valid and unchanged until the call returns. */
    const struct json_t *chat;
    const char *text;
    size_t text_len; /* bytes of text, which may then contain U+0000; 0: up to its NUL */
    const uint32_t *tokens;
    size_t n_tokens;
    /* Teacher forcing: the first n_forced output tokens are these, whatever the logits. Logprobs
     * are still the model's. n_forced is at most the number of tokens the request may generate. */
    const uint32_t *forced;
    size_t n_forced;
    bool score_prompt;     /* deliver cn_event.prompt_logprobs */
    uint32_t n_prompt_top; /* with alternatives, at most 20 */
    bool no_output;        /* end when the prompt is computed, with CN_FINISH_LENGTH */
    /* A max_tokens beyond the room in the context is cut, not an error. With CN_CLASS_INTERACTIVE,
     * so is one beyond what the pool can hold. */
    bool cut_max_tokens;
    bool finds_calls; /* special tokens that mark tool calls are text in any case */
    bool whole_text; /* reasoning and its tags stay in the text, whatever the reasoning parser */
    /* Keep only the last tokens of the prompt; 0 = all. CN_TRUNCATE_TO_ROOM keeps as many as leave
     * room for max_tokens, or for min_tokens and at least one token. */
    uint32_t truncate_prompt;
    cn_sampling sampling;
    struct cn_bad_words *bad_words_made; /* internal: their tokens; NULL: made from the texts */
    bool was_accepted; /* internal: by an engine that failed; the queue has room for it */
    cn_structure structure; /* requires min_tokens 0 and no forced tokens */
    cn_kv_params kv;
    cn_class klass;
    int32_t priority; /* lower first inside a class; 0 without --scheduling-policy priority */
    /* Inside a class, the owner whose running requests have the fewest tokens comes first; work for
     * their token masks counts as tokens. Owners
     * do not share the prefix cache, unless --share-prefix-cache is set. */
    uint32_t owner;
} cn_request_params;

/* Queues a request; *request is its id (request may be NULL). CN_ERR_ARG when a field is invalid or
 * the prompt is too long, CN_ERR_BUSY when the queue of its class is full. On failure the engine
 * keeps nothing of the request and never calls fn for it. A structure is compiled while the request
 * waits. If it is invalid, the request ends with an event; an equal one is then refused at once. */
cn_status cn_engine_submit(cn_engine *e, const cn_request_params *p, cn_event_fn fn, void *user,
                           uint64_t *request);
/* Queues n requests of one class, or none of them. Their ids follow each other, from *first on. */
cn_status cn_engine_submit_all(cn_engine *e, const cn_request_params *p, size_t n, cn_event_fn fn,
                               void *user, uint64_t *first);
/* Ends a request with CN_FINISH_CANCELLED at the next step. Unknown and ended ids are ignored. */
void cn_engine_cancel(cn_engine *e, uint64_t request);

/* Runs one step: schedule, run the model, sample, deliver. Sets *idle when no work is left. An
 * error is a failure of the engine (a device fault): free it. The failure of one request is an
 * event. */
cn_status cn_engine_step(cn_engine *e, bool *idle);

/* ---- statistics ----
 * Totals since the engine was created, and the state between two steps. */
typedef struct cn_stats {
    uint64_t steps, generation_tokens;
    uint64_t prompt_tokens, cached_tokens; /* of requests that have been admitted */
    uint64_t requests_done, preemptions, recomputed_tokens;
    uint64_t prefix_queries; /* prompt tokens looked up in the prefix cache; cached_tokens hit */
    uint64_t holder_preemptions; /* preemptions of a request with a query slot or reservation */
    uint32_t running, waiting;   /* samples */
    uint32_t waiting_interactive; /* of those that wait */
    uint32_t blocked; /* running, but without the query slot or block that the next token needs */
    uint32_t blocks_total;
    uint32_t blocks_used, blocks_cached; /* used: in a request's table; cached: only cached */
    /* Blocks that compressed running requests would hold beyond those they hold, had nothing been
     * evicted. */
    uint64_t blocks_spared;
    uint32_t block_tokens;
    uint64_t block_bytes; /* all layers: K, V and the side arrays that move with them */
    uint64_t compressions, evicted_tokens, freed_bytes; /* sums of cn_kv_usage */
    uint64_t selected_steps, selected_tokens, candidate_tokens; /* sums of cn_kv_usage */
    uint64_t exchanges, fetched_entries, missed_entries;        /* sums of cn_kv_usage */
    uint64_t fetched_bytes, put_bytes; /* K and V from homes, and to homes */
    /* Of copies to each home, measured at the start, indexed by cn_kv_home; 0: no such home, or a
     * CPU. */
    double home_link_bytes_per_s[3];
    double stall_s; /* time that the host waited for exchanges. A GPU waits by itself: 0 */
    uint32_t home_blocks_total, home_blocks_used; /* blocks of kv homes peer and host */
    /* Samples with kv home auto: admissions by the home that was chosen, indexed by cn_kv_home, and
     * moves of a running sample from the device to another home. */
    uint64_t auto_admissions[3], auto_moves;
    double compression_s; /* from enqueueing an event to its end, summed over events */
    uint32_t slots_total, slots_used; /* query slots */
    uint32_t compressing;             /* samples with an event in flight */
    uint32_t swapped; /* samples whose KV is in the swap space; neither running nor waiting */
    uint32_t swap_blocks_total, swap_blocks_used;
    uint32_t swap_windows_total, swap_windows_used; /* query windows in the swap space */
    uint64_t swap_outs, swap_ins; /* samples moved to the swap space and back */
    uint64_t swapped_out_blocks, swapped_in_blocks, swapped_out_bytes, swapped_in_bytes;
} cn_stats;
void cn_engine_stats(const cn_engine *e, cn_stats *out);

CN_END_C
