/* score_share.cu - group rule max of `score`: the largest share of any head of the group.
 * In: logits, or products of labels, and the sums of weights of each part (score.cu). Out: u16
 * scores.
 *
 * A unit has as many blocks as fill the GPU, each with an equal part of its candidates. A block
 * first adds up the sums of the unit's parts, while its first loads are on their way.
 *
 * If all keys are K rows and score_ring_sm90.cu has computed them, another kernel runs. Their
 * logits can exceed the L2 cache, so the time to read them counts. Its blocks divide the step's
 * lots as in score.cuh.
 *
 * `score` waits for all kernels that write the arrays of the step before it lets the next kernel
 * start. So these kernels read the arrays before they wait.
 *
 * Block 256. Bytes per candidate and kv head, from the L2 cache if they fit: read 2 bytes a head
 * and 2 (labels), or 4 a head; written: 2. */
#include <math_constants.h>

#include "cuda/select/score_share.h"

enum {
    THREADS = 256,
    WARPS = THREADS / CN_WARP,
    BLOCKS = 4, /* of a multiprocessor */
    MAX_GROUP = 64,
    QUAD = 4,   /* heads of a pass */
    AT_ONCE = 4 /* candidates that a thread loads before it uses the first */
};

typedef struct share_head {
    float factor, log_sum;
} share_head;

/* What is stored of a unit, and the candidates [start, end) of a block. */
typedef struct share_part {
    const float *logits;
    const uint32_t *pairs; /* NULL: logits are stored */
    const uint16_t *scales;
    uint16_t *out;
    uint32_t n, start, end;
} share_part;

/* What is stored of AT_ONCE candidates from c on, THREADS apart, for the heads [first, first +
 * QUAD). Candidates from `end` on repeat the last one, and heads from the group's end on others,
 * which add_quad leaves out. */
template <bool PRODUCTS> struct share_raw {
    uint32_t words[PRODUCTS ? QUAD / 2 : QUAD][AT_ONCE]; /* pairs of products, or logits */
    uint16_t scale[AT_ONCE];                             /* products only */
};

template <bool PRODUCTS>
__device__ static inline share_raw<PRODUCTS> load_raw(const share_part &s, uint32_t first,
                                                      uint32_t c, uint32_t group)
{
    constexpr uint32_t HEADS = PRODUCTS ? 2 : 1, ROWS = QUAD / HEADS; /* heads of a word */
    const uint32_t *rows = PRODUCTS ? s.pairs : (const uint32_t *)s.logits;
    share_raw<PRODUCTS> raw;
    uint32_t at[AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) at[i] = min(c + i * THREADS, s.end - 1);
#pragma unroll
    for (uint32_t k = 0; k < ROWS; k++) {
        const uint32_t *row = rows + (size_t)min(first / HEADS + k, (group - 1) / HEADS) * s.n;
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) raw.words[k][i] = row[at[i]];
    }
    if constexpr (PRODUCTS)
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) raw.scale[i] = s.scales[at[i]];
    return raw;
}

/* Loads the heads [first, first + QUAD). Those from the group's end on have a share of 0. */
__device__ static inline void quad_of(share_head quad[QUAD], const share_head *heads,
                                      uint32_t first, uint32_t group)
{
#pragma unroll
    for (uint32_t h = 0; h < QUAD; h++) {
        quad[h] = heads[min(first + h, group - 1)];
        if (first + h >= group) quad[h].log_sum = CUDART_INF_F;
    }
}

