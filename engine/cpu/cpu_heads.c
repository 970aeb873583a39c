/* cpu_heads.c - heads_gemm: a product with a matrix of its own for each head. A task is some rows
 * of a head. A row is one multiply-add per k, in order of k, or sums of lanes in a fixed order; so
 * its bits depend neither on the other rows nor on the task. */

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_update.h"

enum { TASK_TOKENS = 16 };

/* k is a multiple of CN_VEC. */
static float dot_row(const float *a, const float *b, uint32_t k)
{
    enum { SUMS = 4 };
    cn_vec sum[SUMS] = {{0}};
    uint32_t i = 0;
    for (; i + SUMS * CN_VEC <= k; i += SUMS * CN_VEC)
        for (uint32_t j = 0; j < SUMS; j++)
            sum[j] = cn_vec_fma(cn_vec_load(a + i + j * CN_VEC), cn_vec_load(b + i + j * CN_VEC),
                                sum[j]);
    for (; i < k; i += CN_VEC) sum[0] = cn_vec_fma(cn_vec_load(a + i), cn_vec_load(b + i), sum[0]);
    return cn_vec_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static void heads_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const cn_heads_gemm_args *a = ctx;
    const uint32_t head = task % a->n_heads, first = task / a->n_heads * TASK_TOKENS;
    const uint32_t rows = cn_min_u32(TASK_TOKENS, a->n_tokens - first);
    const size_t x_row = a->k + a->n_copied, out_row = a->n + a->n_copied;
    const size_t x_stride = a->n_heads * x_row;
    const size_t out_stride = a->out_stride ? a->out_stride : a->n_heads * out_row;
    const float *x = (const float *)a->x + first * x_stride + head * x_row;
    const float *w = (const float *)a->weight + (size_t)head * a->weight_stride;
    float *out = (float *)a->out + first * out_stride + head * out_row;
    if (a->by_rows) {
        const cn_cpu_update u = {.rows = rows,
                                 .cols = a->n,
                                 .k = a->k,
                                 .a = {x, x_stride},
                                 .b = {w, a->n},
                                 .c = out,
                                 .c_stride = out_stride};
        cn_cpu_rank_update(&u);
    } else {
        for (uint32_t i = 0; i < a->n; i++)
            for (uint32_t t = 0; t < rows; t++)
                out[t * out_stride + i] = dot_row(x + t * x_stride, w + (size_t)i * a->k, a->k);
    }
    for (uint32_t t = 0; t < rows && a->n_copied > 0; t++)
        memcpy(out + t * out_stride + a->n, x + t * x_stride + a->k, a->n_copied * sizeof *out);
}

static uint32_t n_heads_tasks(const cn_heads_gemm_args *a)
{
    return a->n_heads * (uint32_t)cn_ceil_div(a->n_tokens, TASK_TOKENS);
}

void cn_cpu_heads_run(const cn_heads_gemm_args *a)
{
    for (uint32_t task = 0; task < n_heads_tasks(a); task++)
        heads_task((void *)(uintptr_t)a, task, 0);
}

cn_status cn_cpu_heads_gemm(cn_stream *s, const cn_heads_gemm_args *a)
{
    const uint32_t summed = a->by_rows ? a->n : a->k;
    if (summed % 16 != 0)
        return cn_fail(CN_ERR_SHAPE, "heads_gemm: matrix of %u columns: expected a multiple of 16",
                       summed);
    cn_cpu_parallel(s, n_heads_tasks(a), heads_task, (void *)(uintptr_t)a);
    return CN_OK;
}
