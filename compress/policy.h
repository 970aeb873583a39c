/* policy.h - the KV policies as rows of one table, and the numbers that the scheduler derives from
 * a request's policy: the block cap, when an event is due, which parameters are valid. Pure
 * functions; no device call. The backends use the table too. DESIGN.md §1.4, §2.
 *
 * docs/HACKING.md, "Add a policy", lists the steps. A policy that selects tokens in a new way also
 * needs a value of cn_keep, and a function for it in each backend that supports the policy. */
#pragma once

#include "compress/rule.h"
#include "engine/ops.h"

/* Names in the order of cn_kv_policy. */
#define CN_POLICY_NAMES "full|window|zip"
enum { CN_N_POLICIES = 3 };

typedef struct cn_policy {
    const char *name;
    const char *params;  /* members of a kv object that the policy reads with any rule, except
                          * "policy" */
    cn_keep keep;        /* how events select slots; CN_KEEP_ALL: no cap and no events */
    bool needs_slot;     /* the policy observes queries: a request needs a query slot */
    bool away;           /* compress/away.c knows what it keeps on the device of away requests */
    uint32_t planes;     /* planes of a block besides K and V: bit i is cn_block_plane i */
    /* Checks the policy's own parameters, with the budget rounded. CN_ERR_ARG. May be NULL. */
    cn_status (*check)(const cn_kv_params *kv, uint32_t block_tokens, uint32_t max_window_tokens);
    /* Checks an event against the pools before a backend runs it. CN_ERR_ARG. May be NULL. */
    cn_status (*check_event)(const cn_pools *p, const cn_compress_req *r);
} cn_policy;

/* Returns the row of a policy. Asserts that the value is one of cn_kv_policy. */
const cn_policy *cn_policy_of(cn_kv_policy policy);

/* Returns true for a policy that ranks slots by scores, under a rule: CN_KEEP_BEST. */
bool cn_policy_ranks(cn_kv_policy policy);

/* Returns the members of a kv object that the policy reads, except "policy". The rule matters only
 * to a policy that ranks. */
const char *cn_policy_params(cn_kv_policy policy, cn_kv_rule rule);

/* What a set of policies needs. */
typedef struct cn_policy_needs {
    bool capped;     /* some policy has a cap and events */
    bool slots;      /* some policy observes queries */
    uint32_t planes; /* planes of a block besides K and V: bit i is cn_block_plane i */
    uint32_t keeps;  /* bit i is cn_keep i */
} cn_policy_needs;

/* Bit i of `policies` is cn_kv_policy i. */
cn_policy_needs cn_policies_need(uint32_t policies);

/* Checks kv against the engine's limits and rounds the budget up to a multiple of the block size.
 * CN_ERR_ARG names field, value and limit. max_window_tokens: rows of the engine's query ring. */
cn_status cn_policy_check(cn_kv_params *kv, uint32_t block_tokens, uint32_t max_window_tokens);

/* Checks kv against the model and the device. group: query heads of a kv head, all heads with
 * latent attention; head_rules: as in cn_backend. CN_ERR_ARG names the field. */
cn_status cn_policy_check_heads(const cn_kv_params *kv, uint32_t group, uint32_t head_rules);

/* Returns the most queries that a request may let count, if `engine` has the parameters of the
 * options: rows of the ring for a policy that observes queries. */
uint32_t cn_policy_most_queries(const cn_kv_params *engine);

/* The part of the check that needs no engine: the sinks of policy `window` must be fewer than the
 * budget, which may be rounded or not. */
cn_status cn_policy_check_sinks(const cn_kv_params *kv);

/* Block cap N_max = ceil(budget / b) + 1. */
uint32_t cn_policy_cap(uint32_t budget_tokens, uint32_t block_tokens);

/* Returns the block cap of a request, or 0 if its policy has no cap. */
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
