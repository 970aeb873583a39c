/* cpu_sel_score.c - score: candidates of a selection compared with the query.
 *
 * Tasks are (unit, chunk of candidates). A task computes logits run by run; a run is neighbouring
 * candidates whose keys lie side by side in the pool. The kinds of keys:
 *   rows    q . k.
 *   bounds  sum over channels of max(q_c min_c, q_c max_c), which is one product of width 2 d:
 *           [min(q, 0) | max(q, 0)] . [min | max]. A group's sum is the product with the sum.
 *           With several queries the score is the largest of their sums.
 *   labels  integer products in 16 bits, tokens in the lanes.
 *   hash    no query; the score is the hash.
 * Group rule max takes two more loops: the share of each candidate by query head, then the largest
 * share of the group.
 *
 * Bytes read per candidate and kv head: rows those of K, bounds 8 d, labels n_channels / 2 + 2. */
#include <math.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"
#include "engine/cpu/cpu_simd.h"
#include "engine/select/select_math.h"

enum {
    CHUNK = 1024, /* candidates of a task */
    RUN = 64,     /* most candidates of a run */
    ROWS = 8,     /* query heads, or queries, of a pass */
    DOTS = 4,     /* products computed side by side */
    MAX_WIDTH = 2 * CN_CPU_MAX_HEAD_DIM,
    SAFE_CHANNELS = 32 /* 32 * 7 * 127 fits in 16 bits */
};

cn_status cn_cpu_check_selection(const cn_pools *p, const char *op)
{
    const cn_kv_layout *l = &p->layout;
    if (l->head_dim % 16 != 0 || l->head_dim > CN_CPU_MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "%s: head_dim %u: expected a multiple of 16, at most %d", op,
                       l->head_dim, CN_CPU_MAX_HEAD_DIM);
    if (p->n_heads == 0 || p->n_heads % l->n_kv_heads != 0)
        return cn_fail(CN_ERR_SHAPE, "%s: %u query heads: expected a multiple of the %u kv heads",
                       op, p->n_heads, l->n_kv_heads);
    CN_ASSERT(!p->digest.labels || p->digest.n_channels == cn_layout_label_channels(l));
    CN_ASSERT(p->digest.n_channels <= CN_CPU_MAX_CHANNELS);
    CN_ASSERT(!p->digest.bounds_64 || l->block_tokens >= CN_DIGEST_TILE);
    return CN_OK;
}

void cn_cpu_read_channels(const cn_digest *g, size_t unit, uint16_t *out)
{
    for (uint32_t i = 0; i < g->n_channels; i++) {
        const size_t at = unit * g->n_channels + i;
        out[i] = g->wide_channels ? g->wide_channels[at] : g->channels[at];
    }
}

/* ---- units ---- */

typedef struct score_job {
    const cn_score_args *args;
    uint32_t group;    /* query heads of a kv head */
    uint32_t n_chunks; /* of the longest sequence */
} score_job;

typedef struct score_unit {
    uint32_t seq, layer, head; /* layer: of the model */
    uint32_t n, base;
    cn_sel_stage stage;
    const uint32_t *tiles, *table;
    const float *q; /* [group, d] */
    float *logits;  /* [group, n] times log2(e); rule max only */
    uint16_t *out;  /* [n] */
} score_unit;

/* Returns unit `index`, counted in the order (sequence, layer, kv head). */
static score_unit cpu_unit_of(const score_job *job, uint32_t index)
{
    const cn_score_args *a = job->args;
    const cn_kv_layout *l = &a->pools.layout;
    const uint32_t hk = l->n_kv_heads, head = index % hk, row = index / hk % a->n_layers;
    const uint32_t seq = index / hk / a->n_layers;
    const size_t n = a->n[seq], first = (size_t)a->first[seq] * a->n_layers + row * n;
    const cn_sel_stage stage = a->stage[seq];
    const size_t q_row = ((size_t)row * hk + head) * job->group * l->head_dim;
    score_unit u = {.seq = seq,
                    .layer = a->first_layer + row,
                    .head = head,
                    .n = (uint32_t)n,
                    .base = a->base[seq],
                    .stage = stage,
                    .table = a->tables + (size_t)seq * a->table_stride,
                    .out = a->out + first * hk + head * n};
    if (!stage.active) return u;
    if (stage.in_tiles) u.tiles = a->tiles + (size_t)index * a->tile_stride;
    if (stage.key != CN_KEY_HASH)
        u.q = (const float *)a->q[stage.query] + seq * a->q_stride[stage.query] + q_row;
    if (stage.key != CN_KEY_HASH && stage.group == CN_GROUP_MAX)
        u.logits = (float *)a->logits + (first * hk + head * n) * job->group;
    return u;
}

