/* dummy_fill.cu - dummy weights made on the device: the random numbers of
 * engine/checkpoint/dummy_weight.h.
 * out [n] bf16, aligned to an element. Grid ceil(n / 256), one element a thread. Bytes 2*n, once at
 * start; about 30 integer operations an element cost as much as writing it. Twin:
 * cn_checkpoint_read. */
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
    if (a->dtype != CN_BF16) return cn_fail(CN_ERR_SHAPE, "dummy_fill: writes bf16 only");
    if (a->n > (uint64_t)INT32_MAX * BLOCK)
        return cn_fail(CN_ERR_SHAPE, "dummy_fill: a tensor of %llu elements",
                       (unsigned long long)a->n);
    return cn_cuda_launch(s, "dummy_fill", fill_kernel,
                          {dim3((unsigned)cn_ceil_div(a->n, BLOCK)), BLOCK}, (uint16_t *)a->out,
                          a->n, a->key, a->scale);
}
