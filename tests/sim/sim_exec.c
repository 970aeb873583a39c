/* sim_exec.c - runs plans on the fake device, reads tokens, ends sequences. */
#include "tests/sim/sim_world.h"

#include <string.h>

#include "engine/base/base.h"
#include "scheduler/sched_state.h"

uint32_t sim_token(const sim_seq *q, uint32_t position)
{
    if (position < q->n_prompt) return q->tokens[position];
    return (uint32_t)sim_mix(q->content, position) % q->n_vocab;
}

sim_seq *sim_find(const cn_seq *seq)
{
    sim_seq *q = seq->user;
    return q->used && q->seq == seq ? q : NULL;
}

bool sim_is_apart(const sim_world *w, const cn_seq *seq)
{
    return w->engine.decoded_apart || seq->kv.select != CN_SELECT_NONE;
}

/* Tags positions up to n. A tag depends on all earlier ones and on the compressions before it. The
 * tags of tokens that are decoded apart are the sequence's own. */
void sim_tag_positions(const sim_world *w, sim_seq *q, uint32_t n)
{
    const uint32_t n_common = sim_is_apart(w, q->seq) ? q->n_prompt : UINT32_MAX;
    for (; q->n_tags < n; q->n_tags++) {
        uint64_t before = q->n_tags ? q->positions[q->n_tags - 1] : 0;
        const uint64_t own = q->n_tags < n_common ? 0 : sim_mix(q->id, 1);
        q->positions[q->n_tags] = sim_mix(before ^ q->salt ^ own, sim_token(q, q->n_tags) + 1);
    }
}

/* ---- plans ---- */

/* The span of a row depends on its sequence and position alone. */
static bool check_span(sim_world *w, const cn_plan_row *row, bool is_decode)
{
    const cn_seq *q = row->seq;
    cn_select_span s = {0};
    if (is_decode)
        s = q->home_len > 0 ? cn_select_span_away(&q->kv, w->engine.block_tokens)
                            : cn_select_span_at(&q->kv, q->n_prompt, row->first_pos,
                                                w->engine.block_tokens);
    const bool leaves_out = s.listed || (is_decode && q->home_len > 0);
    const uint32_t n = leaves_out ? s.list_len + row->first_slot + 1 - s.tail : 0;
    const cn_select_span *t = &row->span;
    return (s.listed == t->listed && s.list_len == t->list_len && s.tail == t->tail &&
            s.n[0] == t->n[0] && s.n[1] == t->n[1] && s.stage[1].key == t->stage[1].key &&
            n == row->n_selected) ||
           sim_fail(w, "sequence %llu has a row with the span of another one",
                    (unsigned long long)q->id);
}

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
    sound = sound && (q->compressed || row->first_slot == row->first_pos);
    return sound ||
           sim_fail(w, "row %u of sequence %llu is not valid", at, (unsigned long long)seq->id);
}

/* Tokens that are decoded apart have rows of their own, after a preemption too. */
static bool check_apart(sim_world *w, const cn_plan_row *row, bool is_first, bool is_decode)
{
    const cn_seq *seq = row->seq;
    if (!sim_is_apart(w, seq)) return true;
    if (is_first && row->first_pos > seq->n_prompt)
        return sim_fail(w, "sequence %llu found %u decoded tokens in the prefix cache",
                        (unsigned long long)seq->id, row->first_pos - seq->n_prompt);
    const bool in_prompt = row->first_pos + row->n_new <= seq->n_prompt;
    return in_prompt || (row->first_pos >= seq->n_prompt && is_decode) ||
           sim_fail(w, "sequence %llu recomputes decoded tokens in a chunk",
                    (unsigned long long)seq->id);
}

