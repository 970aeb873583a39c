/* cpu_score.c - the table of scores (engine/cpu/score.h) and its functions.
 *
 * sgemm computes two kinds of products: the window's queries times all keys, and the keys times
 * themselves in square panels. Keys are transposed and products stay below PRODUCT_MAX. OpenBLAS
 * then multiplies without packing its operands, about twice as fast at these depths. The rest is
 * one or two vectorised passes over the result of a product in the cache.
 *
 * The cosine matrix is symmetric, so only panels on and above its diagonal are computed. A panel
 * above the diagonal is also used as its mirror image below the diagonal. */
#include <cblas.h>
#include <math.h>

#include "compress/rule.h"
#include "engine/base/base.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/score.h"

enum {
    CHUNK_ROWS = 32,       /* query rows of one product, at least one group */
    PANEL_TOKENS = 64,     /* side of a panel of cosines */
    PRODUCT_MAX = 1000000, /* rows * columns * depth */
    COLUMN_STEP = 16,      /* the smallest block; the number of slots is a multiple of it */
    POOL_RADIUS = 2,
};
static const float LOG2_E = 1.44269504f;
static const uint32_t NO_TWIN = UINT32_MAX;

/* Window queries of one product: as many as fit in CHUNK_ROWS with all heads of their group. */
static uint32_t chunk_queries(const cn_pools *p)
{
    return cn_max_u32(1, CHUNK_ROWS * p->layout.n_kv_heads / p->n_heads);
}

size_t cn_score_work_floats(const cn_pools *p, uint32_t n)
{
    size_t rows = (size_t)chunk_queries(p) * (p->n_heads / p->layout.n_kv_heads);
    size_t attention = rows * (p->layout.head_dim + (size_t)n);
    size_t redundancy = (size_t)PANEL_TOKENS * PANEL_TOKENS + 3 * (size_t)n;
    return attention > redundancy ? attention : redundancy;
}

/* max(2^x, 2^-100) for x <= 0, relative error below 2e-7 (Cephes polynomial). The lower limit keeps
 * scores, and decayed scores, from becoming denormal. No branch and no call, so that loops over it
 * vectorise. */
static inline float exp2_neg(float x)
{
    const float round_magic = 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the integer */
    x = x > -100.0f ? x : -100.0f;
    float shifted = x + round_magic;
    float f = x - (shifted - round_magic);
    float y = 1.535336188e-4f;
    y = y * f + 1.339887440e-3f;
    y = y * f + 9.618437357e-3f;
    y = y * f + 5.550332471e-2f;
    y = y * f + 2.402264791e-1f;
    y = y * f + 6.931472028e-1f;
    y = y * f + 1.0f;
    union {
        float f;
        uint32_t u;
    } scale = {shifted}, out = {y};
    out.u += scale.u << 23;
    return out.f;
}

