/* fetch.cu - fetch: copies K and V of the moved entries from the home space into the exchange
 * areas, and writes P; for tiles copies labels and scales too.
 *
 * A run is up to 32 consecutive tokens of a unit's moves. A warp copies a run. First lane i reads
 * the move and the tables for token i, computes where its rows are, and writes its P. Then the
 * lanes copy the rows of K and V in pieces of 16 bytes, token by token, and take the addresses from
 * the lane of the token. Each lane loads IN_FLIGHT pieces before it stores the first; at head_dim
 * 128 these are 8 tokens of the warp. Labels and scales of the run follow, also in pieces of 16
 * bytes.
 *
 * An item is every n_parts-th run of a unit. Item i is part i / n_units of unit i % n_units, so the
 * parts of a unit go to different warps. The number of moves is in device memory. Therefore the
 * number of items follows from the most moves, and a warp looks at 32 of its items at once to skip
 * those without a run. The grid depends only on where the home space lies. Stores to a peer do not
 * wait, so a push takes all multiprocessors. Its blocks are small, to have room beside those of
 * `score` for K rows. Loads from host memory take as many as the link needs: on an H100 with a link
 * of 55 GB/s, 8 blocks pull 25 GB/s, 16 37 to 42, and 32 41 to 51 (2 and 13 tiles of each unit,
 * bench_host_cuda).
 *
 * Bytes of each token and kv head: 4 d of K and V, in eight bits 2 d + 4, read and written, and 4
 * of P, written; in a tile d / 8 of a label and 2 of a scale, read and written. The rows, and
 * labels and scales of a run in one tile of the layout, are multiples of 16 bytes; so are the
 * addresses of all planes. Scales of rows in eight bits are copied by the lane of their token. CPU
 * version: cpu_fetch.c. */
#include "cuda/fp8.cuh"
#include "cuda/select/select.cuh"

enum {
    THREADS = 128,
    WARPS = THREADS / CN_WARP,
    IN_FLIGHT = 8,
    HOST_BLOCKS = 32, /* of a launch that loads from host memory */
    ITEMS_EACH = 4    /* items for each warp, so that units of different lengths even out */
};

typedef struct fetch_params {
    cn_fetch_args args;
    uint32_t n_units, n_parts;         /* parts of each unit */
    uint32_t vecs;                     /* pieces of a row */
    uint32_t step_tokens, step_pieces; /* 32 pieces in tokens of 2 * vecs pieces, and the rest */
    uint32_t value_at;                 /* bytes from a row of K to the row of V */
} fetch_params;

/* A unit's tables, moves and heads. */
typedef struct fetch_unit {
    const uint32_t *local, *home;
    const cn_move *moves;
    uint32_t n_tokens;
    uint32_t log2, layer, head;
} fetch_unit;

__device__ static inline fetch_unit unit_of(const fetch_params &p, uint32_t index)
{
    const cn_fetch_args &a = p.args;
    const cn_sel_unit at = cn_sel_unit_of(index, a.n_layers, a.local.layout.n_kv_heads);
    fetch_unit u;
    u.local = a.local_tables + (size_t)at.seq * a.local_stride;
    u.home = a.home_tables + (size_t)at.seq * a.home_stride;
    const uint32_t list = a.one_list ? at.seq * a.local.layout.n_kv_heads + at.head : index;
    u.moves = a.moves + (size_t)list * a.move_stride;
    u.log2 = a.entry_log2[at.seq];
    u.layer = a.first_layer + at.row;
    u.head = at.head;
    u.n_tokens = min(a.n_moves[list], a.move_stride) << u.log2;
    return u;
}

/* Where a token goes and comes from. */
typedef struct fetch_token {
    const char *from; /* row of K */
    char *to;
    size_t from_side, to_side; /* elements of side arrays */
    const uint16_t *from_scale; /* of the row of K, in eight bits */
    uint16_t *to_scale;
} fetch_token;

