/* test_away.c - the numbers and checks of requests whose KV lies elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compress/away.h"
#include "compress/policy.h"
#include "compress/selector.h"

/* The engine's largest sizes. */
static const cn_kv_params most = {
    .select_tokens = 4096, .select_tiles = 128, .select_window = 16, .sink_tokens = 100};

static cn_kv_params params(cn_kv_select select, cn_kv_home home)
{
    return (cn_kv_params){.policy = CN_KV_FULL,
                          .budget_tokens = 5000,
                          .window_tokens = 16,
                          .alpha = 0.8f,
                          .redundancy_tau = 0.4f,
                          .select = select,
                          .select_tokens = 500,
                          .select_tiles = 32,
                          .select_window = 16,
                          .sink_tokens = 4,
                          .recent_tokens = 64,
                          .home = home};
}

static cn_status check(cn_kv_params *kv, uint32_t block_tokens)
{
    CN_TRY(cn_away_check(kv, block_tokens));
    CN_TRY(cn_selector_check(kv, block_tokens, &most));
    return cn_policy_check(kv, block_tokens, 32);
}

static cn_kv_params checked(cn_kv_params kv, uint32_t block_tokens)
{
    if (check(&kv, block_tokens) != CN_OK) fail_msg("%s", cn_last_error());
    return kv;
}

static void a_request_at_home_has_no_exchange(void **state)
{
    (void)state;
    cn_kv_params kv = checked(params(CN_SELECT_SPADE, CN_HOME_DEVICE), 64);
    assert_int_equal(kv.policy, CN_KV_FULL);
    assert_int_equal(kv.budget_tokens, 5000);
    const cn_away none = cn_away_of(&kv, 64);
    assert_true(none.n_exchange == 0 && none.entry_tokens == 0 && none.n_entries == 0 &&
                none.cap == 0);
    assert_int_equal(cn_away_n_max(&kv, 64), 0);
    assert_false(cn_kv_needs_slot(&kv));
    kv = params(CN_SELECT_NONE, CN_HOME_DEVICE);
    kv.policy = CN_KV_ZIP;
    kv = checked(kv, 64);
    assert_int_equal(cn_away_n_max(&kv, 64), cn_policy_n_max(&kv, 64));
    assert_true(cn_kv_needs_slot(&kv));
}

static void policy_full_becomes_a_window_of_a_block(void **state)
{
    (void)state;
    const uint32_t blocks[] = {16, 64, 128, 256}, budgets[] = {128, 128, 128, 256};
    for (int i = 0; i < 4; i++) {
        const cn_kv_params kv = checked(params(CN_SELECT_LAST, CN_HOME_PEER), blocks[i]);
        assert_int_equal(kv.policy, CN_KV_WINDOW);
        assert_int_equal(kv.budget_tokens, budgets[i]);
        assert_int_equal(cn_away_budget(blocks[i]), budgets[i]);
        assert_int_equal(kv.select_tokens, 512);
        const uint32_t x = cn_away_of(&kv, blocks[i]).n_exchange;
        assert_int_equal(x, 512 / blocks[i]);
        assert_int_equal(cn_away_n_max(&kv, blocks[i]), x + budgets[i] / blocks[i] + 1);
    }
    cn_kv_params kv = params(CN_SELECT_LAST, CN_HOME_PEER);
    kv.policy = CN_KV_WINDOW; /* with a budget of the request's own */
    assert_int_equal(checked(kv, 64).budget_tokens, 5056);
}

