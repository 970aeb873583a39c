/* test_api_response.c - bodies have the fields and shapes that OpenAI clients parse. */
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/api/api_response.h"
#include "engine/offline/batch_line.h"
#include "tests/lib/result_body.h"

static const char *token_bytes(void *user, uint32_t token, size_t *n, bool *special)
{
    (void)user;
    *special = token == 8;
    static const char *const bytes[] = {"a", " b",    "\xc3", "\xc3\xb6", "c",
                                        "",  "a\0b", "\xb6", "<s>"};
    static const size_t lengths[] = {1, 2, 1, 2, 1, 1, 3, 1, 3}; /* token 5 is a byte 0 */
    if (token >= sizeof bytes / sizeof *bytes) return NULL;
    *n = lengths[token];
    return bytes[token];
}

static cn_api_result *result(cn_api_endpoint endpoint, uint32_t n, int32_t logprobs)
{
    cn_api_request r = {.endpoint = endpoint, .params.sampling = {.n = n, .logprobs = logprobs}};
    cn_api_result *out;
    assert_int_equal(cn_api_result_create(&out, &r, token_bytes, NULL), CN_OK);
    return out;
}

/* A member by path: "choices.0.message.content". */
static json_t *at(json_t *v, const char *path)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    for (char *part = strtok_r(copy, ".", &save); part; part = strtok_r(NULL, ".", &save)) {
        v = *part >= '0' && *part <= '9' ? json_array_get(v, (size_t)(*part - '0'))
                                         : json_object_get(v, part);
        if (!v) fail_msg("no %s", path);
    }
    return v;
}

/* Sets a text of an event and its length. */
#define SAYS(field, literal) .field = (literal), .field##_len = sizeof(literal) - 1
#define assert_text(body, path, want) assert_string_equal(json_string_value(at(body, path)), want)
#define assert_number(body, path, want) assert_int_equal(json_integer_value(at(body, path)), want)

static const cn_usage usage = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3,
                               .reasoning_tokens = 1,
                               .kv = {.params = {.policy = CN_KV_ZIP, .budget_tokens = 384},
                                      .compressions = 2, .evicted = 100, .peak_tokens = 448,
                                      .freed_bytes = 5000}};

static void chat_body_has_openai_fields(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_CHAT, 1, -1);
    cn_api_result_add(r, &(cn_event){SAYS(reasoning, "why "), SAYS(text, ""), .n_tokens = 1});
    assert_int_equal(cn_api_result_n_tokens(r), 1);
    cn_api_result_add(r, &(cn_event){SAYS(reasoning, "not"), SAYS(text, "4"), .n_tokens = 1});
    cn_api_result_add(r, &(cn_event){SAYS(text, "2"), SAYS(reasoning, ""), .n_tokens = 1,
                                     .finish = CN_FINISH_STOP, .stop_reason = "END",
                                     .answer_at = 1, .usage = &usage, .last = true});
    size_t n_answer;
    assert_string_equal(cn_api_result_answer(r, 0, &n_answer), "2");
    assert_int_equal(n_answer, 1);
    json_t *b = result_body(r, "77", "m\xff", 1700000000);
    assert_text(b, "id", "chatcmpl-77");
    assert_text(b, "object", "chat.completion");
    assert_text(b, "model", "m\xEF\xBF\xBD");
    assert_number(b, "created", 1700000000);
    assert_text(b, "choices.0.message.role", "assistant");
    assert_text(b, "choices.0.message.content", "42");
    assert_text(b, "choices.0.message.reasoning_content", "why not");
    assert_text(b, "choices.0.finish_reason", "stop");
    assert_text(b, "choices.0.stop_reason", "END");
    assert_true(json_is_null(at(b, "choices.0.logprobs")));
    assert_number(b, "usage.prompt_tokens", 10);
    assert_number(b, "usage.completion_tokens", 3);
    assert_number(b, "usage.total_tokens", 13);
    assert_number(b, "usage.prompt_tokens_details.cached_tokens", 4);
    assert_number(b, "usage.completion_tokens_details.reasoning_tokens", 1);
    assert_text(b, "usage.kv.policy", "zip");
    assert_number(b, "usage.kv.budget", 384);
    assert_number(b, "usage.kv.compressions", 2);
    assert_number(b, "usage.kv.evicted", 100);
    assert_number(b, "usage.kv.peak_tokens", 448);
    assert_number(b, "usage.kv.freed_bytes", 5000);
    json_decref(b);
    cn_api_result_free(r);
}

