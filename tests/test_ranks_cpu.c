/* test_ranks_cpu.c - the op reduce_norm of the CPU over ranks with threads of their own: its sums,
 * its waits, the branches that alternate, and a rank that does not come; a product whose rows have
 * a stride. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/cpu/cpu_ranks.h"
#include "engine/cpu/cpu_stream.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

typedef struct group {
    uint32_t n;
    cn_backend *be[CN_MAX_RANKS];
    cn_stream *stream[CN_MAX_RANKS];
    cn_barrier *barrier;
} group;

static void open_group(group *g, uint32_t n, double timeout_s)
{
    const cn_cpu_backend_opts o = {.n_threads = 1, .threaded = true};
    *g = (group){.n = n};
    for (uint32_t r = 0; r < n; r++) {
        assert_int_equal(cn_backend_cpu_open(&g->be[r], &o), CN_OK);
        assert_int_equal(g->be[r]->stream_create(g->be[r], CN_PRIORITY_HIGH, &g->stream[r]), CN_OK);
    }
    assert_int_equal(g->be[0]->barrier_create(g->be[0], n, timeout_s, &g->barrier), CN_OK);
}

static void close_group(group *g)
{
    for (uint32_t r = 0; r < g->n; r++) g->be[r]->stream_free(g->stream[r]);
    g->be[0]->barrier_free(g->barrier);
    for (uint32_t r = 0; r < g->n; r++) g->be[r]->close(g->be[r]);
}

static void sync_group(group *g)
{
    for (uint32_t r = 0; r < g->n; r++)
        assert_int_equal(g->be[r]->stream_sync(g->stream[r]), CN_OK);
}

/* One rank's memory. */
typedef struct rank_memory {
    float *branch[2], *residual, *out;
} rank_memory;

static void alloc_ranks(rank_memory *m, uint32_t n_ranks, size_t n)
{
    for (uint32_t r = 0; r < n_ranks; r++) {
        float *all = cn_calloc(4 * n, sizeof *all);
        m[r] = (rank_memory){{all, all + n}, all + 2 * n, all + 3 * n};
    }
}

static void free_ranks(rank_memory *m, uint32_t n_ranks)
{
    for (uint32_t r = 0; r < n_ranks; r++) cn_free(m[r].branch[0]);
}

static cn_reduce_norm_args args_of(const group *g, const rank_memory *m, uint32_t rank,
                                   uint32_t sum, const float *weight, uint32_t t, uint32_t h)
{
    cn_reduce_norm_args a = {.out = m[rank].out,
                             .residual = m[rank].residual,
                             .weight = weight,
                             .barrier = g->barrier,
                             .rank = rank,
                             .n_ranks = g->n,
                             .n_tokens = t,
                             .hidden = h,
                             .eps = 1e-6f,
                             .layer = sum / 2,
                             .is_mlp = sum % 2};
    for (uint32_t r = 0; r < g->n; r++) a.branch[r] = m[r].branch[sum % 2];
    return a;
}

/* Each rank has the bits of the sum in rank order. */
static void sums_are_in_rank_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        test_rng rng = {.state = seed + 1};
        group g;
        rank_memory m[CN_MAX_RANKS];
        const uint32_t n_ranks = 2 + (uint32_t)(seed % 7), t = 1 + (uint32_t)(seed * 5 % 9);
        const uint32_t h = 1 + (uint32_t)(seed * 37 % 300);
        const size_t n = (size_t)t * h;
        open_group(&g, n_ranks, 60);
        alloc_ranks(m, n_ranks, n);
        float *weight = cn_calloc(h, sizeof *weight), *residual = cn_calloc(n, sizeof *residual);
        test_rng_fill(&rng, weight, h);
        test_rng_fill(&rng, residual, n);
        for (uint32_t r = 0; r < n_ranks; r++) {
            test_rng_fill(&rng, m[r].branch[1], n);
            memcpy(m[r].residual, residual, n * sizeof *residual);
        }
        for (uint32_t r = 0; r < n_ranks; r++) {
            const cn_reduce_norm_args a = args_of(&g, m, r, 1, weight, t, h);
            assert_int_equal(g.be[r]->reduce_norm(g.stream[r], &a), CN_OK);
        }
        sync_group(&g);
        for (uint32_t i = 0; i < t; i++) {
            double squares = 0;
            for (size_t k = (size_t)i * h; k < (size_t)(i + 1) * h; k++) {
                for (uint32_t r = 0; r < n_ranks; r++) residual[k] += m[r].branch[1][k];
                squares += (double)residual[k] * residual[k];
            }
            for (size_t k = (size_t)i * h; k < (size_t)(i + 1) * h; k++) {
                const double want = residual[k] / sqrt(squares / h + 1e-6) * weight[k % h];
                for (uint32_t r = 0; r < n_ranks; r++) {
                    assert_memory_equal(&m[r].residual[k], &residual[k], sizeof(float));
                    assert_memory_equal(&m[r].out[k], &m[0].out[k], sizeof(float));
                }
                if (fabs(m[0].out[k] - want) > 1e-5 * fmax(1, fabs(want))) fail();
            }
        }
        cn_free(residual);
        cn_free(weight);
        free_ranks(m, n_ranks);
        close_group(&g);
    }
}

/* ---- branches that alternate ---- */

enum { STEPS = 400, WIDTH = 33 };

/* An op that writes a branch, some time later. */
typedef struct fill {
    float *branch;
    float value;
    uint32_t pause_us;
} fill;

static cn_status run_fill(cn_stream *s, const void *args)
{
    (void)s;
    const fill *f = args;
    const struct timespec pause = {0, f->pause_us * 1000L};
    if (f->pause_us) nanosleep(&pause, NULL);
    for (uint32_t i = 0; i < WIDTH; i++) f->branch[i] = f->value;
    return CN_OK;
}

