/* attn_prefill_sm90.cu - causal attention of a chunk of queries on compute capability 9.0, head_dim
 * up to 128. It does the work of attn_prefill.cu with the same rows and the methods of
 * FlashAttention 3 (arXiv 2407.08608).
 *
 * A block computes up to 128 rows of one (sequence, kv head), 64 per warpgroup; a third warpgroup
 * fetches. Queries stay in shared memory. Keys and values pass through a ring of two stages, in
 * tiles of 128 slots. Tensor maps over the pool copy them: a tile consists of boxes of the pool's
 * own tiles, whose blocks can be anywhere. Both products use wgmma; the weights are an operand from
 * registers. Two things hide the softmax: each warpgroup starts the scores of the next tile before
 * it multiplies this tile's weights by its values, and the two warpgroups alternate: one multiplies
 * while the other computes exponentials.
 *
 * Tiles are computed last to first, so those with hidden slots come first. Slots past the end of
 * the sequence have undefined content. Their scores are replaced, and their values are cleared in
 * shared memory, because 0 times an undefined value may not be 0.
 *
 * q, out [T, hq, d], pool as in kv_layout.h; bf16 in and out, f32 sums, weights rounded to bf16.
 * Grid (kv heads, blocks of the longest chunk, sequences), last rows first; block 384. Bytes moved:
 * K and V once per block from L2, and 4 * d * hk * kv_len from memory. Operations: 4 * hq * d per
 * (query, visible slot), plus those for the hidden slots of the last tiles.
 * CPU version: cpu_attn.c. */
#include "cuda/attn/attn_prefill.cuh"
#include "cuda/hopper.cuh"

enum {
    ROWS = 128,
    TILE = 128,
    STAGES = 2,
    CONSUMERS = 2, /* warpgroups that compute */
    THREADS = (CONSUMERS + 1) * CN_WARPGROUP,
    FETCH_REGISTERS = 24,
    COMPUTE_REGISTERS = 240,
    TURN_BARRIER = 1, /* barriers 1 and 2: it is a warpgroup's turn to multiply */
    VALUES_BARRIER = 3
};

template <int D> struct prefill_shared {
    static constexpr uint32_t BOXES = D / CN_BOX_COLS;
    static constexpr uint32_t BOX_BYTES = TILE * CN_ROW_BYTES; /* also of queries: ROWS == TILE */
    static constexpr uint32_t TILE_BYTES = BOXES * BOX_BYTES;
    static constexpr uint32_t BYTES = TILE_BYTES * (1 + 2 * STAGES) + 1024;

    unsigned char *queries;
    __device__ unsigned char *keys(uint32_t stage) const
    {
        return queries + TILE_BYTES * (1 + 2 * stage);
    }
    __device__ unsigned char *values(uint32_t stage) const { return keys(stage) + TILE_BYTES; }
};

typedef struct prefill_barriers {
    uint64_t queries;
    uint64_t keys_full[STAGES], keys_empty[STAGES], values_full[STAGES], values_empty[STAGES];
} prefill_barriers;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- fetching: one thread ---- */

/* Copies slots [tile * TILE, n_resident) of the keys or values, at most a tile, in whole tiles of
 * the pool. */
template <int D>
__device__ static inline void fetch_part(const cn_prefill_params &p, const cn_prefill_block &b,
                                         const CUtensorMap *pool, unsigned char *to,
                                         uint64_t *barrier, uint32_t tile, cn_kv_part part)
{
    const bool copied = p.copy.slots > 0;
    const uint32_t step = copied ? TILE : 1u << p.pool.tile_shift, first = tile * TILE;
    const uint32_t value = copied ? p.copy.slots : p.pool.rows.value;
    const uint32_t n = min((uint32_t)TILE, b.n_resident - first);
    const uint32_t n_boxes = (n + step - 1) / step * prefill_shared<D>::BOXES;
    cn_barrier_expect(barrier, n_boxes * step * CN_ROW_BYTES);
    for (uint32_t at = 0; at < n; at += step) {
        const uint32_t row =
            (copied ? cn_prefill_copy_row(p, b.seq, b.kv_head, first + at)
                    : cn_key_row(p.pool, b.seq, b.kv_head, first + at)) +
            (part == CN_KV_V ? value : 0);
#pragma unroll
        for (uint32_t box = 0; box < prefill_shared<D>::BOXES; box++)
            cn_box_copy(
                cn_shared_address(to + box * prefill_shared<D>::BOX_BYTES + at * CN_ROW_BYTES),
                pool, box * CN_BOX_COLS, row, barrier);
    }
}

