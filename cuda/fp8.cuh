/* fp8.cuh - rows of K and V in eight bits (paged/kv_fp8.h) on the device: their addresses in the
 * pool, and e4m3 as bf16 without loss. A bf16 has the bits of an e4m3 at other places and a larger
 * exponent bias: the bits are moved, and a product with 2^120 corrects the exponent, also of
 * subnormal numbers. NaN becomes 480: the scale of its row is NaN. */
#pragma once

#include <cuda_fp16.h>

#include "engine/base/base.h"
#include "paged/kv_fp8.h"

/* Returns bytes 1 and 3 of w, each an e4m3, as two bf16 of 2^-120 of their values, some of them
 * subnormal. The other bytes have no effect. */
__device__ static inline uint32_t cn_fp8_small(uint32_t w)
{
    return (w & 0x80008000u) | (w >> 4 & 0x07f007f0u);
}

/* Returns bytes 1 and 3 of w, each an e4m3, as two bf16. The other bytes have no effect. */
__device__ static inline uint32_t cn_fp8_pair(uint32_t w)
{
    const uint32_t bits = cn_fp8_small(w);
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" /* 2^120, -0 */
        : "=r"(out)
        : "r"(bits), "r"(0x7b807b80u), "r"(0x80008000u));
    return out;
}

/* Returns eight e4m3 as eight bf16 in the same order. */
__device__ static inline uint4 cn_fp8_chunk(uint2 w)
{
    return make_uint4(
        cn_fp8_pair(__byte_perm(w.x, 0, 0x1404)), cn_fp8_pair(__byte_perm(w.x, 0, 0x3424)),
        cn_fp8_pair(__byte_perm(w.y, 0, 0x1404)), cn_fp8_pair(__byte_perm(w.y, 0, 0x3424)));
}

__device__ static inline float cn_fp8_half(uint16_t scale)
{
    return __half2float(__ushort_as_half(scale));
}

/* The pool as kernels address it. */
typedef struct cn_fp8_pool {
    const char *kv;
    size_t block_stride, layer_stride;
    uint32_t head_bytes, tile_bytes, tile_tokens, tile_shift, head_dim;
} cn_fp8_pool;

/* A row of K and that of V, and their scales. */
typedef struct cn_fp8_rows {
    const uint8_t *key, *value;
    const uint16_t *key_scale, *value_scale;
} cn_fp8_rows;

/* Returns the rows of a slot of a block. */
__device__ static inline cn_fp8_rows cn_fp8_rows_at(const cn_fp8_pool &p, uint32_t layer,
                                                    uint32_t block, uint32_t head, uint32_t slot)
{
    const uint32_t at = slot & (p.tile_tokens - 1), part_bytes = p.tile_tokens * p.head_dim;
    const char *tile = p.kv + layer * p.layer_stride + block * p.block_stride +
                       (size_t)head * p.head_bytes + (slot >> p.tile_shift) * p.tile_bytes;
    cn_fp8_rows r;
    r.key = (const uint8_t *)tile + at * p.head_dim;
    r.value = r.key + part_bytes;
    r.key_scale = (const uint16_t *)(tile + 2 * part_bytes) + at;
    r.value_scale = r.key_scale + p.tile_tokens;
    return r;
}

static inline cn_fp8_pool cn_fp8_pool_of(const cn_kv_layout *l, const void *kv)
{
    cn_fp8_pool p = {};
    p.kv = (const char *)kv;
    p.block_stride = l->block_stride;
    p.layer_stride = l->layer_stride;
    p.head_bytes = l->head_bytes;
    p.tile_bytes = l->tile_bytes;
    p.tile_tokens = l->tile_tokens; /* a power of two */
    p.tile_shift = (uint32_t)__builtin_ctz(l->tile_tokens);
    p.head_dim = l->head_dim;
    return p;
}

/* CN_ERR_SHAPE names the op unless the rows are plain bf16, or in eight bits. */
static inline cn_status cn_kv_check_form(const char *op, const cn_kv_layout *l)
{
    if (cn_kv_layout_is_uniform(l, CN_BF16) || cn_kv_form_of(l) == CN_KV_FP8) return CN_OK;
    return cn_fail(CN_ERR_SHAPE,
                   "%s: KV layout: expected rows of %u elements of K and V, in bf16, or in e4m3 "
                   "with scales",
                   op, l->head_dim);
}
