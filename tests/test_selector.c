/* test_selector.c - the table of selectors: checks, rounding, and the candidates, list and tail of
 * each step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compress/policy.h"
#include "compress/selector.h"

/* The engine's largest sizes. */
static const cn_kv_params most = {
    .select_tokens = 4096, .select_tiles = 64, .select_window = 16, .sink_tokens = 200};

static cn_kv_params params(cn_kv_select select, uint32_t tokens)
{
    return (cn_kv_params){.policy = CN_KV_FULL,
                          .select = select,
                          .select_tokens = tokens,
                          .select_tiles = 32,
                          .select_window = 16,
                          .select_rotate = true,
                          .sink_tokens = 4,
                          .recent_tokens = 64};
}

static cn_kv_params checked(cn_kv_select select, uint32_t tokens, uint32_t block_tokens)
{
    cn_kv_params kv = params(select, tokens);
    if (cn_selector_check(&kv, block_tokens, &most) != CN_OK) fail_msg("%s", cn_last_error());
    return kv;
}

/* ---- checks ---- */

static void lists_and_tails_are_rounded_up(void **state)
{
    (void)state;
    assert_int_equal(checked(CN_SELECT_DS, 100, 64).select_tokens, 112);
    assert_int_equal(checked(CN_SELECT_QUEST, 1, 64).select_tokens, 16);
    assert_int_equal(checked(CN_SELECT_SPADE, 100, 64).select_tokens, 128);
    assert_int_equal(checked(CN_SELECT_LAST, 257, 256).select_tokens, 512);
    cn_kv_params kv = params(CN_SELECT_DS, 128);
    kv.recent_tokens = 65;
    assert_int_equal(cn_selector_check(&kv, 64, &most), CN_OK);
    assert_int_equal(kv.recent_tokens, 128);
    kv = params(CN_SELECT_NONE, 0);
    kv.policy = CN_KV_ZIP;
    assert_int_equal(cn_selector_check(&kv, 64, &most), CN_OK);
}

static void refused(cn_kv_params kv, const char *text)
{
    assert_int_equal(cn_selector_check(&kv, 64, &most), CN_ERR_ARG);
    if (!strstr(cn_last_error(), text)) fail_msg("%s: expected %s", cn_last_error(), text);
}

static void errors_name_the_value_and_the_limit(void **state)
{
    (void)state;
    cn_kv_params kv = params(CN_SELECT_DS, 128);
    kv.policy = CN_KV_WINDOW;
    refused(kv, "select ds with kv policy window: expected policy full");
    refused(params(CN_SELECT_DS, 0), "select_tokens 0: expected 1 to 4096; raise --select-tokens");
    refused(params(CN_SELECT_DS, 4097), "select_tokens 4097: expected 1 to 4096");
    kv = params(CN_SELECT_SPADE, 128);
    kv.select_window = 17;
    refused(kv, "select_window 17: expected 1 to 16; raise --select-window");
    kv.select_window = 0;
    refused(kv, "select_window 0: expected 1 to 16");
    kv = params(CN_SELECT_LAST, 128);
    kv.sink_tokens = 128;
    refused(kv, "sinks of 128 tokens: selector last expects fewer than 128");
    kv.sink_tokens = 201;
    refused(kv, "sinks of 201 tokens with selector last: expected at most 200; raise --kv-sinks");
    kv = params(CN_SELECT_TLS, 128);
    kv.select_tiles = 65;
    refused(kv, "select_tiles 65: expected 1 to 64; raise --select-tiles");
    kv = params(CN_SELECT_TLS, 2048);
    kv.select_tiles = 32;
    refused(kv, "2048 tokens of these tiles are fewer than the 2052 of select_tokens and sinks; "
                "raise select_tiles to 33");
    kv.select_tiles = 33;
    assert_int_equal(cn_selector_check(&kv, 64, &most), CN_OK);
    kv = params(CN_SELECT_DS, 128);
    kv.recent_tokens = UINT32_MAX;
    refused(kv, "recent_tokens 4294967295: expected at most 2147483647");
    kv = params((cn_kv_select)99, 128);
    refused(kv, "select 99: expected a value of cn_kv_select");
    kv = params(CN_SELECT_SPADE, 128);
    kv.select_weights = (cn_select_weights)2;
    refused(kv, "select_weights 2");
    kv = params(CN_SELECT_SPADE, 128);
    kv.select_keys = (cn_select_keys)2;
    refused(kv, "select_keys 2");
    kv = params(CN_SELECT_DS, 128);
    kv.select_group = (cn_select_group)2;
    refused(kv, "select_group 2");
}

