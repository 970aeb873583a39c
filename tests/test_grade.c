/* test_grade.c - pairs of answer and reference that are equal, and pairs that only look equal. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/offline/grade.h"

static const struct grade_case {
    cn_opt_grade rule;
    bool match;
    const char *output, *reference;
} cases[] = {
    {CN_OPT_GRADE_EXACT, true, "89", "89"},
    {CN_OPT_GRADE_EXACT, true, "\n\n 89\n", "89 "},
    {CN_OPT_GRADE_EXACT, true, "<think>\n12 89\n</think>\n\na=68 e=01", "a=68 e=01"},
    {CN_OPT_GRADE_EXACT, true, "reasoning </think> half </think> 7", "7"},
    {CN_OPT_GRADE_EXACT, false, "<think>\nstill 89", "89"},
    {CN_OPT_GRADE_EXACT, false, "<think>", "<think>"},
    {CN_OPT_GRADE_EXACT, false, "089", "89"},
    {CN_OPT_GRADE_EXACT, false, "", "89"},
    {CN_OPT_GRADE_EXACT, true, "</think>", ""},

    {CN_OPT_GRADE_BOXED, true, "so \\boxed{204}.", "204"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed{1} then \\boxed{ 2 }", "2"},
    {CN_OPT_GRADE_BOXED, false, "\\boxed{1} then \\boxed{2}", "1"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed{\\{1,2\\}}", "\\{1,2\\}"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed{1,000}", "1000.0"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed{$7$}", "\\boxed{7}"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed {7}", "7"},
    {CN_OPT_GRADE_BOXED, true, "#### 18", "He makes 9 * 2.\n#### 18"},
    {CN_OPT_GRADE_BOXED, true, "#### 3\nsomething else", "3"},
    {CN_OPT_GRADE_BOXED, false, "the answer is 18", "18"},
    {CN_OPT_GRADE_BOXED, false, "\\boxed{18", "18"},
    {CN_OPT_GRADE_BOXED, true, "\\boxed{5} and \\boxed{broken", "5"},
    {CN_OPT_GRADE_BOXED, false, "<think>\\boxed{18}", "18"},
    {CN_OPT_GRADE_BOXED, false, "\\boxed", "x"},

    {CN_OPT_GRADE_LAST_NUMBER, true, "3 + 4 = 7.", "7"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "it costs $1,234.50 in all", "1234.5"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "-0.50", "-.5"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "5120799376764123456789012345678901", "x #### "
     "5,120,799,376,764,123,456,789,012,345,678,901"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "5120799376764123456789012345678901",
     "5120799376764123456789012345678902"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "it is 3-2", "2"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "it is -2", "-2.00"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "it is -2", "2"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "it is \xE2\x88\x92" "2", "-2"}, /* U+2212 */
    {CN_OPT_GRADE_LAST_NUMBER, true, "it is 3\xE2\x88\x92" "2", "2"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "-0", "0"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "between 1,2 and so on", "2"},
    {CN_OPT_GRADE_LAST_NUMBER, true, "007", "7"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "70", "7"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "7.01", "7.1"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "none", "7"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "7", "none"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "<think> 7", "7"},
    {CN_OPT_GRADE_LAST_NUMBER, false, "- $ . , +", "0"},
};

static void rules_match_the_expected_pairs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct grade_case *c = &cases[i];
        if (cn_grade(c->rule, c->output, strlen(c->output), c->reference) != c->match)
            fail_msg("rule %d: '%s' against '%s' should %smatch", (int)c->rule, c->output,
                     c->reference, c->match ? "" : "not ");
    }
}

/* A NUL is a byte of an answer, not its end. */
static void a_nul_does_not_end_an_answer(void **state)
{
    (void)state;
    static const char after[] = "7\0 or 8", boxed[] = "\\boxed{1}\0\\boxed{2}";
    static const char thought[] = "<think>\0</think>7";
    assert_false(cn_grade(CN_OPT_GRADE_EXACT, after, sizeof after - 1, "7"));
    assert_true(cn_grade(CN_OPT_GRADE_LAST_NUMBER, after, sizeof after - 1, "8"));
    assert_true(cn_grade(CN_OPT_GRADE_BOXED, boxed, sizeof boxed - 1, "2"));
    assert_true(cn_grade(CN_OPT_GRADE_EXACT, thought, sizeof thought - 1, "7"));
}

/* The expected values of the Wilson score interval were computed in Python. */
static void intervals_equal_wilsons(void **state)
{
    (void)state;
    static const struct {
        uint64_t matched, n;
        double low, high;
    } known[] = {
        {0, 32, 0, 0.1071791982550706},
        {7, 32, 0.11023836252604186, 0.3875499364924353},
        {29, 32, 0.7578184527161212, 0.9675984487016337},
        {32, 32, 0.8928208017449293, 1},
        {125, 250, 0.43849126180890113, 0.5615087381910988},
        {1, 1, 0.20654931437723745, 1},
        {0, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double low, high;
        cn_grade_interval(known[i].matched, known[i].n, &low, &high);
        assert_true(fabs(low - known[i].low) < 1e-12 && fabs(high - known[i].high) < 1e-12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_match_the_expected_pairs),
        cmocka_unit_test(a_nul_does_not_end_an_answer),
        cmocka_unit_test(intervals_equal_wilsons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
