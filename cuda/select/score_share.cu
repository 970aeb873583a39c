/* score_share.cu - group rule max of `score`: the largest share of any head of the group.
 * In: f16 logits [n, row], and the sums of weights of each part (score.cu). Out: u16 scores.
 * Some launches compute them without this kernel (score_ring.cu).
 *
 * A unit has as many blocks as fill the GPU, each with an equal part of its candidates. A block
 * first adds up the sums of the unit's parts, while its first loads are on their way.
 *
 * `score` waits for all kernels that write the arrays of the step before it lets the next kernel
 * start. So this kernel reads the arrays before it waits. With counts a block waits only for the
 * sums of its unit. It counts its scores, and waits for the end of `score` when it has finished.
 *
 * Bytes per candidate and kv head, from the L2 cache if they fit: read 2 a head, written 2.
 * Block 256, 64 registers. */
#include "cuda/select/score_share.h"

enum {
    THREADS = 256,
    BLOCKS = 4, /* of a multiprocessor */
    MANY = 4, /* rounds of blocks, if there are many units */
    MAX_ROW = 64,
    AT_ONCE = 8 /* candidates that a thread loads before it uses the first */
};

static_assert((int)THREADS == (int)CN_COUNT_DIGITS, "a thread has a digit");

/* The candidates [start, end) of a block, of a unit. */
typedef struct share_part {
    const uint16_t *rows;
    uint16_t *out;
    uint32_t start, end;
} share_part;

/* Logits of AT_ONCE candidates: WORDS pairs of heads. */
template <uint32_t WORDS> struct share_raw {
    uint32_t words[AT_ONCE][WORDS];
};

/* Loads those of candidates c, c + THREADS, ... from word `first` of their rows on. Candidates from
 * `end` on are not loaded. */
template <uint32_t WORDS>
__device__ static inline void load_raw(share_raw<WORDS> &raw, const cn_score_params &p,
                                       const share_part &s, uint32_t c, uint32_t first)
{
    const uint32_t *from = (const uint32_t *)(s.rows + (size_t)c * p.row) + first;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++, from += THREADS * (p.row / 2)) {
        if (c + i * THREADS >= s.end) continue;
        if constexpr (WORDS == 1) {
            raw.words[i][0] = *from;
        } else {
            const uint2 two = *(const uint2 *)from;
            raw.words[i][0] = two.x;
            raw.words[i][1] = two.y;
        }
    }
}

/* Returns, to lane 0, the f16 logarithm of the sum of head h over the parts of a unit, with its
 * sign changed: what makes a logit a share. NaN beyond the group. */
__device__ static inline uint16_t head_of(const cn_score_params &p, const cn_score_unit &at,
                                                uint32_t h)
{
    const cn_exp_sum *slots = p.slots + (size_t)at.first_slot * p.group + h;
    cn_exp_sum sum = {};
    for (uint32_t i = threadIdx.x % CN_WARP; h < p.group && i < at.n_slots; i += CN_WARP)
        sum = cn_exp_sum_add(sum, slots[(size_t)i * p.group]);
    sum = cn_score_sum_lanes(sum, at.n_slots);
    return cn_f16_or_nan(h < p.group ? -cn_exp_sum_log2(sum) : CUDART_NAN_F);
}

/* Fills heads[row], f16: the logarithm of the sum of each head of the unit, with its sign changed.
 * It is NaN beyond the group. */
__device__ static inline void load_heads(const cn_score_params &p, uint32_t unit, uint32_t *heads)
{
    const cn_score_unit at = p.units[unit];
    for (uint32_t h = threadIdx.x / CN_WARP; h < p.row; h += THREADS / CN_WARP) {
        const uint16_t head = head_of(p, at, h);
        if (threadIdx.x % CN_WARP == 0) ((uint16_t *)heads)[h] = head;
    }
    __syncthreads();
}

/* Stores the scores of candidates c, c + THREADS, ... best: of the even and of the odd heads.
 * digits: counts the high bytes; NULL: they are not counted. */
__device__ static inline void store_scores(const share_part &s, uint32_t c,
                                           const uint32_t best[AT_ONCE], uint32_t *digits)
{
    uint16_t *out = s.out + c;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i += 2) {
        const uint32_t bits = cn_scores_of_shares(best[i], best[i + 1]);
        const bool first = c + i * THREADS < s.end, second = c + (i + 1) * THREADS < s.end;
        if (first) out[i * THREADS] = (uint16_t)bits;
        if (second) out[(i + 1) * THREADS] = (uint16_t)(bits >> 16);
        if (digits && first) atomicAdd(&digits[bits >> 8 & 0xff], 1u);
        if (digits && second) atomicAdd(&digits[bits >> 24], 1u);
    }
}

