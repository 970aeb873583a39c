/* score.cu - score: candidates of a selection compared with the query.
 * In: q bf16, keys or digests by block. Out: u16 [units, n], ragged as in cn_score_args.
 *
 * The number of candidates is in device memory. So every unit gets the same number of blocks
 * (parts), which take its chunks in turn; blocks without a chunk end at once. The kinds of keys:
 *   rows    q . k, sums in f32. Some lanes of a warp share a key, 16 bytes each.
 *   bounds  sum over channels of max(q_c min_c, q_c max_c), which is one product of width 2 d:
 *           [min(q, 0) | max(q, 0)] . [min | max]. A group's sum is the product with the sum.
 *   labels  integer products, a token per thread. Nibbles become bytes of 16 times their value.
 *   hash    no query; the score is the hash.
 * Group rule max takes two more kernels. The first kernel stores the logits by query head, and the
 * largest of each part; the second sums the weights of each part; the third finds the largest share
 * of the group. Sums of weights are integers, so results do not depend on the number of parts.
 *
 * Grid parts * units, 256 threads. Bytes read per candidate and kv head: rows 2 d, bounds 4 d,
 * labels n_channels / 2 + 2; written: 2. Group rule max writes 4 bytes per query head and reads
 * them twice, from the L2 cache if they fit. More than 8 query heads of a kv head read the keys
 * again for every 8. CPU version: cpu_sel_score.c. */
#include <math_constants.h>

#include "cuda/select/select.cuh"
#include "engine/select_math.h"

enum {
    THREADS = 256,
    WARPS = THREADS / CN_WARP,
    MAX_HEAD_DIM = 256,
    MAX_GROUP = 64, /* query heads of a kv head */
    CHUNK = 512,    /* candidates */
    HEADS = 8,      /* query heads of a pass over the keys */
    MAX_VECS = 2 * MAX_HEAD_DIM / CN_VEC8,
    LABEL_WORDS = MAX_HEAD_DIM / 4 / 8, /* of eight channels */
    AT_ONCE = CHUNK / THREADS,          /* labels that a thread loads before it uses the first */
    BLOCKS = 1024,                      /* wanted in a launch */
    LEAST_PARTS = 4,                    /* few sequences of many may select */
    MOST_PARTS = 128
};

typedef struct score_params {
    cn_score_args args;
    cn_kv_rows rows;
    uint32_t group, n_units, n_parts;
    uint32_t block_log2, tile_log2; /* tokens of a block, and of a tile of the layout */
    uint64_t *part_sum;             /* [units, group, n_parts] */
    float *part_max;                /* the same */
} score_params;

typedef struct score_shared {
    float4 query[HEADS][2][MAX_VECS]; /* [heads, half, vec]: four values each */
    int4 labels[HEADS][2][LABEL_WORDS / 4]; /* quantised: the even channels, the odd ones */
    float factor[HEADS];                    /* by which products are multiplied */
    float warp_max[HEADS][WARPS];
} score_shared;

typedef struct score_unit {
    cn_sel_unit at;
    uint32_t layer; /* of the model */
    uint32_t n, base, part;
    cn_sel_stage stage;
    const uint32_t *tiles, *table;
    const cn_bf16 *q; /* [group, d] */
    float *logits;    /* [group, n]; NULL without group rule max */
    uint16_t *out;    /* [n] */
} score_unit;

/* Returns the unit and the part of this block; n is 0 if the block has nothing to do. */
__device__ static inline score_unit unit_of(const score_params &p)
{
    const cn_score_args &a = p.args;
    const uint32_t hk = a.pools.layout.n_kv_heads;
    score_unit u = {};
    u.at = cn_sel_unit_of(blockIdx.x % p.n_units, a.n_layers, hk);
    u.part = blockIdx.x / p.n_units;
    u.stage = a.stage[u.at.seq];
    const uint32_t n = a.n[u.at.seq];
    if (!u.stage.active || u.part * CHUNK >= n) return u;
    const size_t first = cn_sel_first(u.at, a.first[u.at.seq], n, a.n_layers, hk);
    const size_t q_row = ((size_t)u.at.row * hk + u.at.head) * p.group * a.pools.layout.head_dim;
    u.n = n;
    u.layer = a.first_layer + u.at.row;
    u.base = a.base[u.at.seq];
    u.table = a.tables + (size_t)u.at.seq * a.table_stride;
    if (u.stage.in_tiles) u.tiles = a.tiles + (size_t)u.at.index * a.tile_stride;
    u.out = a.out + first;
    if (u.stage.key == CN_KEY_HASH) return u;
    const bool predicted = u.stage.query == CN_SEL_PREDICTED;
    u.q = (const cn_bf16 *)(predicted ? a.q[CN_SEL_PREDICTED] : a.q[CN_SEL_TRUE]) +
          u.at.seq * (predicted ? a.q_stride[CN_SEL_PREDICTED] : a.q_stride[CN_SEL_TRUE]) + q_row;
    if (u.stage.group == CN_GROUP_MAX) u.logits = a.logits + first * p.group;
    return u;
}

