/* test_quant.c - which weights are FP8, by config.json and options: lists of modules and patterns;
 * unsupported formats, options without effect, and backends without the products are refused by
 * name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/checkpoint/quant.h"
#include "engine/start/device_choice.h"

#define MODEL(quant)                                                                        \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"vocab_size\": 99, "   \
    "\"intermediate_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "       \
    "\"quantization_config\": {" quant "}}"
#define FP8 "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], "
#define CT_OF(targets, format, weights, inputs)                                  \
    "\"quant_method\": \"compressed-tensors\", \"format\": \"" format "\", "     \
    "\"config_groups\": {\"g\": {\"targets\": [" targets "], \"weights\": {" weights \
    "}, \"input_activations\": " inputs "}}"
#define CT(format, weights, inputs) CT_OF("\"Linear\"", format, weights, inputs)
#define CT_FP8(strategy) "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"" strategy "\""
#define TOKEN "{\"num_bits\": 8, \"type\": \"float\", \"dynamic\": true, \"strategy\": \"token\"}"

static cn_status parse(cn_model_config *c, const char *text)
{
    return cn_model_config_parse(c, text, strlen(text), "config.json");
}

static void unsupported_formats_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {MODEL("\"quant_method\": \"gptq\""), "int4 (GPTQ) weights are not supported"},
        {MODEL("\"quant_method\": \"awq\""), "int4 (AWQ) weights are not supported"},
        {MODEL("\"quant_method\": \"mxfp4\""), "MXFP4 weights are not supported"},
        {MODEL("\"quant_method\": \"bitsandbytes\""), "bitsandbytes weights are not supported"},
        {MODEL("\"quant_method\": \"gguf\""), "GGUF weights are not supported"},
        {MODEL("\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\""), "NVFP4 weights are"},
        {MODEL("\"quant_method\": \"quark\""), "quant_method \"quark\": quantized weights are"},
        {MODEL("\"a\": 1"), "quant_method not given"},
        {MODEL(CT("pack-quantized", "", "null")), "int4 weights are not supported"},
        {MODEL(CT("nvfp4-pack-quantized", "", "null")), "NVFP4 weights are not supported"},
        {MODEL(CT("int-quantized", "", "null")), "int8 weights are not supported"},
        {MODEL(CT("float-quantized",
                  "\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"group\"", "null")),
         "config_groups.g.weights: num_bits 4"},
        {MODEL(CT("float-quantized", CT_FP8("group"), "null")), "supported is tensor, channel or"},
        {MODEL(CT("float-quantized", CT_FP8("block"), "null")), "block_structure not given"},
        {MODEL(CT("float-quantized", CT_FP8("channel"), "{\"type\": \"int\"}")), "type \"int\""},
        {MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN)
               ", \"transform_config\": {\"config_groups\": {\"R4\": {}}}"),
         "transform_config: transforms of weights and inputs are not supported"},
        {MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN)
               ", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}"),
         "sparsity_config: format \"sparse-24-bitmask\" of FP8"},
        {MODEL(FP8 "\"fmt\": \"e5m2\""), "fmt \"e5m2\""},
        {MODEL("\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]"),
         "weight_block_size [64, 128] of FP8"},
        {MODEL(FP8 "\"activation_scheme\": \"static\""), "dynamic for blocks"},
        {MODEL(FP8 "\"modules_to_not_convert\": [\"re:(\"]"), "is not a regular expression"},
        {MODEL(FP8 "\"modules_to_not_convert\": [7]"), "expected names of modules, got 7"},
        {MODEL(FP8 "\"ignored_layers\": [\"model.layers.1.self_attn.k_proj\"]"),
         "some of model.layers.1.self_attn.q_proj to model.layers.1.self_attn.v_proj of layer 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cn_model_config c;
        assert_int_equal(parse(&c, cases[i].text), CN_ERR_MODEL);
        if (!strstr(cn_last_error(), cases[i].words))
            fail_msg("\"%s\" lacks \"%s\"", cn_last_error(), cases[i].words);
    }
}

/* Layers, one bit each, in which a part is FP8. */
static uint32_t layers_of(const char *text, cn_quant_part part)
{
    cn_model_config c;
    uint32_t bits = 0;
    if (parse(&c, text) != CN_OK) fail_msg("%s", cn_last_error());
    for (uint32_t l = 0; l < c.n_layers; l++)
        bits |= (uint32_t)cn_model_config_is_fp8(&c, part, l) << l;
    return bits;
}

