/* home.c - see home.h. */
#include "engine/home/home.h"

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/home/ahead.h"
#include "engine/home/exchange_cost.h"
#include "engine/home/home_memory.h"
#include "engine/start/device_choice.h"

/* ---- checks and start ---- */

/* How a home is declared, for errors. */
static const char *declare_home(const cn_config *c)
{
    return c->arms || c->decode_arms ? "add home=peer or home=host to an arm"
                                     : "add peer or host to --kv-homes";
}

/* --home-space and --host-space: each declared home has a size, and every size given belongs to a
 * declared home. */
static cn_status check_spaces(const cn_config *c)
{
    const uint32_t away = cn_config_away(c);
    const bool peer = away >> CN_HOME_PEER & 1, host = away >> CN_HOME_HOST & 1;
    if (!host && c->host_space_gib > 0)
        return cn_fail(CN_ERR_ARG, "--host-space %.5g: kv home host is not declared; add host to "
                                   "--kv-homes, or leave it out",
                       (double)c->host_space_gib);
    if (!away && c->home_space_gib > 0)
        return cn_fail(CN_ERR_ARG, "--home-space %.5g: no home is declared; %s, or leave it out",
                       (double)c->home_space_gib, declare_home(c));
    if (!peer && c->host_space_gib > 0 && c->home_space_gib > 0)
        return cn_fail(CN_ERR_ARG,
                       "--home-space %.5g and --host-space %.5g: kv home host is the only home; "
                       "leave one of the two out",
                       (double)c->home_space_gib, (double)c->host_space_gib);
    for (int h = 0; h < CN_N_HOMES; h++)
        if (away >> h & 1 && !(cn_config_home_gib(c, (cn_kv_home)h) > 0))
            return cn_fail(CN_ERR_ARG, "kv home %s: --home-space is missing; set it to GiB of "
                                       "memory for the KV of these requests",
                           cn_kv_home_name((cn_kv_home)h));
    return CN_OK;
}

cn_status cn_home_check_start(const cn_config *c)
{
    const uint32_t away = cn_config_away(c);
    const bool peer = away >> CN_HOME_PEER & 1;
    if (c->cache_device && !away)
        return cn_fail(CN_ERR_ARG, "--cache-device %s: only kv home peer uses it; add peer to "
                                   "--kv-homes, or leave it out",
                       c->cache_device);
    CN_TRY(check_spaces(c));
    if (!away && cn_config_is_given(c, &c->n_packs))
        return cn_fail(CN_ERR_ARG, "--packs %u: no home is declared; %s, or leave it out",
                       c->n_packs, declare_home(c));
    if (!away && cn_kv_home_kind(&c->kv)->is_chosen)
        return cn_fail(CN_ERR_ARG, "--kv-home auto: no other home is declared; add peer or host to "
                                   "--kv-homes, or leave it out");
    if (!away) return CN_OK;
    if (peer && !c->cache_device)
        return cn_fail(CN_ERR_ARG, "kv home peer: --cache-device is missing");
    if (!peer && c->cache_device)
        return cn_fail(CN_ERR_ARG, "--cache-device %s: kv home host uses host memory; leave it out",
                       c->cache_device);
    if (!(cn_config_selectors(c) & cn_away_selectors()))
        return cn_fail(CN_ERR_ARG, "--kv-homes %s: no selector can use it; add spade, last, tls "
                                   "or spec to --kv-selectors",
                       cn_kv_home_name(peer ? CN_HOME_PEER : CN_HOME_HOST));
    return CN_OK;
}

void cn_home_force_churn(cn_home *h, float share)
{
    h->churn.share = share;
    h->env.churn = share > 0 ? &h->churn : NULL;
    h->ahead.churn.share = share;
    h->ahead.env.churn = share > 0 ? &h->ahead.churn : NULL;
}

bool cn_homes_any(const cn_homes *hs) { return hs->at[CN_HOME_PEER].be || hs->at[CN_HOME_HOST].be; }

uint64_t cn_homes_put_bytes(const cn_homes *hs)
{
    uint64_t bytes = 0;
    for (int h = 0; h < CN_N_HOMES; h++) {
        const cn_kv_layout *l = &hs->at[h].env.home.layout;
        bytes += hs->at[h].put_blocks * l->block_bytes * l->n_layers;
    }
    return bytes;
}

/* Returns the declared home behind h, or the first one if h is NULL. NULL: there is none. */
static cn_home *next_home(cn_homes *hs, cn_home *h)
{
    for (h = h ? h + 1 : hs->at; h < hs->at + CN_N_HOMES; h++)
        if (h->be) return h;
    return NULL;
}

