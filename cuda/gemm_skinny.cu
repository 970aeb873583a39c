/* gemm_skinny.cu - matrix products of small batches on Hopper, bound by reading the weights once.
 *
 * out [T,N] = x [T,K] * weight [N,K]^T (+ bias [N]); bf16 in, f32 sums, bf16 or f32 out; T at most
 * CN_GEMM_MAX_SKINNY, K a multiple of 8. The sides are swapped: weight rows are the 64-row side of
 * wgmma, tokens its other side, TOKENS of them in the compiled kernel, so that little is computed
 * for rows that are not there.
 *
 * Grid ceil(N / rows) * splits. A block has a warpgroup for every 64 weight rows and a warp that
 * copies: tiles of 64 columns of weights and x, stages deep, each stage with a barrier "full" and a
 * barrier "empty". The first stages of weights are asked for before the previous kernel has ended
 * (weights are never written), which hides the ramp. With splits > 1 the blocks of a cluster share
 * the rows and divide K; they add up through each other's shared memory, always in the order of
 * their ranks: the same bits in every run, and for every T of a configuration.
 *
 * Bytes 2*N*K + ceil(N/rows)*2*T*K (the latter from the second-level cache) + out.
 * Twin: cpu_gemm.c. */
#include <cudaTypedefs.h>

#include "cuda/gemm.h"
#include "cuda/hopper.cuh"
#include "cuda/util.cuh"

enum { MAX_GROUPS = 3, MAX_SPLITS = 8, MAX_STAGES = 12, LEAST_STAGES = 3, TILE_ALIGN = 1024 };

typedef struct skinny_params {
    void *out;
    const cn_bf16 *bias;
    uint32_t n_tokens, n, k;
    uint32_t splits, stages;
    bool out_f32;
} skinny_params;

typedef struct skinny_barriers {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
} skinny_barriers;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* A ring's place: which stage, and how often it came round. */
typedef struct ring {
    uint32_t stage, round;
} ring;

__device__ static inline void ring_next(ring *r, uint32_t stages)
{
    if (++r->stage < stages) return;
    r->stage = 0;
    r->round ^= 1;
}

template <int TOKENS, int GROUPS> struct tiles {
    static constexpr uint32_t ROWS = GROUPS * 64;
    static constexpr uint32_t WEIGHT_BYTES = ROWS * CN_TILE_ROW_BYTES;
    static constexpr uint32_t STAGE_BYTES = WEIGHT_BYTES + TOKENS * CN_TILE_ROW_BYTES;
};

/* One thread: keeps the stages full with columns [first, first + n) tiles. */
template <int TOKENS, int GROUPS>
__device__ static inline void copy_tiles(char *base, skinny_barriers *b, const CUtensorMap *weight,
                                         const CUtensorMap *x, uint32_t first_row, uint32_t first,
                                         uint32_t n, uint32_t stages)
{
    using t = tiles<TOKENS, GROUPS>;
    const uint32_t ahead = n < stages ? n : stages;
    for (uint32_t i = 0; i < ahead; i++) {
        cn_barrier_expect(&b->full[i], t::STAGE_BYTES);
        cn_tma_load(base + i * t::STAGE_BYTES, weight, &b->full[i], (first + i) * CN_TILE_K,
                    first_row, CN_CACHE_EVICT_FIRST);
    }
    cn_wait_previous();
    for (uint32_t i = 0; i < ahead; i++)
        cn_tma_load(base + i * t::STAGE_BYTES + t::WEIGHT_BYTES, x, &b->full[i],
                    (first + i) * CN_TILE_K, 0, CN_CACHE_EVICT_LAST);
    ring at = {0, 0};
    for (uint32_t i = ahead; i < n; i++, ring_next(&at, stages)) {
        char *stage = base + at.stage * t::STAGE_BYTES;
        cn_barrier_wait(&b->empty[at.stage], at.round);
        cn_barrier_expect(&b->full[at.stage], t::STAGE_BYTES);
        cn_tma_load(stage, weight, &b->full[at.stage], (first + i) * CN_TILE_K, first_row,
                    CN_CACHE_EVICT_FIRST);
        cn_tma_load(stage + t::WEIGHT_BYTES, x, &b->full[at.stage], (first + i) * CN_TILE_K, 0,
                    CN_CACHE_EVICT_LAST);
    }
}

