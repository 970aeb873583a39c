/* cpu_attn.c - paged causal attention: attn_decode, attn_prefill, and that of
 * attend_selected to lists.
 *
 * A pass computes up to CN_CPU_ATTN_ROWS query rows of one (sequence, kv head): the query heads of
 * the group, for one token (decode) or for neighbouring tokens (prefill). It reads the keys in
 * tiles of the KV layout, each tile once for all rows:
 *   1. The keys of the tile are transposed. Scores are then sums over d with tokens in the lanes.
 *   2. Softmax is online, tile by tile.
 *   3. Values are added token by token with dimensions in the lanes.
 * After every SPLIT tokens the result of the split is merged into the row's total. This happens
 * even if one thread runs all splits.
 *
 * A row has the same bits wherever it runs. Its arithmetic is its splits in order, in each split
 * its tiles in order, in each tile the tokens it sees in order. The result does not depend on the
 * other rows of the pass, the chunk of the prompt or the number of threads. In the last tile of a
 * row, tokens past its limit get weight 0 and are never multiplied.
 *
 * Rows of V have the width v, which latent attention sets; V is then the first columns of K.
 *
 * Bytes read: those of K and V of each token and kv head, once per pass. Rows in eight bits are
 * made f32 tile by tile. */
#include <math.h>

#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_rows.h"
#include "engine/cpu/cpu_simd.h"
#include "engine/cpu/cpu_update.h"

enum { SPLIT = 1024 }; /* tokens; a multiple of every tile */

/* ---- one tile ---- */

/* Transposes a square of CN_VEC x CN_VEC by log2(CN_VEC) perfect shuffles. */
static void transpose_square(float *dst, size_t dst_stride, const float *src, size_t src_stride)
{
    cn_vec rows[CN_VEC], next[CN_VEC];
    for (int i = 0; i < CN_VEC; i++) rows[i] = cn_vec_load(src + (size_t)i * src_stride);
    for (int stage = 1; stage < CN_VEC; stage *= 2) {
        for (int i = 0; i < CN_VEC / 2; i++) {
            cn_vec a = rows[i], b = rows[i + CN_VEC / 2];
#if defined(__AVX512F__)
            next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
                                                  22, 7, 23);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                      13, 29, 14, 30, 15, 31);
#else
            next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
            next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#endif
        }
        memcpy(rows, next, sizeof rows);
    }
    for (int i = 0; i < CN_VEC; i++) cn_vec_store(dst + (size_t)i * dst_stride, rows[i]);
}

/* keys[d, tile] = the transpose of rows[tile, d]. */
static void transpose_keys(float *keys, const float *rows, uint32_t tile, uint32_t d)
{
    for (uint32_t t = 0; t < tile; t += CN_VEC)
        for (uint32_t i = 0; i < d; i += CN_VEC) {
            transpose_square(keys + (size_t)i * tile + t, tile, rows + (size_t)t * d + i, d);
        }
}

/* Online softmax of one row. Turns scores[tile], of which the first n are valid, into weights and
 * updates max and sum. Returns the factor by which the row's earlier sums must be multiplied. */
static float softmax_tile(float *scores, uint32_t n, uint32_t tile, float *max, float *sum)
{
    for (uint32_t t = n; t < tile; t++) scores[t] = -INFINITY;
    cn_vec top = cn_vec_load(scores);
    for (uint32_t t = CN_VEC; t < tile; t += CN_VEC) top = cn_vec_max(top, cn_vec_load(scores + t));
    float new_max = fmaxf(*max, cn_vec_largest(top));
    cn_vec total = {0};
    for (uint32_t t = 0; t < tile; t += CN_VEC) {
        cn_vec w = cn_vec_exp(cn_vec_load(scores + t) - new_max);
        cn_vec_store(scores + t, w);
        total += w;
    }
    float rescale = expf(*max - new_max);
    *sum = *sum * rescale + cn_vec_sum(total);
    *max = new_max;
    return rescale;
}

/* The query rows of a pass. Token j of the pass has rows [j * heads, (j + 1) * heads) and sees the
 * first limit + j slots of its sequence. */