/* Raises best[] to the shares of a quad of heads. */
template <bool PRODUCTS>
__device__ static inline void add_quad(float best[AT_ONCE], const share_raw<PRODUCTS> &raw,
                                       const share_head quad[QUAD])
{
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        float scale = 0, bias = 0;
        if constexpr (PRODUCTS) { /* the scale of a candidate below the base is NaN */
            scale = __half2float(__ushort_as_half(raw.scale[i]));
            bias = -CN_SCORE_BIAS(1 << 15) * scale;
        }
#pragma unroll
        for (uint32_t h = 0; h < QUAD; h++) {
            float logit;
            if constexpr (PRODUCTS) {
                const uint32_t half = h % 2 ? 0x7432 : 0x7410; /* 0x4b00 above half h % 2 */
                logit = cn_score_logit(
                    __uint_as_float(__byte_perm(raw.words[h / 2][i], 0x4b000000u, half)), scale,
                    bias, quad[h].factor);
            } else {
                logit = __uint_as_float(raw.words[h][i]);
            }
            best[i] = fmaxf(best[i], logit - quad[h].log_sum); /* ignores NaN */
        }
    }
}

/* Finds the logarithm of the sum of each head of the unit. */
__device__ static inline void load_heads(const cn_score_params &p, uint32_t unit, share_head *heads)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const cn_score_unit at = p.units[unit];
    for (uint32_t h = warp; h < p.group; h += WARPS) {
        const cn_score_slot *slots = p.slots + (size_t)at.first_slot * p.group + h;
        cn_exp_sum sum = {};
        for (uint32_t i = lane; i < at.n_slots; i += CN_WARP)
            sum = cn_exp_sum_add(sum, slots[(size_t)i * p.group].sum);
        sum = cn_exp_sum_at(sum, __reduce_max_sync(0xffffffffu, sum.top));
        for (uint32_t offset = CN_WARP / 2; offset > 0; offset /= 2) {
            if (offset >= at.n_slots) continue; /* all of them are 0 */
#pragma unroll
            for (uint32_t i = 0; i < 3; i++)
                sum.sum[i] +=
                    __shfl_xor_sync(0xffffffffu, (unsigned long long)sum.sum[i], (int)offset);
        }
        if (lane == 0) heads[h] = {slots->factor, cn_exp_sum_log(sum)};
    }
    __syncthreads();
}

/* Returns the part of block `part` of n_parts. */
__device__ static inline share_part part_of(const cn_score_params &p, const cn_sel_stage &stage,
                                            size_t first, uint32_t n, uint32_t part,
                                            uint32_t n_parts)
{
    const uint32_t each = (n + n_parts - 1) / n_parts;
    share_part s = {};
    s.n = n;
    s.logits = cn_score_logits(p, first);
    if (p.products && stage.key == CN_KEY_LABELS) {
        s.pairs = cn_score_pairs(p, first);
        s.scales = cn_score_scales(p, first, n);
    }
    s.out = p.args.out + first;
    s.start = min(part * each, n);
    s.end = min(s.start + each, n);
    return s;
}

/* Stores the scores of candidates c, c + THREADS, ... */
__device__ static inline void store_scores(const share_part &s, uint32_t c,
                                           const float best[AT_ONCE])
{
    uint16_t *out = s.out + c;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i += 2) {
        const uint32_t bits = cn_score_bits2(best[i], best[i + 1]);
        if (c + i * THREADS < s.end) out[i * THREADS] = (uint16_t)bits;
        if (c + (i + 1) * THREADS < s.end) out[(i + 1) * THREADS] = (uint16_t)(bits >> 16);
    }
}

/* As load_raw, of a group of one quad. row: of the candidates from c on. Candidates from `end` on
 * are not loaded. What is loaded leaves the L2 cache first: it is not read again. */
template <bool PRODUCTS, uint32_t ROWS>
__device__ static inline void load_one_quad(share_raw<PRODUCTS> &raw,
                                            const uint32_t *const row[ROWS],
                                            const uint16_t *scales, uint32_t c, uint32_t end)
{
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        if (c + i * THREADS >= end) continue;
#pragma unroll
        for (uint32_t k = 0; k < ROWS; k++) raw.words[k][i] = __ldcs(row[k] + i * THREADS);
        if constexpr (PRODUCTS) raw.scale[i] = __ldcs(scales + i * THREADS);
    }
}

/* Computes the scores of a block's part, in a group of one quad: addresses and heads stay in
 * registers. */
