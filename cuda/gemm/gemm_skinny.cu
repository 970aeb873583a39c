/* gemm_skinny.cu - matrix products of small batches on Hopper, bound by reading the weights once.
 *
 * out [T,N] = x [T,K] * weight [N,K]^T (+ bias [N]); bf16 in, f32 sums, bf16 or f32 out; T at most
 * CN_GEMM_MAX_SKINNY, K a multiple of 64. Gated: weight [2I,K], out [T,I] = silu(first half) *
 * second half; a block computes both halves of its columns. The sides are swapped: weight rows are
 * the 64-row side of wgmma, tokens the other side. The compiled kernel has TOKENS of them, so
 * little is computed for missing rows.
 *
 * A block has a warpgroup for every 64 weight rows and a warp that copies. It copies tiles of 64
 * columns of weights and x, one or more tiles per stage. A stage is about 30 KiB, so the fixed cost
 * of a stage (two barriers, two copies) is small compared with reading it. The copies of the first
 * stages of weights start before the previous kernel has ended, because weights are never written.
 * This hides the latency of the start.
 *
 * Blocks form clusters of splits * sharers. The splits divide K of the same rows. Their sums are
 * added through shared memory, always in the order of ranks. The bits are then the same in every
 * run and for every T of a configuration (of a link: of a compiled kernel). The sharers have
 * different rows and the same part of K. Each stage of x is read once and sent to all of them,
 * because for more than about 64 tokens x causes most of the load of the L2 cache. A stage is
 * filled again when all sharers have emptied it.
 *
 * Two products of up to CN_GEMM_MAX_LINK rows can compute the RMS norm between them (cn_norm_link).
 * The blocks of the first add their outputs to the residual and sum squares of 64 columns. Each
 * block of the second sums the squares of every row while the first copies are on their way.
 *
 * Grid ceil(ceil(N / rows) / sharers) * splits * sharers. Bytes moved: 2*N*K + out from memory, and
 * 2*T*K*ceil(N/rows)/sharers from the cache; the second of a link reads T*K/16 more in each block.
 * CPU versions: cpu_gemm.c and cpu_norm.c. */
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_sums.cuh"
#include "cuda/hopper.cuh"
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { MAX_GROUPS = 3, MAX_CLUSTER = 8, MAX_STAGES = 12, LEAST_STAGES = 3, TILE_ALIGN = 1024 };

typedef struct skinny_params {
    void *out;
    const cn_bf16 *bias;
    uint32_t n_tokens;
    uint32_t n;       /* columns of out: N, or I when gated */
    uint32_t n_tiles; /* of K */
    uint32_t splits, sharers, stages;
    uint32_t splits_log2, cluster_log2;
    uint32_t sharer_ranks; /* bits: the ranks that share x with rank 0 */
    bool out_f32, gated;
    /* Of a link's first product, else NULL: out is the link's `scaled`. */
    uint2 *residual;
    const uint2 *norm_weight;
    float *squares;
    /* Of a link's second product, else NULL. */
    const float4 *row_squares;
    float inverse_k, eps;
} skinny_params;

enum { STATIC_BYTES = 1536 }; /* no less than the static shared memory of a block */

typedef struct skinny_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
} skinny_barriers;

