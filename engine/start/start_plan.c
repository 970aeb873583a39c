/* start_plan.c - see start_plan.h. */
#include "engine/start/start_plan.h"

#include "compress/policy.h"
#include "engine/checkpoint/select_file.h"
#include "engine/engine_state.h"
#include "engine/start/planner.h"
#include "engine/step_graph.h"

uint32_t cn_start_max_rows(const cn_config *c)
{
    return (uint32_t)cn_round_up(c->max_num_seqs, CN_GRAPH_ROWS_STEP);
}

uint32_t cn_start_max_tokens(const cn_config *c)
{
    return cn_max_u32(c->max_num_batched_tokens, cn_start_max_rows(c));
}

uint32_t cn_start_max_model_len(const cn_config *c, const cn_model_config *m)
{
    return c->max_model_len ? c->max_model_len : m->max_position;
}

cn_status cn_start_check_model_len(const cn_config *c, const cn_model_config *m)
{
    const uint32_t most = cn_start_max_model_len(c, m), wanted = c->sampling.max_tokens;
    if (c->max_model_len <= m->max_position && wanted < most) return CN_OK;
    if (c->max_model_len <= m->max_position)
        return cn_fail(CN_ERR_ARG,
                       "--max-tokens %u: %s allows %u tokens of prompt and output: lower it below "
                       "that",
                       wanted, c->max_model_len ? "--max-model-len" : "config.json", most);
    return cn_fail(CN_ERR_ARG,
                   "--max-model-len %u: config.json allows at most %u tokens of prompt and output "
                   "(max_position_embeddings): lower it, or set rope_scaling there if the model "
                   "supports YaRN",
                   c->max_model_len, m->max_position);
}

cn_batch_opts cn_start_batch_opts(const cn_config *c, const cn_model_config *m,
                                  uint32_t block_tokens, uint32_t window_tokens)
{
    return (cn_batch_opts){
        .max_tokens = cn_start_max_tokens(c),
        .max_seqs = cn_start_max_rows(c),
        .max_blocks_per_seq = (uint32_t)cn_ceil_div(cn_start_max_model_len(c, m), block_tokens),
        .max_bans = c->max_num_seqs * (2 * CN_MAX_EOS + CN_MAX_STOP_TOKEN_IDS),
        .max_biases = c->max_num_seqs * CN_MAX_LOGIT_BIASES,
        .block_tokens = block_tokens,
        .window_tokens = window_tokens,
        .select_room = cn_start_select_scratch(c, m, block_tokens).room,
        .select_seed = (uint32_t)c->seed,
        .selectors = cn_config_local_selectors(c),
        .max_home_blocks = cn_config_away(c) && c->select_dense_layers > 0
                               ? (uint32_t)cn_ceil_div(cn_start_max_model_len(c, m), block_tokens)
                               : 0,
    };
}

cn_status cn_start_check_selectors(const cn_config *c, const cn_model_config *m,
                                   uint32_t block_tokens)
{
    if (!cn_selectors_need(cn_config_selectors(c)).any) return CN_OK;
    if (block_tokens < CN_DIGEST_TILE)
        return cn_fail(CN_ERR_ARG,
                       "--block-size %u: selectors expect at least %u; raise it, or leave out "
                       "--kv-select and --kv-selectors",
                       block_tokens, (unsigned)CN_DIGEST_TILE);
    if (c->select_dense_layers >= m->n_layers)
        return cn_fail(CN_ERR_ARG,
                       "--select-dense-layers %u: expected fewer than the model's %u layers",
                       c->select_dense_layers, m->n_layers);
    return CN_OK;
}

cn_select_scratch cn_start_select_scratch(const cn_config *c, const cn_model_config *m,
                                          uint32_t block_tokens)
{
    const cn_select_limits l = {
        .selectors = cn_config_local_selectors(c),
        .max_tokens = c->kv.select_tokens,
        .max_tiles = c->kv.select_tiles,
        .max_sinks = c->kv.sink_tokens,
        .block_tokens = block_tokens,
        .max_rows = cn_start_max_rows(c),
        .max_model_len = cn_start_max_model_len(c, m),
    };
    return cn_select_scratch_sizes(&l);
}

