/* sample.cu - samples tokens from logits. It is the GPU's version of cpu_sample.c and gives the
 * same tokens.
 * logits [n_rows, V] f32, not changed; tokens [n_rows]. ops.h defines cn_sample_row,
 * engine/sample_math.h the arithmetic. Weights are integers, so results do not depend on the order
 * of sums or of atomics.
 *
 * Grid: a group of 8 blocks per row (group.cuh); block 512. The parts of a row hold its values in
 * shared memory, and edit and search them there. The logits are read from device memory once. Grid
 * and launch depend on n_rows alone.
 *
 * Nothing is sorted. top_k and top_p are thresholds of the distance below the largest value. They
 * are found by histograms over the bits of the distance: a coarse one, then finer ones of the bin
 * that contains the threshold. Before that, top_k gets an upper bound from the distance of each
 * thread's best value: if k threads have a value inside a bin, there are at least k such values. If
 * few candidates are left (as usual with top_k), one block gathers them and ranks each by counting
 * the candidates ahead of it.
 *
 * Bytes moved: 4*n_rows*V, and 2*V for each row with penalties. Shared memory: V/2 bytes per block,
 * and 17 KiB more. CPU version: cpu_sample.c. */
#include "cuda/sample/sample_part.cuh"

/* ---- thresholds ---- */

__device__ static void clear_bins(const part *t)
{
    board *b = own_board(t);
    b->count[threadIdx.x] = b->mass_low[threadIdx.x] = b->mass_high[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x == 0) shared()->found.bin = NO_BIN;
}

__device__ static inline void add_to_bin(board *b, uint32_t bin, uint64_t weight)
{
    const uint32_t low = (uint32_t)weight;
    atomicAdd(&b->count[bin], 1u);
    const uint32_t carry = atomicAdd(&b->mass_low[bin], low) > UINT32_MAX - low;
    const uint32_t high = (uint32_t)(weight >> 32) + carry;
    if (high) atomicAdd(&b->mass_high[bin], high);
}

/* Adds up the bins of all parts and finds the first bin at which the sum reaches need. */
__device__ static __noinline__ located locate(part *t, bool by_weight, uint64_t need)
{
    uint32_t count = 0;
    uint64_t mass = 0;
    exchange_boards(t);
#pragma unroll
    for (uint32_t i = 0; i < PARTS; i++) {
        const board *b = shown(t, i);
        count += cn_group_load(&b->count[threadIdx.x]);
        if (!by_weight) continue;
        mass += cn_group_load(&b->mass_low[threadIdx.x]) +
                ((uint64_t)cn_group_load(&b->mass_high[threadIdx.x]) << 32);
    }
    const uint64_t own = by_weight ? mass : count, until = block_scan(t, own);
    if (until - own < need && need <= until) {
        shared()->found.need = need - (until - own);
        shared()->found.bin = threadIdx.x;
        shared()->found.whole = count == 1 || need == until;
    }
    __syncthreads();
    return shared()->found;
}

/* Returns a distance within which there are at least k values, or NO_LIMIT if the threads' best
 * values are too few to show one. The result is one bin too large on purpose: rounding may let a
 * weight rise with the distance, by far less than a bin, and min_p cuts by weight. */
__device__ static uint32_t limit_of_top(part *t, uint32_t k, uint64_t own_best, scaling s)
{
    clear_bins(t);
    if (own_best) {
        const uint32_t d = distance_of(scaled(ranked_value(own_best), s));
        atomicAdd(&own_board(t)->count[coarse_bin(d)], 1u);
    }
    const located l = locate(t, false, k);
    return l.bin == NO_BIN ? NO_LIMIT : coarse_bin_end(l.bin + 1);
}

/* Returns a distance beyond which no value weighs more than `weight`. A margin covers the error of
 * the logarithm. */
__device__ static uint32_t limit_of_weight(uint64_t weight)
{
    if (weight == 0) return NO_LIMIT;
    const float below = CN_WEIGHT_BITS * 0.693147181f - logf((float)weight);
    return distance_of(below * 1.001f + 0.001f);
}

/* Returns the least limit such that the candidates within it reach need, in weight or in number.
 * All candidates together must reach it. x holds scaled logits. */
