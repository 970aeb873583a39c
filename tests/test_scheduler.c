/* test_scheduler.c - single decisions of the scheduler, each with a few requests, and every
 * invariant checked at every step: order, chunks, sharing, preemption, forks, token lag.
 * test_sched_events.c tests compression. The simulation (test_sim.c) covers long runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/sched_state.h"
#include "tests/lib/sched_rig.h"

static void a_request_runs_to_its_end_and_returns_its_blocks(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *q = rig_add(&r, 1, 6, 4, rig_full());
    assert_int_equal(q->state, CN_SEQ_WAITING);
    rig_step(&r);
    assert_int_equal(r.plan.n_rows, 1);
    assert_int_equal(r.plan.n_decode, 0);
    assert_int_equal(r.plan.rows[0].n_new, 6);
    assert_int_equal(r.plan.rows[0].first_pos, 0);
    assert_true(r.plan.rows[0].wants_sample);
    assert_int_equal(q->n_blocks, 2);
    for (uint32_t i = 0; i < 3; i++) {
        rig_step(&r);
        assert_int_equal(r.plan.n_decode, 1);
        assert_int_equal(r.plan.rows[0].first_pos, 6 + i);
        assert_int_equal(r.plan.rows[0].first_slot, 6 + i);
    }
    assert_int_equal(q->state, CN_SEQ_FINISHED);
    assert_int_equal(q->n_tokens, 10);
    assert_int_equal(q->usage_kv.peak_tokens, 9); /* the last token is never computed */
    assert_int_equal(rig_stats(&r).blocks_used, 0);
    rig_step(&r);
    assert_int_equal(r.plan.n_rows, 0);
    cn_seq_append(q, 5); /* late: ignored */
    assert_int_equal(q->n_tokens, 10);
    cn_scheduler_release(r.s, q);
    rig_done(&r);
}

static void prompts_are_chunked_beside_decodes(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.max_batched_tokens = 8;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 3, 20, rig_full());
    cn_seq *b = rig_add(&r, 50, 15, 5, rig_full());
    rig_step(&r);
    assert_int_equal(rig_row(&r, a)->n_new, 3);
    assert_int_equal(rig_row(&r, b)->n_new, 5);
    assert_false(rig_row(&r, b)->wants_sample);
    rig_step(&r);
    assert_int_equal(r.plan.n_decode, 1);
    assert_ptr_equal(r.plan.rows[0].seq, a);
    assert_int_equal(rig_row(&r, b)->n_new, 7);
    assert_int_equal(r.plan.n_tokens, 8);
    rig_step(&r);
    assert_int_equal(rig_row(&r, b)->n_new, 3);
    assert_int_equal(rig_row(&r, b)->first_pos, 12);
    assert_true(rig_row(&r, b)->wants_sample);
    rig_done(&r);
}

/* Chunk boundaries must not decide which kernel computes a prompt. */
static void a_chunk_of_one_token_is_a_prefill_row(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.max_batched_tokens = 9;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 8, 5, rig_full());
    cn_seq *b = rig_add(&r, 50, 5, 5, rig_full());
    rig_step(&r);
    assert_int_equal(r.plan.n_rows, 2);
    assert_int_equal(r.plan.n_decode, 0);
    assert_ptr_equal(r.plan.rows[0].seq, a);
    assert_ptr_equal(r.plan.rows[1].seq, b);
    assert_int_equal(r.plan.rows[1].n_new, 1);
    assert_false(r.plan.rows[1].wants_sample);
    rig_done(&r);
}

