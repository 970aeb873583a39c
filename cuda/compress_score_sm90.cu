/* compress_score_sm90.cu - an event's scores on compute capability 9.0: attention, global score and
 * lightning redundancy of all units of a chunk in one launch that reads K once.
 *
 * A thread block stays on its multiprocessor and takes the spans of units in turn: number
 * blockIdx.x, then every gridDim.x-th. A warpgroup fetches: keys through a ring of stages by a
 * tensor map over the pool, wherever their blocks lie, and the window's queries. Three teams, a
 * warpgroup each, have a span each, so that one multiplies while others compute or wait:
 *   1. compare: keys * keys^T, the cosines of a block, summed and searched for twins in registers;
 *   2. measure: keys * queries^T; of each query the largest logit and the sum of exponentials over
 *      the span, left in device memory for the unit's other spans;
 *   3. weigh: once all spans of the unit have measured, the logits, in registers still, as weights
 *      of the whole sequence: the largest of the group, mean over the window, global score.
 *
 * Step 3 waits for other thread blocks. All of them find a place at once, one to a multiprocessor,
 * and take spans in the order of units, of which the oldest waits for none: while a unit has no
 * more spans than the grid has blocks, its spans are in different blocks, and all move on. Longer
 * sequences, and windows of several rounds, whose logits no registers hold, run as two launches,
 * the second for step 3, and read K twice.
 *
 * Products have keys in the 64-row side of wgmma. Queries, the other side, come in rounds of
 * COLUMNS rows, so ordered that a thread finds all heads of a query in its own registers: value i
 * of the lanes with lane % 4 = q is head i % G of the round's query i / G * 4 + q, where G is the
 * group rounded up to a power of two; heads beyond the group repeat its last, which no maximum
 * minds.
 *
 * Grid: the multiprocessors; block 512 (256 for d above 128). Bytes of a unit: 2*n*d read (K), 4*n
 * read (F), 8*n written; operations 2*n*d * (COLUMNS * rounds + max(block_tokens, 64)). Nine blocks
 * of 256 tokens, 36 layers, 8 kv heads, d 128, 16 queries of 4 heads: 175 MB and 54 GFLOP; at 3
 * TB/s and 800 TFLOP/s 58 and 68 us. Twin: cpu_score.c. Paper: Zipage, C.2, C.3, C.7. */
#include "cuda/compress_score_sm90.cuh"

