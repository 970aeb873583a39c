/* model_config.h - config.json of a Hugging Face checkpoint as one checked struct.
 *
 * Owner: whoever loads it; a plain value, copy freely. Thread: any. Stage: before anything else of
 * the model is read; `cinch plan` needs nothing more.
 *
 * Supported: Qwen3ForCausalLM (per-head q/k norm), Qwen2ForCausalLM (q/k/v bias), LlamaForCausalLM
 * (attention_bias or none). What a checkpoint asks for beyond that is refused by name, never
 * ignored: other architectures, quantization, active sliding windows, other rope types or
 * activations, partial rotary embeddings, MLP biases. */
#ifndef CN_MODEL_CONFIG_H
#define CN_MODEL_CONFIG_H

#include "engine/base.h"
#include "engine/ops.h"

typedef enum cn_rope_type { CN_ROPE_DEFAULT, CN_ROPE_LLAMA3, CN_ROPE_YARN } cn_rope_type;

/* rope_scaling (or rope_parameters of transformers 5). Fields of other types are 0. */
typedef struct cn_rope_scaling {
    cn_rope_type type;
    double factor;
    uint32_t original_max_position;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn: multiplies cos and sin; worked out here */
    bool truncate;                            /* yarn: whole dimensions bound the ramp */
} cn_rope_scaling;

enum { CN_MAX_EOS = 8 };

typedef struct cn_model_config {
    char architecture[64];
    uint32_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab;
    uint32_t max_position; /* context length; under YaRN the stretched one */
    float rms_eps;
    double rope_theta;
    cn_rope_scaling rope;
    bool tied;    /* lm_head is the embedding matrix */
    bool qk_norm; /* RMS norm of each query and key head before RoPE */
    bool qkv_bias, o_bias;
    cn_dtype dtype; /* what config.json says the weights are; CN_BF16 when it does not */
    uint32_t eos[CN_MAX_EOS];
    uint32_t n_eos;
    int64_t bos; /* -1: none */
    float initializer_range;
} cn_model_config;

/* Reads model_dir/config.json. CN_ERR_IO when it is not there, CN_ERR_MODEL when it is malformed
 * or asks for something unsupported; the text names the key, the value and what is supported. */
cn_status cn_model_config_load(cn_model_config *out, const char *model_dir);

/* From the text of a config.json, `what` naming it in errors. */
cn_status cn_model_config_parse(cn_model_config *out, const char *text, size_t n,
                                const char *what);

/* Parameters that a forward pass reads; the embedding counts once when tied. */
uint64_t cn_model_config_n_params(const cn_model_config *c);

/* Of all fields that change a result: to refuse a resume or a cache of another model. */
uint64_t cn_model_config_hash(const cn_model_config *c);

#endif
