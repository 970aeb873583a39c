/* select.cu - select: the best candidates of each unit, in ascending order.
 * In: score u16, ragged as in cn_score_args. Out: list [units, list_stride]. A unit is a cluster of
 * CLUSTER blocks, each with a part of the candidates; without clusters it is one block. The number
 * of blocks is fixed, because a graph does not know the number of candidates. Block 512.
 *
 * Two histograms of 8 bits find the lowest selected score. Blocks read each other's histograms, so
 * each finds the same score, and how many selected candidates the parts before its own have. Then
 * it lists its own: each thread has some candidates in a row, and a scan of their numbers says where
 * they go. Bytes read: 2 n per unit, up to three times where they exceed the registers. Bytes
 * written: 4 per list entry. CPU version: cpu_sel_list.c. */
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>

#include "cuda/group.cuh"
#include "cuda/select/select.cuh"

enum {
    CLUSTER = 4,
    THREADS = 512,
    WARPS = THREADS / CN_WARP,
    SCORES = 8, /* of a vector of 16 bytes */
    VECS = 2,   /* of a thread in a chunk */
    CHUNK = THREADS * VECS,
    BINS = 256,
    LANE_BINS = BINS / CN_WARP,
    /* Copies of a histogram, so that lanes of a warp count in different words. Scores share few high
     * bytes: each lane has its own copy. Low bytes differ, and few candidates are counted. */
    HIGH_COPIES = CN_WARP,
    LOW_COPIES = 8
};

typedef cub::WarpReduce<uint32_t> warp_reduce;
typedef cub::WarpScan<uint32_t> warp_scan;
typedef cub::BlockScan<uint32_t, THREADS> block_scan;

/* A digit of the lowest selected score. */
typedef struct select_digit {
    uint32_t digit;
    uint32_t wanted;        /* how many of the counted scores with this digit are selected */
    uint32_t n;             /* the number of counted scores with this digit */
    uint32_t above, equal;  /* counted scores of the parts before: with a larger digit, with this */
} select_digit;

typedef struct select_shared {
    uint32_t high[BINS * HIGH_COPIES]; /* [BINS, copies] */
    uint32_t low[BINS * LOW_COPIES];
    alignas(16) uint32_t totals[2][BINS]; /* read by other blocks */
    select_digit digits[2];
    warp_reduce::TempStorage reduce[WARPS];
    warp_scan::TempStorage scan[2];
    block_scan::TempStorage block;
} select_shared;

/* A unit's candidates, and how the selected ones are written. */
typedef struct select_list {
    const uint16_t *score;
    uint32_t n, base, entry_log2;
    const uint32_t *tiles;
    bool tokens;
    uint32_t *out; /* behind the forced positions */
    uint32_t room; /* entries of out */
    /* Vectors start at 16-byte boundaries. Candidate c is score (c + skew) % 8 of vector
     * (c + skew) / 8. This block has the vectors [first, end). */
    uint32_t skew, first, end, part;
} select_list;

/* The scores of a thread in a chunk. */
typedef struct select_vecs {
    uint4 v[VECS];
} select_vecs;

/* ---- candidates ---- */

/* Returns the candidate of score i of a thread's vectors of a chunk. Those beyond the unit's are at
 * least n. */
__device__ static inline uint32_t candidate(const select_list &l, uint32_t chunk, uint32_t i)
{
    return (chunk + threadIdx.x * VECS) * SCORES + i - l.skew;
}

__device__ static inline uint32_t score_at(const select_vecs &s, uint32_t i)
{
    const uint4 v = s.v[i / SCORES];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return words[i % SCORES / 2] >> (16 * (i % 2)) & 0xffffu;
}

/* A thread's candidates behind the end of the block's part are not counted. */
__device__ static inline bool has_candidate(const select_list &l, uint32_t chunk, uint32_t i,
                                            uint32_t c)
{
    return chunk + threadIdx.x * VECS + i / SCORES < l.end && c < l.n;
}

__device__ static inline select_vecs load_chunk(const select_list &l, uint32_t chunk)
{
    select_vecs s = {};
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++) {
        const uint32_t vec = chunk + threadIdx.x * VECS + k, c = vec * SCORES - l.skew;
        if (vec >= l.end) continue;
        if (c < l.n && l.n - c >= SCORES) { /* c wraps around if the vector begins before it */
            s.v[k] = *(const uint4 *)(l.score + c);
            continue;
        }
        uint32_t words[4] = {};
#pragma unroll
        for (uint32_t i = 0; i < SCORES; i++)
            if (c + i < l.n) words[i / 2] |= (uint32_t)l.score[c + i] << (16 * (i % 2));
        s.v[k] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return s;
}

/* ---- the lowest selected score ---- */

/* All threads of the unit wait for each other. */
template <uint32_t PARTS> __device__ static inline void unit_barrier(void)
{
    if (PARTS > 1) cn_group_cluster_barrier();
    else __syncthreads();
}

