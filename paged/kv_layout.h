/* kv_layout.h - the memory layout of keys, values, global scores, origins and query windows.
 * This is the only definition of it. A leaf: plain arithmetic, shared by C and CUDA C++.
 *
 * Pool:    kv[layer][block][kv_head][block_tokens/tile][K|V][tile][head_dim], tile = min(64, b).
 * Scores:  f[layer][block][kv_head][slot], f32 or bf16: the global decayed score.
 * Origins: p[layer][block][kv_head][slot], u32: the position of the token that a slot holds.
 * Windows: q[layer][query_slot][window][q_head][head_dim]: a ring, row = position mod window.
 *
 * A 64-token tile of one head holds its keys beside its values (32 KiB in bf16 at head_dim 128).
 * Therefore one 2-D tensor map addresses the pool, and compaction and transfers move whole rows.
 * All offsets are in elements, not bytes. */
#ifndef CN_KV_LAYOUT_H
#define CN_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CN_KV_FN __host__ __device__ static inline
#else
#define CN_KV_FN static inline
#endif

typedef enum cn_kv_part { CN_KV_K = 0, CN_KV_V = 1 } cn_kv_part;

typedef struct cn_kv_layout {
    uint32_t n_layers, n_blocks, n_kv_heads;
    uint32_t block_tokens; /* power of two, 16..256 */
    uint32_t tile_tokens;  /* min(64, block_tokens) */
    uint32_t head_dim;
} cn_kv_layout;

CN_KV_FN cn_kv_layout cn_kv_layout_make(uint32_t n_layers, uint32_t n_blocks, uint32_t n_kv_heads,
                                        uint32_t block_tokens, uint32_t head_dim)
{
    cn_kv_layout l;
    l.n_layers = n_layers;
    l.n_blocks = n_blocks;
    l.n_kv_heads = n_kv_heads;
    l.block_tokens = block_tokens;
    l.tile_tokens = block_tokens < 64 ? block_tokens : 64;
    l.head_dim = head_dim;
    return l;
}

/* Elements of one (layer, block): both parts of all heads. */
CN_KV_FN size_t cn_kv_block_elems(const cn_kv_layout *l)
{
    return (size_t)l->n_kv_heads * l->block_tokens * 2 * l->head_dim;
}

/* Elements of the whole pool. */
CN_KV_FN size_t cn_kv_pool_elems(const cn_kv_layout *l)
{
    return (size_t)l->n_layers * l->n_blocks * cn_kv_block_elems(l);
}

/* First element of the row [head_dim] of (layer, block, kv head, slot in block, K or V). */
CN_KV_FN size_t cn_kv_row(const cn_kv_layout *l, uint32_t layer, uint32_t block, uint32_t head,
                          uint32_t slot, cn_kv_part part)
{
    size_t tiles = l->block_tokens / l->tile_tokens;
    size_t tile = (((size_t)layer * l->n_blocks + block) * l->n_kv_heads + head) * tiles +
                  slot / l->tile_tokens;
    return ((tile * 2 + (size_t)part) * l->tile_tokens + slot % l->tile_tokens) * l->head_dim;
}

/* Element of a per-slot side array (global score, origin). */
CN_KV_FN size_t cn_kv_side(const cn_kv_layout *l, uint32_t layer, uint32_t block, uint32_t head,
                           uint32_t slot)
{
    return (((size_t)layer * l->n_blocks + block) * l->n_kv_heads + head) * l->block_tokens + slot;
}

CN_KV_FN size_t cn_kv_side_elems(const cn_kv_layout *l)
{
    return (size_t)l->n_layers * l->n_blocks * l->n_kv_heads * l->block_tokens;
}

/* First element of the row [head_dim] of (layer, query slot, ring row, query head). There are
 * n_slots query slots of `window` rows each. */
CN_KV_FN size_t cn_query_row(uint32_t n_slots, uint32_t window, uint32_t n_q_heads,
                             uint32_t head_dim, uint32_t layer, uint32_t slot, uint32_t row,
                             uint32_t head)
{
    return ((((size_t)layer * n_slots + slot) * window + row) * n_q_heads + head) * head_dim;
}

#endif
