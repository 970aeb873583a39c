/* sim_put.c - prompts that go home before the first event of their sequence. One stream runs the
 * puts in the order of their launch: at any moment until the first event of the sequence, or until
 * a plan says that what follows must come after them. See sim_world.h. */
#include <string.h>

#include "engine/base/base.h"
#include "scheduler/sched_state.h"
#include "tests/sim/sim_world.h"

/* Full blocks of a prompt that is longer than what the first event leaves on the device. */
static uint32_t count_full(const sim_world *w, const cn_seq *seq)
{
    const uint32_t b = w->engine.block_tokens;
    if (seq->n_home_blocks == 0 || seq->n_prompt <= (seq->n_max - 1) * b) return 0;
    return cn_min_u32(seq->n_computed, seq->n_prompt) / b;
}

/* Blocks that were put since the last admission. */
static uint32_t *count_put(sim_seq *q)
{
    if (q->n_puts_of != q->seq->preemptions + 1) q->n_put = 0;
    q->n_puts_of = q->seq->preemptions + 1;
    return &q->n_put;
}

bool sim_check_put_before(sim_world *w, sim_seq *q, const cn_sched_event *e)
{
    const uint32_t n = e->req.first_event ? *count_put(q) : 0;
    return e->n_put_before == n ||
           sim_fail(w, "event %llu: %u blocks were put before, but the event counts %u",
                    (unsigned long long)e->id, n, e->n_put_before);
}

/* Each block is put once, in the order of the prompt. */
static bool enqueue(sim_world *w, const cn_sched_put *p)
{
    const uint32_t b = w->engine.block_tokens;
    sim_seq *q = sim_find(p->seq);
    if (!q || !q->live || q->compressed) return sim_fail(w, "a put of an unknown sequence");
    uint32_t *n_put = count_put(q);
    sim_put *put = &w->puts[w->n_puts % SIM_MAX_PUTS];
    if (w->n_puts - w->n_run_puts == SIM_MAX_PUTS && !sim_run_puts(w, w->n_run_puts + 1))
        return false;
    *put = (sim_put){.home = p->seq->kv.home,
                     .n_blocks = p->n_blocks,
                     .after_exchange = w->n_exchanges};
    sim_tag_positions(w, q, (*n_put + p->n_blocks) * b);
    memcpy(put->tags, q->positions + *n_put * b, p->n_blocks * b * sizeof *put->tags);
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        const cn_block_copy c = p->blocks[i];
        if (c.src != p->seq->table[*n_put] || c.dst != p->seq->home_table[*n_put])
            return sim_fail(w, "sequence %llu: block %u is put again, or another one instead",
                            (unsigned long long)q->id, *n_put);
        put->blocks[i] = c;
        ++*n_put;
    }
    w->n_puts++;
    w->r->early_puts += p->n_blocks;
    return true;
}

/* No full block of a long prompt is left, unless the step puts as many blocks as it may. */
static bool check_left(sim_world *w, bool is_full)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE; i++) {
        sim_seq *q = &w->seqs[i];
        if (!q->live || q->seq->state != CN_SEQ_RUNNING || q->compressed) continue;
        const uint32_t n = *count_put(q), n_full = count_full(w, q->seq);
        if (n > n_full || (n < n_full && !is_full))
            return sim_fail(w, "%u blocks of sequence %llu were put, of %u that should be", n,
                            (unsigned long long)q->id, n_full);
    }
    return true;
}

bool sim_enqueue_puts(sim_world *w, const cn_begin_plan *begin)
{
    const uint32_t most = w->engine.max_batched_tokens / w->engine.block_tokens + 1;
    uint32_t n = 0;
    for (uint32_t i = 0; i < begin->n_puts; i++) {
        if (!enqueue(w, &begin->puts[i])) return false;
        n += begin->puts[i].n_blocks;
    }
    if (n > most) return sim_fail(w, "a step puts %u blocks, but at most %u may be", n, most);
    w->r->full_puts += n == most;
    return w->o.without_invariants || check_left(w, n == most);
}

static bool run(sim_world *w, const sim_put *put)
{
    sim_home *home = &w->device.homes[put->home];
    uint32_t table[SIM_MAX_LEN];
    for (uint32_t i = 0; i < put->n_blocks; i++) table[i] = put->blocks[i].src;
    if (!sim_wait_exchanges(w, put->after_exchange)) return false;
    for (uint32_t p = 0; p < SIM_N_PACKS; p++)
        if (!sim_device_read(&w->device, p, "a put", table, put->tags,
                             put->n_blocks * w->engine.block_tokens))
            return false;
    sim_device_put(&w->device, home, put->blocks, put->n_blocks, true);
    sim_device_digest(&w->device, home, put->blocks, put->n_blocks);
    return true;
}

bool sim_run_puts(sim_world *w, uint64_t number)
{
    while (w->n_run_puts < number)
        if (!run(w, &w->puts[w->n_run_puts++ % SIM_MAX_PUTS])) return false;
    return true;
}

/* Percent of the chances to run that a put takes. Some planted bugs strike only if puts are late,
 * and show only if the next put is early. */
static uint32_t pace(const sim_world *w)
{
    const bool late = w->o.fault == SIM_FAULT_UNORDERED_PUT;
    if (!late && w->o.fault != SIM_FAULT_PARTIAL_PUT) return 30;
    return w->r->fault_struck ? 100 : late ? 0 : 30;
}

bool sim_drift_puts(sim_world *w)
{
    while (w->n_run_puts < w->n_puts && sim_mix(~w->o.seed, w->put_rng++) % 100 < pace(w))
        if (!sim_run_puts(w, w->n_run_puts + 1)) return false;
    return true;
}

bool sim_after_puts(sim_world *w, bool after)
{
    w->r->puts_left += after ? w->n_puts - w->n_run_puts : 0;
    return !after || sim_run_puts(w, w->n_puts);
}
