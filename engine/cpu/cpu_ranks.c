/* cpu_ranks.c - see cpu_ranks.h. A barrier counts the arrivals of each rank. A rank passes when all
 * others have arrived as often as itself. It is broken for good after one timeout: ranks that went
 * on alone would read branches that are being written. All streams fail then, so nobody waits for
 * room in the queue of a stream that stands still. */
#include "engine/cpu/cpu_ranks.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <time.h>

#include "engine/cpu/cpu_ops.h"

struct cn_barrier {
    pthread_mutex_t mutex; /* guards everything below */
    pthread_cond_t changed;
    uint32_t n_ranks;
    double timeout_s;
    uint64_t arrived[CN_MAX_RANKS];
    uint32_t tag; /* of the sum of the newest arrival: all ranks must have the same there */
    uint64_t tagged; /* its number, from 1 on */
    cn_stream *stream[CN_MAX_RANKS]; /* they fail when it breaks; or NULL */
    bool is_broken;
    char why[512]; /* the error of the first timeout, or of what ended before a sum */
    bool holds; /* for tests: rank `held` stops at its sum `held_at` */
    uint32_t held;
    uint64_t held_at;
};

cn_status cn_cpu_barrier_create(cn_backend *be, uint32_t n_ranks, double timeout_s,
                                cn_barrier **out)
{
    (void)be;
    CN_ASSERT(n_ranks <= CN_MAX_RANKS);
    cn_barrier *b = cn_calloc(1, sizeof *b);
    *out = b;
    if (!b) return cn_fail(CN_ERR_MEMORY, "out of host memory for a barrier");
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->changed, &clock);
    pthread_condattr_destroy(&clock);
    b->n_ranks = n_ranks;
    b->timeout_s = timeout_s;
    return CN_OK;
}

void cn_cpu_barrier_free(cn_barrier *b)
{
    if (!b) return;
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    cn_free(b);
}

void cn_cpu_barrier_hold(cn_barrier *b, uint32_t rank, uint64_t sum)
{
    pthread_mutex_lock(&b->mutex);
    b->holds = true;
    b->held = rank;
    b->held_at = b->arrived[rank] + sum;
    pthread_mutex_unlock(&b->mutex);
}

/* The first rank that has not arrived `count` times; n_ranks: all have. */
static uint32_t missing_rank(const cn_barrier *b, uint64_t count)
{
    uint32_t rank = 0;
    while (rank < b->n_ranks && b->arrived[rank] >= count) rank++;
    return rank;
}

static struct timespec deadline_of(const cn_barrier *b)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    const double seconds = floor(b->timeout_s);
    at.tv_sec += (time_t)seconds;
    at.tv_nsec += (long)((b->timeout_s - seconds) * 1e9);
    if (at.tv_nsec < 1000000000) return at;
    at.tv_sec++;
    at.tv_nsec -= 1000000000;
    return at;
}

static void arrive(cn_barrier *b, const cn_reduce_norm_args *a)
{
    const uint64_t count = ++b->arrived[a->rank];
    const uint32_t tag = 2 * a->layer + a->is_mlp;
    if (b->tagged < count) {
        b->tagged = count;
        b->tag = tag;
    }
    CN_ASSERT(b->tag == tag);
    pthread_cond_broadcast(&b->changed);
}

void cn_cpu_barrier_add(cn_barrier *b, uint32_t rank, cn_stream *s)
{
    pthread_mutex_lock(&b->mutex);
    b->stream[rank] = s;
    pthread_mutex_unlock(&b->mutex);
}

/* With the mutex. */
static void mark_broken(cn_barrier *b, const char *why)
{
    if (b->is_broken) return;
    b->is_broken = true;
    snprintf(b->why, sizeof b->why, "%s", why);
    for (uint32_t i = 0; i < b->n_ranks; i++)
        if (b->stream[i]) cn_cpu_stream_fail(b->stream[i], CN_ERR_DEVICE, b->why);
    pthread_cond_broadcast(&b->changed);
}

void cn_cpu_barrier_break(cn_barrier *b, const char *why)
{
    pthread_mutex_lock(&b->mutex);
    mark_broken(b, why);
    pthread_mutex_unlock(&b->mutex);
}

static void write_why(char *why, size_t size, const cn_barrier *b, uint32_t missing,
                      const cn_reduce_norm_args *a)
{
    if (a->n_tokens == 0)
        snprintf(why, size, "rank %u did not reach the begin or end of a step within %g s "
                            "(--collective-timeout)", missing, b->timeout_s);
    else
        snprintf(why, size, "rank %u did not reach the sum after the %s of layer %u within %g s "
                            "(--collective-timeout)",
                 missing, a->is_mlp ? "MLP" : "attention", a->layer, b->timeout_s);
}

/* With the mutex. */
static cn_status refuse_broken(const cn_barrier *b) { return cn_fail(CN_ERR_DEVICE, "%s", b->why); }

/* Waits for the other ranks, with the mutex. */
static cn_status meet_ranks(cn_barrier *b, const cn_reduce_norm_args *a)
{
    while (b->holds && b->held == a->rank && b->arrived[a->rank] >= b->held_at && !b->is_broken)
        pthread_cond_wait(&b->changed, &b->mutex);
    if (b->is_broken) return refuse_broken(b);
    arrive(b, a);
    const uint64_t count = b->arrived[a->rank];
    const struct timespec deadline = deadline_of(b);
    int waited = 0;
    while (missing_rank(b, count) < b->n_ranks && !b->is_broken && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&b->changed, &b->mutex, &deadline);
    const uint32_t missing = missing_rank(b, count);
    if (missing == b->n_ranks) return CN_OK;
    char why[sizeof b->why];
    write_why(why, sizeof why, b, missing, a);
    mark_broken(b, why);
    return refuse_broken(b);
}

static void reduce_norm_row(const void *args, uint32_t t)
{
    const cn_reduce_norm_args *a = args;
    const size_t row = (size_t)t * a->hidden;
    float *residual = (float *)a->residual + row;
    for (uint32_t rank = 0; rank < a->n_ranks; rank++) {
        const float *branch = (const float *)a->branch[rank] + row;
        for (uint32_t i = 0; i < a->hidden; i++) residual[i] += branch[i];
    }
    cn_cpu_rms_scale((float *)a->out + row, residual, a->weight, a->hidden, a->eps);
}

cn_status cn_cpu_reduce_norm(cn_stream *s, const cn_reduce_norm_args *a)
{
    cn_barrier *b = a->barrier;
    CN_ASSERT(cn_cpu_stream_is_threaded(s) && a->n_ranks == b->n_ranks && a->rank < b->n_ranks);
    pthread_mutex_lock(&b->mutex);
    const cn_status status = meet_ranks(b, a);
    pthread_mutex_unlock(&b->mutex);
    CN_TRY(status);
    cn_cpu_for_rows(s, a, a->n_tokens, a->hidden, reduce_norm_row);
    return CN_OK;
}
