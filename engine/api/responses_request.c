/* responses_request.c - see responses_request.h. */
#include "engine/api/responses_request.h"

#include <stdlib.h>

#include "engine/api/api_chat.h"
#include "engine/api/api_fields.h"
#include "engine/api/api_structure.h"
#include "engine/api/responses_input.h"
#include "engine/base/json.h"
#include "engine/ops.h"

enum { SHOWN_BYTES = 96, WHERE_BYTES = 32, REPEATED_DIGITS = 15, FLOAT_DIGITS = 7 };

static cn_status no_memory_for_key(const char *key)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for %s", key);
}

static const json_t *set_responses_member(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

/* Takes note of the members of an object that are not in `known`, which ends with NULL. */
static cn_status check_members(cn_api_request *r, const char *place, const json_t *object,
                               const char *const *known)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        char name[SHOWN_BYTES];
        if (cn_json_is_named(known, key) || json_is_null(v) || json_is_false(v)) continue;
        snprintf(name, sizeof name, "%s.%.64s", place, key);
        CN_TRY(cn_api_unknown_take(r->unknown, name, v, &r->warnings));
    }
    return CN_OK;
}

/* ---- members of their own ---- */

/* A response has one output. */
static cn_status set_one(cn_api_request *r, const char *key, json_t *v)
{
    int64_t n;
    (void)r;
    return cn_json_as_i64(v, 1, 1, &n)
               ? CN_OK
               : cn_api_refuse(key, "1, because a response has one output", v);
}

static cn_status set_include(cn_api_request *r, const char *key, json_t *v)
{
    /* What no answer of cinch has: the results of hosted tools, encrypted reasoning. */
    static const char *const absent[] = {
        "reasoning.encrypted_content",   "file_search_call.results",
        "web_search_call.results",       "web_search_call.action.sources",
        "message.input_image.image_url", "computer_call_output.output.image_url",
        "code_interpreter_call.outputs", NULL};
    size_t i;
    json_t *item;
    if (!json_is_array(v)) return cn_api_refuse(key, "an array of strings", v);
    json_array_foreach(v, i, item)
    {
        const char *name = json_string_value(item);
        if (name && strcmp(name, "message.output_text.logprobs") == 0)
            r->params.sampling.logprobs = 0;
        else if (!name || !cn_json_is_named(absent, name))
            return cn_api_refuse(key,
                                 "\"message.output_text.logprobs\" or another of OpenAI's "
                                 "values",
                                 item);
    }
    return CN_OK;
}

static cn_status set_metadata(cn_api_request *r, const char *key, json_t *v)
{
    (void)r;
    return json_is_object(v) ? CN_OK : cn_api_refuse(key, "an object", v);
}

/* A stream always has the usage in its last event. */
static cn_status set_responses_stream_options(cn_api_request *r, const char *key, json_t *v)
{
    static const char *const known[] = {"include_usage", "include_obfuscation",
                                        "continuous_usage_stats", NULL};
    if (!json_is_object(v)) return cn_api_refuse(key, "an object", v);
    return check_members(r, key, v, known);
}

/* OpenAI drops items from the beginning of the input, cinch drops tokens. */
static cn_status set_truncation(cn_api_request *r, const char *key, json_t *v)
{
    const char *name = json_string_value(v);
    if (name && strcmp(name, "disabled") == 0) return CN_OK;
    if (!name || strcmp(name, "auto") != 0)
        return cn_api_refuse(key, "\"auto\" or \"disabled\"", v);
    if (r->params.truncate_prompt == 0) r->params.truncate_prompt = CN_TRUNCATE_TO_ROOM;
    return CN_OK;
}

static cn_status set_reasoning(cn_api_request *r, const char *key, json_t *v)
{
    static const char *const known[] = {"effort", "summary", "generate_summary", "context", "mode",
                                        NULL};
    static const char *const summaries[] = {"auto", "concise", "detailed", "none", NULL};
    if (!json_is_object(v)) return cn_api_refuse(key, "an object", v);
    for (size_t i = 1; i <= 2; i++) {
        json_t *summary = json_object_get(v, known[i]);
        const char *name = json_string_value(summary);
        if (!summary || json_is_null(summary)) continue;
        if (!name || !cn_json_is_named(summaries, name))
            return cn_api_refuse("reasoning.summary", "\"auto\", \"concise\" or \"detailed\"",
                                 summary);
        r->summarizes = strcmp(name, "none") != 0;
    }
    return check_members(r, key, v, known);
}

