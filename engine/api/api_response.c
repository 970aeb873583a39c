/* api_response.c - builds bodies and chunks from events. See api_response.h. */
#include "engine/api/api_response.h"

#include <stdlib.h>

#include "compress/policy.h"
#include "engine/api/api_result_state.h"
#include "engine/api/http_status.h"
#include "engine/api/responses_write.h"
#include "engine/base/json.h"
#include "engine/base/utf8.h"

enum { CHUNK_TOKENS = 256 }; /* most logprobs of a chunk */

static cn_status make_prompts(cn_api_result *r, const cn_api_request *request, uint32_t n)
{
    r->prompts = cn_calloc(n, sizeof *r->prompts);
    bool ok = r->prompts != NULL;
    const bool whole = request->params.truncate_prompt == 0;
    for (uint32_t i = 0; ok && request->echo && whole && i < n; i++) {
        const struct cn_api_prompt *p = &request->prompts[i];
        cn_buf *echo = &r->prompts[i].echo;
        ok = !p->text || cn_buf_add(echo, p->text, p->text_len) == CN_OK;
    }
    const cn_buf *repeated = &request->repeated;
    if (ok && repeated->len > 0)
        ok = cn_buf_add(&r->repeated, repeated->data, repeated->len) == CN_OK;
    if (ok && request->warnings) ok = (r->warnings = json_deep_copy(request->warnings));
    if (ok && request->tool_parser != CN_OPT_TOOLS_NONE)
        ok = (r->tool_names = cn_tool_names(json_object_get(request->chat, "tools")));
    return ok ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for %u choices", r->n_choices);
}

cn_status cn_api_result_create(cn_api_result **out, const cn_api_request *request,
                               cn_token_bytes_fn token_bytes, void *user)
{
    const cn_sampling *s = &request->params.sampling;
    const uint32_t n_prompts = cn_max_u32(request->n_prompts, 1), n = s->n * n_prompts;
    cn_api_result *r = cn_calloc(1, sizeof *r + n * sizeof *r->choices);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of memory for %u choices", n);
    r->endpoint = request->endpoint;
    r->wants_logprobs = s->logprobs >= 0;
    r->wants_ids = request->return_token_ids;
    r->wants_prompt = request->params.score_prompt && request->prompt_logprobs >= 0;
    r->echoes = request->echo;
    r->chunk_usage = request->chunk_usage;
    r->summarizes = request->summarizes;
    r->structure_key = request->structure_key ? request->structure_key : "structured_outputs";
    r->names_call = request->tool_choice == CN_API_TOOL_NAMED;
    r->form = (cn_api_logprobs_form){.endpoint = request->endpoint,
                                     .n_top = s->logprobs > 0 ? (uint32_t)s->logprobs : 0,
                                     .skips_special = s->skip_special_tokens,
                                     .token_bytes = token_bytes,
                                     .user = user};
    r->prompt_form = r->form;
    r->prompt_form.has_ranks = true;
    r->prompt_form.n_top = r->wants_prompt ? (uint32_t)request->prompt_logprobs : 0;
    r->n_choices = n;
    r->n_samples = s->n;
    const cn_status status = make_prompts(r, request, n_prompts);
    for (uint32_t i = 0; i < n; i++)
        r->choices[i].tools =
            (cn_tool_finder){.form = request->tool_parser,
                             .names = r->tool_names,
                             .only_one = request->one_tool_call,
                             .is_forced = request->tool_choice != CN_API_TOOL_AUTO,
                             .is_either = request->either};
    if (status == CN_OK)
        *out = r;
    else
        cn_api_result_free(r);
    return status;
}

