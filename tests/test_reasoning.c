/* test_reasoning.c - which tokens are reasoning, by the prompt, the parser and the tags; the
 * budget. The vocabulary is fake: only the look-up of the two tags is used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/reasoning.h"

enum { OPEN = 50, CLOSE = 51, TURN = 60, WORD = 1 }; /* TURN begins or ends a turn */

struct cn_tokenizer {
    bool has_open, has_close;
};

bool cn_tokenizer_id(const cn_tokenizer *t, const char *content, uint32_t *id)
{
    bool open = strcmp(content, "<think>") == 0, close = strcmp(content, "</think>") == 0;
    *id = open ? OPEN : CLOSE;
    return (open && t->has_open) || (close && t->has_close);
}

bool cn_tokenizer_is_added(const cn_tokenizer *t, uint32_t id)
{
    (void)t;
    return id >= OPEN;
}

static cn_output_reasoning choose(bool has_open, bool has_close, cn_opt_reasoning_parser parser)
{
    cn_tokenizer t = {has_open, has_close};
    cn_output_reasoning r;
    assert_int_equal(cn_output_reasoning_choose(&t, parser, &r), CN_OK);
    return r;
}

static cn_reasoning start(cn_opt_reasoning_parser parser, int32_t budget, const uint32_t *prompt,
                          uint32_t n_prompt)
{
    cn_output_reasoning rules = choose(true, true, parser);
    cn_reasoning r;
    cn_reasoning_init(&r, &rules, budget, prompt, n_prompt);
    return r;
}

static void parsers_need_their_tags(void **state)
{
    (void)state;
    cn_output_reasoning r = choose(true, true, CN_OPT_REASONING_AUTO);
    assert_true(r.split && !r.from_start);
    assert_int_equal(r.open_id, OPEN);
    assert_int_equal(r.close_id, CLOSE);
    assert_false(choose(true, false, CN_OPT_REASONING_AUTO).split);
    assert_false(choose(false, true, CN_OPT_REASONING_AUTO).split);
    assert_false(choose(true, true, CN_OPT_REASONING_NONE).split);
    assert_int_equal(choose(false, false, CN_OPT_REASONING_NONE).close_id, -1);
    r = choose(false, true, CN_OPT_REASONING_DEEPSEEK_R1); /* needs no opening tag */
    assert_true(r.split && r.from_start);
    cn_tokenizer lacks_open = {false, true}, lacks_close = {true, false};
    assert_int_equal(cn_output_reasoning_choose(&lacks_open, CN_OPT_REASONING_QWEN3, &r),
                     CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "qwen3"));
    assert_non_null(strstr(cn_last_error(), " <think>"));
    assert_int_equal(cn_output_reasoning_choose(&lacks_close, CN_OPT_REASONING_DEEPSEEK_R1, &r),
                     CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "</think>"));
}

static void the_prompts_end_sets_the_phase(void **state)
{
    (void)state;
    static const uint32_t plain[] = {1, 2, 3}, open[] = {1, OPEN, 2};
    static const uint32_t closed[] = {OPEN, 2, CLOSE, 2};
    static const uint32_t earlier_turn[] = {OPEN, 2, CLOSE, 3, 3, 3, 3, 3, 3, 3, 3};
    const cn_opt_reasoning_parser qwen = CN_OPT_REASONING_QWEN3, r1 = CN_OPT_REASONING_DEEPSEEK_R1;
    assert_int_equal(start(qwen, -1, plain, 3).phase, CN_REASONING_BEFORE);
    assert_int_equal(start(r1, -1, plain, 3).phase, CN_REASONING_INSIDE);
    assert_int_equal(start(qwen, -1, open, 3).phase, CN_REASONING_INSIDE);
    assert_int_equal(start(qwen, -1, closed, 4).phase, CN_REASONING_AFTER);
    assert_int_equal(start(r1, -1, closed, 4).phase, CN_REASONING_AFTER);
    assert_int_equal(start(qwen, -1, earlier_turn, 11).phase, CN_REASONING_BEFORE);
    assert_int_equal(start(r1, -1, earlier_turn, 11).phase, CN_REASONING_INSIDE);
    assert_int_equal(start(qwen, -1, NULL, 0).phase, CN_REASONING_BEFORE);
}