static void samples_become_choices_and_usage_adds_up(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_COMPLETION, 2, -1);
    cn_api_result_add(r, &(cn_event){.sample = 1, SAYS(text, "one"), .finish = CN_FINISH_STOP,
                                     .stop_token = 17, .usage = &usage});
    cn_api_result_add(r, &(cn_event){.sample = 0, SAYS(text, "zero"),
                                     .finish = CN_FINISH_REPETITION, .usage = &usage,
                                     .last = true});
    json_t *b = result_body(r, "8", "m", 0);
    assert_text(b, "id", "cmpl-8");
    assert_text(b, "object", "text_completion");
    assert_text(b, "choices.0.text", "zero");
    assert_text(b, "choices.0.finish_reason", "repetition");
    assert_text(b, "choices.1.text", "one");
    assert_number(b, "choices.1.stop_reason", 17);
    assert_true(json_is_null(at(b, "choices.0.stop_reason")));
    assert_number(b, "choices.1.index", 1);
    assert_number(b, "usage.prompt_tokens", 10);
    assert_number(b, "usage.completion_tokens", 6);
    assert_number(b, "usage.kv.compressions", 4);
    assert_number(b, "usage.kv.peak_tokens", 448);
    json_decref(b);
    cn_api_result_free(r);
}

static const cn_logprob top[] = {{1, -0.5f}, {2, -INFINITY}};
static const cn_token_logprobs probs[] = {{{0, -0.25f}, top, 2, 0}, {{3, -1}, top, 1, 0},
                                          {{99, 0}, NULL, 0, 0}};

static void chat_logprobs_have_tokens_and_bytes(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_CHAT, 1, 2);
    cn_api_result_add(r, &(cn_event){SAYS(text, "x"), .logprobs = probs, .n_tokens = 3,
                                     .finish = CN_FINISH_STOP, .usage = &usage, .last = true});
    json_t *b = result_body(r, "1", "m", 0);
    assert_int_equal(json_array_size(at(b, "choices.0.logprobs.content")), 3);
    assert_text(b, "choices.0.logprobs.content.0.token", "a");
    assert_true(json_real_value(at(b, "choices.0.logprobs.content.0.logprob")) == -0.25);
    assert_number(b, "choices.0.logprobs.content.0.bytes.0", 'a');
    assert_text(b, "choices.0.logprobs.content.0.top_logprobs.1.token", "\xEF\xBF\xBD");
    assert_number(b, "choices.0.logprobs.content.0.top_logprobs.1.bytes.0", 0xc3);
    assert_true(json_real_value(at(b, "choices.0.logprobs.content.0.top_logprobs.1.logprob")) ==
                -9999.0);
    assert_text(b, "choices.0.logprobs.content.2.token", "<99>");
    char *text = json_dumps(b, JSON_COMPACT);
    assert_non_null(text);
    free(text);
    json_decref(b);
    cn_api_result_free(r);
}

static void completion_logprobs_are_parallel_arrays(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_COMPLETION, 1, 2);
    cn_api_result_add(r, &(cn_event){SAYS(text, "x"), .logprobs = probs, .n_tokens = 2});
    cn_api_result_add(r, &(cn_event){SAYS(text, ""), .logprobs = probs, .n_tokens = 1,
                                     .finish = CN_FINISH_STOP, .usage = &usage, .last = true});
    json_t *b = result_body(r, "1", "m", 0);
    assert_text(b, "choices.0.logprobs.tokens.1", "\xc3\xb6");
    assert_number(b, "choices.0.logprobs.text_offset.0", 0);
    assert_number(b, "choices.0.logprobs.text_offset.1", 1);
    assert_number(b, "choices.0.logprobs.text_offset.2", 2); /* characters, not bytes */
    assert_true(json_real_value(at(b, "choices.0.logprobs.token_logprobs.2")) == -0.25);
    json_t *first = at(b, "choices.0.logprobs.top_logprobs.0");
    assert_true(json_real_value(json_object_get(first, " b")) == -0.5);
    json_decref(b);
    cn_api_result_free(r);
}

