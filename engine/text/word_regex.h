/* word_regex.h - a compiled regular expression (PCRE2, with JIT where it is allowed) and its
 * scratch memory. Owner: cn_tokenizer. One thread at a time. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_word_regex cn_word_regex;

/* Compiles an expression of PCRE2 over UTF-8, where `^` and `$` match at line feeds, too.
 * anchored: matches begin where the search begins. CN_ERR_MODEL, if PCRE2 refuses the expression or
 * it matches the empty text. */
cn_status cn_word_regex_create(cn_word_regex **out, const char *pattern, bool anchored);
void cn_word_regex_free(cn_word_regex *r); /* NULL is fine */

/* Finds the first match in text[at .. n), well-formed UTF-8. An assertion sees the text before
 * `at`. Without a match *found is false. CN_ERR_ARG if PCRE2 gives up. */
cn_status cn_word_regex_find(cn_word_regex *r, const char *text, size_t n, size_t at, bool *found,
                             size_t *start, size_t *end);
