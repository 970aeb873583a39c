/* select_in_tiles.cu - a part of attend_selected: `select` of tiles, `score` of their tokens, and
 * `select` of tokens in one kernel.
 * In: scores of tiles u16, q bf16, labels of 32 channels and their scales. Out: list [units,
 * list_stride]. Other shapes, and launches of many units, are left to the three kernels.
 *
 * A unit is a cluster of four or two blocks. Each block selects the tiles itself, which takes less
 * time than passing a list on. Their tokens are few, 64 a tile, so the cluster keeps their logits
 * and scores in shared memory. Three kernels pass them through the L2 cache, and each waits for the
 * one before. A block has a part of the unit's lots. A warp ranks a lot at a time, and loads its
 * labels into registers all at once. Under rule max the blocks add up their weights in each other's
 * shared memory, lot by lot as `score` does (engine/select/select_math.h), so the lists are the
 * same.
 *
 * `score` of the tiles waits for all that writes queries, keys, tables and the arrays of the step
 * before it lets this kernel start. If it counts its scores, a block waits for those of its unit.
 * A unit that ranks an exchange area takes all its tiles. If all do, this kernel is the first of
 * the op (cn_in_tiles.is_first). It then reads the arrays of the step and the first labels before
 * it waits, except in layer 0, and lets attention start after the wait.
 *
 * Bytes read per unit: 2 a tile and block (none of an area), 18 a token; written: 4 per list
 * entry. Latency decides: the scores of tiles, the table, the labels, then three or four exchanges
 * between the blocks.
 * Block 256, 128 registers. CPU versions: cpu_sel_score.c, cpu_sel_list.c. */
#include "cuda/select/score_labels.cuh"
#include "cuda/select/select_list.cuh"
#include "cuda/select/select_route.h"

enum {
    N_WORDS = 4, /* of a label */
    HEADS = CN_LABEL_HEADS,
    PAIRS = HEADS / 2,
    LOT = 1 << CN_LOT_MAX_LOG2,
    LOT_TILES = LOT / CN_DIGEST_TILE,
    ROUNDS = LOT / CN_WARP, /* labels of a lane in a lot */
    WARPS = THREADS / CN_WARP,
    LOT_BYTES = LOT * (HEADS + 1) * (int)sizeof(uint16_t), /* logits and scores */
    MOST_BYTES = 80 * 1024 /* of these, so that a multiprocessor has room for two blocks */
};

/* A sum as two vectors: cn_cluster_store. */
typedef union rank_sum {
    cn_exp_sum sum;
    uint4 vecs[2];
} rank_sum;
static_assert(sizeof(rank_sum) == sizeof(cn_exp_sum), "two vectors");

template <uint32_t PARTS> struct rank_shared {
    select_shared<PARTS> select;
    uint2 labels[HEADS][N_WORDS]; /* quantised queries */
    float factor[HEADS];
    uint8_t channels[CN_WARP];
    cn_exp_sum sums[HEADS][WARPS];
    alignas(16) rank_sum parts[PARTS][HEADS]; /* of all blocks; `summed` counts the bytes */
    uint64_t summed;
    uint32_t logs[PAIRS]; /* f16: the logarithm of each head's sum, with its sign changed */
};

/* The part of a block: lots, their logits and scores, and the unit's tiles, in shared memory. */
typedef struct rank_part {
    uint32_t first, end; /* lots */
    uint32_t *tiles;
    uint2 *logits;
    uint16_t *scores;
} rank_part;

/* A lane's labels of a lot: candidate 32 i + lane is number i. Bit i: it exists; is below the
 * base. */
typedef struct rank_labels {
    uint4 words[ROUNDS];
    uint16_t scales[ROUNDS];
    uint32_t valid, below;
} rank_labels;

__device__ static inline rank_labels load_labels(const cn_score_params &p, const cn_score_part &x,
                                                 const uint32_t *tiles, uint32_t lot)
{
    const cn_digest &g = p.args.pools.digest;
    const uint32_t lane = threadIdx.x % CN_WARP, n_tiles = x.n / CN_DIGEST_TILE;
    cn_score_token t = {};
    t.position = tiles[min(lot * LOT_TILES + lane % LOT_TILES, n_tiles - 1)] * CN_DIGEST_TILE;
    cn_score_place(p, x, t);
    const size_t own = cn_score_side_of(p, x, t);
    rank_labels l;
    l.valid = l.below = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const size_t side = __shfl_sync(0xffffffffu, own, (int)(i / 2)) + i % 2 * CN_WARP + lane;
        const uint32_t position =
            __shfl_sync(0xffffffffu, t.position, (int)(i / 2)) + i % 2 * CN_WARP + lane;
        l.words[i] = __ldcs((const uint4 *)g.labels + side);
        l.scales[i] = __ldcs(g.scales + side);
        l.valid |= (lot * LOT_TILES + i / 2 < n_tiles ? 1u : 0u) << i;
        l.below |= (position < x.base ? 1u : 0u) << i;
    }
    return l;
}

