/* test_api_request.c - bodies of the OpenAI endpoints: which fields are read, which are ignored
 * because they have no effect, and that all others are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/api/api_request.h"
#include "engine/base/json.h"
#include "tests/lib/chat_params.h"

static const cn_api_defaults defaults = {
    .sampling = {.n = 1, .temperature = 0.6f, .top_p = 1, .repetition_penalty = 1, .logprobs = -1,
                 .thinking_token_budget = -1, .skip_special_tokens = true},
    .kv = {.policy = CN_KV_FULL, .budget_tokens = 2048, .window_tokens = 16, .sink_tokens = 4},
    .tool_parser = CN_OPT_TOOLS_HERMES,
};

static cn_status parse(cn_api_request *r, cn_api_endpoint endpoint, const char *text)
{
    json_t *body;
    const cn_json_limits limits = {1 << 20, 1 << 20, CN_API_MAX_DEPTH};
    assert_int_equal(cn_json_parse_request(&body, text, strlen(text), "body", &limits), CN_OK);
    cn_status status = cn_api_request_parse(r, endpoint, body, &defaults);
    json_decref(body); /* the request must hold its own reference */
    return status;
}

#define CHAT_START "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "

static void accept_chat(cn_api_request *r, const char *rest)
{
    char text[2048];
    snprintf(text, sizeof text, CHAT_START "%s}", rest);
    if (parse(r, CN_API_CHAT, text) != CN_OK) fail_msg("%s: %s", rest, cn_last_error());
}

static void chat_fields_are_read(void **state)
{
    (void)state;
    cn_api_request r;
    accept_chat(&r, "\"allowed_token_ids\": [0, 4000000000], \"bad_words\": [\"a\", \"b c\"], "
                    "\"temperature\": 0, \"top_p\": 0.5, \"top_k\": 20, \"n\": 3, \"seed\": -7, "
                    "\"max_tokens\": 12, \"stop\": \"END\", \"stop_token_ids\": [5, 6], "
                    "\"logprobs\": true, \"top_logprobs\": 4, \"logit_bias\": {\"17\": -100}, "
                    "\"priority\": -3, \"min_tokens\": 2, \"ignore_eos\": true, "
                    "\"chat_template_kwargs\": {\"enable_thinking\": false}, "
                    "\"kv\": {\"policy\": \"zip\", \"budget\": 512, \"window\": 48}");
    const cn_request_params *p = &r.params;
    const cn_sampling *s = &p->sampling;
    assert_int_equal(chat_size(p), 1);
    assert_string_equal(chat_text(p, 0, "role"), "user");
    assert_string_equal(chat_text(p, 0, "content"), "hi");
    assert_true(json_is_false(json_object_get(p->chat, "enable_thinking")));
    assert_null(p->text);
    assert_true(s->temperature == 0 && s->top_p == 0.5f);
    assert_int_equal(s->top_k, 20);
    assert_int_equal(s->n, 3);
    assert_true(s->has_seed && s->seed == (uint64_t)-7);
    assert_int_equal(s->max_tokens, 12);
    assert_int_equal(s->n_stop, 1);
    assert_string_equal(s->stop[0], "END");
    assert_int_equal(s->n_stop_token_ids, 2);
    assert_int_equal(s->stop_token_ids[1], 6);
    assert_int_equal(s->logprobs, 4);
    assert_int_equal(s->n_allowed_token_ids, 2);
    assert_int_equal(s->allowed_token_ids[1], 4000000000u);
    assert_int_equal(s->n_bad_words, 2);
    assert_string_equal(s->bad_words[1], "b c");
    assert_int_equal(s->n_logit_bias, 1);
    assert_int_equal(s->logit_bias[0].token, 17);
    assert_true(s->logit_bias[0].bias == -100);
    assert_int_equal(p->priority, -3);
    assert_int_equal(s->min_tokens, 2);
    assert_true(s->ignore_eos);
    assert_int_equal(p->kv.policy, CN_KV_ZIP);
    assert_int_equal(p->kv.budget_tokens, 512);
    assert_int_equal(p->kv.window_tokens, 48);
    assert_int_equal(p->kv.sink_tokens, 4);
    cn_api_request_free(&r);
    cn_api_request_free(&r);
}

static void an_absent_field_has_the_engines_default(void **state)
{
    (void)state;
    cn_api_request r;
    accept_chat(&r, "\"temperature\": null, \"stop\": null, \"some_new_field\": null");
    assert_true(r.params.sampling.temperature == 0.6f);
    assert_int_equal(r.params.sampling.max_tokens, 0);
    assert_int_equal(r.params.sampling.logprobs, -1);
    assert_int_equal(r.params.sampling.n_stop, 0);
    assert_int_equal(r.params.enable_thinking, -1);
    assert_int_equal(r.params.kv.policy, CN_KV_FULL);
    assert_false(r.stream);
    cn_api_request_free(&r);
}

