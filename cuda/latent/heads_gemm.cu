/* heads_gemm.cu - a product with a matrix of its own for each head: queries by the key matrices of
 * latent attention, outputs by its value matrices.
 *
 * x [T,hq,k+c], weight [hq] of [n,k] or by rows [k,n], out [T,hq,n+c], bf16, f32 sums. Grid (n /
 * 64, T / 64, hq), block 128. Bytes moved: 2*hq*n*k of weights, once for each 64 tokens, all but
 * the first from the L2 cache; 2*T*hq*(k+n+2c) of rows. At GLM-4.7-Flash's shape, 20 heads of 192
 * and 256 by 512, the two products of a layer read 9.2 MB, 2.1 us at 4.3 TB/s. CPU version:
 * cpu_heads.c. */
#include "cuda/latent/heads_gemm.cuh"

template <bool BY_ROWS>
__global__ static void __launch_bounds__(CN_HEADS_THREADS)
    heads_gemm_kernel(const cn_heads_gemm_args a)
{
    extern __shared__ unsigned char dynamic[];
    const uint32_t head = blockIdx.z, x_row = a.k + a.n_copied, out_row = a.n + a.n_copied;
    cn_head_product p;
    p.out = (cn_bf16 *)a.out + head * out_row;
    p.x = (const cn_bf16 *)a.x + head * x_row;
    p.weight = (const cn_bf16 *)a.weight + (size_t)head * a.weight_stride;
    p.out_stride = a.out_stride ? a.out_stride : (size_t)a.n_heads * out_row;
    p.x_stride = (size_t)a.n_heads * x_row;
    p.first = 0;
    p.n_rows = p.ring = a.n_tokens;
    p.n = a.n;
    p.k = a.k;
    p.n_copied = a.n_copied;
    cn_overlap_next();
    cn_heads_run<BY_ROWS>(p, dynamic, blockIdx.y * CN_HEADS_TILE, blockIdx.x * CN_HEADS_TILE);
}

extern "C" cn_status cn_cuda_heads_gemm(cn_stream *s, const cn_heads_gemm_args *a)
{
    const size_t steps = a->n | a->k | a->n_copied | a->weight_stride | a->out_stride;
    if (a->n == 0 || a->k == 0 || steps % CN_VEC8 != 0)
        return cn_fail(
            CN_ERR_SHAPE,
            "heads_gemm: matrices of %u by %u, %u apart, %u copied values and tokens %zu "
            "apart: expected multiples of %d",
            a->n, a->k, a->weight_stride, a->n_copied, a->out_stride, CN_VEC8);
    if (a->n_tokens == 0 || a->n_heads == 0) return CN_OK;
    const dim3 grid((unsigned)cn_ceil_div(a->n, CN_HEADS_TILE),
                    (unsigned)cn_ceil_div(a->n_tokens, CN_HEADS_TILE), a->n_heads);
    const cn_launch how = {grid, CN_HEADS_THREADS, CN_HEADS_SHARED_BYTES};
    return a->by_rows ? cn_cuda_launch(s, "heads_gemm", heads_gemm_kernel<true>, how, *a)
                      : cn_cuda_launch(s, "heads_gemm", heads_gemm_kernel<false>, how, *a);
}
