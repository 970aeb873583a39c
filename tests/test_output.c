/* test_output.c - tokens to events: text, held-back text, stops, reasoning, logprobs, ends. The
 * vocabulary is fake: its tokens cut characters and stop strings at difficult places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/output.h"
#include "engine/sampler.h"
#include "tests/lib/defaults.h"

enum {
    A, B, C, SPACE, E_1, E_2, STOP_HEAD, STOP_TAIL, EOS, OPEN, CLOSE, HELLO, NUL, MARK, N_TOKENS
};

struct cn_tokenizer {
    const char *text[N_TOKENS];
};

bool cn_tokenizer_is_added(const cn_tokenizer *t, uint32_t id)
{
    (void)t, (void)id;
    return false;
}

static const cn_tokenizer vocab = {
    {"a", "b", "c", " ", "\xc3", "\xa9", "xST", "OPy", "<eos>", "<think>", "</think>", "hello",
     "" /* one NUL byte; the literal adds the end */, "<tool_call>"}};

bool cn_tokenizer_token(const cn_tokenizer *t, uint32_t id, const char **bytes, size_t *n_bytes,
                        bool *special)
{
    if (id >= N_TOKENS) return false;
    *bytes = t->text[id];
    *n_bytes = id == NUL ? 1 : strlen(t->text[id]);
    *special = id == EOS || id == OPEN || id == CLOSE || id == MARK;
    return true;
}

bool cn_tokenizer_id(const cn_tokenizer *t, const char *content, uint32_t *id)
{
    for (*id = 0; *id < N_TOKENS; ++*id)
        if (strcmp(t->text[*id], content) == 0) return true;
    return false;
}

/* One sample and everything that it has delivered. */
typedef struct run {
    cn_sampling sampling;
    const char *stops[4];
    cn_opt_reasoning_parser parser;
    bool finds_calls;
    const uint32_t *prompt;
    uint32_t n_prompt, max_output, take_every;
    char text[4096], reasoning[4096];
    uint32_t n_tokens;
    cn_finish finish;
    const char *stop_reason;
    char stop_copy[64];
    int64_t stop_token;
    size_t answer_at;
    cn_usage usage;
} run;

static run plain(void)
{
    return (run){.max_output = 1000, .take_every = 1, .sampling = default_sampling()};
}

static cn_stop_rules *rules; /* of the output that was opened last */

static void close_output(cn_output *out)
{
    cn_output_free(out);
    cn_stop_rules_free(rules);
    rules = NULL;
}

static cn_output *open_output(run *r)
{
    static const uint32_t eos[] = {EOS};
    while (r->stops[r->sampling.n_stop]) r->sampling.n_stop++;
    r->sampling.stop = r->stops;
    assert_int_equal(cn_sampling_check(&r->sampling, N_TOKENS, 5000), CN_OK);
    const cn_stop_opts stop = {&r->sampling, eos, 1, r->max_output};
    assert_int_equal(cn_stop_rules_create(&rules, &stop), CN_OK);
    cn_output_opts o = {
        .tokenizer = &vocab,
        .sampling = &r->sampling,
        .stop = rules,
        .prompt = r->prompt,
        .n_prompt = r->n_prompt,
        .finds_calls = r->finds_calls,
    };
    assert_int_equal(cn_output_reasoning_choose(&vocab, r->parser, &o.reasoning), CN_OK);
    cn_output *out = NULL;
    assert_int_equal(cn_output_create(&out, &o), CN_OK);
    return out;
}

static void take(run *r, cn_output *out, cn_finish finish)
{
    cn_event ev = {0};
    cn_output_take(out, finish, &ev);
    strcat(r->text, ev.text);
    strcat(r->reasoning, ev.reasoning);
    r->n_tokens += ev.n_tokens;
    r->finish = ev.finish;
    r->stop_reason = ev.stop_reason ? strcpy(r->stop_copy, ev.stop_reason) : NULL;
    r->stop_token = ev.stop_token;
    r->answer_at = ev.answer_at;
}

