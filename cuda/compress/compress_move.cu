/* compress_move.cu - moves the kept slots of an event into the target blocks.
 * K, V [tokens, d] bf16 rows, P and F in the pool's layout; kept [units, work_words], or the sinks
 * and the newest slots under policy window.
 *
 * Move `order`, grid (units, K and V), 128 threads. Target slot i receives slot kept[i] >= i. A
 * write therefore replaces a slot that an earlier target slot has read, or that no target needs, or
 * that was set aside (cpu_compact.c). A block processes its targets in order, tile by tile. It has
 * the rows of the next tile in registers before it writes those of this tile: one barrier per tile.
 * K and V do not depend on each other, so different blocks move them. Rows that stay in place are
 * neither read nor written.
 *
 * Move `fill`, grid (units, slices). Every source block that is a target at another place is set
 * aside first. After that no row that is read is also written. A block lists the rows of a slice of
 * target slots that move, and copies their K and V in any order.
 * In eight bits the thread that finds a row's addresses moves the row's scale, in the same order.
 * Bytes moved: 8 d per unit and kept slot that moves; in eight bits 4 d + 8. Of rows of K that
 * contain V (latent attention) only these move, 4 d.
 * CPU version: cpu_compact.c. Paper C.6. */
#include "cuda/compress/compress.cuh"

enum {
    THREADS = 128,
    VECS = 8, /* vectors of 16 bytes of a tile in a thread's registers */
    MAX_ROWS = THREADS,
    SLICE = 2 * THREADS, /* target slots */
    RING = 4,            /* tiles whose addresses are in shared memory */
    RESIDENT = 5         /* blocks per multiprocessor: 132 of them run 288 units in one wave */
};

/* One row. It need not move if `from` equals `to`. */
typedef struct move_row {
    const char *from;
    char *to;
} move_row;

__device__ static inline uint32_t kept_slot(const cn_compress_chunk &c, const cn_compress_unit &u,
                                            uint32_t i, uint32_t n_kept)
{
    if (c.keep == CN_KEEP_RECENT) return i < u.job->n_sinks ? i : c.n - n_kept + i;
    return c.work[(size_t)u.index * c.work_words + i];
}

__device__ static inline char *pool_row(const cn_compress_chunk &c, const cn_compress_unit &u,
                                        uint32_t block, uint32_t slot, cn_kv_part part)
{
    return (char *)c.pools.kv + cn_kv_at(&c.pools.layout, u.layer, block, u.head, slot, part);
}

__device__ static inline char *aside_block(const cn_compress_chunk &c, const cn_compress_unit &u,
                                           uint32_t number)
{
    const size_t at = (size_t)u.index * c.n_aside + number;
    return c.aside + at * cn_compress_aside_bytes(&c.pools.layout);
}

/* Returns P (which = 0) or F (which = 1) of a block that was set aside. */
__device__ static inline uint32_t *aside_side(const cn_compress_chunk &c, const cn_compress_unit &u,
                                              uint32_t number, uint32_t which)
{
    const cn_kv_layout *l = &c.pools.layout;
    return (uint32_t *)(aside_block(c, u, number) + l->head_bytes) + which * l->block_tokens;
}

/* ---- K and V ---- */

/* Returns the row that slot i of the targets receives from slot v. */
__device__ static inline move_row move_row_from(const cn_compress_chunk &c,
                                                const cn_compress_unit &u, uint32_t i, uint32_t v,
                                                cn_kv_part part)
{
    const uint32_t b = c.pools.layout.block_tokens, entry = u.job->table[v / b];
    move_row r;
    r.to = pool_row(c, u, u.job->target[i / b], i % b, part);
    r.from = entry < CN_COMPRESS_ASIDE ? pool_row(c, u, entry, v % b, part)
                                       : aside_block(c, u, entry - CN_COMPRESS_ASIDE) +
                                             cn_kv_in_head(&c.pools.layout, v % b, part);
    return r;
}

/* Parts that move: K and V, or K that contains V. */
__host__ __device__ static inline uint32_t n_moved_parts(const cn_kv_layout &l)
{
    return cn_kv_layout_is_shared(&l) ? 1 : 2;
}

