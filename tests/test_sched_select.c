/* test_sched_select.c - the scheduler and requests with selectors: slots of rings, prefix hits,
 * forks, tokens decoded apart, and rings beside policies that need slots too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "compress/selector.h"
#include "scheduler/sched_state.h"
#include "tests/lib/sched_rig.h"

enum { MAX_STEPS = 300 };

static cn_sched_opts options(uint32_t n_slots)
{
    cn_sched_opts o = rig_options();
    o.n_query_slots = n_slots;
    o.window_tokens = 5;
    o.select_most.select_tokens = 16;
    o.select_most.select_window = 4;
    return o;
}

static cn_kv_params select_kv(cn_kv_select select, uint32_t window)
{
    return (cn_kv_params){
        .policy = CN_KV_FULL, .select = select, .select_tokens = 4, .select_window = window};
}

static cn_kv_params spade(void) { return select_kv(CN_SELECT_SPADE, 2); }

/* Steps until the state is reached. */
static void step_until(rig *r, const cn_seq *q, cn_seq_state state)
{
    for (int i = 0; q->state != state; i++) {
        assert_true(i < MAX_STEPS);
        rig_step(r);
    }
}

static void the_ring_of_a_request_is_its_window_or_that_of_its_selector(void **state)
{
    (void)state;
    cn_kv_params kv = rig_zip(8);
    assert_int_equal(cn_ring_rows(&kv), WINDOW);
    kv = rig_window(8);
    kv.window_tokens = WINDOW;
    assert_int_equal(cn_ring_rows(&kv), 0);
    kv = select_kv(CN_SELECT_SPADE, 4);
    kv.window_tokens = WINDOW;
    assert_int_equal(cn_ring_rows(&kv), 5);
    kv.select = CN_SELECT_LAST;
    assert_int_equal(cn_ring_rows(&kv), 2);
    kv.select = CN_SELECT_DS;
    assert_int_equal(cn_ring_rows(&kv), 0);
}

static void a_ring_user_has_a_slot_from_its_admission_to_its_end(void **state)
{
    (void)state;
    rig r = rig_make(options(4));
    cn_seq *a = rig_add(&r, 1, 10, 10, spade());
    cn_seq *b = rig_add(&r, 50, 10, 10, select_kv(CN_SELECT_DS, 0));
    assert_int_equal(a->query_slot, -1);
    rig_step(&r);
    assert_true(a->query_slot >= 0);
    assert_int_equal(b->query_slot, -1);
    assert_int_equal(rig_stats(&r).slots_used, 1);
    step_until(&r, a, CN_SEQ_FINISHED);
    assert_int_equal(rig_stats(&r).slots_used, 0);
    rig_done(&r);
}

static void without_a_free_slot_a_ring_user_waits_in_its_queue(void **state)
{
    (void)state;
    rig r = rig_make(options(1));
    cn_seq *a = rig_add(&r, 1, 4, 10, spade());
    cn_seq *b = rig_add(&r, 30, 4, 10, select_kv(CN_SELECT_LAST, 0));
    cn_seq *c = rig_add(&r, 60, 4, 10, rig_full());
    rig_steps(&r, 5);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_equal(b->n_blocks, 0);
    assert_int_equal(c->state, CN_SEQ_WAITING); /* none overtakes b */
    step_until(&r, a, CN_SEQ_FINISHED);
    rig_step(&r);
    assert_int_equal(b->query_slot, 0);
    assert_int_equal(c->state, CN_SEQ_RUNNING);
    rig_done(&r);
}