static void unchunked_prompts_wait_for_a_step_with_room(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.chunked_prefill = false;
    o.max_batched_tokens = 16;
    cn_scheduler *s;
    assert_int_equal(cn_scheduler_create(&s, &o), CN_ERR_ARG); /* 16 < max_model_len */
    o.max_model_len = 16;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 4, 3, rig_full());
    cn_seq *b = rig_add(&r, 50, 14, 2, rig_full());
    cn_seq *c = rig_add(&r, 80, 2, 2, rig_full());
    rig_step(&r);
    assert_non_null(rig_row(&r, a));
    assert_null(rig_row(&r, b)); /* 4 + 14 > 16 */
    assert_null(rig_row(&r, c)); /* first come, first served */
    rig_step(&r);
    assert_int_equal(rig_row(&r, b)->n_new, 14); /* beside one token of a */
    assert_null(rig_row(&r, c));
    rig_step(&r);
    assert_int_equal(rig_row(&r, c)->n_new, 2);
    rig_done(&r);
}

static void equal_prefixes_share_blocks(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *a = rig_add(&r, 1, 9, 20, rig_full());
    cn_seq *twin = rig_add(&r, 1, 9, 20, rig_full());
    rig_step(&r); /* both in one step: no hit yet */
    assert_int_equal(twin->n_cached_tokens, 0);
    assert_int_not_equal(a->table[0], twin->table[0]);
    cn_seq *b = rig_add(&r, 1, 8, 20, rig_full());
    cn_seq *c = rig_add(&r, 1, 9, 20, rig_full());
    assert_int_equal(rig_stats(&r).prompt_tokens, 18); /* not of requests that wait */
    rig_step(&r);
    assert_int_equal(rig_stats(&r).prompt_tokens, 35);
    assert_int_equal(b->n_cached_tokens, 4); /* one prompt token is always computed */
    assert_int_equal(c->n_cached_tokens, 8);
    assert_int_equal(rig_row(&r, c)->n_new, 1);
    assert_int_equal(rig_row(&r, c)->first_pos, 8);
    assert_int_equal(a->table[0], b->table[0]);
    assert_int_equal(a->table[1], c->table[1]);
    assert_int_not_equal(a->table[2], c->table[2]);
    assert_int_equal(rig_stats(&r).cached_tokens, 12);
    assert_int_equal(rig_stats(&r).prefix_queries, 35);
    cn_scheduler_finish(r.s, a);
    cn_scheduler_finish(r.s, b);
    cn_scheduler_finish(r.s, c);
    cn_scheduler_finish(r.s, twin);
    rig_check(&r);
    cn_seq *d = rig_add(&r, 1, 9, 2, rig_full()); /* from cached-only blocks */
    rig_step(&r);
    assert_int_equal(d->n_cached_tokens, 8);
    rig_done(&r);
}

static void outputs_enter_the_prefix_cache(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *a = rig_add(&r, 1, 3, 6, rig_full());
    rig_steps(&r, 6);
    assert_int_equal(a->state, CN_SEQ_FINISHED);
    uint32_t turn[12];
    memcpy(turn, a->tokens, 9 * sizeof *turn);
    for (int i = 9; i < 12; i++) turn[i] = 7;
    cn_group_params p = {.prompt = turn, .n_prompt = 12, .max_output = 2, .n = 1, .kv = rig_full()};
    cn_seq *b;
    assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &b), CN_OK);
    rig_step(&r);
    assert_int_equal(b->n_cached_tokens, 8);
    rig_done(&r);
}

static void the_last_request_without_a_slot_is_preempted_and_recomputed(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 8;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 8, 24, rig_full());
    cn_seq *b = rig_add(&r, 50, 8, 24, rig_full());
    cn_seq *late = NULL;
    while (b->preemptions == 0) {
        rig_step(&r);
        if (!late) late = rig_add(&r, 80, 4, 4, rig_full());
    }
    assert_int_equal(a->preemptions, 0);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_equal(b->n_blocks, 0);
    uint32_t tokens = b->n_tokens, computed = tokens - 1;
    while (b->state == CN_SEQ_WAITING) {
        assert_int_equal(late->state, CN_SEQ_WAITING); /* b is in front of it again */
        rig_step(&r);
    }
    assert_int_equal(rig_row(&r, b)->n_new, tokens);
    assert_int_equal(b->recomputed_tokens, computed);
    assert_int_equal(rig_stats(&r).recomputed_tokens, computed);
    while (late->state != CN_SEQ_FINISHED || b->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(b->n_tokens, 32);
    rig_done(&r);
}

