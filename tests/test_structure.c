/* test_structure.c - structured output in an engine: the form of the answers, the same tokens with
 * and without asynchronous scheduling and in any batch, the end of the text, reasoning, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_state.h"
#include "tests/lib/run_engine.h"

#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":10,"             \
    "\"maximum\":99},\"b\":{\"type\":\"string\",\"maxLength\":8}},\"required\":[\"a\",\"b\"]}"

#define DIFFERENT                                                                       \
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":6}," \
    "\"uniqueItems\":true,\"minItems\":5}"

#define CALLS                                                                                      \
    "{\"begin\":\"<tool_call>\",\"between\":\"\",\"end\":\"</tool_call>\","                        \
    "\"arguments\":\"arguments\",\"one\":true,"                                                    \
    "\"functions\":[{\"name\":\"f\",\"parameters\":" SCHEMA "},{\"name\":\"g\"}]}"

#define FORM(kind, text) ((cn_structure){kind, text, NULL, false})

static const cn_structure forms[] = {
    {CN_STRUCTURE_SCHEMA, SCHEMA, NULL, false},
    {CN_STRUCTURE_REGEX, "[a-z]{2,5}(-\\d\\d){1,3}", NULL, false},
    {CN_STRUCTURE_CHOICE, "[\"yes\",\"no\",\"nobody\"]", NULL, false},
    {CN_STRUCTURE_JSON, NULL, NULL, false},
    {CN_STRUCTURE_CALLS, CALLS, NULL, false},
    {CN_STRUCTURE_SCHEMA, DIFFERENT, NULL, true},
};
enum { N_FORMS = sizeof forms / sizeof *forms, N_REQUESTS = 14 };

static uint32_t submit(run *r, uint32_t i, cn_structure form, uint32_t max_tokens)
{
    cn_message message;
    cn_request_params p = run_params(r, "Say something.", &message, max_tokens);
    p.enable_thinking = -1;
    p.structure = form;
    p.sampling.temperature = 2.0f;
    p.sampling.has_seed = true;
    p.sampling.seed = i;
    p.sampling.n = 1 + i % 3;
    return run_submit(r, &p);
}

/* Every second request is free, so that steps have both kinds of rows. */
static void submit_all(run *r)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const cn_structure none = {CN_STRUCTURE_NONE, NULL, NULL, false};
        submit(r, i, i % 2 ? forms[i / 2 % N_FORMS] : none, 60);
    }
    run_finish(r);
}

static void check_text(const cn_structure *form, const run_sample *s)
{
    const char *text = s->text.data;
    uint32_t n = 0, a = 0;
    if (s->finish == CN_FINISH_LENGTH) return;
    assert_int_equal(s->finish, CN_FINISH_STOP);
    switch (form->kind) {
    case CN_STRUCTURE_CHOICE:
        assert_true(!strcmp(text, "yes") || !strcmp(text, "no") || !strcmp(text, "nobody"));
        break;
    case CN_STRUCTURE_REGEX:
        n = (uint32_t)strspn(text, "abcdefghijklmnopqrstuvwxyz");
        assert_in_range(n, 2, 5);
        assert_true((strlen(text) - n) % 3 == 0 && text[n] == '-');
        break;
    case CN_STRUCTURE_SCHEMA:
        if (*text == '[') {
            for (const char *c = text + 1; *c; c += 2)
                assert_true(*c >= '1' && *c <= '6' && !strchr(c + 1, *c));
            assert_in_range(strlen(text), 11, 13);
            break;
        }
        assert_true(sscanf(text, "{ \"a\" : %u , \"b\" : \"", &a) == 1 && a >= 10 && a <= 99);
        assert_true(text[strlen(text) - 1] == '}');
        break;
    case CN_STRUCTURE_CALLS:
        assert_int_equal(strncmp(text, "<tool_call>", 11), 0);
        assert_string_equal(text + strlen(text) - 12, "</tool_call>");
        break;
    default: assert_true(text[0] == '{' && text[strlen(text) - 1] == '}'); break;
    }
}

