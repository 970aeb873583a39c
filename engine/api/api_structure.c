/* api_structure.c - see api_structure.h. */
#include "engine/api/api_structure.h"

#include <stdlib.h>

#include "engine/api/api_chat.h"
#include "engine/api/api_tools.h"
#include "engine/api/api_unknown.h"
#include "engine/base/json.h"

enum { SHOWN_BYTES = 96 };

/* Takes the text, a new string. */
static cn_status set_text(cn_api_request *r, const char *key, cn_structure_kind kind, json_t *text)
{
    if (!text || json_array_append_new(r->keep, text) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for %s", key);
    r->params.structure = (cn_structure){.kind = kind, .text = json_string_value(text)};
    r->structure_key = key;
    return CN_OK;
}

static cn_status refuse_second(const cn_api_request *r, const char *key)
{
    if (r->params.structure.kind == CN_STRUCTURE_NONE) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "%s: the request asks for another structure too: expected one of "
                   "response_format, structured_outputs with one structure, and a tool_choice that "
                   "requires calls",
                   key);
}

static cn_status set_json(cn_api_request *r, const char *key, cn_structure_kind kind,
                          const json_t *v)
{
    char *dumped = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_t *text = dumped ? json_string(dumped) : NULL;
    free(dumped);
    return set_text(r, key, kind, text);
}

/* Sets the structure; its text is the JSON of v, or v itself if it is a string. */
static cn_status set(cn_api_request *r, const char *key, cn_structure_kind kind, const json_t *v)
{
    CN_TRY(refuse_second(r, key));
    if (json_is_string(v)) return set_text(r, key, kind, json_string(json_string_value(v)));
    return set_json(r, key, kind, v);
}

/* {"name": ..., "schema": {...}, "strict": true, "description": ...} */
static cn_status set_json_schema(cn_api_request *r, const char *key, json_t *format)
{
    static const char where[] = "response_format.json_schema";
    static const char *const members[] = {"name", "schema", "strict", "description", NULL};
    json_t *v = json_object_get(format, "json_schema"), *value;
    const char *member;
    if (!json_is_object(v)) return cn_api_refuse(where, "an object with the schema", v);
    json_object_foreach(v, member, value)
    {
        char shown[SHOWN_BYTES];
        if (!cn_json_is_named(members, member))
            return cn_fail(CN_ERR_ARG,
                           "%s: unknown member '%s': expected name, schema, strict and "
                           "description",
                           where, cn_json_printable(member, shown, sizeof shown));
    }
    json_t *schema = json_object_get(v, "schema"), *strict = json_object_get(v, "strict");
    if (!json_is_object(schema))
        return cn_api_refuse("response_format.json_schema.schema", "an object", schema);
    if (strict && !json_is_boolean(strict) && !json_is_null(strict))
        return cn_api_refuse("response_format.json_schema.strict", "true or false", strict);
    CN_TRY(set(r, key, CN_STRUCTURE_SCHEMA, schema));
    r->params.structure.strict = json_is_true(strict);
    return CN_OK;
}

/* A form of vLLM and xgrammar. key: the member that asks for it. */
static cn_status refuse_structural_tag(const char *key)
{
    return cn_fail(CN_ERR_ARG,
                   "%s: structural_tag is not supported: use tool_choice with tools, or "
                   "structured_outputs.grammar",
                   key);
}

cn_status cn_api_set_response_format(cn_api_request *r, const char *key, json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    const char *member;
    json_t *value;
    if (!type) return cn_api_refuse(key, "an object with a type", v);
    if (strcmp(type, "structural_tag") == 0) return refuse_structural_tag(key);
    const bool schema = strcmp(type, "json_schema") == 0;
    json_object_foreach(v, member, value)
    {
        char shown[SHOWN_BYTES];
        if (strcmp(member, "type") != 0 && !(schema && strcmp(member, "json_schema") == 0) &&
            !json_is_null(value))
            return cn_fail(CN_ERR_ARG, "%s: unknown member '%s' of type %s", key,
                           cn_json_printable(member, shown, sizeof shown), type);
    }
    if (schema) return set_json_schema(r, key, v);
    if (strcmp(type, "json_object") == 0) return set(r, key, CN_STRUCTURE_JSON, v);
    if (strcmp(type, "text") == 0) return CN_OK;
    return cn_api_refuse("response_format.type", "text, json_object or json_schema",
                         json_object_get(v, "type"));
}

