/* home.c - see home.h. */
#include "engine/home.h"

#include "engine/backend.h"

/* ---- checks and start ---- */

cn_status cn_home_check_start(const cn_config *c)
{
    const uint32_t homes = cn_config_homes(c);
    const cn_kv_home home = cn_config_away(c);
    const char *name = cn_kv_home_name(home);
    if (homes >> CN_HOME_PEER & 1 && homes >> CN_HOME_HOST & 1)
        return cn_fail(CN_ERR_ARG, "--kv-homes peer,host: expected at most one of peer and host");
    if (home == CN_HOME_DEVICE && c->cache_device)
        return cn_fail(CN_ERR_ARG, "--cache-device %s: only kv home peer uses it; add peer to "
                                   "--kv-homes, or leave it out",
                       c->cache_device);
    if (home == CN_HOME_DEVICE && c->home_space_gib > 0)
        return cn_fail(CN_ERR_ARG, "--home-space %.4g: no home is declared; add peer or host to "
                                   "--kv-homes, or leave it out",
                       (double)c->home_space_gib);
    if (home == CN_HOME_DEVICE) return CN_OK;
    if (!(c->home_space_gib > 0))
        return cn_fail(CN_ERR_ARG, "kv home %s: --home-space is missing; set it to GiB of memory "
                                   "for the KV of these requests",
                       name);
    if (home == CN_HOME_PEER && !c->cache_device)
        return cn_fail(CN_ERR_ARG, "kv home peer: --cache-device is missing");
    if (home == CN_HOME_HOST && c->cache_device)
        return cn_fail(CN_ERR_ARG, "--cache-device %s: kv home host uses host memory; leave it out",
                       c->cache_device);
    if (!(cn_config_selectors(c) & cn_away_selectors()))
        return cn_fail(CN_ERR_ARG, "--kv-homes %s: no selector can use it; add spade, last or tls "
                                   "to --kv-selectors",
                       name);
    return CN_OK;
}

cn_status cn_home_open_beside(cn_home *h, const cn_config *c, cn_backend *model_be)
{
    const cn_kv_home home = cn_config_away(c);
    if (home == CN_HOME_DEVICE) return CN_OK;
    CN_TRY(cn_backend_check_ops(model_be, cn_config_policies(c), cn_config_selectors(c),
                                cn_config_homes(c)));
    if (home != CN_HOME_HOST) return CN_OK;
    h->be = model_be;
    /* Beside a model on the same device the exchange must not delay it. */
    return model_be->stream_create(model_be, CN_PRIORITY_LOW, &h->stream);
}

cn_status cn_home_open(cn_home *h, const cn_config *c, const cn_model_config *m,
                       cn_backend *model_be, uint64_t bytes)
{
    if (cn_config_away(c) != CN_HOME_PEER) return CN_OK;
    CN_TRY(cn_backend_open_cache(&h->be, c, m, model_be, bytes));
    CN_TRY(h->be->stream_create(h->be, CN_PRIORITY_HIGH, &h->stream));
    return cn_backend_check_ops(h->be, 0, cn_config_selectors(c), cn_config_homes(c));
}

static cn_status create_streams(cn_home *h)
{
    const bool own = h->be != h->o.model_be;
    cn_backend *be = h->be, *model_be = h->o.model_be;
    h->fills = h->o.event_stream;
    if (own) CN_TRY(be->stream_create(be, CN_PRIORITY_LOW, &h->fills));
    for (uint32_t p = 0; p < h->packs.n; p++) {
        CN_TRY(model_be->fence_create(model_be, &h->stepped[p]));
        CN_TRY(be->fence_create(be, &h->done[p]));
    }
    CN_TRY(model_be->fence_create(model_be, &h->put));
    CN_TRY(model_be->fence_create(model_be, &h->compressed));
    return be->fence_create(be, &h->filled);
}