static void answers_have_their_form_in_any_schedule(void **state)
{
    (void)state;
    static run sync, async, small, scarce;
    run_open(&sync, (const char *[]){"async-scheduling", "off", NULL});
    run_open(&async, (const char *[]){"async-scheduling", "on", NULL});
    run_open(&small, (const char *[]){"async-scheduling", "on", "max-num-seqs", "3", NULL});
    run_open(&scarce, (const char *[]){"async-scheduling", "on", "num-gpu-blocks-override", "9",
                                       "block-size", "16", "max-model-len", "128",
                                       "enable-prefix-caching", "false", NULL});
    submit_all(&sync);
    submit_all(&async);
    submit_all(&small);
    submit_all(&scarce);
    assert_true(scarce.engine->stats->preemptions > 0);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        for (uint32_t s = 0; s < 1 + i % 3; s++) {
            run_assert_same(&sync, i, &async, i, s);
            run_assert_same(&sync, i, &small, i, s);
            run_assert_same(&sync, i, &scarce, i, s);
            if (i % 2) check_text(&forms[i / 2 % N_FORMS], &sync.samples[i][s]);
        }
    run_close(&sync);
    run_close(&async);
    run_close(&small);
    run_close(&scarce);
}

static void a_complete_text_ends_without_another_token(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){"async-scheduling", "on", NULL});
    const uint32_t i = submit(&r, 0, FORM(CN_STRUCTURE_CHOICE, "[\"a\"]"), 10);
    const uint32_t k = submit(&r, 0, FORM(CN_STRUCTURE_CHOICE, "[\"a\"]"), 1);
    const uint32_t cut = submit(&r, 0, FORM(CN_STRUCTURE_REGEX, "a{200}"), 3);
    run_finish(&r);
    assert_string_equal(r.samples[i][0].text.data, "a");
    assert_int_equal(r.samples[i][0].n_tokens, 1);
    assert_int_equal(r.samples[i][0].finish, CN_FINISH_STOP);
    assert_int_equal(r.samples[k][0].finish, CN_FINISH_STOP);
    assert_int_equal(r.samples[cut][0].finish, CN_FINISH_LENGTH);
    run_close(&r);
}

/* The thinking budget closes the reasoning, in which everything but EOS is allowed. */
static void the_form_begins_behind_the_reasoning(void **state)
{
    (void)state;
    static run r;
    for (int async = 0; async < 2; async++) {
        run_open(&r, (const char *[]){"async-scheduling", async ? "on" : "off",
                                      "reasoning-parser", "auto", NULL});
        if (r.engine->reasoning.open_id < 0 || r.engine->reasoning.close_id < 0)
            fail_msg("the checkpoint has no <think>");
        uint32_t prompt[2] = {5, (uint32_t)r.engine->reasoning.open_id};
        cn_message message;
        cn_request_params p = run_params(&r, "x", &message, 80);
        p.messages = NULL;
        p.n_messages = 0;
        p.tokens = prompt;
        p.n_tokens = 2;
        p.structure = forms[2];
        p.sampling.temperature = 2.0f;
        p.sampling.thinking_token_budget = 12;
        for (uint32_t i = 0; i < 6; i++) {
            p.sampling.has_seed = true;
            p.sampling.seed = i;
            run_submit(&r, &p);
        }
        run_finish(&r);
        uint32_t n_long = 0;
        for (uint32_t i = 0; i < 6; i++) {
            const run_sample *s = &r.samples[i][0];
            check_text(&forms[2], s);
            assert_int_equal(s->finish, CN_FINISH_STOP);
            n_long += s->usage.reasoning_tokens > 0;
        }
        assert_true(n_long > 0);
        run_close(&r);
    }
}

static void what_cannot_be_answered_is_refused(void **state)
{
    (void)state;
    static run r;
    run_open(&r, (const char *[]){NULL});
    cn_message message;
    cn_request_params p = run_params(&r, "x", &message, 20);
    p.structure = FORM(CN_STRUCTURE_SCHEMA, "{\"type\":3}");
    p.sampling.n = 3;
    run_assert_invalid(&r, &p, "structured_outputs", "expected the name of a JSON type");
    run_assert_refused(&r, &p, "expected the name of a JSON type"); /* it is remembered */
    assert_string_equal(cn_last_param(), "structured_outputs");
    p.sampling.n = 1;
    p.structure = forms[0];
    p.sampling.min_tokens = 3;
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "expected min_tokens 0, got 3"));
    p.sampling.min_tokens = 0;
    const uint32_t token = 5;
    p.forced = &token;
    p.n_forced = 1;
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "no forced tokens"));
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_their_form_in_any_schedule),
        cmocka_unit_test(a_complete_text_ends_without_another_token),
        cmocka_unit_test(the_form_begins_behind_the_reasoning),
        cmocka_unit_test(what_cannot_be_answered_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
