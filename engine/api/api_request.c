/* api_request.c - a table of the fields of a body, and a reader for each. See api_request.h. */
#include "engine/api/api_request.h"

#include "compress/policy.h"
#include "engine/api/api_chat.h"
#include "engine/api/api_fields.h"
#include "engine/api/api_structure.h"
#include "engine/api/responses_request.h"
#include "engine/base/json.h"
#include "engine/ops.h"

enum { SHOWN_BYTES = 96, MOST_TOKENS = 1 << 30 };

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
    return cn_api_refuse(key, want, v);
}

static cn_status as_bool(const char *key, const json_t *v, bool *out)
{
    if (!json_is_boolean(v)) return cn_api_refuse(key, "true or false", v);
    *out = json_is_true(v);
    return CN_OK;
}

/* ---- the chat ---- */

static cn_status set_parallel_calls(cn_api_request *r, const char *key, json_t *v)
{
    bool parallel = true;
    CN_TRY(as_bool(key, v, &parallel));
    r->one_tool_call = !parallel;
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

static cn_status read_prompt(const char *key, json_t *v, struct cn_api_prompt *out)
{
    if (json_is_string(v)) {
        if (json_string_length(v) == 0)
            return cn_fail(CN_ERR_ARG, "%s: expected a non-empty string", key);
        out->text = json_string_value(v);
        out->text_len = json_string_length(v);
        return CN_OK;
    }
    if (json_array_size(v) == 0) return cn_api_refuse(key, "a string or token ids", v);
    return read_ids(key, v, &out->tokens, &out->n_tokens);
}

/* A string, token ids, or an array of either. */
static cn_status set_prompt(cn_api_request *r, const char *key, json_t *v)
{
    json_t *first = json_array_get(v, 0);
    const bool list = json_is_string(first) || json_is_array(first);
    const size_t n = list ? json_array_size(v) : 1;
    if (n > CN_API_MAX_PROMPTS)
        return cn_fail(CN_ERR_ARG, "%s: expected at most %d prompts, got %zu", key,
                       CN_API_MAX_PROMPTS, n);
    r->prompts = cn_calloc(n, sizeof *r->prompts);
    if (!r->prompts) return out_of_memory(key);
    r->n_prompts = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        CN_TRY(read_prompt(key, list ? json_array_get(v, i) : v, &r->prompts[i]));
    cn_api_request_set_prompt(r, 0, &r->params);
    return CN_OK;
}

static cn_status set_stop_token_ids(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_array(v)) return cn_api_refuse(key, "an array of token ids", v);
    CN_TRY(read_ids(key, v, &r->stop_token_ids, &r->params.sampling.n_stop_token_ids));
    r->params.sampling.stop_token_ids = r->stop_token_ids;
    return CN_OK;
}

static cn_status set_allowed_token_ids(cn_api_request *r, const char *key, json_t *v)
{
    if (json_array_size(v) == 0)
        return cn_api_refuse(key, "an array of token ids, at least one", v);
    cn_sampling *s = &r->params.sampling;
    CN_TRY(read_ids(key, v, &r->allowed_token_ids, &s->n_allowed_token_ids));
    s->allowed_token_ids = r->allowed_token_ids;
    return CN_OK;
}

static cn_status read_strings(const char *key, json_t *array, const char ***out)
{
    const size_t n = json_array_size(array);
    *out = cn_calloc(n, sizeof **out);
    if (!*out) return out_of_memory(key);
    for (size_t i = 0; i < n; i++) {
        json_t *text = json_array_get(array, i);
        if (json_string_length(text) == 0) return cn_api_refuse(key, "non-empty strings", text);
        (*out)[i] = json_string_value(text);
    }
    return CN_OK;
}

/* A string, or an array of strings. */
static cn_status set_stop(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_string(v) && !json_is_array(v))
        return cn_api_refuse(key, "a string or an array of strings", v);
    json_t *one = json_is_string(v) ? json_pack("[O]", v) : NULL;
    const cn_status status = read_strings(key, one ? one : v, &r->stop);
    json_decref(one);
    r->params.sampling.stop = r->stop;
    r->params.sampling.n_stop = json_is_array(v) ? json_array_size(v) : 1;
    return status;
}