__device__ static __noinline__ uint32_t threshold(part *t, bool by_weight, uint64_t need, bounds b)
{
    const float *x = &shared()->x->x;
    uint32_t start = 0, end = b.limit, shift = COARSE_SHIFT;
    for (bool coarse = true;; coarse = false) {
        clear_bins(t);
        board *bins = own_board(t);
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < t->n; i += THREADS) {
            const float v = x[i];
            const uint32_t d = distance_of(v);
            if (d < start || d > end) continue;
            const uint64_t w = cn_sample_weight(v);
            if (w < b.least) continue;
            const uint32_t bin = coarse ? coarse_bin(d) : (d - start) >> shift;
            if (by_weight) add_to_bin(bins, bin, w);
            else atomicAdd(&bins->count[bin], 1u);
        }
        const located l = locate(t, by_weight, need);
        uint32_t bin_end = coarse ? coarse_bin_end(l.bin) : start + ((l.bin + 1) << shift) - 1;
        start = coarse ? coarse_bin_start(l.bin) : start + (l.bin << shift);
        end = min(end, bin_end);
        if (l.whole || start >= end) return end;
        need = l.need;
        const uint32_t bits = 32 - (uint32_t)__clz((int)(end - start));
        shift = bits > 9 ? bits - 9 : 0;
    }
}

/* ---- few candidates ---- */

/* Lists the candidates on this part's board, as many as fit. Returns how many the whole row has. */
__device__ static __noinline__ uint32_t collect_few(part *t, bounds b, scaling s)
{
    board *own = own_board(t);
    const float *x = &shared()->x->x, far = far_below(b.limit, s.temperature);
    if (threadIdx.x == 0) own->n_few = 0;
    __syncthreads();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < t->n; i += THREADS) {
        const float v = x[i];
        if (v - s.max < far) continue;
        const float below = scaled(v, s);
        if (distance_of(below) > b.limit || cn_sample_weight(below) < b.least) continue;
        const uint32_t at = atomicAdd(&own->n_few, 1u);
        if (at < FEW) own->few[at] = {v, t->begin + i};
    }
    exchange_boards(t);
    const uint32_t n = cn_group_load(&shown(t, threadIdx.x % PARTS)->n_few);
    return (uint32_t)warp_reduce<sum, PARTS>(n);
}

/* Returns to thread i the i-th of the n candidates that all parts listed. From n on, returns a
 * candidate of value -inf. */
__device__ static candidate gather_few(const part *t)
{
    uint32_t at = threadIdx.x;
    for (uint32_t i = 0; i < PARTS; i++) {
        const board *b = shown(t, i);
        const uint32_t n = cn_group_load(&b->n_few);
        if (at < n) return {cn_group_load(&b->few[at].value), cn_group_load(&b->few[at].id)};
        at -= n;
    }
    return {-INFINITY, UINT32_MAX};
}

/* ---- results ---- */

__device__ static __noinline__ void write_token(const part *t, uint32_t token, raw_logits raw)
{
    const cn_sample_args *a = &t->p->args;
    const cn_sample_row *r = &shared()->row;
    const bool is_none = token == CN_NO_TOKEN;
    a->tokens[t->row] = token;
    if (r->n_logprobs >= 0)
        a->token_logprobs[t->row] =
            is_none ? -INFINITY : logprob_of(a->logits[(size_t)t->row * a->vocab + token], raw);
    if (is_none || r->count_slot < 0) return;
    uint16_t *count = &a->counts[(size_t)r->count_slot * a->vocab + token];
    if ((*count & COUNT_OUTPUT_MAX) < COUNT_OUTPUT_MAX) *count = (uint16_t)(*count + 1);
}

/* Writes the n best of n_ranks <= THREADS candidates. `rank` is that of thread i's candidate; 0: it
 * has none. Called by the first part only. */
__device__ static void write_best(part *t, uint32_t n, uint64_t rank, uint32_t n_ranks,
                                  raw_logits raw)
{
    uint64_t *ranks = shared()->few_rank;
    uint32_t n_ahead = 0;
    if (threadIdx.x < n_ranks) ranks[threadIdx.x] = rank;
    __syncthreads();
    if (threadIdx.x >= n_ranks || rank == 0) return;
    for (uint32_t j = 0; j < n_ranks; j++) n_ahead += ranks[j] > rank;
    if (n_ahead >= n) return;
    cn_logprob *out = &t->p->args.top[(size_t)t->row * CN_MAX_LOGPROBS + n_ahead];
    out->token = ranked_id(rank);
    out->logprob = logprob_of(ranked_value(rank), raw);
}

/* Writes the n best logits, in order. If too many are as good as the n-th for one block to rank,
 * every part lists its n best one by one. */
