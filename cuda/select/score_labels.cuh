/* score_labels.cuh - the arithmetic of labels that the kernels of `score` share: quantised queries,
 * products of labels with heads by the tensor cores, and the weights of a lot. */
#pragma once

#include <math_constants.h>

#include "cuda/select/score.cuh"

enum {
    CN_LABEL_BIAS = 1 << 22, /* added to products times 16, so that no sum is negative */
    CN_LABEL_HEADS = 4 /* of a pass under rule max */
};

/* Quantises the n label channels of a query. value: of this lane's channels lane and lane + 32, 0
 * for those that do not exist. Returns the scale, and stores n bytes as the products need them: of
 * eight channels the even ones, then the odd ones. A warp calls it. */
__device__ static inline float cn_label_quantise(int8_t *bytes, const float value[2], uint32_t n)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    float largest = fmaxf(fabsf(value[0]), fabsf(value[1]));
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    const float scale = cn_query_scale(largest);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = i * CN_WARP + lane;
        if (c < n) bytes[c / 8 * 8 + c % 2 * 4 + c % 8 / 2] = (int8_t)cn_query_of(value[i], scale);
    }
    return scale;
}

/* c[16, 8] += a[16, 32] * b[32, 8], bytes. */
__device__ static inline void cn_mma_bytes(uint32_t c[4], const uint32_t a[4], uint2 b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/* A pass over labels computes N_PAIRS pairs of heads.
 *
 * out = products of two labels with these heads, times 16, plus CN_LABEL_BIAS and 2^23, as floats.
 *
 * A lane has two whole labels, of the rows g and g + 8 (g = lane / 4) in the mma's terms. Product j
 * takes word j of all labels. Its 32 channels are those of four different labels, of the lanes
 * 4 g to 4 g + 3. So column n has query n % 2 in the channels of lane n / 2 of the four, and zeros
 * in the others. The result of a lane is then that of its own labels, for two heads. */
template <int N_WORDS, int N_PAIRS>
__device__ static inline void cn_label_products(uint32_t out[N_PAIRS][4],
                                                const uint32_t a[N_WORDS],
                                                const uint32_t b[N_WORDS],
                                                const uint2 query[N_PAIRS][N_WORDS])
{
    const uint32_t upper = 0xf0f0f0f0u;
#pragma unroll
    for (uint32_t pair = 0; pair < N_PAIRS; pair++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) out[pair][i] = 0x4b000000u + CN_LABEL_BIAS;
#pragma unroll
    for (uint32_t j = 0; j < N_WORDS; j++) {
        const uint32_t rows[4] = {a[j] << 4 & upper, b[j] << 4 & upper, a[j] & upper,
                                  b[j] & upper};
#pragma unroll
        for (uint32_t pair = 0; pair < N_PAIRS; pair++)
            cn_mma_bytes(out[pair], rows, query[pair][j]);
    }
}

/* cn_label_logit of such a product. factor: a sixteenth of the query's. The bias is exact, so the
 * sum in the fmaf is exact before it is rounded. The multiplication is one of its own: the compiler
 * must not join it with a sum. */
__device__ static inline float cn_label_logit_of(uint32_t product, float scale, float factor)
{
    const float bias = -(8388608.0f + (float)CN_LABEL_BIAS) * scale;
    return __fmul_rn(fmaf(__uint_as_float(product), scale, bias), factor);
}

/* Queries of the heads of a pass as a lane needs them. */
template <int N_WORDS, int N_PAIRS> struct cn_label_query {
    uint2 words[N_PAIRS][N_WORDS];
    float factor[2 * N_PAIRS]; /* divided by 16 */
};

/* Loads the heads from `first` on of n. Heads from n on repeat the last one. labels: [n, N_WORDS]
 * quantised. */
template <int N_WORDS, int N_PAIRS>
__device__ static inline cn_label_query<N_WORDS, N_PAIRS>
cn_label_load(const uint2 *labels, const float *factor, uint32_t first, uint32_t n)
{
    const uint32_t lane = threadIdx.x % CN_WARP, last = n - 1;
    const bool own = lane / 8 == lane % 4;
    cn_label_query<N_WORDS, N_PAIRS> q;
#pragma unroll
    for (uint32_t h = 0; h < 2 * N_PAIRS; h++)
        q.factor[h] = factor[min(first + h, last)] * 0.0625f;
#pragma unroll
    for (uint32_t pair = 0; pair < N_PAIRS; pair++)
#pragma unroll
        for (uint32_t j = 0; j < N_WORDS; j++) {
            const uint32_t head = min(first + 2 * pair + lane / 4 % 2, last);
            q.words[pair][j] = own ? labels[head * N_WORDS + j] : make_uint2(0, 0);
        }
    return q;
}

/* ---- rule max: a pass computes CN_LABEL_HEADS heads ---- */

/* What a lane has of a lot: its sums of weights, and to what they are relative. */
typedef struct cn_label_pass {
    float sum[CN_LABEL_HEADS], offset[CN_LABEL_HEADS];
    uint32_t top[CN_LABEL_HEADS];
    bool is_open; /* offset and top are known */
} cn_label_pass;

__device__ static inline cn_label_pass cn_label_pass_of()
{
    cn_label_pass pass = {};
#pragma unroll
    for (uint32_t h = 0; h < CN_LABEL_HEADS; h++) pass.top[h] = CN_EXPONENT_BASE;
    return pass;
}

/* Sets the exponent to which the sums are relative, from the first candidates of the lot, one per
 * lane. WHOLE: as below. */
template <bool WHOLE>
__device__ static inline void cn_label_open(cn_label_pass &pass, const float logit[CN_LABEL_HEADS],
                                            bool has_share)
{
#pragma unroll
    for (uint32_t h = 0; h < CN_LABEL_HEADS; h++) {
        const uint32_t own =
            WHOLE || has_share ? cn_weight_exponent(logit[h]) : CN_EXPONENT_BASE;
        pass.top[h] = __reduce_max_sync(0xffffffffu, own);
        pass.offset[h] = cn_weight_offset(pass.top[h]);
    }
    pass.is_open = true;
}

/* Adds the weights of a candidate of each lane. The warp calls it for the candidates 0 to 31 of
 * the lot, then for 32 to 63, and so on. WHOLE: all candidates of the lot have a share. is_first:
 * these are candidates 0 to 31; used if WHOLE. */
template <bool WHOLE>
__device__ static inline void cn_label_add(cn_label_pass &pass, const float logit[CN_LABEL_HEADS],
                                           bool has_share, bool is_first)
{
    if (WHOLE ? is_first : !pass.is_open && __any_sync(0xffffffffu, has_share))
        cn_label_open<WHOLE>(pass, logit, has_share);
#pragma unroll
    for (uint32_t h = 0; h < CN_LABEL_HEADS; h++)
        pass.sum[h] += WHOLE || has_share ? cn_weight(logit[h], pass.offset[h]) : 0.0f;
}

/* The logits of a candidate, as they are stored. */
__device__ static inline uint2 cn_label_words(const float logit[CN_LABEL_HEADS])
{
    static_assert(CN_LABEL_HEADS == 4, "two words");
    return make_uint2(cn_f16x2(logit[0], logit[1]), cn_f16x2(logit[2], logit[3]));
}

/* The head of 32 of which a lane gets the weights. */
__device__ static inline uint32_t cn_label_head()
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    return CN_LABEL_HEADS * (lane % 8) + lane / 8;
}

/* Sets `own` of the lanes whose head is one of [first, first + CN_LABEL_HEADS), modulo 32. Each
 * addition halves the heads of a lane, then the lanes of a head. */
__device__ static inline void cn_label_weights(cn_lot_weights &own, const cn_label_pass &pass,
                                               uint32_t first)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    const bool upper = lane & 16, odd = lane & 8;
    const float *s = pass.sum;
    float a = upper ? s[2] : s[0], b = upper ? s[3] : s[1];
    a += __shfl_xor_sync(0xffffffffu, upper ? s[0] : s[2], 16);
    b += __shfl_xor_sync(0xffffffffu, upper ? s[1] : s[3], 16);
    float sum = odd ? b : a;
    sum += __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    const uint32_t low = odd ? pass.top[1] : pass.top[0], high = odd ? pass.top[3] : pass.top[2];
    const bool is_own = lane % 8 == first / CN_LABEL_HEADS % 8;
    own.sum = is_own ? sum : own.sum;
    own.top = is_own ? (upper ? high : low) : own.top;
}