/* A thread's view of the block. */
template <int D> struct score_block {
    unsigned char *stages, *queries;
    uint64_t *keys_full, *keys_empty; /* barriers, [STAGES] */
    uint64_t *queries_full;           /* [TEAMS]: of a team's own */
    uint64_t *queries_empty;
    uint32_t n_loads; /* of queries so far: of all, or of a team's own */

    __device__ unsigned char *keys(uint32_t i) const /* of the block's i-th span */
    {
        return stages + i % score_plan<D>::STAGES * (score_plan<D>::BOXES * score_plan<D>::KEY_BOX);
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- the work ---- */

__device__ static inline uint32_t n_spans_of(const score_params &p)
{
    return (p.c.n_jobs * p.c.n_layers * p.c.pools.layout.n_kv_heads) * p.c.n_spans;
}

__device__ static inline score_span span_of(const score_params &p, uint32_t number)
{
    const uint32_t n_heads = p.c.pools.layout.n_kv_heads;
    score_span x;
    x.unit = number / p.c.n_spans;
    x.span = number % p.c.n_spans;
    x.first = x.span * SPAN;
    x.kv_head = x.unit % n_heads;
    x.layer = p.c.first_layer + x.unit / n_heads % p.c.n_layers;
    x.job = p.c.jobs + x.unit / n_heads / p.c.n_layers;
    return x;
}

/* The query of value i of lanes with lane % 4 = quad, and its head in the group. */
__device__ static inline uint32_t query_of(const score_params &p, uint32_t round, uint32_t i,
                                           uint32_t quad)
{
    return (round * (COLUMNS >> p.group_shift)) + (i >> p.group_shift) * 4 + quad;
}

__device__ static inline uint32_t head_of(const score_params &p, uint32_t i)
{
    return min(i & ((1u << p.group_shift) - 1), p.c.group - 1);
}

/* ---- fetching: a warpgroup ---- */

/* Slots that the sequence has not keep what shared memory held. */
template <int D>
__device__ static inline void fetch_keys(const score_params &p, const score_block<D> &b,
                                         const CUtensorMap *pool, uint32_t i, uint32_t number)
{
    const cn_kv_layout &l = p.c.pools.layout;
    const score_span x = span_of(p, number);
    const uint32_t n = min((uint32_t)SPAN, p.c.n - x.first);
    const uint32_t stage = i % score_plan<D>::STAGES, lane = threadIdx.x % CN_WARP;
    const uint32_t at = lane * l.tile_tokens, slot = x.first + at; /* a lane has a tile */
    uint32_t row = 0;
    if (at < n)
        row = (uint32_t)(cn_kv_row(&l, x.layer, x.job->source[slot / l.block_tokens], x.kv_head,
                                   slot % l.block_tokens, CN_KV_K) /
                         l.head_dim);
    cn_barrier_wait(&b.keys_empty[stage], (i / score_plan<D>::STAGES & 1) ^ 1);
    if (lane == 0) cn_barrier_expect(&b.keys_full[stage], score_plan<D>::BOXES * n * CN_ROW_BYTES);
    __syncwarp();
    if (at >= n) return;
#pragma unroll
    for (uint32_t box = 0; box < score_plan<D>::BOXES; box++)
        cn_box_copy(cn_shared_address(b.keys(i) + box * score_plan<D>::KEY_BOX + at * CN_ROW_BYTES),
                    pool, box * CN_BOX_COLS, row, &b.keys_full[stage]);
}

/* Queries beyond the window are zeros. */
template <int D>
__device__ static inline void fetch_queries(const score_params &p, score_block<D> &b, uint32_t i,
                                            uint32_t number, uint32_t round)
{
    constexpr uint32_t CHUNKS = D / CN_VEC8;
    const cn_pools &pools = p.c.pools;
    const uint32_t d = pools.layout.head_dim, window = p.c.window;
    const uint32_t thread = threadIdx.x % CN_WARPGROUP - CN_WARP, chunk = thread % CHUNKS;
    const score_span x = span_of(p, number);
    const uint32_t ring_start = x.job->ring_start;
    const cn_bf16 *from = (const cn_bf16 *)pools.q_window +
                          cn_query_row(pools.n_query_slots, pools.window, pools.n_heads, d, x.layer,
                                       x.job->query_slot, 0, x.kv_head * p.c.group);
    cn_barrier_wait(b.queries_empty, (b.n_loads++ & 1) ^ 1);
#pragma unroll 4
    for (uint32_t column = thread / CHUNKS; column < COLUMNS; column += QUERY_THREADS / CHUNKS) {
        const uint32_t value = column / 8 * 2 + column % 2;
        const uint32_t query = query_of(p, round, value, column % 8 / 2);
        const bool valid = query < window && chunk * CN_VEC8 < d;
        const uint32_t ring_row = (ring_start + query) % window;
        const uint32_t row = ring_row * pools.n_heads + head_of(p, value);
        cn_copy16(cn_shared_address(b.queries + cn_chunk_at(COLUMNS, column, chunk)),
                  valid ? from + row * d + chunk * CN_VEC8 : from, valid);
    }
    cn_copy_commit();
    cn_copy_wait<0>();
    cn_async_fence();
    cn_barrier_arrive(&b.queries_full[i % score_plan<D>::TEAMS]);
}

/* One warp fetches keys, the others queries. */
template <int D>
__device__ static inline void fetch(const score_params &p, score_block<D> &b,
                                    const CUtensorMap *pool, uint32_t n_spans)
{
    const bool has_keys = threadIdx.x % CN_WARPGROUP < CN_WARP;
    for (uint32_t i = 0, number = blockIdx.x; number < n_spans; i++, number += gridDim.x) {
        if (has_keys)
            fetch_keys<D>(p, b, pool, i, number);
        else
            for (uint32_t round = 0; round < p.n_rounds; round++)
                fetch_queries<D>(p, b, i, number, round);
    }
}

/* ---- steps 2 and 3: attention, a team ---- */

/* The register of a thread's value i in row half h. */
#define VALUE(i, h) ((i) / 2 * 4 + (h) * 2 + (i) % 2)

/* Products of the warpgroup's strips and the round's queries; what a query may not see is -inf. */
template <int D>
__device__ static __forceinline__ void logits(float x[STRIPS][SUMS], const score_params &p,
                                              const score_span &span, score_block<D> &b,
                                              const unsigned char *keys, uint32_t round)
{
    const uint32_t n_early = p.c.n - p.c.window; /* slots that all queries see */
    cn_barrier_wait(&b.queries_full[threadIdx.x / TEAM], b.n_loads++ & 1);
#pragma unroll
    for (uint32_t s = 0; s < STRIPS; s++)
        begin_product<COLUMNS, D>(x[s], keys + s * STRIP * CN_ROW_BYTES, score_plan<D>::KEY_BOX,
                                  b.queries, score_plan<D>::QUERY_BOX);
    cn_wgmma_wait<0>();
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(b.queries_empty);
    if (span.first + SPAN <= n_early) return;
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        const uint32_t n_visible = n_early + query_of(p, round, i, threadIdx.x % 4) + 1;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++)
                if (span.first + row_of(s, h) >= min(n_visible, p.c.n))
                    x[s][VALUE(i, h)] = -CUDART_INF_F;
    }
}

