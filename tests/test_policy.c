/* test_policy.c - caps, triggers and the bounds of kv parameters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/options/options.h"

static cn_kv_params zip(uint32_t budget)
{
    return (cn_kv_params){.policy = CN_KV_ZIP,
                          .budget_tokens = budget,
                          .window_tokens = 16,
                          .sink_tokens = 4,
                          .global_score = true,
                          .alpha = 0.8f,
                          .redundancy_p = 0.5f,
                          .redundancy_tau = 0.4f,
                          .lambda = 0.2f};
}

static void budget_is_rounded_up(void **state)
{
    (void)state;
    const uint32_t budgets[] = {1, 63, 64, 65, 2048}, rounded[] = {64, 64, 64, 128, 2048};
    for (int i = 0; i < 5; i++) {
        cn_kv_params kv = zip(budgets[i]);
        assert_int_equal(cn_policy_check(&kv, 64, 16), CN_OK);
        assert_int_equal(kv.budget_tokens, rounded[i]);
        assert_int_equal(cn_policy_n_max(&kv, 64), rounded[i] / 64 + 1);
    }
}

static void refused(cn_kv_params kv, const char *a, const char *b)
{
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), a));
    assert_non_null(strstr(cn_last_error(), b));
}

static void errors_carry_the_numbers(void **state)
{
    (void)state;
    cn_kv_params kv = zip(16);
    kv.window_tokens = 17;
    refused(kv, "16", "17"); /* budget below the window */
    kv.window_tokens = 33;
    refused(kv, "33", "32"); /* window above the engine's */
    kv.window_tokens = 0;
    refused(kv, "0", "window");
    refused(zip(0), "0", "budget");
    refused(zip(UINT32_MAX), "4294967295", "budget");
    kv = zip(64);
    kv.rule = (cn_kv_rule)CN_N_RULES;
    refused(kv, "4", "rule");
    kv = zip(64);
    kv.head_rule = (cn_kv_head_rule)CN_N_HEAD_RULES;
    refused(kv, "2", "head_rule");
    kv = zip(64);
    kv.alpha = 1.5f;
    refused(kv, "1.5", "alpha");
    kv = zip(64);
    kv.lambda = NAN;
    refused(kv, "nan", "lambda");
    kv = zip(64);
    kv.redundancy_tau = 0.0f;
    refused(kv, "0", "tau");
    kv = zip(64);
    kv.redundancy_p = -2.0f;
    refused(kv, "-2", "p");
    kv = zip(64);
    kv.move = (cn_kv_move)2;
    refused(kv, "2", "move");
    kv = zip(64);
    kv.policy = CN_KV_WINDOW;
    kv.sink_tokens = 64;
    refused(kv, "64", "sinks");
    kv.policy = (cn_kv_policy)9;
    refused(kv, "9", "policy");
}

/* With a window larger than a block, the last slots of the next event would not be the last
 * tokens. */
static void move_fill_needs_a_window_of_at_most_a_block(void **state)
{
    (void)state;
    cn_kv_params kv = zip(64);
    kv.move = CN_MOVE_FILL;
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
    kv.window_tokens = 17;
    refused(kv, "window of 17 tokens: with kv move fill", "block of 16");
    assert_int_equal(cn_policy_check(&kv, 32, 32), CN_OK);
    kv.move = CN_MOVE_ORDER;
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
    kv.move = CN_MOVE_FILL;
    kv.policy = CN_KV_WINDOW; /* which needs no queries */
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
}

static void full_ignores_the_other_parameters(void **state)
{
    (void)state;
    cn_kv_params kv = {.policy = CN_KV_FULL};
    assert_int_equal(cn_policy_check(&kv, 64, 0), CN_OK);
    assert_int_equal(cn_policy_n_max(&kv, 64), 0);
    assert_int_equal(cn_policy_first_trigger(0, 1000, 64), UINT32_MAX);
    assert_false(cn_policy_due(0, 640, 10, 64));
    assert_false(cn_policy_needs_slot(&kv));
    kv = zip(64);
    assert_true(cn_policy_needs_slot(&kv));
    kv.policy = CN_KV_WINDOW;
    assert_int_equal(cn_policy_check(&kv, 64, 0), CN_OK); /* window needs no queries */
    assert_false(cn_policy_needs_slot(&kv));
}

