/* test_token_forecast.c - the tokens that a batch has still to generate, against drawn lengths. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/offline/token_forecast.h"

enum { MAX_LINES = 400, ROUNDS = 60 };

static uint64_t state_of_rng = 1;
static double draw(void)
{
    state_of_rng = cn_hash64(7, &state_of_rng, sizeof state_of_rng);
    return (double)(state_of_rng >> 11) / 9007199254740992.0;
}

/* Runs lines of these lengths, `slots` at a time, a token per line and step, until a share of all
 * tokens is done. Returns the estimate divided by the tokens that really come. */
static double error_at(const uint32_t *length, uint32_t n, uint32_t slots, double share,
                       uint32_t limit)
{
    uint32_t so_far[MAX_LINES] = {0}, begun = 0;
    uint64_t total = 0, done = 0;
    cn_lengths finished = {0};
    for (uint32_t i = 0; i < n; i++) total += length[i];
    while ((double)done < share * (double)total) {
        uint32_t running = 0;
        for (uint32_t i = 0; i < begun; i++) running += so_far[i] < length[i];
        for (; running < slots && begun < n; running++) begun++;
        for (uint32_t i = 0; i < begun; i++) {
            if (so_far[i] == length[i]) continue;
            done++;
            if (++so_far[i] == length[i]) cn_lengths_add(&finished, length[i]);
        }
    }
    cn_unfinished u = {.unread = n - begun, .limit = limit};
    for (uint32_t i = 0; i < begun; i++) {
        if (so_far[i] == length[i]) continue;
        cn_lengths_add(&u.running, so_far[i]);
        u.limit_sum += limit;
    }
    return cn_tokens_to_come(&finished, &u).tokens / (double)(total - done);
}

static void equal_lengths_are_exact(void **state)
{
    (void)state;
    uint32_t length[200];
    for (uint32_t i = 0; i < 200; i++) length[i] = 300;
    for (double share = 0.02; share < 0.95; share += 0.06) {
        assert_true(fabs(error_at(length, 200, 20, share, 300) - 1) < 0.05);
        /* All run at once, and none has finished. */
        assert_true(fabs(error_at(length, 200, 200, share, 300) - 1) < 0.05);
    }
}

static void half_of_the_tokens_give_the_other_half(void **state)
{
    (void)state;
    double sum = 0;
    uint32_t n_far = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const uint32_t kind = round % 3;
        uint32_t length[MAX_LINES], n = 300 + (uint32_t)(draw() * 100);
        const uint32_t slots = 4 + (uint32_t)(draw() * n / 5);
        for (uint32_t i = 0; i < n; i++) {
            const double x = draw();
            double l = 100 + 900 * x;                        /* uniform */
            if (kind == 1) l = 20 - 300 * log(1 - 0.999 * x); /* exponential */
            if (kind == 2) l = x < 0.7 ? 200 + 50 * draw() : 900 + 300 * draw();
            length[i] = (uint32_t)l;
        }
        const double ratio = error_at(length, n, slots, 0.5, 4096);
        sum += ratio;
        n_far += fabs(ratio - 1) > 0.25;
    }
    /* The rest of a job is a sample too: a few of the estimates may be far off, the mean not. */
    if (n_far > 2 || fabs(sum / ROUNDS - 1) > 0.04)
        fail_msg("%u estimates are far off, their mean is %.3f", n_far, sum / ROUNDS);
}

static void without_finished_lines_the_limit_counts(void **state)
{
    (void)state;
    cn_unfinished u = {.unread = 10, .limit = 500};
    const cn_lengths none = {0};
    assert_true(cn_tokens_to_come(&none, &u).tokens == 5000);
    cn_lengths_add(&u.running, 100);
    u.limit_sum = 400;
    assert_true(cn_tokens_to_come(&none, &u).tokens == 300 + 10 * 400);
    u = (cn_unfinished){0};
    assert_true(cn_tokens_to_come(&none, &u).tokens == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_lengths_are_exact),
        cmocka_unit_test(half_of_the_tokens_give_the_other_half),
        cmocka_unit_test(without_finished_lines_the_limit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
