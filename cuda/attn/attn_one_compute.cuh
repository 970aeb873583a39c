/* attn_one_compute.cuh - the computing warps of attn_one.cuh: scores, online softmax and weighted
 * values of each tile; at the end of a piece its result, and at the last piece that of the item. */
#pragma once

#include "cuda/attn/attn_one_shared.cuh"

/* ---- a tile ---- */

/* The running result of a warp. A lane holds heads 2t and 2t+1 (t = lane % 4) of rows g and g + 8
 * (g = lane / 4) of each 16 dimensions, and the maximum and sum of these heads. The sum is over the
 * slots of this lane only. */
template <int D> struct cn_one_state {
    uint32_t query[D / 16][2];
    float out[D / 16][4];
    float max[2], sum[2];
};

/* In eight bits keys and values are 2^-120 of the codes (cn_fp8_small), queries and weights 2^80 of
 * theirs, and sums are multiplied by 2^40. All three are powers of two, so nothing is rounded. */
static const float CN_ONE_LARGE = 0x1p40f;

/* Multiplies two bf16 by 2^80. */
__device__ static inline uint32_t cn_one_enlarge(uint32_t x)
{
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(0x67806780u), "r"(0x80008000u));
    return out;
}

/* In eight bits a lane reads 16 neighbouring bytes of a key, which are four steps of the product.
 * So the queries have the same order of dimensions: in step k those of lane t are from
 * k / 4 * 64 + t * 16 + k % 4 * 4 on, first the even ones of these four. */
template <int D, bool FP8>
__device__ static inline void cn_one_begin(cn_one_state<D> &x, const cn_bf16 *queries,
                                           uint32_t n_heads, uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, head = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        const uint32_t first = FP8 ? k / 4 * 64 + t * 16 + k % 4 * 4 : k * 16;
        const bool valid = head < n_heads && first < d;
        const uint32_t *row = (const uint32_t *)(queries + head * d + first);
        if (FP8) {
            const uint32_t low = valid ? row[0] : 0, high = valid ? row[1] : 0;
            x.query[k][0] = cn_one_enlarge(__byte_perm(low, high, 0x5410));
            x.query[k][1] = cn_one_enlarge(__byte_perm(low, high, 0x7632));
        } else {
            x.query[k][0] = valid ? row[t] : 0;
            x.query[k][1] = valid ? row[t + 4] : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x.out[k][i] = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        x.max[i] = -CUDART_INF_F;
        x.sum[i] = 0;
    }
}

/* scores[0], [1]: slot g, heads 2t and 2t+1; [2], [3]: slot g + 8. */
template <int D>
__device__ static inline void cn_one_scores(float scores[4], const cn_one_state<D> &x,
                                            uint32_t keys, uint32_t slice)
{
    const uint32_t lane = threadIdx.x % CN_WARP, row = slice + lane % 16;
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}; /* two chains of sums hide latency */
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[4];
        cn_ldmatrix(a, keys + cn_chunk_at(CN_WALK_TILE, row, 2 * k + lane / 16));
        cn_mma(k % 2 ? odd : even, a, x.query[k][0], x.query[k][1]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) scores[i] = even[i] + odd[i];
}

/* The same for keys in eight bits, rows of d bytes. */
template <int D>
__device__ static inline void cn_one_scores_fp8(float scores[4], const cn_one_state<D> &x,
                                                uint32_t keys, const uint16_t *scales,
                                                uint32_t slice, uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, row = slice + lane / 4, column = lane % 4 * 16;
    const float scale[2] = {cn_fp8_half(scales[row]) * CN_ONE_LARGE,
                            cn_fp8_half(scales[row + 8]) * CN_ONE_LARGE};
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t j = 0; j < D / 64; j++) {
        uint4 chunk[2] = {};
        if (j * 64 + column < d) {
            chunk[0] = cn_shared_load16(keys + row * d + j * 64 + column);
            chunk[1] = cn_shared_load16(keys + (row + 8) * d + j * 64 + column);
        }
        const uint32_t low[4] = {chunk[0].x, chunk[0].y, chunk[0].z, chunk[0].w};
        const uint32_t high[4] = {chunk[1].x, chunk[1].y, chunk[1].z, chunk[1].w};
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t a[4] = {cn_fp8_small(low[k] << 8), cn_fp8_small(high[k] << 8),
                                   cn_fp8_small(low[k]), cn_fp8_small(high[k])};
            cn_mma(k % 2 ? odd : even, a, x.query[j * 4 + k][0], x.query[j * 4 + k][1]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) scores[i] = (even[i] + odd[i]) * scale[i / 2];
}

