/* rope_store.cu - splits qkv into heads, normalises q and k heads if the model does, rotates them,
 * and stores k and v in the paged pool. q is stored for attention and, if the request holds a query
 * slot, in the observation window.
 * qkv [T, (hq+2hk)*d], q [T,hq,d], pool and windows as in kv_layout.h; bf16, f32 inside; cos, sin
 * [position, d/2] f32. Grid (T, heads / WARPS), a warp per head. A lane holds PAIRS pairs of
 * neighbours of the first half of the head and the same of the second, so rotate-half stays in the
 * lane. Rows of K and V in eight bits are made from the f32 values; the warp finds their largest.
 * Bytes moved: 4*T*(hq+2hk)*d, and 2*T*hq*d for windows.
 *
 * draft_store: rotates the queries [n,hq,d] of a retrieval head in place, and its keys [T,hk,d]
 * into the pool of draft K. The same grid. Bytes moved: 4*(n*hq+T*hk)*d.
 *
 * CPU version: cpu_rope.c. */
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { WARPS = 8, MAX_HEAD_DIM = 256 };

typedef struct rope_params {
    uint32_t *q; /* two bf16 per word, here and below */
    const uint32_t *qkv, *q_norm, *k_norm;
    const float2 *cos, *sin;
    char *kv;
    uint32_t *q_window;
    const uint32_t *positions, *kv_slots;
    const int32_t *q_rows;
    cn_kv_layout layout;
    uint32_t n_heads, layer, n_query_slots, window;
    float eps;
} rope_params;

/* The destinations of a head's row; NULL: none. `also` is the second destination. A row in eight
 * bits has a scale. */
typedef struct head_rows {
    uint32_t *row, *also;
    uint16_t *scale;
} head_rows;

template <bool FP8>
__device__ static inline head_rows rows_of(const rope_params &p, uint32_t t, uint32_t head)
{
    const cn_kv_layout *l = &p.layout;
    const uint32_t d = l->head_dim;
    head_rows out = {NULL, NULL, NULL};
    if (head < p.n_heads) {
        out.row = p.q + ((size_t)t * p.n_heads + head) * (d / 2);
        if (p.q_window && p.q_rows[t] >= 0) {
            const uint32_t row = (uint32_t)p.q_rows[t];
            out.also = p.q_window + cn_query_row(p.n_query_slots, p.window, p.n_heads, d, p.layer,
                                                 row / p.window, row % p.window, head) / 2;
        }
        return out;
    }
    const uint32_t kv_head = (head - p.n_heads) % l->n_kv_heads, at = p.kv_slots[t];
    const cn_kv_part part = head < p.n_heads + l->n_kv_heads ? CN_KV_K : CN_KV_V;
    if (at != CN_NO_SLOT)
        out.row = (uint32_t *)(p.kv + cn_kv_at(l, p.layer, at / l->block_tokens, kv_head,
                                               at % l->block_tokens, part));
    if (FP8 && at != CN_NO_SLOT)
        out.scale = (uint16_t *)(p.kv +
                                 cn_kv_at(l, p.layer, at / l->block_tokens, kv_head,
                                          at % l->block_tokens,
                                          part == CN_KV_K ? CN_KV_K_SCALE : CN_KV_V_SCALE));
    return out;
}

/* A lane's pairs of a row: word i of `low` is the pair lane + i * CN_WARP of the first half, and of
 * `high` the same of the second half. */
template <int PAIRS> struct row_words {
    uint32_t low[PAIRS], high[PAIRS];
};

template <int PAIRS>
__device__ static inline row_words<PAIRS> load_row(const uint32_t *row, uint32_t n_pairs)
{
    row_words<PAIRS> w;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t i = threadIdx.x % CN_WARP + j * CN_WARP;
        w.low[j] = i < n_pairs ? row[i] : 0;
        w.high[j] = i < n_pairs ? row[n_pairs + i] : 0;
    }
    return w;
}

