/* test_attn_cpu.c - attention on the CPU compared with a plain softmax in double, on random shapes,
 * and that a query row has the same bits in every pass. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/cpu/cpu_ops.h"
#include "tests/lib/attend_lists.h"
#include "tests/lib/backend_rig.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/sanitizer.h"

/* The reference is slow under the thread sanitizer and has no threads to check. */
enum { N_DRAWN = BY_SANITIZER(40, 40, 4) };

static const double TOLERANCE = 2e-6; /* values are averages of numbers in [-1, 1] */

static cn_attn_args make_args(const paged_batch *b, const float *q, float *out, uint32_t layer)
{
    return (cn_attn_args){.out = out,
                          .q = q,
                          .kv = b->kv,
                          .batch = &b->view,
                          .layout = b->layout,
                          .n_heads = b->n_heads,
                          .layer = layer,
                          .scale = 1.0f / sqrtf((float)b->layout.head_dim)};
}

/* One query head over an explicit list of slots, in double. */
static void reference_row(const paged_batch *b, uint32_t layer, uint32_t seq, uint32_t kv_head,
                          const float *q, const uint32_t *slots, uint32_t n, double *out)
{
    uint32_t d = b->layout.head_dim;
    double *score = cn_calloc(n, sizeof *score), max = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < n; t++) {
        const float *k = paged_batch_row(b, layer, seq, kv_head, slots[t], CN_KV_K);
        for (uint32_t i = 0; i < d; i++) score[t] += (double)q[i] * k[i];
        score[t] /= sqrt(d);
        max = fmax(max, score[t]);
    }
    memset(out, 0, d * sizeof *out);
    for (uint32_t t = 0; t < n; t++) {
        double w = exp(score[t] - max);
        const float *v = paged_batch_row(b, layer, seq, kv_head, slots[t], CN_KV_V);
        for (uint32_t i = 0; i < d; i++) out[i] += w * v[i];
        sum += w;
    }
    for (uint32_t i = 0; i < d; i++) out[i] /= sum;
    cn_free(score);
}

static double row_error(const float *got, const double *want, uint32_t d)
{
    double worst = 0;
    for (uint32_t i = 0; i < d; i++) {
        double diff = fabs((double)got[i] - want[i]);
        worst = diff <= worst ? worst : diff; /* a NaN counts as the worst */
        if (isnan(diff)) return INFINITY;
    }
    return worst;
}

static void check_against_reference(const paged_batch *b, uint32_t layer, const float *q,
                                    const float *out)
{
    uint32_t d = b->layout.head_dim, group = b->n_heads / b->layout.n_kv_heads;
    uint32_t *slots = cn_calloc(b->view.max_kv, sizeof *slots);
    for (uint32_t t = 0; t < b->view.max_kv; t++) slots[t] = t;
    for (uint32_t s = 0; s < b->view.n_seqs; s++)
        for (uint32_t t = b->q_start[s]; t < b->q_start[s + 1]; t++)
            for (uint32_t h = 0; h < b->n_heads; h++) {
                double want[CN_CPU_MAX_HEAD_DIM];
                size_t at = ((size_t)t * b->n_heads + h) * d;
                uint32_t n_seen = b->kv_len[s] - (b->q_start[s + 1] - t) + 1;
                reference_row(b, layer, s, h / group, q + at, slots, n_seen, want);
                assert_true(row_error(out + at, want, d) < TOLERANCE);
            }
    cn_free(slots);
}

static paged_shape draw_shape(test_rng *r)
{
    static const uint32_t dims[] = {16, 64, 80, 96, 128, 256};
    static const paged_limits most = {.dims = dims,
                                      .n_dims = sizeof dims / sizeof *dims,
                                      .most_seqs = 4,
                                      .most_blocks = 2,
                                      .most_edges = 2,
                                      .most_q = 90};
    return paged_shape_draw(r, &most);
}

/* Runs both attention ops over the whole batch. */
static float *run_attention(cn_backend *be, const paged_batch *b, const float *q, uint32_t layer)
{
    size_t n = (size_t)b->view.n_tokens * b->n_heads * b->layout.head_dim;
    float *out = cn_calloc(n, sizeof *out);
    cn_attn_args a = make_args(b, q, out, layer);
    assert_int_equal(be->attn_decode(backend_rig_stream(be), &a), CN_OK);
    assert_int_equal(be->attn_prefill(backend_rig_stream(be), &a), CN_OK);
    return out;
}

static float *draw_queries(test_rng *r, const paged_batch *b, float magnitude)
{
    size_t n = (size_t)b->view.n_tokens * b->n_heads * b->layout.head_dim;
    float *q = cn_calloc(n, sizeof *q);
    for (size_t i = 0; i < n; i++) q[i] = magnitude * test_rng_uniform(r);
    return q;
}

