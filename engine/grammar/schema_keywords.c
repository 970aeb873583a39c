/* schema_keywords.c - the keywords of JSON Schema, and those that are the same for every type. See
 * schema_parts.h. */
#include <math.h>

#include "engine/base/json.h"
#include "engine/grammar/schema_parts.h"

#define OF(type) (1U << CN_JSON_##type)
enum { ALL_TYPES = (1 << CN_N_JSON_TYPES) - 1, MAX_NAMED = 96 };

typedef enum keyword_kind {
    NOTE,   /* without effect on what is valid */
    JOINED, /* $ref and allOf, whose schemas are terms */
    ANY,    /* of any type */
    TYPED,  /* of the types below */
    NOT_YET /* changes what is valid; not supported */
} keyword_kind;

static const struct keyword {
    const char *name;
    keyword_kind kind;
    unsigned types; /* TYPED: what a schema without `type` is taken to be */
} keywords[] = {
    {"title", NOTE, 0},
    {"description", NOTE, 0},
    {"markdownDescription", NOTE, 0},
    {"default", NOTE, 0},
    {"example", NOTE, 0},
    {"examples", NOTE, 0},
    {"deprecated", NOTE, 0},
    {"readOnly", NOTE, 0},
    {"writeOnly", NOTE, 0},
    {"nullable", NOTE, 0},
    {"strict", NOTE, 0},
    {"discriminator", NOTE, 0},
    {"externalDocs", NOTE, 0},
    {"xml", NOTE, 0},
    {"enumNames", NOTE, 0},
    {"enumDescriptions", NOTE, 0},
    {"propertyOrdering", NOTE, 0},
    {"errorMessage", NOTE, 0},
    {"contentMediaType", NOTE, 0},
    {"contentEncoding", NOTE, 0},
    {"contentSchema", NOTE, 0},
    {"$schema", NOTE, 0},
    {"$id", NOTE, 0},
    {"id", NOTE, 0},
    {"$anchor", NOTE, 0},
    {"$dynamicAnchor", NOTE, 0},
    {"$recursiveAnchor", NOTE, 0},
    {"$vocabulary", NOTE, 0},
    {"$comment", NOTE, 0},
    {"$defs", NOTE, 0},
    {"definitions", NOTE, 0},
    {"components", NOTE, 0},
    {"$ref", JOINED, 0},
    {"allOf", JOINED, 0},
    {"type", ANY, 0},
    {"enum", ANY, 0},
    {"const", ANY, 0},
    {"anyOf", ANY, 0},
    {"oneOf", ANY, 0},
    {"not", NOT_YET, 0},
    {"if", NOT_YET, 0},
    {"then", NOT_YET, 0},
    {"else", NOT_YET, 0},
    {"contains", NOT_YET, 0},
    {"minContains", NOT_YET, 0},
    {"maxContains", NOT_YET, 0},
    {"dependencies", NOT_YET, 0},
    {"dependentRequired", NOT_YET, 0},
    {"dependentSchemas", NOT_YET, 0},
    {"$dynamicRef", NOT_YET, 0},
    {"$recursiveRef", NOT_YET, 0},
    {"properties", TYPED, OF(OBJECT)},
    {"required", TYPED, OF(OBJECT)},
    {"additionalProperties", TYPED, OF(OBJECT)},
    {"unevaluatedProperties", TYPED, OF(OBJECT)},
    {"patternProperties", TYPED, OF(OBJECT)},
    {"propertyNames", TYPED, OF(OBJECT)},
    {"minProperties", TYPED, OF(OBJECT)},
    {"maxProperties", TYPED, OF(OBJECT)},
    {"items", TYPED, OF(ARRAY)},
    {"prefixItems", TYPED, OF(ARRAY)},
    {"additionalItems", TYPED, OF(ARRAY)},
    {"unevaluatedItems", TYPED, OF(ARRAY)},
    {"minItems", TYPED, OF(ARRAY)},
    {"maxItems", TYPED, OF(ARRAY)},
    {"uniqueItems", TYPED, OF(ARRAY)},
    {"minLength", TYPED, OF(STRING)},
    {"maxLength", TYPED, OF(STRING)},
    {"pattern", TYPED, OF(STRING)},
    {"format", TYPED, OF(STRING)},
    {"minimum", TYPED, OF(NUMBER)},
    {"maximum", TYPED, OF(NUMBER)},
    {"exclusiveMinimum", TYPED, OF(NUMBER)},
    {"exclusiveMaximum", TYPED, OF(NUMBER)},
    {"multipleOf", TYPED, OF(NUMBER)},
};

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(name, keywords[i].name) == 0) return &keywords[i];
    return NULL;
}

/* ---- types ---- */

/* The bits of a type's name; 0: no type has it. */
static unsigned schema_type_of_name(const char *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } types[] = {{"string", OF(STRING)},   {"number", OF(NUMBER) | OF(INTEGER)},
                 {"integer", OF(INTEGER)}, {"object", OF(OBJECT)},
                 {"array", OF(ARRAY)},     {"boolean", OF(BOOLEAN)},
                 {"null", OF(NULL)}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) return types[i].types;
    return 0;
}

unsigned cn_schema_types(const json_t *schema)
{
    const json_t *v = json_object_get(schema, "type");
    unsigned types = 0;
    size_t i;
    json_t *name;
    if (!v) return UINT32_MAX;
    if (!json_is_array(v)) return schema_type_of_name(json_string_value(v));
    json_array_foreach((json_t *)v, i, name) types |= schema_type_of_name(json_string_value(name));
    return types;
}

