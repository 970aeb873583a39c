/* cpu_gemm.c - out = x * weight^T (+ bias) by OpenBLAS. The shape of the calls does not depend on
 * the batch, so the bits of a row never do.
 *
 * A BLAS chooses its kernel, and so the order of a row's sums, by the shape of the call. The shapes
 * of the calls are therefore a function of N and K alone:
 *   columns  in panels of PANEL,
 *   k        in chunks of CHUNK, added up in order,
 *   rows     in tiles of one height. The last rows of a batch use a lower tile only if a probe has
 *            shown that this changes no bit; otherwise zero rows fill up the tile.
 * Two properties then depend on the library: each row of a tile is summed like every other row of
 * the tile, and like a row of a lower tile. Both are tested, not assumed. A brick is a shape of
 * columns x k. Before it is first used, probe_brick puts one row at every place of every tile
 * height and compares the results bit by bit. The full tile of the brick is the highest tile whose
 * rows are all equal; for height 1 this is always true. Lower tiles are used if they equal the full
 * one.
 *
 * If OpenBLAS has kernels for small matrices (AVX-512), tiles of 8 rows are fastest, because these
 * kernels do not pack the weights. Packing would dominate at decode batches. On other CPUs the
 * product is transposed, weight * x^T, which puts rows in the lanes of a vector. On AVX2 the rows
 * of a tile of 16 are then equal. OpenBLAS uses one thread per call; our pool runs the panels in
 * parallel. */
#include <cblas.h>
#include <float.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "engine/cpu/cpu_ops.h"
#include "paged/kv_fp8.h"

enum {
    PANEL = 64,
    CHUNK = 1024, /* 8 * PANEL * CHUNK multiplications still use the small-matrix kernels */
    MAX_TILE = 64,
    MAX_HEIGHTS = 8,
    PROBE_SUMS = 512,
    STREAM_THREADS = 2,     /* of a model and of its events: they multiply beside the pool */
    MIN_TASK_MULS = 1 << 17 /* with less work a task costs more to start than it saves */
};

typedef struct gemm_scratch {
    float x[MAX_TILE * CHUNK];   /* rows padded to a tile */
    float out[MAX_TILE * PANEL]; /* a tile that cannot be written in place */
    float weight[PANEL * CHUNK]; /* a brick of an FP8 matrix, as f32 */
} gemm_scratch;

struct cn_cpu_gemm {
    bool rows_in_lanes;            /* weight * x^T: the output of a tile is [cols, height] */
    uint32_t heights[MAX_HEIGHTS]; /* tile heights to try, descending, the last is 1 */
    uint32_t n_heights;
    /* [columns][k]: bit i is set if heights[i] may be used; the lowest set bit is the full tile. 0:
     * not probed yet. */
    uint16_t usable[PANEL + 1][CHUNK + 1];
    pthread_mutex_t probe_mutex;
    float probe_weight[PANEL * CHUNK], probe_x[MAX_TILE * CHUNK];
    float probe_out[MAX_TILE * PANEL], probe_want[PANEL];
    gemm_scratch *scratch; /* [n_workers] */
};

static bool has_small_matrix_kernels(void)
{
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (strcmp(openblas_get_corename(), cores[i]) == 0) return true;
    return false;
}

/* xorshift in [-1, 1). Any numbers are suitable if their sums are rounded. */
static void fill_random(float *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        p[i] = (float)(int32_t)seed * 0x1p-31f;
    }
}

/* OpenBLAS has these functions, and not every library of its interface. */
extern void *blas_memory_alloc(int place) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

/* A product takes a buffer of OpenBLAS, which tries forever when there is no memory for a new one.
 * Makes all that n threads can need, if there is memory for them. */
static cn_status make_buffers(uint32_t n)
{
    enum { MAX_BUFFERS = 64 };
    static const size_t buffer_bytes = (128 << 20) + (64 << 10);
    static atomic_bool made;
    void *buffers[MAX_BUFFERS];
    n = cn_min_u32(n, MAX_BUFFERS);
    if (!blas_memory_alloc || !blas_memory_free || atomic_exchange(&made, true)) return CN_OK;
    void *room =
        mmap(NULL, n * buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        atomic_store(&made, false);
        return cn_fail(CN_ERR_MEMORY,
                       "no address space for the buffers of matrix products in %u threads, %zu MiB "
                       "(raise ulimit -v, or lower --threads)",
                       n, n * buffer_bytes >> 20);
    }
    munmap(room, n * buffer_bytes);
    for (uint32_t i = 0; i < n; i++) buffers[i] = blas_memory_alloc(0);
    for (uint32_t i = 0; i < n; i++) blas_memory_free(buffers[i]);
    return CN_OK;
}

