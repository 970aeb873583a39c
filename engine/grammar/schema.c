/* schema.c - see schema.h. Each schema inside the schema is a part with a rule of its own, so that
 * $ref may be recursive. Parts wait in a list; compiling one may add others. */
#include "engine/grammar/schema_parts.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "engine/grammar/regex.h"
#include "engine/json.h"

enum { SHOWN_BYTES = 96, MAX_REFS = 64, ALL_TYPES = (1 << CN_N_JSON_TYPES) - 1 };

static const char *const type_names[CN_N_JSON_TYPES] = {
    [CN_JSON_STRING] = "string", [CN_JSON_NUMBER] = "number", [CN_JSON_INTEGER] = "integer",
    [CN_JSON_OBJECT] = "object", [CN_JSON_ARRAY] = "array",   [CN_JSON_BOOLEAN] = "boolean",
    [CN_JSON_NULL] = "null",
};

/* The keywords that only concern one type, and those that stand alone. */
typedef enum keyword_kind { NOTE, TYPE, OF_TYPE, ALONE } keyword_kind;

static const struct keyword {
    const char *name;
    keyword_kind kind;
    unsigned types; /* OF_TYPE: the types that a schema without `type` has */
} keywords[] = {
    {"title", NOTE, 0},
    {"description", NOTE, 0},
    {"default", NOTE, 0},
    {"example", NOTE, 0},
    {"examples", NOTE, 0},
    {"deprecated", NOTE, 0},
    {"readOnly", NOTE, 0},
    {"writeOnly", NOTE, 0},
    {"discriminator", NOTE, 0},
    {"$schema", NOTE, 0},
    {"$id", NOTE, 0},
    {"$comment", NOTE, 0},
    {"$defs", NOTE, 0},
    {"definitions", NOTE, 0},
    {"type", TYPE, 0},
    {"enum", ALONE, 0},
    {"const", ALONE, 0},
    {"anyOf", ALONE, 0},
    {"oneOf", ALONE, 0},
    {"allOf", ALONE, 0},
    {"$ref", ALONE, 0},
    {"properties", OF_TYPE, 1 << CN_JSON_OBJECT},
    {"required", OF_TYPE, 1 << CN_JSON_OBJECT},
    {"additionalProperties", OF_TYPE, 1 << CN_JSON_OBJECT},
    {"items", OF_TYPE, 1 << CN_JSON_ARRAY},
    {"prefixItems", OF_TYPE, 1 << CN_JSON_ARRAY},
    {"minItems", OF_TYPE, 1 << CN_JSON_ARRAY},
    {"maxItems", OF_TYPE, 1 << CN_JSON_ARRAY},
    {"minLength", OF_TYPE, 1 << CN_JSON_STRING},
    {"maxLength", OF_TYPE, 1 << CN_JSON_STRING},
    {"pattern", OF_TYPE, 1 << CN_JSON_STRING},
    {"format", OF_TYPE, 1 << CN_JSON_STRING},
    {"minimum", OF_TYPE, 1 << CN_JSON_NUMBER},
    {"maximum", OF_TYPE, 1 << CN_JSON_NUMBER},
    {"exclusiveMinimum", OF_TYPE, 1 << CN_JSON_NUMBER},
    {"exclusiveMaximum", OF_TYPE, 1 << CN_JSON_NUMBER},
};

/* ---- errors and parts ---- */

/* The JSON Pointer of a part. */
static void add_place(const cn_schema_job *job, uint32_t part, cn_buf *out)
{
    uint32_t above[CN_SCHEMA_MAX_DEPTH], n = 0;
    for (; part > 0 && n < CN_SCHEMA_MAX_DEPTH; part = job->parts[part].parent) above[n++] = part;
    cn_status status = cn_buf_add(out, "#", 1);
    while (n > 0 && status == CN_OK) {
        const cn_schema_part *p = &job->parts[above[--n]];
        char shown[SHOWN_BYTES];
        status = cn_buf_addf(out, "/%s", p->keyword);
        if (status == CN_OK && p->name)
            status = cn_buf_addf(out, "/%s", cn_json_printable(p->name, shown, sizeof shown));
        if (status == CN_OK && p->index != CN_SCHEMA_NO_INDEX)
            status = cn_buf_addf(out, "/%zu", p->index);
    }
}

