/* compress_score.cu - the scores of a compression event on any GPU from compute capability 8.0 on,
 * in any shape: attention of the window with the global score, and redundancy of the keys.
 * K [n, d] and Q [window, group, d] of a unit in the layouts of the pool and the windows, bf16;
 * score, redundancy [units, n] f32. Products by mma.sync, f32 sums.
 *
 * Keys are the 16 rows of a fragment, queries its columns. The heads of a group, padded to a power
 * of two, are neighbouring columns, so their maximum is computed inside four lanes. A softmax over
 * all slots needs its sum before the first weight, so keys are multiplied twice: partial_kernel
 * computes (max, sum) of each query over each span, total_kernel combines these into one number per
 * query, and weigh_kernel computes the weights and applies the decayed global score. cosine_kernel
 * multiplies 64 keys by the keys of their block (lightning) or by all keys (flash). The twin of a
 * column is the last row whose cosine is above p. The cosines are symmetric, so the twin of a
 * column is found in the row of the same number; twin_kernel subtracts its cosine from the row sum
 * of the twin.
 *
 * Keys in eight bits are multiplied as codes; the scale of a key multiplies its logits.
 * Grid (units, spans or 64-slot tiles), 128 threads. Bytes moved: K twice for attention and, for
 * lightning, (b + 64) / 64 times in blocks of b; all but the first from the L2 cache.
 * CPU version: engine/cpu/cpu_score.c. Paper C.2, C.3, C.5, C.7. */
#include "cuda/attn/attn_common.cuh"
#include "cuda/compress/compress.cuh"

enum {
    WARPS = 4,
    THREADS = WARPS * CN_WARP,
    TILE = 16 * WARPS, /* slots in shared memory at a time */
    TILES = CN_COMPRESS_SPAN / TILE,
    QUERY_TILE = 128, /* padded query rows in shared memory at a time */
    STEP = 32,        /* columns of one pass of a warp: four fragments */
    MAX_GROUP = QUERY_TILE,
    NO_TWIN = 0x7fffffff
};
static const __device__ float FLOOR_LOG2 = -100.0f; /* the least weight: avoids denormals */

/* The chunk, and the padding of its query rows. */
typedef struct score_params {
    cn_compress_chunk c;
    uint32_t padded;   /* group, rounded up to a power of two */
    uint32_t n_padded; /* window * padded */
    float scale;       /* of logits, with log2(e) */
} score_params;

/* ---- tiles ---- */

/* Returns the bytes of `rows` rows of d values, in boxes of 64 columns. */
__host__ __device__ static inline uint32_t tile_bytes(uint32_t rows, uint32_t d)
{
    return (d + CN_BOX_COLS - 1) / CN_BOX_COLS * rows * CN_ROW_BYTES;
}

/* Loads keys [first, first + TILE), with zeros from n on; in eight bits the codes, without their
 * scales. */
template <bool FP8>
__device__ static inline void load_keys(uint32_t to, const cn_compress_chunk &c,
                                        const cn_compress_unit &u, uint32_t first)
{
    const uint32_t chunks = c.pools.layout.head_dim / CN_VEC8;
    for (uint32_t e = threadIdx.x; e < TILE * chunks; e += THREADS) {
        const uint32_t row = e / chunks, chunk = e % chunks;
        const uint32_t at = to + cn_chunk_at(TILE, row, chunk);
        const bool valid = first + row < c.n;
        const void *from = cn_compress_row(c, u, valid ? first + row : 0, CN_KV_K);
        if constexpr (FP8) {
            const uint2 codes = valid ? __ldg((const uint2 *)from + chunk) : make_uint2(0, 0);
            cn_shared_store16(at, cn_fp8_chunk(codes));
        } else {
            cn_copy16(at, (const cn_bf16 *)from + chunk * CN_VEC8, valid);
        }
    }
}