/* Tiles of a stage, so that three stages fit in half of an SM's shared memory. */
constexpr __host__ __device__ uint32_t tiles_per_stage(uint32_t tokens, uint32_t rows)
{
    return tokens + rows <= 74 ? 4 : tokens + rows <= 148 ? 2 : 1;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int TOKENS, int GROUPS> struct stage {
    static constexpr uint32_t ROWS = GROUPS * 64;
    static constexpr uint32_t TILES = tiles_per_stage(TOKENS, ROWS);
    static constexpr uint32_t WEIGHT_BYTES = TILES * ROWS * CN_ROW_BYTES;
    static constexpr uint32_t BYTES = WEIGHT_BYTES + TILES * TOKENS * CN_ROW_BYTES;
};

/* The part of the work that a block does. */
typedef struct skinny_part {
    uint32_t split, sharer; /* the block's place in the cluster */
    uint32_t first_column;  /* of out */
    uint32_t first_tile;    /* of K */
    uint32_t n_stages;      /* to multiply */
} skinny_part;

template <int TOKENS, int GROUPS>
__device__ static inline skinny_part my_part(const skinny_params &p)
{
    constexpr uint32_t TILES = stage<TOKENS, GROUPS>::TILES;
    const uint32_t cluster = blockIdx.x >> p.cluster_log2;
    const uint32_t rank = blockIdx.x - (cluster << p.cluster_log2);
    const uint32_t all = (p.n_tiles + TILES - 1) / TILES;
    skinny_part part;
    part.sharer = rank >> p.splits_log2;
    part.split = rank - (part.sharer << p.splits_log2);
    part.first_column = (cluster * p.sharers + part.sharer) * (p.gated ? GROUPS * 32 : GROUPS * 64);
    const uint32_t first = all * part.split >> p.splits_log2;
    part.first_tile = first * TILES;
    part.n_stages = (all * (part.split + 1) >> p.splits_log2) - first;
    return part;
}

/* A place in the ring: the stage, and whether the number of completed rounds is odd. */
typedef struct ring {
    uint32_t stage, odd;
} ring;

__device__ static inline void ring_next(ring *r, uint32_t stages)
{
    if (++r->stage < stages) return;
    r->stage = 0;
    r->odd ^= 1;
}

/* ---- the copying warp: one of its threads ---- */

/* Copies the weights from a tile of K on into a stage. The stage's barrier then waits for these
 * weights and for x. */
template <int TOKENS, int GROUPS>
__device__ static inline void load_weights(char *to, uint64_t *full, const CUtensorMap *weight,
                                           const skinny_params &p, const skinny_part &part,
                                           uint32_t tile)
{
    using st = stage<TOKENS, GROUPS>;
    cn_barrier_expect(full, st::BYTES);
    cn_tma_load(to, weight, full, tile, part.first_column, CN_CACHE_EVICT_FIRST);
}

/* Copies x likewise. The sharers alternate in sending x to all of them. */
__device__ static inline void load_x(char *to, uint64_t *full, const CUtensorMap *x,
                                     const skinny_params &p, const skinny_part &part,
                                     uint32_t tile, uint32_t turn)
{
    if (p.sharers == 1)
        cn_tma_load(to, x, full, tile, 0, CN_CACHE_EVICT_LAST);
    else if ((turn & (p.sharers - 1)) == part.sharer)
        cn_tma_load_shared(to, x, full, tile, 0, CN_CACHE_EVICT_LAST,
                           (uint16_t)(p.sharer_ranks << part.split));
}

/* Initialises the barriers and starts the copies of the first stages' weights. Called first. */
template <int TOKENS, int GROUPS>
__device__ static inline void begin_copies(char *base, skinny_barriers *b,
                                           const CUtensorMap *weight, const skinny_params &p,
                                           const skinny_part &part)
{
    using st = stage<TOKENS, GROUPS>;
    for (uint32_t i = 0; i < p.stages; i++) {
        cn_barrier_init(&b->full[i], 1);
        cn_barrier_init(&b->empty[i], p.sharers * GROUPS * CN_WARPGROUP / CN_WARP);
    }
    cn_barrier_init_done();
#pragma unroll 1
    for (uint32_t i = 0; i < p.stages && i < part.n_stages; i++)
        load_weights<TOKENS, GROUPS>(base + i * st::BYTES, &b->full[i], weight, p, part,
                                     part.first_tile + i * st::TILES);
}

/* Copies x of the first stages, then the other stages as they become empty. Called after all
 * barriers of the cluster are initialised. */
template <int TOKENS, int GROUPS>
__device__ static inline void copy_tiles(char *base, skinny_barriers *b, const CUtensorMap *weight,
                                         const CUtensorMap *x, const skinny_params &p,
                                         const skinny_part &part)
{
    using st = stage<TOKENS, GROUPS>;
    uint32_t tile = part.first_tile;
    cn_map_prefetch(x);
    cn_wait_previous();
#pragma unroll 1
    for (uint32_t i = 0; i < p.stages && i < part.n_stages; i++, tile += st::TILES)
        load_x(base + i * st::BYTES + st::WEIGHT_BYTES, &b->full[i], x, p, part, tile, i);
    ring at = {0, 0};
#pragma unroll 1
    for (uint32_t i = p.stages; i < part.n_stages; i++, tile += st::TILES) {
        char *to = base + at.stage * st::BYTES;
        cn_barrier_wait(&b->empty[at.stage], at.odd);
        load_weights<TOKENS, GROUPS>(to, &b->full[at.stage], weight, p, part, tile);
        load_x(to + st::WEIGHT_BYTES, &b->full[at.stage], x, p, part, tile, i);
        ring_next(&at, p.stages);
    }
}

/* ---- the warpgroups ---- */

/* Signals to all sharers that this warp has read a stage. */
__device__ static inline void give_back(uint64_t *empty, const skinny_params &p,
                                        const skinny_part &part)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    if (p.sharers == 1) {
        if (lane == 0) cn_barrier_arrive(empty);
    } else if (lane < p.sharers) {
        cn_barrier_arrive_at(empty, part.split + lane * p.splits);
    }
}