/* Tokens 2 and 7 are U+FFFD as text. */
static void alternatives_of_equal_text_keep_their_places(void **state)
{
    (void)state;
    static const cn_logprob equal[] = {{2, -1}, {0, -2}, {7, -3}};
    static const cn_token_logprobs tokens[] = {{{7, -3}, equal, 3, 0}, {{4, -9}, equal, 3, 0}};
    static const char *const keys[] = {"\xEF\xBF\xBD", "a", "token_id:7", "c"};
    static const double values[] = {-1, -2, -3, -9};
    cn_api_result *r = result(CN_API_COMPLETION, 1, 3);
    cn_api_result_add(r, &(cn_event){SAYS(text, "x"), .logprobs = tokens, .n_tokens = 2,
                                     .finish = CN_FINISH_STOP, .usage = &usage, .last = true});
    json_t *b = result_body(r, "1", "m", 0), *v;
    assert_text(b, "choices.0.logprobs.tokens.0", "\xEF\xBF\xBD");
    for (int i = 0; i < 2; i++) {
        json_t *best = at(b, i ? "choices.0.logprobs.top_logprobs.1"
                              : "choices.0.logprobs.top_logprobs.0");
        const char *key;
        size_t n = 0;
        json_object_foreach(best, key, v)
        {
            assert_string_equal(key, keys[n]);
            assert_true(json_real_value(v) == values[n++]);
        }
        assert_int_equal(n, 3 + i);
    }
    json_decref(b);
    cn_api_result_free(r);
}

/* Tokens: both bytes of a character, a, the first byte without the second, a, and the first byte at
 * the end. */
static const cn_token_logprobs parts[] = {{{2, -1}, NULL, 0, 0}, {{7, -1}, NULL, 0, 0},
                                          {{0, -1}, NULL, 0, 0}, {{2, -1}, NULL, 0, 0},
                                          {{0, -1}, NULL, 0, 0}, {{2, -1}, NULL, 0, 0}};

static void parts_of_a_character_have_its_offset(void **state)
{
    (void)state;
    enum { N = sizeof parts / sizeof *parts };
    static const int want[N] = {0, 0, 1, 2, 3, 4};
    cn_api_result *whole = result(CN_API_COMPLETION, 1, 0);
    cn_api_result *streamed = result(CN_API_COMPLETION, 1, 0);
    json_t *chunk;
    size_t n = 0;
    for (int i = 0; i < N; i++) {
        const bool last = i == N - 1;
        const cn_event ev = {SAYS(text, "x"), .logprobs = parts + i, .n_tokens = 1, .last = last,
                             .finish = last ? CN_FINISH_STOP : CN_FINISH_NONE,
                             .usage = last ? &usage : NULL};
        cn_api_result_add(whole, &ev);
        cn_api_result_add(streamed, &ev);
        while ((chunk = cn_api_result_take_chunk(streamed, "1", "m", 0, false))) {
            const json_t *offsets = at(chunk, "choices.0.logprobs.text_offset");
            for (size_t j = 0; j < json_array_size(offsets); j++)
                assert_int_equal(json_integer_value(json_array_get(offsets, j)), want[n++]);
            json_decref(chunk);
        }
    }
    assert_int_equal(n, N);
    json_t *b = result_body(whole, "1", "m", 0);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(json_integer_value(json_array_get(
                             at(b, "choices.0.logprobs.text_offset"), i)),
                         want[i]);
    json_decref(b);
    cn_api_result_free(whole);
    cn_api_result_free(streamed);
}

