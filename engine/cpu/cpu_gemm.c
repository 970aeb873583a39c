/* cpu_gemm.c - out = x * weight^T (+ bias) by OpenBLAS, cut so that a row's bits never depend on
 * the batch.
 *
 * A BLAS picks its kernel, and with it the order of a row's sums, by the shape of the call. So the
 * shapes of the calls are made a function of N and K alone:
 *   columns  in panels of PANEL,
 *   k        in chunks of CHUNK, added up in order,
 *   rows     in tiles of a fixed height H; a batch's last rows take a lower tile only where that
 *            was shown to change nothing, else the tile is filled up with zero rows.
 * What remains is the library's own doing: that a row of a tile is summed like every other row of
 * it, and like a row of a lower tile. That is not assumed: before a brick (columns x k) is first
 * used, one row is put at every place of every tile height and the results are compared bit by bit
 * (probe_brick). A height that fails is not used; should even the full tile fail, every row goes
 * alone, which needs no proof.
 *
 * Low tiles are also the fast choice where OpenBLAS has kernels for small matrices (AVX-512), which
 * skip the packing of the weights that would dominate at decode batches. Elsewhere tiles are high,
 * to pay for that packing. OpenBLAS runs one thread per call: panels are spread over our pool. */
#include <cblas.h>
#include <pthread.h>
#include <string.h>

#include "engine/cpu/cpu_ops.h"

enum {
    PANEL = 64,
    CHUNK = 1024, /* 8 * PANEL * CHUNK multiplications stay with the small-matrix kernels */
    MAX_TILE = 64,
    MAX_HEIGHTS = 8,
    PROBE_SUMS = 512,
    MIN_TASK_MULS = 1 << 17 /* less work does not pay for waking a thread */
};

typedef struct gemm_scratch {
    float x[MAX_TILE * CHUNK]; /* rows filled up to a tile */
    float out[MAX_TILE * PANEL];
} gemm_scratch;

struct cn_cpu_gemm {
    /* Tile heights from high to low; heights[0] is the full tile. */
    uint32_t heights[MAX_HEIGHTS], n_heights;
    /* [columns][k]: bit i says that heights[i] passed the probe; PROBED is set once it ran. */
    uint16_t safe[PANEL + 1][CHUNK + 1];
    pthread_mutex_t probe_mutex;
    float probe_weight[PANEL * CHUNK], probe_x[MAX_TILE * CHUNK];
    float probe_out[MAX_TILE * PANEL], probe_want[PANEL];
    gemm_scratch *scratch; /* [n_workers] */
};

static const uint16_t PROBED = 1 << 15;

static bool has_small_matrix_kernels(void)
{
    static const char *const cores[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (strcmp(openblas_get_corename(), cores[i]) == 0) return true;
    return false;
}

/* Any numbers do whose sums round: xorshift in [-1, 1). */
static void fill_random(float *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        p[i] = (float)(int32_t)seed * 0x1p-31f;
    }
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
        return cn_fail(CN_ERR_MEMORY, "gemm: out of memory for %u threads", n_workers);
    }
    bool small = has_small_matrix_kernels();
    g->n_heights = small ? sizeof low / sizeof *low : sizeof high / sizeof *high;
    memcpy(g->heights, small ? low : high, g->n_heights * sizeof *g->heights);
    openblas_set_num_threads(1);
    fill_random(g->probe_weight, PANEL * CHUNK, 0x9e3779b9);
    return CN_OK;
}

void cn_cpu_gemm_free(cn_cpu_gemm *g)
{
    if (!g) return;
    pthread_mutex_destroy(&g->probe_mutex);
    cn_free(g->scratch);
    cn_free(g);
}

/* ---- one brick: rows x columns x k ---- */

/* out[rows, cols] = (accumulate ? out : 0) + x[rows, k] * weight[cols, k]^T */
static void call_blas(const float *x, size_t x_stride, const float *weight, size_t weight_stride,
                      float *out, size_t out_stride, uint32_t rows, uint32_t cols, uint32_t k,
                      bool accumulate)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, (blasint)cols, (blasint)k,
                1.0f, x, (blasint)x_stride, weight, (blasint)weight_stride,
                accumulate ? 1.0f : 0.0f, out, (blasint)out_stride);
}

/* One row at every place of a tile of `height`, overwriting and then accumulating: do all places
 * hold probe_want? Sets probe_want first when `first`. */
static bool probe_height(cn_cpu_gemm *g, uint32_t height, uint32_t cols, uint32_t k, bool first)
{
    for (int accumulate = 0; accumulate <= 1; accumulate++)
        call_blas(g->probe_x, k, g->probe_weight, k, g->probe_out, cols, height, cols, k,
                  accumulate);
    if (first) memcpy(g->probe_want, g->probe_out, cols * sizeof(float));
    for (uint32_t r = 0; r < height; r++)
        if (memcmp(g->probe_out + (size_t)r * cols, g->probe_want, cols * sizeof(float)) != 0)
            return false;
    return true;
}

