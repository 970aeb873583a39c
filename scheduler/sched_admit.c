/* sched_admit.c - admits sequences from the queues into the running list; forks samples.
 * See sched_state.h; DESIGN.md §3.3 and §3.6. */
#include "scheduler/sched_state.h"

uint32_t cn_sched_margin(const cn_scheduler *s)
{
    uint32_t n = 0;
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        if (q->state == CN_SEQ_COMPRESSING)
            n += q->sched->spare == CN_NO_BLOCK;
        else
            n += q->n_blocks < (cn_seq_needs_hold(q) ? q->n_max : q->sched->max_blocks);
    }
    return n;
}

/* Returns true when an aged request goes before q: q is not admitted until the aged one ends. */
static bool must_yield(const cn_scheduler *s, const cn_seq *q)
{
    for (const cn_seq *a = s->aged.head; a; a = cn_seq_list_next(&s->aged, a)) {
        if (a != q && cn_seq_before(a, q, s->o.priority_order)) return true;
    }
    return false;
}

typedef struct prefix_hit {
    uint32_t n_blocks, n_revived; /* blocks found, and how many of them are cached-only */
    cn_prefix_key key;
} prefix_hit;

/* Returns the most tokens of q that a prefix hit may cover. At least one token is left to compute,
 * and every token whose query will be read: those of the coming observation window, and the last of
 * the prompt, which fill the ring. */
static uint32_t longest_hit(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t n = cn_min_u32(q->n_tokens - 1, cn_seq_window_start(q));
    /* Decoded tokens must be decoded again (DESIGN.md §4.7), even when the cache has the same
     * tokens from the prompt of another request. */
    if (cn_seq_is_apart(s, q)) n = cn_min_u32(n, q->n_prompt);
    if (!cn_seq_is_ring_user(q)) return n;
    const uint32_t n_ring = cn_min_u32(q->n_prompt, cn_selector_ring_rows(&q->kv));
    return cn_min_u32(n, q->n_prompt - n_ring);
}

/* Writes the leading blocks of q that the prefix cache has to s->hit_blocks. Takes no reference. */
static prefix_hit find_prefix(const cn_scheduler *s, const cn_seq *q)
{
    prefix_hit hit = {.key = cn_sched_root(&s->o, q->owner)};
    if (!s->prefix || q->skips_prefix) return hit;
    uint32_t b = s->o.block_tokens;
    const uint32_t n_most = longest_hit(s, q) / b;
    for (; hit.n_blocks < n_most; hit.n_blocks++) {
        const uint32_t *tokens = q->tokens + (size_t)hit.n_blocks * b;
        cn_prefix_key key;
        uint32_t block = cn_prefix_cache_find(s->prefix, hit.key, tokens, &key);
        if (block == CN_NO_BLOCK || cn_pool_is_pinned(s->device.blocks, block)) break;
        s->hit_blocks[hit.n_blocks] = block;
        hit.key = key;
        hit.n_revived += cn_pool_refs(s->device.blocks, block) == 0;
    }
    return hit;
}

/* The prompt of several samples is counted once, also if they do not share its blocks. */
static void count_hit(cn_scheduler *s, cn_seq *q, uint32_t hit_tokens)
{
    cn_seq_sched *st = q->sched;
    if (!st->was_admitted) q->n_cached_tokens = hit_tokens;
    if (!st->is_counted) {
        st->is_counted = true;
        s->stats.prompt_tokens += q->n_prompt;
        if (s->prefix) s->stats.prefix_queries += q->n_prompt;
        s->stats.cached_tokens += hit_tokens;
    }
    uint32_t lost = st->lost_tokens - cn_min_u32(st->lost_tokens, hit_tokens);
    q->recomputed_tokens += lost;
    s->stats.recomputed_tokens += lost;
    st->lost_tokens = 0;
}

/* Tokens for which admission takes blocks: all known tokens up to the first event. */
static uint32_t count_first(const cn_seq *q) { return cn_min_u32(q->n_tokens, q->sched->trigger); }

static uint32_t count_first_blocks(const cn_scheduler *s, const cn_seq *q)
{
    return (uint32_t)cn_ceil_div(count_first(q), s->o.block_tokens);
}

/* Blocks that must stay free besides the first blocks of q: one for each running request that may
 * need its next block, and the next block of q itself if q was preempted before. */
static uint32_t count_reserve(const cn_scheduler *s, const cn_seq *q)
{
    const bool grows = q->preemptions > 0 && count_first_blocks(s, q) < q->sched->max_blocks;
    return cn_sched_margin(s) + grows;
}

/* Takes the first blocks of q if all are available now and the reserve stays free. Without chunked
 * prefill the tokens to compute must also fit in budget_tokens. */
