/* test_scheduler.c - single decisions of the scheduler, one small scene each, with every invariant
 * checked at every step. What only shows over long runs is the simulation's (test_sim.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/scheduler.h"

enum { B = 4, WINDOW = 2, BLOCK_BYTES = 1000 };

typedef struct rig {
    cn_scheduler *s;
    cn_begin_plan begin;
    cn_plan plan;
    bool hold_events; /* events are left undone: asynchronous, and slow */
    bool lag;         /* the caller appends */
} rig;

static cn_sched_opts options(void)
{
    return (cn_sched_opts){.block_tokens = B,
                           .n_blocks = 32,
                           .n_query_slots = 4,
                           .window_tokens = WINDOW,
                           .max_seqs = 8,
                           .max_batched_tokens = 64,
                           .max_model_len = 100,
                           .block_bytes = BLOCK_BYTES,
                           .prefix_caching = true,
                           .chunked_prefill = true,
                           .hybrid = true};
}

static rig make(cn_sched_opts o)
{
    rig r = {0};
    assert_int_equal(cn_scheduler_create(&r.s, &o), CN_OK);
    return r;
}

static void check(const rig *r)
{
    const char *broken = cn_scheduler_check(r->s);
    if (broken) fail_msg("%s", broken);
}

static cn_sched_stats stats(const rig *r)
{
    cn_sched_stats st;
    cn_scheduler_stats(r->s, &st);
    return st;
}

static void done(rig *r)
{
    check(r);
    cn_scheduler_free(r->s);
}

static cn_kv_params full(void) { return (cn_kv_params){.policy = CN_KV_FULL}; }

static cn_kv_params zip(uint32_t budget)
{
    return (cn_kv_params){.policy = CN_KV_ZIP,
                          .budget_tokens = budget,
                          .window_tokens = WINDOW,
                          .alpha = 0.8f,
                          .redundancy_tau = 0.4f};
}

static cn_kv_params window(uint32_t budget)
{
    return (cn_kv_params){.policy = CN_KV_WINDOW, .budget_tokens = budget, .sink_tokens = 1};
}

/* A request of n samples whose prompt is the tokens base, base+1, ... */
static cn_status try_add(rig *r, uint32_t base, uint32_t n_prompt, uint32_t n_out, uint32_t n,
                         cn_kv_params kv, cn_seq **seqs)
{
    uint32_t prompt[128];
    for (uint32_t i = 0; i < n_prompt && i < 128; i++) prompt[i] = base + i;
    cn_group_params p = {.prompt = prompt,
                         .n_prompt = n_prompt,
                         .max_output = n_out,
                         .n = n,
                         .klass = CN_CLASS_BATCH,
                         .kv = kv};
    return cn_scheduler_add(r->s, &p, NULL, seqs);
}

static cn_seq *add(rig *r, uint32_t base, uint32_t n_prompt, uint32_t n_out, cn_kv_params kv)
{
    cn_seq *q = NULL;
    assert_int_equal(try_add(r, base, n_prompt, n_out, 1, kv, &q), CN_OK);
    return q;
}

/* One step; unless the rig lags, sampled tokens are appended at once and ends are finished. */
static void step(rig *r)
{
    cn_scheduler_begin(r->s, &r->begin);
    check(r);
    for (uint32_t i = 0; i < r->begin.n_events && !r->hold_events; i++)
        cn_scheduler_event_done(r->s, r->begin.events[i]);
    cn_scheduler_schedule(r->s, &r->plan);
    check(r);
    for (uint32_t i = 0; i < r->plan.n_rows && !r->lag; i++) {
        cn_seq *q = r->plan.rows[i].seq;
        if (!r->plan.rows[i].wants_sample) continue;
        cn_scheduler_append(r->s, q, 1000 + q->n_tokens);
        if (q->n_tokens == q->max_tokens) cn_scheduler_finish(r->s, q);
    }
    for (uint32_t i = 0; i < r->plan.n_forks && !r->lag; i++)
        cn_scheduler_append(r->s, r->plan.forks[i].seq, 2000 + i);
    check(r);
}

static const cn_plan_row *row_of(const rig *r, const cn_seq *q)
{
    for (uint32_t i = 0; i < r->plan.n_rows; i++)
        if (r->plan.rows[i].seq == q) return &r->plan.rows[i];
    return NULL;
}

static void steps(rig *r, int n)
{
    for (int i = 0; i < n; i++) step(r);
}

