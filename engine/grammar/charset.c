/* charset.c - see charset.h. A range of characters becomes sequences of byte ranges: it is cut
 * where the length of the UTF-8 form changes, then where a byte's range would not be whole. */
#include "engine/grammar/charset.h"

#include "engine/base/utf8.h"

bool cn_charset_try_add(cn_charset *c, uint32_t lo, uint32_t hi)
{
    if (c->n == CN_CHARSET_RANGES) return false;
    c->range[c->n].lo = lo;
    c->range[c->n++].hi = hi;
    return true;
}

void cn_charset_normalize(cn_charset *c)
{
    for (uint32_t i = 1; i < c->n; i++)
        for (uint32_t j = i; j > 0 && c->range[j].lo < c->range[j - 1].lo; j--) {
            const uint32_t lo = c->range[j].lo, hi = c->range[j].hi;
            c->range[j] = c->range[j - 1];
            c->range[j - 1].lo = lo;
            c->range[j - 1].hi = hi;
        }
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (n > 0 && c->range[i].lo <= c->range[n - 1].hi + 1)
            c->range[n - 1].hi = cn_max_u32(c->range[n - 1].hi, c->range[i].hi);
        else
            c->range[n++] = c->range[i];
    }
    c->n = n;
}

bool cn_charset_try_negate(cn_charset *c)
{
    cn_charset out = {.n = 0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->range[i].lo > next && !cn_charset_try_add(&out, next, c->range[i].lo - 1))
            return false;
        next = c->range[i].hi + 1;
    }
    if (next <= CN_LAST_CHAR && !cn_charset_try_add(&out, next, CN_LAST_CHAR)) return false;
    *c = out;
    return true;
}

void cn_charset_keep_spaces(cn_charset *c)
{
    static const char spaces[] = "\t\n\r ";
    cn_charset out = {.n = 0};
    for (const char *s = spaces; *s; s++)
        for (uint32_t i = 0; i < c->n; i++)
            if (c->range[i].lo <= (uint32_t)*s && (uint32_t)*s <= c->range[i].hi)
                cn_charset_try_add(&out, (uint32_t)*s, (uint32_t)*s);
    *c = out;
}

/* ---- UTF-8 ---- */

/* Reads the bytes lo[i]..hi[i] one after the other. */
static void emit_bytes(cn_net *net, uint32_t from, uint32_t to, const char *lo, const char *hi,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t next = i + 1 < n ? cn_net_node_new(net) : to;
        cn_net_byte(net, from, next, (uint8_t)lo[i], (uint8_t)hi[i]);
        from = next;
    }
}

/* lo and hi have UTF-8 forms of one length. The range is cut until, after the first byte that
 * differs, every byte has its whole range. */
static void emit_same_length(cn_net *net, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    for (uint32_t bits = 6; bits <= 18; bits += 6) {
        const uint32_t low = (1u << bits) - 1;
        if ((lo & ~low) == (hi & ~low)) break;
        if (lo & low) {
            emit_same_length(net, from, to, lo, lo | low);
            emit_same_length(net, from, to, (lo | low) + 1, hi);
            return;
        }
        if ((hi & low) != low) {
            emit_same_length(net, from, to, lo, (hi & ~low) - 1);
            emit_same_length(net, from, to, hi & ~low, hi);
            return;
        }
    }
    char first[4], last[4];
    const size_t n = cn_utf8_write(first, lo);
    cn_utf8_write(last, hi);
    emit_bytes(net, from, to, first, last, n);
}

static void emit_range(cn_net *net, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    /* The surrogates, D800 to DFFF, are not characters. */
    static const struct {
        uint32_t lo, hi;
    } parts[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, CN_LAST_CHAR}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const uint32_t a = cn_max_u32(lo, parts[i].lo), b = cn_min_u32(hi, parts[i].hi);
        if (a > b) continue;
        if (i == 0)
            cn_net_byte(net, from, to, (uint8_t)a, (uint8_t)b);
        else
            emit_same_length(net, from, to, a, b);
    }
}

/* ---- JSON strings ---- */

static void emit_escaped(uint32_t lo, uint32_t hi, cn_net *net, uint32_t from, uint32_t to)
{
    static const char chars[] = "\"\\\b\f\n\r\t", escapes[] = "\"\\bfnrt";
    for (uint32_t x = lo; x <= hi && x <= '\\'; x++) {
        if (x >= 0x20 && x != '"' && x != '\\') continue;
        const char *known = x ? strchr(chars, (int)x) : NULL;
        char text[8];
        const int n = known ? snprintf(text, sizeof text, "\\%c", escapes[known - chars])
                            : snprintf(text, sizeof text, "\\u%04x", x);
        const uint32_t last = cn_net_text(net, from, text, (size_t)n - 1);
        cn_net_byte(net, last, to, (uint8_t)text[n - 1], (uint8_t)text[n - 1]);
    }
}

void cn_charset_emit(const cn_charset *c, cn_text_form form, cn_net *net, uint32_t from,
                     uint32_t to)
{
    static const struct {
        uint32_t lo, hi;
    } unescaped[] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, CN_LAST_CHAR}};
    for (uint32_t i = 0; i < c->n; i++) {
        const uint32_t lo = c->range[i].lo, hi = c->range[i].hi;
        if (form != CN_TEXT_JSON) {
            emit_range(net, from, to, lo, hi);
            continue;
        }
        for (size_t k = 0; k < sizeof unescaped / sizeof *unescaped; k++) {
            const uint32_t a = cn_max_u32(lo, unescaped[k].lo);
            const uint32_t b = cn_min_u32(hi, unescaped[k].hi);
            if (a <= b) emit_range(net, from, to, a, b);
        }
        emit_escaped(lo, hi, net, from, to);
    }
}
