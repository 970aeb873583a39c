/* philox.h - Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
 * a counter generator, a pure function of a counter and a key. A leaf shared by C and CUDA C++.
 *
 * Sampling draws one number per (seed, sample, position). A result therefore depends neither on
 * batch composition, nor on the order of the steps, nor on preemptions. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_philox4 {
    uint32_t v[4];
} cn_philox4;

CN_HOST_DEVICE static inline cn_philox4 cn_philox4x32_10(cn_philox4 counter, uint32_t key0,
                                                         uint32_t key1)
{
    cn_philox4 x = counter;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * x.v[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * x.v[2];
        cn_philox4 y = {{(uint32_t)(b >> 32) ^ x.v[1] ^ key0, (uint32_t)b,
                         (uint32_t)(a >> 32) ^ x.v[3] ^ key1, (uint32_t)a}};
        x = y;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return x;
}

/* 64 uniform bits for (seed, sample, position): the first two words; the first is the high one. */
CN_HOST_DEVICE static inline uint64_t cn_philox_u64(uint64_t seed, uint32_t sample,
                                                    uint32_t position)
{
    cn_philox4 counter = {{sample, position, 0, 0}};
    cn_philox4 x = cn_philox4x32_10(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    return (uint64_t)x.v[0] << 32 | x.v[1];
}