/* What a lane needs beside x: the weights of the norm and the angles of its pairs. */
template <int PAIRS> struct head_terms {
    row_words<PAIRS> norm;
    float2 cos[PAIRS], sin[PAIRS];
};

template <int PAIRS>
__device__ static inline void load_angles(head_terms<PAIRS> *terms, const float2 *cos,
                                          const float2 *sin, size_t position, uint32_t n_pairs)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t i = threadIdx.x % CN_WARP + j * CN_WARP;
        terms->cos[j] = i < n_pairs ? cos[position * n_pairs + i] : make_float2(0, 0);
        terms->sin[j] = i < n_pairs ? sin[position * n_pairs + i] : make_float2(0, 0);
    }
}

template <int PAIRS>
__device__ static inline void load_terms(head_terms<PAIRS> *terms, const rope_params &p, uint32_t t,
                                         const uint32_t *norm, uint32_t n_pairs)
{
    if (norm) terms->norm = load_row<PAIRS>(norm, n_pairs);
    load_angles<PAIRS>(terms, p.cos, p.sin, p.positions[t], n_pairs);
}

template <int PAIRS>
__device__ static inline void unpack_row(float2 low[PAIRS], float2 high[PAIRS],
                                         const row_words<PAIRS> &x)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        low[j] = cn_unpack2(x.low[j]);
        high[j] = cn_unpack2(x.high[j]);
    }
}

template <int PAIRS>
__device__ static inline void norm_head(float2 low[PAIRS], float2 high[PAIRS],
                                        const row_words<PAIRS> &weight, uint32_t n_pairs, float eps)
{
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
        sum += low[j].x * low[j].x + low[j].y * low[j].y + high[j].x * high[j].x +
               high[j].y * high[j].y;
    const float scale = rsqrtf(cn_warp_sum(sum) / (float)(4 * n_pairs) + eps);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const float2 a = cn_unpack2(weight.low[j]), b = cn_unpack2(weight.high[j]);
        low[j] = make_float2(low[j].x * scale * a.x, low[j].y * scale * a.y);
        high[j] = make_float2(high[j].x * scale * b.x, high[j].y * scale * b.y);
    }
}

template <int PAIRS>
__device__ static inline void rotate_head(float2 low[PAIRS], float2 high[PAIRS],
                                          const head_terms<PAIRS> &terms)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const float2 c = terms.cos[j], s = terms.sin[j], a = low[j], b = high[j];
        low[j] = make_float2(a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y);
        high[j] = make_float2(b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y);
    }
}

/* Returns two e4m3, x in the low byte. */
__device__ static inline uint16_t fp8_pair_of(float2 x, float scale)
{
    return (uint16_t)(cn_fp8_of(__fdiv_rn(x.x, scale)) |
                      (uint32_t)cn_fp8_of(__fdiv_rn(x.y, scale)) << 8);
}

/* Stores a row of K or V in eight bits. Called by a warp. */
template <int PAIRS>
__device__ static inline void store_row_fp8(const head_rows &out, const float2 low[PAIRS],
                                            const float2 high[PAIRS], uint32_t n_pairs)
{
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
        largest = max(max(largest, max(cn_fp8_size(low[j].x), cn_fp8_size(low[j].y))),
                      max(cn_fp8_size(high[j].x), cn_fp8_size(high[j].y)));
#pragma unroll
    for (uint32_t step = CN_WARP / 2; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const uint16_t bits = cn_fp8_scale(largest);
    const float scale = cn_fp8_scale_value(bits);
    if (!out.row) return;
    if (threadIdx.x % CN_WARP == 0) *out.scale = bits;
    uint16_t *row = (uint16_t *)out.row;
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t i = threadIdx.x % CN_WARP + j * CN_WARP;
        if (i >= n_pairs) continue;
        row[i] = fp8_pair_of(low[j], scale);
        row[n_pairs + i] = fp8_pair_of(high[j], scale);
    }
}

