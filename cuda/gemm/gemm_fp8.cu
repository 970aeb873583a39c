/* gemm_fp8.cu - matrix products with FP8 weights on Hopper.
 *
 * out [T,N] = x [T,K] * weight [N,K]^T (+ bias [N]); e4m3 in, f32 sums, bf16 out; K a multiple of
 * 8, rows of weights padded to 128. Gated: weight [2I,K], out [T,I] = silu(first half) * second
 * half; a block computes both halves of its columns. As in gemm_skinny.cu the sides are swapped:
 * weight rows are the 64-row side of wgmma, tokens the other side. A block has a warpgroup for
 * every 64 weight rows and a warp that copies tiles of 128 columns of weights and x, and the scales
 * of x.
 *
 * The accumulator of FP8 tensor cores keeps fewer bits than f32. So the products of a tile start
 * from zero, and their sums are multiplied by the scales of weight and x and added to f32
 * registers. Where registers allow, a tile is multiplied while the one before is added.
 *
 * The splits of a cluster divide K of the same rows. Their sums are added through shared memory in
 * the order of ranks. The bits of a row depend on the splits, not on its batch. cuBLASLt multiplies
 * many rows where it has kernels of the form, which add up f32 in the same steps.
 *
 * Grid ceil(N / rows) * ceil(T / TOKENS) * splits; blocks of the same weight rows are neighbours.
 * Bytes moved: N*K + out from memory, and T*K*ceil(N / rows) from the cache; with more than TOKENS
 * rows also the weights again for each TOKENS.
 * CPU version: cpu_gemm.c. */
#include "cuda/fp8_round.h"
#include "cuda/gemm/gemm_fp8.h"
#include "cuda/gemm/gemm_sums.cuh"
#include "cuda/hopper.cuh"
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { MAX_STAGES = 8, LEAST_STAGES = 2, MAX_SPLITS = 8, TILE_ALIGN = 1024, STATIC_BYTES = 256 };
enum { SPLIT_TILES = 4 /* splits are whole numbers of these, whatever the tiles of a stage */ };

typedef struct fp8_params {
    cn_bf16 *out;
    const cn_bf16 *bias;
    const float *weight_scales, *x_scales;
    uint32_t scale_cols;   /* of weight_scales: 1, or n_tiles */
    uint32_t scale_n_log2; /* rows that have one scale */
    uint32_t x_stride;     /* of x_scales, from a tile to the next */
    uint32_t n_tokens, token_tiles;
    uint32_t n;       /* columns of out: N, or I when gated */
    uint32_t n_tiles; /* of K */
    uint32_t splits, splits_log2, stages;
    bool gated;
} fp8_params;

/* Tiles of a stage, so that a stage has about 30 KiB. */
constexpr __host__ __device__ uint32_t tiles_of_stage(uint32_t tokens, uint32_t rows)
{
    return tokens + rows <= 80 ? 4 : tokens + rows <= 144 ? 2 : 1;
}

constexpr __host__ __device__ uint32_t bytes_of_stage(uint32_t tokens, uint32_t rows)
{
    return tiles_of_stage(tokens, rows) *
           ((tokens + rows) * CN_ROW_BYTES + tokens * (uint32_t)sizeof(float));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef struct fp8_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
} fp8_barriers;

template <int TOKENS, int GROUPS> struct stage {
    static constexpr uint32_t ROWS = GROUPS * 64, TILES = tiles_of_stage(TOKENS, ROWS);
    static constexpr uint32_t WEIGHT_BYTES = TILES * ROWS * CN_ROW_BYTES;
    static constexpr uint32_t X_BYTES = TILES * TOKENS * CN_ROW_BYTES;
    static constexpr uint32_t SCALE_BYTES = TOKENS * sizeof(float); /* of a tile */
};

/* Shared memory: weights, codes of x and scales of x, each of all stages. */
typedef struct fp8_room {
    char *weights, *x;
    float *x_scales;
} fp8_room;

template <int TOKENS, int GROUPS>
__device__ static inline fp8_room fp8_room_of(char *base, const fp8_params &p)
{
    using st = stage<TOKENS, GROUPS>;
    char *const x = base + p.stages * st::WEIGHT_BYTES;
    return {base, x, (float *)(x + p.stages * st::X_BYTES)};
}