/* factor[i] = what logits of slot v + 8 i are multiplied by. */
template <bool FP8>
__device__ static inline void key_factors(float factor[2], const score_params &p,
                                          const cn_compress_unit &u, uint32_t v)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        factor[i] = p.scale;
        if (!FP8 || v + 8 * i >= p.c.n) continue;
        const void *scale = cn_compress_row(p.c, u, v + 8 * i, CN_KV_K_SCALE);
        factor[i] *= cn_fp8_half(__ldg((const uint16_t *)scale));
    }
}

/* Returns the row of a head of the group in query `query`, 0 for the oldest that counts. */
__device__ static inline const cn_bf16 *counted_query(const score_params &p,
                                                      const cn_compress_unit &u, uint32_t query,
                                                      uint32_t head)
{
    const cn_pools &pools = p.c.pools;
    const uint32_t d = pools.layout.head_dim, of_all = u.head * p.c.group + head;
    if (p.c.queries)
        return (const cn_bf16 *)p.c.queries +
               (((size_t)u.index * p.c.window + query) * pools.n_heads + of_all) * d;
    return (const cn_bf16 *)pools.q_window +
           cn_query_row(pools.n_query_slots, pools.window, pools.n_heads, d, u.layer,
                        u.job->query_slot, (u.job->ring_start + query) % p.c.ring, of_all);
}

/* Loads the padded query rows [first, first + QUERY_TILE): row r is head r % padded of query
 * r / padded. Padding is zeros. */
__device__ static inline void load_queries(uint32_t to, const score_params &p,
                                           const cn_compress_unit &u, uint32_t first)
{
    const uint32_t chunks = p.c.pools.layout.head_dim / CN_VEC8;
    for (uint32_t e = threadIdx.x; e < QUERY_TILE * chunks; e += THREADS) {
        const uint32_t row = e / chunks, chunk = e % chunks;
        const uint32_t query = (first + row) / p.padded, head = (first + row) % p.padded;
        const bool valid = query < p.c.window && head < p.c.group;
        const cn_bf16 *from = counted_query(p, u, valid ? query : 0, valid ? head : 0);
        cn_copy16(to + cn_chunk_at(QUERY_TILE, row, chunk), from + chunk * CN_VEC8, valid);
    }
}

__device__ static inline void tiles_arrived(void)
{
    cn_copy_commit();
    cn_copy_wait<0>();
    __syncthreads();
}

/* x = the products of this warp's 16 rows of tile `a` (TILE rows) with rows [first, first + STEP)
 * of tile `b` (b_rows rows). x[j] has the columns from 8 j on. */
__device__ static inline void multiply_tile_rows(float x[STEP / 8][4], uint32_t a, uint32_t b,
                                                 uint32_t b_rows, uint32_t first, uint32_t d)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t a_row = warp * 16 + lane % 16, b_row = first + lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int j = 0; j < STEP / 8; j++) x[j][0] = x[j][1] = x[j][2] = x[j][3] = 0.0f;
#pragma unroll 2
    for (uint32_t k = 0; k < d / CN_VEC8; k += 2) {
        uint32_t keys[4], low[4], high[4];
        cn_ldmatrix(keys, a + cn_chunk_at(TILE, a_row, k + lane / 16));
        cn_ldmatrix(low, b + cn_chunk_at(b_rows, b_row, k + lane / 8 % 2));
        cn_ldmatrix(high, b + cn_chunk_at(b_rows, b_row + 16, k + lane / 8 % 2));
        cn_mma(x[0], keys, low[0], low[1]);
        cn_mma(x[1], keys, low[2], low[3]);
        cn_mma(x[2], keys, high[0], high[1]);
        cn_mma(x[3], keys, high[2], high[3]);
    }
}

/* Returns the number of slots that a padded query row sees; 0 for padding. */
__device__ static inline uint32_t n_visible(const score_params &p, uint32_t row)
{
    const uint32_t query = row / p.padded;
    if (query >= p.c.window || row % p.padded >= p.c.group) return 0;
    return p.c.n - p.c.window + query + 1;
}