__device__ static inline float tiles_scale_of(const rank_labels &l, uint32_t i)
{
    return l.below >> i & 1 ? CUDART_NAN_F : __half2float(__ushort_as_half(l.scales[i]));
}

template <int N>
__device__ static inline void products(uint32_t out[N][4], const rank_labels &l, uint32_t i,
                                       const cn_label_query<N_WORDS, N> &q)
{
    const uint4 a = l.words[i], b = l.words[i + 1];
    const uint32_t first[N_WORDS] = {a.x, a.y, a.z, a.w}, second[N_WORDS] = {b.x, b.y, b.z, b.w};
    cn_label_products<N_WORDS, N>(out, first, second, q.words);
}

/* Computes a lot under rule max: its logits, and the weights of the lane's head. */
__device__ static inline cn_lot_weights
max_lot(const rank_labels &l, const cn_label_query<N_WORDS, PAIRS> &q, uint2 *logits)
{
    cn_label_pass pass = cn_label_pass_of();
#pragma unroll
    for (uint32_t i = 0; i < ROUNDS; i += 2) {
        uint32_t product[PAIRS][4];
        products<PAIRS>(product, l, i, q);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float scale = tiles_scale_of(l, i + k);
            float logit[HEADS];
#pragma unroll
            for (uint32_t h = 0; h < HEADS; h++)
                logit[h] = cn_label_logit_of(product[h / 2][2 * k + h % 2], scale, q.factor[h]);
            cn_label_add<false>(pass, logit, (l.valid & ~l.below) >> (i + k) & 1, i + k == 0);
            logits[(i + k) * CN_WARP] = cn_label_words(logit);
        }
    }
    cn_lot_weights own = {0, CN_EXPONENT_BASE};
    cn_label_weights(own, pass, 0);
    return own;
}

/* Computes the scores of a lot with one query for the group, and counts their high bytes. */
__device__ static inline void mean_lot(const rank_labels &l, const cn_label_query<N_WORDS, 1> &q,
                                       uint16_t *scores, uint32_t *digits)
{
#pragma unroll
    for (uint32_t i = 0; i < ROUNDS; i += 2) {
        uint32_t product[1][4];
        products<1>(product, l, i, q);
        const float first = cn_label_logit_of(product[0][0], tiles_scale_of(l, i), q.factor[0]);
        const float second =
            cn_label_logit_of(product[0][2], tiles_scale_of(l, i + 1), q.factor[0]);
        const uint32_t both = cn_score_of_f16x2(cn_f16x2(first, second));
        if (!(l.valid >> i & 1)) continue; /* both are of one tile */
        scores[i * CN_WARP] = (uint16_t)both;
        scores[(i + 1) * CN_WARP] = (uint16_t)(both >> 16);
        atomicAdd(&digits[both >> 8 & 0xff], 1u);
        atomicAdd(&digits[both >> 24], 1u);
    }
}

/* Quantises the queries of the part, a head or the mean each warp. */
template <uint32_t PARTS>
__device__ static inline void load_tiles_query(const cn_score_params &p, const cn_score_part &x,
                                               rank_shared<PARTS> *shared)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    if (warp >= (cn_score_is_max(x.stage) ? p.group : 1)) return;
    const cn_bf16 *q = cn_score_query_of(p, x);
    const float value[2] = {cn_score_query_value(p, x, q, warp, shared->channels[lane]), 0};
    const float scale = cn_label_quantise((int8_t *)shared->labels[warp], value, CN_WARP);
    if (lane == 0) shared->factor[warp] = cn_score_scale_of(p, x) * scale;
}

