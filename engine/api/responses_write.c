/* responses_write.c - see responses_write.h. */
#include "engine/api/responses_write.h"

#include <time.h>

#include "engine/api/api_result_state.h"
#include "engine/api/responses_items.h"
#include "engine/base/json.h"

static const char message_end[] = "]}]}"; /* of an item, after its logprobs */

const char *cn_responses_status(const cn_api_result *r)
{
    return cn_response_is_cut(r) ? "incomplete" : "completed";
}

/* OpenAI has the reasons max_output_tokens and content_filter; the others are cinch's. */
static json_t *incomplete_details(const cn_api_result *r)
{
    const cn_finish finish = r->choices[0].finish;
    if (!cn_response_is_cut(r)) return json_null();
    return json_pack("{s:s}", "reason",
                     finish == CN_FINISH_LENGTH ? "max_output_tokens" : cn_finish_name(finish));
}

/* Appends the members before "output", and the beginning of that. Takes over error and details. */
static cn_status write_responses_head(const cn_api_result *r, const cn_api_writer *w,
                                      const char *status, json_t *error, json_t *details,
                                      cn_buf *out)
{
    const bool completed = strcmp(status, "completed") == 0;
    json_t *ended = completed ? json_integer((json_int_t)time(NULL)) : json_null();
    json_t *head = json_pack("{s:s+, s:s, s:I, s:s, s:o, s:o, s:o, s:o}", "id", "resp_", w->id,
                             "object", "response", "created_at", (json_int_t)w->created, "status",
                             status, "completed_at", ended, "error", error, "incomplete_details",
                             details, "model", cn_json_text(w->model));
    CN_TRY(cn_api_add_json(out, w->digits, head, 0, 1));
    if (r->repeated.len > 0) {
        CN_TRY(cn_buf_addf(out, ","));
        CN_TRY(cn_buf_add(out, r->repeated.data, r->repeated.len));
    }
    return cn_buf_addf(out, ",\"output\":[");
}

static cn_status write_warnings(const cn_api_result *r, uint32_t digits, cn_buf *out)
{
    if (!r->warnings) return CN_OK;
    CN_TRY(cn_buf_addf(out, ",\"warnings\":"));
    return cn_api_add_json(out, digits, json_incref(r->warnings), 0, 0);
}

cn_status cn_responses_write_empty(const cn_api_result *r, const cn_api_writer *w,
                                   const char *status, json_t *error, cn_buf *out)
{
    CN_TRY(write_responses_head(r, w, status, error, json_null(), out));
    CN_TRY(cn_buf_addf(out, "],\"usage\":null"));
    CN_TRY(write_warnings(r, w->digits, out));
    return cn_buf_addf(out, "}");
}

cn_status cn_responses_write_logprobs(const cn_api_result *r, uint32_t digits, size_t first,
                                      size_t *token, size_t end, cn_buf *out)
{
    const size_t left = end - *token;
    const size_t until = *token + (left < CN_API_SLICE_TOKENS ? left : CN_API_SLICE_TOKENS);
    if (left == 0) return CN_OK;
    if (*token > first) CN_TRY(cn_buf_addf(out, ","));
    json_t *slice = cn_api_logprobs_json(&r->choices[0].logprobs, &r->form, 0, *token, until, NULL);
    *token = until;
    return cn_api_add_json(out, digits, slice, 1, 1);
}

/* Writes an item, of a message all but its logprobs and what follows them. */
static cn_status write_item(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    cn_response_item item;
    w->token = 0;
    w->state = CN_WRITE_PROMPT;
    if (!cn_response_item_at(r, &w->place, &item)) return cn_buf_addf(out, "]");
    const bool message = item.kind == CN_OUT_MESSAGE;
    if (item.index > 0) CN_TRY(cn_buf_addf(out, ","));
    CN_TRY(cn_api_add_json(out, w->digits, cn_response_item_json(r, w->id, &item), 0,
                           message ? sizeof message_end - 1 : 0));
    w->state = message ? CN_WRITE_LOGPROBS : CN_WRITE_CHOICE;
    w->token = item.first;
    if (!message) cn_response_item_leave(&item, &w->place);
    return CN_OK;
}

