/* schema_nested.c - objects and arrays of a schema. See schema_parts.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/charset.h"
#include "engine/grammar/schema_parts.h"

enum { MAX_NAME_BYTES = 256, NOWHERE = UINT32_MAX };

/* ---- arrays ---- */

static void close_array(cn_schema_job *job, uint32_t from, uint32_t to, bool empty)
{
    const uint32_t close = empty ? from : cn_json_space(job->net, &job->rules, from);
    cn_net_byte(job->net, close, to, ']', ']');
}

cn_status cn_schema_emit_array(cn_schema_job *job, uint32_t part, cn_net_rule rule)
{
    cn_net *net = job->net;
    json_t *schema = job->parts[part].schema;
    json_t *items = json_object_get(schema, "items"),
           *first = json_object_get(schema, "prefixItems");
    uint32_t least = 0, most = UINT32_MAX, rest = job->rules.any_value, called;
    CN_TRY(cn_schema_count(job, part, "minItems", &least));
    CN_TRY(cn_schema_count(job, part, "maxItems", &most));
    const cn_schema_part rest_place = {
        .parent = part, .keyword = "items", .index = CN_SCHEMA_NO_INDEX};
    if (items) CN_TRY(cn_schema_rule(job, items, rest_place, &rest));
    if (first && !json_is_array(first))
        return cn_schema_wrong(job, part, "prefixItems: expected an array of schemas");
    const uint32_t n_first = (uint32_t)json_array_size(first);
    uint32_t at = cn_json_mark(net, &job->rules, rule.start, '[');
    const uint32_t n = most != UINT32_MAX ? most : cn_max_u32(least, n_first);
    for (uint32_t i = 0; i < n && net->status == CN_OK; i++) {
        const cn_schema_part place = {.parent = part, .keyword = "prefixItems", .index = i};
        called = rest;
        if (i < n_first) CN_TRY(cn_schema_rule(job, json_array_get(first, i), place, &called));
        if (i >= least) close_array(job, at, rule.end, i == 0);
        if (i > 0) at = cn_json_mark(net, &job->rules, at, ',');
        const uint32_t next = cn_net_node_new(net);
        cn_net_call(net, at, next, called);
        at = next;
    }
    if (most == UINT32_MAX) {
        const uint32_t item = cn_net_node_new(net), behind = cn_net_node_new(net);
        cn_net_empty(net, n > 0 ? cn_json_mark(net, &job->rules, at, ',') : at, item);
        cn_net_call(net, item, behind, rest);
        cn_net_empty(net, cn_json_mark(net, &job->rules, behind, ','), item);
        close_array(job, behind, rule.end, false);
    }
    if (n >= least) close_array(job, at, rule.end, n == 0);
    return CN_OK;
}

/* ---- names of other members ---- */

typedef struct other_names {
    cn_schema_job *job;
    uint32_t character, escaped, beyond; /* rules of a character: any, one that must be escaped,
                                          * one beyond ASCII */
    uint32_t free, end; /* behind bytes that begin no known name; behind the closing quote */
} other_names;

/* Leaves the known names: reads a character that none of them has here. A name with an escape or a
 * character beyond ASCII here excludes all of that kind. */
static void leave_names(const other_names *o, const bool *known, uint32_t from)
{
    cn_net *net = o->job->net;
    bool beyond = false;
    for (int b = 0x80; b < 256; b++) beyond |= known[b];
    for (int b = 0x20, last; b < 0x80; b = last + 1) {
        last = b;
        if (b == '"' || b == '\\' || known[b]) continue;
        while (last + 1 < 0x80 && last + 1 != '"' && last + 1 != '\\' && !known[last + 1]) last++;
        cn_net_byte(net, from, o->free, (uint8_t)b, (uint8_t)last);
    }
    if (!known['\\']) cn_net_call(net, from, o->free, o->escaped);
    if (!beyond) cn_net_call(net, from, o->free, o->beyond);
}

/* `names`, as in JSON without the quotes, are sorted and have the same first `at` bytes, which were
 * read. */
