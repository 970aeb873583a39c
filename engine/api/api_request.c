/* api_request.c - a table of the fields of a body, and a reader for each. See api_request.h. */
#include "engine/api/api_request.h"

#include <string.h>

#include "engine/json.h"
#include "engine/ops.h"
#include "engine/options/options.h"

enum { SHOWN_BYTES = 96 };

static cn_status refuse(const char *key, const char *want, const json_t *found)
{
    char shown[SHOWN_BYTES];
    return cn_fail(CN_ERR_ARG, "%s: expected %s, got %s", key, want,
                   cn_json_describe(found, shown, sizeof shown));
}

static cn_status out_of_memory(const char *key)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for %s", key);
}

static cn_status as_i64(const char *key, const json_t *v, int64_t min, int64_t max, int64_t *out)
{
    if (cn_json_as_i64(v, min, max, out)) return CN_OK;
    char want[SHOWN_BYTES];
    snprintf(want, sizeof want, "a whole number from %lld to %lld", (long long)min,
             (long long)max);
    return refuse(key, want, v);
}

static cn_status as_bool(const char *key, const json_t *v, bool *out)
{
    if (!json_is_boolean(v)) return refuse(key, "true or false", v);
    *out = json_is_true(v);
    return CN_OK;
}

/* ---- messages ---- */

/* The text of a content array: its text parts, one per line, as vLLM joins them. */
static cn_status join_parts(cn_api_request *r, const char *where, json_t *parts, const char **out)
{
    cn_buf text = {0};
    cn_status status = cn_buf_add(&text, "", 0);
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *value = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(value))
            status = refuse(where, "only parts of {\"type\": \"text\", \"text\": ...}",
                            json_is_object(part) && type ? json_object_get(part, "type") : part);
        if (status == CN_OK && i > 0) status = cn_buf_add(&text, "\n", 1);
        if (status == CN_OK)
            status = cn_buf_add(&text, json_string_value(value), json_string_length(value));
        if (status != CN_OK) break;
    }
    if (status == CN_OK) {
        json_t *joined = json_stringn(text.data, text.len);
        *out = json_string_value(joined);
        if (!joined || json_array_append_new(r->keep, joined) != 0) status = out_of_memory(where);
    }
    cn_buf_free(&text);
    return status;
}

static bool is_reasoning(const char *key)
{
    return strcmp(key, "reasoning_content") == 0 || strcmp(key, "reasoning") == 0;
}

static cn_status check_members(const char *where, json_t *message, bool is_answer)
{
    const char *key;
    json_t *v;
    json_object_foreach(message, key, v)
    {
        bool read = !strcmp(key, "role") || !strcmp(key, "content") || !strcmp(key, "name") ||
                    (is_answer && is_reasoning(key));
        bool nothing = json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0);
        if (!read && !nothing) {
            char shown[SHOWN_BYTES];
            return cn_fail(CN_ERR_ARG, "%s: member '%s' is not supported", where,
                           cn_json_printable(key, shown, sizeof shown));
        }
    }
    return CN_OK;
}

/* The reasoning of an assistant message, under either of vLLM's two names for it. */
static cn_status read_reasoning(const char *where, json_t *message, const char **out)
{
    const char *key;
    json_t *v;
    json_object_foreach(message, key, v)
    {
        if (!is_reasoning(key) || json_is_null(v)) continue;
        if (!json_is_string(v)) return refuse(where, "reasoning as a string", v);
        const char *text = json_string_value(v);
        if (*out && strcmp(*out, text) != 0)
            return cn_fail(CN_ERR_ARG,
                           "%s: reasoning and reasoning_content differ: send one of them", where);
        *out = text;
    }
    return CN_OK;
}

