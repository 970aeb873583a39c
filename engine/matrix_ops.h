/* matrix_ops.h - a weight matrix, the form in which a backend holds it, and the arguments of its
 * products. A part of ops.h, whose conventions hold here. A leaf.
 *
 * FP8: an element is an e4m3 value times the factor of its scale. scale_n rows and scale_k columns
 * share one; the last ones of a matrix may be fewer. A product rounds its input x to e4m3 as well
 * (cn_x_form): each row, or each row and CN_FP8_COLUMNS columns, is divided by a scale, rounded to
 * the nearest e4m3 (ties to even, at most 448 in size) and multiplied by it again. Sums over these
 * values are f32: at most CN_FP8_COLUMNS products may be added up with fewer bits. Rows of outputs
 * and workspaces from n_tokens up to a multiple of CN_FP8_ROWS may be overwritten. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum cn_matrix_form {
    CN_MATRIX_PLAIN, /* of the backend's matrix_dtype */
    CN_MATRIX_FP8,
    CN_N_MATRIX_FORMS
} cn_matrix_form;

/* What the scale of x belongs to, and what it is. */
typedef enum cn_x_form {
    CN_X_PLAIN,  /* x is not rounded */
    CN_X_BLOCKS, /* a row and CN_FP8_COLUMNS columns: max|x| / 448 of these, at least FLT_MIN */
    CN_X_ROWS,   /* a row: max|x| / 448 of it, at least FLT_MIN: a scale of 0 would make NaN */
    CN_X_STATIC, /* all of x: x_scale of the matrix */
    CN_N_X_FORMS
} cn_x_form;

enum { CN_FP8_COLUMNS = 128, CN_FP8_ROWS = 4 };

typedef struct cn_matrix {
    const void *data; /* [n, k]; FP8: [n, stride]. NULL: the model has no such matrix */
    cn_matrix_form form;
    /* The rest is 0 unless the form is CN_MATRIX_FP8. */
    cn_x_form x;
    uint32_t stride;     /* k rounded up to CN_FP8_COLUMNS; the columns from k on are zero */
    const float *scales; /* [n / scale_n, k / scale_k], rounded up */
    uint32_t scale_n;    /* a power of two up to 128 */
    uint32_t scale_k;    /* CN_FP8_COLUMNS, or k */
    float x_scale;       /* CN_X_STATIC */
} cn_matrix;

/* An RMS norm that two products compute together, so that no op runs between them:
 *   W2 (residual / rms(residual) * weight) = W2 (residual * weight) / rms(residual).
 * The first product adds its output to the residual, stores `scaled` and the squares. The second
 * one has `scaled` as its x, and divides its output rows by the rms (before a bias). */
typedef struct cn_norm_link {
    void *residual;     /* [T,h] act, updated in place */
    void *scaled;       /* [T,h] act: residual * weight */
    const void *weight; /* [h] */
    float *squares;     /* [T, h / CN_NORM_COLUMNS]: sums of squares of neighbours in residual */
    float eps;
} cn_norm_link;

enum { CN_NORM_COLUMNS = 64 }; /* of residual that have one sum of squares */

/* The shape of a product, as a backend needs it to plan a cn_norm_link. */
typedef struct cn_product_shape {
    uint32_t n, k; /* of the weight */
    bool has_bias;
    bool gated; /* gemm_silu_mul, n = 2 I */
} cn_product_shape;

/* out[T,N] = x[T,K] * weight[N,K]^T (+ bias[N]). The bits of an output row depend on that row
 * alone, not on T or on its index (on a GPU: with --batch-invariant). Links are NULL unless
 * cn_backend.links_norm returned true for the two products. */
typedef struct cn_gemm_args {
    void *out; /* not used with `adds` */
    const void *x, *bias; /* bias may be NULL */
    cn_matrix weight;
    void *rounded; /* [T, weight.stride] act: for x in e4m3; NULL if weight.x is CN_X_PLAIN */
    uint32_t n_tokens, n, k;
    bool out_f32; /* logits: out is f32, not act */
    uint32_t out_stride; /* elements from one row of out to the next; 0: n. Only with ranks */
    /* At most one of them. adds: this is the first product of a link, N = h; not with out_f32.
     * norms: this is the second one, K = h. */
    const cn_norm_link *adds, *norms;
} cn_gemm_args;

/* out[T,I] = silu(y[T, 0:I]) * y[T, I:2I] with y = x[T,K] * weight[2I,K]^T: gemm and silu_mul in
 * one op, for backends that can avoid writing y to memory. */
typedef struct cn_gemm_silu_mul_args {
    void *out;
    const void *x;
    cn_matrix weight;
    void *rounded; /* as in cn_gemm_args */
    void *gate_up; /* [T,2I] workspace; holds y or is undefined afterwards */
    uint32_t n_tokens, intermediate, k;
    const cn_norm_link *norms; /* as in cn_gemm_args */
} cn_gemm_silu_mul_args;
