/* policy.c - the table of policies, block caps, triggers and checks of a request's kv parameters.
 * The CUDA backend links this file too. See policy.h. */
#include "compress/policy.h"

#include <float.h>
#include <math.h>

/* Returns false for a NaN too. */
static bool lies_within(float x, float lo, float hi) { return x >= lo && x <= hi; }

/* The queries of a first event must lie in the ring. The window does: it has been checked. */
static cn_status check_observe(const cn_kv_params *kv, uint32_t max_window_tokens)
{
    const uint32_t n = cn_rule_queries(kv);
    if (n > max_window_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv observe of %u queries: expected at most %u; raise --kv-observe for more",
                       n, max_window_tokens);
    return CN_OK;
}

/* Checks the slots that a rule keeps at both ends. The newest are the last slots, which move fill
 * must leave in token order, like the window. */
static cn_status check_ends(const cn_kv_params *kv, uint32_t block_tokens)
{
    if (!lies_within(kv->recent, 0.0f, (float)(1 << 30)) ||
        (kv->recent >= 1.0f && kv->recent != floorf(kv->recent)))
        return cn_fail(CN_ERR_ARG,
                       "kv recent %g: expected a share of the budget, from 0 to below 1, or a "
                       "whole number of tokens",
                       (double)kv->recent);
    const uint32_t newest = cn_rule_newest(kv);
    const char *what = newest > kv->window_tokens ? "recent" : "window";
    if ((uint64_t)newest + kv->sink_tokens > kv->budget_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv %s of %u tokens and kv sinks of %u, which are always kept: expected "
                       "at most the budget of %u; lower one of them or raise the budget",
                       what, newest, kv->sink_tokens, kv->budget_tokens);
    if (kv->move == CN_MOVE_FILL && newest > block_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv recent of %u tokens: with kv move fill expected at most a block of %u; "
                       "use kv move order, a smaller recent or a larger --block-size",
                       newest, block_tokens);
    return CN_OK;
}

static cn_status check_zip_params(const cn_kv_params *kv, uint32_t block_tokens,
                                  uint32_t max_window_tokens)
{
    if (kv->window_tokens == 0 || kv->window_tokens > max_window_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv window of %u tokens: expected 1 to %u; raise --kv-window for more",
                       kv->window_tokens, max_window_tokens);
    if (kv->window_tokens > kv->budget_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv budget of %u tokens is below the window of %u, which is always kept; "
                       "raise the budget or lower the window",
                       kv->budget_tokens, kv->window_tokens);
    if ((unsigned)kv->rule >= CN_N_RULES)
        return cn_fail(CN_ERR_ARG, "kv rule %u: expected a value of cn_kv_rule",
                       (unsigned)kv->rule);
    if ((unsigned)kv->head_rule >= CN_N_HEAD_RULES)
        return cn_fail(CN_ERR_ARG, "kv head_rule %u: expected a value of cn_kv_head_rule",
                       (unsigned)kv->head_rule);
    if (!lies_within(kv->alpha, 0.0f, 1.0f))
        return cn_fail(CN_ERR_ARG, "kv alpha %g: expected 0 to 1", (double)kv->alpha);
    if (!lies_within(kv->lambda, 0.0f, 1.0f))
        return cn_fail(CN_ERR_ARG, "kv lambda %g: expected 0 to 1", (double)kv->lambda);
    if (!lies_within(kv->redundancy_p, -1.0f, 1.0f))
        return cn_fail(CN_ERR_ARG, "kv redundancy p %g: expected a cosine, -1 to 1",
                       (double)kv->redundancy_p);
    if (!lies_within(kv->redundancy_tau, FLT_MIN, 100.0f))
        return cn_fail(CN_ERR_ARG, "kv redundancy tau %g: expected above 0 and at most 100",
                       (double)kv->redundancy_tau);
    if ((unsigned)kv->pooling > CN_POOLING_ALWAYS)
        return cn_fail(CN_ERR_ARG, "kv pooling %u: expected a value of cn_kv_pooling",
                       (unsigned)kv->pooling);
    if ((unsigned)kv->redundancy > CN_REDUNDANCY_NONE)
        return cn_fail(CN_ERR_ARG, "kv redundancy %u: expected a value of cn_kv_redundancy",
                       (unsigned)kv->redundancy);
    if ((unsigned)kv->combine > CN_COMBINE_SUBTRACT)
        return cn_fail(CN_ERR_ARG, "kv combine %u: expected a value of cn_kv_combine",
                       (unsigned)kv->combine);
    if ((unsigned)kv->move > CN_MOVE_FILL)
        return cn_fail(CN_ERR_ARG, "kv move %u: expected a value of cn_kv_move",
                       (unsigned)kv->move);
    /* The window must be the last slots of an event, in token order. With move fill, only the slots
     * decoded since the last event, one block, are certain to be in token order. */
    if (kv->move == CN_MOVE_FILL && kv->window_tokens > block_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv window of %u tokens: with kv move fill expected at most a block of %u; "
                       "use kv move order, a smaller window or a larger --block-size",
                       kv->window_tokens, block_tokens);
    CN_TRY(check_observe(kv, max_window_tokens));
    return cn_rule_of(kv->rule)->keeps_ends ? check_ends(kv, block_tokens) : CN_OK;
}

