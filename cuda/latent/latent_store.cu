/* latent_store.cu - the row of K of a token with latent attention, and RoPE of its queries.
 *
 * q [T,hq,dn+dr], row [T,r+dr], norm [r], pool and windows as in kv_layout.h; bf16, f32 inside;
 * cos, sin [position, dr/2] f32. Grid (T, (hq + 1) / WARPS), a warp for each query head and one for
 * the row. A warp rotates as in rope_store.cu: a lane has a pair of neighbours of the first half of
 * the dr elements and the same of the second. The first dn elements of a query stay; they are read
 * only to be stored in the window. Bytes moved: T*(4*hq*dr + 4*(r+dr)), and 2*T*hq*(dn+dr) more
 * read and written for windows. CPU version: cpu_rope.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum {
    WARPS = 8,
    RANK_CHUNKS = 2, /* of eight values that a lane has of c */
    MAX_RANK = RANK_CHUNKS * CN_VEC8 * CN_WARP,
    MAX_ROPE = 4 * CN_WARP
};

typedef struct latent_params {
    uint32_t *q; /* two bf16 per word, here and below */
    const uint32_t *row;
    const uint4 *norm;
    const float2 *cos, *sin;
    char *kv;
    uint32_t *q_window;
    const uint32_t *positions, *kv_slots;
    const int32_t *q_rows;
    cn_kv_layout layout;
    uint32_t n_heads, layer, n_query_slots, window;
    uint32_t rank, rope;
    float eps;
} latent_params;

/* The angles of a lane's pairs. */
typedef struct lane_angles {
    float2 cos, sin;
} lane_angles;

/* Lanes from here on have no pairs. */
__device__ static inline uint32_t n_pair_lanes(const latent_params &p) { return p.rope / 4; }

__device__ static inline lane_angles angles_of(const latent_params &p, uint32_t t)
{
    const uint32_t lane = threadIdx.x % CN_WARP, n = n_pair_lanes(p);
    lane_angles a = {make_float2(0, 0), make_float2(0, 0)};
    if (lane >= n) return a;
    const size_t at = (size_t)p.positions[t] * n + lane;
    a.cos = p.cos[at];
    a.sin = p.sin[at];
    return a;
}

/* Rotates dr elements from `from` to `to`, and stores them in `also` too unless it is NULL. */
__device__ static inline void rotate_words(uint32_t *to, uint32_t *also, const uint32_t *from,
                                           const latent_params &p, lane_angles angles)
{
    const uint32_t lane = threadIdx.x % CN_WARP, n = n_pair_lanes(p);
    if (lane >= n) return;
    const float2 a = cn_unpack2(from[lane]), b = cn_unpack2(from[n + lane]);
    const float2 c = angles.cos, s = angles.sin;
    const uint32_t low = cn_pack2(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y);
    const uint32_t high = cn_pack2(b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y);
    to[lane] = low;
    to[n + lane] = high;
    if (!also) return;
    also[lane] = low;
    also[n + lane] = high;
}

/* Rotates the query of a head, and stores it in the window. */
__device__ static inline void store_query(const latent_params &p, uint32_t t, uint32_t head,
                                          lane_angles angles)
{
    const uint32_t d = p.layout.query_dim, fixed = (d - p.rope) / 2; /* words before RoPE */
    uint32_t *q = p.q + ((size_t)t * p.n_heads + head) * (d / 2), *ring = NULL;
    if (p.q_window && p.q_rows[t] >= 0) {
        const uint32_t at = (uint32_t)p.q_rows[t];
        ring = p.q_window + cn_query_row(p.n_query_slots, p.window, p.n_heads, d, p.layer,
                                         at / p.window, at % p.window, head) /
                                2;
    }
    for (uint32_t i = threadIdx.x % CN_WARP; ring && i < fixed; i += CN_WARP) ring[i] = q[i];
    rotate_words(q + fixed, ring ? ring + fixed : NULL, q + fixed, p, angles);
}

