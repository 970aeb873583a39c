/* score.cuh - what the kernels of `score` share: the division of a step's candidates among thread
 * blocks, where their keys lie, and where scores and partial results are stored.
 *
 * The numbers of candidates are in device memory and a grid is fixed. So every block divides the
 * step itself. A lot is the work of a warp: at most 32 d bytes of keys. The lots of
 * all units, in the order of the units, are divided among the blocks in equal runs:
 *
 *     lots      | unit 0          | unit 1    | unit 3 (2 is not active) | ...
 *     blocks    | 0        | 1       | 2        | 3        | ...
 *
 * A block prepares the query of each unit that it has lots of. So where the grid suffices, and no
 * block gets many more lots than an equal share, the lots of each unit are divided among blocks of
 * its own, and every block has lots of one unit:
 *
 *     blocks    | 0      | 1      | 2   | 3     | 4   | 5   | 6   | ...
 *
 * The lots that a block has of one unit are a part of that unit. Unit u and block b have at most
 * one part, and its partial results are in slot u + b: units and blocks both ascend along the lots,
 * so no two parts share a slot, and the parts of a unit are in successive slots. */
#pragma once

#include <cub/warp/warp_scan.cuh>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "cuda/select/select.cuh"
#include "engine/select/select_math.h"

enum {
    CN_SCORE_BLOCKS = 2, /* thread blocks of a multiprocessor */
    CN_SCORE_WIDE_WORDS = 8, /* words of the largest label; each is eight channels */
    CN_SCORE_SLACK = 8   /* lots: preparing the query of one more unit takes as long */
};

/* Where the results of a unit's parts are: rule max only. */
typedef struct cn_score_unit {
    uint32_t first_slot, n_slots;
} cn_score_unit;

/* A cn_exp_sum. Each word may have a mark that says that it is stored (score_ring_shares.cuh). */
typedef struct alignas(16) cn_marked_sum {
    uint64_t words[4];
} cn_marked_sum;

/* A part of a unit, whose logits are in memory. */
typedef struct cn_score_late {
    size_t first; /* index of its first score, and number of its first row of logits */
    uint32_t n;   /* candidates */
    uint32_t unit;
    cn_score_unit slots; /* of the unit */
} cn_score_late;

/* Results of rule max. */
typedef struct cn_score_shares {
    bool in_blocks;      /* blocks wait for sums with marks, which are zero before the launch */
    cn_marked_sum *sums; /* [n_units + blocks, group] of parts */
    cn_score_late *late; /* [n_units + blocks] parts whose shares score_share.cu computes */
    uint32_t *n_late;    /* how many, 0 before a launch; then how many blocks have computed them */
} cn_score_shares;

typedef struct cn_score_params {
    cn_score_args args;
    cn_kv_rows rows;
    uint32_t group, seq_units, n_units; /* seq_units: units of a sequence */
    uint32_t block_log2, tile_log2;     /* tokens of a block, and of a tile of the layout */
    uint32_t label_bytes;
    uint32_t query_words; /* of a quantised query: CN_SCORE_WIDE_WORDS unless bulk */
    uint32_t row; /* logits of a candidate that rule max stores: cn_logit_row */
    uint32_t keys; /* cn_route_keys */
    bool few;     /* CN_ROUTE_FEW */
    bool early;   /* digests, tables and the arrays of a step are final before the wait */
    bool after_select; /* the kernel before selects tiles: all but these is final before the wait */
    bool bulk;    /* keys are copied in bulk: compute capability 9.0, and a shape that has it */
    uint32_t *counts; /* [n_units, CN_COUNTS], or NULL: nothing is counted */
    cn_score_shares shares;
    int64_t patience; /* clocks for which a block waits for the sums of others */
} cn_score_params;

/* A sequence, as its blocks divide it. Candidates have numbers on a line: the position of the first
 * token, or the index of the candidate if they are in tiles. */
typedef struct cn_score_seq {
    uint32_t place; /* lots of the sequences before */
    uint32_t block; /* if units have blocks of their own: blocks of the sequences before */
    uint32_t lots;  /* of a unit */
    uint32_t n, base, first;
    alignas(8) cn_sel_stage stage;
} cn_score_seq;

