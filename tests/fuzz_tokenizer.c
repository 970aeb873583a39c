/* fuzz_tokenizer.c - feeds hostile tokenizer.json files and texts. Must hold: no
 * crash; a refusal has a printable text; a tokenizer that loads encodes any bytes, every id has a
 * token, and the ids decode to valid UTF-8, token by token with the same result as all at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"
#include "tests/lib/fuzz.h"

static cn_tokenizer *bundled;

/* Decodes the bytes of all tokens together. Streaming must give the same text. */
static void decode_at_once(const cn_tokenizer *t, const cn_tokens *ids, cn_buf *out)
{
    cn_buf bytes = {0};
    FUZZ_CHECK(cn_buf_add(&bytes, "", 0) == CN_OK);
    for (size_t i = 0; i < ids->len; i++) {
        const char *token;
        size_t n;
        bool special;
        FUZZ_CHECK(cn_tokenizer_token(t, ids->ids[i], &token, &n, &special));
        FUZZ_CHECK(cn_buf_add(&bytes, token, n) == CN_OK);
    }
    FUZZ_CHECK(cn_utf8_add_lossy(out, bytes.data, bytes.len) == CN_OK);
    cn_buf_free(&bytes);
}

static void check_text(cn_tokenizer *t, const char *text, size_t n)
{
    cn_tokens ids = {0};
    cn_buf whole = {0}, pieces = {0};
    FUZZ_CHECK(cn_tokenizer_encode(t, text, n, true, &ids) == CN_OK);
    decode_at_once(t, &ids, &whole);
    cn_detok d;
    cn_detok_init(&d, t, false);
    for (size_t i = 0; i < ids.len; i++) {
        FUZZ_CHECK(cn_detok_push(&d, ids.ids[i], &pieces) == CN_OK);
        FUZZ_CHECK(d.n_held <= 3);
        FUZZ_CHECK(cn_utf8_valid_prefix(pieces.data ? pieces.data : "", pieces.len) == pieces.len);
    }
    FUZZ_CHECK(cn_detok_flush(&d, &pieces) == CN_OK);
    FUZZ_CHECK(pieces.len == whole.len);
    FUZZ_CHECK(whole.len == 0 || memcmp(pieces.data, whole.data, whole.len) == 0);
    cn_tokens_free(&ids);
    cn_buf_free(&whole);
    cn_buf_free(&pieces);
}

static void run(const uint8_t *data, size_t size)
{
    static const char awkward[] = "I'LL <a> <b>  <b>\n\xff été e\u0301 ab  \r\n 12 \0 x<a";
    const char *text = (const char *)data;
    check_text(bundled, text, size);
    cn_tokenizer *t;
    cn_status status = cn_tokenizer_parse(&t, text, size, "in");
    if (status != CN_OK) {
        FUZZ_CHECK(status == CN_ERR_MODEL);
        for (const char *p = cn_last_error(); *p; p++) FUZZ_CHECK(*p >= 0x20 && *p < 0x7f);
        return;
    }
    check_text(t, awkward, sizeof awkward - 1);
    check_text(t, text, size);
    cn_tokenizer_free(t);
}

static const char *const words[] = {
    "\"type\":",
    "\"id\":",
    "\"content\":",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "\"lstrip\":true",
    "\"normalized\":true",
    "4194303",
    "-1",
    "1e99",
    "\"ignore_merges\":true,",
    "\"added_tokens\":[",
    "\"merges\":[",
    "\"SpecialToken\":",
    "Ġ",
    "<|im_start|>",
    "<think>",
    "</think>",
    "\xe2\x80",
    "\xf0\x9f",
    "\xed\xa0\x80",
    "e\u0301",
    "\u1161",
    "\u3000",
    "\r\n",
    "'s",
    "  ",
    "\\u",
};

/* A vocabulary of the bytes of UTF-8, in the order of their characters, then optional parts. */
static char *make_corpus_file(void)
{
    cn_buf b = {0};
    FUZZ_CHECK(cn_buf_addf(&b, "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\",\"vocab\":{") ==
               CN_OK);
    for (unsigned id = 0; id < 256; id++) {
        char utf8[5] = {0};
        bool printable = (id >= 33 && id <= 126) || (id >= 161 && id != 173);
        unsigned shifted = id <= 32 ? 256 + id : id == 173 ? 323 : 256 + 33 + id - 127;
        cn_utf8_write(utf8, printable ? id : shifted);
        const char *escape = id == '"' || id == '\\' ? "\\" : "";
        FUZZ_CHECK(cn_buf_addf(&b, "\"%s%s\":%u,", escape, utf8, id) == CN_OK);
    }
    FUZZ_CHECK(
        cn_buf_addf(
            &b, "%s",
            "\"ab\":256,\"Ġx\":257},\"merges\":[\"a b\",[\"Ġ\",\"x\"]],\"ignore_merges\":false},"
            "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false,\"trim_offsets\":true},\"decoder\":{\"type\":\"ByteLevel\"}"
            ","
            "\"added_tokens\":[{\"id\":258,\"content\":\"<a>\",\"single_word\":false,\"lstrip\":"
            "true,"
            "\"rstrip\":true,\"normalized\":false,\"special\":true},{\"id\":259,\"content\":"
            "\"e\u0301x\","
            "\"single_word\":true,\"lstrip\":false,\"rstrip\":false,\"normalized\":true,"
            "\"special\":false}],\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
            "{\"SpecialToken\":{\"id\":\"<a>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
            "\"type_id\":0}}],\"special_tokens\":{\"<a>\":{\"id\":\"<a>\",\"ids\":[258],\"tokens\":"
            "["
            "\"<a>\"]}}}}") == CN_OK);
    return b.data;
}

int main(int argc, char **argv)
{
    char *file = make_corpus_file();
    const fuzz_input corpus[] = {
        {file, strlen(file)},
        FUZZ_TEXT(
            "<|im_start|>user\nIt's 12,345 naïve re\u0301sume\u0301s 中文 🙂<|im_end|>\n"),
    };
    const fuzz_target target = {.name = "tokenizer",
                                .run = run,
                                .corpus = corpus,
                                .n_corpus = sizeof corpus / sizeof *corpus,
                                .words = words,
                                .n_words = sizeof words / sizeof *words,
                                .max_size = 8192};
    cn_tokenizer *t;
    if (cn_tokenizer_parse(&t, file, strlen(file), "corpus") != CN_OK ||
        cn_tokenizer_load(&bundled, "examples/tiny-reasoner") != CN_OK) {
        fprintf(stderr, "fuzz_tokenizer: %s\n", cn_last_error());
        return 1;
    }
    cn_tokenizer_free(t);
    int code = fuzz_main(argc, argv, &target);
    cn_tokenizer_free(bundled);
    free(file);
    return code;
}
