/* home_memory.c - see home_memory.h. */
#include "engine/home/home_memory.h"

#include "compress/selector.h"
#include "engine/select/select_memory.h"
#include "engine/start/device_choice.h"

/* The part of the arrays of exchanges. */
static cn_memory_part part_of(cn_kv_home home)
{
    return cn_home_kind_of(home)->has_device ? CN_PART_CACHE : CN_PART_STEPS;
}

static cn_exchange_sizes sizes_of(const cn_start_plan *p, cn_kv_home home, bool fill, bool ahead)
{
    return cn_exchange_sizes_of(p->config, p->model, home, p->kv.block_tokens, fill, ahead);
}

/* Memory of an exchange, for steps or for the fills of events. */
static void declare_exchange(cn_start_plan *p, cn_exchange_scratch *x, cn_kv_home home, bool fill)
{
    const cn_model_config *m = p->model;
    const cn_memory_part part = part_of(home);
    const cn_exchange_sizes s = sizes_of(p, home, fill, false);
    const uint64_t scores = (uint64_t)s.room * s.pack_layers, halves = fill ? 1 : 2;
    const cn_kv_layout l = cn_planner_layout(p->config, m, p->backend, 1, p->kv.block_tokens);
    const uint64_t q_bytes =
        (uint64_t)m->n_heads * m->head_dim * cn_dtype_bytes(p->backend->act_dtype);
    cn_start_add(p, fill ? "fill arrays" : "exchange arrays", part, halves * cn_exchange_bytes(&s),
                 &x->arrays);
    cn_start_add(p, fill ? "fill queries" : "exchange queries", part,
                 2 * cn_exchange_queries(&s) * q_bytes, &x->predicted);
    cn_start_add(p, fill ? "fill queries of the ring" : "exchange queries of the ring", part,
                 2 * cn_exchange_raw_queries(&s, &l, m->n_heads) *
                     cn_dtype_bytes(p->backend->act_dtype),
                 &x->raw_predicted);
    cn_start_add(p, fill ? "fill scores" : "exchange scores", part,
                 scores * m->n_kv_heads * sizeof(uint16_t), &x->score);
    cn_start_add(p, fill ? "fill logits" : "exchange logits", part,
                 scores * cn_select_logit_bytes(p), &x->logits);
    cn_start_add(p, fill ? "fill moves" : "exchange moves", part,
                 2 * cn_exchange_moves(&s, m->n_kv_heads) * sizeof(cn_move), &x->moves);
    cn_start_add(p, fill ? "fill counts" : "exchange counts", part,
                 halves * 2 * cn_exchange_counts(&s, m->n_kv_heads) * sizeof(uint32_t), &x->counts);
}

/* The same for exchanges ahead: one layer, one turn, no queries of their own. */
static void declare_ahead(cn_start_plan *p, cn_exchange_scratch *x, cn_kv_home home, bool fill)
{
    const cn_exchange_sizes s = sizes_of(p, home, fill, true);
    const uint64_t hk = p->model->n_kv_heads;
    cn_start_add(p, fill ? "draft fill arrays" : "draft exchange arrays", CN_PART_STEPS,
                 cn_exchange_bytes(&s), &x->arrays);
    cn_start_add(p, fill ? "draft fill scores" : "draft exchange scores", CN_PART_STEPS,
                 s.room * hk * sizeof(uint16_t), &x->score);
    if (!fill)
        cn_start_add(p, "draft exchange logits", CN_PART_STEPS,
                     s.room * (uint64_t)cn_select_logit_bytes(p), &x->logits);
    cn_start_add(p, fill ? "draft fill moves" : "draft exchange moves", CN_PART_STEPS,
                 cn_exchange_moves(&s, (uint32_t)hk) * sizeof(cn_move), &x->moves);
    cn_start_add(p, fill ? "draft fill counts" : "draft exchange counts", CN_PART_STEPS,
                 2 * cn_exchange_counts(&s, (uint32_t)hk) * sizeof(uint32_t), &x->counts);
}

/* Adds what exchanges ahead with one home need, on the device of the model. */
static void declare_home_ahead(cn_start_plan *p, cn_home_ahead *a, cn_kv_home home)
{
    const cn_exchange_sizes s = sizes_of(p, home, true, true);
    if (s.max_rows == 0) return;
    declare_ahead(p, &a->step, home, false);
    declare_ahead(p, &a->fill, home, true);
    cn_start_add(p, "draft exchanged tokens", CN_PART_STEPS,
                 (uint64_t)p->config->max_num_seqs * p->model->n_kv_heads * s.move_stride *
                     sizeof *a->env.chosen,
                 &a->env.chosen);
}

