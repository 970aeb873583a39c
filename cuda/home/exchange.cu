/* exchange.cu - exchange: replaces entries of the exchange areas by better candidates.
 * In: score u16, ragged as in cn_score_args; chosen [L, n_slots, hk, chosen_stride]. Out: chosen in
 * place, moves [units, move_stride], n_moves and n_missed [units]. Grid units, 256 threads.
 *
 * Marks are bits in shared memory, for a window of 65,536 candidates: held and chosen. They are set
 * once if all candidates fit in a window, else again in each pass. Two histograms of 8 bits count
 * the candidates that are not held and find the lowest wanted score. A third pass compares each
 * score with it and writes two bits per candidate, above and equal. A scan numbers the equal ones
 * from the oldest on, because only the newest of them are wanted. Wanted candidates that are not
 * chosen are newcomers; a scan places them in a list in shared memory. If there are more newcomers
 * than moves, histograms over (score, candidate) find the last one that moves. Only those that move
 * are sorted. Entries of the area that are not wanted receive them.
 * Bytes read per unit: 2 n of scores from memory and 4 n from the L2 cache; 2 for each newcomer;
 * 8 k of `chosen` and 2 k of scores; 8 for each held slot. With several windows, each of them reads
 * the held slots three times and `chosen` once. Bytes written: 12 for each move. CPU version:
 * cpu_exchange.c. */
#include <cub/block/block_scan.cuh>

#include "cuda/select/select.cuh"

enum {
    THREADS = 256,
    SCORES = 8, /* of a vector of 16 bytes */
    WORD_VECS = 32 / SCORES,
    AT_ONCE = 4,   /* loads that a thread starts before it uses the first */
    WINDOW = 2048, /* words of marks */
    BINS = 256,
    COPIES = 4 /* of a histogram: lanes that meet in a bin wait for each other */
};
static_assert(BINS == THREADS && COPIES == 4, "a thread adds up the copies of a bin");
static_assert(WINDOW % THREADS == 0, "a window is whole chunks");

typedef cub::BlockScan<uint32_t, THREADS, cub::BLOCK_SCAN_WARP_SCANS> block_scan;

/* Candidate c is bit c + skew of the unit's marks, and score (c + skew) % 8 of vector
 * (c + skew) / 8. A chunk is THREADS words of bits. */
typedef struct exchange_unit {
    const uint16_t *score; /* [n] */
    const uint4 *vecs;     /* the same from the 16-byte boundary on */
    uint32_t n, skew, n_vecs, n_words;
    uint32_t k, cap;
    uint32_t log2, first; /* of an entry; number of candidate 0 */
    bool fill;
    uint32_t *chosen; /* [k] */
    cn_move *moves;   /* [room] */
    uint32_t room;
    /* Held slots of the sequence. n_held 0: none. */
    const uint32_t *table, *origin;
    uint32_t n_held, held_from, block_tokens, n_kv_heads;
    size_t side; /* index in origin of slot 0 of block 0 of this layer and head */
} exchange_unit;

/* A digit of the last of the best `wanted` numbers. */
typedef struct exchange_digit {
    uint32_t digit;
    uint32_t wanted; /* how many of the counted numbers with this digit are among the best */
    uint32_t n;      /* the counted numbers with this digit */
} exchange_digit;

typedef struct exchange_shared {
    alignas(16) uint32_t bins[(BINS + 1) * COPIES]; /* the last bin: not counted */
    uint32_t held[WINDOW]; /* take_wanted replaces them by: not held and above the lowest */
    uint32_t chosen[WINDOW];
    uint32_t equal[THREADS]; /* of a chunk: not held and equal to the lowest */
    block_scan::TempStorage scan;
    exchange_digit digit;
    uint32_t oldest;
    exchange_unit unit;
} exchange_shared;

/* The wanted set: candidates that are not held, with a score above `lowest`, or equal to it and not
 * older than `oldest`. */
typedef struct wanted_set {
    uint32_t lowest, oldest;
} wanted_set;

__device__ static inline bool is_wanted(const wanted_set &w, uint32_t score, uint32_t c)
{
    return score > w.lowest || (score == w.lowest && c >= w.oldest);
}

