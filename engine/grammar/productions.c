/* productions.c - see productions.h. */
#include "engine/grammar/productions.h"

#include <stdarg.h>

#include "engine/base/utf8.h"
#include "engine/grammar/regex.h"

enum { SHOWN_NAME = 64, NAMES_PER_STEP = 8 };

/* Properties of productions, the least that the items imply. */
typedef enum property {
    ENDS,   /* some text matches */
    EMPTY,  /* the empty text matches */
    SETTLES /* no production begins with itself */
} property;

cn_status cn_productions_begin(cn_productions *p, const char *text, size_t len, cn_net *net)
{
    *p = (cn_productions){
        .begin = text, .at = text, .end = text + len, .ignore = CN_NO_PRODUCTION, .net = net};
    uint32_t unused;
    if (len > CN_GRAMMAR_TEXT_MAX_BYTES)
        return cn_fail(CN_ERR_ARG, "expected at most %d bytes, got %zu", CN_GRAMMAR_TEXT_MAX_BYTES,
                       len);
    return cn_item_new(p, (cn_item){.kind = CN_ITEM_THEN}, &unused);
}

void cn_productions_free(cn_productions *p)
{
    cn_free(p->items);
    cn_free(p->sets);
    cn_free(p->list);
    cn_free(p->made);
    cn_buf_free(&p->bytes);
}

cn_status cn_productions_wrong(const cn_productions *p, const char *at, const char *format, ...)
{
    char what[256];
    unsigned line = 1, column = 1;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    for (const char *c = p->begin; c < at; c++) {
        column = *c == '\n' ? 1 : column + ((*c & 0xc0) != 0x80);
        line += *c == '\n';
    }
    return cn_fail(CN_ERR_ARG, "line %u, column %u: %s", line, column, what);
}

/* ---- items ---- */

cn_status cn_item_new(cn_productions *p, cn_item item, uint32_t *out)
{
    CN_TRY(CN_ROOM(&p->items, p->n_items, "a grammar"));
    item.at = p->at;
    p->items[p->n_items] = item;
    *out = p->n_items++;
    return CN_OK;
}

void cn_item_add(cn_productions *p, uint32_t parent, uint32_t child)
{
    cn_item *of = &p->items[parent];
    p->items[child].next = 0;
    if (of->first)
        p->items[of->last].next = child;
    else
        of->first = child;
    of->last = child;
}

cn_status cn_item_set(cn_productions *p, cn_charset *set, uint32_t *out)
{
    if (set->n == 0) return cn_productions_wrong(p, p->at, "expected a class with a character");
    CN_TRY(CN_ROOM(&p->sets, p->n_sets, "a grammar"));
    p->sets[p->n_sets] = *set;
    return cn_item_new(p, (cn_item){.kind = CN_ITEM_SET, .value = p->n_sets++}, out);
}

cn_status cn_productions_check_marks(const cn_productions *p, uint32_t n)
{
    if (n < CN_GRAMMAR_MAX_MARKS) return CN_OK;
    return cn_productions_wrong(p, p->at, "expected at most %d repetitions of one item",
                                CN_GRAMMAR_MAX_MARKS);
}

cn_status cn_item_repeat(cn_productions *p, uint32_t child, uint32_t least, uint32_t most,
                         uint32_t *out)
{
    if (most < least) return cn_productions_wrong(p, p->at, "the repetition's bounds are swapped");
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_REPEAT, .least = least, .most = most}, out));
    cn_item_add(p, *out, child);
    return CN_OK;
}

/* ---- productions ---- */

cn_status cn_production_find(cn_productions *p, const char *name, size_t len, uint32_t *out)
{
    if (!cn_net_spend(p->net, 1 + p->n / NAMES_PER_STEP)) return p->net->status;
    for (uint32_t i = 0; i < p->n; i++) {
        *out = i;
        if (p->list[i].len == len && memcmp(p->list[i].name, name, len) == 0) return CN_OK;
    }
    CN_TRY(CN_ROOM(&p->list, p->n, "a grammar"));
    p->list[p->n] = (cn_production){.name = name, .len = (uint32_t)len};
    *out = p->n++;
    return CN_OK;
}

static int shown_rule(uint32_t len) { return (int)cn_min_u32(len, SHOWN_NAME); }

/* Whether an alternative begins with the production. */
static bool begins_with(const cn_productions *p, uint32_t alternative, uint32_t production)
{
    const uint32_t first = p->items[alternative].first;
    return first && p->items[first].kind == CN_ITEM_RULE && p->items[first].value == production;
}