static void max_completion_tokens_comes_before_max_tokens(void **state)
{
    (void)state;
    cn_api_request r;
    accept_chat(&r, "\"max_completion_tokens\": 9, \"max_tokens\": 5");
    assert_int_equal(r.params.sampling.max_tokens, 9);
    cn_api_request_free(&r);
    accept_chat(&r, "\"max_completion_tokens\": null, \"max_tokens\": 5");
    assert_int_equal(r.params.sampling.max_tokens, 5);
    cn_api_request_free(&r);
}

static void harmless_and_neutral_fields_pass(void **state)
{
    (void)state;
    static const char *const rests[] = {
        "\"model\": \"m\", \"user\": \"u\", \"store\": true, \"stream_reasoning\": true",
        "\"response_format\": {\"type\": \"text\"}, \"tools\": [], \"tool_choice\": \"none\"",
        "\"service_tier\": \"flex\", \"add_generation_prompt\": true, \"cache_salt\": \"s\"",
        "\"length_penalty\": 1.0, \"separate_reasoning\": true, \"metadata\": {\"a\": \"b\"}",
        "\"stream\": true, \"stream_options\": {\"include_usage\": true}, \"no_stop_trim\": false",
        "\"logprobs\": false, \"top_logprobs\": 0, \"best_of\": 1, \"return_hidden_states\": false",
    };
    cn_api_request r;
    for (size_t i = 0; i < sizeof rests / sizeof *rests; i++) {
        accept_chat(&r, rests[i]);
        cn_api_request_free(&r);
    }
}

static void unknown_fields_bring_warnings(void **state)
{
    (void)state;
    cn_api_unknown unknown;
    cn_api_unknown_init(&unknown, false);
    cn_api_defaults accepting = defaults;
    accepting.unknown = &unknown;
    char text[4096] = CHAT_START "\"tempreature\": 0.5, \"store\": true, \"zap\": null, "
                                 "\"mystery\": {\"a\": [1]}}";
    cn_api_request r;
    json_t *body = json_loads(text, 0, NULL);
    assert_int_equal(cn_api_request_parse(&r, CN_API_CHAT, body, &accepting), CN_OK);
    assert_int_equal(json_array_size(r.warnings), 2);
    assert_string_equal(json_string_value(json_array_get(r.warnings, 0)),
                        "tempreature: unknown field, ignored");
    assert_int_equal(unknown.n_logged, 2);
    cn_api_request_free(&r);
    json_decref(body);

    /* Names are logged once, and a request has a limited number of warnings. */
    snprintf(text, sizeof text, CHAT_START "\"tempreature\": 1");
    for (int i = 0; i < 2 * CN_API_LOGGED_NAMES; i++)
        snprintf(text + strlen(text), 32, ", \"unknown%d\": 1", i);
    strcat(text, "}");
    body = json_loads(text, 0, NULL);
    assert_int_equal(cn_api_request_parse(&r, CN_API_CHAT, body, &accepting), CN_OK);
    assert_int_equal(json_array_size(r.warnings), CN_API_MAX_WARNINGS);
    assert_int_equal(unknown.n_logged, CN_API_LOGGED_NAMES);
    cn_api_request_free(&r);
    json_decref(body);
    cn_api_unknown_destroy(&unknown);
}

/* Not in names, which are compared. */
static void a_nul_is_kept_in_the_texts_of_a_prompt(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(parse(&r, CN_API_COMPLETION, "{\"prompt\": [\"a\", \"b\\u0000c\"]}"), CN_OK);
    cn_request_params p = r.params;
    cn_api_request_set_prompt(&r, 1, &p);
    assert_int_equal(p.text_len, 3);
    assert_memory_equal(p.text, "b\0c", 3);
    cn_api_request_free(&r);
    assert_int_equal(parse(&r, CN_API_CHAT,
                           "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
                           "\"text\", \"text\": \"\\u0000\"}]}, {\"role\": \"assistant\", "
                           "\"content\": \"\\u0000\", \"reasoning_content\": \"\\u0000\"}]}"),
                     CN_OK);
    cn_api_request_free(&r);
    static const char *const refused[] = {
        "{\"messages\": [{\"role\": \"user\\u0000\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"stop\": \"\\u0000\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"bad_words\": [\"\\u0000\"]}",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(parse(&r, CN_API_CHAT, refused[i]), CN_ERR_ARG);
        assert_non_null(strstr(cn_last_error(), "a text with a NUL"));
        cn_api_request_free(&r);
    }
}

static void a_prompt_may_be_truncated_to_the_room(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(parse(&r, CN_API_COMPLETION,
                           "{\"prompt\": \"a\", \"truncate_prompt_tokens\": -1}"), CN_OK);
    assert_int_equal(r.params.truncate_prompt, CN_TRUNCATE_TO_ROOM);
    cn_api_request_free(&r);
}

/* What an answer without content, or without anything, sends back. */
static void an_assistant_may_say_nothing(void **state)
{
    (void)state;
    static const char *const messages[] = {"", "\"content\": null, ",
                                           "\"content\": null, \"tool_calls\": [], "
                                           "\"reasoning\": null, \"refusal\": null, "};
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"messages\": [{%s\"role\": \"assistant\"}]}", messages[i]);
        cn_api_request r;
        assert_int_equal(parse(&r, CN_API_CHAT, text), CN_OK);
        assert_string_equal(chat_text(&r.params, 0, "content"), "");
        assert_null(r.warnings);
        cn_api_request_free(&r);
    }
}

