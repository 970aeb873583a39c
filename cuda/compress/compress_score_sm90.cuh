/* compress_score_sm90.cuh - parts of compress_score_sm90.cu: the structure of its thread blocks,
 * and the cosines of a span's keys.
 *
 * A team is two warpgroups and has one span. The span's keys are in shared memory as rows of wgmma
 * products, 64 rows per strip, two strips per warpgroup. Register i of a product holds row half
 * i / 2 % 2 of column i / 4 * 8 + lane % 4 * 2 + i % 2. The four lanes of a quad therefore have the
 * same four rows in two strips, and each lane stores the result of one of them. */
#pragma once

#include "cuda/attn/attn_common.cuh"
#include "cuda/compress/compress.cuh"
#include "cuda/hopper.cuh"

enum {
    SPAN = CN_COMPRESS_SPAN,
    STRIP = 64,   /* slots of one product */
    COLUMNS = 64, /* queries * heads of one round */
    STRIPS = SPAN / STRIP,
    TEAM_GROUPS = 2,            /* warpgroups of a team */
    OWN = STRIPS / TEAM_GROUPS, /* strips of a warpgroup */
    TEAM = TEAM_GROUPS * CN_WARPGROUP,
    TEAM_WARPS = TEAM / CN_WARP,
    TEAM_BARRIER = 1,         /* of the first team */
    SHARERS = TEAM / COLUMNS, /* threads that merge measures of one column */
    VALUES = COLUMNS / 4,     /* columns of a thread */
    SUMS = COLUMNS / 2,       /* registers of a product of COLUMNS columns */
    AT_ONCE = 4,              /* measures that a thread loads before it merges them */
    PANEL = 2 * STRIP,        /* columns of a product for cosines; STRIP for small blocks */
    PANEL_VALUES = PANEL / 4, /* of a row in a lane; padding puts a quad's reads in other banks */
    ATOM = 8,                 /* columns of one head: consecutive rows of the window's ring */
    ATOMS = COLUMNS / ATOM,
    MAX_GROUP = ATOMS,
    MAX_HEAD_DIM = 256
};

/* Sums of cosines to subtract are counted in integer steps, because integer sums do not depend on
 * their order. The 256 cosines of a block stay below 2^31. */
static const float COSINE_STEPS = 4194304.0f;

/* The largest logit of a query that sees no slot: every exponential relative to it is 0. */
static const float LEAST = -1e30f;

/* The steps that a launch runs. */
enum { MEASURE = 1, WEIGH = 2 };

typedef struct score_params {
    cn_compress_chunk c;
    cn_kv_rows rows; /* of the pool, unless it is in eight bits */
    uint32_t steps;
    uint32_t group_shift; /* log2 of G */
    uint32_t n_rounds;    /* of the window */
    float scale;          /* log2(e) / sqrt(d), for base-2 logits */
    float2 *measures;     /* [units, n_spans, window * group] largest logit, sum relative to it */
} score_params;

/* The span that a team works on. */
typedef struct score_span {
    const cn_compress_job *job;
    uint32_t layer, kv_head, unit, span;
    uint32_t first; /* slot */
} score_span;

/* The layout of shared memory. Keys and queries are tiles of wgmma, in boxes of 64 columns. */
template <int D> struct score_plan {
    static constexpr uint32_t TEAMS = D <= 128 ? 2 : 1;
    static constexpr uint32_t THREADS = TEAMS * TEAM + CN_WARPGROUP;
    /* Registers per thread. At launch a thread has 65536 / THREADS, in multiples of eight. */
    static constexpr uint32_t COMPUTE_REGISTERS = TEAMS == 2 ? 112 : 232, FETCH_REGISTERS = 32;
    static constexpr uint32_t BOXES = D / CN_BOX_COLS;
    static constexpr uint32_t KEY_BOX = SPAN * CN_ROW_BYTES, QUERY_BOX = COLUMNS * CN_ROW_BYTES;
    static constexpr uint32_t TEAM_BYTES = BOXES * (KEY_BOX + QUERY_BOX);
    /* Codes of a span, for both teams in turn. For d above 128 there is no room; the codes are
     * where the team's keys will be. */
    static constexpr uint32_t CODE_BYTES = TEAMS == 2 ? SPAN * D : 0;
    static constexpr uint32_t BYTES = TEAMS * TEAM_BYTES + 1024;
};

