/* test_op_sample_cuda.c - sampling on the GPU compared with the CPU: the same tokens and counts for
 * any mixture of parameters, and the same logprobs except for the last bits. A graph and any batch
 * composition give the same results. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/op_cases.h"

enum { MAX_BANS = 600, MAX_BIASES = 80 };

/* All arrays that the op reads and writes, on both sides. */
typedef struct sampling_case {
    uint32_t n_rows, vocab;
    op_tensor logits, counts, bans, biases, masks, rows, prev, tokens, logprobs, top,
        ranks;
    void *cpu_scratch, *cuda_scratch;
    cn_sample_args cpu, cuda;
} sampling_case;

static uint32_t below(op_env *e, uint32_t n) { return test_rng_below(&e->rng, n); }

/* Returns a nearly normal number with standard deviation 1. */
static float bell(op_env *e)
{
    float sum = 0;
    for (int i = 0; i < 3; i++) sum += test_rng_uniform(&e->rng);
    return sum;
}

static float pick(op_env *e, const float *values, uint32_t n) { return values[below(e, n)]; }
#define PICK(e, ...)                                                                               \
    pick(e, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))

/* ---- drawing a case ---- */

/* Draws logits that are smooth, in steps (ties), mixed with infinities and NaN, all equal, or all
 * -inf. */
static void draw_logits(op_env *e, float *x, uint32_t vocab)
{
    const float spread = PICK(e, 0.3f, 1.0f, 3.0f, 8.0f, 30.0f);
    const uint32_t kind = below(e, 12);
    for (uint32_t i = 0; i < vocab; i++) {
        x[i] = spread * bell(e);
        if (kind < 3) x[i] = roundf(x[i] * 2) / 2;
        else if (kind == 3 && below(e, 50) == 0) x[i] = PICK(e, NAN, -INFINITY, -0.0f, 0.0f);
        else if (kind == 4 && below(e, 50) == 0) x[i] = PICK(e, NAN, INFINITY, 3e38f, -3e38f);
        else if (kind == 5) x[i] = 1.0f;
        else if (kind == 6) x[i] = PICK(e, NAN, -INFINITY);
    }
}

static uint16_t draw_count(op_env *e)
{
    if (below(e, 5) > 0) return 0;
    return (uint16_t)(op_coin(e) ? below(e, 4) : op_coin(e) ? 0x8000 | below(e, 3) : 0xffff);
}

static cn_sample_row draw_row(op_env *e, uint32_t row, uint32_t vocab)
{
    cn_sample_row r = {.seed = (uint64_t)below(e, 1u << 31) << 33 | below(e, 1u << 31),
                       .sample = below(e, 5),
                       .position = below(e, 100000),
                       .temperature = PICK(e, 0, 0.6f, 1, 1, 1.7f, 0.01f),
                       .top_p = 1.0f,
                       .repetition_penalty = op_coin(e) ? 1.0f : 1.3f,
                       .frequency_penalty = op_coin(e) ? 0.0f : 0.7f,
                       .presence_penalty = op_coin(e) ? 0.0f : -0.4f,
                       .count_slot = op_coin(e) ? (int32_t)row : -1,
                       .force_token = below(e, 8) == 0 ? (int32_t)below(e, vocab) : -1,
                       .prev_row = op_coin(e) ? -1 : (int32_t)row,
                       .n_logprobs = op_coin(e) ? -1 : (int32_t)below(e, CN_MAX_LOGPROBS + 1)};
    if (op_coin(e)) r.top_p = PICK(e, 0.9f, 0.5f, 0.99f, 1e-6f, 0.95f);
    if (op_coin(e)) r.top_k = (int32_t)PICK(e, -1, 1, 20, 50, 300, 1000, 5000);
    if (below(e, 3) == 0) r.min_p = PICK(e, 0.05f, 0.5f, 1.0f, 1e-6f);
    r.n_ban = op_coin(e) ? 0 : below(e, MAX_BANS);
    r.n_bias = op_coin(e) ? 0 : below(e, MAX_BIASES);
    r.ban_start = row * MAX_BANS;
    r.bias_start = row * MAX_BIASES;
    r.mask = op_coin(e) ? 0 : row + 1;
    return r;
}

