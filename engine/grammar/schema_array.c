/* schema_array.c - arrays of a schema. See schema_parts.h. */

#include "engine/grammar/schema_parts.h"

enum { MAX_UNIQUE = 64, MAX_ANY_ORDER = 6 };

typedef struct array_form {
    uint32_t n_first;     /* items with a schema of their own */
    uint32_t least, most; /* items */
    bool unique;
    bool closed;   /* no items beyond the first */
    bool followed; /* unique, in the text */
} array_form;

/* ---- what the terms say ---- */

/* The schemas of the first items: prefixItems, or `items` that is an array. */
static json_t *first_items(const json_t *schema)
{
    json_t *items = json_object_get(schema, "items");
    return json_is_array(items) ? items : json_object_get(schema, "prefixItems");
}

/* The schema of the others; NULL: any. */
static json_t *other_items(const json_t *schema, const char **key)
{
    json_t *items = json_object_get(schema, *key = "items");
    return json_is_array(items) ? json_object_get(schema, *key = "additionalItems") : items;
}

static cn_status read_form(const cn_schema_job *job, uint32_t part, array_form *out)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    *out = (array_form){.most = UINT32_MAX};
    CN_TRY(cn_schema_range(job, part, "minItems", "maxItems", &out->least, &out->most));
    for (uint32_t i = 0; i < terms->n; i++) {
        const json_t *s = terms->list[i].schema, *first = json_object_get(s, "prefixItems");
        if (first && !json_is_array(first))
            return cn_schema_wrong(job, part, "prefixItems: expected an array of schemas");
        const size_t n = json_array_size(first_items(s));
        out->n_first = cn_max_u32(out->n_first, (uint32_t)n);
        out->unique |= json_is_true(json_object_get(s, "uniqueItems"));
        const json_t *rest = json_object_get(s, "unevaluatedItems");
        out->closed |= json_is_false(rest);
        if (rest && !json_is_boolean(rest)) CN_TRY(cn_schema_drop(job, part, "unevaluatedItems"));
    }
    return CN_OK;
}

/* What holds for item i, or for those after the first. */
static cn_status item_terms(cn_schema_job *job, uint32_t part, uint32_t i, cn_schema_terms *out)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    for (uint32_t k = 0; k < terms->n; k++) {
        cn_schema_place place = {.parent = part, .index = CN_SCHEMA_NO_INDEX};
        const json_t *s = terms->list[k].schema;
        json_t *first = first_items(s), *own = json_array_get(first, i);
        if (own) {
            place.keyword = first == json_object_get(s, "items") ? "items" : "prefixItems";
            place.index = i;
        } else {
            own = other_items(s, &place.keyword);
        }
        if (own) CN_TRY(cn_schema_add_terms(job, place, own, out));
    }
    return CN_OK;
}

static cn_status item_rule(cn_schema_job *job, uint32_t part, uint32_t i, uint32_t n_first,
                           uint32_t *rule)
{
    cn_schema_terms terms = {0};
    cn_schema_place place = {.parent = part, .keyword = "items", .index = CN_SCHEMA_NO_INDEX};
    if (i < n_first) place = (cn_schema_place){part, "prefixItems", NULL, i};
    cn_status status = item_terms(job, part, i, &terms);
    if (status == CN_OK) return cn_schema_terms_rule(job, place, &terms, rule);
    cn_schema_terms_free(&terms);
    return status;
}

/* ---- items that differ ---- */

/* Values of a list are in the network: any order of few, the order of the list of more. Other
 * strings, numbers and literals are followed in the text (unique_items.h). */

/* Whether value i equals an earlier one. */
static bool is_among(const json_t *values, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (cn_schema_same_value(json_array_get(values, k), json_array_get(values, i))) return true;
    return false;
}

/* A new array of all values that an item may have. NULL: there are more than MAX_UNIQUE, or they
 * are not found. */
static json_t *list_values(const cn_schema_job *job, const cn_schema_terms *terms)
{
    cn_status status = CN_OK;
    json_t *values = cn_schema_values(job, terms, &status);
    unsigned types = UINT32_MAX;
    for (uint32_t i = 0; i < terms->n && !values; i++) {
        const json_t *s = terms->list[i].schema;
        if (json_object_get(s, "anyOf") || json_object_get(s, "oneOf")) return NULL;
        types &= cn_schema_types(s);
    }
    if (!values && types == 1U << CN_JSON_BOOLEAN) values = json_pack("[b, b]", 0, 1);
    if (!values && types == 1U << CN_JSON_NULL) values = json_pack("[n]");
    for (size_t i = json_array_size(values); i > 0 && i <= MAX_UNIQUE; i--)
        if (is_among(values, i - 1)) json_array_remove(values, i - 1);
    if (json_array_size(values) <= MAX_UNIQUE) return values;
    json_decref(values);
    return NULL;
}

