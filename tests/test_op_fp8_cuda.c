/* test_op_fp8_cuda.c - the GPU's products with FP8 weights compared with the CPU's on random
 * shapes: every form of scales and inputs, plain and gated; batch invariance. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/op_cases.h"

typedef struct fp8_shape {
    uint32_t t, n, k; /* n: rows of the weight */
    cn_x_form x;
    bool by_row, bias, gated;
} fp8_shape;

/* The arrays of a product. */
typedef struct fp8_case {
    fp8_shape shape;
    uint32_t scale_n, scale_k, stride;
    op_tensor x, codes, scales, bias, out, y;
    float *cpu_rounded;
    op_tensor cuda_rounded;
} fp8_case;

/* An array of whole CN_FP8_ROWS rows, of which t are compared. */
static op_tensor some_rows(op_env *e, uint32_t t, size_t columns)
{
    op_tensor rows = op_poison(e, cn_round_up(t, CN_FP8_ROWS) * columns, CN_BF16);
    rows.n = t * columns;
    return rows;
}

/* Inputs whose first row is zero and whose second one has values near the least ones of f32. */
static op_tensor random_inputs(op_env *e, uint32_t t, size_t k)
{
    op_tensor x = op_random(e, t * k);
    float *values = x.cpu;
    for (size_t i = 0; i < t * k && t > 2 && i < 2 * k; i++)
        values[i] = i < k ? 0 : values[i] > 0 ? 0x1p-130F : -0x1p-128F;
    op_send(e, &x);
    return x;
}

static fp8_case draw_case(op_env *e, fp8_shape s)
{
    static const uint32_t rows[] = {128, 64, 16, 1};
    fp8_case c = {.shape = s};
    c.scale_n = s.by_row ? 1 : rows[test_rng_below(&e->rng, 3)];
    if (s.k % 512 == 0 && s.n % 128 == 0 && !s.by_row) c.scale_n = CN_FP8_COLUMNS;
    c.scale_k = s.by_row ? s.k : CN_FP8_COLUMNS;
    c.stride = (uint32_t)cn_round_up(s.k, CN_FP8_COLUMNS);
    OP_SHAPE(e, "T=%u N=%u K=%u x=%d scale_n=%u%s%s%s", s.t, s.n, s.k, (int)s.x, c.scale_n,
             s.by_row ? " rows" : "", s.bias ? " bias" : "", s.gated ? " gated" : "");
    c.x = random_inputs(e, s.t, s.k);
    c.codes = op_fp8_codes(e, s.n, s.k, c.stride);
    const size_t n_scales = cn_ceil_div(s.n, c.scale_n) * cn_ceil_div(s.k, c.scale_k);
    c.scales = op_fp8_scales(e, n_scales, 1.0f / 512);
    c.bias = op_random(e, s.n);
    c.out = some_rows(e, s.t, s.gated ? s.n / 2 : s.n);
    c.y = some_rows(e, s.t, s.n);
    c.cuda_rounded = some_rows(e, s.t, c.stride);
    c.cpu_rounded = calloc((size_t)s.t * s.k, sizeof(float));
    assert_non_null(c.cpu_rounded);
    return c;
}

static void free_case(op_env *e, fp8_case *c)
{
    op_tensor *const all[] = {&c->x,   &c->codes, &c->scales,      &c->bias,
                              &c->out, &c->y,     &c->cuda_rounded};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    free(c->cpu_rounded);
}

/* Static scales cover inputs up to 0.875: larger ones are saturated. */
static cn_matrix matrix_of(const fp8_case *c, const void *codes, const void *scales)
{
    return (cn_matrix){.data = codes,
                       .form = CN_MATRIX_FP8,
                       .x = c->shape.x,
                       .stride = c->stride,
                       .scales = scales,
                       .scale_n = c->scale_n,
                       .scale_k = c->scale_k,
                       .x_scale = 1.0F / 512};
}

static void run_cpu(op_env *e, const fp8_case *c)
{
    const fp8_shape *s = &c->shape;
    const cn_gemm_args a = {.out = s->gated ? c->y.cpu : c->out.cpu,
                            .x = c->x.cpu,
                            .bias = s->bias ? c->bias.cpu : NULL,
                            .weight = matrix_of(c, c->codes.cpu, c->scales.cpu),
                            .rounded = c->cpu_rounded,
                            .n_tokens = s->t,
                            .n = s->n,
                            .k = s->k};
    OP_OK(e->cpu->gemm(e->cpu_stream, &a));
    const cn_silu_mul_args gate = {c->out.cpu, c->y.cpu, s->t, s->n / 2};
    if (s->gated) OP_OK(e->cpu->silu_mul(e->cpu_stream, &gate));
}

/* Runs the first n_tokens rows. */
static void run_cuda(op_env *e, const fp8_case *c, uint32_t n_tokens)
{
    const fp8_shape *s = &c->shape;
    const cn_gemm_args plain = {.out = c->out.cuda,
                                .x = c->x.cuda,
                                .bias = s->bias ? c->bias.cuda : NULL,
                                .weight = matrix_of(c, c->codes.cuda, c->scales.cuda),
                                .rounded = c->cuda_rounded.cuda,
                                .n_tokens = n_tokens,
                                .n = s->n,
                                .k = s->k};
    const cn_gemm_silu_mul_args gated = {.out = c->out.cuda,
                                         .x = c->x.cuda,
                                         .weight = plain.weight,
                                         .rounded = plain.rounded,
                                         .gate_up = c->y.cuda,
                                         .n_tokens = n_tokens,
                                         .intermediate = s->n / 2,
                                         .k = s->k};
    if (s->gated)
        OP_OK(e->cuda->gemm_silu_mul(e->cuda_stream, &gated));
    else
        OP_OK(e->cuda->gemm(e->cuda_stream, &plain));
}