/* Describes the home space; its memory is allocated. */
static void describe(cn_home *h)
{
    const cn_home_plan *plan = &h->o.plan->home;
    const cn_kv_layout *l = &h->o.local.layout;
    cn_pools *p = &h->env.home;
    p->layout = cn_kv_layout_make(l->n_layers, plan->n_blocks, l->n_kv_heads, l->block_tokens,
                                  l->head_dim, l->part[CN_KV_K].dtype);
    p->n_heads = h->o.local.n_heads;
    p->act_dtype = h->o.local.act_dtype;
    p->digest.n_channels = cn_label_channels(l->head_dim);
    h->plane.layout = cn_kv_layout_make(h->packs.first_layer, plan->n_blocks, l->n_kv_heads,
                                        l->block_tokens, l->head_dim, l->part[CN_KV_K].dtype);
    h->plane.n_heads = p->n_heads;
    h->plane.act_dtype = p->act_dtype;
    h->env.be = h->be;
    h->env.local = h->o.local;
    h->env.n_slots = plan->n_slots;
    h->env.copies_labels = cn_config_selectors(h->o.config) >> CN_SELECT_TLS & 1;
    h->env.chosen_stride = h->fill_rows.sizes.move_stride;
    h->env.cos = h->o.cos;
    h->env.sin = h->o.sin;
}

static cn_status make_tiles(cn_home *h)
{
    const uint32_t n_blocks = h->env.home.layout.n_blocks;
    const uint32_t of_block = h->env.home.layout.block_tokens / CN_DIGEST_TILE;
    h->tiles = cn_calloc((size_t)n_blocks * of_block, sizeof *h->tiles);
    if (!h->tiles) return cn_fail(CN_ERR_MEMORY, "out of host memory for %u home blocks", n_blocks);
    for (uint32_t i = 0; i < n_blocks * of_block; i++)
        h->tiles[i] = (cn_digest_tile){i / of_block, i % of_block};
    return CN_OK;
}

cn_status cn_home_create(cn_home *h, const cn_home_opts *o)
{
    const uint32_t b = o->plan->block_tokens;
    h->o = *o;
    h->packs =
        cn_packs_make(o->config->select_dense_layers, o->model->n_layers, o->config->n_packs);
    const cn_exchange_sizes z = cn_exchange_sizes_of(o->config, o->model, b, true);
    CN_TRY(cn_exchange_rows_init(&h->fill_rows, &z, b));
    describe(h);
    h->fill_arrays = cn_calloc_aligned((size_t)h->env.n_slots * cn_exchange_bytes(&z), 1);
    if (!h->fill_arrays)
        return cn_fail(CN_ERR_MEMORY, "out of host memory for %u requests with a home",
                       h->env.n_slots);
    CN_TRY(make_tiles(h));
    return create_streams(h);
}

void cn_home_sync(cn_home *h)
{
    if (h->stream) h->be->stream_sync(h->stream);
    if (h->fills && h->fills != h->o.event_stream) h->be->stream_sync(h->fills);
}

void cn_home_free(cn_home *h)
{
    cn_backend *be = h->be, *model_be = h->o.model_be;
    for (uint32_t p = 0; p < CN_MAX_PACKS; p++) {
        if (h->stepped[p]) model_be->fence_free(h->stepped[p]);
        if (h->done[p]) be->fence_free(h->done[p]);
    }
    if (h->put) model_be->fence_free(h->put);
    if (h->compressed) model_be->fence_free(h->compressed);
    if (h->filled) be->fence_free(h->filled);
    if (h->stream) be->stream_free(h->stream);
    if (h->fills && h->fills != h->o.event_stream) be->stream_free(h->fills);
    cn_exchange_rows_free(&h->fill_rows);
    cn_free(h->fill_arrays);
    cn_free(h->tiles);
}

void cn_home_close(cn_home *h, const cn_backend *model_be)
{
    if (h->be && h->be != model_be) h->be->close(h->be);
    h->be = NULL;
}

/* ---- requests ---- */