/* a: a "x" | "y" becomes a: ("y") ("x")*. */
static cn_status turn_recursion(cn_productions *p, uint32_t production, uint32_t *item)
{
    uint32_t bases, tails, repeat, then, next;
    bool any = false;
    for (uint32_t i = p->items[*item].first; i; i = p->items[i].next)
        any |= begins_with(p, i, production);
    if (!any) return CN_OK;
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_EITHER}, &bases));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_EITHER}, &tails));
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_THEN}, &then));
    CN_TRY(cn_item_repeat(p, tails, 0, UINT32_MAX, &repeat));
    for (uint32_t i = p->items[*item].first; i; i = next) {
        const bool recursive = begins_with(p, i, production);
        next = p->items[i].next;
        if (recursive) p->items[i].first = p->items[p->items[i].first].next;
        cn_item_add(p, recursive ? tails : bases, i);
    }
    cn_item_add(p, then, bases);
    cn_item_add(p, then, repeat);
    CN_TRY(cn_item_new(p, (cn_item){.kind = CN_ITEM_EITHER}, item));
    cn_item_add(p, *item, then);
    return CN_OK;
}

cn_status cn_production_define(cn_productions *p, uint32_t production, const char *name,
                               uint32_t item)
{
    CN_TRY(turn_recursion(p, production, &item));
    cn_production *of = &p->list[production];
    if (of->item)
        return cn_productions_wrong(p, name, "rule %.*s: expected one definition, got two",
                                    shown_rule(of->len), of->name);
    of->name = name;
    of->item = item;
    return CN_OK;
}

/* ---- characters ---- */

cn_status cn_productions_char(cn_productions *p, uint32_t *out)
{
    size_t len;
    if (p->at == p->end || cn_utf8_read(p->at, (size_t)(p->end - p->at), out, &len) != CN_UTF8_CHAR)
        return cn_productions_wrong(p, p->at, "expected a character of UTF-8");
    p->at += len;
    return CN_OK;
}

cn_status cn_productions_number(cn_productions *p, uint32_t *out)
{
    if (p->at == p->end || *p->at < '0' || *p->at > '9')
        return cn_productions_wrong(p, p->at, "expected a number");
    for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++) {
        *out = *out * 10 + (uint32_t)(*p->at - '0');
        if (*out > CN_GRAMMAR_MAX_REPEAT)
            return cn_productions_wrong(p, p->at, "expected at most %d repetitions",
                                        CN_GRAMMAR_MAX_REPEAT);
    }
    return CN_OK;
}

static cn_status read_rule_hex(cn_productions *p, int digits, uint32_t *out)
{
    static const char all[] = "0123456789abcdef";
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        const char c = p->at == p->end ? '\0' : *p->at;
        const char *known = c ? strchr(all, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;
        if (!known) return cn_productions_wrong(p, p->at, "expected a hexadecimal digit");
        *out = *out * 16 + (uint32_t)(known - all);
    }
    if (*out <= CN_LAST_CHAR && (*out < 0xd800 || *out > 0xdfff)) return CN_OK;
    return cn_productions_wrong(p, p->at, "expected a character, got U+%04X", *out);
}

cn_status cn_productions_escape(cn_productions *p, uint32_t *out)
{
    static const char from[] = "nrtfvab0", to[] = "\n\r\t\f\v\a\b";
    if (p->at == p->end) return cn_productions_wrong(p, p->at, "expected a character after \\");
    const char c = *p->at;
    if (c == 'x' || c == 'u' || c == 'U') {
        p->at++;
        return read_rule_hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    }
    if (c && strchr(from, c)) {
        *out = (uint8_t)to[strchr(from, c) - from];
        p->at++;
        return CN_OK;
    }
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return cn_productions_wrong(p, p->at, "the escape \\%c is not supported", c);
    return cn_productions_char(p, out);
}

cn_status cn_productions_literal(cn_productions *p, uint32_t *out)
{
    const char *quote = p->at++;
    const size_t begin = p->bytes.len;
    while (p->at < p->end && *p->at != '"' && *p->at != '\n') {
        uint32_t c;
        char utf8[4];
        const bool escaped = *p->at == '\\';
        p->at += escaped;
        CN_TRY(escaped ? cn_productions_escape(p, &c) : cn_productions_char(p, &c));
        CN_TRY(cn_buf_add(&p->bytes, utf8, cn_utf8_write(utf8, c)));
    }
    if (p->at == p->end || *p->at != '"')
        return cn_productions_wrong(p, quote, "the literal has no closing \"");
    p->at++;
    return cn_item_new(p,
                       (cn_item){.kind = CN_ITEM_TEXT,
                                 .value = (uint32_t)begin,
                                 .len = (uint32_t)(p->bytes.len - begin)},
                       out);
}

size_t cn_productions_name(const char *at, const char *end, const char *more)
{
    const char *c = at;
    while (c < end && ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                       (*c >= '0' && *c <= '9') || (*c && strchr(more, *c))))
        c++;
    return (size_t)(c - at);
}

