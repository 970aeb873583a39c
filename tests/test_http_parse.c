/* test_http_parse.c - heads that two parsers could read in two ways are refused, and chunked bodies
 * are joined correctly for any division into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/serve/http/http_parse.h"

/* Parses a copy of exactly the text's size, so that a sanitizer sees a read past the end. */
static int parse(const char *text, cn_http_head *h, char **keep)
{
    const char *why = NULL;
    size_t n = strlen(text);
    *keep = malloc(n);
    memcpy(*keep, text, n);
    int status = cn_http_parse_head(h, *keep, n, &why);
    assert_non_null(why);
    return status;
}

static void assert_refused(const char *text, int want)
{
    cn_http_head h;
    char *keep;
    int status = parse(text, &h, &keep);
    if (status != want) fail_msg("expected status %d, got %d: %s", want, status, text);
    free(keep);
}

#define START "GET / HTTP/1.1\r\nHost: h\r\n"

static void a_head_is_read(void **state)
{
    (void)state;
    cn_http_head h;
    char *keep;
    int status = parse("POST /v1/a%20b?limit=2&x=%41+b HTTP/1.1\r\nHost: here\r\n"
                       "content-LENGTH:  12 \r\nX-A: b\t c\r\nExpect: 100-Continue\r\n"
                       "Connection: x, Close\r\n\r\n", &h, &keep);
    assert_int_equal(status, 0);
    assert_int_equal(h.method, CN_HTTP_POST);
    assert_string_equal(h.path, "/v1/a b");
    assert_string_equal(h.query, "limit=2&x=%41+b");
    assert_int_equal(h.content_length, 12);
    assert_true(h.has_length && h.expects_continue && !h.keep_alive && !h.chunked);
    assert_string_equal(cn_http_header(&h, "x-a"), "b\t c");
    assert_null(cn_http_header(&h, "x-b"));
    free(keep);
}

static void versions_and_keep_alive(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool keep_alive;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, close\r\n\r\n", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_http_head h;
        char *keep;
        assert_int_equal(parse(cases[i].text, &h, &keep), 0);
        assert_int_equal(h.keep_alive, cases[i].keep_alive);
        free(keep);
    }
}

/* A target may be a URL. Its host counts, so the Host field may differ. */
static void targets_in_absolute_form_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text, *path, *query;
    } cases[] = {
        {"GET http://h/a%20b?x=/1 HTTP/1.1\r\nHost: h\r\n\r\n", "/a b", "x=/1"},
        {"GET HTTPS://H:8000/v1/models HTTP/1.1\r\nHost: h:8000\r\n\r\n", "/v1/models", ""},
        {"GET http://h HTTP/1.1\r\nHost: other\r\n\r\n", "/", ""},
        {"GET http://h?x HTTP/1.0\r\n\r\n", "/", "x"},
        {"GET http://h//a HTTP/1.0\r\n\r\n", "/a", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_http_head h;
        char *keep;
        assert_int_equal(parse(cases[i].text, &h, &keep), 0);
        assert_string_equal(h.path, cases[i].path);
        assert_string_equal(h.query, cases[i].query);
        free(keep);
    }
}

/* Slashes that clients add when they join a base URL and a path do not matter. */
static void paths_have_single_slashes(void **state)
{
    (void)state;
    static const char *const paths[][2] = {
        {"//", "/"}, {"/a/", "/a"}, {"//a///b//", "/a/b"}, {"/%2Fa%2F", "/a"}, {"/a/?b=//", "/a"}};
    cn_http_head h;
    char *keep;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char text[64];
        snprintf(text, sizeof text, "GET %s HTTP/1.0\r\n\r\n", paths[i][0]);
        assert_int_equal(parse(text, &h, &keep), 0);
        assert_string_equal(h.path, paths[i][1]);
        free(keep);
    }
    assert_int_equal(parse("OPTIONS * HTTP/1.0\r\n\r\n", &h, &keep), 0);
    assert_string_equal(h.path, "/");
    free(keep);
}

