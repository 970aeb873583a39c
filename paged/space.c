/* space.c - see space.h. */
#include "paged/space.h"

cn_status cn_space_init(cn_space *s, uint32_t n_blocks, uint32_t n_slots)
{
    *s = (cn_space){0};
    CN_TRY(cn_pool_create(&s->blocks, n_blocks));
    return n_slots > 0 ? cn_pool_create(&s->slots, n_slots) : CN_OK;
}

void cn_space_free(cn_space *s)
{
    cn_pool_free(s->blocks);
    cn_pool_free(s->slots);
    *s = (cn_space){0};
}

uint32_t cn_space_total_blocks(const cn_space *s)
{
    return s->blocks ? cn_pool_total(s->blocks) : 0;
}
uint32_t cn_space_total_slots(const cn_space *s) { return s->slots ? cn_pool_total(s->slots) : 0; }

uint32_t cn_space_free_blocks(const cn_space *s)
{
    return s->blocks ? cn_pool_available(s->blocks) : 0;
}

uint32_t cn_space_free_slots(const cn_space *s)
{
    return s->slots ? cn_pool_available(s->slots) : 0;
}

uint32_t cn_space_reservable_blocks(const cn_space *s)
{
    return cn_space_total_blocks(s) - s->reserved_blocks;
}

bool cn_space_try_take_slot(cn_space *s, uint32_t *slot)
{
    return s->slots && cn_pool_try_take(s->slots, 1, slot);
}

bool cn_space_try_hold(cn_space *s, uint32_t n_blocks, bool needs_slot, int32_t *slot)
{
    uint32_t taken = 0;
    if (n_blocks > cn_space_reservable_blocks(s)) return false;
    if (needs_slot && !cn_space_try_take_slot(s, &taken)) return false;
    s->reserved_blocks += n_blocks;
    s->n_holders++;
    *slot = needs_slot ? (int32_t)taken : -1;
    return true;
}

void cn_space_release(cn_space *s, uint32_t n_blocks, int32_t slot)
{
    CN_ASSERT(s->n_holders > 0 && s->reserved_blocks >= n_blocks);
    s->n_holders--;
    s->reserved_blocks -= n_blocks;
    if (slot >= 0) cn_pool_drop(s->slots, (uint32_t)slot);
}

const char *cn_space_check(const cn_space *s)
{
    const char *broken = s->blocks ? cn_pool_check(s->blocks) : NULL;
    if (!broken && s->slots) broken = cn_pool_check(s->slots);
    if (!broken && s->reserved_blocks > cn_space_total_blocks(s))
        broken = "reservations exceed the blocks of their space";
    return broken;
}
