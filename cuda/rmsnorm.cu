/* rmsnorm.cu - residual add and RMS norm in one pass.
 * residual [T,h] += x [T,h] (if given), rounded to bf16; out [T,h] = residual / rms * weight [h].
 * bf16 in and out, f32 sums in an order that does not depend on T. Grid T, a block per row; a
 * thread keeps its VECS vectors in registers, so each byte moves once. Bytes moved: 8*T*h, without
 * x 4*T*h. CPU version: cpu_norm.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { MAX_BLOCK = 1024 };

typedef struct rmsnorm_params {
    uint4 *out, *residual;
    const uint4 *x, *weight;
    uint32_t row_vecs;
    float inverse_hidden, eps;
} rmsnorm_params;

/* v = the thread's vector `at` of the row after the add. Returns its sum of squares. */
__device__ static inline float add_residual(float v[CN_VEC8], const rmsnorm_params &p, size_t at)
{
    float sum = 0.0f;
    cn_unpack8(v, p.residual[at]);
    if (p.x) {
        float more[CN_VEC8];
        cn_unpack8(more, p.x[at]);
#pragma unroll
        for (int i = 0; i < CN_VEC8; i++) v[i] += more[i];
        const uint4 rounded = cn_pack8(v);
        p.residual[at] = rounded;
        cn_unpack8(v, rounded);
    }
#pragma unroll
    for (int i = 0; i < CN_VEC8; i++) sum += v[i] * v[i];
    return sum;
}

template <int VECS>
__global__ static void __launch_bounds__(MAX_BLOCK) rmsnorm_kernel(const rmsnorm_params p)
{
    __shared__ float shared[CN_WARP];
    const size_t row = (size_t)blockIdx.x * p.row_vecs;
    float v[VECS][CN_VEC8], sum = 0.0f;
    uint4 weight[VECS];
    cn_overlap_next();
#pragma unroll
    for (int j = 0; j < VECS; j++) { /* before the wait: weights are never written */
        const uint32_t at = threadIdx.x + j * blockDim.x;
        if (at < p.row_vecs) weight[j] = p.weight[at];
    }
    cn_wait_previous();
#pragma unroll
    for (int j = 0; j < VECS; j++) {
        const uint32_t at = threadIdx.x + j * blockDim.x;
        if (at < p.row_vecs) sum += add_residual(v[j], p, row + at);
    }
    const float scale = rsqrtf(cn_block_sum(sum, shared) * p.inverse_hidden + p.eps);
#pragma unroll
    for (int j = 0; j < VECS; j++) {
        const uint32_t at = threadIdx.x + j * blockDim.x;
        if (at >= p.row_vecs) continue;
        float w[CN_VEC8];
        cn_unpack8(w, weight[j]);
#pragma unroll
        for (int i = 0; i < CN_VEC8; i++) v[j][i] *= scale * w[i];
        p.out[row + at] = cn_pack8(v[j]);
    }
}

extern "C" cn_status cn_cuda_rmsnorm(cn_stream *s, const cn_rmsnorm_args *a)
{
    const uint32_t vecs = a->hidden / CN_VEC8;
    if (a->hidden % CN_VEC8 != 0 || vecs > 4 * MAX_BLOCK)
        return cn_fail(CN_ERR_SHAPE, "rmsnorm: hidden %u: expected a multiple of %d, at most %d",
                       a->hidden, CN_VEC8, 4 * MAX_BLOCK * CN_VEC8);
    if (a->n_tokens == 0) return CN_OK;
    const rmsnorm_params p = {(uint4 *)a->out,     (uint4 *)a->residual,       (const uint4 *)a->x,
                              (const uint4 *)a->weight, vecs, 1.0f / (float)a->hidden, a->eps};
    const uint32_t per_thread = vecs <= MAX_BLOCK ? 1 : vecs <= 2 * MAX_BLOCK ? 2 : 4;
    const unsigned block = (unsigned)cn_round_up(cn_ceil_div(vecs, per_thread), CN_WARP);
    const dim3 grid(a->n_tokens);
    if (per_thread == 1) return cn_cuda_launch(s, "rmsnorm", rmsnorm_kernel<1>, {grid, block}, p);
    if (per_thread == 2) return cn_cuda_launch(s, "rmsnorm", rmsnorm_kernel<2>, {grid, block}, p);
    return cn_cuda_launch(s, "rmsnorm", rmsnorm_kernel<4>, {grid, block}, p);
}
