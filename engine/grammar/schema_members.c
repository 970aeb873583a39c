/* schema_members.c - the members of an object: which names there are, and what holds for the value
 * of each. See schema_object.h.
 *
 * A name of `properties` or `required` is named. All others are in groups: those that match one
 * expression of patternProperties, and those that match none. A name that matches two expressions
 * is not read. */
#include <stdlib.h>

#include "engine/base/json.h"
#include "engine/grammar/schema_object.h"

enum { MAX_PATTERNS = CN_SCHEMA_MAX_GROUPS - 1 };

/* An expression of patternProperties. */
typedef struct name_pattern {
    cn_dfa names;
    const char *text;
    json_t *schema;
    uint32_t term;
} name_pattern;

typedef struct finder {
    cn_schema_job *job;
    uint32_t part;
    const cn_schema_terms *terms;
    cn_schema_members *out;
    name_pattern patterns[MAX_PATTERNS];
    uint32_t n_patterns;
    cn_dfa allowed;           /* by propertyNames */
    bool any_name;            /* there is no propertyNames */
    json_t *required, *named; /* sets of names */
    bool is_closed, is_open;  /* other members are excluded, or asked for */
} finder;

static cn_status no_object_memory(void)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
}

static bool may_drop(const finder *f, cn_status status)
{
    return status == CN_ERR_ARG && f->job->net->status == CN_OK;
}

bool cn_schema_requires(const json_t *schema, const char *name)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(schema, "required"), i, v)
    {
        const char *text = json_string_value(v);
        if (text && strcmp(text, name) == 0) return true;
    }
    return false;
}

/* ---- what the terms say of names ---- */

static cn_status read_required(finder *f, const json_t *schema)
{
    json_t *required = json_object_get(schema, "required"), *v;
    size_t i;
    if (json_is_boolean(required)) return CN_OK; /* of JSON Schema's third draft, of the member */
    if (required && !json_is_array(required))
        return cn_schema_wrong(f->job, f->part, "required: expected an array of names");
    json_array_foreach(required, i, v)
    {
        const char *name = json_string_value(v);
        if (!name) return cn_schema_wrong(f->job, f->part, "required: expected an array of names");
        if (json_object_set_new(f->required, name, json_null()) != 0) return no_object_memory();
    }
    return CN_OK;
}

static cn_status read_patterns(finder *f, uint32_t term)
{
    json_t *all = json_object_get(f->terms->list[term].schema, "patternProperties"), *schema;
    const char *text;
    if (all && !json_is_object(all))
        return cn_schema_wrong(f->job, f->part, "patternProperties: expected an object of schemas");
    json_object_foreach(all, text, schema)
    {
        char shown[CN_SCHEMA_SHOWN_BYTES];
        name_pattern p = {.text = text, .schema = schema, .term = term};
        cn_status status = f->n_patterns < MAX_PATTERNS
                               ? cn_dfa_from_regex(&p.names, text, strlen(text), true, f->job->net)
                               : cn_fail(CN_ERR_ARG, "more than %d expressions", MAX_PATTERNS);
        if (may_drop(f, status)) {
            cn_json_printable(text, shown, sizeof shown);
            CN_TRY(cn_schema_drop(f->job, f->part, "patternProperties '%s': %s", shown,
                                  cn_last_error()));
            continue;
        }
        CN_TRY(status);
        f->patterns[f->n_patterns++] = p;
    }
    return CN_OK;
}