static op_tensor poison_words(op_env *e, size_t n)
{
    uint32_t *words = cn_calloc(n, sizeof *words);
    memset(words, 0x5a, n * sizeof *words);
    op_tensor t = op_words(e, words, n);
    cn_free(words);
    return t;
}

static op_tensor draw_words(op_env *e, size_t n, uint32_t most)
{
    uint32_t *words = cn_calloc(n, sizeof *words);
    for (size_t i = 0; i < n; i++) words[i] = below(e, most);
    op_tensor t = op_words(e, words, n);
    cn_free(words);
    return t;
}

static op_tensor draw_counts(op_env *e, size_t n)
{
    uint16_t *counts = cn_calloc(n + 1, sizeof *counts);
    for (size_t i = 0; i < n; i++) counts[i] = draw_count(e);
    op_tensor t = op_words(e, counts, (n + 1) / 2);
    cn_free(counts);
    return t;
}

static op_tensor draw_biases(op_env *e, uint32_t n, uint32_t vocab)
{
    cn_logit_bias *biases = cn_calloc(n, sizeof *biases);
    for (uint32_t i = 0; i < n; i++)
        biases[i] = (cn_logit_bias){below(e, vocab), 5 * bell(e)};
    op_tensor t = op_words(e, biases, n * sizeof *biases / sizeof(uint32_t));
    cn_free(biases);
    return t;
}

/* Masks with few or many tokens, at least one. */
static op_tensor draw_masks(op_env *e, uint32_t n_rows, uint32_t vocab)
{
    const uint32_t words = (vocab + 31) / 32;
    uint32_t *masks = cn_calloc((size_t)n_rows * words, sizeof *masks);
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t *mask = masks + (size_t)r * words;
        const uint32_t n = below(e, op_coin(e) ? 20 : 4 * vocab), more = below(e, vocab);
        mask[more / 32] |= 1u << more % 32;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t id = below(e, vocab);
            mask[id / 32] |= 1u << id % 32;
        }
    }
    op_tensor t = op_words(e, masks, (size_t)n_rows * words);
    cn_free(masks);
    return t;
}

static void connect(op_env *e, sampling_case *c)
{
    cn_sample_args *a[] = {&c->cpu, &c->cuda};
    for (int gpu = 0; gpu < 2; gpu++) {
#define SIDE(t) (gpu ? (t).cuda : (t).cpu)
        *a[gpu] = (cn_sample_args){.logits = SIDE(c->logits), .n_rows = c->n_rows,
                                   .vocab = c->vocab, .rows = SIDE(c->rows),
                                   .bans = SIDE(c->bans), .biases = SIDE(c->biases),
                                   .masks = SIDE(c->masks), .prev_tokens = SIDE(c->prev),
                                   .counts = SIDE(c->counts), .tokens = SIDE(c->tokens),
                                   .token_logprobs = SIDE(c->logprobs), .top = SIDE(c->top),
                                   .ranks = SIDE(c->ranks)};
#undef SIDE
    }
    c->cpu.scratch_bytes = e->cpu->sample_scratch_bytes(e->cpu, c->n_rows, c->vocab);
    c->cpu.scratch = c->cpu_scratch = cn_calloc_aligned(c->cpu.scratch_bytes, 1);
    c->cuda.scratch_bytes = e->cuda->sample_scratch_bytes(e->cuda, c->n_rows, c->vocab);
    OP_OK(e->cuda->mem_alloc(e->cuda, c->cuda.scratch_bytes, &c->cuda_scratch));
    c->cuda.scratch = c->cuda_scratch;
}