/* A row of K or V, and its scale in eight bits. */
typedef struct move_pair {
    move_row row, scale;
} move_pair;

__device__ static inline bool moves(const move_row &r) { return r.from != r.to; }

template <bool FP8>
__device__ static inline move_pair move_pair_of(const cn_compress_chunk &c,
                                                const cn_compress_unit &u, uint32_t i,
                                                uint32_t n_kept, cn_kv_part part)
{
    move_pair m = {};
    if (i >= n_kept) return m;
    const uint32_t v = kept_slot(c, u, i, n_kept);
    m.row = move_row_from(c, u, i, v, part);
    if (FP8) m.scale = move_row_from(c, u, i, v, part == CN_KV_K ? CN_KV_K_SCALE : CN_KV_V_SCALE);
    return m;
}

/* Pieces of 16 bytes of a row of K or V. */
__device__ static inline uint32_t row_vecs(const cn_kv_layout &l)
{
    return l.part[CN_KV_K].row_bytes / (uint32_t)sizeof(uint4);
}

/* The 16-byte pieces of a tile's rows that this thread copies: piece threadIdx.x + k * THREADS. */
typedef struct tile_share {
    uint32_t rows, vecs; /* of a tile, of a row */
} tile_share;

__device__ static inline void load_tile(uint4 piece[VECS], tile_share t, const move_row *rows)
{
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++) {
        const uint32_t e = threadIdx.x + k * THREADS, row = e / t.vecs;
        if (row >= t.rows) break;
        if (moves(rows[row])) piece[k] = ((const uint4 *)rows[row].from)[e % t.vecs];
    }
}

__device__ static inline void store_tile(const uint4 piece[VECS], tile_share t,
                                         const move_row *rows)
{
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++) {
        const uint32_t e = threadIdx.x + k * THREADS, row = e / t.vecs;
        if (row >= t.rows) break;
        if (moves(rows[row])) ((uint4 *)rows[row].to)[e % t.vecs] = piece[k];
    }
}

/* The tiles of a thread block. A thread reads and writes its own element of `scales` only. */
template <bool FP8> struct move_shared {
    move_row rows[RING][MAX_ROWS], scales[FP8 ? RING : 1][FP8 ? MAX_ROWS : 1];

    /* Finds the addresses of tile t. */
    __device__ void find(const cn_compress_chunk &c, const cn_compress_unit &u, uint32_t t,
                         tile_share share, uint32_t n_kept, cn_kv_part part)
    {
        if (threadIdx.x >= share.rows) return;
        const move_pair m = move_pair_of<FP8>(c, u, t * share.rows + threadIdx.x, n_kept, part);
        rows[t % RING][threadIdx.x] = m.row;
        if (FP8) scales[t % RING][threadIdx.x] = m.scale;
    }

    __device__ void load(uint4 piece[VECS], uint16_t *scale, uint32_t t, tile_share share) const
    {
        load_tile(piece, share, rows[t % RING]);
        if (!FP8 || threadIdx.x >= share.rows) return;
        const move_row &r = scales[t % RING][threadIdx.x];
        if (moves(r)) *scale = *(const uint16_t *)r.from;
    }

    __device__ void store(const uint4 piece[VECS], uint16_t scale, uint32_t t,
                          tile_share share) const
    {
        store_tile(piece, share, rows[t % RING]);
        if (!FP8 || threadIdx.x >= share.rows) return;
        const move_row &r = scales[t % RING][threadIdx.x];
        if (moves(r)) *(uint16_t *)r.to = scale;
    }
};