cn_home *cn_home_of_seq(cn_homes *hs, const cn_seq *q) { return &hs->at[q->kv.home]; }

/* Creates the streams of steps. */
static cn_status create_streams(cn_home *h, cn_priority priority)
{
    CN_TRY(h->be->stream_create(h->be, priority, &h->stream));
    return h->be->stream_create(h->be, priority, &h->pushes);
}

cn_status cn_home_open_beside(cn_homes *hs, const cn_config *c, cn_backend *model_be)
{
    const uint32_t away = cn_config_away(c);
    if (!away) return CN_OK;
    CN_TRY(cn_backend_check_ops(model_be, cn_config_policies(c), cn_config_selectors(c),
                                cn_config_homes(c)));
    hs->o.model_be = model_be;
    CN_TRY(model_be->stream_create(model_be, CN_PRIORITY_LOW, &hs->puts));
    if (away >> CN_HOME_PEER & 1)
        CN_TRY(cn_backend_check_pair(model_be, hs->at[CN_HOME_PEER].be, c));
    if (!(away >> CN_HOME_HOST & 1)) return CN_OK;
    hs->at[CN_HOME_HOST].be = model_be;
    /* Beside a model on the same device the exchange must not delay it. */
    CN_TRY(create_streams(&hs->at[CN_HOME_HOST], CN_PRIORITY_LOW));
    hs->at[CN_HOME_HOST].predicts = hs->at[CN_HOME_HOST].stream;
    return CN_OK;
}

cn_status cn_home_open(cn_homes *hs, const cn_config *c, const cn_model_config *m)
{
    cn_home *h = &hs->at[CN_HOME_PEER];
    if (!(cn_config_away(c) >> CN_HOME_PEER & 1)) return CN_OK;
    CN_TRY(cn_home_open_cache(&h->be, c, m));
    CN_TRY(cn_backend_check_ops(h->be, 0, cn_config_selectors(c), cn_config_homes(c)));
    CN_TRY(create_streams(h, CN_PRIORITY_HIGH));
    /* Predictions may wait: a rank that waits for room would delay its pack. */
    CN_TRY(h->be->stream_create(h->be, CN_PRIORITY_LOW, &h->predicts));
    CN_TRY(h->be->stream_create(h->be, CN_PRIORITY_LOW, &h->digests));
    return h->be->stream_create(h->be, CN_PRIORITY_LOW, &h->fills);
}

static cn_status create_fences(const cn_homes *hs, cn_home *h)
{
    if (h->be == hs->o.model_be) {
        h->fills = hs->o.event_stream;
        h->digests = hs->puts;
    }
    for (uint32_t p = 0; p < hs->packs.n; p++) {
        CN_TRY(h->be->fence_create(h->be, &h->ranked[p]));
        CN_TRY(h->be->fence_create(h->be, &h->done[p]));
    }
    CN_TRY(h->be->fence_create(h->be, &h->predicted));
    CN_TRY(h->be->fence_create(h->be, &h->sent));
    return h->be->fence_create(h->be, &h->filled);
}

static cn_kv_home kind_of(const cn_homes *hs, const cn_home *h) { return (cn_kv_home)(h - hs->at); }

/* Describes a home space; its memory is allocated. */
static void describe_space(const cn_homes *hs, cn_home *h)
{
    const cn_home_plan *plan = &hs->o.plan->homes[kind_of(hs, h)];
    const cn_kv_layout *l = &hs->o.local.layout;
    cn_pools *p = &h->env.home;
    p->layout = cn_kv_layout_like(l, l->n_layers, plan->n_blocks);
    p->n_heads = hs->o.local.n_heads;
    p->act_dtype = hs->o.local.act_dtype;
    p->scale = hs->o.local.scale;
    p->digest.n_channels = cn_layout_label_channels(l);
    h->env.be = h->be;
    h->env.local = hs->o.local;
    h->env.n_slots = plan->n_slots;
    h->env.chosen_stride = h->fill_rows.sizes.move_stride;
    h->env.cos = hs->o.cos;
    h->env.sin = hs->o.sin;
}

/* Describes the plane of dense layers: the blocks of each home, one home behind the other. */
static void describe_plane(cn_homes *hs)
{
    const cn_kv_layout *l = &hs->o.local.layout;
    uint32_t n_blocks = 0;
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        h->plane_first = n_blocks;
        n_blocks += hs->o.plan->homes[kind_of(hs, h)].n_blocks;
    }
    hs->plane.layout = cn_kv_layout_like(l, hs->packs.first_layer, n_blocks);
    hs->plane.n_heads = hs->o.local.n_heads;
    hs->plane.act_dtype = hs->o.local.act_dtype;
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