static void a_request_runs_to_its_end_and_returns_its_blocks(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *q = add(&r, 1, 6, 4, full());
    assert_int_equal(q->state, CN_SEQ_WAITING);
    step(&r);
    assert_int_equal(r.plan.n_rows, 1);
    assert_int_equal(r.plan.n_decode, 0);
    assert_int_equal(r.plan.rows[0].n_new, 6);
    assert_int_equal(r.plan.rows[0].first_pos, 0);
    assert_true(r.plan.rows[0].wants_sample);
    assert_int_equal(q->n_blocks, 2);
    for (uint32_t i = 0; i < 3; i++) {
        step(&r);
        assert_int_equal(r.plan.n_decode, 1);
        assert_int_equal(r.plan.rows[0].first_pos, 6 + i);
        assert_int_equal(r.plan.rows[0].first_slot, 6 + i);
    }
    assert_int_equal(q->state, CN_SEQ_FINISHED);
    assert_int_equal(q->n_tokens, 10);
    assert_int_equal(q->usage_kv.peak_tokens, 9); /* the last token is never computed */
    assert_int_equal(stats(&r).blocks_used, 0);
    step(&r);
    assert_int_equal(r.plan.n_rows, 0);
    cn_scheduler_append(r.s, q, 5); /* late: ignored */
    assert_int_equal(q->n_tokens, 10);
    cn_scheduler_release(r.s, q);
    done(&r);
}

static void prompts_are_chunked_beside_decodes(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.max_batched_tokens = 8;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 3, 20, full());
    cn_seq *b = add(&r, 50, 15, 5, full());
    step(&r);
    assert_int_equal(row_of(&r, a)->n_new, 3);
    assert_int_equal(row_of(&r, b)->n_new, 5);
    assert_false(row_of(&r, b)->wants_sample);
    step(&r);
    assert_int_equal(r.plan.n_decode, 1);
    assert_ptr_equal(r.plan.rows[0].seq, a);
    assert_int_equal(row_of(&r, b)->n_new, 7);
    assert_int_equal(r.plan.n_tokens, 8);
    step(&r);
    assert_int_equal(row_of(&r, b)->n_new, 3);
    assert_int_equal(row_of(&r, b)->first_pos, 12);
    assert_true(row_of(&r, b)->wants_sample);
    done(&r);
}

/* A chunk cut to one token has to stand with the decode rows. */
static void a_chunk_of_one_token_is_a_decode_row(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.max_batched_tokens = 9;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 8, 5, full());
    cn_seq *b = add(&r, 50, 5, 5, full());
    step(&r);
    assert_int_equal(r.plan.n_rows, 2);
    assert_int_equal(r.plan.n_decode, 1);
    assert_ptr_equal(r.plan.rows[0].seq, b);
    assert_int_equal(r.plan.rows[0].n_new, 1);
    assert_false(r.plan.rows[0].wants_sample);
    assert_ptr_equal(r.plan.rows[1].seq, a);
    done(&r);
}

static void unchunked_prompts_wait_for_a_step_that_holds_them(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.chunked_prefill = false;
    o.max_batched_tokens = 16;
    cn_scheduler *s;
    assert_int_equal(cn_scheduler_create(&s, &o), CN_ERR_ARG); /* 16 < max_model_len */
    o.max_model_len = 16;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 4, 3, full());
    cn_seq *b = add(&r, 50, 14, 2, full());
    cn_seq *c = add(&r, 80, 2, 2, full());
    step(&r);
    assert_non_null(row_of(&r, a));
    assert_null(row_of(&r, b)); /* 4 + 14 > 16 */
    assert_null(row_of(&r, c)); /* first come, first served */
    step(&r);
    assert_int_equal(row_of(&r, b)->n_new, 14); /* beside a's one */
    assert_null(row_of(&r, c));
    step(&r);
    assert_int_equal(row_of(&r, c)->n_new, 2);
    done(&r);
}

