/* cpu_norm.c - the row-wise ops: embed, gather, rmsnorm, silu_mul. One thread computes a row, in
 * one order of sums, so the bits of a row depend only on its input. */
#include <math.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_simd.h"

/* A loop over rows cut into tasks of `grain` rows. */
typedef struct row_job {
    const void *args;
    uint32_t n_rows, grain;
    void (*row)(const void *args, uint32_t row);
} row_job;

static void run_rows(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const row_job *job = ctx;
    uint32_t end = cn_min_u32(job->n_rows, (task + 1) * job->grain);
    for (uint32_t r = task * job->grain; r < end; r++) job->row(job->args, r);
}

void cn_cpu_for_rows(cn_stream *s, const void *args, uint32_t n_rows, uint32_t row_elems,
                     void (*row)(const void *args, uint32_t row))
{
    row_job job = {args, n_rows, cn_cpu_grain(row_elems), row};
    cn_cpu_parallel(s, (uint32_t)cn_ceil_div(n_rows, job.grain), run_rows, &job);
}

/* ---- embed, gather ---- */

static void copy_row(float *dst, const float *src, size_t row, size_t from, uint32_t n)
{
    memcpy(dst + row * n, src + from * n, n * sizeof *dst);
}

static bool is_sampled(const cn_embed_args *a, uint32_t t)
{
    return a->sampled_row && a->sampled_row[t] >= 0;
}

static uint32_t embed_id(const cn_embed_args *a, uint32_t t)
{
    return is_sampled(a, t) ? a->sampled[a->sampled_row[t]] : a->tokens[t];
}

static void embed_row(const void *args, uint32_t t)
{
    const cn_embed_args *a = args;
    const uint32_t id = embed_id(a, t);
    if (id == CN_NO_TOKEN)
        memset((float *)a->out + (size_t)t * a->hidden, 0, a->hidden * sizeof(float));
    else
        copy_row(a->out, a->table, t, id, a->hidden);
}

cn_status cn_cpu_embed(cn_stream *s, const cn_embed_args *a)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        const uint32_t id = embed_id(a, t);
        if (id < a->vocab || (id == CN_NO_TOKEN && is_sampled(a, t))) continue;
        return cn_fail(CN_ERR_SHAPE,
                       "embed: token %u has id %u: expected less than the vocabulary size %u", t,
                       id, a->vocab);
    }
    cn_cpu_for_rows(s, a, a->n_tokens, a->hidden, embed_row);
    return CN_OK;
}

static void gather_cpu_row(const void *args, uint32_t r)
{
    const cn_gather_args *a = args;
    copy_row(a->out, a->x, r, a->rows[r], a->hidden);
}

cn_status cn_cpu_gather(cn_stream *s, const cn_gather_args *a)
{
    cn_cpu_for_rows(s, a, a->n_rows, a->hidden, gather_cpu_row);
    return CN_OK;
}

/* ---- rows of a retrieval head ---- */

static void part_row(const void *args, uint32_t t)
{
    const cn_draft_part_args *a = args;
    memcpy((float *)a->out + (size_t)t * a->out_width + a->at,
           (const float *)a->x + (size_t)t * a->width, a->width * sizeof(float));
}

cn_status cn_cpu_draft_part(cn_stream *s, const cn_draft_part_args *a)
{
    cn_cpu_for_rows(s, a, a->n_tokens, a->width, part_row);
    return CN_OK;
}

/* Row i is sequence first_seq + i. */
static void before_sequence(const void *args, uint32_t i)
{
    const cn_draft_before_args *a = args;
    const uint32_t s = a->first_seq + i, first = a->q_start[s], n = a->q_start[s + 1] - first;
    float *out = (float *)a->out + (size_t)first * a->width;
    if (a->kv_len[s] > n) {
        const uint32_t slot = a->kv_len[s] - n - 1;
        const uint32_t block = a->tables[(size_t)s * a->table_stride + slot / a->block_tokens];
        copy_row(out, a->state, 0, block, a->width);
    } else {
        memset(out, 0, a->width * sizeof *out);
    }
    if (n > 1)
        memcpy(out + a->width, (const float *)a->fused + (size_t)first * a->width,
               (size_t)(n - 1) * a->width * sizeof *out);
}

