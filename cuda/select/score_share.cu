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
    AT_ONCE = 8 /* cn_share_scores */
};

/* Empties the list, and clears the sums for which blocks wait. If parts were late, the last block
 * does it, because others may still read them. n_slots: of sums that may have been used. */
__device__ static inline void clear_late(const cn_score_params &p, uint32_t n_slots, bool any_late)
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
        const uint32_t n = start < end ? end - start : 0;
        cn_share_scores<0, AT_ONCE, THREADS>(p, part.first + start, n, NULL, heads,
                                             p.counts ? digits : NULL);
        if (p.counts) cn_count_scores(p.counts + (size_t)part.unit * CN_COUNTS, digits, n);
        else
            __syncthreads(); /* heads have been read */
    }
    clear_late(p, n_slots, n_late > 0);
}

cn_status cn_score_share(cn_stream *s, const cn_score_params &p)
{
    const uint32_t n_sms = s->cuda->device.n_sms;
    const uint32_t n_clear = p.few ? (n_sms + 15) / 16 : n_sms; /* leaves room to `select` */
    const uint32_t n_blocks = p.shares.in_blocks ? n_clear : BLOCKS * n_sms;
    return cn_cuda_launch(s, "score: shares", share_kernel, {dim3(n_blocks), THREADS}, p,
                          p.n_units + CN_SCORE_BLOCKS * n_sms);
}
