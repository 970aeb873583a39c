/* attn_one.cuh - attention of one query per sequence over paged K and V: the kernel of attn_decode
 * (every resident slot) and of attn_sparse (a list of slots).
 *
 * One block per multiprocessor, each with a share of the slots (attn_walk.cuh). One warp fetches,
 * or six if the slots are a list. They keep a ring of stages in shared memory full. A stage has a
 * tile of 64 keys and 64 values (32 KiB at head_dim 128, up to 192 KiB in flight) and a note that
 * describes it. Four warps compute, each 16 slots of every tile. They compute the query heads of
 * the group together, so K and V are read once for all of them:
 *
 *     scores^T[16 slots, 8 heads] = keys[16, d] * q^T[d, 8]       mma m16n8k16, f32 sums
 *     out^T[d, 8 heads] += values^T[d, 16 slots] * weights^T[16, 8]
 *
 * The heads are the narrow side of the product, so no work is wasted on padded rows. Each warp has
 * its own online softmax. The four are merged when a piece ends. The pieces of a split item are
 * merged, always in the order of the pieces, by the block that finishes its piece last.
 *
 * Fetching uses bulk copies by tensor map (compute capability 9.0), or cp.async row by row (from
 * 8.0 on, and for lists). Slots past the length get no weight and are never multiplied, so their
 * content has no effect. */
#ifndef CN_CUDA_ATTN_ONE_CUH
#define CN_CUDA_ATTN_ONE_CUH

#include "cuda/attn/attn_walk.cuh"

enum {
    CN_ONE_HEADS = 8, /* query heads at a time */
    CN_ONE_WARPS = 4, /* warps that compute */
    CN_ONE_COMPUTE = CN_ONE_WARPS * CN_WARP,
    CN_ONE_LIST_WARPS = 6, /* warps that fetch the rows of a list */
    CN_ONE_SLICE = CN_WALK_TILE / CN_ONE_WARPS, /* slots of a tile that one warp computes */
    CN_ONE_MAX_STAGES = 12,
    CN_ONE_ARRIVALS = 1 << 16, /* most partial results */
    CN_ONE_LEAST_SLOTS = 2048, /* least results in scratch: 2 per multiprocessor, and for tests */
    CN_ONE_PIECES = 256,       /* most pieces of an item; no GPU has so many multiprocessors */
    CN_ONE_FEW = 4,            /* pieces whose results are loaded at once */
    CN_ONE_PAD = 4             /* floats between heads in the exchange, to use other banks */
};

typedef struct cn_one_params {
    cn_bf16 *out;
    const cn_bf16 *q; /* [sequence, n_heads, head_dim] */
    cn_attn_pool pool;
    cn_walk_shape walk;
    /* Lists only, as in cn_attn_sparse_args. */
    const uint32_t *index, *list_len, *tail, *done;
    uint32_t index_stride;
    uint32_t n_heads, group, n_parts; /* parts of a group: ceil(group / 8) */
    uint32_t n_stages;
    float scale;          /* factor of the scores, including log2(e) */
    bool early;           /* lengths, tables, K and V of older steps are final before the wait; with
                           * `done` also queries and all K and V */
    uint32_t slot_heads;  /* of a partial result */
    uint32_t *arrivals;   /* [slot], zero between launches */
    float2 *partial_sums; /* [slot, slot_heads] maximum (log2), sum */
    float *partial_out;   /* [slot, slot_heads, D] */
} cn_one_params;

/* Describes the content of a stage. */
typedef struct cn_one_note {
    uint32_t query;                 /* first element in q and out */
    uint16_t first_slot, last_slot; /* [first, last) of the tile's 64 */
    uint16_t n_heads;
    bool first, last, end; /* first and last tile of the piece; last tile of the block's share */
    cn_walk_piece piece;   /* valid if last */
} cn_one_note;

