/* test_op_gemm_cuda.c - the GPU's matrix products compared with the CPU's on random shapes: plain
 * and gated, two with a norm between them, recorded in a graph; batch invariance, and the timings
 * of products on disk. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/start/device_choice.h"
#include "tests/lib/op_cases.h"
#include "tests/lib/tensor_file.h"

/* ---- gemm ---- */

typedef struct gemm_shape {
    uint32_t t, n, k;
    bool bias, f32;
} gemm_shape;

/* out [t, n] = x [t, k] * weight^T */
static cn_gemm_args gemm_of(void *out, const void *x, const void *weight, uint32_t t, uint32_t n,
                            uint32_t k)
{
    return (cn_gemm_args){
        .out = out, .x = x, .weight = {.data = weight}, .n_tokens = t, .n = n, .k = k};
}

static cn_gemm_silu_mul_args gated_of(void *out, const void *x, const void *weight, void *gate_up,
                                      uint32_t t, uint32_t n, uint32_t k)
{
    return (cn_gemm_silu_mul_args){.out = out,
                                   .x = x,
                                   .weight = {.data = weight},
                                   .gate_up = gate_up,
                                   .n_tokens = t,
                                   .intermediate = n,
                                   .k = k};
}

static double gemm_error(op_env *e, gemm_shape g)
{
    OP_SHAPE(e, "T=%u N=%u K=%u%s%s", g.t, g.n, g.k, g.bias ? " bias" : "", g.f32 ? " f32" : "");
    op_tensor x = op_random(e, (size_t)g.t * g.k), weight = op_random(e, (size_t)g.n * g.k);
    op_tensor bias = op_random(e, g.n);
    op_tensor out = op_poison(e, (size_t)g.t * g.n, g.f32 ? CN_F32 : CN_BF16);
    cn_gemm_args cpu = gemm_of(out.cpu, x.cpu, weight.cpu, g.t, g.n, g.k);
    cn_gemm_args cuda = gemm_of(out.cuda, x.cuda, weight.cuda, g.t, g.n, g.k);
    cpu.out_f32 = cuda.out_f32 = g.f32;
    cpu.bias = g.bias ? bias.cpu : NULL;
    cuda.bias = g.bias ? bias.cuda : NULL;
    OP_RUN_BOTH(e, gemm, &cpu, &cuda);
    double error = op_error(e, &out);
    if (g.f32) error *= 100; /* f32 is not rounded to bf16: a tighter bound */
    op_tensor_free(e, &out);
    op_tensor_free(e, &bias);
    op_tensor_free(e, &weight);
    op_tensor_free(e, &x);
    return error;
}

/* Every batch size of the kernels for small batches, the edges of tiles, all divisions of K. */
static double run_gemm(op_env *e, uint32_t seed)
{
    static const gemm_shape fixed[] = {
        {1, 4096, 4096, false, false},  {8, 6144, 1024, true, false},
        {9, 64, 64, false, true},       {16, 65, 64, false, true},
        {32, 12288, 512, false, false}, {33, 1000, 2048, true, false},
        {64, 191, 192, false, false},   {65, 4096, 1536, false, false},
        {96, 129, 1088, false, true},   {128, 384, 4096, false, false},
        {129, 20011, 64, false, true},  {144, 256, 8, true, false},
        {168, 4096, 768, false, false}, {169, 333, 512, false, true},
        {192, 8192, 256, true, false},  {193, 130, 192, false, false},
        {255, 4096, 512, false, false}, {256, 640, 1024, true, false},
        {257, 264, 64, false, true},    {700, 264, 320, true, false},
        {1, 151936, 128, false, true},
    };
    if (seed < sizeof fixed / sizeof *fixed) return gemm_error(e, fixed[seed]);
    gemm_shape g = {
        .t = op_between(e, 1, 200), .n = op_between(e, 1, 3000), .k = 64 * op_between(e, 1, 24)};
    if (seed % 4 == 3) g.k += 8 * op_between(e, 1, 7); /* only the library supports this */
    g.f32 = op_coin(e);
    g.bias = !g.f32 && op_coin(e);
    return gemm_error(e, g);
}