void cn_api_result_free(cn_api_result *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        cn_api_choice *c = &r->choices[i];
        cn_buf_free(&c->text);
        cn_buf_free(&c->reasoning);
        cn_api_logprobs_free(&c->logprobs);
        cn_tool_finder_free(&c->tools);
        cn_buf_free(&c->token_ids);
        cn_free(c->stop_reason);
    }
    for (uint32_t i = 0; r->prompts && i < r->n_choices / r->n_samples; i++) {
        cn_buf_free(&r->prompts[i].echo);
        cn_buf_free(&r->prompts[i].token_ids);
        cn_api_logprobs_free(&r->prompts[i].logprobs);
    }
    cn_free(r->prompts);
    json_decref(r->warnings);
    json_decref(r->tool_names);
    cn_buf_free(&r->repeated);
    cn_free(r->error);
    cn_free(r->error_param);
    cn_free(r);
}

/* ---- events ---- */

static void keep_error(cn_api_result *r, const char *text)
{
    if (!r->error) r->error = cn_strdup(text ? text : "the request failed");
}

static cn_api_prompt_data *prompt_of(const cn_api_result *r, uint32_t i)
{
    return &r->prompts[i / r->n_samples];
}

/* Appends the text of the prompt, as it was sent or that of its tokens. */
static cn_status add_echo(const cn_api_result *r, const cn_api_prompt_data *p, const cn_event *ev,
                          cn_buf *out)
{
    if (p->echo.data) return cn_buf_add(out, p->echo.data, p->echo.len);
    cn_buf raw = {0};
    cn_status status = CN_OK;
    for (uint32_t i = 0; status == CN_OK && i < ev->n_prompt; i++) {
        size_t n = 0;
        bool special;
        const char *bytes = r->form.token_bytes(r->form.user, ev->prompt[i], &n, &special);
        if (bytes) status = cn_buf_add(&raw, bytes, n);
    }
    if (status == CN_OK && raw.len > 0) status = cn_utf8_add_lossy(out, raw.data, raw.len);
    cn_buf_free(&raw);
    return status;
}

/* Stores the data of the first event of a prompt. */
static cn_status add_prompt(cn_api_result *r, cn_api_prompt_data *p, const cn_event *ev)
{
    p->known = true;
    p->n_tokens = ev->n_prompt;
    if (r->wants_ids)
        CN_TRY(cn_buf_add(&p->token_ids, (const char *)ev->prompt,
                          ev->n_prompt * sizeof *ev->prompt));
    for (uint32_t i = 0; r->wants_prompt && ev->prompt_logprobs && i < ev->n_prompt; i++)
        CN_TRY(cn_api_logprobs_add(&p->logprobs, &r->prompt_form, &ev->prompt_logprobs[i]));
    return CN_OK;
}

/* Returns how many special tokens the tokenizer put before the text of the prompt. */
static uint32_t count_added(const cn_api_result *r, const cn_api_prompt_data *p, const cn_event *ev)
{
    uint32_t i = 0;
    for (; p->echo.data && i < ev->n_prompt; i++) {
        size_t n = 0;
        bool special = false;
        const char *bytes = r->form.token_bytes(r->form.user, ev->prompt[i], &n, &special);
        if (!bytes || !special || strncmp(p->echo.data, bytes, n) == 0) break;
    }
    return i;
}

/* With echo, the prompt begins the text. */
static cn_status begin_choice(cn_api_result *r, cn_api_choice *c, const cn_event *ev)
{
    cn_api_prompt_data *p = prompt_of(r, ev->sample);
    c->has_event = true;
    if (!p->known) CN_TRY(add_prompt(r, p, ev));
    if (!r->echoes) return CN_OK;
    for (uint32_t i = 0; r->wants_logprobs && ev->prompt_logprobs && i < ev->n_prompt; i++)
        CN_TRY(cn_api_logprobs_add(&c->logprobs, &r->form, &ev->prompt_logprobs[i]));
    c->text_place.n_prompt = (uint32_t)c->logprobs.n_tokens;
    if (c->logprobs.n_tokens > 0) c->text_place.n_added = count_added(r, p, ev);
    CN_TRY(add_echo(r, p, ev, &c->text));
    c->n_echo = c->text.len;
    return CN_OK;
}

/* Counts the logprobs of tokens before the content that follows reasoning. Text may have been held
 * back, so the tokens of its first piece are counted from the end. */
