/* sim_event.c - runs compression events on the fake device: what they keep, and when they run. */
#include <string.h>

#include "engine/base/base.h"
#include "scheduler/sched_state.h"
#include "tests/sim/sim_world.h"

/* Chooses a random set of k slots that contains the ends that a zip event keeps: keeps each other
 * slot with the probability that gives k slots. slots[k], ascending. Every slot before the window
 * takes one random number, so that what a seed draws elsewhere does not depend on the rule. */
static void choose_slots(sim_world *w, const cn_compress_req *req, uint32_t *slots)
{
    uint32_t n = req->n_blocks * w->engine.block_tokens;
    uint32_t k = req->n_target * w->engine.block_tokens, n_kept = 0;
    const cn_kv_params *kv = &req->params;
    /* The candidates of an exchange are what this policy does not keep. */
    if (kv->home != CN_HOME_DEVICE && kv->policy == CN_KV_WINDOW) {
        for (; n_kept < k; n_kept++)
            slots[n_kept] = n_kept < kv->sink_tokens ? n_kept : n - k + n_kept;
        return;
    }
    const bool zip = kv->policy == CN_KV_ZIP;
    const uint32_t always = zip ? n - kv->window_tokens : n;
    const uint32_t first = zip ? cn_rule_sinks(kv) : 0, last = zip ? n - cn_rule_newest(kv) : n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = n - i, wanted = k - n_kept;
        if (i < always) {
            const bool forced = i < first || i >= last;
            const uint32_t free_left = forced ? 1 : last - i;
            const uint32_t drawn = sim_below(w, free_left);
            if (!forced && drawn >= wanted - (n - last)) continue;
        }
        CN_ASSERT(wanted > 0 && wanted <= left);
        slots[n_kept++] = i;
    }
    CN_ASSERT(n_kept == k);
}

/* Chooses the tag that each target slot will hold. */
static void choose_kept(sim_world *w, sim_seq *q, const cn_compress_req *req)
{
    uint32_t slots[SIM_MAX_LEN], next = 0, behind = 0;
    uint32_t k = req->n_target * w->engine.block_tokens;
    const uint64_t *from = q->compressed ? q->resident + q->n_area : q->positions;
    const bool fills = req->params.policy == CN_KV_ZIP && req->params.move == CN_MOVE_FILL;
    choose_slots(w, req, slots);
    while (fills && behind < k && slots[behind] < k) behind++;
    for (uint32_t i = 0; i < k; i++) {
        const bool stays = !fills || slots[next] == i;
        const uint32_t slot = slots[stays ? next++ : behind++];
        q->kept[i] = from[slot];
        q->kept_where[i] = q->compressed ? q->where[q->n_area + slot] : slot;
    }
    q->n_kept = k;
}

/* The last slots must hold the last tokens: the causal edge of the window depends on it, and which
 * tokens are the newest. */
static bool check_window(sim_world *w, const sim_seq *q, const cn_compress_req *req)
{
    if (req->params.policy != CN_KV_ZIP || !q->compressed) return true;
    const uint32_t n = req->n_blocks * w->engine.block_tokens;
    const uint32_t n_new = n - req->n_history;
    const uint32_t window = cn_max_u32(cn_rule_newest(&req->params),
                                       cn_rule_counted(&req->params, false, n_new));
    const uint64_t *newest = q->positions + req->position_end - window;
    const uint64_t *last = q->resident + q->n_area + n - window;
    if (memcmp(last, newest, window * sizeof *newest) == 0) return true;
    return sim_fail(w, "an event's last %u slots are not the last tokens", window);
}

static bool check_request(sim_world *w, const sim_seq *q, const cn_sched_event *e)
{
    const cn_seq *seq = e->seq;
    uint32_t kept = e->req.n_target * w->engine.block_tokens;
    const uint32_t n_area = q->n_area / w->engine.block_tokens;
    if (seq->state != CN_SEQ_COMPRESSING || e->req.n_blocks != seq->n_blocks - n_area ||
        e->req.position_end != seq->n_computed || e->req.first_event == q->compressed ||
        e->req.n_history != (q->compressed ? kept : 0) || kept != seq->kv.budget_tokens)
        return sim_fail(w, "event %llu: the request does not match sequence %llu",
                        (unsigned long long)e->id, (unsigned long long)seq->id);
    const uint32_t n_home = (uint32_t)cn_ceil_div(q->max_tokens, w->engine.block_tokens);
    if (seq->kv.home != CN_HOME_DEVICE && seq->n_home_blocks != n_home)
        return sim_fail(w, "event %llu: sequence %llu has %u home blocks for %u tokens",
                        (unsigned long long)e->id, (unsigned long long)seq->id, seq->n_home_blocks,
                        q->max_tokens);
    return true;
}

/* References to the blocks that the event of a sequence reads. They grow when one is shared. */
static uint32_t count_holders(const sim_world *w, const cn_seq *seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < seq->n_blocks; i++)
        n += cn_pool_refs(w->s->device.blocks, seq->table[i]);
    return n;
}

static void count_observed(sim_world *w, const cn_compress_req *req)
{
    const uint32_t n = req->n_blocks * w->engine.block_tokens;
    if (req->params.policy != CN_KV_ZIP) return;
    if (cn_rule_event_queries(req, n) <= req->params.window_tokens) return;
    w->r->observed[req->params.home != CN_HOME_DEVICE]++;
}

