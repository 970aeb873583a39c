/* test_op_experts_fp8_cuda.c - the GPU's products of FP8 experts compared with the CPU's and with
 * sums that are written here: ragged shapes, every kernel, a pair's bits in any batch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "paged/kv_fp8.h"
#include "tests/lib/op_cases.h"

typedef enum routing {
    ROUTING_RANDOM,
    ROUTING_ONE, /* all tokens take the same experts */
    ROUTING_FEW, /* most experts have no token */
    N_ROUTINGS
} routing;

typedef struct layer_shape {
    uint32_t t, e, k, h, i;
    routing how;
    cn_x_form x;
} layer_shape;

typedef struct layer {
    layer_shape g;
    uint32_t *experts;             /* [T,k] */
    uint32_t *pairs;               /* [T,k] the pair of each */
    op_tensor starts, pair_tokens; /* words */
    op_tensor x, gate_up, gate_up_scales, down, down_scales;
    op_tensor gathered, rounded, y, act, out;
} layer;

static void *room(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);
    assert_non_null(p);
    return p;
}

/* ---- the routing ---- */

/* Draws k different experts for each token. */
static uint32_t *draw_experts(op_env *e, const layer_shape *g)
{
    uint32_t *experts = room((size_t)g->t * g->k, sizeof *experts);
    const uint32_t n = g->how == ROUTING_FEW ? cn_max_u32(g->e / 4, g->k) : g->e;
    for (uint32_t t = 0; t < g->t; t++) {
        const uint32_t first = g->how == ROUTING_ONE ? g->e - g->k : op_between(e, 0, n - 1);
        const uint32_t step = g->how == ROUTING_ONE || n <= g->k ? 1 : op_between(e, 1, n / g->k);
        for (uint32_t j = 0; j < g->k; j++)
            experts[t * g->k + j] = (first + j * step) % (g->how == ROUTING_ONE ? g->e : n);
    }
    return experts;
}

/* Numbers the pairs of the first n tokens as `route` does. */
static void number_pairs(const layer *l, uint32_t n, uint32_t *starts, uint32_t *tokens,
                         uint32_t *pairs)
{
    uint32_t next = 0;
    for (uint32_t expert = 0; expert < l->g.e; expert++) {
        starts[expert] = next;
        for (uint32_t i = 0; i < n * l->g.k; i++)
            if (l->experts[i] == expert) {
                tokens[next] = i / l->g.k;
                pairs[i] = next++;
            }
    }
    starts[l->g.e] = next;
    assert_int_equal(next, n * l->g.k);
}

/* ---- a layer ---- */

static op_tensor random_codes(op_env *e, size_t n, size_t k)
{
    return op_fp8_codes(e, n, k, cn_round_up(k, CN_FP8_COLUMNS));
}

static op_tensor random_scales(op_env *e, size_t n) { return op_fp8_scales(e, n, 1.0f / 2048); }

static uint32_t power_of_two_in(uint32_t n) { return cn_min_u32(n & (0 - n), 128); }

/* The form of a matrix of rows `n` an expert and `k` columns; n_part: rows that share no scale with
 * others. */
static cn_matrix form_of(const layer_shape *g, uint32_t n_part, uint32_t k)
{
    const bool by_row = g->x != CN_X_BLOCKS;
    return (cn_matrix){.form = CN_MATRIX_FP8,
                       .x = g->x,
                       .stride = (uint32_t)cn_round_up(k, CN_FP8_COLUMNS),
                       .scale_n = by_row ? 1 : power_of_two_in(n_part),
                       .scale_k = by_row ? k : CN_FP8_COLUMNS,
                       .x_scale = 1.0F / 256};
}

static size_t n_scales(const cn_matrix *m, size_t rows, uint32_t k)
{
    return rows / m->scale_n * cn_ceil_div(k, m->scale_k);
}