static void needs_are_those_of_all_selectors_together(void **state)
{
    (void)state;
    assert_false(cn_selectors_need(1U << CN_SELECT_NONE).any);
    cn_selector_needs needs = cn_selectors_need(1U << CN_SELECT_ORACLE | 1U << CN_SELECT_RANDOM);
    assert_true(needs.any && !needs.slots && !needs.labels && !needs.tiles && needs.planes == 0);
    needs = cn_selectors_need(1U << CN_SELECT_QUEST | 1U << CN_SELECT_LAST);
    assert_true(needs.slots && needs.labels && !needs.tiles);
    assert_int_equal(needs.planes,
                     1U << CN_PLANE_BOUNDS_16 | 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES);
    assert_true(cn_selectors_need(1U << CN_SELECT_TLS).tiles);
    cn_kv_params kv = params(CN_SELECT_SPADE, 128);
    assert_int_equal(cn_selector_ring_rows(&kv), 17);
    kv.select = CN_SELECT_LAST;
    assert_int_equal(cn_selector_ring_rows(&kv), 2);
    kv.select = CN_SELECT_TLS;
    assert_int_equal(cn_selector_ring_rows(&kv), 0);
}

/* ---- spans ---- */

static void short_sequences_and_prompts_are_dense(void **state)
{
    (void)state;
    const cn_kv_params none = params(CN_SELECT_NONE, 128), ds = checked(CN_SELECT_DS, 128, 64);
    assert_false(cn_select_span_at(&none, 10, 3000, 64).listed);
    /* At 255 the tail begins at 192 - 64, so 124 tokens are candidates; at 256 there are 188. */
    assert_false(cn_select_span_at(&ds, 10, 255, 64).listed);
    assert_true(cn_select_span_at(&ds, 10, 256, 64).listed);
    assert_false(cn_select_span_at(&ds, 257, 256, 64).listed);
    assert_true(cn_select_span_at(&ds, 256, 256, 64).listed);
    assert_false(cn_select_span_at(&ds, 0, 0, 64).listed);
}

static void candidates_end_recent_tokens_before_the_last_complete_tile(void **state)
{
    (void)state;
    const cn_kv_params ds = checked(CN_SELECT_DS, 128, 64),
                       quest = checked(CN_SELECT_QUEST, 128, 64);
    cn_select_span s = cn_select_span_at(&ds, 10, 1000, 64); /* 960 tokens in complete tiles */
    assert_int_equal(s.tail, 896);
    assert_int_equal(s.base[1], 4);
    assert_int_equal(s.n[1], 892);
    assert_int_equal(s.k[1], 128);
    assert_int_equal(s.n_forced, 4);
    assert_int_equal(s.list_len, 132);
    assert_false(s.stage[0].active);
    assert_int_equal(s.stage[1].key, CN_KEY_LABELS);
    assert_int_equal(s.stage[1].group, CN_GROUP_MAX);
    s = cn_select_span_at(&ds, 10, 1024, 64);
    assert_int_equal(s.tail, 960); /* the tile is complete before the step of position 1024 */
    s = cn_select_span_at(&quest, 10, 1000, 64);
    assert_int_equal(s.base[1], 16);
    assert_int_equal(s.n[1], 55);
    assert_int_equal(s.k[1], 8);
    assert_int_equal(s.list_len, 144);
    assert_int_equal(s.stage[1].entry_log2, 4);
    assert_int_equal(s.stage[1].group, CN_GROUP_SUM);
}

