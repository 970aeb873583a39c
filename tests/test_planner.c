/* test_planner.c - blocks and query slots compared with the paper's equations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/start/planner.h"

/* Qwen3-8B in bf16 at b = 256, budget 2048: N_max = 9, w = 16. */
static cn_planner_input qwen3_8b(void)
{
    return (cn_planner_input){.avail_bytes = UINT64_C(50) << 30,
                              .n_layers = 36,
                              .n_heads = 32,
                              .n_kv_heads = 8,
                              .head_dim = 128,
                              .block_tokens = 256,
                              .act_dtype = CN_BF16,
                              .planes = 1U << CN_PLANE_SCORE | 1U << CN_PLANE_ORIGIN,
                              .window_tokens = 16,
                              .n_max_blocks = 9,
                              .max_model_len = 40960,
                              .max_seqs = 1024};
}

static void sizes_equal_those_of_the_layout(void **state)
{
    (void)state;
    cn_planner_input in = qwen3_8b();
    cn_memory_plan p;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.block_bytes, 36u * 8 * 256 * (2 * 128 * 2 + 4 + 4));
    assert_int_equal(p.query_slot_bytes, 36u * 16 * 32 * 128 * 2);

    cn_kv_layout l = cn_kv_layout_make(36, 10, 8, 256, 128, CN_F32);
    in.planes = 0;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.block_bytes * 10, cn_kv_pool_elems(&l) * 2);
    in.kv_form = CN_KV_FP8;
    in.planes = 1U << CN_PLANE_BOUNDS_64; /* bounds stay in the type of activations */
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.block_bytes, 36u * 8 * 4 * (16640 + 2 * 128 * 2));
}

static void equations_of_the_paper_hold(void **state)
{
    (void)state;
    cn_planner_input in = qwen3_8b();
    cn_memory_plan p;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    const double m_kv = (double)p.block_bytes, m_q = (double)p.query_slot_bytes;
    const double avail = (double)in.avail_bytes;
    assert_int_equal(p.n_query_slots, (uint32_t)(avail / (m_kv * 9 + m_q)));
    assert_int_equal(p.n_blocks, (uint32_t)(avail / (m_kv + m_q / 9)));
    assert_int_equal(p.concurrency_capped, p.n_query_slots);
    assert_int_equal(p.concurrency_full, p.n_blocks / 160);
    assert_int_equal(p.max_request_tokens, 40960);
}

static void memory_is_used_and_never_exceeded(void **state)
{
    (void)state;
    srand(7);
    for (int i = 0; i < 2000; i++) {
        cn_planner_input in = qwen3_8b();
        in.avail_bytes = (UINT64_C(1) << 28) + (uint64_t)rand() * 40;
        in.n_max_blocks = (uint32_t)(rand() % 40);
        in.window_tokens = in.n_max_blocks ? (uint32_t)(rand() % 100) : 0;
        in.max_seqs = 1 + (uint32_t)(rand() % 300);
        in.block_tokens = 16u << (rand() % 5);
        cn_memory_plan p;
        if (cn_memory_plan_divide(&p, &in) != CN_OK) continue;
        assert_true(p.kv_bytes <= in.avail_bytes);
        /* The memory left over is too small for one more request. */
        assert_true(in.avail_bytes - p.kv_bytes <
                    p.block_bytes * (in.n_max_blocks + 1) + p.query_slot_bytes);
        assert_true(p.n_query_slots <= in.max_seqs);
        if (in.window_tokens)
            assert_true((uint64_t)p.n_query_slots * in.n_max_blocks <= p.n_blocks);
        else
            assert_int_equal(p.n_query_slots, 0);
    }
}

static void full_kv_has_no_slots(void **state)
{
    (void)state;
    cn_planner_input in = qwen3_8b();
    in.n_max_blocks = in.window_tokens = 0;
    cn_memory_plan p;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.n_blocks, in.avail_bytes / p.block_bytes);
    assert_int_equal(p.n_query_slots, 0);
    assert_int_equal(p.concurrency_capped, 0);
}

/* Labels of d/4 channels in 4 bits, their f16 scales, and minimum and maximum of each channel per
 * page of 16 and tile of 64, beside K and V. */
static void digests_are_planes_of_a_block(void **state)
{
    (void)state;
    static const struct {
        cn_block_plane plane;
        uint32_t bytes; /* of a block, one layer and kv head */
    } digests[] = {{CN_PLANE_LABELS, 256 * 128 / 4 / 2},
                   {CN_PLANE_SCALES, 256 * 2},
                   {CN_PLANE_BOUNDS_16, 256 / 16 * 2 * 128 * 2},
                   {CN_PLANE_BOUNDS_64, 256 / 64 * 2 * 128 * 2}};
    cn_planner_input in = qwen3_8b();
    cn_memory_plan p;
    in.n_max_blocks = in.window_tokens = in.planes = 0;
    uint64_t bytes = 36u * 8 * 256 * (2 * 128 * 2);
    for (size_t i = 0; i < sizeof digests / sizeof *digests; i++) {
        in.planes |= 1U << digests[i].plane;
        bytes += 36u * 8 * digests[i].bytes;
        assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
        assert_int_equal(p.block_bytes, bytes);
        assert_int_equal(p.n_blocks, in.avail_bytes / bytes);
        assert_int_equal(p.planes, in.planes);
    }
}

