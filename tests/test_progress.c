/* test_progress.c - the text of the progress line, and when the time left is unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/offline/progress.h"

static const cn_progress_figures half = {
    .read = 100, .done = 50, .errors = 2, .answered_now = 48, .input_bytes = 5000,
    .input_bytes_total = 10000,
    .stats = {.generation_tokens = 4800, .running = 30, .waiting = 20, .blocks_total = 200,
              .blocks_used = 50},
};

static void expect_line(const cn_progress *p, const cn_progress_figures *g, const char *want)
{
    char text[256];
    cn_progress_format(p, g, text, sizeof text, 200);
    assert_string_equal(text, want);
}

static void a_line_has_the_known_figures(void **state)
{
    (void)state;
    cn_progress p = {.tokens_per_s = 1500};
    expect_line(&p, &half, "50 of about 200 requests (2 errors), 4.8k of about 19.8k tokens, "
                           "1.5k output tokens/s, 0:10 left, 30 running, 20 waiting, KV 25% full");
    cn_progress_figures g = half;
    g.input_ended = true;
    g.errors = 0;
    p.tokens_per_s = 1;
    expect_line(&p, &g, "50 of 100 requests, 4.8k of about 9.8k tokens, 1 output tokens/s, "
                        "1:23:20 left, 30 running, 20 waiting, KV 25% full");
    g.tokens_earlier = 1000000;
    expect_line(&p, &g, "50 of 100 requests, 1.00M of about 1.01M tokens, 1 output tokens/s, "
                        "1:23:20 left, 30 running, 20 waiting, KV 25% full");
    g.tokens_earlier = 0;
    g.tokens_total = 4980;
    expect_line(&p, &g, "50 of 100 requests, 4.8k of 5.0k tokens, 1 output tokens/s, 3:00 left, "
                        "30 running, 20 waiting, KV 25% full");
    g.tokens_total = 0;
    g.answered_now = 0;
    expect_line(&p, &g, "50 of 100 requests, 4.8k output tokens, 1 output tokens/s, "
                        "time left unknown, 30 running, 20 waiting, KV 25% full");
    g = (cn_progress_figures){.read = 3};
    expect_line(&p, &g,
                "0 requests, 0 output tokens, 1 output tokens/s, time left unknown, "
                "0 running, 0 waiting, KV 0% full");
}

/* 50 lines to come of at most 100 tokens, 30 of which have 2,000 already. */
static void an_estimate_stays_within_the_limits_of_requests(void **state)
{
    (void)state;
    cn_progress_figures g = half;
    g.input_ended = true;
    g.answered_now = 10;
    uint64_t tokens;
    assert_true(cn_progress_tokens_left(&g, &tokens));
    assert_int_equal(tokens, 50 * 480);
    g.most_tokens = 100;
    g.running_tokens = 2000;
    assert_true(cn_progress_tokens_left(&g, &tokens));
    assert_int_equal(tokens, 50 * 100 - 2000);
}

static void a_line_says_what_runs(void **state)
{
    (void)state;
    const cn_progress p = {.tokens_per_s = 1};
    cn_progress_figures g = {
        .read = 40, .done = 12, .input_ended = true, .tokens_total = 4000, .doing = "zip:384"};
    expect_line(&p, &g,
                "zip:384: 12 of 40 requests, 0 of 4.0k tokens, 1 output tokens/s, 1:06:40 "
                "left, 0 running, 0 waiting, KV 0% full");
}

static void a_bar_fits_the_terminal(void **state)
{
    (void)state;
    const cn_progress p = {.bar = true, .tokens_per_s = 1500};
    char text[256];
    cn_progress_format(&p, &half, text, sizeof text, 200);
    assert_memory_equal(text, "[#####...............] 50 of about 200", 38);
    static const char *const narrow[] = {
        "50 of about 200 requests (2 errors), 4.8k of about 19.8k tokens, 0:10 left",
        "50 of about 200 requests (2 errors), 0:10 left", "50 of about 200 requests (2 errors)",
        "50 of about 200 requ"};
    static const size_t widths[] = {79, 50, 40, 20};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        cn_progress_format(&p, &half, text, sizeof text, widths[i]);
        assert_string_equal(text, narrow[i]);
    }
}

static void tokens_are_left_until_all_requests_are_done(void **state)
{
    (void)state;
    cn_progress_figures g = half;
    uint64_t tokens;
    g.input_ended = true;
    g.stats.generation_tokens = 1000000; /* long requests are still running */
    assert_true(cn_progress_tokens_left(&g, &tokens));
    assert_true(tokens > 1000000);
    g.done = g.read;
    assert_true(cn_progress_tokens_left(&g, &tokens));
    assert_int_equal(tokens, 0);
    g.input_ended = false;
    g.input_bytes_total = 0; /* a pipe */
    assert_false(cn_progress_tokens_left(&g, &tokens));
}

static void modes_decide_what_is_drawn(void **state)
{
    (void)state;
    static const struct {
        cn_opt_progress mode;
        const char *begins;
    } modes[] = {{CN_OPT_PROGRESS_AUTO, "50 of"}, {CN_OPT_PROGRESS_PLAIN, "50 of"},
                 {CN_OPT_PROGRESS_BAR, "\r\033[K50 of"}, {CN_OPT_PROGRESS_NONE, ""}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char text[512] = "";
        FILE *f = tmpfile();
        assert_non_null(f);
        cn_progress p;
        cn_progress_begin(&p, modes[i].mode, f);
        assert_false(cn_progress_is_due(&p));
        cn_progress_show(&p, &half);
        rewind(f);
        const size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        assert_memory_equal(text, modes[i].begins, strlen(modes[i].begins));
        assert_int_equal(n == 0, modes[i].mode == CN_OPT_PROGRESS_NONE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_the_known_figures),
        cmocka_unit_test(an_estimate_stays_within_the_limits_of_requests),
        cmocka_unit_test(a_line_says_what_runs),
        cmocka_unit_test(a_bar_fits_the_terminal),
        cmocka_unit_test(tokens_are_left_until_all_requests_are_done),
        cmocka_unit_test(modes_decide_what_is_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
