/* select_math.h - the arithmetic of selection, defined bit by bit. A leaf shared by C and CUDA C++.
 *
 * Scores of labels are products of integers, and weights are added up in a fixed order: every
 * backend ranks labels alike and selects the same tokens.
 * Float operations are single ones or explicit fmaf, so compilers have nothing to contract. */
#pragma once

#include "engine/sample_math.h"

enum {
    CN_LABEL_MAX = 7,   /* labels are -7 to 7 in four bits */
    CN_QUERY_MAX = 127, /* quantised queries are -127 to 127 */
    CN_HASH_SCORE_BITS = 16
};

/* ---- f16 ---- */

CN_HOST_DEVICE static inline uint32_t cn_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CN_HOST_DEVICE static inline float cn_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The f16 nearest to x, ties to even, as bits; beyond the largest finite f16 that one with the sign
 * of x. No branches, so loops over it vectorise. x is not NaN. */
CN_HOST_DEVICE static inline uint16_t cn_f16_bits(float x)
{
    const uint32_t largest = 0x477fe000u;  /* 65504 */
    const uint32_t smallest = 0x38800000u; /* 2^-14, the smallest normal f16 */
    const uint32_t half = 0x3f000000u;     /* 0.5, whose unit in the last place is 2^-24 */
    const uint32_t bits = cn_float_bits(x), sign = bits >> 16 & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    size = size < largest ? size : largest;
    const uint32_t normal = (size - (112u << 23) + 0xfffu + (size >> 13 & 1)) >> 13;
    /* Adding 0.5 rounds to a multiple of 2^-24, the unit of subnormal f16. */
    const uint32_t subnormal = cn_float_bits(cn_float_of_bits(size) + 0.5f) - half;
    return (uint16_t)(sign | (size < smallest ? subnormal : normal));
}

CN_HOST_DEVICE static inline float cn_f16_value(uint16_t h)
{
    /* The exponent of a normal f16 is 112 below that of the same float. A multiplication by 2^112
     * adds them, and makes a subnormal f16 normal. */
    const float scaled = cn_float_of_bits((uint32_t)(h & 0x7fffu) << 13) * 5.192296858534828e33f;
    return h & 0x8000u ? -scaled : scaled;
}

/* f16 bits of x; those of a NaN if x is NaN. */
CN_HOST_DEVICE static inline uint16_t cn_f16_or_nan(float x)
{
    return x == x ? cn_f16_bits(x) : 0x7fff;
}

/* A score as an integer that sorts in the order of its f16. NaN is 0, and every other score is
 * above 0. Both zeros are equal. */
CN_HOST_DEVICE static inline uint16_t cn_score_of_f16(uint32_t h)
{
    const uint32_t key = h & 0x8000u ? ~h & 0xffffu : h | 0x8000u, zero = 0x8000u;
    return (uint16_t)((h & 0x7fffu) > 0x7c00u ? 0 : h == zero ? zero : key);
}

CN_HOST_DEVICE static inline uint16_t cn_score_bits(float x)
{
    return cn_score_of_f16(cn_f16_or_nan(x));
}

/* ---- labels ---- */

/* x rounded to an integer, ties to even. |x| is below 2^22. */
CN_HOST_DEVICE static inline float cn_round_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the unit in the last place of a sum is 1 */
    return (x + magic) - magic;
}

/* x / scale as an integer from -most to most; 0 if the scale is 0. */
CN_HOST_DEVICE static inline int32_t cn_quantise(float x, float scale, int32_t most)
{
    const float limit = (float)most;
    float ratio = scale > 0.0f ? x / scale : 0.0f;
    ratio = ratio < limit ? ratio : limit; /* NaN too */
    ratio = ratio > -limit ? ratio : -limit;
    return (int32_t)cn_round_even(ratio);
}

/* The scale of a key's label as f16 bits; `largest` is the largest |k_c| of its channels. */
CN_HOST_DEVICE static inline uint16_t cn_label_scale(float largest)
{
    return cn_f16_bits(largest / (float)CN_LABEL_MAX);
}

/* The label of one channel, -7 to 7. */
CN_HOST_DEVICE static inline int32_t cn_label_of(float k, uint16_t scale)
{
    return cn_quantise(k, cn_f16_value(scale), CN_LABEL_MAX);
}

/* The byte of two labels; `even` is that of the even channel. */
CN_HOST_DEVICE static inline uint8_t cn_label_byte(int32_t even, int32_t odd)
{
    return (uint8_t)(((uint32_t)even & 0xfu) | ((uint32_t)odd & 0xfu) << 4);
}

/* The scale of a query; `largest` is the largest |q_c| of the label's channels. */
CN_HOST_DEVICE static inline float cn_query_scale(float largest)
{
    return largest / (float)CN_QUERY_MAX;
}

CN_HOST_DEVICE static inline int32_t cn_query_of(float q, float scale)
{
    return cn_quantise(q, scale, CN_QUERY_MAX);
}

