/* expert_sum.cu - the weighted sum of the outputs of a token's experts.
 * out [T,N] = (out +) the sum of weights [T,k] * x [P,N] at rows pairs [T,k], in this order; bf16
 * in and out, f32 sums. Grid (T, pieces of a row), 8 values per thread. Bytes moved: 2*T*N*(k + 1).
 * CPU version: cpu_experts.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 256 };

__global__ static void __launch_bounds__(BLOCK) expert_sum_kernel(const cn_expert_sum_args a)
{
    const uint32_t row_vecs = a.n / CN_VEC8, at = blockIdx.y * BLOCK + threadIdx.x;
    const uint32_t *pairs = a.pairs + (size_t)blockIdx.x * a.n_used;
    const float *weights = a.weights + (size_t)blockIdx.x * a.n_used;
    uint4 *out = (uint4 *)a.out + (size_t)blockIdx.x * row_vecs + at;
    float sum[CN_VEC8] = {};
    cn_overlap_next();
    cn_wait_previous();
    if (at >= row_vecs) return;
    if (a.adds) cn_unpack8(sum, *out);
#pragma unroll 8
    for (uint32_t j = 0; j < a.n_used; j++) {
        const float weight = weights[j];
        float x[CN_VEC8];
        cn_unpack8(x, ((const uint4 *)a.x)[(size_t)pairs[j] * row_vecs + at]);
#pragma unroll
        for (int i = 0; i < CN_VEC8; i++) sum[i] += weight * x[i];
    }
    *out = cn_pack8(sum);
}

extern "C" cn_status cn_cuda_expert_sum(cn_stream *s, const cn_expert_sum_args *a)
{
    const uint32_t vecs = a->n / CN_VEC8;
    if (a->n % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE, "expert_sum: rows of %u: expected a multiple of %d", a->n,
                       CN_VEC8);
    if (a->n_tokens == 0 || vecs == 0) return CN_OK;
    const dim3 grid(a->n_tokens, (unsigned)cn_ceil_div(vecs, BLOCK));
    return cn_cuda_launch(s, "expert_sum", expert_sum_kernel, {grid, BLOCK}, *a);
}
