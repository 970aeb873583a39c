/* engine_memory.c - see engine_memory.h. */
#include "engine/engine_memory.h"

#include "compress/policy.h"
#include "engine/checkpoint/select_file.h"
#include "engine/engine_state.h"
#include "engine/home/home_memory.h"
#include "engine/select/select_memory.h"

/* ---- steps ---- */

/* Bytes of scratch for compression events. They depend on the shape of the pools, but not on the
 * number of blocks, so one block describes the pools. */
static uint64_t event_bytes(const cn_start_plan *p)
{
    const cn_config *c = p->config;
    const cn_model_config *m = p->model;
    if (!cn_policies_need(cn_config_policies(c)).capped) return 0;
    const uint32_t b = p->kv.block_tokens;
    const cn_pools pools = {.layout = cn_planner_layout(c, m, p->backend, 1, b),
                            .n_heads = m->n_heads,
                            .window = cn_policy_most_queries(&c->kv)};
    const uint32_t longest = (uint32_t)cn_round_up(cn_start_max_model_len(c, m), b);
    return p->backend->compress_scratch_bytes(p->backend, &pools, longest);
}

static void declare_flight(cn_start_plan *p, cn_flight *f)
{
    const uint64_t rows = cn_start_max_rows(p->config);
    const struct {
        const char *name;
        uint64_t row_bytes;
        void *device, *host;
    } arrays[] = {
        {"sampled tokens", sizeof *f->tokens, &f->tokens, &f->host_tokens},
        {"log-probabilities", sizeof *f->token_logprobs, &f->token_logprobs, &f->host_logprobs},
        {"top log-probabilities", CN_MAX_LOGPROBS * sizeof *f->top, &f->top, &f->host_top},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const uint64_t bytes = rows * arrays[i].row_bytes;
        cn_start_add(p, arrays[i].name, CN_PART_STEPS, bytes, arrays[i].device);
        cn_start_add(p, arrays[i].name, CN_PART_HOST, bytes, arrays[i].host);
    }
}

static void declare_sampling(cn_start_plan *p, cn_engine *e)
{
    const cn_config *c = p->config;
    const uint32_t rows = cn_start_max_rows(c), vocab = p->model->vocab;
    cn_start_add(p, "token counts", CN_PART_STEPS,
                 (uint64_t)c->max_num_seqs * vocab * sizeof *e->counts, &e->counts);
    cn_start_add(p, "tokens to count", CN_PART_STEPS,
                 (uint64_t)cn_start_max_model_len(c, p->model) * sizeof *e->count_tokens,
                 &e->count_tokens);
    cn_start_add(p, "sampling scratch", CN_PART_STEPS,
                 p->backend->sample_scratch_bytes(p->backend, rows, vocab), &e->sample_scratch);
    cn_start_add(p, "token masks", CN_PART_HOST,
                 (uint64_t)rows * cn_ceil_div(vocab, 32) * sizeof *e->masks, &e->masks);
}

static void declare_steps(cn_start_plan *p, cn_engine *e)
{
    const cn_model_config *m = p->model;
    cn_start_add(p, "weights", CN_PART_WEIGHTS, cn_weights_bytes(m, p->backend),
                 &e->weights_memory);
    cn_draft_declare(p, &e->draft);
    cn_model_declare(p, &e->workspace);
    cn_batch_declare(p, &e->batch_memory);
    declare_sampling(p, e);
    cn_start_add(p, "compression scratch", CN_PART_STEPS, event_bytes(p), &e->compress_scratch);
    const uint64_t before = cn_start_part_bytes(p, CN_PART_STEPS);
    cn_select_declare(p, &e->select, &e->pools.digest);
    p->select_bytes = cn_start_part_bytes(p, CN_PART_STEPS) - before;
    cn_homes_declare(p, &e->homes);
    for (size_t i = 0; i < CN_FLIGHTS; i++) {
        declare_flight(p, &e->flights[i]);
        cn_home_flight_declare(p, &e->flights[i].homes);
    }
    cn_prompt_piece_declare(p, &e->piece);
}

/* ---- the KV memory ---- */

static void declare_pools(cn_start_plan *p, cn_pools *pools)
{
    const struct {
        const char *name;
        void *slot;
    } planes[CN_N_BLOCK_PLANES] = {
        [CN_PLANE_KV] = {"keys and values", &pools->kv},
        [CN_PLANE_SCORE] = {"global scores", &pools->score},
        [CN_PLANE_ORIGIN] = {"positions", &pools->origin},
        [CN_PLANE_LABELS] = {"labels", &pools->digest.labels},
        [CN_PLANE_SCALES] = {"label scales", &pools->digest.scales},
        [CN_PLANE_BOUNDS_16] = {"bounds of pages", &pools->digest.bounds_16},
        [CN_PLANE_BOUNDS_64] = {"bounds of tiles", &pools->digest.bounds_64},
        [CN_PLANE_DRAFT] = {"keys of the retrieval head", &pools->draft},
        [CN_PLANE_STATE] = {"states of the retrieval head", &pools->state},
    };
    const cn_memory_plan *kv = &p->kv;
    const cn_kv_layout l = cn_planner_layout(p->config, p->model, p->backend, kv->n_blocks,
                                             kv->block_tokens);
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++) {
        const cn_block_plane plane = (cn_block_plane)i;
        const bool draft = plane == CN_PLANE_DRAFT || plane == CN_PLANE_STATE;
        const uint64_t n_blocks = kv->n_blocks + (draft ? (uint64_t)kv->n_draft_blocks : 0);
        const uint64_t n = cn_block_plane_layers(&l, plane) * n_blocks;
        if ((kv->planes | 1U << CN_PLANE_KV) >> i & 1)
            cn_start_add(p, planes[i].name, CN_PART_KV, n * cn_block_plane_bytes(&l, plane),
                         planes[i].slot);
    }
    cn_start_add(p, "query slots", CN_PART_KV, kv->n_query_slots * kv->query_slot_bytes,
                 &pools->q_window);
}

