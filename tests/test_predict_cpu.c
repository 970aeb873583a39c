/* test_predict_cpu.c - predict on the CPU compared with one regression per window, solved by
 * Gaussian elimination in double, with queries rotated in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cpu/cpu_ops.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

enum { MAX_SEQS = 6, MAX_D = 256, LAYERS = 3, FIRST_LAYER = 1, N_LAYERS = 2, N_POSITIONS = 200 };

static const double EPS = 0.01, ATTENTION_FACTOR = 1.25;

typedef struct ring_case {
    uint32_t d, n_fixed, n_heads, n_seqs, n_slots, rows;
    uint32_t slots[MAX_SEQS], newest[MAX_SEQS], modulus[MAX_SEQS], n_window[MAX_SEQS];
    uint8_t weights[MAX_SEQS], rotate[MAX_SEQS];
    size_t out_stride;
    double *bare; /* [LAYERS, n_slots, N_POSITIONS, n_heads, d] queries before RoPE */
    float *ring, *cos, *sin, *out;
} ring_case;

static double angle(const ring_case *c, uint32_t position, uint32_t pair)
{
    return position * pow(10000, -2.0 * pair / (c->d - c->n_fixed));
}

/* out = the query at `bare` rotated to a position, times the attention factor. Its first n_fixed
 * elements stay as they are. */
static void rotate_to(const ring_case *c, const double *bare, uint32_t position, double *out)
{
    const uint32_t half = (c->d - c->n_fixed) / 2;
    memcpy(out, bare, c->n_fixed * sizeof *out);
    out += c->n_fixed;
    bare += c->n_fixed;
    for (uint32_t i = 0; i < half; i++) {
        const double x = angle(c, position, i);
        out[i] = ATTENTION_FACTOR * (bare[i] * cos(x) - bare[half + i] * sin(x));
        out[half + i] = ATTENTION_FACTOR * (bare[half + i] * cos(x) + bare[i] * sin(x));
    }
}

static const double *bare_row(const ring_case *c, uint32_t layer, uint32_t slot, uint32_t position,
                              uint32_t head)
{
    return c->bare +
           ((((size_t)layer * c->n_slots + slot) * N_POSITIONS + position) * c->n_heads + head) *
               c->d;
}

/* Queries drift: each is mostly the one before. */
static void draw_queries(ring_case *c, test_rng *r)
{
    const size_t row = (size_t)c->n_heads * c->d;
    const size_t n = (size_t)LAYERS * c->n_slots * N_POSITIONS * row;
    c->bare = cn_calloc(n, sizeof *c->bare);
    for (size_t i = 0; i < n; i++) {
        const double fresh = (double)test_rng_uniform(r);
        c->bare[i] = i % (N_POSITIONS * row) < row ? fresh : 0.7 * c->bare[i - row] + 0.5 * fresh;
    }
}

/* Writes the queries of positions 0 to newest to the ring, as rope_store does. */
static void fill_ring(ring_case *c, uint32_t s)
{
    double rotated[MAX_D];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t p = 0; p <= c->newest[s]; p++)
            for (uint32_t h = 0; h < c->n_heads; h++) {
                float *q = c->ring + cn_query_row(c->n_slots, c->rows, c->n_heads, c->d, layer,
                                                  c->slots[s], p % c->modulus[s], h);
                rotate_to(c, bare_row(c, layer, c->slots[s], p, h), p, rotated);
                for (uint32_t i = 0; i < c->d; i++) q[i] = (float)rotated[i];
            }
}

