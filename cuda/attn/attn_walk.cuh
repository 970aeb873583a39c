/* attn_walk.cuh - splits the slots that a batch's decode attention reads, one share for each thread
 * block. The lengths are known only on the device. The host provides just the number of
 * sequences, so a recorded graph works for any lengths. Each block computes its share in every
 * launch, in about a microsecond, while the kernel before it still runs.
 *
 * An item is (sequence, kv head, part of its query heads). It is a list of slots, counted in steps
 * of 16. Items of one unit have the same length; a unit is a sequence. Items are ordered by
 * (sequence, kv head, part), the part fastest.
 *
 * Even split: an item has one place for each step on a line, and before them `cost` places, the
 * cost of starting an item. The T places are divided among G blocks in equal runs:
 *
 *     items     |  0            |  1            |  2   |  3   |  4 ...
 *     places    | $ $ . . . . . | $ $ . . . . . | $ $ .| $ $ .| $ $ ...
 *     blocks    |  0      |  1       |  2       |  3     | ...
 *     pieces        |  0  | 1h|  |1t |  2h  |   |2t| 3 |
 *
 * The steps that a block has of one item are a piece. At most one piece of a block begins in the
 * middle of its item, and at most one ends there. So there are at most 2 G partial results.
 *
 * Split into pieces: an item is cut into pieces of the same number of steps, the last of which may
 * be shorter. Each piece is one place, and a block takes whole pieces. This split is taken if each
 * block then gets at most one piece that is no longer than a share of the even split. (A piece may
 * have up to three steps more, which complete a tile.) In the even split blocks with two pieces end
 * last, because they store or merge a result in the middle of their share. With --batch-invariant
 * the split into pieces is always taken, and the length of an item alone says how it is cut.
 *
 * The block that finishes last merges the pieces of an item, in their order. */
#pragma once

#include "cuda/attn/attn_common.cuh"

enum {
    CN_WALK_STEP = 16,
    CN_WALK_TILE = 64, /* slots fetched together, at a multiple of 64; twice that if WIDE */
    CN_WALK_TILE_STEPS = CN_WALK_TILE / CN_WALK_STEP,
    CN_WALK_COST = 4,          /* as long as four steps take */
    CN_WALK_FP8_COST = 9,      /* the same time: a step has half the bytes */
    CN_WALK_LONG_PIECE = 16,   /* pieces of at least so many steps end with a tile of 64 */
    CN_WALK_LENGTH_PIECES = 8, /* --batch-invariant: most pieces of an item */
    CN_WALK_LENGTH_STEPS = 128 /* --batch-invariant: least steps of a piece that is not the last */
};

template <bool WIDE> __host__ __device__ constexpr uint32_t cn_walk_tile(void)
{
    return WIDE ? 2 * CN_WALK_TILE : CN_WALK_TILE;
}

typedef struct cn_walk_shape {
    const uint32_t *lengths; /* [n_units] slots; 0: nothing to do for the unit */
    uint32_t n_units, items_per_unit, cost;
    bool by_length; /* --batch-invariant */
} cn_walk_shape;

enum { CN_WALK_EVEN = 0, CN_WALK_BY_LENGTH = 1 << 30 }; /* values of cn_walk.limit */

/* The position of a block on the line, and its current tile. */
typedef struct cn_walk {
    uint32_t n_places, n_blocks; /* T, and G: the blocks that have a share */
    uint32_t limit;              /* most steps of a piece, or the split: CN_WALK_EVEN, _BY_LENGTH */
    uint32_t cost;               /* of the even split, else 0 */
    uint32_t share, n_larger;    /* places of a share; the first n_larger shares have one more */
    uint32_t next, end;          /* first place of the current piece; end of the share */
    uint32_t unit, item, at;     /* of the place `next`; `at` is its index in the item */
    uint32_t length, n_steps, item_places;
    uint32_t taken;                      /* places of the piece */
    uint32_t piece_step, step, step_end; /* first step of the piece; steps still to fetch */
} cn_walk;

/* Where the result of a piece is stored. n_pieces 1: it is the item's result. */
typedef struct cn_walk_piece {
    uint32_t n_pieces;
    uint32_t slot;       /* of this piece's partial result */
    uint32_t first_slot; /* of the item's first piece; also indexes the item's arrival counter */
    bool even;           /* the even split */
} cn_walk_piece;

__device__ static inline uint32_t cn_walk_steps(uint32_t length)
{
    return (length + CN_WALK_STEP - 1) / CN_WALK_STEP;
}

/* Returns the steps of the pieces of an item. limit: as in cn_walk, but not CN_WALK_EVEN. */
__device__ static inline uint32_t cn_walk_piece_steps(uint32_t limit, uint32_t n_steps)
{
    const bool by_length = limit == CN_WALK_BY_LENGTH;
    const uint32_t n_pieces = by_length ? CN_WALK_LENGTH_PIECES : (n_steps + limit - 1) / limit;
    const uint32_t share = (n_steps + n_pieces - 1) / n_pieces;
    if (!by_length && share < CN_WALK_LONG_PIECE) return share;
    const uint32_t whole_tiles = (share + CN_WALK_TILE_STEPS - 1) & ~(CN_WALK_TILE_STEPS - 1u);
    return by_length ? max(whole_tiles, (uint32_t)CN_WALK_LENGTH_STEPS) : whole_tiles;
}

