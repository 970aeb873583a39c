/* fp8_round.h - rounds the input of an FP8 product to e4m3. Thread: the engine's. */
#pragma once

#include "cuda/cuda_ops.h"

CN_BEGIN_C

typedef struct cn_fp8_rounding {
    const void *x;        /* [T,K] bf16; K a multiple of 8 */
    const uint32_t *rows; /* [T] rows of x, written by the previous kernel; NULL: 0, 1 and so on */
    void *codes;   /* [T, K rounded up to CN_FP8_COLUMNS] e4m3, with zeros from K on */
    float *scales; /* [K / CN_FP8_COLUMNS rounded up, stride] */
    uint32_t n_tokens, k, stride;
    cn_x_form form;
    float x_scale; /* CN_X_STATIC */
} cn_fp8_rounding;

cn_status cn_fp8_round(cn_stream *s, const cn_fp8_rounding *r);

/* out [stride / 128, n] f32 = the scale of each weight of 128 columns of the matrix w [n, stride],
 * of which scale_n rows, or a whole row, have one. */
cn_status cn_fp8_spread_scales(cn_stream *s, float *out, const cn_matrix *w, uint32_t n);

CN_END_C
