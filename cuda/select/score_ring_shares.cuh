/* score_ring_shares.cuh - group rule max: scores from logits, when the sums of the units are known.
 *
 * Labels of one layer: each block of score_ring.cu does it. First it computes the logits of all its
 * parts. After each part it stores the sums of the part's weights in the slot of the part. Then it
 * goes through its parts again. It adds up the slots of the unit, and computes the shares of the
 * part. All blocks have about the same number of lots, so they wait for little more than the time
 * in which a sum reaches the other blocks. A slot is zero before the launch, and each of its words
 * has a mark afterwards. So sums need no fence. A block that waits loads nothing but sums, because
 * these would wait behind other loads.
 *
 * A block keeps the logits of its last lots in shared memory (cn_ring_kept): those of all four lots
 * of a warp at 8 x 32,768, and of four of eight at 4 x 131,072.
 *
 * A block waits for a limited time, because a kernel of another stream may keep other blocks from
 * starting. Then the part is late: the block stores what it has kept, and the next kernel
 * (score_share.cu) computes the shares. In other launches all parts are late. */
#pragma once

#include "cuda/select/score_feed.cuh"
#include "cuda/select/score_labels.cuh"

/* ---- sums with marks ---- */

#define CN_SUM_MARK (1ull << 63)

/* mark: CN_SUM_MARK, or 0 if no block waits for the sum. */
__device__ static inline void cn_marked_store(cn_marked_sum *to, const cn_exp_sum &sum,
                                              uint64_t mark)
{
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to->words),
                 "l"(sum.sum[0] | mark), "l"(sum.sum[1] | mark)
                 : "memory");
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to->words + 2),
                 "l"(sum.sum[2] | mark), "l"(sum.top | mark)
                 : "memory");
}

/* Adds a part's sum. Returns false if it has not been stored. */
__device__ static inline bool cn_marked_add(cn_exp_sum &sum, const cn_marked_sum *from)
{
    uint64_t w[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i += 2)
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(w[i]), "=l"(w[i + 1])
                     : "l"(from->words + i)
                     : "memory");
    const uint64_t rest = ~CN_SUM_MARK;
    sum = cn_exp_sum_add(sum, {{w[0] & rest, w[1] & rest, w[2] & rest}, (uint32_t)w[3]});
    return (w[0] & w[1] & w[2] & w[3] & CN_SUM_MARK) != 0;
}

/* Adds up the slots of a unit for one head. MARKED: returns false if not all have been stored. A
 * warp calls it; lane 0 gets the sum. */
template <bool MARKED>
__device__ static inline bool cn_marked_sum_unit(const cn_score_params &p,
                                                 const cn_score_unit &unit, uint32_t head,
                                                 cn_exp_sum &sum)
{
    const cn_marked_sum *slots = p.shares.sums + (size_t)unit.first_slot * p.group + head;
    bool stored = true;
    sum = {};
    for (uint32_t i = threadIdx.x % CN_WARP; i < unit.n_slots; i += CN_WARP)
        stored &= cn_marked_add(sum, slots + (size_t)i * p.group);
    if (MARKED && !__all_sync(0xffffffffu, stored)) return false;
    sum = cn_score_sum_lanes(sum, unit.n_slots);
    return true;
}

/* Fills heads[ROW], f16: the logarithm of the sum of each head over the unit with its sign changed,
 * NaN beyond the group. Returns false if a warp has waited for the slots in vain (cn_score_wait).
 * ROW 0: p.row, and all sums are known. All threads of the block call it. */
template <uint32_t ROW>
__device__ static inline bool cn_share_heads(const cn_score_params &p, const cn_score_unit &unit,
                                             uint32_t *heads, int64_t *patience)
{
    bool known = true;
    for (uint32_t h = threadIdx.x / CN_WARP; h < (ROW ? ROW : p.row); h += CN_FEED_WARPS) {
        cn_exp_sum sum = {};
        if (ROW && h < p.group)
            known = cn_score_wait(patience,
                                  [&] { return cn_marked_sum_unit<true>(p, unit, h, sum); });
        else if (h < p.group) cn_marked_sum_unit<false>(p, unit, h, sum);
        const uint16_t head = cn_f16_or_nan(h < p.group ? -cn_exp_sum_log2(sum) : CUDART_NAN_F);
        if (threadIdx.x % CN_WARP == 0) ((uint16_t *)heads)[h] = head;
    }
    return __syncthreads_and(known);
}

/* The larger share of the even heads and of the odd heads of a candidate. */
__device__ static inline uint32_t cn_share_of(uint2 logits, const uint32_t heads[2])
{
    return cn_f16x2_max(cn_f16x2_add(logits.x, heads[0]), cn_f16x2_add(logits.y, heads[1]));
}

/* Stores the score of candidate c of n, and counts its high byte. digits: or NULL. */
__device__ static inline void cn_share_store(uint16_t *out, uint32_t c, uint32_t n, uint32_t score,
                                             uint32_t *digits)
{
    if (c >= n) return;
    out[c] = (uint16_t)score;
    if (digits) atomicAdd(&digits[score >> 8], 1u);
}

/* Computes the scores of the n candidates from number `first` on, by THREADS threads. kept: their
 * logits in shared memory; NULL: they are in memory. heads: cn_share_heads. ROW: as there. AT_ONCE:
 * candidates that a thread loads before it uses the first. digits: as above. */
template <uint32_t ROW, uint32_t AT_ONCE, uint32_t THREADS>
__device__ static inline void cn_share_scores(const cn_score_params &p, size_t first, uint32_t n,
                                              const uint2 *kept, const uint32_t *heads,
                                              uint32_t *digits)
{
    const uint32_t n_words = (ROW ? ROW : p.row) / CN_LABEL_HEADS; /* of four heads */
    const uint2 *rows = (const uint2 *)cn_score_rows(p, first);
    uint16_t *out = p.args.out + first;
#pragma unroll 1
    for (uint32_t c = threadIdx.x % THREADS; c < n; c += AT_ONCE * THREADS) {
        uint32_t best[AT_ONCE]; /* of the even and of the odd heads */
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) best[i] = CN_NAN_F16X2;
#pragma unroll 1
        for (uint32_t at = 0; at < n_words; at++) {
            uint2 logits[AT_ONCE] = {};
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                if (c + i * THREADS < n)
                    logits[i] = kept ? kept[c + i * THREADS]
                                     : __ldcg(rows + (size_t)(c + i * THREADS) * n_words + at);
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                best[i] = cn_f16x2_max(best[i], cn_share_of(logits[i], heads + 2 * at));
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i += 2) {
            const uint32_t scores = cn_scores_of_shares(best[i], best[i + 1]);
            cn_share_store(out, c + i * THREADS, n, scores & 0xffff, digits);
            cn_share_store(out, c + (i + 1) * THREADS, n, scores >> 16, digits);
        }
    }
}
