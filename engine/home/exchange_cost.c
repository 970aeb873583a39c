/* exchange_cost.c - see exchange_cost.h.
 *
 * A step reads the weights once and the resident K and V of each request. The exchange of pack p of
 * a step has until pack p of the next step begins, so with n packs the transfers hide while they
 * take at most (n - 1) / n of the step. */
#include "engine/home/exchange_cost.h"

#include "engine/home/exchange.h"
#include "engine/start/planner.h"

/* What a step reads: weights, of experts those that its requests use, and resident K and V. */
typedef struct step_reads {
    const cn_model_config *model;
    const cn_backend *be;
    double resident_bytes; /* of a request */
    double bytes_per_s;
} step_reads;

static double weights_s(const step_reads *t, uint32_t n)
{
    return (double)cn_planner_weight_bytes(t->model, t->be, n) / t->bytes_per_s;
}

/* The largest n with n * step_bytes / link <= share * (weights_s + n * resident_s). If it holds for
 * n it holds for fewer, because more requests share the weights. */
static uint32_t hidden_batch(const cn_exchange_cost *x, uint32_t n_packs, const step_reads *t)
{
    const double share = (double)(n_packs - 1) / n_packs;
    const double each_s = (double)x->step_bytes / x->link_bytes_per_s -
                          share * t->resident_bytes / t->bytes_per_s;
    const double most_s = share * weights_s(t, UINT32_MAX); /* every expert is used */
    if (each_s * UINT32_MAX <= most_s) return UINT32_MAX;
    uint32_t n = 0, beyond = (uint32_t)(most_s / each_s) + 1;
    while (beyond - n > 1) {
        const uint32_t middle = n + (beyond - n) / 2;
        if (middle * each_s <= share * weights_s(t, middle))
            n = middle;
        else
            beyond = middle;
    }
    return n;
}

cn_exchange_rates cn_exchange_rates_of(cn_kv_home home, double read_bytes_per_s,
                                       double link_bytes_per_s)
{
    static const double OF_TILES = 51.0 / 55.5, OF_ROWS = 18.0 / 55.5; /* on an H200 */
    const bool host = home == CN_HOME_HOST;
    return (cn_exchange_rates){read_bytes_per_s, link_bytes_per_s * (host ? OF_ROWS : 1),
                               link_bytes_per_s * (host ? OF_TILES : 1)};
}

uint32_t cn_exchange_costs(cn_exchange_cost out[CN_N_SELECTORS], const cn_config *c,
                           const cn_model_config *m, const cn_backend *be, cn_kv_home home,
                           uint32_t block_tokens, const cn_exchange_rates *rates)
{
    const cn_packs packs = cn_packs_make(c->select_dense_layers, m->n_layers, c->n_packs);
    const cn_kv_layout l = cn_planner_layout(c, m, be, 1, block_tokens);
    const uint64_t row_bytes = l.tile_bytes / l.tile_tokens; /* K and V of a token and kv head */
    const uint64_t units = (uint64_t)packs.n_layers * m->n_kv_heads;
    const uint32_t n_resident = cn_planner_away_n_max(c, block_tokens) - 1;
    const step_reads reads = {m, be, (double)n_resident * (double)l.block_bytes * m->n_layers,
                              rates->read};
    uint32_t n = 0;
    for (unsigned i = CN_SELECT_NONE + 1; i < CN_N_SELECTORS; i++) {
        cn_exchange_cost x = {.select = (cn_kv_select)i};
        if (!cn_planner_away(c, home, i, block_tokens, &x.away)) continue;
        x.step_bytes = units * x.away.cap * x.away.entry_tokens * row_bytes;
        x.link_bytes_per_s = x.away.entry_tokens > 1 ? rates->tiles : rates->tokens;
        if (rates->read > 0 && x.link_bytes_per_s > 0)
            x.hidden_batch = hidden_batch(&x, packs.n, &reads);
        out[n++] = x;
    }
    return n;
}
