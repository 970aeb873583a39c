/* experts_any.cu - grouped products of a layer with experts, for any GPU and any K that is a
 * multiple of 8; gathers rows.
 *
 * out [P,N] = x [P,K] * weight [E,N,K]^T by expert; gated: see cn_expert_call. bf16 in and out, f32
 * sums over K in order. A block multiplies 64 weight rows by 32 pairs with mma.sync; cp.async fills
 * a ring of tiles of 64 columns. Grid: at most 4 blocks a multiprocessor, which take units in turn.
 * Bytes moved: the weights of the experts that have pairs, once for every 32 pairs.
 * CPU version: cpu_experts.c. */
#include "cuda/attn/attn_common.cuh"
#include "cuda/experts/expert_tiles.cuh"

enum { TOKENS = 32, ROWS = 64, WARPS = ROWS / CN_SLAB_ROWS, BLOCK = WARPS * CN_WARP, STAGES = 4 };
enum { STAGE_BYTES = (ROWS + TOKENS) * CN_ROW_BYTES, CHUNKS = CN_BOX_COLS / CN_VEC8 };

typedef struct any_params {
    cn_bf16 *out;
    const cn_bf16 *x, *weight;
    const uint32_t *starts, *pair_tokens;
    uint32_t n_experts, n, k, row_tiles;
} any_params;

/* A unit of work. */
typedef struct any_unit {
    cn_expert_pairs pairs;
    uint32_t first_slab;
} any_unit;

/* Returns the weight row of row `row` of the tile; rows of an expert count from 0. At least
 * n_weight_rows: there is none. */
template <bool GATED>
__device__ static inline uint32_t weight_row(const any_params &p, const any_unit &u, uint32_t row)
{
    const uint32_t slab = u.first_slab + row / CN_SLAB_ROWS;
    const uint32_t half = row / 8 % 2, r = row % 8;
    if (!GATED) return slab * CN_SLAB_ROWS + 2 * r + half;
    const uint32_t column = slab * 8 + r;
    return column < p.n ? half * p.n + column : 2 * p.n;
}

/* Starts the copies of a tile of 64 columns of weights and x. */
template <bool GATED>
__device__ static inline void copy_tile(uint32_t to, const any_params &p, const any_unit &u,
                                        uint32_t tile)
{
    const uint32_t rows = GATED ? 2 * p.n : p.n;
    for (uint32_t i = threadIdx.x; i < (ROWS + TOKENS) * CHUNKS; i += BLOCK) {
        const uint32_t row = i / CHUNKS, chunk = i % CHUNKS;
        const uint32_t column = tile * CN_BOX_COLS + chunk * CN_VEC8;
        const cn_bf16 *from = p.weight;
        bool valid = column < p.k;
        uint32_t at = cn_chunk_at(ROWS, row, chunk);
        if (row < ROWS) {
            const uint32_t source = weight_row<GATED>(p, u, row);
            valid = valid && source < rows;
            if (valid) from += ((size_t)u.pairs.expert * rows + source) * p.k + column;
        } else {
            const uint32_t pair = row - ROWS;
            at = ROWS * CN_ROW_BYTES + cn_chunk_at(TOKENS, pair, chunk);
            valid = valid && pair < u.pairs.count;
            from = p.x;
            if (valid) {
                const uint32_t place = u.pairs.first + pair;
                from += (size_t)(p.pair_tokens ? p.pair_tokens[place] : place) * p.k + column;
            }
        }
        cn_copy16(to + at, from, valid);
    }
}