cn_status cn_cpu_gemm_create(cn_cpu_gemm **out, uint32_t n_workers)
{
    static const uint32_t low[] = {8, 7, 6, 5, 4, 3, 2, 1}, high[] = {64, 32, 16, 8, 4, 2, 1};
    cn_cpu_gemm *g = cn_calloc_aligned(1, sizeof *g);
    *out = g;
    if (!g) return cn_fail(CN_ERR_MEMORY, "gemm: out of memory");
    pthread_mutex_init(&g->probe_mutex, NULL);
    g->scratch = cn_calloc_aligned(n_workers, sizeof *g->scratch);
    if (!g->scratch) {
        cn_cpu_gemm_free(g);
        *out = NULL;
        return cn_fail(CN_ERR_MEMORY, "gemm: out of memory for %u threads; use fewer", n_workers);
    }
    bool small = has_small_matrix_kernels();
    g->rows_in_lanes = !small;
    g->n_heights = small ? sizeof low / sizeof *low : sizeof high / sizeof *high;
    memcpy(g->heights, small ? low : high, g->n_heights * sizeof *g->heights);
    openblas_set_num_threads(1);
    fill_random(g->probe_weight, PANEL * CHUNK, 0x9e3779b9);
    /* Small products take no buffer. */
    cn_status status =
        small ? CN_OK : make_buffers(n_workers - CN_CPU_MAX_STREAMS + STREAM_THREADS - 1);
    if (status == CN_OK) return CN_OK;
    cn_cpu_gemm_free(g);
    *out = NULL;
    return status;
}

void cn_cpu_gemm_free(cn_cpu_gemm *g)
{
    if (!g) return;
    pthread_mutex_destroy(&g->probe_mutex);
    cn_free(g->scratch);
    cn_free(g);
}

/* ---- one brick: rows x columns x k ---- */

/* Computes a tile of `rows` in the orientation of the gemm: out[rows, cols], or out[cols, rows] if
 * rows_in_lanes. */
static void call_blas(const cn_cpu_gemm *g, const float *x, size_t x_stride, const float *weight,
                      size_t weight_stride, float *out, size_t out_stride, uint32_t rows,
                      uint32_t cols, uint32_t k, bool accumulate)
{
    float beta = accumulate ? 1.0f : 0.0f;
    if (g->rows_in_lanes)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)cols, (blasint)rows,
                    (blasint)k, 1.0f, weight, (blasint)weight_stride, x, (blasint)x_stride, beta,
                    out, (blasint)out_stride);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)cols,
                    (blasint)k, 1.0f, x, (blasint)x_stride, weight, (blasint)weight_stride, beta,
                    out, (blasint)out_stride);
}

/* A tile in scratch memory has no gaps between its rows. */
static size_t aside_stride(const cn_cpu_gemm *g, uint32_t rows, uint32_t cols)
{
    return g->rows_in_lanes ? rows : cols;
}

static size_t aside_elem(const cn_cpu_gemm *g, uint32_t row, uint32_t col, uint32_t rows,
                         uint32_t cols)
{
    return g->rows_in_lanes ? (size_t)col * rows + row : (size_t)row * cols + col;
}

/* Computes a tile of `height` equal rows, first overwriting and then accumulating. */
static void probe_tile(cn_cpu_gemm *g, uint32_t height, uint32_t cols, uint32_t k)
{
    size_t stride = aside_stride(g, height, cols);
    for (int accumulate = 0; accumulate <= 1; accumulate++)
        call_blas(g, g->probe_x, k, g->probe_weight, k, g->probe_out, stride, height, cols, k,
                  accumulate);
}

/* Returns true when all rows of probe_out equal probe_want. */
static bool rows_are_alike(const cn_cpu_gemm *g, uint32_t height, uint32_t cols)
{
    for (uint32_t r = 0; r < height; r++)
        for (uint32_t c = 0; c < cols; c++) {
            float got = g->probe_out[aside_elem(g, r, c, height, cols)];
            if (memcmp(&got, &g->probe_want[c], sizeof got) != 0) return false;
        }
    return true;
}

