/* api_response.h - collects the events of a request into the JSON bodies that OpenAI and vLLM
 * clients parse: chat.completion, text_completion, response, and the error object.
 *
 * Owner: the caller. Thread: the engine's, which delivers the events. Stage: 8, after sampling.
 *
 * With tools, calls in the text become message.tool_calls (api_tools.h).
 * Fields beyond OpenAI's: message.reasoning_content; choices[].stop_reason;
 * choices[].thinking_truncated if the thinking budget ended the reasoning; and usage.kv, the
 * compression figures of the request (over n samples: sums, and the largest peak); warnings, texts
 * about fields that were ignored, if there are any (of a stream: in the first chunk). */
#pragma once

#include <jansson.h>

#include "engine/api/api_logprobs.h"
#include "engine/api/api_request.h"
#include "engine/base/base.h"

typedef struct cn_api_result cn_api_result;

/* Creates the result of a request that is not submitted yet; keeps no pointer to it. token_bytes is
 * called only if the request has logprobs on. */
cn_status cn_api_result_create(cn_api_result **out, const cn_api_request *request,
                               cn_token_bytes_fn token_bytes, void *user);
void cn_api_result_free(cn_api_result *r); /* NULL is fine */

/* The event of an engine request as one of the whole request, whose engine requests have ids from
 * `first` on: with the index of the choice, and `last` only for the last of them all. *n_left: how
 * many have not ended. */
cn_event cn_api_event_of(const cn_api_request *request, uint64_t first, uint32_t *n_left,
                         const cn_event *ev);

/* Adds one event, whose `sample` is the choice. A failure (out of memory) is kept;
 * cn_api_result_error returns it. */
void cn_api_result_add(cn_api_result *r, const cn_event *ev);

/* About the bytes of a body with the output so far; of a stream, with the output not taken. */
uint64_t cn_api_result_bytes(const cn_api_result *r);
/* Tokens added so far, all samples. 0: the engine has not generated any yet. */
uint64_t cn_api_result_n_tokens(const cn_api_result *r);
bool cn_api_result_was_cancelled(const cn_api_result *r);
/* Why a sample failed, or NULL. */
const char *cn_api_result_error(const cn_api_result *r);
/* A sample failed because the request itself is at fault (cn_event.invalid). */
bool cn_api_result_is_invalid(const cn_api_result *r);
/* Fails with the error of a result that has one: CN_ERR_ARG, with the member at fault, if it is
 * invalid, else CN_ERR_DEVICE. */
cn_status cn_api_result_fail(const cn_api_result *r);

/* The request had fields that were ignored, and no chunk has said so. */
bool cn_api_result_has_warnings(const cn_api_result *r);
uint32_t cn_api_result_n_choices(const cn_api_result *r);
/* The content after the reasoning, n bytes, whether or not a parser separated the reasoning. This
 * is the text that is graded. */
const char *cn_api_result_answer(const cn_api_result *r, uint32_t choice, size_t *n);
void cn_api_result_usage(const cn_api_result *r, cn_usage *out);         /* over all samples */
/* Prompt and output tokens so far, over all samples, also of those that have not ended. A prompt
 * counts from its first output on. */
void cn_api_result_count(const cn_api_result *r, uint64_t *n_prompt, uint64_t *n_output);

/* A place between the items of a response's output. Zeroed: the beginning. */
typedef struct cn_response_place {
    uint32_t index, call; /* items, function calls before it */
    bool past_reasoning;
    size_t text_at;            /* bytes of content before it */
    size_t token, token_bytes; /* of the message there: tokens of its text, and their bytes */
} cn_response_place;

/* Writes a body piece by piece, so that the text of a long one need not be in memory, and no thread
 * is busy with it for long. Set id (without its prefix "chatcmpl-", "cmpl-" or "resp_"), model,
 * created (in seconds since the epoch) and digits (of real numbers); the rest is the writer's. */
typedef struct cn_api_writer {
    const char *id, *model;
    int64_t created;
    uint32_t digits;
    enum {
        CN_WRITE_HEAD,
        CN_WRITE_CHOICE,
        CN_WRITE_LOGPROBS,
        CN_WRITE_PROMPT,
        CN_WRITE_TAIL,
        CN_WRITE_DONE
    } state;
    uint32_t choice, member;
    size_t token;
    cn_api_text_place text_place;
    cn_response_place place;
} cn_api_writer;

/* Appends the next pieces of the body of a result that is complete and has no error, until they
 * have n_bytes (the text of a choice is one piece, and so are 32 tokens of logprobs), or the body
 * is *done. */
cn_status cn_api_result_write(const cn_api_result *r, cn_api_writer *w, cn_buf *out,
                              size_t n_bytes, bool *done);

/* The next chunk of a streamed response: the output of one choice since its last chunk, with at
 * most 256 tokens of logprobs. That output is removed from the result. NULL when there is no new
 * output or when out of memory. With `usage`, the chunk has "usage": null, as
 * stream_options.include_usage requires. */
json_t *cn_api_result_take_chunk(cn_api_result *r, const char *id, const char *model,
                                 int64_t created, bool usage);
/* The chunk after the last one: no choices, only the usage. */
json_t *cn_api_result_usage_chunk(const cn_api_result *r, const char *id, const char *model,
                                  int64_t created);

/* usage.kv of a body; docs/API.md lists its members. */
json_t *cn_api_kv_json(const cn_kv_usage *u);

/* {"error": {message, type, param, code, line}}. type is "rate_limit_error" for 429,
 * "invalid_request_error" for other 4xx, 501 and 505, else "internal_error". A param or code of
 * NULL or "" is written as null, but an error about the context length always has its code. With
 * line 0 the member is omitted. */
json_t *cn_api_error_body(int http_status, const char *message, const char *param,
                          const char *code, uint64_t line);
