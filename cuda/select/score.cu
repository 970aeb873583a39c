/* score.cu - score: candidates of a selection compared with the query.
 * In: q bf16, keys or digests by block. Out: u16 [units, n], ragged as in cn_score_args.
 *
 * This is the portable form. On compute capability 9.0 score_ring_sm90.cu computes most launches.
 *
 * Two blocks per multiprocessor, which divide the step's lots (score.cuh). A warp loads a lot of
 * keys into the registers of the matrix instructions, at d 128 up to 4.5 KiB, so 24 warps have up
 * to 108 KiB in flight. Keys and heads are compared by the tensor cores, all heads of
 * the group at once, so keys are read once. The kinds of keys:
 *   rows    q . k, products of bf16, sums in f32. A mean query is split into two bf16 values.
 *   bounds  sum over channels of max(q_c min_c, q_c max_c), which is one product of width 2 d:
 *           [min(q, 0) | max(q, 0)] . [min | max]. A group's sum is the product with the sum.
 *   labels  integer products. Nibbles become bytes of 16 times their value.
 *   hash    no query; the score is the hash.
 *
 * Group rule max takes one more kernel (score_share.cu), except where the blocks of
 * score_ring_sm90.cu compute the shares. This one stores the logits of all heads, and the sum of
 * the weights of each part, lot by lot (engine/select/select_math.h). Steps with a stage of rule
 * max have a kernel of their own, whose threads have more registers.
 *
 * Bytes read per candidate and kv head: rows 2 d, bounds 4 d, labels n_channels / 2 + 2; written:
 * 2. Rule max also writes 2 a head, and reads them from the L2 cache if they fit. More than 8 heads
 * of a group read rows and bounds again, more than 4 heads labels.
 * Block: 384 threads, 80 registers; with rule max 256, 128. CPU version: cpu_sel_score.c. */
#include "cuda/attn/attn_common.cuh"
#include "cuda/select/score_labels.cuh"
#include "cuda/select/score_share.h"
#include "cuda/select/select_route.h"

enum {
    THREADS = 384,
    MAX_THREADS = 256, /* with rule max */
    MAX_WARPS = MAX_THREADS / CN_WARP,
    MAX_HEAD_DIM = 256,
    MAX_GROUP = 64, /* query heads of a kv head */
    WORDS = MAX_HEAD_DIM / 4 / 8, /* of eight channels of a label */
    N_PAIRS = CN_LABEL_HEADS / 2, /* pairs of heads of a pass over labels */
    HEADS = 8,                    /* heads of a pass over rows and bounds */
    TABLE_PAD = 32                /* elements between rows of the table, to use other banks */
};

typedef struct score_shared {
    cn_score_parts parts;
    uint2 labels[MAX_GROUP][WORDS]; /* quantised queries: even channels, odd channels */
    uint8_t channels[2 * CN_WARP];  /* of labels */
    float factor[MAX_GROUP];        /* by which products are multiplied */
} score_shared;

/* The memory of a block: the queries [group, d], and a table of what is compared with keys, [heads
 * or 2, width] each row padded. */
typedef struct score_memory {
    score_shared *fixed;
    cn_bf16 *raw, *table;
    cn_exp_sum (*sums)[MAX_WARPS]; /* of the lots of each warp, by head; rule max only */
} score_memory;

/* Where the results of a part go. */
typedef struct score_out {
    uint16_t *score;
    uint16_t *rows; /* of logits, rule max only */
} score_out;

/* Returns the number of the first token of lot i. */
__device__ static inline uint32_t lot_start(const cn_score_part &x, uint32_t i)
{
    return (x.lot + i) << x.lot_log2;
}

/* ---- queries ---- */

/* Quantises the label channels of row r. A warp calls it. */
__device__ static inline void quantise_row(const cn_score_params &p, const cn_score_part &x,
                                           uint32_t r, score_memory m)
{
    const cn_pools &pools = p.args.pools;
    const uint32_t n = pools.digest.n_channels, lane = threadIdx.x % CN_WARP;
    float value[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t c = i * CN_WARP + lane;
        value[i] = c < n ? cn_score_query_value(p, x, m.raw, r, m.fixed->channels[c]) : 0;
    }
    const float scale = cn_label_quantise<2>((int8_t *)m.fixed->labels[r], value, 2 * CN_WARP);
    if (lane == 0) m.fixed->factor[r] = cn_score_scale_of(p, x) * scale;
}