static void tiles_are_ranked_before_their_tokens(void **state)
{
    (void)state;
    cn_kv_params tls = params(CN_SELECT_TLS, 128);
    tls.select_tiles = 8;
    tls.select_group = CN_SELECT_MEAN;
    assert_int_equal(cn_selector_check(&tls, 64, &most), CN_OK);
    cn_select_span s = cn_select_span_at(&tls, 10, 1000, 64);
    assert_true(s.stage[0].active && s.stage[1].active && s.stage[1].in_tiles);
    assert_int_equal(s.stage[0].key, CN_KEY_BOUNDS);
    assert_int_equal(s.stage[0].entry_log2, 6);
    assert_int_equal(s.stage[1].group, CN_GROUP_MEAN);
    assert_int_equal(s.base[0], 0);
    assert_int_equal(s.n[0], 14);
    assert_int_equal(s.k[0], 8);
    assert_int_equal(s.n[1], 512);
    assert_int_equal(s.base[1], 4);
    s = cn_select_span_at(&tls, 10, 400, 64); /* 320 candidates in 5 tiles */
    assert_int_equal(s.n[0], 5);
    assert_int_equal(s.k[0], 5);
    assert_int_equal(s.n[1], 320);
}

/* The paired form of 128 tokens in blocks of 64 has 2 blocks of entries, 2 of policy and 1 more. */
static void candidates_of_the_past_change_a_step_after_a_block_fills(void **state)
{
    (void)state;
    const cn_kv_params spade = checked(CN_SELECT_SPADE, 128, 64);
    assert_false(cn_select_span_at(&spade, 10, 319, 64).listed);
    const struct {
        uint32_t position, tail;
    } steps[] = {{320, 196}, {321, 196}, {384, 196}, {385, 260}, {448, 260}, {449, 324}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const cn_select_span s = cn_select_span_at(&spade, 10, steps[i].position, 64);
        assert_true(s.listed);
        assert_int_equal(s.tail, steps[i].tail);
        assert_int_equal(s.n[1], steps[i].tail - 4);
        assert_int_equal(s.stage[1].query, CN_SEL_PREDICTED);
    }
    /* A longer prompt: the first event comes when its last block is full. */
    assert_false(cn_select_span_at(&spade, 1000, 1023, 64).listed);
    assert_int_equal(cn_select_span_at(&spade, 1000, 1024, 64).tail, 900);
    const cn_kv_params wide = checked(CN_SELECT_LAST, 256, 256);
    assert_false(cn_select_span_at(&wide, 10, 767, 256).listed);
    assert_int_equal(cn_select_span_at(&wide, 10, 768, 256).tail, 516);
}

static void stages_follow_the_parameters(void **state)
{
    (void)state;
    cn_kv_params kv = checked(CN_SELECT_SPADE, 128, 64);
    assert_int_equal(cn_select_span_at(&kv, 1, 2000, 64).stage[1].key, CN_KEY_LABELS);
    assert_int_equal(cn_select_span_at(&kv, 1, 2000, 64).stage[1].group, CN_GROUP_MEAN);
    kv.select_keys = CN_SELECT_ROWS;
    assert_int_equal(cn_select_span_at(&kv, 1, 2000, 64).stage[1].key, CN_KEY_ROWS);
    assert_int_equal(cn_select_span_at(&kv, 1, 2000, 64).stage[1].group, CN_GROUP_MAX);
    kv = checked(CN_SELECT_ORACLE, 128, 64);
    assert_int_equal(cn_select_span_at(&kv, 1, 2000, 64).stage[1].key, CN_KEY_ROWS);
    kv = checked(CN_SELECT_RANDOM, 128, 64);
    assert_int_equal(cn_select_span_at(&kv, 1, 2000, 64).stage[1].key, CN_KEY_HASH);
}

