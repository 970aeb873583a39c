/* api_request.h - reads the JSON body of /v1/chat/completions, /v1/completions and /v1/responses,
 * with the fields of OpenAI and vLLM, into cn_request_params.
 *
 * Owner: the caller; call cn_api_request_free() after cn_engine_submit. Thread: any; a request
 * belongs to one thread at a time. Stage: 1, before the engine gets the request.
 *
 * No field is ignored silently. A field is
 *   1. read; or
 *   2. accepted without effect, because it cannot change the answer ("user", "store"); or
 *   3. accepted only at the value that means what cinch does anyway ("echo": false); or
 *   4. unknown: accepted with a warning, or with --unknown-fields refuse an error that names it.
 * null counts as absent. Scalars of sampling and `kv` are rows of the option table, with its
 * bounds. */
#pragma once

#include <jansson.h>

#include "engine/api/api_unknown.h"
#include "engine/base/base.h"
#include "engine/options/options.h"

typedef enum cn_api_endpoint {
    CN_API_CHAT,       /* /v1/chat/completions */
    CN_API_COMPLETION, /* /v1/completions */
    CN_API_RESPONSES,  /* /v1/responses */
    CN_API_N_ENDPOINTS
} cn_api_endpoint;

const char *cn_api_endpoint_path(cn_api_endpoint e);
/* False if no endpoint has this path. */
bool cn_api_endpoint_find(const char *path, cn_api_endpoint *out);

/* CN_ERR_ARG about "model": a client wants a model by a name that is none of names. The answer is
 * then 404 with the code below. model: NULL and null are fine. */
#define CN_API_MODEL_NOT_FOUND "model_not_found"
cn_status cn_api_model_check(const cn_served_names *names, const json_t *model);

/* The values of fields that the body does not set; from cn_engine_default_sampling and
 * cn_engine_default_kv. */
typedef struct cn_api_defaults {
    cn_sampling sampling;
    cn_kv_params kv;
    const cn_config *config; /* whose given options hold with any kv.rule; NULL: none was given */
    bool any_rule;           /* all options of config hold with any kv.rule */
    cn_opt_tool_parser tool_parser; /* none: tools are refused */
    bool cap_max_tokens; /* a max_tokens of the body is cut to the room too */
    cn_opt_json_whitespace json_whitespace;
    cn_api_unknown *unknown; /* NULL: unknown fields are refused */
} cn_api_defaults;

/* What tool_choice asks for. REQUIRED and NAMED: params.structure makes the answer calls. */
typedef enum cn_api_tool_choice {
    CN_API_TOOL_AUTO, /* or none: the request has no tools then */
    CN_API_TOOL_REQUIRED,
    CN_API_TOOL_NAMED
} cn_api_tool_choice;

enum {
    CN_API_MAX_DEPTH = 72, /* maximum nesting of a body: a schema of 64 in a response_format */
    CN_API_MAX_PROMPTS = 1024,            /* of a completion */
    CN_API_DEFAULT_COMPLETION_TOKENS = 16 /* default max_tokens of /v1/completions, as in OpenAI */
};

typedef struct cn_api_request {
    cn_api_endpoint endpoint;
    cn_request_params params; /* the caller sets custom_id and klass */
    bool stream;
    bool cap_max_tokens; /* while it is parsed */
    bool stream_usage; /* stream_options.include_usage */
    cn_opt_tool_parser tool_parser; /* none: the answer is not searched for calls */
    cn_api_tool_choice tool_choice;
    bool either;                    /* params.structure makes the answer calls or JSON */
    bool one_tool_call;             /* parallel_tool_calls is false */
    bool chunk_usage;  /* stream_options.continuous_usage_stats */
    bool echo;         /* the text begins with the prompt, and so do the logprobs */
    bool return_token_ids;
    /* The members that set the maximum length and params.structure. NULL: max_tokens; none. */
    const char *length_key, *structure_key;
    const char *whitespace; /* of params.structure, if that is JSON */
    bool whitespace_set;    /* by structured_outputs */
    int32_t prompt_logprobs; /* alternatives of each prompt token; -1: off */
    /* The prompts of a completion; params has the first. Each becomes an engine request of its own
     * and params.sampling.n choices. */
    struct cn_api_prompt {
        const char *text; /* [text_len] may contain U+0000; NULL: tokens */
        size_t text_len;
        uint32_t *tokens;
        size_t n_tokens;
    } *prompts;
    uint32_t n_prompts; /* 1 for a chat, which has no prompts[] */

    /* Of a response: the members that repeat the request, as JSON without its braces; and whether
     * reasoning.summary asks for the reasoning as a summary. */
    cn_buf repeated;
    bool summarizes;

    json_t *warnings;  /* array of texts about ignored fields; NULL: none */
    cn_api_unknown *unknown; /* while it is parsed */

    /* Memory that params points to. */
    json_t *keep; /* the body */
    json_t *chat; /* the variables of the chat template */
    uint32_t *stop_token_ids, *allowed_token_ids;
    const char **stop, **bad_words;
    cn_logit_bias *logit_bias;
} cn_api_request;

/* Reads a body from cn_json_parse_request and keeps a reference to it. Removes the members of body
 * that the request does not point into. CN_ERR_ARG names the field, its value and what was
 * expected; *out is then empty. */
cn_status cn_api_request_parse(cn_api_request *out, cn_api_endpoint endpoint, json_t *body,
                               const cn_api_defaults *defaults);
/* Sets at_fault to the member that this thread's last error is about (cn_last_param), by its name
 * in the body of the request. r: empty if the body could not be parsed. Out of memory: sets "". */
void cn_api_note_param(const cn_api_request *r, cn_buf *at_fault);
/* Sets the prompt of *io to the i-th of r; leaves that of a chat. */
void cn_api_request_set_prompt(const cn_api_request *r, uint32_t i, cn_request_params *io);
/* Submits all prompts or none; see cn_engine_submit_all. */
cn_status cn_api_request_submit(const cn_api_request *r, cn_engine *e, cn_event_fn fn, void *user,
                                uint64_t *first);
void cn_api_request_free(cn_api_request *r); /* leaves *r empty; an empty request is fine */
