/* experts_fp8.cu - grouped products of a layer with FP8 experts on Hopper.
 *
 * out [P,N] = x [P,K] * weight [E,N,K]^T by expert; gated: see cn_expert_call. e4m3 in, f32 sums,
 * bf16 out; rows of weights padded to 128. The rows of x are those of the pairs, rounded to e4m3
 * and gathered before (fp8_round.cu). Units of work, the ring and the copying warp are those of
 * experts_sm90.cu, without clusters. An expert's weights are read once for each tile of its pairs.
 *
 * The accumulator of FP8 tensor cores keeps fewer bits than f32. So the products of 128 columns
 * start from zero, and their sums are multiplied by the scales of weight and x and added to f32
 * registers, as in gemm_fp8.cu. The order of the sums is the same in every tile.
 *
 * The scales of x are [K / 128, P], with a stride of a multiple of four. A tile may begin at any
 * pair, and bulk copies at multiples of 16 bytes: a stage has the scales of up to three pairs
 * before the tile too. Pairs after the tile have scales of others, and sums that nobody stores.
 *
 * Grid: a fixed number of blocks on each multiprocessor. Bytes moved: the weights of the experts
 * that have pairs, once for each tile of pairs. CPU version: cpu_experts.c. */
#include <math.h>

#include "cuda/experts/expert_tiles.cuh"
#include "cuda/fp8_round.h"
#include "cuda/hopper.cuh"
#include "cuda/launch.cuh"

enum { MAX_GROUPS = 2, MAX_STAGES = 12, LEAST_STAGES = 3, TILE_ALIGN = 1024, STATIC_BYTES = 256 };
enum { SCALES_BEFORE = 4 }; /* room of a stage for scales before its tile */

typedef struct expert_fp8_params {
    cn_bf16 *out;
    const uint32_t *starts;
    const float *weight_scales, *x_scales;
    uint32_t scale_cols;   /* of weight_scales: 1, or n_tiles */
    uint32_t scale_n_log2; /* rows that have one scale */
    uint32_t x_stride;     /* of x_scales, from a tile of K to the next */
    uint32_t n, n_experts;
    uint32_t row_groups;      /* row tiles of an expert */
    uint32_t slabs_of_expert; /* of a product that is not gated */
    uint32_t n_tiles;         /* of K */
    uint32_t steps;           /* stages of a unit */
    uint32_t stages;          /* of the ring */
    bool waits;               /* `starts` may be written by the previous kernel */
} expert_fp8_params;

constexpr __host__ __device__ uint32_t expert_fp8_stage_bytes(uint32_t tokens, uint32_t rows)
{
    return cn_tiles_of_stage(tokens, rows) *
           ((tokens + rows) * CN_ROW_BYTES + (tokens + SCALES_BEFORE) * (uint32_t)sizeof(float));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef struct expert_fp8_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
} expert_fp8_barriers;

template <int TOKENS, int GROUPS> struct stage {
    static constexpr uint32_t ROWS = GROUPS * 64, SLABS = ROWS / CN_SLAB_ROWS;
    static constexpr uint32_t TILES = cn_tiles_of_stage(TOKENS, ROWS);
    static constexpr uint32_t WEIGHT_BYTES = TILES * ROWS * CN_ROW_BYTES;
    static constexpr uint32_t X_BYTES = TILES * TOKENS * CN_ROW_BYTES;
    static constexpr uint32_t SCALES = TOKENS + SCALES_BEFORE; /* of a tile */
};

/* Shared memory: weights, codes of x and scales of x, each of all stages. */
typedef struct expert_fp8_room {
    char *weights, *x;
    float *x_scales;
} expert_fp8_room;

/* ---- the copying thread ---- */

/* A step of a unit: its tiles of K from step * TILES on. */
typedef struct expert_fp8_walk {
    uint32_t unit, step, row_tile;
    cn_expert_pairs pairs;
} expert_fp8_walk;