static void equal_prefixes_share_blocks(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *a = add(&r, 1, 9, 20, full());
    cn_seq *twin = add(&r, 1, 9, 20, full());
    step(&r); /* computed in one step: nothing to hit yet */
    assert_int_equal(twin->n_cached_tokens, 0);
    assert_int_not_equal(a->table[0], twin->table[0]);
    cn_seq *b = add(&r, 1, 8, 20, full());
    cn_seq *c = add(&r, 1, 9, 20, full());
    step(&r);
    assert_int_equal(b->n_cached_tokens, 4); /* one prompt token is always computed */
    assert_int_equal(c->n_cached_tokens, 8);
    assert_int_equal(row_of(&r, c)->n_new, 1);
    assert_int_equal(row_of(&r, c)->first_pos, 8);
    assert_int_equal(a->table[0], b->table[0]);
    assert_int_equal(a->table[1], c->table[1]);
    assert_int_not_equal(a->table[2], c->table[2]);
    assert_int_equal(stats(&r).prefix_hits, 12);
    assert_int_equal(stats(&r).prefix_queries, 35);
    cn_scheduler_finish(r.s, a);
    cn_scheduler_finish(r.s, b);
    cn_scheduler_finish(r.s, c);
    cn_scheduler_finish(r.s, twin);
    check(&r);
    cn_seq *d = add(&r, 1, 9, 2, full()); /* from blocks that are only cached */
    step(&r);
    assert_int_equal(d->n_cached_tokens, 8);
    done(&r);
}

static void outputs_enter_the_prefix_cache(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *a = add(&r, 1, 3, 6, full());
    steps(&r, 6);
    assert_int_equal(a->state, CN_SEQ_FINISHED);
    uint32_t turn[12];
    memcpy(turn, a->tokens, 9 * sizeof *turn);
    for (int i = 9; i < 12; i++) turn[i] = 7;
    cn_group_params p = {.prompt = turn, .n_prompt = 12, .max_output = 2, .n = 1, .kv = full()};
    cn_seq *b;
    assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &b), CN_OK);
    step(&r);
    assert_int_equal(b->n_cached_tokens, 8);
    done(&r);
}

/* Budget 8, so N_max 3 and the first event at 12 slots; window 2. */
static void a_prefix_hit_leaves_the_coming_window(void **state)
{
    (void)state;
    rig r = make(options());
    add(&r, 1, 12, 20, full());
    step(&r);
    cn_seq *z = add(&r, 1, 12, 20, zip(8));
    cn_seq *v = add(&r, 1, 12, 20, window(8));
    step(&r);
    assert_int_equal(z->n_cached_tokens, 8);
    assert_int_equal(v->n_cached_tokens, 8);
    cn_seq *wide = add(&r, 1, 11, 20, zip(4)); /* event at 12: the window is 10 and 11 */
    wide->kv.window_tokens = WINDOW;
    step(&r);
    assert_int_equal(wide->n_cached_tokens, 8);
    done(&r);
    cn_sched_opts o = options();
    o.window_tokens = 6;
    r = make(o);
    add(&r, 1, 12, 20, full());
    step(&r);
    cn_kv_params kv = zip(8);
    kv.window_tokens = 6; /* from position 6 on: block 1 must be computed */
    z = add(&r, 1, 12, 20, kv);
    step(&r);
    assert_int_equal(z->n_cached_tokens, 4);
    done(&r);
}

static void an_event_keeps_the_budget_and_goes_on(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *q = add(&r, 1, 18, 60, zip(8)); /* 5 blocks, above the cap of 3 */
    step(&r);
    assert_int_equal(q->query_slot >= 0, 1);
    assert_int_equal(q->n_blocks, 5);
    steps(&r, 2);
    assert_int_equal(q->n_resident, 20); /* full; the next step begins with the event */
    step(&r);
    assert_int_equal(r.begin.n_events, 1);
    const cn_compress_req *req = &r.begin.events[0]->req;
    assert_int_equal(req->n_target, 2);
    assert_int_equal(req->position_end, 20);
    assert_true(req->first_event);
    assert_int_equal(req->n_history, 0);
    assert_int_equal(q->usage_kv.compressions, 1);
    assert_int_equal(q->usage_kv.evicted, 12);
    assert_int_equal(q->usage_kv.freed_bytes, 2 * BLOCK_BYTES); /* one of three left to decode */
    assert_int_equal(q->n_blocks, 3);
    assert_int_equal(row_of(&r, q)->first_pos, 20);
    assert_int_equal(row_of(&r, q)->first_slot, 8);
    steps(&r, 4);
    assert_int_equal(r.begin.n_events, 1);
    assert_false(r.begin.events[0]->req.first_event);
    assert_int_equal(r.begin.events[0]->req.n_history, 8);
    assert_int_equal(q->usage_kv.compressions, 2);
    assert_int_equal(q->usage_kv.evicted, 16);
    while (q->state != CN_SEQ_FINISHED) step(&r);
    assert_int_equal(q->n_tokens, 78);
    assert_int_equal(q->usage_kv.peak_tokens, 20);
    cn_sched_stats st = stats(&r);
    assert_int_equal(st.compressions, q->usage_kv.compressions);
    assert_int_equal(st.evicted_tokens, q->usage_kv.evicted);
    assert_int_equal(st.freed_bytes, q->usage_kv.freed_bytes);
    assert_int_equal(st.slots_used, 0);
    assert_int_equal(st.blocks_used, 0);
    done(&r);
}