/* Shared memory: stages of K and V, their queries, the exchange between warps. */
template <int D> struct cn_one_shared {
    static constexpr uint32_t BOXES = D / CN_BOX_COLS;
    static constexpr uint32_t BOX_BYTES = CN_WALK_TILE * CN_ROW_BYTES;
    static constexpr uint32_t PART_BYTES = BOXES * BOX_BYTES; /* the keys, or the values */
    static constexpr uint32_t QUERY_BYTES = CN_ONE_HEADS * D * (uint32_t)sizeof(cn_bf16);
    static constexpr uint32_t STAGE_BYTES = 2 * PART_BYTES + QUERY_BYTES;
    static constexpr uint32_t HEAD_FLOATS = D + CN_ONE_PAD;
    static constexpr uint32_t WARPS_BYTES =
        CN_ONE_WARPS * CN_ONE_HEADS * HEAD_FLOATS * (uint32_t)sizeof(float);
    static constexpr uint32_t PIECES_BYTES =
        CN_ONE_PIECES * CN_ONE_HEADS * (uint32_t)sizeof(float2);
    static constexpr uint32_t EXCHANGE_BYTES =
        WARPS_BYTES > PIECES_BYTES ? WARPS_BYTES : PIECES_BYTES;
    static constexpr uint32_t ALIGN = 1024;
    static constexpr uint32_t FIXED_BYTES = EXCHANGE_BYTES + ALIGN;

    uint32_t n_stages;
    unsigned char *base;

    __device__ uint32_t keys(uint32_t s) const
    {
        return cn_shared_address(base) + s * 2 * PART_BYTES;
    }
    __device__ uint32_t values(uint32_t s) const { return keys(s) + PART_BYTES; }
    __device__ cn_bf16 *queries(uint32_t s) const
    {
        return (cn_bf16 *)(base + n_stages * 2 * PART_BYTES + s * QUERY_BYTES);
    }
    __device__ float *exchange(void) const { return (float *)(base + n_stages * STAGE_BYTES); }
};

/* The parts of shared memory that have a fixed size. */
typedef struct cn_one_fixed {
    uint64_t full[CN_ONE_MAX_STAGES], empty[CN_ONE_MAX_STAGES];
    cn_one_note notes[CN_ONE_MAX_STAGES];
    float2 sums[CN_ONE_WARPS][CN_ONE_HEADS]; /* maximum, sum */
    bool is_last;
} cn_one_fixed;

/* ---- fetching ---- */

/* The (sequence, kv head, heads) of the walk's current item. */
typedef struct cn_one_item {
    uint32_t seq, kv_head, n_heads, query;
} cn_one_item;

__device__ static inline cn_one_item cn_one_item_of(const cn_one_params &p, const cn_walk &w)
{
    /* Divisions are slow enough to matter in a short batch, and usually n_parts is 1. */
    uint32_t head = w.item, part = 0;
    if (p.n_parts > 1) {
        head = w.item / p.n_parts;
        part = w.item % p.n_parts;
    }
    cn_one_item i;
    i.seq = w.unit;
    i.kv_head = head;
    const uint32_t member = part * CN_ONE_HEADS;
    i.n_heads = min(p.group - member, (uint32_t)CN_ONE_HEADS);
    i.query = (i.seq * p.n_heads + i.kv_head * p.group + member) * p.pool.head_dim;
    return i;
}

__device__ static inline void cn_one_write_note(cn_one_note *note, const cn_one_params &p,
                                                const cn_walk &w, const cn_one_item &item)
{
    const cn_walk_slots slots = cn_walk_slots_of(w);
    note->query = item.query;
    note->first_slot = (uint16_t)slots.first;
    note->last_slot = (uint16_t)slots.last;
    note->n_heads = (uint16_t)item.n_heads;
    note->first = cn_walk_is_first(w);
    note->last = cn_walk_is_last(w);
    note->end = cn_walk_is_end(w);
    if (note->last) note->piece = cn_walk_piece_of(w, blockIdx.x);
}

/* Copies the boxes of a tile: whole tiles of the pool by `whole`, the rest by `few`, 16 rows per
 * box. Called by one thread. */
template <int D>
__device__ static inline void
cn_one_bulk_tile(const cn_one_params &p, const cn_walk &w, const cn_one_item &item,
                 const cn_one_shared<D> &shared, uint32_t stage, uint64_t *barrier,
                 const CUtensorMap *whole, const CUtensorMap *few)
{
    const cn_walk_slots slots = cn_walk_slots_of(w);
    const uint32_t tile = 1u << p.pool.tile_shift;
    for (uint32_t at = slots.first; at < slots.last;) {
        const uint32_t row =
            cn_key_row(p.pool, item.seq, item.kv_head, slots.tile * CN_WALK_TILE + at);
        const bool is_whole = at % tile == 0 && at + tile < slots.last + CN_WALK_STEP;
        const CUtensorMap *map = is_whole ? whole : few;
#pragma unroll
        for (uint32_t box = 0; box < cn_one_shared<D>::BOXES; box++) {
            const uint32_t to = box * cn_one_shared<D>::BOX_BYTES + at * CN_ROW_BYTES;
            cn_box_copy(shared.keys(stage) + to, map, box * CN_BOX_COLS, row, barrier);
            cn_box_copy(shared.values(stage) + to, map, box * CN_BOX_COLS, row + p.pool.rows.value,
                        barrier);
        }
        at += is_whole ? tile : CN_WALK_STEP;
    }
}

__device__ static inline uint32_t cn_round16(uint32_t n) { return (n + 15) & ~15u; }

/* Warps that fetch, and threads of a block. */
template <bool LIST> __host__ __device__ constexpr uint32_t cn_one_fetch_warps(void)
{
    return LIST ? CN_ONE_LIST_WARPS : 1;
}

