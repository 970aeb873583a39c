/* budget.h - a limit that threads share: bytes of memory, or samples of an API key.
 * Owner: cn_server or cn_service. Thread: any. */
#pragma once

#include <stdatomic.h>

#include "engine/base/base.h"

typedef struct cn_budget {
    atomic_uint_fast64_t used;
    uint64_t most;
} cn_budget;

/* False, and nothing taken, when `n` more would exceed the limit. */
static inline bool cn_budget_try_take(cn_budget *b, uint64_t n)
{
    uint_fast64_t used = atomic_load(&b->used);
    do {
        if (n > b->most || used > b->most - n) return false;
    } while (!atomic_compare_exchange_weak(&b->used, &used, used + n));
    return true;
}

static inline void cn_budget_give(cn_budget *b, uint64_t n) { atomic_fetch_sub(&b->used, n); }
