/* schema.c - see schema.h: the parts of a schema. Parts wait in a list; compiling one may add
 * others. */
#include "engine/grammar/schema_parts.h"

#include <stdarg.h>

#include "engine/base/json.h"
#include "engine/base/json_pointer.h"

enum { MAX_PATH = 64 };

/* ---- messages ---- */

cn_status cn_schema_add_place(const cn_schema_job *job, uint32_t part, cn_buf *out)
{
    uint32_t above[CN_SCHEMA_MAX_DEPTH], n = 0;
    for (; part > 0 && n < CN_SCHEMA_MAX_DEPTH; part = job->parts[part].place.parent)
        above[n++] = part;
    cn_status status = cn_buf_add(out, "#", 1);
    while (n > 0 && status == CN_OK) {
        const cn_schema_place *p = &job->parts[above[--n]].place;
        char shown[CN_SCHEMA_SHOWN_BYTES];
        status = cn_buf_addf(out, "/%s", p->keyword);
        if (status == CN_OK && p->name)
            status = cn_buf_addf(out, "/%s", cn_json_printable(p->name, shown, sizeof shown));
        if (status == CN_OK && p->index != CN_SCHEMA_NO_INDEX)
            status = cn_buf_addf(out, "/%zu", p->index);
    }
    return status;
}

/* Sets this thread's last error. */
static cn_status tell(const cn_schema_job *job, uint32_t part, const char *fmt, va_list ap,
                      const char *end)
{
    cn_buf place = {0};
    char what[320];
    vsnprintf(what, sizeof what, fmt, ap);
    cn_schema_add_place(job, part, &place);
    const cn_status status =
        cn_fail(CN_ERR_ARG, "schema at %s: %s%s", place.data ? place.data : "#", what, end);
    cn_buf_free(&place);
    return status;
}

cn_status cn_schema_wrong(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const cn_status status = tell(job, part, fmt, ap, "");
    va_end(ap);
    return status;
}

cn_status cn_schema_drop(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const cn_status status =
        tell(job, part, fmt, ap,
             job->strict ? ", which strict does not allow: change it, or set strict to false"
                         : ", which is not enforced");
    va_end(ap);
    return job->strict ? status : cn_net_warn(job->net, cn_last_error());
}

cn_status cn_schema_warn(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    tell(job, part, fmt, ap, "");
    va_end(ap);
    return cn_net_warn(job->net, cn_last_error());
}

/* ---- references ---- */

size_t cn_schema_size(const json_t *v)
{
    size_t n = 1 + json_string_length(v), i;
    const char *name;
    json_t *inner;
    json_array_foreach((json_t *)v, i, inner) n += cn_schema_size(inner);
    json_object_foreach((json_t *)v, name, inner) n += 1 + strlen(name) + cn_schema_size(inner);
    return n;
}

static json_t *find_anchor(const cn_schema_job *job, json_t *v, const char *name)
{
    const char *key, *anchor = json_string_value(json_object_get(v, "$anchor"));
    json_t *inner, *found = NULL;
    size_t i;
    if (!cn_net_spend(job->net, 1)) return NULL;
    if (anchor && strcmp(anchor, name) == 0) return v;
    json_object_foreach(v, key, inner) if (!found) found = find_anchor(job, inner, name);
    json_array_foreach(v, i, inner) if (!found) found = find_anchor(job, inner, name);
    return found;
}

json_t *cn_schema_find(const cn_schema_job *job, const json_t *ref)
{
    const char *text = json_string_value(ref);
    const char *id = json_string_value(json_object_get(job->root, "$id"));
    if (!text || !cn_net_spend(job->net, 1 + json_string_length(ref))) return NULL;
    const size_t base = strcspn(text, "#"), id_len = id ? strcspn(id, "#") : 0;
    const bool own = base == 0 || (id && base == id_len && memcmp(text, id, base) == 0);
    if (!own || (base == 0 && *text == '\0')) return NULL;
    text += base;
    if (*text == '#') text++;
    char *copy = cn_strdup(text);
    if (!copy) return NULL;
    cn_json_decode_percent(copy);
    json_t *found = *copy == '/' || *copy == '\0' ? cn_json_follow(job->root, copy)
                                                  : find_anchor(job, job->root, copy);
    cn_free(copy);
    return found;
}

/* ---- terms ---- */

void cn_schema_terms_free(cn_schema_terms *t)
{
    cn_free(t->list);
    *t = (cn_schema_terms){0};
}

static cn_status add_term(const cn_schema_job *job, cn_schema_terms *io, cn_schema_term term)
{
    if (!cn_schema_has_effect(term.schema, term.skip)) return CN_OK;
    if (!cn_net_spend(job->net, 1 + io->n)) return job->net->status;
    for (uint32_t i = 0; i < io->n; i++)
        if (io->list[i].schema == term.schema) {
            io->list[i].skip &= term.skip;
            return CN_OK;
        }
    CN_TRY(CN_ROOM(&io->list, io->n, "a schema"));
    io->list[io->n++] = term;
    return CN_OK;
}