template <bool LIST> __host__ __device__ constexpr uint32_t cn_one_threads(void)
{
    return CN_ONE_COMPUTE + cn_one_fetch_warps<LIST>() * CN_WARP;
}

/* The rows of the pool that hold the keys of a tile's slots lane and lane + 32. */
typedef struct cn_one_rows {
    uint32_t row[2];
} cn_one_rows;

template <bool LIST>
__device__ static inline cn_one_rows cn_one_rows_of(const cn_one_params &p, const cn_walk &w,
                                                    const cn_one_item &item)
{
    const cn_walk_slots slots = cn_walk_slots_of(w);
    const uint32_t *list = NULL;
    uint32_t list_len = 0, tail = 0;
    cn_one_rows rows;
    if (LIST) {
        list = p.index + (size_t)(item.seq * p.pool.n_kv_heads + item.kv_head) * p.index_stride;
        list_len = __ldg(p.list_len + item.seq);
        tail = __ldg(p.tail + item.seq);
    }
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t i = half * CN_WARP + threadIdx.x % CN_WARP;
        const uint32_t at = slots.tile * CN_WALK_TILE + i;
        const bool used = i >= slots.first && i < slots.last;
        uint32_t slot = at;
        if (LIST && used) slot = at < list_len ? __ldcg(list + at) : tail + at - list_len;
        rows.row[half] = used ? cn_key_row(p.pool, item.seq, item.kv_head, slot) : 0;
    }
    return rows;
}

/* Copies the tile row by row. Called by a warp; eight lanes copy a row. */
template <int D>
__device__ static inline void cn_one_copy_tile(const cn_one_params &p, const cn_walk &w,
                                               const cn_one_rows &rows,
                                               const cn_one_shared<D> &shared, uint32_t stage)
{
    const uint32_t lane = threadIdx.x % CN_WARP, d = p.pool.head_dim, column = lane % 8;
    const cn_walk_slots slots = cn_walk_slots_of(w);
#pragma unroll 2
    for (uint32_t base = slots.first; base < cn_round16(slots.last); base += 4) {
        const uint32_t i = base + lane / 8;
        const uint32_t row = __shfl_sync(
            0xffffffffu, base < CN_WARP ? rows.row[0] : rows.row[1], i % CN_WARP);
        const cn_bf16 *key = p.pool.kv + (size_t)row * d;
        const cn_bf16 *value = key + d * p.pool.rows.value;
#pragma unroll
        for (uint32_t box = 0; box < cn_one_shared<D>::BOXES; box++) {
            const uint32_t chunk = box * 8 + column, to = cn_chunk_at(CN_WALK_TILE, i, chunk);
            const bool valid = i < slots.last && chunk * 8 < d;
            const uint32_t from = valid ? chunk * 8 : 0;
            cn_copy16_once(shared.keys(stage) + to, key + from, valid);
            cn_copy16_once(shared.values(stage) + to, value + from, valid);
        }
    }
}

template <int D>
__device__ static inline void cn_one_copy_query(const cn_one_params &p, const cn_one_item &item,
                                                const cn_one_shared<D> &shared, uint32_t stage)
{
    const uint32_t n = item.n_heads * p.pool.head_dim;
    const uint32_t to = cn_shared_address(shared.queries(stage));
    for (uint32_t i = threadIdx.x % CN_WARP * 8; i < n; i += CN_WARP * 8)
        cn_copy16(to + i * 2, p.q + item.query + i, true);
}

/* What the fetching warp of a bulk kernel needs besides the parameters. */
template <int D> struct cn_one_fetch {
    cn_one_shared<D> shared;
    cn_one_fixed *fixed;
    const CUtensorMap *whole, *few;
};

/* Uses the n-th stage in the sequence of the ring for the walk's tile and starts the copies of its
 * K and V. */
template <int D>
__device__ static inline void cn_one_start(const cn_one_params &p, const cn_one_fetch<D> &f,
                                           const cn_walk &w, uint32_t n)
{
    const uint32_t stage = n % p.n_stages, round = n / p.n_stages;
    uint64_t *barrier = &f.fixed->full[stage];
    const cn_one_item item = cn_one_item_of(p, w);
    cn_barrier_wait(&f.fixed->empty[stage], (round & 1) ^ 1);
    cn_one_write_note(&f.fixed->notes[stage], p, w, item);
    const uint32_t n_steps = cn_walk_tile_end(w) - w.step;
    uint32_t bytes = 2 * cn_one_shared<D>::BOXES * n_steps * CN_WALK_STEP * CN_ROW_BYTES;
    if (cn_walk_is_first(w)) bytes += item.n_heads * p.pool.head_dim * (uint32_t)sizeof(cn_bf16);
    cn_barrier_expect(barrier, bytes);
    cn_one_bulk_tile<D>(p, w, item, f.shared, stage, barrier, f.whole, f.few);
}

