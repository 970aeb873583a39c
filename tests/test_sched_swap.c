/* test_sched_swap.c - compressed batch requests move to the swap space for interactive ones and
 * come back: which request moves, when, and with what. No space leaks, and every request comes
 * back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/sched_rig.h"

/* Budget 8: N_max is 3, and the first event is at 12 slots. Two such requests fill 6 blocks and 2
 * slots. */
static cn_sched_opts small_options(void)
{
    cn_sched_opts o = rig_options();
    o.n_blocks = 6;
    o.n_query_slots = 2;
    o.n_swap_blocks = 6;
    o.n_swap_windows = 2;
    o.prefix_caching = false;
    return o;
}

static cn_seq *add_interactive(rig *r, uint32_t n_prompt, uint32_t n_out, cn_kv_params kv)
{
    uint32_t prompt[64];
    cn_seq *q;
    for (uint32_t i = 0; i < n_prompt; i++) prompt[i] = 5000 + i;
    cn_group_params p = {.prompt = prompt, .n_prompt = n_prompt, .max_output = n_out, .n = 1};
    p.klass = CN_CLASS_INTERACTIVE;
    p.kv = kv;
    assert_int_equal(cn_scheduler_add(r->s, &p, NULL, &q), CN_OK);
    return q;
}

/* Adds two batch requests and compresses both: they hold all blocks and slots. */
static void fill(rig *r, cn_seq **first, cn_seq **last, uint32_t n_out)
{
    *first = rig_add(r, 100, 11, n_out, rig_zip(8));
    *last = rig_add(r, 200, 11, n_out, rig_zip(8));
    for (int i = 0; i < 20 && (*last)->usage_kv.compressions == 0; i++) rig_step(r);
    assert_true((*first)->usage_kv.compressions > 0 && (*last)->usage_kv.compressions > 0);
    assert_int_equal(rig_stats(r).blocks_used, 6);
}

static void the_last_compressed_request_moves_and_comes_back(void **state)
{
    (void)state;
    rig r = rig_make(small_options());
    cn_seq *first, *last;
    fill(&r, &first, &last, 40);
    const uint32_t n_resident = last->n_resident, n_computed = last->n_computed;
    const uint32_t slot = (uint32_t)last->query_slot;
    uint32_t table[3];
    memcpy(table, last->table, sizeof table);
    cn_seq *now = add_interactive(&r, 4, 3, rig_full());
    rig_step(&r);
    assert_int_equal(last->state, CN_SEQ_SWAPPED);
    assert_int_equal(first->state, CN_SEQ_RUNNING);
    assert_non_null(rig_row(&r, now));
    assert_null(rig_row(&r, last));
    const uint32_t n = (n_resident + B - 1) / B;
    assert_int_equal(r.plan.swap_out.n_blocks, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(r.plan.swap_out.blocks[i].src, table[i]);
    assert_int_equal(r.plan.swap_out.n_slots, 1);
    assert_int_equal(r.plan.swap_out.slots[0].src, slot);
    assert_int_equal(rig_stats(&r).swapped, 1);
    assert_int_equal(rig_stats(&r).swap_blocks_used, n);
    assert_int_equal(rig_stats(&r).slots_used, 1);
    while (last->state == CN_SEQ_SWAPPED) rig_step(&r);
    assert_int_equal(now->state, CN_SEQ_FINISHED);
    assert_int_equal(r.plan.swap_in.n_blocks, n);
    assert_int_equal(r.plan.swap_in.n_slots, 1);
    assert_int_equal(r.plan.swap_in.slots[0].dst, last->query_slot);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(r.plan.swap_in.blocks[i].dst, last->table[i]);
    assert_int_equal(rig_row(&r, last)->first_pos, n_computed); /* decodes at once */
    assert_int_equal(rig_row(&r, last)->first_slot, n_resident);
    assert_int_equal(last->preemptions, 0);
    assert_int_equal(last->recomputed_tokens, 0);
    rig_steps(&r, 60);
    assert_int_equal(first->n_tokens, 51);
    assert_int_equal(last->n_tokens, 51);
    const cn_stats st = rig_stats(&r);
    assert_int_equal(st.swap_outs, 1);
    assert_int_equal(st.swap_ins, 1);
    assert_int_equal(st.swapped_in_blocks, st.swapped_out_blocks);
    assert_int_equal(st.blocks_used + st.swap_blocks_used + st.swap_windows_used, 0);
    rig_done(&r);
}

static void without_swap_space_the_interactive_request_waits(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        cn_sched_opts o = small_options();
        if (kind == 0) o.n_swap_blocks = 0;
        if (kind == 1) o.n_swap_blocks = 1;
        if (kind == 2) o.n_swap_windows = 0;
        rig r = rig_make(o);
        cn_seq *first, *last;
        fill(&r, &first, &last, 10);
        cn_seq *now = add_interactive(&r, 4, 3, rig_full());
        rig_step(&r);
        assert_int_equal(now->state, CN_SEQ_WAITING);
        assert_int_equal(last->state, CN_SEQ_RUNNING);
        rig_steps(&r, 30);
        assert_int_equal(now->state, CN_SEQ_FINISHED);
        assert_int_equal(rig_stats(&r).swap_outs, 0);
        rig_done(&r);
    }
}