/* Fills the table: the heads of the group; or the group's query as the sum of two bf16 values, in
 * rows of their own. */
__device__ static inline void fill_table(const cn_score_params &p, const cn_score_part &x,
                                         score_memory m)
{
    const uint32_t d = p.args.pools.layout.head_dim;
    const uint32_t width = x.stage.key == CN_KEY_BOUNDS ? 2 * d : d;
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    for (uint32_t at = threadIdx.x; at < (is_max ? p.group : 1) * width; at += blockDim.x) {
        const uint32_t row = at / width, i = at % width;
        const float value = cn_score_query_value(p, x, m.raw, row, i);
        const cn_bf16 high = __float2bfloat16_rn(value);
        cn_bf16 *to = m.table + row * (width + TABLE_PAD) + i;
        *to = high;
        if (!is_max)
            to[width + TABLE_PAD] = __float2bfloat16_rn(value - __bfloat162float(high));
    }
    for (uint32_t h = threadIdx.x; h < p.group; h += blockDim.x)
        m.fixed->factor[h] = cn_score_scale_of(p, x);
}

/* Prepares the queries of a part. */
template <bool MAX>
__device__ static inline void load_query(const cn_score_params &p, const cn_score_part &x,
                                         score_memory m)
{
    const cn_score_args &a = p.args;
    const uint32_t d = a.pools.layout.head_dim, warp = threadIdx.x / CN_WARP;
    const uint4 *from = (const uint4 *)cn_score_query_of(p, x);
    const size_t unit = (size_t)x.layer * a.pools.layout.n_kv_heads + x.at.head;
    const uint32_t n = a.pools.digest.n_channels;
    if (x.stage.key == CN_KEY_LABELS && threadIdx.x < n)
        m.fixed->channels[threadIdx.x] = __ldg(a.pools.digest.channels + unit * n + threadIdx.x);
    for (uint32_t i = threadIdx.x; i < p.group * d / CN_VEC8; i += blockDim.x)
        ((uint4 *)m.raw)[i] = from[i];
    if constexpr (MAX)
        for (uint32_t i = threadIdx.x; i < p.group * MAX_WARPS; i += blockDim.x) m.sums[0][i] = {};
    __syncthreads();
    if (x.stage.key == CN_KEY_LABELS) {
        for (uint32_t r = warp; r < (cn_score_is_max(x.stage) ? p.group : 1);
             r += blockDim.x / CN_WARP)
            quantise_row(p, x, r, m);
    } else {
        fill_table(p, x, m);
    }
    __syncthreads();
}

/* ---- labels ---- */

template <int N_WORDS>
__device__ static inline void load_label(uint32_t words[N_WORDS], const uint8_t *label,
                                         uint32_t n_bytes)
{
    if constexpr (N_WORDS == 4) {
        const uint4 four = __ldcs((const uint4 *)label);
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < N_WORDS; i++) {
            words[i] = 4 * i < n_bytes ? __ldg((const uint16_t *)(label + 4 * i)) : 0;
            if (4 * i + 2 < n_bytes)
                words[i] |= (uint32_t)__ldg((const uint16_t *)(label + 4 * i + 2)) << 16;
        }
    }
}

/* Labels of a lane: two, 32 tokens apart. */
template <int N_WORDS> struct label_two {
    uint32_t words[2][N_WORDS];
    uint32_t c[2]; /* the candidates */
    bool valid[2];
    uint16_t scale_bits[2];
    bool below[2];
};

/* Loads the labels with the numbers start + i and the 63 behind it. */
template <int N_WORDS>
__device__ static inline label_two<N_WORDS> load_two(const cn_score_params &p,
                                                     const cn_score_part &x, uint32_t start,
                                                     uint32_t i)
{
    const cn_digest &g = p.args.pools.digest;
    label_two<N_WORDS> l;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t at = start + i + k * CN_WARP + threadIdx.x % CN_WARP;
        const cn_score_token t = cn_score_token_of(p, x, at);
        const size_t side = cn_score_side_of(p, x, t);
        l.below[k] = t.position < x.base;
        load_label<N_WORDS>(l.words[k], g.labels + side * p.label_bytes, p.label_bytes);
        l.scale_bits[k] = __ldcs(g.scales + side);
        l.c[k] = at - x.from;
        l.valid[k] = t.valid;
    }
    return l;
}

/* The scale of a label; NaN below the base. */
template <int N_WORDS>
__device__ static inline float scale_of(const label_two<N_WORDS> &l, uint32_t k)
{
    return l.below[k] ? CUDART_NAN_F : __half2float(__ushort_as_half(l.scale_bits[k]));
}