/* Without a capped policy rings take 5 % of the memory: at least one, at most max_seqs. */
static void rings_without_a_cap_take_five_percent(void **state)
{
    (void)state;
    cn_planner_input in = qwen3_8b();
    cn_memory_plan p;
    in.n_max_blocks = in.planes = 0;
    in.window_tokens = 17;
    const uint64_t slot_bytes = 36u * 17 * 32 * 128 * 2;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.query_slot_bytes, slot_bytes);
    assert_int_equal(p.n_query_slots, in.avail_bytes / 20 / slot_bytes);
    assert_int_equal(p.n_blocks,
                     (in.avail_bytes - p.n_query_slots * slot_bytes) / p.block_bytes);
    assert_int_equal(p.concurrency_capped, 0);

    in.max_seqs = 7; /* blocks get what further slots would have taken */
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.n_query_slots, 7);
    assert_int_equal(p.n_blocks, (in.avail_bytes - 7 * slot_bytes) / p.block_bytes);
    assert_true(p.kv_bytes <= in.avail_bytes);

    /* 5 % is less than a slot, and two blocks fit beside one. */
    in.avail_bytes = 2 * p.block_bytes + slot_bytes;
    assert_true(in.avail_bytes / 20 < slot_bytes);
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.n_query_slots, 1);
    assert_int_equal(p.n_blocks, 2);
    in.avail_bytes--;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_MEMORY);
    in.avail_bytes = slot_bytes / 2;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_MEMORY);

    in.n_blocks_override = 40;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.n_query_slots, 7);
}

static void few_sequences_leave_memory_to_blocks(void **state)
{
    (void)state;
    cn_planner_input in = qwen3_8b();
    cn_memory_plan many, few;
    assert_int_equal(cn_memory_plan_divide(&many, &in), CN_OK);
    in.max_seqs = 2;
    assert_int_equal(cn_memory_plan_divide(&few, &in), CN_OK);
    assert_int_equal(few.n_query_slots, 2);
    assert_true(few.n_blocks > many.n_blocks);
    assert_true(few.kv_bytes <= in.avail_bytes);
}

static void impossible_plans_name_numbers_and_options(void **state)
{
    (void)state;
    cn_planner_input in = qwen3_8b();
    cn_memory_plan p;
    in.avail_bytes = 100 << 20;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_MEMORY);
    assert_non_null(strstr(cn_last_error(), "104857600 bytes"));
    assert_non_null(strstr(cn_last_error(), "--kv-cache-memory-bytes"));
    assert_non_null(strstr(cn_last_error(), "--kv-budget"));

    in.n_blocks_override = 8;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_MEMORY);
    assert_non_null(strstr(cn_last_error(), "--num-gpu-blocks-override"));
    in.n_blocks_override = 9;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.n_blocks, 9);
    assert_int_equal(p.n_query_slots, 1);
    assert_int_equal(p.concurrency_full, 0);
    assert_int_equal(p.max_request_tokens, 9 * 256);
}

/* A backend and a model whose blocks of 64 tokens have block_bytes bytes of K and V. */
static const cn_backend cpu = {.name = "any",
                               .act_dtype = CN_F32,
                               .logit_bytes = sizeof(float),
                               .default_block_tokens = 64};
static const cn_model_config m = {
    .n_layers = 6, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .max_position = 8192};
static const uint64_t block_bytes = 6 * 2 * 64 * 2 * 64 * 4;

