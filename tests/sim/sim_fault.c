/* sim_fault.c - plants bugs in the scheduler's state from outside, to show that the simulation
 * catches such bugs. Production code contains none of this. */
#include "scheduler/sched_state.h"
#include "tests/sim/sim_world.h"

#include <string.h>

/* Drops a reference to a block that its sequence will read for many more steps. Near the sequence's
 * end, only the reference count would be wrong, and no tag. */
static bool drop_reference(sim_world *w, const cn_seq *seq)
{
    if (seq->state != CN_SEQ_RUNNING || seq->n_blocks == 0) return false;
    if (seq->max_tokens - seq->n_computed < w->engine.max_model_len / 2) return false;
    cn_pool_drop(w->s->device.blocks, seq->table[0]);
    return true;
}

static bool leave_in_cache(sim_world *w, const cn_seq *seq)
{
    if (!w->s->prefix || seq->state != CN_SEQ_RUNNING || seq->usage_kv.compressions == 0)
        return false;
    if (seq->n_prompt < w->engine.block_tokens) return false;
    cn_prefix_cache_insert(w->s->prefix, CN_PREFIX_ROOT, seq->tokens, seq->table[0]);
    return cn_pool_is_cached(w->s->device.blocks, seq->table[0]);
}

static bool leak_slot(sim_world *w)
{
    uint32_t slot;
    return cn_space_try_take_slot(&w->s->device, &slot);
}

static bool leak_swap(sim_world *w)
{
    uint32_t block;
    return cn_space_try_take(&w->s->swap.space, &block);
}

static bool drop_swap(sim_world *w, const cn_seq *seq)
{
    if (seq->state != CN_SEQ_SWAPPED) return false;
    cn_pool_drop(w->s->swap.space.blocks, seq->table[0]);
    return true;
}

/* Only for a sequence that will return: no cancellation and no pending token can end it. */
static bool mistake_swap(sim_world *w, const cn_seq *seq)
{
    cn_pool *blocks = w->s->swap.space.blocks;
    uint32_t other;
    if (seq->state != CN_SEQ_SWAPPED || seq->n_pending > 0 || w->cancel_percent > 0) return false;
    if (!cn_pool_try_take(blocks, 1, &other)) return false;
    cn_pool_drop(blocks, seq->table[0]);
    seq->table[0] = other;
    return true;
}

void sim_strike(sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE && !w->r->fault_struck; i++) {
        if (!w->seqs[i].live) continue;
        const cn_seq *seq = w->seqs[i].seq;
        if (w->o.fault == SIM_FAULT_DROPPED_REF) w->r->fault_struck = drop_reference(w, seq);
        if (w->o.fault == SIM_FAULT_STALE_PREFIX) w->r->fault_struck = leave_in_cache(w, seq);
        if (w->o.fault == SIM_FAULT_LEAKED_SLOT) w->r->fault_struck = leak_slot(w);
        if (w->o.fault == SIM_FAULT_LEAKED_SWAP) w->r->fault_struck = leak_swap(w);
        if (w->o.fault == SIM_FAULT_EARLY_SWAP) w->r->fault_struck = drop_swap(w, seq);
        if (w->o.fault == SIM_FAULT_WRONG_SWAP) w->r->fault_struck = mistake_swap(w, seq);
    }
}

void sim_strike_event(sim_world *w)
{
    /* A cancelled sequence would never read the result, so cancellation must be off. */
    if (w->o.fault != SIM_FAULT_EARLY_COMMIT || w->cancel_percent > 0) return;
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        sim_seq *q = &w->seqs[i];
        if (!q->live || q->event != SIM_ENQUEUED || q->run_at <= w->step) continue;
        /* An event that leaves the first slots in place has the same result without running. */
        const uint64_t *from = q->compressed ? q->resident : q->positions;
        if (memcmp(q->kept, from, q->n_kept * sizeof *from) == 0) continue;
        cn_scheduler_event_done(w->s, q->sched_event);
        q->event = SIM_REPORTED;
        w->r->fault_struck = true;
        return;
    }
}