/* Adds a lot to the warp's sum of a head. Called by one lane. */
__device__ static inline void add_lot(score_memory m, uint32_t head, cn_lot_weights lot)
{
    cn_exp_sum_add_lot(&m.sums[head][threadIdx.x / CN_WARP], lot.sum, lot.top);
}

/* Computes a lot of labels under rule max, for the heads of a pass from `first` on. */
template <int N_WORDS>
__device__ static inline void label_heads(const cn_score_params &p, const cn_score_part &x,
                                         score_memory m, uint32_t start, uint32_t first,
                                         const score_out &out)
{
    const cn_label_query<N_WORDS, N_PAIRS> q = cn_label_load<N_WORDS, N_PAIRS>(
        m.fixed->labels[0], WORDS, m.fixed->factor, first, p.group);
    cn_label_pass pass = cn_label_pass_of();
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t product[N_PAIRS][4];
        const label_two<N_WORDS> l = load_two<N_WORDS>(p, x, start, i * 64);
        cn_label_products<N_WORDS, N_PAIRS>(product, l.words[0], l.words[1], q.words);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float scale = scale_of(l, k);
            float logit[CN_LABEL_HEADS];
#pragma unroll
            for (uint32_t h = 0; h < CN_LABEL_HEADS; h++)
                logit[h] = cn_label_logit_of(product[h / 2][2 * k + h % 2], scale, q.factor[h]);
            cn_label_add<false>(pass, logit, l.valid[k] && !l.below[k], i + k == 0);
            if (l.valid[k]) cn_label_store(p, out.rows + (size_t)l.c[k] * p.row + first, logit);
        }
    }
    cn_lot_weights own = {0, CN_EXPONENT_BASE};
    cn_label_weights(own, pass, first);
    const uint32_t head = first / CN_WARP * CN_WARP + cn_label_head();
    if (head >= first && head < min(first + CN_LABEL_HEADS, p.group))
        add_lot(m, head, own);
}

/* Computes a lot of labels with one query for the group. */
template <int N_WORDS>
__device__ static inline void label_mean(const cn_score_params &p, const cn_score_part &x,
                                         score_memory m, uint32_t start, const score_out &out)
{
    const cn_label_query<N_WORDS, 1> q =
        cn_label_load<N_WORDS, 1>(m.fixed->labels[0], WORDS, m.fixed->factor, 0, 1);
#pragma unroll(N_WORDS > 4 ? 1 : 4)
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t product[1][4];
        float logit[2];
        const label_two<N_WORDS> l = load_two<N_WORDS>(p, x, start, i * 64);
        cn_label_products<N_WORDS, 1>(product, l.words[0], l.words[1], q.words);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            logit[k] = cn_label_logit_of(product[0][2 * k], scale_of(l, k), q.factor[0]);
        const uint32_t bits = cn_score_of_f16x2(cn_f16x2(logit[0], logit[1]));
        if (l.valid[0]) out.score[l.c[0]] = (uint16_t)bits;
        if (l.valid[1]) out.score[l.c[1]] = (uint16_t)(bits >> 16);
    }
}

template <int N_WORDS, bool MAX>
__device__ static inline void label_lot(const cn_score_params &p, const cn_score_part &x,
                                        score_memory m, uint32_t start, const score_out &out)
{
    if constexpr (MAX)
        if (cn_score_is_max(x.stage)) {
            for (uint32_t first = 0; first < p.group; first += 2 * N_PAIRS)
                label_heads<N_WORDS>(p, x, m, start, first, out);
            return;
        }
    label_mean<N_WORDS>(p, x, m, start, out);
}

/* ---- rows and bounds ---- */

/* sums[16, 8] = keys[16, width] * table[8, width]^T. low, high: the keys of rows g and g + 8; high
 * is NULL if they are not needed. */
