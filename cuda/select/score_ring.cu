/* score_ring.cu - the kernel of the op `score`. Keys and heads are compared by the tensor cores,
 * all heads of the group at once, so keys are read once.
 *
 * Two blocks per multiprocessor, each with an equal run of the step's lots, or with lots of one
 * unit (score.cuh). Each warp has a ring of stages in shared memory, one lot each (score_feed.cuh):
 * at d 128 two or three stages of 4 to 5 KiB, so about 200 KiB per multiprocessor. On compute
 * capability 9.0 bulk copies fill the rings, if all stages of a launch rank labels of 16 or 32
 * channels, or all bounds without rule max. Else lanes do.
 *
 * When the stages of a ring are filled: keys, tables and the arrays of a step are final before the
 * kernel waits for the query (`early`), except in the first layer of a step. Some stages are
 * therefore filled before that wait. Not all are, because the load of the query would wait behind
 * their copies. The others are filled when the query is ready, or, for labels under rule max, whose
 * first lot takes longer, as soon as this load has been issued. After `select` of tiles all but
 * their list is final before the wait (`after_select`). So the query is prepared before it, and
 * the rings of a stage in tiles are filled after it.
 *
 * Labels of one layer under rule max take longer to compute than to copy. So fewer copies are in
 * flight, and other loads wait less behind them: a ring has two stages, and the second block of a
 * multiprocessor, which mostly starts when the previous kernel ends, loads the query before it
 * fills a stage.
 *
 * Kernels of a step evict each other's instructions from the caches, and a miss takes long beside
 * these copies. So a loop that runs few times, such as that over a lot of labels under rule max, is
 * not unrolled.
 *
 * The host knows which keys a launch may rank (cn_cuda_select_route). Kernels for one kind of key
 * need fewer registers. With bulk copies the blocks also compute the shares of rule max: of labels
 * of one layer that are counted, for groups of up to 4 heads (score_ring_shares.cuh). In other
 * launches score_share.cu computes them.
 *
 * Groups of more than 8 heads (labels: 4) read shared memory again. Keys leave the L2 cache first,
 * and the logits of rule max last, which are read again.
 *
 * With cn_score_params.counts a block counts what it has stored of a unit, so that the next kernel
 * can begin with this unit: scores and their high bytes. Counting high bytes in shared memory is
 * hidden by the copies. Launches of several layers count nothing, and their scores leave the L2
 * cache last.
 *
 * Bytes per candidate and kv head: as in score.cu; fewer logits where blocks compute the shares.
 * Block: 256 threads, 128 registers; 96 for labels alone under rule max; 64 for labels of one layer
 * or bounds alone without rule max. CPU version: cpu_sel_score.c. */
#include "cuda/select/score_ring_keys.cuh"
#include "cuda/select/score_ring_labels.cuh"
#include "cuda/select/score_ring_shares.cuh"

enum {
    THREADS = CN_FEED_THREADS,
    LEAST_STAGES = 2, /* as long as a block has more than one warp with a ring */
    EARLY_STAGES = 2, /* of a ring: filled before the wait for the query */
    ALIGN = 128, /* bytes, of a stage */
    ROW_STAGES = 3,   /* most of a ring of K rows: other loads wait behind the copies (d 128) */
    LINE_MAX_STAGES = 2, /* the same for labels of one layer under rule max */
    STATIC_BYTES = 2048,      /* no less than the static shared memory of a block */
    SHARES_AT_ONCE = 16, /* cn_share_scores */
    SHARES_OF_LOT = CN_FEED_LABELS / CN_WARP, /* the same */
    SHARE_BYTES = 1280 /* no less than half of what a block of a kernel behind takes for shares */
};

/* The dynamic shared memory of a block, in bytes: rings, queries, sums, what cn_score_divide needs,
 * then logits that are kept. */
typedef struct ring_shape {
    cn_feed_shape feed;
    uint32_t query_at, sums_at, seqs_at, kept_at, bytes;
    uint32_t n_beside; /* cn_ring_memory.n_beside */
} ring_shape;

static_assert((int)THREADS == (int)CN_COUNT_DIGITS, "a thread has a digit");
static_assert(sizeof(cn_ring_fixed) + 256 <= STATIC_BYTES, "256 bytes for scans and the like");

/* ---- the kernel ---- */

/* Returns whether a launch ranks one layer, so that `select` follows. */
__host__ __device__ static inline bool is_line(const cn_score_params &p)
{
    return p.args.n_layers == 1;
}

