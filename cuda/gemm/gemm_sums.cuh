/* gemm_sums.cuh - the sums of a product with few rows, in shared memory: stored by the warpgroups,
 * then added over the splits of K, which are blocks of one cluster.
 *
 * A token has a row of GROUPS * 64 sums, one for each row of the weights, and padding. */
#pragma once

#include "cuda/hopper.cuh"
#include "cuda/util.cuh"

/* Padding of a token's row. With it the 8 rows x 4 tokens that a warp stores at once are in
 * different banks. */
enum { CN_SUMS_PAD = 4 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Stores the sums of a thread of the warpgroups: those of wgmma for TOKENS columns. */
template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void cn_sums_store(float *shared, const float *sums)
{
    const uint32_t stride = GROUPS * 64 + CN_SUMS_PAD, lane = threadIdx.x % CN_WARP;
    const uint32_t row = threadIdx.x / CN_WARP * 16 + lane / 4, token = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
        float *at = shared + (j * 8 + token) * stride + row;
        at[0] = sums[4 * j];
        at[stride] = sums[4 * j + 1];
        at[8] = sums[4 * j + 2];
        at[stride + 8] = sums[4 * j + 3];
    }
}

/* v = the four sums at `shared` over the splits, added in the order of ranks. first: the rank of
 * the first split in the cluster. */
__device__ static inline void cn_sums_add_splits(float v[4], const float *shared, uint32_t first,
                                                 uint32_t splits)
{
    const float4 *at = (const float4 *)shared;
    float4 sum = splits == 1 ? *at : cn_cluster_read(at, first);
    for (uint32_t s = 1; s < splits; s++) {
        const float4 more = cn_cluster_read(at, first + s);
        sum.x += more.x;
        sum.y += more.y;
        sum.z += more.z;
        sum.w += more.w;
    }
    v[0] = sum.x;
    v[1] = sum.y;
    v[2] = sum.z;
    v[3] = sum.w;
}

#endif