/* A slot without the blocks is not kept: another class may need it. */
static void without_its_blocks_a_ring_user_holds_no_slot(void **state)
{
    (void)state;
    cn_sched_opts o = options(1);
    o.n_blocks = 8;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 20, 8, rig_full());
    cn_seq *b = rig_add(&r, 50, 16, 4, spade());
    rig_steps(&r, 3);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    assert_int_equal(b->query_slot, -1);
    assert_int_equal(rig_stats(&r).slots_used, 0);
    step_until(&r, a, CN_SEQ_FINISHED);
    step_until(&r, b, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* Both are preempted for blocks. The tokens that the selector decoded are decoded again, one a
 * step; those of the other request are recomputed in a chunk. */
static void a_preempted_ring_user_gives_its_slot_back_and_decodes_again(void **state)
{
    (void)state;
    for (int selects = 0; selects < 2; selects++) {
        cn_sched_opts o = options(2);
        o.n_blocks = 8;
        o.prefix_caching = false;
        rig r = rig_make(o);
        rig_add(&r, 1, 8, 24, spade());
        cn_seq *b = rig_add(&r, 50, 8, 24, selects ? spade() : rig_full());
        rig_step(&r);
        assert_int_equal(rig_stats(&r).slots_used, 1 + selects);
        while (b->preemptions == 0) rig_step(&r);
        assert_int_equal(b->query_slot, -1);
        assert_int_equal(rig_stats(&r).slots_used, 1);
        const uint32_t known = b->n_tokens;
        assert_true(known > 10);
        step_until(&r, b, CN_SEQ_RUNNING);
        assert_int_equal(b->query_slot >= 0, selects);
        assert_int_equal(rig_row(&r, b)->n_new, selects ? 8 : known);
        for (uint32_t at = 8; selects && at < known; at++) {
            rig_step(&r);
            assert_int_equal(rig_row(&r, b)->n_new, 1);
            assert_int_equal(rig_row(&r, b)->first_slot, at);
            assert_true(rig_row(&r, b) < r.plan.rows + r.plan.n_decode);
        }
        step_until(&r, b, CN_SEQ_FINISHED);
        assert_int_equal(b->n_tokens, 32);
        rig_done(&r);
    }
}

static void a_prefix_hit_leaves_the_tokens_that_fill_the_ring(void **state)
{
    (void)state;
    const struct {
        uint32_t n_prompt;
        cn_kv_params kv;
        uint32_t n_cached;
    } cases[] = {{16, rig_full(), 12},
                 {16, select_kv(CN_SELECT_DS, 0), 12},
                 {16, select_kv(CN_SELECT_SPADE, 3), 12}, /* computes 12 .. 15: W + 1 */
                 {16, select_kv(CN_SELECT_SPADE, 4), 8},
                 {14, select_kv(CN_SELECT_LAST, 0), 12},
                 {13, select_kv(CN_SELECT_LAST, 0), 8},
                 {5, rig_full(), 4},
                 {5, select_kv(CN_SELECT_SPADE, 4), 0}};
    rig r = rig_make(options(8));
    rig_add(&r, 1, 17, 80, rig_full());
    rig_step(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_seq *q = rig_add(&r, 1, cases[i].n_prompt, 1, cases[i].kv);
        rig_step(&r);
        assert_int_equal(q->n_cached_tokens, cases[i].n_cached);
        assert_int_equal(q->state, CN_SEQ_FINISHED);
    }
    rig_done(&r);
}

static void a_fork_copies_the_ring_of_its_leader(void **state)
{
    (void)state;
    rig r = rig_make(options(2));
    cn_seq *q[3];
    assert_int_equal(rig_try_add(&r, 1, 10, 20, 3, spade(), q), CN_OK);
    rig_step(&r);
    assert_int_equal(r.plan.n_forks, 1);
    assert_int_equal(r.plan.fork_copies.n_slots, 1);
    assert_int_equal(r.plan.fork_copies.slots[0].src, (uint32_t)q[0]->query_slot);
    assert_int_equal(r.plan.fork_copies.slots[0].dst, (uint32_t)q[1]->query_slot);
    assert_int_equal(q[2]->state, CN_SEQ_WAITING); /* no slot is free */
    assert_int_equal(q[2]->n_blocks, 0);
    for (int i = 0; i < 3; i++) step_until(&r, q[i], CN_SEQ_FINISHED);
    assert_int_equal(q[2]->n_cached_tokens, 4); /* 7 .. 9 fill the ring */
    assert_int_equal(q[2]->n_tokens, 30);
    rig_done(&r);
}

static cn_seq *continue_tokens(rig *r, const cn_seq *from)
{
    cn_seq *q;
    const cn_group_params p = {.prompt = from->tokens,
                               .n_prompt = from->n_tokens,
                               .max_output = 1,
                               .n = 1,
                               .klass = CN_CLASS_BATCH,
                               .kv = rig_full()};
    assert_int_equal(cn_scheduler_add(r->s, &p, NULL, &q), CN_OK);
    rig_step(r);
    return q;
}

/* Prompts that continue the tokens of a normal request and of one with a selector. */
static void only_tokens_decoded_with_a_selector_stay_out_of_the_prefix_cache(void **state)
{
    (void)state;
    rig r = rig_make(options(4));
    cn_seq *normal = rig_add(&r, 1, 8, 60, rig_full());
    cn_seq *selects = rig_add(&r, 50, 8, 60, select_kv(CN_SELECT_DS, 0));
    rig_steps(&r, 12);
    assert_int_equal(selects->n_tokens, 20);
    assert_int_equal(continue_tokens(&r, normal)->n_cached_tokens, 16);
    assert_int_equal(continue_tokens(&r, selects)->n_cached_tokens, 8);
    rig_done(&r);
}

/* The prompt of another request is the prompt and the decoded tokens of q. */
static void tokens_decoded_with_a_selector_are_not_taken_from_a_prompt(void **state)
{
    (void)state;
    rig r = rig_make(options(4));
    cn_seq *q = rig_add(&r, 1, 8, 60, select_kv(CN_SELECT_DS, 0));
    rig_steps(&r, 12);
    continue_tokens(&r, q);
    cn_sched_preempt(r.s, q);
    rig_step(&r);
    assert_int_equal(rig_row(&r, q)->first_pos, 8);
    assert_int_equal(rig_row(&r, q)->n_new, 1);
    rig_done(&r);
}

/* Request b lacks a reservation, so one slot is free. It must not go to a batch ring user, which b
 * could wait for. An interactive one may take it. */
static void a_ring_user_takes_no_slot_that_a_running_request_lacks(void **state)
{
    (void)state;
    cn_sched_opts o = options(2);
    o.n_blocks = 16;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 1, 4, 20, rig_zip(8));   /* cap 3 */
    cn_seq *b = rig_add(&r, 30, 4, 60, rig_zip(52)); /* cap 14 */
    cn_seq *c = rig_add(&r, 60, 4, 8, spade());
    rig_steps(&r, 3);
    assert_true(a->query_slot >= 0);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(b->query_slot, -1);
    assert_int_equal(c->state, CN_SEQ_WAITING);
    cn_seq *now = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 4, 8, spade());
    rig_step(&r);
    assert_true(now->query_slot >= 0);
    step_until(&r, a, CN_SEQ_FINISHED);
    rig_steps(&r, 2);
    assert_true(b->query_slot >= 0);
    step_until(&r, c, CN_SEQ_FINISHED);
    step_until(&r, b, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* The only slot is that of a batch ring user. An interactive zip request waits for it and holds the
 * blocks that the ring user needs. The ring user cannot make way, because it would become aged. */
static void a_ring_user_that_waits_for_a_block_gives_up_its_slot(void **state)
{
    (void)state;
    cn_sched_opts o = options(1);
    o.n_blocks = 6;
    o.prefix_caching = false;
    rig r = rig_make(o);
    cn_seq *ring = rig_add(&r, 1, 4, 16, spade());
    rig_step(&r);
    ring->preemptions = CN_AGED_PREEMPTIONS - 1;
    cn_seq *zip = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 50, 4, 30, rig_zip(8));
    rig_steps(&r, 7);
    assert_int_equal(zip->n_computed, 10); /* its window begins here */
    assert_int_equal(zip->query_slot, -1);
    assert_true(ring->query_slot >= 0);
    for (int i = 0; zip->query_slot < 0; i++) {
        assert_true(i < 5);
        rig_step(&r);
    }
    assert_int_equal(ring->state, CN_SEQ_WAITING);
    assert_int_equal(ring->query_slot, -1);
    step_until(&r, zip, CN_SEQ_FINISHED);
    step_until(&r, ring, CN_SEQ_FINISHED);
    assert_int_equal(ring->n_tokens, 20);
    rig_done(&r);
}

