/* token_rules.h - which tokens a request may sample: allowed_token_ids and bad_words.
 *
 * Owner: cn_engine_request. Thread: engine only, but for bad words. Stage 7 of the path of a
 * request.
 *
 * A bad word is two sequences: the tokens of its text, and those of the text after a space. vLLM
 * leaves out the second one if it is not as long as the first. The last token of a sequence is
 * banned when the output ends with the tokens before it. The same text in other tokens is not
 * banned. */
#pragma once

#include "engine/text/tokenizer.h"

/* The tokens of bad words. Immutable, and shared by the requests of several prompts. Any thread. */
typedef struct cn_bad_words cn_bad_words;

/* *out is NULL without words. `turns`: as in cn_prompt_maker. CN_ERR_ARG when a word needs a
 * tokenizer, or has a token that the model has not. */
cn_status cn_bad_words_make(cn_bad_words **out, const cn_sampling *s, cn_tokenizer *tokenizer,
                            uint32_t vocab, const cn_encode_opts *turns);
/* Another reference; NULL for NULL. cn_bad_words_free() drops one. */
cn_bad_words *cn_bad_words_share(cn_bad_words *w);
void cn_bad_words_free(cn_bad_words *w); /* NULL is fine */
uint32_t cn_bad_words_count(const cn_bad_words *w); /* sequences; 0 for NULL */

typedef struct cn_token_rules {
    uint32_t *allowed; /* [cn_mask_words(vocab)] as cn_sample_args.masks; NULL: all tokens */
    cn_bad_words *bad; /* NULL: none */
} cn_token_rules;

/* Words of the mask of one row. */
static inline uint32_t cn_mask_words(uint32_t vocab) { return (uint32_t)cn_ceil_div(vocab, 32); }
/* Allows every token. */
void cn_mask_fill(uint32_t *mask, uint32_t vocab);
static inline void cn_mask_ban(uint32_t *mask, uint32_t token)
{
    mask[token / 32] &= ~(1u << token % 32);
}
bool cn_mask_is_empty(const uint32_t *mask, uint32_t vocab);

/* Makes the rules of checked parameters (cn_sampling_check). bad: the tokens of its bad words,
 * which it shares. On failure *out is empty. */
cn_status cn_token_rules_make(cn_token_rules *out, const cn_sampling *s, cn_bad_words *bad,
                              uint32_t vocab);
void cn_token_rules_free(cn_token_rules *r); /* leaves *r empty */
/* Whether the rules exclude any token. */
bool cn_token_rules_apply_ever(const cn_token_rules *r);
/* Removes the tokens from a mask that may not follow output[n]. */
void cn_token_rules_apply(const cn_token_rules *r, const uint32_t *output, uint32_t n,
                          uint32_t vocab, uint32_t *mask);