/* Pushes tokens until the sample ends or the list does; then cancels the sample. */
static void play(run *r, const uint32_t *tokens, uint32_t n)
{
    cn_output *out = open_output(r);
    cn_finish finish = CN_FINISH_NONE;
    for (uint32_t i = 0; i < n && finish == CN_FINISH_NONE; i++) {
        assert_int_equal(cn_output_push(out, tokens[i], NULL, &finish), CN_OK);
        if (finish == CN_FINISH_NONE && (i + 1) % r->take_every == 0) take(r, out, finish);
    }
    cn_output_usage(out, &r->usage);
    take(r, out, finish == CN_FINISH_NONE ? CN_FINISH_CANCELLED : finish);
    close_output(out);
}

#define PLAY(r, ...)                                                                               \
    do {                                                                                           \
        const uint32_t tokens_[] = {__VA_ARGS__};                                                  \
        play(r, tokens_, sizeof tokens_ / sizeof *tokens_);                                        \
    } while (0)

static void expect(const run *r, const char *text, const char *reasoning, cn_finish finish)
{
    assert_string_equal(r->text, text);
    assert_string_equal(r->reasoning, reasoning);
    assert_int_equal(r->finish, finish);
}

/* ---- text ---- */

static void characters_are_never_split(void **state)
{
    (void)state;
    run r = plain();
    cn_output *out = open_output(&r);
    cn_finish finish;
    assert_int_equal(cn_output_push(out, E_1, NULL, &finish), CN_OK);
    take(&r, out, CN_FINISH_NONE);
    assert_string_equal(r.text, "");
    assert_int_equal(cn_output_push(out, E_2, NULL, &finish), CN_OK);
    take(&r, out, CN_FINISH_NONE);
    assert_string_equal(r.text, "\xc3\xa9");
    take(&r, out, CN_FINISH_NONE); /* nothing is delivered twice */
    assert_string_equal(r.text, "\xc3\xa9");
    assert_int_equal(r.n_tokens, 2);
    close_output(out);

    r = plain(); /* a text that ends inside a character */
    r.max_output = 2;
    PLAY(&r, A, E_1);
    expect(&r, "a\xef\xbf\xbd", "", CN_FINISH_LENGTH);
}

static void eos_has_no_text(void **state)
{
    (void)state;
    for (int special = 0; special < 2; special++) {
        run r = plain();
        r.sampling.skip_special_tokens = special;
        PLAY(&r, A, B, EOS);
        expect(&r, "ab", "", CN_FINISH_STOP);
        assert_null(r.stop_reason);
        assert_int_equal(r.stop_token, -1);
        assert_int_equal(r.n_tokens, 3);
    }
    run r = plain();
    r.sampling.skip_special_tokens = false;
    r.sampling.include_stop_str_in_output = true;
    PLAY(&r, A, EOS);
    expect(&r, "a<eos>", "", CN_FINISH_STOP);
}

/* A call would be lost without its mark. */
static void special_marks_of_calls_may_be_text(void **state)
{
    (void)state;
    for (int finds = 0; finds < 2; finds++) {
        run r = plain();
        r.finds_calls = finds;
        PLAY(&r, A, MARK, B, EOS);
        expect(&r, finds ? "a<tool_call>b" : "ab", "", CN_FINISH_STOP);
    }
}

static void stop_tokens_are_named(void **state)
{
    (void)state;
    static const uint32_t ids[] = {HELLO};
    run r = plain();
    r.sampling.stop_token_ids = ids;
    r.sampling.n_stop_token_ids = 1;
    PLAY(&r, A, HELLO);
    expect(&r, "a", "", CN_FINISH_STOP);
    assert_int_equal(r.stop_token, HELLO);
    r.text[0] = '\0';
    r.sampling.include_stop_str_in_output = true;
    PLAY(&r, A, HELLO);
    expect(&r, "ahello", "", CN_FINISH_STOP);
}

static void a_stop_string_across_tokens_is_cut(void **state)
{
    (void)state;
    for (int include = 0; include < 2; include++) {
        for (uint32_t every = 1; every < 5; every++) {
            run r = plain();
            r.stops[0] = "STOP";
            r.stops[1] = "zzz";
            r.take_every = every;
            r.sampling.include_stop_str_in_output = include;
            PLAY(&r, A, STOP_HEAD, STOP_TAIL, B);
            expect(&r, include ? "axSTOP" : "ax", "", CN_FINISH_STOP);
            assert_string_equal(r.stop_reason, "STOP");
            assert_int_equal(r.n_tokens, 3);
        }
    }
}