/* Turns scores into weights, and scales the sums so far to the new maximum. */
template <int D>
__device__ static inline void cn_one_softmax(float scores[4], cn_one_state<D> &x, float scale,
                                             uint32_t n)
{
    const uint32_t g = threadIdx.x % CN_WARP / 4;
    float keep[2];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        scores[i] = g + i / 2 * 8 < n ? scores[i] * scale : -CUDART_INF_F;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const float top = fmaxf(x.max[h], cn_column_max(fmaxf(scores[h], scores[h + 2])));
        keep[h] = cn_exp2(x.max[h] - top);
        x.max[h] = top;
        scores[h] = cn_exp2(scores[h] - top);
        scores[h + 2] = cn_exp2(scores[h + 2] - top);
        x.sum[h] = x.sum[h] * keep[h] + scores[h] + scores[h + 2];
    }
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x.out[k][i] *= keep[i % 2];
}

/* Mask that clears the values of slots past n: 0 times the content of an unused slot may not be
 * 0. */
__device__ static inline uint32_t cn_one_mask(uint32_t slot, uint32_t n)
{
    return (slot < n ? 0xffffu : 0) | (slot + 1 < n ? 0xffff0000u : 0);
}

template <int D>
__device__ static inline void cn_one_values(cn_one_state<D> &x, const float weights[4],
                                            uint32_t values, uint32_t slice, uint32_t n)
{
    const uint32_t lane = threadIdx.x % CN_WARP, t = lane % 4;
    const uint32_t row = slice + lane % 8 + lane / 16 * 8;
    const uint32_t low = cn_one_mask(2 * t, n), high = cn_one_mask(2 * t + 8, n);
    const uint32_t b0 = cn_movmatrix(cn_pack2(weights[0], weights[1]));
    const uint32_t b1 = cn_movmatrix(cn_pack2(weights[2], weights[3]));
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[4];
        cn_ldmatrix_transposed(a, values + cn_chunk_at(CN_WALK_TILE, row, 2 * k + lane / 8 % 2));
        a[0] &= low;
        a[1] &= low;
        a[2] &= high;
        a[3] &= high;
        cn_mma(x.out[k], a, b0, b1);
    }
}

/* Loads a lane's D / 8 neighbouring bytes of a value. Lanes with other t read other rows, which
 * begin in the same bank. So every second lane begins with the second half of sixteen bytes. */
template <int D> __device__ static inline void cn_one_load_value(uint32_t w[D / 32], uint32_t from)
{
    constexpr uint32_t EACH = D % 128 == 0 ? 4 : 2; /* words that are loaded in turn */
    const bool swapped = EACH == 4 && threadIdx.x % 2;
#pragma unroll
    for (uint32_t i = 0; i < D / 32; i += EACH) {
        const uint2 a = cn_shared_load8(from + i * 4 + (swapped ? 8 : 0));
        w[i] = a.x;
        w[i + 1] = a.y;
        if constexpr (EACH == 4) {
            const uint2 b = cn_shared_load8(from + i * 4 + (swapped ? 0 : 8));
            w[i] = swapped ? b.x : a.x;
            w[i + 1] = swapped ? b.y : a.y;
            w[i + 2] = swapped ? a.x : b.x;
            w[i + 3] = swapped ? a.y : b.y;
        }
    }
}

/* The lane's codes of four values: slots 2 t, 2 t + 1 and the same of the second eight. */
template <int D> struct cn_one_codes {
    uint32_t w[4][D / 32];
};

/* Rows of d bytes. Lane group g has the dimensions from g * D / 8 on. */
template <int D>
__device__ static inline void cn_one_load_values(cn_one_codes<D> &x, uint32_t values,
                                                 uint32_t slice, uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        cn_one_load_value<D>(x.w[i],
                             values + (slice + 2 * t + i % 2 + i / 2 * 8) * d + g * (D / 8));
}

/* cn_one_values for these. Row g of x.out[k] is dimension 2 k of the lane group's, row g + 8 the
 * next one. Weights are multiplied by the scales, those past n by 0. Codes are finite, so nothing
 * else is cleared. */
