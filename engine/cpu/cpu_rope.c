/* cpu_rope.c - rope_store: splits each token's qkv into heads, normalises q and k heads if the
 * model does, rotates them, and stores k and v in the pool. q is stored for attention and, if the
 * request holds a query slot, in the observation window. Half a head is a multiple of 8 elements,
 * so vectors of 8 fit. draft_store: the same for the queries and keys of a retrieval head;
 * latent_store: for latent attention. */

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"
#include "engine/cpu/cpu_simd.h"

typedef float vec8 __attribute__((vector_size(32), aligned(4), may_alias));

static vec8 *vec8_at(float *p) { return (vec8 *)p; }
static const vec8 *from(const float *p) { return (const vec8 *)p; }

/* RoPE, rotate-half: pairs are (i, i + d/2). `out` may be x. */
static void rotate_cpu(float *out, const float *x, const float *cos_row, const float *sin_row,
                       uint32_t head_dim)
{
    uint32_t half = head_dim / 2;
    for (uint32_t i = 0; i < half; i += 8) {
        vec8 a = *from(x + i), b = *from(x + half + i);
        vec8 c = *from(cos_row + i), s = *from(sin_row + i);
        *vec8_at(out + i) = a * c - b * s;
        *vec8_at(out + half + i) = b * c + a * s;
    }
}

/* One q or k head of position `pos`: norm (when given), then rotation. */
static void make_head(const cn_rope_store_args *a, float *out, const float *x, const float *norm,
                      uint32_t pos)
{
    uint32_t d = a->layout.head_dim;
    const float *cos_row = a->cos + (size_t)pos * (d / 2);
    const float *sin_row = a->sin + (size_t)pos * (d / 2);
    if (norm) {
        cn_cpu_rms_scale(out, x, norm, d, a->eps);
        x = out;
    }
    rotate_cpu(out, x, cos_row, sin_row, d);
}

static void store_token(const cn_rope_store_args *a, uint32_t t)
{
    const cn_batch_view *b = a->batch;
    const cn_kv_layout *l = &a->layout;
    uint32_t d = l->head_dim, hq = a->n_heads, hk = l->n_kv_heads, pos = b->positions[t];
    const float *x = (const float *)a->qkv + (size_t)t * (hq + 2 * hk) * d;
    float *q = (float *)a->q + (size_t)t * hq * d, rotated[CN_CPU_MAX_HEAD_DIM];
    for (uint32_t h = 0; h < hq; h++)
        make_head(a, q + (size_t)h * d, x + (size_t)h * d, a->q_norm, pos);
    if (a->q_window && b->q_rows[t] >= 0) {
        uint32_t row = (uint32_t)b->q_rows[t];
        size_t at_row = cn_query_row(a->n_query_slots, a->window, hq, d, a->layer, row / a->window,
                                     row % a->window, 0);
        memcpy((float *)a->q_window + at_row, q, (size_t)hq * d * sizeof *q);
    }
    if (b->kv_slots[t] == CN_NO_SLOT) return;
    uint32_t block = b->kv_slots[t] / l->block_tokens, slot = b->kv_slots[t] % l->block_tokens;
    const float *k = x + (size_t)hq * d, *v = k + (size_t)hk * d;
    for (uint32_t h = 0; h < hk; h++) {
        const cn_cpu_place at = {a->layer, block, h, slot};
        make_head(a, rotated, k + (size_t)h * d, a->k_norm, pos);
        cn_cpu_store_row(l, a->kv, at, CN_KV_K, rotated);
        cn_cpu_store_row(l, a->kv, at, CN_KV_V, v + (size_t)h * d);
    }
}

typedef struct store_job {
    const cn_rope_store_args *args;
    uint32_t grain;
} store_job;

static void store_tokens(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const store_job *job = ctx;
    uint32_t end = cn_min_u32(job->args->batch->n_tokens, (task + 1) * job->grain);
    for (uint32_t t = task * job->grain; t < end; t++) store_token(job->args, t);
}

cn_status cn_cpu_rope_store(cn_stream *s, const cn_rope_store_args *a)
{
    uint32_t d = a->layout.head_dim;
    if (d % 16 != 0 || d > CN_CPU_MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE,
                       "rope_store: head_dim %u: expected a multiple of 16, at most %d", d,
                       CN_CPU_MAX_HEAD_DIM);
    store_job job = {a, cn_cpu_grain((a->n_heads + 2 * a->layout.n_kv_heads) * d)};
    cn_cpu_parallel(s, (uint32_t)cn_ceil_div(a->batch->n_tokens, job.grain), store_tokens, &job);
    return CN_OK;
}

