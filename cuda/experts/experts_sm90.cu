/* experts_sm90.cu - grouped products of a layer with experts on Hopper.
 *
 * out [P,N] = x [P,K] * weight [E,N,K]^T by expert; gated: see cn_expert_call. bf16 in and out, f32
 * sums; K a multiple of 64. As in gemm_skinny.cu the sides are swapped: weight rows are the 64-row
 * side of wgmma, pairs the other side, and a block has a warpgroup for every 64 weight rows and a
 * warp that copies.
 *
 * Blocks stay for the whole product and take units of work in turn. The copying warp goes from unit
 * to unit without a pause, so that a unit's first tiles arrive while sums of the one before are
 * stored. `down` reads `starts`, and the first weights, before the previous kernel has ended:
 * cn_expert_gate_up lets the next kernel start only after its own wait, so `route` has ended then.
 *
 * Up to CN_EXPERTS_MOST_ROW_COPIES pairs of a tile may have rows anywhere in x: each is copied by
 * its own bulk copy. Many such copies take longer than the weights. So else the rows of a tile are
 * neighbours, and one copy reads them. It may read rows of the next expert too; sums of those are
 * not stored.
 *
 * With many pairs the load of the L2 cache bounds a product. Then two blocks form a cluster: they
 * have the same pairs and neighbouring weight rows, and alternate in sending a stage of x to both.
 *
 * The sum over K of a pair has the same order in every tile. Grid: a fixed number of blocks on each
 * multiprocessor. Bytes moved: the weights of the experts that have pairs, once for each tile of
 * pairs. CPU version: cpu_experts.c. */
#include <math.h>

#include "cuda/experts/expert_tiles.cuh"
#include "cuda/hopper.cuh"
#include "cuda/launch.cuh"

enum { MAX_GROUPS = 2, MAX_STAGES = 12, LEAST_STAGES = 3, TILE_ALIGN = 1024, STATIC_BYTES = 256 };
enum { MANY_TOKENS = 96 }; /* of a tile from which on blocks share x, and weights are read again */

typedef struct sm90_params {
    cn_bf16 *out;
    const uint32_t *starts;
    const uint32_t *pair_tokens; /* NULL: rows of x are those of the pairs */
    uint32_t n, n_experts;
    uint32_t row_groups;      /* of an expert: row tiles, those of all sharers together */
    uint32_t slabs_of_expert; /* of a product that is not gated */
    uint32_t steps;           /* stages of a unit */
    uint32_t stages;          /* of the ring */
    uint32_t sharers;         /* blocks of a cluster */
    bool waits; /* `starts` may be written by the previous kernel */
} sm90_params;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

typedef struct sm90_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
} sm90_barriers;

template <int TOKENS, int GROUPS> struct stage {
    static constexpr uint32_t ROWS = GROUPS * 64;
    static constexpr uint32_t SLABS = ROWS / CN_SLAB_ROWS;
    static constexpr uint32_t TILES = cn_tiles_of_stage(TOKENS, ROWS);
    static constexpr uint32_t WEIGHT_BYTES = TILES * ROWS * CN_ROW_BYTES;
    static constexpr uint32_t BYTES = WEIGHT_BYTES + TILES * TOKENS * CN_ROW_BYTES;
    /* Of a lane; not used by tiles of more pairs. */
    static constexpr uint32_t ROW_COPIES =
        TOKENS <= CN_EXPERTS_MOST_ROW_COPIES ? (TOKENS + CN_WARP - 1) / CN_WARP : 1;
};

/* A unit has the row tiles of all sharers. Returns the one of this block. */
__device__ static inline uint32_t row_tile_of(const sm90_params &p, uint32_t unit)
{
    return unit % p.row_groups * p.sharers + blockIdx.x % p.sharers;
}

/* ---- the copying warp ---- */

/* A step of a unit: its tiles of K from `step` on. */
template <int TOKENS, int GROUPS> struct walk {
    uint32_t unit, step, row_tile;
    cn_expert_pairs pairs;
    uint32_t rows[stage<TOKENS, GROUPS>::ROW_COPIES]; /* of x: the lane's */
};

