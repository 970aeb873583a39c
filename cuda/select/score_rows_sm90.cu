/* score_rows_sm90.cu - the op `score` for keys that are K rows, on compute capability 9.0. It does
 * the work of score.cu for the sequences with such keys, with the same divisions and products.
 * In: q bf16, K rows by block. Out: u16 [units, n], ragged as in cn_score_args.
 *
 * Two blocks per multiprocessor, which divide the step's lots (score.cuh). The 16 rows
 * of a lot are contiguous in the pool. A warp has a ring of stages in shared memory, one lot each,
 * and fills it with bulk copies; lane 0 starts them. So all stages but one are in flight while the
 * warp computes, also from one part to the next: at d 128 three stages of 4 KiB, 192 KiB per
 * multiprocessor. The block of the next lot is loaded before a stage is free.
 *
 * A stage has one barrier. Lane 0 arrives and expects the bytes of a lot, so phase i of a barrier
 * ends when lot i of the stage is in shared memory. All lanes wait for phase i, of parity i % 2.
 * Only then lane 0 starts the copy of phase i + 1. A warp waits for every lot that it has copied,
 * because it copies its lots in the order in which it computes them.
 *
 * Rows are read once, for any number of heads: more than 8 read shared memory again. Group rule max
 * stores f32 logits [n, group], which score_share.cu reads. Rows are marked to leave the L2 cache
 * first, so that logits stay in it.
 *
 * Bytes per candidate and kv head: read 2 d; written 2, with rule max 4 a head.
 * Block: 256 threads, 128 registers. CPU version: cpu_sel_score.c. */
#include "cuda/attn/attn_common.cuh"
#include "cuda/hopper.cuh"
#include "cuda/select/score.cuh"
#include "cuda/select/score_share.h"

enum {
    THREADS = 256,
    WARPS = THREADS / CN_WARP,
    LOT = 16,       /* rows */
    MAX_STAGES = 8, /* of a warp */
    LEAST_STAGES = 3, /* as long as a block has more than one warp with a ring */
    HEADS = 8,      /* of a pass */
    TABLE_PAD = 32, /* elements between rows of the table, to use other banks */
    ALIGN = 128,    /* bytes, of the ring */
    STATIC_BYTES = 2048,  /* no less than the static shared memory of a block */
    RESERVED_BYTES = 1024 /* shared memory that the GPU takes for each block */
};

/* The dynamic shared memory of a block: rings, the table, sums, then what cn_score_divide needs. */
typedef struct rows_shape {
    uint32_t n_workers, n_stages;        /* warps that have a ring; stages of a ring */
    uint32_t table_at, sums_at, seqs_at; /* in bytes */
} rows_shape;

typedef struct rows_fixed {
    cn_score_parts parts;
    uint64_t full[WARPS][MAX_STAGES]; /* barriers */
} rows_fixed;

typedef struct rows_memory {
    rows_fixed *fixed;
    cn_bf16 *table;   /* [heads, or 2 for the mean query, d], each row padded */
    cn_exp_sum *sums; /* [heads, n_workers] of the lots of each warp; rule max only */
    uint32_t n_workers;
} rows_memory;

/* The ring of a warp. */
typedef struct rows_feed {
    unsigned char *stages;
    uint64_t *full; /* [n_stages] */
    uint32_t n_stages, stage_bytes;
    bool found;          /* the next lot to copy is in part `part` and begins with `first` */
    cn_score_token first;
    uint32_t part, next; /* next: the number in the part of the first lot that is not found */
    uint32_t put;        /* the stage that is filled next */
    uint32_t get, parity; /* the stage that is read next, and the parity of its phase */
    uint32_t in_flight;  /* stages that are filled or being filled */
} rows_feed;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- the ring of a warp: all lanes call each function ---- */

__device__ static inline rows_feed feed_of(const cn_score_params &p, const rows_shape &shape,
                                           unsigned char *rings, rows_fixed *fixed)
{
    const uint32_t warp = threadIdx.x / CN_WARP;
    rows_feed f = {};
    f.stage_bytes = LOT * p.args.pools.layout.head_dim * (uint32_t)sizeof(cn_bf16);
    f.n_stages = shape.n_stages;
    f.stages = rings + warp * shape.n_stages * f.stage_bytes;
    f.full = fixed->full[warp];
    f.next = warp;
    if (warp >= shape.n_workers) f.part = UINT32_MAX; /* it has no lots */
    return f;
}

