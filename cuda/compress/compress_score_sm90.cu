/* compress_score_sm90.cu - an event's scores on compute capability 9.0: attention, global score and
 * lightning redundancy of all units of a chunk in one launch that reads K once.
 *
 * A thread block stays on its multiprocessor and processes spans of units one after the other:
 * number blockIdx.x, then every gridDim.x-th. It has two teams with a span each, so that one
 * multiplies while the other computes or waits (one team for d above 128). Warps of another
 * warpgroup fetch for them by tensor maps: keys from the pool, whose blocks can be anywhere, and
 * the window's queries. Each fetch starts as soon as the team has multiplied the previous data.
 *   1. compare: keys * keys^T, the cosines of a block. They are summed and searched for twins in
 *      registers, by one team at a time.
 *   2. measure: keys * queries^T. For each query, the largest logit and the sum of exponentials
 *      over the span are written to device memory for the other spans of the unit.
 *   3. weigh: when the measures of all spans of the unit are written, the logits, still in
 *      registers, become weights of the whole sequence: the largest of the group, mean over the
 *      window or the largest, global score.
 *
 * Step 3 waits for other thread blocks. This cannot deadlock. All blocks run at once, one on each
 * multiprocessor; two such launches must not run at the same time, and an engine's events run one
 * after the other. Blocks process spans in the order of units, and the oldest unit waits for no
 * other. While a unit has no more spans than the grid has blocks, its spans are in different
 * blocks, so all advance. A team never waits for its turn behind a later span. Longer sequences,
 * and windows of several rounds, whose logits do not fit in registers, run as two launches, the
 * second for step 3, and read K twice.
 *
 * Keys are the 64-row side of wgmma. Queries are the other side, in rounds of COLUMNS, in the order
 * of the window's ring. An atom is eight rows of the ring of one head. Atoms of all heads of the
 * group follow one another, so a thread has all heads of a query in its own registers. The group is
 * rounded up to a power of two. Padding heads repeat the last head, which does not change the
 * maximum.
 *
 * Keys in eight bits are fetched as codes; the team makes a tile of bf16 from them, without loss,
 * and the scales multiply the logits. Codes have memory of their own (up to d 128), so those of the
 * next span arrive while both teams compute.
 *
 * Grid: the multiprocessors; block 640 (384 for d above 128). Bytes of a unit: 2*n*d read (K), 4*n
 * read (F), 8*n written. Operations: 2*n*d * (COLUMNS * rounds + max(block_tokens, 64)). Example:
 * nine blocks of 256 tokens, 36 layers, 8 kv heads, d 128, 16 queries of 4 heads. That is 178 MB
 * and 54 GFLOP, which take 59 and 68 us at 3 TB/s and 800 TFLOP/s. CPU version: cpu_score.c. Paper:
 * Zipage, C.2, C.3, C.7. */
#include "cuda/compress/compress_score_sm90.cuh"

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

/* The columns of a round are atoms: atom j has head j % G of the ring rows from atom_row(j) on. */
__device__ static inline uint32_t atom_row(const score_params &p, uint32_t round, uint32_t j)
{
    return (round * (ATOMS >> p.group_shift) + (j >> p.group_shift)) * ATOM;
}

__device__ static inline uint32_t atom_head(const score_params &p, uint32_t j)
{
    return min(j & ((1u << p.group_shift) - 1), p.c.group - 1);
}

/* Returns the ring row of value i in lanes with lane % 4 = quad. Its head is that of atom i / 2. */
__device__ static inline uint32_t ring_row_of(const score_params &p, uint32_t round, uint32_t i,
                                              uint32_t quad)
{
    return atom_row(p, round, i / 2) + quad * 2 + i % 2;
}

/* ---- fetching ---- */