static void options_decide_the_plan(void **state)
{
    (void)state;
    cn_memory_plan p;

    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->kv_cache_memory_bytes = 64 << 20;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.block_tokens, 64);
    assert_int_equal(p.block_bytes, block_bytes);
    assert_int_equal(p.n_blocks, (64u << 20) / block_bytes);
    assert_int_equal(p.n_query_slots + p.window_tokens + p.n_max_blocks + p.planes, 0);
    assert_int_equal(p.concurrency_full, p.n_blocks / 128);

    /* A declared policy takes its memory even when the default is full. */
    c->kv_policies |= 1U << CN_KV_ZIP;
    c->kv.budget_tokens = 384;
    c->kv.window_tokens = 48;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.block_bytes, block_bytes + 6 * 2 * 64 * 4);
    assert_int_equal(p.n_max_blocks, 7);
    assert_int_equal(p.window_tokens, 48);
    assert_int_equal(p.planes, 1U << CN_PLANE_SCORE);
    assert_int_equal(p.query_slot_bytes, 6 * 48 * 8 * 64 * 4);
    assert_true(p.n_query_slots > 0);

    /* A context shorter than the budget reserves only the blocks of the context. */
    c->max_model_len = 200;
    c->kv.budget_tokens = 2048;
    c->n_blocks_override = 9;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.n_max_blocks, 4);
    assert_int_equal(p.n_query_slots, 2);
    c->n_blocks_override = 3;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_ERR_MEMORY);
    assert_non_null(strstr(cn_last_error(), "needs 4 blocks"));
    c->n_blocks_override = c->max_model_len = 0;

    c->swap_space_gib = 0.25f;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_true(p.swap_bytes > 200 << 20 && p.swap_bytes <= 256 << 20);
    c->swap_space_gib = 65536;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--swap-space 65536 exceeds"));
    c->swap_space_gib = 0;

    /* Policy window has a cap but no query slots. */
    c->kv_policies = 1U << CN_KV_FULL;
    c->kv.policy = CN_KV_WINDOW;
    c->kv.budget_tokens = 100;
    c->block_tokens = 16;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.n_max_blocks, 8);
    assert_int_equal(p.n_query_slots, 0);
    assert_int_equal(p.planes, 0);
    assert_true(p.concurrency_capped > 0);
    cn_config_free(c);
}

/* A quarter of host memory is for all ranks of all engines. */
static void ranks_share_the_default(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_lanes, n_ranks;
        uint64_t mib;
    } cases[] = {{1, 1, 2048}, {1, 2, 1024}, {2, 2, 512}, {1, 8, 256}};
    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->host_memory_gib = 8;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_memory_plan p;
        c->n_lanes = cases[i].n_lanes;
        c->n_ranks = cases[i].n_ranks;
        assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
        assert_int_equal(p.n_blocks, (cases[i].mib << 20) / block_bytes);
    }
    cn_config_free(c);
}

/* Declared selectors add digests, and query slots if one predicts. The windows of policies and the
 * rings of selectors share the slots, which have the rows of the larger. */
static void selectors_decide_the_plan(void **state)
{
    (void)state;
    cn_memory_plan p;
    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->kv_cache_memory_bytes = 64 << 20;
    c->kv_selectors = 1U << CN_SELECT_DS;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.planes, 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES);
    assert_int_equal(p.block_bytes, block_bytes + 6 * 2 * 64 * (64 / 8 + 2));
    assert_int_equal(p.n_query_slots + p.window_tokens, 0);
    c->kv.select = CN_SELECT_SPADE;
    c->kv.select_window = 12;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.window_tokens, 13);
    assert_true(p.n_query_slots > 0 && p.n_max_blocks == 0);
    c->kv_policies |= 1U << CN_KV_ZIP;
    c->kv.window_tokens = 48;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.window_tokens, 48);
    c->kv.select_window = 60;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.window_tokens, 61);
    cn_config_free(c);
}

/* The policy `full` keeps one block of policy tokens on the device, whatever --kv-budget says. */
static void only_declared_policies_read_the_budget(void **state)
{
    (void)state;
    cn_memory_plan p;
    cn_config *c = cn_config_create();
    assert_non_null(c);
    c->kv_cache_memory_bytes = 64 << 20;
    c->home_space_gib = 0.1f;
    c->kv.budget_tokens = 1024;
    c->kv.home = CN_HOME_HOST;
    c->kv.select = CN_SELECT_SPADE;
    c->kv.select_tokens = 256;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.n_max_blocks, 256 / 64 + 128 / 64 + 1);
    c->kv_policies |= 1U << CN_KV_WINDOW;
    assert_int_equal(cn_memory_plan_make(&p, c, &m, &cpu), CN_OK);
    assert_int_equal(p.n_max_blocks, 256 / 64 + 1024 / 64 + 1);
    cn_config_free(c);
}

/* Swap space holds as many compressed requests as fit, and blocks in the rest. When off, it changes
 * nothing. */