template <bool PRODUCTS>
__device__ static inline void score_one_quad(const cn_score_params &p, const share_part &s,
                                             uint32_t unit, share_head *heads)
{
    constexpr uint32_t HEADS = PRODUCTS ? 2 : 1, ROWS = QUAD / HEADS; /* heads of a word */
    uint32_t c = s.start + threadIdx.x;
    const uint32_t *row[ROWS];
    const uint16_t *scales = s.scales + c;
#pragma unroll
    for (uint32_t k = 0; k < ROWS; k++)
        row[k] = (PRODUCTS ? s.pairs : (const uint32_t *)s.logits) +
                 (size_t)min(k, (p.group - 1) / HEADS) * s.n + c;
    share_raw<PRODUCTS> raw = {};
    load_one_quad<PRODUCTS, ROWS>(raw, row, scales, c, s.end);
    load_heads(p, unit, heads);
    share_head quad[QUAD];
    quad_of(quad, heads, 0, p.group);
    for (; c < s.end; c += AT_ONCE * THREADS) {
        float best[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CUDART_NAN_F;
        add_quad<PRODUCTS>(best, raw, quad);
#pragma unroll
        for (uint32_t k = 0; k < ROWS; k++) row[k] += AT_ONCE * THREADS;
        scales += AT_ONCE * THREADS;
        load_one_quad<PRODUCTS, ROWS>(raw, row, scales, c + AT_ONCE * THREADS, s.end);
        store_scores(s, c, best);
    }
}

/* Computes the scores of a block's part. */
template <bool PRODUCTS>
__device__ static inline void score_part(const cn_score_params &p, const share_part &s,
                                         uint32_t unit, share_head *heads)
{
    share_raw<PRODUCTS> next = load_raw<PRODUCTS>(s, 0, s.start + threadIdx.x, p.group);
    load_heads(p, unit, heads);
    for (uint32_t c = s.start + threadIdx.x; c < s.end; c += AT_ONCE * THREADS) {
        float best[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CUDART_NAN_F;
        for (uint32_t quad = 0; quad < p.group; quad += QUAD) {
            const share_raw<PRODUCTS> raw = next;
            const bool last = quad + QUAD >= p.group;
            next = load_raw<PRODUCTS>(s, last ? 0 : quad + QUAD,
                                      last ? c + AT_ONCE * THREADS : c, p.group);
            share_head of_quad[QUAD];
            quad_of(of_quad, heads, quad, p.group);
            add_quad<PRODUCTS>(best, raw, of_quad);
        }
        store_scores(s, c, best);
    }
}

__global__ static void __launch_bounds__(THREADS, BLOCKS)
    share_kernel(const __grid_constant__ cn_score_params p, uint32_t n_parts)
{
    __shared__ share_head heads[MAX_GROUP];
    const cn_score_args &a = p.args;
    const uint32_t hk = a.pools.layout.n_kv_heads;
    cn_overlap_next();
    cn_touch_params(p);
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x / n_parts, a.n_layers, hk);
    cn_sel_stage stage;
    *reinterpret_cast<uint2 *>(&stage) = __ldg((const uint2 *)a.stage + u.seq);
    const uint32_t n = a.n[u.seq];
    const size_t first = cn_sel_first(u, a.first[u.seq], n, a.n_layers, hk);
    const share_part s = part_of(p, stage, first, n, blockIdx.x % n_parts, n_parts);
    cn_wait_previous();
    if (!cn_score_is_max(stage) || s.start == s.end) return;
    if (s.pairs && p.group <= QUAD) score_one_quad<true>(p, s, u.index, heads);
    else if (s.pairs) score_part<true>(p, s, u.index, heads);
    else if (p.group <= QUAD) score_one_quad<false>(p, s, u.index, heads);
    else score_part<false>(p, s, u.index, heads);
}

/* ---- K rows: logits are [n, group] ---- */

/* Logits of AT_ONCE candidates, as share_raw. */
typedef struct row_logits {
    float4 quad[AT_ONCE];
} row_logits;

__device__ static inline row_logits load_logits(const share_part &s, uint32_t first, uint32_t c,
                                                uint32_t group)
{
    row_logits raw;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        const float *from = s.logits + (size_t)min(c + i * THREADS, s.end - 1) * group;
        if (group % QUAD == 0)
            raw.quad[i] = __ldcs((const float4 *)(from + first));
        else
            raw.quad[i] = make_float4(from[first], from[min(first + 1, group - 1)],
                                      from[min(first + 2, group - 1)],
                                      from[min(first + 3, group - 1)]);
    }
    return raw;
}

