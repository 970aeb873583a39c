/* test_engine.c - the engine end to end on the bundled checkpoint: the same tokens for any batch,
 * chunks, cache and memory; sampling by seed; samples, cancels, usage. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "engine/base/json.h"
#include "engine/engine_state.h"
#include "tests/lib/overflow_model.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/scratch_dir.h"

enum { N_PROMPTS = 4, MAX_TOKENS = 64 };
static const char *prompts[N_PROMPTS], *answers[N_PROMPTS];

static void load_prompts(void **state)
{
    (void)state;
    static const char *const tasks[] = {"ledger", "notes", "sums", "multiply"};
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_int_equal(run_load_prompts(tasks[i], prompts + i, answers + i, 1), 1);
}

/* Runs all prompts at once with `options`, greedy unless `seed` is given. */
static run *run_all(const char *const *options, const uint64_t *seed)
{
    run *r = run_new(options, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
        if (seed) {
            p.sampling.temperature = 2.0f;
            p.sampling.has_seed = true;
            p.sampling.seed = *seed + i;
        }
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

/* The greedy run with default options. Other runs are compared with it. */
static run *reference;

static int run_reference(void **state)
{
    load_prompts(state);
    reference = run_all(NULL, NULL);
    return 0;
}

static int close_reference(void **state)
{
    (void)state;
    run_free(reference);
    return 0;
}

static void assert_same_as_default(const char *const *options)
{
    run *got = run_all(options, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same(reference, i, got, i, 0);
    run_free(got);
}

static void an_output_ends_with_the_right_answer(void **state)
{
    (void)state;
    run r;
    run_open(&r, NULL);
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, 0);
    run_submit(&r, &p);
    run_finish(&r);
    const run_sample *s = &r.samples[0][0];
    assert_int_equal(s->finish, CN_FINISH_STOP);
    assert_non_null(strstr(s->text.data, answers[0]));
    assert_int_equal(s->usage.completion_tokens, s->n_tokens);
    assert_true(s->usage.prompt_tokens > 0);
    run_close(&r);
}

static void one_at_a_time_equals_together(void **state)
{
    (void)state;
    assert_same_as_default((const char *[]){"max-num-seqs", "1", NULL});
}

static void chunked_prefill_equals_whole(void **state)
{
    (void)state;
    assert_same_as_default((const char *[]){"max-num-batched-tokens", "17", NULL});
    assert_same_as_default((const char *[]){"enable-chunked-prefill", "false",
                                            "max-num-batched-tokens", "8192", NULL});
}

static void block_size_changes_nothing(void **state)
{
    (void)state;
    assert_same_as_default((const char *[]){"block-size", "16", NULL});
    assert_same_as_default((const char *[]){"block-size", "256", NULL});
}

static void threads_change_nothing(void **state)
{
    (void)state;
    assert_same_as_default((const char *[]){"threads", "1", NULL});
}

static void asynchronous_scheduling_changes_nothing(void **state)
{
    (void)state;
    assert_same_as_default((const char *[]){"async-scheduling", "on", NULL});
    assert_same_as_default((const char *[]){"async-scheduling", "on", "num-gpu-blocks-override",
                                            "40", "block-size", "16", "max-model-len", "640",
                                            NULL});
}

/* Penalties, min_tokens and the thinking budget act on tokens that the host has not read yet. */
static void asynchronous_sampling_rules_are_the_same(void **state)
{
    (void)state;
    run r[2];
    for (uint32_t async = 0; async < 2; async++) {
        run_open(&r[async], (const char *[]){"async-scheduling", async ? "on" : "off", NULL});
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            cn_message m;
            cn_request_params p = run_params(&r[async], prompts[i], &m, 64);
            p.sampling.temperature = 3.0f;
            p.sampling.has_seed = true;
            p.sampling.seed = i;
            p.sampling.frequency_penalty = 0.5f;
            p.sampling.repetition_penalty = 1.2f;
            p.sampling.min_tokens = 40;
            p.sampling.thinking_token_budget = i % 2 ? 10 : -1;
            p.sampling.logprobs = 3;
            run_submit(&r[async], &p);
        }
        run_finish(&r[async]);
    }
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        run_assert_same(&r[0], i, &r[1], i, 0);
        assert_true(r[1].samples[i][0].n_tokens >= 40);
        assert_int_equal(r[0].samples[i][0].usage.reasoning_tokens,
                         r[1].samples[i][0].usage.reasoning_tokens);
    }
    assert_true(r[1].samples[1][0].usage.thinking_truncated);
    run_close(&r[0]);
    run_close(&r[1]);
}