template <int PAIRS, bool FP8>
__global__ static void __launch_bounds__(WARPS * CN_WARP) rope_store_kernel(const rope_params p)
{
    const uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / CN_WARP;
    const uint32_t lane = threadIdx.x % CN_WARP, d = p.layout.head_dim, n_pairs = d / 4;
    const uint32_t n_rotated = p.n_heads + p.layout.n_kv_heads;
    const uint32_t n_all = n_rotated + p.layout.n_kv_heads;
    const uint32_t *norm = head < p.n_heads ? p.q_norm : p.k_norm;
    head_terms<PAIRS> terms;
    head_rows out;
    cn_overlap_next();
    /* As for attention: in later layers the arrays of the step are final (launch.cuh). */
    if (p.layer == 0) cn_wait_previous();
    if (head < n_rotated) load_terms(&terms, p, t, norm, n_pairs);
    if (head < n_all) out = rows_of<FP8>(p, t, head);
    cn_wait_previous();
    if (head >= n_all) return;
    const uint32_t *row = p.qkv + ((size_t)t * n_all + head) * (d / 2);
    const row_words<PAIRS> x = load_row<PAIRS>(row, n_pairs);
    float2 low[PAIRS], high[PAIRS];
    unpack_row<PAIRS>(low, high, x);
    if (head < n_rotated) {
        if (norm) norm_head<PAIRS>(low, high, terms.norm, n_pairs, p.eps);
        rotate_head<PAIRS>(low, high, terms);
    }
    if (FP8 && head >= p.n_heads) {
        store_row_fp8<PAIRS>(out, low, high, n_pairs);
        return;
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t i = lane + j * CN_WARP;
        if (i >= n_pairs) continue;
        const uint32_t a = cn_pack2(low[j].x, low[j].y), b = cn_pack2(high[j].x, high[j].y);
        if (out.row) {
            out.row[i] = a;
            out.row[n_pairs + i] = b;
        }
        if (out.also) {
            out.also[i] = a;
            out.also[n_pairs + i] = b;
        }
    }
}

/* ---- draft_store ---- */

typedef struct draft_params {
    uint32_t *q;
    const uint32_t *k;
    const float2 *cos, *sin;
    const uint32_t *positions, *kv_slots;
    char *draft;
    cn_kv_layout layout;
    uint32_t n_queries, n_heads;
} draft_params;

/* Returns the row of a head, and where it goes; {NULL, NULL}: nowhere. */
__device__ static inline head_rows draft_rows_of(const draft_params &p, uint32_t t, uint32_t head)
{
    const cn_kv_layout *l = &p.layout;
    const uint32_t words = l->head_dim / 2, at = p.kv_slots[t];
    head_rows none = {NULL, NULL};
    if (head < p.n_heads) {
        uint32_t *row = p.q + ((size_t)t * p.n_heads + head) * words;
        return t < p.n_queries ? head_rows{row, row} : none;
    }
    const uint32_t kv_head = head - p.n_heads;
    if (kv_head >= l->n_kv_heads || at == CN_NO_SLOT) return none;
    uint32_t *to = (uint32_t *)(p.draft + cn_kv_at(l, 0, at / l->block_tokens, kv_head,
                                                   at % l->block_tokens, CN_KV_K));
    return {(uint32_t *)p.k + ((size_t)t * l->n_kv_heads + kv_head) * words, to};
}

/* The next kernel starts after this one's wait, so that `score` may read early what earlier kernels
 * have written (engine/ops.h). */
template <int PAIRS>
__global__ static void __launch_bounds__(WARPS * CN_WARP) draft_kernel(const draft_params p)
{
    const uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / CN_WARP;
    const uint32_t lane = threadIdx.x % CN_WARP, n_pairs = p.layout.head_dim / 4;
    head_terms<PAIRS> terms;
    float2 low[PAIRS], high[PAIRS];
    cn_wait_previous();
    cn_overlap_next();
    const head_rows rows = draft_rows_of(p, t, head);
    if (!rows.row) return;
    load_angles<PAIRS>(&terms, p.cos, p.sin, p.positions[t], n_pairs);
    unpack_row<PAIRS>(low, high, load_row<PAIRS>(rows.row, n_pairs));
    rotate_head<PAIRS>(low, high, terms);
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const uint32_t i = lane + j * CN_WARP;
        if (i >= n_pairs) continue;
        rows.also[i] = cn_pack2(low[j].x, low[j].y);
        rows.also[n_pairs + i] = cn_pack2(high[j].x, high[j].y);
    }
}

