/* test_churn.c - forced churn: from step to step the wanted set of an exchange changes by the given
 * share, also where it goes around, and a few more candidates do not move it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/home/churn.h"

enum { K = 128, N = 1500, STEPS = 2000 };

static uint32_t count_new(const uint16_t *before, const uint16_t *now, uint32_t n, uint32_t k)
{
    uint32_t fresh = 0, wanted = 0;
    for (uint32_t i = 0; i < n; i++) {
        wanted += now[i] > 0;
        fresh += now[i] > 0 && before[i] == 0;
    }
    assert_int_equal(wanted, k);
    return fresh;
}

static void the_set_changes_by_the_share(void **state)
{
    (void)state;
    static const float shares[] = {0.01f, 0.03f, 0.1f, 0.5f};
    static uint16_t scores[2][N];
    for (size_t s = 0; s < sizeof shares / sizeof *shares; s++) {
        const double want = (double)shares[s] * K;
        double all = 0;
        cn_churn_scores(scores[1], 98303, K, N, shares[s]);
        for (uint32_t step = 0; step < STEPS; step++) {
            cn_churn_scores(scores[step % 2], 98304 + step, K, N, shares[s]);
            const uint32_t fresh = count_new(scores[1 - step % 2], scores[step % 2], N, K);
            assert_true(fresh >= (uint32_t)want && fresh <= (uint32_t)want + 1);
            all += fresh;
        }
        assert_true(all / STEPS > 0.99 * want && all / STEPS < 1.01 * want);
    }
}

static void more_candidates_do_not_move_it(void **state)
{
    (void)state;
    assert_int_equal(cn_churn_start(0.1f, 98304, K, N), cn_churn_start(0.1f, 98304, K, N + 4));
    assert_int_equal(cn_churn_start(0.1f, 98304, K, K), 0); /* all are wanted */
    static uint16_t scores[2][K + 1];
    for (uint32_t n = K - 1; n <= K + 1; n++) {
        cn_churn_scores(scores[0], 5, K, n, 0.1f);
        assert_int_equal(count_new(scores[0], scores[0], n, n < K ? n : K), 0);
    }
}

static void buffers_grow(void **state)
{
    (void)state;
    cn_churn c = {.share = 0.1f};
    uint16_t *first, *again, *last;
    assert_int_equal(cn_churn_take(&c, 0, 100, &first), CN_OK);
    assert_int_equal(cn_churn_take(&c, 0, 50, &again), CN_OK);
    assert_ptr_equal(first, again);
    assert_int_equal(cn_churn_take(&c, CN_CHURN_BUFFERS - 1, 1000, &last), CN_OK);
    memset(last, 0, 1000 * sizeof *last);
    cn_churn_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_set_changes_by_the_share),
        cmocka_unit_test(more_candidates_do_not_move_it),
        cmocka_unit_test(buffers_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