typedef struct attn_pass {
    uint32_t heads, tokens, limit;
    uint32_t d, tile;
    uint32_t v, v_stride; /* elements of a row of V, and from one row to the next */
} attn_pass;

/* A tile of keys [tile, d] and values [tile, v]. */
typedef struct attn_tile {
    const float *keys, *values;
} attn_tile;

/* Adds the first k values of a tile, times their weights, to rows [row, row + rows). */
static void add_cpu_values(const attn_pass *p, cn_cpu_attn_scratch *w, size_t row, uint32_t rows,
                           uint32_t k, const float *values, const float *ahead)
{
    cn_cpu_update u = {.rows = rows,
                .cols = p->v,
                .k = k,
                .a = {w->weights + row * p->tile, p->tile},
                .b = {values, p->v_stride},
                .c = w->split_out + row * p->v,
                .c_stride = p->v,
                .alpha = w->rescale + row,
                .ahead = ahead};
    cn_cpu_rank_update(&u);
}

/* Adds one tile, slots [start, start + tile), to the current split. `next` is the next tile; its
 * addresses are NULL if there is none. */
static void add_tile(const attn_pass *p, cn_cpu_attn_scratch *w, attn_tile t, attn_tile next,
                     uint32_t start)
{
    uint32_t d = p->d, tile = p->tile, heads = p->heads;
    const float *values = t.values;
    /* Tokens below `first` see no slot of the tile; tokens from `full` on see all of it. */
    uint32_t first = p->limit > start ? 0 : start + 1 - p->limit;
    uint32_t full = p->limit >= start + tile ? 0 : start + tile - p->limit;
    full = cn_min_u32(full, p->tokens);
    if (first >= p->tokens) return;
    transpose_keys(w->keys, t.keys, tile, d);
    size_t row = (size_t)first * heads;
    uint32_t end = p->tokens * heads;
    cn_cpu_update scores = {.rows = end - (uint32_t)row,
                     .cols = tile,
                     .k = d,
                     .a = {w->q + row * d, d},
                     .b = {w->keys, tile},
                     .c = w->weights + row * tile,
                     .c_stride = tile,
                     .ahead = next.keys};
    cn_cpu_rank_update(&scores);
    for (size_t r = row; r < end; r++) {
        uint32_t n = cn_min_u32(tile, p->limit + (uint32_t)r / heads - start);
        w->rescale[r] =
            softmax_tile(w->weights + r * tile, n, tile, &w->split_max[r], &w->split_sum[r]);
    }
    for (uint32_t j = first; j < full; j++)
        add_cpu_values(p, w, (size_t)j * heads, heads, p->limit + j - start, values, NULL);
    /* Where V is a part of the rows of K, these have been read. */
    const float *ahead = p->v_stride == p->v ? next.values : NULL;
    add_cpu_values(p, w, (size_t)full * heads, (p->tokens - full) * heads, tile, values, ahead);
}

/* ---- splits ---- */

static void start_rows(float *out, float *max, float *sum, uint32_t rows, uint32_t d)
{
    memset(out, 0, (size_t)rows * d * sizeof *out);
    for (uint32_t r = 0; r < rows; r++) {
        max[r] = -INFINITY;
        sum[r] = 0;
    }
}

/* Merges one split of one row into the row's total (max, sum, out). A split of which the row sees
 * no slot changes nothing, because its weight is exp(-inf). */
static void merge_row(float *out, float *max, float *sum, const float *split_out, float split_max,
                      float split_sum, uint32_t d)
{
    float new_max = fmaxf(*max, split_max);
    float keep = expf(*max - new_max), take = expf(split_max - new_max);
    for (uint32_t i = 0; i < d; i += CN_VEC) {
        cn_vec scaled = cn_vec_load(out + i) * keep;
        cn_vec_store(out + i, cn_vec_fma(cn_vec_load(split_out + i), cn_vec_set(take), scaled));
    }
    *sum = *sum * keep + split_sum * take;
    *max = new_max;
}

static void merge_split(cn_cpu_attn_scratch *w, uint32_t rows, uint32_t d)
{
    for (uint32_t r = 0; r < rows; r++)
        merge_row(w->out + (size_t)r * d, &w->max[r], &w->sum[r], w->split_out + (size_t)r * d,
                  w->split_max[r], w->split_sum[r], d);
}

