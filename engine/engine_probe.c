/* engine_probe.c - see engine_probe.h. */
#include "engine/engine_probe.h"

#include "compress/policy.h"
#include "engine/engine_state.h"
#include "engine/select/select_cost.h"

static cn_status check_home_of(const cn_engine *e, cn_kv_params *kv)
{
    return cn_home_check_kv(e->config, kv, e->pools.layout.block_tokens, e->pools.window);
}

cn_status cn_engine_check_kv(const cn_engine *e, const cn_kv_params *kv)
{
    cn_kv_params k = *kv;
    return check_home_of(e, &k);
}

cn_status cn_engine_check_batch(const cn_engine *e, uint32_t n, uint32_t n_prompt,
                                uint32_t max_output, const cn_kv_params *kv)
{
    const cn_group_params group = {
        .n_prompt = n_prompt, .max_output = max_output, .n = 1, .kv = *kv};
    cn_group_need need;
    cn_stats s;
    CN_TRY(cn_engine_check_kv(e, kv));
    CN_TRY(cn_scheduler_need(e->scheduler, &group, &need));
    cn_engine_stats(e, &s);
    const uint64_t blocks = (uint64_t)(n - 1) * need.held_blocks + need.blocks;
    if (blocks > s.blocks_total)
        return cn_fail(CN_ERR_ARG,
                       "%u requests of %u prompt and %u output tokens need %llu KV blocks of %u "
                       "tokens at once, but the pool has %u: lower one of them, or raise "
                       "--kv-cache-memory-bytes (or --num-gpu-blocks-override)",
                       n, n_prompt, max_output, (unsigned long long)blocks, s.block_tokens,
                       s.blocks_total);
    if (cn_kv_needs_slot(kv) && n > s.slots_total)
        return cn_fail(CN_ERR_ARG,
                       "%u requests at once need a query slot each, but memory has room for %u: "
                       "lower their number, the budget or the selected tokens, or raise "
                       "--kv-cache-memory-bytes (or --num-gpu-blocks-override)",
                       n, s.slots_total);
    const uint64_t away = (uint64_t)n * need.home_blocks;
    const uint32_t room = e->plan.kv.homes[need.home].n_blocks;
    if (away <= room) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "%u requests of %u prompt and %u output tokens need %llu blocks of %u tokens in "
                   "kv home %s at once, which has %u: lower one of them, or raise %s",
                   n, n_prompt, max_output, (unsigned long long)away, s.block_tokens,
                   cn_kv_home_name(need.home), room,
                   cn_home_kind_of(need.home)->has_device ? "--home-space"
                                                          : "--home-space or --host-space");
}

cn_status cn_engine_check_request(cn_engine *e, const cn_request_params *p)
{
    CN_TRY(cn_engine_submit(e, p, NULL, NULL, NULL));
    cn_engine_drop_request(e, CN_CONTAINER_OF(e->requests.tail, cn_engine_request, node));
    e->next_id--;
    return CN_OK;
}

/* The parameters of a request, as the engine completes them. A request that it would refuse keeps
 * them as they are. */
static cn_kv_params complete(const cn_engine *e, const cn_kv_params *kv)
{
    cn_kv_params k = *kv;
    return check_home_of(e, &k) == CN_OK ? k : *kv;
}

double cn_engine_step_weight_bytes(const cn_engine *e, uint32_t n_rows)
{
    return cn_weights_step_bytes(&e->model_config, e->backend, n_rows);
}

double cn_engine_row_bytes(const cn_engine *e, const cn_kv_params *kv, double resident)
{
    const cn_kv_layout *l = &e->pools.layout;
    const bool is_shared = cn_kv_layout_is_shared(l);
    const cn_select_shape shape = {.n_layers = l->n_layers,
                                   .dense_layers = e->config->select_dense_layers,
                                   .n_heads = e->pools.n_heads,
                                   .n_kv_heads = l->n_kv_heads,
                                   .head_dim = l->head_dim,
                                   .value_dim = is_shared ? l->part[CN_KV_V].width : 0,
                                   .query_dim = l->query_dim,
                                   .block_tokens = l->block_tokens,
                                   .draft_dim = l->draft_dim,
                                   .draft_state = l->draft_state,
                                   .kv_form = cn_kv_form_of(l),
                                   .act_dtype = e->pools.act_dtype};
    const double n_ranks = 1 + e->ranks.n;
    if (kv->select == CN_SELECT_NONE)
        return n_ranks * (double)cn_select_kv_bytes(&shape) * resident;
    const cn_kv_params completed = complete(e, kv);
    return n_ranks * cn_select_row_bytes(&shape, &completed, (uint32_t)resident);
}

uint32_t cn_engine_cap_blocks(const cn_engine *e, const cn_kv_params *kv)
{
    const uint32_t b = e->pools.layout.block_tokens;
    const cn_kv_params completed = complete(e, kv);
    return cn_away_n_max(&completed, b);
}

uint32_t cn_engine_exchange_entries(const cn_engine *e, const cn_kv_params *kv)
{
    const cn_kv_params completed = complete(e, kv);
    return e->homes.packs.n_layers * e->pools.layout.n_kv_heads *
           cn_away_of(&completed, e->pools.layout.block_tokens).n_entries;
}

void cn_engine_force_churn(cn_engine *e, float share)
{
    for (int h = 0; h < CN_N_HOMES; h++) cn_home_force_churn(&e->homes.at[h], share);
}

bool cn_engine_is_on_cpu(const cn_engine *e) { return strcmp(e->backend->name, "cpu") == 0; }

double cn_engine_rows_of_weights(const cn_engine *e)
{
    /* An H100 with 990 TFLOP/s in bf16 reads 3.1 TB/s. A CPU core multiplies some 20 numbers in the
     * time in which it reads one from memory. */
    enum { CPU_ROWS = 20, GPU_ROWS = 320 };
    return cn_engine_is_on_cpu(e) ? CPU_ROWS : GPU_ROWS;
}

const cn_event_stats *cn_engine_event_stats(const cn_engine *e)
{
    static const cn_event_stats none;
    return e->events ? cn_events_stats(e->events) : &none;
}

cn_status cn_engine_probe_selection(cn_engine *e, uint32_t every)
{
    const cn_select_probe_opts o = {
        .every = every,
        .max_rows = e->max_rows,
        .pools = &e->pools,
        .scratch = &e->select,
        .first_layer = e->config->select_dense_layers,
    };
    CN_ASSERT(!e->backend->async && !e->select_probe);
    CN_TRY(cn_select_probe_create(&e->select_probe, &o));
    cn_model_set_probe(e->model, e->select_probe);
    return CN_OK;
}

cn_select_figures cn_engine_take_selection(cn_engine *e)
{
    return e->select_probe ? cn_select_probe_take(e->select_probe) : (cn_select_figures){0};
}