/* The division of a step. */
typedef struct cn_score_plan {
    const cn_score_seq *seqs; /* [n_seqs + 1] in shared memory */
    uint32_t n_seqs, seq_units;
    uint32_t most;            /* lots of a block, if units have blocks of their own; else 0 */
    uint32_t share, n_larger; /* lots of a block; the first n_larger blocks have one more */
    uint32_t next, end;       /* lots of this block that are left */
    /* If units have blocks of their own: the sequence and the unit of this block, and the parts of
     * the unit. */
    uint32_t seq, unit, n_parts;
} cn_score_plan;

/* A part of a unit. */
typedef struct cn_score_part {
    cn_sel_unit at;
    cn_sel_stage stage;
    uint32_t layer; /* of the model */
    uint32_t base;
    uint32_t from, to; /* the unit's candidates on their line */
    uint32_t lot_log2; /* tokens of a lot */
    uint32_t lot, n_lots;
    uint32_t slot, first_slot, n_slots; /* of this part, and of the unit's parts */
    size_t first; /* index of the unit's first score, and number of its first row of logits */
} cn_score_part;

__device__ static inline uint32_t cn_score_lot_log2(const cn_sel_stage &stage)
{
    return cn_lot_log2(stage.key == CN_KEY_ROWS, stage.entry_log2);
}

/* Returns the lots of a unit. */
__device__ static inline uint32_t cn_score_lots(const cn_score_seq &s)
{
    const uint32_t from = s.stage.in_tiles ? 0 : s.base, log2 = cn_score_lot_log2(s.stage);
    if (!s.stage.active || s.n == 0) return 0;
    return ((from + (s.n << s.stage.entry_log2) - 1) >> log2) - (from >> log2) + 1;
}

/* The most lots of a block if units have blocks of their own; 0 if the units are too small, or if
 * equal shares take less time. total: lots of the step, longest: lots of the largest unit. */
__device__ static inline uint32_t cn_score_most(uint32_t total, uint32_t longest)
{
    const uint32_t share = (total + gridDim.x - 1) / gridDim.x, n_parts = longest / max(share, 1u);
    const uint32_t most = n_parts > 0 ? (longest + n_parts - 1) / n_parts : 0;
    return most <= share + CN_SCORE_SLACK ? most : 0;
}

/* Returns the last sequence that begins at or before `at`, in lots or in blocks. */
template <typename Start>
__device__ static inline uint32_t cn_score_seq_at(uint32_t n_seqs, uint32_t at, Start start)
{
    uint32_t low = 0, high = n_seqs; /* start(low) <= at < start(high) */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (start(middle) <= at) low = middle;
        else high = middle;
    }
    return low;
}

/* First lot of part i of n_parts of a unit. */
__device__ static inline uint32_t cn_score_part_start(uint32_t lots, uint32_t i, uint32_t n_parts)
{
    return lots / n_parts * i + min(i, lots % n_parts);
}

/* Sets the lots of this block. If units have blocks of their own, it has one part or none, and the
 * lots count from the unit's first. */
__device__ static inline void cn_score_open(cn_score_plan &plan)
{
    const uint32_t b = blockIdx.x;
    if (plan.most == 0) {
        plan.next = b * plan.share + min(b, plan.n_larger);
        plan.end = plan.next + plan.share + (b < plan.n_larger ? 1 : 0);
        return;
    }
    plan.next = plan.end = 0;
    if (b >= plan.seqs[plan.n_seqs].block) return;
    plan.seq = cn_score_seq_at(plan.n_seqs, b, [&](uint32_t i) { return plan.seqs[i].block; });
    const cn_score_seq &s = plan.seqs[plan.seq];
    const uint32_t at = b - s.block;
    plan.n_parts = (s.lots + plan.most - 1) / plan.most;
    plan.unit = at / plan.n_parts;
    const uint32_t part = at - plan.unit * plan.n_parts;
    plan.next = cn_score_part_start(s.lots, part, plan.n_parts);
    plan.end = cn_score_part_start(s.lots, part + 1, plan.n_parts);
}

