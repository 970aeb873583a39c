/* rank_ops.h - the op in which the ranks of a split model meet, and its arguments. A part of ops.h,
 * whose conventions hold here. A leaf.
 *
 * Each rank has a backend and a stream of its own. All of them enqueue the same sequence of
 * reduce_norm. Two of them that follow each other read different branches, so a branch may be
 * written again as soon as the next reduce_norm of the rank has run. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { CN_MAX_RANKS = 8 };

typedef struct cn_barrier cn_barrier; /* where the ranks of a model wait for each other */

/* residual[T,h] += branch of rank 0, then of rank 1, and so on: in this order, in f32, rounded to
 * act once. Then out = residual / rms(residual) * weight. All ranks get the same bits. It waits
 * until the streams of all ranks have reached it, at most the seconds of the barrier: CN_ERR_DEVICE
 * then names the first missing rank and the layer, and every later call returns this at once. With
 * n_tokens 0 the ranks only meet. */
typedef struct cn_reduce_norm_args {
    void *out;      /* [T,h] act */
    void *residual; /* [T,h] act, updated in place */
    const void *branch[CN_MAX_RANKS]; /* [T,h] act, each in memory of its rank */
    const void *weight;               /* [h] */
    cn_barrier *barrier;
    uint32_t rank, n_ranks;
    uint32_t n_tokens, hidden;
    float eps;
    uint32_t layer;    /* that made the branches, and whether its MLP did, for errors */
    bool is_mlp;
} cn_reduce_norm_args;
