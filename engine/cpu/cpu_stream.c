/* cpu_stream.c - streams as threads with a bounded queue, and fences. See cpu_stream.h.
 *
 * A fence counts. `recorded` is the number of records that were submitted; `completed` is the
 * number of the latest one that a stream has run. A wait takes the number at the time of its
 * submission, so a fence can be recorded again while a stream still waits for an earlier record.
 *
 * An error of an op stays with its stream, and fences carry it to the streams that wait for them:
 * the results of the op are missing there. */
#include "engine/cpu/cpu_stream.h"

#include <pthread.h>

enum { QUEUE_ENTRIES = 64, STREAM_ERROR_BYTES = 512 };

typedef struct closure {
    cn_cpu_op_fn fn;
    _Alignas(16) unsigned char args[CN_CPU_MAX_ARGS_BYTES];
} closure;

struct cn_stream {
    struct cn_cpu *cpu;
    bool threaded;
    uint32_t worker;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t changed;
    closure ring[QUEUE_ENTRIES];
    uint64_t n_submitted, n_taken, n_finished;
    bool stop;
    cn_status error;
    char error_text[STREAM_ERROR_BYTES];
};

struct cn_fence {
    pthread_mutex_t mutex; /* guards completed, reached_s, n_pending and the error */
    pthread_cond_t reached;
    uint64_t recorded; /* used by the submitting thread only */
    uint64_t completed;
    double reached_s;   /* cn_now_s of the latest record that a stream has run */
    uint32_t n_pending; /* records and waits that streams have not run yet */
    cn_stream *stream;  /* of the last record; used by the submitting thread only */
    cn_status error;    /* of a stream that reached a record; a stream that waits fails with it */
    char error_text[STREAM_ERROR_BYTES];
};

typedef struct fence_point {
    cn_fence *fence;
    uint64_t count;
} fence_point;

static cn_status stream_error(cn_stream *s)
{
    pthread_mutex_lock(&s->mutex);
    cn_status status = s->error;
    char text[STREAM_ERROR_BYTES];
    memcpy(text, s->error_text, sizeof text);
    pthread_mutex_unlock(&s->mutex);
    return status == CN_OK ? CN_OK : cn_fail(status, "%s", text);
}

static cn_status reach_point(cn_stream *s, const void *args)
{
    const fence_point *p = args;
    const cn_status error = stream_error(s);
    pthread_mutex_lock(&p->fence->mutex);
    if (error != CN_OK && p->fence->error == CN_OK) {
        p->fence->error = error;
        snprintf(p->fence->error_text, STREAM_ERROR_BYTES, "%s", cn_last_error());
    }
    if (p->fence->completed < p->count) p->fence->completed = p->count;
    p->fence->reached_s = cn_now_s();
    p->fence->n_pending--;
    pthread_cond_broadcast(&p->fence->reached);
    pthread_mutex_unlock(&p->fence->mutex);
    return CN_OK;
}

static cn_status await_point(cn_stream *s, const void *args)
{
    (void)s;
    const fence_point *p = args;
    char text[STREAM_ERROR_BYTES];
    pthread_mutex_lock(&p->fence->mutex);
    while (p->fence->completed < p->count) pthread_cond_wait(&p->fence->reached, &p->fence->mutex);
    const cn_status error = p->fence->error;
    memcpy(text, p->fence->error_text, sizeof text);
    p->fence->n_pending--;
    pthread_cond_broadcast(&p->fence->reached);
    pthread_mutex_unlock(&p->fence->mutex);
    return error == CN_OK ? CN_OK : cn_fail(error, "%s", text);
}

/* After an error, ops are skipped. Fences are not, because a thread may wait for them. */
static cn_status run_closure(cn_stream *s, const closure *c, cn_status error)
{
    bool is_fence = c->fn == reach_point || c->fn == await_point;
    return error == CN_OK || is_fence ? c->fn(s, c->args) : CN_OK;
}

