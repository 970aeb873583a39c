/* test_model_config.c - config.json and generation_config.json: real files of the supported
 * families, and the text of every refusal. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "engine/checkpoint/generation_config.h"
#include "engine/checkpoint/model_config.h"

/* A minimal config; %s is replaced by more keys, each with a leading comma. */
#define SIZES(kv_heads)                                                          \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": " kv_heads ", \"vocab_size\": 300"
#define CONFIG(arch, more) "{\"architectures\": [\"" arch "\"], " SIZES("2") more "}"
/* With latent attention there are as many kv heads as query heads. */
#define LATENT(arch, more) "{\"architectures\": [\"" arch "\"], " SIZES("4") more "}"

static cn_model_config parse(const char *text)
{
    cn_model_config c;
    if (cn_model_config_parse(&c, text, strlen(text), "c") != CN_OK)
        fail_msg("%s", cn_last_error());
    return c;
}

static void expect_refusal(const char *text, const char *words)
{
    cn_model_config c;
    assert_int_equal(cn_model_config_parse(&c, text, strlen(text), "c"), CN_ERR_MODEL);
    if (!strstr(cn_last_error(), words)) fail_msg("\"%s\" lacks \"%s\"", cn_last_error(), words);
}

static void test_bundled_checkpoint(void **state)
{
    (void)state;
    cn_model_config c;
    assert_int_equal(cn_model_config_load(&c, "examples/tiny-reasoner"), CN_OK);
    assert_string_equal(c.architecture, "Qwen3ForCausalLM");
    assert_int_equal(c.hidden, 384);
    assert_int_equal(c.n_layers, 6);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.max_position, 8192);
    assert_true(c.tied && c.qk_norm && !c.qkv_bias && !c.o_bias);
    assert_true(c.rope_theta == 1e6 && c.rope.type == CN_ROPE_DEFAULT);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 2045);
    assert_int_equal(c.bos, -1);
    assert_int_equal(cn_model_config_n_params(&c), 21638400 / 2); /* total_size of the index */
}

static void test_architecture_defaults(void **state)
{
    (void)state;
    cn_model_config c = parse(CONFIG("LlamaForCausalLM", ""));
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.max_position, 2048);
    assert_int_equal(c.bos, 1);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 2);
    assert_true(!c.qk_norm && !c.qkv_bias && !c.o_bias && !c.tied);
    assert_true(c.rope_theta == 10000 && c.rms_eps == 1e-6f && c.initializer_range == 0.02f);
    assert_int_equal(c.dtype, CN_BF16);

    c = parse(CONFIG("LlamaForCausalLM", ", \"attention_bias\": true, \"dtype\": \"float32\", "
                                         "\"eos_token_id\": null, \"bos_token_id\": null"));
    assert_true(c.qkv_bias && c.o_bias);
    assert_int_equal(c.dtype, CN_F32);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(c.bos, -1);

    c = parse(CONFIG("Qwen2ForCausalLM", ", \"eos_token_id\": [7, 8]"));
    assert_true(c.qkv_bias && !c.o_bias && !c.qk_norm);
    assert_int_equal(c.n_eos, 2);

    c = parse(CONFIG("Qwen3ForCausalLM", ", \"torch_dtype\": \"float16\""));
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.dtype, CN_F16);
}