static ring_case draw_case(uint64_t seed)
{
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 16, 256, 40, 192};
    static const uint32_t fixed[] = {0, 0, 0, 0, 0, 0, 192, 24, 128};
    test_rng r = {seed + 31};
    ring_case c = {.d = dims[seed % 9],
                   .n_fixed = fixed[seed % 9],
                   .n_heads = 1 + test_rng_below(&r, 5),
                   .n_slots = MAX_SEQS};
    const uint32_t half = (c.d - c.n_fixed) / 2;
    c.n_seqs = 1 + test_rng_below(&r, MAX_SEQS);
    c.rows = 2 + test_rng_below(&r, seed % 3 == 0 ? 64 : 17);
    const size_t row = (size_t)c.n_heads * c.d;
    c.ring = cn_calloc((size_t)LAYERS * c.n_slots * c.rows * row, sizeof *c.ring);
    for (size_t i = 0; i < (size_t)LAYERS * c.n_slots * c.rows * row; i++) c.ring[i] = NAN;
    c.cos = cn_calloc((size_t)N_POSITIONS * half, sizeof *c.cos);
    c.sin = cn_calloc((size_t)N_POSITIONS * half, sizeof *c.sin);
    for (uint32_t p = 0; p < N_POSITIONS; p++)
        for (uint32_t i = 0; i < half; i++) {
            c.cos[p * half + i] = (float)(ATTENTION_FACTOR * cos(angle(&c, p, i)));
            c.sin[p * half + i] = (float)(ATTENTION_FACTOR * sin(angle(&c, p, i)));
        }
    draw_queries(&c, &r);
    for (uint32_t s = 0; s < c.n_seqs; s++) {
        c.slots[s] = test_rng_below(&r, 8) ? MAX_SEQS - 1 - s : CN_NO_SLOT;
        c.newest[s] = test_rng_below(&r, test_rng_below(&r, 3) ? N_POSITIONS : 6);
        c.modulus[s] = 2 + test_rng_below(&r, c.rows - 1);
        c.n_window[s] = 1 + test_rng_below(&r, c.modulus[s] - 1);
        c.weights[s] = (uint8_t)test_rng_below(&r, 2);
        c.rotate[s] = (uint8_t)test_rng_below(&r, 2);
        if (c.slots[s] != CN_NO_SLOT) fill_ring(&c, s);
    }
    c.out_stride = N_LAYERS * row + 3;
    c.out = cn_calloc(c.n_seqs * c.out_stride, sizeof *c.out);
    for (size_t i = 0; i < c.n_seqs * c.out_stride; i++) c.out[i] = -7;
    return c;
}

static void free_case(ring_case *c)
{
    cn_free(c->bare);
    cn_free(c->ring);
    cn_free(c->cos);
    cn_free(c->sin);
    cn_free(c->out);
}

static void run(cn_backend *be, const ring_case *c)
{
    const cn_predict_args a = {.ring = c->ring,
                               .n_query_slots = c->n_slots,
                               .rows = c->rows,
                               .n_heads = c->n_heads,
                               .head_dim = c->d,
                               .n_fixed = c->n_fixed,
                               .slots = c->slots,
                               .newest = c->newest,
                               .modulus = c->modulus,
                               .n_window = c->n_window,
                               .weights = c->weights,
                               .rotate = c->rotate,
                               .n_seqs = c->n_seqs,
                               .first_layer = FIRST_LAYER,
                               .n_layers = N_LAYERS,
                               .eps = (float)EPS,
                               .cos = c->cos,
                               .sin = c->sin,
                               .out = c->out,
                               .out_stride = c->out_stride};
    assert_int_equal(be->predict(backend_rig_stream(be), &a), CN_OK);
}

/* ---- the reference ---- */

static double dot(const double *a, const double *b, uint32_t d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d; i++) sum += a[i] * b[i];
    return sum;
}

/* x = G^-1 b by Gaussian elimination with pivots; destroys g[k, k] and b. */
static void solve(double *g, double *b, uint32_t k, double *x)
{
    for (uint32_t i = 0; i < k; i++) {
        uint32_t best = i;
        for (uint32_t j = i + 1; j < k; j++)
            if (fabs(g[j * k + i]) > fabs(g[best * k + i])) best = j;
        for (uint32_t c = 0; c <= k; c++) {
            double *u = c < k ? &g[i * k + c] : &b[i], *v = c < k ? &g[best * k + c] : &b[best];
            const double was = *u;
            *u = *v;
            *v = was;
        }
        for (uint32_t j = i + 1; j < k; j++) {
            const double f = g[j * k + i] / g[i * k + i];
            for (uint32_t c = i; c < k; c++) g[j * k + c] -= f * g[i * k + c];
            b[j] -= f * b[i];
        }
    }
    for (uint32_t i = k; i-- > 0;) {
        x[i] = b[i];
        for (uint32_t c = i + 1; c < k; c++) x[i] -= g[i * k + c] * x[c];
        x[i] /= g[i * k + i];
    }
}

/* w[k] = the weights of the window of k of the queries q[n + 1][MAX_D], newest first. */
static void window_weights(double (*q)[MAX_D], uint32_t d, uint32_t n, uint32_t k,
                           cn_select_weights kind, double *w)
{
    double g[CN_MAX_SELECT_WINDOW * CN_MAX_SELECT_WINDOW], b[CN_MAX_SELECT_WINDOW], ridge = 0;
    for (uint32_t i = 1; i <= n; i++) ridge += EPS * dot(q[i], q[i], d) / n;
    for (uint32_t i = 0; i < k; i++) {
        for (uint32_t j = 0; j < k; j++)
            g[i * k + j] = dot(q[i + 1], q[j + 1], d) + (i == j ? ridge : 0);
        b[i] = dot(q[i + 1], q[0], d);
    }
    solve(g, b, k, w);
    if (kind == CN_WEIGHTS_RAW) return;
    double sum = 0;
    for (uint32_t i = 0; i < k; i++) sum += exp(w[i]);
    for (uint32_t i = 0; i < k; i++) w[i] = exp(w[i]) / sum;
}