/* ---- the list ---- */

/* Inputs of the sizes. kv is NULL until the KV memory is divided. */
typedef struct sizes {
    const cn_config *c;
    const cn_model_config *m;
    cn_backend *be;
    const cn_memory_plan *kv;
} sizes;

static void add(cn_start_plan *p, const cn_backend *be, const char *name, cn_memory_part part,
                uint64_t bytes, size_t engine_at)
{
    CN_ASSERT(p->n_items < CN_MAX_MEMORY_ITEMS);
    if (bytes == 0) return;
    p->items[p->n_items++] =
        (cn_memory_item){name, part, cn_round_up(bytes, be->mem_align), engine_at};
}

/* Bytes of scratch for compression events. They depend on the shape of the pools, but not on the
 * number of blocks, so one block describes the pools. */
static uint64_t event_bytes(const sizes *z)
{
    const cn_config *c = z->c;
    const cn_model_config *m = z->m;
    if (!cn_policies_need(cn_config_policies(c)).capped) return 0;
    const uint32_t b = cn_planner_block_tokens(c, z->be);
    const cn_pools p = {
        .layout = cn_kv_layout_make(m->n_layers, 1, m->n_kv_heads, b, m->head_dim, z->be->kv_dtype),
        .n_heads = m->n_heads,
        .window = c->kv.window_tokens};
    const uint32_t longest = (uint32_t)cn_round_up(cn_start_max_model_len(c, m), b);
    return z->be->compress_scratch_bytes(z->be, &p, longest);
}

static void add_flights(cn_start_plan *p, const sizes *z)
{
    const uint64_t rows = cn_start_max_rows(z->c);
    const struct {
        const char *name;
        uint64_t row_bytes;
        size_t device_at, host_at; /* in a cn_flight */
    } arrays[] = {
        {"sampled tokens", sizeof(uint32_t), offsetof(cn_flight, tokens),
         offsetof(cn_flight, host_tokens)},
        {"log-probabilities", sizeof(float), offsetof(cn_flight, token_logprobs),
         offsetof(cn_flight, host_logprobs)},
        {"top log-probabilities", CN_MAX_LOGPROBS * sizeof(cn_logprob), offsetof(cn_flight, top),
         offsetof(cn_flight, host_top)},
    };
    for (size_t i = 0; i < CN_FLIGHTS; i++) {
        const size_t flight_at = offsetof(cn_engine, flights) + i * sizeof(cn_flight);
        for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) {
            const uint64_t bytes = rows * arrays[k].row_bytes;
            add(p, z->be, arrays[k].name, CN_PART_STEPS, bytes, flight_at + arrays[k].device_at);
            add(p, z->be, arrays[k].name, CN_PART_HOST, bytes, flight_at + arrays[k].host_at);
        }
    }
}

static void add_prompt_piece(cn_start_plan *p, const sizes *z)
{
    const uint64_t rows = cn_start_max_rows(z->c);
    const struct {
        uint64_t row_bytes;
        size_t device_at, host_at; /* in a cn_prompt_piece */
    } arrays[] = {
        {sizeof(uint32_t), offsetof(cn_prompt_piece, rows), offsetof(cn_prompt_piece, host_rows)},
        {sizeof(cn_sample_row), offsetof(cn_prompt_piece, samples),
         offsetof(cn_prompt_piece, host_samples)},
        {sizeof(float), offsetof(cn_prompt_piece, logprobs),
         offsetof(cn_prompt_piece, host_logprobs)},
        {sizeof(uint32_t), offsetof(cn_prompt_piece, ranks),
         offsetof(cn_prompt_piece, host_ranks)},
        {CN_MAX_LOGPROBS * sizeof(cn_logprob), offsetof(cn_prompt_piece, top),
         offsetof(cn_prompt_piece, host_top)},
    };
    const size_t piece_at = offsetof(cn_engine, piece);
    add(p, z->be, "prompt scores", CN_PART_STEPS, rows * sizeof(uint32_t),
        piece_at + offsetof(cn_prompt_piece, tokens));
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const uint64_t bytes = rows * arrays[i].row_bytes;
        add(p, z->be, "prompt scores", CN_PART_STEPS, bytes, piece_at + arrays[i].device_at);
        add(p, z->be, "prompt scores", CN_PART_HOST, bytes, piece_at + arrays[i].host_at);
    }
}