/* Multiplies the warpgroup's 64 weight rows by all tokens. A stage is given back after the products
 * of the next stage have started, so that the tensor cores do not wait for the copying warp. */
template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void multiply_tiles(float *sums, const char *base,
                                                      skinny_barriers *b, const skinny_params &p,
                                                      const skinny_part &part)
{
    using st = stage<TOKENS, GROUPS>;
    /* The compiler sees that this is equal in the whole warp, so descriptors are kept in uniform
     * registers. */
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / CN_WARPGROUP, 0);
    ring at = {0, 0};
    uint32_t last = 0;
    for (uint32_t i = 0; i < part.n_stages; i++, ring_next(&at, p.stages)) {
        const char *from = base + at.stage * st::BYTES;
        const uint64_t rows = cn_wgmma_tile(from + group * 64 * CN_ROW_BYTES);
        const uint64_t tokens = cn_wgmma_tile(from + st::WEIGHT_BYTES);
        cn_barrier_wait(&b->full[at.stage], at.odd);
        cn_wgmma_begin();
        cn_wgmma_boxes<TOKENS, st::TILES * CN_BOX_COLS, true>(sums, rows, st::ROWS * CN_ROW_BYTES,
                                                              tokens, TOKENS * CN_ROW_BYTES);
        cn_wgmma_wait<1>();
        if (i > 0) give_back(&b->empty[last], p, part);
        last = at.stage;
    }
    cn_wgmma_wait<0>();
}

/* ---- the outputs ---- */

/* Stores four neighbours of a token's row, or fewer at the end of the row. */
__device__ static inline void store_out(const skinny_params &p, uint32_t token, uint32_t column,
                                        const float v[4])
{
    const size_t at = (size_t)token * p.n + column;
    if (p.n % 4 == 0 && p.out_f32)
        *(float4 *)((float *)p.out + at) = make_float4(v[0], v[1], v[2], v[3]);
    else if (p.n % 4 == 0)
        *(uint2 *)((cn_bf16 *)p.out + at) = make_uint2(cn_pack2(v[0], v[1]), cn_pack2(v[2], v[3]));
    else
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (column + i >= p.n) continue;
            if (p.out_f32)
                ((float *)p.out)[at + i] = v[i];
            else
                ((cn_bf16 *)p.out)[at + i] = __float2bfloat16_rn(v[i]);
        }
}

/* v = four sums over the splits of this block's sharer. */
__device__ static inline void add_splits(float v[4], const skinny_params &p,
                                         const skinny_part &part, const float *shared)
{
    cn_sums_add_splits(v, shared, part.sharer * p.splits, p.splits);
}