/* out = the query of `age` positions before the newest, as the op uses it. */
static void newest_query(const ring_case *c, uint32_t s, uint32_t layer, uint32_t head,
                         uint32_t age, double *out)
{
    const uint32_t p = c->newest[s] - age;
    rotate_to(c, bare_row(c, layer, c->slots[s], p, head), c->rotate[s] ? c->newest[s] + 1 : p,
              out);
}

static void predict_head(const ring_case *c, uint32_t s, uint32_t layer, uint32_t head, double *out)
{
    static double q[CN_MAX_SELECT_WINDOW + 1][MAX_D];
    double w[CN_MAX_SELECT_WINDOW];
    const uint32_t n = cn_min_u32(c->n_window[s], c->newest[s]);
    for (uint32_t i = 0; i <= n; i++) newest_query(c, s, layer, head, i, q[i]);
    memcpy(out, q[0], sizeof q[0]);
    if (n == 0 || c->n_window[s] == 1) return;
    memset(out, 0, sizeof q[0]);
    for (uint32_t k = 1; k <= n; k++) {
        window_weights(q, c->d, n, k, (cn_select_weights)c->weights[s], w);
        for (uint32_t i = 0; i < k; i++)
            for (uint32_t j = 0; j < c->d; j++) out[j] += w[i] / n * q[i][j];
    }
}

static void check_head(const ring_case *c, const float *got, const double *want)
{
    double wrong = 0, size = 0;
    for (uint32_t j = 0; j < c->d; j++) {
        wrong = fmax(wrong, fabs((double)got[j] - want[j]));
        size = fmax(size, fabs(want[j]));
    }
    assert_true(wrong <= 2e-5 * size + 1e-6);
}

static void check(const ring_case *c)
{
    const size_t row = (size_t)c->n_heads * c->d;
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        const float *got = c->out + s * c->out_stride;
        const bool predicts = c->slots[s] != CN_NO_SLOT;
        for (uint32_t i = 0; predicts && i < N_LAYERS * c->n_heads; i++, got += c->d) {
            double want[MAX_D];
            predict_head(c, s, FIRST_LAYER + i / c->n_heads, i % c->n_heads, want);
            check_head(c, got, want);
        }
        for (size_t j = predicts ? N_LAYERS * row : 0; j < c->out_stride; j++)
            assert_true(c->out[s * c->out_stride + j] == -7);
    }
}

static void predictions_agree_with_a_regression_per_window(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 60; seed++) {
        ring_case c = draw_case(seed);
        run(be, &c);
        check(&c);
        free_case(&c);
    }
    backend_rig_close(be);
}

static void the_number_of_threads_does_not_change_a_bit(void **state)
{
    (void)state;
    cn_backend *one = backend_rig_open(1), *three = backend_rig_open(3);
    for (uint64_t seed = 0; seed < 12; seed++) {
        ring_case c = draw_case(seed);
        const size_t n = c.n_seqs * c.out_stride;
        run(one, &c);
        float *first = cn_calloc(n, sizeof *first);
        memcpy(first, c.out, n * sizeof *first);
        run(three, &c);
        assert_memory_equal(first, c.out, n * sizeof *first);
        cn_free(first);
        free_case(&c);
    }
    backend_rig_close(one);
    backend_rig_close(three);
}

/* Zero queries have a singular Gram matrix. */
static void zero_queries_predict_zero(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    ring_case c = draw_case(0);
    memset(c.ring, 0, (size_t)LAYERS * c.n_slots * c.rows * c.n_heads * c.d * sizeof *c.ring);
    run(be, &c);
    for (uint32_t s = 0; s < c.n_seqs; s++)
        for (uint32_t i = 0; i < N_LAYERS * c.n_heads * c.d; i++) {
            const float x = c.out[s * c.out_stride + i];
            assert_true(x == (c.slots[s] == CN_NO_SLOT ? -7.0f : 0.0f));
        }
    free_case(&c);
    backend_rig_close(be);
}

static void windows_beyond_the_ring_are_refused(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    const uint32_t slot = 0, newest = 5, modulus = 4;
    const uint32_t window = 4;
    const cn_predict_args a = {.rows = 4,
                               .n_heads = 1,
                               .head_dim = 16,
                               .slots = &slot,
                               .newest = &newest,
                               .modulus = &modulus,
                               .n_window = &window,
                               .n_seqs = 1,
                               .n_layers = 1};
    assert_int_equal(be->predict(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "window 4 of sequence 0: expected 1 to 3"));
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_agree_with_a_regression_per_window),
        cmocka_unit_test(the_number_of_threads_does_not_change_a_bit),
        cmocka_unit_test(zero_queries_predict_zero),
        cmocka_unit_test(windows_beyond_the_ring_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
