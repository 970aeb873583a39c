/* cpu_predict.c - predict: the next query of each sequence from its ring of recent queries. Tasks
 * are (sequence, layer, query head). SELECTION.md §4.
 *
 * q_1 is the newest query, q_2 the one before. Window k predicts q_1 by a ridge regression from
 * q_2 .. q_(k+1), with G_ij = q_(i+1) . q_(j+1), b_i = q_(i+1) . q_1 and the same ridge on the
 * diagonal for all windows: w(k) = softmax(G_k^-1 b_k). The prediction shifts the weights by one
 * query, averages over the windows 1 .. W and is sum_i c_i q_i with c_i = 1/W sum_(k>=i) w(k)_i.
 *
 * G_k is the leading part of G. So one Cholesky factor G = L L^T, and y = L^-1 b, serve all
 * windows: window k solves L_k^T w = y_k. */
#include <math.h>

#include "engine/cinch.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_simd.h"

enum { MAX = CN_MAX_SELECT_WINDOW };

/* The regression of one head. Matrices have MAX columns. */
typedef struct regression {
    uint32_t n;      /* W: windows, and unknowns of the largest */
    double *factor;  /* G, then L */
    double y[MAX];   /* b, then L^-1 b */
    double sum[MAX]; /* of w(k)_i over the windows */
} regression;

static double dot_cpu(const float *a, const float *b, uint32_t d)
{
    cn_vec sum = {0};
    for (uint32_t i = 0; i < d; i += CN_VEC)
        sum = cn_vec_fma(cn_vec_load(a + i), cn_vec_load(b + i), sum);
    return (double)cn_vec_sum(sum);
}

/* G and b of the queries rows[n + 1, d], newest first. */
static void fill_regression(regression *g, const float *rows, uint32_t d, double eps)
{
    double trace = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const float *row = rows + (size_t)(i + 1) * d;
        for (uint32_t j = 0; j <= i; j++)
            g->factor[i * MAX + j] = dot_cpu(row, rows + (size_t)(j + 1) * d, d);
        g->y[i] = dot_cpu(row, rows, d);
        trace += g->factor[i * MAX + i];
    }
    for (uint32_t i = 0; i < g->n; i++) g->factor[i * MAX + i] += eps * trace / g->n;
}

/* Factors G and solves L y = b, both in place. Returns false if G is singular. */
static bool factor(regression *g)
{
    double *l = g->factor;
    for (uint32_t i = 0; i < g->n; i++) {
        for (uint32_t j = 0; j <= i; j++) {
            double x = l[i * MAX + j];
            for (uint32_t c = 0; c < j; c++) x -= l[i * MAX + c] * l[j * MAX + c];
            if (i == j && !(x > 0)) return false;
            l[i * MAX + j] = i == j ? sqrt(x) : x / l[j * MAX + j];
        }
        double y = g->y[i];
        for (uint32_t c = 0; c < i; c++) y -= l[i * MAX + c] * g->y[c];
        g->y[i] = y / l[i * MAX + i];
    }
    return true;
}

static void softmax_cpu(double *w, uint32_t n)
{
    double top = w[0], sum = 0;
    for (uint32_t i = 1; i < n; i++) top = w[i] > top ? w[i] : top;
    for (uint32_t i = 0; i < n; i++) sum += w[i] = exp(w[i] - top);
    for (uint32_t i = 0; i < n; i++) w[i] /= sum;
}

/* Adds the weights of the window of k queries. */
static void add_cpu_window(regression *g, uint32_t k, cn_select_weights weights)
{
    double w[MAX];
    for (uint32_t i = k; i-- > 0;) {
        w[i] = g->y[i];
        for (uint32_t c = i + 1; c < k; c++) w[i] -= g->factor[c * MAX + i] * w[c];
        w[i] /= g->factor[i * MAX + i];
    }
    if (weights == CN_WEIGHTS_SOFTMAX) softmax_cpu(w, k);
    for (uint32_t i = 0; i < k; i++) g->sum[i] += w[i];
}

/* Returns c_1 .. c_n of the queries rows[n + 1, d]. */
static void coefficients_cpu(float *c, uint32_t n, const float *rows, uint32_t d, float eps,
                             cn_select_weights weights, double *scratch)
{
    regression g = {.n = n, .factor = scratch};
    fill_regression(&g, rows, d, (double)eps);
    if (!factor(&g)) { /* all queries are zero, or not finite */
        memset(c, 0, n * sizeof *c);
        c[0] = 1;
        return;
    }
    for (uint32_t k = 1; k <= n; k++) add_cpu_window(&g, k, weights);
    for (uint32_t i = 0; i < n; i++) c[i] = (float)(g.sum[i] / n);
}

/* Rotates the elements of a query after its fixed ones by `distance` positions. The table's
 * attention factor, its first cosine, is already in the query. */
