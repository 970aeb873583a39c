/* select_cost.h - how many bytes a decode step reads with and without a selector, and from how many
 * tokens in the batch a selector makes the step shorter. Pure arithmetic for `cinch plan` and
 * `cinch bench`.
 *
 * Owner: none; plain functions. Thread: any. Stage: none; no step calls them.
 *
 * A step of requests of equal length reads all weights once. Each request reads, per layer:
 *
 *   attends to all    K and V of all its tokens; also in the dense layers of a selector
 *   selects           the keys of each stage's candidates, the scores (written by `score`, read
 *                     twice by `select`), the ring if the selector predicts, and K and V of the
 *                     list and the tail
 *
 * Group rule max reads labels twice. Candidates, list and tail come from cn_select_span_at. They
 * change from step to step, so all numbers are means over the steps that fill a block. Kernel
 * launches and arithmetic are not counted. */
#pragma once

#include "compress/selector.h"

/* What a step reads from. */
typedef struct cn_select_shape {
    uint64_t weight_bytes; /* that every step reads */
    uint32_t n_layers, dense_layers, n_heads, n_kv_heads, head_dim;
    uint32_t value_dim, query_dim; /* of cn_kv_layout_share; 0: K and V are two parts */
    uint32_t block_tokens;
    uint32_t draft_dim; /* of the retrieval head's K; 0: there is none */
    uint32_t draft_state; /* of the state that a block keeps for it; 0: none */
    cn_kv_form kv_form;
    cn_dtype act_dtype;
} cn_select_shape;

/* Bytes of K and V of a token, all layers. */
uint64_t cn_select_kv_bytes(const cn_select_shape *z);

/* Bytes per token of the digests among the planes of a block, all layers. Rounded down: the tokens
 * of an entry share its bounds. */
uint64_t cn_select_digest_bytes(const cn_select_shape *z, uint32_t planes);

/* Mean bytes that a decode step reads for a request of about n_tokens tokens, weights not included.
 * kv has been checked; with selector `none` the request attends to all tokens. */
double cn_select_row_bytes(const cn_select_shape *z, const cn_kv_params *kv, uint32_t n_tokens);

/* Bytes of a dense step divided by those of a step in which n_rows requests of n_tokens tokens use
 * the selector. Above 1: the selector makes the step shorter. */
double cn_select_speed_up(const cn_select_shape *z, const cn_kv_params *kv, uint32_t n_rows,
                          uint32_t n_tokens);

/* Returns the fewest tokens of each of n_rows requests from which the speed-up stays above
 * `speed_up`, or 0 when requests of `most` tokens do not reach it. */
uint32_t cn_select_tokens_for(const cn_select_shape *z, const cn_kv_params *kv, uint32_t n_rows,
                              double speed_up, uint32_t most);