static void held_text_is_delivered_when_no_stop_string_follows(void **state)
{
    (void)state;
    run r = plain();
    r.stops[0] = "STOP";
    cn_output *out = open_output(&r);
    cn_finish finish;
    assert_int_equal(cn_output_push(out, STOP_HEAD, NULL, &finish), CN_OK);
    take(&r, out, CN_FINISH_NONE);
    assert_string_equal(r.text, "x");
    assert_int_equal(cn_output_push(out, A, NULL, &finish), CN_OK);
    take(&r, out, CN_FINISH_NONE);
    assert_string_equal(r.text, "xSTa");
    close_output(out);

    static const cn_finish ends[] = {CN_FINISH_CANCELLED, CN_FINISH_LENGTH, CN_FINISH_STOP};
    for (int i = 0; i < 3; i++) {
        r = plain();
        r.stops[0] = "STOP";
        r.max_output = ends[i] == CN_FINISH_LENGTH ? 2 : 100;
        if (ends[i] == CN_FINISH_STOP)
            PLAY(&r, A, STOP_HEAD, EOS);
        else
            PLAY(&r, A, STOP_HEAD);
        expect(&r, "axST", "", ends[i]);
    }
}

static void a_stop_string_overrides_the_length(void **state)
{
    (void)state;
    run r = plain();
    r.stops[0] = "OP";
    r.max_output = 2;
    PLAY(&r, A, STOP_TAIL);
    expect(&r, "a", "", CN_FINISH_STOP);
    assert_string_equal(r.stop_reason, "OP");
}

/* Finds the end of the text by the rule of stop.h, by trying every end: the first byte that
 * completes a stop string, and of the completed strings the longest. Returns -1 when there is
 * none. */
static long brute_force_end(const char *text, const char *const *stops, const char **reason)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        size_t longest = 0;
        for (int j = 0; stops[j]; j++) {
            size_t n = strlen(stops[j]);
            if (n <= longest || n > end || memcmp(text + end - n, stops[j], n) != 0) continue;
            longest = n;
            *reason = stops[j];
        }
        if (longest) return (long)(end - longest);
    }
    return -1;
}

static void random_streams_end_as_brute_force_does(void **state)
{
    (void)state;
    static const char *const some[] = {"ab", "aab", "c a", "hellob", "\xc3\xa9h", "PyxSTO", "bca "};
    unsigned seed = 12;
    int stopped = 0;
    for (int round = 0; round < 500; round++) {
        run r = plain();
        r.max_output = 12;
        r.take_every = 1 + (uint32_t)rand_r(&seed) % 4;
        for (int j = 0; j < 3; j++) r.stops[j] = some[rand_r(&seed) % 7];
        uint32_t tokens[12], n = 0;
        char text[200] = "";
        while (n < 12) {
            uint32_t t = (uint32_t)rand_r(&seed) % NUL; /* only tokens without NUL */
            if (t >= EOS && t <= CLOSE) continue;
            if (t == E_1 || t == E_2) { /* only whole characters, so the text is known */
                if (n + 2 > 12) continue;
                tokens[n++] = E_1;
                strcat(text, vocab.text[E_1]);
                t = E_2;
            }
            tokens[n++] = t;
            strcat(text, vocab.text[t]);
        }
        play(&r, tokens, n);
        const char *reason = NULL;
        long end = brute_force_end(text, r.stops, &reason);
        if (end >= 0) text[end] = '\0';
        expect(&r, text, "", end >= 0 ? CN_FINISH_STOP : CN_FINISH_LENGTH);
        if (end >= 0) assert_string_equal(r.stop_reason, reason);
        stopped += end >= 0;
    }
    assert_true(stopped > 50 && stopped < 450);
}

