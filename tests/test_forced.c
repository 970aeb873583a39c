/* test_forced.c - teacher forcing: forced tokens come out unchanged, with the logprobs that the
 * model gives them, and the tokens after them are those that would follow without forcing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/offline/audit.h"
#include "tests/lib/run_engine.h"

enum { MAX_TOKENS = 48 };

/* The run of the fixture, and a callback that keeps logprobs. */
typedef struct rig {
    run r;
    cn_transcript said;
    cn_finish finish;
    const char *prompt;
} rig;

static rig shared;

static int setup(void **state)
{
    run_open(&shared.r, (const char *[]){"block-size", "16", NULL});
    assert_int_equal(run_load_prompts("ledger", &shared.prompt, NULL, 1), 1);
    *state = &shared;
    return 0;
}

static int teardown(void **state)
{
    rig *g = *state;
    run_close(&g->r);
    return 0;
}

static void on_event(void *user, const cn_event *ev)
{
    rig *g = user;
    assert_int_equal(cn_transcript_add(&g->said, ev), CN_OK);
    g->finish = ev->finish;
}

static cn_request_params params_of(rig *g, cn_message *m)
{
    cn_request_params p = run_params(&g->r, g->prompt, m, MAX_TOKENS);
    p.sampling.logprobs = CN_AUDIT_LOGPROBS;
    return p;
}

/* Runs one request to its end. The caller frees the transcript. */
static cn_transcript say(rig *g, const cn_request_params *p)
{
    g->said = (cn_transcript){0};
    g->finish = CN_FINISH_NONE;
    assert_int_equal(cn_engine_submit(g->r.engine, p, on_event, g, NULL), CN_OK);
    for (bool idle = false; !idle;) assert_int_equal(cn_engine_step(g->r.engine, &idle), CN_OK);
    assert_int_not_equal(g->finish, CN_FINISH_NONE);
    return g->said;
}

static void a_replay_repeats_tokens_and_logprobs(void **state)
{
    rig *g = *state;
    cn_message m;
    cn_request_params p = params_of(g, &m);
    cn_transcript free_run = say(g, &p);
    assert_int_equal(free_run.n, MAX_TOKENS);
    p.sampling.temperature = 5;
    p.sampling.min_tokens = 3;
    cn_audit_params(&p, &free_run);
    cn_transcript replay = say(g, &p);
    assert_int_equal(g->finish, CN_FINISH_LENGTH);
    assert_int_equal(replay.n, free_run.n);
    assert_memory_equal(replay.tokens, free_run.tokens, free_run.n * sizeof *free_run.tokens);
    assert_memory_equal(replay.best, free_run.best, free_run.n * sizeof *free_run.best);
    assert_memory_equal(replay.logprobs, free_run.logprobs, free_run.n * sizeof(float));
    cn_transcript_free(&free_run);
    cn_transcript_free(&replay);
}

static void generation_continues_after_forced_tokens(void **state)
{
    rig *g = *state;
    cn_message m;
    cn_request_params p = params_of(g, &m);
    cn_transcript free_run = say(g, &p);
    p.forced = free_run.tokens;
    p.n_forced = 20;
    cn_transcript same = say(g, &p);
    assert_memory_equal(same.tokens, free_run.tokens, free_run.n * sizeof *free_run.tokens);

    uint32_t other[20];
    memcpy(other, free_run.tokens, sizeof other);
    other[7] ^= 1;
    p.forced = other;
    cn_transcript parted = say(g, &p);
    assert_memory_equal(parted.tokens, other, sizeof other);
    assert_memory_equal(parted.logprobs, free_run.logprobs, 7 * sizeof(float));
    assert_true(parted.logprobs[7] < free_run.logprobs[7]);
    cn_transcript_free(&free_run);
    cn_transcript_free(&same);
    cn_transcript_free(&parted);
}

static void forcing_overrides_bans_and_budgets(void **state)
{
    rig *g = *state;
    cn_message m;
    cn_request_params p = params_of(g, &m);
    cn_transcript free_run = say(g, &p);
    p.forced = free_run.tokens;
    p.n_forced = free_run.n;
    p.sampling.thinking_token_budget = 4;
    const cn_logit_bias bias = {free_run.tokens[0], -100};
    p.sampling.logit_bias = &bias;
    p.sampling.n_logit_bias = 1;
    cn_transcript replay = say(g, &p);
    assert_memory_equal(replay.tokens, free_run.tokens, free_run.n * sizeof *free_run.tokens);
    cn_transcript_free(&free_run);
    cn_transcript_free(&replay);
}

static void impossible_forced_tokens_are_refused_with_numbers(void **state)
{
    rig *g = *state;
    cn_message m;
    cn_request_params p = params_of(g, &m);
    const uint32_t tokens[MAX_TOKENS + 1] = {[3] = 2048};
    p.forced = tokens;
    p.n_forced = 4;
    assert_int_equal(cn_engine_submit(g->r.engine, &p, on_event, g, NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "2048"));
    p.n_forced = MAX_TOKENS + 1;
    assert_int_equal(cn_engine_submit(g->r.engine, &p, on_event, g, NULL), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "49"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_repeats_tokens_and_logprobs),
        cmocka_unit_test(generation_continues_after_forced_tokens),
        cmocka_unit_test(forcing_overrides_bans_and_budgets),
        cmocka_unit_test(impossible_forced_tokens_are_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
