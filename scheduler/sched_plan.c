/* sched_plan.c - plans a step, in order: commits, events, grants, blocks, rows, admissions, forks.
 * See sched_state.h; DESIGN.md §3, §4.
 *
 * All preemption and swapping happens before any row is written, so no row of a plan is ever taken
 * back. Rows need no search: they follow the running order, which is first come, first served. */
#include "scheduler/sched_state.h"

/* Returns true when a missing block is all that keeps q from computing its next token. */
static bool wants_block(const cn_scheduler *s, const cn_seq *q)
{
    return q->state == CN_SEQ_RUNNING && !q->paused && q->n_computed < cn_seq_limit(s, q) &&
           q->n_resident == q->n_blocks * s->o.block_tokens;
}

/* Blocks that running sequences lack for their next tokens. */
static uint32_t count_wanted(const cn_scheduler *s)
{
    uint32_t n = 0;
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q))
        n += wants_block(s, q);
    return n;
}

/* Moves sequences with home `auto` from the device to another home while the free blocks, and those
 * that moves and events will free, are too few for the next tokens of all sequences (DESIGN.md
 * §7). */
static void move_for_blocks(cn_scheduler *s)
{
    uint32_t n_wanted = count_wanted(s);
    while (n_wanted > cn_pool_available(s->device.blocks) + s->n_lent + cn_sched_count_moving(s)) {
        cn_seq *q = cn_sched_try_move(s);
        if (!q) return;
        s->begun[s->n_begun++] = &q->sched->event;
        n_wanted--; /* its own: the event leaves it a block for the next token */
    }
}

/* Blocks that may be lent to the events of this step, which have all their necessary targets. None
 * if an event could not begin; otherwise those that nobody lacks now. */
static uint32_t count_lendable(const cn_scheduler *s, bool all_begun)
{
    const cn_seq *next = cn_sched_next_interactive(s);
    const uint64_t n_wanted = count_wanted(s) + (next ? cn_sched_count_wanted(s, next) : 0);
    const uint32_t n_free = cn_pool_available(s->device.blocks);
    return all_begun && n_wanted < n_free ? n_free - (uint32_t)n_wanted : 0;
}

static void protect_sources(cn_scheduler *s, bool all_begun)
{
    uint32_t n_left = s->n_begun > 0 ? count_lendable(s, all_begun) : 0;
    for (uint32_t i = 0; i < s->n_begun; i++)
        cn_sched_protect_sources(s, s->begun[i]->seq, &n_left);
}

void cn_scheduler_begin(cn_scheduler *s, cn_begin_plan *out)
{
    cn_sched_commit_done(s);
    for (cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        cn_sched_register(s, q);
        q->usage_kv.peak_tokens = cn_max_u32(q->usage_kv.peak_tokens, q->n_resident);
    }
    cn_sched_grant(s);
    s->n_begun = 0;
    bool all_begun = true;
    /* The event of q may preempt other sequences but never q, so the loop reads the successor of q
     * afterwards. Preempting a sequence that shares blocks with q may free none, but q then has
     * fewer shared blocks to replace. */
    for (cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        if (q->state != CN_SEQ_RUNNING || q->sched->hold == CN_HOLD_NONE) continue;
        if (!cn_seq_is_due(q, s->o.block_tokens)) continue;
        bool begun;
        do {
            begun = cn_sched_try_event(s, q);
        } while (!begun && cn_sched_try_preempt(s, q));
        if (begun) s->begun[s->n_begun++] = &q->sched->event;
        all_begun = all_begun && begun;
    }
    move_for_blocks(s);
    protect_sources(s, all_begun);
    cn_sched_plan_puts(s);
    *out = (cn_begin_plan){.events = s->begun,
                           .n_events = s->n_begun,
                           .puts = s->puts,
                           .n_puts = s->n_puts,
                           .after_puts = cn_sched_take_after_puts(s)};
}

/* Takes a block for each running sequence that needs one for its next token, foremost first. */
static void secure_blocks(cn_scheduler *s)
{
    for (cn_seq *q = s->running.head, *next; q; q = next) {
        if (wants_block(s, q)) {
            CN_ASSERT(q->n_blocks < q->sched->max_blocks);
            bool taken;
            do {
                taken = cn_pool_try_take(s->device.blocks, 1, &q->table[q->n_blocks]);
                /* A move will free blocks: nothing is preempted before. So it is with lent blocks
                 * (cn_sched_try_preempt). */
                if (!taken && s->n_moving > 0) break;
            } while (!taken && cn_sched_try_preempt_or_swap(s, q) && q->state == CN_SEQ_RUNNING);
            q->n_blocks += taken;
            if (!taken && q->state == CN_SEQ_RUNNING && s->n_moving == 0)
                cn_sched_yield_slot(s, q);
        }
        /* If q itself was swapped out or preempted, it is no longer in the list. The loop restarts
         * at the head; the sequences ahead of q have their blocks already. */
        const bool left = q->state == CN_SEQ_SWAPPED || q->state == CN_SEQ_WAITING;
        next = left ? s->running.head : cn_seq_list_next(&s->running, q);
    }
}

/* Sets what a decode row attends to. */
static void set_span(const cn_scheduler *s, cn_plan_row *row)
{
    const cn_seq *q = row->seq;
    const bool was_put = q->home_len > 0;
    row->span = was_put ? cn_select_span_away(&q->kv, s->o.block_tokens)
                        : cn_select_span_at(&q->kv, q->n_prompt, row->first_pos, s->o.block_tokens);
    if (was_put || row->span.listed)
        row->n_selected = row->first_slot + 1 - row->span.tail + row->span.list_len;
}