cn_status cn_schema_wrong(const cn_schema_job *job, uint32_t part, const char *fmt, ...)
{
    cn_buf place = {0};
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    add_place(job, part, &place);
    cn_status status = cn_fail(CN_ERR_ARG, "schema at %s: %s", place.data ? place.data : "#", what);
    cn_buf_free(&place);
    return status;
}

size_t cn_schema_size(const json_t *v)
{
    size_t n = 1 + json_string_length(v), i;
    const char *name;
    json_t *inner;
    json_array_foreach((json_t *)v, i, inner) n += cn_schema_size(inner);
    json_object_foreach((json_t *)v, name, inner) n += 1 + strlen(name) + cn_schema_size(inner);
    return n;
}

json_t *cn_schema_find(const cn_schema_job *job, const json_t *text)
{
    const char *ref = json_string_value(text);
    if (!ref || !cn_net_spend(job->net, 1 + json_string_length(text)) || *ref++ != '#') return NULL;
    json_t *at = job->root;
    while (*ref == '/' && at) {
        char name[256];
        size_t n = 0;
        for (ref++; *ref && *ref != '/' && n + 1 < sizeof name; ref++) {
            const bool escaped = *ref == '~' && (ref[1] == '0' || ref[1] == '1');
            name[n++] = !escaped ? *ref : *++ref == '0' ? '~' : '/';
        }
        name[n] = '\0';
        if (json_is_array(at)) {
            const size_t digits = strspn(name, "0123456789");
            const bool index = n > 0 && n < 9 && digits == n;
            at = index ? json_array_get(at, (size_t)strtoul(name, NULL, 10)) : NULL;
        } else {
            at = json_object_get(at, name);
        }
    }
    return *ref ? NULL : at;
}

static cn_status resolve(cn_schema_job *job, uint32_t parent, json_t **schema)
{
    for (uint32_t n = 0; json_object_get(*schema, "$ref"); n++) {
        json_t *ref = json_object_get(*schema, "$ref");
        char shown[SHOWN_BYTES];
        cn_json_describe(ref, shown, sizeof shown);
        if (json_object_size(*schema) > 1 && n == 0) return CN_OK; /* compiled as a part */
        json_t *to = cn_schema_find(job, ref);
        CN_TRY(job->net->status);
        if (!to)
            return cn_schema_wrong(job, parent, "$ref: expected a part of this schema, got %s",
                                   shown);
        if (n == MAX_REFS) return cn_schema_wrong(job, parent, "$ref %s refers to itself", shown);
        *schema = to;
        if (json_object_size(to) > 1) return CN_OK;
    }
    return CN_OK;
}

/* The slot of a schema's part, or a free one. */
static uint32_t *find_part(const cn_schema_job *job, const json_t *schema)
{
    uint32_t at = (uint32_t)(cn_hash64(0, &schema, sizeof schema) % CN_SCHEMA_TABLE);
    while (job->table[at] && job->parts[job->table[at]].schema != schema)
        at = (at + 1) % CN_SCHEMA_TABLE;
    return &job->table[at];
}

cn_status cn_schema_rule(cn_schema_job *job, json_t *schema, cn_schema_part place, uint32_t *rule)
{
    CN_TRY(resolve(job, place.parent, &schema));
    if (json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0)) {
        *rule = job->rules.any_value;
        return CN_OK;
    }
    if (schema == job->root) {
        *rule = job->parts[0].rule;
        return CN_OK;
    }
    uint32_t *slot = find_part(job, schema);
    if (*slot && !json_is_false(schema)) {
        *rule = job->parts[*slot].rule;
        return CN_OK;
    }
    if (job->n_parts == CN_SCHEMA_MAX_PARTS)
        return cn_schema_wrong(job, place.parent, "expected at most %d schemas inside the schema",
                               CN_SCHEMA_MAX_PARTS);
    *rule = cn_net_rule_new(job->net);
    CN_TRY(job->net->status);
    place.schema = schema;
    place.rule = *rule;
    *slot = job->n_parts;
    job->parts[job->n_parts++] = place;
    return CN_OK;
}