static void areas_and_caps_follow_the_entries(void **state)
{
    (void)state;
    cn_kv_params kv = params(CN_SELECT_SPADE, CN_HOME_PEER);
    kv.select_tokens = 2048;
    const cn_away peer = cn_away_of(&kv, 256);
    assert_true(peer.n_exchange == 8 && peer.n_entries == 2048 && peer.cap == 256);
    assert_int_equal(peer.entry_tokens, 1);
    kv.home = CN_HOME_HOST;
    assert_int_equal(cn_away_of(&kv, 256).cap, 64);
    kv.select_cap = 7;
    assert_int_equal(cn_away_of(&kv, 256).cap, 7);
    kv.select_cap = 5000; /* no more than there are entries */
    assert_int_equal(cn_away_of(&kv, 256).cap, 2048);
    kv.select_cap = 0;
    kv.select_tokens = 16;
    assert_int_equal(cn_away_of(&kv, 16).cap, 1);
    kv = params(CN_SELECT_TLS, CN_HOME_HOST);
    kv.select_tiles = 128;
    const cn_away tiles = cn_away_of(&kv, 256);
    assert_true(tiles.n_exchange == 32 && tiles.n_entries == 128 && tiles.cap == 2);
    assert_int_equal(tiles.entry_tokens, 64);
    kv.select_tiles = 5; /* in two blocks of four tiles, all of them used */
    assert_int_equal(cn_away_of(&kv, 256).n_exchange, 2);
    assert_int_equal(cn_away_of(&kv, 256).n_entries, 8);
}

static void rings_need_a_slot_with_the_reservation(void **state)
{
    (void)state;
    cn_kv_params kv = checked(params(CN_SELECT_SPADE, CN_HOME_PEER), 64);
    assert_true(cn_kv_needs_slot(&kv));
    assert_int_equal(cn_ring_rows(&kv), 17);
    kv = checked(params(CN_SELECT_LAST, CN_HOME_PEER), 64);
    assert_int_equal(cn_ring_rows(&kv), 2);
    kv = checked(params(CN_SELECT_TLS, CN_HOME_PEER), 64);
    assert_true(cn_kv_needs_slot(&kv));
    assert_int_equal(cn_ring_rows(&kv), 2);
    kv.select_query = CN_QUERY_PREDICTED;
    assert_int_equal(cn_ring_rows(&kv), 17);
    kv.home = CN_HOME_DEVICE;
    assert_int_equal(cn_ring_rows(&kv), 0);
    kv = params(CN_SELECT_SPADE, CN_HOME_PEER);
    kv.policy = CN_KV_ZIP;
    assert_int_equal(cn_ring_rows(&kv), 16); /* the observation window */
}

static void refused(cn_kv_params kv, const char *text)
{
    assert_int_equal(check(&kv, 64), CN_ERR_ARG);
    if (!strstr(cn_last_error(), text)) fail_msg("%s: expected %s", cn_last_error(), text);
}

static void each_refusal_names_field_and_value(void **state)
{
    (void)state;
    const cn_kv_select at_home[] = {CN_SELECT_ORACLE, CN_SELECT_QUEST, CN_SELECT_DS,
                                    CN_SELECT_RANDOM};
    for (int i = 0; i < 4; i++) {
        refused(params(at_home[i], CN_HOME_PEER),
                "with kv home peer: expected spade, last, tls or spec");
        refused(params(at_home[i], CN_HOME_HOST), cn_selector_of(at_home[i])->name);
    }
    refused(params(CN_SELECT_NONE, CN_HOME_HOST), "kv home host without a selector");
    refused(params(CN_SELECT_NONE, (cn_kv_home)3), "home 3: expected a value of cn_kv_home");
    cn_kv_params kv = params(CN_SELECT_SPADE, CN_HOME_HOST);
    kv.select_keys = CN_SELECT_ROWS;
    refused(kv, "select_keys rows with kv home host: expected labels");
    kv.home = CN_HOME_PEER;
    checked(kv, 64);
    kv = params(CN_SELECT_SPEC, CN_HOME_HOST); /* ranks keys of its own, on the device */
    kv.select_keys = CN_SELECT_ROWS;
    assert_int_equal(cn_ring_rows(&kv), 0);
    assert_false(cn_kv_needs_slot(&kv));
    checked(kv, 64);
    kv = params(CN_SELECT_TLS, CN_HOME_PEER);
    kv.policy = CN_KV_ZIP;
    refused(kv, "policy zip with kv select tls and kv home peer: expected spade or last");
    kv.select = CN_SELECT_SPEC;
    refused(kv, "policy zip with kv select spec and kv home peer: expected spade or last");
    kv.select = CN_SELECT_SPADE;
    checked(kv, 64);
    kv.window_tokens = 1;
    refused(kv, "window of 1 tokens with kv select spade and kv home peer: expected at least 2");
    kv = params(CN_SELECT_SPADE, CN_HOME_DEVICE);
    kv.policy = CN_KV_ZIP;
    refused(kv, "select spade with kv policy zip: expected policy full");
    kv.policy = CN_KV_WINDOW;
    refused(kv, "set kv home to peer or host");
    kv = params(CN_SELECT_TLS, CN_HOME_PEER);
    kv.select_query = (cn_select_query)2;
    refused(kv, "select_query 2: expected a value of cn_select_query");
    kv.select_query = CN_QUERY_PREDICTED;
    kv.select_window = 17;
    refused(kv, "select_window 17: expected 1 to 16");
    kv.select_query = CN_QUERY_LAST; /* which reads no window */
    checked(kv, 64);
}

