/* select.cu - select: the best candidates of each unit, in ascending order.
 * In: score u16, ragged as in cn_score_args. Out: list [units, list_stride]. A unit is a cluster of
 * CLUSTER blocks, each with a part of the candidates. It is one block without clusters, for tiles,
 * which are few, and in a launch of so many units that one block each fills the GPU. A graph does
 * not know the number of candidates, so the number of blocks depends on the number of units alone,
 * and the list on neither. Block 256. Small blocks leave room for those of the next kernel, so that
 * its launch is hidden.
 *
 * Two histograms of 8 bits find the lowest selected score. Blocks read each other's histograms, so
 * each finds the same score, and how many selected candidates the parts before its own have. Then
 * it lists its own: each thread has some candidates in a row, and a scan of their numbers says
 * where they go. Bytes read: 2 n per unit, three times from the L2 cache where they exceed the
 * registers. Bytes written: 4 per list entry. CPU version: cpu_sel_list.c. */
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

#include "cuda/group.cuh"
#include "cuda/select/select.cuh"

enum {
    CLUSTER = 4,
    THREADS = 256,
    SCORES = 8, /* of a vector of 16 bytes */
    VECS = 4,   /* of a thread in a chunk */
    CHUNK = THREADS * VECS,
    BINS = 256,
    LANE_BINS = BINS / CN_WARP
};
static_assert(VECS * SCORES <= 32, "a thread's candidates of a chunk are bits of a word");
static_assert(BINS == THREADS, "a thread clears its bin");

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
    alignas(16) uint32_t bins[2][BINS]; /* histograms of both digits; read by other blocks */
    select_digit digits[2];
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

/* A thread's scores of a chunk, one after the other. Bit i of `valid`: score i is of a candidate of
 * the block's part. */
typedef struct select_scores {
    uint4 v[VECS];
    uint32_t valid;
    uint32_t first; /* candidate of score 0; wraps around before the unit's first one */
} select_scores;

/* ---- candidates ---- */

__device__ static inline uint32_t score_at(const select_scores &s, uint32_t i)
{
    const uint4 v = s.v[i / SCORES];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return words[i % SCORES / 2] >> (16 * (i % 2)) & 0xffffu;
}

/* chunk: its first vector. */
__device__ static inline select_scores load_chunk(const select_list &l, uint32_t chunk)
{
    const uint32_t first = chunk + threadIdx.x * VECS;
    select_scores s = {};
    s.first = first * SCORES - l.skew;
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++) {
        const uint32_t c = s.first + k * SCORES;
        if (first + k >= l.end) continue;
        if (c < l.n && l.n - c >= SCORES) {
            s.v[k] = *(const uint4 *)(l.score + c);
            s.valid |= 0xffu << (k * SCORES);
            continue;
        }
        uint32_t words[4] = {};
#pragma unroll
        for (uint32_t i = 0; i < SCORES; i++) {
            if (c + i >= l.n) continue;
            words[i / 2] |= (uint32_t)l.score[c + i] << (16 * (i % 2));
            s.valid |= 1u << (k * SCORES + i);
        }
        s.v[k] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return s;
}

/* Calls f with the thread's scores of each chunk of the block's part. held: those of the first. */
template <typename F>
__device__ static inline void each_chunk(const select_list &l, const select_scores &held, F f)
{
    select_scores s = held;
    for (uint32_t chunk = l.first; chunk < l.end; chunk += CHUNK) {
        select_scores next = {};
        if (chunk + CHUNK < l.end) next = load_chunk(l, chunk + CHUNK);
        f(s);
        s = next;
    }
}

/* ---- the lowest selected score ---- */

/* All threads of the unit wait for each other. */
template <uint32_t PARTS> __device__ static inline void unit_barrier(void)
{
    if (PARTS > 1) cn_group_cluster_barrier();
    else __syncthreads();
}

/* Counts the high bytes of the block's scores (which 0), or the low bytes of those with the high
 * byte `high` (which 1). cub::BlockHistogram counts by the same atomics, but all candidates. */
__device__ static inline void count(const select_list &l, const select_scores &held, uint32_t which,
                                    uint32_t high, select_shared *shared)
{
    uint32_t *bins = shared->bins[which];
    each_chunk(l, held, [=](const select_scores &s) {
#pragma unroll
        for (uint32_t i = 0; i < VECS * SCORES; i++) {
            const uint32_t score = score_at(s, i), digit = which == 0 ? score >> 8 : score & 0xff;
            if ((s.valid >> i & 1) && (which == 0 || score >> 8 == high))
                atomicAdd(&bins[digit], 1u);
        }
    });
}

/* Adds up the histograms of the unit's blocks. all, earlier: this lane's bins from the largest
 * digit down, of all parts and of those before `part`. */
