/* test_api_response.c - bodies have the fields, in the shapes, that OpenAI clients parse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/api/api_response.h"

static const char *token_bytes(void *user, uint32_t token, size_t *n)
{
    (void)user;
    static const char *const bytes[] = {"a", " b", "\xc3", "\xc3\xb6", "c"};
    if (token >= sizeof bytes / sizeof *bytes) return NULL;
    *n = strlen(bytes[token]);
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
    cn_api_result_add(r, &(cn_event){.reasoning = "why ", .text = "", .n_tokens = 1});
    assert_int_equal(cn_api_result_n_tokens(r), 1);
    cn_api_result_add(r, &(cn_event){.reasoning = "not", .text = "4", .n_tokens = 1});
    cn_api_result_add(r, &(cn_event){.text = "2", .reasoning = "", .n_tokens = 1,
                                     .finish = CN_FINISH_STOP, .stop_reason = "END",
                                     .answer_at = 1, .usage = &usage, .last = true});
    assert_true(cn_api_result_is_done(r));
    assert_string_equal(cn_api_result_text(r, 0), "42");
    assert_string_equal(cn_api_result_answer(r, 0), "2");
    json_t *b = cn_api_result_body(r, "77", "m\xff", 1700000000);
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
    cn_api_result_add(r, &(cn_event){.sample = 1, .text = "one", .finish = CN_FINISH_STOP,
                                     .stop_token = 17, .usage = &usage});
    assert_false(cn_api_result_is_done(r));
    cn_api_result_add(r, &(cn_event){.sample = 0, .text = "zero", .finish = CN_FINISH_REPETITION,
                                     .usage = &usage, .last = true});
    json_t *b = cn_api_result_body(r, "8", "m", 0);
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
static const cn_token_logprobs probs[] = {{{0, -0.25f}, top, 2}, {{3, -1}, top, 1},
                                          {{99, 0}, NULL, 0}};

static void chat_logprobs_have_tokens_and_bytes(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_CHAT, 1, 2);
    cn_api_result_add(r, &(cn_event){.text = "x", .logprobs = probs, .n_tokens = 3,
                                     .finish = CN_FINISH_STOP, .usage = &usage, .last = true});
    json_t *b = cn_api_result_body(r, "1", "m", 0);
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
    cn_api_result_add(r, &(cn_event){.text = "x", .logprobs = probs, .n_tokens = 2});
    cn_api_result_add(r, &(cn_event){.text = "", .logprobs = probs, .n_tokens = 1,
                                     .finish = CN_FINISH_STOP, .usage = &usage, .last = true});
    json_t *b = cn_api_result_body(r, "1", "m", 0);
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

static void content_is_null_when_all_was_reasoning(void **state)
{
    (void)state;
    cn_api_result *r = result(CN_API_CHAT, 1, -1);
    cn_api_result_add(r, &(cn_event){.reasoning = "hm", .finish = CN_FINISH_LENGTH, .last = true});
    json_t *b = cn_api_result_body(r, "1", "m", 0);
    assert_true(json_is_null(at(b, "choices.0.message.content")));
    assert_true(json_is_null(at(b, "usage.kv.budget")));
    json_decref(b);
    cn_api_result_free(r);

    r = result(CN_API_CHAT, 1, -1);
    cn_api_result_add(r, &(cn_event){.finish = CN_FINISH_STOP, .last = true});
    b = cn_api_result_body(r, "1", "m", 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_body_has_openai_fields),
        cmocka_unit_test(samples_become_choices_and_usage_adds_up),
        cmocka_unit_test(chat_logprobs_have_tokens_and_bytes),
        cmocka_unit_test(completion_logprobs_are_parallel_arrays),
        cmocka_unit_test(content_is_null_when_all_was_reasoning),
        cmocka_unit_test(failures_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