/* A step ahead, the <think> that a budget of 0 must close is not known yet. */
static void no_thinking_budget_is_the_same_asynchronously(void **state)
{
    (void)state;
    enum { OPEN = 2046, CLOSE = 2047 };
    run r[2];
    for (uint32_t async = 0; async < 2; async++) {
        cn_message m;
        run_open(&r[async], (const char *[]){"async-scheduling", async ? "on" : "off", NULL});
        cn_request_params p = run_params(&r[async], prompts[0], &m, 12);
        p.sampling.thinking_token_budget = 0;
        run_submit(&r[async], &p);
        run_finish(&r[async]);
    }
    run_assert_same(&r[0], 0, &r[1], 0, 0);
    assert_int_equal(r[1].samples[0][0].tokens[0], OPEN);
    assert_int_equal(r[1].samples[0][0].tokens[1], CLOSE);
    run_close(&r[0]);
    run_close(&r[1]);
}

static void preemption_changes_nothing(void **state)
{
    (void)state;
    const char *const small[] = {"num-gpu-blocks-override", "40", "block-size", "16",
                                 "max-model-len", "640", NULL};
    run *got = run_all(small, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same(reference, i, got, i, 0);
    assert_true(got->stats.preemptions > 0);
    assert_true(got->stats.recomputed_tokens > 0);
    run_free(got);
}

/* A device on which prefill gives other bits than decoding, like a GPU. */
static cn_status (*true_prefill)(cn_stream *s, const cn_attn_args *a);

static cn_status other_prefill(cn_stream *s, const cn_attn_args *a)
{
    CN_TRY(true_prefill(s, a));
    const cn_batch_view *b = a->batch;
    const size_t width = (size_t)a->n_heads * a->layout.head_dim;
    float *out = a->out;
    for (size_t i = b->n_decode * width; i < b->n_tokens * width; i++) out[i] *= 1.05f;
    return CN_OK;
}

static void use_other_prefill(run *r)
{
    cn_backend *be = r->engine->backend;
    if (be->attn_prefill != other_prefill) true_prefill = be->attn_prefill;
    be->attn_prefill = other_prefill;
}

static run *run_on_other_device(bool batch_invariant, bool small)
{
    const char *options[] = {"batch-invariant",         batch_invariant ? "true" : "false",
                             "block-size",              "16",
                             "max-model-len",           "640",
                             "num-gpu-blocks-override", small ? "40" : "400",
                             "enable-prefix-caching",   "false",
                             NULL};
    run *r = run_new(options, NULL);
    use_other_prefill(r);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
        p.sampling.logprobs = 1;
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

static void batch_invariance_holds_after_a_preemption(void **state)
{
    (void)state;
    run *undisturbed = run_on_other_device(true, false);
    run *preempted = run_on_other_device(true, true), *in_chunks = run_on_other_device(false, true);
    assert_int_equal(undisturbed->stats.preemptions, 0);
    assert_true(preempted->stats.recomputed_tokens > 0 && in_chunks->stats.recomputed_tokens > 0);
    uint32_t n_other = 0;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        run_assert_same(undisturbed, i, preempted, i, 0);
        const uint64_t hash = undisturbed->samples[i][0].logprob_hash;
        assert_true(hash == preempted->samples[i][0].logprob_hash);
        n_other += hash != in_chunks->samples[i][0].logprob_hash;
    }
    assert_true(n_other > 0); /* prefill does give other bits */
    run_free(undisturbed);
    run_free(preempted);
    run_free(in_chunks);
}

/* Returns the sample of a second turn: a prompt of 40 tokens, its answer, and five more tokens. */
static run_sample second_turn(bool cache)
{
    enum { FIRST = 40, SAID = 40, MORE = 5 };
    static run r;
    run_open(&r, (const char *[]){"batch-invariant", "true", "block-size", "16",
                                  "enable-prefix-caching", cache ? "true" : "false", NULL});
    use_other_prefill(&r);
    uint32_t tokens[FIRST + SAID + MORE];
    for (uint32_t i = 0; i < FIRST + SAID + MORE; i++) tokens[i] = 100 + i * 37 % 1500;
    for (uint32_t turn = 0; turn < 2; turn++) {
        cn_message m;
        cn_request_params p = run_params(&r, "", &m, SAID);
        p.messages = NULL;
        p.n_messages = 0;
        p.tokens = tokens;
        p.n_tokens = turn ? FIRST + SAID + MORE : FIRST;
        p.sampling.ignore_eos = true;
        p.sampling.logprobs = 1;
        run_submit(&r, &p);
        run_finish(&r);
        if (turn == 0) memcpy(tokens + FIRST, r.samples[0][0].tokens, SAID * sizeof *tokens);
    }
    const run_sample second = r.samples[1][0];
    run_close(&r);
    return second;
}

static void batch_invariance_holds_for_a_second_turn(void **state)
{
    (void)state;
    const run_sample cold = second_turn(false), warm = second_turn(true);
    assert_int_equal(cold.usage.cached_tokens, 0);
    assert_int_equal(warm.usage.cached_tokens, 32); /* prompt blocks only */
    assert_true(cold.logprob_hash == warm.logprob_hash);
}

static void prefix_cache_changes_nothing_and_hits(void **state)
{
    (void)state;
    run *cold = run_all((const char *[]){"enable-prefix-caching", "false", NULL}, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same(reference, i, cold, i, 0);
    assert_int_equal(cold->stats.cached_tokens, 0);
    run warm;
    run_open(&warm, (const char *[]){"block-size", "16", NULL});
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            cn_message m;
            cn_request_params p = run_params(&warm, prompts[i], &m, MAX_TOKENS);
            run_submit(&warm, &p);
        }
        run_finish(&warm);
    }
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        run_assert_same(cold, i, &warm, i, 0);
        run_assert_same(cold, i, &warm, N_PROMPTS + i, 0);
        assert_true(warm.samples[N_PROMPTS + i][0].usage.cached_tokens >= 16);
    }
    run_close(&warm);
    run_free(cold);
}

