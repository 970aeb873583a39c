/* test_ops_cpu.c - the CPU's ops compared with plain references in double, on random and unusual
 * shapes; the CPU's thread pool, streams and fences. test_attn_cpu.c tests attention. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_simd.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"

static float *new_random(test_rng *r, size_t n)
{
    float *p = cn_calloc(n, sizeof *p);
    test_rng_fill(r, p, n);
    return p;
}

static void assert_close(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fmax(1.0, fabs(want))))
        fail_msg("expected %.9g, got %.9g", want, got);
}

/* ---- gemm ---- */

static void check_gemm(cn_backend *be, test_rng *r, uint32_t t, uint32_t n, uint32_t k, bool bias)
{
    float *x = new_random(r, (size_t)t * k), *w = new_random(r, (size_t)n * k);
    float *b = new_random(r, n), *out = new_random(r, (size_t)t * n);
    cn_gemm_args a = {
        .out = out, .x = x, .weight = {.data = w}, .bias = bias ? b : NULL, .n_tokens = t, .n = n,
        .k = k};
    assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK);
    for (uint32_t i = 0; i < t; i++)
        for (uint32_t j = 0; j < n; j++) {
            double want = bias ? b[j] : 0;
            for (uint32_t l = 0; l < k; l++)
                want += (double)x[(size_t)i * k + l] * w[(size_t)j * k + l];
            assert_close(out[(size_t)i * n + j], want, 1e-6 * sqrt(k));
        }
    cn_free(out);
    cn_free(b);
    cn_free(w);
    cn_free(x);
}

static void gemm_agrees_with_plain_sums(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 25; seed++) {
        test_rng r = {seed};
        uint32_t t = 1 + test_rng_below(&r, 20), n = 1 + test_rng_below(&r, 200);
        check_gemm(be, &r, t, n, 1 + test_rng_below(&r, 300), seed % 2);
    }
    test_rng r = {99};
    check_gemm(be, &r, 3, 65, 1024 + 37, true); /* more than one chunk of k */
    check_gemm(be, &r, 9, 7, 2 * 1024, false);
    backend_rig_close(be);
}

/* In every batch size from 1 to 130, a row must have the bits that it has alone. */
static void check_gemm_batch_invariance(cn_backend *be, uint32_t n, uint32_t k)
{
    enum { MAX_T = 130 };
    test_rng r = {n * 7919 + k};
    float *x = new_random(&r, (size_t)MAX_T * k), *w = new_random(&r, (size_t)n * k);
    float *want = cn_calloc((size_t)MAX_T * n, sizeof *want);
    float *out = cn_calloc((size_t)MAX_T * n, sizeof *out);
    cn_gemm_args a = {.weight = {.data = w}, .n_tokens = 1, .n = n, .k = k};
    for (uint32_t i = 0; i < MAX_T; i++) {
        a.x = x + (size_t)i * k;
        a.out = want + (size_t)i * n;
        assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK);
    }
    a.out = out;
    for (uint32_t t = 1; t <= MAX_T; t++) {
        uint32_t first = (MAX_T - t) / 2; /* moves rows to other places of a tile */
        a.n_tokens = t;
        a.x = x + (size_t)first * k;
        assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK);
        assert_memory_equal(out, want + (size_t)first * n, (size_t)t * n * sizeof *out);
    }
    cn_free(out);
    cn_free(want);
    cn_free(w);
    cn_free(x);
}

static void a_gemm_row_has_the_same_bits_in_every_batch(void **state)
{
    (void)state;
    cn_backend *one = backend_rig_open(1), *three = backend_rig_open(3);
    static const uint32_t shapes[][2] = {{1, 1},     {33, 77},   {64, 384},  {65, 385},
                                         {200, 129}, {96, 1024}, {70, 1025}, {17, 2100}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_gemm_batch_invariance(one, shapes[i][0], shapes[i][1]);
        check_gemm_batch_invariance(three, shapes[i][0], shapes[i][1]);
    }
    backend_rig_close(one);
    backend_rig_close(three);
}

static void an_empty_weight_is_refused_and_an_empty_batch_is_accepted(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    float x = 1;
    cn_gemm_args a = {.out = &x, .x = &x, .weight = {.data = &x}, .n_tokens = 0, .n = 1, .k = 1};
    assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK);
    a.n = 0;
    assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    backend_rig_close(be);
}

/* ---- row-wise ops ---- */

