/* expert_ops.h - the arguments of the ops of a layer with experts. A part of ops.h, whose
 * conventions hold here. A leaf.
 *
 * A layer has E experts, of which each token takes k. A pair is a token and an expert that it
 * takes. The P = T*k pairs of a step are in the order of their experts, then of their tokens. I is
 * the intermediate size of an expert. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/base.h"
#include "engine/matrix_ops.h"

/* What a router makes of a logit. */
typedef enum cn_route_score {
    CN_ROUTE_SOFTMAX,
    CN_ROUTE_SIGMOID,
    CN_N_ROUTE_SCORES
} cn_route_score;

typedef struct cn_router {
    uint32_t n_experts, n_used; /* E and k, at most CN_MAX_EXPERTS and CN_MAX_USED */
    cn_route_score score;
    bool normalized; /* the weights of a token are divided by their sum */
    float scale;     /* then multiplied by this */
    /* > 1: experts are in groups of E / n_groups neighbours. A token takes experts of the
     * n_used_groups groups with the highest rank, which is the sum of the ranks of its group_best
     * best experts, 1 or 2. Of equal ones the lower number. 0: there are no groups. */
    uint32_t n_groups, n_used_groups, group_best;
} cn_router;

enum { CN_MAX_EXPERTS = 1024, CN_MAX_USED = 32, CN_MAX_GROUPS = 64 };

static inline cn_status cn_router_check_groups(const cn_router *r)
{
    if (r->n_groups > 1 && (r->n_groups > CN_MAX_GROUPS || r->n_experts % r->n_groups != 0 ||
                            r->n_used_groups > r->n_groups ||
                            r->n_used > r->n_experts / r->n_groups * r->n_used_groups))
        return cn_fail(CN_ERR_SHAPE,
                       "route: %u of %u experts in %u of %u groups: expected groups of one size, "
                       "at most %d, with room for the experts of a token",
                       r->n_used, r->n_experts, r->n_used_groups, r->n_groups, CN_MAX_GROUPS);
    return CN_OK;
}

/* Each token takes the k experts with the highest score (softmax over all E, or sigmoid), plus its
 * bias if there is one; of equal ones that with the lower number. The weight of a pair is the score
 * without the bias, divided by the token's sum if normalized, times scale. The experts and weights
 * of a token depend on its logits alone. A token whose logits are not numbers takes any k different
 * experts. */
typedef struct cn_route_args {
    uint32_t *starts;      /* [E+1] first pair of each expert, then P */
    uint32_t *pair_tokens; /* [P] */
    uint32_t *pairs;       /* [T,k] a token's pairs, the best first */
    float *weights;        /* [T,k] theirs */
    const float *logits;   /* [T,E] */
    const float *bias;     /* [E], or NULL */
    cn_router router;
    uint32_t n_tokens;
} cn_route_args;

/* out[p] = silu(y[0:I]) * y[I:2I] with y = weight[e] x[t], of the token t and the expert e of pair
 * p. The bits of a pair depend on x[t] and e alone (on a GPU: with --batch-invariant). */
typedef struct cn_expert_gate_up_args {
    void *out;                            /* [P,I] act */
    const void *x;                        /* [T,K] act */
    cn_matrix weight;                     /* [E*2I,K]; an expert has whole rows of scales */
    const uint32_t *starts, *pair_tokens; /* of route */
    /* Workspace, undefined afterwards: gathered [P,K] act, FP8 [P,weight.stride]; rounded as in
     * cn_gemm_args; gate_up [P,2I] act, NULL unless the backend has gates_apart. */
    void *gathered, *rounded, *gate_up;
    uint32_t n_tokens, n_experts, n_used, intermediate, k;
} cn_expert_gate_up_args;

/* out[p] = weight[e] x[p], with the expert e of pair p. */
typedef struct cn_expert_down_args {
    void *out;          /* [P,N] act */
    const void *x;      /* [P,I] act */
    cn_matrix weight;   /* [E*N,I]; an expert has whole rows of scales */
    void *rounded;      /* [P,weight.stride] act, as in cn_gemm_args */
    const uint32_t *starts;
    uint32_t n_tokens, n_experts, n_used, n, intermediate;
} cn_expert_down_args;

/* out[t] = the sum of weights[t,j] * x[pairs[t,j]] over j, in this order, with f32 products and
 * sums. With `adds` the sum starts from out[t], else from 0. */
typedef struct cn_expert_sum_args {
    void *out;             /* [T,N] act */
    const void *x;         /* [P,N] act */
    const uint32_t *pairs; /* [T,k] of route, as the weights */
    const float *weights;
    uint32_t n_tokens, n_used, n;
    bool adds;
} cn_expert_sum_args;
