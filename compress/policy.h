/* policy.h - a request's KV policy as numbers the scheduler can use: the block cap, when an event
 * is due, which parameters are valid. Pure functions; no device call.
 * DESIGN.md §1.4, §2. */
#ifndef CN_POLICY_H
#define CN_POLICY_H

#include "engine/base.h"

/* Checks kv against the engine's limits and rounds the budget up to the block size. CN_ERR_ARG
 * names field, value and bound. max_window_tokens: rows of the engine's query ring. */
cn_status cn_policy_check(cn_kv_params *kv, uint32_t block_tokens, uint32_t max_window_tokens);

/* The part of it that needs no engine: whether the sinks of policy `window` fit the budget as it
 * is, not rounded. */
cn_status cn_policy_check_sinks(const cn_kv_params *kv);

/* Block cap N_max = budget / b + 1 (budget rounded up); 0 for `full`: no cap. */
uint32_t cn_policy_n_max(const cn_kv_params *kv, uint32_t block_tokens);

/* True when an event is due: at least n_max blocks held and the last one full (§5, trigger). */
bool cn_policy_due(uint32_t n_max, uint32_t n_resident, uint32_t n_blocks, uint32_t block_tokens);

/* Resident slots at which the first event of a request is due: the cap, or the prompt's own blocks
 * where those are more, all full. Known from the lengths alone, so it does not depend on how a
 * prompt was chunked, shared or recomputed. UINT32_MAX when n_max is 0. */
uint32_t cn_policy_first_trigger(uint32_t n_max, uint32_t n_prompt, uint32_t block_tokens);

/* True when the policy observes queries (needs a query slot). */
bool cn_policy_needs_slot(const cn_kv_params *kv);

#endif