static uint32_t cached_tokens_of(run *r, uint32_t owner)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[0], &m, 4);
    p.owner = owner;
    const uint32_t i = run_submit(r, &p);
    run_finish(r);
    return r->samples[i][0].usage.cached_tokens;
}

static void owners_do_not_share_prefixes(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        run r;
        run_open(&r, (const char *[]){"block-size", "16", "share-prefix-cache",
                                      shared ? "true" : "false", NULL});
        assert_int_equal(cached_tokens_of(&r, 1), 0);
        assert_true(cached_tokens_of(&r, 1) >= 16);
        assert_int_equal(cached_tokens_of(&r, 2) >= 16, shared);
        assert_int_equal(cached_tokens_of(&r, 0) >= 16, shared);
        assert_true(cached_tokens_of(&r, 2) >= 16);
        run_close(&r);
    }
}

static void a_seed_gives_the_same_tokens_in_any_batch(void **state)
{
    (void)state;
    const uint64_t seed = 11;
    run *a = run_all(NULL, &seed), *b = run_all((const char *[]){"max-num-seqs", "3", NULL}, &seed);
    for (uint32_t i = 0; i < N_PROMPTS; i++) run_assert_same(a, i, b, i, 0);
    run_free(a);
    run_free(b);
}

/* n samples of one prompt: the first equals the request with one sample, the others differ, and the
 * prompt was computed once. */