/* Scales of the codes, and the barrier at which the warps of a team arrive that has read them. */
typedef struct code_shared {
    uint64_t empty;
    __align__(16) uint16_t scales[SPAN];
} code_shared;

/* Shared memory of a team besides its tiles. */
typedef struct team_shared {
    uint64_t keys_full, keys_empty, queries_full, queries_empty; /* barriers */
    uint64_t compared;                    /* barrier: the team is done with a span's cosines */
    float2 measures[TEAM_WARPS][COLUMNS]; /* largest logit and sum of column i * 4 + lane % 4 */
    float base[COLUMNS];                  /* logit - base = log2 of its weight */
    __align__(16) float inv_norm[SPAN / PANEL][4][PANEL_VALUES + 4]; /* ordered by lane % 4 */
    int32_t twins[SPAN];                     /* what is subtracted from sums of cosines, in steps */
    __align__(16) uint16_t key_scales[SPAN]; /* in eight bits */
    score_span span[2]; /* the current span and the next, which is written with its keys */
} team_shared;

/* The memory of a thread's team: its tiles and the rest. */
template <int D> struct team_place {
    unsigned char *keys, *queries, *codes;
    team_shared *shared;
    code_shared *coded;
    uint32_t strip; /* first strip of the warpgroup; used by threads that compute */

    __device__ team_place(unsigned char *tiles, team_shared *teams, code_shared *in_codes,
                          uint32_t team, uint32_t first_strip)
        : keys(tiles + team * score_plan<D>::TEAM_BYTES),
          queries(keys + score_plan<D>::BOXES * score_plan<D>::KEY_BOX),
          codes(score_plan<D>::CODE_BYTES ? tiles + score_plan<D>::TEAMS * score_plan<D>::TEAM_BYTES
                                          : keys),
          shared(teams + team), coded(in_codes), strip(first_strip)
    {
    }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ static inline void team_sync(void)
{
    cn_sync_some(TEAM_BARRIER + threadIdx.x / TEAM, TEAM);
}

/* Starts sums = rows * columns^T over D. Both are tiles whose boxes are row_box and column_box
 * bytes apart. */
template <int N, int D>
__device__ static __forceinline__ void begin_product(float *sums, const unsigned char *rows,
                                                     uint32_t row_box, const unsigned char *columns,
                                                     uint32_t column_box)
{
    cn_wgmma_begin();
    cn_wgmma_start<N, D>(sums, rows, row_box, columns, column_box);
}

/* Returns the first strip of a thread's warpgroup. */
__device__ static inline uint32_t first_strip(uint32_t thread)
{
    return thread % TEAM / CN_WARPGROUP * OWN;
}

/* Returns the row, a slot of the span, that the thread has in half h of its warpgroup's strip s. */
__device__ static inline uint32_t strip_row_of(uint32_t s, uint32_t h)
{
    const uint32_t warp = threadIdx.x % CN_WARPGROUP / CN_WARP, lane = threadIdx.x % CN_WARP;
    return (first_strip(threadIdx.x) + s) * STRIP + warp * 16 + lane / 4 + h * 8;
}

/* Each lane of a quad stores one of the quad's four rows. */
static_assert(OWN * 2 == 4, "a row for each lane of a quad");
__device__ static inline bool owns(uint32_t s, uint32_t h) { return threadIdx.x % 4 == s * 2 + h; }
__device__ static inline uint32_t own_row(void)
{
    return strip_row_of(threadIdx.x % 4 / 2, threadIdx.x % 2);
}

/* The register of value i in row half h of a product: column i / 2 * 8 + lane % 4 * 2 + i % 2. */
#define VALUE(i, h) ((i) / 2 * 4 + (h)*2 + (i) % 2)

/* ---- keys in eight bits ---- */

/* Returns the address of 1 / |key| of a slot; the value is 0 for a zero key, NaN if the key is. */
__device__ static inline float *inv_norm_of(team_shared *team, uint32_t slot)
{
    return &team->inv_norm[slot / PANEL][slot % 8 / 2][slot % PANEL / 8 * 2 + slot % 2];
}

/* Writes eight keys of a row to a tile, and adds their squares. */
__device__ static inline void expand_chunk(unsigned char *to, uint2 codes, float square[2])
{
    const uint4 x = cn_fp8_chunk(codes);
    float v[CN_VEC8];
    *(uint4 *)to = x;
    cn_unpack8(v, x);
#pragma unroll
    for (uint32_t j = 0; j < CN_VEC8; j++) square[j % 2] = fmaf(v[j], v[j], square[j % 2]);
}

/* Makes a tile of bf16 from the codes of a span, [SPAN, d]. A thread has a row. Neighbouring
 * threads read and write other pieces of their rows at the same time, in other banks. Computes
 * 1 / |key|, too: cosines of codes are those of their keys, but a scale may be NaN. */
template <int D> __device__ static inline void expand_keys(const team_place<D> &t, uint32_t d)
{
    static_assert(TEAM == SPAN, "a thread has a row");
    constexpr uint32_t PIECES = D / sizeof(uint4);
    const uint32_t row = threadIdx.x % TEAM;
    uint4 codes[PIECES];
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) {
        const uint32_t at = (i ^ row % PIECES) * sizeof(uint4);
        codes[i] = make_uint4(0, 0, 0, 0);
        if (at < d) codes[i] = *(const uint4 *)(t.codes + row * d + at);
    }
    const uint16_t scale = t.coded->scales[row];
    team_sync(); /* the codes are read, and the team is done with its last span */
    if (score_plan<D>::CODE_BYTES && threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&t.coded->empty);
    float square[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < PIECES; i++) {
        const uint32_t chunk = 2 * (i ^ row % PIECES);
        expand_chunk(t.keys + cn_chunk_at(SPAN, row, chunk), make_uint2(codes[i].x, codes[i].y),
                     square);
        expand_chunk(t.keys + cn_chunk_at(SPAN, row, chunk + 1), make_uint2(codes[i].z, codes[i].w),
                     square);
    }
    const float sum = square[0] + square[1];
    const float inv = isnan(cn_fp8_half(scale)) ? CUDART_NAN_F : sum == 0 ? 0 : rsqrtf(sum);
    *inv_norm_of(t.shared, row) = inv;
    t.shared->twins[row] = 0;
    t.shared->key_scales[row] = scale;
    cn_async_fence();
    team_sync();
}

