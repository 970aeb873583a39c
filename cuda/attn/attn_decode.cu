/* attn_decode.cu - one query per sequence over its paged K and V.
 *
 * q, out [n_decode, hq, d], pool as in kv_layout.h; bf16 in and out, f32 sums, weights rounded to
 * bf16 before the product with the values. Grid: one block per multiprocessor; block: 4 warps that
 * compute and 1 that fetches, in eight bits 8 and 2. attn_one.cuh has the kernel, attn_walk.cuh the
 * split of the work.
 * Bytes moved: 4 * hk * d * (sum of lengths, each rounded up to 16) + 4 * n_decode * hq * d; in
 * eight bits 2 * hk * (d + 2) for a slot.
 * For each piece of a split item, 4 * d * hq / hk more bytes are written and read.
 * CPU version: cpu_attn.c. */
#include "cuda/attn/attn_one.cuh"

template <int D>
static cn_status launch_attn_decode(cn_stream *s, const cn_attn_args *a, const cn_one_params &p)
{
    CUtensorMap whole = {}, few = {};
    const bool fp8 = cn_kv_form_of(&a->layout) == CN_KV_FP8, bulk = cn_attn_has_bulk(s);
    if (fp8 && bulk)
        return cn_one_launch_as<D, true, false, true>(s, "attn_decode", p, &whole, &few);
    if (fp8) return cn_one_launch_as<D, false, false, true>(s, "attn_decode", p, &whole, &few);
    if (!bulk) return cn_one_launch_as<D, false, false, false>(s, "attn_decode", p, &whole, &few);
    CN_TRY(cn_map_pool(&whole, a->kv, &a->layout, a->layout.tile_tokens));
    CN_TRY(cn_map_pool(&few, a->kv, &a->layout, CN_WALK_STEP));
    return cn_one_launch_as<D, true, false, false>(s, "attn_decode", p, &whole, &few);
}

extern "C" size_t cn_cuda_attn_scratch_bytes(const cn_cuda_backend_opts *o)
{
    const size_t dim = cn_max_u32(o->head_dim, CN_ATTN_MAX_HEAD_DIM);
    const size_t head_bytes = sizeof(float2) + dim * sizeof(float);
    const size_t slots = CN_ONE_HEADS * (size_t)CN_ONE_LEAST_SLOTS;
    const size_t fixed =
        o->batch_invariant ? (size_t)o->max_seqs * o->n_heads * CN_WALK_LENGTH_PIECES : 0;
    return CN_ONE_ARRIVALS * sizeof(uint32_t) + (fixed > slots ? fixed : slots) * head_bytes;
}

extern "C" cn_status cn_cuda_attn_decode(cn_stream *s, const cn_attn_args *a)
{
    if (cn_kv_layout_is_shared(&a->layout)) return cn_cuda_attn_latent_decode(s, a);
    CN_TRY(cn_attn_check("attn_decode", a));
    if (a->batch->n_decode == 0) return CN_OK;
    cn_one_params p = cn_one_params_of(s, a);
    p.walk.lengths = a->lengths ? a->lengths : a->batch->kv_len;
    /* No kernel starts before the attention of the previous layer has waited for all kernels before
     * it. Then this step's lengths and tables, and all older keys and values, are final. */
    p.early = a->layer > 0;
    if (a->layout.head_dim <= 64) return launch_attn_decode<64>(s, a, p);
    if (a->layout.head_dim <= 128) return launch_attn_decode<128>(s, a, p);
    if (a->layout.head_dim <= 192) return launch_attn_decode<192>(s, a, p);
    return launch_attn_decode<256>(s, a, p);
}