static bool try_blocks(cn_scheduler *s, cn_seq *q, uint32_t budget_tokens, prefix_hit *hit)
{
    uint32_t n_blocks = count_first_blocks(s, q), reserve = count_reserve(s, q);
    if (cn_pool_available(s->device.blocks) < reserve) return false;
    *hit = find_prefix(s, q);
    uint32_t n_new = n_blocks - hit->n_blocks;
    uint32_t n_uncached = count_first(q) - hit->n_blocks * s->o.block_tokens;
    if (!s->o.chunked_prefill && n_uncached > budget_tokens) return false;
    if (cn_pool_available(s->device.blocks) < (uint64_t)n_new + hit->n_revived + reserve)
        return false;
    if (!cn_sched_try_buffers(s, q)) return false;
    memcpy(q->table, s->hit_blocks, hit->n_blocks * sizeof *q->table);
    for (uint32_t i = 0; i < hit->n_blocks; i++) cn_pool_share(s->device.blocks, q->table[i]);
    bool taken = cn_pool_try_take(s->device.blocks, n_new, q->table + hit->n_blocks);
    CN_ASSERT(taken);
    q->n_blocks = n_blocks;
    return true;
}

static bool try_admit(cn_scheduler *s, cn_seq *q, uint32_t budget_tokens)
{
    cn_seq_sched *st = q->sched;
    /* The host has not read a pending token yet, so it cannot recompute its KV. */
    if (q->n_pending > 0 || !cn_sched_choose_home(s, q)) return false;
    if (cn_seq_is_constrained(s, q) && !cn_sched_try_grant(s, q)) return false;
    prefix_hit hit;
    if (!cn_sched_try_ring(s, q) || !cn_sched_try_home(s, q) ||
        !try_blocks(s, q, budget_tokens, &hit)) {
        cn_sched_release_hold(s, q);
        cn_sched_release_home(q);
        return false;
    }
    q->n_computed = q->n_resident = hit.n_blocks * s->o.block_tokens;
    st->n_registered = hit.n_blocks;
    st->chain = hit.key;
    st->admitted_at = cn_pool_n_released(s->device.blocks);
    count_hit(s, q, q->n_computed);
    if (cn_seq_is_lacking(q)) cn_sched_try_grant(s, q);
    cn_sched_count_choice(s, q);
    return true;
}

void cn_sched_count_loads(const cn_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_owner_slots; i++)
        s->owners[i].load = s->owners[i].mask_steps = s->owners[i].n_running = 0;
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        cn_owner *owner = &s->owners[q->sched->owner_slot];
        owner->load += cn_seq_known(q) + q->mask_steps / CN_MASK_STEPS_PER_TOKEN;
        owner->mask_steps += q->mask_steps;
        owner->n_running++;
    }
}

/* Returns true when a is admitted before b of the same class: by priority, then the owner with
 * fewer running tokens, then by arrival. */
static bool chosen_before(const cn_scheduler *s, const cn_seq *a, const cn_seq *b)
{
    const uint64_t load_a = s->owners[a->sched->owner_slot].load;
    const uint64_t load_b = s->owners[b->sched->owner_slot].load;
    const bool by_priority = s->o.priority_order && a->priority != b->priority;
    return by_priority || load_a == load_b ? cn_seq_before(a, b, s->o.priority_order)
                                           : load_a < load_b;
}

/* Returns the sequence of a queue that is admitted next (DESIGN.md §3.1). One that must yield to an
 * aged sequence is not chosen. NULL: none. */
static cn_seq *choose_waiting(const cn_scheduler *s, const cn_queue *waiting)
{
    cn_seq *best = cn_queue_peek(waiting);
    if (!best || s->n_owners <= 1) return best && !must_yield(s, best) ? best : NULL;
    cn_sched_count_loads(s);
    best = NULL;
    for (uint32_t i = 0; i < waiting->n; i++) {
        cn_seq *q = waiting->heap[i];
        if ((!best || chosen_before(s, q, best)) && !must_yield(s, q)) best = q;
    }
    return best;
}

/* Returns the class whose turn it is: interactive, unless none waits or the batch floor is reached
 * (DESIGN.md §3.1). A batch request that must yield to an aged request does not block interactive
 * requests, because the aged request may be one of them. A swapped request was admitted before and
 * never yields. */
static cn_class next_class(const cn_scheduler *s)
{
    if (s->waiting[CN_CLASS_INTERACTIVE].n == 0) return CN_CLASS_BATCH;
    if (s->o.batch_floor == 0 || s->n_passed < s->o.batch_floor) return CN_CLASS_INTERACTIVE;
    bool ready = s->swap.queue.n > 0 || choose_waiting(s, &s->waiting[CN_CLASS_BATCH]);
    return ready ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
}

static void count_passing(cn_scheduler *s, cn_class admitted)
{
    const uint32_t n_batch = s->waiting[CN_CLASS_BATCH].n + s->swap.queue.n;
    bool passes = admitted == CN_CLASS_INTERACTIVE && n_batch > 0;
    s->n_passed = passes ? s->n_passed + 1 : 0;
}

