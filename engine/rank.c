/* rank.c - see rank.h. */
#include "engine/rank.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "engine/engine_memory.h"
#include "engine/start/device_choice.h"

static const double STOP_WAIT_S = 0.9; /* for what stands still after an error */
enum { LOOK_NS = 20000000 };
static const struct timespec nap = {0, 50000};

/* ---- threads ---- */

/* The ranks meet at the begin and the end of a command, so that one that stops there is named too.
 * Not when weights are read: a slow disk may take longer than the timeout. */
static cn_status meet_others(cn_ranks *r, cn_backend *be, cn_stream *s, uint32_t rank,
                             cn_rank_fn fn)
{
    const cn_reduce_norm_args a = {
        .barrier = r->model.barrier, .rank = rank, .n_ranks = r->n + 1, .layer = UINT32_MAX / 2};
    return fn == cn_rank_load_weights ? CN_OK : be->reduce_norm(s, &a);
}

static cn_status run_ops(cn_rank *k, cn_rank_fn fn, void *ctx)
{
    const uint32_t rank = k->config.rank;
    CN_TRY(meet_others(k->ranks, k->backend, k->stream, rank, fn));
    CN_TRY(fn(k, ctx));
    return meet_others(k->ranks, k->backend, k->stream, rank, fn);
}

static cn_status run_command(cn_rank *k, cn_rank_fn fn, void *ctx)
{
    const cn_status status = run_ops(k, fn, ctx);
    const cn_status recorded = k->backend->fence_record(k->done, k->stream);
    return status != CN_OK ? status : recorded;
}

static void *rank_main(void *arg)
{
    cn_rank *k = arg;
    cn_ranks *r = k->ranks;
    if (k->backend->enter) k->backend->enter(k->backend);
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (k->n_run == r->n_posted && !r->stop) pthread_cond_wait(&r->changed, &r->mutex);
        if (k->n_run == r->n_posted) break;
        const cn_rank_fn fn = r->fn;
        void *const ctx = r->ctx;
        pthread_mutex_unlock(&r->mutex);
        const cn_status status = run_command(k, fn, ctx);
        if (status != CN_OK) k->backend->barrier_break(r->model.barrier, cn_last_error());
        pthread_mutex_lock(&r->mutex);
        k->status = status;
        if (status != CN_OK) snprintf(k->error, sizeof k->error, "%s", cn_last_error());
        k->n_run++;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

cn_status cn_ranks_start(cn_ranks *r, cn_rank_fn fn, void *ctx)
{
    if (r->n == 0) return CN_OK;
    CN_TRY(r->lead->fence_record(r->began, r->lead_stream));
    CN_TRY(meet_others(r, r->lead, r->lead_stream, 0, fn));
    pthread_mutex_lock(&r->mutex);
    r->fn = fn;
    r->ctx = ctx;
    r->n_posted++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    return CN_OK;
}

/* The error of the barrier, or of rank 0's stream. */
static cn_status lead_error(const cn_ranks *r)
{
    bool done;
    return r->lead->fence_done(r->began, &done);
}

/* Waits for the thread of a rank. After an error it has STOP_WAIT_S more: false then. */
static bool wait_for_command(cn_ranks *r, const cn_rank *k)
{
    double until_s = INFINITY;
    while (k->n_run < r->n_posted && cn_now_s() < until_s) {
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += LOOK_NS;
        if (at.tv_nsec >= 1000000000) at.tv_sec++, at.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&r->changed, &r->mutex, &at);
        if (isinf(until_s) && lead_error(r) != CN_OK) until_s = cn_now_s() + STOP_WAIT_S;
    }
    return k->n_run == r->n_posted;
}

cn_status cn_ranks_join(cn_ranks *r, cn_status lead)
{
    const cn_rank *failed = NULL;
    bool all = true;
    if (r->n == 0) return lead;
    if (lead == CN_OK) lead = meet_others(r, r->lead, r->lead_stream, 0, r->fn);
    if (lead != CN_OK) r->lead->barrier_break(r->model.barrier, cn_last_error());
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = r->n; i-- > 0 && all;) {
        const cn_rank *k = &r->at[i];
        all = wait_for_command(r, k);
        if (k->status != CN_OK) failed = k;
    }
    pthread_mutex_unlock(&r->mutex);
    if (lead != CN_OK) return lead;
    if (!all) return lead_error(r);
    if (failed) return cn_fail(failed->status, "%s", failed->error);
    for (uint32_t i = 0; r->fn == cn_rank_load_weights && i < r->n; i++)
        CN_TRY(r->lead->fence_wait(r->lead_stream, r->at[i].done));
    return CN_OK;
}