template <bool FP8>
__global__ static void __launch_bounds__(THREADS, RESIDENT)
    move_kernel(const __grid_constant__ cn_compress_chunk c)
{
    __shared__ move_shared<FP8> shared;
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const cn_kv_part part = blockIdx.y == 0 ? CN_KV_K : CN_KV_V;
    tile_share share;
    share.vecs = row_vecs(c.pools.layout);
    share.rows = min((uint32_t)(VECS * THREADS) / share.vecs, (uint32_t)MAX_ROWS);
    cn_overlap_next();
    cn_wait_previous();
    const uint32_t n_kept = u.job->n_target * c.pools.layout.block_tokens;
    const uint32_t n_tiles = (n_kept + share.rows - 1) / share.rows;
    uint4 piece[2][VECS];
    uint16_t scale[2] = {};
    for (uint32_t t = 0; t < 2; t++) shared.find(c, u, t, share, n_kept, part);
    __syncthreads();
    shared.load(piece[0], &scale[0], 0, share);
    /* Two tiles per iteration, so that the registers of a tile are known at compile time. */
    for (uint32_t tile = 0; tile < n_tiles; tile += 2)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t t = tile + half;
            shared.load(piece[half ^ 1], &scale[half ^ 1], t + 1, share);
            shared.find(c, u, t + 2, share, n_kept, part);
            __syncthreads();
            shared.store(piece[half], scale[half], t, share);
        }
}

/* ---- K and V into holes ---- */

__device__ static inline void copy_scale(const move_row &r)
{
    *(uint16_t *)r.to = *(const uint16_t *)r.from;
}

/* rows[2 * i] and rows[2 * i + 1] = K and V of the i-th row of the slice that moves, in any order;
 * rows[i] = K where it contains V. Their scales are moved at once. */
template <bool FP8>
__device__ static inline void list_slice(const cn_compress_chunk &c, const cn_compress_unit &u,
                                         move_row *rows, uint32_t *n_rows)
{
    const uint32_t n_kept = u.job->n_target * c.pools.layout.block_tokens;
    const uint32_t n_parts = n_moved_parts(c.pools.layout);
    for (uint32_t i = threadIdx.x; i < SLICE; i += THREADS) {
        const uint32_t target = blockIdx.y * SLICE + i;
        const move_pair k = move_pair_of<FP8>(c, u, target, n_kept, CN_KV_K);
        if (!moves(k.row)) continue;
        const uint32_t at = atomicAdd(n_rows, n_parts);
        rows[at] = k.row;
        if (n_parts == 1) continue;
        const move_pair v = move_pair_of<FP8>(c, u, target, n_kept, CN_KV_V);
        rows[at + 1] = v.row;
        if (!FP8) continue;
        copy_scale(k.scale);
        copy_scale(v.scale);
    }
}

template <bool FP8>
__global__ static void __launch_bounds__(THREADS)
    fill_kernel(const __grid_constant__ cn_compress_chunk c)
{
    __shared__ move_row rows[2 * SLICE];
    __shared__ uint32_t n_rows;
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const uint32_t vecs = row_vecs(c.pools.layout);
    if (threadIdx.x == 0) n_rows = 0;
    cn_overlap_next();
    cn_wait_previous();
    __syncthreads();
    list_slice<FP8>(c, u, rows, &n_rows);
    __syncthreads();
    const uint32_t n = n_rows * vecs;
    for (uint32_t first = threadIdx.x; first < n; first += VECS * THREADS) {
        uint4 piece[VECS];
#pragma unroll
        for (uint32_t k = 0; k < VECS; k++) {
            const uint32_t e = first + k * THREADS;
            if (e < n) piece[k] = ((const uint4 *)rows[e / vecs].from)[e % vecs];
        }
#pragma unroll
        for (uint32_t k = 0; k < VECS; k++) {
            const uint32_t e = first + k * THREADS;
            if (e < n) ((uint4 *)rows[e / vecs].to)[e % vecs] = piece[k];
        }
    }
}

/* ---- P and F ---- */

/* Returns the side array that a thread block moves, or NULL if the job does not move it. Both have
 * elements of four bytes. */
__device__ static inline uint32_t *side_of(const cn_compress_chunk &c, const cn_compress_unit &u,
                                           uint32_t which)
{
    if (which == 0) return c.pools.origin;
    return u.job->global ? NULL : (uint32_t *)c.pools.score;
}