/* Starts the copy of the queries if a piece begins with the walk's tile. */
template <int D>
__device__ static inline void cn_one_start_query(const cn_one_params &p, const cn_one_fetch<D> &f,
                                                 const cn_walk &w, uint32_t n)
{
    const uint32_t stage = n % p.n_stages;
    if (!cn_walk_is_first(w)) return;
    const cn_one_item item = cn_one_item_of(p, w);
    cn_bulk_copy(cn_shared_address(f.shared.queries(stage)), p.q + item.query,
                 item.n_heads * p.pool.head_dim * (uint32_t)sizeof(cn_bf16), &f.fixed->full[stage]);
}

/* Fetches this block's share by bulk copies. Called by one thread. If K and V of other steps are
 * final, the ring is filled before the wait for the previous kernel. Only the newest tile of a
 * sequence, which holds this step's token, and the queries are fetched after the wait. */
template <int D>
__device__ static inline void cn_one_fetch_bulk(const cn_one_params &p, const cn_one_fetch<D> &f,
                                                cn_walk w)
{
    cn_walk late = w;
    uint32_t n = 0;
    bool more = true;
    while (p.early && more && n < p.n_stages && !cn_walk_is_newest(w)) {
        cn_one_start<D>(p, f, w, n++);
        more = !cn_walk_is_end(w);
        if (more) cn_walk_next(w, p.walk);
    }
    cn_wait_previous();
    cn_overlap_next();
    for (uint32_t i = 0; i < n; i++) {
        cn_one_start_query<D>(p, f, late, i);
        if (i + 1 < n) cn_walk_next(late, p.walk);
    }
    for (; more; n++) {
        cn_one_start<D>(p, f, w, n);
        cn_one_start_query<D>(p, f, w, n);
        more = !cn_walk_is_end(w);
        if (more) cn_walk_next(w, p.walk);
    }
}

__device__ static inline void cn_one_wait_and_overlap(void)
{
    cn_wait_previous();
    cn_overlap_next();
}

/* Moves n tiles on. Returns false when the share has fewer. */
__device__ static inline bool cn_one_skip(cn_walk &w, const cn_walk_shape &s, uint32_t n)
{
    for (; n > 0; n--) {
        if (cn_walk_is_end(w)) return false;
        cn_walk_next(w, s);
    }
    return true;
}

/* Waits until `select` has finished the item's list. Called by a warp. */
__device__ static inline void cn_one_wait_list(const cn_one_params &p, const cn_one_item &item)
{
    const uint32_t *done = p.done + item.seq * p.pool.n_kv_heads + item.kv_head;
    uint32_t count = threadIdx.x % CN_WARP > 0 ? (uint32_t)CN_CUDA_LIST_DONE : 0;
    while (count < CN_CUDA_LIST_DONE)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(done) : "memory");
    __syncwarp();
}

/* Fetches this block's share by cp.async. The fetching warps take tiles by turns: while one waits
 * for the entries of a list and of a table, the others copy. With `done` each copies its first tile
 * as soon as the list of this tile is finished, before the wait for the previous kernel. All blocks
 * of `select` have started then, and `score` before it has waited for what else is read. */
template <int D, bool LIST>
__device__ static inline void cn_one_fetch_rows(const cn_one_params &p,
                                                const cn_one_shared<D> &shared, cn_one_fixed *fixed,
                                                cn_walk w)
{
    constexpr uint32_t N_WARPS = cn_one_fetch_warps<LIST>();
    const uint32_t warp = (threadIdx.x - CN_ONE_COMPUTE) / CN_WARP;
    const bool early = LIST && p.early && p.done;
    bool more = cn_one_skip(w, p.walk, warp);
    if (!early || !more) cn_one_wait_and_overlap();
    for (uint32_t n = warp; more; n += N_WARPS) {
        const uint32_t stage = n % p.n_stages, round = n / p.n_stages;
        uint64_t *barrier = &fixed->full[stage];
        const cn_one_item item = cn_one_item_of(p, w);
        if (early && n == warp) cn_one_wait_list(p, item);
        const cn_one_rows rows = cn_one_rows_of<LIST>(p, w, item);
        cn_barrier_wait(&fixed->empty[stage], (round & 1) ^ 1);
        cn_one_copy_tile<D>(p, w, rows, shared, stage);
        if (cn_walk_is_first(w)) cn_one_copy_query<D>(p, item, shared, stage);
        cn_barrier_arrive_copied(barrier);
        if (threadIdx.x % CN_WARP == 0) {
            cn_one_write_note(&fixed->notes[stage], p, w, item);
            cn_barrier_arrive(barrier);
        }
        if (early && n == warp) cn_one_wait_and_overlap();
        more = cn_one_skip(w, p.walk, N_WARPS);
    }
}

