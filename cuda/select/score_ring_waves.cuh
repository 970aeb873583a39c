/* score_ring_waves.cuh - K rows under rule max in waves: a block keeps logits in shared memory
 * until the sums of their unit are known, and then computes the scores.
 *
 * A wave is what all blocks compute at about the same time (score.cuh). A block has a run of lots
 * in each wave, mostly one part. Up to eight warps, the workers, have rings and compute. While they
 * compute part i + 1, the ninth warp, the control warp,
 *
 *     1. stores the sums of the weights of part i, in the slot of the part;
 *     2. finds part i + 3, which the rings may need next;
 *     3. waits until all slots of one unit have been stored, that of part i - 1, and adds them up.
 *
 * Then the workers compute the shares of part i - 1, the oldest that the block keeps. So logits are
 * neither written to memory nor read back, and no kernel for shares follows. A load takes some 5 us
 * beside the copies of full rings. A part takes some 15 us, so its sums have two of these to reach
 * the other blocks. A slot has a word for each head. It is zero before the launch and has a mark
 * afterwards, so no fence is needed.
 *
 * A block does not wait where that may never end. The next waves of a long unit are its own work;
 * and another kernel of a higher priority may keep blocks of this one from starting. So a block
 * waits for a limited time. Then, or if the unit ends in a wave that the block has not computed,
 * the part is late: the block copies its logits to memory, and late_kernel computes the shares. */
#ifndef CN_CUDA_SCORE_RING_WAVES_CUH
#define CN_CUDA_SCORE_RING_WAVES_CUH

#include "cuda/select/score_ring_keys.cuh"

enum {
    CN_WAVE_THREADS = CN_FEED_THREADS + CN_WARP,
    CN_WAVE_KEPT = 3 /* parts of which a block keeps the logits */
};

/* A part whose logits are in shared memory. */
typedef struct cn_wave_part {
    cn_score_kept rows; /* of a part without rule max from = to */
    uint32_t slot, last_wave; /* of the part; of the unit */
} cn_wave_part;

typedef struct cn_wave_shared {
    cn_ring_fixed ring;
    cn_score_part found; /* the part behind those of the feed */
    cn_wave_part kept[CN_WAVE_KEPT];
    uint32_t heads[CN_SCORE_WAVE_ROW / 2]; /* of the oldest part that is kept: cn_wave_sum_unit */
    bool is_ready;                         /* they are known */
} cn_wave_shared;

/* Bytes of the logits of a lot. */
__host__ __device__ static inline uint32_t cn_wave_lot_bytes(uint32_t row)
{
    return CN_RING_ROWS * row * (uint32_t)sizeof(uint16_t);
}

/* ---- shares ---- */

/* Stores the scores of rows [s.from, s.to). rows: [to, 2 WORDS] logits; heads: of the unit. Called
 * by CN_FEED_THREADS threads. */
template <uint32_t WORDS>
__device__ static inline void cn_wave_store_shares(const cn_score_params &p, const cn_score_kept &s,
                                                   const uint32_t *rows, const uint32_t *heads)
{
    enum { NEXT = CN_FEED_THREADS };
    uint16_t *out = p.args.out + s.first;
    for (uint32_t r = s.from + threadIdx.x; r < s.to; r += 2 * NEXT) {
        const bool has_next = r + NEXT < s.to;
        uint32_t best[2] = {CN_NAN_F16X2, CN_NAN_F16X2};
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t *at = rows + r * WORDS + i;
            best[0] = cn_f16x2_max(best[0], cn_f16x2_add(at[0], heads[i]));
            if (has_next)
                best[1] = cn_f16x2_max(best[1], cn_f16x2_add(at[NEXT * WORDS], heads[i]));
        }
        const uint32_t scores = cn_scores_of_shares(best[0], best[1]);
        out[r] = (uint16_t)scores;
        if (has_next) out[r + NEXT] = (uint16_t)(scores >> 16);
    }
}

