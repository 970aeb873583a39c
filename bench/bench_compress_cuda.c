/* bench_compress_cuda.c - times compression events on a GPU, in the shape of Qwen3-8B: 36 layers, 8
 * kv heads, groups of 4, head_dim 128, nine blocks of 256 reduced to eight, window of 16, bf16.
 *
 *   bench_compress_cuda [portable] [narrow] [fp8]
 *
 * Each row is an event of one or of eight requests. "queued" is the time per event in a queue of
 * events. "alone" is the time from the call until the stream is idle. "floor" is the bytes that
 * must move, over the read bandwidth of one pass (mem_sum) in the same run. The bytes are K once,
 * the queries, the global score twice, and one read and one write of K and V of the rows that
 * change their slots, which are counted in one event. The policies show what each part takes:
 * `window` only moves, `no redundancy` adds attention and selection, `fill` moves few rows. Values
 * are random, because zeros run faster. Every slot is then equally likely to be evicted, so rows
 * move from the first block on. Before each round, all blocks get their first contents again.
 * "fp8": K and V are in eight bits, rounded rows of such values. "narrow": query slots have room
 * for the window alone, as without kv.observe; the rows that observe more are left out. */
#include <stdio.h>
#include <string.h>

#include "bench/bench_util.h"
#include "compress/rule.h"
#include "cuda/cuda_switches.h"
#include "paged/kv_fp8.h"

enum {
    LAYERS = 36,
    KV_HEADS = 8,
    GROUP = 4,
    DIM = 128,
    BLOCK = 256,
    N_BLOCKS = 9,
    N_TARGET = 8,
    WINDOW = 16,
    RING = 256, /* queries that a slot has room for, unless "narrow" */
    REQUESTS = 8,
    POOL_BLOCKS = REQUESTS * N_BLOCKS, /* and as many with copies of their contents */
    LOW = -4, /* values have sizes between 2^LOW and 2^HIGH */
    HIGH = 1,
    ROUNDS = 9
};

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
    uint32_t ring; /* queries that a slot has room for */
    cn_kv_form form;
    uint32_t *slots, *origin; /* P of the pool, on host and device */
} bench;

/* Rounds a random row. Values are those of bench_fill_bf16: each power of two is equally likely. */
static void write_row8(uint8_t codes[DIM], uint16_t *scale, uint64_t *random)
{
    float x[DIM];
    uint32_t largest = 0;
    for (uint32_t i = 0; i < DIM; i++) {
        const uint64_t r = bench_random(random);
        const float size = 1 + (float)(r & 0x7f) / 128;
        x[i] = ldexpf(r >> 63 ? -size : size, LOW + (int)((r >> 20) % (HIGH - LOW)));
        largest = cn_max_u32(largest, cn_fp8_size(x[i]));
    }
    *scale = cn_fp8_scale(largest);
    for (uint32_t i = 0; i < DIM; i++) codes[i] = cn_fp8_of(x[i] / cn_fp8_scale_value(*scale));
}

/* Fills all layers of the pool with the same rounded rows, more than a cache holds. */
static void fill_rows8(bench *b)
{
    const cn_kv_layout *l = &b->pools.layout;
    char *layer = cn_calloc(l->layer_stride, 1);
    if (!layer) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for a layer of rows"));
    uint64_t random = 1;
    for (size_t i = 0; i < (size_t)l->n_blocks * KV_HEADS * BLOCK * 2; i++) {
        const uint32_t row = (uint32_t)(i / 2), slot = row % BLOCK, head = row / BLOCK % KV_HEADS;
        const uint32_t block = row / BLOCK / KV_HEADS, value = i % 2;
        write_row8((uint8_t *)layer + cn_kv_at(l, 0, block, head, slot, CN_KV_K + value),
                   (uint16_t *)(layer + cn_kv_at(l, 0, block, head, slot, CN_KV_K_SCALE + value)),
                   &random);
    }
    for (uint32_t i = 0; i < LAYERS; i++)
        bench_must(b->be->mem_write(b->stream, (char *)b->pools.kv + i * l->layer_stride, layer,
                                    l->layer_stride));
    bench_must(b->be->stream_sync(b->stream));
    cn_free(layer);
}

