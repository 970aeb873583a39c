/* draft_rows.cu - moves the rows of a retrieval head that reads states of the model, bf16.
 * draft_part: copies rows to columns of wider rows. draft_before: the fused state of the token
 * before. draft_keep: the fused state of the newest token of each block. Grid T, a block per row,
 * 16 bytes per thread. Bytes moved: 4*T*h each. CPU version: cpu_norm.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 128 };

__device__ static void copy_vecs(uint4 *dst, const uint4 *src, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += BLOCK)
        dst[i] = src ? src[i] : make_uint4(0, 0, 0, 0);
}

static cn_status check_width(const char *op, uint32_t width)
{
    if (width % CN_VEC8 == 0) return CN_OK;
    return cn_fail(CN_ERR_SHAPE, "%s: hidden %u: expected a multiple of %d", op, width, CN_VEC8);
}

__global__ static void part_kernel(uint4 *out, const uint4 *x, uint32_t vecs, uint32_t out_vecs)
{
    cn_overlap_next();
    cn_wait_previous();
    copy_vecs(out + (size_t)blockIdx.x * out_vecs, x + (size_t)blockIdx.x * vecs, vecs);
}

extern "C" cn_status cn_cuda_draft_part(cn_stream *s, const cn_draft_part_args *a)
{
    CN_TRY(check_width("draft_part", a->width));
    if (a->n_tokens == 0) return CN_OK;
    return cn_cuda_launch(s, "draft_part", part_kernel, {dim3(a->n_tokens), BLOCK},
                          (uint4 *)a->out + a->at / CN_VEC8, (const uint4 *)a->x,
                          a->width / CN_VEC8, a->out_width / CN_VEC8);
}

/* Returns the last sequence in [first, end) that begins at or before token t. */
__device__ static uint32_t sequence_of(const uint32_t *q_start, uint32_t first, uint32_t end,
                                       uint32_t t)
{
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (q_start[middle] <= t) first = middle;
        else end = middle;
    }
    return first;
}

__global__ static void before_kernel(const cn_draft_before_args a, uint32_t vecs)
{
    cn_overlap_next();
    cn_wait_previous();
    const uint32_t t = a.first_token + blockIdx.x;
    const uint32_t s = sequence_of(a.q_start, a.first_seq, a.n_seqs, t);
    const uint32_t first = a.q_start[s], n = a.q_start[s + 1] - first, len = a.kv_len[s];
    const uint4 *src = NULL;
    if (t > first) {
        src = (const uint4 *)a.fused + (size_t)(t - 1) * vecs;
    } else if (len > n) {
        const uint32_t slot = len - n - 1;
        const uint32_t block = a.tables[(size_t)s * a.table_stride + slot / a.block_tokens];
        src = (const uint4 *)a.state + (size_t)block * vecs;
    }
    copy_vecs((uint4 *)a.out + (size_t)t * vecs, src, vecs);
}

extern "C" cn_status cn_cuda_draft_before(cn_stream *s, const cn_draft_before_args *a)
{
    CN_TRY(check_width("draft_before", a->width));
    if (a->n_tokens == 0) return CN_OK;
    return cn_cuda_launch(s, "draft_before", before_kernel, {dim3(a->n_tokens), BLOCK}, *a,
                          a->width / CN_VEC8);
}

__global__ static void keep_kernel(const cn_draft_keep_args a, uint32_t vecs)
{
    cn_overlap_next();
    cn_wait_previous();
    const uint32_t t = blockIdx.x, slot = a.kv_slots[t], b = a.block_tokens;
    const bool is_newest = t + 1 == a.n_tokens || a.kv_slots[t + 1] / b != slot / b;
    if (slot == CN_NO_SLOT || !is_newest) return;
    copy_vecs((uint4 *)a.state + (size_t)(slot / b) * vecs,
              (const uint4 *)a.fused + (size_t)t * vecs, vecs);
}

extern "C" cn_status cn_cuda_draft_keep(cn_stream *s, const cn_draft_keep_args *a)
{
    CN_TRY(check_width("draft_keep", a->width));
    if (a->n_tokens == 0) return CN_OK;
    return cn_cuda_launch(s, "draft_keep", keep_kernel, {dim3(a->n_tokens), BLOCK}, *a,
                          a->width / CN_VEC8);
}
