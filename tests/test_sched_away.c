/* test_sched_away.c - requests whose full KV lies elsewhere: home blocks and slots, what events put
 * there, and the exchange area of their tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/sched_state.h"
#include "tests/lib/sched_rig.h"

enum { N_HOME = 40, N_HOME_SLOTS = 4, MAX_STEPS = 300 };

static cn_sched_opts options(void)
{
    cn_sched_opts o = rig_options();
    o.window_tokens = 5;
    o.select_most = (cn_kv_params){.select_tokens = 16, .select_window = 4, .sink_tokens = 4};
    o.n_home_blocks[CN_HOME_PEER] = N_HOME;
    o.n_home_slots[CN_HOME_PEER] = N_HOME_SLOTS;
    return o;
}

/* Budget 8 and 8 entries in blocks of 4: X is 2, N_max is 5 and the first event is at 20 slots. The
 * ring has 5 rows. */
static cn_kv_params away(void)
{
    cn_kv_params kv = rig_window(8);
    kv.home = CN_HOME_PEER;
    kv.select = CN_SELECT_SPADE;
    kv.select_tokens = 7;
    kv.select_window = 4;
    return kv;
}

static cn_kv_params away_zip(void)
{
    cn_kv_params kv = away();
    kv.policy = CN_KV_ZIP;
    kv.window_tokens = 3;
    kv.alpha = 0.8f;
    kv.redundancy_tau = 0.4f;
    return kv;
}

static uint32_t free_home(const rig *r) { return cn_space_free_blocks(&r->s->home[CN_HOME_PEER]); }

static uint32_t free_home_slots(const rig *r)
{
    return cn_space_free_slots(&r->s->home[CN_HOME_PEER]);
}

static void step_until(rig *r, const cn_seq *q, cn_seq_state state)
{
    for (int i = 0; q->state != state; i++) {
        assert_true(i < MAX_STEPS);
        rig_step(r);
    }
}

/* Steps until the next event has begun and returns it. */
static const cn_sched_event *step_to_event_within(rig *r, int n_steps)
{
    for (int i = 0; i < n_steps; i++) {
        rig_step(r);
        if (r->begin.n_events > 0) return r->begin.events[0];
    }
    fail_msg("no event began");
    return NULL;
}

static const cn_sched_event *step_to_event(rig *r) { return step_to_event_within(r, MAX_STEPS); }

/* ---- admission ---- */

static void admission_takes_the_whole_home(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q = rig_add(&r, 1, 10, 31, away());
    assert_int_equal(q->kv.select_tokens, 8);
    assert_int_equal(q->n_max, 5);
    assert_int_equal(free_home(&r), N_HOME);
    rig_step(&r);
    assert_int_equal(q->n_home_blocks, 11); /* of 41 tokens */
    assert_int_equal(free_home(&r), N_HOME - 11);
    assert_int_equal(free_home_slots(&r), N_HOME_SLOTS - 1);
    assert_int_equal(q->home_len, 0);
    assert_int_equal(q->n_exchange, 0);
    step_until(&r, q, CN_SEQ_FINISHED);
    assert_int_equal(q->n_home_blocks, 0);
    assert_int_equal(free_home(&r), N_HOME);
    assert_int_equal(free_home_slots(&r), N_HOME_SLOTS);
    rig_done(&r);
}

static void a_request_that_ends_before_its_first_event_needs_no_home(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q = rig_add(&r, 1, 10, 11, away()); /* computes 20 positions */
    step_until(&r, q, CN_SEQ_RUNNING);
    assert_int_equal(q->n_home_blocks, 0);
    assert_int_equal(q->query_slot, -1);
    assert_int_equal(free_home(&r), N_HOME);
    step_until(&r, q, CN_SEQ_FINISHED);
    assert_int_equal(q->usage_kv.compressions, 0);
    rig_done(&r);
}

