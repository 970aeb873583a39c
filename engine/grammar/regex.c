/* regex.c - see regex.h. The parser makes a tree; the tree is emitted, once for each repetition. A
 * character class that is not plain ASCII becomes a rule, so that repeating it is one edge. */
#include "engine/grammar/regex.h"

#include "engine/base/utf8.h"

enum { MAX_GROUPS_INSIDE = 64, MAX_REPEAT = 65535, NO_RULE = 0, NO_ITEM = UINT32_MAX };

typedef enum item_kind { EMPTY, SET, THEN, EITHER, REPEAT } item_kind;

typedef struct item {
    item_kind kind;
    uint32_t a, b;        /* items of THEN and EITHER; REPEAT repeats a */
    uint32_t least, most; /* REPEAT; most UINT32_MAX: no limit */
    uint32_t set;         /* SET: index */
    uint32_t rule;        /* SET: rule that reads it; NO_RULE: not made */
    uint32_t offset;      /* of the byte after it, for messages */
} item;

typedef struct parser {
    const char *at, *end, *begin;
    item *items;
    cn_charset *sets;
    uint32_t n_items, n_sets;
    bool anywhere;
    bool wide; /* reads what any dialect does */
    cn_text_form form;
    cn_net *net;
    uint32_t any;       /* item: any characters; NO_ITEM: not made */
    uint32_t failed_at; /* offset of the item whose network could not be made */
} parser;

static cn_status wrong(const parser *p, const char *what)
{
    return cn_fail(CN_ERR_ARG, "regular expression, byte %zu: %s", (size_t)(p->at - p->begin),
                   what);
}

static cn_status new_regex_item(parser *p, item value, uint32_t *out)
{
    CN_TRY(CN_ROOM(&p->items, p->n_items, "a regular expression"));
    value.offset = (uint32_t)(p->at - p->begin);
    p->items[p->n_items] = value;
    *out = p->n_items++;
    return CN_OK;
}

static cn_status new_set(parser *p, const cn_charset *set, uint32_t *out)
{
    CN_TRY(CN_ROOM(&p->sets, p->n_sets, "a regular expression"));
    p->sets[p->n_sets] = *set;
    if (p->form == CN_TEXT_SPACE) {
        cn_charset_keep_spaces(&p->sets[p->n_sets]);
        if (p->sets[p->n_sets].n == 0)
            return wrong(p, "expected spaces, tabs and line breaks only, between values of JSON");
    }
    return new_regex_item(p, (item){.kind = SET, .set = p->n_sets++}, out);
}

/* ---- characters and classes ---- */

/* Dialects differ in which characters beyond ASCII the named classes have, and whether \s has the
 * separators 1C to 1F. A class and its complement therefore both leave them out, or have them if
 * what any dialect matches is read. */
static bool try_add_disputed(cn_charset *set)
{
    return cn_charset_try_add(set, 0x1c, 0x1f) && cn_charset_try_add(set, 0x80, CN_LAST_CHAR);
}

static bool add_named(cn_charset *set, char name, bool wide)
{
    cn_charset c = {.n = 0};
    switch (name) {
    case 'd':
    case 'D': cn_charset_try_add(&c, '0', '9'); break;
    case 'w':
    case 'W':
        cn_charset_try_add(&c, '0', '9');
        cn_charset_try_add(&c, 'A', 'Z');
        cn_charset_try_add(&c, '_', '_');
        cn_charset_try_add(&c, 'a', 'z');
        break;
    default:
        cn_charset_try_add(&c, '\t', '\r');
        cn_charset_try_add(&c, ' ', ' ');
        break;
    }
    if (wide != (name < 'a')) try_add_disputed(&c);
    if (name < 'a') {
        cn_charset_normalize(&c);
        if (!cn_charset_try_negate(&c)) return false;
    }
    for (uint32_t i = 0; i < c.n; i++)
        if (!cn_charset_try_add(set, c.range[i].lo, c.range[i].hi)) return false;
    return true;
}

static cn_status read_regex_hex(parser *p, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        const char *known =
            p->at < p->end && *p->at ? strchr("0123456789abcdef0123456789ABCDEF", *p->at) : NULL;
        if (!known) return wrong(p, "expected a hexadecimal digit");
        static const char all[] = "0123456789abcdef";
        const char *low = strchr(all, *p->at >= 'A' && *p->at <= 'F' ? *p->at + 32 : *p->at);
        *out = *out * 16 + (uint32_t)(low - all);
    }
    return CN_OK;
}

