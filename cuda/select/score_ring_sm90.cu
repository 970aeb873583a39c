/* score_ring_sm90.cu - the op `score` on compute capability 9.0, for stages with one query and, if
 * they rank labels, labels of 16 or 32 channels. It does the work of score.cu, with the same
 * divisions. Labels are ranked alike, bit by bit. Products of rows and bounds are added up in
 * another order, and under rule max the weights of a warp's lots together. So with
 * --batch-invariant launches that may rank rows or bounds are left to score.cu.
 *
 * Two blocks per multiprocessor, each with an equal run of the step's lots, or with lots of one
 * unit (score.cuh). Each warp has a ring of stages in shared memory, one lot each, and fills it
 * with bulk copies (score_feed.cuh): at d 128 three stages of 4.5 KiB, 216 KiB per multiprocessor.
 * Keys, tables and the arrays of a step are final before the kernel waits for the query, except in
 * the first layer and in launches of several layers. So some stages are filled before that wait,
 * the others when the query is being loaded: its loads would wait behind all these copies. The
 * launches of further layers of a call, which are long, fill all stages before. The list of tiles
 * is not final, because `select` of stage one writes it. So the rings of a stage in tiles are
 * filled after the wait.
 *
 * Kernels of a step evict each other's instructions from the caches, and a miss takes long beside
 * these copies. So a loop that runs few times, such as that over a lot of labels, is not unrolled.
 *
 * Keys are read once. Groups of more than 8 heads (labels: 4) read shared memory again. Keys leave
 * the L2 cache first, and the logits of rule max last: score_share.cu reads them, and those of the
 * next layer take their place.
 *
 * Bytes per candidate and kv head: as in score.cu.
 * Block: 256 threads, 128 registers; K rows alone 96. CPU version: cpu_sel_score.c. */
#include "cuda/select/score_feed.cuh"
#include "cuda/select/score_labels.cuh"
#include "cuda/select/score_share.h"

enum {
    THREADS = CN_FEED_THREADS,
    LEAST_STAGES = 2, /* as long as a block has more than one warp with a ring */
    PAIRS = CN_LABEL_HEADS / 2, /* of heads, of a pass over labels */
    HEADS = 8,        /* of a pass over rows and bounds */
    ROWS = 16,        /* K rows of a lot */
    EARLY_STAGES = 2, /* of a ring: filled before the wait for the query */
    TABLE_PAD = 32,   /* elements between rows of the table, to use other banks */
    ALIGN = 128,      /* bytes, of a stage */
    ROW_ALIGN = 1024, /* of a stage with K rows, which a tensor map copies */
    STATIC_BYTES = 1024,  /* no less than the static shared memory of a block */
    RESERVED_BYTES = 1024 /* shared memory that the GPU takes for each block */
};

/* The dynamic shared memory of a block: rings, queries, sums, then what cn_score_divide needs. */
typedef struct ring_shape {
    cn_feed_shape feed;
    uint32_t query_at, sums_at, seqs_at; /* in bytes */
} ring_shape;

typedef struct ring_fixed {
    cn_feed_shared feed;
    uint8_t channels[CN_WARP]; /* of labels */
} ring_fixed;

typedef struct ring_memory {
    ring_fixed *fixed;
    /* What is compared with keys. Rows and bounds: [heads, or 2 for the mean query, width], each
     * row padded. Labels: [heads, or 1] quantised, and the factors of the heads behind them. */
    union {
        cn_bf16 *table;
        uint2 *labels;
    };
    cn_exp_sum *sums; /* [heads, n_workers] of the lots of each warp; rule max only */
    uint32_t n_workers;
} ring_memory;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---- queries ---- */

__device__ static inline float *label_factors(const cn_score_params &p, const ring_memory &m)
{
    return (float *)(m.labels + p.group * (p.label_bytes / 4));
}

/* Returns where value i of a query is in its row of the table, for K rows: a lane of the matrix
 * instructions has the values that it needs of 64 side by side. */
__device__ static inline uint32_t row_value_at(uint32_t i)
{
    const uint32_t step = i / 16 % 4, half = i / 8 % 2, t = i / 2 % 4;
    return i / 64 * 64 + t * 16 + step * 4 + half * 2 + i % 2;
}

/* Returns how many rows a part's table has: the heads of the group, or the mean query. */
__device__ static inline uint32_t query_rows(const cn_score_params &p, const cn_score_part &x)
{
    return x.stage.group == CN_GROUP_MAX ? p.group : 1;
}

/* Values of the table that a thread loads before most keys are copied: later loads wait behind the
 * keys. */
typedef struct query_ahead {
    float first, second;
} query_ahead;

/* Returns value `at` of a part's table of rows or bounds. */
__device__ static inline float table_value(const cn_score_params &p, const cn_score_part &x,
                                           uint32_t width, uint32_t at)
{
    if (at >= query_rows(p, x) * width) return 0;
    return cn_score_query_value(p, x, cn_score_query_of(p, x), at / width, at % width);
}