template <int TOKENS>
__device__ static inline void expert_fp8_begin(expert_fp8_walk *w, const expert_fp8_params &p,
                                               const cn_expert_tables &t, uint32_t n_units)
{
    w->step = 0;
    if (w->unit >= n_units) return;
    w->row_tile = w->unit % p.row_groups;
    w->pairs = cn_find_pairs(t, p.n_experts, TOKENS, w->unit / p.row_groups);
}

template <int TOKENS>
__device__ static inline void expert_fp8_next(expert_fp8_walk *w, const expert_fp8_params &p,
                                              const cn_expert_tables &t, uint32_t n_units)
{
    if (++w->step < p.steps) return;
    w->unit += gridDim.x;
    expert_fp8_begin<TOKENS>(w, p, t, n_units);
}

/* Scales that a stage has of each tile of K: from the multiple of four at or below the first pair
 * on, and not beyond the row. */
template <int TOKENS>
__device__ static inline uint32_t expert_fp8_scales(const expert_fp8_params &p,
                                                    const expert_fp8_walk &w)
{
    return min((uint32_t)TOKENS + SCALES_BEFORE, p.x_stride - w.pairs.first / 4 * 4);
}

/* Copies a step's weights into a stage, whose barrier then waits for these and for x. */
template <int TOKENS, int GROUPS, bool GATED>
__device__ static inline void expert_fp8_copy_weights(const expert_fp8_room &room,
                                                      expert_fp8_barriers *b, uint32_t i,
                                                      const CUtensorMap *weight,
                                                      const expert_fp8_params &p,
                                                      const expert_fp8_walk &w)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t slab = w.row_tile * st::SLABS, tile = w.step * st::TILES;
    const uint32_t n_scales =
        min(st::TILES, p.n_tiles - tile) * expert_fp8_scales<TOKENS>(p, w);
    cn_barrier_expect(&b->full[i],
                      st::WEIGHT_BYTES + st::X_BYTES + n_scales * (uint32_t)sizeof(float));
    cn_tma_load_5d(room.weights + i * st::WEIGHT_BYTES, weight, &b->full[i],
                   GATED ? 2 * w.pairs.expert : 0,
                   GATED ? slab : w.pairs.expert * p.slabs_of_expert + slab, tile,
                   CN_CACHE_EVICT_FIRST);
}

template <int TOKENS, int GROUPS>
__device__ static inline void expert_fp8_copy_x(const expert_fp8_room &room,
                                                expert_fp8_barriers *b, uint32_t i,
                                                const CUtensorMap *x, const expert_fp8_params &p,
                                                const expert_fp8_walk &w)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t tile = w.step * st::TILES, n_scales = expert_fp8_scales<TOKENS>(p, w);
    const float *from = p.x_scales + (size_t)tile * p.x_stride + w.pairs.first / 4 * 4;
    float *to = room.x_scales + i * st::TILES * st::SCALES;
    cn_tma_load_3d(room.x + i * st::X_BYTES, x, &b->full[i], w.pairs.first, tile,
                   CN_CACHE_EVICT_LAST);
#pragma unroll 1
    for (uint32_t j = 0; j < min(st::TILES, p.n_tiles - tile); j++)
        cn_bulk_copy(cn_shared_address(to + j * st::SCALES), from + (size_t)j * p.x_stride,
                     n_scales * (uint32_t)sizeof(float), &b->full[i]);
}

/* Fills the ring: the first stages' weights, then their x when the previous kernel has ended, then
 * every stage as it becomes empty. */