static cn_status value_rule(cn_schema_job *job, json_t *value, uint32_t *rule)
{
    json_t *one = json_pack("[O]", value);
    if (!one) return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    *rule = cn_net_rule_new(job->net);
    cn_status status = job->net->status;
    if (status == CN_OK) status = cn_schema_emit_values(job, one, job->net->rules[*rule]);
    json_decref(one);
    return status;
}

/* A state of reading different values: which were read, and how many count. */
typedef struct unique_job {
    cn_schema_job *job;
    const array_form *form;
    const uint32_t *rules; /* [n] of the values */
    uint32_t n, end;
} unique_job;

/* Any order: a node for each set of values. */
static void emit_sets(const unique_job *u, uint32_t open)
{
    cn_net *net = u->job->net;
    uint32_t nodes[1 << MAX_ANY_ORDER];
    for (uint32_t set = 0; set < 1U << u->n; set++) nodes[set] = set ? cn_net_node_new(net) : open;
    for (uint32_t set = 0; set < 1U << u->n && net->status == CN_OK; set++) {
        const uint32_t count = (uint32_t)__builtin_popcount(set);
        const uint32_t here = nodes[set];
        if (count >= u->form->least)
            cn_net_byte(net, set ? cn_json_space(net, &u->job->rules, here) : here, u->end, ']',
                        ']');
        if (count >= u->form->most || count == u->n) continue;
        const uint32_t next = set ? cn_json_mark(net, &u->job->rules, here, ',') : here;
        for (uint32_t i = 0; i < u->n; i++)
            if (!(set >> i & 1)) cn_net_call(net, next, nodes[set | 1U << i], u->rules[i]);
    }
}

/* In the order of the list. At choose[i] value i or a later one follows; at read[i] the value
 * before i or an earlier one was read. Values are counted up to `most`, or to `least` if `most` is
 * no limit. */
static void emit_in_order(const unique_job *u, uint32_t open)
{
    cn_net *net = u->job->net;
    const bool limited = u->form->most < u->n;
    const uint32_t last = limited ? u->form->most : cn_max_u32(u->form->least, 1);
    uint32_t choose[MAX_UNIQUE + 1], next[MAX_UNIQUE + 1];
    if (u->form->least == 0) cn_net_byte(net, open, u->end, ']', ']');
    if (last == 0) return;
    for (uint32_t i = 0; i <= u->n; i++) choose[i] = i ? cn_net_node_new(net) : open;
    for (uint32_t count = 1; count <= last + 1 && net->status == CN_OK; count++) {
        /* The values that are number `count`; those after `last` are number `last` again. */
        const bool again = count > last;
        if (again && limited) break;
        for (uint32_t i = 0; i <= u->n && !again; i++) next[i] = cn_net_node_new(net);
        for (uint32_t i = 0; i < u->n; i++) {
            cn_net_empty(net, choose[i], choose[i + 1]);
            const uint32_t read = cn_net_node_new(net);
            cn_net_call(net, choose[i], read, u->rules[i]);
            if (count >= u->form->least)
                cn_net_byte(net, cn_json_space(net, &u->job->rules, read), u->end, ']', ']');
            cn_net_empty(net, cn_json_mark(net, &u->job->rules, read, ','), next[i + 1]);
        }
        if (!again) memcpy(choose, next, sizeof choose);
    }
}

static cn_status emit_unique(cn_schema_job *job, const json_t *values, const array_form *form,
                             uint32_t open, cn_net_rule rule)
{
    uint32_t rules[MAX_UNIQUE];
    const unique_job u = {job, form, rules, (uint32_t)json_array_size(values), rule.end};
    for (uint32_t i = 0; i < u.n; i++)
        CN_TRY(value_rule(job, json_array_get(values, i), &rules[i]));
    if (u.n <= MAX_ANY_ORDER)
        emit_sets(&u, open);
    else
        emit_in_order(&u, open);
    return job->net->status;
}

/* Whether the text says which values it has so far, so that they may come in any order. */
static bool is_tracked(const json_t *values)
{
    size_t i;
    json_t *v;
    json_array_foreach(values, i, v) if (json_is_array(v) || json_is_object(v)) return false;
    return json_array_size(values) > MAX_ANY_ORDER;
}

/* Sets *scalar to false if item i may be an array or an object. */
static cn_status items_are_scalar(cn_schema_job *job, uint32_t part, uint32_t i, bool *scalar)
{
    cn_schema_terms terms = {0};
    cn_status status = item_terms(job, part, i, &terms);
    if (status == CN_OK) status = cn_schema_are_scalar(job, &terms, scalar);
    cn_schema_terms_free(&terms);
    return status;
}

