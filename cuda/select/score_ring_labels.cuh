/* score_ring_labels.cuh - how a warp of score_ring.cu ranks its lots of labels. */
#pragma once

#include "cuda/select/score_ring.cuh"

enum {
    CN_RING_PAIRS = CN_LABEL_HEADS / 2, /* of heads, of a pass */
    CN_RING_KEPT_BYTES = CN_FEED_LABELS * (int)sizeof(uint2) /* logits of a lot */
};

/* A lot of labels in shared memory, and where the results of this lane's first candidate go, lane
 * `lane` of the lot. The others are 32, 64, ... after it. */
typedef struct cn_ring_labels {
    const unsigned char *labels; /* cn_ring_label_bytes each */
    const uint16_t *scales;
    uint32_t at;   /* number of the lane's first candidate */
    uint32_t tile; /* in tiles: position of tile lane % 4 of the lot */
    uint16_t *score;
    uint16_t *row; /* rule max: of logits */
    uint2 *kept;   /* where logits are kept instead; NULL: nowhere */
} cn_ring_labels;

/* Bytes of a label of N_WORDS words; with CN_SCORE_WIDE_WORDS of any size. */
template <int N_WORDS>
__device__ static inline uint32_t cn_ring_label_bytes(const cn_score_params &p)
{
    return N_WORDS == CN_SCORE_WIDE_WORDS ? p.label_bytes : N_WORDS * (uint32_t)sizeof(uint32_t);
}

/* Loads the label of candidate i of this lane. Words that it has not are 0. */
template <int N_WORDS>
__device__ static inline void cn_ring_load_label(uint32_t words[N_WORDS], const cn_score_params &p,
                                                 const cn_ring_labels &lot, uint32_t i)
{
    static_assert(N_WORDS == 2 || N_WORDS == 4 || N_WORDS == CN_SCORE_WIDE_WORDS, "size of a load");
    const unsigned char *label = lot.labels + i * CN_WARP * cn_ring_label_bytes<N_WORDS>(p);
    if constexpr (N_WORDS == CN_SCORE_WIDE_WORDS) {
        const uint16_t *halves = (const uint16_t *)label;
#pragma unroll
        for (uint32_t k = 0; k < N_WORDS; k++) {
            words[k] = 4 * k < p.label_bytes ? halves[2 * k] : 0;
            if (4 * k + 2 < p.label_bytes) words[k] |= (uint32_t)halves[2 * k + 1] << 16;
        }
    } else if constexpr (N_WORDS == 4) {
        const uint4 four = *(const uint4 *)label;
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    } else {
        const uint2 two = *(const uint2 *)label;
        words[0] = two.x;
        words[1] = two.y;
    }
}

/* Returns lot `number` of a part. */
__device__ static inline cn_ring_labels cn_ring_labels_of(const cn_score_params &p,
                                                          const cn_score_part &x, uint32_t number)
{
    cn_ring_labels lot = {};
    lot.at = ((x.lot + number) << CN_LOT_MAX_LOG2) + threadIdx.x % CN_WARP;
    const ptrdiff_t c = (ptrdiff_t)(int32_t)(lot.at - x.from); /* may be below 0 */
    lot.score = p.args.out + x.first + c;
    lot.row = cn_score_rows(p, x.first) + c * (ptrdiff_t)p.row;
    return lot;
}

/* Moves on by n lots. */
__device__ static inline void cn_ring_labels_skip(const cn_score_params &p, cn_ring_labels &lot,
                                                  uint32_t n)
{
    const uint32_t labels = n << CN_LOT_MAX_LOG2;
    lot.at += labels;
    lot.score += labels;
    lot.row += labels * p.row;
}

