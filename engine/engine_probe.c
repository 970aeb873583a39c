/* engine_probe.c - see engine_probe.h. */
#include "engine/engine_probe.h"

#include <string.h>

#include "compress/policy.h"
#include "engine/select/select_cost.h"
#include "engine/step_graph.h"

enum { ROUNDS = 3 };

static cn_status check(const cn_engine *e, cn_kv_params *kv)
{
    return cn_home_check_kv(e->config, kv, e->pools.layout.block_tokens, e->pools.window);
}

cn_status cn_engine_check_kv(const cn_engine *e, const cn_kv_params *kv)
{
    cn_kv_params k = *kv;
    return check(e, &k);
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
    return check(e, &k) == CN_OK ? k : *kv;
}

uint64_t cn_engine_step_weight_bytes(const cn_engine *e)
{
    return cn_weights_step_bytes(&e->model_config, e->backend);
}

double cn_engine_row_bytes(const cn_engine *e, const cn_kv_params *kv, double resident)
{
    const cn_kv_layout *l = &e->pools.layout;
    const cn_select_shape shape = {.n_layers = l->n_layers,
                                   .dense_layers = e->config->select_dense_layers,
                                   .n_heads = e->pools.n_heads,
                                   .n_kv_heads = l->n_kv_heads,
                                   .head_dim = l->head_dim,
                                   .block_tokens = l->block_tokens,
                                   .kv_dtype = l->part[CN_KV_K].dtype,
                                   .act_dtype = e->pools.act_dtype};
    if (kv->select == CN_SELECT_NONE) return (double)cn_select_kv_bytes(&shape) * resident;
    const cn_kv_params completed = complete(e, kv);
    return cn_select_row_bytes(&shape, &completed, (uint32_t)resident);
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

bool cn_engine_is_on_cpu(const cn_engine *e) { return strcmp(e->backend->name, "cpu") == 0; }

double cn_engine_rows_of_weights(const cn_engine *e)
{
    /* An H100 with 990 TFLOP/s in bf16 reads 3.1 TB/s. A CPU core multiplies some 20 numbers in the
     * time in which it reads one from memory. */
    enum { CPU_ROWS = 20, GPU_ROWS = 320 };
    return cn_engine_is_on_cpu(e) ? CPU_ROWS : GPU_ROWS;
}

static cn_status wait_all(cn_engine *e)
{
    CN_TRY(e->backend->stream_sync(e->stream));
    CN_TRY(cn_home_sync(&e->homes));
    return e->backend->stream_sync(e->event_stream);
}

cn_status cn_engine_read_bandwidth(cn_engine *e, double *bytes_per_s)
{
    enum { MAX_BYTES = 1 << 30, PASSES = 16 };
    cn_backend *be = e->backend;
    cn_stream *s = e->stream;
    *bytes_per_s = 0;
    if (!be->mem_sum) return CN_OK;
    CN_TRY(wait_all(e));
    /* The sum goes into the scratch of sampling, which is unused between steps. */
    uint64_t *out = e->sample_scratch;
    CN_ASSERT(e->sample_scratch_bytes >= sizeof *out);
    size_t bytes = cn_kv_pool_bytes(&e->pools.layout);
    if (bytes > (size_t)PASSES * MAX_BYTES) bytes = (size_t)PASSES * MAX_BYTES;
    CN_TRY(be->mem_sum(s, e->pools.kv, bytes, out)); /* warm-up: a first call may set things up */
    for (int i = 0; i < ROUNDS; i++) {
        CN_TRY(be->stream_sync(s));
        const double began_s = cn_now_s();
        CN_TRY(be->mem_sum(s, e->pools.kv, bytes, out));
        CN_TRY(be->stream_sync(s));
        const double rate = (double)bytes / (cn_now_s() - began_s);
        if (rate > *bytes_per_s) *bytes_per_s = rate;
    }
    return CN_OK;
}

static cn_status enqueue_products(cn_engine *e, uint32_t n_tokens)
{
    cn_stream *s = e->stream;
    for (uint32_t left = n_tokens; left > 0;) {
        const uint32_t n = cn_min_u32(left, e->config->max_num_batched_tokens);
        left -= n;
        CN_TRY(cn_model_products(e->model, s, n, left == 0));
    }
    return CN_OK;
}

cn_status cn_engine_products_time(cn_engine *e, uint32_t n_tokens, double *seconds)
{
    *seconds = 0;
    CN_TRY(enqueue_products(e, n_tokens));
    for (int i = 0; i < ROUNDS; i++) {
        CN_TRY(wait_all(e));
        const double began_s = cn_now_s();
        CN_TRY(enqueue_products(e, n_tokens));
        CN_TRY(wait_all(e));
        const double took_s = cn_now_s() - began_s;
        if (i == 0 || took_s < *seconds) *seconds = took_s;
    }
    return CN_OK;
}

cn_status cn_engine_time_exchanges(cn_engine *e, bool on)
{
    if (!cn_homes_any(&e->homes))
        return cn_fail(CN_ERR_DEVICE, "no home is declared: no exchange can be timed");
    for (uint32_t i = 0; on && i < CN_FLIGHTS; i++)
        if (!e->flights[i].homes.clock)
            CN_TRY(cn_home_clock_create(&e->homes, &e->flights[i].homes.clock));
    e->homes.times_steps = on;
    return CN_OK;
}

cn_exchange_times cn_engine_exchange_times(const cn_engine *e) { return e->homes.times; }

cn_status cn_engine_replay_time(cn_engine *e, uint32_t n, double *seconds)
{
    *seconds = 0;
    const cn_step_shape shape = e->last_shape;
    if (shape.rows == 0) return CN_OK;
    /* Use the flight that the next step will fill, to keep the tokens of the last step. */
    const cn_flight *f = &e->flights[e->flight_tail % CN_FLIGHTS];
    CN_TRY(wait_all(e));
    CN_TRY(cn_step_graph_launch(e, shape, f));
    CN_TRY(wait_all(e));
    const double began_s = cn_now_s();
    for (uint32_t i = 0; i < n; i++) CN_TRY(cn_step_graph_launch(e, shape, f));
    CN_TRY(wait_all(e));
    *seconds = (cn_now_s() - began_s) / n;
    return CN_OK;
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
