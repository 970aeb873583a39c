/* test_sched_auto.c - requests with home `auto`: the home that an admission chooses, and the move
 * of a running request from the device to another home. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "scheduler/sched_state.h"
#include "tests/lib/sched_rig.h"

enum { N_PEER = 22, N_HOST = 40, N_HOME_SLOTS = 4, MAX_STEPS = 400 };

static cn_sched_opts options(void)
{
    cn_sched_opts o = rig_options();
    o.window_tokens = 5;
    o.select_most = (cn_kv_params){
        .select_tokens = 16, .select_tiles = 1, .select_window = 4, .sink_tokens = 64};
    o.n_home_blocks[CN_HOME_PEER] = N_PEER;
    o.n_home_slots[CN_HOME_PEER] = N_HOME_SLOTS;
    o.n_home_blocks[CN_HOME_HOST] = N_HOST;
    o.n_home_slots[CN_HOME_HOST] = N_HOME_SLOTS;
    o.auto_homes = 1U << CN_HOME_DEVICE | 1U << CN_HOME_PEER | 1U << CN_HOME_HOST;
    return o;
}

/* Elsewhere X is 2, N_max is 5 and the first event is at 20 slots. The ring has 5 rows. */
static cn_kv_params any_home(void)
{
    cn_kv_params kv = rig_window(8);
    kv.home = CN_HOME_AUTO;
    kv.select = CN_SELECT_SPADE;
    kv.select_tokens = 7;
    kv.select_window = 4;
    return kv;
}

static uint32_t free_blocks(const rig *r, cn_kv_home home)
{
    return cn_space_free_blocks(&r->s->home[home]);
}

static void expect_empty(const rig *r)
{
    const cn_stats st = rig_stats(r);
    assert_int_equal(st.blocks_used, 0);
    assert_int_equal(st.slots_used, 0);
    assert_int_equal(st.home_blocks_used, 0);
    for (int h = CN_HOME_PEER; h <= CN_HOME_HOST; h++)
        assert_int_equal(cn_space_free_slots(&r->s->home[h]),
                         cn_space_total_slots(&r->s->home[h]));
    assert_int_equal(r->s->device.n_holders, 0);
    assert_int_equal(r->s->device.reserved_blocks, 0);
}

static void step_to_the_end(rig *r)
{
    for (int i = 0; rig_stats(r).running + rig_stats(r).waiting > 0; i++) {
        assert_true(i < MAX_STEPS);
        rig_step(r);
    }
    expect_empty(r);
}

/* ---- the choice ---- */

static void the_first_home_where_a_request_fits_is_chosen(void **state)
{
    (void)state;
    rig r = rig_make(options());
    static const cn_kv_home expected[] = {CN_HOME_DEVICE, CN_HOME_DEVICE, CN_HOME_DEVICE,
                                          CN_HOME_PEER,   CN_HOME_PEER,   CN_HOME_HOST};
    cn_seq *q[6];
    /* 41 tokens are at most 10 device blocks of 32, or 11 blocks elsewhere. */
    for (uint32_t i = 0; i < 6; i++) q[i] = rig_add(&r, 100 * i, 9, 32, any_home());
    assert_int_equal(q[0]->usage_kv.params.home, CN_HOME_AUTO);
    rig_step(&r);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(q[i]->state, CN_SEQ_RUNNING);
        assert_int_equal(q[i]->kv.home, expected[i]);
        assert_int_equal(q[i]->usage_kv.params.home, expected[i]);
        assert_int_equal(q[i]->kv.policy,
                         expected[i] == CN_HOME_DEVICE ? CN_KV_FULL : CN_KV_WINDOW);
        assert_int_equal(q[i]->n_home_blocks, expected[i] == CN_HOME_DEVICE ? 0 : 11);
    }
    const cn_stats st = rig_stats(&r);
    assert_int_equal(st.auto_admissions[CN_HOME_DEVICE], 3);
    assert_int_equal(st.auto_admissions[CN_HOME_PEER], 2);
    assert_int_equal(st.auto_admissions[CN_HOME_HOST], 1);
    assert_int_equal(free_blocks(&r, CN_HOME_PEER), 0);
    assert_int_equal(free_blocks(&r, CN_HOME_HOST), N_HOST - 11);
    step_to_the_end(&r);
    rig_done(&r);
}

