/* bench_experts.c - the ops of a layer with experts on a GPU: microseconds, and the bytes of the
 * weights that are read, once for each expert with a token, as a share of the read bandwidth of the
 * same run; in large batches the FLOP/s of the products.
 *
 * Usage: bench_experts [-8] [-t | TOKENSxROWSxBLOCKS] [BATCH]...  (default: batches of 1 to 16384)
 * -t times the products with every tile that may suit a batch; 32x64x2 with that tile. -8: experts
 * in FP8 blocks; their products include the rounding of inputs.
 * The model is Qwen3-30B-A3B's shape with random weights and logits. Ops run in graphs of LAYERS
 * layers, each with weights and logits of its own, more than the L2 cache holds. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"
#include "cuda/cuda_switches.h"

enum {
    LAYERS = 8,
    HIDDEN = 2048,
    INTERMEDIATE = 768,
    EXPERTS = 128,
    USED = 8,
    MAX_TOKENS = 16384,
    LAUNCHES = 6,
    ROUNDS = 3,
    MEMORY_GIB = 16,
    MOST_BATCHES = 32,
    N_SCALES = EXPERTS * 2 * INTERMEDIATE / 128 * (HIDDEN / 128)
};

static bool in_fp8;

/* Bytes of the three matrices of an expert. */
static size_t expert_bytes(void) { return (size_t)3 * INTERMEDIATE * HIDDEN * (in_fp8 ? 1 : 2); }

/* The ops of a layer that a run has. */
typedef enum part { PART_ROUTER, PART_ROUTE, PART_GATE_UP, PART_DOWN, PART_SUM, N_PARTS } part;
static const char *const part_names[N_PARTS] = {"router", "route", "gate_up", "down", "sum"};

typedef struct bench {
    cn_backend *be;
    cn_stream *s;
    double read_bytes_s;
    char *memory;
    size_t bytes;
    char *router, *gate_up, *down; /* weights, layer after layer */
    char *scales; /* of any matrix of a layer */
    char *x, *pair_in, *pair_act, *rounded, *out, *starts, *words, *weights;
    float *logits, *random; /* [LAYERS, T, E]: of the router's product, and random ones */
    uint32_t n_tokens;
    unsigned parts; /* bits */
} bench;

static char *carve(char **at, size_t bytes)
{
    char *p = *at;
    *at += (bytes + 1023) / 1024 * 1024;
    return p;
}

static void lay_out(bench *b)
{
    const size_t pairs = (size_t)MAX_TOKENS * USED;
    char *at = b->memory;
    b->router = carve(&at, (size_t)LAYERS * EXPERTS * HIDDEN * 2);
    b->gate_up = carve(&at, LAYERS * EXPERTS * expert_bytes() / 3 * 2);
    b->down = carve(&at, LAYERS * EXPERTS * expert_bytes() / 3);
    b->x = carve(&at, (size_t)MAX_TOKENS * HIDDEN * 2);
    b->out = carve(&at, (size_t)MAX_TOKENS * HIDDEN * 2);
    b->pair_in = carve(&at, pairs * HIDDEN * 2);
    b->pair_act = carve(&at, pairs * INTERMEDIATE * 2);
    b->rounded = carve(&at, pairs * INTERMEDIATE * 2);
    b->scales = carve(&at, N_SCALES * 4);
    b->starts = carve(&at, (size_t)LAYERS * (EXPERTS + 1) * 4);
    b->words = carve(&at, LAYERS * 2 * pairs * 4);
    b->weights = carve(&at, pairs * 4);
    b->logits = (float *)(void *)carve(&at, (size_t)MAX_TOKENS * EXPERTS * 4);
    b->random = (float *)(void *)carve(&at, (size_t)LAYERS * MAX_TOKENS * EXPERTS * 4);
    if (at <= b->memory + b->bytes) return;
    fprintf(stderr, "bench_experts: needs %zu bytes, the device has %zu\n",
            (size_t)(at - b->memory), b->bytes);
    exit(1);
}

