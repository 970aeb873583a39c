/* rule.c - the table of rules. The CUDA backend links this file too. See rule.h. */
#include "compress/rule.h"

static const cn_rule table[CN_N_RULES] = {
    [CN_RULE_ZIPAGE] = {.name = "zipage"},
    [CN_RULE_SCALED] = {.name = "scaled", .scale = 1.7f},
};

const cn_rule *cn_rule_of(cn_kv_rule rule)
{
    CN_ASSERT((unsigned)rule < CN_N_RULES);
    return &table[rule];
}

float cn_rule_scale(const cn_kv_params *kv)
{
    return kv->redundancy == CN_REDUNDANCY_NONE ? 0.0f : cn_rule_of(kv->rule)->scale;
}
