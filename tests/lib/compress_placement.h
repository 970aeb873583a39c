/* compress_placement.h - how the target blocks of a compression lie to its sources, for the tests
 * of every backend. Thread: any. */
#ifndef CN_TEST_COMPRESS_PLACEMENT_H
#define CN_TEST_COMPRESS_PLACEMENT_H

#include <stdint.h>

typedef enum compress_placement {
    IN_PLACE,     /* the first own blocks, in order */
    ALL_NEW,
    PREFIX_SAFE,  /* new ones for the first half, then own ones */
    OWN_REVERSED, /* own blocks, last first */
    SHUFFLED,     /* own and new ones in any order */
    N_PLACEMENTS
} compress_placement;

/* The j-th of n_target blocks. own [n_own] are the sources, fresh [n_own] new blocks, any
 * [n_target] some of both. */
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

#endif
