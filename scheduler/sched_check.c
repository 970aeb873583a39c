/* sched_check.c - checks the invariants of DESIGN.md §3, which names what is left out, and of
 * sched_state.h.
 * cn_scheduler_check returns the first broken invariant, so basic ones are checked before those
 * that depend on them. */
#include "scheduler/sched_state.h"

/* Returns from the function that uses it. */
#define REQUIRE(cond, text)         \
    do {                            \
        if (!(cond)) return (text); \
    } while (0)

static const char *check_links(const cn_seq_list *l)
{
    uint32_t n = 0;
    const cn_seq *prev = NULL;
    for (const cn_seq *q = l->head; q; q = cn_seq_list_next(l, q)) {
        REQUIRE(n++ < l->n && q->sched->links[l->link].prev == prev, "a list has a wrong link");
        prev = q;
    }
    REQUIRE(n == l->n && l->tail == prev, "a list has a wrong tail or a wrong count");
    return NULL;
}

/* Counts the entries of current and pending tables; a block in both counts once. */
static const char *count_refs(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t n_blocks = cn_pool_total(s->device.blocks);
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        REQUIRE(q->table[i] < n_blocks, "a table names a block that does not exist");
        s->check_refs[q->table[i]]++;
    }
    if (q->state != CN_SEQ_COMPRESSING) return NULL;
    for (uint32_t i = 0; i + 1 < q->n_max; i++) {
        uint32_t block = q->sched->target[i];
        REQUIRE(block < n_blocks, "a target block does not exist");
        s->check_refs[block] += block != q->table[i];
    }
    return NULL;
}

static const char *check_pool(const cn_scheduler *s)
{
    const char *broken = cn_space_check(&s->device);
    if (!broken && s->prefix) broken = cn_prefix_cache_check(s->prefix);
    if (broken) return broken;
    uint32_t n_blocks = cn_pool_total(s->device.blocks);
    memset(s->check_refs, 0, n_blocks * sizeof *s->check_refs);
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        broken = count_refs(s, q);
        if (broken) return broken;
    }
    for (uint32_t b = 0; b < n_blocks; b++)
        REQUIRE(s->check_refs[b] == cn_pool_refs(s->device.blocks, b),
                "reference counts differ from the entries of current and pending tables");
    return NULL;
}

/* Checks a block that only its owner may hold, because the owner writes it. */
static const char *check_private(const cn_scheduler *s, uint32_t block)
{
    REQUIRE(cn_pool_refs(s->device.blocks, block) == 1, "a block to be written is shared");
    REQUIRE(!cn_pool_is_cached(s->device.blocks, block),
            "a block to be written is in the prefix cache");
    return NULL;
}

/* Checks what the event of an away request puts into its home. */
static const char *check_puts(const cn_scheduler *s, const cn_seq *q)
{
    const cn_sched_event *e = &q->sched->event;
    const bool away = q->sched->n_home > 0, first = q->n_exchange == 0;
    const uint32_t n_before = q->sched->n_put;
    const uint32_t n_puts = !away ? 0 : first ? q->n_blocks - n_before : 1;
    REQUIRE(e->n_puts == n_puts && e->n_put_before == n_before &&
                e->home_len == (away ? q->n_computed : 0),
            "an event puts a wrong number of blocks into its home");
    for (uint32_t i = 0; i < n_puts; i++) {
        const uint32_t from = first ? n_before + i : q->n_blocks - 1;
        const uint32_t to = first ? n_before + i : q->n_computed / s->o.block_tokens - 1;
        REQUIRE(to < q->n_home_blocks && e->puts[i].src == q->table[from] &&
                    e->puts[i].dst == q->home_table[to],
                "an event puts a block into a wrong place of its home");
    }
    const uint32_t n_area = away && first ? cn_seq_area_blocks(q, s->o.block_tokens) : 0;
    REQUIRE(e->n_exchange == n_area &&
                (n_area == 0 || e->exchange == q->sched->target + e->req.n_target),
            "an event fills a wrong exchange area");
    return NULL;
}

