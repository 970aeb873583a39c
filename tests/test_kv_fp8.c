/* test_kv_fp8.c - K and V in eight bits on the CPU: the arithmetic of a row against sums in double,
 * and each op on rows in eight bits against itself on the same values in f32, bit by bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"
#include "paged/kv_fp8.h"
#include "tests/lib/attend_lists.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/fp8_pool.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/sanitizer.h"
#include "tests/lib/select_world.h"

enum { N_SHAPES = BY_SANITIZER(24, 24, 4), MAX_D = CN_CPU_MAX_HEAD_DIM };

/* ---- the arithmetic ---- */

/* The value of a code as the format defines it: 4 exponent bits with bias 7, 3 mantissa bits. */
static double value_of(uint32_t code)
{
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -size : size;
}

static void every_code_has_its_value(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        const float value = cn_fp8_value((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            continue;
        }
        assert_true((double)value == value_of(code) && !signbit(value) == !(code & 0x80));
        assert_int_equal(cn_fp8_of(value), code);
    }
    assert_true(cn_fp8_value(0x7e) == 448);
}

/* Between two neighbours, at and beside the middle; ties go to the even code. */
static void values_go_to_the_nearest_code(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7e; code++) {
        const float middle = (float)((value_of(code) + value_of(code + 1)) / 2);
        for (uint32_t sign = 0; sign <= 0x80; sign += 0x80) {
            const float s = sign ? -1 : 1;
            assert_int_equal(cn_fp8_of(s * nextafterf(middle, 0)), code | sign);
            assert_int_equal(cn_fp8_of(s * middle), (code + code % 2) | sign);
            assert_int_equal(cn_fp8_of(s * nextafterf(middle, 1e9f)), (code + 1) | sign);
        }
    }
    assert_int_equal(cn_fp8_of(1e30f), 0x7e);
    assert_int_equal(cn_fp8_of(-INFINITY), 0xfe);
    assert_int_equal(cn_fp8_of(NAN), 0x7f);
    assert_int_equal(cn_fp8_of(1e-30f), 0);
}

/* The scale is the least normal f16 that is not below max / 448. */
static void scales_are_rounded_up(void **state)
{
    (void)state;
    test_rng r = {3};
    for (uint32_t i = 0; i < 200000; i++) {
        const float x = ldexpf(1 + fabsf(test_rng_uniform(&r)), (int)test_rng_below(&r, 60) - 35);
        const uint16_t scale = cn_fp8_scale(cn_fp8_size(-x));
        const double value = (double)cn_fp8_scale_value(scale);
        const double below = (double)cn_fp8_scale_value((uint16_t)(scale - 1));
        /* One unit of the last place: the quotient is rounded to f32 first. */
        const double wanted = (double)x / 448;
        if (wanted > 65504) {
            assert_int_equal(scale, 0x7bff);
            continue;
        }
        assert_true(value >= ldexp(1, -14) && value >= wanted * (1 - ldexp(1, -24)));
        assert_true(scale == 0x0400 || below < wanted);
    }
    assert_int_equal(cn_fp8_scale(0), 0x0400);
    assert_true(cn_fp8_scale_value(0x0400) == 0x1p-14f && cn_fp8_scale_value(0x3c00) == 1);
    assert_true(cn_fp8_scale_value(0) == 0);
    assert_true(isnan(cn_fp8_scale_value(cn_fp8_scale(cn_fp8_size(NAN)))));
    assert_true(isnan(cn_fp8_scale_value(cn_fp8_scale(cn_fp8_size(-INFINITY)))));
}

static void a_tile_has_four_parts(void **state)
{
    (void)state;
    const cn_kv_layout l = cn_kv_layout_form(36, 4, 8, 256, 128, CN_BF16, CN_KV_FP8);
    assert_int_equal(l.tile_bytes, 16640);
    assert_int_equal(l.n_parts, 4);
    assert_int_equal(l.block_bytes, 8 * 4 * 16640);
    assert_false(cn_kv_layout_is_uniform(&l, CN_E4M3));
    const cn_kv_layout other = cn_kv_layout_like(&l, 2, 9);
    assert_int_equal(other.tile_bytes, 16640);
    assert_int_equal(cn_kv_pool_bytes(&other), 2 * 9 * l.block_bytes);
    /* Draft K and bounds stay in the type of activations. */
    assert_int_equal(cn_block_plane_bytes(&l, CN_PLANE_BOUNDS_64), 8 * 4 * 2 * 128 * 2);
}

/* ---- rope_store ---- */

