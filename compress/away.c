/* away.c - see away.h; HOMES.md. */
#include "compress/away.h"

#include "compress/policy.h"
#include "compress/selector.h"

/* The policy window beside an exchange area keeps one block, at least this many tokens. */
enum { LEAST_BUDGET_TOKENS = 128 };

/* An exchange replaces this share of a set of tokens by default, or this many tiles: what a link
 * moves while a step runs. */
enum { PEER_SHARE = 8, HOST_SHARE = 32, CAP_TILES = 2 };

static const char *const names[CN_N_HOMES + 1] = {"device", "peer", "host", "auto"};

const char *cn_kv_home_name(cn_kv_home h) { return (unsigned)h <= CN_N_HOMES ? names[h] : "?"; }

static bool is_away(const cn_kv_params *kv) { return kv->home != CN_HOME_DEVICE; }

static bool has_tiles(const cn_kv_params *kv) { return cn_selector_of(kv->select)->has_tiles; }

uint32_t cn_away_selectors(void)
{
    uint32_t selectors = 0;
    for (unsigned i = 0; i < CN_N_SELECTORS; i++)
        if (cn_selector_of((cn_kv_select)i)->away) selectors |= 1U << i;
    return selectors;
}

const char *cn_away_params(const cn_kv_params *kv)
{
    if (!is_away(kv)) return "";
    if (!has_tiles(kv)) return "home select_cap";
    return kv->select_query == CN_QUERY_PREDICTED
               ? "home select_cap select_query select_window select_weights"
               : "home select_cap select_query";
}

cn_kv_params cn_away_form(const cn_kv_params *kv, cn_kv_home home)
{
    cn_kv_params form = *kv;
    if (kv->home != CN_HOME_AUTO) return form;
    form.home = home;
    if (home == CN_HOME_DEVICE) form.policy = CN_KV_FULL;
    return form;
}

/* ---- derived numbers ---- */

uint32_t cn_home_longest(uint64_t n_blocks, uint32_t n_requests, uint32_t block_tokens)
{
    const uint64_t n = n_requests > 0 ? n_blocks / n_requests * block_tokens : 0;
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

static uint32_t default_cap(const cn_kv_params *kv, uint32_t n_entries)
{
    if (has_tiles(kv)) return CAP_TILES;
    return n_entries / (kv->home == CN_HOME_PEER ? PEER_SHARE : HOST_SHARE);
}

cn_away cn_away_of(const cn_kv_params *kv, uint32_t block_tokens)
{
    if (!is_away(kv)) return (cn_away){0};
    cn_away a = {.entry_tokens = has_tiles(kv) ? CN_DIGEST_TILE : 1};
    const uint64_t resident =
        has_tiles(kv) ? (uint64_t)kv->select_tiles * CN_DIGEST_TILE : kv->select_tokens;
    a.n_exchange = (uint32_t)cn_ceil_div(resident, block_tokens);
    a.n_entries = a.n_exchange * block_tokens / a.entry_tokens;
    const uint32_t cap = kv->select_cap > 0 ? kv->select_cap : default_cap(kv, a.n_entries);
    a.cap = cn_max_u32(1, cn_min_u32(cap, a.n_entries));
    return a;
}

uint32_t cn_away_budget(uint32_t block_tokens)
{
    return (uint32_t)cn_round_up(LEAST_BUDGET_TOKENS, block_tokens);
}

uint32_t cn_away_n_max(const cn_kv_params *kv, uint32_t block_tokens)
{
    const uint32_t n_max = cn_policy_n_max(kv, block_tokens);
    return n_max > 0 ? n_max + cn_away_of(kv, block_tokens).n_exchange : 0;
}

/* Policy `window` holds the sinks and the newest tokens that were home at the last commit; all
 * tokens between them are candidates. */
cn_away_span cn_away_span_of(const cn_kv_params *kv, uint32_t home_len, uint32_t block_tokens)
{
    const uint32_t entry = cn_away_of(kv, block_tokens).entry_tokens;
    CN_ASSERT(entry > 0 && home_len > kv->budget_tokens && home_len % block_tokens == 0);
    if (kv->policy != CN_KV_WINDOW)
        return (cn_away_span){.n = home_len / entry, .excludes_held = true};
    CN_ASSERT(kv->sink_tokens % entry == 0 && kv->budget_tokens % entry == 0);
    return (cn_away_span){.base = kv->sink_tokens, .n = (home_len - kv->budget_tokens) / entry};
}

/* ---- checks ---- */

static cn_status check_selector(const cn_kv_params *kv)
{
    const char *home = names[kv->home];
    if (kv->select == CN_SELECT_NONE)
        return cn_fail(CN_ERR_ARG,
                       "kv home %s without a selector: nothing would bring tokens back; set kv "
                       "select to spade, last or tls, or kv home to device",
                       home);
    if (cn_selector_of(kv->select)->away) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv select %s with kv home %s: expected spade, last or tls, which rank before "
                   "the step's query is known; change one of the two",
                   cn_kv_select_name(kv->select), home);
}

static cn_status check_zip(const cn_kv_params *kv)
{
    if (has_tiles(kv))
        return cn_fail(CN_ERR_ARG,
                       "kv policy zip with kv select %s and kv home %s: expected spade or last, "
                       "because a tile may have tokens that zip keeps; or use kv policy window",
                       cn_kv_select_name(kv->select), names[kv->home]);
    if (kv->window_tokens >= 2) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv window of %u tokens with kv select %s and kv home %s: expected at least 2, "
                   "because the selector reads the newest queries from it",
                   kv->window_tokens, cn_kv_select_name(kv->select), names[kv->home]);
}

cn_status cn_away_check(cn_kv_params *kv, uint32_t block_tokens)
{
    if ((unsigned)kv->home >= CN_N_HOMES)
        return cn_fail(CN_ERR_ARG, "kv home %u: expected a value of cn_kv_home",
                       (unsigned)kv->home);
    if ((unsigned)kv->policy >= CN_N_POLICIES || (unsigned)kv->select >= CN_N_SELECTORS)
        return CN_OK; /* the checks of policy and selector refuse it */
    if (!is_away(kv)) return CN_OK;
    CN_TRY(check_selector(kv));
    if (!cn_policy_of(kv->policy)->away)
        return cn_fail(CN_ERR_ARG,
                       "kv policy %s with kv home %s: expected full, window or zip, because the "
                       "home must know what stays on the device; change one of the two",
                       cn_kv_policy_name(kv->policy), names[kv->home]);
    if ((unsigned)kv->select_query > CN_QUERY_PREDICTED)
        return cn_fail(CN_ERR_ARG, "kv select_query %u: expected a value of cn_select_query",
                       (unsigned)kv->select_query);
    if (kv->home == CN_HOME_HOST && kv->select_keys == CN_SELECT_ROWS && !has_tiles(kv))
        return cn_fail(CN_ERR_ARG,
                       "kv select_keys rows with kv home host: expected labels, because each step "
                       "would read all keys from host memory; or use kv home peer");
    if (kv->policy == CN_KV_ZIP) return check_zip(kv);
    if (kv->policy == CN_KV_FULL) {
        kv->policy = CN_KV_WINDOW;
        kv->budget_tokens = cn_away_budget(block_tokens);
    }
    return CN_OK;
}