static void count_unsaid(const cn_api_result *r, cn_api_choice *c, const cn_event *ev)
{
    size_t n_text = 0, n;
    bool special;
    if (c->said || c->reasoning.len == 0) return;
    c->said = ev->text_len > 0;
    c->n_unsaid = c->logprobs.n_tokens;
    while (c->said && c->n_unsaid > 0 && n_text < ev->text_len) {
        const cn_logprob *p = cn_api_logprobs_token(&c->logprobs, &r->form, --c->n_unsaid);
        if (r->form.token_bytes(r->form.user, p->token, &n, &special)) n_text += n;
    }
}

static bool add_output(cn_api_result *r, cn_api_choice *c, const cn_event *ev)
{
    const bool end = ev->finish != CN_FINISH_NONE;
    if (!c->has_event && begin_choice(r, c, ev) != CN_OK) return false;
    if (c->reasoning.len == 0) {
        c->reasoning_at = c->text.len;
        c->reasoning_call = c->tools.n_calls;
    }
    c->tools.is_stopped = ev->finish == CN_FINISH_STOP;
    if (cn_tool_finder_add(&c->tools, ev->text, ev->text_len, end, &c->text) != CN_OK) return false;
    if (cn_buf_add(&c->reasoning, ev->reasoning, ev->reasoning_len) != CN_OK) return false;
    c->n_tokens += ev->n_tokens;
    if (r->wants_ids && ev->n_tokens > 0 &&
        cn_buf_add(&c->token_ids, (const char *)ev->tokens, ev->n_tokens * sizeof *ev->tokens))
        return false;
    for (uint32_t i = 0; r->wants_logprobs && ev->logprobs && i < ev->n_tokens; i++)
        if (cn_api_logprobs_add(&c->logprobs, &r->form, &ev->logprobs[i]) != CN_OK) return false;
    if (r->wants_logprobs && r->endpoint == CN_API_RESPONSES) count_unsaid(r, c, ev);
    return true;
}

cn_event cn_api_event_of(const cn_api_request *request, uint64_t first, uint32_t *n_left,
                         const cn_event *ev)
{
    cn_event e = *ev;
    if (request->n_prompts <= 1) return e;
    e.sample += (uint32_t)(ev->request - first) * request->params.sampling.n;
    e.last = ev->last && --*n_left == 0;
    return e;
}

/* What the structure does not enforce, from the first event that says so. */
static bool try_add_warnings(cn_api_result *r, const char *lines)
{
    r->knows_structure = true;
    if (!r->warnings) r->warnings = json_array();
    for (const char *at = lines; *at; at += strspn(at, "\n")) {
        const int n = (int)strcspn(at, "\n");
        json_t *text = json_sprintf("%s: %.*s", r->structure_key, n, at);
        if (json_array_append_new(r->warnings, text) != 0) return false;
        at += n;
    }
    return true;
}

void cn_api_result_add(cn_api_result *r, const cn_event *ev)
{
    CN_ASSERT(!r->done && ev->sample < r->n_choices);
    if (ev->warnings && !r->knows_structure && !try_add_warnings(r, ev->warnings))
        keep_error(r, "out of memory for a warning");
    cn_api_choice *c = &r->choices[ev->sample];
    if (!add_output(r, c, ev)) keep_error(r, "out of memory for the output");
    r->n_tokens += ev->n_tokens;
    r->done = ev->last;
    if (ev->finish == CN_FINISH_NONE) return;
    c->finish = ev->finish;
    c->stop_token = ev->stop_token;
    const size_t answer_at = c->n_echo + ev->answer_at;
    c->answer_at = answer_at < c->text.len ? answer_at : c->text.len;
    if (ev->usage) c->usage = *ev->usage;
    if (ev->stop_reason) c->stop_reason = cn_strdup(ev->stop_reason);
    if (ev->finish == CN_FINISH_ERROR) keep_error(r, ev->error);
    r->invalid |= ev->invalid;
    if (ev->invalid && ev->param && !r->error_param) r->error_param = cn_strdup(ev->param);
    if (ev->finish == CN_FINISH_CANCELLED) r->cancelled = true;
}

