/* bench_compress_cuda.c - compression events on a GPU, in the shape of Qwen3-8B: 36 layers, 8 kv
 * heads, groups of 4, head_dim 128, nine blocks of 256 brought to eight, window of 16, bf16.
 *
 *   bench_compress_cuda [portable]
 *
 * Each row is an event of one or of eight requests. "in turn" is the time an event takes behind
 * others, "alone" from the call until the stream is idle again. The floor is the bytes that must
 * move (K once, queries, the global score twice, and K and V of the kept rows there and back) over
 * the bandwidth of one pass of reading (mem_sum) in the same run. Policies with parts left out
 * tell what the parts take: `window` moves only, `no redundancy` adds attention and selection.
 * Values are random: zeros run faster, and every slot is as likely to go as another, so that rows
 * move from the first block on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/base.h"

enum {
    LAYERS = 36,
    KV_HEADS = 8,
    GROUP = 4,
    DIM = 128,
    BLOCK = 256,
    N_BLOCKS = 9,
    N_TARGET = 8,
    WINDOW = 16,
    REQUESTS = 8,
    FILL_BYTES = 64 << 20,
    ROUNDS = 9
};

static void check(cn_status status)
{
    if (status == CN_OK) return;
    fprintf(stderr, "bench_compress_cuda: %s\n", cn_last_error());
    exit(1);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

typedef struct bench {
    cn_backend *be;
    cn_stream *stream;
    cn_pools pools;
    size_t pool_bytes;
    uint32_t tables[REQUESTS][N_BLOCKS];
    cn_compress_req reqs[REQUESTS];
    void *scratch;
    size_t scratch_bytes;
    double bytes_per_s;
} bench;

static void *device_alloc(bench *b, size_t bytes)
{
    void *p = NULL;
    check(b->be->mem_alloc(b->be, bytes, &p));
    return p;
}

/* bf16 values between 2^-4 and 2 of either sign. */
static void fill_random(bench *b, void *dst, size_t bytes)
{
    static uint16_t values[FILL_BYTES / 2];
    static uint64_t random = 1;
    for (size_t at = 0; at < bytes; at += FILL_BYTES) {
        for (size_t i = 0; i < FILL_BYTES / 2 && at % (8 * (size_t)FILL_BYTES) == 0; i++) {
            uint64_t r = next_random(&random);
            values[i] = (uint16_t)((r & 0x807f) | (123 + (r >> 20) % 5) << 7);
        }
        size_t n = bytes - at < FILL_BYTES ? bytes - at : FILL_BYTES;
        check(b->be->mem_write(b->stream, (char *)dst + at, values, n));
    }
    check(b->be->stream_sync(b->stream));
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return values[n / 2];
}

static double read_bandwidth(bench *b)
{
    uint64_t *out = device_alloc(b, 64);
    double seconds[ROUNDS];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        check(b->be->stream_sync(b->stream));
        double start = cn_now_s();
        check(b->be->mem_sum(b->stream, b->pools.kv, b->pool_bytes, out));
        check(b->be->stream_sync(b->stream));
        seconds[round] = cn_now_s() - start;
    }
    b->be->mem_free(b->be, out);
    return (double)b->pool_bytes / median(seconds, ROUNDS);
}

static void pools_open(bench *b)
{
    cn_pools *p = &b->pools;
    *p = (cn_pools){.layout = cn_kv_layout_make(LAYERS, REQUESTS * N_BLOCKS, KV_HEADS, BLOCK, DIM),
                    .n_query_slots = REQUESTS,
                    .window = WINDOW,
                    .n_heads = KV_HEADS * GROUP};
    b->pool_bytes = cn_kv_pool_elems(&p->layout) * 2;
    const size_t query_bytes = (size_t)LAYERS * REQUESTS * WINDOW * KV_HEADS * GROUP * DIM * 2;
    p->kv = device_alloc(b, b->pool_bytes);
    p->score = device_alloc(b, cn_kv_side_elems(&p->layout) * sizeof(float));
    p->q_window = device_alloc(b, query_bytes);
    fill_random(b, p->kv, b->pool_bytes);
    fill_random(b, p->q_window, query_bytes);
    b->scratch_bytes = b->be->compress_scratch_bytes(b->be, p, N_BLOCKS * BLOCK);
    b->scratch = device_alloc(b, b->scratch_bytes);
}

