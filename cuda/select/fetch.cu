/* fetch.cu - fetch: copies K and V of the moved entries from the home space into the exchange
 * areas, and writes P.
 *
 * Rows are copied in pieces of 16 bytes. A warp takes parts of units in turn, and the groups of a
 * part in turn: IN_FLIGHT pieces a lane, which are 8 pairs of K and V at head_dim 128, loaded
 * before the first is stored. The number of moves is in device memory, so the grid depends on where
 * the home space lies alone. Stores to a peer do not wait for it, so a push takes many blocks.
 * Loads from host memory take few: more blocks make scattered rows slower, because missed
 * translations of addresses limit them, not the link.
 * Bytes moved: 4 d for each token and kv head, read and written, and 4 of P. CPU version:
 * cpu_fetch.c. */
#include "cuda/select/select.cuh"

enum {
    THREADS = 256,
    IN_FLIGHT = 8,
    BLOCKS = 64,      /* of a launch that stores to a peer or inside the device */
    HOST_BLOCKS = 16, /* of one that loads from host memory */
    ITEMS_EACH = 4    /* parts for each warp, so that units of different lengths even out */
};

typedef struct fetch_params {
    cn_fetch_args args;
    uint32_t n_units, n_parts; /* parts of each unit */
    uint32_t vecs;             /* pieces of a row */
} fetch_params;

/* A unit's tables, moves and heads. */
typedef struct fetch_unit {
    const uint32_t *local, *home;
    const cn_move *moves;
    uint32_t n_pieces;
    uint32_t log2, layer, head;
} fetch_unit;

__device__ static inline fetch_unit unit_of(const fetch_params &p, uint32_t index)
{
    const cn_fetch_args &a = p.args;
    const cn_sel_unit at = cn_sel_unit_of(index, a.n_layers, a.local.layout.n_kv_heads);
    fetch_unit u;
    u.local = a.local_tables + (size_t)at.seq * a.local_stride;
    u.home = a.home_tables + (size_t)at.seq * a.home_stride;
    u.moves = a.moves + (size_t)index * a.move_stride;
    u.log2 = a.entry_log2[at.seq];
    u.layer = a.first_layer + at.row;
    u.head = at.head;
    u.n_pieces = (min(a.n_moves[index], a.move_stride) << u.log2) * 2 * p.vecs;
    return u;
}

/* Where a piece goes and comes from. */
typedef struct fetch_piece {
    const uint4 *from;
    uint4 *to;
} fetch_piece;

/* Copies the label and the scale of a token. */
__device__ static inline void copy_label(const cn_fetch_args &a, size_t to, size_t from)
{
    const uint32_t n = a.local.digest.n_channels / 4; /* a label in units of two bytes */
    const uint16_t *x = (const uint16_t *)a.home.digest.labels + from * n;
    uint16_t *y = (uint16_t *)a.local.digest.labels + to * n;
    for (uint32_t i = 0; i < n; i++) y[i] = x[i];
    a.local.digest.scales[to] = a.home.digest.scales[from];
}

/* Returns piece e of a unit, and writes P and the label of a token with its first piece. */
__device__ static inline fetch_piece piece_of(const fetch_params &p, const fetch_unit &u,
                                              uint32_t e)
{
    const cn_kv_layout &to = p.args.local.layout, &from = p.args.home.layout;
    const uint32_t b = to.block_tokens, token = e / (2 * p.vecs), vec = e % (2 * p.vecs);
    const cn_move m = u.moves[token >> u.log2];
    const uint32_t t = token & ((1u << u.log2) - 1);
    const uint32_t slot = (m.entry << u.log2) + t, position = (m.source << u.log2) + t;
    const uint32_t to_block = u.local[slot / b], from_block = u.home[position / b];
    const cn_kv_part part = vec < p.vecs ? CN_KV_K : CN_KV_V;
    fetch_piece piece;
    piece.from = (const uint4 *)((const char *)p.args.home.kv +
                                 cn_kv_at(&from, u.layer, from_block, u.head, position % b, part)) +
                 vec % p.vecs;
    piece.to = (uint4 *)((char *)p.args.local.kv +
                         cn_kv_at(&to, u.layer, to_block, u.head, slot % b, part)) +
               vec % p.vecs;
    if (vec == 0) {
        const size_t at = cn_kv_side(&to, u.layer, to_block, u.head, slot % b);
        if (p.args.local.origin) p.args.local.origin[at] = position;
        if (u.log2 == CN_DIGEST_TILE_LOG2 && p.args.local.digest.labels &&
            p.args.home.digest.labels)
            copy_label(p.args, at,
                       cn_kv_side(&from, u.layer, from_block, u.head, position % b));
    }
    return piece;
}

