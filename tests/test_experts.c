/* test_experts.c - the ops of a layer with experts on the CPU, compared with sums that are written
 * here: which experts a token takes, their products, the sum; a token's bits in any batch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/ops.h"
#include "paged/kv_fp8.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

/* A layer and a batch of T tokens. */
typedef struct layer {
    cn_router router;
    uint32_t n_tokens, hidden, inter;
    float *x, *logits, *bias, *gate_up, *down; /* bias may be NULL */
    uint32_t *starts, *pair_tokens, *pairs;
    float *weights, *gathered, *pair_gate_up, *pair_act, *out;
    /* FP8: their values are in gate_up and down. data is NULL: the weights are plain. */
    cn_matrix fp8_gate_up, fp8_down;
    float *rounded;
} layer;

static float *new_random(test_rng *r, size_t n)
{
    float *p = cn_calloc(n, sizeof *p);
    test_rng_fill(r, p, n);
    return p;
}

static layer new_layer(test_rng *r, cn_router router, uint32_t n_tokens, uint32_t hidden,
                       uint32_t inter, bool has_bias)
{
    const size_t n_pairs = (size_t)n_tokens * router.n_used, n_experts = router.n_experts;
    return (layer){.router = router,
                   .n_tokens = n_tokens,
                   .hidden = hidden,
                   .inter = inter,
                   .x = new_random(r, (size_t)n_tokens * hidden),
                   .logits = new_random(r, n_tokens * n_experts),
                   .bias = has_bias ? new_random(r, n_experts) : NULL,
                   .gate_up = new_random(r, n_experts * 2 * inter * hidden),
                   .down = new_random(r, n_experts * hidden * inter),
                   .starts = cn_calloc(n_experts + 1, sizeof(uint32_t)),
                   .pair_tokens = cn_calloc(n_pairs, sizeof(uint32_t)),
                   .pairs = cn_calloc(n_pairs, sizeof(uint32_t)),
                   .weights = cn_calloc(n_pairs, sizeof(float)),
                   .gathered = cn_calloc(n_pairs * hidden, sizeof(float)),
                   .pair_gate_up = cn_calloc(n_pairs * 2 * inter, sizeof(float)),
                   .pair_act = cn_calloc(n_pairs * inter, sizeof(float)),
                   .out = new_random(r, (size_t)n_tokens * hidden)};
}

