/* cpu_check.c - see cpu_check.h. Uses nothing of the rest of the program. */
#include "engine/base/cpu_check.h"

#if defined(__x86_64__)

/* __builtin_cpu_supports takes only literals. */
#define EXTENSION(id, name) \
    {CN_CPU_##id, name, __builtin_cpu_supports(name) != 0}

bool cn_cpu_check(FILE *f, unsigned needs)
{
    __builtin_cpu_init();
    const struct {
        unsigned bit;
        const char *name;
        bool there;
    } extensions[] = {
        EXTENSION(AVX, "avx"),           EXTENSION(AVX2, "avx2"),
        EXTENSION(FMA, "fma"),           EXTENSION(BMI, "bmi"),
        EXTENSION(BMI2, "bmi2"),         EXTENSION(AVX512F, "avx512f"),
        EXTENSION(AVX512BW, "avx512bw"), EXTENSION(AVX512DQ, "avx512dq"),
        EXTENSION(AVX512VL, "avx512vl"), EXTENSION(AVX512VNNI, "avx512vnni"),
        EXTENSION(AVX512BF16, "avx512bf16"),
    };
    unsigned n = 0;
    for (unsigned i = 0; i < sizeof extensions / sizeof *extensions; i++) {
        if (!(needs & extensions[i].bit) || extensions[i].there) continue;
        fprintf(f, "%s%s", n++ ? ", " : "error: this processor lacks ", extensions[i].name);
    }
    if (n == 0) return true;
    fprintf(f, ", which this build of cinch needs%s; on this machine, build cinch from its source "
               "with make\n",
            needs & CN_CPU_AVX512F ? "" : " (x86-64-v3: Intel since Haswell, AMD since Excavator)");
    return false;
}

#else

bool cn_cpu_check(FILE *f, unsigned needs)
{
    (void)f;
    (void)needs;
    return true;
}

#endif