static void the_best_of_n_are_all(void **state)
{
    (void)state;
    cn_api_request r;
    accept_chat(&r, "\"best_of\": 3, \"n\": 3");
    assert_int_equal(r.params.sampling.n, 3);
    cn_api_request_free(&r);
    assert_int_equal(parse(&r, CN_API_COMPLETION,
                           "{\"n\": null, \"best_of\": 1.0, \"prompt\": \"a\"}"), CN_OK);
    cn_api_request_free(&r);
}

static void completions_have_many_prompts_and_scores(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(parse(&r, CN_API_COMPLETION,
                           "{\"prompt\": [\"a\", [7, 8], \"b\"], \"max_tokens\": 0.0, "
                           "\"echo\": true, \"logprobs\": 3, "
                           "\"truncate_prompt_tokens\": 5}"), CN_OK);
    assert_int_equal(r.n_prompts, 3);
    assert_string_equal(r.params.text, "a");
    assert_true(r.params.no_output && r.echo && r.params.score_prompt);
    assert_int_equal(r.params.n_prompt_top, 3);
    assert_int_equal(r.params.truncate_prompt, 5);
    cn_request_params p = r.params;
    cn_api_request_set_prompt(&r, 1, &p);
    assert_null(p.text);
    assert_int_equal(p.n_tokens, 2);
    assert_int_equal(p.tokens[1], 8);
    cn_api_request_set_prompt(&r, 2, &p);
    assert_string_equal(p.text, "b");
    assert_null(p.tokens);
    cn_api_request_free(&r);
    assert_int_equal(parse(&r, CN_API_COMPLETION, "{\"prompt\": [[7], \"b\"]}"), CN_OK);
    cn_api_request_set_prompt(&r, 1, &p);
    assert_string_equal(p.text, "b");
    cn_api_request_free(&r);
    /* Without logprobs an echo needs no scores. */
    assert_int_equal(parse(&r, CN_API_COMPLETION, "{\"prompt\": \"a\", \"echo\": true}"),
                     CN_OK);
    assert_false(r.params.score_prompt);
    cn_api_request_free(&r);
}

/* Clients send back messages with members of their own. One warning is enough for all of them. */
static void unknown_members_of_messages_bring_a_warning(void **state)
{
    (void)state;
    static const char *const messages[] = {
        "{\"role\": \"user\", \"content\": \"x\", \"extra\": {}, \"refusal\": null},"
        "{\"role\": \"assistant\", \"content\": \"y\", \"extra\": {\"a\": 1}}",
        "{\"role\": \"user\", \"content\": \"x\", \"tool_call_id\": \"c\"}",
        "{\"role\": \"assistant\", \"content\": \"x\", \"function_call\": {\"name\": \"f\"}}",
        "{\"role\": \"assistant\", \"content\": \"x\", \"audio\": {\"id\": \"a\"}}",
    };
    for (int refuse = 0; refuse < 2; refuse++)
        for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
            cn_api_unknown unknown;
            cn_api_unknown_init(&unknown, refuse);
            cn_api_defaults accepting = defaults;
            accepting.unknown = &unknown;
            cn_api_request r;
            char text[512];
            snprintf(text, sizeof text, "{\"messages\": [%s]}", messages[i]);
            json_t *body = json_loads(text, 0, NULL);
            const bool ok = i == 0 && !refuse;
            assert_int_equal(cn_api_request_parse(&r, CN_API_CHAT, body, &accepting),
                             ok ? CN_OK : CN_ERR_ARG);
            if (ok) {
                assert_int_equal(json_array_size(r.warnings), 1);
                assert_string_equal(json_string_value(json_array_get(r.warnings, 0)),
                                    "messages[].extra: unknown field, ignored");
                assert_null(chat_member(&r.params, 1, "extra"));
                cn_api_request_free(&r);
            }
            json_decref(body);
            cn_api_unknown_destroy(&unknown);
        }
}