/* Returns this lane's label channel of row r. */
__device__ static inline float label_value(const cn_score_params &p, const cn_score_part &x,
                                           const ring_memory &m, uint32_t r)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    if (r >= query_rows(p, x) || lane >= p.args.pools.digest.n_channels) return 0;
    return cn_score_query_value(p, x, cn_score_query_of(p, x), r, m.fixed->channels[lane]);
}

/* Channels of a query in the table of rows or bounds. */
__device__ static inline uint32_t query_width(const cn_score_params &p, const cn_score_part &x)
{
    const uint32_t d = p.args.pools.layout.head_dim;
    return x.stage.key == CN_KEY_BOUNDS ? 2 * d : d;
}

__device__ static inline query_ahead load_ahead(const cn_score_params &p, const cn_score_part &x,
                                                const ring_memory &m, uint32_t key)
{
    query_ahead ahead = {};
    if (key == CN_KEY_HASH) return ahead;
    if (key == CN_KEY_LABELS) {
        const uint32_t warp = threadIdx.x / CN_WARP;
        ahead.first = label_value(p, x, m, warp);
        ahead.second = label_value(p, x, m, warp + CN_FEED_WARPS);
    } else {
        const uint32_t width = query_width(p, x);
        ahead.first = table_value(p, x, width, threadIdx.x);
        ahead.second = table_value(p, x, width, threadIdx.x + THREADS);
    }
    return ahead;
}

/* Fills the table of rows or bounds. */
__device__ static inline void fill_table(const cn_score_params &p, const cn_score_part &x,
                                         const ring_memory &m, const query_ahead &ahead)
{
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    const uint32_t width = query_width(p, x), n = query_rows(p, x) * width;
#pragma unroll 1
    for (uint32_t k = 0, at = threadIdx.x; at < n; k++, at += THREADS) {
        const uint32_t row = at / width, i = at % width;
        const float value = k == 0   ? ahead.first
                            : k == 1 ? ahead.second
                                     : table_value(p, x, width, at);
        const cn_bf16 high = __float2bfloat16_rn(value);
        const uint32_t place = x.stage.key == CN_KEY_ROWS ? row_value_at(i) : i;
        cn_bf16 *to = m.table + row * (width + TABLE_PAD) + place;
        *to = high;
        if (!is_max) to[width + TABLE_PAD] = __float2bfloat16_rn(value - __bfloat162float(high));
    }
}

/* Quantises the label channels of the queries, one a warp. */
__device__ static inline void fill_labels(const cn_score_params &p, const cn_score_part &x,
                                          const ring_memory &m, const query_ahead &ahead)
{
    const uint32_t n_rows = query_rows(p, x), lane = threadIdx.x % CN_WARP;
#pragma unroll 1
    for (uint32_t k = 0, r = threadIdx.x / CN_WARP; r < n_rows; k++, r += CN_FEED_WARPS) {
        const float value[1] = {k == 0   ? ahead.first
                                : k == 1 ? ahead.second
                                         : label_value(p, x, m, r)};
        int8_t *bytes = (int8_t *)(m.labels + r * (p.label_bytes / 4));
        const float scale =
            cn_label_quantise<1>(bytes, value, p.args.pools.digest.n_channels);
        if (lane == 0) label_factors(p, m)[r] = cn_score_scale_of(p, x) * scale;
    }
}

/* Returns this thread's label channel of the part's layer and kv head. Channels are weights. */
__device__ static inline uint8_t load_channel(const cn_score_params &p, const cn_score_part &x)
{
    const cn_pools &pools = p.args.pools;
    const size_t unit = (size_t)x.layer * pools.layout.n_kv_heads + x.at.head;
    const uint32_t n = pools.digest.n_channels;
    if (x.stage.key != CN_KEY_LABELS || threadIdx.x >= n) return 0;
    return __ldg(pools.digest.channels + unit * n + threadIdx.x);
}

/* Prepares the queries of a part, whose channels have been loaded. Clears the sums of rule max. */
__device__ static inline void load_query(const cn_score_params &p, const cn_score_part &x,
                                         const ring_memory &m, uint32_t key,
                                         const query_ahead &ahead)
{
    if (key == CN_KEY_LABELS) fill_labels(p, x, m, ahead);
    else if (key != CN_KEY_HASH) fill_table(p, x, m, ahead);
    if (cn_score_is_max(x.stage))
        for (uint32_t i = threadIdx.x; i < p.group * m.n_workers; i += THREADS) m.sums[i] = {};
}

/* Adds a lot to the warp's sum of a head. Called by one lane. */
__device__ static inline void add_lot(const ring_memory &m, uint32_t head, cn_lot_weights lot)
{
    cn_exp_sum &sum = m.sums[head * m.n_workers + threadIdx.x / CN_WARP];
    sum = cn_exp_sum_add_lot(sum, lot.sum, lot.top);
}