/* Bytes of the logits of a candidate, all kv heads. */
static uint64_t logit_bytes(const sizes *z)
{
    const cn_model_config *m = z->m;
    return (uint64_t)m->n_kv_heads * cn_logit_row(m->n_heads / m->n_kv_heads) * z->be->logit_bytes;
}

static void add_selection(cn_start_plan *p, const sizes *z)
{
    const cn_model_config *m = z->m;
    const cn_selector_needs needs = cn_selectors_need(cn_config_local_selectors(z->c));
    const cn_select_scratch s =
        cn_start_select_scratch(z->c, m, cn_planner_block_tokens(z->c, z->be));
    const uint64_t rows = cn_start_max_rows(z->c), q_elems = (uint64_t)m->n_heads * m->head_dim;
    const uint32_t n_selecting = m->n_layers - cn_min_u32(z->c->select_dense_layers, m->n_layers);
    const size_t at = offsetof(cn_engine, select);
    add(p, z->be, "selection scores", CN_PART_STEPS,
        (uint64_t)s.room * m->n_kv_heads * sizeof(uint16_t),
        at + offsetof(cn_select_scratch, score));
    add(p, z->be, "selection logits", CN_PART_STEPS, s.room * logit_bytes(z),
        at + offsetof(cn_select_scratch, logits));
    add(p, z->be, "selected tokens", CN_PART_STEPS,
        rows * m->n_kv_heads * s.list_stride * sizeof(uint32_t),
        at + offsetof(cn_select_scratch, list));
    add(p, z->be, "selected tiles", CN_PART_STEPS,
        rows * m->n_kv_heads * s.tile_stride * sizeof(uint32_t),
        at + offsetof(cn_select_scratch, tiles));
    if (needs.slots)
        add(p, z->be, "predicted queries", CN_PART_STEPS,
            rows * n_selecting * q_elems * cn_dtype_bytes(z->be->act_dtype),
            at + offsetof(cn_select_scratch, predicted));
    if (!needs.labels) return;
    const uint64_t n_channels = cn_select_channels_n(m);
    add(p, z->be, "label channels", CN_PART_STEPS, n_channels,
        offsetof(cn_engine, pools.digest.channels));
    add(p, z->be, "label offsets", CN_PART_STEPS, n_channels * sizeof(float),
        offsetof(cn_engine, pools.digest.offsets));
}

/* The offset of a member of a home in cn_engine. */
#define HOME_AT(home, member) \
    (offsetof(cn_engine, homes.at) + (size_t)(home) * sizeof(cn_home) + offsetof(cn_home, member))

/* Memory of an exchange, for steps or for the fills of events. */
static void add_exchange(cn_start_plan *p, const sizes *z, cn_kv_home home, bool fill)
{
    const cn_model_config *m = z->m;
    const size_t at = fill ? HOME_AT(home, fill) : HOME_AT(home, step);
    const cn_memory_part part = home == CN_HOME_PEER ? CN_PART_CACHE : CN_PART_STEPS;
    const cn_exchange_sizes s =
        cn_exchange_sizes_of(z->c, m, home, cn_planner_block_tokens(z->c, z->be), fill);
    const uint64_t scores = (uint64_t)s.room * s.pack_layers, halves = fill ? 1 : 2;
    const uint64_t q_bytes =
        (uint64_t)m->n_heads * m->head_dim * cn_dtype_bytes(z->be->act_dtype);
    add(p, z->be, fill ? "fill arrays" : "exchange arrays", part,
        halves * cn_exchange_bytes(&s), at + offsetof(cn_exchange_scratch, arrays));
    add(p, z->be, fill ? "fill queries" : "exchange queries", part,
        2 * cn_exchange_queries(&s) * q_bytes,
        at + offsetof(cn_exchange_scratch, predicted));
    add(p, z->be, fill ? "fill scores" : "exchange scores", part,
        scores * m->n_kv_heads * sizeof(uint16_t), at + offsetof(cn_exchange_scratch, score));
    add(p, z->be, fill ? "fill logits" : "exchange logits", part,
        scores * logit_bytes(z), at + offsetof(cn_exchange_scratch, logits));
    add(p, z->be, fill ? "fill moves" : "exchange moves", part,
        2 * cn_exchange_moves(&s, m->n_kv_heads) * sizeof(cn_move),
        at + offsetof(cn_exchange_scratch, moves));
    add(p, z->be, fill ? "fill counts" : "exchange counts", part,
        halves * 2 * cn_exchange_counts(&s, m->n_kv_heads) * sizeof(uint32_t),
        at + offsetof(cn_exchange_scratch, counts));
}

