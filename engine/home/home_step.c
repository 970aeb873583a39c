/* home_step.c - see home_step.h. */
#include "engine/home/home_step.h"

#include "compress/selector.h"

static cn_status init_rows(cn_home_rows *r, const cn_homes *hs, cn_kv_home home, bool ahead)
{
    const uint32_t b = hs->o.plan->block_tokens, n = hs->o.config->max_num_seqs;
    uint32_t *counts = r->counts;
    const cn_exchange_sizes z =
        cn_exchange_sizes_of(hs->o.config, hs->o.model, home, b, false, ahead);
    *r = (cn_home_rows){.counts = counts};
    if (z.max_rows == 0) return CN_OK;
    CN_TRY(cn_exchange_rows_init(&r->rows, &z, b));
    r->rows.ahead = ahead;
    r->seqs = cn_calloc(n, sizeof(cn_seq *));
    if (r->seqs) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "out of host memory for %u requests with a home", n);
}

static cn_status init_step(cn_home_step *st, const cn_homes *hs, cn_kv_home home)
{
    const cn_home *h = &hs->at[home];
    if (!h->be) return CN_OK;
    for (int w = 0; w < CN_HOME_WAYS; w++)
        CN_TRY(init_rows(&st->by[w], hs, home, w == CN_HOME_AHEAD));
    return h->be->fence_create(h->be, &st->read);
}

cn_status cn_home_flight_init(cn_home_flight *f, const cn_homes *hs)
{
    for (int h = 0; h < CN_N_HOMES; h++) CN_TRY(init_step(&f->at[h], hs, (cn_kv_home)h));
    return CN_OK;
}

void cn_home_flight_free(cn_home_flight *f, cn_homes *hs)
{
    for (int h = 0; h < CN_N_HOMES; h++) {
        cn_home_step *st = &f->at[h];
        if (st->read) hs->at[h].be->fence_free(st->read);
        st->read = NULL;
        for (int w = 0; w < CN_HOME_WAYS; w++) {
            cn_home_rows *r = &st->by[w];
            cn_exchange_rows_free(&r->rows);
            cn_free(r->seqs);
            *r = (cn_home_rows){.counts = r->counts};
        }
    }
}

/* ---- the plan ---- */

/* Whether a row exchanges with h in this way: decode rows past their first commit do. */
static bool exchanges(cn_homes *hs, const cn_home *h, const cn_seq *q, bool ahead)
{
    return q->home_len > 0 && cn_home_of_seq(hs, q) == h &&
           cn_selector_of(q->kv.select)->ahead == ahead;
}

static void add_row(cn_home_rows *r, cn_seq *q)
{
    const bool ahead = r->rows.ahead;
    const cn_exchange_row row = {
        .kv = &q->kv,
        .query_slot = q->query_slot >= 0 ? (uint32_t)q->query_slot : CN_NO_SLOT,
        .home_slot = q->home_slot,
        .home_len = q->home_len,
        .newest = q->n_computed - 1,
        .local = {q->table},
        .n_local = {q->n_blocks},
        .home = q->home_table,
        .uncapped = ahead && !q->caught_up,
    };
    if (ahead) q->caught_up = true;
    cn_exchange_rows_add(&r->rows, &row);
}

/* Takes the rows of a step that exchange with one home in one way. */
static void take_rows(cn_homes *hs, const cn_home *h, cn_home_rows *r, const cn_plan *plan)
{
    const bool ahead = r->rows.ahead;
    uint32_t n = 0;
    bool any = false;
    cn_exchange_strides strides = {0};
    for (uint32_t i = 0; r->seqs && i < plan->n_decode; i++) {
        cn_seq *q = plan->rows[i].seq;
        const bool takes = exchanges(hs, h, q, ahead);
        any |= takes;
        if (takes || ahead) r->seqs[n++] = takes ? q : NULL;
        if (takes) cn_exchange_strides_add(&strides, &q->kv, q->home_len, r->rows.block_tokens);
    }
    if (!any) n = 0;
    cn_exchange_rows_begin(&r->rows, n, strides);
    for (uint32_t i = 0; i < n; i++)
        if (r->seqs[i])
            add_row(r, r->seqs[i]);
        else
            cn_exchange_rows_skip(&r->rows);
}