static void sinks_of_tiles_fill_a_tile(void **state)
{
    (void)state;
    cn_kv_params kv = checked(params(CN_SELECT_TLS, CN_HOME_PEER), 64);
    assert_int_equal(kv.sink_tokens, 64);
    assert_int_equal(cn_away_span_of(&kv, 1024, 64).base, 64);
    assert_int_equal(cn_away_span_of(&kv, 1024, 64).n, (1024 - 128) / 64);
    kv = params(CN_SELECT_TLS, CN_HOME_PEER);
    kv.sink_tokens = 65;
    refused(kv, "sinks of 128 tokens");
    kv = checked(params(CN_SELECT_SPADE, CN_HOME_PEER), 64);
    assert_int_equal(kv.sink_tokens, 4);
}

static void zip_leaves_out_what_it_holds(void **state)
{
    (void)state;
    cn_kv_params kv = params(CN_SELECT_SPADE, CN_HOME_PEER);
    kv.policy = CN_KV_ZIP;
    kv.budget_tokens = 512;
    const cn_away_span s = cn_away_span_of(&kv, 2048, 64);
    assert_true(s.base == 0 && s.n == 2048 && s.excludes_held);
}

/* Runs the blocks of an away request one position a step, as the scheduler does: an event where the
 * last block is full. At home the same request must rank the same candidates in each step: those
 * of the events before the previous step, and in the first one those of the first event. */
static void compare_candidates(cn_kv_select select, uint32_t block, uint32_t sinks,
                               uint32_t n_prompt)
{
    cn_kv_params home = params(select, CN_HOME_DEVICE);
    home.sink_tokens = sinks;
    cn_kv_params away = home;
    away.home = CN_HOME_PEER;
    home = checked(home, block);
    away = checked(away, block);
    const uint32_t n_max = cn_away_n_max(&away, block);
    const uint32_t trigger = cn_policy_first_trigger(n_max, n_prompt, block);
    /* The list that step `position` reads is made from `listed`, the tokens that were home when the
     * exchange after the previous step was launched, or when the first event filled the area. */
    uint32_t n_home = 0, listed = 0, n_resident = n_prompt, n_lists = 0;
    for (uint32_t position = n_prompt; position < 3000; position++) {
        const bool due = n_home ? n_resident == n_max * block : position == trigger;
        if (due) {
            listed = n_home ? n_home : position;
            n_home = position;
            n_resident = (n_max - 1) * block;
        }
        const cn_select_span s = cn_select_span_at(&home, n_prompt, position, block);
        assert_int_equal(s.listed, listed > 0);
        assert_false(cn_select_span_at(&away, n_prompt, position, block).listed);
        if (listed > 0) {
            const cn_away_span span = cn_away_span_of(&away, listed, block);
            assert_false(span.excludes_held);
            assert_int_equal(s.base[1], span.base);
            assert_int_equal(s.n[1], span.n);
            assert_int_equal(s.k[1], cn_away_of(&away, block).n_entries);
            n_lists++;
        }
        listed = n_home; /* E of this step */
        n_resident++;
    }
    assert_true(n_lists > 1000);
}

static void candidates_are_those_of_the_same_request_at_home(void **state)
{
    (void)state;
    for (uint32_t block = 16; block <= 256; block *= 2)
        for (uint32_t sinks = 0; sinks <= 100; sinks += 25)
            for (uint32_t n_prompt = 1; n_prompt < 1700; n_prompt += 111) {
                compare_candidates(CN_SELECT_SPADE, block, sinks, n_prompt);
                compare_candidates(CN_SELECT_LAST, block, sinks, n_prompt);
            }
}