/* Neither device blocks without home blocks, nor the reverse. */
static void both_resources_are_taken_together_or_not_at_all(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *a = rig_add(&r, 1, 10, 60, away()); /* 18 home blocks each */
    cn_seq *b = rig_add(&r, 30, 10, 60, away());
    cn_seq *c = rig_add(&r, 60, 10, 60, away());
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(c->state, CN_SEQ_WAITING); /* 4 home blocks are left */
    assert_int_equal(c->n_blocks, 0);
    assert_int_equal(c->query_slot, -1);
    assert_int_equal(free_home(&r), N_HOME - 36);
    cn_scheduler_finish(r.s, a);
    rig_step(&r);
    assert_int_equal(c->state, CN_SEQ_RUNNING);
    rig_done(&r);

    cn_sched_opts o = options();
    o.n_blocks = 16;
    r = rig_make(o);
    a = rig_add(&r, 1, 48, 5, rig_full());
    b = rig_add(&r, 60, 24, 30, away()); /* 6 device blocks: 4 are left */
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_equal(free_home(&r), N_HOME);
    assert_int_equal(free_home_slots(&r), N_HOME_SLOTS);
    step_until(&r, a, CN_SEQ_FINISHED);
    rig_step(&r);
    assert_int_equal(b->n_home_blocks, 14);
    rig_done(&r);
}

static void home_slots_bound_the_requests_too(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_slots[CN_HOME_PEER] = 1;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 10, 20, away()), *b = rig_add(&r, 30, 10, 20, away());
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    step_until(&r, a, CN_SEQ_FINISHED);
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    rig_done(&r);
}

static void each_home_has_its_own_space(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_blocks[CN_HOME_HOST] = 10;
    o.n_home_slots[CN_HOME_HOST] = 2;
    rig r = rig_make(o);
    cn_kv_params kv = away();
    kv.home = CN_HOME_HOST;
    cn_seq *a = rig_add(&r, 1, 10, 30, kv), *b = rig_add(&r, 60, 10, 60, away());
    rig_step(&r);
    assert_int_equal(a->n_home_blocks, 10);
    assert_int_equal(b->n_home_blocks, 18);
    assert_int_equal(cn_space_free_blocks(&r.s->home[CN_HOME_HOST]), 0);
    assert_int_equal(rig_stats(&r).home_blocks_total, N_HOME + 10);
    assert_int_equal(rig_stats(&r).home_blocks_used, 28);
    assert_int_equal(free_home(&r), N_HOME - 18);
    rig_done(&r);
}

static void a_prefix_hit_leaves_out_the_ring_of_the_first_event(void **state)
{
    (void)state;
    rig r = rig_make(options());
    rig_add(&r, 1, 30, 5, rig_full());
    rig_step(&r);
    cn_seq *q = rig_add(&r, 1, 30, 30, away()); /* event at 32: the ring from 27 on */
    cn_seq *brief = rig_add(&r, 1, 18, 30, away()); /* event at 20: from 15 on */
    rig_step(&r);
    assert_int_equal(q->n_cached_tokens, 24);
    assert_int_equal(brief->n_cached_tokens, 12);
    rig_done(&r);
}

static void without_a_slot_a_request_stops_before_its_ring(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_query_slots = 1;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 10, 60, away()), *b = rig_add(&r, 30, 10, 40, away());
    rig_steps(&r, 20);
    assert_true(a->query_slot >= 0);
    assert_int_equal(b->query_slot, -1);
    assert_int_equal(b->n_computed, 15);
    assert_int_equal(b->n_home_blocks, 13);
    step_until(&r, a, CN_SEQ_FINISHED);
    step_until(&r, b, CN_SEQ_FINISHED);
    assert_int_equal(b->usage_kv.compressions, 8);
    rig_done(&r);
}

/* ---- events ---- */

static void check_first_event(const cn_sched_event *e, const cn_seq *q, const uint32_t *table,
                              const cn_pool *pool)
{
    assert_ptr_equal(e->seq, q);
    assert_true(e->req.first_event);
    assert_int_equal(e->req.n_blocks, 6);
    assert_int_equal(e->req.n_target, 2);
    assert_int_equal(e->req.n_history, 0);
    assert_int_equal(e->req.position_end, 24);
    assert_int_equal(e->home_len, 24);
    assert_int_equal(e->n_exchange, 2);
    assert_int_equal(e->n_put_before, 5);
    assert_int_equal(e->n_puts, 1);
    assert_int_equal(e->puts[0].src, table[5]);
    assert_int_equal(e->puts[0].dst, q->home_table[5]);
    /* The area has the targets after the others. The ring begins in block 4, so those before it
     * stay in the prefix cache, and all targets are new. */
    assert_ptr_equal(e->exchange, e->req.target + 2);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_not_equal(e->req.target[i % 4], table[i]);
        assert_int_equal(cn_pool_is_pinned(pool, table[i]), i >= 4);
    }
}

