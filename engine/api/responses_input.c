/* responses_input.c - see responses_input.h. */
#include "engine/api/responses_input.h"

#include "engine/api/api_chat.h"
#include "engine/base/json.h"

enum { SHOWN_BYTES = 96, WHERE_BYTES = 64, PLACE_BYTES = 96 };

typedef struct reader {
    json_t *messages; /* in the form of a chat body */
    json_t *turn;     /* the assistant message that the next item may continue; NULL: none */
    cn_api_request *request;
} reader;

static cn_status responses_out_of_memory(void)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for the input");
}

static cn_status put_input_key(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0 ? CN_OK : responses_out_of_memory();
}

bool cn_responses_is_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

/* Appends a message and makes it *out. */
static cn_status add_message(reader *in, const char *role, json_t **out)
{
    json_t *message = json_pack("{s:s}", "role", role);
    if (!message || json_array_append_new(in->messages, message) != 0)
        return responses_out_of_memory();
    *out = message;
    return CN_OK;
}

/* Takes note of the members of an item or part that cinch does not know. known: ends with NULL. */
static cn_status check_responses_members(reader *in, const json_t *object, const char *place,
                                         const char *const *known)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        char name[SHOWN_BYTES];
        if (cn_json_is_named(known, key) || cn_responses_is_nothing(v)) continue;
        snprintf(name, sizeof name, "%s.%.64s", place, key);
        CN_TRY(cn_api_unknown_take(in->request->unknown, name, v, &in->request->warnings));
    }
    return CN_OK;
}

/* ---- parts of a content ---- */

static const struct part_type {
    const char *type, *member; /* NULL: not supported */
} part_types[] = {
    {"input_text", "text"}, {"output_text", "text"},  {"text", "text"},
    {"refusal", "refusal"}, {"summary_text", "text"}, {"reasoning_text", "text"},
    {"input_image", NULL},  {"input_file", NULL},     {"input_audio", NULL},
};

/* *text: borrowed from the part. */
static cn_status read_part(reader *in, const char *where, json_t *part, json_t **text)
{
    static const char *const known[] = {
        "type", "text", "refusal", "annotations", "logprobs", "prompt_cache_breakpoint", NULL};
    const json_t *type = json_object_get(part, "type");
    const char *name = json_string_value(type);
    size_t i = 0, n = sizeof part_types / sizeof *part_types;
    while (name && i < n && strcmp(name, part_types[i].type) != 0) i++;
    if (!name || i == n)
        return cn_api_refuse(where, "a part of type \"input_text\" or \"output_text\"",
                             type ? type : part);
    if (!part_types[i].member)
        return cn_fail(CN_ERR_ARG,
                       "%s: type \"%s\" is not supported: cinch reads text, send parts of type "
                       "\"input_text\"",
                       where, name);
    *text = json_object_get(part, part_types[i].member);
    if (!json_is_string(*text)) return cn_api_refuse(where, "a part with a text", part);
    return check_responses_members(in, part, "input[].content[]", known);
}

/* Appends the texts of an array of parts, or a text, to `out`. */
static cn_status join_responses_parts(reader *in, const char *where, json_t *v, const char *between,
                                      cn_buf *out)
{
    size_t i;
    json_t *part, *text = v;
    if (!json_is_string(v) && !json_is_array(v))
        return cn_api_refuse(where, "a string or an array of parts", v);
    if (json_is_string(v)) return cn_buf_add(out, json_string_value(v), json_string_length(v));
    json_array_foreach(v, i, part)
    {
        char place[PLACE_BYTES];
        snprintf(place, sizeof place, "%s[%zu]", where, i);
        CN_TRY(read_part(in, place, part, &text));
        if (out->len > 0) CN_TRY(cn_buf_add(out, between, strlen(between)));
        CN_TRY(cn_buf_add(out, json_string_value(text), json_string_length(text)));
    }
    return CN_OK;
}