static const struct field {
    const char *key;
    cn_status (*set)(cn_api_request *r, const char *key, json_t *v); /* NULL: it is read later */
} responses_fields[] = {
    {"include", set_include},
    {"input", NULL},
    {"instructions", NULL},
    {"max_output_tokens", NULL},
    {"max_tool_calls", NULL}, /* counts hosted tools alone */
    {"metadata", set_metadata},
    {"n", set_one},
    {"prompt_cache_options", NULL},
    {"reasoning", set_reasoning},
    {"stream_options", set_responses_stream_options},
    {"text", NULL},
    {"tools", NULL},
    {"truncation", set_truncation},
};

/* Refused unless they are false or empty. */
static const struct refused {
    const char *key, *instead;
} refused[] = {
    {"background", "cinch stores no responses: send it without background, or as a line of "
                   "/v1/batches"},
    {"context_management", "shorten the input in the client"},
    {"conversation", "cinch stores no conversations: send the items so far in input"},
    {"moderation", "cinch moderates nothing: send it without moderation"},
    {"previous_response_id", "cinch stores no responses: send the items so far in input, as "
                             "clients do with \"store\": false"},
    {"prompt", "cinch stores no prompt templates: send instructions and input"},
};

/* Members of chats that mean nothing here, and what means the same. */
static const struct refused others[] = {
    {"logprobs", "include"},
    {"max_completion_tokens", "max_output_tokens"},
    {"max_tokens", "max_output_tokens"},
    {"messages", "input"},
    {"reasoning_effort", "reasoning.effort"},
    {"response_format", "text.format"},
};

cn_status cn_responses_set(cn_api_request *r, const char *key, json_t *v, bool *known)
{
    *known = true;
    for (size_t i = 0; i < sizeof responses_fields / sizeof *responses_fields; i++)
        if (strcmp(key, responses_fields[i].key) == 0)
            return responses_fields[i].set ? responses_fields[i].set(r, key, v) : CN_OK;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(key, refused[i].key) == 0)
            return cn_responses_is_nothing(v) ? CN_OK
                               : cn_fail(CN_ERR_ARG, "%s: not supported, because %s", key,
                                         refused[i].instead);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char why[SHOWN_BYTES];
        if (strcmp(key, others[i].key) != 0) continue;
        snprintf(why, sizeof why, "unknown field (use %s)", others[i].instead);
        return cn_api_ignore(r->unknown, key, why, v, &r->warnings);
    }
    *known = false;
    return CN_OK;
}

/* ---- tools ---- */

static cn_status refuse_hosted(const char *where, const json_t *type)
{
    char shown[SHOWN_BYTES];
    return cn_fail(CN_ERR_ARG,
                   "%s: cinch runs no tools and has functions only, got type %s: send it as a "
                   "function tool, which the client runs",
                   where, cn_json_describe(type, shown, sizeof shown));
}

/* The function of a tool in the form of chats; a new reference. */
static cn_status read_tool(cn_api_request *r, const char *where, json_t *tool, json_t **out)
{
    static const char *const members[] = {"name", "description",   "parameters",     "strict",
                                          "type", "output_schema", "allowed_callers", NULL};
    enum { N_COPIED = 4 };
    const json_t *type = json_object_get(tool, "type");
    if (!json_is_object(tool) || !type) return cn_api_refuse(where, "a tool with a type", tool);
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)
        return refuse_hosted(where, type);
    if (json_string_length(json_object_get(tool, "name")) == 0)
        return cn_api_refuse(where, "a function with a name", tool);
    json_t *function = json_object();
    *out = json_pack("{s:s, s:o}", "type", "function", "function", function);
    if (!*out) return no_memory_for_key(where);
    for (size_t i = 0; i < N_COPIED; i++) {
        json_t *v = json_object_get(tool, members[i]);
        if (v && !json_is_null(v) && json_object_set(function, members[i], v) != 0)
            return no_memory_for_key(where);
    }
    return check_members(r, "tools[]", tool, members);
}

static cn_status read_tools(cn_api_request *r, const char *key, const json_t *v)
{
    json_t *list = json_array();
    cn_status status = list ? CN_OK : no_memory_for_key(key);
    if (!json_is_array(v)) status = cn_api_refuse(key, "an array of tools", v);
    for (size_t i = 0; status == CN_OK && i < json_array_size(v); i++) {
        char where[WHERE_BYTES];
        json_t *tool = NULL;
        snprintf(where, sizeof where, "tools[%zu]", i);
        status = read_tool(r, where, json_array_get(v, i), &tool);
        if (tool && json_array_append_new(list, tool) != 0) status = no_memory_for_key(key);
    }
    if (status == CN_OK) status = cn_api_chat_tools(r, key, list);
    json_decref(list);
    return status;
}

