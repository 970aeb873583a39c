/* test_select_math.c - the arithmetic of selection that all backends share (select_math.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/base.h"
#include "tests/lib/paged_batch.h"
#include "tests/lib/score_value.h"

static void f16_is_the_nearest_and_scores_keep_the_order(void **state)
{
    (void)state;
    test_rng r = {1};
    for (uint32_t h = 0; h < 0x7c00; h++) { /* every f16, and the middle between neighbours */
        const float x = cn_f16_value((uint16_t)h), next = cn_f16_value((uint16_t)(h + 1));
        assert_int_equal(cn_f16_bits(x), h);
        assert_int_equal(cn_f16_bits(-x), h | 0x8000);
        if (h == 0x7bff) continue;
        const float middle = (float)(((double)x + (double)next) / 2);
        assert_int_equal(cn_f16_bits(middle), h + (h & 1));
        assert_true(cn_score_bits(x) < cn_score_bits(next));
        assert_true(cn_score_bits(-next) < cn_score_bits(-x));
        assert_float_equal(test_score_value(cn_score_bits(-next)), -next, 0);
    }
    for (int i = 0; i < 200000; i++) {
        const float x = ldexpf(test_rng_uniform(&r), (int)test_rng_below(&r, 44) - 27);
        assert_true((double)cn_f16_value(cn_f16_bits(x)) == test_nearest_f16((double)x));
    }
    assert_int_equal(cn_score_bits(0.0f), cn_score_bits(-0.0f));
    assert_int_equal(cn_score_bits(-1e-9f), cn_score_bits(0.0f));
    assert_int_equal(cn_score_bits(NAN), 0);
    assert_int_equal(cn_score_bits(INFINITY), cn_score_bits(65504));
    assert_int_equal(cn_score_bits(-1e30f), cn_score_bits(-65504));
    assert_true(cn_score_bits(-INFINITY) > 0);
}

static void logarithms_are_close(void **state)
{
    (void)state;
    for (uint64_t sum = (uint64_t)1 << 40; sum < (uint64_t)1 << 58; sum += sum / 700 + 3) {
        const double want = log2(ldexp((double)sum, -40));
        assert_true(fabs((double)cn_log2_scaled(sum, -40) - want) <= 1e-6 * want + 2e-7);
    }
    assert_true(cn_log2_scaled((uint64_t)1 << 40, -40) == 0.0f);
    assert_true(cn_log2_scaled(0, -40) == 0.0f);
}

static cn_exp_sum sum_of_lot(const float *x, uint32_t n)
{
    uint32_t top = CN_EXPONENT_BASE;
    float sum = 0;
    for (uint32_t i = 0; i < n && i < CN_LOT_FEW_LANES; i++)
        top = cn_max_u32(top, cn_weight_exponent(x[i]));
    for (uint32_t i = 0; i < n; i++) sum += cn_weight(x[i], cn_weight_offset(top));
    cn_exp_sum all = {{0}, 0};
    cn_exp_sum_add_lot(&all, sum, top);
    return all;
}

/* Adds up 2^x[i] by lots of `lot`, in an order that `r` draws. */
static float log2_of_sum(const float *x, uint32_t n, uint32_t lot, test_rng *r)
{
    cn_exp_sum halves[2] = {{{0}, 0}, {{0}, 0}};
    for (uint32_t from = 0; from < n; from += lot) {
        const cn_exp_sum sum = sum_of_lot(x + from, cn_min_u32(lot, n - from));
        cn_exp_sum *half = &halves[test_rng_below(r, 2)];
        *half = test_rng_below(r, 2) ? cn_exp_sum_add(*half, sum) : cn_exp_sum_add(sum, *half);
    }
    return cn_exp_sum_log2(cn_exp_sum_add(halves[0], halves[1]));
}

/* log2 of the sum of 2^x[n], where a weight of a lot saturates 96 above the largest x of the lot's
 * first CN_LOT_FEW_LANES. */
static double saturated_log2_of_sum(const float *x, uint32_t n, uint32_t lot)
{
    double largest = -INFINITY, sum = 0, limit = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < n; i++) {
            if (i % lot == 0) {
                limit = -INFINITY;
                for (uint32_t j = i; j < cn_min_u32(n, i + CN_LOT_FEW_LANES); j++)
                    limit = fmax(limit, rint((double)x[j]) + 96);
            }
            const double value = fmin((double)x[i], limit);
            if (pass == 0) largest = fmax(largest, value);
            else sum += exp2(value - largest);
        }
    return largest + log2(sum);
}

static void sums_of_weights_are_close_in_any_order(void **state)
{
    (void)state;
    enum { MOST = 3000 };
    static float x[MOST];
    test_rng r = {11};
    for (int round = 0; round < 300; round++) {
        const uint32_t n = 1 + test_rng_below(&r, MOST), lot = 1U << (3 + test_rng_below(&r, 6));
        const float width = ldexpf(1, (int)test_rng_below(&r, 12) - 2);
        const float middle = ldexpf(test_rng_uniform(&r) - 0.5f, (int)test_rng_below(&r, 12));
        for (uint32_t i = 0; i < n; i++) x[i] = middle + width * (test_rng_uniform(&r) - 0.5f);
        const double want = saturated_log2_of_sum(x, n, lot);
        const float got = log2_of_sum(x, n, lot, &r);
        assert_true(fabs((double)got - want) <= 0.0435 + 1e-6 * fabs(want));
        for (int again = 0; again < 3; again++) assert_true(log2_of_sum(x, n, lot, &r) == got);
    }
}

