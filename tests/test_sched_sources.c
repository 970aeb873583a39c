/* test_sched_sources.c - what a first event leaves in the prefix cache: which blocks of the prompt
 * are sources, where their targets come from, and who waits while blocks are lent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/sched_state.h"
#include "tests/lib/sched_rig.h"

/* Adds a request with the first n_common tokens of every other one and its own after them. */
static cn_seq *add_common(rig *r, uint32_t n_common, uint32_t n_prompt, uint32_t n_out,
                          cn_kv_params kv)
{
    uint32_t prompt[1024];
    cn_seq *q = NULL;
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = i + (i < n_common ? 1 : 5000 + n_common);
    const cn_group_params p = {.prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_output = n_out,
                               .n = 1,
                               .klass = CN_CLASS_BATCH,
                               .kv = kv};
    assert_int_equal(cn_scheduler_add(r->s, &p, NULL, &q), CN_OK);
    return q;
}

static void run_to_end(rig *r, const cn_seq *q)
{
    for (int i = 0; q->state != CN_SEQ_FINISHED; i++) {
        assert_true(i < 1000);
        rig_step(r);
    }
}

/* Tokens of the common beginning that a request with full KV finds in the cache. */
static uint32_t count_cached(rig *r, uint32_t n_prompt)
{
    cn_seq *q = add_common(r, 20, n_prompt, 1, rig_full());
    run_to_end(r, q);
    return q->n_cached_tokens;
}

/* Steps until an event begins, which stays in flight. */
static cn_sched_event *step_to_event(rig *r)
{
    r->hold_events = true;
    for (int i = 0; i < 100; i++) {
        rig_step(r);
        if (r->begin.n_events > 0) return r->begin.events[0];
    }
    fail_msg("no event began");
    return NULL;
}

static cn_sched_opts options_of(uint32_t n_blocks)
{
    cn_sched_opts o = rig_options();
    o.n_blocks = n_blocks;
    return o;
}

/* One system prompt of 600 tokens, and 8 tokens of each request. */
static void requests_find_the_prompt_of_a_compressed_one(void **state)
{
    (void)state;
    cn_kv_params kinds[] = {rig_full(), rig_zip(128), rig_window(128)};
    for (int k = 0; k < 3; k++) {
        cn_sched_opts o = options_of(64);
        o.block_tokens = 64;
        o.window_tokens = kinds[k].window_tokens = 16;
        o.max_batched_tokens = o.max_model_len = 1024;
        rig r = rig_make(o);
        for (int i = 0; i < 4; i++) {
            cn_seq *q = add_common(&r, 600, 608, 150, kinds[k]);
            run_to_end(&r, q);
            assert_int_equal(q->n_cached_tokens, i == 0 ? 0 : 576);
            assert_int_equal(q->usage_kv.compressions, kinds[k].policy == CN_KV_FULL ? 0 : 2);
        }
        rig_done(&r);
    }
}

/* A prompt of five blocks. The window of 2 begins in the last, so four are sources. */
static void sources_are_shared_while_the_event_runs(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *z = add_common(&r, 20, 20, 40, rig_zip(8));
    cn_sched_event *e = step_to_event(&r);
    const cn_pool *pool = r.s->device.blocks;
    uint32_t table[5];
    memcpy(table, z->table, sizeof table);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(cn_pool_is_cached(pool, table[i]), i < 4);
        assert_int_equal(cn_pool_is_pinned(pool, table[i]), i == 4);
        for (uint32_t k = 0; k < e->req.n_target; k++)
            assert_int_not_equal(e->req.target[k], table[i]);
    }
    cn_seq *full = add_common(&r, 20, 20, 30, rig_full());
    cn_seq *other = add_common(&r, 20, 20, 30, rig_zip(8));
    rig_step(&r);
    assert_int_equal(full->n_cached_tokens, 16);
    assert_int_equal(other->n_cached_tokens, 16);
    assert_memory_equal(full->table, table, 4 * sizeof *table);
    assert_int_equal(cn_pool_refs(pool, table[0]), 3);
    cn_sched_event *second = step_to_event(&r); /* of `other`: its sources are all shared */
    assert_ptr_equal(second->seq, other);
    assert_int_equal(other->sched->n_lent, 0);
    cn_scheduler_event_done(r.s, second);
    rig_step(&r);
    assert_int_equal(cn_pool_refs(pool, table[0]), 2);
    cn_scheduler_event_done(r.s, e);
    r.hold_events = false;
    rig_step(&r);
    assert_int_equal(cn_pool_refs(pool, table[0]), 1);
    assert_int_equal(z->n_blocks, 3);
    assert_int_equal(z->table[2], table[4]); /* the spare */
    run_to_end(&r, full);
    run_to_end(&r, z);
    run_to_end(&r, other);
    assert_int_equal(count_cached(&r, 21), 20); /* `full` cached the last block too */
    assert_int_equal(rig_stats(&r).blocks_used, 0);
    rig_done(&r);
}

