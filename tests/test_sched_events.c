/* test_sched_events.c - the scheduler before, during and after a compression: query slots and
 * reservations, windows, targets, pins, forks of prompts that contain a window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/sched_state.h"
#include "tests/lib/sched_rig.h"

/* Budget 8: N_max is 3 and the first event is at 12 slots. The window is 2. */
static void a_prefix_hit_excludes_the_coming_window(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    rig_add(&r, 1, 12, 20, rig_full());
    rig_step(&r);
    cn_seq *z = rig_add(&r, 1, 12, 20, rig_zip(8));
    cn_seq *v = rig_add(&r, 1, 12, 20, rig_window(8));
    rig_step(&r);
    assert_int_equal(z->n_cached_tokens, 8);
    assert_int_equal(v->n_cached_tokens, 8);
    cn_seq *wide = rig_add(&r, 1, 11, 20, rig_zip(4)); /* event at 12: window 10 and 11 */
    wide->kv.window_tokens = WINDOW;
    rig_step(&r);
    assert_int_equal(wide->n_cached_tokens, 8);
    rig_done(&r);
    cn_sched_opts o = rig_options();
    o.window_tokens = 6;
    r = rig_make(o);
    rig_add(&r, 1, 12, 20, rig_full());
    rig_step(&r);
    cn_kv_params kv = rig_zip(8);
    kv.window_tokens = 6; /* from position 6 on: block 1 must be computed */
    z = rig_add(&r, 1, 12, 20, kv);
    rig_step(&r);
    assert_int_equal(z->n_cached_tokens, 4);
    rig_done(&r);
}

static void after_an_event_decoding_continues_with_the_budget(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *q = rig_add(&r, 1, 18, 60, rig_zip(8)); /* 5 blocks, above the cap of 3 */
    rig_step(&r);
    assert_int_equal(q->query_slot >= 0, 1);
    assert_int_equal(q->n_blocks, 5);
    rig_steps(&r, 2);
    assert_int_equal(q->n_resident, 20); /* full: the next step starts the event */
    rig_step(&r);
    assert_int_equal(r.begin.n_events, 1);
    const cn_compress_req *req = &r.begin.events[0]->req;
    assert_int_equal(req->n_target, 2);
    assert_int_equal(req->position_end, 20);
    assert_true(req->first_event);
    assert_int_equal(req->n_history, 0);
    assert_int_equal(q->usage_kv.compressions, 1);
    assert_int_equal(q->usage_kv.evicted, 12);
    assert_int_equal(q->usage_kv.freed_bytes, 3 * BLOCK_BYTES); /* one is for decoding */
    assert_int_equal(q->n_blocks, 3);
    assert_int_equal(rig_stats(&r).blocks_spared, 3); /* 21 positions would take 6 */
    assert_int_equal(rig_row(&r, q)->first_pos, 20);
    assert_int_equal(rig_row(&r, q)->first_slot, 8);
    rig_steps(&r, 4);
    assert_int_equal(r.begin.n_events, 1);
    assert_false(r.begin.events[0]->req.first_event);
    assert_int_equal(r.begin.events[0]->req.n_history, 8);
    assert_int_equal(q->usage_kv.compressions, 2);
    assert_int_equal(q->usage_kv.evicted, 16);
    while (q->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(q->n_tokens, 78);
    assert_int_equal(q->usage_kv.peak_tokens, 20);
    cn_stats st = rig_stats(&r);
    assert_int_equal(st.compressions, q->usage_kv.compressions);
    assert_int_equal(st.evicted_tokens, q->usage_kv.evicted);
    assert_int_equal(st.freed_bytes, q->usage_kv.freed_bytes);
    assert_int_equal(st.slots_used, 0);
    assert_int_equal(st.blocks_used, 0);
    assert_int_equal(st.blocks_spared, 0);
    rig_done(&r);
}

static void no_event_when_no_token_follows(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *q = rig_add(&r, 1, 9, 4, rig_zip(8)); /* ends at 13 tokens: slot 12 stays unused */
    rig_step(&r);
    assert_int_equal(q->query_slot, -1);
    rig_steps(&r, 3);
    assert_int_equal(q->state, CN_SEQ_FINISHED);
    assert_int_equal(rig_stats(&r).compressions, 0);
    rig_done(&r);
}

static void shared_blocks_are_replaced_not_written(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *a = rig_add(&r, 1, 9, 40, rig_full());
    rig_step(&r);
    cn_seq *z = rig_add(&r, 1, 9, 40, rig_zip(8));
    rig_steps(&r, 4); /* z: 9 .. 12 */
    assert_int_equal(z->n_resident, 12);
    uint32_t shared[2] = {z->table[0], z->table[1]}, own = z->table[2];
    assert_memory_equal(shared, a->table, sizeof shared);
    r.hold_events = true;
    rig_step(&r);
    assert_int_equal(r.begin.n_events, 1);
    const cn_sched_event *e = r.begin.events[0];
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(e->req.target[i], shared[0]);
        assert_int_not_equal(e->req.target[i], shared[1]);
        assert_int_not_equal(e->req.target[i], own);
    }
    assert_int_equal(z->state, CN_SEQ_COMPRESSING);
    assert_null(rig_row(&r, z));
    assert_non_null(rig_row(&r, a)); /* the others continue */
    cn_scheduler_event_done(r.s, r.begin.events[0]);
    rig_step(&r);
    assert_non_null(rig_row(&r, z));
    assert_int_equal(z->table[2], own);
    assert_int_equal(z->usage_kv.freed_bytes, BLOCK_BYTES); /* the other owner keeps two blocks */
    cn_seq *c = rig_add(&r, 1, 9, 4, rig_full());
    rig_step(&r);
    assert_int_equal(c->n_cached_tokens, 8); /* the prefix is still cached */
    rig_done(&r);
}

