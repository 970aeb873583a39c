/* test_compare_arms.c - the --arms list: which options it sets, and the errors for mistakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "compress/policy.h"
#include "engine/compare/compare_arms.h"
#include "engine/options/option_value.h"

static cn_config *make_config(const char *arms)
{
    cn_config *c = cn_config_create();
    assert_non_null(c);
    assert_int_equal(cn_option_set_text(c, cn_option_find("arms"), arms), CN_OK);
    return c;
}

static void keys_set_what_the_options_set(void **state)
{
    (void)state;
    cn_config *c = make_config("full,zip:384:window=48:no-global,window:512:sinks=8,"
                               "zip:global=false:redundancy=flash:pooling=never:rule=peak:"
                               "alpha=0.5:p=-0.5:tau=2:"
                               "lambda=1:combine=subtract:move=fill:budget=256,zip:global");
    assert_int_equal(cn_config_set(c, "kv-global", "false"), CN_OK);
    assert_int_equal(cn_config_set(c, "kv-alpha", "0.25"), CN_OK);
    cn_compare_arms a;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(a.n, 5);
    const cn_kv_params *kv = &a.arms[1].kv;
    assert_string_equal(a.arms[1].label, "zip:384:window=48:no-global");
    assert_int_equal(kv->policy, CN_KV_ZIP);
    assert_int_equal(kv->budget_tokens, 384);
    assert_int_equal(kv->window_tokens, 48);
    assert_true(kv->alpha == 0.25f);
    assert_false(kv->global_score);
    kv = &a.arms[2].kv;
    assert_int_equal(kv->policy, CN_KV_WINDOW);
    assert_int_equal(kv->budget_tokens, 512);
    assert_int_equal(kv->sink_tokens, 8);
    kv = &a.arms[3].kv;
    assert_int_equal(kv->budget_tokens, 256);
    assert_int_equal(kv->redundancy, CN_REDUNDANCY_FLASH);
    assert_int_equal(kv->pooling, CN_POOLING_NEVER);
    assert_int_equal(kv->combine, CN_COMBINE_SUBTRACT);
    assert_int_equal(kv->move, CN_MOVE_FILL);
    assert_true(kv->alpha == 0.5f && kv->redundancy_p == -0.5f);
    assert_true(kv->redundancy_tau == 2 && kv->lambda == 1);
    assert_true(a.arms[4].kv.global_score);
    assert_int_equal(a.arms[4].kv.budget_tokens, 2048);
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

static void full_kv_comes_first(void **state)
{
    (void)state;
    static const char *const lists[] = {"zip:384,full", "zip:384", "full,zip:384"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        cn_config *c = make_config(lists[i]);
        c->kv.policy = CN_KV_ZIP;
        cn_compare_arms a;
        assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
        assert_int_equal(a.n, 2);
        assert_string_equal(a.arms[0].label, "full");
        assert_int_equal(a.arms[0].kv.policy, CN_KV_FULL);
        assert_string_equal(a.arms[1].label, "zip:384");
        cn_compare_arms_free(&a);
        cn_config_free(c);
    }
}

/* `want` has the label of each arm, and after a slash that of its baseline. */
static void check_windows(cn_config *c, const char *want, cn_status status, const char *message)
{
    cn_compare_arms a;
    char got[256] = "";
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    const cn_status got_status = cn_compare_arms_add_windows(&a, c);
    if (got_status != status || (status != CN_OK && !strstr(cn_last_error(), message)))
        fail_msg("%s: got '%s'", c->arms, cn_last_error());
    for (uint32_t i = 1; status == CN_OK && i < a.n; i++) {
        const cn_compare_arm *arm = &a.arms[i];
        const char *beside = arm->baseline ? a.arms[arm->baseline].label : "";
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s%s%s", *got ? " " : "",
                 arm->label, *beside ? "/" : "", beside);
    }
    if (status == CN_OK) assert_string_equal(got, want);
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

static void a_window_stands_beside_each_zip(void **state)
{
    (void)state;
    check_windows(make_config("full,zip:384"), "zip:384/window:384 window:384", CN_OK, NULL);
    check_windows(make_config("zip:64,zip:64:no-global,zip:128,ds:64,window:128:sinks=2,zip"),
                  "zip:64/window:64 window:64 zip:64:no-global/window:64 "
                  "zip:128/window:128:sinks=2 ds:64 window:128:sinks=2 zip/window:2048 window:2048",
                  CN_OK, NULL);
    check_windows(make_config("full,window:64"), "window:64", CN_OK, NULL);
    cn_config *c = make_config("zip:64,zip:128,window:64");
    assert_int_equal(cn_option_set_text(c, cn_option_find("window-baseline"), "false"), CN_OK);
    check_windows(c, "zip:64/window:64 zip:128 window:64", CN_OK, NULL);
    c = make_config("window:64");
    assert_int_equal(cn_option_set_text(c, cn_option_find("window-baseline"), "false"), CN_OK);
    check_windows(c, NULL, CN_ERR_ARG, "--no-window-baseline has no effect: no arm of --arms");
    check_windows(make_config("zip:4:window=2"), NULL, CN_ERR_ARG,
                  "beside zip:4:window=2; --no-window-baseline leaves it out: --arms window:4: ");
}