/* The largest and the sum of exponentials in each column over the warp's rows.
 */
__device__ static __forceinline__ void measure_warp(float2 *out, const float x[STRIPS][SUMS],
                                                    float scale)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        float top = -CUDART_INF_F;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++)
            top = fmaxf(top, fmaxf(x[s][VALUE(i, 0)], x[s][VALUE(i, 1)]));
#pragma unroll
        for (uint32_t lanes = 4; lanes < CN_WARP; lanes *= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));
        /* A query that sees none of these slots: every exponential is 0. */
        const float base = top == -CUDART_INF_F ? 0 : top * scale;
        float sum = 0;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++)
            sum += cn_exp2(x[s][VALUE(i, 0)] * scale - base) +
                   cn_exp2(x[s][VALUE(i, 1)] * scale - base);
#pragma unroll
        for (uint32_t lanes = 4; lanes < CN_WARP; lanes *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        if (lane < 4) out[i * 4 + lane] = make_float2(top * scale, sum);
    }
}

/* The measure of two sets of slots together. */
__device__ static inline float2 merge(float2 a, float2 b)
{
    const float top = fmaxf(a.x, b.x), base = top == -CUDART_INF_F ? 0 : top;
    return make_float2(top, a.y * cn_exp2(a.x - base) + b.y * cn_exp2(b.x - base));
}

/* Over a column's sharers, the same in all of them. */
__device__ static inline float2 merge_shared(float2 m)
{
#pragma unroll
    for (uint32_t lanes = 1; lanes < SHARERS; lanes *= 2) {
        const float2 other = make_float2(__shfl_xor_sync(0xffffffffu, m.x, lanes),
                                         __shfl_xor_sync(0xffffffffu, m.y, lanes));
        m = merge(m, other);
    }
    return m;
}

/* Where a span's measures of the unit stand. */
__device__ static inline float2 *measures_at(const score_params &p, const score_span &x,
                                             uint32_t span)
{
    return p.measures + ((size_t)x.unit * p.c.n_spans + span) * p.c.window * p.c.group;
}

/* Merging, SHARERS threads have a column each: value column / 4 of the lanes with lane % 4 = column
 * % 4. This is its place among measures; false: it has none. */
__device__ static inline uint32_t own_column(void) { return threadIdx.x % TEAM / SHARERS; }

__device__ static inline bool column_measure(uint32_t *at, const score_params &p, uint32_t round)
{
    const uint32_t i = own_column() / 4, query = query_of(p, round, i, own_column() % 4);
    *at = query * p.c.group + head_of(p, i);
    return query < p.c.window;
}