/* Base-2 softmax without the scaling: x[i] = 2^(x[i] - max). Returns 1 / sum, the scale. */
static float softmax2(float *x, uint32_t n)
{
    float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
    for (uint32_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
#pragma omp simd reduction(+ : sum)
    for (uint32_t i = 0; i < n; i++) {
        x[i] = exp2_neg(x[i] - top);
        sum += x[i];
    }
    return 1.0f / sum;
}

/* Combines the probabilities that the heads of a query, which sees the first n_visible of n slots,
 * give a slot: logits[v] = max over the group of softmax(logits[g])[v], or the mean. Overwrites
 * logits[group, n]. */
static void weigh_query(float *logits, uint32_t n, uint32_t group, uint32_t n_visible,
                        cn_kv_head_rule rule)
{
    const bool mean = rule == CN_HEADS_MEAN;
    float *best = logits;
    for (uint32_t g = 0; g < group; g++) {
        float *row = logits + (size_t)g * n;
        for (uint32_t v = n_visible; v < n; v++) row[v] = -INFINITY;
        const float inv = softmax2(row, n) / (mean ? (float)group : 1.0f);
        if (g == 0) {
#pragma omp simd
            for (uint32_t v = 0; v < n; v++) best[v] *= inv;
            continue;
        }
        if (mean) {
#pragma omp simd
            for (uint32_t v = 0; v < n; v++) best[v] += row[v] * inv;
            continue;
        }
#pragma omp simd
        for (uint32_t v = 0; v < n; v++) {
            float x = row[v] * inv;
            best[v] = x > best[v] ? x : best[v];
        }
    }
}

/* Adds the weights of one query to the score, or, with `peak`, takes the larger of the score and
 * the weight times `decay`. */
static void count_query(float *score, const float *weights, uint32_t n, bool peak, float decay)
{
    if (!peak) {
#pragma omp simd
        for (uint32_t v = 0; v < n; v++) score[v] += weights[v];
        return;
    }
#pragma omp simd
    for (uint32_t v = 0; v < n; v++) {
        const float x = weights[v] * decay;
        score[v] = x > score[v] ? x : score[v];
    }
}

/* logits[rows, n] = scale * queries[rows, d] * keys_t[d, n] */
static void query_product(const cn_score_job *job, const float *queries, uint32_t rows, float scale,
                          float *logits)
{
    const uint32_t n = job->n, d = job->pools->layout.head_dim;
    const uint32_t fit = PRODUCT_MAX / (rows * d) / COLUMN_STEP * COLUMN_STEP;
    const uint32_t step = cn_max_u32(COLUMN_STEP, fit);
    for (uint32_t v = 0; v < n; v += step)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows,
                    (int)cn_min_u32(step, n - v), (int)d, scale, queries, (int)d, job->keys_t + v,
                    (int)n, 0, logits + v, (int)n);
}

/* out[group, d] = a query of the window of a kv head, as it is multiplied with rows of K. With
 * latent attention the window has queries before the product with the key matrices of their heads.
 */
static void window_queries(const cn_score_job *job, uint32_t ring_row, float *out)
{
    const cn_pools *p = job->pools;
    const cn_kv_layout *l = &p->layout;
    const uint32_t group = p->n_heads / l->n_kv_heads, d = l->query_dim;
    const float *ring = (const float *)p->q_window +
                        cn_query_row(p->n_query_slots, p->window, p->n_heads, d, job->layer,
                                     job->req->query_slot, ring_row, job->kv_head * group);
    if (!p->latent.weights) {
        memcpy(out, ring, (size_t)group * d * sizeof *out);
        return;
    }
    const uint32_t rank = l->part[CN_KV_V].width, rope = l->head_dim - rank;
    const cn_heads_gemm_args a = {.out = out,
                                  .x = ring,
                                  .weight = p->latent.weights[job->layer],
                                  .weight_stride = p->latent.weight_stride,
                                  .n_tokens = 1,
                                  .n_heads = group,
                                  .n = rank,
                                  .k = d - rope,
                                  .n_copied = rope,
                                  .by_rows = true};
    cn_cpu_heads_run(&a);
}

/* C.2. S[v] = mean over the window's queries of the largest softmax(q.k / sqrt(d))[v] among the
 * group's query heads, or of the mean of the heads (cn_kv_head_rule). Causal inside the last w
 * slots. With CN_FORM_PEAK (compress/rule.h) the largest over the queries instead, each times
 * 2^(cn_rule_decay_log2 * age), where the newest query has age 0. */
