/* sim_exec.c - runs plans and events on the fake device, reads tokens, ends sequences. */
#include "tests/sim/sim_world.h"

#include <string.h>

#include "engine/base.h"
#include "scheduler/sched_state.h"

uint32_t sim_token(const sim_seq *q, uint32_t position)
{
    if (position < q->n_prompt) return q->tokens[position];
    return (uint32_t)sim_mix(q->content, position) % q->n_vocab;
}

static sim_seq *find_seq(const cn_seq *seq)
{
    sim_seq *q = seq->user;
    return q->used && q->seq == seq ? q : NULL;
}

static bool is_apart(const sim_world *w, const cn_seq *seq)
{
    return w->engine.decoded_apart || seq->kv.select != CN_SELECT_NONE;
}

/* Tags positions up to n. A tag depends on all earlier ones and on the compressions before it. The
 * tags of tokens that are decoded apart are the sequence's own. */
static void tag_positions(const sim_world *w, sim_seq *q, uint32_t n)
{
    const uint32_t n_common = is_apart(w, q->seq) ? q->n_prompt : UINT32_MAX;
    for (; q->n_tags < n; q->n_tags++) {
        uint64_t before = q->n_tags ? q->positions[q->n_tags - 1] : 0;
        const uint64_t own = q->n_tags < n_common ? 0 : sim_mix(q->id, 1);
        q->positions[q->n_tags] = sim_mix(before ^ q->salt ^ own, sim_token(q, q->n_tags) + 1);
    }
}

/* ---- events ---- */

/* Chooses a random set of k slots that contains the window: keeps each slot with the probability
 * that gives k slots. slots[k], ascending. */
