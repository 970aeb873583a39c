/* compare_arms.c - see compare_arms.h. */
#include "engine/compare/compare_arms.h"

#include "compress/away.h"
#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/options/option_value.h"

enum { NAME_MAX_BYTES = 64, MAX_BLOCK_TOKENS = 256 };

/* The option row of a key of a `kv` object, or NULL. */
static const cn_option *find_arm_key(const char *key, size_t len)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        const char *name = cn_option_kv_key(&o[i]);
        if (name && strlen(name) == len && memcmp(name, key, len) == 0) return &o[i];
    }
    return NULL;
}

static cn_status refuse_key(const char *key, size_t len)
{
    char known[512];
    size_t n, used = 0;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n && used < sizeof known; i++)
        if (cn_option_kv_key(&o[i]))
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                     cn_option_kv_key(&o[i]));
    return cn_fail(CN_ERR_ARG, "unknown key '%.*s': expected one of %s", (int)len, key, known);
}

/* Part 0 of an arm: a policy, or a selector, which has the policy `full`. */
static cn_status set_name(cn_config *c, const char *name)
{
    CN_TRY(cn_config_set(c, "kv-home", cn_kv_home_name(CN_HOME_DEVICE)));
    for (unsigned i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++)
        if (strcmp(name, cn_kv_select_name((cn_kv_select)i)) == 0) {
            CN_TRY(cn_config_set(c, "kv-policy", cn_kv_policy_name(CN_KV_FULL)));
            return cn_config_set(c, "kv-select", name);
        }
    if (cn_config_set(c, "kv-policy", name) != CN_OK)
        return cn_fail(CN_ERR_ARG, "%s: expected a policy, one of %s, or a selector, one of %s",
                       *name ? name : "''", CN_POLICY_NAMES, CN_SELECTOR_NAMES + strlen("none|"));
    return cn_config_set(c, "kv-select", cn_kv_select_name(CN_SELECT_NONE));
}

/* The policy or the selector of an arm, and the keys that it reads. */
static const char *reader_name(const cn_kv_params *kv)
{
    const bool selects = kv->select != CN_SELECT_NONE;
    return selects ? cn_kv_select_name(kv->select) : cn_kv_policy_name(kv->policy);
}

static const char *reader_params(const cn_kv_params *kv)
{
    const bool selects = kv->select != CN_SELECT_NONE;
    return selects ? cn_selector_of(kv->select)->params : cn_policy_params(kv->policy, kv->rule);
}

static cn_status check_read(const cn_config *c, const cn_option *o)
{
    const char *key = cn_option_kv_key(o);
    const bool is_policy = strcmp(key, "policy") == 0; /* the name of the arm sets it */
    cn_kv_params away = c->kv;
    away.home = CN_HOME_PEER;
    if (!is_policy && cn_kv_reads(&c->kv, key)) return CN_OK;
    if (!is_policy && cn_kv_reads(&away, key) && cn_selector_of(c->kv.select)->away)
        return cn_fail(CN_ERR_ARG, "%s reads %s only with home=peer or home=host before it",
                       reader_name(&c->kv), key);
    const char *silencer = cn_kv_silencer(&c->kv, key);
    if (silencer)
        return cn_fail(CN_ERR_ARG, "%s does not read %s with %s", reader_name(&c->kv), key,
                       silencer);
    for (unsigned i = 0; i < CN_N_RULES && c->kv.select == CN_SELECT_NONE; i++)
        if (cn_option_is_word(cn_policy_params(c->kv.policy, (cn_kv_rule)i), key))
            return cn_fail(CN_ERR_ARG, "%s reads %s only with rule=%s before it",
                           reader_name(&c->kv), key, cn_rule_of((cn_kv_rule)i)->name);
    return cn_fail(CN_ERR_ARG, "%s does not read %s: it reads %s", reader_name(&c->kv), key,
                   *reader_params(&c->kv) ? reader_params(&c->kv) : "nothing");
}

/* Sets a key, once per arm: `set` has the keys so far, each followed by a blank. */
static cn_status set_key(cn_config *c, cn_buf *set, const cn_option *o, const char *value)
{
    const char *key = cn_option_kv_key(o);
    if (set->data && cn_option_is_word(set->data, key))
        return cn_fail(CN_ERR_ARG, "%s is given twice", key);
    CN_TRY(cn_buf_addf(set, "%s ", key));
    return cn_option_set_text(c, o, value);
}

