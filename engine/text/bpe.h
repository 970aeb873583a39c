/* bpe.h - byte-pair merges of one word. Owner: cn_tokenizer. One thread at a time (cache, scratch).
 *
 * The first symbols of a word are its bytes. The pair of neighbours with the lowest merge rank is
 * joined (of equal pairs the leftmost), until no pair has a rank. A heap of pairs makes this
 * O(n log n). A long word is encoded in parts (bpe_part.c), so that its length bounds neither the
 * memory nor the time of one call. A small cache holds the words of ordinary text. */
#pragma once

#include "engine/base/base.h"
#include "engine/text/tokens.h"

typedef struct cn_bpe cn_bpe;

enum { CN_BPE_NO_TOKEN = 0xFFFFFFFF };

/* What a word begins as. A byte without a token becomes its two substitutes if both exist
 * (`byte_fallback`: a byte is one or two bytes of GPT-2's alphabet; the second may be absent).
 * Otherwise it becomes the unknown token, or one for all such bytes side by side with fuse_unknown;
 * without an unknown token it is dropped, and its neighbours may merge. */
typedef struct cn_bpe_bytes {
    uint32_t ids[256];            /* the token of each byte, or CN_BPE_NO_TOKEN */
    uint32_t substitutes[256][2]; /* of bytes without a token, or CN_BPE_NO_TOKEN */
    uint32_t unknown;             /* or CN_BPE_NO_TOKEN */
    bool fuse_unknown;
} cn_bpe_bytes;

/* Copies `bytes`. n_merges: the size of the tables. CN_ERR_MEMORY. */
cn_status cn_bpe_create(cn_bpe **out, const cn_bpe_bytes *bytes, size_t n_merges);
void cn_bpe_free(cn_bpe *b);

/* Adds the merge of (left, right) into `result`. The first merge added has rank 0, the next rank 1.
 * A pair added twice keeps the later rank, as in the tokenizers package. At most n_merges calls. */
void cn_bpe_add_merge(cn_bpe *b, uint32_t left, uint32_t right, uint32_t result);

/* Adds a word of n > 0 bytes that is always encoded as one token, without merges (`ignore_merges`).
 * Each word may be added once. */
cn_status cn_bpe_add_word(cn_bpe *b, const char *word, size_t n, uint32_t id);

/* Appends the tokens of a word of n > 0 bytes, n < 2^30. */
cn_status cn_bpe_encode(cn_bpe *b, const char *word, size_t n, cn_tokens *out);

/* Appends the tokens of the first part of a word, which is not looked up as a whole
 * (`ignore_merges`). *used > 0 is the length of the part. The rest, encoded by this function until
 * nothing is left, has the other tokens. A word of at most CN_BPE_LONG_BYTES is one part.
 * cn_bpe_encode encodes a longer one in parts. */
enum { CN_BPE_LONG_BYTES = 64 << 10 };
cn_status cn_bpe_encode_part(cn_bpe *b, const char *word, size_t n, cn_tokens *out, size_t *used);