/* What exchanges with a home need, besides the home space. */
static void add_home_steps(cn_start_plan *p, const sizes *z, cn_kv_home home)
{
    const cn_config *c = z->c;
    const cn_model_config *m = z->m;
    const cn_memory_part part = home == CN_HOME_PEER ? CN_PART_CACHE : CN_PART_STEPS;
    if (!(cn_config_away(c) >> home & 1)) return;
    const uint32_t b = cn_planner_block_tokens(c, z->be);
    const cn_exchange_sizes step = cn_exchange_sizes_of(c, m, home, b, false);
    const uint64_t entries = cn_exchange_sizes_of(c, m, home, b, true).move_stride;
    add_exchange(p, z, home, false);
    add_exchange(p, z, home, true);
    add(p, z->be, "exchanged tokens", part,
        (uint64_t)m->n_layers * c->max_num_seqs * m->n_kv_heads * entries * sizeof(uint32_t),
        HOME_AT(home, env.chosen));
    if (cn_selectors_need(cn_config_selectors(c)).labels) {
        const uint64_t n_channels = cn_select_channels_n(m);
        add(p, z->be, "label channels of the home", part, n_channels,
            HOME_AT(home, env.home.digest.channels));
        add(p, z->be, "label offsets of the home", part, n_channels * sizeof(float),
            HOME_AT(home, env.home.digest.offsets));
    }
    for (size_t i = 0; i < CN_FLIGHTS; i++)
        add(p, z->be, "exchange counts", CN_PART_HOST,
            2 * cn_exchange_counts(&step, m->n_kv_heads) * sizeof(uint32_t),
            offsetof(cn_engine, flights) + i * sizeof(cn_flight) + offsetof(cn_flight, away) +
                (size_t)home * sizeof(cn_home_step) + offsetof(cn_home_step, counts));
}

static void add_steps(cn_start_plan *p, const sizes *z)
{
    const cn_config *c = z->c;
    const cn_model_config *m = z->m;
    cn_backend *be = z->be;
    const uint64_t rows = cn_start_max_rows(c), max_len = cn_start_max_model_len(c, m);
    const cn_batch_opts batch = cn_start_batch_opts(c, m, cn_planner_block_tokens(c, be), 0);
    add(p, be, "batch arrays", CN_PART_STEPS, cn_batch_device_bytes(&batch),
        offsetof(cn_engine, batch_memory));
    add(p, be, "token counts", CN_PART_STEPS,
        (uint64_t)c->max_num_seqs * m->vocab * sizeof(uint16_t), offsetof(cn_engine, counts));
    add(p, be, "tokens to count", CN_PART_STEPS, max_len * sizeof(uint32_t),
        offsetof(cn_engine, count_tokens));
    add(p, be, "sampling scratch", CN_PART_STEPS,
        be->sample_scratch_bytes(be, (uint32_t)rows, m->vocab),
        offsetof(cn_engine, sample_scratch));
    add(p, be, "token masks", CN_PART_HOST, rows * cn_ceil_div(m->vocab, 32) * sizeof(uint32_t),
        offsetof(cn_engine, masks));
    add(p, be, "compression scratch", CN_PART_STEPS, event_bytes(z),
        offsetof(cn_engine, compress_scratch));
    const uint64_t before = cn_start_part_bytes(p, CN_PART_STEPS);
    add_selection(p, z);
    p->select_bytes = cn_start_part_bytes(p, CN_PART_STEPS) - before;
    for (int h = 0; h < CN_N_HOMES; h++) add_home_steps(p, z, (cn_kv_home)h);
    add_flights(p, z);
    add_prompt_piece(p, z);
}