template <int D>
__device__ static inline void
fetch_prefill_tiles(const cn_prefill_params &p, const cn_prefill_block &b,
                    const prefill_shared<D> &shared, prefill_barriers *barriers,
                    const CUtensorMap *queries, const CUtensorMap *pool, uint32_t n_tiles)
{
    cn_barrier_expect(&barriers->queries,
                      prefill_shared<D>::BOXES * p.block_tokens * p.heads * CN_ROW_BYTES);
#pragma unroll
    for (uint32_t box = 0; box < prefill_shared<D>::BOXES; box++)
        cn_box_copy3(cn_shared_address(shared.queries + box * prefill_shared<D>::BOX_BYTES),
                     queries, box * CN_BOX_COLS, b.first_head, b.token, &barriers->queries);
    for (uint32_t i = 0; i < n_tiles; i++) {
        const uint32_t tile = n_tiles - 1 - i, stage = i % STAGES, free = (i / STAGES & 1) ^ 1;
        cn_barrier_wait(&barriers->keys_empty[stage], free);
        fetch_part<D>(p, b, pool, shared.keys(stage), &barriers->keys_full[stage], tile, CN_KV_K);
        cn_barrier_wait(&barriers->values_empty[stage], free);
        fetch_part<D>(p, b, pool, shared.values(stage), &barriers->values_full[stage], tile,
                      CN_KV_V);
    }
}

/* ---- matrix products ---- */

/* d [64, D] += a [64, 16] * b [16, D]: a in registers, rows of b contiguous in D. */
template <int D>
__device__ static __forceinline__ void multiply_values(float *d, const uint32_t *a, uint64_t b)
{
    if constexpr (D == 128)
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" CN_R64
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"
                     : CN_D64S
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" CN_R32
                     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"
                     : CN_D32S
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Starts scores = queries * keys^T. */
template <int D>
__device__ static __forceinline__ void
start_scores(float scores[TILE / 2], const unsigned char *queries, const unsigned char *keys)
{
    constexpr uint32_t BOX_BYTES = prefill_shared<D>::BOX_BYTES;
    cn_wgmma_start<TILE, D>(scores, queries, BOX_BYTES, keys, BOX_BYTES);
}

/* Starts out += weights * values. Rows of values are contiguous along the columns of the product,
 * in boxes of 64 columns. Adding 16 * CN_ROW_BYTES >> 4 to the descriptor moves it by 16 rows. */
template <int D>
__device__ static __forceinline__ void
start_values(float out[D / 2], const uint32_t weights[TILE / 4], const unsigned char *values)
{
    const uint64_t b = cn_wgmma_tile(values, prefill_shared<D>::BOX_BYTES);
#pragma unroll
    for (uint32_t k = 0; k < TILE / 16; k++)
        multiply_values<D>(out, weights + 4 * k, b + k * (16 * CN_ROW_BYTES >> 4));
    cn_wgmma_commit();
}

/* ---- softmax: each thread has rows g and g + 8 of its warp's 16 ---- */

typedef struct softmax_state {
    float max[2], sum[2]; /* maximum of raw scores; sum over this thread's columns */
    float keep[2];        /* factor for the sums before the last tile */
    uint32_t limit[2];    /* number of slots that the rows see */
} softmax_state;

__device__ static inline void hide(float scores[TILE / 2], const softmax_state &x, uint32_t tile)
{
    const uint32_t slot = tile * TILE + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t i = 0; i < TILE / 2; i++)
        if (slot + i / 4 * 8 + i % 2 >= x.limit[i / 2 % 2]) scores[i] = -CUDART_INF_F;
}