static cn_status read_message(cn_api_request *r, size_t i, json_t *message)
{
    /* "developer" is OpenAI's newer name for the role that chat templates call "system". */
    static const struct {
        const char *sent, *is;
    } roles[] = {{"system", "system"},
                 {"developer", "system"},
                 {"user", "user"},
                 {"assistant", "assistant"}};
    cn_message *out = &r->messages[i];
    char where[32];
    snprintf(where, sizeof where, "messages[%zu]", i);
    if (!json_is_object(message)) return refuse(where, "an object", message);
    json_t *role = json_object_get(message, "role");
    for (size_t k = 0; json_is_string(role) && k < sizeof roles / sizeof *roles; k++)
        if (strcmp(json_string_value(role), roles[k].sent) == 0) out->role = roles[k].is;
    if (!role) return cn_fail(CN_ERR_ARG, "%s: role is missing", where);
    if (!out->role)
        return refuse(where, "role \"system\", \"developer\", \"user\" or \"assistant\"", role);
    const bool is_answer = strcmp(out->role, "assistant") == 0;
    CN_TRY(check_members(where, message, is_answer));
    if (is_answer) CN_TRY(read_reasoning(where, message, &out->reasoning));
    json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) return join_parts(r, where, content, &out->content);
    if (!content) return cn_fail(CN_ERR_ARG, "%s: content is missing", where);
    if (!json_is_string(content))
        return refuse(where, "content as a string or text parts", content);
    out->content = json_string_value(content);
    return CN_OK;
}

static cn_status set_messages(cn_api_request *r, const char *key, json_t *v)
{
    size_t n = json_array_size(v);
    if (n == 0) return refuse(key, "an array of messages, at least one", v);
    r->messages = cn_calloc(n, sizeof *r->messages);
    if (!r->messages) return out_of_memory(key);
    for (size_t i = 0; i < n; i++)
        CN_TRY(read_message(r, i, json_array_get(v, i)));
    r->params.messages = r->messages;
    r->params.n_messages = n;
    return CN_OK;
}

/* ---- prompt, token lists, stop ---- */

static cn_status read_ids(const char *key, json_t *array, uint32_t **out, size_t *n_out)
{
    size_t n = json_array_size(array);
    uint32_t *ids = cn_calloc(n, sizeof *ids);
    if (!ids) return out_of_memory(key);
    *out = ids;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        CN_TRY(as_i64(key, json_array_get(array, i), 0, UINT32_MAX, &id));
        ids[i] = (uint32_t)id;
    }
    *n_out = n;
    return CN_OK;
}

/* A string, token ids, or an array of exactly one of either. */
static cn_status set_prompt(cn_api_request *r, const char *key, json_t *v)
{
    json_t *first = json_array_get(v, 0);
    bool list = json_is_string(first) || json_is_array(first);
    if (list && json_array_size(v) > 1)
        return cn_fail(CN_ERR_ARG, "%s: a list of %zu prompts: send one request for each", key,
                       json_array_size(v));
    if (list) v = first;
    if (json_is_string(v)) {
        if (json_string_length(v) == 0)
            return cn_fail(CN_ERR_ARG, "%s: expected a non-empty string", key);
        r->params.text = json_string_value(v);
        return CN_OK;
    }
    if (json_array_size(v) == 0) return refuse(key, "a string or token ids", v);
    CN_TRY(read_ids(key, v, &r->tokens, &r->params.n_tokens));
    r->params.tokens = r->tokens;
    return CN_OK;
}

static cn_status set_stop_token_ids(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_array(v)) return refuse(key, "an array of token ids", v);
    CN_TRY(read_ids(key, v, &r->stop_token_ids, &r->params.sampling.n_stop_token_ids));
    r->params.sampling.stop_token_ids = r->stop_token_ids;
    return CN_OK;
}

static cn_status set_stop(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_string(v) && !json_is_array(v))
        return refuse(key, "a string or an array of strings", v);
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    r->stop = cn_calloc(n, sizeof *r->stop);
    if (!r->stop) return out_of_memory(key);
    for (size_t i = 0; i < n; i++) {
        json_t *text = json_is_string(v) ? v : json_array_get(v, i);
        if (json_string_length(text) == 0) return refuse(key, "non-empty strings", text);
        r->stop[i] = json_string_value(text);
    }
    r->params.sampling.stop = r->stop;
    r->params.sampling.n_stop = n;
    return CN_OK;
}