static cn_status set_bad_words(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_array(v)) return cn_api_refuse(key, "an array of strings", v);
    CN_TRY(read_strings(key, v, &r->bad_words));
    r->params.sampling.bad_words = r->bad_words;
    r->params.sampling.n_bad_words = json_array_size(v);
    return CN_OK;
}

/* {"token id": bias}, bias from -100 to 100. */
static cn_status set_logit_bias(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_object(v)) return cn_api_refuse(key, "an object of token ids and biases", v);
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
            return cn_api_refuse(key, "biases from -100 to 100", bias);
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

static cn_status set_stream_options(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_object(v)) return cn_api_refuse(key, "an object", v);
    const char *member;
    json_t *value;
    json_object_foreach(v, member, value)
    {
        if (json_is_null(value)) continue;
        if (strcmp(member, "include_usage") == 0) {
            CN_TRY(as_bool("stream_options.include_usage", value, &r->stream_usage));
        } else if (strcmp(member, "continuous_usage_stats") == 0) {
            CN_TRY(as_bool("stream_options.continuous_usage_stats", value, &r->chunk_usage));
        } else {
            char name[SHOWN_BYTES];
            snprintf(name, sizeof name, "stream_options.%.64s", member);
            CN_TRY(cn_api_unknown_take(r->unknown, name, value, &r->warnings));
        }
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

static cn_status set_prompt_logprobs(cn_api_request *r, const char *key, json_t *v)
{
    int64_t n;
    CN_TRY(as_i64(key, v, 0, CN_MAX_LOGPROBS, &n));
    r->prompt_logprobs = (int32_t)n;
    return CN_OK;
}

static cn_status set_truncate(cn_api_request *r, const char *key, json_t *v)
{
    int64_t n;
    if (!cn_json_as_i64(v, -1, -1, &n) && !cn_json_as_i64(v, 1, UINT32_MAX - 1, &n))
        return cn_api_refuse(key, "-1, for all that there is room for, or a positive whole number",
                             v);
    r->params.truncate_prompt = n < 0 ? CN_TRUNCATE_TO_ROOM : (uint32_t)n;
    return CN_OK;
}

/* 0: only the prompt is computed. */
static cn_status set_max_tokens(cn_api_request *r, const char *key, json_t *v)
{
    int64_t n;
    r->params.cut_max_tokens = r->cap_max_tokens;
    CN_TRY(as_i64(key, v, 0, MOST_TOKENS, &n));
    r->params.no_output = n == 0;
    if (n > 0) r->params.sampling.max_tokens = (uint32_t)n;
    return CN_OK;
}

/* ---- the tables ---- */

/* The members of /v1/responses alone are in responses_request.c. */
enum {
    CHAT = 1 << CN_API_CHAT,
    COMPLETION = 1 << CN_API_COMPLETION,
    RESPONSES = 1 << CN_API_RESPONSES,
    BOTH = CHAT | COMPLETION,
    CHATS = CHAT | RESPONSES,
    ALL = CHAT | COMPLETION | RESPONSES
};

static const struct field {
    const char *key;
    unsigned endpoints;
    cn_status (*set)(cn_api_request *r, const char *key, json_t *v); /* NULL: see `flag` */
    size_t flag; /* offset in cn_api_request; 0: the field is read once all others are known */
} fields[] = {
    {"messages", CHAT, cn_api_chat_messages, 0},
    {"prompt", COMPLETION, set_prompt, 0},
    {"stop", ALL, set_stop, 0},
    {"stop_token_ids", ALL, set_stop_token_ids, 0},
    {"allowed_token_ids", ALL, set_allowed_token_ids, 0},
    {"bad_words", ALL, set_bad_words, 0},
    {"logit_bias", ALL, set_logit_bias, 0},
    {"logprobs", CHAT, set_chat_logprobs, 0},
    {"logprobs", COMPLETION, set_completion_logprobs, 0},
    {"top_logprobs", CHATS, NULL, 0},
    {"max_completion_tokens", CHAT, NULL, 0},
    {"max_tokens", BOTH, set_max_tokens, 0},
    {"echo", COMPLETION, NULL, offsetof(cn_api_request, echo)},
    {"best_of", ALL, NULL, 0},
    {"prompt_logprobs", ALL, set_prompt_logprobs, 0},
    {"return_token_ids", ALL, NULL, offsetof(cn_api_request, return_token_ids)},
    {"truncate_prompt_tokens", ALL, set_truncate, 0},
    {"reasoning_effort", CHAT, NULL, 0},
    {"seed", ALL, set_seed, 0},
    {"priority", ALL, set_priority, 0},
    {"stream", ALL, NULL, offsetof(cn_api_request, stream)},
    {"stream_options", BOTH, set_stream_options, 0},
    {"chat_template_kwargs", CHATS, cn_api_chat_kwargs, 0},
    {"documents", CHATS, cn_api_chat_documents, 0},
    {"tools", CHAT, cn_api_chat_tools, 0},
    {"tool_choice", CHATS, NULL, 0},
    {"parallel_tool_calls", CHATS, set_parallel_calls, 0},
    {"add_generation_prompt", CHATS, cn_api_chat_switch, 0},
    {"continue_final_message", CHATS, cn_api_chat_switch, 0},
    {"response_format", BOTH, cn_api_set_response_format, 0},
    {"structured_outputs", ALL, cn_api_set_structured_outputs, 0},
};

/* Accepted without effect: they do not change the answer. */
static const char *const harmless[] = {
    "model",
    "cache_salt",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
    NULL,
};

/* Accepted only at this value (as JSON), which means what cinch does anyway. */
static const struct neutral {
    const char *key, *value;
} neutrals[] = {
    {"detokenize", "true"},
    {"early_stopping", "false"},
    {"echo", "false"},
    {"functions", "[]"},
    {"include_reasoning", "true"},
    {"length_penalty", "1"},
    {"modalities", "[\"text\"]"},
    {"no_stop_trim", "false"},
    {"return_hidden_states", "false"},
    {"return_tokens_as_token_ids", "false"},
    {"separate_reasoning", "true"},
    {"spaces_between_special_tokens", "true"},
    {"stream_reasoning", "true"},
    {"suffix", "\"\""},
    {"use_beam_search", "false"},
};

static bool equal_values(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static cn_status check_neutral(cn_api_request *r, const char *key, const json_t *v)
{
    char shown[SHOWN_BYTES];
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
    return cn_api_unknown_take(r->unknown, key, v, &r->warnings);
}

/* U+0000 is accepted in the texts that become the prompt, whose lengths are read. */
static cn_status check_nuls(const char *key, json_t *v)
{
    static const char *const keys[] = {"messages", "prompt", "input", "instructions", NULL};
    static const char *const texts[] = {"content", "text", "reasoning", "reasoning_content",
                                        "arguments", "output", NULL};
    if (!cn_json_is_named(keys, key)) return cn_json_refuse_nul(v, key, CN_ERR_ARG);
    if (json_is_string(v) || strcmp(key, "prompt") == 0) return CN_OK;
    return cn_json_refuse_nul_except(v, key, texts, CN_ERR_ARG);
}

static cn_status set_field(cn_api_request *r, const struct field *f, json_t *v)
{
    if (f->set) return f->set(r, f->key, v);
    return f->flag ? as_bool(f->key, v, (bool *)((char *)r + f->flag)) : CN_OK;
}

static cn_status read_field(cn_api_request *r, const char *key, json_t *v)
{
    CN_TRY(check_nuls(key, v));
    bool known = false;
    if (json_is_null(v)) return CN_OK;
    if (r->endpoint == CN_API_RESPONSES) CN_TRY(cn_responses_set(r, key, v, &known));
    if (known || cn_json_is_named(harmless, key)) return CN_OK;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].endpoints >> r->endpoint & 1 && strcmp(key, fields[i].key) == 0)
            return set_field(r, &fields[i], v);
    CN_TRY(cn_request_set_json(&r->params.sampling, &r->params.kv,
                               CN_SECTION_SAMPLING | CN_SECTION_KV, key, v, &known));
    return known ? CN_OK : check_neutral(r, key, v);
}

