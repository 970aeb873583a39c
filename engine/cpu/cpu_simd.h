/* cpu_simd.h - short f32 vectors in the compiler's vector extension, and exp over them.
 *
 * A leaf of the CPU backend. Arithmetic that determines the bits of a row (sums, exp) uses these
 * vectors instead of auto-vectorised loops. A compiler may split a loop by alignment or by trip
 * count; the lane of an element here depends on its index alone. Strict C (-std=c11) never fuses a
 * multiplication with an addition. Only cn_vec_fma does, so two compilations of one expression give
 * the same bits. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__FMA__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

/* Vectors are passed only between inlined functions, so their calling convention has no effect. */
#pragma GCC diagnostic ignored "-Wpsabi"

#if defined(__AVX512F__)
enum { CN_VEC = 16 };
#else
enum { CN_VEC = 8 };
#endif

typedef float cn_vec __attribute__((vector_size(sizeof(float) * CN_VEC)));
typedef int32_t cn_ivec __attribute__((vector_size(sizeof(int32_t) * CN_VEC)));
typedef float cn_vec_unaligned
    __attribute__((vector_size(sizeof(float) * CN_VEC), aligned(4), may_alias));

#define CN_INLINE static inline __attribute__((always_inline))

CN_INLINE cn_vec cn_vec_load(const float *p) { return *(const cn_vec_unaligned *)p; }

CN_INLINE void cn_vec_store(float *p, cn_vec v) { *(cn_vec_unaligned *)p = v; }

/* Subtracting 0 keeps -0, so this compiles to a single broadcast. */
CN_INLINE cn_vec cn_vec_set(float x) { return x - (cn_vec){0}; }

/* a * b + c, rounded once if the CPU has FMA. */
CN_INLINE cn_vec cn_vec_fma(cn_vec a, cn_vec b, cn_vec c)
{
#if defined(__AVX512F__)
    return (cn_vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (cn_vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* Loads n < CN_VEC elements; the other lanes are 0. */
CN_INLINE cn_vec cn_vec_load_n(const float *p, uint32_t n)
{
    cn_vec v = {0};
    memcpy(&v, p, n * sizeof *p);
    return v;
}

CN_INLINE cn_vec cn_vec_select(cn_ivec mask, cn_vec yes, cn_vec no)
{
    return (cn_vec)((mask & (cn_ivec)yes) | (~mask & (cn_ivec)no));
}

CN_INLINE cn_vec cn_vec_max(cn_vec a, cn_vec b) { return cn_vec_select(a > b, a, b); }

/* Adds the lanes in halves, so the order of the sums is always the same tree. */
CN_INLINE float cn_vec_sum(cn_vec v)
{
#if defined(__AVX512F__)
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
#else
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 2, 3, 2, 3, 2, 3, 2, 3);
#endif
    return v[0] + v[1];
}

CN_INLINE float cn_vec_largest(cn_vec v)
{
    float lane[CN_VEC];
    memcpy(lane, &v, sizeof v);
    for (int half = CN_VEC / 2; half >= 1; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

/* exp(x) within 2 units in the last place; 0 below -87, saturated above 88.
 * x = n ln2 + r with |r| <= ln2 / 2; exp(r) by the degree-6 polynomial of Cephes; 2^n by the
 * exponent bits. ln2 is split in two so that r keeps its bits. */
CN_INLINE cn_vec cn_vec_exp(cn_vec x)
{
    const float round_to_int = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    cn_vec lo = cn_vec_set(-87.0f), hi = cn_vec_set(88.0f);
    cn_ivec in_range = x >= lo;
    x = cn_vec_select(x < lo, lo, cn_vec_select(x > hi, hi, x));
    cn_vec shifted = cn_vec_fma(x, cn_vec_set(1.44269504088896341f), cn_vec_set(round_to_int));
    cn_vec n = shifted - round_to_int;
    cn_vec r = cn_vec_fma(n, cn_vec_set(-0.693359375f), x);
    r = cn_vec_fma(n, cn_vec_set(2.12194440e-4f), r);
    cn_vec y = cn_vec_set(1.9875691500e-4f);
    y = cn_vec_fma(y, r, cn_vec_set(1.3981999507e-3f));
    y = cn_vec_fma(y, r, cn_vec_set(8.3334519073e-3f));
    y = cn_vec_fma(y, r, cn_vec_set(4.1665795894e-2f));
    y = cn_vec_fma(y, r, cn_vec_set(1.6666665459e-1f));
    y = cn_vec_fma(y, r, cn_vec_set(5.0000001201e-1f));
    y = cn_vec_fma(y, r * r, r + 1.0f);
    cn_ivec exponent = ((cn_ivec)shifted - (cn_ivec)cn_vec_set(round_to_int)) << 23;
    cn_vec scaled = (cn_vec)((cn_ivec)y + exponent);
    return (cn_vec)(in_range & (cn_ivec)scaled);
}