static cn_status narrow_names(finder *f, json_t *schema)
{
    const cn_schema_place place = {
        .parent = f->part, .keyword = "propertyNames", .index = CN_SCHEMA_NO_INDEX};
    cn_schema_terms terms = {0};
    cn_dfa names = {0};
    bool any = true;
    cn_status status = cn_schema_add_terms(f->job, place, schema, &terms);
    if (status == CN_OK && terms.never)
        status = cn_dfa_from_words(&names, NULL, 0, f->job->net);
    else if (status == CN_OK)
        status = cn_schema_text_dfa(f->job, &terms, &names, &any);
    any = any && !terms.never;
    cn_schema_terms_free(&terms);
    if (status == CN_OK && !any && f->any_name) {
        f->allowed = names;
        f->any_name = false;
        return CN_OK;
    }
    if (status == CN_OK && !any) status = cn_dfa_narrow(&f->allowed, &names, false, f->job->net);
    cn_dfa_free(&names);
    if (may_drop(f, status))
        status = cn_schema_drop(f->job, f->part, "propertyNames: %s", cn_last_error());
    return status;
}

/* Whether terms exclude or ask for other members. */
static cn_status read_others(finder *f, const json_t *schema)
{
    const json_t *others = json_object_get(schema, "additionalProperties");
    const json_t *rest = json_object_get(schema, "unevaluatedProperties");
    if (json_is_false(others) || json_is_false(rest)) f->is_closed = true;
    if (others && !json_is_false(others)) f->is_open = true;
    if (rest && !json_is_boolean(rest))
        CN_TRY(cn_schema_drop(f->job, f->part, "unevaluatedProperties"));
    return CN_OK;
}

static cn_status read_terms(finder *f)
{
    bool has_names = false;
    for (uint32_t i = 0; i < f->terms->n; i++) {
        const json_t *s = f->terms->list[i].schema, *properties = json_object_get(s, "properties");
        json_t *names = json_object_get(s, "propertyNames");
        if (properties && !json_is_object(properties))
            return cn_schema_wrong(f->job, f->part, "properties: expected an object of schemas");
        has_names |= properties || json_object_get(s, "patternProperties");
        CN_TRY(read_required(f, s));
        CN_TRY(read_patterns(f, i));
        CN_TRY(read_others(f, s));
        if (names) CN_TRY(narrow_names(f, names));
    }
    if (!has_names) f->is_open = true;
    return CN_OK;
}

/* ---- values ---- */

static cn_status add_object_value(finder *f, const char *keyword, const char *name, json_t *schema,
                                  cn_schema_terms *io)
{
    const cn_schema_place place = {f->part, keyword, name, CN_SCHEMA_NO_INDEX};
    return cn_schema_add_terms(f->job, place, schema, io);
}

/* What term i says of the value of a name, which may be that of a group: `pattern`, or none. */
static cn_status add_term_value(finder *f, uint32_t i, const char *name,
                                const name_pattern *pattern, cn_schema_terms *io)
{
    const json_t *s = f->terms->list[i].schema;
    json_t *own = name ? json_object_get(json_object_get(s, "properties"), name) : NULL;
    json_t *others = json_object_get(s, "additionalProperties");
    bool found = own != NULL;
    if (own) CN_TRY(add_object_value(f, "properties", name, own, io));
    for (uint32_t k = 0; k < f->n_patterns; k++) {
        const name_pattern *p = &f->patterns[k];
        if (!cn_net_spend(f->job->net, name ? strlen(name) : 1)) return f->job->net->status;
        const bool matches = name ? cn_dfa_matches(&p->names, name, strlen(name)) : p == pattern;
        if (p->term != i || !matches) continue;
        found = true;
        CN_TRY(add_object_value(f, "patternProperties", p->text, p->schema, io));
    }
    if (!found && others)
        CN_TRY(add_object_value(f, "additionalProperties", name && own ? name : NULL, others, io));
    return CN_OK;
}

static cn_status object_value_rule(finder *f, const char *name, const name_pattern *pattern,
                                   uint32_t *rule)
{
    cn_schema_terms terms = {0};
    cn_status status = CN_OK;
    for (uint32_t i = 0; i < f->terms->n && status == CN_OK; i++)
        status = add_term_value(f, i, name, pattern, &terms);
    if (status == CN_OK && name && !f->any_name && !cn_dfa_matches(&f->allowed, name, strlen(name)))
        terms.never = true;
    cn_schema_place place = {f->part, "properties", name, CN_SCHEMA_NO_INDEX};
    if (!name) {
        place.keyword = pattern ? "patternProperties" : "additionalProperties";
        place.name = pattern ? pattern->text : NULL;
    }
    if (status == CN_OK) return cn_schema_terms_rule(f->job, place, &terms, rule);
    cn_schema_terms_free(&terms);
    return status;
}

