/* compress_select.cu - selects the slots that an event keeps: redundancy softmax, pooling, scale,
 * the weighted final score, first and newest slots forced in, and the n_target * b best slots by
 * radix selection; ties go to the higher slot.
 * In: score, redundancy [units, n] f32. Out: work [units, work_words], the kept slot that each
 * target slot receives; F of the target blocks. Grid units, 512 threads.
 *
 * A score becomes an unsigned key in the order of floats. Keys and scores are in shared memory.
 * Above SHARED_SLOTS the keys overwrite the redundancy instead. Three histograms of 11, 11 and 10
 * bits find the least key that is kept. Then each thread lists the kept slots among its own
 * consecutive slots. With move `fill` it leaves kept target slots in place and lists the holes and
 * the kept slots behind the targets; a second pass pairs these.
 * The time of a unit depends on latency, two rounds of loads and about twenty barriers, and not on
 * its bytes, 8 n from the L2 cache. CPU versions: cpu_select.c, cpu_score.c (combine). */
#include "compress/rule.h"
#include "cuda/attn/attn_common.cuh"
#include "cuda/compress/compress.cuh"

enum {
    THREADS = 512,
    WARPS = THREADS / CN_WARP,
    SHARED_SLOTS = 8192,
    DIGIT_BITS = 11,
    BINS = 1 << DIGIT_BITS,
    BINS_EACH = BINS / THREADS,
    AT_ONCE = 5, /* scores that a thread loads before it uses the first */
    POOL_RADIUS = 2
};

typedef struct select_shared {
    uint32_t histogram[BINS];
    uint32_t warp_counts[2][WARPS];
    float warp_values[3][CN_WARP];
    uint32_t bin, wanted, in_bin;
    uint32_t n_stay; /* number of kept slots below n_kept, which stay in place */
} select_shared;

/* Maps a float to an unsigned integer of the same order. Both zeros are equal; NaN is lowest. */
__device__ static inline uint32_t ordered_bits(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f);
    if (x != x) return 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* ---- final scores ---- */

__device__ static inline float block_max(float v, float *shared)
{
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
    if (threadIdx.x % CN_WARP == 0) shared[threadIdx.x / CN_WARP] = v;
    __syncthreads();
    v = threadIdx.x % CN_WARP < WARPS ? shared[threadIdx.x % CN_WARP] : -CUDART_INF_F;
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}

/* The softmax of scaled row sums x is exp2(x - top) * inverse. */
typedef struct softmax {
    float top, inverse;
} softmax;

/* Computes the softmax of the row sums. Writes the scaled row sums to keys; each thread later reads
 * those that it wrote. */
__device__ static inline softmax softmax_of(uint32_t *keys, const float *rows, uint32_t n,
                                            float scale, select_shared *shared)
{
    softmax s = {-CUDART_INF_F, 0.0f};
    for (uint32_t first = threadIdx.x; first < n; first += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            x[i] = first + i * THREADS < n ? rows[first + i * THREADS] * scale : -CUDART_INF_F;
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            s.top = fmaxf(s.top, x[i]);
            if (first + i * THREADS < n) keys[first + i * THREADS] = __float_as_uint(x[i]);
        }
    }
    s.top = block_max(s.top, shared->warp_values[0]);
    float sum = 0.0f;
    for (uint32_t v = threadIdx.x; v < n; v += THREADS)
        sum += exp2f(__uint_as_float(keys[v]) - s.top);
    s.inverse = 1.0f / cn_block_sum(sum, shared->warp_values[1]);
    return s;
}

__device__ static inline void copy_scores(float *to, const float *from, uint32_t n)
{
    for (uint32_t first = threadIdx.x; first < n; first += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            x[i] = first + i * THREADS < n ? from[first + i * THREADS] : 0;
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (first + i * THREADS < n) to[first + i * THREADS] = x[i];
    }
}

__device__ static inline float pooled(const float *score, uint32_t v, uint32_t n)
{
    const uint32_t first = v > POOL_RADIUS ? v - POOL_RADIUS : 0;
    const uint32_t end = min(v + POOL_RADIUS + 1, n);
    float top = score[first];
    for (uint32_t i = first + 1; i < end; i++) top = fmaxf(top, score[i]);
    return top;
}

/* S of slot v, or of one of the CN_FOLLOW_SLOTS slots before it, which counts less with the
 * distance. A sink counts for itself alone. The shares are exact, so the result has the bits of
 * score_follow (cpu_score.c). */
__device__ static inline float followed(const float *score, uint32_t v, uint32_t n_sinks)
{
    const uint32_t reach = v > n_sinks ? min(v - n_sinks, (uint32_t)CN_FOLLOW_SLOTS) : 0;
    float top = score[v], share = 1.0f;
#pragma unroll 4
    for (uint32_t d = 1; d <= reach; d++) {
        share -= 1.0f / (2 * CN_FOLLOW_SLOTS);
        top = fmaxf(top, score[v - d] * share);
    }
    return top;
}