static void emit_names(const other_names *o, const cn_net_word *names, size_t n, size_t at,
                       uint32_t from)
{
    cn_net *net = o->job->net;
    bool known[256] = {false};
    if (!cn_net_spend(net, sizeof known / 8 + n)) return;
    if (n == 0 || names[0].len > at) cn_net_byte(net, from, o->end, '"', '"');
    for (size_t i = 0; i < n; i++)
        if (names[i].len > at) known[(uint8_t)names[i].bytes[at]] = true;
    leave_names(o, known, from);
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        if (names[i].len == at) {
            i++;
            continue;
        }
        while (end < n && names[end].bytes[at] == names[i].bytes[at]) end++;
        const uint32_t next = cn_net_text(net, from, &names[i].bytes[at], 1);
        emit_names(o, names + i, end - i, at + 1, next);
        i = end;
    }
}

/* A rule that reads a character of the set in a JSON string. */
static uint32_t character_rule(cn_net *net, const cn_charset *set)
{
    const uint32_t rule = cn_net_rule_new(net);
    if (net->status != CN_OK) return rule;
    cn_charset_emit(set, CN_TEXT_JSON, net, net->rules[rule].start, net->rules[rule].end);
    return rule;
}

/* A rule that reads a string which is none of the names. */
static cn_status other_name_rule(cn_schema_job *job, uint32_t part, cn_net_word *names, size_t n,
                                 uint32_t *rule)
{
    cn_net *net = job->net;
    *rule = job->rules.any_string;
    if (n == 0) return CN_OK;
    for (size_t i = 0; i < n; i++)
        if (names[i].len > MAX_NAME_BYTES)
            return cn_schema_wrong(job, part,
                                   "a property name of %zu bytes beside additionalProperties: "
                                   "expected at most %d",
                                   names[i].len, MAX_NAME_BYTES);
    cn_net_sort_words(names, n);
    *rule = cn_net_rule_new(net);
    CN_TRY(net->status);
    cn_charset all = {.n = 0}, escaped = {.n = 0}, beyond = {.n = 0};
    cn_charset_try_add(&all, 0, CN_LAST_CHAR);
    cn_charset_try_add(&escaped, 0, 0x1f);
    cn_charset_try_add(&escaped, '"', '"');
    cn_charset_try_add(&escaped, '\\', '\\');
    cn_charset_try_add(&beyond, 0x80, CN_LAST_CHAR);
    const other_names o = {.job = job,
                           .character = character_rule(net, &all),
                           .escaped = character_rule(net, &escaped),
                           .beyond = character_rule(net, &beyond),
                           .free = cn_net_node_new(net),
                           .end = net->rules[*rule].end};
    CN_TRY(net->status);
    cn_net_call(net, o.free, o.free, o.character);
    cn_net_byte(net, o.free, o.end, '"', '"');
    emit_names(&o, names, n, 0, cn_net_text(net, net->rules[*rule].start, "\"", 1));
    return net->status;
}

/* ---- objects ---- */

typedef struct member {
    char *text; /* the name as a JSON string; from json_dumps */
    uint32_t value;
    bool required;
} member;

typedef struct members {
    member *list;
    size_t n, cap;
    bool others; /* there may be members of other names */
    uint32_t other_name, other_value;
} members;

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

static cn_status add_member(members *m, const char *name, uint32_t value, bool required)
{
    json_t *string = json_string(name);
    char *text = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (m->n == m->cap) {
        const size_t cap = 2 * m->cap + 8;
        member *list = cn_realloc(m->list, cap, sizeof *list);
        if (list) m->list = list, m->cap = cap;
    }
    if (!text || m->n == m->cap) {
        free(text);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    }
    m->list[m->n++] = (member){text, value, required};
    return CN_OK;
}

static cn_status read_others(cn_schema_job *job, uint32_t part, members *m)
{
    json_t *schema = job->parts[part].schema;
    json_t *v = json_object_get(schema, "additionalProperties");
    m->others = v ? !json_is_false(v) : !json_object_get(schema, "properties");
    m->other_value = job->rules.any_value;
    const cn_schema_part place = {
        .parent = part, .keyword = "additionalProperties", .index = CN_SCHEMA_NO_INDEX};
    return v && m->others ? cn_schema_rule(job, v, place, &m->other_value) : CN_OK;
}