/* The index of a query head's results of part 0. */
__device__ static inline size_t part_at(const score_params &p, const score_unit &u, uint32_t h)
{
    return ((size_t)u.at.index * p.group + h) * p.n_parts;
}

/* Parts of the unit that have a chunk. */
__device__ static inline uint32_t used_parts(const score_params &p, const score_unit &u)
{
    return min(p.n_parts, (u.n + CHUNK - 1) / CHUNK);
}

__device__ static inline uint32_t position_of(const score_unit &u, uint32_t c)
{
    return cn_sel_position(u.tiles, u.base, u.stage.entry_log2, c);
}

/* Returns the index of a token in the planes with an entry for each slot. */
__device__ static inline size_t side_of(const score_params &p, const score_unit &u,
                                        uint32_t position)
{
    const cn_kv_layout &l = p.args.pools.layout;
    const size_t block = (size_t)u.layer * l.n_blocks + __ldg(u.table + (position >> p.block_log2));
    return ((block * l.n_kv_heads + u.at.head) << p.block_log2) +
           (position & ((1u << p.block_log2) - 1));
}

/* Returns the key of a token. */
__device__ static inline const cn_bf16 *row_of(const score_params &p, const score_unit &u,
                                               uint32_t position)
{
    const cn_pools &pools = p.args.pools;
    const uint32_t slot = position & ((1u << p.block_log2) - 1);
    const uint32_t block = __ldg(u.table + (position >> p.block_log2));
    const size_t row = (size_t)u.layer * p.rows.layer + (size_t)block * p.rows.block +
                       u.at.head * p.rows.head + (slot >> p.tile_log2) * p.rows.tile +
                       (slot & ((1u << p.tile_log2) - 1));
    return (const cn_bf16 *)pools.kv + row * pools.layout.head_dim;
}

/* ---- queries ---- */

__device__ static inline float &query_at(score_shared *shared, uint32_t r, uint32_t i)
{
    float4 &four = shared->query[r][i / 4 % 2][i / CN_VEC8];
    return reinterpret_cast<float *>(&four)[i % 4];
}

/* Writes channel i of row r: the values of the heads [first, end), added up. */
__device__ static inline void load_channel(const score_unit &u, uint32_t d, uint32_t r, uint32_t i,
                                           uint32_t first, uint32_t end, score_shared *shared)
{
    const bool is_bounds = u.stage.key == CN_KEY_BOUNDS;
    float sum = 0, high = 0;
    for (uint32_t h = first; h < end; h++) {
        const float x = __bfloat162float(u.q[(size_t)h * d + i]);
        sum += is_bounds ? fminf(x, 0.0f) : x;
        high += fmaxf(x, 0.0f);
    }
    if (u.stage.group == CN_GROUP_MEAN) sum /= (float)(end - first);
    query_at(shared, r, i) = sum;
    if (is_bounds) query_at(shared, r, d + i) = high;
}

/* Quantises the label channels of row r. A warp calls it. */
__device__ static inline void quantise_row(const score_params &p, const score_unit &u, uint32_t r,
                                           score_shared *shared)
{
    const cn_pools &pools = p.args.pools;
    const uint32_t n = pools.digest.n_channels, lane = threadIdx.x % CN_WARP;
    const size_t unit = (size_t)u.layer * pools.layout.n_kv_heads + u.at.head;
    const uint8_t *channels = pools.digest.channels + unit * n;
    int8_t *bytes = reinterpret_cast<int8_t *>(shared->labels[r]);
    float largest = 0;
    for (uint32_t c = lane; c < n; c += CN_WARP)
        largest = fmaxf(largest, fabsf(query_at(shared, r, channels[c])));
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    const float scale = cn_query_scale(largest);
    for (uint32_t c = lane; c < 8 * LABEL_WORDS; c += CN_WARP) {
        const int32_t x = c < n ? cn_query_of(query_at(shared, r, channels[c]), scale) : 0;
        bytes[c % 2 * (4 * LABEL_WORDS) + c / 2] = (int8_t)x;
    }
    if (lane == 0) shared->factor[r] = cn_score_scale(pools.layout.head_dim) * scale;
}