/* ---- computing ---- */

/* The running result of a warp. A lane holds heads 2t and 2t+1 (t = lane % 4) of rows g and g + 8
 * (g = lane / 4) of each 16 dimensions, and the maximum and sum of these heads. The sum is over the
 * slots of this lane only. */
template <int D> struct cn_one_state {
    uint32_t query[D / 16][2];
    float out[D / 16][4];
    float max[2], sum[2];
};

template <int D>
__device__ static inline void cn_one_begin(cn_one_state<D> &x, const cn_bf16 *queries,
                                           uint32_t n_heads, uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, head = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        const bool valid = head < n_heads && k * 16 < d;
        const uint32_t *row = (const uint32_t *)(queries + head * d + k * 16);
        x.query[k][0] = valid ? row[t] : 0;
        x.query[k][1] = valid ? row[t + 4] : 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x.out[k][i] = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        x.max[i] = -CUDART_INF_F;
        x.sum[i] = 0;
    }
}

/* scores[0], [1]: slot g, heads 2t and 2t+1; [2], [3]: slot g + 8. */
template <int D>
__device__ static inline void cn_one_scores(float scores[4], const cn_one_state<D> &x,
                                            uint32_t keys, uint32_t slice)
{
    const uint32_t lane = threadIdx.x % CN_WARP, row = slice + lane % 16;
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}; /* two chains of sums hide latency */
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[4];
        cn_ldmatrix(a, keys + cn_chunk_at(CN_WALK_TILE, row, 2 * k + lane / 16));
        cn_mma(k % 2 ? odd : even, a, x.query[k][0], x.query[k][1]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) scores[i] = even[i] + odd[i];
}

/* Turns scores into weights, and scales the sums so far to the new maximum. */
template <int D>
__device__ static inline void cn_one_softmax(float scores[4], cn_one_state<D> &x, float scale,
                                             uint32_t n)
{
    const uint32_t g = threadIdx.x % CN_WARP / 4;
    float keep[2];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        scores[i] = g + i / 2 * 8 < n ? scores[i] * scale : -CUDART_INF_F;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const float top = fmaxf(x.max[h], cn_column_max(fmaxf(scores[h], scores[h + 2])));
        keep[h] = cn_exp2(x.max[h] - top);
        x.max[h] = top;
        scores[h] = cn_exp2(scores[h] - top);
        scores[h + 2] = cn_exp2(scores[h + 2] - top);
        x.sum[h] = x.sum[h] * keep[h] + scores[h] + scores[h + 2];
    }
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x.out[k][i] *= keep[i % 2];
}

/* Mask that clears the values of slots past n: 0 times the content of an unused slot may not be
 * 0. */
__device__ static inline uint32_t cn_one_mask(uint32_t slot, uint32_t n)
{
    return (slot < n ? 0xffffu : 0) | (slot + 1 < n ? 0xffff0000u : 0);
}

template <int D>
__device__ static inline void cn_one_values(cn_one_state<D> &x, const float weights[4],
                                            uint32_t values, uint32_t slice, uint32_t n)
{
    const uint32_t lane = threadIdx.x % CN_WARP, t = lane % 4;
    const uint32_t row = slice + lane % 8 + lane / 16 * 8;
    const uint32_t low = cn_one_mask(2 * t, n), high = cn_one_mask(2 * t + 8, n);
    const uint32_t b0 = cn_movmatrix(cn_pack2(weights[0], weights[1]));
    const uint32_t b1 = cn_movmatrix(cn_pack2(weights[2], weights[3]));
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[4];
        cn_ldmatrix_transposed(a, values + cn_chunk_at(CN_WALK_TILE, row, 2 * k + lane / 8 % 2));
        a[0] &= low;
        a[1] &= low;
        a[2] &= high;
        a[3] &= high;
        cn_mma(x.out[k], a, b0, b1);
    }
}

/* ---- ending a piece ---- */

/* Each warp writes its result to the exchange. */
template <int D>
__device__ static inline void cn_one_lay_down(const cn_one_state<D> &x, float *exchange,
                                              cn_one_fixed *fixed)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t g = lane / 4, t = lane % 4;
    float *own = exchange + (warp * CN_ONE_HEADS + 2 * t) * cn_one_shared<D>::HEAD_FLOATS + g;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            own[i % 2 * cn_one_shared<D>::HEAD_FLOATS + k * 16 + i / 2 * 8] = x.out[k][i];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float sum = cn_column_sum(x.sum[i]);
        if (g == 0) fixed->sums[warp][2 * t + i] = make_float2(x.max[i], sum);
    }
}