static void choose_slots(sim_world *w, const cn_compress_req *req, uint32_t *slots)
{
    uint32_t n = req->n_blocks * w->engine.block_tokens;
    uint32_t k = req->n_target * w->engine.block_tokens, n_kept = 0;
    uint32_t always = req->params.policy == CN_KV_ZIP ? n - req->params.window_tokens : n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = n - i, wanted = k - n_kept;
        if (i < always) {
            uint32_t free_left = always - i, free_wanted = wanted - (n - always);
            if (sim_below(w, free_left) >= free_wanted) continue;
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
    const uint64_t *from = q->compressed ? q->resident : q->positions;
    const bool fills = req->params.policy == CN_KV_ZIP && req->params.move == CN_MOVE_FILL;
    choose_slots(w, req, slots);
    while (fills && behind < k && slots[behind] < k) behind++;
    for (uint32_t i = 0; i < k; i++) {
        const bool stays = !fills || slots[next] == i;
        q->kept[i] = from[slots[stays ? next++ : behind++]];
    }
    q->n_kept = k;
}

/* The last slots must hold the last tokens: the causal edge of the window depends on it. */
static bool check_window(sim_world *w, const sim_seq *q, const cn_compress_req *req)
{
    if (req->params.policy != CN_KV_ZIP || !q->compressed) return true;
    const uint32_t n = req->n_blocks * w->engine.block_tokens, window = req->params.window_tokens;
    const uint64_t *newest = q->positions + req->position_end - window;
    if (memcmp(q->resident + n - window, newest, window * sizeof *newest) == 0) return true;
    return sim_fail(w, "an event's last %u slots are not the last tokens", window);
}

static bool check_request(sim_world *w, const sim_seq *q, const cn_sched_event *e)
{
    const cn_seq *seq = e->seq;
    uint32_t kept = e->req.n_target * w->engine.block_tokens;
    if (seq->state != CN_SEQ_COMPRESSING || e->req.n_blocks != seq->n_blocks ||
        e->req.position_end != seq->n_computed || e->req.first_event == q->compressed ||
        e->req.n_history != (q->compressed ? kept : 0) || kept != seq->kv.budget_tokens)
        return sim_fail(w, "event %llu: the request does not match sequence %llu",
                        (unsigned long long)e->id, (unsigned long long)seq->id);
    return true;
}

bool sim_enqueue_events(sim_world *w, const cn_begin_plan *begin)
{
    for (uint32_t i = 0; i < begin->n_events; i++) {
        cn_sched_event *e = begin->events[i];
        sim_seq *q = find_seq(e->seq);
        if (!q || q->event != SIM_NO_EVENT) return sim_fail(w, "an event of an unknown sequence");
        tag_positions(w, q, e->req.position_end);
        if (!check_request(w, q, e) || !check_window(w, q, &e->req)) return false;
        choose_kept(w, q, &e->req);
        q->event = SIM_ENQUEUED;
        q->sched_event = e;
        q->run_at = w->step + (w->synchronous ? 0 : sim_below(w, w->event_delay + 1));
        q->report_at = q->run_at + (w->synchronous ? 0 : sim_below(w, w->event_delay + 1));
        w->n_events++;
        w->r->events++;
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

static bool run_event(sim_world *w, sim_seq *q)
{
    q->event = SIM_EXECUTED;
    return sim_device_compress(&w->device, &q->sched_event->req,
                               q->compressed ? q->resident : q->positions, q->positions, q->kept);
}

bool sim_advance_events(sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MAX_LIVE && w->n_events > 0; i++) {
        sim_seq *q = &w->seqs[i];
        if (q->event == SIM_ENQUEUED && w->step >= q->run_at && is_turn(w, q)) {
            if (!run_event(w, q)) return false;
        }
        if (q->event != SIM_EXECUTED || w->step < q->report_at || !is_turn(w, q)) continue;
        if (!sim_device_read(&w->device, "a finished compression", q->sched_event->req.target,
                             q->kept, q->n_kept))
            return false;
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
        memcpy(q->resident, q->kept, q->n_kept * sizeof *q->kept);
        q->compressed = true;
        q->salt = sim_mix(q->id, sim_random(w));
        q->event = SIM_NO_EVENT;
        q->used = q->live;
        w->n_events--;
        w->moved = true;
    }
}

/* ---- plans ---- */

static bool check_row(sim_world *w, const sim_seq *q, const cn_plan_row *row, uint32_t at,
                      const cn_plan *plan)
{
    const cn_seq *seq = row->seq;
    bool sound = row->n_new > 0 && seq->state == CN_SEQ_RUNNING &&
                 row->first_pos + row->n_new == seq->n_computed &&
                 row->first_slot + row->n_new == seq->n_resident &&
                 seq->n_resident <= seq->n_blocks * w->engine.block_tokens &&
                 (at >= plan->n_decode || row->n_new == 1) && seq->n_computed < q->max_tokens &&
                 (row->n_new == 1 || seq->n_computed <= seq->n_tokens);
    sound = sound && (seq->kv.select == CN_SELECT_NONE || row->first_slot == row->first_pos);
    return sound ||
           sim_fail(w, "row %u of sequence %llu is not valid", at, (unsigned long long)seq->id);
}

/* Tokens that are decoded apart have rows of their own, after a preemption too. */
static bool check_apart(sim_world *w, const cn_plan_row *row, bool is_first, bool is_decode)
{
    const cn_seq *seq = row->seq;
    if (!is_apart(w, seq)) return true;
    if (is_first && row->first_pos > seq->n_prompt)
        return sim_fail(w, "sequence %llu found %u decoded tokens in the prefix cache",
                        (unsigned long long)seq->id, row->first_pos - seq->n_prompt);
    const bool in_prompt = row->first_pos + row->n_new <= seq->n_prompt;
    return in_prompt || (row->first_pos >= seq->n_prompt && is_decode) ||
           sim_fail(w, "sequence %llu recomputes decoded tokens in a chunk",
                    (unsigned long long)seq->id);
}

/* Before the first row after an admission, the slot has no query that the sequence may read. */
static void enter(sim_world *w, sim_seq *q)
{
    q->n_admissions = q->seq->preemptions + 1;
    if (cn_selector_ring_rows(&q->seq->kv) == 0 || q->seq->query_slot < 0) return;
    sim_device_clear_slot(&w->device, (uint32_t)q->seq->query_slot);
    w->r->ring_readmissions += q->seq->preemptions > 0;
}

/* Queries that a decode row reads: the newest, and one more for each query of the window. */
static uint32_t count_ring(const cn_kv_params *kv)
{
    if (kv->select == CN_SELECT_LAST) return 2;
    return kv->select == CN_SELECT_SPADE ? kv->select_window + 1 : 0;
}

static bool read_ring(sim_world *w, const sim_seq *q, const cn_plan_row *row)
{
    const cn_seq *seq = row->seq;
    const uint32_t rows = count_ring(&seq->kv);
    if (rows == 0 || row->first_pos < seq->n_prompt) return true;
    if (seq->query_slot < 0) return sim_fail(w, "a row has no slot for its ring");
    w->r->ring_reads++;
    return sim_device_read_ring(&w->device, (uint32_t)seq->query_slot, rows, row->first_pos,
                                q->positions);
}

static bool run_row(sim_world *w, sim_seq *q, const cn_plan_row *row, bool is_decode)
{
    const cn_seq *seq = row->seq;
    const bool is_first = q->n_admissions != seq->preemptions + 1;
    if (!check_apart(w, row, is_first, is_decode)) return false;
    if (is_first) enter(w, q);
    uint32_t n = row->first_pos + row->n_new;
    for (uint32_t p = seq->n_prompt; p < seq->n_tokens; p++) {
        if (seq->tokens[p] != sim_token(q, p)) return sim_fail(w, "a token has changed");
    }
    tag_positions(w, q, n);
    if (!read_ring(w, q, row)) return false;
    const uint64_t *fresh = q->positions + row->first_pos;
    const uint64_t *resident = q->compressed ? q->resident : q->positions;
    if (!sim_device_read(&w->device, "a row", seq->table, resident, row->first_slot)) return false;
    sim_device_write(&w->device, seq->table, row->first_slot, fresh, row->n_new);
    if (q->compressed) memcpy(q->resident + row->first_slot, fresh, row->n_new * sizeof *fresh);
    for (uint32_t i = 0; seq->query_slot >= 0 && i < row->n_new; i++)
        sim_device_write_query(&w->device, (uint32_t)seq->query_slot, cn_ring_rows(&seq->kv),
                               row->first_pos + i, sim_query_tag(fresh[i]));
    return true;
}

static bool note_token(sim_world *w, const cn_seq *seq)
{
    const sim_seq *q = find_seq(seq);
    if (!q || w->n_pending == SIM_MAX_LIVE) return sim_fail(w, "a sample of an unknown sequence");
    w->pending[w->n_pending++] = (struct sim_pending){(uint32_t)(q - w->seqs), q->id};
    return true;
}

bool sim_execute(sim_world *w, const cn_plan *plan)
{
    uint32_t n_tokens = 0;
    sim_device_swap(&w->device, &plan->swap_out, true);
    sim_device_swap(&w->device, &plan->swap_in, false);
    for (uint32_t i = 0; i < plan->n_rows; i++) {
        const cn_plan_row *row = &plan->rows[i];
        sim_seq *q = find_seq(row->seq);
        if (!q || !q->live) return sim_fail(w, "a row of an unknown sequence");
        if (!check_row(w, q, row, i, plan)) return false;
        if (!run_row(w, q, row, i < plan->n_decode)) return false;
        n_tokens += row->n_new;
        if (row->wants_sample && !note_token(w, row->seq)) return false;
    }
    if (n_tokens != plan->n_tokens || n_tokens > w->engine.max_batched_tokens)
        return sim_fail(w, "rows of %u tokens, but the plan says %u", n_tokens, plan->n_tokens);
    for (uint32_t i = 0; i < plan->fork_copies.n_blocks; i++)
        sim_device_copy_block(&w->device, plan->fork_copies.blocks[i]);
    for (uint32_t i = 0; i < plan->n_forks; i++) {
        sim_seq *q = find_seq(plan->forks[i].seq);
        if (!q) return sim_fail(w, "a fork of an unknown sequence");
        enter(w, q);
        w->r->ring_forks += cn_selector_ring_rows(&q->seq->kv) > 0;
    }
    for (uint32_t i = 0; i < plan->fork_copies.n_slots; i++)
        sim_device_copy_slot(&w->device, plan->fork_copies.slots[i]);
    for (uint32_t i = 0; i < plan->n_forks; i++) {
        uint32_t row = plan->forks[i].leader_row;
        if (row >= plan->n_rows || !plan->rows[row].wants_sample)
            return sim_fail(w, "a fork of row %u, which has no sample", row);
        if (!note_token(w, plan->forks[i].seq)) return false;
    }
    w->r->tokens += n_tokens;
    w->r->forks += plan->n_forks;
    w->moved = w->moved || n_tokens + plan->swap_out.n_blocks > 0;
    return true;
}

/* ---- tokens and ends ---- */

void sim_end(sim_world *w, sim_seq *q)
{
    const cn_kv_usage *u = &q->seq->usage_kv;
    w->ended.compressions += u->compressions;
    w->ended.evicted += u->evicted;
    w->ended.freed_bytes += u->freed_bytes;
    w->ended_recomputed += q->seq->recomputed_tokens;
    w->ended_preemptions += q->seq->preemptions;
    w->r->aged += q->seq->preemptions >= CN_AGED_PREEMPTIONS;
    sim_talk *talk = &w->talks[sim_below(w, SIM_N_TALKS)];
    talk->n = q->seq->n_tokens;
    memcpy(talk->tokens, q->seq->tokens, talk->n * sizeof *talk->tokens);
    cn_scheduler_finish(w->s, q->seq);
    cn_scheduler_release(w->s, q->seq);
    q->seq = NULL;
    q->live = false;
    q->used = q->event != SIM_NO_EVENT;
    w->n_live--;
    w->moved = true;
}

bool sim_read_tokens(sim_world *w)
{
    for (uint32_t i = 0; i < w->n_unread; i++) {
        sim_seq *q = &w->seqs[w->unread[i].who];
        if (!q->live || q->id != w->unread[i].id) continue; /* has ended: the token is discarded */
        uint32_t position = q->seq->n_tokens;
        cn_scheduler_append(w->s, q->seq, sim_token(q, position));
        if (q->seq->n_tokens != position + 1) return sim_fail(w, "a token was not appended");
        if (position + 1 == q->n_stop) sim_end(w, q);
        w->moved = true;
    }
    w->n_unread = 0;
    return true;
}

void sim_sampled(sim_world *w)
{
    memcpy(w->unread, w->pending, w->n_pending * sizeof *w->pending);
    w->n_unread = w->n_pending;
    w->n_pending = 0;
}