/* ---- labels ---- */

/* A lot of labels in shared memory, and where the results of this lane's first candidate go, lane
 * `lane` of the lot. The others are 32, 64, ... behind it. */
typedef struct label_lot {
    const unsigned char *labels; /* N_WORDS each */
    const uint16_t *scales;
    uint32_t at;     /* number of the lane's first candidate */
    uint32_t tile;   /* in tiles: position of tile lane % 4 of the lot */
    uint16_t *score;
    uint16_t *row; /* rule max: of logits */
} label_lot;

template <int N_WORDS>
__device__ static inline void load_label(uint32_t words[N_WORDS], const label_lot &lot, uint32_t i)
{
    static_assert(N_WORDS == 2 || N_WORDS == 4, "the size of a load");
    const unsigned char *label = lot.labels + i * CN_WARP * N_WORDS * sizeof(uint32_t);
    if constexpr (N_WORDS == 4) {
        const uint4 four = *(const uint4 *)label;
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    } else {
        const uint2 two = *(const uint2 *)label;
        words[0] = two.x;
        words[1] = two.y;
    }
}

/* Returns a lot. whole: set to whether all its tokens are candidates and none is below the base. */
__device__ static inline label_lot label_lot_of(const cn_score_params &p, const cn_score_part &x,
                                                uint32_t start, bool &whole)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    label_lot lot = {};
    lot.at = start + lane;
    const ptrdiff_t c = (ptrdiff_t)(int32_t)(lot.at - x.from); /* may be below 0 */
    lot.score = p.args.out + x.first + c;
    lot.row = cn_score_rows(p, x.stored) + c * (ptrdiff_t)p.row;
    whole = start >= x.from && x.to - start >= CN_FEED_LABELS;
    if (x.stage.in_tiles && x.base > 0) {
        const cn_score_token t =
            cn_score_token_of(p, x, start + lane % 4 * CN_DIGEST_TILE);
        lot.tile = t.position & ~(CN_DIGEST_TILE - 1u);
        whole = whole && !__any_sync(0xffffffffu, lot.tile < x.base);
    }
    return lot;
}

/* Returns whether candidate i of this lane exists. below: set to whether it lies below the base. */
__device__ static inline bool label_is_valid(const cn_score_part &x, const label_lot &lot,
                                             uint32_t i, bool &below)
{
    const uint32_t at = lot.at + i * CN_WARP;
    below = false;
    if (x.stage.in_tiles && x.base > 0) {
        const uint32_t tile = __shfl_sync(0xffffffffu, lot.tile, (int)(i / 2));
        below = tile + at % CN_DIGEST_TILE < x.base;
    }
    return at >= x.from && at < x.to;
}

/* Computes a lot under rule max, for the heads of a pass from `first` on. WHOLE: as in
 * label_lot_of. Sets `own` of these heads. */
template <int N_WORDS, bool WHOLE>
__device__ static inline void label_heads(const cn_score_params &p, const cn_score_part &x,
                                          const label_lot &lot,
                                          const cn_label_query<N_WORDS, PAIRS> &q, uint32_t first,
                                          cn_lot_weights &own)
{
    cn_label_pass pass = cn_label_pass_of();
    const uint32_t stride = CN_WARP * p.row;
    uint16_t *row = lot.row + first;
#pragma unroll 1
    for (uint32_t i = 0; i < 8; i += 2) {
        uint32_t words[2][N_WORDS];
        load_label<N_WORDS>(words[0], lot, i);
        load_label<N_WORDS>(words[1], lot, i + 1);
        uint32_t product[PAIRS][4];
        cn_label_products<N_WORDS, PAIRS>(product, words[0], words[1], q.words);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            bool below = false;
            const bool valid = WHOLE || label_is_valid(x, lot, i + k, below);
            const uint16_t bits = lot.scales[(i + k) * CN_WARP];
            const float scale = below ? CUDART_NAN_F : __half2float(__ushort_as_half(bits));
            float logit[2 * PAIRS];
#pragma unroll
            for (uint32_t h = 0; h < 2 * PAIRS; h++)
                logit[h] = cn_label_logit_of(product[h / 2][2 * k + h % 2], scale, q.factor[h]);
            cn_label_add<WHOLE>(pass, logit, valid && !below);
            if (valid) cn_label_store(p, row, logit);
            row += stride;
        }
    }
    cn_label_weights(own, pass, first);
}