/* Loads sequence i. Sequences from n_seqs on have no lots. */
__device__ static inline cn_score_seq cn_score_load_seq(const cn_score_args &a, uint32_t i)
{
    cn_score_seq s = {};
    if (i < a.n_seqs) {
        *reinterpret_cast<uint2 *>(&s.stage) = __ldg((const uint2 *)a.stage + i);
        s.n = a.n[i];
        s.base = a.base[i];
        s.first = a.first[i];
    }
    s.lots = cn_score_lots(s);
    return s;
}

/* Calls store(i, sum), i < n, with the sum of value(0) to value(i - 1). Returns the sum of all. A
 * warp calls it: a barrier of the block for each sum takes longer. */
template <typename Value, typename Store>
__device__ static inline uint32_t cn_score_add_up(uint32_t n, Value value, Store store)
{
    typedef cub::WarpScan<uint32_t> warp_scan;
    __shared__ warp_scan::TempStorage shared;
    uint32_t all = 0, before, sum;
#pragma unroll 1
    for (uint32_t from = 0; from < n; from += CN_WARP, all += sum) {
        const uint32_t i = from + threadIdx.x;
        warp_scan(shared).ExclusiveSum(i < n ? value(i) : 0, before, sum);
        if (i < n) store(i, all + before);
    }
    return all;
}

/* Fills seqs[n_seqs + 1]. Returns {lots of the step, cn_score_plan.most}. */
__device__ static inline uint2 cn_score_divide_seqs(const cn_score_params &p, cn_score_seq *seqs)
{
    __shared__ uint2 result;
    const uint32_t n = p.args.n_seqs + 1;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) seqs[i] = cn_score_load_seq(p.args, i);
    if (n > CN_WARP) __syncthreads(); /* else a lane reads what it has stored */
    if (threadIdx.x < CN_WARP) {
        uint32_t longest = 0, blocks = 0;
        const uint32_t total = cn_score_add_up(
            n,
            [&](uint32_t i) {
                longest = max(longest, seqs[i].lots);
                return seqs[i].lots * p.seq_units;
            },
            [&](uint32_t i, uint32_t sum) { seqs[i].place = sum; });
        const uint32_t most = cn_score_most(total, __reduce_max_sync(0xffffffffu, longest));
        if (most > 0)
            blocks = cn_score_add_up(
                n, [&](uint32_t i) { return (seqs[i].lots + most - 1) / most * p.seq_units; },
                [&](uint32_t i, uint32_t sum) { seqs[i].block = sum; });
        if (threadIdx.x == 0) result = make_uint2(total, blocks <= gridDim.x ? most : 0);
    }
    __syncthreads();
    return result;
}

/* Fills seqs[n_seqs + 1] and finds the lots of this block. All threads of the block call it. */
__device__ static inline cn_score_plan cn_score_divide(const cn_score_params &p, cn_score_seq *seqs)
{
    const uint2 result = cn_score_divide_seqs(p, seqs);
    cn_score_plan plan = {};
    plan.seqs = seqs;
    plan.n_seqs = p.args.n_seqs;
    plan.seq_units = p.seq_units;
    plan.most = result.y;
    if (plan.most == 0) {
        plan.share = result.x / gridDim.x;
        plan.n_larger = result.x % gridDim.x;
    }
    cn_score_open(plan);
    return plan;
}

/* Returns the block that has the lot at `place`. */
__device__ static inline uint32_t cn_score_owner(const cn_score_plan &plan, uint32_t place)
{
    const uint32_t larger = plan.n_larger * (plan.share + 1); /* lots of the larger shares */
    if (place < larger) return place / (plan.share + 1);
    return plan.n_larger + (place - larger) / plan.share;
}

/* Sets x to the next part of this block, or leaves it if nothing is left. Its divisions take half a
 * microsecond, so one thread calls it. */