static void a_request_that_fits_nowhere_waits(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_blocks[CN_HOME_PEER] = o.n_home_blocks[CN_HOME_HOST] = 20;
    rig r = rig_make(o);
    cn_seq *q[4];
    /* 71 tokens: 18 blocks anywhere. */
    for (uint32_t i = 0; i < 4; i++) q[i] = rig_add(&r, 100 * i, 10, 61, any_home());
    rig_step(&r);
    assert_int_equal(q[0]->kv.home, CN_HOME_DEVICE);
    assert_int_equal(q[1]->kv.home, CN_HOME_PEER);
    assert_int_equal(q[2]->kv.home, CN_HOME_HOST);
    assert_int_equal(q[3]->state, CN_SEQ_WAITING);
    rig_steps(&r, 5);
    assert_int_equal(q[3]->state, CN_SEQ_WAITING);
    cn_scheduler_finish(r.s, q[1]);
    rig_step(&r);
    assert_int_equal(q[3]->state, CN_SEQ_RUNNING);
    assert_int_equal(q[3]->kv.home, CN_HOME_PEER);
    step_to_the_end(&r);
    rig_done(&r);
}

/* An explicit home follows the old rules: it may be admitted where it does not fit to its end. */
static void the_rule_is_for_home_auto_alone(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_kv_params device = any_home();
    device.home = CN_HOME_DEVICE;
    device.policy = CN_KV_FULL;
    cn_seq *a = rig_add(&r, 0, 10, 61, device), *b = rig_add(&r, 100, 10, 61, device);
    cn_seq *c = rig_add(&r, 200, 10, 61, any_home());
    rig_step(&r);
    assert_int_equal(a->state, CN_SEQ_RUNNING);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    assert_int_equal(c->kv.home, CN_HOME_PEER);
    assert_int_equal(rig_stats(&r).auto_admissions[CN_HOME_DEVICE], 0);
    step_to_the_end(&r);
    rig_done(&r);
}

static void without_another_home_the_device_is_chosen(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.auto_homes = 1U << CN_HOME_DEVICE;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 0, 10, 61, any_home()), *b = rig_add(&r, 100, 10, 61, any_home());
    rig_step(&r);
    assert_int_equal(a->kv.home, CN_HOME_DEVICE);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    step_to_the_end(&r);
    assert_int_equal(b->usage_kv.params.home, CN_HOME_DEVICE);
    rig_done(&r);
    o.auto_homes = 0;
    r = rig_make(o);
    cn_seq *none;
    assert_int_equal(rig_try_add(&r, 1, 10, 31, 1, any_home(), &none), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "kv home auto, but the engine has no home to choose"));
    rig_done(&r);
}

/* Invalid parameters of one home refuse the request, and do not take the home away. */
static void a_request_that_one_home_cannot_run_is_refused(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *none;
    cn_kv_params kv = any_home();
    kv.sink_tokens = 9; /* the window of 8 tokens has no room for them */
    assert_int_equal(rig_try_add(&r, 1, 10, 31, 1, kv, &none), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "sinks of 9"));
    kv.home = CN_HOME_DEVICE;
    kv.policy = CN_KV_FULL;
    cn_seq *q;
    assert_int_equal(rig_try_add(&r, 1, 10, 31, 1, kv, &q), CN_OK);
    step_to_the_end(&r);
    rig_done(&r);
}

/* A home that is too small for the request is none of its homes; one must be large enough. */
static void a_request_too_long_for_every_home_is_refused(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 16;
    o.n_home_blocks[CN_HOME_PEER] = 11;
    o.n_home_blocks[CN_HOME_HOST] = 20;
    rig r = rig_make(o);
    cn_seq *q = rig_add(&r, 0, 10, 61, any_home()); /* 18 blocks */
    rig_step(&r);
    assert_int_equal(q->kv.home, CN_HOME_HOST);
    assert_int_equal(q->sched->homes, 1U << CN_HOME_HOST);
    cn_seq *none;
    assert_int_equal(rig_try_add(&r, 1, 10, 80, 1, any_home(), &none), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "but the pool has 16"));
    step_to_the_end(&r);
    rig_done(&r);
}

/* Nothing is gained elsewhere by a request that ends before its first event there. */
static void a_short_request_waits_for_the_device(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 8;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 0, 10, 11, any_home()), *b = rig_add(&r, 100, 10, 11, any_home());
    rig_step(&r);
    assert_int_equal(a->kv.home, CN_HOME_DEVICE);
    assert_int_equal(b->state, CN_SEQ_WAITING);
    step_to_the_end(&r);
    rig_done(&r);
}

