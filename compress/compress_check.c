/* compress_check.c - see compress_check.h. The CUDA backend is linked with it too. */
#include "compress/compress_check.h"

#include "compress/policy.h"

cn_status cn_compress_check_shape(const cn_pools *p)
{
    const cn_kv_layout *l = &p->layout;
    if (l->head_dim % 16 != 0 || p->n_heads % l->n_kv_heads != 0)
        return cn_fail(CN_ERR_SHAPE, "head_dim %u (want a multiple of 16), %u query heads for %u "
                                     "kv heads (want a multiple)",
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
        return cn_fail(CN_ERR_ARG, "%u target blocks for %u source blocks", r->n_target,
                       r->n_blocks);
    if (!r->first_event && r->n_history > n)
        return cn_fail(CN_ERR_ARG, "history of %u slots, of %u resident", r->n_history, n);
    if (scratch_bytes > a->scratch_bytes)
        return cn_fail(CN_ERR_ARG, "compressing %u slots takes %zu bytes of scratch, have %zu", n,
                       scratch_bytes, a->scratch_bytes);
    for (uint32_t i = 0; i < r->n_blocks; i++) CN_ASSERT(r->table[i] < l->n_blocks);
    for (uint32_t i = 0; i < r->n_target; i++) CN_ASSERT(r->target[i] < l->n_blocks);
    if (policy->keep == CN_KEEP_ALL)
        return cn_fail(CN_ERR_ARG, "policy %s has no compression", policy->name);
    return policy->check_event ? policy->check_event(&a->pools, r) : CN_OK;
}
