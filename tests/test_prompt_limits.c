/* test_prompt_limits.c - texts of prompts at their limits: bytes that no context can hold, memory
 * of a large text, U+0000 without a token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/prompt.h"
#include "tests/lib/process_memory.h"
#include "tests/lib/sanitizer.h"

static cn_tokenizer *load_tokenizer(void)
{
    cn_tokenizer *t;
    assert_int_equal(cn_tokenizer_load(&t, "examples/tiny-reasoner"), CN_OK);
    return t;
}

static cn_prompt_maker maker_of(cn_tokenizer *t, uint32_t max_model_len)
{
    return (cn_prompt_maker){.tokenizer = t,
                             .vocab = cn_tokenizer_vocab_size(t),
                             .max_model_len = max_model_len,
                             .longest_token = cn_prompt_longest_token(t)};
}

static void put_text(cn_buf *b, const char *piece, size_t n)
{
    cn_buf_clear(b);
    while (b->len < n) assert_int_equal(cn_buf_add(b, piece, strlen(piece)), CN_OK);
}

static cn_status tokens_of(const cn_prompt_maker *m, const cn_buf *text, uint32_t truncate,
                           size_t *n)
{
    cn_tokens out = {0};
    const cn_request_params p = {
        .text = text->data, .text_len = text->len, .truncate_prompt = truncate};
    const cn_status status = cn_prompt_tokens(m, &p, &out);
    *n = out.len;
    cn_tokens_free(&out);
    return status;
}

static void more_bytes_than_the_context_are_refused(void **state)
{
    (void)state;
    enum { CONTEXT = 64 };
    cn_tokenizer *t = load_tokenizer();
    const cn_prompt_maker m = maker_of(t, CONTEXT);
    const size_t most = CONTEXT * m.longest_token;
    cn_buf text = {0};
    size_t n;
    put_text(&text, "a", most); /* may fit, but has too many tokens */
    assert_int_equal(tokens_of(&m, &text, 0, &n), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "leaves no room"));
    put_text(&text, "a", most + 1);
    assert_int_equal(tokens_of(&m, &text, 0, &n), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "no token has more than"));
    assert_int_equal(tokens_of(&m, &text, 5, &n), CN_OK);
    assert_int_equal(n, 5);
    put_text(&text, "e\xCC\x81", most + 1); /* normalization makes it shorter */
    assert_int_equal(tokens_of(&m, &text, 0, &n), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "leaves no room"));
    cn_buf_free(&text);
    cn_tokenizer_free(t);
}

static void a_large_text_takes_little_memory(void **state)
{
    (void)state;
    enum { TEXT_BYTES = 16 << 20, MOST_KIB = 8 << 10 };
    if (BY_SANITIZER(false, true, true)) skip();
    cn_tokenizer *t = load_tokenizer();
    const cn_prompt_maker m = maker_of(t, 1024);
    cn_buf text = {0};
    size_t n;
    put_text(&text, "ab", TEXT_BYTES);
    assert_int_equal(tokens_of(&m, &text, 5, &n), CN_OK); /* the scratch memory of a part stays */
    const uint64_t before = process_reset_peak_kib();
    assert_int_equal(tokens_of(&m, &text, 5, &n), CN_OK);
    assert_true(process_growth_kib(before) < MOST_KIB);
    assert_true(process_idle_rss_kib() < before + MOST_KIB);
    cn_buf_free(&text);
    cn_tokenizer_free(t);
}

static void a_nul_without_a_token_is_named(void **state)
{
    (void)state;
    static const char json[] =
        "{\"version\": \"1.0\", "
        "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, "
        "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\"}}";
    cn_tokenizer *t;
    if (cn_tokenizer_parse(&t, json, sizeof json - 1, "json") != CN_OK)
        fail_msg("%s", cn_last_error());
    const cn_prompt_maker m = maker_of(t, 1024);
    const cn_buf with = {.data = (char[]){"a\0a"}, .len = 3};
    const cn_buf without = {.data = (char[]){"aa"}, .len = 2};
    size_t n;
    assert_int_equal(tokens_of(&m, &without, 0, &n), CN_OK);
    assert_int_equal(tokens_of(&m, &with, 0, &n), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "prompt: the vocabulary of the model has no token for "
                                            "U+0000"));
    cn_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_bytes_than_the_context_are_refused),
        cmocka_unit_test(a_large_text_takes_little_memory),
        cmocka_unit_test(a_nul_without_a_token_is_named),
    };
    process_use_one_arena();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
