/* swap_space.h - the layout of blocks and windows in the swap space and on the device: the only
 * definition, for the op `swap` of every backend. A leaf.
 *
 * A plane is a device array [layer][item] of equal items. The pool, the scores and the origins are
 * planes of blocks; the windows are a plane of query slots. In the swap space the pieces of an
 * item, one per layer, are contiguous, and the planes of a block follow one another. */
#ifndef CN_SWAP_SPACE_H
#define CN_SWAP_SPACE_H

#include "engine/ops.h"

enum { CN_SWAP_PLANES = 3 };

typedef struct cn_swap_plane {
    char *device;
    size_t piece_bytes; /* of an item in one layer */
    size_t n_items;     /* on the device */
    size_t at;          /* offset of the plane in an item of the swap space */
} cn_swap_plane;

/* Fills in the planes of a block and returns their number. K and V have kv_bytes per element. */
static inline uint32_t cn_swap_block_planes(const cn_pools *p, size_t kv_bytes,
                                            cn_swap_plane planes[CN_SWAP_PLANES])
{
    const cn_kv_layout *l = &p->layout;
    const size_t side_bytes = (size_t)l->n_kv_heads * l->block_tokens * sizeof(uint32_t);
    const struct {
        void *base;
        size_t bytes;
    } arrays[CN_SWAP_PLANES] = {{p->kv, cn_kv_block_elems(l) * kv_bytes},
                                {p->score, side_bytes},
                                {p->origin, side_bytes}};
    uint32_t n = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < CN_SWAP_PLANES; i++) {
        if (!arrays[i].base) continue;
        planes[n++] =
            (cn_swap_plane){(char *)arrays[i].base, arrays[i].bytes, l->n_blocks, at};
        at += arrays[i].bytes * l->n_layers;
    }
    return n;
}

/* The plane of the windows, with act_bytes per element. */
static inline cn_swap_plane cn_swap_window_plane(const cn_pools *p, size_t act_bytes)
{
    const size_t n = (size_t)p->window * p->n_heads * p->layout.head_dim;
    return (cn_swap_plane){(char *)p->q_window, n * act_bytes, p->n_query_slots, 0};
}

static inline size_t cn_swap_block_bytes(const cn_pools *p, size_t kv_bytes)
{
    cn_swap_plane planes[CN_SWAP_PLANES];
    const uint32_t n = cn_swap_block_planes(p, kv_bytes, planes);
    return planes[n - 1].at + planes[n - 1].piece_bytes * p->layout.n_layers;
}

static inline size_t cn_swap_window_bytes(const cn_pools *p, size_t act_bytes)
{
    return cn_swap_window_plane(p, act_bytes).piece_bytes * p->layout.n_layers;
}

/* Address of one layer's piece of an item: on the device, and in the swap space, where `item` is
 * the address of the item. */
static inline char *cn_swap_on_device(const cn_swap_plane *p, uint32_t layer, uint32_t id)
{
    return p->device + (layer * p->n_items + id) * p->piece_bytes;
}

static inline char *cn_swap_on_host(const cn_swap_plane *p, uint32_t layer, char *item)
{
    return item + p->at + layer * p->piece_bytes;
}

#endif
