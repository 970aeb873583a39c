/* score_feed.cuh - a ring of bulk copies for each warp of score_ring_sm90.cu.
 *
 * A stage of a ring has the keys of one lot, and one barrier. Lane 0 arrives and expects the bytes
 * of the lot, so phase i of the barrier ends when lot i of the stage is in shared memory. All lanes
 * wait for phase i, of parity i % 2. Only then the copies of phase i + 1 start. A warp waits for
 * every lot that it has copied, because it copies its lots in the order in which it computes them.
 *
 * The keys of a lot are contiguous, or are in equal runs (cn_score_run_log2). A lane finds and
 * copies one run of a lot, and the warp finds as many lots at once as it has lanes for. Their
 * blocks are loaded before a stage is free. The ring is filled from one part of the block to the
 * next, so all stages but one are in flight while the warp computes.
 *
 * Eight lanes load 64 bytes of each of two bounds at once. Bounds are often a multiple of 128
 * bytes, so all of them begin at the same bank. So the second half of a lot is shifted by 64 bytes,
 * and such lanes have one of each half. K rows are not shifted, because one copy of a lot takes
 * less time than two.
 *
 * All lanes of a warp call each function. */
#ifndef CN_CUDA_SCORE_FEED_CUH
#define CN_CUDA_SCORE_FEED_CUH

#include "cuda/attn/attn_common.cuh"
#include "cuda/hopper.cuh"
#include "cuda/select/score.cuh"

enum {
    CN_FEED_THREADS = 256,
    CN_FEED_WARPS = CN_FEED_THREADS / CN_WARP,
    CN_FEED_STAGES = 8, /* most stages of a ring */
    CN_FEED_LABELS = 1 << CN_LOT_MAX_LOG2, /* of a lot */
    CN_FEED_SHIFT = 64 /* bytes between the halves of a lot of bounds */
};

/* The rings of a block. */
typedef struct cn_feed_shape {
    uint32_t n_workers, n_stages; /* warps that have a ring; stages of a ring */
    uint32_t stage_bytes;
} cn_feed_shape;

typedef struct cn_feed_shared {
    cn_score_parts parts;
    uint64_t full[CN_FEED_WARPS][CN_FEED_STAGES]; /* barriers */
} cn_feed_shared;

typedef struct cn_feed {
    unsigned char *stages;
    cn_feed_shared *shared;
    uint64_t *full; /* [n_stages] */
    uint32_t n_workers, n_stages, stage_bytes;
    uint32_t n_found, at; /* lots that are found but not copied; the number of the first of them */
    cn_score_token first; /* the run of this lane begins with this token */
    uint32_t part, next;  /* of the lots found; the first lot of the part that is not found */
    uint32_t put;         /* the stage that is filled next */
    uint32_t get, parity; /* the stage that is read next, and the parity of its phase */
    uint32_t in_flight;   /* stages that are filled or being filled */
} cn_feed;

