/* sim_run.c - epochs and the order of a step. See sim.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/base.h"
#include "scheduler/sched_state.h"
#include "tests/sim/sim_world.h"

enum { DEFAULT_EPOCH_STEPS = 10000 };

/* splitmix64: a counter and a mixing function. */
uint64_t sim_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + UINT64_C(0x9e3779b97f4a7c15) * (b + 1);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t sim_random(sim_world *w) { return sim_mix(w->o.seed, w->rng++); }

uint32_t sim_below(sim_world *w, uint32_t n)
{
    return (uint32_t)(((sim_random(w) >> 32) * n) >> 32);
}

uint32_t sim_between(sim_world *w, uint32_t a, uint32_t b)
{
    return b <= a ? a : a + sim_below(w, b - a + 1);
}

bool sim_chance(sim_world *w, uint32_t percent) { return sim_below(w, 100) < percent; }

bool sim_fail(sim_world *w, const char *fmt, ...)
{
    if (w->r->error[0]) return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->r->error, sizeof w->r->error, fmt, ap);
    va_end(ap);
    return false;
}

static bool check(sim_world *w)
{
    if (w->o.without_invariants) return true;
    const char *broken = cn_scheduler_check(w->s);
    return !broken || sim_fail(w, "%s", broken);
}

static void cancel_some(sim_world *w)
{
    if (w->n_live == 0 || !sim_chance(w, w->cancel_percent)) return;
    sim_seq *q = &w->seqs[sim_below(w, SIM_MAX_LIVE)];
    if (!q->live) return;
    sim_end(w, q);
    w->r->cancels++;
}

static bool schedule(sim_world *w, cn_plan *plan)
{
    const uint64_t n_allocated = cn_alloc_count() - w->s->n_buffered;
    cn_begin_plan begin;
    cn_scheduler_begin(w->s, &begin);
    sim_apply_commits(w);
    sim_strike_prompt(w);
    if (!check(w) || !sim_after_puts(w, begin.after_puts)) return false;
    if (!sim_enqueue_events(w, &begin) || !sim_enqueue_puts(w, &begin)) return false;
    if (w->o.fault && !w->r->fault_struck && w->step > SIM_FAULT_AFTER_STEPS) {
        sim_strike_event(w);
        sim_strike_source(w);
    }
    if (!sim_drift(w) || !sim_drift_puts(w) || !sim_advance_events(w)) return false;
    cancel_some(w);
    cn_scheduler_schedule(w->s, plan);
    sim_apply_commits(w);
    if (!check(w) || !sim_check_admissions(w)) return false;
    return cn_alloc_count() - w->s->n_buffered == n_allocated ||
           sim_fail(w, "a step allocated memory beside the buffers of admitted sequences");
}

static bool step(sim_world *w, bool arrivals)
{
    w->moved = false;
    w->step++;
    w->r->steps++;
    if (arrivals) {
        sim_arrive(w);
        if (sim_chance(w, 5)) { /* a burst */
            for (uint32_t i = 0; i < 8; i++) sim_arrive(w);
        }
    }
    cancel_some(w);
    if (w->o.fault && !w->r->fault_struck && w->step > SIM_FAULT_AFTER_STEPS) sim_strike(w);
    cn_plan plan;
    if (!schedule(w, &plan)) return false;
    if (!sim_strikes_after_puts(w, &plan) && !sim_after_puts(w, plan.after_puts)) return false;
    if (!sim_execute(w, &plan)) return false;
    if (!w->lag) sim_sampled(w);
    if (!sim_read_tokens(w)) return false;
    if (w->lag) sim_sampled(w);
    if (sim_chance(w, 50) && !sim_advance_events(w)) return false;
    return sim_check_waits(w);
}