static void swap_space_holds_whole_requests(void **state)
{
    (void)state;
    cn_memory_plan p, without;
    cn_planner_input in = qwen3_8b();
    assert_int_equal(cn_memory_plan_divide(&without, &in), CN_OK);
    assert_int_equal(without.swap_bytes + without.n_swap_blocks + without.n_swap_windows, 0);
    const uint64_t request_bytes =
        without.block_bytes * in.n_max_blocks + without.query_slot_bytes;
    in.swap_bytes = 5 * request_bytes + without.block_bytes + 1;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    assert_int_equal(p.n_swap_requests, 5);
    assert_int_equal(p.n_swap_windows, 5);
    assert_int_equal(p.n_swap_blocks, 5 * in.n_max_blocks + 1);
    assert_int_equal(p.swap_bytes, in.swap_bytes - 1);
    assert_int_equal(p.n_blocks, without.n_blocks);
    assert_int_equal(p.kv_bytes, without.kv_bytes);

    in.swap_bytes = request_bytes - 1;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_ARG);
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)request_bytes);
    assert_non_null(strstr(cn_last_error(), number));
    assert_non_null(strstr(cn_last_error(), "--swap-space"));

    in.swap_bytes = UINT64_C(4) << 30;
    in.planes = 0;
    in.window_tokens = in.n_max_blocks = 0;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "--swap-space 4: only compressed"));
    assert_non_null(strstr(cn_last_error(), "--kv-policies"));
}

/* The home space holds whole blocks. What it needs on the device is taken from the KV cache first,
 * and the slots leave room for the longest prompt. */
static void a_home_takes_its_share_of_the_device(void **state)
{
    (void)state;
    enum { KV_BYTES = 36 * 8 * 256 * 2 * 128 * 2, LABELS_BYTES = 36 * 8 * 256 * (16 + 2) };
    const uint64_t dense_bytes = KV_BYTES / 36 * 2;
    cn_planner_input in = qwen3_8b();
    const uint64_t bytes = UINT64_C(40) << 30;
    in.home_planes = 1U << CN_PLANE_LABELS | 1U << CN_PLANE_SCALES;
    in.dense_layers = 2;
    for (cn_kv_home home = CN_HOME_PEER; home <= CN_HOME_HOST; home++) {
        cn_memory_plan p;
        const uint64_t there = home == CN_HOME_PEER ? LABELS_BYTES : 0;
        const uint64_t here = home == CN_HOME_PEER ? 0 : LABELS_BYTES;
        memset(in.home_bytes, 0, sizeof in.home_bytes);
        in.home_bytes[home] = bytes;
        assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
        const cn_home_plan *h = &p.homes[home];
        assert_int_equal(h->block_bytes, KV_BYTES + there);
        assert_int_equal(h->n_blocks, bytes / (KV_BYTES + there));
        assert_int_equal(h->plane_bytes, h->n_blocks * dense_bytes);
        assert_int_equal(h->device_bytes, h->n_blocks * (dense_bytes + here));
        assert_int_equal(p.home_device_bytes, h->device_bytes);
        const uint64_t left = in.avail_bytes - h->device_bytes;
        const uint64_t slots = p.n_query_slots * (p.block_bytes * 9 + p.query_slot_bytes);
        assert_true(p.kv_bytes <= in.avail_bytes);
        assert_true(slots + 160 * p.block_bytes <= left); /* a prompt of 40,960 tokens */
        assert_true(slots + 160 * p.block_bytes + p.block_bytes * 9 + p.query_slot_bytes > left);
    }
    cn_memory_plan p;
    in.home_bytes[CN_HOME_PEER] = bytes / 2;
    in.home_bytes[CN_HOME_HOST] = bytes;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_OK);
    const cn_home_plan *peer = &p.homes[CN_HOME_PEER], *host = &p.homes[CN_HOME_HOST];
    assert_int_equal(peer->n_blocks, bytes / 2 / (KV_BYTES + LABELS_BYTES));
    assert_int_equal(host->n_blocks, bytes / KV_BYTES);
    assert_int_equal(p.home_device_bytes,
                     peer->n_blocks * dense_bytes + host->n_blocks * (dense_bytes + LABELS_BYTES));
    assert_true(p.kv_bytes <= in.avail_bytes && p.kv_bytes > in.avail_bytes - p.block_bytes);
    in.home_bytes[CN_HOME_HOST] = 8 * KV_BYTES;
    assert_int_equal(cn_memory_plan_divide(&p, &in), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "kv home host expects at least"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_equal_those_of_the_layout),
        cmocka_unit_test(equations_of_the_paper_hold),
        cmocka_unit_test(memory_is_used_and_never_exceeded),
        cmocka_unit_test(full_kv_has_no_slots),
        cmocka_unit_test(digests_are_planes_of_a_block),
        cmocka_unit_test(rings_without_a_cap_take_five_percent),
        cmocka_unit_test(few_sequences_leave_memory_to_blocks),
        cmocka_unit_test(options_decide_the_plan),
        cmocka_unit_test(ranks_share_the_default),
        cmocka_unit_test(selectors_decide_the_plan),
        cmocka_unit_test(swap_space_holds_whole_requests),
        cmocka_unit_test(only_declared_policies_read_the_budget),
        cmocka_unit_test(a_home_takes_its_share_of_the_device),
        cmocka_unit_test(impossible_plans_name_numbers_and_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