/* Swapping is useless when the interactive request would not fit in the freed pool either. */
static void no_request_is_swapped_when_it_does_not_help(void **state)
{
    (void)state;
    cn_sched_opts o = small_options();
    o.n_swap_blocks = 3;
    rig r = rig_make(o);
    cn_seq *first, *last;
    fill(&r, &first, &last, 20);
    cn_seq *now = add_interactive(&r, 20, 2, rig_full()); /* 5 blocks */
    rig_step(&r);
    assert_int_equal(now->state, CN_SEQ_WAITING);
    assert_int_equal(rig_stats(&r).swapped, 0);
    rig_steps(&r, 60);
    assert_int_equal(now->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

static void a_request_that_can_be_recomputed_is_preempted_first(void **state)
{
    (void)state;
    cn_sched_opts o = small_options();
    o.n_blocks = 8;
    rig r = rig_make(o);
    cn_seq *first, *last;
    fill(&r, &first, &last, 40);
    cn_seq *plain = rig_add(&r, 300, 4, 20, rig_full());
    for (int i = 0; i < 20 && plain->state != CN_SEQ_RUNNING; i++) rig_step(&r);
    assert_int_equal(plain->state, CN_SEQ_RUNNING);
    cn_seq *now = add_interactive(&r, 4, 2, rig_full());
    rig_step(&r);
    assert_int_equal(now->state, CN_SEQ_RUNNING);
    assert_int_equal(plain->state, CN_SEQ_WAITING);
    assert_int_equal(last->state, CN_SEQ_RUNNING);
    rig_steps(&r, 100);
    rig_done(&r);
}

/* An interactive request that decodes takes blocks from batch requests, compressed or not. */
static void a_decoding_request_takes_blocks_too(void **state)
{
    (void)state;
    cn_sched_opts o = small_options();
    o.n_blocks = 8;
    rig r = rig_make(o);
    cn_seq *first, *last;
    fill(&r, &first, &last, 80);
    cn_seq *now = add_interactive(&r, 2, 16, rig_full());
    for (int i = 0; i < 40 && now->state != CN_SEQ_FINISHED; i++) {
        rig_step(&r);
        assert_int_equal(now->preemptions, 0);
        assert_true(now->state == CN_SEQ_FINISHED || rig_row(&r, now));
    }
    assert_int_equal(now->n_tokens, 18);
    assert_true(rig_stats(&r).swap_outs > 0);
    rig_steps(&r, 160);
    assert_int_equal(last->n_tokens, 91);
    rig_done(&r);
}

/* Blocks are free, but batch requests hold every slot: one request moves when a slot is needed. */
static void a_slot_is_taken_when_it_is_needed(void **state)
{
    (void)state;
    cn_sched_opts o = small_options();
    o.n_blocks = 24;
    rig r = rig_make(o);
    cn_seq *first = rig_add(&r, 100, 11, 60, rig_zip(8));
    cn_seq *last = rig_add(&r, 200, 11, 60, rig_zip(8));
    cn_seq *lacks = rig_add(&r, 300, 4, 60, rig_zip(8)); /* next for a slot */
    rig_steps(&r, 6);
    assert_true(first->usage_kv.compressions > 0 && last->usage_kv.compressions > 0);
    assert_int_equal(lacks->query_slot, -1);
    cn_seq *now = add_interactive(&r, 4, 30, rig_zip(8));
    for (int i = 0; i < 60 && now->state != CN_SEQ_FINISHED; i++) {
        rig_step(&r);
        const bool compressed = r.begin.n_events > 0;
        assert_true(now->state == CN_SEQ_FINISHED || rig_row(&r, now) || compressed);
    }
    assert_int_equal(now->state, CN_SEQ_FINISHED);
    assert_int_equal(first->usage_kv.compressions > 0, 1);
    assert_int_equal(rig_stats(&r).swap_outs, 1);
    rig_steps(&r, 200);
    assert_int_equal(first->n_tokens, 71);
    assert_int_equal(last->n_tokens, 71);
    assert_int_equal(lacks->n_tokens, 64);
    rig_done(&r);
}

static void a_cancel_frees_swap_space(void **state)
{
    (void)state;
    rig r = rig_make(small_options());
    cn_seq *first, *last;
    fill(&r, &first, &last, 40);
    cn_seq *now = add_interactive(&r, 4, 20, rig_full());
    rig_step(&r);
    assert_int_equal(last->state, CN_SEQ_SWAPPED);
    cn_scheduler_finish(r.s, last);
    assert_int_equal(last->state, CN_SEQ_FINISHED);
    assert_int_equal(rig_stats(&r).swap_blocks_used, 0);
    assert_int_equal(rig_stats(&r).swap_windows_used, 0);
    cn_scheduler_release(r.s, last);
    rig_steps(&r, 60);
    assert_int_equal(now->state, CN_SEQ_FINISHED);
    assert_int_equal(first->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* Its token is in flight when it is swapped out. It may return only after the token arrived. */
static void a_swapped_request_waits_for_its_pending_token(void **state)
{
    (void)state;
    rig r = rig_make(small_options());
    cn_seq *first, *last;
    fill(&r, &first, &last, 40);
    r.lag = true;
    rig_step(&r);
    assert_int_equal(last->n_pending, 1);
    cn_seq *now = add_interactive(&r, 4, 1, rig_full());
    rig_step(&r);
    assert_int_equal(last->state, CN_SEQ_SWAPPED);
    cn_seq_append(first, 1);
    cn_seq_append(first, 2);
    cn_seq_append(now, 3);
    cn_scheduler_finish(r.s, now);
    rig_step(&r);
    assert_int_equal(last->state, CN_SEQ_SWAPPED);
    cn_seq_append(last, 4);
    cn_seq_append(first, 5);
    rig_step(&r);
    assert_int_equal(last->state, CN_SEQ_RUNNING);
    assert_non_null(rig_row(&r, last));
    rig_done(&r);
}

/* With endless interactive requests, the floor brings a swapped request back, and it then stays. */
static void the_floor_brings_a_swapped_request_back(void **state)
{
    (void)state;
    cn_sched_opts o = small_options();
    o.batch_floor = 3;
    rig r = rig_make(o);
    cn_seq *first, *last;
    fill(&r, &first, &last, 60);
    for (int i = 0; i < 2000 && last->state != CN_SEQ_FINISHED; i++) {
        if (cn_scheduler_waiting_of(r.s, CN_CLASS_INTERACTIVE) < 3)
            add_interactive(&r, 4, 3, rig_full());
        rig_step(&r);
    }
    assert_int_equal(last->n_tokens, 71);
    assert_int_equal(first->n_tokens, 71);
    assert_in_range(rig_stats(&r).swap_outs, 1, 4);
    rig_steps(&r, 30);
    rig_done(&r);
}

static void new_batch_requests_wait_behind_a_swapped_one(void **state)
{
    (void)state;
    rig r = rig_make(small_options());
    cn_seq *first, *last;
    fill(&r, &first, &last, 40);
    cn_seq *now = add_interactive(&r, 4, 6, rig_full());
    cn_seq *fresh = rig_add(&r, 300, 3, 4, rig_full()); /* a free block is left for it */
    for (int i = 0; i < 100 && last->state != CN_SEQ_FINISHED; i++) {
        rig_step(&r);
        if (last->state == CN_SEQ_SWAPPED) assert_int_equal(fresh->state, CN_SEQ_WAITING);
    }
    assert_int_equal(now->state, CN_SEQ_FINISHED);
    rig_steps(&r, 20);
    assert_int_equal(fresh->state, CN_SEQ_FINISHED);
    rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_compressed_request_moves_and_comes_back),
        cmocka_unit_test(without_swap_space_the_interactive_request_waits),
        cmocka_unit_test(no_request_is_swapped_when_it_does_not_help),
        cmocka_unit_test(a_request_that_can_be_recomputed_is_preempted_first),
        cmocka_unit_test(a_decoding_request_takes_blocks_too),
        cmocka_unit_test(a_slot_is_taken_when_it_is_needed),
        cmocka_unit_test(a_cancel_frees_swap_space),
        cmocka_unit_test(a_swapped_request_waits_for_its_pending_token),
        cmocka_unit_test(the_floor_brings_a_swapped_request_back),
        cmocka_unit_test(new_batch_requests_wait_behind_a_swapped_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