/* ---- cosines ---- */

/* Computes 1 / |key| of the thread's own key. The pieces of sixteen bytes of a row may be read in
 * any order; in this order any eight lanes read from all banks. */
template <int D> __device__ static inline void find_norms(const team_place<D> &t)
{
    static_assert(TEAM == SPAN, "a thread has a row");
    const uint32_t row = threadIdx.x % TEAM;
    float square[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < D / CN_VEC8; i++) {
        const uint32_t box = i / 8 * score_plan<D>::KEY_BOX, vec = (i ^ row) % 8;
        float x[CN_VEC8];
        const unsigned char *at = t.keys + box + row * CN_ROW_BYTES + vec * sizeof(uint4);
        cn_unpack8(x, *(const uint4 *)at);
#pragma unroll
        for (uint32_t j = 0; j < CN_VEC8; j++) square[j % 2] = fmaf(x[j], x[j], square[j % 2]);
    }
    const float sum = square[0] + square[1];
    *inv_norm_of(t.shared, row) = sum == 0 ? 0 : rsqrtf(sum);
    t.shared->twins[row] = 0;
    team_sync();
}

/* The running result of a thread for its two rows of a strip. */
typedef struct row_pair {
    uint32_t row[2];
    float sum[2];       /* of products with keys scaled to length 1 */
    float threshold[2]; /* keys whose product is above it are candidates for the twin */
    float twin[2];      /* the product of the last candidate, the twin */
    int32_t last[2];    /* the row of the twin, or -1 */
} row_pair;

