/* fuzz_multipart.c - feeds hostile multipart bodies. Must hold: no crash; a refusal has
 * CN_ERR_ARG; begin comes before data, with valid texts; cutting the body into other pieces does
 * not change the result. */
#include <string.h>

#include "engine/base/base.h"
#include "engine/base/utf8.h"
#include "engine/serve/routes/files_multipart.h"
#include "tests/lib/fuzz.h"

typedef struct seen {
    cn_buf text; /* the whole result in one string */
    bool has_part;
    size_t n_data;
} seen;

static void check_text(const char *text)
{
    const size_t n = strlen(text);
    FUZZ_CHECK(n <= CN_MULTIPART_MAX_NAME && cn_utf8_valid_prefix(text, n) == n);
    for (size_t i = 0; i < n; i++) FUZZ_CHECK((unsigned char)text[i] >= 0x20);
}

static cn_status begin(void *user, const char *name, const char *filename)
{
    seen *s = user;
    FUZZ_CHECK(*name);
    check_text(name);
    if (filename) check_text(filename);
    s->has_part = true;
    return cn_buf_addf(&s->text, "<%s|%s>", name, filename ? filename : "-");
}

static cn_status data(void *user, const char *bytes, size_t n)
{
    seen *s = user;
    FUZZ_CHECK(s->has_part && n > 0);
    s->n_data += n;
    return cn_buf_add(&s->text, bytes, n);
}

/* The first line of the input is the header's value. The rest is the body, fed in pieces of `piece`
 * bytes. */
static cn_status parse(const char *text, size_t size, size_t piece, seen *s)
{
    const char *newline = memchr(text, '\n', size);
    const size_t n = newline ? (size_t)(newline - text) : size;
    char *content_type = cn_strndup(text, n);
    const cn_multipart_sink sink = {s, begin, data};
    cn_multipart *m = NULL;
    cn_status status = cn_multipart_create(&m, content_type, &sink);
    for (size_t at = n + 1; status == CN_OK && at < size; at += piece)
        status = cn_multipart_feed(m, text + at, size - at < piece ? size - at : piece);
    if (status == CN_OK) status = cn_multipart_finish(m);
    FUZZ_CHECK(status == CN_OK || status == CN_ERR_ARG);
    FUZZ_CHECK(s->n_data <= size);
    cn_multipart_free(m);
    cn_free(content_type);
    return status;
}

static void run(const uint8_t *bytes, size_t size)
{
    seen whole = {0};
    const cn_status status = parse((const char *)bytes, size, size + 1, &whole);
    static const size_t pieces[] = {1, 3, 64};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        seen cut = {0};
        FUZZ_CHECK(parse((const char *)bytes, size, pieces[i], &cut) == status);
        if (status == CN_OK) {
            FUZZ_CHECK(cut.text.len == whole.text.len);
            FUZZ_CHECK(!cut.text.len ||
                       memcmp(cut.text.data, whole.text.data, cut.text.len) == 0);
        }
        cn_buf_free(&cut.text);
    }
    cn_buf_free(&whole.text);
}

#define TYPE "multipart/form-data; boundary=B\n"

static const fuzz_input corpus[] = {
    FUZZ_TEXT(TYPE "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--B\r\n"
                   "Content-Disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\n"
                   "Content-Type: application/octet-stream\r\n\r\n{\"custom_id\": \"a\"}\n\r\n"
                   "--B--\r\n"),
    FUZZ_TEXT("multipart/form-data; boundary=\"a b\"\npreamble\r\n--a b \t\r\n"
              "content-disposition: form-data; name=x\r\n\r\n\r\n--a \r\n-\r\n--a b--epilogue"),
    FUZZ_TEXT(TYPE "--B\r\nX: y\r\nContent-Disposition: form-data; name=\"a\\\"b\\\\c\"\r\n\r\n"
                   "\r\n--\r\n--A\r\n\r\n--B--"),
};

static const char *const words[] = {
    "\r\n--B\r\n", "\r\n--B--", "--B",     "\r\n\r\n", "Content-Disposition: form-data; name=\"",
    "filename=",   "\\\"",      "\r\n--",  "boundary=", "; ",
};

int main(int argc, char **argv)
{
    const fuzz_target target = {
        .name = "multipart",
        .run = run,
        .corpus = corpus,
        .n_corpus = sizeof corpus / sizeof *corpus,
        .words = words,
        .n_words = sizeof words / sizeof *words,
    };
    return fuzz_main(argc, argv, &target);
}