static void rotate(float *out, const float *q, const cn_predict_args *a, uint32_t distance)
{
    const uint32_t half = (a->head_dim - a->n_fixed) / 2;
    const float *cos_row = a->cos + (size_t)distance * half;
    const float *sin_row = a->sin + (size_t)distance * half;
    const float inverse = 1.0f / a->cos[0];
    memcpy(out, q, a->n_fixed * sizeof *out);
    out += a->n_fixed;
    q += a->n_fixed;
    for (uint32_t i = 0; i < half; i++) {
        const float c = cos_row[i] * inverse, s = sin_row[i] * inverse;
        out[i] = q[i] * c - q[half + i] * s;
        out[half + i] = q[half + i] * c + q[i] * s;
    }
}

typedef struct predict_job {
    const cn_predict_args *args;
    cn_cpu *cpu;
} predict_job;

/* Elements of a row of the scratch: the query, then zeros. */
static uint32_t row_width(uint32_t d) { return (uint32_t)cn_round_up(d, 16); }

/* rows[n, row_width] = the n newest queries of a head, newest first. */
static void load_cpu_rows(const cn_predict_args *a, uint32_t seq, uint32_t layer, uint32_t head,
                          uint32_t n, float *rows)
{
    const uint32_t d = a->head_dim, width = row_width(d);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t ring_row = (a->newest[seq] - i) % a->modulus[seq];
        const float *q =
            (const float *)a->ring + cn_query_row(a->n_query_slots, a->rows, a->n_heads, d, layer,
                                                  a->slots[seq], ring_row, head);
        float *row = rows + (size_t)i * width;
        if (a->rotate[seq])
            rotate(row, q, a, i + 1);
        else
            memcpy(row, q, d * sizeof *q);
        memset(row + d, 0, (width - d) * sizeof *row);
    }
}

static void predict_task(void *ctx, uint32_t task, uint32_t worker)
{
    const predict_job *job = ctx;
    const cn_predict_args *a = job->args;
    const uint32_t head = task % a->n_heads, layer = task / a->n_heads % a->n_layers;
    const uint32_t seq = task / a->n_heads / a->n_layers, d = a->head_dim, width = row_width(d);
    if (a->slots[seq] == CN_NO_SLOT) return;
    cn_cpu_select_scratch *w = &job->cpu->select[worker];
    const uint32_t n = cn_min_u32(a->n_window[seq], a->newest[seq]);
    float *out = (float *)a->out + seq * a->out_stride + ((size_t)layer * a->n_heads + head) * d;
    if (a->n_window[seq] == 1 || n == 0) {
        load_cpu_rows(a, seq, a->first_layer + layer, head, 1, w->rows);
        memcpy(out, w->rows, d * sizeof *out);
        return;
    }
    float c[MAX];
    load_cpu_rows(a, seq, a->first_layer + layer, head, n + 1, w->rows);
    coefficients_cpu(c, n, w->rows, width, a->eps, (cn_select_weights)a->weights[seq], w->factor);
    memset(w->sum, 0, width * sizeof *w->sum);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < width; j += CN_VEC) {
            const cn_vec q = cn_vec_load(w->rows + (size_t)i * width + j);
            cn_vec_store(w->sum + j, cn_vec_fma(q, cn_vec_set(c[i]), cn_vec_load(w->sum + j)));
        }
    memcpy(out, w->sum, d * sizeof *out);
}

static cn_status check_predict(const cn_predict_args *a)
{
    if (a->head_dim % 2 != 0 || a->head_dim > CN_CPU_MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "predict: head_dim %u: expected a multiple of 2, at most %d",
                       a->head_dim, CN_CPU_MAX_HEAD_DIM);
    CN_ASSERT(a->n_fixed < a->head_dim && a->n_fixed % 2 == 0);
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        if (a->slots[s] == CN_NO_SLOT) continue;
        if (a->modulus[s] == 0 || a->modulus[s] > a->rows)
            return cn_fail(CN_ERR_SHAPE, "predict: modulus %u of sequence %u: expected 1 to %u",
                           a->modulus[s], s, a->rows);
        const uint32_t most = cn_min_u32(a->modulus[s] - 1, MAX);
        if (a->n_window[s] == 0 || a->n_window[s] > most)
            return cn_fail(CN_ERR_SHAPE, "predict: window %u of sequence %u: expected 1 to %u",
                           a->n_window[s], s, most);
    }
    return CN_OK;
}

cn_status cn_cpu_predict(cn_stream *s, const cn_predict_args *a)
{
    CN_TRY(check_predict(a));
    predict_job job = {a, cn_cpu_stream_owner(s)};
    cn_cpu_parallel(s, a->n_seqs * a->n_layers * a->n_heads, predict_task, &job);
    return CN_OK;
}
