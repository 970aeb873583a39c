/* score_ring_shares.cuh - labels of one layer under rule max: each block of score_ring.cu
 * turns its own logits into scores, when the sums of their units are known.
 *
 * First a block computes the logits of all its parts. Behind each part it stores the sums of the
 * part's weights in the slot of the part. Then it goes through its parts again. It adds up the
 * slots of the unit, and computes the shares of the part. All blocks have about the same number of
 * lots, so they wait for little more than the time in which a sum reaches the other blocks. A slot
 * is zero before the launch, and each of its words has a mark afterwards. So sums need no fence.
 * Logits need none either, because only the thread that stored them loads them.
 *
 * Few logits go through memory. Those of the last lots of a ring, whose stages are not filled
 * again, take the place of the labels. Those of up to two lots before are kept where shared memory
 * is left. Together these are all four lots of a warp at 8 x 32,768, and four of eight at
 * 4 x 131,072. A block that waits loads nothing but sums, because these would wait behind other
 * loads.
 *
 * A block waits for a limited time, because a kernel of another stream may keep other blocks from
 * starting. Then the part is late: the block copies the logits that it has kept to memory, and
 * the next kernel (score_share.cu) computes the shares. In other launches all parts are late. */
#ifndef CN_CUDA_SCORE_RING_SHARES_CUH
#define CN_CUDA_SCORE_RING_SHARES_CUH

#include "cuda/select/score_ring_labels.cuh"

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

enum {
    CN_SHARE_EACH = CN_FEED_LABELS / CN_WARP, /* candidates of a lane, of a lot */
    CN_SHARE_AHEAD = 2 /* lots that a warp loads before it uses the first */
};

/* How many lots of a part a warp has. Those after the first n_stored are kept. */
typedef struct cn_share_lots {
    uint32_t n, n_stored;
} cn_share_lots;

/* n_more: cn_ring_memory.n_more. is_last: it is the last part of the block; else nothing of it is
 * kept. */
template <typename Feed>
__device__ static inline cn_share_lots cn_share_lots_of(const Feed &f, const cn_score_part &x,
                                                        uint32_t n_more, bool is_last)
{
    const uint32_t warp = threadIdx.x / CN_WARP;
    const bool works = warp < f.n_workers && warp < x.n_lots;
    const uint32_t n = works ? (x.n_lots - warp + f.n_workers - 1) / f.n_workers : 0;
    return {n, n - (is_last ? min(n, f.n_stages + n_more) : 0)};
}

/* Returns where cn_ring_kept has put the logits of lot k. */
template <int N_WORDS, typename Feed>
__device__ static inline const unsigned char *
cn_share_kept(const cn_ring_memory &m, const Feed &f, const cn_share_lots &lots, uint32_t k)
{
    const uint32_t back = lots.n - k; /* the stage that is read next follows the last lot */
    const uint32_t place = threadIdx.x % CN_WARP * N_WORDS * sizeof(uint32_t);
    if (back > f.n_stages) return cn_ring_more<N_WORDS>(m, back - f.n_stages - 1) + place;
    const uint32_t stage = f.get >= back ? f.get - back : f.get + f.n_stages - back;
    return f.stages + stage * f.stage_bytes + place;
}

/* Returns the logits of candidate i of this lane, of lot k. */
template <int N_WORDS, typename Feed>
__device__ static inline uint2 cn_share_logits(const cn_ring_memory &m, const Feed &f,
                                               const cn_share_lots &lots, uint32_t k,
                                               const cn_ring_labels &lot, uint32_t i)
{
    enum { STEP = CN_WARP * N_WORDS * (int)sizeof(uint32_t) };
    if (k < lots.n_stored) return __ldcg((const uint2 *)lot.row + i * CN_WARP);
    return *(const uint2 *)(cn_share_kept<N_WORDS>(m, f, lots, k) + i * STEP);
}

/* Loads the lane's logits of a lot from memory, if it is full. */
__device__ static inline void cn_share_load(uint2 logits[CN_SHARE_EACH], const cn_score_part &x,
                                            const cn_ring_labels &lot)
{
    if (!cn_ring_is_full(x, lot)) return;
#pragma unroll
    for (uint32_t i = 0; i < CN_SHARE_EACH; i++)
        logits[i] = __ldcg((const uint2 *)lot.row + i * CN_WARP);
}

/* Stores the lane's scores of a full lot, and counts their high bytes. */
__device__ static inline void cn_share_full(const cn_ring_labels &lot,
                                             const uint2 logits[CN_SHARE_EACH],
                                             const uint32_t heads[2], uint32_t *digits)
{
#pragma unroll
    for (uint32_t i = 0; i < CN_SHARE_EACH; i += 2) {
        const uint32_t scores = cn_scores_of_shares(cn_share_of(logits[i], heads),
                                                    cn_share_of(logits[i + 1], heads));
        lot.score[i * CN_WARP] = (uint16_t)scores;
        lot.score[(i + 1) * CN_WARP] = (uint16_t)(scores >> 16);
        atomicAdd(&digits[scores >> 8 & 0xff], 1u);
        atomicAdd(&digits[scores >> 24], 1u);
    }
}

