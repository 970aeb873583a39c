/* attn_walk.cuh - who does what in decode attention: the slots of a batch cut into equal shares,
 * one a thread block, from lengths that only the device knows. Nothing here depends on the host but
 * the number of sequences, so a recorded graph serves any lengths; each block works its share out
 * anew, in about a microsecond, while the kernel before it still runs.
 *
 * An item is (sequence, kv head, part of its query heads): a list of slots, counted in steps of 16.
 * Items of one unit are equally long: a sequence in dense attention, a (sequence, kv head) in
 * sparse. Items are counted (sequence, kv head, part) with the part fastest. Even (the default), an
 * item has a place on a line for each step and CN_WALK_COST places before them, what it costs to
 * take up an item at all, and the T places are dealt to G blocks in equal runs:
 *
 *     items     |  0            |  1            |  2   |  3   |  4 ...
 *     places    | $ $ . . . . . | $ $ . . . . . | $ $ .| $ $ .| $ $ ...
 *     blocks    |  0      |  1       |  2       |  3     | ...
 *     pieces        |  0  | 1h|  |1t |  2h  |   |2t| 3 |
 *
 * The steps that a block has of one item are a piece. At most one piece of a block begins in the
 * middle of its item and at most one ends there: 2 G partial results at most. Fixed
 * (--batch-invariant): an item is cut by its length alone, each cut is a place and a piece of its
 * own, and blocks take them whole.
 *
 * The pieces of an item are merged in their order by whichever block finishes last. */
#ifndef CN_CUDA_ATTN_WALK_CUH
#define CN_CUDA_ATTN_WALK_CUH

#include "cuda/attn/attn_common.cuh"

enum {
    CN_WALK_STEP = 16,
    CN_WALK_TILE = 64, /* slots fetched together, at a multiple of 64 */
    CN_WALK_TILE_STEPS = CN_WALK_TILE / CN_WALK_STEP,
    CN_WALK_COST = 4,
    CN_WALK_FIXED_PIECES = 8, /* most pieces of an item, when fixed */
    CN_WALK_FIXED_STEPS = 128 /* least steps of a piece that is not an item's last, when fixed */
};

typedef struct cn_walk_shape {
    const uint32_t *lengths; /* [n_units] slots; 0: the unit is padding */
    uint32_t n_units, items_per_unit;
    bool fixed;
} cn_walk_shape;

/* Where a block is on the line, and the tile it is at. */
typedef struct cn_walk {
    uint32_t n_places, n_blocks; /* T, and G: the blocks that have a share */
    uint32_t share, n_larger;    /* places of a share; the first n_larger have one more */
    uint32_t next, end;          /* of the share: the place its piece begins at, and its end */
    uint32_t unit, item, at;     /* of that place: `at` counts places in the item */
    uint32_t length, n_steps, item_places;
    uint32_t taken;                      /* places of the piece */
    uint32_t piece_step, step, step_end; /* its first step; those it has still to fetch */
} cn_walk;

/* Where a piece's result goes. n_pieces 1: it is the item's result. */
typedef struct cn_walk_piece {
    uint32_t n_pieces;
    uint32_t slot;       /* of this piece's partial result */
    uint32_t first_slot; /* of the item's first; also its count of arrivals */
} cn_walk_piece;

__device__ static inline uint32_t cn_walk_steps(uint32_t length)
{
    return (length + CN_WALK_STEP - 1) / CN_WALK_STEP;
}

__device__ static inline uint32_t cn_walk_cost(const cn_walk_shape &s)
{
    return s.fixed ? 0 : CN_WALK_COST;
}

/* Steps of a piece, when fixed. */
__device__ static inline uint32_t cn_walk_fixed_steps(uint32_t n_steps)
{
    const uint32_t share = (n_steps + CN_WALK_FIXED_PIECES - 1) / CN_WALK_FIXED_PIECES;
    const uint32_t whole_tiles = (share + CN_WALK_TILE_STEPS - 1) & ~(CN_WALK_TILE_STEPS - 1u);
    return max(whole_tiles, (uint32_t)CN_WALK_FIXED_STEPS);
}

__device__ static inline uint32_t cn_walk_item_places(const cn_walk_shape &s, uint32_t length)
{
    const uint32_t n_steps = cn_walk_steps(length);
    if (n_steps == 0 || !s.fixed) return n_steps ? n_steps + CN_WALK_COST : 0;
    const uint32_t piece = cn_walk_fixed_steps(n_steps);
    return (n_steps + piece - 1) / piece;
}

/* Places of units [from, to). Loads run ahead of the sums, eight at a time. */
__device__ static inline uint32_t cn_walk_run_places(const cn_walk_shape &s, uint32_t from,
                                                     uint32_t to)
{
    uint32_t sum = 0;
    for (uint32_t u = from; u < to; u += 8) {
        uint32_t lengths[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) lengths[i] = u + i < to ? __ldg(s.lengths + u + i) : 0;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) sum += cn_walk_item_places(s, lengths[i]);
    }
    return sum * s.items_per_unit;
}

__device__ static inline void cn_walk_enter(cn_walk &w, const cn_walk_shape &s, uint32_t unit)
{
    w.unit = unit;
    w.length = __ldg(s.lengths + unit);
    w.n_steps = cn_walk_steps(w.length);
    w.item_places = cn_walk_item_places(s, w.length);
}

