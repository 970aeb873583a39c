/* sched_way.c - preempts or swaps out batch sequences to make room for an interactive sequence.
 * See sched_state.h; DESIGN.md §3.4.
 *
 * The interactive sequence is the head of its queue and lacks a seat or blocks, or it runs and
 * cannot advance without a slot or reservation. Batch sequences that can be recomputed are
 * preempted first, last admitted first. Compressed ones cannot be recomputed; they move to the swap
 * space if there is one. No sequence is moved unless the interactive one then gets all it needs. */
#include "scheduler/sched_state.h"

/* Amounts of each resource, free or needed. */
typedef struct room {
    uint64_t blocks;
    uint32_t seats, slots, reservable;
} room;

static room free_room(const cn_scheduler *s)
{
    return (room){.blocks = cn_pool_available(s->device.blocks),
                  .seats = s->o.max_seqs - s->running.n,
                  .slots = cn_space_free_slots(&s->device),
                  .reservable = cn_space_reservable_blocks(&s->device)};
}

static bool suffices(const room *have, const room *want)
{
    return have->blocks >= want->blocks && have->seats >= want->seats &&
           have->slots >= want->slots && have->reservable >= want->reservable;
}

/* Blocks that become available when q leaves the batch. */
static uint32_t count_own(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n_blocks; i++)
        n += cn_pool_refs(s->device.blocks, q->table[i]) == 1;
    return n;
}

static void add_held(const cn_scheduler *s, const cn_seq *v, room *have)
{
    have->blocks += count_own(s, v);
    have->seats++;
    have->slots += v->query_slot >= 0;
    if (v->sched->hold != CN_HOLD_NONE) have->reservable += v->n_max + v->sched->n_relaxed;
}

/* Returns true when q is a batch sequence that may be preempted for an interactive one: it can be
 * recomputed, was not admitted by the batch floor, and would not become aged. */
static bool makes_way(const cn_seq *q)
{
    return q->klass == CN_CLASS_BATCH && q->state == CN_SEQ_RUNNING &&
           q->usage_kv.compressions == 0 && !q->sched->by_floor &&
           q->preemptions + 1 < CN_AGED_PREEMPTIONS;
}

/* Returns true when v holds the kind of resource that is needed: a seat, or a slot or
 * reservation. */
static bool helps(const cn_seq *v, const room *want)
{
    return want->seats > 0 || v->sched->hold != CN_HOLD_NONE;
}

static cn_seq *before(const cn_seq *q) { return q->sched->links[CN_LINK_RUNNING].prev; }

/* Preempts and swaps out as few sequences as needed to free the room `want`. Returns false and
 * changes nothing when all of them together would not free enough. */
static bool try_make_room(cn_scheduler *s, const room *want)
{
    room have = free_room(s);
    cn_swap_room left = cn_sched_swap_room(s);
    uint32_t n_preempt = 0, n_swap = 0;
    for (const cn_seq *v = s->running.tail; v && !suffices(&have, want); v = before(v)) {
        if (!makes_way(v) || !helps(v, want)) continue;
        add_held(s, v, &have);
        n_preempt++;
    }
    for (const cn_seq *v = s->running.tail; v && !suffices(&have, want); v = before(v)) {
        if (!cn_sched_is_movable(s, v) || !cn_sched_try_room(s, v, &left)) continue;
        add_held(s, v, &have);
        n_swap++;
    }
    if (!suffices(&have, want)) return false;
    for (cn_seq *v = s->running.tail, *next; n_preempt > 0; v = next) {
        next = before(v);
        if (!makes_way(v) || !helps(v, want)) continue;
        cn_sched_preempt(s, v);
        n_preempt--;
    }
    for (cn_seq *v = s->running.tail, *next; n_swap > 0; v = next) {
        next = before(v);
        n_swap -= cn_sched_is_movable(s, v) && cn_sched_try_swap_out(s, v);
    }
    return true;
}

void cn_sched_make_way(cn_scheduler *s)
{
    cn_seq *q = cn_sched_next_interactive(s);
    if (!q) return;
    room want = {.blocks = cn_sched_count_wanted(s, q), .seats = 1};
    if (cn_seq_needs_hold(q) && !s->o.hybrid) {
        want.slots = cn_policy_needs_slot(&q->kv);
        want.reservable = q->n_max;
    }
    try_make_room(s, &want);
}

static bool is_stuck(const cn_scheduler *s, const cn_seq *q)
{
    return q->klass == CN_CLASS_INTERACTIVE && cn_seq_is_lacking(q) &&
           q->n_computed < cn_seq_end(q) && q->n_computed == cn_seq_limit(s, q);
}

void cn_sched_make_way_to_hold(cn_scheduler *s)
{
    const cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    if (s->n_lacking == 0) return;
    /* Slots are granted foremost first, so batch sequences ahead of q that lack one must go back to
     * the queue. */
    cn_seq *q = none->head;
    uint32_t n_ahead = 0;
    for (; q && !is_stuck(s, q); q = cn_seq_list_next(none, q)) {
        if (!cn_seq_is_lacking(q)) continue;
        if (!makes_way(q)) return;
        n_ahead++;
    }
    if (!q) return;
    const room want = {.slots = cn_policy_needs_slot(&q->kv), .reservable = q->n_max};
    if (!try_make_room(s, &want)) return;
    for (cn_seq *v = none->head, *next; n_ahead > 0; v = next) {
        next = cn_seq_list_next(none, v);
        if (!cn_seq_is_lacking(v)) continue;
        cn_sched_preempt(s, v);
        n_ahead--;
    }
    cn_sched_grant(s);
}
