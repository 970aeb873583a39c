/* silu_mul.cu - the gated activation of the feed-forward layer.
 * out [T,I] = silu(gate_up [T, 0:I]) * gate_up [T, I:2I]; bf16, f32 inside. Grid (T, pieces of a
 * row), 8 values per thread. Bytes moved: 6*T*I. CPU version: cpu_norm.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 256 };

__global__ static void silu_mul_kernel(uint4 *out, const uint4 *gate_up, uint32_t row_vecs)
{
    const uint32_t at = blockIdx.y * BLOCK + threadIdx.x;
    const uint4 *row = gate_up + (size_t)blockIdx.x * 2 * row_vecs;
    cn_overlap_next();
    cn_wait_previous();
    if (at >= row_vecs) return;
    float gate[CN_VEC8], up[CN_VEC8];
    cn_unpack8(gate, row[at]);
    cn_unpack8(up, row[row_vecs + at]);
#pragma unroll
    for (int i = 0; i < CN_VEC8; i++) gate[i] = gate[i] / (1.0f + __expf(-gate[i])) * up[i];
    out[(size_t)blockIdx.x * row_vecs + at] = cn_pack8(gate);
}

extern "C" cn_status cn_cuda_silu_mul(cn_stream *s, const cn_silu_mul_args *a)
{
    const uint32_t vecs = a->intermediate / CN_VEC8;
    if (a->intermediate % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE, "silu_mul: intermediate size %u: expected a multiple of %d",
                       a->intermediate, CN_VEC8);
    if (a->n_tokens == 0 || vecs == 0) return CN_OK;
    const dim3 grid(a->n_tokens, (unsigned)cn_ceil_div(vecs, BLOCK));
    return cn_cuda_launch(s, "silu_mul", silu_mul_kernel, {grid, BLOCK}, (uint4 *)a->out,
                          (const uint4 *)a->gate_up, vecs);
}