/* Finds the next lot of the warp in the block's parts up to number `known`. Returns false when
 * there is none. The block of the lot is loaded but not used yet, so nothing waits for it. */
__device__ static inline bool feed_find(rows_feed &f, const cn_score_params &p,
                                        const rows_memory &m, uint32_t known)
{
    while (!f.found && f.part <= known) {
        const cn_score_part &x = m.fixed->parts.part[f.part % 2];
        if (x.n_lots == 0) break; /* there are no more parts */
        if (f.next < x.n_lots) {
            f.first = cn_score_token_of(p, x, (x.lot + f.next) * LOT);
            f.first.slot &= ~(LOT - 1u); /* the first candidate may be within the lot */
            f.found = true;
            f.next += m.n_workers;
        } else {
            f.part++;
            f.next = threadIdx.x / CN_WARP;
        }
    }
    return f.found;
}

/* Starts copies into all free stages, as long as lots are known. */
__device__ static inline void feed_fill(rows_feed &f, const cn_score_params &p,
                                        const rows_memory &m, uint32_t known)
{
    while (feed_find(f, p, m, known) && f.in_flight < f.n_stages) {
        const void *from = cn_score_key_of(p, m.fixed->parts.part[f.part % 2], f.first);
        if (threadIdx.x % CN_WARP == 0) {
            cn_barrier_expect(&f.full[f.put], f.stage_bytes);
            cn_bulk_copy_hint(cn_shared_address(f.stages + f.put * f.stage_bytes), from,
                              f.stage_bytes, &f.full[f.put], CN_CACHE_EVICT_FIRST);
        }
        f.found = false;
        f.in_flight++;
        f.put = f.put + 1 < f.n_stages ? f.put + 1 : 0;
    }
}

/* Waits for the next lot and returns it. */
__device__ static inline const uint4 *feed_wait(const rows_feed &f)
{
    cn_barrier_wait(&f.full[f.get], f.parity);
    return (const uint4 *)(f.stages + f.get * f.stage_bytes);
}

/* The warp has read the lot: its stage may be filled again. */
__device__ static inline void feed_release(rows_feed &f)
{
    cn_async_fence();
    __syncwarp();
    f.in_flight--;
    f.parity ^= f.get + 1 == f.n_stages;
    f.get = f.get + 1 < f.n_stages ? f.get + 1 : 0;
}

/* ---- queries ---- */

/* Fills the table: the heads of the group, or their mean as the sum of two bf16 values in rows of
 * their own. With rule max clears the sums. */
__device__ static inline void load_query(const cn_score_params &p, const cn_score_part &x,
                                         const rows_memory &m)
{
    const uint32_t d = p.args.pools.layout.head_dim, vecs = d / CN_VEC8;
    const cn_bf16 *q = cn_score_query_of(p, x);
    if (x.stage.group == CN_GROUP_MAX) {
        for (uint32_t i = threadIdx.x; i < p.group * vecs; i += THREADS)
            ((uint4 *)(m.table + i / vecs * (d + TABLE_PAD)))[i % vecs] = ((const uint4 *)q)[i];
        for (uint32_t i = threadIdx.x; i < p.group * m.n_workers; i += THREADS) m.sums[i] = {};
    } else {
        for (uint32_t i = threadIdx.x; i < d; i += THREADS) {
            float sum = 0;
            for (uint32_t h = 0; h < p.group; h++) sum += __bfloat162float(q[h * d + i]);
            const float value = sum / (float)p.group;
            const cn_bf16 high = __float2bfloat16_rn(value);
            m.table[i] = high;
            m.table[d + TABLE_PAD + i] = __float2bfloat16_rn(value - __bfloat162float(high));
        }
    }
}

/* ---- a lot ---- */

