/* api_response.c - builds bodies and chunks from events. See api_response.h. */
#include "engine/api/api_response.h"

#include <math.h>
#include <string.h>

#include "compress/policy.h"
#include "engine/api/http_status.h"
#include "engine/utf8.h"

/* JSON has no infinities. vLLM writes the same value for a probability of 0. */
#define LOWEST_LOGPROB (-9999.0)

/* The logprobs of one choice, in the format of its endpoint. */
typedef struct logprobs {
    json_t *content;                            /* chat */
    json_t *tokens, *values, *tops, *offsets;   /* completions */
    size_t offset_chars;
} logprobs;

typedef struct choice {
    cn_buf text, reasoning; /* when streamed: since the last chunk */
    bool began, told_end;   /* when streamed: the first, the last chunk was taken */
    size_t answer_at; /* byte of text */
    logprobs logprobs;
    cn_finish finish;
    char *stop_reason;
    int64_t stop_token;
    cn_usage usage;
} choice;

struct cn_api_result {
    cn_api_endpoint endpoint;
    bool wants_logprobs;
    uint32_t n_top; /* requested alternatives; events may have more */
    cn_token_bytes_fn token_bytes;
    void *user;
    uint64_t n_tokens;
    bool done, cancelled;
    char *error;
    uint32_t n_choices;
    choice choices[];
};

cn_status cn_api_result_create(cn_api_result **out, const cn_api_request *request,
                               cn_token_bytes_fn token_bytes, void *user)
{
    const cn_sampling *s = &request->params.sampling;
    cn_api_result *r = cn_calloc(1, sizeof *r + s->n * sizeof *r->choices);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for %u choices", s->n);
    r->endpoint = request->endpoint;
    r->wants_logprobs = s->logprobs >= 0;
    r->n_top = s->logprobs > 0 ? (uint32_t)s->logprobs : 0;
    r->token_bytes = token_bytes;
    r->user = user;
    r->n_choices = s->n;
    *out = r;
    return CN_OK;
}

void cn_api_result_free(cn_api_result *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        choice *c = &r->choices[i];
        cn_buf_free(&c->text);
        cn_buf_free(&c->reasoning);
        json_decref(c->logprobs.content);
        json_decref(c->logprobs.tokens);
        json_decref(c->logprobs.values);
        json_decref(c->logprobs.tops);
        json_decref(c->logprobs.offsets);
        cn_free(c->stop_reason);
    }
    cn_free(r->error);
    cn_free(r);
}

/* ---- logprobs ---- */

static json_t *logprob_value(float logprob)
{
    return json_real(isfinite(logprob) ? (double)logprob : LOWEST_LOGPROB);
}

/* The token as text, with U+FFFD for invalid UTF-8, and its raw bytes. */
static cn_status token_text(const cn_api_result *r, uint32_t token, cn_buf *text, const char **raw,
                            size_t *n_raw)
{
    *n_raw = 0;
    *raw = r->token_bytes(r->user, token, n_raw);
    cn_buf_clear(text);
    CN_TRY(cn_buf_add(text, "", 0));
    return *raw ? cn_utf8_add_lossy(text, *raw, *n_raw) : cn_buf_addf(text, "<%u>", token);
}

static json_t *bytes_array(const char *raw, size_t n_raw)
{
    json_t *bytes = json_array();
    for (size_t i = 0; bytes && i < n_raw; i++)
        json_array_append_new(bytes, json_integer((unsigned char)raw[i]));
    return bytes;
}

/* {"token", "logprob", "bytes"} of the chat endpoint. */
static json_t *chat_logprob(const cn_api_result *r, const cn_logprob *p)
{
    cn_buf text = {0};
    const char *raw;
    size_t n_raw;
    json_t *entry = NULL;
    if (token_text(r, p->token, &text, &raw, &n_raw) == CN_OK)
        entry = json_pack("{s:s%, s:o, s:o}", "token", text.data, text.len, "logprob",
                          logprob_value(p->logprob), "bytes", bytes_array(raw, n_raw));
    cn_buf_free(&text);
    return entry;
}

