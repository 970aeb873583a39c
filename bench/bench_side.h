/* bench_side.h - shared code of the benchmarks of homes: one GPU with a pool in the shape of
 * Qwen3-8B, the median time of an op on it, and rates beside the link. Thread: the benchmark's. */
#pragma once

#include <stdio.h>

#include "bench/bench_util.h"
#include "cuda/cuda_switches.h"

enum {
    LAYERS = 36,
    KV_HEADS = 8,
    DIM = 128,
    BLOCK = 256,
    CHANNELS = DIM / 4, /* of a label: 4 bits each */
    ROUNDS = 9,
    LINK_BYTES = 512 << 20
};

typedef struct side {
    cn_backend *be;
    cn_stream *stream;
    cn_fence *from, *to;
    cn_pools pools;
} side;

/* A backend of the GPU, for steps of n_seqs tokens, with a pool of n_blocks blocks and room_bytes
 * for what the benchmark allocates beside it. */
static inline side open_side(uint32_t gpu, uint32_t n_seqs, uint32_t n_blocks, uint64_t room_bytes,
                             const cn_cuda_switches *switches)
{
    const cn_kv_layout l = cn_kv_layout_make(LAYERS, n_blocks, KV_HEADS, BLOCK, DIM, CN_BF16);
    const cn_cuda_backend_opts o = {.device = gpu,
                                    .memory_bytes = cn_kv_pool_bytes(&l) + room_bytes,
                                    .n_heads = 32,
                                    .n_kv_heads = KV_HEADS,
                                    .head_dim = DIM,
                                    .max_seqs = n_seqs,
                                    .max_tokens = n_seqs,
                                    .switches = switches};
    side s = {.pools = {.layout = l, .n_heads = 32, .act_dtype = CN_BF16}};
    bench_must(cn_backend_cuda_load(&s.be, o));
    bench_must(s.be->stream_create(s.be, CN_PRIORITY_LOW, &s.stream));
    bench_must(s.be->timed_fence_create(s.be, &s.from));
    bench_must(s.be->timed_fence_create(s.be, &s.to));
    s.pools.kv = bench_alloc(s.be, cn_kv_pool_bytes(&l));
    return s;
}

static inline void close_side(side *s)
{
    s->be->fence_free(s->from);
    s->be->fence_free(s->to);
    s->be->stream_free(s->stream);
    s->be->close(s->be);
}

/* Median time of an op on a side's stream, in seconds. */
typedef cn_status (*run_fn)(side *s, const void *args);
static inline double time_of(side *s, run_fn run, const void *args)
{
    double seconds[ROUNDS];
    for (int i = -2; i < ROUNDS; i++) { /* two rounds warm up */
        double took_s;
        bench_must(s->be->fence_record(s->from, s->stream));
        bench_must(run(s, args));
        bench_must(s->be->fence_record(s->to, s->stream));
        bench_must(s->be->fence_sync(s->to));
        bench_must(s->be->fence_seconds(s->from, s->to, &took_s));
        if (i >= 0) seconds[i] = took_s;
    }
    return bench_median(seconds, ROUNDS);
}

static inline cn_status run_fetch(side *s, const void *args)
{
    return s->be->fetch(s->stream, args);
}

static inline cn_status run_copy(side *s, const void *args)
{
    return s->be->copy_blocks(s->stream, args);
}

/* Prints a time and its rate beside that of the link. width: of the column of names. */
static inline void report(int width, const char *name, double bytes, double s, double link)
{
    printf("%-*s %8.3f ms  %6.1f GB/s  %5.1f %% of the link (85 %%: %s)\n", width, name, s * 1e3,
           bytes / s / 1e9, 100 * bytes / s / link, bytes / s >= 0.85 * link ? "met" : "MISSED");
}
