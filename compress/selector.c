/* selector.c - the table of selectors, spans and checks of a request's selection parameters. See
 * selector.h; SELECTION.md. */
#include "compress/selector.h"

#include "compress/away.h"
#include "compress/policy.h"

enum { LIST_ALIGN = 16 };

/* The comments of cn_kv_select (engine/cinch.h) say what each row selects. */
static const cn_selector table[CN_N_SELECTORS] = {
    [CN_SELECT_NONE] = {.name = "none", .params = ""},
    [CN_SELECT_ORACLE] = {.name = "oracle",
                          .params = "select_tokens sinks recent_tokens",
                          .entry_tokens = 1},
    [CN_SELECT_QUEST] = {.name = "quest",
                         .params = "select_tokens sinks recent_tokens",
                         .entry_tokens = CN_DIGEST_PAGE,
                         .planes = 1U << CN_PLANE_BOUNDS_16},
    [CN_SELECT_DS] = {.name = "ds",
                      .params = "select_tokens select_group sinks recent_tokens",
                      .entry_tokens = 1,
                      .planes = 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES},
    [CN_SELECT_TLS] = {.name = "tls",
                       .params = "select_tokens select_tiles select_group sinks recent_tokens",
                       .entry_tokens = 1,
                       .has_tiles = true,
                       .away = true,
                       .planes = 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES |
                                 1U << CN_PLANE_BOUNDS_64},
    [CN_SELECT_SPADE] = {.name = "spade",
                         .params = "select_tokens select_keys select_window select_weights "
                                   "select_rotate sinks",
                         .entry_tokens = 1,
                         .predicts = true,
                         .away = true,
                         .planes = 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES},
    [CN_SELECT_LAST] = {.name = "last",
                        .params = "select_tokens select_keys select_rotate sinks",
                        .entry_tokens = 1,
                        .predicts = true,
                        .away = true,
                        .planes = 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES},
    [CN_SELECT_RANDOM] = {.name = "random",
                          .params = "select_tokens sinks recent_tokens",
                          .entry_tokens = 1},
    [CN_SELECT_SPEC] = {.name = "spec",
                        .params = "select_tokens sinks recent_tokens",
                        .entry_tokens = 1,
                        .ahead = true,
                        .away = true,
                        .planes = 1U << CN_PLANE_DRAFT | 1U << CN_PLANE_STATE},
};

const cn_selector *cn_selector_of(cn_kv_select select)
{
    CN_ASSERT((unsigned)select < CN_N_SELECTORS);
    return &table[select];
}

const char *cn_kv_select_name(cn_kv_select s)
{
    return (unsigned)s < CN_N_SELECTORS ? table[s].name : "?";
}

cn_selector_needs cn_selectors_need(uint32_t selectors)
{
    cn_selector_needs needs = {0};
    for (unsigned i = 1; i < CN_N_SELECTORS; i++) {
        if (!(selectors >> i & 1)) continue;
        needs.any = true;
        needs.slots |= table[i].predicts;
        needs.away_slots |= table[i].away && !table[i].ahead;
        needs.tiles |= table[i].has_tiles;
        needs.head |= table[i].ahead;
        needs.planes |= table[i].planes;
    }
    needs.digests = needs.planes & ~(1U << CN_PLANE_DRAFT | 1U << CN_PLANE_STATE);
    needs.labels = needs.planes >> CN_PLANE_LABELS & 1;
    return needs;
}

/* ---- checks ---- */

static cn_status check_past(const cn_kv_params *kv, uint32_t block_tokens)
{
    if (kv->sink_tokens < cn_away_budget(block_tokens)) return CN_OK;
    return cn_fail(CN_ERR_ARG, "kv sinks of %u tokens: selector %s expects fewer than %u",
                   kv->sink_tokens, table[kv->select].name, cn_away_budget(block_tokens));
}

static cn_status check_tiles(const cn_kv_params *kv)
{
    const uint64_t ranked = (uint64_t)kv->select_tiles * CN_DIGEST_TILE;
    /* Away, the sinks are in the policy's blocks. */
    const uint32_t sinks = cn_kv_is_away(kv) ? 0 : kv->sink_tokens;
    const uint64_t needed = (uint64_t)kv->select_tokens + sinks;
    if (ranked >= needed) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "kv select_tiles of %u: the %llu tokens of these tiles are fewer than the %llu "
                   "of select_tokens and sinks; raise select_tiles to %llu",
                   kv->select_tiles, (unsigned long long)ranked, (unsigned long long)needed,
                   (unsigned long long)cn_ceil_div(needed, CN_DIGEST_TILE));
}

static cn_status check_enums(const cn_kv_params *kv)
{
    if ((unsigned)kv->select_keys > CN_SELECT_ROWS)
        return cn_fail(CN_ERR_ARG, "kv select_keys %u: expected a value of cn_select_keys",
                       (unsigned)kv->select_keys);
    if ((unsigned)kv->select_group > CN_SELECT_MEAN)
        return cn_fail(CN_ERR_ARG, "kv select_group %u: expected a value of cn_select_group",
                       (unsigned)kv->select_group);
    if ((unsigned)kv->select_weights > CN_WEIGHTS_RAW)
        return cn_fail(CN_ERR_ARG, "kv select_weights %u: expected a value of cn_select_weights",
                       (unsigned)kv->select_weights);
    return CN_OK;
}

