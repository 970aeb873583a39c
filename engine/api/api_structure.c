/* api_structure.c - see api_structure.h. */
#include "engine/api/api_structure.h"

#include <stdlib.h>
#include <string.h>

#include "engine/json.h"

enum { SHOWN_BYTES = 96 };

static cn_status refuse(const char *where, const char *want, const json_t *found)
{
    char shown[SHOWN_BYTES];
    return cn_fail(CN_ERR_ARG, "%s: expected %s, got %s", where, want,
                   cn_json_describe(found, shown, sizeof shown));
}

/* Sets the structure; its text is the JSON of v, or v itself if it is a string. */
static cn_status set(cn_api_request *r, const char *key, cn_structure_kind kind, const json_t *v)
{
    if (r->params.structure.kind != CN_STRUCTURE_NONE)
        return cn_fail(CN_ERR_ARG,
                       "%s: the request asks for another structure too: expected one of "
                       "response_format and structured_outputs, with one structure",
                       key);
    char *dumped = json_is_string(v) ? NULL : json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *text =
        json_is_string(v) ? json_string(json_string_value(v)) : json_string(dumped ? dumped : "");
    const bool ok = (dumped || json_is_string(v)) && text;
    free(dumped);
    if (!ok || json_array_append_new(r->keep, text) != 0)
        return cn_fail(CN_ERR_MEMORY, "out of memory for %s", key);
    r->params.structure = (cn_structure){kind, json_string_value(text)};
    return CN_OK;
}

/* {"name": ..., "schema": {...}, "strict": true, "description": ...} */
static cn_status set_json_schema(cn_api_request *r, json_t *format)
{
    static const char where[] = "response_format.json_schema";
    json_t *v = json_object_get(format, "json_schema"), *value;
    const char *member;
    if (!json_is_object(v)) return refuse(where, "an object with the schema", v);
    json_object_foreach(v, member, value)
    {
        const bool known = !strcmp(member, "name") || !strcmp(member, "schema") ||
                           !strcmp(member, "strict") || !strcmp(member, "description");
        char shown[SHOWN_BYTES];
        if (!known)
            return cn_fail(CN_ERR_ARG,
                           "%s: unknown member '%s': expected name, schema, strict and "
                           "description",
                           where, cn_json_printable(member, shown, sizeof shown));
    }
    json_t *schema = json_object_get(v, "schema");
    if (!json_is_object(schema))
        return refuse("response_format.json_schema.schema", "an object", schema);
    return set(r, "response_format", CN_STRUCTURE_SCHEMA, schema);
}

cn_status cn_api_set_response_format(cn_api_request *r, const char *key, json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    const char *member;
    json_t *value;
    if (!type) return refuse(key, "an object with a type", v);
    const bool schema = strcmp(type, "json_schema") == 0;
    json_object_foreach(v, member, value)
    {
        char shown[SHOWN_BYTES];
        if (strcmp(member, "type") != 0 && !(schema && strcmp(member, "json_schema") == 0) &&
            !json_is_null(value))
            return cn_fail(CN_ERR_ARG, "%s: unknown member '%s' of type %s", key,
                           cn_json_printable(member, shown, sizeof shown), type);
    }
    if (schema) return set_json_schema(r, v);
    if (strcmp(type, "json_object") == 0) return set(r, key, CN_STRUCTURE_JSON, v);
    if (strcmp(type, "text") == 0) return CN_OK;
    return refuse("response_format.type", "text, json_object or json_schema",
                  json_object_get(v, "type"));
}

cn_status cn_api_set_structured_outputs(cn_api_request *r, const char *key, json_t *v)
{
    const char *member;
    json_t *value;
    if (!json_is_object(v)) return refuse(key, "an object", v);
    json_object_foreach(v, member, value)
    {
        if (json_is_null(value) || json_is_false(value)) continue;
        cn_structure_kind kind = CN_STRUCTURE_NONE;
        if (!strcmp(member, "json")) kind = CN_STRUCTURE_SCHEMA;
        if (!strcmp(member, "regex")) kind = CN_STRUCTURE_REGEX;
        if (!strcmp(member, "choice")) kind = CN_STRUCTURE_CHOICE;
        if (!strcmp(member, "json_object")) kind = CN_STRUCTURE_JSON;
        char shown[SHOWN_BYTES];
        if (kind == CN_STRUCTURE_NONE)
            return cn_fail(CN_ERR_ARG,
                           "%s: member '%s' is not supported: expected json, regex, choice or "
                           "json_object",
                           key, cn_json_printable(member, shown, sizeof shown));
        if (kind == CN_STRUCTURE_REGEX && !json_is_string(value))
            return refuse("structured_outputs.regex", "a string", value);
        if (kind == CN_STRUCTURE_CHOICE && !json_is_array(value))
            return refuse("structured_outputs.choice", "an array of strings", value);
        if (kind == CN_STRUCTURE_SCHEMA && !json_is_object(value) && !json_is_string(value))
            return refuse("structured_outputs.json", "a schema, or its text", value);
        CN_TRY(set(r, key, kind, value));
    }
    return CN_OK;
}