/* Neighbouring candidates whose keys lie side by side. */
typedef struct score_run {
    uint32_t n;        /* at most RUN */
    uint32_t position; /* of the first candidate's first token */
    uint32_t block, slot;
} score_run;

/* Returns the run that begins with candidate c and ends before `end`. */
static score_run run_at(const cn_kv_layout *l, const score_unit *u, uint32_t c, uint32_t end)
{
    const uint32_t log2 = u->stage.entry_log2;
    const uint32_t position =
        u->tiles ? u->tiles[c / CN_DIGEST_TILE] * CN_DIGEST_TILE + c % CN_DIGEST_TILE
                 : u->base + (c << log2);
    const uint32_t edge = u->stage.key == CN_KEY_BOUNDS ? l->block_tokens : l->tile_tokens;
    const uint32_t n = cn_min_u32(end - c, (edge - position % edge) >> log2);
    return (score_run){.n = cn_min_u32(n, RUN),
                       .position = position,
                       .block = u->table[position / l->block_tokens],
                       .slot = position % l->block_tokens};
}

/* ---- queries ---- */

/* Up to ROWS rows that are compared with keys. */
typedef struct score_query {
    uint32_t rows, width;
    float values[ROWS * MAX_WIDTH];         /* [rows, width] */
    int16_t quantised[ROWS * CN_CPU_MAX_CHANNELS]; /* [rows, n_channels]; labels only */
    float factor[ROWS];                     /* by which products are multiplied */
} score_query;

/* row[width] += the query of a head, as the keys need it. */
static void add_head(float *row, const float *q, uint32_t d, bool is_bounds)
{
    if (!is_bounds) {
        for (uint32_t i = 0; i < d; i++) row[i] += q[i];
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        row[i] += q[i] < 0 ? q[i] : 0;
        row[d + i] += q[i] > 0 ? q[i] : 0;
    }
}

/* Replaces a row by the label channels of it, quantised. */
static void quantise_row(score_query *query, uint32_t r, const uint16_t *channels, uint32_t n)
{
    const float *row = query->values + (size_t)r * query->width;
    float largest = 0;
    for (uint32_t c = 0; c < n; c++) {
        const float size = fabsf(row[channels[c]]);
        largest = size > largest ? size : largest;
    }
    const float scale = cn_query_scale(largest);
    for (uint32_t c = 0; c < n; c++)
        query->quantised[r * n + c] = (int16_t)cn_query_of(row[channels[c]], scale);
    query->factor[r] *= scale;
}

/* Loads the query heads [first, first + ROWS) of the group under group rule max, one row each; else
 * one row for the group. */
static void load_query(const score_job *job, const score_unit *u, uint32_t first,
                       score_query *query)
{
    const cn_pools *p = &job->args->pools;
    const uint32_t d = p->layout.head_dim;
    const bool is_max = u->stage.group == CN_GROUP_MAX, is_bounds = u->stage.key == CN_KEY_BOUNDS;
    query->rows = is_max ? cn_min_u32(ROWS, job->group - first) : 1;
    query->width = is_bounds ? 2 * d : d;
    memset(query->values, 0, (size_t)query->rows * query->width * sizeof *query->values);
    for (uint32_t r = 0; r < query->rows; r++) {
        const float *q = u->q + (size_t)(first + r) * d;
        for (uint32_t h = 0; h < (is_max ? 1 : job->group); h++)
            add_head(query->values + (size_t)r * query->width, q + (size_t)h * d, d, is_bounds);
    }
    if (u->stage.group == CN_GROUP_MEAN)
        for (uint32_t i = 0; i < query->width; i++) query->values[i] /= (float)job->group;
    const float scaled = is_max ? p->scale * CN_LOG2_E : p->scale;
    const float factor = p->scale > 0 ? scaled : cn_score_scale(d, is_max);
    for (uint32_t r = 0; r < query->rows; r++) query->factor[r] = factor;
    if (u->stage.key != CN_KEY_LABELS) return;
    const cn_digest *g = &p->digest;
    uint16_t channels[CN_CPU_MAX_CHANNELS];
    cn_cpu_read_channels(g, (size_t)u->layer * p->layout.n_kv_heads + u->head, channels);
    for (uint32_t r = 0; r < query->rows; r++) quantise_row(query, r, channels, g->n_channels);
}