/* Finds a token of a unit, and writes its P. */
template <bool FP8>
__device__ static inline fetch_token token_of(const fetch_params &p, const fetch_unit &u,
                                              uint32_t token)
{
    const cn_fetch_args &a = p.args;
    const cn_kv_layout &to = a.local.layout, &from = a.home.layout;
    const uint32_t b = to.block_tokens, t = token & ((1u << u.log2) - 1);
    const cn_move m = u.moves[token >> u.log2];
    const uint32_t slot = (m.entry << u.log2) + t, position = (m.source << u.log2) + t;
    const uint32_t to_block = u.local[slot / b], from_block = u.home[position / b];
    const uint32_t to_slot = slot % b, from_slot = position % b;
    fetch_token x;
    x.from = (const char *)a.home.kv +
             cn_kv_at(&from, u.layer, from_block, u.head, from_slot, CN_KV_K);
    x.to = (char *)a.local.kv + cn_kv_at(&to, u.layer, to_block, u.head, to_slot, CN_KV_K);
    if (FP8) {
        x.from_scale = (const uint16_t *)((const char *)a.home.kv +
                                          cn_kv_at(&from, u.layer, from_block, u.head, from_slot,
                                                   CN_KV_K_SCALE));
        x.to_scale = (uint16_t *)((char *)a.local.kv + cn_kv_at(&to, u.layer, to_block, u.head,
                                                                to_slot, CN_KV_K_SCALE));
    }
    x.from_side = cn_kv_side(&from, u.layer, from_block, u.head, from_slot);
    x.to_side = cn_kv_side(&to, u.layer, to_block, u.head, to_slot);
    if (a.local.origin) a.local.origin[x.to_side] = position;
    return x;
}

__device__ static inline size_t from_lane(size_t value, uint32_t lane)
{
    return __shfl_sync(0xffffffffu, (unsigned long long)value, (int)lane);
}