/* Loads the query heads [first, first + HEADS) of the group under group rule max, one row each;
 * else one row for the group. Returns the number of rows. */
__device__ static inline uint32_t load_query(const score_params &p, const score_unit &u,
                                             uint32_t first, score_shared *shared)
{
    const uint32_t d = p.args.pools.layout.head_dim, warp = threadIdx.x / CN_WARP;
    const uint32_t rows = u.logits ? min((uint32_t)HEADS, p.group - first) : 1;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < d; i += THREADS)
        for (uint32_t r = 0; r < rows; r++)
            load_channel(u, d, r, i, u.logits ? first + r : 0, u.logits ? first + r + 1 : p.group,
                         shared);
    if (threadIdx.x < rows) shared->factor[threadIdx.x] = cn_score_scale(d);
    __syncthreads();
    if (u.stage.key == CN_KEY_LABELS && warp < rows) quantise_row(p, u, warp, shared);
    __syncthreads();
    return rows;
}

/* ---- logits ---- */

/* Stores the logit of candidate c for row r, which is query head `head` of the group. */
__device__ static inline void store_logit(const score_unit &u, uint32_t head, uint32_t c, float x)
{
    if (u.logits) u.logits[(size_t)head * u.n + c] = x;
    else u.out[c] = cn_score_bits(x);
}

/* Loads the 16 bytes `vec` of a candidate's key; step 1: of its upper bounds. */
__device__ static inline uint4 load_key(const score_params &p, const score_unit &u,
                                        uint32_t position, uint32_t step, uint32_t vec)
{
    const cn_pools &pools = p.args.pools;
    const uint32_t d = pools.layout.head_dim, log2 = u.stage.entry_log2;
    const cn_bf16 *row;
    if (u.stage.key == CN_KEY_BOUNDS) {
        const void *bounds = log2 == 4 ? pools.digest.bounds_16 : pools.digest.bounds_64;
        row = (const cn_bf16 *)bounds + (side_of(p, u, position) >> log2) * 2 * d + step * d;
    } else {
        row = row_of(p, u, position);
    }
    return __ldg((const uint4 *)row + vec);
}

/* Rows (STEPS 1) and bounds (STEPS 2). Each warp has a part of the chunk [start, end). CANDS
 * candidates of a lane are computed side by side. */
template <int STEPS, int CANDS>
__device__ static inline void dot_chunk(const score_params &p, const score_unit &u, uint32_t first,
                                        uint32_t rows, uint32_t start, uint32_t end,
                                        const score_shared *shared, float best[HEADS])
{
    const uint32_t vecs = p.args.pools.layout.head_dim / CN_VEC8;
    const uint32_t lanes = vecs <= 1 ? 1 : 1u << (32 - __clz((int)(vecs - 1))); /* of a key */
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t sub = lane % lanes, keys = CN_WARP / lanes;
    const uint32_t from = start + warp * (CHUNK / WARPS), to = min(end, from + CHUNK / WARPS);
    for (uint32_t c0 = from + lane / lanes; c0 - lane / lanes < to; c0 += keys * CANDS) {
        float x[CANDS][STEPS][CN_VEC8];
        bool below[CANDS];
#pragma unroll
        for (uint32_t k = 0; k < CANDS; k++) {
            const uint32_t c = c0 + k * keys, position = c < to ? position_of(u, c) : 0;
            const bool loads = c < to && position >= u.base && sub < vecs;
            below[k] = c < to && position < u.base;
#pragma unroll
            for (uint32_t i = 0; i < STEPS; i++)
                cn_unpack8(x[k][i],
                           loads ? load_key(p, u, position, i, sub) : make_uint4(0, 0, 0, 0));
        }
#pragma unroll
        for (uint32_t r = 0; r < HEADS; r++) {
            if (r >= rows) break;
            float sum[CANDS] = {};
#pragma unroll
            for (uint32_t i = 0; i < STEPS; i++) {
                const uint32_t vec = sub < vecs ? i * vecs + sub : 0;
                const float4 low = shared->query[r][0][vec], high = shared->query[r][1][vec];
                const float q[CN_VEC8] = {low.x,  low.y,  low.z,  low.w,
                                          high.x, high.y, high.z, high.w};
#pragma unroll
                for (uint32_t k = 0; k < CANDS; k++)
#pragma unroll
                    for (uint32_t j = 0; j < CN_VEC8; j++) sum[k] += q[j] * x[k][i][j];
            }
#pragma unroll
            for (uint32_t k = 0; k < CANDS; k++) {
                for (uint32_t offset = lanes / 2; offset > 0; offset /= 2)
                    sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], offset);
                if (c0 + k * keys >= to) continue;
                const float logit = below[k] ? CUDART_NAN_F : sum[k] * shared->factor[r];
                best[r] = fmaxf(best[r], logit); /* ignores NaN */
                if (sub == 0) store_logit(u, first + r, c0 + k * keys, logit);
            }
        }
    }
}

