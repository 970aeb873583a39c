/* bf16.h - bf16 values in tests: what a device holds of an f32. Thread: any. */
#ifndef CN_TEST_BF16_H
#define CN_TEST_BF16_H

#include <stdint.h>
#include <string.h>

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#endif
