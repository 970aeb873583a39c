/* score_share.cu - group rule max of `score`: the largest share of any head of the group.
 * In: logits, or products of labels, and the largest logit of each part (score.cu). Out: u16
 * scores.
 *
 * Two kernels. The first sums the weights of each part; the second finds the largest share. Sums of
 * weights are integers, so results do not depend on the division. Both kernels divide the step as
 * score.cu does.
 *
 * Grid: two blocks per multiprocessor, 512 threads. Bytes per candidate and kv head, from the L2
 * cache if they fit: read twice 2 bytes a head and 2 (labels), or 4 a head; written: 2. Some
 * 46 instructions a head for a weight. */
#include <math_constants.h>

#include "cuda/select/score_share.h"

enum {
    THREADS = 512,
    WARPS = THREADS / CN_WARP,
    MAX_GROUP = 64,
    QUAD = 4,    /* heads of a pass */
    AT_ONCE = 2 /* candidates that a thread loads before it uses the first */
};

typedef struct share_head {
    float factor, top, log_sum;
} share_head;

typedef struct share_shared {
    cn_score_parts parts;
    share_head heads[MAX_GROUP];
    uint64_t sums[MAX_GROUP][WARPS];
} share_shared;

/* What is stored of a part. */
typedef struct share_part {
    const float *logits;
    const uint32_t *pairs; /* NULL: logits are stored */
    const uint16_t *scales;
    uint32_t n;
} share_part;

__device__ static inline share_part stored_of(const cn_score_params &p, const cn_score_part &x)
{
    share_part s = {};
    s.n = x.n;
    s.logits = cn_score_logits(p, x);
    if (p.products && x.stage.key == CN_KEY_LABELS) {
        s.pairs = cn_score_pairs(p, x);
        s.scales = cn_score_scales(p, x);
    }
    return s;
}

/* What is stored of AT_ONCE candidates from c on, THREADS apart, for the heads [first, first +
 * QUAD). Candidates from `end` on repeat the last one, and heads from the group's end on others. */
typedef struct share_raw {
    uint32_t words[AT_ONCE][QUAD]; /* logits; or QUAD / 2 pairs and a scale */
} share_raw;

__device__ static inline share_raw load_raw(const share_part &s, uint32_t first, uint32_t c,
                                            uint32_t end, uint32_t group)
{
    share_raw raw;
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        const uint32_t at = min(c + i * THREADS, end - 1);
        if (s.pairs) {
#pragma unroll
            for (uint32_t k = 0; k < QUAD / 2; k++)
                raw.words[i][k] = s.pairs[(size_t)min(first / 2 + k, (group - 1) / 2) * s.n + at];
            raw.words[i][QUAD / 2] = s.scales[at];
            continue;
        }
#pragma unroll
        for (uint32_t h = 0; h < QUAD; h++)
            raw.words[i][h] =
                __float_as_uint(s.logits[(size_t)min(first + h, group - 1) * s.n + at]);
    }
    return raw;
}

__device__ static inline void logits_of(float out[AT_ONCE][QUAD], const share_raw &raw,
                                        const share_part &s, const share_head heads[QUAD])
{
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        /* The scale of a candidate below the base is NaN. */
        const float x = __half2float(__ushort_as_half((unsigned short)raw.words[i][QUAD / 2]));
        const float bias = -CN_SCORE_BIAS(1 << 15) * x;
#pragma unroll
        for (uint32_t h = 0; h < QUAD; h++) {
            const uint32_t both = raw.words[i][h / 2];
            out[i][h] = s.pairs ? cn_score_logit(h % 2 ? both >> 16 : both & 0xffffu, x, bias,
                                                 heads[h].factor)
                                : __uint_as_float(raw.words[i][h]);
        }
    }
}

/* The heads [first, first + QUAD); from the group's end on the last one. */
__device__ static inline void load_quad(share_head out[QUAD], const share_shared *shared,
                                        uint32_t first, uint32_t group)
{
#pragma unroll
    for (uint32_t h = 0; h < QUAD; h++) out[h] = shared->heads[min(first + h, group - 1)];
}

__device__ static inline uint64_t warp_sum64(uint64_t v)
{
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        v += __shfl_xor_sync(0xffffffffu, (unsigned long long)v, offset);
    return v;
}

/* Finds the largest logit of each head of the unit, and with SUM the logarithm of the sum. */
template <bool SUM>
__device__ static inline void load_heads(const cn_score_params &p, const cn_score_part &x,
                                         share_shared *shared)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    __syncthreads();
    for (uint32_t h = warp; h < p.group; h += WARPS) {
        float top = -CUDART_INF_F;
        uint64_t sum = 0;
        for (uint32_t i = lane; i < x.n_slots; i += CN_WARP) {
            const cn_score_slot *slot = p.slots + (size_t)(x.first_slot + i) * p.group + h;
            top = fmaxf(top, slot->max);
            if (SUM) sum += slot->sum;
        }
#pragma unroll
        for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
        if (SUM) sum = warp_sum64(sum);
        if (lane > 0) continue;
        shared->heads[h].factor = p.slots[(size_t)x.slot * p.group + h].factor;
        shared->heads[h].top = top;
        shared->heads[h].log_sum = SUM ? cn_log_weights(sum) : 0;
    }
    __syncthreads();
}