/* The first exchange of a request brings in all that it selects. */
static cn_status check_chosen(const cn_homes *hs, const cn_home *h, bool ahead, uint32_t chosen)
{
    const uint32_t most = (ahead ? hs->o.model_be : h->be)->most_chosen;
    if (most == 0 || chosen <= most) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "--select-tokens %u: kv home %s supports at most %u selected entries on this "
                   "device, and this makes %u: lower --select-tokens",
                   hs->o.config->kv.select_tokens, cn_kv_home_name(kind_of(hs, h)),
                   most, chosen);
}

cn_status cn_home_create_fills(const cn_homes *hs, const cn_home *h, bool ahead,
                               cn_exchange_rows *rows, char **arrays)
{
    const uint32_t b = hs->o.plan->block_tokens, n = hs->o.plan->homes[kind_of(hs, h)].n_slots;
    const cn_exchange_sizes z =
        cn_exchange_sizes_of(hs->o.config, hs->o.model, kind_of(hs, h), b, true, ahead);
    if (z.max_rows == 0) return CN_OK;
    CN_TRY(check_chosen(hs, h, ahead, z.move_stride));
    CN_TRY(cn_exchange_rows_init(rows, &z, b));
    rows->ahead = ahead;
    *arrays = cn_calloc_aligned(n * cn_exchange_bytes(&z), 1);
    if (*arrays) return CN_OK;
    return cn_fail(CN_ERR_MEMORY, "out of host memory for %u requests with a home", n);
}

static cn_status create_home(cn_homes *hs, cn_home *h)
{
    CN_TRY(cn_home_create_fills(hs, h, false, &h->fill_rows, &h->fill_arrays));
    describe_space(hs, h);
    CN_TRY(cn_ahead_create(hs, h));
    CN_TRY(make_tiles(h));
    return create_fences(hs, h);
}

static cn_status enter_layer(void *ctx, uint32_t layer);
static cn_status leave_layer(void *ctx, uint32_t layer);
static cn_status begin_ahead(void *ctx, const void *queries);

cn_status cn_home_create(cn_homes *hs, const cn_home_opts *o)
{
    cn_backend *model_be = o->model_be;
    hs->o = *o;
    hs->hook = (cn_layer_hook){enter_layer, leave_layer, begin_ahead, hs};
    hs->packs =
        cn_packs_make(o->config->select_dense_layers, o->model->n_layers, o->config->n_packs);
    describe_plane(hs);
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) CN_TRY(create_home(hs, h));
    for (uint32_t p = 0; p < hs->packs.n; p++)
        CN_TRY(model_be->fence_create(model_be, &hs->stepped[p]));
    CN_TRY(model_be->fence_create(model_be, &hs->put));
    CN_TRY(model_be->fence_create(model_be, &hs->computed));
    CN_TRY(model_be->fence_create(model_be, &hs->copied));
    return model_be->fence_create(model_be, &hs->compressed);
}

cn_status cn_home_sync(cn_homes *hs)
{
    cn_status first = hs->puts ? hs->o.model_be->stream_sync(hs->puts) : CN_OK;
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        cn_stream *const fills = h->fills != hs->o.event_stream ? h->fills : NULL;
        cn_stream *const digests = h->digests != hs->puts ? h->digests : NULL;
        cn_stream *const streams[] = {h->predicts, h->stream, h->pushes, fills, digests};
        for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
            const cn_status status = streams[i] ? h->be->stream_sync(streams[i]) : CN_OK;
            if (first == CN_OK) first = status;
        }
    }
    return first;
}

static void free_home_fence(cn_backend *be, cn_fence *f)
{
    if (f) be->fence_free(f);
}

static void free_home(const cn_homes *hs, cn_home *h)
{
    for (uint32_t p = 0; p < CN_MAX_PACKS; p++) {
        free_home_fence(h->be, h->ranked[p]);
        free_home_fence(h->be, h->done[p]);
    }
    free_home_fence(h->be, h->predicted);
    free_home_fence(h->be, h->filled);
    free_home_fence(h->be, h->sent);
    if (h->predicts && h->predicts != h->stream) h->be->stream_free(h->predicts);
    if (h->stream) h->be->stream_free(h->stream);
    if (h->pushes) h->be->stream_free(h->pushes);
    if (h->fills && h->fills != hs->o.event_stream) h->be->stream_free(h->fills);
    if (h->digests && h->digests != hs->puts) h->be->stream_free(h->digests);
    cn_exchange_rows_free(&h->fill_rows);
    cn_churn_free(&h->churn);
    cn_free(h->fill_arrays);
    cn_ahead_free(hs, h);
    cn_free(h->tiles);
}

