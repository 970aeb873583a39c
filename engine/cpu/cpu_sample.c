/* cpu_sample.c - samples tokens from logits, one row at a time.
 *
 * The logits are copied to scratch with bans, biases, penalties and temperature applied. After that
 * a row is a list of candidates (id, key, weight) in id order, which min_p, top_k and top_p shorten
 * one after the other. Thresholds come from a radix select over the bits of the keys, which counts
 * candidates for top_k and weights for top_p: three passes, no sort. engine/sample_math.h defines
 * the arithmetic. */
#include "engine/cpu/cpu_sample.h"

#include <math.h>

#include "engine/base/base.h"
#include "engine/sample_math.h"

enum {
    RADIX_LEVELS = 3,
    RADIX_BINS = 2048,
    COUNT_IN_PROMPT = 0x8000,
    COUNT_OUTPUT_MAX = 0x7fff
};

/* The scratch of a row and its candidates. */
typedef struct candidates {
    uint64_t *mass;   /* [RADIX_BINS] */
    uint64_t *weight; /* [n] */
    uint32_t *key;    /* [n] cn_sample_key of the logit */
    uint32_t *id;     /* [n] ascending */
    float *logit;     /* [V] processed logits; gather_candidates() is the last reader */
    uint32_t n;
} candidates;

size_t cn_cpu_sample_scratch_bytes(uint32_t vocab)
{
    size_t padded = cn_round_up(vocab, 16);
    return RADIX_BINS * sizeof(uint64_t) +
           padded * (sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(float));
}

static candidates carve(void *scratch, uint32_t vocab)
{
    size_t padded = cn_round_up(vocab, 16);
    candidates c = {.mass = scratch};
    c.weight = c.mass + RADIX_BINS;
    c.key = (uint32_t *)(c.weight + padded);
    c.id = c.key + padded;
    c.logit = (float *)(c.id + padded);
    return c;
}

static void apply_cpu_mask(const uint32_t *mask, uint32_t vocab, float *x)
{
    for (uint32_t i = 0; i < vocab; i++) x[i] = mask[i / 32] >> i % 32 & 1 ? x[i] : -INFINITY;
}

/* out[V] = the row's logits after the mask, bans, biases and penalties. */
static void process_logits(const cn_sample_args *a, uint32_t row, float *out)
{
    const cn_sample_row *r = &a->rows[row];
    const float *in = a->logits + (size_t)row * a->vocab;
    for (uint32_t i = 0; i < a->vocab; i++) out[i] = in[i] == in[i] ? in[i] : -INFINITY;
    if (r->mask)
        apply_cpu_mask(a->masks + (r->mask - 1) * cn_ceil_div(a->vocab, 32), a->vocab, out);
    for (uint32_t i = 0; i < r->n_ban; i++) out[a->bans[r->ban_start + i]] = -INFINITY;
    for (uint32_t i = 0; i < r->n_bias; i++) {
        const cn_logit_bias *b = &a->biases[r->bias_start + i];
        out[b->token] += b->bias;
    }
    if (r->count_slot < 0) return;
    const uint16_t *counts = a->counts + (size_t)r->count_slot * a->vocab;
    for (uint32_t i = 0; i < a->vocab; i++) {
        out[i] = cn_sample_penalise(out[i], counts[i], r->repetition_penalty,
                                    r->frequency_penalty, r->presence_penalty);
    }
}

/* Returns the index of the largest of x[n]; ties: the lower index. NaN is never chosen. Returns 0
 * when no element is above -inf. */
static uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    float value = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] > value) {
            value = x[i];
            best = i;
        }
    }
    return best;
}

static uint64_t sum_weights(const uint64_t *weight, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) total += weight[i];
    return total;
}

/* out[n] = logits relative to the largest, divided by the temperature; out may be x. */
static void scale(const float *x, float *out, uint32_t n, float max, float temperature)
{
    for (uint32_t i = 0; i < n; i++) out[i] = cn_sample_scale(x[i], max, temperature);
}

static void weigh_cpu(const float *restrict scaled, uint64_t *restrict weight, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) weight[i] = cn_sample_weight(scaled[i]);
}