static bool add_chat_logprobs(const cn_api_result *r, logprobs *l, const cn_token_logprobs *p)
{
    if (!l->content) l->content = json_array();
    json_t *entry = chat_logprob(r, &p->chosen), *top = json_array();
    bool ok = entry && top && l->content;
    for (uint32_t i = 0; ok && i < cn_min_u32(p->n_top, r->n_top); i++)
        ok = json_array_append_new(top, chat_logprob(r, &p->top[i])) == 0;
    if (ok) ok = json_object_set(entry, "top_logprobs", top) == 0;
    json_decref(top);
    if (ok) return json_array_append_new(l->content, entry) == 0;
    json_decref(entry);
    return false;
}

static size_t count_chars(const char *utf8, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += ((unsigned char)utf8[i] & 0xC0) != 0x80;
    return chars;
}

/* Two tokens may have the same text. The more likely one comes first and is kept. A text may
 * contain a NUL; before jansson 2.14 a key ends there. */
static bool add_new_key(json_t *object, const cn_buf *key, json_t *value)
{
#if JANSSON_VERSION_HEX >= 0x020e00
    if (!json_object_getn(object, key->data, key->len))
        return json_object_setn_new(object, key->data, key->len, value) == 0;
#else
    if (!json_object_get(object, key->data))
        return json_object_set_new(object, key->data, value) == 0;
#endif
    json_decref(value);
    return true;
}

static bool add_completion_top(const cn_api_result *r, const cn_token_logprobs *p, json_t *top)
{
    cn_buf text = {0};
    const char *raw;
    size_t n_raw;
    bool ok = true;
    for (uint32_t i = 0; ok && i < cn_min_u32(p->n_top, r->n_top); i++) {
        ok = token_text(r, p->top[i].token, &text, &raw, &n_raw) == CN_OK;
        if (ok) ok = add_new_key(top, &text, logprob_value(p->top[i].logprob));
    }
    cn_buf_free(&text);
    return ok;
}

static bool add_completion_logprobs(const cn_api_result *r, logprobs *l,
                                    const cn_token_logprobs *p)
{
    if (!l->tokens) {
        l->tokens = json_array();
        l->values = json_array();
        l->tops = json_array();
        l->offsets = json_array();
    }
    cn_buf text = {0};
    const char *raw;
    size_t n_raw;
    json_t *top = json_object();
    bool ok = top && token_text(r, p->chosen.token, &text, &raw, &n_raw) == CN_OK &&
              add_completion_top(r, p, top);
    if (ok)
        ok = json_array_append_new(l->tokens, json_stringn(text.data, text.len)) == 0 &&
             json_array_append_new(l->values, logprob_value(p->chosen.logprob)) == 0 &&
             json_array_append(l->tops, top) == 0 &&
             json_array_append_new(l->offsets, json_integer((json_int_t)l->offset_chars)) == 0;
    if (ok) l->offset_chars += count_chars(text.data, text.len);
    json_decref(top);
    cn_buf_free(&text);
    return ok;
}

/* ---- events ---- */

static void keep_error(cn_api_result *r, const char *text)
{
    if (!r->error) r->error = cn_strdup(text ? text : "the request failed");
}

static bool add_output(cn_api_result *r, choice *c, const cn_event *ev)
{
    if (cn_buf_add(&c->text, ev->text, ev->text_len) != CN_OK) return false;
    if (cn_buf_add(&c->reasoning, ev->reasoning, ev->reasoning_len) != CN_OK) return false;
    for (uint32_t i = 0; r->wants_logprobs && ev->logprobs && i < ev->n_tokens; i++) {
        const cn_token_logprobs *p = &ev->logprobs[i];
        bool ok = r->endpoint == CN_API_CHAT ? add_chat_logprobs(r, &c->logprobs, p)
                                             : add_completion_logprobs(r, &c->logprobs, p);
        if (!ok) return false;
    }
    return true;
}

