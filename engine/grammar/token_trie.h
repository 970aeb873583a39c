/* token_trie.h - the vocabulary as a trie of byte strings, in one array: a node is followed by its
 * descendants, so that one pass over the array visits every token, and `skip` passes over those
 * that begin with the same bytes.
 *
 * Owner: cn_grammars, one per engine. Read-only once made. */
#pragma once

#include "engine/base/base.h"

enum { CN_TRIE_MAX_DEPTH = 255 }; /* bytes of a token; longer ones are left out */

typedef struct cn_trie_node {
    uint32_t skip;     /* index of the first node that is not a descendant */
    uint32_t first_id; /* of the tokens that end here: ids[first_id .. first_id + n_ids) */
    uint16_t n_ids : 14;
    uint16_t has_quote : 1; /* a token that ends here or below has a '"' */
    uint16_t has_list : 1;  /* one has a '[' and after it a ',' */
    uint8_t byte, depth; /* the last byte; depth 1: a first byte */
} cn_trie_node;

typedef struct cn_token_trie {
    cn_trie_node *nodes;
    uint32_t *ids; /* sorted by bytes */
    uint32_t n_nodes, n_ids;
} cn_token_trie;

typedef struct cn_token_bytes {
    const char *bytes;
    uint32_t id, n;
} cn_token_bytes;

/* Sorts `tokens`. Tokens without bytes are left out. CN_ERR_MEMORY. */
cn_status cn_token_trie_make(cn_token_trie *out, cn_token_bytes *tokens, uint32_t n);
void cn_token_trie_free(cn_token_trie *t);