/* The bytes are those of the request alone, whoever shares its blocks. */
static void freed_bytes_do_not_depend_on_sharing(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        rig r = rig_make(rig_options());
        if (shared) rig_add(&r, 1, 20, 60, rig_full());
        rig_step(&r);
        cn_seq *z = rig_add(&r, 1, 20, 12, rig_zip(8));
        while (z->state != CN_SEQ_FINISHED) rig_step(&r);
        assert_int_equal(z->n_cached_tokens, shared ? 16 : 0);
        assert_int_equal(z->usage_kv.compressions, 3);
        assert_int_equal(z->usage_kv.freed_bytes, 5 * BLOCK_BYTES); /* 3, then 1 and 1 */
        rig_done(&r);
    }
}

static void overwritten_blocks_leave_the_prefix_cache(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 5; /* no block is free for a target */
    rig r = rig_make(o);
    cn_seq *z = rig_add(&r, 1, 20, 40, rig_zip(8));
    rig_step(&r);
    r.hold_events = true;
    rig_step(&r);
    assert_int_equal(r.begin.n_events, 1);
    cn_sched_event *e = r.begin.events[0];
    for (uint32_t i = 0; i < 5; i++)
        assert_false(cn_pool_is_cached(r.s->device.blocks, z->table[i]));
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(z->usage_kv.compressions, 1);
    cn_scheduler_finish(r.s, z);
    cn_seq *b = rig_add(&r, 1, 20, 1, rig_full());
    rig_step(&r);
    assert_int_equal(b->n_cached_tokens, 0);
    rig_done(&r);
}

static void a_request_cancelled_during_an_event_is_freed_at_the_commit(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *z = rig_add(&r, 1, 12, 40, rig_zip(8));
    rig_step(&r);
    r.hold_events = true;
    rig_step(&r);
    cn_sched_event *e = r.begin.events[0];
    cn_scheduler_finish(r.s, z);
    cn_scheduler_finish(r.s, z);
    assert_int_equal(z->state, CN_SEQ_COMPRESSING);
    rig_steps(&r, 3);
    assert_int_equal(rig_stats(&r).blocks_used, 5); /* three, and two targets of prompt blocks */
    assert_int_equal(rig_stats(&r).slots_used, 1);
    cn_scheduler_release(r.s, z); /* the memory is kept until the commit */
    rig_step(&r);
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(rig_stats(&r).blocks_used, 0);
    assert_int_equal(rig_stats(&r).slots_used, 0);
    assert_int_equal(rig_stats(&r).compressions, 0);
    rig_done(&r);
}

static void without_a_slot_a_request_waits_before_its_window(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_query_slots = 1;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 4, 14, rig_zip(8));
    cn_seq *b = rig_add(&r, 50, 4, 40, rig_zip(8));
    while (a->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(b->query_slot, -1);
    assert_int_equal(b->n_computed, 12 - WINDOW);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(rig_stats(&r).blocked, 1);
    rig_step(&r);
    assert_int_equal(b->query_slot, 0);
    assert_int_equal(rig_row(&r, b)->first_pos, 10);
    assert_int_equal(rig_stats(&r).blocked, 0);
    rig_done(&r);
}