cn_status cn_schema_count(const cn_schema_job *job, uint32_t part, const char *key, uint32_t *out)
{
    json_t *v = json_object_get(job->parts[part].schema, key);
    int64_t n;
    char shown[SHOWN_BYTES];
    if (!v) return CN_OK;
    if (!cn_json_as_i64(v, 0, CN_NET_MAX_NODES, &n))
        return cn_schema_wrong(job, part, "%s: expected a whole number from 0 to %d, got %s", key,
                               CN_NET_MAX_NODES, cn_json_describe(v, shown, sizeof shown));
    *out = (uint32_t)n;
    return CN_OK;
}

/* ---- strings ---- */

static const char *format_pattern(const char *name)
{
#define LEAP_YEAR /* from 1000 on */                  \
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|" \
    "(?:[2468][048]|[13579][26])00)"
#define DATE                                                          \
    "(?:[1-9][0-9]{3}-(?:(?:0[13-9]|1[0-2])-(?:0[1-9]|[12][0-9]|30)|" \
    "02-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13578]|1[02])-31)|" LEAP_YEAR "-02-29)"
#define TIME                                                       \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?" \
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?" /* of a domain */
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "T" TIME},
        {"uuid", "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"},
        {"ipv4", "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])[.]){3}"
                 "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
        {"email", ATOM "(?:[.]" ATOM "){0,3}@" LABEL "(?:[.]" LABEL "){0,4}[.][A-Za-z]{2,24}"},
    };
#undef LEAP_YEAR
#undef DATE
#undef TIME
#undef ATOM
#undef LABEL
    for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) return formats[i].pattern;
    return NULL;
}

static void emit_length(cn_schema_job *job, uint32_t from, uint32_t to, uint32_t least,
                        uint32_t most)
{
    cn_net *net = job->net;
    for (uint32_t i = 0; i < least && net->status == CN_OK; i++) {
        const uint32_t next = cn_net_node_new(net);
        cn_net_call(net, from, next, job->rules.character);
        from = next;
    }
    if (most == UINT32_MAX) cn_net_call(net, from, from, job->rules.character);
    for (uint32_t i = least; most != UINT32_MAX && i < most && net->status == CN_OK; i++) {
        const uint32_t next = cn_net_node_new(net);
        cn_net_byte(net, from, to, '"', '"');
        cn_net_call(net, from, next, job->rules.character);
        from = next;
    }
    cn_net_byte(net, from, to, '"', '"');
}

static cn_status emit_string(cn_schema_job *job, uint32_t part, cn_net_rule rule)
{
    json_t *schema = job->parts[part].schema;
    json_t *pattern = json_object_get(schema, "pattern"),
           *format = json_object_get(schema, "format");
    uint32_t least = 0, most = UINT32_MAX;
    CN_TRY(cn_schema_count(job, part, "minLength", &least));
    CN_TRY(cn_schema_count(job, part, "maxLength", &most));
    const bool bounded = least > 0 || most != UINT32_MAX;
    if (pattern && !json_is_string(pattern))
        return cn_schema_wrong(job, part, "pattern: expected a string");
    if ((pattern && (format || bounded)) || (format && bounded))
        return cn_schema_wrong(job, part,
                               "expected one of pattern, format, and minLength with maxLength: "
                               "they are not supported together");
    const char *text = pattern ? json_string_value(pattern) : NULL;
    char shown[SHOWN_BYTES];
    if (format && !(text = format_pattern(json_string_value(format))))
        return cn_schema_wrong(job, part,
                               "format %s is not supported: expected date, time, date-time, uuid, "
                               "ipv4 or email",
                               cn_json_describe(format, shown, sizeof shown));
    const uint32_t open = cn_net_text(job->net, rule.start, "\"", 1);
    if (!text) {
        if (least <= most) emit_length(job, open, rule.end, least, most);
        return CN_OK;
    }
    const uint32_t close = cn_net_node_new(job->net);
    cn_net_byte(job->net, close, rule.end, '"', '"');
    const cn_status status =
        cn_regex_emit(text, strlen(text), pattern != NULL, CN_TEXT_JSON, job->net, open, close);
    if (status != CN_ERR_ARG) return status;
    if (job->net->status != CN_OK) return cn_fail_within(status, "pattern");
    return cn_schema_wrong(job, part, "pattern: %s", cn_last_error());
}

