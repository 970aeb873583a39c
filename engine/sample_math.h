/* sample_math.h - the arithmetic of sampling, defined bit by bit. A leaf shared by C and CUDA C++.
 *
 * Every backend keeps the same tokens and draws the same token from the same logits.
 * Probabilities are unnormalised integers: weight = exp(logit - largest logit) in units of 2^-40.
 * Integer sums do not depend on their order, so a parallel sum equals the sequential one. A token
 * less likely than the best one by a factor above 2^40 has weight 0 and is never drawn.
 * Every product that feeds a sum is an explicit fmaf, so compilers have nothing to contract. */
#pragma once

#include <math.h>

#include "engine/base/philox.h"

enum { CN_WEIGHT_BITS = 40 }; /* the weight of the likeliest token is 1 << CN_WEIGHT_BITS */

/* exp(x) in units of 2^-40 for x <= 0, truncated; 1 << 40 for x = 0. The relative error is below
 * 3e-7 while the result has at least 24 bits. There are no branches and no conversions between
 * integer and float, because both are slow on GPUs. */
CN_HOST_DEVICE static inline uint64_t cn_sample_weight(float x)
{
    /* 1.5 * 2^23: adding it rounds a number to an integer, in the low bits of the sum. */
    const float magic = 12582912.0f;
    float clamped = x > -28.0f ? x : -28.0f; /* exp(-28) < 2^-40 has weight 0, as -inf and NaN */
    float shifted = fmaf(clamped, 1.44269504f, magic);
    float n = shifted - magic; /* exp(x) = 2^n exp(r), |r| <= log(2) / 2 */
    float r = fmaf(n, -0.693145752f, clamped);
    r = fmaf(n, -1.42860677e-6f, r);
    float p = 1.3888889e-3f; /* Taylor series to r^6; the remainder is below 1.3e-7 */
    p = fmaf(p, r, 8.3333333e-3f);
    p = fmaf(p, r, 4.1666667e-2f);
    p = fmaf(p, r, 1.6666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    /* 2^n p, p in [0.7, 1.42], from the bits of both. The exponent field 127 means 2^0. */
    uint32_t p_bits, shifted_bits, magic_bits;
    memcpy(&p_bits, &p, sizeof p_bits);
    memcpy(&shifted_bits, &shifted, sizeof shifted_bits);
    memcpy(&magic_bits, &magic, sizeof magic_bits);
    uint64_t mantissa = (p_bits & 0x7fffffu) | 0x800000u;
    uint32_t shift = (magic_bits - shifted_bits) + 127 - (p_bits >> 23);
    return mantissa << (CN_WEIGHT_BITS - 23) >> shift;
}

/* A logit minus the largest, divided by the temperature. 0 for the largest, even if it is infinite,
 * so no result overflows to +inf. */
CN_HOST_DEVICE static inline float cn_sample_scale(float x, float max, float temperature)
{
    float scaled = (x - max) / temperature;
    return x == max ? 0.0f : scaled;
}

/* Maps a float to an integer that sorts in the same order; both zeros map to the same integer. */
CN_HOST_DEVICE static inline uint32_t cn_sample_key(float x)
{
    uint32_t bits;
    float positive_zero = x + 0.0f;
    memcpy(&bits, &positive_zero, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* One logit after the penalties. `count` is an entry of cn_sample_args.counts. */
CN_HOST_DEVICE static inline float cn_sample_penalise(float x, uint16_t count, float repetition,
                                                      float frequency, float presence)
{
    if (count == 0) return x;
    x = x > 0.0f ? x / repetition : x * repetition;
    uint32_t in_output = count & 0x7fffu;
    if (in_output == 0) return x;
    x = fmaf(-frequency, (float)in_output, x);
    return x - presence;
}

/* Whether a row takes its force_token (cn_sample_row). prev: the sequence's previous token; NULL:
 * the host knew it when it set the row. */
CN_HOST_DEVICE static inline bool cn_sample_is_forced(int32_t force_token, uint32_t force_after,
                                                      const uint32_t *prev)
{
    if (force_token < 0) return false;
    if (force_after > 0) return prev && *prev + 1 == force_after;
    return !prev || *prev != (uint32_t)force_token;
}

/* The smallest weight that min_p keeps. */
CN_HOST_DEVICE static inline uint64_t cn_sample_min_weight(float min_p)
{
    double w = ceil((double)min_p * (double)((uint64_t)1 << CN_WEIGHT_BITS));
    return w < 1.0 ? 1 : (uint64_t)w;
}

/* The mass that top_p keeps of a total: at least 1, at most the total. */
CN_HOST_DEVICE static inline uint64_t cn_sample_nucleus(float top_p, uint64_t total)
{
    double mass = ceil((double)top_p * (double)total);
    if (mass < 1.0) return 1;
    return mass < (double)total ? (uint64_t)mass : total;
}

/* floor(u * total / 2^64). The drawn token is the first whose cumulative weight exceeds it. */
CN_HOST_DEVICE static inline uint64_t cn_sample_point(uint64_t u, uint64_t total)
{
#ifdef __CUDA_ARCH__
    return __umul64hi(u, total);
#else
    return (uint64_t)((unsigned __int128)u * total >> 64);
#endif
}