cn_status cn_home_check(const cn_config *c, cn_kv_params *kv, uint32_t block_tokens)
{
    if ((unsigned)kv->home < CN_N_HOMES && (kv->home != CN_HOME_DEVICE || kv->select) &&
        !(cn_config_homes(c) >> kv->home & 1))
        return cn_fail(CN_ERR_ARG, "kv.home %s is not enabled: add it to --kv-homes at start",
                       cn_kv_home_name(kv->home));
    if (kv->home != CN_HOME_DEVICE && kv->select == CN_SELECT_TLS &&
        kv->select_query == CN_QUERY_UNION)
        return cn_fail(CN_ERR_ARG, "kv select_query union: not supported; use last or predicted");
    CN_TRY(cn_away_check(kv, block_tokens));
    if (kv->home == CN_HOME_DEVICE) return CN_OK;
    cn_kv_params most = c->kv;
    most.home = kv->home;
    most.select = kv->select;
    const uint32_t cap = cn_away_of(kv, block_tokens).cap;
    const uint32_t most_cap = cn_away_of(&most, block_tokens).cap;
    if (cap <= most_cap) return CN_OK;
    return cn_fail(CN_ERR_ARG, "kv select_cap %u: expected at most %u; raise --select-cap for more",
                   cap, most_cap);
}

/* ---- steps ---- */

cn_status cn_home_begin_step(cn_home *h, const cn_exchange_rows *rows, const cn_plane_view *plane)
{
    h->in_pass = true;
    h->plane_view = *plane;
    h->rows = rows->n_rows > 0 ? rows : NULL;
    return h->rows ? cn_exchange_upload(&h->env, h->stream, rows, &h->step) : CN_OK;
}

cn_status cn_home_end_step(cn_home *h, uint32_t *counts, cn_fence *read)
{
    const cn_exchange_rows *r = h->rows;
    h->in_pass = false;
    h->rows = NULL;
    h->plane_view = (cn_plane_view){0};
    if (!r) return CN_OK;
    const uint32_t hk = h->env.home.layout.n_kv_heads;
    const size_t half = cn_exchange_counts(&r->sizes, hk);
    const size_t bytes = sizeof(uint32_t) * r->n_rows * r->sizes.n_layers * hk;
    const uint32_t *from = h->step.counts;
    CN_TRY(h->be->mem_read(h->stream, counts, from, bytes));
    CN_TRY(h->be->mem_read(h->stream, counts + half, from + half, bytes));
    return h->be->fence_record(read, h->stream);
}

/* The pack that begins, or ends, with a layer; packs.n: none. */
static uint32_t pack_at(const cn_home *h, uint32_t layer, bool ends)
{
    uint32_t p = 0;
    while (p < h->packs.n && cn_pack_start(&h->packs, p + ends) != layer + ends) p++;
    return p;
}

cn_status cn_home_enter_layer(cn_home *h, uint32_t layer)
{
    if (!h->in_pass) return CN_OK;
    const uint32_t p = pack_at(h, layer, false);
    if (p == h->packs.n) return CN_OK;
    const double began_s = cn_now_s();
    CN_TRY(h->o.model_be->fence_wait(h->o.model_stream, h->done[p]));
    h->stall_s += cn_now_s() - began_s;
    return CN_OK;
}

cn_status cn_home_leave_layer(cn_home *h, uint32_t layer)
{
    if (!h->rows) return CN_OK;
    const uint32_t p = pack_at(h, layer, true);
    if (p == h->packs.n) return CN_OK;
    CN_TRY(h->o.model_be->fence_record(h->stepped[p], h->o.model_stream));
    CN_TRY(h->be->fence_wait(h->stream, h->stepped[p]));
    CN_TRY(cn_exchange_run(&h->env, h->stream, h->rows, &h->step, &h->packs, p, false));
    return h->be->fence_record(h->done[p], h->stream);
}

cn_status cn_home_wait(cn_home *h, cn_stream *s)
{
    for (uint32_t p = 0; p < h->packs.n; p++) CN_TRY(h->o.model_be->fence_wait(s, h->done[p]));
    return CN_OK;
}

/* ---- compression events ---- */