static void free_layer(layer *l)
{
    void *const all[] = {
        l->x,       l->logits,   l->bias,        l->gate_up,      l->down,     l->starts, l->pairs,
        l->weights, l->gathered, l->pair_tokens, l->pair_gate_up, l->pair_act, l->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cn_free(all[i]);
}

static void run_route(cn_backend *be, const layer *l)
{
    const cn_route_args a = {.starts = l->starts,
                             .pair_tokens = l->pair_tokens,
                             .pairs = l->pairs,
                             .weights = l->weights,
                             .logits = l->logits,
                             .bias = l->bias,
                             .router = l->router,
                             .n_tokens = l->n_tokens};
    assert_int_equal(be->route(backend_rig_stream(be), &a), CN_OK);
}

static void run_products(cn_backend *be, const layer *l, bool adds)
{
    cn_stream *s = backend_rig_stream(be);
    const cn_expert_gate_up_args gate_up = {.out = l->pair_act,
                                            .x = l->x,
                                            .weight = l->rounded ? l->fp8_gate_up
                                                                 : (cn_matrix){.data = l->gate_up},
                                            .rounded = l->rounded,
                                            .starts = l->starts,
                                            .pair_tokens = l->pair_tokens,
                                            .gathered = l->gathered,
                                            .gate_up = l->pair_gate_up,
                                            .n_tokens = l->n_tokens,
                                            .n_experts = l->router.n_experts,
                                            .n_used = l->router.n_used,
                                            .intermediate = l->inter,
                                            .k = l->hidden};
    const cn_expert_down_args down = {.out = l->gathered,
                                      .x = l->pair_act,
                                      .weight = l->rounded ? l->fp8_down
                                                           : (cn_matrix){.data = l->down},
                                      .rounded = l->rounded,
                                      .starts = l->starts,
                                      .n_tokens = l->n_tokens,
                                      .n_experts = l->router.n_experts,
                                      .n_used = l->router.n_used,
                                      .n = l->hidden,
                                      .intermediate = l->inter};
    const cn_expert_sum_args sum = {.out = l->out,
                                    .x = l->gathered,
                                    .pairs = l->pairs,
                                    .weights = l->weights,
                                    .n_tokens = l->n_tokens,
                                    .n_used = l->router.n_used,
                                    .n = l->hidden,
                                    .adds = adds};
    assert_int_equal(be->expert_gate_up(s, &gate_up), CN_OK);
    assert_int_equal(be->expert_down(s, &down), CN_OK);
    assert_int_equal(be->expert_sum(s, &sum), CN_OK);
}

/* ---- the expected values ---- */

/* The score of expert e for token t. */
static double score_of(const layer *l, uint32_t t, uint32_t e)
{
    const float *logits = l->logits + (size_t)t * l->router.n_experts;
    double sum = 0;
    if (l->router.score == CN_ROUTE_SIGMOID) return 1 / (1 + exp(-(double)logits[e]));
    for (uint32_t i = 0; i < l->router.n_experts; i++) sum += exp((double)logits[i]);
    return exp((double)logits[e]) / sum;
}

/* Lowers the ranks in groups that a token does not use: those with n_used_groups better ones. */
static void drop_groups(const cn_router *r, double *rank)
{
    const uint32_t n = r->n_groups, each = r->n_experts / n;
    double of[CN_MAX_GROUPS];
    for (uint32_t g = 0; g < n; g++) {
        of[g] = -INFINITY;
        for (uint32_t i = 0; i < each; i++)
            for (uint32_t j = 0; j < each; j++) {
                const double x = rank[g * each + i], y = rank[g * each + j];
                if (r->group_best == 1) of[g] = fmax(of[g], x);
                else if (i != j) of[g] = fmax(of[g], x + y);
            }
    }
    for (uint32_t g = 0; g < n; g++) {
        uint32_t n_better = 0;
        for (uint32_t o = 0; o < n; o++) n_better += of[o] > of[g] || (of[o] == of[g] && o < g);
        for (uint32_t i = 0; n_better >= r->n_used_groups && i < each; i++)
            rank[g * each + i] = -1e9 - g * each - i;
    }
}

/* The experts of a token, the best first, found by asking for each how many are better. */
static void expected_experts(const layer *l, uint32_t t, uint32_t *chosen)
{
    const uint32_t n = l->router.n_experts;
    double rank[CN_MAX_EXPERTS];
    for (uint32_t e = 0; e < n; e++) rank[e] = score_of(l, t, e) + (l->bias ? l->bias[e] : 0);
    if (l->router.n_groups > 1) drop_groups(&l->router, rank);
    for (uint32_t e = 0; e < n; e++) {
        uint32_t n_better = 0;
        for (uint32_t o = 0; o < n; o++)
            n_better += rank[o] > rank[e] || (rank[o] == rank[e] && o < e);
        if (n_better < l->router.n_used) chosen[n_better] = e;
    }
}

/* The expert of a pair. */
static uint32_t expert_of(const layer *l, uint32_t pair)
{
    uint32_t e = 0;
    while (l->starts[e + 1] <= pair) e++;
    return e;
}

static void check_route(const layer *l)
{
    const uint32_t k = l->router.n_used, n_pairs = l->n_tokens * k;
    bool *met = cn_calloc(n_pairs, sizeof *met);
    assert_int_equal(l->starts[0], 0);
    assert_int_equal(l->starts[l->router.n_experts], n_pairs);
    for (uint32_t t = 0; t < l->n_tokens; t++) {
        uint32_t chosen[CN_MAX_USED] = {0};
        double sum = 0;
        expected_experts(l, t, chosen);
        for (uint32_t j = 0; j < k; j++) sum += score_of(l, t, chosen[j]);
        for (uint32_t j = 0; j < k; j++) {
            const uint32_t pair = l->pairs[t * k + j];
            assert_true(pair < n_pairs && !met[pair]);
            met[pair] = true;
            assert_int_equal(expert_of(l, pair), chosen[j]);
            assert_int_equal(l->pair_tokens[pair], t);
            const double score = score_of(l, t, chosen[j]);
            const double want = (l->router.normalized ? score / sum : score) * l->router.scale;
            assert_true(fabs(l->weights[t * k + j] - want) < 1e-6 * fmax(1, want));
        }
    }
    for (uint32_t p = 1; p < n_pairs; p++) /* the tokens of an expert are in order */
        assert_true(expert_of(l, p) > expert_of(l, p - 1) ||
                    l->pair_tokens[p] > l->pair_tokens[p - 1]);
    cn_free(met);
}

/* out[i] of expert e for token t. */
static void expected_expert(const layer *l, uint32_t t, uint32_t e, double *out)
{
    double act[256];
    const float *x = l->x + (size_t)t * l->hidden;
    const float *gate = l->gate_up + (size_t)e * 2 * l->inter * l->hidden;
    const float *up = gate + (size_t)l->inter * l->hidden;
    for (uint32_t i = 0; i < l->inter; i++) {
        double g = 0, u = 0;
        for (uint32_t c = 0; c < l->hidden; c++) {
            g += (double)x[c] * gate[(size_t)i * l->hidden + c];
            u += (double)x[c] * up[(size_t)i * l->hidden + c];
        }
        act[i] = g / (1 + exp(-g)) * u;
    }
    for (uint32_t i = 0; i < l->hidden; i++) {
        out[i] = 0;
        for (uint32_t c = 0; c < l->inter; c++)
            out[i] += act[c] * l->down[((size_t)e * l->hidden + i) * l->inter + c];
    }
}

/* `before`: the contents of out that the sum starts from; NULL: zeros. */
static void check_products(const layer *l, const float *before)
{
    const uint32_t k = l->router.n_used;
    double each[512], want[512];
    for (uint32_t t = 0; t < l->n_tokens; t++) {
        uint32_t chosen[CN_MAX_USED] = {0};
        double size = 1;
        expected_experts(l, t, chosen);
        for (uint32_t i = 0; i < l->hidden; i++)
            want[i] = before ? before[(size_t)t * l->hidden + i] : 0;
        for (uint32_t j = 0; j < k; j++) {
            expected_expert(l, t, chosen[j], each);
            for (uint32_t i = 0; i < l->hidden; i++) want[i] += l->weights[t * k + j] * each[i];
        }
        for (uint32_t i = 0; i < l->hidden; i++) size = fmax(size, fabs(want[i]));
        for (uint32_t i = 0; i < l->hidden; i++)
            if (!(fabs(l->out[(size_t)t * l->hidden + i] - want[i]) < 1e-5 * size))
                fail_msg("token %u, %u: %g, not %g", t, i, l->out[(size_t)t * l->hidden + i],
                         want[i]);
    }
}

static void check_layer(cn_backend *be, layer *l)
{
    const size_t bytes = (size_t)l->n_tokens * l->hidden * sizeof(float);
    float *before = cn_calloc(bytes, 1);
    run_route(be, l);
    check_route(l);
    run_products(be, l, false);
    check_products(l, NULL);
    memcpy(before, l->out, bytes);
    run_products(be, l, true);
    check_products(l, before);
    cn_free(before);
}

/* ---- the tests ---- */

static void ops_agree_with_plain_sums(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 24; seed++) {
        test_rng r = {seed};
        const uint32_t n_experts = 1 + test_rng_below(&r, 12);
        const cn_router router = {.n_experts = n_experts,
                                  .n_used = 1 + test_rng_below(&r, n_experts),
                                  .score = (cn_route_score)(seed % CN_N_ROUTE_SCORES),
                                  .normalized = seed / 2 % 2,
                                  .scale = seed / 4 % 2 ? 2.5F : 1};
        /* Sometimes one token, mostly fewer tokens than a tile of gemm has rows. */
        layer l = new_layer(&r, router, seed % 5 ? 1 + test_rng_below(&r, 40) : 1,
                            1 + test_rng_below(&r, 70), 1 + test_rng_below(&r, 50), seed / 8 % 2);
        check_layer(be, &l);
        free_layer(&l);
    }
    backend_rig_close(be);
}