/* What every step of every selector promises to attention and to the digests. */
static void check_span(const cn_kv_params *kv, uint32_t position, const cn_select_span *s,
                       uint32_t last_tail)
{
    const uint32_t entry = cn_selector_of(kv->select)->entry_tokens;
    assert_true(s->tail >= last_tail);
    assert_true(s->tail <= position / CN_DIGEST_TILE * CN_DIGEST_TILE);
    assert_true(s->n_forced >= kv->sink_tokens && s->n_forced == s->base[1]);
    assert_int_equal(s->list_len, s->n_forced + kv->select_tokens);
    assert_true(s->k[1] * entry == kv->select_tokens && s->k[1] < s->n[1]);
    assert_true(s->list_len < s->tail);
    if (!s->stage[0].active) {
        assert_int_equal(s->base[1] + s->n[1] * entry, s->tail);
        return;
    }
    assert_int_equal(s->n[0] * CN_DIGEST_TILE, s->tail);
    assert_true(s->k[0] <= s->n[0] && s->n[1] == s->k[0] * CN_DIGEST_TILE);
    assert_true(s->n[1] >= s->k[1] + s->base[1]); /* enough even where the first tile is selected */
}

static void all_steps_keep_their_promises(void **state)
{
    (void)state;
    for (uint32_t select = 1; select < CN_N_SELECTORS; select++)
        for (uint32_t block = 64; block <= 256; block *= 2)
            for (uint32_t sinks = 0; sinks <= 100; sinks += 25) {
                cn_kv_params kv = params((cn_kv_select)select, 200);
                kv.sink_tokens = sinks;
                kv.select_tiles = 6;
                assert_int_equal(cn_selector_check(&kv, block, &most), CN_OK);
                uint32_t last_tail = 0, n_listed = 0;
                for (uint32_t position = 0; position < 3000; position++) {
                    const cn_select_span s = cn_select_span_at(&kv, 100, position, block);
                    assert_true(s.listed || n_listed == 0); /* once listed, always listed */
                    if (!s.listed) continue;
                    check_span(&kv, position, &s, last_tail);
                    last_tail = s.tail;
                    n_listed++;
                }
                assert_true(n_listed > 1500);
            }
}

/* After its first commit `tls` ranks the tokens of its exchange area, by their slots. */
static void tiles_away_are_listed_by_slot(void **state)
{
    (void)state;
    cn_kv_params kv = {.policy = CN_KV_WINDOW, .select = CN_SELECT_TLS, .home = CN_HOME_PEER,
                       .budget_tokens = 256, .select_tiles = 6, .select_tokens = 256};
    const cn_select_span s = cn_select_span_away(&kv, 256);
    assert_true(s.listed);
    assert_int_equal(s.n[1], 512); /* six tiles take two blocks */
    assert_int_equal(s.tail, 512);
    assert_int_equal(s.k[1], 256);
    assert_int_equal(s.list_len, 256);
    assert_int_equal(s.base[1] + s.n_forced, 0);
    assert_false(s.stage[0].active || s.stage[1].in_tiles);
    assert_true(s.stage[1].is_area);
    assert_int_equal(s.stage[1].key, CN_KEY_LABELS);
    kv.select_tokens = 512; /* all of the area */
    assert_false(cn_select_span_away(&kv, 256).listed);
    kv.select = CN_SELECT_SPADE;
    kv.select_tokens = 256;
    assert_false(cn_select_span_away(&kv, 256).listed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_away_are_listed_by_slot),
        cmocka_unit_test(lists_and_tails_are_rounded_up),
        cmocka_unit_test(errors_name_the_value_and_the_limit),
        cmocka_unit_test(needs_are_those_of_all_selectors_together),
        cmocka_unit_test(short_sequences_and_prompts_are_dense),
        cmocka_unit_test(candidates_end_recent_tokens_before_the_last_complete_tile),
        cmocka_unit_test(tiles_are_ranked_before_their_tokens),
        cmocka_unit_test(candidates_of_the_past_change_a_step_after_a_block_fills),
        cmocka_unit_test(stages_follow_the_parameters),
        cmocka_unit_test(all_steps_keep_their_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
