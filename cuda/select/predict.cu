/* predict.cu - the next query of each sequence from its ring of recent queries.
 *
 * ring [L, n_query_slots, rows, hq, d], out [S, n_layers, hq, d], both bf16. Grid (query
 * heads, layers, sequences). A thread block has the queries q_1 .. q_(n+1) of its head in shared
 * memory as f32, and one matrix for all windows. cpu_predict.c states the regression. The block
 *
 *   1. computes the products of q_(i+2) and q_(j+2), and b as one more row below them,
 *   2. factors that matrix column by column: a thread has a row, and the row of b becomes y,
 *   3. solves the windows, one per thread. w of the window of k queries is column k - 1 on and
 *      above the diagonal; the factor remains below the diagonal, and its diagonal in `inverse`.
 *
 * All arithmetic is f32; the CPU factors and solves in double. The ridge bounds the condition of
 * the matrix by W / eps, which costs about three digits of seven.
 *
 * Bytes moved: 2 * (n + 2) * hq * d * layers for each sequence. CPU version: cpu_predict.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"
#include "engine/cinch.h"

enum {
    BLOCK = 128,
    MAX_HEAD_DIM = 256,
    MAX = CN_MAX_SELECT_WINDOW,
    BLOCKS = 12, /* of a multiprocessor: 40 registers, so two have room beside `score` for K rows */
    ROW_PAD = 4 /* floats between rows of queries, which so begin at different banks */
};
static_assert(BLOCK > MAX, "a thread has a row of the matrix, one of them is b");

/* Shared memory of a head. */
typedef struct regression {
    float *rows;      /* [n + 1, d + ROW_PAD] queries, newest first */
    float *matrix;    /* [n + 1, columns] */
    float *inverse;   /* [MAX] 1 / diagonal of the factor */
    float *c;         /* [MAX] coefficients */
    uint32_t n, d, stride;
    uint32_t columns; /* odd, so that a column has different banks */
} regression;

/* Columns of the matrix, for at most n_rows queries. */
__host__ __device__ static inline uint32_t window_columns_of(uint32_t n_rows) { return n_rows | 1; }

/* ---- queries ---- */

/* Rotates eight pairs of channels by `distance` positions. The table's attention factor, its first
 * cosine, is already in the query. */
__device__ static void rotate8(float *low, float *high, const cn_predict_args &a, uint32_t distance,
                               uint32_t first)
{
    const size_t at = (size_t)distance * (a.head_dim / 2) + first;
    const float inverse = 1.0f / a.cos[0];
#pragma unroll
    for (int i = 0; i < CN_VEC8; i++) {
        const float c = a.cos[at + i] * inverse, s = a.sin[at + i] * inverse;
        const float x = low[i], y = high[i];
        low[i] = x * c - y * s;
        high[i] = y * c + x * s;
    }
}

__device__ static void load_rows(const regression &g, const cn_predict_args &a, uint32_t seq,
                                 uint32_t layer, uint32_t head)
{
    const uint32_t half = g.d / 2, vecs = half / CN_VEC8;
    const uint32_t slot = a.slots[seq], newest = a.newest[seq], modulus = a.modulus[seq];
    const bool rotates = a.rotate[seq];
    for (uint32_t i = threadIdx.x; i < (g.n + 1) * vecs; i += BLOCK) {
        const uint32_t row = i / vecs, first = i % vecs * CN_VEC8;
        const cn_bf16 *q = (const cn_bf16 *)a.ring +
                           cn_query_row(a.n_query_slots, a.rows, a.n_heads, g.d, layer, slot,
                                        (newest - row) % modulus, head);
        float low[CN_VEC8], high[CN_VEC8];
        cn_unpack8(low, *(const uint4 *)(q + first));
        cn_unpack8(high, *(const uint4 *)(q + half + first));
        if (rotates) rotate8(low, high, a, row + 1, first);
        float *to = g.rows + row * g.stride + first;
#pragma unroll
        for (int j = 0; j < CN_VEC8; j++) {
            to[j] = low[j];
            to[half + j] = high[j];
        }
    }
}

__device__ static float dot(const float *a, const float *b, uint32_t d)
{
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (uint32_t i = 0; i < d; i += 4) {
        const float4 x = *(const float4 *)(a + i), y = *(const float4 *)(b + i);
        sum.x = fmaf(x.x, y.x, sum.x);
        sum.y = fmaf(x.y, y.y, sum.y);
        sum.z = fmaf(x.z, y.z, sum.z);
        sum.w = fmaf(x.w, y.w, sum.w);
    }
    return (sum.x + sum.y) + (sum.z + sum.w);
}

/* ---- the regression ---- */

/* Writes G on and below the diagonal, and b to row n. */
__device__ static void fill(const regression &g)
{
    for (uint32_t p = threadIdx.x; p < (g.n + 1) * g.n; p += BLOCK) {
        const uint32_t i = p / g.n, j = p % g.n;
        if (j > i) continue;
        const float *other = g.rows + (i == g.n ? 0 : i + 1) * g.stride;
        g.matrix[i * g.columns + j] = dot(other, g.rows + (j + 1) * g.stride, g.d);
    }
}

/* Every thread gets the value that is added to the diagonal. */
__device__ static float ridge_of(const regression &g, float eps)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    float trace = 0;
    for (uint32_t i = lane; i < g.n; i += CN_WARP) trace += g.matrix[i * g.columns + i];
    return eps * cn_warp_sum(trace) / (float)g.n;
}

/* Factors G and solves L y = b, both in place below the diagonal. Returns false if G is singular.
 * The result is the same in all threads. */