/* Adds what exchanges with one home need where it is, if it is declared. */
static void declare_home_exchanges(cn_start_plan *p, cn_home *h, cn_kv_home home)
{
    const cn_config *c = p->config;
    const cn_model_config *m = p->model;
    const uint64_t entries = sizes_of(p, home, true, false).move_stride;
    if (entries == 0) return;
    declare_exchange(p, &h->step, home, false);
    declare_exchange(p, &h->fill, home, true);
    cn_start_add(p, "exchanged tokens", part_of(home),
                 (uint64_t)m->n_layers * c->max_num_seqs * m->n_kv_heads * entries *
                     sizeof *h->env.chosen,
                 &h->env.chosen);
    if (cn_selectors_need(cn_config_selectors(c)).labels)
        cn_select_declare_channels(p, part_of(home), "label channels of the home",
                                   "label offsets of the home", &h->env.home.digest);
}

void cn_homes_declare(cn_start_plan *p, cn_homes *hs)
{
    for (int h = 0; h < CN_N_HOMES; h++) {
        declare_home_exchanges(p, &hs->at[h], (cn_kv_home)h);
        declare_home_ahead(p, &hs->at[h].ahead, (cn_kv_home)h);
    }
}

void cn_home_flight_declare(cn_start_plan *p, cn_home_flight *f)
{
    for (int h = 0; h < CN_N_HOMES; h++)
        for (int w = 0; w < CN_HOME_WAYS; w++) {
            const cn_exchange_sizes s = sizes_of(p, (cn_kv_home)h, false, w == CN_HOME_AHEAD);
            uint32_t **counts = &f->at[h].by[w].counts;
            cn_start_add(p, "exchange counts", CN_PART_HOST,
                         2 * cn_exchange_counts(&s, p->model->n_kv_heads) * sizeof **counts,
                         counts);
        }
}

/* The space of one home. */
static void declare_space(cn_start_plan *p, cn_home *h, cn_kv_home home)
{
    cn_pools *pools = &h->env.home;
    const struct {
        const char *name;
        void *slot;
    } planes[CN_N_BLOCK_PLANES] = {
        [CN_PLANE_KV] = {"home space", &pools->kv},
        [CN_PLANE_LABELS] = {"labels of the home", &pools->digest.labels},
        [CN_PLANE_SCALES] = {"label scales of the home", &pools->digest.scales},
        [CN_PLANE_BOUNDS_64] = {"bounds of the home", &pools->digest.bounds_64},
    };
    const cn_home_plan *plan = &p->kv.homes[home];
    const cn_model_config *m = p->model;
    const bool has_device = cn_home_kind_of(home)->has_device;
    if (plan->n_blocks == 0) return;
    const cn_kv_layout l =
        cn_planner_layout(p->config, m, p->backend, plan->n_blocks, p->kv.block_tokens);
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++) {
        if (!((plan->planes | 1U << CN_PLANE_KV) >> i & 1)) continue;
        /* Host memory is too slow to be ranked. */
        const cn_memory_part part = has_device         ? CN_PART_CACHE
                                    : i == CN_PLANE_KV ? CN_PART_HOST
                                                       : CN_PART_KV;
        cn_start_add(p, planes[i].name, part,
                     (uint64_t)m->n_layers * plan->n_blocks *
                         cn_block_plane_bytes(&l, (cn_block_plane)i),
                     planes[i].slot);
    }
}

void cn_homes_declare_kv(cn_start_plan *p, cn_homes *hs)
{
    uint64_t plane_bytes = 0;
    for (int h = 0; h < CN_N_HOMES; h++) {
        declare_space(p, &hs->at[h], (cn_kv_home)h);
        plane_bytes += p->kv.homes[h].plane_bytes;
    }
    cn_start_add(p, "dense layers of homes", CN_PART_KV, plane_bytes, &hs->plane.kv);
}

cn_status cn_home_cache_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                              cn_backend *be)
{
    cn_home h = {0}; /* has the addresses of slots */
    cn_start_plan p = cn_start_plan_begin(c, m, be);
    CN_TRY(cn_home_plan_make(&p.kv.homes[CN_HOME_PEER], c, m, be));
    declare_home_exchanges(&p, &h, CN_HOME_PEER);
    declare_space(&p, &h, CN_HOME_PEER);
    *bytes = cn_start_part_bytes(&p, CN_PART_CACHE);
    return CN_OK;
}

/* ---- the cache device ---- */

typedef struct cache_sizes {
    const cn_config *config;
    const cn_model_config *model;
} cache_sizes;

static cn_status check_cache(const void *ctx, const cn_backend *be)
{
    const cache_sizes *s = ctx;
    return cn_backend_check_kv(be, s->config, s->model);
}

static cn_status cache_bytes(const void *ctx, cn_backend *be, uint64_t *bytes)
{
    const cache_sizes *s = ctx;
    return cn_home_cache_bytes(bytes, s->config, s->model, be);
}

cn_status cn_home_open_cache(cn_backend **out, const cn_config *c, const cn_model_config *m)
{
    const cache_sizes sizes = {c, m};
    const cn_device_needs needs = {
        .check = check_cache,
        .bytes = cache_bytes,
        .ctx = &sizes,
        .score_layers = cn_pack_most_layers(c, m),
    };
    return cn_backend_open_cache(out, c, m, &needs);
}
