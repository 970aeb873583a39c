/* score_feed.cuh - a ring of copies for each warp of score_ring.cu.
 *
 * A stage of a ring has the keys of one lot, and a barrier. Phase i of the barrier ends when lot i
 * of the stage is in shared memory. All lanes wait for phase i, of parity i % 2, and use what they
 * have read. Only then the copies of phase i + 1 start, so no fence is needed. A warp waits for
 * every lot that it has copied, because it copies its lots in the order in which it computes them.
 *
 * The keys of a lot are contiguous, or are in equal runs (cn_score_run_log2). A lane finds one run
 * of a lot, and the warp finds as many lots at once as it has lanes for. With bulk copies (compute
 * capability 9.0, where all stages rank the same digests) the lane also copies its run, and the
 * barrier counts bytes. Without, all lanes copy one run after the other, 16 bytes at a time, and
 * each arrives when its copies are complete.
 * The ring is filled from one part of the block to the next, so all stages but one are in flight
 * while the warp computes.
 *
 * Eight lanes load 64 bytes of each of two keys at once. K rows and bounds are often a multiple of
 * 128 bytes, so all of them begin at the same bank. So the second half of a lot is shifted by 64
 * bytes, and such lanes have one of each half. It has the odd K rows of the lot, and the last
 * bounds.
 *
 * All lanes of a warp call each function. */
#pragma once

#include "cuda/attn/attn_common.cuh"
#include "cuda/hopper.cuh"
#include "cuda/select/score.cuh"

enum {
    CN_FEED_THREADS = 256,
    CN_FEED_WARPS = CN_FEED_THREADS / CN_WARP,
    CN_FEED_STAGES = 8, /* most stages of a ring */
    CN_FEED_LABELS = 1 << CN_LOT_MAX_LOG2, /* of a lot */
    CN_FEED_ANY = CN_KEY_HASH + 1, /* as a cn_sel_key: stages may have different ones */
    CN_FEED_ROWS = 16, /* K rows of a lot */
    CN_FEED_SHIFT = 64 /* bytes between the halves of a lot of bounds */
};

/* The rings of a block. */
typedef struct cn_feed_shape {
    uint32_t n_workers, n_stages; /* warps that have a ring; stages of all rings */
    uint32_t stage_bytes;
} cn_feed_shape;

typedef struct cn_feed_shared {
    cn_score_parts parts;
    uint64_t full[CN_FEED_WARPS][CN_FEED_STAGES]; /* barriers */
} cn_feed_shared;

/* A run of keys of a lot. */
typedef struct cn_feed_run {
    uint32_t key, runs_log2; /* of the stage; log2 of the runs of a lot */
    uint64_t place; /* K rows: the pool's row; labels: the number of the first; bounds: address */
} cn_feed_run;

/* KEY: what all stages of the launch rank; then copies are bulk copies. Or CN_FEED_ANY. K rows: a
 * lot is one run. */
template <uint32_t KEY> struct cn_feed {
    static constexpr uint32_t key = KEY;
    static constexpr bool bulk = KEY != CN_FEED_ANY;
    unsigned char *stages;
    cn_feed_shared *shared;
    uint64_t *full; /* [n_stages] */
    uint32_t n_workers, n_stages, stage_bytes;
    uint32_t n_found, at; /* lots that are found but not copied; the number of the first of them */
    uint32_t part, next;  /* of the lots found; the first lot of the part that is not found */
    cn_feed_run run;      /* of this lane, of the lots found */
    uint32_t put;         /* the stage that is filled next */
    uint32_t get, parity; /* the stage that is read next, and the parity of its phase */
    uint32_t in_flight;   /* stages that are filled or being filled */
};

/* Bytes of the keys of a lot. */
__host__ __device__ static inline uint32_t cn_feed_lot_bytes(const cn_score_params &p, bool labels)
{
    return labels ? CN_FEED_LABELS * (p.label_bytes + (uint32_t)sizeof(uint16_t))
                  : 32 * p.args.pools.layout.head_dim;
}

/* Each warp initialises its own barriers, one per lane. Called before the block's first barrier. */
template <bool BULK> __device__ static inline void cn_feed_init(cn_feed_shared *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    if (lane >= CN_FEED_STAGES) return;
    cn_barrier_init(&shared->full[threadIdx.x / CN_WARP][lane], BULK ? 1 : CN_WARP);
    cn_barrier_init_done();
}