__device__ static inline void cn_score_next(cn_score_plan &plan, const cn_score_params &p,
                                            cn_score_part &x)
{
    if (plan.next >= plan.end) return;
    const bool own = plan.most > 0;
    const cn_score_args &a = p.args;
    const uint32_t n_heads = a.pools.layout.n_kv_heads;
    uint32_t low = plan.seq, unit = plan.unit, unit_place = 0;
    if (!own) {
        low = cn_score_seq_at(plan.n_seqs, plan.next,
                              [&](uint32_t i) { return plan.seqs[i].place; });
        unit = (plan.next - plan.seqs[low].place) / plan.seqs[low].lots;
        unit_place = plan.seqs[low].place + unit * plan.seqs[low].lots;
    }
    const cn_score_seq s = plan.seqs[low];
    const uint32_t done = plan.next - unit_place;
    x.at = cn_sel_unit_of(low * plan.seq_units + unit, a.n_layers, n_heads);
    x.stage = s.stage;
    x.layer = a.first_layer + x.at.row;
    x.base = s.base;
    x.from = s.stage.in_tiles ? 0 : s.base;
    x.to = x.from + (s.n << s.stage.entry_log2);
    x.lot_log2 = cn_score_lot_log2(s.stage);
    x.lot = (x.from >> x.lot_log2) + done;
    x.n_lots = min(s.lots - done, plan.end - plan.next);
    const uint32_t owner = own ? s.block + unit * plan.n_parts : cn_score_owner(plan, unit_place);
    x.first_slot = x.at.index + owner;
    x.n_slots = own ? plan.n_parts : cn_score_owner(plan, unit_place + s.lots - 1) - owner + 1;
    x.slot = x.at.index + blockIdx.x;
    x.first = cn_sel_first(x.at, s.first, s.n, a.n_layers, n_heads);
    plan.next += x.n_lots;
}

/* The current part of a block and the next one, in shared memory. n_lots 0: none. */
typedef struct cn_score_parts {
    cn_score_part part[2];
} cn_score_parts;

/* Thread 0 finds part `number` of the block. Other threads may use it after a barrier. */
__device__ static inline void cn_score_find(cn_score_plan &plan, const cn_score_params &p,
                                            uint32_t number, cn_score_parts *parts)
{
    if (threadIdx.x > 0) return;
    cn_score_part x = {};
    cn_score_next(plan, p, x);
    parts->part[number % 2] = x;
}

__device__ static inline bool cn_score_is_max(const cn_sel_stage &stage)
{
    return stage.active && stage.group == CN_GROUP_MAX && stage.key != CN_KEY_HASH;
}

/* Returns whether a stage may have these keys (cn_route_keys). */
static inline bool cn_score_may_have(const cn_score_params &p, cn_sel_key key)
{
    return p.keys == 0 || (p.keys >> key & 1) != 0;
}

/* Returns log2 of the tokens of a run: tokens of a lot whose keys are contiguous in the pool. */
__device__ static inline uint32_t cn_score_run_log2(const cn_score_params &p,
                                                    const cn_score_part &x)
{
    return min(x.lot_log2, x.stage.in_tiles ? (uint32_t)CN_DIGEST_TILE_LOG2 : p.block_log2);
}

/* ---- where keys and queries lie ---- */

/* A candidate's first token. */
typedef struct cn_score_token {
    uint32_t position, block, slot;
} cn_score_token;

/* Returns the token with number `at` on the line of candidates, or the nearest one of the unit. */
__device__ static inline cn_score_token cn_score_token_of(const cn_score_params &p,
                                                         const cn_score_part &x, uint32_t at)
{
    cn_score_token t;
    t.position = min(max(at, x.from), x.to - 1);
    if (x.stage.in_tiles) {
        const uint32_t *tiles = p.args.tiles + (size_t)x.at.index * p.args.tile_stride;
        t.position = tiles[t.position / CN_DIGEST_TILE] * CN_DIGEST_TILE +
                     t.position % CN_DIGEST_TILE;
    }
    t.block = __ldg(p.args.tables + (size_t)x.at.seq * p.args.table_stride +
                    (t.position >> p.block_log2));
    t.slot = t.position & ((1u << p.block_log2) - 1);
    return t;
}

