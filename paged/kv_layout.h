/* kv_layout.h - the memory layout of keys, values, global scores, origins and query windows.
 * This is the only definition of it. A leaf: plain arithmetic, shared by C and CUDA C++.
 *
 * Pool:    kv[layer][block][kv_head][block_tokens/tile][part][tile][width], tile = min(64, b).
 * Scores:  f[layer][block][kv_head][slot], f32: the global decayed score.
 * Origins: p[layer][block][kv_head][slot], u32: the position of the token that a slot holds.
 * Windows: q[layer][query_slot][window][q_head][query_dim]: a ring, row = position mod window.
 *
 * A token has one row in each part. Each part has its own dtype and width. In the plain form the
 * parts are K and V. In eight bits (CN_KV_FP8) they are K, V, and the scale of each row of K and of
 * V (paged/kv_fp8.h). With latent attention there is one part, K, and V is the first elements of
 * its rows (cn_kv_layout_share). A 64-token tile of one head holds its keys beside its values
 * (32 KiB in bf16 at head_dim 128, 16,640 bytes in eight bits). Therefore one 2-D tensor map
 * addresses a plain pool, and compaction and transfers move whole rows.
 *
 * A layout describes one memory and one group of layers of equal shape. It has the strides of that
 * memory, in bytes. In device memory the blocks of a layer are contiguous; in host memory the
 * layers of a block are (paged/planes.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/dtype.h"

#ifdef __CUDACC__
#define CN_KV_FN __host__ __device__ static inline
#else
#define CN_KV_FN static inline
#endif

enum { CN_KV_TILE_TOKENS = 64, CN_KV_MAX_PARTS = 4 };

/* The index of a part in cn_kv_layout.part. */
typedef enum cn_kv_part {
    CN_KV_K = 0,
    CN_KV_V = 1,
    CN_KV_K_SCALE = 2, /* f16, of the row of K; CN_KV_FP8 only */
    CN_KV_V_SCALE = 3
} cn_kv_part;

typedef enum cn_kv_form { CN_KV_PLAIN, CN_KV_FP8 } cn_kv_form;

typedef struct cn_kv_part_shape {
    cn_dtype dtype;
    uint32_t width;     /* elements of a row */
    uint32_t row_bytes; /* from the row of a slot to that of the next slot in the tile */
    uint32_t tile_at;   /* bytes from the start of a tile to this part's first row */
} cn_kv_part_shape;

typedef struct cn_kv_layout {
    uint32_t n_layers, n_blocks, n_kv_heads;
    uint32_t block_tokens; /* power of two, 16..256 */
    uint32_t tile_tokens;  /* min(64, block_tokens) */
    uint32_t head_dim;     /* elements of a row of K, and of a query that is multiplied with it */
    uint32_t query_dim;    /* elements of a query in the ring */
    uint32_t draft_dim;    /* elements of a row of draft K, in a plane of its own; 0: none */
    uint32_t draft_state;  /* elements of the state that a block keeps for the draft; 0: none */
    cn_dtype act_dtype;    /* of draft K and of bounds; of K and V in the plain form */
    uint32_t n_parts;
    cn_kv_part_shape part[CN_KV_MAX_PARTS]; /* V is set too where it is no part of its own */
    uint32_t tile_bytes;   /* a tile of one head, all parts */
    uint32_t head_bytes;   /* all tiles of one head in a block */
    size_t block_bytes;    /* all heads of a block in one layer */
    size_t block_stride, layer_stride; /* bytes from one block or layer to the next */
} cn_kv_layout;

/* Appends a part with rows of `width` elements. */
CN_KV_FN void cn_kv_layout_add(cn_kv_layout *l, cn_dtype dtype, uint32_t width)
{
    cn_kv_part_shape *p = &l->part[l->n_parts++];
    p->dtype = dtype;
    p->width = width;
    p->row_bytes = width * (uint32_t)cn_dtype_bytes(dtype);
    p->tile_at = l->tile_bytes;
    l->tile_bytes += l->tile_tokens * p->row_bytes;
    l->head_bytes = l->block_tokens / l->tile_tokens * l->tile_bytes;
    l->block_bytes = (size_t)l->n_kv_heads * l->head_bytes;
    l->block_stride = l->block_bytes;
    l->layer_stride = l->n_blocks * l->block_bytes;
}

