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

/* Sum over a line's output tokens to `length` of the tokens that it then holds. */
static double kv_area(const cn_unfinished *u, double length)
{
    const double free = u->most_kv > 0 ? fmax(u->most_kv - u->prompt, 0) : length;
    const double grown = fmin(length, free), held = u->prompt + grown;
    const double most = u->most_kv > 0 ? fmin(held, u->most_kv) : held;
    return (fmin(u->prompt, most) + most) / 2 * grown + most * (length - grown);
}

/* Adds `share` of the tokens from `from` to `to` of a line. */
static void add_tokens(cn_to_come *sum, const cn_unfinished *u, double share, double from,
                       double to)
{
    sum->tokens += share * (to - from);
    sum->kv += share * (kv_area(u, to) - kv_area(u, from));
}

/* Expected tokens after `from`, of a line that is longer than `from` and has at most `limit`. */
static cn_to_come expected_after(const survival *v, uint32_t last, double from, double limit,
                                 const cn_unfinished *u)
{
    const uint32_t first = bucket_of((uint64_t)from);
    const double s_from = first ? v->s[first - 1] : 1, end = fmax(length_of(last), from);
    cn_to_come sum = {0};
    if (limit <= from || s_from <= 0) return sum;
    double at = from, s = s_from;
    for (uint32_t b = first; b <= last && at < limit && s > 0; b++) {
        const double next = fmin(fmax(length_of(b), at), limit);
        add_tokens(&sum, u, s / s_from, at, next);
        at = next;
        s = v->s[b];
    }
    if (s > 0 && limit > end) {
        const double more = v->mean_beyond * (1 - exp(-(limit - end) / fmax(v->mean_beyond, 1)));
        add_tokens(&sum, u, s / s_from, end, end + more);
    }
    return sum;
}

/* Most tokens of a line that has not begun: the mean limit of the running lines, if there are any.
 */
static double limit_of(const cn_unfinished *u)
{
    return u->running.count ? (double)u->limit_sum / (double)u->running.count : (double)u->limit;
}

cn_to_come cn_tokens_to_come(const cn_lengths *finished, const cn_unfinished *u)
{
    const double limit = limit_of(u);
    cn_to_come sum = {0}, line;
    survival v;
    const bool known = finished->count > 0;
    const uint32_t last = last_bucket(finished);
    if (known) estimate(&v, finished, &u->running);
    for (uint32_t b = 0; b <= CN_LENGTH_BUCKETS; b++) { /* the last: lines that are not read */
        const bool unread = b == CN_LENGTH_BUCKETS;
        const double n = unread ? (double)u->unread : u->running.n[b];
        const double from = unread ? 0 : length_of(b);
        if (n <= 0) continue;
        line = (cn_to_come){0};
        if (known)
            line = expected_after(&v, last, from, limit, u);
        else if (limit > from)
            add_tokens(&line, u, 1, from, limit);
        sum.tokens += n * line.tokens;
        sum.kv += n * line.kv;
    }
    /* Without the rounding of buckets. */
    if (!known)
        sum.tokens =
            fmax((double)u->limit_sum - (double)u->running.sum, 0) + (double)u->unread * limit;
    return sum;
}

double cn_kv_now(const cn_unfinished *u)
{
    double sum = 0;
    for (uint32_t b = 1; b < CN_LENGTH_BUCKETS; b++) {
        const double held = u->prompt + length_of(b);
        if (u->running.n[b])
            sum += u->running.n[b] * (u->most_kv > 0 ? fmin(held, u->most_kv) : held);
    }
    return sum;
}

/* ---- steps ---- */

/* The share of lines that are longer than `length`; v NULL: no line has finished, and every line
 * has the length `limit`. */
static double share_longer(const survival *v, uint32_t last, double length, double limit)
{
    if (length >= limit) return 0;
    if (!v) return 1;
    const uint32_t b = bucket_of((uint64_t)length);
    if (b <= last) return b ? v->s[b - 1] : 1;
    return v->s[last] * exp((length_of(last) - length) / fmax(v->mean_beyond, 1));
}

/* How many of the running lines are expected to run for more than `steps`. */
static double still_running(const survival *v, uint32_t last, double limit,
                            const cn_lengths *running, double steps)
{
    double sum = 0;
    for (uint32_t b = 1; b < CN_LENGTH_BUCKETS; b++) {
        const double now = running->n[b] ? share_longer(v, last, length_of(b), limit) : 0;
        if (now > 0)
            sum += running->n[b] * share_longer(v, last, length_of(b) + steps, limit) / now;
    }
    return sum;
}

double cn_steps_to_come(const cn_lengths *finished, const cn_unfinished *u)
{
    /* Lines that are expected to run when the last one ends: e to the power of minus Euler's
     * constant, exact if the chance of each to go on falls by the same factor in each step. */
    const double at_the_end = 0.5615;
    const uint64_t slots = u->running.count - u->running.n[0];
    const double waiting = (double)(u->unread + u->running.n[0]), limit = limit_of(u);
    const uint32_t last = last_bucket(finished);
    survival v;
    const survival *known = finished->count > 0 ? &v : NULL;
    if (slots == 0) return 0;
    if (known) estimate(&v, finished, &u->running);
    /* The lines that run when all have begun are as old as those that run now. */
    double low = 0, high = limit;
    while (high - low > 1) {
        const double middle = (low + high) / 2;
        *(still_running(known, last, limit, &u->running, middle) > at_the_end ? &low : &high) =
            middle;
    }
    const double mean = known ? expected_after(&v, last, 0, limit, u).tokens : limit;
    return waiting * mean / (double)slots + high;
}