/* Makes a set of the names in `required`. */
static cn_status read_required(cn_schema_job *job, uint32_t part, json_t *set)
{
    json_t *required = json_object_get(job->parts[part].schema, "required"), *v;
    size_t i;
    if (required && !json_is_array(required))
        return cn_schema_wrong(job, part, "required: expected an array of names");
    json_array_foreach(required, i, v)
    {
        const char *name = json_string_value(v);
        if (!name) return cn_schema_wrong(job, part, "required: expected an array of names");
        if (json_object_set_new(set, name, json_null()) != 0)
            return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    }
    return CN_OK;
}

static cn_status read_members(cn_schema_job *job, uint32_t part, const json_t *required, members *m)
{
    json_t *schema = job->parts[part].schema, *v;
    json_t *properties = json_object_get(schema, "properties");
    const char *name;
    if (properties && !json_is_object(properties))
        return cn_schema_wrong(job, part, "properties: expected an object of schemas");
    CN_TRY(read_others(job, part, m));
    json_object_foreach(properties, name, v)
    {
        uint32_t value;
        const cn_schema_part place = {
            .parent = part, .keyword = "properties", .name = name, .index = CN_SCHEMA_NO_INDEX};
        CN_TRY(cn_schema_rule(job, v, place, &value));
        CN_TRY(add_member(m, name, value, json_object_get(required, name) != NULL));
    }
    json_object_foreach((json_t *)required, name, v)
    {
        if (json_object_get(properties, name)) continue;
        if (!m->others && json_object_get(schema, "additionalProperties"))
            return cn_schema_wrong(job, part, "required names '%.64s', which is no property", name);
        CN_TRY(add_member(m, name, m->other_value, true));
    }
    return CN_OK;
}

static cn_status name_others(cn_schema_job *job, uint32_t part, members *m)
{
    if (!m->others) return CN_OK;
    cn_net_word *names = cn_calloc(m->n + 1, sizeof *names);
    if (!names) return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    for (size_t i = 0; i < m->n; i++)
        names[i] = (cn_net_word){m->list[i].text + 1, strlen(m->list[i].text) - 2};
    const cn_status status = other_name_rule(job, part, names, m->n, &m->other_name);
    cn_free(names);
    return status;
}

/* Reads members in order. `none` is the node where no member was read yet, `some` where one was;
 * both lead to the same member, `some` over a comma. */
static void emit_members(cn_schema_job *job, const members *m, cn_net_rule rule)
{
    cn_net *net = job->net;
    const cn_json_rules *r = &job->rules;
    uint32_t none = cn_json_mark(net, r, rule.start, '{'), some = NOWHERE;
    for (size_t i = 0; i <= m->n && net->status == CN_OK; i++) {
        if (i == m->n && !m->others) break;
        const uint32_t here = cn_net_node_new(net);
        const uint32_t next = i == m->n && some != NOWHERE ? some : cn_net_node_new(net);
        if (none != NOWHERE) cn_net_empty(net, none, here);
        if (some != NOWHERE) cn_net_empty(net, cn_json_mark(net, r, some, ','), here);
        uint32_t name;
        if (i == m->n)
            cn_net_call(net, here, name = cn_net_node_new(net), m->other_name);
        else
            name = cn_net_text(net, here, m->list[i].text, strlen(m->list[i].text));
        const uint32_t value = i == m->n ? m->other_value : m->list[i].value;
        cn_net_call(net, cn_json_mark(net, r, name, ':'), next, value);
        if (i == m->n) {
            if (some == NOWHERE) cn_net_empty(net, cn_json_mark(net, r, next, ','), here);
        } else if (m->list[i].required) {
            none = NOWHERE;
        } else if (some != NOWHERE) {
            cn_net_empty(net, some, next);
        }
        some = next;
    }
    if (none != NOWHERE) cn_net_byte(net, none, rule.end, '}', '}');
    if (some == NOWHERE) return;
    cn_net_byte(net, cn_json_space(net, r, some), rule.end, '}', '}');
}

cn_status cn_schema_emit_object(cn_schema_job *job, uint32_t part, cn_net_rule rule)
{
    members m = {.n = 0};
    json_t *required = json_object();
    cn_status status = required ? read_required(job, part, required)
                                : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    if (status == CN_OK) status = read_members(job, part, required, &m);
    json_decref(required);
    if (status == CN_OK) status = name_others(job, part, &m);
    if (status == CN_OK) emit_members(job, &m, rule);
    for (size_t i = 0; i < m.n; i++) free(m.list[i].text);
    cn_free(m.list);
    return status;
}
