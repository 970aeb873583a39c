/* dummy_weight.h - the values of dummy weights (--load-format dummy), defined bit by bit. A leaf
 * shared by C and CUDA C++.
 *
 * Every backend computes the same model, in any order of elements. An element depends only on the
 * tensor's key (a hash of the seed and its name), its scale, and the element's index i in the
 * tensor. The arithmetic is in 32-bit integers and one f32 product:
 *   mix(x):  x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16
 *   a        = mix(lo32(i) ^ mix(hi32(i) ^ lo32(key)))
 *   b        = mix(a ^ hi32(key))
 *   n        = (a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16) - 131070
 *   element  = (float)n * scale, rounded to nearest even bf16
 * The sum of four uniform 16-bit numbers has the required mean and standard deviation. Its range is
 * 3.46 deviations to each side. Elements are bf16, so that backends of either weight dtype hold the
 * same model. */
#pragma once

#include "engine/base/base.h"

CN_HOST_DEVICE static inline uint32_t cn_dummy_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= UINT32_C(0x7feb352d);
    x ^= x >> 15;
    x *= UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

/* Element i, as the bits of a bf16. */
CN_HOST_DEVICE static inline uint16_t cn_dummy_weight(uint64_t key, float scale, uint64_t i)
{
    uint32_t a = cn_dummy_mix((uint32_t)i ^ cn_dummy_mix((uint32_t)(i >> 32) ^ (uint32_t)key));
    uint32_t b = cn_dummy_mix(a ^ (uint32_t)(key >> 32));
    int32_t n = (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - 131070;
    float x = (float)n * scale;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* rounds, because x is finite */
}