static void an_event_is_due_at_the_cap_with_a_full_block(void **state)
{
    (void)state;
    assert_false(cn_policy_due(3, 32, 2, 16)); /* full, below the cap */
    assert_false(cn_policy_due(3, 47, 3, 16)); /* at the cap, not full */
    assert_true(cn_policy_due(3, 48, 3, 16));
    assert_false(cn_policy_due(3, 48, 4, 16)); /* the prompt is not yet complete */
    assert_true(cn_policy_due(3, 80, 5, 16));  /* a long prompt exceeds the cap */
    assert_int_equal(cn_policy_first_trigger(3, 1, 16), 48);
    assert_int_equal(cn_policy_first_trigger(3, 48, 16), 48);
    assert_int_equal(cn_policy_first_trigger(3, 49, 16), 64);
    assert_int_equal(cn_policy_first_trigger(3, 64, 16), 64);
}

/* The mean over one head, or on a device without it, is refused by name. */
static void a_head_rule_needs_a_group_and_a_device(void **state)
{
    (void)state;
    const uint32_t max = 1U << CN_HEADS_MAX, both = max | 1U << CN_HEADS_MEAN;
    cn_kv_params kv = zip(64);
    assert_int_equal(cn_policy_check_heads(&kv, 1, max), CN_OK);
    kv.head_rule = CN_HEADS_MEAN;
    assert_int_equal(cn_policy_check_heads(&kv, 2, both), CN_OK);
    assert_int_equal(cn_policy_check_heads(&kv, 1, both), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "head_rule mean: each kv head of this model has one"));
    assert_int_equal(cn_policy_check_heads(&kv, 2, max), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "head_rule mean: this device does not support it"));
    kv.policy = CN_KV_WINDOW;
    assert_int_equal(cn_policy_check_heads(&kv, 1, max), CN_OK);
}

/* A policy reads with a rule only what its row names for any rule. */
static void check_reported(const cn_policy *p, int policy, cn_kv_rule rule)
{
    const cn_kv_params kv = {
        .policy = (cn_kv_policy)policy, .rule = rule, .budget_tokens = 64, .lambda = 0.5f};
    json_t *json = cn_kv_params_json(&kv);
    size_t n_words = 1; /* "policy" */
    for (const char *w = cn_policy_params(kv.policy, rule); *w; n_words++) {
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(w, " "), w);
        assert_non_null(json_object_get(json, word));
        assert_non_null(strstr(p->params, word));
        w += strcspn(w, " ");
        w += strspn(w, " ");
    }
    assert_int_equal(json_object_size(json), n_words);
    assert_string_equal(json_string_value(json_object_get(json, "policy")), p->name);
    json_decref(json);
}

/* The option table has the names of the rows. A kv object for reports has exactly the members that
 * its policy reads. */
static void a_policy_is_one_row(void **state)
{
    (void)state;
    cn_buf names = {0};
    for (int i = 0; i < CN_N_POLICIES; i++) {
        const cn_policy *p = cn_policy_of((cn_kv_policy)i);
        assert_string_equal(cn_kv_policy_name((cn_kv_policy)i), p->name);
        assert_int_equal(cn_buf_addf(&names, "%s%s", i ? "|" : "", p->name), CN_OK);
        for (int rule = 0; rule < CN_N_RULES; rule++) check_reported(p, i, (cn_kv_rule)rule);
    }
    assert_string_equal(names.data, CN_POLICY_NAMES);
    cn_buf_free(&names);
    assert_string_equal(cn_kv_policy_name((cn_kv_policy)99), "?");
}

