/* test_op_compress_cuda.c - compression events on the GPU compared with the CPU, on random shapes
 * and for any tables (compress_event.h). Also requests of different policies in one event, long
 * first events, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "compress/rule.h"
#include "engine/cpu/cpu_compress.h"
#include "tests/lib/compress_event.h"
#include "tests/lib/compress_request.h"

void openblas_set_num_threads(int n_threads);

/* ---- drawn events ---- */

static const uint32_t DIMS[] = {16, 64, 80, 96, 128, 256};
static const uint32_t BLOCKS[] = {16, 32, 64, 128, 256};

static event *draw_event(op_env *env)
{
    test_rng *r = &env->rng;
    event_shape s = {.n_layers = 1 + test_rng_below(r, 3), .n_kv_heads = 1 + test_rng_below(r, 3)};
    s.head_dim = DIMS[test_rng_below(r, 6)];
    s.block_tokens = BLOCKS[test_rng_below(r, 5)];
    s.group = 1 + test_rng_below(r, 8);
    s.ring = 1 + test_rng_below(r, 40);
    s.n_reqs = 1 + test_rng_below(r, MAX_REQS);
    const uint32_t most = s.block_tokens >= 128 ? 4 : 12;
    event *e = event_create(env, &s, 2 * MAX_REQS * most);
    uint32_t next = 0;
    for (uint32_t i = 0; i < e->n_reqs; i++) {
        e->reqs[i] = compress_request_draw(&env->rng, &e->pools, i, 1 + test_rng_below(r, most));
        draw_tables(env, e, i, (compress_placement)test_rng_below(r, N_PLACEMENTS), &next);
    }
    return e;
}

static double run_drawn(op_env *env, uint32_t seed)
{
    (void)seed;
    event *e = draw_event(env);
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- the shape of Qwen3-8B ---- */

static event *model_event(op_env *env, uint32_t n_blocks, uint32_t n_target, uint32_t n_reqs)
{
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 2,
                           .group = 4,
                           .head_dim = 128,
                           .block_tokens = 256,
                           .ring = 16,
                           .n_reqs = n_reqs};
    event *e = event_create(env, &s, 2 * n_reqs * n_blocks);
    uint32_t next = 0;
    for (uint32_t i = 0; i < n_reqs; i++) {
        cn_compress_req q = compress_request_draw(&env->rng, &e->pools, i, n_blocks);
        q.n_target = n_target;
        q.first_event = i % 2;
        q.n_history = q.first_event ? 0 : n_target * 256;
        q.params.policy = CN_KV_ZIP;
        q.params.budget_tokens = n_target * 256;
        q.params.window_tokens = 16;
        q.params.sink_tokens = 4;
        q.params.recent = 0.125f;
        q.params.rule = (cn_kv_rule)(i % CN_N_RULES);
        q.params.global_score = true;
        q.params.pooling = CN_POOLING_FIRST;
        q.params.redundancy = CN_REDUNDANCY_LIGHTNING;
        q.params.combine = CN_COMBINE_CONVEX;
        q.params.move = i < 2 ? CN_MOVE_ORDER : CN_MOVE_FILL;
        e->reqs[i] = q;
        draw_tables(env, e, i, IN_PLACE, &next);
    }
    return e;
}

