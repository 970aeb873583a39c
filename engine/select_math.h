/* select_math.h - the arithmetic of selection, defined bit by bit. A leaf shared by C and CUDA C++.
 *
 * Scores of labels are products of integers, and sums of weights are sums of integers, so they do
 * not depend on the order of a sum: every backend ranks labels alike and selects the same tokens.
 * Float operations are single ones or explicit fmaf, so compilers have nothing to contract. */
#ifndef CN_SELECT_MATH_H
#define CN_SELECT_MATH_H

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

/* A score as an integer that sorts in the order of its f16. NaN is 0, and every other score is
 * above 0. Both zeros are equal. */
CN_HOST_DEVICE static inline uint16_t cn_score_bits(float x)
{
    uint32_t h = cn_f16_bits(x);
    h = h == 0x8000u ? 0 : h;
    const uint32_t key = h & 0x8000u ? ~h & 0xffffu : h | 0x8000u;
    return (uint16_t)(x == x ? key : 0);
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

/* 1 / sqrt(head_dim), by which all scores are scaled. */
CN_HOST_DEVICE static inline float cn_score_scale(uint32_t head_dim)
{
    return 1.0f / sqrtf((float)head_dim);
}

/* ---- group rule max: the logarithm of a share ----
 * Share of a candidate: weight / sum of the weights of all candidates of the head, with the weights
 * cn_sample_weight(logit - largest). log(share) = (logit - largest) - cn_log_weights(sum). */

/* log(sum / 2^40) for a sum of at least one weight; 0 for 0. Relative error below 1e-6. */
CN_HOST_DEVICE static inline float cn_log_weights(uint64_t sum)
{
    if (sum == 0) return 0.0f;
#ifdef __CUDA_ARCH__
    const int zeros = __clzll((long long)sum);
#else
    const int zeros = __builtin_clzll(sum);
#endif
    /* sum / 2^40 = m 2^e with m in [0.71, 1.42); the low bits are dropped. */
    const uint32_t mantissa = (uint32_t)(sum << zeros >> 40) & 0x7fffffu;
    const uint32_t upper = mantissa >= 0x3504f3u; /* m above sqrt(2): halve it */
    const float m = cn_float_of_bits(mantissa | (127u - upper) << 23);
    const float e = (float)(63 - zeros - CN_WEIGHT_BITS + (int)upper);
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
    return fmaf(e, 0.693147182f, tail + x);
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

#endif