/* 150 tokens are more than a tile, and all go to one expert; the others have none. */
static void all_tokens_may_take_one_expert(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint32_t e = 0; e < 3; e++) {
        test_rng r = {e};
        const cn_router router = {.n_experts = 3, .n_used = 1, .normalized = true, .scale = 1};
        layer l = new_layer(&r, router, 150, 33, 17, false);
        for (uint32_t t = 0; t < 150; t++) l.logits[t * 3 + e] = 9;
        check_layer(be, &l);
        assert_int_equal(l.starts[e + 1] - l.starts[e], 150);
        free_layer(&l);
    }
    backend_rig_close(be);
}

static void of_equal_experts_the_lower_one_is_taken(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    for (int score = 0; score < CN_N_ROUTE_SCORES; score++) {
        test_rng r = {5};
        const cn_router router = {
            .n_experts = 6, .n_used = 3, .score = (cn_route_score)score, .scale = 1};
        layer l = new_layer(&r, router, 2, 4, 4, false);
        const float logits[2][6] = {{1, 1, 1, 1, 1, 1}, {0, 2, 1, 2, 1, 1}};
        const uint32_t want[2][3] = {{0, 1, 2}, {1, 3, 2}};
        memcpy(l.logits, logits, sizeof logits);
        run_route(be, &l);
        for (uint32_t t = 0; t < 2; t++)
            for (uint32_t j = 0; j < 3; j++)
                assert_int_equal(expert_of(&l, l.pairs[t * 3 + j]), want[t][j]);
        free_layer(&l);
    }
    backend_rig_close(be);
}

