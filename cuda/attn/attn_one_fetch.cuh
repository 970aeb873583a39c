/* attn_one_fetch.cuh - the fetching warps of attn_one.cuh. They copy the tiles of the block's share
 * into the ring: by bulk copies (one thread), or row by row by cp.async (one warp, or several for a
 * list). */
#pragma once

#include "cuda/attn/attn_one_shared.cuh"

__device__ static inline uint32_t cn_round16(uint32_t n) { return (n + 15) & ~15u; }

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

template <bool WIDE>
__device__ static inline void cn_one_write_note(cn_one_note *note, const cn_one_params &p,
                                                const cn_walk &w, const cn_one_item &item)
{
    const cn_walk_slots slots = cn_walk_slots_of<WIDE>(w);
    note->query = item.query;
    note->first_slot = (uint16_t)slots.first;
    note->last_slot = (uint16_t)slots.last;
    note->n_heads = (uint16_t)item.n_heads;
    note->first = cn_walk_is_first(w);
    note->last = cn_walk_is_last<WIDE>(w);
    note->end = cn_walk_is_end<WIDE>(w);
    if (note->last) note->piece = cn_walk_piece_of(w, blockIdx.x);
}

/* Copies the slots of a tile in eight bits: whole tiles of the pool if shared memory has them as
 * the pool does, else keys, values and their scales as far as they share a tile of the pool. Called
 * by one thread. */
template <int D>
__device__ static inline void cn_one_bulk_fp8(const cn_one_params &p, const cn_walk &w,
                                              const cn_one_item &item,
                                              const cn_one_shared<D, true> &shared, uint32_t stage,
                                              uint64_t *barrier)
{
    constexpr uint32_t TILE = cn_one_tile<D, true>();
    const cn_walk_slots slots = cn_walk_slots_of<cn_one_wide<D, true>()>(w);
    const uint32_t tile = 1u << p.pool.tile_shift, d = p.pool.head_dim;
    const uint32_t end = cn_round16(slots.last);
    for (uint32_t at = slots.first, n; at < end; at += n) {
        const cn_fp8_rows r =
            cn_fp8_rows_of(p.pool, item.seq, item.kv_head, slots.tile * TILE + at);
        const uint32_t half = at / CN_WALK_TILE, in_half = at % CN_WALK_TILE;
        n = min(tile - at % tile, end - at);
        if (d == D && n == CN_WALK_TILE) { /* tiles of a block and head follow one another */
            if (end - at == TILE && TILE >> p.pool.block_shift <= 1) n = TILE;
            cn_bulk_copy(shared.keys(stage, half), r.key,
                         n / CN_WALK_TILE * cn_one_shared<D, true>::HALF_BYTES, barrier);
            continue;
        }
        const uint32_t scales = cn_shared_address(shared.scales(stage, half));
        cn_bulk_copy(shared.keys(stage, half) + in_half * d, r.key, n * d, barrier);
        cn_bulk_copy(shared.values(stage, half) + in_half * d, r.value, n * d, barrier);
        cn_bulk_copy(scales + in_half * 2, r.key_scale, n * 2, barrier);
        cn_bulk_copy(scales + (CN_WALK_TILE + in_half) * 2, r.value_scale, n * 2, barrier);
    }
}

/* Copies the boxes of a tile: whole tiles of the pool by `whole`, the rest by `few`, 16 rows per
 * box. Called by one thread. */
template <int D>
__device__ static inline void
cn_one_bulk_tile(const cn_one_params &p, const cn_walk &w, const cn_one_item &item,
                 const cn_one_shared<D, false> &shared, uint32_t stage, uint64_t *barrier,
                 const CUtensorMap *whole, const CUtensorMap *few)
{
    const cn_walk_slots slots = cn_walk_slots_of<false>(w);
    const uint32_t tile = 1u << p.pool.tile_shift;
    for (uint32_t at = slots.first; at < slots.last;) {
        const uint32_t row =
            cn_key_row(p.pool, item.seq, item.kv_head, slots.tile * CN_WALK_TILE + at);
        const bool is_whole = at % tile == 0 && at + tile < slots.last + CN_WALK_STEP;
        const CUtensorMap *map = is_whole ? whole : few;
#pragma unroll
        for (uint32_t box = 0; box < cn_one_shared<D, false>::BOXES; box++) {
            const uint32_t to = box * cn_one_shared<D, false>::BOX_BYTES + at * CN_ROW_BYTES;
            cn_box_copy(shared.keys(stage) + to, map, box * CN_BOX_COLS, row, barrier);
            cn_box_copy(shared.values(stage) + to, map, box * CN_BOX_COLS, row + p.pool.rows.value,
                        barrier);
        }
        at += is_whole ? tile : CN_WALK_STEP;
    }
}