static cn_status read_char(parser *p, uint32_t *out)
{
    size_t len;
    if (cn_utf8_read(p->at, (size_t)(p->end - p->at), out, &len) != CN_UTF8_CHAR)
        return wrong(p, "expected UTF-8");
    p->at += len;
    return CN_OK;
}

/* The part of an escape after the backslash. *named: it was a class, which was added to set. wide:
 * as in the parser, but of the set. */
static cn_status read_regex_escape(parser *p, bool in_class, bool wide, cn_charset *set,
                                   bool *named, uint32_t *out)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    *named = false;
    if (p->at == p->end) return wrong(p, "expected a character after the backslash");
    const char c = *p->at;
    if (c && strchr("dDwWsS", c)) {
        p->at++;
        *named = true;
        return add_named(set, c, wide) ? CN_OK : wrong(p, "the class has too many ranges");
    }
    if (c && strchr(from, c)) {
        *out = (uint8_t)to[strchr(from, c) - from];
        p->at++;
        return CN_OK;
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        CN_TRY(read_regex_hex(p, c == 'x' ? 2 : 4, out));
        if (*out >= 0xd800 && *out <= 0xdfff) return wrong(p, "a surrogate is not supported");
        return CN_OK;
    }
    if (in_class && c == 'b') {
        *out = '\b';
        p->at++;
        return CN_OK;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return wrong(p, "this escape is not supported");
    return read_char(p, out);
}

static cn_status read_regex_class_char(parser *p, bool wide, cn_charset *set, bool *named,
                                       uint32_t *out)
{
    *named = false;
    if (*p->at != '\\') return read_char(p, out);
    p->at++;
    return read_regex_escape(p, true, wide, set, named, out);
}

/* Behind the opening bracket. */
static cn_status parse_regex_class(parser *p, uint32_t *out)
{
    cn_charset set = {.n = 0};
    const bool negated = p->at < p->end && *p->at == '^', wide = p->wide != negated;
    bool any_named = false;
    p->at += negated;
    while (p->at < p->end && *p->at != ']') {
        bool named;
        uint32_t lo = 0, hi;
        CN_TRY(read_regex_class_char(p, wide, &set, &named, &lo));
        any_named |= named;
        if (named) continue;
        hi = lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            CN_TRY(read_regex_class_char(p, wide, &set, &named, &hi));
            if (named || hi < lo) return wrong(p, "expected a range of characters");
        }
        if (!cn_charset_try_add(&set, lo, hi)) return wrong(p, "the class has too many ranges");
    }
    if (p->at == p->end) return wrong(p, "expected ]");
    p->at++;
    if (negated && any_named && wide && !try_add_disputed(&set))
        return wrong(p, "the class has too many ranges");
    cn_charset_normalize(&set);
    if (negated && !cn_charset_try_negate(&set)) return wrong(p, "the class has too many ranges");
    return new_set(p, &set, out);
}

/* ---- the grammar of expressions ---- */

static cn_status parse_regex_either(parser *p, uint32_t depth, uint32_t *out);

/* Behind ?: or ?<name> or ?P<name>. NULL: it is none of them. */
static const char *skip_group_kind(const parser *p)
{
    const char *at = p->at + 1;
    if (at < p->end && *at == ':') return at + 1;
    if (at < p->end && *at == 'P') at++;
    if (p->end - at < 3 || *at != '<' || at[1] == '=' || at[1] == '!') return NULL;
    while (at < p->end && *at != '>' && *at != ')') at++;
    return at < p->end && *at == '>' ? at + 1 : NULL;
}

static cn_status parse_regex_group(parser *p, uint32_t depth, uint32_t *out)
{
    if (depth == MAX_GROUPS_INSIDE) return wrong(p, "too many groups inside one another");
    if (p->at < p->end && *p->at == '?') {
        const char *inside = skip_group_kind(p);
        if (!inside)
            return wrong(p, "only groups (...), (?:...) and (?<name>...) are supported here");
        p->at = inside;
    }
    CN_TRY(parse_regex_either(p, depth + 1, out));
    if (p->at == p->end) return wrong(p, "expected )");
    p->at++;
    return CN_OK;
}