static void test_parameter_count(void **state)
{
    (void)state;
    /* Qwen3-8B: 8,190,735,360 parameters. */
    cn_model_config c = parse(
        "{\"architectures\": [\"Qwen3ForCausalLM\"], \"hidden_size\": 4096, "
        "\"intermediate_size\": 12288, \"num_hidden_layers\": 36, \"num_attention_heads\": 32, "
        "\"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 151936, "
        "\"max_position_embeddings\": 40960, \"rope_scaling\": null, \"sliding_window\": null, "
        "\"use_sliding_window\": false, \"max_window_layers\": 36, \"rope_theta\": 1000000}");
    assert_int_equal(cn_model_config_n_params(&c), UINT64_C(8190735360));
    /* Qwen2.5-0.5B: 494,032,768 parameters, tied, biases. */
    c = parse(
        "{\"architectures\": [\"Qwen2ForCausalLM\"], \"hidden_size\": 896, "
        "\"intermediate_size\": 4864, \"num_hidden_layers\": 24, \"num_attention_heads\": 14, "
        "\"num_key_value_heads\": 2, \"vocab_size\": 151936, \"tie_word_embeddings\": true, "
        "\"sliding_window\": 32768, \"max_window_layers\": 21}");
    assert_int_equal(cn_model_config_n_params(&c), UINT64_C(494032768));
}

/* With everything that its config.json may leave out. */
static void test_experts_of_qwen3(void **state)
{
    (void)state;
    cn_model_config c;
    assert_int_equal(cn_model_config_load(&c, "bench/shapes/qwen3-30b-a3b"), CN_OK);
    const cn_experts *x = &c.experts;
    assert_true(x->router.n_experts == 128 && x->router.n_used == 8 && x->intermediate == 768);
    assert_true(x->router.normalized && x->router.score == CN_ROUTE_SOFTMAX && !x->bias);
    assert_true(x->shared == 0 && x->router.scale == 1 && c.rotary == 128);
    assert_int_equal(cn_model_config_n_params(&c), UINT64_C(30532122624));
    /* 3.04 B without the embedding, of which a step reads some rows. */
    assert_int_equal(cn_model_config_n_read(&c, 1), UINT64_C(3353032704));
    assert_true(fabs(cn_model_config_experts_read(&c, 8) - 51.6) < 0.05);

    c = parse(CONFIG("Qwen3MoeForCausalLM", ""));
    assert_true(c.experts.router.n_experts == 128 && c.experts.router.n_used == 8);
    assert_true(c.experts.intermediate == 768 && !c.experts.router.normalized);
    assert_true(c.qk_norm && !c.o_bias && c.head_dim == 16);
    c = parse(CONFIG("Qwen3MoeForCausalLM", ", \"num_local_experts\": 9"));
    assert_int_equal(c.experts.router.n_experts, 9);
}

/* The kinds of the two layers of CONFIG. */
static void check_kinds(const char *text, cn_mlp_kind first, cn_mlp_kind second)
{
    const cn_model_config c = parse(text);
    assert_int_equal(cn_model_config_layer(&c, 0).mlp, first);
    assert_int_equal(cn_model_config_layer(&c, 1).mlp, second);
}

static void test_layer_kinds(void **state)
{
    (void)state;
    const cn_mlp_kind dense = CN_MLP_DENSE, experts = CN_MLP_EXPERTS;
    check_kinds(CONFIG("Qwen3ForCausalLM", ""), dense, dense);
    check_kinds(CONFIG("Qwen3MoeForCausalLM", ""), experts, experts);
    check_kinds(CONFIG("Qwen3MoeForCausalLM", ", \"decoder_sparse_step\": 2"), dense, experts);
    check_kinds(CONFIG("Qwen3MoeForCausalLM", ", \"mlp_only_layers\": [1, 7]"), experts, dense);
    check_kinds(CONFIG("Glm4MoeForCausalLM", ""), dense, experts);
    check_kinds(CONFIG("Glm4MoeForCausalLM", ", \"first_k_dense_replace\": 0"), experts, experts);
    cn_model_config c = parse(CONFIG("Qwen3MoeForCausalLM", ", \"mlp_only_layers\": [0, 1]"));
    assert_int_equal(c.experts.router.n_experts, 0); /* it is dense */
    assert_int_equal(cn_model_config_n_read(&c, 1), cn_model_config_n_params(&c));
}