__device__ static inline void softmax_of_tile(float scores[TILE / 2], softmax_state &x, float scale)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        float top = x.max[h];
#pragma unroll
        for (uint32_t i = 0; i < TILE / 2; i++)
            if (i / 2 % 2 == h) top = fmaxf(top, scores[i]);
        top = cn_quad_max(top);
        /* A row that has seen no slot yet has base 0, so that every exponential is 0. */
        const float base = top == -CUDART_INF_F ? 0 : top * scale;
        x.keep[h] = cn_exp2(x.max[h] * scale - base);
        x.max[h] = top;
        float sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < TILE / 2; i++)
            if (i / 2 % 2 == h) {
                scores[i] = cn_exp2(scores[i] * scale - base);
                sum += scores[i];
            }
        x.sum[h] = x.sum[h] * x.keep[h] + sum;
    }
}

__device__ static inline void pack_weights(uint32_t weights[TILE / 4], const float scores[TILE / 2])
{
#pragma unroll
    for (uint32_t i = 0; i < TILE / 4; i++) weights[i] = cn_pack2(scores[2 * i], scores[2 * i + 1]);
}

/* ---- computing: by warpgroup ---- */

/* Clears the values of slots past the end of the sequence, in the stage of the first tile. */
template <int D>
__device__ static inline void clear_values(const prefill_shared<D> &shared, uint32_t first_row)
{
    const uint32_t n = (TILE - first_row) * 8 * prefill_shared<D>::BOXES;
    for (uint32_t i = threadIdx.x - CN_WARPGROUP; i < n; i += CONSUMERS * CN_WARPGROUP) {
        const uint32_t chunk = i % 8, row = first_row + i / 8 % (TILE - first_row);
        const uint32_t box = i / 8 / (TILE - first_row);
        *(uint4 *)(shared.values(0) + box * prefill_shared<D>::BOX_BYTES + row * CN_ROW_BYTES +
                   chunk * CN_CHUNK_BYTES) = make_uint4(0, 0, 0, 0);
    }
    cn_async_fence();
    cn_sync_some(VALUES_BARRIER, CONSUMERS * CN_WARPGROUP);
}

__device__ static inline void take_product_turn(uint32_t group)
{
    cn_sync_some(TURN_BARRIER + group, CONSUMERS * CN_WARPGROUP);
}

__device__ static inline void give_turn(uint32_t group)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(TURN_BARRIER + (group ^ 1)),
                 "r"(CONSUMERS * CN_WARPGROUP)
                 : "memory");
}

template <int D>
__device__ static inline void store_prefill(const cn_prefill_params &p, const cn_prefill_block &b,
                                            const float out[D / 2], const softmax_state &x,
                                            uint32_t first_row)
{
    const uint32_t d = p.pool.head_dim;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = first_row + h * 8;
        const float sum = cn_quad_sum(x.sum[h]);
        if (row >= b.n_rows) continue;
        const float scale = 1.0f / sum;
        cn_bf16 *to = p.out + cn_prefill_row(p, b, row) + threadIdx.x % 4 * 2;
#pragma unroll
        for (uint32_t n = 0; n < D / 8; n++)
            if (n * 8 < d)
                *(uint32_t *)(to + n * 8) =
                    cn_pack2(out[4 * n + 2 * h] * scale, out[4 * n + 2 * h + 1] * scale);
    }
}