/* A request whose first event counts every query needs its slot at once. One batch request has the
 * slot, another runs without one. */
static void a_batch_request_makes_way_for_a_slot_at_admission(void **state)
{
    (void)state;
    cn_sched_opts o = options(1);
    o.window_tokens = 40;
    rig r = rig_make(o);
    cn_seq *holder = rig_add(&r, 1, 4, 90, rig_zip(40));
    cn_seq *lacking = rig_add(&r, 50, 4, 90, rig_zip(40));
    rig_step(&r);
    rig_step(&r);
    assert_true(cn_seq_is_lacking(lacking) && holder->query_slot >= 0);
    cn_kv_params all = rig_zip(8);
    all.rule = CN_RULE_SCALED;
    all.observe_tokens = 40;
    cn_seq *now = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 4, 20, all);
    assert_int_equal(cn_seq_window_start(now), 0);
    rig_step(&r);
    assert_int_equal(now->state, CN_SEQ_RUNNING);
    assert_true(now->query_slot >= 0);
    step_until(&r, now, CN_SEQ_FINISHED);
    step_until(&r, holder, CN_SEQ_FINISHED);
    step_until(&r, lacking, CN_SEQ_FINISHED);
    rig_done(&r);
}

/* A batch request is preempted for an interactive one only if it holds the slot. */
static void a_batch_ring_user_makes_way_with_its_slot(void **state)
{
    (void)state;
    const cn_kv_params wants[] = {spade(), rig_zip(8)};
    for (int i = 0; i < 2; i++) {
        rig r = rig_make(options(1));
        cn_seq *ring = rig_add(&r, 1, 4, 40, spade());
        cn_seq *full = rig_add(&r, 50, 4, 40, rig_full());
        rig_step(&r);
        cn_seq *now = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 90, 10, 20, wants[i]);
        rig_step(&r);
        if (i == 1) rig_step(&r); /* zip runs to its window first */
        assert_int_equal(now->state, CN_SEQ_RUNNING);
        assert_true(now->query_slot >= 0);
        assert_int_equal(ring->state, CN_SEQ_WAITING);
        assert_int_equal(full->preemptions, 0);
        step_until(&r, now, CN_SEQ_FINISHED);
        step_until(&r, ring, CN_SEQ_FINISHED);
        rig_done(&r);
    }
}