/* Begins unit w->unit, if there is one. */
template <int TOKENS, int GROUPS>
__device__ static inline void walk_unit(walk<TOKENS, GROUPS> *w, const sm90_params &p,
                                        const cn_expert_tables &t, uint32_t n_units)
{
    w->step = 0;
    if (w->unit >= n_units) return;
    w->row_tile = row_tile_of(p, w->unit);
    w->pairs = cn_find_pairs(t, p.n_experts, TOKENS, w->unit / p.row_groups);
    if (!p.pair_tokens) return;
#pragma unroll
    for (uint32_t i = 0; i < stage<TOKENS, GROUPS>::ROW_COPIES; i++) {
        const uint32_t pair = threadIdx.x % CN_WARP + i * CN_WARP;
        if (pair < w->pairs.count) w->rows[i] = __ldcg(p.pair_tokens + w->pairs.first + pair);
    }
}

template <int TOKENS, int GROUPS>
__device__ static inline void walk_next(walk<TOKENS, GROUPS> *w, const sm90_params &p,
                                        const cn_expert_tables &t, uint32_t n_units)
{
    if (++w->step < p.steps) return;
    w->unit += gridDim.x / p.sharers;
    walk_unit(w, p, t, n_units);
}

/* Copies a step's weights into a stage. The stage's barrier then waits for these weights and for
 * x. */
template <int TOKENS, int GROUPS, bool GATED>
__device__ static inline void copy_weights(char *to, uint64_t *full, const CUtensorMap *weight,
                                           const sm90_params &p, const walk<TOKENS, GROUPS> &w)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t slab = w.row_tile * st::SLABS, tile = w.step * st::TILES;
    const uint32_t pairs = p.pair_tokens ? w.pairs.count : TOKENS;
    if (threadIdx.x % CN_WARP > 0) return;
    cn_barrier_expect(full, st::WEIGHT_BYTES + st::TILES * pairs * CN_ROW_BYTES);
    cn_tma_load_5d(to, weight, full, GATED ? 2 * w.pairs.expert : 0,
                   GATED ? slab : w.pairs.expert * p.slabs_of_expert + slab, tile,
                   TOKENS >= MANY_TOKENS ? CN_CACHE_EVICT_NORMAL : CN_CACHE_EVICT_FIRST);
}

/* As cn_tma_load_3d, into every block of the cluster whose bit is set in `ranks`. */
__device__ static inline void tma_load_shared(void *dst, const CUtensorMap *map, uint64_t *barrier,
                                              uint32_t row, uint32_t tile, uint16_t ranks)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(
            cn_shared_address(dst)),
        "l"(map), "r"(cn_shared_address(barrier)), "r"(0), "r"(row), "r"(tile), "h"(ranks),
        "l"(CN_CACHE_EVICT_LAST)
        : "memory");
}

/* Copies a step's rows of x likewise. The sharers take turns. */
template <int TOKENS, int GROUPS>
__device__ static inline void copy_x(char *to, uint64_t *full, const CUtensorMap *x,
                                     const sm90_params &p, const walk<TOKENS, GROUPS> &w,
                                     uint32_t turn)
{
    using st = stage<TOKENS, GROUPS>;
    const uint32_t lane = threadIdx.x % CN_WARP, tile = w.step * st::TILES;
    if (!p.pair_tokens) {
        if (lane > 0 || turn % p.sharers != blockIdx.x % p.sharers) return;
        if (p.sharers == 1)
            cn_tma_load_3d(to, x, full, w.pairs.first, tile, CN_CACHE_EVICT_LAST);
        else
            tma_load_shared(to, x, full, w.pairs.first, tile, (uint16_t)((1u << p.sharers) - 1));
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < st::ROW_COPIES; i++) {
        const uint32_t pair = lane + i * CN_WARP;
        if (pair >= w.pairs.count) continue;
#pragma unroll
        for (uint32_t j = 0; j < st::TILES; j++)
            cn_tma_load_3d(to + (j * TOKENS + pair) * CN_ROW_BYTES, x, full, w.rows[i], tile + j,
                           CN_CACHE_EVICT_LAST);
    }
}

/* Fills the ring: the first stages' weights, then their x when the previous kernel has ended, then
 * every stage as it becomes empty. */