/* Returns the largest of n maxima, and the sum of the n sums scaled to it. */
__device__ static inline float2 cn_one_total(const float2 *sums, uint32_t n, uint32_t stride)
{
    float2 total = make_float2(-CUDART_INF_F, 0);
    for (uint32_t i = 0; i < n; i++) total.x = fmaxf(total.x, sums[i * stride].x);
    for (uint32_t i = 0; i < n; i++)
        total.y += sums[i * stride].y * cn_exp2(sums[i * stride].x - total.x);
    return total;
}

__device__ static inline void cn_one_add(float4 &to, float4 x, float weight)
{
    to.x += x.x * weight;
    to.y += x.y * weight;
    to.z += x.z * weight;
    to.w += x.w * weight;
}

__device__ static inline void cn_one_store(cn_bf16 *out, float4 x, float sum)
{
    const float scale = 1.0f / sum;
    *(uint2 *)out =
        make_uint2(cn_pack2(x.x * scale, x.y * scale), cn_pack2(x.z * scale, x.w * scale));
}

/* Merges the few pieces of an item, in order. All their loads are issued together. */
template <int D>
__device__ static inline void cn_one_merge_few(const cn_one_params &p, const cn_one_note &note)
{
    const uint32_t d = p.pool.head_dim, n = note.piece.n_pieces;
    for (uint32_t i = threadIdx.x * 4; i < note.n_heads * D; i += CN_ONE_COMPUTE * 4) {
        const uint32_t head = i / D, column = i % D;
        float2 sums[CN_ONE_FEW];
        float4 parts[CN_ONE_FEW];
#pragma unroll
        for (uint32_t j = 0; j < CN_ONE_FEW; j++) {
            sums[j] = make_float2(-CUDART_INF_F, 0);
            if (j >= n) continue;
            const uint32_t row = cn_walk_slot(note.piece, j) * p.slot_heads + head;
            sums[j] = __ldcg(&p.partial_sums[row]);
            parts[j] = __ldcg((const float4 *)(p.partial_out + (size_t)row * D + column));
        }
        const float2 total = cn_one_total(sums, CN_ONE_FEW, 1);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t j = 0; j < CN_ONE_FEW; j++)
            if (j < n) cn_one_add(out, parts[j], cn_exp2(sums[j].x - total.x));
        if (column < d) cn_one_store(p.out + note.query + head * d + column, out, total.y);
    }
}

/* Merges all pieces of an item, in order. The maxima and sums of many are first copied to the
 * exchange, so that the loads of their results do not wait for one another. */
template <int D>
__device__ static inline void cn_one_merge(const cn_one_params &p, const cn_one_note &note,
                                           float *exchange)
{
    const uint32_t d = p.pool.head_dim, n = note.piece.n_pieces, heads = note.n_heads;
    float2 *sums = (float2 *)exchange; /* [n, heads] */
    if (n <= CN_ONE_FEW) {
        cn_one_merge_few<D>(p, note);
        return;
    }
    for (uint32_t i = threadIdx.x; i < n * heads; i += CN_ONE_COMPUTE) {
        const uint32_t slot = cn_walk_slot(note.piece, i / heads);
        sums[i] = __ldcg(&p.partial_sums[slot * p.slot_heads + i % heads]);
    }
    cn_sync_some(1, CN_ONE_COMPUTE);
    for (uint32_t i = threadIdx.x * 4; i < heads * D; i += CN_ONE_COMPUTE * 4) {
        const uint32_t head = i / D, column = i % D;
        if (column >= d) continue;
        const float2 total = cn_one_total(sums + head, n, heads);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (uint32_t j = 0; j < n; j++) {
            const uint32_t slot = cn_walk_slot(note.piece, j);
            const size_t at = (size_t)(slot * p.slot_heads + head) * D + column;
            cn_one_add(out, __ldcg((const float4 *)(p.partial_out + at)),
                       cn_exp2(sums[j * heads + head].x - total.x));
        }
        cn_one_store(p.out + note.query + head * d + column, out, total.y);
    }
}

/* Counts the piece as done. Returns true, to all threads of the block, if it was the last piece of
 * its item. */
__device__ static inline bool cn_one_arrive(const cn_one_params &p, const cn_one_note &note,
                                            cn_one_fixed *fixed)
{
    cn_sync_some(1, CN_ONE_COMPUTE);
    if (threadIdx.x == 0) {
        uint32_t *count = p.arrivals + note.piece.first_slot, before;
        /* Releases the stores of this block before the barrier, and acquires those of others. */
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(count)
                     : "memory");
        fixed->is_last = before == note.piece.n_pieces - 1;
        if (fixed->is_last) *count = 0;
    }
    cn_sync_some(1, CN_ONE_COMPUTE);
    return fixed->is_last;
}

/* Merges the results of the warps. If the piece is the whole item, stores the item's result.
 * Otherwise stores the piece's partial result; if this was the last piece, merges the item. */