/* ---- numbers ---- */

/* Narrows the bounds to the whole numbers next to them. */
static cn_status read_bound(const cn_schema_job *job, uint32_t part, const char *key,
                            cn_json_bounds *b)
{
    json_t *v = json_object_get(job->parts[part].schema, key);
    char shown[SHOWN_BYTES];
    if (!v) return CN_OK;
    if (!json_is_number(v))
        return cn_schema_wrong(job, part, "%s: expected a number, got %s", key,
                               cn_json_describe(v, shown, sizeof shown));
    const bool lower = strstr(key, "inimum"), open = key[0] == 'e';
    const double x = json_number_value(v), rounded = lower ? ceil(x) : floor(x);
    const bool is_open = open && rounded == x;
    if (!(fabs(x) < 1e15))
        return cn_schema_wrong(job, part, "%s: expected a number of at most %d digits, got %s", key,
                               CN_JSON_DIGITS, cn_json_describe(v, shown, sizeof shown));
    const int64_t whole = (int64_t)rounded;
    if (lower && (whole > b->lo || (whole == b->lo && is_open)))
        b->lo = whole, b->lo_open = is_open;
    if (!lower && (whole < b->hi || (whole == b->hi && is_open)))
        b->hi = whole, b->hi_open = is_open;
    return CN_OK;
}

static cn_status emit_number(cn_schema_job *job, uint32_t part, cn_net_rule rule, bool whole)
{
    static const char *const keys[] = {"minimum", "maximum", "exclusiveMinimum",
                                       "exclusiveMaximum"};
    cn_json_bounds b = {.lo = INT64_MIN, .hi = INT64_MAX};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CN_TRY(read_bound(job, part, keys[i], &b));
    const bool empty = whole ? b.lo + b.lo_open > b.hi - b.hi_open
                             : b.lo > b.hi || (b.lo == b.hi && (b.lo_open || b.hi_open));
    if (empty)
        return cn_schema_wrong(job, part, "expected bounds with a whole number between them");
    if (whole)
        cn_json_integer_range(job->net, &job->rules, rule.start, rule.end, b.lo + b.lo_open,
                              b.hi - b.hi_open);
    else
        cn_json_number_range(job->net, &job->rules, rule.start, rule.end, b);
    return CN_OK;
}

/* ---- types, values, alternatives ---- */

unsigned cn_schema_type(const char *name)
{
    for (unsigned t = 0; name && t < CN_N_JSON_TYPES; t++)
        if (strcmp(name, type_names[t]) == 0) return 1U << t;
    return 0;
}

static cn_status add_type(const cn_schema_job *job, uint32_t part, json_t *name, unsigned *types)
{
    char shown[SHOWN_BYTES];
    const unsigned type = cn_schema_type(json_string_value(name));
    *types |= type;
    if (type) return CN_OK;
    return cn_schema_wrong(job, part, "type: expected the name of a JSON type, got %s",
                           cn_json_describe(name, shown, sizeof shown));
}

