/* fp8_codes.cuh - rounding to e4m3 in kernels, with the bits of round_by_largest in cpu_gemm.c. */
#pragma once

#include <cuda_fp8.h>
#include <float.h>

#include "cuda/util.cuh"
#include "paged/kv_fp8.h"

/* The largest cn_fp8_size of eight bf16 values. */
__device__ static inline uint32_t cn_fp8_largest8(uint4 bits)
{
    float v[CN_VEC8];
    uint32_t largest = 0;
    cn_unpack8(v, bits);
#pragma unroll
    for (int i = 0; i < CN_VEC8; i++) largest = max(largest, cn_fp8_size(v[i]));
    return largest;
}

/* The scale of inputs (CN_X_BLOCKS, CN_X_ROWS) whose largest size is given. NaN stays NaN. */
__device__ static inline float cn_fp8_x_scale(uint32_t largest)
{
    const float scale = __fdiv_rn(__uint_as_float(largest), CN_FP8_MAX);
    return scale < FLT_MIN ? FLT_MIN : scale;
}

/* Eight bf16 values as e4m3 at a scale. */
__device__ static inline uint2 cn_fp8_codes8(uint4 bits, float scale)
{
    float v[CN_VEC8];
    uint32_t pairs[CN_VEC8 / 2];
    cn_unpack8(v, bits);
#pragma unroll
    for (int i = 0; i < CN_VEC8 / 2; i++) {
        const float2 two = make_float2(__fdiv_rn(v[2 * i], scale), __fdiv_rn(v[2 * i + 1], scale));
        pairs[i] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
    }
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}