/* The schemas that are being added, each inside the one before. */
typedef struct term_path {
    json_t *above[MAX_PATH];
    uint32_t n, part;
} term_path;

static cn_status add_all(cn_schema_job *job, term_path *path, json_t *schema, cn_schema_terms *io);

static cn_status add_reference(cn_schema_job *job, term_path *path, json_t *ref,
                               cn_schema_terms *io)
{
    char shown[CN_SCHEMA_SHOWN_BYTES];
    cn_json_describe(ref, shown, sizeof shown);
    json_t *to = cn_schema_find(job, ref);
    CN_TRY(job->net->status);
    if (!to)
        return cn_schema_wrong(job, path->part, "$ref: expected a part of this schema, got %s",
                               shown);
    for (uint32_t i = 0; i < path->n; i++)
        if (path->above[i] == to)
            return cn_schema_wrong(job, path->part, "$ref %s refers to itself", shown);
    return add_all(job, path, to, io);
}

static cn_status add_all(cn_schema_job *job, term_path *path, json_t *schema, cn_schema_terms *io)
{
    char shown[CN_SCHEMA_SHOWN_BYTES];
    if (json_is_true(schema)) return CN_OK;
    if (json_is_false(schema)) {
        io->never = true;
        return CN_OK;
    }
    if (!json_is_object(schema))
        return cn_schema_wrong(job, path->part, "expected an object, true or false, got %s",
                               cn_json_describe(schema, shown, sizeof shown));
    if (path->n == MAX_PATH)
        return cn_schema_wrong(job, path->part, "more than %d $ref and allOf inside one another",
                               MAX_PATH);
    CN_TRY(add_term(job, io, (cn_schema_term){schema, 0}));
    json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf"), *v;
    size_t i;
    path->above[path->n++] = schema;
    if (ref) CN_TRY(add_reference(job, path, ref, io));
    if (all && (!json_is_array(all) || json_array_size(all) == 0))
        return cn_schema_wrong(job, path->part,
                               "allOf: expected an array of schemas, at least one");
    json_array_foreach(all, i, v) CN_TRY(add_all(job, path, v, io));
    path->n--;
    return CN_OK;
}

cn_status cn_schema_add_terms(cn_schema_job *job, cn_schema_place place, json_t *schema,
                              cn_schema_terms *io)
{
    /* The place of messages: a part that is not in the list yet. */
    term_path path = {.part = job->n_parts};
    job->parts[job->n_parts].place = place;
    if (schema == job->root) path.part = 0;
    return add_all(job, &path, schema, io);
}

/* ---- parts ---- */

static bool same_terms(const cn_schema_terms *a, const cn_schema_terms *b)
{
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t k = 0;
        while (k < b->n &&
               (a->list[i].schema != b->list[k].schema || a->list[i].skip != b->list[k].skip))
            k++;
        if (k == b->n) return false;
    }
    return true;
}

/* The slot of the part with these terms, in any order, or a free one. NULL after a failure. */
static uint32_t *find_part(const cn_schema_job *job, const cn_schema_terms *terms)
{
    uint64_t hash = terms->n;
    for (uint32_t i = 0; i < terms->n; i++)
        hash += cn_hash64(terms->list[i].skip, &terms->list[i].schema, sizeof(json_t *));
    uint32_t at = (uint32_t)(cn_hash64(0, &hash, sizeof hash) % CN_SCHEMA_TABLE);
    for (; job->table[at]; at = (at + 1) % CN_SCHEMA_TABLE) {
        if (!cn_net_spend(job->net, terms->n)) return NULL;
        if (same_terms(&job->parts[job->table[at] - 1].terms, terms)) break;
    }
    return &job->table[at];
}

static cn_status add_part(cn_schema_job *job, cn_schema_place place, cn_schema_terms *terms,
                          uint32_t *rule)
{
    uint32_t *slot = find_part(job, terms);
    if (!slot) return job->net->status;
    if (*slot) {
        *rule = job->parts[*slot - 1].rule;
        return CN_OK;
    }
    if (job->n_parts == CN_SCHEMA_MAX_PARTS)
        return cn_schema_wrong(job, place.parent, "expected at most %d schemas inside the schema",
                               CN_SCHEMA_MAX_PARTS);
    *rule = cn_net_rule_new(job->net);
    CN_TRY(job->net->status);
    job->parts[job->n_parts] = (cn_schema_part){*terms, place, *rule};
    *slot = ++job->n_parts;
    *terms = (cn_schema_terms){0};
    return CN_OK;
}

