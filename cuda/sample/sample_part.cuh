/* sample_part.cuh - one block's part of a row that is sampled (sample.cu): its shared memory,
 * reductions over the block and over the row's parts, and the passes over its values, which load,
 * edit, scale and sum them. */
#pragma once

#include "cuda/group.cuh"
#include "cuda/launch.cuh"
#include "engine/sample_math.h"

enum {
    PARTS = CN_GROUP_PARTS,
    THREADS = 512,
    WARPS = THREADS / CN_WARP,
    BINS = THREADS,
    FEW = 256, /* candidates that one block ranks by itself */
    ROW_WORDS = sizeof(cn_sample_row) / sizeof(uint32_t),
    COUNT_OUTPUT_MAX = 0x7fff
};
static const uint32_t NO_BIN = UINT32_MAX, NO_LIMIT = UINT32_MAX;

/* A distance is the bits of -x for a scaled logit x, which is 0 or below. Larger means less likely;
 * NaN does not occur. Coarse bins: one for all distances below 1/8, then 64 per octave up to 32,
 * where every weight is 0. */
static const uint32_t COARSE_START = 0x3e000000, COARSE_SHIFT = 17; /* 0.125f */

typedef struct candidate {
    float value;
    uint32_t id;
} candidate;

/* The data that a part shares with the others. */
typedef struct board {
    uint64_t value;
    uint32_t n_few, padding;
    union {
        struct {
            uint32_t count[BINS];
            uint32_t mass_low[BINS], mass_high[BINS]; /* of a 64-bit sum */
        };
        candidate few[FEW];
        uint64_t top[CN_MAX_LOGPROBS];
    };
} board;

/* The bin at which `need` is reached, and the part of need that this bin must provide. */
typedef struct located {
    uint64_t need;
    uint32_t bin; /* NO_BIN: need is not reached */
    bool whole;   /* the whole bin is needed, or it has one value: no finer search is needed */
} located;

typedef struct shared_memory {
    board boards[2];
    cn_sample_row row;
    uint64_t reduced[WARPS];
    uint64_t segment[WARPS];
    uint64_t few_rank[FEW], few_weight[FEW];
    uint32_t ticket;
    located found;
    alignas(16) float4 x[]; /* [chunk / 4] */
} shared_memory;

typedef struct sample_params {
    cn_sample_args args;
    uint32_t chunk;     /* values of a part; a multiple of 4 */
    uint32_t *arrivals; /* [1 + n_rows] 0 at the start: tickets, then one counter per row */
    char *boards;       /* [n_rows, 2, PARTS] boards; both NULL with clusters */
} sample_params;

__device__ static inline shared_memory *shared(void)
{
    extern __shared__ __align__(16) unsigned char memory[];
    return (shared_memory *)memory;
}

/* One block's share of one row. */
typedef struct part {
    const sample_params *p;
    cn_group group;
    uint32_t row, begin, n; /* ids begin .. begin + n */
    uint32_t n4;            /* groups of four values, the last padded with -inf */
} part;

/* The parameters that turn values into scaled logits. */
typedef struct scaling {
    float max, temperature;
} scaling;

/* A value is a candidate if its distance is at most `limit` and its weight at least `least`. */
typedef struct bounds {
    uint64_t least;
    uint32_t limit;
} bounds;

/* Properties of the raw logits that logprobs need. */
typedef struct raw_logits {
    float max;
    double log_mass; /* of exp(logit - max), in natural logarithm */
} raw_logits;

/* ---- numbers ---- */

__device__ static inline float scaled(float x, scaling s)
{
    return s.temperature == 1.0f ? cn_sample_scale(x, s.max, 1.0f)
                                 : cn_sample_scale(x, s.max, s.temperature);
}

__device__ static inline uint32_t distance_of(float scaled)
{
    return __float_as_uint(scaled) & 0x7fffffffu;
}

__device__ static inline uint32_t coarse_bin(uint32_t distance)
{
    const uint32_t bin = ((distance - COARSE_START) >> COARSE_SHIFT) + 1;
    return distance < COARSE_START ? 0 : min(bin, (uint32_t)BINS - 1);
}

__device__ static inline uint32_t coarse_bin_start(uint32_t bin)
{
    return bin == 0 ? 0 : COARSE_START + ((bin - 1) << COARSE_SHIFT);
}