template <int TOKENS, int GROUPS, bool GATED>
__device__ static inline void expert_fp8_copy(const expert_fp8_room &room, expert_fp8_barriers *b,
                                              const CUtensorMap *weight, const CUtensorMap *x,
                                              const expert_fp8_params &p,
                                              const cn_expert_tables &t, uint32_t n_units)
{
    expert_fp8_walk w = {};
    w.unit = blockIdx.x;
    expert_fp8_begin<TOKENS>(&w, p, t, n_units);
    expert_fp8_walk first = w;
    uint32_t filled = 0;
#pragma unroll 1
    for (; filled < p.stages && w.unit < n_units; filled++) {
        expert_fp8_copy_weights<TOKENS, GROUPS, GATED>(room, b, filled, weight, p, w);
        expert_fp8_next<TOKENS>(&w, p, t, n_units);
    }
    cn_wait_previous();
#pragma unroll 1
    for (uint32_t i = 0; i < filled; i++) {
        expert_fp8_copy_x<TOKENS, GROUPS>(room, b, i, x, p, first);
        expert_fp8_next<TOKENS>(&first, p, t, n_units);
    }
    cn_ring at = {0, 0};
#pragma unroll 1
    while (w.unit < n_units) {
        cn_barrier_wait(&b->empty[at.stage], at.odd);
        expert_fp8_copy_weights<TOKENS, GROUPS, GATED>(room, b, at.stage, weight, p, w);
        expert_fp8_copy_x<TOKENS, GROUPS>(room, b, at.stage, x, p, w);
        expert_fp8_next<TOKENS>(&w, p, t, n_units);
        cn_ring_next(&at, p.stages);
    }
}

/* ---- the warpgroups ---- */

/* The scales of the thread's two weight rows: where they are, and those of a stage's tiles. */
typedef struct expert_fp8_row_scales {
    const float *low, *high;
} expert_fp8_row_scales;

template <int TILES> struct stage_scales {
    float low[TILES], high[TILES];
};

/* first: tile of K. */
template <int TILES>
__device__ static inline stage_scales<TILES>
expert_fp8_load_scales(const expert_fp8_params &p, const expert_fp8_row_scales &rows,
                       uint32_t first)
{
    stage_scales<TILES> s;
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
        const uint32_t column = p.scale_cols > 1 ? min(first + j, p.n_tiles - 1) : 0;
        s.low[j] = __ldg(rows.low + column);
        s.high[j] = __ldg(rows.high + column);
    }
    return s;
}

/* slab: of the expert. */
template <bool GATED>
__device__ static inline expert_fp8_row_scales
expert_fp8_scales_of(const expert_fp8_params &p, uint32_t expert, uint32_t slab)
{
    const uint32_t row = threadIdx.x % CN_WARP / 4;
    const uint32_t rows = GATED ? 2 * p.n : p.n, between = GATED ? p.n : 1;
    const uint32_t low = expert * rows + (GATED ? min(slab * 8 + row, p.n - 1)
                                                : min(slab * CN_SLAB_ROWS + 2 * row, p.n - 2));
    return {p.weight_scales + (size_t)(low >> p.scale_n_log2) * p.scale_cols,
            p.weight_scales + (size_t)((low + between) >> p.scale_n_log2) * p.scale_cols};
}

/* sums += product times the scales of both sides. The empty assembly keeps the compiler from moving
 * a use of a product to before the wait for it. */
template <int TOKENS>
__device__ __forceinline__ static void expert_fp8_add(float *sums, float *product,
                                                      const float *x_scales, float low, float high)
{
#pragma unroll
    for (uint32_t i = 0; i < TOKENS / 2; i++) asm volatile("" : "+f"(product[i])::"memory");
    const float *scales = x_scales + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t j = 0; j < TOKENS / 8; j++) {
        const float a = scales[8 * j], b = scales[8 * j + 1];
        sums[4 * j] += product[4 * j] * (low * a);
        sums[4 * j + 1] += product[4 * j + 1] * (low * b);
        sums[4 * j + 2] += product[4 * j + 2] * (high * a);
        sums[4 * j + 3] += product[4 * j + 3] * (high * b);
    }
}

/* Multiplies the first n_tiles tiles of a full stage; the others are zero. */
template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void
expert_fp8_stage(float *sums, const char *weights, const char *x, const float *x_scales,
                 const stage_scales<stage<TOKENS, GROUPS>::TILES> &scales, uint32_t n_tiles)
{
    using st = stage<TOKENS, GROUPS>;
    constexpr uint32_t AHEAD = TOKENS <= 64 && st::TILES > 1 ? 1 : 0;
    /* The compiler sees that this is equal in the whole warp. */
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / CN_WARPGROUP, 0);
    const char *rows = weights + group * 64 * CN_ROW_BYTES;
    float product[AHEAD + 1][TOKENS / 2];
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
        if (j < n_tiles)
            expert_fp8_add<TOKENS>(sums, product[j % (AHEAD + 1)], x_scales + j * st::SCALES,
                                   scales.low[j], scales.high[j]);
    }
}