/* The pool has five blocks for the prompt and some more. Two targets are wanted. */
static void without_room_own_blocks_become_targets(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_blocks, n_lent, n_cached;
    } rows[] = {{5, 0, 0}, {6, 1, 4}, {7, 2, 16}, {8, 2, 16}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig r = rig_make(options_of(rows[i].n_blocks));
        cn_seq *z = add_common(&r, 20, 20, 9, rig_zip(8));
        cn_sched_event *e = step_to_event(&r);
        assert_int_equal(z->sched->n_lent, rows[i].n_lent);
        for (uint32_t k = rows[i].n_lent; k < 2; k++)
            assert_int_equal(e->req.target[k], z->table[k]);
        cn_scheduler_event_done(r.s, e);
        r.hold_events = false;
        run_to_end(&r, z);
        assert_int_equal(count_cached(&r, 20), rows[i].n_cached);
        rig_done(&r);
    }
}

/* The only other blocks are two that hold the prompt of x. */
static void cached_blocks_are_reclaimed_if_released_before_the_admission(void **state)
{
    (void)state;
    for (int before = 0; before < 2; before++) {
        rig r = rig_make(options_of(7));
        cn_seq *x = rig_add(&r, 80, 8, 1, rig_full());
        if (before) rig_step(&r);
        cn_seq *z = add_common(&r, 20, 20, 9, rig_zip(8));
        cn_sched_event *e = step_to_event(&r);
        assert_int_equal(x->state, CN_SEQ_FINISHED);
        assert_int_equal(z->sched->n_lent, before ? 2 : 0);
        assert_int_equal(rig_stats(&r).blocks_cached, before ? 0 : 2);
        cn_scheduler_event_done(r.s, e);
        r.hold_events = false;
        run_to_end(&r, z);
        assert_int_equal(count_cached(&r, 20), before ? 16 : 0);
        rig_done(&r);
    }
}

/* Under policy `window` no query is counted, so a prompt of whole blocks is cached entirely. The
 * commit then makes the block for decoding available. */
static void a_prompt_of_whole_blocks_is_kept_without_a_spare(void **state)
{
    (void)state;
    for (int lag = 0; lag < 2; lag++) {
        rig r = rig_make(rig_options());
        r.lag = lag; /* the first sampled token is not known when the event begins */
        cn_seq *z = add_common(&r, 20, 20, 30, rig_window(8));
        cn_sched_event *e = step_to_event(&r);
        assert_int_equal(z->sched->spare, CN_NO_BLOCK);
        if (lag) cn_seq_append(z, 1000);
        cn_scheduler_event_done(r.s, e);
        r.lag = r.hold_events = false;
        rig_step(&r);
        assert_int_equal(z->n_blocks, 3);
        assert_int_equal(z->usage_kv.freed_bytes, 3 * BLOCK_BYTES);
        assert_int_equal(count_cached(&r, 21), 20);
        rig_done(&r);
    }
}

/* Eight of nine prompt tokens fill blocks. The event comes at slot 12, in the answer. */
static void answers_leave_the_cache(void **state)
{
    (void)state;
    for (int compresses = 0; compresses < 2; compresses++) {
        rig r = rig_make(rig_options());
        cn_seq *z = rig_add(&r, 1, 9, 9, compresses ? rig_zip(8) : rig_full());
        run_to_end(&r, z);
        assert_int_equal(z->usage_kv.compressions > 0, compresses);
        uint32_t turn[18];
        memcpy(turn, z->tokens, sizeof turn);
        const cn_group_params p = {
            .prompt = turn, .n_prompt = 18, .max_output = 1, .n = 1, .kv = rig_full()};
        cn_seq *next;
        assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &next), CN_OK);
        rig_step(&r);
        assert_int_equal(next->n_cached_tokens, compresses ? 8 : 16);
        rig_done(&r);
    }
}

static void a_request_cancelled_during_its_event_leaves_its_prompt(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *z = add_common(&r, 20, 20, 40, rig_zip(8));
    cn_sched_event *e = step_to_event(&r);
    cn_scheduler_finish(r.s, z);
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(z->state, CN_SEQ_FINISHED);
    assert_int_equal(rig_stats(&r).blocks_used, 0);
    assert_int_equal(count_cached(&r, 20), 16);
    rig_done(&r);
}

/* f lacks a block, now (`lacks`) or in the next step. One block is free when the event begins. */
static void blocks_are_lent_and_nothing_is_preempted_for_them(void **state)
{
    (void)state;
    for (int lacks = 0; lacks < 2; lacks++) {
        rig r = rig_make(options_of(10));
        cn_seq *z = add_common(&r, 20, 20, 40, rig_zip(8));
        cn_seq *f = rig_add(&r, 60, lacks ? 12 : 11, 20, rig_full());
        cn_seq *g = rig_add(&r, 90, 2, 20, rig_full());
        rig_step(&r);
        assert_int_equal(g->state, CN_SEQ_RUNNING);
        cn_sched_event *e = step_to_event(&r);
        assert_ptr_equal(e->seq, z);
        assert_int_equal(z->sched->n_lent, lacks ? 0 : 1);
        if (lacks) {
            assert_int_equal(f->n_resident, 13);
        } else {
            assert_int_equal(f->n_resident, 12);
            rig_step(&r); /* f waits in place */
            assert_int_equal(f->n_resident, 12);
            assert_int_equal(g->n_resident, 4);
        }
        assert_int_equal(g->preemptions, 0);
        cn_scheduler_event_done(r.s, e);
        rig_step(&r);
        assert_int_equal(r.s->n_lent, 0);
        assert_int_equal(f->n_resident, lacks ? 14 : 13);
        rig_done(&r);
    }
}