static void a_first_event_puts_what_is_left_and_adds_the_area(void **state)
{
    (void)state;
    rig r = rig_make(options());
    r.hold_events = true;
    cn_seq *q = rig_add(&r, 1, 21, 40, away());
    uint32_t table[6];
    rig_steps(&r, 3);
    assert_int_equal(q->n_blocks, 6);
    memcpy(table, q->table, sizeof table);
    const cn_sched_event *e = step_to_event(&r);
    check_first_event(e, q, table, r.s->device.blocks);
    uint32_t kept[4];
    memcpy(kept, e->req.target, sizeof kept);
    assert_memory_equal(e->req.table, table, sizeof table);
    assert_int_equal(q->home_len, 0); /* until the commit */
    assert_int_equal(q->n_exchange, 0);
    rig_steps(&r, 2);
    cn_scheduler_event_done(r.s, r.s->begun[0]);
    rig_step(&r);
    assert_int_equal(q->home_len, 24);
    assert_int_equal(q->n_exchange, 2);
    assert_int_equal(q->n_blocks, 5);
    const uint32_t after[] = {kept[2], kept[3], kept[0], kept[1], table[4]};
    assert_memory_equal(q->table, after, sizeof after);
    assert_int_equal(rig_row(&r, q)->first_slot, 16);
    assert_int_equal(rig_row(&r, q)->first_pos, 24);
    assert_int_equal(cn_pool_refs(r.s->device.blocks, table[5]), 0);
    rig_done(&r);
}

static void later_events_put_the_block_that_filled(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q = rig_add(&r, 1, 21, 40, away());
    step_to_event(&r);
    for (uint32_t home_len = 28; home_len < 60; home_len += 4) {
        uint32_t table[5];
        memcpy(table, q->table, sizeof table);
        const cn_sched_event *e = step_to_event(&r);
        assert_int_equal(q->n_blocks, 5);
        assert_false(e->req.first_event);
        assert_ptr_equal(e->req.table, q->table + 2);
        assert_int_equal(e->req.n_blocks, 3);
        assert_int_equal(e->req.n_target, 2);
        assert_int_equal(e->req.n_history, 8);
        assert_memory_equal(e->req.target, table + 2, 2 * sizeof *table);
        assert_int_equal(e->req.position_end, home_len);
        assert_int_equal(e->n_puts, 1);
        assert_int_equal(e->puts[0].src, table[4]);
        assert_int_equal(e->puts[0].dst, q->home_table[home_len / 4 - 1]);
        assert_int_equal(e->n_exchange, 0);
        assert_int_equal(e->home_len, home_len);
        assert_int_equal(q->home_len, home_len);
        assert_memory_equal(q->table, table, sizeof table);
    }
    step_until(&r, q, CN_SEQ_FINISHED);
    assert_int_equal(q->n_tokens, 61);
    rig_done(&r);
}

/* Shared prompt blocks are read, and replaced by new blocks where they would be written. */
static void a_first_event_replaces_shared_blocks(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *full = rig_add(&r, 1, 21, 60, rig_full());
    rig_step(&r);
    r.hold_events = true;
    cn_seq *q = rig_add(&r, 1, 21, 40, away());
    rig_steps(&r, 4);
    assert_int_equal(q->n_cached_tokens, 16);
    const cn_sched_event *e = step_to_event(&r);
    assert_int_equal(q->table[3], full->table[3]);
    const uint32_t kept[] = {e->req.target[0], e->req.target[1], e->exchange[0], e->exchange[1]};
    for (uint32_t i = 0; i < 4; i++) assert_int_not_equal(kept[i], full->table[i]);
    const uint32_t spare = q->table[4];
    cn_scheduler_event_done(r.s, r.s->begun[0]);
    rig_step(&r);
    const uint32_t after[] = {kept[2], kept[3], kept[0], kept[1], spare};
    assert_memory_equal(q->table, after, sizeof after);
    rig_done(&r);
}

