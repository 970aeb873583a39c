/* events.c - a ring of event batches. See events.h. */
#include "compress/events.h"

/* One batch more than may be in flight: the batch being filled. */
enum { MAX_IN_FLIGHT = 16, N_BATCHES = MAX_IN_FLIGHT + 1 };

typedef struct event_batch {
    cn_fence *fences[CN_MAX_RANKS]; /* of each device */
    cn_compress_req *reqs; /* [max_batch_events] */
    void **users;          /* [max_batch_events] */
    uint32_t n_events;
    uint64_t started_at; /* number of steps launched before it */
    double started_s;    /* cn_now_s */
} event_batch;

struct cn_events {
    cn_events_opts o;
    cn_fence *step_fences[CN_MAX_RANKS]; /* recorded on the model's streams when a batch starts */
    event_batch batches[N_BATCHES];
    uint64_t head, tail; /* numbers of the oldest batch in flight and of the batch being filled */
    cn_event_stats stats;
};

static cn_status create_event_fences(cn_events *v, uint32_t device)
{
    cn_backend *be = v->o.devices[device].backend;
    CN_TRY(be->fence_create(be, &v->step_fences[device]));
    for (uint32_t i = 0; i < N_BATCHES; i++)
        CN_TRY(be->fence_create(be, &v->batches[i].fences[device]));
    return CN_OK;
}

static cn_status create_event_parts(cn_events *v)
{
    const size_t n = v->o.max_batch_events;
    for (uint32_t i = 0; i < v->o.n_devices; i++) CN_TRY(create_event_fences(v, i));
    for (uint32_t i = 0; i < N_BATCHES; i++) {
        event_batch *b = &v->batches[i];
        b->reqs = cn_calloc(n, sizeof *b->reqs);
        b->users = cn_calloc(n, sizeof *b->users);
        if (!b->reqs || !b->users)
            return cn_fail(CN_ERR_MEMORY, "out of host memory for %zu events", n);
    }
    return CN_OK;
}

cn_status cn_events_create(cn_events **out, const cn_events_opts *o)
{
    *out = NULL;
    cn_events *v = cn_calloc(1, sizeof *v);
    if (!v) return cn_fail(CN_ERR_MEMORY, "out of host memory for compression events");
    v->o = *o;
    cn_status status = create_event_parts(v);
    if (status != CN_OK) {
        cn_events_free(v);
        return status;
    }
    *out = v;
    return CN_OK;
}

void cn_events_free(cn_events *v)
{
    if (!v) return;
    for (uint32_t d = 0; d < v->o.n_devices; d++) {
        cn_backend *be = v->o.devices[d].backend;
        if (v->step_fences[d]) be->fence_free(v->step_fences[d]);
        for (uint32_t i = 0; i < N_BATCHES; i++)
            if (v->batches[i].fences[d]) be->fence_free(v->batches[i].fences[d]);
    }
    for (uint32_t i = 0; i < N_BATCHES; i++) {
        cn_free(v->batches[i].reqs);
        cn_free(v->batches[i].users);
    }
    cn_free(v);
}

static event_batch *batch_to_fill(cn_events *v) { return &v->batches[v->tail % N_BATCHES]; }

static void report_event_batch(cn_events *v, event_batch *b, uint64_t step)
{
    const uint64_t missed = step - b->started_at;
    v->stats.missed[missed < CN_MISSED_STEPS_MAX ? missed : CN_MISSED_STEPS_MAX] += b->n_events;
    v->stats.total_s += b->n_events * (cn_now_s() - b->started_s);
    for (uint32_t i = 0; i < b->n_events; i++) v->o.done(v->o.ctx, b->users[i]);
    b->n_events = 0;
}

/* Sets *done to whether all devices have run the batch. */
static cn_status batch_done(const cn_events *v, const event_batch *b, bool *done)
{
    *done = true;
    for (uint32_t i = 0; i < v->o.n_devices && *done; i++)
        CN_TRY(v->o.devices[i].backend->fence_done(b->fences[i], done));
    return CN_OK;
}

cn_status cn_events_poll(cn_events *v, uint64_t step)
{
    while (v->head != v->tail) {
        event_batch *b = &v->batches[v->head % N_BATCHES];
        bool done = false;
        CN_TRY(batch_done(v, b, &done));
        if (!done) break;
        v->head++;
        report_event_batch(v, b, step);
    }
    return CN_OK;
}

cn_status cn_events_wait(cn_events *v, uint64_t step)
{
    const double began_s = cn_now_s();
    for (uint32_t i = 0; i < v->o.n_devices; i++)
        CN_TRY(v->o.devices[i].backend->stream_sync(v->o.devices[i].stream));
    v->stats.stalled_s += cn_now_s() - began_s;
    return cn_events_poll(v, step);
}

void cn_events_add(cn_events *v, const cn_compress_req *req, void *user)
{
    event_batch *b = batch_to_fill(v);
    CN_ASSERT(b->n_events < v->o.max_batch_events);
    b->reqs[b->n_events] = *req;
    b->users[b->n_events++] = user;
}

static cn_status start_on_device(cn_events *v, const event_batch *b, uint32_t device)
{
    const cn_event_device *d = &v->o.devices[device];
    const bool first = device == 0;
    const cn_compress_args args = {
        .pools = d->pools,
        .reqs = b->reqs,
        .n_reqs = b->n_events,
        .scratch = d->scratch,
        .scratch_bytes = d->scratch_bytes,
    };
    CN_TRY(d->backend->fence_record(v->step_fences[device], d->model_stream));
    CN_TRY(d->backend->fence_wait(d->stream, v->step_fences[device]));
    if (first && v->o.before) CN_TRY(v->o.before(v->o.ctx, b->users, b->n_events));
    CN_TRY(d->backend->compress(d->stream, &args));
    if (first && v->o.after) CN_TRY(v->o.after(v->o.ctx, b->users, b->n_events));
    return d->backend->fence_record(b->fences[device], d->stream);
}

cn_status cn_events_start(cn_events *v, uint64_t step)
{
    event_batch *b = batch_to_fill(v);
    if (b->n_events == 0) return CN_OK;
    if (v->tail - v->head == MAX_IN_FLIGHT) CN_TRY(cn_events_wait(v, step));
    for (uint32_t i = 0; i < v->o.n_devices; i++) CN_TRY(start_on_device(v, b, i));
    b->started_at = step;
    b->started_s = cn_now_s();
    v->tail++;
    return CN_OK;
}

bool cn_events_in_flight(const cn_events *v) { return v->head != v->tail; }

const cn_event_stats *cn_events_stats(const cn_events *v) { return &v->stats; }
