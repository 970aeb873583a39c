/* policy.c - block caps, triggers and checks of a request's kv parameters. See policy.h. */
#include "compress/policy.h"

#include <float.h>

const char *cn_kv_policy_name(cn_kv_policy p)
{
    static const char *const names[] = {
        [CN_KV_FULL] = "full", [CN_KV_WINDOW] = "window", [CN_KV_ZIP] = "zip"};
    return (size_t)p < sizeof names / sizeof *names ? names[p] : "?";
}

/* Returns false for a NaN too. */
static bool within(float x, float lo, float hi) { return x >= lo && x <= hi; }

static cn_status check_zip(const cn_kv_params *kv, uint32_t block_tokens,
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
    if (!within(kv->alpha, 0.0f, 1.0f))
        return cn_fail(CN_ERR_ARG, "kv alpha %g: expected 0 to 1", (double)kv->alpha);
    if (!within(kv->lambda, 0.0f, 1.0f))
        return cn_fail(CN_ERR_ARG, "kv lambda %g: expected 0 to 1", (double)kv->lambda);
    if (!within(kv->redundancy_p, -1.0f, 1.0f))
        return cn_fail(CN_ERR_ARG, "kv redundancy p %g: expected a cosine, -1 to 1",
                       (double)kv->redundancy_p);
    if (!within(kv->redundancy_tau, FLT_MIN, 100.0f))
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
    return CN_OK;
}

cn_status cn_policy_check_sinks(const cn_kv_params *kv)
{
    if (kv->sink_tokens < kv->budget_tokens) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv sinks of %u tokens leave no room for the newest in a budget of %u; lower "
                   "the sinks or raise the budget",
                   kv->sink_tokens, kv->budget_tokens);
}

cn_status cn_policy_check(cn_kv_params *kv, uint32_t block_tokens, uint32_t max_window_tokens)
{
    CN_ASSERT(block_tokens > 0);
    if ((unsigned)kv->policy > CN_KV_ZIP)
        return cn_fail(CN_ERR_ARG, "kv policy %u: expected a value of cn_kv_policy",
                       (unsigned)kv->policy);
    if (kv->policy == CN_KV_FULL) return CN_OK;
    uint64_t budget = cn_round_up(kv->budget_tokens, block_tokens);
    if (budget == 0 || budget > UINT32_MAX / 2)
        return cn_fail(CN_ERR_ARG, "kv budget of %u tokens: expected 1 to %u", kv->budget_tokens,
                       UINT32_MAX / 2);
    kv->budget_tokens = (uint32_t)budget;
    return kv->policy == CN_KV_ZIP ? check_zip(kv, block_tokens, max_window_tokens)
                                   : cn_policy_check_sinks(kv);
}

uint32_t cn_policy_n_max(const cn_kv_params *kv, uint32_t block_tokens)
{
    if (kv->policy == CN_KV_FULL) return 0;
    return (uint32_t)cn_ceil_div(kv->budget_tokens, block_tokens) + 1;
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

bool cn_policy_needs_slot(const cn_kv_params *kv) { return kv->policy == CN_KV_ZIP; }