/* ---- sums of the softmax ---- */

/* Merges (max, sum) of one query over more slots into *total. */
__device__ static inline void merge_softmax(float2 *total, float2 more)
{
    const float top = fmaxf(total->x, more.x);
    if (top == -CUDART_INF_F) return;
    total->y = total->y * cn_exp2(total->x - top) + more.y * cn_exp2(more.x - top);
    total->x = top;
}

/* Adds one column of a fragment to the query's sum. This lane has its slots v and v + 8. */
__device__ static inline void add_column(float2 *total, float low, float high, uint32_t v,
                                         uint32_t visible)
{
    low = v < visible ? low : -CUDART_INF_F;
    high = v + 8 < visible ? high : -CUDART_INF_F;
    const float top = cn_column_max(fmaxf(low, high));
    const float from = top == -CUDART_INF_F ? 0.0f : top;
    const float sum = cn_column_sum(cn_exp2(low - from) + cn_exp2(high - from));
    if (threadIdx.x % CN_WARP < 4) merge_softmax(total, make_float2(top, sum));
}

template <bool FP8>
__global__ static void __launch_bounds__(THREADS)
    partial_kernel(const __grid_constant__ score_params p)
{
    extern __shared__ __align__(1024) char tiles[];
    __shared__ float2 sums[WARPS][QUERY_TILE];
    const cn_compress_unit u = cn_compress_unit_of(p.c, blockIdx.x);
    const uint32_t d = p.c.pools.layout.head_dim, span = blockIdx.y;
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t keys = cn_shared_address(tiles), queries = keys + tile_bytes(TILE, d);
    const uint32_t n_rows = p.c.window * p.c.group;
    float2 *out = (float2 *)(p.c.work + (size_t)u.index * p.c.work_words) + (size_t)span * n_rows;
    cn_overlap_next();
    cn_wait_previous();
    for (uint32_t first = 0; first < p.n_padded; first += QUERY_TILE) {
        for (uint32_t r = lane; r < QUERY_TILE; r += CN_WARP)
            sums[warp][r] = make_float2(-CUDART_INF_F, 0.0f);
        load_queries(queries, p, u, first);
        for (uint32_t tile = 0; tile < TILES; tile++) {
            const uint32_t slot = span * CN_COMPRESS_SPAN + tile * TILE;
            if (slot >= p.c.n) break;
            const uint32_t v = slot + warp * 16 + lane / 4;
            float factor[2];
            load_keys<FP8>(keys, p.c, u, slot);
            key_factors<FP8>(factor, p, u, v);
            tiles_arrived();
            for (uint32_t r = 0; r < QUERY_TILE && first + r < p.n_padded; r += STEP) {
                float x[STEP / 8][4];
                multiply_tile_rows(x, keys, queries, QUERY_TILE, r, d);
#pragma unroll
                for (int i = 0; i < STEP / 4; i++) {
                    const uint32_t row = r + i / 2 * 8 + lane % 4 * 2 + i % 2;
                    add_column(&sums[warp][row], x[i / 2][i % 2] * factor[0],
                               x[i / 2][2 + i % 2] * factor[1], v, n_visible(p, first + row));
                }
            }
            __syncthreads();
        }
        for (uint32_t r = threadIdx.x; r < QUERY_TILE; r += THREADS) {
            if (n_visible(p, first + r) == 0) continue;
            float2 total = sums[0][r];
            for (uint32_t i = 1; i < WARPS; i++) merge_softmax(&total, sums[i][r]);
            out[(first + r) / p.padded * p.c.group + (first + r) % p.padded] = total;
        }
        __syncthreads();
    }
}

/* Writes one number per query over its first partial sum: log2 of the denominator of the
 * softmax. */