/* Candidates of the unit. */
typedef struct candidates {
    size_t first; /* index of the first one's score */
    uint32_t n;
} candidates;

/* Returns those of n lots of a part, from number `lot` on. */
__device__ static inline candidates candidates_of(const cn_score_part &x, uint32_t lot, uint32_t n)
{
    const uint32_t start = max((x.lot + lot) << x.lot_log2, x.from);
    const uint32_t end = min((x.lot + lot + n) << x.lot_log2, x.to);
    return {x.first + ((start - x.from) >> x.stage.entry_log2),
            n > 0 ? (end - start) >> x.stage.entry_log2 : 0};
}

/* Stores the sums of the part, which the warps have in shared memory. */
__device__ static inline void store_sums(const cn_score_params &p, const cn_score_part &x,
                                         const cn_ring_memory &m)
{
    const uint64_t mark = p.shares.in_blocks ? CN_SUM_MARK : 0;
    for (uint32_t h = threadIdx.x / CN_WARP; h < p.group; h += CN_FEED_WARPS) {
        const cn_exp_sum sum = cn_ring_sum_of(m, h);
        if (threadIdx.x % CN_WARP == 0)
            cn_marked_store(p.shares.sums + (size_t)x.slot * p.group + h, sum, mark);
    }
}

/* Adds a part to those whose shares score_share.cu computes. Called by one thread. */
__device__ static inline void add_late(const cn_score_params &p, const cn_score_part &x)
{
    const candidates all = candidates_of(x, 0, x.n_lots);
    p.shares.late[atomicAdd(p.shares.n_late, 1u)] = {
        all.first, all.n, x.at.index, {x.first_slot, x.n_slots}};
}

/* Counts the scores of the part, and their high bytes, which have been in shared memory. */
__device__ static inline void count_scores(const cn_score_params &p, const cn_score_part &x,
                                           const cn_ring_memory &m)
{
    cn_count_scores(p.counts + (size_t)x.at.index * CN_COUNTS, m.fixed->digits,
                    candidates_of(x, 0, x.n_lots).n);
}

/* Waits for the kernel before. Then lets the next one start, which thus finds clear counts, and the
 * arrays of the step (score_share.cu). */
__device__ static inline void wait_then_overlap(void)
{
    cn_wait_previous();
    cn_overlap_next();
}

/* Computes part `number`. The one after it is known. DIGITS: counts high bytes in shared memory.
 * Under rule max this computes logits and sums only. */
template <bool MAX, bool DIGITS, typename Feed>
__device__ static inline void compute_part(const cn_score_params &p, const cn_ring_memory &m,
                                           Feed &f, uint32_t number)
{
    const cn_score_part &x = m.fixed->feed.parts.part[number % 2];
    const uint32_t warp = threadIdx.x / CN_WARP;
    const uint32_t key = Feed::key != CN_FEED_ANY ? Feed::key : x.stage.key;
    const bool has_shares = Feed::key == CN_KEY_LABELS && MAX && DIGITS && p.shares.in_blocks;
    const bool may_keep = has_shares && m.fixed->feed.parts.part[(number + 1) % 2].n_lots == 0;
    float ahead = 0;
    if (key == CN_KEY_LABELS)
        ahead = cn_ring_label_value(p, x, m, warp, threadIdx.x % CN_WARP);
    if (MAX && Feed::bulk && (!p.after_select || number > 0)) cn_feed_fill(f, p, number);
    cn_ring_load_query(p, x, m, key, ahead);
    __syncthreads(); /* the query is ready */
    if (p.after_select && number == 0) wait_then_overlap();
    cn_feed_fill(f, p, number + 1);
    if (key == CN_KEY_HASH) {
        cn_score_hash_part(p, x);
    } else if (warp < m.n_workers) {
        const uint32_t known = number + 1;
        if (key == CN_KEY_ROWS) cn_ring_compute_keys<true, false>(p, x, m, f, known);
        else if (key == CN_KEY_BOUNDS) cn_ring_compute_keys<false, DIGITS>(p, x, m, f, known);
        else if constexpr (!Feed::bulk)
            cn_ring_compute_labels<CN_SCORE_WIDE_WORDS, MAX, DIGITS>(p, x, m, f, known, false);
        else if (p.label_bytes == 16)
            cn_ring_compute_labels<4, MAX, DIGITS>(p, x, m, f, known, may_keep);
        else cn_ring_compute_labels<2, MAX, DIGITS>(p, x, m, f, known, may_keep);
    }
    if (MAX && cn_score_is_max(x.stage)) {
        __syncthreads();
        store_sums(p, x, m);
        if (!has_shares && threadIdx.x == 0) add_late(p, x);
    } else if (DIGITS && p.counts) {
        count_scores(p, x, m);
    }
}

