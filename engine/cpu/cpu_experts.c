/* cpu_experts.c - a layer with experts: which experts a token takes, their products, and the sum.
 * The products of an expert are gemm over its pairs, whose rows have the same bits in any batch. */
#include <math.h>

#include "engine/cpu/cpu_ops.h"

/* ---- route ---- */

/* out[E] = the score of each logit. */
static void score_logits(float *out, const float *logits, const cn_router *r)
{
    float most = -INFINITY, sum = 0;
    if (r->score == CN_ROUTE_SIGMOID) {
        for (uint32_t e = 0; e < r->n_experts; e++) out[e] = 1 / (1 + expf(-logits[e]));
        return;
    }
    for (uint32_t e = 0; e < r->n_experts; e++) most = fmaxf(most, logits[e]);
    for (uint32_t e = 0; e < r->n_experts; e++) sum += out[e] = expf(logits[e] - most);
    for (uint32_t e = 0; e < r->n_experts; e++) out[e] /= sum;
}

/* Writes the n_used experts with the highest rank, the best first; of equal ones the lower number.
 * A rank that is not a number is the lowest. */
static void choose_experts(uint32_t *chosen, const float *ranks, const cn_router *r)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < r->n_experts; e++) {
        uint32_t i = n;
        while (i > 0 && (ranks[e] > ranks[chosen[i - 1]] ||
                         (isnan(ranks[chosen[i - 1]]) && !isnan(ranks[e]))))
            i--;
        if (i == r->n_used) continue;
        if (n < r->n_used) n++;
        memmove(chosen + i + 1, chosen + i, (n - 1 - i) * sizeof *chosen);
        chosen[i] = e;
    }
}

/* The sum of the two best ranks of n experts, or the best one. */
static float rank_of_group(const float *ranks, uint32_t n, uint32_t group_best)
{
    float best = -INFINITY, second = -INFINITY;
    for (uint32_t e = 0; e < n; e++) {
        second = fmaxf(second, fminf(best, ranks[e]));
        best = fmaxf(best, ranks[e]);
    }
    return group_best > 1 ? best + second : best;
}

/* Gives the experts of groups that a token does not take the lowest rank. */
static void leave_out_groups(float *ranks, const cn_router *r)
{
    const uint32_t each = r->n_experts / r->n_groups;
    const cn_router groups = {.n_experts = r->n_groups, .n_used = r->n_used_groups};
    float of_group[CN_MAX_GROUPS];
    uint32_t chosen[CN_MAX_GROUPS];
    bool used[CN_MAX_GROUPS] = {false};
    for (uint32_t g = 0; g < r->n_groups; g++)
        of_group[g] = rank_of_group(ranks + (size_t)g * each, each, r->group_best);
    choose_experts(chosen, of_group, &groups);
    for (uint32_t i = 0; i < r->n_used_groups; i++) used[chosen[i]] = true;
    for (uint32_t e = 0; e < r->n_experts; e++)
        if (!used[e / each]) ranks[e] = NAN;
}

/* The experts of a token, and their weights. Softmax does not change the order of the logits, which
 * have no ties that rounding made. */
static void route_token(const cn_route_args *a, size_t t, uint32_t *chosen, float *weights)
{
    const cn_router *r = &a->router;
    const float *logits = a->logits + t * r->n_experts;
    float scores[CN_MAX_EXPERTS], ranks[CN_MAX_EXPERTS], sum = 0;
    score_logits(scores, logits, r);
    const bool by_logits = r->score == CN_ROUTE_SOFTMAX && !a->bias && r->group_best < 2;
    const float *base = by_logits ? logits : scores;
    for (uint32_t e = 0; e < r->n_experts; e++) ranks[e] = base[e] + (a->bias ? a->bias[e] : 0);
    if (r->n_groups > 1) leave_out_groups(ranks, r);
    choose_experts(chosen, ranks, r);
    for (uint32_t j = 0; j < r->n_used; j++) sum += weights[j] = scores[chosen[j]];
    for (uint32_t j = 0; j < r->n_used; j++)
        weights[j] = (r->normalized ? weights[j] / (sum + 1e-20F) : weights[j]) * r->scale;
}

/* Numbers the pairs of each expert in the order of their tokens. Until then pairs[t,j] is the
 * expert. */