void cn_home_free(cn_homes *hs)
{
    cn_backend *model_be = hs->o.model_be;
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) free_home(hs, h);
    for (uint32_t p = 0; p < CN_MAX_PACKS; p++)
        if (hs->stepped[p]) model_be->fence_free(hs->stepped[p]);
    free_home_fence(model_be, hs->put);
    free_home_fence(model_be, hs->compressed);
    free_home_fence(model_be, hs->computed);
    free_home_fence(model_be, hs->copied);
    if (hs->puts) model_be->stream_free(hs->puts);
}

void cn_home_close(cn_homes *hs, const cn_backend *model_be)
{
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        if (h->be != model_be) h->be->close(h->be);
        h->be = NULL;
    }
}

/* ---- requests ---- */

/* Checks that the home is declared and that its cap fits, and completes kv. */
static cn_status check_home(const cn_config *c, cn_kv_params *kv, uint32_t block_tokens)
{
    if (cn_kv_homes(kv, 0) & ~cn_config_homes(c) && (cn_kv_is_away(kv) || kv->select))
        return cn_fail(CN_ERR_ARG, "kv.home %s is not enabled: add it to --kv-homes at start",
                       cn_kv_home_kind(kv)->name);
    CN_TRY(cn_away_check(kv, block_tokens));
    if (!cn_kv_is_away(kv)) return CN_OK;
    cn_kv_params most = *kv;
    most.select_tokens = c->kv.select_tokens;
    most.select_tiles = c->kv.select_tiles;
    most.select_cap = c->kv.select_cap;
    const uint32_t cap = cn_away_of(kv, block_tokens).cap;
    const uint32_t most_cap = cn_away_of(&most, block_tokens).cap;
    if (cap <= most_cap) return CN_OK;
    return cn_fail(CN_ERR_ARG, "kv select_cap %u: expected at most %u; raise --select-cap for more",
                   cap, most_cap);
}

static cn_status check_home_form(const cn_config *c, cn_kv_params *kv, uint32_t block_tokens,
                                 uint32_t window_tokens)
{
    CN_TRY(check_home(c, kv, block_tokens));
    CN_TRY(cn_selector_check(kv, block_tokens, &c->kv));
    return cn_policy_check(kv, block_tokens, window_tokens);
}

cn_status cn_home_check_kv(const cn_config *c, cn_kv_params *kv, uint32_t block_tokens,
                           uint32_t window_tokens)
{
    if (!cn_kv_home_kind(kv)->is_chosen) return check_home_form(c, kv, block_tokens, window_tokens);
    const uint32_t away = cn_away_selectors();
    if ((unsigned)kv->select < CN_N_SELECTORS && !(away >> kv->select & 1))
        return cn_fail(CN_ERR_ARG,
                       "kv home auto with kv select %s: expected spade, last, tls or spec, which "
                       "can bring tokens back from another home; change one of the two",
                       cn_kv_select_name(kv->select));
    const cn_kv_params given = *kv;
    for (int h = CN_N_HOMES; h-- > 0;) { /* each may be chosen, so each form must be possible */
        if (!(cn_config_homes(c) >> h & 1)) continue;
        *kv = cn_away_form(&given, (cn_kv_home)h);
        const cn_status status = check_home_form(c, kv, block_tokens, window_tokens);
        if (status != CN_OK) return cn_fail_within(status, "kv home auto");
    }
    return CN_OK;
}

/* ---- steps ---- */

/* The rows of the pass that exchange with this home in this way; NULL: none. */
static cn_home_rows *rows_by(const cn_homes *hs, const cn_home *h, int way)
{
    cn_home_rows *r = hs->steps ? &hs->steps[kind_of(hs, h)].by[way] : NULL;
    return r && r->rows.n_rows > 0 ? r : NULL;
}

cn_status cn_home_begin_step(cn_homes *hs, cn_home_step *steps, cn_home_clock *clock)
{
    hs->clock = clock;
    hs->steps = steps;
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        cn_home_rows *behind = rows_by(hs, h, CN_HOME_BEHIND);
        const cn_home_rows *ahead = rows_by(hs, h, CN_HOME_AHEAD);
        if (behind) behind->rows.turn = h->n_turns++;
        /* The last prediction on this stream waits for the last pack of the step before, and that
         * pack for the pushes of the step before that one. */
        if (behind) CN_TRY(cn_exchange_upload(&h->env, h->predicts, &behind->rows, &h->step));
        /* The model's stream has waited for the pushes of the step before. */
        if (ahead)
            CN_TRY(cn_exchange_upload(&h->ahead.env, hs->o.model_stream, &ahead->rows,
                                      &h->ahead.step));
    }
    return CN_OK;
}