/* A warpgroup: its 64 weight rows times all tokens over n tiles. A stage is given back once the
 * products after it have begun, so that the tensor cores do not wait for the copying warp. */
template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void multiply_tiles(float *sums, const char *base,
                                                      skinny_barriers *b, uint32_t n,
                                                      uint32_t stages)
{
    using t = tiles<TOKENS, GROUPS>;
    const uint32_t group = threadIdx.x / CN_WARPGROUP;
    ring at = {0, 0};
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++, ring_next(&at, stages)) {
        const char *stage = base + at.stage * t::STAGE_BYTES;
        cn_barrier_wait(&b->full[at.stage], at.round);
        const uint64_t rows = cn_wgmma_tile(stage + group * 64 * CN_TILE_ROW_BYTES);
        const uint64_t tokens = cn_wgmma_tile(stage + t::WEIGHT_BYTES);
        cn_wgmma_begin();
#pragma unroll
        for (uint32_t j = 0; j < CN_TILE_K / 16; j++)
            cn_wgmma<TOKENS>(sums, rows + j * CN_WGMMA_NEXT_K, tokens + j * CN_WGMMA_NEXT_K);
        cn_wgmma_commit();
        cn_wgmma_wait<1>();
        if (i > 0 && threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&b->empty[last]);
        last = at.stage;
    }
    cn_wgmma_wait<0>();
}

/* The padding of a token's row of sums in shared memory: the 8 rows x 4 tokens that a warp stores
 * at once fall into different banks. */
enum { SUMS_PAD = 4 };

template <int TOKENS, int GROUPS>
__device__ __forceinline__ static void store_sums(float *shared, const float *sums)
{
    const uint32_t stride = GROUPS * 64 + SUMS_PAD, lane = threadIdx.x % CN_WARP;
    const uint32_t row = threadIdx.x / CN_WARP * 16 + lane / 4, token = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
        float *at = shared + (j * 8 + token) * stride + row;
        at[0] = sums[4 * j];
        at[stride] = sums[4 * j + 1];
        at[8] = sums[4 * j + 2];
        at[stride + 8] = sums[4 * j + 3];
    }
}

/* Four neighbours of a token's output row, the last ones of the row perhaps fewer. */
__device__ static inline void store_out(const skinny_params &p, uint32_t token, uint32_t row,
                                        float4 v)
{
    const size_t at = (size_t)token * p.n + row;
    float four[4] = {v.x, v.y, v.z, v.w};
    const bool whole = p.n % 4 == 0;
    const uint32_t n = p.n - row < 4 ? p.n - row : 4;
    if (p.bias)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < (int)n) four[i] += __bfloat162float(p.bias[row + i]);
    if (p.out_f32 && whole)
        *(float4 *)((float *)p.out + at) = make_float4(four[0], four[1], four[2], four[3]);
    else if (whole)
        *(uint2 *)((cn_bf16 *)p.out + at) =
            make_uint2(cn_pack2(four[0], four[1]), cn_pack2(four[2], four[3]));
    else
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i >= (int)n) continue;
            if (p.out_f32)
                ((float *)p.out)[at + i] = four[i];
            else
                ((cn_bf16 *)p.out)[at + i] = __float2bfloat16_rn(four[i]);
        }
}

