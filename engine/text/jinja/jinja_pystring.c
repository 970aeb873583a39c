/* jinja_pystring.c - Python's string functions. See jinja_pystring.h. */
#include "engine/text/jinja/jinja_pystring.h"

#include <utf8proc.h>

#include "engine/base/utf8.h"

size_t cn_pychar(cn_jtext t, uint32_t *cp)
{
    unsigned char c = (unsigned char)*t.at;
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    size_t len;
    return cn_utf8_read(t.at, t.n, cp, &len) == CN_UTF8_CHAR ? len : 1;
}

/* ---- classes of characters ---- */

bool cn_pyspace(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool cn_pydigit(uint32_t cp) { return cp >= '0' && cp <= '9'; }

bool cn_pyalpha(uint32_t cp)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

uint32_t cn_pyupper(uint32_t cp) { return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp); }

uint32_t cn_pylower(uint32_t cp) { return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp); }

bool cn_pyprintable(uint32_t cp)
{
    if (cp == ' ') return true;
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_SO;
}

/* ---- positions ---- */

size_t cn_pylen(cn_jtext t)
{
    size_t n = 0;
    uint32_t cp;
    for (; t.n; n++) {
        size_t len = cn_pychar(t, &cp);
        t.at += len;
        t.n -= len;
    }
    return n;
}

size_t cn_pyoffset(cn_jtext t, size_t chars)
{
    size_t at = 0;
    uint32_t cp;
    for (; chars && at < t.n; chars--) at += cn_pychar((cn_jtext){t.at + at, t.n - at}, &cp);
    return at;
}

/* ---- parts ---- */

static bool has_char(cn_jtext chars, uint32_t wanted)
{
    uint32_t cp;
    if (!chars.at) return cn_pyspace(wanted);
    while (chars.n) {
        size_t len = cn_pychar(chars, &cp);
        if (cp == wanted) return true;
        chars.at += len;
        chars.n -= len;
    }
    return false;
}

/* Bytes of the last character of t, t.n > 0. */
static size_t last_char(cn_jtext t, uint32_t *cp)
{
    size_t back = 1;
    while (back < t.n && back < 4 && ((unsigned char)t.at[t.n - back] & 0xC0) == 0x80) back++;
    size_t len = cn_pychar((cn_jtext){t.at + t.n - back, back}, cp);
    if (len == back) return back;
    *cp = CN_UTF8_CUT; /* strip() removes no invalid byte */
    return 1;
}

cn_jtext cn_pystrip(cn_jtext t, cn_jtext chars, cn_pyside side)
{
    uint32_t cp;
    while (side & CN_PY_LEFT && t.n) {
        size_t len = cn_pychar(t, &cp);
        if (!has_char(chars, cp)) break;
        t.at += len;
        t.n -= len;
    }
    while (side & CN_PY_RIGHT && t.n) {
        size_t len = last_char(t, &cp);
        if (!has_char(chars, cp)) break;
        t.n -= len;
    }
    return t;
}

size_t cn_pyfind(cn_jtext t, cn_jtext part)
{
    if (part.n == 0) return 0;
    const char *found = t.n ? memmem(t.at, t.n, part.at, part.n) : NULL;
    return found ? (size_t)(found - t.at) : SIZE_MAX;
}

size_t cn_pyrfind(cn_jtext t, cn_jtext part)
{
    for (size_t at = t.n; at >= part.n; at--) {
        if (part.n == 0 || memcmp(t.at + at - part.n, part.at, part.n) == 0) return at - part.n;
        if (at == 0) break;
    }
    return SIZE_MAX;
}

bool cn_pystarts(cn_jtext t, cn_jtext prefix)
{
    return t.n >= prefix.n && cn_jtext_same((cn_jtext){t.at, prefix.n}, prefix);
}

bool cn_pyends(cn_jtext t, cn_jtext suffix)
{
    return t.n >= suffix.n && cn_jtext_same((cn_jtext){t.at + t.n - suffix.n, suffix.n}, suffix);
}

bool cn_pyline(cn_jtext *rest, cn_jtext *line)
{
    if (rest->n == 0) return false;
    *line = (cn_jtext){rest->at, 0};
    while (rest->n) {
        uint32_t cp;
        size_t len = cn_pychar(*rest, &cp);
        bool end = (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
                   cp == 0x2028 || cp == 0x2029;
        if (end && cp == '\r' && rest->n > 1 && rest->at[1] == '\n') len = 2;
        rest->at += len;
        rest->n -= len;
        if (end) break;
        line->n += len;
    }
    return true;
}
