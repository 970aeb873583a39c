/* schema_disjoint.c - whether no value is valid under two schemas, for oneOf. Only types, constants
 * and required members are compared. Alternatives that differ in one property, or in their
 * constants, are compared all at once; other pairs one by one. See schema_parts.h. */
#include "engine/grammar/schema_parts.h"

#include <stdlib.h>

enum { MAX_DEPTH = 8, KEY_STEPS = 32 /* what a key of a value costs */ };

static bool disjoint(const cn_schema_job *job, json_t *a, json_t *b, uint32_t depth);

/* Follows $ref and an allOf of one schema. NULL: there is nothing to follow, or no end. */
static json_t *follow(const cn_schema_job *job, json_t *schema)
{
    for (uint32_t n = 0; n < MAX_DEPTH && schema; n++) {
        json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
        if (json_is_string(ref))
            schema = cn_schema_find(job, ref);
        else if (json_array_size(all) == 1)
            schema = json_array_get(all, 0);
        else
            return schema;
    }
    return NULL;
}

/* The types that values of a schema may have; an integer is a number. */
static unsigned types_of(const json_t *schema)
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

/* Value i of const or enum; NULL after the last, or without these keywords. */
static json_t *value_at(const json_t *schema, size_t i)
{
    json_t *value = json_object_get(schema, "const");
    if (value) return i == 0 ? value : NULL;
    return json_array_get(json_object_get(schema, "enum"), i);
}

/* A new value that is equal to v, and in which every number is a double. */
static json_t *with_doubles(json_t *v)
{
    json_t *out, *inner;
    const char *name;
    size_t i;
    if (json_is_number(v)) return json_real(json_number_value(v) + 0.0); /* -0 becomes 0 */
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, inner) json_array_append_new(out, with_doubles(inner));
        return out;
    }
    if (!json_is_object(v)) return json_incref(v);
    out = json_object();
    json_object_foreach(v, name, inner) json_object_set_new(out, name, with_doubles(inner));
    return out;
}

/* Adds the values of a const or enum, those of the types, to a set. False if one is in it already,
 * or after a failure. */
static bool try_add_values(const cn_schema_job *job, json_t *set, const json_t *schema,
                           unsigned types)
{
    json_t *v;
    for (size_t i = 0; (v = value_at(schema, i)) != NULL; i++) {
        if (!cn_net_spend(job->net, KEY_STEPS + cn_schema_size(v))) return false;
        if (!cn_schema_has_type(v, types)) continue;
        json_t *same = with_doubles(v);
        char *key = same ? json_dumps(same, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;
        const bool added =
            key && !json_object_get(set, key) && json_object_set_new(set, key, json_null()) == 0;
        json_decref(same);
        free(key);
        if (!added) return false;
    }
    return true;
}

/* Returns whether no value of a's const or enum, which it has, is valid under b. */
static bool values_disjoint(const cn_schema_job *job, json_t *a, json_t *b)
{
    const unsigned types = types_of(a) & types_of(b);
    json_t *v;
    if (!value_at(b, 0)) {
        for (size_t i = 0; (v = value_at(a, i)) != NULL; i++)
            if (cn_schema_has_type(v, types)) return false;
        return true;
    }
    json_t *set = json_object();
    /* A value that stands twice in one list makes the answer false, which is always allowed. */
    const bool apart =
        set && try_add_values(job, set, a, types) && try_add_values(job, set, b, types);
    json_decref(set);
    return apart;
}

/* ---- objects ---- */

/* Returns whether a requires a member that b does not allow, or both require one whose values are
 * different. */
static bool members_disjoint(const cn_schema_job *job, json_t *a, json_t *b, uint32_t depth)
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
        if (!cn_net_spend(job->net, 1 + json_array_size(json_object_get(b, "required"))))
            return false;
        if (x && y && cn_schema_requires(b, name) && disjoint(job, x, y, depth + 1)) return true;
    }
    return false;
}

/* ---- two schemas ---- */

/* Returns whether all schemas of a list are disjoint with b. */
static bool list_disjoint(const cn_schema_job *job, json_t *list, json_t *b, uint32_t depth)
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