__device__ static inline void swap_if(bool swaps, uint4 &a, uint4 &b)
{
    const uint4 x = a, y = b;
    a.x = swaps ? y.x : x.x;
    a.y = swaps ? y.y : x.y;
    a.z = swaps ? y.z : x.z;
    a.w = swaps ? y.w : x.w;
    b.x = swaps ? x.x : y.x;
    b.y = swaps ? x.y : y.y;
    b.z = swaps ? x.z : y.z;
    b.w = swaps ? x.w : y.w;
}

/* sums[16, 8] = keys[16, d] * table[8, d]^T. q: the row lane / 4 of the table.
 *
 * Eight lanes load 64 bytes of each of two rows at once. If the distance of rows is a multiple of
 * 128 bytes, these are the same banks. Then odd rows are loaded in another order. */
__device__ static inline void dot_rows(float sums[4], const uint4 *keys, const uint4 *q, uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4, t = lane % 4, vecs = d / CN_VEC8;
    const uint32_t swaps = d % 64 == 0 ? g % 2 : 0;
    const uint4 *low = keys + g * vecs, *high = low + 8 * vecs, none = make_uint4(0, 0, 0, 0);
    float even[4] = {}, odd[4] = {};
    for (uint32_t from = t; from < vecs + t; from += 16) {
        uint4 a[4], c[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t at = from + 4 * (i ^ swaps);
            a[i] = at < vecs ? low[at] : none;
            c[i] = at < vecs ? high[at] : none;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i += 2) {
            swap_if(swaps, a[i], a[i + 1]);
            swap_if(swaps, c[i], c[i + 1]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint4 b = from + 4 * i < vecs ? q[from + 4 * i] : none;
            const uint32_t first[4] = {a[i].x, c[i].x, a[i].y, c[i].y};
            const uint32_t second[4] = {a[i].z, c[i].z, a[i].w, c[i].w};
            cn_mma(even, first, b.x, b.y);
            cn_mma(odd, second, b.z, b.w);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) sums[i] = even[i] + odd[i];
}

/* Adds the weights of a lane's candidates, of the heads first + 2 t and the next (t = lane % 4), to
 * the warp's sums. */
__device__ static inline void add_weights(const cn_score_params &p, const rows_memory &m,
                                          uint32_t first, const float place[2][2])
{
    const uint32_t lane = threadIdx.x % CN_WARP, g = lane / 4, head = first + 2 * (lane % 4) + g;
    uint32_t own_top = 0, own_sum = 0; /* of `head` */
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float best = cn_column_max(fmaxf(place[i][0], place[i][1]));
        const uint32_t top = cn_weight_exponent(best);
        const uint32_t sum = cn_score_column_add(cn_weight_in_lot(place[i][0], top) +
                                                 cn_weight_in_lot(place[i][1], top));
        own_top = g == i ? top : own_top;
        own_sum = g == i ? sum : own_sum;
    }
    if (g >= 2 || head >= p.group) return;
    cn_exp_sum &sum = m.sums[head * m.n_workers + threadIdx.x / CN_WARP];
    sum = cn_exp_sum_add(sum, cn_exp_sum_of(own_top, own_sum));
}

/* The two candidates of a lane. */
typedef struct rows_two {
    uint32_t c[2];
    bool valid[2], below[2]; /* below: the base */
} rows_two;

__device__ static inline rows_two two_of(const cn_score_params &p, const cn_score_part &x,
                                         uint32_t start)
{
    rows_two two;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t at = start + threadIdx.x % CN_WARP / 4 + 8 * k;
        two.c[k] = at - x.from;
        two.valid[k] = at >= x.from && at < x.to;
        two.below[k] = x.stage.in_tiles && cn_score_token_of(p, x, at).position < x.base;
    }
    return two;
}