/* Starts the copies of a lane's tile of codes, and of its scales. */
template <int D>
__device__ static inline void copy_codes(const score_params &p, const team_place<D> &t,
                                         const score_span &x, uint32_t at)
{
    const cn_kv_layout &l = p.c.pools.layout;
    const uint32_t slot = x.first + at, block = x.job->source[slot / l.block_tokens];
    const char *kv = (const char *)p.c.pools.kv;
    const size_t key = cn_kv_at(&l, x.layer, block, x.kv_head, slot % l.block_tokens, CN_KV_K);
    const size_t scale =
        cn_kv_at(&l, x.layer, block, x.kv_head, slot % l.block_tokens, CN_KV_K_SCALE);
    uint64_t *full = &t.shared->keys_full;
    cn_bulk_copy(cn_shared_address(t.codes) + at * l.head_dim, kv + key, l.tile_tokens * l.head_dim,
                 full);
    cn_bulk_copy(cn_shared_address(&t.coded->scales[at]), kv + scale,
                 l.tile_tokens * (uint32_t)sizeof(uint16_t), full);
}

/* Fetches the codes of a team's span. Codes past the end of the sequence are old ones. number: how
 * many spans were fetched before. */
template <int D>
__device__ static inline void fetch_key_codes(const score_params &p, const team_place<D> &t,
                                              const score_span &x, uint32_t turn, uint32_t number)
{
    const cn_kv_layout &l = p.c.pools.layout;
    const uint32_t n = min((uint32_t)SPAN, p.c.n - x.first), lane = threadIdx.x % CN_WARP;
    cn_barrier_wait(score_plan<D>::CODE_BYTES ? &t.coded->empty : &t.shared->keys_empty,
                    (number & 1) ^ 1);
    if (lane == 0) {
        t.shared->span[turn % 2] = x;
        cn_barrier_expect(&t.shared->keys_full, n * (l.head_dim + (uint32_t)sizeof(uint16_t)));
    }
    __syncwarp();
    if (lane * l.tile_tokens < n) copy_codes<D>(p, t, x, lane * l.tile_tokens);
}

/* Fetches the keys of a span. Slots past the end of the sequence keep the old content of shared
 * memory. */
template <int D>
__device__ static inline void fetch_keys(const score_params &p, const team_place<D> &t,
                                         const CUtensorMap *pool, const score_span &x,
                                         uint32_t turn)
{
    const cn_kv_layout &l = p.c.pools.layout;
    const uint32_t n = min((uint32_t)SPAN, p.c.n - x.first), lane = threadIdx.x % CN_WARP;
    const uint32_t at = lane * l.tile_tokens, slot = x.first + at; /* one tile per lane */
    uint32_t row = 0;
    if (at < n)
        row = x.layer * p.rows.layer + x.job->source[slot / l.block_tokens] * p.rows.block +
              x.kv_head * p.rows.head + slot % l.block_tokens / l.tile_tokens * p.rows.tile;
    uint64_t *full = &t.shared->keys_full;
    cn_barrier_wait(&t.shared->keys_empty, (turn & 1) ^ 1);
    if (lane == 0) {
        t.shared->span[turn % 2] = x;
        cn_barrier_expect(full, n * score_plan<D>::BOXES * CN_ROW_BYTES);
    }
    __syncwarp();
    if (at >= n) return;
#pragma unroll
    for (uint32_t box = 0; box < score_plan<D>::BOXES; box++)
        cn_box_copy(cn_shared_address(t.keys + box * score_plan<D>::KEY_BOX + at * CN_ROW_BYTES),
                    pool, box * CN_BOX_COLS, row, full);
}

/* Fetches the queries of a round. Each lane fetches the box of an atom. Rows past the window are
 * the rows that follow in the array of windows; their results are not used. */