/* Long: registers that a matrix product is still writing cannot be passed between functions. */
template <int D>
__device__ static inline void compute_prefill(const cn_prefill_params &p, const cn_prefill_block &b,
                                              const prefill_shared<D> &shared,
                                              prefill_barriers *barriers, uint32_t n_tiles)
{
    const uint32_t group = threadIdx.x / CN_WARPGROUP - 1, lane = threadIdx.x % CN_WARP;
    const uint32_t first_row = group * 64 + threadIdx.x % CN_WARPGROUP / CN_WARP * 16 + lane / 4;
    const unsigned char *queries = shared.queries + group * 64 * CN_ROW_BYTES;
    const bool leads = threadIdx.x % CN_WARPGROUP == 0;
    float out[D / 2], scores[TILE / 2];
    uint32_t weights[TILE / 4];
    softmax_state x;
#pragma unroll
    for (uint32_t i = 0; i < D / 2; i++) out[i] = 0;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        x.max[h] = -CUDART_INF_F;
        x.sum[h] = 0;
        x.limit[h] = cn_prefill_limit(b, first_row + h * 8);
    }
    if (group == 1) give_turn(group); /* the first turn is warpgroup 0's */
    cn_barrier_wait(&barriers->queries, 0);
    if (n_tiles * TILE > b.n_resident) {
        cn_barrier_wait(&barriers->values_full[0], 0);
        clear_values<D>(shared, b.n_resident - (n_tiles - 1) * TILE);
    }
    cn_barrier_wait(&barriers->keys_full[0], 0);
    cn_wgmma_begin();
    start_scores<D>(scores, queries, shared.keys(0));
    cn_wgmma_wait<0>();
    if (leads) cn_barrier_arrive(&barriers->keys_empty[0]);
    hide(scores, x, n_tiles - 1);
    softmax_of_tile(scores, x, p.scale);
    pack_weights(weights, scores);
    for (uint32_t i = 1; i < n_tiles; i++) {
        const uint32_t tile = n_tiles - 1 - i, stage = i % STAGES;
        const uint32_t last = (i - 1) % STAGES; /* the stage whose values are multiplied next */
        cn_barrier_wait(&barriers->keys_full[stage], i / STAGES & 1);
        take_product_turn(group);
        cn_wgmma_begin();
        start_scores<D>(scores, queries, shared.keys(stage));
        cn_barrier_wait(&barriers->values_full[last], (i - 1) / STAGES & 1);
        cn_wgmma_begin();
        start_values<D>(out, weights, shared.values(last));
        give_turn(group);
        cn_wgmma_wait<1>();
        if (leads) cn_barrier_arrive(&barriers->keys_empty[stage]);
        if ((tile + 1) * TILE > b.first_limit) hide(scores, x, tile);
        softmax_of_tile(scores, x, p.scale);
        cn_wgmma_wait<0>();
        if (leads) cn_barrier_arrive(&barriers->values_empty[last]);
#pragma unroll
        for (uint32_t j = 0; j < D / 2; j++) out[j] *= x.keep[j / 2 % 2];
        pack_weights(weights, scores);
    }
    const uint32_t last = (n_tiles - 1) % STAGES;
    cn_barrier_wait(&barriers->values_full[last], (n_tiles - 1) / STAGES & 1);
    cn_wgmma_begin();
    start_values<D>(out, weights, shared.values(last));
    cn_wgmma_wait<0>();
    store_prefill<D>(p, b, out, x, first_row);
}

#endif

template <int D>
__global__ static void __launch_bounds__(THREADS, 1)
    attn_prefill_sm90_kernel(const __grid_constant__ cn_prefill_params p,
                             const __grid_constant__ CUtensorMap queries,
                             const __grid_constant__ CUtensorMap pool)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char dynamic[];
    __shared__ prefill_barriers barriers;
    prefill_shared<D> shared;
    shared.queries = dynamic + (0u - cn_shared_address(dynamic)) % 1024;
    cn_wait_previous();
    cn_overlap_next();
    cn_prefill_block b;
    if (!cn_prefill_block_of(b, p, gridDim.y - 1 - blockIdx.y, blockIdx.x, blockIdx.z)) return;
    const uint32_t n_tiles = (b.n_slots + TILE - 1) / TILE;
    if (threadIdx.x == 0) {
        cn_barrier_init(&barriers.queries, 1);
        for (uint32_t i = 0; i < STAGES; i++) {
            cn_barrier_init(&barriers.keys_full[i], 1);
            cn_barrier_init(&barriers.values_full[i], 1);
            cn_barrier_init(&barriers.keys_empty[i], CONSUMERS);
            cn_barrier_init(&barriers.values_empty[i], CONSUMERS);
        }
        cn_barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x < CN_WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)FETCH_REGISTERS));
        if (threadIdx.x == 0)
            fetch_prefill_tiles<D>(p, b, shared, &barriers, &queries, &pool, n_tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)COMPUTE_REGISTERS));
        compute_prefill<D>(p, b, shared, &barriers, n_tiles);
    }