static void repetition_has_a_finish_reason(void **state)
{
    (void)state;
    run r = plain();
    r.sampling.repetition_max_pattern_size = 2;
    r.sampling.repetition_min_pattern_size = 2;
    r.sampling.repetition_min_count = 3;
    PLAY(&r, C, A, B, A, B, A, B, C);
    expect(&r, "cababab", "", CN_FINISH_REPETITION);
    assert_string_equal(cn_finish_name(r.finish), "repetition");
    assert_null(r.stop_reason);
}

/* ---- reasoning ---- */

static void reasoning_is_split_off(void **state)
{
    (void)state;
    for (uint32_t every = 1; every < 8; every++) {
        run r = plain();
        r.parser = CN_OPT_REASONING_AUTO;
        r.take_every = every;
        PLAY(&r, OPEN, A, SPACE, E_1, CLOSE, B, C, EOS);
        expect(&r, "bc", "a \xef\xbf\xbd", CN_FINISH_STOP);
        assert_int_equal(r.usage.reasoning_tokens, 3);
        assert_false(r.usage.thinking_truncated);
    }
    run r = plain();
    r.parser = CN_OPT_REASONING_DEEPSEEK_R1;
    PLAY(&r, A, CLOSE, B, EOS);
    expect(&r, "b", "a", CN_FINISH_STOP);

    r = plain();
    r.parser = CN_OPT_REASONING_NONE;
    r.sampling.skip_special_tokens = false;
    PLAY(&r, OPEN, A, CLOSE, B, EOS);
    expect(&r, "<think>a</think>b", "", CN_FINISH_STOP);
    assert_int_equal(r.usage.reasoning_tokens, 1);
}

static void an_opened_prompt_starts_in_reasoning(void **state)
{
    (void)state;
    static const uint32_t prompt[] = {A, OPEN, SPACE};
    run r = plain();
    r.parser = CN_OPT_REASONING_QWEN3;
    r.prompt = prompt;
    r.n_prompt = 3;
    PLAY(&r, A, B);
    expect(&r, "", "ab", CN_FINISH_CANCELLED);
}

/* answer_at points after the reasoning, whether the reasoning was split off or is in the text,
 * with or without its tags. */
static void the_answer_begins_after_the_reasoning(void **state)
{
    (void)state;
    static const uint32_t opened[] = {A, OPEN};
    static const struct {
        uint32_t tokens[8], n;
        const char *answer;
        bool opened;
    } cases[] = {
        {{OPEN, A, E_1, E_2, CLOSE, B, C, EOS}, 8, "bc", false},
        {{C, OPEN, A, CLOSE, EOS}, 5, "", false},
        {{B, C, EOS}, 3, "bc", false},
        {{OPEN, A, B, EOS}, 4, "", false}, /* not closed */
        {{A, B, CLOSE, C, EOS}, 5, "c", true},
        {{A, CLOSE, C, EOS}, 4, "c", false}, /* not opened */
        {{OPEN, A, CLOSE, B, STOP_HEAD, STOP_TAIL}, 6, "bx", false},
        {{OPEN, A, STOP_HEAD, CLOSE, B}, 5, "b", false}, /* "ST" is held back at the tag */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint32_t variant = 0; variant < 9; variant++) {
            run r = plain();
            r.take_every = 1 + variant % 3;
            if (variant / 3 == 1) r.sampling.skip_special_tokens = false;
            if (variant / 3 == 2 && !cases[i].opened && cases[i].tokens[0] == OPEN)
                r.parser = CN_OPT_REASONING_QWEN3;
            r.stops[0] = "STOP";
            if (cases[i].opened) r.prompt = opened, r.n_prompt = 2;
            play(&r, cases[i].tokens, cases[i].n);
            assert_true(r.answer_at <= strlen(r.text));
            assert_string_equal(r.text + r.answer_at, cases[i].answer);
        }
    }
}