/* Stores the logits of a lane, of the heads first + 2 t and the next, and adds their weights. */
__device__ static inline void store_heads(const cn_score_params &p, const cn_score_part &x,
                                          const rows_memory &m, const rows_two &two, uint32_t first,
                                          const float sums[4])
{
    const float factor = cn_score_scale(p.args.pools.layout.head_dim);
    const uint32_t head = first + 2 * (threadIdx.x % 4);
    float place[2][2];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        float *to = cn_score_logits(p, x.first) + (size_t)two.c[k] * p.group + head;
        float logit[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            logit[i] = two.below[k] ? CUDART_NAN_F : sums[2 * k + i] * factor;
            place[i][k] = two.valid[k] ? cn_weight_place(logit[i]) : CN_NO_WEIGHT;
        }
        if (!two.valid[k] || head >= p.group) continue;
        if (p.group % 2 == 0) {
            *(float2 *)to = make_float2(logit[0], logit[1]);
            continue;
        }
        to[0] = logit[0];
        if (head + 1 < p.group) to[1] = logit[1];
    }
    add_weights(p, m, first, place);
}

/* Stores the scores under the mean query, the sums of columns 0 and 1. */
__device__ static inline void store_mean(const cn_score_params &p, const cn_score_part &x,
                                         const rows_two &two, const float sums[4])
{
    const float factor = cn_score_scale(p.args.pools.layout.head_dim);
    float score[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        score[k] = two.below[k] ? CUDART_NAN_F : (sums[2 * k] + sums[2 * k + 1]) * factor;
    const uint32_t bits = cn_score_bits2(score[0], score[1]);
    if (threadIdx.x % 4 > 0) return;
    uint16_t *out = p.args.out + x.first;
    if (two.valid[0]) out[two.c[0]] = (uint16_t)bits;
    if (two.valid[1]) out[two.c[1]] = (uint16_t)(bits >> 16);
}

/* Computes the lot that starts at number `start`. known: as in feed_find. */
__device__ static inline void compute_lot(const cn_score_params &p, const cn_score_part &x,
                                          const rows_memory &m, rows_feed &f, uint32_t start,
                                          uint32_t known)
{
    const uint32_t d = p.args.pools.layout.head_dim, g = threadIdx.x % CN_WARP / 4;
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    const uint32_t n_rows = is_max ? p.group : 2;
    const rows_two two = two_of(p, x, start);
    const uint4 *keys = feed_wait(f);
    for (uint32_t first = 0; first < n_rows; first += HEADS) {
        float sums[4];
        const uint32_t row = min(first + g, n_rows - 1);
        dot_rows(sums, keys, (const uint4 *)(m.table + row * (d + TABLE_PAD)), d);
        if (first + HEADS >= n_rows) {
            feed_release(f);
            feed_fill(f, p, m, known);
        }
        if (is_max) store_heads(p, x, m, two, first, sums);
        else store_mean(p, x, two, sums);
    }
}

/* ---- the kernel ---- */

/* Writes the sums of the part, and where they are. */
__device__ static inline void store_sums(const cn_score_params &p, const cn_score_part &x,
                                         const rows_memory &m)
{
    for (uint32_t h = threadIdx.x; h < p.group; h += THREADS) {
        const cn_exp_sum *of_warps = m.sums + h * m.n_workers;
        cn_exp_sum sum = of_warps[0];
        for (uint32_t w = 1; w < m.n_workers; w++) sum = cn_exp_sum_add(sum, of_warps[w]);
        p.slots[(size_t)x.slot * p.group + h] = {sum, 0};
    }
    if (threadIdx.x == 0) p.units[x.at.index] = {x.first_slot, x.n_slots};
}

/* Computes part `number`. The one behind it is being found. */
__device__ static inline void compute_part(const cn_score_params &p, const rows_memory &m,
                                           rows_feed &f, uint32_t number)
{
    const cn_score_part &x = m.fixed->parts.part[number % 2];
    const uint32_t warp = threadIdx.x / CN_WARP;
    load_query(p, x, m);
    __syncthreads(); /* the next part is found */
    feed_fill(f, p, m, number + 1);
    if (warp < m.n_workers)
        for (uint32_t i = warp; i < x.n_lots; i += m.n_workers)
            compute_lot(p, x, m, f, (x.lot + i) * LOT, number + 1);
    if (x.stage.group != CN_GROUP_MAX) return;
    __syncthreads();
    store_sums(p, x, m);
}

#endif

__global__ static void __launch_bounds__(THREADS, CN_SCORE_BLOCKS)
    rows_kernel(const __grid_constant__ cn_score_params p,
                const __grid_constant__ rows_shape shape)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(ALIGN) unsigned char dynamic[];
    __shared__ rows_fixed fixed;
    rows_memory m;
    m.fixed = &fixed;
    m.table = (cn_bf16 *)(dynamic + shape.table_at);
    m.sums = (cn_exp_sum *)(dynamic + shape.sums_at);
    m.n_workers = shape.n_workers;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < WARPS * MAX_STAGES; i++)
            cn_barrier_init(&fixed.full[i / MAX_STAGES][i % MAX_STAGES], 1);
        cn_barrier_init_done();
    }
    if (!p.early) cn_wait_previous();
    cn_score_plan plan = cn_score_divide<THREADS>(
        p, (cn_score_seq *)(dynamic + shape.seqs_at), cn_score_is_rows);
    cn_score_find(plan, p, 0, &fixed.parts);
    cn_wait_previous();
    cn_overlap_next(); /* after the wait: see score_share.cu */
    __syncthreads();
    rows_feed f = feed_of(p, shape, dynamic, &fixed);
    for (uint32_t i = 0; fixed.parts.part[i % 2].n_lots > 0; i++) {
        feed_fill(f, p, m, i);
        cn_score_find(plan, p, i + 1, &fixed.parts);
        compute_part(p, m, f, i);
        __syncthreads();
    }