/* Applies one part of an arm to c. Parts are separated by colons; `place` is the part's index. A
 * number in place 1 is the budget of a policy or the select_tokens of a selector. */
static cn_status set_part(cn_config *c, cn_buf *set, char *part, uint32_t place)
{
    if (place == 0) return set_name(c, part);
    if (place == 1 && part[0] && part[strspn(part, "0123456789")] == '\0') {
        const cn_option *size =
            cn_option_find(c->kv.select == CN_SELECT_NONE ? "kv-budget" : "select-tokens");
        CN_TRY(check_read(c, size));
        return set_key(c, set, size, part);
    }
    size_t len = strcspn(part, "=");
    const char *value = part[len] ? part + len + 1 : "true";
    const cn_option *o = find_arm_key(part, len);
    const bool negated = !o && !part[len] && strncmp(part, "no-", 3) == 0;
    if (negated) {
        o = find_arm_key(part + 3, len - 3);
        value = "false";
    }
    if (!o) return refuse_key(part, len);
    CN_TRY(check_read(c, o));
    if (!part[len] && o->type != CN_OPTION_BOOL)
        return cn_fail(CN_ERR_ARG, "'%s' is not a switch: write %s=value", part,
                       cn_option_kv_key(o));
    return set_key(c, set, o, value);
}

/* A key may come before the rule, or the home, that does not read it. */
static cn_status check_set_keys(const cn_config *c, const cn_buf *set)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; set->data && i < n; i++) {
        const char *key = cn_option_kv_key(&o[i]);
        if (key && cn_option_is_word(set->data, key)) CN_TRY(check_read(c, &o[i]));
    }
    return CN_OK;
}

static cn_status parse_arm(cn_compare_arm *arm, const cn_config *c, const char *text, size_t len)
{
    arm->label = cn_strndup(text, len);
    char *parts = cn_strndup(text, len);
    cn_config *scratch = NULL;
    cn_buf set = {0};
    cn_status status = CN_OK;
    if (!arm->label || !parts) status = cn_fail(CN_ERR_MEMORY, "out of memory for an arm");
    if (status == CN_OK) status = cn_config_copy(&scratch, c);
    char *rest = parts;
    for (uint32_t place = 0; status == CN_OK && rest; place++)
        status = set_part(scratch, &set, strsep(&rest, ":"), place);
    if (status == CN_OK) status = check_set_keys(scratch, &set);
    if (status == CN_OK) {
        arm->kv = scratch->kv;
        status = cn_config_validate(scratch, CN_SECTION_KV);
    }
    if (status == CN_ERR_ARG) status = cn_fail_within(status, "--arms %.*s", (int)len, text);
    cn_config_free(scratch);
    cn_buf_free(&set);
    cn_free(parts);
    return status;
}

/* Whether requests of two arms have the same parameters, of those that the arms read. */
static bool same_requests(const cn_kv_params *a, const cn_kv_params *b)
{
    size_t n;
    const cn_option *o = cn_options(&n);
    if (a->policy != b->policy || a->select != b->select || a->home != b->home) return false;
    for (size_t i = 0; i < n; i++) {
        const char *key = cn_option_kv_key(&o[i]);
        if (!key || !cn_kv_reads(a, key)) continue;
        const size_t at = o[i].offset - offsetof(struct cn_config, kv);
        const size_t bytes = o[i].type == CN_OPTION_BOOL ? sizeof(bool) : sizeof(uint32_t);
        if (memcmp((const char *)a + at, (const char *)b + at, bytes) != 0) return false;
    }
    return true;
}

static cn_status check_twice(const cn_compare_arms *a)
{
    const cn_compare_arm *last = &a->arms[a->n - 1];
    for (uint32_t i = 0; i + 1 < a->n; i++) {
        const cn_compare_arm *arm = &a->arms[i];
        if (strcmp(arm->label, last->label) == 0)
            return cn_fail(CN_ERR_ARG, "--arms %s: the arm is given twice", last->label);
        if (same_requests(&arm->kv, &last->kv))
            return cn_fail(CN_ERR_ARG, "--arms %s: the arm is given twice: %s is the same",
                           last->label, arm->label);
    }
    return CN_OK;
}