/* A policy, a selector and a home each read some members. */
static void members_of_kv_without_effect_bring_warnings(void **state)
{
    (void)state;
    static const struct {
        const char *kv, *warning; /* NULL: none */
    } cases[] = {
        {"{\"budget\": 512}", "kv.budget: no effect with policy full, select none and home device, "
                              "ignored"},
        {"{\"policy\": \"full\", \"select\": \"none\", \"budget\": null}", NULL},
        {"{\"policy\": \"zip\", \"budget\": 512, \"lambda\": 0.5}", NULL},
        {"{\"policy\": \"window\", \"lambda\": 0.5}",
         "kv.lambda: no effect with policy window, select none and home device, ignored"},
        {"{\"select\": \"ds\", \"select_tokens\": 256}", NULL},
        {"{\"select\": \"tls\", \"home\": \"host\", \"select_cap\": 1}", NULL},
        {"{\"select\": \"tls\", \"select_cap\": 1}",
         "kv.select_cap: no effect with policy full, select tls and home device, ignored"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_unknown unknown;
        cn_api_unknown_init(&unknown, false);
        cn_api_defaults accepting = defaults;
        accepting.unknown = &unknown;
        char text[512];
        cn_api_request r;
        snprintf(text, sizeof text, CHAT_START "\"kv\": %s}", cases[i].kv);
        json_t *body = json_loads(text, 0, NULL);
        if (cn_api_request_parse(&r, CN_API_CHAT, body, &accepting) != CN_OK)
            fail_msg("%s: %s", cases[i].kv, cn_last_error());
        assert_int_equal(json_array_size(r.warnings), cases[i].warning != NULL);
        if (cases[i].warning)
            assert_string_equal(json_string_value(json_array_get(r.warnings, 0)),
                                cases[i].warning);
        cn_api_request_free(&r);
        json_decref(body);
        cn_api_unknown_destroy(&unknown);
    }
}

static void members_of_kv_are_never_ignored(void **state)
{
    (void)state;
    cn_api_unknown unknown;
    cn_api_unknown_init(&unknown, false);
    cn_api_defaults accepting = defaults;
    accepting.unknown = &unknown;
    json_t *body = json_loads(CHAT_START "\"kv\": {\"budgit\": 1}}", 0, NULL);
    cn_api_request r;
    assert_int_equal(cn_api_request_parse(&r, CN_API_CHAT, body, &accepting), CN_ERR_ARG);
    json_decref(body);
    cn_api_unknown_destroy(&unknown);
}

static void reasoning_effort_is_the_templates_switch(void **state)
{
    (void)state;
    static const struct {
        const char *rest;
        int thinking;
    } cases[] = {
        {"\"reasoning_effort\": \"none\"", 0},
        {"\"reasoning_effort\": \"low\"", 1},
        {"\"reasoning_effort\": null", -1},
        {"\"reasoning_effort\": \"none\", \"chat_template_kwargs\": {\"enable_thinking\": true}",
         1},
    };
    cn_api_request r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        accept_chat(&r, cases[i].rest);
        const json_t *thinking = json_object_get(r.params.chat, "enable_thinking");
        assert_int_equal(thinking ? json_is_true(thinking) : -1, cases[i].thinking);
        cn_api_request_free(&r);
    }
}

static void message_text_may_come_in_parts(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(
        parse(&r, CN_API_CHAT,
              "{\"messages\": [{\"role\": \"system\", \"content\": \"s\", \"name\": \"x\"},"
              "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"why\","
              " \"tool_calls\": null},"
              "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"one\"},"
              "{\"type\": \"text\", \"text\": \"tw\\u00f6\"}]}]}"),
        CN_OK);
    assert_int_equal(chat_size(&r.params), 3);
    assert_string_equal(chat_text(&r.params, 0, "name"), "x");
    const json_t *parts = chat_member(&r.params, 2, "content");
    assert_int_equal(json_array_size(parts), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(parts, 1), "text")),
                        "tw\xc3\xb6");
    cn_api_request_free(&r);
}

static void reasoning_of_answers_is_read(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(
        parse(&r, CN_API_CHAT,
              "{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"reasoning\": null},"
              "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"why\"},"
              "{\"role\": \"assistant\", \"content\": null, \"reasoning\": \"how\"},"
              "{\"role\": \"assistant\", \"content\": \"c\", \"reasoning_content\": null}]}"),
        CN_OK);
    assert_int_equal(chat_size(&r.params), 4);
    assert_null(chat_member(&r.params, 0, "reasoning_content"));
    static const char *const names[] = {"reasoning", "reasoning_content"};
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(chat_text(&r.params, 1, names[i]), "why");
        assert_string_equal(chat_text(&r.params, 2, names[i]), "how");
    }
    assert_true(json_is_null(chat_member(&r.params, 2, "content")));
    assert_null(chat_member(&r.params, 3, "reasoning_content"));
    cn_api_request_free(&r);
}

static void tool_calls_and_results_are_read(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(
        parse(&r, CN_API_CHAT,
              "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"},"
              "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c1\","
              " \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\":"
              " \"{\\\"a\\\": [1]}\"}}, {\"id\": null, "
              "\"function\": {\"name\": \"g\"}}]},"
              "{\"role\": \"tool\", \"name\": null, \"content\": \"42\","
              " \"tool_call_id\": \"c1\"}]}"),
        CN_OK);
    const cn_request_params *p = &r.params;
    assert_true(json_is_null(chat_member(p, 1, "content")));
    json_t *want = json_pack("[{s:s, s:s, s:{s:s, s:{s:[i]}}}, {s:s, s:{s:s, s:{}}}]", "type",
                             "function", "id", "c1", "function", "name", "f", "arguments", "a", 1,
                             "type", "function", "function", "name", "g", "arguments");
    assert_non_null(want);
    assert_true(json_equal(chat_member(p, 1, "tool_calls"), want));
    json_decref(want);
    assert_string_equal(chat_text(p, 2, "role"), "tool");
    assert_string_equal(chat_text(p, 2, "tool_call_id"), "c1");
    cn_api_request_free(&r);
}

