/* score_ring_keys.cuh - how a warp of score_ring.cu ranks its lots of K rows, or of bounds. */
#pragma once

#include "cuda/select/score_ring.cuh"

enum { CN_RING_HEADS = 8 }; /* of a pass */

/* sums[0], sums[1]: of key g with the columns 2 t and 2 t + 1 (g = lane / 4, t = lane % 4) of
 * keys[8, width] * table[8, width]^T. keys: key g; q: row g of the table.
 *
 * The product takes the four words of a lane as those of two rows: the first and third are of row
 * g, the others of row g + 8. It is multiplied by the values for the former, and then by those for
 * the latter; of each product only these rows are used. */
__device__ static inline void cn_ring_dot(float sums[2], const uint4 *keys, const uint4 *q,
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
}

/* ---- the candidates of a lane: K rows g and g + 8 of the lot (g = lane / 4); one bound ---- */

/* Which of them exist, and which of these have a score: those not below the base. */
enum {
    CN_LANE_EXISTS = 1, /* of the first; the second has the next bit */
    CN_LANE_SCORED = 4
};

/* Returns the number in the lot of the lane's first key. Of bounds odd lanes g have those of the
 * lot's second half, which is shifted. */
template <bool IS_ROWS> __device__ static inline uint32_t cn_ring_key_of_lane()
{
    const uint32_t g = threadIdx.x % CN_WARP / 4;
    return IS_ROWS ? g : g % 2 * 4 + g / 2;
}

/* sums[2 k], sums[2 k + 1]: of key k of the lane with the columns 2 t and 2 t + 1. q: row g of the
 * table. */
template <bool IS_ROWS>
__device__ static inline void cn_ring_dot_lot(float sums[4], const cn_score_params &p,
                                              const unsigned char *lot, const cn_bf16 *q)
{
    const uint32_t d = p.args.pools.layout.head_dim, width = IS_ROWS ? d : 2 * d;
    const uint32_t g = threadIdx.x % CN_WARP / 4, half = cn_feed_lot_bytes(p, false) / 2;
    lot += g % 2 * (half + CN_FEED_SHIFT) + g / 2 * width * sizeof(cn_bf16);
    cn_ring_dot(sums, (const uint4 *)lot, (const uint4 *)q, width);
    sums[2] = sums[3] = 0;
    if (IS_ROWS) cn_ring_dot(sums + 2, (const uint4 *)(lot + half / 2), (const uint4 *)q, width);
}

template <bool IS_ROWS> __device__ static inline uint32_t cn_ring_all_bits()
{
    return (CN_LANE_EXISTS | CN_LANE_SCORED) * (IS_ROWS ? 3 : 1);
}

/* Returns the bits of the lane in the lot that begins at token `start`. */
template <bool IS_ROWS>
__device__ static inline uint32_t cn_ring_lane_bits(const cn_score_params &p,
                                                    const cn_score_part &x, uint32_t start)
{
    uint32_t bits = 0;
#pragma unroll
    for (uint32_t k = 0; k < (IS_ROWS ? 2 : 1); k++) {
        const uint32_t row = cn_ring_key_of_lane<IS_ROWS>() + 8 * k;
        const uint32_t at = start + (row << x.stage.entry_log2);
        if (at < x.from || at >= x.to) continue;
        const bool below = x.stage.in_tiles && cn_score_token_of(p, x, at).position < x.base;
        bits |= (below ? CN_LANE_EXISTS : CN_LANE_EXISTS | CN_LANE_SCORED) << k;
    }
    return bits;
}

/* The lots of a warp in a part, one after the other. */
typedef struct cn_key_lots {
    uint32_t start, end;  /* the token where the lot begins; that behind the part's last lot */
    uint32_t inner, span; /* if start - inner < span, all bits of all lanes are set */
    uint16_t *out;        /* of the lane's first candidate */
    uint32_t token_step, out_step; /* from one of the warp's lots to the next */
} cn_key_lots;