/* Reads disable_any_whitespace and whitespace_pattern. *out: whether one is there. */
static cn_status read_whitespace(cn_api_request *r, const json_t *v, bool *out)
{
    json_t *disable = json_object_get(v, "disable_any_whitespace");
    json_t *pattern = json_object_get(v, "whitespace_pattern");
    if (disable && !json_is_boolean(disable) && !json_is_null(disable))
        return cn_api_refuse("structured_outputs.disable_any_whitespace", "true or false", disable);
    if (pattern && !json_is_string(pattern) && !json_is_null(pattern))
        return cn_api_refuse("structured_outputs.whitespace_pattern", "a string", pattern);
    *out = json_is_boolean(disable) || json_is_string(pattern);
    if (*out) r->whitespace_set = true;
    if (json_is_boolean(disable))
        r->whitespace = json_is_true(disable) ? NULL : CN_JSON_WHITESPACE_ANY;
    if (!json_is_string(pattern)) return CN_OK;
    if (json_is_true(disable))
        return cn_fail(CN_ERR_ARG, "structured_outputs: expected disable_any_whitespace true or a "
                                   "whitespace_pattern, got both");
    r->whitespace = json_string_value(pattern);
    return json_array_append(r->keep, pattern) == 0
               ? CN_OK
               : cn_fail(CN_ERR_MEMORY, "out of memory for structured_outputs");
}

cn_status cn_api_finish_structure(cn_api_request *r, const char *key)
{
    cn_structure *s = &r->params.structure;
    const bool json = s->kind == CN_STRUCTURE_JSON || s->kind == CN_STRUCTURE_SCHEMA ||
                      s->kind == CN_STRUCTURE_CALLS;
    if (json) s->whitespace = r->whitespace;
    if (json || !r->whitespace_set) return CN_OK;
    return cn_api_ignore(r->unknown, key, "its white space concerns forced JSON only", NULL,
                         &r->warnings);
}

cn_status cn_api_set_structured_outputs(cn_api_request *r, const char *key, json_t *v)
{
    const char *member;
    json_t *value;
    bool has_structure = false, has_space = false;
    if (!json_is_object(v)) return cn_api_refuse(key, "an object", v);
    CN_TRY(read_whitespace(r, v, &has_space));
    json_object_foreach(v, member, value)
    {
        if (json_is_null(value) || json_is_false(value)) continue;
        if (!strcmp(member, "disable_any_whitespace") || !strcmp(member, "whitespace_pattern"))
            continue;
        cn_structure_kind kind = CN_STRUCTURE_NONE;
        if (!strcmp(member, "json")) kind = CN_STRUCTURE_SCHEMA;
        if (!strcmp(member, "regex")) kind = CN_STRUCTURE_REGEX;
        if (!strcmp(member, "grammar")) kind = CN_STRUCTURE_GRAMMAR;
        if (!strcmp(member, "choice")) kind = CN_STRUCTURE_CHOICE;
        if (!strcmp(member, "json_object")) kind = CN_STRUCTURE_JSON;
        char shown[SHOWN_BYTES];
        if (!strcmp(member, "structural_tag")) return refuse_structural_tag(key);
        if (kind == CN_STRUCTURE_NONE)
            return cn_fail(CN_ERR_ARG,
                           "%s: member '%s' is not supported: expected json, regex, choice, "
                           "grammar, json_object, disable_any_whitespace or whitespace_pattern",
                           key, cn_json_printable(member, shown, sizeof shown));
        if (kind == CN_STRUCTURE_REGEX && !json_is_string(value))
            return cn_api_refuse("structured_outputs.regex", "a string", value);
        if (kind == CN_STRUCTURE_GRAMMAR && !json_is_string(value))
            return cn_api_refuse("structured_outputs.grammar", "the text of a grammar", value);
        if (kind == CN_STRUCTURE_CHOICE && !json_is_array(value))
            return cn_api_refuse("structured_outputs.choice", "an array of strings", value);
        if (kind == CN_STRUCTURE_SCHEMA && !json_is_object(value) && !json_is_string(value))
            return cn_api_refuse("structured_outputs.json", "a schema, or its text", value);
        CN_TRY(set(r, key, kind, value));
        has_structure = true;
    }
    if (has_structure || has_space) return CN_OK;
    return cn_fail(
        CN_ERR_ARG,
        "%s: expected json, regex, choice, grammar or json_object with a value other than null "
        "and false, got none",
        key);
}