/* This block's share of the outputs: the sum over the cluster, in the order of ranks. */
template <int GROUPS>
__device__ static inline void add_and_store(const skinny_params &p, const float *shared,
                                            uint32_t first_row, uint32_t rank)
{
    const uint32_t fours = GROUPS * 16, stride = GROUPS * 64 + SUMS_PAD;
    const uint32_t n = p.n_tokens * fours, end = n * (rank + 1) / p.splits;
    for (uint32_t i = n * rank / p.splits + threadIdx.x; i < end; i += blockDim.x) {
        const uint32_t token = i / fours, row = i % fours * 4;
        if (first_row + row >= p.n) continue;
        const float4 *at = (const float4 *)(shared + token * stride + row);
        float4 sum = p.splits == 1 ? *at : cn_cluster_read(at, 0);
        for (uint32_t r = 1; r < p.splits; r++) {
            const float4 v = cn_cluster_read(at, r);
            sum.x += v.x;
            sum.y += v.y;
            sum.z += v.z;
            sum.w += v.w;
        }
        store_out(p, token, first_row + row, sum);
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
    char *base = dynamic + (TILE_ALIGN - cn_shared_address(dynamic) % TILE_ALIGN) % TILE_ALIGN;
    const uint32_t rank = blockIdx.x % p.splits, first_row = blockIdx.x / p.splits * GROUPS * 64;
    const uint32_t all = (p.k + CN_TILE_K - 1) / CN_TILE_K;
    const uint32_t first = all * rank / p.splits, n = all * (rank + 1) / p.splits - first;
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
    const bool copies = threadIdx.x >= GROUPS * CN_WARPGROUP;
    if (!copies)
        multiply_tiles<TOKENS, GROUPS>(sums, base, &barriers, n, p.stages);
    else if (threadIdx.x % CN_WARP == 0)
        copy_tiles<TOKENS, GROUPS>(base, &barriers, &weight, &x, first_row, first, n, p.stages);
    __syncwarp();
    __syncthreads(); /* all products are done: the stages' memory is free for the sums */
    if (!copies) store_sums<TOKENS, GROUPS>((float *)base, sums);
    if (p.splits > 1)
        cn_cluster_sync();
    else
        __syncthreads();
    add_and_store<GROUPS>(p, (const float *)base, first_row, rank);
    if (p.splits > 1) cn_cluster_sync(); /* nobody leaves while its sums are being read */
#endif
}

/* ---- choosing ---- */

typedef void (*skinny_fn)(const CUtensorMap, const CUtensorMap, const skinny_params);
#define KERNELS(tokens)                                                                            \
    {                                                                                              \
        tokens, { skinny_kernel<tokens, 1>, skinny_kernel<tokens, 2>, skinny_kernel<tokens, 3> }   \
    }
static const struct {
    uint32_t tokens;
    skinny_fn by_groups[MAX_GROUPS];
} kernels[] = {KERNELS(8),   KERNELS(16),  KERNELS(32),  KERNELS(48),  KERNELS(64), KERNELS(96),
               KERNELS(128), KERNELS(144), KERNELS(168), KERNELS(192)};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

/* The kernel of the fewest tokens that takes n_tokens. */
static uint32_t kernel_for(uint32_t n_tokens)
{
    uint32_t i = 0;
    while (i + 1 < N_KERNELS && kernels[i].tokens < n_tokens) i++;
    return i;
}

static size_t stage_bytes(uint32_t tokens, uint32_t rows)
{
    return (size_t)(tokens + rows) * CN_TILE_ROW_BYTES;
}

/* Shared memory of `stages` stages, enough for the sums that follow in the same place. */
static size_t shared_bytes(uint32_t tokens, uint32_t rows, uint32_t stages)
{
    const size_t tile_bytes = stages * stage_bytes(tokens, rows);
    const size_t sums_bytes = (size_t)tokens * (rows + 4) * sizeof(float);
    return TILE_ALIGN + (tile_bytes > sums_bytes ? tile_bytes : sums_bytes);
}

/* Half an SM's memory where two blocks must share it, else nearly all. */
static uint32_t stages_for(const cn_cuda *c, uint32_t tokens, uint32_t rows, uint32_t n_blocks)
{
    const size_t all = c->device.shared_bytes - 2048, half = all / 2;
    const size_t budget = n_blocks > c->device.n_sms ? half : all;
    uint32_t stages = MAX_STAGES;
    while (stages > LEAST_STAGES && shared_bytes(tokens, rows, stages) > budget) stages--;
    return stages;
}

static uint32_t blocks_of(cn_gemm_shape shape, cn_gemm_skinny config)
{
    return (uint32_t)cn_ceil_div(shape.n, config.rows) * config.splits;
}

extern "C" bool cn_gemm_skinny_fits(const cn_cuda *c, cn_gemm_shape shape, uint32_t n_tokens,
                                    cn_gemm_skinny config)
{
    const uint32_t tokens = kernels[kernel_for(n_tokens)].tokens;
    const bool known = config.rows % 64 == 0 && config.rows / 64 - 1 < MAX_GROUPS &&
                       config.splits && config.splits <= MAX_SPLITS &&
                       (config.splits & (config.splits - 1)) == 0;
    if (!known || c->device.compute != 90 || n_tokens > CN_GEMM_MAX_SKINNY) return false;
    if (shape.k < config.splits * CN_TILE_K) return false;
    return shared_bytes(tokens, config.rows, LEAST_STAGES) + 2048 <= c->device.shared_bytes;
}

/* As many blocks as run at once, wide ones before many splits; for more, wide ones. */
extern "C" cn_gemm_skinny cn_gemm_skinny_default(const cn_cuda *c, cn_gemm_shape shape,
                                                 uint32_t n_tokens)
{
    cn_gemm_skinny best = {128, 1};
    uint32_t most = 0;
    for (uint32_t splits = 1; splits <= MAX_SPLITS; splits *= 2)
        for (uint32_t rows = MAX_GROUPS * 64; rows > 0; rows -= 64) {
            const cn_gemm_skinny config = {rows, splits};
            const uint32_t blocks = blocks_of(shape, config);
            if (blocks <= most || blocks > c->device.n_sms) continue;
            if (!cn_gemm_skinny_fits(c, shape, n_tokens, config)) continue;
            best = config;
            most = blocks;
        }
    if (!cn_gemm_skinny_fits(c, shape, n_tokens, best)) best.rows = 0;
    return best;
}

/* ---- launching ---- */

static PFN_cuTensorMapEncodeTiled_v12000 encode_tiled;

/* A map of [rows, columns] bf16 whose box is 64 columns of box_rows rows. */
static cn_status make_map(CUtensorMap *map, const void *base, uint32_t rows, uint32_t columns,
                          uint32_t box_rows)
{
    const cuuint64_t sizes[2] = {columns, rows}, strides[1] = {columns * sizeof(cn_bf16)};
    const cuuint32_t box[2] = {CN_TILE_K, box_rows}, steps[2] = {1, 1};
    const CUresult result = encode_tiled(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)base, sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return CN_OK;
    return cn_fail(CN_ERR_DEVICE, "CUDA: tensor map of %u x %u at %p: error %d", rows, columns,
                   base, (int)result);
}

extern "C" cn_status cn_gemm_skinny_open(cn_cuda *c)
{
    if (c->device.compute != 90) return CN_OK;
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    CN_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                             cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess)
        return cn_fail(CN_ERR_DEVICE, "the NVIDIA driver has no cuTensorMapEncodeTiled: update it");
    encode_tiled = (PFN_cuTensorMapEncodeTiled_v12000)entry;
    const int most = (int)c->device.shared_bytes - 1024; /* the barriers are static */
    for (uint32_t i = 0; i < N_KERNELS; i++)
        for (uint32_t g = 0; g < MAX_GROUPS; g++)
            CN_CUDA(cudaFuncSetAttribute(kernels[i].by_groups[g],
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    return CN_OK;
}

extern "C" cn_status cn_gemm_skinny_run(cn_stream *s, const cn_gemm_args *a, cn_gemm_skinny config)
{
    const cn_gemm_shape shape = {a->n, a->k, a->out_f32, a->bias != NULL};
    const uint32_t kernel = kernel_for(a->n_tokens), tokens = kernels[kernel].tokens;
    if (!cn_gemm_skinny_fits(s->cuda, shape, a->n_tokens, config))
        return cn_fail(CN_ERR_SHAPE, "gemm: no own kernel for %u x %u x %u", a->n_tokens, a->n,
                       a->k);
    const uint32_t n_blocks = blocks_of(shape, config);
    CUtensorMap weight, x;
    CN_TRY(make_map(&weight, a->weight, a->n, a->k, config.rows));
    CN_TRY(make_map(&x, a->x, a->n_tokens, a->k, tokens));
    skinny_params p = {};
    p.out = a->out;
    p.bias = (const cn_bf16 *)a->bias;
    p.n_tokens = a->n_tokens;
    p.n = a->n;
    p.k = a->k;
    p.splits = config.splits;
    p.stages = stages_for(s->cuda, tokens, config.rows, n_blocks);
    p.out_f32 = a->out_f32;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = config.splits;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(n_blocks);
    launch.blockDim = dim3(config.rows * 2 + CN_WARP);
    launch.dynamicSmemBytes = shared_bytes(tokens, config.rows, p.stages);
    launch.stream = s->handle;
    launch.attrs = attributes;
    launch.numAttrs = 2;
    const cudaError_t error = cudaLaunchKernelEx(
        &launch, kernels[kernel].by_groups[config.rows / 64 - 1], weight, x, p);
    return error == cudaSuccess ? CN_OK : cn_cuda_failed(error, "gemm");
}