static void one_engine_holds_all_arms(void **state)
{
    (void)state;
    cn_config *c = make_config("full,zip:384:window=48,zip:512:window=32,window:128");
    c->kv.window_tokens = 99; /* of the arm that has no observation window */
    cn_compare_arms a;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_OK);
    assert_int_equal(c->kv_policies, 1u << CN_KV_FULL | 1u << CN_KV_ZIP | 1u << CN_KV_WINDOW);
    assert_int_equal(c->kv.window_tokens, 48);
    assert_int_equal(c->kv.budget_tokens, 128);
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

static void selectors_are_arms_with_full_kv(void **state)
{
    (void)state;
    cn_config *c =
        make_config("ds:256,tls:128:select_tiles=300:sinks=9,zip:384,spade:no-select_rotate");
    c->kv.select = CN_SELECT_QUEST;
    cn_compare_arms a;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(a.arms[0].kv.select, CN_SELECT_NONE);
    assert_int_equal(a.arms[1].kv.policy, CN_KV_FULL);
    assert_int_equal(a.arms[1].kv.select, CN_SELECT_DS);
    assert_int_equal(a.arms[1].kv.select_tokens, 256);
    assert_int_equal(a.arms[3].kv.select, CN_SELECT_NONE);
    assert_int_equal(a.arms[3].kv.budget_tokens, 384);
    assert_false(a.arms[4].kv.select_rotate);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_OK);
    assert_int_equal(c->kv.select, CN_SELECT_NONE);
    assert_int_equal(c->kv_selectors, 1u << CN_SELECT_NONE | 1u << CN_SELECT_DS |
                                          1u << CN_SELECT_TLS | 1u << CN_SELECT_SPADE);
    assert_int_equal(c->kv.select_tiles, 300);
    assert_int_equal(c->kv.sink_tokens, 9);
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

/* The engine of a comparison has the homes of its arms, and room for the largest exchange. */
static void arms_may_have_a_home(void **state)
{
    (void)state;
    cn_config *c = make_config("spade:512:home=peer,last:1024,"
                               "zip:256:select=spade:select_tokens=64:home=peer:select_cap=9");
    c->kv.home = CN_HOME_PEER;
    cn_compare_arms a;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(a.arms[0].kv.home, CN_HOME_DEVICE);
    assert_int_equal(a.arms[1].kv.home, CN_HOME_PEER);
    assert_int_equal(a.arms[2].kv.home, CN_HOME_DEVICE);
    assert_int_equal(a.arms[3].kv.policy, CN_KV_ZIP);
    assert_int_equal(a.arms[3].kv.select, CN_SELECT_SPADE);
    assert_int_equal(a.arms[3].kv.budget_tokens, 256);
    assert_int_equal(a.arms[3].kv.home, CN_HOME_PEER);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_OK);
    assert_int_equal(c->kv.home, CN_HOME_DEVICE);
    assert_int_equal(c->kv_homes, 1u << CN_HOME_DEVICE | 1u << CN_HOME_PEER);
    assert_int_equal(c->kv.select_cap, 512 / 8);
    cn_compare_arms_free(&a);
    cn_config_free(c);
    /* `auto` chooses among the device and the homes of --kv-homes. */
    c = make_config("full,spade:512:home=auto");
    c->kv_homes = 1u << CN_HOME_HOST;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(a.arms[1].kv.home, CN_HOME_AUTO);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_OK);
    assert_int_equal(c->kv_homes, 1u << CN_HOME_DEVICE | 1u << CN_HOME_HOST);
    cn_compare_arms_free(&a);
    cn_config_free(c);
    /* There must be one. */
    c = make_config("full,spade:512:home=auto");
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--arms with home=auto: no other home is declared"));
    cn_compare_arms_free(&a);
    cn_config_free(c);
    /* Without `auto` they have no effect. */
    c = make_config("full,spade:512:home=host");
    assert_int_equal(cn_config_set(c, "kv-homes", "host"), CN_OK);
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--kv-homes has no effect: no arm of --arms"));
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

/* An arm may observe more queries than its budget keeps: the engine has a ring for them. */
static void the_engine_observes_what_any_arm_does(void **state)
{
    (void)state;
    cn_config *c = make_config("zip:64:rule=peak:observe=300,zip:128:rule=scaled:window=48,zip:64");
    cn_compare_arms a;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_OK);
    assert_int_equal(cn_policy_most_queries(&c->kv), 300);
    assert_int_equal(c->kv.window_tokens, 48);
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

