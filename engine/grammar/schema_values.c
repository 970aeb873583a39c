/* schema_values.c - enum and const: the values that are valid under all terms. See schema_parts.h.
 */
#include <math.h>
#include <stdlib.h>

#include "engine/grammar/schema_parts.h"

enum { MAX_DEPTH = 32 };

/* ---- whether a value is valid ---- */

static bool is_valid(const cn_schema_job *job, const json_t *schema, const json_t *v,
                     uint32_t depth);

bool cn_schema_same_value(const json_t *a, const json_t *b)
{
    const char *name;
    json_t *inner;
    size_t i;
    bool same = true;
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        json_array_foreach((json_t *)a, i, inner) same =
            same && cn_schema_same_value(inner, json_array_get(b, i));
        return same;
    }
    if (!json_is_object(a)) return json_equal(a, b) == 1;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, name, inner)
    {
        const json_t *other = json_object_get(b, name);
        same = same && other && cn_schema_same_value(inner, other);
    }
    return same;
}

static bool is_listed(const cn_schema_job *job, const json_t *schema, const json_t *v)
{
    const json_t *value = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    size_t i;
    json_t *one;
    if (value && !cn_schema_same_value(value, v)) return false;
    if (!list) return true;
    json_array_foreach((json_t *)list, i, one)
    {
        if (!cn_net_spend(job->net, 1)) return false;
        if (cn_schema_same_value(one, v)) return true;
    }
    return false;
}

static bool number_is_valid(const json_t *schema, const json_t *v)
{
    const double x = json_number_value(v);
    const json_t *lo = json_object_get(schema, "minimum"), *hi = json_object_get(schema, "maximum");
    const json_t *above = json_object_get(schema, "exclusiveMinimum");
    const json_t *below = json_object_get(schema, "exclusiveMaximum");
    const json_t *step = json_object_get(schema, "multipleOf");
    const double least = json_number_value(lo), most = json_number_value(hi);
    if (lo && (json_is_true(above) ? x <= least : x < least)) return false;
    if (hi && (json_is_true(below) ? x >= most : x > most)) return false;
    if (json_is_number(above) && x <= json_number_value(above)) return false;
    if (json_is_number(below) && x >= json_number_value(below)) return false;
    return !json_is_number(step) || remainder(x, json_number_value(step)) == 0;
}

static size_t characters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((uint8_t)text[i] & 0xc0) != 0x80;
    return count;
}

/* A pattern that is not supported excludes no value. */
static bool matches(const cn_schema_job *job, const char *pattern, bool anywhere, const json_t *v)
{
    cn_dfa d;
    if (!pattern || !*pattern) return true;
    if (cn_dfa_from_regex(&d, pattern, strlen(pattern), anywhere, job->net) != CN_OK) return true;
    const bool found = cn_dfa_matches(&d, json_string_value(v), json_string_length(v));
    cn_dfa_free(&d);
    return found;
}

static bool string_is_valid(const cn_schema_job *job, const json_t *schema, const json_t *v)
{
    const json_t *lo = json_object_get(schema, "minLength");
    const json_t *hi = json_object_get(schema, "maxLength");
    const char *format = json_string_value(json_object_get(schema, "format"));
    const double n = (double)characters(json_string_value(v), json_string_length(v));
    if ((lo && n < json_number_value(lo)) || (hi && n > json_number_value(hi))) return false;
    return matches(job, json_string_value(json_object_get(schema, "pattern")), true, v) &&
           matches(job, format ? cn_schema_format_pattern(format) : NULL, false, v);
}

static bool size_is_valid(const json_t *schema, const char *least, const char *most, size_t n)
{
    const json_t *lo = json_object_get(schema, least), *hi = json_object_get(schema, most);
    return (!lo || (double)n >= json_number_value(lo)) &&
           (!hi || (double)n <= json_number_value(hi));
}

static bool array_is_valid(const cn_schema_job *job, const json_t *schema, const json_t *v,
                           uint32_t depth)
{
    const json_t *items = json_object_get(schema, "items");
    const json_t *first = json_object_get(schema, "prefixItems");
    size_t i, k;
    json_t *item, *other;
    if (!size_is_valid(schema, "minItems", "maxItems", json_array_size(v))) return false;
    json_array_foreach((json_t *)v, i, item)
    {
        const json_t *own = json_array_get(first, i);
        if (!own && json_is_array(items))
            own = json_array_get(items, i);
        else if (!own)
            own = items;
        if (own && !is_valid(job, own, item, depth + 1)) return false;
        if (!json_is_true(json_object_get(schema, "uniqueItems"))) continue;
        if (!cn_net_spend(job->net, i)) return false;
        json_array_foreach((json_t *)v, k,
                           other) if (k < i && cn_schema_same_value(item, other)) return false;
    }
    return true;
}