static void draw_probe_row(cn_cpu_gemm *g, uint32_t k, uint32_t trial)
{
    fill_random(g->probe_x, k, 0x2545f491 + trial);
    for (uint32_t r = 1; r < g->heights[0]; r++)
        memcpy(g->probe_x + (size_t)r * k, g->probe_x, k * sizeof(float));
}

/* Returns those heights of `among` whose rows all equal the first row of the tile heights[full].
 * Two orders of one sum often round to the same bits, so at least PROBE_SUMS sums are compared at
 * each place. */
static uint16_t probe_heights(cn_cpu_gemm *g, uint32_t full, uint16_t among, uint32_t cols,
                              uint32_t k)
{
    for (uint32_t trial = 0; trial * cols < PROBE_SUMS; trial++) {
        draw_probe_row(g, k, trial);
        probe_tile(g, g->heights[full], cols, k);
        for (uint32_t c = 0; c < cols; c++)
            g->probe_want[c] = g->probe_out[aside_elem(g, 0, c, g->heights[full], cols)];
        for (uint32_t i = full; i < g->n_heights; i++) {
            if (!(among >> i & 1)) continue;
            probe_tile(g, g->heights[i], cols, k);
            if (!rows_are_alike(g, g->heights[i], cols)) among &= (uint16_t) ~(1u << i);
        }
    }
    return among;
}

static void probe_brick(cn_cpu_gemm *g, uint32_t cols, uint32_t k)
{
    if (g->usable[cols][k]) return;
    uint32_t full = 0;
    while (full + 1 < g->n_heights && !probe_heights(g, full, (uint16_t)(1u << full), cols, k))
        full++;
    uint16_t lower = (uint16_t)((1u << g->n_heights) - (1u << full));
    g->usable[cols][k] = (uint16_t)(1u << full | probe_heights(g, full, lower, cols, k));
}

static uint32_t full_height(const cn_cpu_gemm *g, uint32_t cols, uint32_t k)
{
    return g->heights[__builtin_ctz(g->usable[cols][k])];
}

/* Returns the height of the lowest usable tile that has room for `rows`. */
static uint32_t usable_height(const cn_cpu_gemm *g, uint32_t rows, uint32_t cols, uint32_t k)
{
    uint32_t best = full_height(g, cols, k);
    for (uint32_t i = 0; i < g->n_heights; i++)
        if (g->heights[i] >= rows && (g->usable[cols][k] >> i & 1)) best = g->heights[i];
    return best;
}

/* Rows [row, row + rows) and columns [col, col + cols), one chunk of k. */
typedef struct brick {
    uint32_t row, rows, col, cols, k0, k;
    const float *weight; /* [cols, k] */
    size_t weight_stride;
} brick;

/* The product of an FP8 matrix has the bits of one with the same values in f32. */
static void read_fp8_brick(const cn_gemm_args *a, brick *b, float *room)
{
    const cn_matrix *w = &a->weight;
    const size_t scale_cols = cn_ceil_div(a->k, w->scale_k);
    b->weight = room;
    b->weight_stride = b->k;
    for (uint32_t c = 0; c < b->cols; c++, room += b->k) {
        const size_t n = b->col + c;
        const uint8_t *codes = (const uint8_t *)w->data + n * w->stride + b->k0;
        const float *scales = w->scales + n / w->scale_n * scale_cols;
        for (uint32_t first = 0; first < b->k;) {
            const uint32_t at = b->k0 + first;
            const uint32_t end = cn_min_u32(b->k, (at / w->scale_k + 1) * w->scale_k - b->k0);
            const float scale = scales[at / w->scale_k];
#pragma omp simd
            for (uint32_t i = first; i < end; i++) room[i] = cn_fp8_value(codes[i]) * scale;
            first = end;
        }
    }
}

static void read_brick(const cn_gemm_args *a, brick *b, gemm_scratch *scratch)
{
    if (a->weight.form == CN_MATRIX_FP8) {
        read_fp8_brick(a, b, scratch->weight);
        return;
    }
    b->weight = (const float *)a->weight.data + (size_t)b->col * a->k + b->k0;
    b->weight_stride = a->k;
}

static size_t out_row_elems(const cn_gemm_args *a) { return a->out_stride ? a->out_stride : a->n; }