#endif
}

/* ---- on the host ---- */

/* Divides half of a multiprocessor's shared memory. Returns false if it is too small for a ring. */
static bool shape_of(const cn_stream *s, const cn_score_params &p, rows_shape *shape)
{
    const cn_score_args *a = &p.args;
    const size_t d = a->pools.layout.head_dim, lot_bytes = LOT * d * sizeof(cn_bf16);
    const size_t half = (s->cuda->device.shared_bytes + RESERVED_BYTES) / CN_SCORE_BLOCKS -
                        RESERVED_BYTES - STATIC_BYTES;
    const size_t table = cn_max_u32(a->logits ? p.group : 0, 2) * (d + TABLE_PAD) * sizeof(cn_bf16);
    const size_t sums = a->logits ? p.group * WARPS * sizeof(cn_exp_sum) : 0;
    const size_t rest = table + sums + cn_score_seqs_bytes(a);
    const size_t lots = rest < half ? (half - rest) / lot_bytes : 0;
    uint32_t n_workers = WARPS;
    while (n_workers > 1 && lots / n_workers < LEAST_STAGES) n_workers /= 2;
    shape->n_workers = n_workers;
    shape->n_stages = cn_min_u32((uint32_t)(lots / n_workers), MAX_STAGES);
    shape->table_at = (uint32_t)(n_workers * shape->n_stages * lot_bytes);
    shape->sums_at = shape->table_at + (uint32_t)table;
    shape->seqs_at = shape->sums_at + (uint32_t)sums;
    return shape->n_stages > 0;
}

bool cn_score_rows_fits(const cn_stream *s, const cn_score_params &p)
{
    const cn_score_args *a = &p.args;
    rows_shape shape;
    return cn_attn_has_bulk(s) && a->pools.layout.tile_tokens >= LOT &&
           (uintptr_t)a->logits % sizeof(float4) == 0 && shape_of(s, p, &shape);
}

cn_status cn_score_rows(cn_stream *s, const cn_score_params &p)
{
    rows_shape shape;
    const bool fits = shape_of(s, p, &shape);
    CN_ASSERT(fits);
    /* Without this the driver may leave room for one block only. */
    CN_CUDA(cudaFuncSetAttribute(rows_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared));
    const uint32_t n_blocks = CN_SCORE_BLOCKS * s->cuda->device.n_sms;
    const size_t bytes = shape.seqs_at + cn_score_seqs_bytes(&p.args);
    CN_TRY(cn_cuda_launch(s, "score: rows", rows_kernel, {dim3(n_blocks), THREADS, bytes}, p,
                          shape));
    return p.args.logits ? cn_score_share_rows(s, p) : CN_OK;
}