static sampling_case draw_case(op_env *e, uint32_t n_rows, uint32_t vocab)
{
    sampling_case c = {.n_rows = n_rows, .vocab = vocab};
    const size_t n = (size_t)n_rows * vocab;
    float *logits = cn_calloc(n, sizeof *logits);
    cn_sample_row *rows = cn_calloc(n_rows, sizeof *rows);
    uint32_t *prev = cn_calloc(n_rows, sizeof *prev);
    for (uint32_t r = 0; r < n_rows; r++) {
        draw_logits(e, logits + (size_t)r * vocab, vocab);
        rows[r] = draw_row(e, r, vocab);
        prev[r] = op_coin(e) && rows[r].force_token >= 0 ? (uint32_t)rows[r].force_token
                                                      : below(e, vocab);
        rows[r].force_after = op_coin(e) ? 0 : 1 + (op_coin(e) ? prev[r] : below(e, vocab));
    }
    c.logits = op_floats(e, logits, n, CN_F32);
    c.rows = op_words(e, rows, n_rows * sizeof *rows / sizeof(uint32_t));
    c.prev = op_words(e, prev, n_rows);
    cn_free(prev);
    cn_free(rows);
    cn_free(logits);
    c.counts = draw_counts(e, n);
    c.bans = draw_words(e, (size_t)n_rows * MAX_BANS, vocab);
    c.masks = draw_masks(e, n_rows, vocab);
    c.biases = draw_biases(e, n_rows * MAX_BIASES, vocab);
    c.tokens = poison_words(e, n_rows);
    c.logprobs = op_poison(e, n_rows, CN_F32);
    c.top = poison_words(e, (size_t)n_rows * CN_MAX_LOGPROBS * 2);
    c.ranks = poison_words(e, n_rows);
    connect(e, &c);
    snprintf(e->shape, sizeof e->shape, "rows=%u V=%u", n_rows, vocab);
    return c;
}

