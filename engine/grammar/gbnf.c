/* gbnf.c - see gbnf.h. */
#include "engine/grammar/gbnf.h"

#include "engine/grammar/productions.h"

static const char name_marks[] = "-_";

/* Leaves out white space, line breaks and comments. */
static const char *skip(const char *at, const char *end)
{
    while (at < end && (*at == '#' || (*at && strchr(" \t\r\n", *at)))) {
        const bool comment = *at++ == '#';
        while (comment && at < end && *at != '\n') at++;
    }
    return at;
}

static bool is_at(const cn_productions *p, char c) { return p->at < p->end && *p->at == c; }

/* Bytes of the name of the definition that begins here; 0: none does. */
static size_t definition(const cn_productions *p)
{
    const size_t n = cn_productions_name(p->at, p->end, name_marks);
    const char *after = skip(p->at + n, p->end);
    return n > 0 && p->end - after >= 3 && memcmp(after, "::=", 3) == 0 ? n : 0;
}

static cn_status read_class_char(cn_productions *p, uint32_t *out)
{
    const bool escaped = is_at(p, '\\');
    p->at += escaped;
    return escaped ? cn_productions_escape(p, out) : cn_productions_char(p, out);
}

static cn_status parse_class(cn_productions *p, uint32_t *out)
{
    const char *begin = p->at++;
    cn_charset set = {.n = 0};
    bool fits = true;
    const bool negated = is_at(p, '^');
    p->at += negated;
    while (p->at < p->end && *p->at != ']') {
        uint32_t lo, hi;
        CN_TRY(read_class_char(p, &lo));
        hi = lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            CN_TRY(read_class_char(p, &hi));
            if (hi < lo) return cn_productions_wrong(p, p->at, "expected a range from low to high");
        }
        fits = fits && cn_charset_try_add(&set, lo, hi);
    }
    if (p->at == p->end) return cn_productions_wrong(p, begin, "the class has no closing ]");
    p->at++;
    cn_charset_normalize(&set);
    if (!fits || (negated && !cn_charset_try_negate(&set)))
        return cn_productions_wrong(p, begin, "expected a class of fewer ranges");
    return cn_item_set(p, &set, out);
}

static cn_status parse_gbnf_either(cn_productions *p, uint32_t depth, uint32_t *out);

static cn_status parse_gbnf_group(cn_productions *p, uint32_t depth, uint32_t *out)
{
    const char *begin = p->at++;
    if (depth == CN_GRAMMAR_MAX_GROUPS)
        return cn_productions_wrong(p, begin, "expected at most %d groups inside one another",
                                    CN_GRAMMAR_MAX_GROUPS);
    CN_TRY(parse_gbnf_either(p, depth + 1, out));
    if (!is_at(p, ')')) return cn_productions_wrong(p, begin, "the group has no closing )");
    p->at++;
    return CN_OK;
}

static cn_status parse_gbnf_atom(cn_productions *p, uint32_t depth, uint32_t *out)
{
    cn_charset all = {.n = 0};
    uint32_t production;
    switch (*p->at) {
    case '"': return cn_productions_literal(p, out);
    case '[': return parse_class(p, out);
    case '(': return parse_gbnf_group(p, depth, out);
    case '.':
        p->at++;
        cn_charset_try_add(&all, 0, CN_LAST_CHAR);
        return cn_item_set(p, &all, out);
    default: break;
    }
    const size_t n = cn_productions_name(p->at, p->end, name_marks);
    if (n == 0)
        return cn_productions_wrong(p, p->at, "expected a literal, class, group or rule name");
    CN_TRY(cn_production_find(p, p->at, n, &production));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_RULE, .value = production}, out));
    p->at += n;
    return CN_OK;
}

/* {m}, {m,}, {,n} or {m,n} */
static cn_status parse_gbnf_counts(cn_productions *p, uint32_t *least, uint32_t *most)
{
    p->at = skip(p->at + 1, p->end);
    *least = 0;
    if (!is_at(p, ',')) CN_TRY(cn_productions_number(p, least));
    *most = *least;
    p->at = skip(p->at, p->end);
    if (is_at(p, ',')) {
        p->at = skip(p->at + 1, p->end);
        *most = UINT32_MAX;
        if (!is_at(p, '}')) CN_TRY(cn_productions_number(p, most));
        p->at = skip(p->at, p->end);
    }
    if (!is_at(p, '}')) return cn_productions_wrong(p, p->at, "expected }");
    p->at++;
    return CN_OK;
}

static cn_status parse_gbnf_repeat(cn_productions *p, uint32_t depth, uint32_t *out)
{
    CN_TRY(parse_gbnf_atom(p, depth, out));
    for (uint32_t n = 0;; n++) {
        uint32_t least = 0, most = UINT32_MAX;
        p->at = skip(p->at, p->end);
        switch (p->at < p->end ? *p->at : '\0') {
        case '*': p->at++; break;
        case '+': p->at++, least = 1; break;
        case '?': p->at++, most = 1; break;
        case '{': CN_TRY(parse_gbnf_counts(p, &least, &most)); break;
        default: return CN_OK;
        }
        CN_TRY(cn_productions_check_marks(p, n));
        CN_TRY(cn_item_repeat(p, *out, least, most, out));
    }
}

static cn_status parse_gbnf_then(cn_productions *p, uint32_t depth, uint32_t *out)
{
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_THEN}, out));
    p->at = skip(p->at, p->end);
    while (p->at < p->end && *p->at != '|' && *p->at != ')' && !definition(p)) {
        uint32_t next;
        CN_TRY(parse_gbnf_repeat(p, depth, &next));
        cn_item_add(p, *out, next);
    }
    return CN_OK;
}

static cn_status parse_gbnf_either(cn_productions *p, uint32_t depth, uint32_t *out)
{
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_EITHER}, out));
    for (bool more = true; more;) {
        uint32_t next;
        CN_TRY(parse_gbnf_then(p, depth, &next));
        cn_item_add(p, *out, next);
        more = is_at(p, '|');
        p->at += more;
    }
    return CN_OK;
}

static cn_status parse_all(cn_productions *p)
{
    for (p->at = skip(p->at, p->end); p->at < p->end;) {
        const char *name = p->at;
        const size_t n = definition(p);
        uint32_t production, item;
        if (n == 0) return cn_productions_wrong(p, p->at, "expected the name of a rule and ::=");
        CN_TRY(cn_production_find(p, name, n, &production));
        p->at = skip(p->at + n, p->end) + 3;
        CN_TRY(parse_gbnf_either(p, 0, &item));
        if (is_at(p, ')')) return cn_productions_wrong(p, p->at, "expected ( before )");
        CN_TRY(cn_production_define(p, production, name, item));
    }
    return CN_OK;
}

cn_status cn_gbnf_emit(const char *text, size_t len, cn_net *net)
{
    cn_productions p;
    cn_status status = cn_productions_begin(&p, text, len, net);
    if (status == CN_OK) status = parse_all(&p);
    if (status == CN_OK) status = cn_productions_emit(&p, "root");
    cn_productions_free(&p);
    return status;
}
