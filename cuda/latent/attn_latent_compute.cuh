/* attn_latent_compute.cuh - the computing warps of attn_latent.cu: scores, online softmax and
 * weighted values of each tile; at the end of a piece its result, and of the item's. */
#pragma once

#include "cuda/latent/attn_latent.cuh"

/* What a warp keeps between tiles. In the scores it has half of the slots and a quarter of the sum;
 * in the softmax N / 8 columns, of which a lane has the slots lane and lane + 32; in the values a
 * box of 64 dimensions. */
template <int N> struct cn_latent_state {
    uint32_t query[CN_LATENT_MAX_BOXES][N / 8][2];
    float out[CN_BOX_COLS / 16][N / 8][4];
    float max[N / 8], sum[N / 8];
    int32_t seen[N / 8]; /* slots that the softmax columns see beyond those of column 0 */
};

__device__ static inline uint32_t cn_latent_warp(void) { return threadIdx.x / CN_WARP; }
__device__ static inline uint32_t cn_latent_lane(void) { return threadIdx.x % CN_WARP; }
__device__ static inline uint32_t cn_latent_quarter(void) { return cn_latent_warp() / 2; }
__device__ static inline uint32_t cn_latent_half(void) { return cn_latent_warp() % 2; }

/* The softmax column i of the warp. */
template <int N> __device__ static inline uint32_t cn_latent_column(uint32_t i)
{
    return cn_latent_warp() * (N / 8) + i;
}

/* ---- a tile ---- */

/* Loads the queries of a piece: the operands of the warp's quarter. Columns and dimensions that do
 * not exist are zeros. */
template <int N>
__device__ static inline void cn_latent_begin(cn_latent_state<N> &x, const cn_latent_params &p,
                                              const cn_latent_note &note)
{
    const uint32_t d = p.pool.head_dim, g = cn_latent_lane() / 4, t = cn_latent_lane() % 4;
    const uint32_t *q = (const uint32_t *)(p.q + (size_t)note.row * d);
#pragma unroll
    for (uint32_t box = 0; box < CN_LATENT_MAX_BOXES; box++) {
        const uint32_t first = box * CN_BOX_COLS + cn_latent_quarter() * 16;
#pragma unroll
        for (uint32_t j = 0; j < N / 8; j++) {
            const uint32_t column = j * 8 + g, at = (column * d + first) / 2 + t;
            const bool valid = column < note.n_columns && first < d;
            x.query[box][j][0] = valid ? __ldcg(q + at) : 0;
            x.query[box][j][1] = valid ? __ldcg(q + at + 4) : 0;
        }
    }
#pragma unroll
    for (uint32_t m = 0; m < CN_BOX_COLS / 16; m++)
#pragma unroll
        for (uint32_t j = 0; j < N / 8; j++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) x.out[m][j][i] = 0;
#pragma unroll
    for (uint32_t i = 0; i < N / 8; i++) {
        x.max[i] = -CUDART_INF_F;
        x.sum[i] = 0;
        x.seen[i] = (int32_t)((note.head + cn_latent_column<N>(i)) / p.n_heads);
    }
}