/* Whether the selector reads more queries of the past than the newest. */
static bool reads_window(const cn_kv_params *kv)
{
    if (kv->select == CN_SELECT_SPADE) return true;
    return table[kv->select].has_tiles && cn_kv_is_away(kv) && kv->select_query != CN_QUERY_LAST;
}

/* 1 to `most`, which the option of that name sets for the engine. */
static cn_status check_most(const char *field, const char *option, uint32_t value, uint32_t most)
{
    if (value >= 1 && value <= most) return CN_OK;
    return cn_fail(CN_ERR_ARG, "kv %s %u: expected 1 to %u; raise --%s for more", field, value,
                   most, option);
}

cn_status cn_selector_check(cn_kv_params *kv, uint32_t block_tokens, const cn_kv_params *most)
{
    if ((unsigned)kv->select >= CN_N_SELECTORS)
        return cn_fail(CN_ERR_ARG, "kv select %u: expected a value of cn_kv_select",
                       (unsigned)kv->select);
    if (kv->select == CN_SELECT_NONE) return CN_OK;
    const cn_selector *row = &table[kv->select];
    const bool away = cn_kv_is_away(kv);
    if (kv->policy != CN_KV_FULL && !away)
        return cn_fail(CN_ERR_ARG,
                       "kv select %s with kv policy %s: expected policy full, because an evicted "
                       "token cannot be selected; change one of the two%s",
                       row->name, cn_kv_policy_name(kv->policy),
                       row->away ? ", or set kv home to peer or host, where all tokens are kept"
                                 : "");
    CN_TRY(check_enums(kv));
    CN_TRY(check_most("select_tokens", "select-tokens", kv->select_tokens, most->select_tokens));
    if (kv->sink_tokens > most->sink_tokens)
        return cn_fail(CN_ERR_ARG,
                       "kv sinks of %u tokens with selector %s: expected at most %u; raise "
                       "--kv-sinks for more",
                       kv->sink_tokens, row->name, most->sink_tokens);
    if (reads_window(kv))
        CN_TRY(check_most("select_window", "select-window", kv->select_window,
                          most->select_window));
    if (row->has_tiles)
        CN_TRY(check_most("select_tiles", "select-tiles", kv->select_tiles, most->select_tiles));
    const uint32_t align = row->predicts || away ? block_tokens : (uint32_t)LIST_ALIGN;
    kv->select_tokens = (uint32_t)cn_round_up(kv->select_tokens, align);
    /* A tile that has a sink would be no candidate. */
    if (row->has_tiles && away)
        kv->sink_tokens = (uint32_t)cn_round_up(kv->sink_tokens, CN_DIGEST_TILE);
    if (row->predicts) return away ? CN_OK : check_past(kv, block_tokens);
    if (kv->recent_tokens > UINT32_MAX / 2)
        return cn_fail(CN_ERR_ARG, "kv recent_tokens %u: expected at most %u", kv->recent_tokens,
                       UINT32_MAX / 2);
    kv->recent_tokens = (uint32_t)cn_round_up(kv->recent_tokens, CN_DIGEST_TILE);
    return row->has_tiles ? check_tiles(kv) : CN_OK;
}

/* ---- spans ---- */

cn_sel_stage cn_selector_tile_stage(void)
{
    return (cn_sel_stage){.active = 1,
                          .key = CN_KEY_BOUNDS,
                          .group = CN_GROUP_SUM,
                          .entry_log2 = CN_DIGEST_TILE_LOG2};
}

cn_sel_stage cn_selector_token_stage(const cn_kv_params *kv)
{
    cn_sel_stage st = {.active = 1, .key = CN_KEY_LABELS, .group = CN_GROUP_MAX};
    switch (kv->select) {
    case CN_SELECT_ORACLE: st.key = CN_KEY_ROWS; break;
    case CN_SELECT_QUEST:
        st.key = CN_KEY_BOUNDS;
        st.group = CN_GROUP_SUM;
        st.entry_log2 = 4;
        break;
    case CN_SELECT_TLS:
        st.in_tiles = 1;
        /* fall through */
    case CN_SELECT_DS:
        if (kv->select_group == CN_SELECT_MEAN) st.group = CN_GROUP_MEAN;
        break;
    case CN_SELECT_SPADE:
    case CN_SELECT_LAST:
        st.query = CN_SEL_PREDICTED;
        if (kv->select_keys == CN_SELECT_ROWS)
            st.key = CN_KEY_ROWS;
        else
            st.group = CN_GROUP_MEAN;
        break;
    case CN_SELECT_RANDOM: st.key = CN_KEY_HASH; break;
    case CN_SELECT_SPEC: st.key = CN_KEY_ROWS; break; /* of the head */
    case CN_SELECT_NONE: break;
    }
    return st;
}