__device__ static __forceinline__ void measure(const score_params &p, const score_span &span,
                                               const float x[STRIPS][SUMS], team_shared *team,
                                               uint32_t round)
{
    const uint32_t part = threadIdx.x % SHARERS;
    measure_warp(team->measures[threadIdx.x % TEAM / CN_WARP], x, p.scale);
    team_sync();
    float2 all = team->measures[part][own_column()];
#pragma unroll
    for (uint32_t w = SHARERS; w < TEAM_WARPS; w += SHARERS)
        all = merge(all, team->measures[part + w][own_column()]);
    all = merge_shared(all);
    uint32_t at;
    if (column_measure(&at, p, round) && part == 0) measures_at(p, span, span.span)[at] = all;
    team_sync();
}

/* Tells the unit's spans that this one has measured, and waits for them. */
__device__ static inline void meet(const score_params &p, const score_span &span)
{
    if (threadIdx.x % TEAM == 0) {
        uint32_t *n = &p.n_measured[span.unit];
        __threadfence();
        atomicAdd(n, 1u);
        while (*(volatile uint32_t *)n < p.c.n_spans) __nanosleep(20);
        __threadfence();
    }
    team_sync();
}

/* base = what makes a logit the base-2 logarithm of its softmax over the sequence. */
__device__ static inline void find_bases(const score_params &p, const score_span &span,
                                         team_shared *team, uint32_t round)
{
    const uint32_t part = threadIdx.x % SHARERS;
    float2 all = make_float2(-CUDART_INF_F, 0);
    uint32_t at;
    if (column_measure(&at, p, round)) {
#pragma unroll 4
        for (uint32_t i = part; i < p.c.n_spans; i += SHARERS)
            all = merge(all, __ldcg(&measures_at(p, span, i)[at]));
    }
    all = merge_shared(all);
    team_sync(); /* the round before has been weighed */
    if (part == 0) team->base[own_column()] = all.x + log2f(all.y);
    team_sync();
}

/* sum += of each query the largest weight of the group. */
__device__ static __forceinline__ void weigh(float sum[STRIPS][2], float x[STRIPS][SUMS],
                                             const score_params &p, const float base[COLUMNS],
                                             uint32_t round)
{
    const float least = -100; /* keeps scores and their decay out of the denormals */
    const uint32_t quad = threadIdx.x % 4, group = 1u << p.group_shift;
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        const float b = base[i * 4 + quad];
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) x[s][VALUE(i, h)] = x[s][VALUE(i, h)] * p.scale - b;
    }
#pragma unroll
    for (uint32_t step = 1; step < MAX_GROUP; step *= 2) {
        if (step >= group) break;
#pragma unroll
        for (uint32_t i = 0; i < VALUES; i += 2 * step)
#pragma unroll
            for (uint32_t s = 0; s < STRIPS; s++)
#pragma unroll
                for (uint32_t h = 0; h < 2; h++)
                    x[s][VALUE(i, h)] = fmaxf(x[s][VALUE(i, h)], x[s][VALUE(i + step, h)]);
    }
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        if (i % group != 0 || query_of(p, round, i, quad) >= p.c.window) continue;
#pragma unroll
        for (uint32_t s = 0; s < STRIPS; s++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) sum[s][h] += cn_exp2(fmaxf(x[s][VALUE(i, h)], least));
    }
}

/* alpha * F of a slot, or -inf. */
__device__ static inline float history_of(const score_params &p, const score_span &span,
                                          uint32_t slot)
{
    const cn_kv_layout &l = p.c.pools.layout;
    if (slot >= span.job->n_history) return -CUDART_INF_F;
    const uint32_t block = span.job->source[slot / l.block_tokens];
    return span.job->alpha *
           p.c.pools.score[cn_kv_side(&l, span.layer, block, span.kv_head, slot % l.block_tokens)];
}

__device__ static inline void store_scores(const score_params &p, const score_span &span,
                                           const float sum[STRIPS][2], const float history[2])
{
    float own[2];
#pragma unroll
    for (uint32_t s = 0; s < STRIPS; s++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            float all = sum[s][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            if (threadIdx.x % 4 == s) own[h] = all;
        }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t slot = span.first + own_row(h);
        if (slot < p.c.n)
            p.c.score[(size_t)span.unit * p.c.n + slot] =
                fmaxf(own[h] / (float)p.c.window, history[h]);
    }
}

/* Steps 2 and 3 in one: a window of one round, whose logits stay in registers.
 */