static bool names_tool(const json_t *list, const json_t *tool)
{
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    size_t i = 0;
    while (i < json_array_size(list) &&
           !json_equal(json_object_get(json_array_get(list, i), "name"), name))
        i++;
    return i < json_array_size(list);
}

/* Leaves the tools of r->chat that the list allows: the model does not see the others. */
static cn_status allow_tools(cn_api_request *r, const char *key, const json_t *list)
{
    json_t *left = json_array(), *tool;
    size_t i;
    bool ok = left != NULL;
    json_array_foreach(json_object_get(r->chat, "tools"), i, tool)
    {
        if (ok && names_tool(list, tool)) ok = json_array_append(left, tool) == 0;
    }
    const size_t n = json_array_size(left);
    if (ok) ok = json_object_set(r->chat, "tools", left) == 0;
    json_decref(left);
    if (!ok) return no_memory_for_key(key);
    return n > 0 && n == json_array_size(list)
               ? CN_OK
               : cn_api_refuse(key, "allowed tools that are among the tools", list);
}

/* tool_choice in the form of chats; a new reference. */
static cn_status read_choice(cn_api_request *r, const char *key, json_t *v, json_t **out)
{
    const json_t *type = json_object_get(v, "type");
    const char *name = json_string_value(type);
    static const char *const choices[] = {"none", "auto", "required", NULL};
    const char *const *modes = choices + 1;
    *out = NULL;
    if (!v || json_is_null(v)) return CN_OK;
    if (json_is_string(v) && cn_json_is_named(choices, json_string_value(v))) {
        *out = json_incref(v);
    } else if (name && strcmp(name, "function") == 0) {
        json_t *function = json_object_get(v, "name");
        if (!json_is_string(function)) return cn_api_refuse(key, "a function with a name", v);
        *out = json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", function);
    } else if (name && strcmp(name, "allowed_tools") == 0) {
        json_t *mode = json_object_get(v, "mode");
        if (!json_is_string(mode) || !cn_json_is_named(modes, json_string_value(mode)))
            return cn_api_refuse(key, "mode \"auto\" or \"required\"", v);
        CN_TRY(allow_tools(r, key, json_object_get(v, "tools")));
        *out = json_incref(mode);
    } else if (json_is_string(type)) {
        return refuse_hosted(key, type);
    } else {
        return cn_api_refuse(key,
                             "\"auto\", \"none\", \"required\" or {\"type\": \"function\", "
                             "\"name\": ...}",
                             v);
    }
    return *out ? CN_OK : no_memory_for_key(key);
}

static cn_status finish_tools(cn_api_request *r, json_t *body, cn_opt_tool_parser parser,
                              const char **key)
{
    const json_t *tools = set_responses_member(body, *key = "tools");
    json_t *choice = NULL;
    if (tools) CN_TRY(read_tools(r, *key, tools));
    *key = "tool_choice";
    cn_status status = read_choice(r, *key, json_object_get(body, *key), &choice);
    if (status == CN_OK) status = cn_api_finish_tools(r, choice, parser, key);
    json_decref(choice);
    return status;
}

/* ---- text ---- */

static cn_status read_schema(cn_api_request *r, const char *key, json_t *format)
{
    static const char *const members[] = {"name", "schema", "strict", "description", "type", NULL};
    enum { N_COPIED = 4 };
    json_t *schema = json_object_get(format, "schema"), *copy = json_object();
    json_t *chat = json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", copy);
    cn_status status = chat ? CN_OK : no_memory_for_key(key);
    if (!json_is_object(schema)) status = cn_api_refuse("text.format.schema", "an object", schema);
    if (status == CN_OK)
        status = check_members(r, "text.format", format, members);
    for (size_t i = 0; status == CN_OK && i < N_COPIED; i++) {
        json_t *v = json_object_get(format, members[i]);
        if (v && json_object_set(copy, members[i], v) != 0) status = no_memory_for_key(key);
    }
    if (status == CN_OK) status = cn_api_set_response_format(r, key, chat);
    json_decref(chat);
    return status;
}