static cn_status parse_regex_atom(parser *p, uint32_t depth, uint32_t *out)
{
    cn_charset set = {.n = 0};
    uint32_t c = 0;
    bool named = false;
    switch (*p->at) {
    case '(': p->at++; return parse_regex_group(p, depth, out);
    case '[': p->at++; return parse_regex_class(p, out);
    case '^':
    case '$': return wrong(p, "^ and $ are supported at the ends of the expression only");
    case '*':
    case '+':
    case '?':
    case '{': return wrong(p, "nothing to repeat");
    case '.':
        p->at++;
        cn_charset_try_add(&set, '\n', '\n');
        if (!p->wide) cn_charset_try_add(&set, '\r', '\r');
        if (!p->wide) cn_charset_try_add(&set, 0x2028, 0x2029);
        if (!cn_charset_try_negate(&set)) return wrong(p, "the class has too many ranges");
        return new_set(p, &set, out);
    case '\\':
        p->at++;
        CN_TRY(read_regex_escape(p, false, p->wide, &set, &named, &c));
        break;
    default: CN_TRY(read_char(p, &c)); break;
    }
    if (!named) cn_charset_try_add(&set, c, c);
    cn_charset_normalize(&set);
    return new_set(p, &set, out);
}

static cn_status read_regex_count(parser *p, uint32_t *out)
{
    if (p->at == p->end || *p->at < '0' || *p->at > '9') return wrong(p, "expected a number");
    *out = 0;
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        *out = *out * 10 + (uint32_t)(*p->at - '0');
        if (*out > MAX_REPEAT) return wrong(p, "a repetition of more than 65535 is not supported");
    }
    return CN_OK;
}

/* {least}, {least,} or {least,most}, after the brace. */
static cn_status parse_regex_counts(parser *p, item *repeat)
{
    CN_TRY(read_regex_count(p, &repeat->least));
    repeat->most = repeat->least;
    if (p->at < p->end && *p->at == ',') {
        p->at++;
        repeat->most = UINT32_MAX;
        if (p->at < p->end && *p->at != '}') CN_TRY(read_regex_count(p, &repeat->most));
    }
    if (p->at == p->end || *p->at != '}') return wrong(p, "expected }");
    p->at++;
    return repeat->most >= repeat->least ? CN_OK : wrong(p, "the repetition's bounds are swapped");
}

static cn_status parse_regex_repeat(parser *p, uint32_t depth, uint32_t *out)
{
    CN_TRY(parse_regex_atom(p, depth, out));
    for (bool first = true; p->at < p->end; first = false) {
        item repeat = {.kind = REPEAT, .a = *out, .most = UINT32_MAX};
        switch (*p->at) {
        case '*': break;
        case '+': repeat.least = 1; break;
        case '?': repeat.most = 1; break;
        case '{': break;
        default: return CN_OK;
        }
        if (!first) return wrong(p, "this repetition is not supported");
        const bool counted = *p->at++ == '{';
        if (counted) CN_TRY(parse_regex_counts(p, &repeat));
        if (p->at < p->end && *p->at == '?') p->at++; /* lazy: the same texts match */
        CN_TRY(new_regex_item(p, repeat, out));
    }
    return CN_OK;
}

/* At the top, ^ and $ at the ends of an alternative are its anchors. */
static cn_status parse_regex_then(parser *p, uint32_t depth, uint32_t *out)
{
    const bool top = depth == 0;
    bool begins = false, ends = false;
    if (top && p->at < p->end && *p->at == '^') begins = true, p->at++;
    CN_TRY(new_regex_item(p, (item){.kind = EMPTY}, out));
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        if (top && *p->at == '$' && (p->at + 1 == p->end || p->at[1] == '|')) {
            ends = true;
            p->at++;
            break;
        }
        uint32_t next;
        CN_TRY(parse_regex_repeat(p, depth, &next));
        CN_TRY(new_regex_item(p, (item){.kind = THEN, .a = *out, .b = next}, out));
    }
    if (!top || !p->anywhere || (begins && ends)) return CN_OK;
    if (p->any == NO_ITEM) {
        cn_charset all = {.n = 0};
        cn_charset_try_add(&all, 0, CN_LAST_CHAR);
        CN_TRY(new_set(p, &all, &p->any));
        CN_TRY(new_regex_item(p, (item){.kind = REPEAT, .a = p->any, .most = UINT32_MAX}, &p->any));
    }
    if (!begins) CN_TRY(new_regex_item(p, (item){.kind = THEN, .a = p->any, .b = *out}, out));
    return ends ? CN_OK : new_regex_item(p, (item){.kind = THEN, .a = *out, .b = p->any}, out);
}

static cn_status parse_regex_either(parser *p, uint32_t depth, uint32_t *out)
{
    CN_TRY(parse_regex_then(p, depth, out));
    while (p->at < p->end && *p->at == '|') {
        uint32_t next;
        p->at++;
        CN_TRY(parse_regex_then(p, depth, &next));
        CN_TRY(new_regex_item(p, (item){.kind = EITHER, .a = *out, .b = next}, out));
    }
    return CN_OK;
}