static layer new_layer(op_env *e, layer_shape g)
{
    const size_t p = (size_t)g.t * g.k, rows = (size_t)g.e * 2 * g.i;
    const cn_matrix up = form_of(&g, g.i, g.h), down = form_of(&g, g.h, g.i);
    layer l = {.g = g, .experts = draw_experts(e, &g), .pairs = room(p, sizeof(uint32_t))};
    uint32_t *starts = room(g.e + 1, sizeof *starts), *tokens = room(p, sizeof *tokens);
    number_pairs(&l, g.t, starts, tokens, l.pairs);
    l.starts = op_words(e, starts, g.e + 1);
    l.pair_tokens = op_words(e, tokens, p);
    l.x = op_random(e, (size_t)g.t * g.h);
    l.gate_up = random_codes(e, rows, g.h);
    l.gate_up_scales = random_scales(e, n_scales(&up, rows, g.h));
    l.down = random_codes(e, (size_t)g.e * g.h, g.i);
    l.down_scales = random_scales(e, n_scales(&down, (size_t)g.e * g.h, g.i));
    l.gathered = op_poison(e, p * up.stride, CN_BF16);
    l.rounded = op_poison(e, p * cn_max_u32(up.stride, down.stride), CN_BF16);
    l.y = op_poison(e, p * 2 * g.i, CN_BF16);
    l.act = op_poison(e, p * g.i, CN_BF16);
    l.out = op_poison(e, p * g.h, CN_BF16);
    OP_SHAPE(e, "T=%u E=%u k=%u h=%u I=%u routing %d x=%d", g.t, g.e, g.k, g.h, g.i, (int)g.how,
             (int)g.x);
    free(starts);
    free(tokens);
    return l;
}

static void free_layer(op_env *e, layer *l)
{
    op_tensor *const all[] = {&l->starts, &l->pair_tokens, &l->x,        &l->gate_up,
                              &l->down,   &l->down_scales, &l->gathered, &l->gate_up_scales,
                              &l->y,      &l->act,         &l->out,      &l->rounded};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    free(l->experts);
    free(l->pairs);
}

#define SIDE(tensor) (on_gpu ? (tensor).cuda : (tensor).cpu)

static void gate_up(op_env *e, const layer *l, bool on_gpu)
{
    cn_matrix w = form_of(&l->g, l->g.i, l->g.h);
    w.data = SIDE(l->gate_up);
    w.scales = SIDE(l->gate_up_scales);
    const cn_expert_gate_up_args a = {.out = SIDE(l->act),
                                      .x = SIDE(l->x),
                                      .weight = w,
                                      .starts = SIDE(l->starts),
                                      .pair_tokens = SIDE(l->pair_tokens),
                                      .gathered = SIDE(l->gathered),
                                      .rounded = SIDE(l->rounded),
                                      .gate_up = on_gpu ? NULL : l->y.cpu,
                                      .n_tokens = l->g.t,
                                      .n_experts = l->g.e,
                                      .n_used = l->g.k,
                                      .intermediate = l->g.i,
                                      .k = l->g.h};
    cn_backend *be = on_gpu ? e->cuda : e->cpu;
    OP_OK(be->expert_gate_up(on_gpu ? e->cuda_stream : e->cpu_stream, &a));
}

static void down(op_env *e, const layer *l, bool on_gpu)
{
    cn_matrix w = form_of(&l->g, l->g.h, l->g.i);
    w.data = SIDE(l->down);
    w.scales = SIDE(l->down_scales);
    const cn_expert_down_args a = {.out = SIDE(l->out),
                                   .x = SIDE(l->act),
                                   .weight = w,
                                   .rounded = SIDE(l->rounded),
                                   .starts = SIDE(l->starts),
                                   .n_tokens = l->g.t,
                                   .n_experts = l->g.e,
                                   .n_used = l->g.k,
                                   .n = l->g.h,
                                   .intermediate = l->g.i};
    cn_backend *be = on_gpu ? e->cuda : e->cpu;
    OP_OK(be->expert_down(on_gpu ? e->cuda_stream : e->cpu_stream, &a));
}

/* Both products on the GPU; the activations are on the CPU too. */
static void run_gpu(op_env *e, const layer *l)
{
    gate_up(e, l, true);
    down(e, l, true);
    op_sync(e);
}

/* ---- against the CPU ---- */

/* The second product has the GPU's activations on both sides: a last bit of them can change which
 * e4m3 is the nearest. */
static double layer_error(op_env *e, layer_shape g)
{
    layer l = new_layer(e, g);
    run_gpu(e, &l);
    gate_up(e, &l, false);
    op_sync(e);
    double error = op_error(e, &l.act);
    op_read(e, &l.act, l.act.cpu);
    down(e, &l, false);
    op_sync(e);
    error = fmax(error, op_error(e, &l.out));
    free_layer(e, &l);
    return error;
}

static cn_x_form some_x(op_env *e) { return (cn_x_form)op_between(e, CN_X_BLOCKS, CN_X_STATIC); }

/* One token, all tokens to the same experts, experts without a token, widths that are not whole
 * tiles, more tokens than a tile has. */