/* ---- logits [rows, RUN] of a run ---- */

/* out[n] = factor * q . keys[n, width]. n is a constant wherever this is inlined. */
CN_INLINE void dot_keys(float *out, const float *q, const float *keys, uint32_t width, float factor,
                        uint32_t n)
{
    cn_vec sum[DOTS] = {{0}};
    for (uint32_t i = 0; i < width; i += CN_VEC) {
        const cn_vec q_part = cn_vec_load(q + i);
#pragma GCC unroll 4
        for (uint32_t t = 0; t < n; t++)
            sum[t] = cn_vec_fma(q_part, cn_vec_load(keys + (size_t)t * width + i), sum[t]);
    }
#pragma GCC unroll 4
    for (uint32_t t = 0; t < n; t++) out[t] = cn_vec_sum(sum[t]) * factor;
}

static void row_logits(const score_query *query, const float *keys, uint32_t n, float *logits)
{
    const uint32_t width = query->width;
    for (uint32_t r = 0; r < query->rows; r++) {
        const float *q = query->values + (size_t)r * width;
        const float factor = query->factor[r];
        uint32_t t = 0;
        for (; t + DOTS <= n; t += DOTS)
            dot_keys(logits + r * RUN + t, q, keys + (size_t)t * width, width, factor, DOTS);
        for (; t < n; t++)
            dot_keys(logits + r * RUN + t, q, keys + (size_t)t * width, width, factor, 1);
    }
}

/* channels[n_channels, RUN] = the labels of n tokens. Four channels are one 16-bit word. */
static void unpack_labels(int16_t *channels, const uint8_t *labels, uint32_t n, uint32_t n_channels)
{
    const uint32_t n_words = n_channels / 4;
    for (uint32_t w = 0; w < n_words; w++) {
        uint16_t words[RUN] = {0};
        for (uint32_t t = 0; t < n; t++)
            memcpy(&words[t], labels + ((size_t)t * n_words + w) * 2, sizeof *words);
        int16_t *to = channels + (size_t)w * 4 * RUN;
#pragma omp simd
        for (uint32_t t = 0; t < RUN; t++) {
            to[t] = (int16_t)((int16_t)(words[t] << 12) >> 12);
            to[RUN + t] = (int16_t)((int16_t)(words[t] << 8) >> 12);
            to[2 * RUN + t] = (int16_t)((int16_t)(words[t] << 4) >> 12);
            to[3 * RUN + t] = (int16_t)((int16_t)words[t] >> 12);
        }
    }
}

/* total[RUN] = the products of a quantised query with all channels. */
static void label_products(int32_t *total, const int16_t *query, const int16_t *channels,
                           uint32_t n_channels)
{
    memset(total, 0, RUN * sizeof *total);
    for (uint32_t from = 0; from < n_channels; from += SAFE_CHANNELS) {
        const uint32_t end = cn_min_u32(n_channels, from + SAFE_CHANNELS);
        int16_t sum[RUN] = {0};
        for (uint32_t c = from; c < end; c++) {
            const int16_t q = query[c];
            const int16_t *label = channels + (size_t)c * RUN;
#pragma omp simd
            for (uint32_t t = 0; t < RUN; t++) sum[t] = (int16_t)(sum[t] + q * label[t]);
        }
#pragma omp simd
        for (uint32_t t = 0; t < RUN; t++) total[t] += sum[t];
    }
}

static void label_logits(const score_query *query, const cn_digest *g, size_t side, uint32_t n,
                         float *logits)
{
    const uint32_t n_channels = g->n_channels;
    int16_t channels[CN_CPU_MAX_CHANNELS * RUN];
    int32_t total[RUN];
    float scales[RUN] = {0};
    unpack_labels(channels, g->labels + side * (n_channels / 2), n, n_channels);
#pragma omp simd
    for (uint32_t t = 0; t < n; t++) scales[t] = cn_f16_value(g->scales[side + t]);
    for (uint32_t r = 0; r < query->rows; r++) {
        const float factor = query->factor[r];
        label_products(total, query->quantised + r * n_channels, channels, n_channels);
#pragma omp simd
        for (uint32_t t = 0; t < RUN; t++)
            logits[r * RUN + t] = cn_label_logit(total[t], scales[t], factor);
    }
}

