/* digest.h - the ops of selection that do not rank: labels and bounds of keys, and the predicted
 * query. engine/ops.h defines their arguments. SELECTION.md. Thread: the engine's. */
#ifndef CN_CUDA_DIGEST_H
#define CN_CUDA_DIGEST_H

#include "cuda/cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies the list of tiles. The caller may change it as soon as the call returns. */
cn_status cn_cuda_digest(cn_stream *s, const cn_digest_args *a);
/* The arrays by sequence are in device memory, so their values are not checked. */
cn_status cn_cuda_predict(cn_stream *s, const cn_predict_args *a);

#ifdef __cplusplus
}
#endif
#endif