__device__ static __forceinline__ void begin_rows(row_pair &r, team_shared *team, float p,
                                                  uint32_t strip)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const float inv = *inv_norm_of(team, r.row[h] = strip_row_of(strip, h));
        r.threshold[h] = inv > 0 ? __fdividef(p, inv) : 0;
        r.sum[h] = r.twin[h] = 0;
        r.last[h] = -1;
    }
}

/* Returns x[VALUE(i, h)] for an i that is not known at compile time. */
template <int P>
__device__ static __forceinline__ float pick(const float x[P / 2], uint32_t h, uint32_t i)
{
    float v = x[VALUE(0, h)];
#pragma unroll
    for (uint32_t j = 1; j < P / 4; j++) v = i == j ? x[VALUE(j, h)] : v;
    return v;
}

/* Each value of a row in the panel that contains the row has a bit; the last value has bit 0.
 * Returns the bit of the row's own slot, or 0 if another thread has that slot. */
template <int P> __device__ static __forceinline__ uint32_t own_bit(uint32_t row)
{
    const uint32_t i = row % P / 8 * 2 + row % 2;
    return row / 2 % 4 == threadIdx.x % 4 ? 1u << (P / 4 - 1 - i) : 0;
}

/* Returns the bits of slots of other blocks. The panel must not be smaller than a block. */
template <int P>
__device__ static __forceinline__ uint32_t other_blocks(uint32_t row, uint32_t block_tokens)
{
    const uint32_t all = 0xffffffffu >> (32 - P / 4), each = block_tokens / 4; /* of a block */
    const uint32_t first = row % P / block_tokens * each;
    return all & ~(all >> (P / 4 - each) << (P / 4 - each - first));
}

/* Adds the panel of P columns from `column` on, including the row's own slot. Panels are visited
 * from the last to the first, so the last candidate, the twin, is found first. For each product
 * three instructions compute its distance below the threshold, add it up, and collect its sign.
 * They run in four independent chains. */
template <int P>
__device__ static __forceinline__ void add_panel(row_pair &r, const float x[P / 2],
                                                 team_shared *team, uint32_t column,
                                                 uint32_t block_tokens)
{
    constexpr uint32_t EACH = P / 4, HALF = EACH / 2; /* values of a row */
    constexpr uint32_t LOAD = sizeof(float4) / sizeof(float);
    constexpr bool mixed = P == STRIP; /* the panel may have slots of several blocks */
    const uint32_t first = column + threadIdx.x % 4 * 2;
    const float *inv_norm = inv_norm_of(team, first);
    uint32_t others[2] = {}, signs[2][2] = {}; /* by row half; signs of the first and last values */
    float distances[2][2] = {};
#pragma unroll
    for (uint32_t h = 0; mixed && h < 2; h++) others[h] = other_blocks<P>(r.row[h], block_tokens);
#pragma unroll
    for (uint32_t n = 0; n < EACH / LOAD; n++) {
        const uint32_t late = n % 2, from = late * HALF + n / 2 * LOAD;
        const float4 loaded = *(const float4 *)(inv_norm + from);
        const float inv[LOAD] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (uint32_t k = 0; k < 2 * LOAD; k++) {
            const uint32_t i = from + k / 2, h = k % 2;
            float distance = fmaf(-x[VALUE(i, h)], inv[k / 2], r.threshold[h]);
            signs[h][late] = __funnelshift_l(__float_as_uint(distance), signs[h][late], 1);
            if (mixed && others[h] >> (EACH - 1 - i) & 1) distance = r.threshold[h];
            distances[h][late] += distance;
        }
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        r.sum[h] += (float)EACH * r.threshold[h] - (distances[h][0] + distances[h][1]);
        uint32_t twins = (signs[h][0] << HALF | signs[h][1]) & ~others[h];
        if ((column ^ r.row[h]) < P) twins &= ~own_bit<P>(r.row[h]);
        if (twins == 0 || r.last[h] >= 0) continue;
        const uint32_t i = EACH - (uint32_t)__ffs((int)twins);
        r.twin[h] = pick<P>(x, h, i) * inv_norm[i];
        r.last[h] = (int32_t)(first + i / 2 * 8 + i % 2);
    }
}