__device__ static inline void scale_by(float v[4], float scale)
{
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= scale;
}

__device__ static inline void add_bias(float v[4], const skinny_params &p, uint32_t column)
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        if (column + i < p.n) v[i] += __bfloat162float(p.bias[column + i]);
}

/* Computes and stores this block's share of the outputs of its splits. scales: of the tokens; not
 * used without a link. */
template <int GROUPS>
__device__ static inline void add_and_store(const skinny_params &p, const skinny_part &part,
                                            const float *shared, const float *scales)
{
    const uint32_t fours = p.gated ? GROUPS * 8 : GROUPS * 16, stride = GROUPS * 64 + CN_SUMS_PAD;
    const uint32_t n = p.n_tokens * fours, end = n * (part.split + 1) >> p.splits_log2;
    for (uint32_t i = (n * part.split >> p.splits_log2) + threadIdx.x; i < end; i += blockDim.x) {
        const uint32_t token = i / fours, row = i % fours * 4, column = part.first_column + row;
        if (column >= p.n) continue;
        const float scale = p.row_squares ? scales[token] : 1.0f;
        float v[4];
        add_splits(v, p, part, shared + token * stride + row);
        scale_by(v, scale);
        if (p.gated) {
            float up[4];
            add_splits(up, p, part, shared + token * stride + GROUPS * 32 + row);
            scale_by(up, scale);
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = v[j] / (1.0f + __expf(-v[j])) * up[j];
        }
        if (p.bias) add_bias(v, p, column);
        store_out(p, token, column, v);
    }
}

/* ---- the norm after the product: the first of a cn_norm_link ---- */

enum { SEGMENT_LANES = CN_NORM_COLUMNS / 4 }; /* a lane has four columns */

/* Four columns of a token's row, and what is there before the product ends. */
typedef struct link_place {
    uint32_t token, row, column; /* row: of the block's weights */
    uint2 residual, weight;
} link_place;

/* Returns place i of the block, segments of 64 columns one after the other. */
template <int GROUPS>
__device__ static inline link_place link_load(const skinny_params &p, const skinny_part &part,
                                              uint32_t i)
{
    const uint32_t segment = i / SEGMENT_LANES;
    link_place at = {};
    at.token = segment / GROUPS;
    at.row = segment % GROUPS * CN_NORM_COLUMNS + i % SEGMENT_LANES * 4;
    at.column = part.first_column + at.row;
    if (at.column >= p.n) return at;
    at.residual = p.residual[((size_t)at.token * p.n + at.column) / 4];
    at.weight = __ldg(p.norm_weight + at.column / 4);
    return at;
}

/* The places of this block's share of the outputs of its splits; a thread of the warpgroups has
 * every THREADS-th. */
template <int GROUPS> struct link_range {
    static constexpr uint32_t THREADS = GROUPS * CN_WARPGROUP;
    uint32_t from, to;
};

template <int GROUPS>
__device__ static inline link_range<GROUPS> link_range_of(const skinny_params &p,
                                                          const skinny_part &part)
{
    const uint32_t n = p.n_tokens * GROUPS; /* segments */
    return {(n * part.split >> p.splits_log2) * SEGMENT_LANES + threadIdx.x,
            (n * (part.split + 1) >> p.splits_log2) * SEGMENT_LANES};
}

/* Adds an output to the residual, rounded as if it had been stored. Returns the sum of squares of
 * the segment. */