/* With decoded_apart, only the prompt is recomputed in a chunk, and only the prompt is shared. */
static void decoded_tokens_of_a_preempted_request_are_decoded_again(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 8;
    o.prefix_caching = false;
    o.decoded_apart = true;
    rig r = rig_make(o);
    rig_add(&r, 1, 8, 24, rig_full());
    cn_seq *b = rig_add(&r, 50, 8, 24, rig_full());
    while (b->preemptions == 0) rig_step(&r);
    const uint32_t known = b->n_tokens;
    assert_true(known > 10);
    while (b->state == CN_SEQ_WAITING) rig_step(&r);
    assert_int_equal(rig_row(&r, b)->n_new, 8);
    assert_false(rig_row(&r, b)->wants_sample);
    for (uint32_t at = 8; at < known; at++) {
        rig_step(&r);
        const cn_plan_row *row = rig_row(&r, b);
        assert_int_equal(row->n_new, 1);
        assert_true(row < r.plan.rows + r.plan.n_decode);
        assert_int_equal(row->wants_sample, at + 1 == known);
    }
    while (b->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(b->n_tokens, 32);
    rig_done(&r);
}

/* A request that was preempted often enough is aged: no request behind it is admitted before it
 * ends. */
static void no_request_is_admitted_behind_an_aged_one(void **state)
{
    (void)state;
    for (uint32_t before = 0; before < CN_AGED_PREEMPTIONS; before += CN_AGED_PREEMPTIONS - 1) {
        cn_sched_opts o = rig_options();
        o.n_blocks = 10;
        rig r = rig_make(o);
        cn_seq *a = rig_add(&r, 1, 8, 24, rig_full());
        cn_seq *b = rig_add(&r, 50, 8, 24, rig_full());
        rig_step(&r);
        b->preemptions = before;
        while (b->preemptions == before) rig_step(&r);
        while (a->state != CN_SEQ_FINISHED) rig_step(&r);
        rig_step(&r);
        assert_int_equal(b->state, CN_SEQ_RUNNING);
        cn_seq *late = rig_add(&r, 80, 2, 2, rig_full());
        rig_step(&r);
        bool aged = b->preemptions == CN_AGED_PREEMPTIONS;
        assert_int_equal(late->state, aged ? CN_SEQ_WAITING : CN_SEQ_RUNNING);
        while (b->state != CN_SEQ_FINISHED) rig_step(&r);
        rig_step(&r);
        assert_int_not_equal(late->state, CN_SEQ_WAITING);
        rig_done(&r);
    }
}

static void samples_fork_from_their_leader(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *q[3];
    assert_int_equal(rig_try_add(&r, 1, 10, 20, 3, rig_zip(12), q), CN_OK);
    assert_int_equal(q[1]->state, CN_SEQ_FORKING);
    rig_step(&r);
    assert_int_equal(r.plan.n_rows, 1);
    assert_int_equal(r.plan.n_forks, 2);
    assert_int_equal(r.plan.fork_copies.n_blocks, 2);
    /* The window, from 14 on, is not in the prompt. */
    assert_int_equal(r.plan.fork_copies.n_slots, 0);
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(r.plan.forks[i].seq, q[i + 1]);
        assert_int_equal(r.plan.forks[i].leader_row, 0);
        assert_int_equal(r.plan.fork_copies.blocks[i].src, q[0]->table[2]);
        assert_int_equal(r.plan.fork_copies.blocks[i].dst, q[i + 1]->table[2]);
        assert_memory_equal(q[0]->table, q[i + 1]->table, 2 * sizeof(uint32_t));
        assert_int_equal(q[i + 1]->n_tokens, 11);
        assert_int_equal(q[i + 1]->n_computed, 10);
    }
    rig_step(&r);
    assert_int_equal(r.plan.n_decode, 3);
    for (int i = 0; i < 3; i++)
        while (q[i]->state != CN_SEQ_FINISHED) rig_step(&r);
    assert_int_equal(rig_stats(&r).blocks_used, 0);
    rig_done(&r);
}

