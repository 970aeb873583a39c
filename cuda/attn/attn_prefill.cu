/* attn_prefill.cu - causal attention of a chunk of queries over paged K and V: sequences
 * [n_decode, n_seqs). Query i of a sequence with n_q queries sees its first kv_len - n_q + i + 1
 * slots.
 *
 * A block computes up to 64 rows of one (sequence, kv head): the query heads of the group, for
 * neighbouring tokens, with row = token * group + head. So even a short chunk fills the tensor
 * cores, and K and V are read once for the group. The block reads the keys from slot 0 on in tiles
 * of 64 (FlashAttention 2, arXiv 2307.08691). Scores, online softmax and weighted values stay in
 * registers, 16 rows per warp. cp.async fetches the keys and values of the next tile meanwhile.
 * Rows in eight bits become bf16 in shared memory, without loss: the scales of the keys multiply
 * the scores, those of the values the weights. On compute capability 9.0 attn_plain.cu copies them
 * first, up to head_dim 128.
 * The bits of a row depend on its query and slots alone, not on its chunk.
 *
 * q, out [T, hq, d], pool as in kv_layout.h; bf16 in and out, f32 sums, weights rounded to bf16.
 * Grid (kv heads * parts of the group, blocks of the longest chunk, sequences). The last rows come
 * first, because they see the most slots. Bytes moved: K and V once per block from L2, and 4 * d *
 * hk * kv_len from memory. Operations: 4 * hq * d per (query, visible slot). This kernel serves
 * every GPU from compute capability 8.0 on; attn_prefill_sm90.cu has the kernel for 9.0 and
 * head_dim up to 128. CPU version: cpu_attn.c. */
#include "cuda/attn/attn_prefill.cuh"

enum { WARPS = 4, THREADS = WARPS * CN_WARP, ROWS = WARPS * 16, TILE = 64, STAGES = 2 };

/* In eight bits there is one tile of keys and values in bf16, and the stages are of codes and
 * scales: keys [64, D], values, scales of the keys [64], scales of the values. */
template <int D, bool FP8> struct prefill_shared {
    static constexpr uint32_t BOXES = D / CN_BOX_COLS;
    static constexpr uint32_t TILE_BYTES = BOXES * TILE * CN_ROW_BYTES;
    static constexpr uint32_t QUERY_BYTES = BOXES * ROWS * CN_ROW_BYTES;
    static constexpr uint32_t CODE_BYTES = 2 * TILE * (D + (uint32_t)sizeof(uint16_t));
    static constexpr uint32_t BYTES =
        QUERY_BYTES + 1024 +
        (FP8 ? 2 * TILE_BYTES + STAGES * CODE_BYTES : STAGES * 2 * TILE_BYTES);

    unsigned char *base;
    uint32_t queries; /* the address of base */
    __device__ uint32_t keys(uint32_t stage) const
    {
        return queries + QUERY_BYTES + (FP8 ? 0 : stage * 2 * TILE_BYTES);
    }
    __device__ uint32_t values(uint32_t stage) const { return keys(stage) + TILE_BYTES; }
    __device__ uint32_t codes(uint32_t stage) const
    {
        return queries + QUERY_BYTES + 2 * TILE_BYTES + stage * CODE_BYTES;
    }
    __device__ uint16_t *scales(uint32_t stage) const
    {
        return (uint16_t *)(base + (codes(stage) - queries) + 2 * TILE * D);
    }
};

/* ---- fetching: eight threads per row ---- */

template <int D, bool FP8>
__device__ static inline void fetch_prefill_queries(const cn_prefill_params &p,
                                                    const cn_prefill_block &b,
                                                    const prefill_shared<D, FP8> &shared)
{
    const uint32_t d = p.pool.head_dim, column = threadIdx.x % 8;
    for (uint32_t row = threadIdx.x / 8; row < ROWS; row += THREADS / 8) {
        const bool used = row < b.n_rows;
        const cn_bf16 *from = p.q + (used ? cn_prefill_row(p, b, row) : 0);
#pragma unroll
        for (uint32_t box = 0; box < prefill_shared<D, FP8>::BOXES; box++) {
            const uint32_t chunk = box * 8 + column;
            const bool valid = used && chunk * 8 < d;
            cn_copy16(shared.queries + cn_chunk_at(ROWS, row, chunk),
                      from + (valid ? chunk * 8 : 0), valid);
        }
    }
}