__device__ static inline exchange_unit area_unit_of(const cn_exchange_args &a,
                                                    const cn_sel_unit &at)
{
    const cn_kv_layout &l = a.local.layout;
    const uint32_t layer = a.first_layer + at.row;
    exchange_unit u = {};
    u.n = a.n[at.seq];
    u.k = a.k[at.seq];
    u.fill = a.fill;
    u.cap = a.fill ? u.k : a.cap[at.seq];
    u.log2 = a.entry_log2[at.seq];
    u.first = a.base[at.seq] >> u.log2;
    u.score = a.score + cn_sel_first(at, a.first[at.seq], u.n, a.n_layers, l.n_kv_heads);
    u.skew = (uint32_t)((uintptr_t)u.score / sizeof *u.score % SCORES);
    u.vecs = (const uint4 *)((uintptr_t)u.score / sizeof *u.vecs * sizeof *u.vecs);
    u.n_vecs = (u.n + u.skew + SCORES - 1) / SCORES;
    u.n_words = (u.n_vecs + WORD_VECS - 1) / WORD_VECS;
    u.moves = a.moves + (size_t)at.index * a.move_stride;
    u.room = a.move_stride;
    u.chosen = a.chosen + (((size_t)layer * a.n_slots + a.slots[at.seq]) * l.n_kv_heads + at.head) *
                              a.chosen_stride;
    if (!a.local_tables) return u;
    u.table = a.local_tables + (size_t)at.seq * a.local_stride;
    u.origin = a.local.origin;
    u.n_held = a.n_held[at.seq];
    u.held_from = a.held_from[at.seq];
    u.block_tokens = l.block_tokens;
    u.n_kv_heads = l.n_kv_heads;
    u.side = cn_kv_side(&l, layer, 0, at.head, 0);
    return u;
}

/* ---- steps of a thread block ---- */

/* Calls use(i, load(i)) for i in [first, end). */
template <typename Load, typename Use>
__device__ static inline void for_each(uint32_t first, uint32_t end, Load load, Use use)
{
    for (uint32_t start = first + threadIdx.x; start < end; start += AT_ONCE * THREADS) {
        decltype(load(start)) x[AT_ONCE] = {};
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (start + i * THREADS < end) x[i] = load(start + i * THREADS);
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (start + i * THREADS < end) use(start + i * THREADS, x[i]);
    }
}

/* Returns the sum of v of the threads before this one, and the sum of all in *total. */
__device__ static inline uint32_t scan(uint32_t v, uint32_t *total, exchange_shared *shared)
{
    uint32_t before;
    __syncthreads(); /* the last scan's memory is in use */
    block_scan(shared->scan).ExclusiveSum(v, before, *total);
    return before;
}

/* Counts the digit if `counted`, else counts in a bin that is not read: a branch around the
 * atomicAdd() would take longer. */
__device__ static inline void count_digit(bool counted, uint32_t digit, exchange_shared *shared)
{
    const uint32_t bin = counted ? digit : BINS;
    atomicAdd(&shared->bins[bin * COPIES + threadIdx.x % COPIES], 1u);
}

/* Finds the digit of the wanted-th largest of the counted numbers, and clears the counts. Thread t
 * adds up the copies of bin BINS - 1 - t. */
__device__ static inline exchange_digit find_digit(uint32_t wanted, exchange_shared *shared)
{
    uint32_t all;
    __syncthreads(); /* all is counted */
    uint4 *copies = (uint4 *)shared->bins + (THREADS - 1 - threadIdx.x);
    const uint4 c = *copies;
    *copies = make_uint4(0, 0, 0, 0);
    const uint32_t n = c.x + c.y + c.z + c.w, above = scan(n, &all, shared);
    if (above < wanted && above + n >= wanted)
        shared->digit = {BINS - 1 - threadIdx.x, wanted - above, n};
    __syncthreads();
    return shared->digit;
}

/* ---- marks ---- */

/* Returns the i-th held candidate; a number of n or more is not a candidate. */
__device__ static inline uint32_t held_at(const exchange_unit &u, uint32_t i)
{
    const uint32_t slot = u.held_from + i;
    const size_t block = (size_t)u.table[slot / u.block_tokens] * u.n_kv_heads * u.block_tokens;
    return (u.origin[u.side + block + slot % u.block_tokens] >> u.log2) - u.first;
}