/* Computes the scores of the last lots, whose logits are kept, from number n_stored on. late: it
 * stores these logits instead. */
template <typename Feed>
__device__ static inline void finish_kept(const cn_score_params &p, const cn_score_part &x,
                                          const cn_ring_memory &m, const Feed &f,
                                          uint32_t n_stored, bool late)
{
    const uint32_t warp = threadIdx.x / CN_WARP;
    for (uint32_t lot = warp; warp < m.n_workers && lot < x.n_lots; lot += m.n_workers) {
        if (lot < n_stored) continue;
        const candidates own = candidates_of(x, lot, 1);
        const uint32_t start = (x.lot + lot) << CN_LOT_MAX_LOG2;
        const uint2 *kept = cn_ring_kept(m, f, x, lot, true) + max(start, x.from) - start;
        uint2 *rows = (uint2 *)cn_score_rows(p, own.first);
        if (!late)
            cn_share_scores<CN_LABEL_HEADS, SHARES_OF_LOT, CN_WARP>(
                p, own.first, own.n, kept, m.fixed->heads, m.fixed->digits);
        else
            for (uint32_t c = threadIdx.x % CN_WARP; c < own.n; c += CN_WARP) rows[c] = kept[c];
    }
}

/* Computes the shares of a part, or leaves it to score_share.cu. is_last: it is the last part of
 * the block; else nothing of it is kept. */
template <typename Feed>
__device__ static inline void share_part(const cn_score_params &p, const cn_score_part &x,
                                         const cn_ring_memory &m, const Feed &f, bool is_last,
                                         int64_t *patience)
{
    const cn_score_unit unit = {x.first_slot, x.n_slots};
    const uint32_t most = is_last ? (m.n_in_ring + m.n_beside) * m.n_workers : 0;
    const uint32_t n_stored = x.n_lots - min(x.n_lots, most);
    const bool known = cn_share_heads<CN_LABEL_HEADS>(p, unit, m.fixed->heads, patience);
    finish_kept(p, x, m, f, n_stored, !known);
    if (known) {
        const candidates stored = candidates_of(x, 0, n_stored);
        cn_share_scores<CN_LABEL_HEADS, SHARES_AT_ONCE, THREADS>(
            p, stored.first, stored.n, NULL, m.fixed->heads, m.fixed->digits);
        count_scores(p, x, m);
    } else if (threadIdx.x == 0) {
        add_late(p, x);
    }
}

/* Computes the shares of the block's n parts (score_ring_shares.cuh): of the last one, then of the
 * others, which are found again. */
template <typename Feed>
__device__ static inline void share_parts(const cn_score_params &p, cn_score_plan &plan,
                                          const cn_ring_memory &m, const Feed &f, uint32_t n)
{
    int64_t patience = p.patience;
    cn_score_parts *parts = &m.fixed->feed.parts;
    for (uint32_t i = 0; i < n; i++) {
        const cn_score_part &x = parts->part[(n - 1 + i) % 2];
        if (cn_score_is_max(x.stage)) share_part(p, x, m, f, i == 0, &patience);
        if (i + 1 == n) break;
        __syncthreads(); /* all threads have seen that the last part is the last one */
        if (i == 0) cn_score_open(plan);
        cn_score_find(plan, p, n + i, parts);
        __syncthreads();
    }
}

