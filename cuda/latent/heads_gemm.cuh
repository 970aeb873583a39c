/* heads_gemm.cuh - a tile of a product with the matrix of one head: up to 64 rows by 64 columns.
 * heads_gemm.cu and compress_queries.cu use it.
 *
 * Rows and the matrix pass through a ring of stages in shared memory, 64 values of k at a time, in
 * the swizzle of attn_common.cuh. Four warps compute 32 rows by 32 columns each. The sum of an
 * output is over k in ascending steps of 16, so its bits depend on its row and its column alone.
 * Weights of the first stages are fetched before the wait for the previous kernel. */
#pragma once

#include "cuda/attn/attn_common.cuh"

enum {
    CN_HEADS_TILE = 64, /* rows, columns, and values of k of a stage */
    CN_HEADS_STAGES = 3,
    CN_HEADS_WARPS = 4,
    CN_HEADS_THREADS = CN_HEADS_WARPS * CN_WARP,
    CN_HEADS_TILE_BYTES = CN_HEADS_TILE * CN_ROW_BYTES,
    CN_HEADS_SHARED_BYTES = CN_HEADS_STAGES * 2 * CN_HEADS_TILE_BYTES + 1024
};

/* A product of one head. out[i, 0:n] = W x[i, 0:k], or x[i, 0:k] W by rows; then n_copied values
 * are copied. All counts and strides are multiples of 8. */
typedef struct cn_head_product {
    cn_bf16 *out;
    const cn_bf16 *x, *weight;   /* weight [n, k], by rows [k, n] */
    size_t out_stride, x_stride; /* elements from a row to the next */
    uint32_t first, ring;        /* row i of x is at (first + i) % ring */
    uint32_t n_rows, n, k, n_copied;
} cn_head_product;

/* Copies a tile of a matrix [rows, columns], and zeros from its end on. place(i): the first element
 * of row i. */
template <typename F>
__device__ static inline void cn_heads_load(uint32_t to, const cn_bf16 *from, uint32_t first_row,
                                            uint32_t n_rows, uint32_t first_column,
                                            uint32_t n_columns, const F &place)
{
    for (uint32_t e = threadIdx.x; e < CN_HEADS_TILE * CN_VEC8; e += CN_HEADS_THREADS) {
        const uint32_t row = e / CN_VEC8, chunk = e % CN_VEC8;
        const uint32_t at = first_row + row, column = first_column + chunk * CN_VEC8;
        const bool valid = at < n_rows && column < n_columns;
        cn_copy16(to + cn_chunk_at(CN_HEADS_TILE, row, chunk),
                  from + (valid ? place(at) + column : 0), valid);
    }
}

/* Returns the first element of row i of x. */
__device__ static inline size_t cn_heads_x_row(const cn_head_product &p, uint32_t i)
{
    const uint32_t at = p.first + i;
    return (at < p.ring ? at : at - p.ring) * p.x_stride;
}

/* The shared memory of a block: for each stage the rows, then the matrix. */
__device__ static inline uint32_t cn_heads_stage(uint32_t base, uint32_t step)
{
    return base + step % CN_HEADS_STAGES * 2 * CN_HEADS_TILE_BYTES;
}

template <bool BY_ROWS>
__device__ static inline void cn_heads_load_weights(uint32_t base, const cn_head_product &p,
                                                    uint32_t step, uint32_t column)
{
    const uint32_t to = cn_heads_stage(base, step) + CN_HEADS_TILE_BYTES;
    const uint32_t k = step * CN_HEADS_TILE;
    if (k >= p.k) return;
    const size_t stride = BY_ROWS ? p.n : p.k;
    const auto place = [=](uint32_t i) { return i * stride; };
    if (BY_ROWS)
        cn_heads_load(to, p.weight, k, p.k, column, p.n, place);
    else
        cn_heads_load(to, p.weight, column, p.n, k, p.k, place);
}

__device__ static inline void cn_heads_load_rows(uint32_t base, const cn_head_product &p,
                                                 uint32_t step, uint32_t row)
{
    const uint32_t k = step * CN_HEADS_TILE;
    if (k >= p.k) return;
    cn_heads_load(cn_heads_stage(base, step), p.x, row, p.n_rows, k, p.k,
                  [&](uint32_t i) { return cn_heads_x_row(p, i); });
}

