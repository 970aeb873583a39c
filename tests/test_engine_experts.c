/* test_engine_experts.c - a model with experts inside the engine: policies and selectors work as
 * for dense models; results depend neither on batch composition nor on chunks nor on a prefix hit,
 * nor on whether steps run from graphs.
 *     test_engine_experts [cuda]
 * With cuda on a GPU, batch-invariant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/run_engine.h"
#include "tests/lib/tensor_file.h"

enum { N_REQUESTS = 6, MAX_TOKENS = 80 };
static const char *prompts[N_REQUESTS];
static char folder[64];

static const char config_text[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"head_dim\": 16, \"vocab_size\": 2048, \"num_experts\": 16, \"num_experts_per_tok\": 4,"
    " \"moe_intermediate_size\": 64, \"norm_topk_prob\": true, \"mlp_only_layers\": [1],"
    " \"max_position_embeddings\": 4096, \"eos_token_id\": 2045, \"initializer_range\": 0.2}";

static const char *options[] = {
    "model", folder, "tokenizer", "examples/tiny-reasoner", "load-format", "dummy",
    "block-size", "64", "kv-policies", "full,window,zip", "kv-selectors", "ds,quest",
    "kv-budget", "128", "kv-window", "16", "select-tokens", "128", NULL, NULL, NULL, NULL, NULL,
    NULL, NULL};
static const char *const cuda_options[] = {"device", "cuda", "batch-invariant", "true",
                                           "kv-cache-memory-bytes", "512M"};

static bool on_gpu;

static void use_cuda(void)
{
    size_t at = 0;
    on_gpu = true;
    while (options[at]) at++;
    memcpy(options + at, cuda_options, sizeof cuda_options);
}

/* Full KV, a policy or a selector, by the number of the request. */
static void submit(run *r, uint32_t i)
{
    cn_message m;
    cn_request_params p = run_params(r, prompts[i], &m, MAX_TOKENS);
    if (i % 6 == 1 || i % 6 == 2) p.kv.policy = i % 6 == 1 ? CN_KV_ZIP : CN_KV_WINDOW;
    if (i % 6 == 3 || i % 6 == 4) p.kv.select = i % 6 == 3 ? CN_SELECT_DS : CN_SELECT_QUEST;
    p.kv.select_tokens = 64;
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

static void policies_and_selectors_take_effect(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const run_sample *s = &reference->samples[i][0];
        assert_int_equal(s->n_tokens, MAX_TOKENS);
        assert_true((s->usage.kv.compressions > 0) == (i == 1 || i == 2));
        assert_true((s->usage.kv.selected_steps > 0) == (i == 3 || i == 4));
    }
    run_assert_accounts(reference);
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

static void chunks_and_scheduling_change_no_bit(void **state)
{
    (void)state;
    const char *const extra[] = {"max-num-batched-tokens", "64", "max-num-seqs", "5", NULL};
    run *r = run_all(extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) run_assert_same_bits(reference, i, r, i, 0);
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
    assert_true(r->samples[1][0].usage.cached_tokens >= 64);
    run_assert_same_bits(r, 0, r, 1, 0);
    run_assert_same_bits(reference, 0, r, 1, 0);
    run_free(r);
}

static void graphs_change_no_bit(void **state)
{
    (void)state;
    const char *const extra[] = {"enforce-eager", "true", NULL};
    run *r = run_all(extra);
    for (uint32_t i = 0; i < N_REQUESTS; i++) run_assert_same_bits(reference, i, r, i, 0);
    run_free(r);
}

/* FP8 weights, of experts too: other results, which do not depend on the batch either. */
static void fp8_weights_change_no_bit_by_batch(void **state)
{
    (void)state;
    const char *const fp8[] = {"quantization", "fp8", NULL};
    const char *const chunks[] = {"quantization", "fp8", "max-num-batched-tokens", "64", NULL};
    if (on_gpu) skip(); /* refuses FP8 experts */
    run *all = run_all(fp8), *other = run_all(chunks);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        run_assert_same_bits(all, i, other, i, 0);
        assert_true(all->samples[i][0].logprob_hash != reference->samples[i][0].logprob_hash);
    }
    run_free(all);
    run_free(other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_and_selectors_take_effect),
        cmocka_unit_test(a_request_alone_has_the_same_bits),
        cmocka_unit_test(chunks_and_scheduling_change_no_bit),
        cmocka_unit_test(a_prefix_hit_changes_no_bit),
        cmocka_unit_test(graphs_change_no_bit),
        cmocka_unit_test(fp8_weights_change_no_bit_by_batch),
    };
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) use_cuda();
    return cmocka_run_group_tests(tests, setup, teardown);
}