/* Returns the index of a token in the planes with an entry for each slot. */
__device__ static inline size_t cn_score_side_of(const cn_score_params &p, const cn_score_part &x,
                                                 const cn_score_token &t)
{
    const cn_kv_layout &l = p.args.pools.layout;
    const size_t blocks = (size_t)x.layer * l.n_blocks + t.block;
    return ((blocks * l.n_kv_heads + x.at.head) << p.block_log2) + t.slot;
}

/* Returns the pool's row that is a candidate's key. */
__device__ static inline size_t cn_score_row_of(const cn_score_params &p, const cn_score_part &x,
                                                const cn_score_token &t)
{
    return (size_t)x.layer * p.rows.layer + (size_t)t.block * p.rows.block +
           x.at.head * p.rows.head + (t.slot >> p.tile_log2) * p.rows.tile +
           (t.slot & ((1u << p.tile_log2) - 1));
}

/* Computes the scores of a part that is ranked by hashes. */
__device__ static inline void cn_score_hash_part(const cn_score_params &p, const cn_score_part &x)
{
    const uint32_t start = max(x.lot << x.lot_log2, x.from);
    const uint32_t end = min((x.lot + x.n_lots) << x.lot_log2, x.to);
    for (uint32_t at = start + threadIdx.x; at < end; at += blockDim.x) {
        const cn_score_token t = cn_score_token_of(p, x, at);
        p.args.out[x.first + at - x.from] =
            t.position < x.base
                ? (uint16_t)0
                : cn_hash_score(p.args.seed[x.at.seq], x.layer, x.at.head, t.position);
    }
}

/* cn_score_scale of a part. */
__device__ static inline float cn_score_scale_of(const cn_score_params &p, const cn_score_part &x)
{
    return cn_score_scale(p.args.pools.layout.head_dim, x.stage.group == CN_GROUP_MAX);
}

/* Returns the first query of a part. */
__device__ static inline const cn_bf16 *cn_score_query_of(const cn_score_params &p,
                                                          const cn_score_part &x)
{
    const cn_score_args &a = p.args;
    const uint32_t d = a.pools.layout.head_dim;
    const bool predicted = x.stage.query == CN_SEL_PREDICTED;
    const size_t stride = predicted ? a.q_stride[CN_SEL_PREDICTED] : a.q_stride[CN_SEL_TRUE];
    const void *q = predicted ? a.q[CN_SEL_PREDICTED] : a.q[CN_SEL_TRUE];
    const size_t row = ((size_t)x.at.row * a.pools.layout.n_kv_heads + x.at.head) * p.group * d;
    return (const cn_bf16 *)q + x.at.seq * stride + row;
}

/* The value that is compared with channel i of keys: of head `head` under rule max, else of the
 * group. q: [group, d]. */
__device__ static inline float cn_score_query_value(const cn_score_params &p,
                                                    const cn_score_part &x, const cn_bf16 *q,
                                                    uint32_t head, uint32_t i)
{
    const uint32_t d = p.args.pools.layout.head_dim;
    const bool is_max = x.stage.group == CN_GROUP_MAX;
    float sum = 0;
    for (uint32_t h = is_max ? head : 0; h < (is_max ? head + 1 : p.group); h++) {
        const float value = __bfloat162float(q[h * d + i % d]);
        if (x.stage.key != CN_KEY_BOUNDS) sum += value;
        else sum += i < d ? fminf(value, 0.0f) : fmaxf(value, 0.0f);
    }
    return x.stage.group == CN_GROUP_MEAN ? sum / (float)p.group : sum;
}

/* ---- what rule max stores ----
 * f16 logits times log2(e), [n, row]: those of a candidate side by side. They are NaN below the
 * base. Those behind the heads of the group are undefined. */

enum { CN_NAN_F16X2 = 0x7fff7fff };

/* Returns the row of the candidate with index `first` of the scores. */
__device__ static inline uint16_t *cn_score_rows(const cn_score_params &p, size_t first)
{
    return (uint16_t *)p.args.logits + first * p.row;
}

