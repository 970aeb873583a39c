/* exchange.cu - exchange: replaces entries of the exchange areas by better candidates.
 * In: score u16, ragged as in cn_score_args; chosen [L, n_slots, hk, chosen_stride]. Out: chosen in
 * place, moves [units, move_stride], n_moves and n_missed [units]. Grid units, 1,024 threads.
 *
 * Two histograms of 8 bits find the lowest wanted score (digits.cuh); held candidates are taken out
 * of the counts. If some candidates of that score are left out, one pass from the newest on finds
 * the oldest that is wanted. After that a candidate is wanted if it is not held and its score and
 * position are not below these two, so no set is stored. An entry of the area is a victim if it is
 * below. Newcomers are the wanted candidates that are not marked as chosen. Marks are bits in
 * shared memory, MARKED candidates at a time. The rank of a newcomer is the number of better ones.
 * Bytes read per unit: 2 n of scores from memory, at most five times that from the L2 cache; 8 k of
 * `chosen`; 4 for each held slot, four times. Bytes written: 12 for each move. Comparisons: the
 * square of the number of newcomers. CPU version: cpu_exchange.c. */
#include "cuda/select/digits.cuh"
#include "cuda/select/select.cuh"

enum {
    THREADS = CN_DIGIT_THREADS,
    WARPS = CN_DIGIT_WARPS,
    MARK_WORDS = CN_DIGIT_BINS * CN_WARP,
    MARKED = 32 * MARK_WORDS /* candidates that are marked at once */
};

typedef struct exchange_shared {
    union {
        cn_digits digits;
        uint32_t marks[MARK_WORDS]; /* after the digits */
    };
    uint32_t counts[WARPS];
    uint32_t oldest;
} exchange_shared;

typedef struct exchange_unit {
    const uint16_t *score; /* [n] */
    uint32_t n, k, cap;
    uint32_t log2, first;  /* of an entry; number of candidate 0 */
    uint32_t *chosen;      /* [k] */
    cn_move *moves;        /* [room] */
    uint32_t room;
    /* Held slots of the sequence. n_held 0: none. */
    const uint32_t *table, *origin;
    uint32_t n_held, held_from, block_tokens, n_kv_heads;
    size_t side; /* index in origin of slot 0 of block 0 of this layer and head */
} exchange_unit;

/* The wanted set: candidates that are not held, with a score above `lowest`, or equal to it and not
 * older than `oldest`. */
typedef struct wanted_set {
    uint32_t lowest, oldest;
} wanted_set;

__device__ static inline bool is_wanted(const wanted_set &w, uint32_t score, uint32_t c)
{
    return score > w.lowest || (score == w.lowest && c >= w.oldest);
}

__device__ static inline exchange_unit unit_of(const cn_exchange_args &a, const cn_sel_unit &at)
{
    const cn_kv_layout &l = a.local.layout;
    const uint32_t layer = a.first_layer + at.row;
    exchange_unit u = {};
    u.n = a.n[at.seq];
    u.k = a.k[at.seq];
    u.cap = a.fill ? u.k : a.cap[at.seq];
    u.log2 = a.entry_log2[at.seq];
    u.first = a.base[at.seq] >> u.log2;
    u.score = a.score + cn_sel_first(at, a.first[at.seq], u.n, a.n_layers, l.n_kv_heads);
    u.moves = a.moves + (size_t)at.index * a.move_stride;
    u.room = a.move_stride;
    if (u.k == 0) return u;
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

/* Returns the i-th held candidate; a number of n or more is not a candidate. */
__device__ static inline uint32_t held_at(const exchange_unit &u, uint32_t i)
{
    const uint32_t slot = u.held_from + i;
    const size_t block = (size_t)u.table[slot / u.block_tokens] * u.n_kv_heads * u.block_tokens;
    return (u.origin[u.side + block + slot % u.block_tokens] >> u.log2) - u.first;
}

/* ---- the wanted set ---- */

/* Finds digits [shift, shift + 8) of the lowest wanted score, whose higher bits are `prefix`. */
__device__ static inline uint32_t find_digit(const exchange_unit &u, uint32_t shift,
                                             uint32_t prefix, cn_digits *digits)
{
    cn_digits_count(digits, u.score, u.n, shift, prefix);
    for (uint32_t i = threadIdx.x; i < u.n_held; i += THREADS) {
        const uint32_t c = held_at(u, i);
        const uint32_t score = c < u.n ? u.score[c] : 0;
        if (c < u.n && score >> (shift + 8) == prefix)
            atomicSub(&digits->columns[(score >> shift & (CN_DIGIT_BINS - 1)) * CN_WARP +
                                       threadIdx.x % CN_WARP],
                      1u);
    }
    __syncthreads();
    cn_digits_find(digits);
    return digits->bin;
}

/* Marks the held candidates of [start, start + MARKED), and with `chosen` those of the area. */
__device__ static inline void mark(const exchange_unit &u, uint32_t start, bool chosen,
                                   uint32_t *marks)
{
    __syncthreads(); /* the marks before are in use */
    for (uint32_t i = threadIdx.x; i < (min(u.n - start, (uint32_t)MARKED) + 31) / 32; i += THREADS)
        marks[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < u.n_held; i += THREADS) {
        const uint32_t c = held_at(u, i), at = c - start;
        if (c < u.n && at < MARKED) atomicOr(&marks[at / 32], 1u << at % 32);
    }
    for (uint32_t e = threadIdx.x; chosen && e < u.k; e += THREADS) {
        const uint32_t c = u.chosen[e] - u.first, at = c - start;
        if (c < u.n && at < MARKED) atomicOr(&marks[at / 32], 1u << at % 32);
    }
    __syncthreads();
}

__device__ static inline bool is_marked(const uint32_t *marks, uint32_t at)
{
    return marks[at / 32] >> at % 32 & 1;
}

/* A warp's part of the candidates of [start, start + MARKED). */
typedef struct warp_part {
    uint32_t start, end;
} warp_part;

__device__ static inline warp_part part_of(const exchange_unit &u, uint32_t start)
{
    const uint32_t end = min(u.n, start + MARKED), each = (end - start + WARPS - 1) / WARPS;
    warp_part p;
    p.start = min(start + threadIdx.x / CN_WARP * each, end);
    p.end = min(p.start + each, end);
    return p;
}

/* Shares each warp's count. Returns the sum of the counts of the warps before this one, and the sum
 * of all in *total. */
__device__ static inline uint32_t share_counts(uint32_t count, uint32_t *counts, uint32_t *total)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    const uint32_t each = counts[lane];
    __syncthreads();
    *total = __reduce_add_sync(0xffffffffu, each);
    return __reduce_add_sync(0xffffffffu, lane < warp ? each : 0);
}