static double run_gemm_silu_mul(op_env *e, uint32_t seed)
{
    static const uint32_t fixed[][3] = {{1, 12288, 4096},    {8, 96, 64},      {17, 104, 192},
                                        {64, 3072, 1024},    {128, 1000, 320}, {168, 640, 512},
                                        {192, 333 * 8, 128}, {256, 2048, 256}, {300, 256, 512}};
    const bool is_fixed = seed < sizeof fixed / sizeof *fixed;
    const uint32_t t = is_fixed ? fixed[seed][0] : op_between(e, 1, 260);
    const uint32_t n = is_fixed ? fixed[seed][1] : 8 * op_between(e, 1, 300);
    const uint32_t k = is_fixed ? fixed[seed][2] : 64 * op_between(e, 1, 24);
    OP_SHAPE(e, "T=%u I=%u K=%u", t, n, k);
    op_tensor x = op_random(e, (size_t)t * k), weight = op_random(e, (size_t)2 * n * k);
    op_tensor y = op_poison(e, (size_t)t * 2 * n, CN_BF16);
    op_tensor out = op_poison(e, (size_t)t * n, CN_BF16);
    const cn_gemm_args product = gemm_of(y.cpu, x.cpu, weight.cpu, t, 2 * n, k);
    const cn_silu_mul_args gate = {out.cpu, y.cpu, t, n};
    const cn_gemm_silu_mul_args fused = gated_of(out.cuda, x.cuda, weight.cuda, y.cuda, t, n, k);
    OP_OK(e->cpu->gemm(e->cpu_stream, &product));
    OP_OK(e->cpu->silu_mul(e->cpu_stream, &gate));
    OP_OK(e->cuda->gemm_silu_mul(e->cuda_stream, &fused));
    const double error = op_error(e, &out);
    op_tensor *const all[] = {&out, &y, &weight, &x};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    return error;
}

/* ---- the norm between two products ---- */

/* Two products with a norm between them: t rows, k -> h -> n columns. */
typedef struct link_shape {
    uint32_t t, k, h, n;
    bool bias, gated; /* gated: the second weight has 2 n rows */
} link_shape;

typedef struct link_tensors {
    op_tensor x, residual, norm, first, second, bias, branch, normed, squares, gate_up, out;
} link_tensors;

static void link_on_cpu(op_env *e, link_shape g, const link_tensors *t)
{
    const uint32_t n_rows = g.gated ? 2 * g.n : g.n;
    cn_gemm_args first = gemm_of(t->branch.cpu, t->x.cpu, t->first.cpu, g.t, g.h, g.k);
    void *product = g.gated ? t->gate_up.cpu : t->out.cpu;
    cn_gemm_args second = gemm_of(product, t->normed.cpu, t->second.cpu, g.t, n_rows, g.h);
    const cn_rmsnorm_args norm = {
        t->normed.cpu, t->residual.cpu, t->branch.cpu, t->norm.cpu, g.t, g.h, 1e-6f};
    const cn_silu_mul_args gate = {t->out.cpu, t->gate_up.cpu, g.t, g.n};
    if (g.bias) first.bias = t->bias.cpu;
    if (g.bias && !g.gated) second.bias = t->bias.cpu;
    OP_OK(e->cpu->gemm(e->cpu_stream, &first));
    OP_OK(e->cpu->rmsnorm(e->cpu_stream, &norm));
    OP_OK(e->cpu->gemm(e->cpu_stream, &second));
    if (g.gated) OP_OK(e->cpu->silu_mul(e->cpu_stream, &gate));
}

static void link_on_gpu(op_env *e, link_shape g, const link_tensors *t)
{
    const cn_norm_link link = {t->residual.cuda, t->normed.cuda, t->norm.cuda, t->squares.cuda,
                               1e-6f};
    cn_gemm_args first = gemm_of(NULL, t->x.cuda, t->first.cuda, g.t, g.h, g.k);
    cn_gemm_args second = gemm_of(t->out.cuda, t->normed.cuda, t->second.cuda, g.t, g.n, g.h);
    cn_gemm_silu_mul_args gated =
        gated_of(t->out.cuda, t->normed.cuda, t->second.cuda, t->gate_up.cuda, g.t, g.n, g.h);
    first.adds = &link;
    second.norms = gated.norms = &link;
    if (g.bias) first.bias = second.bias = t->bias.cuda;
    OP_OK(e->cuda->gemm(e->cuda_stream, &first));
    if (g.gated)
        OP_OK(e->cuda->gemm_silu_mul(e->cuda_stream, &gated));
    else
        OP_OK(e->cuda->gemm(e->cuda_stream, &second));
}