cn_status cn_home_flight_begin(cn_homes *hs, cn_home_flight *f, const cn_plan *plan, bool recorded)
{
    if (!cn_homes_any(hs)) return CN_OK;
    for (int h = 0; h < CN_N_HOMES; h++)
        for (int w = 0; hs->at[h].be && w < CN_HOME_WAYS; w++)
            take_rows(hs, &hs->at[h], &f->at[h].by[w], plan);
    if (recorded) return cn_home_wait(hs, hs->o.model_stream);
    if (hs->timer) f->clock = hs->timer->begin(hs->timer->ctx);
    return cn_home_begin_step(hs, f->at, f->clock);
}

void cn_home_flight_end(cn_homes *hs) { cn_home_end_step(hs); }

/* ---- counts ---- */

cn_status cn_home_flight_land(cn_homes *hs, cn_home_flight *f)
{
    for (int h = 0; h < CN_N_HOMES; h++) {
        cn_home_step *st = &f->at[h];
        /* The counts of rows ahead were read before the tokens, on the same stream. */
        if (st->by[CN_HOME_BEHIND].rows.n_rows > 0) CN_TRY(hs->at[h].be->fence_sync(st->read));
        for (int w = 0; w < CN_HOME_WAYS; w++) st->by[w].n_counted = 0;
    }
    if (f->clock) CN_TRY(hs->timer->end(hs->timer->ctx, f->clock));
    f->clock = NULL;
    return CN_OK;
}

/* Sums the counts of row i over layers and kv heads; they are ordered by pack. Ahead, the counts of
 * one list hold for each layer. */
static uint64_t sum_counts(const cn_homes *hs, const cn_home_rows *st, uint32_t i, bool missed)
{
    const cn_packs one = {.n_layers = 1, .n = 1};
    const cn_exchange_rows *r = &st->rows;
    const cn_packs *packs = r->ahead ? &one : &hs->packs;
    const uint32_t hk = hs->o.local.layout.n_kv_heads;
    const uint32_t *at = st->counts + missed * cn_exchange_counts(&r->sizes, hk);
    uint64_t sum = 0;
    for (uint32_t p = 0; p < packs->n; p++) {
        const uint32_t n = (cn_pack_start(packs, p + 1) - cn_pack_start(packs, p)) * hk;
        for (uint32_t u = 0; u < n; u++) sum += at[i * n + u];
        at += (size_t)r->n_rows * n;
    }
    return sum * (r->ahead ? hs->packs.n_layers : 1);
}

static void count_row(const cn_homes *hs, const cn_home_rows *st, uint32_t i, cn_stats *stats)
{
    cn_seq *q = st->seqs[i];
    const uint64_t moved = sum_counts(hs, st, i, false), missed = sum_counts(hs, st, i, true);
    const cn_kv_layout *l = &hs->o.local.layout;
    q->usage_kv.exchanges++;
    q->usage_kv.fetched_entries += moved;
    q->usage_kv.missed_entries += missed;
    stats->exchanges++;
    stats->fetched_entries += moved;
    stats->missed_entries += missed;
    stats->fetched_bytes += moved * cn_away_of(&q->kv, l->block_tokens).entry_tokens *
                            (l->tile_bytes / l->tile_tokens);
}

/* Counts the exchange of q, if it has one among these rows. They are in the order of the step's
 * tokens. Rows that compute tokens again have no token. */
static bool count_among(const cn_homes *hs, cn_home_rows *st, const cn_seq *q, cn_stats *stats)
{
    uint32_t i = st->n_counted;
    while (i < st->rows.n_rows && st->seqs[i] != q) i++;
    if (i == st->rows.n_rows) return false;
    count_row(hs, st, i, stats);
    st->n_counted = i + 1;
    return true;
}

void cn_home_flight_count(const cn_homes *hs, cn_home_flight *f, cn_seq *q, cn_stats *stats)
{
    for (int h = 0; h < CN_N_HOMES; h++)
        for (int w = 0; w < CN_HOME_WAYS; w++)
            if (count_among(hs, &f->at[h].by[w], q, stats)) return;
}