/* The part of the work that a block does. */
typedef struct fp8_part {
    uint32_t split;
    uint32_t first_column, first_token; /* of out */
    uint32_t first_tile, n_stages;      /* of K */
} fp8_part;

template <int TOKENS, int GROUPS>
__device__ static inline fp8_part fp8_part_of_block(const fp8_params &p)
{
    constexpr uint32_t TILES = stage<TOKENS, GROUPS>::TILES;
    const uint32_t all = (p.n_tiles + SPLIT_TILES - 1) / SPLIT_TILES;
    static_assert(SPLIT_TILES % TILES == 0, "stages end where splits do");
    fp8_part part;
    part.split = blockIdx.x & (p.splits - 1);
    const uint32_t tile = blockIdx.x >> p.splits_log2;
    part.first_column = tile / p.token_tiles * (p.gated ? GROUPS * 32 : GROUPS * 64);
    part.first_token = tile % p.token_tiles * TOKENS;
    part.first_tile = (all * part.split >> p.splits_log2) * SPLIT_TILES;
    const uint32_t end = (all * (part.split + 1) >> p.splits_log2) * SPLIT_TILES;
    part.n_stages = (min(end, p.n_tiles) - part.first_tile + TILES - 1) / TILES;
    return part;
}

/* ---- the copying thread ---- */

template <int TOKENS, int GROUPS>
__device__ static inline void fp8_load_weights(const fp8_room &room, fp8_barriers *b, uint32_t i,
                                               const CUtensorMap *weight, const fp8_params &p,
                                               const fp8_part &part, uint32_t tile)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t n_scales = min(st::TILES, p.n_tiles - tile);
    cn_barrier_expect(&b->full[i], st::WEIGHT_BYTES + st::X_BYTES + n_scales * st::SCALE_BYTES);
    cn_tma_load(room.weights + i * st::WEIGHT_BYTES, weight, &b->full[i], tile, part.first_column,
                p.token_tiles > 1 ? CN_CACHE_EVICT_NORMAL : CN_CACHE_EVICT_FIRST);
}

template <int TOKENS, int GROUPS>
__device__ static inline void fp8_load_x(const fp8_room &room, fp8_barriers *b, uint32_t i,
                                         const CUtensorMap *x, const fp8_params &p,
                                         const fp8_part &part, uint32_t tile)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t n_scales = min(st::TILES, p.n_tiles - tile);
    float *to = room.x_scales + i * st::TILES * TOKENS;
    cn_tma_load(room.x + i * st::X_BYTES, x, &b->full[i], tile, part.first_token,
                CN_CACHE_EVICT_LAST);
#pragma unroll 1
    for (uint32_t j = 0; j < n_scales; j++)
        cn_bulk_copy(cn_shared_address(to + j * TOKENS),
                     p.x_scales + (size_t)(tile + j) * p.x_stride + part.first_token,
                     st::SCALE_BYTES, &b->full[i]);
}

/* Copies the weights of the first stages, their x when the previous kernel has ended, then every
 * stage as it becomes empty. */
template <int TOKENS, int GROUPS>
__device__ static inline void fp8_copy_tiles(const fp8_room &room, fp8_barriers *b,
                                             const CUtensorMap *weight, const CUtensorMap *x,
                                             const fp8_params &p, const fp8_part &part)
{
    constexpr uint32_t TILES = stage<TOKENS, GROUPS>::TILES;
    const uint32_t n_first = min(p.stages, part.n_stages);
#pragma unroll 1
    for (uint32_t i = 0; i < n_first; i++)
        fp8_load_weights<TOKENS, GROUPS>(room, b, i, weight, p, part, part.first_tile + i * TILES);
    cn_map_prefetch(x);
    cn_wait_previous();
#pragma unroll 1
    for (uint32_t i = 0; i < n_first; i++)
        fp8_load_x<TOKENS, GROUPS>(room, b, i, x, p, part, part.first_tile + i * TILES);
    uint32_t at = 0, odd = 0;
#pragma unroll 1
    for (uint32_t i = n_first; i < part.n_stages; i++) {
        const uint32_t tile = part.first_tile + i * TILES;
        cn_barrier_wait(&b->empty[at], odd);
        fp8_load_weights<TOKENS, GROUPS>(room, b, at, weight, p, part, tile);
        fp8_load_x<TOKENS, GROUPS>(room, b, at, x, p, part, tile);
        if (++at == p.stages) at = 0, odd ^= 1;
    }
}