static void lists_name_modules_and_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t qkv, o, gate_up, down;
    } cases[] = {
        {MODEL(FP8 "\"fmt\": \"e4m3\""), 7, 7, 7, 7},
        {MODEL(FP8 "\"modules_to_not_convert\": [\"lm_head\", \"model.layers.1\"]"), 5, 5, 5, 5},
        {MODEL(FP8 "\"modules_to_not_convert\": [\"mlp.down_proj\", \"proj\"]"), 7, 7, 7, 0},
        {MODEL(FP8 "\"ignored_layers\": [\"model.layers.2.self_attn\"]"), 3, 3, 7, 7},
        {MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN)
               ", \"ignore\": [\"re:.*mlp.*\", \"lm_head\"]"), 7, 7, 0, 0},
        {MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN)
               ", \"ignore\": [\"re:mlp.*\", \"re:model.layers.[01].self_attn.o_proj$\"]"),
         7, 4, 7, 7},
        {MODEL(CT_OF("\"re:.*down_proj\", \"Linear\"", "float-quantized", CT_FP8("channel"),
                     TOKEN)), 7, 7, 7, 7},
        {MODEL(CT_OF("\"re:.*down_proj\"", "float-quantized", CT_FP8("channel"), TOKEN)),
         0, 0, 0, 7},
        {MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN)
               ", \"transform_config\": {}, \"sparsity_config\": {\"format\": \"dense\"}"),
         7, 7, 7, 7},
        {MODEL("\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", "
               "\"exclude_modules\": [\"*.0.self_attn*\", \"model.layers.?.mlp.down_proj\"]"),
         6, 6, 7, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_QKV), cases[i].qkv);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_O), cases[i].o);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_GATE_UP), cases[i].gate_up);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_DOWN), cases[i].down);
    }
}

#define MOE_MODEL(quant)                                                                       \
    "{\"architectures\": [\"Glm4MoeForCausalLM\"], \"hidden_size\": 64, \"vocab_size\": 99, "    \
    "\"intermediate_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "        \
    "\"num_key_value_heads\": 2, \"n_routed_experts\": 2, \"num_experts_per_tok\": 1, "        \
    "\"moe_intermediate_size\": 32, \"quantization_config\": {" quant "}}"

/* Layer 0 is dense. The others have shared experts and two that tokens take. */
static void lists_name_experts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t gate_up, down, expert_gate_up, expert_down;
    } cases[] = {
        {MOE_MODEL(FP8 "\"fmt\": \"e4m3\""), 7, 7, 7, 7},
        {MOE_MODEL(FP8 "\"ignored_layers\": [\"mlp.gate\", \"lm_head\"]"), 7, 7, 7, 7},
        {MOE_MODEL(FP8 "\"ignored_layers\": [\"model.layers.1.mlp.experts\"]"), 7, 7, 5, 5},
        {MOE_MODEL(FP8 "\"ignored_layers\": [\"model.layers.2.mlp.experts.down_proj\"]"),
         7, 7, 7, 3},
        {MOE_MODEL(FP8 "\"ignored_layers\": [\"re:.*shared_experts.*\"]"), 1, 1, 7, 7},
        {MOE_MODEL(FP8 "\"ignored_layers\": [\"model.layers.0.mlp\", \"down_proj\"]"),
         6, 0, 7, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_GATE_UP), cases[i].gate_up);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_DOWN), cases[i].down);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_EXPERT_GATE_UP),
                         cases[i].expert_gate_up);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_EXPERT_DOWN), cases[i].expert_down);
    }
    cn_model_config c;
    assert_int_equal(parse(&c, MOE_MODEL(FP8 "\"ignored_layers\": [\"experts.1.up_proj\"]")),
                     CN_ERR_MODEL);
    assert_non_null(strstr(cn_last_error(), "some of model.layers.1.mlp.experts.0.gate_proj to "
                                            "model.layers.1.mlp.experts.1.up_proj of layer 1"));
}

/* Two forms of one model are two models. A backend without FP8 products refuses it by name. */
static void hash_and_backend_know_the_form(void **state)
{
    (void)state;
    cn_model_config a, b, c;
    assert_int_equal(parse(&a, MODEL(FP8 "\"fmt\": \"e4m3\"")), CN_OK);
    assert_int_equal(parse(&b, MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN))), CN_OK);
    c = a;
    c.quant = (cn_quant){0};
    assert_int_not_equal(cn_model_config_hash(&a), cn_model_config_hash(&b));
    assert_int_not_equal(cn_model_config_hash(&a), cn_model_config_hash(&c));
    const cn_backend be = {.name = "other"}, one = {.name = "other",
                                                    .fp8_x_forms = 1U << CN_X_BLOCKS,
                                                    .fp8_columns = 64};
    const cn_backend wide = {
        .name = "wide", .fp8_x_forms = 1U << CN_X_BLOCKS, .fp8_columns = 128};
    assert_int_equal(cn_backend_check_model(&be, &c), CN_OK);
    assert_int_equal(cn_backend_check_model(&one, &a), CN_OK);
    assert_int_equal(cn_backend_check_model(&be, &a), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "the other backend does not support them: use the"));
    assert_int_equal(cn_backend_check_model(&wide, &a), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "hidden_size is 64, and the wide backend needs"));
    assert_int_equal(parse(&b, MOE_MODEL(FP8 "\"fmt\": \"e4m3\"")), CN_OK);
    assert_int_equal(cn_backend_check_fp8(&one, &b), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "FP8 weights of experts (quantization_config): the "
                                            "other backend does not support them yet: use the"));
    cn_backend experts = one;
    experts.fp8_experts = true;
    assert_int_equal(cn_backend_check_fp8(&experts, &b), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "moe_intermediate_size is 32, and the other"));
    a.quant.x = CN_X_PLAIN;
    assert_int_equal(cn_backend_check_model(&one, &a), CN_ERR_DEVICE);
    assert_non_null(strstr(cn_last_error(), "leave out --no-fp8-activations"));
}