template <int D>
__device__ static inline void fetch_key_tile(const cn_prefill_params &p, const cn_prefill_block &b,
                                             const prefill_shared<D, false> &shared, uint32_t tile)
{
    const uint32_t d = p.pool.head_dim, column = threadIdx.x % 8, stage = tile % STAGES;
    for (uint32_t row = threadIdx.x / 8; row < TILE; row += THREADS / 8) {
        const uint32_t slot = tile * TILE + row;
        const bool used = slot < b.n_slots;
        const size_t at = cn_key_row(p.pool, b.seq, b.kv_head, used ? slot : 0);
        const cn_bf16 *key = p.pool.kv + at * d;
        const cn_bf16 *value = key + d * p.pool.rows.value;
#pragma unroll
        for (uint32_t box = 0; box < prefill_shared<D, false>::BOXES; box++) {
            const uint32_t chunk = box * 8 + column, to = cn_chunk_at(TILE, row, chunk);
            const bool valid = used && chunk * 8 < d;
            const uint32_t from = valid ? chunk * 8 : 0;
            cn_copy16(shared.keys(stage) + to, key + from, valid);
            cn_copy16(shared.values(stage) + to, value + from, valid);
        }
    }
}

/* ---- rows in eight bits ---- */

/* Fetches codes and scales; zeros for slots that no row sees. */
template <int D>
__device__ static inline void fetch_codes(const cn_prefill_params &p, const cn_prefill_block &b,
                                          const prefill_shared<D, true> &shared, uint32_t tile)
{
    const uint32_t d = p.pool.head_dim, column = threadIdx.x % 8, stage = tile % STAGES;
    for (uint32_t row = threadIdx.x / 8; row < TILE; row += THREADS / 8) {
        const uint32_t slot = tile * TILE + row;
        const bool used = slot < b.n_slots;
        const cn_fp8_rows from = cn_fp8_rows_of(p.pool, b.seq, b.kv_head, used ? slot : 0);
        const uint32_t keys = shared.codes(stage) + row * D, values = keys + TILE * D;
        for (uint32_t at = column * CN_CHUNK_BYTES; at < D; at += 8 * CN_CHUNK_BYTES) {
            const bool valid = used && at < d;
            cn_copy16(keys + at, from.key + (valid ? at : 0), valid);
            cn_copy16(values + at, from.value + (valid ? at : 0), valid);
        }
        if (column < 2)
            shared.scales(stage)[column * TILE + row] =
                used ? __ldcg(column ? from.value_scale : from.key_scale) : 0;
    }
}

/* Writes the codes of a stage as bf16 to the tile of keys and values. */
template <int D>
__device__ static inline void convert_codes(const prefill_shared<D, true> &shared, uint32_t stage)
{
    for (uint32_t e = threadIdx.x; e < 2 * TILE * (D / 8); e += THREADS) {
        const uint32_t row = e / (D / 8), chunk = e % (D / 8);
        const uint32_t to = row < TILE ? shared.keys(0) : shared.values(0);
        cn_shared_store16(to + cn_chunk_at(TILE, row % TILE, chunk),
                          cn_fp8_chunk(cn_shared_load8(shared.codes(stage) + e * 8)));
    }
}

/* Multiplies scores or weights by the scales of their slots. */
__device__ static inline void scale_slots(float x[TILE / 8][4], const uint16_t *scales)
{
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const float scale = cn_fp8_half(scales[n * 8 + threadIdx.x % 4 * 2 + i]);
            x[n][i] *= scale;
            x[n][i + 2] *= scale;
        }
}

/* ---- computing: 16 rows per warp ---- */

/* A lane holds rows g and g + 8 of the warp's 16 (g = lane / 4), and of each 8 columns the columns
 * 2t and 2t + 1 (t = lane % 4). */