static double case_error(op_env *e, fp8_shape s)
{
    fp8_case c = draw_case(e, s);
    run_cpu(e, &c);
    run_cuda(e, &c, s.t);
    op_sync(e);
    const double error = op_error(e, &c.out);
    free_case(e, &c);
    return error;
}

static cn_x_form some_x(op_env *e) { return (cn_x_form)op_between(e, CN_X_BLOCKS, CN_X_STATIC); }

static double run_fp8(op_env *e, uint32_t seed)
{
    static const fp8_shape fixed[] = {
        {1, 4096, 4096, CN_X_BLOCKS, false, false, false},
        {8, 6144, 1024, CN_X_ROWS, true, true, false},
        {9, 65, 128, CN_X_STATIC, true, false, false},
        {16, 63, 256, CN_X_BLOCKS, false, true, false},
        {17, 1000, 1152, CN_X_BLOCKS, false, false, false},
        {32, 192, 12288, CN_X_BLOCKS, false, false, false},
        {33, 4096, 512, CN_X_ROWS, true, false, false},
        {64, 333, 640, CN_X_BLOCKS, false, true, false},
        {65, 1030, 1408, CN_X_BLOCKS, false, false, false},
        {128, 512, 1024, CN_X_STATIC, true, false, false},
        {129, 384, 384, CN_X_BLOCKS, false, true, false},
        {700, 264, 384, CN_X_ROWS, true, false, false},
        {4096, 256, 512, CN_X_BLOCKS, false, false, false},
        {5, 72, 8, CN_X_BLOCKS, false, false, false},
        {40, 200, 320, CN_X_BLOCKS, false, true, false},
        {130, 96, 200, CN_X_ROWS, true, false, false},
        {3, 64, 1096, CN_X_STATIC, true, false, false},
    };
    if (seed < sizeof fixed / sizeof *fixed) return case_error(e, fixed[seed]);
    const fp8_shape s = {.t = op_between(e, 1, 200),
                         .n = op_between(e, 1, 3000),
                         .k = 8 * op_between(e, 1, 220),
                         .x = some_x(e),
                         .by_row = op_coin(e),
                         .bias = op_coin(e)};
    return case_error(e, s);
}

static double run_fp8_gated(op_env *e, uint32_t seed)
{
    static const uint32_t fixed[][3] = {{1, 12288, 1024}, {8, 96, 128},     {17, 104, 384},
                                        {64, 3072, 256},  {128, 1000, 640}, {300, 256, 512}};
    const bool is_fixed = seed < sizeof fixed / sizeof *fixed;
    const fp8_shape s = {.t = is_fixed ? fixed[seed][0] : op_between(e, 1, 260),
                         .n = 2 * (is_fixed ? fixed[seed][1] : 4 * op_between(e, 1, 600)),
                         .k = is_fixed ? fixed[seed][2] : 8 * op_between(e, 1, 190),
                         .x = some_x(e),
                         .by_row = op_coin(e),
                         .gated = true};
    return case_error(e, s);
}

/* Shapes that cuBLASLt multiplies, with scales as it takes them or spread over rows. */
static double library_error(op_env *e, uint32_t seed, bool gated)
{
    const bool blocks = seed % 2 == 0;
    const fp8_shape s = {.t = seed < 4 ? 1024 + seed : op_between(e, 4, 400),
                         .n = blocks ? 128 * op_between(e, 1, 12) : 16 * op_between(e, 1, 100),
                         .k = blocks ? 512 * op_between(e, 1, 6) : 8 * op_between(e, 1, 300),
                         .x = blocks ? CN_X_BLOCKS : some_x(e),
                         .by_row = !blocks && op_coin(e),
                         .gated = gated};
    return case_error(e, s);
}

static double run_fp8_library(op_env *e, uint32_t seed) { return library_error(e, seed, false); }
static double run_fp8_both(op_env *e, uint32_t seed) { return library_error(e, seed, true); }

/* A row has the same bits whatever is multiplied with it. */
static double run_fp8_invariant(op_env *e, uint32_t seed)
{
    static const uint32_t sizes[] = {1, 2, 8, 9, 33, 64, 65, 128, 129, 300};
    const fp8_shape s = {.t = 300,
                         .n = seed % 2 ? 1536 : 4096,
                         .k = seed % 2 ? 4096 : 1280,
                         .x = some_x(e),
                         .by_row = op_coin(e),
                         .gated = seed % 4 > 1};
    fp8_case c = draw_case(e, s);
    double error = 0;
    uint16_t *first = NULL;
    const size_t columns = s.gated ? s.n / 2 : s.n;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run_cuda(e, &c, sizes[i]);
        op_sync(e);
        uint16_t *got = op_take(e, &c.out);
        if (first && memcmp(first, got, columns * sizeof *got) != 0) error = 1;
        if (first)
            cn_free(got);
        else
            first = got;
    }
    cn_free(first);
    free_case(e, &c);
    return error;
}

static const op_case cases[] = {
    {"fp8", 44, 4e-3, run_fp8, .gemm = CN_CUDA_GEMM_OWN},
    {"fp8_library", 16, 4e-3, run_fp8_library, .gemm = CN_CUDA_GEMM_LIBRARY},
    {"fp8_library_gated", 12, 2e-2, run_fp8_both, .gemm = CN_CUDA_GEMM_LIBRARY},
    {"fp8_gated", 20, 1e-2, run_fp8_gated, .gemm = CN_CUDA_GEMM_OWN},
    {"fp8_invariant", 6, 0, run_fp8_invariant, .gemm = CN_CUDA_GEMM_LIBRARY,
     .batch_invariant = true},
};

int main(int argc, char **argv)
{
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