/* Checks the offsets of a completion whose first event is `ev`. echo: the prompt as it was sent. */
static void expect_offsets(const cn_event *ev, const char *echo, bool echoes, const int *want,
                           size_t n)
{
    struct cn_api_prompt prompt = {.text = (char *)(uintptr_t)echo,
                                   .text_len = echo ? strlen(echo) : 0};
    const cn_api_request request = {.endpoint = CN_API_COMPLETION,
                                    .echo = echoes,
                                    .prompts = &prompt,
                                    .n_prompts = 1,
                                    .params.sampling = {.n = 1, .skip_special_tokens = true}};
    for (int stream = 0; stream < 2; stream++) {
        cn_api_result *r;
        assert_int_equal(cn_api_result_create(&r, &request, token_bytes, NULL), CN_OK);
        cn_api_result_add(r, ev);
        json_t *b = stream ? cn_api_result_take_chunk(r, "1", "m", 0, false)
                           : result_body(r, "1", "m", 0);
        const json_t *offsets = at(b, "choices.0.logprobs.text_offset");
        assert_int_equal(json_array_size(offsets), n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(json_integer_value(json_array_get(offsets, i)), want[i]);
        json_decref(b);
        cn_api_result_free(r);
    }
}

static void tokens_that_the_text_lacks_have_no_width(void **state)
{
    (void)state;
    /* <s> a, and the first byte of a character; then its second byte, <s> and a. */
    static const uint32_t ids[] = {8, 0, 2};
    static const cn_token_logprobs prompt[] = {{{8, NAN}, NULL, 0, 0}, {{0, -1}, NULL, 0, 0},
                                               {{2, -1}, NULL, 0, 0}};
    static const cn_token_logprobs output[] = {{{7, -1}, NULL, 0, 0}, {{8, -1}, NULL, 0, 0},
                                               {{0, -1}, NULL, 0, 0}};
    const cn_event ev = {SAYS(text, "x"), .logprobs = output, .n_tokens = 3, .prompt = ids,
                         .prompt_logprobs = prompt, .n_prompt = 3, .finish = CN_FINISH_STOP,
                         .usage = &usage, .last = true};
    /* The tokenizer added <s>; the prompt's text ends with one error. */
    expect_offsets(&ev, "a\xef\xbf\xbd", true, (const int[]){0, 0, 1, 2, 3, 3}, 6);
    expect_offsets(&ev, "<s>a\xef\xbf\xbd", true, (const int[]){0, 3, 4, 5, 6, 6}, 6);
    expect_offsets(&ev, NULL, true, (const int[]){0, 3, 4, 5, 6, 6}, 6); /* sent as ids */
    expect_offsets(&ev, NULL, false, (const int[]){0, 1, 1}, 3);
}

/* Writes the lines of a request whose text has NULs and reads its body back. */
static json_t *written(cn_api_result *r)
{
    cn_buf line = {0};
    cn_batch_line_figures figures;
    const cn_batch_notes none = {0};
    json_t *body = result_body(r, "1", "m", 0);
    assert_int_equal(cn_batch_line_begin(&line, (cn_id){1, 4}, "id", 200, &none), CN_OK);
    result_body_text(r, "1", "m", 0, SIZE_MAX, &line);
    assert_int_equal(cn_batch_line_end(&line, &none), CN_OK);
    assert_null(memchr(line.data, '\0', line.len));
    if (cn_batch_line_parse(&figures, line.data, line.len - 1) != CN_OK)
        fail_msg("%s: %s", line.data, cn_last_error());
    assert_int_equal(figures.completion_tokens, usage.completion_tokens);
    cn_buf_free(&line);
    cn_api_result_free(r);
    return body;
}

static void expect_text(json_t *body, const char *path, const char *want, size_t n)
{
    const json_t *v = at(body, path);
    assert_int_equal(json_string_length(v), n);
    assert_memory_equal(json_string_value(v), want, n);
}

static const cn_logprob nul_top[] = {{5, -0.5f}, {6, -1}, {0, -2}, {4, -3}};
static const cn_token_logprobs nul_probs[] = {{{0, -1}, nul_top, 4, 0}, {{5, -1}, nul_top, 4, 0},
                                              {{6, -1}, nul_top, 4, 0}, {{4, -1}, nul_top, 4, 0}};

static void a_nul_is_written_the_same_everywhere(void **state)
{
    (void)state;
    static const char text[] = "a\0a\0bc";
    cn_event ev = {SAYS(text, "a\0a\0bc"), SAYS(reasoning, "\0"), .logprobs = nul_probs,
                   .n_tokens = 4, .finish = CN_FINISH_STOP, .usage = &usage, .last = true};
    cn_api_result *r = result(CN_API_CHAT, 1, 4);
    cn_api_result_add(r, &ev);
    json_t *b = written(r);
    expect_text(b, "choices.0.message.content", text, sizeof text - 1);
    expect_text(b, "choices.0.message.reasoning_content", "", 1);
    expect_text(b, "choices.0.logprobs.content.1.token", "", 1);
    assert_int_equal(json_array_size(at(b, "choices.0.logprobs.content.1.bytes")), 1);
    assert_number(b, "choices.0.logprobs.content.1.bytes.0", 0);
    expect_text(b, "choices.0.logprobs.content.0.top_logprobs.1.token", "a\0b", 3);
    json_decref(b);

    ev.reasoning_len = 0;
    r = result(CN_API_COMPLETION, 1, 4);
    cn_api_result_add(r, &ev);
    b = written(r);
    expect_text(b, "choices.0.text", text, sizeof text - 1);
    for (size_t i = 0; i < 4; i++) { /* each token is at its offset */
        const json_t *token = json_array_get(at(b, "choices.0.logprobs.tokens"), i);
        const json_t *offset = json_array_get(at(b, "choices.0.logprobs.text_offset"), i);
        assert_memory_equal(text + json_integer_value(offset), json_string_value(token),
                            json_string_length(token));
    }
    char *top_text = json_dumps(at(b, "choices.0.logprobs.top_logprobs.0"),
                                JSON_COMPACT | JSON_ENSURE_ASCII);
    assert_string_equal(top_text, "{\"\\uFDD0\":-0.5,\"a\\uFDD0b\":-1.0,\"a\":-2.0,"
                        "\"c\":-3.0}");
    free(top_text);
    json_decref(b);
}

static void content_is_null_when_all_text_is_reasoning(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_CHAT, 1, -1);
    cn_api_result_add(r, &(cn_event){SAYS(reasoning, "hm"), .finish = CN_FINISH_LENGTH,
                                     .last = true});
    json_t *b = result_body(r, "1", "m", 0);
    assert_true(json_is_null(at(b, "choices.0.message.content")));
    assert_true(json_is_null(at(b, "usage.kv.budget")));
    json_decref(b);
    cn_api_result_free(r);

    r = result(CN_API_CHAT, 1, -1);
    cn_api_result_add(r, &(cn_event){.finish = CN_FINISH_STOP, .last = true});
    b = result_body(r, "1", "m", 0);
    assert_text(b, "choices.0.message.content", "");
    json_decref(b);
    cn_api_result_free(r);
}