/* ---- checks ---- */

/* What is known so far. */
static bool holds(const cn_productions *p, uint32_t item, property what)
{
    const cn_item *it = &p->items[item];
    bool all = true, any = false;
    cn_net_spend(p->net, 1);
    switch (it->kind) {
    case CN_ITEM_TEXT: return what != EMPTY || it->len == 0;
    case CN_ITEM_SET:
    case CN_ITEM_REGEX: return what != EMPTY;
    case CN_ITEM_RULE: return p->list[it->value].holds[what];
    case CN_ITEM_REPEAT: return (what != SETTLES && it->least == 0) || holds(p, it->first, what);
    case CN_ITEM_EITHER:
    case CN_ITEM_THEN: break;
    }
    for (uint32_t i = it->first; i; i = p->items[i].next) {
        const bool one = holds(p, i, what);
        all &= one;
        any |= one;
        if (what == SETTLES && it->kind == CN_ITEM_THEN && !holds(p, i, EMPTY)) break;
    }
    return it->kind == CN_ITEM_THEN || what == SETTLES ? all : any;
}

/* Rounds go up and down in turn: rules are mostly written in one of the two orders. */
static cn_status find_property(cn_productions *p, property what)
{
    bool changed = true;
    for (bool up = false; changed && p->net->status == CN_OK; up = !up) {
        changed = false;
        for (uint32_t k = 0; k < p->n && p->net->status == CN_OK; k++) {
            cn_production *at = &p->list[up ? k : p->n - 1 - k];
            if (at->holds[what] || !holds(p, at->item, what)) continue;
            at->holds[what] = changed = true;
        }
    }
    return p->net->status;
}

/* A production in the item that lacks the property: of those that it may begin with for SETTLES. */
static uint32_t find_lacking(const cn_productions *p, uint32_t item, property what)
{
    const cn_item *it = &p->items[item];
    cn_net_spend(p->net, 1);
    if (it->kind == CN_ITEM_RULE) return p->list[it->value].holds[what] ? p->n : it->value;
    for (uint32_t i = it->first; i; i = p->items[i].next) {
        const uint32_t found = find_lacking(p, i, what);
        if (found < p->n) return found;
        if (what == SETTLES && it->kind == CN_ITEM_THEN && !holds(p, i, EMPTY)) break;
    }
    return p->n;
}

/* Checks that all productions have the property. The one that is named lacks it because of itself:
 * each lacking one leads to another, and after n steps the way has entered its circle. */
static cn_status expect_property(cn_productions *p, property what, const char *expected)
{
    uint32_t at = 0;
    CN_TRY(find_property(p, what));
    while (at < p->n && p->list[at].holds[what]) at++;
    if (at == p->n) return CN_OK;
    for (uint32_t i = 0; i < p->n && p->net->status == CN_OK; i++)
        at = find_lacking(p, p->list[at].item, what);
    CN_TRY(p->net->status);
    return cn_productions_wrong(p, p->list[at].name, "rule %.*s %s", shown_rule(p->list[at].len),
                                p->list[at].name, expected);
}

static cn_status check_rule(cn_productions *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (!p->list[i].item)
            return cn_productions_wrong(p, p->list[i].name, "rule %.*s is not defined",
                                        shown_rule(p->list[i].len), p->list[i].name);
    CN_TRY(expect_property(p, ENDS, "never ends: expected an alternative without it"));
    CN_TRY(find_property(p, EMPTY));
    return expect_property(p, SETTLES,
                           "begins with itself through other rules, groups or empty items: "
                           "expected a repetition, or the rule as first item of an alternative");
}

/* ---- emission ---- */

/* The rule of the network that reads a production. */
static uint32_t rule_of(cn_productions *p, uint32_t production)
{
    cn_production *of = &p->list[production];
    if (of->made) return of->rule;
    of->made = true;
    of->rule = p->n_made ? cn_net_rule_new(p->net) : 0;
    p->made[p->n_made++] = production;
    return of->rule;
}

static void emit_item(cn_productions *p, uint32_t item, uint32_t from, uint32_t to);

static void emit_rule_text(const cn_productions *p, const cn_item *it, uint32_t from, uint32_t to)
{
    if (it->len == 0) cn_net_empty(p->net, from, to);
    for (uint32_t i = 0; i < it->len && p->net->status == CN_OK; i++) {
        const uint8_t c = (uint8_t)p->bytes.data[it->value + i], low = c | 32;
        const uint32_t next = i + 1 < it->len ? cn_net_node_new(p->net) : to;
        cn_net_byte(p->net, from, next, c, c);
        if (it->any_case && low >= 'a' && low <= 'z')
            cn_net_byte(p->net, from, next, c ^ 32, c ^ 32);
        from = next;
    }
}