static void declare_kv(cn_start_plan *p, cn_engine *e)
{
    declare_pools(p, &e->pools);
    cn_start_add(p, "swap space", CN_PART_HOST, p->kv.swap_bytes, &e->swap_memory);
    cn_homes_declare_kv(p, &e->homes);
}

/* ---- sizes ---- */

void cn_engine_size_pools(cn_pools *p, const cn_config *c, const cn_model_config *m,
                          const cn_backend *be, const cn_memory_plan *kv)
{
    p->layout = cn_planner_layout(c, m, be, kv->n_blocks, kv->block_tokens);
    p->n_heads = m->n_heads;
    p->n_query_slots = kv->n_query_slots;
    p->window = kv->window_tokens;
    p->act_dtype = be->act_dtype;
    p->scale = m->latent.rank > 0 ? cn_model_config_scale(m) : 0;
    p->first_head = m->rank * m->n_kv_heads;
}

void cn_engine_size_select(cn_select_scratch *s, cn_pools *p, const cn_config *c,
                           const cn_model_config *m, uint32_t block_tokens)
{
    const cn_select_scratch sizes = cn_select_scratch_of(c, m, block_tokens);
    s->room = sizes.room;
    s->list_stride = sizes.list_stride;
    s->tile_stride = sizes.tile_stride;
    p->digest.n_channels = cn_select_channels_each(m);
}

/* ---- the plan ---- */

/* Its members have the addresses of slots in plans that are only read. Nothing is written to it. */
static cn_engine no_engine;

cn_status cn_engine_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                              cn_backend *be, cn_engine *e)
{
    cn_start_plan p = cn_start_plan_begin(c, m, be);
    cn_engine *const to = e ? e : &no_engine;
    declare_steps(&p, to);
    CN_TRY(cn_start_divide(&p));
    declare_kv(&p, to);
    for (uint32_t i = 0; !e && i < p.n_items; i++) p.items[i].slot = NULL;
    *out = p;
    return CN_OK;
}

void cn_engine_plan_rank(cn_start_plan *out, const cn_config *c, const cn_memory_plan *kv,
                         cn_rank *k)
{
    cn_start_plan p = cn_start_plan_begin(c, &k->config, k->backend);
    const uint64_t weights = cn_weights_bytes(&k->config, k->backend);
    const uint64_t rows = cn_start_max_rows(c) * sizeof *k->more_rows;
    cn_start_add(&p, "weights", CN_PART_WEIGHTS, weights, &k->weights_memory);
    cn_model_declare(&p, &k->workspace);
    cn_batch_declare(&p, &k->batch_memory);
    cn_start_add(&p, "compression scratch", CN_PART_STEPS, event_bytes(&p), &k->compress_scratch);
    cn_select_declare(&p, &k->select, &k->pools.digest);
    cn_start_add(&p, "prompt scores", CN_PART_STEPS, rows, &k->more_rows);
    p.kv = *kv;
    declare_pools(&p, &k->pools);
    cn_start_add(&p, "swap space", CN_PART_HOST, kv->swap_bytes, &k->swap_memory);
    *out = p;
}

cn_status cn_engine_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                 cn_backend *be)
{
    cn_start_plan p = cn_start_plan_begin(c, m, be);
    declare_steps(&p, &no_engine);
    return cn_start_wanted_bytes(&p, bytes);
}

/* ---- the device ---- */

/* What determines the device memory that an engine takes at start. */
typedef struct start_sizes {
    const cn_config *config;
    const cn_model_config *model;
    uint64_t least_bytes;
} start_sizes;

/* Before memory is taken and ops are timed. */
static cn_status check_backend(const void *ctx, const cn_backend *be)
{
    const start_sizes *s = ctx;
    CN_TRY(cn_backend_check_model(be, s->model));
    CN_TRY(cn_backend_check_ranks(be, s->config));
    return cn_backend_check_kv(be, s->config, s->model);
}

static cn_status wanted_bytes(const void *ctx, cn_backend *be, uint64_t *bytes)
{
    const start_sizes *s = ctx;
    CN_TRY(cn_engine_wanted_bytes(bytes, s->config, s->model, be));
    if (*bytes > 0 && *bytes < s->least_bytes) *bytes = s->least_bytes;
    return CN_OK;
}

cn_status cn_engine_open_backend(cn_backend **out, const cn_config *c, const cn_model_config *m,
                                 uint64_t least_bytes, cn_device_choice *choice)
{
    const start_sizes sizes = {c, m, least_bytes};
    const cn_device_needs needs = {
        .check = check_backend,
        .bytes = wanted_bytes,
        .ctx = &sizes,
        .score_layers = cn_config_away(c) >> CN_HOME_HOST & 1 ? cn_pack_most_layers(c, m) : 0,
    };
    return cn_backend_open(out, c, m, &needs, choice);
}