static void random_shapes_agree_with_a_plain_softmax(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < N_DRAWN; seed++) {
        test_rng r = {seed};
        paged_shape s = draw_shape(&r);
        paged_batch *b = paged_batch_create(&s, &r);
        float *q = draw_queries(&r, b, 4);
        float *out = run_attention(be, b, q, seed % 2);
        check_against_reference(b, seed % 2, q, out);
        cn_free(out);
        cn_free(q);
        paged_batch_free(b);
    }
    backend_rig_close(be);
}

static void a_group_larger_than_a_pass_is_split(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    test_rng r = {7};
    paged_shape s = {.n_layers = 1,
                     .n_heads = 71,
                     .n_kv_heads = 1,
                     .head_dim = 32,
                     .block_tokens = 16,
                     .n_seqs = 2,
                     .n_decode = 1,
                     .n_q = {1, 5},
                     .kv_len = {33, 20}};
    paged_batch *b = paged_batch_create(&s, &r);
    float *q = draw_queries(&r, b, 4);
    float *out = run_attention(be, b, q, 0);
    check_against_reference(b, 0, q, out);
    cn_free(out);
    cn_free(q);
    paged_batch_free(b);
    backend_rig_close(be);
}

/* Scores are far apart: the running maximum changes by hundreds and weights underflow to 0. */
static void extreme_scores_stay_finite(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    test_rng r = {11};
    paged_shape s = {.n_layers = 1,
                     .n_heads = 2,
                     .n_kv_heads = 1,
                     .head_dim = 64,
                     .block_tokens = 16,
                     .n_seqs = 1,
                     .n_decode = 1,
                     .n_q = {1},
                     .kv_len = {200}};
    paged_batch *b = paged_batch_create(&s, &r);
    float *q = draw_queries(&r, b, 3000);
    float *out = run_attention(be, b, q, 0);
    for (uint32_t i = 0; i < 2 * 64; i++) assert_true(fabsf(out[i]) <= 1.0001f);
    cn_free(out);
    cn_free(q);
    paged_batch_free(b);
    backend_rig_close(be);
}

/* ---- same bits ---- */

/* Checks one sequence of `len` tokens whose last n_q are computed, as a decode or as a prefill
 * chunk. The batch borrows the pool of `whole`. */
static void check_chunk(cn_backend *be, const paged_batch *whole, const float *q, const float *want,
                        uint32_t from, uint32_t n_q, bool decode)
{
    uint32_t q_start[2] = {0, n_q}, kv_len = from + n_q;
    size_t row = (size_t)whole->n_heads * whole->layout.head_dim;
    float *out = cn_calloc(n_q * row, sizeof *out);
    paged_batch chunk = *whole;
    chunk.view.n_tokens = n_q;
    chunk.view.n_decode = decode;
    chunk.view.q_start = q_start;
    chunk.view.kv_len = &kv_len;
    chunk.view.max_q = n_q;
    chunk.view.max_kv = kv_len;
    cn_attn_args a = make_args(&chunk, q + from * row, out, 0);
    if (decode)
        assert_int_equal(be->attn_decode(backend_rig_stream(be), &a), CN_OK);
    else
        assert_int_equal(be->attn_prefill(backend_rig_stream(be), &a), CN_OK);
    assert_memory_equal(out, want + from * row, n_q * row * sizeof *out);
    cn_free(out);
}

/* Whole prefill on one thread is the reference. Chunks of odd sizes and single decode steps must
 * equal it on other numbers of threads: few threads take whole sequences, many split sequences. */
static void check_same_bits(paged_shape s, uint64_t seed)
{
    test_rng r = {seed};
    paged_batch *b = paged_batch_create(&s, &r);
    float *q = draw_queries(&r, b, 6);
    cn_backend *one = backend_rig_open(1), *many = backend_rig_open(3);
    float *want = run_attention(one, b, q, 0);
    for (uint32_t from = 0; from < s.kv_len[0];) {
        uint32_t n = cn_min_u32(1 + test_rng_below(&r, 150), s.kv_len[0] - from);
        check_chunk(many, b, q, want, from, n, false);
        check_chunk(one, b, q, want, from, 1, true);
        check_chunk(many, b, q, want, from, 1, true);
        from += n;
    }
    check_chunk(many, b, q, want, s.kv_len[0] - 1, 1, true);
    cn_free(want);
    cn_free(q);
    paged_batch_free(b);
    backend_rig_close(one);
    backend_rig_close(many);
}

static void chunks_and_decode_steps_give_the_bits_of_a_whole_prefill(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        test_rng r = {seed + 100};
        paged_shape s = draw_shape(&r);
        s.n_layers = s.n_seqs = 1;
        s.n_decode = 0;
        s.n_q[0] = s.kv_len[0] = 200 + test_rng_below(&r, 150);
        check_same_bits(s, seed);
    }
}

