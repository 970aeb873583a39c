/* utf8.h - reading UTF-8 that may be damaged. A leaf beside base.h; no state, any thread.
 *
 * Damage is defined as Unicode (D93b) and WHATWG define it: each maximal prefix of a well-formed
 * character that cannot be completed counts as one error, and so does every other stray byte.
 * Surrogates, overlong forms and code points above U+10FFFF are errors. */
#ifndef CN_UTF8_H
#define CN_UTF8_H

#include "engine/base.h"

#define CN_UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

typedef enum cn_utf8_kind {
    CN_UTF8_CHAR, /* a whole character */
    CN_UTF8_BAD,  /* bytes that no continuation can make a character */
    CN_UTF8_CUT   /* the text ends inside what may still become a character */
} cn_utf8_kind;

/* Reads the first character of s[0 .. n), n > 0. *len is how many bytes the answer covers (1..4);
 * *cp is the code point with CN_UTF8_CHAR, else U+FFFD. */
cn_utf8_kind cn_utf8_read(const char *s, size_t n, uint32_t *cp, size_t *len);

/* Length of the longest prefix of s[0 .. n) that is well formed. */
size_t cn_utf8_valid_prefix(const char *s, size_t n);

/* Length of the longest ASCII prefix. */
size_t cn_utf8_ascii_prefix(const char *s, size_t n);

/* Appends s[0 .. n) with every error replaced by U+FFFD. */
cn_status cn_utf8_add_lossy(cn_buf *out, const char *s, size_t n);

/* Writes cp (a Unicode scalar value) to dst[0 .. 4) and returns its length. */
size_t cn_utf8_write(char *dst, uint32_t cp);

#endif