__global__ static void __launch_bounds__(THREADS)
    total_kernel(const __grid_constant__ score_params p)
{
    const uint32_t n_rows = p.c.window * p.c.group;
    float2 *sums = (float2 *)(p.c.work + (size_t)blockIdx.x * p.c.work_words);
    cn_overlap_next();
    cn_wait_previous();
    for (uint32_t r = threadIdx.x; r < n_rows; r += THREADS) {
        float2 total = sums[r];
        for (uint32_t i = 1; i < p.c.n_spans; i++)
            merge_softmax(&total, sums[(size_t)i * n_rows + r]);
        sums[r].x = total.x + log2f(total.y);
    }
}

/* ---- weights ---- */

/* Returns the weight of slot v for a query row. */
__device__ static inline float slot_weight(float logit, float total, uint32_t v, uint32_t visible)
{
    if (visible == 0) return 0.0f;
    return cn_exp2(v < visible ? fmaxf(logit - total, FLOOR_LOG2) : FLOOR_LOG2);
}

/* Returns the largest weight of a group to all lanes that have columns of the group. `columns`
 * columns of the group are in one fragment; a larger group spans several fragments. */
__device__ static inline float group_max(float v, uint32_t columns)
{
    if (columns >= 4) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    if (columns >= 8) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
    return v;
}

/* Counts the weight of one more query: the sum, or with `peak` the largest. */
__device__ static inline float counted(const score_params &p, float all, float more)
{
    return p.c.peak ? fmaxf(all, more) : all + more;
}

/* Counts the weights of STEP query rows from `row` on in sum[] (this lane's slots v and v + 8).
 * best[] keeps the largest weight of a group that continues in the next rows. */
__device__ static inline void add_weights(float sum[2], float best[2], const score_params &p,
                                          const float x[STEP / 8][4], const float factor[2],
                                          const float *totals, uint32_t row, uint32_t v)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    const uint32_t fragments = p.padded > 8 ? p.padded / 8 : 1; /* of a group */
#pragma unroll
    for (uint32_t j = 0; j < STEP / 8; j++) {
        const uint32_t at = j * 8 + lane % 4 * 2;
        const uint32_t left = n_visible(p, row + at), right = n_visible(p, row + at + 1);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float a =
                slot_weight(x[j][2 * half] * factor[half], totals[at], v + 8 * half, left);
            const float b =
                slot_weight(x[j][2 * half + 1] * factor[half], totals[at + 1], v + 8 * half, right);
            if (p.padded == 1) {
                sum[half] = counted(p, counted(p, sum[half], a), b);
                continue;
            }
            best[half] = fmaxf(best[half], fmaxf(a, b));
            if ((row / 8 + j + 1) % fragments != 0) continue;
            sum[half] = counted(p, sum[half], group_max(best[half], p.padded));
            best[half] = 0.0f;
        }
    }
}

/* Computes S of a slot from the counts of its four lanes. `times` lanes counted each group. */
__device__ static inline void finish_slot(const score_params &p, const cn_compress_unit &u,
                                          uint32_t v, float count)
{
    const float times = p.padded >= 8 ? 4.0f : p.padded == 4 ? 2.0f : 1.0f;
    float s = p.c.peak ? cn_quad_max(count) : cn_quad_sum(count) / (times * (float)p.c.window);
    if (threadIdx.x % 4 != 0 || v >= p.c.n) return;
    if (v < u.job->n_history) {
        const uint32_t b = p.c.pools.layout.block_tokens;
        const size_t at = cn_compress_side(p.c, u, u.job->source[v / b], v % b);
        s = fmaxf(s, u.job->alpha * p.c.pools.score[at]);
    }
    p.c.score[(size_t)u.index * p.c.n + v] = s;
}

/* Returns what a padded query row's logits are reduced by: the logarithm of the denominator, plus
 * the decay of the query's probabilities. */