/* Checks that an event neither writes nor pins a block of the prefix cache, and that it lends no
 * more blocks than it has new targets. Only those of sources that had no other holder are lent. */
static const char *check_sources(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t n_replaced = 0;
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        const uint32_t block = q->table[i];
        const bool kept =
            i == q->sched->spare || (i + 1 < q->n_max && q->sched->target[i] == block);
        REQUIRE(!cn_pool_is_cached(s->device.blocks, block) ||
                    !(kept || cn_pool_is_pinned(s->device.blocks, block)),
                "a block that an event writes or pins is in the prefix cache");
        n_replaced += i + 1 < q->n_max && q->sched->target[i] != block;
    }
    REQUIRE(q->sched->n_lent <= n_replaced, "an event lends blocks that are no targets");
    return NULL;
}

static const char *check_compressing(const cn_scheduler *s, const cn_seq *q)
{
    const cn_seq_sched *st = q->sched;
    REQUIRE(st->hold == CN_HOLD_COMPRESSED, "the sequence of an event has no slot or reservation");
    const uint32_t n_area = cn_seq_area_blocks(q, s->o.block_tokens);
    REQUIRE(st->event.seq == q && st->event.req.n_blocks == q->n_blocks - q->n_exchange &&
                st->event.req.n_target == q->n_max - 1 - n_area &&
                st->event.req.table == q->table + q->n_exchange &&
                st->event.req.target == st->target + q->n_exchange,
            "an event does not match its sequence");
    const char *wrong = check_puts(s, q);
    if (!wrong) wrong = check_sources(s, q);
    if (wrong) return wrong;
    for (uint32_t i = 0; i + 1 < q->n_max; i++) {
        const char *broken = check_private(s, st->target[i]);
        if (broken) return broken;
        bool own = st->target[i] == q->table[i];
        REQUIRE(cn_pool_is_pinned(s->device.blocks, st->target[i]) == own,
                "a target is not pinned although it is in the old table, or the reverse");
    }
    if (st->spare == CN_NO_BLOCK) return NULL;
    REQUIRE(cn_pool_is_pinned(s->device.blocks, q->table[st->spare]), "a spare is not pinned");
    return check_private(s, q->table[st->spare]);
}

static const char *check_seq_lengths(const cn_scheduler *s, const cn_seq *q)
{
    uint32_t b = s->o.block_tokens;
    bool compressed = q->usage_kv.compressions > 0;
    REQUIRE(q->n_tokens >= q->n_prompt && cn_seq_known(q) <= q->max_tokens,
            "a sequence has fewer tokens than its prompt or more than its limit");
    REQUIRE(q->n_computed <= cn_seq_end(q), "a sequence ran past its last known token");
    REQUIRE(q->n_resident <= q->n_blocks * b, "resident slots exceed the sequence's blocks");
    REQUIRE(q->n_blocks <= q->sched->max_blocks, "a sequence exceeds max_blocks");
    REQUIRE(compressed ? q->n_resident < q->n_computed : q->n_resident == q->n_computed,
            "residency and position disagree");
    REQUIRE(compressed || q->sched->n_registered * b <= cn_seq_settled(q),
            "a block entered the prefix cache before its tokens were known and computed");
    REQUIRE(q->kv.select == CN_SELECT_NONE || cn_kv_is_away(&q->kv) ||
                (!compressed && q->sched->trigger == CN_NEVER),
            "a sequence with a selector has a cap: its slots would not be its positions");
    REQUIRE(q->n_exchange == (compressed ? cn_seq_area_blocks(q, b) : 0),
            "an exchange area without its event, or the reverse");
    const bool was_put = compressed && q->sched->n_home > 0;
    REQUIRE(was_put ? q->home_len % b == 0 && q->home_len > 0 &&
                          q->n_computed - q->home_len == q->n_resident - (q->n_max - 1) * b
                    : q->home_len == 0,
            "the tokens that are home do not match the resident slots");
    REQUIRE(q->sched->n_put <= cn_seq_puttable(q, b),
            "a block was put before it was full, or for a request that may need no home");
    REQUIRE(compressed || !cn_seq_is_apart(s, q) || q->sched->n_registered * b <= q->n_prompt,
            "a decoded block that no prompt may find entered the prefix cache");
    if (!compressed) return NULL;
    REQUIRE(q->n_blocks <= q->n_max, "a compressed sequence exceeds its cap");
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        const char *broken = check_private(s, q->table[i]);
        if (broken) return broken;
    }
    return NULL;
}