/* A text, or text parts in the form of a chat. *out: a new reference. */
static cn_status read_responses_content(reader *in, const char *where, json_t *v, json_t **out)
{
    size_t i;
    json_t *part, *text;
    if (!json_is_string(v) && !json_is_array(v))
        return cn_api_refuse(where, "a string or an array of parts", v);
    *out = json_is_string(v) ? json_incref(v) : json_array();
    if (!*out) return responses_out_of_memory();
    json_array_foreach(v, i, part)
    {
        char place[PLACE_BYTES];
        snprintf(place, sizeof place, "%s[%zu]", where, i);
        CN_TRY(read_part(in, place, part, &text));
        json_t *copy = json_pack("{s:s, s:O}", "type", "text", "text", text);
        if (!copy || json_array_append_new(*out, copy) != 0) return responses_out_of_memory();
    }
    return CN_OK;
}

static cn_status set_content(reader *in, const char *item, const char *member, json_t *v,
                             json_t *message)
{
    char where[WHERE_BYTES];
    json_t *content = NULL;
    snprintf(where, sizeof where, "%s.%s", item, member);
    if (!v) return cn_fail(CN_ERR_ARG, "%s: missing", where);
    const cn_status status = read_responses_content(in, where, v, &content);
    if (status == CN_OK) return put_input_key(message, "content", content);
    json_decref(content);
    return status;
}

/* ---- items ---- */

/* Appends text to a member of the open assistant message. */
static cn_status add_responses_text(json_t *message, const char *key, const char *between,
                                    cn_buf *text)
{
    const json_t *old = json_object_get(message, key);
    cn_buf all = {0};
    cn_status status = cn_buf_add(&all, "", 0);
    if (status == CN_OK && json_is_string(old))
        status = cn_buf_add(&all, json_string_value(old), json_string_length(old));
    if (status == CN_OK && all.len > 0) status = cn_buf_add(&all, between, strlen(between));
    if (status == CN_OK && text->len > 0) status = cn_buf_add(&all, text->data, text->len);
    if (status == CN_OK) status = put_input_key(message, key, json_stringn(all.data, all.len));
    cn_buf_free(&all);
    return status;
}

/* Two messages in a row are two turns. A message after calls continues theirs. */
static cn_status take_assistant(reader *in, const char *where, json_t *content)
{
    char place[WHERE_BYTES];
    cn_buf text = {0};
    snprintf(place, sizeof place, "%s.content", where);
    if (in->turn && json_object_get(in->turn, "content") &&
        !json_object_get(in->turn, "tool_calls"))
        in->turn = NULL;
    if (!in->turn) CN_TRY(add_message(in, "assistant", &in->turn));
    if (!content || json_is_null(content)) return CN_OK;
    cn_status status = join_responses_parts(in, place, content, "", &text);
    if (status == CN_OK) status = add_responses_text(in->turn, "content", "", &text);
    cn_buf_free(&text);
    return status;
}

static cn_status take_message(reader *in, const char *where, json_t *item)
{
    static const char *const roles[] = {"user", "system", "developer", NULL};
    json_t *message = NULL, *content = json_object_get(item, "content");
    const json_t *role = json_object_get(item, "role");
    const char *name = json_string_value(role);
    if (name && strcmp(name, "assistant") == 0) return take_assistant(in, where, content);
    in->turn = NULL;
    if (name && cn_json_is_named(roles, name)) {
        CN_TRY(add_message(in, name, &message));
        return set_content(in, where, "content", content, message);
    }
    if (!role) return cn_fail(CN_ERR_ARG, "%s: role is missing", where);
    return cn_api_refuse(where, "role \"user\", \"assistant\", \"system\" or \"developer\"", role);
}

