/* policy.h - numbers that follow from a request's KV policy: the block cap, when an event is due,
 * which parameters are valid. Pure functions; no device call.
 * DESIGN.md §1.4, §2. */
#ifndef CN_POLICY_H
#define CN_POLICY_H

#include "engine/base.h"

/* Checks kv against the engine's limits and rounds the budget up to a multiple of the block size.
 * CN_ERR_ARG names field, value and limit. max_window_tokens: rows of the engine's query ring. */
cn_status cn_policy_check(cn_kv_params *kv, uint32_t block_tokens, uint32_t max_window_tokens);

/* The part of the check that needs no engine: the sinks of policy `window` must be fewer than the
 * budget, which may be rounded or not. */
cn_status cn_policy_check_sinks(const cn_kv_params *kv);

/* Block cap N_max = ceil(budget / b) + 1; 0 for `full`, which has no cap. */
uint32_t cn_policy_n_max(const cn_kv_params *kv, uint32_t block_tokens);

/* Returns true when an event is due: the request has a cap, holds at least n_max blocks, and the
 * last block is full (DESIGN.md §2). */
bool cn_policy_due(uint32_t n_max, uint32_t n_resident, uint32_t n_blocks, uint32_t block_tokens);

/* Returns the resident slots at which the first event of a request is due: those of n_max full
 * blocks, or of the prompt's blocks if these are more. This depends on lengths alone, not on how
 * the prompt was chunked, shared or recomputed. UINT32_MAX when n_max is 0. */
uint32_t cn_policy_first_trigger(uint32_t n_max, uint32_t n_prompt, uint32_t block_tokens);

/* Returns true when the policy observes queries and therefore needs a query slot. */
bool cn_policy_needs_slot(const cn_kv_params *kv);

#endif