/* Returns the layout of a device pool whose rows of K and V have head_dim elements. `act` is the
 * type of activations. */
CN_KV_FN cn_kv_layout cn_kv_layout_form(uint32_t n_layers, uint32_t n_blocks, uint32_t n_kv_heads,
                                        uint32_t block_tokens, uint32_t head_dim, cn_dtype act,
                                        cn_kv_form form)
{
    cn_kv_layout l;
    memset(&l, 0, sizeof l); /* layouts are compared and copied whole */
    l.n_layers = n_layers;
    l.n_blocks = n_blocks;
    l.n_kv_heads = n_kv_heads;
    l.block_tokens = block_tokens;
    l.tile_tokens = block_tokens < CN_KV_TILE_TOKENS ? block_tokens : (uint32_t)CN_KV_TILE_TOKENS;
    l.head_dim = l.query_dim = head_dim;
    l.act_dtype = act;
    const cn_dtype dtype = form == CN_KV_FP8 ? CN_E4M3 : act;
    cn_kv_layout_add(&l, dtype, head_dim);
    cn_kv_layout_add(&l, dtype, head_dim);
    if (form != CN_KV_FP8) return l;
    cn_kv_layout_add(&l, CN_F16, 1);
    cn_kv_layout_add(&l, CN_F16, 1);
    return l;
}

/* The same in the plain form. */
CN_KV_FN cn_kv_layout cn_kv_layout_make(uint32_t n_layers, uint32_t n_blocks, uint32_t n_kv_heads,
                                        uint32_t block_tokens, uint32_t head_dim, cn_dtype act)
{
    return cn_kv_layout_form(n_layers, n_blocks, n_kv_heads, block_tokens, head_dim, act,
                             CN_KV_PLAIN);
}

CN_KV_FN cn_kv_form cn_kv_form_of(const cn_kv_layout *l)
{
    return l->part[CN_KV_K].dtype == CN_E4M3 ? CN_KV_FP8 : CN_KV_PLAIN;
}

/* Makes V the first `value_dim` elements of the rows of K, in a plain layout. `query_dim`: of a
 * query in the ring. Does nothing with value_dim 0. */
CN_KV_FN void cn_kv_layout_share(cn_kv_layout *l, uint32_t value_dim, uint32_t query_dim)
{
    if (value_dim == 0) return;
    l->query_dim = query_dim;
    l->n_parts = 0;
    l->tile_bytes = 0;
    cn_kv_layout_add(l, l->act_dtype, l->head_dim);
    l->part[CN_KV_V] = l->part[CN_KV_K];
    l->part[CN_KV_V].width = value_dim;
}

/* Returns whether rows of V are the first elements of rows of K. */
CN_KV_FN bool cn_kv_layout_is_shared(const cn_kv_layout *l) { return l->n_parts == 1; }

/* Returns the layout of a pool with rows like those of `l`, and other numbers of layers and blocks.
 */
CN_KV_FN cn_kv_layout cn_kv_layout_like(const cn_kv_layout *l, uint32_t n_layers, uint32_t n_blocks)
{
    cn_kv_layout out = cn_kv_layout_form(n_layers, n_blocks, l->n_kv_heads, l->block_tokens,
                                         l->head_dim, l->act_dtype, cn_kv_form_of(l));
    if (cn_kv_layout_is_shared(l)) cn_kv_layout_share(&out, l->part[CN_KV_V].width, l->query_dim);
    return out;
}

/* Returns the layout of the draft K beside such a pool: the part K alone, in one layer. */
CN_KV_FN cn_kv_layout cn_kv_layout_draft(const cn_kv_layout *pool)
{
    cn_kv_layout l = cn_kv_layout_make(1, pool->n_blocks, pool->n_kv_heads, pool->block_tokens,
                                       pool->draft_dim, pool->act_dtype);
    l.n_parts = 0;
    l.tile_bytes = 0;
    cn_kv_layout_add(&l, pool->act_dtype, pool->draft_dim);
    return l;
}

/* Bytes of the whole pool. */
CN_KV_FN size_t cn_kv_pool_bytes(const cn_kv_layout *l) { return l->n_layers * l->layer_stride; }

/* Bytes from the first byte of a head in a block to the row of `slot`. */
CN_KV_FN size_t cn_kv_in_head(const cn_kv_layout *l, uint32_t slot, cn_kv_part part)
{
    return (size_t)(slot / l->tile_tokens) * l->tile_bytes + l->part[part].tile_at +
           (size_t)(slot % l->tile_tokens) * l->part[part].row_bytes;
}

