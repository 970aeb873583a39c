/* api_result_state.h - the output that a request has so far. Private to engine/api/.
 * Owner: cn_api_result. Thread: the result's. */
#pragma once

#include "engine/api/api_response.h"
#include "engine/api/api_tools.h"

typedef struct cn_api_choice {
    cn_buf text, reasoning; /* when streamed: since the last chunk */
    cn_tool_finder tools;
    bool has_event;         /* an event of it has arrived */
    bool began, ended;      /* when streamed: the first, the last chunk was taken */
    size_t n_echo;    /* bytes of the prompt that begin the text */
    size_t answer_at; /* byte of text */
    cn_api_logprobs logprobs; /* when streamed: since the last chunk */
    cn_api_text_place text_place; /* of the first of `logprobs` */
    cn_buf token_ids;         /* with return_token_ids; when streamed: since the last chunk */
    uint32_t n_tokens;
    cn_finish finish;
    char *stop_reason;
    int64_t stop_token;
    cn_usage usage;
    /* Of a response, where its reasoning begins: content and calls before it; and the logprobs of
     * tokens before the content that follows it, which `said` says has begun. */
    size_t reasoning_at, n_unsaid;
    uint32_t reasoning_call;
    bool said;
} cn_api_choice;

/* One of the prompts, and the data of the first event about it. */
typedef struct cn_api_prompt_data {
    cn_buf echo; /* the text to repeat as it was sent; NULL: none, or that of the tokens */
    bool known;
    uint32_t n_tokens;
    cn_buf token_ids;         /* with return_token_ids */
    cn_api_logprobs logprobs; /* with prompt_logprobs */
} cn_api_prompt_data;

struct cn_api_result {
    cn_api_endpoint endpoint;
    bool wants_logprobs, wants_ids, wants_prompt, echoes, chunk_usage;
    bool names_call; /* tool_choice names a function */
    cn_api_logprobs_form form, prompt_form;
    uint32_t n_samples; /* of each prompt */
    cn_api_prompt_data *prompts;
    uint64_t n_tokens;
    bool done, cancelled, invalid;
    json_t *warnings; /* NULL: none, or the stream has sent them */
    const char *structure_key; /* the member that the request has set its structure by */
    bool knows_structure;      /* warnings has those of the structure */
    json_t *tool_names; /* the keys of an object; NULL: there are no tools */
    cn_buf repeated;  /* cn_api_request.repeated */
    bool summarizes;
    char *error;
    char *error_param; /* the member that the error is about; NULL: none */
    uint32_t n_choices;
    cn_api_choice choices[];
};

/* ---- api_response.c ---- */

enum { CN_API_SLICE_TOKENS = 32 }; /* logprobs that are made into text at once */

/* Appends a value as text, without its first n_first and its last n_cut characters, and releases
 * it. NULL: out of memory. */
cn_status cn_api_add_json(cn_buf *out, uint32_t digits, json_t *v, size_t n_first, size_t n_cut);
json_t *cn_api_ids_json(const cn_buf *ids);
/* The stop string or the stop token's id; null for an EOS and any other finish, as in vLLM. */
json_t *cn_api_stop_reason_json(const cn_api_choice *c);
