/* cpu_copy.c - copy_blocks: copies whole KV blocks, their side arrays, and whole query slots. */
#include <string.h>

#include "engine/cpu/cpu_ops.h"

static void copy_block(const cn_pools *p, uint32_t layer, cn_block_copy c)
{
    const cn_kv_layout *l = &p->layout;
    size_t n = cn_kv_block_elems(l), n_side = (size_t)l->n_kv_heads * l->block_tokens;
    float *kv = p->kv;
    memcpy(kv + cn_kv_row(l, layer, c.dst, 0, 0, CN_KV_K),
           kv + cn_kv_row(l, layer, c.src, 0, 0, CN_KV_K), n * sizeof *kv);
    size_t src = cn_kv_side(l, layer, c.src, 0, 0), dst = cn_kv_side(l, layer, c.dst, 0, 0);
    if (p->score) memcpy(p->score + dst, p->score + src, n_side * sizeof *p->score);
    if (p->origin) memcpy(p->origin + dst, p->origin + src, n_side * sizeof *p->origin);
}

static void copy_query_slot(const cn_pools *p, uint32_t layer, cn_block_copy c)
{
    uint32_t d = p->layout.head_dim;
    float *q = p->q_window;
    size_t n = (size_t)p->window * p->n_heads * d;
    memcpy(q + cn_query_row(p->n_query_slots, p->window, p->n_heads, d, layer, c.dst, 0, 0),
           q + cn_query_row(p->n_query_slots, p->window, p->n_heads, d, layer, c.src, 0, 0),
           n * sizeof *q);
}

/* Inside a layer copies run in order, because one may read what another wrote. Layers run in
 * parallel. */
static void copy_layer(void *ctx, uint32_t layer, uint32_t worker)
{
    (void)worker;
    const cn_copy_args *a = ctx;
    for (uint32_t i = 0; i < a->n_blocks; i++)
        if (a->blocks[i].src != a->blocks[i].dst) copy_block(&a->pools, layer, a->blocks[i]);
    for (uint32_t i = 0; i < a->n_query_slots; i++)
        if (a->query_slots[i].src != a->query_slots[i].dst)
            copy_query_slot(&a->pools, layer, a->query_slots[i]);
}

cn_status cn_cpu_copy_blocks(cn_stream *s, const cn_copy_args *a)
{
    if (a->n_query_slots > 0 && !a->pools.q_window)
        return cn_fail(CN_ERR_SHAPE,
                       "copy_blocks: %u query slots to copy, but the pools have no query windows",
                       a->n_query_slots);
    cn_cpu_parallel(s, a->pools.layout.n_layers, copy_layer, (void *)a);
    return CN_OK;
}
