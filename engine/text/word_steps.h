/* word_steps.h - cuts a text into words by the steps of a `pre_tokenizer`. Byte-pair merges never
 * cross a cut. Owner: cn_tokenizer. One thread at a time (scratch memory).
 *
 * Each step divides the pieces of the previous step, each piece as a text of its own. Two kinds of
 * steps change the text: ByteLevel with add_prefix_space puts a space before a piece, and ByteLevel
 * writes each byte as a character of GPT-2's alphabet (vocab.h), which the steps after it see. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_word_steps cn_word_steps;

/* What a split does with the matches of its pattern: drop them, make them pieces, or join them to
 * their neighbours. Contiguous: matches that touch are one piece. */
typedef enum cn_split_behavior {
    CN_SPLIT_REMOVED,
    CN_SPLIT_ISOLATED,
    CN_SPLIT_MERGED_WITH_PREVIOUS,
    CN_SPLIT_MERGED_WITH_NEXT,
    CN_SPLIT_CONTIGUOUS
} cn_split_behavior;

/* Without steps: a text is one word. CN_ERR_MEMORY. */
cn_status cn_word_steps_create(cn_word_steps **out);
void cn_word_steps_free(cn_word_steps *w); /* NULL is fine */

/* These append a step. CN_ERR_MODEL names what is not supported. */

/* Split by an expression of Oniguruma. invert: the text between matches counts as match. */
cn_status cn_word_steps_add_split(cn_word_steps *w, const char *regex, cn_split_behavior behavior,
                                  bool invert);
/* Split by a text. */
cn_status cn_word_steps_add_text(cn_word_steps *w, const char *text, size_t n,
                                 cn_split_behavior behavior, bool invert);
cn_status cn_word_steps_add_digits(cn_word_steps *w, bool individual);
cn_status cn_word_steps_add_punctuation(cn_word_steps *w, cn_split_behavior behavior);
/* ByteLevel; at most once. */
cn_status cn_word_steps_add_byte_level(cn_word_steps *w, bool add_prefix_space, bool use_regex);
bool cn_word_steps_has_byte_level(const cn_word_steps *w);

typedef cn_status cn_word_fn(void *context, const char *word, size_t n);

/* Calls `each` with the words of text[0 .. n), well-formed UTF-8, in order. Words are not empty;
 * they are the bytes of the text. While `each` runs, another text may be cut. Returns the first
 * failure of `each`; CN_ERR_ARG if a text is too hard for an expression. */
cn_status cn_word_steps_run(cn_word_steps *w, const char *text, size_t n, cn_word_fn *each,
                            void *context);
