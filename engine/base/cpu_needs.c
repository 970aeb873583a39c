/* cpu_needs.c - the instruction set extensions that the compiler was allowed to use. Data only: the
 * file is compiled like the rest of the program and read before the check. See cpu_check.h. */
#include "engine/base/cpu_check.h"

const unsigned cn_cpu_needs = 0
#ifdef __AVX__
    | CN_CPU_AVX
#endif
#ifdef __AVX2__
    | CN_CPU_AVX2
#endif
#ifdef __FMA__
    | CN_CPU_FMA
#endif
#ifdef __BMI__
    | CN_CPU_BMI
#endif
#ifdef __BMI2__
    | CN_CPU_BMI2
#endif
#ifdef __AVX512F__
    | CN_CPU_AVX512F
#endif
#ifdef __AVX512BW__
    | CN_CPU_AVX512BW
#endif
#ifdef __AVX512DQ__
    | CN_CPU_AVX512DQ
#endif
#ifdef __AVX512VL__
    | CN_CPU_AVX512VL
#endif
#ifdef __AVX512VNNI__
    | CN_CPU_AVX512VNNI
#endif
#ifdef __AVX512BF16__
    | CN_CPU_AVX512BF16
#endif
    ;