/* Computes the scores of a block's part. The words of a row are a multiple of WORDS. */
template <uint32_t WORDS>
__device__ static inline void score_part(const cn_score_params &p, const share_part &s,
                                         uint32_t unit, uint32_t *heads, uint32_t *digits)
{
    uint32_t c = s.start + threadIdx.x;
    share_raw<WORDS> next = {};
    load_raw(next, p, s, c, 0);
    load_heads(p, unit, heads);
    for (; c < s.end; c += AT_ONCE * THREADS) {
        uint32_t best[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CN_NAN_F16X2;
        for (uint32_t at = 0; at < p.row / 2; at += WORDS) {
            const share_raw<WORDS> raw = next;
            const bool last = at + WORDS >= p.row / 2;
            load_raw(next, p, s, last ? c + AT_ONCE * THREADS : c, last ? 0 : at + WORDS);
#pragma unroll
            for (uint32_t k = 0; k < WORDS; k++)
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE; i++)
                    best[i] = cn_f16x2_max(best[i],
                                           cn_f16x2_add(raw.words[i][k], heads[at + k]));
        }
        store_scores(s, c, best, digits);
    }
}

/* Returns part `part` of n_parts of a unit with n candidates. first: of its sequence. */
__device__ static inline share_part part_of(const cn_score_params &p, const cn_sel_unit &u,
                                            uint32_t first, uint32_t n, uint32_t part,
                                            uint32_t n_parts)
{
    const cn_score_args &a = p.args;
    const uint32_t each = (n + n_parts - 1) / n_parts;
    const size_t at = cn_sel_first(u, first, n, a.n_layers, a.pools.layout.n_kv_heads);
    share_part s;
    s.rows = cn_score_rows(p, at);
    s.out = a.out + at;
    s.start = min(part * each, n);
    s.end = min(s.start + each, n);
    return s;
}

__global__ static void __launch_bounds__(THREADS, BLOCKS)
    share_kernel(const __grid_constant__ cn_score_params p, uint32_t n_parts)
{
    __shared__ uint32_t heads[MAX_ROW / 2], digits[CN_COUNT_DIGITS];
    const cn_score_args &a = p.args;
    cn_overlap_next();
    cn_touch_params(p);
    const cn_sel_unit u = cn_score_unit_of(p, blockIdx.x / n_parts);
    cn_sel_stage stage;
    *reinterpret_cast<uint2 *>(&stage) = __ldg((const uint2 *)a.stage + u.seq);
    const share_part s =
        part_of(p, u, a.first[u.seq], a.n[u.seq], blockIdx.x % n_parts, n_parts);
    const bool ranks = cn_score_is_max(stage) && s.start < s.end;
    uint32_t *counts = p.counts ? p.counts + (size_t)u.index * CN_COUNTS : NULL;
    if (counts) digits[threadIdx.x] = 0; /* load_heads has a barrier */
    if (counts && ranks) cn_count_wait(counts + CN_COUNT_SUMMED, a.n[u.seq]);
    if (!counts) cn_wait_previous();
    if (ranks) {
        if (p.row == 2) score_part<1>(p, s, u.index, heads, counts ? digits : NULL);
        else score_part<2>(p, s, u.index, heads, counts ? digits : NULL);
        if (counts) cn_count_scores(counts, digits, s.end - s.start);
    }
    if (counts) cn_wait_previous(); /* every kernel must: see launch.cuh */
}

/* ---- on the host ---- */

cn_status cn_score_share(cn_stream *s, const cn_score_params &p)
{
    /* Parts for as many blocks as run at once; of many units, smaller ones for several rounds. */
    const uint32_t most = BLOCKS * s->cuda->device.n_sms;
    const uint32_t rounds = MANY * p.n_units <= most ? 1 : MANY;
    const uint32_t n_parts = rounds == 1 ? most / p.n_units
                                         : (uint32_t)cn_ceil_div(rounds * most, p.n_units);
    return cn_cuda_launch(s, "score: shares", share_kernel,
                          {dim3(p.n_units * n_parts), THREADS}, p, n_parts);
}
