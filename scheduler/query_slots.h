/* query_slots.h - the M query slots and the block reservations of the requests that hold them.
 * Owner: cn_scheduler. Thread: engine only. Stage: from grant to finish. Paper: §4.2, §4.3.
 *
 * The sum of the holders' block caps stays within the pool (DESIGN.md §3.2). Therefore no holder
 * must be preempted for another holder. */
#ifndef CN_QUERY_SLOTS_H
#define CN_QUERY_SLOTS_H

#include "engine/base.h"

typedef struct cn_query_slots {
    int32_t *free; /* stack [n_slots] */
    uint32_t n_slots, n_free;
    uint32_t n_holders;                 /* requests with a slot, or with only a reservation */
    uint32_t reserved_blocks, n_blocks; /* sum of the holders' current caps, and its limit */
} cn_query_slots;

cn_status cn_query_slots_init(cn_query_slots *q, uint32_t n_slots, uint32_t n_blocks);
void cn_query_slots_free(cn_query_slots *q);

/* Reserves n_max blocks and, if needs_slot, takes a slot; otherwise *slot is -1. Returns false and
 * changes nothing when too few blocks or no slots are left. */
bool cn_query_slots_try_hold(cn_query_slots *q, uint32_t n_max, bool needs_slot, int32_t *slot);
void cn_query_slots_release(cn_query_slots *q, uint32_t n_max, int32_t slot);

/* Tail relaxation. try_grow raises a holder's cap by one block if n_others blocks then stay
 * unreserved; otherwise it returns false and changes nothing. shrink lowers a cap by n_blocks. */
bool cn_query_slots_try_grow(cn_query_slots *q, uint64_t n_others);
void cn_query_slots_shrink(cn_query_slots *q, uint32_t n_blocks);

#endif
