/* fuzz_json.c - feeds hostile config.json and generation_config.json. Must hold: no crash; a
 * refusal has a printable text; accepted values are inside every bound that later stages rely
 * on. */
#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/checkpoint/generation_config.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "tests/lib/fuzz.h"

static void check_refusal(cn_status status)
{
    FUZZ_CHECK(status == CN_ERR_MODEL);
    for (const char *p = cn_last_error(); *p; p++) FUZZ_CHECK(*p >= 0x20 && *p < 0x7f);
}

static void check_model(const cn_model_config *c)
{
    FUZZ_CHECK(c->head_dim >= 16 && c->head_dim <= 256 && c->head_dim % 16 == 0);
    FUZZ_CHECK(c->n_kv_heads > 0 && c->n_heads % c->n_kv_heads == 0);
    FUZZ_CHECK(c->n_layers > 0 && c->hidden > 1 && c->intermediate > 1 && c->vocab > 1);
    FUZZ_CHECK(c->max_position > 0 && c->max_position <= 1u << 24);
    FUZZ_CHECK(c->n_eos <= CN_MAX_EOS && c->bos >= -1 && c->bos < c->vocab);
    for (uint32_t i = 0; i < c->n_eos; i++) FUZZ_CHECK(c->eos[i] < c->vocab);
    const cn_backend be = {.matrix_dtype = CN_F32, .vector_dtype = CN_F32};
    const uint64_t n_fp8 = cn_model_config_n_fp8(c, UINT32_MAX);
    FUZZ_CHECK(cn_weights_bytes(c, &be) >= 4 * (cn_model_config_n_params(c) - n_fp8) + n_fp8);
    (void)cn_model_config_hash(c);

    float inv_freq[128], cos_row[2 * 128], sin_row[2 * 128];
    cn_rope_inv_freq(c, inv_freq);
    cn_rope_table(c, 0, 2, cos_row, sin_row);
    for (uint32_t i = 0; i < c->head_dim / 2; i++) {
        FUZZ_CHECK(isfinite(inv_freq[i]) && inv_freq[i] >= 0 && inv_freq[i] <= 1);
        FUZZ_CHECK(isfinite(cos_row[c->head_dim / 2 + i]) && sin_row[i] == 0);
    }
}

static void run(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    cn_model_config c;
    cn_generation_config g;
    json_t *tree;
    char shown[16];

    cn_status status = cn_json_parse(&tree, text, size, "in", 1 << 16, 8, CN_ERR_MODEL);
    if (status != CN_OK) {
        check_refusal(status);
    } else {
        cn_json_describe(tree, shown, sizeof shown);
        FUZZ_CHECK(strlen(shown) < sizeof shown);
        json_decref(tree);
    }

    status = cn_model_config_parse(&c, text, size, "in");
    if (status == CN_OK)
        check_model(&c);
    else
        check_refusal(status);

    status = cn_generation_config_parse(&g, text, size, "in");
    if (status == CN_OK)
        FUZZ_CHECK(g.n_eos <= CN_MAX_EOS && (!g.has_top_p || (g.top_p > 0 && g.top_p <= 1)));
    else
        check_refusal(status);
}

#define SIZES                                                              \
    "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":300"

static const fuzz_input corpus[] = {
    FUZZ_TEXT("{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES ",\"head_dim\":16,"
              "\"rope_theta\":1e6,\"tie_word_embeddings\":true,\"eos_token_id\":[7,8],"
              "\"use_sliding_window\":false,\"sliding_window\":null,\"hidden_act\":\"silu\"}"),
    FUZZ_TEXT("{\"architectures\":[\"LlamaForCausalLM\"]," SIZES ",\"rope_scaling\":"
              "{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
              "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192},"
              "\"max_position_embeddings\":131072,\"attention_bias\":true}"),
    FUZZ_TEXT("{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES ",\"rope_parameters\":"
              "{\"rope_type\":\"yarn\",\"factor\":4.0,\"rope_theta\":10000,\"beta_fast\":32,"
              "\"mscale\":0.7,\"mscale_all_dim\":0.5,\"truncate\":false,"
              "\"original_max_position_embeddings\":512},\"layer_types\":[\"full_attention\"]}"),
    FUZZ_TEXT("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"vocab_size\":99,"
              "\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
              "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],"
              "\"modules_to_not_convert\":[\"lm_head\",\"re:.*mlp.*\",\"model.layers.1\","
              "\"*.o_*\"]}}"),
    FUZZ_TEXT("{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"vocab_size\":99,"
              "\"intermediate_size\":96,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
              "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
              "\"float-quantized\",\"ignore\":[],\"config_groups\":{\"g\":{\"targets\":"
              "[\"Linear\"],"
              "\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"},"
              "\"input_activations\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true,"
              "\"strategy\":\"token\"}}}}}"),
    FUZZ_TEXT("{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":0,"
              "\"repetition_penalty\":1.05,\"max_new_tokens\":32768,\"eos_token_id\":151643}"),
};

static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "\"",
    "\\u0000",
    "\\ud800",
    "\xff",
    "\xc0\x80",
    "1e308",
    "99999999999999999999",
    "-9223372036854775809",
    "1e-308",
    "\"rope_type\":",
    "\"yarn\"",
    "\"llama3\"",
    "\"quantization_config\":",
    "\"re:(\"",
    "\"static\"",
    "\"tensor\"",
    "\"group_size\":128",
    "\"head_dim\":",
    "\"partial_rotary_factor\":",
    "\"attention_factor\":",
    "\x1b[2J",
    "%s%n",
};

static const fuzz_target target = {
    .name = "json",
    .run = run,
    .corpus = corpus,
    .n_corpus = sizeof corpus / sizeof *corpus,
    .words = words,
    .n_words = sizeof words / sizeof *words,
};

int main(int argc, char **argv) { return fuzz_main(argc, argv, &target); }