/* Returns false without a GPU. */
static bool open_bench(bench *b, cn_cuda_expert_tile tile)
{
    const cn_cuda_switches switches = {.gemm = CN_CUDA_GEMM_LIBRARY, .experts = tile};
    const cn_cuda_backend_opts o = {.memory_bytes = (uint64_t)MEMORY_GIB << 30,
                                    .n_heads = 32,
                                    .n_kv_heads = 4,
                                    .head_dim = 128,
                                    .max_seqs = 256,
                                    .max_tokens = MAX_TOKENS,
                                    .switches = &switches};
    *b = (bench){0};
    if (cn_backend_cuda_load(&b->be, o) != CN_OK) return false;
    bench_must(b->be->stream_create(b->be, CN_PRIORITY_HIGH, &b->s));
    b->bytes = b->be->mem_avail(b->be) / 4096 * 4096;
    b->memory = bench_alloc(b->be, b->bytes);
    const cn_dummy_fill_args fill = {
        .out = b->memory, .dtype = CN_BF16, .n = b->bytes / 2, .key = 1, .scale = 0.02f};
    bench_must(b->be->dummy_fill(b->s, &fill));
    lay_out(b);
    const size_t n = (size_t)LAYERS * MAX_TOKENS * EXPERTS;
    float *random = bench_floats(n, 2, 1);
    bench_must(b->be->mem_write(b->s, b->random, random, n * sizeof *random));
    for (size_t i = 0; i < N_SCALES; i++) random[i] = 1.0F / 4096;
    bench_must(b->be->mem_write(b->s, b->scales, random, N_SCALES * sizeof *random));
    bench_must(b->be->stream_sync(b->s));
    cn_free(random);
    return true;
}

static void close_bench(bench *b)
{
    b->be->mem_free(b->be, b->memory);
    b->be->stream_free(b->s);
    b->be->close(b->be);
}

/* ---- the ops ---- */

static bool has(const bench *b, part p) { return b->parts >> p & 1; }

static uint32_t *starts_of(const bench *b, uint32_t layer)
{
    return (uint32_t *)(void *)b->starts + (size_t)layer * (EXPERTS + 1);
}

/* pair_tokens, then pairs. */
static uint32_t *words_of(const bench *b, uint32_t layer)
{
    return (uint32_t *)(void *)b->words + (size_t)layer * 2 * MAX_TOKENS * USED;
}

static void run_route(const bench *b, uint32_t layer)
{
    const size_t weight = (size_t)layer * EXPERTS * HIDDEN * 2;
    const cn_gemm_args router = {.out = b->logits,
                                 .x = b->x,
                                 .weight = {.data = b->router + weight},
                                 .n_tokens = b->n_tokens,
                                 .n = EXPERTS,
                                 .k = HIDDEN,
                                 .out_f32 = true};
    const cn_route_args route = {
        .starts = starts_of(b, layer),
        .pair_tokens = words_of(b, layer),
        .pairs = words_of(b, layer) + (size_t)MAX_TOKENS * USED,
        .weights = (float *)(void *)b->weights,
        .logits = b->random + (size_t)layer * MAX_TOKENS * EXPERTS,
        .router = {.n_experts = EXPERTS, .n_used = USED, .normalized = true, .scale = 1},
        .n_tokens = b->n_tokens};
    if (has(b, PART_ROUTER)) bench_must(b->be->gemm(b->s, &router));
    if (has(b, PART_ROUTE)) bench_must(b->be->route(b->s, &route));
}

/* The matrix of all experts of a layer, which has `thirds` of their weights. */
static cn_matrix matrix_of(const bench *b, const char *weights, uint32_t layer, uint32_t thirds)
{
    const void *data = weights + layer * EXPERTS * (expert_bytes() / 3 * thirds);
    if (!in_fp8) return (cn_matrix){.data = data};
    return (cn_matrix){.data = data,
                       .form = CN_MATRIX_FP8,
                       .x = CN_X_BLOCKS,
                       .stride = thirds == 2 ? HIDDEN : INTERMEDIATE,
                       .scales = (const float *)(const void *)b->scales,
                       .scale_n = 128,
                       .scale_k = 128};
}

