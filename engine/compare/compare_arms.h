/* compare_arms.h - the arms of a comparison: what `--arms full,zip:384,zip:512:window=48` means.
 *
 *   list  arm{,arm}
 *   arm   policy[:budget]{:key=value | :switch | :no-switch}
 *
 * The keys are those of a request's `kv` object, the rows of the option table with their bounds;
 * what an arm does not say is what the command line's --kv-* options say.
 *
 * Owner: cinch compare. Thread: main. Stage: before an engine exists. */
#ifndef CN_COMPARE_ARMS_H
#define CN_COMPARE_ARMS_H

#include "engine/options/options.h"

typedef struct cn_compare_arm {
    char *label; /* as typed */
    cn_kv_params kv;
} cn_compare_arm;

typedef struct cn_compare_arms {
    cn_compare_arm *arms; /* [n] arms[0] is full KV, in front whether the list names it or not */
    uint32_t n;
} cn_compare_arms;

/* Reads c->arms over the defaults c->kv. CN_ERR_ARG names the arm and what of it is wrong, with
 * the known policies or keys. *out is to be freed in any case. */
cn_status cn_compare_arms_parse(cn_compare_arms *out, const cn_config *c);
void cn_compare_arms_free(cn_compare_arms *a);

/* Declares in c what the arms need of one engine: their policies, the widest window, and the
 * smallest budget, which leaves the most query slots. */
void cn_compare_arms_declare(const cn_compare_arms *a, cn_config *c);

#endif