template <int D>
__device__ static inline void fetch_queries(const score_params &p, const team_place<D> &t,
                                            const CUtensorMap *windows, const score_span &x,
                                            uint32_t round, uint32_t turn)
{
    using plan = score_plan<D>;
    const uint32_t lane = threadIdx.x % CN_WARP, atom = lane % ATOMS, box = lane / ATOMS;
    const uint32_t head = x.kv_head * p.c.group + atom_head(p, atom);
    const uint32_t slot = x.layer * p.c.pools.n_query_slots + x.job->query_slot;
    const uint32_t row = slot * p.c.pools.window + atom_row(p, round, atom);
    unsigned char *to = t.queries + box * plan::QUERY_BOX + atom * ATOM * CN_ROW_BYTES;
    uint64_t *full = &t.shared->queries_full;
    cn_barrier_wait(&t.shared->queries_empty, (turn & 1) ^ 1);
    if (lane == 0) cn_barrier_expect(full, plan::BOXES * plan::QUERY_BOX);
    __syncwarp();
    if (box < plan::BOXES)
        cn_box_copy3(cn_shared_address(to), windows, box * CN_BOX_COLS, head, row, full);
}

/* Returns the number of a team's span. */
template <int D> __device__ static inline uint32_t span_number(uint32_t team, uint32_t turn)
{
    return blockIdx.x + (turn * score_plan<D>::TEAMS + team) * gridDim.x;
}

/* Fetches the codes of all spans. Called by a warp. */
template <int D>
__device__ static inline void fetch_all_codes(const score_params &p, unsigned char *tiles,
                                              team_shared *teams, code_shared *coded)
{
    constexpr uint32_t TEAMS = score_plan<D>::TEAMS;
    const uint32_t n_spans = n_spans_of(p);
    for (uint32_t i = 0; blockIdx.x + i * gridDim.x < n_spans; i++) {
        const team_place<D> t(tiles, teams, coded, i % TEAMS, 0);
        fetch_key_codes(p, t, span_of(p, blockIdx.x + i * gridDim.x), i / TEAMS, i);
    }
}

/* Fetches the keys of a team's spans, or the queries. Called by a warp. */
template <int D>
__device__ static inline void fetch(const score_params &p, const team_place<D> &t, uint32_t team,
                                    bool keys, const CUtensorMap *map)
{
    const uint32_t n_spans = n_spans_of(p);
    for (uint32_t turn = 0; span_number<D>(team, turn) < n_spans; turn++) {
        const score_span span = span_of(p, span_number<D>(team, turn));
        if (keys) fetch_keys<D>(p, t, map, span, turn);
        for (uint32_t round = 0; !keys && round < p.n_rounds; round++)
            fetch_queries(p, t, map, span, round, turn * p.n_rounds + round);
    }
}

/* ---- steps 2 and 3: attention, by a team ---- */

/* Starts the products of the warpgroup's strips and the round's queries. */
template <int D>
__device__ static __forceinline__ void begin_logits(float x[OWN][SUMS], const team_place<D> &t,
                                                    uint32_t turn)
{
    cn_barrier_wait(&t.shared->queries_full, turn & 1);
#pragma unroll
    for (uint32_t s = 0; s < OWN; s++)
        begin_product<COLUMNS, D>(x[s], t.keys + (t.strip + s) * STRIP * CN_ROW_BYTES,
                                  score_plan<D>::KEY_BOX, t.queries, score_plan<D>::QUERY_BOX);
}

/* Multiplies logits by the scales of their keys. */
template <int D>
__device__ static __forceinline__ void scale_logits(float x[OWN][SUMS], const team_place<D> &t)
{
#pragma unroll
    for (uint32_t s = 0; s < OWN; s++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const float scale = cn_fp8_half(t.shared->key_scales[strip_row_of(s, h)]);
#pragma unroll
            for (uint32_t i = 0; i < VALUES; i++) x[s][VALUE(i, h)] *= scale;
        }
}