/* Computes a lot under rule max. sum: of head cn_label_head(), if the group has no more than 32. */
template <int N_WORDS>
__device__ static inline void label_max(const cn_score_params &p, const cn_score_part &x,
                                        const ring_memory &m, const label_lot &lot, bool whole,
                                        cn_label_query<N_WORDS, PAIRS> &q, cn_exp_sum &sum)
{
    cn_lot_weights own = {0, CN_EXPONENT_BASE};
#pragma unroll 1
    for (uint32_t first = 0; first < p.group; first += CN_LABEL_HEADS) {
        if (p.group > CN_LABEL_HEADS)
            q = cn_label_load<N_WORDS, PAIRS>(m.labels, N_WORDS, label_factors(p, m), first,
                                              p.group);
        if (whole) label_heads<N_WORDS, true>(p, x, lot, q, first, own);
        else label_heads<N_WORDS, false>(p, x, lot, q, first, own);
        const uint32_t next = first + CN_LABEL_HEADS;
        const uint32_t head = first / CN_WARP * CN_WARP + cn_label_head();
        if (p.group > CN_WARP && (next % CN_WARP == 0 || next >= p.group) && head < p.group)
            add_lot(m, head, own);
    }
    if (p.group <= CN_WARP) sum = cn_exp_sum_add_lot(sum, own.sum, own.top);
}

/* Computes a lot with one query for the group. */
template <int N_WORDS, bool WHOLE>
__device__ static inline void label_mean(const cn_score_part &x, const label_lot &lot,
                                         const cn_label_query<N_WORDS, 1> &q)
{
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
        uint32_t words[2][N_WORDS];
        load_label<N_WORDS>(words[0], lot, i);
        load_label<N_WORDS>(words[1], lot, i + 1);
        uint32_t product[1][4];
        bool valid[2];
        float logit[2];
        cn_label_products<N_WORDS, 1>(product, words[0], words[1], q.words);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            bool below = false;
            valid[k] = WHOLE || label_is_valid(x, lot, i + k, below);
            const uint16_t bits = lot.scales[(i + k) * CN_WARP];
            const float scale = below ? CUDART_NAN_F : __half2float(__ushort_as_half(bits));
            logit[k] = cn_label_logit_of(product[0][2 * k], scale, q.factor[0]);
        }
        const uint32_t both = cn_score_of_f16x2(cn_f16x2(logit[0], logit[1]));
        if (valid[0]) lot.score[i * CN_WARP] = (uint16_t)both;
        if (valid[1]) lot.score[(i + 1) * CN_WARP] = (uint16_t)(both >> 16);
    }
}

/* Waits for a lot of labels. */
template <int N_WORDS>
__device__ static inline void label_wait(const cn_feed &f, label_lot &lot)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    const unsigned char *keys = cn_feed_wait(f);
    lot.labels = keys + lane * N_WORDS * sizeof(uint32_t);
    lot.scales = (const uint16_t *)(keys + CN_FEED_LABELS * N_WORDS * sizeof(uint32_t)) + lane;
}

/* Computes the warp's lots of a part under rule max. A lane keeps the sum of its head until the
 * end, if the group has no more than 32 heads. known: as in cn_feed_find. */
template <int N_WORDS>
__device__ static inline void compute_max(const cn_score_params &p, const cn_score_part &x,
                                          const ring_memory &m, cn_feed &f, uint32_t known)
{
    const uint32_t warp = threadIdx.x / CN_WARP, head = cn_label_head();
    cn_label_query<N_WORDS, PAIRS> q =
        cn_label_load<N_WORDS, PAIRS>(m.labels, N_WORDS, label_factors(p, m), 0, p.group);
    cn_exp_sum sum = {};
    for (uint32_t i = warp; i < x.n_lots; i += m.n_workers) {
        bool whole;
        label_lot lot = label_lot_of(p, x, (x.lot + i) << CN_LOT_MAX_LOG2, whole);
        label_wait<N_WORDS>(f, lot);
        label_max<N_WORDS>(p, x, m, lot, whole, q, sum);
        cn_feed_release(f, p, known);
    }
    if (p.group <= CN_WARP && head < p.group) m.sums[head * m.n_workers + warp] = sum;
}

/* Computes the warp's lots of a part with one query for the group. */
template <int N_WORDS>
__device__ static inline void compute_mean(const cn_score_params &p, const cn_score_part &x,
                                           const ring_memory &m, cn_feed &f, uint32_t known)
{
    const cn_label_query<N_WORDS, 1> q =
        cn_label_load<N_WORDS, 1>(m.labels, N_WORDS, label_factors(p, m), 0, 1);
    for (uint32_t i = threadIdx.x / CN_WARP; i < x.n_lots; i += m.n_workers) {
        bool whole;
        label_lot lot = label_lot_of(p, x, (x.lot + i) << CN_LOT_MAX_LOG2, whole);
        label_wait<N_WORDS>(f, lot);
        if (whole) label_mean<N_WORDS, true>(x, lot, q);
        else label_mean<N_WORDS, false>(x, lot, q);
        cn_feed_release(f, p, known);
    }
}

template <int N_WORDS>
__device__ static inline void compute_labels(const cn_score_params &p, const cn_score_part &x,
                                             const ring_memory &m, cn_feed &f, uint32_t known)
{
    if (x.stage.group == CN_GROUP_MAX) compute_max<N_WORDS>(p, x, m, f, known);
    else compute_mean<N_WORDS>(p, x, m, f, known);
}