/* ---- fields that depend on others ---- */

/* OpenAI's effort as variables of the chat template: its own, and the switch of templates that can
 * only think or not. chat_template_kwargs comes first. */
cn_status cn_api_set_effort(cn_api_request *r, const char *key, json_t *v)
{
    static const char *const efforts[] = {"none", "minimal", "low",  "medium",
                                          "high", "xhigh",   "max"};
    const char *effort = json_string_value(v);
    size_t i = 0, n = sizeof efforts / sizeof *efforts;
    while (effort && i < n && strcmp(effort, efforts[i]) != 0) i++;
    if (!effort || i == n)
        return cn_api_refuse(
            key, "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"", v);
    int failed = 0;
    if (!json_object_get(r->chat, "reasoning_effort"))
        failed |= json_object_set(r->chat, "reasoning_effort", v);
    if (!json_object_get(r->chat, "enable_thinking"))
        failed |= json_object_set_new(r->chat, "enable_thinking", json_boolean(i > 0));
    return failed ? out_of_memory("a request") : CN_OK;
}

cn_status cn_api_finish_tools(cn_api_request *r, json_t *choice, cn_opt_tool_parser parser,
                              const char **key)
{
    const char *text = json_string_value(choice);
    *key = "tool_choice";
    CN_TRY(cn_api_drop_message_format(r, choice));
    /* The model is not told of tools that it must not use. */
    if (text && strcmp(text, "none") == 0) json_object_del(r->chat, "tools");
    *key = "tools";
    if (json_object_get(r->chat, *key) && parser == CN_OPT_TOOLS_NONE)
        return cn_fail(CN_ERR_ARG, "%s: needs --tool-call-parser of the engine", *key);
    /* Without "auto", an answer that must be JSON is not a call. Of the other forms, the client
     * writes the text. */
    const cn_structure_kind kind = r->params.structure.kind;
    const bool is_json = kind == CN_STRUCTURE_JSON || kind == CN_STRUCTURE_SCHEMA;
    r->either = cn_api_is_either(r, choice);
    if (json_object_get(r->chat, *key) && (!is_json || r->either)) r->tool_parser = parser;
    r->params.finds_calls = r->tool_parser != CN_OPT_TOOLS_NONE;
    *key = "tool_choice";
    return choice && !json_is_null(choice) ? cn_api_set_tool_choice(r, *key, choice) : CN_OK;
}

cn_status cn_api_set_length(cn_api_request *r, const char *key, json_t *v)
{
    if (!v || json_is_null(v)) return CN_OK;
    CN_TRY(set_max_tokens(r, key, v));
    r->length_key = key;
    return CN_OK;
}

static cn_status finish_chat(cn_api_request *r, json_t *body, cn_opt_tool_parser parser,
                             const char **key)
{
    cn_sampling *s = &r->params.sampling;
    *key = "max_completion_tokens";
    CN_TRY(cn_api_set_length(r, "max_completion_tokens", json_object_get(body, *key)));
    json_t *v;
    v = json_object_get(body, *key = "top_logprobs");
    if (v && !json_is_null(v)) {
        int64_t n;
        CN_TRY(as_i64(*key, v, 0, CN_MAX_LOGPROBS, &n));
        if (n > 0 && s->logprobs < 0)
            return cn_fail(CN_ERR_ARG, "%s: needs \"logprobs\": true", *key);
        if (s->logprobs >= 0) s->logprobs = (int32_t)n;
    }
    CN_TRY(cn_api_finish_tools(r, json_object_get(body, "tool_choice"), parser, key));
    v = json_object_get(body, *key = "reasoning_effort");
    if (v && !json_is_null(v)) CN_TRY(cn_api_set_effort(r, *key, v));
    *key = "messages";
    if (!json_object_get(r->chat, *key)) return cn_fail(CN_ERR_ARG, "%s: missing", *key);
    *key = "continue_final_message";
    CN_TRY(cn_api_chat_check(r->chat));
    r->params.chat = r->chat;
    return CN_OK;
}

static cn_status finish_completion(cn_api_request *r, const char **key)
{
    cn_sampling *s = &r->params.sampling;
    r->params.whole_text = true;
    if (s->max_tokens == 0 && !r->params.no_output)
        s->max_tokens = cn_max_u32(CN_API_DEFAULT_COMPLETION_TOKENS, s->min_tokens);
    *key = "prompt";
    return r->prompts ? CN_OK : cn_fail(CN_ERR_ARG, "%s: missing", *key);
}

/* Takes note of the members of the kv object that the request does not read. */
static cn_status check_kv_is_read(cn_api_request *r, const json_t *object)
{
    const cn_kv_params *kv = &r->params.kv;
    const bool ranks = cn_policy_ranks(kv->policy);
    char name[SHOWN_BYTES], all[2 * SHOWN_BYTES], one[SHOWN_BYTES];
    const char *key;
    json_t *v;
    snprintf(all, sizeof all, "no effect with policy %s%s%s, select %s and home %s",
             cn_kv_policy_name(kv->policy), ranks ? ", rule " : "",
             ranks ? cn_rule_of(kv->rule)->name : "", cn_kv_select_name(kv->select),
             cn_kv_home_name(kv->home));
    json_object_foreach((json_t *)object, key, v)
    {
        if (json_is_null(v) || cn_kv_reads(kv, key)) continue;
        const char *silencer = cn_kv_silencer(kv, key);
        snprintf(one, sizeof one, "no effect with %s", silencer ? silencer : "");
        snprintf(name, sizeof name, "kv.%s", key);
        CN_TRY(cn_api_ignore(r->unknown, name, silencer ? one : all, v, &r->warnings));
    }
    return CN_OK;
}

/* All samples are returned, so the best of n are those n. */
static cn_status check_best_of(const cn_api_request *r, const char *key, const json_t *v)
{
    int64_t n;
    char shown[SHOWN_BYTES];
    const uint32_t samples = r->params.sampling.n;
    if (!v || json_is_null(v) || cn_json_as_i64(v, samples, samples, &n)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "%s: only the value of n, which is %u, is supported, got %s", key,
                   samples, cn_json_describe(v, shown, sizeof shown));
}

/* Another rule has other defaults, and another budget may need a smaller window. */
static void follow_rule(cn_api_request *r, const json_t *object, const cn_api_defaults *defaults)
{
    if (defaults->any_rule) return;
    if (json_object_get(object, "rule") || json_object_get(object, "budget"))
        cn_config_follow_rule(defaults->config, object, &r->params.kv);
}

static cn_status read_body(cn_api_request *r, json_t *body, const cn_api_defaults *defaults,
                           const char **key)
{
    const cn_opt_tool_parser parser = defaults->tool_parser;
    json_t *v;
    if (!json_is_object(body)) return cn_api_refuse("body", "an object", body);
    json_object_foreach(body, *key, v) CN_TRY(read_field(r, *key, v));
    const json_t *kv = json_object_get(body, *key = "kv");
    follow_rule(r, kv, defaults);
    CN_TRY(check_kv_is_read(r, kv));
    switch (r->endpoint) {
    case CN_API_CHAT: CN_TRY(finish_chat(r, body, parser, key)); break;
    case CN_API_RESPONSES: CN_TRY(cn_responses_finish(r, body, parser, key)); break;
    default: CN_TRY(finish_completion(r, key));
    }
    CN_TRY(cn_api_finish_structure(r, *key = "structured_outputs"));
    *key = "best_of";
    CN_TRY(check_best_of(r, *key, json_object_get(body, *key)));
    *key = "stream_options";
    if ((r->stream_usage || r->chunk_usage) && !r->stream)
        return cn_fail(CN_ERR_ARG, "%s: needs \"stream\": true", *key);
    *key = "prompt_logprobs";
    if (r->prompt_logprobs >= 0 && r->stream)
        return cn_fail(CN_ERR_ARG, "%s: not available with \"stream\": true", *key);
    const int32_t echoed = r->echo ? r->params.sampling.logprobs : -1;
    const int32_t most = r->prompt_logprobs > echoed ? r->prompt_logprobs : echoed;
    r->params.score_prompt = most >= 0;
    r->params.n_prompt_top = most > 0 ? (uint32_t)most : 0;
    return CN_OK;
}

/* Removes the members of the body that params does not point into. */
static void drop_read(const cn_api_request *r, json_t *body)
{
    static const char *const borrows[] = {"messages", "input",     "instructions",
                                          "stop",     "bad_words", NULL};
    const char *key;
    json_t *v;
    void *next;
    bool has_text = false;
    for (uint32_t i = 0; r->prompts && i < r->n_prompts; i++)
        if (r->prompts[i].text) has_text = true;
    json_object_foreach_safe(body, next, key, v)
    {
        const bool borrowed =
            cn_json_is_named(borrows, key) || (strcmp(key, "prompt") == 0 && has_text);
        if (!borrowed) json_object_del(body, key);
    }
}

cn_status cn_api_model_check(const cn_served_names *names, const json_t *model)
{
    char shown[SHOWN_BYTES];
    const char *name = json_string_value(model);
    if (!model || json_is_null(model) || (name && cn_served_names_have(names, name))) return CN_OK;
    return cn_fail_param("model", "the model %s does not exist: expected \"%s\"",
                         cn_json_describe(model, shown, sizeof shown), names->names[0]);
}

cn_status cn_api_request_parse(cn_api_request *out, cn_api_endpoint endpoint, json_t *body,
                               const cn_api_defaults *defaults)
{
    *out = (cn_api_request){
        .endpoint = endpoint,
        .unknown = defaults->unknown,
        .cap_max_tokens = defaults->cap_max_tokens,
        .prompt_logprobs = -1,
        .n_prompts = 1,
        .whitespace = defaults->json_whitespace == CN_OPT_JSON_WHITESPACE_ANY
                          ? CN_JSON_WHITESPACE_ANY
                          : NULL,
        .params = {.enable_thinking = -1,
                   .cut_max_tokens = true,
                   .sampling = defaults->sampling,
                   .kv = defaults->kv},
        .keep = json_array(),
    };
    const char *key = "";
    cn_status status = CN_OK;
    out->chat = json_object();
    if (!out->keep || !out->chat || json_array_append(out->keep, body) != 0)
        status = out_of_memory("a request");
    if (status == CN_OK) status = read_body(out, body, defaults, &key);
    out->unknown = NULL;
    if (status == CN_OK) {
        drop_read(out, body);
        return CN_OK;
    }
    cn_for_param(status, key ? key : "");
    cn_api_request_free(out);
    return status;
}

void cn_api_request_set_prompt(const cn_api_request *r, uint32_t i, cn_request_params *io)
{
    if (!r->prompts) return;
    CN_ASSERT(i < r->n_prompts);
    io->text = r->prompts[i].text;
    io->text_len = r->prompts[i].text_len;
    io->tokens = r->prompts[i].tokens;
    io->n_tokens = r->prompts[i].n_tokens;
}

cn_status cn_api_request_submit(const cn_api_request *r, cn_engine *e, cn_event_fn fn, void *user,
                                uint64_t *first)
{
    cn_request_params *all = cn_calloc(r->n_prompts, sizeof *all);
    if (!all) return cn_fail(CN_ERR_MEMORY, "out of memory for %u prompts", r->n_prompts);
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        all[i] = r->params;
        cn_api_request_set_prompt(r, i, &all[i]);
    }
    const cn_status status = cn_engine_submit_all(e, all, r->n_prompts, fn, user, first);
    cn_free(all);
    return status;
}