cn_status cn_schema_terms_rule(cn_schema_job *job, cn_schema_place place, cn_schema_terms *terms,
                               uint32_t *rule)
{
    cn_status status = CN_OK;
    *rule = job->rules.any_value;
    if (terms->never) {
        if (job->never == 0) job->never = cn_net_rule_new(job->net);
        *rule = job->never;
        status = job->net->status;
    } else if (terms->n > 0) {
        status = add_part(job, place, terms, rule);
    }
    cn_schema_terms_free(terms);
    return status;
}

/* ---- alternatives ---- */

/* The rule of one alternative of term `at`, with the other terms. `tag`: it must have this member.
 */
static cn_status alternative_rule(cn_schema_job *job, uint32_t part, uint32_t at,
                                  cn_schema_place place, json_t *schema, const char *tag,
                                  uint32_t *rule)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    const bool any = strcmp(place.keyword, "anyOf") == 0;
    cn_schema_terms own = {0};
    cn_status status = CN_OK;
    for (uint32_t i = 0; i < terms->n && status == CN_OK; i++) {
        cn_schema_term t = terms->list[i];
        if (i == at) t.skip |= any ? CN_SKIP_ANY_OF : CN_SKIP_ONE_OF;
        status = add_term(job, &own, t);
    }
    if (status == CN_OK) status = cn_schema_add_terms(job, place, schema, &own);
    if (status == CN_OK && tag) {
        json_t *required = json_pack("{s:[s]}", "required", tag);
        if (!required || json_array_append_new(job->made, required) != 0)
            status = cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
        if (status == CN_OK) status = add_term(job, &own, (cn_schema_term){required, 0});
    }
    if (status == CN_OK) return cn_schema_terms_rule(job, place, &own, rule);
    cn_schema_terms_free(&own);
    return status;
}

static cn_status emit_alternatives(cn_schema_job *job, uint32_t part, uint32_t at, const char *key,
                                   cn_net_rule rule)
{
    json_t *list = json_object_get(job->parts[part].terms.list[at].schema, key), *v;
    const char *tag = NULL;
    size_t i, a, b;
    if (json_array_size(list) == 0)
        return cn_schema_wrong(job, part, "%s: expected an array of schemas, at least one", key);
    if (strcmp(key, "oneOf") == 0 && !cn_schema_are_disjoint(job, list, &tag, &a, &b)) {
        CN_TRY(job->net->status);
        CN_TRY(
            cn_schema_drop(job, part,
                           "oneOf: a value may be valid under both schema %zu and schema %zu (they "
                           "should differ in type or in the constants of a member; or use "
                           "anyOf)",
                           a, b));
    }
    json_array_foreach(list, i, v)
    {
        uint32_t called;
        const cn_schema_place place = {.parent = part, .keyword = key, .index = i};
        const bool object = tag && cn_schema_types(v) >> CN_JSON_OBJECT & 1;
        CN_TRY(alternative_rule(job, part, at, place, v, object ? tag : NULL, &called));
        cn_net_call(job->net, rule.start, rule.end, called);
    }
    return CN_OK;
}

/* ---- one part ---- */

static void emit_words(cn_net *net, cn_net_rule rule, const char *const *words)
{
    for (; *words; words++)
        cn_net_empty(net, cn_net_text(net, rule.start, *words, strlen(*words)), rule.end);
}

static cn_status emit_type(cn_schema_job *job, uint32_t part, cn_json_type type, cn_net_rule rule)
{
    static const char *const booleans[] = {"true", "false", NULL}, *const null[] = {"null", NULL};
    switch (type) {
    case CN_JSON_STRING: return cn_schema_emit_string(job, part, rule);
    case CN_JSON_NUMBER: return cn_schema_emit_number(job, part, rule, false);
    case CN_JSON_INTEGER: return cn_schema_emit_number(job, part, rule, true);
    case CN_JSON_OBJECT: return cn_schema_emit_object(job, part, rule);
    case CN_JSON_ARRAY: return cn_schema_emit_array(job, part, rule);
    case CN_JSON_BOOLEAN: emit_words(job->net, rule, booleans); break;
    case CN_JSON_NULL: emit_words(job->net, rule, null); break;
    case CN_N_JSON_TYPES: break;
    }
    return CN_OK;
}

/* Returns whether a term says that no value is valid. */
static bool excludes_all(const json_t *schema)
{
    const json_t *v = json_object_get(schema, "not");
    return json_is_true(v) || (json_is_object(v) && json_object_size(v) == 0);
}

