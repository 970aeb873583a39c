/* planes.h - the arrays that hold blocks and query slots, and their addresses in one memory. Forks,
 * swap and copies to a home copy blocks and query slots through them. A leaf.
 *
 * A plane has one item for each block (or query slot) in each of its layers: those of the model, or
 * one (the planes of a retrieval head). All items of a plane have the same size. K and V are one
 * plane; F, P and each digest are planes of their own. A memory has its own strides, and may lack a
 * plane:
 *
 *   A device and a home store each plane as [layer][item]: kernels see one array for each layer.
 *   The swap space stores each block as [plane][layer], so that a block is contiguous.
 *
 * Therefore one 2-D copy, n_layers rows of item_bytes, copies an item of a plane. */
#pragma once

#include "paged/kv_layout.h"

typedef enum cn_block_plane {
    CN_PLANE_KV,     /* all parts of the layout, [h_kv, b] rows */
    CN_PLANE_SCORE,  /* F, f32 [h_kv, b] */
    CN_PLANE_ORIGIN, /* P, u32 [h_kv, b] */
    /* Digests: what selectors rank instead of keys (SELECTION.md §3). */
    CN_PLANE_LABELS,    /* [h_kv, b, n/2] of n channels: 4 bits each, the even one low */
    CN_PLANE_SCALES,    /* f16 [h_kv, b], of the labels */
    CN_PLANE_BOUNDS_16, /* act dtype [h_kv, b/16, min|max, d] */
    CN_PLANE_BOUNDS_64, /* act dtype [h_kv, b/64, min|max, d]; only in blocks of at least 64 */
    CN_PLANE_DRAFT,     /* K of the retrieval head, in one layer (cn_kv_layout_draft) */
    CN_PLANE_STATE,     /* act dtype [draft_state], in one layer: the fused state of the newest
                         * token of a block, for the draft K and query of the next one */
    CN_N_BLOCK_PLANES
} cn_block_plane;

typedef enum cn_slot_plane {
    CN_PLANE_QUERIES, /* the ring, act dtype [w, h_q, query_dim] */
    CN_N_SLOT_PLANES
} cn_slot_plane;

typedef struct cn_plane {
    char *base;        /* NULL: this memory lacks the plane */
    size_t item_bytes; /* in one layer */
    size_t item_stride, layer_stride;
    uint32_t n_layers;
} cn_plane;

/* Whether a memory is device memory or host memory. */
typedef enum cn_where { CN_ON_DEVICE, CN_ON_HOST } cn_where;

typedef struct cn_planes {
    cn_where where;
    cn_plane block[CN_N_BLOCK_PLANES];
    cn_plane slot[CN_N_SLOT_PLANES];
} cn_planes;

enum { CN_DIGEST_TILE = 64, CN_DIGEST_PAGE = 16, CN_DIGEST_TILE_LOG2 = 6 };

/* Channels of a label: a quarter of a key. */
static inline uint32_t cn_label_channels(uint32_t head_dim) { return head_dim / 4; }

/* The same of a row of latent attention: 2/9 of it, as the nearest multiple of 16, from 16 to 128.
 * Source: AsyncTLS §5, 128 of 576. */
static inline uint32_t cn_latent_label_channels(uint32_t width)
{
    const uint32_t n = (2 * width / 9 + 8) / 16 * 16;
    return n < 16 ? 16 : n > 128 ? 128 : n;
}

/* The same of the rows of a pool. */
static inline uint32_t cn_layout_label_channels(const cn_kv_layout *l)
{
    return cn_kv_layout_is_shared(l) ? cn_latent_label_channels(l->head_dim)
                                     : cn_label_channels(l->head_dim);
}

