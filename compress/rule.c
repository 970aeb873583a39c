/* rule.c - the table of rules. The CUDA backend links this file too. See rule.h. */
#include "compress/rule.h"

#include <math.h>

/* What the paper and the options have: a window of 16 in a budget of 2,048. */
#define PAPER_DEFAULTS                                                  \
    {                                                                   \
        .window_tokens = SMALL_WINDOW, .alpha = 0.8f, .recent = 0.125f, \
        .pooling = CN_POOLING_FIRST                                     \
    }
enum { SMALL_WINDOW = 16 };

static const cn_rule table[CN_N_RULES] = {
    [CN_RULE_ZIPAGE] = {.name = "zipage",
                        .defaults = PAPER_DEFAULTS,
                        .params = "budget window rule head_rule global alpha pooling redundancy p "
                                  "tau lambda combine move"},
    [CN_RULE_SCALED] = {.name = "scaled",
                        .defaults = PAPER_DEFAULTS,
                        .params = CN_RULE_PARAMS,
                        .scale = 1.7f,
                        .keeps_ends = true,
                        .observes = true},
    [CN_RULE_PEAK] = {.name = "peak",
                      .defaults = {.window_tokens = 64,
                                   .alpha = 0.841f,
                                   .recent = 0.125f,
                                   .pooling = CN_POOLING_NEVER},
                      .params = CN_RULE_PARAMS,
                      .form = CN_FORM_PEAK,
                      .scale = 0.76f,
                      .keeps_ends = true,
                      .observes = true},
    [CN_RULE_FOLLOW] = {.name = "follow",
                        .defaults = {.window_tokens = SMALL_WINDOW, .recent = 0.5f},
                        .params = "budget window rule head_rule sinks recent move",
                        .form = CN_FORM_FOLLOW,
                        .keeps_ends = true},
};

const cn_rule *cn_rule_of(cn_kv_rule rule)
{
    CN_ASSERT((unsigned)rule < CN_N_RULES);
    return &table[rule];
}

cn_kv_params cn_rule_with_defaults(cn_kv_params kv)
{
    const cn_rule_defaults *d = &cn_rule_of(kv.rule)->defaults;
    const uint32_t most = cn_max_u32(kv.budget_tokens / 4, SMALL_WINDOW);
    kv.window_tokens = cn_min_u32(d->window_tokens, most);
    kv.observe_tokens = d->observe_tokens;
    kv.alpha = d->alpha;
    kv.recent = d->recent;
    kv.pooling = d->pooling;
    return kv;
}

bool cn_rule_follows(const cn_kv_params *kv)
{
    return cn_rule_of(kv->rule)->form == CN_FORM_FOLLOW;
}

bool cn_rule_keeps_scores(const cn_kv_params *kv)
{
    return kv->global_score && !cn_rule_follows(kv);
}

bool cn_rule_pools(const cn_kv_params *kv, bool first_event)
{
    if (cn_rule_follows(kv)) return false;
    return kv->pooling == CN_POOLING_ALWAYS || (kv->pooling == CN_POOLING_FIRST && first_event);
}

cn_kv_redundancy cn_rule_redundancy(const cn_kv_params *kv)
{
    return cn_rule_follows(kv) ? CN_REDUNDANCY_NONE : kv->redundancy;
}

float cn_rule_scale(const cn_kv_params *kv)
{
    return cn_rule_redundancy(kv) == CN_REDUNDANCY_NONE ? 0.0f : cn_rule_of(kv->rule)->scale;
}

/* Not infinite for alpha 0, so that the newest query, of age 0, counts. */
static float log2_of_decay(float alpha) { return alpha > 0.0f ? log2f(alpha) : -1e6f; }

float cn_rule_decay_log2(const cn_kv_params *kv)
{
    const bool peak = cn_rule_of(kv->rule)->form == CN_FORM_PEAK;
    return peak ? log2_of_decay(kv->alpha) / (float)CN_DECAY_TOKENS : 0.0f;
}

float cn_rule_history_factor(const cn_kv_params *kv, uint32_t n_tokens)
{
    const bool peak = cn_rule_of(kv->rule)->form == CN_FORM_PEAK;
    return peak ? exp2f(cn_rule_decay_log2(kv) * (float)n_tokens) : kv->alpha;
}

uint32_t cn_rule_queries(const cn_kv_params *kv)
{
    const uint32_t observe = cn_rule_of(kv->rule)->observes ? kv->observe_tokens : 0;
    return cn_max_u32(kv->window_tokens, observe);
}

uint32_t cn_rule_counted(const cn_kv_params *kv, bool first_event, uint32_t n_new)
{
    const uint32_t queries = cn_rule_queries(kv);
    return cn_min_u32(queries, first_event ? n_new : cn_max_u32(kv->window_tokens, n_new));
}

uint32_t cn_rule_old_slots(const cn_compress_req *r) { return r->first_event ? 0 : r->n_history; }

uint32_t cn_rule_event_queries(const cn_compress_req *r, uint32_t n_slots)
{
    return cn_rule_counted(&r->params, r->first_event, n_slots - cn_rule_old_slots(r));
}

uint32_t cn_rule_sinks(const cn_kv_params *kv)
{
    return cn_rule_of(kv->rule)->keeps_ends ? kv->sink_tokens : 0;
}

uint32_t cn_rule_newest(const cn_kv_params *kv)
{
    if (!cn_rule_of(kv->rule)->keeps_ends) return kv->window_tokens;
    const double share = kv->recent < 1.0f ? (double)kv->budget_tokens : 1.0;
    return cn_max_u32(kv->window_tokens, (uint32_t)((double)kv->recent * share));
}
