/* score_value.h - f16 in double, and the values of scores (engine/select/select_math.h). */
#pragma once

#include <math.h>

#include "engine/select/select_math.h"

/* The f16 nearest to x in double, ties to even, saturated. */
static inline double test_nearest_f16(double x)
{
    int exponent;
    frexp(x, &exponent);
    const double unit = ldexp(1, (exponent - 1 < -14 ? -14 : exponent - 1) - 10);
    const double rounded = rint(x / unit) * unit;
    return fmax(-65504, fmin(65504, rounded));
}

/* The f16 of a score. */
static inline float test_score_value(uint16_t score)
{
    return cn_f16_value((uint16_t)(score & 0x8000u ? score & 0x7fffu : ~(uint32_t)score));
}
