/* step_graph.c - see step_graph.h. Buckets are 1, 2, 4, 8 and then every 8 rows. Memory bandwidth
 * bounds a decode step, so a few padding rows cost little; and a graph is small, so many buckets
 * are affordable. */
#include "engine/step_graph.h"

static uint32_t bucket_rows(uint32_t i) { return i < 3 ? 1u << i : (i - 2) * CN_GRAPH_ROWS_STEP; }

static uint32_t bucket_of(uint32_t rows)
{
    if (rows <= 4) return rows <= 2 ? rows - 1 : 2;
    return (uint32_t)cn_ceil_div(rows, CN_GRAPH_ROWS_STEP) + 2;
}

static uint32_t flight_index(const cn_engine *e, const cn_flight *f)
{
    return (uint32_t)(f - e->flights);
}

/* Records the step of an empty plan padded to `rows`. */
static cn_status record(cn_engine *e, uint32_t rows, cn_flight *f, cn_graph **out)
{
    cn_backend *be = e->backend;
    cn_stream *stream = e->stream;
    const cn_plan nothing = {0};
    cn_batch_build(e->batch, &nothing, rows);
    CN_TRY(cn_batch_upload(e->batch, stream, cn_flight_other(e, f)->tokens));
    CN_TRY(cn_engine_run_ops(e, f, rows)); /* a first call may set things up; not while recording */
    CN_TRY(be->stream_sync(stream));
    CN_TRY(be->graph_begin(stream));
    cn_status status = cn_engine_run_ops(e, f, rows);
    cn_status ended = be->graph_end(stream, out);
    return status != CN_OK ? status : ended;
}

cn_status cn_step_graphs_record(cn_engine *e)
{
    if (!e->backend->graph_begin || e->config->enforce_eager || e->config->dump) return CN_OK;
    uint32_t n = bucket_of(e->config->max_num_seqs) + 1;
    e->graphs = cn_calloc((size_t)n * CN_FLIGHTS, sizeof(cn_graph *));
    if (!e->graphs) return cn_fail(CN_ERR_MEMORY, "out of host memory for %u graphs", n);
    double start = cn_now_s();
    e->n_graph_buckets = n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < CN_FLIGHTS; k++)
            CN_TRY(record(e, bucket_rows(i), &e->flights[k], &e->graphs[i * CN_FLIGHTS + k]));
    cn_log(CN_LOG_INFO, "recorded %u decode graphs, up to %u rows, in %.1f s", n * CN_FLIGHTS,
           bucket_rows(n - 1), cn_now_s() - start);
    return CN_OK;
}

void cn_step_graphs_free(cn_engine *e)
{
    for (uint32_t i = 0; i < e->n_graph_buckets * CN_FLIGHTS; i++)
        if (e->graphs[i]) e->backend->graph_free(e->graphs[i]);
    cn_free(e->graphs);
}

uint32_t cn_step_graph_rows(const cn_engine *e, const cn_plan *plan)
{
    if (e->n_graph_buckets == 0 || plan->n_decode != plan->n_rows || plan->n_forks > 0) return 0;
    for (uint32_t i = 0; i < plan->n_rows; i++)
        if (!plan->rows[i].wants_sample) return 0;
    /* A recorded step attends to all tokens. */
    if (cn_select_any_listed(plan, e->plan.kv.block_tokens)) return 0;
    return bucket_rows(bucket_of(plan->n_rows));
}

cn_status cn_step_graph_launch(cn_engine *e, uint32_t rows, const cn_flight *f)
{
    cn_graph *g = e->graphs[bucket_of(rows) * CN_FLIGHTS + flight_index(e, f)];
    return e->backend->graph_launch(e->stream, g);
}