/* A preempted request chooses again. */
static void a_new_admission_chooses_again(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.auto_homes = 1U << CN_HOME_DEVICE | 1U << CN_HOME_HOST;
    rig r = rig_make(o);
    cn_seq *q = rig_add(&r, 0, 10, 61, any_home());
    rig_steps(&r, 30);
    assert_int_equal(q->kv.home, CN_HOME_DEVICE);
    const uint32_t n_tokens = q->n_tokens;
    cn_sched_preempt(r.s, q);
    /* It decodes its tokens again, past its first event, and none of them has a sample. */
    cn_seq *full = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 300, 50, 40, rig_full());
    rig_step(&r);
    assert_int_equal(q->kv.home, CN_HOME_HOST);
    while (q->n_computed < n_tokens - 1) {
        assert_int_equal(q->n_tokens, n_tokens);
        rig_step(&r);
    }
    assert_true(q->home_len > 0);
    assert_int_equal(rig_stats(&r).auto_moves, 0);
    assert_int_equal(rig_stats(&r).auto_admissions[CN_HOME_HOST], 1);
    cn_scheduler_finish(r.s, full);
    step_to_the_end(&r);
    rig_done(&r);
}

/* An interactive request takes the room of batch requests, as much as it needs to its end. */
static void batch_requests_make_room_to_the_end(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.auto_homes = 1U << CN_HOME_DEVICE;
    rig r = rig_make(o);
    cn_seq *a = rig_add(&r, 0, 4, 40, rig_full()), *b = rig_add(&r, 100, 4, 40, rig_full());
    rig_step(&r);
    assert_int_equal(b->state, CN_SEQ_RUNNING);
    cn_seq *q = rig_add_of_class(&r, CN_CLASS_INTERACTIVE, 200, 10, 61, any_home());
    rig_step(&r);
    assert_int_equal(q->state, CN_SEQ_RUNNING); /* 18 blocks and 11 of a, of 32 */
    assert_int_equal(a->state, CN_SEQ_RUNNING);
    assert_int_equal(b->preemptions, 1);
    step_to_the_end(&r);
    rig_done(&r);
}

/* Samples have the home of their leader, or choose from the queue. */
static void samples_follow_their_leader_where_they_fit(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q[4];
    assert_int_equal(rig_try_add(&r, 0, 10, 31, 4, any_home(), q), CN_OK);
    rig_steps(&r, 2);
    assert_int_equal(q[0]->kv.home, CN_HOME_DEVICE);
    assert_int_equal(q[1]->kv.home, CN_HOME_DEVICE);
    assert_int_equal(q[2]->kv.home, CN_HOME_DEVICE);
    assert_int_equal(q[3]->kv.home, CN_HOME_PEER); /* 4 * 10 blocks exceed 32 */
    assert_int_equal(rig_stats(&r).auto_admissions[CN_HOME_DEVICE], 3);
    for (int i = 0; i < 3; i++) assert_true(q[i]->n_computed >= q[i]->n_prompt);
    for (uint32_t n = 0; n < MAX_STEPS && rig_stats(&r).running > 0; n++) {
        rig_step(&r);
        for (int i = 0; i < 4; i++)
            if (q[i]->state == CN_SEQ_RUNNING && q[i]->n_tokens == q[i]->max_tokens)
                cn_scheduler_finish(r.s, q[i]);
    }
    expect_empty(&r);
    rig_done(&r);
}

static void a_slow_home_is_not_chosen_where_the_device_fits(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_scheduler_set_slow_homes(r.s, 1U << CN_HOME_PEER);
    cn_seq *q[4];
    for (uint32_t i = 0; i < 4; i++) q[i] = rig_add(&r, 100 * i, 9, 32, any_home());
    rig_step(&r);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(q[i]->usage_kv.params.home, i < 3 ? CN_HOME_DEVICE : CN_HOME_HOST);
    step_to_the_end(&r);
    rig_done(&r);
}

/* A request that the device can never hold runs in the only home where it fits. */
static void a_slow_home_takes_what_is_too_long_for_the_device(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 16;
    rig r = rig_make(o);
    cn_scheduler_set_slow_homes(r.s, 1U << CN_HOME_PEER | 1U << CN_HOME_HOST);
    cn_seq *longest = rig_add(&r, 0, 10, 61, any_home()); /* 18 blocks */
    cn_seq *other = rig_add(&r, 100, 9, 32, any_home());
    assert_int_equal(other->sched->homes, 1U << CN_HOME_DEVICE);
    rig_step(&r);
    assert_int_equal(longest->state, CN_SEQ_RUNNING);
    assert_int_equal(longest->kv.home, CN_HOME_PEER);
    step_to_the_end(&r);
    assert_int_equal(other->usage_kv.params.home, CN_HOME_DEVICE);
    rig_done(&r);
}