static void slots_go_to_the_foremost_request_without_one(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 11;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 4, 20, rig_zip(8));     /* cap 3 */
    cn_seq *b = rig_add(&r, 30, 4, 40, rig_zip(32));   /* cap 9: 12 > 11 */
    cn_seq *c = rig_add(&r, 60, 4, 20, rig_window(4)); /* cap 2 would fit, but b comes first */
    rig_step(&r);
    assert_int_equal(a->query_slot >= 0, 1);
    assert_int_equal(b->query_slot, -1);
    for (int i = 0; i < 10; i++) rig_step(&r);
    assert_int_equal(c->usage_kv.compressions, 0);
    assert_int_equal(c->n_resident, 8); /* `window` needs no queries: waits at its event */
    while (a->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_step(&r);
    assert_int_equal(b->query_slot >= 0, 1);
    rig_steps(&r, 2);
    assert_true(c->usage_kv.compressions > 0);
    assert_int_equal(c->query_slot, -1);
    rig_done(&r);
}

static void constrained_scheduling_admits_only_with_a_slot(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_query_slots = 1;
    o.hybrid = false;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 4, 20, rig_zip(8));
    cn_seq *b = rig_add(&r, 50, 4, 20, rig_zip(8));
    rig_steps(&r, 5);
    assert_int_equal(a->state, CN_SEQ_RUNNING);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    while (a->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(b->query_slot, 0);
    rig_done(&r);
}

/* A preempted zip request has a token after its first event. The event must still come first. */
static void recompute_stops_at_the_event(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *z = rig_add(&r, 1, 12, 40, rig_zip(8));
    rig_step(&r);
    assert_int_equal(z->n_tokens, 13);
    cn_seq *twin = rig_add(&r, 1, 12, 40, rig_window(8));
    rig_step(&r);
    assert_int_equal(z->usage_kv.compressions, 1);
    assert_int_equal(z->n_computed, 13);
    assert_int_equal(twin->n_computed, 12);
    rig_step(&r);
    assert_int_equal(twin->usage_kv.compressions, 1);
    rig_done(&r);
}

static void a_fork_copies_the_window_of_the_prompt(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_query_slots = 2;
    rig r = rig_make(o);
    cn_seq *q[3];
    assert_int_equal(rig_try_add(&r, 1, 12, 20, 3, rig_zip(8), q), CN_OK);
    rig_step(&r);
    assert_int_equal(r.plan.n_forks, 1);
    assert_int_equal(r.plan.fork_copies.n_slots, 1);
    assert_int_equal(r.plan.fork_copies.slots[0].src, (uint32_t)q[0]->query_slot);
    assert_int_equal(r.plan.fork_copies.slots[0].dst, (uint32_t)q[1]->query_slot);
    /* The third sample gets no slot. It is admitted from the queue and uses the prefix cache. */
    assert_int_equal(q[2]->state, CN_SEQ_WAITING);
    assert_int_equal(q[2]->n_tokens, 12);
    rig_step(&r);
    assert_int_equal(q[2]->n_cached_tokens, 8);
    for (int i = 0; i < 3; i++)
        while (q[i]->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(q[2]->n_tokens, 32);
    rig_done(&r);
}

/* Sequences that share every block: preempting one frees no block, but then the others need
 * none. */
static void samples_that_fill_the_pool_do_not_preempt_each_other_endlessly(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 6;
    rig r = rig_make(o);
    cn_seq *q[3];
    assert_int_equal(rig_try_add(&r, 1, 16, 10, 3, rig_window(12), q), CN_OK);
    int n_steps = 0;
    for (int i = 0; i < 3; i++) {
        for (; q[i]->state != CN_SEQ_FINISHED; n_steps++) {
            assert_true(n_steps < 200);
            rig_step(&r);
        }
    }
    rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_hit_excludes_the_coming_window),
        cmocka_unit_test(after_an_event_decoding_continues_with_the_budget),
        cmocka_unit_test(no_event_when_no_token_follows),
        cmocka_unit_test(shared_blocks_are_replaced_not_written),
        cmocka_unit_test(freed_bytes_do_not_depend_on_sharing),
        cmocka_unit_test(overwritten_blocks_leave_the_prefix_cache),
        cmocka_unit_test(a_request_cancelled_during_an_event_is_freed_at_the_commit),
        cmocka_unit_test(without_a_slot_a_request_waits_before_its_window),
        cmocka_unit_test(slots_go_to_the_foremost_request_without_one),
        cmocka_unit_test(constrained_scheduling_admits_only_with_a_slot),
        cmocka_unit_test(recompute_stops_at_the_event),
        cmocka_unit_test(a_fork_copies_the_window_of_the_prompt),
        cmocka_unit_test(samples_that_fill_the_pool_do_not_preempt_each_other_endlessly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