template <int TOKENS, int GROUPS, bool GATED>
__device__ __forceinline__ static void
expert_fp8_multiply(const expert_fp8_room &room, expert_fp8_barriers *b,
                    const expert_fp8_params &p, const cn_expert_tables &t, uint32_t n_units)
{
    using st = stage<TOKENS, GROUPS>;
    cn_ring at = {0, 0};
#pragma unroll 1
    for (uint32_t unit = blockIdx.x; unit < n_units; unit += gridDim.x) {
        float sums[TOKENS / 2] = {};
        const cn_expert_pairs pairs = cn_find_pairs(t, p.n_experts, TOKENS, unit / p.row_groups);
        const uint32_t slab = unit % p.row_groups * st::SLABS + threadIdx.x / CN_WARP;
        const expert_fp8_row_scales rows = expert_fp8_scales_of<GATED>(p, pairs.expert, slab);
#pragma unroll 1
        for (uint32_t i = 0; i < p.steps; i++) {
            const auto scales = expert_fp8_load_scales<st::TILES>(p, rows, i * st::TILES);
            cn_barrier_wait(&b->full[at.stage], at.odd);
            expert_fp8_stage<TOKENS, GROUPS>(
                sums, room.weights + at.stage * st::WEIGHT_BYTES, room.x + at.stage * st::X_BYTES,
                room.x_scales + at.stage * st::TILES * st::SCALES + pairs.first % 4, scales,
                p.n_tiles - i * st::TILES);
            __syncwarp();
            if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&b->empty[at.stage]);
            cn_ring_next(&at, p.stages);
        }
        cn_store_slab<TOKENS, GATED>(p.out, p.n, slab * cn_slab_columns(GATED), pairs, sums);
    }
}

#endif

template <int TOKENS, int GROUPS, bool GATED>
__global__ static void __launch_bounds__(GROUPS *CN_WARPGROUP + CN_WARP)
    expert_fp8_kernel(const __grid_constant__ CUtensorMap weight,
                      const __grid_constant__ CUtensorMap x, const expert_fp8_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using st = stage<TOKENS, GROUPS>;
    extern __shared__ char dynamic[];
    __shared__ expert_fp8_barriers barriers;
    static_assert(sizeof barriers <= STATIC_BYTES, "what the host counts");
    char *base = dynamic + (TILE_ALIGN - cn_shared_address(dynamic) % TILE_ALIGN) % TILE_ALIGN;
    char *codes = base + p.stages * st::WEIGHT_BYTES;
    const expert_fp8_room room = {base, codes, (float *)(codes + p.stages * st::X_BYTES)};
    uint32_t *words = (uint32_t *)(room.x_scales + p.stages * st::TILES * st::SCALES);
    const cn_expert_tables tables = {words, words + p.n_experts + 1};
    const bool copies = threadIdx.x >= GROUPS * CN_WARPGROUP;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            cn_barrier_init(&barriers.full[i], 1);
            cn_barrier_init(&barriers.empty[i], GROUPS * CN_WARPGROUP / CN_WARP);
        }
        cn_barrier_init_done();
    }
    if (copies) {
        cn_map_prefetch(&weight);
        cn_map_prefetch(&x);
    }
    if (p.waits) cn_wait_previous();
    cn_overlap_next();
    if (copies) cn_fill_tables(tables, p.starts, p.n_experts, TOKENS);
    __syncwarp();
    __syncthreads();
    const uint32_t n_units = tables.tiles[p.n_experts] * p.row_groups;
    if (!copies)
        expert_fp8_multiply<TOKENS, GROUPS, GATED>(room, &barriers, p, tables, n_units);
    else if (threadIdx.x == GROUPS * CN_WARPGROUP)
        expert_fp8_copy<TOKENS, GROUPS, GATED>(room, &barriers, &weight, &x, p, tables, n_units);
