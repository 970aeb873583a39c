/* sched_home.c - home blocks and home slots: where the full KV of away requests lies, on a cache
 * device or in host memory. See sched_state.h; HOMES.md.
 *
 * A request takes all home blocks that it can come to need, and its slot, together with its first
 * device blocks, and keeps them until it ends or is preempted. It therefore never waits for home
 * blocks while it holds device blocks. Home blocks are not shared and enter no prefix cache. A
 * sequence in the swap space keeps its home.
 *
 * A long prompt goes home chunk by chunk. A put holds no references: the blocks of a sequence that
 * leaves are free at once, and after_puts orders what uses them next behind the puts. So what can
 * be admitted does not depend on how fast the puts are. The puts of a step are bounded, so that
 * this wait is short also after a prompt of which most was in the prefix cache. */
#include "scheduler/sched_state.h"

cn_status cn_sched_home_init(cn_scheduler *s)
{
    for (int h = 0; h < CN_N_HOMES; h++) {
        const uint32_t n_blocks = s->o.n_home_blocks[h], n_slots = s->o.n_home_slots[h];
        if (h == CN_HOME_DEVICE || n_blocks == 0 || n_slots == 0) continue;
        CN_TRY(cn_space_init(&s->home[h], n_blocks, n_slots));
    }
    return CN_OK;
}

void cn_sched_home_free(cn_scheduler *s)
{
    for (int h = 0; h < CN_N_HOMES; h++) cn_space_free(&s->home[h]);
}

cn_home_room cn_sched_home_room(const cn_space *home)
{
    return (cn_home_room){cn_space_free_blocks(home), cn_space_free_slots(home)};
}

cn_home_room cn_seq_home_wanted(const cn_seq *q)
{
    return (cn_home_room){q->sched->n_home, q->sched->n_home > 0};
}

bool cn_sched_lacks_home(const cn_seq *q)
{
    const cn_home_room want = cn_seq_home_wanted(q), have = cn_sched_home_room(q->sched->home);
    return want.blocks > have.blocks || want.slots > have.slots;
}

bool cn_sched_try_home(cn_scheduler *s, cn_seq *q)
{
    CN_ASSERT(q->n_home_blocks == 0);
    if (cn_sched_lacks_home(q)) return false;
    if (q->sched->n_home == 0) return true;
    if (!cn_sched_try_buffers(s, q)) return false;
    const cn_space *home = q->sched->home;
    const bool taken = cn_pool_try_take(home->blocks, q->sched->n_home, q->home_table) &&
                       cn_pool_try_take(home->slots, 1, &q->home_slot);
    CN_ASSERT(taken);
    q->n_home_blocks = q->sched->n_home;
    return true;
}

void cn_sched_release_home(cn_seq *q)
{
    if (q->n_home_blocks == 0) return;
    const cn_space *home = q->sched->home;
    while (q->n_home_blocks > 0) cn_pool_drop(home->blocks, q->home_table[--q->n_home_blocks]);
    cn_pool_drop(home->slots, q->home_slot);
    q->home_slot = 0;
}

void cn_sched_plan_puts(cn_scheduler *s)
{
    uint32_t left = cn_sched_step_puts(&s->o);
    s->n_puts = 0;
    for (cn_seq *q = s->running.head; q; q = cn_seq_list_next(&s->running, q)) {
        cn_seq_sched *st = q->sched;
        const uint32_t first = st->n_put;
        const uint32_t n = cn_min_u32(cn_seq_puttable(q, s->o.block_tokens), first + left);
        if (q->state != CN_SEQ_RUNNING || n <= first) continue;
        left -= n - first;
        for (uint32_t i = first; i < n; i++)
            st->puts[i] = (cn_block_copy){q->table[i], q->home_table[i]};
        s->puts[s->n_puts++] = (cn_sched_put){q, st->puts + first, n - first};
        st->n_put = n;
    }
}