static void no_event_without_anything_to_compute_behind_it(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *q = add(&r, 1, 9, 4, zip(8)); /* ends at 13 tokens: slot 12 is never used */
    step(&r);
    assert_int_equal(q->query_slot, -1);
    steps(&r, 3);
    assert_int_equal(q->state, CN_SEQ_FINISHED);
    assert_int_equal(stats(&r).compressions, 0);
    done(&r);
}

static void shared_blocks_are_replaced_not_written(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *a = add(&r, 1, 9, 40, full());
    step(&r);
    cn_seq *z = add(&r, 1, 9, 40, zip(8));
    steps(&r, 4); /* z: 9 .. 12 */
    assert_int_equal(z->n_resident, 12);
    uint32_t shared[2] = {z->table[0], z->table[1]}, own = z->table[2];
    assert_memory_equal(shared, a->table, sizeof shared);
    r.hold_events = true;
    step(&r);
    assert_int_equal(r.begin.n_events, 1);
    const cn_sched_event *e = r.begin.events[0];
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(e->req.target[i], shared[0]);
        assert_int_not_equal(e->req.target[i], shared[1]);
        assert_int_not_equal(e->req.target[i], own);
    }
    assert_int_equal(z->state, CN_SEQ_COMPRESSING);
    assert_null(row_of(&r, z));
    assert_non_null(row_of(&r, a)); /* the others go on */
    cn_scheduler_event_done(r.s, r.begin.events[0]);
    step(&r);
    assert_non_null(row_of(&r, z));
    assert_int_equal(z->table[2], own);
    assert_int_equal(z->usage_kv.freed_bytes, 0); /* the other owner keeps them */
    cn_seq *c = add(&r, 1, 9, 4, full());
    step(&r);
    assert_int_equal(c->n_cached_tokens, 8); /* the prefix outlived the compression */
    done(&r);
}

static void overwritten_blocks_leave_the_prefix_cache(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *z = add(&r, 1, 20, 40, zip(8));
    step(&r);
    r.hold_events = true;
    step(&r);
    assert_int_equal(r.begin.n_events, 1);
    cn_sched_event *e = r.begin.events[0];
    cn_seq *b = add(&r, 1, 20, 10, full());
    step(&r);
    assert_int_equal(b->n_cached_tokens, 0);
    cn_scheduler_event_done(r.s, e);
    step(&r);
    assert_int_equal(z->usage_kv.compressions, 1);
    done(&r);
}

static void a_cancel_during_an_event_frees_at_its_commit(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *z = add(&r, 1, 12, 40, zip(8));
    step(&r);
    r.hold_events = true;
    step(&r);
    cn_sched_event *e = r.begin.events[0];
    cn_scheduler_finish(r.s, z);
    cn_scheduler_finish(r.s, z);
    assert_int_equal(z->state, CN_SEQ_COMPRESSING);
    steps(&r, 3);
    assert_int_equal(stats(&r).blocks_used, 3);
    assert_int_equal(stats(&r).slots_used, 1);
    cn_scheduler_release(r.s, z); /* the memory lives until the commit too */
    step(&r);
    cn_scheduler_event_done(r.s, e);
    step(&r);
    assert_int_equal(stats(&r).blocks_used, 0);
    assert_int_equal(stats(&r).slots_used, 0);
    assert_int_equal(stats(&r).compressions, 0);
    done(&r);
}

static void without_a_slot_it_waits_before_its_window(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_query_slots = 1;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 4, 14, zip(8));
    cn_seq *b = add(&r, 50, 4, 40, zip(8));
    while (a->state != CN_SEQ_FINISHED) step(&r);
    assert_int_equal(b->query_slot, -1);
    assert_int_equal(b->n_computed, 12 - WINDOW);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(stats(&r).blocked, 1);
    step(&r);
    assert_int_equal(b->query_slot, 0);
    assert_int_equal(row_of(&r, b)->first_pos, 10);
    assert_int_equal(stats(&r).blocked, 0);
    done(&r);
}