/* ---- the move ---- */

/* Steps until an event begins and returns it. */
static const cn_sched_event *step_to_event(rig *r)
{
    for (int i = 0; i < MAX_STEPS; i++) {
        rig_step(r);
        if (r->begin.n_events > 0) return r->begin.events[0];
    }
    fail_msg("no event began");
    return NULL;
}

/* A request with home `auto` of up to 20 blocks, and then one with full KV of up to 17, in a pool
 * of 32. */
static void add_both(rig *r, cn_kv_params kv, cn_seq **q, cn_seq **full)
{
    *q = rig_add(r, 0, 10, 70, kv);
    rig_step(r);
    *full = rig_add(r, 100, 10, 58, rig_full());
}

static void a_request_moves_before_another_is_preempted(void **state)
{
    (void)state;
    rig r = rig_make(options());
    cn_seq *q, *full;
    add_both(&r, any_home(), &q, &full);
    cn_seq *last = rig_add(&r, 200, 5, 42, rig_full()); /* would be preempted */
    r.hold_events = true;
    const cn_sched_event *e = step_to_event(&r);
    const uint32_t n = q->n_blocks, at = q->n_computed;
    assert_ptr_equal(e->seq, q);
    assert_int_equal(q->state, CN_SEQ_COMPRESSING);
    assert_int_equal(q->kv.home, CN_HOME_PEER);
    assert_int_equal(q->usage_kv.params.home, CN_HOME_PEER);
    assert_int_equal(at, n * B);
    assert_int_equal(e->n_puts, n);
    assert_int_equal(e->home_len, at);
    assert_int_equal(e->n_exchange, 2);
    assert_int_equal(q->n_home_blocks, 20);
    assert_true(q->query_slot >= 0);
    assert_int_equal(e->req.query_slot, q->query_slot);
    assert_int_equal(r.s->device.reserved_blocks, 5);
    /* The others wait in place for the blocks that the move frees. */
    rig_steps(&r, 6);
    assert_int_equal(full->state, CN_SEQ_RUNNING);
    assert_int_equal(last->state, CN_SEQ_RUNNING);
    assert_null(rig_row(&r, full));
    assert_null(rig_row(&r, last));
    r.hold_events = false;
    cn_scheduler_event_done(r.s, &q->sched->event);
    rig_step(&r);
    assert_int_equal(q->state, CN_SEQ_RUNNING);
    assert_int_equal(q->home_len, at);
    assert_int_equal(q->n_blocks, 5);
    assert_non_null(rig_row(&r, full));
    step_to_the_end(&r);
    const cn_stats st = rig_stats(&r);
    assert_int_equal(st.preemptions, 0);
    assert_int_equal(st.auto_moves, 1);
    assert_int_equal(st.auto_admissions[CN_HOME_DEVICE], 1);
    rig_done(&r);
}

/* The last request of the batch class moves, and `host` takes what `peer` has no room for. */
static void the_last_one_moves_to_the_first_home_with_room(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_home_blocks[CN_HOME_PEER] = 10;
    rig r = rig_make(o);
    cn_seq *first = rig_add(&r, 0, 10, 38, any_home()); /* 12 blocks */
    cn_seq *second = rig_add(&r, 100, 10, 46, any_home()); /* 14 blocks */
    rig_step(&r);
    rig_add(&r, 200, 10, 44, rig_full()); /* 14 blocks */
    const cn_sched_event *e = step_to_event(&r);
    assert_ptr_equal(e->seq, second);
    assert_int_equal(second->kv.home, CN_HOME_HOST);
    assert_int_equal(first->kv.home, CN_HOME_DEVICE);
    step_to_the_end(&r);
    assert_int_equal(rig_stats(&r).preemptions, 0);
    rig_done(&r);
}

/* No request moves without a home, with policy `zip` there, or without home blocks or a home slot.
 * The last one without a reservation is then preempted. */