static bool disjoint(const cn_schema_job *job, json_t *a, json_t *b, uint32_t depth)
{
    a = follow(job, a);
    b = follow(job, b);
    if (json_is_false(a) || json_is_false(b)) return true;
    if (!cn_net_spend(job->net, 1)) return false;
    if (depth == MAX_DEPTH || !json_is_object(a) || !json_is_object(b)) return false;
    if (alternatives_of(a)) return list_disjoint(job, alternatives_of(a), b, depth);
    if (alternatives_of(b)) return list_disjoint(job, alternatives_of(b), a, depth);
    const unsigned both = types_of(a) & types_of(b);
    if (both == 0) return true;
    if (value_at(a, 0)) return values_disjoint(job, a, b);
    if (value_at(b, 0)) return values_disjoint(job, b, a);
    return both == 1U << CN_JSON_OBJECT &&
           (members_disjoint(job, a, b, depth) || members_disjoint(job, b, a, depth));
}

/* ---- all alternatives at once ---- */

/* An alternative, with the set in which it differs from all others of that set. */
typedef struct alternative {
    json_t *schema; /* what follow found */
    unsigned types;
    enum { NEITHER, LISTED, TAGGED } apart; /* by its constants, by a property */
} alternative;

/* The constants of a property that a closed or open object requires; NULL: none. */
static json_t *tag_of(const cn_schema_job *job, const alternative *a, const char *name)
{
    json_t *of = follow(job, json_object_get(json_object_get(a->schema, "properties"), name));
    if (a->types != 1U << CN_JSON_OBJECT || alternatives_of(a->schema) || alternatives_of(of))
        return NULL;
    cn_net_spend(job->net, json_array_size(json_object_get(a->schema, "required")));
    return value_at(of, 0) && cn_schema_requires(a->schema, name) ? of : NULL;
}

/* Marks the objects that require this property, if its values differ in all of them. */
static bool mark_tagged(const cn_schema_job *job, alternative *list, size_t n, const char *name)
{
    json_t *set = json_object();
    bool apart = set != NULL;
    for (size_t i = 0; i < n && apart; i++) {
        const json_t *tag = tag_of(job, &list[i], name);
        if (tag) apart = try_add_values(job, set, tag, types_of(tag));
    }
    for (size_t i = 0; i < n && apart; i++)
        if (tag_of(job, &list[i], name)) list[i].apart = TAGGED;
    json_decref(set);
    return apart;
}

/* Tries the properties that the first object requires. */
static void find_tag(const cn_schema_job *job, alternative *list, size_t n)
{
    size_t first = 0, i;
    json_t *v;
    while (first < n && list[first].types != 1U << CN_JSON_OBJECT) first++;
    if (first == n) return;
    json_array_foreach(json_object_get(list[first].schema, "required"), i, v)
    {
        const char *name = json_string_value(v);
        if (name && tag_of(job, &list[first], name) && mark_tagged(job, list, n, name)) return;
    }
}

/* Marks the alternatives with constants, if they differ in all of them. */
static void mark_listed(const cn_schema_job *job, alternative *list, size_t n)
{
    json_t *set = json_object();
    bool apart = set != NULL;
    for (size_t i = 0; i < n && apart; i++)
        if (!alternatives_of(list[i].schema) && value_at(list[i].schema, 0))
            apart = try_add_values(job, set, list[i].schema, list[i].types);
    for (size_t i = 0; i < n && apart; i++)
        if (!alternatives_of(list[i].schema) && value_at(list[i].schema, 0)) list[i].apart = LISTED;
    json_decref(set);
}

/* Fails if two alternatives may have a common value. */
static cn_status compare_all(const cn_schema_job *job, uint32_t part, alternative *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) {
            CN_TRY(cn_net_spend(job->net, 1) ? CN_OK : job->net->status);
            if (list[i].apart != NEITHER && list[i].apart == list[j].apart) continue;
            if ((list[i].types & list[j].types) == 0) continue;
            if (disjoint(job, list[j].schema, list[i].schema, 0)) continue;
            CN_TRY(job->net->status);
            return cn_schema_wrong(
                job, part,
                "oneOf: a value may be valid under both schema %zu and schema %zu: expected "
                "schemas of different types, or with a required property that has other "
                "constants in each; or use anyOf",
                j, i);
        }
    return CN_OK;
}

cn_status cn_schema_check_one_of(const cn_schema_job *job, uint32_t part, json_t *schemas)
{
    const size_t n = json_array_size(schemas);
    alternative *list = cn_calloc(n, sizeof *list);
    if (!list) return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    for (size_t i = 0; i < n; i++) {
        json_t *schema = follow(job, json_array_get(schemas, i));
        list[i] = (alternative){.schema = schema ? schema : json_array_get(schemas, i),
                                .types = types_of(schema)};
    }
    mark_listed(job, list, n);
    find_tag(job, list, n);
    const cn_status status = compare_all(job, part, list, n);
    cn_free(list);
    return status;
}