template <int D>
__device__ static inline void cn_one_end(const cn_one_params &p, const cn_one_state<D> &x,
                                         const cn_one_note &note, float *exchange,
                                         cn_one_fixed *fixed)
{
    const uint32_t d = p.pool.head_dim;
    const bool whole = note.piece.n_pieces == 1;
    cn_one_lay_down<D>(x, exchange, fixed);
    cn_sync_some(1, CN_ONE_COMPUTE);
    for (uint32_t i = threadIdx.x * 4; i < note.n_heads * D; i += CN_ONE_COMPUTE * 4) {
        const uint32_t head = i / D, column = i % D;
        const float2 total = cn_one_total(&fixed->sums[0][head], CN_ONE_WARPS, CN_ONE_HEADS);
        float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t w = 0; w < CN_ONE_WARPS; w++) {
            const uint32_t at = (w * CN_ONE_HEADS + head) * cn_one_shared<D>::HEAD_FLOATS + column;
            cn_one_add(out, *(const float4 *)(exchange + at),
                       cn_exp2(fixed->sums[w][head].x - total.x));
        }
        if (whole && column < d) cn_one_store(p.out + note.query + head * d + column, out, total.y);
        if (whole) continue;
        const uint32_t at = note.piece.slot * p.slot_heads + head;
        *(float4 *)(p.partial_out + (size_t)at * D + column) = out;
        if (column == 0) p.partial_sums[at] = total;
    }
    if (!whole && cn_one_arrive(p, note, fixed)) cn_one_merge<D>(p, note, exchange);
    cn_sync_some(1, CN_ONE_COMPUTE); /* the exchange may be written again */
}

/* Returns the note of a stage to all lanes of a warp. Only the lane that later arrives at the
 * stage's `empty` barrier reads it. Its own arrival then orders the read before the next note,
 * which race checkers can verify. */
__device__ static inline cn_one_note cn_one_read_note(const cn_one_note *from)
{
    enum { WORDS = sizeof(cn_one_note) / sizeof(uint32_t) };
    static_assert(sizeof(cn_one_note) % sizeof(uint32_t) == 0, "a note is whole words");
    union {
        cn_one_note note;
        uint32_t words[WORDS];
    } x;
    const uint32_t *words = (const uint32_t *)from;
    const bool reads = threadIdx.x % CN_WARP == 0;
#pragma unroll
    for (int i = 0; i < WORDS; i++) x.words[i] = __shfl_sync(0xffffffffu, reads ? words[i] : 0, 0);
    return x.note;
}

template <int D>
__device__ static inline void cn_one_compute(const cn_one_params &p, const cn_one_shared<D> &shared,
                                             cn_one_fixed *fixed)
{
    const uint32_t lane = threadIdx.x % CN_WARP, slice = threadIdx.x / CN_WARP * CN_ONE_SLICE;
    cn_one_state<D> x;
    bool end = false;
    for (uint32_t i = 0; !end; i++) {
        const uint32_t stage = i % p.n_stages, round = i / p.n_stages;
        cn_barrier_wait(&fixed->full[stage], round & 1);
        const cn_one_note note = cn_one_read_note(&fixed->notes[stage]);
        if (note.first) cn_one_begin<D>(x, shared.queries(stage), note.n_heads, p.pool.head_dim);
        if (slice >= note.first_slot && slice < note.last_slot) {
            const uint32_t n = note.last_slot - slice;
            float scores[4];
            cn_one_scores<D>(scores, x, shared.keys(stage), slice);
            cn_one_softmax<D>(scores, x, p.scale, n);
            cn_one_values<D>(x, scores, shared.values(stage), slice, n);
        }
        __syncwarp();
        if (lane == 0) cn_barrier_arrive(&fixed->empty[stage]);
        if (note.last) cn_one_end<D>(p, x, note, shared.exchange(), fixed);
        end = note.end;
    }
}

/* ---- the kernel ---- */

template <int D, bool BULK, bool LIST>
__global__ static void __launch_bounds__(cn_one_threads<LIST>(), 1)
    attn_one_kernel(const __grid_constant__ cn_one_params p,
                    const __grid_constant__ CUtensorMap whole,
                    const __grid_constant__ CUtensorMap few)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ cn_one_fixed fixed;
    __shared__ bool idle;
    cn_one_shared<D> shared;
    shared.n_stages = p.n_stages;
    shared.base = dynamic + (0u - cn_shared_address(dynamic)) % cn_one_shared<D>::ALIGN;
    const bool fetches = threadIdx.x >= CN_ONE_COMPUTE;
    cn_walk w;
    if (BULK && threadIdx.x == CN_ONE_COMPUTE) {
        cn_map_prefetch(&whole);
        cn_map_prefetch(&few);
    }
    cn_touch_params(p);
    if (!p.early) cn_wait_previous();
    if (fetches) {
        const bool busy = cn_walk_begin(w, p.walk, blockIdx.x, gridDim.x);
        if (threadIdx.x == CN_ONE_COMPUTE) {
            idle = !busy;
            for (uint32_t i = 0; i < p.n_stages; i++) {
                cn_barrier_init(&fixed.full[i], BULK ? 1 : CN_WARP + 1);
                cn_barrier_init(&fixed.empty[i], CN_ONE_WARPS);
            }
            cn_barrier_init_done();
        }
    }
    __syncthreads();
    if (idle) {
        cn_wait_previous();
        return;
    }
    if (!fetches) {
        cn_one_compute<D>(p, shared, &fixed);
    } else if (!BULK) {
        cn_one_fetch_rows<D, LIST>(p, shared, &fixed, w);
    } else if (threadIdx.x == CN_ONE_COMPUTE) {
        const cn_one_fetch<D> f = {shared, &fixed, &whole, &few};
        cn_one_fetch_bulk<D>(p, f, w);
    }
}