/* Bytes of the keys of a lot. */
__host__ __device__ static inline uint32_t cn_feed_lot_bytes(const cn_score_params &p, bool labels)
{
    return labels ? CN_FEED_LABELS * (p.label_bytes + (uint32_t)sizeof(uint16_t))
                  : 32 * p.args.pools.layout.head_dim;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Each warp initialises its own barriers. Called before the block's first barrier. */
__device__ static inline void cn_feed_init(cn_feed_shared *shared, uint32_t n_stages)
{
    if (threadIdx.x % CN_WARP > 0) return;
#pragma unroll 1
    for (uint32_t i = 0; i < n_stages; i++)
        cn_barrier_init(&shared->full[threadIdx.x / CN_WARP][i], 1);
    cn_barrier_init_done();
}

__device__ static inline cn_feed cn_feed_of(const cn_feed_shape &shape, unsigned char *rings,
                                            cn_feed_shared *shared)
{
    const uint32_t warp = threadIdx.x / CN_WARP;
    cn_feed f = {};
    f.shared = shared;
    f.n_workers = shape.n_workers;
    f.n_stages = shape.n_stages;
    f.stage_bytes = shape.stage_bytes;
    f.stages = rings + warp * shape.n_stages * shape.stage_bytes;
    f.full = shared->full[warp];
    f.next = warp;
    if (warp >= shape.n_workers) f.part = UINT32_MAX; /* it has no lots */
    return f;
}

/* Finds the next lots of the warp in a part; f.next is one of the part's. */
__device__ static inline void cn_feed_find_in(cn_feed &f, const cn_score_params &p,
                                              const cn_score_part &x)
{
    const uint32_t lane = threadIdx.x % CN_WARP, run_log2 = cn_score_run_log2(p, x);
    const uint32_t runs_log2 = x.lot_log2 - run_log2;
    const uint32_t number = min(f.next + (lane >> runs_log2) * f.n_workers, x.n_lots - 1);
    const uint32_t run = lane & ((1u << runs_log2) - 1);
    f.first = cn_score_token_of(p, x, ((x.lot + number) << x.lot_log2) + (run << run_log2));
    f.first.slot &= ~((1u << run_log2) - 1); /* the first candidate may be within the run */
    f.at = 0;
    for (; f.n_found < CN_WARP >> runs_log2 && f.next < x.n_lots; f.next += f.n_workers)
        f.n_found++;
}

/* Finds the next lots of the warp in the block's parts up to number `known`. Returns false when
 * there is none. The blocks of the lots are loaded but not used yet, so nothing waits for them. */
__device__ static inline bool cn_feed_find(cn_feed &f, const cn_score_params &p, uint32_t known)
{
    while (f.n_found == 0 && f.part <= known) {
        const cn_score_part &x = f.shared->parts.part[f.part % 2];
        if (x.n_lots == 0) break; /* there are no more parts */
        if (f.next < x.n_lots && x.stage.key != CN_KEY_HASH) {
            cn_feed_find_in(f, p, x);
        } else {
            f.part++;
            f.next = threadIdx.x / CN_WARP;
        }
    }
    return f.n_found > 0;
}

/* Returns the bytes between the halves of a lot of rows or bounds. */
__device__ static inline uint32_t cn_feed_shift(const cn_score_part &x)
{
    return x.stage.key == CN_KEY_BOUNDS ? CN_FEED_SHIFT : 0;
}

/* Starts the copies of the first lot that is found into a stage. */
__device__ static inline void cn_feed_copy(const cn_feed &f, const cn_score_params &p,
                                           const cn_score_part &x)
{
    const uint32_t lane = threadIdx.x % CN_WARP, run_log2 = cn_score_run_log2(p, x);
    const uint32_t runs_log2 = x.lot_log2 - run_log2, run = lane & ((1u << runs_log2) - 1);
    const uint32_t to = cn_shared_address(f.stages + f.put * f.stage_bytes);
    const bool labels = x.stage.key == CN_KEY_LABELS;
    const uint32_t bytes = cn_feed_lot_bytes(p, labels);
    uint64_t *full = &f.full[f.put];
    if (lane == 0) cn_barrier_expect(full, bytes);
    __syncwarp();
    if (lane >> runs_log2 != f.at) return;
    if (labels) {
        const cn_digest &g = p.args.pools.digest;
        const size_t side = cn_score_side_of(p, x, f.first);
        const uint32_t run_bytes = p.label_bytes << run_log2;
        const uint32_t scales_at = CN_FEED_LABELS * p.label_bytes;
        cn_bulk_copy_hint(to + run * run_bytes, g.labels + side * p.label_bytes, run_bytes, full,
                          CN_CACHE_EVICT_FIRST);
        cn_bulk_copy_hint(to + scales_at + (run * 2 << run_log2), g.scales + side, 2u << run_log2,
                          full, CN_CACHE_EVICT_FIRST);
    } else {
        const unsigned char *keys = (const unsigned char *)cn_score_key_of(p, x, f.first);
        const uint32_t half = bytes / 2, shift = cn_feed_shift(x), run_bytes = bytes >> runs_log2;
        const uint32_t at = run * run_bytes, first = shift > 0 ? min(run_bytes, half) : run_bytes;
        cn_bulk_copy_hint(to + at + (at < half ? 0 : shift), keys, first, full,
                          CN_CACHE_EVICT_FIRST);
        if (first < run_bytes)
            cn_bulk_copy_hint(to + half + shift, keys + half, half, full, CN_CACHE_EVICT_FIRST);
    }
}

/* Returns where key i of a lot of rows or bounds begins, in vectors of 16 bytes. vecs: of a key. */
__device__ static inline uint32_t cn_feed_key_vec(const cn_score_params &p,
                                                  const cn_score_part &x, uint32_t i,
                                                  uint32_t vecs)
{
    const uint32_t half = cn_feed_lot_bytes(p, false) / 2 / 16;
    return i * vecs + (i * vecs < half ? 0 : cn_feed_shift(x) / 16);
}

/* Starts copies into all free stages, as long as lots are known. */
__device__ static inline void cn_feed_fill(cn_feed &f, const cn_score_params &p, uint32_t known)
{
    while (cn_feed_find(f, p, known) && f.in_flight < f.n_stages) {
        cn_feed_copy(f, p, f.shared->parts.part[f.part % 2]);
        f.n_found--;
        f.at++;
        f.in_flight++;
        f.put = f.put + 1 < f.n_stages ? f.put + 1 : 0;
    }
}

/* Waits for the next lot and returns it. */
__device__ static inline const unsigned char *cn_feed_wait(const cn_feed &f)
{
    cn_barrier_wait(&f.full[f.get], f.parity);
    return f.stages + f.get * f.stage_bytes;
}

/* The warp has read the lot: its stage is filled again. known: as in cn_feed_find. */
__device__ static inline void cn_feed_release(cn_feed &f, const cn_score_params &p, uint32_t known)
{
    cn_async_fence();
    __syncwarp();
    f.in_flight--;
    f.parity ^= f.get + 1 == f.n_stages;
    f.get = f.get + 1 < f.n_stages ? f.get + 1 : 0;
    cn_feed_fill(f, p, known);
}

#endif

#endif