/* Loads a label; n is its number of bytes, a multiple of 2. */
__device__ static inline void load_label(uint32_t words[LABEL_WORDS], const uint8_t *label,
                                         uint32_t n)
{
    if (n == 16 || n == 32) {
#pragma unroll
        for (uint32_t i = 0; i < LABEL_WORDS / 4; i++) {
            if (16 * i >= n) break;
            const uint4 four = __ldg((const uint4 *)label + i);
            words[4 * i] = four.x;
            words[4 * i + 1] = four.y;
            words[4 * i + 2] = four.z;
            words[4 * i + 3] = four.w;
        }
    } else if (n == 8) {
        const uint2 two = __ldg((const uint2 *)label);
        words[0] = two.x;
        words[1] = two.y;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 2 * LABEL_WORDS; i++)
            if (2 * i < n)
                words[i / 2] |= (uint32_t)__ldg((const uint16_t *)label + i) << (16 * (i % 2));
    }
}

/* The product of a label and a quantised query. Nibbles in the high halves of bytes are values
 * times 16, so the sum is, too. */
__device__ static inline int32_t label_dot(const uint32_t words[LABEL_WORDS], uint32_t n_words,
                                           const int4 query[2][LABEL_WORDS / 4])
{
    const uint32_t upper = 0xf0f0f0f0u;
    int32_t dot = 0;
#pragma unroll
    for (uint32_t i = 0; i < LABEL_WORDS / 4; i++) {
        if (4 * i >= n_words) break;
        const int4 e = query[0][i], o = query[1][i];
        const int32_t even[4] = {e.x, e.y, e.z, e.w}, odd[4] = {o.x, o.y, o.z, o.w};
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            dot = __dp4a((int32_t)(words[4 * i + j] << 4 & upper), even[j], dot);
            dot = __dp4a((int32_t)(words[4 * i + j] & upper), odd[j], dot);
        }
    }
    return dot >> 4;
}

__device__ static inline void label_chunk(const score_params &p, const score_unit &u,
                                          uint32_t first, uint32_t rows, uint32_t start,
                                          uint32_t end, const score_shared *shared,
                                          float best[HEADS])
{
    const cn_digest &g = p.args.pools.digest;
    const uint32_t n_bytes = g.n_channels / 2, n_words = (n_bytes + 3) / 4;
    uint32_t words[AT_ONCE][LABEL_WORDS] = {};
    float scale[AT_ONCE];
    bool below[AT_ONCE];
#pragma unroll
    for (uint32_t k = 0; k < AT_ONCE; k++) {
        const uint32_t c = start + k * THREADS + threadIdx.x;
        const uint32_t position = c < end ? position_of(u, c) : 0;
        below[k] = position < u.base;
        scale[k] = 0;
        if (c >= end || below[k]) continue;
        const size_t side = side_of(p, u, position);
        load_label(words[k], g.labels + side * n_bytes, n_bytes);
        scale[k] = cn_f16_value(__ldg(g.scales + side));
    }
#pragma unroll
    for (uint32_t r = 0; r < HEADS; r++) {
        if (r >= rows) break;
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t c = start + k * THREADS + threadIdx.x;
            if (c >= end) continue;
            const int32_t dot = label_dot(words[k], n_words, shared->labels[r]);
            const float logit =
                below[k] ? CUDART_NAN_F : cn_label_logit(dot, scale[k], shared->factor[r]);
            best[r] = fmaxf(best[r], logit); /* ignores NaN */
            store_logit(u, first + r, c, logit);
        }
    }
}

