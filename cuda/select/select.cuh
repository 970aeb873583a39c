/* select.cuh - code that the kernels of selection share: the unit of a thread block, and the
 * addresses of its candidates. DESIGN.md §6. Arrays: engine/ops.h. */
#ifndef CN_CUDA_SELECT_CUH
#define CN_CUDA_SELECT_CUH

#include "cuda/launch.cuh"
#include "cuda/util.cuh"

/* Shared memory that the GPU takes for a block of `select` in clusters of up to four, at most. */
enum { CN_SELECT_BLOCK_BYTES = 12 * 1024 };

/* A unit is (sequence, layer of the call, kv head). */
typedef struct cn_sel_unit {
    uint32_t index, seq, row, head;
} cn_sel_unit;

__device__ static inline cn_sel_unit cn_sel_unit_of(uint32_t index, uint32_t n_layers,
                                                    uint32_t n_kv_heads)
{
    cn_sel_unit u;
    u.index = index;
    u.head = index % n_kv_heads;
    u.row = index / n_kv_heads % n_layers;
    u.seq = index / n_kv_heads / n_layers;
    return u;
}

/* Returns the index of the unit's first score. */
__device__ static inline size_t cn_sel_first(const cn_sel_unit &u, uint32_t first, uint32_t n,
                                             uint32_t n_layers, uint32_t n_kv_heads)
{
    return ((size_t)first * n_layers + (size_t)u.row * n) * n_kv_heads + (size_t)u.head * n;
}

#endif
