/* option_value.h - one option's value: what the parsers of the command line, of JSON and the
 * generators of help share. Private to the options*.c files.
 * Thread: any. Stage: before a request exists. */
#ifndef CN_OPTION_VALUE_H
#define CN_OPTION_VALUE_H

#include "engine/options/options.h"

/* Where c has the value of o, of the type that the row says. */
const void *cn_option_field(const cn_option *o, const cn_config *c);

/* Sets o in c from text and marks it given. CN_ERR_ARG names the option, the value, the bounds. */
cn_status cn_option_set_text(cn_config *c, const cn_option *o, const char *text);

/* Stores v in the field of a U32, I32 or F32 row; false when v is out of its bounds. */
bool cn_option_store_number(const cn_option *o, void *field, double v);

/* Index of the name text[0..len) in the row's `values`, or -1. */
int cn_option_name_index(const cn_option *o, const char *text, size_t len);

/* What the row accepts, in words: "a whole number from 1 to 65536". */
void cn_option_bounds(const cn_option *o, char *text, size_t size);

/* CN_ERR_ARG "<label> <value>: want <bounds>". */
cn_status cn_option_refuse(const cn_option *o, const char *label, const char *value);

#endif
