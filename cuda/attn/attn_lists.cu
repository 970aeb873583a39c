/* attn_lists.cu - one query per sequence over a list of its resident slots per kv head, then over
 * the slots of its tail.
 *
 * Like attn_decode (attn_one.cuh), but a tile is 64 entries, fetched row by row from their places.
 * A row of head_dim bf16 values consists of whole 32-byte sectors, so the rows need not be gathered
 * first. index [n_decode, hk, index_stride]; list_len, tail, lengths [n_decode]. A sequence of
 * length 0 leaves its rows of out unchanged.
 * Bytes moved: 4 * hk * d * (sum of lengths) + 4 * hk * (sum of list_len) + 4 * n_decode * hq * d;
 * in eight bits 2 * hk * (d + 2) for a slot.
 * CPU version: cpu_attn.c. Part of attend_selected. */
#include "cuda/attn/attn_one.cuh"

template <int D> static cn_status launch_attn_lists(cn_stream *s, const cn_one_params &p)
{
    const CUtensorMap none = {};
    if (p.pool.fp8.kv)
        return cn_one_launch_as<D, false, true, true>(s, "attn_lists", p, &none, &none);
    return cn_one_launch_as<D, false, true, false>(s, "attn_lists", p, &none, &none);
}

extern "C" cn_status cn_cuda_attn_lists(cn_stream *s, const cn_list_attn_args *a,
                                        const uint32_t *done)
{
    CN_TRY(cn_attn_check("attn_lists", &a->attn));
    if (a->attn.batch->n_decode == 0) return CN_OK;
    cn_one_params p = cn_one_params_of(s, &a->attn);
    p.walk.lengths = a->lengths;
    p.index = a->index;
    p.list_len = a->list_len;
    p.tail = a->tail;
    p.done = done;
    p.index_stride = a->index_stride;
    p.early = a->attn.layer > 0; /* as in attn_decode */
    const uint32_t d = a->attn.layout.head_dim;
    if (d <= 64) return launch_attn_lists<64>(s, p);
    if (d <= 128) return launch_attn_lists<128>(s, p);
    if (d <= 192) return launch_attn_lists<192>(s, p);
    return launch_attn_lists<256>(s, p);
}