cn_status cn_compare_arms_parse(cn_compare_arms *out, const char *list, const cn_config *c)
{
    static const char full[] = "full";
    uint32_t n = 2;
    for (const char *p = list; *p; p++) n += *p == ',';
    *out = (cn_compare_arms){.arms = cn_calloc(n, sizeof *out->arms)};
    if (!out->arms) return cn_fail(CN_ERR_MEMORY, "out of memory for %u arms", n);
    out->n = 1;
    CN_TRY(parse_arm(&out->arms[0], c, full, sizeof full - 1));
    for (const char *p = list;; p++) {
        size_t len = strcspn(p, ",");
        bool is_full = len == sizeof full - 1 && memcmp(p, full, len) == 0;
        out->names_full |= is_full;
        if (!is_full) {
            out->n++;
            CN_TRY(parse_arm(&out->arms[out->n - 1], c, p, len));
            CN_TRY(check_twice(out));
        }
        p += len;
        if (!*p) return CN_OK;
    }
}

/* The window arm of a budget, or 0. */
static uint32_t find_window(const cn_compare_arms *a, uint32_t budget_tokens)
{
    for (uint32_t i = 1; i < a->n; i++)
        if (a->arms[i].kv.policy == CN_KV_WINDOW && a->arms[i].kv.budget_tokens == budget_tokens)
            return i;
    return 0;
}

/* Adds the window arm of a zip arm after it. a->arms has room for one more. */
static cn_status add_window(cn_compare_arms *a, uint32_t zip, const cn_config *c)
{
    char text[32];
    const int len = snprintf(text, sizeof text, "window:%u", a->arms[zip].kv.budget_tokens);
    cn_compare_arm *place = &a->arms[zip + 1];
    memmove(place + 1, place, (a->n - zip - 1) * sizeof *place);
    *place = (cn_compare_arm){0};
    a->n++;
    const cn_status status = parse_arm(place, c, text, (size_t)len);
    if (status != CN_ERR_ARG) return status;
    return cn_fail_within(status, "beside %s; --no-window-baseline leaves it out",
                          a->arms[zip].label);
}

cn_status cn_compare_arms_add_windows(cn_compare_arms *a, const cn_config *c)
{
    uint32_t n_zip = 0;
    for (uint32_t i = 1; i < a->n; i++) n_zip += a->arms[i].kv.policy == CN_KV_ZIP;
    if (!n_zip && cn_config_is_given(c, &c->window_baseline))
        return cn_fail(CN_ERR_ARG,
                       "--%swindow-baseline has no effect: no arm of --arms is a zip "
                       "arm; leave it out",
                       c->window_baseline ? "" : "no-");
    cn_compare_arm *arms = cn_calloc((size_t)a->n + n_zip, sizeof *arms);
    if (!arms) return cn_fail(CN_ERR_MEMORY, "out of memory for %u arms", a->n + n_zip);
    memcpy(arms, a->arms, a->n * sizeof *arms);
    cn_free(a->arms);
    a->arms = arms;
    for (uint32_t i = 1; c->window_baseline && i < a->n; i++)
        if (arms[i].kv.policy == CN_KV_ZIP && !find_window(a, arms[i].kv.budget_tokens))
            CN_TRY(add_window(a, i, c));
    for (uint32_t i = 1; i < a->n; i++)
        if (arms[i].kv.policy == CN_KV_ZIP)
            arms[i].baseline = find_window(a, arms[i].kv.budget_tokens);
    return CN_OK;
}

void cn_compare_arms_free(cn_compare_arms *a)
{
    for (uint32_t i = 0; i < a->n; i++) cn_free(a->arms[i].label);
    cn_free(a->arms);
    *a = (cn_compare_arms){0};
}

/* Whether an arm selects. */
static bool selects(const cn_compare_arms *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (a->arms[i].kv.select != CN_SELECT_NONE) return true;
    return false;
}

/* The engine reserves memory for the largest sizes of the selectors. */
static void declare_sizes(const cn_kv_params *kv, cn_kv_params *most)
{
    if (cn_policy_needs_slot(kv))
        most->observe_tokens = cn_max_u32(most->observe_tokens, cn_rule_queries(kv));
    if (kv->select == CN_SELECT_NONE) return;
    most->select_tokens = cn_max_u32(most->select_tokens, kv->select_tokens);
    most->select_tiles = cn_max_u32(most->select_tiles, kv->select_tiles);
    most->select_window = cn_max_u32(most->select_window, kv->select_window);
    most->sink_tokens = cn_max_u32(most->sink_tokens, kv->sink_tokens);
}

