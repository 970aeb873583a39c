/* sched_event.c - compression events: chooses targets, pins own blocks, commits.
 * See sched_state.h; DESIGN.md §3.5 and §4, paper §4.4 and §4.5.
 *
 * target[i] is table[i] if only this sequence holds that block, else a new block. This is the
 * paper's rule: N_prefix new blocks, at most N_max - 1, and the request's own blocks for the rest.
 * Because own blocks keep their index, kept rows can move in order: a target slot is never behind
 * the source slot that is read next.
 *
 * A first event leaves the prompt in the prefix cache. An own block of the prompt that the cache
 * has is then a source: it is not written and not pinned, requests may share it meanwhile, and it
 * gets a new block as its target. These new blocks are lent: with the commit as many blocks become
 * available again. They are never taken from another request, and while blocks are lent no request
 * is preempted for a block. Without a new block the source becomes the target and leaves the cache,
 * and so do the own blocks after it, which could no longer be found.
 *
 * An away request keeps its exchange area beside the compressed blocks. Both together are the
 * targets: at its first event those of the area come last, so that the others have the index of
 * their source. The commit puts the area in front. */
#include "scheduler/sched_state.h"

static bool is_shared(const cn_scheduler *s, uint32_t block)
{
    return cn_pool_refs(s->device.blocks, block) > 1;
}

uint32_t cn_seq_count_shared(const cn_scheduler *s, const cn_seq *q, uint32_t n)
{
    uint32_t n_shared = 0;
    for (uint32_t i = 0; i < n; i++) n_shared += is_shared(s, q->table[i]);
    return n_shared;
}

static void choose_targets(cn_scheduler *s, cn_seq *q, uint32_t n_target)
{
    cn_seq_sched *st = q->sched;
    for (uint32_t i = 0; i < n_target; i++) {
        st->target[i] = q->table[i];
        if (!is_shared(s, q->table[i])) continue;
        bool taken = cn_pool_try_take(s->device.blocks, 1, &st->target[i]);
        CN_ASSERT(taken);
    }
    /* One more own block stays free for decoding. There is none if all other blocks are shared. */
    st->spare = CN_NO_BLOCK;
    for (uint32_t i = n_target; i < q->n_blocks && st->spare == CN_NO_BLOCK; i++)
        if (!is_shared(s, q->table[i])) st->spare = i;
}

/* Blocks that the sequence of an event keeps besides the spare: targets of the compression and the
 * exchange area. */
static uint32_t count_kept(const cn_seq *q) { return q->n_max - 1; }

/* Lets block i, which the prefix cache has, be a source that the event does not write. Returns
 * false when this takes a new block and there is none. */
static bool try_keep(cn_scheduler *s, cn_seq *q, uint32_t i, uint32_t *n_left)
{
    cn_seq_sched *st = q->sched;
    if (i == st->spare) st->spare = CN_NO_BLOCK; /* the commit makes a block available instead */
    if (i >= count_kept(q) || st->target[i] != q->table[i]) return true;
    if (*n_left == 0 || !cn_pool_try_take_older(s->device.blocks, st->admitted_at, &st->target[i]))
        return false;
    --*n_left;
    st->n_lent++;
    s->n_lent++;
    return true;
}

void cn_sched_protect_sources(cn_scheduler *s, cn_seq *q, uint32_t *n_left)
{
    cn_seq_sched *st = q->sched;
    const uint32_t n_counted = cn_min_u32(q->n_prompt, cn_seq_window_start(q));
    const uint32_t n_useful = n_counted / s->o.block_tokens, n_target = count_kept(q);
    bool keeps = st->event.req.first_event;
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        const uint32_t block = q->table[i];
        if (is_shared(s, block)) continue;
        if (cn_pool_is_cached(s->device.blocks, block)) {
            keeps = keeps && i < n_useful && try_keep(s, q, i, n_left);
            if (keeps) continue;
            cn_prefix_cache_forget(s->prefix, block);
        }
        cn_pool_set_pinned(s->device.blocks, block, true);
        if (i >= n_target && st->spare == CN_NO_BLOCK) st->spare = i;
    }
    if (st->spare != CN_NO_BLOCK) st->target[n_target] = q->table[st->spare];
}

/* Completes the event of an away request: what it puts into the home space, and at a first event
 * the exchange area. Sources and targets of a later event do not include the area. */
static void send_home(cn_scheduler *s, cn_seq *q)
{
    cn_seq_sched *st = q->sched;
    cn_sched_event *e = &st->event;
    const uint32_t n_area = cn_seq_area_blocks(q, s->o.block_tokens);
    e->puts = st->puts + st->n_put;
    e->n_put_before = st->n_put;
    e->home_len = q->n_computed;
    e->req.n_target -= n_area;
    if (e->req.first_event) {
        e->n_puts = q->n_blocks - st->n_put;
        for (uint32_t i = st->n_put; i < q->n_blocks; i++)
            st->puts[i] = (cn_block_copy){q->table[i], q->home_table[i]};
        e->exchange = st->target + e->req.n_target;
        e->n_exchange = n_area;
        return;
    }
    e->n_puts = 1;
    st->puts[0] = (cn_block_copy){q->table[q->n_blocks - 1],
                                  q->home_table[q->n_computed / s->o.block_tokens - 1]};
    e->req.table += n_area;
    e->req.n_blocks -= n_area;
    e->req.target += n_area;
    e->req.n_history = e->req.n_target * s->o.block_tokens;
}