/* Bytes from the start of the pool to the row of (layer, block, kv head, slot in block, part). */
CN_KV_FN size_t cn_kv_at(const cn_kv_layout *l, uint32_t layer, uint32_t block, uint32_t head,
                         uint32_t slot, cn_kv_part part)
{
    return layer * l->layer_stride + block * l->block_stride + (size_t)head * l->head_bytes +
           cn_kv_in_head(l, slot, part);
}

/* Distances counted in rows, for a uniform layout. Tensor maps and kernels address the pool in
 * rows. */
typedef struct cn_kv_rows {
    uint32_t layer, block, head, tile; /* rows from one layer, block, head or tile to the next */
    uint32_t value;                    /* rows from a key to its value */
    uint32_t tile_tokens;
    size_t total; /* rows of the pool */
} cn_kv_rows;

/* Returns true when all parts have this dtype and rows of head_dim elements. */
CN_KV_FN bool cn_kv_layout_has_rows(const cn_kv_layout *l, cn_dtype dtype)
{
    for (uint32_t i = 0; i < l->n_parts; i++)
        if (l->part[i].dtype != dtype || l->part[i].width != l->head_dim) return false;
    return true;
}

/* Returns true when, besides, the parts are K and V. */
CN_KV_FN bool cn_kv_layout_is_uniform(const cn_kv_layout *l, cn_dtype dtype)
{
    return l->n_parts == 2 && cn_kv_layout_has_rows(l, dtype);
}

/* All rows must be of one kind (cn_kv_layout_has_rows). Without V, `value` means nothing. */
CN_KV_FN cn_kv_rows cn_kv_rows_of(const cn_kv_layout *l)
{
    const uint32_t row_bytes = l->part[CN_KV_K].row_bytes;
    cn_kv_rows r;
    r.layer = (uint32_t)(l->layer_stride / row_bytes);
    r.block = (uint32_t)(l->block_stride / row_bytes);
    r.head = l->head_bytes / row_bytes;
    r.tile = l->tile_bytes / row_bytes;
    r.value = (l->part[CN_KV_V].tile_at - l->part[CN_KV_K].tile_at) / row_bytes;
    r.tile_tokens = l->tile_tokens;
    r.total = cn_kv_pool_bytes(l) / row_bytes;
    return r;
}

/* ---- counts in elements, for layouts whose parts have one dtype ---- */

CN_KV_FN size_t cn_kv_elem_bytes(const cn_kv_layout *l)
{
    return cn_dtype_bytes(l->part[CN_KV_K].dtype);
}

CN_KV_FN size_t cn_kv_pool_elems(const cn_kv_layout *l)
{
    return cn_kv_pool_bytes(l) / cn_kv_elem_bytes(l);
}

/* Returns the first element of the row of (layer, block, kv head, slot in block, part). */
CN_KV_FN size_t cn_kv_row(const cn_kv_layout *l, uint32_t layer, uint32_t block, uint32_t head,
                          uint32_t slot, cn_kv_part part)
{
    return cn_kv_at(l, layer, block, head, slot, part) / cn_kv_elem_bytes(l);
}

/* ---- side arrays and query windows ---- */

/* Element of a per-slot side array (global score, origin) in device memory. */
CN_KV_FN size_t cn_kv_side(const cn_kv_layout *l, uint32_t layer, uint32_t block, uint32_t head,
                           uint32_t slot)
{
    return (((size_t)layer * l->n_blocks + block) * l->n_kv_heads + head) * l->block_tokens + slot;
}

CN_KV_FN size_t cn_kv_side_elems(const cn_kv_layout *l)
{
    return (size_t)l->n_layers * l->n_blocks * l->n_kv_heads * l->block_tokens;
}

/* First element of the row [query_dim] of (layer, query slot, ring row, query head). There are
 * n_slots query slots of `window` rows each. */
CN_KV_FN size_t cn_query_row(uint32_t n_slots, uint32_t window, uint32_t n_q_heads,
                             uint32_t query_dim, uint32_t layer, uint32_t slot, uint32_t row,
                             uint32_t head)
{
    return ((((size_t)layer * n_slots + slot) * window + row) * n_q_heads + head) * query_dim;
}