static bool object_is_valid(const cn_schema_job *job, const json_t *schema, const json_t *v,
                            uint32_t depth)
{
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *others = json_object_get(schema, "additionalProperties");
    json_t *required = json_object_get(schema, "required"), *inner;
    const char *name;
    size_t i;
    if (!size_is_valid(schema, "minProperties", "maxProperties", json_object_size(v))) return false;
    json_array_foreach(required, i, inner)
    {
        name = json_string_value(inner);
        if (name && !json_object_get(v, name)) return false;
    }
    json_object_foreach((json_t *)v, name, inner)
    {
        const json_t *own = json_object_get(properties, name);
        if (!own && !json_object_get(schema, "patternProperties")) own = others;
        if (own && !is_valid(job, own, inner, depth + 1)) return false;
    }
    return true;
}

static bool alternatives_are_valid(const cn_schema_job *job, const json_t *list, bool all,
                                   const json_t *v, uint32_t depth)
{
    size_t i;
    json_t *schema;
    json_array_foreach((json_t *)list, i, schema)
    {
        const bool valid = is_valid(job, schema, v, depth + 1);
        if (valid != all) return valid;
    }
    return all;
}

static bool is_valid(const cn_schema_job *job, const json_t *schema, const json_t *v,
                     uint32_t depth)
{
    if (json_is_true(schema)) return true;
    if (!json_is_object(schema) || depth == MAX_DEPTH || !cn_net_spend(job->net, 1)) return false;
    const json_t *ref = json_object_get(schema, "$ref");
    const json_t *to = ref ? cn_schema_find(job, ref) : NULL, *list;
    if (to && !is_valid(job, to, v, depth + 1)) return false;
    if (!cn_schema_has_type(v, cn_schema_types(schema))) return false;
    if (!is_listed(job, schema, v)) return false;
    if ((list = json_object_get(schema, "allOf")) &&
        !alternatives_are_valid(job, list, true, v, depth))
        return false;
    if ((list = json_object_get(schema, "anyOf")) &&
        !alternatives_are_valid(job, list, false, v, depth))
        return false;
    if ((list = json_object_get(schema, "oneOf")) &&
        !alternatives_are_valid(job, list, false, v, depth))
        return false;
    switch (json_typeof(v)) {
    case JSON_INTEGER:
    case JSON_REAL: return number_is_valid(schema, v);
    case JSON_STRING: return string_is_valid(job, schema, v);
    case JSON_ARRAY: return array_is_valid(job, schema, v, depth);
    case JSON_OBJECT: return object_is_valid(job, schema, v, depth);
    default: return true;
    }
}

/* $ref, allOf and what is skipped are other terms. `listed`: v is from the term's list. */
static bool term_allows(const cn_schema_job *job, const cn_schema_term *t, const json_t *v,
                        bool listed)
{
    if (!cn_schema_has_type(v, cn_schema_types(t->schema))) return false;
    if (!listed && !is_listed(job, t->schema, v)) return false;
    switch (json_typeof(v)) {
    case JSON_INTEGER:
    case JSON_REAL: return number_is_valid(t->schema, v);
    case JSON_STRING: return string_is_valid(job, t->schema, v);
    case JSON_ARRAY: return array_is_valid(job, t->schema, v, 0);
    case JSON_OBJECT: return object_is_valid(job, t->schema, v, 0);
    default: return true;
    }
}