cn_status cn_policy_check_sinks(const cn_kv_params *kv)
{
    if (kv->sink_tokens < kv->budget_tokens) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv sinks of %u tokens leave no room for the newest in a budget of %u; lower "
                   "the sinks or raise the budget",
                   kv->sink_tokens, kv->budget_tokens);
}

cn_status cn_policy_check_heads(const cn_kv_params *kv, uint32_t group, uint32_t head_rules)
{
    if (!cn_policy_ranks(kv->policy) || kv->head_rule == CN_HEADS_MAX) return CN_OK;
    if ((unsigned)kv->head_rule >= CN_N_HEAD_RULES) return CN_OK; /* the scheduler refuses it */
    if (group == 1)
        return cn_fail(CN_ERR_ARG, "kv head_rule mean: each kv head of this model has one query "
                                   "head, so it has no effect: leave it out");
    if (!(head_rules >> kv->head_rule & 1))
        return cn_fail(CN_ERR_ARG, "kv head_rule mean: this device does not support it: leave it "
                                   "out, or start with --device cpu");
    return CN_OK;
}

static cn_status check_window(const cn_kv_params *kv, uint32_t block_tokens,
                              uint32_t max_window_tokens)
{
    (void)block_tokens;
    (void)max_window_tokens;
    return cn_policy_check_sinks(kv);
}

static cn_status check_zip_event(const cn_pools *p, const cn_compress_req *r)
{
    const uint32_t w = r->params.window_tokens, kept = r->n_target * p->layout.block_tokens;
    const uint32_t rows = cn_rule_queries(&r->params);
    if (!p->q_window)
        return cn_fail(CN_ERR_ARG, "zip compression needs observed queries, but the engine keeps "
                                   "none: declare zip with --kv-policies");
    if (w == 0 || rows > p->window || w > kept || w > r->position_end)
        return cn_fail(CN_ERR_ARG,
                       "observation window of %u tokens, %u queries: expected 1 to %u (the "
                       "engine's --kv-window or --kv-observe), a window of at most the budget of "
                       "%u and the %u tokens so far",
                       w, rows, p->window, kept, r->position_end);
    const uint32_t sinks = cn_rule_sinks(&r->params), newest = cn_rule_newest(&r->params);
    if ((uint64_t)sinks + newest > kept)
        return cn_fail(CN_ERR_ARG,
                       "%u first and %u newest tokens are always kept: expected at most the %u "
                       "that the event keeps",
                       sinks, newest, kept);
    if (r->query_slot >= p->n_query_slots)
        return cn_fail(CN_ERR_ARG, "query slot %u: expected less than %u", r->query_slot,
                       p->n_query_slots);
    if (cn_rule_keeps_scores(&r->params) && !p->score)
        return cn_fail(CN_ERR_ARG, "the request needs the global score, but the engine keeps none: "
                                   "declare zip with --kv-policies, or set kv.global to false");
    const bool redundancy = cn_rule_redundancy(&r->params) != CN_REDUNDANCY_NONE;
    if (redundancy && !(r->params.redundancy_tau > 0))
        return cn_fail(CN_ERR_ARG, "redundancy temperature tau %g: expected above 0",
                       (double)r->params.redundancy_tau);
    return CN_OK;
}

/* ---- the table ---- */

static const cn_policy table[CN_N_POLICIES] = {
    [CN_KV_FULL] = {.name = "full", .params = "", .away = true, .keep = CN_KEEP_ALL},
    [CN_KV_WINDOW] = {.name = "window",
                      .params = "budget sinks",
                      .keep = CN_KEEP_RECENT,
                      .away = true,
                      .check = check_window},
    [CN_KV_ZIP] = {.name = "zip",
                   .params = CN_RULE_PARAMS,
                   .keep = CN_KEEP_BEST,
                   .needs_slot = true,
                   .away = true,
                   .planes = 1U << CN_PLANE_SCORE,
                   .check = check_zip_params,
                   .check_event = check_zip_event},
};