/* Copies blocks of the device to the home space, and their dense layers to the plane. */
static cn_status put(cn_home *h, const cn_sched_event *ev)
{
    const cn_planes local = cn_pools_planes(&h->o.local);
    const uint32_t n_dense = h->packs.first_layer;
    cn_copy_args a = {cn_planes_kv(&local, local.n_layers), cn_pools_planes(&h->env.home),
                      {.blocks = ev->puts, .n_blocks = ev->n_puts}};
    CN_TRY(h->o.model_be->copy_blocks(h->o.event_stream, &a));
    h->put_blocks += ev->n_puts;
    /* Later tokens are written to the plane as they are computed. */
    if (ev->n_exchange == 0 || n_dense == 0) return CN_OK;
    a.from = cn_planes_kv(&local, n_dense);
    a.to = cn_pools_planes(&h->plane);
    return h->o.model_be->copy_blocks(h->o.event_stream, &a);
}

/* Digests the blocks of a put. Consecutive home blocks are one call. */
static cn_status digest(cn_home *h, const cn_sched_event *ev)
{
    const uint32_t of_block = h->env.home.layout.block_tokens / CN_DIGEST_TILE;
    if (h->o.plan->home.planes == 0) return CN_OK;
    for (uint32_t i = 0, n; i < ev->n_puts; i += n) {
        const uint32_t first = ev->puts[i].dst;
        for (n = 1; i + n < ev->n_puts && ev->puts[i + n].dst == first + n;) n++;
        const cn_digest_args a = {.pools = h->env.home,
                                  .tiles = h->tiles + (size_t)first * of_block,
                                  .n = n * of_block};
        CN_TRY(h->be->digest(h->fills, &a));
    }
    return CN_OK;
}

static bool any_puts(cn_sched_event *const *events, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (events[i]->n_puts > 0) return true;
    return false;
}

cn_status cn_home_before_events(cn_home *h, cn_sched_event *const *events, uint32_t n)
{
    CN_TRY(cn_home_wait(h, h->o.event_stream));
    if (!any_puts(events, n)) return CN_OK;
    for (uint32_t i = 0; i < n; i++)
        if (events[i]->n_puts > 0) CN_TRY(put(h, events[i]));
    CN_TRY(h->o.model_be->fence_record(h->put, h->o.event_stream));
    CN_TRY(h->be->fence_wait(h->fills, h->put));
    for (uint32_t i = 0; i < n; i++) CN_TRY(digest(h, events[i]));
    return CN_OK;
}

/* Fills the exchange area of one request: the exchange of the step before its first one. */
static cn_status fill(cn_home *h, const cn_sched_event *ev)
{
    cn_exchange_rows *r = &h->fill_rows;
    const cn_seq *q = ev->seq;
    char *own = r->host;
    r->host = h->fill_arrays + q->home_slot * cn_exchange_bytes(&r->sizes);
    const cn_exchange_row row = {
        .kv = &q->kv,
        .query_slot = (uint32_t)q->query_slot,
        .home_slot = q->home_slot,
        .home_len = ev->home_len,
        .newest = ev->req.position_end - 1,
        .local = {ev->exchange, ev->req.target},
        .n_local = {ev->n_exchange, ev->req.n_target},
        .home = q->home_table,
    };
    cn_exchange_rows_begin(r, 1, cn_exchange_local_blocks(&q->kv, r->block_tokens),
                           ev->home_len / r->block_tokens);
    cn_exchange_rows_add(r, &row);
    cn_status status = cn_exchange_upload(&h->env, h->fills, r, &h->fill);
    for (uint32_t p = 0; status == CN_OK && p < h->packs.n; p++)
        status = cn_exchange_run(&h->env, h->fills, r, &h->fill, &h->packs, p, true);
    r->host = own;
    return status;
}

cn_status cn_home_after_events(cn_home *h, cn_sched_event *const *events, uint32_t n)
{
    if (!any_puts(events, n)) return CN_OK;
    CN_TRY(h->o.model_be->fence_record(h->compressed, h->o.event_stream));
    CN_TRY(h->be->fence_wait(h->fills, h->compressed));
    for (uint32_t i = 0; i < n; i++)
        if (events[i]->n_exchange > 0) CN_TRY(fill(h, events[i]));
    CN_TRY(h->be->fence_record(h->filled, h->fills));
    return h->o.model_be->fence_wait(h->o.event_stream, h->filled);
}
