/* api_chat.c - messages and other variables of the chat template. See api_chat.h. */
#include "engine/api/api_chat.h"

#include "engine/base/json.h"

enum { SHOWN_BYTES = 96, WHERE_BYTES = 128, MAX_ARGUMENT_DEPTH = 32 };

static cn_status put_chat_key(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0
               ? CN_OK
               : cn_fail(CN_ERR_MEMORY, "out of memory for %s", key);
}

static cn_status unsupported(const char *where, const char *member)
{
    char shown[SHOWN_BYTES];
    return cn_fail(CN_ERR_ARG, "%s: member '%s' is not supported", where,
                   cn_json_printable(member, shown, sizeof shown));
}

static bool is_nothing(const json_t *v)
{
    return !v || json_is_null(v) || (json_is_array(v) && json_array_size(v) == 0);
}

static bool is_reasoning(const char *key)
{
    return strcmp(key, "reasoning_content") == 0 || strcmp(key, "reasoning") == 0;
}

/* ---- messages ---- */

enum { SYSTEM = 1, USER = 2, ASSISTANT = 4, TOOL = 8, ALL = 15 };

/* "developer" is OpenAI's newer name for the role that chat templates call "system". */
static const struct role {
    const char *sent, *is;
    unsigned bit;
} roles[] = {{"system", "system", SYSTEM},
             {"developer", "system", SYSTEM},
             {"user", "user", USER},
             {"assistant", "assistant", ASSISTANT},
             {"tool", "tool", TOOL}};

/* The members of a message, and the roles that may have them. Some change the meaning of a message
 * and are not supported. */
static const struct {
    const char *name;
    unsigned roles;
} members[] = {
    {"role", ALL},
    {"content", ALL},
    {"name", ALL},
    {"reasoning_content", ASSISTANT},
    {"reasoning", ASSISTANT},
    {"tool_calls", ASSISTANT},
    {"tool_call_id", TOOL},
    {"function_call", 0},
    {"audio", 0},
};

/* Unknown members are those of clients, such as litellm's provider_specific_fields. */
static cn_status check_chat_members(cn_api_request *r, const char *where, json_t *message,
                                    unsigned role)
{
    const char *key;
    json_t *v;
    json_object_foreach(message, key, v)
    {
        char name[SHOWN_BYTES];
        size_t i = 0, n = sizeof members / sizeof *members;
        while (i < n && strcmp(key, members[i].name) != 0) i++;
        if (is_nothing(v) || (i < n && members[i].roles & role)) continue;
        if (i < n) return unsupported(where, key);
        snprintf(name, sizeof name, "messages[].%.64s", key);
        CN_TRY(cn_api_unknown_take(r->unknown, name, v, &r->warnings));
    }
    return CN_OK;
}

/* The reasoning of an assistant message, under either of vLLM's two names for it. */
static cn_status read_reasoning(const char *where, json_t *message, json_t *out)
{
    const char *key;
    json_t *v, *found = NULL;
    json_object_foreach(message, key, v)
    {
        if (!is_reasoning(key) || json_is_null(v)) continue;
        if (!json_is_string(v)) return cn_api_refuse(where, "reasoning as a string", v);
        if (found && !json_equal(found, v))
            return cn_fail(CN_ERR_ARG,
                           "%s: reasoning and reasoning_content differ: send one of them", where);
        found = v;
    }
    if (!found) return CN_OK;
    CN_TRY(put_chat_key(out, "reasoning_content", json_incref(found)));
    return put_chat_key(out, "reasoning", json_incref(found));
}

static cn_status read_chat_content(const char *where, json_t *content, json_t *out)
{
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") != 0 || !json_is_string(json_object_get(part, "text")))
            return cn_api_refuse(where, "only parts of {\"type\": \"text\", \"text\": ...}",
                                 json_is_object(part) && type ? json_object_get(part, "type")
                                                              : part);
    }
    if (!content) return cn_fail(CN_ERR_ARG, "%s: content is missing", where);
    if (!json_is_string(content) && !json_is_array(content))
        return cn_api_refuse(where, "content as a string or text parts", content);
    return put_chat_key(out, "content", json_incref(content));
}

