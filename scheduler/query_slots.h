/* query_slots.h - the M query slots and the reservations that go with them: the sum of the holders'
 * block caps stays within the pool, so that holders never need to be preempted for one another.
 * Owner: cn_scheduler. Thread: engine only. Stage: from grant to finish. Paper: §4.2, §4.3. */
#ifndef CN_QUERY_SLOTS_H
#define CN_QUERY_SLOTS_H

#include "engine/base.h"

typedef struct cn_query_slots {
    int32_t *free; /* stack [n_slots] */
    uint32_t n_slots, n_free;
    uint32_t n_holders;                 /* with a slot or with a reservation alone */
    uint32_t reserved_blocks, n_blocks; /* sum of the holders' caps as they stand, and its bound */
} cn_query_slots;

cn_status cn_query_slots_init(cn_query_slots *q, uint32_t n_slots, uint32_t n_blocks);
void cn_query_slots_free(cn_query_slots *q);

/* Reserves n_max blocks and, where needs_slot, takes a slot (else *slot is -1). False, nothing
 * changed, when either is short. */
bool cn_query_slots_try_hold(cn_query_slots *q, uint32_t n_max, bool needs_slot, int32_t *slot);
void cn_query_slots_release(cn_query_slots *q, uint32_t n_max, int32_t slot);

/* Tail relaxation: a holder's cap grows by a block, while n_others more stay unreserved; and it
 * shrinks by n_blocks again. */
bool cn_query_slots_try_grow(cn_query_slots *q, uint64_t n_others);
void cn_query_slots_shrink(cn_query_slots *q, uint32_t n_blocks);

#endif
