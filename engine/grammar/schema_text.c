/* schema_text.c - strings of a schema: pattern, format and length. One condition is emitted as it
 * is; several are combined in a machine (text_dfa.h). See schema_parts.h. */

#include "engine/base/json.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_parts.h"

enum { MAX_CONDITIONS = 16 };

/* Formats of numbers in OpenAPI. */
static bool is_number_format(const char *name)
{
    static const char *const names[] = {"int8",   "int16",  "int32",   "int64",  "uint8",
                                        "uint16", "uint32", "uint64",  "int",    "uint",
                                        "float",  "double", "decimal", "number", "integer"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* ---- conditions ---- */

typedef struct condition {
    const char *text, *keyword;
    size_t len;
    bool anywhere;
} condition;

typedef struct conditions {
    condition list[MAX_CONDITIONS];
    uint32_t n;
    uint32_t least, most;
} conditions;

static cn_status add_condition(const cn_schema_job *job, uint32_t part, conditions *io, condition c)
{
    for (uint32_t i = 0; i < io->n; i++)
        if (io->list[i].anywhere == c.anywhere && strcmp(io->list[i].text, c.text) == 0)
            return CN_OK;
    if (io->n == MAX_CONDITIONS)
        return cn_schema_drop(job, part, "%s: more than %d for one string", c.keyword,
                              MAX_CONDITIONS);
    io->list[io->n++] = c;
    return CN_OK;
}

static cn_status read_format(const cn_schema_job *job, uint32_t part, const json_t *v,
                             conditions *io)
{
    const char *name = json_string_value(v), *text = name ? cn_schema_format_pattern(name) : NULL;
    char shown[CN_SCHEMA_SHOWN_BYTES];
    if (text && !*text) return CN_OK;
    if (text) return add_condition(job, part, io, (condition){text, "format", strlen(text), false});
    if (name && is_number_format(name)) return CN_OK;
    return cn_schema_warn(job, part, "format %s is unknown and has no effect",
                          cn_json_describe(v, shown, sizeof shown));
}

static cn_status read_conditions(const cn_schema_job *job, uint32_t part, conditions *out)
{
    const cn_schema_terms *terms = &job->parts[part].terms;
    *out = (conditions){.most = UINT32_MAX};
    CN_TRY(cn_schema_range(job, part, "minLength", "maxLength", &out->least, &out->most));
    for (uint32_t i = 0; i < terms->n; i++) {
        const json_t *pattern = json_object_get(terms->list[i].schema, "pattern");
        const json_t *format = json_object_get(terms->list[i].schema, "format");
        if (pattern && !json_is_string(pattern))
            return cn_schema_wrong(job, part, "pattern: expected a string");
        if (pattern) {
            const condition c = {json_string_value(pattern), "pattern", json_string_length(pattern),
                                 true};
            CN_TRY(add_condition(job, part, out, c));
        }
        if (format) CN_TRY(read_format(job, part, format, out));
    }
    return CN_OK;
}

/* ---- machines ---- */

/* CN_ERR_ARG, after which the condition is left out. */
static bool may_drop_condition(const cn_schema_job *job, cn_status status)
{
    return status == CN_ERR_ARG && job->net->status == CN_OK;
}

/* The machine of all conditions that can be met; those that cannot are dropped. *n: how many are
 * in it. */
static cn_status combine(const cn_schema_job *job, uint32_t part, conditions *c, cn_dfa *out,
                         uint32_t *n)
{
    *out = (cn_dfa){0};
    *n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        cn_dfa one = {0};
        const condition *at = &c->list[i];
        cn_status status = cn_dfa_from_regex(&one, at->text, at->len, at->anywhere, job->net);
        if (status == CN_OK && *n > 0) status = cn_dfa_narrow(out, &one, false, job->net);
        if (status == CN_OK && (*n)++ == 0) {
            *out = one;
            continue;
        }
        cn_dfa_free(&one);
        if (may_drop_condition(job, status))
            status = cn_schema_drop(job, part, "%s: %s", at->keyword, cn_last_error());
        CN_TRY(status);
    }
    return CN_OK;
}

/* ---- strings ---- */

static void emit_length(cn_schema_job *job, uint32_t from, uint32_t to, uint32_t least,
                        uint32_t most)
{
    const uint32_t end = cn_net_repeat(job->net, from, job->rules.character, least, most);
    cn_net_byte(job->net, end, to, '"', '"');
}

/* Whether the condition is the only one, and needs no machine. */
static bool is_plain(const conditions *c)
{
    const condition *one = &c->list[0];
    return c->n == 1 && !cn_dfa_looks_ahead(one->text, one->len, one->anywhere);
}

/* A condition alone is emitted without a machine, which may be much larger. */
static cn_status emit_one(cn_schema_job *job, uint32_t part, const condition *c, uint32_t from,
                          uint32_t to)
{
    const json_t *known = c->anywhere ? NULL : json_object_get(job->formats, c->text);
    const uint32_t rule = known ? (uint32_t)json_integer_value(known) : cn_net_rule_new(job->net);
    CN_TRY(job->net->status);
    const cn_net_rule r = job->net->rules[rule];
    cn_status status = CN_OK;
    if (!known)
        status =
            cn_regex_emit(c->text, c->len, c->anywhere, CN_TEXT_JSON, job->net, r.start, r.end);
    if (status == CN_OK) {
        cn_net_call(job->net, from, to, rule);
        if (!known && !c->anywhere) json_object_set_new(job->formats, c->text, json_integer(rule));
    }
    if (status != CN_ERR_ARG) return status;
    if (job->net->status != CN_OK) return cn_fail_within(status, "%s", c->keyword);
    CN_TRY(cn_schema_drop(job, part, "%s: %s", c->keyword, cn_last_error()));
    cn_net_call(job->net, from, from, job->rules.character);
    cn_net_empty(job->net, from, to);
    return CN_OK;
}

static bool fits(const cn_dfa *d, const conditions *c)
{
    uint32_t least, most;
    return !cn_dfa_lengths(d, &least, &most) || (least >= c->least && most <= c->most);
}

/* A format that is too long for the bounds takes a shorter form of itself that fits, or the last.
 */
static cn_status shorten_format(const cn_schema_job *job, conditions *c, cn_dfa *io)
{
    const char *shorter;
    while (c->n == 1 && !fits(io, c) && (shorter = cn_schema_shorter_format(c->list[0].text))) {
        cn_dfa_free(io);
        c->list[0].text = shorter;
        c->list[0].len = strlen(shorter);
        CN_TRY(cn_dfa_from_regex(io, shorter, c->list[0].len, false, job->net));
    }
    return CN_OK;
}

static cn_status emit_machine(cn_schema_job *job, uint32_t part, conditions *c, const cn_dfa *d,
                              uint32_t from, uint32_t to)
{
    const bool free = (c->least == 0 && c->most == UINT32_MAX) || fits(d, c);
    if (free && is_plain(c)) return emit_one(job, part, &c->list[0], from, to);
    if (!free) {
        const cn_status status = cn_dfa_emit_counted(d, c->least, c->most, job->net, from, to);
        if (!may_drop_condition(job, status)) return status;
        CN_TRY(cn_schema_drop(job, part, "a length beside %s: %s", c->list[0].keyword,
                              cn_last_error()));
    }
    cn_dfa_emit(d, CN_TEXT_JSON, job->net, from, to);
    return job->net->status;
}

static cn_status emit_conditions(cn_schema_job *job, uint32_t part, conditions *c, cn_net_rule rule,
                                 uint32_t open)
{
    const uint32_t close = cn_net_node_new(job->net);
    cn_net_byte(job->net, close, rule.end, '"', '"');
    if (is_plain(c) && c->least == 0 && c->most == UINT32_MAX)
        return emit_one(job, part, &c->list[0], open, close);
    cn_dfa d = {0};
    uint32_t n;
    cn_status status = combine(job, part, c, &d, &n);
    if (status == CN_OK && n > 0) status = shorten_format(job, c, &d);
    if (status == CN_OK && n > 0) status = emit_machine(job, part, c, &d, open, close);
    if (status == CN_OK && n == 0) emit_length(job, open, rule.end, c->least, c->most);
    cn_dfa_free(&d);
    return status;
}

cn_status cn_schema_emit_string(cn_schema_job *job, uint32_t part, cn_net_rule rule)
{
    conditions c;
    CN_TRY(read_conditions(job, part, &c));
    if (c.least > c.most) return CN_OK;
    if (c.n == 0 && c.least == 0 && c.most == UINT32_MAX) {
        cn_net_call(job->net, rule.start, rule.end, job->rules.any_string);
        return CN_OK;
    }
    const uint32_t open = cn_net_text(job->net, rule.start, "\"", 1);
    if (c.n > 0) return emit_conditions(job, part, &c, rule, open);
    emit_length(job, open, rule.end, c.least, c.most);
    return CN_OK;
}

/* ---- names ---- */

/* Narrows *io, or begins it. */
static cn_status join_schema(const cn_schema_job *job, cn_dfa *io, bool *any, cn_dfa *one)
{
    if (*any) {
        *io = *one;
        *any = false;
        return CN_OK;
    }
    const cn_status status = cn_dfa_narrow(io, one, false, job->net);
    cn_dfa_free(one);
    return status;
}

static cn_status join_regex(const cn_schema_job *job, const char *text, bool anywhere, cn_dfa *io,
                            bool *any)
{
    cn_dfa one;
    if (!text || !*text) return CN_OK;
    CN_TRY(cn_dfa_from_regex(&one, text, strlen(text), anywhere, job->net));
    return join_schema(job, io, any, &one);
}

static cn_status join_words(const cn_schema_job *job, const json_t *values, cn_dfa *io, bool *any)
{
    cn_net_word *words = cn_calloc(json_array_size(values) + 1, sizeof *words);
    size_t n = 0, i;
    json_t *v;
    cn_dfa one;
    if (!words) return cn_fail(CN_ERR_MEMORY, "out of memory for a schema");
    json_array_foreach((json_t *)values, i, v) if (json_is_string(v)) words[n++] =
        (cn_net_word){json_string_value(v), json_string_length(v)};
    cn_status status = cn_dfa_from_words(&one, words, n, job->net);
    if (status == CN_OK) status = join_schema(job, io, any, &one);
    cn_free(words);
    return status;
}

static cn_status join_term(const cn_schema_job *job, const json_t *s, cn_dfa *io, bool *any)
{
    const json_t *least = json_object_get(s, "minLength"), *most = json_object_get(s, "maxLength");
    const char *format = json_string_value(json_object_get(s, "format"));
    if (json_object_get(s, "anyOf") || json_object_get(s, "oneOf") || json_object_get(s, "not"))
        return cn_fail(CN_ERR_ARG, "only conditions on a string are supported");
    CN_TRY(join_regex(job, json_string_value(json_object_get(s, "pattern")), true, io, any));
    CN_TRY(join_regex(job, format ? cn_schema_format_pattern(format) : NULL, false, io, any));
    if (!least && !most) return CN_OK;
    const double lo = json_number_value(least), hi = most ? json_number_value(most) : UINT32_MAX;
    cn_dfa one;
    if (lo < 0 || hi < 0) return cn_fail(CN_ERR_ARG, "expected a length of at least 0");
    CN_TRY(cn_dfa_from_length(&one, lo < UINT32_MAX ? (uint32_t)lo : UINT32_MAX,
                              hi < UINT32_MAX ? (uint32_t)hi : UINT32_MAX, job->net));
    return join_schema(job, io, any, &one);
}

cn_status cn_schema_text_dfa(const cn_schema_job *job, const cn_schema_terms *terms, cn_dfa *out,
                             bool *any)
{
    cn_status status = CN_OK;
    *out = (cn_dfa){0};
    *any = true;
    json_t *values = cn_schema_values(job, terms, &status);
    if (values) status = join_words(job, values, out, any);
    for (uint32_t i = 0; i < terms->n && status == CN_OK && !values; i++)
        status = join_term(job, terms->list[i].schema, out, any);
    json_decref(values);
    if (status != CN_OK) cn_dfa_free(out);
    return status;
}