/* ---- the warpgroups ---- */

/* The scales of the thread's two weight rows. */
typedef struct row_scales {
    const float *low, *high;
} row_scales;

/* Returns the row of scales of row `row` of the block. */
template <int GROUPS>
__device__ static inline const float *fp8_scales_of(const fp8_params &p, const fp8_part &part,
                                                    uint32_t row)
{
    constexpr uint32_t HALF = GROUPS * 32;
    const uint32_t half = p.gated ? row / HALF : 0, column = part.first_column + row - half * HALF;
    const uint32_t n = half * p.n + min(column, p.n - 1);
    return p.weight_scales + (size_t)(n >> p.scale_n_log2) * p.scale_cols;
}

/* sums += product times the scales of both sides. The empty assembly keeps the compiler from moving
 * a use of a product to before the wait for it. */
template <int TOKENS>
__device__ __forceinline__ static void fp8_add_tile(float *sums, float *product,
                                                    const float *x_scales, float low, float high)
{
#pragma unroll
    for (uint32_t i = 0; i < TOKENS / 2; i++) asm volatile("" : "+f"(product[i])::"memory");
    const float2 *scales = (const float2 *)x_scales + threadIdx.x % 4;
#pragma unroll
    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        const float2 s = scales[4 * j];
        sums[4 * j] += product[4 * j] * (low * s.x);
        sums[4 * j + 1] += product[4 * j + 1] * (low * s.y);
        sums[4 * j + 2] += product[4 * j + 2] * (high * s.x);
        sums[4 * j + 3] += product[4 * j + 3] * (high * s.y);
    }
}

/* Multiplies the tiles of a full stage. first: of K. */
template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void
multiply_stage(float *sums, const char *weights, const char *x, const float *x_scales,
               const fp8_params &p, const row_scales &scales, uint32_t first)
{
    using st = stage<TOKENS, GROUPS>;
    constexpr uint32_t AHEAD = TOKENS <= 64 && st::TILES > 1 ? 1 : 0;
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / CN_WARPGROUP, 0);
    const char *rows = weights + group * 64 * CN_ROW_BYTES;
    float product[AHEAD + 1][TOKENS / 2], low[st::TILES], high[st::TILES];
#pragma unroll
    for (uint32_t j = 0; j < st::TILES; j++) {
        const uint32_t column = p.scale_cols > 1 ? min(first + j, p.n_tiles - 1) : 0;
        low[j] = __ldg(scales.low + column);
        high[j] = __ldg(scales.high + column);
    }
    if (AHEAD) cn_wgmma_fp8_tile<TOKENS>(product[0], rows, x);
#pragma unroll
    for (uint32_t j = 0; j < st::TILES; j++) {
        const uint32_t next = j + AHEAD;
        if (next < st::TILES)
            cn_wgmma_fp8_tile<TOKENS>(product[next % (AHEAD + 1)],
                                   rows + next * st::ROWS * CN_ROW_BYTES,
                                   x + next * TOKENS * CN_ROW_BYTES);
        if (next < st::TILES && AHEAD)
            cn_wgmma_wait<1>();
        else
            cn_wgmma_wait<0>();
        if (first + j < p.n_tiles)
            fp8_add_tile<TOKENS>(sums, product[j % (AHEAD + 1)], x_scales + j * TOKENS, low[j],
                                 high[j]);
    }
}

template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void fp8_multiply_tiles(float *sums, const fp8_room &room,
                                                          fp8_barriers *b, const fp8_params &p,
                                                          const fp8_part &part)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t lane = threadIdx.x % CN_WARP, row = threadIdx.x / CN_WARP * 16 + lane / 4;
    const row_scales scales = {fp8_scales_of<GROUPS>(p, part, row),
                               fp8_scales_of<GROUPS>(p, part, row + 8)};
    uint32_t at = 0, odd = 0;