static void a_rule_is_one_row(void **state)
{
    (void)state;
    cn_buf names = {0};
    for (int i = 0; i < CN_N_RULES; i++)
        assert_int_equal(
            cn_buf_addf(&names, "%s%s", i ? "|" : "", cn_rule_of((cn_kv_rule)i)->name), CN_OK);
    assert_string_equal(names.data, CN_RULE_NAMES);
    cn_buf_free(&names);
    cn_kv_params kv = zip(64);
    assert_true(cn_rule_scale(&kv) == 0);
    kv.rule = CN_RULE_SCALED;
    assert_true(cn_rule_scale(&kv) > 1);
    kv.redundancy = CN_REDUNDANCY_NONE; /* a factor alone changes no order */
    assert_true(cn_rule_scale(&kv) == 0);
}

static void peak_keeps_both_ends(void **state)
{
    (void)state;
    cn_kv_params kv = zip(64);
    kv.rule = CN_RULE_PEAK;
    kv.sink_tokens = 4;
    const float recent[] = {0, 0.125f, 0.5f, 0.999f, 1, 16, 60};
    const uint32_t newest[] = {8, 8, 32, 63, 8, 16, 60};
    for (int i = 0; i < 7; i++) {
        kv.window_tokens = 8;
        kv.recent = recent[i];
        assert_int_equal(cn_rule_sinks(&kv), 4);
        assert_int_equal(cn_rule_newest(&kv), newest[i]);
        kv.move = newest[i] > 16 ? CN_MOVE_ORDER : CN_MOVE_FILL;
        if (newest[i] <= 60) assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
        else refused(kv, "63", "recent");
        kv.move = CN_MOVE_FILL;
        if (newest[i] > 16 && recent[i] >= 1) {
            refused(kv, "at most a block of 16", "recent");
        } else if (newest[i] > 16) { /* a share becomes a block */
            assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
            assert_int_equal(cn_rule_newest(&kv), 16);
        }
    }
    kv.move = CN_MOVE_ORDER;
    const float odd[] = {1.5f, -1, NAN, 1e10f};
    for (int i = 0; i < 4; i++) {
        kv.recent = odd[i];
        refused(kv, "recent", "share of the budget");
    }
    kv.recent = 61;
    refused(kv, "61", "sinks of 4");
    kv.rule = CN_RULE_ZIPAGE; /* which reads neither */
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
    assert_int_equal(cn_rule_sinks(&kv), 0);
    assert_int_equal(cn_rule_newest(&kv), 8);
}

static void observed_queries_count_once(void **state)
{
    (void)state;
    cn_kv_params kv = zip(64);
    kv.window_tokens = 8;
    kv.observe_tokens = 32;
    assert_int_equal(cn_rule_queries(&kv), 8); /* the paper's rule has its window alone */
    assert_int_equal(cn_rule_counted(&kv, true, 80), 8);
    kv.rule = CN_RULE_PEAK;
    assert_int_equal(cn_rule_queries(&kv), 32);
    assert_int_equal(cn_ring_rows(&kv), 32);
    assert_int_equal(cn_rule_counted(&kv, true, 80), 32);
    assert_int_equal(cn_rule_counted(&kv, false, 16), 16);
    assert_int_equal(cn_rule_counted(&kv, false, 64), 32);
    assert_int_equal(cn_rule_counted(&kv, false, 1), 8); /* the window counts again */
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
    kv.observe_tokens = 33;
    refused(kv, "observe of 33", "--kv-observe");
    kv.observe_tokens = 100; /* more than the budget: the first event may have as many tokens */
    assert_int_equal(cn_policy_check(&kv, 16, 100), CN_OK);
    assert_int_equal(cn_rule_counted(&kv, true, 80), 80);
    assert_int_equal(cn_rule_counted(&kv, true, 160), 100);
    kv.observe_tokens = 0;
    assert_int_equal(cn_rule_queries(&kv), 8);
    kv.observe_tokens = 100;
    assert_int_equal(cn_policy_most_queries(&kv), 100);
}

static void peak_decays_by_tokens(void **state)
{
    (void)state;
    cn_kv_params kv = zip(64);
    kv.alpha = 0.5f;
    assert_true(cn_rule_decay_log2(&kv) == 0);
    assert_true(cn_rule_history_factor(&kv, 64) == 0.5f);
    assert_true(cn_rule_history_factor(&kv, 128) == 0.5f);
    kv.rule = CN_RULE_PEAK;
    assert_true(cn_rule_decay_log2(&kv) == -1.0f / 64);
    assert_true(cn_rule_history_factor(&kv, 64) == 0.5f);
    assert_true(cn_rule_history_factor(&kv, 128) == 0.25f);
    kv.alpha = 0;
    assert_true(cn_rule_history_factor(&kv, 16) == 0);
    assert_true(cn_rule_decay_log2(&kv) * 0 == 0);
    kv.alpha = 1;
    assert_true(cn_rule_history_factor(&kv, 1 << 20) == 1);
}

