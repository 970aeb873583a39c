/* attn_one_shared.cuh - the parameters of the kernel of attn_one.cuh, and the shared memory of a
 * block. */
#pragma once

#include "cuda/attn/attn_walk.cuh"

enum {
    CN_ONE_HEADS = 8, /* query heads at a time */
    CN_ONE_WARPS = 4, /* warps that compute 64 slots */
    CN_ONE_MOST_WARPS = 2 * CN_ONE_WARPS,
    CN_ONE_LIST_WARPS = 6, /* warps that fetch the rows of a list */
    CN_ONE_SLICE = CN_WALK_TILE / CN_ONE_WARPS, /* slots that one warp computes */
    CN_ONE_MAX_STAGES = 12,
    CN_ONE_ARRIVALS = 1 << 16, /* most partial results */
    CN_ONE_LEAST_SLOTS = 2048, /* least results in scratch: 2 per multiprocessor, and for tests */
    CN_ONE_PIECES = 256,       /* most pieces of an item; no GPU has so many multiprocessors */
    CN_ONE_FEW = 4,            /* pieces whose results are loaded at once */
    CN_ONE_PAD = 4             /* floats between heads in the exchange, to use other banks */
};

/* In eight bits 64 slots take half the time to fetch, but no less to compute, or to find. So tiles
 * are wide, and have twice the warps, as far as shared memory has room. */
template <int D, bool FP8> __host__ __device__ constexpr bool cn_one_wide(void)
{
    return FP8 && D <= 128;
}

template <int D, bool FP8> __host__ __device__ constexpr uint32_t cn_one_tile(void)
{
    return cn_walk_tile<cn_one_wide<D, FP8>()>();
}

/* Warps that compute, and their threads. */
template <int D, bool FP8> __host__ __device__ constexpr uint32_t cn_one_warps(void)
{
    return cn_one_tile<D, FP8>() / CN_ONE_SLICE;
}

template <int D, bool FP8> __host__ __device__ constexpr uint32_t cn_one_computing(void)
{
    return cn_one_warps<D, FP8>() * CN_WARP;
}

typedef struct cn_one_params {
    cn_bf16 *out;
    const cn_bf16 *q; /* [sequence, n_heads, head_dim] */
    cn_attn_pool pool;
    cn_walk_shape walk;
    /* Lists only, as in cn_list_attn_args. */
    const uint32_t *index, *list_len, *tail, *done;
    uint32_t index_stride;
    uint32_t n_heads, group, n_parts; /* parts of a group: ceil(group / 8) */
    uint32_t n_stages;
    float scale;          /* factor of the scores, including log2(e) */
    bool early;           /* lengths, tables, K and V of older steps are final before the wait; with
                           * `done` also queries and all K and V */
    uint32_t slot_heads;  /* of a partial result */
    uint32_t *arrivals;   /* [slot], zero between launches */
    float2 *partial_sums; /* [slot, slot_heads] maximum (log2), sum */
    float *partial_out;   /* [slot, slot_heads, D] */
} cn_one_params;

/* Describes the content of a stage. */
typedef struct cn_one_note {
    uint32_t query;                 /* first element in q and out */
    uint16_t first_slot, last_slot; /* [first, last) of the tile */
    uint16_t n_heads;
    bool first, last, end; /* first and last tile of the piece; last tile of the block's share */
    cn_walk_piece piece;   /* valid if last */
} cn_one_note;

/* Shared memory: stages of K and V, their queries, the exchange between warps. In eight bits each
 * 64 slots of a stage have keys [64, d] and values [64, d], without a swizzle, then the scales of
 * both. If d is D this is a tile of the pool. */
template <int D, bool FP8> struct cn_one_shared {
    static constexpr uint32_t BOXES = D / CN_BOX_COLS;
    static constexpr uint32_t BOX_BYTES = CN_WALK_TILE * CN_ROW_BYTES;
    static constexpr uint32_t PART_BYTES = /* the keys, or the values */
        FP8 ? CN_WALK_TILE * D : BOXES * BOX_BYTES;
    static constexpr uint32_t SCALE_BYTES = FP8 ? CN_WALK_TILE * (uint32_t)sizeof(uint16_t) : 0;
    static constexpr uint32_t HALF_BYTES = 2 * (PART_BYTES + SCALE_BYTES); /* of 64 slots */
    static constexpr uint32_t TILE_BYTES = cn_one_tile<D, FP8>() / CN_WALK_TILE * HALF_BYTES;
    static constexpr uint32_t QUERY_BYTES = CN_ONE_HEADS * D * (uint32_t)sizeof(cn_bf16);
    static constexpr uint32_t STAGE_BYTES = TILE_BYTES + QUERY_BYTES;
    static constexpr uint32_t HEAD_FLOATS = D + CN_ONE_PAD;
    static constexpr uint32_t WARPS_BYTES =
        cn_one_warps<D, FP8>() * CN_ONE_HEADS * HEAD_FLOATS * (uint32_t)sizeof(float);
    static constexpr uint32_t PIECES_BYTES =
        CN_ONE_PIECES * CN_ONE_HEADS * (uint32_t)sizeof(float2);
    static constexpr uint32_t EXCHANGE_BYTES =
        WARPS_BYTES > PIECES_BYTES ? WARPS_BYTES : PIECES_BYTES;
    static constexpr uint32_t ALIGN = 1024;
    static constexpr uint32_t FIXED_BYTES = EXCHANGE_BYTES + ALIGN;

    uint32_t n_stages;
    unsigned char *base;

    /* Those of stage s, or of the 64 slots `half` of it. */
    __device__ uint32_t keys(uint32_t s, uint32_t half = 0) const
    {
        return cn_shared_address(base) + s * TILE_BYTES + half * HALF_BYTES;
    }
    __device__ uint32_t values(uint32_t s, uint32_t half = 0) const
    {
        return keys(s, half) + PART_BYTES;
    }
    /* Scales of the keys, then of the values, [64] each. */
    __device__ uint16_t *scales(uint32_t s, uint32_t half) const
    {
        return (uint16_t *)(base + s * TILE_BYTES + half * HALF_BYTES + 2 * PART_BYTES);
    }
    __device__ cn_bf16 *queries(uint32_t s) const
    {
        return (cn_bf16 *)(base + n_stages * TILE_BYTES + s * QUERY_BYTES);
    }
    __device__ float *exchange(void) const { return (float *)(base + n_stages * STAGE_BYTES); }
};

/* The parts of shared memory that have a fixed size. */
typedef struct cn_one_fixed {
    uint64_t full[CN_ONE_MAX_STAGES], empty[CN_ONE_MAX_STAGES];
    cn_one_note notes[CN_ONE_MAX_STAGES];
    float2 sums[CN_ONE_MOST_WARPS][CN_ONE_HEADS]; /* maximum, sum */
    bool is_last;
} cn_one_fixed;