/* Before the first row after an admission, the slot has no query that the sequence may read. */
static void enter(sim_world *w, sim_seq *q, uint32_t pack)
{
    const bool last = pack == SIM_N_PACKS - 1;
    if (last) q->n_admissions = q->seq->preemptions + 1;
    if (cn_selector_ring_rows(&q->seq->kv) == 0 || q->seq->query_slot < 0) return;
    sim_device_clear_slot(&w->device, pack, (uint32_t)q->seq->query_slot);
    w->r->ring_readmissions += last && q->seq->preemptions > 0;
}

/* Queries that a decode row reads in line: the newest, and one more for each of the window. */
static uint32_t count_ring(const cn_kv_params *kv)
{
    if (kv->home != CN_HOME_DEVICE) return 0;
    if (kv->select == CN_SELECT_LAST) return 2;
    return kv->select == CN_SELECT_SPADE ? kv->select_window + 1 : 0;
}

static bool read_ring(sim_world *w, const sim_seq *q, const cn_plan_row *row, uint32_t pack)
{
    const cn_seq *seq = row->seq;
    const uint32_t n_read = count_ring(&seq->kv), at = row->first_pos;
    if (n_read == 0 || at < seq->n_prompt) return true;
    if (seq->query_slot < 0) return sim_fail(w, "a row has no slot for its ring");
    w->r->ring_reads += pack == 0;
    const uint32_t n = cn_min_u32(n_read, at);
    return sim_device_read_ring(&w->device, pack, (uint32_t)seq->query_slot, n_read, at,
                                q->positions + at - n, n);
}

/* Checks a row before it runs and tags its tokens. */
static bool begin_row(sim_world *w, sim_seq *q, const cn_plan_row *row, bool is_decode)
{
    const cn_seq *seq = row->seq;
    const bool is_first = q->n_admissions != seq->preemptions + 1;
    if (!check_apart(w, row, is_first, is_decode)) return false;
    for (uint32_t p = seq->n_prompt; p < seq->n_tokens; p++) {
        if (seq->tokens[p] != sim_token(q, p)) return sim_fail(w, "a token has changed");
    }
    sim_tag_positions(w, q, row->first_pos + row->n_new);
    for (uint32_t i = 0; q->compressed && i < row->n_new; i++) {
        q->resident[row->first_slot + i] = q->positions[row->first_pos + i];
        q->where[row->first_slot + i] = row->first_pos + i;
    }
    return true;
}

/* The dense layers, which are in pack 0, read their own plane after the first event. */
static bool run_plane(sim_world *w, const sim_seq *q, const cn_plan_row *row)
{
    const cn_seq *seq = row->seq;
    sim_home *home = &w->device.homes[seq->kv.home];
    if (!sim_device_read_plane(&w->device, home, seq->home_table, q->positions, row->first_pos))
        return false;
    for (uint32_t at = row->first_pos; at < row->first_pos + row->n_new; at++)
        sim_device_write_plane(&w->device, home, seq->home_table, at, q->positions[at]);
    return true;
}

static bool run_row(sim_world *w, sim_seq *q, const cn_plan_row *row, uint32_t pack)
{
    const cn_seq *seq = row->seq;
    if (q->n_admissions != seq->preemptions + 1) enter(w, q, pack);
    if (!read_ring(w, q, row, pack)) return false;
    if (sim_exchanges(seq) && !sim_check_area(w, q, pack)) return false;
    const uint64_t *fresh = q->positions + row->first_pos;
    const uint64_t *resident = q->compressed ? q->resident : q->positions;
    if (!sim_device_read(&w->device, pack, "a row", seq->table, resident, row->first_slot))
        return false;
    sim_device_write(&w->device, pack, seq->table, row->first_slot, fresh, row->n_new);
    for (uint32_t i = 0; seq->query_slot >= 0 && i < row->n_new; i++)
        sim_device_write_query(&w->device, pack, (uint32_t)seq->query_slot,
                               cn_ring_rows(&seq->kv), row->first_pos + i,
                               sim_query_tag(fresh[i]));
    return true;
}