static cn_status start_thread(cn_rank *k)
{
    if (pthread_create(&k->thread, NULL, rank_main, k) != 0)
        return cn_fail(CN_ERR_IO, "no thread for rank %u: the system has too many", k->config.rank);
    k->has_thread = true;
    return CN_OK;
}

/* ---- life ---- */

static cn_status open_rank(cn_ranks *r, uint32_t rank, const cn_config *c,
                           const cn_model_config *whole)
{
    cn_rank *k = &r->at[rank - 1];
    k->ranks = r;
    r->n = rank;
    CN_TRY(cn_model_config_rank(&k->config, whole, rank, c->n_ranks));
    CN_TRY(cn_backend_open_rank(&k->backend));
    CN_TRY(k->backend->stream_create(k->backend, CN_PRIORITY_HIGH, &k->stream));
    k->backend->barrier_add(r->model.barrier, rank, k->stream);
    CN_TRY(k->backend->stream_create(k->backend, CN_PRIORITY_LOW, &k->event_stream));
    CN_TRY(k->backend->fence_create(k->backend, &k->done));
    return start_thread(k);
}

cn_status cn_ranks_open(cn_ranks *r, const cn_config *c, const cn_model_config *whole,
                        cn_backend *lead, cn_stream *lead_stream)
{
    if (c->n_ranks <= 1) return CN_OK;
    r->lead = lead;
    r->lead_stream = lead_stream;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    CN_TRY(lead->fence_create(lead, &r->began));
    CN_TRY(lead->barrier_create(lead, c->n_ranks, c->collective_timeout_s, &r->model.barrier));
    lead->barrier_add(r->model.barrier, 0, lead_stream);
    for (uint32_t rank = 1; rank < c->n_ranks; rank++) CN_TRY(open_rank(r, rank, c, whole));
    return CN_OK;
}

void cn_ranks_plan(cn_ranks *r, const cn_config *c, const cn_memory_plan *kv)
{
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        cn_engine_plan_rank(&k->plan, c, kv, k);
        cn_engine_size_pools(&k->pools, c, &k->config, k->backend, kv);
    }
}

cn_status cn_ranks_allocate(cn_ranks *r, void *lead_workspace)
{
    r->model.memory[0] = lead_workspace;
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        const cn_status status = cn_start_plan_allocate(&k->plan, NULL);
        if (status != CN_OK) return cn_fail_within(status, "rank %u", k->config.rank);
        r->model.memory[i + 1] = k->workspace;
        cn_engine_size_select(&k->select, &k->pools, k->plan.config, &k->config,
                              k->plan.kv.block_tokens);
        const cn_planes device = cn_pools_planes(&k->pools);
        if (k->swap_memory)
            k->swap = cn_planes_packed(&device, k->swap_memory, k->plan.kv.n_swap_blocks);
    }
    return CN_OK;
}

cn_status cn_rank_load_weights(cn_rank *k, void *checkpoint)
{
    return cn_weights_load_rank(&k->weights, k->backend, k->stream, checkpoint, &k->config,
                                k->weights_memory);
}

cn_status cn_ranks_create_models(cn_ranks *r, const cn_model_opts *lead)
{
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        cn_model_opts o = *lead;
        o.backend = k->backend;
        o.stream = k->stream;
        o.config = &k->config;
        o.weights = k->weights;
        o.memory = k->workspace;
        o.select = &k->select;
        CN_TRY(cn_model_create(&k->model, &o));
    }
    return CN_OK;
}

cn_status cn_ranks_create_batches(cn_ranks *r, const cn_batch *lead)
{
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        CN_TRY(cn_batch_create_copy(&k->batch, k->backend, lead, k->batch_memory));
    }
    return CN_OK;
}

void cn_ranks_add_events(cn_ranks *r, cn_events_opts *o)
{
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        o->devices[o->n_devices++] = (cn_event_device){
            .backend = k->backend,
            .model_stream = k->stream,
            .stream = k->event_stream,
            .pools = k->pools,
            .scratch = k->compress_scratch,
            .scratch_bytes = cn_start_item_bytes(&k->plan, &k->compress_scratch),
        };
    }
}

/* Waits for the ops of a stream, which may have failed. False: they have not ended until then. */
static bool ends(cn_backend *be, cn_stream *s, cn_fence *fence, double until_s)
{
    bool done = false;
    if (!s || !fence) return true;
    if (be->fence_record(fence, s) != CN_OK) return false;
    for (;;) {
        (void)be->fence_done(fence, &done);
        if (done || cn_now_s() >= until_s) return done;
        nanosleep(&nap, NULL);
    }
}