uint64_t cn_api_result_bytes(const cn_api_result *r)
{
    uint64_t bytes = r->repeated.len;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const cn_api_choice *c = &r->choices[i];
        bytes += c->text.len + c->reasoning.len + 2 * c->token_ids.len;
        bytes += cn_tool_finder_bytes(&c->tools);
        bytes += cn_api_logprobs_json_bytes(&r->form, c->logprobs.n_tokens);
        const cn_api_prompt_data *p = prompt_of(r, i);
        bytes += 2 * p->token_ids.len;
        bytes += cn_api_logprobs_json_bytes(&r->prompt_form, p->logprobs.n_tokens);
    }
    return bytes;
}

uint64_t cn_api_result_n_tokens(const cn_api_result *r) { return r->n_tokens; }
bool cn_api_result_was_cancelled(const cn_api_result *r) { return r->cancelled; }
const char *cn_api_result_error(const cn_api_result *r) { return r->error; }
bool cn_api_result_is_invalid(const cn_api_result *r) { return r->invalid; }

cn_status cn_api_result_fail(const cn_api_result *r)
{
    CN_ASSERT(r->error);
    if (!r->invalid) return cn_fail(CN_ERR_DEVICE, "%s", r->error);
    return cn_fail_param(r->error_param ? r->error_param : "", "%s", r->error);
}

bool cn_api_result_has_warnings(const cn_api_result *r) { return r->warnings != NULL; }
uint32_t cn_api_result_n_choices(const cn_api_result *r) { return r->n_choices; }

const char *cn_api_result_answer(const cn_api_result *r, uint32_t i, size_t *n)
{
    CN_ASSERT(i < r->n_choices && r->choices[i].answer_at <= r->choices[i].text.len);
    const cn_api_choice *c = &r->choices[i];
    *n = c->text.len - c->answer_at;
    return c->text.data ? c->text.data + c->answer_at : "";
}

void cn_api_result_count(const cn_api_result *r, uint64_t *n_prompt, uint64_t *n_output)
{
    *n_prompt = *n_output = 0;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const cn_api_choice *c = &r->choices[i];
        if (i % r->n_samples == 0) *n_prompt += prompt_of(r, i)->n_tokens;
        *n_output += c->finish == CN_FINISH_NONE ? c->n_tokens : c->usage.completion_tokens;
    }
}

void cn_api_result_usage(const cn_api_result *r, cn_usage *out)
{
    *out = r->choices[0].usage;
    for (uint32_t i = 1; i < r->n_choices; i++) {
        const cn_usage *u = &r->choices[i].usage;
        if (i % r->n_samples == 0) {
            out->prompt_tokens += u->prompt_tokens;
            out->cached_tokens += u->cached_tokens;
        }
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
        out->kv.exchanges += u->kv.exchanges;
        out->kv.fetched_entries += u->kv.fetched_entries;
        out->kv.missed_entries += u->kv.missed_entries;
        out->kv.peak_tokens = cn_max_u32(out->kv.peak_tokens, u->kv.peak_tokens);
    }
}

/* ---- the body ---- */

static json_t *text_or_null(const char *s) { return s && *s ? cn_json_text(s) : json_null(); }

/* As in OpenAI: "stop" after the call of a function that tool_choice names. */
static const char *finish_name(const cn_api_result *r, const cn_api_choice *c)
{
    const bool calls = c->tools.n_calls > 0 && c->finish == CN_FINISH_STOP && !r->names_call;
    return calls ? "tool_calls" : cn_finish_name(c->finish);
}

/* Content is null when the output is only reasoning or tool calls, as in vLLM. */
static json_t *message_json(const cn_api_choice *c)
{
    json_t *calls = cn_tool_finder_calls(&c->tools);
    const bool none = c->reasoning.len || calls;
    const char *text = c->text.len ? c->text.data : none ? NULL : "";
    json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content",
                          text ? json_stringn(text, c->text.len) : json_null());
    if (m && c->reasoning.len)
        json_object_set_new(m, "reasoning_content",
                            json_stringn(c->reasoning.data, c->reasoning.len));
    if (m && calls) json_object_set(m, "tool_calls", calls);
    json_decref(calls);
    return m;
}