#define LATENT_MODEL(quant)                                                                     \
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 64, \"vocab_size\": 99, " \
    "\"intermediate_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "         \
    "\"q_lora_rank\": 32, \"kv_lora_rank\": 32, \"qk_rope_head_dim\": 16, "                     \
    "\"qk_nope_head_dim\": 16, \"v_head_dim\": 16, \"n_routed_experts\": 2, \"n_group\": 1, "   \
    "\"topk_group\": 1, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 32, "            \
    "\"quantization_config\": {" quant "}}"

/* A whole query matrix has the name that one of three has with other attention. */
static void lists_name_matrices_of_latent_attention(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t q_a, q, kv_a, kv_b;
    } cases[] = {
        {LATENT_MODEL(FP8 "\"fmt\": \"e4m3\""), 7, 7, 7, 7},
        {LATENT_MODEL(FP8 "\"ignored_layers\": [\"kv_b_proj\"]"), 7, 7, 7, 0},
        {LATENT_MODEL(FP8 "\"ignored_layers\": [\"model.layers.1.self_attn\"]"), 5, 5, 5, 5},
        {LATENT_MODEL(FP8 "\"ignored_layers\": [\"re:.*q_[ab]_proj\"]"), 0, 0, 7, 7},
        {LATENT_MODEL(FP8 "\"ignored_layers\": [\"self_attn.q_proj\", \"kv_a_proj_with_mqa\"]"),
         7, 7, 0, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_LATENT_Q_A), cases[i].q_a);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_LATENT_Q), cases[i].q);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_LATENT_KV_A), cases[i].kv_a);
        assert_int_equal(layers_of(cases[i].text, CN_QUANT_LATENT_KV_B), cases[i].kv_b);
    }
}

static void options_without_effect_are_refused(void **state)
{
    (void)state;
    cn_model_config c;
    cn_config *options = cn_config_create();
    assert_non_null(options);
    assert_int_equal(cn_model_config_load(&c, "tests/golden/models/qwen3-bf16"), CN_OK);
    assert_int_equal(cn_config_set(options, "fp8-activations", "false"), CN_OK);
    assert_int_equal(cn_quant_choose(&c, options), CN_ERR_ARG);
    assert_non_null(strstr(cn_last_error(), "no weight of this checkpoint is FP8"));
    assert_int_equal(cn_config_set(options, "quantization", "fp8"), CN_OK);
    assert_int_equal(cn_quant_choose(&c, options), CN_OK);
    assert_int_equal(c.quant.x, CN_X_PLAIN);
    cn_config_free(options);
}

/* The text that cn_quant_choose logs for a configuration and an option. */
static void choose(const char *config, const char *option, const char *value, char *text,
                   size_t size)
{
    cn_model_config c;
    cn_config *options = cn_config_create();
    FILE *log = tmpfile();
    const int console = dup(STDERR_FILENO);
    assert_true(options && log && console >= 0);
    assert_int_equal(parse(&c, config), CN_OK);
    assert_int_equal(cn_config_set(options, option, value), CN_OK);
    fflush(stderr);
    dup2(fileno(log), STDERR_FILENO);
    const cn_status status = cn_quant_choose(&c, options);
    fflush(stderr);
    dup2(console, STDERR_FILENO);
    close(console);
    rewind(log);
    text[fread(text, 1, size - 1, log)] = '\0';
    fclose(log);
    cn_config_free(options);
    assert_int_equal(status, CN_OK);
}

static void options_that_change_nothing_say_so(void **state)
{
    (void)state;
    char text[1024];
    const char *with_inputs = MODEL(CT("float-quantized", CT_FP8("channel"), TOKEN));
    const char *weights_only = MODEL(CT("float-quantized", CT_FP8("channel"), "null"));
    choose(with_inputs, "quantization", "fp8", text, sizeof text);
    assert_non_null(strstr(text, "--quantization fp8 changes nothing: the checkpoint has FP8"));
    choose(weights_only, "fp8-activations", "false", text, sizeof text);
    assert_non_null(strstr(text, "--no-fp8-activations changes nothing: the checkpoint rounds no"));
    choose(with_inputs, "fp8-activations", "false", text, sizeof text);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsupported_formats_are_refused_by_name),
        cmocka_unit_test(lists_name_modules_and_patterns),
        cmocka_unit_test(lists_name_experts),
        cmocka_unit_test(lists_name_matrices_of_latent_attention),
        cmocka_unit_test(hash_and_backend_know_the_form),
        cmocka_unit_test(options_without_effect_are_refused),
        cmocka_unit_test(options_that_change_nothing_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