/* Waits for the products. Sets the logits of slots that a query must not see to -inf. */
template <int D, bool FP8>
__device__ static __forceinline__ void end_logits(float x[OWN][SUMS], const score_params &p,
                                                  const score_span &span, const team_place<D> &t,
                                                  uint32_t round)
{
    const uint32_t n_early = p.c.n - p.c.window; /* slots that all queries see */
    cn_wgmma_wait<0>();
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&t.shared->queries_empty);
    if (FP8) scale_logits(x, t);
    if (span.first + SPAN <= n_early) return;
    const uint32_t ring_start = span.job->ring_start;
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        const uint32_t row = ring_row_of(p, round, i, threadIdx.x % 4);
        const uint32_t query = row - ring_start + (row < ring_start ? p.c.window : 0);
        const uint32_t n_visible = n_early + query + 1;
#pragma unroll
        for (uint32_t s = 0; s < OWN; s++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++)
                if (span.first + strip_row_of(s, h) >= min(n_visible, p.c.n))
                    x[s][VALUE(i, h)] = -CUDART_INF_F;
    }
}

/* Returns the measure of the union of two sets of slots. */
__device__ static inline float2 merge(float2 a, float2 b)
{
    const float top = fmaxf(a.x, b.x);
    return make_float2(top, a.y * cn_exp2(a.x - top) + b.y * cn_exp2(b.x - top));
}

/* Returns the measure of a column over the thread's own rows: the largest base-2 logit (LEAST if
 * the query sees none of them), and the sum of exponentials relative to it. */
__device__ static __forceinline__ float2 measure_own(const float x[OWN][SUMS], uint32_t i,
                                                     float scale)
{
    float top = -CUDART_INF_F, sum = 0;
#pragma unroll
    for (uint32_t s = 0; s < OWN; s++)
        top = fmaxf(top, fmaxf(x[s][VALUE(i, 0)], x[s][VALUE(i, 1)]));
    top = fmaxf(top * scale, LEAST);
#pragma unroll
    for (uint32_t s = 0; s < OWN; s++)
        sum += cn_exp2(x[s][VALUE(i, 0)] * scale - top) + cn_exp2(x[s][VALUE(i, 1)] * scale - top);
    return make_float2(top, sum);
}

/* Merges two columns that two lanes share. Each lane gets the result of one column. */
__device__ static __forceinline__ float2 share(float2 low, float2 high, uint32_t lanes)
{
    const bool upper = threadIdx.x & lanes;
    const float2 own = upper ? high : low, other = upper ? low : high;
    return merge(own, make_float2(__shfl_xor_sync(0xffffffffu, other.x, lanes),
                                  __shfl_xor_sync(0xffffffffu, other.y, lanes)));
}

/* Computes measures over the warp's rows. Eight lanes have the same columns; each ends with two. */
__device__ static __forceinline__ void measure_warp(float2 *out, const float x[OWN][SUMS],
                                                    float scale)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    float2 m[VALUES / 2];
#pragma unroll
    for (uint32_t i = 0; i < VALUES / 2; i++)
        m[i] = share(measure_own(x, i, scale), measure_own(x, i + VALUES / 2, scale), 16);
#pragma unroll
    for (uint32_t n = VALUES / 4, lanes = 8; lanes >= 4; n /= 2, lanes /= 2)
#pragma unroll
        for (uint32_t i = 0; i < n; i++) m[i] = share(m[i], m[i + n], lanes);
    const uint32_t first = lane / 16 * 8 + lane / 8 % 2 * 4 + lane / 4 % 2 * 2;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) out[(first + i) * 4 + lane % 4] = m[i];
}

/* Merges over the threads that share a column. All of them get the result. */
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

/* A measure is shared as one word, which itself shows whether it has been written. All bits are set
 * before the launch; no sum of exponentials, and no NaN from arithmetic, has all bits set. */
