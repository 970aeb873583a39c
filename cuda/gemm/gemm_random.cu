/* gemm_random.cu - random operands for timing matrix products. The power that a product draws, and
 * with it the clock rate, depends on the values: zeros would be too fast.
 * out [n] bf16 uniform in (-1, 1), a hash of seed and index. Grid n / BLOCK, two values per thread.
 * Bytes moved: 2*n. */
#include "cuda/gemm/gemm.h"
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 256 };

__device__ static inline float uniform(uint64_t seed, size_t i)
{
    uint64_t z = (seed + i) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (float)(int32_t)(uint32_t)(z >> 32) * 0x1p-31f;
}

__global__ static void fill_random_kernel(uint32_t *out, size_t n_pairs, uint64_t seed)
{
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    cn_overlap_next();
    cn_wait_previous();
    if (i < n_pairs) out[i] = cn_pack2(uniform(seed, 2 * i), uniform(seed, 2 * i + 1));
}

extern "C" cn_status cn_gemm_fill_random(cn_stream *s, void *out, size_t n, uint64_t seed)
{
    const size_t n_pairs = n / 2;
    if (n_pairs == 0) return CN_OK;
    return cn_cuda_launch(s, "random operands", fill_random_kernel,
                          {dim3((unsigned)cn_ceil_div(n_pairs, BLOCK)), BLOCK}, (uint32_t *)out,
                          n_pairs, seed);
}
