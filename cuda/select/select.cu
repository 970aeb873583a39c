/* select.cu - select: the best candidates of each unit, in ascending order.
 * In: score u16, ragged as in cn_score_args. Out: list [units, list_stride]. A unit is a cluster of
 * 8, 4 or 2 blocks, each with a part of the candidates, or one block: without clusters, for tiles,
 * which are few, and in a launch of so many units that one block each fills the GPU. A graph does
 * not know the number of candidates, so the number of blocks depends on the number of units alone,
 * and the list on neither. Block 256. Small blocks leave room for those of the next kernel, so that
 * its launch is hidden.
 *
 * Two histograms of 8 bits find the lowest selected score. Each block stores its histogram into the
 * shared memory of all blocks of the unit. An mbarrier there counts the bytes that arrive. The
 * barrier of the cluster takes longer, because it orders all memory accesses with a fence of the
 * whole device. Each block then finds the same score, and how many selected candidates the parts
 * before its own have. Then it lists its own: each thread has some candidates in a row, and a scan
 * of their numbers says where they go. Few candidates are spread over all threads, so that each
 * thread has few steps.
 *
 * Where `score` counts the scores that it has stored (cn_score_launch), a block waits for those
 * of its unit only, and not for the end of `score`. The counts of high bytes are the first
 * histogram.
 *
 * The last blocks end some microseconds after the others, because clusters that find no room beside
 * `score` share the multiprocessors that become free first. With `done` the blocks of
 * attn_lists fetch their first tiles as soon as the lists of these tiles are finished. The first
 * block of a unit clears its count before it lets attn_lists start. It need not wait for the
 * kernels before: `score` has waited for the attention that read the count last. Each block adds
 * its part when it has stored its entries.
 *
 * Bytes read: 2 n per unit, three times from the L2 cache where they exceed the registers. Bytes
 * written: 4 per list entry. CPU version: cpu_sel_list.c. */
#include <cub/block/block_scan.cuh>

#include "cuda/hopper.cuh"
#include "cuda/select/select.cuh"
#include "cuda/select/select_route.h"

enum {
    THREADS = 256,
    SCORES = 8, /* of a vector of 16 bytes */
    VECS = 4,   /* most vectors of a thread in a chunk */
    BINS = 256,
    BIN_VECS = BINS / 4, /* vectors of a histogram */
    FRONT = 4            /* bins in front of a histogram, and after it: a vector */
};
static_assert(VECS * SCORES <= 32, "a thread's candidates of a chunk are bits of a word");
static_assert(BINS == THREADS, "a thread has a bin");

typedef cub::BlockScan<uint32_t, THREADS, cub::BLOCK_SCAN_WARP_SCANS> block_scan;
typedef cub::BlockScan<unsigned long long, THREADS, cub::BLOCK_SCAN_WARP_SCANS> bin_scan;

/* A digit of the lowest selected score. */
typedef struct select_digit {
    uint32_t digit;
    uint32_t wanted; /* how many of the counted scores with this digit are selected */
    uint32_t n;      /* the number of counted scores with this digit */
    /* Scores of the parts before that are above the lowest selected one, or equal to it. Set with
     * the low digit. */
    uint32_t above, equal;
} select_digit;

template <uint32_t PARTS> struct select_shared {
    /* By digit: the block's histogram, and with clusters those of all parts. `arrived` counts the
     * bytes of the latter. Bin -1, in front: scores that are not counted. Bin BINS: those whose
     * high byte is larger than that of the low bytes. */
    alignas(16) uint32_t bins[2][FRONT + BINS + FRONT];
    alignas(16) uint32_t parts[2][PARTS][BINS + FRONT];
    uint64_t arrived[2];
    select_digit digits[2];
    bin_scan::TempStorage scan;
    block_scan::TempStorage block;
};

static_assert(sizeof(select_shared<4>) + CN_LAUNCH_RESERVED <= CN_SELECT_BLOCK_BYTES,
              "shared memory of a block");

