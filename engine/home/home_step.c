/* home_step.c - see home_step.h. */
#include "engine/home/home_step.h"

static cn_status init_rows(cn_home_step *st, const cn_homes *hs, cn_kv_home home)
{
    const cn_home *h = &hs->at[home];
    if (!h->be) return CN_OK;
    const uint32_t b = hs->o.plan->block_tokens, n = hs->o.config->max_num_seqs;
    uint32_t *counts = st->counts;
    const cn_exchange_sizes z =
        cn_exchange_sizes_of(hs->o.config, hs->o.model, home, b, false);
    *st = (cn_home_step){.counts = counts};
    CN_TRY(cn_exchange_rows_init(&st->rows, &z, b));
    st->seqs = cn_calloc(n, sizeof(cn_seq *));
    if (!st->seqs)
        return cn_fail(CN_ERR_MEMORY, "out of host memory for %u requests with a home", n);
    return h->be->fence_create(h->be, &st->read);
}

cn_status cn_home_flight_init(cn_home_flight *f, const cn_homes *hs)
{
    for (int h = 0; h < CN_N_HOMES; h++) CN_TRY(init_rows(&f->at[h], hs, (cn_kv_home)h));
    return CN_OK;
}

void cn_home_flight_free(cn_home_flight *f, cn_homes *hs)
{
    for (int h = 0; h < CN_N_HOMES; h++) {
        cn_home_step *st = &f->at[h];
        if (st->read) hs->at[h].be->fence_free(st->read);
        cn_exchange_rows_free(&st->rows);
        cn_free(st->seqs);
        *st = (cn_home_step){.counts = st->counts};
    }
}

/* ---- the plan ---- */

/* Takes the rows of a step's exchange with one home: decode rows past their first commit. */
static void take_rows(cn_homes *hs, const cn_home *h, cn_home_step *st, const cn_plan *plan)
{
    uint32_t n = 0;
    cn_exchange_strides strides = {0};
    for (uint32_t r = 0; r < plan->n_decode; r++) {
        cn_seq *q = plan->rows[r].seq;
        if (q->home_len == 0 || cn_home_of_seq(hs, q) != h) continue;
        st->seqs[n++] = q;
        cn_exchange_strides_add(&strides, &q->kv, q->home_len, st->rows.block_tokens);
    }
    cn_exchange_rows_begin(&st->rows, n, strides);
    for (uint32_t i = 0; i < n; i++) {
        const cn_seq *q = st->seqs[i];
        const cn_exchange_row row = {
            .kv = &q->kv,
            .query_slot = (uint32_t)q->query_slot,
            .home_slot = q->home_slot,
            .home_len = q->home_len,
            .newest = q->n_computed - 1,
            .local = {q->table},
            .n_local = {q->n_blocks},
            .home = q->home_table,
        };
        cn_exchange_rows_add(&st->rows, &row);
    }
}

cn_status cn_home_flight_begin(cn_homes *hs, cn_home_flight *f, const cn_plan *plan, bool recorded)
{
    if (!cn_homes_any(hs)) return CN_OK;
    for (int h = 0; h < CN_N_HOMES; h++)
        if (hs->at[h].be) take_rows(hs, &hs->at[h], &f->at[h], plan);
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
        if (st->rows.n_rows > 0) CN_TRY(hs->at[h].be->fence_sync(st->read));
        st->n_counted = 0;
    }
    if (f->clock) CN_TRY(hs->timer->end(hs->timer->ctx, f->clock));
    f->clock = NULL;
    return CN_OK;
}

/* Sums the counts of row i over layers and kv heads; they are ordered by pack. */
static uint64_t sum_counts(const cn_homes *hs, const cn_home_step *st, uint32_t i, bool missed)
{
    const cn_packs *packs = &hs->packs;
    const cn_exchange_rows *r = &st->rows;
    const uint32_t hk = hs->o.local.layout.n_kv_heads;
    const uint32_t *at = st->counts + missed * cn_exchange_counts(&r->sizes, hk);
    uint64_t sum = 0;
    for (uint32_t p = 0; p < packs->n; p++) {
        const uint32_t n = (cn_pack_start(packs, p + 1) - cn_pack_start(packs, p)) * hk;
        for (uint32_t u = 0; u < n; u++) sum += at[i * n + u];
        at += (size_t)r->n_rows * n;
    }
    return sum;
}

static void count_row(const cn_homes *hs, const cn_home_step *st, uint32_t i, cn_stats *stats)
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

/* Rows are in the order of the step's tokens. Rows that compute tokens again have no token. */
void cn_home_flight_count(const cn_homes *hs, cn_home_flight *f, cn_seq *q, cn_stats *stats)
{
    for (int h = 0; h < CN_N_HOMES; h++) {
        cn_home_step *st = &f->at[h];
        uint32_t i = st->n_counted;
        while (i < st->rows.n_rows && st->seqs[i] != q) i++;
        if (i == st->rows.n_rows) continue;
        count_row(hs, st, i, stats);
        st->n_counted = i + 1;
        return;
    }
}
