/* json_rules.h - the rules that all JSON grammars share: white space, strings, numbers, any value.
 *
 * The rules accept a part of JSON in which every value can still be written, within the limits of
 * numbers. Numbers have at most 15 digits on each side of the point, so that every reader of JSON
 * keeps them. White space is that of an expression, or none.
 *
 * Thread: any; no state. */
#ifndef CN_JSON_RULES_H
#define CN_JSON_RULES_H

#include "engine/grammar/network.h"

enum { CN_JSON_DIGITS = 15, CN_JSON_NO_SPACE = 0 };

typedef struct cn_json_rules {
    uint32_t space; /* CN_JSON_NO_SPACE: there is none */
    uint32_t character, any_string, number, integer, any_value, any_object, any_array;
    uint32_t fraction, nonzero; /* a point and digits; not all of them 0 */
} cn_json_rules;

/* Adds the rules. Rule 0 must exist: the root. whitespace: as in cn_structure. CN_ERR_ARG says what
 * is wrong with it. */
cn_status cn_json_rules_add(cn_net *n, const char *whitespace, cn_json_rules *out);

/* The node after white space. */
uint32_t cn_json_space(cn_net *n, const cn_json_rules *r, uint32_t from);
/* The node after a punctuation mark and the white space that may follow it. */
uint32_t cn_json_mark(cn_net *n, const cn_json_rules *r, uint32_t from, char mark);

/* A whole number from lo to hi, both included; INT64_MIN and INT64_MAX: no bound. Numbers have at
 * most CN_JSON_DIGITS digits. */
void cn_json_integer_range(cn_net *n, const cn_json_rules *r, uint32_t from, uint32_t to,
                           int64_t lo, int64_t hi);
/* Bounds of a number; INT64_MIN and INT64_MAX: none. `open`: the bound itself is excluded. */
typedef struct cn_json_bounds {
    int64_t lo, hi;
    bool lo_open, hi_open;
} cn_json_bounds;

/* A number within the bounds. Without bounds an exponent is allowed. */
void cn_json_number_range(cn_net *n, const cn_json_rules *r, uint32_t from, uint32_t to,
                          cn_json_bounds b);

#endif
