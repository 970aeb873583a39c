/* experts.h - the products of a layer with experts on a GPU: the choice of a kernel.
 *
 * Both products are grouped: a tile is some pairs of one expert, as many as a kernel has columns
 * for. The tiles follow from `starts`, which is on the device, so a launch has the same blocks for
 * every routing and a graph can replay it. Thread: the engine's. */
#pragma once

#include "cuda/cuda_ops.h"
#include "cuda/tensor_map.h"

CN_BEGIN_C

/* A product of all pairs with the weights of their experts. */
typedef struct cn_expert_call {
    void *out;                   /* [P, n] bf16 */
    const void *x;               /* [n_rows, k] bf16 */
    const void *weight;          /* [E, n, k]; gated [E, 2n, k] */
    const uint32_t *starts;      /* [E + 1] */
    const uint32_t *pair_tokens; /* [P] row of x of each pair; NULL: row p is that of pair p */
    uint32_t n_rows, n_pairs, n_experts;
    uint32_t n, k; /* n: columns of out */
    bool gated;    /* out = silu(first n weight rows) * the others */
} cn_expert_call;

enum {
    CN_EXPERTS_MOST_ROW_COPIES = 16 /* most tokens of a tile whose rows are copied one by one */
};

/* ---- Hopper: experts_sm90.cu ---- */
cn_status cn_experts_sm90_open(cn_cuda *c);
bool cn_experts_sm90_fits(const cn_cuda *c, const cn_expert_call *call, cn_cuda_expert_tile config);
/* Returns the configuration to use without timings; tokens = 0 when none fits. */
cn_cuda_expert_tile cn_experts_sm90_default(const cn_cuda *c, const cn_expert_call *call);
cn_status cn_experts_sm90_run(cn_stream *s, const cn_expert_call *call, cn_cuda_expert_tile config);

/* The tensor maps of weights and x, for tiles of a configuration. */
cn_status cn_experts_map_weights(CUtensorMap *map, const cn_expert_call *a, cn_cuda_expert_tile t);
cn_status cn_experts_map_x(CUtensorMap *map, const cn_expert_call *a, cn_cuda_expert_tile t);

/* ---- Hopper, FP8 weights: experts_fp8.cu ---- */
cn_status cn_experts_fp8_open(cn_cuda *c);
/* Multiplies with the matrices of w, not with call->weight. rounded: [P, w->stride] bf16 of memory,
 * for x in e4m3. CN_ERR_SHAPE unless k is a multiple of 8, n of 16 or, gated, of 8. */
cn_status cn_experts_fp8_run(cn_stream *s, const cn_expert_call *call, const cn_matrix *w,
                             void *rounded);

/* ---- any GPU, k a multiple of 8: experts_any.cu ---- */
cn_status cn_experts_any_run(cn_stream *s, const cn_expert_call *call);

/* out[p] = x[pair_tokens[p]]; rows of k bf16. */
cn_status cn_experts_gather(cn_stream *s, void *out, const void *x, const uint32_t *pair_tokens,
                            uint32_t n_pairs, uint32_t k);

CN_END_C
