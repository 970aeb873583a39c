/* test_engine_latent.c - a model with latent attention inside the engine: policies work as for
 * other models; results depend neither on batch composition nor on chunks, preemption, swap, a
 * prefix hit or a fork; a token takes the planned bytes; options without support are refused by
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine_probe.h"
#include "engine/engine_state.h"
#include "engine/start/device_choice.h"
#include "tests/lib/run_engine.h"
#include "tests/lib/tensor_file.h"

enum { N_REQUESTS = 6, MAX_TOKENS = 80 };
static const char *prompts[N_REQUESTS];
static char folder[64];

static const char config_text[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 20,"
    " \"q_lora_rank\": 24, \"kv_lora_rank\": 64, \"qk_rope_head_dim\": 16, \"v_head_dim\": 32,"
    " \"qk_nope_head_dim\": 24, \"vocab_size\": 2048, \"n_routed_experts\": 16, \"n_group\": 4,"
    " \"topk_group\": 2, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 32,"
    " \"first_k_dense_replace\": 1, \"max_position_embeddings\": 4096, \"eos_token_id\": 2045,"
    " \"initializer_range\": 0.2}";

static const char *const options[] = {
    "model", folder, "tokenizer", "examples/tiny-reasoner", "load-format", "dummy", "block-size",
    "16", "kv-policies", "full,window,zip", "kv-budget", "64", NULL};

static void submit(run *r, uint32_t i)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
    p.kv.policy = i % 2 == 0 ? CN_KV_FULL : i == 1 ? CN_KV_WINDOW : CN_KV_ZIP;
    p.klass = i % 2 ? CN_CLASS_BATCH : CN_CLASS_INTERACTIVE;
    p.sampling.ignore_eos = true;
    p.sampling.temperature = 0;
    p.sampling.logprobs = 0;
    run_submit(r, &p);
}

static run *run_all(const char *const *extra)
{
    run *r = run_new(options, extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) submit(r, i);
    run_finish(r);
    return r;
}

static run *reference;

static int setup(void **state)
{
    (void)state;
    make_model_folder(folder, config_text);
    assert_int_equal(run_load_prompts("story", prompts, NULL, N_REQUESTS), N_REQUESTS);
    reference = run_all(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    run_free(reference);
    remove_folder(folder);
    return 0;
}

static void policies_take_effect(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const run_sample *s = &reference->samples[i][0];
        assert_int_equal(s->n_tokens, MAX_TOKENS);
        assert_true((s->usage.kv.compressions > 0) == (i % 2));
    }
    run_assert_accounts(reference);
}

static void check_same(const char *const *extra, bool preempts)
{
    run *r = run_all(extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) run_assert_same_bits(reference, i, r, i, 0);
    if (preempts) assert_true(r->stats.preemptions > 0);
    run_free(r);
}

static void a_request_alone_has_the_same_bits(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        submit(r, i);
        run_finish(r);
        run_assert_same_bits(reference, i, r, i, 0);
    }
    run_free(r);
}

static void chunks_and_preemption_change_no_bit(void **state)
{
    (void)state;
    check_same((const char *[]){"max-num-batched-tokens", "32", "max-num-seqs", "5", NULL}, false);
    check_same((const char *[]){"enforce-eager", "true", "async-scheduling", "off", NULL}, false);
    check_same((const char *[]){"num-gpu-blocks-override", "40", "max-model-len", "384", NULL},
               true);
}

/* Requests of policy window give up their blocks for those of full KV, and continue later. */
static void swap_changes_no_bit(void **state)
{
    (void)state;
    const char *const small[] = {"num-gpu-blocks-override", "22", "max-model-len", "352",
                                 "swap-space", "0.02", "enable-prefix-caching", "false", NULL};
    run *r = run_new(options, small);
    for (uint32_t i = 1; i < N_REQUESTS; i += 2) submit(r, i);
    run_steps(r, 60);
    for (uint32_t i = 0; i < N_REQUESTS; i += 2) submit(r, i);
    run_finish(r);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const uint32_t at = i % 2 ? i / 2 : N_REQUESTS / 2 + i / 2;
        run_assert_same_bits(reference, i, r, at, 0);
    }
    assert_true(r->stats.swap_outs > 0 && r->stats.swap_ins == r->stats.swap_outs);
    run_free(r);
}

static void a_prefix_hit_changes_no_bit(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    for (uint32_t i = 0; i < 2; i++) {
        submit(r, 0);
        run_finish(r);
    }
    assert_true(r->samples[1][0].usage.cached_tokens >= 16);
    run_assert_same_bits(r, 0, r, 1, 0);
    run_assert_same_bits(reference, 0, r, 1, 0);
    run_free(r);
}