static double link_error(op_env *e, link_shape g)
{
    const uint32_t n_rows = g.gated ? 2 * g.n : g.n, widest = g.n > g.h ? g.n : g.h;
    OP_SHAPE(e, "T=%u K=%u h=%u N=%u%s%s", g.t, g.k, g.h, g.n, g.bias ? " bias" : "",
             g.gated ? " gated" : "");
    link_tensors t = {
        .x = op_random(e, (size_t)g.t * g.k),
        .residual = op_random(e, (size_t)g.t * g.h),
        .norm = op_random(e, g.h),
        .first = op_random(e, (size_t)g.h * g.k),
        .second = op_random(e, (size_t)n_rows * g.h),
        .bias = op_random(e, widest),
        .branch = op_poison(e, (size_t)g.t * g.h, CN_BF16),
        .normed = op_poison(e, (size_t)g.t * g.h, CN_BF16),
        .squares = op_poison(e, (size_t)g.t * g.h / CN_NORM_COLUMNS, CN_F32),
        .gate_up = op_poison(e, (size_t)g.t * n_rows, CN_BF16),
        .out = op_poison(e, (size_t)g.t * g.n, CN_BF16),
    };
    const cn_product_shape first = {g.h, g.k, g.bias, false};
    const cn_product_shape second = {n_rows, g.h, g.bias && !g.gated, g.gated};
    double error = INFINITY;
    if (e->cuda->links_norm(e->cuda, g.t, &first, &second)) {
        link_on_cpu(e, g, &t);
        link_on_gpu(e, g, &t);
        op_sync(e);
        error = fmax(op_error(e, &t.residual), op_error(e, &t.out));
    }
    op_tensor *const all[] = {&t.out,    &t.gate_up, &t.squares, &t.normed,   &t.branch, &t.bias,
                              &t.second, &t.first,   &t.norm,    &t.residual, &t.x};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    return error;
}

/* Every batch size of the kernels, the products of a layer of Qwen3-8B, ends of blocks. */
static double run_link(op_env *e, uint32_t seed)
{
    static const link_shape fixed[] = {
        {1, 4096, 4096, 12288, false, true},    {8, 12288, 4096, 6144, false, false},
        {9, 64, 256, 64, true, false},          {16, 128, 512, 8, false, true},
        {17, 192, 768, 1000, true, false},      {33, 1024, 1280, 96, true, true},
        {64, 4096, 4096, 3072, false, true},    {63, 256, 2048, 640, true, false},
        {32, 512, 1024, 333 * 8, false, true},  {48, 64, 256, 136, false, false},
        {49, 768, 4096, 512, true, true},       {2, 320, 768, 264, true, false},
        {64, 64, 1792, 328, false, true},       {47, 640, 1024, 768, true, false},
    };
    if (seed < sizeof fixed / sizeof *fixed) return link_error(e, fixed[seed]);
    const link_shape g = {.t = op_between(e, 1, 64),
                          .k = 64 * op_between(e, 1, 24),
                          .h = 256 * op_between(e, 1, 12),
                          .n = 8 * op_between(e, 1, 300),
                          .bias = op_coin(e),
                          .gated = op_coin(e)};
    return link_error(e, g);
}

/* Too many rows, columns that do not fit, and products of the library have no link. */
static double run_link_refused(op_env *e, uint32_t seed)
{
    static const uint32_t refused[][4] = {
        {65, 512, 512, 512}, {8, 512, 320, 512}, {8, 512, 248, 512}, {8, 72, 512, 512}};
    const uint32_t *g = refused[seed % 4];
    OP_SHAPE(e, "T=%u K=%u h=%u N=%u", g[0], g[1], g[2], g[3]);
    const cn_product_shape first = {.n = g[2], .k = g[1]}, second = {.n = g[3], .k = g[2]};
    return e->cuda->links_norm(e->cuda, g[0], &first, &second) ? INFINITY : 0;
}

static double run_link_library(op_env *e, uint32_t seed)
{
    const cn_product_shape first = {.n = 512, .k = 512}, second = {.n = 512, .k = 512};
    OP_SHAPE(e, "T=%u", 8 + seed);
    return e->cuda->links_norm(e->cuda, 8 + seed, &first, &second) ? INFINITY : 0;
}

