/* test_prompt_scores.c - log-probabilities of a prompt's tokens equal those of the same tokens when
 * they are forced as output, whatever the size of chunks and pieces, the other requests, the prefix
 * cache and preemptions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/run_engine.h"

enum { N_PROMPT = 150, N_HEAD = 3, N_TOP = 2, N_REQUESTS = 5 };

/* Logprobs and best tokens of N_PROMPT tokens, and how the request ended. */
typedef struct scores {
    uint32_t n, n_output;
    float logprob[N_PROMPT];
    cn_logprob best[N_PROMPT];
    cn_finish finish;
    uint32_t preemptions, cached;
} scores;

static uint32_t tokens[N_PROMPT];

static void keep(scores *s, const cn_token_logprobs *lp)
{
    assert_true(s->n < N_PROMPT);
    s->logprob[s->n] = lp->chosen.logprob;
    assert_true(isnan(lp->chosen.logprob) || lp->chosen.token == tokens[s->n]);
    if (lp->n_top > 0) s->best[s->n] = lp->top[0];
    s->n++;
}

static void on_forced(void *user, const cn_event *ev)
{
    for (uint32_t i = 0; i < ev->n_tokens; i++) keep(user, &ev->logprobs[i]);
}

static void on_scored(void *user, const cn_event *ev)
{
    scores *s = user;
    s->n_output += ev->n_tokens;
    s->finish = ev->finish;
    if (ev->usage) s->preemptions = ev->usage->preemptions, s->cached = ev->usage->cached_tokens;
    if (s->n > 0) return;
    assert_int_equal(ev->n_prompt, N_PROMPT);
    assert_memory_equal(ev->prompt, tokens, sizeof tokens);
    assert_non_null(ev->prompt_logprobs);
    for (uint32_t i = 0; i < ev->n_prompt; i++) keep(s, &ev->prompt_logprobs[i]);
}

static cn_request_params base(run *r)
{
    cn_message m;
    cn_request_params p = run_params(r, "", &m, 1);
    p.messages = NULL;
    p.n_messages = 0;
    p.tokens = tokens;
    p.sampling.ignore_eos = true;
    return p;
}

static void drain(run *r)
{
    for (bool idle = false; !idle;) assert_int_equal(cn_engine_step(r->engine, &idle), CN_OK);
}

static void submit(run *r, const cn_request_params *p, cn_event_fn fn, void *user)
{
    if (cn_engine_submit(r->engine, p, fn, user, NULL) != CN_OK) fail_msg("%s", cn_last_error());
}

/* The tokens after the first N_HEAD, forced one by one. */
static scores forced(run *r)
{
    scores s = {.n = N_HEAD};
    cn_request_params p = base(r);
    p.n_tokens = N_HEAD;
    p.forced = tokens + N_HEAD;
    p.n_forced = N_PROMPT - N_HEAD;
    p.sampling.max_tokens = N_PROMPT - N_HEAD;
    p.sampling.logprobs = N_TOP;
    submit(r, &p, on_forced, &s);
    drain(r);
    assert_int_equal(s.n, N_PROMPT);
    return s;
}

static void expect_same(const scores *got, const scores *want)
{
    assert_int_equal(got->n, N_PROMPT);
    assert_true(isnan(got->logprob[0]));
    for (uint32_t i = N_HEAD; i < N_PROMPT; i++) {
        assert_true(fabsf(got->logprob[i] - want->logprob[i]) < 1e-4f);
        assert_true(fabsf(got->best[i].logprob - want->best[i].logprob) < 1e-4f);
    }
}

static void noop(void *user, const cn_event *ev) { (void)user, (void)ev; }

static void check(const char *const *options, bool others)
{
    run r;
    run_open(&r, options);
    const scores want = forced(&r);
    scores got[N_REQUESTS] = {{0}};
    cn_request_params p = base(&r);
    p.n_tokens = N_PROMPT;
    p.score_prompt = true;
    p.n_prompt_top = N_TOP;
    for (int i = 0; i < N_REQUESTS; i++) {
        cn_request_params other = base(&r);
        other.n_tokens = N_PROMPT - 7;
        other.sampling.max_tokens = 100;
        if (others) submit(&r, &other, noop, NULL);
        p.no_output = i % 2;
        p.sampling.max_tokens = 40;
        submit(&r, &p, on_scored, &got[i]);
    }
    drain(&r);
    uint32_t preemptions = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        expect_same(&got[i], &want);
        assert_int_equal(got[i].n_output, i % 2 ? 0 : 40);
        assert_int_equal(got[i].finish, CN_FINISH_LENGTH);
        assert_int_equal(got[i].cached, 0);
        preemptions += got[i].preemptions;
    }
    if (others) assert_true(preemptions > 0);
    run_close(&r);
}

static void scores_equal_those_of_forced_tokens(void **state)
{
    (void)state;
    check((const char *[]){"block-size", "16", NULL}, false);
}

/* Seven rows of logits for chunks of 33 tokens. */
static void pieces_and_chunks_do_not_matter(void **state)
{
    (void)state;
    check((const char *[]){"block-size", "16", "max-num-seqs", "7", "max-num-batched-tokens", "33",
                           NULL}, false);
}

static void preemptions_do_not_matter(void **state)
{
    (void)state;
    check((const char *[]){"block-size", "16", "num-gpu-blocks-override", "21", "max-num-seqs", "8",
                           "max-num-batched-tokens", "64", NULL}, true);
}

static void all_prompts_are_queued_or_none(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"block-size", "16", "max-queue", "3", NULL});
    cn_request_params p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = base(&r);
        p[i].n_tokens = N_PROMPT;
    }
    uint64_t first;
    scores s = {0};
    assert_int_equal(cn_engine_submit_all(r.engine, p, 4, on_forced, &s, &first), CN_ERR_ARG);
    p[2].n_tokens = 0;
    assert_int_equal(cn_engine_submit_all(r.engine, p, 3, on_forced, &s, &first), CN_ERR_ARG);
    p[2].n_tokens = N_PROMPT;
    assert_int_equal(cn_engine_submit(r.engine, &p[3], noop, &s, &first), CN_OK);
    assert_int_equal(cn_engine_submit_all(r.engine, p, 3, on_forced, &s, &first), CN_ERR_BUSY);
    assert_non_null(strstr(cn_last_error(), "prompt 3 of 3"));
    cn_stats stats;
    cn_engine_stats(r.engine, &stats);
    assert_int_equal(stats.waiting, 1);
    assert_int_equal(stats.prompt_tokens, 0); /* none has been admitted */
    drain(&r);
    assert_int_equal(cn_engine_submit_all(r.engine, p, 3, noop, &s, &first), CN_OK);
    drain(&r);
    cn_engine_stats(r.engine, &stats);
    assert_int_equal(stats.requests_done, 4);
    assert_int_equal(stats.prompt_tokens, 4 * N_PROMPT);
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_equal_those_of_forced_tokens),
        cmocka_unit_test(pieces_and_chunks_do_not_matter),
        cmocka_unit_test(preemptions_do_not_matter),
        cmocka_unit_test(all_prompts_are_queued_or_none),
    };
    for (uint32_t i = 0; i < N_PROMPT; i++) tokens[i] = 5 + i * 37 % 1900;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
