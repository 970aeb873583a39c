/* bench_sample_cuda.c - times sampling on the GPU in microseconds, by kind of row and batch size.
 * Compares it with one pass over the logits at the read bandwidth measured in the same run.
 *
 * Usage: bench_sample_cuda [vocabulary, default 151936]
 * Every launch of a graph reads other logits than the previous launch, several times more than the
 * L2 cache holds. There are two kinds of logits: "flat", normal with standard deviation 3, as from
 * random weights; and "peaked", a few tokens far above the rest, as from a trained model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_util.h"

enum {
    MAX_ROWS = 256,
    SETS = 3,
    LAUNCHES = 4, /* launches of the op in a graph; at least SETS */
    GRAPHS = 8,
    ROUNDS = 5,
    NOISE = 1 << 22
};

typedef struct bench {
    cn_backend *be;
    cn_stream *s;
    uint32_t vocab;
    double read_bytes_s;
    float *logits[SETS]; /* device, [MAX_ROWS, vocab] */
    cn_sample_args args;
} bench;

/* ---- timing ---- */

static void record_read(bench *b)
{
    for (int i = 0; i < SETS; i++)
        bench_must(b->be->mem_sum(b->s, b->logits[i], (size_t)MAX_ROWS * b->vocab / 4 * 16,
                            b->args.scratch));
}

static void record_sample(bench *b)
{
    for (int i = 0; i < LAUNCHES; i++) {
        cn_sample_args a = b->args;
        a.logits = b->logits[i % SETS];
        bench_must(b->be->sample(b->s, &a));
    }
}

/* Returns the seconds of a graph of what `record` enqueues: the best of some rounds. */
static double time_graph(bench *b, void (*record)(bench *b))
{
    cn_graph *g = NULL;
    record(b);
    bench_must(b->be->stream_sync(b->s));
    bench_must(b->be->graph_begin(b->s));
    record(b);
    bench_must(b->be->graph_end(b->s, &g));
    double best = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        const double start = cn_now_s();
        for (int i = 0; i < GRAPHS; i++) bench_must(b->be->graph_launch(b->s, g));
        bench_must(b->be->stream_sync(b->s));
        best = fmin(best, (cn_now_s() - start) / GRAPHS);
    }
    b->be->graph_free(g);
    return best;
}

/* ---- inputs ---- */

static void fill_logits(bench *b, bool peaked)
{
    float *noise = cn_calloc(NOISE, sizeof *noise);
    uint64_t state = 1;
    for (size_t i = 0; i < NOISE; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++)
            sum += (float)(bench_random(&state) & 0xffff) * 0x1p-15f - 1.0f;
        noise[i] = sum * 2.6f;
        if (peaked && bench_random(&state) % 3000 == 0)
            noise[i] += 12.0f + (float)(bench_random(&state) % 1000) * 0.006f;
    }
    const size_t n = (size_t)MAX_ROWS * b->vocab;
    for (int set = 0; set < SETS; set++)
        for (size_t at = 0; at < n; at += NOISE) {
            const size_t left = n - at, here = left < NOISE ? left : NOISE;
            bench_must(b->be->mem_write(b->s, b->logits[set] + at, noise, here * sizeof *noise));
        }
    bench_must(b->be->stream_sync(b->s));
    cn_free(noise);
}

static void set_rows(bench *b, uint32_t n_rows, cn_sample_row row)
{
    cn_sample_row rows[MAX_ROWS];
    for (uint32_t i = 0; i < n_rows; i++) {
        rows[i] = row;
        rows[i].seed = i;
        rows[i].count_slot = row.count_slot >= 0 ? (int32_t)i : -1;
    }
    void *device_rows = (void *)(uintptr_t)b->args.rows;
    bench_must(b->be->mem_write(b->s, device_rows, rows, n_rows * sizeof *rows));
    b->args.n_rows = n_rows;
}