/* {"token id": bias}, bias from -100 to 100. */
static cn_status set_logit_bias(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_object(v)) return refuse(key, "an object of token ids and biases", v);
    r->logit_bias = cn_calloc(json_object_size(v), sizeof *r->logit_bias);
    if (!r->logit_bias) return out_of_memory(key);
    size_t n = 0;
    const char *id;
    json_t *bias;
    json_object_foreach(v, id, bias)
    {
        size_t digits = strspn(id, "0123456789");
        char shown[SHOWN_BYTES];
        if (digits == 0 || digits > 9 || id[digits])
            return cn_fail(CN_ERR_ARG, "%s: expected token ids as keys, got \"%s\"", key,
                           cn_json_printable(id, shown, sizeof shown));
        double x = json_number_value(bias);
        if (!json_is_number(bias) || !(x >= -100 && x <= 100))
            return refuse(key, "biases from -100 to 100", bias);
        uint32_t token = 0;
        for (size_t i = 0; i < digits; i++) token = token * 10 + (uint32_t)(id[i] - '0');
        r->logit_bias[n++] = (cn_logit_bias){.token = token, .bias = (float)x};
    }
    r->params.sampling.logit_bias = r->logit_bias;
    r->params.sampling.n_logit_bias = n;
    return CN_OK;
}

/* ---- scalars without a row in the option table ---- */

static cn_status set_seed(cn_api_request *r, const char *key, json_t *v)
{
    int64_t seed;
    CN_TRY(as_i64(key, v, INT64_MIN, INT64_MAX, &seed));
    r->params.sampling.has_seed = true;
    r->params.sampling.seed = (uint64_t)seed;
    return CN_OK;
}

static cn_status set_priority(cn_api_request *r, const char *key, json_t *v)
{
    int64_t priority;
    CN_TRY(as_i64(key, v, INT32_MIN, INT32_MAX, &priority));
    r->params.priority = (int32_t)priority;
    return CN_OK;
}

static cn_status set_stream(cn_api_request *r, const char *key, json_t *v)
{
    return as_bool(key, v, &r->stream);
}

static cn_status set_stream_options(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_object(v)) return refuse(key, "an object", v);
    const char *member;
    json_t *value;
    json_object_foreach(v, member, value)
    {
        if (strcmp(member, "include_usage") != 0) {
            char shown[SHOWN_BYTES];
            return cn_fail(CN_ERR_ARG, "%s: unknown member '%s'", key,
                           cn_json_printable(member, shown, sizeof shown));
        }
        CN_TRY(as_bool("stream_options.include_usage", value, &r->stream_usage));
    }
    return CN_OK;
}

static cn_status set_template_kwargs(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_object(v)) return refuse(key, "an object", v);
    const char *member;
    json_t *value;
    json_object_foreach(v, member, value)
    {
        bool on = false;
        if (strcmp(member, "enable_thinking") != 0) {
            char shown[SHOWN_BYTES];
            return cn_fail(CN_ERR_ARG, "%s: unknown member '%s': expected enable_thinking", key,
                           cn_json_printable(member, shown, sizeof shown));
        }
        if (json_is_null(value)) continue;
        CN_TRY(as_bool("chat_template_kwargs.enable_thinking", value, &on));
        r->params.enable_thinking = on;
    }
    return CN_OK;
}

/* Chat: a switch. The number of alternatives is in top_logprobs, which is read after all fields. */
static cn_status set_chat_logprobs(cn_api_request *r, const char *key, json_t *v)
{
    bool on = false;
    CN_TRY(as_bool(key, v, &on));
    r->params.sampling.logprobs = on ? 0 : -1;
    return CN_OK;
}

static cn_status set_completion_logprobs(cn_api_request *r, const char *key, json_t *v)
{
    int64_t n;
    CN_TRY(as_i64(key, v, 0, CN_MAX_LOGPROBS, &n));
    r->params.sampling.logprobs = (int32_t)n;
    return CN_OK;
}

/* finish_chat() reads the field, once all other fields are known. */
static cn_status set_later(cn_api_request *r, const char *key, json_t *v)
{
    (void)r, (void)key, (void)v;
    return CN_OK;
}

/* ---- the tables ---- */

enum { CHAT = 1 << CN_API_CHAT, COMPLETION = 1 << CN_API_COMPLETION, BOTH = CHAT | COMPLETION };