/* All sequences have ended: nothing may be in use, and the engine's totals must be their sums. */
static bool check_empty(sim_world *w)
{
    cn_stats st;
    cn_scheduler_stats(w->s, &st);
    if (st.running || st.waiting || st.compressing || st.blocks_used || st.slots_used)
        return sim_fail(w, "empty, but %u run, %u wait, %u blocks and %u slots are held",
                        st.running, st.waiting, st.blocks_used, st.slots_used);
    if (st.swapped || st.swap_blocks_used || st.swap_windows_used)
        return sim_fail(w, "empty, but %u are swapped, %u blocks and %u windows of swap are held",
                        st.swapped, st.swap_blocks_used, st.swap_windows_used);
    for (int h = 0; h < CN_N_HOMES; h++) {
        const cn_space *home = &w->s->home[h];
        const uint32_t n_blocks = cn_space_total_blocks(home) - cn_space_free_blocks(home);
        const uint32_t n_slots = cn_space_total_slots(home) - cn_space_free_slots(home);
        if (n_blocks + n_slots > 0)
            return sim_fail(w, "empty, but %u blocks and %u slots of home %s are held", n_blocks,
                            n_slots, cn_kv_home_name((cn_kv_home)h));
    }
    if (st.compressions != w->ended.compressions || st.evicted_tokens != w->ended.evicted ||
        st.freed_bytes != w->ended.freed_bytes || st.recomputed_tokens != w->ended_recomputed ||
        st.preemptions != w->ended_preemptions)
        return sim_fail(w, "the engine's totals are not the sums of its requests");
    w->r->preemptions += st.preemptions;
    w->r->prefix_hits += st.cached_tokens;
    w->r->swap_outs += st.swap_outs;
    w->r->swap_ins += st.swap_ins;
    sim_count_auto(w);
    return true;
}

static bool run_epoch(sim_world *w, uint64_t n_steps)
{
    sim_draw_engine(w);
    const cn_sched_opts *e = &w->engine;
    w->ended = (cn_kv_usage){0};
    w->ended_recomputed = w->ended_preemptions = 0;
    w->head_id = w->foremost_id = 0;
    w->n_idle = w->n_unread = w->n_pending = 0;
    w->passed_least = w->passed_most = 0;
    w->last_preemptions = 0;
    w->was_aged = false;
    memset(w->talks, 0, sizeof w->talks);
    memset(w->exchanges, 0, sizeof w->exchanges);
    w->n_puts = w->n_run_puts = 0;
    if (cn_scheduler_create(&w->s, e) != CN_OK) return sim_fail(w, "%s", cn_last_error());
    bool good = sim_device_create(&w->device, e, w->r->error, sizeof w->r->error);
    for (uint64_t i = 0; good && i < n_steps; i++) good = step(w, true);
    while (good && (w->n_live > 0 || w->n_events > 0)) good = step(w, false);
    good = good && sim_wait_exchanges(w, w->n_exchanges) && sim_run_puts(w, w->n_puts) &&
           check_empty(w);
    sim_device_free(&w->device);
    cn_scheduler_free(w->s);
    w->r->epochs++;
    return good;
}

bool sim_run(const sim_opts *o, sim_result *r)
{
    *r = (sim_result){0};
    sim_world *w = cn_calloc(1, sizeof *w);
    if (!w) {
        snprintf(r->error, sizeof r->error, "out of memory");
        return false;
    }
    w->o = *o;
    w->r = r;
    uint64_t epoch_steps = o->epoch_steps ? o->epoch_steps : DEFAULT_EPOCH_STEPS;
    bool good = true;
    while (good && r->steps < o->steps) {
        uint64_t left = o->steps - r->steps;
        good = run_epoch(w, left < epoch_steps ? left : epoch_steps);
    }
    if (!good) {
        char text[256];
        snprintf(text, sizeof text, "%.255s", r->error);
        const cn_sched_opts *e = &w->engine;
        snprintf(r->error, sizeof r->error,
                 "seed %llu, step %llu: %s (%u blocks of %u, %u slots, window %u, %u requests, "
                 "%u tokens per step, prefix %d, chunked %d, apart %d, hybrid %d, "
                 "swap %u and %u, homes %u and %u, lag %d, synchronous %d)",
                 (unsigned long long)o->seed, (unsigned long long)r->steps, text, e->n_blocks,
                 e->block_tokens, e->n_query_slots, e->window_tokens, e->max_seqs,
                 e->max_batched_tokens, e->prefix_caching, e->chunked_prefill,
                 e->decoded_apart, e->hybrid, e->n_swap_blocks,
                 e->n_swap_windows, e->n_home_blocks[CN_HOME_PEER],
                 e->n_home_blocks[CN_HOME_HOST], w->lag, w->synchronous);
    }
    cn_free(w);
    return good;
}