static cn_status emit_part(cn_schema_job *job, uint32_t part)
{
    const cn_net_rule rule = job->net->rules[job->parts[part].rule];
    const cn_schema_terms *terms = &job->parts[part].terms;
    unsigned types = UINT32_MAX, inferred = 0;
    cn_status status = CN_OK;
    for (uint32_t i = 0; i < terms->n; i++) {
        const json_t *schema = terms->list[i].schema;
        CN_TRY(cn_schema_check_keywords(job, part, &terms->list[i]));
        if (excludes_all(schema)) return CN_OK;
        types &= cn_schema_types(schema);
        inferred |= cn_schema_inferred_types(schema);
    }
    for (uint32_t i = 0; i < terms->n; i++) {
        const cn_schema_term t = terms->list[i];
        if (!(t.skip & CN_SKIP_ANY_OF) && json_object_get(t.schema, "anyOf"))
            return emit_alternatives(job, part, i, "anyOf", rule);
        if (!(t.skip & CN_SKIP_ONE_OF) && json_object_get(t.schema, "oneOf"))
            return emit_alternatives(job, part, i, "oneOf", rule);
    }
    json_t *values = cn_schema_values(job, terms, &status);
    if (values) status = cn_schema_emit_values(job, values, rule);
    json_decref(values);
    if (values || status != CN_OK) return status;
    if (types == UINT32_MAX && inferred) types = inferred;
    if (types >> CN_JSON_NUMBER & 1) types &= ~(1U << CN_JSON_INTEGER);
    for (unsigned t = 0; t < CN_N_JSON_TYPES; t++)
        if (types >> t & 1) CN_TRY(emit_type(job, part, (cn_json_type)t, rule));
    return CN_OK;
}

/* ---- the schema ---- */

/* Whether a value that is valid under part `above` must have one that is valid under part i. */
static bool is_needed(const cn_schema_job *job, uint32_t above, uint32_t i)
{
    const cn_schema_place *p = &job->parts[i].place;
    const cn_schema_terms *terms = &job->parts[above].terms;
    if (i == 0 || p->parent != above) return false;
    for (uint32_t k = 0; k < terms->n; k++) {
        if (p->name && cn_schema_requires(terms->list[k].schema, p->name)) return true;
        if (!p->name && json_integer_value(json_object_get(terms->list[k].schema, "minItems")) > 0)
            return true;
    }
    return false;
}

/* Finds the innermost part that makes the schema match nothing. */
static cn_status explain(const cn_schema_job *job)
{
    uint32_t at = 0, i = 0;
    CN_TRY(cn_net_find_heights(job->net));
    if (job->n_parts == 0 || !cn_net_is_never(job->net, job->parts[0].rule)) return CN_OK;
    while (i < job->n_parts) {
        const bool found = is_needed(job, at, i) && cn_net_is_never(job->net, job->parts[i].rule);
        if (found) at = i;
        i = found ? 0 : i + 1;
    }
    return cn_schema_wrong(job, at, "no text matches (values may be %d deep inside one another)",
                           CN_NET_MAX_DEPTH);
}

static cn_status emit_all(cn_schema_job *job, json_t *schema, uint32_t rule)
{
    const cn_schema_place root = {.keyword = "", .index = CN_SCHEMA_NO_INDEX};
    cn_schema_terms terms = {0};
    uint32_t called;
    cn_status status = cn_schema_add_terms(job, root, schema, &terms);
    if (status == CN_OK) status = cn_schema_terms_rule(job, root, &terms, &called);
    if (status == CN_OK)
        cn_net_call(job->net, job->net->rules[rule].start, job->net->rules[rule].end, called);
    else
        cn_schema_terms_free(&terms);
    for (uint32_t i = 0; i < job->n_parts && status == CN_OK; i++) {
        status = emit_part(job, i);
        if (status == CN_OK) status = job->net->status;
        if (job->net->status == CN_ERR_ARG) status = cn_schema_wrong(job, i, "%s", cn_last_error());
    }
    return status;
}

cn_status cn_schema_emit(json_t *schema, bool strict, cn_net *net, const cn_json_rules *shared,
                         uint32_t rule)
{
    cn_schema_job job = {.root = schema,
                         .made = json_array(),
                         .formats = json_object(),
                         .scalars = json_object(),
                         .net = net,
                         .rules = *shared,
                         .strict = strict};
    job.parts = cn_calloc(CN_SCHEMA_MAX_PARTS + 1, sizeof *job.parts);
    job.table = cn_calloc(CN_SCHEMA_TABLE, sizeof *job.table);
    cn_status status = job.made && job.formats && job.scalars && job.parts && job.table
                           ? emit_all(&job, schema, rule)
                           : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    if (status == CN_OK && net->explains) status = explain(&job);
    for (uint32_t i = 0; i < job.n_parts; i++) cn_schema_terms_free(&job.parts[i].terms);
    cn_free(job.parts);
    cn_free(job.table);
    json_decref(job.made);
    json_decref(job.formats);
    json_decref(job.scalars);
    return status;
}