/* ---- launching ---- */

/* Sets the parameters that depend on D and launches. If BULK, `whole` and `few` must be encoded. */
template <int D, bool BULK, bool LIST>
static cn_status cn_one_launch_as(cn_stream *s, const char *op, cn_one_params p,
                                  const CUtensorMap *whole, const CUtensorMap *few)
{
    typedef cn_one_shared<D> shared;
    const cn_cuda_device *dev = &s->cuda->device;
    /* A block takes all shared memory of a multiprocessor, so no multiprocessor gets two blocks.
     * With room for two, blocks of the next kernel start earlier, but two share a multiprocessor
     * while others have none. That costs more than the early start gains. */
    const size_t fixed_bytes = sizeof(cn_one_fixed) + 64 + shared::FIXED_BYTES;
    size_t n_stages = 0;
    if (dev->shared_bytes > fixed_bytes)
        n_stages = (dev->shared_bytes - fixed_bytes) / shared::STAGE_BYTES;
    CN_ASSERT(dev->n_sms < CN_ONE_PIECES);
    if (n_stages == 0)
        return cn_fail(CN_ERR_SHAPE,
                       "%s: head_dim %u needs %zu bytes of shared memory, but the GPU "
                       "has %zu",
                       op, p.pool.head_dim, fixed_bytes + shared::STAGE_BYTES, dev->shared_bytes);
    p.n_stages = cn_min_u32((uint32_t)n_stages, CN_ONE_MAX_STAGES);
    p.slot_heads = cn_min_u32(p.group, CN_ONE_HEADS);
    const size_t head_bytes = sizeof(float2) + D * sizeof(float);
    size_t n_slots = (s->cuda->attn_scratch_bytes - CN_ONE_ARRIVALS * sizeof(uint32_t)) /
                     (p.slot_heads * head_bytes) / 64 * 64;
    if (n_slots > CN_ONE_ARRIVALS) n_slots = CN_ONE_ARRIVALS;
    const uint64_t n_items = (uint64_t)p.walk.n_units * p.walk.items_per_unit;
    const uint64_t needed =
        p.walk.by_length ? n_items * CN_WALK_LENGTH_PIECES : 2 * (uint64_t)dev->n_sms;
    if (needed > n_slots)
        return cn_fail(CN_ERR_SHAPE,
                       "%s: %llu partial results exceed the room for %zu: lower --max-num-seqs, or "
                       "disable --batch-invariant",
                       op, (unsigned long long)needed, n_slots);
    CN_ASSERT(s->attn_scratch);
    p.arrivals = (uint32_t *)s->attn_scratch;
    p.partial_sums = (float2 *)(p.arrivals + CN_ONE_ARRIVALS);
    p.partial_out = (float *)(p.partial_sums + n_slots * p.slot_heads);
    return cn_cuda_launch(
        s, op, attn_one_kernel<D, BULK, LIST>,
        {dim3(dev->n_sms), cn_one_threads<LIST>(),
         shared::FIXED_BYTES + p.n_stages * shared::STAGE_BYTES},
        p, *whole, *few);
}

/* Returns the parameters that both ops share, for sequences [0, n_decode). */
static inline cn_one_params cn_one_params_of(cn_stream *s, const cn_attn_args *a)
{
    cn_one_params p = {};
    p.out = (cn_bf16 *)a->out;
    p.q = (const cn_bf16 *)a->q;
    p.pool = cn_attn_pool_of(a);
    p.n_heads = a->n_heads;
    p.group = a->n_heads / a->layout.n_kv_heads;
    p.n_parts = (uint32_t)cn_ceil_div(p.group, CN_ONE_HEADS);
    p.walk.n_units = a->batch->n_decode;
    p.walk.items_per_unit = a->layout.n_kv_heads * p.n_parts;
    p.scale = a->scale * CN_LOG2E;
    p.walk.by_length = s->cuda->opts.batch_invariant;
    return p;
}

#endif