/* A client sends back what a model wrote, also if it was cut off or has another type. */
static void arguments_that_are_no_object_are_passed_on(void **state)
{
    (void)state;
    static const char *const sent[] = {"{\\\"a\\\": \\\"x", "[1, 2]", "{}"};
    json_t *const values[] = {json_string("{\"a\": \"x"), json_pack("[i, i]", 1, 2), json_object()};
    for (size_t i = 0; i < 3; i++) {
        char text[512];
        cn_api_request r;
        snprintf(text, sizeof text,
                 "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
                 "{\"name\": \"f\", \"arguments\": \"%s\"}}]}]}",
                 sent[i]);
        assert_int_equal(parse(&r, CN_API_CHAT, text), CN_OK);
        const json_t *call = json_array_get(chat_member(&r.params, 0, "tool_calls"), 0);
        const json_t *function = json_object_get(call, "function");
        assert_true(json_equal(json_object_get(function, "arguments"), values[i]));
        json_decref(values[i]);
        cn_api_request_free(&r);
    }
}

static void variables_of_the_template_are_passed_on(void **state)
{
    (void)state;
    cn_api_request r;
    accept_chat(&r, "\"chat_template_kwargs\": {\"mode\": [1], \"unset\": null}, "
                    "\"documents\": [{\"text\": \"t\"}], \"add_generation_prompt\": false, "
                    "\"continue_final_message\": true");
    json_t *want = json_pack("{s:[i], s:[{s:s}], s:b, s:b}", "mode", 1, "documents", "text", "t",
                             "add_generation_prompt", 0, "continue_final_message", 1);
    json_object_set(want, "messages", json_object_get(r.params.chat, "messages"));
    assert_true(json_equal(want, r.params.chat));
    json_decref(want);
    cn_api_request_free(&r);
}

/* OpenAI's clients send "developer" for reasoning models; templates call that role "system". */
static void the_developer_role_becomes_system(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(parse(&r, CN_API_CHAT,
                           "{\"messages\": [{\"role\": \"developer\", \"content\": \"s\"},"
                           "{\"role\": \"user\", \"content\": \"u\"}]}"),
                     CN_OK);
    assert_string_equal(chat_text(&r.params, 0, "role"), "system");
    assert_string_equal(chat_text(&r.params, 1, "role"), "user");
    cn_api_request_free(&r);
}

static void completion_prompt_is_text_or_tokens(void **state)
{
    (void)state;
    cn_api_request r;
    assert_int_equal(parse(&r, CN_API_COMPLETION, "{\"prompt\": \"once\", \"logprobs\": 2}"),
                     CN_OK);
    assert_string_equal(r.params.text, "once");
    assert_int_equal(r.params.sampling.logprobs, 2);
    assert_int_equal(r.params.sampling.max_tokens, CN_API_DEFAULT_COMPLETION_TOKENS);
    cn_api_request_free(&r);

    static const char *const tokens[] = {"{\"prompt\": [3, 4, 5]}", "{\"prompt\": [[3, 4, 5]]}"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(parse(&r, CN_API_COMPLETION, tokens[i]), CN_OK);
        assert_null(r.params.text);
        assert_int_equal(r.params.n_tokens, 3);
        assert_int_equal(r.params.tokens[2], 5);
        cn_api_request_free(&r);
    }
}

#define TOOL                                                                                       \
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}"
#define NAMED(name) "{\"type\": \"function\", \"function\": {\"name\": \"" name "\"}}"