static void samples_share_their_prompt(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"block-size", "16", NULL});
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, MAX_TOKENS);
    p.sampling.temperature = 4.0f;
    p.sampling.has_seed = true;
    p.sampling.seed = 5;
    p.sampling.n = 4;
    uint32_t many = run_submit(&r, &p);
    run_finish(&r);
    p.sampling.n = 1;
    uint32_t one = run_submit(&r, &p);
    run_finish(&r);
    run_assert_same(&r, many, &r, one, 0);
    const run_sample *s = r.samples[many];
    assert_true(s[1].n_tokens > 0 && s[3].n_tokens > 0);
    assert_true(s[0].n_tokens != s[1].n_tokens ||
                memcmp(s[0].tokens, s[1].tokens, s[0].n_tokens * sizeof *s[0].tokens) != 0);
    run_close(&r);
}

/* Also where samples cannot run together, so that each computes the prompt, or finds it cached. */
static void the_prompt_of_samples_is_counted_once(void **state)
{
    (void)state;
    static const char *const caching[] = {"false", "true"};
    for (int i = 0; i < 2; i++) {
        run r;
        run_open(&r, (const char *[]){"block-size", "16", "max-num-seqs", "1",
                                      "enable-prefix-caching", caching[i], NULL});
        cn_message m;
        cn_request_params p = run_params(&r, prompts[0], &m, 8);
        p.sampling.n = 3;
        run_submit(&r, &p);
        run_finish(&r);
        const cn_usage *usage = &r.samples[0][0].usage;
        assert_int_equal(r.stats.prompt_tokens, usage->prompt_tokens);
        assert_int_equal(r.stats.cached_tokens, 0);
        assert_int_equal(r.stats.prefix_queries, i ? usage->prompt_tokens : 0);
        run_close(&r);
    }
}

static void a_cancel_frees_everything(void **state)
{
    (void)state;
    run r;
    run_open(&r, NULL);
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, 0);
    for (uint32_t i = 0; i < 3; i++) run_submit(&r, &p);
    bool idle;
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(cn_engine_step(r.engine, &idle), CN_OK);
    cn_engine_cancel(r.engine, r.ids[1]);
    assert_int_equal(cn_engine_step(r.engine, &idle), CN_OK);
    assert_int_equal(r.samples[1][0].finish, CN_FINISH_CANCELLED);
    cn_engine_cancel(r.engine, r.ids[0]);
    cn_engine_cancel(r.engine, r.ids[2]);
    cn_engine_cancel(r.engine, 999);
    run_finish(&r);
    run_close(&r);
}

/* A callback that calls the engine. At the first token of a request it submits another one, up to
 * `left` more. It also cancels the request before, which may have ended, or its own. */
typedef struct chain {
    cn_engine *engine;
    cn_request_params params;
    uint64_t previous;
    uint32_t left, n_submitted, n_last, n_ends, n_cancelled;
} chain;

static void act(void *user, const cn_event *ev)
{
    chain *c = user;
    c->n_last += ev->last;
    c->n_ends += ev->finish != CN_FINISH_NONE;
    c->n_cancelled += ev->finish == CN_FINISH_CANCELLED;
    if (ev->sample != 0 || c->left == 0) return;
    c->left--;
    cn_engine_cancel(c->engine, c->left % 3 ? c->previous : ev->request);
    c->previous = ev->request;
    c->n_submitted++;
    assert_int_equal(cn_engine_submit(c->engine, &c->params, act, c, NULL), CN_OK);
}

static void callbacks_may_submit_and_cancel(void **state)
{
    (void)state;
    for (uint32_t async = 0; async < 2; async++) {
        run r;
        run_open(&r, (const char *[]){"async-scheduling", async ? "on" : "off", "max-num-seqs", "7",
                                      "block-size", "16", NULL});
        cn_message m;
        chain c = {.engine = r.engine, .params = run_params(&r, prompts[0], &m, 5), .left = 40};
        c.params.sampling.n = 3;
        assert_int_equal(cn_engine_submit(r.engine, &c.params, act, &c, NULL), CN_OK);
        run_finish(&r);
        assert_int_equal(c.n_submitted, 40);
        assert_int_equal(c.n_last, 41);
        assert_int_equal(c.n_ends, 3 * 41);
        assert_true(c.n_cancelled > 0 && c.n_cancelled < c.n_ends);
        run_close(&r);
    }
}