__device__ static __noinline__ void write_top(part *t, uint32_t n, uint64_t own_best,
                                              raw_logits raw)
{
    const scaling s = {raw.max, 1.0f};
    const uint32_t n_few = collect_few(t, {0, limit_of_top(t, n, own_best, s)}, s);
    if (n_few <= FEW) {
        if (t->group.part != 0) return;
        const candidate c = gather_few(t);
        write_best(t, n, ranked(c.value, c.id), n_few, raw);
        return;
    }
    board *b = own_board(t);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t best = block_reduce<maximum>(t, own_best);
        if (threadIdx.x == 0) b->top[i] = best;
        if (own_best == best && best != 0) own_best = next_best(t, best);
    }
    exchange_boards(t);
    if (t->group.part != 0) return;
    const uint32_t n_ranks = PARTS * n, i = threadIdx.x;
    write_best(t, n, i < n_ranks ? cn_group_load(&shown(t, i / n)->top[i % n]) : 0, n_ranks, raw);
}

/* Writes the logprobs of the best tokens. Returns what write_token needs for the sampled one. If no
 * logit is above -inf, every logprob is -inf. */
__device__ static __noinline__ raw_logits write_sample_logprobs(part *t, uint64_t own_best)
{
    raw_logits raw = {ranked_value(max_of_group(t, own_best)), INFINITY};
    const scaling s = {raw.max, 1.0f};
    const float4 *x = shared()->x;
    uint64_t mass = 0;
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < t->n4; i += THREADS) {
        const float4 v = x[i];
        mass += cn_sample_weight(scaled(v.x, s)) + cn_sample_weight(scaled(v.y, s)) +
                cn_sample_weight(scaled(v.z, s)) + cn_sample_weight(scaled(v.w, s));
    }
    const uint64_t all = group_sum(t, block_reduce<sum>(t, mass)).all;
    if (raw.max > -INFINITY) raw.log_mass = log((double)all) - CN_WEIGHT_BITS * log(2.0);
    const uint32_t n = min((uint32_t)shared()->row.n_logprobs, (uint32_t)CN_MAX_LOGPROBS);
    if (n > 0) write_top(t, n, own_best, raw);
    __syncthreads(); /* x may change */
    return raw;
}

/* Writes the rank of a forced token. */
__device__ static __noinline__ void write_rank(part *t, uint32_t token)
{
    const cn_sample_args *a = &t->p->args;
    const float logit = a->logits[(size_t)t->row * a->vocab + token], *x = &shared()->x->x;
    const float own = isnan(logit) ? -INFINITY : logit;
    uint64_t n = 0;
    for (uint32_t i = threadIdx.x; i < t->n; i += THREADS) n += x[i] >= own;
    const uint64_t all = group_sum(t, block_reduce<sum>(t, n)).all;
    if (t->group.part == 0 && threadIdx.x == 0) a->ranks[t->row] = (uint32_t)all;
}

/* ---- the draw ---- */

/* Applies top_k and top_p and draws among n candidates in one block, one thread per candidate. */
__device__ static void draw_from_few(part *t, uint32_t n, scaling s, raw_logits raw)
{
    shared_memory *m = shared();
    const cn_sample_row *r = &shared()->row;
    const uint32_t i = threadIdx.x;
    const candidate c = gather_few(t);
    const float below = scaled(c.value, s);
    /* Distance in the high bits, id in the low bits: nearest first, and never equal. */
    const uint64_t rank = (uint64_t)distance_of(below) << 32 | c.id;
    uint64_t weight = i < n ? cn_sample_weight(below) : 0, mass_ahead = 0;
    uint32_t n_ahead = 0;
    if (i < n) {
        m->few_rank[i] = rank;
        m->few_weight[i] = weight;
    }
    __syncthreads();
    for (uint32_t j = 0; i < n && j < n; j++) {
        const bool ahead = m->few_rank[j] >> 32 < rank >> 32;
        n_ahead += ahead;
        mass_ahead += ahead ? m->few_weight[j] : 0;
    }
    if (r->top_k > 0 && n_ahead >= (uint32_t)r->top_k) weight = 0;
    uint64_t total = block_reduce<sum>(t, weight);
    if (r->top_p < 1.0f) {
        if (mass_ahead >= cn_sample_nucleus(r->top_p, total)) weight = 0;
        total = block_reduce<sum>(t, weight);
    }
    if (i < n) m->few_weight[i] = weight;
    __syncthreads();
    if (weight == 0) return;
    const uint64_t point = cn_sample_point(cn_philox_u64(r->seed, r->sample, r->position), total);
    uint64_t before = 0;
    for (uint32_t j = 0; j < n; j++)
        before += (uint32_t)m->few_rank[j] < c.id ? m->few_weight[j] : 0;
    if (before <= point && point - before < weight) write_token(t, c.id, raw);
}

