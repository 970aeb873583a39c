/* digest.cu - labels and bounds of the keys of complete tiles.
 *
 * Tiles are a kernel argument, at most TILES for each launch. Grid (layers, kv heads, tiles). A
 * thread block copies the keys of its tile and head to shared memory. Half a warp or a warp writes
 * the label of a token, with two channels per lane. A thread computes the bounds of two channels of
 * an entry, token by token as the CPU does, so the bits are equal even for zeros of both signs.
 * Bytes moved for each token, layer and kv head: 2 d of keys, d / 8 + 2 of labels and scales,
 * 4 d / 16 of bounds of pages, 4 d / 64 of bounds of tiles. CPU version: cpu_digest.c. */
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "cuda/util.cuh"
#include "engine/select/select_math.h"

enum { TILES = 256, BLOCK = 128, MAX_HEAD_DIM = 256 };

typedef struct digest_tiles {
    cn_digest_tile tile[TILES];
} digest_tiles;

/* The keys of a tile of one head in one layer, in shared memory. */
typedef struct digest_keys {
    uint4 *rows;     /* [n, stride] bf16; of rows in eight bits the codes */
    float *scales;   /* [n] of rows in eight bits */
    uint32_t n, d;
    uint32_t stride; /* vectors; odd, so that a channel of successive tokens has several banks */
    size_t side;     /* of the first slot in arrays by slot (cn_kv_side) */
} digest_keys;

__host__ __device__ static inline uint32_t row_stride(uint32_t d) { return d / CN_VEC8 | 1; }

/* from: rows of K; scales: those of rows in eight bits. */
template <bool FP8>
__device__ static void load_digest_keys(const digest_keys &t, const void *from,
                                        const uint16_t *scales)
{
    const uint32_t vecs = t.d / CN_VEC8;
    for (uint32_t i = threadIdx.x; FP8 && i < t.n; i += BLOCK) t.scales[i] = cn_fp8_half(scales[i]);
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < t.n * vecs; i += BLOCK)
        t.rows[i / vecs * t.stride + i % vecs] =
            FP8 ? cn_fp8_chunk(((const uint2 *)from)[i]) : ((const uint4 *)from)[i];
}

template <bool FP8>
__device__ static inline float digest_key_of(const digest_keys &t, uint32_t token, uint32_t channel)
{
    const float key = __bfloat162float(((const cn_bf16 *)(t.rows + token * t.stride))[channel]);
    return FP8 ? key * t.scales[token] : key;
}

