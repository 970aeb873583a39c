/* serve_stats.c - see serve_stats.h. */
#include "engine/serve/calls/serve_stats.h"

#include <math.h>
#include <pthread.h>

enum { MOST_RETRY_S = 60 };
static const double LATEST_WEIGHT = 0.125;

struct cn_serve_stats {
    pthread_mutex_t lock;
    cn_serve_figures figures;
};

static const double ttft_s[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,  0.75,
                                1,     2.5,   5,    7.5,  10,   20,   40,   80,   160,  640,  2560};
static const double token_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,
                                 0.3,   0.4,    0.5,   0.75, 1,     2.5,  5,     7.5, 10,   20,
                                 40,    80};
static const double request_s[] = {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,
                                   10,   15,   20,  30,  40,  50,  60,  120, 240, 480, 960,
                                   1920, 7680};
static const double tokens[] = {1,    2,    5,    10,    20,    50,    100,   200,
                                500,  1000, 2000, 5000,  10000, 20000, 50000, 100000};
static const double iteration[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double step_s[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
                                0.1,    0.2,   0.5,   1,     2,    5,    10};

#define BOUNDS(array) {array, sizeof array / sizeof *array}
static const struct {
    const double *bounds;
    uint32_t n;
} histograms[CN_N_HISTOGRAMS] = {
    [CN_HIST_TTFT_S] = BOUNDS(ttft_s),           [CN_HIST_ITL_S] = BOUNDS(token_s),
    [CN_HIST_TPOT_S] = BOUNDS(token_s),          [CN_HIST_E2E_S] = BOUNDS(request_s),
    [CN_HIST_QUEUE_S] = BOUNDS(request_s),       [CN_HIST_PREFILL_S] = BOUNDS(request_s),
    [CN_HIST_DECODE_S] = BOUNDS(request_s),      [CN_HIST_PROMPT_TOKENS] = BOUNDS(tokens),
    [CN_HIST_OUTPUT_TOKENS] = BOUNDS(tokens),    [CN_HIST_ITERATION_TOKENS] = BOUNDS(iteration),
    [CN_HIST_STEP_S] = BOUNDS(step_s),
};
_Static_assert(sizeof request_s / sizeof *request_s <= CN_HIST_MAX_BUCKETS, "too many buckets");

const double *cn_histogram_bounds(cn_histogram_id id, uint32_t *n)
{
    CN_ASSERT(id < CN_N_HISTOGRAMS);
    *n = histograms[id].n;
    return histograms[id].bounds;
}

cn_status cn_serve_stats_create(cn_serve_stats **out)
{
    *out = cn_calloc(1, sizeof **out);
    if (!*out) return cn_fail(CN_ERR_MEMORY, "out of memory for the server's counters");
    pthread_mutex_init(&(*out)->lock, NULL);
    return CN_OK;
}

void cn_serve_stats_free(cn_serve_stats *s)
{
    if (!s) return;
    pthread_mutex_destroy(&s->lock);
    cn_free(s);
}

cn_serve_figures *cn_serve_stats_lock(cn_serve_stats *s)
{
    pthread_mutex_lock(&s->lock);
    return &s->figures;
}

void cn_serve_stats_unlock(cn_serve_stats *s) { pthread_mutex_unlock(&s->lock); }

static void add_stats_value(cn_histogram *h, cn_histogram_id id, double value, uint64_t times)
{
    uint32_t n, i = 0;
    const double *bounds = cn_histogram_bounds(id, &n);
    while (i < n && value > bounds[i]) i++;
    h->counts[i == n ? CN_HIST_MAX_BUCKETS : i] += times;
    h->n += times;
    h->sum += value * (double)times;
}

void cn_serve_stats_observe(cn_serve_stats *s, cn_histogram_id id, double value, uint64_t times)
{
    add_stats_value(&cn_serve_stats_lock(s)->histograms[id], id, value, times);
    cn_serve_stats_unlock(s);
}

void cn_serve_stats_observe_class(cn_serve_stats *s, cn_class klass, cn_histogram_id id,
                                  double value, uint64_t times)
{
    cn_serve_figures *f = cn_serve_stats_lock(s);
    add_stats_value(&f->histograms[id], id, value, times);
    add_stats_value(&f->of_class[klass][id], id, value, times);
    cn_serve_stats_unlock(s);
}

void cn_serve_stats_observe_end(cn_serve_stats *s, cn_class klass, double seconds)
{
    double *mean_s = &cn_serve_stats_lock(s)->mean_s_class[klass];
    *mean_s = *mean_s > 0 ? *mean_s + LATEST_WEIGHT * (seconds - *mean_s) : seconds;
    cn_serve_stats_unlock(s);
}

uint32_t cn_serve_stats_retry_s(cn_serve_stats *s, cn_class klass, uint32_t n)
{
    const cn_serve_figures *f = cn_serve_stats_lock(s);
    if (n == 0) n = cn_max_u32(f->active_class[klass], 1);
    const double seconds = ceil(f->mean_s_class[klass] / n);
    cn_serve_stats_unlock(s);
    return (uint32_t)fmin(fmax(seconds, 1), MOST_RETRY_S);
}

void cn_serve_stats_copy(cn_serve_stats *s, cn_serve_figures *out)
{
    *out = *cn_serve_stats_lock(s);
    cn_serve_stats_unlock(s);
}