extern "C" cn_status cn_cuda_draft_store(cn_stream *s, const cn_draft_store_args *a)
{
    const uint32_t d = a->layout.head_dim;
    if (d % 16 != 0 || d == 0 || d > MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE,
                       "draft_store: head_dim %u: expected a multiple of 16, at most %d", d,
                       MAX_HEAD_DIM);
    if (!cn_kv_layout_has_rows(&a->layout, CN_BF16))
        return cn_fail(CN_ERR_SHAPE, "draft_store: expected draft K in bf16, rows of %u elements",
                       d);
    CN_ASSERT(a->n_queries <= a->n_tokens);
    if (a->n_tokens == 0) return CN_OK;
    draft_params p = {};
    p.q = (uint32_t *)a->q;
    p.k = (const uint32_t *)a->k;
    p.cos = (const float2 *)a->cos;
    p.sin = (const float2 *)a->sin;
    p.positions = a->positions;
    p.kv_slots = a->kv_slots;
    p.draft = (char *)a->draft;
    p.layout = a->layout;
    p.n_queries = a->n_queries;
    p.n_heads = a->n_heads;
    const dim3 grid(a->n_tokens, (unsigned)cn_ceil_div(a->n_heads + a->layout.n_kv_heads, WARPS));
    if (d <= 128)
        return cn_cuda_launch(s, "draft_store", draft_kernel<1>, {grid, WARPS * CN_WARP}, p);
    return cn_cuda_launch(s, "draft_store", draft_kernel<2>, {grid, WARPS * CN_WARP}, p);
}

/* ---- rope_store, on the host ---- */

extern "C" cn_status cn_cuda_rope_store(cn_stream *s, const cn_rope_store_args *a)
{
    const cn_batch_view *b = a->batch;
    const uint32_t d = a->layout.head_dim, n_all = a->n_heads + 2 * a->layout.n_kv_heads;
    if (d % 16 != 0 || d == 0 || d > MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE,
                       "rope_store: head_dim %u: expected a multiple of 16, at most %d", d,
                       MAX_HEAD_DIM);
    CN_TRY(cn_kv_check_form("rope_store", &a->layout));
    if (b->n_tokens == 0) return CN_OK;
    rope_params p = {};
    p.q = (uint32_t *)a->q;
    p.qkv = (const uint32_t *)a->qkv;
    p.q_norm = (const uint32_t *)a->q_norm;
    p.k_norm = (const uint32_t *)a->k_norm;
    p.cos = (const float2 *)a->cos;
    p.sin = (const float2 *)a->sin;
    p.kv = (char *)a->kv;
    p.q_window = (uint32_t *)a->q_window;
    p.positions = b->positions;
    p.kv_slots = b->kv_slots;
    p.q_rows = b->q_rows;
    p.layout = a->layout;
    p.n_heads = a->n_heads;
    p.layer = a->layer;
    p.n_query_slots = a->n_query_slots;
    p.window = a->window;
    p.eps = a->eps;
    const cn_launch how = {dim3(b->n_tokens, (unsigned)cn_ceil_div(n_all, WARPS)),
                           WARPS * CN_WARP};
    const bool fp8 = cn_kv_form_of(&a->layout) == CN_KV_FP8;
    if (d <= 128 && fp8) return cn_cuda_launch(s, "rope_store", rope_store_kernel<1, true>, how, p);
    if (d <= 128) return cn_cuda_launch(s, "rope_store", rope_store_kernel<1, false>, how, p);
    if (fp8) return cn_cuda_launch(s, "rope_store", rope_store_kernel<2, true>, how, p);
    return cn_cuda_launch(s, "rope_store", rope_store_kernel<2, false>, how, p);
}
