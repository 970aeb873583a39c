/* schema_disjoint.c - whether no value is valid under two schemas, for oneOf. Only types, constants
 * and required members are compared. See schema_parts.h. */
#include "engine/grammar/schema_parts.h"

enum { MAX_DEPTH = 8, MAX_STEPS = 4096 };

/* Counts comparisons, because lists inside lists multiply them. */
typedef struct disjoint_job {
    json_t *root;
    uint32_t steps;
} disjoint_job;

static bool disjoint(disjoint_job *job, json_t *a, json_t *b, uint32_t depth);

/* Follows $ref and an allOf of one schema. NULL: there is nothing to follow, or no end. */
static json_t *follow(const disjoint_job *job, json_t *schema)
{
    for (uint32_t n = 0; n < MAX_DEPTH && schema; n++) {
        json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
        if (json_is_string(ref)) schema = cn_schema_find(job->root, json_string_value(ref));
        else if (json_array_size(all) == 1) schema = json_array_get(all, 0);
        else return schema;
    }
    return NULL;
}

/* The types that values of a schema may have; an integer is a number. */
static unsigned types_of(json_t *schema)
{
    json_t *v = json_object_get(schema, "type"), *name;
    unsigned types = 0;
    size_t i;
    if (json_is_string(v)) types = cn_schema_type(json_string_value(v));
    json_array_foreach(v, i, name) types |= cn_schema_type(json_string_value(name));
    if (types >> CN_JSON_INTEGER & 1) types |= 1U << CN_JSON_NUMBER;
    types &= ~(1U << CN_JSON_INTEGER);
    return types ? types : UINT32_MAX;
}

/* ---- values ---- */

/* Value i of const or enum; NULL behind the last, or without these keywords. */
static json_t *value_at(json_t *schema, size_t i)
{
    json_t *value = json_object_get(schema, "const");
    if (value) return i == 0 ? value : NULL;
    return json_array_get(json_object_get(schema, "enum"), i);
}

static bool equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) == 1;
}

/* Returns whether no value of a's const or enum, which it has, is one of b. */
static bool values_disjoint(json_t *a, json_t *b)
{
    json_t *v, *w;
    for (size_t i = 0; (v = value_at(a, i)) != NULL; i++) {
        if (!cn_schema_has_type(v, types_of(b))) continue;
        if (!value_at(b, 0)) return false;
        for (size_t j = 0; (w = value_at(b, j)) != NULL; j++)
            if (equal(v, w)) return false;
    }
    return true;
}

/* ---- objects ---- */

/* Returns whether a requires a member that b does not allow, or both require one whose values are
 * different. */
static bool members_disjoint(disjoint_job *job, json_t *a, json_t *b, uint32_t depth)
{
    json_t *required = json_object_get(a, "required"), *v;
    json_t *of_a = json_object_get(a, "properties"), *of_b = json_object_get(b, "properties");
    const bool closed = json_is_false(json_object_get(b, "additionalProperties"));
    size_t i;
    json_array_foreach(required, i, v)
    {
        const char *name = json_string_value(v);
        json_t *x = name ? json_object_get(of_a, name) : NULL;
        json_t *y = name ? json_object_get(of_b, name) : NULL;
        if (name && !y && closed) return true;
        if (x && y && cn_schema_requires(b, name) && disjoint(job, x, y, depth + 1)) return true;
    }
    return false;
}

/* ---- schemas ---- */

/* Returns whether all schemas of a list are disjoint with b. */
static bool list_disjoint(disjoint_job *job, json_t *list, json_t *b, uint32_t depth)
{
    json_t *v;
    size_t i;
    json_array_foreach(list, i, v) if (!disjoint(job, v, b, depth + 1)) return false;
    return true;
}

static json_t *alternatives_of(json_t *schema)
{
    json_t *any = json_object_get(schema, "anyOf");
    return any ? any : json_object_get(schema, "oneOf");
}

static bool disjoint(disjoint_job *job, json_t *a, json_t *b, uint32_t depth)
{
    a = follow(job, a);
    b = follow(job, b);
    if (json_is_false(a) || json_is_false(b)) return true;
    if (depth == MAX_DEPTH || ++job->steps > MAX_STEPS || !json_is_object(a) || !json_is_object(b))
        return false;
    if (alternatives_of(a)) return list_disjoint(job, alternatives_of(a), b, depth);
    if (alternatives_of(b)) return list_disjoint(job, alternatives_of(b), a, depth);
    const unsigned both = types_of(a) & types_of(b);
    if (both == 0) return true;
    if (value_at(a, 0)) return values_disjoint(a, b);
    if (value_at(b, 0)) return values_disjoint(b, a);
    return both == 1U << CN_JSON_OBJECT &&
           (members_disjoint(job, a, b, depth) || members_disjoint(job, b, a, depth));
}

bool cn_schema_disjoint(const cn_schema_job *job, json_t *a, json_t *b)
{
    disjoint_job own = {.root = job->root};
    return disjoint(&own, a, b, 0);
}
