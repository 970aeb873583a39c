/* score_ring.cuh - what the parts of score_ring.cu share: the shared memory of a block, and
 * the queries of the part that it computes. */
#pragma once

#include "cuda/select/score_feed.cuh"
#include "cuda/select/score_labels.cuh"

enum { CN_RING_TABLE_PAD = 32 }; /* elements between rows of the table, to use other banks */

typedef struct cn_ring_fixed {
    cn_feed_shared feed;
    uint8_t channels[2 * CN_WARP]; /* of labels */
    uint32_t digits[CN_COUNT_DIGITS]; /* how many scores of the part have each high byte */
    uint32_t heads[CN_LABEL_HEADS / 2]; /* of the part's unit: cn_share_heads */
} cn_ring_fixed;

typedef struct cn_ring_memory {
    cn_ring_fixed *fixed;
    /* What is compared with keys. Rows and bounds: [heads, or 2 for the mean query, width], each
     * row padded. Labels: [heads, or 1] quantised, and the factors of the heads after them. */
    union {
        cn_bf16 *table;
        uint2 *labels;
    };
    cn_exp_sum *sums; /* [heads, n_workers] of the lots of each warp; rule max only */
    unsigned char *kept; /* [n_beside, n_workers] lots of logits: cn_ring_kept */
    uint32_t n_workers;
    uint32_t n_in_ring, n_beside; /* a warp's last lots that its ring keeps; those before, `kept` */
} cn_ring_memory;

/* ---- queries ---- */

__device__ static inline float *cn_ring_label_factors(const cn_score_params &p,
                                                      const cn_ring_memory &m)
{
    return (float *)(m.labels + p.group * p.query_words);
}

/* Returns how many rows a part's table has: the heads of the group, or the mean query. */
__device__ static inline uint32_t cn_ring_query_rows(const cn_score_params &p,
                                                     const cn_score_part &x)
{
    return x.stage.group == CN_GROUP_MAX ? p.group : 1;
}

/* Returns label channel c of row r. */
__device__ static inline float cn_ring_label_value(const cn_score_params &p, const cn_score_part &x,
                                                   const cn_ring_memory &m, uint32_t r, uint32_t c)
{
    if (r >= cn_ring_query_rows(p, x) || c >= p.args.pools.digest.n_channels) return 0;
    return cn_score_query_value(p, x, cn_score_query_of(p, x), r, m.fixed->channels[c]);
}

/* Channels of a query in the table of rows or bounds. */
__device__ static inline uint32_t cn_ring_query_width(const cn_score_params &p,
                                                      const cn_score_part &x)
{
    const uint32_t d = p.args.pools.layout.head_dim;
    return x.stage.key == CN_KEY_BOUNDS ? 2 * d : d;
}

/* Fills the table of rows or bounds. */
__device__ static inline void cn_ring_fill_table(const cn_score_params &p, const cn_score_part &x,
                                                 const cn_ring_memory &m)
{
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    const uint32_t width = cn_ring_query_width(p, x), n = cn_ring_query_rows(p, x) * width;
    const uint32_t stride = width + CN_RING_TABLE_PAD;
#pragma unroll 1
    for (uint32_t at = threadIdx.x; at < n; at += CN_FEED_THREADS) {
        const uint32_t row = at / width, i = at % width;
        const float value = cn_score_query_value(p, x, cn_score_query_of(p, x), row, i);
        const cn_bf16 high = __float2bfloat16_rn(value);
        cn_bf16 *to = m.table + row * stride + i;
        *to = high;
        if (!is_max) to[stride] = __float2bfloat16_rn(value - __bfloat162float(high));
    }
}

/* Quantises the label channels of the queries, one a warp. ahead: this lane's first channel of the
 * warp's first query, loaded before most keys are copied. Later loads arrive after the keys. */
__device__ static inline void cn_ring_fill_labels(const cn_score_params &p, const cn_score_part &x,
                                                  const cn_ring_memory &m, float ahead)
{
    const uint32_t n_rows = cn_ring_query_rows(p, x), warp = threadIdx.x / CN_WARP;
    const uint32_t lane = threadIdx.x % CN_WARP;
#pragma unroll 1
    for (uint32_t r = warp; r < n_rows; r += CN_FEED_WARPS) {
        const float value[2] = {r == warp ? ahead : cn_ring_label_value(p, x, m, r, lane),
                                cn_ring_label_value(p, x, m, r, CN_WARP + lane)};
        const float scale = cn_label_quantise((int8_t *)(m.labels + r * p.query_words), value,
                                              p.args.pools.digest.n_channels);
        if (lane == 0) cn_ring_label_factors(p, m)[r] = cn_score_scale_of(p, x) * scale;
    }
}

/* Returns this thread's label channel of the part's layer and kv head. Channels are weights. */
__device__ static inline uint8_t cn_ring_load_channel(const cn_score_params &p,
                                                      const cn_score_part &x)
{
    const cn_pools &pools = p.args.pools;
    const size_t unit = (size_t)x.layer * pools.layout.n_kv_heads + x.at.head;
    const uint32_t n = pools.digest.n_channels;
    if (x.stage.key != CN_KEY_LABELS || threadIdx.x >= n) return 0;
    return __ldg(pools.digest.channels + unit * n + threadIdx.x);
}

/* Prepares the queries of a part, whose channels have been loaded. Clears the sums of rule max. */
__device__ static inline void cn_ring_load_query(const cn_score_params &p, const cn_score_part &x,
                                                 const cn_ring_memory &m, uint32_t key, float ahead)
{
    if (key == CN_KEY_LABELS) cn_ring_fill_labels(p, x, m, ahead);
    else if (key != CN_KEY_HASH) cn_ring_fill_table(p, x, m);
    if (cn_score_is_max(x.stage))
        for (uint32_t i = threadIdx.x; i < p.group * m.n_workers; i += CN_FEED_THREADS)
            m.sums[i] = {};
}

/* Returns, to lane 0, the sum of a head over the warps. */
__device__ static inline cn_exp_sum cn_ring_sum_of(const cn_ring_memory &m, uint32_t head)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    cn_exp_sum sum = {};
    if (lane < m.n_workers) sum = m.sums[head * m.n_workers + lane];
    return cn_score_sum_lanes(sum, m.n_workers);
}

/* Adds a lot to the warp's sum of a head. Called by one lane. */
__device__ static inline void cn_ring_add_lot(const cn_ring_memory &m, uint32_t head,
                                              cn_lot_weights lot)
{
    cn_exp_sum_add_lot(&m.sums[head * m.n_workers + threadIdx.x / CN_WARP], lot.sum, lot.top);
}