/* The last of 256 candidates exceeds the others, which are 0, up to the limit and beyond. */
static void a_weight_saturates_96_above_the_first(void **state)
{
    (void)state;
    float x[256] = {0};
    for (int last = 10; last <= 300; last++) {
        x[255] = (float)last;
        const double got = (double)cn_exp_sum_log2(sum_of_lot(x, 256));
        assert_true(fabs(got - log2(255 + ldexp(1, last < 96 ? last : 96))) <= 0.0435);
    }
}

/* Exponents of lots: bins of 16 below the largest count down to the second below it. */
static void lots_count_down_to_the_second_bin(void **state)
{
    (void)state;
    for (uint32_t below = 0; below < 4; below++) {
        enum { N = 1 << 20 };
        const float high[1] = {0}, low[1] = {-16 * (float)below};
        const cn_exp_sum lot = sum_of_lot(low, 1);
        cn_exp_sum sum = sum_of_lot(high, 1), lots = {{0}, 0};
        const double alone = (double)cn_exp_sum_log2(sum);
        for (uint32_t i = 0; i < N; i++) lots = cn_exp_sum_add(lots, lot);
        sum = cn_exp_sum_add(sum, lots);
        const double want = below < 3 ? log2(1 + ldexp(N, -16 * (int)below)) : 0;
        assert_true(fabs((double)cn_exp_sum_log2(sum) - alone - want) <= 1e-6 * want + 1e-6);
    }
}

static void weights_are_interpolated_and_bounded(void **state)
{
    (void)state;
    for (int exponent = -7000; exponent <= 7000; exponent += 100) {
        const uint32_t top = cn_weight_exponent((float)exponent + 0.25f);
        const float offset = cn_weight_offset(top);
        assert_true(cn_weight((float)exponent, offset) == -2.0f);
        assert_true(cn_weight((float)exponent + 3.5f, offset) == -24.0f);
        assert_true(cn_weight((float)exponent - 2.0f, offset) == -0.5f);
        assert_true(cn_weight(INFINITY, offset) == -ldexpf(1, 97));
        assert_true(cn_weight(-INFINITY, offset) == -ldexpf(1, -31));
        assert_true(cn_weight(NAN, offset) == -ldexpf(1, -31));
        const float x[1] = {(float)exponent};
        assert_true(fabs((double)cn_exp_sum_log2(sum_of_lot(x, 1)) - exponent) < 0.0435);
    }
    assert_int_equal(cn_weight_exponent(NAN), CN_EXPONENT_BASE);
    assert_int_equal(cn_weight_exponent(-1e30f), CN_EXPONENT_BASE);
    assert_int_equal(cn_share_score(NAN), 0);
    assert_int_equal(cn_share_score(0.0f), cn_score_bits(0));
    assert_int_equal(cn_share_score(-1e5f), cn_score_of_f16(0xfc00));
    /* 65,520 is the middle between the largest f16 and the next power of two. */
    assert_int_equal(cn_share_score(65519.0f), cn_score_of_f16(0x7bff));
    assert_int_equal(cn_share_score(-65519.0f), cn_score_of_f16(0xfbff));
    assert_int_equal(cn_share_score(65520.0f), cn_score_of_f16(0x7c00));
    assert_int_equal(cn_share_score(-65520.0f), cn_score_of_f16(0xfc00));
    assert_int_equal(cn_share_score(INFINITY), cn_score_of_f16(0x7c00));
    assert_int_equal(cn_share_score(-INFINITY), cn_score_of_f16(0xfc00));
}

static void quantised_values_are_the_nearest_and_bounded(void **state)
{
    (void)state;
    assert_int_equal(cn_label_of(1.0f, 0), 0);
    assert_int_equal(cn_label_of(3.5f, cn_f16_bits(1)), 4);
    assert_int_equal(cn_label_of(2.5f, cn_f16_bits(1)), 2); /* ties to even */
    assert_int_equal(cn_label_of(-2.6f, cn_f16_bits(1)), -3);
    assert_int_equal(cn_label_of(-70.0f, cn_f16_bits(1)), -7);
    assert_int_equal(cn_query_of(1e30f, 1), 127);
    assert_int_equal(cn_query_of(-126.6f, 1), -127);
    assert_int_equal(cn_label_byte(-1, 3), 0x3f);
    assert_int_equal(cn_label_byte(7, -7), 0x97);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_is_the_nearest_and_scores_keep_the_order),
        cmocka_unit_test(logarithms_are_close),
        cmocka_unit_test(sums_of_weights_are_close_in_any_order),
        cmocka_unit_test(a_weight_saturates_96_above_the_first),
        cmocka_unit_test(lots_count_down_to_the_second_bin),
        cmocka_unit_test(weights_are_interpolated_and_bounded),
        cmocka_unit_test(quantised_values_are_the_nearest_and_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
