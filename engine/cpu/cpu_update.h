/* cpu_update.h - c[rows, cols] = c * alpha + a[rows, k] * b[k, cols]. The bits of a row depend on
 * that row alone.
 *
 * Owner: none; inline functions. Thread: any. Stage: attention and products of heads. */
#pragma once

#include <stddef.h>

#include "engine/cpu/cpu_simd.h"

enum { CN_CPU_BLOCK_ROWS = 4, CN_CPU_BLOCK_VECS = CN_VEC == 16 ? 4 : 2 };

typedef struct cn_cpu_matrix {
    const float *data;
    size_t stride;
} cn_cpu_matrix;

typedef struct cn_cpu_update {
    uint32_t rows, cols, k; /* cols is a multiple of CN_VEC */
    cn_cpu_matrix a, b;
    float *c;
    size_t c_stride;
    const float *alpha; /* [rows]; NULL: c starts at 0 */
    /* Memory of b's shape that is needed next, or NULL. It is prefetched while b is used, because
     * the hardware cannot predict the address of the next KV block. */
    const float *ahead;
} cn_cpu_update;

/* rows and vecs are constants wherever this is inlined, at most those of a block, so the sums stay
 * in registers. An element is one multiply-add per k, in order of k, for every block size. */
CN_INLINE void cn_cpu_update_block(const cn_cpu_update *u, uint32_t row, uint32_t rows,
                                   uint32_t col, uint32_t vecs)
{
    const float *a = u->a.data + row * u->a.stride, *b = u->b.data + col;
    float *c = u->c + row * u->c_stride + col;
    cn_vec sum[CN_CPU_BLOCK_ROWS][CN_CPU_BLOCK_VECS];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t v = 0; v < vecs; v++)
            sum[r][v] = u->alpha ? cn_vec_load(c + r * u->c_stride + v * CN_VEC) * u->alpha[row + r]
                                 : (cn_vec){0};
    }
    const float *ahead = u->ahead && row == 0 ? u->ahead + col : NULL;
    for (uint32_t i = 0; i < u->k; i++) {
        cn_vec b_row[CN_CPU_BLOCK_VECS];
#pragma GCC unroll 4
        for (uint32_t v = 0; v < vecs; v++) {
            if (ahead) __builtin_prefetch(ahead + i * u->b.stride + v * CN_VEC);
            b_row[v] = cn_vec_load(b + i * u->b.stride + v * CN_VEC);
        }
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            cn_vec a_elem = cn_vec_set(a[r * u->a.stride + i]);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < vecs; v++) sum[r][v] = cn_vec_fma(a_elem, b_row[v], sum[r][v]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (uint32_t v = 0; v < vecs; v++)
            cn_vec_store(c + r * u->c_stride + v * CN_VEC, sum[r][v]);
    }
}

CN_INLINE void cn_cpu_update_columns(const cn_cpu_update *u, uint32_t col, uint32_t vecs)
{
    uint32_t row = 0;
    for (; row + CN_CPU_BLOCK_ROWS <= u->rows; row += CN_CPU_BLOCK_ROWS)
        cn_cpu_update_block(u, row, CN_CPU_BLOCK_ROWS, col, vecs);
    for (; row < u->rows; row++) cn_cpu_update_block(u, row, 1, col, vecs);
}

static inline void cn_cpu_rank_update(const cn_cpu_update *u)
{
    uint32_t col = 0;
    for (; col + CN_CPU_BLOCK_VECS * CN_VEC <= u->cols; col += CN_CPU_BLOCK_VECS * CN_VEC)
        cn_cpu_update_columns(u, col, CN_CPU_BLOCK_VECS);
    for (; col < u->cols; col += CN_VEC) cn_cpu_update_columns(u, col, 1);
}
