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
 * Scales of rows in eight bits are moved by a kernel of their own, as P and F.
 * Bytes moved: 8 d per unit and kept slot that moves; in eight bits 4 d + 8.
 * CPU version: cpu_compact.c. Paper C.6. */
#include "cuda/compress/compress.cuh"

enum {
    THREADS = 128,
    VECS = 8, /* vectors of 16 bytes of a tile in a thread's registers */
    MAX_ROWS = THREADS,
    SLICE = 2 * THREADS, /* target slots */
    RING = 4,      /* tiles whose addresses are in shared memory */
    RESIDENT = 5   /* blocks per multiprocessor: 132 of them run 288 units in one wave */
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

__device__ static inline move_row move_row_of(const cn_compress_chunk &c, const cn_compress_unit &u,
                                              uint32_t i, uint32_t n_kept, cn_kv_part part)
{
    const uint32_t b = c.pools.layout.block_tokens;
    move_row r = {NULL, NULL};
    if (i >= n_kept) return r;
    const uint32_t v = kept_slot(c, u, i, n_kept), entry = u.job->table[v / b];
    r.to = pool_row(c, u, u.job->target[i / b], i % b, part);
    r.from = entry < CN_COMPRESS_ASIDE
                 ? pool_row(c, u, entry, v % b, part)
                 : aside_block(c, u, entry - CN_COMPRESS_ASIDE) +
                       cn_kv_in_head(&c.pools.layout, v % b, part);
    return r;
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
        if (rows[row].from != rows[row].to) piece[k] = ((const uint4 *)rows[row].from)[e % t.vecs];
    }
}

__device__ static inline void store_tile(const uint4 piece[VECS], tile_share t,
                                         const move_row *rows)
{
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++) {
        const uint32_t e = threadIdx.x + k * THREADS, row = e / t.vecs;
        if (row >= t.rows) break;
        if (rows[row].from != rows[row].to) ((uint4 *)rows[row].to)[e % t.vecs] = piece[k];
    }
}

__global__ static void __launch_bounds__(THREADS, RESIDENT)
    move_kernel(const __grid_constant__ cn_compress_chunk c)
{
    __shared__ move_row rows[RING][MAX_ROWS];
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
    if (threadIdx.x < share.rows)
        for (uint32_t t = 0; t < 2; t++)
            rows[t][threadIdx.x] = move_row_of(c, u, t * share.rows + threadIdx.x, n_kept, part);
    __syncthreads();
    load_tile(piece[0], share, rows[0]);
    /* Two tiles per iteration, so that the registers of a tile are known at compile time. */
    for (uint32_t tile = 0; tile < n_tiles; tile += 2)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t t = tile + half;
            load_tile(piece[half ^ 1], share, rows[(t + 1) % RING]);
            if (threadIdx.x < share.rows)
                rows[(t + 2) % RING][threadIdx.x] =
                    move_row_of(c, u, (t + 2) * share.rows + threadIdx.x, n_kept, part);
            __syncthreads();
            store_tile(piece[half], share, rows[t % RING]);
        }
}

/* ---- K and V into holes ---- */

/* rows[2 * i] and rows[2 * i + 1] = K and V of the i-th row of the slice that moves, in any
 * order. */
__device__ static inline void list_slice(const cn_compress_chunk &c, const cn_compress_unit &u,
                                         move_row *rows, uint32_t *n_rows)
{
    const uint32_t n_kept = u.job->n_target * c.pools.layout.block_tokens;
    for (uint32_t i = threadIdx.x; i < SLICE; i += THREADS) {
        const uint32_t target = blockIdx.y * SLICE + i;
        const move_row k = move_row_of(c, u, target, n_kept, CN_KV_K);
        if (k.from == k.to) continue;
        const uint32_t at = atomicAdd(n_rows, 2u);
        rows[at] = k;
        rows[at + 1] = move_row_of(c, u, target, n_kept, CN_KV_V);
    }
}

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
    list_slice(c, u, rows, &n_rows);
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
            const uint32_t *from = entry < CN_COMPRESS_ASIDE
                                       ? side + cn_compress_side(c, u, entry, v % b)
                                       : aside_side(c, u, entry - CN_COMPRESS_ASIDE, blockIdx.y) +
                                             v % b;
            value = v < n_moved ? *from : u.job->first_position + v;
        }
        __syncthreads();
        if (i < n_kept) side[cn_compress_side(c, u, u.job->target[i / b], i % b)] = value;
        __syncthreads();
    }
}

/* ---- scales of rows in eight bits ---- */

/* Grid (units, K and V). Target slots in order, as in move_kernel. */
__global__ static void __launch_bounds__(THREADS)
    move_scales_kernel(const __grid_constant__ cn_compress_chunk c)
{
    const cn_compress_unit u = cn_compress_unit_of(c, blockIdx.x);
    const cn_kv_part part = blockIdx.y == 0 ? CN_KV_K_SCALE : CN_KV_V_SCALE;
    cn_overlap_next();
    cn_wait_previous();
    const uint32_t n_kept = u.job->n_target * c.pools.layout.block_tokens;
    for (uint32_t first = 0; first < n_kept; first += THREADS) {
        const move_row r = move_row_of(c, u, first + threadIdx.x, n_kept, part);
        uint16_t scale = 0;
        if (r.from) scale = *(const uint16_t *)r.from;
        __syncthreads();
        if (r.to) *(uint16_t *)r.to = scale;
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
            aside_side(c, u, blockIdx.y, which)[slot] =
                side[cn_compress_side(c, u, found, slot)];
    }
}

/* ---- launching ---- */

extern "C" cn_status cn_compress_set_aside(cn_stream *s, const cn_compress_chunk *c)
{
    if (c->n_aside == 0) return CN_OK;
    const dim3 grid(cn_compress_units(c), c->n_aside);
    return cn_cuda_launch(s, "compress: set aside", aside_kernel, {grid, THREADS}, *c);
}

extern "C" cn_status cn_compress_move(cn_stream *s, const cn_compress_chunk *c)
{
    const uint32_t units = cn_compress_units(c);
    const uint32_t targets = c->max_target * c->pools.layout.block_tokens;
    if (c->fills)
        CN_TRY(cn_cuda_launch(s, "compress: fill", fill_kernel,
                              {dim3(units, (targets + SLICE - 1) / SLICE), THREADS}, *c));
    else
        CN_TRY(cn_cuda_launch(s, "compress: move", move_kernel, {dim3(units, 2), THREADS}, *c));
    if (cn_kv_form_of(&c->pools.layout) == CN_KV_FP8)
        CN_TRY(cn_cuda_launch(s, "compress: scales", move_scales_kernel,
                              {dim3(units, 2), THREADS}, *c));
    if (!c->pools.origin && !c->moves_scores) return CN_OK;
    return cn_cuda_launch(s, "compress: sides", move_sides_kernel, {dim3(units, 2), THREADS}, *c);
}