#endif
}

/* ---- choosing ---- */

typedef void (*expert_fp8_fn)(const CUtensorMap, const CUtensorMap, const expert_fp8_params);
#define KERNELS(tokens)                                                                      \
    {tokens, {{expert_fp8_kernel<tokens, 1, false>, expert_fp8_kernel<tokens, 1, true>},     \
              {expert_fp8_kernel<tokens, 2, false>, expert_fp8_kernel<tokens, 2, true>}}}
static const struct {
    uint32_t tokens;
    expert_fp8_fn by_groups[MAX_GROUPS][2]; /* then by whether the product is gated */
} kernels[] = {KERNELS(8), KERNELS(16), KERNELS(32), KERNELS(64), KERNELS(128)};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

/* Returns the kernel with the fewest tokens that has n of them, or the largest. */
static uint32_t expert_fp8_kernel_for(uint32_t n)
{
    uint32_t i = 0;
    while (i + 1 < N_KERNELS && kernels[i].tokens < n) i++;
    return i;
}

static size_t expert_fp8_shared_bytes(const cn_expert_call *call, const cn_cuda_expert_tile &t,
                                      uint32_t stages)
{
    return TILE_ALIGN + (size_t)stages * expert_fp8_stage_bytes(t.tokens, t.rows) +
           cn_expert_table_bytes(call->n_experts);
}

/* Returns the stages for which there is shared memory, at most MAX_STAGES. */
static uint32_t expert_fp8_stages_of(const cn_cuda *c, const cn_expert_call *call,
                                     const cn_cuda_expert_tile &t)
{
    const size_t budget = cn_launch_shared_of(c, t.blocks) - STATIC_BYTES;
    uint32_t stages = MAX_STAGES;
    while (stages > 0 && expert_fp8_shared_bytes(call, t, stages) > budget) stages--;
    return stages;
}

static bool expert_fp8_fits(const cn_cuda *c, const cn_expert_call *call,
                            const cn_cuda_expert_tile &t)
{
    if (t.tokens == 0 || t.blocks == 0 || (t.rows != 64 && t.rows != 128)) return false;
    if (kernels[expert_fp8_kernel_for(t.tokens)].tokens != t.tokens) return false;
    return expert_fp8_stages_of(c, call, t) >= LEAST_STAGES;
}

/* As cn_experts_sm90_default. With many experts the tables leave less room. */
static cn_cuda_expert_tile expert_fp8_default(const cn_cuda *c, const cn_expert_call *call)
{
    const uint32_t average = (uint32_t)cn_ceil_div(call->n_pairs, call->n_experts);
    const uint32_t most = average + (uint32_t)(4 * sqrtf((float)average));
    const uint32_t tokens = kernels[expert_fp8_kernel_for(cn_max_u32(most, 16))].tokens;
    cn_cuda_expert_tile t = {tokens, 64, 2};
    if (tokens > 32) t = {tokens, 128, 1};
    if (!expert_fp8_fits(c, call, t)) t = {tokens, 64, 1};
    return t;
}

/* ---- launching ---- */

extern "C" cn_status cn_experts_fp8_open(cn_cuda *c)
{
    if (!c->device.hopper) return CN_OK;
    for (uint32_t i = 0; i < N_KERNELS; i++)
        for (uint32_t g = 0; g < MAX_GROUPS; g++)
            for (int gated = 0; gated < 2; gated++)
                CN_TRY(cn_launch_set_shared(c, "experts", kernels[i].by_groups[g][gated],
                                            c->device.shared_bytes - STATIC_BYTES));
    return CN_OK;
}

static cn_status expert_fp8_check(const cn_stream *s, const cn_expert_call *call,
                                  const cn_matrix *w)
{
    if (!s->cuda->device.hopper)
        return cn_fail(CN_ERR_SHAPE, "experts: FP8 weights need compute capability 9.0");
    if (call->n % cn_slab_columns(call->gated) != 0 || call->k % CN_VEC8 != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "experts: FP8 weights of %u rows and %u columns: expected multiples of %u "
                       "and %d",
                       call->n, call->k, cn_slab_columns(call->gated), CN_VEC8);
    CN_ASSERT(w->stride == cn_round_up(call->k, CN_FP8_COLUMNS));
    CN_ASSERT(w->scale_n > 0 && (w->scale_n & (w->scale_n - 1)) == 0 && call->n % w->scale_n == 0);
    return CN_OK;
}