static const struct field {
    const char *key;
    unsigned endpoints;
    cn_status (*set)(cn_api_request *r, const char *key, json_t *v);
} fields[] = {
    {"messages", CHAT, set_messages},
    {"prompt", COMPLETION, set_prompt},
    {"stop", BOTH, set_stop},
    {"stop_token_ids", BOTH, set_stop_token_ids},
    {"logit_bias", BOTH, set_logit_bias},
    {"logprobs", CHAT, set_chat_logprobs},
    {"logprobs", COMPLETION, set_completion_logprobs},
    {"top_logprobs", CHAT, set_later},
    {"max_completion_tokens", CHAT, set_later},
    {"seed", BOTH, set_seed},
    {"priority", BOTH, set_priority},
    {"stream", BOTH, set_stream},
    {"stream_options", BOTH, set_stream_options},
    {"chat_template_kwargs", CHAT, set_template_kwargs},
};

/* Accepted without effect: they do not change the answer. */
static const char *const harmless[] = {
    "model",          "user",        "metadata",         "store",      "service_tier",
    "prompt_cache_key", "request_id", "safety_identifier", "parallel_tool_calls",
};

/* Accepted only at this value (as JSON), which means what cinch does anyway. */
static const struct neutral {
    const char *key, *value;
} neutrals[] = {
    {"add_generation_prompt", "true"},
    {"best_of", "1"},
    {"continue_final_message", "false"},
    {"detokenize", "true"},
    {"early_stopping", "false"},
    {"echo", "false"},
    {"functions", "[]"},
    {"include_reasoning", "true"},
    {"length_penalty", "1"},
    {"modalities", "[\"text\"]"},
    {"response_format", "{\"type\": \"text\"}"},
    {"return_token_ids", "false"},
    {"return_tokens_as_token_ids", "false"},
    {"spaces_between_special_tokens", "true"},
    {"tool_choice", "\"none\""},
    {"tools", "[]"},
    {"use_beam_search", "false"},
};

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if (strcmp(key, harmless[i]) == 0) return true;
    return false;
}

static bool equal_values(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static cn_status check_neutral(const char *key, const json_t *v)
{
    char shown[SHOWN_BYTES], name[SHOWN_BYTES];
    for (size_t i = 0; i < sizeof neutrals / sizeof *neutrals; i++) {
        if (strcmp(key, neutrals[i].key) != 0) continue;
        json_t *want = json_loads(neutrals[i].value, JSON_DECODE_ANY, NULL);
        if (!want) return out_of_memory(key);
        bool same = equal_values(v, want);
        json_decref(want);
        return same ? CN_OK
                    : cn_fail(CN_ERR_ARG, "%s: only %s is supported, got %s", key,
                              neutrals[i].value, cn_json_describe(v, shown, sizeof shown));
    }
    return cn_fail(CN_ERR_ARG, "%s: unknown field, got %s",
                   cn_json_printable(key, name, sizeof name),
                   cn_json_describe(v, shown, sizeof shown));
}

static cn_status read_field(cn_api_request *r, const char *key, json_t *v)
{
    CN_TRY(cn_json_refuse_nul(v, key, CN_ERR_ARG));
    if (json_is_null(v) || is_harmless(key)) return CN_OK;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].endpoints >> r->endpoint & 1 && strcmp(key, fields[i].key) == 0)
            return fields[i].set(r, key, v);
    bool known;
    CN_TRY(cn_request_set_json(&r->params.sampling, &r->params.kv,
                               CN_SECTION_SAMPLING | CN_SECTION_KV, key, v, &known));
    return known ? CN_OK : check_neutral(key, v);
}

/* ---- fields that depend on others ---- */