template <int TOKENS, int GROUPS, bool GATED>
__device__ static inline void copy_units(char *base, sm90_barriers *b, const CUtensorMap *weight,
                                         const CUtensorMap *x, const sm90_params &p,
                                         const cn_expert_tables &t, uint32_t n_units)
{
    using st = stage<TOKENS, GROUPS>;
    walk<TOKENS, GROUPS> w = {};
    w.unit = blockIdx.x / p.sharers;
    walk_unit(&w, p, t, n_units);
    walk<TOKENS, GROUPS> first = w;
    uint32_t filled = 0;
#pragma unroll 1
    for (; filled < p.stages && w.unit < n_units; filled++) {
        copy_weights<TOKENS, GROUPS, GATED>(base + filled * st::BYTES, &b->full[filled], weight, p,
                                            w);
        walk_next(&w, p, t, n_units);
    }
    __syncwarp();
    cn_wait_previous();
#pragma unroll 1
    for (uint32_t i = 0; i < filled; i++) {
        copy_x(base + i * st::BYTES + st::WEIGHT_BYTES, &b->full[i], x, p, first, i);
        walk_next(&first, p, t, n_units);
    }
    cn_ring at = {0, 0};
#pragma unroll 1
    for (uint32_t turn = filled; w.unit < n_units; turn++) {
        char *to = base + at.stage * st::BYTES;
        cn_barrier_wait(&b->empty[at.stage], at.odd);
        copy_weights<TOKENS, GROUPS, GATED>(to, &b->full[at.stage], weight, p, w);
        __syncwarp();
        copy_x(to + st::WEIGHT_BYTES, &b->full[at.stage], x, p, w, turn);
        walk_next(&w, p, t, n_units);
        cn_ring_next(&at, p.stages);
    }
}

/* ---- the warpgroups ---- */

/* Signals to all sharers that this warp has read a stage. */
__device__ static inline void give_back_stage(uint64_t *empty, uint32_t sharers)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    if (sharers == 1) {
        if (lane == 0) cn_barrier_arrive(empty);
    } else if (lane < sharers) {
        cn_barrier_arrive_at(empty, lane);
    }
}

/* Multiplies the warpgroup's 64 weight rows by the pairs of a unit. A stage is given back after the
 * products of the next stage have started. */
template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void multiply_unit(float *sums, const char *base,
                                                     sm90_barriers *b, const sm90_params &p,
                                                     cn_ring *at)
{
    using st = stage<TOKENS, GROUPS>;
    /* The compiler sees that this is equal in the whole warp. */
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / CN_WARPGROUP, 0);
    uint32_t last = 0;
    for (uint32_t i = 0; i < p.steps; i++, cn_ring_next(at, p.stages)) {
        const char *from = base + at->stage * st::BYTES;
        const uint64_t rows = cn_wgmma_tile(from + group * 64 * CN_ROW_BYTES);
        const uint64_t tokens = cn_wgmma_tile(from + st::WEIGHT_BYTES);
        cn_barrier_wait(&b->full[at->stage], at->odd);
        cn_wgmma_begin();
        cn_wgmma_boxes<TOKENS, st::TILES * CN_BOX_COLS, true>(sums, rows, st::ROWS * CN_ROW_BYTES,
                                                              tokens, TOKENS * CN_ROW_BYTES);
        cn_wgmma_wait<1>();
        if (i > 0) give_back_stage(&b->empty[last], p.sharers);
        last = at->stage;
    }
    cn_wgmma_wait<0>();
    give_back_stage(&b->empty[last], p.sharers);
}

template <int TOKENS, int GROUPS, bool GATED>
__device__ __forceinline__ static void multiply_units(const char *base, sm90_barriers *b,
                                                      const sm90_params &p,
                                                      const cn_expert_tables &t,
                                                      uint32_t n_units)
{
    using st = stage<TOKENS, GROUPS>;
    cn_ring at = {0, 0};
#pragma unroll 1
    for (uint32_t unit = blockIdx.x / p.sharers; unit < n_units;
         unit += gridDim.x / p.sharers) {
        float sums[TOKENS / 2] = {};
        multiply_unit<TOKENS, GROUPS>(sums, base, b, p, &at);
        const cn_expert_pairs pairs =
            cn_find_pairs(t, p.n_experts, TOKENS, unit / p.row_groups);
        const uint32_t slab = row_tile_of(p, unit) * st::SLABS + threadIdx.x / CN_WARP;
        cn_store_slab<TOKENS, GATED>(p.out, p.n, slab * cn_slab_columns(GATED), pairs, sums);
    }
}

#endif