void cn_home_end_step(cn_homes *hs)
{
    hs->clock = NULL;
    hs->steps = NULL;
}

/* The pack that begins, or ends, with a layer; packs.n: none. */
static uint32_t pack_at(const cn_homes *hs, uint32_t layer, bool ends)
{
    uint32_t p = 0;
    while (p < hs->packs.n && cn_pack_start(&hs->packs, p + ends) != layer + ends) p++;
    return p;
}

static cn_status enter_layer(void *ctx, uint32_t layer)
{
    cn_homes *hs = ctx;
    const uint32_t p = pack_at(hs, layer, false);
    if (p == hs->packs.n) return CN_OK;
    cn_backend *be = hs->o.model_be;
    cn_home_clock *clock = hs->clock;
    const double began_s = cn_now_s();
    if (clock) CN_TRY(be->fence_record(clock->waits[p], hs->o.model_stream));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        CN_TRY(be->fence_wait(hs->o.model_stream, h->done[p]));
    hs->stall_s += cn_now_s() - began_s;
    if (!clock) return CN_OK;
    clock->waited = true;
    return be->fence_record(clock->goes[p], hs->o.model_stream);
}

/* Records a timed fence, if the step is timed. */
static cn_status mark_home(const cn_home *h, cn_stream *s, cn_fence *f)
{
    return f ? h->be->fence_record(f, s) : CN_OK;
}

/* Returns the pack whose exchange is the second before that of pack p: both use the same half of
 * the scratch. With one pack it is the newest. */
static uint32_t second_before(const cn_homes *hs, uint32_t p)
{
    const uint32_t n = hs->packs.n;
    return p >= 2 ? p - 2 : n >= 2 ? n - 2 + p : 0;
}

/* Enqueues the prediction of pack p with one home. */
static cn_status predict_home(const cn_homes *hs, cn_home *h, const cn_home_rows *st, uint32_t p)
{
    CN_TRY(h->be->fence_wait(h->predicts, hs->stepped[p]));
    CN_TRY(h->be->fence_wait(h->predicts, h->ranked[second_before(hs, p)])); /* it reads queries */
    CN_TRY(cn_exchange_predict(&h->env, h->predicts, &st->rows, &h->step, &hs->packs, p));
    return h->be->fence_record(h->predicted, h->predicts);
}

/* Enqueues the exchange of pack p with one home. */
static cn_status exchange(const cn_homes *hs, cn_home *h, const cn_home_rows *st, uint32_t p)
{
    static const cn_home_span untimed;
    cn_home_span *timed = hs->clock ? &hs->clock->spans[kind_of(hs, h)] : NULL;
    const cn_home_span *span = timed ? timed : &untimed;
    CN_TRY(predict_home(hs, h, st, p));
    CN_TRY(h->be->fence_wait(h->stream, h->predicted));
    CN_TRY(h->be->fence_wait(h->stream, h->done[second_before(hs, p)])); /* it reads the moves */
    CN_TRY(mark_home(h, h->stream, span->begins[CN_HOME_RANKS][p]));
    CN_TRY(cn_exchange_rank(&h->env, h->stream, &st->rows, &h->step, &hs->packs, p, false));
    CN_TRY(mark_home(h, h->stream, span->ends[CN_HOME_RANKS][p]));
    CN_TRY(h->be->fence_record(h->ranked[p], h->stream));
    CN_TRY(h->be->fence_wait(h->pushes, h->ranked[p]));
    if (p + 1 == hs->packs.n) {
        CN_TRY(cn_exchange_read_counts(&h->env, h->pushes, &st->rows, &h->step, st->counts));
        CN_TRY(h->be->fence_record(hs->steps[kind_of(hs, h)].read, h->pushes));
    }
    CN_TRY(mark_home(h, h->pushes, span->begins[CN_HOME_PUSHES][p]));
    CN_TRY(cn_exchange_push(&h->env, h->pushes, &st->rows, &h->step, &hs->packs, p));
    CN_TRY(mark_home(h, h->pushes, span->ends[CN_HOME_PUSHES][p]));
    if (timed) timed->recorded = true;
    return h->be->fence_record(h->done[p], h->pushes);
}

static cn_status leave_layer(void *ctx, uint32_t layer)
{
    cn_homes *hs = ctx;
    if (!hs->steps) return CN_OK;
    const uint32_t p = pack_at(hs, layer, true);
    if (p == hs->packs.n) return CN_OK;
    CN_TRY(hs->o.model_be->fence_record(hs->stepped[p], hs->o.model_stream));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        const cn_home_rows *st = rows_by(hs, h, CN_HOME_BEHIND);
        if (st) CN_TRY(exchange(hs, h, st, p));
    }
    return CN_OK;
}

