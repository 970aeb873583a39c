/* sched_auto.c - the home of requests with home `auto`: chosen at each admission, and changed once
 * for a running one when blocks are short. See sched_state.h; HOMES.md.
 *
 * The choice is the device if the sequence fits there to its end, else `peer`, else `host`; else
 * the sequence waits. It fits on the device when the blocks that all running sequences can come to
 * hold, and its own, are not more than the pool has. Such a sequence lacks no block until sequences
 * are admitted without this rule: with another home, or without `auto`. */
#include "scheduler/sched_state.h"

void cn_seq_set_home(cn_seq *q, cn_kv_home home)
{
    cn_seq_sched *st = q->sched;
    CN_ASSERT(st->homes >> home & 1 && q->n_home_blocks == 0);
    const cn_seq_form *form = &st->forms[home];
    q->kv = form->kv;
    q->n_max = form->n_max;
    st->trigger = form->trigger;
    st->max_blocks = form->max_blocks;
    st->n_home = form->n_home;
    st->home = form->home;
}

uint64_t cn_seq_committed(const cn_seq *q)
{
    const bool compressed = q->usage_kv.compressions > 0;
    return compressed ? q->n_max : q->sched->max_blocks;
}

uint64_t cn_sched_count_committed(const cn_scheduler *s)
{
    uint64_t n = 0;
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q))
        n += cn_seq_committed(q);
    return n;
}

/* Returns true when q fits to its end with the home that it has now. */
static bool fits_to_end(const cn_scheduler *s, const cn_seq *q)
{
    if (cn_kv_is_away(&q->kv)) return !cn_sched_lacks_home(q);
    const uint64_t committed = cn_sched_count_committed(s), n_total = s->o.n_blocks;
    const uint64_t n_left = n_total > committed ? n_total - committed : 0;
    if (cn_home_longest(n_left, 1, s->o.block_tokens) < q->max_tokens - 1) return false;
    if (!cn_seq_is_ring_user(q)) return true;
    return cn_space_free_slots(&s->device) > 0 && !cn_sched_lacks_slot(s, q->klass);
}

bool cn_sched_choose_home(cn_scheduler *s, cn_seq *q)
{
    const cn_seq_sched *st = q->sched;
    if (!st->chooses) return true;
    if (q->n_pending > 0) return false; /* the token of a launched step is counted for its home */
    for (int h = 0; h < CN_N_HOMES; h++) {
        if (!(st->homes >> h & 1)) continue;
        cn_seq_set_home(q, (cn_kv_home)h);
        if (fits_to_end(s, q)) return true;
    }
    for (int h = CN_N_HOMES; h-- > 0;)
        if (st->homes >> h & 1) cn_seq_set_home(q, (cn_kv_home)h);
    return false;
}

bool cn_sched_follow_home(cn_scheduler *s, cn_seq *q, const cn_seq *leader)
{
    if (!q->sched->chooses) return true;
    cn_seq_set_home(q, cn_seq_home(s, leader));
    return fits_to_end(s, q);
}

void cn_sched_count_choice(cn_scheduler *s, cn_seq *q)
{
    if (!q->sched->chooses) return;
    q->usage_kv.params = q->kv;
    s->stats.auto_admissions[cn_seq_home(s, q)]++;
}

/* ---- the move ---- */

/* Returns true when q can begin its first event with this home: at a block boundary, as a sequence
 * that had the home from its admission. A ring that it needs there must be filled, so a sequence
 * without one stays.
 * Policy `zip` has not observed the queries that its event reads. */
static bool can_move(const cn_scheduler *s, const cn_seq *q, cn_kv_home home)
{
    const cn_seq_sched *st = q->sched;
    const cn_seq_form *form = &st->forms[home];
    const cn_home_room left = cn_sched_home_room(&s->home[home]);
    const bool ready = q->query_slot >= 0 || !cn_kv_needs_slot(&form->kv);
    return st->homes >> home & 1 && ready && form->kv.policy == CN_KV_WINDOW && form->n_home > 0 &&
           q->n_blocks >= form->n_max && left.slots > 0 && left.blocks >= form->n_home &&
           cn_space_reservable_blocks(&s->device) >= form->n_max &&
           cn_seq_count_shared(s, q, form->n_max - 1) <= cn_pool_available(s->device.blocks);
}

/* Returns the home to which q can move, or CN_HOME_DEVICE if it cannot. */
static cn_kv_home find_home(const cn_scheduler *s, const cn_seq *q)
{
    const cn_seq_sched *st = q->sched;
    const bool full = q->n_resident == q->n_blocks * s->o.block_tokens;
    if (!st->chooses || q->state != CN_SEQ_RUNNING || cn_kv_is_away(&q->kv) || !full ||
        q->n_computed < q->n_prompt || st->samples || q->n_computed >= q->max_tokens - 1)
        return CN_HOME_DEVICE;
    for (int h = CN_HOME_DEVICE + 1; h < CN_N_HOMES; h++)
        if (can_move(s, q, (cn_kv_home)h)) return (cn_kv_home)h;
    return CN_HOME_DEVICE;
}

/* Returns the last sequence of a class that can move and has no sequence ahead of it that lacks a
 * slot or reservation, because reservations go to the foremost. */
static cn_seq *find_last(const cn_scheduler *s, cn_class klass)
{
    cn_seq *last = NULL;
    for (cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        if (cn_seq_is_lacking(q)) break;
        if (q->klass == klass && find_home(s, q) != CN_HOME_DEVICE) last = q;
    }
    return last;
}

cn_seq *cn_sched_try_move(cn_scheduler *s)
{
    cn_seq *q = find_last(s, CN_CLASS_BATCH);
    if (!q) q = find_last(s, CN_CLASS_INTERACTIVE);
    if (!q) return NULL;
    cn_seq_sched *st = q->sched;
    int32_t no_slot; /* it has its slot already */
    cn_seq_set_home(q, find_home(s, q));
    st->trigger = q->n_resident;
    st->max_blocks = q->n_blocks;
    cn_seq_list_remove(&s->by_hold[CN_HOLD_NONE], q);
    cn_seq_list_append(&s->by_hold[CN_HOLD_GRANTED], q);
    st->hold = CN_HOLD_GRANTED;
    const bool moved = cn_space_try_hold(&s->device, q->n_max, false, &no_slot) &&
                       cn_sched_try_home(s, q) && cn_sched_try_event(s, q);
    CN_ASSERT(moved);
    st->moving = true;
    s->n_moving++;
    q->usage_kv.params = q->kv;
    s->stats.auto_moves++;
    return q;
}

uint32_t cn_sched_count_moving(const cn_scheduler *s)
{
    uint32_t n = 0;
    for (const cn_seq *q = s->running.head; q && s->n_moving > 0;
         q = cn_seq_list_next(&s->running, q))
        n += q->sched->moving ? q->n_blocks - q->n_max : 0;
    return n;
}