static void *stream_main(void *arg)
{
    cn_stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while (s->n_taken == s->n_submitted && !s->stop) pthread_cond_wait(&s->changed, &s->mutex);
        if (s->n_taken == s->n_submitted) break;
        closure c = s->ring[s->n_taken++ % QUEUE_ENTRIES];
        cn_status error = s->error;
        pthread_cond_broadcast(&s->changed); /* an entry is free */
        pthread_mutex_unlock(&s->mutex);
        cn_status status = run_closure(s, &c, error);
        pthread_mutex_lock(&s->mutex);
        if (status != CN_OK && s->error == CN_OK) {
            s->error = status;
            snprintf(s->error_text, sizeof s->error_text, "%s", cn_last_error());
        }
        s->n_finished++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

cn_status cn_cpu_stream_create(cn_stream **out, struct cn_cpu *cpu, bool threaded,
                               uint32_t worker)
{
    *out = NULL;
    cn_stream *s = cn_calloc(1, sizeof *s);
    if (!s) return cn_fail(CN_ERR_MEMORY, "cpu stream: out of memory");
    s->cpu = cpu;
    s->threaded = threaded;
    s->worker = worker;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (threaded && pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        s->threaded = false;
        cn_cpu_stream_free(s);
        return cn_fail(CN_ERR_MEMORY, "cpu stream: cannot start its thread");
    }
    *out = s;
    return CN_OK;
}

void cn_cpu_stream_free(cn_stream *s)
{
    if (!s) return;
    if (s->threaded) {
        pthread_mutex_lock(&s->mutex);
        s->stop = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->mutex);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    cn_free(s);
}

struct cn_cpu *cn_cpu_stream_owner(const cn_stream *s) { return s->cpu; }

uint32_t cn_cpu_stream_worker(const cn_stream *s) { return s->worker; }

bool cn_cpu_stream_is_threaded(const cn_stream *s) { return s->threaded; }

cn_status cn_cpu_stream_submit(cn_stream *s, cn_cpu_op_fn fn, const void *args, size_t bytes)
{
    CN_ASSERT(bytes <= CN_CPU_MAX_ARGS_BYTES);
    if (!s->threaded) return fn(s, args);
    pthread_mutex_lock(&s->mutex);
    bool is_full;
    while ((is_full = s->n_submitted - s->n_taken == QUEUE_ENTRIES) && s->error == CN_OK)
        pthread_cond_wait(&s->changed, &s->mutex);
    if (is_full) {
        pthread_mutex_unlock(&s->mutex);
        return stream_error(s);
    }
    closure *c = &s->ring[s->n_submitted++ % QUEUE_ENTRIES];
    c->fn = fn;
    memcpy(c->args, args, bytes);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return CN_OK;
}

void cn_cpu_stream_fail(cn_stream *s, cn_status status, const char *why)
{
    pthread_mutex_lock(&s->mutex);
    if (s->error == CN_OK) {
        s->error = status;
        snprintf(s->error_text, sizeof s->error_text, "%s", why);
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
}

cn_status cn_cpu_stream_wait(cn_stream *s)
{
    if (!s->threaded) return CN_OK;
    pthread_mutex_lock(&s->mutex);
    while (s->n_finished != s->n_submitted && s->error == CN_OK)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return stream_error(s);
}

cn_status cn_cpu_stream_sync(cn_stream *s)
{
    if (!s->threaded) return CN_OK;
    pthread_mutex_lock(&s->mutex);
    while (s->n_finished != s->n_submitted) pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return stream_error(s);
}

/* ---- fences ---- */

cn_status cn_cpu_fence_create(cn_backend *be, cn_fence **out)
{
    (void)be;
    cn_fence *f = cn_calloc(1, sizeof *f);
    *out = f;
    if (!f) return cn_fail(CN_ERR_MEMORY, "cpu fence: out of memory");
    pthread_mutex_init(&f->mutex, NULL);
    pthread_cond_init(&f->reached, NULL);
    return CN_OK;
}

void cn_cpu_fence_free(cn_fence *f)
{
    if (!f) return;
    pthread_mutex_lock(&f->mutex);
    while (f->n_pending > 0) pthread_cond_wait(&f->reached, &f->mutex);
    pthread_mutex_unlock(&f->mutex);
    pthread_cond_destroy(&f->reached);
    pthread_mutex_destroy(&f->mutex);
    cn_free(f);
}

static cn_status submit_point(cn_stream *s, cn_fence *f, cn_cpu_op_fn fn)
{
    fence_point p = {f, f->recorded};
    pthread_mutex_lock(&f->mutex);
    f->n_pending++;
    pthread_mutex_unlock(&f->mutex);
    const cn_status status = cn_cpu_stream_submit(s, fn, &p, sizeof p);
    if (status == CN_OK || !s->threaded) return status;
    pthread_mutex_lock(&f->mutex);
    f->n_pending--;
    pthread_mutex_unlock(&f->mutex);
    return status;
}

cn_status cn_cpu_fence_record(cn_fence *f, cn_stream *s)
{
    f->stream = s;
    f->recorded++;
    return submit_point(s, f, reach_point);
}

cn_status cn_cpu_fence_wait(cn_stream *s, cn_fence *f) { return submit_point(s, f, await_point); }

cn_status cn_cpu_fence_done(cn_fence *f, bool *done)
{
    pthread_mutex_lock(&f->mutex);
    *done = f->completed >= f->recorded;
    pthread_mutex_unlock(&f->mutex);
    return f->stream ? stream_error(f->stream) : CN_OK;
}

cn_status cn_cpu_fence_sync(cn_fence *f)
{
    pthread_mutex_lock(&f->mutex);
    while (f->completed < f->recorded) pthread_cond_wait(&f->reached, &f->mutex);
    pthread_mutex_unlock(&f->mutex);
    return f->stream ? stream_error(f->stream) : CN_OK;
}

static double reached_at(cn_fence *f)
{
    pthread_mutex_lock(&f->mutex);
    const double s = f->reached_s;
    pthread_mutex_unlock(&f->mutex);
    return s;
}

cn_status cn_cpu_fence_seconds(cn_fence *from, cn_fence *to, double *seconds)
{
    *seconds = reached_at(to) - reached_at(from);
    return CN_OK;
}