static void rmsnorm_adds_and_normalises(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 20; seed++) {
        test_rng r = {seed};
        uint32_t t = 1 + test_rng_below(&r, 70), h = 1 + test_rng_below(&r, 700);
        float *residual = new_random(&r, (size_t)t * h), *x = new_random(&r, (size_t)t * h);
        float *before = cn_calloc((size_t)t * h, sizeof *before), *w = new_random(&r, h);
        float *out = cn_calloc((size_t)t * h, sizeof *out);
        memcpy(before, residual, (size_t)t * h * sizeof *before);
        cn_rmsnorm_args a = {out, residual, seed % 2 ? x : NULL, w, t, h, 1e-6f};
        assert_int_equal(be->rmsnorm(backend_rig_stream(be), &a), CN_OK);
        for (uint32_t i = 0; i < t; i++) {
            double sum = 0;
            for (size_t j = (size_t)i * h; j < (size_t)(i + 1) * h; j++) {
                assert_true(residual[j] == (seed % 2 ? before[j] + x[j] : before[j]));
                sum += (double)residual[j] * residual[j];
            }
            double scale = 1 / sqrt(sum / h + 1e-6);
            for (uint32_t j = 0; j < h; j++)
                assert_close(out[(size_t)i * h + j], residual[(size_t)i * h + j] * scale * w[j],
                             1e-6);
        }
        cn_free(out);
        cn_free(w);
        cn_free(before);
        cn_free(x);
        cn_free(residual);
    }
    backend_rig_close(be);
}

static void silu_mul_agrees_with_libm(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 20; seed++) {
        test_rng r = {seed};
        uint32_t t = 1 + test_rng_below(&r, 40), n = 1 + test_rng_below(&r, 500);
        float *x = new_random(&r, (size_t)t * 2 * n), *out = cn_calloc((size_t)t * n, sizeof *out);
        for (size_t i = 0; i < (size_t)t * 2 * n; i++) x[i] *= seed % 2 ? 5.0f : 120.0f;
        cn_silu_mul_args a = {out, x, t, n};
        assert_int_equal(be->silu_mul(backend_rig_stream(be), &a), CN_OK);
        for (uint32_t i = 0; i < t; i++)
            for (uint32_t j = 0; j < n; j++) {
                double g = x[(size_t)i * 2 * n + j], u = x[(size_t)i * 2 * n + n + j];
                assert_close(out[(size_t)i * n + j], g / (1 + exp(-g)) * u, 1e-6);
            }
        cn_free(out);
        cn_free(x);
    }
    backend_rig_close(be);
}

static void vector_exp_is_within_two_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = -8700000; i < 8799000; i += CN_VEC * 5) {
        cn_vec x, y;
        for (int lane = 0; lane < CN_VEC; lane++) x[lane] = (float)(i + lane * 5) * 1e-5f;
        y = cn_vec_exp(x);
        for (int lane = 0; lane < CN_VEC; lane++) {
            double want = exp((double)x[lane]);
            float ulp = nextafterf((float)want, INFINITY) - (float)want;
            worst = fmax(worst, fabs((double)y[lane] - want) / (double)ulp);
        }
    }
    assert_true(worst < 2.0);
    assert_true(cn_vec_exp(cn_vec_set(-88.0f))[0] == 0);
    assert_true(cn_vec_exp(cn_vec_set(-INFINITY))[0] == 0);
    assert_true(cn_vec_exp(cn_vec_set(0.0f))[0] == 1);
}

static void embed_and_gather_copy_rows(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    test_rng r = {5};
    enum { V = 50, H = 37, T = 900 };
    float *table = new_random(&r, V * H), *out = cn_calloc(T * H, sizeof *out);
    uint32_t ids[T];
    for (uint32_t i = 0; i < T; i++) ids[i] = test_rng_below(&r, V);
    cn_embed_args e = {
        .out = out, .table = table, .tokens = ids, .n_tokens = T, .hidden = H, .vocab = V};
    assert_int_equal(be->embed(backend_rig_stream(be), &e), CN_OK);
    for (uint32_t i = 0; i < T; i++)
        assert_memory_equal(out + i * H, table + ids[i] * H, H * sizeof *out);
    cn_gather_args g = {out, table, ids, 3, H};
    assert_int_equal(be->gather(backend_rig_stream(be), &g), CN_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_memory_equal(out + i * H, table + ids[i] * H, H * sizeof *out);
    ids[1] = V;
    assert_int_equal(be->embed(backend_rig_stream(be), &e), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "token 1"));

    /* Ids that the last step sampled replace the ids from the host. */
    const uint32_t sampled[] = {7, 49};
    int32_t sampled_row[T];
    for (uint32_t i = 0; i < T; i++) sampled_row[i] = i == 1 ? 1 : -1;
    e.sampled = sampled;
    e.sampled_row = sampled_row;
    assert_int_equal(be->embed(backend_rig_stream(be), &e), CN_OK);
    assert_memory_equal(out, table + ids[0] * H, H * sizeof *out);
    assert_memory_equal(out + H, table + 49 * H, H * sizeof *out);
    cn_free(out);
    cn_free(table);
    backend_rig_close(be);
}