static void zip_and_ring_users_share_the_slots_and_all_end(void **state)
{
    (void)state;
    cn_sched_opts o = options(2);
    o.n_blocks = 12;
    rig r = rig_make(o);
    cn_seq *q[8];
    for (uint32_t i = 0; i < 8; i++) {
        const cn_class klass = i % 3 == 2 ? CN_CLASS_INTERACTIVE : CN_CLASS_BATCH;
        q[i] = rig_add_of_class(&r, klass, 100 * i, 6, 30, i % 2 ? spade() : rig_zip(8));
        rig_steps(&r, 2);
    }
    for (int i = 0; i < 8; i++) {
        step_until(&r, q[i], CN_SEQ_FINISHED);
        assert_int_equal(q[i]->n_tokens, 36);
    }
    assert_int_equal(rig_stats(&r).slots_used, 0);
    rig_done(&r);
}

static void refused(const cn_sched_opts *o, cn_kv_params kv, const char *text)
{
    rig r = rig_make(*o);
    cn_seq *q;
    assert_int_equal(rig_try_add(&r, 1, 4, 4, 1, kv, &q), CN_ERR_ARG);
    if (!strstr(cn_last_error(), text)) fail_msg("%s", cn_last_error());
    rig_done(&r);
}

static void selectors_that_the_engine_has_no_room_for_are_refused(void **state)
{
    (void)state;
    cn_sched_opts o = options(4);
    refused(&o, select_kv(CN_SELECT_SPADE, 5), "select_window 5");
    cn_kv_params kv = spade();
    kv.select_tokens = 17;
    refused(&o, kv, "select_tokens 17");
    kv = spade();
    kv.policy = CN_KV_ZIP;
    kv.budget_tokens = 8;
    kv.window_tokens = WINDOW;
    kv.redundancy_tau = 0.4f;
    refused(&o, kv, "expected policy full");
    o.window_tokens = 2;
    refused(&o, spade(), "slots of 3 rows, but the engine's have 2");
    o.n_query_slots = 0;
    refused(&o, spade(), "slots of 3 rows, but the engine's have 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ring_of_a_request_is_its_window_or_that_of_its_selector),
        cmocka_unit_test(a_ring_user_has_a_slot_from_its_admission_to_its_end),
        cmocka_unit_test(without_a_free_slot_a_ring_user_waits_in_its_queue),
        cmocka_unit_test(without_its_blocks_a_ring_user_holds_no_slot),
        cmocka_unit_test(a_preempted_ring_user_gives_its_slot_back_and_decodes_again),
        cmocka_unit_test(a_prefix_hit_leaves_the_tokens_that_fill_the_ring),
        cmocka_unit_test(a_fork_copies_the_ring_of_its_leader),
        cmocka_unit_test(only_tokens_decoded_with_a_selector_stay_out_of_the_prefix_cache),
        cmocka_unit_test(tokens_decoded_with_a_selector_are_not_taken_from_a_prompt),
        cmocka_unit_test(a_ring_user_takes_no_slot_that_a_running_request_lacks),
        cmocka_unit_test(a_ring_user_that_waits_for_a_block_gives_up_its_slot),
        cmocka_unit_test(a_batch_request_makes_way_for_a_slot_at_admission),
        cmocka_unit_test(a_batch_ring_user_makes_way_with_its_slot),
        cmocka_unit_test(zip_and_ring_users_share_the_slots_and_all_end),
        cmocka_unit_test(selectors_that_the_engine_has_no_room_for_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
