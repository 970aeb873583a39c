/* attn_latent.cuh - the parameters and the shared memory of the kernel of attn_latent.cu, and the
 * description of a tile that its fetching warp gives to its computing warps. */
#pragma once

#include "cuda/attn/attn_one_shared.cuh"

enum {
    CN_LATENT_TILE = CN_WALK_TILE, /* slots */
    CN_LATENT_WARPS = 8,           /* that compute */
    CN_LATENT_COMPUTING = CN_LATENT_WARPS * CN_WARP,
    CN_LATENT_THREADS = CN_LATENT_COMPUTING + 4 * CN_WARP, /* and a warpgroup to fetch */
    /* Registers of a thread. 384 threads start with 168 each, 64,512, which are 2 * 128 * 224 and
     * 128 * 56: with more, a warpgroup would wait for registers that nobody gives. */
    CN_LATENT_COMPUTE_REGISTERS = 224,
    CN_LATENT_FETCH_REGISTERS = 56,
    CN_LATENT_MAX_BOXES = 9,                            /* of 64 columns of a row of K */
    CN_LATENT_MAX_RANK = CN_LATENT_WARPS * CN_BOX_COLS, /* a warp has a box of V */
    CN_LATENT_MAX_COLUMNS = 32,                         /* queries of a block */
    CN_LATENT_QUARTERS = 4, /* parts of the sum of a score: 16 columns of each box */
    CN_LATENT_MAX_STAGES = 8,
    CN_LATENT_BOX_BYTES = CN_LATENT_TILE * CN_ROW_BYTES,
    CN_LATENT_BARRIER = 1 /* of the warps that compute */
};

typedef struct cn_latent_params {
    cn_bf16 *out;     /* rows of `rank` */
    const cn_bf16 *q; /* rows of head_dim */
    cn_attn_pool pool;
    uint32_t n_heads, rank, n_boxes, n_stages;
    uint32_t columns; /* most queries of a block */
    float scale;      /* factor of the scores, including log2(e) */
    /* Prefill. */
    const uint32_t *q_start, *kv_len;
    uint32_t first_seq; /* n_decode */
    /* Decode. An item of the walk is a part of the heads of a token. */
    cn_walk_shape walk;
    bool early;           /* as in cn_one_params */
    uint32_t *arrivals;   /* [slot], zero between launches */
    float2 *partial_sums; /* [slot, columns] maximum (log2), sum */
    float *partial_out;   /* [slot, columns, rank] */
} cn_latent_params;

/* Describes the content of a stage. Column c is row + c of q and out, of head (head + c) %
 * n_heads. It sees the slots [first_slot, last_slot) of the tile that are below
 * limit + (head + c) / n_heads. */
typedef struct cn_latent_note {
    uint32_t row, head;
    int32_t limit;
    uint16_t n_columns;
    uint16_t first_slot, last_slot;
    bool first, last, end; /* first and last tile of the piece; last tile of the block's share */
    cn_walk_piece piece;   /* valid if last */
} cn_latent_note;

/* Shared memory: stages of rows, then what the warps exchange. N: columns that are computed. */
template <int N> struct cn_latent_shared {
    /* Rows of scores and weights are padded, so that lanes use different banks. */
    static constexpr uint32_t SCORE_ROW = CN_LATENT_TILE + 4;  /* f32 */
    static constexpr uint32_t WEIGHT_ROW = CN_LATENT_TILE + 8; /* bf16 */
    static constexpr uint32_t SCORE_BYTES =
        CN_LATENT_QUARTERS * N * SCORE_ROW * (uint32_t)sizeof(float);
    static constexpr uint32_t WEIGHT_BYTES = N * WEIGHT_ROW * (uint32_t)sizeof(cn_bf16);
    static constexpr uint32_t ALIGN = 1024;
    static constexpr uint32_t FIXED_BYTES = SCORE_BYTES + WEIGHT_BYTES + ALIGN;
    /* Pieces of an item whose shares have room among the scores. */
    static constexpr uint32_t MOST_PIECES = SCORE_BYTES / (N * (uint32_t)sizeof(float));

    uint32_t stages_bytes, stage_bytes;
    unsigned char *base;

    __device__ uint32_t tile(uint32_t stage) const
    {
        return cn_shared_address(base) + stage * stage_bytes;
    }
    /* [quarter, column, SCORE_ROW] */
    __device__ float *scores(void) const { return (float *)(base + stages_bytes); }
    /* [column, WEIGHT_ROW] */
    __device__ cn_bf16 *weights(void) const
    {
        return (cn_bf16 *)(base + stages_bytes + SCORE_BYTES);
    }
};

/* The parts of shared memory that have a fixed size. */
typedef struct cn_latent_fixed {
    uint64_t full[CN_LATENT_MAX_STAGES], empty[CN_LATENT_MAX_STAGES];
    cn_latent_note notes[CN_LATENT_MAX_STAGES];
    float keep[CN_LATENT_MAX_COLUMNS];  /* factor of the sums before the tile */
    float2 sums[CN_LATENT_MAX_COLUMNS]; /* of a piece: maximum, sum */
    bool is_last;
} cn_latent_fixed;

/* Adds to a counter in device memory. Releases the stores before it, and acquires those before
 * other such additions. Returns the value before. */
__device__ static inline uint32_t cn_add_acq_rel(uint32_t *counter, uint32_t n)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(n)
                 : "memory");
    return before;
}

__device__ static inline uint32_t cn_load_acquire(const uint32_t *counter)
{
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

/* Meets the other warps that compute. */
__device__ static inline void cn_latent_meet(void)
{
    cn_sync_some(CN_LATENT_BARRIER, CN_LATENT_COMPUTING);
}