static void experts_of_groups_are_taken(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    static const struct {
        uint32_t n_experts, n_used, n_groups, n_used_groups;
    } shapes[] = {{8, 3, 4, 2}, {16, 4, 2, 1}, {256, 8, 8, 4}, {12, 2, 6, 5}, {64, 6, 4, 4}};
    for (uint32_t i = 0; i < 4 * sizeof shapes / sizeof *shapes; i++) {
        test_rng r = {i};
        const cn_router router = {.n_experts = shapes[i / 4].n_experts,
                                  .n_used = shapes[i / 4].n_used,
                                  .score = i & 1 ? CN_ROUTE_SIGMOID : CN_ROUTE_SOFTMAX,
                                  .normalized = i & 1,
                                  .scale = 2.5F,
                                  .n_groups = shapes[i / 4].n_groups,
                                  .n_used_groups = shapes[i / 4].n_used_groups,
                                  .group_best = 1 + (i & 2) / 2};
        layer l = new_layer(&r, router, 40, 4, 4, i & 1);
        run_route(be, &l);
        check_route(&l);
        free_layer(&l);
    }
    backend_rig_close(be);
}

/* Softmax rounds large differences away: expert 2 must win although the probabilities are equal. */
static void rounding_makes_no_ties(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    test_rng r = {6};
    const cn_router router = {.n_experts = 4, .n_used = 2, .scale = 1};
    layer l = new_layer(&r, router, 1, 4, 4, false);
    const float logits[4] = {200, -101, -100, -102};
    memcpy(l.logits, logits, sizeof logits);
    run_route(be, &l);
    assert_int_equal(expert_of(&l, l.pairs[0]), 0);
    assert_int_equal(expert_of(&l, l.pairs[1]), 2);
    free_layer(&l);
    backend_rig_close(be);
}

/* A token whose logits are not numbers takes different experts, and harms no other token. */
static void logits_that_are_not_numbers_are_survived(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    for (uint32_t n_nan = 1; n_nan <= 5; n_nan++) {
        test_rng r = {n_nan};
        const cn_router router = {.n_experts = 5, .n_used = 3, .normalized = true, .scale = 1};
        layer l = new_layer(&r, router, 2, 4, 4, false);
        for (uint32_t e = 0; e < n_nan; e++) l.logits[5 + e] = NAN;
        run_route(be, &l);
        uint32_t taken = 0;
        for (uint32_t j = 0; j < 3; j++) taken |= 1U << expert_of(&l, l.pairs[3 + j]);
        assert_int_equal(__builtin_popcount(taken), 3);
        uint32_t chosen[CN_MAX_USED] = {0};
        expected_experts(&l, 0, chosen);
        for (uint32_t j = 0; j < 3; j++) assert_int_equal(expert_of(&l, l.pairs[j]), chosen[j]);
        free_layer(&l);
    }
    backend_rig_close(be);
}

/* ---- FP8 ---- */