bool cn_sched_try_event(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(q->sched->hold != CN_HOLD_NONE && cn_seq_is_due(q, s->o.block_tokens));
    cn_seq_sched *st = q->sched;
    const uint32_t n_target = count_kept(q);
    if (cn_seq_count_shared(s, q, n_target) > cn_pool_available(s->device.blocks)) return false;
    choose_targets(s, q, n_target);
    bool first = q->usage_kv.compressions == 0;
    if (first) {
        cn_seq_list_remove(&s->by_hold[CN_HOLD_GRANTED], q);
        cn_seq_list_append(&s->by_hold[CN_HOLD_COMPRESSED], q);
        st->hold = CN_HOLD_COMPRESSED;
    }
    q->state = CN_SEQ_COMPRESSING;
    s->n_compressing++;
    st->event_done = false;
    st->event = (cn_sched_event){
        .id = ++s->last_event_id,
        .seq = q,
        .req = {.params = q->kv,
                .n_blocks = q->n_blocks,
                .n_target = n_target,
                .table = q->table,
                .target = st->target,
                .query_slot = q->query_slot < 0 ? 0 : (uint32_t)q->query_slot,
                .position_end = q->n_computed,
                .first_event = first,
                .n_history = first ? 0 : n_target * s->o.block_tokens},
    };
    if (st->n_home > 0) send_home(s, q);
    return true;
}

void cn_scheduler_event_done(cn_scheduler *s, cn_sched_event *e)
{
    CN_ASSERT(e->seq->state == CN_SEQ_COMPRESSING && !e->seq->sched->event_done);
    e->seq->sched->event_done = true;
    s->done[s->n_done++] = e;
}

/* Drops the blocks that are in the old table and not in the new one. */
static void drop_old_table(cn_scheduler *s, cn_seq *q)
{
    const cn_seq_sched *st = q->sched;
    const uint32_t n_target = count_kept(q);
    for (uint32_t i = q->n_blocks; i-- > 0;) {
        uint32_t block = q->table[i];
        /* The pin is from this event: only the owner pins a block, and a pinned block is never
         * newly shared. */
        if (cn_pool_is_pinned(s->device.blocks, block))
            cn_pool_set_pinned(s->device.blocks, block, false);
        bool kept = i == st->spare || (i < n_target && st->target[i] == block);
        if (!kept) cn_pool_drop(s->device.blocks, block);
    }
}

static void commit_event(cn_scheduler *s, cn_seq *q)
{
    cn_seq_sched *st = q->sched;
    CN_ASSERT(q->state == CN_SEQ_COMPRESSING && st->event_done);
    const cn_sched_event *e = &st->event;
    uint32_t n_target = count_kept(q), kept = n_target * s->o.block_tokens;
    const uint32_t n_emptied = q->n_blocks - n_target, evicted = q->n_resident - kept;
    drop_old_table(s, q);
    s->n_lent -= st->n_lent;
    st->n_lent = 0;
    q->n_blocks = n_target + (st->spare != CN_NO_BLOCK);
    /* A first event's exchange area moves from the end of the targets to the front. */
    memcpy(q->table, st->target + n_target - e->n_exchange, e->n_exchange * sizeof *q->table);
    memcpy(q->table + e->n_exchange, st->target, (n_target - e->n_exchange) * sizeof *q->table);
    if (st->spare != CN_NO_BLOCK) q->table[n_target] = st->target[n_target];
    q->n_resident = kept;
    if (e->n_exchange > 0) q->n_exchange = e->n_exchange;
    q->home_len = e->home_len;
    st->n_put = 0; /* the event followed the puts */
    q->state = CN_SEQ_RUNNING;
    s->n_compressing--;
    s->n_moving -= st->moving;
    st->moving = false;
    if (st->ending) {
        st->ending = false;
        cn_sched_leave(s, q);
        cn_sched_end(s, q);
        if (st->released) cn_sched_destroy_seq(s, q);
        return;
    }
    uint64_t freed_bytes = n_emptied * s->o.block_bytes;
    q->usage_kv.compressions++;
    q->usage_kv.evicted += evicted;
    q->usage_kv.freed_bytes += freed_bytes;
    s->stats.compressions++;
    s->stats.evicted_tokens += evicted;
    s->stats.freed_bytes += freed_bytes;
}

void cn_sched_commit_done(cn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_done; i++) commit_event(s, s->done[i]->seq);
    s->n_done = 0;
}