__device__ static inline void dot_keys(float sums[4], const uint4 *low, const uint4 *high,
                                       const cn_bf16 *table, uint32_t width)
{
    const uint32_t t = threadIdx.x % 4, vecs = width / CN_VEC8;
    const uint4 *q = (const uint4 *)table, none = make_uint4(0, 0, 0, 0);
    float even[4] = {}, odd[4] = {};
    for (uint32_t from = t; from < vecs + t; from += 16) {
        uint4 a[4], c[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            a[i] = from + 4 * i < vecs ? __ldcs(low + from + 4 * i) : none;
            c[i] = high && from + 4 * i < vecs ? __ldcs(high + from + 4 * i) : none;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint4 b = from + 4 * i < vecs ? q[from + 4 * i] : none;
            const uint32_t first[4] = {a[i].x, c[i].x, a[i].y, c[i].y};
            const uint32_t second[4] = {a[i].z, c[i].z, a[i].w, c[i].w};
            cn_mma(even, first, b.x, b.y);
            cn_mma(odd, second, b.z, b.w);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) sums[i] = even[i] + odd[i];
}

/* Computes a lot of rows or bounds. */
template <bool MAX>
__device__ static inline void key_lot(const cn_score_params &p, const cn_score_part &x,
                                      score_memory m, uint32_t start, const score_out &out)
{
    const uint32_t d = p.args.pools.layout.head_dim, entry = x.stage.entry_log2;
    const bool is_bounds = x.stage.key == CN_KEY_BOUNDS;
    const bool is_max = MAX && cn_score_is_max(x.stage);
    const uint32_t width = is_bounds ? 2 * d : d, n_rows = is_max ? p.group : 2;
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4, t = lane % 4;
    const uint32_t next = is_bounds ? g : g + 8;
    const cn_score_token token[2] = {cn_score_token_of(p, x, start + (g << entry)),
                                     cn_score_token_of(p, x, start + (next << entry))};
    const uint4 *low = cn_score_key_of(p, x, token[0]);
    const uint4 *high = is_bounds ? NULL : cn_score_key_of(p, x, token[1]);
    const bool below[2] = {token[0].position < x.base, token[1].position < x.base};
    const bool valid[2] = {token[0].valid, token[1].valid && !is_bounds};
    for (uint32_t first = 0; first < n_rows; first += HEADS) {
        float sums[4], logit[2][2];
        const uint32_t row = min(first + g, n_rows - 1), head = first + 2 * t;
        dot_keys(sums, low, high, m.table + row * (width + TABLE_PAD), width);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t c = (start + ((g + 8 * k) << entry) - x.from) >> entry;
            const float factor = below[k] ? CUDART_NAN_F : m.fixed->factor[0];
            for (uint32_t i = 0; i < 2; i++) logit[i][k] = sums[2 * k + i] * factor;
            if (!valid[k]) continue;
            if (!is_max && t == 0)
                out.score[c] = cn_score_bits((sums[2 * k] + sums[2 * k + 1]) * factor);
            if (is_max && head < p.row)
                cn_store_kept(out.rows + (size_t)c * p.row + head,
                              cn_f16x2(logit[0][k], logit[1][k]));
        }
        if (!is_max) continue;
        cn_key_sums weights = {};
        cn_key_add(weights, logit, valid[0] && !below[0], valid[1] && !below[1]);
        const uint32_t own = first + cn_key_head();
        const cn_lot_weights lot = cn_key_close(weights);
        if (own < min(first + HEADS, p.group)) add_lot(m, own, lot);
    }
}

/* ---- the kernel ---- */

/* Writes the sums of the part, and where they are. */
__device__ static inline void store_sums(const cn_score_params &p, const cn_score_part &x,
                                         score_memory m)
{
    __syncthreads();
    for (uint32_t h = threadIdx.x; h < p.group; h += MAX_THREADS) {
        cn_exp_sum sum = m.sums[h][0];
        for (uint32_t w = 1; w < MAX_WARPS; w++) sum = cn_exp_sum_add(sum, m.sums[h][w]);
        p.slots[(size_t)x.slot * p.group + h] = sum;
    }
    if (threadIdx.x == 0) p.units[x.at.index] = {x.first_slot, x.n_slots};
}

/* Computes a part. */
template <bool MAX>
__device__ static inline void compute_part(const cn_score_params &p, const cn_score_part &x,
                                           score_memory m)
{
    score_out out = {};
    out.score = p.args.out + x.first;
    const bool is_max = MAX && cn_score_is_max(x.stage);
    if (is_max) out.rows = cn_score_rows(p, x.first);
    if (x.stage.key == CN_KEY_HASH) {
        cn_score_hash_part(p, x);
        return;
    }
    load_query<MAX>(p, x, m);
    for (uint32_t i = threadIdx.x / CN_WARP; i < x.n_lots; i += blockDim.x / CN_WARP) {
        const uint32_t start = lot_start(x, i);
        if (x.stage.key != CN_KEY_LABELS) key_lot<MAX>(p, x, m, start, out);
        else if (p.label_bytes == 16) label_lot<4, MAX>(p, x, m, start, out);
        else label_lot<WORDS, MAX>(p, x, m, start, out);
    }
    if (is_max) store_sums(p, x, m);
}

