/* workspace.h - the memory of a forward pass, which its ops share.
 *
 * With T = max_tokens and R = max_rows: three [T, h] arrays, on a rank of several four; one region
 * that attention and the MLP share; picked [R, h]; logits; rope tables. Attention has qkv, q, attn
 * and what latent attention needs in the region. After it the MLP has gate_up, act and what the
 * experts of a layer need there. With experts, P = T * the experts of a token is the number of
 * pairs (cn_route_args).
 *
 * Owner: cn_model. Thread: engine. Stage: 6 of the path of a request. */
#pragma once

#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"

/* Byte offsets into the model's memory. */
typedef struct cn_workspace {
    size_t residual; /* [T, h] the running sum of all branches */
    size_t normed;   /* [T, h] */
    size_t branch;   /* [T, h] output of attention, added by the next norm */
    size_t mlp_branch; /* [T, h] that of the MLP: the same memory, but not on ranks (rank_ops.h) */
    size_t squares;  /* [T, h / CN_NORM_COLUMNS] f32, of a cn_norm_link */
    size_t qkv;      /* [T, (hq+2hk)*d] */
    size_t q, attn;  /* [T, hq*d]; attn of latent attention [T, hq*r] */
    /* Of latent attention. */
    size_t q_rank, q_normed; /* [T, rq] */
    size_t raw_q;            /* [T, hq*(dn+dr)] queries before the product with key matrices */
    size_t row;              /* [T, r+dr] */
    size_t values;           /* [T, hq*dv] */
    size_t gate_up;  /* [T, 2I], shares its start with qkv */
    size_t act;      /* [T, I] */
    size_t router;   /* [T, E] f32, logits */
    size_t starts, pair_tokens, pairs, weights; /* the outputs of route */
    size_t rounded;  /* the input of an FP8 product: [T, most columns] and [P, I], if they round */
    size_t pair_in;  /* [P, h] gathered for the experts, then their outputs */
    size_t pair_gate_up; /* [P, 2I] with the I of an expert, if the backend has gates_apart */
    size_t pair_act;     /* [P, I] */
    size_t picked;   /* [R, h] */
    size_t logits;   /* [R, V] f32; not on ranks above 0, which write to those of rank 0 */
    size_t cos, sin; /* [max_position, d/2] f32 */
    size_t bytes;
} cn_workspace;

cn_workspace cn_workspace_lay_out(const cn_model_config *c, const cn_backend *be,
                                  size_t max_tokens, size_t max_rows, size_t max_position);
