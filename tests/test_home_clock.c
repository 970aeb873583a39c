/* test_home_clock.c - the time of an exchange counts ranks and pushes at the same time once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/bench/exchange_clock.h"
#include "tests/lib/paged_batch.h"

static double busy(const double ranks[][2], const double pushes[][2], uint32_t n)
{
    cn_home_times t = {0};
    for (uint32_t p = 0; p < n; p++) {
        t.begins[CN_HOME_RANKS][p] = ranks[p][0];
        t.ends[CN_HOME_RANKS][p] = ranks[p][1];
        t.begins[CN_HOME_PUSHES][p] = pushes[p][0];
        t.ends[CN_HOME_PUSHES][p] = pushes[p][1];
    }
    return cn_home_busy_s(&t, n);
}

static void work_at_the_same_time_counts_once(void **state)
{
    (void)state;
    const double rank[][2] = {{0, 8}}, beside[][2] = {{2, 5}}, behind[][2] = {{9, 11}};
    const double longer[][2] = {{7, 12}};
    assert_true(busy(rank, beside, 1) == 8);
    assert_true(busy(rank, behind, 1) == 10);
    assert_true(busy(rank, longer, 1) == 12);
    /* The push of a pack runs beside the rank of the next one. */
    const double ranks[][2] = {{0, 3}, {3, 6}, {10, 12}}, pushes[][2] = {{3, 5}, {6, 8}, {13, 14}};
    assert_true(busy(ranks, pushes, 3) == 11);
    assert_true(busy(ranks, pushes, 0) == 0);
}

/* Draws n intervals that follow one another between 0 and `end`, and marks their units of time. */
static void draw(test_rng *r, double at[][2], uint32_t n, bool *marked, uint32_t end)
{
    uint32_t now = test_rng_below(r, 4);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t begin = now + test_rng_below(r, 3);
        now = begin + test_rng_below(r, 5);
        at[i][0] = begin;
        at[i][1] = now;
        for (uint32_t u = begin; u < now; u++) marked[u] = true;
        assert_true(now < end);
    }
}

static void drawn_work_is_counted_unit_by_unit(void **state)
{
    (void)state;
    enum { END = 8 * CN_MAX_PACKS + 8 };
    test_rng r = {1};
    for (uint32_t i = 0; i < 10000; i++) {
        double ranks[CN_MAX_PACKS][2], pushes[CN_MAX_PACKS][2];
        bool marked[END] = {false};
        const uint32_t n = 1 + test_rng_below(&r, CN_MAX_PACKS);
        uint32_t units = 0;
        draw(&r, ranks, n, marked, END);
        draw(&r, pushes, n, marked, END);
        for (uint32_t u = 0; u < END; u++) units += marked[u];
        assert_true(busy(ranks, pushes, n) == units);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_at_the_same_time_counts_once),
        cmocka_unit_test(drawn_work_is_counted_unit_by_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
