/* cpu_fetch.c - fetch: copies the moved entries of the home space into the exchange areas. Tasks
 * are units. Bytes moved: those of K and V for each token of a move, read and written; for tiles
 * labels and scales too. */

#include "engine/cpu/cpu_ops.h"

/* Copies n tokens of a head that are consecutive and in one tile in both pools. */
static void copy_cpu_rows(const cn_fetch_args *a, uint32_t layer, uint32_t head, uint32_t dst_block,
                          uint32_t dst_slot, uint32_t src_block, uint32_t src_slot, uint32_t n)
{
    const cn_kv_layout *to = &a->local.layout, *from = &a->home.layout;
    for (uint32_t part = 0; part < to->n_parts; part++) {
        const cn_kv_part p = (cn_kv_part)part;
        memcpy((char *)a->local.kv + cn_kv_at(to, layer, dst_block, head, dst_slot, p),
               (const char *)a->home.kv + cn_kv_at(from, layer, src_block, head, src_slot, p),
               (size_t)n * to->part[part].row_bytes);
    }
}

/* The same for labels and scales, where both memories have them. */
static void copy_cpu_labels(const cn_fetch_args *a, uint32_t layer, uint32_t head,
                            uint32_t dst_block, uint32_t dst_slot, uint32_t src_block,
                            uint32_t src_slot, uint32_t n)
{
    const cn_digest *to = &a->local.digest, *from = &a->home.digest;
    const size_t bytes = to->n_channels / 2;
    const size_t dst = cn_kv_side(&a->local.layout, layer, dst_block, head, dst_slot);
    const size_t src = cn_kv_side(&a->home.layout, layer, src_block, head, src_slot);
    if (!to->labels || !from->labels) return;
    memcpy(to->labels + dst * bytes, from->labels + src * bytes, n * bytes);
    memcpy(to->scales + dst, from->scales + src, n * sizeof *to->scales);
}

static void fetch_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const cn_fetch_args *a = ctx;
    const cn_kv_layout *l = &a->local.layout;
    const uint32_t hk = l->n_kv_heads, b = l->block_tokens, head = task % hk;
    const uint32_t seq = task / hk / a->n_layers, layer = a->first_layer + task / hk % a->n_layers;
    const uint32_t entry = 1U << a->entry_log2[seq], n = cn_min_u32(entry, l->tile_tokens);
    const uint32_t *local = a->local_tables + (size_t)seq * a->local_stride;
    const uint32_t *home = a->home_tables + (size_t)seq * a->home_stride;
    const uint32_t unit = a->one_list ? seq * hk + head : task;
    const cn_move *moves = a->moves + (size_t)unit * a->move_stride;
    for (uint32_t i = 0; i < a->n_moves[unit]; i++)
        for (uint32_t t = 0; t < entry; t += n) {
            const uint32_t slot = moves[i].entry * entry + t;
            const uint32_t position = moves[i].source * entry + t;
            copy_cpu_rows(a, layer, head, local[slot / b], slot % b, home[position / b],
                          position % b, n);
            if (a->entry_log2[seq] == CN_DIGEST_TILE_LOG2)
                copy_cpu_labels(a, layer, head, local[slot / b], slot % b, home[position / b],
                                position % b, n);
            if (!a->local.origin) continue;
            uint32_t *p = a->local.origin + cn_kv_side(l, layer, local[slot / b], head, slot % b);
            for (uint32_t j = 0; j < n; j++) p[j] = position + j;
        }
}

/* The two layouts must differ in their numbers of layers and blocks only. */
static cn_status check_layouts(const cn_fetch_args *a)
{
    const cn_kv_layout *l = &a->local.layout, *h = &a->home.layout;
    if (l->n_kv_heads == h->n_kv_heads && l->block_tokens == h->block_tokens &&
        l->head_dim == h->head_dim && l->block_bytes == h->block_bytes)
        return CN_OK;
    return cn_fail(CN_ERR_SHAPE,
                   "fetch: home blocks of %u heads, %u tokens and %zu bytes a layer: expected %u "
                   "heads, %u tokens and %zu bytes",
                   h->n_kv_heads, h->block_tokens, h->block_bytes, l->n_kv_heads, l->block_tokens,
                   l->block_bytes);
}

cn_status cn_cpu_fetch(cn_stream *s, const cn_fetch_args *a)
{
    CN_TRY(check_layouts(a));
    cn_cpu_parallel(s, a->n_seqs * a->n_layers * a->local.layout.n_kv_heads, fetch_task,
                    (void *)(uintptr_t)a);
    return CN_OK;
}