/* ---- rows and bounds ---- */

/* sums[16, 8] = keys[16, d] * table[8, d]^T. keys: a lot of K rows as a tensor map copies them.
 * q: row g of the table (g = lane / 4). */
__device__ static inline void dot_rows(float sums[4], const unsigned char *keys, const cn_bf16 *q,
                                       uint32_t d)
{
    const uint32_t lane = threadIdx.x % CN_WARP, t = lane % 4;
    const uint4 *values = (const uint4 *)q + 2 * t;
    uint32_t at = cn_shared_address(keys) + cn_chunk_at(ROWS, lane % ROWS, lane / ROWS);
    float even[4] = {}, odd[4] = {}; /* two chains of sums hide latency */
#pragma unroll 1
    for (uint32_t box = 0; box < d; box += CN_BOX_COLS, at += ROWS * CN_ROW_BYTES, values += 8) {
        const uint4 b[2] = {values[0], values[1]};
        uint32_t a[4][4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) cn_ldmatrix(a[k], at ^ k * 2 * CN_CHUNK_BYTES);
        cn_mma(even, a[0], b[0].x, b[0].y);
        cn_mma(odd, a[1], b[0].z, b[0].w);
        cn_mma(even, a[2], b[1].x, b[1].y);
        cn_mma(odd, a[3], b[1].z, b[1].w);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) sums[i] = even[i] + odd[i];
}

/* sums[0], sums[1]: of key g with the columns 2 t and 2 t + 1 (g = lane / 4, t = lane % 4) of
 * keys[8, width] * table[8, width]^T. keys: key g; q: row g of the table.
 *
 * The product takes the four words of a lane as those of two rows: the first and third are of row
 * g, the others of row g + 8. It is multiplied by the values for the former, and then by those for
 * the latter; of each product only these rows are used. */
__device__ static inline void dot_bounds(float sums[4], const uint4 *keys, const uint4 *q,
                                         uint32_t width)
{
    const uint32_t t = threadIdx.x % 4, vecs = width / CN_VEC8;
    const uint4 none = make_uint4(0, 0, 0, 0);
    float low[4] = {}, high[4] = {};
#pragma unroll 1
    for (uint32_t from = t; from < vecs + t; from += 16) {
        uint4 a[4], b[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            a[i] = from + 4 * i < vecs ? keys[from + 4 * i] : none;
            b[i] = from + 4 * i < vecs ? q[from + 4 * i] : none;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t words[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
            cn_mma(low, words, b[i].x, b[i].z);
            cn_mma(high, words, b[i].y, b[i].w);
        }
    }
    sums[0] = low[0] + high[2];
    sums[1] = low[1] + high[3];
    sums[2] = sums[3] = 0;
}

/* The candidates of a lane: those of the product's rows g and g + 8 (g = lane / 4); of bounds only
 * the first. */
typedef struct key_two {
    int32_t c;               /* the first; may be below 0 if it is not valid */
    bool valid[2], below[2]; /* below: the base */
} key_two;

/* Returns the number in the lot of the key of row g. Odd rows are bounds of the lot's second half,
 * which is shifted. */
template <bool IS_ROWS> __device__ static inline uint32_t key_of_lane()
{
    const uint32_t g = threadIdx.x % CN_WARP / 4;
    return IS_ROWS ? g : g % 2 * 4 + g / 2;
}

/* Returns where the lane's bound begins. */
__device__ static inline const uint4 *bounds_of_lane(const cn_score_params &p,
                                                     const unsigned char *lot)
{
    const uint32_t half = cn_feed_lot_bytes(p, false) / 2;
    const uint32_t at = key_of_lane<false>() * (half / 4);
    return (const uint4 *)(lot + at + (at < half ? 0 : CN_FEED_SHIFT));
}

template <bool IS_ROWS>
__device__ static inline key_two two_of(const cn_score_params &p, const cn_score_part &x,
                                        uint32_t start)
{
    const uint32_t entry = x.stage.entry_log2;
    const bool may_be_below = x.stage.in_tiles && x.base > 0;
    key_two two = {};
    two.c = ((int32_t)(start - x.from) >> entry) + (int32_t)key_of_lane<IS_ROWS>();
    two.valid[0] = true;
    two.valid[1] = IS_ROWS;
    const bool whole = start >= x.from && start + (1u << x.lot_log2) <= x.to;
    if (whole && !may_be_below) return two;
#pragma unroll
    for (uint32_t k = 0; k < (IS_ROWS ? 2 : 1); k++) {
        const uint32_t at = start + ((key_of_lane<IS_ROWS>() + 8 * k) << entry);
        two.valid[k] = at >= x.from && at < x.to;
        two.below[k] = may_be_below && cn_score_token_of(p, x, at).position < x.base;
    }
    return two;
}

/* Sets the logits of a lane, of the heads first + 2 t and the next (t = lane % 4), and stores
 * them. */
__device__ static inline void store_heads(const cn_score_params &p, uint16_t *rows,
                                          const key_two &two, uint32_t first, const float sums[4],
                                          float factor, float logit[2][2])
{
    const uint32_t head = first + 2 * (threadIdx.x % 4);
    uint16_t *row = rows + two.c * (int32_t)p.row + (int32_t)head;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            logit[i][k] = two.below[k] ? CUDART_NAN_F : sums[2 * k + i] * factor;
        if (two.valid[k] && head < p.row)
            cn_store_kept(row + k * 8 * p.row, cn_f16x2(logit[0][k], logit[1][k]));
    }
}