/* The largest blocks give the largest default of select_cap. */
static uint32_t most_cap(const cn_kv_params *kv)
{
    const cn_kv_params form = cn_away_form(kv, CN_HOME_PEER); /* peer has the larger default */
    return cn_away_of(&form, MAX_BLOCK_TOKENS).cap;
}

/* --kv-homes names the homes that `auto` may choose. */
static cn_status check_homes(const cn_compare_arms *a, const cn_config *c)
{
    bool chooses = false;
    for (uint32_t i = 0; i < a->n; i++) chooses |= cn_kv_home_kind(&a->arms[i].kv)->is_chosen;
    if (chooses && !(c->kv_homes & ~(1U << CN_HOME_DEVICE)))
        return cn_fail(CN_ERR_ARG, "--arms with home=auto: no other home is declared; add peer or "
                                   "host to --kv-homes, or leave it out");
    if (chooses || !cn_config_is_given(c, &c->kv_homes)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--kv-homes has no effect: no arm of --arms has home=auto; leave it "
                               "out, or add home=auto to an arm");
}

/* Bit i is set if an arm scores tokens by cn_kv_rule i. */
static uint32_t arm_rules(const cn_compare_arms *a)
{
    uint32_t rules = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (cn_policy_ranks(a->arms[i].kv.policy)) rules |= 1U << a->arms[i].kv.rule;
    return rules;
}

/* What silences a member in each arm whose policy ranks; NULL: one of them reads it, or none
 * ranks. */
static const char *silencer_of_all(const cn_compare_arms *a, const char *key)
{
    const char *silencer = NULL;
    for (uint32_t i = 0; i < a->n; i++) {
        if (!cn_policy_ranks(a->arms[i].kv.policy)) continue;
        silencer = cn_kv_silencer(&a->arms[i].kv, key);
        if (!silencer) return NULL;
    }
    return silencer;
}

cn_status cn_compare_arms_check_options(const cn_compare_arms *a, const cn_config *c)
{
    CN_TRY(cn_config_check_kv_readers(c, arm_rules(a)));
    size_t n;
    const cn_option *o = cn_options(&n);
    for (size_t i = 0; i < n; i++) {
        const char *key = c->given[i] ? cn_option_kv_key(&o[i]) : NULL;
        const char *silencer = key ? silencer_of_all(a, key) : NULL;
        if (silencer)
            return cn_fail(CN_ERR_ARG, "--%s: no effect with %s, which every zip arm of --arms has",
                           o[i].name, silencer);
    }
    return CN_OK;
}

cn_status cn_compare_arms_declare(const cn_compare_arms *a, cn_config *c)
{
    CN_TRY(check_homes(a, c));
    uint32_t window = 0, budget = 0, cap = 0;
    const uint32_t homes = c->kv_homes | 1U << CN_HOME_DEVICE; /* those that `auto` may choose */
    c->kv_policies = c->kv_selectors = c->kv_homes = 0;
    if (selects(a)) /* an arm without its own has the defaults */
        c->kv.select_tokens = c->kv.select_tiles = c->kv.select_window = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const cn_kv_params *kv = &a->arms[i].kv;
        c->kv_policies |= 1U << kv->policy;
        c->kv_selectors |= 1U << kv->select;
        c->kv_homes |= cn_kv_homes(kv, homes);
        cap = cn_max_u32(cap, most_cap(kv));
        declare_sizes(kv, &c->kv);
        const cn_policy *policy = cn_policy_of(kv->policy);
        if (policy->needs_slot) window = cn_max_u32(window, kv->window_tokens);
        if (policy->keep == CN_KEEP_ALL) continue;
        budget = budget ? cn_min_u32(budget, kv->budget_tokens) : kv->budget_tokens;
    }
    c->kv.policy = CN_KV_FULL;
    c->kv.select = CN_SELECT_NONE;
    c->kv.home = CN_HOME_DEVICE;
    c->kv.select_cap = cap;
    if (window) c->kv.window_tokens = window;
    if (budget) c->kv.budget_tokens = budget;
    return CN_OK;
}