__device__ static inline void write_measure(float2 *to, float2 m)
{
    const uint64_t word = (uint64_t)__float_as_uint(m.y) << 32 | __float_as_uint(m.x);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ static inline float2 read_measure(const float2 *from)
{
    uint64_t word;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return make_float2(__uint_as_float((uint32_t)word), __uint_as_float((uint32_t)(word >> 32)));
}

__device__ static inline bool is_written(float2 m) { return ~__float_as_uint(m.y) != 0; }

/* Returns the measures of a span of the unit. */
__device__ static inline float2 *measures_at(const score_params &p, const score_span &x,
                                             uint32_t span)
{
    return p.measures + ((size_t)x.unit * p.c.n_spans + span) * p.c.window * p.c.group;
}

/* While merging, SHARERS threads have one column: value column / 4 of the lanes with
 * lane % 4 = column % 4. column_measure sets *at to the column's index among the measures, and
 * *repeats if the column repeats the head of another column. It returns false when the column has
 * no measure, because its row is past the window. */
__device__ static inline uint32_t own_column(void) { return threadIdx.x % TEAM / SHARERS; }

__device__ static inline bool column_measure(uint32_t *at, bool *repeats, const score_params &p,
                                             uint32_t round)
{
    const uint32_t i = own_column() / 4, row = ring_row_of(p, round, i, own_column() % 4);
    const uint32_t head = atom_head(p, i / 2);
    *at = row * p.c.group + head;
    *repeats = head != (i / 2 & ((1u << p.group_shift) - 1));
    return row < p.c.window;
}

/* Returns how many queries are newer than that of the own column; 0 for rows past the window. */
__device__ static inline float own_age(const score_params &p, const score_span &span,
                                       uint32_t round)
{
    const uint32_t row = ring_row_of(p, round, own_column() / 4, own_column() % 4);
    const uint32_t start = span.job->ring_start;
    if (row >= p.c.window) return 0.0f;
    return (float)(p.c.window - 1 - (row - start + (row < start ? p.c.window : 0)));
}

/* Writes the span's measures for all spans of the unit. */
__device__ static __forceinline__ void measure(const score_params &p, const score_span &span,
                                               const float x[OWN][SUMS], team_shared *team,
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
    bool repeats;
    if (column_measure(&at, &repeats, p, round) && part == 0 && !repeats)
        write_measure(&measures_at(p, span, span.span)[at], all);
}

/* Computes base: a logit minus base is the base-2 logarithm of its softmax over the sequence,
 * decayed by the age of the query. Waits for the other spans of the unit. */
__device__ static inline void find_bases(const score_params &p, const score_span &span,
                                         team_shared *team, uint32_t round)
{
    const uint32_t part = threadIdx.x % SHARERS;
    const float2 none = make_float2(LEAST, 0);
    float2 all = none;
    uint32_t at;
    bool repeats;
    const bool has = column_measure(&at, &repeats, p, round);
    /* Read before the wait, which it would prolong. */
    const float decay = p.c.peak ? span.job->decay_log2 * own_age(p, span, round) : 0.0f;
    for (uint32_t first = part; first < p.c.n_spans; first += AT_ONCE * SHARERS) {
        float2 some[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t from = first + i * SHARERS;
            some[i] =
                has && from < p.c.n_spans ? read_measure(&measures_at(p, span, from)[at]) : none;
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            while (!is_written(some[i]))
                some[i] = read_measure(&measures_at(p, span, first + i * SHARERS)[at]);
            all = merge(all, some[i]);
        }
    }
    all = merge_shared(all);
    if (part == 0) team->base[own_column()] = all.x + log2f(all.y) - decay;
    team_sync();
}

/* Counts the largest weight of the group, for each query: added to sum, or the maximum (PEAK). */
template <bool PEAK>
__device__ static __forceinline__ void weigh(float sum[OWN][2], float x[OWN][SUMS],
                                             const score_params &p, const float base[COLUMNS],
                                             uint32_t round)
{
    const float least = -100; /* keeps scores and decayed scores from becoming denormal */
    const uint32_t quad = threadIdx.x % 4, group = 1u << p.group_shift;
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        const float b = base[i * 4 + quad];
#pragma unroll
        for (uint32_t s = 0; s < OWN; s++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) x[s][VALUE(i, h)] = x[s][VALUE(i, h)] * p.scale - b;
    }
#pragma unroll
    for (uint32_t step = 1; step < MAX_GROUP; step *= 2) { /* in atoms: the heads of a query */
        if (step >= group) break;
#pragma unroll
        for (uint32_t i = 0; i < VALUES; i++)
#pragma unroll
            for (uint32_t s = 0; i / 2 % (2 * step) == 0 && s < OWN; s++)
#pragma unroll
                for (uint32_t h = 0; h < 2; h++)
                    x[s][VALUE(i, h)] = fmaxf(x[s][VALUE(i, h)], x[s][VALUE(i + 2 * step, h)]);
    }
#pragma unroll
    for (uint32_t i = 0; i < VALUES; i++) {
        if (i / 2 % group != 0 || ring_row_of(p, round, i, quad) >= p.c.window) continue;
#pragma unroll
        for (uint32_t s = 0; s < OWN; s++)
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                const float weight = cn_exp2(fmaxf(x[s][VALUE(i, h)], least));
                sum[s][h] = PEAK ? fmaxf(sum[s][h], weight) : sum[s][h] + weight;
            }
    }
}