/* The sums of the weights of each part, for each query head. */
__global__ static void __launch_bounds__(THREADS, CN_SCORE_BLOCKS)
    sum_kernel(const __grid_constant__ cn_score_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ share_shared shared;
    cn_overlap_next();
    if (!p.early) cn_wait_previous();
    cn_score_plan plan = cn_score_divide<THREADS>(p, (cn_score_seq *)dynamic);
    cn_score_find(plan, p, 0, &shared.parts);
    cn_wait_previous();
    __syncthreads();
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    for (uint32_t part = 0; shared.parts.part[part % 2].n_lots > 0; part++, __syncthreads()) {
        const cn_score_part &x = shared.parts.part[part % 2];
        cn_score_find(plan, p, part + 1, &shared.parts);
        if (!cn_score_is_max(x)) continue;
        const cn_score_span span = cn_score_span_of(x);
        const share_part s = stored_of(p, x);
        load_heads<false>(p, x, &shared);
        for (uint32_t first = 0; first < p.group; first += QUAD) {
            share_head heads[QUAD];
            uint64_t sum[QUAD] = {};
            load_quad(heads, &shared, first, p.group);
            share_raw next = load_raw(s, first, span.first + threadIdx.x, span.end, p.group);
            for (uint32_t c = span.first + threadIdx.x; c < span.end; c += AT_ONCE * THREADS) {
                float logit[AT_ONCE][QUAD];
                const share_raw raw = next;
                next = load_raw(s, first, c + AT_ONCE * THREADS, span.end, p.group);
                logits_of(logit, raw, s, heads);
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                    for (uint32_t h = 0; h < QUAD; h++) {
                        const float x = c + i * THREADS < span.end ? logit[i][h] - heads[h].top
                                                                   : -CUDART_INF_F;
                        sum[h] += cn_sample_weight(x);
                    }
            }
#pragma unroll
            for (uint32_t h = 0; h < QUAD; h++) {
                sum[h] = warp_sum64(sum[h]);
                if (lane == 0 && first + h < p.group) shared.sums[first + h][warp] = sum[h];
            }
        }
        __syncthreads();
        for (uint32_t h = threadIdx.x; h < p.group; h += THREADS) {
            uint64_t sum = 0;
            for (uint32_t w = 0; w < WARPS; w++) sum += shared.sums[h][w];
            p.slots[(size_t)x.slot * p.group + h].sum = sum;
        }
    }
}

/* The largest share of the group. */
__global__ static void __launch_bounds__(THREADS, CN_SCORE_BLOCKS)
    share_kernel(const __grid_constant__ cn_score_params p)
{
    extern __shared__ uint4 dynamic[];
    __shared__ share_shared shared;
    cn_overlap_next();
    if (!p.early) cn_wait_previous();
    cn_score_plan plan = cn_score_divide<THREADS>(p, (cn_score_seq *)dynamic);
    cn_score_find(plan, p, 0, &shared.parts);
    cn_wait_previous();
    __syncthreads();
    for (uint32_t part = 0; shared.parts.part[part % 2].n_lots > 0; part++, __syncthreads()) {
        const cn_score_part &x = shared.parts.part[part % 2];
        cn_score_find(plan, p, part + 1, &shared.parts);
        if (!cn_score_is_max(x)) continue;
        const cn_score_span span = cn_score_span_of(x);
        const share_part s = stored_of(p, x);
        uint16_t *out = p.args.out + x.first;
        load_heads<true>(p, x, &shared);
        for (uint32_t c = span.first + threadIdx.x; c < span.end; c += AT_ONCE * THREADS) {
            float best[AT_ONCE];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CUDART_NAN_F;
            for (uint32_t first = 0; first < p.group; first += QUAD) {
                float logit[AT_ONCE][QUAD];
                share_head heads[QUAD];
                load_quad(heads, &shared, first, p.group);
                logits_of(logit, load_raw(s, first, c, span.end, p.group), s, heads);
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE; i++)
#pragma unroll
                    for (uint32_t h = 0; h < QUAD; h++) {
                        const float share = (logit[i][h] - heads[h].top) - heads[h].log_sum;
                        if (first + h < p.group) best[i] = fmaxf(best[i], share); /* not NaN */
                    }
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i += 2) {
                const uint32_t bits = cn_score_bits2(best[i], best[i + 1]);
                if (c + i * THREADS < span.end) out[c + i * THREADS] = (uint16_t)bits;
                if (c + (i + 1) * THREADS < span.end)
                    out[c + (i + 1) * THREADS] = (uint16_t)(bits >> 16);
            }
        }
    }
}

cn_status cn_score_share(cn_stream *s, const cn_score_params &p)
{
    cn_launch how = {dim3(CN_SCORE_BLOCKS * s->cuda->device.n_sms), THREADS};
    how.shared_bytes = (p.args.n_seqs + (size_t)1) * sizeof(cn_score_seq);
    CN_TRY(cn_cuda_launch(s, "score: sums", sum_kernel, how, p));
    return cn_cuda_launch(s, "score: shares", share_kernel, how, p);
}