template <int D>
__device__ static inline void cn_one_values_fp8(cn_one_state<D> &x, const float weights[4],
                                                const cn_one_codes<D> &codes,
                                                const uint16_t *scales, uint32_t slice, uint32_t n)
{
    const uint32_t g = threadIdx.x % CN_WARP / 4;
    const float low = g < n ? cn_fp8_half(scales[slice + g]) : 0;
    const float high = g + 8 < n ? cn_fp8_half(scales[slice + g + 8]) : 0;
    const uint32_t b0 = cn_movmatrix(cn_one_enlarge(cn_pack2(weights[0] * low, weights[1] * low)));
    const uint32_t b1 =
        cn_movmatrix(cn_one_enlarge(cn_pack2(weights[2] * high, weights[3] * high)));
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        const uint32_t i = k / 2, both = k % 2 ? 0x6723 : 0x4501; /* the later byte is first */
        const uint32_t low2 = __byte_perm(codes.w[0][i], codes.w[1][i], both);
        const uint32_t high2 = __byte_perm(codes.w[2][i], codes.w[3][i], both);
        const uint32_t a[4] = {cn_fp8_small(low2), cn_fp8_small(low2 << 8), cn_fp8_small(high2),
                               cn_fp8_small(high2 << 8)};
        cn_mma(x.out[k], a, b0, b1);
    }
}

/* ---- ending a piece ---- */

/* Writes the results of a warp to its part of the exchange. */
template <int D>
__device__ static inline void cn_one_lay_down_outs(const cn_one_state<D> &x, float *part)
{
    constexpr uint32_t HEAD_FLOATS = cn_one_shared<D, false>::HEAD_FLOATS;
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4, t = lane % 4;
    float *own = part + 2 * t * HEAD_FLOATS + g;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            own[i % 2 * HEAD_FLOATS + k * 16 + i / 2 * 8] = x.out[k][i];
}

/* The same of rows in eight bits, where a lane has neighbouring dimensions. It stores four at once:
 * single ones would be in the same banks as those of other lanes. */
template <int D>
__device__ static inline void cn_one_lay_down_fp8(const cn_one_state<D> &x, float *part,
                                                  uint32_t n_heads)
{
    constexpr uint32_t HEAD_FLOATS = cn_one_shared<D, true>::HEAD_FLOATS;
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        if (2 * t + i >= n_heads) continue;
        float *own = part + (2 * t + i) * HEAD_FLOATS + g * (D / 8);
#pragma unroll
        for (uint32_t k = 0; k < D / 16; k += 2)
            *(float4 *)(own + 2 * k) =
                make_float4(x.out[k][i] * CN_ONE_LARGE, x.out[k][i + 2] * CN_ONE_LARGE,
                            x.out[k + 1][i] * CN_ONE_LARGE, x.out[k + 1][i + 2] * CN_ONE_LARGE);
    }
}

/* Each warp writes its result to the exchange. */
template <int D, bool FP8>
__device__ static inline void cn_one_lay_down(const cn_one_state<D> &x, uint32_t n_heads,
                                              float *exchange, cn_one_fixed *fixed)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t g = lane / 4, t = lane % 4;
    float *part = exchange + warp * CN_ONE_HEADS * cn_one_shared<D, FP8>::HEAD_FLOATS;
    if constexpr (FP8)
        cn_one_lay_down_fp8<D>(x, part, n_heads);
    else
        cn_one_lay_down_outs<D>(x, part);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float sum = cn_column_sum(x.sum[i]);
        if (g == 0) fixed->sums[warp][2 * t + i] = make_float2(x.max[i], sum);
    }
}

/* Returns the largest of n maxima, and the sum of the n sums scaled to it. */
__device__ static inline float2 cn_one_total(const float2 *sums, uint32_t n, uint32_t stride)
{
    float2 total = make_float2(-CUDART_INF_F, 0);
    for (uint32_t i = 0; i < n; i++) total.x = fmaxf(total.x, sums[i * stride].x);
    for (uint32_t i = 0; i < n; i++)
        total.y += sums[i * stride].y * cn_exp2(sums[i * stride].x - total.x);
    return total;
}

__device__ static inline void cn_one_add(float4 &to, float4 x, float weight)
{
    to.x += x.x * weight;
    to.y += x.y * weight;
    to.z += x.z * weight;
    to.w += x.w * weight;
}