static cn_status write_responses_logprobs(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    cn_response_item item;
    const bool is_there = cn_response_item_at(r, &w->place, &item);
    CN_ASSERT(is_there && item.kind == CN_OUT_MESSAGE);
    if (w->token < item.end)
        return cn_responses_write_logprobs(r, w->digits, item.first, &w->token, item.end, out);
    cn_response_item_leave(&item, &w->place);
    w->state = CN_WRITE_CHOICE;
    return cn_buf_addf(out, "%s", message_end);
}

static cn_status write_responses_prompt(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    const cn_api_logprobs *l = &r->prompts[0].logprobs;
    const size_t left = l->n_tokens - w->token;
    const size_t end = w->token + (left < CN_API_SLICE_TOKENS ? left : CN_API_SLICE_TOKENS);
    if (!r->wants_prompt || l->n_tokens == 0) {
        w->state = CN_WRITE_TAIL;
        return CN_OK;
    }
    CN_TRY(cn_buf_addf(out, w->token ? "," : ",\"prompt_logprobs\":["));
    CN_TRY(cn_api_add_json(out, w->digits,
                           cn_api_prompt_logprobs_json(l, &r->prompt_form, w->token, end), 1, 1));
    w->token = end;
    if (end < l->n_tokens) return CN_OK;
    w->state = CN_WRITE_TAIL;
    return cn_buf_addf(out, "]");
}

static json_t *usage_json(const cn_api_result *r)
{
    cn_usage u;
    cn_api_result_usage(r, &u);
    return json_pack(
        "{s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:I, s:o}", "input_tokens", (json_int_t)u.prompt_tokens,
        "input_tokens_details", "cached_tokens", (json_int_t)u.cached_tokens, "cache_write_tokens",
        0, "output_tokens", (json_int_t)u.completion_tokens, "output_tokens_details",
        "reasoning_tokens", (json_int_t)u.reasoning_tokens, "total_tokens",
        (json_int_t)u.prompt_tokens + u.completion_tokens, "kv", cn_api_kv_json(&u.kv));
}

static cn_status write_responses_tail(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    const cn_api_choice *c = &r->choices[0];
    json_t *tail =
        json_pack("{s:o, s:o}", "usage", usage_json(r), "stop_reason", cn_api_stop_reason_json(c));
    if (tail && c->usage.thinking_truncated)
        json_object_set_new(tail, "thinking_truncated", json_true());
    if (tail && r->wants_ids) {
        json_object_set_new(tail, "token_ids", cn_api_ids_json(&c->token_ids));
        json_object_set_new(tail, "prompt_token_ids", cn_api_ids_json(&r->prompts[0].token_ids));
    }
    CN_TRY(cn_buf_addf(out, ","));
    CN_TRY(cn_api_add_json(out, w->digits, tail, 1, 1));
    CN_TRY(write_warnings(r, w->digits, out));
    w->state = CN_WRITE_DONE;
    return cn_buf_addf(out, "}");
}

cn_status cn_responses_write(const cn_api_result *r, cn_api_writer *w, cn_buf *out, size_t n_bytes,
                             bool *done)
{
    const size_t most = n_bytes < SIZE_MAX - out->len ? out->len + n_bytes : SIZE_MAX;
    while (w->state != CN_WRITE_DONE && out->len < most) {
        switch (w->state) {
        case CN_WRITE_HEAD:
            CN_TRY(write_responses_head(r, w, cn_responses_status(r), json_null(),
                                        incomplete_details(r), out));
            w->state = CN_WRITE_CHOICE;
            break;
        case CN_WRITE_CHOICE: CN_TRY(write_item(r, w, out)); break;
        case CN_WRITE_LOGPROBS: CN_TRY(write_responses_logprobs(r, w, out)); break;
        case CN_WRITE_PROMPT: CN_TRY(write_responses_prompt(r, w, out)); break;
        case CN_WRITE_TAIL: CN_TRY(write_responses_tail(r, w, out)); break;
        case CN_WRITE_DONE: break;
        }
    }
    *done = w->state == CN_WRITE_DONE;
    return CN_OK;
}