/* Returns F of a slot, or 0 if it does not count. 0 has no effect, because scores are never
 * below. */
__device__ static inline float history_of(const score_params &p, const score_span &span,
                                          uint32_t slot)
{
    const cn_kv_layout &l = p.c.pools.layout;
    const uint32_t block = span.job->source[min(slot, p.c.n - 1) / l.block_tokens];
    if (slot >= span.job->n_history) return 0;
    return p.c.pools.score[cn_kv_side(&l, span.layer, block, span.kv_head, slot % l.block_tokens)];
}

__device__ static inline void store_scores(const score_params &p, const score_span &span,
                                           const float sum[OWN][2], float history)
{
    float own = 0;
#pragma unroll
    for (uint32_t s = 0; s < OWN; s++)
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            const float all = p.c.peak ? cn_quad_max(sum[s][h]) : cn_quad_sum(sum[s][h]);
            if (owns(s, h)) own = all;
        }
    const uint32_t slot = span.first + own_row();
    const float s = p.c.peak ? own : own / (float)p.c.window;
    if (slot < p.c.n)
        p.c.score[(size_t)span.unit * p.c.n + slot] = fmaxf(s, span.job->alpha * history);
}

/* Steps 2 and 3 together, for a window of one round, whose logits stay in registers. */
template <int D, bool FP8>
__device__ static inline void attend_one_round(const score_params &p, const score_span &span,
                                               const team_place<D> &t, uint32_t turn)
{
    float x[OWN][SUMS], sum[OWN][2] = {};
    begin_logits(x, t, turn);
    const float history = history_of(p, span, span.first + own_row());
    end_logits<D, FP8>(x, p, span, t, 0);
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&t.shared->keys_empty);
    measure(p, span, x, t.shared, 0);
    find_bases(p, span, t.shared, 0);
    if (p.c.peak)
        weigh<true>(sum, x, p, t.shared->base, 0);
    else
        weigh<false>(sum, x, p, t.shared->base, 0);
    store_scores(p, span, sum, history);
}

/* Step 2 or step 3, by p.steps, for a window of any number of rounds. */
template <int D, bool FP8>
__device__ static inline void attend_in_rounds(const score_params &p, const score_span &span,
                                               const team_place<D> &t, uint32_t turn)
{
    float x[OWN][SUMS], sum[OWN][2] = {};
    for (uint32_t round = 0; round < p.n_rounds; round++) {
        team_sync(); /* the previous round has been measured or weighed */
        if (p.steps == WEIGH) find_bases(p, span, t.shared, round);
        begin_logits(x, t, turn * p.n_rounds + round);
        end_logits<D, FP8>(x, p, span, t, round);
        if (p.steps == WEIGH && p.c.peak)
            weigh<true>(sum, x, p, t.shared->base, round);
        else if (p.steps == WEIGH)
            weigh<false>(sum, x, p, t.shared->base, round);
        else
            measure(p, span, x, t.shared, round);
    }
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&t.shared->keys_empty);
    if (p.steps == WEIGH) store_scores(p, span, sum, history_of(p, span, span.first + own_row()));
}