static void failures_are_kept(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_CHAT, 2, -1);
    cn_api_result_add(r, &(cn_event){.finish = CN_FINISH_ERROR, .error = "no room"});
    cn_api_result_add(r, &(cn_event){.sample = 1, .finish = CN_FINISH_CANCELLED, .last = true});
    assert_string_equal(cn_api_result_error(r), "no room");
    assert_true(cn_api_result_was_cancelled(r));
    cn_api_result_free(r);

    json_t *e = cn_api_error_body(400, "bad \xff", "kv", "", 12);
    assert_text(e, "error.message", "bad \xEF\xBF\xBD");
    assert_text(e, "error.type", "invalid_request_error");
    assert_text(e, "error.param", "kv");
    assert_true(json_is_null(at(e, "error.code")));
    assert_number(e, "error.line", 12);
    json_decref(e);
    e = cn_api_error_body(429, "full", NULL, NULL, 0);
    assert_text(e, "error.type", "rate_limit_error");
    json_decref(e);
    e = cn_api_error_body(503, "later", NULL, NULL, 0);
    assert_text(e, "error.type", "internal_error");
    json_decref(e);
}

/* ---- long results ---- */

enum { N_LONG = 5000, N_TOP = 20 };

/* A result of N_LONG tokens with 20 alternatives each. */
static cn_api_result *long_result(cn_api_endpoint endpoint, bool ends)
{
    static cn_logprob alternatives[N_TOP];
    for (uint32_t i = 0; i < N_TOP; i++) alternatives[i] = (cn_logprob){100 + i, -(float)i / 3};
    const cn_token_logprobs p = {{1, -0.125f}, alternatives, N_TOP, 0};
    cn_api_result *r = result(endpoint, 1, N_TOP);
    for (int i = 0; i < N_LONG; i++) {
        const bool last = ends && i == N_LONG - 1;
        cn_api_result_add(r, &(cn_event){SAYS(text, " b"), .logprobs = &p, .n_tokens = 1,
                                         .finish = last ? CN_FINISH_LENGTH : CN_FINISH_NONE,
                                         .usage = last ? &usage : NULL, .last = last});
    }
    return r;
}