void cn_api_note_param(const cn_api_request *r, cn_buf *at_fault)
{
    const char *prompt = r->endpoint == CN_API_RESPONSES ? "input"
                         : r->params.chat                ? "messages"
                                                         : NULL;
    const struct {
        const char *of_engine, *of_body; /* of_body NULL: the same */
    } names[] = {{"prompt", prompt},
                 {"messages", prompt},
                 {"max_tokens", r->length_key},
                 {"structured_outputs", r->structure_key}};
    const char *param = cn_last_param();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!names[i].of_body || strcmp(param, names[i].of_engine) != 0) continue;
        param = names[i].of_body;
        break;
    }
    cn_buf_clear(at_fault);
    if (cn_buf_add(at_fault, param, strlen(param)) != CN_OK) cn_buf_clear(at_fault);
}

void cn_api_request_free(cn_api_request *r)
{
    for (uint32_t i = 0; r->prompts && i < r->n_prompts; i++) cn_free(r->prompts[i].tokens);
    cn_free(r->prompts);
    cn_free(r->stop_token_ids);
    cn_free(r->allowed_token_ids);
    cn_free((void *)r->stop);
    cn_free((void *)r->bad_words);
    cn_free(r->logit_bias);
    json_decref(r->chat);
    json_decref(r->keep);
    json_decref(r->warnings);
    cn_buf_free(&r->repeated);
    *r = (cn_api_request){0};
}

/* ---- endpoints ---- */

static const char *const paths[CN_API_N_ENDPOINTS] = {
    [CN_API_CHAT] = "/v1/chat/completions",
    [CN_API_COMPLETION] = "/v1/completions",
    [CN_API_RESPONSES] = "/v1/responses",
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