static void stop_strings_match_in_reasoning_and_tags(void **state)
{
    (void)state;
    static const struct {
        const char *stop, *text, *reasoning;
        cn_finish finish;
    } cases[] = {
        {"b", "", "a", CN_FINISH_STOP},          /* inside reasoning */
        {"</think>", "", "ab", CN_FINISH_STOP},  /* only the tag */
        {"b</th", "", "a", CN_FINISH_STOP},      /* text, then the tag */
        {"</think>c", "c", "ab", CN_FINISH_CANCELLED}, /* not across it */
        {"bc", "c", "ab", CN_FINISH_CANCELLED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r = plain();
        r.parser = CN_OPT_REASONING_QWEN3;
        r.stops[0] = cases[i].stop;
        PLAY(&r, OPEN, A, B, CLOSE, C);
        expect(&r, cases[i].text, cases[i].reasoning, cases[i].finish);
    }
}

static void the_thinking_budget_is_in_the_row_and_the_usage(void **state)
{
    (void)state;
    run r = plain();
    r.parser = CN_OPT_REASONING_QWEN3;
    r.sampling.thinking_token_budget = 1;
    r.sampling.min_tokens = 2;
    cn_output *out = open_output(&r);
    cn_sample_row row = {0};
    cn_finish finish;
    bool bans_apply;
    cn_output_row(out, 0, &row, &bans_apply);
    assert_true(bans_apply);
    assert_int_equal(row.force_token, -1);
    assert_int_equal(cn_output_push(out, OPEN, NULL, &finish), CN_OK);
    assert_int_equal(cn_output_push(out, A, NULL, &finish), CN_OK);
    cn_output_row(out, 0, &row, &bans_apply);
    assert_false(bans_apply);
    assert_int_equal(row.force_token, CLOSE);
    assert_int_equal(cn_output_push(out, CLOSE, NULL, &finish), CN_OK);
    assert_int_equal(finish, CN_FINISH_NONE);
    cn_output_usage(out, &r.usage);
    assert_true(r.usage.thinking_truncated);
    assert_int_equal(r.usage.reasoning_tokens, 1);
    cn_output_row(out, 0, &row, &bans_apply);
    assert_int_equal(row.force_token, -1);
    close_output(out);
}

static void a_budget_without_tags_ends_the_sample(void **state)
{
    (void)state;
    run r = plain();
    r.sampling.thinking_token_budget = 2;
    cn_output *out = NULL;
    const cn_stop_opts stop = {&r.sampling, NULL, 0, 10};
    assert_int_equal(cn_stop_rules_create(&rules, &stop), CN_OK);
    cn_output_opts o = {
        .tokenizer = &vocab,
        .sampling = &r.sampling,
        .stop = rules,
        .reasoning = {.open_id = -1, .close_id = -1},
    };
    assert_int_equal(cn_output_create(&out, &o), CN_OK);
    cn_finish finish;
    assert_int_equal(cn_output_push(out, A, NULL, &finish), CN_OK);
    assert_int_equal(finish, CN_FINISH_NONE);
    assert_int_equal(cn_output_push(out, B, NULL, &finish), CN_OK);
    assert_int_equal(finish, CN_FINISH_THINKING_BUDGET);
    assert_string_equal(cn_finish_name(finish), "thinking_budget");
    take(&r, out, finish);
    cn_output_usage(out, &r.usage);
    expect(&r, "ab", "", CN_FINISH_THINKING_BUDGET);
    assert_true(r.usage.thinking_truncated);
    close_output(out);
}

/* ---- logprobs and memory ---- */

static void logprobs_survive_growth(void **state)
{
    (void)state;
    enum { N = 200 };
    run r = plain();
    r.sampling.logprobs = 2;
    cn_output *out = open_output(&r);
    cn_finish finish;
    for (uint32_t i = 0; i < N; i++) {
        cn_logprob top[2] = {{i, -1.0f}, {i + 1, -2.0f}};
        cn_token_logprobs lp = {.chosen = {i, -3.0f}, .top = top, .n_top = 2};
        assert_int_equal(cn_output_push(out, A, &lp, &finish), CN_OK);
    }
    cn_event ev = {0};
    cn_output_take(out, CN_FINISH_NONE, &ev);
    assert_int_equal(ev.n_tokens, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(ev.logprobs[i].chosen.token, i);
        assert_int_equal(ev.logprobs[i].n_top, 2);
        assert_int_equal(ev.logprobs[i].top[0].token, i);
        assert_int_equal(ev.logprobs[i].top[1].token, i + 1);
    }
    close_output(out);

    r = plain();
    r.sampling.logprobs = 0; /* only of the chosen token */
    out = open_output(&r);
    cn_token_logprobs lp = {.chosen = {A, -0.5f}};
    assert_int_equal(cn_output_push(out, A, &lp, &finish), CN_OK);
    cn_output_take(out, CN_FINISH_NONE, &ev);
    assert_int_equal(ev.logprobs[0].n_top, 0);
    assert_true(ev.logprobs[0].chosen.logprob == -0.5f);
    close_output(out);
}

/* Takes one delivery and appends its text to *text and *reasoning. Returns the length of its
 * text. */
static size_t take_text(cn_output *out, cn_finish finish, cn_buf *text, cn_buf *reasoning,
                        size_t *answer_at)
{
    cn_event ev = {0};
    cn_output_take(out, finish, &ev);
    assert_int_equal(cn_buf_add(text, ev.text, ev.text_len), CN_OK);
    assert_int_equal(cn_buf_add(reasoning, ev.reasoning, ev.reasoning_len), CN_OK);
    assert_int_equal(ev.text[ev.text_len], '\0');
    assert_int_equal(ev.reasoning[ev.reasoning_len], '\0');
    *answer_at = ev.answer_at;
    return ev.text_len;
}

static void a_nul_is_kept_in_texts(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {OPEN, NUL, A, CLOSE, B, NUL, C};
    run r = plain();
    r.parser = CN_OPT_REASONING_QWEN3;
    r.stops[0] = "cc"; /* the c is held back */
    cn_output *out = open_output(&r);
    cn_buf text = {0}, reasoning = {0};
    size_t answer_at;
    cn_finish finish;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        assert_int_equal(cn_output_push(out, tokens[i], NULL, &finish), CN_OK);
        const size_t n = take_text(out, CN_FINISH_NONE, &text, &reasoning, &answer_at);
        assert_int_equal(n, tokens[i] == B || (tokens[i] == NUL && i > 3));
    }
    assert_int_equal(take_text(out, CN_FINISH_LENGTH, &text, &reasoning, &answer_at), 1);
    assert_int_equal(text.len, 3);
    assert_memory_equal(text.data, "b\0c", 3);
    assert_int_equal(reasoning.len, 2);
    assert_memory_equal(reasoning.data, "\0a", 2);
    assert_int_equal(answer_at, 0);
    cn_buf_free(&text);
    cn_buf_free(&reasoning);
    close_output(out);
}