/* The logit of a label: `dot` is its integer product with the query, query_factor is the query's
 * scale times 1 / sqrt(d). */
CN_HOST_DEVICE static inline float cn_label_logit(int32_t dot, float scale, float query_factor)
{
    return (float)dot * scale * query_factor;
}

/* By which products are scaled: 1 / sqrt(head_dim), under group rule max times log2(e). */
#define CN_LOG2_E 1.44269504f
CN_HOST_DEVICE static inline float cn_score_scale(uint32_t head_dim, bool is_max)
{
    return 1.0f / sqrtf((float)head_dim) * (is_max ? CN_LOG2_E : 1.0f);
}

/* ---- group rule max: log2 of a share ----
 * score = the largest over the heads of x - log2(sum of 2^x over all candidates of the head), where
 * x is a logit times log2(e). Both terms and the score are f16. So tokens whose x is above 256 in
 * size are ranked in steps of a quarter or more; labels are less exact than that.
 *
 * Candidates are summed lot by lot; a lot (cn_lot_log2) depends on the stage and the positions
 * alone. Its weights are floats relative to a power of two. Those of labels are added up in this
 * order: a lot has lanes; lane i of n adds up the lot's tokens i, i + n, ...; then lane i adds the
 * sum of lane i + n / 2, and so on with half as many lanes. The sums of lots are added up in
 * cn_exp_sum, as integers, so their order does not matter. */

enum {
    CN_LOT_MAX_LOG2 = 8,       /* the most candidates of a lot are 2^8 */
    CN_LOT_LANES = 32,         /* of a lot of 2^8 candidates */
    CN_LOT_FEW_LANES = 8,      /* of smaller lots */
    CN_EXPONENT_BIAS = 8192,   /* exponents of two are stored plus this, from 0 to 16384 */
    CN_FLOAT_BIAS = 127 + 23,  /* of a float's exponent, if its mantissa is an integer */
    CN_WEIGHT_BIAS = 1         /* a weight is twice the power of two */
};

/* Tokens of a lot, as a power of two. Lots start at its multiples. */
CN_HOST_DEVICE static inline uint32_t cn_lot_log2(uint32_t is_rows, uint32_t entry_log2)
{
    if (entry_log2 > 0) return entry_log2 + 3;
    return is_rows ? 4 : CN_LOT_MAX_LOG2;
}

CN_HOST_DEVICE static inline float cn_saturate(float x)
{
#ifdef __CUDA_ARCH__
    return __saturatef(x);
#else
    const float positive = x > 0.0f ? x : 0.0f; /* NaN becomes 0 */
    return positive < 1.0f ? positive : 1.0f;
#endif
}

/* The power of two nearest to 2^x: the bits of its exponent plus CN_EXPONENT_BASE. It ascends with
 * x. x beyond +-8,192 counts as these, NaN as the lowest. */
#define CN_EXPONENT_BASE 0x44400000u /* the bits of 768 */
CN_HOST_DEVICE static inline uint32_t cn_weight_exponent(float x)
{
    /* The unit in the last place of the sum is 2^-14. */
    return cn_float_bits(cn_saturate(fmaf(x, 1.0f / 16384.0f, 0.5f)) + 768.0f);
}

/* What cn_weight needs of a lot whose weights are relative to `top`, an exponent as above. `top` is
 * that of the largest x of some candidates of the lot. Of labels these are the candidates among the
 * first CN_LOT_LANES tokens, aligned to their number, that include one. A weight is too small if
 * its x exceeds all of these by more than 96, which is 66 nats. */
CN_HOST_DEVICE static inline float cn_weight_offset(uint32_t top)
{
    const float place = cn_float_of_bits(top) - 768.0f; /* exact */
    return fmaf(place, -128.0f, 64.25f);
}

/* - 2^(x + 1) relative to the power of two of the offset, interpolated between powers of two: it
 * exceeds this by up to 6.2 %, which cn_exp_sum_log2 takes into account. From -2^-31 to -2^97; NaN
 * counts as the lowest x. */
CN_HOST_DEVICE static inline float cn_weight(float x, float offset)
{
    const float place = cn_saturate(fmaf(x, 1.0f / 128.0f, offset));
    /* The upper 8 bits of the mantissa become the exponent. The lowest bit of 1's exponent becomes
     * the sign. */
    return cn_float_of_bits(cn_float_bits(fmaf(place, 0.5f, 1.375f)) << 8);
}

/* A sum of lots. Exponents are divided into bins of 16. sum[i] is that of the lots of bin top - i,
 * in units of 2^(16 (top - i) - CN_EXPONENT_BIAS - CN_FLOAT_BIAS - CN_WEIGHT_BIAS). Lots of lower
 * bins do not count: they are below 2^-32 of the largest. */
typedef struct cn_exp_sum {
    uint64_t sum[3];
    uint32_t top;
} cn_exp_sum;

