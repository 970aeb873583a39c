/* test_base.c - status text, byte strings, counted allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base.h"

static void fail_keeps_text_and_adds_context(void **state)
{
    (void)state;
    assert_int_equal(cn_fail(CN_ERR_ARG, "value %d", 7), CN_ERR_ARG);
    assert_int_equal(cn_fail_within(CN_ERR_IO, "line %d", 3), CN_ERR_IO);
    assert_string_equal(cn_last_error(), "line 3: value 7");
}

static void buf_grows_and_stays_terminated(void **state)
{
    (void)state;
    cn_buf b = {0};
    for (int i = 0; i < 1000; i++) assert_int_equal(cn_buf_addf(&b, "%d,", i), CN_OK);
    assert_int_equal(strlen(b.data), b.len);
    assert_memory_equal(b.data, "0,1,2,", 6);
    cn_buf_clear(&b);
    assert_string_equal(b.data, "");
    cn_buf_free(&b);
}

static void allocation_refuses_overflow(void **state)
{
    (void)state;
    assert_null(cn_calloc_aligned(SIZE_MAX / 2, 3));
    assert_null(cn_realloc(NULL, SIZE_MAX / 2, 3));
}

static void random_bytes_are_not_the_same_twice(void **state)
{
    (void)state;
    uint8_t a[256] = {0}, b[256] = {0};
    assert_int_equal(cn_random_bytes(a, sizeof a), CN_OK);
    assert_int_equal(cn_random_bytes(b, sizeof b), CN_OK);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a + 128, b + 128, 128); /* to the end */
    assert_int_equal(cn_random_bytes(a, 0), CN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_keeps_text_and_adds_context),
        cmocka_unit_test(buf_grows_and_stays_terminated),
        cmocka_unit_test(allocation_refuses_overflow),
        cmocka_unit_test(random_bytes_are_not_the_same_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