/* z1 has lent blocks when the event of z2, which needs three targets of shared blocks, is due. Two
 * blocks are available. They are not lent to z3, and nothing is preempted. */
static void an_event_that_lacks_blocks_waits_for_lent_ones(void **state)
{
    (void)state;
    rig r = rig_make(options_of(22));
    cn_seq *a = rig_add(&r, 1, 13, 40, rig_full());
    cn_seq *g = rig_add(&r, 90, 2, 40, rig_full());
    rig_step(&r);
    cn_seq *z2 = rig_add(&r, 1, 13, 40, rig_zip(12));
    rig_steps(&r, 2);
    cn_seq *z1 = rig_add(&r, 30, 20, 40, rig_zip(8));
    rig_step(&r);
    cn_seq *z3 = rig_add(&r, 60, 20, 40, rig_zip(8));
    cn_sched_event *e = step_to_event(&r);
    assert_ptr_equal(e->seq, z1);
    assert_int_equal(z1->sched->n_lent, 2);
    rig_step(&r);
    assert_int_equal(z2->state, CN_SEQ_RUNNING);
    assert_int_equal(z3->state, CN_SEQ_COMPRESSING);
    assert_int_equal(z3->sched->n_lent, 0);
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(z2->state, CN_SEQ_COMPRESSING);
    assert_int_equal(a->preemptions + g->preemptions, 0);
    rig_done(&r);
}

/* f is interactive and lacks a block. The compressed c could move to the swap space for it. */
static void nothing_is_swapped_out_while_blocks_are_lent(void **state)
{
    (void)state;
    cn_sched_opts o = options_of(12);
    o.n_swap_blocks = 8;
    o.n_swap_windows = 2;
    rig r = rig_make(o);
    cn_seq *c = rig_add(&r, 60, 12, 40, rig_zip(8));
    rig_step(&r);
    cn_seq *f = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 11, 20, rig_full());
    cn_seq *z = add_common(&r, 20, 20, 40, rig_zip(8));
    rig_step(&r);
    assert_int_equal(c->usage_kv.compressions, 1);
    cn_sched_event *e = step_to_event(&r);
    assert_int_equal(z->sched->n_lent, 1);
    rig_step(&r);
    assert_int_equal(f->n_resident, 12);
    assert_int_equal(c->state, CN_SEQ_RUNNING);
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(f->n_resident, 13);
    assert_int_equal(rig_stats(&r).swap_outs, 0);
    rig_done(&r);
}

/* It waits when the event begins, for a seat. It needs one block, and g may need one. */
static void blocks_of_the_next_interactive_request_are_not_lent(void **state)
{
    (void)state;
    cn_sched_opts o = options_of(9);
    o.max_seqs = 2;
    rig r = rig_make(o);
    cn_seq *z = add_common(&r, 20, 20, 40, rig_zip(8));
    rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 2, 8, rig_full());
    rig_step(&r);
    rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 50, 4, 4, rig_full());
    step_to_event(&r);
    assert_int_equal(z->sched->n_lent, 1);
    rig_done(&r);
}

static void an_interactive_request_waits_for_lent_blocks(void **state)
{
    (void)state;
    rig r = rig_make(options_of(9));
    add_common(&r, 20, 20, 40, rig_zip(8));
    cn_seq *g = rig_add(&r, 90, 2, 8, rig_full());
    cn_sched_event *e = step_to_event(&r);
    assert_int_equal(r.s->n_lent, 2);
    cn_seq *i = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 50, 4, 4, rig_full());
    rig_step(&r); /* one block is available, and g may need it */
    assert_int_equal(i->state, CN_SEQ_WAITING);
    assert_int_equal(g->preemptions, 0);
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(i->state, CN_SEQ_RUNNING);
    assert_int_equal(g->preemptions, 0);
    rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_find_the_prompt_of_a_compressed_one),
        cmocka_unit_test(sources_are_shared_while_the_event_runs),
        cmocka_unit_test(without_room_own_blocks_become_targets),
        cmocka_unit_test(cached_blocks_are_reclaimed_if_released_before_the_admission),
        cmocka_unit_test(a_prompt_of_whole_blocks_is_kept_without_a_spare),
        cmocka_unit_test(answers_leave_the_cache),
        cmocka_unit_test(a_request_cancelled_during_its_event_leaves_its_prompt),
        cmocka_unit_test(blocks_are_lent_and_nothing_is_preempted_for_them),
        cmocka_unit_test(an_event_that_lacks_blocks_waits_for_lent_ones),
        cmocka_unit_test(nothing_is_swapped_out_while_blocks_are_lent),
        cmocka_unit_test(blocks_of_the_next_interactive_request_are_not_lent),
        cmocka_unit_test(an_interactive_request_waits_for_lent_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
