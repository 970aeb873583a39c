/* sim_exchange.c - exchanges of away sequences with their homes. E(t, p) is launched after pack p
 * of step t and runs at any moment until pack p of step t+1, an event, or a copy of step t+1 needs
 * it. With a selector that ranks ahead it is launched before step t, and pack p of step t needs it.
 * It reads the tiles of all candidates. It may replace any entries of the area, up to the cap,
 * by any candidates that are neither chosen nor held. See sim_world.h. */
#include "tests/sim/sim_world.h"

#include "compress/selector.h"
#include "engine/base/base.h"

/* A set of positions. */
typedef struct sim_set {
    uint64_t words[(SIM_MAX_LEN + 63) / 64];
} sim_set;

static bool set_has(const sim_set *s, uint32_t at) { return s->words[at / 64] >> (at % 64) & 1; }

/* Returns false when the set has it already. */
static bool set_add(sim_set *s, uint32_t at)
{
    const bool is_new = !set_has(s, at);
    s->words[at / 64] |= UINT64_C(1) << (at % 64);
    return is_new;
}

/* ---- what an exchange may choose ---- */

static cn_away_span span_at(const sim_world *w, const cn_seq *seq, uint32_t home_len)
{
    return cn_away_span_of(&seq->kv, home_len, w->engine.block_tokens);
}

/* Policy `window` leaves out of the range what it holds. */
static bool check_span(sim_world *w, const sim_seq *q, const cn_away_span *span,
                       const sim_set *held)
{
    for (uint32_t i = 0; i < span->n && !span->excludes_held; i++)
        if (set_has(held, span->base + i))
            return sim_fail(w, "sequence %llu holds the candidate %u", (unsigned long long)q->id,
                            span->base + i);
    return true;
}

/* Chooses n_area candidates, in ascending order, for each pack of a first event. */
bool sim_choose_fill(sim_world *w, sim_seq *q, const cn_sched_event *e)
{
    const cn_away_span span = span_at(w, e->seq, e->home_len);
    const uint32_t k = e->n_exchange * w->engine.block_tokens;
    sim_set held = {0};
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < q->n_kept; i++) {
        const uint32_t at = q->kept_where[i];
        n_held += at >= span.base && at < span.base + span.n;
        set_add(&held, at);
    }
    if (!check_span(w, q, &span, &held)) return false;
    q->n_fill_tiles = sim_device_tiles(&w->device, e->seq->home_table, q->positions, span.base,
                                       span.n, q->fill_tiles);
    for (uint32_t p = 0; p < SIM_N_PACKS; p++) {
        uint32_t left = span.n - n_held, n = 0;
        for (uint32_t at = span.base; at < span.base + span.n; at++) {
            if (set_has(&held, at) || sim_below(w, left--) >= k - n) continue;
            q->chosen[p][n] = at;
            q->fill[p][n] = sim_device_move(&w->device, e->exchange, e->seq->home_table, n, at,
                                            q->positions[at]);
            n++;
        }
        CN_ASSERT(n == k);
    }
    return true;
}

/* Collects the positions that are resident, the area after what the policy holds. */
static bool find_resident(sim_world *w, const sim_seq *q, uint32_t pack, sim_set *out)
{
    const cn_away_span span = span_at(w, q->seq, q->seq->home_len);
    const uint32_t n = q->seq->n_resident;
    *out = (sim_set){0};
    for (uint32_t i = q->n_area; i < n + q->n_area; i++) {
        const uint32_t at = i < n ? q->where[i] : q->chosen[pack][i - n];
        if (i == n && !check_span(w, q, &span, out)) return false;
        if (!set_add(out, at))
            return sim_fail(w, "position %u of sequence %llu is resident twice", at,
                            (unsigned long long)q->id);
    }
    return true;
}

static void choose_moves(sim_world *w, sim_seq *q, uint32_t pack, sim_set *resident,
                         sim_exchange_row *row)
{
    const cn_seq *seq = q->seq;
    const cn_away_span span = span_at(w, seq, seq->home_len);
    const uint32_t cap = cn_away_of(&seq->kv, w->engine.block_tokens).cap;
    uint32_t n_tries = sim_below(w, cn_min_u32(cap, SIM_MAX_MOVES) + 1);
    sim_set replaced = {0};
    row->n_tiles = sim_device_tiles(&w->device, seq->home_table, q->positions, span.base, span.n,
                                    row->tiles);
    for (; n_tries > 0; n_tries--) {
        const uint32_t at = span.base + sim_below(w, span.n), entry = sim_below(w, q->n_area);
        if (set_has(resident, at) || !set_add(&replaced, entry)) continue;
        set_add(resident, at);
        q->chosen[pack][entry] = at;
        row->moves[row->n_moves++] = sim_device_move(&w->device, seq->table, seq->home_table,
                                                     entry, at, q->positions[at]);
    }
}

/* ---- the area as a row reads it ---- */

