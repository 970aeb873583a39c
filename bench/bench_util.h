/* bench_util.h - shared code of the benchmarks: errors that end the program, random inputs,
 * medians, and the read bandwidth that others are compared with. Thread: the benchmark's. */
#pragma once

#include <errno.h>
#include <stdlib.h>

#include "engine/base/base.h"
#include "engine/start/device_choice.h"

/* Prints the last error and ends the program, unless the call returned CN_OK. */
static inline void bench_must(cn_status status)
{
    if (status == CN_OK) return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, cn_last_error());
    exit(1);
}

/* splitmix64. */
static inline uint64_t bench_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int bench_compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median. Sorts the values. */
static inline double bench_median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, bench_compare_doubles);
    return values[n / 2];
}

/* Returns n floats between -scale and scale. Free them with cn_free. */
static inline float *bench_floats(size_t n, uint64_t seed, float scale)
{
    float *p = cn_calloc_aligned(n, sizeof *p);
    if (!p) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for %zu floats", n));
    for (size_t i = 0; i < n; i++)
        p[i] = scale * ((float)(bench_random(&seed) >> 40) * 0x1p-23f - 1.0f);
    return p;
}

/* ---- on a device ---- */

static inline void *bench_alloc(cn_backend *be, size_t bytes)
{
    void *p = NULL;
    bench_must(be->mem_alloc(be, bytes, &p));
    return p;
}

/* Fills dst with bf16 values of either sign between 2^low and 2^high. Each power of two is equally
 * likely, because the electrical power of a kernel depends on the bits and zeros run faster. The
 * same 64 MiB are repeated, more than a cache holds. */
static inline void bench_fill_bf16(cn_backend *be, cn_stream *s, void *dst, size_t bytes,
                                   uint64_t seed, int low, int high)
{
    enum { CHUNK = 32 << 20, EXPONENT_OF_ONE = 127 };
    uint16_t *chunk = cn_calloc(CHUNK, sizeof *chunk);
    if (!chunk) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for random values"));
    for (size_t i = 0; i < CHUNK; i++) {
        const uint64_t r = bench_random(&seed);
        const int exponent = EXPONENT_OF_ONE + low + (int)((r >> 20) % (uint32_t)(high - low));
        chunk[i] = (uint16_t)((r & 0x807f) | (uint32_t)exponent << 7);
    }
    const size_t chunk_bytes = CHUNK * sizeof *chunk;
    for (size_t at = 0; at < bytes; at += chunk_bytes) {
        const size_t n = bytes - at < chunk_bytes ? bytes - at : chunk_bytes;
        bench_must(be->mem_write(s, (char *)dst + at, chunk, n));
    }
    bench_must(be->stream_sync(s));
    cn_free(chunk);
}

/* Returns the bytes per second of read passes (mem_sum): the median of some rounds. */
static inline double bench_read_bandwidth(cn_backend *be, cn_stream *s, const void *data,
                                          size_t bytes)
{
    enum { ROUNDS = 9, PASSES = 2 };
    uint64_t *out = bench_alloc(be, 64);
    double seconds[ROUNDS];
    for (uint32_t round = 0; round <= ROUNDS; round++) { /* the first round warms up */
        bench_must(be->stream_sync(s));
        const double start = cn_now_s();
        for (uint32_t i = 0; i < PASSES; i++) bench_must(be->mem_sum(s, data, bytes, out));
        bench_must(be->stream_sync(s));
        if (round > 0) seconds[round - 1] = (cn_now_s() - start) / PASSES;
    }
    be->mem_free(be, out);
    return (double)bytes / bench_median(seconds, ROUNDS);
}
