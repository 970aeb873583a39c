/* pretoken.h - the split rules: where a text is cut into words before byte-pair merges, which
 * never cross a cut. Owner: cn_tokenizer. One thread at a time (PCRE2 match data).
 *
 * Three regular expressions cover the models cinch runs; tokenizer.json spells them out and they
 * are recognised by their text. PCRE2 (JIT-compiled) is the specification and matches any word that
 * touches a byte above 0x7F; a word whose end plain ASCII decides is cut by hand, because a
 * call into PCRE2 costs more than all other work on such a word. Tests hold the two equal. */
#ifndef CN_PRETOKEN_H
#define CN_PRETOKEN_H

#include "engine/base.h"

typedef struct cn_pretoken cn_pretoken;

typedef enum cn_split_rule { CN_SPLIT_GPT2, CN_SPLIT_QWEN2, CN_SPLIT_LLAMA3 } cn_split_rule;

/* The rule whose regular expression, as tokenizer.json writes it, is `regex`; false if none. */
bool cn_split_rule_of_regex(const char *regex, cn_split_rule *rule);

cn_status cn_pretoken_create(cn_pretoken **out, cn_split_rule rule);
void cn_pretoken_free(cn_pretoken *p);

/* End of the word that starts at `at` < n in text[0 .. n), well-formed UTF-8: at < *end <= n. The
 * words of a text tile it: start at 0 and continue from each end. Words depend on what follows
 * them, up to n, and on nothing before `at`. */
cn_status cn_pretoken_next(cn_pretoken *p, const char *text, size_t n, size_t at, size_t *end);

/* The same by PCRE2 alone, for tests. */
cn_status cn_pretoken_next_pcre2(cn_pretoken *p, const char *text, size_t n, size_t at,
                                 size_t *end);

#endif