/* The item of each block plane. */
static const struct {
    const char *name;
    size_t engine_at;
} block_planes[CN_N_BLOCK_PLANES] = {
    [CN_PLANE_KV] = {"keys and values", offsetof(cn_engine, pools.kv)},
    [CN_PLANE_SCORE] = {"global scores", offsetof(cn_engine, pools.score)},
    [CN_PLANE_ORIGIN] = {"positions", offsetof(cn_engine, pools.origin)},
    [CN_PLANE_LABELS] = {"labels", offsetof(cn_engine, pools.digest.labels)},
    [CN_PLANE_SCALES] = {"label scales", offsetof(cn_engine, pools.digest.scales)},
    [CN_PLANE_BOUNDS_16] = {"bounds of pages", offsetof(cn_engine, pools.digest.bounds_16)},
    [CN_PLANE_BOUNDS_64] = {"bounds of tiles", offsetof(cn_engine, pools.digest.bounds_64)},
};
/* The item of each block plane of a home space. */
static const struct {
    const char *name;
    size_t home_at; /* in cn_home */
} home_planes[CN_N_BLOCK_PLANES] = {
    [CN_PLANE_KV] = {"home space", offsetof(cn_home, env.home.kv)},
    [CN_PLANE_LABELS] = {"labels of the home", offsetof(cn_home, env.home.digest.labels)},
    [CN_PLANE_SCALES] = {"label scales of the home",
                         offsetof(cn_home, env.home.digest.scales)},
    [CN_PLANE_BOUNDS_64] = {"bounds of the home",
                            offsetof(cn_home, env.home.digest.bounds_64)},
};

/* Most items of CN_PART_KV: those of blocks and slots; of a home its digests and dense layers. */
static uint64_t most_kv_items(const cn_config *c)
{
    const uint64_t n = CN_N_BLOCK_PLANES + CN_N_SLOT_PLANES;
    return cn_config_away(c) ? n + CN_N_BLOCK_PLANES : n;
}

static void add_home(cn_start_plan *p, const sizes *z, cn_kv_home home)
{
    const cn_home_plan *h = &z->kv->homes[home];
    const cn_model_config *m = z->m;
    if (h->n_blocks == 0) return;
    const bool peer = home == CN_HOME_PEER;
    const cn_kv_layout l = cn_kv_layout_make(m->n_layers, h->n_blocks, m->n_kv_heads,
                                             z->kv->block_tokens, m->head_dim, z->be->kv_dtype);
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++) {
        if (!((h->planes | 1U << CN_PLANE_KV) >> i & 1)) continue;
        /* Host memory is too slow to be ranked. */
        const cn_memory_part part = peer                  ? CN_PART_CACHE
                                    : i == CN_PLANE_KV ? CN_PART_HOST
                                                       : CN_PART_KV;
        add(p, z->be, home_planes[i].name, part,
            (uint64_t)m->n_layers * h->n_blocks * cn_block_plane_bytes(&l, (cn_block_plane)i),
            offsetof(cn_engine, homes.at) + (size_t)home * sizeof(cn_home) +
                home_planes[i].home_at);
    }
}

static void add_kv(cn_start_plan *p, const sizes *z)
{
    const cn_memory_plan *kv = z->kv;
    const cn_model_config *m = z->m;
    const uint64_t n = (uint64_t)m->n_layers * kv->n_blocks; /* blocks of a layer */
    const cn_kv_layout l = cn_kv_layout_make(m->n_layers, kv->n_blocks, m->n_kv_heads,
                                             kv->block_tokens, m->head_dim, z->be->kv_dtype);
    for (int i = 0; i < CN_N_BLOCK_PLANES; i++)
        if ((kv->planes | 1U << CN_PLANE_KV) >> i & 1)
            add(p, z->be, block_planes[i].name, CN_PART_KV,
                n * cn_block_plane_bytes(&l, (cn_block_plane)i), block_planes[i].engine_at);
    add(p, z->be, "query slots", CN_PART_KV, kv->n_query_slots * kv->query_slot_bytes,
        offsetof(cn_engine, pools.q_window));
    add(p, z->be, "swap space", CN_PART_HOST, kv->swap_bytes, offsetof(cn_engine, swap_memory));
    uint64_t plane_bytes = 0;
    for (int h = 0; h < CN_N_HOMES; h++) {
        add_home(p, z, (cn_kv_home)h);
        plane_bytes += kv->homes[h].plane_bytes;
    }
    add(p, z->be, "dense layers of homes", CN_PART_KV, plane_bytes,
        offsetof(cn_engine, homes.plane.kv));
}