/* The first of four samples is the one of a request without others. */
static void a_fork_changes_no_bit(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    cn_message m;
    cn_request_params p = run_params(r, prompts[0], &m, MAX_TOKENS);
    p.sampling.temperature = 2;
    p.sampling.has_seed = true;
    p.sampling.seed = 5;
    p.sampling.logprobs = 0;
    p.sampling.n = 4;
    const uint32_t many = run_submit(r, &p);
    run_finish(r);
    p.sampling.n = 1;
    const uint32_t one = run_submit(r, &p);
    run_finish(r);
    run_assert_same_bits(r, many, r, one, 0);
    const run_sample *s = r->samples[many];
    assert_true(s[0].n_tokens != s[1].n_tokens ||
                memcmp(s[0].tokens, s[1].tokens, s[0].n_tokens * sizeof *s[0].tokens) != 0);
    run_free(r);
}

/* FP8 weights: other results, which do not depend on chunks either. */
static void fp8_weights_change_no_bit_by_chunk(void **state)
{
    (void)state;
    const char *const fp8[] = {"quantization", "fp8", NULL};
    const char *const chunks[] = {"quantization", "fp8", "max-num-batched-tokens", "32",
                                  "num-gpu-blocks-override", "40", "max-model-len", "384", NULL};
    run *all = run_all(fp8), *other = run_all(chunks);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        run_assert_same_bits(all, i, other, i, 0);
        assert_true(all->samples[i][0].logprob_hash != reference->samples[i][0].logprob_hash);
    }
    run_free(all);
    run_free(other);
}

/* One row of 64 + 16 elements in each of three layers, in f32. */
static void a_token_takes_one_row_of_each_layer(void **state)
{
    (void)state;
    const cn_kv_params full = {.policy = CN_KV_FULL};
    assert_true(cn_engine_row_bytes(reference->engine, &full, 10) == 10 * 3 * (64 + 16) * 4);
}

/* Two requests that differ in it alone. */
static void the_mean_of_all_heads_is_another_choice(void **state)
{
    (void)state;
    run *r = run_new(options, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        cn_message m;
        cn_request_params p = run_params(r, prompts[3], &m, MAX_TOKENS);
        p.kv.policy = CN_KV_ZIP;
        p.kv.head_rule = i % 2 ? CN_HEADS_MEAN : CN_HEADS_MAX;
        p.sampling.ignore_eos = true;
        p.sampling.temperature = 0;
        p.sampling.logprobs = 0;
        run_submit(r, &p);
    }
    run_finish(r);
    assert_true(r->samples[1][0].logprob_hash != r->samples[0][0].logprob_hash);
    for (uint32_t i = 0; i < 2; i++) run_assert_same_bits(r, i, r, i + 2, 0);
    run_free(r);
}

static void check_refused(const char *option, const char *value, const char *text)
{
    const char *const some[] = {"model", folder, "tokenizer", "examples/tiny-reasoner",
                                "load-format", "dummy", "block-size", "64", option, value, NULL};
    run_assert_start_refused(some, text);
}

static void options_without_support_are_refused_by_name(void **state)
{
    (void)state;
    check_refused("kv-cache-dtype", "fp8", "does not support eight bits yet");
}

static void backends_without_selection_are_refused_by_name(void **state)
{
    (void)state;
    const cn_model_config *m = &reference->engine->model_config;
    cn_backend lacking = *reference->engine->backend;
    cn_config *c = cn_config_create();
    lacking.ranks_latent = false;
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_OK);
    run_set_option(c, "kv-select", "ds");
    assert_int_equal(cn_backend_check_kv(reference->engine->backend, c, m), CN_OK);
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "the cpu backend does not support selectors yet"));
    run_set_option(c, "kv-select", "none");
    run_set_option(c, "kv-homes", "device,host");
    assert_int_equal(cn_backend_check_kv(&lacking, c, m), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "the cpu backend does not support homes yet"));
    cn_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_take_effect),
        cmocka_unit_test(a_request_alone_has_the_same_bits),
        cmocka_unit_test(chunks_and_preemption_change_no_bit),
        cmocka_unit_test(swap_changes_no_bit),
        cmocka_unit_test(a_prefix_hit_changes_no_bit),
        cmocka_unit_test(a_fork_changes_no_bit),
        cmocka_unit_test(the_mean_of_all_heads_is_another_choice),
        cmocka_unit_test(fp8_weights_change_no_bit_by_chunk),
        cmocka_unit_test(a_token_takes_one_row_of_each_layer),
        cmocka_unit_test(options_without_support_are_refused_by_name),
        cmocka_unit_test(backends_without_selection_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
