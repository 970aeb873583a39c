/* json_rules.h - the rules that all JSON grammars share: white space, strings, numbers, any value.
 *
 * The rules accept a part of JSON in which every value can still be written, within the limits of
 * numbers. Numbers have at most 15 digits on each side of the point, so that every reader of JSON
 * keeps them. White space is that of an expression, or none.
 *
 * Thread: any; no state. */
#pragma once

#include "engine/grammar/network.h"

enum { CN_JSON_DIGITS = 15, CN_JSON_NO_SPACE = 0 };
#define CN_JSON_UNIT INT64_C(1000000000000000) /* 10^CN_JSON_DIGITS */
#define CN_JSON_LARGEST (CN_JSON_UNIT - 1)

typedef struct cn_json_rules {
    uint32_t space; /* CN_JSON_NO_SPACE: there is none */
    uint32_t character, any_string, number, integer, any_value, any_object, any_array;
    uint32_t fraction; /* a point and digits */
} cn_json_rules;

/* Adds the rules. Rule 0 must exist: the root. whitespace: as in cn_structure. CN_ERR_ARG says what
 * is wrong with it. */
cn_status cn_json_rules_add(cn_net *n, const char *whitespace, cn_json_rules *out);

/* The node after white space. */
uint32_t cn_json_space(cn_net *n, const cn_json_rules *r, uint32_t from);
/* The node after a punctuation mark and the white space that may follow it. */
uint32_t cn_json_mark(cn_net *n, const cn_json_rules *r, uint32_t from, char mark);

/* A number as a count of 10^-CN_JSON_DIGITS. Below 10^33, that is 18 digits before the point. */
__extension__ typedef __int128 cn_json_decimal;

/* A whole number from lo to hi, both included, of at most 18 digits. */
void cn_json_integer_range(cn_net *n, uint32_t from, uint32_t to, int64_t lo, int64_t hi);
/* A number from lo to hi, both included, without an exponent. It may end in zeros. */
void cn_json_number_range(cn_net *n, uint32_t from, uint32_t to, cn_json_decimal lo,
                          cn_json_decimal hi);