/* Marks the window from word `first` on. Bits of no candidate are marked as held. */
__device__ static inline void mark(const exchange_unit &u, uint32_t first, bool chosen,
                                   exchange_shared *shared)
{
    const auto set_bit = [=](uint32_t *words, uint32_t bit) {
        const uint32_t at = bit - 32 * first;
        if (at < 32 * WINDOW) atomicOr(&words[at / 32], 1u << at % 32);
    };
    const auto set = [=](uint32_t *words, uint32_t c) {
        if (c < u.n) set_bit(words, c + u.skew);
    };
    __syncthreads(); /* the marks before are in use */
    for (uint32_t i = threadIdx.x; i < WINDOW; i += THREADS)
        shared->held[i] = shared->chosen[i] = 0;
    __syncthreads();
    if (threadIdx.x < u.skew) set_bit(shared->held, threadIdx.x);
    const uint32_t behind = u.n + u.skew + threadIdx.x;
    if (behind < 32 * u.n_words) set_bit(shared->held, behind);
    for_each(
        0, u.n_held, [&](uint32_t i) { return held_at(u, i); },
        [&](uint32_t, uint32_t c) { set(shared->held, c); });
    for_each(
        0, chosen && !u.fill ? u.k : 0, [&](uint32_t e) { return u.chosen[e] - u.first; },
        [&](uint32_t, uint32_t c) { set(shared->chosen, c); });
    __syncthreads();
}

/* Calls f(first, end) with the words of each window, after they are marked. */
template <typename F>
__device__ static inline void each_window(const exchange_unit &u, bool chosen,
                                          exchange_shared *shared, F f)
{
    for (uint32_t first = 0; first < u.n_words; first += WINDOW) {
        if (u.n_words > WINDOW) mark(u, first, chosen, shared);
        f(first, min(first + WINDOW, u.n_words));
    }
}

/* Calls f(v, scores) with each vector of words [first, end). Vectors at the edges also have scores
 * that are not the unit's. */
template <typename F>
__device__ static inline void each_vec(const exchange_unit &u, uint32_t first, uint32_t end, F f)
{
    const uint4 *vecs = u.vecs;
    const uint32_t n_vecs = u.n_vecs;
    for_each(
        first * WORD_VECS, end * WORD_VECS,
        [=](uint32_t v) { return v < n_vecs ? vecs[v] : make_uint4(0, 0, 0, 0); }, f);
}

__device__ static inline uint32_t score_at(const uint4 &v, uint32_t i)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    return words[i / 2] >> (16 * (i % 2)) & 0xffffu;
}

/* ---- the wanted set ---- */

/* Finds digits [shift, shift + 8) of the wanted-th best score, whose higher bits are `prefix`. */
__device__ static inline exchange_digit score_digit(const exchange_unit &u, uint32_t shift,
                                                    uint32_t prefix, uint32_t wanted,
                                                    exchange_shared *shared)
{
    each_window(u, false, shared, [=](uint32_t first, uint32_t end) {
        const uint8_t *held = (const uint8_t *)shared->held;
        each_vec(u, first, end, [=](uint32_t v, const uint4 &scores) {
            const uint32_t skipped = held[v - first * WORD_VECS];
#pragma unroll
            for (uint32_t i = 0; i < SCORES; i++) {
                const uint32_t score = score_at(scores, i);
                if (score >> (shift + 8) == prefix)
                    count_digit(!(skipped >> i & 1), score >> shift & (BINS - 1), shared);
            }
        });
    });
    return find_digit(wanted, shared);
}

/* Writes the bits above and equal of a chunk, words [first, end). start: of the window. */
__device__ static inline void compare_chunk(const exchange_unit &u, uint32_t lowest, uint32_t start,
                                            uint32_t first, uint32_t end, exchange_shared *shared)
{
    uint8_t *held = (uint8_t *)shared->held, *equal = (uint8_t *)shared->equal;
    each_vec(u, first, end, [=](uint32_t v, const uint4 &scores) {
        uint32_t is_above = 0, is_equal = 0;
#pragma unroll
        for (uint32_t i = 0; i < SCORES; i++) {
            is_above |= (uint32_t)(score_at(scores, i) > lowest) << i;
            is_equal |= (uint32_t)(score_at(scores, i) == lowest) << i;
        }
        const uint32_t at = v - start * WORD_VECS, counted = ~(uint32_t)held[at];
        held[at] = (uint8_t)(is_above & counted);
        equal[v - first * WORD_VECS] = (uint8_t)(is_equal & counted);
    });
    __syncthreads();
}

/* Takes the candidates with bits in a word, the first as the i-th. With `fill` they go into the
 * area, else into keys[k]. */
__device__ static inline void take_candidates(const exchange_unit &u, uint32_t word, uint32_t bits,
                                              uint32_t i, uint64_t *keys)
{
    for (; bits > 0 && i < u.k; bits &= bits - 1, i++) {
        const uint32_t c = 32 * word + (uint32_t)__ffs((int)bits) - 1 - u.skew;
        if (!u.fill) {
            keys[i] = c;
            continue;
        }
        u.chosen[i] = u.first + c;
        if (i < u.room) u.moves[i] = {i, u.first + c};
    }
}