/* Returns the last distance of a coarse bin. */
__device__ static inline uint32_t coarse_bin_end(uint32_t bin)
{
    return bin >= BINS - 1 ? NO_LIMIT : coarse_bin_start(bin + 1) - 1;
}

/* Returns the weight of a scaled logit, or 0 when it is not a candidate. */
__device__ static inline uint64_t weight_within(float scaled, bounds b)
{
    const uint64_t w = cn_sample_weight(scaled);
    return (distance_of(scaled) <= b.limit) & (w >= b.least) ? w : 0;
}

/* Returns v such that values whose difference from the largest is below v are beyond the limit. A
 * margin covers rounding. */
__device__ static inline float far_below(uint32_t limit, float temperature)
{
    if (limit >= 0x7f800000u) return -INFINITY;
    return -__uint_as_float(limit) * temperature * 1.0001f;
}

/* Returns a rank that is larger for a larger value and, of equal values, for the lower id. Never
 * 0. */
__device__ static inline uint64_t ranked(float x, uint32_t id)
{
    return (uint64_t)cn_sample_key(x) << 32 | (uint32_t)~id;
}

__device__ static inline float ranked_value(uint64_t ranked)
{
    const uint32_t key = (uint32_t)(ranked >> 32);
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ static inline uint32_t ranked_id(uint64_t ranked) { return ~(uint32_t)ranked; }

__device__ static inline float logprob_of(float logit, raw_logits raw)
{
    const float x = cn_sample_scale(logit, raw.max, 1.0f);
    return x == x ? (float)((double)x - raw.log_mass) : -INFINITY;
}

/* ---- reductions over a block and over a group ---- */

struct sum {
    __device__ static uint64_t of(uint64_t a, uint64_t b) { return a + b; }
};
struct maximum {
    __device__ static uint64_t of(uint64_t a, uint64_t b) { return a > b ? a : b; }
};

template <typename Op, int LANES> __device__ static inline uint64_t warp_reduce(uint64_t v)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}

/* All threads get the result. */
template <typename Op> __device__ static __noinline__ uint64_t block_reduce(part *t, uint64_t v)
{
    v = warp_reduce<Op, CN_WARP>(v);
    __syncthreads(); /* no thread still reads `reduced` */
    if (threadIdx.x % CN_WARP == 0) shared()->reduced[threadIdx.x / CN_WARP] = v;
    __syncthreads();
    return warp_reduce<Op, WARPS>(shared()->reduced[threadIdx.x % WARPS]);
}

__device__ static inline board *own_board(const part *t)
{
    return &shared()->boards[cn_group_turn(&t->group)];
}

__device__ static inline const board *shown(const part *t, uint32_t from)
{
    return (const board *)cn_group_shown(&t->group, from);
}

__device__ static __noinline__ void exchange_boards(part *t) { cn_group_exchange(&t->group); }

/* Shares v, which is equal in all threads. Returns to lane i the value that part i % PARTS
 * shared. */
__device__ static __noinline__ uint64_t exchange_value(part *t, uint64_t v)
{
    if (threadIdx.x == 0) own_board(t)->value = v;
    cn_group_exchange(&t->group);
    return cn_group_load(&shown(t, threadIdx.x % PARTS)->value);
}

__device__ static uint64_t max_of_group(part *t, uint64_t v)
{
    return warp_reduce<maximum, PARTS>(exchange_value(t, block_reduce<maximum>(t, v)));
}

/* `before` is the sum of the parts with lower ids. */
typedef struct group_total {
    uint64_t before, own, all;
} group_total;

/* `own` must be equal in all threads. */
__device__ static group_total group_sum(part *t, uint64_t own)
{
    const uint64_t v = exchange_value(t, own);
    const bool lower = threadIdx.x % PARTS < t->group.part;
    return {warp_reduce<sum, PARTS>(lower ? v : 0), own, warp_reduce<sum, PARTS>(v)};
}

/* Inclusive sum in the order of the threads. */
__device__ static __noinline__ uint64_t block_scan(part *t, uint64_t v)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
#pragma unroll
    for (int offset = 1; offset < CN_WARP; offset *= 2) {
        const uint64_t lower = __shfl_up_sync(0xffffffffu, v, offset);
        if (lane >= (uint32_t)offset) v += lower;
    }
    __syncthreads();
    if (lane == CN_WARP - 1) shared()->reduced[warp] = v;
    __syncthreads();
    return v + warp_reduce<sum, WARPS>(lane % WARPS < warp ? shared()->reduced[lane % WARPS] : 0);
}

