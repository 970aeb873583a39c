/* mem_sum.cu - the sum of an array's 32-bit words. It reads the array once, so benchmarks measure
 * the read bandwidth of the memory with it.
 * src [bytes], aligned to 16 bytes; out u64. Two launches: clear, then a grid that fills the
 * device, with UNROLL loads of 16 bytes in flight per thread and one atomic per warp. Bytes moved:
 * bytes. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 512, BLOCKS_PER_SM = 4, UNROLL = 4 };

__global__ static void clear_sum_kernel(uint64_t *out)
{
    cn_overlap_next();
    cn_wait_previous();
    *out = 0;
}

__device__ static inline uint64_t sum_words(uint4 v)
{
    return (uint64_t)v.x + v.y + v.z + v.w;
}

__global__ static void __launch_bounds__(BLOCK)
    mem_sum_kernel(const uint4 *src, size_t n_vecs, const uint32_t *rest, uint32_t n_rest,
                   unsigned long long *out)
{
    const size_t stride = (size_t)gridDim.x * BLOCK;
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    cn_overlap_next();
    cn_wait_previous();
    uint64_t sum = i < n_rest ? rest[i] : 0;
    for (; i + (UNROLL - 1) * stride < n_vecs; i += UNROLL * stride) {
        uint4 v[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; j++) v[j] = __ldcs(src + i + j * stride);
#pragma unroll
        for (int j = 0; j < UNROLL; j++) sum += sum_words(v[j]);
    }
    for (; i < n_vecs; i += stride) sum += sum_words(src[i]);
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % CN_WARP == 0) atomicAdd(out, (unsigned long long)sum);
}

extern "C" cn_status cn_cuda_mem_sum(cn_stream *s, const void *src, size_t bytes, uint64_t *out)
{
    if ((uintptr_t)src % sizeof(uint4) != 0 || bytes % sizeof(uint32_t) != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "mem_sum: %zu bytes at %p: expected a multiple of 4, aligned to 16 bytes",
                       bytes, src);
    const size_t n_vecs = bytes / sizeof(uint4);
    const uint32_t n_rest = (uint32_t)(bytes % sizeof(uint4) / sizeof(uint32_t));
    const dim3 grid(s->cuda->device.n_sms * BLOCKS_PER_SM);
    CN_TRY(cn_cuda_launch(s, "mem_sum", clear_sum_kernel, {dim3(1), 1}, out));
    cn_launch how = {grid, BLOCK};
    how.large_l1 = true; /* loads in flight take room there */
    return cn_cuda_launch(s, "mem_sum", mem_sum_kernel, how, (const uint4 *)src, n_vecs,
                          (const uint32_t *)((const uint4 *)src + n_vecs), n_rest,
                          (unsigned long long *)out);
}
