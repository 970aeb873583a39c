/* step_graph.c - decode steps that are recorded once and replayed, so that one host call runs the
 * forward pass of a step. The sample op runs after it.
 *
 * A graph has a fixed number of rows, its bucket; a smaller step is padded. Everything that changes
 * between steps is in device arrays (engine/batch.h). Their addresses are fixed, except that steps
 * alternate between two sets of output arrays (cn_flight); each bucket is therefore recorded once
 * for each set, and once for each route of selection (engine/select/select.h) that a declared
 * selector can need. Only steps in which every row decodes and samples, and in which all candidates
 * fit the scratch together, are replayed. Others run op by op. The op `digest` follows the graph:
 * its tiles are arguments, and few steps complete one.
 *
 * Buckets are 1, 2, 4, 8 and then every 8 rows. Memory bandwidth bounds a decode step, so a few
 * padding rows cost little; and a graph is small, so many buckets are affordable. */
#include "engine/engine_state.h"

static uint32_t bucket_rows(uint32_t i) { return i < 3 ? 1u << i : (i - 2) * CN_GRAPH_ROWS_STEP; }

static uint32_t graph_bucket_of(uint32_t rows)
{
    if (rows <= 4) return rows <= 2 ? rows - 1 : 2;
    return (uint32_t)cn_ceil_div(rows, CN_GRAPH_ROWS_STEP) + 2;
}

/* graphs[n_graph_buckets, n_routes, CN_FLIGHTS]. route: an index of e->routes. */
static cn_graph **graph_at(const cn_engine *e, uint32_t bucket, uint32_t route, const cn_flight *f)
{
    const size_t at = (size_t)bucket * e->n_routes + route;
    return &e->graphs[at * CN_FLIGHTS + (size_t)(f - e->flights)];
}

/* Returns the index of a route, or n_routes if no step with it is recorded. */
static uint32_t route_index(const cn_engine *e, uint32_t route)
{
    uint32_t i = 0;
    while (i < e->n_routes && e->routes[i] != route) i++;
    return i;
}

/* Records the model's ops of an empty plan padded to a shape. The sample op stays outside: what it
 * reads may be known only while the model runs. */
static cn_status record(cn_engine *e, uint32_t bucket, uint32_t route, cn_flight *f)
{
    const cn_step_shape shape = {bucket_rows(bucket), e->routes[route]};
    cn_backend *be = e->backend;
    cn_stream *stream = e->stream;
    const cn_plan nothing = {0};
    cn_batch_build(e->batch, &nothing, shape);
    CN_TRY(cn_batch_upload(e->batch, stream, cn_flight_other(e, f)->tokens));
    /* A first call may set things up, which is not possible while recording. */
    CN_TRY(cn_engine_run_model(e, shape.rows, NULL));
    CN_TRY(be->stream_sync(stream));
    CN_TRY(be->graph_begin(stream));
    cn_status status = cn_engine_run_model(e, shape.rows, NULL);
    cn_status ended = be->graph_end(stream, graph_at(e, bucket, route, f));
    return status != CN_OK ? status : ended;
}

cn_status cn_step_graphs_record(cn_engine *e)
{
    if (!e->backend->graph_begin || e->config->enforce_eager || e->config->dump) return CN_OK;
    const uint32_t n = graph_bucket_of(e->config->max_num_seqs) + 1;
    /* Steps with rows away from the device run op by op (cn_step_graph_shape). So without requests
     * at home on the device no recorded step selects. */
    const bool local = cn_config_homes(e->config) >> CN_HOME_DEVICE & 1;
    const uint32_t selectors = local ? cn_config_selectors(e->config) : 1U << CN_SELECT_NONE;
    e->n_routes = cn_select_routes(e->backend, selectors, e->routes);
    e->recorded_forms = cn_selectors_forms(selectors);
    e->graphs = cn_calloc((size_t)n * e->n_routes * CN_FLIGHTS, sizeof(cn_graph *));
    if (!e->graphs) return cn_fail(CN_ERR_MEMORY, "out of host memory for %u graphs", n);
    const double start = cn_now_s();
    uint32_t n_recorded = 0;
    e->n_graph_buckets = n;
    for (uint32_t i = 0; i < n * e->n_routes; i++)
        for (uint32_t k = 0; k < CN_FLIGHTS; k++, n_recorded++)
            CN_TRY(record(e, i / e->n_routes, i % e->n_routes, &e->flights[k]));
    cn_log(CN_LOG_INFO, "recorded %u decode graphs, up to %u rows, in %.1f s", n_recorded,
           bucket_rows(n - 1), cn_now_s() - start);
    return CN_OK;
}

void cn_step_graphs_free(cn_engine *e)
{
    for (uint32_t i = 0; i < e->n_graph_buckets * e->n_routes * CN_FLIGHTS; i++)
        if (e->graphs[i]) e->backend->graph_free(e->graphs[i]);
    cn_free(e->graphs);
}

cn_step_shape cn_step_graph_shape(const cn_engine *e, const cn_plan *plan)
{
    const cn_step_shape op_by_op = {0};
    if (e->n_graph_buckets == 0 || plan->n_decode != plan->n_rows || plan->n_forks > 0)
        return op_by_op;
    for (uint32_t i = 0; i < plan->n_rows; i++)
        if (!plan->rows[i].wants_sample || plan->rows[i].seq->home_len > 0) return op_by_op;
    const cn_select_need need = cn_select_need_of(plan, e->select.room);
    if (!need.fits) return op_by_op;
    cn_step_shape shape = {bucket_rows(graph_bucket_of(plan->n_rows)), 0};
    if (need.listed)
        shape.route = cn_select_route_of(e->backend, &need.forms, &e->recorded_forms);
    return route_index(e, shape.route) < e->n_routes ? shape : op_by_op;
}

cn_status cn_step_graph_launch(cn_engine *e, cn_step_shape shape, const cn_flight *f)
{
    return e->backend->graph_launch(
        e->stream, *graph_at(e, graph_bucket_of(shape.rows), route_index(e, shape.route), f));
}