/* Counts the high bytes of the block's scores. */
__device__ static inline void count_high(const select_list &l, const select_vecs &held,
                                         select_shared *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    for (uint32_t chunk = l.first; chunk < l.end; chunk += CHUNK) {
        const select_vecs s = chunk == l.first ? held : load_chunk(l, chunk);
#pragma unroll
        for (uint32_t i = 0; i < VECS * SCORES; i++)
            if (has_candidate(l, chunk, i, candidate(l, chunk, i)))
                atomicAdd(&shared->high[(score_at(s, i) >> 8) * HIGH_COPIES + lane], 1u);
    }
    __syncthreads();
#pragma unroll 4
    for (uint32_t bin = warp; bin < BINS; bin += WARPS) {
        const uint32_t n = warp_reduce(shared->reduce[warp])
                               .Sum(shared->high[bin * HIGH_COPIES + lane]);
        if (lane == 0) shared->totals[0][bin] = n;
    }
}

/* Counts the low bytes of the block's scores with the high byte `high`. */
__device__ static inline void count_low(const select_list &l, const select_vecs &held,
                                        uint32_t high, select_shared *shared)
{
    for (uint32_t chunk = l.first; chunk < l.end; chunk += CHUNK) {
        const select_vecs s = chunk == l.first ? held : load_chunk(l, chunk);
#pragma unroll
        for (uint32_t i = 0; i < VECS * SCORES; i++) {
            const uint32_t score = score_at(s, i);
            if (score >> 8 == high && has_candidate(l, chunk, i, candidate(l, chunk, i)))
                atomicAdd(&shared->low[(score & 255) * LOW_COPIES + threadIdx.x % LOW_COPIES], 1u);
        }
    }
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += THREADS) {
        uint32_t n = 0;
#pragma unroll
        for (uint32_t i = 0; i < LOW_COPIES; i++) n += shared->low[bin * LOW_COPIES + i];
        shared->totals[1][bin] = n;
    }
}

/* Adds up the histograms of the unit's blocks. all, earlier: this lane's bins from the largest digit
 * down, of all parts and of those before `part`. */
template <uint32_t PARTS>
__device__ static inline void add_parts(const uint32_t *totals, uint32_t part,
                                        uint32_t all[LANE_BINS], uint32_t earlier[LANE_BINS])
{
    const uint32_t first = BINS - (threadIdx.x + 1) * LANE_BINS;
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) {
        const void *from = totals + first;
        if (PARTS > 1) from = cn_group_peer_address(from, p);
        const uint4 a = ((const uint4 *)from)[0], b = ((const uint4 *)from)[1];
        const uint32_t n[LANE_BINS] = {b.w, b.z, b.y, b.x, a.w, a.z, a.y, a.x};
#pragma unroll
        for (uint32_t i = 0; i < LANE_BINS; i++) {
            all[i] += n[i];
            earlier[i] += p < part ? n[i] : 0;
        }
    }
}

/* Finds the digit of the wanted-th largest of the counted scores. which: of the two digits. */
template <uint32_t PARTS>
__device__ static inline void find_digit(const select_list &l, uint32_t which, uint32_t wanted,
                                         select_shared *shared)
{
    unit_barrier<PARTS>();
    if (threadIdx.x < CN_WARP) {
        uint32_t all[LANE_BINS] = {}, earlier[LANE_BINS] = {}, own = 0, own_earlier = 0;
        uint32_t above, above_earlier;
        add_parts<PARTS>(shared->totals[which], l.part, all, earlier);
#pragma unroll
        for (uint32_t i = 0; i < LANE_BINS; i++) {
            own += all[i];
            own_earlier += earlier[i];
        }
        warp_scan(shared->scan[0]).ExclusiveSum(own, above);
        warp_scan(shared->scan[1]).ExclusiveSum(own_earlier, above_earlier);
#pragma unroll
        for (uint32_t i = 0; i < LANE_BINS; i++) {
            if (above < wanted && above + all[i] >= wanted)
                shared->digits[which] = {BINS - 1 - threadIdx.x * LANE_BINS - i, wanted - above,
                                         all[i], above_earlier, earlier[i]};
            above += all[i];
            above_earlier += earlier[i];
        }
    }
    __syncthreads();
}

/* ---- the list ---- */

/* Writes the i-th selected candidate. */
__device__ static inline void write_entry(const select_list &l, uint32_t i, uint32_t c)
{
    if (!l.tokens) {
        if (i < l.room) l.out[i] = c + (l.base >> l.entry_log2);
        return;
    }
    const uint32_t position = cn_sel_position(l.tiles, l.base, l.entry_log2, c);
    const uint32_t end = min((i + 1) << l.entry_log2, l.room), at = i << l.entry_log2;
    for (uint32_t j = at; j < end; j++) l.out[j] = position + (j - at);
}

/* Lists the block's candidates above `lowest`, and those equal to it except the unit's n_skip
 * oldest. above, equal: of the parts before. */