static void finish_row(float *dst, const float *out, float sum, uint32_t d)
{
    float inverse = 1.0f / sum;
    for (uint32_t i = 0; i < d; i++) dst[i] = out[i] * inverse;
}

/* ---- passes over a sequence ---- */

/* Queries [query, query + tokens) of sequence `seq`, and of kv head `kv_head` the query heads
 * [member, member + heads) of the group. */
typedef struct query_block {
    uint32_t seq, kv_head, query, tokens, member, heads;
    uint32_t limit; /* slots that the first query sees */
} query_block;

static uint32_t group_size(const cn_attn_args *a) { return a->n_heads / a->layout.n_kv_heads; }

/* Elements of a row of V, and so of out. */
static uint32_t value_dim(const cn_attn_args *a) { return a->layout.part[CN_KV_V].width; }

/* The row (token j, head h) of the block, in q and out. */
static size_t query_row(const cn_attn_args *a, const query_block *b, uint32_t j, uint32_t h)
{
    size_t token = a->batch->q_start[b->seq] + b->query + j;
    size_t head = b->kv_head * group_size(a) + b->member + h;
    return token * a->n_heads + head;
}

static attn_pass load_cpu_queries(const cn_attn_args *a, const query_block *b,
                                  cn_cpu_attn_scratch *w)
{
    uint32_t d = a->layout.head_dim;
    for (uint32_t j = 0; j < b->tokens; j++)
        for (uint32_t h = 0; h < b->heads; h++) {
            const float *q = (const float *)a->q + query_row(a, b, j, h) * d;
            float *row = w->q + (size_t)(j * b->heads + h) * d;
            for (uint32_t i = 0; i < d; i++) row[i] = q[i] * a->scale;
        }
    return (attn_pass){.heads = b->heads,
                       .tokens = b->tokens,
                       .limit = b->limit,
                       .d = d,
                       .tile = a->layout.tile_tokens,
                       .v = value_dim(a),
                       .v_stride = cn_kv_layout_is_shared(&a->layout) ? d : value_dim(a)};
}

/* Returns the place of slot t. */
static cn_cpu_place place_of(const cn_attn_args *a, const query_block *b, uint32_t t)
{
    const uint32_t *table = a->batch->tables + (size_t)b->seq * a->batch->table_stride;
    const uint32_t block_tokens = a->layout.block_tokens;
    return (cn_cpu_place){a->layer, table[t / block_tokens], b->kv_head, t % block_tokens};
}

/* Returns the tile at slot t. It is in the pool, or, of rows in eight bits, in w->gathered. */
static attn_tile tile_at(const cn_attn_args *a, const query_block *b, cn_cpu_attn_scratch *w,
                            uint32_t t)
{
    const cn_kv_layout *l = &a->layout;
    const cn_cpu_place at = place_of(a, b, t);
    float *values = w->gathered + (size_t)l->tile_tokens * l->head_dim;
    return (attn_tile){cn_cpu_rows(l, a->kv, at, CN_KV_K, l->tile_tokens, w->gathered),
                       cn_cpu_rows(l, a->kv, at, CN_KV_V, l->tile_tokens, values)};
}

/* Computes the tiles of slots [start, end) as a new split. start is a multiple of SPLIT. */
static void run_split(const cn_attn_args *a, const query_block *b, const attn_pass *p,
                      cn_cpu_attn_scratch *w, uint32_t start, uint32_t end)
{
    start_rows(w->split_out, w->split_max, w->split_sum, p->tokens * p->heads, p->v);
    const bool is_plain = cn_kv_form_of(&a->layout) == CN_KV_PLAIN;
    for (uint32_t t = start; t < end; t += p->tile) {
        const attn_tile tile = tile_at(a, b, w, t);
        const bool has_next = is_plain && t + p->tile < end;
        add_tile(p, w, tile, has_next ? tile_at(a, b, w, t + p->tile) : (attn_tile){0}, t);
    }
}

static void finish_block(const cn_attn_args *a, const query_block *b, cn_cpu_attn_scratch *w)
{
    uint32_t v = value_dim(a);
    for (uint32_t j = 0; j < b->tokens; j++)
        for (uint32_t h = 0; h < b->heads; h++) {
            size_t r = (size_t)j * b->heads + h;
            finish_row((float *)a->out + query_row(a, b, j, h) * v, w->out + r * v, w->sum[r], v);
        }
}

