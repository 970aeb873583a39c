/* compress_check.h - the checks of a compression event that every backend makes before it runs one.
 * A leaf shared by the backends, so that all give the same errors. Stage 5 of a request's way;
 * thread: the engine's. */
#ifndef CN_COMPRESS_CHECK_H
#define CN_COMPRESS_CHECK_H

#include "engine/base.h"
#include "engine/ops.h"

/* Checks shapes that do not depend on the request. CN_ERR_SHAPE when no event can run in p. */
static inline cn_status cn_compress_check_shape(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    if (l->head_dim % 16 != 0 || p->n_heads % l->n_kv_heads != 0)
        return cn_fail(CN_ERR_SHAPE, "head_dim %u and %u query heads for %u kv heads: expected "
                                     "head_dim a multiple of 16 and query heads a multiple of kv "
                                     "heads",
                       l->head_dim, p->n_heads, l->n_kv_heads);
    return CN_OK;
}

static inline cn_status cn_compress_check_zip(const cn_pools *p, const cn_compress_req *r)
{
    const uint32_t w = r->params.window_tokens, kept = r->n_target * p->layout.block_tokens;
    if (!p->q_window)
        return cn_fail(CN_ERR_ARG, "zip compression needs observed queries, but the engine keeps "
                                   "none: declare zip with --kv-policies");
    if (w == 0 || w > p->window || w > kept || w > r->position_end)
        return cn_fail(CN_ERR_ARG,
                       "observation window of %u tokens: expected 1 to %u (the engine's "
                       "--kv-window), at most the budget of %u and the %u tokens so far",
                       w, p->window, kept, r->position_end);
    if (r->query_slot >= p->n_query_slots)
        return cn_fail(CN_ERR_ARG, "query slot %u: expected less than %u", r->query_slot,
                       p->n_query_slots);
    if (r->params.global_score && !p->score)
        return cn_fail(CN_ERR_ARG, "the request needs the global score, but the engine keeps none: "
                                   "declare zip with --kv-policies, or set kv.global to false");
    if (r->params.redundancy != CN_REDUNDANCY_NONE && !(r->params.redundancy_tau > 0))
        return cn_fail(CN_ERR_ARG, "redundancy temperature tau %g: expected above 0",
                       (double)r->params.redundancy_tau);
    return CN_OK;
}

/* Checks one request of an event that needs scratch_bytes. CN_ERR_ARG names field and value. */
static inline cn_status cn_compress_check_request(const cn_compress_args *a,
                                                  const cn_compress_req *r, size_t scratch_bytes)
{
    const cn_kv_layout *l = &a->pools.layout;
    const uint32_t n = r->n_blocks * l->block_tokens;
    if (r->n_target == 0 || r->n_target > r->n_blocks)
        return cn_fail(CN_ERR_ARG, "%u target blocks: expected 1 to %u, the source blocks",
                       r->n_target, r->n_blocks);
    if (!r->first_event && r->n_history > n)
        return cn_fail(CN_ERR_ARG, "history of %u slots: expected at most the %u resident ones",
                       r->n_history, n);
    if (scratch_bytes > a->scratch_bytes)
        return cn_fail(CN_ERR_ARG, "compressing %u slots: expected %zu bytes of scratch, got %zu",
                       n, scratch_bytes, a->scratch_bytes);
    for (uint32_t i = 0; i < r->n_blocks; i++) CN_ASSERT(r->table[i] < l->n_blocks);
    for (uint32_t i = 0; i < r->n_target; i++) CN_ASSERT(r->target[i] < l->n_blocks);
    switch (r->params.policy) {
    case CN_KV_WINDOW: return CN_OK;
    case CN_KV_ZIP: return cn_compress_check_zip(&a->pools, r);
    case CN_KV_FULL: break;
    }
    return cn_fail(CN_ERR_ARG, "compression under kv policy full: expected window or zip");
}

#endif