__device__ static inline float total_of(const score_params &p, const cn_compress_unit &u,
                                        const float2 *sums, uint32_t row)
{
    const uint32_t query = row / p.padded, age = p.c.window - 1 - query;
    return sums[query * p.c.group + row % p.padded].x - u.job->decay_log2 * (float)age;
}

template <bool FP8>
__global__ static void __launch_bounds__(THREADS)
    weigh_kernel(const __grid_constant__ score_params p)
{
    extern __shared__ __align__(1024) char tiles[];
    __shared__ float totals[QUERY_TILE];
    const cn_compress_unit u = cn_compress_unit_of(p.c, blockIdx.x);
    const uint32_t d = p.c.pools.layout.head_dim, warp = threadIdx.x / CN_WARP;
    const uint32_t keys = cn_shared_address(tiles), queries = keys + tile_bytes(TILE, d);
    const float2 *sums = (const float2 *)(p.c.work + (size_t)u.index * p.c.work_words);
    cn_overlap_next();
    cn_wait_previous();
    for (uint32_t tile = 0; tile < TILES; tile++) {
        const uint32_t slot = blockIdx.y * CN_COMPRESS_SPAN + tile * TILE;
        const uint32_t v = slot + warp * 16 + threadIdx.x % CN_WARP / 4;
        float sum[2] = {0.0f, 0.0f}, best[2] = {0.0f, 0.0f}, factor[2];
        if (slot >= p.c.n) break;
        load_keys<FP8>(keys, p.c, u, slot);
        key_factors<FP8>(factor, p, u, v);
        for (uint32_t first = 0; first < p.n_padded; first += QUERY_TILE) {
            if (tile == 0 || p.n_padded > QUERY_TILE) {
                load_queries(queries, p, u, first);
                for (uint32_t r = threadIdx.x; r < QUERY_TILE; r += THREADS)
                    totals[r] = n_visible(p, first + r) == 0 ? 0.0f
                                                             : total_of(p, u, sums, first + r);
            }
            tiles_arrived();
            for (uint32_t r = 0; r < QUERY_TILE && first + r < p.n_padded; r += STEP) {
                float x[STEP / 8][4];
                multiply_tile_rows(x, keys, queries, QUERY_TILE, r, d);
                add_weights(sum, best, p, x, factor, totals + r, first + r, v);
            }
            __syncthreads();
        }
        finish_slot(p, u, v, sum[0]);
        finish_slot(p, u, v + 8, sum[1]);
    }
}

/* ---- redundancy ---- */

/* Returns NaN for slots whose scale is NaN, else 0. Codes as bf16 are finite. */
template <bool FP8>
__device__ static inline float key_fault(const cn_compress_chunk &c, const cn_compress_unit &u,
                                         uint32_t v)
{
    if (!FP8 || v >= c.n) return 0;
    const float scale =
        cn_fp8_half(__ldg((const uint16_t *)cn_compress_row(c, u, v, CN_KV_K_SCALE)));
    return isnan(scale) ? scale : 0;
}

/* inverse[r] = 1 / |key r| of a tile that begins at slot `first`, 0 for a zero key. Two threads per
 * row. */