static double run_usual(op_env *env, uint32_t seed)
{
    (void)seed;
    event *e = model_event(env, 9, 8, 4);
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* Every slot is kept, so F is the attention score of all slots. One group per seed. */
static const uint32_t GROUPS[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 48};
enum { N_GROUPS = sizeof GROUPS / sizeof *GROUPS };

static double run_groups(op_env *env, uint32_t seed)
{
    const uint32_t group = GROUPS[seed];
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 2,
                           .group = group,
                           .head_dim = DIMS[group % 6],
                           .block_tokens = BLOCKS[group % 5],
                           .ring = 16,
                           .n_reqs = 1};
    event *e = event_create(env, &s, 12);
    uint32_t next = 0;
    e->reqs[0] = compress_request_draw(&env->rng, &e->pools, 0, 6);
    e->reqs[0].n_target = 6;
    e->reqs[0].params.policy = CN_KV_ZIP;
    e->reqs[0].params.window_tokens = 16;
    e->reqs[0].params.global_score = true;
    draw_tables(env, e, 0, group % 2 ? ALL_NEW : IN_PLACE, &next);
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- rule follow ---- */

/* Fewer slots than a score reaches, and slots that it reaches in another block. No sinks, and more
 * than it reaches. One slot that is kept for its score. Scores that do not fit in shared memory. */
static const struct {
    uint32_t block, n_blocks, n_target, window, sinks;
    float recent;
} FOLLOW[] = {
    {16, 2, 1, 1, 0, 0},       {16, 7, 5, 16, 4, 0},       {16, 9, 6, 7, 3, 0.5f},
    {32, 9, 7, 5, 140, 20},    {64, 7, 6, 16, 4, 379},     {128, 4, 3, 1, 0, 0},
    {256, 9, 8, 16, 4, 0.75f}, {256, 40, 8, 16, 4, 0.75f},
};
enum { N_FOLLOW = sizeof FOLLOW / sizeof *FOLLOW };

/* Beside a request of another rule, which shares the launches. */
static double run_follow(op_env *env, uint32_t seed)
{
    const event_shape s = {.n_layers = 2, .n_kv_heads = 2, .group = 3, .head_dim = 64,
                           .block_tokens = FOLLOW[seed].block, .ring = 16, .n_reqs = 2};
    event *e = event_create(env, &s, 4 * FOLLOW[seed].n_blocks);
    uint32_t next = 0;
    for (uint32_t i = 0; i < 2; i++) {
        cn_compress_req *q = &e->reqs[i];
        *q = compress_request_draw(&env->rng, &e->pools, i, FOLLOW[seed].n_blocks);
        q->n_target = FOLLOW[seed].n_target;
        q->params.policy = CN_KV_ZIP;
        q->params.budget_tokens = q->n_target * s.block_tokens;
        q->params.window_tokens = FOLLOW[seed].window;
        q->params.sink_tokens = FOLLOW[seed].sinks;
        q->params.recent = FOLLOW[seed].recent;
        q->params.rule = i == 0 ? CN_RULE_FOLLOW : CN_RULE_SCALED;
        q->params.observe_tokens = 0;
        if (i > 0) q->params.redundancy = CN_REDUNDANCY_NONE;
        q->params.pooling = CN_POOLING_ALWAYS;
        q->params.move = (cn_kv_move)(seed % 2);
        draw_tables(env, e, i, IN_PLACE, &next);
    }
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- long first events ---- */

/* 10,240 slots and 100,352 slots. */
static double run_long(op_env *env, uint32_t seed)
{
    const event_shape s = {.n_layers = 1,
                           .n_kv_heads = 1,
                           .group = 2,
                           .head_dim = 64,
                           .block_tokens = 256,
                           .ring = 16,
                           .n_reqs = 1};
    const uint32_t n_blocks = seed == 0 ? 40 : 392;
    event *e = event_create(env, &s, 2 * n_blocks);
    uint32_t next = 0;
    e->reqs[0] = compress_request_draw(&env->rng, &e->pools, 0, n_blocks);
    e->reqs[0].n_target = 8;
    e->reqs[0].first_event = true;
    e->reqs[0].params.policy = CN_KV_ZIP;
    e->reqs[0].params.budget_tokens = 8 * 256;
    e->reqs[0].params.sink_tokens = 4;
    e->reqs[0].params.recent = 0.125f;
    e->reqs[0].params.window_tokens = 16;
    e->reqs[0].params.global_score = true;
    e->reqs[0].params.redundancy = CN_REDUNDANCY_LIGHTNING;
    draw_tables(env, e, 0, IN_PLACE, &next);
    e->reqs[0].params.move = CN_MOVE_ORDER;
    check_event(env, e);
    e->reqs[0].params.move = CN_MOVE_FILL;
    check_event(env, e);
    event_free(env, e);
    return 0;
}

/* ---- scratch ---- */

/* The smallest accepted scratch gives the same bits as a large one, in more launches. */
static double run_least_scratch(op_env *env, uint32_t seed)
{
    env->rng.state = 1000 + seed; /* other events than in run_drawn */
    event *e = draw_event(env);
    outcome plenty, least;
    OP_OK(event_run(env, e, 0, &plenty));
    size_t low = 1, high = 32 << 20; /* refused, accepted */
    while (high - low > 256) {
        const size_t middle = low + (high - low) / 2;
        const cn_status status = event_run(env, e, middle, NULL);
        assert_true(status == CN_OK || strstr(cn_last_error(), "bytes of scratch"));
        if (status == CN_OK) high = middle;
        else low = middle;
    }
    OP_OK(event_run(env, e, high, &least));
    assert_same_outcome(&e->pools.layout, &plenty, &least);
    outcome_free(&plenty);
    outcome_free(&least);
    event_free(env, e);
    return 0;
}

/* ---- refusals ---- */

/* Both backends must refuse a request with the same text. */
static void assert_refused(op_env *env, const event *e, const cn_pools *gpu,
                           const cn_compress_req *faulty)
{
    static char scratch[1 << 22];
    cn_backend *be = env->cuda;
    cn_compress_args a = {e->pools, faulty, 1, scratch, sizeof scratch};
    assert_int_equal(cn_cpu_compress(NULL, &a), CN_ERR_ARG);
    char *want = cn_strdup(cn_last_error());
    a.pools = *gpu;
    OP_OK(be->mem_alloc(be, sizeof scratch, &a.scratch));
    assert_int_equal(be->compress(env->cuda_side, &a), CN_ERR_ARG);
    assert_string_equal(cn_last_error(), want);
    be->mem_free(be, a.scratch);
    cn_free(want);
}

static double run_refusals(op_env *env, uint32_t seed)
{
    (void)seed;
    const event_shape s = {.n_layers = 1, .n_kv_heads = 1, .group = 2, .head_dim = 64,
                           .block_tokens = 64, .ring = 16, .n_reqs = 1};
    event *e = event_create(env, &s, 16);
    uint32_t next = 0;
    cn_compress_req q = compress_request_draw(&env->rng, &e->pools, 0, 7);
    q.n_target = 6;
    q.first_event = false;
    q.params.policy = CN_KV_ZIP;
    q.params.window_tokens = 16;
    q.params.global_score = true;
    q.params.redundancy = CN_REDUNDANCY_LIGHTNING;
    e->reqs[0] = q;
    draw_tables(env, e, 0, IN_PLACE, &next);
    q = e->reqs[0];
    const cn_pools gpu = gpu_pools(e);
    enum { N_FAULTS = 9 };
    cn_compress_req faulty[N_FAULTS];
    for (int i = 0; i < N_FAULTS; i++) faulty[i] = q;
    faulty[0].params.window_tokens = 17;
    faulty[1].params.window_tokens = 0;
    faulty[2].position_end = 15;
    faulty[3].query_slot = QUERY_SLOTS;
    faulty[4].n_target = 8;
    faulty[5].n_target = 0;
    faulty[6].n_history = 449;
    faulty[7].params.redundancy_tau = 0;
    faulty[8].params.policy = CN_KV_FULL;
    for (int i = 0; i < N_FAULTS; i++) assert_refused(env, e, &gpu, &faulty[i]);
    cn_pools lacking = gpu;
    e->pools.score = lacking.score = NULL;
    assert_refused(env, e, &lacking, &q);
    e->pools.score = e->score.cpu;
    lacking = gpu;
    e->pools.q_window = lacking.q_window = NULL;
    assert_refused(env, e, &lacking, &q);
    event_free(env, e);
    return 0;
}

/* A faulty request neither undoes the requests before it nor starts those after it. */
static double run_partial(op_env *env, uint32_t seed)
{
    (void)seed;
    event *e = model_event(env, 2, 1, 3);
    e->reqs[1].query_slot = QUERY_SLOTS;
    outcome partial, alone;
    assert_int_equal(event_run(env, e, 0, &partial), CN_ERR_ARG);
    e->n_reqs = 1;
    OP_OK(event_run(env, e, 0, &alone));
    assert_same_outcome(&e->pools.layout, &partial, &alone);
    outcome_free(&partial);
    outcome_free(&alone);
    event_free(env, e);
    return 0;
}

int main(int argc, char **argv)
{
    openblas_set_num_threads(1);
    static const op_case cases[] = {
        {"compress", 40, 0, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, usual", 1, 0, run_usual, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, groups", N_GROUPS, 0, run_groups, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, follow", N_FOLLOW, 0, run_follow, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, long", 2, 0, run_long, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, least scratch", 6, 0, run_least_scratch, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, refused", 1, 0, run_refusals, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, partly refused", 1, 0, run_partial, .gemm = CN_CUDA_GEMM_LIBRARY},
        {"compress, fp8", 40, 0, run_drawn, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"compress, fp8, usual", 1, 0, run_usual, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"compress, fp8, groups", N_GROUPS, 0, run_groups, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"compress, fp8, follow", N_FOLLOW, 0, run_follow, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"compress, fp8, long", 2, 0, run_long, .gemm = CN_CUDA_GEMM_LIBRARY, .fp8 = true},
        {"compress, fp8, least scratch", 3, 0, run_least_scratch, .gemm = CN_CUDA_GEMM_LIBRARY,
         .fp8 = true},
        {"compress, portable", 40, 0, run_drawn, .portable = true},
        {"compress, portable, usual", 1, 0, run_usual, .portable = true},
        {"compress, portable, groups", N_GROUPS, 0, run_groups, .portable = true},
        {"compress, portable, follow", N_FOLLOW, 0, run_follow, .portable = true},
        {"compress, portable, long", 2, 0, run_long, .portable = true},
        {"compress, portable, least scratch", 6, 0, run_least_scratch, .portable = true},
        {"compress, portable, refused", 1, 0, run_refusals, .portable = true},
        {"compress, portable, partly refused", 1, 0, run_partial, .portable = true},
    };
    return op_cases_main(cases, sizeof cases / sizeof *cases, argc, argv);
}
