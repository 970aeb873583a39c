/* score_ring_keys.cuh - how a warp of score_ring_sm90.cu ranks its lots of K rows, or of bounds. */
#ifndef CN_CUDA_SCORE_RING_KEYS_CUH
#define CN_CUDA_SCORE_RING_KEYS_CUH

#include "cuda/select/score_ring.cuh"

enum { CN_RING_HEADS = 8 }; /* of a pass */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* sums[16, 8] = keys[16, d] * table[8, d]^T. keys: a lot of K rows as a tensor map copies them.
 * q: row g of the table (g = lane / 4). */
__device__ static inline void cn_ring_dot_rows(float sums[4], const unsigned char *keys,
                                               const cn_bf16 *q, uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, t = lane % 4;
    const uint4 *values = (const uint4 *)q + 2 * t;
    uint32_t at = cn_shared_address(keys) +
                  cn_chunk_at(CN_RING_ROWS, lane % CN_RING_ROWS, lane / CN_RING_ROWS);
    float even[4] = {}, odd[4] = {}; /* two chains of sums hide latency */
#pragma unroll 1
    for (uint32_t box = 0; box < d;
         box += CN_BOX_COLS, at += CN_RING_ROWS * CN_ROW_BYTES, values += 8) {
        const uint4 b[2] = {values[0], values[1]};
        uint32_t a[4][4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) cn_ldmatrix(a[k], at ^ k * 2 * CN_CHUNK_BYTES);
        cn_mma(even, a[0], b[0].x, b[0].y);
        cn_mma(odd, a[1], b[0].z, b[0].w);
        cn_mma(even, a[2], b[1].x, b[1].y);
        cn_mma(odd, a[3], b[1].z, b[1].w);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) sums[i] = even[i] + odd[i];
}

/* sums[0], sums[1]: of key g with the columns 2 t and 2 t + 1 (g = lane / 4, t = lane % 4) of
 * keys[8, width] * table[8, width]^T. keys: key g; q: row g of the table.
 *
 * The product takes the four words of a lane as those of two rows: the first and third are of row
 * g, the others of row g + 8. It is multiplied by the values for the former, and then by those for
 * the latter; of each product only these rows are used. */
__device__ static inline void cn_ring_dot_bounds(float sums[4], const uint4 *keys, const uint4 *q,
                                                 uint32_t width)
{
    const uint32_t t = threadIdx.x % 4, vecs = width / CN_VEC8;
    const uint4 none = make_uint4(0, 0, 0, 0);
    float low[4] = {}, high[4] = {};
#pragma unroll 1
    for (uint32_t from = t; from < vecs + t; from += 16) {
        uint4 a[4], b[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            a[i] = from + 4 * i < vecs ? keys[from + 4 * i] : none;
            b[i] = from + 4 * i < vecs ? q[from + 4 * i] : none;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t words[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
            cn_mma(low, words, b[i].x, b[i].z);
            cn_mma(high, words, b[i].y, b[i].w);
        }
    }
    sums[0] = low[0] + high[2];
    sums[1] = low[1] + high[3];
    sums[2] = sums[3] = 0;
}

/* The candidates of a lane: those of the product's rows g and g + 8 (g = lane / 4); of bounds only
 * the first. */
typedef struct cn_ring_two {
    int32_t c;               /* the first; may be below 0 if it is not valid */
    bool valid[2], below[2]; /* below: the base */
} cn_ring_two;

/* Returns the number in the lot of the key of row g. Odd rows are bounds of the lot's second half,
 * which is shifted. */
template <bool IS_ROWS> __device__ static inline uint32_t cn_ring_key_of_lane()
{
    const uint32_t g = threadIdx.x % CN_WARP / 4;
    return IS_ROWS ? g : g % 2 * 4 + g / 2;
}

/* Returns where the lane's bound begins. */
__device__ static inline const uint4 *cn_ring_bounds_of_lane(const cn_score_params &p,
                                                             const unsigned char *lot)
{
    const uint32_t half = cn_feed_lot_bytes(p, false) / 2;
    const uint32_t at = cn_ring_key_of_lane<false>() * (half / 4);
    return (const uint4 *)(lot + at + (at < half ? 0 : CN_FEED_SHIFT));
}

template <bool IS_ROWS>
__device__ static inline cn_ring_two cn_ring_two_of(const cn_score_params &p,
                                                    const cn_score_part &x, uint32_t start)
{
    const uint32_t entry = x.stage.entry_log2;
    const bool may_be_below = x.stage.in_tiles && x.base > 0;
    cn_ring_two two = {};
    two.c = ((int32_t)(start - x.from) >> entry) + (int32_t)cn_ring_key_of_lane<IS_ROWS>();
    two.valid[0] = true;
    two.valid[1] = IS_ROWS;
    const bool whole = start >= x.from && start + (1u << x.lot_log2) <= x.to;
    if (whole && !may_be_below) return two;
#pragma unroll
    for (uint32_t k = 0; k < (IS_ROWS ? 2 : 1); k++) {
        const uint32_t at = start + ((cn_ring_key_of_lane<IS_ROWS>() + 8 * k) << entry);
        two.valid[k] = at >= x.from && at < x.to;
        two.below[k] = may_be_below && cn_score_token_of(p, x, at).position < x.base;
    }
    return two;
}

/* Sets the logits of a lane, of the heads first + 2 t and the next (t = lane % 4), and stores
 * them. */
__device__ static inline void cn_ring_store_heads(const cn_score_params &p, uint16_t *rows,
                                                  const cn_ring_two &two, uint32_t first,
                                                  const float sums[4], float factor,
                                                  float logit[2][2])
{
    const uint32_t head = first + 2 * (threadIdx.x % 4);
    uint16_t *row = rows + two.c * (int32_t)p.row + (int32_t)head;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            logit[i][k] = two.below[k] ? CUDART_NAN_F : sums[2 * k + i] * factor;
        if (two.valid[k] && head < p.row)
            cn_store_kept(row + k * 8 * p.row, cn_f16x2(logit[0][k], logit[1][k]));
    }
}

