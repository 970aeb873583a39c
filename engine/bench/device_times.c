/* device_times.c - see device_times.h. */
#include "engine/bench/device_times.h"

#include "engine/engine_state.h"

enum { ROUNDS = 3 };

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