static void a_steady_stream_allocates_nothing(void **state)
{
    (void)state;
    run r = plain();
    r.stops[0] = "hell no";
    r.max_output = 5000;
    cn_output *out = open_output(&r);
    uint64_t before = cn_alloc_count();
    cn_finish finish;
    size_t bytes = 0;
    for (int i = 0; i < 4000; i++) {
        assert_int_equal(cn_output_push(out, HELLO, NULL, &finish), CN_OK);
        cn_event ev;
        cn_output_take(out, finish, &ev);
        bytes += ev.text_len;
    }
    assert_int_equal(bytes, 4000 * 5);
    assert_int_equal(cn_alloc_count(), before);
    close_output(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_never_split),
        cmocka_unit_test(eos_has_no_text),
        cmocka_unit_test(special_marks_of_calls_may_be_text),
        cmocka_unit_test(stop_tokens_are_named),
        cmocka_unit_test(a_stop_string_across_tokens_is_cut),
        cmocka_unit_test(held_text_is_delivered_when_no_stop_string_follows),
        cmocka_unit_test(a_stop_string_overrides_the_length),
        cmocka_unit_test(random_streams_end_as_brute_force_does),
        cmocka_unit_test(repetition_has_a_finish_reason),
        cmocka_unit_test(reasoning_is_split_off),
        cmocka_unit_test(an_opened_prompt_starts_in_reasoning),
        cmocka_unit_test(the_answer_begins_after_the_reasoning),
        cmocka_unit_test(stop_strings_match_in_reasoning_and_tags),
        cmocka_unit_test(the_thinking_budget_is_in_the_row_and_the_usage),
        cmocka_unit_test(a_budget_without_tags_ends_the_sample),
        cmocka_unit_test(logprobs_survive_growth),
        cmocka_unit_test(a_nul_is_kept_in_texts),
        cmocka_unit_test(a_steady_stream_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