/* ---- named members ---- */

static cn_status add_member(finder *f, const char *name)
{
    cn_schema_members *m = f->out;
    if (json_object_get(f->named, name)) return CN_OK;
    CN_TRY(CN_ROOM(&m->list, m->n, "the members of an object"));
    uint32_t value;
    CN_TRY(object_value_rule(f, name, NULL, &value));
    const bool required = json_object_get(f->required, name) != NULL;
    if (f->job->never && value == f->job->never && !required) /* it is never there */
        return json_object_set_new(f->named, name, json_null()) == 0 ? CN_OK : no_object_memory();
    json_t *string = json_string(name);
    char *text = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (!text) return no_object_memory();
    m->list[m->n++] = (cn_schema_member){text, value, required};
    return json_object_set_new(f->named, name, json_null()) == 0 ? CN_OK : no_object_memory();
}

static cn_status add_object_named(finder *f)
{
    const char *name;
    json_t *v;
    for (uint32_t i = 0; i < f->terms->n; i++) {
        json_t *properties = json_object_get(f->terms->list[i].schema, "properties");
        json_object_foreach(properties, name, v) CN_TRY(add_member(f, name));
    }
    json_object_foreach(f->required, name, v)
    {
        if (f->is_closed && f->terms->n == 1 && f->n_patterns == 0 &&
            !json_object_get(f->named, name))
            return cn_schema_wrong(f->job, f->part,
                                   "required names '%.64s', which is not a property", name);
        CN_TRY(add_member(f, name));
    }
    return CN_OK;
}

/* ---- groups ---- */

/* The rule of names of all groups, when no expression is about names. */
static cn_status plain_name_rule(finder *f, uint32_t *rule)
{
    cn_net_word *names = cn_calloc(json_object_size(f->named) + 1, sizeof *names);
    char **texts = cn_calloc(json_object_size(f->named) + 1, sizeof *texts);
    cn_status status = names && texts ? CN_OK : no_object_memory();
    const char *name;
    json_t *v;
    size_t n = 0;
    json_object_foreach(f->named, name, v)
    {
        json_t *string = json_string(name);
        char *text = status == CN_OK && string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
        json_decref(string);
        if (text) {
            texts[n] = text;
            names[n++] = (cn_net_word){text + 1, strlen(text) - 2};
        } else if (status == CN_OK) {
            status = no_object_memory();
        }
    }
    if (status == CN_OK) status = cn_schema_other_names(f->job, f->part, names, n, rule);
    for (size_t i = 0; i < n; i++) free(texts[i]);
    cn_free(names);
    cn_free(texts);
    return status;
}

/* Removes the named members from a machine. */
static cn_status remove_named(finder *f, cn_dfa *io)
{
    cn_net_word *words = cn_calloc(json_object_size(f->named) + 1, sizeof *words);
    const char *name;
    json_t *v;
    size_t n = 0;
    cn_dfa named;
    if (!words) return no_object_memory();
    json_object_foreach(f->named, name, v) words[n++] = (cn_net_word){name, strlen(name)};
    cn_status status = cn_dfa_from_words(&named, words, n, f->job->net);
    if (status == CN_OK) status = cn_dfa_narrow(io, &named, true, f->job->net);
    cn_dfa_free(&named);
    cn_free(words);
    return status;
}