static void pools_open(bench *b)
{
    cn_pools *p = &b->pools;
    *p = (cn_pools){.layout = cn_kv_layout_form(LAYERS, 2 * POOL_BLOCKS, KV_HEADS, BLOCK, DIM,
                                                CN_BF16, b->form),
                    .n_query_slots = REQUESTS,
                    .window = b->ring,
                    .n_heads = KV_HEADS * GROUP};
    b->pool_bytes = cn_kv_pool_bytes(&p->layout);
    const size_t query_bytes = (size_t)LAYERS * REQUESTS * b->ring * KV_HEADS * GROUP * DIM * 2;
    p->kv = bench_alloc(b->be, b->pool_bytes);
    p->score = bench_alloc(b->be, cn_kv_side_elems(&p->layout) * sizeof(float));
    p->q_window = bench_alloc(b->be, query_bytes);
    if (b->form == CN_KV_FP8)
        fill_rows8(b);
    else
        bench_fill_bf16(b->be, b->stream, p->kv, b->pool_bytes, 1, LOW, HIGH);
    bench_fill_bf16(b->be, b->stream, p->q_window, query_bytes, 2, LOW, HIGH);
    b->scratch_bytes = b->be->compress_scratch_bytes(b->be, p, N_BLOCKS * BLOCK);
    b->scratch = bench_alloc(b->be, b->scratch_bytes);
    const size_t n_slots = cn_kv_side_elems(&p->layout);
    b->slots = cn_calloc(n_slots, sizeof *b->slots);
    b->origin = bench_alloc(b->be, n_slots * sizeof *b->origin);
    if (!b->slots) bench_must(cn_fail(CN_ERR_MEMORY, "no memory for %zu slots", n_slots));
}

/* Assigns blocks in random order. */
static void requests_make(bench *b)
{
    uint32_t order[POOL_BLOCKS];
    uint64_t random = 2;
    for (uint32_t i = 0; i < POOL_BLOCKS; i++) {
        uint32_t j = (uint32_t)(bench_random(&random) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < REQUESTS; i++) {
        memcpy(b->tables[i], order + i * N_BLOCKS, sizeof b->tables[i]);
        b->reqs[i] = (cn_compress_req){.params = {.budget_tokens = N_TARGET * BLOCK,
                                                  .window_tokens = WINDOW,
                                                  .sink_tokens = 4,
                                                  .recent = 0.125f,
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
    bench_must(b->be->compress(b->stream, &a));
}

static void restore_blocks(bench *b)
{
    cn_block_copy copies[POOL_BLOCKS];
    for (uint32_t i = 0; i < POOL_BLOCKS; i++)
        copies[i] = (cn_block_copy){.src = POOL_BLOCKS + i, .dst = i};
    const cn_planes planes = cn_pools_planes(&b->pools);
    const cn_copy_args a = {planes, planes, {.blocks = copies, .n_blocks = POOL_BLOCKS}};
    bench_must(b->be->copy_blocks(b->stream, &a));
    bench_must(b->be->stream_sync(b->stream));
}

/* Counts the rows, of K and equally of V, that the first request's event moves to another slot. */
static uint32_t count_moved(bench *b)
{
    const cn_kv_layout *l = &b->pools.layout;
    const size_t n_slots = cn_kv_side_elems(l);
    for (size_t i = 0; i < n_slots; i++) b->slots[i] = (uint32_t)i;
    restore_blocks(b);
    bench_must(b->be->mem_write(b->stream, b->origin, b->slots, n_slots * sizeof *b->slots));
    b->pools.origin = b->origin;
    run_event(b, 0, 1);
    b->pools.origin = NULL;
    bench_must(b->be->mem_read(b->stream, b->slots, b->origin, n_slots * sizeof *b->slots));
    bench_must(b->be->stream_sync(b->stream));
    uint32_t n_moved = 0;
    for (size_t i = 0; i < n_slots; i++) n_moved += b->slots[i] != i;
    return n_moved;
}

/* Compresses all requests once, n per event. Returns the median seconds of an event. */
static double time_queued(bench *b, uint32_t n)
{
    double seconds[ROUNDS];
    for (uint32_t round = 0; round <= ROUNDS; round++) {
        restore_blocks(b);
        double start = cn_now_s();
        for (uint32_t i = 0; i < REQUESTS; i += n) run_event(b, i, n);
        bench_must(b->be->stream_sync(b->stream));
        if (round > 0) seconds[round - 1] = (cn_now_s() - start) * n / REQUESTS;
    }
    return bench_median(seconds, ROUNDS);
}

static double time_alone(bench *b, uint32_t n)
{
    double seconds[ROUNDS];
    for (uint32_t round = 0; round <= ROUNDS; round++) {
        restore_blocks(b);
        double start = cn_now_s();
        run_event(b, round * n % REQUESTS, n);
        bench_must(b->be->stream_sync(b->stream));
        if (round > 0) seconds[round - 1] = cn_now_s() - start;
    }
    return bench_median(seconds, ROUNDS);
}

/* The bytes that one request's event must move when n_moved rows change their slots. */
static double floor_bytes(const cn_kv_params *p, uint32_t n_moved)
{
    const double units = LAYERS * KV_HEADS, row = DIM * 2, moved = 4 * row * n_moved;
    if (p->policy == CN_KV_WINDOW) return moved;
    const uint32_t queries = cn_rule_counted(p, false, (N_BLOCKS - N_TARGET) * BLOCK);
    const double history = cn_rule_keeps_scores(p) ? 2 * sizeof(float) : 0;
    return moved + units * (N_BLOCKS * BLOCK * (row + history) + queries * GROUP * row);
}

/* Sets the rule of all requests, and the queries that it observes (0: those of the window). */
static void set_rule(bench *b, cn_kv_rule rule, uint32_t observe)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        b->reqs[i].params.rule = rule;
        b->reqs[i].params.observe_tokens = observe;
    }
}

static void report(bench *b, const char *name, cn_kv_policy policy, cn_kv_redundancy redundancy,
                   cn_kv_move move)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        b->reqs[i].params.policy = policy;
        b->reqs[i].params.redundancy = redundancy;
        b->reqs[i].params.move = move;
    }
    const double event_bytes = floor_bytes(&b->reqs[0].params, count_moved(b));
    for (uint32_t n = 1; n <= REQUESTS; n *= REQUESTS) {
        const double floor = n * event_bytes / b->bytes_per_s;
        const double queued = time_queued(b, n), alone = time_alone(b, n);
        printf("%-22s %u request%s  floor %6.3f ms  queued %6.3f ms (%3.0f %%)  alone %6.3f ms\n",
               name, n, n == 1 ? " " : "s", 1e3 * floor, 1e3 * queued, 100 * floor / queued,
               1e3 * alone);
    }
}