__device__ static inline float link_add(const skinny_params &p, const link_place &at,
                                        const float v[4])
{
    const size_t place = ((size_t)at.token * p.n + at.column) / 4;
    const float2 out_low = cn_unpack2(cn_pack2(v[0], v[1]));
    const float2 out_high = cn_unpack2(cn_pack2(v[2], v[3]));
    const float2 old_low = cn_unpack2(at.residual.x), old_high = cn_unpack2(at.residual.y);
    const uint2 sum = make_uint2(cn_pack2(old_low.x + out_low.x, old_low.y + out_low.y),
                                 cn_pack2(old_high.x + out_high.x, old_high.y + out_high.y));
    const float2 low = cn_unpack2(sum.x), high = cn_unpack2(sum.y);
    const float2 weight_low = cn_unpack2(at.weight.x), weight_high = cn_unpack2(at.weight.y);
    p.residual[place] = sum;
    ((uint2 *)p.out)[place] =
        make_uint2(cn_pack2(low.x * weight_low.x, low.y * weight_low.y),
                   cn_pack2(high.x * weight_high.x, high.y * weight_high.y));
    float square = low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y;
    const uint32_t lanes = 0xffffu << (threadIdx.x & SEGMENT_LANES); /* 0 or 16 */
#pragma unroll
    for (int offset = SEGMENT_LANES / 2; offset > 0; offset /= 2)
        square += __shfl_xor_sync(lanes, square, offset);
    return square;
}

/* Returns the thread's first place. */
template <int GROUPS>
__device__ static inline link_place link_begin(const skinny_params &p, const skinny_part &part)
{
    const link_range<GROUPS> range = link_range_of<GROUPS>(p, part);
    cn_wait_previous();
    return range.from < range.to ? link_load<GROUPS>(p, part, range.from) : link_place{};
}

/* As add_and_store, for the warpgroups. at: link_begin(). The next place is loaded before the
 * outputs of one are computed. */
template <int GROUPS>
__device__ static inline void add_and_link(const skinny_params &p, const skinny_part &part,
                                           const float *shared, link_place at)
{
    const uint32_t stride = GROUPS * 64 + CN_SUMS_PAD;
    const link_range<GROUPS> range = link_range_of<GROUPS>(p, part);
    for (uint32_t i = range.from; i < range.to; i += range.THREADS) {
        const uint32_t next = i + range.THREADS;
        const link_place ahead = next < range.to ? link_load<GROUPS>(p, part, next) : link_place{};
        if (at.column < p.n) { /* equal in all lanes of a segment */
            float v[4];
            add_splits(v, p, part, shared + at.token * stride + at.row);
            if (p.bias) add_bias(v, p, at.column);
            const float square = link_add(p, at, v);
            if (threadIdx.x % SEGMENT_LANES == 0)
                p.squares[(at.token * p.n + at.column) / CN_NORM_COLUMNS] = square;
        }
        at = ahead;
    }
}

/* ---- the norm before the product: the second of a cn_norm_link ---- */

enum { MOST_ROW_LANES = 16 };

/* The lanes that sum the squares of a row: as many as there are for all rows at once. */
constexpr __device__ uint32_t lanes_of_row(uint32_t tokens, uint32_t threads)
{
    uint32_t lanes = MOST_ROW_LANES;
    while (lanes > 1 && lanes * tokens > threads) lanes /= 2;
    return lanes;
}