static cn_status read_chat_string(const char *where, json_t *object, const char *key, json_t *out)
{
    char place[WHERE_BYTES + 16];
    json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return CN_OK;
    snprintf(place, sizeof place, "%s.%s", where, key);
    return json_is_string(v) ? put_chat_key(out, key, json_incref(v))
                             : cn_api_refuse(place, "a string", v);
}

/* Arguments are sent as JSON text. Templates expect the object. A model may have written text that
 * is not JSON, which stays text. */
static cn_status read_arguments(const char *where, json_t *arguments, json_t *function)
{
    json_t *value = NULL;
    if (!arguments || json_is_null(arguments) ||
        (json_is_string(arguments) && !json_string_length(arguments)))
        value = json_object();
    else if (!json_is_object(arguments) && !json_is_string(arguments))
        return cn_api_refuse(where, "arguments as the text of a JSON object", arguments);
    else if (json_is_object(arguments) ||
             cn_json_parse(&value, json_string_value(arguments), json_string_length(arguments),
                           where, SIZE_MAX, MAX_ARGUMENT_DEPTH, CN_ERR_ARG) != CN_OK)
        value = json_incref(arguments);
    return put_chat_key(function, "arguments", value);
}

static cn_status read_tool_call(const char *where, json_t *call, json_t *out)
{
    json_t *function = json_object_get(call, "function"), *copy = json_object();
    json_t *name = json_object_get(function, "name");
    const json_t *type = json_object_get(call, "type");
    const char *type_name = json_string_value(type);
    CN_TRY(put_chat_key(out, "type", json_string("function")));
    CN_TRY(put_chat_key(out, "function", copy));
    if (type && !json_is_null(type) && (!type_name || strcmp(type_name, "function") != 0))
        return cn_api_refuse(where, "type \"function\"", type);
    if (!json_is_string(name)) return cn_api_refuse(where, "a function with a name", call);
    CN_TRY(read_chat_string(where, call, "id", out));
    CN_TRY(put_chat_key(copy, "name", json_incref(name)));
    return read_arguments(where, json_object_get(function, "arguments"), copy);
}

static cn_status read_tool_calls(const char *message, json_t *calls, json_t *out)
{
    size_t i;
    json_t *call, *list = json_array();
    if (is_nothing(calls)) {
        json_decref(list);
        return CN_OK;
    }
    CN_TRY(put_chat_key(out, "tool_calls", list));
    if (!json_is_array(calls)) return cn_api_refuse(message, "tool_calls as an array", calls);
    json_array_foreach(calls, i, call)
    {
        char where[WHERE_BYTES];
        json_t *copy = json_object();
        snprintf(where, sizeof where, "%s.tool_calls[%zu]", message, i);
        if (json_array_append_new(list, copy) != 0)
            return cn_fail(CN_ERR_MEMORY, "out of memory for %s", where);
        CN_TRY(read_tool_call(where, call, copy));
    }
    return CN_OK;
}

