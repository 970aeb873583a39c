/* cinch_true_query.c - the cinch program with exchanges that rank by the step's own query: what
 * away requests would do if queries were predicted without error. For measurements alone
 * (docs/QUALITY.md): a step waits for its exchanges, layer by layer.
 *
 *     build/tests/cinch_true_query compare ... --packs LAYERS \
 *         --arms zip:256:select=last:select_tokens=64:select_cap=64:no-select_rotate:home=peer
 *
 * In a layer, the exchange begins when the layer's queries are in the ring, and attention waits for
 * it. Each layer that selects needs a pack of its own. `last` then ranks by the true query, and
 * no-select_rotate leaves that query at its own position. The usual exchange behind the pack finds
 * nothing left to move, so the counts of fetched and missed tokens are 0. The program is linked
 * with --wrap=cn_home_create. */
#include "engine/home/home.h"

cn_status __real_cn_home_create(cn_homes *h, const cn_home_opts *o);
cn_status __wrap_cn_home_create(cn_homes *h, const cn_home_opts *o);

static cn_homes *home;
static cn_status (*real_rope_store)(cn_stream *s, const cn_rope_store_args *a);

static cn_status store_and_exchange(cn_stream *s, const cn_rope_store_args *a)
{
    CN_TRY(real_rope_store(s, a));
    if (!home->steps || a->layer < home->packs.first_layer) return CN_OK;
    CN_TRY(home->hook.leave(home, a->layer));
    return home->hook.enter(home, a->layer);
}

cn_status __wrap_cn_home_create(cn_homes *h, const cn_home_opts *o)
{
    CN_TRY(__real_cn_home_create(h, o));
    if (!cn_homes_any(h)) return CN_OK;
    const uint32_t n_layers = o->model->n_layers - h->packs.first_layer;
    if (h->packs.n != n_layers)
        return cn_fail(CN_ERR_ARG, "--packs %u: expected %u, one for each layer that selects",
                       h->packs.n, n_layers);
    home = h;
    real_rope_store = o->model_be->rope_store;
    o->model_be->rope_store = store_and_exchange;
    return CN_OK;
}