/* Stores the scores under the mean query, the sums of columns 0 and 1. */
__device__ static inline void store_mean(uint16_t *out, const key_two &two, const float sums[4],
                                         float factor)
{
    float score[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        score[k] = two.below[k] ? CUDART_NAN_F : (sums[2 * k] + sums[2 * k + 1]) * factor;
    const uint32_t bits = cn_score_of_f16x2(cn_f16x2(score[0], score[1]));
    if (threadIdx.x % 4 > 0) return;
    if (two.valid[0]) out[two.c] = (uint16_t)bits;
    if (two.valid[1]) out[two.c + 8] = (uint16_t)(bits >> 16);
}

/* Computes the warp's lots of a part of rows, or else of bounds. Lanes keep the weights until the
 * end, if all heads are computed at once. known: as in cn_feed_find. */
template <bool IS_ROWS>
__device__ static inline void compute_keys(const cn_score_params &p, const cn_score_part &x,
                                           const ring_memory &m, cn_feed &f, uint32_t known)
{
    const uint32_t d = p.args.pools.layout.head_dim, g = threadIdx.x % CN_WARP / 4;
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    const uint32_t width = IS_ROWS ? d : 2 * d, n_rows = is_max ? p.group : 2;
    const float factor = cn_score_scale_of(p, x);
    uint16_t *const rows = cn_score_rows(p, x.stored), *const out = p.args.out + x.first;
    cn_key_sums weights = {};
    for (uint32_t i = threadIdx.x / CN_WARP; i < x.n_lots; i += m.n_workers) {
        const key_two two = two_of<IS_ROWS>(p, x, (x.lot + i) << x.lot_log2);
        const unsigned char *keys = cn_feed_wait(f);
#pragma unroll 1
        for (uint32_t first = 0; first < n_rows; first += HEADS) {
            float sums[4], logit[2][2];
            const uint32_t head = first + cn_key_head();
            const cn_bf16 *q = m.table + min(first + g, n_rows - 1) * (width + TABLE_PAD);
            if (IS_ROWS) dot_rows(sums, keys, q, d);
            else dot_bounds(sums, bounds_of_lane(p, keys), (const uint4 *)q, width);
            if (first + HEADS >= n_rows) cn_feed_release(f, p, known);
            if (!is_max) {
                store_mean(out, two, sums, factor);
                continue;
            }
            store_heads(p, rows, two, first, sums, factor, logit);
            const bool has[2] = {two.valid[0] && !two.below[0], two.valid[1] && !two.below[1]};
            const bool full = cn_key_add(weights, logit, has[0], has[1]);
            if (!full && p.group <= HEADS) continue;
            const cn_lot_weights lot = cn_key_close(weights);
            if (head < min(first + HEADS, p.group)) add_lot(m, head, lot);
            if (full) cn_key_add(weights, logit, has[0], has[1]);
        }
    }
    const cn_lot_weights lot = cn_key_close(weights);
    if (is_max && cn_key_head() < p.group) add_lot(m, cn_key_head(), lot);
}

/* ---- hashes ---- */

__device__ static inline void compute_hashes(const cn_score_params &p, const cn_score_part &x)
{
    const uint32_t start = x.lot << x.lot_log2, end = (x.lot + x.n_lots) << x.lot_log2;
    for (uint32_t at = start + threadIdx.x; at < end; at += THREADS) {
        const cn_score_token t = cn_score_token_of(p, x, at);
        if (t.valid) p.args.out[x.first + at - x.from] = cn_score_hash(p, x, t);
    }
}

/* ---- the kernel ---- */

/* Writes the sums of the part, and where they are. */
__device__ static inline void store_sums(const cn_score_params &p, const cn_score_part &x,
                                         const ring_memory &m)
{
    for (uint32_t h = threadIdx.x; h < p.group; h += THREADS) {
        const cn_exp_sum *of_warps = m.sums + h * m.n_workers;
        cn_exp_sum sum = of_warps[0];
        for (uint32_t w = 1; w < m.n_workers; w++) sum = cn_exp_sum_add(sum, of_warps[w]);
        p.slots[(size_t)x.slot * p.group + h] = sum;
    }
    if (threadIdx.x == 0) p.units[x.at.index] = {x.first_slot, x.n_slots};
}

/* Computes part `number`. The one behind it is known. */
template <bool ROWS_ONLY>
__device__ static inline void compute_part(const cn_score_params &p, const ring_memory &m,
                                           cn_feed &f, uint32_t number)
{
    const cn_score_part &x = m.fixed->feed.parts.part[number % 2];
    const uint32_t warp = threadIdx.x / CN_WARP;
    const uint32_t key = ROWS_ONLY ? CN_KEY_ROWS : x.stage.key;
    const query_ahead ahead = load_ahead(p, x, m, key);
    cn_feed_fill(f, p, number);
    load_query(p, x, m, key, ahead);
    __syncthreads(); /* the query is ready */
    cn_feed_fill(f, p, number + 1);
    if (key == CN_KEY_HASH) {
        compute_hashes(p, x);
    } else if (warp < m.n_workers) {
        if (key == CN_KEY_ROWS) compute_keys<true>(p, x, m, f, number + 1);
        else if (key == CN_KEY_BOUNDS) compute_keys<false>(p, x, m, f, number + 1);
        else if (p.label_bytes == 16) compute_labels<4>(p, x, m, f, number + 1);
        else compute_labels<2>(p, x, m, f, number + 1);
    }
    if (!cn_score_is_max(x.stage)) return;
    __syncthreads();
    store_sums(p, x, m);
}

/* ROWS_ONLY: all stages rank K rows. */
template <bool ROWS_ONLY>
__device__ static inline void run(const cn_score_params &p, const ring_shape &shape,
                                  const CUtensorMap *rows)
{
    extern __shared__ __align__(ROW_ALIGN) unsigned char dynamic[];
    __shared__ ring_fixed fixed;
    ring_memory m;
    m.fixed = &fixed;
    m.table = (cn_bf16 *)(dynamic + shape.query_at);
    m.sums = (cn_exp_sum *)(dynamic + shape.sums_at);
    m.n_workers = shape.feed.n_workers;
    cn_touch_params(p);
    cn_feed_init(&fixed.feed, shape.feed.n_stages);
    if (!p.early) cn_wait_previous();
    cn_score_plan plan =
        cn_score_divide<THREADS>(p, (cn_score_seq *)(dynamic + shape.seqs_at));
#pragma unroll 1
    for (uint32_t i = 0; i < 2; i++) cn_score_find(plan, p, i, &fixed.feed.parts);
    __syncthreads();
    cn_feed f = cn_feed_of(shape.feed, dynamic, &fixed.feed, rows);
    const bool in_tiles = fixed.feed.parts.part[0].stage.in_tiles;
    const uint8_t channel = load_channel(p, fixed.feed.parts.part[0]); /* before the keys */
    if (!in_tiles)
        cn_feed_fill_upto(f, p, 0, p.first_row > 0 ? shape.feed.n_stages : EARLY_STAGES);
    if (threadIdx.x < CN_WARP) fixed.channels[threadIdx.x] = channel;
    cn_wait_previous();
    cn_overlap_next(); /* after the wait: see score_share.cu */
    __syncthreads();
    for (uint32_t i = 0; fixed.feed.parts.part[i % 2].n_lots > 0; i++) {
        if (i > 0) {
            const uint8_t next = load_channel(p, fixed.feed.parts.part[i % 2]);
            if (threadIdx.x < CN_WARP) fixed.channels[threadIdx.x] = next;
            cn_score_find(plan, p, i + 1, &fixed.feed.parts);
            __syncthreads();
        }
        compute_part<ROWS_ONLY>(p, m, f, i);
        __syncthreads();
    }
}

#endif

__global__ static void __launch_bounds__(THREADS, CN_SCORE_BLOCKS)
    ring_kernel(const __grid_constant__ cn_score_params p,
                const __grid_constant__ ring_shape shape,
                const __grid_constant__ CUtensorMap rows)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    run<false>(p, shape, &rows);
#endif
}