/* Tools reach the template, and the answer is searched for calls, unless they are not wanted. */
static void tools_are_passed_on(void **state)
{
    (void)state;
    static const struct {
        const char *rest;
        bool passed, one;
    } cases[] = {
        {"\"tools\": [" TOOL "]", true, false},
        {"\"tool_choice\": \"auto\", \"tools\": [" TOOL "], \"parallel_tool_calls\": false", true,
         true},
        {"\"tool_choice\": \"none\", \"tools\": [" TOOL "]", false, false},
        {"\"tools\": [], \"tool_choice\": \"auto\", \"parallel_tool_calls\": true", false,
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_request r;
        accept_chat(&r, cases[i].rest);
        const json_t *tools = json_object_get(r.params.chat, "tools");
        assert_int_equal(json_array_size(tools), cases[i].passed);
        assert_int_equal(r.params.finds_calls ? r.tool_parser : CN_OPT_TOOLS_NONE,
                         cases[i].passed ? CN_OPT_TOOLS_HERMES : CN_OPT_TOOLS_NONE);
        assert_int_equal(r.one_tool_call, cases[i].one);
        cn_api_request_free(&r);
    }
}

/* "required" and a named function make the answer calls. */
static void calls_can_be_required(void **state)
{
    (void)state;
    static const struct {
        const char *rest, *text;
        cn_api_tool_choice choice;
    } cases[] = {
        {"\"tool_choice\": \"auto\"", NULL, CN_API_TOOL_AUTO},
        {"\"tool_choice\": \"required\"", "\"one\":false,\"functions\":[{\"name\":\"f\"",
         CN_API_TOOL_REQUIRED},
        {"\"tool_choice\": \"required\", \"parallel_tool_calls\": false", "\"one\":true",
         CN_API_TOOL_REQUIRED},
        {"\"tool_choice\": " NAMED("f"), "\"one\":true,\"functions\":[{\"name\":\"f\"",
         CN_API_TOOL_NAMED},
        {"\"tool_choice\": " NAMED("g"), "\"functions\":[{\"name\":\"g\"}]", CN_API_TOOL_NAMED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_api_request r;
        char rest[512];
        snprintf(rest, sizeof rest, "\"tools\": [" TOOL ", %s], %s",
                 "{\"type\": \"function\", \"function\": {\"name\": \"g\"}}", cases[i].rest);
        accept_chat(&r, rest);
        assert_int_equal(r.tool_choice, cases[i].choice);
        assert_int_equal(r.params.structure.kind,
                         cases[i].text ? CN_STRUCTURE_CALLS : CN_STRUCTURE_NONE);
        if (cases[i].text) assert_non_null(strstr(r.params.structure.text, cases[i].text));
        assert_int_equal(json_array_size(json_object_get(r.params.chat, "tools")), 2);
        cn_api_request_free(&r);
    }
}

static void tools_need_a_parser(void **state)
{
    (void)state;
    cn_api_defaults without = defaults;
    without.tool_parser = CN_OPT_TOOLS_NONE;
    cn_api_request r;
    json_t *body = json_loads(CHAT_START "\"tools\": [" TOOL "]}", 0, NULL);
    assert_int_equal(cn_api_request_parse(&r, CN_API_CHAT, body, &without), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "tools: needs --tool-call-parser"));
    json_object_set_new(body, "tool_choice", json_string("none"));
    assert_int_equal(cn_api_request_parse(&r, CN_API_CHAT, body, &without), CN_OK);
    cn_api_request_free(&r);
    json_decref(body);
}

/* A body after CHAT_START (or a whole completion body), the faulty field, a part of the error. */
static const struct refusal {
    cn_api_endpoint endpoint;
    const char *text, *field, *says;
} refusals[] = {
    {CN_API_CHAT, "\"temperature\": \"hot\"", "temperature", "\"hot\""},
    {CN_API_CHAT, "\"temperature\": -1", "temperature", "-1"},
    {CN_API_CHAT, "\"max_tokens\": 1.5", "max_tokens", "1.5"},
    {CN_API_CHAT, "\"max_completion_tokens\": -1", "max_completion_tokens", "-1"},
    {CN_API_CHAT, "\"n\": true", "n", "true"},
    {CN_API_CHAT, "\"seed\": 1.25", "seed", "1.25"},
    {CN_API_CHAT, "\"stop\": 5", "stop", "5"},
    {CN_API_CHAT, "\"stop\": [\"a\", \"\"]", "stop", "non-empty"},
    {CN_API_CHAT, "\"stop\": [\"a\", null]", "stop", "null"},
    {CN_API_CHAT, "\"stop_token_ids\": [-1]", "stop_token_ids", "-1"},
    {CN_API_CHAT, "\"stop_token_ids\": 3", "stop_token_ids", "array"},
    {CN_API_CHAT, "\"logit_bias\": {\"x\": 1}", "logit_bias", "\"x\""},
    {CN_API_CHAT, "\"logit_bias\": {\"4294967297\": 1}", "logit_bias", "4294967297"},
    {CN_API_CHAT, "\"logit_bias\": {\"1\": 101}", "logit_bias", "101"},
    {CN_API_CHAT, "\"logprobs\": 3", "logprobs", "3"},
    {CN_API_CHAT, "\"top_logprobs\": 3", "top_logprobs", "logprobs"},
    {CN_API_CHAT, "\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs", "21"},
    {CN_API_CHAT, "\"priority\": 3000000000", "priority", "3000000000"},
    {CN_API_CHAT, "\"stream\": \"yes\"", "stream", "yes"},
    {CN_API_CHAT, "\"stream_options\": {\"include_usage\": true}", "stream_options", "stream"},
    {CN_API_CHAT, "\"chat_template_kwargs\": {\"tools\": 1}", "chat_template_kwargs", "tools"},
    {CN_API_CHAT, "\"chat_template_kwargs\": {\"enable_thinking\": 1}", "chat_template_kwargs",
     "true or false"},
    {CN_API_CHAT, "\"documents\": [1]", "documents", "objects"},
    {CN_API_CHAT, "\"add_generation_prompt\": 1", "add_generation_prompt", "true or false"},
    {CN_API_CHAT, "\"continue_final_message\": true", "continue_final_message",
     "add_generation_prompt"},
    {CN_API_CHAT, "\"kv\": {\"policy\": \"zap\"}", "kv", "zap"},
    {CN_API_CHAT, "\"kv\": {\"budgit\": 1}", "kv", "budgit"},
    {CN_API_CHAT, "\"kv\": 7", "kv", "object"},
    {CN_API_CHAT, "\"reasoning_effort\": \"huge\"", "reasoning_effort", "huge"},
    {CN_API_CHAT, "\"bad_words\": \"x\"", "bad_words", "array"},
    {CN_API_CHAT, "\"bad_words\": [\"\"]", "bad_words", "non-empty"},
    {CN_API_CHAT, "\"allowed_token_ids\": []", "allowed_token_ids", "at least one"},
    {CN_API_CHAT, "\"allowed_token_ids\": [-1]", "allowed_token_ids", "-1"},
    {CN_API_CHAT, "\"n\": 2, \"best_of\": 4", "best_of", "4"},
    {CN_API_CHAT, "\"n\": 2, \"best_of\": 1", "best_of", "1"},
    {CN_API_CHAT, "\"tools\": 1", "tools", "array"},
    {CN_API_CHAT, "\"tools\": [{\"type\": \"function\"}]", "tools", "tools[0]"},
    {CN_API_CHAT, "\"tools\": [" TOOL ", {\"type\": \"web\"}]", "tools", "tools[1]"},
    {CN_API_CHAT, "\"tools\": [" TOOL "], \"tool_choice\": \"any\"", "tool_choice", "\"any\""},
    {CN_API_CHAT, "\"tools\": [" TOOL "], \"tool_choice\": {\"type\": \"function\"}", "tool_choice",
     "\"required\" or"},
    {CN_API_CHAT, "\"tools\": [" TOOL "], \"tool_choice\": " NAMED("no"), "tool_choice",
     "the name of one of the tools"},
    {CN_API_CHAT, "\"tool_choice\": \"required\"", "tool_choice", "expected tools beside it"},
    {CN_API_CHAT, "\"tools\": [" TOOL "], \"tool_choice\": \"required\", "
     "\"structured_outputs\": {\"regex\": \"a\"}", "tool_choice", "another structure"},
    {CN_API_CHAT, "\"parallel_tool_calls\": 0", "parallel_tool_calls", "true or false"},
    {CN_API_CHAT, "\"tempreature\": 0.5", "tempreature", "unknown"},
    {CN_API_CHAT, "\"prompt\": \"x\"", "prompt", "unknown"},
    {CN_API_COMPLETION, "{\"max_tokens\": 3}", "prompt", "missing"},
    {CN_API_COMPLETION, "{\"prompt\": \"\"}", "prompt", "empty"},
    {CN_API_COMPLETION, "{\"prompt\": []}", "prompt", "array"},
    {CN_API_COMPLETION, "{\"prompt\": {}}", "prompt", "object"},
    {CN_API_COMPLETION, "{\"prompt\": [1, \"a\"]}", "prompt", "\"a\""},
    {CN_API_COMPLETION, "{\"prompt\": [\"a\", 3]}", "prompt", "3"},
    {CN_API_COMPLETION, "{\"prompt\": [\"a\", []]}", "prompt", "array"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"messages\": []}", "messages", "unknown"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"echo\": 1}", "echo", "1"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"max_tokens\": -1}", "max_tokens", "from 0 to"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"prompt_logprobs\": 21}", "prompt_logprobs", "21"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"suffix\": \"b\"}", "suffix",
     "only \"\" is supported"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"prompt_logprobs\": 1, \"stream\": true}",
     "prompt_logprobs", "stream"},
    {CN_API_COMPLETION, "{\"prompt\": \"a\", \"truncate_prompt_tokens\": -2}",
     "truncate_prompt_tokens", "-1, for all that there is room for, or a positive"},
    {CN_API_COMPLETION, "[1]", "", "object"},
};

static void every_refusal_names_field_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *f = &refusals[i];
        char text[512];
        const bool chat = f->endpoint == CN_API_CHAT;
        snprintf(text, sizeof text, chat ? CHAT_START "%s}" : "%s", f->text);
        cn_api_request r;
        if (parse(&r, f->endpoint, text) != CN_ERR_ARG) fail_msg("accepted: %s", f->text);
        assert_string_equal(cn_last_param(), f->field);
        if (!strstr(cn_last_error(), f->says) || !strstr(cn_last_error(), f->field))
            fail_msg("%s: '%s' lacks '%s'", f->text, cn_last_error(), f->says);
        assert_null(r.keep);
    }
}