/* Stores the warp's parts of the scores: 32 slots, all columns, 16 columns of each box. */
template <int N>
__device__ static inline void cn_latent_scores(const cn_latent_state<N> &x, uint32_t tile,
                                               uint32_t n_boxes, float *scores)
{
    constexpr uint32_t SCORE_ROW = cn_latent_shared<N>::SCORE_ROW;
    const uint32_t lane = cn_latent_lane(), quarter = cn_latent_quarter();
    const uint32_t slot = cn_latent_half() * 32;
    float sum[2][N / 8][4] = {};
#pragma unroll
    for (uint32_t box = 0; box < CN_LATENT_MAX_BOXES; box++) {
        if (box >= n_boxes) break;
#pragma unroll
        for (uint32_t m = 0; m < 2; m++) {
            uint32_t a[4];
            const uint32_t row = slot + m * 16 + lane % 16;
            cn_ldmatrix(a, tile + box * CN_LATENT_BOX_BYTES +
                               cn_chunk_at(CN_LATENT_TILE, row, 2 * quarter + lane / 16));
#pragma unroll
            for (uint32_t j = 0; j < N / 8; j++)
                cn_mma(sum[m][j], a, x.query[box][j][0], x.query[box][j][1]);
        }
    }
    float *own = scores + (quarter * N + lane % 4 * 2) * SCORE_ROW + slot + lane / 4;
#pragma unroll
    for (uint32_t m = 0; m < 2; m++)
#pragma unroll
        for (uint32_t j = 0; j < N / 8; j++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                own[(j * 8 + i % 2) * SCORE_ROW + m * 16 + i / 2 * 8] = sum[m][j][i];
}

/* Returns the score of a slot and column: the sum of the quarters. */
template <int N>
__device__ static inline float cn_latent_score(const float *scores, uint32_t column, uint32_t slot)
{
    constexpr uint32_t SCORE_ROW = cn_latent_shared<N>::SCORE_ROW;
    float sum = 0;
#pragma unroll
    for (uint32_t quarter = 0; quarter < CN_LATENT_QUARTERS; quarter++)
        sum += scores[(quarter * N + column) * SCORE_ROW + slot];
    return sum;
}

/* Turns the scores of the warp's columns into weights. Updates maxima and sums. A column that has
 * seen no slot has base 0, so that every exponential is 0. */
template <int N>
__device__ static inline void cn_latent_softmax(cn_latent_state<N> &x, const cn_latent_note &note,
                                                float scale, const float *scores, cn_bf16 *weights,
                                                float *keep)
{
    constexpr uint32_t WEIGHT_ROW = cn_latent_shared<N>::WEIGHT_ROW;
    const int32_t slot = (int32_t)cn_latent_lane(), first = note.first_slot;
#pragma unroll
    for (uint32_t i = 0; i < N / 8; i++) {
        const uint32_t column = cn_latent_column<N>(i);
        const int32_t end = min((int32_t)note.last_slot, note.limit + x.seen[i]);
        float w[2], top = x.max[i];
#pragma unroll
        for (int32_t h = 0; h < 2; h++) {
            const int32_t at = slot + h * CN_WARP;
            w[h] = cn_latent_score<N>(scores, column, (uint32_t)at) * scale;
            if (at < first || at >= end) w[h] = -CUDART_INF_F;
            top = fmaxf(top, w[h]);
        }
#pragma unroll
        for (uint32_t offset = CN_WARP / 2; offset > 0; offset /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
        const float base = top == -CUDART_INF_F ? 0 : top, kept = cn_exp2(x.max[i] - base);
#pragma unroll
        for (int32_t h = 0; h < 2; h++) {
            w[h] = cn_exp2(w[h] - base);
            weights[column * WEIGHT_ROW + (uint32_t)(slot + h * CN_WARP)] =
                __float2bfloat16_rn(w[h]);
        }
        x.max[i] = top;
        x.sum[i] = x.sum[i] * kept + w[0] + w[1];
        if (slot == 0) keep[column] = kept;
    }
}

/* Mask of two values of slots `slot` and the next, that clears those of slots without a weight: 0
 * times the content of an unused slot may not be 0. */
__device__ static inline uint32_t cn_latent_mask(const cn_latent_note &note, uint32_t slot)
{
    const bool low = slot >= note.first_slot && slot < note.last_slot;
    const bool high = slot + 1 >= note.first_slot && slot + 1 < note.last_slot;
    return (low ? 0xffffu : 0) | (high ? 0xffff0000u : 0);
}

/* Scales the sums so far. */
template <int N>
__device__ static inline void cn_latent_rescale(cn_latent_state<N> &x, const float *keep)
{
#pragma unroll
    for (uint32_t j = 0; j < N / 8; j++) {
        const float2 kept = *(const float2 *)(keep + j * 8 + cn_latent_lane() % 4 * 2);
#pragma unroll
        for (uint32_t m = 0; m < CN_BOX_COLS / 16; m++) {
            x.out[m][j][0] *= kept.x;
            x.out[m][j][1] *= kept.y;
            x.out[m][j][2] *= kept.x;
            x.out[m][j][3] *= kept.y;
        }
    }
}

/* Adds the warp's dimensions of the values, times their weights. MASKED: the tile has slots without
 * a weight. `values`: the warp's box of the tile. */
template <int N, bool MASKED>
__device__ static inline void cn_latent_values(cn_latent_state<N> &x, const cn_latent_note &note,
                                               uint32_t values, const cn_bf16 *weights)
{
    constexpr uint32_t WEIGHT_WORDS = cn_latent_shared<N>::WEIGHT_ROW / 2;
    const uint32_t lane = cn_latent_lane(), g = lane / 4, t = lane % 4;
    const uint32_t row = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (uint32_t k = 0; k < CN_LATENT_TILE / 16; k++) {
        const uint32_t *word = (const uint32_t *)weights + g * WEIGHT_WORDS + k * 8 + t;
        uint32_t b[N / 8][2];
#pragma unroll
        for (uint32_t j = 0; j < N / 8; j++) {
            b[j][0] = word[j * 8 * WEIGHT_WORDS];
            b[j][1] = word[j * 8 * WEIGHT_WORDS + 4];
        }
        const uint32_t low = MASKED ? cn_latent_mask(note, k * 16 + 2 * t) : 0;
        const uint32_t high = MASKED ? cn_latent_mask(note, k * 16 + 2 * t + 8) : 0;
#pragma unroll
        for (uint32_t m = 0; m < CN_BOX_COLS / 16; m++) {
            uint32_t a[4];
            cn_ldmatrix_transposed(
                a, values + cn_chunk_at(CN_LATENT_TILE, k * 16 + row, 2 * m + lane / 8 % 2));
            if (MASKED) {
                a[0] &= low;
                a[1] &= low;
                a[2] &= high;
                a[3] &= high;
            }
#pragma unroll
            for (uint32_t j = 0; j < N / 8; j++) cn_mma(x.out[m][j], a, b[j][0], b[j][1]);
        }
    }
}

/* ---- ending a piece ---- */

/* Stores the rows of out of whole items. A lane has two columns and a row of each eight by eight
 * values; transposed it has a column and two rows, which are neighbours in memory. */
template <int N>
__device__ static inline void cn_latent_store(const cn_latent_params &p, const cn_latent_note &note,
                                              const cn_latent_state<N> &x, const float2 *sums)
{
    const uint32_t g = cn_latent_lane() / 4, t = cn_latent_lane() % 4;
    cn_bf16 *out = p.out + (size_t)note.row * p.rank + cn_latent_warp() * CN_BOX_COLS + 2 * t;
#pragma unroll
    for (uint32_t j = 0; j < N / 8; j++) {
        const float left = 1.0f / sums[j * 8 + 2 * t].y, right = 1.0f / sums[j * 8 + 2 * t + 1].y;
        const uint32_t column = j * 8 + g;
#pragma unroll
        for (uint32_t i = 0; i < CN_BOX_COLS / 8; i++) {
            const float *pair = x.out[i / 2][j] + i % 2 * 2;
            const uint32_t word = cn_movmatrix(cn_pack2(pair[0] * left, pair[1] * right));
            const uint32_t dimension = cn_latent_warp() * CN_BOX_COLS + i * 8;
            if (column < note.n_columns && dimension < p.rank)
                *(uint32_t *)(out + (size_t)column * p.rank + i * 8) = word;
        }
    }
}

/* Stores the partial result of a piece. */
template <int N>
__device__ static inline void cn_latent_store_piece(const cn_latent_params &p,
                                                    const cn_latent_note &note,
                                                    const cn_latent_state<N> &x, const float2 *sums)
{
    const uint32_t g = cn_latent_lane() / 4, t = cn_latent_lane() % 4;
    const size_t first = (size_t)note.piece.slot * p.columns;
    if (threadIdx.x < note.n_columns) p.partial_sums[first + threadIdx.x] = sums[threadIdx.x];
#pragma unroll
    for (uint32_t m = 0; m < CN_BOX_COLS / 16; m++)
#pragma unroll
        for (uint32_t j = 0; j < N / 8; j++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t column = j * 8 + 2 * t + i % 2;
                const uint32_t dimension = cn_latent_warp() * CN_BOX_COLS + m * 16 + i / 2 * 8 + g;
                if (column < note.n_columns && dimension < p.rank)
                    p.partial_out[(first + column) * p.rank + dimension] = x.out[m][j][i];
            }
}

/* The pieces [begin, end) of the elements of an item, four at a time, that a block merges. */
typedef struct cn_latent_range {
    uint32_t begin, end;
} cn_latent_range;

/* shares[piece, column] = the factor of the results of a piece. Warps take columns by turns. */
__device__ static inline void cn_latent_find_shares(const cn_latent_params &p,
                                                    const cn_latent_note &note, float *shares)
{
    const uint32_t n = note.piece.n_pieces, columns = note.n_columns;
    for (uint32_t c = cn_latent_warp(); c < columns; c += CN_LATENT_WARPS) {
        float top = -CUDART_INF_F, sum = 0;
        for (uint32_t i = cn_latent_lane(); i < n; i += CN_WARP)
            top =
                fmaxf(top, __ldcg(&p.partial_sums[cn_walk_slot(note.piece, i) * p.columns + c].x));
#pragma unroll
        for (uint32_t offset = CN_WARP / 2; offset > 0; offset /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
        for (uint32_t i = cn_latent_lane(); i < n; i += CN_WARP) {
            const float2 s = __ldcg(&p.partial_sums[cn_walk_slot(note.piece, i) * p.columns + c]);
            const float share = cn_exp2(s.x - top);
            shares[i * columns + c] = share;
            sum += s.y * share;
        }
        sum = cn_warp_sum(sum);
        for (uint32_t i = cn_latent_lane(); i < n; i += CN_WARP) shares[i * columns + c] /= sum;
    }
    cn_latent_meet();
}

/* Merges the pieces of an item, in order: the elements of a range. `shares`: room for a float of
 * each piece and column. */
__device__ static inline void cn_latent_merge(const cn_latent_params &p, const cn_latent_note &note,
                                              float *shares, cn_latent_range range)
{
    const uint32_t n = note.piece.n_pieces, columns = note.n_columns, quads = p.rank / 4;
    cn_latent_find_shares(p, note, shares);
    for (uint32_t i = range.begin + threadIdx.x; i < range.end; i += CN_LATENT_COMPUTING) {
        const uint32_t column = i / quads, at = i % quads * 4;
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (uint32_t j = 0; j < n; j++) {
            const size_t row = (size_t)cn_walk_slot(note.piece, j) * p.columns + column;
            const float4 x = __ldcg((const float4 *)(p.partial_out + row * p.rank + at));
            const float share = shares[j * columns + column];
            out.x += x.x * share;
            out.y += x.y * share;
            out.z += x.z * share;
            out.w += x.w * share;
        }
        *(uint2 *)(p.out + (size_t)(note.row + column) * p.rank + at) =
            make_uint2(cn_pack2(out.x, out.y), cn_pack2(out.z, out.w));
    }
}

/* Counts an arrival at the item's counter, which goes back to 0 with the arrival number `all`.
 * Returns the arrivals before. Called by one thread. Releases the stores of the block before the
 * last barrier, and acquires those of others. */
__device__ static inline uint32_t cn_latent_count(uint32_t *counter, uint32_t all)
{
    const uint32_t before = cn_add_acq_rel(counter, 1);
    if (before == all - 1) *counter = 0;
    return before;
}

/* The block that stores its piece last merges the item. */
__device__ static inline void cn_latent_merge_last(const cn_latent_params &p,
                                                   const cn_latent_note &note, float *shares,
                                                   cn_latent_fixed *fixed)
{
    const uint32_t n = note.piece.n_pieces, all = note.n_columns * p.rank / 4;
    cn_latent_meet();
    if (threadIdx.x == 0)
        fixed->is_last = cn_latent_count(p.arrivals + note.piece.first_slot, n) == n - 1;
    cn_latent_meet();
    if (fixed->is_last) cn_latent_merge(p, note, shares, {0, all});
}

/* Each block that has a piece of the item waits for all of them and merges its share of the
 * elements. Alone a block would read 1.4 MB for 33 pieces of 20 heads, a tenth of the time of its
 * piece. Only where each block has one piece, which is its last work: then no block waits for one
 * that waits. Blocks that have not started start when those of other kernels end: no kernel that
 * runs beside this one waits for blocks of its own (events of latent rows have none). */
__device__ static inline void cn_latent_merge_shared(const cn_latent_params &p,
                                                     const cn_latent_note &note, float *shares)
{
    const uint32_t n = note.piece.n_pieces, all = note.n_columns * p.rank / 4;
    const uint32_t own = note.piece.slot - note.piece.first_slot;
    uint32_t *counter = p.arrivals + note.piece.first_slot;
    cn_latent_meet();
    if (threadIdx.x == 0) {
        cn_latent_count(counter, 2 * n);
        while (cn_load_acquire(counter) < n) continue;
    }
    cn_latent_meet();
    cn_latent_merge(p, note, shares, {own * all / n, (own + 1) * all / n});
    if (threadIdx.x == 0) cn_latent_count(counter, 2 * n);
}

/* Publishes the sums of the columns, and stores the result of the piece or of the item. */
template <int N>
__device__ static inline void cn_latent_end(const cn_latent_params &p, const cn_latent_state<N> &x,
                                            const cn_latent_note &note, float *shares,
                                            cn_latent_fixed *fixed)
{
#pragma unroll
    for (uint32_t i = 0; i < N / 8; i++) {
        const float sum = cn_warp_sum(x.sum[i]);
        if (cn_latent_lane() == 0) fixed->sums[cn_latent_column<N>(i)] = make_float2(x.max[i], sum);
    }
    cn_latent_meet();
    if (note.piece.n_pieces == 1) {
        cn_latent_store<N>(p, note, x, fixed->sums);
    } else {
        cn_latent_store_piece<N>(p, note, x, fixed->sums);
        if (note.piece.even || p.walk.by_length)
            cn_latent_merge_last(p, note, shares, fixed);
        else
            cn_latent_merge_shared(p, note, shares);
    }
    cn_latent_meet(); /* sums and shares may be written again */
}

/* ---- the loop ---- */

/* Returns the note of a stage to all lanes of a warp. Only the lane that arrives at the stage's
 * `empty` barrier reads it (cn_one_read_note says why). */
__device__ static inline cn_latent_note cn_latent_read_note(const cn_latent_note *from)
{
    enum { WORDS = sizeof(cn_latent_note) / sizeof(uint32_t) };
    static_assert(sizeof(cn_latent_note) % sizeof(uint32_t) == 0, "a note is whole words");
    union {
        cn_latent_note note;
        uint32_t words[WORDS];
    } x;
    const uint32_t *words = (const uint32_t *)from;
    const bool reads = cn_latent_lane() == 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) x.words[i] = __shfl_sync(0xffffffffu, reads ? words[i] : 0, 0);
    return x.note;
}

/* A tile takes two barriers: when its scores are stored, and when its weights are. What a warp
 * stores for the next tile it stores after a barrier that follows all reads of this one. */
template <int N>
__device__ static inline void cn_latent_compute(const cn_latent_params &p,
                                                const cn_latent_shared<N> &shared,
                                                cn_latent_fixed *fixed)
{
    cn_latent_state<N> x;
    const uint32_t box = cn_latent_warp() * CN_LATENT_BOX_BYTES;
    const bool has_values = cn_latent_warp() * CN_BOX_COLS < p.rank;
    bool end = false;
    cn_wait_previous();
    for (uint32_t i = 0; !end; i++) {
        const uint32_t stage = i % p.n_stages, tile = shared.tile(stage);
        cn_barrier_wait(&fixed->full[stage], i / p.n_stages & 1);
        const cn_latent_note note = cn_latent_read_note(&fixed->notes[stage]);
        if (note.first) cn_latent_begin<N>(x, p, note);
        cn_latent_scores<N>(x, tile, p.n_boxes, shared.scores());
        cn_latent_meet();
        cn_latent_softmax<N>(x, note, p.scale, shared.scores(), shared.weights(), fixed->keep);
        cn_latent_meet();
        if (has_values) {
            const bool masked = note.first_slot > 0 || note.last_slot < CN_LATENT_TILE;
            cn_latent_rescale<N>(x, fixed->keep);
            if (masked)
                cn_latent_values<N, true>(x, note, tile + box, shared.weights());
            else
                cn_latent_values<N, false>(x, note, tile + box, shared.weights());
        }
        __syncwarp();
        if (cn_latent_lane() == 0) cn_barrier_arrive(&fixed->empty[stage]);
        if (note.last) cn_latent_end<N>(p, x, note, shared.scores(), fixed);
        end = note.end;
    }
}
