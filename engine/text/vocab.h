/* vocab.h - the tokens of a vocabulary: id to text and bytes, and text to id.
 * Owner: cn_tokenizer. Built once, then immutable; any thread.
 *
 * A token has two forms. Its content is the string in tokenizer.json, where byte-level BPE writes
 * every byte as one printable character (GPT-2's alphabet: 'Ġ' is a space). Its bytes are what it
 * decodes to. */
#pragma once

#include "engine/base/base.h"

enum { CN_VOCAB_MAX_ID = (1 << 22) - 1 }; /* above any known vocabulary, small enough to allocate */

typedef struct cn_vocab_entry {
    size_t content, bytes; /* offsets into text */
    uint32_t n_content, n_bytes;
    bool present, added, special, byte_level; /* byte_level: content has only byte characters */
} cn_vocab_entry;

/* Zero-initialise; free with cn_vocab_free. */
typedef struct cn_vocab {
    cn_buf text;
    cn_vocab_entry *entries; /* [cap], [len] in use: largest id + 1 */
    uint32_t len, cap;
    uint32_t count;  /* entries present */
    uint32_t *table; /* [table_size] ids by hash of content, open addressing */
    size_t table_size;
} cn_vocab;

/* Adds a token. CN_ERR_MODEL if the id or the content is already in use, or the id is too large.
 * Invalidates pointers to strings returned before. */
cn_status cn_vocab_add(cn_vocab *v, const char *content, size_t n, uint32_t id);
void cn_vocab_free(cn_vocab *v);

bool cn_vocab_find(const cn_vocab *v, const char *content, size_t n, uint32_t *id);
/* NULL for an id without a token. */
const cn_vocab_entry *cn_vocab_at(const cn_vocab *v, uint32_t id);
static inline const char *cn_vocab_bytes(const cn_vocab *v, const cn_vocab_entry *e)
{
    return v->text.data + e->bytes;
}

/* Replaces the bytes of a token by those that `content` decodes to. */
cn_status cn_vocab_set_bytes(cn_vocab *v, uint32_t id, const char *content, size_t n);

/* The character of GPT-2's alphabet for a byte. */
uint32_t cn_vocab_byte_char(unsigned char byte);
/* The byte of a character of GPT-2's alphabet, or -1. */
int cn_vocab_char_byte(uint32_t cp);