/* A unit's candidates, and how the selected ones are written. */
typedef struct select_list {
    const uint4 *vecs; /* from the 16-byte boundary before the first score on */
    uint32_t n;
    /* Candidate c is number (c << log2) + offset, or number c % tile of tile tiles[c / tile]. The
     * list gets 1 << log2 numbers from there on. */
    const uint32_t *tiles;
    uint32_t offset, log2;
    uint32_t *out; /* after the forced positions */
    uint32_t room; /* numbers of out */
    /* Candidate c is score (c + skew) % 8 of vector (c + skew) / 8. This block has the vectors
     * [first, end), and a thread has `per` of each chunk. */
    uint32_t skew, first, end, per, part;
} select_list;

/* A thread's scores of a chunk, one after the other. Bit i of `valid`: score i is of a candidate of
 * the block's part. */
typedef struct select_scores {
    uint4 v[VECS];
    uint32_t valid;
    uint32_t first; /* candidate of score 0; wraps around before the unit's first one */
    /* Candidates below `split` are number (c << log2) + offset, the others + offset_behind. */
    uint32_t split, offset, offset_behind;
} select_scores;

/* ---- candidates ---- */

__device__ static inline uint32_t held_score(const select_scores &s, uint32_t i)
{
    const uint4 v = s.v[i / SCORES];
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return words[i % SCORES / 2] >> (16 * (i % 2)) & 0xffffu;
}

/* Returns a word with the lowest n bits set, n <= 32. */
__device__ static inline uint32_t low_bits(uint32_t n)
{
    return n < 32 ? (1u << n) - 1 : 0xffffffffu;
}

/* Sets how the thread's candidates are numbered. They lie in at most two tiles. */
__device__ static inline void number(const select_list &l, select_scores *s)
{
    static_assert(VECS * SCORES <= CN_DIGEST_TILE, "a thread's candidates lie in two tiles");
    s->offset = s->offset_behind = l.offset;
    if (!l.tiles || s->valid == 0) return;
    const uint32_t from = (s->first + (uint32_t)__ffs((int)s->valid) - 1) / CN_DIGEST_TILE;
    const uint32_t last = (s->first + 31 - (uint32_t)__clz((int)s->valid)) / CN_DIGEST_TILE;
    s->split = (from + 1) * CN_DIGEST_TILE;
    s->offset = (l.tiles[from] - from) * CN_DIGEST_TILE;
    s->offset_behind = (l.tiles[last] - last) * CN_DIGEST_TILE;
}

/* chunk: its first vector. Scores around the unit's own are read too, up to 16-byte boundaries. */
__device__ static inline select_scores load_chunk(const select_list &l, uint32_t chunk)
{
    const uint32_t first = min(chunk + threadIdx.x * l.per, l.end), n = min(l.per, l.end - first);
    select_scores s = {};
    s.first = first * SCORES - l.skew;
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++)
        if (k < n) s.v[k] = l.vecs[first + k];
    const uint32_t begin = max(first * SCORES, l.skew) - first * SCORES;
    const uint32_t end = min((first + n) * SCORES, l.skew + l.n) - first * SCORES;
    s.valid = n > 0 ? low_bits(end) & ~low_bits(begin) : 0;
    number(l, &s);
    return s;
}

/* Calls f with the thread's scores of each chunk of the block's part. held: those of the first. */
template <typename F>
__device__ static inline void each_chunk(const select_list &l, const select_scores &held, F f)
{
    const uint32_t step = THREADS * l.per;
    select_scores s = held;
    for (uint32_t chunk = l.first; chunk < l.end; chunk += step) {
        select_scores next = {};
        if (chunk + step < l.end) next = load_chunk(l, chunk + step);
        f(s);
        s = next;
    }
}

/* ---- the lowest selected score ---- */

