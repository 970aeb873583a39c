/* rule.h - the rules by which policy `zip` scores tokens, as rows of one table. A rule says how the
 * attention of the queries becomes the score S, how S meets the redundancy R, and which slots are
 * kept whatever their score. Pure functions; no device call. The backends use the table too.
 * DESIGN.md §2.
 *
 * To add one: a value of cn_kv_rule (engine/cinch.h), its name in CN_RULE_NAMES, a row in
 * rule.c (docs/HACKING.md). */
#pragma once

#include "engine/ops.h"

/* Names in the order of cn_kv_rule. */
#define CN_RULE_NAMES "zipage|scaled|peak|follow"
enum { CN_N_RULES = 4 };

/* Names in the order of cn_kv_head_rule. */
#define CN_HEAD_RULE_NAMES "max|mean"
enum { CN_N_HEAD_RULES = 2 };

/* The members of a kv object that zip reads with some rule, except "policy". */
#define CN_RULE_PARAMS                                                                \
    "budget window rule head_rule observe sinks recent global alpha pooling redundancy " \
    "p tau lambda combine move"

/* How the probabilities that the window's queries give a slot become S. */
typedef enum cn_rule_form {
    CN_FORM_MEAN,  /* their mean; F decays by alpha from event to event */
    CN_FORM_PEAK,  /* the largest; a probability decays by alpha in CN_DECAY_TOKENS tokens */
    CN_FORM_FOLLOW /* their mean, which also counts for the CN_FOLLOW_SLOTS slots that follow, less
                    * with the distance; there is neither F nor R */
} cn_rule_form;
enum { CN_DECAY_TOKENS = 64, CN_FOLLOW_SLOTS = 128 };

/* Values of the parameters that a request, or the options, leave open; 0 if the rule does not read
 * them. */
typedef struct cn_rule_defaults {
    uint32_t window_tokens, observe_tokens;
    float alpha, recent;
    cn_kv_pooling pooling;
} cn_rule_defaults;

/* The members of a kv object whose defaults depend on the rule. */
#define CN_RULE_DEFAULTS "window observe recent alpha pooling"

typedef struct cn_rule {
    const char *name;
    cn_rule_defaults defaults; /* the best that docs/lab/quality-rules.md has for the rule */
    const char *params; /* members of a kv object that zip reads with this rule, except "policy" */
    cn_rule_form form;
    /* Sum to which the scores of a (layer, kv head) are brought before the redundancy is
     * subtracted; 0: they stay as they are. */
    float scale;
    bool keeps_ends; /* events always keep the sinks and the newest tokens of kv.recent */
    bool observes;   /* more queries than those of the window may count: kv.observe */
} cn_rule;

/* Returns the row of a rule. Asserts that the value is one of cn_kv_rule. */
const cn_rule *cn_rule_of(cn_kv_rule rule);

/* Returns kv with the members of CN_RULE_DEFAULTS at the defaults of its rule. The window is at
 * most a quarter of the budget there, unless that is below 16. */
cn_kv_params cn_rule_with_defaults(cn_kv_params kv);

/* Whether the score of a slot also counts for the slots that follow (CN_FORM_FOLLOW). */
bool cn_rule_follows(const cn_kv_params *kv);

/* Return what an event does with these parameters: whether it keeps F, whether it pools, and which
 * redundancy it subtracts. A rule that does not read a parameter does without. */
bool cn_rule_keeps_scores(const cn_kv_params *kv);
bool cn_rule_pools(const cn_kv_params *kv, bool first_event);
cn_kv_redundancy cn_rule_redundancy(const cn_kv_params *kv);

/* Returns the sum to which an event with these parameters scales S; 0: it does not. Only an event
 * that subtracts a redundancy scales, because a factor alone changes no order. */
float cn_rule_scale(const cn_kv_params *kv);

/* Returns the base-2 logarithm of the factor by which a probability decays for each token that came
 * after its query: 0 unless the form is CN_FORM_PEAK. */
float cn_rule_decay_log2(const cn_kv_params *kv);

/* Returns the factor by which F decays until an event that comes n_tokens after the last one. */
float cn_rule_history_factor(const cn_kv_params *kv, uint32_t n_tokens);

/* Returns the rows of the ring of queries that a request needs: those of the observation window, or
 * kv.observe if it is larger. The first event counts them all, or all so far. */
uint32_t cn_rule_queries(const cn_kv_params *kv);

/* Returns how many of the newest queries an event counts. n_new: resident slots beside those that
 * the last event kept, so the tokens since then; all slots at a first event. With kv.observe each
 * query counts once, except those of the window. */
uint32_t cn_rule_counted(const cn_kv_params *kv, bool first_event, uint32_t n_new);

/* Returns how many slots of an event the request's last event kept; 0 at its first event. */
uint32_t cn_rule_old_slots(const cn_compress_req *r);

/* Returns cn_rule_counted for an event over n_slots. */
uint32_t cn_rule_event_queries(const cn_compress_req *r, uint32_t n_slots);

/* Return how many of the first and of the newest slots an event keeps whatever their score. The
 * newest are those of the observation window, or more. kv has been checked, its budget rounded. */
uint32_t cn_rule_sinks(const cn_kv_params *kv);
uint32_t cn_rule_newest(const cn_kv_params *kv);