/* ---- a part's values ---- */

__device__ static inline float4 no_nan(float4 v)
{
    return make_float4(fmaxf(v.x, -INFINITY), fmaxf(v.y, -INFINITY), fmaxf(v.z, -INFINITY),
                       fmaxf(v.w, -INFINITY));
}

__device__ static inline float largest(float4 v)
{
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
}

/* The largest value that a thread has visited, and the index of the first group of four that has
 * it. */
typedef struct best_four {
    float value;
    uint32_t at;
} best_four;

__device__ static inline void meet(best_four *best, float4 v, uint32_t at)
{
    const float x = largest(v);
    best->at = x > best->value ? at : best->at;
    best->value = x > best->value ? x : best->value;
}

/* Returns ranked() of the value, which is in x; 0 when the thread visited none. */
__device__ static inline uint64_t rank_best(const part *t, best_four best)
{
    if (threadIdx.x >= t->n4) return 0;
    const float4 v = shared()->x[best.at];
    const uint32_t first = v.x == best.value   ? 0
                           : v.y == best.value ? 1
                           : v.z == best.value ? 2
                                               : 3;
    return ranked(best.value, t->begin + best.at * 4 + first);
}

/* x = the raw logits, with NaN as -inf. Returns the rank of this thread's largest. */
__device__ static uint64_t load_logits(const part *t)
{
    const cn_sample_args *a = &t->p->args;
    const float *from = a->logits + (size_t)t->row * a->vocab + t->begin;
    const uint32_t n = t->n, n4 = t->n4;
    float4 *x = shared()->x;
    best_four best = {-INFINITY, threadIdx.x};
    if (a->vocab % 4 == 0) {
#pragma unroll 5
        for (uint32_t i = threadIdx.x; i < n4; i += THREADS) {
            const float4 v = no_nan(__ldcs((const float4 *)from + i));
            meet(&best, v, i);
            x[i] = v;
        }
    } else {
        for (uint32_t i = threadIdx.x; i < n4; i += THREADS) {
            const uint32_t last = n - 1 - i * 4;
            float4 v = make_float4(from[i * 4], -INFINITY, -INFINITY, -INFINITY);
            if (last >= 1) v.y = from[i * 4 + 1];
            if (last >= 2) v.z = from[i * 4 + 2];
            if (last >= 3) v.w = from[i * 4 + 3];
            v = no_nan(v);
            meet(&best, v, i);
            x[i] = v;
        }
    }
    __syncthreads();
    return rank_best(t, best);
}

/* Bans the tokens without a bit in the row's mask. */
__device__ static __noinline__ void apply_mask(const part *t)
{
    const size_t words = (t->p->args.vocab + 31) / 32;
    const uint32_t *mask = t->p->args.masks + (shared()->row.mask - 1) * words;
    float *x = &shared()->x->x;
    __syncthreads(); /* others may still read the raw values */
    for (uint32_t i = threadIdx.x; i < t->n; i += THREADS) {
        const uint32_t id = t->begin + i;
        if (!(mask[id / 32] >> id % 32 & 1)) x[i] = -INFINITY;
    }
    __syncthreads();
}

/* Applies bans, then biases. Biases are added one after the other, because a token may have
 * several. */
__device__ static __noinline__ void ban_and_bias(const part *t)
{
    const cn_sample_args *a = &t->p->args;
    const cn_sample_row *r = &shared()->row;
    float *x = &shared()->x->x;
    __syncthreads(); /* others may still read the raw values */
    for (uint32_t i = threadIdx.x; i < r->n_ban; i += THREADS) {
        const uint32_t at = a->bans[r->ban_start + i] - t->begin;
        if (at < t->n) x[at] = -INFINITY;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; threadIdx.x < CN_WARP && i - threadIdx.x < r->n_bias;
         i += CN_WARP) {
        cn_logit_bias b = {UINT32_MAX, 0.0f};
        if (i < r->n_bias) b = a->biases[r->bias_start + i];
        uint32_t mine = __ballot_sync(0xffffffffu, b.token - t->begin < t->n);
        for (; mine; mine &= mine - 1) {
            const int lane = __ffs((int)mine) - 1;
            if ((int)threadIdx.x == lane) x[b.token - t->begin] += b.bias;
            __syncwarp();
        }
    }
    __syncthreads();
}