/* Reasoning begins a turn, unless reasoning alone came before it. */
static cn_status take_reasoning(reader *in, const char *where, json_t *item)
{
    json_t *content = json_object_get(item, "content"), *summary = json_object_get(item, "summary");
    json_t *encrypted = json_object_get(item, "encrypted_content");
    const bool has_text = !cn_responses_is_nothing(content);
    char place[WHERE_BYTES];
    cn_buf text = {0};
    snprintf(place, sizeof place, "%s.%s", where, has_text ? "content" : "summary");
    if (!has_text && cn_responses_is_nothing(summary)) {
        if (cn_responses_is_nothing(encrypted)) return CN_OK;
        return cn_api_ignore(in->request->unknown, "input[].encrypted_content",
                             "cinch cannot read it and needs content or a summary", encrypted,
                             &in->request->warnings);
    }
    if (in->turn &&
        (json_object_get(in->turn, "content") || json_object_get(in->turn, "tool_calls")))
        in->turn = NULL;
    cn_status status = join_responses_parts(in, place, has_text ? content : summary, "\n", &text);
    if (status == CN_OK && !in->turn) status = add_message(in, "assistant", &in->turn);
    if (status == CN_OK) status = add_responses_text(in->turn, "reasoning_content", "\n", &text);
    cn_buf_free(&text);
    return status;
}

static cn_status take_function_call(reader *in, const char *where, json_t *item)
{
    json_t *name = json_object_get(item, "name"), *arguments = json_object_get(item, "arguments");
    json_t *id = json_object_get(item, "call_id"), *calls;
    if (json_string_length(name) == 0) return cn_api_refuse(where, "a call with a name", item);
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments) &&
        !json_is_null(arguments))
        return cn_api_refuse(where, "arguments as the text of a JSON object", arguments);
    if (id && !json_is_string(id) && !json_is_null(id))
        return cn_api_refuse(where, "call_id as a string", id);
    if (!in->turn) CN_TRY(add_message(in, "assistant", &in->turn));
    calls = json_object_get(in->turn, "tool_calls");
    if (!calls) {
        CN_TRY(put_input_key(in->turn, "tool_calls", json_array()));
        calls = json_object_get(in->turn, "tool_calls");
    }
    json_t *call =
        json_pack("{s:s, s:O*, s:{s:O, s:O*}}", "type", "function", "id",
                  json_is_string(id) ? id : NULL, "function", "name", name, "arguments", arguments);
    return call && json_array_append_new(calls, call) == 0 ? CN_OK : responses_out_of_memory();
}

static cn_status take_responses_output(reader *in, const char *where, json_t *item)
{
    json_t *id = json_object_get(item, "call_id"), *message = NULL;
    in->turn = NULL;
    if (id && !json_is_string(id) && !json_is_null(id))
        return cn_api_refuse(where, "call_id as a string", id);
    CN_TRY(add_message(in, "tool", &message));
    if (json_is_string(id)) CN_TRY(put_input_key(message, "tool_call_id", json_incref(id)));
    return set_content(in, where, "output", json_object_get(item, "output"), message);
}

static const char *const message_members[] = {"type",   "role",  "content", "id",
                                              "status", "phase", NULL};
static const char *const reasoning_members[] = {
    "type", "id", "summary", "content", "status", "encrypted_content", NULL};
static const char *const call_members[] = {"type",      "id",     "call_id", "name",
                                           "arguments", "status", NULL};
static const char *const output_members[] = {"type",   "id",     "call_id", "name",
                                             "output", "status", NULL};

static const struct item_type {
    const char *type;
    cn_status (*take)(reader *in, const char *where, json_t *item);
    const char *const *members;
} item_types[] = {
    {"message", take_message, message_members},
    {"reasoning", take_reasoning, reasoning_members},
    {"function_call", take_function_call, call_members},
    {"function_call_output", take_responses_output, output_members},
};

static cn_status refuse_reference(const char *where)
{
    return cn_fail(CN_ERR_ARG,
                   "%s: item_reference is not supported, because cinch stores no items: send the "
                   "item itself, as clients do with \"store\": false",
                   where);
}