/* Computes all splits of one query block, in order. */
static void run_block(const cn_attn_args *a, const query_block *b, cn_cpu_attn_scratch *w)
{
    attn_pass p = load_cpu_queries(a, b, w);
    uint32_t rows = p.tokens * p.heads, end = p.limit + p.tokens - 1;
    start_rows(w->out, w->max, w->sum, rows, p.v);
    for (uint32_t start = 0; start < end; start += SPLIT) {
        run_split(a, b, &p, w, start, cn_min_u32(end, start + SPLIT));
        merge_split(w, rows, p.v);
    }
    finish_block(a, b, w);
}

/* ---- prefill: tasks are (sequence, block of query tokens, kv head, part of the group) ---- */

typedef struct attn_job {
    const cn_attn_args *args;
    cn_cpu *cpu;
    uint32_t heads;        /* query heads per pass */
    uint32_t head_parts;   /* passes per kv head: 1 unless the group is larger than a pass */
    uint32_t block_tokens; /* query tokens per pass */
    uint32_t n_blocks;     /* of the longest sequence */
    uint32_t n_splits;     /* of the longest sequence */
} attn_job;

static attn_job make_job(cn_stream *s, const cn_attn_args *a)
{
    attn_job job = {.args = a, .cpu = cn_cpu_stream_owner(s)};
    job.heads = cn_min_u32(group_size(a), CN_CPU_ATTN_ROWS);
    job.head_parts = (uint32_t)cn_ceil_div(group_size(a), job.heads);
    job.block_tokens = CN_CPU_ATTN_ROWS / job.heads;
    job.n_blocks = (uint32_t)cn_ceil_div(a->batch->max_q, job.block_tokens);
    job.n_splits = (uint32_t)cn_ceil_div(a->batch->max_kv, SPLIT);
    return job;
}

/* Returns the block of work item `item`, a kv head and a part of its group, of a sequence. */
static query_block make_query_block(const attn_job *job, uint32_t seq, uint32_t item)
{
    query_block b = {.seq = seq, .kv_head = item / job->head_parts, .tokens = 1};
    b.member = item % job->head_parts * job->heads;
    b.heads = cn_min_u32(job->heads, group_size(job->args) - b.member);
    return b;
}

static void prefill_task(void *ctx, uint32_t task, uint32_t worker)
{
    const attn_job *job = ctx;
    const cn_batch_view *v = job->args->batch;
    uint32_t items = job->args->layout.n_kv_heads * job->head_parts;
    uint32_t seq = v->n_decode + task / (items * job->n_blocks);
    query_block b = make_query_block(job, seq, task % items);
    /* Last blocks first, because they see the most slots and take longest. */
    uint32_t block = job->n_blocks - 1 - task / items % job->n_blocks;
    uint32_t n_q = v->q_start[seq + 1] - v->q_start[seq];
    b.query = block * job->block_tokens;
    if (b.query >= n_q) return;
    b.tokens = cn_min_u32(job->block_tokens, n_q - b.query);
    b.limit = v->kv_len[seq] - n_q + b.query + 1;
    run_block(job->args, &b, &job->cpu->attn[worker]);
}

static cn_status check_cpu_shape(const cn_attn_args *a)
{
    uint32_t d = a->layout.head_dim, hk = a->layout.n_kv_heads;
    if (d % 16 != 0 || d > CN_CPU_MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE,
                       "attention: head_dim %u: expected a multiple of 16, at most %d", d,
                       CN_CPU_MAX_HEAD_DIM);
    if (a->n_heads == 0 || a->n_heads % hk != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "attention: %u query heads: expected a multiple of the %u kv heads",
                       a->n_heads, hk);
    return CN_OK;
}

/* Another backend makes room for a prefill by the host's bounds, which its kernels cannot check. */
static void check_bounds(const cn_batch_view *v)
{
    const uint32_t most = v->max_prefill_kv ? v->max_prefill_kv : v->max_kv;
    for (uint32_t seq = v->n_decode; seq < v->n_seqs; seq++) CN_ASSERT(v->kv_len[seq] <= most);
}

