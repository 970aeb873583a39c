/* kv_fp8.h - rows of K and V in eight bits (CN_KV_FP8). A leaf, shared by C and CUDA C++: every
 * backend makes the same bytes of the same row.
 *
 * A row x[d] is stored as e4m3 values k8[d] and one f16 scale s:
 *   s     = max(2^-14, max|x| / 448 rounded up to f16), at most 65,504
 *   k8[i] = the e4m3 nearest to x[i] / s, ties to even, at most 448 in size
 * Every step is one correctly rounded operation in f32. The scale is a normal f16, so k8[i] * s is
 * exact in f32. A row with a value that is not finite has the scale NaN: its dot products are NaN,
 * as those of the row itself would be. Zeroed memory is a row of zeros. */
#pragma once

#include <math.h>

#include "paged/kv_layout.h"

#define CN_FP8_MAX 448.0f

CN_KV_FN uint32_t cn_fp8_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

CN_KV_FN float cn_fp8_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Returns |x| as an integer. These have the order of the sizes, with NaN above all: the scale of a
 * row is made from their maximum, in any order. */
CN_KV_FN uint32_t cn_fp8_size(float x) { return cn_fp8_float_bits(x) & 0x7fffffffu; }

/* Returns the scale, as f16 bits, of a row whose largest cn_fp8_size is `largest`. */
CN_KV_FN uint16_t cn_fp8_scale(uint32_t largest)
{
    const uint32_t least = (127u - 14) << 23; /* 2^-14 in f32 */
    const uint32_t inf = 0x7f800000u;
    if (largest >= inf) return 0x7e00;
    uint32_t u = cn_fp8_float_bits(cn_fp8_bits_float(largest) / CN_FP8_MAX);
    u = u < least ? least : u;
    /* f16 has 13 mantissa bits less, and an exponent that is 112 lower. */
    u = (u - (112u << 23) + 0x1fffu) >> 13;
    return (uint16_t)(u < 0x7bffu ? u : 0x7bffu);
}

/* Returns the value of a scale: a normal f16, NaN, or 0 in zeroed memory. */
CN_KV_FN float cn_fp8_scale_value(uint16_t scale)
{
    if (scale == 0) return 0;
    const uint32_t nan = 0x7fc00000u;
    return cn_fp8_bits_float(scale >= 0x7c00 ? nan : ((uint32_t)scale << 13) + (112u << 23));
}

/* Returns the e4m3 nearest to x. */
CN_KV_FN uint8_t cn_fp8_of(float x)
{
    const uint32_t size = cn_fp8_size(x), sign = cn_fp8_float_bits(x) >> 24 & 0x80;
    const uint32_t least_normal = (127u - 6) << 23;
    const float round_magic = 16384.0f; /* one unit of its last place is 2^-9, the least e4m3 */
    uint32_t code;
    if (size > 0x7f800000u)
        return 0x7f;
    else if (size > cn_fp8_float_bits(CN_FP8_MAX))
        code = 0x7e;
    else if (size >= least_normal)
        code = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120u << 3);
    else
        code = cn_fp8_float_bits(cn_fp8_bits_float(size) + round_magic) -
               cn_fp8_float_bits(round_magic);
    return (uint8_t)(code | sign);
}

/* Returns the value of an e4m3. No call and no loop, so that loops over it vectorise. */
CN_KV_FN float cn_fp8_value(uint8_t code)
{
    const uint32_t size = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    const float normal = cn_fp8_bits_float((size << 20) + (120u << 23));
    const float small = (float)(int32_t)size * (1.0f / 512);
    const float value = size < 8 ? small : normal;
    return cn_fp8_bits_float((size == 0x7f ? 0x7fc00000u : cn_fp8_float_bits(value)) | sign);
}