/* Stores logits, which leave the L2 cache last. */
__device__ static inline void cn_store_kept(uint16_t *to, uint32_t word)
{
    asm volatile("st.global.L2::cache_hint.b32 [%0], %1, %2;" ::"l"(to), "r"(word),
                 "l"(CN_CACHE_EVICT_LAST)
                 : "memory");
}

__device__ static inline void cn_store_kept(uint16_t *to, uint2 words)
{
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;" ::"l"(to), "r"(words.x),
                 "r"(words.y), "l"(CN_CACHE_EVICT_LAST)
                 : "memory");
}

/* Stores the low half of `bits`. */
__device__ static inline void cn_store_score(uint16_t *to, uint32_t bits, uint64_t cache)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.global.L2::cache_hint.b16 [%0], %1, %2;" ::"l"(to), "h"((uint16_t)bits),
                 "l"(cache)
                 : "memory");
#else
    *to = (uint16_t)bits;
#endif
}

/* ---- two f16 in a word, the first in the low half ---- */

/* cn_f16_or_nan of two numbers. */
__device__ static inline uint32_t cn_f16x2(float x, float y)
{
    uint32_t h;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(y), "f"(x));
    return h;
}

__device__ static inline uint32_t cn_f16x2_add(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

/* The larger ones. NaN is ignored. */
__device__ static inline uint32_t cn_f16x2_max(uint32_t a, uint32_t b)
{
    uint32_t most;
    asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}

/* cn_score_of_f16 of both. */
__device__ static inline uint32_t cn_score_of_f16x2(uint32_t h)
{
    h = cn_f16x2_add(h, 0); /* -0 becomes 0 */
    const __half2 pair = *reinterpret_cast<__half2 *>(&h);
    const uint32_t key = h ^ ((h >> 15 & 0x00010001u) * 0xffffu | 0x80008000u);
    return key & __heq2_mask(pair, pair); /* NaN is 0 */
}

/* Returns the scores of two candidates. a, b: the largest shares of their even and odd heads. */
__device__ static inline uint32_t cn_scores_of_shares(uint32_t a, uint32_t b)
{
    const uint32_t even = __byte_perm(a, b, 0x5410), odd = __byte_perm(a, b, 0x7632);
    return cn_score_of_f16x2(cn_f16x2_max(even, odd));
}

/* Returns, to lane 0, the sum over the lanes of the warp. Lanes from n on have none. */
__device__ static inline cn_exp_sum cn_score_sum_lanes(cn_exp_sum sum, uint32_t n)
{
    sum = cn_exp_sum_at(sum, __reduce_max_sync(0xffffffffu, sum.top));
    for (uint32_t offset = CN_WARP / 2; offset > 0; offset /= 2) {
        if (offset >= n) continue; /* all of them are 0 */
#pragma unroll
        for (uint32_t i = 0; i < 3; i++)
            sum.sum[i] +=
                __shfl_xor_sync(0xffffffffu, (unsigned long long)sum.sum[i], (int)offset);
    }
    return sum;
}

/* Waits until is_known(), for at most *patience clocks. If it has waited in vain, it returns false
 * and sets *patience to 0. A warp calls it. */
template <typename F> __device__ static inline bool cn_score_wait(int64_t *patience, F is_known)
{
    const int64_t start = clock64();
    while (!is_known()) {
        if (!__any_sync(0xffffffffu, clock64() - start >= *patience)) continue;
        *patience = 0;
        return false;
    }
    return true;
}

/* The sum of the weights of a lot for one head, and the exponent to which they are relative. */
typedef struct cn_lot_weights {
    float sum;
    uint32_t top;
} cn_lot_weights;

/* ---- on the host ---- */

/* Turns the logits of the parts that are late into scores: the largest share of any head. */
cn_status cn_score_share(cn_stream *s, const cn_score_params &p);

/* score_ring.cu: returns whether keys are copied in bulk, for p.bulk. */
bool cn_score_has_bulk(const cn_stream *s, const cn_score_params &p);
/* Returns whether the kernel counts for cn_score_params.counts. Then its blocks compute the
 * shares of rule max. */
bool cn_score_ring_counts(const cn_score_params &p);
cn_status cn_score_ring(cn_stream *s, const cn_score_params &p);