/* Items that are followed are read by a rule of their own, `items`: all between the brackets. */
static cn_status follow_items(cn_schema_job *job, uint32_t part, uint32_t begin, uint32_t end,
                              uint32_t *items)
{
    cn_buf place = {0};
    const uint32_t behind = cn_net_node_new(job->net);
    *items = cn_net_rule_new(job->net);
    cn_status status = job->net->status;
    if (status == CN_OK) status = cn_schema_add_place(job, part, &place);
    if (status == CN_OK) cn_net_unique(job->net, begin, behind, *items, place.data);
    cn_net_byte(job->net, behind, end, ']', ']');
    cn_buf_free(&place);
    return status == CN_OK ? job->net->status : status;
}

/* begin: the node after the '['. *done: the array is emitted. *items: the rule of what is followed;
 * 0: none. */
static cn_status try_unique(cn_schema_job *job, uint32_t part, const array_form *form,
                            uint32_t begin, cn_net_rule rule, bool *done, uint32_t *items)
{
    cn_schema_terms terms = {0};
    cn_status status = form->n_first == 0 ? item_terms(job, part, 0, &terms) : CN_OK;
    json_t *values = status == CN_OK && !terms.never ? list_values(job, &terms) : NULL;
    cn_schema_terms_free(&terms);
    *done = values && !is_tracked(values);
    if (values && is_tracked(values)) {
        *done = form->least > json_array_size(values); /* no array is valid */
    } else if (values) {
        status = emit_unique(job, values, form, cn_json_space(job->net, &job->rules, begin), rule);
    }
    json_decref(values);
    if (status != CN_OK || *done || form->most <= 1) return status;
    const uint32_t n_kinds = cn_min_u32(form->n_first + !form->closed, form->most);
    bool scalar = form->n_first == 0 || form->least <= 1;
    for (uint32_t i = 0; i < n_kinds && scalar && status == CN_OK; i++)
        status = items_are_scalar(job, part, i, &scalar);
    if (status == CN_OK && scalar) return follow_items(job, part, begin, rule.end, items);
    CN_TRY(status);
    return cn_schema_drop(job, part,
                          "uniqueItems of items that may be arrays or objects, or of prefixItems "
                          "with minItems");
}

/* ---- arrays ---- */

/* The end of an array, or of its items if they are followed. */
static void close_array(cn_schema_job *job, const array_form *form, uint32_t from, uint32_t to,
                        bool empty)
{
    const uint32_t close = empty ? from : cn_json_space(job->net, &job->rules, from);
    if (form->followed)
        cn_net_empty(job->net, close, to);
    else
        cn_net_byte(job->net, close, to, ']', ']');
}

/* Items with a schema of their own. *at: the node after them. */
static cn_status emit_first(cn_schema_job *job, uint32_t part, const array_form *form,
                            cn_net_rule rule, uint32_t *at)
{
    const uint32_t n = cn_min_u32(form->n_first, form->most);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t called;
        const uint32_t next = cn_net_node_new(job->net);
        CN_TRY(item_rule(job, part, i, form->n_first, &called));
        if (i >= form->least) close_array(job, form, *at, rule.end, i == 0);
        if (i > 0) *at = cn_json_mark(job->net, &job->rules, *at, ',');
        cn_net_call(job->net, *at, next, called);
        *at = next;
    }
    return job->net->status;
}

cn_status cn_schema_emit_array(cn_schema_job *job, uint32_t part, cn_net_rule rule)
{
    cn_net *net = job->net;
    array_form form;
    uint32_t rest, items = 0;
    bool done = false;
    CN_TRY(read_form(job, part, &form));
    if (form.least > form.most) return CN_OK;
    uint32_t at = cn_net_text(net, rule.start, "[", 1), n = form.n_first;
    if (form.unique) CN_TRY(try_unique(job, part, &form, at, rule, &done, &items));
    if (done) return CN_OK;
    form.followed = items != 0;
    if (form.followed) {
        rule = net->rules[items];
        at = rule.start;
    }
    at = cn_json_space(net, &job->rules, at);
    CN_TRY(emit_first(job, part, &form, rule, &at));
    if (n >= form.least) close_array(job, &form, at, rule.end, n == 0);
    if (form.most <= n || form.closed) return net->status;
    CN_TRY(item_rule(job, part, n, n, &rest));
    const uint32_t more = cn_net_rule_new(net);
    CN_TRY(net->status);
    cn_net_call(net, cn_json_mark(net, &job->rules, net->rules[more].start, ','),
                net->rules[more].end, rest);
    if (n == 0) {
        const uint32_t next = cn_net_node_new(net);
        cn_net_call(net, at, next, rest);
        at = next;
        n = 1;
    }
    const uint32_t least = form.least > n ? form.least - n : 0;
    const uint32_t most = form.most == UINT32_MAX ? form.most : form.most - n;
    close_array(job, &form, cn_net_repeat(net, at, more, least, most), rule.end, false);
    return net->status;
}