template <bool MAX>
__global__ static void __launch_bounds__(MAX ? MAX_THREADS : THREADS, CN_SCORE_BLOCKS)
    score_kernel(const __grid_constant__ cn_score_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ score_shared fixed;
    __shared__ cn_exp_sum sums[MAX ? MAX_GROUP : 1][MAX_WARPS];
    score_memory m;
    m.sums = sums;
    m.fixed = &fixed;
    m.raw = (cn_bf16 *)dynamic;
    m.table = m.raw + p.group * p.args.pools.layout.head_dim;
    cn_score_seq *seqs = (cn_score_seq *)((unsigned char *)m.table + p.table_bytes);
    if (!p.early) cn_wait_previous();
    cn_score_plan plan = cn_score_divide(p, seqs);
    cn_score_find(plan, p, 0, &fixed.parts);
    cn_wait_previous();
    cn_overlap_next(); /* after the wait: see select.cu */
    __syncthreads();
    for (uint32_t i = 0; fixed.parts.part[i % 2].n_lots > 0; i++) {
        const cn_score_part &x = fixed.parts.part[i % 2];
        cn_score_find(plan, p, i + 1, &fixed.parts);
        compute_part<MAX>(p, x, m);
        __syncthreads();
    }
}

/* ---- on the host ---- */

enum {
    LEAST_LAYERS = 4,      /* of a call, if score_layers is less */
    MOST_BLOCKS = 512,     /* of a launch */
    PATIENCE = 200 * 1000, /* cn_score_params.patience: 0.1 ms at 2 GHz */
    SHARE_WORDS = 4        /* counters of blocks that compute shares; 16 bytes */
};

/* Where the parts of the scratch begin, in bytes. They do not depend on the call, because only what
 * a call has used is cleared after it. */
typedef struct scratch_places {
    size_t units; /* of a call of one layer, at most; the counts of these are at 0 */
    size_t done;  /* counts of finished lists */
    size_t counters, sums, late; /* of blocks that compute shares */
    size_t results, end;         /* partial results of a call */
} scratch_places;

static scratch_places places_of(const cn_cuda_backend_opts *o)
{
    scratch_places at;
    at.units = (size_t)o->max_seqs * o->n_kv_heads;
    at.done = at.units * CN_COUNTS * sizeof(uint32_t);
    at.counters = at.done + cn_round_up(at.units * sizeof(uint32_t), 64);
    at.sums = at.counters + SHARE_WORDS * sizeof(uint32_t);
    const size_t slots = at.units + MOST_BLOCKS; /* and late parts */
    at.late = at.sums + slots * CN_LABEL_HEADS * sizeof(cn_marked_sum);
    at.results = at.late + slots * sizeof(cn_score_late);
    const size_t units = cn_max_u32(o->score_layers, LEAST_LAYERS) * at.units;
    const size_t heads = o->n_heads * units / cn_max_u32(o->n_kv_heads, 1);
    at.end = at.results + units * sizeof(cn_score_unit) +
             (heads + o->n_heads * MOST_BLOCKS) * sizeof(cn_exp_sum);
    return at;
}

extern "C" size_t cn_cuda_select_scratch_bytes(const cn_cuda_backend_opts *o)
{
    return places_of(o).end;
}

static cn_status check(const cn_score_args *a)
{
    const cn_kv_layout *l = &a->pools.layout;
    const uint32_t heads = a->pools.n_heads, d = l->head_dim;
    if (d == 0 || d % 16 != 0 || d > MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "score: head_dim %u: expected a multiple of 16, at most %d", d,
                       MAX_HEAD_DIM);
    if (heads == 0 || heads % l->n_kv_heads != 0 || heads / l->n_kv_heads > MAX_GROUP)
        return cn_fail(CN_ERR_SHAPE,
                       "score: %u query heads: expected a multiple of the %u kv heads, at most %d "
                       "times as many",
                       heads, l->n_kv_heads, MAX_GROUP);
    if (!cn_kv_layout_is_uniform(l, CN_BF16))
        return cn_fail(CN_ERR_SHAPE,
                       "score: KV layout: expected K and V in bf16, rows of %u elements", d);
    if ((l->block_tokens & (l->block_tokens - 1)) != 0)
        return cn_fail(CN_ERR_SHAPE, "score: blocks of %u tokens: expected a power of two",
                       l->block_tokens);
    return CN_OK;
}

