/* test_op_experts_cuda.c - the GPU's ops of a layer with experts compared with the CPU's, and with
 * sums that are written here: every kernel, experts without pairs, all tokens to one expert, one
 * token; graphs that replay other routings; a token's bits in any batch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/op_cases.h"

/* How the logits of a batch are made. */
typedef enum routing {
    ROUTING_RANDOM,
    ROUTING_ONE,   /* all tokens prefer the same experts */
    ROUTING_FEW,   /* the last half of the experts has no token */
    ROUTING_EQUAL, /* all logits are equal */
    ROUTING_NAN,   /* some logits are not numbers */
    N_ROUTINGS
} routing;

typedef struct layer_shape {
    uint32_t t, e, k, h, i;
    routing how;
} layer_shape;

typedef struct layer {
    layer_shape g;
    cn_router router;
    bool has_bias, adds;
    op_tensor x, logits, bias, gate_up, down;
    op_tensor starts, pair_tokens, pairs, weights;
    op_tensor gathered, pair_gate_up, pair_act, pair_out, out;
} layer;

static op_tensor new_logits(op_env *e, const layer_shape *g)
{
    const size_t n = (size_t)g->t * g->e;
    float *v = cn_calloc(n, sizeof *v);
    test_rng_fill(&e->rng, v, n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t expert = (uint32_t)(i % g->e);
        if (g->how == ROUTING_ONE && expert >= g->e - g->k) v[i] += 4;
        if (g->how == ROUTING_FEW && expert >= cn_max_u32(g->e / 2, g->k)) v[i] -= 4;
        if (g->how == ROUTING_EQUAL) v[i] = 0.5f;
        if (g->how == ROUTING_NAN && i / g->e % 3 == 1 && i % 2) v[i] = NAN;
    }
    op_tensor t = op_floats(e, v, n, CN_F32);
    cn_free(v);
    return t;
}

static op_tensor poison_words(op_env *e, size_t n)
{
    uint32_t *v = cn_calloc(n, sizeof *v);
    memset(v, 0xa5, n * sizeof *v);
    op_tensor t = op_words(e, v, n);
    cn_free(v);
    return t;
}

static layer new_layer(op_env *e, layer_shape g, uint32_t seed)
{
    const size_t p = (size_t)g.t * g.k;
    layer l = {.g = g,
               .router = {.n_experts = g.e,
                          .n_used = g.k,
                          .score = (cn_route_score)(seed % CN_N_ROUTE_SCORES),
                          .normalized = seed / 2 % 2,
                          .scale = seed / 4 % 2 ? 2.5f : 1},
               .has_bias = seed / 8 % 2,
               .adds = seed / 3 % 2};
    l.x = op_random(e, (size_t)g.t * g.h);
    l.logits = new_logits(e, &g);
    l.bias = op_random_f32(e, g.e);
    l.gate_up = op_random(e, (size_t)g.e * 2 * g.i * g.h);
    l.down = op_random(e, (size_t)g.e * g.h * g.i);
    l.starts = poison_words(e, g.e + 1);
    l.pair_tokens = poison_words(e, p);
    l.pairs = poison_words(e, p);
    l.weights = op_poison(e, p, CN_F32);
    l.gathered = op_poison(e, p * g.h, CN_BF16);
    l.pair_gate_up = op_poison(e, p * 2 * g.i, CN_BF16);
    l.pair_act = op_poison(e, p * g.i, CN_BF16);
    l.pair_out = op_poison(e, p * g.h, CN_BF16);
    l.out = op_random(e, (size_t)g.t * g.h);
    OP_SHAPE(e, "T=%u E=%u k=%u h=%u I=%u routing %d", g.t, g.e, g.k, g.h, g.i, (int)g.how);
    return l;
}