/* The same for launches that rank K rows only. Besides its blocks a multiprocessor has room for
 * small blocks of other kernels: the shares of the layer before, and pushes or `predict`. */
__global__ static void __maxnreg__(96)
    row_kernel(const __grid_constant__ cn_score_params p,
               const __grid_constant__ ring_shape shape,
               const __grid_constant__ CUtensorMap rows)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    run<true>(p, shape, &rows);
#endif
}

/* ---- on the host ---- */

/* Divides half of a multiprocessor's shared memory. Returns false if it is too small for a ring. */
static bool shape_of(const cn_stream *s, const cn_score_params &p, ring_shape *shape)
{
    const cn_score_args *a = &p.args;
    const uint32_t d = a->pools.layout.head_dim, heads = a->logits ? p.group : 1;
    const bool has_labels = cn_score_may_have(p, CN_KEY_LABELS);
    const bool has_bounds = cn_score_may_have(p, CN_KEY_BOUNDS);
    const bool has_rows = cn_score_may_have(p, CN_KEY_ROWS), has_keys = has_bounds || has_rows;
    const uint32_t align = has_rows ? ROW_ALIGN : ALIGN;
    const uint32_t width = has_bounds ? 2 * d : d;
    const size_t half = (s->cuda->device.shared_bytes + RESERVED_BYTES) / CN_SCORE_BLOCKS -
                        RESERVED_BYTES - STATIC_BYTES;
    const size_t labels = has_labels ? p.group * (2 * p.label_bytes + sizeof(float)) : 0;
    const uint32_t rows = has_keys ? cn_max_u32(heads, 2) : 0;
    const size_t table = rows * (width + TABLE_PAD) * sizeof(cn_bf16);
    const size_t query = labels > table ? (labels + 15) / 16 * 16 : table;
    const size_t sums = a->logits ? p.group * CN_FEED_WARPS * sizeof(cn_exp_sum) : 0;
    const size_t rest = query + sums + cn_score_seqs_bytes(a);
    const uint32_t shift = has_bounds ? CN_FEED_SHIFT : 0;
    shape->feed.stage_bytes = cn_max_u32(has_labels ? cn_feed_lot_bytes(p, true) : 0,
                                         has_keys ? cn_feed_lot_bytes(p, false) + shift : 0);
    shape->feed.stage_bytes = (shape->feed.stage_bytes + align - 1) / align * align;
    if (shape->feed.stage_bytes == 0) shape->feed.stage_bytes = align; /* hashes have no keys */
    const uint32_t stage_bytes = shape->feed.stage_bytes;
    const size_t stages = rest < half ? (half - rest) / stage_bytes : 0;
    uint32_t n_workers = CN_FEED_WARPS;
    while (n_workers > 1 && stages / n_workers < LEAST_STAGES) n_workers /= 2;
    shape->feed.n_workers = n_workers;
    shape->feed.n_stages = cn_min_u32((uint32_t)(stages / n_workers), CN_FEED_STAGES);
    shape->query_at = n_workers * shape->feed.n_stages * stage_bytes;
    shape->sums_at = shape->query_at + (uint32_t)query;
    shape->seqs_at = shape->sums_at + (uint32_t)sums;
    return shape->feed.n_stages > 0;
}