template <int D> struct prefill_state {
    float out[D / 8][4];
    float max[2], sum[2];
    uint32_t limit[2]; /* slots that the rows see */
};

template <int D, bool FP8>
__device__ static inline void compute_scores(float scores[TILE / 8][4],
                                             const prefill_shared<D, FP8> &shared, uint32_t keys)
{
    const uint32_t lane = threadIdx.x % CN_WARP, first = threadIdx.x / CN_WARP * 16;
#pragma unroll
    for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) scores[n][i] = 0;
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        uint32_t a[4];
        cn_ldmatrix(a, shared.queries + cn_chunk_at(ROWS, first + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (uint32_t n = 0; n < TILE / 16; n++) {
            uint32_t b[4];
            const uint32_t row = n * 16 + lane % 8 + lane / 16 * 8;
            cn_ldmatrix(b, keys + cn_chunk_at(TILE, row, 2 * k + lane / 8 % 2));
            cn_mma(scores[2 * n], a, b[0], b[1]);
            cn_mma(scores[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* Turns scores into weights. Updates the maxima and sums over all tiles so far. */
template <int D>
__device__ static inline void softmax(float scores[TILE / 8][4], prefill_state<D> &x, float scale,
                                      uint32_t first_slot)
{
    const uint32_t slot = first_slot + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float top = -CUDART_INF_F;
#pragma unroll
        for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
            for (uint32_t i = 2 * h; i < 2 * h + 2; i++) {
                if (slot + n * 8 + i % 2 >= x.limit[h]) scores[n][i] = -CUDART_INF_F;
                top = fmaxf(top, scores[n][i]);
            }
        top = fmaxf(x.max[h], cn_quad_max(top) * scale);
        const float keep = cn_exp2(x.max[h] - top);
        float sum = 0;
        x.max[h] = top;
#pragma unroll
        for (uint32_t n = 0; n < TILE / 8; n++)
#pragma unroll
            for (uint32_t i = 2 * h; i < 2 * h + 2; i++) {
                scores[n][i] = cn_exp2(scores[n][i] * scale - top);
                sum += scores[n][i];
            }
        x.sum[h] = x.sum[h] * keep + sum;
#pragma unroll
        for (uint32_t n = 0; n < D / 8; n++) {
            x.out[n][2 * h] *= keep;
            x.out[n][2 * h + 1] *= keep;
        }
    }
}

template <int D>
__device__ static inline void add_values(prefill_state<D> &x, const float weights[TILE / 8][4],
                                         uint32_t values)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
#pragma unroll
    for (uint32_t k = 0; k < TILE / 16; k++) {
        const float *w0 = weights[2 * k], *w1 = weights[2 * k + 1];
        const uint32_t a[4] = {cn_pack2(w0[0], w0[1]), cn_pack2(w0[2], w0[3]),
                               cn_pack2(w1[0], w1[1]), cn_pack2(w1[2], w1[3])};
        const uint32_t row = k * 16 + lane % 16;
#pragma unroll
        for (uint32_t n = 0; n < D / 16; n++) {
            uint32_t b[4];
            cn_ldmatrix_transposed(b, values + cn_chunk_at(TILE, row, 2 * n + lane / 16));
            cn_mma(x.out[2 * n], a, b[0], b[1]);
            cn_mma(x.out[2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <int D>
__device__ static inline void store(const cn_prefill_params &p, const cn_prefill_block &b,
                                    const prefill_state<D> &x)
{
    const uint32_t lane = threadIdx.x % CN_WARP, d = p.pool.head_dim;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = threadIdx.x / CN_WARP * 16 + lane / 4 + h * 8;
        const float sum = cn_quad_sum(x.sum[h]);
        if (row >= b.n_rows) continue;
        const float scale = 1.0f / sum;
        cn_bf16 *out = p.out + cn_prefill_row(p, b, row) + lane % 4 * 2;
#pragma unroll
        for (uint32_t n = 0; n < D / 8; n++)
            if (n * 8 < d)
                *(uint32_t *)(out + n * 8) =
                    cn_pack2(x.out[n][2 * h] * scale, x.out[n][2 * h + 1] * scale);
    }
}

template <int D, bool FP8>
__device__ static inline void fetch_key_tile(const cn_prefill_params &p, const cn_prefill_block &b,
                                             const prefill_shared<D, FP8> &shared, uint32_t tile)
{
    if constexpr (FP8)
        fetch_codes<D>(p, b, shared, tile);
    else
        fetch_key_tile<D>(p, b, shared, tile);
}

template <int D, bool FP8>
__global__ static void __launch_bounds__(THREADS)
    attn_prefill_kernel(const __grid_constant__ cn_prefill_params p)
{
    extern __shared__ unsigned char dynamic[];
    prefill_shared<D, FP8> shared;
    shared.base = dynamic + (0u - cn_shared_address(dynamic)) % 1024;
    shared.queries = cn_shared_address(shared.base);
    cn_wait_previous();
    cn_overlap_next();
    cn_prefill_block b;
    if (!cn_prefill_block_of(b, p, gridDim.y - 1 - blockIdx.y, blockIdx.x, blockIdx.z)) return;
    const uint32_t n_tiles = (b.n_slots + TILE - 1) / TILE;
    fetch_prefill_queries<D, FP8>(p, b, shared);
    fetch_key_tile<D, FP8>(p, b, shared, 0);
    cn_copy_commit();
    prefill_state<D> x;
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x.out[n][i] = 0;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        x.max[h] = -CUDART_INF_F;
        x.sum[h] = 0;
        x.limit[h] =
            cn_prefill_limit(b, threadIdx.x / CN_WARP * 16 + threadIdx.x % CN_WARP / 4 + h * 8);
    }
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        if (tile + 1 < n_tiles) fetch_key_tile<D, FP8>(p, b, shared, tile + 1);
        cn_copy_commit();
        cn_copy_wait<1>();
        __syncthreads();
        if constexpr (FP8) {
            convert_codes<D>(shared, tile % STAGES);
            __syncthreads();
        }
        float scores[TILE / 8][4];
        compute_scores<D, FP8>(scores, shared, shared.keys(tile % STAGES));
        if constexpr (FP8) scale_slots(scores, shared.scales(tile % STAGES));
        softmax<D>(scores, x, p.scale, tile * TILE);
        if constexpr (FP8) scale_slots(scores, shared.scales(tile % STAGES) + TILE);
        add_values<D>(x, scores, shared.values(tile % STAGES));
        __syncthreads();
    }
    store<D>(p, b, x);
}

/* ---- launching ---- */

template <int D>
static cn_status launch_prefill(cn_stream *s, const cn_attn_args *a, cn_prefill_params p)
{
    const dim3 grid = cn_prefill_plan(&p, a, ROWS);
    if (p.pool.fp8.kv)
        return cn_cuda_launch(s, "attn_prefill", attn_prefill_kernel<D, true>,
                              {grid, THREADS, prefill_shared<D, true>::BYTES}, p);
    return cn_cuda_launch(s, "attn_prefill", attn_prefill_kernel<D, false>,
                          {grid, THREADS, prefill_shared<D, false>::BYTES}, p);
}

extern "C" cn_status cn_cuda_attn_prefill(cn_stream *s, const cn_attn_args *a)
{
    if (cn_kv_layout_is_shared(&a->layout)) return cn_cuda_attn_latent_prefill(s, a);
    CN_TRY(cn_attn_check("attn_prefill", a));
    if (a->batch->n_seqs == a->batch->n_decode) return CN_OK;
    if (cn_attn_prefill_sm90_fits(s, a)) return cn_attn_prefill_sm90(s, a);
    if (cn_attn_plain_fits(s, a)) return cn_attn_plain(s, a);
    const cn_prefill_params p = cn_prefill_params_of(a);
    if (a->layout.head_dim <= 64) return launch_prefill<64>(s, a, p);
    if (a->layout.head_dim <= 128) return launch_prefill<128>(s, a, p);
    if (a->layout.head_dim <= 192) return launch_prefill<192>(s, a, p);
    return launch_prefill<256>(s, a, p);
}