static void free_layer(op_env *e, layer *l)
{
    op_tensor *const all[] = {&l->x,        &l->logits,   &l->bias,         &l->gate_up,
                              &l->down,     &l->starts,   &l->pair_tokens,  &l->pairs,
                              &l->weights,  &l->gathered, &l->pair_gate_up, &l->pair_act,
                              &l->pair_out, &l->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
}

/* ---- the ops on one side ---- */

#define SIDE(tensor) (on_gpu ? (tensor).cuda : (tensor).cpu)

static cn_route_args route_of(const layer *l, bool on_gpu)
{
    return (cn_route_args){.starts = SIDE(l->starts),
                           .pair_tokens = SIDE(l->pair_tokens),
                           .pairs = SIDE(l->pairs),
                           .weights = SIDE(l->weights),
                           .logits = SIDE(l->logits),
                           .bias = l->has_bias ? SIDE(l->bias) : NULL,
                           .router = l->router,
                           .n_tokens = l->g.t};
}

static cn_expert_gate_up_args gate_up_of(const layer *l, bool on_gpu)
{
    return (cn_expert_gate_up_args){.out = SIDE(l->pair_act),
                                    .x = SIDE(l->x),
                                    .weight = {.data = SIDE(l->gate_up)},
                                    .starts = SIDE(l->starts),
                                    .pair_tokens = SIDE(l->pair_tokens),
                                    .gathered = SIDE(l->gathered),
                                    .gate_up = SIDE(l->pair_gate_up),
                                    .n_tokens = l->g.t,
                                    .n_experts = l->g.e,
                                    .n_used = l->g.k,
                                    .intermediate = l->g.i,
                                    .k = l->g.h};
}

static cn_expert_down_args down_of(const layer *l, bool on_gpu)
{
    return (cn_expert_down_args){.out = SIDE(l->pair_out),
                                 .x = SIDE(l->pair_act),
                                 .weight = {.data = SIDE(l->down)},
                                 .starts = SIDE(l->starts),
                                 .n_tokens = l->g.t,
                                 .n_experts = l->g.e,
                                 .n_used = l->g.k,
                                 .n = l->g.h,
                                 .intermediate = l->g.i};
}

static cn_expert_sum_args sum_of(const layer *l, bool on_gpu)
{
    return (cn_expert_sum_args){.out = SIDE(l->out),
                                .x = SIDE(l->pair_out),
                                .pairs = SIDE(l->pairs),
                                .weights = SIDE(l->weights),
                                .n_tokens = l->g.t,
                                .n_used = l->g.k,
                                .n = l->g.h,
                                .adds = l->adds};
}

static void enqueue_products(cn_backend *be, cn_stream *s, const layer *l, bool on_gpu)
{
    const cn_expert_gate_up_args gate_up = gate_up_of(l, on_gpu);
    const cn_expert_down_args down = down_of(l, on_gpu);
    const cn_expert_sum_args sum = sum_of(l, on_gpu);
    OP_OK(be->expert_gate_up(s, &gate_up));
    OP_OK(be->expert_down(s, &down));
    OP_OK(be->expert_sum(s, &sum));
}

static void enqueue_layer(op_env *e, const layer *l, bool on_gpu)
{
    cn_backend *be = on_gpu ? e->cuda : e->cpu;
    cn_stream *s = on_gpu ? e->cuda_stream : e->cpu_stream;
    const cn_route_args route = route_of(l, on_gpu);
    OP_OK(be->route(s, &route));
    enqueue_products(be, s, l, on_gpu);
}

/* ---- route ---- */

/* The words of a tensor on the GPU must be those of the CPU. */
static double words_error(op_env *e, const layer *l)
{
    const op_tensor *const all[] = {&l->starts, &l->pair_tokens, &l->pairs};
    double error = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        error = fmax(error, op_words_error(e, all[i]));
    return error;
}

/* Scores differ in the last bits, so experts are compared where logits are ranked, and where the
 * scores are far apart. */
static double run_route(op_env *e, uint32_t seed)
{
    static const uint32_t sizes[][3] = {
        {1, 128, 8},   {5, 128, 8},  {33, 128, 8},   {128, 128, 8},  {129, 128, 8}, {700, 128, 8},
        {1, 1, 1},     {70, 3, 3},   {9, 1024, 32},  {300, 1024, 8}, {64, 257, 4},  {4096, 128, 8},
        {2100, 60, 4}, {17, 33, 32}, {130, 512, 10}, {1000, 8, 2},   {3, 31, 1},    {150, 2, 1},
    };
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    const uint32_t *z = sizes[seed % N_SIZES];
    const routing how = (routing)(seed / N_SIZES % N_ROUTINGS);
    const layer_shape g = {z[0], z[1], z[2], 8, 8, how};
    layer l = new_layer(e, g, how == ROUTING_NAN ? 2 : seed % 2 ? 0 : 2);
    const cn_route_args cpu = route_of(&l, false), cuda = route_of(&l, true);
    OP_RUN_BOTH(e, route, &cpu, &cuda);
    double error = words_error(e, &l);
    if (error == 0 && how != ROUTING_NAN) error = op_error(e, &l.weights);
    free_layer(e, &l);
    return error;
}

/* Sigmoid and biases. The GPU's scores differ in the last bits, which changes no drawn choice. */
static double run_route_scores(op_env *e, uint32_t seed)
{
    const layer_shape g = {op_between(e, 1, 300), op_between(e, 4, 200), op_between(e, 1, 4), 8, 8,
                           ROUTING_RANDOM};
    layer l = new_layer(e, g, seed | (seed % 2 ? 0 : 8));
    const cn_route_args cpu = route_of(&l, false), cuda = route_of(&l, true);
    OP_RUN_BOTH(e, route, &cpu, &cuda);
    const double error = fmax(words_error(e, &l), op_error(e, &l.weights));
    free_layer(e, &l);
    return error;
}

/* Groups of experts: by their best expert or their two best, with and without biases; groups that
 * end between the lanes of a warp, many of them, and of one expert. */
static double run_route_groups(op_env *e, uint32_t seed)
{
    static const struct {
        uint32_t groups, each, used_groups, used;
    } all[] = {{8, 32, 4, 8}, {8, 20, 3, 6}, {64, 3, 40, 32}, {2, 1, 1, 1},
               {33, 7, 5, 3}, {3, 5, 2, 7},  {4, 256, 3, 8},  {16, 1, 9, 4}};
    enum { N_GROUPS = sizeof all / sizeof *all };
    const uint32_t i = seed % N_GROUPS;
    const layer_shape g = {op_between(e, 1, 60), all[i].groups * all[i].each, all[i].used, 8, 8,
                           ROUTING_RANDOM};
    layer l = new_layer(e, g, seed / N_GROUPS);
    l.router.n_groups = all[i].groups;
    l.router.n_used_groups = all[i].used_groups;
    l.router.group_best = 1 + seed / N_GROUPS / 2 % 2;
    l.has_bias = seed / N_GROUPS / 4 % 2;
    const cn_route_args cpu = route_of(&l, false), cuda = route_of(&l, true);
    OP_RUN_BOTH(e, route, &cpu, &cuda);
    const double error = fmax(words_error(e, &l), op_error(e, &l.weights));
    OP_SHAPE(e, "T=%u E=%u in %u, k=%u in %u, best %u, score %d%s", g.t, g.e, all[i].groups, g.k,
             all[i].used_groups, l.router.group_best, (int)l.router.score,
             l.has_bias ? ", bias" : "");
    free_layer(e, &l);
    return error;
}

/* ---- a layer against the CPU ---- */

static double layer_error(op_env *e, layer_shape g, uint32_t seed)
{
    layer l = new_layer(e, g, seed);
    l.has_bias = false; /* so that both sides choose the same experts */
    l.router.score = CN_ROUTE_SOFTMAX;
    l.router.normalized = true;
    enqueue_layer(e, &l, false);
    enqueue_layer(e, &l, true);
    op_sync(e);
    double error = words_error(e, &l);
    error = fmax(error, op_error(e, &l.pair_act));
    error = fmax(error, op_error(e, &l.pair_out));
    error = fmax(error, op_error(e, &l.out));
    free_layer(e, &l);
    return error;
}

/* Every kernel by its number of tokens, ragged sizes, widths that are not whole tiles. */
static double run_layer(op_env *e, uint32_t seed)
{
    static const layer_shape fixed[] = {
        {1, 8, 2, 256, 128, ROUTING_RANDOM},    {1, 4, 4, 64, 64, ROUTING_RANDOM},
        {7, 16, 4, 512, 192, ROUTING_RANDOM},   {40, 16, 4, 320, 64, ROUTING_RANDOM},
        {100, 8, 2, 256, 128, ROUTING_RANDOM},  {150, 4, 1, 128, 128, ROUTING_ONE},
        {300, 4, 2, 128, 256, ROUTING_ONE},     {64, 32, 8, 192, 64, ROUTING_FEW},
        {700, 8, 2, 128, 64, ROUTING_FEW},      {600, 4, 2, 64, 128, ROUTING_RANDOM},
        {513, 2, 1, 448, 72, ROUTING_RANDOM},   {90, 6, 2, 144, 64, ROUTING_RANDOM},
        {33, 5, 3, 64, 136, ROUTING_RANDOM},    {12, 128, 8, 256, 128, ROUTING_RANDOM},
        {256, 128, 8, 128, 64, ROUTING_RANDOM}, {1000, 16, 8, 64, 64, ROUTING_EQUAL},
        {8, 8, 2, 2048, 768, ROUTING_RANDOM},   {1, 8, 8, 2048, 768, ROUTING_RANDOM},
    };
    enum { N_FIXED = sizeof fixed / sizeof *fixed };
    if (seed < N_FIXED) return layer_error(e, fixed[seed], seed);
    const layer_shape g = {op_some_rows(e),          op_between(e, 4, 20),
                           op_between(e, 1, 4),      64 * op_between(e, 1, 8),
                           64 * op_between(e, 1, 4), (routing)op_between(e, 0, ROUTING_FEW)};
    return layer_error(e, g, seed);
}

/* Widths that only the kernel for any GPU supports. */
static double run_layer_any(op_env *e, uint32_t seed)
{
    static const layer_shape fixed[] = {
        {1, 3, 1, 8, 8, ROUTING_RANDOM},   {9, 4, 2, 24, 40, ROUTING_RANDOM},
        {70, 5, 2, 136, 104, ROUTING_ONE}, {150, 4, 1, 72, 200, ROUTING_ONE},
        {40, 12, 3, 264, 56, ROUTING_FEW}, {2, 1, 1, 1032, 88, ROUTING_RANDOM},
    };
    enum { N_FIXED = sizeof fixed / sizeof *fixed };
    if (seed < N_FIXED) return layer_error(e, fixed[seed], seed);
    const layer_shape g = {op_some_rows(e),          op_between(e, 4, 20),
                           op_between(e, 1, 4),      8 * op_between(e, 1, 40),
                           8 * op_between(e, 1, 40), (routing)op_between(e, 0, ROUTING_FEW)};
    return layer_error(e, g, seed);
}

/* ---- sums written here ---- */

/* out of a token by its definition, in f64, with activations rounded to bf16 as the ops store
 * them. */
static double run_plain_sums(op_env *e, uint32_t seed)
{
    const layer_shape g = {seed ? 40 : 1, 5, 2, 64, 64, seed % 2 ? ROUTING_ONE : ROUTING_RANDOM};
    layer l = new_layer(e, g, 2);
    enqueue_layer(e, &l, true);
    op_sync(e);
    const float *x = l.x.cpu, *up = l.gate_up.cpu, *down = l.down.cpu, *logits = l.logits.cpu;
    float *want = cn_calloc((size_t)g.t * g.h, sizeof *want);
    float *got = cn_calloc((size_t)g.t * g.h, sizeof *got);
    for (uint32_t t = 0; t < g.t; t++) {
        uint32_t best[2] = {0, 1};
        const float *row = logits + (size_t)t * g.e;
        if (row[1] > row[0]) best[0] = 1, best[1] = 0;
        for (uint32_t n = 2; n < g.e; n++) {
            if (row[n] > row[best[0]])
                best[1] = best[0], best[0] = n;
            else if (row[n] > row[best[1]])
                best[1] = n;
        }
        const double first = 1 / (1 + exp((double)row[best[1]] - row[best[0]]));
        for (uint32_t j = 0; j < 2; j++) {
            double act[64];
            for (uint32_t i = 0; i < g.i; i++) {
                double a = 0, b = 0;
                for (uint32_t c = 0; c < g.h; c++) {
                    const size_t at = ((size_t)best[j] * 2 * g.i + i) * g.h + c;
                    a += (double)x[t * g.h + c] * up[at];
                    b += (double)x[t * g.h + c] * up[at + (size_t)g.i * g.h];
                }
                act[i] = a / (1 + exp(-a)) * b;
            }
            for (uint32_t c = 0; c < g.h; c++) {
                double sum = 0;
                for (uint32_t i = 0; i < g.i; i++)
                    sum += act[i] * down[((size_t)best[j] * g.h + c) * g.i + i];
                want[t * g.h + c] += (float)((j ? 1 - first : first) * sum);
            }
        }
    }
    op_read(e, &l.out, got);
    const double error = op_error_of(got, want, (size_t)g.t * g.h);
    cn_free(got);
    cn_free(want);
    free_layer(e, &l);
    return error;
}

/* ---- graphs ---- */

/* A recorded layer follows the logits of each launch: other experts, other counts. */
static double run_graph(op_env *e, uint32_t seed)
{
    enum { LAUNCHES = 4 };
    const layer_shape g = {seed ? 200 : 16, 16, 4, 256, 128, ROUTING_RANDOM};
    layer l = new_layer(e, g, 2);
    cn_graph *graph = NULL;
    double error = 0;
    l.adds = false;
    enqueue_layer(e, &l, true);
    OP_OK(e->cuda->graph_begin(e->cuda_stream));
    enqueue_layer(e, &l, true);
    OP_OK(e->cuda->graph_end(e->cuda_stream, &graph));
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        const layer_shape other = {g.t, g.e, g.k, g.h, g.i, (routing)(i % ROUTING_EQUAL)};
        op_tensor logits = new_logits(e, &other);
        memcpy(l.logits.cpu, logits.cpu, logits.n * sizeof(float));
        op_send(e, &l.logits);
        OP_OK(e->cuda->graph_launch(e->cuda_stream, graph));
        enqueue_layer(e, &l, false);
        op_sync(e);
        error = fmax(error, fmax(words_error(e, &l), op_error(e, &l.out)));
        op_tensor_free(e, &logits);
    }
    e->cuda->graph_free(graph);
    free_layer(e, &l);
    return error;
}