/* A row alone and the same row in batches of all sizes must have the same bits. */
static double run_gemm_invariant(op_env *e, uint32_t seed)
{
    static const uint32_t shapes[][2] = {{4096, 4096}, {6144, 512}, {1000, 1536}, {136, 200}};
    static const uint32_t sizes[] = {1, 2, 7, 8, 16, 33, 64, 100, 128, 168, 257, 600};
    const uint32_t n = shapes[seed][0], k = shapes[seed][1], most = 600;
    OP_SHAPE(e, "N=%u K=%u, batches of 1 to %u", n, k, most);
    op_tensor x = op_random(e, (size_t)most * k), weight = op_random(e, (size_t)n * k);
    op_tensor out = op_poison(e, (size_t)most * n, CN_F32);
    float *want = cn_calloc((size_t)most * n, sizeof *want), *got = cn_calloc((size_t)most * n, 4);
    double error = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        cn_gemm_args a = gemm_of(out.cuda, x.cuda, weight.cuda, sizes[i], n, k);
        a.out_f32 = true;
        OP_OK(e->cuda->gemm(e->cuda_stream, &a));
        op_read(e, &out, got);
        if (i == 0) memcpy(want, got, n * sizeof *want); /* row 0 alone */
        if (memcmp(got, want, n * sizeof *want) != 0) error = INFINITY;
    }
    /* Each row of the largest batch was computed at its own place. Here it is alone at place 0. */
    memcpy(want, got, (size_t)most * n * sizeof *want);
    for (uint32_t row = 1; row < most; row += 61) {
        cn_gemm_args a =
            gemm_of(out.cuda, (uint16_t *)x.cuda + (size_t)row * k, weight.cuda, 1, n, k);
        a.out_f32 = true;
        OP_OK(e->cuda->gemm(e->cuda_stream, &a));
        op_read(e, &out, got);
        if (memcmp(got, want + (size_t)row * n, n * sizeof *want) != 0) error = INFINITY;
    }
    cn_free(got);
    cn_free(want);
    op_tensor_free(e, &out);
    op_tensor_free(e, &weight);
    op_tensor_free(e, &x);
    return error;
}

/* ---- timings on disk ---- */

static void open_timed(op_env *e, const char *dir)
{
    const cn_cuda_backend_opts o = {.memory_bytes = UINT64_C(2) << 30,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .head_dim = 64,
                                    .hidden = 256,
                                    .intermediate = 512,
                                    .vocab = 1000,
                                    .max_seqs = 16,
                                    .max_tokens = 48,
                                    .cache_dir = dir};
    cn_backend *be = NULL;
    OP_OK(cn_backend_cuda_load(&be, o));
    be->close(be);
    (void)e;
}

