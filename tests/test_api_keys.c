/* test_api_keys.c - the rights behind a key. tests/test_serve_limits.c tests the keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/api_keys.h"

#define KEYS "ann:ann-secret-1 priority=-5,bob:bob-secret-2,root:root-secret-3 admin"

static void rights_stand_behind_a_key(void **state)
{
    (void)state;
    cn_api_keys *k;
    assert_int_equal(cn_api_keys_load(&k, KEYS, NULL), CN_OK);
    assert_int_equal(cn_api_keys_find(k, "Bearer ann-secret-1", false), 0);
    assert_int_equal(cn_api_keys_min_priority(k, 0), -5);
    assert_int_equal(cn_api_keys_min_priority(k, 1), 0);
    assert_false(cn_api_keys_is_admin(k, 0));
    assert_true(cn_api_keys_is_admin(k, 2));
    assert_int_equal(cn_api_keys_find_name(k, "bob"), 1);
    assert_int_equal(cn_api_keys_find_name(k, "eve"), CN_API_KEY_NONE);
    cn_api_keys_free(k);
    static const char *const bad[] = {"ann:ann-secret-1 root",
                                      "ann:ann-secret-1 priority=", "ann:ann-secret-1 priority=x",
                                      "ann:ann-secret-1 priority=99999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(cn_api_keys_load(&k, bad[i], NULL), CN_ERR_ARG);
        assert_non_null(strstr(cn_last_error(), "expected admin or priority=NUMBER"));
        assert_null(strstr(cn_last_error(), "secret"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rights_stand_behind_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