static cn_status read_types(const cn_schema_job *job, uint32_t part, unsigned inferred,
                            unsigned *types)
{
    json_t *v = json_object_get(job->parts[part].schema, "type"), *name;
    size_t i;
    *types = 0;
    if (!v) {
        *types = inferred ? inferred : ALL_TYPES;
        return CN_OK;
    }
    if (!json_is_array(v)) return add_type(job, part, v, types);
    json_array_foreach(v, i, name) CN_TRY(add_type(job, part, name, types));
    return CN_OK;
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

/* Reads one of the values of these types. */
static cn_status emit_values(cn_schema_job *job, json_t *values, unsigned types, cn_net_rule rule)
{
    cn_net_word *words = cn_calloc(json_array_size(values), sizeof *words);
    cn_status status = words ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    size_t n = 0, i;
    json_t *v;
    json_array_foreach(values, i, v)
    {
        if (status != CN_OK) break;
        if (!cn_schema_has_type(v, types)) continue;
        char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        if (text)
            words[n++] = (cn_net_word){text, strlen(text)};
        else
            status = cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    }
    if (status == CN_OK && n > 0) cn_net_words(job->net, rule.start, rule.end, words, n);
    for (size_t k = 0; k < n; k++) free((char *)words[k].bytes);
    cn_free(words);
    return status;
}

static cn_status emit_const(cn_schema_job *job, json_t *v, unsigned types, cn_net_rule rule)
{
    json_t *values = json_pack("[O]", v);
    if (!values) return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    const cn_status status = emit_values(job, values, types, rule);
    json_decref(values);
    return status;
}

static cn_status emit_alternatives(cn_schema_job *job, uint32_t part, json_t *list, const char *key,
                                   cn_net_rule rule)
{
    size_t i;
    json_t *v;
    if (json_array_size(list) == 0)
        return cn_schema_wrong(job, part, "%s: expected an array of schemas, at least one", key);
    if (strcmp(key, "allOf") == 0 && json_array_size(list) > 1)
        return cn_schema_wrong(job, part, "allOf: only an array of one schema is supported");
    if (strcmp(key, "oneOf") == 0) CN_TRY(cn_schema_check_one_of(job, part, list));
    json_array_foreach(list, i, v)
    {
        uint32_t called;
        const cn_schema_part place = {.parent = part, .keyword = key, .index = i};
        CN_TRY(cn_schema_rule(job, v, place, &called));
        cn_net_call(job->net, rule.start, rule.end, called);
    }
    return CN_OK;
}

static cn_status emit_ref(cn_schema_job *job, uint32_t part, json_t *ref, cn_net_rule rule)
{
    uint32_t called;
    json_t *alone = json_pack("{s:O}", "$ref", ref);
    if (!alone) return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    const cn_schema_part place = {.parent = part, .keyword = "$ref", .index = CN_SCHEMA_NO_INDEX};
    const cn_status status = cn_schema_rule(job, alone, place, &called);
    json_decref(alone);
    if (status == CN_OK) cn_net_call(job->net, rule.start, rule.end, called);
    return status;
}

/* The keyword that stands alone. */
static cn_status emit_alone(cn_schema_job *job, uint32_t part, const char *key, json_t *v,
                            cn_net_rule rule)
{
    unsigned types;
    CN_TRY(read_types(job, part, 0, &types));
    if (strcmp(key, "$ref") == 0) return emit_ref(job, part, v, rule);
    if (strcmp(key, "const") == 0) return emit_const(job, v, types, rule);
    if (strcmp(key, "enum") != 0) return emit_alternatives(job, part, v, key, rule);
    if (json_array_size(v) == 0)
        return cn_schema_wrong(job, part, "enum: expected an array of values, at least one");
    return emit_values(job, v, types, rule);
}

static cn_status emit_type(cn_schema_job *job, uint32_t part, cn_json_type type, cn_net_rule rule)
{
    cn_net *net = job->net;
    switch (type) {
    case CN_JSON_STRING: return emit_string(job, part, rule);
    case CN_JSON_NUMBER: return emit_number(job, part, rule, false);
    case CN_JSON_INTEGER: return emit_number(job, part, rule, true);
    case CN_JSON_OBJECT: return cn_schema_emit_object(job, part, rule);
    case CN_JSON_ARRAY: return cn_schema_emit_array(job, part, rule);
    case CN_JSON_BOOLEAN:
        cn_net_empty(net, cn_net_text(net, rule.start, "true", 4), rule.end);
        cn_net_empty(net, cn_net_text(net, rule.start, "false", 5), rule.end);
        return CN_OK;
    case CN_JSON_NULL:
        cn_net_empty(net, cn_net_text(net, rule.start, "null", 4), rule.end);
        return CN_OK;
    case CN_N_JSON_TYPES: break;
    }
    return CN_OK;
}

static const struct keyword *find_keyword(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(name, keywords[i].name) == 0) return &keywords[i];
    return NULL;
}

