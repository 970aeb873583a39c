/* compress_check.c - see compress_check.h. The CUDA backend links this file too. */
#include "compress/compress_check.h"

#include "compress/policy.h"

cn_status cn_compress_check_shape(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    if (l->head_dim % 16 != 0 || p->n_heads % l->n_kv_heads != 0)
        return cn_fail(CN_ERR_SHAPE, "head_dim %u and %u query heads for %u kv heads: expected "
                                     "head_dim a multiple of 16 and query heads a multiple of kv "
                                     "heads",
                       l->head_dim, p->n_heads, l->n_kv_heads);
    return CN_OK;
}

cn_status cn_compress_check_request(const cn_compress_args *a, const cn_compress_req *r,
                                    size_t scratch_bytes)
{
    const cn_kv_layout *l = &a->pools.layout;
    const uint32_t n = r->n_blocks * l->block_tokens;
    const cn_policy *policy = cn_policy_of(r->params.policy);
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
    if (policy->keep == CN_KEEP_ALL)
        return cn_fail(CN_ERR_ARG, "compression under kv policy %s: expected a policy with events",
                       policy->name);
    return policy->check_event ? policy->check_event(&a->pools, r) : CN_OK;
}