static void a_cancelled_leader_is_replaced(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *q[4];
    assert_int_equal(rig_try_add(&r, 1, 10, 5, 4, rig_full(), q), CN_OK);
    cn_scheduler_finish(r.s, q[2]);
    cn_scheduler_finish(r.s, q[0]);
    rig_check(&r);
    assert_int_equal(q[1]->state, CN_SEQ_WAITING);
    assert_int_equal(q[3]->state, CN_SEQ_FORKING);
    rig_step(&r);
    assert_int_equal(r.plan.n_forks, 1);
    assert_ptr_equal(r.plan.forks[0].seq, q[3]);
    rig_done(&r);
}

static void a_step_can_be_launched_before_its_tokens_are_read(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    r.lag = true;
    cn_seq *q = rig_add(&r, 1, 3, 10, rig_full());
    rig_step(&r);
    assert_int_equal(q->n_pending, 1);
    for (uint32_t i = 0; i < 5; i++) {
        rig_step(&r);
        assert_int_equal(rig_row(&r, q)->first_pos, 3 + i);
        assert_int_equal(q->n_pending, 2);
        cn_seq_append(q, 100 + i);
    }
    /* It stopped at token 104. The step in flight wrote one more slot, which no cache entry
     * covers. */
    cn_scheduler_finish(r.s, q);
    cn_seq_append(q, 105);
    assert_int_equal(q->n_tokens, 8);
    assert_int_equal(q->usage_kv.peak_tokens, 7);
    uint32_t same[9] = {1, 2, 3, 100, 101, 102, 103, 104, 105};
    cn_group_params p = {.prompt = same, .n_prompt = 9, .max_output = 1, .n = 1, .kv = rig_full()};
    cn_seq *b;
    assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &b), CN_OK);
    rig_step(&r);
    assert_int_equal(b->n_cached_tokens, 4);
    rig_done(&r);
}

static void no_row_runs_past_the_last_token(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    r.lag = true;
    cn_seq *q = rig_add(&r, 1, 3, 2, rig_full());
    rig_steps(&r, 2);
    assert_int_equal(q->n_pending, 2);
    rig_step(&r);
    assert_null(rig_row(&r, q));
    rig_done(&r);
}

static void classes_and_priorities_order_the_queue(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.max_seqs = 1;
    o.priority_order = true;
    rig r = rig_make(o);
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
        rig_step(&r);
        assert_ptr_equal(r.plan.rows[0].seq, order[i]);
        rig_step(&r);
        assert_int_equal(order[i]->state, CN_SEQ_FINISHED);
    }
    rig_done(&r);
}

/* Six interactive and three batch requests run one at a time. `want` is the order of classes. */
static void assert_turns(uint32_t floor, const char *want)
{
    cn_sched_opts o = rig_options();
    o.max_seqs = 1;
    o.batch_floor = floor;
    rig r = rig_make(o);
    cn_seq *all[9];
    char order[10] = "";
    uint32_t prompt[2] = {1, 2};
    for (int i = 0; i < 9; i++) {
        cn_group_params p = {.prompt = prompt, .n_prompt = 2, .max_output = 2, .n = 1};
        p.klass = i < 3 ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
        assert_int_equal(cn_scheduler_add(r.s, &p, NULL, &all[i]), CN_OK);
    }
    for (int i = 0; i < 9; i++) {
        rig_step(&r);
        order[i] = r.plan.rows[0].seq->klass == CN_CLASS_BATCH ? 'b' : 'i';
        rig_step(&r);
    }
    assert_string_equal(order, want);
    rig_done(&r);
}

static void the_floor_lets_batch_requests_in(void **state)
{
    (void)state;
    assert_turns(0, "iiiiiibbb");
    assert_turns(1, "ibibibiii");
    assert_turns(2, "iibiibiib");
    assert_turns(4, "iiiibiibb");
}