static const char *check_running(const cn_scheduler *s, const cn_seq *q)
{
    const cn_seq_sched *st = q->sched;
    REQUIRE(q->state == CN_SEQ_RUNNING || q->state == CN_SEQ_COMPRESSING,
            "a running sequence is in another state");
    const char *broken = check_seq_lengths(s, q);
    if (broken) return broken;
    bool holds = st->hold != CN_HOLD_NONE;
    REQUIRE((q->query_slot >= 0) ==
                (cn_seq_is_ring_user(q) || (holds && cn_kv_needs_slot(&q->kv))),
            "a query slot without its reservation or ring, or the reverse");
    REQUIRE(!holds || cn_seq_needs_hold(q), "a slot or reservation that is not needed");
    if (!holds)
        REQUIRE(q->n_computed <= cn_seq_window_start(q),
                "a sequence advanced into its window without a slot or reservation");
    bool compressed = q->usage_kv.compressions > 0 || q->state == CN_SEQ_COMPRESSING;
    REQUIRE(compressed == (st->hold == CN_HOLD_COMPRESSED),
            "a sequence is in the wrong list of holders");
    REQUIRE(!st->ending || q->state == CN_SEQ_COMPRESSING, "an ended sequence still runs");
    if (q->state == CN_SEQ_COMPRESSING) return check_compressing(s, q);
    for (uint32_t i = 0; i < q->n_blocks; i++)
        REQUIRE(!cn_pool_is_pinned(s->device.blocks, q->table[i]), "a pin outlived its event");
    /* The next token's block will be written: no other table may hold it. */
    uint32_t at = q->n_resident / s->o.block_tokens;
    return at < q->n_blocks ? check_private(s, q->table[at]) : NULL;
}

static const char *check_slots(const cn_scheduler *s)
{
    uint32_t n_holders = 0, n_slots = 0, reserved = 0, n_lacking = 0, n_compressing = 0;
    uint32_t n_lent = 0;
    bool lacks_slot[2] = {false, false}; /* of a class, so far */
    for (const cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        const char *broken = check_running(s, q);
        if (broken) return broken;
        bool holds = q->sched->hold != CN_HOLD_NONE;
        REQUIRE(holds || !cn_seq_is_constrained(s, q),
                "a sequence was admitted without the slot that it needs at once");
        REQUIRE(!holds || n_lacking == 0, "a slot was granted past the foremost that lacks one");
        REQUIRE(!cn_seq_is_ring_user(q) || !(lacks_slot[CN_CLASS_INTERACTIVE] ||
                                             lacks_slot[q->klass]),
                "a ring user took a slot past a sequence that lacks one");
        lacks_slot[q->klass] |= cn_seq_is_lacking(q) && cn_kv_needs_slot(&q->kv);
        n_lacking += cn_seq_is_lacking(q);
        n_compressing += q->state == CN_SEQ_COMPRESSING;
        n_lent += q->sched->n_lent;
        REQUIRE(q->sched->n_lent == 0 || q->state == CN_SEQ_COMPRESSING,
                "a sequence without an event has lent blocks");
        n_holders += holds;
        n_slots += q->query_slot >= 0;
        reserved += holds ? q->n_max : 0;
        REQUIRE(q->query_slot < 0 ||
                    cn_pool_refs(s->device.slots, (uint32_t)q->query_slot) == 1,
                "a held query slot is free or shared");
    }
    REQUIRE(n_slots + cn_space_free_slots(&s->device) == cn_space_total_slots(&s->device),
            "query slots leaked");
    REQUIRE(n_holders == s->device.n_holders && reserved == s->device.reserved_blocks,
            "reservations differ from those of the holders");
    REQUIRE(reserved <= cn_pool_total(s->device.blocks), "reservations exceed the pool");
    REQUIRE(n_lacking == s->n_lacking, "the count of sequences that lack a slot is wrong");
    REQUIRE(n_compressing == s->n_compressing, "the count of events is wrong");
    REQUIRE(n_lent == s->n_lent, "the count of lent blocks is wrong");
    return NULL;
}