/* Returns the factor that brings the sum of S, which may be pooled, to `wanted`. */
__device__ static inline float scale_of(const float *score, uint32_t n, bool pool, float wanted,
                                        select_shared *shared)
{
    float sum = 0.0f;
    for (uint32_t v = threadIdx.x; v < n; v += THREADS)
        sum += pool ? pooled(score, v, n) : score[v];
    sum = cn_block_sum(sum, shared->warp_values[2]);
    return sum > 0.0f ? wanted / sum : 0.0f;
}

/* Computes keys[v] for all slots. keys may overwrite the redundancy. `score` must be visible to all
 * threads. */
__device__ static inline void make_keys(uint32_t *keys, const float *score,
                                        const cn_compress_chunk &c, const cn_compress_unit &u,
                                        select_shared *shared)
{
    const cn_compress_job job = *u.job;
    const float *rows = c.redundancy + (size_t)u.index * c.n;
    const bool redundancy = c.redundancy_kind != CN_REDUNDANCY_NONE;
    softmax s = {0.0f, 0.0f};
    if (redundancy) s = softmax_of(keys, rows, c.n, job.redundancy_scale, shared);
    float weight = job.score_weight;
    if (job.score_sum > 0.0f)
        weight *= scale_of(score, c.n, job.pool, job.score_sum, shared);
    for (uint32_t v = threadIdx.x; v < c.n; v += THREADS) {
        float x = job.follow ? followed(score, v, job.n_sinks)
                  : job.pool ? pooled(score, v, c.n)
                             : score[v];
        if (redundancy)
            x = weight * x -
                job.redundancy_weight * (exp2f(__uint_as_float(keys[v]) - s.top) * s.inverse);
        const bool stays = v < job.n_sinks || v + job.n_newest >= c.n;
        keys[v] = ordered_bits(stays ? CUDART_INF_F : x);
    }
    __syncthreads();
}

/* ---- selection ---- */

/* Exclusive sum over the threads of the block. counts may be reused after their next barrier. */
__device__ static inline uint32_t scan_block(uint32_t v, uint32_t counts[WARPS])
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    uint32_t sum = v;
#pragma unroll
    for (uint32_t offset = 1; offset < CN_WARP; offset *= 2) {
        const uint32_t below = __shfl_up_sync(0xffffffffu, sum, offset);
        if (lane >= offset) sum += below;
    }
    if (lane == CN_WARP - 1) counts[warp] = sum;
    __syncthreads();
    return sum - v + __reduce_add_sync(0xffffffffu, lane < warp ? counts[lane] : 0);
}

/* Finds the digit [shift, shift + bits) of the wanted-th largest key among the keys whose higher
 * bits equal those of `prefix`. Writes the digit to shared->bin, the number of keys with this digit
 * to in_bin, and how many of these must be kept to wanted. */
__device__ static inline void find_key_digit(const uint32_t *keys, uint32_t n, uint32_t prefix,
                                             uint32_t shift, uint32_t bits, select_shared *shared)
{
    const uint32_t wanted = shared->wanted, above = shift + bits, n_bins = 1u << bits;
    for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) shared->histogram[i] = 0;
    __syncthreads();
    for (uint32_t v = threadIdx.x; v < n; v += THREADS) {
        const uint32_t key = keys[v];
        if (above == 32 || key >> above == prefix >> above)
            atomicAdd(&shared->histogram[key >> shift & (n_bins - 1)], 1u);
    }
    __syncthreads();
    /* Thread t has the BINS_EACH bins from t * BINS_EACH on, counted from the highest bin. */
    uint32_t own = 0;
    const uint32_t first = BINS - 1 - threadIdx.x * BINS_EACH;
#pragma unroll
    for (uint32_t i = 0; i < BINS_EACH; i++) own += shared->histogram[first - i];
    uint32_t before = scan_block(own, shared->warp_counts[0]);
    if (before < wanted && before + own >= wanted) {
        uint32_t bin = first;
        while (before + shared->histogram[bin] < wanted) before += shared->histogram[bin--];
        shared->bin = bin;
        shared->wanted = wanted - before;
        shared->in_bin = shared->histogram[bin];
    }
    __syncthreads();
}

/* The result of a unit's selection. */
typedef struct kept_list {
    uint32_t *work; /* [2 n], the unit's part: the slot for each target slot, then lists */
    uint32_t n_kept;
} kept_list;

/* Move `fill`: handles slot v, before which `before` slots are kept. A kept slot below n_kept
 * stays. Other slots below n_kept are holes, listed in work from n_kept on. Kept slots from n_kept
 * on move to holes; they are listed in work from n on. */
__device__ static inline void put_or_note(const kept_list &list, uint32_t n, uint32_t v,
                                          uint32_t before, bool kept, select_shared *shared)
{
    const uint32_t n_kept = list.n_kept;
    if (v + 1 == n_kept) shared->n_stay = before + kept;
    if (v < n_kept && kept) list.work[v] = v;
    if (v < n_kept && !kept) list.work[n_kept + v - before] = v;
    if (v >= n_kept && kept) list.work[n + before] = v;
}