__global__ static void __launch_bounds__(THREADS)
    fetch_kernel(const __grid_constant__ fetch_params p)
{
    const uint32_t lane = threadIdx.x % CN_WARP, n_warps = gridDim.x * (THREADS / CN_WARP);
    const uint32_t warp = blockIdx.x * (THREADS / CN_WARP) + threadIdx.x / CN_WARP;
    cn_overlap_next();
    cn_wait_previous();
    for (uint32_t item = warp; item < p.n_units * p.n_parts; item += n_warps) {
        const fetch_unit u = unit_of(p, item % p.n_units);
        const uint32_t step = p.n_parts * IN_FLIGHT * CN_WARP;
        for (uint32_t first = item / p.n_units * IN_FLIGHT * CN_WARP + lane; first < u.n_pieces;
             first += step) {
            fetch_piece piece[IN_FLIGHT];
            uint4 value[IN_FLIGHT];
#pragma unroll
            for (uint32_t i = 0; i < IN_FLIGHT; i++)
                if (first + i * CN_WARP < u.n_pieces)
                    piece[i] = piece_of(p, u, first + i * CN_WARP);
#pragma unroll
            for (uint32_t i = 0; i < IN_FLIGHT; i++)
                if (first + i * CN_WARP < u.n_pieces) value[i] = *piece[i].from;
#pragma unroll
            for (uint32_t i = 0; i < IN_FLIGHT; i++)
                if (first + i * CN_WARP < u.n_pieces) *piece[i].to = value[i];
        }
    }
}

/* ---- on the host ---- */

static cn_status check(const cn_fetch_args *a)
{
    const cn_kv_layout *l = &a->local.layout, *h = &a->home.layout;
    if (!cn_kv_layout_is_uniform(l, CN_BF16) || l->head_dim % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "fetch: KV layout: expected K and V in bf16, rows of a multiple of 8 "
                       "elements");
    if (l->n_kv_heads != h->n_kv_heads || l->block_tokens != h->block_tokens ||
        l->head_dim != h->head_dim || l->block_bytes != h->block_bytes)
        return cn_fail(CN_ERR_SHAPE,
                       "fetch: home blocks of %u heads, %u tokens and %zu bytes a layer: expected "
                       "%u heads, %u tokens and %zu bytes",
                       h->n_kv_heads, h->block_tokens, h->block_bytes, l->n_kv_heads,
                       l->block_tokens, l->block_bytes);
    return CN_OK;
}

extern "C" cn_status cn_cuda_fetch(cn_stream *s, const cn_fetch_args *a)
{
    CN_TRY(check(a));
    fetch_params p = {};
    p.args = *a;
    p.n_units = a->n_seqs * a->n_layers * a->local.layout.n_kv_heads;
    p.vecs = a->local.layout.head_dim / CN_VEC8;
    if (p.n_units == 0) return CN_OK;
    cudaPointerAttributes home;
    CN_CUDA(cudaPointerGetAttributes(&home, a->home.kv));
    const uint32_t blocks = home.type == cudaMemoryTypeHost ? HOST_BLOCKS : BLOCKS;
    const uint32_t items = blocks * (THREADS / CN_WARP) * ITEMS_EACH;
    p.n_parts = (uint32_t)cn_ceil_div(items, p.n_units);
    return cn_cuda_launch(s, "fetch", fetch_kernel, {dim3(blocks), THREADS}, p);
}