static void test_experts_of_glm4(void **state)
{
    (void)state;
    cn_model_config c = parse(CONFIG("Glm4MoeForCausalLM", ""));
    const cn_experts *x = &c.experts;
    assert_true(x->router.n_experts == 128 && x->router.n_used == 8 && x->intermediate == 1408);
    assert_true(x->router.score == CN_ROUTE_SIGMOID && x->router.normalized && x->bias);
    assert_true(x->shared == 1408 && x->router.scale == 1);
    assert_true(c.rotary == 8 && c.head_dim == 16 && c.rms_eps == 1e-5F && !c.qk_norm);
    assert_int_equal(cn_model_config_layer(&c, 0).dense, 96);
    assert_int_equal(cn_model_config_layer(&c, 1).dense, 1408);
    c = parse(CONFIG("Glm4MoeForCausalLM",
                     ", \"n_shared_experts\": 2, \"routed_scaling_factor\": 2.5, "
                     "\"attention_bias\": true, \"use_qk_norm\": true, \"norm_topk_prob\": false"));
    assert_true(c.experts.shared == 2816 && c.experts.router.scale == 2.5F);
    assert_true(c.qkv_bias && !c.o_bias && c.qk_norm && !c.experts.router.normalized);
    c = parse(CONFIG("Glm4MoeForCausalLM", ", \"partial_rotary_factor\": 1.0"));
    assert_int_equal(c.rotary, 16);
}

static void test_rope_places(void **state)
{
    (void)state;
    cn_model_config c = parse(CONFIG("Qwen3ForCausalLM", ", \"rope_theta\": 5e5"));
    assert_true(c.rope_theta == 5e5);
    c = parse(CONFIG("Qwen3ForCausalLM",
                     ", \"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}"));
    assert_true(c.rope_theta == 1e6 && c.rope.type == CN_ROPE_DEFAULT);
    c = parse(CONFIG("LlamaForCausalLM",
                     ", \"rope_theta\": 5e5, \"max_position_embeddings\": 131072, "
                     "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
                     "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
                     "\"original_max_position_embeddings\": 8192}"));
    assert_int_equal(c.rope.type, CN_ROPE_LLAMA3);
    assert_int_equal(c.rope.original_max_position, 8192);
    assert_int_equal(c.max_position, 131072);
    assert_true(c.rope_theta == 5e5 && c.rope.factor == 8 && c.rope.high_freq_factor == 4);
}

