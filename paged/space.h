/* space.h - a memory that holds KV: a device or host memory. It has its own block ids with
 * references (pool.h), query slots, and reservations. It knows no bytes: planes.h says where an
 * item lies.
 *
 * Owner: cn_scheduler. Thread: engine only. Stage: from admission to the end of a request.
 *
 * A holder is a request that keeps a reservation, and a query slot if it needs one, until it ends.
 * The sum of the holders' block caps stays within the space's blocks, so that holders never preempt
 * one another (DESIGN.md §3.2; paper §4.2, §4.3). */
#ifndef CN_SPACE_H
#define CN_SPACE_H

#include "paged/planes.h"
#include "paged/pool.h"

typedef struct cn_space {
    cn_where where;
    cn_pool *blocks;          /* NULL in a zeroed struct: the space does not exist */
    cn_pool *slots;           /* query slots, one owner each; NULL: none */
    uint32_t n_holders;       /* with a slot or with a reservation alone */
    uint32_t reserved_blocks; /* sum of the holders' caps as they are now */
} cn_space;

/* A space of n_blocks blocks, at least one, and n_slots query slots. CN_ERR_ARG, CN_ERR_MEMORY. */
cn_status cn_space_init(cn_space *s, cn_where where, uint32_t n_blocks, uint32_t n_slots);
void cn_space_free(cn_space *s);

uint32_t cn_space_total_blocks(const cn_space *s);
uint32_t cn_space_total_slots(const cn_space *s);
uint32_t cn_space_free_slots(const cn_space *s);
uint32_t cn_space_free_blocks(const cn_space *s);      /* what a take can get */
uint32_t cn_space_reservable_blocks(const cn_space *s); /* that no holder has reserved */

/* One block, or one query slot. False, nothing changed, when there is none. */
bool cn_space_try_take(cn_space *s, uint32_t *block);
bool cn_space_try_take_slot(cn_space *s, uint32_t *slot);

/* Reserves n_blocks and, where needs_slot, takes a slot (else *slot is -1). False, nothing changed,
 * when either is short. */
bool cn_space_try_hold(cn_space *s, uint32_t n_blocks, bool needs_slot, int32_t *slot);
void cn_space_release(cn_space *s, uint32_t n_blocks, int32_t slot);

/* Tail relaxation: a holder's cap grows by a block, while n_others more stay unreserved; and it
 * shrinks by n_blocks again. */
bool cn_space_try_grow(cn_space *s, uint64_t n_others);
void cn_space_shrink(cn_space *s, uint32_t n_blocks);

/* NULL, or what is broken. O(blocks + slots). */
const char *cn_space_check(const cn_space *s);

#endif