/* Draws the value at which this part's cumulative weight exceeds `point`, which must be below the
 * part's sum. It finds the segment first, then searches the few values of each thread. */
__device__ static void draw_at(part *t, uint64_t point, bounds b, raw_logits raw)
{
    const float *x = &shared()->x->x;
    const uint32_t length = segment_fours(t) * 4, each = (length + THREADS - 1) / THREADS;
    uint32_t segment = 0;
    while (point >= shared()->segment[segment]) point -= shared()->segment[segment++];
    const uint32_t start = segment * length, end = min(start + length, t->n);
    const uint32_t first = start + threadIdx.x * each;
    uint64_t own = 0;
    for (uint32_t i = first; i < first + each && i < end; i++) own += weight_within(x[i], b);
    const uint64_t until = block_scan(t, own);
    if (point >= until || point < until - own) return;
    uint64_t rest = point - (until - own);
    uint32_t i = first;
    for (uint64_t w; rest >= (w = weight_within(x[i], b)); i++) rest -= w;
    write_token(t, t->begin + i, raw);
}

/* Applies top_p and draws. x holds scaled logits; mass is that of the candidates within b. */
__device__ static void draw_from_many(part *t, group_total mass, bounds b, raw_logits raw)
{
    const cn_sample_row *r = &shared()->row;
    if (r->top_p < 1.0f) {
        const uint64_t need = cn_sample_nucleus(r->top_p, mass.all);
        /* All values that weigh (total - need) / V or less weigh at most total - need together. */
        const uint32_t limit = limit_of_weight((mass.all - need) / t->p->args.vocab);
        b.limit = min(b.limit, limit);
        b.limit = threshold(t, true, need, b);
        mass = group_sum(t, sum_segments<false>(t, b, {}));
    }
    const uint64_t u = cn_philox_u64(r->seed, r->sample, r->position);
    const uint64_t point = cn_sample_point(u, mass.all);
    if (point < mass.before || point - mass.before >= mass.own) return;
    draw_at(t, point - mass.before, b, raw);
}

/* Chooses the token from the edited values. All parts make the same exchanges. */
__device__ static void choose_token(part *t, uint64_t own_best, raw_logits raw)
{
    const cn_sample_row *r = &shared()->row;
    const uint64_t best = max_of_group(t, own_best);
    const scaling s = {ranked_value(best), r->temperature};
    if (s.temperature <= 0.0f || s.max == -INFINITY) {
        const uint32_t token = s.max == -INFINITY ? CN_NO_TOKEN : ranked_id(best);
        if (t->group.part == 0 && threadIdx.x == 0) write_token(t, token, raw);
        return;
    }
    bounds b = {cn_sample_min_weight(r->min_p), NO_LIMIT};
    uint32_t n = 0;
    if (r->min_p > 0.0f) b.limit = limit_of_weight(b.least - 1);
    if (r->top_k > 0) b.limit = min(b.limit, limit_of_top(t, (uint32_t)r->top_k, own_best, s));
    if (r->top_k > 0 || r->min_p > 0.0f) {
        n = collect_few(t, b, s);
        if (n <= FEW) {
            if (t->group.part == 0) draw_from_few(t, n, s, raw);
            return;
        }
    }
    group_total mass = group_sum(t, sum_segments<true>(t, b, s));
    if (r->top_k > 0 && (uint32_t)r->top_k < n) {
        b.limit = threshold(t, false, (uint32_t)r->top_k, b);
        mass = group_sum(t, sum_segments<false>(t, b, s));
    }
    draw_from_many(t, mass, b, raw);
}