static void free_case(op_env *e, sampling_case *c)
{
    op_tensor *all[] = {&c->logits, &c->counts, &c->bans,     &c->biases, &c->masks,
                        &c->rows,   &c->prev,   &c->tokens,   &c->logprobs, &c->top,
                        &c->ranks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    cn_free(c->cpu_scratch);
    e->cuda->mem_free(e->cuda, c->cuda_scratch);
}

/* ---- comparing ---- */

static double logprob_error(float got, float want)
{
    if (got == want || (isnan(got) && isnan(want))) return 0;
    const double error = fabs((double)got - want) / (1 + fabs((double)want));
    return isnan(error) ? INFINITY : error;
}

/* Token ids in order must be equal. Entries that were not requested must keep their poison. */
static double top_error(op_env *e, const sampling_case *c)
{
    cn_logprob *got = cn_calloc(c->top.n, sizeof(uint32_t));
    const cn_logprob *want = c->top.cpu;
    double worst = 0;
    OP_OK(e->cuda->mem_read(e->cuda_stream, got, c->top.cuda, c->top.n * sizeof(uint32_t)));
    OP_OK(e->cuda->stream_sync(e->cuda_stream));
    for (size_t i = 0; i < c->top.n / 2; i++)
        worst = fmax(worst, got[i].token != want[i].token
                                ? INFINITY
                                : logprob_error(got[i].logprob, want[i].logprob));
    cn_free(got);
    return worst;
}

static double case_error(op_env *e, const sampling_case *c)
{
    float *got = cn_calloc(c->n_rows, sizeof *got);
    const float *want = c->logprobs.cpu;
    double worst = fmax(op_words_error(e, &c->tokens), op_words_error(e, &c->counts));
    worst = fmax(worst, op_words_error(e, &c->ranks));
    op_read(e, &c->logprobs, got);
    for (uint32_t i = 0; i < c->n_rows; i++) worst = fmax(worst, logprob_error(got[i], want[i]));
    cn_free(got);
    return fmax(worst, top_error(e, c));
}

static double run_case_of(op_env *e, uint32_t n_rows, uint32_t vocab)
{
    sampling_case c = draw_case(e, n_rows, vocab);
    OP_OK(e->cpu->sample(e->cpu_stream, &c.cpu));
    OP_OK(e->cuda->sample(e->cuda_stream, &c.cuda));
    const double error = case_error(e, &c);
    free_case(e, &c);
    return error;
}

static double run_small(op_env *e, uint32_t seed)
{
    (void)seed;
    return run_case_of(e, 1 + below(e, 12), 1 + below(e, op_coin(e) ? 20 : 5000));
}

static double run_large(op_env *e, uint32_t seed)
{
    (void)seed;
    static const uint32_t vocabs[] = {151936, 128256, 50257, 262144};
    return run_case_of(e, 1 + below(e, 40), vocabs[below(e, 4)]);
}

/* ---- equal results ---- */

static void read_tokens(op_env *e, const sampling_case *c, uint32_t *out)
{
    OP_OK(e->cuda->mem_read(e->cuda_stream, out, c->tokens.cuda, c->n_rows * sizeof *out));
    OP_OK(e->cuda->stream_sync(e->cuda_stream));
}

/* A recorded graph uses the row parameters at each launch. A row alone samples the same token as in
 * a batch. Counts change from run to run, so these rows have none. */
static double run_graph(op_env *e, uint32_t seed)
{
    (void)seed;
    enum { ROWS = 9 };
    sampling_case c = draw_case(e, ROWS, 3000);
    cn_sample_row rows[ROWS];
    uint32_t first[ROWS], again[ROWS], alone;
    memcpy(rows, c.rows.cpu, sizeof rows);
    for (int i = 0; i < ROWS; i++) rows[i].count_slot = -1;
    cn_graph *g = NULL;
    OP_OK(e->cuda->sample(e->cuda_stream, &c.cuda));
    OP_OK(e->cuda->graph_begin(e->cuda_stream));
    OP_OK(e->cuda->sample(e->cuda_stream, &c.cuda));
    OP_OK(e->cuda->graph_end(e->cuda_stream, &g));
    OP_OK(e->cuda->mem_write(e->cuda_stream, c.rows.cuda, rows, sizeof rows));
    memcpy(c.rows.cpu, rows, sizeof rows);
    OP_OK(e->cpu->sample(e->cpu_stream, &c.cpu));
    OP_OK(e->cuda->graph_launch(e->cuda_stream, g));
    read_tokens(e, &c, first);
    double error = op_words_error(e, &c.tokens);
    OP_OK(e->cuda->graph_launch(e->cuda_stream, g));
    read_tokens(e, &c, again);
    if (memcmp(first, again, sizeof first) != 0) error = INFINITY;
    for (uint32_t i = 0; i < ROWS; i++) {
        cn_sample_args one = c.cuda;
        one.n_rows = 1;
        one.logits += (size_t)i * c.vocab;
        one.rows += i;
        OP_OK(e->cuda->sample(e->cuda_stream, &one));
        OP_OK(e->cuda->mem_read(e->cuda_stream, &alone, one.tokens, sizeof alone));
        OP_OK(e->cuda->stream_sync(e->cuda_stream));
        if (alone != first[i]) error = INFINITY;
    }
    e->cuda->graph_free(g);
    free_case(e, &c);
    return error;
}

static double run_refusals(op_env *e, uint32_t seed)
{
    (void)seed;
    sampling_case c = draw_case(e, 2, 100);
    cn_sample_args a = c.cuda;
    a.scratch_bytes = 0;
    double error = e->cuda->sample(e->cuda_stream, &a) == CN_ERR_SHAPE ? 0 : INFINITY;
    a = c.cuda;
    a.vocab = 1u << 20;
    if (e->cuda->sample(e->cuda_stream, &a) != CN_ERR_SHAPE) error = INFINITY;
    a = c.cuda;
    a.n_rows = 0;
    if (e->cuda->sample(e->cuda_stream, &a) != CN_OK) error = INFINITY;
    free_case(e, &c);
    return error;
}

int main(int argc, char **argv)
{
    static const op_case cases[] = {
        {"sample", 80, 1e-5, run_small, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"sample, large", 8, 1e-5, run_large, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"sample, graph", 4, 0, run_graph, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"sample, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"sample, portable", 40, 1e-5, run_small, .portable = true},
        {"sample, portable, large", 4, 1e-5, run_large, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