/* Adds a row of n_new tokens for q. */
static void emit_row(cn_scheduler *s, cn_seq *q, uint32_t n_new)
{
    CN_ASSERT(s->n_rows < s->o.max_seqs && n_new > 0);
    CN_ASSERT(q->n_resident + n_new <= q->n_blocks * s->o.block_tokens);
    bool wants_sample = q->n_computed + n_new == cn_seq_known(q);
    uint32_t at = s->n_rows++;
    /* A chunk of a prompt is never a decode row, even if it has one token. The size of a chunk
     * depends on batch composition; the kernel that computes a position must not. */
    const bool is_decode = n_new == 1 && q->n_computed >= q->n_prompt;
    if (is_decode) {
        uint32_t first_chunk = s->n_decode++;
        if (at != first_chunk) {
            s->rows[at] = s->rows[first_chunk];
            s->rows[at].seq->sched->row = at;
            at = first_chunk;
        }
    }
    s->rows[at] = (cn_plan_row){.seq = q,
                                .n_new = n_new,
                                .first_pos = q->n_computed,
                                .first_slot = q->n_resident,
                                .wants_sample = wants_sample};
    if (is_decode) set_span(s, &s->rows[at]);
    q->sched->row = at;
    s->n_tokens += n_new;
    q->n_computed += n_new;
    q->n_resident += n_new;
    q->n_pending += wants_sample;
}

/* Returns how many tokens q can compute now. */
static uint32_t count_ready(const cn_scheduler *s, const cn_seq *q)
{
    if (q->state != CN_SEQ_RUNNING || q->paused) return 0;
    uint32_t room = q->n_blocks * s->o.block_tokens - q->n_resident;
    uint32_t ready = cn_min_u32(cn_seq_limit(s, q) - q->n_computed, room);
    if (!cn_seq_is_apart(s, q)) return ready;
    return cn_min_u32(ready, q->n_computed < q->n_prompt ? q->n_prompt - q->n_computed : 1);
}

static void add_decode_rows(cn_scheduler *s)
{
    s->n_blocked = 0;
    for (cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        uint32_t n_ready = count_ready(s, q);
        if (q->state == CN_SEQ_RUNNING && n_ready == 0)
            s->n_blocked += !q->paused && q->n_computed < cn_seq_end(q);
        if (n_ready == 1) emit_row(s, q, 1);
    }
}

/* Adds the next chunk of q within the step's token budget. Returns false when the budget is used
 * up, or when a prompt that must not be split does not fit. */
static bool try_chunk(cn_scheduler *s, cn_seq *q)
{
    uint32_t ready = count_ready(s, q), budget = s->o.max_batched_tokens - s->n_tokens;
    if (ready == 0) return true;
    if (budget == 0 || (ready > budget && !s->o.chunked_prefill)) return false;
    emit_row(s, q, cn_min_u32(ready, budget));
    return true;
}

/* Adds chunks of running prompts, then admits sequences and adds their chunks. Stops at the first
 * one that does not fit, so that none overtakes another. */
static void add_prefill_rows(cn_scheduler *s)
{
    bool open = true;
    for (cn_seq *q = s->running.head; q && open; q = cn_seq_list_next(&s->running, q)) {
        if (count_ready(s, q) > 1) open = try_chunk(s, q);
    }
    for (uint32_t i = 0; i < s->n_rows; i++) {
        if (s->rows[i].wants_sample && !cn_sched_fork(s, s->rows[i].seq)) open = false;
    }
    while (open) {
        cn_seq *q = cn_sched_admit_next(s, s->o.max_batched_tokens - s->n_tokens);
        if (!q) break;
        open = try_chunk(s, q);
        if (q->n_pending > 0 && !cn_sched_fork(s, q)) open = false;
    }
}

void cn_scheduler_schedule(cn_scheduler *s, cn_plan *out)
{
    cn_sched_commit_done(s);
    cn_sched_grant(s);
    cn_sched_swap_begin_plan(&s->swap);
    s->n_rows = s->n_decode = s->n_tokens = 0;
    s->n_block_copies = s->n_slot_copies = s->n_forks = 0;
    s->starved = NULL;
    cn_sched_make_way_to_hold(s);
    secure_blocks(s);
    cn_sched_make_way(s);
    add_decode_rows(s);
    add_prefill_rows(s);
    for (uint32_t i = 0; i < s->n_forks; i++)
        s->forks[i].leader_row = s->fork_leaders[i]->sched->row;
    const cn_swap *w = &s->swap;
    *out = (cn_plan){
        .rows = s->rows,
        .n_rows = s->n_rows,
        .n_decode = s->n_decode,
        .n_tokens = s->n_tokens,
        .fork_copies = {s->block_copies, s->n_block_copies, s->slot_copies, s->n_slot_copies},
        .forks = s->forks,
        .n_forks = s->n_forks,
        .swap_out = {w->out_blocks, w->n_out_blocks, w->out_windows, w->n_out_windows},
        .swap_in = {w->in_blocks, w->n_in_blocks, w->in_windows, w->n_in_windows},
        .after_puts = cn_sched_take_after_puts(s),
        .starved = s->starved,
    };
}