/* out: of the unit's first candidate. width: u16 values that are stored for a candidate. */
template <bool IS_ROWS>
__device__ static inline cn_key_lots cn_ring_first_lot(const cn_score_part &x, uint32_t n_workers,
                                                       uint16_t *out, uint32_t width)
{
    const uint32_t tokens = 1u << x.lot_log2, keys = tokens >> x.stage.entry_log2;
    const uint32_t to = x.to & ~(tokens - 1);
    const bool may_be_below = x.stage.in_tiles && x.base > 0;
    cn_key_lots l;
    l.start = (x.lot + threadIdx.x / CN_WARP) << x.lot_log2;
    l.end = (x.lot + x.n_lots) << x.lot_log2;
    l.inner = (x.from + tokens - 1) & ~(tokens - 1);
    l.span = may_be_below || to < l.inner ? 0 : to - l.inner;
    const int32_t first = ((int32_t)(l.start - x.from) >> x.stage.entry_log2) +
                          (int32_t)cn_ring_key_of_lane<IS_ROWS>(); /* may be below 0 */
    l.out = out + (ptrdiff_t)first * (ptrdiff_t)width;
    l.token_step = n_workers * tokens;
    l.out_step = n_workers * keys * width;
    return l;
}

/* Returns the bits of the lane in a lot. */
template <bool IS_ROWS>
__device__ static inline uint32_t cn_ring_lot_bits(const cn_score_params &p,
                                                   const cn_score_part &x, const cn_key_lots &l)
{
    if (l.start - l.inner < l.span) return cn_ring_all_bits<IS_ROWS>();
    return cn_ring_lane_bits<IS_ROWS>(p, x, l.start);
}

/* Sets the logits of a lane, of two heads. Stores at `out` those of a candidate whose bit
 * CN_LANE_EXISTS is set in `exists`. */
__device__ static inline void cn_ring_store_heads(uint16_t *out, uint32_t row, uint32_t exists,
                                                  uint32_t bits, const float sums[4], float factor,
                                                  float logit[2][2])
{
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            logit[i][k] = bits & CN_LANE_SCORED << k ? sums[2 * k + i] * factor : CUDART_NAN_F;
        if (exists & CN_LANE_EXISTS << k)
            cn_store_kept(out + k * 8 * row, cn_f16x2(logit[0][k], logit[1][k]));
    }
}

/* Stores the scores under the mean query, the sums of columns 0 and 1. DIGITS: counts the high byte
 * of the first, the only one of bounds. */
template <bool DIGITS>
__device__ static inline void cn_ring_store_mean(uint16_t *out, uint32_t bits,
                                                 const float sums[4], float factor,
                                                 uint32_t *digits)
{
    float score[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        score[k] = bits & CN_LANE_SCORED << k ? (sums[2 * k] + sums[2 * k + 1]) * factor
                                              : CUDART_NAN_F;
    const uint32_t words = cn_score_of_f16x2(cn_f16x2(score[0], score[1]));
    if (threadIdx.x % 4 > 0) return;
    if (bits & CN_LANE_EXISTS) out[0] = (uint16_t)words;
    if (bits & CN_LANE_EXISTS << 1) out[8] = (uint16_t)(words >> 16);
    if (DIGITS && (bits & CN_LANE_EXISTS)) atomicAdd(&digits[words >> 8 & 0xff], 1u);
}

/* The head of which a lane gets the weights, of the 8 of a pass. 8 or more: none. */
__device__ static inline uint32_t cn_ring_key_head()
{
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4;
    return g < 2 ? 2 * (lane % 4) + g : 8;
}

/* Returns the weights of a lot, of head cn_ring_key_head(). logit: of a lane's candidates, for the
 * heads 2 t and 2 t + 1 (t = lane % 4). */
__device__ static inline cn_lot_weights cn_ring_key_weights(const float logit[2][2], uint32_t bits)
{
    const bool has[2] = {(bits & CN_LANE_SCORED) != 0, (bits & CN_LANE_SCORED << 1) != 0};
    cn_lot_weights own = {0, CN_EXPONENT_BASE};
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) { /* logits without a score are NaN, which fmaxf ignores */
        const uint32_t top = cn_weight_exponent(cn_column_max(fmaxf(logit[i][0], logit[i][1])));
        const float offset = cn_weight_offset(top);
        float sum = has[0] ? cn_weight(logit[i][0], offset) : 0.0f;
        sum += has[1] ? cn_weight(logit[i][1], offset) : 0.0f;
#pragma unroll
        for (int step = CN_WARP / 2; step >= 4; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % CN_WARP / 4 == i) own = {sum, top};
    }
    return own;
}