__device__ static inline void multiply_tile(float sums[TOKENS / 2], uint32_t from)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
#pragma unroll
    for (uint32_t k = 0; k < CN_BOX_COLS / 16; k++) {
        uint32_t a[4];
        cn_ldmatrix(a, from + cn_chunk_at(ROWS, warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (uint32_t j = 0; j < TOKENS / 16; j++) {
            uint32_t b[4];
            const uint32_t row = j * 16 + lane / 16 * 8 + lane % 8;
            cn_ldmatrix(b, from + ROWS * CN_ROW_BYTES +
                               cn_chunk_at(TOKENS, row, 2 * k + lane / 8 % 2));
            cn_mma(sums + 8 * j, a, b[0], b[1]);
            cn_mma(sums + 8 * j + 4, a, b[2], b[3]);
        }
    }
}

template <bool GATED>
__device__ static inline void run_unit(const any_params &p, const any_unit &u, uint32_t ring)
{
    const uint32_t n_tiles = (p.k + CN_BOX_COLS - 1) / CN_BOX_COLS;
    float sums[TOKENS / 2] = {};
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < n_tiles) copy_tile<GATED>(ring + i * STAGE_BYTES, p, u, i);
        cn_copy_commit();
    }
    for (uint32_t i = 0; i < n_tiles; i++) {
        const uint32_t ahead = i + STAGES - 1;
        cn_copy_wait<STAGES - 2>();
        __syncthreads(); /* tile i is there, and all warps have read tile i - 1 */
        if (ahead < n_tiles) copy_tile<GATED>(ring + ahead % STAGES * STAGE_BYTES, p, u, ahead);
        cn_copy_commit();
        multiply_tile(sums, ring + i % STAGES * STAGE_BYTES);
    }
    __syncthreads(); /* before the tiles of the next unit */
    const uint32_t slab = u.first_slab + threadIdx.x / CN_WARP;
    cn_store_slab<TOKENS, GATED>(p.out, p.n, slab * cn_slab_columns(GATED), u.pairs, sums);
}

template <bool GATED>
__global__ static void __launch_bounds__(BLOCK) any_kernel(const any_params p)
{
    extern __shared__ __align__(1024) char dynamic[];
    uint32_t *words = (uint32_t *)(dynamic + STAGES * STAGE_BYTES);
    const cn_expert_tables tables = {words, words + p.n_experts + 1};
    cn_wait_previous();
    cn_overlap_next();
    if (threadIdx.x < CN_WARP) cn_fill_tables(tables, p.starts, p.n_experts, TOKENS);
    __syncthreads();
    const uint32_t n_units = tables.tiles[p.n_experts] * p.row_tiles;
    for (uint32_t i = blockIdx.x; i < n_units; i += gridDim.x) {
        const any_unit u = {cn_find_pairs(tables, p.n_experts, TOKENS, i / p.row_tiles),
                            i % p.row_tiles * WARPS};
        run_unit<GATED>(p, u, cn_shared_address(dynamic));
    }
}

extern "C" cn_status cn_experts_any_run(cn_stream *s, const cn_expert_call *call)
{
    any_params p = {};
    p.out = (cn_bf16 *)call->out;
    p.x = (const cn_bf16 *)call->x;
    p.weight = (const cn_bf16 *)call->weight;
    p.starts = call->starts;
    p.pair_tokens = call->pair_tokens;
    p.n_experts = call->n_experts;
    p.n = call->n;
    p.k = call->k;
    p.row_tiles = (uint32_t)cn_ceil_div(call->n, WARPS * cn_slab_columns(call->gated));
    const uint64_t most = (uint64_t)call->n_pairs * p.row_tiles;
    const uint32_t blocks = 4 * s->cuda->device.n_sms;
    const cn_launch how = {dim3(most < blocks ? (uint32_t)most : blocks), BLOCK,
                           STAGES * STAGE_BYTES + cn_expert_table_bytes(p.n_experts)};
    return call->gated ? cn_cuda_launch(s, "expert_gate_up", any_kernel<true>, how, p)
                       : cn_cuda_launch(s, "expert_down", any_kernel<false>, how, p);
}

/* ---- rows of pairs ---- */

enum { GATHER_BLOCK = 256 };

__global__ static void __launch_bounds__(GATHER_BLOCK)
    gather_pairs_kernel(uint4 *out, const uint4 *x, const uint32_t *pair_tokens, uint32_t row_vecs)
{
    cn_wait_previous();
    cn_overlap_next();
    const uint4 *from = x + (size_t)pair_tokens[blockIdx.x] * row_vecs;
    uint4 *to = out + (size_t)blockIdx.x * row_vecs;
    for (uint32_t i = threadIdx.x; i < row_vecs; i += GATHER_BLOCK) to[i] = from[i];
}

extern "C" cn_status cn_experts_gather(cn_stream *s, void *out, const void *x,
                                       const uint32_t *pair_tokens, uint32_t n_pairs, uint32_t k)
{
    return cn_cuda_launch(s, "rows of experts", gather_pairs_kernel, {dim3(n_pairs), GATHER_BLOCK},
                          (uint4 *)out, (const uint4 *)x, pair_tokens, k / CN_VEC8);
}