/* ---- a token's bits ---- */

/* A token alone, and in batches of all sizes whose other tokens take the same experts, must have
 * the same bits. */
static double run_invariant(op_env *e, uint32_t seed)
{
    static const uint32_t sizes[] = {1, 2, 7, 16, 40, 100, 130, 300, 600};
    const layer_shape g = {
        600, 4, 2, seed ? 512 : 136, seed ? 192 : 72, seed % 2 ? ROUTING_ONE : ROUTING_RANDOM};
    layer l = new_layer(e, g, 2);
    l.adds = false;
    const size_t n = (size_t)g.t * g.h;
    float *all = cn_calloc(n, sizeof *all), *got = cn_calloc(n, sizeof *got);
    double error = 0;
    enqueue_layer(e, &l, true);
    op_read(e, &l.out, all);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        layer part = l;
        const uint32_t first = sizes[i] == g.t ? 0 : op_between(e, 0, g.t - sizes[i]);
        part.g.t = sizes[i];
        part.x.cuda = (uint16_t *)l.x.cuda + (size_t)first * g.h;
        part.logits.cuda = (float *)l.logits.cuda + (size_t)first * g.e;
        enqueue_layer(e, &part, true);
        op_read(e, &l.out, got);
        if (memcmp(got, all + (size_t)first * g.h, (size_t)sizes[i] * g.h * sizeof *got) != 0)
            error = INFINITY;
    }
    cn_free(got);
    cn_free(all);
    free_layer(e, &l);
    return error;
}