static void slots_go_to_the_foremost_that_lacks_one(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 11;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 4, 20, zip(8));     /* cap 3 */
    cn_seq *b = add(&r, 30, 4, 40, zip(32));   /* cap 9: 12 > 11 */
    cn_seq *c = add(&r, 60, 4, 20, window(4)); /* cap 2 would fit, but b is first */
    step(&r);
    assert_int_equal(a->query_slot >= 0, 1);
    assert_int_equal(b->query_slot, -1);
    for (int i = 0; i < 10; i++) step(&r);
    assert_int_equal(c->usage_kv.compressions, 0);
    assert_int_equal(c->n_resident, 8); /* `window` needs no queries: it waits at the event */
    while (a->state != CN_SEQ_FINISHED) step(&r);
    step(&r);
    assert_int_equal(b->query_slot >= 0, 1);
    steps(&r, 2);
    assert_true(c->usage_kv.compressions > 0);
    assert_int_equal(c->query_slot, -1);
    done(&r);
}

static void constrained_admits_only_with_a_slot(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_query_slots = 1;
    o.hybrid = false;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 4, 20, zip(8));
    cn_seq *b = add(&r, 50, 4, 20, zip(8));
    steps(&r, 5);
    assert_int_equal(a->state, CN_SEQ_RUNNING);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    while (a->state != CN_SEQ_FINISHED) step(&r);
    step(&r);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(b->query_slot, 0);
    done(&r);
}

static void the_last_without_a_slot_is_preempted_and_recomputed(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 8;
    o.prefix_caching = false;
    rig r = make(o);
    cn_seq *a = add(&r, 1, 8, 24, full());
    cn_seq *b = add(&r, 50, 8, 24, full());
    cn_seq *late = NULL;
    while (b->preemptions == 0) {
        step(&r);
        if (!late) late = add(&r, 80, 4, 4, full());
    }
    assert_int_equal(a->preemptions, 0);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_equal(b->n_blocks, 0);
    uint32_t tokens = b->n_tokens, computed = tokens - 1;
    while (b->state == CN_SEQ_WAITING) {
        assert_int_equal(late->state, CN_SEQ_WAITING); /* b is before it again */
        step(&r);
    }
    assert_int_equal(row_of(&r, b)->n_new, tokens);
    assert_int_equal(b->recomputed_tokens, computed);
    assert_int_equal(stats(&r).recomputed_tokens, computed);
    while (late->state != CN_SEQ_FINISHED || b->state != CN_SEQ_FINISHED) step(&r);
    assert_int_equal(b->n_tokens, 32);
    done(&r);
}

/* A preempted zip request knows a token past its first event; the event still comes first. */
static void recompute_stops_at_the_event(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *z = add(&r, 1, 12, 40, zip(8));
    step(&r);
    assert_int_equal(z->n_tokens, 13);
    cn_seq *twin = add(&r, 1, 12, 40, window(8));
    step(&r);
    assert_int_equal(z->usage_kv.compressions, 1);
    assert_int_equal(z->n_computed, 13);
    assert_int_equal(twin->n_computed, 12);
    step(&r);
    assert_int_equal(twin->usage_kv.compressions, 1);
    done(&r);
}

static void samples_fork_from_their_leader(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *q[3];
    assert_int_equal(try_add(&r, 1, 10, 20, 3, zip(12), q), CN_OK);
    assert_int_equal(q[1]->state, CN_SEQ_FORKING);
    step(&r);
    assert_int_equal(r.plan.n_rows, 1);
    assert_int_equal(r.plan.n_forks, 2);
    assert_int_equal(r.plan.n_block_copies, 2);
    assert_int_equal(r.plan.n_slot_copies, 0); /* the window, from 14 on, is not in the prompt */
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(r.plan.forks[i].seq, q[i + 1]);
        assert_int_equal(r.plan.forks[i].leader_row, 0);
        assert_int_equal(r.plan.block_copies[i].src, q[0]->table[2]);
        assert_int_equal(r.plan.block_copies[i].dst, q[i + 1]->table[2]);
        assert_memory_equal(q[0]->table, q[i + 1]->table, 2 * sizeof(uint32_t));
        assert_int_equal(q[i + 1]->n_tokens, 11);
        assert_int_equal(q[i + 1]->n_computed, 10);
    }
    step(&r);
    assert_int_equal(r.plan.n_decode, 3);
    for (int i = 0; i < 3; i++)
        while (q[i]->state != CN_SEQ_FINISHED) step(&r);
    assert_int_equal(stats(&r).blocks_used, 0);
    done(&r);
}