static void test_yarn(void **state)
{
    (void)state;
    /* As the model card of Qwen3 describes: the old key "type", and no change of the context. */
    cn_model_config c =
        parse(CONFIG("Qwen3ForCausalLM",
                     ", \"max_position_embeddings\": 40960, \"rope_scaling\": {\"type\": \"yarn\", "
                     "\"factor\": 4.0, \"original_max_position_embeddings\": 32768}"));
    assert_int_equal(c.rope.type, CN_ROPE_YARN);
    assert_int_equal(c.max_position, 131072);
    assert_true(fabs(c.rope.attention_factor - (0.1 * log(4.0) + 1)) < 1e-15);
    assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate);

    c = parse(CONFIG("LlamaForCausalLM",
                     ", \"max_position_embeddings\": 4096, \"rope_parameters\": {\"rope_type\": "
                     "\"yarn\", \"original_max_position_embeddings\": 2048, \"mscale\": 0.707, "
                     "\"mscale_all_dim\": 0.5, \"truncate\": false, \"beta_fast\": 16}"));
    assert_true(c.rope.factor == 2 && c.rope.beta_fast == 16 && !c.rope.truncate);
    double want = (0.0707 * log(2.0) + 1) / (0.05 * log(2.0) + 1);
    assert_true(fabs(c.rope.attention_factor - want) < 1e-15);
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "expected an object"},
        {"{}", "architectures: missing"},
        {CONFIG("MixtralForCausalLM", ""), "\"MixtralForCausalLM\" is not supported"},
        {"{\"architectures\": [\"LlamaForCausalLM\"]}", "hidden_size: missing"},
        {CONFIG("LlamaForCausalLM", ", \"hidden_act\": \"gelu\""), "hidden_act \"gelu\""},
        {CONFIG("LlamaForCausalLM", ", \"mlp_bias\": true"), "mlp_bias true"},
        {CONFIG("LlamaForCausalLM", ", \"head_dim\": 24"), "head_dim 24"},
        {CONFIG("LlamaForCausalLM", ", \"head_dim\": 272"), "head_dim 272"},
        {CONFIG("LlamaForCausalLM", ", \"head_dim\": -16"), "head_dim: expected"},
        {CONFIG("LlamaForCausalLM", ", \"rms_norm_eps\": \"1e-6\""), "got \"1e-6\""},
        {CONFIG("LlamaForCausalLM", ", \"eos_token_id\": 300"), "token ids below 300"},
        {CONFIG("LlamaForCausalLM", ", \"tie_word_embeddings\": 1"), "true or false"},
        {CONFIG("LlamaForCausalLM", ", \"partial_rotary_factor\": 0.5"),
         "partial_rotary_factor 0.5"},
        {CONFIG("LlamaForCausalLM", ", \"quantization_config\": {\"quant_method\": \"awq\"}"),
         "quant_method \"awq\""},
        {CONFIG("LlamaForCausalLM", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}"),
         "rope_type \"linear\" is not supported"},
        {CONFIG("LlamaForCausalLM", ", \"rope_parameters\": {\"full_attention\": {}}"),
         "full_attention: parameters per layer type"},
        {CONFIG("LlamaForCausalLM", ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8}"),
         "low_freq_factor: missing"},
        {CONFIG("LlamaForCausalLM", ", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
                                    "\"low_freq_factor\": 4, \"high_freq_factor\": 4}"),
         "high_freq_factor 4 must exceed"},
        {CONFIG("Qwen2ForCausalLM",
                ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 1000000}"),
         "factor 1e+06 exceed the limit"},
        {CONFIG("Qwen2ForCausalLM", ", \"use_sliding_window\": true, \"sliding_window\": 1024, "
                                    "\"max_window_layers\": 1"),
         "a window of 1024 tokens from layer 1"},
        {CONFIG("Qwen3ForCausalLM",
                ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
         "layer_types[1]: \"sliding_attention\""},
        {CONFIG("MistralForCausalLM", ", \"sliding_window\": 4096"),
         "sliding_window: a window of 4096 tokens is not supported"},
        {CONFIG("MistralForCausalLM", ""), "sliding_window: a window of 4096 tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].text, cases[i].words);
    expect_refusal("{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, "
                   "\"intermediate_size\": 96, \"num_hidden_layers\": 2, "
                   "\"num_attention_heads\": 4, \"num_key_value_heads\": 3, \"vocab_size\": 9}",
                   "4 is not a multiple of num_key_value_heads 3");
    cn_model_config c;
    assert_int_equal(cn_model_config_load(&c, "/nonexistent"), CN_ERR_IO);
    assert_non_null(strstr(cn_last_error(), "--model /nonexistent: no such directory"));
}

/* The first layers have no experts, all others have some. */
static void check_mlps(const cn_model_config *c, uint32_t n_dense)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        assert_int_equal(cn_model_config_layer(c, i).mlp,
                         i < n_dense ? CN_MLP_DENSE : CN_MLP_EXPERTS);
}