/* ---- rope_store ---- */

enum { ROPE_POSITIONS = 300, ROPE_SLOTS = 3, ROPE_WINDOW = 5 };

typedef struct rope_case {
    paged_batch *batch;
    cn_rope_store_args args;
    float *qkv, *q, *window, *cos_table, *sin_table, *q_norm, *k_norm;
} rope_case;

static rope_case make_rope_case(test_rng *r, paged_shape s, bool norms)
{
    rope_case c = {.batch = paged_batch_create(&s, r)};
    uint32_t d = s.head_dim, t = c.batch->view.n_tokens;
    for (uint32_t i = 0; i < t; i++)
        c.batch->q_rows[i] = i < ROPE_SLOTS * ROPE_WINDOW && i % 3 ? (int32_t)((i * 4) % 15) : -1;
    c.qkv = new_random(r, (size_t)t * (s.n_heads + 2 * s.n_kv_heads) * d);
    c.q = cn_calloc((size_t)t * s.n_heads * d, sizeof *c.q);
    c.window = cn_calloc((size_t)s.n_layers * ROPE_SLOTS * ROPE_WINDOW * s.n_heads * d, 4);
    c.cos_table = new_random(r, (size_t)ROPE_POSITIONS * d / 2);
    c.sin_table = new_random(r, (size_t)ROPE_POSITIONS * d / 2);
    c.q_norm = new_random(r, d);
    c.k_norm = new_random(r, d);
    c.args = (cn_rope_store_args){.q = c.q,
                                  .qkv = c.qkv,
                                  .q_norm = norms ? c.q_norm : NULL,
                                  .k_norm = norms ? c.k_norm : NULL,
                                  .eps = 1e-5f,
                                  .cos = c.cos_table,
                                  .sin = c.sin_table,
                                  .batch = &c.batch->view,
                                  .n_heads = s.n_heads,
                                  .layer = 1,
                                  .layout = c.batch->layout,
                                  .kv = c.batch->kv,
                                  .q_window = c.window,
                                  .n_query_slots = ROPE_SLOTS,
                                  .window = ROPE_WINDOW};
    return c;
}

static void free_rope_case(rope_case *c)
{
    cn_free(c->qkv);
    cn_free(c->q);
    cn_free(c->window);
    cn_free(c->cos_table);
    cn_free(c->sin_table);
    cn_free(c->q_norm);
    cn_free(c->k_norm);
    paged_batch_free(c->batch);
}

static void check_head(const rope_case *c, const float *x, const float *norm, uint32_t position,
                       const float *got)
{
    uint32_t d = c->args.layout.head_dim, half = d / 2;
    double y[CN_CPU_MAX_HEAD_DIM], squares = 0;
    for (uint32_t i = 0; i < d; i++) squares += (double)x[i] * x[i];
    double scale = norm ? 1 / sqrt(squares / d + 1e-5) : 1;
    for (uint32_t i = 0; i < d; i++) y[i] = x[i] * scale * (norm ? norm[i] : 1);
    const float *cosine = c->cos_table + (size_t)position * half;
    const float *sine = c->sin_table + (size_t)position * half;
    for (uint32_t i = 0; i < half; i++) {
        assert_close(got[i], y[i] * cosine[i] - y[i + half] * sine[i], 2e-6);
        assert_close(got[i + half], y[i + half] * cosine[i] + y[i] * sine[i], 2e-6);
    }
}