#pragma unroll 1
    for (uint32_t i = 0; i < part.n_stages; i++) {
        cn_barrier_wait(&b->full[at], odd);
        multiply_stage<TOKENS, GROUPS>(
            sums, room.weights + at * st::WEIGHT_BYTES, room.x + at * st::X_BYTES,
            room.x_scales + at * st::TILES * TOKENS, p, scales, part.first_tile + i * st::TILES);
        __syncwarp();
        if (lane == 0) cn_barrier_arrive(&b->empty[at]);
        if (++at == p.stages) at = 0, odd ^= 1;
    }
}

/* ---- the outputs ---- */

/* Stores four neighbours of a token's row, or fewer at the end of the row. */
__device__ static inline void fp8_store_out(const fp8_params &p, size_t at, uint32_t column,
                                            const float v[4])
{
    if (p.n % 4 == 0) {
        *(uint2 *)(p.out + at) = make_uint2(cn_pack2(v[0], v[1]), cn_pack2(v[2], v[3]));
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (column + i < p.n) p.out[at + i] = __float2bfloat16_rn(v[i]);
}

/* Computes and stores this block's share of the outputs of its splits. */
template <int TOKENS, int GROUPS>
__device__ static inline void fp8_add_and_store(const fp8_params &p, const fp8_part &part,
                                                const float *shared)
{
    const uint32_t fours = p.gated ? GROUPS * 8 : GROUPS * 16, stride = GROUPS * 64 + CN_SUMS_PAD;
    const uint32_t n = min((uint32_t)TOKENS, p.n_tokens - part.first_token) * fours;
    const uint32_t end = n * (part.split + 1) >> p.splits_log2;
    for (uint32_t i = (n * part.split >> p.splits_log2) + threadIdx.x; i < end; i += blockDim.x) {
        const uint32_t token = i / fours, row = i % fours * 4, column = part.first_column + row;
        if (column >= p.n) continue;
        float v[4];
        cn_sums_add_splits(v, shared + token * stride + row, 0, p.splits);
        if (p.gated) {
            float up[4];
            cn_sums_add_splits(up, shared + token * stride + GROUPS * 32 + row, 0, p.splits);
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = v[j] / (1.0f + __expf(-v[j])) * up[j];
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (p.bias && column + j < p.n) v[j] += __bfloat162float(p.bias[column + j]);
        fp8_store_out(p, (size_t)(part.first_token + token) * p.n + column, column, v);
    }
}

#endif

template <int TOKENS, int GROUPS>
__global__ static void __launch_bounds__(GROUPS *CN_WARPGROUP + CN_WARP)
    fp8_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
               const fp8_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char dynamic[];
    __shared__ fp8_barriers barriers;
    static_assert(sizeof barriers <= STATIC_BYTES, "what the host counts");
    char *base = dynamic + (TILE_ALIGN - cn_shared_address(dynamic) % TILE_ALIGN) % TILE_ALIGN;
    const fp8_part part = fp8_part_of_block<TOKENS, GROUPS>(p);
    const fp8_room room = fp8_room_of<TOKENS, GROUPS>(base, p);
    const bool copies = threadIdx.x >= GROUPS * CN_WARPGROUP;
    cn_overlap_next();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            cn_barrier_init(&barriers.full[i], 1);
            cn_barrier_init(&barriers.empty[i], GROUPS * CN_WARPGROUP / CN_WARP);
        }
        cn_barrier_init_done();
    }
    __syncthreads();
    float sums[TOKENS / 2] = {};
    if (!copies)
        fp8_multiply_tiles<TOKENS, GROUPS>(sums, room, &barriers, p, part);
    else if (threadIdx.x == GROUPS * CN_WARPGROUP)
        fp8_copy_tiles<TOKENS, GROUPS>(room, &barriers, &weight, &x, p, part);
    __syncwarp();
    __syncthreads(); /* all products are done: the memory of the stages is free for the sums */
    if (!copies) cn_sums_store<TOKENS, GROUPS>((float *)base, sums);
    __syncwarp();
    if (p.splits > 1)
        cn_cluster_sync();
    else
        __syncthreads();
    fp8_add_and_store<TOKENS, GROUPS>(p, part, (const float *)base);
    __syncwarp();
    if (p.splits > 1) cn_cluster_meet(); /* others may still read this block */
#endif
}

/* ---- choosing ---- */