/* It reads its window, and what it keeps at both ends; nothing else has an effect. */
static void follow_keeps_no_history(void **state)
{
    (void)state;
    cn_kv_params kv = zip(64);
    assert_false(cn_rule_follows(&kv));
    assert_true(cn_rule_keeps_scores(&kv) && cn_rule_pools(&kv, true));
    assert_int_equal(cn_rule_redundancy(&kv), CN_REDUNDANCY_LIGHTNING);
    kv.rule = CN_RULE_FOLLOW;
    kv.pooling = CN_POOLING_ALWAYS;
    kv.observe_tokens = 33;
    kv.recent = 0.75f;
    assert_true(cn_rule_follows(&kv));
    assert_false(cn_rule_keeps_scores(&kv) || cn_rule_pools(&kv, true));
    assert_int_equal(cn_rule_redundancy(&kv), CN_REDUNDANCY_NONE);
    assert_true(cn_rule_scale(&kv) == 0 && cn_rule_decay_log2(&kv) == 0);
    assert_int_equal(cn_rule_counted(&kv, true, 80), 16);
    assert_int_equal(cn_rule_counted(&kv, false, 64), 16);
    assert_int_equal(cn_policy_check(&kv, 16, 32), CN_OK);
    assert_int_equal(cn_rule_sinks(&kv), 4);
    assert_int_equal(cn_rule_newest(&kv), 48);
    float queries = 0; /* of an engine that keeps no F */
    const cn_pools pools = {
        .layout = {.block_tokens = 16}, .q_window = &queries, .n_query_slots = 1, .window = 16};
    cn_compress_req req = {.params = kv, .n_blocks = 5, .n_target = 4, .position_end = 80};
    req.params.redundancy_tau = 0;
    const cn_policy *policy = cn_policy_of(CN_KV_ZIP);
    assert_int_equal(policy->check_event(&pools, &req), CN_OK);
    req.params.rule = CN_RULE_SCALED;
    assert_int_equal(policy->check_event(&pools, &req), CN_ERR_ARG);
}

static void policies_together_need_what_any_of_them_needs(void **state)
{
    (void)state;
    const cn_policy_needs full = cn_policies_need(1U << CN_KV_FULL);
    assert_false(full.capped || full.slots || full.planes);
    const cn_policy_needs window = cn_policies_need(1U << CN_KV_FULL | 1U << CN_KV_WINDOW);
    assert_true(window.capped && !window.slots && !window.planes);
    const cn_policy_needs zip = cn_policies_need(1U << CN_KV_WINDOW | 1U << CN_KV_ZIP);
    assert_true(zip.capped && zip.slots);
    assert_int_equal(zip.planes, 1U << CN_PLANE_SCORE);
    assert_int_equal(zip.keeps, 1U << CN_KEEP_RECENT | 1U << CN_KEEP_BEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_policy_is_one_row),
        cmocka_unit_test(a_head_rule_needs_a_group_and_a_device),
        cmocka_unit_test(a_rule_is_one_row),
        cmocka_unit_test(peak_keeps_both_ends),
        cmocka_unit_test(observed_queries_count_once),
        cmocka_unit_test(peak_decays_by_tokens),
        cmocka_unit_test(follow_keeps_no_history),
        cmocka_unit_test(policies_together_need_what_any_of_them_needs),
        cmocka_unit_test(budget_is_rounded_up),
        cmocka_unit_test(errors_carry_the_numbers),
        cmocka_unit_test(move_fill_needs_a_window_of_at_most_a_block),
        cmocka_unit_test(full_ignores_the_other_parameters),
        cmocka_unit_test(an_event_is_due_at_the_cap_with_a_full_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
