/* test_api_keys.c - the rights behind a key, and the names of keys without one.
 * tests/test_serve_limits.c tests the keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/http/api_keys.h"

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

/* The digits are those of sha256sum. */
static void an_unnamed_key_is_named_after_itself(void **state)
{
    (void)state;
    cn_api_keys *k;
    assert_int_equal(cn_api_keys_load(&k, "first-key-0,b:second-key,just-a-key-2", NULL), CN_OK);
    assert_string_equal(cn_api_keys_name(k, 0), "key-0ad43102ec90");
    assert_string_equal(cn_api_keys_name(k, 2), "key-bc4805b722d2");
    cn_api_keys_free(k);
    assert_int_equal(cn_api_keys_load(&k, "just-a-key-2 admin,first-key-0", NULL), CN_OK);
    assert_string_equal(cn_api_keys_name(k, 0), "key-bc4805b722d2");
    assert_string_equal(cn_api_keys_name(k, 1), "key-0ad43102ec90");
    assert_int_equal(cn_api_keys_find_name(k, "key-1"), CN_API_KEY_NONE);
    cn_api_keys_free(k);
    assert_int_equal(cn_api_keys_load(&k, "just-a-key-2,just-a-key-2", NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "key 2 is the same as key 1"));
    assert_int_equal(cn_api_keys_load(&k, "a:just-a-key-2,b:just-a-key-2", NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "key 2 is the same as key 1"));
    assert_null(strstr(cn_last_error(), "just-a-key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rights_stand_behind_a_key),
        cmocka_unit_test(an_unnamed_key_is_named_after_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
