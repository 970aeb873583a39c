/* space.h - one memory that holds KV: device memory or host memory. A space has its own block ids
 * with reference counts (pool.h), its own query slots, and reservations. It counts blocks and slots
 * and knows no addresses; planes.h has those.
 *
 * Owner: cn_scheduler. Thread: engine only. Stage: from admission to the end of a request.
 *
 * A holder is a request that keeps a reservation, and a query slot if it needs one, until it ends,
 * is preempted or moves to another space. The sum of the holders' block caps never exceeds the
 * blocks of the space, so that holders need not preempt one another (DESIGN.md §3.2; paper §4.2,
 * §4.3). */
#pragma once

#include "paged/pool.h"

typedef struct cn_space {
    cn_pool *blocks;          /* NULL in a zeroed struct: the space does not exist */
    cn_pool *slots;           /* query slots, each with one owner; NULL: no query slots */
    uint32_t n_holders;       /* with a slot, or with only a reservation */
    uint32_t reserved_blocks; /* sum of the holders' current caps */
} cn_space;

/* Creates n_blocks blocks, at least one, and n_slots query slots. CN_ERR_ARG, CN_ERR_MEMORY. */
cn_status cn_space_init(cn_space *s, uint32_t n_blocks, uint32_t n_slots);
void cn_space_free(cn_space *s);

uint32_t cn_space_total_blocks(const cn_space *s);
uint32_t cn_space_total_slots(const cn_space *s);
uint32_t cn_space_free_slots(const cn_space *s);
uint32_t cn_space_free_blocks(const cn_space *s);      /* free or cached-only */
uint32_t cn_space_reservable_blocks(const cn_space *s); /* not reserved by a holder */

/* Takes one query slot. Returns false and changes nothing when none is free. */
bool cn_space_try_take_slot(cn_space *s, uint32_t *slot);

/* Reserves n_blocks and, if needs_slot, takes a slot; otherwise *slot is -1. Returns false and
 * changes nothing when too few blocks or no slots are left. */
bool cn_space_try_hold(cn_space *s, uint32_t n_blocks, bool needs_slot, int32_t *slot);
/* Ends a hold: the arguments are the current cap and the slot, or -1. */
void cn_space_release(cn_space *s, uint32_t n_blocks, int32_t slot);

/* Returns NULL, or a text that names the broken invariant. O(blocks + slots). */
const char *cn_space_check(const cn_space *s);