/* scales[token] = 1 / rms of the row. Called by the warpgroups. */
template <int TOKENS, int GROUPS>
__device__ static inline void load_scales(float *scales, const skinny_params &p)
{
    constexpr uint32_t THREADS = GROUPS * CN_WARPGROUP, LANES = lanes_of_row(TOKENS, THREADS);
    const uint32_t lane = threadIdx.x % LANES, fours = p.n_tiles / 4;
    static_assert(CN_BOX_COLS == CN_NORM_COLUMNS, "a tile of x has one sum of squares");
    cn_wait_previous();
    for (uint32_t from = 0; from < p.n_tokens; from += THREADS / LANES) {
        const uint32_t token = from + threadIdx.x / LANES;
        const bool is_row = token < p.n_tokens;
        const float4 *row = p.row_squares + (size_t)token * fours;
        float sum = 0;
#pragma unroll 4
        for (uint32_t i = lane; i < fours; i += LANES) {
            const float4 v = is_row ? row[i] : float4{};
            sum += (v.x + v.y) + (v.z + v.w);
        }
#pragma unroll
        for (uint32_t offset = LANES / 2; offset > 0; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (is_row && lane == 0) scales[token] = rsqrtf(sum * p.inverse_k + p.eps);
    }
}

#endif

template <int TOKENS, int GROUPS>
__global__ static void __launch_bounds__(GROUPS *CN_WARPGROUP + CN_WARP)
    skinny_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                  const skinny_params p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ char dynamic[];
    __shared__ skinny_barriers barriers;
    __shared__ float scales[TOKENS];
    static_assert(sizeof barriers + sizeof scales <= STATIC_BYTES, "what the host counts");
    char *base = dynamic + (TILE_ALIGN - cn_shared_address(dynamic) % TILE_ALIGN) % TILE_ALIGN;
    const skinny_part part = my_part<TOKENS, GROUPS>(p);
    const bool copies = threadIdx.x >= GROUPS * CN_WARPGROUP;
    const bool leads = threadIdx.x == GROUPS * CN_WARPGROUP;
    cn_overlap_next();
    if (leads) begin_copies<TOKENS, GROUPS>(base, &barriers, &weight, p, part);
    __syncwarp();
    if (p.sharers > 1) cn_cluster_meet(); /* the barriers of the others are initialised */
    __syncthreads();
    float sums[TOKENS / 2] = {};
    link_place first = {};
    if (!copies) {
        if (p.row_squares) load_scales<TOKENS, GROUPS>(scales, p);
        if (p.squares) first = link_begin<GROUPS>(p, part);
        multiply_tiles<TOKENS, GROUPS>(sums, base, &barriers, p, part);
    } else if (leads) {
        copy_tiles<TOKENS, GROUPS>(base, &barriers, &weight, &x, p, part);
    }
    __syncwarp();
    __syncthreads(); /* all products are done: the memory of the stages is free for the sums */
    if (!copies) cn_sums_store<TOKENS, GROUPS>((float *)base, sums);
    __syncwarp();
    if (p.splits > 1)
        cn_cluster_sync();
    else
        __syncthreads();
    if (!p.squares) add_and_store<GROUPS>(p, part, (const float *)base, scales);
    else if (!copies) add_and_link<GROUPS>(p, part, (const float *)base, first);
    __syncwarp();
    if (p.splits * p.sharers > 1) cn_cluster_meet(); /* others may still read this block */
#endif
}

/* ---- choosing ---- */

