/* gather.cu - copies the rows whose logits are needed.
 * out [n,h] = x [T,h] at rows [n], bf16. Grid n, a block per row, 16 bytes per thread.
 * Bytes moved: 4*n*h. CPU version: cpu_norm.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 128 };

__global__ static void gather_kernel(uint4 *out, const uint4 *x, const uint32_t *rows,
                                     uint32_t row_vecs)
{
    cn_overlap_next();
    cn_wait_previous();
    uint4 *dst = out + (size_t)blockIdx.x * row_vecs;
    const uint4 *src = x + (size_t)rows[blockIdx.x] * row_vecs;
    for (uint32_t i = threadIdx.x; i < row_vecs; i += BLOCK) dst[i] = src[i];
}

extern "C" cn_status cn_cuda_gather(cn_stream *s, const cn_gather_args *a)
{
    if (a->hidden % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE, "gather: hidden %u: expected a multiple of %d", a->hidden,
                       CN_VEC8);
    if (a->n_rows == 0) return CN_OK;
    return cn_cuda_launch(s, "gather", gather_kernel, {dim3(a->n_rows), BLOCK}, (uint4 *)a->out,
                          (const uint4 *)a->x, a->rows, a->hidden / CN_VEC8);
}
