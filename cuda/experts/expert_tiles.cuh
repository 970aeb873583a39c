/* expert_tiles.cuh - what the kernels of grouped products share: the list of tiles that a thread
 * block makes from the pairs of each expert, the order of weight rows in shared memory, and the
 * stores of sums.
 *
 * A tile is up to TOKENS pairs of one expert times ROWS of its weight rows. A unit of work is a
 * tile; blocks take units in turn. Units with the same pairs follow each other.
 *
 * In shared memory weight rows are in slabs of 16. A thread has sums of two rows of a slab, r and
 * r + 8, with r = lane / 4. If the product is gated, a slab has eight columns of out: r is the gate
 * of one and r + 8 its other factor. Else it has 16 columns, and the two rows are neighbours. */
#pragma once

#include "cuda/experts/experts.h"
#include "cuda/util.cuh"

enum { CN_SLAB_ROWS = 16, CN_TABLE_AHEAD = 5 /* words that a lane loads at once */ };

/* Columns of out that a slab has. */
constexpr __host__ __device__ uint32_t cn_slab_columns(bool gated)
{
    return gated ? CN_SLAB_ROWS / 2 : CN_SLAB_ROWS;
}

/* Tiles of K of a stage, each of CN_ROW_BYTES of every row, so that three stages fit in half of an
 * SM's shared memory. */
constexpr __host__ __device__ uint32_t cn_tiles_of_stage(uint32_t tokens, uint32_t rows)
{
    return tokens + rows <= 74 ? 4 : tokens + rows <= 148 ? 2 : 1;
}

/* A place in a ring of stages: the stage, and whether the number of completed rounds is odd. */
typedef struct cn_ring {
    uint32_t stage, odd;
} cn_ring;

__device__ static inline void cn_ring_next(cn_ring *r, uint32_t stages)
{
    if (++r->stage < stages) return;
    r->stage = 0;
    r->odd ^= 1;
}

/* Tables in shared memory, of n_experts + 1 words each. */
typedef struct cn_expert_tables {
    uint32_t *starts; /* first pair of each expert */
    uint32_t *tiles;  /* first tile of pairs of each expert */
} cn_expert_tables;

static inline __host__ __device__ uint32_t cn_expert_table_bytes(uint32_t n_experts)
{
    return 2 * (n_experts + 1) * (uint32_t)sizeof(uint32_t);
}

/* Fills both tables. Called by one warp. */
__device__ static inline void cn_fill_tables(const cn_expert_tables &t, const uint32_t *starts,
                                             uint32_t n_experts, uint32_t tokens)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    const uint32_t each = (n_experts + CN_WARP - 1) / CN_WARP;
    const uint32_t from = min(lane * each, n_experts), to = min(from + each, n_experts);
    uint32_t own = 0;
    for (uint32_t first = lane; first <= n_experts; first += CN_TABLE_AHEAD * CN_WARP) {
        uint32_t start[CN_TABLE_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < CN_TABLE_AHEAD; i++)
            start[i] = __ldcg(starts + min(first + i * CN_WARP, n_experts));
#pragma unroll
        for (uint32_t i = 0; i < CN_TABLE_AHEAD; i++)
            if (first + i * CN_WARP <= n_experts) t.starts[first + i * CN_WARP] = start[i];
    }
    __syncwarp();
    for (uint32_t e = from; e < to; e++)
        own += (t.starts[e + 1] - t.starts[e] + tokens - 1) / tokens;
    uint32_t before = own;
#pragma unroll
    for (int offset = 1; offset < CN_WARP; offset *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, before, offset);
        if (lane >= (uint32_t)offset) before += other;
    }
    if (lane == CN_WARP - 1) t.tiles[n_experts] = before;
    before -= own;
    for (uint32_t e = from; e < to; e++) {
        t.tiles[e] = before;
        before += (t.starts[e + 1] - t.starts[e] + tokens - 1) / tokens;
    }
}

/* The pairs of a unit. */
typedef struct cn_expert_pairs {
    uint32_t expert, first, count;
} cn_expert_pairs;

/* Returns the pairs of a tile, which is below tiles[n_experts]. */
__device__ static inline cn_expert_pairs cn_find_pairs(const cn_expert_tables &t,
                                                       uint32_t n_experts, uint32_t tokens,
                                                       uint32_t tile)
{
    uint32_t low = 0, high = n_experts; /* tiles[low] <= tile < tiles[high] */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (t.tiles[middle] <= tile) low = middle;
        else high = middle;
    }
    const uint32_t first = t.starts[low] + (tile - t.tiles[low]) * tokens;
    return {low, first, min(tokens, t.starts[low + 1] - first)};
}

__device__ static inline float cn_gated(float gate, float other)
{
    return gate / (1.0f + __expf(-gate)) * other;
}

/* Stores the sums of a warp: of its slab and of TOKENS pairs. column: of the slab in out. */
template <int TOKENS, bool GATED>
__device__ __forceinline__ static void cn_store_slab(cn_bf16 *out, uint32_t n, uint32_t column,
                                                     const cn_expert_pairs &pairs,
                                                     const float *sums)
{
    const uint32_t lane = threadIdx.x % CN_WARP, row = lane / 4, pair = lane % 4 * 2;
    column += GATED ? row : 2 * row;
    if (column >= n) return;
    cn_bf16 *at = out + (size_t)(pairs.first + pair) * n + column;
#pragma unroll
    for (uint32_t j = 0; j < TOKENS / 8; j++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            if (8 * j + pair + i >= pairs.count) continue;
            const float a = sums[4 * j + i], b = sums[4 * j + 2 + i];
            cn_bf16 *to = at + (size_t)(8 * j + i) * n;
            if (GATED) *to = __float2bfloat16_rn(cn_gated(a, b));
            else *(uint32_t *)to = cn_pack2(a, b);
        }
}
