/* cpu_copy.c - copy_blocks: whole blocks and whole query slots, from one memory to another. All
 * memory is the host's here: the strides of the planes are the only difference. */
#include <string.h>

#include "engine/cpu/cpu_ops.h"

/* Copies one layer of the listed items, plane by plane. */
static void copy_items(const cn_plane *from, const cn_plane *to, uint32_t n_planes, uint32_t layer,
                       const cn_block_copy *copies, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t p = 0; p < n_planes; p++) {
            if (!from[p].base) continue;
            char *dst = cn_plane_at(&to[p], layer, copies[i].dst);
            const char *src = cn_plane_at(&from[p], layer, copies[i].src);
            if (dst != src) memcpy(dst, src, from[p].item_bytes);
        }
}

/* Copies run in order inside a layer (one may feed the next), layers side by side. */
static void copy_layer(void *ctx, uint32_t layer, uint32_t worker)
{
    (void)worker;
    const cn_copy_args *a = ctx;
    copy_items(a->from.block, a->to.block, CN_N_BLOCK_PLANES, layer, a->list.blocks,
               a->list.n_blocks);
    copy_items(a->from.slot, a->to.slot, CN_N_SLOT_PLANES, layer, a->list.slots, a->list.n_slots);
}

cn_status cn_cpu_copy_blocks(cn_stream *s, const cn_copy_args *a)
{
    CN_TRY(cn_copy_check(a));
    cn_cpu_parallel(s, a->from.n_layers, copy_layer, (void *)a);
    return CN_OK;
}