static cn_status emit_part(cn_schema_job *job, uint32_t part)
{
    json_t *schema = job->parts[part].schema, *v, *alone = NULL;
    const char *key, *alone_key = NULL, *typed_key = NULL;
    unsigned inferred = 0, types;
    char shown[SHOWN_BYTES];
    const cn_net_rule rule = job->net->rules[job->parts[part].rule];
    if (json_is_false(schema)) return CN_OK;
    if (!json_is_object(schema))
        return cn_schema_wrong(job, part, "expected an object, true or false, got %s",
                               cn_json_describe(schema, shown, sizeof shown));
    json_object_foreach(schema, key, v)
    {
        const struct keyword *k = find_keyword(key);
        if (!k)
            return cn_schema_wrong(job, part, "keyword '%s' is not supported",
                                   cn_json_printable(key, shown, sizeof shown));
        if (k->kind == ALONE && alone)
            return cn_schema_wrong(job, part, "%s beside %s is not supported", key, alone_key);
        if (k->kind == ALONE) alone = v, alone_key = k->name;
        if (k->kind == OF_TYPE) inferred |= k->types, typed_key = k->name;
    }
    if (alone) {
        const bool lists = strcmp(alone_key, "enum") == 0 || strcmp(alone_key, "const") == 0;
        if (!typed_key && !lists && json_object_get(schema, "type")) typed_key = "type";
        if (typed_key)
            return cn_schema_wrong(job, part, "%s beside %s is not supported", typed_key,
                                   alone_key);
        return emit_alone(job, part, alone_key, alone, rule);
    }
    CN_TRY(read_types(job, part, inferred, &types));
    if (types >> CN_JSON_NUMBER & 1) types &= ~(1u << CN_JSON_INTEGER);
    for (unsigned t = 0; t < CN_N_JSON_TYPES; t++)
        if (types >> t & 1) CN_TRY(emit_type(job, part, (cn_json_type)t, rule));
    return CN_OK;
}

cn_status cn_schema_emit(json_t *schema, cn_net *net, const cn_json_rules *shared, uint32_t rule)
{
    cn_schema_job job = {.root = schema, .net = net, .rules = *shared};
    job.parts = cn_calloc(CN_SCHEMA_MAX_PARTS, sizeof *job.parts);
    job.table = cn_calloc(CN_SCHEMA_TABLE, sizeof *job.table);
    if (!job.parts || !job.table) {
        cn_free(job.parts);
        cn_free(job.table);
        return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    }
    job.parts[0] = (cn_schema_part){
        .schema = schema, .rule = rule, .keyword = "", .index = CN_SCHEMA_NO_INDEX};
    job.n_parts = 1;
    cn_status status = CN_OK;
    for (uint32_t i = 0; i < job.n_parts && status == CN_OK; i++) {
        status = emit_part(&job, i);
        if (status == CN_OK) status = net->status;
        if (net->status == CN_ERR_ARG) status = cn_schema_wrong(&job, i, "%s", cn_last_error());
    }
    cn_free(job.parts);
    cn_free(job.table);
    return status;
}
