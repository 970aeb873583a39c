/* compress.cuh - code that the kernels of a compression event share: the unit of a thread block,
 * and the addresses of its slots. See compress.h. */
#pragma once

#include "cuda/compress/compress.h"
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

typedef struct cn_compress_unit {
    uint32_t index, layer, head;
    const cn_compress_job *job;
} cn_compress_unit;

__device__ static inline cn_compress_unit cn_compress_unit_of(const cn_compress_chunk &c,
                                                              uint32_t index)
{
    const uint32_t heads = c.pools.layout.n_kv_heads, at = index / heads;
    cn_compress_unit u;
    u.index = index;
    u.head = index % heads;
    u.layer = c.first_layer + at % c.n_layers;
    u.job = c.jobs + at / c.n_layers;
    return u;
}

/* Returns the row of a part of resident slot v. */
__device__ static inline const void *cn_compress_row(const cn_compress_chunk &c,
                                                        const cn_compress_unit &u, uint32_t v,
                                                        cn_kv_part part)
{
    const cn_kv_layout *l = &c.pools.layout;
    const uint32_t block = __ldg(u.job->source + v / l->block_tokens);
    return (const char *)c.pools.kv +
           cn_kv_at(l, u.layer, block, u.head, v % l->block_tokens, part);
}

/* Returns the index of F and P of slot `slot` of a block. */
__device__ static inline size_t cn_compress_side(const cn_compress_chunk &c,
                                                 const cn_compress_unit &u, uint32_t block,
                                                 uint32_t slot)
{
    return cn_kv_side(&c.pools.layout, u.layer, block, u.head, slot);
}