static bool end_thread(cn_rank *k, double until_s)
{
    while (k->has_thread && cn_now_s() < until_s) {
        k->has_thread = pthread_tryjoin_np(k->thread, NULL) != 0;
        if (k->has_thread) nanosleep(&nap, NULL);
    }
    return !k->has_thread;
}

bool cn_ranks_stop(cn_ranks *r)
{
    if (!r->lead || !r->model.barrier) return true;
    const double wait_s = lead_error(r) == CN_OK ? INFINITY : STOP_WAIT_S;
    const double until_s = cn_now_s() + wait_s;
    bool all = true;
    r->lead->barrier_break(r->model.barrier, "the engine ends");
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->n && all; i++) {
        cn_rank *k = &r->at[i];
        all = end_thread(k, until_s) && ends(k->backend, k->stream, k->done, until_s) &&
              ends(k->backend, k->event_stream, k->done, until_s);
    }
    return all && ends(r->lead, r->lead_stream, r->began, until_s);
}

static void free_rank(cn_rank *k)
{
    cn_backend *be = k->backend;
    cn_batch_free(k->batch);
    cn_model_free(k->model);
    cn_weights_free(k->weights);
    if (k->done) be->fence_free(k->done);
    cn_start_plan_free(&k->plan, NULL);
    if (k->stream) be->stream_free(k->stream);
    if (k->event_stream) be->stream_free(k->event_stream);
    if (be) be->close(be);
}

void cn_ranks_free(cn_ranks *r)
{
    if (!r->lead) return;
    for (uint32_t i = 0; i < r->n; i++) free_rank(&r->at[i]);
    if (r->began) r->lead->fence_free(r->began);
    if (r->model.barrier) r->lead->barrier_free(r->model.barrier);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    *r = (cn_ranks){0};
}

/* ---- steps ---- */

static cn_status copy_in_rank(cn_rank *k, const cn_planes *from, const cn_planes *to,
                              const cn_copy_list *list)
{
    if (list->n_blocks == 0 && list->n_slots == 0) return CN_OK;
    const cn_copy_args args = {.from = *from, .to = *to, .list = *list};
    return k->backend->copy_blocks(k->stream, &args);
}

cn_status cn_rank_run_step(cn_rank *k, void *step)
{
    const cn_rank_step *s = step;
    CN_TRY(cn_model_cover(k->model, k->stream, s->end_position));
    CN_TRY(cn_batch_upload_copy(k->batch, s->batch, k->stream, s->sampled));
    const cn_model_pass pass = {
        .batch = cn_batch_device_view(k->batch),
        .pools = &k->pools,
        .select = cn_batch_select_view(k->batch),
        .logit_rows = cn_batch_logit_rows(k->batch),
        .n_rows = s->n_rows,
    };
    CN_TRY(cn_model_forward(k->model, k->stream, &pass));
    const cn_digest_args digest = {.pools = k->pools, .tiles = s->tiles, .n = s->n_tiles};
    if (s->n_tiles > 0) CN_TRY(k->backend->digest(k->stream, &digest));
    const cn_planes device = cn_pools_planes(&k->pools);
    return copy_in_rank(k, &device, &device, s->forks);
}

cn_status cn_rank_more_logits(cn_rank *k, void *rows)
{
    const cn_rank_rows *a = rows;
    CN_TRY(k->backend->mem_write(k->stream, k->more_rows, a->rows, a->n * sizeof *a->rows));
    return cn_model_more_logits(k->model, k->stream, cn_batch_device_view(k->batch), k->more_rows,
                                a->n);
}

cn_status cn_ranks_swap(cn_ranks *r, const cn_copy_list *out, const cn_copy_list *in)
{
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        const cn_planes device = cn_pools_planes(&k->pools);
        CN_TRY(copy_in_rank(k, &device, &k->swap, out));
        CN_TRY(copy_in_rank(k, &k->swap, &device, in));
    }
    return CN_OK;
}

cn_status cn_ranks_sync(cn_ranks *r, cn_fence *fence)
{
    for (;;) {
        bool done, other;
        CN_TRY(r->lead->fence_done(fence, &done));
        if (done) return CN_OK;
        for (uint32_t i = 0; i < r->n; i++)
            CN_TRY(r->at[i].backend->fence_done(r->at[i].done, &other));
        nanosleep(&nap, NULL);
    }
}