static cn_status finish_text(cn_api_request *r, json_t *body, const char **key)
{
    static const char *const known[] = {"format", "verbosity", NULL};
    json_t *text = json_object_get(body, *key = "text"), *format = json_object_get(text, "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!text || json_is_null(text)) return CN_OK;
    if (!json_is_object(text)) return cn_api_refuse(*key, "an object", text);
    CN_TRY(check_members(r, *key, text, known));
    if (!format || json_is_null(format)) return CN_OK;
    if (type && strcmp(type, "json_schema") == 0) return read_schema(r, "text", format);
    if (type && (strcmp(type, "text") == 0 || strcmp(type, "json_object") == 0))
        return cn_api_set_response_format(r, "text", format);
    return cn_api_refuse("text.format",
                         "an object of type \"text\", \"json_object\" or \"json_schema\"", format);
}

/* ---- what the response repeats ---- */

/* A float as the shortest number that reads as it. */
static json_t *float_json(float x)
{
    char text[32];
    snprintf(text, sizeof text, "%.*g", FLOAT_DIGITS, (double)x);
    return json_real(strtod(text, NULL));
}

static json_t *repeated_text(json_t *body)
{
    json_t *text = json_object_get(body, "text");
    json_t *copy = json_is_object(text) ? json_copy(text) : json_object();
    if (copy && !set_responses_member(copy, "format"))
        json_object_set_new(copy, "format", json_pack("{s:s}", "type", "text"));
    return copy;
}

static json_t *repeated_reasoning(json_t *body)
{
    json_t *v = json_object_get(body, "reasoning");
    return json_pack("{s:O?, s:O?}", "effort", json_object_get(v, "effort"), "summary",
                     json_object_get(v, "summary"));
}

static cn_status repeat_responses(cn_api_request *r, json_t *body)
{
    static const struct {
        const char *key, *otherwise;
    } as_sent[] = {{"instructions", "null"},
                   {"max_output_tokens", "null"},
                   {"max_tool_calls", "null"},
                   {"metadata", "{}"},
                   {"parallel_tool_calls", "true"},
                   {"prompt_cache_key", "null"},
                   {"safety_identifier", "null"},
                   {"tool_choice", "\"auto\""},
                   {"tools", "[]"},
                   {"top_logprobs", "0"},
                   {"truncation", "\"disabled\""},
                   {"user", "null"}};
    const cn_sampling *s = &r->params.sampling;
    json_t *o = json_pack("{s:b, s:n, s:s, s:b, s:o, s:o, s:o, s:o}", "background", 0,
                          "previous_response_id", "service_tier", "default", "store", 0,
                          "temperature", float_json(s->temperature), "top_p", float_json(s->top_p),
                          "text", repeated_text(body), "reasoning", repeated_reasoning(body));
    bool ok = o != NULL;
    for (size_t i = 0; ok && i < sizeof as_sent / sizeof *as_sent; i++) {
        json_t *v = json_object_get(body, as_sent[i].key);
        v = v && !json_is_null(v) ? json_incref(v)
                                  : json_loads(as_sent[i].otherwise, JSON_DECODE_ANY, NULL);
        ok = json_object_set_new(o, as_sent[i].key, v) == 0;
    }
    char *text = ok ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(REPEATED_DIGITS)) : NULL;
    ok = text && cn_buf_add(&r->repeated, text + 1, strlen(text) - 2) == CN_OK;
    free(text);
    json_decref(o);
    return ok ? CN_OK : no_memory_for_key("a response");
}

/* ---- after all members ---- */

static cn_status finish_logprobs(cn_api_request *r, json_t *body, const char **key)
{
    const json_t *v = set_responses_member(body, *key = "top_logprobs");
    cn_sampling *s = &r->params.sampling;
    char want[SHOWN_BYTES];
    int64_t n;
    if (!v) return CN_OK;
    snprintf(want, sizeof want, "a whole number from 0 to %d", CN_MAX_LOGPROBS);
    if (!cn_json_as_i64(v, 0, CN_MAX_LOGPROBS, &n)) return cn_api_refuse(*key, want, v);
    if (n > 0 && s->logprobs < 0)
        return cn_fail(CN_ERR_ARG, "%s: needs \"include\": [\"message.output_text.logprobs\"]",
                       *key);
    if (s->logprobs >= 0) s->logprobs = (int32_t)n;
    return CN_OK;
}

cn_status cn_responses_finish(cn_api_request *r, json_t *body, cn_opt_tool_parser parser,
                              const char **key)
{
    json_t *input = json_object_get(body, *key = "input");
    if (!input || json_is_null(input)) return cn_fail(CN_ERR_ARG, "%s: missing", *key);
    CN_TRY(cn_responses_messages(r, json_object_get(body, "instructions"), input));
    *key = "max_output_tokens";
    CN_TRY(cn_api_set_length(r, "max_output_tokens", json_object_get(body, *key)));
    CN_TRY(finish_logprobs(r, body, key));
    CN_TRY(finish_text(r, body, key));
    CN_TRY(finish_tools(r, body, parser, key));
    json_t *effort = json_object_get(json_object_get(body, *key = "reasoning"), "effort");
    if (effort && !json_is_null(effort)) CN_TRY(cn_api_set_effort(r, "reasoning.effort", effort));
    *key = "continue_final_message";
    CN_TRY(cn_api_chat_check(r->chat));
    r->params.chat = r->chat;
    return repeat_responses(r, body);
}