cn_status cn_cpu_draft_before(cn_stream *s, const cn_draft_before_args *a)
{
    cn_cpu_for_rows(s, a, a->n_seqs - a->first_seq, a->width, before_sequence);
    return CN_OK;
}

static void keep_row(const void *args, uint32_t t)
{
    const cn_draft_keep_args *a = args;
    const uint32_t slot = a->kv_slots[t], b = a->block_tokens;
    const bool is_newest = t + 1 == a->n_tokens || a->kv_slots[t + 1] / b != slot / b;
    if (slot != CN_NO_SLOT && is_newest) copy_row(a->state, a->fused, slot / b, t, a->width);
}

cn_status cn_cpu_draft_keep(cn_stream *s, const cn_draft_keep_args *a)
{
    cn_cpu_for_rows(s, a, a->n_tokens, a->width, keep_row);
    return CN_OK;
}

/* ---- rmsnorm ---- */

void cn_cpu_rms_scale(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
    cn_vec squares = {0};
    uint32_t i = 0;
    for (; i + CN_VEC <= n; i += CN_VEC) {
        cn_vec v = cn_vec_load(x + i);
        squares = cn_vec_fma(v, v, squares);
    }
    if (i < n) {
        cn_vec v = cn_vec_load_n(x + i, n - i);
        squares = cn_vec_fma(v, v, squares);
    }
    float inverse = 1.0f / sqrtf(cn_vec_sum(squares) / (float)n + eps);
    for (i = 0; i < n; i++) out[i] = x[i] * inverse * weight[i];
}

static void rmsnorm_row(const void *args, uint32_t t)
{
    const cn_rmsnorm_args *a = args;
    float *residual = (float *)a->residual + (size_t)t * a->hidden;
    if (a->x) {
        const float *x = (const float *)a->x + (size_t)t * a->hidden;
        for (uint32_t i = 0; i < a->hidden; i++) residual[i] += x[i];
    }
    cn_cpu_rms_scale((float *)a->out + (size_t)t * a->hidden, residual, a->weight, a->hidden,
                     a->eps);
}

cn_status cn_cpu_rmsnorm(cn_stream *s, const cn_rmsnorm_args *a)
{
    cn_cpu_for_rows(s, a, a->n_tokens, a->hidden, rmsnorm_row);
    return CN_OK;
}

/* ---- silu_mul ---- */

CN_INLINE cn_vec silu_mul(cn_vec gate, cn_vec up) { return gate / (cn_vec_exp(-gate) + 1.0f) * up; }

static void silu_mul_row(const void *args, uint32_t t)
{
    const cn_silu_mul_args *a = args;
    uint32_t n = a->intermediate, i = 0;
    const float *gate = (const float *)a->gate_up + (size_t)t * 2 * n;
    const float *up = gate + n;
    float *out = (float *)a->out + (size_t)t * n;
    for (; i + CN_VEC <= n; i += CN_VEC)
        cn_vec_store(out + i, silu_mul(cn_vec_load(gate + i), cn_vec_load(up + i)));
    if (i < n) {
        cn_vec rest = silu_mul(cn_vec_load_n(gate + i, n - i), cn_vec_load_n(up + i, n - i));
        memcpy(out + i, &rest, (n - i) * sizeof *out);
    }
}

cn_status cn_cpu_silu_mul(cn_stream *s, const cn_silu_mul_args *a)
{
    cn_cpu_for_rows(s, a, a->n_tokens, a->intermediate * 3, silu_mul_row);
    return CN_OK;
}
