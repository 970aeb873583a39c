/* test_api_keys.c - the rights behind a key, and the names of keys without one.
 * tests/test_serve_limits.c tests the keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/api_keys.h"
#include "engine/serve/sha256.h"

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

/* The digests are those of sha256sum. */
static void the_digest_is_sha256(void **state)
{
    (void)state;
    static const struct {
        size_t n; /* letters a */
        const char *digest;
    } cases[] = {
        {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
        {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        {1000, "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1000], hex[2 * CN_SHA256_BYTES + 1];
        uint8_t digest[CN_SHA256_BYTES];
        memset(text, 'a', sizeof text);
        cn_sha256(text, cases[i].n, digest);
        for (size_t k = 0; k < CN_SHA256_BYTES; k++) snprintf(hex + 2 * k, 3, "%02x", digest[k]);
        assert_string_equal(hex, cases[i].digest);
    }
}

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
    assert_non_null(strstr(cn_last_error(), "listed twice"));
    assert_null(strstr(cn_last_error(), "just-a-key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rights_stand_behind_a_key),
        cmocka_unit_test(the_digest_is_sha256),
        cmocka_unit_test(an_unnamed_key_is_named_after_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
