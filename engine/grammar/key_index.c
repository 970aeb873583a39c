/* key_index.c - see key_index.h. */
#include "engine/grammar/key_index.h"

static cn_status no_key_memory(void)
{
    return cn_fail(CN_ERR_MEMORY, "out of memory for an index");
}

void cn_key_index_free(cn_key_index *x)
{
    cn_free(x->data);
    cn_free(x->at);
    cn_free(x->slots);
}

static uint32_t *find_key_slot(const cn_key_index *x, const uint32_t *key, uint32_t n)
{
    uint32_t at = (uint32_t)cn_hash64(n, key, n * sizeof *key) & (x->cap_slots - 1);
    for (; x->slots[at]; at = (at + 1) & (x->cap_slots - 1)) {
        const uint32_t i = x->slots[at] - 1;
        if (x->at[i + 1] - x->at[i] == n && memcmp(x->data + x->at[i], key, n * sizeof *key) == 0)
            break;
    }
    return &x->slots[at];
}

static cn_status grow_index(cn_key_index *x, uint32_t n)
{
    if (x->n + 1 >= x->cap) {
        x->cap = 2 * x->cap + 64;
        uint32_t *at = cn_realloc(x->at, x->cap, sizeof *at);
        if (!at) return no_key_memory();
        if (x->n == 0) at[0] = 0;
        x->at = at;
    }
    if (x->n_data + n > x->cap_data) {
        x->cap_data = 2 * x->cap_data + n + 64;
        uint32_t *data = cn_realloc(x->data, x->cap_data, sizeof *data);
        if (!data) return no_key_memory();
        x->data = data;
    }
    if (2 * (x->n + 1) <= x->cap_slots) return CN_OK;
    cn_free(x->slots);
    x->cap_slots = x->cap_slots ? 2 * x->cap_slots : 128;
    if (!(x->slots = cn_calloc(x->cap_slots, sizeof *x->slots))) return no_key_memory();
    for (uint32_t i = 0; i < x->n; i++)
        *find_key_slot(x, x->data + x->at[i], x->at[i + 1] - x->at[i]) = i + 1;
    return CN_OK;
}

cn_status cn_key_index_number(cn_key_index *x, const uint32_t *key, uint32_t n, uint32_t *out)
{
    CN_TRY(grow_index(x, n));
    uint32_t *slot = find_key_slot(x, key, n);
    if (!*slot) {
        if (n > 0) memcpy(x->data + x->n_data, key, n * sizeof *key);
        x->n_data += n;
        x->at[++x->n] = x->n_data;
        *slot = x->n;
    }
    *out = *slot - 1;
    return CN_OK;
}
