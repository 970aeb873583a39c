/* option_value.h - operations on one option's value, shared by the parsers of the command line, of
 * JSON and of the arms of a comparison, and by the generators of help.
 *
 * Thread: any. Stage: before a request exists. */
#pragma once

#include "engine/options/options.h"

/* The field of c for option o; its C type follows from the row's type (cn_option_type). */
const void *cn_option_field(const cn_option *o, const cn_config *c);

/* Sets o in c from text and marks it given. CN_ERR_ARG names the option, the value and the bounds.
 */
cn_status cn_option_set_text(cn_config *c, const cn_option *o, const char *text);

/* Stores v in the field of a U32, I32 or F32 row; false if v is out of bounds. */
bool cn_option_store_number(const cn_option *o, void *field, double v);

/* Index of the name text[0 .. len) in the row's `values`, or -1. */
int cn_option_name_index(const cn_option *o, const char *text, size_t len);

/* Whether `word` is one of `words`, which are separated by blanks. */
bool cn_option_is_word(const char *words, const char *word);

/* The value of an environment variable that is set and not empty, else NULL. */
const char *cn_environment(const char *name);

/* Whether the name of an output has %i. */
bool cn_shard_names_index(const char *pattern);
/* CN_ERR_ARG: a percent sign that is not part of %i, %n or %%. */
cn_status cn_shard_check_name(const char *option, const char *pattern);

/* The row's key in a request's kv object: "budget" for "kv.budget". NULL if it has none. */
const char *cn_option_kv_key(const cn_option *o);

/* Whether the default of the row depends on the rule (CN_RULE_DEFAULTS). */
bool cn_option_follows_rule(const cn_option *o);

/* Writes what the row accepts, in words: "a whole number from 1 to 65536". */
void cn_option_bounds(const cn_option *o, char *text, size_t size);

/* CN_ERR_ARG "<label> <value>: expected <bounds>". */
cn_status cn_option_refuse(const cn_option *o, const char *label, const char *value);