/* Computes a brick that has at most as many rows as a full tile. */
static void run_tile(const cn_cpu_gemm *g, const cn_gemm_args *a, const brick *b,
                     gemm_scratch *scratch)
{
    const float *x = (const float *)a->x + (size_t)b->row * a->k + b->k0;
    const size_t stride = out_row_elems(a);
    float *out = (float *)a->out + b->row * stride + b->col;
    size_t x_stride = a->k;
    uint32_t height = usable_height(g, b->rows, b->cols, b->k);
    bool accumulate = b->k0 > 0;
    if (height == b->rows && !g->rows_in_lanes) {
        call_blas(g, x, x_stride, b->weight, b->weight_stride, out, stride, height, b->cols, b->k,
                  accumulate);
        return;
    }
    if (height > b->rows) {
        memset(scratch->x, 0, (size_t)height * b->k * sizeof(float));
        for (uint32_t r = 0; r < b->rows; r++)
            memcpy(scratch->x + (size_t)r * b->k, x + r * x_stride, b->k * sizeof(float));
        x = scratch->x;
        x_stride = b->k;
    }
    for (uint32_t r = 0; accumulate && r < b->rows; r++)
        for (uint32_t c = 0; c < b->cols; c++)
            scratch->out[aside_elem(g, r, c, height, b->cols)] = out[r * stride + c];
    call_blas(g, x, x_stride, b->weight, b->weight_stride, scratch->out,
              aside_stride(g, height, b->cols), height, b->cols, b->k, accumulate);
    for (uint32_t r = 0; r < b->rows; r++)
        for (uint32_t c = 0; c < b->cols; c++)
            out[r * stride + c] = scratch->out[aside_elem(g, r, c, height, b->cols)];
}

static void run_brick(const cn_cpu_gemm *g, const cn_gemm_args *a, const brick *b,
                      gemm_scratch *scratch)
{
    uint32_t full = full_height(g, b->cols, b->k);
    for (uint32_t r = 0; r < b->rows; r += full) {
        brick tile = *b;
        tile.row += r;
        tile.rows = cn_min_u32(full, b->rows - r);
        run_tile(g, a, &tile, scratch);
    }
}

/* ---- the whole product ---- */

typedef struct gemm_job {
    cn_cpu_gemm *gemm;
    const cn_gemm_args *args;
    uint32_t panels_per_task, row_groups, tiles_per_group;
} gemm_job;

static void add_cpu_bias(const cn_gemm_args *a, uint32_t row, uint32_t rows, uint32_t col,
                         uint32_t cols)
{
    const float *bias = (const float *)a->bias + col;
    for (uint32_t r = row; r < row + rows; r++) {
        float *out = (float *)a->out + r * out_row_elems(a) + col;
        for (uint32_t c = 0; c < cols; c++) out[c] += bias[c];
    }
}

/* Computes a panel of columns for a group of row tiles. Each brick of weights stays in the cache
 * while all tiles use it. */
static void run_panel(const gemm_job *job, gemm_scratch *scratch, uint32_t col, uint32_t group)
{
    const cn_gemm_args *a = job->args;
    uint32_t cols = cn_min_u32(PANEL, a->n - col), tile = job->gemm->heights[0];
    uint32_t first = group * job->tiles_per_group * tile;
    uint32_t end = cn_min_u32(a->n_tokens, first + job->tiles_per_group * tile);
    brick b = {.row = first, .rows = end - first, .col = col, .cols = cols};
    for (b.k0 = 0; b.k0 < a->k; b.k0 += CHUNK) {
        b.k = cn_min_u32(CHUNK, a->k - b.k0);
        read_brick(a, &b, scratch);
        run_brick(job->gemm, a, &b, scratch);
    }
    if (a->bias && first < end) add_cpu_bias(a, first, end - first, col, cols);
}

static void run_cpu_task(void *ctx, uint32_t task, uint32_t worker)
{
    const gemm_job *job = ctx;
    uint32_t group = task % job->row_groups;
    uint32_t panel = task / job->row_groups * job->panels_per_task;
    for (uint32_t i = 0; i < job->panels_per_task && (panel + i) * PANEL < job->args->n; i++)
        run_panel(job, &job->gemm->scratch[worker], (panel + i) * PANEL, group);
}

/* Cuts the product into enough tasks for all threads to end at about the same time, none too small.
 * No bit of the result depends on the cut. Returns the number of tasks. */