/* s, relative to the bin `top`, which is not below its own. */
CN_HOST_DEVICE static inline cn_exp_sum cn_exp_sum_at(cn_exp_sum s, uint32_t top)
{
    const uint32_t up = top - s.top;
    s.sum[2] = up == 0 ? s.sum[2] : up == 1 ? s.sum[1] : up == 2 ? s.sum[0] : 0;
    s.sum[1] = up == 0 ? s.sum[1] : up == 1 ? s.sum[0] : 0;
    s.sum[0] = up == 0 ? s.sum[0] : 0;
    s.top = top;
    return s;
}

CN_HOST_DEVICE static inline cn_exp_sum cn_exp_sum_add(cn_exp_sum a, cn_exp_sum b)
{
    const uint32_t top = a.top > b.top ? a.top : b.top;
    a = cn_exp_sum_at(a, top);
    b = cn_exp_sum_at(b, top);
    for (uint32_t i = 0; i < 3; i++) a.sum[i] += b.sum[i];
    return a;
}

/* Adds a lot: the sum of its weights, and the exponent to which these are relative. */
CN_HOST_DEVICE static inline void cn_exp_sum_add_lot(cn_exp_sum *s, float weights, uint32_t top)
{
    const uint32_t bits = cn_float_bits(weights) & 0x7fffffffu;
    const uint32_t mantissa = bits ? (bits & 0x7fffffu) | 0x800000u : 0;
    const uint32_t exponent = (bits >> 23) + (top - CN_EXPONENT_BASE), bin = exponent >> 4;
    if (bin > s->top) *s = cn_exp_sum_at(*s, bin); /* seldom */
    const uint32_t i = s->top - bin;
    if (i < 3) s->sum[i] += (uint64_t)mantissa << (exponent & 15);
}

/* log2(sum * 2^exponent); 0 for the sum 0. Relative error below 1e-6. */
CN_HOST_DEVICE static inline float cn_log2_scaled(uint64_t sum, int32_t exponent)
{
    if (sum == 0) return 0.0f;
#ifdef __CUDA_ARCH__
    const int zeros = __clzll((long long)sum);
#else
    const int zeros = __builtin_clzll(sum);
#endif
    /* sum = m 2^e with m in [0.71, 1.42); the low bits are dropped. */
    const uint32_t mantissa = (uint32_t)(sum << zeros >> 40) & 0x7fffffu;
    const uint32_t upper = mantissa >= 0x3504f3u; /* m above sqrt(2): halve it */
    const float m = cn_float_of_bits(mantissa | (127u - upper) << 23);
    const float e = (float)(63 - zeros + exponent + (int)upper);
    const float x = m - 1.0f;
    float p = 7.0376836292e-2f; /* Cephes: log(1 + x) = x - x^2 / 2 + x^3 p(x) */
    p = fmaf(p, x, -1.1514610310e-1f);
    p = fmaf(p, x, 1.1676998740e-1f);
    p = fmaf(p, x, -1.2420140846e-1f);
    p = fmaf(p, x, 1.4249322787e-1f);
    p = fmaf(p, x, -1.6668057665e-1f);
    p = fmaf(p, x, 2.0000714765e-1f);
    p = fmaf(p, x, -2.4999993993e-1f);
    p = fmaf(p, x, 3.3333331174e-1f);
    const float square = x * x;
    const float tail = fmaf(p, square * x, -0.5f * square);
    return fmaf(tail + x, CN_LOG2_E, e);
}

/* log2 of a sum of 2^x, within 0.044: the interpolated weights exceed it by a factor from 1 to
 * 1.0615, and the factor in the middle is taken out. */
CN_HOST_DEVICE static inline float cn_exp_sum_log2(cn_exp_sum s)
{
    const uint64_t sum = s.sum[0] + (s.sum[1] >> 16) + (s.sum[2] >> 32);
    const int32_t bias = CN_EXPONENT_BIAS + CN_FLOAT_BIAS + CN_WEIGHT_BIAS;
    return cn_log2_scaled(sum, (int32_t)(16 * s.top) - bias) - 0.0430356f;
}

/* The score of a share: the float difference of x and the logarithm of the sum, both f16. It is
 * rounded as a subtraction of two f16 is: too large a difference is infinite. */
CN_HOST_DEVICE static inline uint16_t cn_share_score(float share)
{
    const uint32_t infinity = share > 0.0f ? 0x7c00u : 0xfc00u;
    const bool is_finite = share != share || fabsf(share) < 65520.0f;
    return cn_score_of_f16(is_finite ? cn_f16_or_nan(share) : infinity);
}

/* ---- random ---- */

/* The score of a token under the selector `random`; above 0. */
CN_HOST_DEVICE static inline uint16_t cn_hash_score(uint32_t seed, uint32_t layer, uint32_t kv_head,
                                                    uint32_t position)
{
    cn_philox4 counter = {{position, layer, kv_head, 0}};
    const uint32_t bits = cn_philox4x32_10(counter, seed, 0).v[0] >> (32 - CN_HASH_SCORE_BITS);
    return (uint16_t)(bits ? bits : 1);
}