void cn_api_result_add(cn_api_result *r, const cn_event *ev)
{
    CN_ASSERT(!r->done && ev->sample < r->n_choices);
    choice *c = &r->choices[ev->sample];
    if (!add_output(r, c, ev)) keep_error(r, "out of memory for the output");
    r->n_tokens += ev->n_tokens;
    r->done = ev->last;
    if (ev->finish == CN_FINISH_NONE) return;
    c->finish = ev->finish;
    c->stop_token = ev->stop_token;
    c->answer_at = ev->answer_at;
    if (ev->usage) c->usage = *ev->usage;
    if (ev->stop_reason) c->stop_reason = cn_strdup(ev->stop_reason);
    if (ev->finish == CN_FINISH_ERROR) keep_error(r, ev->error);
    if (ev->finish == CN_FINISH_CANCELLED) r->cancelled = true;
}

uint64_t cn_api_result_n_tokens(const cn_api_result *r) { return r->n_tokens; }
bool cn_api_result_was_cancelled(const cn_api_result *r) { return r->cancelled; }
const char *cn_api_result_error(const cn_api_result *r) { return r->error; }
uint32_t cn_api_result_n_choices(const cn_api_result *r) { return r->n_choices; }

const char *cn_api_result_answer(const cn_api_result *r, uint32_t i, size_t *n)
{
    CN_ASSERT(i < r->n_choices && r->choices[i].answer_at <= r->choices[i].text.len);
    const choice *c = &r->choices[i];
    *n = c->text.len - c->answer_at;
    return c->text.data ? c->text.data + c->answer_at : "";
}

void cn_api_result_usage(const cn_api_result *r, cn_usage *out)
{
    *out = r->choices[0].usage;
    for (uint32_t i = 1; i < r->n_choices; i++) {
        const cn_usage *u = &r->choices[i].usage;
        out->completion_tokens += u->completion_tokens;
        out->reasoning_tokens += u->reasoning_tokens;
        out->preemptions += u->preemptions;
        out->recomputed_tokens += u->recomputed_tokens;
        out->kv.compressions += u->kv.compressions;
        out->kv.evicted += u->kv.evicted;
        out->kv.freed_bytes += u->kv.freed_bytes;
        out->kv.selected_steps += u->kv.selected_steps;
        out->kv.selected_tokens += u->kv.selected_tokens;
        out->kv.candidate_tokens += u->kv.candidate_tokens;
        out->kv.peak_tokens = cn_max_u32(out->kv.peak_tokens, u->kv.peak_tokens);
    }
}

/* ---- the body ---- */

/* External text (paths, messages) may be invalid UTF-8, which JSON cannot represent. */
static json_t *any_text(const char *s)
{
    cn_buf text = {0};
    json_t *v = NULL;
    if (cn_buf_add(&text, "", 0) == CN_OK && cn_utf8_add_lossy(&text, s, strlen(s)) == CN_OK)
        v = json_stringn(text.data, text.len);
    cn_buf_free(&text);
    return v;
}

static json_t *text_or_null(const char *s) { return s && *s ? any_text(s) : json_null(); }

static json_t *array_or_empty(json_t *a) { return a ? json_incref(a) : json_array(); }

static json_t *logprobs_json(const cn_api_result *r, const logprobs *l)
{
    if (!r->wants_logprobs) return json_null();
    if (r->endpoint == CN_API_CHAT)
        return json_pack("{s:o, s:n}", "content", array_or_empty(l->content), "refusal");
    return json_pack("{s:o, s:o, s:o, s:o}", "text_offset", array_or_empty(l->offsets),
                     "token_logprobs", array_or_empty(l->values), "tokens",
                     array_or_empty(l->tokens), "top_logprobs", array_or_empty(l->tops));
}

/* Content is null when the output is only reasoning, as in vLLM. */
static json_t *message_json(const choice *c)
{
    const char *text = c->text.len ? c->text.data : c->reasoning.len ? NULL : "";
    json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content",
                          text ? json_stringn(text, c->text.len) : json_null());
    if (m && c->reasoning.len)
        json_object_set_new(m, "reasoning_content",
                            json_stringn(c->reasoning.data, c->reasoning.len));
    return m;
}

