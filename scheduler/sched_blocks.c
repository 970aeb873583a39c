/* sched_blocks.c - grants, releases and preempts what a running sequence holds: blocks, prefix
 * cache entries, a slot or reservation. See sched_state.h.
 *
 * Holders and ring users take slots from one pool. A sequence that lacks a slot may wait for a ring
 * user, so a ring user must not wait for the blocks of that sequence (DESIGN.md §3.2, §3.4):
 *
 *   1 A ring user takes a free slot at admission only if no running sequence of its class or a
 *     prior class lacks one. A batch ring user was therefore admitted before every sequence that
 *     lacks a slot, and an interactive one before every interactive sequence that lacks one.
 *   2 When a ring user needs a block and none is free, the last admitted sequence without a
 *     reservation is preempted, a batch sequence before an interactive one. With rule 1, sequences
 *     that lack a slot are preempted before the ring user. The exception: the ring user is the last
 *     batch sequence, and interactive sequences lack a slot.
 *   3 In that case the ring user does not wait in place. It is preempted, and its slot goes to the
 *     foremost sequence that lacks one.
 *
 * A ring user thus advances to its end or returns its slot. */
#include "scheduler/sched_state.h"

uint32_t cn_seq_limit(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t end = cn_seq_end(q);
    if (!cn_seq_needs_hold(q)) return end;
    if (q->sched->hold == CN_HOLD_NONE) return cn_min_u32(end, cn_seq_window_start(q));
    if (q->usage_kv.compressions == 0) return cn_min_u32(end, q->sched->trigger);
    return cn_seq_is_due(q, s->o.block_tokens) ? q->n_computed : end;
}

/* Marks the entry of block i. The hash goes on from the blocks before it. */
static void mark_block(cn_scheduler *s, cn_seq *q, uint32_t i)
{
    cn_seq_sched *st = q->sched;
    const uint32_t b = s->o.block_tokens;
    if (st->n_hashed == 0 || st->n_hashed > i) {
        st->n_hashed = 0;
        st->mark = cn_sched_root(&s->o, q->owner);
    }
    for (; st->n_hashed <= i; st->n_hashed++)
        st->mark = cn_prefix_hash(st->mark, q->tokens + (size_t)st->n_hashed * b, b);
    cn_prefix_cache_mark(s->prefix, q->table[i], st->mark);
}

void cn_sched_register(cn_scheduler *s, cn_seq *q)
{
    if (!s->prefix || q->state != CN_SEQ_RUNNING || q->usage_kv.compressions > 0) return;
    uint32_t b = s->o.block_tokens;
    uint32_t n_settled = cn_seq_settled(q);
    /* Decoded KV has other bits than the KV of the same tokens in a prompt, so no prompt may find
     * it (DESIGN.md §4.7). */
    if (cn_seq_is_apart(s, q)) n_settled = cn_min_u32(n_settled, q->n_prompt);
    uint32_t n_full = n_settled / b;
    cn_seq_sched *st = q->sched;
    for (; st->n_registered < n_full; st->n_registered++) {
        uint32_t i = st->n_registered;
        st->chain =
            cn_prefix_cache_insert(s->prefix, st->chain, q->tokens + (size_t)i * b, q->table[i]);
        mark_block(s, q, i);
    }
}

static void drop_table(cn_scheduler *s, cn_seq *q)
{
    /* Tail first, because the cache reclaims in this order: an entry whose parent is reclaimed
     * first can no longer be found. */
    while (q->n_blocks > 0) cn_pool_drop(s->device.blocks, q->table[--q->n_blocks]);
}

static bool try_hold(cn_scheduler *s, cn_seq *q)
{
    return cn_space_try_hold(&s->device, q->n_max, cn_kv_needs_slot(&q->kv),
                                   &q->query_slot);
}

bool cn_sched_try_grant(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(q->sched->hold == CN_HOLD_NONE && q->n_computed <= cn_seq_window_start(q));
    if (s->n_lacking > 0 || !try_hold(s, q)) return false;
    q->sched->hold = CN_HOLD_GRANTED;
    return true;
}

void cn_sched_grant(cn_scheduler *s)
{
    cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    for (cn_seq *q = none->head, *next; q && s->n_lacking > 0; q = next) {
        next = cn_seq_list_next(none, q);
        if (!cn_seq_is_lacking(q)) continue;
        /* Strictly foremost first: requests with a small cap must not starve one with a larger cap
         * ahead of them. */
        if (!try_hold(s, q)) return;
        cn_seq_list_remove(none, q);
        q->sched->hold = CN_HOLD_GRANTED;
        cn_seq_list_append(&s->by_hold[CN_HOLD_GRANTED], q);
        s->n_lacking--;
    }
}

