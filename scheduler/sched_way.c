/* sched_way.c - preempts or swaps out batch sequences to make room for an interactive sequence, and
 * interactive ones of an owner with several for one of an owner without any. See sched_state.h;
 * DESIGN.md §3.4.
 *
 * The interactive sequence is the head of its queue and lacks a seat, blocks, home blocks or the
 * slot of its ring, or it runs and cannot advance without a slot or reservation. Batch sequences
 * that hold what it lacks leave the batch, the last admitted first. Those that can be recomputed
 * are preempted first. Compressed ones cannot be recomputed; they move to the swap space if there
 * is one. No sequence is moved unless the interactive one then gets all it needs. */
#include "scheduler/sched_state.h"

/* Amounts of each resource, free or needed. */
typedef struct room {
    uint64_t blocks, to_end; /* to_end: blocks that no running sequence can come to hold */
    uint32_t seats, slots, reservable;
    cn_home_room home; /* of the home of the interactive sequence */
} room;

static room free_room(const cn_scheduler *s, const cn_space *home)
{
    const uint64_t committed = cn_sched_count_committed(s), n_total = s->o.n_blocks;
    /* Lent blocks come back without a preemption. */
    return (room){.blocks = cn_pool_available(s->device.blocks) + (uint64_t)s->n_lent,
                  .to_end = n_total > committed ? n_total - committed : 0,
                  .seats = s->o.max_seqs - s->running.n,
                  .slots = cn_space_free_slots(&s->device),
                  .reservable = cn_space_reservable_blocks(&s->device),
                  .home = cn_sched_home_room(home)};
}

static bool suffices(const room *have, const room *want)
{
    return have->blocks >= want->blocks && have->to_end >= want->to_end &&
           have->seats >= want->seats &&
           have->slots >= want->slots && have->reservable >= want->reservable &&
           have->home.blocks >= want->home.blocks && have->home.slots >= want->home.slots;
}

/* Blocks that become available when q leaves the batch. */
static uint32_t count_own(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n_blocks; i++)
        n += cn_pool_refs(s->device.blocks, q->table[i]) == 1;
    return n;
}

/* What becomes free when v leaves the batch. A compressed sequence keeps its home. */
static room held_room(const cn_scheduler *s, const cn_seq *v, const cn_space *home)
{
    const bool reserves = v->sched->hold != CN_HOLD_NONE;
    const bool leaves_home = v->sched->home == home && v->usage_kv.compressions == 0;
    return (room){.blocks = count_own(s, v),
                  .to_end = cn_seq_committed(v),
                  .seats = 1,
                  .slots = v->query_slot >= 0,
                  .reservable = reserves ? v->n_max : 0,
                  .home = leaves_home ? cn_seq_home_wanted(v) : (cn_home_room){0, 0}};
}

/* Returns true when some of `held` is still short. */
static bool helps_room(const room *held, const room *have, const room *want)
{
    return (held->blocks > 0 && have->blocks < want->blocks) ||
           (held->to_end > 0 && have->to_end < want->to_end) ||
           (held->seats > 0 && have->seats < want->seats) ||
           (held->slots > 0 && have->slots < want->slots) ||
           (held->reservable > 0 && have->reservable < want->reservable) ||
           (held->home.blocks > 0 && have->home.blocks < want->home.blocks) ||
           (held->home.slots > 0 && have->home.slots < want->home.slots);
}

static void add_room(room *have, const room *held)
{
    have->blocks += held->blocks;
    have->to_end += held->to_end;
    have->seats += held->seats;
    have->slots += held->slots;
    have->reservable += held->reservable;
    have->home.blocks += held->home.blocks;
    have->home.slots += held->home.slots;
}

/* Returns true when q is a batch sequence that may be preempted for an interactive one: it can be
 * recomputed, was not admitted by the batch floor, and would not become aged. */
static bool makes_way(const cn_seq *q)
{
    return q->klass == CN_CLASS_BATCH && q->state == CN_SEQ_RUNNING &&
           q->usage_kv.compressions == 0 && !q->sched->by_floor &&
           q->preemptions + 1 < CN_AGED_PREEMPTIONS;
}

/* Returns true when v may be preempted for q, the interactive sequence of an owner that runs
 * nothing: the owner of v keeps another one. */
static bool gives_share(const cn_scheduler *s, const cn_seq *v, const cn_seq *q)
{
    return s->n_owners > 1 && q->klass == CN_CLASS_INTERACTIVE && v->klass == q->klass &&
           s->owners[q->sched->owner_slot].n_running == 0 &&
           s->owners[v->sched->owner_slot].n_running > 1 && v->state == CN_SEQ_RUNNING &&
           v->usage_kv.compressions == 0 && v->preemptions + 1 < CN_AGED_PREEMPTIONS &&
           !(s->o.priority_order && v->priority < q->priority);
}