/* Copies K and V of a run of n tokens. x: the token of this lane. */
__device__ static inline void copy_rows(const fetch_params &p, const fetch_token &x, uint32_t n,
                                        uint32_t lane)
{
    const uint32_t pieces = 2 * p.vecs, second = p.value_at - p.vecs * (uint32_t)sizeof(uint4);
    uint32_t token = lane / pieces, piece = lane % pieces; /* of this lane's next copy */
    for (uint32_t done = 0; done < n * pieces; done += IN_FLIGHT * CN_WARP) {
        char *to[IN_FLIGHT];
        uint4 value[IN_FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < IN_FLIGHT; i++) {
            const uint32_t at = piece * (uint32_t)sizeof(uint4) + (piece < p.vecs ? 0 : second);
            const char *from = (const char *)from_lane((size_t)x.from, token) + at;
            to[i] = (char *)from_lane((size_t)x.to, token) + at;
            if (token < n)
                value[i] = __ldcs((const uint4 *)from);
            else
                to[i] = NULL;
            token += p.step_tokens;
            piece += p.step_pieces;
            if (piece >= pieces) {
                piece -= pieces;
                token++;
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < IN_FLIGHT; i++)
            if (to[i]) *(uint4 *)to[i] = value[i];
    }
}

/* Copies the labels and the scales of a run of n tokens of a tile. Those of tokens that are in one
 * tile of the layout lie side by side. */
__device__ static inline void copy_labels(const cn_fetch_args &a, const fetch_token &x, uint32_t n,
                                          uint32_t lane)
{
    const cn_digest &to = a.local.digest, &from = a.home.digest;
    const uint32_t beside = min(a.local.layout.tile_tokens, (uint32_t)CN_WARP);
    const uint32_t label = to.n_channels / 2, n_labels = beside * label / sizeof(uint4);
    const uint32_t n_pieces = n_labels + beside * sizeof *to.scales / sizeof(uint4);
    for (uint32_t token = 0; token < n; token += beside) {
        const size_t src = from_lane(x.from_side, token), dst = from_lane(x.to_side, token);
        for (uint32_t i = lane; i < n_pieces; i += CN_WARP)
            if (i < n_labels)
                ((uint4 *)(to.labels + dst * label))[i] =
                    ((const uint4 *)(from.labels + src * label))[i];
            else
                ((uint4 *)(to.scales + dst))[i - n_labels] =
                    ((const uint4 *)(from.scales + src))[i - n_labels];
    }
}

/* Copies the scales of K and V of a token in eight bits. */
__device__ static inline void copy_row_scales(const fetch_params &p, const fetch_token &x)
{
    const uint32_t value = p.args.local.layout.tile_tokens;
    const uint16_t scales[2] = {__ldcs(x.from_scale), __ldcs(x.from_scale + value)};
    x.to_scale[0] = scales[0];
    x.to_scale[value] = scales[1];
}

/* Copies the runs of a part of a unit. */
template <bool FP8>
__device__ static inline void copy_part(const fetch_params &p, uint32_t unit, uint32_t part,
                                        uint32_t lane)
{
    const cn_fetch_args &a = p.args;
    const fetch_unit u = unit_of(p, unit);
    const bool labels =
        u.log2 == CN_DIGEST_TILE_LOG2 && a.local.digest.labels && a.home.digest.labels;
    for (uint32_t first = part * CN_WARP; first < u.n_tokens; first += p.n_parts * CN_WARP) {
        const uint32_t n = min(u.n_tokens - first, (uint32_t)CN_WARP);
        fetch_token x = {};
        if (lane < n) x = token_of<FP8>(p, u, first + lane);
        copy_rows(p, x, n, lane);
        if (FP8 && lane < n) copy_row_scales(p, x);
        if (labels) copy_labels(a, x, n, lane);
    }
}

template <bool FP8>
__global__ static void __launch_bounds__(THREADS)
    fetch_kernel(const __grid_constant__ fetch_params p)
{
    const uint32_t lane = threadIdx.x % CN_WARP, n_warps = gridDim.x * WARPS;
    const uint32_t warp = blockIdx.x * WARPS + threadIdx.x / CN_WARP;
    const uint32_t n_items = p.n_units * p.n_parts;
    cn_overlap_next();
    cn_wait_previous();
    for (uint32_t first = warp; first < n_items; first += CN_WARP * n_warps) {
        const uint32_t mine = first + lane * n_warps;
        const bool has_run =
            mine < n_items && unit_of(p, mine % p.n_units).n_tokens > mine / p.n_units * CN_WARP;
        for (uint32_t left = __ballot_sync(0xffffffffu, has_run); left; left &= left - 1) {
            const uint32_t item = first + (uint32_t)(__ffs((int)left) - 1) * n_warps;
            copy_part<FP8>(p, item % p.n_units, item / p.n_units, lane);
        }
    }
}

/* ---- on the host ---- */

static cn_status check(const cn_fetch_args *a)
{
    const cn_kv_layout *l = &a->local.layout, *h = &a->home.layout;
    CN_TRY(cn_kv_check_form("fetch", l));
    if (l->part[CN_KV_K].row_bytes % sizeof(uint4) != 0)
        return cn_fail(CN_ERR_SHAPE, "fetch: rows of %u bytes: expected a multiple of 16",
                       l->part[CN_KV_K].row_bytes);
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
    const cn_kv_layout *l = &a->local.layout;
    fetch_params p = {};
    p.args = *a;
    p.n_units = a->n_seqs * a->n_layers * l->n_kv_heads;
    if (p.n_units == 0) return CN_OK;
    p.vecs = l->part[CN_KV_K].row_bytes / (uint32_t)sizeof(uint4);
    p.step_tokens = CN_WARP / (2 * p.vecs);
    p.step_pieces = CN_WARP % (2 * p.vecs);
    p.value_at = l->part[CN_KV_V].tile_at - l->part[CN_KV_K].tile_at;
    cudaPointerAttributes home;
    CN_CUDA(cudaPointerGetAttributes(&home, a->home.kv));
    uint32_t blocks = s->cuda->device.n_sms;
    const uint32_t host_blocks = s->cuda->switches.host_blocks;
    if (home.type == cudaMemoryTypeHost)
        blocks = host_blocks ? host_blocks : (uint32_t)HOST_BLOCKS;
    p.n_parts = cn_max_u32((uint32_t)cn_ceil_div(blocks * WARPS * ITEMS_EACH, p.n_units),
                           (uint32_t)cn_ceil_div(a->move_stride, CN_WARP));
    const cn_launch how = {dim3(blocks), THREADS};
    return cn_kv_form_of(l) == CN_KV_FP8 ? cn_cuda_launch(s, "fetch", fetch_kernel<true>, how, p)
                                         : cn_cuda_launch(s, "fetch", fetch_kernel<false>, how, p);
}
