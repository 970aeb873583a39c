/* select.cu - select: the best candidates of each unit, in ascending order.
 * In: score u16, ragged as in cn_score_args. Out: list [units, list_stride]. Grid units, 1,024
 * threads.
 *
 * Two histograms of 8 bits find the lowest selected score. Scores share few high bytes, so each
 * lane counts in its own column and no two lanes of a warp meet. Then each warp counts the
 * candidates of its own part that are above the lowest selected score or equal to it, and lists
 * those that are selected. Bytes read: 2 n per unit from memory, three times that from the L2
 * cache. Bytes written: 4 per list entry. CPU version: cpu_sel_list.c. */
#include "cuda/select/select.cuh"

enum {
    THREADS = 1024,
    WARPS = THREADS / CN_WARP,
    BINS = 256,
    BINS_EACH = BINS / CN_WARP,
    AT_ONCE = 8 /* scores that a thread loads before it uses the first */
};

typedef struct select_shared {
    uint32_t columns[BINS * CN_WARP]; /* [BINS, lanes] */
    uint32_t totals[BINS];
    uint32_t n_above[WARPS], n_equal[WARPS];
    uint32_t bin, wanted, in_bin;
} select_shared;

/* A unit's candidates, and how the selected ones are written. */
typedef struct select_list {
    const uint16_t *score;
    uint32_t n, base, entry_log2;
    const uint32_t *tiles;
    bool tokens;
    uint32_t *out; /* behind the forced positions */
    uint32_t room; /* entries of out */
} select_list;

/* ---- the lowest selected score ---- */