/* The stop string or the stop token's id; null for an EOS and any other finish, as in vLLM. */
static json_t *stop_reason_json(const choice *c)
{
    if (c->stop_reason) return any_text(c->stop_reason);
    return c->finish == CN_FINISH_STOP && c->stop_token >= 0 ? json_integer(c->stop_token)
                                                             : json_null();
}

static json_t *choice_json(const cn_api_result *r, uint32_t i)
{
    const choice *c = &r->choices[i];
    json_t *o = json_pack("{s:i}", "index", (int)i);
    if (!o) return NULL;
    if (r->endpoint == CN_API_CHAT) {
        json_object_set_new(o, "message", message_json(c));
    } else {
        /* A completion has one text: the reasoning, then the content. */
        cn_buf whole = {0};
        if (cn_buf_add(&whole, c->reasoning.data, c->reasoning.len) == CN_OK &&
            cn_buf_add(&whole, c->text.data, c->text.len) == CN_OK)
            json_object_set_new(o, "text", json_stringn(whole.data, whole.len));
        cn_buf_free(&whole);
    }
    json_object_set_new(o, "logprobs", logprobs_json(r, &c->logprobs));
    json_object_set_new(o, "finish_reason", json_string(cn_finish_name(c->finish)));
    json_object_set_new(o, "stop_reason", stop_reason_json(c));
    if (c->usage.thinking_truncated) json_object_set_new(o, "thinking_truncated", json_true());
    return o;
}

json_t *cn_api_kv_json(const cn_kv_usage *u)
{
    const cn_kv_policy policy = u->params.policy;
    const bool is_capped = cn_policy_of(policy)->keep != CN_KEEP_ALL;
    return json_pack(
        "{s:s, s:o, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I}", "policy", cn_kv_policy_name(policy),
        "budget",
        is_capped ? json_integer(u->params.budget_tokens) : json_null(), "compressions",
        (json_int_t)u->compressions, "evicted", (json_int_t)u->evicted, "peak_tokens",
        (json_int_t)u->peak_tokens, "freed_bytes", (json_int_t)u->freed_bytes,
        "select", cn_kv_select_name(u->params.select), "selected_steps",
        (json_int_t)u->selected_steps, "selected_tokens", (json_int_t)u->selected_tokens,
        "candidate_tokens", (json_int_t)u->candidate_tokens);
}

static json_t *usage_json(const cn_api_result *r)
{
    cn_usage u;
    cn_api_result_usage(r, &u);
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}, s:o}", "prompt_tokens",
                     (json_int_t)u.prompt_tokens, "completion_tokens",
                     (json_int_t)u.completion_tokens, "total_tokens",
                     (json_int_t)u.prompt_tokens + u.completion_tokens, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)u.cached_tokens, "completion_tokens_details",
                     "reasoning_tokens", (json_int_t)u.reasoning_tokens, "kv",
                     cn_api_kv_json(&u.kv));
}

json_t *cn_api_result_body(const cn_api_result *r, const char *id, const char *model,
                           int64_t created)
{
    CN_ASSERT(r->done && !r->error);
    const bool chat = r->endpoint == CN_API_CHAT;
    json_t *choices = json_array();
    for (uint32_t i = 0; choices && i < r->n_choices; i++)
        json_array_append_new(choices, choice_json(r, i));
    return json_pack("{s:s+, s:s, s:I, s:o, s:o, s:o}", "id", chat ? "chatcmpl-" : "cmpl-", id,
                     "object", chat ? "chat.completion" : "text_completion", "created",
                     (json_int_t)created, "model", any_text(model), "choices", choices, "usage",
                     usage_json(r));
}

/* ---- chunks ---- */

