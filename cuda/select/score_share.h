/* score_share.h - the kernels of `score`. */
#ifndef CN_CUDA_SCORE_SHARE_H
#define CN_CUDA_SCORE_SHARE_H

#include "cuda/select/score.cuh"

/* Returns the parameters that the arguments alone determine. */
cn_score_params cn_score_params_of(const cn_score_args *a);

/* Turns the logits of the parts that are late into scores: the largest share of any head. */
cn_status cn_score_share(cn_stream *s, const cn_score_params &p);

/* score_ring.cu: returns whether keys are copied in bulk, for p.bulk. */
bool cn_score_has_bulk(const cn_stream *s, const cn_score_params &p);
/* Returns whether the kernel counts for cn_score_params.counts. Then its blocks compute the
 * shares of rule max. */
bool cn_score_ring_counts(const cn_score_params &p);
cn_status cn_score_ring(cn_stream *s, const cn_score_params &p);

#endif