/* Combines the rows' results over the quad. The lane that stores a row gets its sum, and adds the
 * cosine of the row's twin to the amount that is subtracted from the twin's row. */
__device__ static __forceinline__ void finish_rows(row_pair &r, team_shared *team, uint32_t s,
                                                   float *own_sum)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
        for (uint32_t lanes = 1; lanes < 4; lanes *= 2) {
            r.sum[h] += __shfl_xor_sync(0xffffffffu, r.sum[h], lanes);
            const int32_t last = __shfl_xor_sync(0xffffffffu, r.last[h], lanes);
            const float twin = __shfl_xor_sync(0xffffffffu, r.twin[h], lanes);
            r.twin[h] = last > r.last[h] ? twin : r.twin[h];
            r.last[h] = max(last, r.last[h]);
        }
        if (!owns(s, h)) continue;
        const float inv = *inv_norm_of(team, r.row[h]);
        *own_sum = inv == 0 ? 0 : r.sum[h] * inv - 1; /* minus its cosine with itself */
        if (r.last[h] >= 0)
            atomicAdd(&team->twins[r.last[h]], __float2int_rn(r.twin[h] * inv * COSINE_STEPS));
    }
}

/* Computes the rows' sums and twins. Cosines are symmetric, so the twin of a column is found in the
 * row of the same number. P is the columns of a panel: at most the block size, or STRIP if blocks
 * are smaller. */
template <int D, int P>
__device__ static inline void compare_rows(const team_place<D> &t, uint32_t block_tokens,
                                           float twin_p, float *own_sum)
{
    const uint32_t width = max(block_tokens, (uint32_t)STRIP); /* columns of a strip */
#pragma unroll 1
    for (uint32_t s = 0; s < OWN; s++) {
        const uint32_t row = (t.strip + s) * STRIP, n_panels = width / P;
        row_pair r;
        begin_rows(r, t.shared, twin_p, s);
#pragma unroll 1
        for (uint32_t i = 0; i < n_panels; i++) {
            const uint32_t column = (row & ~(width - 1)) + (n_panels - 1 - i) * P;
            float x[P / 2];
            begin_product<P, D>(x, t.keys + row * CN_ROW_BYTES, score_plan<D>::KEY_BOX,
                                t.keys + column * CN_ROW_BYTES, score_plan<D>::KEY_BOX);
            cn_wgmma_wait<0>();
            add_panel<P>(r, x, t.shared, column, block_tokens);
        }
        finish_rows(r, t.shared, s, own_sum);
    }
}

/* Two teams alternate in comparing. Without this they synchronise: both use the tensor cores at the
 * same time, and both wait for memory and other blocks at the same time. */
template <int D>
__device__ static inline void wait_turn(const team_place<D> &t, uint32_t team, uint32_t turn)
{
    if (score_plan<D>::TEAMS == 1) return;
    if (team == 1) cn_barrier_wait(&t.shared[-1].compared, turn & 1);
    if (team == 0 && turn > 0) cn_barrier_wait(&t.shared[1].compared, (turn & 1) ^ 1);
}

template <int D, bool FP8>
__device__ static inline void compare(const score_params &p, const score_span &span,
                                      const team_place<D> &t, uint32_t team, uint32_t turn)
{
    const uint32_t block_tokens = p.c.pools.layout.block_tokens;
    const float twin_p = span.job->redundancy_p;
    float own_sum = 0;
    wait_turn(t, team, turn);
    if (!FP8) find_norms<D>(t);
    if (block_tokens >= PANEL)
        compare_rows<D, PANEL>(t, block_tokens, twin_p, &own_sum);
    else
        compare_rows<D, STRIP>(t, block_tokens, twin_p, &own_sum);
    if (threadIdx.x % CN_WARP == 0) cn_barrier_arrive(&t.shared->compared);
    team_sync();
    const uint32_t row = own_row();
    if (span.first + row < p.c.n)
        p.c.redundancy[(size_t)span.unit * p.c.n + span.first + row] =
            own_sum - (float)t.shared->twins[row] / COSINE_STEPS;
}

#endif