static void check_rope_case(const rope_case *c, bool norms)
{
    const paged_batch *b = c->batch;
    uint32_t d = b->layout.head_dim, hq = b->n_heads, hk = b->layout.n_kv_heads;
    for (uint32_t s = 0; s < b->view.n_seqs; s++)
        for (uint32_t t = b->q_start[s]; t < b->q_start[s + 1]; t++) {
            const float *x = c->qkv + (size_t)t * (hq + 2 * hk) * d;
            const float *q = c->q + (size_t)t * hq * d;
            for (uint32_t h = 0; h < hq; h++)
                check_head(c, x + h * d, norms ? c->q_norm : NULL, b->positions[t], q + h * d);
            for (uint32_t h = 0; h < hk; h++) {
                uint32_t slot = b->positions[t];
                check_head(c, x + (hq + h) * d, norms ? c->k_norm : NULL, b->positions[t],
                           paged_batch_row(b, 1, s, h, slot, CN_KV_K));
                assert_memory_equal(paged_batch_row(b, 1, s, h, slot, CN_KV_V),
                                    x + (hq + hk + h) * d, d * sizeof *x);
            }
            if (b->q_rows[t] < 0) continue;
            uint32_t row = (uint32_t)b->q_rows[t];
            size_t at = cn_query_row(ROPE_SLOTS, ROPE_WINDOW, hq, d, 1, row / ROPE_WINDOW,
                                     row % ROPE_WINDOW, 0);
            assert_memory_equal(c->window + at, q, hq * d * sizeof *q);
        }
}

static void rope_store_rotates_and_stores(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256};
    cn_backend *be = backend_rig_open(2);
    for (uint32_t i = 0; i < 12; i++) {
        test_rng r = {i};
        paged_shape s = {.n_layers = 2,
                         .n_kv_heads = 1 + i % 3,
                         .head_dim = dims[i % 6],
                         .block_tokens = 16u << i % 5,
                         .n_seqs = 2,
                         .n_decode = 1,
                         .n_q = {1, 12},
                         .kv_len = {200, 130}};
        s.n_heads = s.n_kv_heads * (1 + i % 8);
        rope_case c = make_rope_case(&r, s, i % 2);
        assert_int_equal(be->rope_store(backend_rig_stream(be), &c.args), CN_OK);
        check_rope_case(&c, i % 2);
        c.args.layout.head_dim = 24;
        assert_int_equal(be->rope_store(backend_rig_stream(be), &c.args), CN_ERR_SHAPE);
        free_rope_case(&c);
    }
    backend_rig_close(be);
}

/* ---- swap, copy_blocks ---- */

static float *copy_of(const float *x, size_t n)
{
    float *out = cn_calloc(n, sizeof *out);
    memcpy(out, x, n * sizeof *out);
    return out;
}

/* Item i is what item from[i] was, or 0 where from[i] is negative. */
static void assert_moved(const float *x, const float *was, const int *from, uint32_t n_items,
                         size_t n)
{
    for (uint32_t i = 0; i < n_items; i++) {
        if (from[i] >= 0)
            assert_memory_equal(x + i * n, was + (size_t)from[i] * n, n * sizeof *x);
        else
            assert_true(x[i * n] == 0 && x[(i + 1) * n - 1] == 0);
    }
}

/* Blocks 3 and 1 and query slot 2 are swapped out and overwritten. They return to 0, 4 and 0. The
 * draft K and the states are planes of one layer. */