/* Runs the packs of a step one after another. */
static bool run_packs(sim_world *w, const cn_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_rows; i++) {
        const cn_plan_row *row = &plan->rows[i];
        const sim_seq *q = sim_find(row->seq);
        if (sim_exchanges(row->seq) && !run_plane(w, q, row)) return false;
    }
    for (uint32_t p = 0; p < SIM_N_PACKS; p++)
        if (!sim_launch_exchanges(w, plan, p, true)) return false;
    for (uint32_t p = 0; p < SIM_N_PACKS; p++) {
        if (!sim_drift(w) || !sim_wait_pack(w, plan, p)) return false;
        for (uint32_t i = 0; i < plan->n_rows; i++)
            if (!run_row(w, sim_find(plan->rows[i].seq), &plan->rows[i], p)) return false;
        if (!sim_launch_exchanges(w, plan, p, false)) return false;
    }
    return sim_drift(w);
}

static bool note_token(sim_world *w, const cn_seq *seq)
{
    const sim_seq *q = sim_find(seq);
    if (!q || w->n_pending == SIM_MAX_LIVE) return sim_fail(w, "a sample of an unknown sequence");
    w->pending[w->n_pending++] = (struct sim_pending){(uint32_t)(q - w->seqs), q->id};
    return true;
}

/* Copies for forks, after the rows. */
static bool run_forks(sim_world *w, const cn_plan *plan)
{
    const cn_copy_list *copies = &plan->fork_copies;
    if (copies->n_blocks + copies->n_slots > 0 && !sim_wait_exchanges(w, w->n_exchanges))
        return false;
    for (uint32_t i = 0; i < copies->n_blocks; i++)
        sim_device_copy_block(&w->device, copies->blocks[i]);
    for (uint32_t i = 0; i < plan->n_forks; i++) {
        sim_seq *q = sim_find(plan->forks[i].seq);
        if (!q) return sim_fail(w, "a fork of an unknown sequence");
        for (uint32_t p = 0; p < SIM_N_PACKS; p++) enter(w, q, p);
        w->r->ring_forks += cn_selector_ring_rows(&q->seq->kv) > 0;
    }
    for (uint32_t i = 0; i < copies->n_slots; i++)
        sim_device_copy_slot(&w->device, copies->slots[i]);
    for (uint32_t i = 0; i < plan->n_forks; i++) {
        uint32_t row = plan->forks[i].leader_row;
        if (row >= plan->n_rows || !plan->rows[row].wants_sample)
            return sim_fail(w, "a fork of row %u, which has no sample", row);
        if (!note_token(w, plan->forks[i].seq)) return false;
    }
    return true;
}

bool sim_execute(sim_world *w, const cn_plan *plan)
{
    uint32_t n_tokens = 0;
    const bool swaps = plan->swap_out.n_blocks + plan->swap_in.n_blocks > 0;
    if (swaps && !sim_wait_exchanges(w, w->n_exchanges)) return false;
    sim_device_swap(&w->device, &plan->swap_out, true);
    sim_device_swap(&w->device, &plan->swap_in, false);
    for (uint32_t i = 0; i < plan->n_rows; i++) {
        const cn_plan_row *row = &plan->rows[i];
        sim_seq *q = sim_find(row->seq);
        if (!q || !q->live) return sim_fail(w, "a row of an unknown sequence");
        if (!check_row(w, q, row, i, plan)) return false;
        if (!check_span(w, row, i < plan->n_decode)) return false;
        if (!begin_row(w, q, row, i < plan->n_decode)) return false;
        n_tokens += row->n_new;
        if (row->wants_sample && !note_token(w, row->seq)) return false;
    }
    if (n_tokens != plan->n_tokens || n_tokens > w->engine.max_batched_tokens)
        return sim_fail(w, "rows of %u tokens, but the plan says %u", n_tokens, plan->n_tokens);
    if (!run_packs(w, plan) || !run_forks(w, plan)) return false;
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
    w->n_left++;
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
        cn_seq_append(q->seq, sim_token(q, position));
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