json_t *cn_api_stop_reason_json(const cn_api_choice *c)
{
    if (c->stop_reason) return cn_json_text(c->stop_reason);
    return c->finish == CN_FINISH_STOP && c->stop_token >= 0 ? json_integer(c->stop_token)
                                                             : json_null();
}

json_t *cn_api_ids_json(const cn_buf *ids)
{
    json_t *array = json_array();
    uint32_t id;
    for (size_t at = 0; array && at < ids->len; at += sizeof id) {
        memcpy(&id, ids->data + at, sizeof id);
        if (json_array_append_new(array, json_integer(id)) == 0) continue;
        json_decref(array);
        return NULL;
    }
    return array;
}

/* Ids of the prompt belong to a choice of a completion, and to the whole body of a chat. */
static void set_ids(const cn_api_result *r, json_t *o, uint32_t i, bool with_prompt)
{
    if (!r->wants_ids) return;
    json_object_set_new(o, "token_ids", cn_api_ids_json(&r->choices[i].token_ids));
    if (with_prompt && r->endpoint == CN_API_COMPLETION)
        json_object_set_new(o, "prompt_token_ids", cn_api_ids_json(&prompt_of(r, i)->token_ids));
}

static json_t *text_json(const cn_api_choice *c)
{
    return json_stringn(c->text.data ? c->text.data : "", c->text.len);
}

/* A choice without its logprobs. */
static json_t *choice_json(const cn_api_result *r, uint32_t i)
{
    const cn_api_choice *c = &r->choices[i];
    json_t *o = json_pack("{s:i}", "index", (int)i);
    if (!o) return NULL;
    if (r->endpoint == CN_API_CHAT) {
        json_object_set_new(o, "message", message_json(c));
    } else {
        json_object_set_new(o, "text", text_json(c));
    }
    json_object_set_new(o, "finish_reason", json_string(finish_name(r, c)));
    json_object_set_new(o, "stop_reason", cn_api_stop_reason_json(c));
    if (c->usage.thinking_truncated) json_object_set_new(o, "thinking_truncated", json_true());
    set_ids(r, o, i, true);
    return o;
}

json_t *cn_api_kv_json(const cn_kv_usage *u)
{
    const cn_kv_policy policy = u->params.policy;
    const bool is_capped = cn_policy_of(policy)->keep != CN_KEEP_ALL;
    return json_pack(
        "{s:s, s:o, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I}", "policy",
        cn_kv_policy_name(policy),
        "budget",
        is_capped ? json_integer(u->params.budget_tokens) : json_null(), "compressions",
        (json_int_t)u->compressions, "evicted", (json_int_t)u->evicted, "peak_tokens",
        (json_int_t)u->peak_tokens, "freed_bytes", (json_int_t)u->freed_bytes,
        "select", cn_kv_select_name(u->params.select), "selected_steps",
        (json_int_t)u->selected_steps, "selected_tokens", (json_int_t)u->selected_tokens,
        "candidate_tokens", (json_int_t)u->candidate_tokens, "home",
        cn_kv_home_name(u->params.home), "exchanges", (json_int_t)u->exchanges, "fetched",
        (json_int_t)u->fetched_entries, "missed", (json_int_t)u->missed_entries);
}

static json_t *response_usage_json(const cn_api_result *r)
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

/* ---- the body as text ---- */

cn_status cn_api_add_json(cn_buf *out, uint32_t digits, json_t *v, size_t n_first, size_t n_cut)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(digits)) : NULL;
    json_decref(v);
    if (!text) return cn_fail(CN_ERR_MEMORY, "out of memory for a response");
    cn_status status = cn_buf_add(out, text + n_first, strlen(text) - n_first - n_cut);
    free(text);
    return status;
}

static cn_status add_json(cn_buf *out, const cn_api_writer *w, json_t *v, size_t n_first,
                          size_t n_cut)
{
    return cn_api_add_json(out, w->digits, v, n_first, n_cut);
}