static cn_status begin_ahead(void *ctx, const void *queries)
{
    cn_homes *hs = ctx;
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        const cn_home_rows *st = rows_by(hs, h, CN_HOME_AHEAD);
        if (st) CN_TRY(cn_ahead_exchange(hs, h, st, queries));
    }
    return CN_OK;
}

const cn_layer_hook *cn_home_hook(const cn_homes *hs) { return hs->hook.ctx ? &hs->hook : NULL; }

cn_status cn_home_wait(cn_homes *hs, cn_stream *s)
{
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        for (uint32_t p = 0; p < hs->packs.n; p++)
            CN_TRY(hs->o.model_be->fence_wait(s, h->done[p]));
    return CN_OK;
}

/* ---- puts ---- */

/* Blocks of one request that are copied home. */
typedef struct put_list {
    const cn_seq *seq;
    const cn_block_copy *blocks;
    uint32_t n;
    bool dense; /* before the first commit: the dense layers and the keys of a head too */
} put_list;

/* The copy engine copies to host memory. A kernel would take multiprocessors from the model. */
static cn_planes home_planes(const cn_homes *hs, const cn_home *h)
{
    cn_planes p = cn_pools_planes(&h->env.home);
    if (!cn_home_kind_of(kind_of(hs, h))->has_device) p.where = CN_ON_HOST;
    return p;
}

/* Copies the dense layers of the blocks to the plane. Tokens after the first event are written
 * there as they are computed. */
static cn_status put_dense(cn_homes *hs, cn_stream *s, const put_list *l)
{
    const cn_home *h = cn_home_of_seq(hs, l->seq);
    const cn_planes local = cn_pools_planes(&hs->o.local);
    const uint32_t n_dense = hs->packs.first_layer;
    if (!l->dense || n_dense == 0) return CN_OK;
    cn_copy_args a = {cn_planes_kv(&local, n_dense), cn_pools_planes(&hs->plane),
                      {.blocks = l->blocks, .n_blocks = l->n}};
    cn_plane *to = &a.to.block[CN_PLANE_KV];
    to->base += h->plane_first * to->item_stride;
    return hs->o.model_be->copy_blocks(s, &a);
}

/* Copies blocks of the device to the home space. */
static cn_status put(cn_homes *hs, cn_stream *s, const put_list *l)
{
    cn_home *h = cn_home_of_seq(hs, l->seq);
    const cn_planes local = cn_pools_planes(&hs->o.local);
    const uint32_t n_layers = local.block[CN_PLANE_KV].n_layers;
    const cn_copy_args a = {cn_planes_kv(&local, n_layers), home_planes(hs, h),
                            {.blocks = l->blocks, .n_blocks = l->n}};
    h->put_blocks += l->n;
    CN_TRY(hs->o.model_be->copy_blocks(s, &a));
    if (l->dense) CN_TRY(cn_ahead_put(hs, h, s, l->seq, l->blocks, l->n));
    return put_dense(hs, s, l);
}

/* The first copy warms up. On a CPU the home is its own memory: there is no link. */
static cn_status measure_link(cn_homes *hs, cn_home *h)
{
    enum { MOST = 8 };
    cn_block_copy blocks[MOST];
    const cn_kv_layout *l = &h->env.home.layout;
    const cn_planes local = cn_pools_planes(&hs->o.local);
    const uint32_t fit = cn_min_u32(l->n_blocks, hs->o.local.layout.n_blocks);
    const uint32_t n = cn_min_u32(fit, MOST);
    cn_backend *be = hs->o.model_be;
    if (!be->mem_avail) return CN_OK;
    for (uint32_t i = 0; i < n; i++) blocks[i] = (cn_block_copy){i, i};
    const cn_copy_args a = {cn_planes_kv(&local, local.block[CN_PLANE_KV].n_layers),
                            home_planes(hs, h), {.blocks = blocks, .n_blocks = n}};
    for (int i = 0; i < 2; i++) {
        const double began_s = cn_now_s();
        CN_TRY(be->copy_blocks(hs->o.model_stream, &a));
        CN_TRY(be->stream_sync(hs->o.model_stream));
        const double s = cn_now_s() - began_s;
        h->link_bytes_per_s = s > 0 ? (double)n * (double)l->block_bytes * l->n_layers / s : 0;
    }
    return CN_OK;
}

