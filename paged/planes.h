/* planes.h - the arrays that a block and a query slot consist of, and where they lie in a memory:
 * what forks, swap and later transfers copy. A leaf.
 *
 * A plane has one item for each block (or query slot) and layer; items are of equal size. K and V
 * are one plane, F and P are others. A memory holds some of the planes, in its own strides:
 *
 *   a device keeps each plane as [layer][item], so a layer is one array for kernels;
 *   host memory keeps each block as [plane][layer], so a block is one contiguous piece.
 *
 * Copying an item is therefore one 2-D copy: n_layers rows of item_bytes. */
#ifndef CN_PLANES_H
#define CN_PLANES_H

#include "paged/kv_layout.h"

typedef enum cn_block_plane {
    CN_PLANE_KV,     /* all parts of a row */
    CN_PLANE_SCORE,  /* F, f32 [h_kv, b] */
    CN_PLANE_ORIGIN, /* P, u32 [h_kv, b] */
    CN_N_BLOCK_PLANES
} cn_block_plane;

typedef enum cn_slot_plane {
    CN_PLANE_QUERIES, /* the ring, act dtype [w, h_q, d] */
    CN_N_SLOT_PLANES
} cn_slot_plane;

typedef struct cn_plane {
    char *base;        /* NULL: this memory has no such plane */
    size_t item_bytes; /* in one layer */
    size_t item_stride, layer_stride;
} cn_plane;

/* Where a memory is, seen from the backend that copies. */
typedef enum cn_where { CN_ON_DEVICE, CN_ON_HOST } cn_where;

typedef struct cn_planes {
    uint32_t n_layers;
    cn_where where;
    cn_plane block[CN_N_BLOCK_PLANES];
    cn_plane slot[CN_N_SLOT_PLANES];
} cn_planes;

/* Bytes of a block's plane in one layer. */
static inline size_t cn_block_plane_bytes(const cn_kv_layout *l, cn_block_plane plane)
{
    const size_t side_bytes = (size_t)l->n_kv_heads * l->block_tokens * sizeof(uint32_t);
    return plane == CN_PLANE_KV ? l->block_bytes : side_bytes;
}

static inline char *cn_plane_at(const cn_plane *p, uint32_t layer, uint32_t item)
{
    return p->base + layer * p->layer_stride + item * p->item_stride;
}

/* A plane of a device: [layer][item]. */
static inline cn_plane cn_plane_by_layer(void *base, size_t item_bytes, size_t n_items)
{
    const cn_plane p = {(char *)base, item_bytes, item_bytes, item_bytes * n_items};
    return p;
}

/* Bytes of one item, all its planes and layers. */
static inline size_t cn_planes_item_bytes(const cn_plane *planes, uint32_t n, uint32_t n_layers)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        if (planes[i].base) bytes += planes[i].item_bytes * n_layers;
    return bytes;
}

static inline size_t cn_planes_block_bytes(const cn_planes *p)
{
    return cn_planes_item_bytes(p->block, CN_N_BLOCK_PLANES, p->n_layers);
}

static inline size_t cn_planes_slot_bytes(const cn_planes *p)
{
    return cn_planes_item_bytes(p->slot, CN_N_SLOT_PLANES, p->n_layers);
}

/* Lays out items one behind the other from `base`, each [plane][layer], with the planes that
 * `like` has. */
static inline void cn_planes_pack(cn_plane *out, const cn_plane *like, uint32_t n,
                                  uint32_t n_layers, char *base)
{
    const size_t item_stride = cn_planes_item_bytes(like, n, n_layers);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = like[i];
        if (!like[i].base) continue;
        out[i].base = base;
        out[i].item_stride = item_stride;
        out[i].layer_stride = like[i].item_bytes;
        base += like[i].item_bytes * n_layers;
    }
}

/* n_blocks blocks, then query slots, in memory at `base`: the form of host memory. */
static inline cn_planes cn_planes_packed(const cn_planes *like, void *base, uint32_t n_blocks)
{
    cn_planes p = *like;
    p.where = CN_ON_HOST;
    char *slots = (char *)base + n_blocks * cn_planes_block_bytes(like);
    cn_planes_pack(p.block, like->block, CN_N_BLOCK_PLANES, like->n_layers, (char *)base);
    cn_planes_pack(p.slot, like->slot, CN_N_SLOT_PLANES, like->n_layers, slots);
    return p;
}

#endif
