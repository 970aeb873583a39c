/* token_trie.c - see token_trie.h. */
#include "engine/grammar/token_trie.h"

#include <stdlib.h>

#define MAX_IDS 0x3fffu /* tokens with the same bytes */

static int compare_trie(const void *pa, const void *pb)
{
    const cn_token_bytes *a = pa, *b = pb;
    const int order = memcmp(a->bytes, b->bytes, cn_min_u32(a->n, b->n));
    if (order != 0) return order;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Adds the nodes of a token that follows `before` in order. path[d] is the open node of depth d. */
static void add_token(cn_token_trie *t, const cn_token_bytes *token, const cn_token_bytes *before,
                      uint32_t *path, uint32_t *n_path)
{
    uint32_t same = 0;
    while (before && same < before->n && same < token->n &&
           before->bytes[same] == token->bytes[same])
        same++;
    while (*n_path > same) t->nodes[path[(*n_path)--]].skip = t->n_nodes;
    while (*n_path < token->n) {
        path[++*n_path] = t->n_nodes;
        t->nodes[t->n_nodes++] =
            (cn_trie_node){.byte = (uint8_t)token->bytes[*n_path - 1], .depth = (uint8_t)*n_path};
    }
    cn_trie_node *end = &t->nodes[path[token->n]];
    if (end->n_ids == MAX_IDS) return;
    if (end->n_ids == 0) end->first_id = t->n_ids;
    end->n_ids = (end->n_ids + 1u) & MAX_IDS;
    t->ids[t->n_ids++] = token->id;
}

/* Marks the nodes above a byte that is part of what has_quote and has_list say. */
static void mark_bytes(cn_token_trie *t)
{
    uint32_t path[CN_TRIE_MAX_DEPTH + 1];
    bool open[CN_TRIE_MAX_DEPTH + 1] = {false}; /* there is a '[' on the path */
    for (uint32_t i = 0; i < t->n_nodes; i++) {
        const cn_trie_node *node = &t->nodes[i];
        path[node->depth] = i;
        open[node->depth] = open[node->depth - 1] || node->byte == '[';
        for (uint32_t d = node->depth; d > 0 && node->byte == '"'; d--)
            t->nodes[path[d]].has_quote = 1;
        for (uint32_t d = node->depth; d > 0 && node->byte == ',' && open[node->depth]; d--)
            t->nodes[path[d]].has_list = 1;
    }
}

cn_status cn_token_trie_make(cn_token_trie *out, cn_token_bytes *tokens, uint32_t n)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += tokens[i].n;
    *out = (cn_token_trie){.nodes = cn_calloc(bytes + 1, sizeof *out->nodes),
                           .ids = cn_calloc(n + 1, sizeof *out->ids)};
    if (!out->nodes || !out->ids) {
        cn_token_trie_free(out);
        return cn_fail(CN_ERR_MEMORY, "out of memory for the trie of the vocabulary");
    }
    qsort(tokens, n, sizeof *tokens, compare_trie);
    uint32_t path[CN_TRIE_MAX_DEPTH + 1], n_path = 0;
    const cn_token_bytes *before = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i].n == 0 || tokens[i].n > CN_TRIE_MAX_DEPTH) continue;
        add_token(out, &tokens[i], before, path, &n_path);
        before = &tokens[i];
    }
    while (n_path > 0) out->nodes[path[n_path--]].skip = out->n_nodes;
    mark_bytes(out);
    cn_trie_node *fit = cn_realloc(out->nodes, out->n_nodes + 1, sizeof *fit);
    if (fit) out->nodes = fit;
    return CN_OK;
}

void cn_token_trie_free(cn_token_trie *t)
{
    cn_free(t->nodes);
    cn_free(t->ids);
    *t = (cn_token_trie){0};
}