static void run_layer(const bench *b, uint32_t layer)
{
    const uint32_t *words = words_of(b, layer);
    const cn_expert_gate_up_args gate_up = {.out = b->pair_act,
                                            .x = b->x,
                                            .weight = matrix_of(b, b->gate_up, layer, 2),
                                            .starts = starts_of(b, layer),
                                            .pair_tokens = words,
                                            .gathered = b->pair_in,
                                            .rounded = b->rounded,
                                            .n_tokens = b->n_tokens,
                                            .n_experts = EXPERTS,
                                            .n_used = USED,
                                            .intermediate = INTERMEDIATE,
                                            .k = HIDDEN};
    const cn_expert_down_args down = {.out = b->pair_in,
                                      .x = b->pair_act,
                                      .weight = matrix_of(b, b->down, layer, 1),
                                      .rounded = b->rounded,
                                      .starts = starts_of(b, layer),
                                      .n_tokens = b->n_tokens,
                                      .n_experts = EXPERTS,
                                      .n_used = USED,
                                      .n = HIDDEN,
                                      .intermediate = INTERMEDIATE};
    const cn_expert_sum_args sum = {.out = b->out,
                                    .x = b->pair_in,
                                    .pairs = words + (size_t)MAX_TOKENS * USED,
                                    .weights = (const float *)(const void *)b->weights,
                                    .n_tokens = b->n_tokens,
                                    .n_used = USED,
                                    .n = HIDDEN};
    run_route(b, layer);
    if (has(b, PART_GATE_UP)) bench_must(b->be->expert_gate_up(b->s, &gate_up));
    if (has(b, PART_DOWN)) bench_must(b->be->expert_down(b->s, &down));
    if (has(b, PART_SUM)) bench_must(b->be->expert_sum(b->s, &sum));
}

static void run_layers(const bench *b)
{
    for (uint32_t i = 0; i < LAYERS; i++) run_layer(b, i);
}

/* Returns the seconds of a layer: of a graph of all layers, launched LAUNCHES times, the best of
 * some rounds. */
static double time_layer(bench *b, unsigned parts)
{
    cn_graph *g = NULL;
    double best = 1e30;
    b->parts = parts;
    run_layers(b);
    bench_must(b->be->stream_sync(b->s));
    bench_must(b->be->graph_begin(b->s));
    run_layers(b);
    bench_must(b->be->graph_end(b->s, &g));
    bench_must(b->be->graph_launch(b->s, g));
    bench_must(b->be->stream_sync(b->s));
    for (int round = 0; round < ROUNDS; round++) {
        const double start = cn_now_s();
        for (int i = 0; i < LAUNCHES; i++) bench_must(b->be->graph_launch(b->s, g));
        bench_must(b->be->stream_sync(b->s));
        const double once = (cn_now_s() - start) / LAUNCHES / LAYERS;
        if (once < best) best = once;
    }
    b->be->graph_free(g);
    return best;
}

/* ---- the tables ---- */

static void measure_read(bench *b)
{
    double best = 1e30;
    for (int round = 0; round < 4; round++) {
        const double start = cn_now_s();
        bench_must(
            b->be->mem_sum(b->s, b->memory + 4096, b->bytes - 4096, (uint64_t *)(void *)b->memory));
        bench_must(b->be->stream_sync(b->s));
        const double once = cn_now_s() - start;
        if (round > 0 && once < best) best = once;
    }
    b->read_bytes_s = (double)(b->bytes - 4096) / best;
    printf("read bandwidth: %.0f GB/s\n", b->read_bytes_s / 1e9);
}

/* Returns the experts with a token, the mean of all layers. Runs route. */
static double experts_read(bench *b)
{
    static uint32_t starts[LAYERS][EXPERTS + 1];
    uint32_t n = 0;
    b->parts = 1U << PART_ROUTE;
    run_layers(b);
    bench_must(b->be->mem_read(b->s, starts, b->starts, sizeof starts));
    bench_must(b->be->stream_sync(b->s));
    for (uint32_t i = 0; i < LAYERS; i++)
        for (uint32_t e = 0; e < EXPERTS; e++) n += starts[i][e + 1] > starts[i][e];
    return (double)n / LAYERS;
}

/* Prints a line of a batch: the layer, its share, and the products alone. */
static void print_products(bench *b, double experts)
{
    const double bytes = experts * (double)expert_bytes();
    const double flop = 6.0 * INTERMEDIATE * HIDDEN * b->n_tokens * USED;
    const unsigned gate_up = 1U << PART_GATE_UP, down = 1U << PART_DOWN;
    const double both = time_layer(b, gate_up | down);
    const double first = time_layer(b, gate_up), second = time_layer(b, down);
    printf("  products %9.2f us %5.1f %% %6.0f TFLOP/s   gate_up %9.2f us %5.1f %%   down %9.2f us "
           "%5.1f %%\n",
           both * 1e6, 100 * bytes / b->read_bytes_s / both, flop / both / 1e12, first * 1e6,
           100 * bytes * 2 / 3 / b->read_bytes_s / first, second * 1e6,
           100 * bytes / 3 / b->read_bytes_s / second);
}