/* KEY: as in cn_feed. MAX: some stages may be under rule max. DIGITS: as above. */
template <uint32_t KEY, bool MAX, bool DIGITS>
__device__ static inline void run_ring(const cn_score_params &p, const ring_shape &shape)
{
    extern __shared__ __align__(ALIGN) unsigned char dynamic[];
    __shared__ cn_ring_fixed fixed;
    cn_ring_memory m;
    m.fixed = &fixed;
    m.table = (cn_bf16 *)(dynamic + shape.query_at);
    m.sums = (cn_exp_sum *)(dynamic + shape.sums_at);
    m.kept = dynamic + shape.kept_at;
    m.n_workers = shape.feed.n_workers;
    m.n_in_ring = shape.feed.n_stages / shape.feed.n_workers;
    m.n_beside = shape.n_beside;
    cn_touch_params(p);
    cn_feed_init<cn_feed<KEY>::bulk>(&fixed.feed);
    if (DIGITS) fixed.digits[threadIdx.x] = 0;
    if (!p.early) cn_wait_previous();
    cn_score_plan plan =
        cn_score_divide(p, (cn_score_seq *)(dynamic + shape.seqs_at));
#pragma unroll 1
    for (uint32_t i = 0; i < 2; i++) cn_score_find(plan, p, i, &fixed.feed.parts);
    __syncthreads();
    cn_feed<KEY> f = cn_feed_of<KEY>(shape.feed, dynamic, &fixed.feed);
    const bool in_tiles = fixed.feed.parts.part[0].stage.in_tiles;
    const bool query_first = KEY == CN_KEY_LABELS && MAX && p.args.logits && is_line(p) &&
                             blockIdx.x >= gridDim.x / 2;
    const uint8_t channel = cn_ring_load_channel(p, fixed.feed.parts.part[0]); /* before the keys */
    if (!in_tiles && !query_first) cn_feed_fill(f, p, 0, EARLY_STAGES);
    if (threadIdx.x < 2 * CN_WARP) fixed.channels[threadIdx.x] = channel;
    __syncthreads();
    if (!p.after_select) wait_then_overlap();
    uint32_t i = 0;
    for (; fixed.feed.parts.part[i % 2].n_lots > 0; i++) {
        if (i > 0) {
            const uint8_t next = cn_ring_load_channel(p, fixed.feed.parts.part[i % 2]);
            if (threadIdx.x < 2 * CN_WARP) fixed.channels[threadIdx.x] = next;
            cn_score_find(plan, p, i + 1, &fixed.feed.parts);
            __syncthreads();
        }
        compute_part<MAX, DIGITS>(p, m, f, i);
        __syncthreads();
    }
    if (p.after_select && i == 0) wait_then_overlap(); /* the block has no part */
    if constexpr (KEY == CN_KEY_LABELS && MAX && DIGITS)
        if (p.shares.in_blocks) share_parts(p, plan, m, f, i);
}

/* Registers of a thread. LINE: a launch of one layer, or under rule max, or of bounds, if all
 * stages rank the same digests. Then a multiprocessor has room for blocks of the next kernel beside
 * those of this one: two of `select`, one if it has clusters of eight, or under rule max one, which
 * is of score_share.cu unless candidates are few. So these start before this kernel ends. */
constexpr unsigned registers_of(bool max, bool line) { return !line ? 128 : max ? 96 : 64; }

/* The arguments of the template are those of `run`. Any keys are ranked on any device. */
template <uint32_t KEY, bool MAX, bool LINE>
__global__ static void __maxnreg__(registers_of(MAX, LINE))
    ring_kernel(const __grid_constant__ cn_score_params p,
                const __grid_constant__ ring_shape shape)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    run_ring<KEY, MAX, LINE>(p, shape);
#else
    if constexpr (KEY == CN_FEED_ANY) run_ring<KEY, MAX, LINE>(p, shape);
#endif
}

/* ---- on the host ---- */

/* Returns whether all stages rank such keys. */
static bool has_only(const cn_score_params &p, cn_sel_key key) { return p.keys == 1u << key; }

/* Returns the shared memory that each block leaves to blocks of the next kernel. */
static size_t room_of(const cn_score_params &p)
{
    if (!p.bulk || !is_line(p)) return 0;
    if (p.args.logits && !p.few) return SHARE_BYTES;
    return CN_SELECT_BLOCK_BYTES;
}

/* Returns whether a launch ranks labels of one layer, some under rule max. */
static bool is_line_max(const cn_score_params &p)
{
    return p.bulk && p.args.logits && is_line(p);
}

/* Returns the most stages of a ring. */
static uint32_t most_stages(const cn_score_params &p)
{
    if (has_only(p, CN_KEY_ROWS)) return ROW_STAGES;
    return is_line_max(p) ? (uint32_t)LINE_MAX_STAGES : (uint32_t)CN_FEED_STAGES;
}

/* Adds room for logits beside the rings. room: bytes of a block. */
static void add_beside(const cn_score_params &p, ring_shape *shape, size_t room)
{
    const uint32_t bytes = shape->feed.n_workers * CN_RING_KEPT_BYTES; /* of a lot of each warp */
    shape->kept_at = shape->bytes;
    shape->n_beside =
        p.shares.in_blocks && shape->bytes < room ? (uint32_t)(room - shape->bytes) / bytes : 0;
    shape->bytes += shape->n_beside * bytes;
}

/* Divides the shared memory that a block has if n_blocks run on a multiprocessor. Returns false if
 * it is too small for a ring. */