/* The 32 columns of a warp in a step of 16: b[j] has columns 16 j to 16 j + 15. */
template <bool BY_ROWS>
__device__ static inline void cn_heads_columns(uint32_t b[2][4], uint32_t weights, uint32_t first,
                                               uint32_t step)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t column = first + 16 * j;
        if (BY_ROWS)
            cn_ldmatrix_transposed(b[j], weights + cn_chunk_at(CN_HEADS_TILE, step * 16 + lane % 16,
                                                               column / 8 + lane / 16));
        else
            cn_ldmatrix(b[j],
                        weights + cn_chunk_at(CN_HEADS_TILE, column + lane % 8 + lane / 16 * 8,
                                              2 * step + lane / 8 % 2));
    }
}

/* sum[i][j]: rows 16 i to 16 i + 15 and columns 8 j to 8 j + 7 of the warp's. */
template <bool BY_ROWS>
__device__ static inline void cn_heads_multiply(float sum[2][4][4], uint32_t rows)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    const uint32_t weights = rows + CN_HEADS_TILE_BYTES, first = warp / 2 * 32;
#pragma unroll
    for (uint32_t step = 0; step < CN_HEADS_TILE / 16; step++) {
        uint32_t a[2][4], b[2][4];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            cn_ldmatrix(a[i], rows + cn_chunk_at(CN_HEADS_TILE, first + 16 * i + lane % 16,
                                                 2 * step + lane / 16));
        cn_heads_columns<BY_ROWS>(b, weights, warp % 2 * 32, step);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                cn_mma(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

/* A lane has rows lane / 4 and eight below of each 16, and two columns of each 8. */
__device__ static inline void cn_heads_store(const cn_head_product &p, const float sum[2][4][4],
                                             uint32_t row, uint32_t column)
{
    const uint32_t warp = threadIdx.x / CN_WARP, lane = threadIdx.x % CN_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t to = row + warp / 2 * 32 + i * 8 + lane / 4;
        if (to >= p.n_rows) continue;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t at = column + warp % 2 * 32 + j * 8 + lane % 4 * 2;
            const float *x = sum[i / 2][j] + i % 2 * 2;
            if (at < p.n) *(uint32_t *)(p.out + to * p.out_stride + at) = cn_pack2(x[0], x[1]);
        }
    }
}

__device__ static inline void cn_heads_copy(const cn_head_product &p, uint32_t first_row)
{
    const uint32_t chunks = p.n_copied / CN_VEC8;
    const uint32_t rows = min((uint32_t)CN_HEADS_TILE, p.n_rows - first_row);
    for (uint32_t e = threadIdx.x; e < rows * chunks; e += CN_HEADS_THREADS) {
        const uint32_t row = first_row + e / chunks, at = e % chunks;
        ((uint4 *)(p.out + row * p.out_stride + p.n))[at] =
            ((const uint4 *)(p.x + cn_heads_x_row(p, row) + p.k))[at];
    }
}

/* Computes the tile at (row, column). The block of the first columns copies what is copied. Called
 * by a block of CN_HEADS_THREADS with CN_HEADS_SHARED_BYTES at `dynamic`; waits for the previous
 * kernel. */
template <bool BY_ROWS>
__device__ static inline void cn_heads_run(const cn_head_product &p, unsigned char *dynamic,
                                           uint32_t row, uint32_t column)
{
    const uint32_t base = cn_shared_address(dynamic + (0u - cn_shared_address(dynamic)) % 1024);
    const uint32_t n_steps = (p.k + CN_HEADS_TILE - 1) / CN_HEADS_TILE;
    constexpr uint32_t AHEAD = CN_HEADS_STAGES - 1;
    float sum[2][4][4] = {};
#pragma unroll
    for (uint32_t step = 0; step < AHEAD; step++)
        cn_heads_load_weights<BY_ROWS>(base, p, step, column);
    cn_wait_previous();
#pragma unroll
    for (uint32_t step = 0; step < AHEAD; step++) {
        cn_heads_load_rows(base, p, step, row);
        cn_copy_commit();
    }
    if (column == 0) cn_heads_copy(p, row);
    for (uint32_t step = 0; step < n_steps; step++) {
        cn_copy_wait<AHEAD - 1>();
        __syncthreads(); /* also: all warps have read the stage that is filled next */
        cn_heads_load_weights<BY_ROWS>(base, p, step + AHEAD, column);
        cn_heads_load_rows(base, p, step + AHEAD, row);
        cn_copy_commit();
        cn_heads_multiply<BY_ROWS>(sum, cn_heads_stage(base, step));
    }
    cn_heads_store(p, sum, row, column);
}
