/* schema_disjoint.c - whether no value is valid under two schemas, for oneOf. Only types, constants
 * and required members are compared. Alternatives that differ in one property, or in their
 * constants, are compared all at once; other pairs one by one. See schema_parts.h. */
#include "engine/grammar/schema_parts.h"

#include <stdlib.h>

enum { MAX_DEPTH = 8, KEY_STEPS = 32 /* what a key of a value costs */ };

static bool disjoint(const cn_schema_job *job, json_t *a, json_t *b, uint32_t depth);

/* Follows $ref and an allOf of one schema that stand alone. NULL: nothing to follow, or no end. */
static json_t *follow_disjoint(const cn_schema_job *job, json_t *schema)
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
static unsigned disjoint_types_of(const json_t *schema)
{
    const unsigned types = cn_schema_types(schema), number = 1U << CN_JSON_NUMBER;
    const unsigned whole = 1U << CN_JSON_INTEGER;
    return types == UINT32_MAX ? types : (types & whole ? types | number : types) & ~whole;
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
    const unsigned types = disjoint_types_of(a) & disjoint_types_of(b);
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
    a = follow_disjoint(job, a);
    b = follow_disjoint(job, b);
    if (json_is_false(a) || json_is_false(b)) return true;
    if (!cn_net_spend(job->net, 1)) return false;
    if (depth == MAX_DEPTH || !json_is_object(a) || !json_is_object(b)) return false;
    if (alternatives_of(a)) return list_disjoint(job, alternatives_of(a), b, depth);
    if (alternatives_of(b)) return list_disjoint(job, alternatives_of(b), a, depth);
    const unsigned both = disjoint_types_of(a) & disjoint_types_of(b);
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
    enum { NEITHER, LISTED, TAGGED } apart; /* by its constants, by a member */
} alternative;

static bool is_object(const alternative *a)
{
    return a->types == 1U << CN_JSON_OBJECT && !alternatives_of(a->schema);
}

/* The constants of a member; NULL: none. */
static json_t *tag_of(const cn_schema_job *job, const alternative *a, const char *name)
{
    json_t *of =
        follow_disjoint(job, json_object_get(json_object_get(a->schema, "properties"), name));
    return is_object(a) && !alternatives_of(of) && value_at(of, 0) ? of : NULL;
}

/* Marks the objects that have this member, if its values differ in all of them. *complete: they all
 * require it. */
static bool mark_tagged(const cn_schema_job *job, alternative *list, size_t n, const char *name,
                        bool *complete)
{
    json_t *set = json_object();
    bool apart = set != NULL;
    *complete = true;
    for (size_t i = 0; i < n && apart; i++) {
        const json_t *tag = tag_of(job, &list[i], name);
        if (tag) apart = try_add_values(job, set, tag, disjoint_types_of(tag));
        if (!tag) continue;
        cn_net_spend(job->net, json_array_size(json_object_get(list[i].schema, "required")));
        *complete &= cn_schema_requires(list[i].schema, name);
    }
    for (size_t i = 0; i < n && apart; i++)
        if (tag_of(job, &list[i], name)) list[i].apart = TAGGED;
    json_decref(set);
    return apart;
}

/* Tries the members of the first object. Returns the one by which objects differ, if not all
 * require it and all have it. */
static const char *find_tag(const cn_schema_job *job, alternative *list, size_t n)
{
    size_t first = 0;
    const char *name;
    json_t *v;
    while (first < n && !is_object(&list[first])) first++;
    if (first == n) return NULL;
    json_object_foreach(json_object_get(list[first].schema, "properties"), name, v)
    {
        bool complete, all = true;
        if (!tag_of(job, &list[first], name)) continue;
        for (size_t i = 0; i < n; i++) all &= !is_object(&list[i]) || tag_of(job, &list[i], name);
        if (!cn_net_spend(job->net, n)) return NULL;
        if (!mark_tagged(job, list, n, name, &complete)) continue;
        if (complete) return NULL;
        if (all) return name;
        for (size_t i = 0; i < n; i++)
            if (list[i].apart == TAGGED) list[i].apart = NEITHER;
    }
    return NULL;
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

/* Finds two alternatives that may have a common value. False: there are none. */
static bool find_overlap(const cn_schema_job *job, const alternative *list, size_t n, size_t *a,
                         size_t *b)
{
    for (*b = 0; *b < n; ++*b)
        for (*a = 0; *a < *b; ++*a) {
            const alternative *x = &list[*a], *y = &list[*b];
            if (!cn_net_spend(job->net, 1)) return true;
            if (x->apart != NEITHER && x->apart == y->apart) continue;
            if ((x->types & y->types) == 0) continue;
            if (!disjoint(job, x->schema, y->schema, 0)) return true;
        }
    return false;
}

bool cn_schema_are_disjoint(const cn_schema_job *job, json_t *schemas, const char **tag, size_t *a,
                            size_t *b)
{
    const size_t n = json_array_size(schemas);
    alternative *list = cn_calloc(n, sizeof *list);
    *tag = NULL;
    *a = *b = 0;
    if (!list) return false;
    for (size_t i = 0; i < n; i++) {
        json_t *schema = follow_disjoint(job, json_array_get(schemas, i));
        list[i] = (alternative){.schema = schema ? schema : json_array_get(schemas, i),
                                .types = disjoint_types_of(schema)};
    }
    mark_listed(job, list, n);
    *tag = find_tag(job, list, n);
    const bool overlap = find_overlap(job, list, n, a, b);
    cn_free(list);
    return !overlap;
}