static void open_bench(bench *b, uint32_t vocab)
{
    b->vocab = vocab;
    bench_must(b->be->stream_create(b->be, CN_PRIORITY_HIGH, &b->s));
    for (int i = 0; i < SETS; i++)
        b->logits[i] = bench_alloc(b->be, (size_t)MAX_ROWS * vocab * sizeof(float));
    const size_t scratch = b->be->sample_scratch_bytes(b->be, MAX_ROWS, vocab);
    b->args = (cn_sample_args){.vocab = vocab, .scratch_bytes = scratch};
    b->args.scratch = bench_alloc(b->be, scratch);
    b->args.rows = bench_alloc(b->be, MAX_ROWS * sizeof *b->args.rows);
    b->args.counts = bench_alloc(b->be, (size_t)MAX_ROWS * vocab * sizeof *b->args.counts);
    b->args.tokens = bench_alloc(b->be, MAX_ROWS * sizeof *b->args.tokens);
    b->args.token_logprobs = bench_alloc(b->be, MAX_ROWS * sizeof *b->args.token_logprobs);
    b->args.top = bench_alloc(b->be, MAX_ROWS * CN_MAX_LOGPROBS * sizeof *b->args.top);
}

/* ---- figures ---- */

typedef struct kind {
    const char *name;
    cn_sample_row row;
} kind;

#define ROW(...)                                                                                   \
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .count_slot = -1, .force_token = -1,   \
     .n_logprobs = -1, __VA_ARGS__}

static const kind kinds[] = {
    {"greedy", {.top_p = 1, .repetition_penalty = 1, .count_slot = -1, .force_token = -1,
                .n_logprobs = -1}},
    {"temperature 1", ROW(.top_k = 0)},
    {"top_k 20, top_p 0.95, 0.6", {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f,
                                   .repetition_penalty = 1, .count_slot = -1, .force_token = -1,
                                   .n_logprobs = -1}},
    {"top_k 50, top_p 0.9", {.temperature = 1, .top_k = 50, .top_p = 0.9f, .repetition_penalty = 1,
                             .count_slot = -1, .force_token = -1, .n_logprobs = -1}},
    {"top_k 1000", ROW(.top_k = 1000)},
    {"top_p 0.95", {.temperature = 1, .top_p = 0.95f, .repetition_penalty = 1, .count_slot = -1,
                    .force_token = -1, .n_logprobs = -1}},
    {"min_p 0.05", ROW(.min_p = 0.05f)},
    {"top_k 50, penalties", {.temperature = 1, .top_k = 50, .top_p = 0.9f,
                             .repetition_penalty = 1.1f, .presence_penalty = 0.5f,
                             .force_token = -1, .n_logprobs = -1}},
    {"temperature 1, 20 logprobs", {.temperature = 1, .top_p = 1, .repetition_penalty = 1,
                                    .count_slot = -1, .force_token = -1, .n_logprobs = 20}},
};
static const uint32_t batches[] = {1, 8, 32, 64, 168, 256};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_BATCHES = sizeof batches / sizeof *batches };

static void print_table(bench *b, bool peaked)
{
    fill_logits(b, peaked);
    printf("\n%s logits: us (share of one pass over the logits)\n%-28s", peaked ? "peaked" : "flat",
           "batch");
    for (uint32_t j = 0; j < N_BATCHES; j++) printf(" %16u", batches[j]);
    printf("\n");
    for (uint32_t i = 0; i < N_KINDS; i++) {
        printf("%-28s", kinds[i].name);
        for (uint32_t j = 0; j < N_BATCHES; j++) {
            set_rows(b, batches[j], kinds[i].row);
            const double s = time_graph(b, record_sample) / LAUNCHES;
            const double floor_s = (double)batches[j] * b->vocab * 4 / b->read_bytes_s;
            printf(" %8.1f (%4.1f %%)", s * 1e6, 100 * floor_s / s);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    const uint32_t vocab = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 151936;
    bench b = {0};
    const cn_cuda_backend_opts o = {.memory_bytes = UINT64_C(2) << 30};
    if (cn_backend_cuda_load(&b.be, o) != CN_OK) {
        printf("skipped: %s\n", cn_last_error());
        return 0;
    }
    open_bench(&b, vocab);
    fill_logits(&b, false);
    b.read_bytes_s = (double)SETS * MAX_ROWS * vocab * 4 / time_graph(&b, record_read);
    printf("vocabulary %u, read bandwidth %.0f GB/s\n", vocab, b.read_bytes_s / 1e9);
    print_table(&b, false);
    print_table(&b, true);
    b.be->stream_free(b.s);
    b.be->close(b.be);
    return 0;
}