static size_t heap_bytes(void)
{
    const struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void logprobs_are_kept_as_numbers(void **state)
{
    (void)state;
    for (int e = 0; e < CN_API_N_ENDPOINTS; e++) {
        const size_t before = heap_bytes();
        cn_api_result *r = long_result((cn_api_endpoint)e, true);
        assert_true((heap_bytes() - before) / N_LONG <= 400);
        /* Its size as JSON is known without making it. */
        cn_buf text = {0};
        result_body_text(r, "1", "m", 0, SIZE_MAX, &text);
        assert_true(cn_api_result_bytes(r) > text.len / 2 && cn_api_result_bytes(r) < 3 * text.len);
        cn_buf_free(&text);
        cn_api_result_free(r);
    }
}

/* Writes bodies in pieces; each piece is short and together they are the body. */
static void a_long_body_is_written_in_pieces(void **state)
{
    (void)state;
    enum { PIECE = 16 << 10, SLICE_MOST = 128 << 10 };
    for (int e = 0; e <= CN_API_COMPLETION; e++) {
        cn_api_result *r = long_result((cn_api_endpoint)e, true);
        cn_buf whole = {0}, joined = {0};
        result_body_text(r, "1", "m", 0, SIZE_MAX, &whole);
        cn_api_writer w = {.id = "1", .model = "m", .digits = 17};
        bool done = false;
        for (size_t n = 0; !done; n = joined.len) {
            assert_int_equal(cn_api_result_write(r, &w, &joined, PIECE, &done), CN_OK);
            assert_true(joined.len - n < PIECE + SLICE_MOST);
        }
        assert_string_equal(whole.data, joined.data);
        json_t *body = result_body(r, "1", "m", 0);
        json_t *logprobs = at(body, "choices.0.logprobs");
        const char *member = e == CN_API_CHAT ? "content" : "tokens";
        assert_int_equal(json_array_size(at(logprobs, member)), N_LONG);
        assert_true(json_is_null(at(body, "choices.0.stop_reason")));
        if (e == CN_API_COMPLETION)
            assert_int_equal(json_integer_value(json_array_get(at(logprobs, "text_offset"),
                                                               N_LONG - 1)),
                             2 * (N_LONG - 1));
        json_decref(body);
        cn_buf_free(&whole);
        cn_buf_free(&joined);
        cn_api_result_free(r);
    }
}

/* A client that reads a stream slowly gets many tokens at once, but not in one chunk. */
static void a_chunk_has_few_logprobs(void **state)
{
    (void)state;
    cn_api_result *r = long_result(CN_API_COMPLETION, true);
    json_t *chunk;
    size_t n = 0, n_text = 0;
    bool ended = false;
    while ((chunk = cn_api_result_take_chunk(r, "1", "m", 0, false))) {
        assert_false(ended);
        json_t *tokens = at(chunk, "choices.0.logprobs.tokens");
        assert_int_equal(json_integer_value(json_array_get(
                             at(chunk, "choices.0.logprobs.text_offset"), 0)),
                         2 * n);
        assert_true(json_array_size(tokens) <= 256);
        n += json_array_size(tokens);
        n_text += json_string_length(at(chunk, "choices.0.text"));
        ended = !json_is_null(at(chunk, "choices.0.finish_reason"));
        json_decref(chunk);
    }
    assert_true(ended);
    assert_int_equal(n, N_LONG);
    assert_int_equal(n_text, 2 * N_LONG);
    cn_api_result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_body_has_openai_fields),
        cmocka_unit_test(samples_become_choices_and_usage_adds_up),
        cmocka_unit_test(chat_logprobs_have_tokens_and_bytes),
        cmocka_unit_test(completion_logprobs_are_parallel_arrays),
        cmocka_unit_test(alternatives_of_equal_text_keep_their_places),
        cmocka_unit_test(parts_of_a_character_have_its_offset),
        cmocka_unit_test(tokens_that_the_text_lacks_have_no_width),
        cmocka_unit_test(a_nul_is_written_the_same_everywhere),
        cmocka_unit_test(content_is_null_when_all_text_is_reasoning),
        cmocka_unit_test(failures_are_kept),
        cmocka_unit_test(logprobs_are_kept_as_numbers),
        cmocka_unit_test(a_long_body_is_written_in_pieces),
        cmocka_unit_test(a_chunk_has_few_logprobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