/* Assigns the kept slots that do not stay to the holes. There are as many of one as of the
 * other. */
__device__ static inline void fill_holes(const kept_list &list, uint32_t n,
                                         const select_shared *shared)
{
    const uint32_t *holes = list.work + list.n_kept, *goes = list.work + n + shared->n_stay;
    for (uint32_t i = threadIdx.x; i < list.n_kept - shared->n_stay; i += THREADS)
        list.work[holes[i]] = goes[i];
}

/* Lists the kept slots: all with keys above `least`, and those with equal keys except the n_skip
 * lowest slots. */
__device__ static inline void list_kept(const kept_list &list, const uint32_t *keys, uint32_t n,
                                        uint32_t least, uint32_t n_skip, bool fills,
                                        select_shared *shared)
{
    const uint32_t each = (n + THREADS - 1) / THREADS | 1; /* odd: lanes use different banks */
    const uint32_t first = min(threadIdx.x * each, n), end = min(first + each, n);
    uint32_t n_above = 0, n_equal = 0; /* of this thread; after the scan, of earlier threads */
    for (uint32_t v = first; v < end; v++) {
        n_above += keys[v] > least;
        n_equal += keys[v] == least;
    }
    n_above = scan_block(n_above, shared->warp_counts[0]);
    n_equal = scan_block(n_equal, shared->warp_counts[1]);
    for (uint32_t v = first; v < end; v++) {
        const bool above = keys[v] > least, equal = keys[v] == least;
        const bool kept = above || (equal && n_equal >= n_skip);
        const uint32_t i = n_above + (n_equal > n_skip ? n_equal - n_skip : 0);
        if (!fills && kept) list.work[i] = v;
        if (fills) put_or_note(list, n, v, i, kept, shared);
        n_above += above;
        n_equal += equal;
    }
    __syncthreads();
    if (!fills) return;
    fill_holes(list, n, shared);
    __syncthreads();
}

/* Writes F of the target slots. */
__device__ static inline void write_scores(const kept_list &list, const float *score,
                                           const cn_compress_chunk &c, const cn_compress_unit &u)
{
    const uint32_t b = c.pools.layout.block_tokens, shift = (uint32_t)__ffs((int)b) - 1;
    const uint32_t *target = u.job->target;
    float *to = c.pools.score + cn_compress_side(c, u, 0, 0);
    const size_t block_stride = cn_compress_side(c, u, 1, 0) - cn_compress_side(c, u, 0, 0);
    for (uint32_t first = threadIdx.x; first < list.n_kept; first += AT_ONCE * THREADS) {
        uint32_t v[AT_ONCE], block[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t i = min(first + k * THREADS, list.n_kept - 1);
            v[k] = list.work[i];
            block[k] = target[i >> shift];
        }
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            const uint32_t i = first + k * THREADS;
            if (i < list.n_kept) to[block[k] * block_stride + (i & (b - 1))] = score[v[k]];
        }
    }
}

template <bool in_shared>
__global__ static void __launch_bounds__(THREADS, CN_SM_THREADS / THREADS)
    select_kernel(const __grid_constant__ cn_compress_chunk c)
{
    extern __shared__ uint32_t shared_words[];
    __shared__ select_shared shared;
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    cn_overlap_next();
    cn_wait_previous();
    uint32_t *keys = shared_words;
    const float *score = c.score + (size_t)u.index * c.n;
    if (in_shared) {
        float *copy = (float *)(shared_words + c.n);
        copy_scores(copy, score, c.n);
        score = copy;
        __syncthreads();
    } else {
        keys = (uint32_t *)(c.redundancy + (size_t)u.index * c.n);
    }
    if (threadIdx.x == 0) shared.wanted = u.job->n_target * c.pools.layout.block_tokens;
    make_keys(keys, score, c, u, &shared);
    uint32_t least = 0;
    const uint32_t shifts[3] = {21, 10, 0};
    for (int i = 0; i < 3; i++) {
        find_key_digit(keys, c.n, least, shifts[i], i < 2 ? DIGIT_BITS : 10, &shared);
        least |= shared.bin << shifts[i];
    }
    const kept_list list = {c.work + (size_t)u.index * c.work_words,
                            u.job->n_target * c.pools.layout.block_tokens};
    list_kept(list, keys, c.n, least, shared.in_bin - shared.wanted, c.fills, &shared);
    if (u.job->global) write_scores(list, score, c, u);
}

extern "C" cn_status cn_compress_select(cn_stream *s, const cn_compress_chunk *c)
{
    const dim3 grid(cn_compress_units(c));
    if (c->n > SHARED_SLOTS)
        return cn_cuda_launch(s, "compress: select", select_kernel<false>, {grid, THREADS}, *c);
    return cn_cuda_launch(s, "compress: select", select_kernel<true>,
                          {grid, THREADS, c->n * (sizeof(uint32_t) + sizeof(float))}, *c);
}