static void list_items(cn_start_plan *p, const sizes *z)
{
    p->n_items = 0;
    add(p, z->be, "weights", CN_PART_WEIGHTS, cn_weights_bytes(z->m, z->be),
        offsetof(cn_engine, weights_memory));
    add(p, z->be, "workspace", CN_PART_WORKSPACE,
        cn_model_workspace_bytes(z->m, z->be, cn_start_max_tokens(z->c), cn_start_max_rows(z->c),
                                 cn_start_max_model_len(z->c, z->m)),
        offsetof(cn_engine, workspace));
    add_steps(p, z);
    if (z->kv) add_kv(p, z);
}

uint64_t cn_start_part_bytes(const cn_start_plan *p, cn_memory_part part)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_items; i++)
        if (p->items[i].part == part) bytes += p->items[i].bytes;
    return bytes;
}

uint64_t cn_start_plan_bytes(const cn_start_plan *p)
{
    uint64_t bytes = 0;
    for (int part = 0; part < CN_PART_HOST; part++)
        bytes += cn_start_part_bytes(p, (cn_memory_part)part);
    return bytes;
}

uint64_t cn_start_item_bytes(const cn_start_plan *p, size_t engine_at)
{
    for (uint32_t i = 0; i < p->n_items; i++)
        if (p->items[i].engine_at == engine_at) return p->items[i].bytes;
    return 0;
}

/* ---- allocating ---- */

static void **pointer_of(struct cn_engine *e, const cn_memory_item *item)
{
    return (void **)(void *)((char *)e + item->engine_at);
}

/* What to lower for a smaller item of this part. */
static const char *smaller_by(const cn_start_plan *p, cn_memory_part part)
{
    static const char *const options[CN_N_PARTS] = {
        [CN_PART_WEIGHTS] = "the size of the model",
        [CN_PART_WORKSPACE] = "--max-num-batched-tokens or --max-num-seqs",
        [CN_PART_STEPS] = "--max-num-batched-tokens or --max-num-seqs",
        [CN_PART_HOST] = "--swap-space, --home-space or --max-num-seqs",
        [CN_PART_CACHE] = "--home-space or --max-num-seqs",
    };
    return part == CN_PART_KV ? p->kv_option : options[part];
}

cn_status cn_start_plan_allocate(const cn_start_plan *p, cn_backend *be, struct cn_engine *e)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        const cn_memory_item *item = &p->items[i];
        void *memory = NULL;
        cn_backend *of = item->part == CN_PART_CACHE ? e->homes.at[CN_HOME_PEER].be : be;
        const cn_status status = item->part == CN_PART_HOST
                                     ? of->host_alloc(of, item->bytes, &memory)
                                     : of->mem_alloc(of, item->bytes, &memory);
        if (status != CN_OK)
            return cn_fail_within(status, "%.2f GiB for %s (lower %s)", cn_gib(item->bytes),
                                  item->name, smaller_by(p, item->part));
        *pointer_of(e, item) = memory;
    }
    return CN_OK;
}

void cn_start_plan_free(const cn_start_plan *p, cn_backend *be, struct cn_engine *e)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        void **memory = pointer_of(e, &p->items[i]);
        if (*memory && p->items[i].part == CN_PART_HOST) be->host_free(be, *memory);
        cn_backend *of = p->items[i].part == CN_PART_CACHE ? e->homes.at[CN_HOME_PEER].be : be;
        if (*memory && p->items[i].part != CN_PART_HOST) of->mem_free(of, *memory);
        *memory = NULL;
    }
}

/* ---- dividing ---- */