/* Computes the spans of a team. */
template <int D, bool FP8>
__device__ static inline void compute(const score_params &p, const team_place<D> &t, uint32_t team)
{
    const uint32_t n_spans = n_spans_of(p);
    for (uint32_t turn = 0; span_number<D>(team, turn) < n_spans; turn++) {
        const score_span &span = t.shared->span[turn % 2];
        cn_barrier_wait(&t.shared->keys_full, turn & 1);
        if (FP8) expand_keys(t, p.c.pools.layout.head_dim);
        if (p.steps & MEASURE && p.c.redundancy_kind == CN_REDUNDANCY_LIGHTNING)
            compare<D, FP8>(p, span, t, team, turn);
        if (p.steps == (MEASURE | WEIGH))
            attend_one_round<D, FP8>(p, span, t, turn);
        else
            attend_in_rounds<D, FP8>(p, span, t, turn);
    }
}

#endif

template <int D, bool FP8>
__global__ static void __launch_bounds__(score_plan<D>::THREADS, 1)
    compress_score_kernel(const __grid_constant__ score_params p,
                          const __grid_constant__ CUtensorMap pool,
                          const __grid_constant__ CUtensorMap windows)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using plan = score_plan<D>;
    extern __shared__ unsigned char dynamic[];
    __shared__ team_shared teams[plan::TEAMS];
    __shared__ code_shared coded;
    cn_wait_previous();
    cn_overlap_next();
    if (threadIdx.x < plan::TEAMS) {
        team_shared *team = &teams[threadIdx.x];
        cn_barrier_init(&team->keys_full, 1);
        cn_barrier_init(&team->keys_empty, TEAM_WARPS);
        cn_barrier_init(&team->queries_full, 1);
        cn_barrier_init(&team->queries_empty, TEAM_WARPS);
        cn_barrier_init(&team->compared, TEAM_WARPS);
        if (threadIdx.x == 0) cn_barrier_init(&coded.empty, TEAM_WARPS);
        cn_barrier_init_done();
    }
    __syncthreads();
    unsigned char *tiles = dynamic + (0u - cn_shared_address(dynamic)) % 1024;
    /* The compiler sees that this is equal in all lanes, so values derived from it are computed
     * once per warp. */
    const uint32_t thread = __shfl_sync(0xffffffffu, threadIdx.x, 0);
    if (thread >= plan::TEAMS * TEAM) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(plan::FETCH_REGISTERS));
        const uint32_t warp = thread % CN_WARPGROUP / CN_WARP, team = warp % plan::TEAMS;
        const team_place<D> t(tiles, teams, &coded, team, 0);
        if (FP8 && warp == 0) fetch_all_codes<D>(p, tiles, teams, &coded);
        if (warp < 2 * plan::TEAMS && !(FP8 && warp < plan::TEAMS))
            fetch<D>(p, t, team, warp < plan::TEAMS, warp < plan::TEAMS ? &pool : &windows);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(plan::COMPUTE_REGISTERS));
        const team_place<D> t(tiles, teams, &coded, thread / TEAM, first_strip(thread));
        compute<D, FP8>(p, t, thread / TEAM);
    }
#endif
}

/* ---- launching ---- */

/* Bytes of the measures. They are at the front of a chunk's work, which has room (compress.h). */
static size_t measure_bytes(const cn_compress_chunk *c)
{
    return (size_t)cn_compress_units(c) * c->n_spans * c->window * c->group * sizeof(float2);
}

/* A box is an atom. The rows of the ring are the planes of the map. */
static cn_status map_windows(CUtensorMap *map, const cn_pools *pools)
{
    const uint32_t d = pools->layout.head_dim;
    const uint64_t planes = (uint64_t)pools->layout.n_layers * pools->n_query_slots * pools->window;
    const cn_map_shape shape = {3,
                                {d, pools->n_heads, planes},
                                {1, d, (uint64_t)pools->n_heads * d},
                                {CN_BOX_COLS, 1, ATOM}};
    return cn_map_encode(map, pools->q_window, &shape);
}

