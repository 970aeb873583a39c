/* utf8.h - reads UTF-8 that may be invalid. Depends only on base.h; no state, any thread.
 *
 * Errors are counted as Unicode (D93b) and WHATWG define: a maximal prefix of a well-formed
 * character that is not completed is one error, and so is every other invalid byte. Surrogates,
 * overlong forms and code points above U+10FFFF are errors. */
#pragma once

#include "engine/base/base.h"

#define CN_UTF8_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

typedef enum cn_utf8_kind {
    CN_UTF8_CHAR, /* a whole character */
    CN_UTF8_BAD,  /* bytes that cannot become a character, whatever follows */
    CN_UTF8_CUT   /* the text ends inside a character that may still be completed */
} cn_utf8_kind;

/* Reads the first character of s[0 .. n), n > 0. *len is the number of bytes that the result covers
 * (1..4). *cp is the code point for CN_UTF8_CHAR, else U+FFFD. */
cn_utf8_kind cn_utf8_read(const char *s, size_t n, uint32_t *cp, size_t *len);

/* Bytes of the longest well-formed prefix of s[0 .. n). */
size_t cn_utf8_valid_prefix(const char *s, size_t n);

/* Returns CN_ERR_ARG if s[0 .. n) has bytes that are not UTF-8. The message has the number of the
 * first one, from 1. */
cn_status cn_utf8_check(const char *s, size_t n);

/* Bytes of the longest ASCII prefix of s[0 .. n). */
size_t cn_utf8_ascii_prefix(const char *s, size_t n);

/* Appends s[0 .. n) with every error replaced by U+FFFD. */
cn_status cn_utf8_add_lossy(cn_buf *out, const char *s, size_t n);

/* Copies text with control characters (C0, DEL, C1) as \xNN, truncated to fit: untrusted text that
 * is printed may have escape sequences of a terminal. CN_UTF8_ESCAPED times the length always fits.
 * Returns buf. */
enum { CN_UTF8_ESCAPED = 4 };
const char *cn_utf8_escape_controls(const char *text, char *buf, size_t size);

/* Writes cp (a Unicode scalar value) to dst[0 .. 4) and returns its length. */
size_t cn_utf8_write(char *dst, uint32_t cp);
