/* select.cuh - code that the kernels of selection and of homes share: the unit of a block, and the
 * addresses of its candidates. SELECTION.md. Arrays: engine/ops.h. */
#pragma once

#include "cuda/launch.cuh"
#include "cuda/util.cuh"

/* Shared memory that the GPU takes for a block of `select` in clusters of up to four, at most. */
enum { CN_SELECT_BLOCK_BYTES = 12 * 1024 };

/* The counts of a unit (cn_score_launch). All are zero before `score`; `select` clears them. */
enum {
    /* Counts 0 to 255: how many scores have this high byte. */
    CN_COUNT_DIGITS = 256,
    CN_COUNT_STORED = CN_COUNT_DIGITS, /* how many candidates have a stored score (and digit) */
    CN_COUNTS = CN_COUNT_DIGITS + 4 /* a multiple of 16 bytes */
};

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

/* Adds n to a count. Releases what the block has stored before its last barrier. */
__device__ static inline void cn_count_add(uint32_t *count, uint32_t n)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(count), "r"(n) : "memory");
}

/* Adds the high bytes that the block has counted in shared memory, and clears these; then n scores
 * that it has stored. The block has CN_COUNT_DIGITS threads. */
__device__ static inline void cn_count_scores(uint32_t *counts, uint32_t *digits, uint32_t n)
{
    __syncthreads();
    const uint32_t own = digits[threadIdx.x];
    digits[threadIdx.x] = 0;
    if (own > 0) atomicAdd(counts + threadIdx.x, own);
    __syncthreads();
    if (threadIdx.x == 0) cn_count_add(counts + CN_COUNT_STORED, n);
}

/* The block waits until a count is n, and acquires what was stored before the count was raised. The
 * count stays n until `select` clears it, when all readers of the unit have passed. A load that
 * acquires empties the L1 cache, so only the last one does. */
__device__ static inline void cn_count_wait(const uint32_t *count, uint32_t n)
{
    uint32_t seen = ~n;
    while (threadIdx.x == 0 && seen != n)
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    if (threadIdx.x == 0)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    __syncthreads();
}
