/* test_files_multipart.c - forms as clients send them, cut at any byte, and invalid forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/routes/files_multipart.h"

static cn_buf out;

static cn_status begin(void *user, const char *name, const char *filename)
{
    (void)user;
    return cn_buf_addf(&out, "<%s:%s>", name, filename ? filename : "");
}

static cn_status data(void *user, const char *bytes, size_t n)
{
    (void)user;
    return cn_buf_add(&out, bytes, n);
}

static const cn_multipart_sink sink = {NULL, begin, data};

static cn_status parse(const char *type, const char *body, size_t n, size_t piece)
{
    cn_multipart *m;
    cn_buf_free(&out);
    CN_TRY(cn_multipart_create(&m, type, &sink));
    cn_status status = CN_OK;
    for (size_t at = 0; at < n && status == CN_OK; at += piece)
        status = cn_multipart_feed(m, body + at, n - at < piece ? n - at : piece);
    if (status == CN_OK) status = cn_multipart_finish(m);
    cn_multipart_free(m);
    return status;
}

static void expect(const char *type, const char *body, const char *want)
{
    const size_t n = strlen(body);
    for (size_t piece = 1; piece <= n; piece++) {
        if (parse(type, body, n, piece) != CN_OK) fail_msg("%s", cn_last_error());
        assert_string_equal(out.data ? out.data : "", want);
    }
    cn_buf_free(&out);
}

static void expect_refused(const char *type, const char *body)
{
    assert_int_equal(parse(type, body, strlen(body), 7), CN_ERR_ARG);
    cn_buf_free(&out);
}

#define FORM "multipart/form-data; boundary=xx"
#define FIELD "Content-Disposition: form-data; name="
#define PART FIELD "\"a\"\r\n\r\n"

static void forms_cut_at_any_byte_are_read(void **state)
{
    (void)state;
    expect(FORM,
           "--xx\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
           "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n"
           "Content-Type: application/json\r\n\r\n{}\n{}\n\r\n--xx--\r\n",
           "<purpose:>batch<file:in.jsonl>{}\n{}\n");
    expect("Multipart/Form-Data ; charset=utf-8; Boundary=\"x y\"",
           "ignored\r\n--x y\t\r\ncontent-disposition:form-data;name=a\r\n\r\n\r\n--x y--ignored",
           "<a:>");
    expect(FORM, "--xx\r\n" PART "\r\n-\r\n--x\r\n--xy\r\n--xx--", "<a:>\r\n-\r\n--x\r\n--xy");
    expect(FORM,
           "--xx\r\nContent-Disposition: form-data; name=\"a\\\"b\"; filename=\"\xC3\xA4;\"\r\n"
           "\r\n1\r\n--xx--",
           "<a\"b:\xC3\xA4;>1");
    expect(FORM, "--xx--", "");
}

static void invalid_forms_are_refused(void **state)
{
    (void)state;
    static const char *const types[] = {
        NULL, "", "application/json", "multipart/form-data", "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"x", "multipart/form-datax; boundary=xx",
        "multipart/form-data; boundary=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) expect_refused(types[i], "--xx--");
    expect_refused(FORM, "");
    expect_refused(FORM, "--xx\r\n" PART "never ends");
    expect_refused(FORM, "--xx\r\n" PART "x\r\n--xxx\r\n");
    expect_refused(FORM, "--xx\r\n\r\nno name\r\n--xx--");
    expect_refused(FORM, "--xx\r\nContent-Type: text/plain\r\n\r\nx\r\n--xx--");
    expect_refused(FORM, "--xx\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\nx\r\n--xx--");
    expect_refused(FORM, "--xx\r\n" FIELD "\"a\r\n\r\nx\r\n--xx--");
    expect_refused(FORM, "--xx\r\n" FIELD "\"\xFF\"\r\n\r\nx\r\n--xx--");
    expect_refused(FORM, "--xx\r\n" FIELD "\"a\tb\"\r\n\r\nx\r\n--xx--");

    static char body[3 * CN_MULTIPART_MAX_HEADER];
    memset(body, 'x', sizeof body - 1);
    memcpy(body, "--xx\r\n", 6);
    expect_refused(FORM, body);
    cn_buf many = {0};
    for (int i = 0; i <= CN_MULTIPART_MAX_PARTS; i++)
        assert_int_equal(cn_buf_addf(&many, "--xx\r\n" PART "x\r\n"), CN_OK);
    assert_int_equal(cn_buf_addf(&many, "--xx--"), CN_OK);
    expect_refused(FORM, many.data);
    cn_buf_free(&many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_cut_at_any_byte_are_read),
        cmocka_unit_test(invalid_forms_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