static void swapped_blocks_come_back_unchanged(void **state)
{
    (void)state;
    enum { L = 3, B = 5, HK = 2, BT = 128, D = 16, SLOTS = 3, W = 3, HQ = 4, HOST = 4 };
    enum { DRAFT = 48, N_DRAFT = HK * BT * DRAFT, STATE = 40 };
    cn_backend *be = backend_rig_open(2);
    cn_stream *stream = backend_rig_stream(be);
    test_rng r = {1};
    cn_kv_layout l = cn_kv_layout_make(L, B, HK, BT, D, CN_F32);
    const size_t n_kv = cn_kv_pool_elems(&l), n_side = cn_kv_side_elems(&l);
    const size_t n_q = L * SLOTS * W * HQ * D, n_row = W * HQ * D;
    float *kv = new_random(&r, n_kv), *score = new_random(&r, n_side), *q = new_random(&r, n_q);
    uint32_t *origin = cn_calloc(n_side, sizeof *origin);
    float *kv_was = cn_calloc(n_kv, 4), *score_was = cn_calloc(n_side, 4);
    float *q_was = copy_of(q, n_q);
    for (size_t i = 0; i < n_side; i++) origin[i] = (uint32_t)i;
    memcpy(kv_was, kv, n_kv * 4);
    memcpy(score_was, score, n_side * 4);
    l.draft_dim = DRAFT;
    l.draft_state = STATE;
    float *states = new_random(&r, B * STATE), *states_were = copy_of(states, B * STATE);
    float *draft = new_random(&r, B * N_DRAFT), *draft_was = copy_of(draft, B * N_DRAFT);
    const cn_pools pools = {.layout = l, .kv = kv, .score = score, .origin = origin, .draft = draft,
                            .state = states, .q_window = q, .n_query_slots = SLOTS, .window = W,
                            .n_heads = HQ, .act_dtype = CN_F32};
    const cn_planes device = cn_pools_planes(&pools);
    assert_int_equal(cn_planes_block_bytes(&device),
                     L * (l.block_bytes + 2 * HK * BT * 4) + N_DRAFT * 4 + STATE * 4);
    void *host = cn_calloc(HOST * cn_planes_block_bytes(&device) + 2 * n_row * L * 4, 1);
    const cn_planes space = cn_planes_packed(&device, host, HOST);
    const cn_block_copy out[] = {{3, 2}, {1, 0}}, in[] = {{2, 0}, {0, 4}};
    const cn_block_copy window_out = {2, 1}, window_in = {1, 0};
    cn_copy_args a = {device, space, {out, 2, &window_out, 1}};
    assert_int_equal(be->copy_blocks(stream, &a), CN_OK);
    memset(kv, 0, n_kv * 4);
    memset(score, 0, n_side * 4);
    memset(origin, 0, n_side * 4);
    memset(q, 0, n_q * 4);
    memset(draft, 0, (size_t)B * N_DRAFT * 4);
    memset(states, 0, (size_t)B * STATE * 4);
    a = (cn_copy_args){space, device, {in, 2, &window_in, 1}};
    assert_int_equal(be->copy_blocks(stream, &a), CN_OK);
    static const int from[B] = {3, -1, -1, -1, 1}; /* the source of each block's contents */
    for (uint32_t layer = 0; layer < L; layer++)
        for (uint32_t b = 0; b < B; b++) {
            const uint32_t src = (uint32_t)from[b];
            const size_t dst = cn_kv_row(&l, layer, b, 0, 0, CN_KV_K);
            const size_t side = cn_kv_side(&l, layer, b, 0, 0);
            if (from[b] < 0) {
                assert_true(kv[dst] == 0 && score[side] == 0 && origin[side] == 0);
                continue;
            }
            const size_t want = cn_kv_side(&l, layer, src, 0, 0);
            assert_memory_equal(kv + dst, kv_was + cn_kv_row(&l, layer, src, 0, 0, CN_KV_K),
                                l.block_bytes);
            assert_memory_equal(score + side, score_was + want, HK * BT * 4);
            assert_int_equal(origin[side + HK * BT - 1], want + HK * BT - 1);
        }
    for (uint32_t layer = 0; layer < L; layer++) {
        const size_t at = layer * SLOTS * n_row;
        assert_memory_equal(q + at, q_was + at + 2 * n_row, n_row * 4);
        assert_true(q[at + n_row] == 0 && q[at + 2 * n_row] == 0);
    }
    assert_moved(draft, draft_was, from, B, N_DRAFT);
    assert_moved(states, states_were, from, B, STATE);
    void *const memory[] = {states_were, states, draft_was, draft, host, q_was,
                            score_was,   kv_was, origin,    q,     score, kv};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) cn_free(memory[i]);
    backend_rig_close(be);
}