cn_status cn_cpu_attn_prefill(cn_stream *s, const cn_attn_args *a)
{
    CN_TRY(check_cpu_shape(a));
    check_bounds(a->batch);
    attn_job job = make_job(s, a);
    uint32_t n_seqs = a->batch->n_seqs - a->batch->n_decode;
    cn_cpu_parallel(s, n_seqs * job.n_blocks * a->layout.n_kv_heads * job.head_parts, prefill_task,
                    &job);
    return CN_OK;
}

/* ---- decode: tasks are (sequence, kv head, part of the group), or the splits of these ---- */

/* Returns the block of item `item` of a decode step, whose limit is 0 if nothing is to be done. */
static query_block make_decode_block(const attn_job *job, uint32_t item)
{
    uint32_t items = job->args->layout.n_kv_heads * job->head_parts;
    query_block b = make_query_block(job, item / items, item % items);
    b.limit = (job->args->lengths ? job->args->lengths : job->args->batch->kv_len)[b.seq];
    return b;
}

static void decode_task(void *ctx, uint32_t task, uint32_t worker)
{
    const attn_job *job = ctx;
    query_block b = make_decode_block(job, task);
    if (b.limit == 0) return;
    run_block(job->args, &b, &job->cpu->attn[worker]);
}

/* Floats of the result of one split: out[heads, v], max[heads], sum[heads]. */
static size_t part_elems(const attn_job *job)
{
    return (size_t)job->heads * (value_dim(job->args) + 2);
}

static void decode_split_task(void *ctx, uint32_t task, uint32_t worker)
{
    const attn_job *job = ctx;
    cn_cpu_attn_scratch *w = &job->cpu->attn[worker];
    uint32_t start = task % job->n_splits * SPLIT, v = value_dim(job->args);
    query_block b = make_decode_block(job, task / job->n_splits);
    if (start >= b.limit) return;
    attn_pass p = load_cpu_queries(job->args, &b, w);
    run_split(job->args, &b, &p, w, start, cn_min_u32(b.limit, start + SPLIT));
    float *part = job->cpu->attn_parts + task * part_elems(job);
    memcpy(part, w->split_out, (size_t)b.heads * v * sizeof *part);
    memcpy(part + (size_t)job->heads * v, w->split_max, b.heads * sizeof *part);
    memcpy(part + (size_t)job->heads * (v + 1), w->split_sum, b.heads * sizeof *part);
}

static void decode_merge_task(void *ctx, uint32_t item, uint32_t worker)
{
    const attn_job *job = ctx;
    cn_cpu_attn_scratch *w = &job->cpu->attn[worker];
    query_block b = make_decode_block(job, item);
    uint32_t v = value_dim(job->args);
    if (b.limit == 0) return;
    start_rows(w->out, w->max, w->sum, b.heads, v);
    for (uint32_t split = 0; split * SPLIT < b.limit; split++) {
        const float *part =
            job->cpu->attn_parts + ((size_t)item * job->n_splits + split) * part_elems(job);
        const float *max = part + (size_t)job->heads * v, *sum = max + job->heads;
        for (uint32_t h = 0; h < b.heads; h++)
            merge_row(w->out + (size_t)h * v, &w->max[h], &w->sum[h], part + (size_t)h * v, max[h],
                      sum[h], v);
    }
    finish_block(job->args, &b, w);
}

cn_status cn_cpu_attn_decode(cn_stream *s, const cn_attn_args *a)
{
    CN_TRY(check_cpu_shape(a));
    attn_job job = make_job(s, a);
    uint32_t n_items = a->batch->n_decode * a->layout.n_kv_heads * job.head_parts;
    size_t n_parts = (size_t)n_items * job.n_splits;
    bool few = !cn_cpu_stream_is_threaded(s) && n_items < 2 * cn_cpu_pool_n_threads(job.cpu->pool);
    if (few && job.n_splits > 1 && n_parts * part_elems(&job) <= job.cpu->n_attn_parts) {
        cn_cpu_parallel(s, (uint32_t)n_parts, decode_split_task, &job);
        cn_cpu_parallel(s, n_items, decode_merge_task, &job);
    } else {
        cn_cpu_parallel(s, n_items, decode_task, &job);
    }
    return CN_OK;
}

