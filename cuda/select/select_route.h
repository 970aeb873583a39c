/* select_route.h - which kernels of selection a launch takes (cn_backend.select_route), and the
 * launchers that attend_selected runs one after the other.
 *
 * | candidates of a step                | ring_kernel<...> (score_ring.cu)                        |
 * |-------------------------------------|---------------------------------------------------------|
 * | labels alone, 16 or 32 channels     | of labels; counts; under rule max of up to 4 heads its  |
 * |                                     | blocks compute the shares                               |
 * | bounds alone, rule sum              | of bounds; counts                                       |
 * | all others; no Hopper               | of any key, without bulk copies                         |
 *
 * Under rule max share_kernel follows. `score` counts what it has stored, so that `select` need not
 * wait for all of it; `select` counts finished lists, so that attention need not wait for all of
 * them (select.cu). */
#pragma once

#include "cuda/cuda_ops.h"

CN_BEGIN_C

/* Bits of a route; from CN_ROUTE_KEYS on a bit for each cn_sel_key that the last stage may have. */
enum {
    CN_ROUTE_SELECTS = 1,
    CN_ROUTE_TILES = 2,    /* stage 0 runs */
    CN_ROUTE_MAX = 4,      /* a row may rank tokens by group rule max */
    CN_ROUTE_FEW = 8,      /* all rows that rank tokens rank those of tiles, or of an area */
    CN_ROUTE_KEYS_LOG2 = 4
};

/* The keys of a route; 0: any. */
static inline uint32_t cn_route_keys(uint32_t route) { return route >> CN_ROUTE_KEYS_LOG2; }

/* Runs `score`. early: as its contract says, what it reads except q and tiles is complete. counts:
 * NULL; or set to the counts of the units, for the `select` of this output that must be launched
 * next and clears them; or to NULL if nothing is counted. */
cn_status cn_score_launch(cn_stream *s, const cn_score_args *a, bool early, bool after_select,
                          uint32_t **counts);
/* Runs `select`. few: of a launch with CN_ROUTE_FEW. done: [units] finished parts of each list, for
 * attn_lists; or NULL. */
cn_status cn_select_launch(cn_stream *s, const cn_select_args *a, bool few, uint32_t *counts,
                           uint32_t *done);

/* Where `select` counts the finished parts of n_units lists; NULL: there is no room. */
uint32_t *cn_select_done(const cn_stream *s, uint32_t n_units);

CN_END_C
