/* test_engine_swap.c - compressed batch requests move to the swap space and back. Such a request
 * has the same tokens, and the same bits of their log-probabilities, as an undisturbed one. That
 * covers all its state on the device: KV, global scores, windows, counts of penalties, and a token
 * that is not read yet. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/run_engine.h"

enum { N_BATCH = 3, N_CHATS = 3, MAX_TOKENS = 120, CHAT_TOKENS = 20, STEPS_BETWEEN = 20 };
static const char *prompts[N_BATCH + N_CHATS], *const *const chats = prompts + N_BATCH;

#define ZIP                                                                          \
    "block-size", "16", "kv-policies", "full,window,zip", "kv-budget", "64", "kv-window", "16"
/* Three requests at their cap leave two blocks. At most three requests run. */
#define SMALL                                                                                  \
    "num-gpu-blocks-override", "17", "max-model-len", "272", "max-num-seqs", "3", "swap-space", \
        "0.1", "enable-prefix-caching", "false"

/* One request is greedy, one samples, one has penalties. */
static uint32_t add_batch(run *r, uint32_t i, cn_kv_policy policy)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
    p.kv.policy = policy;
    p.sampling.ignore_eos = true;
    p.sampling.logprobs = 3;
    p.sampling.temperature = i == 0 ? 0 : 1;
    p.sampling.has_seed = true;
    p.sampling.seed = 77 + i;
    if (i == 2) p.sampling.frequency_penalty = 0.5f;
    if (i == 2) p.sampling.repetition_penalty = 1.2f;
    return run_submit(r, &p);
}

static uint32_t add_chat(run *r, uint32_t i, cn_kv_policy policy, uint32_t max_tokens)
{
    cn_message m;
    cn_request_params p = run_params(r, chats[i], &m, max_tokens);
    p.klass = CN_CLASS_INTERACTIVE;
    p.kv.policy = policy;
    p.sampling.ignore_eos = true;
    p.sampling.logprobs = 0;
    p.sampling.presence_penalty = 0.3f; /* needs a row of counts too */
    return run_submit(r, &p);
}

/* Runs everything at once, with memory for all requests. */
static run *run_undisturbed(cn_kv_policy policy, cn_kv_policy chat)
{
    run *r = run_new((const char *[]){ZIP, NULL}, NULL);
    for (uint32_t i = 0; i < N_BATCH; i++) add_batch(r, i, policy);
    for (uint32_t i = 0; i < N_CHATS; i++) add_chat(r, i, chat, CHAT_TOKENS);
    run_finish(r);
    return r;
}

/* Starts the batch requests in little memory, and runs until they are compressed. */
static run *run_until_compressed(const char *const *more, cn_kv_policy policy)
{
    run *r = run_new((const char *[]){ZIP, SMALL, NULL}, more);
    for (uint32_t i = 0; i < N_BATCH; i++) add_batch(r, i, policy);
    for (int i = 0; i < 200 && r->stats.compressions < 5; i++) run_steps(r, 1);
    return r;
}

static void assert_moved_and_back(const run *r)
{
    const cn_stats *s = &r->stats;
    assert_true(s->swap_outs > 0);
    assert_int_equal(s->swap_ins, s->swap_outs);
    assert_true(s->swapped_out_blocks > 0 && s->swapped_out_bytes > 0);
    assert_int_equal(s->swapped_in_blocks, s->swapped_out_blocks);
    assert_int_equal(s->swapped_in_bytes, s->swapped_out_bytes);
    assert_int_equal(s->swapped + s->swap_blocks_used, 0);
}

/* Chats arrive one after another while compressed batch requests hold all memory. */
static void check_disturbed(const run *want, cn_kv_policy policy, cn_kv_policy chat,
                            const char *name, const char *value)
{
    run *r = run_until_compressed((const char *[]){name, value, NULL}, policy);
    for (uint32_t i = 0; i < N_CHATS; i++) {
        add_chat(r, i, chat, CHAT_TOKENS);
        run_steps(r, STEPS_BETWEEN);
    }
    run_finish(r);
    assert_moved_and_back(r);
    assert_int_equal(r->stats.preemptions, 0);
    for (uint32_t i = 0; i < N_BATCH + N_CHATS; i++) run_assert_same_bits(want, i, r, i, 0);
    run_free(r);
}

