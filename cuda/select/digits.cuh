/* digits.cuh - finds the k-th best score of a unit with a thread block of CN_DIGIT_THREADS: two
 * histograms of 8 bits. Scores share few high bytes, so each lane counts in its own column and no
 * two lanes of a warp meet. Used by select.cu and exchange.cu. */
#ifndef CN_CUDA_DIGITS_CUH
#define CN_CUDA_DIGITS_CUH

#include "cuda/util.cuh"

enum {
    CN_DIGIT_THREADS = 1024,
    CN_DIGIT_WARPS = CN_DIGIT_THREADS / CN_WARP,
    CN_DIGIT_BINS = 256,
    CN_DIGIT_BINS_EACH = CN_DIGIT_BINS / CN_WARP,
    CN_DIGIT_AT_ONCE = 8 /* scores that a thread loads before it uses the first */
};

typedef struct cn_digits {
    uint32_t columns[CN_DIGIT_BINS * CN_WARP]; /* [bins, lanes] */
    uint32_t totals[CN_DIGIT_BINS];
    uint32_t bin, wanted, in_bin;
} cn_digits;

/* Counts the digits [shift, shift + 8) of the scores whose higher bits are `prefix`. */
__device__ static inline void cn_digits_count(cn_digits *shared, const uint16_t *scores, uint32_t n,
                                              uint32_t shift, uint32_t prefix)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    for (uint32_t i = threadIdx.x; i < CN_DIGIT_BINS * CN_WARP; i += CN_DIGIT_THREADS)
        shared->columns[i] = 0;
    __syncthreads();
    for (uint32_t start = threadIdx.x; start < n; start += CN_DIGIT_AT_ONCE * CN_DIGIT_THREADS) {
        uint32_t score[CN_DIGIT_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < CN_DIGIT_AT_ONCE; i++)
            score[i] = scores[min(start + i * CN_DIGIT_THREADS, n - 1)];
#pragma unroll
        for (uint32_t i = 0; i < CN_DIGIT_AT_ONCE; i++)
            if (start + i * CN_DIGIT_THREADS < n && score[i] >> (shift + 8) == prefix)
                atomicAdd(
                    &shared->columns[(score[i] >> shift & (CN_DIGIT_BINS - 1)) * CN_WARP + lane],
                    1u);
    }
    __syncthreads();
}

/* Sum over the lanes up to this one. */
__device__ static inline uint32_t cn_lane_scan(uint32_t v)
{
#pragma unroll
    for (uint32_t offset = 1; offset < CN_WARP; offset *= 2) {
        const uint32_t below = __shfl_up_sync(0xffffffffu, v, offset);
        if (threadIdx.x % CN_WARP >= offset) v += below;
    }
    return v;
}

/* Finds the digit of the wanted-th largest of the counted scores. Writes it to bin, the number of
 * scores with this digit to in_bin, and how many of these are among the wanted to wanted. */
__device__ static inline void cn_digits_find(cn_digits *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    for (uint32_t bin = warp; bin < CN_DIGIT_BINS; bin += CN_DIGIT_WARPS) {
        const uint32_t total =
            __reduce_add_sync(0xffffffffu, shared->columns[bin * CN_WARP + lane]);
        if (lane == 0) shared->totals[bin] = total;
    }
    __syncthreads();
    if (threadIdx.x < CN_WARP) {
        const uint32_t wanted = shared->wanted;
        uint32_t own = 0, bin = CN_DIGIT_BINS - 1 - threadIdx.x * CN_DIGIT_BINS_EACH;
#pragma unroll
        for (uint32_t i = 0; i < CN_DIGIT_BINS_EACH; i++) own += shared->totals[bin - i];
        uint32_t before = cn_lane_scan(own) - own;
        __syncwarp();
        if (before < wanted && before + own >= wanted) {
            while (before + shared->totals[bin] < wanted) before += shared->totals[bin--];
            shared->bin = bin;
            shared->wanted = wanted - before;
            shared->in_bin = shared->totals[bin];
        }
    }
    __syncthreads();
}

#endif
