/* test_plan_shards.c - the time that GPUs lose at the start and the end of their shards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "engine/cmd/plan_shards.h"

/* Requests that are all alike lose only the start, and the seats that the last round leaves. */
static void equal_lengths_lose_what_one_can_count(void **state)
{
    (void)state;
    uint32_t length = 100;
    double mean;
    cn_shard_model m = {.slots = 10, .base_s = 0.01, .each_s = 0.001, .lengths = &length,
                        .n_lengths = 1};
    assert_true(fabs(cn_shard_loss(&m, 100, &mean)) < 1e-9);
    assert_true(fabs(mean - 100) < 1e-9);
    /* 10 rounds of 10 and one of 5: 21 s at best, 20 + 1.5 s. */
    assert_true(fabs(cn_shard_loss(&m, 105, &mean) - (1 - 21 / 21.5)) < 1e-9);
    m.start_s = 20; /* as long as 10 rounds take */
    assert_true(fabs(cn_shard_loss(&m, 100, &mean) - 0.5) < 1e-9);
}

/* Another simulation, of one seed, had these figures: 320 seats, 6 ms + 75 us a request, lognormal
 * of median 4,000 up to 32,768 tokens, 90 s until the first step. */
static void agrees_with_another_simulation(void **state)
{
    (void)state;
    static const struct {
        uint64_t n_lines;
        double lost;
    } rows[] = {{1000, 0.291}, {4000, 0.092}, {16000, 0.025}};
    const cn_shard_model m = {.slots = 320, .base_s = 0.006, .each_s = 75e-6, .start_s = 90,
                              .median = 4000, .most = 32768};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double mean;
        const double lost = cn_shard_loss(&m, rows[i].n_lines, &mean);
        if (fabs(lost - rows[i].lost) > 0.012 || fabs(mean - 6276) > 300)
            fail_msg("%llu lines: lost %.3f, %.0f tokens", (unsigned long long)rows[i].n_lines,
                     lost, mean);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_lengths_lose_what_one_can_count),
        cmocka_unit_test(agrees_with_another_simulation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