template <uint32_t PARTS>
__device__ static inline void add_parts(const uint32_t *bins, uint32_t part,
                                        uint32_t all[LANE_BINS], uint32_t earlier[LANE_BINS])
{
    const uint32_t first = BINS - (threadIdx.x + 1) * LANE_BINS;
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) {
        const void *from = bins + first;
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
        add_parts<PARTS>(shared->bins[which], l.part, all, earlier);
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
__device__ static inline void list_selected(const select_list &l, const select_scores &held,
                                            uint32_t lowest, uint32_t n_skip, uint32_t above,
                                            uint32_t equal, select_shared *shared)
{
    each_chunk(l, held, [&](const select_scores &s) {
        uint32_t is_above = 0, is_equal = 0; /* by bits, as `valid` */
#pragma unroll
        for (uint32_t i = 0; i < VECS * SCORES; i++) {
            is_above |= (uint32_t)(score_at(s, i) > lowest) << i;
            is_equal |= (uint32_t)(score_at(s, i) == lowest) << i;
        }
        is_above &= s.valid;
        is_equal &= s.valid;
        uint32_t before, all; /* numbers of both kinds: above | equal << 16 */
        block_scan(shared->block)
            .ExclusiveSum((uint32_t)(__popc(is_above) | __popc(is_equal) << 16), before, all);
        uint32_t n_above = above + (before & 0xffff), n_equal = equal + (before >> 16);
        for (uint32_t left = is_above | is_equal; left > 0; left &= left - 1) {
            const uint32_t i = (uint32_t)__ffs((int)left) - 1, one = is_above >> i & 1;
            if (one || n_equal >= n_skip)
                write_entry(l, n_above + max(n_equal, n_skip) - n_skip, s.first + i);
            n_above += one;
            n_equal += 1 - one;
        }
        above += all & 0xffff;
        equal += all >> 16;
        __syncthreads(); /* the next scan uses the same memory */
    });
}

/* The numbers of a sequence, loaded together. */
typedef struct select_row {
    cn_sel_stage stage;
    uint32_t first, n, base, k, n_forced;
} select_row;

__device__ static inline select_row load_row(const cn_select_args &a, uint32_t seq)
{
    select_row r;
    r.stage = a.stage[seq];
    r.first = a.first[seq];
    r.n = a.n[seq];
    r.base = a.base[seq];
    r.k = a.k[seq];
    r.n_forced = a.tokens ? a.n_forced[seq] : 0;
    return r;
}

/* Returns the candidates of the block's part of the unit. */
template <uint32_t PARTS>
__device__ static inline select_list open_list(const cn_select_args &a, const cn_sel_unit &u,
                                               const select_row &r, uint32_t n_forced)
{
    select_list l = {};
    l.n = r.n;
    l.score = a.score + cn_sel_first(u, r.first, r.n, a.n_layers, a.n_kv_heads);
    l.base = r.base;
    l.entry_log2 = r.stage.entry_log2;
    if (r.stage.in_tiles) l.tiles = a.tiles + (size_t)u.index * a.tile_stride;
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
__global__ static void __launch_bounds__(THREADS, 4)
    select_kernel(const __grid_constant__ cn_select_args a)
{
    __shared__ select_shared shared;
    shared.bins[0][threadIdx.x] = shared.bins[1][threadIdx.x] = 0;
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x / PARTS, a.n_layers, a.n_kv_heads);
    cn_overlap_next();
    cn_wait_previous();
    const select_row r = load_row(a, u.seq);
    if (!r.stage.active) return;
    const uint32_t n_forced = min(r.n_forced, a.list_stride), k = min(r.k, r.n);
    const select_list l = open_list<PARTS>(a, u, r, n_forced);
    const select_scores held = load_chunk(l, l.first);
    for (uint32_t i = threadIdx.x; l.part == 0 && i < n_forced; i += THREADS)
        a.list[(size_t)u.index * a.list_stride + i] = i;
    if (k == 0) return;
    __syncthreads(); /* the histograms are cleared */
    count(l, held, 0, 0, &shared);
    find_digit<PARTS>(l, 0, k, &shared);
    const select_digit high = shared.digits[0];
    count(l, held, 1, high.digit, &shared);
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
    /* With more units than multiprocessors, launching clusters takes longer than their work. */
    const cn_cuda_device *dev = &s->cuda->device;
    if (!dev->hopper || !a->tokens || n_units > dev->n_sms)
        return cn_cuda_launch(s, "select", select_kernel<1>, {dim3(n_units), THREADS}, *a);
    cn_launch how = {dim3(n_units * CLUSTER), THREADS};
    how.cluster = CLUSTER;
    return cn_cuda_launch(s, "select", select_kernel<CLUSTER>, how, *a);
}