static const char *check_idle(const cn_seq *q)
{
    const bool swapped = q->state == CN_SEQ_SWAPPED;
    REQUIRE(swapped || q->n_home_blocks == 0, "a sequence that does not run holds home blocks");
    REQUIRE(q->sched->n_put == 0, "a sequence that does not run has put blocks");
    REQUIRE(q->n_blocks == 0 && q->query_slot < 0 && q->sched->hold == CN_HOLD_NONE,
            "a sequence that does not run holds blocks or a slot");
    REQUIRE(swapped || q->state == CN_SEQ_FINISHED || q->usage_kv.compressions == 0,
            "a sequence waits although it is compressed");
    REQUIRE(swapped || q->sched->n_host == 0, "a sequence that is not swapped holds swap space");
    return NULL;
}

/* Checks that the swap space holds the swapped sequences and nothing else. */
static const char *check_swap(const cn_scheduler *s)
{
    const cn_swap *w = &s->swap;
    if (!w->space.blocks) return NULL;
    const char *broken = cn_space_check(&w->space);
    if (broken) return broken;
    const cn_swap_room left = cn_sched_swap_room(s);
    uint32_t n_blocks = 0, n_windows = 0;
    for (uint32_t i = 0; i < w->queue.n; i++) {
        const cn_seq *q = w->queue.heap[i];
        const cn_seq_sched *st = q->sched;
        REQUIRE(q->state == CN_SEQ_SWAPPED && q->klass == CN_CLASS_BATCH && st->heap_at == i,
                "the swap queue holds a sequence that is not swapped");
        REQUIRE(q->usage_kv.compressions > 0 && st->n_host > 0 &&
                    st->n_host == cn_ceil_div(q->n_resident, s->o.block_tokens),
                "the host blocks of a swapped sequence do not match its resident slots");
        for (uint32_t k = 0; k < st->n_host; k++)
            REQUIRE(q->table[k] < cn_pool_total(w->space.blocks) &&
                        cn_pool_refs(w->space.blocks, q->table[k]) == 1,
                    "a host block of a swapped sequence does not exist, is free or is shared");
        n_blocks += st->n_host;
        if (!cn_kv_needs_slot(&q->kv)) continue;
        REQUIRE(cn_pool_refs(w->space.slots, st->host_window) == 1,
                "a host window of a swapped sequence is free or shared");
        n_windows++;
    }
    REQUIRE(n_blocks + left.blocks == s->o.n_swap_blocks &&
                n_windows + left.windows == s->o.n_swap_windows,
            "swap space leaked");
    return NULL;
}

/* Checks that each block and slot of a home belongs to one running or swapped sequence, and that
 * such a sequence has all of its home. */