static void key_logits(const cn_pools *p, const score_unit *u, const score_query *query,
                       const score_run *run, float *logits)
{
    float room[RUN * CN_CPU_MAX_HEAD_DIM];
    const cn_cpu_place at = {u->layer, run->block, u->head, run->slot};
    row_logits(query, cn_cpu_rows(&p->layout, p->kv, at, CN_KV_K, run->n, room), run->n, logits);
}

static void run_logits(const score_job *job, const score_unit *u, const score_query *query,
                       const score_run *run, float *logits)
{
    const cn_pools *p = &job->args->pools;
    const cn_kv_layout *l = &p->layout;
    const size_t side = cn_kv_side(l, u->layer, run->block, u->head, run->slot);
    switch (u->stage.key) {
    case CN_KEY_LABELS: label_logits(query, &p->digest, side, run->n, logits); break;
    case CN_KEY_BOUNDS: {
        const float *bounds = u->stage.entry_log2 == 4 ? p->digest.bounds_16 : p->digest.bounds_64;
        row_logits(query, bounds + (side >> u->stage.entry_log2) * query->width, run->n, logits);
        break;
    }
    default: key_logits(p, u, query, run, logits);
    }
    /* Candidates below the base have the lowest score, and no share. */
    if (run->position >= u->base) return;
    const uint32_t n_below = cn_min_u32(run->n, u->base - run->position);
    for (uint32_t r = 0; r < query->rows; r++)
        for (uint32_t t = 0; t < n_below; t++) logits[r * RUN + t] = NAN;
}

/* ---- tasks ---- */

static void store_cpu_scores(uint16_t *out, const float *logits, uint32_t n)
{
#pragma omp simd
    for (uint32_t c = 0; c < n; c++) out[c] = cn_score_bits(logits[c]);
}

static void hash_chunk(const score_job *job, const score_unit *u, uint32_t c, uint32_t end)
{
    const cn_pools *p = &job->args->pools;
    const uint32_t head = p->first_head + u->head, seed = job->args->seed[u->seq];
    for (; c < end; c++) {
        const score_run run = run_at(&p->layout, u, c, c + 1);
        u->out[c] = run.position < u->base ? 0 : cn_hash_score(seed, u->layer, head, run.position);
    }
}

static void score_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const score_job *job = ctx;
    const score_unit u = cpu_unit_of(job, task / job->n_chunks);
    const uint32_t start = task % job->n_chunks * CHUNK, end = cn_min_u32(u.n, start + CHUNK);
    if (!u.stage.active || start >= end) return;
    if (u.stage.key == CN_KEY_HASH) {
        hash_chunk(job, &u, start, end);
        return;
    }
    score_query query;
    float logits[ROWS * RUN];
    const uint32_t n_rows = u.logits ? job->group : 1;
    for (uint32_t first = 0; first < n_rows; first += ROWS) {
        load_query(job, &u, first, &query);
        for (uint32_t c = start; c < end;) {
            const score_run run = run_at(&job->args->pools.layout, &u, c, end);
            run_logits(job, &u, &query, &run, logits);
            for (uint32_t r = 0; u.logits && r < query.rows; r++)
                memcpy(u.logits + (size_t)(first + r) * u.n + c, logits + r * RUN,
                       run.n * sizeof *logits);
            if (!u.logits) store_cpu_scores(u.out + c, logits, run.n);
            c += run.n;
        }
    }
}

/* Adds a lot, whose candidates [start, start + n) have logits x[n]. NaN: the candidate has no
 * weight. */