/* Adds up the weights of the blocks of the unit. Sets `logs`. */
template <uint32_t PARTS>
__device__ static inline void add_up(const cn_score_params &p, uint32_t part,
                                     rank_shared<PARTS> *shared)
{
    __syncthreads(); /* the sums of all warps */
#if __CUDA_ARCH__ >= 900
    const uint32_t h = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    if (h < HEADS) {
        static_assert(WARPS >= PARTS && WARPS <= CN_WARP, "lanes with the sum");
        rank_sum own = {};
        if (lane < WARPS && h < p.group) own.sum = shared->sums[h][lane];
        own.sum = cn_score_sum_lanes(own.sum, WARPS); /* so many lanes have it */
        if (lane < PARTS)
            for (uint32_t i = 0; i < 2; i++)
                cn_cluster_store(&shared->parts[part][h].vecs[i], own.vecs[i], &shared->summed,
                                 lane);
        cn_barrier_wait(&shared->summed, 0);
        rank_sum unit = {};
        if (lane < PARTS) unit = shared->parts[lane][h];
        unit.sum = cn_score_sum_lanes(unit.sum, PARTS);
        const float log2_sum = h < p.group ? cn_exp_sum_log2(unit.sum) : CUDART_NAN_F;
        if (lane == 0) ((uint16_t *)shared->logs)[h] = cn_f16_or_nan(-log2_sum);
    }
#endif
    __syncthreads();
}

/* Turns the n logits of the block's part into scores, and counts their high bytes. n is even. */
__device__ static inline void share_tiles(const rank_part &part, uint32_t n, const uint32_t *logs,
                                          uint32_t *digits)
{
    const uint32_t low = logs[0], high = logs[1];
    for (uint32_t i = threadIdx.x; i < n / 2; i += THREADS) {
        const uint4 two = ((const uint4 *)part.logits)[i];
        const uint32_t a = cn_f16x2_max(cn_f16x2_add(two.x, low), cn_f16x2_add(two.y, high));
        const uint32_t b = cn_f16x2_max(cn_f16x2_add(two.z, low), cn_f16x2_add(two.w, high));
        const uint32_t bits = cn_scores_of_shares(a, b);
        ((uint32_t *)part.scores)[i] = bits;
        atomicAdd(&digits[bits >> 8 & 0xff], 1u);
        atomicAdd(&digits[bits >> 24], 1u);
    }
}

/* Computes the scores of the block's part, and counts their high bytes. own: labels of the warp's
 * first lot. */
template <uint32_t PARTS>
__device__ static inline void rank(const cn_score_params &p, const cn_score_part &x,
                                   const rank_part &part, uint32_t number, rank_labels own,
                                   rank_shared<PARTS> *shared)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const bool is_max = cn_score_is_max(x.stage);
    uint32_t *digits = shared->select.bins[0] + FRONT;
#pragma unroll 1
    for (uint32_t lot = part.first + warp; lot < part.end; lot += WARPS) {
        const uint32_t at = (lot - part.first) * LOT + lane;
        if (lot > part.first + warp) own = load_labels(p, x, part.tiles, lot);
        if (is_max) {
            const auto q = cn_label_load<N_WORDS, PAIRS>(shared->labels[0], N_WORDS,
                                                         shared->factor, 0, p.group);
            const cn_lot_weights weights = max_lot(own, q, part.logits + at);
            const uint32_t head = cn_label_head();
            if (head < p.group)
                cn_exp_sum_add_lot(&shared->sums[head][warp], weights.sum, weights.top);
        } else {
            const auto q =
                cn_label_load<N_WORDS, 1>(shared->labels[0], N_WORDS, shared->factor, 0, 1);
            mean_lot(own, q, part.scores + at, digits);
        }
    }
    if (!is_max) return;
    add_up(p, number, shared);
    const uint32_t end = min(part.end * LOT, x.n), start = min(part.first * LOT, x.n);
    share_tiles(part, end - start, shared->logs, digits);
}

/* Prepares the shared memory. */
template <uint32_t PARTS>
__device__ static inline void open_rank(const cn_score_params &p, const cn_score_part &x,
                                        rank_shared<PARTS> *shared)
{
    const cn_digest &g = p.args.pools.digest;
    const size_t unit = (size_t)x.layer * p.args.pools.layout.n_kv_heads + x.at.head;
    if (threadIdx.x < CN_WARP)
        shared->channels[threadIdx.x] = __ldg(g.channels + unit * g.n_channels + threadIdx.x);
    if (threadIdx.x < HEADS * WARPS) (&shared->sums[0][0])[threadIdx.x] = {};
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        cn_barrier_init(&shared->summed, 1);
        cn_barrier_init_done();
        cn_barrier_expect(&shared->summed, sizeof shared->parts);
    }