/* GLM-4.7-Flash, DeepSeek-V2-Lite and DeepSeek-V3, with what their config.json may leave out. */
static void test_latent_attention(void **state)
{
    (void)state;
    cn_model_config c = parse(
        "{\"architectures\": [\"Glm4MoeLiteForCausalLM\"], \"hidden_size\": 2048, "
        "\"intermediate_size\": 10240, \"num_hidden_layers\": 47, \"num_attention_heads\": 20, "
        "\"num_key_value_heads\": 20, \"vocab_size\": 154880, \"rope_theta\": 1000000, "
        "\"num_nextn_predict_layers\": 1, \"first_k_dense_replace\": 1}");
    const cn_latent *l = &c.latent;
    assert_true(l->q_rank == 768 && l->rank == 512 && l->nope == 192 && l->rope == 64);
    assert_true(l->value == 256 && l->interleaved && c.head_dim == 576 && c.n_kv_heads == 1);
    assert_true(c.rotary == 64 && cn_rope_dim(&c) == 64 && cn_attn_width(&c) == 5120);
    assert_true(cn_model_config_scale(&c) == 0.0625F && c.rms_eps == 1e-5F);
    assert_true(fabs((double)cn_model_config_n_params(&c) / 1e9 - 29.94) < 0.01);
    assert_true(c.experts.router.n_groups == 0 && c.experts.router.scale == 1.8F);
    assert_int_equal(cn_model_config_layer(&c, 0).attn, CN_ATTN_LATENT);
    check_mlps(&c, 1);

    c = parse("{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"hidden_size\": 2048, "
              "\"intermediate_size\": 10944, \"num_hidden_layers\": 27, "
              "\"num_attention_heads\": 16, \"vocab_size\": 102400, \"q_lora_rank\": null, "
              "\"num_experts_per_tok\": 6, \"moe_intermediate_size\": 1408, "
              "\"first_k_dense_replace\": 1, \"head_dim\": 64, \"rope_scaling\": {\"type\": "
              "\"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096, "
              "\"mscale\": 0.707, \"mscale_all_dim\": 0.707}}");
    assert_true(c.latent.q_rank == 0 && c.experts.shared == 2816 && !c.experts.bias);
    assert_true(fabs((double)cn_model_config_n_params(&c) / 1e9 - 15.71) < 0.01);
    assert_true(fabs((double)cn_model_config_scale(&c) - 0.114721) < 1e-6);
    assert_true(c.rope.attention_factor == 1.0 && c.max_position == 163840);
    check_mlps(&c, 1);

    c = parse("{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 7168, "
              "\"intermediate_size\": 18432, \"num_hidden_layers\": 61, "
              "\"num_attention_heads\": 128, \"vocab_size\": 129280, \"rope_scaling\": "
              "{\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 4096, "
              "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}}");
    const cn_router *r = &c.experts.router;
    assert_true(r->n_groups == 8 && r->n_used_groups == 4 && r->group_best == 2 && c.experts.bias);
    assert_true(r->normalized && r->scale == 2.5F && r->score == CN_ROUTE_SIGMOID);
    assert_true(fabs((double)cn_model_config_n_params(&c) / 1e9 - 671.03) < 0.01);
    assert_true(fabs((double)cn_model_config_scale(&c) - 0.135234) < 1e-6);
    check_mlps(&c, 3);

    c = parse(LATENT("Glm4MoeLiteForCausalLM", ", \"mlp_layer_types\": [\"sparse\", \"dense\"]"));
    assert_int_equal(cn_model_config_layer(&c, 0).mlp, CN_MLP_EXPERTS);
    assert_int_equal(cn_model_config_layer(&c, 1).mlp, CN_MLP_DENSE);
}