/* Checks a stored row: each value is as near to x as its scale allows. */
static void check_stored(const cn_kv_layout *l, const void *kv, cn_cpu_place at, cn_kv_part part,
                         const float *x)
{
    const cn_kv_part scales = part == CN_KV_K ? CN_KV_K_SCALE : CN_KV_V_SCALE;
    const uint8_t *codes =
        (const uint8_t *)kv + cn_kv_at(l, at.layer, at.block, at.head, at.slot, part);
    uint16_t bits;
    memcpy(&bits, (const char *)kv + cn_kv_at(l, at.layer, at.block, at.head, at.slot, scales),
           sizeof bits);
    float largest = 0;
    for (uint32_t i = 0; i < l->head_dim; i++) largest = fmaxf(largest, fabsf(x[i]));
    assert_int_equal(bits, cn_fp8_scale(cn_fp8_size(largest)));
    const double scale = (double)cn_fp8_scale_value(bits);
    for (uint32_t i = 0; i < l->head_dim; i++) {
        const double error = fabs(value_of(codes[i]) * scale - (double)x[i]);
        for (int step = -1; step <= 1; step += 2) {
            const uint32_t size = codes[i] & 0x7f, other = size + (uint32_t)step;
            if (other > 0x7e) continue; /* also below 0 */
            const double value = (codes[i] & 0x80 ? -1 : 1) * value_of(other) * scale;
            assert_true(error <= fabs(value - (double)x[i]) * (1 + 1e-9));
        }
    }
}

static void rope_store_stores_rows_in_eight_bits(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256};
    enum { POSITIONS = 300 };
    cn_backend *be = backend_rig_open(2);
    for (uint32_t i = 0; i < 12; i++) {
        test_rng r = {i};
        const uint32_t d = dims[i % 6];
        const paged_shape s = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = d,
                               .block_tokens = 16U << i % 5, .n_seqs = 2, .n_decode = 1,
                               .n_q = {1, 40}, .kv_len = {200, 130}};
        paged_batch *b = paged_batch_create(&s, &r);
        const uint32_t n = b->view.n_tokens;
        float *qkv = cn_calloc((size_t)n * 8 * d, sizeof *qkv);
        float *q = cn_calloc((size_t)n * 4 * d, sizeof *q);
        float *table = cn_calloc((size_t)POSITIONS * d, sizeof *table);
        for (size_t j = 0; j < (size_t)n * 8 * d; j++)
            qkv[j] = ldexpf(test_rng_uniform(&r), (int)(j / d % 24) - 12);
        test_rng_fill(&r, table, (size_t)POSITIONS * d);
        fp8_pool p = fp8_pool_make(&b->layout, b->kv);
        cn_rope_store_args a = {.q = q, .qkv = qkv, .cos = table, .sin = table + POSITIONS * d / 2,
                                .batch = &b->view, .n_heads = 4, .layer = 1, .layout = b->layout,
                                .kv = b->kv};
        assert_int_equal(be->rope_store(backend_rig_stream(be), &a), CN_OK);
        a.layout = p.layout;
        a.kv = p.kv;
        assert_int_equal(be->rope_store(backend_rig_stream(be), &a), CN_OK);
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t h = 0; h < 2; h++) {
                const uint32_t slot = b->kv_slots[t] % s.block_tokens;
                const cn_cpu_place at = {1, b->kv_slots[t] / s.block_tokens, h, slot};
                for (int part = CN_KV_K; part <= CN_KV_V; part++)
                    check_stored(&p.layout, p.kv, at, (cn_kv_part)part,
                                 b->kv + cn_kv_row(&b->layout, 1, at.block, h, slot,
                                                   (cn_kv_part)part));
            }
        fp8_pool_free(&p);
        cn_free(table);
        cn_free(q);
        cn_free(qkv);
        paged_batch_free(b);
    }
    backend_rig_close(be);
}

/* ---- attention ---- */

static cn_attn_args attn_args(const paged_batch *b, const float *q, float *out)
{
    return (cn_attn_args){.out = out, .q = q, .kv = b->kv, .batch = &b->view, .layout = b->layout,
                          .n_heads = b->n_heads, .layer = 1,
                          .scale = 1 / sqrtf((float)b->layout.head_dim)};
}

static void run_attention(cn_backend *be, const cn_attn_args *a, const attend_lists *lists)
{
    cn_stream *s = backend_rig_stream(be);
    if (lists) assert_int_equal(attend_to_lists(be, s, a, lists), CN_OK);
    else assert_int_equal(be->attn_decode(s, a), CN_OK);
    assert_int_equal(be->attn_prefill(s, a), CN_OK);
}

/* Draws a list and a tail for each decode row; every third row is dense. */
static void draw_lists(attend_lists *lists, const paged_batch *b, uint32_t *len, uint32_t *tail,
                       uint32_t *lengths, test_rng *r)
{
    const uint32_t hk = b->layout.n_kv_heads, n = b->view.n_decode;
    lists->stride = b->view.max_kv;
    lists->index = cn_calloc((size_t)n * hk * lists->stride + 1, sizeof *lists->index);
    for (uint32_t s = 0; s < n; s++) {
        tail[s] = s % 3 ? test_rng_below(r, b->kv_len[s]) : 0;
        len[s] = tail[s] / 2;
        lengths[s] = len[s] + b->kv_len[s] - tail[s];
        for (uint32_t h = 0; h < hk; h++)
            for (uint32_t i = 0; i < len[s]; i++)
                lists->index[((size_t)s * hk + h) * lists->stride + i] =
                    2 * i + (h + i) % 2 * (2 * i + 1 < tail[s]);
    }
    lists->list_len = len;
    lists->tail = tail;
    lists->lengths = lengths;
}