#endif
    open_shared(&shared->select);
}

/* Lots of a part of a unit. */
__host__ __device__ static inline uint32_t part_lots(uint32_t n, uint32_t n_parts)
{
    return ((n + LOT - 1) / LOT + n_parts - 1) / n_parts;
}

/* Lists the tiles of a unit in shared memory. counts: of the unit, or NULL. memory: for this
 * alone. */
__device__ static inline void select_tiles(const cn_select_args &a, const cn_sel_unit &u,
                                           const select_row &r, const uint32_t *counts,
                                           uint32_t *tiles, select_shared<1> *memory)
{
    select_list l = open_list<1>(a, u, r, 0);
    l.out = tiles;
    const select_scores held = load_chunk(l, l.first);
    uint32_t n_high = counts ? counts[own_digit()] : 0;
    open_shared(memory);
    if (!counts) {
        count_bins(l, held, 0, 0, memory);
        n_high = unit_high(0, memory);
    }
    select_unit(l, held, find_high(n_high, min(r.k, r.n), memory), NULL, memory);
    __syncthreads();
}

/* Bytes of the logits and scores of so many lots; before, the tiles are selected there. */
__host__ __device__ static inline size_t lots_bytes(uint32_t lots)
{
    const size_t bytes = (size_t)lots * LOT_BYTES;
    return bytes > sizeof(select_shared<1>) ? bytes : sizeof(select_shared<1>);
}

/* Returns the block's part of a unit, of n_parts, in shared memory with room for so many lots. */
__device__ static inline rank_part tiles_part_of(uint32_t n, uint32_t number, uint32_t n_parts,
                                                 uint32_t room, uint4 *memory)
{
    const uint32_t lots = part_lots(n, n_parts), all = part_lots(n, 1);
    rank_part part;
    part.first = min(number * lots, all);
    part.end = min(part.first + lots, all);
    part.logits = (uint2 *)memory;
    part.scores = (uint16_t *)(part.logits + room * LOT);
    part.tiles = (uint32_t *)((char *)memory + lots_bytes(room));
    return part;
}

/* Returns the candidates of a part, whose scores are in shared memory. */
template <uint32_t PARTS>
__device__ static inline select_list list_of(const cn_select_args &a, const cn_sel_unit &u,
                                             const select_row &r, const rank_part &part)
{
    select_list l = open_list<PARTS>(a, u, r, min(r.n_forced, a.list_stride));
    l.skew = 0;
    set_list_part(&l, min(part.first * LOT, r.n) / SCORES, min(part.end * LOT, r.n) / SCORES);
    l.vecs = (const uint4 *)part.scores - l.first;
    l.tiles = part.tiles;
    return l;
}

/* Lists all tiles of an exchange area. */
__device__ static inline void list_area(uint32_t n, uint32_t *tiles)
{
    for (uint32_t i = threadIdx.x; i < n / CN_DIGEST_TILE; i += THREADS) tiles[i] = i;
    __syncthreads();
}

/* Waits for the other blocks of the unit. */
__device__ static inline void meet_unit(void)
{
#if __CUDA_ARCH__ >= 900
    cn_cluster_meet();
#endif
}

/* room: lots of shared memory. unit_counts: as in select_kernel. Blocks of a cluster end as those
 * of select_kernel do. Then no other block of the unit waits for its counts. */