static void a_swapped_request_continues_unchanged(void **state)
{
    (void)state;
    static const cn_kv_policy policies[] = {CN_KV_ZIP, CN_KV_WINDOW};
    for (uint32_t i = 0; i < 2; i++) {
        run *want = run_undisturbed(policies[i], CN_KV_FULL);
        check_disturbed(want, policies[i], CN_KV_FULL, "async-scheduling", "off");
        check_disturbed(want, policies[i], CN_KV_FULL, "async-scheduling", "on");
        check_disturbed(want, policies[i], CN_KV_FULL, "sync-compression", "true");
        run_free(want);
    }
}

/* A chat is admitted at once. A long chat with a cap gets a query slot too. */
static void a_chat_does_not_wait(void **state)
{
    (void)state;
    static const char *const swap[] = {"0.1", "0"};
    for (int without = 0; without < 2; without++) {
        run *r = run_until_compressed((const char *[]){"swap-space", swap[without], NULL},
                                      CN_KV_ZIP);
        const uint32_t chat = add_chat(r, 0, CN_KV_ZIP, 2 * CHAT_TOKENS);
        /* Time for the steps of its prompt, its tokens and its compressions. */
        for (uint32_t i = 0; i < 3 * CHAT_TOKENS && r->n_done == 0; i++) run_steps(r, 1);
        assert_int_equal(r->samples[chat][0].finish == CN_FINISH_NONE, without);
        assert_int_equal(r->stats.swap_outs > 0, !without);
        run_finish(r);
        run_free(r);
    }
}

static void a_step_that_swaps_allocates_nothing(void **state)
{
    (void)state;
    run *r = run_until_compressed(NULL, CN_KV_ZIP);
    add_chat(r, 0, CN_KV_FULL, CHAT_TOKENS);
    run_finish(r);
    assert_moved_and_back(r);
    assert_int_equal(r->step_allocs, 0);
    run_free(r);
}

static void a_cancel_ends_a_swapped_request(void **state)
{
    (void)state;
    run *r = run_until_compressed(NULL, CN_KV_ZIP);
    add_chat(r, 0, CN_KV_FULL, 2 * CHAT_TOKENS);
    run_steps(r, 2);
    assert_true(r->stats.swapped > 0);
    for (uint32_t i = 0; i < N_BATCH; i++) cn_engine_cancel(r->engine, r->ids[i]);
    run_steps(r, 2);
    assert_int_equal(r->stats.swapped + r->stats.swap_blocks_used, 0);
    for (uint32_t i = 0; i < N_BATCH; i++)
        assert_int_equal(r->samples[i][0].finish, CN_FINISH_CANCELLED);
    run_finish(r);
    assert_int_equal(r->samples[N_BATCH][0].finish, CN_FINISH_LENGTH);
    run_free(r);
}

/* An engine can be freed while a request is in its swap space. */
static void an_engine_can_be_freed_with_swapped_requests(void **state)
{
    (void)state;
    run *r = run_until_compressed(NULL, CN_KV_ZIP);
    add_chat(r, 0, CN_KV_FULL, CHAT_TOKENS);
    run_steps(r, 2);
    assert_true(r->stats.swapped > 0);
    run_free(r);
}

static void unusable_swap_space_is_refused(void **state)
{
    (void)state;
    run_assert_start_refused((const char *[]){"swap-space", "1", NULL}, "--kv-policies");
    run_assert_start_refused((const char *[]){ZIP, "swap-space", "0.0001", NULL},
                             "too few for one compressed request");
    run_assert_start_refused((const char *[]){ZIP, "swap-space", "60000", NULL},
                             "of the machine's");
}

static int setup(void **state)
{
    (void)state;
    const uint32_t n = N_BATCH + N_CHATS;
    assert_int_equal(run_load_prompts("ledger", prompts, NULL, n), n);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_swapped_request_continues_unchanged),
        cmocka_unit_test(a_chat_does_not_wait),
        cmocka_unit_test(a_step_that_swaps_allocates_nothing),
        cmocka_unit_test(a_cancel_ends_a_swapped_request),
        cmocka_unit_test(an_engine_can_be_freed_with_swapped_requests),
        cmocka_unit_test(unusable_swap_space_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