__device__ static inline void hash_chunk(const score_params &p, const score_unit &u, uint32_t start,
                                         uint32_t end)
{
    for (uint32_t c = start + threadIdx.x; c < end; c += THREADS) {
        const uint32_t position = position_of(u, c);
        u.out[c] = position < u.base ? 0
                                     : cn_hash_score(p.args.seed[u.at.seq], u.layer, u.at.head,
                                                     position);
    }
}

/* ---- kernels ---- */

/* Writes the largest logit of the part, of the query heads [first, first + rows). */
__device__ static inline void store_max(const score_params &p, const score_unit &u, uint32_t first,
                                        uint32_t rows, float best[HEADS], score_shared *shared)
{
#pragma unroll
    for (uint32_t r = 0; r < HEADS; r++) {
#pragma unroll
        for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
            best[r] = fmaxf(best[r], __shfl_xor_sync(0xffffffffu, best[r], offset));
        if (threadIdx.x % CN_WARP == 0) shared->warp_max[r][threadIdx.x / CN_WARP] = best[r];
    }
    __syncthreads();
    if (threadIdx.x >= rows) return;
    float top = -CUDART_INF_F;
    for (uint32_t w = 0; w < WARPS; w++) top = fmaxf(top, shared->warp_max[threadIdx.x][w]);
    p.part_max[part_at(p, u, first + threadIdx.x) + u.part] = top;
}

__global__ static void __launch_bounds__(THREADS, 4)
    logits_kernel(const __grid_constant__ score_params p)
{
    __shared__ score_shared shared;
    cn_overlap_next();
    cn_wait_previous();
    const score_unit u = unit_of(p);
    if (u.n == 0) return;
    const uint32_t n_rows = u.logits ? p.group : 1, step = p.n_parts * CHUNK;
    for (uint32_t first = 0; first < n_rows; first += HEADS) {
        float best[HEADS];
#pragma unroll
        for (uint32_t r = 0; r < HEADS; r++) best[r] = -CUDART_INF_F;
        const uint32_t rows = u.q ? load_query(p, u, first, &shared) : 0;
        for (uint32_t start = u.part * CHUNK; start < u.n; start += step) {
            const uint32_t end = min(start + CHUNK, u.n);
            switch (u.stage.key) {
            case CN_KEY_LABELS: label_chunk(p, u, first, rows, start, end, &shared, best); break;
            case CN_KEY_BOUNDS:
                dot_chunk<2, 1>(p, u, first, rows, start, end, &shared, best);
                break;
            case CN_KEY_ROWS: dot_chunk<1, 2>(p, u, first, rows, start, end, &shared, best); break;
            default: hash_chunk(p, u, start, end);
            }
        }
        if (u.logits) store_max(p, u, first, rows, best, &shared);
    }
}

/* Returns the largest logit of a query head. A warp calls it. */
__device__ static inline float head_max(const score_params &p, const score_unit &u, uint32_t h)
{
    const float *part = p.part_max + part_at(p, u, h);
    float top = -CUDART_INF_F;
    for (uint32_t i = threadIdx.x % CN_WARP; i < used_parts(p, u); i += CN_WARP)
        top = fmaxf(top, part[i]);
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    return top;
}

__device__ static inline uint64_t warp_sum64(uint64_t v)
{
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, (unsigned long long)v, offset);
    return v;
}