/* Stores c, normed: chunk lane + i * CN_WARP of eight values. */
__device__ static inline void store_rank(uint4 *to, const uint4 *from, const latent_params &p)
{
    const uint32_t lane = threadIdx.x % CN_WARP, n = p.rank / CN_VEC8;
    float x[RANK_CHUNKS][CN_VEC8], sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < RANK_CHUNKS; i++) {
        const uint32_t at = lane + i * CN_WARP;
        cn_unpack8(x[i], at < n ? from[at] : make_uint4(0, 0, 0, 0));
#pragma unroll
        for (uint32_t j = 0; j < CN_VEC8; j++) sum += x[i][j] * x[i][j];
    }
    const float scale = rsqrtf(cn_warp_sum(sum) / (float)p.rank + p.eps);
#pragma unroll
    for (uint32_t i = 0; i < RANK_CHUNKS; i++) {
        const uint32_t at = lane + i * CN_WARP;
        if (at >= n) continue;
        float weight[CN_VEC8];
        cn_unpack8(weight, p.norm[at]);
#pragma unroll
        for (uint32_t j = 0; j < CN_VEC8; j++) x[i][j] *= scale * weight[j];
        to[at] = cn_pack8(x[i]);
    }
}

__device__ static inline void store_latent_row(const latent_params &p, uint32_t t,
                                               lane_angles angles)
{
    const cn_kv_layout &l = p.layout;
    const uint32_t at = p.kv_slots[t];
    if (at == CN_NO_SLOT) return;
    const uint32_t *from = p.row + (size_t)t * (l.head_dim / 2);
    uint32_t *to = (uint32_t *)(p.kv + cn_kv_at(&l, p.layer, at / l.block_tokens, 0,
                                                at % l.block_tokens, CN_KV_K));
    store_rank((uint4 *)to, (const uint4 *)from, p);
    rotate_words(to + p.rank / 2, NULL, from + p.rank / 2, p, angles);
}

__global__ static void __launch_bounds__(WARPS *CN_WARP) latent_store_kernel(const latent_params p)
{
    const uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / CN_WARP;
    cn_overlap_next();
    /* As for attention: in later layers the arrays of the step are final (launch.cuh). */
    if (p.layer == 0) cn_wait_previous();
    const lane_angles angles = angles_of(p, t);
    cn_wait_previous();
    if (head < p.n_heads) store_query(p, t, head, angles);
    if (head == p.n_heads) store_latent_row(p, t, angles);
}

extern "C" cn_status cn_cuda_latent_store(cn_stream *s, const cn_latent_store_args *a)
{
    const cn_batch_view *b = a->batch;
    const cn_kv_layout *l = &a->layout;
    const uint32_t rank = l->part[CN_KV_V].width, rope = l->head_dim - rank;
    const bool fits = cn_kv_layout_is_shared(l) && cn_kv_layout_has_rows(l, CN_BF16) &&
                      l->n_kv_heads == 1 && rank % 16 == 0 && rope % 16 == 0 && rank <= MAX_RANK &&
                      rope <= MAX_ROPE && rope <= l->query_dim && l->query_dim % 8 == 0;
    if (!fits)
        return cn_fail(CN_ERR_SHAPE,
                       "latent_store: rows of %u, of them %u of V, and queries of %u: expected one "
                       "kv head and multiples of 16, at most %d of V and %d others, in bf16",
                       l->head_dim, rank, l->query_dim, MAX_RANK, MAX_ROPE);
    if (b->n_tokens == 0) return CN_OK;
    const uint32_t n_heads = a->q ? a->n_heads : 0; /* without q only rows are stored */
    latent_params p = {};
    p.q = (uint32_t *)a->q;
    p.row = (const uint32_t *)a->row;
    p.norm = (const uint4 *)a->norm;
    p.cos = (const float2 *)a->cos;
    p.sin = (const float2 *)a->sin;
    p.kv = (char *)a->kv;
    p.q_window = (uint32_t *)a->q_window;
    p.positions = b->positions;
    p.kv_slots = b->kv_slots;
    p.q_rows = b->q_rows;
    p.layout = *l;
    p.n_heads = n_heads;
    p.layer = a->layer;
    p.n_query_slots = a->n_query_slots;
    p.window = a->window;
    p.rank = rank;
    p.rope = rope;
    p.eps = a->eps;
    const dim3 grid(b->n_tokens, (unsigned)cn_ceil_div(n_heads + 1, WARPS));
    return cn_cuda_launch(s, "latent_store", latent_store_kernel, {grid, WARPS * CN_WARP}, p);
}