template <uint32_t KEY>
__device__ static inline cn_feed<KEY> cn_feed_of(const cn_feed_shape &shape, unsigned char *rings,
                                                 cn_feed_shared *shared)
{
    const uint32_t warp = threadIdx.x / CN_WARP;
    cn_feed<KEY> f = {};
    f.shared = shared;
    f.n_workers = shape.n_workers;
    const uint32_t each = shape.n_stages / shape.n_workers, more = shape.n_stages % shape.n_workers;
    f.n_stages = each + (warp < more ? 1 : 0);
    f.stage_bytes = shape.stage_bytes;
    f.stages = rings + (warp * each + min(warp, more)) * shape.stage_bytes;
    f.full = shared->full[warp];
    f.next = warp;
    if (warp >= shape.n_workers) f.part = UINT32_MAX; /* it has no lots */
    return f;
}

/* Returns cn_feed_run.place of a run. first: the token with which it begins. */
__device__ static inline uint64_t cn_feed_place(const cn_score_params &p, const cn_score_part &x,
                                                 uint32_t key, const cn_score_token &first)
{
    const cn_digest &g = p.args.pools.digest;
    if (key == CN_KEY_ROWS) return cn_score_row_of(p, x, first);
    const size_t side = cn_score_side_of(p, x, first);
    if (key == CN_KEY_LABELS) return side;
    const uint32_t entry = x.stage.entry_log2;
    const cn_bf16 *bounds = (const cn_bf16 *)(entry == 4 ? g.bounds_16 : g.bounds_64);
    return (uint64_t)(bounds + (side >> entry) * 2 * p.args.pools.layout.head_dim);
}

/* Finds the next lots of the warp in a part; f.next is one of the part's. */
template <typename Feed>
__device__ static inline void cn_feed_find_in(Feed &f, const cn_score_params &p,
                                              const cn_score_part &x)
{
    const uint32_t lane = threadIdx.x % CN_WARP, run_log2 = cn_score_run_log2(p, x);
    const uint32_t key = Feed::key != CN_FEED_ANY ? Feed::key : x.stage.key;
    const uint32_t runs_log2 = key == CN_KEY_ROWS ? 0 : x.lot_log2 - run_log2;
    const uint32_t number = min(f.next + (lane >> runs_log2) * f.n_workers, x.n_lots - 1);
    const uint32_t run = lane & ((1u << runs_log2) - 1);
    cn_score_token first =
        cn_score_token_of(p, x, ((x.lot + number) << x.lot_log2) + (run << run_log2));
    first.slot &= ~((1u << run_log2) - 1); /* the first candidate may be within the run */
    f.run = {key, runs_log2, cn_feed_place(p, x, key, first)};
    f.at = 0;
    const uint32_t left = (x.n_lots - f.next + f.n_workers - 1) / f.n_workers;
    f.n_found = min(left, CN_WARP >> runs_log2);
    f.next += f.n_found * f.n_workers;
}

/* Finds the next lots of the warp in the block's parts up to number `known`. Returns false when
 * there is none. */
template <typename Feed>
__device__ static inline bool cn_feed_find(Feed &f, const cn_score_params &p, uint32_t known)
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

/* Starts to copy bytes, a multiple of 16, into a stage. With bulk copies one lane calls it, else
 * all lanes of the warp. */
template <bool BULK>
__device__ static inline void cn_feed_put(uint32_t to, const void *from, uint32_t bytes,
                                          uint64_t *full)
{
    if constexpr (BULK) {
        cn_bulk_copy_hint(to, from, bytes, full, CN_CACHE_EVICT_FIRST);
    } else {
        for (uint32_t at = threadIdx.x % CN_WARP * 16; at < bytes; at += CN_WARP * 16)
            cn_copy16_once(to + at, (const char *)from + at, true);
    }
}

/* Starts the copies of run `number` of a lot of labels, and of their scales, into a stage. */
template <bool BULK>
__device__ static inline void cn_feed_copy_labels(const cn_score_params &p, const cn_feed_run &r,
                                                  uint32_t number, uint32_t stage, uint64_t *full)
{
    const cn_digest &g = p.args.pools.digest;
    const uint32_t n = CN_FEED_LABELS >> r.runs_log2, first = number * n;
    const uint32_t scales = stage + CN_FEED_LABELS * p.label_bytes;
    cn_feed_put<BULK>(stage + first * p.label_bytes, g.labels + r.place * p.label_bytes,
                      n * p.label_bytes, full);
    cn_feed_put<BULK>(scales + first * (uint32_t)sizeof(uint16_t), g.scales + r.place,
                      n * (uint32_t)sizeof(uint16_t), full);
}

/* Starts the copies of run `number` of a lot of bounds into a stage, whose second half is
 * shifted. */
template <bool BULK>
__device__ static inline void cn_feed_copy_bounds(const cn_score_params &p, const cn_feed_run &r,
                                                  uint32_t number, uint32_t stage, uint64_t *full)
{
    const uint32_t half = cn_feed_lot_bytes(p, false) / 2, bytes = 2 * half >> r.runs_log2;
    const uint32_t at = number * bytes;
    const unsigned char *from = (const unsigned char *)r.place;
    const uint32_t first = at < half ? min(bytes, half - at) : 0; /* of the first half */
    if (first > 0) cn_feed_put<BULK>(stage + at, from, first, full);
    if (first < bytes)
        cn_feed_put<BULK>(stage + at + first + CN_FEED_SHIFT, from + first, bytes - first, full);
}