static void bad_messages_are_refused(void **state)
{
    (void)state;
    static const char *const messages[] = {
        "[]", "{}", "\"hi\"", "[1]", "[{}]", "[{\"role\": \"user\"}]", "[{\"content\": \"x\"}]",
        "[{\"role\": \"function\", \"content\": \"x\"}]", "[{\"role\": 1, \"content\": \"x\"}]",
        "[{\"role\": \"user\", \"content\": null}]", "[{\"role\": \"user\", \"content\": 1}]",
        "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": {}}]}]",
        "[{\"role\": \"user\", \"content\": [\"x\"]}]",
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
        "[{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": [{}]}]",
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"type\": 1, \"function\": {\"name\":"
        " \"f\"}}]}]",
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\","
        " \"arguments\": [1]}}]}]",
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\","
        " \"arguments\": []}}]}]",
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\","
        " \"arguments\": 1}}]}]",
        "[{\"role\": \"assistant\", \"tool_calls\": [{\"id\": 1, \"function\": {\"name\": "
        "\"f\"}}]}]",
        "[{\"role\": \"tool\", \"content\": \"x\", \"tool_call_id\": {\"a\": 1}}]",
        "[{\"role\": \"tool\", \"content\": \"x\", \"tool_call_id\": {}}]",
        "[{\"role\": \"user\", \"content\": \"x\", \"name\": 1}]",
        "[{\"role\": \"user\", \"content\": \"x\", \"tool_calls\": [{}]}]",
        "[{\"role\": \"user\", \"content\": \"x\", \"tool_call_id\": \"c\"}]",
        "[{\"role\": \"assistant\", \"content\": \"x\", \"reasoning_content\": [\"y\"]}]",
        "[{\"role\": \"assistant\", \"content\": \"x\", \"reasoning\": 1}]",
        "[{\"role\": \"assistant\", \"content\": \"x\", \"reasoning_content\": \"y\","
        " \"reasoning\": \"z\"}]",
        "[{\"role\": \"user\", \"content\": \"x\", \"reasoning_content\": \"y\"},"
        " {\"role\": \"user\", \"content\": \"x\"}]",
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        char text[512];
        snprintf(text, sizeof text, "{\"messages\": %s}", messages[i]);
        cn_api_request r;
        if (parse(&r, CN_API_CHAT, text) != CN_ERR_ARG) fail_msg("took %s", messages[i]);
        assert_string_equal(cn_last_param(), "messages");
        assert_non_null(strstr(cn_last_error(), "messages"));
    }
}

