/* charset.h - a set of Unicode characters, and the network that reads one of them as UTF-8 or in a
 * JSON string.
 *
 * Owner: the caller; plain values. Thread: any. */
#pragma once

#include "engine/grammar/network.h"

enum { CN_CHARSET_RANGES = 48, CN_LAST_CHAR = 0x10ffff };

typedef struct cn_charset {
    struct {
        uint32_t lo, hi;
    } range[CN_CHARSET_RANGES];
    uint32_t n;
} cn_charset;

/* How a text is written. */
typedef enum cn_text_form {
    CN_TEXT_PLAIN, /* as it is */
    CN_TEXT_BYTES, /* as it is, in a network without calls */
    CN_TEXT_JSON,  /* in a JSON string: only the characters that must be escaped are */
    CN_TEXT_SPACE  /* as it is; between the values of JSON: white space only */
} cn_text_form;

/* False when the set has too many ranges. */
bool cn_charset_try_add(cn_charset *c, uint32_t lo, uint32_t hi);
/* Sorts and merges the ranges. Call it after the last add. */
void cn_charset_normalize(cn_charset *c);
bool cn_charset_try_negate(cn_charset *c); /* of a normalized set */
/* Leaves only the white space of JSON in a normalized set. */
void cn_charset_keep_spaces(cn_charset *c);

/* Adds a network that reads one character of the normalized set. */
void cn_charset_emit(const cn_charset *c, cn_text_form form, cn_net *net, uint32_t from,
                     uint32_t to);