/* Counts a thread's scores. WHOLE: all of them are candidates. */
template <bool WHOLE>
__device__ static inline void count_chunk(const select_list &l, const select_scores &s,
                                          uint32_t which, uint32_t high, uint32_t *bins)
{
#pragma unroll
    for (uint32_t k = 0; k < VECS; k++) {
        if (k >= l.per) break;
#pragma unroll
        for (uint32_t i = k * SCORES; i < (k + 1) * SCORES; i++) {
            const uint32_t score = held_score(s, i);
            const int low = (int)score - (int)(high << 8);
            int bin = which == 0 ? (int)(score >> 8) : max(min(low, (int)BINS), -1);
            if (!WHOLE && !(s.valid >> i & 1)) bin = -1;
            atomicAdd(&bins[bin], 1u);
        }
    }
}

/* Counts the high bytes of the block's scores (which 0), or the low bytes of those with the high
 * byte `high` (which 1). Other scores have a bin, too, because a branch takes longer.
 * cub::BlockHistogram counts by the same atomics, but all candidates. */
template <uint32_t PARTS>
__device__ static inline void count_bins(const select_list &l, const select_scores &held,
                                         uint32_t which, uint32_t high,
                                         select_shared<PARTS> *shared)
{
    uint32_t *bins = shared->bins[which] + FRONT;
    each_chunk(l, held, [=](const select_scores &s) {
        if (__all_sync(0xffffffffu, s.valid == low_bits(l.per * SCORES)))
            count_chunk<true>(l, s, which, high, bins);
        else
            count_chunk<false>(l, s, which, high, bins);
    });
}

/* Stores the block's histogram into the shared memory of all blocks of the unit, and waits for
 * those of the others. */
template <uint32_t PARTS>
__device__ static inline void share_bins(uint32_t which, uint32_t part,
                                         select_shared<PARTS> *shared)
{
    __syncthreads(); /* the block's scores are counted */
#if __CUDA_ARCH__ >= 900
    if (PARTS == 1) return;
    const uint32_t i = threadIdx.x % BIN_VECS;
    const uint4 *bins = (const uint4 *)(shared->bins[which] + FRONT);
    uint4 *to = (uint4 *)shared->parts[which][part];
    const uint4 own = bins[i];
    for (uint32_t p = threadIdx.x / BIN_VECS; p < PARTS; p += THREADS / BIN_VECS)
        cn_cluster_store(to + i, own, &shared->arrived[which], p);
    if (threadIdx.x < PARTS) /* the vector behind */
        cn_cluster_store(to + BIN_VECS, bins[BIN_VECS], &shared->arrived[which], threadIdx.x);
    cn_barrier_wait(&shared->arrived[which], 0);
#endif
}

/* Returns how many scores of part p have a digit. */
template <uint32_t PARTS>
__device__ static inline uint32_t bin_of_part(uint32_t which, uint32_t p, uint32_t digit,
                                              const select_shared<PARTS> *shared)
{
    return PARTS > 1 ? shared->parts[which][p][digit] : shared->bins[which][FRONT + digit];
}

/* A thread's digit: the first thread has the largest one. */
__device__ static inline uint32_t own_digit(void) { return BINS - 1 - threadIdx.x; }

/* The high bytes of the block's scores are counted. Returns how many scores of the unit have the
 * thread's digit. */
template <uint32_t PARTS>
__device__ static inline uint32_t unit_high(uint32_t part, select_shared<PARTS> *shared)
{
    uint32_t n = 0;
    share_bins(0, part, shared);
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) n += bin_of_part(0, p, own_digit(), shared);
    return n;
}

/* Finds the high byte of the wanted-th largest score. n: the scores with the thread's digit. */
template <uint32_t PARTS>
__device__ static inline select_digit find_high(uint32_t n, uint32_t wanted,
                                                select_shared<PARTS> *shared)
{
    uint32_t above;
    block_scan(shared->block).ExclusiveSum(n, above);
    if (above < wanted && wanted - above <= n)
        shared->digits[0] = {own_digit(), wanted - above, n, 0, 0};
    __syncthreads();
    return shared->digits[0];
}

