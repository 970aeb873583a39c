/* split_regex.h - the regular expressions of a tokenizer.json, written for PCRE2.
 * Owner: the tokenizer. Thread: any.
 *
 * The tokenizers package matches with Oniguruma. Three things differ: which characters the classes
 * contain, what `{n,m}+` means, and the nesting of classes. */
#pragma once

#include "engine/base/base.h"

/* Appends to `out` the expression for PCRE2 that matches what `regex` matches in the tokenizers
 * package. CN_ERR_MODEL names a construct that is not supported. */
cn_status cn_split_regex_translate(cn_buf *out, const char *regex);

/* Appends an expression that matches exactly text[0 .. n). */
cn_status cn_split_regex_quote(cn_buf *out, const char *text, size_t n);

/* The characters that the steps Digits and Punctuation of the tokenizers package look for: one
 * character of them, for PCRE2. */
cn_status cn_split_regex_add_numeric(cn_buf *out);
cn_status cn_split_regex_add_punctuation(cn_buf *out);