/* ---- a part ---- */

/* Returns row first + g of the table, or its last one. */
__device__ static inline const cn_bf16 *cn_ring_query_row(const cn_ring_memory &m, uint32_t first,
                                                          uint32_t n_rows, uint32_t stride)
{
    const uint32_t row = min(first + threadIdx.x % CN_WARP / 4, n_rows - 1);
    return m.table + row * stride;
}

/* Computes the warp's lots of a part of rows, or else of bounds, under the mean query. known: as in
 * cn_feed_find. DIGITS: counts the high bytes, of bounds. */
template <bool IS_ROWS, bool DIGITS, typename Feed>
__device__ static inline void cn_ring_keys_mean(const cn_score_params &p, const cn_score_part &x,
                                                const cn_ring_memory &m, Feed &f,
                                                uint32_t known)
{
    const float factor = cn_score_scale_of(p, x);
    const cn_bf16 *q = cn_ring_query_row(m, 0, 2, cn_ring_query_width(p, x) + CN_RING_TABLE_PAD);
    cn_key_lots l = cn_ring_first_lot<IS_ROWS>(x, m.n_workers, p.args.out + x.first, 1);
    for (; l.start < l.end; l.start += l.token_step, l.out += l.out_step) {
        const uint32_t bits = cn_ring_lot_bits<IS_ROWS>(p, x, l);
        float sums[4];
        cn_ring_dot_lot<IS_ROWS>(sums, p, cn_feed_wait(f), q);
        cn_feed_release(f, p, known);
        cn_ring_store_mean<DIGITS>(l.out, bits, sums, factor, m.fixed->digits);
    }
}

/* The same under rule max. */
template <bool IS_ROWS, typename Feed>
__device__ static inline void cn_ring_keys_max(const cn_score_params &p, const cn_score_part &x,
                                               const cn_ring_memory &m, Feed &f, uint32_t known)
{
    const float factor = cn_score_scale_of(p, x);
    const uint32_t group = p.group, row = p.row, own = 2 * (threadIdx.x % 4); /* own: the head */
    const uint32_t stride = cn_ring_query_width(p, x) + CN_RING_TABLE_PAD;
    const cn_bf16 *q = cn_ring_query_row(m, 0, group, stride);
    cn_key_lots l =
        cn_ring_first_lot<IS_ROWS>(x, m.n_workers, cn_score_rows(p, x.first) + own, row);
    for (; l.start < l.end; l.start += l.token_step, l.out += l.out_step) {
        const uint32_t bits = cn_ring_lot_bits<IS_ROWS>(p, x, l);
        const unsigned char *keys = cn_feed_wait(f);
#pragma unroll 1
        for (uint32_t first = 0; first < group; first += CN_RING_HEADS) {
            float sums[4], logit[2][2];
            if (group > CN_RING_HEADS) q = cn_ring_query_row(m, first, group, stride);
            cn_ring_dot_lot<IS_ROWS>(sums, p, keys, q);
            if (first + CN_RING_HEADS >= group) cn_feed_release(f, p, known);
            const uint32_t exists = first + own < row ? bits : 0;
            cn_ring_store_heads(l.out + first, row, exists, bits, sums, factor, logit);
            const cn_lot_weights weights = cn_ring_key_weights(logit, bits);
            const uint32_t head = cn_ring_key_head();
            if (head < min((uint32_t)CN_RING_HEADS, group - first))
                cn_ring_add_lot(m, first + head, weights);
        }
    }
}

template <bool IS_ROWS, bool DIGITS, typename Feed>
__device__ static inline void cn_ring_compute_keys(const cn_score_params &p, const cn_score_part &x,
                                                   const cn_ring_memory &m, Feed &f,
                                                   uint32_t known)
{
    if (x.stage.group == CN_GROUP_MAX)
        cn_ring_keys_max<IS_ROWS>(p, x, m, f, known);
    else
        cn_ring_keys_mean<IS_ROWS, DIGITS>(p, x, m, f, known);
}
