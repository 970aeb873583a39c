/* pretoken.h - the split rules of the most frequent models, as a fast step of word_steps.h.
 * Owner: cn_word_steps. One thread at a time (PCRE2 match data).
 *
 * tokenizer.json contains the expression, and cinch recognises three of them by their text. PCRE2
 * (JIT-compiled) is the specification; it matches every word that touches a byte above 0x7F. If the
 * end of a word depends on ASCII alone, hand-written code cuts the word, because a call into PCRE2
 * costs more than all other work on such a word. Tests check that both give the same words. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_pretoken cn_pretoken;

typedef enum cn_split_rule { CN_SPLIT_GPT2, CN_SPLIT_QWEN2, CN_SPLIT_LLAMA3 } cn_split_rule;

/* Finds the rule whose regular expression in tokenizer.json is `regex`; false if there is none. */
bool cn_split_rule_of_regex(const char *regex, cn_split_rule *rule);

cn_status cn_pretoken_create(cn_pretoken **out, cn_split_rule rule);
void cn_pretoken_free(cn_pretoken *p);

/* Finds the end of the word that starts at `at` < n in text[0 .. n), well-formed UTF-8. *end is
 * above `at` and at most n. The words of a text cover it without gaps: start at 0 and continue from
 * each end. A word depends on the text after it, up to n, and not on the text before `at`.
 * CN_ERR_ARG if PCRE2 fails. */
cn_status cn_pretoken_next(cn_pretoken *p, const char *text, size_t n, size_t at, size_t *end);

/* The same with PCRE2 only, for tests. */
cn_status cn_pretoken_next_pcre2(cn_pretoken *p, const char *text, size_t n, size_t at,
                                 size_t *end);