/* The same for any lot k. */
template <int N_WORDS, typename Feed>
__device__ static inline void cn_share_any(const cn_score_part &x, const cn_ring_memory &m,
                                           const Feed &f, const cn_share_lots &lots, uint32_t k,
                                           const cn_ring_labels &lot, const uint32_t heads[2])
{
#pragma unroll 1
    for (uint32_t i = 0; i < CN_SHARE_EACH; i++) {
        if (!cn_ring_has_label(x, lot, i)) continue;
        const uint32_t best = cn_share_of(cn_share_logits<N_WORDS>(m, f, lots, k, lot, i), heads);
        const uint32_t score = cn_scores_of_shares(best, best) & 0xffff;
        lot.score[i * CN_WARP] = (uint16_t)score;
        atomicAdd(&m.fixed->digits[score >> 8], 1u);
    }
}

/* Copies the logits that are kept to memory. lot: the first that is kept. */
template <int N_WORDS, typename Feed>
__device__ static inline void cn_share_copy_kept(const cn_score_params &p, const cn_score_part &x,
                                                 const cn_ring_memory &m, const Feed &f,
                                                 const cn_share_lots &lots, cn_ring_labels lot)
{
#pragma unroll 1
    for (uint32_t k = lots.n_stored; k < lots.n; k++) {
#pragma unroll 1
        for (uint32_t i = 0; i < CN_SHARE_EACH; i++)
            if (cn_ring_has_label(x, lot, i))
                ((uint2 *)lot.row)[i * CN_WARP] =
                    cn_share_logits<N_WORDS>(m, f, lots, k, lot, i);
        cn_ring_labels_skip(p, lot, f.n_workers);
    }
}

/* Computes the scores of the lots that are kept. lot: the first of them. */
template <int N_WORDS, typename Feed>
__device__ static inline void cn_share_finish_kept(const cn_score_params &p, const cn_score_part &x,
                                                   const cn_ring_memory &m, const Feed &f,
                                                   const cn_share_lots &lots, cn_ring_labels lot,
                                                   const uint32_t heads[2])
{
#pragma unroll 1
    for (uint32_t k = lots.n_stored; k < lots.n; k++) {
        if (!cn_ring_is_full(x, lot)) {
            cn_share_any<N_WORDS>(x, m, f, lots, k, lot, heads);
        } else {
            uint2 logits[CN_SHARE_EACH];
#pragma unroll
            for (uint32_t i = 0; i < CN_SHARE_EACH; i++)
                logits[i] = cn_share_logits<N_WORDS>(m, f, lots, k, lot, i);
            cn_share_full(lot, logits, heads, m.fixed->digits);
        }
        cn_ring_labels_skip(p, lot, f.n_workers);
    }
}

/* Computes the scores of the warp's lots of a part, whose sums the block has stored. is_last: as
 * above. Returns false if the part is late. All threads of the block call it. */
template <int N_WORDS, typename Feed>
__device__ static inline bool cn_share_part(const cn_score_params &p, const cn_score_part &x,
                                            const cn_ring_memory &m, const Feed &f, bool is_last,
                                            int64_t *patience)
{
    uint2 logits[CN_SHARE_AHEAD][CN_SHARE_EACH];
    const cn_share_lots lots = cn_share_lots_of(f, x, m.n_more, is_last);
    cn_ring_labels lot = cn_ring_labels_of(p, x, threadIdx.x / CN_WARP), ahead = lot, kept = lot;
    cn_ring_labels_skip(p, kept, lots.n_stored * f.n_workers);
    const cn_score_unit unit = {x.first_slot, x.n_slots};
    if (!cn_share_heads<CN_LABEL_HEADS>(p, unit, m.fixed->heads, patience)) {
        cn_share_copy_kept<N_WORDS>(p, x, m, f, lots, kept);
        return false;
    }
    const uint32_t heads[2] = {m.fixed->heads[0], m.fixed->heads[1]};
#pragma unroll
    for (uint32_t i = 0; i < CN_SHARE_AHEAD; i++) {
        if (i < lots.n_stored) cn_share_load(logits[i], x, ahead);
        cn_ring_labels_skip(p, ahead, f.n_workers);
    }
    cn_share_finish_kept<N_WORDS>(p, x, m, f, lots, kept, heads);
#pragma unroll 1
    for (uint32_t k = 0; k < lots.n_stored; k += CN_SHARE_AHEAD) {
#pragma unroll
        for (uint32_t i = 0; i < CN_SHARE_AHEAD; i++) {
            if (k + i >= lots.n_stored) break;
            if (cn_ring_is_full(x, lot))
                cn_share_full(lot, logits[i], heads, m.fixed->digits);
            else
                cn_share_any<N_WORDS>(x, m, f, lots, k + i, lot, heads);
            if (k + i + CN_SHARE_AHEAD < lots.n_stored) cn_share_load(logits[i], x, ahead);
            cn_ring_labels_skip(p, lot, f.n_workers);
            cn_ring_labels_skip(p, ahead, f.n_workers);
        }
    }
    return true;
}

#endif
