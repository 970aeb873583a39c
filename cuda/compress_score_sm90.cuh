/* compress_score_sm90.cuh - pieces of compress_score_sm90.cu: how its thread blocks are made up,
 * and the cosines of a span's keys.
 *
 * A team, one warpgroup, has a span: its keys in shared memory as rows of wgmma products, 64 rows a
 * strip. Register i of a product holds row half i / 2 % 2 of column i / 4 * 8 + lane % 4 * 2 + i %
 * 2, so that a quad of lanes has rows in common; of what is found for its eight rows each lane
 * stores the two of one strip. */
#ifndef CN_CUDA_COMPRESS_SCORE_SM90_CUH
#define CN_CUDA_COMPRESS_SCORE_SM90_CUH

#include "cuda/attn_common.cuh"
#include "cuda/compress.cuh"
#include "cuda/hopper.cuh"

enum {
    SPAN = CN_COMPRESS_SPAN,
    STRIP = 64,   /* slots of one product */
    COLUMNS = 64, /* queries times heads of one round */
    STRIPS = SPAN / STRIP,
    TEAM = CN_WARPGROUP,
    TEAM_WARPS = TEAM / CN_WARP,
    TEAM_BARRIER = 1,                       /* the first team's */
    QUERY_THREADS = CN_WARPGROUP - CN_WARP, /* that fetch queries */
    SHARERS = TEAM / COLUMNS,               /* threads that merge measures of one column */
    VALUES = COLUMNS / 4,                   /* columns of a thread */
    SUMS = COLUMNS / 2,                     /* registers of a product of COLUMNS columns */
    MAX_GROUP = 16,
    MAX_HEAD_DIM = 256
};

/* Sums of cosines to take away are counted in whole steps: additions of integers give the same in
 * every order. A block's 256 cosines stay below 2^31. */
static const float COSINE_STEPS = 4194304.0f;

/* Which steps a launch takes. */
enum { MEASURE = 1, WEIGH = 2 };

typedef struct score_params {
    cn_compress_chunk c;
    uint32_t steps;
    uint32_t group_shift; /* log2 of G */
    uint32_t n_rounds;    /* of the window */
    float scale;          /* log2(e) / sqrt(d): logits are of base 2 */
    uint32_t *n_measured; /* [units] spans that have; 0 before the measuring launch */
    float2 *measures;     /* [units, n_spans, window * group] largest logit, sum relative to it */
} score_params;

/* What a team has in hand. */
typedef struct score_span {
    const cn_compress_job *job;
    uint32_t layer, kv_head, unit, span;
    uint32_t first; /* slot */
} score_span;

/* How shared memory is divided: keys and queries are tiles of wgmma, boxes of 64 columns. */
template <int D> struct score_plan {
    static constexpr uint32_t TEAMS = D <= 128 ? 3 : 1, STAGES = TEAMS;
    static constexpr uint32_t THREADS = TEAMS * TEAM + CN_WARPGROUP;
    /* Of a thread, of the launch's 65536 / THREADS in eights. */
    static constexpr uint32_t COMPUTE_REGISTERS = TEAMS == 3 ? 160 : 240, FETCH_REGISTERS = 32;
    static constexpr uint32_t BOXES = D / CN_BOX_COLS;
    static constexpr uint32_t KEY_BOX = SPAN * CN_ROW_BYTES, QUERY_BOX = COLUMNS * CN_ROW_BYTES;
    static constexpr uint32_t BYTES = BOXES * (STAGES * KEY_BOX + QUERY_BOX) + 1024;
};

/* Static shared memory of a team. */
typedef struct team_shared {
    float2 measures[TEAM_WARPS][COLUMNS]; /* column i * 4 + lane % 4, largest and sum */
    float base[COLUMNS];                  /* what turns a logit into log2 of its weight */
    float inv_norm[SPAN];
    int32_t twins[SPAN]; /* what sums of cosines lose, in steps */
} team_shared;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ static inline void team_sync(void)
{
    cn_sync_some(TEAM_BARRIER + threadIdx.x / TEAM, TEAM);
}

/* Begins sums = rows * columns^T over D, both tiles; boxes of theirs so many bytes apart. */
template <int N, int D>
__device__ static __forceinline__ void begin_product(float *sums, const unsigned char *rows,
                                                     uint32_t row_box, const unsigned char *columns,
                                                     uint32_t column_box)
{
    const uint64_t a = cn_wgmma_tile(rows), b = cn_wgmma_tile(columns);
    cn_wgmma_begin();
#pragma unroll
    for (uint32_t k = 0; k < D / 16; k++) {
        const uint32_t step = k % 4 * CN_WGMMA_NEXT_K;
        cn_wgmma<N>(sums, a + k / 4 * (row_box >> 4) + step, b + k / 4 * (column_box >> 4) + step,
                    k > 0);
    }
    cn_wgmma_commit();
}

/* The row, a slot of the span, that the thread has in strip s, half h. */
__device__ static inline uint32_t row_of(uint32_t s, uint32_t h)
{
    return s * STRIP + threadIdx.x % TEAM / CN_WARP * 16 + threadIdx.x % CN_WARP / 4 + h * 8;
}