template <bool FP8>
__device__ static inline void inverse_norms(float *inverse, const char *tile,
                                            const cn_compress_chunk &c, const cn_compress_unit &u,
                                            uint32_t first)
{
    const uint32_t row = threadIdx.x / 2, d = c.pools.layout.head_dim;
    const float fault = key_fault<FP8>(c, u, first + row);
    float sum = 0.0f;
    for (uint32_t chunk = threadIdx.x % 2; chunk < d / CN_VEC8; chunk += 2) {
        float x[CN_VEC8];
        cn_unpack8(x, *(const uint4 *)(tile + cn_chunk_at(TILE, row, chunk)));
#pragma unroll
        for (int i = 0; i < CN_VEC8; i++) sum += x[i] * x[i];
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (threadIdx.x % 2 == 0) inverse[row] = (sum > 0.0f ? 1.0f / sqrtf(sum) : 0.0f) + fault;
}

/* The running result of a row of cosines in this lane. Columns are visited in ascending order. */
typedef struct cosine_row {
    float sum, twin_cosine;
    uint32_t twin;
} cosine_row;

__device__ static inline void add_cosine(cosine_row *r, float cosine, uint32_t column, float p)
{
    r->sum += cosine;
    if (!(cosine > p)) return;
    r->twin = column;
    r->twin_cosine = cosine;
}

/* Combines the four lanes of a row: the sum, and the twin with the highest number. */
__device__ static inline void gather_row(cosine_row *r)
{
#pragma unroll
    for (int offset = 1; offset <= 2; offset *= 2) {
        const uint32_t twin = __shfl_xor_sync(0xffffffffu, r->twin, offset);
        const float cosine = __shfl_xor_sync(0xffffffffu, r->twin_cosine, offset);
        r->sum += __shfl_xor_sync(0xffffffffu, r->sum, offset);
        const bool later = twin != NO_TWIN && (r->twin == NO_TWIN || twin > r->twin);
        r->twin_cosine = later ? cosine : r->twin_cosine;
        r->twin = later ? twin : r->twin;
    }
}

/* Returns the first and the end of the slots whose cosines with slot v count. */
__device__ static inline uint2 partners(const cn_compress_chunk &c, uint32_t v)
{
    const uint32_t b = c.pools.layout.block_tokens;
    if (c.redundancy_kind == CN_REDUNDANCY_FLASH) return make_uint2(0, c.n);
    return make_uint2(v / b * b, v / b * b + b);
}

/* Cosines do not depend on the scales of keys, except that a scale of NaN makes them NaN. */
template <bool FP8>
__global__ static void __launch_bounds__(THREADS)
    cosine_kernel(const __grid_constant__ cn_compress_chunk c)
{
    extern __shared__ __align__(1024) char tiles[];
    __shared__ float row_inverse[TILE], column_inverse[TILE];
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const uint32_t d = c.pools.layout.head_dim, first = blockIdx.y * TILE;
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t rows = cn_shared_address(tiles), columns = rows + tile_bytes(TILE, d);
    const uint32_t in_tile = warp * 16 + lane / 4, last = min(first + TILE, c.n) - 1;
    const uint2 range[2] = {partners(c, first + in_tile), partners(c, first + in_tile + 8)};
    const uint32_t from = partners(c, first).x / TILE * TILE, to = partners(c, last).y;
    cosine_row row[2] = {{0.0f, 0.0f, NO_TWIN}, {0.0f, 0.0f, NO_TWIN}};
    cn_overlap_next();
    cn_wait_previous();
    const float p = u.job->redundancy_p;
    load_keys<FP8>(rows, c, u, first);
    for (uint32_t column = from; column < to; column += TILE) {
        load_keys<FP8>(columns, c, u, column);
        tiles_arrived();
        if (column == from) inverse_norms<FP8>(row_inverse, tiles, c, u, first);
        inverse_norms<FP8>(column_inverse, tiles + tile_bytes(TILE, d), c, u, column);
        __syncthreads();
        for (uint32_t at = 0; at < TILE; at += STEP) {
            float x[STEP / 8][4];
            multiply_tile_rows(x, rows, columns, TILE, at, d);
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                const uint32_t half = i % 4 / 2, r = in_tile + 8 * half;
                const uint32_t j = at + i / 4 * 8 + lane % 4 * 2 + i % 2, other = column + j;
                if (other == first + r || other < range[half].x || other >= range[half].y) continue;
                add_cosine(&row[half], x[i / 4][i % 4] * (row_inverse[r] * column_inverse[j]),
                           other, p);
            }
        }
        __syncthreads();
    }
    uint32_t *twin = c.work + (size_t)u.index * c.work_words;
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t v = first + in_tile + 8 * half;
        gather_row(&row[half]);
        if (lane % 4 != 0 || v >= c.n) continue;
        c.redundancy[(size_t)u.index * c.n + v] = row[half].sum;
        twin[v] = row[half].twin;
        twin[c.n + v] = __float_as_uint(row[half].twin_cosine);
    }
}