static void number_pairs(const cn_route_args *a)
{
    const uint32_t n_experts = a->router.n_experts, k = a->router.n_used;
    const size_t n_pairs = (size_t)a->n_tokens * k;
    uint32_t next[CN_MAX_EXPERTS];
    memset(a->starts, 0, (n_experts + 1) * sizeof *a->starts);
    for (size_t i = 0; i < n_pairs; i++) a->starts[a->pairs[i] + 1]++;
    for (uint32_t e = 0; e < n_experts; e++) {
        next[e] = a->starts[e];
        a->starts[e + 1] += a->starts[e];
    }
    for (size_t i = 0; i < n_pairs; i++) {
        a->pairs[i] = next[a->pairs[i]]++;
        a->pair_tokens[a->pairs[i]] = (uint32_t)(i / k);
    }
}

cn_status cn_cpu_route(cn_stream *s, const cn_route_args *a)
{
    (void)s;
    const cn_router *r = &a->router;
    if (r->n_experts > CN_MAX_EXPERTS || r->n_used > CN_MAX_USED || r->n_used > r->n_experts)
        return cn_fail(CN_ERR_SHAPE, "route: %u of %u experts: expected at most %d of %d",
                       r->n_used, r->n_experts, CN_MAX_USED, CN_MAX_EXPERTS);
    CN_TRY(cn_router_check_groups(r));
    for (size_t t = 0; t < a->n_tokens; t++)
        route_token(a, t, a->pairs + t * r->n_used, a->weights + t * r->n_used);
    number_pairs(a);
    return CN_OK;
}

/* ---- the products ---- */

/* The n rows of expert e of a matrix of all experts, for inputs that are already rounded. */
static cn_matrix expert_matrix(const cn_matrix *all, uint32_t e, uint32_t n, uint32_t k)
{
    cn_matrix one = *all;
    const size_t row = (size_t)e * n;
    one.x = CN_X_PLAIN;
    if (all->form == CN_MATRIX_PLAIN) {
        one.data = (const float *)all->data + row * k;
        return one;
    }
    CN_ASSERT(n % all->scale_n == 0);
    one.data = (const uint8_t *)all->data + row * all->stride;
    one.scales = all->scales + row / all->scale_n * cn_ceil_div(k, all->scale_k);
    return one;
}

/* out[P,n] = x[P,k] times the matrix of each pair's expert. */
static cn_status multiply_pairs(cn_stream *s, float *out, const float *x, const cn_matrix *weight,
                                const uint32_t *starts, uint32_t n_experts, uint32_t n, uint32_t k)
{
    for (uint32_t e = 0; e < n_experts; e++) {
        const cn_gemm_args a = {.out = out + (size_t)starts[e] * n,
                                .x = x + (size_t)starts[e] * k,
                                .weight = expert_matrix(weight, e, n, k),
                                .n_tokens = starts[e + 1] - starts[e],
                                .n = n,
                                .k = k};
        CN_TRY(cn_cpu_gemm_run(s, &a));
    }
    return CN_OK;
}

cn_status cn_cpu_expert_gate_up(cn_stream *s, const cn_expert_gate_up_args *a)
{
    const uint32_t n_pairs = a->n_tokens * a->n_used, n = 2 * a->intermediate;
    const float *x = cn_cpu_gemm_round(s, &a->weight, a->x, a->rounded, a->n_tokens, a->k);
    float *gathered = a->gathered;
    for (size_t p = 0; p < n_pairs; p++)
        memcpy(gathered + p * a->k, x + (size_t)a->pair_tokens[p] * a->k,
               a->k * sizeof *gathered);
    CN_TRY(multiply_pairs(s, a->gate_up, gathered, &a->weight, a->starts, a->n_experts, n, a->k));
    const cn_silu_mul_args silu = {
        .out = a->out, .gate_up = a->gate_up, .n_tokens = n_pairs, .intermediate = a->intermediate};
    return cn_cpu_silu_mul(s, &silu);
}

cn_status cn_cpu_expert_down(cn_stream *s, const cn_expert_down_args *a)
{
    const float *x = cn_cpu_gemm_round(s, &a->weight, a->x, a->rounded, a->n_tokens * a->n_used,
                                       a->intermediate);
    return multiply_pairs(s, a->out, x, &a->weight, a->starts, a->n_experts, a->n,
                          a->intermediate);
}

cn_status cn_cpu_expert_sum(cn_stream *s, const cn_expert_sum_args *a)
{
    (void)s;
    for (size_t t = 0; t < a->n_tokens; t++) {
        float *out = (float *)a->out + t * a->n;
        if (!a->adds) memset(out, 0, a->n * sizeof *out);
        for (uint32_t j = 0; j < a->n_used; j++) {
            const float *x = (const float *)a->x + (size_t)a->pairs[t * a->n_used + j] * a->n;
            const float weight = a->weights[t * a->n_used + j];
            for (uint32_t i = 0; i < a->n; i++) out[i] += weight * x[i];
        }
    }
    return CN_OK;
}