bool sim_check_area(sim_world *w, sim_seq *q, uint32_t pack)
{
    const cn_seq *seq = q->seq;
    const sim_home *home = &w->device.homes[seq->kv.home];
    const uint32_t *chosen = home->chosen[pack] + (size_t)seq->home_slot * home->n_entries;
    if (seq->n_exchange * w->engine.block_tokens != q->n_area)
        return sim_fail(w, "sequence %llu has an area of %u blocks, but %u entries",
                        (unsigned long long)q->id, seq->n_exchange, q->n_area);
    for (uint32_t i = 0; i < q->n_area; i++) {
        const uint32_t at = q->chosen[pack][i];
        if (chosen[i] != at)
            return sim_fail(w, "entry %u of sequence %llu in pack %u: position %u, expected %u", i,
                            (unsigned long long)q->id, pack, chosen[i], at);
        q->resident[i] = q->positions[at];
    }
    return true;
}

/* ---- launch, run, wait ---- */

/* What the ring of a sequence must have for the exchange after the row of `position`. */
static void note_ring(const sim_seq *q, uint32_t position, sim_exchange_row *row)
{
    const cn_kv_params *kv = &q->seq->kv;
    row->ring = row->n_queries = 0;
    if (cn_selector_of(kv->select)->ahead) return;
    const uint32_t n_read = kv->select == CN_SELECT_LAST ? 2 : kv->select_window + 1;
    row->ring = cn_ring_rows(kv);
    row->n_queries = cn_min_u32(cn_min_u32(n_read, row->ring), position + 1);
    for (uint32_t i = 0; i < row->n_queries; i++)
        row->queries[i] = q->positions[position + 1 - row->n_queries + i];
}

bool sim_launch_exchanges(sim_world *w, const cn_plan *plan, uint32_t pack, bool ahead)
{
    for (uint32_t i = 0; i < plan->n_decode; i++) {
        const cn_plan_row *planned = &plan->rows[i];
        const cn_seq *seq = planned->seq;
        if (!sim_exchanges(seq) || cn_selector_of(seq->kv.select)->ahead != ahead) continue;
        sim_seq *q = sim_find(seq);
        sim_exchange *e = &w->exchanges[seq->kv.home][pack + (ahead ? SIM_N_PACKS : 0)];
        if (!e->pending) {
            e->pending = true;
            e->number = ++w->n_exchanges;
            e->n_rows = 0;
        }
        sim_exchange_row *row = &e->rows[e->n_rows++];
        row->seq_id = q->id;
        row->home_slot = seq->home_slot;
        row->query_slot = (uint32_t)seq->query_slot;
        row->position = planned->first_pos;
        row->n_moves = 0;
        note_ring(q, planned->first_pos, row);
        sim_set resident;
        if (!find_resident(w, q, pack, &resident)) return false;
        choose_moves(w, q, pack, &resident, row);
        w->r->exchanges++;
        w->r->exchanges_ahead += ahead;
        w->r->moves += row->n_moves;
    }
    return true;
}

static bool run_exchange(sim_world *w, uint32_t home, uint32_t index)
{
    sim_exchange *e = &w->exchanges[home][index];
    const uint32_t pack = index % SIM_N_PACKS;
    e->pending = false;
    for (uint32_t i = 0; i < e->n_rows; i++) {
        const sim_exchange_row *row = &e->rows[i];
        const sim_home *from = &w->device.homes[home];
        if (!sim_device_rank(&w->device, from, pack, row->tiles, row->n_tiles)) return false;
        if ((row->ring > 0 &&
             !sim_device_read_ring(&w->device, pack, row->query_slot, row->ring, row->position + 1,
                                   row->queries, row->n_queries)) ||
            !sim_device_exchange(&w->device, &w->device.homes[home], pack, row->home_slot,
                                 row->moves, row->n_moves))
            return false;
    }
    return true;
}

/* Runs the exchanges of a home up to a number, in the order of their launch. */
static bool run_up_to(sim_world *w, uint32_t home, uint64_t number)
{
    const sim_exchange *packs = w->exchanges[home];
    for (;;) {
        int next = -1;
        for (int p = 0; p < 2 * SIM_N_PACKS; p++)
            if (packs[p].pending && packs[p].number <= number &&
                (next < 0 || packs[p].number < packs[next].number))
                next = p;
        if (next < 0) return true;
        if (!run_exchange(w, home, (uint32_t)next)) return false;
    }
}

bool sim_drift(sim_world *w)
{
    for (uint32_t home = 0; home < CN_N_HOMES; home++)
        for (uint32_t p = 0; p < 2 * SIM_N_PACKS; p++) {
            const sim_exchange *e = &w->exchanges[home][p];
            if (e->pending && sim_chance(w, 30) && !run_up_to(w, home, e->number)) return false;
        }
    return true;
}

bool sim_wait_pack(sim_world *w, const cn_plan *plan, uint32_t pack)
{
    if (sim_strikes_wait(w, plan, pack)) return true;
    for (uint32_t home = 0; home < CN_N_HOMES; home++)
        for (uint32_t p = pack; p < 2 * SIM_N_PACKS; p += SIM_N_PACKS) {
            const sim_exchange *e = &w->exchanges[home][p];
            if (e->pending && !run_up_to(w, home, e->number)) return false;
        }
    return true;
}

bool sim_wait_exchanges(sim_world *w, uint64_t number)
{
    for (uint32_t home = 0; home < CN_N_HOMES; home++)
        if (!run_up_to(w, home, number)) return false;
    return true;
}