/* The cosine of a column's twin must not count, so it is subtracted from the sum of the twin's
 * row. */
__global__ static void __launch_bounds__(THREADS)
    twin_kernel(const __grid_constant__ cn_compress_chunk c)
{
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const uint32_t v = blockIdx.y * THREADS + threadIdx.x;
    const uint32_t *twin = c.work + (size_t)u.index * c.work_words;
    cn_overlap_next();
    cn_wait_previous();
    if (v >= c.n) return;
    const uint2 range = partners(c, v);
    float sum = c.redundancy[(size_t)u.index * c.n + v];
#pragma unroll 8
    for (uint32_t j = range.x; j < range.y; j++)
        if (twin[j] == v) sum -= __uint_as_float(twin[c.n + j]);
    c.redundancy[(size_t)u.index * c.n + v] = sum;
}

/* ---- launching ---- */

template <bool FP8>
static cn_status launch_attention(cn_stream *s, const cn_compress_chunk *c)
{
    const uint32_t d = c->pools.layout.head_dim;
    score_params p = {};
    p.c = *c;
    for (p.padded = 1; p.padded < c->group;) p.padded *= 2;
    p.n_padded = c->window * p.padded;
    p.scale = c->pools.scale > 0 ? CN_LOG2E * c->pools.scale : CN_LOG2E / sqrtf((float)d);
    const dim3 grid(cn_compress_units(c), c->n_spans);
    const size_t bytes = tile_bytes(TILE, d) + tile_bytes(QUERY_TILE, d);
    CN_TRY(cn_cuda_launch(s, "compress: sums", partial_kernel<FP8>, {grid, THREADS, bytes}, p));
    CN_TRY(cn_cuda_launch(s, "compress: totals", total_kernel, {dim3(grid.x), THREADS}, p));
    return cn_cuda_launch(s, "compress: weights", weigh_kernel<FP8>, {grid, THREADS, bytes}, p);
}

template <bool FP8>
static cn_status launch_redundancy(cn_stream *s, const cn_compress_chunk *c)
{
    const uint32_t units = cn_compress_units(c);
    const dim3 tiles(units, (unsigned)cn_ceil_div(c->n, TILE));
    const dim3 slots(units, (unsigned)cn_ceil_div(c->n, THREADS));
    const size_t bytes = 2 * (size_t)tile_bytes(TILE, c->pools.layout.head_dim);
    CN_TRY(cn_cuda_launch(s, "compress: cosines", cosine_kernel<FP8>, {tiles, THREADS, bytes}, *c));
    return cn_cuda_launch(s, "compress: twins", twin_kernel, {slots, THREADS}, *c);
}

/* Supports any shape; makes three passes over K. */
template <bool FP8> static cn_status score_portable(cn_stream *s, const cn_compress_chunk *c)
{
    if (c->group > MAX_GROUP)
        return cn_fail(CN_ERR_SHAPE, "compression: %u query heads per kv head: expected at most %d",
                       c->group, MAX_GROUP);
    if (c->queries) CN_TRY(cn_compress_queries(s, c));
    CN_TRY(launch_attention<FP8>(s, c));
    return c->redundancy_kind == CN_REDUNDANCY_NONE ? CN_OK : launch_redundancy<FP8>(s, c);
}

extern "C" cn_status cn_compress_score(cn_stream *s, const cn_compress_chunk *c)
{
    if (cn_compress_score_sm90_fits(s, c)) return cn_compress_score_sm90(s, c);
    return cn_kv_form_of(&c->pools.layout) == CN_KV_FP8 ? score_portable<true>(s, c)
                                                        : score_portable<false>(s, c);
}