/* Counts the digits [shift, shift + 8) of the scores whose higher bits are `prefix`. */
__device__ static inline void count_digits(const select_list &l, uint32_t shift, uint32_t prefix,
                                           select_shared *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    for (uint32_t i = threadIdx.x; i < BINS * CN_WARP; i += THREADS) shared->columns[i] = 0;
    __syncthreads();
    for (uint32_t start = threadIdx.x; start < l.n; start += AT_ONCE * THREADS) {
        uint32_t score[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            score[i] = l.score[min(start + i * THREADS, l.n - 1)];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            if (start + i * THREADS < l.n && score[i] >> (shift + 8) == prefix)
                atomicAdd(&shared->columns[(score[i] >> shift & (BINS - 1)) * CN_WARP + lane], 1u);
    }
    __syncthreads();
    for (uint32_t bin = warp; bin < BINS; bin += WARPS) {
        const uint32_t total =
            __reduce_add_sync(0xffffffffu, shared->columns[bin * CN_WARP + lane]);
        if (lane == 0) shared->totals[bin] = total;
    }
    __syncthreads();
}

/* Sum over the lanes up to this one. */
__device__ static inline uint32_t lane_scan(uint32_t v)
{
#pragma unroll
    for (uint32_t offset = 1; offset < CN_WARP; offset *= 2) {
        const uint32_t below = __shfl_up_sync(0xffffffffu, v, offset);
        if (threadIdx.x % CN_WARP >= offset) v += below;
    }
    return v;
}

/* Finds the digit of the wanted-th largest of the counted scores. Writes it to bin, the number of
 * scores with this digit to in_bin, and how many of these are selected to wanted. */
__device__ static inline void find_digit(select_shared *shared)
{
    if (threadIdx.x < CN_WARP) {
        const uint32_t wanted = shared->wanted;
        uint32_t own = 0, bin = BINS - 1 - threadIdx.x * BINS_EACH;
#pragma unroll
        for (uint32_t i = 0; i < BINS_EACH; i++) own += shared->totals[bin - i];
        uint32_t before = lane_scan(own) - own;
        __syncwarp();
        if (before < wanted && before + own >= wanted) {
            while (before + shared->totals[bin] < wanted) before += shared->totals[bin--];
            shared->bin = bin;
            shared->wanted = wanted - before;
            shared->in_bin = shared->totals[bin];
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

/* Lists the candidates above `lowest`, and those equal to it except the n_skip oldest. */
__device__ static inline void list_selected(const select_list &l, uint32_t lowest, uint32_t n_skip,
                                            select_shared *shared)
{
    const uint32_t lane = threadIdx.x % CN_WARP, warp = threadIdx.x / CN_WARP;
    const uint32_t each = (l.n + WARPS - 1) / WARPS;
    const uint32_t start = min(warp * each, l.n), end = min(start + each, l.n);
    const uint32_t older = (1u << lane) - 1;
    uint32_t above = 0, equal = 0;
#pragma unroll 8
    for (uint32_t c = start + lane; c < end; c += CN_WARP) {
        const uint32_t score = l.score[c];
        above += score > lowest;
        equal += score == lowest;
    }
    above = __reduce_add_sync(0xffffffffu, above);
    equal = __reduce_add_sync(0xffffffffu, equal);
    if (lane == 0) {
        shared->n_above[warp] = above;
        shared->n_equal[warp] = equal;
    }
    __syncthreads();
    above = __reduce_add_sync(0xffffffffu, lane < warp ? shared->n_above[lane] : 0);
    equal = __reduce_add_sync(0xffffffffu, lane < warp ? shared->n_equal[lane] : 0);
    for (uint32_t first = start; first < end; first += AT_ONCE * CN_WARP) {
        uint32_t score[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++)
            score[i] = l.score[min(first + i * CN_WARP + lane, end - 1)];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t c = first + i * CN_WARP + lane;
            const bool is_above = c < end && score[i] > lowest;
            const bool is_equal = c < end && score[i] == lowest;
            const uint32_t aboves = __ballot_sync(0xffffffffu, is_above);
            const uint32_t equals = __ballot_sync(0xffffffffu, is_equal);
            const uint32_t n_equal = equal + __popc(equals & older);
            const uint32_t at = above + __popc(aboves & older) + max(n_equal, n_skip) - n_skip;
            if (is_above || (is_equal && n_equal >= n_skip)) write_entry(l, at, c);
            above += __popc(aboves);
            equal += __popc(equals);
        }
    }
}

__global__ static void __launch_bounds__(THREADS)
    select_kernel(const __grid_constant__ cn_select_args a)
{
    __shared__ select_shared shared;
    const cn_sel_unit u = cn_sel_unit_of(blockIdx.x, a.n_layers, a.n_kv_heads);
    cn_overlap_next();
    cn_wait_previous();
    const cn_sel_stage stage = a.stage[u.seq];
    if (!stage.active) return;
    const uint32_t n = a.n[u.seq], k = min(a.k[u.seq], n);
    const uint32_t n_forced = a.tokens ? min(a.n_forced[u.seq], a.list_stride) : 0;
    uint32_t *out = a.list + (size_t)u.index * a.list_stride;
    for (uint32_t i = threadIdx.x; i < n_forced; i += THREADS) out[i] = i;
    if (k == 0) return;
    select_list l = {};
    l.score = a.score + cn_sel_first(u, a.first[u.seq], n, a.n_layers, a.n_kv_heads);
    l.n = n;
    l.base = a.base[u.seq];
    l.entry_log2 = stage.entry_log2;
    if (stage.in_tiles) l.tiles = a.tiles + (size_t)u.index * a.tile_stride;
    l.tokens = a.tokens;
    l.out = out + n_forced;
    l.room = a.list_stride - n_forced;
    if (threadIdx.x == 0) shared.wanted = k;
    count_digits(l, 8, 0, &shared);
    find_digit(&shared);
    const uint32_t high = shared.bin;
    count_digits(l, 0, high, &shared);
    find_digit(&shared);
    list_selected(l, high << 8 | shared.bin, shared.in_bin - shared.wanted, &shared);
}

extern "C" cn_status cn_cuda_select(cn_stream *s, const cn_select_args *a)
{
    const dim3 grid(a->n_seqs * a->n_layers * a->n_kv_heads);
    if (grid.x == 0) return CN_OK;
    return cn_cuda_launch(s, "select", select_kernel, {grid, THREADS}, *a);
}