static void long_sequences_give_the_same_bits_split_or_not(void **state)
{
    (void)state;
    paged_shape s = {.n_layers = 1,
                     .n_heads = 2,
                     .n_kv_heads = 1,
                     .head_dim = 16,
                     .block_tokens = 64,
                     .n_seqs = 1,
                     .n_q = {2500},
                     .kv_len = {2500}};
    check_same_bits(s, 5);
}

/* ---- sparse ---- */

/* What a sequence attends to: list_len slots of the list of each kv head, then slots from tail on;
 * sometimes nothing. */
typedef struct sparse_lists {
    uint32_t *index, stride;
    uint32_t list_len[PAGED_MAX_SEQS], tail[PAGED_MAX_SEQS], lengths[PAGED_MAX_SEQS];
} sparse_lists;

static sparse_lists draw_lists(test_rng *r, const paged_batch *b)
{
    sparse_lists l = {.stride = b->view.max_kv};
    uint32_t hk = b->layout.n_kv_heads;
    l.index = cn_calloc((size_t)b->view.n_decode * hk * l.stride, sizeof *l.index);
    for (uint32_t s = 0; s < b->view.n_decode; s++) {
        uint32_t len = b->kv_len[s];
        l.tail[s] = test_rng_below(r, len + 1);
        l.list_len[s] = test_rng_below(r, len + 1);
        l.lengths[s] = l.list_len[s] + (test_rng_below(r, 3) ? len - l.tail[s] : 0);
        if (test_rng_below(r, 5) == 0) l.lengths[s] = 0;
        uint32_t *list = l.index + (size_t)s * hk * l.stride;
        for (uint32_t i = 0; i < hk * l.stride; i++) list[i] = test_rng_below(r, len);
    }
    return l;
}

static void check_sparse(cn_backend *be, const paged_batch *b, const float *q, test_rng *r)
{
    uint32_t hk = b->layout.n_kv_heads, d = b->layout.head_dim, group = b->n_heads / hk;
    sparse_lists l = draw_lists(r, b);
    uint32_t *slots = cn_calloc(2 * l.stride, sizeof *slots);
    float *out = cn_calloc((size_t)b->view.n_tokens * b->n_heads * d, sizeof *out);
    const cn_attn_args a = make_args(b, q, out, 1);
    const attend_lists lists = {l.index, l.stride, l.list_len, l.tail, l.lengths};
    assert_int_equal(attend_to_lists(be, backend_rig_stream(be), &a, &lists), CN_OK);
    for (uint32_t s = 0; s < b->view.n_decode; s++)
        for (uint32_t h = 0; h < b->n_heads; h++) {
            double want[CN_CPU_MAX_HEAD_DIM];
            size_t at = ((size_t)s * b->n_heads + h) * d, list = (size_t)s * hk + h / group;
            for (uint32_t i = 0; i < l.lengths[s]; i++)
                slots[i] = i < l.list_len[s] ? l.index[list * l.stride + i]
                                             : l.tail[s] + i - l.list_len[s];
            reference_row(b, 1, s, h / group, q + at, slots, l.lengths[s], want);
            if (l.lengths[s] == 0) memset(want, 0, sizeof want);
            assert_true(row_error(out + at, want, d) < TOLERANCE);
        }
    cn_free(out);
    cn_free(slots);
    cn_free(l.index);
}

static void sparse_attention_reads_its_lists_and_tails(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    for (uint64_t seed = 0; seed < 25; seed++) {
        test_rng r = {seed + 1000};
        paged_shape s = draw_shape(&r);
        s.n_decode = s.n_seqs;
        for (uint32_t i = 0; i < s.n_seqs; i++) s.n_q[i] = 1;
        paged_batch *b = paged_batch_create(&s, &r);
        float *q = draw_queries(&r, b, 4);
        check_sparse(be, b, q, &r);
        cn_free(q);
        paged_batch_free(b);
    }
    backend_rig_close(be);
}