/* What an arm and the command line leave open has the default of the arm's rule. */
static void an_arm_has_the_defaults_of_its_rule(void **state)
{
    (void)state;
    cn_config *c = make_config("zip:384:rule=peak,zip:128:rule=peak,zip:384:alpha=0.5:rule=peak,"
                               "zip:384,zip:384:rule=follow,zip:384:recent=0.25:rule=follow");
    assert_int_equal(cn_config_set(c, "kv-pooling", "always"), CN_OK);
    cn_compare_arms a;
    assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_OK);
    const cn_kv_params *peak = &a.arms[1].kv, *scaled = &a.arms[4].kv;
    assert_int_equal(peak->window_tokens, 64);
    assert_true(peak->alpha == 0.841f && peak->pooling == CN_POOLING_ALWAYS);
    assert_int_equal(a.arms[2].kv.window_tokens, 32);
    assert_true(a.arms[3].kv.alpha == 0.5f);
    assert_int_equal(scaled->window_tokens, 16);
    assert_true(scaled->alpha == 0.8f && scaled->pooling == CN_POOLING_ALWAYS);
    assert_true(scaled->recent == 0.125f && a.arms[5].kv.recent == 0.5f);
    assert_true(a.arms[6].kv.recent == 0.25f);
    assert_int_equal(cn_compare_arms_declare(&a, c), CN_OK);
    assert_int_equal(cn_compare_arms_check_options(&a, c), CN_OK);
    cn_compare_arms_free(&a);
    cn_config_free(c);
}

static void mistakes_are_named_with_the_valid_choices(void **state)
{
    (void)state;
    static const struct {
        const char *arms, *names, *lists;
    } cases[] = {
        {"full,dance:384", "dance: expected a policy", "full|window|zip"},
        {"full,dance:384", "or a selector", "one of oracle|quest|ds"},
        {"ds:x=1", "unknown key 'x'", "select_tokens"},
        {"zip:384:windov=48", "windov", "window, rule, head_rule, observe, sinks, recent, global"},
        {"zip:384:windov=48", "--arms zip:384:windov=48", "lambda, combine, move"},
        {"zip:384:no-windov", "no-windov", "pooling"},
        {"zip:384:window", "'window'", "window=value"},
        {"zip:384:no-window", "no-window", "not a switch"},
        {"zip:384:window=x", "kv-window x", "from 1 to"},
        {"zip:384:pooling=sometimes", "sometimes", "first|never|always"},
        {"zip:0", "kv-budget 0", "from 1"},
        {"zip:384:", "zip:384:", "unknown key ''"},
        {"full,,zip", "'': expected a policy", "full|window|zip"},
        {"zip:16:window=48", "kv-window 48", "kv-budget 16"},
        {"zip:64:lambda=0.5:redundancy=none", "zip does not read lambda", "with redundancy none"},
        {"zip:64:no-global:alpha=0.5", "zip does not read alpha", "with global false"},
        {"zip:384,window:64,zip:384", "zip:384", "given twice"},
        {"zip:64,zip:064", "--arms zip:064", "given twice: zip:64 is the same"},
        {"zip:64,zip:64:window=16", "zip:64:window=16", "given twice: zip:64 is the same"},
        {"zip:64:budget=128", "--arms zip:64:budget=128", "budget is given twice"},
        {"ds:64:sinks=1:sinks=2", "sinks=2", "sinks is given twice"},
        {"zip:64:global:no-global", "no-global", "global is given twice"},
        {"zip:policy=window", "--arms zip:policy=window", "zip does not read policy"},
        {"zip:64:rule=zipage:recent=8", "--arms zip:64:rule=zipage:recent=8", "recent"},
        {"zip:64:recent=8:rule=zipage", "zip reads recent only with rule=scaled", ""},
        {"zip:64:rule=follow:lambda=0.5", "zip reads lambda only with rule=zipage before", ""},
        {"zip:64:rule=follow:observe=9", "zip reads observe only with rule=scaled before", ""},
        {"full:64", "--arms full:64", "full does not read budget: it reads nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_config *c = make_config(cases[i].arms);
        cn_compare_arms a;
        assert_int_equal(cn_compare_arms_parse(&a, c->arms, c), CN_ERR_ARG);
        const char *e = cn_last_error();
        if (!strstr(e, cases[i].names) || !strstr(e, cases[i].lists))
            fail_msg("%s: got '%s'", cases[i].arms, e);
        cn_compare_arms_free(&a);
        cn_config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_set_what_the_options_set),
        cmocka_unit_test(full_kv_comes_first),
        cmocka_unit_test(a_window_stands_beside_each_zip),
        cmocka_unit_test(one_engine_holds_all_arms),
        cmocka_unit_test(selectors_are_arms_with_full_kv),
        cmocka_unit_test(arms_may_have_a_home),
        cmocka_unit_test(the_engine_observes_what_any_arm_does),
        cmocka_unit_test(an_arm_has_the_defaults_of_its_rule),
        cmocka_unit_test(mistakes_are_named_with_the_valid_choices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
