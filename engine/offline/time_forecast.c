/* time_forecast.c - see time_forecast.h. */
#include "engine/offline/time_forecast.h"

#include <math.h>

#define MEMORY_S 60.0
#define MOST_PER_BEGUN 20.0

static double bytes_of(const cn_step_cost *c, double steps, double tokens, double kv)
{
    if (c->weights <= 0) return tokens;
    return steps * c->weights + tokens * c->weights / c->rows + kv * c->token;
}

/* Bytes that a line which begins costs: how much fewer were read for each line that began, by least
 * squares. Bounded, because a few samples can mislead. */
static double bytes_per_begun(const cn_pace *p)
{
    if (p->begun <= 0 || p->seconds <= 0) return 0;
    const double together = p->begun_bytes - p->begun * p->bytes / p->seconds;
    const double spread = p->begun_begun - p->begun * p->begun / p->seconds;
    if (together >= 0 || spread <= 1e-9 * p->begun_begun) return 0;
    return fmin(-together / spread, MOST_PER_BEGUN * p->bytes / p->begun);
}

static double seconds_left(const cn_pace *p, const cn_step_cost *c, const cn_batch_work *w)
{
    const double per_line = bytes_per_begun(p), done = p->bytes + per_line * p->begun;
    const double rows = (double)w->running,
                 steps = fmax(w->steps, rows > 0 ? w->to_come / rows : 0);
    const double left = bytes_of(c, steps, w->to_come, w->kv_to_come);
    return (left + per_line * (double)w->to_begin) * p->seconds / done;
}

/* A sample of passed_s seconds, in which the batch made tokens and began lines. */
static void add_sample(cn_pace *p, double passed_s, double tokens, double begun,
                       const cn_step_cost *cost, const cn_batch_work *w)
{
    const double kept = exp(-passed_s / fmax(p->left_s, MEMORY_S));
    const double rows = fmax((double)w->running, 1);
    const double bytes = bytes_of(cost, tokens / rows, tokens, tokens / rows * w->kv);
    p->seconds = p->seconds * kept + passed_s;
    p->tokens = p->tokens * kept + tokens;
    p->bytes = p->bytes * kept + bytes;
    p->begun = p->begun * kept + begun;
    p->begun_bytes = p->begun_bytes * kept + begun * bytes / passed_s;
    p->begun_begun = p->begun_begun * kept + begun * begun / passed_s;
}

void cn_pace_add(cn_pace *p, double now_s, const cn_step_cost *cost, const cn_batch_work *w)
{
    if (p->at_tokens > 0 && w->tokens >= p->at_tokens && w->begun >= p->at_begun) {
        const uint64_t tokens = w->tokens - p->at_tokens;
        if (tokens == 0) return; /* the time counts for the next tokens */
        add_sample(p, now_s - p->at_s, (double)tokens, (double)(w->begun - p->at_begun), cost, w);
        p->left_s = seconds_left(p, cost, w);
    }
    p->at_s = now_s;
    p->at_tokens = w->tokens;
    p->at_begun = w->begun;
}

double cn_pace_tokens_per_s(const cn_pace *p)
{
    return p->seconds > 0 ? p->tokens / p->seconds : 0;
}
