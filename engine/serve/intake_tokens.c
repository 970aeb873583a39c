/* intake_tokens.c - /tokenize and /detokenize, compatible with vLLM:
 *   {"prompt": "text", "add_special_tokens": true} or {"messages": [...]}, "return_token_strs"
 *     -> {"count", "max_model_len", "tokens", "token_strs"}
 *   {"tokens": [1, 2]} -> {"prompt": "text"}
 * Thread: intake. Stage: 1 and 2. */
#include <string.h>

#include "engine/json.h"
#include "engine/serve/service_state.h"
#include "engine/text/detok.h"
#include "engine/utf8.h"

/* ---- tokenize ---- */

/* Reads a boolean member and removes it from the body, because the rest is parsed as a prompt. */
static cn_status take_switch(json_t *body, const char *key, bool *out)
{
    const cn_json_at at = {body, "body", CN_ERR_ARG};
    CN_TRY(cn_json_bool(&at, key, CN_JSON_OPTIONAL, out));
    json_object_del(body, key);
    return CN_OK;
}

static cn_status text_tokens(cn_service *s, const char *text, bool add_special, cn_tokens *out)
{
    const cn_request_params p = {.text = text};
    if (add_special) return cn_intake_tokens(s, &p, out);
    if (strlen(text) > s->max_prompt_bytes) return cn_intake_tokens(s, &p, out); /* refuses */
    return cn_tokenizer_encode(s->tokenizer, text, strlen(text), false, out);
}

static cn_status chat_tokens(cn_service *s, json_t *body, cn_tokens *out)
{
    cn_api_request request;
    CN_TRY(cn_api_request_parse(&request, CN_API_CHAT, body, &s->defaults, NULL));
    cn_status status = cn_intake_tokens(s, &request.params, out);
    cn_api_request_free(&request);
    return status;
}

static json_t *token_string(const cn_service *s, uint32_t id)
{
    cn_buf text = {0};
    const char *bytes;
    size_t n;
    bool special;
    json_t *string = NULL;
    if (cn_tokenizer_token(s->tokenizer, id, &bytes, &n, &special) &&
        cn_buf_add(&text, "", 0) == CN_OK && cn_utf8_add_lossy(&text, bytes, n) == CN_OK)
        string = json_stringn(text.data, text.len);
    cn_buf_free(&text);
    return string;
}

static json_t *tokens_reply(const cn_service *s, const cn_tokens *tokens, bool strings)
{
    json_t *ids = json_array(), *texts = strings ? json_array() : json_null();
    for (size_t i = 0; i < tokens->len; i++) {
        json_array_append_new(ids, json_integer(tokens->ids[i]));
        if (strings) json_array_append_new(texts, token_string(s, tokens->ids[i]));
    }
    return json_pack("{s:I, s:I, s:o, s:o}", "count", (json_int_t)tokens->len, "max_model_len",
                     (json_int_t)s->max_model_len, "tokens", ids, "token_strs", texts);
}

static cn_status encode(cn_token_job *job, json_t *body)
{
    cn_service *s = job->service;
    const cn_json_at at = {body, "body", CN_ERR_ARG};
    bool add_special = true, strings = false;
    const char *text = NULL;
    CN_TRY(take_switch(body, "add_special_tokens", &add_special));
    CN_TRY(take_switch(body, "return_token_strs", &strings));
    CN_TRY(cn_json_str(&at, "prompt", CN_JSON_OPTIONAL, &text));
    const json_t *messages = json_object_get(body, "messages");
    if (text && messages && !json_is_null(messages))
        return cn_fail(CN_ERR_ARG, "body: expected prompt or messages, got both");
    cn_tokens tokens = {0};
    cn_status status = text ? text_tokens(s, text, add_special, &tokens)
                            : chat_tokens(s, body, &tokens);
    if (status == CN_OK) {
        job->reply = tokens_reply(s, &tokens, strings);
        if (!job->reply) status = cn_fail(CN_ERR_MEMORY, "out of memory for the tokens");
    }
    cn_tokens_free(&tokens);
    return status;
}

/* ---- detokenize ---- */

static cn_status decode_ids(cn_service *s, const json_t *ids, cn_buf *text)
{
    cn_detok d;
    size_t i;
    json_t *value;
    cn_detok_init(&d, s->tokenizer, false);
    CN_TRY(cn_buf_add(text, "", 0));
    json_array_foreach(ids, i, value)
    {
        int64_t id;
        if (!cn_json_as_i64(value, 0, (int64_t)s->vocab - 1, &id))
            return cn_fail(CN_ERR_ARG, "tokens[%zu]: expected a token id below %u", i, s->vocab);
        CN_TRY(cn_detok_push(&d, (uint32_t)id, text));
    }
    return cn_detok_flush(&d, text);
}

static cn_status decode(cn_token_job *job, json_t *body)
{
    const cn_json_at at = {body, "body", CN_ERR_ARG};
    json_t *ids;
    CN_TRY(cn_json_arr(&at, "tokens", CN_JSON_REQUIRED, &ids));
    cn_buf text = {0};
    cn_status status = decode_ids(job->service, ids, &text);
    if (status == CN_OK) {
        job->reply = json_pack("{s:s%}", "prompt", text.data, text.len);
        if (!job->reply) status = cn_fail(CN_ERR_MEMORY, "out of memory for the text");
    }
    cn_buf_free(&text);
    return status;
}

cn_status cn_intake_token_job(cn_token_job *job)
{
    json_t *body;
    uint64_t bytes;
    CN_TRY(cn_intake_parse(job->service, &job->body, &body, &bytes));
    cn_status status = !json_is_object(body)
                           ? cn_fail(CN_ERR_ARG, "body: expected an object")
                       : !job->service->tokenizer
                           ? cn_fail(CN_ERR_ARG, "the server has no tokenizer for this model")
                       : job->decode ? decode(job, body)
                                     : encode(job, body);
    json_decref(body);
    cn_budget_give(&job->service->memory, bytes);
    return status;
}