static void score_attention(const cn_score_job *job)
{
    const cn_pools *p = job->pools;
    const uint32_t n = job->n, d = p->layout.head_dim;
    const cn_compress_req *req = job->req;
    const uint32_t rows = cn_rule_queries(&req->params);
    const uint32_t w = cn_rule_event_queries(req, n);
    const uint32_t group = p->n_heads / p->layout.n_kv_heads, chunk = chunk_queries(p);
    /* Base-2 logits: the factor log2(e) is part of the product's scale and costs nothing. */
    const float scale = p->scale > 0 ? LOG2_E * p->scale : LOG2_E / sqrtf((float)d);
    float *queries = job->work, *logits = queries + (size_t)chunk * group * d;
    const bool peak = cn_rule_of(req->params.rule)->form == CN_FORM_PEAK;
    const float decay_log2 = cn_rule_decay_log2(&req->params);

    memset(job->score, 0, n * sizeof *job->score);
    for (uint32_t u0 = 0; u0 < w; u0 += chunk) {
        uint32_t n_u = cn_min_u32(chunk, w - u0);
        for (uint32_t u = 0; u < n_u; u++) {
            uint32_t ring_row = (req->position_end - w + u0 + u) % rows;
            window_queries(job, ring_row, queries + (size_t)u * group * d);
        }
        query_product(job, queries, n_u * group, scale, logits);
        for (uint32_t u = 0; u < n_u; u++) {
            float *own = logits + (size_t)u * group * n;
            const uint32_t age = w - 1 - (u0 + u);
            weigh_query(own, n, group, n - age, req->params.head_rule);
            count_query(job->score, own, n, peak, exp2f(decay_log2 * (float)age));
        }
    }
    for (uint32_t v = 0; v < n && !peak; v++) job->score[v] /= (float)w;
}

/* C.3. S = max(f * F, S) on the slots [0, n_history), except at the first event; F = S. The factor
 * f is cn_rule_history_factor of n - n_history tokens: alpha with CN_FORM_MEAN. */
static void score_global(const cn_score_job *job)
{
    const cn_kv_layout *l = &job->pools->layout;
    const uint32_t b = l->block_tokens;
    const uint32_t n_history = cn_rule_old_slots(job->req);
    const float alpha = cn_rule_history_factor(&job->req->params, job->n - n_history);
    for (uint32_t i = 0; i < job->req->n_blocks; i++) {
        float *f = job->pools->score +
                   cn_kv_side(l, job->layer, job->req->table[i], job->kv_head, 0);
        float *s = job->score + (size_t)i * b;
        uint32_t n_old = n_history > i * b ? cn_min_u32(b, n_history - i * b) : 0;
        for (uint32_t v = 0; v < n_old; v++) s[v] = alpha * f[v] > s[v] ? alpha * f[v] : s[v];
        memcpy(f, s, b * sizeof *f);
    }
}

/* C.4. S[v] = max of S[v-2 .. v+2]. */
static void score_pooling(const cn_score_job *job)
{
    const uint32_t n = job->n;
    float *in = job->work;
    memcpy(in, job->score, n * sizeof *in);
    for (uint32_t v = 0; v < n; v++) {
        uint32_t lo = v > POOL_RADIUS ? v - POOL_RADIUS : 0;
        uint32_t hi = cn_min_u32(v + POOL_RADIUS + 1, n);
        float top = in[lo];
        for (uint32_t i = lo + 1; i < hi; i++) top = in[i] > top ? in[i] : top;
        job->score[v] = top;
    }
}

/* S[v] = max of S[v - d] * (1 - d / (2 * CN_FOLLOW_SLOTS)), d = 0 .. CN_FOLLOW_SLOTS: what follows
 * a slot counts with it. A sink counts for itself alone. The factors are exact, so S has the same
 * bits in whatever order the maximum is taken. */
static void score_follow(const cn_score_job *job)
{
    const uint32_t n = job->n, n_sinks = cn_rule_sinks(&job->req->params);
    float *in = job->work, *s = job->score;
    memcpy(in, s, n * sizeof *in);
    for (uint32_t d = 1; d <= CN_FOLLOW_SLOTS; d++) {
        const float share = 1.0f - (float)d / (2.0f * CN_FOLLOW_SLOTS);
#pragma omp simd
        for (uint32_t v = n_sinks + d; v < n; v++) {
            const float x = in[v - d] * share;
            s[v] = x > s[v] ? x : s[v];
        }
    }
}

/* S = S * (cn_rule_scale / sum of S over the n slots). 0 if the sum is not above 0. */
static void score_scale(const cn_score_job *job)
{
    const uint32_t n = job->n;
    float *s = job->score, sum = 0;
#pragma omp simd reduction(+ : sum)
    for (uint32_t v = 0; v < n; v++) sum += s[v];
    const float factor = sum > 0 ? cn_rule_scale(&job->req->params) / sum : 0;
    for (uint32_t v = 0; v < n; v++) s[v] *= factor;
}

