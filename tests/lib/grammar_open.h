/* grammar_open.h - grammars for tests, which wait for the compiler and for masks, over a small
 * vocabulary. */
#pragma once

#include "engine/grammar/grammars.h"

/* A vocabulary of all bytes, the words, which are borrowed, and EOS after them. state_bytes as in
 * cn_grammars_opts. Fails the test. */
enum { GRAMMAR_BYTES = 256, GRAMMAR_MAX_WORDS = 64 };
extern char grammar_bytes[GRAMMAR_BYTES]; /* the texts of the first tokens */
cn_grammars *grammar_words(const char *const *words, uint32_t n, uint64_t state_bytes);

/* Whether the text is one of the form. */
bool grammar_matches(cn_grammar *grammar, const char *text);

/* Fails the test unless the form reads all good texts and no bad one. Lists end with NULL. */
void grammar_check_texts(cn_grammar *grammar, const char *name, const char *const *good,
                         const char *const *bad);

/* Has the form compiled, waits, and opens the grammar. */
cn_status grammar_open(cn_grammars *g, const cn_structure *s, cn_grammar **out);
/* Makes room for a mask and makes it, however long that takes. */
cn_status grammar_mask(cn_grammars *g, cn_matcher *m, const uint32_t **mask);