static cn_status read_message(cn_api_request *r, json_t *list, size_t i, json_t *message)
{
    const struct role *role = NULL;
    char where[WHERE_BYTES / 2];
    json_t *out = json_object(), *sent = json_object_get(message, "role");
    snprintf(where, sizeof where, "messages[%zu]", i);
    if (json_array_append_new(list, out) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for %s", where);
    if (!json_is_object(message)) return cn_api_refuse(where, "an object", message);
    for (size_t k = 0; json_is_string(sent) && k < sizeof roles / sizeof *roles; k++)
        if (strcmp(json_string_value(sent), roles[k].sent) == 0) role = &roles[k];
    if (!sent) return cn_fail(CN_ERR_ARG, "%s: role is missing", where);
    if (!role)
        return cn_api_refuse(
            where, "role \"system\", \"developer\", \"user\", \"assistant\" or \"tool\"", sent);
    CN_TRY(check_chat_members(r, where, message, role->bit));
    CN_TRY(put_chat_key(out, "role", json_string(role->is)));
    json_t *calls = json_object_get(message, "tool_calls");
    const json_t *content = json_object_get(message, "content");
    const bool is_answer = role->bit == ASSISTANT, is_empty = !content || json_is_null(content);
    const bool has_other = !is_nothing(calls) ||
                           !is_nothing(json_object_get(message, "reasoning")) ||
                           !is_nothing(json_object_get(message, "reasoning_content"));
    if (is_answer && is_empty)
        CN_TRY(put_chat_key(out, "content", has_other ? json_null() : json_string("")));
    else
        CN_TRY(read_chat_content(where, json_object_get(message, "content"), out));
    CN_TRY(read_chat_string(where, message, "name", out));
    CN_TRY(read_chat_string(where, message, "tool_call_id", out));
    if (role->bit != ASSISTANT) return CN_OK;
    CN_TRY(read_reasoning(where, message, out));
    return read_tool_calls(where, calls, out);
}

cn_status cn_api_chat_messages(cn_api_request *r, const char *key, json_t *v)
{
    json_t *list = json_array();
    CN_TRY(put_chat_key(r->chat, "messages", list));
    if (json_array_size(v) == 0) return cn_api_refuse(key, "an array of messages, at least one", v);
    for (size_t i = 0; i < json_array_size(v); i++)
        CN_TRY(read_message(r, list, i, json_array_get(v, i)));
    return CN_OK;
}

/* ---- other variables ---- */

cn_status cn_api_chat_documents(cn_api_request *r, const char *key, json_t *v)
{
    size_t i;
    json_t *document;
    if (!json_is_array(v)) return cn_api_refuse(key, "an array of objects", v);
    json_array_foreach(v, i, document) if (!json_is_object(document)) return cn_api_refuse(
        key, "an array of objects", document);
    return put_chat_key(r->chat, "documents", json_incref(v));
}

cn_status cn_api_chat_switch(cn_api_request *r, const char *key, json_t *v)
{
    if (!json_is_boolean(v)) return cn_api_refuse(key, "true or false", v);
    return put_chat_key(r->chat, key, json_incref(v));
}

/* Variables that only some templates have, such as enable_thinking. */
cn_status cn_api_chat_kwargs(cn_api_request *r, const char *key, json_t *v)
{
    static const char *const fields[] = {"messages", "tools", "documents", "add_generation_prompt",
                                         "continue_final_message", NULL};
    const char *name;
    json_t *value;
    if (!json_is_object(v)) return cn_api_refuse(key, "an object", v);
    json_object_foreach(v, name, value)
    {
        if (cn_json_is_named(fields, name))
            return cn_fail(CN_ERR_ARG, "%s: %s is a field of the body: set it there", key, name);
        /* null means "not set", as elsewhere in a body. */
        if (json_is_null(value)) continue;
        if (strcmp(name, "enable_thinking") == 0 && !json_is_boolean(value))
            return cn_api_refuse("chat_template_kwargs.enable_thinking", "true or false", value);
        CN_TRY(put_chat_key(r->chat, name, json_incref(value)));
    }
    return CN_OK;
}

/* [{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}] */
cn_status cn_api_chat_tools(cn_api_request *r, const char *key, json_t *v)
{
    size_t i;
    json_t *tool;
    if (!json_is_array(v)) return cn_api_refuse(key, "an array of tools", v);
    if (json_array_size(v) == 0) return CN_OK;
    json_array_foreach(v, i, tool)
    {
        char where[WHERE_BYTES];
        const json_t *function = json_object_get(tool, "function");
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *parameters = json_object_get(function, "parameters");
        snprintf(where, sizeof where, "tools[%zu]", i);
        if (!type || strcmp(type, "function") != 0)
            return cn_api_refuse(where, "{\"type\": \"function\", \"function\": ...}", tool);
        if (json_string_length(json_object_get(function, "name")) == 0)
            return cn_api_refuse(where, "a function with a name", tool);
        if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
            return cn_api_refuse(where, "parameters as a JSON schema", parameters);
    }
    return put_chat_key(r->chat, "tools", json_incref(v));
}

cn_status cn_api_chat_check(const json_t *variables)
{
    const json_t *prompt = json_object_get(variables, "add_generation_prompt");
    const json_t *continues = json_object_get(variables, "continue_final_message");
    if (json_is_true(continues) && !json_is_false(prompt))
        return cn_fail(CN_ERR_ARG,
                       "continue_final_message: needs \"add_generation_prompt\": false");
    return CN_OK;
}

cn_status cn_api_refuse(const char *key, const char *want, const json_t *found)
{
    char shown[SHOWN_BYTES];
    return cn_fail(CN_ERR_ARG, "%s: expected %s, got %s", key, want,
                   cn_json_describe(found, shown, sizeof shown));
}