static void test_refusals_of_latent_attention(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {CONFIG("DeepseekV32ForCausalLM", ""), "is not supported (its attention has an indexer)"},
        {CONFIG("DeepseekV4ForCausalLM", ""), "(hyper-connections, compressed keys)"},
        {LATENT("DeepseekV3ForCausalLM", ", \"index_topk\": 2048"),
         "index_topk is not supported: attention with an indexer"},
        {LATENT("DeepseekV3ForCausalLM", ", \"hc_mult\": 4"), "hyper-connections are not"},
        {LATENT("DeepseekV3ForCausalLM", ", \"attention_bias\": true"), "attention_bias true"},
        {LATENT("DeepseekV3ForCausalLM", ", \"kv_lora_rank\": 24"),
         "kv_lora_rank 24 is not supported; supported are multiples of 16 to 512"},
        {LATENT("DeepseekV3ForCausalLM", ", \"qk_rope_head_dim\": 128"), "qk_rope_head_dim 128"},
        {LATENT("DeepseekV3ForCausalLM", ", \"n_group\": 7"), "n_group 7 and topk_group 4"},
        {LATENT("DeepseekV3ForCausalLM", ", \"n_group\": 256"), "n_group"},
        {LATENT("DeepseekV3ForCausalLM", ", \"topk_group\": 9"), "topk_group 9"},
        {LATENT("DeepseekV3ForCausalLM", ", \"scoring_func\": \"softmax\""), "scoring_func"},
        {LATENT("DeepseekV3ForCausalLM", ", \"moe_layer_freq\": 2"), "moe_layer_freq 2"},
        {CONFIG("DeepseekV3ForCausalLM", ""), "num_key_value_heads 2"},
        {LATENT("DeepseekV2ForCausalLM", ""), "num_experts_per_tok"},
        {LATENT("DeepseekV2ForCausalLM", ", \"num_experts_per_tok\": 2, \"norm_topk_prob\": true"),
         "norm_topk_prob true is not supported"},
        {LATENT("DeepseekV2ForCausalLM", ", \"num_experts_per_tok\": 2, \"topk_method\": \"x\""),
         "topk_method \"x\" is not supported"},
        {LATENT("Glm4MoeLiteForCausalLM", ", \"mlp_layer_types\": [\"dense\"]"),
         "mlp_layer_types: expected 2 values, got 1"},
        {LATENT("Glm4MoeLiteForCausalLM", ", \"mlp_layer_types\": [\"dense\", \"x\"]"),
         "mlp_layer_types[1]: expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i][0], cases[i][1]);
}

static void test_refusals_of_experts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {CONFIG("Qwen3MoeForCausalLM", ", \"num_experts\": 2000"), "num_experts: expected"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"num_experts\": 4"),
         "num_experts_per_tok 8 exceeds num_experts 4"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"num_experts_per_tok\": 64"),
         "num_experts_per_tok: expected"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"decoder_sparse_step\": 0"),
         "decoder_sparse_step: expected"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"mlp_only_layers\": [\"0\"]"),
         "mlp_only_layers[0]: expected the number of a layer, got \"0\""},
        {CONFIG("Qwen3MoeForCausalLM", ", \"scoring_func\": \"sigmoid\""),
         "scoring_func \"sigmoid\" is not supported; supported is softmax"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"shared_expert_intermediate_size\": 64"),
         "shared_expert_intermediate_size 64 is not supported"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"use_sliding_window\": true, \"sliding_window\": 64, "
                                       "\"max_window_layers\": 2"),
         "a window of 64 tokens from layer 0"},
        {CONFIG("Qwen3MoeForCausalLM", ", \"quantization_config\": {\"quant_method\": \"awq\"}"),
         "quant_method \"awq\""},
        {CONFIG("Glm4MoeForCausalLM", ", \"n_group\": 8"), "n_group 8 is not supported"},
        {CONFIG("Glm4MoeForCausalLM", ", \"topk_group\": 4"), "topk_group 4 is not supported"},
        {CONFIG("Glm4MoeForCausalLM", ", \"scoring_func\": \"softmax\""),
         "scoring_func \"softmax\" is not supported; supported is sigmoid"},
        {CONFIG("Glm4MoeForCausalLM", ", \"topk_method\": \"greedy\""), "topk_method \"greedy\""},
        {CONFIG("Glm4MoeForCausalLM", ", \"partial_rotary_factor\": 0.3"),
         "0.3 of head_dim 16 is 4.8 dimensions"},
        {CONFIG("Glm4MoeForCausalLM", ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2}"),
         "with a scaling of RoPE is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refusal(cases[i].text, cases[i].words);
}