template <int TOKENS, int GROUPS, bool GATED>
__global__ static void __launch_bounds__(GROUPS *CN_WARPGROUP + CN_WARP)
    experts_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x, const sm90_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char dynamic[];
    __shared__ sm90_barriers barriers;
    static_assert(sizeof barriers <= STATIC_BYTES, "what the host counts");
    char *base = dynamic + (TILE_ALIGN - cn_shared_address(dynamic) % TILE_ALIGN) % TILE_ALIGN;
    uint32_t *words = (uint32_t *)(base + p.stages * stage<TOKENS, GROUPS>::BYTES);
    const cn_expert_tables tables = {words, words + p.n_experts + 1};
    const bool copies = threadIdx.x >= GROUPS * CN_WARPGROUP;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < p.stages; i++) {
            cn_barrier_init(&barriers.full[i], 1);
            cn_barrier_init(&barriers.empty[i], p.sharers * GROUPS * CN_WARPGROUP / CN_WARP);
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
    if (p.sharers > 1) cn_cluster_meet(); /* the barriers of the other are initialised */
    __syncthreads();
    const uint32_t n_units = tables.tiles[p.n_experts] * p.row_groups;
    if (copies)
        copy_units<TOKENS, GROUPS, GATED>(base, &barriers, &weight, &x, p, tables, n_units);
    else
        multiply_units<TOKENS, GROUPS, GATED>(base, &barriers, p, tables, n_units);
    __syncwarp();
    if (p.sharers > 1) cn_cluster_meet(); /* the other may still signal to this block */
#endif
}

/* ---- choosing ---- */

typedef void (*experts_fn)(const CUtensorMap, const CUtensorMap, const sm90_params);
#define KERNELS(tokens)                                                                  \
    {tokens, {{experts_kernel<tokens, 1, false>, experts_kernel<tokens, 1, true>},      \
              {experts_kernel<tokens, 2, false>, experts_kernel<tokens, 2, true>}}}