static json_t *delta_json(choice *c)
{
    json_t *delta = json_object();
    if (!c->began) json_object_set_new(delta, "role", json_string("assistant"));
    if (c->reasoning.len)
        json_object_set_new(delta, "reasoning_content",
                            json_stringn(c->reasoning.data, c->reasoning.len));
    if (c->text.len || !c->began)
        json_object_set_new(delta, "content", json_stringn(c->text.data ? c->text.data : "",
                                                           c->text.len));
    return delta;
}

/* Takes the logprobs since the last chunk. offset_chars is not reset. */
static json_t *take_logprobs(const cn_api_result *r, logprobs *l)
{
    json_t *taken = logprobs_json(r, l);
    json_t **parts[] = {&l->content, &l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        json_decref(*parts[i]);
        *parts[i] = NULL;
    }
    return taken;
}

static json_t *chunk_choice(const cn_api_result *r, uint32_t i, choice *c)
{
    const bool end = c->finish != CN_FINISH_NONE;
    json_t *o = json_pack("{s:i}", "index", (int)i);
    if (r->endpoint == CN_API_CHAT) {
        json_object_set_new(o, "delta", delta_json(c));
    } else {
        cn_buf *whole = &c->reasoning; /* a completion has one text */
        if (cn_buf_add(whole, c->text.data ? c->text.data : "", c->text.len) == CN_OK)
            json_object_set_new(o, "text", json_stringn(whole->data, whole->len));
    }
    json_object_set_new(o, "logprobs", take_logprobs(r, &c->logprobs));
    json_object_set_new(o, "finish_reason",
                        end ? json_string(cn_finish_name(c->finish)) : json_null());
    json_object_set_new(o, "stop_reason", end ? stop_reason_json(c) : json_null());
    if (end && c->usage.thinking_truncated)
        json_object_set_new(o, "thinking_truncated", json_true());
    cn_buf_clear(&c->text);
    cn_buf_clear(&c->reasoning);
    c->began = true;
    c->told_end = end;
    return o;
}

static json_t *chunk_json(const cn_api_result *r, const char *id, const char *model,
                          int64_t created, json_t *choices)
{
    const bool chat = r->endpoint == CN_API_CHAT;
    return json_pack("{s:s+, s:s, s:I, s:o, s:o}", "id", chat ? "chatcmpl-" : "cmpl-", id,
                     "object", chat ? "chat.completion.chunk" : "text_completion", "created",
                     (json_int_t)created, "model", any_text(model), "choices", choices);
}

json_t *cn_api_result_take_chunk(cn_api_result *r, const char *id, const char *model,
                                 int64_t created, bool usage)
{
    for (uint32_t i = 0; i < r->n_choices; i++) {
        choice *c = &r->choices[i];
        const bool ends = c->finish != CN_FINISH_NONE && !c->told_end;
        const bool said = c->text.len || c->reasoning.len || c->logprobs.content ||
                          c->logprobs.tokens;
        if (!ends && !said) continue;
        json_t *choices = json_array();
        json_array_append_new(choices, chunk_choice(r, i, c));
        json_t *chunk = chunk_json(r, id, model, created, choices);
        if (usage) json_object_set_new(chunk, "usage", json_null());
        return chunk;
    }
    return NULL;
}

json_t *cn_api_result_usage_chunk(const cn_api_result *r, const char *id, const char *model,
                                  int64_t created)
{
    json_t *chunk = chunk_json(r, id, model, created, json_array());
    json_object_set_new(chunk, "usage", usage_json(r));
    return chunk;
}

json_t *cn_api_error_body(int http_status, const char *message, const char *param,
                          const char *code, uint64_t line)
{
    const char *type = http_status == CN_HTTP_TOO_MANY_REQUESTS ? "rate_limit_error"
                       : http_status < CN_HTTP_INTERNAL_ERROR   ? "invalid_request_error"
                                                                : "internal_error";
    json_t *error = json_pack("{s:o, s:s, s:o, s:o}", "message", any_text(message),
                              "type", type, "param", text_or_null(param), "code",
                              text_or_null(code));
    if (error && line) json_object_set_new(error, "line", json_integer((json_int_t)line));
    return json_pack("{s:o}", "error", error);
}
