/* sched_swap.c - moves the KV of compressed batch sequences to host memory and back, unchanged.
 * See sched_state.h; DESIGN.md §3.4.
 *
 * An interactive sequence then does not wait until a compressed batch sequence ends. Only
 * compressed sequences move, because others can be recomputed. All blocks of a compressed sequence
 * are its own, because an event writes them: none is shared, cached or pinned, so all can move. The
 * sequence releases its blocks, slot and reservation at once; the copies run before the rows that
 * use them next. An away sequence keeps its home blocks and its home slot.
 *
 * A swapped sequence returns when a seat, a slot and its blocks are free. It is the foremost of its
 * class: no batch request is admitted from the queue before it, and the batch floor counts for it.
 * Running sequences that lack a slot get theirs first. While a swapped sequence waits, only
 * interactive sequences can newly lack a slot. */
#include "scheduler/sched_state.h"

cn_status cn_sched_swap_init(cn_swap *w, uint32_t n_blocks, uint32_t n_windows)
{
    if (n_blocks == 0) return CN_OK;
    CN_TRY(cn_space_init(&w->space, n_blocks, n_windows));
    CN_TRY(cn_queue_reserve(&w->queue, n_blocks));
    w->out_blocks = cn_calloc(n_blocks, sizeof *w->out_blocks);
    w->in_blocks = cn_calloc(n_blocks, sizeof *w->in_blocks);
    w->out_windows = cn_calloc(n_windows, sizeof *w->out_windows);
    w->in_windows = cn_calloc(n_windows, sizeof *w->in_windows);
    if (!w->out_blocks || !w->in_blocks || !w->out_windows || !w->in_windows)
        return cn_fail(CN_ERR_MEMORY, "out of memory for a swap space of %u blocks", n_blocks);
    return CN_OK;
}

void cn_sched_swap_free(cn_swap *w)
{
    cn_queue_free(&w->queue);
    cn_space_free(&w->space);
    cn_free(w->out_blocks);
    cn_free(w->in_blocks);
    cn_free(w->out_windows);
    cn_free(w->in_windows);
}

void cn_sched_swap_begin_plan(cn_swap *w)
{
    w->n_plans++;
    w->n_out_blocks = w->n_in_blocks = w->n_out_windows = w->n_in_windows = 0;
}

bool cn_sched_is_movable(const cn_scheduler *s, const cn_seq *q)
{
    return s->swap.space.blocks && q->klass == CN_CLASS_BATCH && q->state == CN_SEQ_RUNNING &&
           q->usage_kv.compressions > 0 && !q->sched->by_floor &&
           q->n_computed < q->max_tokens - 1; /* else it ends too soon to gain anything */
}

/* Blocks with content. The last block of the table may have been taken and not yet written. */
static uint32_t count_content(const cn_scheduler *s, const cn_seq *q)
{
    return (uint32_t)cn_ceil_div(q->n_resident, s->o.block_tokens);
}

cn_swap_room cn_sched_swap_room(const cn_scheduler *s)
{
    const cn_swap *w = &s->swap;
    return (cn_swap_room){.blocks = cn_space_free_blocks(&w->space),
                          .windows = cn_space_free_slots(&w->space)};
}

bool cn_sched_try_room(const cn_scheduler *s, const cn_seq *q, cn_swap_room *left)
{
    const uint32_t n = count_content(s, q), n_windows = q->query_slot >= 0;
    if (n > left->blocks || n_windows > left->windows) return false;
    left->blocks -= n;
    left->windows -= n_windows;
    return true;
}

static uint32_t take_counted(cn_pool *p)
{
    uint32_t id;
    const bool taken = cn_pool_try_take(p, 1, &id);
    CN_ASSERT(taken);
    return id;
}

bool cn_sched_try_swap_out(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(cn_sched_is_movable(s, q));
    cn_swap *w = &s->swap;
    cn_seq_sched *st = q->sched;
    cn_swap_room left = cn_sched_swap_room(s);
    if (!cn_sched_try_room(s, q, &left)) return false;
    st->n_host = count_content(s, q);
    while (q->n_blocks > st->n_host) cn_pool_drop(s->device.blocks, q->table[--q->n_blocks]);
    for (uint32_t i = 0; i < st->n_host; i++) {
        const uint32_t host = take_counted(w->space.blocks);
        w->out_blocks[w->n_out_blocks++] = (cn_block_copy){q->table[i], host};
        cn_pool_drop(s->device.blocks, q->table[i]);
        q->table[i] = host;
    }
    q->n_blocks = 0;
    if (q->query_slot >= 0) {
        st->host_window = take_counted(w->space.slots);
        w->out_windows[w->n_out_windows++] =
            (cn_block_copy){(uint32_t)q->query_slot, st->host_window};
    }
    cn_seq_list_remove(&s->by_hold[CN_HOLD_COMPRESSED], q);
    cn_seq_list_remove(&s->running, q);
    cn_sched_release_hold(s, q);
    q->state = CN_SEQ_SWAPPED;
    st->swap_out_plan = w->n_plans;
    cn_queue_push(&w->queue, q);
    s->stats.swap_outs++;
    s->stats.swapped_out_blocks += st->n_host;
    return true;
}

bool cn_sched_try_swap_last(cn_scheduler *s)
{
    for (cn_seq *q = s->running.tail; q; q = q->sched->links[CN_LINK_RUNNING].prev)
        if (cn_sched_is_movable(s, q) && cn_sched_try_swap_out(s, q)) return true;
    return false;
}

bool cn_sched_try_swap_in(cn_scheduler *s, cn_seq *q)
{
    cn_swap *w = &s->swap;
    cn_seq_sched *st = q->sched;
    CN_ASSERT(q->state == CN_SEQ_SWAPPED);
    /* The device reads a pending token from the samples of the last step, in which q has no row. A
     * sequence that left in this plan must not return in the same plan. */
    if (q->n_pending > 0 || st->swap_out_plan == w->n_plans || s->n_lacking > 0) return false;
    const bool needs_slot = cn_kv_needs_slot(&q->kv);
    const uint32_t n = q->n_resident / s->o.block_tokens + 1; /* room for the next token */
    if (cn_pool_available(s->device.blocks) < (uint64_t)n + cn_sched_margin(s)) return false;
    if (!cn_space_try_hold(&s->device, q->n_max, needs_slot, &q->query_slot))
        return false;
    st->hold = CN_HOLD_COMPRESSED;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t block = take_counted(s->device.blocks);
        if (i < st->n_host) {
            w->in_blocks[w->n_in_blocks++] = (cn_block_copy){q->table[i], block};
            cn_pool_drop(w->space.blocks, q->table[i]);
        }
        q->table[i] = block;
    }
    q->n_blocks = n;
    if (needs_slot) {
        w->in_windows[w->n_in_windows++] =
            (cn_block_copy){st->host_window, (uint32_t)q->query_slot};
        cn_pool_drop(w->space.slots, st->host_window);
    }
    s->stats.swap_ins++;
    s->stats.swapped_in_blocks += st->n_host;
    st->n_host = 0;
    return true;
}

void cn_sched_swap_drop(cn_scheduler *s, cn_seq *q)
{
    cn_swap *w = &s->swap;
    cn_seq_sched *st = q->sched;
    while (st->n_host > 0) cn_pool_drop(w->space.blocks, q->table[--st->n_host]);
    if (cn_kv_needs_slot(&q->kv)) cn_pool_drop(w->space.slots, st->host_window);
    cn_queue_remove(&w->queue, q);
    cn_sched_release_home(q);
}