/* Draws e4m3 values and scales for the rows of all experts. The values are in plain[rows, k]. */
static cn_matrix draw_fp8(test_rng *r, float *plain, uint32_t rows, uint32_t k, uint32_t scale_n,
                          cn_x_form x)
{
    const uint32_t scale_k = x == CN_X_ROWS ? k : CN_FP8_COLUMNS;
    const size_t scale_cols = cn_ceil_div(k, scale_k);
    const uint32_t stride = (uint32_t)cn_round_up(k, CN_FP8_COLUMNS);
    uint8_t *codes = cn_calloc(rows, stride);
    float *scales = cn_calloc(rows / scale_n * scale_cols, sizeof *scales);
    for (size_t i = 0; i < rows / scale_n * scale_cols; i++)
        scales[i] = 0.002F + 0.001F * test_rng_uniform(r);
    for (size_t n = 0; n < rows; n++)
        for (uint32_t i = 0; i < k; i++) {
            uint8_t *code = &codes[n * stride + i];
            *code = (uint8_t)test_rng_below(r, 256);
            if ((*code & 0x7f) == 0x7f) *code ^= 1;
            plain[n * k + i] =
                cn_fp8_value(*code) * scales[n / scale_n * scale_cols + i / scale_k];
        }
    return (cn_matrix){.data = codes,
                       .form = CN_MATRIX_FP8,
                       .x = x,
                       .stride = stride,
                       .scales = scales,
                       .scale_n = scale_n,
                       .scale_k = scale_k};
}

static uint32_t power_of_two_in(uint32_t n) { return cn_min_u32(n & (0 - n), 128); }

static void make_fp8_layer(layer *l, test_rng *r, cn_x_form x)
{
    const uint32_t n = l->router.n_experts, i = l->inter, h = l->hidden;
    const bool by_row = x == CN_X_ROWS;
    l->fp8_gate_up =
        draw_fp8(r, l->gate_up, n * 2 * i, h, by_row ? 1 : power_of_two_in(i), x);
    l->fp8_down = draw_fp8(r, l->down, n * h, i, by_row ? 1 : power_of_two_in(h), x);
    l->rounded = cn_calloc((size_t)l->n_tokens * (l->router.n_used + 1) * (h + i), sizeof(float));
}

static void free_fp8_layer(layer *l)
{
    const void *const all[] = {l->fp8_gate_up.data, l->fp8_gate_up.scales, l->fp8_down.data,
                               l->fp8_down.scales, l->rounded};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cn_free((void *)(uintptr_t)all[i]);
    free_layer(l);
}

/* x[k] as the product reads it: the nearest value of e4m3 times the scale, found by search. */
static void rounded_row(double *out, const float *x, uint32_t k, cn_x_form form)
{
    const uint32_t span = form == CN_X_ROWS ? k : CN_FP8_COLUMNS;
    for (uint32_t i = 0; i < k; i++) {
        float most = 0;
        out[i] = form == CN_X_PLAIN ? x[i] : 0;
        if (form == CN_X_PLAIN) continue;
        for (uint32_t j = i / span * span; j < k && j / span == i / span; j++)
            most = fmaxf(most, fabsf(x[j]));
        const float scale = most / 448;
        for (uint32_t code = 0; code < 256 && scale > 0; code++) {
            const double value = (double)cn_fp8_value((uint8_t)code) * scale;
            if (fabs(value - x[i]) < fabs(out[i] - x[i])) out[i] = value;
        }
    }
}

/* The sum of x[k] * w[k], and the sum of the sizes of its terms. */
static double sum_of(const double *x, const float *w, uint32_t k, double *size)
{
    double sum = 0;
    *size = 1e-9;
    for (uint32_t i = 0; i < k; i++) {
        sum += x[i] * w[i];
        *size += fabs(x[i] * w[i]);
    }
    return sum;
}

/* Compares both products of every pair, each with its own input. */
static void check_fp8_pairs(const layer *l)
{
    const uint32_t h = l->hidden, inter = l->inter;
    double x[512], a, b;
    for (uint32_t p = 0; p < l->n_tokens * l->router.n_used; p++) {
        const size_t e = expert_of(l, p);
        const float *gate = l->gate_up + e * 2 * inter * h, *down = l->down + e * h * inter;
        rounded_row(x, l->x + (size_t)l->pair_tokens[p] * h, h, l->fp8_gate_up.x);
        for (uint32_t i = 0; i < inter; i++) {
            const double g = sum_of(x, gate + (size_t)i * h, h, &a);
            const double u = sum_of(x, gate + (size_t)(inter + i) * h, h, &b);
            const double want = g / (1 + exp(-g)) * u, got = l->pair_act[(size_t)p * inter + i];
            if (!(fabs(got - want) < 1e-5 * (1 + a) * (1 + b)))
                fail_msg("pair %u, row %u of gate and up: %g, not %g", p, i, got, want);
        }
        rounded_row(x, l->pair_act + (size_t)p * inter, inter, l->fp8_down.x);
        for (uint32_t i = 0; i < h; i++) {
            const double want = sum_of(x, down + (size_t)i * inter, inter, &a);
            const double got = l->gathered[(size_t)p * h + i];
            if (!(fabs(got - want) < 1e-5 * a))
                fail_msg("pair %u, row %u of down: %g, not %g", p, i, got, want);
        }
    }
}

