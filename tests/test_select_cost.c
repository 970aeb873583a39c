/* test_select_cost.c - bytes of selecting decode steps: against sums by hand, and against known
 * figures of Qwen3-8B. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/select/select_cost.h"

static const cn_select_shape qwen3_8b = {.weight_bytes = UINT64_C(15140000000),
                                         .n_layers = 36,
                                         .n_heads = 32,
                                         .n_kv_heads = 8,
                                         .head_dim = 128,
                                         .block_tokens = 256,
                                         .act_dtype = CN_BF16};

static cn_kv_params params(cn_kv_select select, cn_select_group group)
{
    cn_kv_params kv = {.policy = CN_KV_FULL,
                       .sink_tokens = 4,
                       .select = select,
                       .select_tokens = 2048,
                       .select_tiles = 128,
                       .select_group = group,
                       .select_window = 16,
                       .recent_tokens = 64};
    const cn_kv_params most = kv;
    assert_int_equal(cn_selector_check(&kv, 256, &most), CN_OK);
    return kv;
}

static void close_to(double x, double expected, double share)
{
    if (x < expected * (1 - share) || x > expected * (1 + share))
        fail_msg("%g: expected %g within %g %%", x, expected, share * 100);
}

static void sizes_of_a_token(void **state)
{
    (void)state;
    const cn_select_shape *z = &qwen3_8b;
    const uint32_t labels = 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES;
    assert_int_equal(cn_select_kv_bytes(z), 147456);
    assert_int_equal(cn_select_digest_bytes(z, 0), 0);
    assert_int_equal(cn_select_digest_bytes(z, labels), 36 * 8 * (128 / 8 + 2));
    assert_int_equal(cn_select_digest_bytes(z, 1U << CN_PLANE_BOUNDS_16), 9216);
    assert_int_equal(cn_select_digest_bytes(z, 1U << CN_PLANE_BOUNDS_64), 2304);
    /* Other planes of a block are not digests. */
    assert_int_equal(cn_select_digest_bytes(z, labels | 1U << CN_PLANE_SCORE | 1U << CN_PLANE_KV),
                     36 * 8 * (128 / 8 + 2));
}

/* 128k tokens: 2 tokens more or less in the tail and the candidates do not matter. Bytes of a unit
 * (layer and kv head); the mean tail has 96.5 tokens. */
static void rows_read_what_the_ops_read(void **state)
{
    (void)state;
    const double n = 131072, past = n - 100.5, list = (2048 + 4 + 96.5) * 512;
    const struct {
        cn_kv_select select;
        cn_select_group group;
        double unit_bytes;
    } cases[] = {
        {CN_SELECT_NONE, CN_SELECT_MAX, n * 512},
        {CN_SELECT_ORACLE, CN_SELECT_MAX, past * (256 + 6) + list},
        {CN_SELECT_QUEST, CN_SELECT_MAX, past / 16 * (512 + 6) + list + 12 * 512},
        {CN_SELECT_DS, CN_SELECT_MEAN, past * (18 + 6) + list},
        {CN_SELECT_DS, CN_SELECT_MAX, past * (2 * 18 + 6) + list},
        {CN_SELECT_TLS, CN_SELECT_MEAN, past / 64 * (512 + 6) + 8192 * (18 + 6) + list},
        {CN_SELECT_RANDOM, CN_SELECT_MAX, past * 6 + list},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_kv_params kv = params(cases[i].select, cases[i].group);
        close_to(cn_select_row_bytes(&qwen3_8b, &kv, 131072), 288 * cases[i].unit_bytes, 1e-4);
    }
    /* Selectors that predict also read the ring, and attend to about a window of 256 tokens and
     * half a block more. */
    const double tail = 256 - 4 + 129.5, ring = 17 * 32 * 128 * 2 / 8.0;
    cn_kv_params kv = params(CN_SELECT_SPADE, CN_SELECT_MAX);
    close_to(cn_select_row_bytes(&qwen3_8b, &kv, 131072),
             288 * ((n - tail - 4) * (18 + 6) + (2048 + 4 + tail) * 512 + ring), 1e-4);
    kv.select_keys = CN_SELECT_ROWS;
    close_to(cn_select_row_bytes(&qwen3_8b, &kv, 131072),
             288 * ((n - tail - 4) * (256 + 6) + (2048 + 4 + tail) * 512 + ring), 1e-4);
}