/* Bytes of an item of a block plane, in one layer. */
static inline size_t cn_block_plane_bytes(const cn_kv_layout *l, cn_block_plane plane)
{
    const size_t slots = (size_t)l->n_kv_heads * l->block_tokens;
    const size_t bounds_bytes = (size_t)2 * l->head_dim * cn_dtype_bytes(l->act_dtype);
    switch (plane) {
    case CN_PLANE_KV: return l->block_bytes;
    case CN_PLANE_LABELS: return slots * cn_layout_label_channels(l) / 2;
    case CN_PLANE_SCALES: return slots * sizeof(uint16_t);
    case CN_PLANE_BOUNDS_16: return slots / CN_DIGEST_PAGE * bounds_bytes;
    case CN_PLANE_BOUNDS_64: return slots / CN_DIGEST_TILE * bounds_bytes;
    case CN_PLANE_DRAFT: return slots * l->draft_dim * cn_dtype_bytes(l->act_dtype);
    case CN_PLANE_STATE: return l->draft_state * cn_dtype_bytes(l->act_dtype);
    default: return slots * sizeof(uint32_t); /* F, P */
    }
}

/* Layers of a block plane. */
static inline uint32_t cn_block_plane_layers(const cn_kv_layout *l, cn_block_plane plane)
{
    return plane == CN_PLANE_DRAFT || plane == CN_PLANE_STATE ? 1 : l->n_layers;
}

static inline char *cn_plane_at(const cn_plane *p, uint32_t layer, uint32_t item)
{
    return p->base + layer * p->layer_stride + item * p->item_stride;
}

/* Returns a plane of device memory: [layer][item]. */
static inline cn_plane cn_plane_by_layer(void *base, size_t item_bytes, size_t n_items,
                                         uint32_t n_layers)
{
    const cn_plane p = {(char *)base, item_bytes, item_bytes, item_bytes * n_items, n_layers};
    return p;
}

/* Returns K and V of the first n_layers layers of p, without the other planes. Copies from it go to
 * memories that lack these planes or layers. */
static inline cn_planes cn_planes_kv(const cn_planes *p, uint32_t n_layers)
{
    cn_planes out = *p;
    out.block[CN_PLANE_KV].n_layers = n_layers;
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        if (i != CN_PLANE_KV) out.block[i].base = NULL;
    for (int i = 0; i < CN_N_SLOT_PLANES; i++) out.slot[i].base = NULL;
    return out;
}

/* Returns the planes of a retrieval head alone. */
static inline cn_planes cn_planes_draft(cn_planes p)
{
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        if (i != CN_PLANE_DRAFT && i != CN_PLANE_STATE) p.block[i].base = NULL;
    for (int i = 0; i < CN_N_SLOT_PLANES; i++) p.slot[i].base = NULL;
    return p;
}

/* Bytes of one block or query slot: all planes that exist, all layers. */
static inline size_t cn_planes_item_bytes(const cn_plane *planes, uint32_t n)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        if (planes[i].base) bytes += planes[i].item_bytes * planes[i].n_layers;
    return bytes;
}

static inline size_t cn_planes_block_bytes(const cn_planes *p)
{
    return cn_planes_item_bytes(p->block, CN_N_BLOCK_PLANES);
}

static inline size_t cn_planes_slot_bytes(const cn_planes *p)
{
    return cn_planes_item_bytes(p->slot, CN_N_SLOT_PLANES);
}

/* Lays out items from `base` on, each [plane][layer] and contiguous, with the planes of `like`. */
static inline void cn_planes_pack(cn_plane *out, const cn_plane *like, uint32_t n, char *base)
{
    const size_t item_stride = cn_planes_item_bytes(like, n);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = like[i];
        if (!like[i].base) continue;
        out[i].base = base;
        out[i].item_stride = item_stride;
        out[i].layer_stride = like[i].item_bytes;
        base += like[i].item_bytes * like[i].n_layers;
    }
}

/* Returns the planes of host memory at `base`: n_blocks blocks, then the query slots. */
static inline cn_planes cn_planes_packed(const cn_planes *like, void *base, uint32_t n_blocks)
{
    cn_planes p = *like;
    p.where = CN_ON_HOST;
    char *slots = (char *)base + n_blocks * cn_planes_block_bytes(like);
    cn_planes_pack(p.block, like->block, CN_N_BLOCK_PLANES, (char *)base);
    cn_planes_pack(p.slot, like->slot, CN_N_SLOT_PLANES, slots);
    return p;
}