/* ---- sparse decode: the list of a kv head, then the tail, as if they were a sequence ---- */

typedef struct sparse_job {
    attn_job attn;
    const cn_list_attn_args *args;
} sparse_job;

/* Gathers entries [start, start + n) into keys[tile, d] and, unless they are a part of the keys,
 * the values after them. The slots of the tail are consecutive, so they are copied as far as they
 * share a tile. */
static void gather_tile(const cn_list_attn_args *s, const query_block *b, float *keys,
                        float *values, uint32_t start, uint32_t n)
{
    const cn_attn_args *a = &s->attn;
    const uint32_t d = a->layout.head_dim, tile = a->layout.tile_tokens;
    const size_t unit = (size_t)b->seq * a->layout.n_kv_heads + b->kv_head;
    const uint32_t *list = s->index + unit * s->index_stride, list_len = s->list_len[b->seq];
    for (uint32_t i = 0; i < n;) {
        const uint32_t entry = start + i;
        const bool is_listed = entry < list_len;
        const uint32_t slot = is_listed ? list[entry] : s->tail[b->seq] + entry - list_len;
        const uint32_t run = is_listed ? 1 : cn_min_u32(n - i, tile - slot % tile);
        const cn_cpu_place at = place_of(a, b, slot);
        cn_cpu_read_rows(&a->layout, a->kv, at, CN_KV_K, run, keys + (size_t)i * d);
        if (values)
            cn_cpu_read_rows(&a->layout, a->kv, at, CN_KV_V, run, values + (size_t)i * d);
        i += run;
    }
}

static void sparse_task(void *ctx, uint32_t task, uint32_t worker)
{
    const sparse_job *job = ctx;
    const cn_attn_args *a = &job->args->attn;
    cn_cpu_attn_scratch *w = &job->attn.cpu->attn[worker];
    query_block b = make_decode_block(&job->attn, task);
    b.limit = job->args->lengths[b.seq];
    if (b.limit == 0) return;
    if (job->args->list_len[b.seq] == 0 && job->args->tail[b.seq] == 0) {
        run_block(a, &b, w); /* nothing to gather */
        return;
    }
    attn_pass p = load_cpu_queries(a, &b, w);
    float *values = w->gathered + (size_t)p.tile * p.d;
    if (cn_kv_layout_is_shared(&a->layout)) values = NULL;
    start_rows(w->out, w->max, w->sum, p.heads, p.v);
    for (uint32_t start = 0; start < p.limit; start += SPLIT) {
        const uint32_t end = cn_min_u32(p.limit, start + SPLIT);
        start_rows(w->split_out, w->split_max, w->split_sum, p.heads, p.v);
        for (uint32_t t = start; t < end; t += p.tile) {
            gather_tile(job->args, &b, w->gathered, values, t, cn_min_u32(p.tile, end - t));
            const attn_tile tile = {w->gathered, values ? values : w->gathered};
            add_tile(&p, w, tile, (attn_tile){0}, t);
        }
        merge_split(w, p.heads, p.v);
    }
    finish_block(a, &b, w);
}

static cn_status check_lists(const cn_list_attn_args *a)
{
    for (uint32_t i = 0; i < a->attn.batch->n_decode; i++) {
        if (a->lengths[i] == 0) continue;
        const uint32_t most = cn_min_u32(a->lengths[i], a->index_stride);
        if (a->list_len[i] > most)
            return cn_fail(CN_ERR_SHAPE,
                           "attend_selected: list of %u slots of sequence %u: expected at most %u",
                           a->list_len[i], i, most);
    }
    return CN_OK;
}

cn_status cn_cpu_attn_lists(cn_stream *s, const cn_list_attn_args *a)
{
    CN_TRY(check_cpu_shape(&a->attn));
    CN_TRY(check_lists(a));
    sparse_job job = {make_job(s, &a->attn), a};
    uint32_t n_tasks = a->attn.batch->n_decode * a->attn.layout.n_kv_heads * job.attn.head_parts;
    cn_cpu_parallel(s, n_tasks, sparse_task, &job);
    return CN_OK;
}