static uint32_t cut_tasks(gemm_job *job, uint32_t n_threads)
{
    const cn_gemm_args *a = job->args;
    uint32_t n_panels = (uint32_t)cn_ceil_div(a->n, PANEL);
    uint32_t n_tiles = (uint32_t)cn_ceil_div(a->n_tokens, job->gemm->heights[0]);
    uint64_t panel_muls = (uint64_t)a->n_tokens * a->k * PANEL;
    job->panels_per_task = (uint32_t)cn_ceil_div(MIN_TASK_MULS, panel_muls + 1);
    uint32_t tasks = (uint32_t)cn_ceil_div(n_panels, job->panels_per_task);
    uint32_t groups = job->panels_per_task > 1 ? 1 : (uint32_t)cn_ceil_div(4 * n_threads, tasks);
    job->tiles_per_group = (uint32_t)cn_ceil_div(n_tiles, cn_min_u32(groups, n_tiles));
    job->row_groups = (uint32_t)cn_ceil_div(n_tiles, job->tiles_per_group);
    return tasks * job->row_groups;
}

/* ---- inputs in e4m3 ---- */

/* out[n] = x[n] rounded to e4m3 at a scale. */
static void round_span(float *out, const float *x, uint32_t n, float scale)
{
#pragma omp simd
    for (uint32_t i = 0; i < n; i++) out[i] = cn_fp8_value(cn_fp8_of(x[i] / scale)) * scale;
}

/* The same at the scale of the largest. Values that are not finite make the others NaN. */
static void round_by_largest(float *out, const float *x, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = cn_max_u32(most, cn_fp8_size(x[i]));
    const float scale = cn_fp8_bits_float(most) / CN_FP8_MAX;
    round_span(out, x, n, scale < FLT_MIN ? FLT_MIN : scale);
}

typedef struct round_job {
    const cn_matrix *weight;
    const float *x;
    float *out;
    uint32_t k;
} round_job;

static void round_row(void *ctx, uint32_t row, uint32_t worker)
{
    (void)worker;
    const round_job *job = ctx;
    const float *x = job->x + (size_t)row * job->k;
    float *out = job->out + (size_t)row * job->k;
    if (job->weight->x == CN_X_STATIC) {
        round_span(out, x, job->k, job->weight->x_scale);
        return;
    }
    const uint32_t span = job->weight->x == CN_X_BLOCKS ? CN_FP8_COLUMNS : job->k;
    for (uint32_t i = 0; i < job->k; i += span)
        round_by_largest(out + i, x + i, cn_min_u32(span, job->k - i));
}

const float *cn_cpu_gemm_round(cn_stream *s, const cn_matrix *weight, const float *x, float *room,
                               uint32_t n_tokens, uint32_t k)
{
    round_job job = {weight, x, room, k};
    if (weight->x == CN_X_PLAIN || n_tokens == 0 || k == 0) return x;
    CN_ASSERT(room);
    cn_cpu_parallel(s, n_tokens, round_row, &job);
    return room;
}

static cn_status multiply(cn_stream *s, const cn_gemm_args *a);

cn_status cn_cpu_gemm_run(cn_stream *s, const cn_gemm_args *a)
{
    cn_gemm_args rounded = *a;
    CN_ASSERT(!a->adds && !a->norms); /* this backend has no links_norm */
    rounded.x = cn_cpu_gemm_round(s, &a->weight, a->x, a->rounded, a->n_tokens, a->k);
    return multiply(s, &rounded);
}

static cn_status multiply(cn_stream *s, const cn_gemm_args *a)
{
    cn_cpu *cpu = cn_cpu_stream_owner(s);
    if (a->n == 0 || a->k == 0)
        return cn_fail(CN_ERR_SHAPE, "gemm: weight of shape [%u, %u]: expected both above 0", a->n,
                       a->k);
    if (a->n_tokens == 0) return CN_OK;
    pthread_mutex_lock(&cpu->gemm->probe_mutex);
    const uint32_t cols[] = {cn_min_u32(PANEL, a->n), a->n % PANEL};
    const uint32_t ks[] = {cn_min_u32(CHUNK, a->k), a->k % CHUNK};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (cols[i] && ks[j]) probe_brick(cpu->gemm, cols[i], ks[j]);
    pthread_mutex_unlock(&cpu->gemm->probe_mutex);
    gemm_job job = {.gemm = cpu->gemm, .args = a};
    uint32_t n_tasks = cut_tasks(&job, cn_cpu_pool_n_threads(cpu->pool));
    cn_cpu_parallel(s, n_tasks, run_cpu_task, &job);
    return CN_OK;
}