/* Takes up the piece at the walk's place; false: the share ends before its first step. */
__device__ static inline bool cn_walk_take(cn_walk &w, const cn_walk_shape &s)
{
    const uint32_t cost = cn_walk_cost(s), left = min(w.item_places - w.at, w.end - w.next);
    if (s.fixed) {
        const uint32_t piece = cn_walk_fixed_steps(w.n_steps);
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

/* The beginning of share `block` of n_blocks; false: nothing to do. A whole warp calls it: each
 * lane sums a run of units, and the lane whose run holds the beginning says which it is. */
__device__ static inline bool cn_walk_begin(cn_walk &w, const cn_walk_shape &s, uint32_t block,
                                            uint32_t n_blocks)
{
    const uint32_t lane = threadIdx.x % CN_WARP, run = (s.n_units + CN_WARP - 1) / CN_WARP;
    const uint32_t begin = min(lane * run, s.n_units);
    const uint32_t own = cn_walk_run_places(s, begin, min(begin + run, s.n_units));
    uint32_t upto = own;
#pragma unroll
    for (uint32_t step = 1; step < CN_WARP; step *= 2) {
        const uint32_t before = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += before;
    }
    w.n_places = __shfl_sync(0xffffffffu, upto, CN_WARP - 1);
    w.n_blocks = min(n_blocks, w.n_places);
    if (block >= w.n_blocks) return false;
    w.share = w.n_places / w.n_blocks;
    w.n_larger = w.n_places % w.n_blocks;
    w.next = block * w.share + min(block, w.n_larger);
    w.end = w.next + w.share + (block < w.n_larger ? 1 : 0);
    const uint32_t holder = __popc(__ballot_sync(0xffffffffu, upto <= w.next));
    uint32_t left = w.next - __shfl_sync(0xffffffffu, upto - own, holder);
    uint32_t unit = __shfl_sync(0xffffffffu, begin, holder);
    cn_walk_enter(w, s, unit);
    while (left >= w.item_places * s.items_per_unit) {
        left -= w.item_places * s.items_per_unit;
        cn_walk_enter(w, s, ++unit);
    }
    w.item = left / w.item_places;
    w.at = left % w.item_places;
    return cn_walk_take(w, s);
}

/* The step after the tile's last. */
__device__ static inline uint32_t cn_walk_tile_end(const cn_walk &w)
{
    return min(w.step_end, (w.step / CN_WALK_TILE_STEPS + 1) * CN_WALK_TILE_STEPS);
}

/* The tile's slots: [first, last) of the 64 from tile * 64 on. */
typedef struct cn_walk_slots {
    uint32_t tile, first, last;
} cn_walk_slots;

__device__ static inline cn_walk_slots cn_walk_slots_of(const cn_walk &w)
{
    cn_walk_slots t;
    t.tile = w.step / CN_WALK_TILE_STEPS;
    t.first = w.step % CN_WALK_TILE_STEPS * CN_WALK_STEP;
    t.last = min(w.length, cn_walk_tile_end(w) * CN_WALK_STEP) - t.tile * CN_WALK_TILE;
    return t;
}

/* Whether the tile is its piece's first, or last; whether it holds the item's last slot. */
__device__ static inline bool cn_walk_is_first(const cn_walk &w) { return w.step == w.piece_step; }
__device__ static inline bool cn_walk_is_last(const cn_walk &w)
{
    return cn_walk_tile_end(w) == w.step_end;
}
__device__ static inline bool cn_walk_is_newest(const cn_walk &w)
{
    return cn_walk_tile_end(w) == w.n_steps;
}

/* Whether the tile is the last of the share: an item of which only the cost is left has none. */
__device__ static inline bool cn_walk_is_end(const cn_walk &w, const cn_walk_shape &s)
{
    return cn_walk_is_last(w) && w.end - w.next - w.taken <= cn_walk_cost(s);
}

/* To the share's next tile. The one before was not its last. */
__device__ static inline void cn_walk_next(cn_walk &w, const cn_walk_shape &s)
{
    w.step = cn_walk_tile_end(w);
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
    cn_walk_take(w, s);
}

/* The block whose share holds place x. */
__device__ static inline uint32_t cn_walk_owner(const cn_walk &w, uint32_t x)
{
    const uint32_t larger = w.n_larger * (w.share + 1); /* places of the larger shares */
    return x < larger ? x / (w.share + 1) : w.n_larger + (x - larger) / w.share;
}

__device__ static inline cn_walk_piece cn_walk_piece_of(const cn_walk &w, const cn_walk_shape &s,
                                                        uint32_t block)
{
    const uint32_t item_first = w.next - w.at;
    cn_walk_piece p;
    if (s.fixed) {
        p.n_pieces = w.item_places;
        p.first_slot = item_first;
        p.slot = w.next;
        return p;
    }
    if (w.piece_step == 0 && w.step_end == w.n_steps) {
        p.n_pieces = 1;
        return p;
    }
    const uint32_t from = cn_walk_owner(w, item_first + CN_WALK_COST);
    p.n_pieces = cn_walk_owner(w, item_first + w.item_places - 1) - from + 1;
    p.first_slot = 2 * from + 1;
    p.slot = block == from ? p.first_slot : 2 * block;
    return p;
}

/* The slot of the item's i-th piece. */
__device__ static inline uint32_t cn_walk_slot(const cn_walk_shape &s, uint32_t first_slot,
                                               uint32_t i)
{
    if (s.fixed) return first_slot + i;
    return i == 0 ? first_slot : first_slot - 1 + 2 * i;
}

#endif
