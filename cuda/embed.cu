/* embed.cu - copies rows of the embedding table by token id.
 * out [T,h] = table [V,h] at the ids [T], bf16. An id is tokens[t], or the last step's sample in
 * row sampled_row[t] if that is not -1. An id outside the vocabulary gives zeros.
 * Grid T, a block per row, 16 bytes per thread. Bytes moved: 4*T*h. CPU version: cpu_norm.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 128 };

__global__ static void embed_kernel(uint4 *out, const uint4 *table, const uint32_t *tokens,
                                    const int32_t *sampled_row, const uint32_t *sampled,
                                    uint32_t row_vecs, uint32_t vocab)
{
    cn_overlap_next();
    cn_wait_previous();
    const int32_t row = sampled_row ? sampled_row[blockIdx.x] : -1;
    const uint32_t id = row >= 0 ? sampled[row] : tokens[blockIdx.x];
    uint4 *dst = out + (size_t)blockIdx.x * row_vecs;
    const uint4 *src = table + (size_t)(id < vocab ? id : 0) * row_vecs;
    for (uint32_t i = threadIdx.x; i < row_vecs; i += BLOCK)
        dst[i] = id < vocab ? src[i] : make_uint4(0, 0, 0, 0);
}

extern "C" cn_status cn_cuda_embed(cn_stream *s, const cn_embed_args *a)
{
    if (a->hidden % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE, "embed: hidden %u: expected a multiple of %d", a->hidden,
                       CN_VEC8);
    if (a->n_tokens == 0) return CN_OK;
    return cn_cuda_launch(s, "embed", embed_kernel, {dim3(a->n_tokens), BLOCK}, (uint4 *)a->out,
                          (const uint4 *)a->table, a->tokens, a->sampled_row, a->sampled,
                          a->hidden / CN_VEC8, a->vocab);
}
