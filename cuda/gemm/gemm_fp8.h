/* gemm_fp8.h - products with FP8 weights on Hopper. Thread: the engine's. Stage: every step. */
#pragma once

#include "cuda/gemm/gemm.h"

CN_BEGIN_C

/* Prepares the kernels. Does nothing on other GPUs. */
cn_status cn_gemm_fp8_open(cn_cuda *c);

/* Rounds call->x to e4m3 in rounded[T, weight->stride] and multiplies. weight->x is not CN_X_PLAIN.
 * CN_ERR_SHAPE unless K is a multiple of 8. */
cn_status cn_gemm_fp8_run(cn_stream *s, const cn_gemm_call *call, const cn_matrix *weight,
                          void *rounded);

CN_END_C