bool sim_enqueue_events(sim_world *w, const cn_begin_plan *begin)
{
    for (uint32_t i = 0; i < begin->n_events; i++) {
        cn_sched_event *e = begin->events[i];
        sim_seq *q = sim_find(e->seq);
        if (!q || q->event != SIM_NO_EVENT) return sim_fail(w, "an event of an unknown sequence");
        sim_tag_positions(w, q, e->req.position_end);
        if (!check_request(w, q, e) || !check_window(w, q, &e->req)) return false;
        if (!sim_check_put_before(w, q, e)) return false;
        choose_kept(w, q, &e->req);
        if (e->n_exchange > 0 && !sim_choose_fill(w, q, e)) return false;
        q->after_exchange = w->n_exchanges;
        q->after_put = e->n_put_before > 0 ? w->n_puts : 0;
        q->next_area = q->n_area + e->n_exchange * w->engine.block_tokens;
        q->event = SIM_ENQUEUED;
        q->sched_event = e;
        q->n_holders = count_holders(w, e->seq);
        w->r->sources += e->seq->sched->n_lent;
        q->run_at = w->step + (w->synchronous ? 0 : sim_below(w, w->event_delay + 1));
        q->report_at = q->run_at + (w->synchronous ? 0 : sim_below(w, w->event_delay + 1));
        w->n_events++;
        w->r->events++;
        count_observed(w, &e->req);
        w->moved = true;
    }
    return true;
}

/* With in_order, as in one stream: no event runs or is reported before an earlier one. */
static bool is_turn(const sim_world *w, const sim_seq *q)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE && w->in_order; i++) {
        const sim_seq *other = &w->seqs[i];
        if ((other->event == SIM_ENQUEUED || other->event == SIM_EXECUTED) &&
            other->sched_event->id < q->sched_event->id)
            return false;
    }
    return true;
}

static bool fill_area(sim_world *w, sim_seq *q)
{
    const cn_sched_event *e = q->sched_event;
    const uint32_t n = e->n_exchange * w->engine.block_tokens;
    sim_home *home = &w->device.homes[e->req.params.home];
    w->r->fills += n > 0;
    for (uint32_t p = 0; p < SIM_N_PACKS && n > 0; p++)
        if (!sim_device_rank(&w->device, home, p, q->fill_tiles, q->n_fill_tiles) ||
            !sim_device_exchange(&w->device, home, p, e->seq->home_slot, q->fill[p], n))
            return false;
    return true;
}

static void put(sim_world *w, const sim_seq *q)
{
    const cn_sched_event *e = q->sched_event;
    sim_home *home = &w->device.homes[e->req.params.home];
    const bool early = sim_strikes_digest(w, q);
    if (early) sim_device_digest(&w->device, home, e->puts, e->n_puts);
    sim_device_put(&w->device, home, e->puts, e->n_puts, e->req.first_event);
    if (!early) sim_device_digest(&w->device, home, e->puts, e->n_puts);
    w->r->puts += e->n_puts;
}

/* The order of the event stream: exchanges of the steps before, puts of the prompt, put, digest,
 * compress, fill. */
static bool run_event(sim_world *w, sim_seq *q)
{
    const cn_sched_event *e = q->sched_event;
    q->event = SIM_EXECUTED;
    if (!sim_wait_exchanges(w, q->after_exchange)) return false;
    if (!sim_strikes_put_wait(w, q) && !sim_run_puts(w, q->after_put)) return false;
    const bool late = sim_strikes_put(w, q);
    if (!late) put(w, q);
    if (!sim_device_compress(&w->device, &e->req,
                             q->compressed ? q->resident + q->n_area : q->positions, q->positions,
                             q->kept))
        return false;
    if (!fill_area(w, q)) return false;
    if (late) put(w, q);
    return true;
}

bool sim_advance_events(sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE && w->n_events > 0; i++) {
        sim_seq *q = &w->seqs[i];
        if (q->event == SIM_ENQUEUED && w->step >= q->run_at && is_turn(w, q)) {
            if (!run_event(w, q)) return false;
        }
        if (q->event != SIM_EXECUTED || w->step < q->report_at || !is_turn(w, q)) continue;
        for (uint32_t p = 0; p < SIM_N_PACKS; p++)
            if (!sim_device_read(&w->device, p, "a finished compression",
                                 q->sched_event->req.target, q->kept, q->n_kept))
                return false;
        w->r->new_sharers += count_holders(w, q->sched_event->seq) > q->n_holders;
        cn_scheduler_event_done(w->s, q->sched_event);
        q->event = SIM_REPORTED;
    }
    return true;
}

/* The scheduler has passed a step boundary: every reported event is committed. */
void sim_apply_commits(sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE && w->n_events > 0; i++) {
        sim_seq *q = &w->seqs[i];
        if (q->event != SIM_REPORTED) continue;
        q->n_area = q->next_area;
        memcpy(q->resident + q->n_area, q->kept, q->n_kept * sizeof *q->kept);
        memcpy(q->where + q->n_area, q->kept_where, q->n_kept * sizeof *q->kept_where);
        q->compressed = true;
        q->salt = sim_mix(q->id, sim_random(w));
        q->event = SIM_NO_EVENT;
        q->used = q->live;
        w->n_events--;
        w->moved = true;
    }
}