/* The names of a group: `pattern`, or NULL, those that match none. */
static cn_status group_names(finder *f, const name_pattern *pattern, cn_dfa *out)
{
    CN_TRY(cn_dfa_from_length(out, 0, UINT32_MAX, f->job->net));
    if (pattern) CN_TRY(cn_dfa_narrow(out, &pattern->names, false, f->job->net));
    if (!f->any_name) CN_TRY(cn_dfa_narrow(out, &f->allowed, false, f->job->net));
    for (uint32_t i = 0; i < f->n_patterns; i++)
        if (&f->patterns[i] != pattern)
            CN_TRY(cn_dfa_narrow(out, &f->patterns[i].names, true, f->job->net));
    return remove_named(f, out);
}

static cn_status group_name_rule(finder *f, const name_pattern *pattern, uint32_t *rule)
{
    cn_net *net = f->job->net;
    cn_dfa names = {0};
    cn_status status = group_names(f, pattern, &names);
    if (status == CN_OK) {
        *rule = cn_net_rule_new(net);
        status = net->status;
    }
    if (status == CN_OK) {
        const cn_net_rule r = net->rules[*rule];
        const uint32_t close = cn_net_node_new(net);
        cn_net_byte(net, close, r.end, '"', '"');
        cn_dfa_emit(&names, CN_TEXT_JSON, net, cn_net_text(net, r.start, "\"", 1), close);
        status = net->status;
    }
    cn_dfa_free(&names);
    return status;
}

static cn_status add_group(finder *f, const name_pattern *pattern)
{
    cn_schema_group g;
    const bool plain = f->n_patterns == 0 && f->any_name;
    CN_TRY(object_value_rule(f, NULL, pattern, &g.value));
    if (f->job->never && g.value == f->job->never) return CN_OK;
    const cn_status status =
        plain ? plain_name_rule(f, &g.name) : group_name_rule(f, pattern, &g.name);
    if (may_drop(f, status) && !plain) /* names of the group are then not read: nothing is lost */
        return CN_OK;
    CN_TRY(status);
    f->out->groups[f->out->n_groups++] = g;
    return CN_OK;
}

static cn_status add_groups(finder *f)
{
    for (uint32_t i = 0; i < f->n_patterns; i++) CN_TRY(add_group(f, &f->patterns[i]));
    size_t n_required = json_object_size(f->required);
    const bool needs_more = f->out->least > f->out->n && n_required <= f->out->n;
    if (f->is_closed || !(f->is_open || needs_more)) return CN_OK;
    return add_group(f, NULL);
}

/* A second member of another name may have the same name again, so it does not count. */
static cn_status bound_least(finder *f)
{
    cn_schema_members *m = f->out;
    const size_t most = m->n + (m->n_groups > 0);
    if (m->least <= most || m->n_groups == 0) return CN_OK;
    CN_TRY(cn_schema_drop(f->job, f->part, "minProperties beyond %zu", most));
    m->least = (uint32_t)most;
    return CN_OK;
}

/* ---- members ---- */

static cn_status find_all(finder *f)
{
    if (!f->required || !f->named) return no_object_memory();
    CN_TRY(cn_schema_range(f->job, f->part, "minProperties", "maxProperties", &f->out->least,
                           &f->out->most));
    CN_TRY(read_terms(f));
    CN_TRY(add_object_named(f));
    CN_TRY(add_groups(f));
    return bound_least(f);
}

cn_status cn_schema_find_members(cn_schema_job *job, uint32_t part, cn_schema_members *out)
{
    finder f = {.job = job,
                .part = part,
                .terms = &job->parts[part].terms,
                .out = out,
                .any_name = true,
                .required = json_object(),
                .named = json_object()};
    out->most = UINT32_MAX;
    const cn_status status = find_all(&f);
    for (uint32_t i = 0; i < f.n_patterns; i++) cn_dfa_free(&f.patterns[i].names);
    cn_dfa_free(&f.allowed);
    json_decref(f.required);
    json_decref(f.named);
    return status;
}

void cn_schema_members_free(cn_schema_members *m)
{
    for (size_t i = 0; i < m->n; i++) free(m->list[i].text);
    cn_free(m->list);
    *m = (cn_schema_members){0};
}