static bool shape_of(const cn_stream *s, const cn_score_params &p, uint32_t n_blocks,
                     ring_shape *shape)
{
    const cn_score_args *a = &p.args;
    const uint32_t d = a->pools.layout.head_dim, heads = a->logits ? p.group : 1;
    const bool has_labels = cn_score_may_have(p, CN_KEY_LABELS);
    const bool has_bounds = cn_score_may_have(p, CN_KEY_BOUNDS);
    const bool has_rows = cn_score_may_have(p, CN_KEY_ROWS), has_keys = has_bounds || has_rows;
    const uint32_t stride = (has_bounds ? 2 * d : d) + CN_RING_TABLE_PAD;
    const size_t share = cn_launch_shared_of(s->cuda, n_blocks) - STATIC_BYTES - room_of(p);
    const size_t labels =
        has_labels ? p.group * (p.query_words * sizeof(uint2) + sizeof(float)) : 0;
    const uint32_t rows = has_keys ? cn_max_u32(heads, 2) : 0;
    const size_t table = rows * stride * sizeof(cn_bf16);
    const size_t query = cn_round_up(labels > table ? labels : table, 16);
    const size_t sums = a->logits ? p.group * CN_FEED_WARPS * sizeof(cn_exp_sum) : 0;
    const size_t seqs = cn_round_up((a->n_seqs + (size_t)1) * sizeof(cn_score_seq), 16);
    const size_t rest = query + sums + seqs;
    const uint32_t lot_bytes =
        cn_max_u32(has_labels ? cn_feed_lot_bytes(p, true) : 1, /* hashes have no keys */
                   has_keys ? cn_feed_lot_bytes(p, false) + CN_FEED_SHIFT : 0);
    const uint32_t stage_bytes = (uint32_t)cn_round_up(lot_bytes, ALIGN);
    shape->feed.stage_bytes = stage_bytes;
    const size_t stages = rest < share ? (share - rest) / stage_bytes : 0;
    uint32_t n_workers = CN_FEED_WARPS;
    while (n_workers > 1 && stages / n_workers < LEAST_STAGES) n_workers /= 2;
    shape->feed.n_workers = n_workers;
    shape->feed.n_stages = cn_min_u32((uint32_t)stages, n_workers * most_stages(p));
    shape->query_at = shape->feed.n_stages * stage_bytes;
    shape->sums_at = shape->query_at + (uint32_t)query;
    shape->seqs_at = shape->sums_at + (uint32_t)sums;
    shape->bytes = shape->seqs_at + (uint32_t)seqs;
    add_beside(p, shape, share);
    return shape->feed.n_stages > 0;
}

bool cn_score_has_bulk(const cn_stream *s, const cn_score_params &p)
{
    const bool labels = has_only(p, CN_KEY_LABELS) && (p.label_bytes == 8 || p.label_bytes == 16);
    return cn_attn_has_bulk(s) && (labels || (has_only(p, CN_KEY_BOUNDS) && !p.args.logits));
}

bool cn_score_ring_counts(const cn_score_params &p)
{
    return p.bulk && (!p.args.logits || p.row == CN_LABEL_HEADS);
}

typedef void ring_kernel_type(cn_score_params, ring_shape);

static ring_kernel_type *kernel_of(const cn_score_params &p)
{
    if (!p.bulk) return ring_kernel<CN_FEED_ANY, true, false>;
    if (has_only(p, CN_KEY_BOUNDS)) return ring_kernel<CN_KEY_BOUNDS, false, true>;
    if (p.args.logits) return ring_kernel<CN_KEY_LABELS, true, true>;
    return is_line(p) ? ring_kernel<CN_KEY_LABELS, false, true>
                      : ring_kernel<CN_KEY_LABELS, false, false>;
}

cn_status cn_score_ring(cn_stream *s, const cn_score_params &p)
{
    ring_shape shape;
    if (!shape_of(s, p, CN_SCORE_BLOCKS, &shape) && !shape_of(s, p, 1, &shape))
        return cn_fail(CN_ERR_SHAPE,
                       "score: %u sequences, groups of %u heads, head_dim %u: a thread block has "
                       "not enough shared memory",
                       p.args.n_seqs, p.group, p.args.pools.layout.head_dim);
    const cn_launch how = {dim3(CN_SCORE_BLOCKS * s->cuda->device.n_sms), THREADS, shape.bytes};
    return cn_cuda_launch(s, "score: ring", kernel_of(p), how, p, shape);
}