static void a_window_inside_the_prompt_is_copied(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_query_slots = 2;
    rig r = make(o);
    cn_seq *q[3];
    assert_int_equal(try_add(&r, 1, 12, 20, 3, zip(8), q), CN_OK);
    step(&r);
    assert_int_equal(r.plan.n_forks, 1);
    assert_int_equal(r.plan.n_slot_copies, 1);
    assert_int_equal(r.plan.slot_copies[0].src, (uint32_t)q[0]->query_slot);
    assert_int_equal(r.plan.slot_copies[0].dst, (uint32_t)q[1]->query_slot);
    /* No slot for the third: it comes through the queue and the prefix cache instead. */
    assert_int_equal(q[2]->state, CN_SEQ_WAITING);
    assert_int_equal(q[2]->n_tokens, 12);
    step(&r);
    assert_int_equal(q[2]->n_cached_tokens, 8);
    for (int i = 0; i < 3; i++)
        while (q[i]->state != CN_SEQ_FINISHED) step(&r);
    assert_int_equal(q[2]->n_tokens, 32);
    done(&r);
}

static void a_cancelled_leader_is_replaced(void **state)
{
    (void)state;
    rig r = make(options());
    cn_seq *q[4];
    assert_int_equal(try_add(&r, 1, 10, 5, 4, full(), q), CN_OK);
    cn_scheduler_finish(r.s, q[2]);
    cn_scheduler_finish(r.s, q[0]);
    check(&r);
    assert_int_equal(q[1]->state, CN_SEQ_WAITING);
    assert_int_equal(q[3]->state, CN_SEQ_FORKING);
    step(&r);
    assert_int_equal(r.plan.n_forks, 1);
    assert_ptr_equal(r.plan.forks[0].seq, q[3]);
    done(&r);
}

static void a_step_can_be_launched_before_its_tokens_are_read(void **state)
{
    (void)state;
    rig r = make(options());
    r.lag = true;
    cn_seq *q = add(&r, 1, 3, 10, full());
    step(&r);
    assert_int_equal(q->n_pending, 1);
    for (uint32_t i = 0; i < 5; i++) {
        step(&r);
        assert_int_equal(row_of(&r, q)->first_pos, 3 + i);
        assert_int_equal(q->n_pending, 2);
        cn_scheduler_append(r.s, q, 100 + i);
    }
    /* It stopped at token 104; the step in flight wrote one slot more, cached nowhere. */
    cn_scheduler_finish(r.s, q);
    cn_scheduler_append(r.s, q, 105);
    assert_int_equal(q->n_tokens, 8);
    uint32_t same[9] = {1, 2, 3, 100, 101, 102, 103, 104, 105};
    cn_group_params p = {.prompt = same, .n_prompt = 9, .max_output = 1, .n = 1, .kv = full()};
    cn_seq *b;
    assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &b), CN_OK);
    step(&r);
    assert_int_equal(b->n_cached_tokens, 8);
    done(&r);
}

static void nothing_runs_past_the_last_token(void **state)
{
    (void)state;
    rig r = make(options());
    r.lag = true;
    cn_seq *q = add(&r, 1, 3, 2, full());
    steps(&r, 2);
    assert_int_equal(q->n_pending, 2);
    step(&r);
    assert_null(row_of(&r, q));
    done(&r);
}

static void classes_and_priorities_order_the_queue(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.max_seqs = 1;
    o.priority_order = true;
    rig r = make(o);
    const struct {
        cn_class klass;
        int32_t priority;
        int place;
    } arrivals[] = {{CN_CLASS_BATCH, 0, 4},
                    {CN_CLASS_BATCH, -1, 3},
                    {CN_CLASS_INTERACTIVE, 5, 2},
                    {CN_CLASS_INTERACTIVE, 0, 0},
                    {CN_CLASS_INTERACTIVE, 0, 1}};
    cn_seq *order[5];
    uint32_t prompt[2] = {1, 2};
    for (int i = 0; i < 5; i++) {
        cn_group_params p = {.prompt = prompt, .n_prompt = 2, .max_output = 2, .n = 1};
        p.klass = arrivals[i].klass;
        p.priority = arrivals[i].priority;
        assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &order[arrivals[i].place]), CN_OK);
    }
    for (int i = 0; i < 5; i++) {
        step(&r);
        assert_ptr_equal(r.plan.rows[0].seq, order[i]);
        step(&r);
        assert_int_equal(order[i]->state, CN_SEQ_FINISHED);
    }
    done(&r);
}