/* Two orders of one sum often round alike, so at least PROBE_SUMS sums are compared per place. */
static void probe_brick(cn_cpu_gemm *g, uint32_t cols, uint32_t k)
{
    if (g->safe[cols][k]) return;
    uint16_t failed = 0;
    for (uint32_t trial = 0; trial * cols < PROBE_SUMS; trial++) {
        fill_random(g->probe_x, k, 0x2545f491 + trial);
        for (uint32_t r = 1; r < g->heights[0]; r++)
            memcpy(g->probe_x + (size_t)r * k, g->probe_x, k * sizeof(float));
        for (uint32_t i = 0; i < g->n_heights; i++)
            if (!probe_height(g, g->heights[i], cols, k, i == 0)) failed |= (uint16_t)(1u << i);
    }
    g->safe[cols][k] = (uint16_t)(PROBED | (~failed & ((1u << g->n_heights) - 1)));
}

/* The lowest proven height that holds `rows`; 0 when not even the full tile is proven. */
static uint32_t proven_height(const cn_cpu_gemm *g, uint32_t rows, uint32_t cols, uint32_t k)
{
    uint16_t safe = g->safe[cols][k];
    if (!(safe & 1)) return 0;
    uint32_t best = g->heights[0];
    for (uint32_t i = 1; i < g->n_heights; i++)
        if (g->heights[i] >= rows && (safe >> i & 1)) best = g->heights[i];
    return best;
}

typedef struct gemm_job {
    cn_cpu_gemm *gemm;
    const cn_gemm_args *args;
    uint32_t panels_per_task, row_groups, tiles_per_group;
} gemm_job;

/* Up to a full tile of rows from `row`, one panel of columns, one chunk of k. */
static void run_brick(const gemm_job *job, gemm_scratch *scratch, uint32_t row, uint32_t rows,
                      uint32_t col, uint32_t cols, uint32_t k0, uint32_t k)
{
    const cn_gemm_args *a = job->args;
    const float *x = (const float *)a->x + (size_t)row * a->k + k0;
    const float *weight = (const float *)a->weight + (size_t)col * a->k + k0;
    float *out = (float *)a->out + (size_t)row * a->n + col;
    bool accumulate = k0 > 0;
    uint32_t height = proven_height(job->gemm, rows, cols, k);
    if (height == rows) {
        call_blas(x, a->k, weight, a->k, out, a->n, rows, cols, k, accumulate);
        return;
    }
    if (height == 0) {
        for (uint32_t r = 0; r < rows; r++)
            call_blas(x + (size_t)r * a->k, a->k, weight, a->k, out + (size_t)r * a->n, a->n, 1,
                      cols, k, accumulate);
        return;
    }
    memset(scratch->x, 0, (size_t)height * k * sizeof(float));
    for (uint32_t r = 0; r < rows; r++) {
        memcpy(scratch->x + (size_t)r * k, x + (size_t)r * a->k, k * sizeof(float));
        memcpy(scratch->out + (size_t)r * cols, out + (size_t)r * a->n, cols * sizeof(float));
    }
    call_blas(scratch->x, k, weight, a->k, scratch->out, cols, height, cols, k, accumulate);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(out + (size_t)r * a->n, scratch->out + (size_t)r * cols, cols * sizeof(float));
}

/* ---- the whole ---- */

static void add_bias(const cn_gemm_args *a, uint32_t row, uint32_t rows, uint32_t col,
                     uint32_t cols)
{
    const float *bias = (const float *)a->bias + col;
    for (uint32_t r = row; r < row + rows; r++) {
        float *out = (float *)a->out + (size_t)r * a->n + col;
        for (uint32_t c = 0; c < cols; c++) out[c] += bias[c];
    }
}

/* A panel times a group of row tiles: the panel stays in the cache meanwhile. */
static void run_panel(const gemm_job *job, gemm_scratch *scratch, uint32_t col, uint32_t group)
{
    const cn_gemm_args *a = job->args;
    uint32_t cols = cn_min_u32(PANEL, a->n - col), tile = job->gemm->heights[0];
    uint32_t first = group * job->tiles_per_group * tile;
    uint32_t end = cn_min_u32(a->n_tokens, first + job->tiles_per_group * tile);
    for (uint32_t k0 = 0; k0 < a->k; k0 += CHUNK)
        for (uint32_t row = first; row < end; row += tile)
            run_brick(job, scratch, row, cn_min_u32(tile, end - row), col, cols, k0,
                      cn_min_u32(CHUNK, a->k - k0));
    if (a->bias && first < end) add_bias(a, first, end - first, col, cols);
}

static void run_task(void *ctx, uint32_t task, uint32_t worker)
{
    const gemm_job *job = ctx;
    uint32_t group = task % job->row_groups;
    uint32_t panel = task / job->row_groups * job->panels_per_task;
    for (uint32_t i = 0; i < job->panels_per_task && (panel + i) * PANEL < job->args->n; i++)
        run_panel(job, &job->gemm->scratch[worker], (panel + i) * PANEL, group);
}

/* Enough tasks for all threads to end together, none too small. No bit depends on the cut. */
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

cn_status cn_cpu_gemm_run(cn_stream *s, const cn_gemm_args *a)
{
    cn_cpu *cpu = cn_cpu_stream_owner(s);
    if (a->n == 0 || a->k == 0)
        return cn_fail(CN_ERR_SHAPE, "gemm: weight [%u, %u] is empty", a->n, a->k);
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
    cn_cpu_parallel(s, n_tasks, run_task, &job);
    return CN_OK;
}
