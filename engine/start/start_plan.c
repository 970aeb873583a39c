/* start_plan.c - see start_plan.h. */
#include "engine/start/start_plan.h"

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/start/host_memory.h"

/* As in cuda/attn/attn_prefill.cuh: a sequence is rounded up to these slots; most head_dim. */
enum { PLAIN_SLOTS = 128, PLAIN_DIM = 128 };

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

/* With 256 MiB a step reads four kv heads of 131,072 tokens at once, at head_dim 128. One head of a
 * chunk of 2,048 tokens has thread blocks for half of a GPU. */
uint64_t cn_start_plain_bytes(const cn_config *c, const cn_model_config *m)
{
    const uint64_t least = UINT64_C(256) << 20, row_bytes = 2 * (uint64_t)m->head_dim;
    const uint64_t longest = cn_round_up(cn_start_max_model_len(c, m), PLAIN_SLOTS);
    if (cn_planner_kv_form(c) == CN_KV_PLAIN || m->head_dim > PLAIN_DIM) return 0;
    return 2 * longest * row_bytes > least ? 2 * longest * row_bytes : least;
}

/* Refuses what has no ops for latent attention yet. */
static cn_status check_latent(const cn_config *c, const cn_model_config *m)
{
    if (m->latent.rank == 0 || cn_planner_kv_form(c) == CN_KV_PLAIN) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "--kv-cache-dtype fp8: %s has latent attention, which does not support eight "
                   "bits yet: set --kv-cache-dtype auto",
                   m->architecture);
}

static cn_status check_head_rule(const cn_config *c, const cn_model_config *m)
{
    const bool read = cn_policies_need(cn_config_policies(c)).slots;
    if (!read || c->kv.head_rule == CN_HEADS_MAX || m->n_heads > m->n_kv_heads) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "--kv-head-rule mean: each kv head of this %s has one query head, so it has no "
                   "effect: leave it out",
                   m->architecture);
}

cn_status cn_start_check_model(const cn_config *c, const cn_model_config *m)
{
    CN_TRY(check_latent(c, m));
    CN_TRY(check_head_rule(c, m));
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

/* ---- the list ---- */

cn_start_plan cn_start_plan_begin(const cn_config *c, const cn_model_config *m, cn_backend *be)
{
    return (cn_start_plan){
        .config = c,
        .model = m,
        .backend = be,
        .kv.block_tokens = cn_planner_block_tokens(c, be),
        .kv_option = c->n_blocks_override ? "--num-gpu-blocks-override"
                                          : "--kv-cache-memory-bytes",
    };
}

void cn_start_add(cn_start_plan *p, const char *name, cn_memory_part part, uint64_t bytes,
                  void *slot)
{
    CN_ASSERT(p->n_items < CN_MAX_MEMORY_ITEMS);
    if (bytes == 0) return;
    p->items[p->n_items++] =
        (cn_memory_item){name, part, cn_round_up(bytes, p->backend->mem_align), slot};
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

uint64_t cn_start_item_bytes(const cn_start_plan *p, const void *slot)
{
    for (uint32_t i = 0; i < p->n_items; i++)
        if (p->items[i].slot == slot) return p->items[i].bytes;
    return 0;
}

/* ---- allocating ---- */

/* The pointer of an item. Its type is any, so it is copied as bytes. */
static void *pointer_of(const cn_memory_item *item)
{
    void *memory;
    memcpy(&memory, item->slot, sizeof memory);
    return memory;
}

static void set_pointer(const cn_memory_item *item, void *memory)
{
    memcpy(item->slot, &memory, sizeof memory);
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

cn_status cn_start_plan_allocate(const cn_start_plan *p, cn_backend *cache)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        const cn_memory_item *item = &p->items[i];
        void *memory = NULL;
        cn_backend *be = item->part == CN_PART_CACHE ? cache : p->backend;
        const cn_status status = item->part == CN_PART_HOST
                                     ? be->host_alloc(be, item->bytes, &memory)
                                     : be->mem_alloc(be, item->bytes, &memory);
        if (status != CN_OK)
            return cn_fail_within(status, "%.2f GiB for %s (lower %s)", cn_gib(item->bytes),
                                  item->name, smaller_by(p, item->part));
        set_pointer(item, memory);
    }
    return CN_OK;
}

void cn_start_plan_free(const cn_start_plan *p, cn_backend *cache)
{
    for (uint32_t i = 0; i < p->n_items; i++) {
        const cn_memory_item *item = &p->items[i];
        void *memory = pointer_of(item);
        cn_backend *be = item->part == CN_PART_CACHE ? cache : p->backend;
        if (memory && item->part == CN_PART_HOST) be->host_free(be, memory);
        if (memory && item->part != CN_PART_HOST) be->mem_free(be, memory);
        set_pointer(item, NULL);
    }
}

/* ---- dividing ---- */

/* Most items of CN_PART_KV: those of blocks and slots; of a home its digests and dense layers. */
static uint64_t most_kv_items(const cn_config *c)
{
    const uint64_t n = CN_N_BLOCK_PLANES + CN_N_SLOT_PLANES;
    return cn_config_away(c) ? n + CN_N_BLOCK_PLANES : n;
}

/* Device memory left for KV. */
static cn_status device_kv_bytes(const cn_start_plan *p, uint64_t *kv_bytes)
{
    const cn_config *c = p->config;
    cn_backend *be = p->backend;
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
static void warn_of_host(const cn_start_plan *p)
{
    const uint32_t n_ranks = cn_max_u32(p->config->n_ranks, 1);
    const uint64_t all = cn_host_bytes(p->config), kv_bytes = n_ranks * p->kv.kv_bytes;
    const uint64_t wanted = n_ranks * cn_start_plan_bytes(p) + kv_bytes;
    if (!p->backend->mem_avail && all && wanted > all)
        cn_log(CN_LOG_WARN,
               "planned memory of %.1f GiB (%.1f for KV) exceeds the machine's %.1f GiB: lower "
               "%s or use a smaller model",
               cn_gib(wanted), cn_gib(kv_bytes), cn_gib(all), p->kv_option);
}

cn_status cn_start_divide(cn_start_plan *p)
{
    uint64_t kv_bytes = p->config->kv_cache_memory_bytes;
    if (p->backend->mem_avail) CN_TRY(device_kv_bytes(p, &kv_bytes));
    cn_config with = *p->config; /* shallow: borrows the strings */
    with.kv_cache_memory_bytes = kv_bytes;
    CN_TRY(cn_memory_plan_make(&p->kv, &with, p->model, p->backend));
    warn_of_host(p);
    return CN_OK;
}

cn_status cn_start_wanted_bytes(const cn_start_plan *p, uint64_t *bytes)
{
    const cn_config *c = p->config;
    cn_memory_plan kv;
    *bytes = 0;
    if (c->kv_cache_memory_bytes == 0) return CN_OK;
    CN_TRY(cn_memory_plan_make(&kv, c, p->model, p->backend));
    /* The plan may use up to one block less than --kv-cache-memory-bytes. With
     * --num-gpu-blocks-override it may use more. */
    const uint64_t kv_bytes =
        kv.kv_bytes > c->kv_cache_memory_bytes ? kv.kv_bytes : c->kv_cache_memory_bytes;
    *bytes = cn_start_plan_bytes(p) + kv_bytes + most_kv_items(c) * p->backend->mem_align;
    return CN_OK;
}