bool cn_score_ring_fits(const cn_stream *s, const cn_score_params &p)
{
    const cn_score_args *a = &p.args;
    const bool labels = cn_score_may_have(p, CN_KEY_LABELS) && a->pools.digest.labels;
    const bool has_rows = cn_score_may_have(p, CN_KEY_ROWS), rows = has_rows && a->pools.kv;
    const cn_kv_layout *l = &a->pools.layout;
    ring_shape shape;
    const bool depends = has_rows || cn_score_may_have(p, CN_KEY_BOUNDS); /* on other requests */
    return cn_attn_has_bulk(s) && a->max_queries <= 1 &&
           (!s->cuda->opts.batch_invariant || !depends) &&
           (!labels || p.label_bytes == 8 || p.label_bytes == 16) &&
           (!rows || (l->head_dim % CN_BOX_COLS == 0 && l->tile_tokens >= ROWS &&
                      cn_kv_rows_of(l).total <= INT32_MAX)) &&
           shape_of(s, p, &shape);
}

/* Encodes a map of the pool whose box is a lot of K rows: 64 columns, rows, the other columns of
 * the rows. The last dimension is that of cn_tma_load. */
static cn_status map_rows(CUtensorMap *map, const cn_pools &pools)
{
    const uint32_t d = pools.layout.head_dim;
    const uint64_t n_rows = cn_kv_rows_of(&pools.layout).total;
    const cn_map_shape shape = {CN_MAP_DIMS,
                                {CN_BOX_COLS, n_rows, d / CN_BOX_COLS, 1},
                                {1, d, CN_BOX_COLS, n_rows * d},
                                {CN_BOX_COLS, ROWS, d / CN_BOX_COLS, 1}};
    return cn_map_encode(map, pools.kv, &shape);
}

cn_status cn_score_ring(cn_stream *s, const cn_score_params &p)
{
    ring_shape shape;
    CUtensorMap rows = {};
    const bool fits = shape_of(s, p, &shape);
    CN_ASSERT(fits);
    if (cn_score_may_have(p, CN_KEY_ROWS) && p.args.pools.kv) CN_TRY(map_rows(&rows, p.args.pools));
    const bool rows_only = p.args.keys == 1u << CN_KEY_ROWS;
    const auto kernel = rows_only ? row_kernel : ring_kernel;
    const uint32_t n_blocks = CN_SCORE_BLOCKS * s->cuda->device.n_sms;
    const size_t bytes = shape.seqs_at + cn_score_seqs_bytes(&p.args);
    return cn_cuda_launch(s, "score: ring", kernel, {dim3(n_blocks), THREADS, bytes}, p, shape,
                          rows);
}