static void emit_set(cn_productions *p, cn_item *it, uint32_t from, uint32_t to)
{
    const cn_charset *c = &p->sets[it->value];
    if (c->range[c->n - 1].hi < 0x80) {
        cn_charset_emit(c, CN_TEXT_PLAIN, p->net, from, to);
        return;
    }
    if (!it->rule) {
        it->rule = cn_net_rule_new(p->net);
        if (p->net->status != CN_OK) return;
        const cn_net_rule rule = p->net->rules[it->rule];
        cn_charset_emit(c, CN_TEXT_PLAIN, p->net, rule.start, rule.end);
    }
    cn_net_call(p->net, from, to, it->rule);
}

static void emit_rule_counted(cn_productions *p, cn_item *it, uint32_t from, uint32_t to)
{
    it->rule = cn_net_rule_new(p->net);
    if (p->net->status != CN_OK) return;
    const cn_net_rule rule = p->net->rules[it->rule];
    emit_item(p, it->first, rule.start, rule.end);
    if (p->net->status != CN_OK) return;
    cn_net_empty(p->net, cn_net_repeat(p->net, from, it->rule, it->least, it->most), to);
}

/* Loops have nodes of their own, so that no other edge enters them. */
static void emit_repeat(cn_productions *p, cn_item *it, uint32_t from, uint32_t to)
{
    if (it->least > 1 || (it->most > 1 && it->most != UINT32_MAX)) {
        emit_rule_counted(p, it, from, to);
        return;
    }
    if (it->most > 1) {
        const uint32_t loop = cn_net_node_new(p->net), back = cn_net_node_new(p->net);
        cn_net_empty(p->net, from, loop);
        emit_item(p, it->first, loop, back);
        cn_net_empty(p->net, back, loop);
        cn_net_empty(p->net, back, to);
    } else if (it->most == 1) {
        emit_item(p, it->first, from, to);
    }
    if (it->least == 0) cn_net_empty(p->net, from, to);
}

static void emit_rule_regex(cn_productions *p, const cn_item *it, uint32_t from, uint32_t to)
{
    const char *at = it->at;
    const cn_status status =
        cn_regex_emit(p->bytes.data + it->value, it->len, false, CN_TEXT_PLAIN, p->net, from, to);
    if (status == CN_OK || p->net->status != CN_OK) return;
    char why[160];
    snprintf(why, sizeof why, "%s", cn_last_error());
    p->net->status = status == CN_ERR_ARG ? cn_productions_wrong(p, at, "%s", why) : status;
}

static void emit_item(cn_productions *p, uint32_t item, uint32_t from, uint32_t to)
{
    cn_item *it = &p->items[item];
    cn_net *net = p->net;
    if (!cn_net_spend(net, 1)) return;
    if (it->token && p->ignore != CN_NO_PRODUCTION) {
        const uint32_t after = cn_net_node_new(net);
        cn_net_call(net, after, to, rule_of(p, p->ignore));
        to = after;
    }
    switch (it->kind) {
    case CN_ITEM_TEXT: emit_rule_text(p, it, from, to); break;
    case CN_ITEM_SET: emit_set(p, it, from, to); break;
    case CN_ITEM_REGEX: emit_rule_regex(p, it, from, to); break;
    case CN_ITEM_RULE: cn_net_call(net, from, to, rule_of(p, it->value)); break;
    case CN_ITEM_REPEAT: emit_repeat(p, it, from, to); break;
    case CN_ITEM_EITHER:
        for (uint32_t i = it->first; i; i = p->items[i].next) emit_item(p, i, from, to);
        break;
    case CN_ITEM_THEN:
        if (!it->first) cn_net_empty(net, from, to);
        for (uint32_t i = it->first; i; i = p->items[i].next) {
            const uint32_t next = p->items[i].next ? cn_net_node_new(net) : to;
            emit_item(p, i, from, next);
            from = next;
        }
        break;
    }
}

cn_status cn_productions_emit(cn_productions *p, const char *root)
{
    uint32_t start = 0;
    while (start < p->n && !(p->list[start].len == strlen(root) &&
                             memcmp(p->list[start].name, root, strlen(root)) == 0))
        start++;
    if (start == p->n) return cn_productions_wrong(p, p->end, "expected a rule %s, got none", root);
    CN_TRY(check_rule(p));
    p->made = cn_calloc(p->n, sizeof *p->made);
    if (!p->made) return cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
    rule_of(p, start);
    for (uint32_t i = 0; i < p->n_made && p->net->status == CN_OK; i++) {
        const cn_production *at = &p->list[p->made[i]];
        const cn_net_rule rule = p->net->rules[at->rule];
        emit_item(p, at->item, rule.start, rule.end);
    }
    return p->net->status;
}