/* Counts the low bytes of the scores with the high byte `high`, and finds the digit. */
template <uint32_t PARTS>
__device__ static inline select_digit find_low(const select_list &l, const select_scores &held,
                                               const select_digit &high,
                                               select_shared<PARTS> *shared)
{
    count_bins(l, held, 1, high.digit, shared);
    share_bins(1, l.part, shared);
    uint32_t n = 0, earlier = 0, larger = 0; /* of all parts; of those before this one */
#pragma unroll
    for (uint32_t p = 0; p < PARTS; p++) {
        const uint32_t more = bin_of_part(1, p, own_digit(), shared);
        n += more;
        earlier += p < l.part ? more : 0;
        larger += p < l.part ? bin_of_part(1, p, BINS, shared) : 0;
    }
    unsigned long long before; /* sums of both, n in the low half */
    bin_scan(shared->scan).ExclusiveSum((unsigned long long)earlier << 32 | n, before);
    const uint32_t above = (uint32_t)before;
    if (above < high.wanted && high.wanted - above <= n)
        shared->digits[1] = {own_digit(), high.wanted - above, n, (uint32_t)(before >> 32) + larger,
                             earlier};
    __syncthreads();
    return shared->digits[1];
}

/* ---- the list ---- */

/* Sets bits, as `valid`: which scores are above `bound`, and which are equal to it. */
__device__ static inline void compare_held(const select_list &l, const select_scores &s,
                                           uint32_t bound, uint32_t &above, uint32_t &equal)
{
    uint32_t least = 0; /* above or equal */
    above = 0;
#pragma unroll
    for (uint32_t k = VECS; k-- > 0;) {
        if (k >= l.per) continue;
#pragma unroll
        for (uint32_t i = (k + 1) * SCORES; i-- > k * SCORES;) {
            const uint32_t score = held_score(s, i);
            above = above << 1 | (bound - score) >> 31;
            least = least << 1 | (bound - 1 - score) >> 31;
        }
    }
    above &= s.valid;
    equal = least & s.valid & ~above;
}

/* Writes the selected candidates `taken`, bits as `valid`. i: how many are before them. */
__device__ static inline void write_taken(const select_list &l, const select_scores &s,
                                          uint32_t taken, uint32_t i)
{
    for (; taken > 0; taken &= taken - 1, i++) {
        const uint32_t c = s.first + (uint32_t)__ffs((int)taken) - 1;
        const uint32_t number = (c << l.log2) + (c < s.split ? s.offset : s.offset_behind);
        if (l.log2 == 0) {
            if (i < l.room) l.out[i] = number;
            continue;
        }
        const uint32_t at = i << l.log2, end = min((i + 1) << l.log2, l.room);
        for (uint32_t j = at; j < end; j++) l.out[j] = number + (j - at);
    }
}

/* Lists the block's candidates above `lowest`, and those equal to it except the unit's n_skip
 * oldest. above, equal: of the parts before. */
template <uint32_t PARTS>
__device__ static inline void list_selected(const select_list &l, const select_scores &held,
                                            uint32_t lowest, uint32_t n_skip, uint32_t above,
                                            uint32_t equal, select_shared<PARTS> *shared)
{
    each_chunk(l, held, [&](const select_scores &s) {
        uint32_t is_above, is_equal, before, all; /* numbers of both kinds: above | equal << 16 */
        compare_held(l, s, lowest, is_above, is_equal);
        block_scan(shared->block)
            .ExclusiveSum((uint32_t)(__popc(is_above) | __popc(is_equal) << 16), before, all);
        const uint32_t n_above = above + (before & 0xffff);
        uint32_t n_equal = equal + (before >> 16);
        for (; n_equal < n_skip && is_equal > 0; n_equal++) is_equal &= is_equal - 1;
        write_taken(l, s, is_above | is_equal, n_above + max(n_equal, n_skip) - n_skip);
        above += all & 0xffff;
        equal += all >> 16;
        __syncthreads(); /* the next scan uses the same memory */
    });
}

/* The numbers of a sequence. They are loaded together, so a sequence without the stage has n = k =
 * n_forced = 0 instead of a branch. */
typedef struct select_row {
    cn_sel_stage stage;
    uint32_t first, n, base, k, n_forced;
} select_row;