typedef struct score_maps {
    CUtensorMap pool, windows;
} score_maps;

template <int D, bool FP8>
static cn_status launch_steps(cn_stream *s, score_params p, uint32_t steps, const score_maps &maps)
{
    using plan = score_plan<D>;
    const uint32_t n_spans = cn_compress_units(&p.c) * p.c.n_spans;
    cn_launch how = {dim3(cn_min_u32(n_spans, s->cuda->device.n_sms)), plan::THREADS,
                     plan::BYTES + (FP8 ? plan::CODE_BYTES : 0)};
    p.steps = steps;
    /* With both steps the blocks wait for one another. At a priority below the model's this can
     * deadlock: a kernel of the model that waits for room prevents the remaining blocks from
     * starting, while the blocks that run hold that room. */
    how.model_priority = steps == (MEASURE | WEIGH);
    return cn_cuda_launch(s, "compress_score", compress_score_kernel<D, FP8>, how, p, maps.pool,
                          maps.windows);
}

template <int D, bool FP8> static cn_status launch_score_sm90(cn_stream *s, const score_params &p)
{
    score_maps maps = {};
    const cn_pools *pools = &p.c.pools;
    if (!FP8) CN_TRY(cn_map_pool(&maps.pool, pools->kv, &pools->layout, pools->layout.tile_tokens));
    CN_TRY(map_windows(&maps.windows, pools));
    if (p.n_rounds == 1 && p.c.n_spans <= s->cuda->device.n_sms)
        return launch_steps<D, FP8>(s, p, MEASURE | WEIGH, maps);
    CN_TRY((launch_steps<D, FP8>(s, p, MEASURE, maps)));
    return launch_steps<D, FP8>(s, p, WEIGH, maps);
}

extern "C" bool cn_compress_score_sm90_fits(const cn_stream *s, const cn_compress_chunk *c)
{
    const cn_kv_layout *l = &c->pools.layout;
    const bool fp8 = cn_kv_form_of(l) == CN_KV_FP8;
    return cn_attn_has_bulk(s) && !cn_kv_layout_is_shared(l) &&
           l->head_dim % (fp8 ? 2 * CN_VEC8 : CN_VEC8) == 0 &&
           l->head_dim <= MAX_HEAD_DIM && c->ring == c->window && c->group <= MAX_GROUP &&
           c->redundancy_kind != CN_REDUNDANCY_FLASH &&
           (fp8 || cn_kv_rows_of(l).total <= INT32_MAX);
}

template <bool FP8> static cn_status launch_any(cn_stream *s, const score_params &p)
{
    const uint32_t d = p.c.pools.layout.head_dim;
    if (d <= 64) return launch_score_sm90<64, FP8>(s, p);
    return d <= 128 ? launch_score_sm90<128, FP8>(s, p) : launch_score_sm90<256, FP8>(s, p);
}

extern "C" cn_status cn_compress_score_sm90(cn_stream *s, const cn_compress_chunk *c)
{
    const bool fp8 = cn_kv_form_of(&c->pools.layout) == CN_KV_FP8;
    score_params p = {};
    p.c = *c;
    if (!fp8) p.rows = cn_kv_rows_of(&c->pools.layout);
    while (1u << p.group_shift < c->group) p.group_shift++;
    p.n_rounds = (uint32_t)cn_ceil_div(c->window, COLUMNS >> p.group_shift);
    p.scale = CN_LOG2E / sqrtf((float)c->pools.layout.head_dim);
    p.measures = (float2 *)c->work;
    CN_CUDA(cudaMemsetAsync(p.measures, 0xff, measure_bytes(c), s->handle));
    return fp8 ? launch_any<true>(s, p) : launch_any<false>(s, p);
}