/* The two rows of which the thread stores what is found. */
__device__ static inline uint32_t own_row(uint32_t h) { return row_of(threadIdx.x % 4, h); }

/* ---- cosines ---- */

/* inv_norm of all keys, 0 for a zero key. */
template <int D>
__device__ static inline void prepare_cosines(const unsigned char *keys, team_shared *team)
{
#pragma unroll 1
    for (uint32_t row = threadIdx.x % TEAM; row < SPAN; row += TEAM) {
        float sum = 0;
#pragma unroll 4
        for (uint32_t chunk = 0; chunk < D / CN_VEC8; chunk++) {
            float k[CN_VEC8];
            cn_unpack8(k, *(const uint4 *)(keys + cn_chunk_at(SPAN, row, chunk)));
#pragma unroll
            for (uint32_t i = 0; i < CN_VEC8; i++) sum += k[i] * k[i];
        }
        team->inv_norm[row] = sum > 0 ? 1.0f / sqrtf(sum) : 0;
        team->twins[row] = 0;
    }
    team_sync();
}

/* What a thread knows of its two rows of a strip. */
typedef struct row_pair {
    uint32_t row[2];
    float sum[2];       /* of products with keys of length 1 */
    float threshold[2]; /* such products above it belong to twins */
    float twin[2];      /* the product of the last of them */
    int32_t last[2];    /* its row, or -1 */
} row_pair;

/* Adds the panel's P columns from `column` on. With P of STRIP blocks may be smaller. */
template <int P>
__device__ static __forceinline__ void add_panel(row_pair &r, const float x[P / 2],
                                                 const float inv_norm[SPAN], uint32_t column,
                                                 uint32_t block_tokens)
{
    const uint32_t first = column + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        int32_t last = -1;
#pragma unroll
        for (uint32_t j = 0; j < P / 8; j++) {
            const float2 inv = *(const float2 *)&inv_norm[first + j * 8];
#pragma unroll
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t at = first + j * 8 + e;
                float y = x[4 * j + 2 * h + e] * (e == 0 ? inv.x : inv.y);
                if (at == r.row[h]) y = 0;
                bool twin = y > r.threshold[h];
                if (P == STRIP && (at ^ r.row[h]) >= block_tokens) {
                    y = 0;
                    twin = false;
                }
                r.sum[h] += y;
                last = twin ? (int32_t)(j * 8 + e) : last;
                r.twin[h] = twin ? y : r.twin[h];
            }
        }
        if (last >= 0) r.last[h] = (int32_t)first + last;
    }
}

__device__ static __forceinline__ void begin_rows(row_pair &r, const team_shared *team, float p,
                                                  uint32_t strip)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const float inv = team->inv_norm[r.row[h] = row_of(strip, h)];
        r.threshold[h] = inv > 0 ? p / inv : 0;
        r.sum[h] = r.twin[h] = 0;
        r.last[h] = -1;
    }
}

/* The rows' sums over the quad, for the lane that stores them, and what their twins lose. */
__device__ static __forceinline__ void finish_rows(row_pair &r, team_shared *team, uint32_t strip,
                                                   float own_sum[2])
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
        if (threadIdx.x % 4 != strip) continue;
        const float inv = team->inv_norm[r.row[h]];
        own_sum[h] = r.sum[h] * inv;
        if (r.last[h] >= 0)
            atomicAdd(&team->twins[r.last[h]], __float2int_rn(r.twin[h] * inv * COSINE_STEPS));
    }
}

/* Cosines are symmetric: a row is searched for what a column must lose. Loops stay loops: three
 * teams in different places share the instruction cache. */
template <int D, int P>
__device__ static inline void compare(const score_params &p, const score_span &span,
                                      const unsigned char *keys, team_shared *team)
{
    const uint32_t block_tokens = p.c.pools.layout.block_tokens;
    const uint32_t width = max(block_tokens, (uint32_t)STRIP); /* columns of a strip */
    const float twin_p = span.job->redundancy_p;
    float own_sum[2];
    prepare_cosines<D>(keys, team);
#pragma unroll 1
    for (uint32_t strip = 0; strip < STRIPS; strip++) {
        const uint32_t first = strip * STRIP / width * width;
        row_pair r;
        begin_rows(r, team, twin_p, strip);
#pragma unroll 1
        for (uint32_t column = first; column < first + width; column += P) {
            float x[P / 2];
            begin_product<P, D>(x, keys + strip * STRIP * CN_ROW_BYTES, score_plan<D>::KEY_BOX,
                                keys + column * CN_ROW_BYTES, score_plan<D>::KEY_BOX);
            cn_wgmma_wait<0>();
            add_panel<P>(r, x, team->inv_norm, column, block_tokens);
        }
        finish_rows(r, team, strip, own_sum);
    }
    team_sync();
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = own_row(h);
        if (span.first + row < p.c.n)
            p.c.redundancy[(size_t)span.unit * p.c.n + span.first + row] =
                own_sum[h] - (float)team->twins[row] / COSINE_STEPS;
    }
}

#endif
#endif