static void a_full_queue_answers_busy_and_keeps_nothing(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"max-queue", "2", "max-num-seqs", "1", NULL});
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, 2);
    run_submit(&r, &p);
    run_submit(&r, &p);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, NULL), CN_ERR_BUSY);
        assert_non_null(strstr(cn_last_error(), "--max-queue 2"));
    }
    run_finish(&r);
    run_submit(&r, &p);
    run_finish(&r);
    run_close(&r);
}

static void ignore(void *user, const cn_event *ev) { (void)user, (void)ev; }

/* A request that no queue state has room for is invalid, not busy. */
static void more_prompts_than_the_queue_holds_are_refused(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"max-queue", "4", NULL});
    cn_message m;
    uint64_t first;
    cn_request_params p[3];
    for (int i = 0; i < 3; i++) p[i] = run_params(&r, prompts[0], &m, 2);
    p[1].sampling.n = 3;
    assert_int_equal(cn_engine_submit_all(r.engine, p, 3, ignore, NULL, &first), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "3 prompts with 5 samples exceed the queue of 4"));
    assert_int_equal(cn_engine_submit_all(r.engine, p, 2, ignore, NULL, &first), CN_OK);
    assert_int_equal(cn_engine_submit_all(r.engine, p, 2, ignore, NULL, &first), CN_ERR_BUSY);
    run_finish(&r);
    run_close(&r);
}

static cn_status submit_n(run *r, uint32_t n)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[0], &m, 2);
    p.sampling.n = n;
    return cn_engine_submit(r->engine, &p, ignore, NULL, NULL);
}

static void limits_count_samples(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"max-queue", "8", "max-n", "9", NULL});
    assert_int_equal(submit_n(&r, 10), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "at most 9 samples (--max-n), got 10"));
    assert_int_equal(submit_n(&r, 9), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--max-queue"));
    assert_int_equal(submit_n(&r, 5), CN_OK);
    assert_int_equal(submit_n(&r, 4), CN_ERR_BUSY);
    assert_non_null(strstr(cn_last_error(), "4 samples (--max-queue 8)"));
    assert_int_equal(submit_n(&r, 3), CN_OK);
    assert_int_equal(submit_n(&r, 1), CN_ERR_BUSY);
    run_finish(&r);
    assert_int_equal(submit_n(&r, 8), CN_OK);
    run_finish(&r);
    run_close(&r);
    run_open(&r, NULL);
    assert_int_equal(submit_n(&r, 129), CN_ERR_ARG);
    assert_int_equal(submit_n(&r, 128), CN_OK);
    run_finish(&r);
    run_close(&r);
}

static uint64_t used_bytes(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

/* A waiting request has a copy of its stop strings. Its samples have no buffers before they run. */
static void a_waiting_request_takes_little_memory(void **state)
{
    (void)state;
    enum { N = 128, N_STOPS = 64 };
    static char stop[1025];
    const char *stops[N_STOPS];
    memset(stop, 's', sizeof stop - 1);
    for (int i = 0; i < N_STOPS; i++) stops[i] = stop;
    run r;
    run_open(&r, NULL);
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, 2);
    p.sampling.n = N;
    p.sampling.stop = stops;
    p.sampling.n_stop = N_STOPS;
    p.sampling.repetition_max_pattern_size = 1024;
    p.sampling.repetition_min_count = 4;
    const uint64_t allocs = cn_alloc_count();
    const uint64_t before = used_bytes();
    assert_int_equal(cn_engine_submit(r.engine, &p, ignore, NULL, NULL), CN_OK);
    assert_true(cn_alloc_count() - allocs < 2 * N + 2 * N_STOPS);
    assert_true(used_bytes() - before < 1 << 20);
    run_finish(&r);
    run_close(&r);
}