/* Warps that fetch, and threads of a block. */
template <bool LIST, bool FP8> __host__ __device__ constexpr uint32_t cn_one_fetch_warps(void)
{
    return LIST ? CN_ONE_LIST_WARPS : FP8 ? 2 : 1;
}

template <int D, bool LIST, bool FP8> __host__ __device__ constexpr uint32_t cn_one_threads(void)
{
    return cn_one_computing<D, FP8>() + cn_one_fetch_warps<LIST, FP8>() * CN_WARP;
}

/* The rows of the pool that hold the keys of a tile's slots lane, lane + 32 and so on; in eight
 * bits cn_pool_slot. */
template <int D, bool FP8> struct cn_one_rows {
    static constexpr uint32_t N = cn_one_tile<D, FP8>() / CN_WARP;
    uint32_t row[N];
};

template <int D, bool LIST, bool FP8>
__device__ static inline cn_one_rows<D, FP8>
cn_one_rows_of(const cn_one_params &p, const cn_walk &w, const cn_one_item &item)
{
    const cn_walk_slots slots = cn_walk_slots_of<cn_one_wide<D, FP8>()>(w);
    const uint32_t *list = NULL;
    uint32_t list_len = 0, tail = 0;
    cn_one_rows<D, FP8> rows;
    if (LIST) {
        list = p.index + (size_t)(item.seq * p.pool.n_kv_heads + item.kv_head) * p.index_stride;
        list_len = __ldg(p.list_len + item.seq);
        tail = __ldg(p.tail + item.seq);
    }
#pragma unroll
    for (uint32_t half = 0; half < cn_one_rows<D, FP8>::N; half++) {
        const uint32_t i = half * CN_WARP + threadIdx.x % CN_WARP;
        const uint32_t at = slots.tile * cn_one_tile<D, FP8>() + i;
        const bool used = i >= slots.first && i < slots.last;
        uint32_t slot = at;
        if (LIST && used) slot = at < list_len ? __ldcg(list + at) : tail + at - list_len;
        if constexpr (FP8)
            rows.row[half] = used ? cn_pool_slot(p.pool, item.seq, slot) : 0;
        else
            rows.row[half] = used ? cn_key_row(p.pool, item.seq, item.kv_head, slot) : 0;
    }
    return rows;
}

/* Copies the tile row by row. Called by a warp; eight lanes copy a row. */
template <int D>
__device__ static inline void cn_one_copy_tile(const cn_one_params &p, const cn_walk &w,
                                               const cn_one_rows<D, false> &rows,
                                               const cn_one_shared<D, false> &shared,
                                               uint32_t stage)
{
    const uint32_t lane = threadIdx.x % CN_WARP, d = p.pool.head_dim, column = lane % 8;
    const cn_walk_slots slots = cn_walk_slots_of<false>(w);
#pragma unroll 2
    for (uint32_t base = slots.first; base < cn_round16(slots.last); base += 4) {
        const uint32_t i = base + lane / 8;
        const uint32_t row = __shfl_sync(
            0xffffffffu, base < CN_WARP ? rows.row[0] : rows.row[1], i % CN_WARP);
        const cn_bf16 *key = p.pool.kv + (size_t)row * d;
        const cn_bf16 *value = key + d * p.pool.rows.value;
#pragma unroll
        for (uint32_t box = 0; box < cn_one_shared<D, false>::BOXES; box++) {
            const uint32_t chunk = box * 8 + column, to = cn_chunk_at(CN_WALK_TILE, i, chunk);
            const bool valid = i < slots.last && chunk * 8 < d;
            const uint32_t from = valid ? chunk * 8 : 0;
            cn_copy16_once(shared.keys(stage) + to, key + from, valid);
            cn_copy16_once(shared.values(stage) + to, value + from, valid);
        }
    }
}

__device__ static inline cn_fp8_rows cn_one_fp8_rows(const cn_one_params &p,
                                                     const cn_one_item &item, uint32_t row)
{
    const uint32_t shift = p.pool.block_shift;
    return cn_fp8_rows_at(p.pool.fp8, p.pool.layer, row >> shift, item.kv_head,
                          row & ((1u << shift) - 1));
}

/* The same for rows in eight bits. Scales are too short for cp.async: each lane copies those of its
 * slots. */