__device__ static part open_row_part(const sample_params *p)
{
    shared_memory *m = shared();
    const uint32_t ticket = p->boards ? cn_group_ticket(p->arrivals, &m->ticket) : blockIdx.x;
    part t = {};
    t.p = p;
    t.row = ticket / PARTS;
    t.group.own = (char *)m->boards;
    t.group.bytes = sizeof(board);
    t.group.part = ticket % PARTS;
    if (p->boards) {
        t.group.boards = p->boards + (size_t)t.row * 2 * PARTS * sizeof(board);
        t.group.arrivals = p->arrivals + 1 + t.row;
    }
    t.begin = min(t.group.part * p->chunk, p->args.vocab);
    t.n = min(p->chunk, p->args.vocab - t.begin);
    t.n4 = (t.n + 3) / 4;
    if (threadIdx.x < ROW_WORDS)
        ((uint32_t *)&m->row)[threadIdx.x] = ((const uint32_t *)&p->args.rows[t.row])[threadIdx.x];
    return t;
}

__device__ static bool is_forced(const cn_sample_args *a, const cn_sample_row *r)
{
    const bool has_prev = a->prev_tokens && r->prev_row >= 0;
    return cn_sample_is_forced(r->force_token, r->force_after,
                               has_prev ? &a->prev_tokens[r->prev_row] : nullptr);
}

__global__ static void __launch_bounds__(THREADS, 2)
    sample_kernel(const __grid_constant__ sample_params p)
{
    cn_overlap_next();
    cn_wait_previous();
    part t = open_row_part(&p);
    uint64_t own_best = load_logits(&t);
    raw_logits raw = {};
    const cn_sample_row *r = &shared()->row;
    if (r->n_logprobs >= 0) raw = write_sample_logprobs(&t, own_best);
    if (is_forced(&p.args, r)) {
        const uint32_t token = (uint32_t)r->force_token;
        if (r->n_logprobs >= 0 && p.args.ranks) write_rank(&t, token);
        if (t.group.part == 0 && threadIdx.x == 0) write_token(&t, token, raw);
    } else {
        own_best = edit_values(&t, own_best);
        choose_token(&t, own_best, raw);
    }
    cn_group_leave(&t.group);
}

/* ---- launching ---- */

static size_t sample_shared_bytes(uint32_t chunk)
{
    return sizeof(shared_memory) + chunk * sizeof(float);
}

static uint32_t sample_chunk_of(uint32_t vocab)
{
    return (uint32_t)cn_round_up(cn_ceil_div(vocab, PARTS), 4);
}

static bool has_clusters(const cn_cuda *c) { return c->device.hopper; }

/* Counters of a launch without clusters. */
static size_t arrivals_bytes(uint32_t n_rows)
{
    return cn_round_up((1 + (size_t)n_rows) * sizeof(uint32_t), 16);
}

extern "C" size_t cn_cuda_sample_scratch_bytes(cn_backend *be, uint32_t max_rows, uint32_t vocab)
{
    (void)vocab;
    if (has_clusters((const cn_cuda *)be->ctx)) return 64;
    return arrivals_bytes(max_rows) + (size_t)max_rows * 2 * PARTS * sizeof(board);
}

static cn_status check_sample(const cn_stream *s, const cn_sample_args *a)
{
    const size_t most = s->cuda->device.shared_bytes;
    const size_t need = cn_cuda_sample_scratch_bytes(&s->cuda->table, a->n_rows, a->vocab);
    if (sample_shared_bytes(sample_chunk_of(a->vocab)) > most)
        return cn_fail(CN_ERR_SHAPE, "sample: a vocabulary of %u does not fit in %d blocks with "
                                     "%zu bytes of shared memory",
                       a->vocab, PARTS, most);
    if (a->scratch_bytes < need)
        return cn_fail(CN_ERR_SHAPE, "sample: scratch of %zu bytes: %u rows need %zu bytes",
                       a->scratch_bytes, a->n_rows, need);
    return CN_OK;
}

extern "C" cn_status cn_cuda_sample(cn_stream *s, const cn_sample_args *a)
{
    CN_TRY(check_sample(s, a));
    if (a->n_rows == 0) return CN_OK;
    sample_params p = {};
    p.args = *a;
    p.chunk = sample_chunk_of(a->vocab);
    cn_launch how = {dim3(a->n_rows * PARTS), THREADS, sample_shared_bytes(p.chunk)};
    if (has_clusters(s->cuda)) {
        how.cluster = PARTS;
    } else {
        const size_t bytes = arrivals_bytes(a->n_rows);
        p.arrivals = (uint32_t *)a->scratch;
        p.boards = (char *)a->scratch + bytes;
        CN_CUDA(cudaMemsetAsync(p.arrivals, 0, bytes, s->handle));
    }
    return cn_cuda_launch(s, "sample", sample_kernel, how, p);
}