static void ambiguous_heads_are_refused(void **state)
{
    (void)state;
    assert_refused("GET / HTTP/1.1\nHost: h\n\n", 400);
    assert_refused("GET / HTTP/1.1\r\nHost: h\n\r\n", 400);
    assert_refused("GET /\r HTTP/1.1\r\nHost: h\r\n\r\n", 400);
    assert_refused(START "A : b\r\n\r\n", 400);
    assert_refused(START "A: b\r\n c\r\n\r\n", 400);
    assert_refused(START ": b\r\n\r\n", 400);
    assert_refused(START "no colon\r\n\r\n", 400);
    assert_refused(START "A: b\x01\r\n\r\n", 400);
    assert_refused(START "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400);
    assert_refused(START "Content-Length: 1, 1\r\n\r\n", 400);
    assert_refused(START "Content-Length: +1\r\n\r\n", 400);
    assert_refused(START "Content-Length: 0x10\r\n\r\n", 400);
    assert_refused(START "Content-Length: \r\n\r\n", 400);
    assert_refused(START "Content-Length: 99999999999999999999\r\n\r\n", 400);
    assert_refused(START "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    assert_refused(START "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    assert_refused(START "Transfer-Encoding: gzip, chunked\r\n\r\n", 501);
    assert_refused("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    assert_refused("GET / HTTP/1.1\r\n\r\n", 400);
    assert_refused(START "Host: other\r\n\r\n", 400);
    assert_refused(START "Expect: magic\r\n\r\n", 417);
}

static void request_lines_are_strict(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "GET /",           "GET  / HTTP/1.1",      "GET / HTTP/1.1 ",     " GET / HTTP/1.1",
        "G(T / HTTP/1.1",  "GET ftp://h/ HTTP/1.1", "GET * HTTP/1.1",     "GET /a b HTTP/1.1",
        "GET http:///a HTTP/1.1", "GET http://u@h/ HTTP/1.1", "GET http://:80/ HTTP/1.1",
        "GET http:/h HTTP/1.1", "GET http://h#a HTTP/1.1",
        "GET /%zz HTTP/1.1", "GET /%00 HTTP/1.1",  "GET /%4 HTTP/1.1",    "GET /# HTTP/1.1",
        "GET /\x80 HTTP/1.1", "GET / http/1.1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s\r\nHost: h\r\n\r\n", lines[i]);
        assert_refused(text, 400);
    }
    assert_refused("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505);
    assert_refused("PRI * HTTP/2.0\r\n\r\n", 400);
    assert_refused("GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505);
}

static void too_many_fields_are_refused(void **state)
{
    (void)state;
    cn_buf text = {0};
    assert_int_equal(cn_buf_addf(&text, START), CN_OK);
    for (int i = 0; i < CN_HTTP_MAX_HEADERS; i++)
        assert_int_equal(cn_buf_addf(&text, "A%d: b\r\n", i), CN_OK);
    assert_int_equal(cn_buf_addf(&text, "\r\n"), CN_OK);
    assert_refused(text.data, 431);
    cn_buf_free(&text);
}

static void the_end_of_a_head_split_in_pieces_is_found(void **state)
{
    (void)state;
    static const char text[] = START "A: b\r\n\r\nbody\r\n\r\n";
    const size_t want = strlen(START "A: b\r\n\r\n");
    size_t seen = 0, length = 0;
    for (size_t n = 1; n < sizeof text && !length; n++) {
        length = cn_http_head_length(text, n, &seen);
        assert_true(length == 0 || n == want);
    }
    assert_int_equal(length, want);
}

/* Feeds text in pieces of `step` bytes. Returns the body, or NULL when it was refused. */
static char *unchunk(const char *text, size_t step, size_t *used)
{
    cn_http_chunks c = {0};
    static char body[4096];
    size_t n_body = 0, at = 0, total = strlen(text);
    while (c.state != CN_CHUNK_DONE && at < total) {
        size_t n = total - at < step ? total - at : step;
        for (size_t inside = 0; inside < n && c.state != CN_CHUNK_DONE;) {
            const char *data = text;
            size_t n_data;
            bool bad;
            inside += cn_http_chunks_next(&c, text + at + inside, n - inside, &data, &n_data, &bad);
            if (bad) return NULL;
            memcpy(body + n_body, data, n_data);
            n_body += n_data;
            *used = at + inside;
        }
        at += n;
    }
    body[n_body] = '\0';
    return c.state == CN_CHUNK_DONE ? body : NULL;
}

static void chunks_are_joined(void **state)
{
    (void)state;
    static const char text[] = "4\r\nWiki\r\n5;x=\"y\"\r\npedia\r\nE\r\n in\r\n\r\nchunks.\r\n"
                               "0\r\nTrailer: t\r\n\r\n";
    const size_t n = strlen(text);
    char whole[256];
    snprintf(whole, sizeof whole, "%sNEXT", text);
    for (size_t step = 1; step <= n + 4; step++) {
        size_t used = 0;
        char *body = unchunk(whole, step, &used);
        assert_non_null(body);
        assert_string_equal(body, "Wikipedia in\r\n\r\nchunks.");
        assert_int_equal(used, n);
    }
}

static void bad_chunks_are_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "x\r\n", "\r\n", "4\nWiki\r\n", "4\r\nWikiX\r\n", "-1\r\n", "4\rX", "1 \x01\r\n",
        "1000000000000000\r\n", "0\r\na\n\r\n", " 4\r\n", "4\r\nWiki\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t step = 1; step < 8; step++) {
            size_t used;
            cn_http_chunks c = {0};
            const char *data = NULL;
            size_t n_data, at = 0, total = strlen(texts[i]);
            bool bad = false;
            while (!bad && at < total && c.state != CN_CHUNK_DONE) {
                size_t n = total - at < step ? total - at : step;
                used = cn_http_chunks_next(&c, texts[i] + at, n, &data, &n_data, &bad);
                assert_true(used <= n);
                at += used;
            }
            if (!bad) fail_msg("accepted: %s", texts[i]);
        }
}

static void values_are_decoded(void **state)
{
    (void)state;
    char out[32];
    assert_true(cn_http_decode("a%2Fb+c", 7, true, out));
    assert_string_equal(out, "a/b c");
    assert_true(cn_http_decode("a+b", 3, false, out));
    assert_string_equal(out, "a+b");
    assert_true(cn_http_decode("%41", 3, false, out));
    assert_string_equal(out, "A");
    assert_false(cn_http_decode("%4", 2, false, out));
    assert_false(cn_http_decode("%", 1, false, out));
    assert_false(cn_http_decode("%00", 3, false, out));
    assert_false(cn_http_decode("%g1", 3, false, out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read),
        cmocka_unit_test(versions_and_keep_alive),
        cmocka_unit_test(targets_in_absolute_form_are_read),
        cmocka_unit_test(paths_have_single_slashes),
        cmocka_unit_test(ambiguous_heads_are_refused),
        cmocka_unit_test(request_lines_are_strict),
        cmocka_unit_test(too_many_fields_are_refused),
        cmocka_unit_test(the_end_of_a_head_split_in_pieces_is_found),
        cmocka_unit_test(chunks_are_joined),
        cmocka_unit_test(bad_chunks_are_refused),
        cmocka_unit_test(values_are_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
