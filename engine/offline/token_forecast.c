/* token_forecast.c - see token_forecast.h. */
#include "engine/offline/token_forecast.h"

#include <math.h>

static uint32_t bucket_of(uint64_t tokens)
{
    if (tokens < CN_LENGTH_EXACT) return (uint32_t)tokens;
    const double steps = CN_LENGTH_STEPS * log2((double)tokens / CN_LENGTH_EXACT);
    const uint32_t bucket = CN_LENGTH_EXACT + (uint32_t)steps;
    return cn_min_u32(bucket, CN_LENGTH_BUCKETS - 1);
}

/* A length in the middle of the bucket. */
static double length_of(uint32_t bucket)
{
    if (bucket < CN_LENGTH_EXACT) return bucket;
    return CN_LENGTH_EXACT * exp2((bucket - CN_LENGTH_EXACT + 0.5) / CN_LENGTH_STEPS);
}

void cn_lengths_add(cn_lengths *l, uint64_t tokens)
{
    l->n[bucket_of(tokens)]++;
    l->count++;
    l->sum += tokens;
}

/* The survival function after each bucket, and how it continues. */
typedef struct survival {
    double s[CN_LENGTH_BUCKETS]; /* share of lines longer than the bucket */
    double mean_beyond;          /* mean of what exceeds the last bucket */
} survival;

static void estimate(survival *out, const cn_lengths *finished, const cn_lengths *running)
{
    double at_risk = (double)(finished->count + running->count), s = 1;
    for (uint32_t b = 0; b < CN_LENGTH_BUCKETS; b++) {
        if (finished->n[b]) s *= 1 - finished->n[b] / at_risk;
        at_risk -= (double)finished->n[b] + running->n[b];
        out->s[b] = s > 1e-9 ? s : 0;
    }
    out->mean_beyond = (double)(finished->sum + running->sum) / (double)finished->count;
}

static uint32_t last_bucket(const cn_lengths *l)
{
    uint32_t b = CN_LENGTH_BUCKETS;
    while (b > 0 && l->n[b - 1] == 0) b--;
    return b ? b - 1 : 0;
}

/* Expected tokens after `from`, of a line that is longer than `from` and has at most `limit`. */
static double expected_after(const survival *v, uint32_t last, double from, double limit)
{
    const uint32_t first = bucket_of((uint64_t)from);
    const double s_from = first ? v->s[first - 1] : 1, end = fmax(length_of(last), from);
    if (limit <= from) return 0;
    double sum = 0, at = from, s = s_from;
    for (uint32_t b = first; b <= last && at < limit && s > 0; b++) {
        const double next = fmin(fmax(length_of(b), at), limit);
        sum += s * (next - at);
        at = next;
        s = v->s[b];
    }
    if (s > 0 && limit > end)
        sum += s * v->mean_beyond * (1 - exp(-(limit - end) / fmax(v->mean_beyond, 1)));
    return s_from > 0 ? sum / s_from : 0;
}

double cn_tokens_to_come(const cn_lengths *finished, const cn_unfinished *u)
{
    const uint64_t n = u->running.count;
    const double limit = n ? (double)u->limit_sum / (double)n : (double)u->limit;
    if (finished->count == 0)
        return fmax((double)u->limit_sum - (double)u->running.sum, 0) + (double)u->unread * limit;
    survival v;
    estimate(&v, finished, &u->running);
    const uint32_t last = last_bucket(finished);
    double sum = (double)u->unread * expected_after(&v, last, 0, limit);
    for (uint32_t b = 0; b < CN_LENGTH_BUCKETS; b++)
        if (u->running.n[b])
            sum += u->running.n[b] * expected_after(&v, last, length_of(b), limit);
    return sum;
}