enum { MAX_GROUPS = 2 };

typedef void (*fp8_fn)(const CUtensorMap, const CUtensorMap, const fp8_params);
#define KERNELS(tokens)                                          \
    {                                                            \
        tokens, { fp8_kernel<tokens, 1>, fp8_kernel<tokens, 2> } \
    }
static const struct {
    uint32_t tokens;
    fp8_fn by_groups[MAX_GROUPS];
} kernels[] = {KERNELS(8), KERNELS(16), KERNELS(32), KERNELS(64), KERNELS(128)};
enum {
    MOST_TOKENS = 128,
    TWO_TILES = 64 /* with more rows, up to MOST_TOKENS, two of these tiles are faster */
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

typedef struct fp8_config {
    uint32_t kernel, groups, splits, stages;
} fp8_config;

static size_t fp8_shared_bytes(const fp8_config *f)
{
    const uint32_t tokens = kernels[f->kernel].tokens, rows = f->groups * 64;
    const size_t tiles = (size_t)f->stages * bytes_of_stage(tokens, rows);
    const size_t sums = (size_t)tokens * (rows + CN_SUMS_PAD) * sizeof(float);
    return TILE_ALIGN + (tiles > sums ? tiles : sums);
}

/* Sets the most stages with which `blocks` blocks fit in an SM. False: not even the least fit. */
static bool set_stages(const cn_cuda *c, fp8_config *f, uint32_t blocks)
{
    const size_t budget = cn_launch_shared_of(c, blocks) - STATIC_BYTES;
    f->stages = MAX_STAGES;
    while (f->stages >= LEAST_STAGES && fp8_shared_bytes(f) > budget) f->stages--;
    return f->stages >= LEAST_STAGES;
}

/* Blocks of a launch for up to MOST_TOKENS rows. */
static uint32_t fp8_blocks_of(cn_gemm_shape shape, uint32_t groups, uint32_t splits)
{
    const uint32_t columns = shape.gated ? shape.n / 2 : shape.n;
    return (uint32_t)cn_ceil_div(columns, shape.gated ? groups * 32 : groups * 64) * splits;
}

/* Rows and splits depend on the shape alone, so that the bits of a row do not depend on its batch:
 * the most blocks up to 3 for two SMs; of equal ones the fewest splits. These were the fastest of
 * Qwen3-8B's products for up to 64 rows. More than MOST_TOKENS rows have blocks enough, and splits
 * only with batch_invariant. */
static fp8_config fp8_choose(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens)
{
    const uint32_t n_tiles = (uint32_t)cn_ceil_div(shape.k, CN_FP8_COLUMNS);
    const uint32_t n_places = 3 * c->device.n_sms / 2;
    fp8_config best = {};
    best.groups = MAX_GROUPS;
    best.splits = 1;
    uint32_t most_blocks = 0;
    const uint32_t least = n_tokens <= MOST_TOKENS ? cn_min_u32(n_tokens, TWO_TILES) : n_tokens;
    while (best.kernel + 1 < N_KERNELS && kernels[best.kernel].tokens < least) best.kernel++;
    const bool splits = n_tokens <= MOST_TOKENS || c->opts.batch_invariant;
    for (uint32_t s = 1; splits && s <= MAX_SPLITS && s * SPLIT_TILES <= n_tiles; s *= 2)
        for (uint32_t groups = MAX_GROUPS; groups > 0; groups--) {
            const uint32_t blocks = fp8_blocks_of(shape, groups, s);
            if (blocks <= most_blocks || blocks > n_places) continue;
            most_blocks = blocks;
            best.groups = groups;
            best.splits = s;
        }
    const bool alone = kernels[best.kernel].tokens == MOST_TOKENS ||
                       (kernels[best.kernel].tokens == TWO_TILES && most_blocks <= c->device.n_sms);
    if (alone || !set_stages(c, &best, 2)) set_stages(c, &best, 1);
    return best;
}

/* ---- launching ---- */

extern "C" cn_status cn_gemm_fp8_open(cn_cuda *c)
{
    if (!c->device.hopper) return CN_OK;
    for (uint32_t i = 0; i < N_KERNELS; i++)
        for (uint32_t g = 0; g < MAX_GROUPS; g++)
            CN_TRY(cn_launch_set_shared(c, "gemm", kernels[i].by_groups[g],
                                        c->device.shared_bytes - STATIC_BYTES));
    return CN_OK;
}

/* Encodes a map of [halves, rows, k] e4m3, as bf16 of half as many columns. Its box is box_rows
 * rows of each half and `tiles` tiles of 128 columns, with the layout [tile, half, row]. */
static cn_status fp8_make_map(CUtensorMap *map, const void *base, uint32_t halves, uint32_t rows,
                              uint32_t k, uint32_t box_rows, uint32_t tiles)
{
    const uint64_t columns = k / 2;
    const cn_map_shape shape = {4,
                                {CN_BOX_COLS, rows, halves, columns / CN_BOX_COLS},
                                {1, columns, rows * columns, CN_BOX_COLS},
                                {CN_BOX_COLS, box_rows, halves, tiles}};
    return cn_map_encode(map, base, &shape);
}

static cn_status fp8_check_call(const cn_stream *s, const cn_gemm_call *call, const cn_matrix *w)
{
    const cn_gemm_shape shape = call->shape;
    if (!s->cuda->device.hopper)
        return cn_fail(CN_ERR_SHAPE, "gemm: FP8 weights need compute capability 9.0");
    if (shape.n == 0 || shape.k == 0 || shape.k % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "gemm: FP8 weight of shape [%u, %u]: expected columns in multiples of %d",
                       shape.n, shape.k, CN_VEC8);
    CN_ASSERT(w->stride == cn_round_up(shape.k, CN_FP8_COLUMNS));
    CN_ASSERT(!call->adds && !call->norms && !shape.out_f32);
    CN_ASSERT(w->scale_n > 0 && (w->scale_n & (w->scale_n - 1)) == 0);
    return CN_OK;
}

/* Rounds the rows of a call. stride: of the scales. */
static cn_status round_rows(cn_stream *s, const cn_gemm_call *call, const cn_matrix *w, void *codes,
                            float *scales, uint32_t stride)
{
    const cn_fp8_rounding r = {.x = call->x,
                               .rows = NULL,
                               .codes = codes,
                               .scales = scales,
                               .n_tokens = call->n_tokens,
                               .k = call->shape.k,
                               .stride = stride,
                               .form = w->x,
                               .x_scale = w->x_scale};
    return cn_fp8_round(s, &r);
}

static cn_status fp8_run_own(cn_stream *s, const cn_gemm_call *call, const cn_matrix *w,
                             void *rounded)
{
    const cn_gemm_shape shape = call->shape;
    const fp8_config config = fp8_choose(s->cuda, shape, call->n_tokens);
    const uint32_t tokens = kernels[config.kernel].tokens, rows = config.groups * 64;
    const uint32_t tiles = tiles_of_stage(tokens, rows);
    const uint32_t out_columns = shape.gated ? shape.n / 2 : shape.n;
    float *const scales = (float *)((char *)rounded + (size_t)call->n_tokens * w->stride);
    CUtensorMap weight, x;
    fp8_params p = {};
    p.x_scales = scales;
    p.x_stride = (uint32_t)cn_round_up(call->n_tokens, tokens);
    CN_TRY(round_rows(s, call, w, rounded, scales, p.x_stride));
    CN_TRY(fp8_make_map(&x, rounded, 1, call->n_tokens, w->stride, tokens, tiles));
    CN_TRY(fp8_make_map(&weight, w->data, shape.gated ? 2 : 1, out_columns, w->stride,
                        shape.gated ? rows / 2 : rows, tiles));
    p.out = (cn_bf16 *)call->out;
    p.bias = (const cn_bf16 *)call->bias;
    p.weight_scales = w->scales;
    p.n_tiles = w->stride / CN_FP8_COLUMNS;
    p.scale_cols = w->scale_k == CN_FP8_COLUMNS ? p.n_tiles : 1;
    while (w->scale_n >> p.scale_n_log2 > 1) p.scale_n_log2++;
    p.n_tokens = call->n_tokens;
    p.token_tiles = (uint32_t)cn_ceil_div(call->n_tokens, tokens);
    p.n = out_columns;
    p.splits = config.splits;
    while (config.splits >> p.splits_log2 > 1) p.splits_log2++;
    p.stages = config.stages;
    p.gated = shape.gated;
    const dim3 grid(fp8_blocks_of(shape, config.groups, config.splits) * p.token_tiles);
    cn_launch how = {grid, rows * 2 + CN_WARP, fp8_shared_bytes(&config)};
    how.shared_is_set = true; /* cn_gemm_fp8_open */
    how.cluster = config.splits;
    return cn_cuda_launch(s, "gemm", kernels[config.kernel].by_groups[config.groups - 1], how,
                          weight, x, p);
}

/* ---- many rows: the library ---- */

/* How the library reads the scales of w. Rows of blocks have a multiple of four. */
static cn_gemm_fp8 library_form(const cn_gemm_call *call, const cn_matrix *w)
{
    const bool blocks = w->scale_n == CN_FP8_COLUMNS && w->scale_k == CN_FP8_COLUMNS &&
                        w->stride % (4 * CN_FP8_COLUMNS) == 0 &&
                        call->shape.n % CN_FP8_COLUMNS == 0;
    return blocks ? CN_GEMM_FP8_BLOCKS : CN_GEMM_FP8_ROWS;
}

/* Whether cuBLASLt multiplies the rows. Its plan depends on the batch. */
static bool takes_library(const cn_cuda *c, const cn_gemm_call *call, const cn_matrix *w)
{
    const bool blocks = library_form(call, w) == CN_GEMM_FP8_BLOCKS;
    const bool always = c->switches.gemm == CN_CUDA_GEMM_LIBRARY;
    const uint32_t faster_from = blocks ? 65 : 512; /* rows; here the scales are spread */
    const uint32_t least = always ? (uint32_t)CN_FP8_ROWS : faster_from;
    const size_t spread = (size_t)call->shape.n * w->stride / CN_FP8_COLUMNS * sizeof(float);
    return c->switches.gemm != CN_CUDA_GEMM_OWN && !c->opts.batch_invariant &&
           call->n_tokens >= least && call->shape.n % 16 == 0 && !call->shape.has_bias &&
           spread <= CN_CUDA_GEMM_SCRATCH_BYTES / 2;
}

static cn_gemm_shape library_shape(const cn_gemm_call *call, const cn_matrix *w)
{
    cn_gemm_shape shape = call->shape;
    shape.fp8 = library_form(call, w);
    shape.k = w->stride;
    return shape;
}

/* The library takes multiples of CN_FP8_ROWS. Rows from n_tokens on are undefined. */
static cn_status fp8_run_library(cn_stream *s, const cn_gemm_call *call, const cn_matrix *w,
                                 void *rounded)
{
    const uint32_t n = (uint32_t)cn_round_up(call->n_tokens, CN_FP8_ROWS);
    float *const scales = (float *)((char *)rounded + (size_t)n * w->stride);
    cn_gemm_call product = *call;
    product.shape = library_shape(call, w);
    float *const spread = (float *)((char *)s->gemm_scratch + cn_gemm_scratch_bytes(product.shape));
    product.n_tokens = n;
    product.x = rounded;
    product.x_scales = scales;
    product.weight_scales = product.shape.fp8 == CN_GEMM_FP8_BLOCKS ? w->scales : spread;
    if (product.shape.fp8 == CN_GEMM_FP8_ROWS)
        CN_TRY(cn_fp8_spread_scales(s, spread, w, call->shape.n));
    CN_TRY(round_rows(s, call, w, rounded, scales, n));
    return cn_gemm_run_planned(s, &product);
}

extern "C" cn_status cn_gemm_fp8_run(cn_stream *s, const cn_gemm_call *call, const cn_matrix *w,
                                     void *rounded)
{
    CN_TRY(fp8_check_call(s, call, w));
    if (call->n_tokens == 0) return CN_OK;
    CN_ASSERT(rounded);
    /* Without an algorithm of the library the own kernels multiply any number of rows. */
    const uint32_t n = (uint32_t)cn_round_up(call->n_tokens, CN_FP8_ROWS);
    const bool library = takes_library(s->cuda, call, w) &&
                         cn_gemm_has_plan(s->cuda, library_shape(call, w), n);
    return library ? fp8_run_library(s, call, w, rounded) : fp8_run_own(s, call, w, rounded);
}
