/* util.cuh - what kernels share: 16-byte accesses to bf16, policies of the L2 cache, and reductions
 * over a warp and over a block. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/cuda_ops.h"

enum { CN_WARP = 32, CN_VEC8 = 8 /* bf16 values in 16 bytes */ };

typedef __nv_bfloat16 cn_bf16;

/* Threads that a multiprocessor holds. Compute capabilities 8.6 to 8.9 and 12.x have fewer. */
#if defined(__CUDA_ARCH__) && \
    ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
#define CN_SM_THREADS 1536
#else
#define CN_SM_THREADS 2048
#endif

/* Policies of the L2 cache: for data that is read once, and for data that every block reads. */
#define CN_CACHE_EVICT_FIRST UINT64_C(0x12f0000000000000)
#define CN_CACHE_EVICT_NORMAL UINT64_C(0x1000000000000000)
#define CN_CACHE_EVICT_LAST UINT64_C(0x14f0000000000000)

/* ---- bf16, eight at a time ---- */

__device__ static inline void cn_unpack8(float out[CN_VEC8], uint4 bits)
{
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

/* Two bf16 in a word, the first in the low half. */
__device__ static inline float2 cn_unpack2(uint32_t bits)
{
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

__device__ static inline uint32_t cn_pack2(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

__device__ static inline uint4 cn_pack8(const float in[CN_VEC8])
{
    return make_uint4(cn_pack2(in[0], in[1]), cn_pack2(in[2], in[3]), cn_pack2(in[4], in[5]),
                      cn_pack2(in[6], in[7]));
}

/* ---- reductions ---- */

__device__ static inline float cn_warp_sum(float v)
{
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

/* Matrix fragments spread a row over four neighbouring lanes, and a column over the eight lanes
 * that are four apart. These functions reduce over those lanes; each lane gets the result. */
__device__ static inline float cn_quad_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

__device__ static inline float cn_quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ static inline float cn_column_sum(float v)
{
#pragma unroll
    for (int offset = 4; offset < CN_WARP; offset *= 2)
        v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

__device__ static inline float cn_column_max(float v)
{
#pragma unroll
    for (int offset = 4; offset < CN_WARP; offset *= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}

/* Sum over a block of whole warps; every thread gets the result. `shared` is CN_WARP floats, which
 * may be reused after the caller's next __syncthreads(). */
__device__ static inline float cn_block_sum(float v, float *shared)
{
    const unsigned warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    v = cn_warp_sum(v);
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    return cn_warp_sum(lane < blockDim.x / CN_WARP ? shared[lane] : 0.0f);
}