/* Returns the oldest of the `wanted` newest candidates with the lowest score. */
__device__ static inline uint32_t find_oldest(const exchange_unit &u, uint32_t lowest,
                                              uint32_t wanted, exchange_shared *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    uint32_t start = (u.n - 1) / MARKED * MARKED, total;
    if (threadIdx.x == 0) shared->oldest = 0;
    while (true) {
        mark(u, start, false, shared->marks);
        const warp_part p = part_of(u, start);
        uint32_t count = 0;
        for (uint32_t c = p.start + lane; c < p.end; c += CN_WARP)
            count += u.score[c] == lowest && !is_marked(shared->marks, c - start);
        count = __reduce_add_sync(0xffffffffu, count);
        const uint32_t before = share_counts(count, shared->counts, &total);
        if (total >= wanted || start == 0) {
            /* The wanted-th newest is the (total - wanted)-th from the oldest on. */
            const uint32_t skip = total - wanted;
            if (total >= wanted && before <= skip && skip < before + count) {
                uint32_t left = skip - before;
                for (uint32_t first = p.start; first < p.end; first += CN_WARP) {
                    const uint32_t c = first + lane;
                    const bool equal = c < p.end && u.score[c] == lowest &&
                                       !is_marked(shared->marks, c - start);
                    const uint32_t equals = __ballot_sync(0xffffffffu, equal);
                    const uint32_t rank = __popc(equals & ((1u << lane) - 1));
                    if (equal && rank == left) shared->oldest = c;
                    if (left < __popc(equals)) break;
                    left -= __popc(equals);
                }
            }
            __syncthreads();
            return shared->oldest;
        }
        wanted -= total;
        start -= MARKED;
    }
}

/* ---- moves ---- */

/* Calls take(i, c) for the i-th candidate c that is wanted and not marked, in ascending order.
 * Returns their number. */
template <typename Take>
__device__ static inline uint32_t for_wanted(const exchange_unit &u, const wanted_set &w,
                                             bool chosen, exchange_shared *shared, Take take)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    uint32_t done = 0;
    for (uint32_t start = 0; start < u.n; start += MARKED) {
        mark(u, start, chosen, shared->marks);
        const warp_part p = part_of(u, start);
        uint32_t count = 0, total;
        for (uint32_t c = p.start + lane; c < p.end; c += CN_WARP)
            count += is_wanted(w, u.score[c], c) && !is_marked(shared->marks, c - start);
        count = __reduce_add_sync(0xffffffffu, count);
        uint32_t at = done + share_counts(count, shared->counts, &total);
        for (uint32_t first = p.start; count > 0 && first < p.end; first += CN_WARP) {
            const uint32_t c = first + lane;
            const bool taken = c < p.end && is_wanted(w, u.score[c], c) &&
                               !is_marked(shared->marks, c - start);
            const uint32_t all = __ballot_sync(0xffffffffu, taken);
            if (taken) take(at + __popc(all & ((1u << lane) - 1)), c);
            at += __popc(all);
        }
        done += total;
    }
    return done;
}

