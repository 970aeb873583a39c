/* test_exchange_rows.c - the rows of an exchange are divided so that the candidates of a launch
 * fit the room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/home/exchange.h"

enum { B = 64, ROWS = 5, TILES = 4, WINDOW = 4 };

static const uint32_t blocks[64] = {0};

static cn_kv_params params(void)
{
    return (cn_kv_params){.policy = CN_KV_WINDOW, .budget_tokens = 2 * B, .select = CN_SELECT_TLS,
                          .select_tokens = B, .select_tiles = TILES, .select_window = WINDOW,
                          .home = CN_HOME_HOST};
}

/* Room for n candidates of a launch. */
static cn_exchange_rows open_rows(uint32_t candidates)
{
    const cn_exchange_sizes z = {.max_rows = ROWS, .max_local = TILES, .max_home = 64,
                                 .room = candidates, .move_stride = 2, .pack_layers = 1,
                                 .n_layers = 1};
    cn_exchange_rows r;
    assert_int_equal(cn_exchange_rows_init(&r, &z, B), CN_OK);
    return r;
}

/* Adds ROWS rows of home_len tokens. */
static void add_rows(cn_exchange_rows *r, uint32_t home_len)
{
    const cn_kv_params kv = params();
    cn_exchange_strides strides = {0};
    cn_exchange_strides_add(&strides, &kv, home_len, B);
    cn_exchange_rows_begin(r, ROWS, strides);
    for (uint32_t i = 0; i < ROWS; i++) {
        const cn_exchange_row row = {.kv = &kv, .home_slot = i, .home_len = home_len,
                                     .newest = home_len, .local = {blocks}, .n_local = {TILES},
                                     .home = blocks};
        cn_exchange_rows_add(r, &row);
    }
}

static void expect_ranges(const cn_exchange_rows *r, uint32_t n, const uint32_t *ends)
{
    assert_int_equal(r->n_ranges, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(r->ranges[i].start, i ? ends[i - 1] : 0);
        assert_int_equal(r->ranges[i].end, ends[i]);
    }
}

/* 10 blocks at home are 8 candidates: the policy keeps two. */
static void candidates_divide_the_rows(void **state)
{
    (void)state;
    cn_exchange_rows r = open_rows(31);
    add_rows(&r, 10 * B);
    expect_ranges(&r, 2, (const uint32_t[]){3, 5});
    cn_exchange_rows_free(&r);
    r = open_rows(1000);
    add_rows(&r, 10 * B);
    expect_ranges(&r, 1, (const uint32_t[]){5});
    cn_exchange_rows_free(&r);
}

/* The forms of an exchange are those of its rows, and none of the exchange before. */
static void forms_are_those_of_the_rows(void **state)
{
    (void)state;
    const cn_exchange_sizes z = {.max_rows = ROWS, .max_local = TILES, .max_home = 64,
                                 .room = 1000, .move_stride = 8 * B,
                                 .pack_layers = 1, .n_layers = 1};
    cn_exchange_rows r;
    assert_int_equal(cn_exchange_rows_init(&r, &z, B), CN_OK);
    for (uint32_t i = 0; i < 2; i++) {
        cn_kv_params kv = params();
        kv.select = CN_SELECT_SPADE;
        kv.select_keys = i ? CN_SELECT_LABELS : CN_SELECT_ROWS;
        cn_exchange_strides strides = {0};
        cn_exchange_strides_add(&strides, &kv, 10 * B, B);
        cn_exchange_rows_begin(&r, 1, strides);
        assert_int_equal(r.forms.stage[1], 0);
        const cn_exchange_row row = {.kv = &kv, .home_len = 10 * B, .newest = 10 * B,
                                     .local = {blocks}, .n_local = {TILES}, .home = blocks};
        cn_exchange_rows_add(&r, &row);
        assert_int_equal(r.forms.stage[1] & ~cn_sel_forms_of_key(i ? CN_KEY_LABELS : CN_KEY_ROWS),
                         0);
        assert_int_not_equal(r.forms.stage[1], 0);
    }
    add_rows(&r, 10 * B);
    assert_int_equal(r.forms.stage[1] & ~cn_sel_forms_of_key(CN_KEY_BOUNDS), 0);
    cn_exchange_rows_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_divide_the_rows),
        cmocka_unit_test(forms_are_those_of_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