/* Row sums of the cosine matrix and, for each column, its twin: the last row whose cosine is above
 * p. Rows of a column are visited in ascending order, so a later twin replaces an earlier one. */
typedef struct cosines {
    const float *keys_t; /* [d, n] */
    uint32_t d, n;
    float p;
    float *inv_norm;    /* [n] 1/|k|, 0 for a zero key, whose cosines are 0 */
    float *sum;         /* [n] out */
    uint32_t *twin;     /* [n] row, or NO_TWIN */
    float *twin_cosine; /* [n] */
    float *panel;       /* [PANEL_TOKENS, PANEL_TOKENS] */
} cosines;

static void cpu_inverse_norms(const cosines *c)
{
    const uint32_t n = c->n;
    float *inv = c->inv_norm;
    memset(inv, 0, n * sizeof *inv);
    for (uint32_t j = 0; j < c->d; j++) {
        const float *k = c->keys_t + (size_t)j * n;
#pragma omp simd
        for (uint32_t i = 0; i < n; i++) inv[i] += k[i] * k[i];
    }
    for (uint32_t i = 0; i < n; i++) inv[i] = inv[i] > 0 ? 1.0f / sqrtf(inv[i]) : 0.0f;
}

static void panel_product(const cosines *c, uint32_t r0, uint32_t n_r, uint32_t c0, uint32_t n_c)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)n_r, (int)n_c, (int)c->d, 1,
                c->keys_t + r0, (int)c->n, c->keys_t + c0, (int)c->n, 0, c->panel, (int)n_c);
}

/* Converts one row of a panel to cosines and adds it to the columns from c0 on: to their sums and
 * twins. A column's sum equals its row's sum because the matrix is symmetric. */
static void add_to_columns(const cosines *c, uint32_t row, const float *x, uint32_t c0,
                           uint32_t n_c)
{
    const float inv_r = c->inv_norm[row], *inv = c->inv_norm + c0, p = c->p;
    float *sum = c->sum + c0, *twin_cosine = c->twin_cosine + c0;
    uint32_t *twin = c->twin + c0;
#pragma omp simd
    for (uint32_t j = 0; j < n_c; j++) {
        float cosine = x[j] * inv_r * inv[j];
        sum[j] += cosine;
        twin[j] = cosine > p ? row : twin[j];
        twin_cosine[j] = cosine > p ? cosine : twin_cosine[j];
    }
}

/* Adds the same row of a panel above the diagonal as the column that it mirrors. */
static void add_as_column(const cosines *c, uint32_t row, const float *x, uint32_t c0, uint32_t n_c)
{
    const float inv_r = c->inv_norm[row], *inv = c->inv_norm + c0, p = c->p;
    float sum = 0;
    int32_t last = -1;
#pragma omp simd reduction(+ : sum) reduction(max : last)
    for (uint32_t j = 0; j < n_c; j++) {
        float cosine = x[j] * inv_r * inv[j];
        int32_t found = cosine > p ? (int32_t)j : -1;
        sum += cosine;
        last = found > last ? found : last;
    }
    c->sum[row] += sum;
    if (last < 0) return;
    c->twin[row] = c0 + (uint32_t)last;
    c->twin_cosine[row] = x[last] * inv_r * inv[last];
}

/* Adds all pairs of the slots [lo, hi), panel by panel. */
static void add_span(const cosines *c, uint32_t lo, uint32_t hi)
{
    for (uint32_t r0 = lo; r0 < hi; r0 += PANEL_TOKENS) {
        const uint32_t n_r = cn_min_u32(PANEL_TOKENS, hi - r0);
        for (uint32_t c0 = r0; c0 < hi; c0 += PANEL_TOKENS) {
            const uint32_t n_c = cn_min_u32(PANEL_TOKENS, hi - c0);
            panel_product(c, r0, n_r, c0, n_c);
            for (uint32_t r = 0; r < n_r; r++) {
                float *x = c->panel + (size_t)r * n_c;
                if (c0 == r0) x[r] = 0;
                else add_as_column(c, r0 + r, x, c0, n_c);
                add_to_columns(c, r0 + r, x, c0, n_c);
            }
        }
    }
}

