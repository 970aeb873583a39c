/* away.c - see away.h; HOMES.md. */
#include "compress/away.h"

#include "compress/policy.h"
#include "compress/selector.h"

/* The policy window beside an exchange area keeps one block, at least this many tokens. */
enum { LEAST_BUDGET_TOKENS = 128 };

/* An exchange replaces so many tiles by default. These and cap_share are what a link moves while a
 * step runs. */
enum { CAP_TILES = 2 };

static const cn_home_kind kinds[CN_N_HOMES + 1] = {
    [CN_HOME_DEVICE] = {.name = "device"},
    [CN_HOME_PEER] =
        {.name = "peer", .is_away = true, .has_device = true, .ranks_rows = true, .cap_share = 8},
    [CN_HOME_HOST] = {.name = "host", .is_away = true, .cap_share = 32},
    [CN_HOME_AUTO] = {.name = "auto", .is_away = true, .is_chosen = true, .cap_share = 32},
};

const cn_home_kind *cn_home_kind_of(cn_kv_home home)
{
    static const cn_home_kind unknown = {.name = "?"};
    return (unsigned)home <= CN_N_HOMES ? &kinds[home] : &unknown;
}

const cn_home_kind *cn_kv_home_kind(const cn_kv_params *kv) { return cn_home_kind_of(kv->home); }

const char *cn_kv_home_name(cn_kv_home h) { return cn_home_kind_of(h)->name; }

uint32_t cn_kv_homes(const cn_kv_params *kv, uint32_t of_auto)
{
    if (cn_kv_home_kind(kv)->is_chosen) return of_auto;
    return (unsigned)kv->home < CN_N_HOMES ? 1U << kv->home : 0;
}

void cn_kv_keep_all(cn_kv_params *kv)
{
    kv->policy = CN_KV_FULL;
    kv->select = CN_SELECT_NONE;
    kv->home = CN_HOME_DEVICE;
}

static bool ranks_tiles(const cn_kv_params *kv) { return cn_selector_of(kv->select)->has_tiles; }

static bool ranks_ahead(const cn_kv_params *kv) { return cn_selector_of(kv->select)->ahead; }

uint32_t cn_away_selectors(void)
{
    uint32_t selectors = 0;
    for (unsigned i = 0; i < CN_N_SELECTORS; i++)
        if (cn_selector_of((cn_kv_select)i)->away) selectors |= 1U << i;
    return selectors;
}

const char *cn_away_params(const cn_kv_params *kv)
{
    if (!cn_kv_is_away(kv)) return "";
    if (!ranks_tiles(kv)) return "home select_cap";
    return kv->select_query == CN_QUERY_PREDICTED
               ? "home select_cap select_query select_window select_weights"
               : "home select_cap select_query";
}

cn_kv_params cn_away_form(const cn_kv_params *kv, cn_kv_home home)
{
    cn_kv_params form = *kv;
    if (!cn_kv_home_kind(kv)->is_chosen) return form;
    form.home = home;
    if (!cn_home_kind_of(home)->is_away) form.policy = CN_KV_FULL;
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
    if (ranks_tiles(kv)) return CAP_TILES;
    return n_entries / cn_kv_home_kind(kv)->cap_share;
}

cn_away cn_away_of(const cn_kv_params *kv, uint32_t block_tokens)
{
    if (!cn_kv_is_away(kv)) return (cn_away){0};
    cn_away a = {.entry_tokens = ranks_tiles(kv) ? CN_DIGEST_TILE : 1};
    const uint64_t resident =
        ranks_tiles(kv) ? (uint64_t)kv->select_tiles * CN_DIGEST_TILE : kv->select_tokens;
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
    const char *home = cn_kv_home_kind(kv)->name;
    if (kv->select == CN_SELECT_NONE)
        return cn_fail(CN_ERR_ARG,
                       "kv home %s without a selector: nothing would bring tokens back; set kv "
                       "select to spade, last, tls or spec, or kv home to device",
                       home);
    if (cn_selector_of(kv->select)->away) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv select %s with kv home %s: expected spade, last, tls or spec, which rank "
                   "before the step's query is known; change one of the two",
                   cn_kv_select_name(kv->select), home);
}

static cn_status check_away_zip(const cn_kv_params *kv)
{
    if (ranks_tiles(kv))
        return cn_fail(CN_ERR_ARG,
                       "kv policy zip with kv select %s and kv home %s: expected spade or last, "
                       "because a tile may have tokens that zip keeps; or use kv policy window",
                       cn_kv_select_name(kv->select), cn_kv_home_kind(kv)->name);
    if (ranks_ahead(kv))
        return cn_fail(CN_ERR_ARG,
                       "kv policy zip with kv select %s and kv home %s: expected spade or last, "
                       "because one list serves all layers and zip keeps other tokens in each; or "
                       "use kv policy window",
                       cn_kv_select_name(kv->select), cn_kv_home_kind(kv)->name);
    if (kv->window_tokens >= 2) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv window of %u tokens with kv select %s and kv home %s: expected at least 2, "
                   "because the selector reads the newest queries from it",
                   kv->window_tokens, cn_kv_select_name(kv->select), cn_kv_home_kind(kv)->name);
}

cn_status cn_away_check(cn_kv_params *kv, uint32_t block_tokens)
{
    if (cn_kv_homes(kv, 0) == 0)
        return cn_fail(CN_ERR_ARG, "kv home %u: expected a value of cn_kv_home",
                       (unsigned)kv->home);
    if ((unsigned)kv->policy >= CN_N_POLICIES || (unsigned)kv->select >= CN_N_SELECTORS)
        return CN_OK; /* the checks of policy and selector refuse it */
    if (!cn_kv_is_away(kv)) return CN_OK;
    const cn_home_kind *kind = cn_kv_home_kind(kv);
    CN_TRY(check_selector(kv));
    if (!cn_policy_of(kv->policy)->away)
        return cn_fail(CN_ERR_ARG,
                       "kv policy %s with kv home %s: expected full, window or zip, because the "
                       "home must know what stays on the device; change one of the two",
                       cn_kv_policy_name(kv->policy), kind->name);
    if ((unsigned)kv->select_query > CN_QUERY_PREDICTED)
        return cn_fail(CN_ERR_ARG, "kv select_query %u: expected a value of cn_select_query",
                       (unsigned)kv->select_query);
    if (!kind->ranks_rows && kv->select_keys == CN_SELECT_ROWS && !ranks_tiles(kv) &&
        !ranks_ahead(kv))
        return cn_fail(CN_ERR_ARG,
                       "kv select_keys rows with kv home %s: expected labels, because each step "
                       "would read all keys from host memory; or use kv home peer",
                       kind->name);
    if (kv->policy == CN_KV_ZIP) return check_away_zip(kv);
    if (kv->policy == CN_KV_FULL) {
        kv->policy = CN_KV_WINDOW;
        kv->budget_tokens = cn_away_budget(block_tokens);
    }
    return CN_OK;
}