static cn_exp_sum add_lot(cn_exp_sum sum, const float *x, uint32_t start, uint32_t n,
                          uint32_t n_lanes)
{
    float lanes[CN_LOT_LANES] = {0};
    uint32_t first = 0, top = CN_EXPONENT_BASE;
    while (first < n && isnan(x[first])) first++;
    for (uint32_t c = first; c < n && (start + c) / n_lanes == (start + first) / n_lanes; c++)
        top = cn_max_u32(top, cn_weight_exponent(x[c]));
    const float offset = cn_weight_offset(top);
    for (uint32_t c = first, end; c < n; c = end) {
        const uint32_t lane = (start + c) % n_lanes;
        end = cn_min_u32(n, c + n_lanes - lane);
#pragma omp simd
        for (uint32_t i = c; i < end; i++)
            lanes[lane + i - c] += isnan(x[i]) ? 0 : cn_weight(x[i], offset);
    }
    for (uint32_t step = n_lanes / 2; step > 0; step /= 2)
        for (uint32_t i = 0; i < step; i++) lanes[i] += lanes[i + step];
    cn_exp_sum_add_lot(&sum, lanes[0], top);
    return sum;
}

/* The shares of all candidates, for one query head, in place of its logits. */
static void share_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const score_job *job = ctx;
    const score_unit u = cpu_unit_of(job, task / job->group);
    if (!u.stage.active || !u.logits) return;
    float *row = u.logits + (size_t)(task % job->group) * u.n;
    const uint32_t entry = u.stage.entry_log2, from = u.tiles ? 0 : u.base >> entry;
    const uint32_t lot = 1U << (cn_lot_log2(u.stage.key == CN_KEY_ROWS, entry) - entry);
    const uint32_t n_lanes = lot < CN_LOT_LANES ? CN_LOT_FEW_LANES : CN_LOT_LANES;
    cn_exp_sum sum = {0};
    for (uint32_t c = 0, n; c < u.n; c += n) {
        const uint32_t start = (from + c) % lot;
        n = cn_min_u32(lot - start, u.n - c);
        sum = add_lot(sum, row + c, start, n, n_lanes);
    }
    const float log2_sum = cn_f16_value(cn_f16_bits(cn_exp_sum_log2(sum)));
#pragma omp simd
    for (uint32_t c = 0; c < u.n; c++)
        row[c] = isnan(row[c]) ? NAN : cn_f16_value(cn_f16_bits(row[c])) - log2_sum;
}

/* The largest share of the group. */
static void best_task(void *ctx, uint32_t task, uint32_t worker)
{
    (void)worker;
    const score_job *job = ctx;
    const score_unit u = cpu_unit_of(job, task / job->n_chunks);
    const uint32_t start = task % job->n_chunks * CHUNK;
    if (!u.stage.active || !u.logits || start >= u.n) return;
    const uint32_t n = cn_min_u32(CHUNK, u.n - start);
    float best[CHUNK];
    memcpy(best, u.logits + start, n * sizeof *best);
    for (uint32_t h = 1; h < job->group; h++) {
        const float *row = u.logits + (size_t)h * u.n + start;
#pragma omp simd
        for (uint32_t c = 0; c < n; c++) best[c] = row[c] > best[c] ? row[c] : best[c];
    }
#pragma omp simd
    for (uint32_t c = 0; c < n; c++) u.out[start + c] = cn_share_score(best[c]);
}

cn_status cn_cpu_score(cn_stream *s, const cn_score_args *a)
{
    CN_TRY(cn_cpu_check_selection(&a->pools, "score"));
    const uint32_t hk = a->pools.layout.n_kv_heads;
    score_job job = {.args = a, .group = a->pools.n_heads / hk};
    bool any_max = false;
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        if (!a->stage[i].active) continue;
        const cn_sel_stage *st = &a->stage[i];
        const bool is_bounds = st->key == CN_KEY_BOUNDS;
        CN_ASSERT(is_bounds == (st->entry_log2 > 0));
        CN_ASSERT(st->group != (is_bounds ? CN_GROUP_MEAN : CN_GROUP_SUM));
        any_max |= st->group == CN_GROUP_MAX && st->key != CN_KEY_HASH;
        job.n_chunks = cn_max_u32(job.n_chunks, (uint32_t)cn_ceil_div(a->n[i], CHUNK));
    }
    const uint32_t n_units = a->n_seqs * a->n_layers * hk;
    cn_cpu_parallel(s, n_units * job.n_chunks, score_task, &job);
    if (!any_max) return CN_OK;
    cn_cpu_parallel(s, n_units * job.group, share_task, &job);
    cn_cpu_parallel(s, n_units * job.n_chunks, best_task, &job);
    return CN_OK;
}