static void homes_have_names(void **state)
{
    (void)state;
    assert_string_equal(cn_kv_home_name(CN_HOME_DEVICE), "device");
    assert_string_equal(cn_kv_home_name(CN_HOME_PEER), "peer");
    assert_string_equal(cn_kv_home_name(CN_HOME_HOST), "host");
    assert_string_equal(cn_kv_home_name(CN_HOME_AUTO), "auto");
    assert_string_equal(cn_kv_home_name((cn_kv_home)4), "?");
    assert_string_equal(CN_HOME_NAMES, "device|peer|host");
    assert_string_equal(CN_HOME_CHOICES, "device|peer|host|auto");
}

/* On the device a request with home `auto` keeps all KV; elsewhere its policy stays. */
static void auto_has_a_form_for_each_home(void **state)
{
    (void)state;
    cn_kv_params kv = {.policy = CN_KV_ZIP, .budget_tokens = 128, .select = CN_SELECT_SPADE,
                       .home = CN_HOME_AUTO};
    for (cn_kv_home h = CN_HOME_DEVICE; h <= CN_HOME_HOST; h++) {
        const cn_kv_params form = cn_away_form(&kv, h);
        assert_int_equal(form.home, h);
        assert_int_equal(form.policy, h == CN_HOME_DEVICE ? CN_KV_FULL : CN_KV_ZIP);
        assert_int_equal(form.budget_tokens, 128);
    }
    kv.home = CN_HOME_HOST;
    assert_int_equal(cn_away_form(&kv, CN_HOME_DEVICE).home, CN_HOME_HOST);
    assert_int_equal(cn_home_longest(10, 1, 64), 640);
    assert_int_equal(cn_home_longest(10, 3, 64), 192); /* 3 blocks each */
    assert_int_equal(cn_home_longest(10, 11, 64), 0);
    assert_int_equal(cn_home_longest(UINT64_C(1) << 40, 1, 64), UINT32_MAX);
    assert_int_equal(cn_home_longest(10, 0, 64), 0);
}

/* A request whose KV lies elsewhere exchanges, so its home has a share. `auto` is not a home. */
static void the_rows_of_homes_agree(void **state)
{
    (void)state;
    const uint32_t all = (1U << CN_N_HOMES) - 1;
    for (int h = 0; h <= CN_N_HOMES; h++) {
        const cn_home_kind *kind = cn_home_kind_of((cn_kv_home)h);
        cn_kv_params kv = params(CN_SELECT_LAST, (cn_kv_home)h);
        assert_ptr_equal(cn_kv_home_kind(&kv), kind);
        assert_int_equal(cn_kv_is_away(&kv), h != CN_HOME_DEVICE);
        assert_int_equal(kind->is_chosen, h == CN_N_HOMES);
        assert_int_equal(kind->cap_share > 0, kind->is_away);
        assert_true(kind->is_away || !(kind->has_device || kind->ranks_rows));
        assert_int_equal(cn_kv_homes(&kv, all), kind->is_chosen ? all : 1U << h);
        cn_kv_keep_all(&kv);
        assert_false(cn_kv_is_away(&kv));
    }
    const cn_kv_params unknown = params(CN_SELECT_LAST, (cn_kv_home)(CN_N_HOMES + 1));
    assert_int_equal(cn_kv_homes(&unknown, all), 0);
    assert_string_equal(cn_kv_home_kind(&unknown)->name, "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_at_home_has_no_exchange),
        cmocka_unit_test(policy_full_becomes_a_window_of_a_block),
        cmocka_unit_test(areas_and_caps_follow_the_entries),
        cmocka_unit_test(rings_need_a_slot_with_the_reservation),
        cmocka_unit_test(each_refusal_names_field_and_value),
        cmocka_unit_test(sinks_of_tiles_fill_a_tile),
        cmocka_unit_test(zip_leaves_out_what_it_holds),
        cmocka_unit_test(candidates_are_those_of_the_same_request_at_home),
        cmocka_unit_test(homes_have_names),
        cmocka_unit_test(the_rows_of_homes_agree),
        cmocka_unit_test(auto_has_a_form_for_each_home),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