static cn_seq *add_of_class(rig *r, cn_class klass, uint32_t base, uint32_t n_prompt,
                            uint32_t n_out)
{
    uint32_t prompt[64];
    cn_seq *q;
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = base + i;
    cn_group_params p = {.prompt = prompt, .n_prompt = n_prompt, .max_output = n_out, .n = 1};
    p.klass = klass;
    assert_int_equal(cn_scheduler_add(r->s, &p, NULL, &q), CN_OK);
    return q;
}

/* Batch requests hold all seats (or all blocks). The last one is preempted and continues when the
 * interactive request has ended. */
static void the_last_batch_request_is_preempted_for_an_interactive_one(void **state)
{
    (void)state;
    for (int blocks = 0; blocks < 2; blocks++) {
        cn_sched_opts o = rig_options();
        o.max_seqs = blocks ? 16 : 2;
        o.n_blocks = blocks ? 12 : 32;
        o.prefix_caching = false;
        rig r = rig_make(o);
        cn_seq *first = add_of_class(&r, CN_CLASS_BATCH, 100, 10, 20);
        cn_seq *last = add_of_class(&r, CN_CLASS_BATCH, 200, 10, 20);
        rig_steps(&r, 4);
        assert_int_equal(last->state, CN_SEQ_RUNNING);
        cn_seq *now = add_of_class(&r, CN_CLASS_INTERACTIVE, 300, blocks ? 22 : 4, 2);
        rig_step(&r);
        assert_int_equal(now->state, CN_SEQ_RUNNING);
        assert_non_null(rig_row(&r, now));
        assert_int_equal(first->state, CN_SEQ_RUNNING);
        assert_int_equal(last->state, CN_SEQ_WAITING);
        assert_int_equal(last->preemptions, 1);
        rig_steps(&r, 40);
        assert_int_equal(first->state, CN_SEQ_FINISHED);
        assert_int_equal(last->state, CN_SEQ_FINISHED);
        assert_int_equal(last->n_tokens, 30);
        rig_done(&r);
    }
}

/* A preempted request whose known tokens fill its last block needs no further block. A batch
 * request is preempted for exactly the blocks that it needs. */