static cn_status finish_chat(cn_api_request *r, json_t *body, const char **key)
{
    cn_sampling *s = &r->params.sampling;
    json_t *v = json_object_get(body, *key = "max_completion_tokens");
    bool known;
    if (v && !json_is_null(v) &&
        cn_request_set_json(s, &r->params.kv, CN_SECTION_SAMPLING, "max_tokens", v, &known))
        return cn_fail_within(CN_ERR_ARG, "%s", *key);
    v = json_object_get(body, *key = "top_logprobs");
    if (v && !json_is_null(v)) {
        int64_t n;
        CN_TRY(as_i64(*key, v, 0, CN_MAX_LOGPROBS, &n));
        if (n > 0 && s->logprobs < 0)
            return cn_fail(CN_ERR_ARG, "%s: needs \"logprobs\": true", *key);
        if (s->logprobs >= 0) s->logprobs = (int32_t)n;
    }
    *key = "messages";
    return r->messages ? CN_OK : cn_fail(CN_ERR_ARG, "%s: missing", *key);
}

static cn_status finish_completion(cn_api_request *r, const char **key)
{
    cn_sampling *s = &r->params.sampling;
    if (s->max_tokens == 0)
        s->max_tokens = cn_max_u32(CN_API_DEFAULT_COMPLETION_TOKENS, s->min_tokens);
    *key = "prompt";
    return r->params.text || r->tokens ? CN_OK : cn_fail(CN_ERR_ARG, "%s: missing", *key);
}

static cn_status read_body(cn_api_request *r, json_t *body, const char **key)
{
    json_t *v;
    if (!json_is_object(body)) return refuse("body", "an object", body);
    json_object_foreach(body, *key, v) CN_TRY(read_field(r, *key, v));
    cn_status status = r->endpoint == CN_API_CHAT ? finish_chat(r, body, key)
                                                  : finish_completion(r, key);
    CN_TRY(status);
    *key = "stream_options";
    if (r->stream_usage && !r->stream)
        return cn_fail(CN_ERR_ARG, "%s: needs \"stream\": true", *key);
    return CN_OK;
}

/* Removes the members of the body that params does not point into. */
static void drop_read(const cn_api_request *r, json_t *body)
{
    const char *key;
    json_t *v;
    void *next;
    json_object_foreach_safe(body, next, key, v)
    {
        const bool borrowed = strcmp(key, "messages") == 0 || strcmp(key, "stop") == 0 ||
                              (strcmp(key, "prompt") == 0 && r->params.text);
        if (!borrowed) json_object_del(body, key);
    }
}

cn_status cn_api_request_parse(cn_api_request *out, cn_api_endpoint endpoint, json_t *body,
                               const cn_api_defaults *defaults, cn_buf *at_fault)
{
    *out = (cn_api_request){
        .endpoint = endpoint,
        .params = {.enable_thinking = -1, .sampling = defaults->sampling, .kv = defaults->kv},
        .keep = json_array(),
    };
    const char *key = "";
    cn_status status = CN_OK;
    if (!out->keep || json_array_append(out->keep, body) != 0) status = out_of_memory("a request");
    if (status == CN_OK) status = read_body(out, body, &key);
    if (status == CN_OK) {
        drop_read(out, body);
        return CN_OK;
    }
    if (at_fault) {
        cn_buf_clear(at_fault);
        if (cn_buf_add(at_fault, key ? key : "", key ? strlen(key) : 0) != CN_OK)
            status = CN_ERR_MEMORY;
    }
    cn_api_request_free(out);
    return status;
}

void cn_api_request_free(cn_api_request *r)
{
    cn_free(r->messages);
    cn_free(r->tokens);
    cn_free(r->stop_token_ids);
    cn_free((void *)r->stop);
    cn_free(r->logit_bias);
    json_decref(r->keep);
    *r = (cn_api_request){0};
}

/* ---- endpoints ---- */

static const char *const paths[CN_API_N_ENDPOINTS] = {
    [CN_API_CHAT] = "/v1/chat/completions",
    [CN_API_COMPLETION] = "/v1/completions",
};

const char *cn_api_endpoint_path(cn_api_endpoint e)
{
    CN_ASSERT(e < CN_API_N_ENDPOINTS);
    return paths[e];
}

bool cn_api_endpoint_find(const char *path, cn_api_endpoint *out)
{
    for (int e = 0; e < CN_API_N_ENDPOINTS; e++) {
        if (strcmp(path, paths[e]) != 0) continue;
        *out = (cn_api_endpoint)e;
        return true;
    }
    return false;
}