template <int D>
__device__ static inline void attend(const score_params &p, const score_span &span,
                                     score_block<D> &b, const unsigned char *keys,
                                     uint64_t *release, team_shared *team)
{
    const float history[2] = {history_of(p, span, span.first + own_row(0)),
                              history_of(p, span, span.first + own_row(1))};
    float x[STRIPS][SUMS], sum[STRIPS][2] = {};
    logits<D>(x, p, span, b, keys, 0);
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(release);
    measure(p, span, x, team, 0);
    meet(p, span);
    find_bases(p, span, team, 0);
    weigh(sum, x, p, team->base, 0);
    store_scores(p, span, sum, history);
}

/* One of steps 2 and 3. */
template <int D>
__device__ static inline void attend_in_rounds(const score_params &p, const score_span &span,
                                               score_block<D> &b, const unsigned char *keys,
                                               uint64_t *release, team_shared *team)
{
    float x[STRIPS][SUMS], sum[STRIPS][2] = {};
    for (uint32_t round = 0; round < p.n_rounds; round++) {
        if (p.steps == WEIGH) find_bases(p, span, team, round);
        logits<D>(x, p, span, b, keys, round);
        if (p.steps == WEIGH)
            weigh(sum, x, p, team->base, round);
        else
            measure(p, span, x, team, round);
    }
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(release);
    if (p.steps != WEIGH) return;
    const float history[2] = {history_of(p, span, span.first + own_row(0)),
                              history_of(p, span, span.first + own_row(1))};
    store_scores(p, span, sum, history);
}

/* Every TEAMS-th of the block's spans. */
template <int D, int P>
__device__ static inline void compute(const score_params &p, score_block<D> &b, team_shared *team,
                                      uint32_t n_spans)
{
    constexpr uint32_t TEAMS = score_plan<D>::TEAMS, STAGES = score_plan<D>::STAGES;
    for (uint32_t i = threadIdx.x / TEAM;; i += TEAMS) {
        const uint32_t number = blockIdx.x + i * gridDim.x, stage = i % STAGES;
        if (number >= n_spans) return;
        const score_span span = span_of(p, number);
        cn_barrier_wait(&b.keys_full[stage], i / STAGES & 1);
        if (p.steps & MEASURE && p.c.redundancy_kind == CN_REDUNDANCY_LIGHTNING)
            compare<D, P>(p, span, b.keys(i), team);
        if (p.steps == (MEASURE | WEIGH))
            attend<D>(p, span, b, b.keys(i), &b.keys_empty[stage], team);
        else
            attend_in_rounds<D>(p, span, b, b.keys(i), &b.keys_empty[stage], team);
    }
}

#endif

/* P: columns of a panel of cosines, 128 for blocks at least as wide. */
template <int D, int P>
__global__ static void __launch_bounds__(score_plan<D>::THREADS, 1)
    compress_score_kernel(const __grid_constant__ score_params p,
                          const __grid_constant__ CUtensorMap pool)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using plan = score_plan<D>;
    extern __shared__ unsigned char dynamic[];
    __shared__ uint64_t keys_full[plan::STAGES], keys_empty[plan::STAGES];
    __shared__ uint64_t queries_full[plan::TEAMS], queries_empty;
    __shared__ team_shared teams[plan::TEAMS];
    cn_wait_previous();
    cn_overlap_next();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < plan::STAGES; i++) {
            cn_barrier_init(&keys_full[i], 1);
            cn_barrier_init(&keys_empty[i], TEAM_WARPS);
        }
        for (uint32_t i = 0; i < plan::TEAMS; i++) cn_barrier_init(&queries_full[i], QUERY_THREADS);
        cn_barrier_init(&queries_empty, TEAM_WARPS);
        cn_barrier_init_done();
    }
    __syncthreads();
    score_block<D> b;
    b.stages = dynamic + (0u - cn_shared_address(dynamic)) % 1024;
    b.queries = b.stages + plan::STAGES * plan::BOXES * plan::KEY_BOX;
    b.keys_full = keys_full;
    b.keys_empty = keys_empty;
    b.queries_full = queries_full;
    b.queries_empty = &queries_empty;
    b.n_loads = 0;
    const uint32_t n_spans = n_spans_of(p);
    if (threadIdx.x >= plan::TEAMS * TEAM) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(plan::FETCH_REGISTERS));
        fetch<D>(p, b, &pool, n_spans);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(plan::COMPUTE_REGISTERS));
        compute<D, P>(p, b, &teams[threadIdx.x / TEAM], n_spans);
    }
