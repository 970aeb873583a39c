/* result_body.c - see result_body.h. */
#include "tests/lib/result_body.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

void result_body_text(const cn_api_result *r, const char *id, const char *model, int64_t created,
                      size_t n_bytes, cn_buf *out)
{
    cn_api_writer w = {.id = id, .model = model, .created = created, .digits = 17};
    for (bool done = false; !done;)
        assert_int_equal(cn_api_result_write(r, &w, out, n_bytes, &done), CN_OK);
}

json_t *result_body(const cn_api_result *r, const char *id, const char *model, int64_t created)
{
    static const char nul[] = "\\u0000", mask[] = "\\ufdd0";
    cn_buf text = {0};
    json_error_t e;
    result_body_text(r, id, model, created, SIZE_MAX, &text);
    for (char *at = text.data; (at = strstr(at, nul)); at++)
        if (strchr(at, '"')[1] == ':') memcpy(at, mask, sizeof mask - 1);
    json_t *body = json_loadb(text.data, text.len, JSON_ALLOW_NUL, &e);
    if (!body) fail_msg("%s: %s", e.text, text.data);
    cn_buf_free(&text);
    return body;
}