/* The value that a rank adds at a sum: an integer, so that the order does not matter. */
static float value_of(uint32_t rank, uint32_t sum) { return (float)((rank + 1) * (sum % 97)); }

/* A rank runs ahead of another one by at most a sum, so two branches are enough. */
static void two_branches_are_enough(void **state)
{
    (void)state;
    static float weight[WIDTH];
    test_rng rng = {.state = 5};
    group g;
    rank_memory m[CN_MAX_RANKS];
    open_group(&g, 4, 60);
    alloc_ranks(m, g.n, WIDTH);
    double want = 0;
    for (uint32_t sum = 0; sum < STEPS; sum++) {
        for (uint32_t r = 0; r < g.n; r++) {
            const bool late = test_rng_below(&rng, 4) == 0;
            const fill f = {m[r].branch[sum % 2], value_of(r, sum), late ? 200 : 0};
            const cn_reduce_norm_args a = args_of(&g, m, r, sum, weight, 1, WIDTH);
            assert_int_equal(cn_cpu_stream_submit(g.stream[r], run_fill, &f, sizeof f), CN_OK);
            assert_int_equal(g.be[r]->reduce_norm(g.stream[r], &a), CN_OK);
            want += value_of(r, sum);
        }
    }
    sync_group(&g);
    for (uint32_t r = 0; r < g.n; r++)
        for (uint32_t i = 0; i < WIDTH; i++)
            if (m[r].residual[i] != (float)want) fail_msg("rank %u, element %u", r, i);
    free_ranks(m, g.n);
    close_group(&g);
}

/* ---- a rank that does not come ---- */

static void a_missing_rank_is_named(void **state)
{
    (void)state;
    static float weight[WIDTH];
    enum { LATE = 2, LAYER = 3 };
    group g;
    rank_memory m[CN_MAX_RANKS];
    open_group(&g, 3, 0.2);
    alloc_ranks(m, g.n, WIDTH);
    cn_cpu_barrier_hold(g.barrier, LATE, 2 * LAYER + 1);
    const double began_s = cn_now_s();
    for (uint32_t sum = 0; sum < 12; sum++)
        for (uint32_t r = 0; r < g.n; r++) {
            const cn_reduce_norm_args a = args_of(&g, m, r, sum, weight, 1, WIDTH);
            assert_int_equal(g.be[r]->reduce_norm(g.stream[r], &a), CN_OK);
        }
    uint32_t n_named = 0;
    for (uint32_t r = 0; r < g.n; r++) {
        assert_int_equal(g.be[r]->stream_sync(g.stream[r]), CN_ERR_DEVICE);
        n_named += strstr(cn_last_error(), "rank 2 did not reach the sum after the MLP of layer 3 "
                                           "within 0.2 s") != NULL;
    }
    assert_int_equal(n_named, g.n);
    assert_true(cn_now_s() - began_s < 5); /* one wait, not one for each sum */
    free_ranks(m, g.n);
    close_group(&g);
}

/* Rank 0 waits for rank 1, which never comes. */
static void a_broken_barrier_ends_all_waits(void **state)
{
    (void)state;
    static float weight[WIDTH];
    group g;
    rank_memory m[CN_MAX_RANKS];
    open_group(&g, 2, 60);
    alloc_ranks(m, g.n, WIDTH);
    for (uint32_t r = 0; r < g.n; r++) g.be[r]->barrier_add(g.barrier, r, g.stream[r]);
    const double began_s = cn_now_s();
    const cn_reduce_norm_args a = args_of(&g, m, 0, 0, weight, 1, WIDTH);
    assert_int_equal(g.be[0]->reduce_norm(g.stream[0], &a), CN_OK);
    g.be[0]->barrier_break(g.barrier, "an error elsewhere");
    g.be[0]->barrier_break(g.barrier, "a later one");
    for (uint32_t r = 0; r < g.n; r++) {
        assert_int_equal(g.be[r]->stream_sync(g.stream[r]), CN_ERR_DEVICE);
        assert_string_equal(cn_last_error(), "an error elsewhere");
    }
    assert_true(cn_now_s() - began_s < 5);
    free_ranks(m, g.n);
    close_group(&g);
}

/* ---- products ---- */

/* Slices of a head write their columns of one array, and nothing beside them. */
static void a_product_writes_rows_with_a_stride(void **state)
{
    (void)state;
    enum { T = 5, N = 37, K = 70, STRIDE = 50, FIRST = 9 };
    static float x[T * K], w[N * K], bias[N], plain[T * N], wide[T * STRIDE];
    test_rng rng = {.state = 3};
    cn_backend *be = backend_rig_open(1);
    test_rng_fill(&rng, x, T * K);
    test_rng_fill(&rng, w, N * K);
    test_rng_fill(&rng, bias, N);
    for (size_t i = 0; i < T * STRIDE; i++) wide[i] = -7;
    cn_gemm_args a = {.out = plain, .x = x, .bias = bias, .weight = {.data = w}, .n_tokens = T,
                      .n = N, .k = K};
    assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK);
    a.out = wide + FIRST;
    a.out_stride = STRIDE;
    assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK);
    for (uint32_t t = 0; t < T; t++)
        for (uint32_t c = 0; c < STRIDE; c++) {
            const bool inside = c >= FIRST && c < FIRST + N;
            const float want = inside ? plain[t * N + c - FIRST] : -7;
            if (wide[t * STRIDE + c] != want) fail_msg("row %u, column %u", t, c);
        }
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_in_rank_order),
        cmocka_unit_test(two_branches_are_enough),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(a_broken_barrier_ends_all_waits),
        cmocka_unit_test(a_product_writes_rows_with_a_stride),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