static void zip_uses_its_window_as_the_ring(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q = rig_add(&r, 1, 10, 60, away_zip());
    assert_int_equal(cn_ring_rows(&q->kv), 3);
    const cn_sched_event *e = step_to_event(&r);
    assert_int_equal(e->req.position_end, 20);
    assert_int_equal(e->req.query_slot, q->query_slot);
    assert_int_equal(e->req.n_target, 2);
    e = step_to_event(&r);
    assert_int_equal(e->req.n_history, 8);
    step_until(&r, q, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* Three tiles in blocks of 64, beside a window of 128 tokens: N_max is 6. */
static void tiles_have_areas_of_whole_tiles(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.block_tokens = 64;
    o.max_model_len = 1000;
    o.select_most.select_tiles = 3;
    o.select_most.select_tokens = 128;
    rig r = rig_make(o);
    const cn_kv_params kv = {.select = CN_SELECT_TLS,
                             .home = CN_HOME_PEER,
                             .select_tokens = 100,
                             .select_tiles = 3,
                             .sink_tokens = 4};
    cn_seq *q = rig_add(&r, 1, 100, 500, kv);
    assert_int_equal(q->kv.policy, CN_KV_WINDOW);
    assert_int_equal(q->kv.sink_tokens, 64);
    const cn_sched_event *e = step_to_event_within(&r, 400);
    assert_int_equal(e->req.position_end, 384);
    assert_int_equal(e->n_puts, 6); /* the prompt has two blocks */
    assert_int_equal(e->n_exchange, 3);
    assert_int_equal(e->req.n_target, 2);
    assert_int_equal(q->n_exchange, 3);
    e = step_to_event(&r);
    assert_int_equal(e->req.n_blocks, 3);
    assert_int_equal(e->req.position_end, 448);
    rig_done(&r);
}

static void a_cancelled_event_returns_the_home_at_its_commit(void **state)
{
    (void)state;
    rig r = rig_make(options());
    r.hold_events = true;
    cn_seq *q = rig_add(&r, 1, 21, 40, away());
    step_to_event(&r);
    cn_sched_event *e = r.s->begun[0];
    cn_scheduler_finish(r.s, q);
    rig_step(&r);
    assert_int_equal(free_home(&r), N_HOME - 16);
    cn_scheduler_event_done(r.s, e);
    rig_step(&r);
    assert_int_equal(free_home(&r), N_HOME);
    assert_int_equal(q->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* ---- prompts that go home before the event ---- */

static void expect_put(const rig *r, const cn_seq *q, uint32_t first, uint32_t n)
{
    assert_int_equal(r->begin.n_puts, n > 0);
    if (n == 0) return;
    const cn_sched_put *p = &r->begin.puts[0];
    assert_ptr_equal(p->seq, q);
    assert_int_equal(p->n_blocks, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(p->blocks[i].src, q->table[first + i]);
        assert_int_equal(p->blocks[i].dst, q->home_table[first + i]);
    }
}

/* N_max is 5, so a prompt of 8 blocks has its first event behind it. Chunks of 10 tokens. */
static void a_long_prompt_goes_home_chunk_by_chunk(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.max_batched_tokens = 10;
    rig r = rig_make(o);
    cn_seq *q = rig_add(&r, 1, 31, 40, away());
    rig_step(&r);
    expect_put(&r, q, 0, 0);
    rig_step(&r); /* 10 tokens are computed: two full blocks */
    expect_put(&r, q, 0, 2);
    rig_step(&r);
    expect_put(&r, q, 2, 3);
    rig_step(&r);
    expect_put(&r, q, 5, 2);
    assert_int_equal(q->n_computed, 31);
    rig_step(&r); /* block 7 is full with the first token of the output */
    expect_put(&r, q, 0, 0);
    const cn_sched_event *e = step_to_event(&r);
    assert_int_equal(e->n_put_before, 7);
    assert_int_equal(e->n_puts, 1);
    assert_int_equal(e->puts[0].src, q->table[7]);
    assert_int_equal(e->home_len, 32);
    rig_step(&r);
    assert_int_equal(q->home_len, 32);
    assert_int_equal(q->sched->n_put, 0);
    step_until(&r, q, CN_SEQ_FINISHED);
    assert_false(r.plan.after_puts);
    rig_done(&r);
}

/* The second sample lacks blocks to replace the shared ones when its event is due. Meanwhile the
 * last block goes home. */
static void a_first_event_may_have_nothing_left_to_put(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 12;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *q[2];
    assert_int_equal(rig_try_add(&r, 1, 24, 20, 2, away(), q), CN_OK);
    rig_steps(&r, 2);
    assert_int_equal(r.begin.n_events, 1); /* of the first */
    assert_int_equal(r.begin.events[0]->n_puts, 6);
    expect_put(&r, q[1], 0, 6);
    const cn_sched_event *e = step_to_event(&r);
    assert_ptr_equal(e->seq, q[1]);
    assert_int_equal(e->n_put_before, 6);
    assert_int_equal(e->n_puts, 0);
    assert_int_equal(e->n_exchange, 2);
    for (int i = 0; i < 2; i++) step_until(&r, q[i], CN_SEQ_FINISHED);
    rig_done(&r);
}

/* It may end before its first event, and then needs no home. */
static void a_prompt_below_the_cap_stays_until_its_event(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q = rig_add(&r, 1, 16, 40, away());
    for (int i = 0; i < MAX_STEPS && r.begin.n_events == 0; i++) {
        rig_step(&r);
        assert_int_equal(r.begin.n_puts, 0);
    }
    assert_int_equal(r.begin.events[0]->n_puts, 5);
    assert_int_equal(r.begin.events[0]->n_put_before, 0);
    step_until(&r, q, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* Its home has none of the blocks that the prefix cache has. */
static void blocks_of_a_prefix_hit_go_home_too(void **state)
{
    (void)state;
    rig r = rig_make(options());
    rig_add(&r, 1, 30, 5, rig_full());
    rig_step(&r);
    cn_seq *q = rig_add(&r, 1, 30, 30, away());
    rig_step(&r);
    assert_int_equal(q->n_cached_tokens, 24);
    expect_put(&r, q, 0, 0); /* admitted in this step */
    rig_step(&r);
    expect_put(&r, q, 0, 7);
    rig_done(&r);
}

static void a_request_that_leaves_during_its_puts_is_reported(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.max_batched_tokens = 10;
    rig r = rig_make(o);
    cn_seq *q = rig_add(&r, 1, 31, 40, away());
    rig_steps(&r, 2);
    assert_int_equal(r.begin.n_puts, 1);
    assert_false(r.begin.after_puts || r.plan.after_puts);
    cn_sched_preempt(r.s, q); /* as schedule() may do behind begin() */
    cn_scheduler_schedule(r.s, &r.plan);
    assert_true(r.plan.after_puts);
    rig_step(&r);
    assert_false(r.begin.after_puts || r.plan.after_puts); /* once */
    for (int i = 0; q->sched->n_put == 0; i++) { /* again from the first block */
        assert_true(i < MAX_STEPS);
        rig_step(&r);
    }
    assert_int_equal(q->sched->n_put, 3); /* the most of a step: 10 tokens, blocks of 4 */
    cn_scheduler_finish(r.s, q);
    rig_step(&r);
    assert_true(r.begin.after_puts);
    assert_false(r.plan.after_puts);
    assert_int_equal(free_home(&r), N_HOME);
    rig_done(&r);
}

/* ---- forks, preemption, swap ---- */

static void each_sample_has_its_own_home(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_blocks[CN_HOME_PEER] = 64;
    rig r = rig_make(o);
    cn_seq *q[3];
    assert_int_equal(rig_try_add(&r, 1, 18, 30, 3, away(), q), CN_OK); /* 12 home blocks each */
    rig_step(&r);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(q[i]->n_home_blocks, 12);
        assert_true(q[i]->query_slot >= 0);
    }
    assert_int_equal(free_home(&r), 64 - 36);
    assert_int_equal(r.plan.fork_copies.n_slots, 2); /* the ring begins at 15, in the prompt */
    assert_int_not_equal(q[0]->home_slot, q[1]->home_slot);
    assert_int_not_equal(q[0]->home_table[0], q[1]->home_table[0]);
    for (int i = 0; i < 3; i++) step_until(&r, q[i], CN_SEQ_FINISHED);
    assert_int_equal(free_home(&r), 64);
    rig_done(&r);
}

static void a_sample_without_room_in_the_home_waits(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q[4];
    assert_int_equal(rig_try_add(&r, 1, 18, 30, 4, away(), q), CN_OK); /* 12 home blocks each */
    rig_step(&r);
    assert_int_equal(q[2]->state, CN_SEQ_RUNNING);
    assert_int_equal(q[3]->state, CN_SEQ_WAITING);
    assert_int_equal(q[3]->query_slot, -1);
    assert_int_equal(q[3]->sched->hold, CN_HOLD_NONE);
    step_until(&r, q[3], CN_SEQ_FINISHED);
    assert_int_equal(q[3]->n_tokens, 48);
    rig_done(&r);
}

static void preemption_returns_the_home(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 10;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 12, 25, rig_full()); /* grows to 9 blocks */
    cn_seq *b = rig_add(&r, 40, 14, 30, away()); /* 11 home blocks; before its event at 20 */
    cn_sched_preempt(r.s, (rig_step(&r), b));
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_equal(b->n_home_blocks, 0);
    assert_int_equal(free_home(&r), N_HOME);
    step_until(&r, a, CN_SEQ_FINISHED);
    step_until(&r, b, CN_SEQ_FINISHED);
    assert_int_equal(b->preemptions > 0, 1);
    assert_int_equal(b->n_tokens, 44);
    rig_done(&r);
}

static void batch_requests_give_way_for_home_blocks(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_blocks[CN_HOME_PEER] = 20;
    rig r = rig_make(o);
    cn_seq *full = rig_add(&r, 90, 10, 20, rig_full());
    cn_seq *batch = rig_add(&r, 1, 10, 60, away()); /* 18 home blocks */
    rig_step(&r);
    cn_seq *q = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 40, 10, 20, away()); /* 8 home blocks */
    rig_step(&r);
    assert_int_equal(q->state, CN_SEQ_RUNNING);
    assert_int_equal(batch->state, CN_SEQ_WAITING);
    assert_int_equal(full->state, CN_SEQ_RUNNING); /* has none of what was short */
    step_until(&r, batch, CN_SEQ_FINISHED);
    rig_done(&r);
}

static cn_sched_opts swap_options(void)
{
    cn_sched_opts o = options();
    o.n_swap_blocks = 8;
    o.n_swap_windows = 2;
    o.n_home_blocks[CN_HOME_PEER] = 20;
    o.max_seqs = 1;
    return o;
}

static void a_swapped_sequence_keeps_its_home(void **state)
{
    (void)state;
    rig r = rig_make(swap_options());
    cn_seq *batch = rig_add(&r, 1, 22, 50, away()); /* 18 home blocks */
    step_to_event(&r);
    uint32_t home[18];
    memcpy(home, batch->home_table, sizeof home);
    cn_seq *q = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 5, 8, rig_full());
    rig_step(&r);
    assert_int_equal(batch->state, CN_SEQ_SWAPPED);
    assert_int_equal(batch->n_home_blocks, 18);
    assert_int_equal(r.plan.swap_out.n_blocks, 5);
    assert_int_equal(r.plan.swap_out.n_slots, 1);
    assert_int_equal(free_home(&r), 2);
    step_until(&r, q, CN_SEQ_FINISHED);
    step_until(&r, batch, CN_SEQ_RUNNING);
    assert_true(batch->query_slot >= 0);
    assert_int_equal(batch->n_exchange, 2);
    assert_memory_equal(batch->home_table, home, sizeof home);
    step_until(&r, batch, CN_SEQ_FINISHED);
    assert_int_equal(free_home(&r), 20);
    rig_done(&r);
}

/* Otherwise the interactive request would wait for home blocks that no running sequence has. */
static void a_swapped_sequence_returns_when_its_home_is_wanted(void **state)
{
    (void)state;
    rig r = rig_make(swap_options());
    cn_seq *batch = rig_add(&r, 1, 22, 50, away());
    step_to_event(&r);
    cn_seq *full = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 5, 8, rig_full());
    rig_step(&r);
    /* 8 home blocks: 2 are left */
    cn_seq *q = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 40, 10, 20, away());
    step_until(&r, full, CN_SEQ_FINISHED);
    assert_int_equal(batch->state, CN_SEQ_SWAPPED);
    step_until(&r, batch, CN_SEQ_FINISHED);
    step_until(&r, q, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* The home blocks that it would keep are all that the interactive request lacks. */
static void no_sequence_is_swapped_out_for_its_home(void **state)
{
    (void)state;
    cn_sched_opts o = swap_options();
    o.max_seqs = 4;
    rig r = rig_make(o);
    cn_seq *batch = rig_add(&r, 1, 22, 50, away()); /* 18 of 20 home blocks */
    step_to_event(&r);
    cn_seq *q = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 40, 10, 20, away());
    rig_steps(&r, 3);
    assert_int_equal(batch->state, CN_SEQ_RUNNING);
    assert_int_equal(q->state, CN_SEQ_WAITING);
    assert_int_equal(rig_stats(&r).swap_outs, 0);
    step_until(&r, q, CN_SEQ_FINISHED);
    assert_int_equal(batch->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

static void a_swapped_sequence_that_ends_returns_its_home(void **state)
{
    (void)state;
    rig r = rig_make(swap_options());
    cn_seq *batch = rig_add(&r, 1, 22, 50, away());
    step_to_event(&r);
    rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 5, 8, rig_full());
    rig_step(&r);
    assert_int_equal(batch->state, CN_SEQ_SWAPPED);
    cn_scheduler_finish(r.s, batch);
    assert_int_equal(free_home(&r), 20);
    rig_done(&r);
}

/* ---- refusals ---- */

static void refused(rig *r, uint32_t n_prompt, uint32_t n_out, cn_kv_params kv, const char *text)
{
    cn_seq *q;
    assert_int_equal(rig_try_add(r, 1, n_prompt, n_out, 1, kv, &q), CN_ERR_ARG);
    if (!strstr(cn_last_error(), text)) fail_msg("%s: expected %s", cn_last_error(), text);
}

static void requests_that_can_never_run_are_refused(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_blocks[CN_HOME_PEER] = 10;
    rig r = rig_make(o);
    refused(&r, 20, 30, away(), "need 13 blocks of 4 tokens in kv home peer, which has 10; "
                                "shorten one of them or raise --home-space");
    rig_add(&r, 1, 20, 20, away());
    cn_kv_params kv = away();
    kv.home = CN_HOME_HOST;
    refused(&r, 4, 4, kv, "kv home host, but the engine has no such home; declare it with "
                          "--kv-homes");
    kv = away();
    kv.select = CN_SELECT_DS;
    refused(&r, 4, 4, kv, "kv select ds with kv home peer");
    rig_done(&r);
    o.n_query_slots = 0;
    r = rig_make(o);
    refused(&r, 4, 4, away(), "kv select spade needs query slots of 5 rows");
    rig_done(&r);
    o = options();
    o.n_blocks = 4;
    o.max_model_len = 90;
    r = rig_make(o);
    refused(&r, 4, 60, away(), "block cap of 5 exceeds the pool of 4 blocks");
    rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admission_takes_the_whole_home),
        cmocka_unit_test(a_request_that_ends_before_its_first_event_needs_no_home),
        cmocka_unit_test(both_resources_are_taken_together_or_not_at_all),
        cmocka_unit_test(home_slots_bound_the_requests_too),
        cmocka_unit_test(each_home_has_its_own_space),
        cmocka_unit_test(a_prefix_hit_leaves_out_the_ring_of_the_first_event),
        cmocka_unit_test(without_a_slot_a_request_stops_before_its_ring),
        cmocka_unit_test(a_first_event_puts_what_is_left_and_adds_the_area),
        cmocka_unit_test(later_events_put_the_block_that_filled),
        cmocka_unit_test(a_first_event_replaces_shared_blocks),
        cmocka_unit_test(zip_uses_its_window_as_the_ring),
        cmocka_unit_test(tiles_have_areas_of_whole_tiles),
        cmocka_unit_test(a_cancelled_event_returns_the_home_at_its_commit),
        cmocka_unit_test(a_long_prompt_goes_home_chunk_by_chunk),
        cmocka_unit_test(a_first_event_may_have_nothing_left_to_put),
        cmocka_unit_test(a_prompt_below_the_cap_stays_until_its_event),
        cmocka_unit_test(blocks_of_a_prefix_hit_go_home_too),
        cmocka_unit_test(a_request_that_leaves_during_its_puts_is_reported),
        cmocka_unit_test(each_sample_has_its_own_home),
        cmocka_unit_test(a_sample_without_room_in_the_home_waits),
        cmocka_unit_test(preemption_returns_the_home),
        cmocka_unit_test(batch_requests_give_way_for_home_blocks),
        cmocka_unit_test(a_swapped_sequence_keeps_its_home),
        cmocka_unit_test(a_swapped_sequence_returns_when_its_home_is_wanted),
        cmocka_unit_test(no_sequence_is_swapped_out_for_its_home),
        cmocka_unit_test(a_swapped_sequence_that_ends_returns_its_home),
        cmocka_unit_test(requests_that_can_never_run_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
