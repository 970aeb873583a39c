/* test_sampler.c - sampling parameters: defaults, error texts, seeds, rows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/sampler.h"
#include "tests/lib/defaults.h"

enum { VOCAB = 1000, MODEL_LEN = 4096 };

static void accept(const cn_sampling *p)
{
    if (cn_sampling_check(p, VOCAB, MODEL_LEN) != CN_OK) fail_msg("%s", cn_last_error());
}

/* The refusal must name the field, the value and a bound. */
static void refuse(const cn_sampling *p, const char *field, const char *value, const char *bound)
{
    assert_int_equal(cn_sampling_check(p, VOCAB, MODEL_LEN), CN_ERR_ARG);
    const char *text = cn_last_error();
    if (!strstr(text, field) || !strstr(text, value) || !strstr(text, bound))
        fail_msg("\"%s\" lacks %s, %s or %s", text, field, value, bound);
}

static void defaults_equal_those_of_vllm(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    accept(&p);
    assert_int_equal(p.n, 1);
    assert_true(p.temperature == 1.0f && p.top_p == 1.0f && p.min_p == 0.0f);
    assert_true(p.repetition_penalty == 1.0f && p.presence_penalty == 0.0f);
    assert_int_equal(p.top_k, 0);
    assert_int_equal(p.logprobs, -1);
    assert_int_equal(p.thinking_token_budget, -1);
    assert_true(p.skip_special_tokens && !p.ignore_eos && !p.include_stop_str_in_output);
    assert_false(cn_sampling_needs_counts(&p));
}

#define REFUSE(field, value, name, value_text, bound)                                              \
    do {                                                                                           \
        cn_sampling p = default_sampling();                                                        \
        p.field = (value);                                                                         \
        refuse(&p, name, value_text, bound);                                                       \
    } while (0)

static void numbers_out_of_bounds_are_named(void **state)
{
    (void)state;
    REFUSE(n, 0, "n ", "0", "1024");
    REFUSE(n, 1025, "n ", "1025", "1024");
    REFUSE(temperature, -0.5f, "temperature", "-0.5", "at least 0");
    REFUSE(temperature, NAN, "temperature", "nan", "at least 0");
    REFUSE(temperature, INFINITY, "temperature", "inf", "finite");
    REFUSE(top_p, 0.0f, "top_p", "0", "above 0");
    REFUSE(top_p, 1.5f, "top_p", "1.5", "at most 1");
    REFUSE(top_p, NAN, "top_p", "nan", "at most 1");
    REFUSE(top_k, -2, "top_k", "-2", "-1 to");
    REFUSE(min_p, 1.25f, "min_p", "1.25", "0 to 1");
    REFUSE(min_p, NAN, "min_p", "nan", "0 to 1");
    REFUSE(presence_penalty, 2.5f, "presence_penalty", "2.5", "-2 to 2");
    REFUSE(frequency_penalty, -3.0f, "frequency_penalty", "-3", "-2 to 2");
    REFUSE(repetition_penalty, 0.0f, "repetition_penalty", "0", "above 0");
    REFUSE(repetition_penalty, INFINITY, "repetition_penalty", "inf", "finite");
    REFUSE(max_tokens, MODEL_LEN + 1, "max_tokens", "4097", "4096");
    REFUSE(min_tokens, MODEL_LEN + 1, "min_tokens", "4097", "4096");
    REFUSE(logprobs, 21, "logprobs", "21", "20");
    REFUSE(logprobs, -2, "logprobs", "-2", "-1");
    REFUSE(thinking_token_budget, -2, "thinking_token_budget", "-2", "-1");
    REFUSE(repetition_max_pattern_size, 1025, "max_pattern_size", "1025", "1024");
    REFUSE(repetition_min_pattern_size, 1, "min_pattern_size", "1", "0");
    REFUSE(repetition_max_pattern_size, 4, "min_count", "0", "2");
}

static void bounds_themselves_are_accepted(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    p.n = 1024;
    p.temperature = 0.0f;
    p.top_k = -1;
    p.min_p = 1.0f;
    p.presence_penalty = 2.0f;
    p.frequency_penalty = -2.0f;
    p.max_tokens = p.min_tokens = MODEL_LEN;
    p.logprobs = 20;
    p.thinking_token_budget = 0;
    p.repetition_max_pattern_size = p.repetition_min_pattern_size = 1024;
    p.repetition_min_count = 2;
    accept(&p);
    p.min_tokens = 9;
    p.max_tokens = 8;
    refuse(&p, "min_tokens", "9", "8");
    p = default_sampling();
    p.logprobs = 5;
    assert_int_equal(cn_sampling_check(&p, 4, MODEL_LEN), CN_ERR_ARG);
}