static void test_inactive_sliding_window_is_accepted(void **state)
{
    (void)state;
    parse(CONFIG("Qwen2ForCausalLM", ", \"use_sliding_window\": true, \"sliding_window\": 1024, "
                                     "\"max_window_layers\": 2"));
    parse(CONFIG("Qwen2ForCausalLM", ", \"use_sliding_window\": true, \"sliding_window\": 99999, "
                                     "\"max_window_layers\": 0"));
    parse(CONFIG("Qwen3ForCausalLM", ", \"use_sliding_window\": false, \"sliding_window\": 16, "
                                     "\"max_window_layers\": 0"));
}

static void test_hash_covers_what_changes_results(void **state)
{
    (void)state;
    cn_model_config a = parse(CONFIG("Qwen3ForCausalLM", ""));
    cn_model_config b = parse(CONFIG("Qwen3ForCausalLM", ", \"use_cache\": true"));
    assert_int_equal(cn_model_config_hash(&a), cn_model_config_hash(&b));
    const char *const changes[] = {
        CONFIG("Qwen3ForCausalLM", ", \"rope_theta\": 20000"),
        CONFIG("Qwen3ForCausalLM", ", \"rms_norm_eps\": 1e-5"),
        CONFIG("Qwen3ForCausalLM", ", \"tie_word_embeddings\": true"),
        CONFIG("Qwen3ForCausalLM", ", \"eos_token_id\": 5"),
        CONFIG("Qwen2ForCausalLM", ", \"head_dim\": 128"),
    };
    const char *const experts[] = {
        CONFIG("Qwen3MoeForCausalLM", ""),
        CONFIG("Qwen3MoeForCausalLM", ", \"num_experts\": 127"),
        CONFIG("Qwen3MoeForCausalLM", ", \"num_experts_per_tok\": 7"),
        CONFIG("Qwen3MoeForCausalLM", ", \"norm_topk_prob\": true"),
        CONFIG("Qwen3MoeForCausalLM", ", \"moe_intermediate_size\": 64"),
        CONFIG("Qwen3MoeForCausalLM", ", \"mlp_only_layers\": [0]"),
        CONFIG("Qwen3MoeForCausalLM", ", \"mlp_only_layers\": [1]"),
        CONFIG("Glm4MoeForCausalLM", ""),
        CONFIG("Glm4MoeForCausalLM", ", \"n_shared_experts\": 2"),
        CONFIG("Glm4MoeForCausalLM", ", \"routed_scaling_factor\": 2"),
        CONFIG("Glm4MoeForCausalLM", ", \"partial_rotary_factor\": 1"),
        LATENT("DeepseekV3ForCausalLM", ""),
        LATENT("DeepseekV3ForCausalLM", ", \"q_lora_rank\": null"),
        LATENT("DeepseekV3ForCausalLM", ", \"rope_interleave\": false"),
        LATENT("DeepseekV3ForCausalLM", ", \"first_k_dense_replace\": 0"),
        LATENT("DeepseekV3ForCausalLM", ", \"first_k_dense_replace\": 0, \"topk_group\": 5"),
        LATENT("DeepseekV3ForCausalLM", ", \"v_head_dim\": 64"),
    };
    const size_t n_experts = sizeof experts / sizeof *experts;
    for (size_t i = 0; i < n_experts; i++)
        for (size_t j = i + 1; j < n_experts; j++) {
            const cn_model_config x = parse(experts[i]), y = parse(experts[j]);
            assert_int_not_equal(cn_model_config_hash(&x), cn_model_config_hash(&y));
        }
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        cn_model_config c = parse(changes[i]);
        assert_int_not_equal(cn_model_config_hash(&a), cn_model_config_hash(&c));
    }
}

