/* test_sched_relax.c - tail relaxation: caps grow into unreserved blocks while no request waits,
 * and shrink at the next event after one does. On an engine with memory for all requests, a
 * compressed request then gives the same text as full KV. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/lib/run_engine.h"
#include "tests/lib/sched_rig.h"

/* Budget 8 gives caps of 3 blocks, and the first event is due at 12 slots. */
static rig make_rig(uint32_t n_blocks, bool on)
{
    cn_sched_opts o = rig_options();
    o.n_blocks = n_blocks;
    o.tail_relaxation = on;
    return rig_make(o);
}

static void without_relaxation_the_cap_holds(void **state)
{
    (void)state;
    rig r = make_rig(32, false);
    cn_seq *q = rig_add(&r, 1, 4, 60, rig_zip(8));
    while (q->state != CN_SEQ_FINISHED) {
        rig_step(&r);
        assert_true(q->n_blocks <= 3);
    }
    assert_true(q->usage_kv.compressions > 5);
    assert_int_equal(rig_stats(&r).relaxed_blocks, 0);
    rig_done(&r);
}

static void requests_keep_all_tokens_when_memory_suffices(void **state)
{
    (void)state;
    rig r = make_rig(32, true);
    cn_seq *z = rig_add(&r, 1, 4, 60, rig_zip(8)), *v = rig_add(&r, 50, 18, 40, rig_window(8));
    while (z->state != CN_SEQ_FINISHED || v->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(z->usage_kv.compressions + v->usage_kv.compressions, 0);
    assert_int_equal(z->usage_kv.peak_tokens, 63);
    assert_int_equal(v->usage_kv.peak_tokens, 57);
    /* z grows from 3 blocks to 16, v from the 5 of its prompt to 15. */
    assert_int_equal(rig_stats(&r).relaxed_blocks, 13 + 10);
    assert_int_equal(rig_stats(&r).blocks_used, 0);
    rig_done(&r);
}

static void the_pool_limits_the_growth(void **state)
{
    (void)state;
    rig r = make_rig(8, true);
    cn_seq *q = rig_add(&r, 1, 4, 80, rig_zip(8));
    uint32_t most = 0;
    while (q->state != CN_SEQ_FINISHED) {
        rig_step(&r);
        most = cn_max_u32(most, q->n_blocks);
    }
    assert_int_equal(most, 8);
    assert_true(q->usage_kv.compressions > 0);
    rig_done(&r);
}

/* Blocks that an uncapped request may still need are not lent. */
static void blocks_for_full_kv_are_not_lent(void **state)
{
    (void)state;
    rig r = make_rig(16, true);
    cn_seq *f = rig_add(&r, 1, 4, 37, rig_full()); /* needs up to 10 blocks */
    cn_seq *q = rig_add(&r, 50, 4, 34, rig_zip(8));
    uint32_t most = 0;
    while (f->state != CN_SEQ_FINISHED) {
        rig_step(&r);
        if (q->state != CN_SEQ_FINISHED) most = cn_max_u32(most, q->n_blocks);
    }
    assert_int_equal(most, 6);
    assert_int_equal(f->preemptions, 0);
    while (q->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_done(&r);
}

static void a_waiting_request_gets_the_lent_blocks(void **state)
{
    (void)state;
    rig r = make_rig(12, true);
    cn_seq *old = rig_add(&r, 1, 4, 90, rig_zip(8));
    rig_steps(&r, 43);
    assert_true(old->n_blocks >= 11);
    cn_seq *late = rig_add(&r, 70, 9, 40, rig_zip(8)); /* its prompt does not fit now */
    rig_step(&r);
    assert_int_equal(late->state, CN_SEQ_WAITING);
    uint32_t relaxed = (uint32_t)rig_stats(&r).relaxed_blocks, steps = 0;
    for (; late->state == CN_SEQ_WAITING; steps++) rig_step(&r);
    assert_true(steps <= B + 1);
    assert_true(old->n_blocks <= 3);
    assert_int_equal(old->usage_kv.compressions, 1);
    assert_true(rig_stats(&r).relaxed_blocks == relaxed || late->state != CN_SEQ_WAITING);
    assert_int_equal(rig_stats(&r).preemptions, 0);
    while (late->state != CN_SEQ_FINISHED || old->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_done(&r);
}

/* ---- on an engine ---- */

enum { N_PROMPTS = 4 };
static const char *const options[] = {"block-size", "16", "kv-policies", "full,zip", "kv-budget",
                                      "64", "kv-window", "16", "tail-relaxation", "true", NULL};

/* The options of `more` follow `options`. */
static run *run_policy(cn_kv_policy policy, const char *const *more)
{
    static const char *prompts[N_PROMPTS];
    static bool loaded;
    if (!loaded) run_load_prompts("notes", prompts, NULL, N_PROMPTS);
    loaded = true;
    run *r = run_new(options, more);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[i], &m, 120);
        p.kv.policy = policy;
        run_submit(r, &p);
    }
    run_finish(r);
    return r;
}

static void with_memory_for_all_the_text_equals_full_kv(void **state)
{
    (void)state;
    run *full = run_policy(CN_KV_FULL, NULL), *zip = run_policy(CN_KV_ZIP, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        run_assert_same(full, i, zip, i, 0);
        const cn_usage *u = &zip->samples[i][0].usage;
        assert_int_equal(u->kv.compressions, 0);
        assert_int_equal(u->kv.peak_tokens, u->prompt_tokens + u->completion_tokens - 1);
    }
    run_free(zip);
    /* Four caps of 5 blocks, and 4 blocks to lend. */
    zip = run_policy(CN_KV_ZIP, (const char *[]){"num-gpu-blocks-override", "24", "max-model-len",
                                                 "384", NULL});
    assert_true(zip->stats.compressions > 0);
    assert_int_equal(zip->stats.preemptions, 0);
    run_free(zip);
    run_free(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_relaxation_the_cap_holds),
        cmocka_unit_test(requests_keep_all_tokens_when_memory_suffices),
        cmocka_unit_test(the_pool_limits_the_growth),
        cmocka_unit_test(blocks_for_full_kv_are_not_lent),
        cmocka_unit_test(a_waiting_request_gets_the_lent_blocks),
        cmocka_unit_test(with_memory_for_all_the_text_equals_full_kv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
