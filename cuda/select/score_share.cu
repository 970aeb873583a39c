/* score_share.cu - group rule max of `score`: the largest share of any head of the group.
 * In: f16 logits [n, row] of parts, and the sums of weights of each part (score_ring.cu). Out: u16
 * scores. Where the blocks of `score` compute the shares themselves (score_ring_shares.cuh) this
 * kernel does it for those that are late, and clears the sums for the next launch.
 *
 * A block has a piece of a part. The last block empties the list.
 *
 * Bytes per candidate and kv head, from the L2 cache if they fit: read 2 a head, written 2.
 * Block 256, 64 registers. */
#include "cuda/select/score_ring_shares.cuh"

enum {
    THREADS = CN_FEED_THREADS,
    BLOCKS = 4, /* of a multiprocessor */
    PIECES = 2, /* of a part: one each for as many blocks as run at once */
    MAX_ROW = 64,
    AT_ONCE = 8 /* candidates that a thread loads before it uses the first */
};

/* Stores the scores of candidates c, c + THREADS, ... best: of the even and of the odd heads.
 * digits: counts the high bytes; NULL: they are not counted. */
__device__ static inline void store_scores(uint16_t *out, uint32_t c, uint32_t end,
                                           const uint32_t best[AT_ONCE], uint32_t *digits)
{
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        if (c + i * THREADS >= end) continue;
        const uint32_t score = cn_scores_of_shares(best[i], best[i]) & 0xffff;
        out[c + i * THREADS] = (uint16_t)score;
        if (digits) atomicAdd(&digits[score >> 8], 1u);
    }
}

/* Computes the scores of candidates [start, end) of a part. heads: cn_share_heads. */
__device__ static inline void score_piece(const cn_score_params &p, const cn_score_late &part,
                                          uint32_t start, uint32_t end, const uint32_t *heads,
                                          uint32_t *digits)
{
    const uint32_t n_words = p.row / CN_LABEL_HEADS; /* of four heads */
    const uint2 *rows = (const uint2 *)cn_score_rows(p, part.first);
#pragma unroll 1
    for (uint32_t c = start + threadIdx.x; c < end; c += AT_ONCE * THREADS) {
        uint32_t best[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CN_NAN_F16X2;
#pragma unroll 1
        for (uint32_t at = 0; at < n_words; at++) {
            uint2 logits[AT_ONCE] = {};
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                if (c + i * THREADS < end)
                    logits[i] = rows[(size_t)(c + i * THREADS) * n_words + at];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                best[i] = cn_f16x2_max(best[i], cn_share_of(logits[i], heads + 2 * at));
        }
        store_scores(p.args.out + part.first, c, end, best, digits);
    }
}

/* Empties the list, and clears the sums for which blocks wait. If parts were late, the last block
 * does it, because others may still read them. n_slots: of sums that may have been used. */
__device__ static inline void clear(const cn_score_params &p, uint32_t n_slots, bool any_late)
{
    __shared__ bool is_last;
    const uint32_t first = any_late ? 0 : blockIdx.x * THREADS;
    if (any_late) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            is_last = atomicInc(p.shares.n_late + 1, gridDim.x - 1) == gridDim.x - 1;
        __syncthreads();
        if (!is_last) return;
        if (threadIdx.x == 0) *p.shares.n_late = 0;
    }
    if (!p.shares.in_blocks) return;
    const uint32_t n = n_slots * p.group * 4, step = any_late ? THREADS : gridDim.x * THREADS;
    for (uint32_t i = first + threadIdx.x; i < n; i += step) p.shares.sums->words[i] = 0;
}

__global__ static void __launch_bounds__(THREADS, BLOCKS)
    share_kernel(const __grid_constant__ cn_score_params p, uint32_t n_slots)
{
    __shared__ uint32_t heads[MAX_ROW / 2], digits[CN_COUNT_DIGITS];
    cn_overlap_next();
    cn_wait_previous();
    const uint32_t n_late = *p.shares.n_late;
    digits[threadIdx.x] = 0;
    for (uint32_t i = blockIdx.x; i < n_late * PIECES; i += gridDim.x) {
        const cn_score_late part = p.shares.late[i / PIECES];
        const uint32_t each = (part.n + PIECES - 1) / PIECES;
        const uint32_t start = i % PIECES * each, end = min(start + each, part.n);
        cn_share_heads<0>(p, part.slots, heads, NULL); /* has a barrier */
        score_piece(p, part, start, end, heads, p.counts ? digits : NULL);
        if (p.counts)
            cn_count_scores(p.counts + (size_t)part.unit * CN_COUNTS, digits,
                            start < end ? end - start : 0);
        else
            __syncthreads(); /* heads have been read */
    }
    clear(p, n_slots, n_late > 0);
}

cn_status cn_score_share(cn_stream *s, const cn_score_params &p)
{
    const uint32_t n_sms = s->cuda->device.n_sms;
    const uint32_t n_blocks = p.shares.in_blocks ? n_sms : BLOCKS * n_sms;
    return cn_cuda_launch(s, "score: shares", share_kernel, {dim3(n_blocks), THREADS}, p,
                          p.n_units + CN_SCORE_BLOCKS * n_sms);
}
