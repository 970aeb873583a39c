/* rule.h - the rules by which policy `zip` scores tokens, as rows of one table. A rule says how the
 * attention of the queries becomes the score S, and how S meets the redundancy R. Pure functions;
 * no device call. The backends use the table too. DESIGN.md §2.
 *
 * To add one: a value of cn_kv_rule (engine/cinch.h), its name in CN_RULE_NAMES, a row in rule.c
 * (docs/HACKING.md). */
#ifndef CN_RULE_H
#define CN_RULE_H

#include "engine/ops.h"

/* Names in the order of cn_kv_rule. */
#define CN_RULE_NAMES "zipage|scaled"
enum { CN_N_RULES = 2 };

typedef struct cn_rule {
    const char *name;
    /* Sum to which the scores of a (layer, kv head) are brought before the redundancy is
     * subtracted; 0: they stay as they are. */
    float scale;
} cn_rule;

/* Returns the row of a rule. Asserts that the value is one of cn_kv_rule. */
const cn_rule *cn_rule_of(cn_kv_rule rule);

/* Returns the sum to which an event with these parameters scales S; 0: it does not. Only an event
 * that subtracts a redundancy scales, because a factor alone changes no order. */
float cn_rule_scale(const cn_kv_params *kv);

#endif