__device__ static inline void cn_one_store(cn_bf16 *out, float4 x, float sum)
{
    const float scale = 1.0f / sum;
    *(uint2 *)out =
        make_uint2(cn_pack2(x.x * scale, x.y * scale), cn_pack2(x.z * scale, x.w * scale));
}

/* Merges the few pieces of an item, in order. All their loads are issued together. */
template <int D, bool FP8>
__device__ static inline void cn_one_merge_few(const cn_one_params &p, const cn_one_note &note)
{
    const uint32_t d = p.pool.head_dim, n = note.piece.n_pieces;
    for (uint32_t i = threadIdx.x * 4; i < note.n_heads * D; i += cn_one_computing<D, FP8>() * 4) {
        const uint32_t head = i / D, column = i % D;
        float2 sums[CN_ONE_FEW];
        float4 parts[CN_ONE_FEW];
#pragma unroll
        for (uint32_t j = 0; j < CN_ONE_FEW; j++) {
            sums[j] = make_float2(-CUDART_INF_F, 0);
            if (j >= n) continue;
            const uint32_t row = cn_walk_slot(note.piece, j) * p.slot_heads + head;
            sums[j] = __ldcg(&p.partial_sums[row]);
            parts[j] = __ldcg((const float4 *)(p.partial_out + (size_t)row * D + column));
        }
        const float2 total = cn_one_total(sums, CN_ONE_FEW, 1);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t j = 0; j < CN_ONE_FEW; j++)
            if (j < n) cn_one_add(out, parts[j], cn_exp2(sums[j].x - total.x));
        if (column < d) cn_one_store(p.out + note.query + head * d + column, out, total.y);
    }
}

/* Merges all pieces of an item, in order. The maxima and sums of many are first copied to the
 * exchange, so that the loads of their results do not wait for one another. */
template <int D, bool FP8>
__device__ static inline void cn_one_merge(const cn_one_params &p, const cn_one_note &note,
                                           float *exchange)
{
    const uint32_t d = p.pool.head_dim, n = note.piece.n_pieces, heads = note.n_heads;
    float2 *sums = (float2 *)exchange; /* [n, heads] */
    if (n <= CN_ONE_FEW) {
        cn_one_merge_few<D, FP8>(p, note);
        return;
    }
    for (uint32_t i = threadIdx.x; i < n * heads; i += cn_one_computing<D, FP8>()) {
        const uint32_t slot = cn_walk_slot(note.piece, i / heads);
        sums[i] = __ldcg(&p.partial_sums[slot * p.slot_heads + i % heads]);
    }
    cn_sync_some(1, cn_one_computing<D, FP8>());
    for (uint32_t i = threadIdx.x * 4; i < heads * D; i += cn_one_computing<D, FP8>() * 4) {
        const uint32_t head = i / D, column = i % D;
        if (column >= d) continue;
        const float2 total = cn_one_total(sums + head, n, heads);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (uint32_t j = 0; j < n; j++) {
            const uint32_t slot = cn_walk_slot(note.piece, j);
            const size_t at = (size_t)(slot * p.slot_heads + head) * D + column;
            cn_one_add(out, __ldcg((const float4 *)(p.partial_out + at)),
                       cn_exp2(sums[j * heads + head].x - total.x));
        }
        cn_one_store(p.out + note.query + head * d + column, out, total.y);
    }
}

/* Counts the piece as done. Returns true, to all threads of the block, if it was the last piece of
 * its item. */
template <int D, bool FP8>
__device__ static inline bool cn_one_arrive(const cn_one_params &p, const cn_one_note &note,
                                            cn_one_fixed *fixed)
{
    cn_sync_some(1, cn_one_computing<D, FP8>());
    if (threadIdx.x == 0) {
        uint32_t *count = p.arrivals + note.piece.first_slot, before;
        /* Releases the stores of this block before the barrier, and acquires those of others. */
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(count)
                     : "memory");
        fixed->is_last = before == note.piece.n_pieces - 1;
        if (fixed->is_last) *count = 0;
    }
    cn_sync_some(1, cn_one_computing<D, FP8>());
    return fixed->is_last;
}

/* Merges the results of the warps. If the piece is the whole item, stores the item's result.
 * Otherwise stores the piece's partial result; if this was the last piece, merges the item. */