static const char *check_home_space(const cn_scheduler *s, cn_kv_home home)
{
    const cn_space *space = &s->home[home];
    const char *broken = cn_space_check(space);
    if (broken) return broken;
    const uint32_t n_total = cn_space_total_blocks(space);
    uint32_t n_slots = 0;
    memset(s->check_refs, 0, n_total * sizeof *s->check_refs);
    for (const cn_seq *q = s->all.head; q; q = cn_seq_list_next(&s->all, q)) {
        if (q->sched->home != space || q->n_home_blocks + q->sched->n_home == 0) continue;
        const bool idle = q->state == CN_SEQ_WAITING || q->state == CN_SEQ_FORKING ||
                          q->state == CN_SEQ_UNREADY || q->state == CN_SEQ_FINISHED;
        REQUIRE(q->n_home_blocks == (idle ? 0 : q->sched->n_home),
                "a sequence has device blocks without its home blocks, or the reverse");
        for (uint32_t i = 0; i < q->n_home_blocks; i++) {
            REQUIRE(q->home_table[i] < n_total, "a table names a home block that does not exist");
            s->check_refs[q->home_table[i]]++;
        }
        if (idle) continue;
        REQUIRE(q->home_slot < cn_space_total_slots(space) &&
                    cn_pool_refs(space->slots, q->home_slot) == 1,
                "a held home slot does not exist, is free or is shared");
        n_slots++;
    }
    for (uint32_t b = 0; b < n_total; b++)
        REQUIRE(s->check_refs[b] <= 1 && s->check_refs[b] == cn_pool_refs(space->blocks, b),
                "references to home blocks differ from the home tables");
    REQUIRE(n_slots + cn_space_free_slots(space) == cn_space_total_slots(space),
            "home slots leaked");
    return NULL;
}

static const char *check_queue(const cn_queue *q, cn_class klass)
{
    for (uint32_t i = 0; i < q->n; i++) {
        const cn_seq *seq = q->heap[i];
        REQUIRE(seq->state == CN_SEQ_WAITING && seq->klass == klass && seq->sched->heap_at == i,
                "a queue holds a sequence that is not waiting in it");
        REQUIRE(i == 0 || !cn_seq_before(seq, q->heap[(i - 1) / 2], q->by_priority),
                "a queue is out of order");
    }
    return NULL;
}

static const char *check_all_lists(const cn_scheduler *s)
{
    const char *broken = check_links(&s->all);
    if (!broken) broken = check_links(&s->running);
    if (!broken) broken = check_links(&s->aged);
    uint32_t n_held = 0, n_state[CN_SEQ_FINISHED + 1] = {0};
    for (int h = 0; h < CN_N_HOLDS && !broken; h++) {
        broken = check_links(&s->by_hold[h]);
        n_held += s->by_hold[h].n;
    }
    for (int c = 0; c < 2 && !broken; c++) broken = check_queue(&s->waiting[c], (cn_class)c);
    for (const cn_seq *q = s->all.head; q && !broken; q = cn_seq_list_next(&s->all, q)) {
        n_state[q->state]++;
        if (q->state != CN_SEQ_RUNNING && q->state != CN_SEQ_COMPRESSING) broken = check_idle(q);
    }
    if (broken) return broken;
    REQUIRE(n_held == s->running.n, "a running sequence is in no list of holders");
    REQUIRE(n_state[CN_SEQ_RUNNING] + n_state[CN_SEQ_COMPRESSING] == s->running.n &&
                n_state[CN_SEQ_WAITING] == s->waiting[0].n + s->waiting[1].n &&
                n_state[CN_SEQ_FORKING] == cn_sched_count_forking(s) &&
                n_state[CN_SEQ_UNREADY] == s->n_unready[0] + s->n_unready[1] &&
                n_state[CN_SEQ_SWAPPED] == s->swap.queue.n,
            "states and lists disagree");
    REQUIRE(s->running.n <= s->o.max_seqs, "more sequences run than max_seqs");
    return NULL;
}

const char *cn_scheduler_check(const cn_scheduler *s)
{
    const char *broken = check_all_lists(s);
    if (!broken) broken = check_pool(s);
    if (!broken) broken = check_slots(s);
    if (!broken) broken = check_swap(s);
    for (int h = 0; h < CN_N_HOMES && !broken; h++) broken = check_home_space(s, (cn_kv_home)h);
    return broken;
}