static cn_status write_response_head(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    const bool chat = r->endpoint == CN_API_CHAT;
    json_t *head = json_pack("{s:s+, s:s, s:I, s:o}", "id", chat ? "chatcmpl-" : "cmpl-", w->id,
                             "object", chat ? "chat.completion" : "text_completion", "created",
                             (json_int_t)w->created, "model", cn_json_text(w->model));
    CN_TRY(add_json(out, w, head, 0, 1));
    w->state = CN_WRITE_CHOICE;
    return cn_buf_addf(out, ",\"choices\":[");
}

static cn_status write_choice(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    if (w->choice > 0) CN_TRY(cn_buf_addf(out, ","));
    CN_TRY(add_json(out, w, choice_json(r, w->choice), 0, 1));
    w->state = CN_WRITE_LOGPROBS;
    w->member = 0;
    w->token = 0;
    w->text_place = r->choices[w->choice].text_place; /* where the choice begins */
    return cn_buf_addf(out, ",\"logprobs\":%s", r->wants_logprobs ? "{" : "null");
}

static cn_status end_choice(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    if (r->wants_logprobs)
        CN_TRY(cn_buf_addf(out, r->endpoint == CN_API_CHAT ? ",\"refusal\":null}" : "}"));
    w->state = CN_WRITE_PROMPT;
    w->token = 0;
    return CN_OK;
}

/* Writes some tokens of the prompt's logprobs, or what follows them. */
static cn_status write_prompt(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    /* A chat has them once, after its choices. */
    const bool chat = r->endpoint == CN_API_CHAT, behind = w->choice == r->n_choices;
    const bool wanted = r->wants_prompt && chat == behind;
    const cn_api_logprobs *l = &prompt_of(r, behind ? 0 : w->choice)->logprobs;
    if (wanted && w->token < l->n_tokens) {
        const size_t left = l->n_tokens - w->token;
        const size_t end = w->token + (left < CN_API_SLICE_TOKENS ? left : CN_API_SLICE_TOKENS);
        CN_TRY(cn_buf_addf(out, w->token ? "," : ",\"prompt_logprobs\":["));
        CN_TRY(add_json(out, w, cn_api_prompt_logprobs_json(l, &r->prompt_form, w->token, end), 1,
                        1));
        w->token = end;
        if (end < l->n_tokens) return CN_OK;
        CN_TRY(cn_buf_addf(out, "]"));
    }
    if (behind) {
        w->state = CN_WRITE_TAIL;
        return CN_OK;
    }
    w->token = 0;
    const bool last = ++w->choice == r->n_choices;
    if (!last) w->state = CN_WRITE_CHOICE;
    return cn_buf_addf(out, last ? "}]" : "}");
}

/* Writes some tokens of a member of the logprobs, or ends the choice. */
static cn_status write_response_logprobs(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    const cn_api_logprobs *l = &r->choices[w->choice].logprobs;
    if (!r->wants_logprobs || w->member == cn_api_logprobs_n_members(r->endpoint))
        return end_choice(r, w, out);
    if (w->token == 0)
        CN_TRY(cn_buf_addf(out, "%s\"%s\":[", w->member ? "," : "",
                           cn_api_logprobs_member(r->endpoint, w->member)));
    const size_t left = l->n_tokens - w->token;
    const size_t end = w->token + (left < CN_API_SLICE_TOKENS ? left : CN_API_SLICE_TOKENS);
    if (w->token > 0 && left > 0) CN_TRY(cn_buf_addf(out, ","));
    json_t *slice =
        cn_api_logprobs_json(l, &r->form, w->member, w->token, end, &w->text_place);
    CN_TRY(add_json(out, w, slice, 1, 1));
    w->token = end;
    if (end < l->n_tokens) return CN_OK;
    w->token = 0;
    w->member++;
    return cn_buf_addf(out, "]");
}