bool cn_sched_lacks_slot(const cn_scheduler *s, cn_class klass)
{
    const cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    for (const cn_seq *q = none->head; q && s->n_lacking > 0; q = cn_seq_list_next(none, q)) {
        if (q->klass <= klass && cn_seq_is_lacking(q) && cn_kv_needs_slot(&q->kv)) return true;
    }
    return false;
}

bool cn_sched_try_ring(cn_scheduler *s, cn_seq *q)
{
    uint32_t slot;
    if (!cn_seq_is_ring_user(q)) return true;
    if (cn_sched_lacks_slot(s, q->klass) || !cn_space_try_take_slot(&s->device, &slot))
        return false;
    q->query_slot = (int32_t)slot;
    return true;
}

void cn_sched_yield_slot(cn_scheduler *s, cn_seq *q)
{
    const cn_seq_list *none = &s->by_hold[CN_HOLD_NONE];
    if (!cn_seq_is_ring_user(q) || s->n_lacking == 0 || s->n_lent > 0) return;
    const cn_seq *first = none->head;
    while (!cn_seq_is_lacking(first)) first = cn_seq_list_next(none, first);
    if (!cn_kv_needs_slot(&first->kv) || cn_space_free_slots(&s->device) > 0) return;
    if (first->n_max > cn_space_reservable_blocks(&s->device)) return;
    cn_sched_preempt(s, q);
    cn_sched_grant(s);
}

void cn_sched_release_hold(cn_scheduler *s, cn_seq *q)
{
    cn_seq_sched *st = q->sched;
    if (st->hold != CN_HOLD_NONE)
        cn_space_release(&s->device, q->n_max, q->query_slot);
    else if (q->query_slot >= 0)
        cn_pool_drop(s->device.slots, (uint32_t)q->query_slot);
    st->hold = CN_HOLD_NONE;
    q->query_slot = -1;
}

void cn_sched_enter(cn_scheduler *s, cn_seq *q)
{
    q->state = CN_SEQ_RUNNING;
    q->sched->was_admitted = true;
    cn_seq_list_append(&s->running, q);
    cn_seq_list_append(&s->by_hold[q->sched->hold], q);
    s->n_lacking += cn_seq_is_lacking(q);
}

void cn_sched_leave(cn_scheduler *s, cn_seq *q)
{
    cn_seq_sched *st = q->sched;
    drop_table(s, q);
    s->n_lacking -= cn_seq_is_lacking(q);
    cn_seq_list_remove(&s->by_hold[st->hold], q);
    cn_seq_list_remove(&s->running, q);
    cn_sched_release_hold(s, q);
    cn_sched_release_home(q);
    s->after_puts |= st->n_put > 0;
    st->n_put = 0;
}

/* Returns the last batch sequence of a list, or the last sequence if none is batch. */
static cn_seq *last_of_list(const cn_seq_list *l)
{
    for (cn_seq *q = l->tail; q; q = q->sched->links[l->link].prev)
        if (q->klass == CN_CLASS_BATCH) return q;
    return l->tail;
}

/* Returns the request that DESIGN.md §3.4 preempts, or NULL. This may be the request that needs the
 * block. */
static cn_seq *find_victim(const cn_scheduler *s)
{
    cn_seq *last = last_of_list(&s->by_hold[CN_HOLD_NONE]);
    /* Without sharing, holders get their blocks from compressions, their own or those of other
     * holders (paper §4.3). */
    bool sharing = s->prefix || s->n_in_group > 0;
    return !last && sharing ? last_of_list(&s->by_hold[CN_HOLD_GRANTED]) : last;
}

void cn_sched_preempt(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(q->state == CN_SEQ_RUNNING && q->usage_kv.compressions == 0);
    s->stats.holder_preemptions += q->sched->hold != CN_HOLD_NONE;
    cn_sched_register(s, q);
    cn_sched_leave(s, q);
    cn_seq_sched *st = q->sched;
    st->lost_tokens = q->n_computed;
    q->n_computed = q->n_resident = 0;
    st->n_registered = 0;
    st->chain = cn_sched_root(&s->o, q->owner);
    s->stats.preemptions++;
    if (++q->preemptions == CN_AGED_PREEMPTIONS) cn_seq_list_append(&s->aged, q);
    cn_sched_enqueue(s, q);
}

bool cn_sched_try_preempt(cn_scheduler *s, const cn_seq *q)
{
    if (s->n_lent > 0) return false; /* blocks will come back: q waits in place */
    cn_seq *victim = find_victim(s);
    if (!victim || victim == q) return false;
    cn_sched_preempt(s, victim);
    return true;
}

bool cn_sched_try_preempt_or_swap(cn_scheduler *s, const cn_seq *q)
{
    if (s->n_lent > 0) return false;
    const cn_seq *victim = find_victim(s);
    const cn_class klass = victim ? victim->klass : q->klass;
    if (klass == CN_CLASS_INTERACTIVE && cn_sched_try_swap_last(s)) return true;
    return cn_sched_try_preempt(s, q);
}
