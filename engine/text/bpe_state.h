/* bpe_state.h - the state of cn_bpe, shared by bpe.c and bpe_part.c. Internal to these. */
#pragma once

#include "engine/text/bpe.h"

/* An entry of the merge table (open addressing); empty if result is CN_BPE_NO_TOKEN. */
typedef struct cn_bpe_merge {
    uint32_t left, right, rank, result;
} cn_bpe_merge;

/* A symbol of the word being merged. `rank` is the rank of the pair that it forms with its right
 * neighbour. It is CN_BPE_NO_RANK if that pair does not merge, or if the symbol has become part of
 * its left neighbour. */
enum { CN_BPE_NO_RANK = 0xFFFFFFFF, CN_BPE_NOWHERE = 0xFFFFFFFF };
typedef struct cn_bpe_symbol {
    uint32_t id, prev, next, rank;
} cn_bpe_symbol;

/* Scratch memory of one word. */
typedef struct cn_bpe_work {
    uint32_t *ids; /* [cap] what the word begins as; the two others have their sizes from it */
    cn_bpe_symbol *symbols; /* [cap] */
    uint64_t *heap;         /* [3 cap] rank << 32 | index of the pair's left symbol */
    size_t cap, heap_len;
} cn_bpe_work;

/* Turns bytes into the symbols that a word begins as, byte by byte. */
typedef struct cn_bpe_reader {
    uint32_t *ids; /* NULL: only count them */
    size_t len;
    bool is_unknown; /* an unknown token has not been added yet */
} cn_bpe_reader;

/* Whether long words can be cut: see bpe_part.c. */
typedef enum cn_bpe_cuts { CN_BPE_CUTS_UNKNOWN, CN_BPE_CUTS_NONE, CN_BPE_CUTS_FOUND } cn_bpe_cuts;

struct cn_bpe {
    cn_bpe_bytes bytes;
    uint32_t most_symbols; /* that a byte becomes */
    cn_bpe_merge *merges;  /* [merge_mask + 1] */
    size_t merge_mask;
    uint32_t n_merges, max_merges;
    uint32_t *results;        /* [max_merges] by rank */
    struct whole_word *words; /* [word_cap], NULL without ignore_merges */
    size_t n_words, word_cap;
    cn_buf word_text;
    struct cache_line *cache; /* [CACHE_LINES] */
    cn_bpe_work work, probe;
    cn_bpe_cuts cuts;
    size_t longest, part_bytes; /* most symbols of a token; the usual length of a part */
};

/* As in the tokenizers package, an unknown token is added when the next token or the end of the
 * word is reached, so substitutes pass it. */
static inline void cn_bpe_add_id(cn_bpe_reader *r, uint32_t id)
{
    if (r->ids) r->ids[r->len] = id;
    r->len++;
}

static inline void cn_bpe_read_byte(const cn_bpe_bytes *bytes, cn_bpe_reader *r, char c)
{
    const unsigned char byte = (unsigned char)c;
    const uint32_t id = bytes->ids[byte], *substitutes = bytes->substitutes[byte];
    if (id == CN_BPE_NO_TOKEN && substitutes[0] != CN_BPE_NO_TOKEN) {
        cn_bpe_add_id(r, substitutes[0]);
        if (substitutes[1] != CN_BPE_NO_TOKEN) cn_bpe_add_id(r, substitutes[1]);
    } else if (id == CN_BPE_NO_TOKEN) {
        if (r->is_unknown && !bytes->fuse_unknown) cn_bpe_add_id(r, bytes->unknown);
        r->is_unknown = bytes->unknown != CN_BPE_NO_TOKEN;
    } else {
        if (r->is_unknown) cn_bpe_add_id(r, bytes->unknown);
        r->is_unknown = false;
        cn_bpe_add_id(r, id);
    }
}

static inline void cn_bpe_read_end(const cn_bpe_bytes *bytes, cn_bpe_reader *r)
{
    if (r->is_unknown) cn_bpe_add_id(r, bytes->unknown);
    r->is_unknown = false;
}

/* CN_ERR_MEMORY. */
cn_status cn_bpe_reserve(cn_bpe_work *w, size_t n_symbols);
/* Merges the symbols of ids[0 .. n), n up to the capacity of w. Symbol 0 is the first one. */
void cn_bpe_merge_symbols(const cn_bpe *b, cn_bpe_work *w, const uint32_t *ids, size_t n);
/* Appends the tokens of the n > 0 symbols from index 0 up to `end`, CN_BPE_NOWHERE for all. */
cn_status cn_bpe_add_symbols(const cn_bpe_work *w, uint32_t end, cn_tokens *out);
void cn_bpe_work_free(cn_bpe_work *w); /* leaves it empty */
