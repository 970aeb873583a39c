/* api_response.h - the events of a request gathered into the JSON bodies that OpenAI and vLLM
 * clients parse: chat.completion, text_completion, and the error object.
 *
 * Owner: the caller. Thread: the engine's, which makes the events. Stage: 7, after sampling.
 *
 * Beyond OpenAI's fields: message.reasoning_content; choices[].stop_reason, and thinking_truncated
 * where the thinking budget ended the reasoning; and usage.kv, what the KV cache of the request
 * went through (of n samples: sums, and the largest peak). */
#ifndef CN_API_RESPONSE_H
#define CN_API_RESPONSE_H

#include <jansson.h>

#include "engine/api/api_request.h"
#include "engine/base.h"

/* The bytes a token stands for, not always whole UTF-8; NULL when the id is unknown. */
typedef const char *(*cn_token_bytes_fn)(void *user, uint32_t token, size_t *n_bytes);

typedef struct cn_api_result cn_api_result;

/* A result for one request, before it is submitted; keeps nothing of it. The token function is
 * asked only when the request wants logprobs. */
cn_status cn_api_result_create(cn_api_result **out, const cn_api_request *request,
                               cn_token_bytes_fn token_bytes, void *user);
void cn_api_result_free(cn_api_result *r); /* NULL is fine */

/* Takes one event. A failure here (memory) is kept and ends up in cn_api_result_error. */
void cn_api_result_add(cn_api_result *r, const cn_event *ev);

/* Tokens taken so far, all samples: 0 means that the engine has not begun to answer. */
uint64_t cn_api_result_n_tokens(const cn_api_result *r);
bool cn_api_result_was_cancelled(const cn_api_result *r);
/* Why a sample failed, or NULL. */
const char *cn_api_result_error(const cn_api_result *r);

uint32_t cn_api_result_n_choices(const cn_api_result *r);
/* The content behind the reasoning, whether a parser set that apart or not, n bytes: what is
 * graded. */
const char *cn_api_result_answer(const cn_api_result *r, uint32_t choice, size_t *n);
void cn_api_result_usage(const cn_api_result *r, cn_usage *out);         /* over all samples */

/* The body of a done, unfailed result. id without its prefix ("chatcmpl-", "cmpl-"), created in
 * seconds since the epoch. NULL when memory is out. */
json_t *cn_api_result_body(const cn_api_result *r, const char *id, const char *model,
                           int64_t created);

/* The next chunk of a streamed reply: what one choice has said since its last chunk, taken out of
 * the result. NULL when there is nothing new, or memory is out. With `usage`, chunks have the null
 * that stream_options.include_usage asks for. */
json_t *cn_api_result_take_chunk(cn_api_result *r, const char *id, const char *model,
                                 int64_t created, bool usage);
/* The chunk behind the last: no choices, the usage. */
json_t *cn_api_result_usage_chunk(const cn_api_result *r, const char *id, const char *model,
                                  int64_t created);

/* {policy, budget, compressions, evicted, peak_tokens, freed_bytes}: usage.kv of a body. */
json_t *cn_api_kv_json(const cn_kv_usage *u);

/* {"error": {message, type, param, code, line}}: type is "rate_limit_error" for 429,
 * "invalid_request_error" for another 4xx, else "internal_error"; param, code NULL or "" give null;
 * line 0 leaves the member out. */
json_t *cn_api_error_body(int http_status, const char *message, const char *param,
                          const char *code, uint64_t line);

#endif