typedef void (*skinny_fn)(const CUtensorMap, const CUtensorMap, const skinny_params);
#define NARROW(tokens) skinny_kernel<tokens, 1>, skinny_kernel<tokens, 2>
#define WIDE(tokens) NARROW(tokens), skinny_kernel<tokens, 3>
static const struct {
    uint32_t tokens;
    skinny_fn by_groups[MAX_GROUPS]; /* NULL: too many registers */
} kernels[] = {
    {8, {WIDE(8)}},     {16, {WIDE(16)}},   {32, {WIDE(32)}},   {48, {WIDE(48)}},
    {64, {WIDE(64)}},   {96, {WIDE(96)}},   {128, {WIDE(128)}}, {160, {WIDE(160)}},
    {176, {WIDE(176)}}, {192, {WIDE(192)}}, {224, {NARROW(224)}}, {256, {NARROW(256)}},
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

/* Returns the kernel with the fewest tokens that supports n_tokens. */
static uint32_t kernel_for(uint32_t n_tokens)
{
    uint32_t i = 0;
    while (i + 1 < N_KERNELS && kernels[i].tokens < n_tokens) i++;
    return i;
}

static size_t stage_bytes(uint32_t tokens, uint32_t rows)
{
    return (size_t)tiles_per_stage(tokens, rows) * (tokens + rows) * CN_ROW_BYTES;
}

/* Shared memory for `stages` stages, and for the sums that later use the same memory. */
static size_t shared_bytes(uint32_t tokens, uint32_t rows, uint32_t stages)
{
    const size_t tile_bytes = stages * stage_bytes(tokens, rows);
    const size_t sums_bytes = (size_t)tokens * (rows + 4) * sizeof(float);
    return TILE_ALIGN + (tile_bytes > sums_bytes ? tile_bytes : sums_bytes);
}

extern "C" uint32_t cn_gemm_skinny_stages(const cn_cuda *c, uint32_t n_tokens, uint32_t rows,
                                          uint32_t blocks_per_sm)
{
    const uint32_t tokens = kernels[kernel_for(n_tokens)].tokens;
    const size_t budget = cn_launch_shared_of(c, blocks_per_sm) - STATIC_BYTES;
    uint32_t stages = MAX_STAGES;
    while (stages > LEAST_STAGES && shared_bytes(tokens, rows, stages) > budget) stages--;
    return stages;
}

/* Columns of out that a block computes. */
static uint32_t columns_of(cn_gemm_shape shape, cn_gemm_skinny config)
{
    return shape.gated ? config.rows / 2 : config.rows;
}

static uint32_t out_columns(cn_gemm_shape shape) { return shape.gated ? shape.n / 2 : shape.n; }

extern "C" uint32_t cn_gemm_skinny_blocks(cn_gemm_shape shape, cn_gemm_skinny config)
{
    const uint64_t parts = cn_ceil_div(out_columns(shape), columns_of(shape, config));
    return (uint32_t)cn_round_up(parts, config.sharers) * config.splits;
}

static bool is_power_of_two(uint32_t n) { return n > 0 && (n & (n - 1)) == 0; }

extern "C" bool cn_gemm_skinny_fits(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                                    cn_gemm_skinny config)
{
    const uint32_t kernel = kernel_for(n_tokens), tokens = kernels[kernel].tokens;
    const bool known = config.rows % 64 == 0 && config.rows / 64 - 1 < MAX_GROUPS &&
                       is_power_of_two(config.splits) && is_power_of_two(config.sharers) &&
                       config.splits <= MAX_CLUSTER &&
                       config.sharers <= MAX_CLUSTER / config.splits;
    if (!known || !c->device.hopper || n_tokens > CN_GEMM_MAX_SKINNY) return false;
    if (!kernels[kernel].by_groups[config.rows / 64 - 1]) return false;
    const uint32_t stage_columns = CN_BOX_COLS * tiles_per_stage(tokens, config.rows);
    if (shape.k % CN_BOX_COLS != 0 || shape.k < config.splits * stage_columns) return false;
    if (config.stages < LEAST_STAGES || config.stages > MAX_STAGES) return false;
    return shared_bytes(tokens, config.rows, config.stages) + STATIC_BYTES <=
           c->device.shared_bytes;
}

/* Chooses the configuration with the most blocks that can run at once. Among equals it prefers wide
 * blocks to many splits. If every configuration has more blocks than run at once, it chooses
 * 128 rows without splits. */
extern "C" cn_gemm_skinny cn_gemm_skinny_default(const cn_cuda *c, cn_gemm_shape shape,
                                                 uint32_t n_tokens)
{
    cn_gemm_skinny best = {128, 1, 1, LEAST_STAGES};
    uint32_t most = 0;
    for (uint32_t splits = 1; splits <= MAX_CLUSTER; splits *= 2)
        for (uint32_t rows = MAX_GROUPS * 64; rows > 0; rows -= 64) {
            const uint32_t wanted = n_tokens > 128 ? 4 : n_tokens > 48 ? 2 : 1;
            const uint32_t sharers = cn_min_u32(wanted, MAX_CLUSTER / splits);
            const uint32_t stages = cn_gemm_skinny_stages(c, n_tokens, rows, 2);
            const cn_gemm_skinny config = {rows, splits, sharers, stages};
            const uint32_t blocks = cn_gemm_skinny_blocks(shape, config);
            if (blocks <= most || blocks > c->device.n_sms) continue;
            if (!cn_gemm_skinny_fits(c, shape, n_tokens, config)) continue;
            best = config;
            most = blocks;
        }
    if (!cn_gemm_skinny_fits(c, shape, n_tokens, best)) best.rows = 0;
    return best;
}

/* ---- launching ---- */

/* Encodes a map of [halves, rows, columns] bf16. Its box is box_rows rows of each half and `tiles`
 * tiles of 64 columns, with the layout [tile, half, row], so a stage is one copy. */
static cn_status make_map(CUtensorMap *map, const void *base, uint32_t halves, uint32_t rows,
                          uint32_t columns, uint32_t box_rows, uint32_t tiles)
{
    const cn_map_shape shape = {4,
                                {CN_BOX_COLS, rows, halves, columns / CN_BOX_COLS},
                                {1, columns, (uint64_t)rows * columns, CN_BOX_COLS},
                                {CN_BOX_COLS, box_rows, halves, tiles}};
    return cn_map_encode(map, base, &shape);
}

extern "C" cn_status cn_gemm_skinny_open(cn_cuda *c)
{
    if (!c->device.hopper) return CN_OK;
    const size_t most = c->device.shared_bytes - STATIC_BYTES;
    for (uint32_t i = 0; i < N_KERNELS; i++)
        for (uint32_t g = 0; g < MAX_GROUPS && kernels[i].by_groups[g]; g++)
            CN_TRY(cn_launch_set_shared(c, "gemm", kernels[i].by_groups[g], most));
    return CN_OK;
}

static void set_links(skinny_params *p, const cn_gemm_call *call)
{
    if (call->adds) {
        p->out = call->adds->scaled;
        p->residual = (uint2 *)call->adds->residual;
        p->norm_weight = (const uint2 *)call->adds->weight;
        p->squares = call->adds->squares;
    }
    if (call->norms) {
        p->row_squares = (const float4 *)call->norms->squares;
        p->inverse_k = 1.0f / (float)call->shape.k;
        p->eps = call->norms->eps;
    }
}

extern "C" cn_status cn_gemm_skinny_run(cn_stream *s, const cn_gemm_call *call,
                                        cn_gemm_skinny config)
{
    const cn_gemm_shape shape = call->shape;
    const uint32_t kernel = kernel_for(call->n_tokens), tokens = kernels[kernel].tokens;
    if (!cn_gemm_skinny_fits(s->cuda, shape, call->n_tokens, config))
        return cn_fail(CN_ERR_SHAPE, "gemm: no own kernel fits %u x %u x %u", call->n_tokens,
                       shape.n, shape.k);
    CUtensorMap weight, x;
    const uint32_t tiles = tiles_per_stage(tokens, config.rows);
    CN_TRY(make_map(&weight, call->weight, shape.gated ? 2 : 1, out_columns(shape), shape.k,
                    columns_of(shape, config), tiles));
    CN_TRY(make_map(&x, call->x, 1, call->n_tokens, shape.k, tokens, tiles));
    skinny_params p = {};
    p.out = call->out;
    p.bias = (const cn_bf16 *)call->bias;
    p.n_tokens = call->n_tokens;
    p.n = out_columns(shape);
    p.n_tiles = shape.k / CN_BOX_COLS;
    p.splits = config.splits;
    p.sharers = config.sharers;
    p.stages = config.stages;
    while (config.splits >> p.splits_log2 > 1) p.splits_log2++;
    while (config.splits * config.sharers >> p.cluster_log2 > 1) p.cluster_log2++;
    for (uint32_t i = 0; i < config.sharers; i++) p.sharer_ranks |= 1u << i * config.splits;
    p.out_f32 = shape.out_f32;
    p.gated = shape.gated;
    set_links(&p, call);
    cn_launch how = {dim3(cn_gemm_skinny_blocks(shape, config)), config.rows * 2 + CN_WARP,
                     shared_bytes(tokens, config.rows, p.stages)};
    how.shared_is_set = true; /* cn_gemm_skinny_open */
    how.cluster = config.splits * config.sharers;
    return cn_cuda_launch(s, "gemm", kernels[kernel].by_groups[config.rows / 64 - 1], how, weight,
                          x, p);
}