/* Reads blocks of the pool. The sum goes into the first of them, which has no content yet. */
static cn_status measure_reads(cn_homes *hs)
{
    enum { MOST_BYTES = 1 << 30 };
    const cn_pools *p = &hs->o.local;
    cn_backend *be = hs->o.model_be;
    const size_t all = cn_kv_pool_bytes(&p->layout), bytes = all < MOST_BYTES ? all : MOST_BYTES;
    if (!be->mem_avail || !be->mem_sum) return CN_OK;
    for (int i = 0; i < 2; i++) {
        const double began_s = cn_now_s();
        CN_TRY(be->mem_sum(hs->o.model_stream, p->kv, bytes, p->kv));
        CN_TRY(be->stream_sync(hs->o.model_stream));
        hs->read_bytes_per_s = (double)bytes / (cn_now_s() - began_s);
    }
    return CN_OK;
}

/* Returns true, and says so, if a step of one request waits for its exchange, with any selector. */
static bool slows_steps(const cn_homes *hs, const cn_home *h)
{
    const cn_kv_home kind = kind_of(hs, h);
    const cn_exchange_rates rates =
        cn_exchange_rates_of(kind, hs->read_bytes_per_s, h->link_bytes_per_s);
    cn_exchange_cost costs[CN_N_SELECTORS];
    if (rates.read <= 0 || rates.tiles <= 0) return false;
    const uint32_t n = cn_exchange_costs(costs, hs->o.config, hs->o.model, hs->o.model_be, kind,
                                         hs->o.plan->block_tokens, &rates);
    for (uint32_t i = 0; i < n; i++)
        if (costs[i].hidden_batch > 0) return false;
    if (n > 0)
        cn_log(CN_LOG_WARN,
               "home auto: only requests too long for the device use %s: every step waits for its "
               "exchange of up to %.1f MB a request over a link of %.1f GB/s; lower --select-cap, "
               "or raise --packs",
               cn_kv_home_name(kind), (double)costs[0].step_bytes / 1e6,
               costs[0].link_bytes_per_s / 1e9);
    return n > 0;
}

uint32_t cn_homes_slow(cn_homes *hs)
{
    uint32_t slow = 0;
    if (!(cn_config_homes(hs->o.config) >> CN_HOME_DEVICE & 1)) return 0;
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        if (slows_steps(hs, h)) slow |= 1U << kind_of(hs, h);
    return slow;
}

cn_status cn_homes_measure_links(cn_homes *hs)
{
    CN_TRY(measure_reads(hs));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) CN_TRY(measure_link(hs, h));
    return CN_OK;
}

/* Digests the blocks of a put. Consecutive home blocks are one call. */
static cn_status digest(cn_homes *hs, cn_stream *s, const put_list *l)
{
    const cn_home *h = cn_home_of_seq(hs, l->seq);
    const uint32_t of_block = h->env.home.layout.block_tokens / CN_DIGEST_TILE;
    if (hs->o.plan->homes[kind_of(hs, h)].planes == 0) return CN_OK;
    for (uint32_t i = 0, n; i < l->n; i += n) {
        const uint32_t first = l->blocks[i].dst;
        for (n = 1; i + n < l->n && l->blocks[i + n].dst == first + n;) n++;
        const cn_digest_args a = {.pools = h->env.home,
                                  .tiles = h->tiles + (size_t)first * of_block,
                                  .n = n * of_block};
        CN_TRY(h->be->digest(s, &a));
    }
    return CN_OK;
}

static put_list list_of_prompt(const cn_sched_put *p)
{
    return (put_list){p->seq, p->blocks, p->n_blocks, true};
}

/* A first event copies the dense layers: it is the one that fills an exchange area. */
static put_list list_of_event(const cn_sched_event *ev)
{
    return (put_list){ev->seq, ev->puts, ev->n_puts, ev->n_exchange > 0};
}

/* ---- prompts ---- */

/* The home blocks may have been those of a sequence whose last exchange still reads them. */
cn_status cn_home_put(cn_homes *hs, const cn_sched_put *puts, uint32_t n)
{
    cn_backend *be = hs->o.model_be;
    bool any[CN_N_HOMES] = {false};
    if (n == 0) return CN_OK;
    CN_TRY(be->fence_record(hs->computed, hs->o.model_stream));
    CN_TRY(be->fence_wait(hs->puts, hs->computed));
    CN_TRY(cn_home_wait(hs, hs->puts));
    for (uint32_t i = 0; i < n; i++) {
        const put_list l = list_of_prompt(&puts[i]);
        CN_TRY(put(hs, hs->puts, &l));
        any[l.seq->kv.home] = true;
    }
    CN_TRY(be->fence_record(hs->copied, hs->puts));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        if (any[kind_of(hs, h)]) CN_TRY(h->be->fence_wait(h->digests, hs->copied));
    for (uint32_t i = 0; i < n; i++) {
        const put_list l = list_of_prompt(&puts[i]);
        CN_TRY(digest(hs, cn_home_of_seq(hs, l.seq)->digests, &l));
    }
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        if (any[kind_of(hs, h)]) CN_TRY(h->be->fence_record(h->sent, h->digests));
    return CN_OK;
}