__device__ static inline void cn_wave_store(const cn_score_params &p, const cn_score_kept &s,
                                            const uint32_t *rows, const uint32_t *heads)
{
    if (p.row == 2) cn_wave_store_shares<1>(p, s, rows, heads);
    else if (p.row == 4) cn_wave_store_shares<2>(p, s, rows, heads);
    else cn_wave_store_shares<4>(p, s, rows, heads);
}

/* ---- sums: a slot has a word for each head: a mark, the top, and the sum below it ---- */

#define CN_WAVE_MARK (1ull << 63)
enum { CN_WAVE_SUM_BITS = 48 };

__device__ static inline uint64_t cn_wave_word_of(const cn_exp_sum &s)
{
    const uint64_t sum = s.sum[0] + (s.sum[1] >> 16) + (s.sum[2] >> 32);
    return CN_WAVE_MARK | (uint64_t)s.top << CN_WAVE_SUM_BITS | sum;
}

__device__ static inline cn_exp_sum cn_wave_sum_of(uint64_t word)
{
    cn_exp_sum s = {};
    s.sum[0] = word & ((1ull << CN_WAVE_SUM_BITS) - 1);
    s.top = (uint32_t)((word & ~CN_WAVE_MARK) >> CN_WAVE_SUM_BITS);
    return s;
}

/* Returns the sum of lane `from`. */
__device__ static inline cn_exp_sum cn_wave_shuffle(const cn_exp_sum &sum, uint32_t from)
{
    cn_exp_sum other;
#pragma unroll
    for (uint32_t i = 0; i < 3; i++)
        other.sum[i] = __shfl_sync(0xffffffffu, (unsigned long long)sum.sum[i], from);
    other.top = __shfl_sync(0xffffffffu, sum.top, from);
    return other;
}

/* Adds up the slots of a unit. Returns false if not all have been stored. heads: of lane i, f16,
 * the logarithms of the sums of heads 2 i and 2 i + 1 with their signs changed, NaN behind the
 * group. A warp calls it. A lane has slots of one head. */
__device__ static inline bool cn_wave_sum_unit(const cn_score_params &p, const cn_score_unit &unit,
                                               uint32_t *heads)
{
    enum { AT_ONCE = 10 }; /* a load takes long: two rounds for 131,072 tokens and four heads */
    const uint32_t lane = threadIdx.x % CN_WARP, lanes = CN_WARP / p.group * p.group;
    const uint32_t n = lane < lanes ? unit.n_slots * p.group : 0;
    const uint64_t *slots = p.waves.slots + (size_t)unit.first_slot * p.group;
    cn_exp_sum sum = {};
    uint64_t marks = CN_WAVE_MARK;
#pragma unroll 1
    for (uint32_t from = lane; from < n; from += AT_ONCE * lanes) {
        uint64_t words[AT_ONCE];
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            words[k] = CN_WAVE_MARK; /* nothing */
            if (from + k * lanes < n)
                asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                             : "=l"(words[k])
                             : "l"(slots + from + k * lanes)
                             : "memory");
        }
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            marks &= words[k];
            sum = cn_exp_sum_add(sum, cn_wave_sum_of(words[k]));
        }
    }
    if (!__all_sync(0xffffffffu, marks != 0)) return false;
    cn_exp_sum all = sum;
#pragma unroll 1
    for (uint32_t k = p.group; k < lanes; k += p.group) {
        const cn_exp_sum other = cn_wave_shuffle(sum, min(lane + k, (uint32_t)CN_WARP - 1));
        if (lane < p.group) all = cn_exp_sum_add(all, other);
    }
    const uint32_t own = cn_f16_or_nan(lane < p.group ? -cn_exp_sum_log2(all) : CUDART_NAN_F);
    const uint32_t even = __shfl_sync(0xffffffffu, own, 2 * lane);
    *heads = even | __shfl_sync(0xffffffffu, own, 2 * lane + 1) << 16;
    return true;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Waits for all warps of the block. __syncthreads() is not meant for warps that wait at different
 * places of the program, as the control warp and the workers do. */
__device__ static inline void cn_wave_sync(void) { cn_sync_some(1, CN_WAVE_THREADS); }