/* Returns the places of an item. limit: as in cn_walk. */
__device__ static inline uint32_t cn_walk_item_places(const cn_walk_shape &s, uint32_t limit,
                                                      uint32_t length)
{
    const uint32_t n_steps = cn_walk_steps(length);
    if (n_steps == 0 || limit == CN_WALK_EVEN) return n_steps ? n_steps + s.cost : 0;
    const uint32_t piece = cn_walk_piece_steps(limit, n_steps);
    return (n_steps + piece - 1) / piece;
}

/* Returns the places of units [from, to). Eight loads are issued before their values are added. */
__device__ static inline uint32_t cn_walk_run_places(const cn_walk_shape &s, uint32_t limit,
                                                     uint32_t from, uint32_t to)
{
    uint32_t sum = 0;
    for (uint32_t u = from; u < to; u += 8) {
        uint32_t lengths[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) lengths[i] = u + i < to ? __ldg(s.lengths + u + i) : 0;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) sum += cn_walk_item_places(s, limit, lengths[i]);
    }
    return sum * s.items_per_unit;
}

__device__ static inline void cn_walk_enter(cn_walk &w, const cn_walk_shape &s, uint32_t unit)
{
    w.unit = unit;
    w.length = __ldg(s.lengths + unit);
    w.n_steps = cn_walk_steps(w.length);
    w.item_places = cn_walk_item_places(s, w.limit, w.length);
}

/* Starts the piece at the walk's place. Returns false when the share ends before its first step. */
__device__ static inline bool cn_walk_take(cn_walk &w)
{
    const uint32_t cost = w.cost, left = min(w.item_places - w.at, w.end - w.next);
    if (w.limit != CN_WALK_EVEN) {
        const uint32_t piece = cn_walk_piece_steps(w.limit, w.n_steps);
        w.taken = 1;
        w.piece_step = w.at * piece;
        w.step_end = min(w.n_steps, w.piece_step + piece);
    } else {
        w.taken = left;
        w.piece_step = max(w.at, cost) - cost;
        w.step_end = max(w.at + left, cost) - cost;
    }
    w.step = w.piece_step;
    return w.step < w.step_end;
}

/* The places of a lane's run of units, those up to its end, and all. */
typedef struct cn_walk_run {
    uint32_t begin; /* first unit */
    uint32_t own, upto, all;
} cn_walk_run;

/* Counts the places. Called by a whole warp. limit: as in cn_walk. */
__device__ static inline cn_walk_run cn_walk_count(const cn_walk_shape &s, uint32_t limit)
{
    const uint32_t lane = threadIdx.x % CN_WARP, units = (s.n_units + CN_WARP - 1) / CN_WARP;
    cn_walk_run r;
    r.begin = min(lane * units, s.n_units);
    r.own = r.upto = cn_walk_run_places(s, limit, r.begin, min(r.begin + units, s.n_units));
#pragma unroll
    for (uint32_t step = 1; step < CN_WARP; step *= 2) {
        const uint32_t before = __shfl_up_sync(0xffffffffu, r.upto, step);
        if (lane >= step) r.upto += before;
    }
    r.all = __shfl_sync(0xffffffffu, r.upto, CN_WARP - 1);
    return r;
}

/* Chooses the split, sets w.limit, and counts the places. Called by a whole warp. More items than
 * blocks need not be counted twice: their pieces are more than the blocks, too. */
__device__ static inline cn_walk_run cn_walk_choose(cn_walk &w, const cn_walk_shape &s,
                                                    uint32_t n_blocks)
{
    w.limit = s.by_length ? CN_WALK_BY_LENGTH : CN_WALK_EVEN;
    const cn_walk_run first = cn_walk_count(s, w.limit);
    if (s.by_length || first.all == 0 || s.n_units * s.items_per_unit > n_blocks) return first;
    const uint32_t limit = (first.all + n_blocks - 1) / n_blocks;
    const cn_walk_run pieces = cn_walk_count(s, limit);
    if (pieces.all > n_blocks) return first;
    w.limit = limit;
    return pieces;
}

/* Finds the beginning of share `block` of n_blocks. Returns false when the block has nothing to do.
 * Called by a whole warp: each lane sums the places of a run of units, and the lane whose run
 * contains the beginning gives the unit. */
