/* attn_sparse.cu - one query per sequence over a list of its resident slots per kv head.
 *
 * Like attn_decode (attn_one.cuh), but a tile is 64 entries of the list, fetched row by row from
 * their places. A row of head_dim bf16 values consists of whole 32-byte sectors, so the rows need
 * not be gathered first. index [n_decode, hk, index_stride], n_index [n_decode, hk]; an empty list
 * leaves its rows of out unchanged.
 * Bytes moved: (4 * d + 4) * (sum of n_index) + 4 * n_decode * hq * d.
 * CPU version: cpu_attn.c. */
#include "cuda/attn/attn_one.cuh"

template <int D> static cn_status launch(cn_stream *s, const cn_one_params &p)
{
    const CUtensorMap none = {};
    return cn_one_launch_as<D, false, true>(s, "attn_sparse", p, &none, &none);
}

extern "C" cn_status cn_cuda_attn_sparse(cn_stream *s, const cn_attn_sparse_args *a)
{
    CN_TRY(cn_attn_check("attn_sparse", &a->attn));
    if (a->attn.batch->n_decode == 0) return CN_OK;
    cn_one_params p = cn_one_params_of(s, &a->attn);
    p.walk.lengths = a->n_index;
    p.walk.n_units = a->attn.batch->n_decode * a->attn.layout.n_kv_heads;
    p.walk.items_per_unit = p.n_parts;
    p.index = a->index;
    p.index_stride = a->index_stride;
    const uint32_t d = a->attn.layout.head_dim;
    if (d <= 64) return launch<64>(s, p);
    if (d <= 128) return launch<128>(s, p);
    if (d <= 192) return launch<192>(s, p);
    return launch<256>(s, p);
}
