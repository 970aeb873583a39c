/* ahead.c - see ahead.h. */
#include "engine/home/ahead.h"

#include "compress/selector.h"

/* ---- start ---- */

/* Describes the keys of the retrieval head by home block: behind those of the pool's blocks. */
static void describe_drafts(const cn_homes *hs, cn_home *h)
{
    const cn_pools *local = &hs->o.local;
    cn_kv_layout all = local->layout;
    all.n_blocks = hs->o.plan->homes[h - hs->at].n_blocks;
    cn_home_ahead *a = &h->ahead;
    uint32_t *chosen = a->env.chosen;
    a->env = h->env;
    a->env.be = hs->o.model_be;
    a->env.chosen = chosen;
    a->env.chosen_stride = a->fill_rows.sizes.move_stride;
    a->env.zeros = a->zeros;
    a->env.home = (cn_pools){.layout = cn_kv_layout_draft(&all),
                             .n_heads = hs->o.model->draft.n_heads,
                             .act_dtype = local->act_dtype};
    a->env.home.kv = (char *)local->draft + (local->layout.n_blocks + h->plane_first) *
                                                cn_block_plane_bytes(&all, CN_PLANE_DRAFT);
}

cn_status cn_ahead_create(const cn_homes *hs, cn_home *h)
{
    cn_home_ahead *a = &h->ahead;
    CN_TRY(cn_home_create_fills(hs, h, true, &a->fill_rows, &a->fill_arrays));
    const size_t n = a->fill_rows.sizes.room;
    if (n == 0) return CN_OK;
    a->zeros = cn_calloc(n * hs->o.local.layout.n_kv_heads, sizeof *a->zeros);
    if (!a->zeros) return cn_fail(CN_ERR_MEMORY, "out of host memory for %zu scores", n);
    describe_drafts(hs, h);
    return hs->o.model_be->fence_create(hs->o.model_be, &a->ranked);
}

void cn_ahead_free(const cn_homes *hs, cn_home *h)
{
    cn_home_ahead *a = &h->ahead;
    if (a->ranked) hs->o.model_be->fence_free(a->ranked);
    cn_exchange_rows_free(&a->fill_rows);
    cn_churn_free(&a->churn);
    cn_free(a->fill_arrays);
    cn_free(a->zeros);
}

/* ---- steps and events ---- */

cn_status cn_ahead_put(const cn_homes *hs, const cn_home *h, cn_stream *s, const cn_seq *seq,
                       const cn_block_copy *blocks, uint32_t n)
{
    const cn_planes local = cn_planes_draft(cn_pools_planes(&hs->o.local));
    const uint32_t first = hs->o.local.layout.n_blocks + h->plane_first;
    if (!cn_selector_of(seq->kv.select)->ahead) return CN_OK;
    cn_copy_args a = {local, local, {.blocks = blocks, .n_blocks = n}};
    for (int i = CN_PLANE_DRAFT; i <= CN_PLANE_STATE; i++)
        if (a.to.block[i].base) a.to.block[i].base += first * a.to.block[i].item_stride;
    return hs->o.model_be->copy_blocks(s, &a);
}

static const cn_packs one_layer = {.n_layers = 1, .n = 1};

/* Enqueues the pushes of all packs of one list, behind its rank, and records `done` of each. */
static cn_status push_ahead(const cn_homes *hs, cn_home *h, const cn_home_rows *st)
{
    CN_TRY(hs->o.model_be->fence_record(h->ahead.ranked, hs->o.model_stream));
    CN_TRY(h->be->fence_wait(h->pushes, h->ahead.ranked));
    for (uint32_t p = 0; p < hs->packs.n; p++) {
        CN_TRY(cn_exchange_push(&h->env, h->pushes, &st->rows, &h->ahead.step, &hs->packs, p));
        CN_TRY(h->be->fence_record(h->done[p], h->pushes));
    }
    return CN_OK;
}

cn_status cn_ahead_exchange(const cn_homes *hs, cn_home *h, const cn_home_rows *st,
                            const void *queries)
{
    cn_stream *s = hs->o.model_stream;
    cn_exchange_scratch m = h->ahead.step;
    m.predicted = (void *)(uintptr_t)queries;
    CN_TRY(cn_exchange_rank(&h->ahead.env, s, &st->rows, &m, &one_layer, 0, false));
    CN_TRY(cn_exchange_read_counts(&h->ahead.env, s, &st->rows, &m, st->counts));
    return push_ahead(hs, h, st);
}

cn_status cn_ahead_fill(const cn_homes *hs, cn_home *h, const cn_exchange_rows *r)
{
    cn_backend *be = hs->o.model_be;
    cn_stream *s = hs->o.event_stream;
    const cn_packs all = {hs->packs.first_layer, hs->packs.n_layers, 1};
    CN_TRY(cn_exchange_upload(&h->ahead.env, s, r, &h->ahead.fill));
    CN_TRY(cn_exchange_rank(&h->ahead.env, s, r, &h->ahead.fill, &one_layer, 0, true));
    CN_TRY(be->fence_record(hs->compressed, s));
    CN_TRY(h->be->fence_wait(h->fills, hs->compressed));
    CN_TRY(cn_exchange_push(&h->env, h->fills, r, &h->ahead.fill, &all, 0));
    CN_TRY(h->be->fence_record(h->filled, h->fills));
    return be->fence_wait(s, h->filled); /* the next fill has the same scratch */
}