static void report_counted(bench *b)
{
    set_rule(b, CN_RULE_PEAK, 64);
    report(b, "peak, observe 64", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING, CN_MOVE_ORDER);
    set_rule(b, CN_RULE_PEAK, 256);
    report(b, "peak, observe 256", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING, CN_MOVE_ORDER);
}

int main(int argc, char **argv)
{
    static bench b;
    bool portable = false, narrow = false;
    for (int i = 1; i < argc; i++) {
        portable |= strcmp(argv[i], "portable") == 0;
        narrow |= strcmp(argv[i], "narrow") == 0;
        if (strcmp(argv[i], "fp8") == 0) b.form = CN_KV_FP8;
    }
    b.ring = narrow ? WINDOW : RING;
    cn_cuda_backend_opts o = {.memory_bytes = (uint64_t)7 << 30,
                              .n_heads = KV_HEADS * GROUP,
                              .max_seqs = 16,
                              .switches = &(cn_cuda_switches){.portable = portable}};
    if (cn_backend_cuda_load(&b.be, o) != CN_OK) {
        printf("skipped: %s\n", cn_last_error());
        return 0;
    }
    bench_must(b.be->stream_create(b.be, CN_PRIORITY_LOW, &b.stream));
    pools_open(&b);
    requests_make(&b);
    b.bytes_per_s = bench_read_bandwidth(b.be, b.stream, b.pools.kv, b.pool_bytes);
    printf("read bandwidth %.0f GB/s%s\n", b.bytes_per_s / 1e9, portable ? ", portable" : "");
    report(&b, "window", CN_KV_WINDOW, CN_REDUNDANCY_NONE, CN_MOVE_ORDER);
    report(&b, "zip, no redundancy", CN_KV_ZIP, CN_REDUNDANCY_NONE, CN_MOVE_ORDER);
    report(&b, "zip, lightning", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING, CN_MOVE_ORDER);
    report(&b, "zip, lightning, fill", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING, CN_MOVE_FILL);
    report(&b, "zip, flash", CN_KV_ZIP, CN_REDUNDANCY_FLASH, CN_MOVE_ORDER);
    set_rule(&b, CN_RULE_SCALED, 0);
    report(&b, "scaled", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING, CN_MOVE_ORDER);
    set_rule(&b, CN_RULE_PEAK, 0);
    report(&b, "peak", CN_KV_ZIP, CN_REDUNDANCY_LIGHTNING, CN_MOVE_ORDER);
    set_rule(&b, CN_RULE_FOLLOW, 0);
    report(&b, "follow", CN_KV_ZIP, CN_REDUNDANCY_NONE, CN_MOVE_ORDER);
    if (!narrow) report_counted(&b);
    b.be->stream_free(b.stream);
    b.be->close(b.be);
    return 0;
}