static double run_layer(op_env *e, uint32_t seed)
{
    static const layer_shape fixed[] = {
        {1, 8, 2, 256, 128, ROUTING_RANDOM, CN_X_BLOCKS},
        {1, 1, 1, 128, 128, ROUTING_ONE, CN_X_BLOCKS},
        {1, 8, 8, 2048, 768, ROUTING_RANDOM, CN_X_BLOCKS},
        {7, 16, 4, 512, 192, ROUTING_RANDOM, CN_X_ROWS},
        {40, 16, 4, 320, 64, ROUTING_RANDOM, CN_X_BLOCKS},
        {150, 4, 1, 128, 128, ROUTING_ONE, CN_X_BLOCKS},
        {300, 4, 2, 144, 72, ROUTING_ONE, CN_X_BLOCKS},
        {64, 32, 8, 192, 80, ROUTING_FEW, CN_X_BLOCKS},
        {700, 8, 2, 128, 64, ROUTING_FEW, CN_X_STATIC},
        {513, 2, 1, 448, 72, ROUTING_RANDOM, CN_X_BLOCKS},
        {12, 128, 8, 256, 128, ROUTING_RANDOM, CN_X_BLOCKS},
        {256, 128, 8, 1040, 136, ROUTING_RANDOM, CN_X_ROWS},
        {8, 8, 2, 2048, 768, ROUTING_RANDOM, CN_X_BLOCKS},
        {33, 5, 3, 16, 8, ROUTING_RANDOM, CN_X_BLOCKS},
    };
    enum { N_FIXED = sizeof fixed / sizeof *fixed };
    if (seed < N_FIXED) return layer_error(e, fixed[seed]);
    const layer_shape g = {.t = op_some_rows(e),
                           .e = op_between(e, 4, 20),
                           .k = op_between(e, 1, 4),
                           .h = 16 * op_between(e, 1, 40),
                           .i = 8 * op_between(e, 1, 40),
                           .how = (routing)op_between(e, 0, ROUTING_FEW),
                           .x = some_x(e)};
    return layer_error(e, g);
}

/* ---- sums written here ---- */

/* x as the product must read it: the nearest value of e4m3 times the scale, found by search. */
static void rounded_row(double *out, const float *x, uint32_t k, const cn_matrix *w)
{
    const uint32_t span = w->x == CN_X_BLOCKS ? CN_FP8_COLUMNS : k;
    for (uint32_t i = 0; i < k; i++) {
        float most = 0;
        for (uint32_t j = i / span * span; j < k && j / span == i / span; j++)
            most = fmaxf(most, fabsf(x[j]));
        const float scale = w->x == CN_X_STATIC ? w->x_scale : most / 448;
        out[i] = 0;
        for (uint32_t code = 0; code < 256 && scale > 0; code++) {
            const double value = (double)cn_fp8_value((uint8_t)code) * (double)scale;
            if (fabs(value - (double)x[i]) < fabs(out[i] - (double)x[i])) out[i] = value;
        }
    }
}

/* x[k] times row `row` of all experts. */
static double sum_of(const double *x, const cn_matrix *w, const uint8_t *codes, const float *scales,
                     size_t row, uint32_t k)
{
    const size_t scale_cols = cn_ceil_div(k, w->scale_k);
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += x[i] * (double)cn_fp8_value(codes[row * w->stride + i]) *
               (double)scales[row / w->scale_n * scale_cols + i / w->scale_k];
    return sum;
}

static double run_plain_sums(op_env *e, uint32_t seed)
{
    const layer_shape g = {seed ? 30 : 1,
                           5,
                           2,
                           144,
                           80,
                           seed % 2 ? ROUTING_ONE : ROUTING_RANDOM,
                           seed < 2 ? CN_X_BLOCKS : some_x(e)};
    layer l = new_layer(e, g);
    const cn_matrix up = form_of(&g, g.i, g.h), last = form_of(&g, g.h, g.i);
    const size_t p = (size_t)g.t * g.k;
    float *act = room(p * g.i, sizeof *act), *out = room(p * g.h, sizeof *out);
    float *want_act = room(p * g.i, sizeof *act), *want = room(p * g.h, sizeof *out);
    double x[144];
    run_gpu(e, &l);
    op_read(e, &l.act, act);
    op_read(e, &l.out, out);
    for (size_t i = 0; i < p; i++) {
        const size_t expert = l.experts[i], pair = l.pairs[i];
        rounded_row(x, (const float *)l.x.cpu + i / g.k * g.h, g.h, &up);
        for (uint32_t c = 0; c < g.i; c++) {
            const size_t row = expert * 2 * g.i + c;
            const double a = sum_of(x, &up, l.gate_up.cpu, l.gate_up_scales.cpu, row, g.h);
            const double b = sum_of(x, &up, l.gate_up.cpu, l.gate_up_scales.cpu, row + g.i, g.h);
            want_act[pair * g.i + c] = (float)(a / (1 + exp(-a)) * b);
        }
        rounded_row(x, act + pair * g.i, g.i, &last);
        for (uint32_t c = 0; c < g.h; c++)
            want[pair * g.h + c] = (float)sum_of(x, &last, l.down.cpu, l.down_scales.cpu,
                                                 expert * g.h + c, g.i);
    }
    const double error = fmax(op_error_of(act, want_act, p * g.i), op_error_of(out, want, p * g.h));
    free(act);
    free(out);
    free(want_act);
    free(want);
    free_layer(e, &l);
    return error;
}