static void a_batch_request_is_preempted_for_needed_blocks_only(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 10;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *now = add_of_class(&r, CN_CLASS_INTERACTIVE, 100, 11, 17);
    cn_seq *back = add_of_class(&r, CN_CLASS_INTERACTIVE, 200, 8, 8);
    cn_seq *batch = rig_add(&r, 300, 5, 40, rig_zip(8)); /* has a slot: not preempted for a block */
    rig_steps(&r, 6);
    assert_int_equal(now->n_blocks + back->n_blocks + batch->n_blocks, 10);
    assert_int_equal(back->preemptions, 0);
    rig_step(&r); /* `now` preempts `back`, which then needs 4 blocks; 1 is for `now` */
    assert_int_equal(back->preemptions, 1);
    assert_int_equal(batch->state, CN_SEQ_WAITING);
    assert_int_equal(back->state, CN_SEQ_RUNNING);
    assert_int_equal(back->n_blocks, 4);
    rig_steps(&r, 80);
    assert_int_equal(batch->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* A decoding request without a free block takes one from a batch request, even an older one. */
static void a_shortage_preempts_batch_requests_first(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 8;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *batch = add_of_class(&r, CN_CLASS_BATCH, 100, 8, 16);
    rig_step(&r);
    cn_seq *now = add_of_class(&r, CN_CLASS_INTERACTIVE, 200, 8, 16);
    for (int i = 0; i < 40 && now->state != CN_SEQ_FINISHED; i++) {
        rig_step(&r);
        assert_int_equal(now->preemptions, 0);
    }
    assert_int_equal(now->n_tokens, 24);
    assert_int_equal(batch->preemptions, 1);
    rig_steps(&r, 40);
    assert_int_equal(batch->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* With endless interactive requests, a batch request is preempted, gets its turn, and ends. */
static void a_batch_request_ends_under_endless_interactive_requests(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.max_seqs = 1;
    o.batch_floor = 2;
    rig r = rig_make(o);
    cn_seq *batch = add_of_class(&r, CN_CLASS_BATCH, 100, 4, 12);
    rig_step(&r);
    for (int i = 0; i < 400 && batch->state != CN_SEQ_FINISHED; i++) {
        if (cn_scheduler_waiting_of(r.s, CN_CLASS_INTERACTIVE) < 3)
            add_of_class(&r, CN_CLASS_INTERACTIVE, 300, 4, 2);
        rig_step(&r);
    }
    assert_int_equal(batch->state, CN_SEQ_FINISHED);
    assert_int_equal(batch->n_tokens, 16);
    assert_in_range(batch->preemptions, 1, 8);
    rig_steps(&r, 20);
    rig_done(&r);
}

static void impossible_requests_are_refused_with_numbers(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 8;
    rig r = rig_make(o);
    const struct {
        uint32_t n_prompt, n_out, n;
        cn_kv_params kv;
        const char *text;
    } bad[] = {{0, 1, 1, rig_full(), "0 prompt"},
               {1, 0, 1, rig_full(), "0 output"},
               {1, 1, 0, rig_full(), "0 samples"},
               {50, 51, 1, rig_full(), "100"},
               {10, 30, 1, rig_full(), "need 10 KV blocks"},
               {40, 30, 1, rig_zip(8), "need 10 KV blocks"},
               {4, 60, 1, rig_zip(32), "9 exceeds the pool of 8"},
               {4, 60, 1, rig_zip(0), "budget"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cn_seq *q[1];
        assert_int_equal(rig_try_add(&r, 1, bad[i].n_prompt, bad[i].n_out, bad[i].n, bad[i].kv, q),
                         CN_ERR_ARG);
        if (!strstr(cn_last_error(), bad[i].text)) fail_msg("%zu: %s", i, cn_last_error());
        rig_check(&r);
    }
    cn_seq *q = rig_add(&r, 1, 30, 3, rig_full()); /* exactly the pool */
    while (q->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_done(&r);
    o.n_query_slots = 0;
    r = rig_make(o);
    cn_seq *z;
    assert_int_equal(rig_try_add(&r, 1, 4, 40, 1, rig_zip(8), &z), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "zip"));
    rig_done(&r);
}

/* The default budget must not prevent a model with a small context from running. */
static void a_cap_above_the_context_is_never_reached(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 16;
    o.max_model_len = 32; /* 8 blocks: two such requests reserve the pool */
    rig r = rig_make(o);
    cn_seq *q[2];
    for (int i = 0; i < 2; i++) q[i] = rig_add(&r, (uint32_t)i, 10, 22, rig_zip(2048));
    while (q[0]->state != CN_SEQ_FINISHED || q[1]->state != CN_SEQ_FINISHED) rig_step(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(q[i]->n_max, 8);
        assert_int_equal(q[i]->kv.budget_tokens, 2048);
        assert_int_equal(q[i]->preemptions, 0);
        assert_int_equal(q[i]->n_tokens, 32);
    }
    assert_int_equal(rig_stats(&r).compressions, 0);
    rig_done(&r);
}

/* A step allocates the buffers of the sequences that it admits for the first time. */
static void only_first_admissions_allocate(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.n_blocks = 13;
    rig r = rig_make(o);
    cn_seq *q[2];
    assert_int_equal(rig_try_add(&r, 1, 10, 60, 2, rig_zip(8), q), CN_OK);
    rig_add(&r, 1, 12, 40, rig_full());
    rig_add(&r, 1, 12, 40, rig_window(8));
    enum { N_SEQS = 4 };
    uint64_t before = cn_alloc_count();
    rig_steps(&r, 200);
    assert_int_equal(cn_alloc_count() - before, N_SEQS);
    assert_int_equal(rig_stats(&r).running + rig_stats(&r).waiting, 0);
    assert_true(rig_stats(&r).preemptions > 0);
    assert_true(rig_stats(&r).compressions > 0);
    rig_done(&r);
}

/* ---- owners ---- */

static cn_seq *add_for(rig *r, uint32_t owner, uint32_t base, uint32_t n_out, uint32_t n,
                       cn_class klass)
{
    uint32_t prompt[4] = {base, base + 1, base + 2, base + 3};
    const cn_group_params p = {.prompt = prompt,
                               .n_prompt = 4,
                               .max_output = n_out,
                               .n = n,
                               .klass = klass,
                               .owner = owner,
                               .kv = rig_full()};
    cn_seq *seqs[16];
    assert_true(n <= 16);
    assert_int_equal(cn_scheduler_add(r->s, &p, NULL, seqs), CN_OK);
    return seqs[0];
}

/* Owner 1 has many requests. Those of owner 2, which come later, are admitted as soon as it has
 * fewer running tokens. */
static void the_owner_with_the_fewest_running_tokens_is_next(void **state)
{
    (void)state;
    for (int klass = 0; klass < 2; klass++) {
        cn_sched_opts o = rig_options();
        o.max_seqs = 3;
        rig r = rig_make(o);
        cn_seq *a[8], *b[3];
        for (uint32_t i = 0; i < 8; i++) a[i] = add_for(&r, 1, 10 * i, 4 + i, 1, (cn_class)klass);
        rig_step(&r);
        for (uint32_t i = 0; i < 3; i++)
            b[i] = add_for(&r, 2, 500 + 10 * i, 30, 1, (cn_class)klass);
        while (a[0]->state != CN_SEQ_FINISHED) rig_step(&r);
        rig_step(&r);
        assert_int_equal(b[0]->state, CN_SEQ_RUNNING);
        while (b[1]->state == CN_SEQ_WAITING) rig_step(&r);
        assert_int_equal(b[0]->state, CN_SEQ_RUNNING);
        assert_int_equal(a[7]->state, CN_SEQ_WAITING);
        rig_steps(&r, 300);
        assert_int_equal(rig_stats(&r).running + rig_stats(&r).waiting, 0);
        rig_done(&r);
    }
}

/* A request of many samples takes all seats. An owner that runs nothing gets one of them at once,
 * and only one. */
static void an_owner_cannot_take_all_seats(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.max_seqs = 4;
    rig r = rig_make(o);
    add_for(&r, 1, 10, 20, 12, CN_CLASS_INTERACTIVE);
    rig_steps(&r, 3);
    assert_int_equal(rig_stats(&r).running, 4);
    cn_seq *b = add_for(&r, 2, 500, 3, 1, CN_CLASS_INTERACTIVE);
    cn_seq *c = add_for(&r, 2, 600, 3, 1, CN_CLASS_INTERACTIVE);
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(c->state, CN_SEQ_WAITING);
    assert_int_equal(rig_stats(&r).preemptions, 1);
    rig_steps(&r, 300);
    assert_int_equal(rig_stats(&r).running + rig_stats(&r).waiting, 0);
    rig_done(&r);
}

/* Before its newest token is read, a row is taken back and planned again at the same place. */
static void a_row_is_taken_back(void **state)
{
    (void)state;
    rig r = rig_make(rig_options());
    cn_seq *q = rig_add(&r, 1, 6, 8, rig_full()), *other = rig_add(&r, 50, 3, 8, rig_full());
    rig_step(&r);
    r.lag = true;
    rig_step(&r);
    const cn_plan_row first = *rig_row(&r, q);
    cn_seq_take_back(q);
    rig_check(&r);
    q->paused = true;
    cn_seq_append(other, 77);
    rig_step(&r);
    assert_null(rig_row(&r, q));
    assert_non_null(rig_row(&r, other));
    assert_int_equal(rig_stats(&r).blocked, 0);
    q->paused = false;
    cn_seq_append(other, 78);
    rig_step(&r);
    const cn_plan_row *again = rig_row(&r, q);
    assert_true(again && again->wants_sample);
    assert_int_equal(again->first_pos, first.first_pos);
    assert_int_equal(again->first_slot, first.first_slot);
    cn_scheduler_finish(r.s, q);
    cn_scheduler_finish(r.s, other);
    rig_done(&r);
}

/* Unready requests wait in no queue; then they have the place of their arrival. */
static void unready_requests_keep_their_place(void **state)
{
    (void)state;
    cn_sched_opts o = rig_options();
    o.max_seqs = 1;
    rig r = rig_make(o);
    const uint32_t prompt[] = {1, 2, 3};
    const cn_group_params p = {.prompt = prompt, .n_prompt = 3, .max_output = 2, .n = 3,
                               .klass = CN_CLASS_BATCH, .unready = true, .kv = rig_full()};
    cn_seq *group[3], *ended[3];
    assert_int_equal(cn_scheduler_add(r.s, &p, NULL, ended), CN_OK);
    assert_int_equal(cn_scheduler_add(r.s, &p, NULL, group), CN_OK);
    cn_seq *a = rig_add(&r, 10, 4, 3, rig_full()), *b = rig_add(&r, 20, 4, 3, rig_full());
    assert_int_equal(cn_scheduler_waiting_of(r.s, CN_CLASS_BATCH), 8);
    rig_step(&r);
    assert_int_equal(a->state, CN_SEQ_RUNNING);
    assert_int_equal(group[0]->state, CN_SEQ_UNREADY);
    for (int i = 0; i < 3; i++) cn_scheduler_finish(r.s, ended[i]);
    rig_check(&r);
    assert_int_equal(cn_scheduler_waiting_of(r.s, CN_CLASS_BATCH), 4);
    cn_scheduler_ready(r.s, group[0]);
    while (a->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_not_equal(group[0]->state, CN_SEQ_WAITING);
    while (b->state != CN_SEQ_FINISHED) rig_step(&r);
    rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_runs_to_its_end_and_returns_its_blocks),
        cmocka_unit_test(a_row_is_taken_back),
        cmocka_unit_test(unready_requests_keep_their_place),
        cmocka_unit_test(prompts_are_chunked_beside_decodes),
        cmocka_unit_test(a_chunk_of_one_token_is_a_prefill_row),
        cmocka_unit_test(unchunked_prompts_wait_for_a_step_with_room),
        cmocka_unit_test(equal_prefixes_share_blocks),
        cmocka_unit_test(outputs_enter_the_prefix_cache),
        cmocka_unit_test(the_last_request_without_a_slot_is_preempted_and_recomputed),
        cmocka_unit_test(decoded_tokens_of_a_preempted_request_are_decoded_again),
        cmocka_unit_test(no_request_is_admitted_behind_an_aged_one),
        cmocka_unit_test(samples_fork_from_their_leader),
        cmocka_unit_test(a_cancelled_leader_is_replaced),
        cmocka_unit_test(a_step_can_be_launched_before_its_tokens_are_read),
        cmocka_unit_test(no_row_runs_past_the_last_token),
        cmocka_unit_test(classes_and_priorities_order_the_queue),
        cmocka_unit_test(the_floor_lets_batch_requests_in),
        cmocka_unit_test(the_last_batch_request_is_preempted_for_an_interactive_one),
        cmocka_unit_test(a_batch_request_is_preempted_for_needed_blocks_only),
        cmocka_unit_test(a_shortage_preempts_batch_requests_first),
        cmocka_unit_test(a_batch_request_ends_under_endless_interactive_requests),
        cmocka_unit_test(impossible_requests_are_refused_with_numbers),
        cmocka_unit_test(a_cap_above_the_context_is_never_reached),
        cmocka_unit_test(only_first_admissions_allocate),
        cmocka_unit_test(the_owner_with_the_fewest_running_tokens_is_next),
        cmocka_unit_test(an_owner_cannot_take_all_seats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