/* Device memory left for KV. */
static cn_status device_kv_bytes(const cn_start_plan *p, const cn_config *c, cn_backend *be,
                                 uint64_t *kv_bytes)
{
    const uint64_t avail = be->mem_avail(be), rounding = most_kv_items(c) * be->mem_align;
    const uint64_t rest = cn_start_plan_bytes(p) + rounding;
    const uint64_t least_kv_bytes = c->kv_cache_memory_bytes ? c->kv_cache_memory_bytes : 1;
    if (rest + least_kv_bytes > avail)
        return cn_fail(CN_ERR_MEMORY,
                       "%.2f GiB of weights, %.2f of workspace, %.2f for steps and %.2f of KV "
                       "cache exceed the %.2f GiB available on the device: raise "
                       "--gpu-memory-utilization, or lower --max-num-batched-tokens, "
                       "--max-num-seqs or --kv-cache-memory-bytes",
                       cn_gib(cn_start_part_bytes(p, CN_PART_WEIGHTS)),
                       cn_gib(cn_start_part_bytes(p, CN_PART_WORKSPACE)),
                       cn_gib(cn_start_part_bytes(p, CN_PART_STEPS)),
                       cn_gib(c->kv_cache_memory_bytes), cn_gib(avail));
    *kv_bytes = c->kv_cache_memory_bytes ? c->kv_cache_memory_bytes : avail - rest;
    return CN_OK;
}

/* The kernel commits host memory at the first write. With a KV cache that is too large it would
 * kill the run hours later. Only a warning, because the user may intend it (swap, a plan for
 * another machine). */
static void warn_of_host(const cn_start_plan *p, const cn_backend *be)
{
    const uint64_t all = cn_host_bytes(), wanted = cn_start_plan_bytes(p);
    if (!be->mem_avail && all && wanted > all)
        cn_log(CN_LOG_WARN,
               "planned memory of %.1f GiB (%.1f for KV) exceeds the machine's %.1f GiB: lower "
               "%s or use a smaller model",
               cn_gib(wanted), cn_gib(p->kv.kv_bytes), cn_gib(all), p->kv_option);
}

cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be)
{
    cn_start_plan p = {.kv_option = c->n_blocks_override ? "--num-gpu-blocks-override"
                                                         : "--kv-cache-memory-bytes"};
    sizes z = {c, m, be, NULL};
    uint64_t kv_bytes = c->kv_cache_memory_bytes;
    list_items(&p, &z);
    if (be->mem_avail) CN_TRY(device_kv_bytes(&p, c, be, &kv_bytes));
    cn_config with = *c; /* shallow: borrows the strings */
    with.kv_cache_memory_bytes = kv_bytes;
    CN_TRY(cn_memory_plan_make(&p.kv, &with, m, be));
    z.kv = &p.kv;
    list_items(&p, &z);
    warn_of_host(&p, be);
    *out = p;
    return CN_OK;
}

cn_status cn_start_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                cn_backend *be)
{
    *bytes = 0;
    if (c->kv_cache_memory_bytes == 0) return CN_OK;
    cn_start_plan p = {0};
    const sizes z = {c, m, be, NULL};
    list_items(&p, &z);
    CN_TRY(cn_memory_plan_make(&p.kv, c, m, be));
    /* The plan may use up to one block less than --kv-cache-memory-bytes. With
     * --num-gpu-blocks-override it may use more. */
    const uint64_t kv_bytes =
        p.kv.kv_bytes > c->kv_cache_memory_bytes ? p.kv.kv_bytes : c->kv_cache_memory_bytes;
    *bytes = cn_start_plan_bytes(&p) + kv_bytes + most_kv_items(c) * be->mem_align;
    return CN_OK;
}

cn_status cn_start_cache_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                               cn_backend *be)
{
    cn_start_plan p = {0};
    const sizes z = {c, m, be, &p.kv};
    p.kv.block_tokens = cn_planner_block_tokens(c, be);
    CN_TRY(cn_home_plan_make(&p.kv.homes[CN_HOME_PEER], c, m, be));
    add_home_steps(&p, &z, CN_HOME_PEER);
    add_home(&p, &z, CN_HOME_PEER);
    *bytes = cn_start_part_bytes(&p, CN_PART_CACHE);
    return CN_OK;
}