/* Collects the candidates: the tokens whose weight is at least `least`. Every entry is written and
 * only the index depends on the test, because a branch would be mispredicted often. */
static void gather_candidates(candidates *c, uint32_t vocab, uint64_t least)
{
    uint64_t *weight = c->weight;
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        uint64_t w = weight[i];
        weight[n] = w;
        c->key[n] = cn_sample_key(c->logit[i]);
        c->id[n] = i;
        n += w >= least;
    }
    c->n = n;
}

/* Returns the largest key such that the candidates at or above it reach `need`, in weight or in
 * number. All candidates together must reach it. */
static uint32_t threshold_key(const candidates *c, bool by_weight, uint64_t need)
{
    static const uint32_t shift[RADIX_LEVELS] = {21, 10, 0};
    static const uint32_t mask[RADIX_LEVELS] = {2047, 2047, 1023};
    uint32_t prefix = 0;
    for (int level = 0; level < RADIX_LEVELS; level++) {
        memset(c->mass, 0, RADIX_BINS * sizeof *c->mass);
        for (uint32_t i = 0; i < c->n; i++) {
            if (level > 0 && c->key[i] >> shift[level - 1] != prefix) continue;
            c->mass[c->key[i] >> shift[level] & mask[level]] += by_weight ? c->weight[i] : 1;
        }
        uint32_t bin = mask[level];
        while (c->mass[bin] < need) {
            CN_ASSERT(bin > 0);
            need -= c->mass[bin--];
        }
        prefix = prefix * (mask[level] + 1) + bin;
    }
    return prefix;
}

/* Drops the candidates below `key`. */
static void keep_from(candidates *c, uint32_t key)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->key[i] < key) continue;
        c->weight[n] = c->weight[i];
        c->key[n] = c->key[i];
        c->id[n++] = c->id[i];
    }
    c->n = n;
}

static cn_cpu_distribution only(candidates *c, uint32_t id)
{
    c->id[0] = id;
    c->weight[0] = 1;
    return (cn_cpu_distribution){c->id, c->weight, 1};
}

static bool is_cpu_forced(const cn_sample_args *a, const cn_sample_row *r)
{
    const bool has_prev = a->prev_tokens && r->prev_row >= 0;
    return cn_sample_is_forced(r->force_token, r->force_after,
                               has_prev ? &a->prev_tokens[r->prev_row] : NULL);
}

cn_cpu_distribution cn_cpu_sample_distribution(const cn_sample_args *a, uint32_t row,
                                               void *scratch)
{
    const cn_sample_row *r = &a->rows[row];
    candidates c = carve(scratch, a->vocab);
    if (is_cpu_forced(a, r)) return only(&c, (uint32_t)r->force_token);
    process_logits(a, row, c.logit);
    uint32_t best = argmax(c.logit, a->vocab);
    float max = c.logit[best];
    if (max == -INFINITY) return only(&c, CN_NO_TOKEN);
    if (r->temperature <= 0.0f) return only(&c, best);

    scale(c.logit, c.logit, a->vocab, max, r->temperature);
    weigh_cpu(c.logit, c.weight, a->vocab);
    gather_candidates(&c, a->vocab, cn_sample_min_weight(r->min_p));
    if (r->top_k > 0 && (uint32_t)r->top_k < c.n) {
        keep_from(&c, threshold_key(&c, false, (uint64_t)r->top_k));
    }
    if (r->top_p < 1.0f) {
        uint64_t need = cn_sample_nucleus(r->top_p, sum_weights(c.weight, c.n));
        keep_from(&c, threshold_key(&c, true, need));
    }
    return (cn_cpu_distribution){c.id, c.weight, c.n};
}

/* Returns the first id whose cumulative weight exceeds the point drawn for the row. */
static uint32_t draw_cpu(const cn_cpu_distribution *d, const cn_sample_row *r)
{
    if (d->n == 1) return d->ids[0];
    uint64_t u = cn_philox_u64(r->seed, r->sample, r->position);
    uint64_t point = cn_sample_point(u, sum_weights(d->weights, d->n));
    uint64_t cumulative = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        cumulative += d->weights[i];
        if (cumulative > point) return d->ids[i];
    }
    CN_ASSERT(!"the point lies below the sum of the weights");
    return 0;
}