static cn_status launch(cn_stream *s, cn_score_params p)
{
    const cn_score_args *a = &p.args;
    const uint32_t d = a->pools.layout.head_dim, rows = cn_max_u32(p.group, 2);
    p.table_bytes = rows * (2 * d + TABLE_PAD) * (uint32_t)sizeof(cn_bf16);
    cn_launch how = {dim3(CN_SCORE_BLOCKS * s->cuda->device.n_sms), THREADS};
    how.shared_bytes =
        p.group * d * sizeof(cn_bf16) + p.table_bytes + cn_score_seqs_bytes(a);
    if (!a->logits) return cn_cuda_launch(s, "score", score_kernel<false>, how, p);
    how.block = MAX_THREADS;
    return cn_cuda_launch(s, "score", score_kernel<true>, how, p);
}

cn_score_params cn_score_params_of(const cn_score_args *a)
{
    const cn_kv_layout *l = &a->pools.layout;
    cn_score_params p = {};
    p.args = *a;
    p.rows = cn_kv_rows_of(l);
    p.group = a->pools.n_heads / l->n_kv_heads;
    p.block_log2 = cn_log2_u32(l->block_tokens);
    p.tile_log2 = cn_log2_u32(l->tile_tokens);
    p.label_bytes = a->pools.digest.n_channels / 2;
    p.row = cn_logit_row(p.group);
    p.seq_units = a->n_layers * l->n_kv_heads;
    p.n_units = a->n_seqs * p.seq_units;
    p.keys = cn_route_keys(a->route);
    return p;
}

/* Divides the scratch. may_count: the next op clears the counts. */
static cn_status set_scratch(const cn_stream *s, cn_score_params *p, bool may_count)
{
    const scratch_places at = places_of(&s->cuda->opts);
    char *scratch = (char *)s->select_scratch;
    const size_t slots =
        (at.end - at.results) / (p->group * sizeof(cn_exp_sum) + sizeof(cn_score_unit));
    const uint32_t n_blocks = CN_SCORE_BLOCKS * s->cuda->device.n_sms;
    if (p->n_units + (size_t)n_blocks > slots)
        return cn_fail(CN_ERR_SHAPE,
                       "score: %u units of %u query heads: expected at most %zu units", p->n_units,
                       p->group, slots > n_blocks ? slots - n_blocks : 0);
    p->slots = (cn_exp_sum *)(scratch + at.results);
    p->units = (cn_score_unit *)(p->slots + slots * p->group);
    const bool fits = p->args.n_layers == 1 && p->n_units <= at.units;
    if (may_count && fits && cn_score_ring_counts(s, *p)) p->counts = (uint32_t *)scratch;
    if (!cn_score_ring_shares(*p)) return CN_OK;
    p->shares.n_late = (uint32_t *)(scratch + at.counters);
    p->shares.n_done = p->shares.n_late + 1;
    p->shares.sums = (cn_marked_sum *)(scratch + at.sums);
    p->shares.late = (cn_score_late *)(scratch + at.late);
    return CN_OK;
}

cn_status cn_score_launch(cn_stream *s, const cn_score_args *a, bool early, uint32_t **counts)
{
    if (counts) *counts = NULL;
    CN_TRY(check(a));
    cn_score_params p = cn_score_params_of(a);
    if (p.n_units == 0) return CN_OK;
    CN_ASSERT(s->select_scratch && (uintptr_t)a->logits % sizeof(uint2) == 0);
    p.early = early;
    p.patience = s->cuda->switches.impatient ? 0 : PATIENCE;
    CN_TRY(set_scratch(s, &p, counts != NULL));
    if (counts) *counts = p.counts;
    CN_TRY(cn_score_ring_fits(s, p) ? cn_score_ring(s, p) : launch(s, p));
    return a->logits && !p.shares.sums ? cn_score_share(s, p) : CN_OK;
}

extern "C" cn_status cn_cuda_score(cn_stream *s, const cn_score_args *a)
{
    return cn_score_launch(s, a, true, NULL);
}

uint32_t *cn_select_done(const cn_stream *s, uint32_t n_units)
{
    const scratch_places at = places_of(&s->cuda->opts);
    return n_units <= at.units ? (uint32_t *)((char *)s->select_scratch + at.done) : NULL;
}