template <uint32_t PARTS>
__global__ static void __launch_bounds__(THREADS, 2)
    in_tiles_kernel(const __grid_constant__ cn_score_params p,
                    const __grid_constant__ cn_select_args tiles,
                    const __grid_constant__ cn_select_args tokens, uint32_t *unit_counts,
                    uint32_t *done, uint32_t room, bool is_first)
{
    extern __shared__ uint4 dynamic[];
    __shared__ rank_shared<PARTS> shared;
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x / PARTS, 1, tokens.n_kv_heads);
    const uint32_t number = blockIdx.x % PARTS;
    if (!is_first) begin_list(done, u, number);
    else if (p.args.first_layer == 0) cn_wait_previous();
    cn_touch_params(p);
    const select_row of_tiles = load_select_row(tiles, u.seq), r = load_select_row(tokens, u.seq);
    cn_score_part x = {};
    x.at = u;
    x.stage = r.stage;
    x.layer = p.args.first_layer;
    x.n = x.to = r.n;
    x.base = r.base;
    open_rank(p, x, &shared);
    const rank_part part = tiles_part_of(r.n, number, PARTS, room, dynamic);
    const uint32_t k = min(r.k, r.n);
    uint32_t *counts = unit_counts ? unit_counts + (size_t)u.index * CN_COUNTS : NULL;
    const uint32_t lot = part.first + threadIdx.x / CN_WARP; /* the warp's first one */
    const bool is_area = k > 0 && r.stage.is_area;
    rank_labels own = {};
    if (is_area) {
        list_area(r.n, part.tiles);
        own = load_labels(p, x, part.tiles, lot);
    }
    if (is_first) {
        cn_wait_previous();
        begin_list(done, u, number);
        if (k == 0) meet_unit(); /* the list is marked as unfinished before a block ends */
    }
    if (k > 0) load_tiles_query(p, x, &shared);
    list_forced(tokens, u, number, min(r.n_forced, tokens.list_stride));
    if (!counts && !is_first) cn_wait_previous();
    else if (counts && (k > 0 || number == 0))
        cn_count_wait(counts + CN_COUNT_STORED, of_tiles.n);
    if (k > 0) {
        if (is_area) {
            __syncthreads(); /* the queries */
        } else {
            select_tiles(tiles, u, of_tiles, counts, part.tiles, (select_shared<1> *)part.logits);
            own = load_labels(p, x, part.tiles, lot);
        }
        const select_list l = list_of<PARTS>(tokens, u, r, part);
        rank(p, x, part, number, own, &shared);
        const uint32_t n_high = unit_high(number, &shared.select);
        const select_scores held = load_chunk(l, l.first);
        select_unit(l, held, find_high(n_high, k, &shared.select), NULL, &shared.select);
    }
    if (counts && number == 0) clear_counts(counts);
    end_list<PARTS>(done, u);
    if (counts) cn_wait_previous(); /* every kernel must: see launch.cuh */
}

/* ---- on the host ---- */

/* Returns the blocks of a unit, 0 if there are too many units. If each multiprocessor has one block
 * at most, the blocks start beside `score`; without it a multiprocessor has room for two. */
static uint32_t parts_of(const cn_stream *s, uint32_t n_units, bool is_first)
{
    const uint32_t n_sms = s->cuda->device.n_sms, room = is_first ? 2 * n_sms : n_sms;
    return 4 * n_units <= room ? 4 : n_units <= n_sms ? 2 : 0;
}

static uint32_t units_of(const cn_score_args *a)
{
    return a->n_seqs * a->n_layers * a->pools.layout.n_kv_heads;
}

/* Bytes of a block's dynamic shared memory. */
static size_t memory_of(const cn_score_args *a, uint32_t n_parts)
{
    return lots_bytes(part_lots(a->tile_stride * CN_DIGEST_TILE, n_parts)) +
           a->tile_stride * sizeof(uint32_t);
}

bool cn_in_tiles_fits(const cn_stream *s, const cn_score_args *a)
{
    const cn_score_params p = cn_score_params_of(a);
    const uint32_t n_parts = parts_of(s, units_of(a), false); /* the fewest */
    return s->cuda->device.hopper && a->n_layers == 1 && p.keys == 1u << CN_KEY_LABELS &&
           p.group <= HEADS && p.label_bytes == N_WORDS * sizeof(uint32_t) && n_parts > 0 &&
           memory_of(a, n_parts) <= MOST_BYTES;
}

template <uint32_t PARTS> static cn_status launch_tiles(cn_stream *s, const cn_in_tiles *a)
{
    const uint32_t room = part_lots(a->score.tile_stride * CN_DIGEST_TILE, PARTS);
    cn_launch how = {dim3(units_of(&a->score) * PARTS), THREADS, memory_of(&a->score, PARTS)};
    how.cluster = PARTS;
    return cn_cuda_launch(s, "select: in tiles", in_tiles_kernel<PARTS>, how,
                          cn_score_params_of(&a->score), a->tiles, a->tokens, a->counts, a->done,
                          room, a->is_first);
}

cn_status cn_in_tiles_launch(cn_stream *s, const cn_in_tiles *a)
{
    const uint32_t n_parts = parts_of(s, units_of(&a->score), a->is_first);
    return n_parts == 4 ? launch_tiles<4>(s, a) : launch_tiles<2>(s, a);
}
