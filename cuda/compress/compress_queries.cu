/* compress_queries.cu - the queries that an event counts, as they are multiplied with rows of K,
 * where the window has those before the product with the key matrices (latent attention).
 *
 * window [L, slots, ring, hq, dn + dr], weights of a layer [hq] of [dn, r], queries [units, window,
 * hq, r + dr]; bf16, f32 sums. One launch for each layer; grid (r / 64, queries / 64, jobs * hq).
 * Bytes moved for each layer: 2*hq*dn*r of weights for each job, all but the first from the L2
 * cache, and 2*hq*w*(dn + r + 2 dr) for each unit.
 * CPU version: window_queries in cpu_score.c. */
#include "cuda/compress/compress.cuh"
#include "cuda/latent/heads_gemm.cuh"

typedef struct queries_params {
    cn_compress_chunk c;
    const cn_bf16 *weight; /* of head 0 */
    uint32_t layer;        /* of the chunk */
} queries_params;

__global__ static void __launch_bounds__(CN_HEADS_THREADS)
    queries_kernel(const __grid_constant__ queries_params a)
{
    extern __shared__ unsigned char dynamic[];
    const cn_compress_chunk &c = a.c;
    const cn_kv_layout &l = c.pools.layout;
    const uint32_t heads = c.pools.n_heads, head = blockIdx.z % heads, job = blockIdx.z / heads;
    const uint32_t rank = l.part[CN_KV_V].width, rope = l.head_dim - rank;
    const size_t unit = (size_t)job * c.n_layers + a.layer;
    cn_overlap_next();
    cn_wait_previous(); /* jobs are of a copy before */
    cn_head_product p;
    p.x = (const cn_bf16 *)c.pools.q_window +
          cn_query_row(c.pools.n_query_slots, c.pools.window, heads, l.query_dim,
                       c.first_layer + a.layer, c.jobs[job].query_slot, 0, head);
    p.first = c.jobs[job].ring_start;
    p.ring = c.ring;
    p.weight = a.weight + (size_t)head * c.pools.latent.weight_stride;
    p.out = (cn_bf16 *)c.queries + (unit * c.window * heads + head) * l.head_dim;
    p.x_stride = (size_t)heads * l.query_dim;
    p.out_stride = (size_t)heads * l.head_dim;
    p.n_rows = c.window;
    p.n = rank;
    p.k = l.query_dim - rope;
    p.n_copied = rope;
    cn_heads_run<true>(p, dynamic, blockIdx.y * CN_HEADS_TILE, blockIdx.x * CN_HEADS_TILE);
}

extern "C" cn_status cn_compress_queries(cn_stream *s, const cn_compress_chunk *c)
{
    const uint32_t rank = c->pools.layout.part[CN_KV_V].width;
    const dim3 grid((unsigned)cn_ceil_div(rank, CN_HEADS_TILE),
                    (unsigned)cn_ceil_div(c->window, CN_HEADS_TILE), c->n_jobs * c->pools.n_heads);
    queries_params a = {};
    a.c = *c;
    for (a.layer = 0; a.layer < c->n_layers; a.layer++) {
        a.weight = (const cn_bf16 *)c->pools.latent.weights[c->first_layer + a.layer];
        CN_TRY(cn_cuda_launch(s, "compress: queries", queries_kernel,
                              {grid, CN_HEADS_THREADS, CN_HEADS_SHARED_BYTES}, a));
    }
    return CN_OK;
}