/* ---- a pair's bits ---- */

/* The first tokens alone must have the bits that they have beside all others. */
static double run_invariant(op_env *e, uint32_t seed)
{
    static const uint32_t sizes[] = {1, 2, 7, 16, 40, 100, 130, 300};
    const layer_shape g = {.t = 400,
                           .e = 4,
                           .k = 2,
                           .h = seed ? 512 : 144,
                           .i = seed ? 192 : 72,
                           .how = seed % 2 ? ROUTING_ONE : ROUTING_RANDOM,
                           .x = CN_X_BLOCKS};
    layer l = new_layer(e, g);
    const size_t n = (size_t)g.t * g.k * g.h;
    float *all = room(n, sizeof *all), *got = room(n, sizeof *got);
    uint32_t *pairs = room((size_t)g.t * g.k, sizeof *pairs);
    double error = 0;
    run_gpu(e, &l);
    op_read(e, &l.out, all);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        layer part = l;
        part.g.t = sizes[s];
        number_pairs(&l, sizes[s], l.starts.cpu, l.pair_tokens.cpu, pairs);
        op_send(e, &l.starts);
        op_send(e, &l.pair_tokens);
        run_gpu(e, &part);
        op_read(e, &l.out, got);
        for (uint32_t i = 0; i < sizes[s] * g.k; i++)
            if (memcmp(got + (size_t)pairs[i] * g.h, all + (size_t)l.pairs[i] * g.h,
                       g.h * sizeof *got) != 0)
                error = INFINITY;
    }
    free(all);
    free(got);
    free(pairs);
    free_layer(e, &l);
    return error;
}

/* ---- what is refused ---- */

static double run_refused(op_env *e, uint32_t seed)
{
    (void)seed;
    const layer_shape g = {2, 4, 2, 128, 64, ROUTING_RANDOM, CN_X_BLOCKS};
    layer l = new_layer(e, g);
    const cn_matrix w = {.form = CN_MATRIX_FP8, .x = CN_X_BLOCKS, .stride = 128,
                         .scale_n = 8, .scale_k = CN_FP8_COLUMNS};
    const cn_expert_down_args a = {.out = l.out.cuda, .x = l.act.cuda, .weight = w,
                                   .rounded = l.rounded.cuda, .starts = l.starts.cuda,
                                   .n_tokens = 2, .n_experts = 4, .n_used = 2, .n = 24,
                                   .intermediate = 64};
    const bool refused = e->cuda->expert_down(e->cuda_stream, &a) == CN_ERR_SHAPE;
    free_layer(e, &l);
    return refused ? 0 : INFINITY;
}

#define WITH_TILE(t, r, b) .experts = {t, r, b}
static const op_case cases[] = {
    {"experts fp8", 40, 1e-2, run_layer, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts fp8, plain sums", 6, 1e-2, run_plain_sums, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts fp8, refused", 1, 0, run_refused, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts fp8, 8 x 64", 24, 1e-2, run_layer, WITH_TILE(8, 64, 2)},
    {"experts fp8, 16 x 64", 24, 1e-2, run_layer, WITH_TILE(16, 64, 2)},
    {"experts fp8, 32 x 64", 24, 1e-2, run_layer, WITH_TILE(32, 64, 1)},
    {"experts fp8, 64 x 64", 24, 1e-2, run_layer, WITH_TILE(64, 64, 2)},
    {"experts fp8, 128 x 64", 24, 1e-2, run_layer, WITH_TILE(128, 64, 1)},
    {"experts fp8, 8 x 128", 24, 1e-2, run_layer, WITH_TILE(8, 128, 1)},
    {"experts fp8, 16 x 128", 24, 1e-2, run_layer, WITH_TILE(16, 128, 1)},
    {"experts fp8, 32 x 128", 24, 1e-2, run_layer, WITH_TILE(32, 128, 2)},
    {"experts fp8, 64 x 128", 24, 1e-2, run_layer, WITH_TILE(64, 128, 1)},
    {"experts fp8, 128 x 128", 24, 1e-2, run_layer, WITH_TILE(128, 128, 1)},
    {"experts fp8, invariant", 3, 0, run_invariant, .batch_invariant = true},
};

int main(int argc, char **argv)
{
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