/* Takes the wanted candidates that are not chosen, in ascending order, and returns their number.
 * The n_skip oldest of those equal to `lowest` are not wanted. Writes the oldest that is to
 * shared->oldest. */
__device__ static inline uint32_t take_wanted(const exchange_unit &u, uint32_t lowest,
                                              uint32_t n_skip, uint64_t *keys,
                                              exchange_shared *shared)
{
    uint32_t n_equal = 0, n_taken = 0; /* of the chunks before */
    each_window(u, true, shared, [&](uint32_t start, uint32_t stop) {
        for (uint32_t first = start; first < stop; first += THREADS) {
            compare_chunk(u, lowest, start, first, min(first + THREADS, stop), shared);
            const uint32_t word = first + threadIdx.x;
            uint32_t bits = 0, equal = 0, chosen = 0, all;
            if (word < stop) {
                bits = shared->held[word - start];
                equal = shared->equal[threadIdx.x];
                chosen = shared->chosen[word - start];
            }
            const uint32_t n = (uint32_t)__popc(equal);
            const uint32_t before = n_equal + scan(n, &all, shared);
            for (uint32_t i = before; i < min(n_skip, before + n); i++) equal &= equal - 1;
            if (before <= n_skip && n_skip < before + n)
                shared->oldest = 32 * word + (uint32_t)__ffs((int)equal) - 1 - u.skew;
            n_equal += all;
            bits = (bits | equal) & ~chosen;
            take_candidates(u, word, bits, n_taken + scan((uint32_t)__popc(bits), &all, shared),
                            keys);
            n_taken += all;
        }
    });
    __syncthreads();
    return n_taken;
}

/* ---- moves ----
 * The key of a newcomer is the score << 32 | candidate, so of equal scores the newer one is
 * larger. */

/* Moves the n_best largest of keys[n] to the front, in any order. n_best: 1 or more. */
__device__ static inline void keep_best(uint64_t *keys, uint32_t n, uint32_t n_best,
                                        exchange_shared *shared)
{
    uint64_t least = 0; /* of the largest: its bits from `shift` on */
    uint32_t shift = 48, done = 0, all;
    exchange_digit d = {0, n_best, n};
    while (d.wanted < d.n && shift > 0) {
        shift -= 8;
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            if (keys[i] >> (shift + 8) == least)
                count_digit(true, (uint32_t)(keys[i] >> shift) & (BINS - 1), shared);
        d = find_digit(d.wanted, shared);
        least = least << 8 | d.digit;
    }
    least <<= shift;
    for (uint32_t first = 0; first < n; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        const uint64_t key = i < n ? keys[i] : 0;
        const bool kept = i < n && key >= least;
        const uint32_t at = done + scan(kept, &all, shared);
        if (kept) keys[at] = key; /* at <= i, and the scan has a barrier */
        done += all;
    }
}

/* Sorts keys[n], largest first: a bitonic network whose comparators all put the larger key first,
 * so that those with a key after the end are left out. The comparators of a warp with a distance
 * up to CN_WARP only have 64 keys that no other warp uses. */
__device__ static inline void sort_keys(uint64_t *keys, uint32_t n)
{
    __syncthreads();
    for (uint32_t size = 2; size < 2 * n; size *= 2) {
        for (uint32_t half = size / 2; half > 0; half /= 2) {
            if (half >= CN_WARP && size > 2 * CN_WARP) __syncthreads();
            else __syncwarp();
            for (uint32_t t = threadIdx.x; 2 * t < n + half; t += THREADS) {
                const uint32_t at = t & (half - 1), low = 2 * t - at;
                const uint32_t high = half == size / 2 ? 2 * t + size - 1 - 3 * at : low + half;
                if (high >= n) continue;
                const uint64_t a = keys[low], b = keys[high];
                if (a >= b) continue;
                keys[low] = b;
                keys[high] = a;
            }
        }
    }
    __syncthreads();
}

/* The first n_moves entries outside the wanted set receive the candidates of the keys, in order.
 * A thread has VICTIMS entries in a row. */
