/* compress_placement.h - which of a sequence's own and new blocks are the target blocks of a
 * compression, for the tests of every backend. Thread: any. */
#pragma once

#include <stdint.h>

typedef enum compress_placement {
    IN_PLACE,     /* the first of its own blocks, in order */
    ALL_NEW,
    PREFIX_SAFE,  /* new blocks for the first half, then own blocks */
    OWN_REVERSED, /* own blocks in reverse order */
    SHUFFLED,     /* own and new blocks in any order */
    N_PLACEMENTS
} compress_placement;

/* Returns target block j of n_target. own [n_own] are the source blocks, fresh [n_own] are new
 * blocks, any [n_target] are some of both. */
static inline uint32_t compress_place(compress_placement how, const uint32_t *own, uint32_t n_own,
                                      const uint32_t *fresh, const uint32_t *any,
                                      uint32_t n_target, uint32_t j)
{
    switch (how) {
    case ALL_NEW: return fresh[j];
    case PREFIX_SAFE: return j < n_target / 2 ? fresh[j] : own[j];
    case OWN_REVERSED: return own[n_own - 1 - j];
    case SHUFFLED: return any[j];
    default: return own[j];
    }
}