#endif
}

/* ---- launching ---- */

/* The rows of K and V: those of the pool, or of the copy. */
static cn_status map_prefill_rows(CUtensorMap *map, const cn_stream *s, const cn_attn_args *a,
                                  const cn_prefill_params &p)
{
    const uint32_t d = a->layout.head_dim;
    if (p.copy.slots == 0) return cn_map_pool(map, a->kv, &a->layout, a->layout.tile_tokens);
    const uint64_t rows = s->cuda->opts.plain_bytes / (d * sizeof(cn_bf16));
    const cn_map_shape shape = {2, {d, rows}, {1, d}, {CN_BOX_COLS, TILE}};
    return cn_map_encode(map, s->plain_rows, &shape);
}

template <int D>
static cn_status launch_prefill_sm90(cn_stream *s, const cn_attn_args *a, cn_prefill_params p,
                                     uint32_t n_heads, uint32_t n_seqs)
{
    dim3 grid = cn_prefill_plan(&p, a, ROWS);
    CUtensorMap queries, pool;
    grid.x = n_heads * p.n_parts;
    grid.z = n_seqs;
    const uint32_t d = a->layout.head_dim;
    const cn_map_shape shape = {3,
                                {d, a->n_heads, a->batch->n_tokens},
                                {1, d, (uint64_t)a->n_heads * d},
                                {CN_BOX_COLS, p.heads, p.block_tokens}};
    CN_TRY(cn_map_encode(&queries, a->q, &shape));
    CN_TRY(map_prefill_rows(&pool, s, a, p));
    return cn_cuda_launch(s, "attn_prefill", attn_prefill_sm90_kernel<D>,
                          {grid, THREADS, prefill_shared<D>::BYTES}, p, queries, pool);
}

extern "C" bool cn_attn_prefill_sm90_has(const cn_stream *s, const cn_attn_args *a)
{
    return cn_attn_has_bulk(s) && a->layout.head_dim <= CN_PREFILL_SM90_DIM &&
           a->n_heads / a->layout.n_kv_heads <= ROWS;
}

extern "C" bool cn_attn_prefill_sm90_fits(const cn_stream *s, const cn_attn_args *a)
{
    return cn_kv_form_of(&a->layout) == CN_KV_PLAIN && cn_attn_prefill_sm90_has(s, a);
}

static cn_status launch_prefill_any(cn_stream *s, const cn_attn_args *a,
                                    const cn_prefill_params &p, uint32_t n_heads, uint32_t n_seqs)
{
    return a->layout.head_dim <= 64 ? launch_prefill_sm90<64>(s, a, p, n_heads, n_seqs)
                                    : launch_prefill_sm90<128>(s, a, p, n_heads, n_seqs);
}

extern "C" cn_status cn_attn_prefill_sm90(cn_stream *s, const cn_attn_args *a)
{
    return launch_prefill_any(s, a, cn_prefill_params_of(a), a->layout.n_kv_heads,
                              a->batch->n_seqs - a->batch->n_decode);
}

extern "C" cn_status cn_attn_prefill_sm90_copied(cn_stream *s, const cn_attn_args *a,
                                                 cn_prefill_params p, uint32_t n_seqs)
{
    return launch_prefill_any(s, a, p, p.copy.n_heads, n_seqs);
}