static void lists_are_checked(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    const char *stops[] = {"ok", "\xc3\xa9", ""};
    p.stop = stops;
    p.n_stop = 2;
    accept(&p);
    p.n_stop = 3;
    refuse(&p, "stop[2]", "0 bytes", "1024");
    stops[2] = "\xc3";
    refuse(&p, "stop[2]", "not", "UTF-8");
    stops[2] = NULL;
    refuse(&p, "stop[2]", "NULL", "");
    p = default_sampling();
    p.n_stop = 65;
    refuse(&p, "stop", "65", "64");
    const char *words[] = {"ok", " \n"};
    p = default_sampling();
    p.bad_words = words;
    p.n_bad_words = 1;
    accept(&p);
    p.n_bad_words = 2;
    refuse(&p, "bad_words[1]", "white space", "expected");
    p.n_bad_words = 1025;
    refuse(&p, "bad_words", "1025", "1024");

    p = default_sampling();
    const uint32_t ids[] = {0, VOCAB - 1, VOCAB};
    p.allowed_token_ids = ids;
    p.n_allowed_token_ids = 3;
    refuse(&p, "allowed_token_ids[2]", "1000", "vocabulary");
    p.n_allowed_token_ids = VOCAB + 1;
    refuse(&p, "allowed_token_ids", "1001", "1000");
    p.n_allowed_token_ids = 2;
    p.stop_token_ids = ids;
    p.n_stop_token_ids = 2;
    accept(&p);
    p.n_stop_token_ids = 3;
    refuse(&p, "stop_token_ids[2]", "1000", "vocabulary");

    p = default_sampling();
    cn_logit_bias biases[] = {{3, 100.0f}, {VOCAB - 1, -100.0f}};
    p.logit_bias = biases;
    p.n_logit_bias = 2;
    accept(&p);
    biases[1].bias = 100.5f;
    refuse(&p, "logit_bias", "100.5", "-100 to 100");
    biases[1].bias = NAN;
    refuse(&p, "logit_bias", "nan", "-100 to 100");
    biases[1] = (cn_logit_bias){3, 0.0f};
    refuse(&p, "logit_bias", "3", "twice");
    biases[1].token = VOCAB;
    refuse(&p, "logit_bias", "1000", "vocabulary");
}

static void seeds_depend_on_the_request_not_the_run(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    uint64_t a = cn_sampling_seed(&p, 1, "line-1", 0);
    assert_true(a == cn_sampling_seed(&p, 1, "line-1", 77)); /* independent of the line number */
    assert_true(a != cn_sampling_seed(&p, 1, "line-2", 0));
    assert_true(a != cn_sampling_seed(&p, 2, "line-1", 0));
    assert_true(cn_sampling_seed(&p, 1, NULL, 3) != cn_sampling_seed(&p, 1, NULL, 4));
    assert_true(cn_sampling_seed(&p, 1, NULL, 3) == cn_sampling_seed(&p, 1, NULL, 3));
    assert_true(cn_sampling_seed(&p, 1, NULL, 'x') != cn_sampling_seed(&p, 1, "x", 0));
    p.has_seed = true;
    p.seed = 42;
    assert_true(cn_sampling_seed(&p, 1, "line-1", 0) == 42);
    assert_true(cn_sampling_seed(&p, 9, NULL, 5) == 42);
}

static void rows_carry_the_parameters(void **state)
{
    (void)state;
    cn_sampling p = default_sampling();
    p.temperature = 1e-6f;
    p.top_k = 7;
    p.repetition_penalty = 1.5f;
    p.logprobs = 3;
    assert_true(cn_sampling_needs_counts(&p));
    cn_sample_row row = {.seed = 5, .count_slot = 2, .n_ban = 4};
    cn_sampling_row(&p, &row);
    assert_true(row.temperature == 0.01f); /* the minimum, as in vLLM */
    assert_int_equal(row.top_k, 7);
    assert_true(row.repetition_penalty == 1.5f);
    assert_int_equal(row.n_logprobs, 3);
    assert_int_equal(row.force_token, -1);
    assert_true(row.seed == 5 && row.count_slot == 2 && row.n_ban == 4); /* set by the caller */
    p.temperature = 0.0f;
    cn_sampling_row(&p, &row);
    assert_true(row.temperature == 0.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_equal_those_of_vllm),
        cmocka_unit_test(numbers_out_of_bounds_are_named),
        cmocka_unit_test(bounds_themselves_are_accepted),
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(seeds_depend_on_the_request_not_the_run),
        cmocka_unit_test(rows_carry_the_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