/* Returns whether all tokens of a lot are candidates, and none is below the base. */
__device__ static inline bool cn_ring_is_whole(const cn_score_params &p, const cn_score_part &x,
                                               cn_ring_labels &lot)
{
    const uint32_t lane = threadIdx.x % CN_WARP, start = lot.at - lane;
    const bool whole = start >= x.from && x.to - start >= CN_FEED_LABELS;
    if (!x.stage.in_tiles || x.base == 0) return whole;
    const cn_score_token t = cn_score_token_of(p, x, start + lane % 4 * CN_DIGEST_TILE);
    lot.tile = t.position & ~(CN_DIGEST_TILE - 1u);
    return whole && !__any_sync(0xffffffffu, lot.tile < x.base);
}

/* Returns whether candidate i of this lane exists. below: set to whether it lies below the base. */
__device__ static inline bool
cn_ring_label_is_valid(const cn_score_part &x, const cn_ring_labels &lot, uint32_t i, bool &below)
{
    const uint32_t at = lot.at + i * CN_WARP;
    below = false;
    if (x.stage.in_tiles && x.base > 0) {
        const uint32_t tile = __shfl_sync(0xffffffffu, lot.tile, (int)(i / 2));
        below = tile + at % CN_DIGEST_TILE < x.base;
    }
    return at >= x.from && at < x.to;
}

/* Computes a lot under rule max, for the heads of a pass from `first` on. ROW: logits of a
 * candidate, or 0 for any. WHOLE: cn_ring_is_whole. Sets `own` of these heads. */
template <int N_WORDS, uint32_t ROW, bool WHOLE>
__device__ static inline void cn_ring_label_heads(const cn_score_params &p, const cn_score_part &x,
                                                  const cn_ring_labels &lot,
                                                  const cn_label_query<N_WORDS, CN_RING_PAIRS> &q,
                                                  uint32_t first, cn_lot_weights &own)
{
    cn_label_pass pass = cn_label_pass_of();
    const uint32_t stride = CN_WARP * (ROW ? ROW : p.row);
    const uint16_t *scales = lot.scales;
    uint16_t *row = lot.row + first;
#pragma unroll 1
    for (uint32_t i = 0; i < 8; i += 2) {
        uint32_t words[2][N_WORDS];
        cn_ring_load_label<N_WORDS>(words[0], p, lot, i);
        cn_ring_load_label<N_WORDS>(words[1], p, lot, i + 1);
        const uint16_t bits[2] = {scales[0], scales[CN_WARP]};
        uint32_t product[CN_RING_PAIRS][4];
        cn_label_products<N_WORDS, CN_RING_PAIRS>(product, words[0], words[1], q.words);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            bool below = false;
            const bool valid = WHOLE || cn_ring_label_is_valid(x, lot, i + k, below);
            const float scale = below ? CUDART_NAN_F : __half2float(__ushort_as_half(bits[k]));
            float logit[2 * CN_RING_PAIRS];
#pragma unroll
            for (uint32_t h = 0; h < 2 * CN_RING_PAIRS; h++)
                logit[h] = cn_label_logit_of(product[h / 2][2 * k + h % 2], scale, q.factor[h]);
            cn_label_add<WHOLE>(pass, logit, valid && !below, i + k == 0);
            const uint2 stored = cn_label_words(logit);
            if (ROW > 0 && lot.kept) lot.kept[(i + k) * CN_WARP] = stored;
            else if (valid) cn_store_kept(row + k * stride, stored);
        }
        scales += 2 * CN_WARP;
        row += 2 * stride;
    }
    cn_label_weights(own, pass, first);
}

/* Computes a lot under rule max, and adds it to the warp's sums. ROW: as above. */
template <int N_WORDS, uint32_t ROW>
__device__ static inline void
cn_ring_label_max(const cn_score_params &p, const cn_score_part &x, const cn_ring_memory &m,
                  const cn_ring_labels &lot, bool whole, cn_label_query<N_WORDS, CN_RING_PAIRS> &q)
{
    static_assert(ROW == 0 || ROW == CN_LABEL_HEADS, "one pass");
    cn_lot_weights own = {0, CN_EXPONENT_BASE};
#pragma unroll 1
    for (uint32_t first = 0; first < (ROW ? ROW : p.group); first += CN_LABEL_HEADS) {
        if (ROW == 0 && p.group > CN_LABEL_HEADS)
            q = cn_label_load<N_WORDS, CN_RING_PAIRS>(m.labels, cn_ring_label_factors(p, m), first,
                                                      p.group);
        if (whole)
            cn_ring_label_heads<N_WORDS, ROW, true>(p, x, lot, q, first, own);
        else
            cn_ring_label_heads<N_WORDS, ROW, false>(p, x, lot, q, first, own);
        const uint32_t next = first + CN_LABEL_HEADS;
        const uint32_t head = first / CN_WARP * CN_WARP + cn_label_head();
        if ((ROW || next % CN_WARP == 0 || next >= p.group) && head < p.group)
            cn_ring_add_lot(m, head, own);
    }
}