cn_sel_forms cn_selectors_forms(uint32_t selectors)
{
    cn_sel_forms forms = {{0}};
    const cn_sel_stage tiles = cn_selector_tile_stage();
    for (uint32_t i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++) {
        if (!(selectors >> i & 1) || table[i].ahead) continue;
        if (cn_selector_of((cn_kv_select)i)->has_tiles) forms.stage[0] |= cn_sel_form(&tiles);
        for (uint32_t k = 0; k < 4; k++) {
            const cn_kv_params kv = {.select = (cn_kv_select)i,
                                     .select_group = k % 2 ? CN_SELECT_MEAN : CN_SELECT_MAX,
                                     .select_keys = k / 2 ? CN_SELECT_ROWS : CN_SELECT_LABELS};
            const cn_sel_stage tokens = cn_selector_token_stage(&kv);
            forms.stage[1] |= cn_sel_form(&tokens);
        }
    }
    return forms;
}

/* First token behind the candidates of a selector that predicts; 0: there are none yet. They are
 * those of the same request with policy `window` and its KV elsewhere: an event comes when a block
 * fills, and the list of a step follows the events before the previous step. The first list is made
 * at the first event. */
static uint32_t past_end(const cn_kv_params *kv, uint32_t n_prompt, uint32_t position,
                         uint32_t block_tokens)
{
    cn_kv_params away = *kv;
    away.home = CN_HOME_PEER;
    away.policy = CN_KV_WINDOW;
    away.budget_tokens = cn_away_budget(block_tokens);
    const uint32_t n_max = cn_away_n_max(&away, block_tokens);
    const uint32_t first = cn_policy_first_trigger(n_max, n_prompt, block_tokens);
    if (position < first) return 0;
    const uint32_t since = position > first ? (position - 1 - first) / block_tokens : 0;
    const cn_away_span s = cn_away_span_of(&away, first + since * block_tokens, block_tokens);
    return s.base + s.n;
}

/* First token behind the candidates of the other selectors: recent_tokens before the last tile that
 * was complete before this step. */
static uint32_t present_end(const cn_kv_params *kv, uint32_t position)
{
    const uint32_t complete = position / CN_DIGEST_TILE * CN_DIGEST_TILE;
    return complete > kv->recent_tokens ? complete - kv->recent_tokens : 0;
}

cn_select_span cn_select_span_at(const cn_kv_params *kv, uint32_t n_prompt, uint32_t position,
                                 uint32_t block_tokens)
{
    const cn_selector *row = cn_selector_of(kv->select);
    const cn_select_span dense = {0};
    if (kv->select == CN_SELECT_NONE || cn_kv_is_away(kv) || position < n_prompt) return dense;
    const uint32_t base = (uint32_t)cn_round_up(kv->sink_tokens, row->entry_tokens);
    const uint32_t tail =
        row->predicts ? past_end(kv, n_prompt, position, block_tokens) : present_end(kv, position);
    if (tail <= base || tail - base <= kv->select_tokens) return dense;
    cn_select_span s = {
        .listed = true, .n_forced = base, .list_len = base + kv->select_tokens, .tail = tail};
    *(row->ahead ? &s.ahead : &s.stage[1]) = cn_selector_token_stage(kv);
    s.base[1] = base;
    s.n[1] = (tail - base) / row->entry_tokens;
    s.k[1] = kv->select_tokens / row->entry_tokens;
    if (!row->has_tiles) return s;
    s.stage[0] = cn_selector_tile_stage();
    s.n[0] = tail / CN_DIGEST_TILE;
    s.k[0] = cn_min_u32(kv->select_tiles, s.n[0]);
    s.n[1] = s.k[0] * CN_DIGEST_TILE;
    return s;
}

cn_select_span cn_select_span_away(const cn_kv_params *kv, uint32_t block_tokens)
{
    const uint32_t area = cn_away_of(kv, block_tokens).n_exchange * block_tokens;
    cn_select_span s = {0};
    if (!cn_selector_of(kv->select)->has_tiles || kv->select_tokens >= area) return s;
    s.listed = true;
    s.list_len = s.k[1] = kv->select_tokens;
    s.tail = s.n[1] = area;
    s.stage[1] = cn_selector_token_stage(kv);
    s.stage[1].in_tiles = 0;
    s.stage[1].is_area = 1;
    return s;
}

uint32_t cn_selector_ring_rows(const cn_kv_params *kv)
{
    const cn_selector *row = cn_selector_of(kv->select);
    if (!row->predicts && !(row->away && !row->ahead && cn_kv_is_away(kv))) return 0;
    return (reads_window(kv) ? kv->select_window : 1) + 1;
}

uint32_t cn_ring_rows(const cn_kv_params *kv)
{
    return cn_policy_needs_slot(kv) ? cn_rule_queries(kv) : cn_selector_ring_rows(kv);
}

bool cn_kv_needs_slot(const cn_kv_params *kv)
{
    return cn_policy_needs_slot(kv) || (cn_kv_is_away(kv) && cn_selector_ring_rows(kv) > 0);
}
