/* test_space.c - a space of KV blocks: holders, their reservations and query slots. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "paged/space.h"

static void a_hold_is_all_or_nothing(void **state)
{
    (void)state;
    cn_space s;
    int32_t a = -2, b = -2, c = -2;
    assert_int_equal(cn_space_init(&s, 10, 2), CN_OK);
    assert_true(cn_space_try_hold(&s, 4, true, &a));
    assert_true(cn_space_try_hold(&s, 4, false, &b));
    assert_true(a >= 0);
    assert_int_equal(b, -1);
    assert_false(cn_space_try_hold(&s, 3, true, &c)); /* only two blocks are not reserved */
    assert_int_equal(cn_space_free_slots(&s), 1);     /* the slot was not taken */
    assert_true(cn_space_try_hold(&s, 1, true, &c));
    assert_true(c >= 0 && c != a);
    assert_false(cn_space_try_hold(&s, 1, true, &b)); /* no slot is left */
    assert_int_equal(cn_space_reservable_blocks(&s), 1);
    assert_null(cn_space_check(&s));
    cn_space_release(&s, 4, a);
    assert_int_equal(cn_space_free_slots(&s), 1);
    assert_int_equal(cn_space_reservable_blocks(&s), 5);
    assert_int_equal(cn_space_free_blocks(&s), 10); /* a reservation takes no block */
    cn_space_free(&s);
}

static void a_space_that_does_not_exist_has_nothing(void **state)
{
    (void)state;
    cn_space s = {0};
    uint32_t slot;
    assert_false(cn_space_try_take_slot(&s, &slot));
    assert_int_equal(cn_space_total_blocks(&s) + cn_space_free_blocks(&s), 0);
    assert_null(cn_space_check(&s));
    assert_int_equal(cn_space_init(&s, 0, 3), CN_ERR_ARG);
    cn_space_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hold_is_all_or_nothing),
        cmocka_unit_test(a_space_that_does_not_exist_has_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
