/* score_share.h - the second half of `score` under group rule max. */
#ifndef CN_CUDA_SCORE_SHARE_H
#define CN_CUDA_SCORE_SHARE_H

#include "cuda/select/score.cuh"

/* Turns what the first kernel stored into scores: the largest log-softmax of any head. */
cn_status cn_score_share(cn_stream *s, const cn_score_params &p);

#endif
