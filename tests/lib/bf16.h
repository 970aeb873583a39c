/* bf16.h - conversion between f32 and bf16, as a device stores it, for tests. Thread: any. */
#pragma once

#include <stdint.h>
#include <string.h>

/* Rounds to nearest, ties to even. A NaN stays a NaN. */
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
