/* cpu_check.h - refuses a processor that lacks instructions which the program was compiled for.
 *
 * Owner: none. Thread: main. Stage: before everything else. cpu_check.c and main.c are compiled for
 * any x86-64 processor, so that they run where the rest does not. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* Instruction set extensions, as bits. */
enum {
    CN_CPU_AVX = 1 << 0,
    CN_CPU_AVX2 = 1 << 1,
    CN_CPU_FMA = 1 << 2,
    CN_CPU_BMI = 1 << 3,
    CN_CPU_BMI2 = 1 << 4,
    CN_CPU_AVX512F = 1 << 5,
    CN_CPU_AVX512BW = 1 << 6,
    CN_CPU_AVX512DQ = 1 << 7,
    CN_CPU_AVX512VL = 1 << 8,
    CN_CPU_AVX512VNNI = 1 << 9,
    CN_CPU_AVX512BF16 = 1 << 10
};

/* What the compiler may have used. In cpu_needs.c, which is compiled like the rest. */
extern const unsigned cn_cpu_needs;

/* False, with a sentence on f, if the processor lacks one of `needs`. */
bool cn_cpu_check(FILE *f, unsigned needs);