/* Computes a lot with one query for the group. DIGITS: counts the high bytes of the scores. */
template <int N_WORDS, bool WHOLE, bool DIGITS>
__device__ static inline void cn_ring_label_mean(const cn_score_params &p, const cn_score_part &x,
                                                 const cn_ring_labels &lot,
                                                 const cn_label_query<N_WORDS, 1> &q,
                                                 uint64_t cache, uint32_t *digits)
{
#pragma unroll(WHOLE ? 4 : 1)
    for (uint32_t i = 0; i < 8; i += 2) {
        uint32_t words[2][N_WORDS];
        cn_ring_load_label<N_WORDS>(words[0], p, lot, i);
        cn_ring_load_label<N_WORDS>(words[1], p, lot, i + 1);
        uint32_t product[1][4];
        bool valid[2];
        float logit[2];
        cn_label_products<N_WORDS, 1>(product, words[0], words[1], q.words);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            bool below = false;
            valid[k] = WHOLE || cn_ring_label_is_valid(x, lot, i + k, below);
            const uint16_t bits = lot.scales[(i + k) * CN_WARP];
            const float scale = below ? CUDART_NAN_F : __half2float(__ushort_as_half(bits));
            logit[k] = cn_label_logit_of(product[0][2 * k], scale, q.factor[0]);
        }
        const uint32_t both = cn_score_of_f16x2(cn_f16x2(logit[0], logit[1]));
        if (valid[0]) cn_store_score(lot.score + i * CN_WARP, both, cache);
        if (valid[1]) cn_store_score(lot.score + (i + 1) * CN_WARP, both >> 16, cache);
        if (DIGITS && valid[0]) atomicAdd(&digits[both >> 8 & 0xff], 1u);
        if (DIGITS && valid[1]) atomicAdd(&digits[both >> 24], 1u);
    }
}

/* Waits for a lot of labels. */
template <int N_WORDS, typename Feed>
__device__ static inline void cn_ring_wait_labels(const cn_score_params &p, const Feed &f,
                                                  cn_ring_labels &lot)
{
    const uint32_t lane = threadIdx.x % CN_WARP, bytes = cn_ring_label_bytes<N_WORDS>(p);
    const unsigned char *keys = cn_feed_wait(f);
    lot.labels = keys + lane * bytes;
    lot.scales = (const uint16_t *)(keys + CN_FEED_LABELS * bytes) + lane;
}

/* Returns where the warp keeps the logits of lot `lot` of the block's last part, or NULL. A stage
 * that is not filled again keeps those of its lot in place of labels that have been read: they are
 * no larger. done: all lots have been read; else this one is read now. */
template <typename Feed>
__device__ static inline uint2 *cn_ring_kept(const cn_ring_memory &m, const Feed &f,
                                             const cn_score_part &x, uint32_t lot, bool done)
{
    const uint32_t after = (x.n_lots - 1 - lot) / m.n_workers; /* lots of the warp */
    const uint32_t back = done ? after + 1 : 0;
    const uint32_t stage = f.get >= back ? f.get - back : f.get + f.n_stages - back;
    if (after < m.n_in_ring) return (uint2 *)(f.stages + stage * f.stage_bytes);
    if (after >= m.n_in_ring + m.n_beside) return NULL;
    const uint32_t at = (after - m.n_in_ring) * m.n_workers + threadIdx.x / CN_WARP;
    return (uint2 *)(m.kept + at * CN_RING_KEPT_BYTES);
}