/* ---- the control warp ---- */

/* Stores the sums of a part in its slot, and clears those of the warps. A group of n_workers lanes
 * has a head. */
__device__ static inline void cn_wave_store_sums(const cn_score_params &p, uint32_t slot,
                                                 cn_exp_sum *sums, uint32_t n_workers)
{
    const uint32_t lane = threadIdx.x % CN_WARP, n = p.group * n_workers;
#pragma unroll 1
    for (uint32_t from = 0; from < n; from += CN_WARP) {
        const uint32_t at = from + lane;
        cn_exp_sum sum = {};
        if (at < n) {
            sum = sums[at];
            sums[at] = {};
        }
#pragma unroll 1
        for (uint32_t step = n_workers / 2; step > 0; step /= 2)
            sum = cn_exp_sum_add(sum, cn_wave_shuffle(sum, lane ^ step));
        if (at < n && lane % n_workers == 0)
            asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(
                             p.waves.slots + (size_t)slot * p.group + at / n_workers),
                         "l"(cn_wave_word_of(sum))
                         : "memory");
    }
}

/* Says whether the workers can compute the shares of a part. wave: the last one whose parts the
 * block has stored the sums of. */
__device__ static inline void cn_wave_prepare(const cn_score_params &p, cn_wave_shared *shared,
                                              uint32_t number, uint32_t wave, int64_t *patience)
{
    const cn_wave_part &part = shared->kept[number % CN_WAVE_KEPT];
    const uint32_t lane = threadIdx.x % CN_WARP;
    uint32_t heads = 0;
    bool ready = part.rows.from >= part.rows.to; /* nothing to compute */
    if (!ready && part.last_wave <= wave)
        ready = cn_score_wait(patience,
                              [&] { return cn_wave_sum_unit(p, part.rows.slots, &heads); });
    if (lane < p.row / 2) shared->heads[lane] = heads;
    if (lane == 0) shared->is_ready = ready;
}

/* What the control warp does. Part 0 and the one behind it are known. It and the workers have the
 * same barriers: one when a part has been computed, one when the oldest part has been finished. */
__device__ static inline void cn_wave_control(const cn_score_params &p, cn_score_plan &plan,
                                              const cn_ring_memory &m, cn_wave_shared *shared)
{
    cn_score_parts &parts = shared->ring.feed.parts;
    const uint32_t keeps = CN_WAVE_KEPT - 1, lane = threadIdx.x % CN_WARP;
    int64_t patience = p.patience;
    uint32_t i = 0, wave = 0;
    for (; parts.part[i % 2].n_lots > 0; i++) {
        if (lane == 0) {
            shared->found = {};
            cn_score_next<true>(plan, p, shared->found);
        }
        if (i >= keeps) cn_wave_prepare(p, shared, i - keeps, wave, &patience);
        wave = parts.part[i % 2].wave;
        cn_wave_sync();
        if (lane == 0) parts.part[i % 2] = shared->found; /* workers do not read it any more */
        cn_wave_sync();
        const cn_wave_part &part = shared->kept[i % CN_WAVE_KEPT];
        if (part.rows.from < part.rows.to)
            cn_wave_store_sums(p, part.slot, m.sums + i % 2 * p.group * m.n_workers, m.n_workers);
    }
    for (uint32_t j = i < keeps ? 0 : i - keeps; j < i; j++) {
        cn_wave_prepare(p, shared, j, wave, &patience);
        cn_wave_sync();
        cn_wave_sync();
    }
}

/* ---- workers ---- */

/* Where the logits of parts are: [CN_WAVE_KEPT, lots of a run, CN_RING_ROWS, row / 2 words]. */
typedef struct cn_wave_rows {
    uint32_t *first;
    uint32_t part_words;
} cn_wave_rows;

__device__ static inline uint32_t *cn_wave_rows_of(const cn_wave_rows &rows, uint32_t number)
{
    return rows.first + number % CN_WAVE_KEPT * rows.part_words;
}

