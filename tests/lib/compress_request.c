/* compress_request.c - see compress_request.h. */
#include "tests/lib/compress_request.h"

#include "compress/policy.h"
#include "compress/rule.h"
#include "engine/base/base.h"

/* Every policy with events, most often zip. */
static cn_kv_policy draw_policy(test_rng *r)
{
    for (;;) {
        const uint32_t i = test_rng_below(r, 2 * CN_N_POLICIES);
        const cn_kv_policy policy = i < CN_N_POLICIES ? (cn_kv_policy)i : CN_KV_ZIP;
        if (cn_policy_of(policy)->keep != CN_KEEP_ALL) return policy;
    }
}

cn_compress_req compress_request_draw(test_rng *r, const cn_pools *p, uint32_t i,
                                      uint32_t n_blocks)
{
    const uint32_t b = p->layout.block_tokens;
    cn_compress_req q = {.n_blocks = n_blocks, .n_target = 1 + test_rng_below(r, n_blocks)};
    const uint32_t n = q.n_blocks * b;
    q.query_slot = (i + 1) % p->n_query_slots;
    q.position_end = n + test_rng_below(r, 1000);
    q.first_event = test_rng_below(r, 2);
    q.n_history = q.first_event ? 0 : test_rng_below(r, n + 1);
    const uint32_t kept = q.n_target * b;
    const uint32_t window = 1 + test_rng_below(r, cn_min_u32(p->window, kept));
    q.params = (cn_kv_params){.policy = draw_policy(r),
                              .budget_tokens = q.n_target * b,
                              .window_tokens = window,
                              .sink_tokens = cn_min_u32(test_rng_below(r, 9), kept - window),
                              .rule = (cn_kv_rule)test_rng_below(r, CN_N_RULES),
                              .global_score = test_rng_below(r, 3) > 0,
                              .alpha = 0.8f,
                              .pooling = (cn_kv_pooling)test_rng_below(r, 3),
                              .redundancy = (cn_kv_redundancy)test_rng_below(r, 3),
                              .redundancy_p = 0.5f,
                              .redundancy_tau = 0.4f,
                              .lambda = 0.2f,
                              .combine = (cn_kv_combine)test_rng_below(r, 2),
                              .move = (cn_kv_move)test_rng_below(r, 2)};
    q.params.observe_tokens = test_rng_below(r, p->window + 1);
    q.params.recent = (float)test_rng_below(r, kept - q.params.sink_tokens + 1);
    return q;
}