const cn_policy *cn_policy_of(cn_kv_policy policy)
{
    CN_ASSERT((unsigned)policy < CN_N_POLICIES);
    return &table[policy];
}

bool cn_policy_ranks(cn_kv_policy policy) { return cn_policy_of(policy)->keep == CN_KEEP_BEST; }

const char *cn_policy_params(cn_kv_policy policy, cn_kv_rule rule)
{
    return cn_policy_ranks(policy) ? cn_rule_of(rule)->params : cn_policy_of(policy)->params;
}

const char *cn_kv_policy_name(cn_kv_policy p)
{
    return (unsigned)p < CN_N_POLICIES ? table[p].name : "?";
}

cn_policy_needs cn_policies_need(uint32_t policies)
{
    cn_policy_needs needs = {0};
    for (unsigned i = 0; i < CN_N_POLICIES; i++) {
        if (!(policies >> i & 1)) continue;
        needs.capped |= table[i].keep != CN_KEEP_ALL;
        needs.slots |= table[i].needs_slot;
        needs.planes |= table[i].planes;
        needs.keeps |= 1U << table[i].keep;
    }
    return needs;
}

/* ---- derived numbers ---- */

/* A share of the budget that exceeds what move fill leaves in token order becomes a block. */
static void limit_recent(cn_kv_params *kv, uint32_t block_tokens)
{
    const bool ends = (unsigned)kv->rule < CN_N_RULES && cn_rule_of(kv->rule)->keeps_ends;
    if (!ends || kv->move != CN_MOVE_FILL || !(kv->recent > 0 && kv->recent < 1)) return;
    if (kv->window_tokens <= block_tokens && cn_rule_newest(kv) > block_tokens)
        kv->recent = (float)block_tokens;
}

cn_status cn_policy_check(cn_kv_params *kv, uint32_t block_tokens, uint32_t max_window_tokens)
{
    CN_ASSERT(block_tokens > 0);
    if ((unsigned)kv->policy >= CN_N_POLICIES)
        return cn_fail(CN_ERR_ARG, "kv policy %u: expected a value of cn_kv_policy",
                       (unsigned)kv->policy);
    const cn_policy *p = &table[kv->policy];
    if (p->keep == CN_KEEP_ALL) return CN_OK;
    uint64_t budget = cn_round_up(kv->budget_tokens, block_tokens);
    if (budget == 0 || budget > UINT32_MAX / 2)
        return cn_fail(CN_ERR_ARG, "kv budget of %u tokens: expected 1 to %u", kv->budget_tokens,
                       UINT32_MAX / 2);
    kv->budget_tokens = (uint32_t)budget;
    if (cn_policy_ranks(kv->policy)) limit_recent(kv, block_tokens);
    return p->check ? p->check(kv, block_tokens, max_window_tokens) : CN_OK;
}

uint32_t cn_policy_cap(uint32_t budget_tokens, uint32_t block_tokens)
{
    return (uint32_t)cn_ceil_div(budget_tokens, block_tokens) + 1;
}

uint32_t cn_policy_n_max(const cn_kv_params *kv, uint32_t block_tokens)
{
    const bool capped = cn_policy_of(kv->policy)->keep != CN_KEEP_ALL;
    return capped ? cn_policy_cap(kv->budget_tokens, block_tokens) : 0;
}

bool cn_policy_due(uint32_t n_max, uint32_t n_resident, uint32_t n_blocks, uint32_t block_tokens)
{
    return n_max > 0 && n_blocks >= n_max && n_resident == n_blocks * block_tokens;
}

uint32_t cn_policy_first_trigger(uint32_t n_max, uint32_t n_prompt, uint32_t block_tokens)
{
    if (n_max == 0) return UINT32_MAX;
    uint32_t prompt_blocks = (uint32_t)cn_ceil_div(n_prompt, block_tokens);
    return cn_max_u32(n_max, prompt_blocks) * block_tokens;
}

bool cn_policy_needs_slot(const cn_kv_params *kv) { return cn_policy_of(kv->policy)->needs_slot; }

uint32_t cn_policy_most_queries(const cn_kv_params *engine)
{
    return cn_max_u32(engine->window_tokens, engine->observe_tokens);
}
