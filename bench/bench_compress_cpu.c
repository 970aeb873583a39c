/* bench_compress_cpu.c - times a compression event on the CPU in microseconds, part by part, in the
 * shape of the bundled checkpoint. Compares parts with plain matrix products of the same sizes.
 *
 * Usage: bench_compress_cpu [seconds per figure, default 0.3]. Uses one thread and prints the
 * fastest of the runs that fit in the time. Events alternate between many requests, so keys and
 * values come from memory and not from the cache, as in a real run. The parts are timed in the
 * order of an event, each with the cache as the previous part left it. */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "engine/cpu/cpu_compress.h"

enum {
    LAYERS = 6,
    KV_HEADS = 2,
    HEADS = 8,
    HEAD_DIM = 64,
    BLOCK = 64,
    REQUESTS = 32,
    MAX_BLOCKS = 17,
    WINDOW_MAX = 48,
    MAX_PARTS = 16,
};

void openblas_set_num_threads(int n_threads);

static cn_pools pools_make(void)
{
    cn_pools p = {.layout = cn_kv_layout_make(LAYERS, REQUESTS * MAX_BLOCKS, KV_HEADS, BLOCK,
                                              HEAD_DIM, CN_F32),
                  .n_query_slots = REQUESTS, .window = WINDOW_MAX, .n_heads = HEADS};
    p.kv = bench_floats(cn_kv_pool_elems(&p.layout), 1, 2.0f);
    p.score = bench_floats(cn_kv_side_elems(&p.layout), 2, 1e-3f);
    p.q_window = bench_floats((size_t)LAYERS * REQUESTS * WINDOW_MAX * HEADS * HEAD_DIM, 3, 2.0f);
    return p;
}

typedef struct load {
    cn_compress_req reqs[REQUESTS];
    uint32_t tables[REQUESTS][MAX_BLOCKS];
} load;

static void load_make(load *l, uint32_t budget, uint32_t window, cn_kv_redundancy redundancy,
                      uint32_t n_blocks)
{
    for (uint32_t r = 0; r < REQUESTS; r++) {
        for (uint32_t i = 0; i < n_blocks; i++) l->tables[r][i] = r + i * REQUESTS;
        l->reqs[r] = (cn_compress_req){
            .params = {.policy = CN_KV_ZIP, .budget_tokens = budget, .window_tokens = window,
                       .global_score = true, .alpha = 0.8f, .pooling = CN_POOLING_FIRST,
                       .redundancy = redundancy, .redundancy_p = 0.5f, .redundancy_tau = 0.4f,
                       .lambda = 0.2f, .combine = CN_COMBINE_CONVEX},
            .n_blocks = n_blocks, .n_target = budget / BLOCK, .table = l->tables[r],
            .target = l->tables[r], .query_slot = r, .position_end = 1000, .n_history = budget};
    }
}

/* Times whole events through the op. Requests alternate. */
static double event_us(const cn_pools *p, const load *l, void *scratch, size_t scratch_bytes,
                       double seconds)
{
    double best = INFINITY, end = cn_now_s() + seconds;
    for (uint32_t n = 0; n < 3 || cn_now_s() < end; n++) {
        cn_compress_args a = {*p, &l->reqs[n % REQUESTS], 1, scratch, scratch_bytes};
        double start = cn_now_s();
        const cn_status status = cn_cpu_compress(NULL, &a);
        best = fmin(best, cn_now_s() - start);
        CN_ASSERT(status == CN_OK);
    }
    return best * 1e6;
}

typedef struct parts {
    const char *name[MAX_PARTS];
    double us[MAX_PARTS];
    uint32_t n;
} parts;

static double part_end(parts *t, const char *name, double start)
{
    double now = cn_now_s();
    t->name[t->n] = name;
    t->us[t->n++] += (now - start) * 1e6;
    return cn_now_s();
}

static void event_by_parts(const cn_pools *p, const cn_compress_req *req, float *memory, parts *t)
{
    const uint32_t n = req->n_blocks * BLOCK;
    float *keys_t = memory, *score = keys_t + (size_t)n * HEAD_DIM, *work = score + 2 * n;
    uint32_t index[MAX_BLOCKS];
    cn_cpu_stage stage;
    cn_cpu_stage_plan(req, index, &stage);
    for (uint32_t i = 0; i < LAYERS * KV_HEADS; i++) {
        const cn_score_job job = {.pools = p, .req = req, .layer = i / KV_HEADS,
                                  .kv_head = i % KV_HEADS, .n = n, .keys_t = keys_t, .score = score,
                                  .redundancy = score + n, .work = work};
        t->n = 0;
        double at = cn_now_s();
        cn_cpu_gather_keys(p, req, job.layer, job.kv_head, keys_t);
        at = part_end(t, "gather keys", at);
        size_t n_rows;
        const cn_score *rows = cn_score_table(&n_rows);
        for (size_t r = 0; r < n_rows; r++)
            if (rows[r].applies(req)) {
                rows[r].cpu(&job);
                at = part_end(t, rows[r].name, at);
            }
        for (uint32_t v = n - req->params.window_tokens; v < n; v++) score[v] = INFINITY;
        uint32_t *bits = (uint32_t *)work, *kept = bits + n;
        cn_cpu_select_top(score, n, req->n_target * BLOCK, bits, kept);
        at = part_end(t, "select", at);
        cn_cpu_compact(p, req, job.layer, job.kv_head, kept, &stage, NULL);
        part_end(t, "move", at);
    }
}

