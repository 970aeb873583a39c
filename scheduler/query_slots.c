/* query_slots.c - a stack of free query slots and the sum of reservations. See query_slots.h. */
#include "scheduler/query_slots.h"

cn_status cn_query_slots_init(cn_query_slots *q, uint32_t n_slots, uint32_t n_blocks)
{
    *q = (cn_query_slots){.n_slots = n_slots, .n_free = n_slots, .n_blocks = n_blocks};
    q->free = cn_calloc(n_slots, sizeof *q->free);
    if (!q->free) return cn_fail(CN_ERR_MEMORY, "out of memory for %u query slots", n_slots);
    for (uint32_t i = 0; i < n_slots; i++) q->free[i] = (int32_t)(n_slots - 1 - i);
    return CN_OK;
}

void cn_query_slots_free(cn_query_slots *q)
{
    cn_free(q->free);
    *q = (cn_query_slots){0};
}

bool cn_query_slots_try_hold(cn_query_slots *q, uint32_t n_max, bool needs_slot, int32_t *slot)
{
    if (n_max > q->n_blocks - q->reserved_blocks) return false;
    if (needs_slot && q->n_free == 0) return false;
    q->reserved_blocks += n_max;
    q->n_holders++;
    *slot = needs_slot ? q->free[--q->n_free] : -1;
    return true;
}

void cn_query_slots_release(cn_query_slots *q, uint32_t n_max, int32_t slot)
{
    CN_ASSERT(q->n_holders > 0 && q->reserved_blocks >= n_max);
    q->n_holders--;
    q->reserved_blocks -= n_max;
    if (slot < 0) return;
    CN_ASSERT(q->n_free < q->n_slots);
    q->free[q->n_free++] = slot;
}

bool cn_query_slots_try_grow(cn_query_slots *q, uint64_t n_others)
{
    if (q->reserved_blocks + n_others >= q->n_blocks) return false;
    q->reserved_blocks++;
    return true;
}

void cn_query_slots_shrink(cn_query_slots *q, uint32_t n_blocks)
{
    CN_ASSERT(q->reserved_blocks >= n_blocks);
    q->reserved_blocks -= n_blocks;
}