/* Returns the text of the only file of a directory (free it with cn_free), and its path. */
static char *only_file(const char *dir, char path[300])
{
    struct dirent **entries;
    const int n = scandir(dir, &entries, NULL, alphasort);
    assert_int_equal(n, 3); /* ., .., the file */
    snprintf(path, 300, "%s/%s", dir, entries[2]->d_name);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    FILE *f = fopen(path, "r");
    char *text = cn_calloc(1 << 20, 1);
    assert_true(f && text && fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    return text;
}

/* Products are timed once and then read from the file. They are timed again when it is
 * incomplete. */
static double run_gemm_cache(op_env *e, uint32_t seed)
{
    (void)seed;
    char parent[64], dir[80], path[300];
    make_folder(parent);
    snprintf(dir, sizeof dir, "%s/made", parent);
    OP_SHAPE(e, "timings in %s", dir);
    open_timed(e, dir);
    char *first = only_file(dir, path);
    open_timed(e, dir);
    char *second = only_file(dir, path);
    assert_string_equal(first, second);
    write_file(path, first, strlen(first) / 2);
    open_timed(e, dir);
    char *third = only_file(dir, path);
    assert_non_null(strstr(third, "\nend\n"));
    cn_free(third);
    cn_free(second);
    cn_free(first);
    remove_folder(dir);
    remove_folder(parent);
    return 0;
}

/* ---- graphs ---- */

/* A recorded chain of ops uses the contents of its inputs at each launch. */
static double run_graph(op_env *e, uint32_t seed)
{
    enum { T = 8, H = 512, N = 768, LAUNCHES = 3 };
    (void)seed;
    OP_SHAPE(e, "rmsnorm, gemm, silu_mul; %d launches", LAUNCHES);
    op_tensor weight = op_random(e, H), matrix = op_random(e, (size_t)N * H);
    op_tensor x = op_random(e, T * H), normed = op_poison(e, T * H, CN_BF16);
    op_tensor product = op_poison(e, T * N, CN_BF16), out = op_poison(e, T * N / 2, CN_BF16);
    const cn_rmsnorm_args norm = {normed.cuda, x.cuda, NULL, weight.cuda, T, H, 1e-6f};
    const cn_gemm_args gemm = gemm_of(product.cuda, normed.cuda, matrix.cuda, T, N, H);
    const cn_silu_mul_args silu = {out.cuda, product.cuda, T, N / 2};
    cn_graph *g = NULL;
    OP_OK(e->cuda->graph_begin(e->cuda_stream));
    OP_OK(e->cuda->rmsnorm(e->cuda_stream, &norm));
    OP_OK(e->cuda->gemm(e->cuda_stream, &gemm));
    OP_OK(e->cuda->silu_mul(e->cuda_stream, &silu));
    assert_int_equal(e->cuda->mem_write(e->cuda_stream, x.cuda, x.cpu, 4), CN_ERR_DEVICE);
    OP_OK(e->cuda->graph_end(e->cuda_stream, &g));
    double error = 0;
    for (int launch = 0; launch < LAUNCHES; launch++) {
        op_tensor fresh = op_random(e, T * H);
        uint16_t *halves = cn_calloc(T * H, sizeof *halves);
        OP_OK(e->cuda->mem_read(e->cuda_stream, halves, fresh.cuda, T * H * 2));
        OP_OK(e->cuda->stream_sync(e->cuda_stream));
        OP_OK(e->cuda->mem_write(e->cuda_stream, x.cuda, halves, T * H * 2));
        OP_OK(e->cuda->graph_launch(e->cuda_stream, g));
        const cn_rmsnorm_args cpu_norm = {normed.cpu, fresh.cpu, NULL, weight.cpu, T, H, 1e-6f};
        const cn_gemm_args cpu_gemm = gemm_of(product.cpu, normed.cpu, matrix.cpu, T, N, H);
        const cn_silu_mul_args cpu_silu = {out.cpu, product.cpu, T, N / 2};
        OP_OK(e->cpu->rmsnorm(e->cpu_stream, &cpu_norm));
        OP_OK(e->cpu->gemm(e->cpu_stream, &cpu_gemm));
        OP_OK(e->cpu->silu_mul(e->cpu_stream, &cpu_silu));
        error = fmax(error, op_error(e, &out));
        cn_free(halves);
        op_tensor_free(e, &fresh);
    }
    e->cuda->graph_free(g);
    op_tensor *const all[] = {&out, &product, &normed, &x, &matrix, &weight};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) op_tensor_free(e, all[i]);
    return error;
}

static const op_case cases[] = {
    {"gemm", 32, 4e-3, run_gemm, .gemm = CN_CUDA_GEMM_LIBRARY},
    {"gemm_silu_mul", 16, 2e-2, run_gemm_silu_mul, .gemm = CN_CUDA_GEMM_LIBRARY},
    {"graph", 2, 1e-2, run_graph, .gemm = CN_CUDA_GEMM_LIBRARY},
    {"gemm_own", 48, 4e-3, run_gemm, .gemm = CN_CUDA_GEMM_OWN},
    {"gemm_silu_mul_own", 24, 1e-2, run_gemm_silu_mul, .gemm = CN_CUDA_GEMM_OWN},
    {"graph_own", 2, 1e-2, run_graph, .gemm = CN_CUDA_GEMM_OWN},
    {"norm link", 40, 1e-2, run_link, .gemm = CN_CUDA_GEMM_OWN},
    {"norm link, refused", 4, 0, run_link_refused, .gemm = CN_CUDA_GEMM_OWN},
    {"norm link, library", 2, 0, run_link_library, .gemm = CN_CUDA_GEMM_LIBRARY},
    {"norm link, invariant", 2, 0, run_link_library, .gemm = CN_CUDA_GEMM_FASTEST,
     .batch_invariant = true},
    {"gemm_cache", 1, 0, run_gemm_cache, .gemm = CN_CUDA_GEMM_FASTEST},
    {"gemm_invariant", 4, 0, run_gemm_invariant, .gemm = CN_CUDA_GEMM_FASTEST,
     .batch_invariant = true},
};

int main(int argc, char **argv)
{
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