__device__ static inline select_row load_select_row(const cn_select_args &a, uint32_t seq)
{
    select_row r;
    r.stage = a.stage[seq];
    r.first = a.first[seq];
    r.base = a.base[seq];
    const uint32_t n = a.n[seq], k = a.k[seq], n_forced = a.tokens ? a.n_forced[seq] : 0;
    r.n = r.stage.active ? n : 0;
    r.k = r.stage.active ? k : 0;
    r.n_forced = r.stage.active ? n_forced : 0;
    return r;
}

/* Returns the candidates of the block's part of the unit. */
template <uint32_t PARTS>
__device__ static inline select_list open_list(const cn_select_args &a, const cn_sel_unit &u,
                                               const select_row &r, uint32_t n_forced)
{
    const uint16_t *score = a.score + cn_sel_first(u, r.first, r.n, a.n_layers, a.n_kv_heads);
    select_list l = {};
    l.n = r.n;
    if (a.tokens && r.stage.in_tiles) l.tiles = a.tiles + (size_t)u.index * a.tile_stride;
    l.offset = a.tokens ? r.base : r.base >> r.stage.entry_log2;
    l.log2 = a.tokens ? r.stage.entry_log2 : 0;
    l.out = a.list + (size_t)u.index * a.list_stride + n_forced;
    l.room = a.list_stride - n_forced;
    l.part = blockIdx.x % PARTS;
    l.skew = (uint32_t)((uintptr_t)score / sizeof *score % SCORES);
    l.vecs = (const uint4 *)(score - l.skew);
    const uint32_t n_vecs = l.n > 0 ? (l.n + l.skew + SCORES - 1) / SCORES : 0;
    const uint32_t each = (n_vecs + PARTS - 1) / PARTS;
    l.first = min(l.part * each, n_vecs);
    l.end = min(l.first + each, n_vecs);
    l.per = min((l.end - l.first + THREADS - 1) / THREADS, (uint32_t)VECS);
    return l;
}

/* Clears the histograms. With clusters, waits until all blocks of the unit are ready for those of
 * the others. */
template <uint32_t PARTS> __device__ static inline void open_shared(select_shared<PARTS> *shared)
{
    shared->bins[0][FRONT + threadIdx.x] = shared->bins[1][FRONT + threadIdx.x] = 0;
    if (threadIdx.x < FRONT) shared->bins[1][FRONT + BINS + threadIdx.x] = 0;
#if __CUDA_ARCH__ >= 900
    if (PARTS > 1 && threadIdx.x == 0) {
        for (uint32_t i = 0; i < 2; i++) cn_barrier_init(&shared->arrived[i], 1);
        cn_barrier_init_done();
        for (uint32_t i = 0; i < 2; i++)
            cn_barrier_expect(&shared->arrived[i], sizeof shared->parts[i]);
    }
#endif
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (PARTS > 1) cn_cluster_meet();
#endif
}

/* Starts the next kernel, after the unit's list is marked as unfinished. Called first. */
__device__ static inline void begin_list(uint32_t *done, const cn_sel_unit &u, uint32_t part)
{
    if (threadIdx.x > 0) return;
    if (done && part == 0) {
        done[u.index] = 0;
        __threadfence();
    }
    cn_overlap_next();
}

/* Marks the block's part of the list as finished. Called last. */
template <uint32_t PARTS>
__device__ static inline void end_list(uint32_t *done, const cn_sel_unit &u)
{
    static_assert(CN_CUDA_LIST_DONE % PARTS == 0, "each part adds the same number");
    if (!done) return;
    __syncthreads();
    if (threadIdx.x > 0) return;
    cn_count_add(done + u.index, CN_CUDA_LIST_DONE / PARTS);
}

/* Lists the first positions of a sequence. */
__device__ static inline void list_forced(const cn_select_args &a, const cn_sel_unit &u,
                                          uint32_t part, uint32_t n_forced)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x; part == 0 && i < n_forced; i += THREADS)
        a.list[(size_t)u.index * a.list_stride + i] = i;
}