json_t *cn_schema_values(const cn_schema_job *job, const cn_schema_terms *terms, cn_status *status)
{
    const json_t *list = NULL, *value = NULL;
    uint32_t from = 0;
    for (uint32_t i = 0; i < terms->n && !list && !value; i++) {
        value = json_object_get(terms->list[i].schema, "const");
        list = value ? NULL : json_object_get(terms->list[i].schema, "enum");
        from = i;
    }
    if (!list && !value) return NULL;
    json_t *out = json_array(), *v;
    const size_t n = value ? 1 : json_array_size(list);
    for (size_t i = 0; i < n && out; i++) {
        v = value ? (json_t *)value : json_array_get(list, i);
        bool allowed = true;
        for (uint32_t k = 0; k < terms->n && allowed; k++)
            allowed = term_allows(job, &terms->list[k], v, list && k == from);
        if (allowed && json_array_append(out, v) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    *status = out ? job->net->status : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    return out;
}

/* ---- emission ---- */

/* The text of a value, with as few digits as give the same doubles. */
static char *constant_text_of(const json_t *v)
{
    for (size_t digits = 15; digits <= 17; digits++) {
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        json_t *again = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
        const bool same = again && json_equal(again, v);
        json_decref(again);
        if (same || digits == 17) return text;
        free(text);
    }
    return NULL;
}

cn_status cn_schema_emit_values(cn_schema_job *job, const json_t *values, cn_net_rule rule)
{
    cn_net_word *words = cn_calloc(json_array_size(values) + 1, sizeof *words);
    cn_status status = words ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    size_t n = 0, i;
    json_t *v;
    json_array_foreach((json_t *)values, i, v)
    {
        char *text = status == CN_OK ? constant_text_of(v) : NULL;
        if (text)
            words[n++] = (cn_net_word){text, strlen(text)};
        else if (status == CN_OK)
            status = cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    }
    if (status == CN_OK && n > 0) cn_net_words(job->net, rule.start, rule.end, words, n);
    for (size_t k = 0; k < n; k++) free((char *)words[k].bytes);
    cn_free(words);
    return status;
}

/* ---- scalars ---- */

enum { MAX_SCALAR_DEPTH = 8 }; /* of anyOf and oneOf */

static bool list_is_scalar(const json_t *values)
{
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) if (json_is_array(v) || json_is_object(v)) return false;
    return json_array_size(values) > 0;
}

static cn_status are_scalar(cn_schema_job *job, const cn_schema_terms *terms, uint32_t depth,
                            bool *out);

/* Each schema is looked at once, because references make a schema an alternative of many others. */
static cn_status alternative_is_scalar(cn_schema_job *job, json_t *schema, uint32_t depth,
                                       bool *out)
{
    const cn_schema_place place = {.keyword = "anyOf", .index = CN_SCHEMA_NO_INDEX};
    char key[24];
    snprintf(key, sizeof key, "%p", (void *)schema);
    const json_t *known = json_object_get(job->scalars, key);
    *out = json_is_true(known);
    if (known) return CN_OK;
    cn_schema_terms terms = {0};
    json_object_set_new(job->scalars, key, json_false()); /* if it is an alternative of itself */
    cn_status status = cn_schema_add_terms(job, place, schema, &terms);
    if (status == CN_OK) status = are_scalar(job, &terms, depth + 1, out);
    cn_schema_terms_free(&terms);
    if (status == CN_OK && *out) json_object_set_new(job->scalars, key, json_true());
    return status;
}

/* Whether all schemas of an anyOf or oneOf are scalar. */
static cn_status alternatives_are_scalar(cn_schema_job *job, json_t *list, uint32_t depth,
                                         bool *out)
{
    *out = json_array_size(list) > 0 && depth < MAX_SCALAR_DEPTH;
    for (size_t i = 0; *out && i < json_array_size(list); i++)
        CN_TRY(alternative_is_scalar(job, json_array_get(list, i), depth, out));
    return CN_OK;
}

static cn_status are_scalar(cn_schema_job *job, const cn_schema_terms *terms, uint32_t depth,
                            bool *out)
{
    static const char *const keys[] = {"anyOf", "oneOf"};
    unsigned types = UINT32_MAX, inferred = 0;
    *out = terms->never;
    for (uint32_t i = 0; i < terms->n && !*out; i++) {
        const json_t *s = terms->list[i].schema, *constant = json_object_get(s, "const");
        types &= cn_schema_types(s);
        inferred |= cn_schema_inferred_types(s);
        *out = list_is_scalar(json_object_get(s, "enum")) ||
               (constant && !json_is_array(constant) && !json_is_object(constant));
        for (size_t k = 0; k < 2 && !*out; k++)
            CN_TRY(alternatives_are_scalar(job, json_object_get(s, keys[k]), depth, out));
    }
    if (types == UINT32_MAX && inferred) types = inferred;
    *out |= !(types & (1u << CN_JSON_OBJECT | 1u << CN_JSON_ARRAY));
    return CN_OK;
}

cn_status cn_schema_are_scalar(cn_schema_job *job, const cn_schema_terms *terms, bool *out)
{
    return are_scalar(job, terms, 0, out);
}