static void a_request_that_cannot_move_does_not(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        cn_sched_opts o = options();
        cn_kv_params kv = any_home();
        if (i == 0) o.auto_homes = 1U << CN_HOME_DEVICE;
        if (i == 1) o.n_home_blocks[CN_HOME_PEER] = o.n_home_blocks[CN_HOME_HOST] = 19;
        if (i == 2) {
            kv.policy = CN_KV_ZIP;
            kv.window_tokens = 3;
            kv.alpha = 0.8f;
            kv.redundancy_tau = 0.4f;
        }
        if (i == 3) o.n_home_slots[CN_HOME_PEER] = o.n_home_slots[CN_HOME_HOST] = 0;
        rig r = rig_make(o);
        cn_seq *q, *full;
        add_both(&r, kv, &q, &full);
        step_to_the_end(&r);
        assert_int_equal(rig_stats(&r).auto_moves, 0);
        assert_true(rig_stats(&r).preemptions > 0);
        assert_int_equal(q->usage_kv.params.home, CN_HOME_DEVICE);
        rig_done(&r);
    }
}

/* `tls` has no ring of queries on the device. Elsewhere its area has 16 blocks and N_max is 35. */
static void a_request_without_a_ring_does_not_move(void **state)
{
    (void)state;
    cn_sched_opts o = options();
    o.n_blocks = 64;
    o.max_model_len = 400;
    o.n_home_blocks[CN_HOME_PEER] = 80;
    rig r = rig_make(o);
    cn_kv_params kv = any_home();
    kv.select = CN_SELECT_TLS;
    kv.select_tiles = 1;
    kv.budget_tokens = 72;
    cn_seq *q = rig_add(&r, 0, 10, 230, kv);
    rig_step(&r);
    assert_int_equal(q->kv.home, CN_HOME_DEVICE);
    assert_int_equal(q->sched->forms[CN_HOME_PEER].n_max, 35);
    for (int i = 0; q->n_blocks < 38 && i < MAX_STEPS; i++) rig_step(&r);
    rig_add(&r, 100, 40, 80, rig_full());
    bool could = false;
    for (int i = 0; rig_stats(&r).running > 0 && i < 2 * MAX_STEPS; i++) {
        rig_step(&r);
        could |= q->n_blocks >= 35 && cn_pool_available(r.s->device.blocks) == 0;
    }
    assert_true(could);
    assert_int_equal(rig_stats(&r).auto_moves, 0);
    expect_empty(&r);
    rig_done(&r);
}

/* Whatever it does, a request that ends returns all it holds. */
static void a_request_can_end_in_every_state(void **state)
{
    (void)state;
    for (int when = 0; when < 5; when++) {
        rig r = rig_make(options());
        cn_seq *q, *full;
        add_both(&r, any_home(), &q, &full);
        if (when == 0) cn_scheduler_finish(r.s, rig_add(&r, 200, 10, 70, any_home()));
        if (when > 0) rig_step(&r);
        if (when > 1) {
            r.hold_events = when == 2;
            step_to_event(&r);
        }
        if (when == 3) rig_step(&r);
        assert_int_equal(q->state, when == 2 ? CN_SEQ_COMPRESSING : CN_SEQ_RUNNING);
        if (when == 4) rig_steps(&r, 12);
        cn_scheduler_finish(r.s, q);
        rig_check(&r);
        if (when == 2) {
            assert_int_equal(r.s->n_moving, 1);
            cn_scheduler_event_done(r.s, &q->sched->event);
            r.hold_events = false;
        }
        rig_step(&r);
        assert_int_equal(q->state, CN_SEQ_FINISHED);
        assert_int_equal(r.s->n_moving, 0);
        step_to_the_end(&r);
        rig_done(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_home_where_a_request_fits_is_chosen),
        cmocka_unit_test(a_slow_home_is_not_chosen_where_the_device_fits),
        cmocka_unit_test(a_slow_home_takes_what_is_too_long_for_the_device),
        cmocka_unit_test(a_request_that_fits_nowhere_waits),
        cmocka_unit_test(the_rule_is_for_home_auto_alone),
        cmocka_unit_test(without_another_home_the_device_is_chosen),
        cmocka_unit_test(a_request_that_one_home_cannot_run_is_refused),
        cmocka_unit_test(a_request_too_long_for_every_home_is_refused),
        cmocka_unit_test(a_short_request_waits_for_the_device),
        cmocka_unit_test(a_new_admission_chooses_again),
        cmocka_unit_test(batch_requests_make_room_to_the_end),
        cmocka_unit_test(samples_follow_their_leader_where_they_fit),
        cmocka_unit_test(a_request_moves_before_another_is_preempted),
        cmocka_unit_test(the_last_one_moves_to_the_first_home_with_room),
        cmocka_unit_test(a_request_that_cannot_move_does_not),
        cmocka_unit_test(a_request_without_a_ring_does_not_move),
        cmocka_unit_test(a_request_can_end_in_every_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
