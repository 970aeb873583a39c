/* rank.c - see rank.h. */
#include "engine/rank.h"

#include <string.h>
#include <time.h>

#include "engine/engine_memory.h"
#include "engine/start/device_choice.h"

/* ---- threads ---- */

/* The ops of a command run after what rank 0 had when it was posted. */
static cn_status run_command(cn_rank *k, cn_rank_fn fn, void *ctx)
{
    CN_TRY(k->backend->fence_wait(k->stream, k->ranks->began));
    const cn_status status = fn(k, ctx);
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
    pthread_mutex_lock(&r->mutex);
    r->fn = fn;
    r->ctx = ctx;
    r->n_posted++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    return CN_OK;
}

cn_status cn_ranks_join(cn_ranks *r, cn_status lead)
{
    const cn_rank *failed = NULL;
    if (r->n == 0) return lead;
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = r->n; i-- > 0;) {
        const cn_rank *k = &r->at[i];
        while (k->n_run < r->n_posted) pthread_cond_wait(&r->changed, &r->mutex);
        if (k->status != CN_OK) failed = k;
    }
    pthread_mutex_unlock(&r->mutex);
    if (lead != CN_OK) return lead;
    if (failed) return cn_fail(failed->status, "%s", failed->error);
    for (uint32_t i = 0; i < r->n; i++) CN_TRY(r->lead->fence_wait(r->lead_stream, r->at[i].done));
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

void cn_ranks_stop(cn_ranks *r)
{
    if (!r->lead) return;
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->n; i++) {
        cn_rank *k = &r->at[i];
        if (k->has_thread) pthread_join(k->thread, NULL);
        k->has_thread = false;
        if (k->stream) k->backend->stream_sync(k->stream);
        if (k->event_stream) k->backend->stream_sync(k->event_stream);
    }
    r->lead->stream_sync(r->lead_stream); /* it may have waited for them */
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
    const struct timespec nap = {0, 50000};
    for (;;) {
        bool done, other;
        CN_TRY(r->lead->fence_done(fence, &done));
        if (done) return CN_OK;
        for (uint32_t i = 0; i < r->n; i++)
            CN_TRY(r->at[i].backend->fence_done(r->at[i].done, &other));
        nanosleep(&nap, NULL);
    }
}