__device__ static inline bool cn_walk_begin(cn_walk &w, const cn_walk_shape &s, uint32_t block,
                                            uint32_t n_blocks)
{
    const cn_walk_run r = cn_walk_choose(w, s, n_blocks);
    w.cost = w.limit == CN_WALK_EVEN ? s.cost : 0;
    w.n_places = r.all;
    w.n_blocks = min(n_blocks, w.n_places);
    if (block >= w.n_blocks) return false;
    w.share = w.n_places / w.n_blocks;
    w.n_larger = w.n_places % w.n_blocks;
    w.next = block * w.share + min(block, w.n_larger);
    w.end = w.next + w.share + (block < w.n_larger ? 1 : 0);
    const uint32_t holder = __popc(__ballot_sync(0xffffffffu, r.upto <= w.next));
    uint32_t left = w.next - __shfl_sync(0xffffffffu, r.upto - r.own, holder);
    uint32_t unit = __shfl_sync(0xffffffffu, r.begin, holder);
    cn_walk_enter(w, s, unit);
    while (left >= w.item_places * s.items_per_unit) {
        left -= w.item_places * s.items_per_unit;
        cn_walk_enter(w, s, ++unit);
    }
    w.item = left / w.item_places;
    w.at = left % w.item_places;
    return cn_walk_take(w);
}

/* Returns the step after the tile's last step. */
template <bool WIDE> __device__ static inline uint32_t cn_walk_tile_end(const cn_walk &w)
{
    constexpr uint32_t STEPS = cn_walk_tile<WIDE>() / CN_WALK_STEP;
    return min(w.step_end, (w.step / STEPS + 1) * STEPS);
}

/* The slots of a tile: [first, last) of those that begin at tile * cn_walk_tile. */
typedef struct cn_walk_slots {
    uint32_t tile, first, last;
} cn_walk_slots;

template <bool WIDE> __device__ static inline cn_walk_slots cn_walk_slots_of(const cn_walk &w)
{
    constexpr uint32_t TILE = cn_walk_tile<WIDE>(), STEPS = TILE / CN_WALK_STEP;
    cn_walk_slots t;
    t.tile = w.step / STEPS;
    t.first = w.step % STEPS * CN_WALK_STEP;
    t.last = min(w.length, cn_walk_tile_end<WIDE>(w) * CN_WALK_STEP) - t.tile * TILE;
    return t;
}

/* Return true when the tile is the first or the last of its piece, or holds the item's last
 * slot. */
__device__ static inline bool cn_walk_is_first(const cn_walk &w) { return w.step == w.piece_step; }
template <bool WIDE> __device__ static inline bool cn_walk_is_last(const cn_walk &w)
{
    return cn_walk_tile_end<WIDE>(w) == w.step_end;
}
template <bool WIDE> __device__ static inline bool cn_walk_is_newest(const cn_walk &w)
{
    return cn_walk_tile_end<WIDE>(w) == w.n_steps;
}

/* Returns true when the tile is the last of the share. An item of which the share has only cost
 * places has no tile. */
template <bool WIDE> __device__ static inline bool cn_walk_is_end(const cn_walk &w)
{
    return cn_walk_is_last<WIDE>(w) && w.end - w.next - w.taken <= w.cost;
}

/* Moves to the next tile of the share. The current tile must not be the last. */
template <bool WIDE> __device__ static inline void cn_walk_next(cn_walk &w, const cn_walk_shape &s)
{
    w.step = cn_walk_tile_end<WIDE>(w);
    if (w.step < w.step_end) return;
    w.next += w.taken;
    w.at += w.taken;
    if (w.at == w.item_places) {
        w.at = 0;
        if (++w.item == s.items_per_unit) {
            w.item = 0;
            do {
                cn_walk_enter(w, s, w.unit + 1);
            } while (w.n_steps == 0);
        }
    }
    cn_walk_take(w);
}

/* Returns the block whose share contains place x. */
__device__ static inline uint32_t cn_walk_owner(const cn_walk &w, uint32_t x)
{
    const uint32_t larger = w.n_larger * (w.share + 1); /* places of the larger shares */
    return x < larger ? x / (w.share + 1) : w.n_larger + (x - larger) / w.share;
}

__device__ static inline cn_walk_piece cn_walk_piece_of(const cn_walk &w, uint32_t block)
{
    const uint32_t item_first = w.next - w.at;
    cn_walk_piece p;
    p.even = w.limit == CN_WALK_EVEN;
    if (!p.even) {
        p.n_pieces = w.item_places;
        p.first_slot = item_first;
        p.slot = w.next;
        return p;
    }
    if (w.piece_step == 0 && w.step_end == w.n_steps) {
        p.n_pieces = 1;
        return p;
    }
    const uint32_t from = cn_walk_owner(w, item_first + w.cost);
    p.n_pieces = cn_walk_owner(w, item_first + w.item_places - 1) - from + 1;
    p.first_slot = 2 * from + 1;
    p.slot = block == from ? p.first_slot : 2 * block;
    return p;
}

/* Returns the slot of the item's i-th piece. */
__device__ static inline uint32_t cn_walk_slot(const cn_walk_piece &p, uint32_t i)
{
    if (!p.even) return p.first_slot + i;
    return i == 0 ? p.first_slot : p.first_slot - 1 + 2 * i;
}