static void attention_reads_the_stored_values(void **state)
{
    (void)state;
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256};
    static const paged_limits most = {.dims = dims, .n_dims = 6, .most_seqs = 4, .most_blocks = 5,
                                      .most_edges = 2, .most_q = 90};
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_SHAPES; seed++) {
        test_rng r = {seed + 100};
        const paged_shape s = paged_shape_draw(&r, &most);
        paged_batch *b = paged_batch_create(&s, &r);
        const size_t n = (size_t)b->view.n_tokens * b->n_heads * s.head_dim;
        float *q = cn_calloc(n, sizeof *q), *want = cn_calloc(n, sizeof *q);
        float *got = cn_calloc(n, sizeof *q);
        uint32_t len[4], tail[4], lengths[4];
        attend_lists lists;
        draw_lists(&lists, b, len, tail, lengths, &r);
        for (size_t i = 0; i < n; i++) q[i] = 4 * test_rng_uniform(&r);
        fp8_pool p = fp8_pool_make(&b->layout, b->kv);
        for (uint32_t sparse = 0; sparse < 2; sparse++) {
            cn_attn_args a = attn_args(b, q, want);
            run_attention(be, &a, sparse ? &lists : NULL);
            a.out = got;
            a.layout = p.layout;
            a.kv = p.kv;
            run_attention(be, &a, sparse ? &lists : NULL);
            assert_memory_equal(got, want, n * sizeof *got);
        }
        fp8_pool_free(&p);
        cn_free(lists.index);
        cn_free(got);
        cn_free(want);
        cn_free(q);
        paged_batch_free(b);
    }
    backend_rig_close(be);
}

/* ---- selection ---- */

typedef struct digest_copy {
    void *planes[4];
    size_t bytes[4];
} digest_copy;

static digest_copy copy_digests(const cn_pools *p)
{
    const cn_block_plane planes[] = {CN_PLANE_LABELS, CN_PLANE_SCALES, CN_PLANE_BOUNDS_16,
                                     CN_PLANE_BOUNDS_64};
    const void *from[] = {p->digest.labels, p->digest.scales, p->digest.bounds_16,
                          p->digest.bounds_64};
    digest_copy c = {0};
    for (int i = 0; i < 4 && from[i]; i++) {
        c.bytes[i] = (size_t)p->layout.n_layers * p->layout.n_blocks *
                     cn_block_plane_bytes(&p->layout, planes[i]);
        c.planes[i] = cn_calloc(c.bytes[i], 1);
        memcpy(c.planes[i], from[i], c.bytes[i]);
    }
    return c;
}

static void digests_and_scores_are_those_of_the_stored_values(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_SHAPES; seed++) {
        select_world w = select_world_draw(seed);
        fp8_pool p = fp8_pool_make(&w.b->layout, w.b->kv);
        select_run_digest(be, &w);
        select_results want = select_run_stages(be, &w);
        digest_copy before = copy_digests(&w.pools);
        w.pools.layout = p.layout;
        w.pools.kv = p.kv;
        select_run_digest(be, &w);
        digest_copy after = copy_digests(&w.pools);
        select_results got = select_run_stages(be, &w);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(before.bytes[i], after.bytes[i]);
            if (before.bytes[i])
                assert_memory_equal(before.planes[i], after.planes[i], before.bytes[i]);
            cn_free(before.planes[i]);
            cn_free(after.planes[i]);
        }
        for (uint32_t i = 0; i < 2; i++) {
            const size_t n = (size_t)w.first[i][w.n_seqs] * p.layout.n_kv_heads * w.n_layers;
            assert_memory_equal(got.score[i], want.score[i], n * sizeof *got.score[i]);
            assert_memory_equal(got.list[i], want.list[i],
                                select_units(&w) * got.stride[i] * sizeof *got.list[i]);
        }
        select_results_free(&got);
        select_results_free(&want);
        fp8_pool_free(&p);
        select_world_free(&w);
    }
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_value),
        cmocka_unit_test(values_go_to_the_nearest_code),
        cmocka_unit_test(scales_are_rounded_up),
        cmocka_unit_test(a_tile_has_four_parts),
        cmocka_unit_test(rope_store_stores_rows_in_eight_bits),
        cmocka_unit_test(attention_reads_the_stored_values),
        cmocka_unit_test(digests_and_scores_are_those_of_the_stored_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