static void whole_blocks_and_query_slots_are_copied(void **state)
{
    (void)state;
    enum { L = 3, B = 5, HK = 2, BT = 128, D = 16, SLOTS = 4, W = 3, HQ = 4 };
    cn_backend *be = backend_rig_open(2);
    test_rng r = {1};
    cn_kv_layout l = cn_kv_layout_make(L, B, HK, BT, D, CN_F32);
    size_t n_kv = cn_kv_pool_elems(&l), n_side = cn_kv_side_elems(&l), n_q = L * SLOTS * W * HQ * D;
    float *kv = new_random(&r, n_kv), *score = new_random(&r, n_side), *q = new_random(&r, n_q);
    uint32_t *origin = cn_calloc(n_side, sizeof *origin);
    for (size_t i = 0; i < n_side; i++) origin[i] = (uint32_t)i;
    float *kv_before = cn_calloc(n_kv, 4), *score_before = cn_calloc(n_side, 4);
    memcpy(kv_before, kv, n_kv * 4);
    memcpy(score_before, score, n_side * 4);
    const cn_block_copy blocks[] = {{1, 4}, {4, 0}, {2, 2}}, slots[] = {{3, 1}};
    cn_pools pools = {.layout = l, .kv = kv, .score = score, .origin = origin, .q_window = q,
                      .n_query_slots = SLOTS, .window = W, .n_heads = HQ, .act_dtype = CN_F32};
    cn_copy_args a = {.list = {blocks, 3, slots, 1}};
    a.from = a.to = cn_pools_planes(&pools);
    assert_int_equal(be->copy_blocks(backend_rig_stream(be), &a), CN_OK);
    static const uint32_t from[B] = {1, 1, 2, 3, 1}; /* block sources: copies run in order */
    for (uint32_t layer = 0; layer < L; layer++)
        for (uint32_t b = 0; b < B; b++) {
            size_t src = cn_kv_row(&l, layer, from[b], 0, 0, CN_KV_K);
            size_t dst = cn_kv_row(&l, layer, b, 0, 0, CN_KV_K);
            assert_memory_equal(kv + dst, kv_before + src, l.block_bytes);
            size_t side = cn_kv_side(&l, layer, b, 0, 0);
            size_t want = cn_kv_side(&l, layer, from[b], 0, 0);
            assert_memory_equal(score + side, score_before + want, HK * BT * 4);
            assert_int_equal(origin[side + 7], want + 7);
        }
    for (uint32_t layer = 0; layer < L; layer++)
        assert_memory_equal(q + cn_query_row(SLOTS, W, HQ, D, layer, 1, 0, 0),
                            q + cn_query_row(SLOTS, W, HQ, D, layer, 3, 0, 0), W * HQ * D * 4);
    pools.q_window = NULL;
    a.from = a.to = cn_pools_planes(&pools);
    assert_int_equal(be->copy_blocks(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    cn_free(score_before);
    cn_free(kv_before);
    cn_free(origin);
    cn_free(q);
    cn_free(score);
    cn_free(kv);
    backend_rig_close(be);
}

/* ---- pool ---- */

typedef struct tally {
    _Atomic uint32_t calls[1000];
    _Atomic uint32_t bad_workers;
    uint32_t n_threads;
    bool slow; /* workers' tasks are slow, so that the caller has to sleep */
} tally;

static void count_task(void *ctx, uint32_t task, uint32_t worker)
{
    tally *t = ctx;
    if (t->slow && worker > 0) nanosleep(&(struct timespec){0, 2000000}, NULL);
    atomic_fetch_add(&t->calls[task], 1);
    if (worker >= t->n_threads) atomic_fetch_add(&t->bad_workers, 1);
}

/* Loops of all sizes, without pauses and with pauses in which workers fall asleep. */
static void the_pool_runs_every_task_once(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 5; n_threads += 2) {
        cn_cpu_pool *p = NULL;
        assert_int_equal(cn_cpu_pool_create(&p, n_threads), CN_OK);
        tally *t = cn_calloc(1, sizeof *t);
        t->n_threads = n_threads;
        test_rng r = {n_threads};
        uint32_t want[1000] = {0};
        for (int loop = 0; loop < 400; loop++) {
            uint32_t n = test_rng_below(&r, loop % 50 ? 12 : 1000);
            for (uint32_t i = 0; i < n; i++) want[i]++;
            t->slow = loop % 20 == 0 && n < 12;
            cn_cpu_pool_run(p, n, count_task, t);
            if (loop % 40 == 0) nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
        for (uint32_t i = 0; i < 1000; i++) assert_int_equal(atomic_load(&t->calls[i]), want[i]);
        assert_int_equal(atomic_load(&t->bad_workers), 0);
        cn_free(t);
        cn_cpu_pool_free(p);
    }
    cn_cpu_pool *p = NULL;
    assert_int_equal(cn_cpu_pool_create(&p, 0), CN_ERR_ARG);
}

/* ---- streams and fences ---- */

typedef struct probe_args {
    _Atomic uint32_t *value;
    uint32_t expect, next;
    cn_status fails;
} probe_args;

/* Takes some time, so that an op that runs out of order is visible. */
static cn_status probe_op(cn_stream *s, const void *args)
{
    (void)s;
    const probe_args *a = args;
    nanosleep(&(struct timespec){0, 20000}, NULL);
    if (a->fails) return cn_fail(a->fails, "probe %u failed", a->next);
    if (atomic_load(a->value) == a->expect) atomic_store(a->value, a->next);
    return CN_OK;
}

static void streams_run_in_order_and_copy_arguments(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    cn_stream *s = backend_rig_side(be);
    _Atomic uint32_t value = 0;
    for (uint32_t i = 0; i < 200; i++) { /* more than the queue holds */
        probe_args a = {&value, i, i + 1, CN_OK};
        assert_int_equal(cn_cpu_stream_submit(s, probe_op, &a, sizeof a), CN_OK);
    }
    assert_int_equal(be->stream_sync(s), CN_OK);
    assert_int_equal(atomic_load(&value), 200);
    backend_rig_close(be);
}

static void fences_order_work_across_streams(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    cn_stream *model = backend_rig_stream(be), *side = backend_rig_side(be);
    cn_fence *fence = NULL;
    assert_int_equal(be->fence_create(be, &fence), CN_OK);
    bool done = false;
    assert_int_equal(be->fence_done(fence, &done), CN_OK);
    assert_true(done); /* never recorded */
    _Atomic uint32_t value = 0;
    for (uint32_t round = 0; round < 20; round++) {
        probe_args a = {&value, 2 * round, 2 * round + 1, CN_OK};
        assert_int_equal(cn_cpu_stream_submit(side, probe_op, &a, sizeof a), CN_OK);
        assert_int_equal(be->fence_record(fence, side), CN_OK);
        assert_int_equal(be->fence_wait(model, fence), CN_OK);
        assert_int_equal(be->fence_done(fence, &done), CN_OK);
        assert_true(done);
        a = (probe_args){&value, 2 * round + 1, 2 * round + 2, CN_OK};
        assert_int_equal(cn_cpu_stream_submit(model, probe_op, &a, sizeof a), CN_OK);
        assert_int_equal(be->fence_record(fence, model), CN_OK);
        assert_int_equal(be->fence_wait(side, fence), CN_OK);
    }
    assert_int_equal(atomic_load(&value), 40);
    be->fence_free(fence);
    backend_rig_close(be);
}

static void an_error_on_the_second_stream_is_reported_at_its_fence(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    cn_stream *side = backend_rig_side(be);
    cn_fence *fence = NULL;
    assert_int_equal(be->fence_create(be, &fence), CN_OK);
    _Atomic uint32_t value = 0;
    probe_args bad = {&value, 0, 7, CN_ERR_DEVICE}, after = {&value, 0, 8, CN_OK};
    assert_int_equal(cn_cpu_stream_submit(side, probe_op, &bad, sizeof bad), CN_OK);
    assert_int_equal(cn_cpu_stream_submit(side, probe_op, &after, sizeof after), CN_OK);
    assert_int_equal(be->fence_record(fence, side), CN_OK);
    bool done = false;
    cn_status status = CN_OK;
    for (int i = 0; i < 5000 && !done; i++) {
        status = be->fence_done(fence, &done);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    assert_true(done);
    assert_int_equal(status, CN_ERR_DEVICE);
    assert_string_equal(cn_last_error(), "probe 7 failed");
    assert_int_equal(be->stream_sync(side), CN_ERR_DEVICE);
    assert_int_equal(atomic_load(&value), 0); /* ops after the error are skipped */
    be->fence_free(fence);
    backend_rig_close(be);
}

/* A chain of streams as an exchange has: only the last one is asked. */
static void fences_carry_an_error_to_the_streams_that_wait(void **state)
{
    (void)state;
    enum { STREAMS = 3 };
    const cn_cpu_backend_opts o = {.n_threads = 2, .threaded = true};
    cn_backend *be;
    cn_stream *s[STREAMS];
    cn_fence *fence[STREAMS];
    assert_int_equal(cn_backend_cpu_open(&be, &o), CN_OK);
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(be->stream_create(be, CN_PRIORITY_LOW, &s[i]), CN_OK);
        assert_int_equal(be->fence_create(be, &fence[i]), CN_OK);
    }
    _Atomic uint32_t value = 0;
    probe_args bad = {&value, 0, 7, CN_ERR_DEVICE}, after = {&value, 0, 8, CN_OK};
    assert_int_equal(cn_cpu_stream_submit(s[0], probe_op, &bad, sizeof bad), CN_OK);
    for (int i = 0; i < STREAMS; i++) {
        if (i > 0) {
            assert_int_equal(be->fence_wait(s[i], fence[i - 1]), CN_OK);
            assert_int_equal(cn_cpu_stream_submit(s[i], probe_op, &after, sizeof after), CN_OK);
        }
        assert_int_equal(be->fence_record(fence[i], s[i]), CN_OK);
    }
    assert_int_equal(be->fence_sync(fence[STREAMS - 1]), CN_ERR_DEVICE);
    assert_string_equal(cn_last_error(), "probe 7 failed");
    assert_int_equal(atomic_load(&value), 0);
    for (int i = 0; i < STREAMS; i++) {
        be->stream_free(s[i]);
        be->fence_free(fence[i]);
    }
    be->close(be);
}

static void ops_on_the_second_stream_equal_those_of_the_first(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(3);
    test_rng r = {42};
    enum { T = 19, N = 150, K = 333 };
    float *x = new_random(&r, T * K), *w = new_random(&r, N * K);
    float *first = cn_calloc(T * N, sizeof *first), *second = cn_calloc(T * N, sizeof *second);
    cn_gemm_args a = {.out = second, .x = x, .weight = {.data = w}, .n_tokens = T, .n = N, .k = K};
    assert_int_equal(be->gemm(backend_rig_side(be), &a), CN_OK);
    a.out = first;
    assert_int_equal(be->gemm(backend_rig_stream(be), &a), CN_OK); /* runs beside the LOW stream */
    assert_int_equal(be->stream_sync(backend_rig_side(be)), CN_OK);
    assert_memory_equal(first, second, T * N * sizeof *first);
    void *mem = NULL;
    float back[4] = {0};
    assert_int_equal(be->mem_alloc(be, sizeof back, &mem), CN_OK);
    assert_int_equal(be->mem_write(backend_rig_side(be), mem, x, sizeof back), CN_OK);
    assert_int_equal(be->mem_read(backend_rig_side(be), back, mem, sizeof back), CN_OK);
    assert_int_equal(be->stream_sync(backend_rig_side(be)), CN_OK);
    assert_memory_equal(back, x, sizeof back);
    be->mem_free(be, mem);
    cn_free(second);
    cn_free(first);
    cn_free(w);
    cn_free(x);
    backend_rig_close(be);
}

static void ops_allocate_nothing(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    test_rng r = {1};
    float *x = new_random(&r, 64 * 96), *out = new_random(&r, 64 * 96);
    float *w = new_random(&r, 96 * 96);
    cn_stream *const streams[] = {backend_rig_stream(be), backend_rig_side(be)};
    uint64_t before = cn_alloc_count();
    cn_gemm_args g = {.out = out, .x = x, .weight = {.data = w}, .n_tokens = 64, .n = 96, .k = 96};
    cn_rmsnorm_args n = {out, x, NULL, w, 64, 96, 1e-6f};
    cn_silu_mul_args m = {out, x, 64, 48};
    for (uint32_t s = 0; s < 2; s++) {
        assert_int_equal(be->gemm(streams[s], &g), CN_OK);
        assert_int_equal(be->stream_sync(streams[s]), CN_OK);
        assert_int_equal(be->rmsnorm(streams[s], &n), CN_OK);
        assert_int_equal(be->silu_mul(streams[s], &m), CN_OK);
        assert_int_equal(be->stream_sync(streams[s]), CN_OK);
    }
    assert_int_equal(cn_alloc_count(), before);
    cn_free(w);
    cn_free(out);
    cn_free(x);
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_agrees_with_plain_sums),
        cmocka_unit_test(a_gemm_row_has_the_same_bits_in_every_batch),
        cmocka_unit_test(an_empty_weight_is_refused_and_an_empty_batch_is_accepted),
        cmocka_unit_test(rmsnorm_adds_and_normalises),
        cmocka_unit_test(silu_mul_agrees_with_libm),
        cmocka_unit_test(vector_exp_is_within_two_ulp),
        cmocka_unit_test(embed_and_gather_copy_rows),
        cmocka_unit_test(rope_store_rotates_and_stores),
        cmocka_unit_test(swapped_blocks_come_back_unchanged),
        cmocka_unit_test(whole_blocks_and_query_slots_are_copied),
        cmocka_unit_test(the_pool_runs_every_task_once),
        cmocka_unit_test(streams_run_in_order_and_copy_arguments),
        cmocka_unit_test(fences_order_work_across_streams),
        cmocka_unit_test(an_error_on_the_second_stream_is_reported_at_its_fence),
        cmocka_unit_test(fences_carry_an_error_to_the_streams_that_wait),
        cmocka_unit_test(ops_on_the_second_stream_equal_those_of_the_first),
        cmocka_unit_test(ops_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
