/* bpe.h - byte-pair merges of one word. Owner: cn_tokenizer. One thread at a time (cache, scratch).
 *
 * The symbols of a word start as its bytes; the pair of neighbours with the lowest merge rank is
 * joined, the leftmost first among equals, until no pair has a rank. A heap of pairs makes that
 * O(n log n), so a word of a megabyte is as harmless as its bytes in many words. A small cache in
 * front holds the words of ordinary text. */
#ifndef CN_BPE_H
#define CN_BPE_H

#include "engine/base.h"
#include "engine/text/tokens.h"

typedef struct cn_bpe cn_bpe;

enum { CN_BPE_NO_TOKEN = 0xFFFFFFFF };

/* byte_ids[256]: the token of each byte, CN_BPE_NO_TOKEN where there is none (such a byte must not
 * occur in a word). n_merges only sizes the tables. */
cn_status cn_bpe_create(cn_bpe **out, const uint32_t byte_ids[256], size_t n_merges);
void cn_bpe_free(cn_bpe *b);

/* Adds the merge of (left, right) into `result`; rank 0 is the first added. A pair added twice
 * keeps the later rank, as the tokenizers package has it. At most n_merges calls. */
void cn_bpe_add_merge(cn_bpe *b, uint32_t left, uint32_t right, uint32_t result);

/* Adds a word of n > 0 bytes that is one token whatever the merges say (`ignore_merges`). Each word
 * once. */
cn_status cn_bpe_add_word(cn_bpe *b, const char *word, size_t n, uint32_t id);

/* Appends the tokens of a word of n > 0 bytes, n < 2^31. */
cn_status cn_bpe_encode(cn_bpe *b, const char *word, size_t n, cn_tokens *out);

#endif