/* Rounds the rows of the pairs into rounded[P, stride] and their scales after it. */
static cn_status expert_fp8_round(cn_stream *s, const cn_expert_call *call, const cn_matrix *w,
                                  void *rounded, float *scales, uint32_t x_stride)
{
    const cn_fp8_rounding r = {.x = call->x,
                               .rows = call->pair_tokens,
                               .codes = rounded,
                               .scales = scales,
                               .n_tokens = call->n_pairs,
                               .k = call->k,
                               .stride = x_stride,
                               .form = w->x,
                               .x_scale = w->x_scale};
    return cn_fp8_round(s, &r);
}

extern "C" cn_status cn_experts_fp8_run(cn_stream *s, const cn_expert_call *call,
                                        const cn_matrix *w, void *rounded)
{
    CN_TRY(expert_fp8_check(s, call, w));
    const cn_cuda_expert_tile forced = s->cuda->switches.experts;
    const cn_cuda_expert_tile t =
        forced.tokens ? forced : expert_fp8_default(s->cuda, call);
    if (!expert_fp8_fits(s->cuda, call, t))
        return cn_fail(CN_ERR_SHAPE, "experts: no FP8 kernel for tiles of %u x %u and %u experts",
                       t.tokens, t.rows, call->n_experts);
    float *const scales = (float *)((char *)rounded + (size_t)call->n_pairs * w->stride);
    const uint32_t x_stride = (uint32_t)cn_round_up(call->n_pairs, 4);
    CN_TRY(expert_fp8_round(s, call, w, rounded, scales, x_stride));
    cn_expert_call codes = *call; /* two e4m3 as one bf16 */
    codes.x = rounded;
    codes.pair_tokens = NULL;
    codes.n_rows = call->n_pairs;
    codes.weight = w->data;
    codes.k = w->stride / 2;
    CUtensorMap weight, x;
    CN_TRY(cn_experts_map_weights(&weight, &codes, t));
    CN_TRY(cn_experts_map_x(&x, &codes, t));
    const uint32_t columns = t.rows / CN_SLAB_ROWS * cn_slab_columns(call->gated);
    expert_fp8_params p = {};
    p.out = (cn_bf16 *)call->out;
    p.starts = call->starts;
    p.weight_scales = w->scales;
    p.x_scales = scales;
    p.n_tiles = w->stride / CN_FP8_COLUMNS;
    p.scale_cols = w->scale_k == CN_FP8_COLUMNS ? p.n_tiles : 1;
    while (w->scale_n >> p.scale_n_log2 > 1) p.scale_n_log2++;
    p.x_stride = x_stride;
    p.n = call->n;
    p.n_experts = call->n_experts;
    p.row_groups = (uint32_t)cn_ceil_div(call->n, columns);
    p.slabs_of_expert = call->n / CN_SLAB_ROWS;
    p.steps = (uint32_t)cn_ceil_div(p.n_tiles, cn_tiles_of_stage(t.tokens, t.rows));
    p.stages = expert_fp8_stages_of(s->cuda, call, t);
    p.waits = call->gated;
    const uint64_t most = (uint64_t)call->n_pairs * p.row_groups;
    const uint32_t blocks = t.blocks * s->cuda->device.n_sms;
    cn_launch how = {dim3(most < blocks ? (uint32_t)most : blocks), t.rows * 2 + CN_WARP,
                     expert_fp8_shared_bytes(call, t, p.stages)};
    how.shared_is_set = true; /* cn_experts_fp8_open */
    return cn_cuda_launch(
        s, call->gated ? "expert_gate_up" : "expert_down",
        kernels[expert_fp8_kernel_for(t.tokens)].by_groups[t.rows / 64 - 1][call->gated], how,
        weight, x, p);
}