static void impossible_requests_are_refused_with_numbers(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 8;
    rig r = make(o);
    const struct {
        uint32_t n_prompt, n_out, n;
        cn_kv_params kv;
        const char *text;
    } bad[] = {{0, 1, 1, full(), "0 prompt"},
               {1, 0, 1, full(), "0 output"},
               {1, 1, 0, full(), "0 samples"},
               {50, 51, 1, full(), "100"},
               {10, 30, 1, full(), "need 10 KV blocks"},
               {40, 30, 1, zip(8), "need 10 KV blocks"},
               {4, 60, 1, zip(32), "9 exceeds the pool of 8"},
               {4, 60, 1, zip(0), "budget"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cn_seq *q[1];
        assert_int_equal(try_add(&r, 1, bad[i].n_prompt, bad[i].n_out, bad[i].n, bad[i].kv, q),
                         CN_ERR_ARG);
        if (!strstr(cn_last_error(), bad[i].text)) fail_msg("%zu: %s", i, cn_last_error());
        check(&r);
    }
    cn_seq *q = add(&r, 1, 30, 3, full()); /* exactly the pool */
    while (q->state != CN_SEQ_FINISHED) step(&r);
    done(&r);
    o.n_query_slots = 0;
    r = make(o);
    cn_seq *z;
    assert_int_equal(try_add(&r, 1, 4, 40, 1, zip(8), &z), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "zip"));
    done(&r);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 13;
    rig r = make(o);
    cn_seq *q[2];
    assert_int_equal(try_add(&r, 1, 10, 60, 2, zip(8), q), CN_OK);
    add(&r, 1, 12, 40, full());
    add(&r, 1, 12, 40, window(8));
    uint64_t before = cn_alloc_count();
    steps(&r, 200);
    assert_int_equal(cn_alloc_count(), before);
    assert_int_equal(stats(&r).running + stats(&r).waiting, 0);
    assert_true(stats(&r).preemptions > 0);
    assert_true(stats(&r).compressions > 0);
    done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_runs_to_its_end_and_returns_its_blocks),
        cmocka_unit_test(prompts_are_chunked_beside_decodes),
        cmocka_unit_test(a_chunk_of_one_token_is_a_decode_row),
        cmocka_unit_test(unchunked_prompts_wait_for_a_step_that_holds_them),
        cmocka_unit_test(equal_prefixes_share_blocks),
        cmocka_unit_test(outputs_enter_the_prefix_cache),
        cmocka_unit_test(a_prefix_hit_leaves_the_coming_window),
        cmocka_unit_test(an_event_keeps_the_budget_and_goes_on),
        cmocka_unit_test(no_event_without_anything_to_compute_behind_it),
        cmocka_unit_test(shared_blocks_are_replaced_not_written),
        cmocka_unit_test(overwritten_blocks_leave_the_prefix_cache),
        cmocka_unit_test(a_cancel_during_an_event_frees_at_its_commit),
        cmocka_unit_test(without_a_slot_it_waits_before_its_window),
        cmocka_unit_test(slots_go_to_the_foremost_that_lacks_one),
        cmocka_unit_test(constrained_admits_only_with_a_slot),
        cmocka_unit_test(the_last_without_a_slot_is_preempted_and_recomputed),
        cmocka_unit_test(recompute_stops_at_the_event),
        cmocka_unit_test(samples_fork_from_their_leader),
        cmocka_unit_test(a_window_inside_the_prompt_is_copied),
        cmocka_unit_test(a_cancelled_leader_is_replaced),
        cmocka_unit_test(a_step_can_be_launched_before_its_tokens_are_read),
        cmocka_unit_test(nothing_runs_past_the_last_token),
        cmocka_unit_test(classes_and_priorities_order_the_queue),
        cmocka_unit_test(impossible_requests_are_refused_with_numbers),
        cmocka_unit_test(a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