/* Grid (units, P and F). P of slots from n_placed on follows from the slot. */
__global__ static void __launch_bounds__(THREADS)
    move_sides_kernel(const __grid_constant__ cn_compress_chunk c)
{
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const uint32_t b = c.pools.layout.block_tokens;
    cn_overlap_next();
    cn_wait_previous();
    uint32_t *side = side_of(c, u, blockIdx.y);
    if (!side) return;
    const uint32_t n_kept = u.job->n_target * b;
    const uint32_t n_moved = blockIdx.y == 0 ? u.job->n_placed : c.n;
    for (uint32_t first = 0; first < n_kept; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        uint32_t value = 0;
        if (i < n_kept) {
            const uint32_t v = kept_slot(c, u, i, n_kept), entry = u.job->table[v / b];
            const uint32_t *from =
                entry < CN_COMPRESS_ASIDE
                    ? side + cn_compress_side(c, u, entry, v % b)
                    : aside_side(c, u, entry - CN_COMPRESS_ASIDE, blockIdx.y) + v % b;
            value = v < n_moved ? *from : u.job->first_position + v;
        }
        __syncthreads();
        if (i < n_kept) side[cn_compress_side(c, u, u.job->target[i / b], i % b)] = value;
        __syncthreads();
    }
}

/* ---- blocks set aside ---- */

/* Grid (units, n_aside). */
__global__ static void __launch_bounds__(THREADS)
    aside_kernel(const __grid_constant__ cn_compress_chunk c)
{
    __shared__ uint32_t found;
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const cn_kv_layout *l = &c.pools.layout;
    const uint32_t b = l->block_tokens, none = 0xffffffffu;
    if (threadIdx.x == 0) found = none;
    cn_overlap_next();
    cn_wait_previous();
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < c.n_blocks; i += THREADS)
        if (u.job->table[i] == CN_COMPRESS_ASIDE + blockIdx.y) found = u.job->source[i];
    __syncthreads();
    if (found == none) return;
    char *to = aside_block(c, u, blockIdx.y);
    const uint4 *from = (const uint4 *)pool_row(c, u, found, 0, CN_KV_K);
    for (uint32_t e = threadIdx.x; e < l->head_bytes / sizeof(uint4); e += THREADS)
        ((uint4 *)to)[e] = from[e];
    for (uint32_t which = 0; which < 2; which++) {
        const uint32_t *side = side_of(c, u, which);
        for (uint32_t slot = threadIdx.x; side && slot < b; slot += THREADS)
            aside_side(c, u, blockIdx.y, which)[slot] = side[cn_compress_side(c, u, found, slot)];
    }
}

/* ---- launching ---- */

extern "C" cn_status cn_compress_set_aside(cn_stream *s, const cn_compress_chunk *c)
{
    if (c->n_aside == 0) return CN_OK;
    const dim3 grid(cn_compress_units(c), c->n_aside);
    return cn_cuda_launch(s, "compress: set aside", aside_kernel, {grid, THREADS}, *c);
}

template <bool FP8> static cn_status move_rows(cn_stream *s, const cn_compress_chunk *c)
{
    const uint32_t units = cn_compress_units(c);
    const uint32_t targets = c->max_target * c->pools.layout.block_tokens;
    if (!c->fills)
        return cn_cuda_launch(s, "compress: move", move_kernel<FP8>,
                              {dim3(units, n_moved_parts(c->pools.layout)), THREADS}, *c);
    return cn_cuda_launch(s, "compress: fill", fill_kernel<FP8>,
                          {dim3(units, (targets + SLICE - 1) / SLICE), THREADS}, *c);
}

extern "C" cn_status cn_compress_move(cn_stream *s, const cn_compress_chunk *c)
{
    const bool fp8 = cn_kv_form_of(&c->pools.layout) == CN_KV_FP8;
    CN_TRY(fp8 ? move_rows<true>(s, c) : move_rows<false>(s, c));
    if (!c->pools.origin && !c->moves_scores) return CN_OK;
    return cn_cuda_launch(s, "compress: sides", move_sides_kernel,
                          {dim3(cn_compress_units(c), 2), THREADS}, *c);
}