static cn_status write_tail(const cn_api_result *r, cn_api_writer *w, cn_buf *out)
{
    if (r->wants_ids && r->endpoint == CN_API_CHAT) {
        CN_TRY(cn_buf_addf(out, ",\"prompt_token_ids\":"));
        CN_TRY(add_json(out, w, cn_api_ids_json(&r->prompts[0].token_ids), 0, 0));
    }
    CN_TRY(cn_buf_addf(out, ",\"usage\":"));
    CN_TRY(add_json(out, w, response_usage_json(r), 0, 0));
    if (r->warnings) {
        CN_TRY(cn_buf_addf(out, ",\"warnings\":"));
        CN_TRY(add_json(out, w, json_incref(r->warnings), 0, 0));
    }
    w->state = CN_WRITE_DONE;
    return cn_buf_addf(out, "}");
}

cn_status cn_api_result_write(const cn_api_result *r, cn_api_writer *w, cn_buf *out,
                              size_t n_bytes, bool *done)
{
    CN_ASSERT(r->done && !r->error);
    if (r->endpoint == CN_API_RESPONSES) return cn_responses_write(r, w, out, n_bytes, done);
    const size_t most = n_bytes < SIZE_MAX - out->len ? out->len + n_bytes : SIZE_MAX;
    while (w->state != CN_WRITE_DONE && out->len < most) {
        switch (w->state) {
        case CN_WRITE_HEAD: CN_TRY(write_response_head(r, w, out)); break;
        case CN_WRITE_CHOICE: CN_TRY(write_choice(r, w, out)); break;
        case CN_WRITE_LOGPROBS: CN_TRY(write_response_logprobs(r, w, out)); break;
        case CN_WRITE_PROMPT: CN_TRY(write_prompt(r, w, out)); break;
        case CN_WRITE_TAIL: CN_TRY(write_tail(r, w, out)); break;
        case CN_WRITE_DONE: break;
        }
    }
    *done = w->state == CN_WRITE_DONE;
    return CN_OK;
}

/* ---- chunks ---- */

static json_t *delta_json(cn_api_choice *c)
{
    json_t *delta = json_object();
    if (!c->began) json_object_set_new(delta, "role", json_string("assistant"));
    if (c->reasoning.len)
        json_object_set_new(delta, "reasoning_content",
                            json_stringn(c->reasoning.data, c->reasoning.len));
    if (c->text.len || !c->began)
        json_object_set_new(delta, "content", text_json(c));
    json_t *calls = cn_tool_finder_take(&c->tools);
    if (calls) json_object_set_new(delta, "tool_calls", calls);
    return delta;
}

/* Takes the logprobs since the last chunk, at most CHUNK_TOKENS. */
static json_t *take_logprobs(const cn_api_result *r, cn_api_choice *c)
{
    if (!r->wants_logprobs) return json_null();
    const size_t n = c->logprobs.n_tokens < CHUNK_TOKENS ? c->logprobs.n_tokens : CHUNK_TOKENS;
    json_t *o = json_object();
    for (uint32_t m = 0; m < cn_api_logprobs_n_members(r->endpoint); m++)
        json_object_set_new(o, cn_api_logprobs_member(r->endpoint, m),
                            cn_api_logprobs_json(&c->logprobs, &r->form, m, 0, n,
                                                 &c->text_place));
    if (r->endpoint == CN_API_CHAT) json_object_set_new(o, "refusal", json_null());
    cn_api_logprobs_drop(&c->logprobs, &r->form, n);
    return o;
}

static json_t *chunk_choice(const cn_api_result *r, uint32_t i, cn_api_choice *c)
{
    /* Logprobs beyond CHUNK_TOKENS, and of tool calls all but one piece, come in further chunks,
     * and the end in the last one. */
    bool end = c->finish != CN_FINISH_NONE && c->logprobs.n_tokens <= CHUNK_TOKENS;
    json_t *o = json_pack("{s:i}", "index", (int)i);
    if (r->endpoint == CN_API_CHAT) {
        json_object_set_new(o, "delta", delta_json(c));
        end = end && !cn_tool_finder_has_more(&c->tools);
    } else {
        json_object_set_new(o, "text", text_json(c));
    }
    json_object_set_new(o, "logprobs", take_logprobs(r, c));
    json_object_set_new(o, "finish_reason",
                        end ? json_string(finish_name(r, c)) : json_null());
    json_object_set_new(o, "stop_reason", end ? cn_api_stop_reason_json(c) : json_null());
    if (end && c->usage.thinking_truncated)
        json_object_set_new(o, "thinking_truncated", json_true());
    set_ids(r, o, i, !c->began);
    cn_buf_clear(&c->text);
    cn_buf_clear(&c->reasoning);
    cn_buf_clear(&c->token_ids);
    c->began = true;
    c->ended = end;
    return o;
}