bool cn_schema_has_type(const json_t *v, unsigned types)
{
    switch (json_typeof(v)) {
    case JSON_STRING: return types >> CN_JSON_STRING & 1;
    case JSON_OBJECT: return types >> CN_JSON_OBJECT & 1;
    case JSON_ARRAY: return types >> CN_JSON_ARRAY & 1;
    case JSON_TRUE:
    case JSON_FALSE: return types >> CN_JSON_BOOLEAN & 1;
    case JSON_NULL: return types >> CN_JSON_NULL & 1;
    case JSON_INTEGER: return types >> CN_JSON_INTEGER & 1 || types >> CN_JSON_NUMBER & 1;
    case JSON_REAL:
        return types >> CN_JSON_NUMBER & 1 ||
               (types >> CN_JSON_INTEGER & 1 && floor(json_real_value(v)) == json_real_value(v));
    }
    return false;
}

unsigned cn_schema_inferred_types(const json_t *schema)
{
    const char *name;
    json_t *v;
    unsigned types = 0;
    json_object_foreach((json_t *)schema, name, v)
    {
        const struct keyword *k = find_keyword(name);
        if (k && k->kind == TYPED) types |= k->types;
    }
    return types;
}

/* ---- keywords ---- */

static bool is_note(const char *name, const struct keyword *k)
{
    return k ? k->kind == NOTE : strncmp(name, "x-", 2) == 0;
}

bool cn_schema_has_effect(const json_t *schema, unsigned skip)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)schema, name, v)
    {
        const struct keyword *k = find_keyword(name);
        if (is_note(name, k) || (k && k->kind == JOINED)) continue;
        if (skip & CN_SKIP_ANY_OF && strcmp(name, "anyOf") == 0) continue;
        if (skip & CN_SKIP_ONE_OF && strcmp(name, "oneOf") == 0) continue;
        return true;
    }
    return false;
}

/* Returns whether a keyword has no effect at this value. */
static bool is_no_op(const char *name, const json_t *v)
{
    const bool all = json_is_true(v) || (json_is_object(v) && json_object_size(v) == 0);
    if (strcmp(name, "not") == 0) return json_is_false(v) || all; /* all: schema.c excludes all */
    if (strcmp(name, "minContains") == 0 || strcmp(name, "maxContains") == 0) return true;
    return json_is_object(v) && json_object_size(v) == 0 && strncmp(name, "depend", 6) == 0;
}

static cn_status check_types(const cn_schema_job *job, uint32_t part, json_t *v)
{
    json_t *list = json_is_array(v) ? v : NULL, *name;
    char shown[CN_SCHEMA_SHOWN_BYTES];
    size_t i;
    json_t *wrong = !list && !schema_type_of_name(json_string_value(v)) ? v : NULL;
    json_array_foreach(list, i, name) if (!schema_type_of_name(json_string_value(name))) wrong =
        name;
    if (!wrong) return CN_OK;
    return cn_schema_wrong(job, part, "type: expected the name of a JSON type, got %s",
                           cn_json_describe(wrong, shown, sizeof shown));
}

cn_status cn_schema_check_keywords(const cn_schema_job *job, uint32_t part,
                                   const cn_schema_term *term)
{
    const char *name;
    json_t *v;
    char shown[MAX_NAMED];
    json_object_foreach(term->schema, name, v)
    {
        const struct keyword *k = find_keyword(name);
        cn_json_printable(name, shown, sizeof shown);
        if (!k && strncmp(name, "x-", 2) != 0)
            CN_TRY(cn_schema_warn(job, part, "keyword '%s' is unknown and has no effect", shown));
        if (k && k->kind == NOT_YET && !is_no_op(name, v))
            CN_TRY(cn_schema_drop(job, part, "keyword '%s' is not supported", shown));
        if (strcmp(name, "enum") == 0 && json_array_size(v) == 0)
            return cn_schema_wrong(job, part, "enum: expected an array of values, at least one");
        if (strcmp(name, "type") == 0) CN_TRY(check_types(job, part, v));
    }
    return CN_OK;
}

/* ---- counts ---- */

/* Reads a keyword of one term. *found: it is there. What no text reaches is UINT32_MAX. */
static cn_status read_schema_count(const cn_schema_job *job, uint32_t part, const json_t *schema,
                                   const char *key, bool *found, uint32_t *out)
{
    const json_t *v = json_object_get(schema, key);
    const double x = json_number_value(v);
    char shown[CN_SCHEMA_SHOWN_BYTES];
    *found = v != NULL;
    if (!v) return CN_OK;
    if (!json_is_number(v) || x < 0 || floor(x) != x)
        return cn_schema_wrong(job, part, "%s: expected a whole number of at least 0, got %s", key,
                               cn_json_describe(v, shown, sizeof shown));
    *out = x < UINT32_MAX ? (uint32_t)x : UINT32_MAX;
    return CN_OK;
}

cn_status cn_schema_range(const cn_schema_job *job, uint32_t part, const char *least_key,
                          const char *most_key, uint32_t *least, uint32_t *most)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    for (uint32_t i = 0; i < terms->n; i++) {
        bool found;
        uint32_t n = 0;
        CN_TRY(read_schema_count(job, part, terms->list[i].schema, least_key, &found, &n));
        if (found) *least = cn_max_u32(*least, n);
        CN_TRY(read_schema_count(job, part, terms->list[i].schema, most_key, &found, &n));
        if (found) *most = cn_min_u32(*most, n);
    }
    return CN_OK;
}