/* The items of hosted and custom tools, and of what the server would have to store. */
static cn_status refuse_type(const char *where, const json_t *type)
{
    static const char *const others[] = {"web_search_call",
                                         "file_search_call",
                                         "computer_call",
                                         "computer_call_output",
                                         "code_interpreter_call",
                                         "image_generation_call",
                                         "local_shell_call",
                                         "local_shell_call_output",
                                         "shell_call",
                                         "shell_call_output",
                                         "apply_patch_call",
                                         "apply_patch_call_output",
                                         "mcp_list_tools",
                                         "mcp_approval_request",
                                         "mcp_approval_response",
                                         "mcp_call",
                                         "custom_tool_call",
                                         "custom_tool_call_output",
                                         "tool_search_call",
                                         "tool_search_output",
                                         "additional_tools",
                                         "compaction",
                                         "compaction_trigger",
                                         "program",
                                         "program_output",
                                         "configuration_update",
                                         NULL};
    if (cn_json_is_named(others, json_string_value(type)))
        return cn_fail(CN_ERR_ARG,
                       "%s: type \"%s\" is not supported: send function_call and "
                       "function_call_output items, or the text as a message",
                       where, json_string_value(type));
    return cn_api_refuse(where,
                         "type \"message\", \"reasoning\", \"function_call\" or "
                         "\"function_call_output\"",
                         type);
}

static cn_status take_responses_item(reader *in, size_t i, json_t *item)
{
    char where[WHERE_BYTES / 2];
    json_t *type = json_object_get(item, "type");
    snprintf(where, sizeof where, "input[%zu]", i);
    if (!json_is_object(item)) return cn_api_refuse(where, "an object", item);
    if (!type || json_is_null(type)) {
        if (!json_object_get(item, "role") && json_object_get(item, "id"))
            return refuse_reference(where);
        CN_TRY(check_responses_members(in, item, "input[]", message_members));
        return take_message(in, where, item);
    }
    const char *name = json_string_value(type);
    if (!name) return cn_api_refuse(where, "type as a string", type);
    if (strcmp(name, "item_reference") == 0) return refuse_reference(where);
    for (size_t k = 0; k < sizeof item_types / sizeof *item_types; k++) {
        if (strcmp(name, item_types[k].type) != 0) continue;
        CN_TRY(check_responses_members(in, item, "input[]", item_types[k].members));
        return item_types[k].take(in, where, item);
    }
    return refuse_type(where, type);
}

static cn_status take_input(reader *in, json_t *instructions, json_t *input)
{
    json_t *message = NULL, *item;
    char shown[SHOWN_BYTES];
    size_t i;
    if (instructions && !json_is_null(instructions)) {
        if (!json_is_string(instructions))
            return cn_fail_param("instructions", "instructions: expected a string, got %s",
                                 cn_json_describe(instructions, shown, sizeof shown));
        CN_TRY(add_message(in, "system", &message));
        CN_TRY(put_input_key(message, "content", json_incref(instructions)));
    }
    if (json_is_string(input)) {
        CN_TRY(add_message(in, "user", &message));
        return put_input_key(message, "content", json_incref(input));
    }
    if (!json_is_array(input))
        return cn_api_refuse("input", "a string or an array of items", input);
    json_array_foreach(input, i, item) CN_TRY(take_responses_item(in, i, item));
    if (json_array_size(in->messages) == 0)
        return cn_api_refuse("input", "a string or items, at least one message", input);
    return CN_OK;
}

cn_status cn_responses_messages(cn_api_request *r, json_t *instructions, json_t *input)
{
    reader in = {.request = r, .messages = json_array()};
    if (!in.messages) return responses_out_of_memory();
    cn_status status = take_input(&in, instructions, input);
    if (status == CN_OK) status = cn_api_chat_messages(r, "input", in.messages);
    json_decref(in.messages);
    return status;
}