static cn_generation_config parse_generation(const char *text)
{
    cn_generation_config g;
    if (cn_generation_config_parse(&g, text, strlen(text), "g") != CN_OK)
        fail_msg("%s", cn_last_error());
    return g;
}

static void test_generation_config(void **state)
{
    (void)state;
    cn_sampling s = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_tokens = 16};
    cn_generation_config g = parse_generation("{\"transformers_version\": \"4.51.0\"}");
    cn_generation_config_apply(&g, &s);
    assert_true(s.temperature == 1 && s.top_p == 1 && s.max_tokens == 16 && s.top_k == 0);

    g = parse_generation("{\"bos_token_id\": 1, \"do_sample\": true, \"eos_token_id\": [5, 6], "
                         "\"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": 0.1, "
                         "\"repetition_penalty\": 1.05, \"max_new_tokens\": 2048}");
    cn_generation_config_apply(&g, &s);
    assert_true(s.temperature == 0.6f && s.top_p == 0.95f && s.min_p == 0.1f);
    assert_true(s.repetition_penalty == 1.05f && s.top_k == 20);
    assert_true(g.max_new_tokens == 2048 && s.max_tokens == 16);

    g = parse_generation("{\"do_sample\": false, \"temperature\": 0.6}");
    cn_generation_config_apply(&g, &s);
    assert_true(s.temperature == 0);

    assert_int_equal(cn_generation_config_load(&g, "/nonexistent"), CN_OK);
    assert_false(g.has_temperature || g.greedy || g.n_eos);
    assert_int_equal(cn_generation_config_load(&g, "examples/tiny-reasoner"), CN_OK);
    assert_true(g.greedy && g.n_eos == 2);
}

static void test_generation_config_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "expected an object"},
        {"{\"temperature\": -1}", "g: temperature: expected a number from 0 to 100, got -1"},
        {"{\"top_p\": 1.5}", "top_p"},
        {"{\"top_k\": 2.5}", "top_k"},
        {"{\"do_sample\": \"no\"}", "do_sample: expected true or false, got \"no\""},
        {"{\"max_new_tokens\": 0}", "max_new_tokens"},
        {"{\"eos_token_id\": [1, -1]}", "got -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_generation_config g;
        assert_int_equal(cn_generation_config_parse(&g, cases[i].text, strlen(cases[i].text), "g"),
                         CN_ERR_MODEL);
        if (!strstr(cn_last_error(), cases[i].words)) fail_msg("%s", cn_last_error());
    }
}

static void test_eos_union(void **state)
{
    (void)state;
    cn_model_config c = parse(CONFIG("Qwen3ForCausalLM", ", \"eos_token_id\": 7"));
    cn_generation_config g = parse_generation("{\"eos_token_id\": [9, 7, 9]}");
    uint32_t eos[2 * CN_MAX_EOS], n;
    assert_int_equal(cn_generation_config_eos(&g, &c, eos, &n), CN_OK);
    assert_int_equal(n, 2);
    assert_int_equal(eos[0], 7);
    assert_int_equal(eos[1], 9);
    g = parse_generation("{\"eos_token_id\": 300}");
    assert_int_equal(cn_generation_config_eos(&g, &c, eos, &n), CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "eos_token_id 300"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundled_checkpoint),
        cmocka_unit_test(test_architecture_defaults),
        cmocka_unit_test(test_parameter_count),
        cmocka_unit_test(test_experts_of_qwen3),
        cmocka_unit_test(test_experts_of_glm4),
        cmocka_unit_test(test_layer_kinds),
        cmocka_unit_test(test_rope_places),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refusals_of_experts),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_refusals_of_latent_attention),
        cmocka_unit_test(test_inactive_sliding_window_is_accepted),
        cmocka_unit_test(test_hash_covers_what_changes_results),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_generation_config_refusals),
        cmocka_unit_test(test_eos_union),
    };
    return cmocka_run_group_tests_name("model_config", tests, NULL, NULL);
}
