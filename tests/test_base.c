/* test_base.c - status text, byte strings, counted allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/base.h"
#include "engine/base/utf8.h"

static void fail_keeps_text_and_adds_context(void **state)
{
    (void)state;
    assert_int_equal(cn_fail(CN_ERR_ARG, "value %d", 7), CN_ERR_ARG);
    assert_int_equal(cn_fail_within(CN_ERR_IO, "line %d", 3), CN_ERR_IO);
    assert_string_equal(cn_last_error(), "line 3: value 7");
}

static void an_error_may_name_a_member(void **state)
{
    (void)state;
    assert_int_equal(cn_fail_param("n", "n is %d", 0), CN_ERR_ARG);
    assert_string_equal(cn_last_error(), "n is 0");
    assert_int_equal(cn_for_param(CN_ERR_ARG, "kv"), CN_ERR_ARG);
    cn_fail_within(CN_ERR_ARG, "prompt %d", 1);
    assert_string_equal(cn_last_param(), "n"); /* the first name stays */
    assert_int_equal(cn_for_param(cn_fail(CN_ERR_IO, "no disk"), "kv"), CN_ERR_IO);
    assert_string_equal(cn_last_param(), "");
    assert_int_equal(cn_for_param(cn_fail(CN_ERR_ARG, "too large"), "kv"), CN_ERR_ARG);
    assert_string_equal(cn_last_param(), "kv");
    char name[301] = "";
    for (int i = 0; i < 100; i++) memcpy(name + 3 * i, "\xE2\x82\xAC", 4);
    cn_fail_param(name, "unknown");
    const size_t n = strlen(cn_last_param());
    assert_true(n > 100 && n < sizeof name && n % 3 == 0); /* cut between two characters */
    assert_memory_equal(cn_last_param(), name, n);
}

static cn_status fails(void) { return cn_fail(CN_ERR_IO, "no such file"); }

static cn_status forwards(int *line)
{
    *line = __LINE__ + 1;
    CN_TRY(fails());
    return CN_OK;
}

/* Captures what forwards() writes to stderr at a log level. */
static void log_of_forwards(cn_log_lvl level, int *line, char *text, size_t size)
{
    FILE *log = tmpfile();
    const int saved = dup(STDERR_FILENO);
    assert_non_null(log);
    assert_true(saved >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    cn_log_set_level(level);
    const cn_status status = forwards(line);
    cn_log_set_level(CN_LOG_INFO);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(log);
    text[fread(text, 1, size - 1, log)] = '\0';
    fclose(log);
    assert_int_equal(status, CN_ERR_IO);
    assert_string_equal(cn_last_error(), "no such file");
}

static void a_forwarded_failure_is_traced_for_debugging(void **state)
{
    (void)state;
    int line;
    char text[256], want[256];
    log_of_forwards(CN_LOG_DEBUG, &line, text, sizeof text);
    snprintf(want, sizeof want, "debug: %s:%d: forwards CN_ERR_IO: no such file\n", __FILE__, line);
    assert_string_equal(text, want);
    log_of_forwards(CN_LOG_INFO, &line, text, sizeof text);
    assert_string_equal(text, "");
}

static void log_lines_have_no_control_characters(void **state)
{
    (void)state;
    char text[256], small[9];
    FILE *log = tmpfile();
    const int saved = dup(STDERR_FILENO);
    assert_true(log && saved >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    cn_log(CN_LOG_ERROR, "%s", "a\033[2Jb\a\nerror: c\x7f \u00e9\u65e5 \xc2\x9b" "1m\u00a0");
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(log);
    text[fread(text, 1, sizeof text - 1, log)] = '\0';
    fclose(log);
    assert_string_equal(text, "error: a\\x1b[2Jb\\x07\\x0aerror: c\\x7f \u00e9\u65e5 "
                              "\\xc2\\x9b1m\u00a0\n");
    assert_string_equal(cn_utf8_escape_controls("abc\n\n", small, sizeof small), "abc\\x0a");
    assert_string_equal(cn_utf8_escape_controls("", small, sizeof small), "");
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

static void two_calls_give_different_random_bytes(void **state)
{
    (void)state;
    uint8_t a[256] = {0}, b[256] = {0};
    assert_int_equal(cn_random_bytes(a, sizeof a), CN_OK);
    assert_int_equal(cn_random_bytes(b, sizeof b), CN_OK);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a + 128, b + 128, 128); /* all bytes are filled */
    assert_int_equal(cn_random_bytes(a, 0), CN_OK);
}

/* An array keeps its items, and is allocated anew only where their number is a power of two. */
static void an_array_grows_by_doubling(void **state)
{
    (void)state;
    uint32_t *items = NULL, n = 0;
    const uint64_t before = cn_alloc_count();
    for (; n < 1000; n++) {
        assert_int_equal(CN_ROOM(&items, n, "numbers"), CN_OK);
        items[n] = n;
    }
    assert_int_equal(cn_alloc_count() - before, 7); /* 16, 32, ... 1024 */
    for (uint32_t i = 0; i < n; i++) assert_int_equal(items[i], i);
    n = 40; /* items may go, too */
    for (; n < 300; n++) {
        assert_int_equal(CN_ROOM(&items, n, "numbers"), CN_OK);
        items[n] = n;
    }
    for (uint32_t i = 0; i < n; i++) assert_int_equal(items[i], i);
    assert_int_equal(cn_make_room(&items, (size_t)1 << 62, 8, "numbers"), CN_ERR_MEMORY);
    assert_string_equal(cn_last_error(), "out of memory for numbers");
    assert_int_equal(items[299], 299);
    cn_free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_keeps_text_and_adds_context),
        cmocka_unit_test(an_error_may_name_a_member),
        cmocka_unit_test(a_forwarded_failure_is_traced_for_debugging),
        cmocka_unit_test(log_lines_have_no_control_characters),
        cmocka_unit_test(buf_grows_and_stays_terminated),
        cmocka_unit_test(allocation_refuses_overflow),
        cmocka_unit_test(two_calls_give_different_random_bytes),
        cmocka_unit_test(an_array_grows_by_doubling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
