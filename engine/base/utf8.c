/* utf8.c - reads UTF-8 that may be invalid. See utf8.h. */
#include "engine/base/utf8.h"

/* Length of the character that begins with `lead`, or 0 if that is not a lead byte. *lo and *hi are
 * the bounds of the second byte; they exclude overlong forms, surrogates and values above U+10FFFF.
 */
static size_t lead_shape(unsigned char lead, unsigned char *lo, unsigned char *hi)
{
    *lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    *hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

cn_utf8_kind cn_utf8_read(const char *s, size_t n, uint32_t *cp, size_t *len)
{
    unsigned char lead = (unsigned char)s[0], lo, hi;
    *len = 1;
    *cp = lead;
    if (lead < 0x80) return CN_UTF8_CHAR;
    *cp = 0xFFFD;
    size_t want = lead_shape(lead, &lo, &hi);
    if (!want) return CN_UTF8_BAD;
    uint32_t value = lead & (0x7Fu >> want);
    for (size_t i = 1; i < want; i++) {
        if (i == n) return CN_UTF8_CUT;
        unsigned char c = (unsigned char)s[i];
        if (c < lo || c > hi) return CN_UTF8_BAD;
        value = value << 6 | (c & 0x3Fu);
        lo = 0x80;
        hi = 0xBF;
        *len = i + 1;
    }
    *cp = value;
    return CN_UTF8_CHAR;
}

size_t cn_utf8_ascii_prefix(const char *s, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, s + i, 8);
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (i < n && (unsigned char)s[i] < 0x80) i++;
    return i;
}

size_t cn_utf8_valid_prefix(const char *s, size_t n)
{
    size_t at = 0, len;
    uint32_t cp;
    while (at < n) {
        at += cn_utf8_ascii_prefix(s + at, n - at);
        if (at == n || cn_utf8_read(s + at, n - at, &cp, &len) != CN_UTF8_CHAR) break;
        at += len;
    }
    return at;
}

cn_status cn_utf8_check(const char *s, size_t n)
{
    const size_t n_valid = cn_utf8_valid_prefix(s, n);
    if (n_valid == n) return CN_OK;
    return cn_fail(CN_ERR_ARG, "byte %zu is not UTF-8: expected text", n_valid + 1);
}

cn_status cn_utf8_add_lossy(cn_buf *out, const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t good = cn_utf8_valid_prefix(s + at, n - at), len;
        CN_TRY(cn_buf_add(out, s + at, good));
        at += good;
        if (at == n) break;
        uint32_t cp;
        cn_utf8_read(s + at, n - at, &cp, &len);
        CN_TRY(cn_buf_add(out, CN_UTF8_REPLACEMENT, 3));
        at += len;
    }
    return CN_OK;
}

size_t cn_utf8_write(char *dst, uint32_t cp)
{
    if (cp < 0x80) {
        dst[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, cp >>= 6) dst[i] = (char)(0x80 | (cp & 0x3F));
    dst[0] = (char)((0xF00u >> len & 0xF0) | cp);
    return len;
}

/* C1 controls are U+0080..U+009F, of which every character begins with the byte C2. */
static bool is_control(const unsigned char *p)
{
    return *p < 0x20 || *p == 0x7f || (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0);
}

const char *cn_utf8_escape_controls(const char *text, char *buf, size_t size)
{
    size_t n = 0;
    bool second = false; /* byte of a C1 control */
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        const bool escape = second || is_control(p);
        second = !second && escape && *p == 0xc2;
        if (n + (escape ? 4 : 1) >= size) break;
        n += (size_t)snprintf(buf + n, size - n, escape ? "\\x%02x" : "%c", *p);
    }
    buf[n] = '\0';
    return buf;
}
