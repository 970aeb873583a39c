/* tokens.c - a growable list of token ids. See tokens.h. */
#include "engine/text/tokens.h"

cn_status cn_tokens_add(cn_tokens *t, const uint32_t *ids, size_t n)
{
    if (n > t->cap - t->len) {
        size_t cap = t->cap ? t->cap : 64;
        while (cap - t->len < n) cap *= 2;
        uint32_t *grown = cn_realloc(t->ids, cap, sizeof *grown);
        if (!grown) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu tokens", cap);
        t->ids = grown;
        t->cap = cap;
    }
    if (n) memcpy(t->ids + t->len, ids, n * sizeof *ids);
    t->len += n;
    return CN_OK;
}

void cn_tokens_free(cn_tokens *t)
{
    cn_free(t->ids);
    *t = (cn_tokens){0};
}