static void all_slots_as_list_and_tail_give_the_bits_of_full_attention(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(2);
    test_rng r = {3};
    paged_shape s = {.n_layers = 1,
                     .n_heads = 6,
                     .n_kv_heads = 2,
                     .head_dim = 80,
                     .block_tokens = 32,
                     .n_seqs = 1,
                     .n_decode = 1,
                     .n_q = {1},
                     .kv_len = {1100}};
    paged_batch *b = paged_batch_create(&s, &r);
    float *q = draw_queries(&r, b, 4), *want = run_attention(be, b, q, 0);
    float *out = cn_calloc(6 * 80, sizeof *out);
    uint32_t index[2 * 1100], length = 1100;
    for (uint32_t i = 0; i < 2 * 1100; i++) index[i] = i % 1100;
    for (uint32_t list_len = 0; list_len <= 1100; list_len += 275) {
        const cn_attn_args a = make_args(b, q, out, 0);
        const attend_lists lists = {index, 1100, &list_len, &list_len, &length};
        memset(out, 0, 6 * 80 * sizeof *out);
        assert_int_equal(attend_to_lists(be, backend_rig_stream(be), &a, &lists), CN_OK);
        assert_memory_equal(out, want, 6 * 80 * sizeof *out);
    }
    cn_free(out);
    cn_free(want);
    cn_free(q);
    paged_batch_free(b);
    backend_rig_close(be);
}

/* ---- lengths ---- */

/* With lengths of its own, decode attends to that many slots. Few sequences are split over the
 * threads, many are not. */
static void lengths_replace_the_resident_slots_and_zero_leaves_a_row_alone(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(3);
    for (uint32_t n_seqs = 2; n_seqs <= 8; n_seqs += 6) {
        test_rng r = {n_seqs};
        paged_shape s = {.n_layers = 1,
                         .n_heads = 2,
                         .n_kv_heads = 1,
                         .head_dim = 32,
                         .block_tokens = 64,
                         .n_seqs = n_seqs,
                         .n_decode = n_seqs};
        uint32_t lengths[8] = {0, 1500, 70, 0, 2100, 1, 1024, 0};
        for (uint32_t i = 0; i < n_seqs; i++) {
            s.n_q[i] = 1;
            s.kv_len[i] = 2100;
        }
        paged_batch *b = paged_batch_create(&s, &r);
        float *q = draw_queries(&r, b, 4), out[8 * 2 * 32], want[8 * 2 * 32];
        for (uint32_t i = 0; i < 8 * 2 * 32; i++) out[i] = want[i] = -7;
        cn_attn_args a = make_args(b, q, out, 0);
        a.lengths = lengths;
        assert_int_equal(be->attn_decode(backend_rig_stream(be), &a), CN_OK);
        for (uint32_t i = 0; i < n_seqs; i++) {
            b->kv_len[i] = lengths[i] ? lengths[i] : 1;
        }
        a.out = want;
        a.lengths = NULL;
        assert_int_equal(be->attn_decode(backend_rig_stream(be), &a), CN_OK);
        for (uint32_t i = 0; i < n_seqs * 64; i++)
            assert_true(out[i] == (lengths[i / 64] ? want[i] : -7));
        cn_free(q);
        paged_batch_free(b);
    }
    backend_rig_close(be);
}

/* ---- refusals ---- */

static void unsupported_shapes_are_refused_by_name(void **state)
{
    (void)state;
    cn_backend *be = backend_rig_open(1);
    test_rng r = {1};
    paged_shape s = {.n_layers = 1,
                     .n_heads = 3,
                     .n_kv_heads = 2,
                     .head_dim = 64,
                     .block_tokens = 16,
                     .n_seqs = 1,
                     .n_decode = 1,
                     .n_q = {1},
                     .kv_len = {4}};
    paged_batch *b = paged_batch_create(&s, &r);
    float q[3 * 64] = {0}, out[3 * 64];
    cn_attn_args a = make_args(b, q, out, 0);
    assert_int_equal(be->attn_decode(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "3 query heads"));
    a.n_heads = 2;
    a.layout.head_dim = 72;
    assert_int_equal(be->attn_prefill(backend_rig_stream(be), &a), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "head_dim 72"));
    a.layout.head_dim = 64;
    uint32_t index[2] = {0, 0}, list_len = 2, tail = 0, length = 4;
    const attend_lists lists = {index, 1, &list_len, &tail, &length};
    assert_int_equal(attend_to_lists(be, backend_rig_stream(be), &a, &lists), CN_ERR_SHAPE);
    assert_non_null(strstr(cn_last_error(), "list of 2 slots of sequence 0: expected at most 1"));
    paged_batch_free(b);
    backend_rig_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes_agree_with_a_plain_softmax),
        cmocka_unit_test(a_group_larger_than_a_pass_is_split),
        cmocka_unit_test(extreme_scores_stay_finite),
        cmocka_unit_test(chunks_and_decode_steps_give_the_bits_of_a_whole_prefill),
        cmocka_unit_test(long_sequences_give_the_same_bits_split_or_not),
        cmocka_unit_test(sparse_attention_reads_its_lists_and_tails),
        cmocka_unit_test(all_slots_as_list_and_tail_give_the_bits_of_full_attention),
        cmocka_unit_test(lengths_replace_the_resident_slots_and_zero_leaves_a_row_alone),
        cmocka_unit_test(unsupported_shapes_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
