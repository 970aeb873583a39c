/* fp8_weights.h - the parts of FP8 matrices: their scales in the files, and FP8 made from a plain
 * tensor.
 *
 * Owner: none; plain functions. Thread: any. Stage: start, as a part of checkpoint.h.
 *
 * An element of a tensor X.weight in F8_E4M3 is its value times its scale, which X.weight_scale_inv
 * or X.weight_scale has: [] or [1] of the whole tensor, [n, 1] of rows, or [n / 128, k / 128]
 * rounded up of blocks. A tensor of all experts [E, n, k] has no ".weight" in its name and those of
 * its scales, which have a dimension E before these. X.input_scale, [] or [1], is the static scale
 * of inputs. Scales are F32, BF16, F16, or F8_E8M0 (2^(b - 127)).
 *
 * FP8 made here: s = max(2^-126, max|w| / 448) of a block or row, values are those of
 * cn_fp8_of(w / s). */
#pragma once

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/safetensors.h"

enum { CN_FP8_BLOCK = 128 };

/* Whether a part belongs to a matrix that is FP8 in memory. */
bool cn_part_is_fp8(const cn_model_config *c, const cn_weight_part *p);

/* The same for a fused matrix. */
bool cn_weight_is_fp8(const cn_model_config *c, cn_weight_id id, uint32_t layer);

/* Whether the tensor of a part is FP8 in the files. The key and value matrices of latent attention
 * are then dequantised at load. */
bool cn_part_is_fp8_in_file(const cn_model_config *c, const cn_weight_part *p);

/* Sets dtype and scales of a part whose tensor t is FP8 in the files. CN_ERR_MODEL names the tensor
 * that is missing, or that has another dtype or shape. */
cn_status cn_part_bind_fp8(cn_weight_part *p, const cn_st_tensor *t, const cn_safetensors *all,
                           const cn_quant *q);

/* CN_ERR_MODEL if the tensor has a NaN, or its scales are not finite, are negative, or are zero for
 * values that are not; the text names the tensor. */
cn_status cn_part_check_fp8(const cn_weight_part *p, const cn_quant *q);

/* The scale of an element of a part that is FP8 in the files. */
float cn_part_scale(const cn_weight_part *p, const cn_quant *q, uint64_t row, uint64_t col);

/* Elements [first, first + n) of a part that is FP8 in the files, in the order of the file. */
void cn_part_dequantise(const cn_weight_part *p, const cn_quant *q, uint64_t first, uint64_t n,
                        float *out);

/* The static scale of inputs; 0: there is none. */
float cn_part_x_scale(const cn_weight_part *p);

/* Makes FP8 of x[rows, cols], which are whole blocks of a tensor or its last ones: codes[rows,
 * cols], and the scales of blocks [rows / 128, cols / 128] rounded up or, if `by_row`, [rows]. */
void cn_fp8_make(const float *x, uint64_t rows, uint64_t cols, bool by_row, uint8_t *codes,
                 float *scales);
