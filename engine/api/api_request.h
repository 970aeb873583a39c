/* api_request.h - the JSON body of /v1/chat/completions and /v1/completions, as OpenAI and vLLM
 * spell it, read into cn_request_params.
 *
 * Owner: the caller; cn_api_request_free() after the engine has taken the request. Thread: any; a
 * request belongs to one thread at a time. Stage: 1, before the engine knows of the request.
 *
 * Nothing is dropped silently. A field is (1) read; (2) of no consequence here ("user", "store");
 * (3) accepted at the one value that asks for what happens anyway ("echo": false); or (4) an error
 * that names it. null counts as absent. Scalars of sampling and `kv` are rows of the option table,
 * with its bounds. */
#ifndef CN_API_REQUEST_H
#define CN_API_REQUEST_H

#include <jansson.h>

#include "engine/base.h"

typedef enum cn_api_endpoint {
    CN_API_CHAT,       /* /v1/chat/completions */
    CN_API_COMPLETION, /* /v1/completions */
    CN_API_N_ENDPOINTS
} cn_api_endpoint;

const char *cn_api_endpoint_path(cn_api_endpoint e);
/* False when no endpoint has this path. */
bool cn_api_endpoint_find(const char *path, cn_api_endpoint *out);

/* What a field that the body leaves out gets; both from the engine. Plain values. */
typedef struct cn_api_defaults {
    cn_sampling sampling;
    cn_kv_params kv;
} cn_api_defaults;

enum {
    CN_API_MAX_DEPTH = 32,                /* nesting of a body */
    CN_API_DEFAULT_COMPLETION_TOKENS = 16 /* max_tokens of /v1/completions, by OpenAI's rule */
};

typedef struct cn_api_request {
    cn_api_endpoint endpoint;
    cn_request_params params; /* custom_id, klass: for the caller to set */
    bool stream;
    bool stream_usage; /* stream_options.include_usage */

    /* What params points to. */
    json_t *keep; /* the body, and strings made from it */
    cn_message *messages;
    uint32_t *tokens, *stop_token_ids;
    const char **stop;
    cn_logit_bias *logit_bias;
} cn_api_request;

/* Reads body (of cn_json_parse_request), which the request keeps a reference to. CN_ERR_ARG names
 * field, value and what is wanted; *out is then empty, and at_fault (unless NULL) has the field's
 * name, or "" when no single field is at fault. */
cn_status cn_api_request_parse(cn_api_request *out, cn_api_endpoint endpoint, json_t *body,
                               const cn_api_defaults *defaults, cn_buf *at_fault);
void cn_api_request_free(cn_api_request *r); /* leaves an empty one; empty is fine */

#endif