/* Times one plain product, m*k by k*n, repeated with the same operands: the rate of the library. */
static double sgemm_us(uint32_t m, uint32_t n, uint32_t k, double seconds)
{
    float *a = bench_floats((size_t)m * k, 4, 1), *b = bench_floats((size_t)n * k, 5, 1);
    float *c = bench_floats((size_t)m * n, 6, 1);
    double best = INFINITY, end = cn_now_s() + seconds;
    while (cn_now_s() < end) {
        double start = cn_now_s();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1, a, (int)k,
                    b, (int)n, 0, c, (int)n);
        best = fmin(best, cn_now_s() - start);
    }
    cn_free(a);
    cn_free(b);
    cn_free(c);
    return best * 1e6;
}

/* Prints a part, with the time of one plain product of its size per (layer, kv head). 0 rows: the
 * part has no product. */
static void print_part(const char *name, double us, uint32_t rows, uint32_t n, double seconds)
{
    printf("  %-12s %8.0f us", name, us);
    if (rows > 0) {
        const double flop = 2.0 * LAYERS * KV_HEADS * rows * n * HEAD_DIM;
        const double plain_us = LAYERS * KV_HEADS * sgemm_us(rows, n, HEAD_DIM, seconds);
        printf(", %5.1f GFLOP/s in all; sgemm %u x %u x %d alone %8.0f us, %5.1f GFLOP/s",
               flop / us * 1e-3, rows, n, HEAD_DIM, plain_us, flop / plain_us * 1e-3);
    }
    printf("\n");
}

static void run(const cn_pools *p, uint32_t budget, uint32_t window, cn_kv_redundancy redundancy,
                uint32_t n_blocks, double seconds)
{
    const uint32_t n = n_blocks * BLOCK;
    const size_t bytes = cn_cpu_compress_scratch_bytes(NULL, p, n);
    float *memory = cn_calloc_aligned(bytes, 1);
    load *l = cn_calloc(1, sizeof *l);
    CN_ASSERT(memory && l);
    load_make(l, budget, window, redundancy, n_blocks);
    printf("budget %u, window %u, %u slots, %s: %.0f us per event\n", budget, window, n,
           redundancy == CN_REDUNDANCY_FLASH ? "flash" : "lightning",
           event_us(p, l, memory, bytes, seconds));

    parts best = {.n = 0};
    uint32_t n_events = 0;
    for (double end = cn_now_s() + seconds; n_events < 3 || cn_now_s() < end; n_events++) {
        parts t = {.n = 0};
        event_by_parts(p, &l->reqs[n_events % REQUESTS], memory, &t);
        for (uint32_t i = 0; i < t.n && n_events > 0; i++) t.us[i] = fmin(t.us[i], best.us[i]);
        best = t;
    }
    for (uint32_t i = 0; i < best.n; i++) {
        const char *name = best.name[i];
        uint32_t rows = strcmp(name, "attention") == 0   ? window * (HEADS / KV_HEADS)
                        : strcmp(name, "lightning") == 0 ? BLOCK
                        : strcmp(name, "flash") == 0     ? n
                                                         : 0;
        print_part(name, best.us[i], rows, n, seconds / 4);
    }
    cn_free(l);
    cn_free(memory);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    openblas_set_num_threads(1);
    cn_pools p = pools_make();
    printf("%d layers, %d query and %d kv heads of %d, blocks of %d, %d requests\n", LAYERS,
           HEADS, KV_HEADS, HEAD_DIM, BLOCK, REQUESTS);
    printf("plain sgemm, 512 x 512 x 512: %.1f GFLOP/s\n",
           2.0 * 512 * 512 * 512 / sgemm_us(512, 512, 512, seconds) * 1e-3);
    for (uint32_t budget = 384; budget <= 512; budget += 128)
        for (uint32_t window = 16; window <= WINDOW_MAX; window += 32)
            run(&p, budget, window, CN_REDUNDANCY_LIGHTNING, budget / BLOCK + 1, seconds);
    run(&p, 384, 48, CN_REDUNDANCY_FLASH, 7, seconds);
    run(&p, 512, 48, CN_REDUNDANCY_FLASH, MAX_BLOCKS, seconds);
    cn_free(p.kv);
    cn_free(p.score);
    cn_free(p.q_window);
    return 0;
}