/* The request keeps only the text that its parameters point into. */
static void members_that_are_read_or_ignored_are_dropped(void **state)
{
    (void)state;
    cn_api_request r;
    accept_chat(&r, "\"metadata\": {\"a\": [{}, {}, {}]}, \"user\": \"u\", \"n\": 2, "
                    "\"stop\": [\"END\", \"STOP\"], \"logit_bias\": {\"17\": 1}, "
                    "\"stop_token_ids\": [5, 6], \"kv\": {\"policy\": \"zip\", \"budget\": 512}");
    json_t *body = json_array_get(r.keep, 0);
    assert_int_equal(json_object_size(body), 2);
    assert_non_null(json_object_get(body, "messages"));
    assert_string_equal(r.params.sampling.stop[1], "STOP");
    assert_int_equal(r.params.sampling.n, 2);
    cn_api_request_free(&r);
    assert_int_equal(parse(&r, CN_API_COMPLETION, "{\"prompt\": [1, 2, 3], \"user\": \"u\"}"),
                     CN_OK);
    assert_int_equal(json_object_size(json_array_get(r.keep, 0)), 0);
    assert_int_equal(r.params.n_tokens, 3);
    cn_api_request_free(&r);
}

static void endpoints_have_paths(void **state)
{
    (void)state;
    cn_api_endpoint e;
    for (int i = 0; i < CN_API_N_ENDPOINTS; i++) {
        assert_true(cn_api_endpoint_find(cn_api_endpoint_path((cn_api_endpoint)i), &e));
        assert_int_equal(e, i);
    }
    assert_false(cn_api_endpoint_find("/v1/embeddings", &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_fields_are_read),
        cmocka_unit_test(an_absent_field_has_the_engines_default),
        cmocka_unit_test(max_completion_tokens_comes_before_max_tokens),
        cmocka_unit_test(harmless_and_neutral_fields_pass),
        cmocka_unit_test(unknown_fields_bring_warnings),
        cmocka_unit_test(unknown_members_of_messages_bring_a_warning),
        cmocka_unit_test(an_assistant_may_say_nothing),
        cmocka_unit_test(the_best_of_n_are_all),
        cmocka_unit_test(completions_have_many_prompts_and_scores),
        cmocka_unit_test(a_prompt_may_be_truncated_to_the_room),
        cmocka_unit_test(a_nul_is_kept_in_the_texts_of_a_prompt),
        cmocka_unit_test(members_of_kv_without_effect_bring_warnings),
        cmocka_unit_test(members_of_kv_are_never_ignored),
        cmocka_unit_test(reasoning_effort_is_the_templates_switch),
        cmocka_unit_test(message_text_may_come_in_parts),
        cmocka_unit_test(reasoning_of_answers_is_read),
        cmocka_unit_test(tool_calls_and_results_are_read),
        cmocka_unit_test(arguments_that_are_no_object_are_passed_on),
        cmocka_unit_test(variables_of_the_template_are_passed_on),
        cmocka_unit_test(the_developer_role_becomes_system),
        cmocka_unit_test(completion_prompt_is_text_or_tokens),
        cmocka_unit_test(tools_are_passed_on),
        cmocka_unit_test(calls_can_be_required),
        cmocka_unit_test(tools_need_a_parser),
        cmocka_unit_test(every_refusal_names_field_and_value),
        cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(members_that_are_read_or_ignored_are_dropped),
        cmocka_unit_test(endpoints_have_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