/* Experts without a token and of one token, partial blocks, blocks that are cut by the rows of
 * gate and up, and more tokens than a tile has rows. */
static void fp8_products_are_sums_of_dequantised_values(void **state)
{
    (void)state;
    static const uint32_t sizes[][4] = {/* tokens, experts, hidden, intermediate */
                                        {1, 4, 144, 80}, {9, 3, 200, 160}, {3, 16, 33, 17},
                                        {90, 2, 64, 128}, {5, 1, 256, 96}};
    static const cn_x_form forms[] = {CN_X_PLAIN, CN_X_BLOCKS, CN_X_ROWS};
    cn_backend *be = backend_rig_open(2);
    for (uint32_t i = 0; i < 3 * sizeof sizes / sizeof *sizes; i++) {
        const uint32_t *g = sizes[i / 3];
        test_rng r = {i};
        const cn_router router = {
            .n_experts = g[1], .n_used = cn_min_u32(2, g[1]), .normalized = true, .scale = 1};
        layer l = new_layer(&r, router, g[0], g[2], g[3], false);
        make_fp8_layer(&l, &r, forms[i % 3]);
        run_route(be, &l);
        run_products(be, &l, false);
        check_fp8_pairs(&l);
        free_fp8_layer(&l);
    }
    backend_rig_close(be);
}

/* A token alone has the bits that it has in a batch. */
static void a_token_has_the_same_bits_in_every_batch(void **state)
{
    (void)state;
    enum { TOKENS = 140, HIDDEN = 96, USED = 2, EXPERTS = 4 };
    cn_backend *be = backend_rig_open(3);
    test_rng r = {7};
    const cn_router router = {.n_experts = EXPERTS, .n_used = USED, .normalized = true, .scale = 1};
    layer l = new_layer(&r, router, TOKENS, HIDDEN, 40, false);
    float *all = cn_calloc((size_t)TOKENS * HIDDEN, sizeof *all);
    run_route(be, &l);
    run_products(be, &l, false);
    memcpy(all, l.out, (size_t)TOKENS * HIDDEN * sizeof *all);
    layer part = l;
    for (uint32_t first = 0, n = 1; first < TOKENS; first += n, n = n % 19 + 1) {
        part.n_tokens = cn_min_u32(n, TOKENS - first);
        part.x = l.x + (size_t)first * HIDDEN;
        part.logits = l.logits + (size_t)first * EXPERTS;
        run_route(be, &part);
        run_products(be, &part, false);
        assert_memory_equal(part.out, all + (size_t)first * HIDDEN,
                            (size_t)part.n_tokens * HIDDEN * sizeof *all);
    }
    cn_free(all);
    free_layer(&l);
    backend_rig_close(be);
}

static void too_many_experts_are_refused(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    cn_route_args a = {.router = {.n_experts = CN_MAX_EXPERTS + 1, .n_used = 1}};
    assert_int_equal(be->route(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    a.router = (cn_router){.n_experts = 2, .n_used = 3};
    assert_int_equal(be->route(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "3 of 2 experts"));
    a.router = (cn_router){.n_experts = 8, .n_used = 3, .n_groups = 4, .n_used_groups = 1};
    assert_int_equal(be->route(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "3 of 8 experts in 1 of 4 groups"));
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ops_agree_with_plain_sums),
        cmocka_unit_test(all_tokens_may_take_one_expert),
        cmocka_unit_test(of_equal_experts_the_lower_one_is_taken),
        cmocka_unit_test(experts_of_groups_are_taken),
        cmocka_unit_test(rounding_makes_no_ties),
        cmocka_unit_test(logits_that_are_not_numbers_are_survived),
        cmocka_unit_test(fp8_products_are_sums_of_dequantised_values),
        cmocka_unit_test(a_token_has_the_same_bits_in_every_batch),
        cmocka_unit_test(too_many_experts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