/* Starts the copies of a lot of K rows into a stage, by all lanes. */
__device__ static inline void cn_feed_copy_rows(const cn_score_params &p, uint64_t place,
                                                uint32_t stage)
{
    const uint32_t vecs = p.args.pools.layout.head_dim / CN_VEC8, bytes = vecs * sizeof(uint4);
    const uint32_t half = CN_FEED_ROWS / 2 * bytes + CN_FEED_SHIFT;
    const uint4 *from = (const uint4 *)p.args.pools.kv + place * vecs;
    for (uint32_t i = threadIdx.x % CN_WARP; i < CN_FEED_ROWS * vecs; i += CN_WARP) {
        const uint32_t row = i / vecs, at = row % 2 * half + row / 2 * bytes;
        cn_copy16_once(stage + at + i % vecs * sizeof(uint4), from + i, true);
    }
}

/* Starts the copies of the first lot that is found into a stage, by all lanes. */
template <typename Feed>
__device__ static inline void cn_feed_copy_by_lanes(const Feed &f, const cn_score_params &p,
                                                    uint32_t stage, uint64_t *full)
{
    const uint32_t runs_log2 = f.run.runs_log2;
    cn_feed_run r = f.run;
#pragma unroll 1
    for (uint32_t i = 0; i < 1u << runs_log2; i++) {
        r.place = __shfl_sync(0xffffffffu, (unsigned long long)f.run.place,
                              (int)((f.at << runs_log2) + i));
        if (r.key == CN_KEY_ROWS) cn_feed_copy_rows(p, r.place, stage);
        else if (r.key == CN_KEY_LABELS) cn_feed_copy_labels<false>(p, r, i, stage, full);
        else cn_feed_copy_bounds<false>(p, r, i, stage, full);
    }
    cn_barrier_arrive_copied(full);
}

/* The same by bulk copies, of the lanes that have found the lot. */
template <typename Feed>
__device__ static inline void cn_feed_copy_in_bulk(const Feed &f, const cn_score_params &p,
                                                   uint32_t stage, uint64_t *full)
{
    constexpr bool is_labels = Feed::key == CN_KEY_LABELS;
    const uint32_t lane = threadIdx.x % CN_WARP;
    const uint32_t number = lane & ((1u << f.run.runs_log2) - 1);
    if (lane == 0) cn_barrier_expect(full, cn_feed_lot_bytes(p, is_labels));
    __syncwarp();
    if (lane >> f.run.runs_log2 != f.at) return;
    if (is_labels) cn_feed_copy_labels<true>(p, f.run, number, stage, full);
    else cn_feed_copy_bounds<true>(p, f.run, number, stage, full);
}

/* Starts the copies of the first lot that is found into the stage that is filled next. */
template <typename Feed>
__device__ static inline void cn_feed_push(Feed &f, const cn_score_params &p)
{
    const uint32_t stage = cn_shared_address(f.stages + f.put * f.stage_bytes);
    if constexpr (Feed::bulk) cn_feed_copy_in_bulk(f, p, stage, &f.full[f.put]);
    else cn_feed_copy_by_lanes(f, p, stage, &f.full[f.put]);
    f.n_found--;
    f.at++;
    f.in_flight++;
    f.put = f.put + 1 < f.n_stages ? f.put + 1 : 0;
}

/* Starts copies until `most` stages, or all, are in flight, as long as lots are known. known: as in
 * cn_feed_find. */
template <typename Feed>
__device__ static inline void cn_feed_fill(Feed &f, const cn_score_params &p, uint32_t known,
                                           uint32_t most = CN_FEED_STAGES)
{
    while (cn_feed_find(f, p, known) && f.in_flight < min(most, f.n_stages)) cn_feed_push(f, p);
}

/* Waits for the next lot and returns it. */
template <typename Feed>
__device__ static inline const unsigned char *cn_feed_wait(const Feed &f)
{
    cn_barrier_wait(&f.full[f.get], f.parity);
    return f.stages + f.get * f.stage_bytes;
}

/* The warp has read the lot: its stage is filled again. The others are in flight, unless no lot was
 * known for them. known: as in cn_feed_find. */
template <typename Feed>
__device__ static inline void cn_feed_release(Feed &f, const cn_score_params &p, uint32_t known)
{
    __syncwarp();
    f.in_flight--;
    f.parity ^= f.get + 1 == f.n_stages;
    f.get = f.get + 1 < f.n_stages ? f.get + 1 : 0;
    if (f.n_found > 0 || cn_feed_find(f, p, known)) cn_feed_push(f, p);
}
