/* start_plan.c - see start_plan.h. */
#include "engine/start_plan.h"

#include "engine/engine_state.h"
#include "engine/planner.h"
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
    };
}

/* Bytes of the batch arrays and of the tokens from which counts are rebuilt. */
static uint64_t description_bytes(const cn_config *c, const cn_model_config *m,
                                  const cn_backend *be)
{
    enum { LEAST = 96 << 20, ROUNDING = 1 << 20 };
    const cn_batch_opts o = cn_start_batch_opts(c, m, cn_planner_block_tokens(c, be), 0);
    const uint64_t history = cn_start_max_model_len(c, m) * sizeof(uint32_t);
    const uint64_t bytes = cn_batch_device_bytes(&o) + history + ROUNDING;
    return bytes > LEAST ? bytes : LEAST;
}

/* Bytes of scratch for compression events. The pools are not planned yet, so a pool of one block
 * describes them. */
static uint64_t event_bytes(const cn_config *c, const cn_model_config *m, cn_backend *be)
{
    enum { LARGEST_BLOCK = 256 };
    if ((c->kv_policies | 1U << c->kv.policy) == 1U << CN_KV_FULL) return 0;
    const cn_pools p = {.layout = cn_kv_layout_make(m->n_layers, 1, m->n_kv_heads, LARGEST_BLOCK,
                                                    m->head_dim),
                        .n_heads = m->n_heads,
                        .window = c->kv.window_tokens};
    const uint32_t longest = (uint32_t)cn_round_up(cn_start_max_model_len(c, m), LARGEST_BLOCK);
    return be->compress_scratch_bytes(be, &p, longest);
}

static uint64_t step_bytes(const cn_config *c, const cn_model_config *m, cn_backend *be)
{
    const uint64_t rows = cn_start_max_rows(c), vocab = m->vocab;
    const uint64_t flights = CN_FLIGHTS * rows * (2 + 2 * CN_MAX_LOGPROBS) * sizeof(uint32_t);
    return rows * vocab * sizeof(uint16_t) + flights + description_bytes(c, m, be) +
           event_bytes(c, m, be) + be->sample_scratch_bytes(be, (uint32_t)rows, (uint32_t)vocab);
}

/* Device memory left for KV. */
static cn_status device_kv_bytes(const cn_start_plan *p, const cn_config *c, cn_backend *be,
                                 uint64_t *kv_bytes)
{
    const uint64_t avail = be->mem_avail(be);
    const uint64_t rest = p->weight_bytes + p->workspace_bytes + p->step_bytes;
    const uint64_t least_kv_bytes = c->kv_cache_memory_bytes ? c->kv_cache_memory_bytes : 1;
    if (rest + least_kv_bytes > avail)
        return cn_fail(CN_ERR_MEMORY,
                       "%.2f GiB of weights, %.2f of workspace, %.2f for steps and %.2f of KV "
                       "cache exceed the %.2f GiB available on the device: raise "
                       "--gpu-memory-utilization, or lower --max-num-batched-tokens, "
                       "--max-num-seqs or --kv-cache-memory-bytes",
                       cn_gib(p->weight_bytes), cn_gib(p->workspace_bytes), cn_gib(p->step_bytes),
                       cn_gib(c->kv_cache_memory_bytes), cn_gib(avail));
    *kv_bytes = c->kv_cache_memory_bytes ? c->kv_cache_memory_bytes : avail - rest;
    return CN_OK;
}

/* All parts except KV. */
static cn_start_plan parts_of(const cn_config *c, const cn_model_config *m, cn_backend *be)
{
    return (cn_start_plan){
        .weight_bytes = cn_weights_bytes(m, be->weight_dtype),
        .workspace_bytes = cn_model_workspace_bytes(m, be, cn_start_max_tokens(c),
                                                    cn_start_max_rows(c),
                                                    cn_start_max_model_len(c, m)),
        .step_bytes = be->mem_avail ? step_bytes(c, m, be) : 0,
    };
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
               "--kv-cache-memory-bytes or use a smaller model",
               cn_gib(wanted), cn_gib(p->kv.kv_bytes), cn_gib(all));
}

cn_status cn_start_plan_make(cn_start_plan *out, const cn_config *c, const cn_model_config *m,
                             cn_backend *be)
{
    cn_start_plan p = parts_of(c, m, be);
    uint64_t kv_bytes = c->kv_cache_memory_bytes;
    if (be->mem_avail) CN_TRY(device_kv_bytes(&p, c, be, &kv_bytes));
    cn_config with = *c; /* shallow: borrows the strings */
    with.kv_cache_memory_bytes = kv_bytes;
    CN_TRY(cn_memory_plan_make(&p.kv, &with, m, be));
    warn_of_host(&p, be);
    *out = p;
    return CN_OK;
}

cn_status cn_start_wanted_bytes(uint64_t *bytes, const cn_config *c, const cn_model_config *m,
                                cn_backend *be)
{
    *bytes = 0;
    if (c->kv_cache_memory_bytes == 0) return CN_OK;
    cn_start_plan p = parts_of(c, m, be);
    CN_TRY(cn_memory_plan_make(&p.kv, c, m, be));
    /* The plan may use up to one block less than the option says. */
    if (p.kv.kv_bytes < c->kv_cache_memory_bytes) p.kv.kv_bytes = c->kv_cache_memory_bytes;
    *bytes = cn_start_plan_bytes(&p);
    return CN_OK;
}

uint64_t cn_start_plan_bytes(const cn_start_plan *p)
{
    return p->weight_bytes + p->workspace_bytes + p->step_bytes + p->kv.kv_bytes;
}