cn_status cn_home_after_puts(cn_homes *hs)
{
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        CN_TRY(hs->o.model_be->fence_wait(hs->o.model_stream, h->sent));
    return CN_OK;
}

/* ---- compression events ---- */

/* Returns true when some event puts blocks into a home or fills an area from it; h NULL: any. */
static bool any_away(cn_homes *hs, const cn_home *h, cn_sched_event *const *events, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (events[i]->n_puts + events[i]->n_exchange > 0 &&
            (!h || cn_home_of_seq(hs, events[i]->seq) == h))
            return true;
    return false;
}

cn_status cn_home_before_events(cn_homes *hs, cn_sched_event *const *events, uint32_t n)
{
    cn_backend *be = hs->o.model_be;
    CN_TRY(cn_home_wait(hs, hs->o.event_stream));
    if (!any_away(hs, NULL, events, n)) return CN_OK;
    for (uint32_t i = 0; i < n; i++) {
        const put_list l = list_of_event(events[i]);
        if (events[i]->n_put_before > 0)
            CN_TRY(be->fence_wait(hs->o.event_stream, cn_home_of_seq(hs, l.seq)->sent));
        if (l.n > 0) CN_TRY(put(hs, hs->o.event_stream, &l));
    }
    CN_TRY(be->fence_record(hs->put, hs->o.event_stream));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        if (any_away(hs, h, events, n)) CN_TRY(h->be->fence_wait(h->fills, hs->put));
    for (uint32_t i = 0; i < n; i++) {
        const put_list l = list_of_event(events[i]);
        if (l.n > 0) CN_TRY(digest(hs, cn_home_of_seq(hs, l.seq)->fills, &l));
    }
    return CN_OK;
}

/* The row of the exchange that fills the area of one request, in arrays of its own. */
static void add_fill(const cn_sched_event *ev, cn_exchange_rows *r, char *arrays)
{
    const cn_seq *q = ev->seq;
    r->host = arrays + q->home_slot * cn_exchange_bytes(&r->sizes);
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
    cn_exchange_strides strides = {0};
    cn_exchange_strides_add(&strides, &q->kv, ev->home_len, r->block_tokens);
    cn_exchange_rows_begin(r, 1, strides);
    cn_exchange_rows_add(r, &row);
}

/* Fills the exchange area of one request: the exchange of the step before its first one. */
static cn_status fill_behind(cn_homes *hs, cn_home *h, const cn_exchange_rows *r)
{
    CN_TRY(cn_exchange_upload(&h->env, h->fills, r, &h->fill));
    for (uint32_t p = 0; p < hs->packs.n; p++) {
        CN_TRY(cn_exchange_predict(&h->env, h->fills, r, &h->fill, &hs->packs, p));
        CN_TRY(cn_exchange_rank(&h->env, h->fills, r, &h->fill, &hs->packs, p, true));
        CN_TRY(cn_exchange_push(&h->env, h->fills, r, &h->fill, &hs->packs, p));
    }
    return CN_OK;
}

static cn_status fill_home(cn_homes *hs, const cn_sched_event *ev)
{
    cn_home *h = cn_home_of_seq(hs, ev->seq);
    const bool ahead = cn_selector_of(ev->seq->kv.select)->ahead;
    cn_exchange_rows *r = ahead ? &h->ahead.fill_rows : &h->fill_rows;
    char *own = r->host;
    add_fill(ev, r, ahead ? h->ahead.fill_arrays : h->fill_arrays);
    const cn_status status = ahead ? cn_ahead_fill(hs, h, r) : fill_behind(hs, h, r);
    r->host = own;
    return status;
}

cn_status cn_home_after_events(cn_homes *hs, cn_sched_event *const *events, uint32_t n)
{
    if (!any_away(hs, NULL, events, n)) return CN_OK;
    CN_TRY(hs->o.model_be->fence_record(hs->compressed, hs->o.event_stream));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h))
        if (any_away(hs, h, events, n)) CN_TRY(h->be->fence_wait(h->fills, hs->compressed));
    for (uint32_t i = 0; i < n; i++)
        if (events[i]->n_exchange > 0) CN_TRY(fill_home(hs, events[i]));
    for (cn_home *h = next_home(hs, NULL); h; h = next_home(hs, h)) {
        if (!any_away(hs, h, events, n)) continue;
        CN_TRY(h->be->fence_record(h->filled, h->fills));
        CN_TRY(hs->o.model_be->fence_wait(hs->o.event_stream, h->filled));
    }
    return CN_OK;
}