/* R = softmax(row sums / (span * tau)) over all slots. Cosines are computed inside spans of `span`
 * slots: a block, or the whole sequence. */
static void redundancy(const cn_score_job *job, uint32_t span)
{
    const uint32_t n = job->n;
    cosines c = {.keys_t = job->keys_t,
                 .d = job->pools->layout.head_dim,
                 .n = n,
                 .p = job->req->params.redundancy_p,
                 .inv_norm = job->work,
                 .sum = job->redundancy,
                 .twin = (uint32_t *)(job->work + n),
                 .twin_cosine = job->work + 2 * (size_t)n,
                 .panel = job->work + 3 * (size_t)n};
    cpu_inverse_norms(&c);
    memset(c.sum, 0, n * sizeof *c.sum);
    for (uint32_t i = 0; i < n; i++) c.twin[i] = NO_TWIN;
    for (uint32_t lo = 0; lo < n; lo += span) add_span(&c, lo, lo + span);
    for (uint32_t i = 0; i < n; i++)
        if (c.twin[i] != NO_TWIN) c.sum[c.twin[i]] -= c.twin_cosine[i];

    const float scale = LOG2_E / ((float)span * job->req->params.redundancy_tau);
    for (uint32_t i = 0; i < n; i++) c.sum[i] *= scale;
    const float inv = softmax2(c.sum, n);
    for (uint32_t i = 0; i < n; i++) c.sum[i] *= inv;
}

/* C.7. R = softmax(row sums / (b * tau)) of the keys' cosines inside each block. The diagonal is 0,
 * and in each column the last row above p is set to 0: of similar keys the newest is kept. */
static void score_lightning(const cn_score_job *job)
{
    redundancy(job, job->pools->layout.block_tokens);
}

/* C.5. The same over all pairs of the sequence, row sums divided by n. O(n^2) time, O(n) memory. */
static void score_flash(const cn_score_job *job) { redundancy(job, job->n); }

/* C.5, eq. 4. S = lambda * S - (1 - lambda) * R (convex) or S - lambda * R (subtract). Does not
 * apply without a redundancy score: S is then unchanged. */
static void score_combine(const cn_score_job *job)
{
    const float lambda = job->req->params.lambda;
    const bool convex = job->req->params.combine == CN_COMBINE_CONVEX;
    const float s_weight = convex ? lambda : 1, r_weight = convex ? 1 - lambda : lambda;
    for (uint32_t v = 0; v < job->n; v++)
        job->score[v] = s_weight * job->score[v] - r_weight * job->redundancy[v];
}

/* ---- the table ---- */

static bool uses_attention(const cn_compress_req *req)
{
    (void)req;
    return true;
}

static bool uses_global(const cn_compress_req *req) { return cn_rule_keeps_scores(&req->params); }

static bool uses_pooling(const cn_compress_req *req)
{
    return cn_rule_pools(&req->params, req->first_event);
}

static bool uses_follow(const cn_compress_req *req) { return cn_rule_follows(&req->params); }

static bool uses_scale(const cn_compress_req *req) { return cn_rule_scale(&req->params) > 0; }

static bool uses_lightning(const cn_compress_req *req)
{
    return cn_rule_redundancy(&req->params) == CN_REDUNDANCY_LIGHTNING;
}

static bool uses_flash(const cn_compress_req *req)
{
    return cn_rule_redundancy(&req->params) == CN_REDUNDANCY_FLASH;
}

static bool uses_combine(const cn_compress_req *req)
{
    return cn_rule_redundancy(&req->params) != CN_REDUNDANCY_NONE;
}

#define SCORE_ROW(KIND, name) {#name, uses_##name, score_##name},
static const cn_score table[CN_N_SCORES] = {CN_SCORES(SCORE_ROW)};

const cn_score *cn_score_table(size_t *n_rows)
{
    *n_rows = sizeof table / sizeof *table;
    return table;
}