template <int D>
__device__ static inline void cn_one_copy_fp8(const cn_one_params &p, const cn_walk &w,
                                              const cn_one_item &item,
                                              const cn_one_rows<D, true> &rows,
                                              const cn_one_shared<D, true> &shared, uint32_t stage)
{
    constexpr uint32_t N = cn_one_rows<D, true>::N;
    const uint32_t lane = threadIdx.x % CN_WARP, d = p.pool.head_dim;
    const cn_walk_slots slots = cn_walk_slots_of<cn_one_wide<D, true>()>(w);
    uint16_t scales[N][2];
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const cn_fp8_rows r = cn_one_fp8_rows(p, item, rows.row[k]);
        scales[k][0] = __ldcg(r.key_scale);
        scales[k][1] = __ldcg(r.value_scale);
    }
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const uint32_t first = max(k * CN_WARP, slots.first);
        const uint32_t end = min((k + 1) * CN_WARP, cn_round16(slots.last));
        for (uint32_t base = first; base < end; base += 4) {
            const uint32_t i = base + lane / 8, half = i / CN_WALK_TILE, to = i % CN_WALK_TILE * d;
            const uint32_t row = __shfl_sync(0xffffffffu, rows.row[k], i % CN_WARP);
            const cn_fp8_rows r = cn_one_fp8_rows(p, item, row);
            for (uint32_t column = lane % 8 * 16; column < d; column += 128) {
                const bool valid = i < slots.last;
                cn_copy16_once(shared.keys(stage, half) + to + column, r.key + column, valid);
                cn_copy16_once(shared.values(stage, half) + to + column, r.value + column, valid);
            }
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < N; k++) {
        const uint32_t i = k * CN_WARP + lane;
        uint16_t *to = shared.scales(stage, i / CN_WALK_TILE) + i % CN_WALK_TILE;
        to[0] = scales[k][0];
        to[CN_WALK_TILE] = scales[k][1];
    }
    __syncwarp(); /* the arrival of lane 0 is for the scales of all lanes */
}

template <int D, bool FP8>
__device__ static inline void cn_one_copy_query(const cn_one_params &p, const cn_one_item &item,
                                                const cn_one_shared<D, FP8> &shared,
                                                uint32_t stage)
{
    const uint32_t n = item.n_heads * p.pool.head_dim;
    const uint32_t to = cn_shared_address(shared.queries(stage));
    for (uint32_t i = threadIdx.x % CN_WARP * 8; i < n; i += CN_WARP * 8)
        cn_copy16(to + i * 2, p.q + item.query + i, true);
}

/* What the fetching warp of a bulk kernel needs besides the parameters. */
template <int D, bool FP8> struct cn_one_fetch {
    cn_one_shared<D, FP8> shared;
    cn_one_fixed *fixed;
    const CUtensorMap *whole, *few;
};

/* Uses the n-th stage in the sequence of the ring for the walk's tile and starts the copies of its
 * K and V. */
template <int D, bool FP8>
__device__ static inline void cn_one_start(const cn_one_params &p, const cn_one_fetch<D, FP8> &f,
                                           const cn_walk &w, uint32_t n)
{
    const uint32_t stage = n % p.n_stages, round = n / p.n_stages;
    uint64_t *barrier = &f.fixed->full[stage];
    const cn_one_item item = cn_one_item_of(p, w);
    cn_barrier_wait(&f.fixed->empty[stage], (round & 1) ^ 1);
    cn_one_write_note<cn_one_wide<D, FP8>()>(&f.fixed->notes[stage], p, w, item);
    const uint32_t n_steps = cn_walk_tile_end<cn_one_wide<D, FP8>()>(w) - w.step;
    const uint32_t slot_bytes = FP8 ? 2 * (p.pool.head_dim + (uint32_t)sizeof(uint16_t))
                                    : 2 * cn_one_shared<D, FP8>::BOXES * CN_ROW_BYTES;
    uint32_t bytes = n_steps * CN_WALK_STEP * slot_bytes;
    if (cn_walk_is_first(w)) bytes += item.n_heads * p.pool.head_dim * (uint32_t)sizeof(cn_bf16);
    cn_barrier_expect(barrier, bytes);
    if constexpr (FP8)
        cn_one_bulk_fp8<D>(p, w, item, f.shared, stage, barrier);
    else
        cn_one_bulk_tile<D>(p, w, item, f.shared, stage, barrier, f.whole, f.few);
}

/* Starts the copy of the queries if a piece begins with the walk's tile. */
template <int D, bool FP8>
__device__ static inline void cn_one_start_query(const cn_one_params &p,
                                                 const cn_one_fetch<D, FP8> &f, const cn_walk &w,
                                                 uint32_t n)
{
    const uint32_t stage = n % p.n_stages;
    if (!cn_walk_is_first(w)) return;
    const cn_one_item item = cn_one_item_of(p, w);
    cn_bulk_copy(cn_shared_address(f.shared.queries(stage)), p.q + item.query,
                 item.n_heads * p.pool.head_dim * (uint32_t)sizeof(cn_bf16), &f.fixed->full[stage]);
}