/* unit: the layer and kv head, in arrays by both. */
template <bool FP8>
__device__ static void write_digest_labels(const digest_keys &t, const cn_digest &g, size_t unit)
{
    const uint8_t *channels = g.channels + unit * g.n_channels;
    const float *offsets = g.offsets ? g.offsets + unit * g.n_channels : nullptr;
    const uint32_t lanes = g.n_channels > CN_WARP ? CN_WARP : CN_WARP / 2; /* of a token */
    const uint32_t lane = threadIdx.x % lanes;
    const bool has_channels = 2 * lane < g.n_channels;
    const uint32_t even = has_channels ? channels[2 * lane] : 0;
    const uint32_t odd = has_channels ? channels[2 * lane + 1] : 0;
    const bool has_offsets = has_channels && offsets;
    const float even_offset = has_offsets ? offsets[2 * lane] : 0;
    const float odd_offset = has_offsets ? offsets[2 * lane + 1] : 0;
    /* n is a multiple of 16, so all lanes of a warp make the same iterations. */
    for (uint32_t i = threadIdx.x / lanes; i < t.n; i += BLOCK / lanes) {
        const float x = digest_key_of<FP8>(t, i, even) - even_offset,
                    y = digest_key_of<FP8>(t, i, odd) - odd_offset;
        /* NaN counts as 0, as on the CPU. */
        float largest = has_channels ? fmaxf(fmaxf(fabsf(x), fabsf(y)), 0.0f) : 0.0f;
        for (uint32_t offset = lanes / 2; offset > 0; offset /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
        const uint16_t scale = cn_label_scale(largest);
        if (lane == 0) g.scales[t.side + i] = scale;
        if (has_channels)
            g.labels[(t.side + i) * (g.n_channels / 2) + lane] =
                cn_label_byte(cn_label_of(x, scale), cn_label_of(y, scale));
    }
}

/* Returns two bf16 that are not above, or not below, the values. Plain keys are bf16 themselves. */
template <bool FP8> __device__ static inline uint32_t digest_pack_below(float2 x)
{
    if (!FP8) return cn_pack2(x.x, x.y);
    return __bfloat16_as_ushort(__float2bfloat16_rd(x.x)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rd(x.y)) << 16;
}

template <bool FP8> __device__ static inline uint32_t digest_pack_above(float2 x)
{
    if (!FP8) return cn_pack2(x.x, x.y);
    return __bfloat16_as_ushort(__float2bfloat16_ru(x.x)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_ru(x.y)) << 16;
}

/* bounds[entry, min|max, d] of the tile's entries of `entry` tokens. */
template <bool FP8>
__device__ static void write_digest_bounds(const digest_keys &t, void *bounds, uint32_t entry)
{
    const uint32_t pairs = t.d / 2;
    uint32_t *out = (uint32_t *)bounds + t.side / entry * 2 * pairs;
    for (uint32_t u = threadIdx.x; u < t.n / entry * pairs; u += BLOCK) {
        const uint32_t first = u / pairs * entry, pair = u % pairs;
        float2 low, high;
        for (uint32_t i = first; i < first + entry; i++) {
            const uint32_t bits = ((const uint32_t *)(t.rows + i * t.stride))[pair];
            const float scale = FP8 ? t.scales[i] : 1;
            const float x = __uint_as_float(bits << 16) * scale;
            const float y = __uint_as_float(bits & 0xffff0000u) * scale;
            if (i == first) low = high = make_float2(x, y);
            low.x = x < low.x ? x : low.x;
            low.y = y < low.y ? y : low.y;
            high.x = x > high.x ? x : high.x;
            high.y = y > high.y ? y : high.y;
        }
        uint32_t *at = out + (size_t)(u / pairs) * 2 * pairs + pair;
        at[0] = digest_pack_below<FP8>(low);
        at[pairs] = digest_pack_above<FP8>(high);
    }
}

template <bool FP8>
__global__ static void __launch_bounds__(BLOCK)
    digest_kernel(const __grid_constant__ cn_pools pools,
                  const __grid_constant__ digest_tiles tiles)
{
    extern __shared__ uint4 shared[];
    const cn_kv_layout *l = &pools.layout;
    const cn_digest &g = pools.digest;
    const uint32_t layer = blockIdx.x, head = blockIdx.y;
    const cn_digest_tile at = tiles.tile[blockIdx.z];
    const uint32_t slot = at.tile * l->tile_tokens;
    digest_keys t;
    t.rows = shared;
    t.n = l->tile_tokens;
    t.d = l->head_dim;
    t.stride = row_stride(t.d);
    t.scales = (float *)(t.rows + t.n * t.stride);
    t.side = cn_kv_side(l, layer, at.block, head, slot);
    cn_overlap_next();
    cn_wait_previous();
    const char *kv = (const char *)pools.kv;
    const size_t scales = FP8 ? cn_kv_at(l, layer, at.block, head, slot, CN_KV_K_SCALE) : 0;
    load_digest_keys<FP8>(t, kv + cn_kv_at(l, layer, at.block, head, slot, CN_KV_K),
                          (const uint16_t *)(kv + scales));
    __syncthreads();
    if (g.labels) write_digest_labels<FP8>(t, g, (size_t)layer * l->n_kv_heads + head);
    if (g.bounds_16) write_digest_bounds<FP8>(t, g.bounds_16, CN_DIGEST_PAGE);
    if (g.bounds_64) write_digest_bounds<FP8>(t, g.bounds_64, CN_DIGEST_TILE);
}

static cn_status check_pools(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    CN_TRY(cn_kv_check_form("digest", l));
    if (l->head_dim % 16 != 0 || l->head_dim > MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "digest: head_dim %u: expected a multiple of 16, at most %d",
                       l->head_dim, MAX_HEAD_DIM);
    CN_ASSERT(!p->digest.labels || p->digest.n_channels == cn_label_channels(l->head_dim));
    CN_ASSERT(!p->digest.bounds_64 || l->block_tokens >= CN_DIGEST_TILE);
    return CN_OK;
}

extern "C" cn_status cn_cuda_digest(cn_stream *s, const cn_digest_args *a)
{
    const cn_kv_layout *l = &a->pools.layout;
    CN_TRY(check_pools(&a->pools));
    const bool fp8 = cn_kv_form_of(l) == CN_KV_FP8;
    const size_t row_bytes = row_stride(l->head_dim) * sizeof(uint4);
    const size_t bytes = l->tile_tokens * (row_bytes + (fp8 ? sizeof(float) : 0));
    for (uint32_t i = 0; i < a->n; i += TILES) {
        const uint32_t n = cn_min_u32(a->n - i, TILES);
        const dim3 grid(l->n_layers, l->n_kv_heads, n);
        digest_tiles tiles;
        memcpy(tiles.tile, a->tiles + i, n * sizeof *tiles.tile);
        const cn_launch how = {grid, BLOCK, bytes};
        CN_TRY(fp8 ? cn_cuda_launch(s, "digest", digest_kernel<true>, how, a->pools, tiles)
                   : cn_cuda_launch(s, "digest", digest_kernel<false>, how, a->pools, tiles));
    }
    return CN_OK;
}