__device__ static inline uint32_t fill_area(const exchange_unit &u, const wanted_set &w,
                                            exchange_shared *shared)
{
    for_wanted(u, w, false, shared, [&](uint32_t i, uint32_t c) {
        if (i >= u.k) return;
        u.chosen[i] = u.first + c;
        if (i < u.room) u.moves[i] = {i, u.first + c};
    });
    return min(u.k, u.room);
}

/* Writes the best n_moves of the newcomers keys[n_new] to the moves, best first. A key is the score
 * and the candidate. */
__device__ static inline void rank_newcomers(const exchange_unit &u, const uint64_t *keys,
                                             uint32_t n_new, uint32_t n_moves)
{
    for (uint32_t i = threadIdx.x; i < n_new; i += THREADS) {
        const uint64_t key = keys[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < n_new && rank < n_moves; j++) rank += keys[j] > key;
        if (rank < n_moves) u.moves[rank].source = u.first + (uint32_t)key;
    }
}

/* Writes the first n_moves entries outside the wanted set to the moves. */
__device__ static inline void list_victims(const exchange_unit &u, const wanted_set &w,
                                           uint32_t n_moves, exchange_shared *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    const uint32_t each = (u.k + WARPS - 1) / WARPS;
    const uint32_t start = min(warp * each, u.k), end = min(start + each, u.k);
    uint32_t at = 0, total;
    for (uint32_t turn = 0; turn < 2; turn++) { /* first to count, then to write */
        if (turn == 1) at = share_counts(at, shared->counts, &total);
        for (uint32_t first = start; first < end; first += CN_WARP) {
            const uint32_t e = first + lane;
            const uint32_t c = e < end ? u.chosen[e] - u.first : 0;
            const bool stays = c < u.n && is_wanted(w, u.score[c], c);
            const uint32_t all = __ballot_sync(0xffffffffu, e < end && !stays);
            const uint32_t i = at + __popc(all & ((1u << lane) - 1));
            if (turn == 1 && e < end && !stays && i < n_moves) u.moves[i].entry = e;
            at += __popc(all);
        }
    }
    __syncthreads();
}

/* Replaces entries of the area. Returns the number of moves. */
__device__ static inline uint32_t replace(const exchange_unit &u, const wanted_set &w,
                                          exchange_shared *shared, uint64_t *keys,
                                          uint32_t *n_missed)
{
    const uint32_t n_new =
        min(u.k, for_wanted(u, w, true, shared, [&](uint32_t i, uint32_t c) {
            if (i < u.k) keys[i] = (uint64_t)u.score[c] << 32 | c;
        }));
    const uint32_t n_moves = min(n_new, min(u.cap, u.room));
    __syncthreads();
    rank_newcomers(u, keys, n_new, n_moves);
    list_victims(u, w, n_moves, shared);
    for (uint32_t i = threadIdx.x; i < n_moves; i += THREADS)
        u.chosen[u.moves[i].entry] = u.moves[i].source;
    *n_missed = n_new - n_moves;
    return n_moves;
}

__global__ static void __launch_bounds__(THREADS)
    exchange_kernel(const __grid_constant__ cn_exchange_args a)
{
    __shared__ exchange_shared shared;
    extern __shared__ uint64_t keys[]; /* [chosen_stride] */
    const cn_sel_unit at = cn_sel_unit_of(blockIdx.x, a.n_layers, a.local.layout.n_kv_heads);
    cn_overlap_next();
    cn_wait_previous();
    const exchange_unit u = unit_of(a, at);
    uint32_t n_moves = 0, n_missed = 0;
    if (u.k > 0 && u.n > 0) {
        wanted_set w;
        if (threadIdx.x == 0) shared.digits.wanted = u.k;
        const uint32_t high = find_digit(u, 8, 0, &shared.digits);
        w.lowest = high << 8 | find_digit(u, 0, high, &shared.digits);
        const uint32_t wanted = shared.digits.wanted, in_bin = shared.digits.in_bin;
        __syncthreads(); /* marks replace the digits */
        w.oldest = wanted < in_bin ? find_oldest(u, w.lowest, wanted, &shared) : 0;
        n_moves = a.fill ? fill_area(u, w, &shared) : replace(u, w, &shared, keys, &n_missed);
    }
    if (threadIdx.x > 0) return;
    a.n_moves[at.index] = n_moves;
    a.n_missed[at.index] = n_missed;
}

extern "C" cn_status cn_cuda_exchange(cn_stream *s, const cn_exchange_args *a)
{
    const dim3 grid(a->n_seqs * a->n_layers * a->local.layout.n_kv_heads);
    const size_t bytes = a->chosen_stride * sizeof(uint64_t);
    if (grid.x == 0) return CN_OK;
    return cn_cuda_launch(s, "exchange", exchange_kernel, {grid, THREADS, bytes}, *a);
}