__device__ static inline void cn_one_wait_and_overlap(void)
{
    cn_wait_previous();
    cn_overlap_next();
}

/* Moves n tiles on. Returns false when the share has fewer. */
template <bool WIDE>
__device__ static inline bool cn_one_skip(cn_walk &w, const cn_walk_shape &s, uint32_t n)
{
    for (; n > 0; n--) {
        if (cn_walk_is_end<WIDE>(w)) return false;
        cn_walk_next<WIDE>(w, s);
    }
    return true;
}

/* Fetches this block's share by bulk copies: tiles by turns, as in cn_one_fetch_rows. Called by one
 * thread of each warp that fetches. If K and V of other steps are final, the ring is filled before
 * the wait for the previous kernel. Only the newest tile of a sequence, which holds this step's
 * token, and the queries are fetched after the wait. */
template <int D, bool FP8>
__device__ static inline void cn_one_fetch_bulk(const cn_one_params &p,
                                                const cn_one_fetch<D, FP8> &f, cn_walk w)
{
    constexpr bool WIDE = cn_one_wide<D, FP8>();
    constexpr uint32_t MOST = cn_one_fetch_warps<false, FP8>();
    const uint32_t n_warps = MOST > 1 ? min(MOST, p.n_stages) : 1;
    const uint32_t warp = MOST > 1 ? (threadIdx.x - cn_one_computing<D, FP8>()) / CN_WARP : 0;
    bool more = warp < n_warps && cn_one_skip<WIDE>(w, p.walk, warp);
    cn_walk late = w;
    uint32_t n = warp;
    while (p.early && more && n < p.n_stages && !cn_walk_is_newest<WIDE>(w)) {
        cn_one_start<D, FP8>(p, f, w, n);
        n += n_warps;
        more = cn_one_skip<WIDE>(w, p.walk, n_warps);
    }
    cn_one_wait_and_overlap();
    for (uint32_t i = warp; i < n; i += n_warps) {
        cn_one_start_query<D, FP8>(p, f, late, i);
        if (i + n_warps < n) cn_one_skip<WIDE>(late, p.walk, n_warps);
    }
    for (; more; n += n_warps) {
        cn_one_start<D, FP8>(p, f, w, n);
        cn_one_start_query<D, FP8>(p, f, w, n);
        more = cn_one_skip<WIDE>(w, p.walk, n_warps);
    }
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
 * for the entries of a list and of a table, the others copy. At most as many warps fetch as there
 * are stages. With more, a warp could be two rounds ahead of a stage. The parity of the stage's
 * barrier would then let it pass, and it would overwrite keys that are still needed.
 *
 * With `done` each warp copies its first tile as soon as the list of this tile is finished, before
 * the wait for the previous kernel. All blocks of `select` have started then, and `score` before it
 * has waited for what else is read. */
template <int D, bool LIST, bool FP8>
__device__ static inline void cn_one_fetch_rows(const cn_one_params &p,
                                                const cn_one_shared<D, FP8> &shared,
                                                cn_one_fixed *fixed, cn_walk w)
{
    constexpr bool WIDE = cn_one_wide<D, FP8>();
    const uint32_t n_warps = min(cn_one_fetch_warps<LIST, FP8>(), p.n_stages);
    const uint32_t warp = (threadIdx.x - cn_one_computing<D, FP8>()) / CN_WARP;
    const bool early = LIST && p.early && p.done;
    bool more = warp < n_warps && cn_one_skip<WIDE>(w, p.walk, warp);
    if (!early || !more) cn_one_wait_and_overlap();
    for (uint32_t n = warp; more; n += n_warps) {
        const uint32_t stage = n % p.n_stages, round = n / p.n_stages;
        uint64_t *barrier = &fixed->full[stage];
        const cn_one_item item = cn_one_item_of(p, w);
        if (early && n == warp) cn_one_wait_list(p, item);
        const cn_one_rows<D, FP8> rows = cn_one_rows_of<D, LIST, FP8>(p, w, item);
        cn_barrier_wait(&fixed->empty[stage], (round & 1) ^ 1);
        if constexpr (FP8)
            cn_one_copy_fp8<D>(p, w, item, rows, shared, stage);
        else
            cn_one_copy_tile<D>(p, w, rows, shared, stage);
        if (cn_walk_is_first(w)) cn_one_copy_query<D, FP8>(p, item, shared, stage);
        cn_barrier_arrive_copied(barrier);
        if (threadIdx.x % CN_WARP == 0) {
            cn_one_write_note<WIDE>(&fixed->notes[stage], p, w, item);
            cn_barrier_arrive(barrier);
        }
        if (early && n == warp) cn_one_wait_and_overlap();
        more = cn_one_skip<WIDE>(w, p.walk, n_warps);
    }
}