/* The samples of a waiting request share its prompt, and have no room for their output. */
static void waiting_samples_share_the_prompt(void **state)
{
    (void)state;
    enum { N = 128, N_PROMPT = 3000 };
    static uint32_t prompt[N_PROMPT];
    uint64_t id;
    run r;
    run_open(&r, NULL);
    cn_request_params p = {.tokens = prompt, .n_tokens = N_PROMPT, .klass = CN_CLASS_INTERACTIVE};
    cn_engine_default_sampling(r.engine, &p.sampling);
    cn_engine_default_kv(r.engine, &p.kv);
    p.sampling.n = N;
    const uint64_t before = used_bytes();
    assert_int_equal(cn_engine_submit(r.engine, &p, ignore, NULL, &id), CN_OK);
    assert_true(used_bytes() - before < (1 << 18) + N_PROMPT * sizeof *prompt);
    cn_engine_cancel(r.engine, id);
    run_finish(&r);
    assert_true(used_bytes() - before < 1 << 16);
    run_close(&r);
}

static void steps_do_not_allocate(void **state)
{
    (void)state;
    assert_true(reference->stats.steps >= MAX_TOKENS);
    assert_int_equal(reference->step_allocs, 0);
}

/* Opens a directory with the bundled config.json, but this context. */
static void open_config_dir(scratch_dir *dir, uint32_t max_position)
{
    json_t *config = NULL;
    scratch_dir_open(dir);
    assert_int_equal(cn_json_load_file(&config, "examples/tiny-reasoner/config.json", 1 << 16, 8),
                     CN_OK);
    json_object_set_new(config, "max_position_embeddings", json_integer(max_position));
    char *dumped = json_dumps(config, 0);
    scratch_dir_put(dir, "config.json", dumped, strlen(dumped));
    free(dumped);
    json_decref(config);
}

/* The max_new_tokens of a checkpoint limits requests that set no max_tokens. It refuses none. */
static void the_checkpoint_limits_the_output(void **state)
{
    (void)state;
    enum { MOST = 20, CONTEXT = 32 };
    static const char generation[] = "{\"do_sample\": false, \"max_new_tokens\": 20}";
    static const struct {
        uint32_t n_prompt, max_tokens, min_tokens, expected;
    } cases[] = {{4, 0, 0, MOST}, {24, 0, 0, CONTEXT - 24}, {4, 25, 0, 25}, {4, 0, 22, 22}};
    static const uint32_t prompt[CONTEXT] = {0};
    scratch_dir dir;
    run r;
    open_config_dir(&dir, CONTEXT);
    scratch_dir_put(&dir, "generation_config.json", generation, strlen(generation));
    run_open(&r, (const char *[]){"model", dir.path, "load-format", "dummy",
                                  "kv-cache-memory-bytes", "16M", NULL});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_request_params p = {.tokens = prompt, .n_tokens = cases[i].n_prompt};
        cn_engine_default_sampling(r.engine, &p.sampling);
        cn_engine_default_kv(r.engine, &p.kv);
        p.sampling.ignore_eos = true;
        p.sampling.max_tokens = cases[i].max_tokens;
        p.sampling.min_tokens = cases[i].min_tokens;
        run_submit(&r, &p);
    }
    run_finish(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(r.samples[i][0].n_tokens, cases[i].expected);
    run_close(&r);
    scratch_dir_close(&dir);
}

/* All logits are NaN. What the next step, which is in flight, samples is dropped. */
static void a_request_without_finite_logits_fails(void **state)
{
    (void)state;
    enum { REQUESTS = 4 };
    static const uint32_t prompt[5] = {3, 1, 4, 1, 5};
    scratch_dir dir;
    overflow_model_open(&dir);
    for (int async = 0; async < 2; async++) {
        run r;
        run_open(&r, (const char *[]){"model", dir.path, "async-scheduling", async ? "on" : "off",
                                      "kv-cache-memory-bytes", "16M", NULL});
        for (uint32_t i = 0; i < REQUESTS; i++) {
            cn_request_params p = {.tokens = prompt, .n_tokens = 5};
            cn_engine_default_sampling(r.engine, &p.sampling);
            cn_engine_default_kv(r.engine, &p.kv);
            p.sampling.max_tokens = 16;
            p.sampling.temperature = i % 2 ? 1.0f : 0.0f;
            p.sampling.presence_penalty = i / 2 ? 1.0f : 0.0f;
            p.sampling.logprobs = i / 2 ? 3 : -1;
            run_submit(&r, &p);
        }
        run_finish(&r);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            assert_int_equal(r.samples[i][0].finish, CN_FINISH_ERROR);
            assert_int_equal(r.samples[i][0].n_tokens, 0);
            assert_int_equal(r.samples[i][0].usage.completion_tokens, 0);
        }
        assert_int_equal(r.stats.generation_tokens, 0);
        run_close(&r);
    }
    scratch_dir_close(&dir);
}