/* Computes the warp's lots of a part under rule max. known: as in cn_feed_find. may_keep: logits
 * may be kept in shared memory. The sums are in shared memory, because they would make the compiler
 * spill other registers in this loop. A spill there takes long, since the L1 cache is small beside
 * so much shared memory. */
template <int N_WORDS, uint32_t ROW, typename Feed>
__device__ static inline void cn_ring_compute_max(const cn_score_params &p, const cn_score_part &x,
                                                  const cn_ring_memory &m, Feed &f,
                                                  uint32_t known, bool may_keep)
{
    const uint32_t warp = threadIdx.x / CN_WARP;
    cn_label_query<N_WORDS, CN_RING_PAIRS> q = cn_label_load<N_WORDS, CN_RING_PAIRS>(
        m.labels, cn_ring_label_factors(p, m), 0, p.group);
    cn_ring_labels lot = cn_ring_labels_of(p, x, warp);
    for (uint32_t i = warp; i < x.n_lots; i += m.n_workers) {
        const bool whole = cn_ring_is_whole(p, x, lot);
        cn_ring_wait_labels<N_WORDS>(p, f, lot);
        lot.kept = may_keep ? cn_ring_kept(m, f, x, i, false) : NULL;
        if (lot.kept) lot.kept += threadIdx.x % CN_WARP;
        cn_ring_label_max<N_WORDS, ROW>(p, x, m, lot, whole, q);
        cn_feed_release(f, p, known);
        cn_ring_labels_skip(p, lot, m.n_workers);
    }
}

/* Computes the warp's lots of a part with one query for the group. DIGITS: as above. */
template <int N_WORDS, bool DIGITS, typename Feed>
__device__ static inline void cn_ring_compute_mean(const cn_score_params &p, const cn_score_part &x,
                                                   const cn_ring_memory &m, Feed &f,
                                                   uint32_t known)
{
    const cn_label_query<N_WORDS, 1> q =
        cn_label_load<N_WORDS, 1>(m.labels, cn_ring_label_factors(p, m), 0, 1);
    const uint32_t warp = threadIdx.x / CN_WARP;
    const bool is_line = DIGITS || p.args.n_layers == 1;
    const uint64_t cache = is_line ? CN_CACHE_EVICT_NORMAL : CN_CACHE_EVICT_LAST;
    cn_ring_labels lot = cn_ring_labels_of(p, x, warp);
    for (uint32_t i = warp; i < x.n_lots; i += m.n_workers) {
        const bool whole = cn_ring_is_whole(p, x, lot);
        cn_ring_wait_labels<N_WORDS>(p, f, lot);
        if (whole)
            cn_ring_label_mean<N_WORDS, true, DIGITS>(p, x, lot, q, cache, m.fixed->digits);
        else
            cn_ring_label_mean<N_WORDS, false, DIGITS>(p, x, lot, q, cache, m.fixed->digits);
        cn_feed_release(f, p, known);
        cn_ring_labels_skip(p, lot, m.n_workers);
    }
}

template <int N_WORDS, bool MAX, bool DIGITS, typename Feed>
__device__ static inline void
cn_ring_compute_labels(const cn_score_params &p, const cn_score_part &x, const cn_ring_memory &m,
                       Feed &f, uint32_t known, bool may_keep)
{
    constexpr uint32_t ROW = CN_LABEL_HEADS; /* the most frequent one */
    if (MAX && x.stage.group == CN_GROUP_MAX && p.row == ROW)
        cn_ring_compute_max<N_WORDS, ROW>(p, x, m, f, known, may_keep);
    else if (MAX && x.stage.group == CN_GROUP_MAX)
        cn_ring_compute_max<N_WORDS, 0>(p, x, m, f, known, false);
    else
        cn_ring_compute_mean<N_WORDS, DIGITS>(p, x, m, f, known);
}