/* A row of 128 elements in eight bits has 130 bytes; labels and bounds are as large as before. */
static void rows_in_eight_bits_are_counted_with_their_scales(void **state)
{
    (void)state;
    cn_select_shape z = qwen3_8b;
    z.kv_form = CN_KV_FP8;
    const double n = 131072, past = n - 100.5, list = (2048 + 4 + 96.5) * 260;
    const struct {
        cn_kv_select select;
        double unit_bytes;
    } cases[] = {
        {CN_SELECT_NONE, n * 260},
        {CN_SELECT_ORACLE, past * (130 + 6) + list},
        {CN_SELECT_QUEST, past / 16 * (512 + 6) + list + 12 * 260},
        {CN_SELECT_DS, past * (2 * 18 + 6) + list},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cn_kv_params kv = params(cases[i].select, CN_SELECT_MAX);
        close_to(cn_select_row_bytes(&z, &kv, 131072), 288 * cases[i].unit_bytes, 1e-4);
    }
    assert_int_equal(cn_select_kv_bytes(&z), 288 * 260);
}

static void dense_layers_read_all_tokens(void **state)
{
    (void)state;
    cn_select_shape z = qwen3_8b;
    const cn_kv_params kv = params(CN_SELECT_DS, CN_SELECT_MAX);
    const cn_kv_params none = params(CN_SELECT_NONE, CN_SELECT_MAX);
    const double selecting = cn_select_row_bytes(&z, &kv, 32768);
    const double dense = cn_select_row_bytes(&z, &none, 32768);
    z.dense_layers = 9;
    close_to(cn_select_row_bytes(&z, &kv, 32768), 0.75 * selecting + 0.25 * dense, 1e-9);
    assert_true(cn_select_row_bytes(&z, &none, 32768) == dense);
}

/* Eight requests: 1.2x at 45k tokens in the batch, 1.5x at 83k, 2x at 150k, 3x at 300k. The same
 * arithmetic by hand, with c = bytes of labels and scores per token and A = attention of a row:
 * T = ((s - 1) weights + 8 s A) / (m - s c). */
static void tokens_for_a_speed_up(void **state)
{
    (void)state;
    static const struct {
        double speed_up, batch_tokens;
    } known[] = {{1.2, 45000}, {1.5, 83000}, {2, 150000}, {3, 300000}};
    const cn_kv_params kv = params(CN_SELECT_DS, CN_SELECT_MEAN);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const double s = known[i].speed_up;
        const uint32_t n = cn_select_tokens_for(&qwen3_8b, &kv, 8, s, 1 << 20);
        close_to(8.0 * n, known[i].batch_tokens, 0.035);
        close_to(8.0 * n, ((s - 1) * 15.14e9 + 8 * s * 2148.5 * 147456) / (147456 - s * 6912),
                 0.01);
        assert_true(cn_select_speed_up(&qwen3_8b, &kv, 8, n) > s);
        assert_true(cn_select_speed_up(&qwen3_8b, &kv, 8, n - 1) <= s);
    }
    /* 32k x 8: 12.09 ms dense, 4.38 ms with ds. */
    close_to(cn_select_speed_up(&qwen3_8b, &kv, 8, 32768), 12.09 / 4.38, 0.01);
}

static void speed_up_is_one_until_steps_select(void **state)
{
    (void)state;
    const cn_kv_params kv = params(CN_SELECT_ORACLE, CN_SELECT_MAX);
    assert_true(cn_select_speed_up(&qwen3_8b, &kv, 8, 1) == 1);
    assert_true(cn_select_speed_up(&qwen3_8b, &kv, 8, 2000) == 1);
    /* Candidates are read besides the list: at first the step is longer. */
    assert_true(cn_select_speed_up(&qwen3_8b, &kv, 8, 2600) < 1);
    const uint32_t n = cn_select_tokens_for(&qwen3_8b, &kv, 8, 1, 1 << 20);
    assert_in_range(n, 4096, 4600);
    assert_true(cn_select_speed_up(&qwen3_8b, &kv, 8, n - 1) <= 1);
    /* The oracle reads all keys, half of KV, so it never reaches 2. */
    assert_int_equal(cn_select_tokens_for(&qwen3_8b, &kv, 8, 2, 1 << 20), 0);
    assert_int_equal(cn_select_tokens_for(&qwen3_8b, &kv, 8, 1, 4000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_of_a_token),
        cmocka_unit_test(rows_read_what_the_ops_read),
        cmocka_unit_test(rows_in_eight_bits_are_counted_with_their_scales),
        cmocka_unit_test(dense_layers_read_all_tokens),
        cmocka_unit_test(tokens_for_a_speed_up),
        cmocka_unit_test(speed_up_is_one_until_steps_select),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