/* Begins part `number`, x. Called by thread 0. */
__device__ static inline void cn_wave_keep(cn_wave_shared *shared, const cn_score_part &x,
                                           uint32_t number)
{
    const uint32_t start = x.lot << x.lot_log2, end = (x.lot + x.n_lots) << x.lot_log2;
    cn_wave_part part;
    part.rows.first = x.first + start - x.from; /* may be before the unit's first score */
    part.rows.slots = {x.first_slot, x.n_slots};
    part.rows.from = start < x.from ? x.from - start : 0;
    part.rows.to = x.stage.group == CN_GROUP_MAX ? min(end, x.to) - start : part.rows.from;
    part.slot = x.slot;
    part.last_wave = x.last_wave;
    shared->kept[number % CN_WAVE_KEPT] = part;
}

/* Computes the shares of part `number`; or copies its logits for late_kernel if it is not ready. */
__device__ static inline void cn_wave_finish(const cn_score_params &p, const cn_wave_shared *shared,
                                             const uint32_t *rows, uint32_t number)
{
    const cn_score_kept s = shared->kept[number % CN_WAVE_KEPT].rows;
    const uint32_t words = p.row / 2;
    if (s.from >= s.to) return;
    if (shared->is_ready) {
        cn_wave_store(p, s, rows, shared->heads);
        return;
    }
    uint32_t *to = (uint32_t *)cn_score_rows(p, s.first);
    for (uint32_t i = s.from * words + threadIdx.x; i < s.to * words; i += CN_FEED_THREADS)
        to[i] = rows[i];
    if (threadIdx.x == 0) p.waves.late[atomicAdd(p.waves.n_late, 1u)] = s;
}

/* Computes the lots of a part. Logits under rule max go to `rows`. */
template <uint32_t D, typename Feed>
__device__ static inline void cn_wave_compute(const cn_score_params &p, const cn_score_part &x,
                                              const cn_ring_memory &m, Feed &f, uint32_t known,
                                              uint32_t *rows)
{
    if (x.stage.group != CN_GROUP_MAX) {
        cn_ring_keys_mean<true, D, false>(p, x, m, f, known);
        return;
    }
    const int32_t before = (int32_t)(x.from - (x.lot << x.lot_log2)); /* rows */
    cn_ring_keys_max<true, D, true>(p, x, m, f, known,
                                    (uint16_t *)rows + before * (int32_t)p.row);
}

/* What the workers do. The table of part 0 is ready. */
template <uint32_t D, typename Feed>
__device__ static inline void cn_wave_work(const cn_score_params &p, const cn_ring_memory &m,
                                           Feed &f, cn_wave_shared *shared,
                                           const cn_wave_rows &rows)
{
    const cn_score_parts &parts = shared->ring.feed.parts;
    const uint32_t keeps = CN_WAVE_KEPT - 1;
    cn_ring_memory own = m;
    uint32_t i = 0;
    for (; parts.part[i % 2].n_lots > 0; i++) {
        const cn_score_part &x = parts.part[i % 2], &next = parts.part[(i + 1) % 2];
        const bool has_next = next.n_lots > 0;
        cn_ring_ahead ahead = {};
        if (threadIdx.x == 0) cn_wave_keep(shared, x, i);
        if (has_next) ahead = cn_ring_load_ahead(p, next, m, CN_KEY_ROWS);
        cn_feed_fill(f, p, i + 1);
        own.sums = m.sums + i % 2 * p.group * m.n_workers;
        if (threadIdx.x / CN_WARP < m.n_workers)
            cn_wave_compute<D>(p, x, own, f, i + 1, cn_wave_rows_of(rows, i));
        cn_wave_sync();
        if (has_next) cn_ring_fill_table(p, next, m, ahead);
        if (i >= keeps) cn_wave_finish(p, shared, cn_wave_rows_of(rows, i - keeps), i - keeps);
        cn_wave_sync();
    }
    for (uint32_t j = i < keeps ? 0 : i - keeps; j < i; j++) {
        cn_wave_sync();
        cn_wave_finish(p, shared, cn_wave_rows_of(rows, j), j);
        cn_wave_sync();
    }
}

#endif

#endif
