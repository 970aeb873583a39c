/* compare_arms.h - the arms of a comparison: parses `--arms full,zip:384,zip:512:window=48`.
 *
 *   list  arm{,arm}
 *   arm   policy[:budget]{:key=value | :switch | :no-switch}, or the same with
 *         selector[:select_tokens]
 *
 * The keys are those of a request's `kv` object, with the bounds of the option table. A key that an
 * arm does not set has the value of the --kv-* option.
 *
 * Owner: cinch compare, cinch bench. Thread: main. Stage: before an engine exists. */
#pragma once

#include "engine/options/options.h"

typedef struct cn_compare_arm {
    char *label; /* as typed */
    cn_kv_params kv;
    uint32_t baseline; /* of a zip arm: the window arm of the same budget; 0: none */
} cn_compare_arm;

typedef struct cn_compare_arms {
    cn_compare_arm *arms; /* [n] arms[0] is full KV, even if the list does not name it */
    uint32_t n;
    bool names_full; /* the list names it */
} cn_compare_arms;

/* Parses a list with the defaults c->kv. CN_ERR_ARG names the arm, its invalid part, and the known
 * policies or keys. Free *out in every case. */
cn_status cn_compare_arms_parse(cn_compare_arms *out, const char *list, const cn_config *c);
void cn_compare_arms_free(cn_compare_arms *a);

/* Adds `window:BUDGET` after the first zip arm of each budget that has no window arm yet, unless
 * --no-window-baseline says not to, and sets `baseline` of the zip arms. CN_ERR_ARG if
 * --window-baseline is given and no arm is a zip arm, or if such a window is not possible, for
 * example because the sinks fill the budget. Free *a in every case. */
cn_status cn_compare_arms_add_windows(cn_compare_arms *a, const cn_config *c);

/* CN_ERR_ARG: an option of the kv section was given in c that no arm reads. Its message names the
 * option and the arms that would. */
cn_status cn_compare_arms_check_options(const cn_compare_arms *a, const cn_config *c);

/* Sets in c what one engine needs for all arms: their policies, the largest window, and the
 * smallest budget, which gives the most query slots. CN_ERR_ARG if --kv-homes, the homes that
 * `auto` may choose, is given and no arm has home=auto. */
cn_status cn_compare_arms_declare(const cn_compare_arms *a, cn_config *c);
