/* intake_tokens.c - /tokenize and /detokenize, compatible with vLLM:
 *   {"prompt": "text", "add_special_tokens": true} or {"messages": [...]}, "return_token_strs"
 *     -> {"count", "max_model_len", "tokens", "token_strs"}
 *   {"tokens": [1, 2]} -> {"prompt": "text"}
 * with "model" in all, and "warnings" in the reply about unknown fields.
 * Thread: intake, or that of a large body. Stage: 1 and 2. */

#include "engine/base/json.h"
#include "engine/serve/calls/service_state.h"
#include "engine/text/detok.h"
#include "engine/text/prompt.h"

/* ---- fields ---- */

/* Adds the warnings to the reply, and releases both if that fails. */
static cn_status finish_reply(cn_token_job *job, json_t *reply, json_t *warnings)
{
    if (reply && (!warnings || json_object_set(reply, "warnings", warnings) == 0)) {
        job->reply = reply;
        return CN_OK;
    }
    json_decref(reply);
    return cn_fail(CN_ERR_MEMORY, "out of memory for a reply");
}

/* ---- tokenize ---- */

/* A prompt may have more tokens than the context, but not more bytes. */
static cn_prompt_maker prompt_maker(const cn_service *s, const cn_encode_opts *turns)
{
    return (cn_prompt_maker){.tokenizer = s->tokenizer,
                             .chat = s->chat,
                             .vocab = s->vocab,
                             .max_model_len = s->max_model_len,
                             .longest_token = s->longest_token,
                             .any_length = true,
                             .turns = turns};
}

/* Reads a boolean member and removes it from the body, because the rest is parsed as a prompt. */
static cn_status take_switch(json_t *body, const char *key, bool *out)
{
    const cn_json_at at = {body, "body", CN_ERR_ARG};
    CN_TRY(cn_for_param(cn_json_bool(&at, key, CN_JSON_OPTIONAL, out), key));
    json_object_del(body, key);
    return CN_OK;
}

static cn_status text_tokens(cn_service *s, const cn_prompt_maker *maker, const json_t *body,
                             bool add_special, cn_tokens *out, json_t **warnings)
{
    static const char *const known[] = {"prompt", "model", NULL};
    CN_TRY(cn_api_unknown_members(s->defaults.unknown, body, known, warnings));
    const json_t *prompt = json_object_get(body, "prompt");
    const char *text = json_string_value(prompt);
    const size_t n = json_string_length(prompt);
    const cn_request_params p = {.text = text, .text_len = n};
    if (add_special) return cn_prompt_tokens(maker, &p, out);
    uint64_t n_tokens;
    CN_TRY(cn_prompt_check_text(maker, &p, text, n));
    return cn_tokenizer_encode_by(s->tokenizer, text, n, maker->turns, out, &n_tokens);
}

static cn_status chat_tokens(cn_service *s, const cn_prompt_maker *maker, json_t *body,
                             cn_tokens *out, json_t **warnings)
{
    cn_api_request request;
    CN_TRY(cn_api_request_parse(&request, CN_API_CHAT, body, &s->defaults));
    cn_status status = cn_prompt_tokens(maker, &request.params, out);
    *warnings = json_incref(request.warnings);
    cn_api_request_free(&request);
    return status;
}

static json_t *token_string(const cn_service *s, uint32_t id)
{
    const char *bytes;
    size_t n;
    bool special;
    const bool known = cn_tokenizer_token(s->tokenizer, id, &bytes, &n, &special);
    return known ? cn_json_textn(bytes, n) : NULL;
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

static cn_status encode_tokens(cn_token_job *job, bool is_long, json_t *body)
{
    cn_service *s = job->service;
    const cn_intake_turn turn = {.service = s, .is_long = is_long};
    const cn_encode_opts turns = cn_intake_encode_opts(&turn);
    const cn_prompt_maker maker = prompt_maker(s, &turns);
    const cn_json_at at = {body, "body", CN_ERR_ARG};
    bool add_special = true, strings = false;
    const char *text = NULL;
    CN_TRY(take_switch(body, "add_special_tokens", &add_special));
    CN_TRY(take_switch(body, "return_token_strs", &strings));
    const json_t *prompt = json_object_get(body, "prompt");
    if (json_is_string(prompt))
        text = json_string_value(prompt); /* which may contain a NUL */
    else
        CN_TRY(cn_for_param(cn_json_str(&at, "prompt", CN_JSON_OPTIONAL, &text), "prompt"));
    const json_t *messages = json_object_get(body, "messages");
    if (text && messages && !json_is_null(messages))
        return cn_fail(CN_ERR_ARG, "body: expected prompt or messages, got both");
    cn_tokens tokens = {0};
    json_t *warnings = NULL;
    cn_status status = text ? text_tokens(s, &maker, body, add_special, &tokens, &warnings)
                            : chat_tokens(s, &maker, body, &tokens, &warnings);
    if (status == CN_OK) status = finish_reply(job, tokens_reply(s, &tokens, strings), warnings);
    json_decref(warnings);
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

static cn_status decode_tokens(cn_token_job *job, json_t *body)
{
    const cn_json_at at = {body, "body", CN_ERR_ARG};
    static const char *const known[] = {"tokens", "model", NULL};
    json_t *ids, *warnings = NULL;
    CN_TRY(cn_for_param(cn_json_arr(&at, "tokens", CN_JSON_REQUIRED, &ids), "tokens"));
    cn_buf text = {0};
    cn_status status =
        cn_api_unknown_members(job->service->defaults.unknown, body, known, &warnings);
    if (status == CN_OK) status = cn_for_param(decode_ids(job->service, ids, &text), "tokens");
    if (status == CN_OK)
        status = finish_reply(job, json_pack("{s:s%}", "prompt", text.data, text.len), warnings);
    json_decref(warnings);
    cn_buf_free(&text);
    return status;
}

static cn_status take_tokens_body(cn_token_job *job, bool is_long, json_t *body)
{
    const cn_service *s = job->service;
    if (!json_is_object(body)) return cn_fail(CN_ERR_ARG, "body: expected an object");
    CN_TRY(cn_api_model_check(&s->names, json_object_get(body, "model")));
    if (!s->tokenizer) return cn_fail(CN_ERR_ARG, "the server has no tokenizer for this model");
    return job->decode ? decode_tokens(job, body) : encode_tokens(job, is_long, body);
}

cn_status cn_intake_token_job(cn_token_job *job, bool is_long)
{
    json_t *body;
    uint64_t bytes;
    CN_TRY(cn_intake_parse(job->service, &job->body, &body, &bytes));
    cn_status status = take_tokens_body(job, is_long, body);
    json_decref(body);
    cn_budget_give(&job->service->memory, bytes);
    return status;
}