/* Stores the scores under the mean query, the sums of columns 0 and 1. */
__device__ static inline void cn_ring_store_mean(uint16_t *out, const cn_ring_two &two,
                                                 const float sums[4], float factor)
{
    float score[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        score[k] = two.below[k] ? CUDART_NAN_F : (sums[2 * k] + sums[2 * k + 1]) * factor;
    const uint32_t bits = cn_score_of_f16x2(cn_f16x2(score[0], score[1]));
    if (threadIdx.x % 4 > 0) return;
    if (two.valid[0]) out[two.c] = (uint16_t)bits;
    if (two.valid[1]) out[two.c + 8] = (uint16_t)(bits >> 16);
}

/* Computes the warp's lots of a part of rows, or else of bounds. Lanes keep the weights until the
 * end, if all heads are computed at once. known: as in cn_feed_find. */
template <bool IS_ROWS>
__device__ static inline void cn_ring_compute_keys(const cn_score_params &p, const cn_score_part &x,
                                                   const cn_ring_memory &m, cn_feed &f,
                                                   uint32_t known)
{
    const uint32_t d = p.args.pools.layout.head_dim, g = threadIdx.x % CN_WARP / 4;
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    const uint32_t width = IS_ROWS ? d : 2 * d, n_rows = is_max ? p.group : 2;
    const float factor = cn_score_scale_of(p, x);
    uint16_t *const rows = cn_score_rows(p, x.stored), *const out = p.args.out + x.first;
    cn_key_sums weights = {};
    for (uint32_t i = threadIdx.x / CN_WARP; i < x.n_lots; i += m.n_workers) {
        const cn_ring_two two = cn_ring_two_of<IS_ROWS>(p, x, (x.lot + i) << x.lot_log2);
        const unsigned char *keys = cn_feed_wait(f);
#pragma unroll 1
        for (uint32_t first = 0; first < n_rows; first += CN_RING_HEADS) {
            float sums[4], logit[2][2];
            const uint32_t head = first + cn_key_head();
            const cn_bf16 *q = m.table + min(first + g, n_rows - 1) * (width + CN_RING_TABLE_PAD);
            if (IS_ROWS)
                cn_ring_dot_rows(sums, keys, q, d);
            else
                cn_ring_dot_bounds(sums, cn_ring_bounds_of_lane(p, keys), (const uint4 *)q, width);
            if (first + CN_RING_HEADS >= n_rows) cn_feed_release(f, p, known);
            if (!is_max) {
                cn_ring_store_mean(out, two, sums, factor);
                continue;
            }
            cn_ring_store_heads(p, rows, two, first, sums, factor, logit);
            const bool has[2] = {two.valid[0] && !two.below[0], two.valid[1] && !two.below[1]};
            const bool full = cn_key_add(weights, logit, has[0], has[1]);
            if (!full && p.group <= CN_RING_HEADS) continue;
            const cn_lot_weights lot = cn_key_close(weights);
            if (head < min(first + CN_RING_HEADS, p.group)) cn_ring_add_lot(m, head, lot);
            if (full) cn_key_add(weights, logit, has[0], has[1]);
        }
    }
    const cn_lot_weights lot = cn_key_close(weights);
    if (is_max && cn_key_head() < p.group) cn_ring_add_lot(m, cn_key_head(), lot);
}

#endif

#endif