/* A checkpoint that announces an absurd context loads as fast as another. */
static void a_long_context_loads_fast(void **state)
{
    (void)state;
    scratch_dir dir;
    open_config_dir(&dir, 16777216);
    cn_config *c = cn_config_create();
    assert_int_equal(cn_config_set(c, "model", dir.path), CN_OK);
    assert_int_equal(cn_config_set(c, "load-format", "dummy"), CN_OK);
    assert_int_equal(cn_config_set(c, "kv-cache-memory-bytes", "64M"), CN_OK);
    assert_int_equal(cn_config_set(c, "threads", "1"), CN_OK);
    const clock_t began = clock();
    cn_engine *e;
    if (cn_engine_create(&e, c) != CN_OK) fail_msg("%s", cn_last_error());
    assert_true((double)(clock() - began) / CLOCKS_PER_SEC < 2);
    assert_int_equal(cn_engine_max_model_len(e), 16777216);
    cn_engine_free(e);
    cn_config_free(c);
    scratch_dir_close(&dir);
}

static void faulty_requests_are_refused_with_numbers(void **state)
{
    (void)state;
    run r;
    run_open(&r, (const char *[]){"max-model-len", "128", NULL});
    cn_message m;
    cn_request_params p = run_params(&r, prompts[0], &m, 4000);
    uint64_t id;
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, &id), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "4000"));
    assert_non_null(strstr(cn_last_error(), "128"));
    p.sampling.max_tokens = 8;
    p.text = "both";
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, &id), CN_ERR_ARG);
    const uint32_t bad_token = 2048;
    p = (cn_request_params){.tokens = &bad_token, .n_tokens = 1, .sampling = p.sampling};
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, &id), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "2048"));
    p = run_params(&r, prompts[0], &m, 8);
    p.priority = 5;
    assert_int_equal(cn_engine_submit(r.engine, &p, NULL, NULL, &id), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "priority: expected 0"));
    assert_non_null(strstr(cn_last_error(), "got 5"));
    run_finish(&r);
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_output_ends_with_the_right_answer),
        cmocka_unit_test(one_at_a_time_equals_together),
        cmocka_unit_test(chunked_prefill_equals_whole),
        cmocka_unit_test(block_size_changes_nothing),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(asynchronous_scheduling_changes_nothing),
        cmocka_unit_test(asynchronous_sampling_rules_are_the_same),
        cmocka_unit_test(no_thinking_budget_is_the_same_asynchronously),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(batch_invariance_holds_after_a_preemption),
        cmocka_unit_test(batch_invariance_holds_for_a_second_turn),
        cmocka_unit_test(prefix_cache_changes_nothing_and_hits),
        cmocka_unit_test(owners_do_not_share_prefixes),
        cmocka_unit_test(a_seed_gives_the_same_tokens_in_any_batch),
        cmocka_unit_test(samples_share_their_prompt),
        cmocka_unit_test(the_prompt_of_samples_is_counted_once),
        cmocka_unit_test(a_cancel_frees_everything),
        cmocka_unit_test(callbacks_may_submit_and_cancel),
        cmocka_unit_test(a_full_queue_answers_busy_and_keeps_nothing),
        cmocka_unit_test(more_prompts_than_the_queue_holds_are_refused),
        cmocka_unit_test(limits_count_samples),
        cmocka_unit_test(a_waiting_request_takes_little_memory),
        cmocka_unit_test(waiting_samples_share_the_prompt),
        cmocka_unit_test(steps_do_not_allocate),
        cmocka_unit_test(the_checkpoint_limits_the_output),
        cmocka_unit_test(a_request_without_finite_logits_fails),
        cmocka_unit_test(a_long_context_loads_fast),
        cmocka_unit_test(faulty_requests_are_refused_with_numbers),
    };
    return cmocka_run_group_tests(tests, run_reference, close_reference);
}