/* {"type": "function", "function": {"name": ...}} */
static const char *named_function(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type || strcmp(type, "function") != 0) return NULL;
    return json_string_value(json_object_get(json_object_get(v, "function"), "name"));
}

static bool has_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0) return true;
    }
    return false;
}

static bool is_required(const json_t *choice)
{
    return json_is_string(choice) && strcmp(json_string_value(choice), "required") == 0;
}

cn_status cn_api_drop_message_format(cn_api_request *r, const json_t *choice)
{
    const bool set = r->params.structure.kind != CN_STRUCTURE_NONE;
    if (!set || strcmp(r->structure_key, "structured_outputs") == 0) return CN_OK;
    if (!is_required(choice) && !named_function(choice)) return CN_OK;
    r->params.structure = (cn_structure){0};
    return cn_api_ignore(r->unknown, r->structure_key, "no effect where tool_choice requires calls",
                         choice, &r->warnings);
}

bool cn_api_is_either(const cn_api_request *r, const json_t *choice)
{
    const cn_structure_kind kind = r->params.structure.kind;
    const bool is_json = kind == CN_STRUCTURE_JSON || kind == CN_STRUCTURE_SCHEMA;
    return is_json && strcmp(r->structure_key, "structured_outputs") != 0 &&
           json_object_get(r->chat, "tools") && json_is_string(choice) &&
           strcmp(json_string_value(choice), "auto") == 0;
}

/* Makes the answer calls, or the JSON of a response_format. */
static cn_status set_either(cn_api_request *r)
{
    static const char any_object[] = "{\"type\":\"object\"}";
    const cn_structure *s = &r->params.structure;
    const char *text = s->kind == CN_STRUCTURE_SCHEMA ? s->text : any_object;
    json_t *message, *form;
    CN_TRY(cn_json_parse(&message, text, strlen(text), r->structure_key, SIZE_MAX, CN_API_MAX_DEPTH,
                         CN_ERR_ARG));
    form = cn_tool_calls_form(r->tool_parser, json_object_get(r->chat, "tools"), NULL,
                              r->one_tool_call);
    json_object_set_new(form, "message", message);
    json_object_set_new(form, "message_strict", json_boolean(s->strict));
    const cn_status status = set_json(r, r->structure_key, CN_STRUCTURE_CALLS, form);
    json_decref(form);
    return status;
}

static cn_status set_calls(cn_api_request *r, const char *key, const char *name)
{
    json_t *form = cn_tool_calls_form(r->tool_parser, json_object_get(r->chat, "tools"), name,
                                      name || r->one_tool_call);
    const cn_status status = set_json(r, key, CN_STRUCTURE_CALLS, form);
    json_decref(form);
    return status;
}

cn_status cn_api_set_tool_choice(cn_api_request *r, const char *key, json_t *v)
{
    const char *choice = json_string_value(v), *name = named_function(v);
    const json_t *tools = json_object_get(r->chat, "tools");
    const bool required = is_required(v);
    if (cn_api_is_either(r, v)) return set_either(r);
    if (choice && (strcmp(choice, "auto") == 0 || strcmp(choice, "none") == 0)) return CN_OK;
    if (!required && !name)
        return cn_api_refuse(key,
                             "\"auto\", \"none\", \"required\" or "
                             "{\"type\": \"function\", \"function\": {\"name\": ...}}",
                             v);
    if (!tools) return cn_fail(CN_ERR_ARG, "%s: expected tools beside it, got none", key);
    if (name && !has_tool(tools, name))
        return cn_api_refuse(key, "the name of one of the tools", v);
    CN_TRY(refuse_second(r, key));
    r->tool_choice = required ? CN_API_TOOL_REQUIRED : CN_API_TOOL_NAMED;
    return set_calls(r, key, name);
}