__device__ static bool factor_window(const regression &g, float ridge)
{
    const uint32_t row = threadIdx.x;
    float *own = g.matrix + row * g.columns;
    for (uint32_t j = 0; j < g.n; j++) {
        const float *pivot_row = g.matrix + j * g.columns;
        float x = 0;
        if (row >= j && row <= g.n) {
            x = own[j] + (row == j ? ridge : 0.0f);
#pragma unroll 4
            for (uint32_t c = 0; c < j; c++) x = fmaf(-own[c], pivot_row[c], x);
        }
        if (row == j) g.inverse[j] = x > 0 ? 1.0f / sqrtf(x) : 0.0f;
        __syncthreads();
        const float inverse = g.inverse[j];
        if (!(inverse > 0)) return false;
        if (row > j && row <= g.n) own[j] = x * inverse;
        __syncthreads();
    }
    return true;
}

/* column[0], column[columns], ... are the n values. */
__device__ static void softmax_window(float *column, uint32_t columns, uint32_t n)
{
    float top = column[0], sum = 0;
    for (uint32_t i = 1; i < n; i++) top = fmaxf(top, column[i * columns]);
    for (uint32_t i = 0; i < n; i++) {
        const float e = expf(column[i * columns] - top);
        column[i * columns] = e;
        sum += e;
    }
    for (uint32_t i = 0; i < n; i++) column[i * columns] /= sum;
}

/* Writes the weights of the window of k queries to column k - 1. */
__device__ static void solve_window(const regression &g, uint32_t k, bool is_softmax)
{
    float *w = g.matrix + k - 1;
    const float *y = g.matrix + g.n * g.columns;
    for (uint32_t i = k; i-- > 0;) {
        float x = y[i];
#pragma unroll 4
        for (uint32_t c = i + 1; c < k; c++)
            x = fmaf(-g.matrix[c * g.columns + i], w[c * g.columns], x);
        w[i * g.columns] = x * g.inverse[i];
    }
    if (is_softmax) softmax_window(w, g.columns, k);
}

/* Writes c_1 .. c_n. The rows are loaded. */
__device__ static void coefficients(const regression &g, cn_select_weights weights, float eps)
{
    const uint32_t i = threadIdx.x;
    float sum = 0;
    fill(g);
    __syncthreads();
    const float ridge = ridge_of(g, eps);
    __syncthreads(); /* all threads have read the diagonal */
    if (!factor_window(g, ridge)) { /* all queries are zero, or not finite */
        if (i < g.n) g.c[i] = i == 0 ? 1.0f : 0.0f;
        return;
    }
    if (i < g.n) solve_window(g, i + 1, weights == CN_WEIGHTS_SOFTMAX);
    __syncthreads();
    if (i < g.n)
        for (uint32_t k = i; k < g.n; k++) sum += g.matrix[i * g.columns + k];
    if (i < g.n) g.c[i] = sum / (float)g.n;
}

/* ---- the kernel ---- */

__global__ static void __launch_bounds__(BLOCK, BLOCKS)
    predict_kernel(const __grid_constant__ cn_predict_args a, uint32_t most_rows)
{
    extern __shared__ float4 shared[];
    const uint32_t head = blockIdx.x, layer = blockIdx.y, seq = blockIdx.z, d = a.head_dim;
    cn_overlap_next();
    cn_wait_previous();
    if (a.slots[seq] == CN_NO_SLOT) return;
    regression g;
    g.d = d;
    g.stride = d + ROW_PAD;
    g.n = a.n_window[seq] == 1 ? 0 : min(a.n_window[seq], a.newest[seq]);
    g.columns = window_columns_of(most_rows);
    g.rows = (float *)shared;
    g.matrix = g.rows + most_rows * g.stride;
    g.inverse = g.matrix + most_rows * g.columns;
    g.c = g.inverse + MAX;
    load_rows(g, a, seq, a.first_layer + layer, head);
    __syncthreads();
    cn_bf16 *out = (cn_bf16 *)a.out + seq * a.out_stride + ((size_t)layer * a.n_heads + head) * d;
    if (g.n > 0) coefficients(g, (cn_select_weights)a.weights[seq], a.eps);
    __syncthreads();
    for (uint32_t j = threadIdx.x; j < d; j += BLOCK) {
        float x = g.n == 0 ? g.rows[j] : 0.0f;
        for (uint32_t i = 0; i < g.n; i++) x = fmaf(g.c[i], g.rows[i * g.stride + j], x);
        out[j] = __float2bfloat16(x);
    }
}

static cn_status check_window_shape(const cn_predict_args *a)
{
    if (a->head_dim % 16 != 0 || a->head_dim > MAX_HEAD_DIM)
        return cn_fail(CN_ERR_SHAPE, "predict: head_dim %u: expected a multiple of 16, at most %d",
                       a->head_dim, MAX_HEAD_DIM);
    return CN_OK;
}

extern "C" cn_status cn_cuda_predict(cn_stream *s, const cn_predict_args *a)
{
    CN_TRY(check_window_shape(a));
    if (a->n_seqs == 0 || a->n_layers == 0) return CN_OK;
    const uint32_t most_rows = cn_min_u32(a->rows, MAX + 1);
    const size_t row_floats = a->head_dim + ROW_PAD + window_columns_of(most_rows);
    const size_t floats = most_rows * row_floats + 2 * MAX;
    const dim3 grid(a->n_heads, a->n_layers, a->n_seqs);
    return cn_cuda_launch(s, "predict", predict_kernel, {grid, BLOCK, floats * sizeof(float)}, *a,
                          most_rows);
}