template <int D, bool FP8>
__device__ static inline void cn_one_end(const cn_one_params &p, const cn_one_state<D> &x,
                                         const cn_one_note &note, float *exchange,
                                         cn_one_fixed *fixed)
{
    const uint32_t d = p.pool.head_dim;
    const bool whole = note.piece.n_pieces == 1;
    cn_one_lay_down<D, FP8>(x, note.n_heads, exchange, fixed);
    cn_sync_some(1, cn_one_computing<D, FP8>());
    for (uint32_t i = threadIdx.x * 4; i < note.n_heads * D; i += cn_one_computing<D, FP8>() * 4) {
        const uint32_t head = i / D, column = i % D;
        const float2 total =
            cn_one_total(&fixed->sums[0][head], cn_one_warps<D, FP8>(), CN_ONE_HEADS);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < cn_one_warps<D, FP8>(); w++) {
            const uint32_t at =
                (w * CN_ONE_HEADS + head) * cn_one_shared<D, FP8>::HEAD_FLOATS + column;
            cn_one_add(out, *(const float4 *)(exchange + at),
                       cn_exp2(fixed->sums[w][head].x - total.x));
        }
        if (whole && column < d) cn_one_store(p.out + note.query + head * d + column, out, total.y);
        if (whole) continue;
        const uint32_t at = note.piece.slot * p.slot_heads + head;
        *(float4 *)(p.partial_out + (size_t)at * D + column) = out;
        if (column == 0) p.partial_sums[at] = total;
    }
    if (!whole && cn_one_arrive<D, FP8>(p, note, fixed)) cn_one_merge<D, FP8>(p, note, exchange);
    cn_sync_some(1, cn_one_computing<D, FP8>()); /* the exchange may be written again */
}

/* Returns the note of a stage to all lanes of a warp. Only the lane that later arrives at the
 * stage's `empty` barrier reads it. Its own arrival then orders the read before the next note,
 * which race checkers can verify. */
__device__ static inline cn_one_note cn_one_read_note(const cn_one_note *from)
{
    enum { WORDS = sizeof(cn_one_note) / sizeof(uint32_t) };
    static_assert(sizeof(cn_one_note) % sizeof(uint32_t) == 0, "a note is whole words");
    union {
        cn_one_note note;
        uint32_t words[WORDS];
    } x;
    const uint32_t *words = (const uint32_t *)from;
    const bool reads = threadIdx.x % CN_WARP == 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) x.words[i] = __shfl_sync(0xffffffffu, reads ? words[i] : 0, 0);
    return x.note;
}

template <int D, bool FP8>
__device__ static inline void
cn_one_compute(const cn_one_params &p, const cn_one_shared<D, FP8> &shared, cn_one_fixed *fixed)
{
    const uint32_t lane = threadIdx.x % CN_WARP, first = threadIdx.x / CN_WARP * CN_ONE_SLICE;
    const uint32_t half = first / CN_WALK_TILE, slice = first % CN_WALK_TILE;
    cn_one_state<D> x;
    bool end = false;
    for (uint32_t i = 0; !end; i++) {
        const uint32_t stage = i % p.n_stages, round = i / p.n_stages;
        cn_barrier_wait(&fixed->full[stage], round & 1);
        const cn_one_note note = cn_one_read_note(&fixed->notes[stage]);
        if (note.first)
            cn_one_begin<D, FP8>(x, shared.queries(stage), note.n_heads, p.pool.head_dim);
        if (first >= note.first_slot && first < note.last_slot) {
            const uint32_t n = note.last_slot - first;
            float scores[4];
            if constexpr (FP8) {
                const uint16_t *scales = shared.scales(stage, half);
                const uint32_t d = p.pool.head_dim;
                cn_one_codes<D> codes; /* loaded early, so that the loads hide */
                cn_one_load_values<D>(codes, shared.values(stage, half), slice, d);
                cn_one_scores_fp8<D>(scores, x, shared.keys(stage, half), scales, slice, d);
                cn_one_softmax<D>(scores, x, p.scale, n);
                cn_one_values_fp8<D>(x, scores, codes, scales + CN_WALK_TILE, slice, n);
            } else {
                cn_one_scores<D>(scores, x, shared.keys(stage), slice);
                cn_one_softmax<D>(scores, x, p.scale, n);
                cn_one_values<D>(x, scores, shared.values(stage), slice, n);
            }
        }
        __syncwarp();
        if (lane == 0) cn_barrier_arrive(&fixed->empty[stage]);
        if (note.last) cn_one_end<D, FP8>(p, x, note, shared.exchange(), fixed);
        end = note.end;
    }
}