#endif
}

/* ---- launching ---- */

/* A chunk's work holds a counter for each unit, then measures. */
static size_t counter_words(const cn_compress_chunk *c)
{
    return (size_t)cn_round_up(cn_compress_units(c), 4);
}

static bool scratch_fits(const cn_compress_chunk *c)
{
    const size_t units = cn_compress_units(c);
    return counter_words(c) + 2 * units * c->n_spans * c->window * c->group <=
           units * c->work_words;
}

static cn_status map_pool(CUtensorMap *map, const cn_pools *pools)
{
    cn_map_shape s = {};
    s.cols = s.row_stride = pools->layout.head_dim;
    s.rows = cn_kv_pool_elems(&pools->layout) / pools->layout.head_dim;
    s.box_rows = pools->layout.tile_tokens;
    return cn_map_encode(map, pools->kv, &s);
}

template <int D, int P>
static cn_status launch_steps(cn_stream *s, score_params p, uint32_t steps, const CUtensorMap &pool)
{
    const uint32_t n_spans = cn_compress_units(&p.c) * p.c.n_spans;
    const dim3 grid(cn_min_u32(n_spans, s->cuda->device.n_sms));
    p.steps = steps;
    if (steps == (MEASURE | WEIGH))
        return cn_compress_launch_waiting(s, "compress_score", compress_score_kernel<D, P>, grid,
                                          score_plan<D>::THREADS, score_plan<D>::BYTES, p, pool);
    return cn_attn_launch(s, "compress_score", compress_score_kernel<D, P>, grid,
                          score_plan<D>::THREADS, score_plan<D>::BYTES, p, pool);
}

template <int D, int P>
static cn_status launch(cn_stream *s, const score_params &p, const CUtensorMap &pool)
{
    if (p.n_rounds == 1 && p.c.n_spans <= s->cuda->device.n_sms)
        return launch_steps<D, P>(s, p, MEASURE | WEIGH, pool);
    CN_TRY((launch_steps<D, P>(s, p, MEASURE, pool)));
    return launch_steps<D, P>(s, p, WEIGH, pool);
}

template <int D> static cn_status launch_panels(cn_stream *s, const score_params &p)
{
    CUtensorMap pool;
    CN_TRY(map_pool(&pool, &p.c.pools));
    return p.c.pools.layout.block_tokens >= 128 ? launch<D, 128>(s, p, pool)
                                                : launch<D, STRIP>(s, p, pool);
}

extern "C" bool cn_compress_score_sm90_fits(const cn_stream *s, const cn_compress_chunk *c)
{
    const cn_kv_layout *l = &c->pools.layout;
    return cn_attn_has_bulk(s) && l->head_dim % CN_VEC8 == 0 && l->head_dim <= MAX_HEAD_DIM &&
           c->group <= MAX_GROUP && c->redundancy_kind != CN_REDUNDANCY_FLASH && scratch_fits(c) &&
           cn_kv_pool_elems(l) / l->head_dim <= INT32_MAX;
}

extern "C" cn_status cn_compress_score_sm90(cn_stream *s, const cn_compress_chunk *c)
{
    const uint32_t d = c->pools.layout.head_dim;
    score_params p = {};
    p.c = *c;
    while (1u << p.group_shift < c->group) p.group_shift++;
    p.n_rounds = (uint32_t)cn_ceil_div(c->window, COLUMNS >> p.group_shift);
    p.scale = CN_LOG2E / sqrtf((float)d);
    p.n_measured = c->work;
    p.measures = (float2 *)(c->work + counter_words(c));
    CN_CUDA(cudaMemsetAsync(c->work, 0, counter_words(c) * sizeof *c->work, s->handle));
    if (d <= 64) return launch_panels<64>(s, p);
    return d <= 128 ? launch_panels<128>(s, p) : launch_panels<256>(s, p);
}