/* Tags of the user are text: the prompt does not end inside them. */
static void tags_in_the_text_of_a_turn_do_not_count(void **state)
{
    (void)state;
    const cn_opt_reasoning_parser qwen = CN_OPT_REASONING_QWEN3;
    static const uint32_t opens[] = {TURN, 1, 1, OPEN, 1, TURN, 1, TURN, 1, 1};
    static const uint32_t closes[] = {TURN, 1, 1, CLOSE, TURN, 1, 1};
    static const uint32_t begun[] = {TURN, 1, TURN, 1, 1, OPEN, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t shut[] = {TURN, 1, TURN, 1, OPEN, 1, 1, CLOSE, 1, 1};
    static const uint32_t text[] = {TURN, 1, OPEN, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(start(qwen, -1, opens, 10).phase, CN_REASONING_BEFORE);
    assert_int_equal(start(qwen, -1, closes, 7).phase, CN_REASONING_BEFORE);
    assert_int_equal(start(qwen, -1, begun, 16).phase, CN_REASONING_INSIDE);
    assert_int_equal(start(qwen, -1, shut, 10).phase, CN_REASONING_AFTER);
    assert_int_equal(start(qwen, -1, text, 12).phase, CN_REASONING_BEFORE); /* after BOS */
}

static void each_tag_changes_the_phase_once(void **state)
{
    (void)state;
    cn_reasoning r = start(CN_OPT_REASONING_QWEN3, -1, NULL, 0);
    assert_int_equal(cn_reasoning_push(&r, WORD), CN_REASONING_TEXT);
    assert_int_equal(cn_reasoning_push(&r, CLOSE), CN_REASONING_TEXT); /* not opened before */
    assert_int_equal(r.phase, CN_REASONING_BEFORE);
    assert_int_equal(cn_reasoning_push(&r, OPEN), CN_REASONING_OPEN);
    assert_int_equal(cn_reasoning_push(&r, WORD), CN_REASONING_TEXT);
    assert_int_equal(cn_reasoning_push(&r, OPEN), CN_REASONING_TEXT); /* nested, so it is text */
    assert_int_equal(cn_reasoning_push(&r, CLOSE), CN_REASONING_CLOSE);
    assert_int_equal(cn_reasoning_push(&r, OPEN), CN_REASONING_TEXT);
    assert_int_equal(r.phase, CN_REASONING_AFTER);
    assert_int_equal(r.n_tokens, 2); /* without the tags */
    assert_false(r.truncated);

    r = start(CN_OPT_REASONING_DEEPSEEK_R1, -1, NULL, 0);
    assert_int_equal(cn_reasoning_push(&r, OPEN), CN_REASONING_OPEN); /* not needed, but a tag */
    assert_int_equal(r.phase, CN_REASONING_INSIDE);
    assert_int_equal(r.n_tokens, 1);
}

/* The forced token, which must not depend on the token before it. */
static int32_t force(const cn_reasoning *r, uint32_t n_pending)
{
    int64_t after;
    const int32_t token = cn_reasoning_force(r, n_pending, &after);
    assert_int_equal(after, -1);
    return token;
}

static void a_spent_budget_forces_the_closing_tag(void **state)
{
    (void)state;
    cn_reasoning r = start(CN_OPT_REASONING_NONE, 2, NULL, 0); /* also without a parser */
    assert_int_equal(force(&r, 0), -1);
    cn_reasoning_push(&r, OPEN);
    cn_reasoning_push(&r, WORD);
    assert_int_equal(force(&r, 0), -1);
    cn_reasoning_push(&r, WORD);
    assert_int_equal(force(&r, 0), CLOSE);
    assert_false(cn_reasoning_exhausted(&r));
    assert_int_equal(cn_reasoning_push(&r, CLOSE), CN_REASONING_CLOSE);
    assert_true(r.truncated);
    assert_int_equal(force(&r, 0), -1); /* the answer follows */

    r = start(CN_OPT_REASONING_DEEPSEEK_R1, 0, NULL, 0);
    assert_int_equal(force(&r, 0), CLOSE); /* no reasoning at all */
    r = start(CN_OPT_REASONING_QWEN3, 5, NULL, 0);
    cn_reasoning_push(&r, OPEN);
    cn_reasoning_push(&r, CLOSE); /* closed by the model in time */
    assert_false(r.truncated);
}

/* Without a budget the tag that begins the reasoning is closed at once, also a pending one. */
static void no_budget_closes_a_pending_tag(void **state)
{
    (void)state;
    int64_t after;
    cn_reasoning r = start(CN_OPT_REASONING_QWEN3, 0, NULL, 0);
    assert_int_equal(force(&r, 0), -1);
    assert_int_equal(cn_reasoning_force(&r, 1, &after), CLOSE);
    assert_int_equal(after, OPEN);
    cn_reasoning_push(&r, WORD);
    cn_reasoning_push(&r, OPEN);
    assert_int_equal(force(&r, 0), CLOSE);
    cn_reasoning_push(&r, CLOSE);
    assert_int_equal(force(&r, 1), -1);
    r = start(CN_OPT_REASONING_QWEN3, 1, NULL, 0);
    assert_int_equal(force(&r, 1), -1);
}

static void a_budget_without_a_closing_tag_is_exhausted(void **state)
{
    (void)state;
    cn_output_reasoning rules = choose(false, false, CN_OPT_REASONING_AUTO);
    cn_reasoning r;
    cn_reasoning_init(&r, &rules, 2, NULL, 0);
    cn_reasoning_push(&r, WORD);
    assert_false(cn_reasoning_exhausted(&r));
    cn_reasoning_push(&r, WORD);
    assert_true(cn_reasoning_exhausted(&r));
    assert_int_equal(force(&r, 0), -1);
    cn_reasoning_init(&r, &rules, -1, NULL, 0);
    cn_reasoning_push(&r, WORD);
    assert_int_equal(r.n_tokens, 0);
    assert_false(cn_reasoning_exhausted(&r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parsers_need_their_tags),
        cmocka_unit_test(the_prompts_end_sets_the_phase),
        cmocka_unit_test(tags_in_the_text_of_a_turn_do_not_count),
        cmocka_unit_test(each_tag_changes_the_phase_once),
        cmocka_unit_test(a_spent_budget_forces_the_closing_tag),
        cmocka_unit_test(no_budget_closes_a_pending_tag),
        cmocka_unit_test(a_budget_without_a_closing_tag_is_exhausted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