static void draft_token(void *ctx, uint32_t t, uint32_t worker)
{
    (void)worker;
    const cn_draft_store_args *a = ctx;
    const cn_kv_layout *l = &a->layout;
    const uint32_t d = l->head_dim, pos = a->positions[t], slot = a->kv_slots[t];
    const float *cos_row = a->cos + (size_t)pos * (d / 2);
    const float *sin_row = a->sin + (size_t)pos * (d / 2);
    for (uint32_t h = 0; t < a->n_queries && h < a->n_heads; h++) {
        float *q = (float *)a->q + ((size_t)t * a->n_heads + h) * d;
        rotate_cpu(q, q, cos_row, sin_row, d);
    }
    for (uint32_t h = 0; slot != CN_NO_SLOT && h < l->n_kv_heads; h++) {
        const size_t to =
            cn_kv_row(l, 0, slot / l->block_tokens, h, slot % l->block_tokens, CN_KV_K);
        rotate_cpu((float *)a->draft + to,
                   (const float *)a->k + ((size_t)t * l->n_kv_heads + h) * d, cos_row, sin_row, d);
    }
}

cn_status cn_cpu_draft_store(cn_stream *s, const cn_draft_store_args *a)
{
    const uint32_t d = a->layout.head_dim;
    if (d % 16 != 0 || d > CN_CPU_MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE,
                       "draft_store: head_dim %u: expected a multiple of 16, at most %d", d,
                       CN_CPU_MAX_HEAD_DIM);
    CN_ASSERT(a->n_queries <= a->n_tokens);
    cn_cpu_parallel(s, a->n_tokens, draft_token, (void *)(uintptr_t)a);
    return CN_OK;
}

/* ---- latent attention ---- */

static void latent_token(const cn_latent_store_args *a, uint32_t t)
{
    const cn_batch_view *b = a->batch;
    const cn_kv_layout *l = &a->layout;
    const uint32_t hq = a->n_heads, d = l->query_dim, pos = b->positions[t];
    const uint32_t rank = l->part[CN_KV_V].width, dr = l->head_dim - rank;
    const float *cos_row = a->cos + (size_t)pos * (dr / 2);
    const float *sin_row = a->sin + (size_t)pos * (dr / 2);
    const float *x = (const float *)a->row + (size_t)t * l->head_dim;
    float *q = a->q ? (float *)a->q + (size_t)t * hq * d : NULL, row[CN_CPU_MAX_HEAD_DIM];
    for (uint32_t h = 0; q && h < hq; h++) {
        float *turned = q + (size_t)h * d + d - dr;
        rotate_cpu(turned, turned, cos_row, sin_row, dr);
    }
    if (q && a->q_window && b->q_rows[t] >= 0) {
        const uint32_t at = (uint32_t)b->q_rows[t];
        const size_t to = cn_query_row(a->n_query_slots, a->window, hq, d, a->layer,
                                       at / a->window, at % a->window, 0);
        memcpy((float *)a->q_window + to, q, (size_t)hq * d * sizeof *q);
    }
    if (b->kv_slots[t] == CN_NO_SLOT) return;
    cn_cpu_rms_scale(row, x, a->norm, rank, a->eps);
    rotate_cpu(row + rank, x + rank, cos_row, sin_row, dr);
    const cn_cpu_place at = {a->layer, b->kv_slots[t] / l->block_tokens, 0,
                             b->kv_slots[t] % l->block_tokens};
    cn_cpu_store_row(l, a->kv, at, CN_KV_K, row);
}

static void latent_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const cn_latent_store_args *a = ctx;
    const uint32_t grain = cn_cpu_grain(a->n_heads * a->layout.query_dim);
    const uint32_t end = cn_min_u32(a->batch->n_tokens, (task + 1) * grain);
    for (uint32_t t = task * grain; t < end; t++) latent_token(a, t);
}

cn_status cn_cpu_latent_store(cn_stream *s, const cn_latent_store_args *a)
{
    const cn_kv_layout *l = &a->layout;
    const uint32_t d = l->head_dim, rank = l->part[CN_KV_V].width, dr = d - rank;
    const bool fits = cn_kv_layout_is_shared(l) && l->n_kv_heads == 1 && d <= CN_CPU_MAX_HEAD_DIM &&
                      rank % 16 == 0 && dr % 16 == 0 && dr <= l->query_dim;
    if (!fits)
        return cn_fail(CN_ERR_SHAPE,
                       "latent_store: rows of %u, of them %u of V, and queries of %u: expected one "
                       "kv head, multiples of 16, at most %d",
                       d, rank, l->query_dim, CN_CPU_MAX_HEAD_DIM);
    const uint32_t grain = cn_cpu_grain(a->n_heads * l->query_dim);
    cn_cpu_parallel(s, (uint32_t)cn_ceil_div(a->batch->n_tokens, grain), latent_task,
                    (void *)(uintptr_t)a);
    return CN_OK;
}