__device__ static inline ushort4 read_counts(const uint16_t *from, uint32_t i, uint32_t n,
                                             bool aligned)
{
    if (aligned) return ((const ushort4 *)from)[i];
    const uint32_t last = n - 1 - i * 4;
    ushort4 c = make_ushort4(from[i * 4], 0, 0, 0);
    if (last >= 1) c.y = from[i * 4 + 1];
    if (last >= 2) c.z = from[i * 4 + 2];
    if (last >= 3) c.w = from[i * 4 + 3];
    return c;
}

__device__ static __noinline__ void penalise(const part *t)
{
    const cn_sample_row *r = &shared()->row;
    const uint32_t vocab = t->p->args.vocab, n = t->n, n4 = t->n4;
    const uint16_t *counts = t->p->args.counts + (size_t)r->count_slot * vocab + t->begin;
    const float repetition = r->repetition_penalty, frequency = r->frequency_penalty;
    const float presence = r->presence_penalty;
    const bool aligned = vocab % 4 == 0;
    float4 *x = shared()->x;
#pragma unroll 5
    for (uint32_t i = threadIdx.x; i < n4; i += THREADS) {
        const ushort4 c = read_counts(counts, i, n, aligned);
        if ((c.x | c.y | c.z | c.w) == 0) continue;
        float4 v = x[i];
        v.x = cn_sample_penalise(v.x, c.x, repetition, frequency, presence);
        v.y = cn_sample_penalise(v.y, c.y, repetition, frequency, presence);
        v.z = cn_sample_penalise(v.z, c.z, repetition, frequency, presence);
        v.w = cn_sample_penalise(v.w, c.w, repetition, frequency, presence);
        x[i] = v;
    }
    __syncthreads();
}

/* x = the values after the mask, bans, biases and penalties. Returns the rank of this thread's
 * largest. */
__device__ static uint64_t edit_values(const part *t, uint64_t own_best)
{
    const cn_sample_row *r = &shared()->row;
    if (r->n_ban == 0 && r->n_bias == 0 && r->count_slot < 0 && r->mask == 0) return own_best;
    if (r->mask) apply_mask(t);
    if (r->n_ban > 0 || r->n_bias > 0) ban_and_bias(t);
    if (r->count_slot >= 0) penalise(t);
    best_four best = {-INFINITY, threadIdx.x};
    const float4 *x = shared()->x;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < t->n4; i += THREADS) meet(&best, x[i], i);
    return rank_best(t, best);
}

/* Returns the largest rank below `below` among this thread's values; 0: none. */
__device__ static __noinline__ uint64_t next_best(const part *t, uint64_t below)
{
    const float *x = &shared()->x->x;
    uint64_t best = 0;
    for (uint32_t four = threadIdx.x; four < t->n4; four += THREADS)
        for (uint32_t i = four * 4; i < four * 4 + 4 && i < t->n; i++) {
            const uint64_t v = ranked(x[i], t->begin + i);
            if (v < below && v > best) best = v;
        }
    return best;
}

/* Groups of four values in a segment. sum_segments lets each warp sum the weights of the candidates
 * in one segment to `segment`, and returns the sum of all segments to all threads. x holds scaled
 * logits; if SCALE, the values in x are scaled first. */
__device__ static inline uint32_t segment_fours(const part *t)
{
    return (t->n4 + WARPS - 1) / WARPS;
}

template <bool SCALE>
__device__ static __noinline__ uint64_t sum_segments(const part *t, bounds b, scaling s)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    const uint32_t length = segment_fours(t), first = warp * length;
    const uint32_t end = min(first + length, t->n4);
    float4 *x = shared()->x;
    uint64_t own = 0;
#pragma unroll 2
    for (uint32_t i = first + lane; i < end; i += CN_WARP) {
        float4 v = x[i];
        if (SCALE) {
            v = make_float4(scaled(v.x, s), scaled(v.y, s), scaled(v.z, s), scaled(v.w, s));
            x[i] = v;
        }
        own += weight_within(v.x, b) + weight_within(v.y, b) + weight_within(v.z, b) +
               weight_within(v.w, b);
    }
    own = warp_reduce<sum, CN_WARP>(own);
    __syncthreads();
    if (lane == 0) shared()->segment[warp] = own;
    __syncthreads();
    return warp_reduce<sum, WARPS>(shared()->segment[lane % WARPS]);
}