static const struct {
    uint32_t tokens;
    experts_fn by_groups[MAX_GROUPS][2]; /* then by whether the product is gated */
} kernels[] = {
    KERNELS(8),  KERNELS(16),  KERNELS(32),  KERNELS(64),
    KERNELS(96), KERNELS(128), KERNELS(176), KERNELS(256),
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

/* Returns the kernel with the fewest tokens that has n of them, or the largest. */
static uint32_t expert_kernel_for(uint32_t n)
{
    uint32_t i = 0;
    while (i + 1 < N_KERNELS && kernels[i].tokens < n) i++;
    return i;
}

static size_t expert_stage_bytes(const cn_cuda_expert_tile &t)
{
    return (size_t)cn_tiles_of_stage(t.tokens, t.rows) * (t.tokens + t.rows) * CN_ROW_BYTES;
}

/* Returns the blocks of a cluster. */
static uint32_t sharers_of(const cn_cuda_expert_tile &t)
{
    return t.tokens >= MANY_TOKENS && t.blocks == 1 ? 2 : 1;
}

/* Returns the stages for which there is shared memory, at most MAX_STAGES. */
static uint32_t expert_stages_of(const cn_cuda *c, const cn_expert_call *call,
                                 const cn_cuda_expert_tile &t)
{
    const size_t fixed = TILE_ALIGN + STATIC_BYTES + cn_expert_table_bytes(call->n_experts);
    const size_t budget = cn_launch_shared_of(c, t.blocks);
    const size_t n = budget > fixed ? (budget - fixed) / expert_stage_bytes(t) : 0;
    return cn_min_u32((uint32_t)n, MAX_STAGES);
}

extern "C" bool cn_experts_sm90_fits(const cn_cuda *c, const cn_expert_call *call,
                                     cn_cuda_expert_tile t)
{
    if (!c->device.hopper || t.tokens == 0 || t.blocks == 0) return false;
    if (kernels[expert_kernel_for(t.tokens)].tokens != t.tokens) return false;
    if (t.rows != 64 && t.rows != 128) return false;
    if (call->k % CN_BOX_COLS != 0 || call->n % cn_slab_columns(call->gated) != 0) return false;
    return expert_stages_of(c, call, t) >= LEAST_STAGES;
}

/* A tile has room for the pairs of an expert, their average and four standard deviations of even
 * routing, while there is a kernel for so many. */
extern "C" cn_cuda_expert_tile cn_experts_sm90_default(const cn_cuda *c,
                                                       const cn_expert_call *call)
{
    const uint32_t average = (uint32_t)cn_ceil_div(call->n_pairs, call->n_experts);
    const uint32_t most = average + (uint32_t)(4 * sqrtf((float)average));
    const uint32_t tokens = kernels[expert_kernel_for(cn_max_u32(most, 16))].tokens;
    cn_cuda_expert_tile t = {tokens, 64, 2};
    if (tokens > 32) t = {tokens, 128, 1};
    if (!cn_experts_sm90_fits(c, call, t)) t.tokens = 0;
    return t;
}

/* ---- launching ---- */

/* Encodes the map of the weights: 64 columns, eight rows, the two rows of a thread, slabs,
 * tiles. */
extern "C" cn_status cn_experts_map_weights(CUtensorMap *map, const cn_expert_call *a,
                                            cn_cuda_expert_tile t)
{
    const uint64_t k = a->k, n = a->n, e = a->n_experts;
    const uint32_t slabs = t.rows / CN_SLAB_ROWS, tiles = cn_tiles_of_stage(t.tokens, t.rows);
    cn_map_shape shape = {5,
                          {CN_BOX_COLS, 8, 2, e * n / CN_SLAB_ROWS, k / CN_BOX_COLS},
                          {1, 2 * k, k, CN_SLAB_ROWS * k, CN_BOX_COLS},
                          {CN_BOX_COLS, 8, 2, slabs, tiles}};
    if (a->gated) {
        shape.stride[1] = k;
        shape.size[2] = 2 * e;
        shape.stride[2] = n * k;
        shape.size[3] = n / 8;
        shape.stride[3] = 8 * k;
    }
    return cn_map_encode(map, a->weight, &shape);
}

extern "C" cn_status cn_experts_map_x(CUtensorMap *map, const cn_expert_call *a,
                                      cn_cuda_expert_tile t)
{
    const uint32_t tiles = cn_tiles_of_stage(t.tokens, t.rows);
    const cn_map_shape shape = {
        3,
        {CN_BOX_COLS, a->n_rows, a->k / CN_BOX_COLS},
        {1, a->k, CN_BOX_COLS},
        {CN_BOX_COLS, a->pair_tokens ? 1 : t.tokens, a->pair_tokens ? 1 : tiles}};
    return cn_map_encode(map, a->x, &shape);
}

extern "C" cn_status cn_experts_sm90_open(cn_cuda *c)
{
    if (!c->device.hopper) return CN_OK;
    for (uint32_t i = 0; i < N_KERNELS; i++)
        for (uint32_t g = 0; g < MAX_GROUPS; g++)
            for (int gated = 0; gated < 2; gated++)
                CN_TRY(cn_launch_set_shared(c, "experts", kernels[i].by_groups[g][gated],
                                            c->device.shared_bytes - STATIC_BYTES));
    return CN_OK;
}

extern "C" cn_status cn_experts_sm90_run(cn_stream *s, const cn_expert_call *call,
                                         cn_cuda_expert_tile t)
{
    CUtensorMap weight, x;
    CN_TRY(cn_experts_map_weights(&weight, call, t));
    CN_TRY(cn_experts_map_x(&x, call, t));
    sm90_params p = {};
    p.out = (cn_bf16 *)call->out;
    p.starts = call->starts;
    p.pair_tokens = call->pair_tokens;
    p.n = call->n;
    p.n_experts = call->n_experts;
    p.sharers = sharers_of(t);
    p.row_groups = (uint32_t)cn_ceil_div(
        call->n, t.rows / CN_SLAB_ROWS * cn_slab_columns(call->gated) * p.sharers);
    p.slabs_of_expert = call->n / CN_SLAB_ROWS;
    p.steps = (uint32_t)cn_ceil_div(call->k / CN_BOX_COLS, cn_tiles_of_stage(t.tokens, t.rows));
    p.stages = expert_stages_of(s->cuda, call, t);
    p.waits = call->gated;
    const uint64_t most = (uint64_t)call->n_pairs * p.row_groups * p.sharers;
    const uint32_t blocks = t.blocks * s->cuda->device.n_sms / p.sharers * p.sharers;
    cn_launch how = {dim3(most < blocks ? (uint32_t)most : blocks), t.rows * 2 + CN_WARP,
                     TILE_ALIGN + p.stages * expert_stage_bytes(t) +
                         cn_expert_table_bytes(call->n_experts)};
    how.shared_is_set = true; /* cn_experts_sm90_open */
    how.cluster = p.sharers > 1 ? p.sharers : 0;
    return cn_cuda_launch(
        s, call->gated ? "expert_gate_up" : "expert_down",
        kernels[expert_kernel_for(t.tokens)].by_groups[t.rows / 64 - 1][call->gated], how, weight,
        x, p);
}
