/* dummy_fill.cu - fills a tensor with dummy weights on the device: the random numbers of
 * engine/checkpoint/dummy_weight.h.
 * out [n] bf16, aligned to an element. Grid ceil(n / 256), one element per thread. Bytes moved:
 * 2*n, once at start. About 30 integer operations per element cost as much as writing it. CPU
 * version: cn_checkpoint_read. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"
#include "engine/checkpoint/dummy_weight.h"

enum { BLOCK = 256 };

__global__ static void fill_kernel(uint16_t *out, uint64_t n, uint64_t key, float scale)
{
    const uint64_t i = (uint64_t)blockIdx.x * BLOCK + threadIdx.x;
    cn_overlap_next();
    cn_wait_previous();
    if (i < n) out[i] = cn_dummy_weight(key, scale, i);
}

extern "C" cn_status cn_cuda_dummy_fill(cn_stream *s, const cn_dummy_fill_args *a)
{
    if (a->n == 0) return CN_OK;
    if (a->dtype != CN_BF16)
        return cn_fail(CN_ERR_SHAPE, "dummy_fill: unsupported dtype: expected bf16");
    if (a->n > (uint64_t)INT32_MAX * BLOCK)
        return cn_fail(CN_ERR_SHAPE, "dummy_fill: a tensor of %llu elements is too large",
                       (unsigned long long)a->n);
    return cn_cuda_launch(s, "dummy_fill", fill_kernel,
                          {dim3((unsigned)cn_ceil_div(a->n, BLOCK)), BLOCK}, (uint16_t *)a->out,
                          a->n, a->key, a->scale);
}