__device__ static inline void list_selected(const select_list &l, const select_vecs &held,
                                            uint32_t lowest, uint32_t n_skip, uint32_t above,
                                            uint32_t equal, select_shared *shared)
{
    for (uint32_t chunk = l.first; chunk < l.end; chunk += CHUNK) {
        const select_vecs s = chunk == l.first ? held : load_chunk(l, chunk);
        uint32_t own = 0, before, all; /* numbers of both kinds: above | equal << 16 */
#pragma unroll
        for (uint32_t i = 0; i < VECS * SCORES; i++) {
            const uint32_t score = score_at(s, i);
            if (score < lowest || !has_candidate(l, chunk, i, candidate(l, chunk, i))) continue;
            own += score > lowest ? 1 : 1u << 16;
        }
        block_scan(shared->block).ExclusiveSum(own, before, all);
        uint32_t n_above = above + (before & 0xffff), n_equal = equal + (before >> 16);
#pragma unroll
        for (uint32_t i = 0; own > 0 && i < VECS * SCORES; i++) {
            const uint32_t score = score_at(s, i), c = candidate(l, chunk, i);
            if (score < lowest || !has_candidate(l, chunk, i, c)) continue;
            if (score > lowest || n_equal >= n_skip)
                write_entry(l, n_above + max(n_equal, n_skip) - n_skip, c);
            n_above += score > lowest;
            n_equal += score == lowest;
        }
        above += all & 0xffff;
        equal += all >> 16;
        __syncthreads(); /* the next scan uses the same memory */
    }
}

/* Returns the candidates of the block's part of the unit. */
template <uint32_t PARTS>
__device__ static inline select_list open_list(const cn_select_args &a, const cn_sel_unit &u,
                                               const cn_sel_stage &stage, uint32_t n_forced)
{
    select_list l = {};
    l.n = a.n[u.seq];
    l.score = a.score + cn_sel_first(u, a.first[u.seq], l.n, a.n_layers, a.n_kv_heads);
    l.base = a.base[u.seq];
    l.entry_log2 = stage.entry_log2;
    if (stage.in_tiles) l.tiles = a.tiles + (size_t)u.index * a.tile_stride;
    l.tokens = a.tokens;
    l.out = a.list + (size_t)u.index * a.list_stride + n_forced;
    l.room = a.list_stride - n_forced;
    l.part = blockIdx.x % PARTS;
    l.skew = (uint32_t)((uintptr_t)l.score / sizeof *l.score % SCORES);
    const uint32_t n_vecs = (l.n + l.skew + SCORES - 1) / SCORES;
    const uint32_t each = (n_vecs + PARTS - 1) / PARTS;
    l.first = min(l.part * each, n_vecs);
    l.end = min(l.first + each, n_vecs);
    return l;
}

template <uint32_t PARTS>
__global__ static void __launch_bounds__(THREADS, 2)
    select_kernel(const __grid_constant__ cn_select_args a)
{
    __shared__ select_shared shared;
    for (uint32_t i = threadIdx.x; i < BINS * HIGH_COPIES; i += THREADS) shared.high[i] = 0;
    for (uint32_t i = threadIdx.x; i < BINS * LOW_COPIES; i += THREADS) shared.low[i] = 0;
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x / PARTS, a.n_layers, a.n_kv_heads);
    cn_overlap_next();
    cn_wait_previous();
    const cn_sel_stage stage = a.stage[u.seq];
    if (!stage.active) return;
    const uint32_t n_forced = a.tokens ? min(a.n_forced[u.seq], a.list_stride) : 0;
    const select_list l = open_list<PARTS>(a, u, stage, n_forced);
    const uint32_t k = min(a.k[u.seq], l.n);
    for (uint32_t i = threadIdx.x; l.part == 0 && i < n_forced; i += THREADS)
        a.list[(size_t)u.index * a.list_stride + i] = i;
    if (k == 0) return;
    const select_vecs held = load_chunk(l, l.first);
    __syncthreads(); /* the histograms are cleared */
    count_high(l, held, &shared);
    find_digit<PARTS>(l, 0, k, &shared);
    const select_digit high = shared.digits[0];
    count_low(l, held, high.digit, &shared);
    find_digit<PARTS>(l, 1, high.wanted, &shared);
    const select_digit low = shared.digits[1];
    if (PARTS > 1) cn_group_cluster_arrive(); /* this block has read the others' histograms */
    list_selected(l, held, high.digit << 8 | low.digit, low.n - low.wanted, high.above + low.above,
                  low.equal, &shared);
    if (PARTS > 1) cn_group_cluster_wait(); /* the others may still read this block's */
}

extern "C" cn_status cn_cuda_select(cn_stream *s, const cn_select_args *a)
{
    const uint32_t n_units = a->n_seqs * a->n_layers * a->n_kv_heads;
    if (n_units == 0) return CN_OK;
    if (!s->cuda->device.hopper)
        return cn_cuda_launch(s, "select", select_kernel<1>, {dim3(n_units), THREADS}, *a);
    cn_launch how = {dim3(n_units * CLUSTER), THREADS};
    how.cluster = CLUSTER;
    return cn_cuda_launch(s, "select", select_kernel<CLUSTER>, how, *a);
}