/* Computes the scores of candidates [start, end). */
__device__ static inline void share_rows(const cn_score_params &p, const share_part &s,
                                         uint32_t unit, share_head *heads)
{
    row_logits next = load_logits(s, 0, s.start + threadIdx.x, p.group);
    load_heads(p, unit, heads);
    for (uint32_t c = s.start + threadIdx.x; c < s.end; c += AT_ONCE * THREADS) {
        float best[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CUDART_NAN_F;
        for (uint32_t quad = 0; quad < p.group; quad += QUAD) {
            const row_logits raw = next;
            const bool last = quad + QUAD >= p.group;
            float log_sum[QUAD];
            next = load_logits(s, last ? 0 : quad + QUAD, last ? c + AT_ONCE * THREADS : c,
                               p.group);
#pragma unroll
            for (uint32_t h = 0; h < QUAD; h++)
                log_sum[h] = heads[min(quad + h, p.group - 1)].log_sum;
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) { /* fmaxf ignores NaN */
                best[i] = fmaxf(best[i], fmaxf(raw.quad[i].x - log_sum[0],
                                               raw.quad[i].y - log_sum[1]));
                best[i] = fmaxf(best[i], fmaxf(raw.quad[i].z - log_sum[2],
                                               raw.quad[i].w - log_sum[3]));
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (c + i * THREADS < s.end) s.out[c + i * THREADS] = cn_score_bits(best[i]);
    }
}

__global__ static void __launch_bounds__(THREADS, BLOCKS)
    share_rows_kernel(const __grid_constant__ cn_score_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ cn_score_parts parts;
    __shared__ share_head heads[MAX_GROUP];
    cn_overlap_next();
    const auto takes = [](const cn_sel_stage &stage) {
        return cn_score_is_rows(stage) && stage.group == CN_GROUP_MAX;
    };
    cn_score_plan plan = cn_score_divide<THREADS>(p, (cn_score_seq *)dynamic, takes);
    cn_score_find(plan, p, 0, &parts);
    cn_wait_previous();
    __syncthreads();
    for (uint32_t i = 0; parts.part[i % 2].n_lots > 0; i++) {
        const cn_score_part &x = parts.part[i % 2];
        share_part s = {};
        s.logits = cn_score_logits(p, x.first);
        s.out = p.args.out + x.first;
        s.start = max(x.lot << x.lot_log2, x.from) - x.from;
        s.end = min((x.lot + x.n_lots) << x.lot_log2, x.to) - x.from;
        cn_score_find(plan, p, i + 1, &parts);
        share_rows(p, s, x.at.index, heads);
        __syncthreads();
    }
}

/* ---- on the host ---- */

cn_status cn_score_share(cn_stream *s, const cn_score_params &p)
{
    const uint32_t n_sms = s->cuda->device.n_sms;
    if (p.by_row)
        return cn_cuda_launch(s, "score: shares of rows", share_rows_kernel,
                              {dim3(BLOCKS * n_sms), THREADS, cn_score_seqs_bytes(&p.args)}, p);
    const uint32_t n_parts = (uint32_t)cn_ceil_div(BLOCKS * n_sms, p.n_units);
    return cn_cuda_launch(s, "score: shares", share_kernel, {dim3(p.n_units * n_parts), THREADS}, p,
                          n_parts);
}