/* The sums of the part's weights, for each query head. */
__global__ static void __launch_bounds__(THREADS)
    sum_kernel(const __grid_constant__ score_params p)
{
    __shared__ float top[MAX_GROUP];
    __shared__ uint64_t sums[MAX_GROUP][WARPS];
    cn_overlap_next();
    cn_wait_previous();
    const score_unit u = unit_of(p);
    if (u.n == 0 || !u.logits) return;
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    for (uint32_t h = warp; h < p.group; h += WARPS) {
        const float x = head_max(p, u, h);
        if (lane == 0) top[h] = x;
    }
    __syncthreads();
    for (uint32_t h = 0; h < p.group; h++) {
        const float *row = u.logits + (size_t)h * u.n;
        uint64_t sum = 0;
        for (uint32_t start = u.part * CHUNK; start < u.n; start += p.n_parts * CHUNK)
            for (uint32_t c = start + threadIdx.x; c < min(start + CHUNK, u.n); c += THREADS)
                sum += cn_sample_weight(row[c] - top[h]);
        sum = warp_sum64(sum);
        if (lane == 0) sums[h][warp] = sum;
    }
    __syncthreads();
    for (uint32_t h = threadIdx.x; h < p.group; h += THREADS) {
        uint64_t sum = 0;
        for (uint32_t w = 0; w < WARPS; w++) sum += sums[h][w];
        p.part_sum[part_at(p, u, h) + u.part] = sum;
    }
}

/* The largest share of the group. */
__global__ static void __launch_bounds__(THREADS)
    share_kernel(const __grid_constant__ score_params p)
{
    __shared__ float top[MAX_GROUP], log_sum[MAX_GROUP];
    cn_overlap_next();
    cn_wait_previous();
    const score_unit u = unit_of(p);
    if (u.n == 0 || !u.logits) return;
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    for (uint32_t h = warp; h < p.group; h += WARPS) {
        const float x = head_max(p, u, h);
        const uint64_t *part = p.part_sum + part_at(p, u, h);
        uint64_t sum = 0;
        for (uint32_t i = lane; i < used_parts(p, u); i += CN_WARP) sum += part[i];
        sum = warp_sum64(sum);
        if (lane > 0) continue;
        top[h] = x;
        log_sum[h] = cn_log_weights(sum);
    }
    __syncthreads();
    for (uint32_t start = u.part * CHUNK; start < u.n; start += p.n_parts * CHUNK)
        for (uint32_t c = start + threadIdx.x; c < min(start + CHUNK, u.n); c += THREADS) {
            float best = (u.logits[c] - top[0]) - log_sum[0];
            for (uint32_t h = 1; h < p.group; h++)
                best = fmaxf(best, (u.logits[(size_t)h * u.n + c] - top[h]) - log_sum[h]);
            u.out[c] = cn_score_bits(best);
        }
}

/* ---- on the host ---- */

enum { SLOT_BYTES = sizeof(uint64_t) + sizeof(float) };

/* Room for LEAST_PARTS parts of the largest step, and for BLOCKS blocks of any step. */
extern "C" size_t cn_cuda_select_scratch_bytes(const cn_cuda_backend_opts *o)
{
    return (size_t)o->n_heads * (LEAST_PARTS * (size_t)o->max_seqs + BLOCKS) * SLOT_BYTES;
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

extern "C" cn_status cn_cuda_score(cn_stream *s, const cn_score_args *a)
{
    CN_TRY(check(a));
    const cn_kv_layout *l = &a->pools.layout;
    score_params p = {};
    p.args = *a;
    p.rows = cn_kv_rows_of(l);
    p.group = a->pools.n_heads / l->n_kv_heads;
    p.n_units = a->n_seqs * a->n_layers * l->n_kv_heads;
    if (p.n_units == 0) return CN_OK;
    CN_ASSERT(s->select_scratch);
    const size_t slots = s->cuda->select_scratch_bytes / SLOT_BYTES;
    const size_t room = slots / ((size_t)p.n_units * p.group);
    if (room == 0)
        return cn_fail(CN_ERR_SHAPE,
                       "score: %u units of %u query heads: expected at most %zu query heads in all",
                       p.n_units, p.group, slots);
    const uint32_t wanted = cn_max_u32(LEAST_PARTS, cn_min_u32(MOST_PARTS, BLOCKS / p.n_units));
    p.n_parts = room < wanted ? (uint32_t)room : wanted;
    while (1u << p.block_log2 < l->block_tokens) p.block_log2++;
    while (1u << p.tile_log2 < l->tile_tokens) p.tile_log2++;
    p.part_sum = (uint64_t *)s->select_scratch;
    p.part_max = (float *)(p.part_sum + slots);
    const cn_launch how = {dim3(p.n_units * p.n_parts), THREADS};
    CN_TRY(cn_cuda_launch(s, "score: logits", logits_kernel, how, p));
    CN_TRY(cn_cuda_launch(s, "score: sums", sum_kernel, how, p));
    return cn_cuda_launch(s, "score: shares", share_kernel, how, p);
}