/* ---- what is refused ---- */

static double run_refused(op_env *e, uint32_t seed)
{
    const layer_shape g = {2, 4, 2, 64, 64, ROUTING_RANDOM};
    layer l = new_layer(e, g, 2);
    cn_route_args route = route_of(&l, true);
    cn_expert_gate_up_args gate_up = gate_up_of(&l, true);
    cn_expert_sum_args sum = sum_of(&l, true);
    route.router.n_used = 5;
    cn_route_args groups = route_of(&l, true);
    groups.router.n_groups = 3;
    groups.router.n_used_groups = 1;
    gate_up.k = 60;
    sum.n = 60;
    (void)seed;
    const bool refused = e->cuda->route(e->cuda_stream, &route) == CN_ERR_SHAPE &&
                         e->cuda->route(e->cuda_stream, &groups) == CN_ERR_SHAPE &&
                         e->cuda->expert_gate_up(e->cuda_stream, &gate_up) == CN_ERR_SHAPE &&
                         e->cuda->expert_sum(e->cuda_stream, &sum) == CN_ERR_SHAPE;
    free_layer(e, &l);
    return refused ? 0 : INFINITY;
}

#define WITH_TILE(t, r, b) .experts = {t, r, b}
static const op_case cases[] = {
    {"route", 90, 1e-5, run_route, .gemm = CN_CUDA_GEMM_FASTEST},
    {"route, scores", 24, 1e-4, run_route_scores, .gemm = CN_CUDA_GEMM_FASTEST},
    {"route, groups", 64, 1e-4, run_route_groups, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts", 40, 1e-2, run_layer, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts, any", 24, 1e-2, run_layer_any, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts, plain sums", 4, 2e-2, run_plain_sums, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts, graph", 2, 1e-2, run_graph, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts, refused", 1, 0, run_refused, .gemm = CN_CUDA_GEMM_FASTEST},
    {"experts, 8 x 64", 24, 1e-2, run_layer, WITH_TILE(8, 64, 2)},
    {"experts, 16 x 64", 24, 1e-2, run_layer, WITH_TILE(16, 64, 2)},
    {"experts, 32 x 64", 24, 1e-2, run_layer, WITH_TILE(32, 64, 1)},
    {"experts, 64 x 64", 24, 1e-2, run_layer, WITH_TILE(64, 64, 2)},
    {"experts, 96 x 64", 24, 1e-2, run_layer, WITH_TILE(96, 64, 2)},
    {"experts, 8 x 128", 24, 1e-2, run_layer, WITH_TILE(8, 128, 1)},
    {"experts, 32 x 128", 24, 1e-2, run_layer, WITH_TILE(32, 128, 2)},
    {"experts, 64 x 128", 24, 1e-2, run_layer, WITH_TILE(64, 128, 1)},
    {"experts, 128 x 128", 24, 1e-2, run_layer, WITH_TILE(128, 128, 1)},
    {"experts, 176 x 128", 24, 1e-2, run_layer, WITH_TILE(176, 128, 1)},
    {"experts, 256 x 128", 24, 1e-2, run_layer, WITH_TILE(256, 128, 1)},
    {"experts, portable", 24, 1e-2, run_layer, .portable = true},
    {"experts, invariant", 3, 0, run_invariant, .batch_invariant = true},
    {"experts, portable, invariant", 3, 0, run_invariant, .batch_invariant = true,
     .portable = true},
};

int main(int argc, char **argv)
{
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