/* ---- emission ---- */

static void emit_regex_set(parser *p, item *set, uint32_t from, uint32_t to)
{
    const cn_charset *c = &p->sets[set->set];
    const bool ascii = c->n > 0 && c->range[c->n - 1].hi < 0x80;
    if (p->form == CN_TEXT_BYTES || (ascii && (p->form != CN_TEXT_JSON || c->range[0].lo > '\\'))) {
        cn_charset_emit(c, p->form, p->net, from, to);
        return;
    }
    if (set->rule == NO_RULE) {
        set->rule = cn_net_rule_new(p->net);
        if (p->net->status != CN_OK) return;
        const cn_net_rule rule = p->net->rules[set->rule];
        cn_charset_emit(c, p->form, p->net, rule.start, rule.end);
    }
    cn_net_call(p->net, from, to, set->rule);
}

static uint32_t emit_node(parser *p, uint32_t at, uint32_t from);

static uint32_t emit_regex_repeat(parser *p, const item *r, uint32_t from)
{
    cn_net *net = p->net;
    const uint32_t least = r->least, most = r->most, what = r->a;
    for (uint32_t i = 0; i < least && net->status == CN_OK; i++) from = emit_node(p, what, from);
    const uint32_t end = cn_net_node_new(net);
    if (most == UINT32_MAX) {
        /* A node of its own, so that no other edge enters the loop. */
        const uint32_t loop = cn_net_node_new(net);
        cn_net_empty(net, from, loop);
        cn_net_empty(net, emit_node(p, what, loop), loop);
        cn_net_empty(net, loop, end);
        return end;
    }
    for (uint32_t i = least; i < most && net->status == CN_OK; i++) {
        cn_net_empty(net, from, end);
        from = emit_node(p, what, from);
    }
    cn_net_empty(net, from, end);
    return end;
}

/* Returns the node after the item. THEN leans to the left, so a loop follows long sequences. */
static uint32_t emit_node(parser *p, uint32_t at, uint32_t from)
{
    const item it = p->items[at];
    uint32_t to = from;
    if (p->net->status != CN_OK) return from;
    cn_net_spend(p->net, 1);
    switch (it.kind) {
    case EMPTY: break;
    case SET:
        to = cn_net_node_new(p->net);
        emit_regex_set(p, &p->items[at], from, to);
        break;
    case THEN: to = emit_node(p, it.b, emit_node(p, it.a, from)); break;
    case EITHER: {
        const uint32_t a = emit_node(p, it.a, from), b = emit_node(p, it.b, from);
        to = cn_net_node_new(p->net);
        cn_net_empty(p->net, a, to);
        cn_net_empty(p->net, b, to);
        break;
    }
    case REPEAT: to = emit_regex_repeat(p, &it, from); break;
    }
    if (p->net->status != CN_OK && p->failed_at == 0) p->failed_at = it.offset;
    return to;
}

static cn_status emit_regex(parser p, size_t len, uint32_t from, uint32_t to)
{
    cn_net *net = p.net;
    uint32_t root = 0;
    if (len > CN_REGEX_MAX_BYTES)
        return cn_fail(CN_ERR_ARG, "regular expression of %zu bytes: expected at most %d", len,
                       CN_REGEX_MAX_BYTES);
    p.begin = p.at;
    p.end = p.at + len;
    p.any = NO_ITEM;
    cn_status status = parse_regex_either(&p, 0, &root);
    if (status == CN_OK && p.at < p.end) status = wrong(&p, "expected ( before )");
    if (status == CN_OK) {
        cn_net_empty(net, emit_node(&p, root, from), to);
        status = net->status;
        if (status == CN_ERR_ARG)
            cn_fail_within(status, "regular expression, byte %u", p.failed_at);
    }
    cn_free(p.items);
    cn_free(p.sets);
    return status;
}

cn_status cn_regex_emit(const char *pattern, size_t len, bool anywhere, cn_text_form form,
                        cn_net *net, uint32_t from, uint32_t to)
{
    const parser p = {.at = pattern, .anywhere = anywhere, .form = form, .net = net};
    return emit_regex(p, len, from, to);
}

cn_status cn_regex_emit_widely(const char *pattern, size_t len, cn_net *net, uint32_t from,
                               uint32_t to)
{
    const parser p = {
        .at = pattern, .anywhere = true, .wide = true, .form = CN_TEXT_BYTES, .net = net};
    return emit_regex(p, len, from, to);
}