static cn_seq *previous_running(const cn_seq *q) { return q->sched->links[CN_LINK_RUNNING].prev; }

/* Preempts and swaps out sequences that hold what is short until the room `want` is free for q.
 * Returns false and changes nothing when all of them together would not free enough. */
static bool try_make_room(cn_scheduler *s, const cn_seq *q, const room *want)
{
    const cn_space *home = q->sched->home;
    room have = free_room(s, home);
    cn_swap_room left = cn_sched_swap_room(s);
    if (s->n_owners > 1) cn_sched_count_loads(s);
    for (cn_seq *v = s->running.tail; v && !suffices(&have, want); v = previous_running(v)) {
        const room held = held_room(s, v, home);
        if (!makes_way(v) || !helps_room(&held, &have, want)) continue;
        add_room(&have, &held);
        v->sched->leaves = true;
    }
    for (cn_seq *v = s->running.tail; v && !suffices(&have, want); v = previous_running(v)) {
        const room held = held_room(s, v, home);
        if (!cn_sched_is_movable(s, v) || !helps_room(&held, &have, want)) continue;
        if (!cn_sched_try_room(s, v, &left)) continue;
        add_room(&have, &held);
        v->sched->leaves = true;
    }
    for (cn_seq *v = s->running.tail; v && !suffices(&have, want); v = previous_running(v)) {
        const room held = held_room(s, v, home);
        if (!gives_share(s, v, q) || !helps_room(&held, &have, want)) continue;
        add_room(&have, &held);
        v->sched->leaves = true;
        s->owners[v->sched->owner_slot].n_running--;
    }
    const bool enough = suffices(&have, want);
    for (cn_seq *v = s->running.tail, *next; v; v = next) {
        next = previous_running(v);
        const bool leaves = v->sched->leaves;
        v->sched->leaves = false;
        if (!leaves || !enough) continue;
        if (v->usage_kv.compressions == 0) {
            cn_sched_preempt(s, v);
        } else {
            const bool moved = cn_sched_try_swap_out(s, v);
            CN_ASSERT(moved);
        }
    }
    return enough;
}

/* Slots and reservations are granted foremost first, so sequences that lack theirs must go back to
 * the queue before one after them gets it. Whether all of them before `end` may be preempted; NULL:
 * all of the list. */
static bool lacking_make_way(const cn_scheduler *s, const cn_seq *end)
{
    const cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    for (const cn_seq *v = none->head; v != end; v = cn_seq_list_next(none, v))
        if (cn_seq_is_lacking(v) && !makes_way(v)) return false;
    return true;
}

static void preempt_lacking(cn_scheduler *s, const cn_seq *end)
{
    const cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    for (cn_seq *v = none->head, *next; v != end; v = next) {
        next = cn_seq_list_next(none, v);
        if (cn_seq_is_lacking(v)) cn_sched_preempt(s, v);
    }
}

void cn_sched_make_way(cn_scheduler *s)
{
    cn_seq *q = cn_sched_next_interactive(s);
    if (!q) return;
    const bool fits = cn_sched_choose_home(s, q);
    const bool ring = cn_seq_is_ring_user(q);
    const bool holds = cn_seq_is_constrained(s, q);
    /* A free slot would not go to q. */
    if ((ring && cn_sched_lacks_slot(s, q->klass)) || (holds && !lacking_make_way(s, NULL))) return;
    room want = {.blocks = cn_sched_count_wanted(s, q),
                 .seats = 1,
                 .slots = ring,
                 .home = cn_seq_home_wanted(q)};
    if (!fits && !cn_kv_is_away(&q->kv)) want.to_end = q->sched->max_blocks;
    if (holds) {
        want.slots = cn_kv_needs_slot(&q->kv);
        want.reservable = q->n_max;
    }
    if (try_make_room(s, q, &want) && holds) preempt_lacking(s, NULL);
}

static bool is_stuck_interactive(const cn_scheduler *s, const cn_seq *q)
{
    return q->klass == CN_CLASS_INTERACTIVE && cn_seq_is_lacking(q) &&
           q->n_computed < cn_seq_end(q) && q->n_computed == cn_seq_limit(s, q);
}

void cn_sched_make_way_to_hold(cn_scheduler *s)
{
    const cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    if (s->n_lacking == 0) return;
    const cn_seq *q = none->head;
    while (q && !is_stuck_interactive(s, q)) q = cn_seq_list_next(none, q);
    if (!q || !lacking_make_way(s, q)) return;
    const room want = {.slots = cn_kv_needs_slot(&q->kv), .reservable = q->n_max};
    if (!try_make_room(s, q, &want)) return;
    preempt_lacking(s, q);
    cn_sched_grant(s);
}