static void print_batch(bench *b)
{
    const double experts = experts_read(b);
    const double all = time_layer(b, (1U << N_PARTS) - 1);
    printf("batch %5u  %5.1f experts  layer %9.2f us %5.1f %%", b->n_tokens, experts, all * 1e6,
           100 * experts * (double)expert_bytes() / b->read_bytes_s / all);
    for (part p = PART_ROUTER; p < N_PARTS; p++)
        if (p != PART_GATE_UP && p != PART_DOWN)
            printf("  %s %.2f", part_names[p], time_layer(b, 1U << p) * 1e6);
    printf("\n");
    print_products(b, experts);
    fflush(stdout);
}

/* Times the products of the batches with a tile. Returns false without a GPU. */
static bool time_tile(cn_cuda_expert_tile t, const uint32_t *batches, uint32_t n_batches)
{
    bench b;
    if (!open_bench(&b, t)) return false;
    measure_read(&b);
    for (uint32_t i = 0; i < n_batches; i++) {
        b.n_tokens = batches[i];
        printf("tile %3u x %3u, %u blocks, batch %5u", t.tokens, t.rows, t.blocks, b.n_tokens);
        print_products(&b, experts_read(&b));
        fflush(stdout);
    }
    close_bench(&b);
    return true;
}

/* Times all tiles that have room for the pairs of an expert, and not for many more. */
static void time_tiles(const uint32_t *batches, uint32_t n_batches)
{
    static const uint32_t tokens[] = {8, 16, 32, 64, 96, 128, 176, 256};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (uint32_t rows = 64; rows <= 128; rows += 64)
            for (uint32_t blocks = 1; blocks <= (in_fp8 ? 2 : 3); blocks++) {
                uint32_t fit[MOST_BATCHES], n = 0;
                if (in_fp8 && (tokens[i] == 96 || tokens[i] > 128)) continue; /* no such kernel */
                for (uint32_t j = 0; j < n_batches; j++) {
                    const uint32_t average = batches[j] * USED / EXPERTS;
                    if (tokens[i] <= 4 * average + 16 && 4 * tokens[i] >= average)
                        fit[n++] = batches[j];
                }
                const cn_cuda_expert_tile t = {tokens[i], rows, blocks};
                if (n > 0 && !time_tile(t, fit, n)) return;
            }
}

int main(int argc, char **argv)
{
    static const uint32_t all[] = {1, 8, 32, 64, 128, 256, 512, 2048, 16384};
    uint32_t batches[MOST_BATCHES], n = 0;
    cn_cuda_expert_tile t;
    if (argc > 1 && strcmp(argv[1], "-8") == 0) {
        in_fp8 = true;
        argv++;
        argc--;
    }
    const bool all_tiles = argc > 1 && strcmp(argv[1], "-t") == 0;
    const bool one_tile =
        argc > 1 && sscanf(argv[1], "%ux%ux%u", &t.tokens, &t.rows, &t.blocks) == 3;
    for (int i = 1 + (all_tiles || one_tile); i < argc && n < MOST_BATCHES; i++)
        batches[n++] = cn_min_u32((uint32_t)strtoul(argv[i], NULL, 10), MAX_TOKENS);
    if (n == 0) {
        n = sizeof all / sizeof *all;
        memcpy(batches, all, sizeof all);
    }
    if (all_tiles) time_tiles(batches, n);
    if (one_tile) time_tile(t, batches, n);
    if (all_tiles || one_tile) return 0;
    bench b;
    if (!open_bench(&b, (cn_cuda_expert_tile){0})) {
        printf("skipped: %s\n", cn_last_error());
        return 0;
    }
    measure_read(&b);
    for (uint32_t i = 0; i < n; i++) {
        b.n_tokens = batches[i];
        if (b.n_tokens > 0) print_batch(&b);
    }
    close_bench(&b);
    return 0;
}