/* Clears the counts of a unit for the next `score`. No block of the unit reads them any more. */
__device__ static inline void clear_counts(uint32_t *counts)
{
    static_assert(CN_COUNTS <= 2 * THREADS, "a thread has at most two");
    counts[threadIdx.x] = 0;
    if (THREADS + threadIdx.x < CN_COUNTS) counts[THREADS + threadIdx.x] = 0;
}

/* The arrays of the step are read before the wait. `score` lets the next kernel start only after it
 * has waited for all kernels that write them. A kernel between it and this one is one of `score`.
 *
 * A block must not end while others of its cluster may still store into its shared memory. It waits
 * for the last histograms of all of them, and nothing is stored there afterwards. The blocks of a
 * unit that selects nothing exchange nothing.
 *
 * unit_counts: those of all units, if `score` counts what it stores, else NULL. With them a block
 * waits for the end of `score` when its work is done. */
template <uint32_t PARTS>
__global__ static void __launch_bounds__(THREADS, 4)
    select_kernel(const __grid_constant__ cn_select_args a, uint32_t *unit_counts, uint32_t *done)
{
    __shared__ select_shared<PARTS> shared;
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x / PARTS, a.n_layers, a.n_kv_heads);
    begin_list(done, u, blockIdx.x % PARTS);
    cn_touch_params(a);
    open_shared(&shared);
    const select_row r = load_select_row(a, u.seq);
    const uint32_t n_forced = min(r.n_forced, a.list_stride), k = min(r.k, r.n);
    const select_list l = open_list<PARTS>(a, u, r, n_forced);
    uint32_t *counts = unit_counts ? unit_counts + (size_t)u.index * CN_COUNTS : NULL;
    if (!counts) cn_wait_previous();
    else if (k > 0 || l.part == 0) cn_count_wait(counts + CN_COUNT_STORED, r.n);
    const select_scores held = load_chunk(l, l.first);
    uint32_t n_high = counts ? counts[own_digit()] : 0;
    list_forced(a, u, l.part, n_forced);
    if (k > 0) {
        if (!counts) {
            count_bins(l, held, 0, 0, &shared);
            n_high = unit_high(l.part, &shared);
        }
        const select_digit high = find_high(n_high, k, &shared);
        const select_digit low = find_low(l, held, high, &shared);
        if (counts && l.part == 0) clear_counts(counts);
        list_selected(l, held, high.digit << 8 | low.digit, low.n - low.wanted, low.above,
                      low.equal, &shared);
    } else if (counts && l.part == 0) {
        clear_counts(counts); /* no other block waits for them */
    }
    end_list<PARTS>(done, u);
    if (counts) cn_wait_previous(); /* every kernel must: see launch.cuh */
}

template <uint32_t PARTS>
static cn_status launch_select(cn_stream *s, const cn_select_args *a, uint32_t n_units,
                               uint32_t *counts, uint32_t *done)
{
    cn_launch how = {dim3(n_units * PARTS), THREADS};
    if (PARTS > 1) how.cluster = PARTS;
    return cn_cuda_launch(s, "select", select_kernel<PARTS>, how, *a, counts, done);
}

cn_status cn_select_launch(cn_stream *s, const cn_select_args *a, bool few, uint32_t *counts,
                           uint32_t *done)
{
    const uint32_t n_units = a->n_seqs * a->n_layers * a->n_kv_heads;
    if (n_units == 0) return CN_OK;
    /* More blocks than these would take longer to launch than they save. Those of few candidates
     * all start beside `score`. */
    const cn_cuda_device *dev = &s->cuda->device;
    const bool clusters = dev->hopper && a->tokens;
    if (clusters && !few && 8 * n_units <= 3 * dev->n_sms)
        return launch_select<8>(s, a, n_units, counts, done);
    if (clusters && (few ? 4 * n_units : n_units) <= dev->n_sms)
        return launch_select<4>(s, a, n_units, counts, done);
    if (clusters && n_units <= 2 * dev->n_sms) return launch_select<2>(s, a, n_units, counts, done);
    return launch_select<1>(s, a, n_units, counts, done);
}

extern "C" cn_status cn_cuda_select(cn_stream *s, const cn_select_args *a)
{
    return cn_select_launch(s, a, false, NULL, NULL);
}