/* Blocks dealt in random order. */
static void requests_make(bench *b)
{
    uint32_t order[REQUESTS * N_BLOCKS];
    uint64_t random = 2;
    for (uint32_t i = 0; i < REQUESTS * N_BLOCKS; i++) {
        uint32_t j = (uint32_t)(next_random(&random) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        memcpy(b->tables[i], order + i * N_BLOCKS, sizeof b->tables[i]);
        b->reqs[i] = (cn_compress_req){.params = {.budget_tokens = N_TARGET * BLOCK,
                                                  .window_tokens = WINDOW,
                                                  .sink_tokens = 4,
                                                  .global_score = true,
                                                  .alpha = 0.8f,
                                                  .redundancy_p = 0.5f,
                                                  .redundancy_tau = 0.4f,
                                                  .lambda = 0.2f},
                                       .n_blocks = N_BLOCKS,
                                       .n_target = N_TARGET,
                                       .table = b->tables[i],
                                       .target = b->tables[i],
                                       .query_slot = i,
                                       .position_end = N_BLOCKS * BLOCK,
                                       .n_history = N_TARGET * BLOCK};
    }
}

static void run_event(bench *b, uint32_t first, uint32_t n)
{
    cn_compress_args a = {b->pools, b->reqs + first, n, b->scratch, b->scratch_bytes};
    check(b->be->compress(b->stream, &a));
}

/* All requests once, n in an event; seconds of an event. */
static double time_in_turn(bench *b, uint32_t n)
{
    double seconds[ROUNDS];
    for (uint32_t round = 0; round <= ROUNDS; round++) {
        check(b->be->stream_sync(b->stream));
        double start = cn_now_s();
        for (uint32_t i = 0; i < REQUESTS; i += n) run_event(b, i, n);
        check(b->be->stream_sync(b->stream));
        if (round > 0) seconds[round - 1] = (cn_now_s() - start) * n / REQUESTS;
    }
    return median(seconds, ROUNDS);
}

static double time_alone(bench *b, uint32_t n)
{
    double seconds[ROUNDS];
    for (uint32_t round = 0; round <= ROUNDS; round++) {
        check(b->be->stream_sync(b->stream));
        double start = cn_now_s();
        run_event(b, round * n % REQUESTS, n);
        check(b->be->stream_sync(b->stream));
        if (round > 0) seconds[round - 1] = cn_now_s() - start;
    }
    return median(seconds, ROUNDS);
}

/* What one request's event must move. */
static double floor_bytes(const cn_kv_params *p)
{
    const double units = LAYERS * KV_HEADS, row = DIM * 2;
    const double moved = units * N_TARGET * BLOCK * 4 * row;
    if (p->policy == CN_KV_WINDOW) return moved;
    return moved + units * (N_BLOCKS * BLOCK * (row + 2 * sizeof(float)) + WINDOW * GROUP * row);
}

static void report(bench *b, const char *name, cn_kv_policy policy, cn_kv_redundancy redundancy)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        b->reqs[i].params.policy = policy;
        b->reqs[i].params.redundancy = redundancy;
    }
    for (uint32_t n = 1; n <= REQUESTS; n *= REQUESTS) {
        const double floor = n * floor_bytes(&b->reqs[0].params) / b->bytes_per_s;
        const double turn = time_in_turn(b, n), alone = time_alone(b, n);
        printf("%-22s %u request%s  floor %6.3f ms  in turn %6.3f ms (%3.0f %%)  alone %6.3f ms\n",
               name, n, n == 1 ? " " : "s", 1e3 * floor, 1e3 * turn, 100 * floor / turn,
               1e3 * alone);
    }
}

int main(int argc, char **argv)
{
    static bench b;
    const bool portable = argc > 1 && strcmp(argv[1], "portable") == 0;
    cn_cuda_backend_opts o = {.memory_bytes = (uint64_t)6 << 30,
                              .n_heads = KV_HEADS * GROUP,
                              .max_seqs = 16,
                              .portable = portable};
    if (cn_backend_cuda_load(&b.be, o) != CN_OK) {
        printf("skipped: %s\n", cn_last_error());
        return 0;
    }
    b.stream = b.be->stream(b.be, 1);
    pools_open(&b);
    requests_make(&b);
    b.bytes_per_s = read_bandwidth(&b);
    printf("read bandwidth %.0f GB/s%s\n", b.bytes_per_s / 1e9, portable ? ", portable" : "");
    report(&b, "window", CN_KV_WINDOW, CN_REDUNDANCY_NONE);
    report(&b, "zip, no redundancy", CN_KV_ZIP, CN_REDUNDANCY_NONE);
    report(&b, "zip, lightning", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING);
    report(&b, "zip, flash", CN_KV_ZIP, CN_REDUNDANCY_FLASH);
    b.be->close(b.be);
    return 0;
}
