/* sim_fault.c - plants bugs in the scheduler's state from outside, to show that the simulation
 * catches such bugs. Production code contains none of this. */
#include "compress/away.h"
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
    const cn_prefix_key root = cn_sched_root(&w->s->o, seq->owner);
    cn_prefix_cache_insert(w->s->prefix, root, seq->tokens, seq->table[0]);
    return cn_pool_is_cached(w->s->device.blocks, seq->table[0]);
}

static bool leak_slot(sim_world *w)
{
    uint32_t slot;
    return cn_space_try_take_slot(&w->s->device, &slot);
}

static bool leak_swap(sim_world *w)
{
    cn_pool *blocks = w->s->swap.space.blocks;
    uint32_t block;
    return blocks && cn_pool_try_take(blocks, 1, &block);
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

/* ---- homes. Only sequences that go on for a while, and without cancellations. ---- */

static bool has_tokens_left(const sim_seq *q)
{
    return q->n_stop > q->seq->n_tokens + q->seq->n_pending + 4;
}

static bool goes_on(const sim_world *w, const sim_seq *q)
{
    return w->cancel_percent == 0 && q->live && q->seq->state == CN_SEQ_RUNNING &&
           has_tokens_left(q);
}

static bool drop_home(sim_world *w, const sim_seq *q)
{
    if (!goes_on(w, q) || q->seq->home_len == 0) return false;
    cn_pool_drop(w->s->home[q->seq->kv.home].blocks, q->seq->home_table[0]);
    return true;
}

/* The block must have tokens that no other sequence has, or an old copy might be right. */
static bool mistake_home(sim_world *w, const sim_seq *q)
{
    const cn_seq *seq = q->seq;
    uint32_t other;
    if (!goes_on(w, q) || seq->home_len <= seq->n_prompt) return false;
    cn_space *home = &w->s->home[seq->kv.home];
    uint32_t *block = &seq->home_table[seq->home_len / w->engine.block_tokens - 1];
    if (!cn_pool_try_take(home->blocks, 1, &other)) return false;
    cn_pool_drop(home->blocks, *block);
    *block = other;
    return true;
}

/* The first event must be near: a preemption before it would take a home again. */
static bool lose_home(sim_world *w, const sim_seq *q)
{
    cn_seq *seq = q->seq;
    if (!goes_on(w, q) || seq->n_home_blocks == 0 || seq->usage_kv.compressions > 0) return false;
    if (seq->sched->hold != CN_HOLD_GRANTED || q->n_stop <= seq->sched->trigger + 1) return false;
    if (seq->n_resident + 2 < seq->sched->trigger) return false;
    cn_sched_release_home(seq);
    return true;
}

static bool drop_prompt_home(sim_world *w, const sim_seq *q)
{
    if (!goes_on(w, q) || q->seq->sched->n_put == 0) return false;
    if (q->seq->sched->hold != CN_HOLD_GRANTED || q->n_stop <= q->seq->sched->trigger + 1)
        return false;
    cn_pool_drop(w->s->home[q->seq->kv.home].blocks, q->seq->home_table[0]);
    return true;
}

static bool is_time(const sim_world *w, sim_fault fault)
{
    return w->o.fault == fault && !w->r->fault_struck && w->step > SIM_FAULT_AFTER_STEPS;
}

/* The exchange must change what a row of the plan reads. */
bool sim_strikes_wait(sim_world *w, const cn_plan *plan, uint32_t pack)
{
    if (!is_time(w, SIM_FAULT_NO_WAIT)) return false;
    for (uint32_t i = 0; i < plan->n_decode; i++) {
        const cn_seq *seq = plan->rows[i].seq;
        for (uint32_t p = pack; p < 2 * SIM_N_PACKS; p += SIM_N_PACKS) {
            const sim_exchange *e = &w->exchanges[seq->kv.home][p];
            for (uint32_t k = 0; e->pending && k < e->n_rows; k++)
                w->r->fault_struck |= e->rows[k].seq_id == seq->id && e->rows[k].n_moves > 0;
        }
    }
    return w->r->fault_struck;
}

/* The home must not have the right tags from an earlier sequence. */
bool sim_strikes_put(sim_world *w, const sim_seq *q)
{
    const cn_sched_event *e = q->sched_event;
    const uint64_t *tags = w->device.homes[e->req.params.home].kv[0];
    if (!is_time(w, SIM_FAULT_LATE_PUT)) return false;
    for (uint32_t i = 0; i < e->n_exchange * w->engine.block_tokens; i++)
        w->r->fault_struck |= tags[q->fill[0][i].home] != q->fill[0][i].tag;
    return w->r->fault_struck;
}

/* The exchange of the fill, or of the next step, must rank a tile whose tokens are not yet home. */
bool sim_strikes_digest(sim_world *w, const sim_seq *q)
{
    const cn_sched_event *e = q->sched_event;
    const uint32_t b = w->engine.block_tokens;
    if (!is_time(w, SIM_FAULT_EARLY_DIGEST)) return false;
    if (e->n_exchange == 0 && !(w->cancel_percent == 0 && q->live && has_tokens_left(q)))
        return false;
    const cn_away_span span = cn_away_span_of(&e->req.params, e->home_len, b);
    const uint64_t *tags = w->device.homes[e->req.params.home].kv[0];
    for (uint32_t i = 0; i < e->n_puts * b; i++) {
        const uint32_t at = e->home_len - e->n_puts * b + i;
        w->r->fault_struck |= at >= span.base && at < span.base + span.n &&
                              tags[e->puts[i / b].dst * b + i % b] != q->positions[at];
    }
    return w->r->fault_struck;
}

/* ---- puts of prompts ---- */

/* Adds the next block to a put, if the device does not have its content by chance. */
static bool add_partial(sim_world *w, cn_sched_put *p)
{
    const uint32_t b = w->engine.block_tokens;
    cn_seq *seq = (cn_seq *)p->seq;
    cn_seq_sched *st = seq->sched;
    sim_seq *q = sim_find(seq);
    if (st->n_put == seq->n_blocks || (st->n_put + 1) * b <= seq->n_computed) return false;
    sim_tag_positions(w, q, (st->n_put + 1) * b);
    const uint64_t *have = w->device.kv[0] + seq->table[st->n_put] * b;
    if (memcmp(have, q->positions + st->n_put * b, b * sizeof *have) == 0) return false;
    st->puts[st->n_put] = (cn_block_copy){seq->table[st->n_put], seq->home_table[st->n_put]};
    st->n_put++;
    p->n_blocks++;
    return true;
}

/* Adds the next full block to a put, which the bound of a step has left. */
static bool add_left(cn_sched_put *p, uint32_t block_tokens)
{
    const cn_seq *seq = p->seq;
    cn_seq_sched *st = seq->sched;
    if (st->n_put >= cn_seq_puttable(seq, block_tokens)) return false;
    st->puts[st->n_put] = (cn_block_copy){seq->table[st->n_put], seq->home_table[st->n_put]};
    st->n_put++;
    p->n_blocks++;
    return true;
}

/* Without cancellations the sequence comes to put its other blocks, or to its first event. */
void sim_strike_prompt(sim_world *w)
{
    const bool partial = is_time(w, SIM_FAULT_PARTIAL_PUT);
    const bool many = is_time(w, SIM_FAULT_MANY_PUTS);
    if (!partial && !many && !is_time(w, SIM_FAULT_UNCOUNTED_PUT)) return;
    for (uint32_t i = 0; i < w->s->n_puts && !w->r->fault_struck; i++) {
        cn_sched_put *p = &w->s->puts[i];
        const cn_seq_sched *st = p->seq->sched;
        const sim_seq *q = sim_find(p->seq);
        if (partial) w->r->fault_struck = add_partial(w, p);
        if (many) w->r->fault_struck = add_left(p, w->engine.block_tokens);
        if (partial || many || !goes_on(w, q) || st->hold != CN_HOLD_GRANTED) continue;
        if (q->n_stop <= st->trigger + 1) continue;
        p->seq->sched->n_put--;
        w->r->fault_struck = true;
    }
}

/* The fill must move a token that a put has still to bring home. */
bool sim_strikes_put_wait(sim_world *w, const sim_seq *q)
{
    const cn_sched_event *e = q->sched_event;
    const uint64_t *tags = w->device.homes[e->req.params.home].kv[0];
    if (!is_time(w, SIM_FAULT_NO_PUT_WAIT) || w->n_run_puts >= q->after_put) return false;
    for (uint32_t i = 0; i < e->n_exchange * w->engine.block_tokens; i++)
        w->r->fault_struck |= q->fill[0][i].position < e->n_put_before * w->engine.block_tokens &&
                              tags[q->fill[0][i].home] != q->fill[0][i].tag;
    return w->r->fault_struck;
}

/* Whether a row writes other tags to a block that a put has still to read. */
static bool overwrites(sim_world *w, const cn_plan_row *row, const sim_put *put)
{
    const uint32_t b = w->engine.block_tokens;
    sim_seq *q = sim_find(row->seq);
    sim_tag_positions(w, q, row->first_pos + row->n_new);
    for (uint32_t i = 0; i < row->n_new; i++) {
        const uint32_t slot = row->first_slot + i, block = row->seq->table[slot / b];
        for (uint32_t k = 0; k < put->n_blocks; k++)
            if (put->blocks[k].src == block &&
                put->tags[k * b + slot % b] != q->positions[row->first_pos + i])
                return true;
    }
    return false;
}

bool sim_strikes_after_puts(sim_world *w, const cn_plan *plan)
{
    if (!plan->after_puts || !is_time(w, SIM_FAULT_UNORDERED_PUT)) return false;
    for (uint64_t n = w->n_run_puts; n < w->n_puts; n++)
        for (uint32_t r = 0; r < plan->n_rows; r++)
            w->r->fault_struck |= overwrites(w, &plan->rows[r], &w->puts[n % SIM_MAX_PUTS]);
    return w->r->fault_struck;
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
        const sim_seq *q = &w->seqs[i];
        if (w->o.fault == SIM_FAULT_EARLY_HOME) w->r->fault_struck = drop_home(w, q);
        if (w->o.fault == SIM_FAULT_WRONG_HOME) w->r->fault_struck = mistake_home(w, q);
        if (w->o.fault == SIM_FAULT_HALF_TAKEN) w->r->fault_struck = lose_home(w, q);
        if (w->o.fault == SIM_FAULT_EARLY_PROMPT) w->r->fault_struck = drop_prompt_home(w, q);
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

/* Returns true when a running sequence besides that of q will read this block again. */
static bool is_read(const sim_world *w, const sim_seq *q, uint32_t block)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        const sim_seq *other = &w->seqs[i];
        if (other == q || !goes_on(w, other)) continue;
        for (uint32_t k = 0; k < other->seq->n_blocks; k++)
            if (other->seq->table[k] == block) return true;
    }
    return false;
}

/* The event must run in this step, and must write other tags than the source has. */
void sim_strike_source(sim_world *w)
{
    const size_t b = w->engine.block_tokens;
    if (w->o.fault != SIM_FAULT_WRITTEN_SOURCE || (w->in_order && w->n_events > 1)) return;
    for (uint32_t at = 0; at < SIM_MAX_LIVE; at++) {
        sim_seq *q = &w->seqs[at];
        if (q->event != SIM_ENQUEUED || q->run_at > w->step || q->compressed) continue;
        const cn_sched_event *e = q->sched_event;
        uint32_t *target = e->seq->sched->target;
        for (uint32_t i = 0; i < e->req.n_target; i++) {
            const uint32_t source = e->req.table[i];
            if (target[i] == source || !is_read(w, q, source)) continue;
            if (memcmp(q->kept + i * b, q->positions + i * b, b * sizeof *q->kept) == 0) continue;
            cn_pool_drop(w->s->device.blocks, target[i]);
            target[i] = source;
            w->r->fault_struck = true;
            return;
        }
    }
}