cn_seq *cn_sched_admit_next(cn_scheduler *s, uint32_t budget_tokens)
{
    if (budget_tokens == 0 || s->running.n >= s->o.max_seqs) return NULL;
    cn_seq *first = choose_waiting(s, &s->waiting[CN_CLASS_INTERACTIVE]);
    if (first) cn_sched_choose_home(s, first);
    cn_class klass = next_class(s);
    /* Swapped sequences keep their home blocks. The one that lacks them waits until these sequences
     * have returned and ended. */
    if (s->swap.queue.n > 0 && first && cn_sched_lacks_home(first)) klass = CN_CLASS_BATCH;
    const bool swapped = klass == CN_CLASS_BATCH && s->swap.queue.n > 0;
    cn_queue *waiting = swapped ? &s->swap.queue : &s->waiting[klass];
    cn_seq *q = swapped ? cn_queue_peek(waiting) : choose_waiting(s, waiting);
    if (!q) return NULL;
    if (!(swapped ? cn_sched_try_swap_in(s, q) : try_admit(s, q, budget_tokens))) return NULL;
    cn_queue_remove(waiting, q);
    cn_sched_enter(s, q);
    q->sched->by_floor = q->klass == CN_CLASS_BATCH && s->waiting[CN_CLASS_INTERACTIVE].n > 0;
    count_passing(s, q->klass);
    return q;
}

uint64_t cn_sched_count_wanted(const cn_scheduler *s, const cn_seq *q)
{
    prefix_hit hit = find_prefix(s, q);
    return (uint64_t)count_first_blocks(s, q) - hit.n_blocks + hit.n_revived + count_reserve(s, q);
}

cn_seq *cn_sched_next_interactive(const cn_scheduler *s)
{
    const cn_queue *waiting = &s->waiting[CN_CLASS_INTERACTIVE];
    if (waiting->n == 0 || next_class(s) != CN_CLASS_INTERACTIVE) return NULL;
    cn_seq *q = choose_waiting(s, waiting);
    return q && q->n_pending == 0 ? q : NULL;
}

/* ---- forks ---- */

/* Shares the leader's full blocks with q and copies the partial one. Returns false when there is no
 * room now. */
static bool try_fork(cn_scheduler *s, const cn_seq *leader, cn_seq *q)
{
    cn_seq_sched *st = q->sched;
    uint32_t b = s->o.block_tokens, n_full = q->n_prompt / b;
    uint32_t n_partial = q->n_prompt % b != 0;
    if (s->running.n >= s->o.max_seqs || must_yield(s, q)) return false;
    if (cn_pool_available(s->device.blocks) < n_partial + cn_sched_margin(s)) return false;
    if (!cn_sched_try_buffers(s, q) || !cn_sched_follow_home(s, q, leader) ||
        !cn_sched_try_home(s, q))
        return false;
    /* A window that reaches into the prompt must be copied, so q needs its slot at once. */
    bool in_window = q->n_prompt > cn_seq_window_start(q);
    bool waits = cn_seq_needs_hold(q) && !cn_sched_try_grant(s, q);
    if ((waits && (in_window || !s->o.hybrid)) || !cn_sched_try_ring(s, q)) {
        cn_sched_release_home(q);
        return false;
    }
    for (uint32_t i = 0; i < n_full; i++) {
        q->table[i] = leader->table[i];
        cn_pool_share(s->device.blocks, q->table[i]);
    }
    if (n_partial) {
        bool taken = cn_pool_try_take(s->device.blocks, 1, &q->table[n_full]);
        CN_ASSERT(taken);
        s->block_copies[s->n_block_copies++] =
            (cn_block_copy){leader->table[n_full], q->table[n_full]};
    }
    if (q->query_slot >= 0 && (in_window || cn_seq_is_ring_user(q)))
        s->slot_copies[s->n_slot_copies++] =
            (cn_block_copy){(uint32_t)leader->query_slot, (uint32_t)q->query_slot};
    q->n_blocks = n_full + n_partial;
    q->n_computed = q->n_resident = q->n_prompt;
    q->n_pending = 1;
    q->n_cached_tokens = leader->n_cached_tokens;
    st->n_registered = leader->sched->n_registered;
    st->chain = leader->sched->chain;
    st->n_hashed = leader->sched->n_hashed;
    st->mark = leader->sched->mark;
    st->admitted_at = cn_pool_n_released(s->device.blocks);
    cn_sched_count_choice(s, q);
    return true;
}

bool cn_sched_fork(cn_scheduler *s, cn_seq *leader)
{
    bool all = true;
    cn_seq *q = leader->sched->samples;
    leader->sched->samples = NULL;
    for (cn_seq *next; q; q = next) {
        next = q->sched->next_sample;
        q->sched->next_sample = NULL;
        q->sched->leader = NULL;
        q->sched->is_counted = true;
        s->n_forking[q->klass]--;
        if (try_fork(s, leader, q)) {
            cn_sched_enter(s, q);
            s->fork_leaders[s->n_forks] = leader;
            s->forks[s->n_forks++] = (struct cn_plan_fork){.seq = q};
        } else {
            cn_sched_enqueue(s, q);
            all = false;
        }
    }
    return all;
}