static float no_cpu_nan(float x) { return x == x ? x : -INFINITY; }

static float cpu_logprob_of(float logit, float max, double mass)
{
    float x = cn_sample_scale(logit, max, 1.0f);
    return x == x ? (float)((double)x - mass) : -INFINITY;
}

/* Writes the logprobs of the raw logits: of `token`, and of the best tokens, by insertion sort. */
static void write_cpu_logprobs(const cn_sample_args *a, uint32_t row, uint32_t token, void *scratch)
{
    const float *logits = a->logits + (size_t)row * a->vocab;
    float max = logits[argmax(logits, a->vocab)];
    candidates c = carve(scratch, a->vocab);
    scale(logits, c.logit, a->vocab, max, 1.0f);
    weigh_cpu(c.logit, c.weight, a->vocab);
    double mass = INFINITY; /* no logit above -inf: every logprob is -inf */
    if (max > -INFINITY)
        mass = log((double)sum_weights(c.weight, a->vocab)) - CN_WEIGHT_BITS * log(2.0);
    a->token_logprobs[row] =
        token == CN_NO_TOKEN ? -INFINITY : cpu_logprob_of(logits[token], max, mass);

    uint32_t want = cn_min_u32((uint32_t)a->rows[row].n_logprobs, CN_MAX_LOGPROBS);
    cn_logprob *top = a->top + (size_t)row * CN_MAX_LOGPROBS;
    uint32_t n = 0;
    if (want == 0) return;
    for (uint32_t i = 0; i < a->vocab; i++) {
        float x = no_cpu_nan(logits[i]);
        if (n == want && x <= top[n - 1].logprob) continue;
        uint32_t at = n < want ? n++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < x; at--) top[at] = top[at - 1];
        top[at] = (cn_logprob){i, x};
    }
    for (uint32_t i = 0; i < n; i++) top[i].logprob = cpu_logprob_of(top[i].logprob, max, mass);
}

static void write_cpu_rank(const cn_sample_args *a, uint32_t row, uint32_t token)
{
    const float *logits = a->logits + (size_t)row * a->vocab;
    const float own = no_cpu_nan(logits[token]);
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->vocab; i++) n += no_cpu_nan(logits[i]) >= own;
    a->ranks[row] = n;
}

static void count_output(uint16_t *count)
{
    if ((*count & COUNT_OUTPUT_MAX) < COUNT_OUTPUT_MAX) *count = (uint16_t)(*count + 1);
}

void cn_cpu_sample_row(const cn_sample_args *a, uint32_t row, void *scratch)
{
    const cn_sample_row *r = &a->rows[row];
    cn_cpu_distribution d = cn_cpu_sample_distribution(a, row, scratch);
    uint32_t token = draw_cpu(&d, r);
    a->tokens[row] = token;
    if (r->n_logprobs >= 0) write_cpu_logprobs(a, row, token, scratch);
    if (r->n_logprobs >= 0 && a->ranks && is_cpu_forced(a, r)) write_cpu_rank(a, row, token);
    if (r->count_slot >= 0 && token != CN_NO_TOKEN)
        count_output(&a->counts[(size_t)r->count_slot * a->vocab + token]);
}

static cn_status check_cpu_tokens(const uint32_t *tokens, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= vocab) {
            return cn_fail(CN_ERR_SHAPE,
                           "count_reset: token %u: expected less than the vocabulary size %u",
                           tokens[i], vocab);
        }
    }
    return CN_OK;
}

cn_status cn_cpu_count_reset(cn_stream *s, const cn_count_reset_args *a)
{
    (void)s;
    CN_TRY(check_cpu_tokens(a->prompt, a->n_prompt, a->vocab));
    CN_TRY(check_cpu_tokens(a->output, a->n_output, a->vocab));
    uint16_t *counts = a->counts + (size_t)a->slot * a->vocab;
    memset(counts, 0, a->vocab * sizeof *counts);
    for (uint32_t i = 0; i < a->n_prompt; i++) counts[a->prompt[i]] = COUNT_IN_PROMPT;
    for (uint32_t i = 0; i < a->n_output; i++) count_output(&counts[a->output[i]]);
    return CN_OK;
}