static json_t *chunk_json(const cn_api_result *r, const char *id, const char *model,
                          int64_t created, json_t *choices)
{
    const bool chat = r->endpoint == CN_API_CHAT;
    return json_pack("{s:s+, s:s, s:I, s:o, s:o}", "id", chat ? "chatcmpl-" : "cmpl-", id,
                     "object", chat ? "chat.completion.chunk" : "text_completion", "created",
                     (json_int_t)created, "model", cn_json_text(model), "choices", choices);
}

/* The usage of one choice so far. */
static json_t *chunk_usage_json(const cn_api_result *r, uint32_t i)
{
    const json_int_t n_prompt = prompt_of(r, i)->n_tokens, n_output = r->choices[i].n_tokens;
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", n_prompt, "completion_tokens", n_output,
                     "total_tokens", n_prompt + n_output);
}

json_t *cn_api_result_take_chunk(cn_api_result *r, const char *id, const char *model,
                                 int64_t created, bool usage)
{
    for (uint32_t i = 0; i < r->n_choices; i++) {
        cn_api_choice *c = &r->choices[i];
        const bool ends = c->finish != CN_FINISH_NONE && !c->ended;
        const bool said = c->text.len || c->reasoning.len || c->logprobs.n_tokens ||
                          c->token_ids.len || cn_tool_finder_has_more(&c->tools);
        const bool first = !c->began && i == 0;
        if (!ends && !said) continue;
        json_t *choices = json_array();
        json_array_append_new(choices, chunk_choice(r, i, c));
        json_t *chunk = chunk_json(r, id, model, created, choices);
        if (r->chunk_usage)
            json_object_set_new(chunk, "usage", chunk_usage_json(r, i));
        else if (usage)
            json_object_set_new(chunk, "usage", json_null());
        if (first && r->wants_ids && r->endpoint == CN_API_CHAT)
            json_object_set_new(chunk, "prompt_token_ids",
                                cn_api_ids_json(&r->prompts[0].token_ids));
        if (r->warnings) json_object_set_new(chunk, "warnings", r->warnings);
        r->warnings = NULL;
        return chunk;
    }
    return NULL;
}

json_t *cn_api_result_usage_chunk(const cn_api_result *r, const char *id, const char *model,
                                  int64_t created)
{
    json_t *chunk = chunk_json(r, id, model, created, json_array());
    json_object_set_new(chunk, "usage", response_usage_json(r));
    return chunk;
}

json_t *cn_api_error_body(int http_status, const char *message, const char *param,
                          const char *code, uint64_t line)
{
    const bool invalid = http_status < CN_HTTP_INTERNAL_ERROR ||
                         http_status == CN_HTTP_NOT_IMPLEMENTED ||
                         http_status == CN_HTTP_VERSION_NOT_SUPPORTED;
    const char *type = http_status == CN_HTTP_TOO_MANY_REQUESTS ? "rate_limit_error"
                       : invalid                                ? "invalid_request_error"
                                                                : "internal_error";
    if (!code && strstr(message, CN_CONTEXT_ERROR)) code = "context_length_exceeded";
    json_t *error = json_pack("{s:o, s:s, s:o, s:o}", "message", cn_json_text(message),
                              "type", type, "param", text_or_null(param), "code",
                              text_or_null(code));
    if (error && line) json_object_set_new(error, "line", json_integer((json_int_t)line));
    return json_pack("{s:o}", "error", error);
}