__device__ static inline void move_keys(const exchange_unit &u, const wanted_set &w,
                                        const uint64_t *keys, uint32_t n_moves,
                                        exchange_shared *shared)
{
    enum { VICTIMS = 4 };
    uint32_t done = 0, all;
    for (uint32_t start = 0; start < u.k && done < n_moves; start += VICTIMS * THREADS) {
        const uint32_t first = start + threadIdx.x * VICTIMS;
        uint32_t c[VICTIMS], score[VICTIMS], victims = 0;
#pragma unroll
        for (uint32_t i = 0; i < VICTIMS; i++)
            c[i] = first + i < u.k ? u.chosen[first + i] - u.first : 0;
#pragma unroll
        for (uint32_t i = 0; i < VICTIMS; i++) score[i] = c[i] < u.n ? u.score[c[i]] : 0;
#pragma unroll
        for (uint32_t i = 0; i < VICTIMS; i++)
            victims |= (uint32_t)(first + i < u.k && !(c[i] < u.n && is_wanted(w, score[i], c[i])))
                       << i;
        uint32_t at = done + scan((uint32_t)__popc(victims), &all, shared);
        for (; victims > 0 && at < n_moves; victims &= victims - 1, at++) {
            const uint32_t e = first + (uint32_t)__ffs((int)victims) - 1;
            const uint32_t source = u.first + (uint32_t)keys[at];
            u.moves[at] = {e, source};
            u.chosen[e] = source;
        }
        done += all;
    }
}

/* Replaces entries of the area by the best of the newcomers in keys[n_new]. Returns the number of
 * moves. */
__device__ static inline uint32_t replace_worst(const exchange_unit &u, const wanted_set &w,
                                                uint64_t *keys, uint32_t n_new,
                                                exchange_shared *shared)
{
    const uint32_t n_moves = min(n_new, min(u.cap, u.room));
    if (n_moves == 0) return 0;
    for_each(
        0, n_new, [&](uint32_t i) { return (uint32_t)u.score[keys[i]]; },
        [&](uint32_t i, uint32_t score) { keys[i] |= (uint64_t)score << 32; });
    if (n_moves < n_new) keep_best(keys, n_new, n_moves, shared);
    sort_keys(keys, n_moves);
    move_keys(u, w, keys, n_moves, shared);
    return n_moves;
}

__global__ static void __launch_bounds__(THREADS, 5)
    exchange_kernel(const __grid_constant__ cn_exchange_args a)
{
    __shared__ exchange_shared shared;
    extern __shared__ uint64_t keys[]; /* [chosen_stride] */
    const cn_sel_unit at = cn_sel_unit_of(blockIdx.x, a.n_layers, a.local.layout.n_kv_heads);
    cn_overlap_next();
    ((uint4 *)shared.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    cn_wait_previous();
    if (threadIdx.x == 0) {
        shared.digit = {};
        shared.oldest = 0;
        shared.unit = area_unit_of(a, at);
    }
    __syncthreads();
    const exchange_unit &u = shared.unit;
    uint32_t n_moves = 0, n_missed = 0;
    if (u.k > 0 && u.n > 0) {
        if (u.n_words <= WINDOW) mark(u, 0, true, &shared);
        const exchange_digit high = score_digit(u, 8, 0, u.k, &shared);
        const exchange_digit low = score_digit(u, 0, high.digit, high.wanted, &shared);
        const uint32_t lowest = high.digit << 8 | low.digit;
        const uint32_t n = min(u.k, take_wanted(u, lowest, low.n - low.wanted, keys, &shared));
        n_moves =
            u.fill ? min(n, u.room) : replace_worst(u, {lowest, shared.oldest}, keys, n, &shared);
        n_missed = u.fill ? 0 : n - n_moves;
    }
    if (threadIdx.x > 0) return;
    a.n_moves[at.index] = n_moves;
    a.n_missed[at.index] = n_missed;
}

extern "C" cn_status cn_cuda_exchange_limit(const cn_cuda_device *d, uint32_t *most)
{
    cudaFuncAttributes kernel;
    CN_CUDA(cudaFuncGetAttributes(&kernel, exchange_kernel));
    *most = (uint32_t)((d->shared_bytes - kernel.sharedSizeBytes) / sizeof(uint64_t));
    return CN_OK;
}

extern "C" cn_status cn_cuda_exchange(cn_stream *s, const cn_exchange_args *a)
{
    const dim3 grid(a->n_seqs * a->n_layers * a->local.layout.n_kv_heads);
    const size_t bytes = a->chosen_stride * sizeof(uint64_t);
    if (grid.x == 0) return CN_OK;
    return cn_cuda_launch(s, "exchange", exchange_kernel, {grid, THREADS, bytes}, *a);
}
