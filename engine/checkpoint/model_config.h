/* model_config.h - config.json of a Hugging Face checkpoint as one checked struct.
 *
 * Owner: the caller; a plain value that can be copied. Thread: any. Stage: start, before any other
 * file of the model is read.
 *
 * Supported: Qwen3ForCausalLM (per-head q/k norm), Qwen2ForCausalLM (q/k/v bias), LlamaForCausalLM
 * (with or without attention_bias), MistralForCausalLM (without a sliding window),
 * Qwen3MoeForCausalLM (experts), Glm4MoeForCausalLM (experts in one group and a shared one; RoPE
 * of a part of the head), DeepseekV2ForCausalLM, DeepseekV3ForCausalLM and Glm4MoeLiteForCausalLM
 * (latent attention; experts in groups and shared ones). Weights are plain or FP8 (quant.h). Any
 * other feature is refused by name, never ignored: other architectures and quantizations, active
 * sliding windows, other rope types, routers or activations, partial rotary embeddings of other
 * architectures, MLP biases. */
#pragma once

#include "engine/base/base.h"
#include "engine/ops.h"

typedef enum cn_rope_type { CN_ROPE_DEFAULT, CN_ROPE_LLAMA3, CN_ROPE_YARN } cn_rope_type;

/* rope_scaling (or rope_parameters of transformers 5). Fields of the other types are 0. */
typedef struct cn_rope_scaling {
    cn_rope_type type;
    double factor;
    uint32_t original_max_position;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn: multiplies cos and sin; 1 otherwise */
    bool truncate;                            /* yarn: round the bounds of the ramp to dimensions */
    double logit_factor; /* yarn of latent attention: multiplies logits; 1 otherwise */
} cn_rope_scaling;

enum {
    CN_MAX_EOS = 8,
    CN_MAX_LAYERS = 1024,
    CN_MAX_WIDTH = 1 << 20 /* hidden, intermediate */
};

/* The layers with experts. All fields are 0 when the model has none. */
typedef struct cn_experts {
    cn_router router;
    bool bias;             /* the router adds a bias to the scores that choose */
    uint32_t intermediate; /* of an expert */
    uint32_t shared;       /* of the MLP that every token takes besides; 0: none */
    uint64_t layers[CN_MAX_LAYERS / 64]; /* bit l: layer l has experts */
} cn_experts;

/* Latent attention (MLA). A token has one row of K for all heads: a latent row of `rank` elements,
 * of which the keys and values of each head are products, and `rope` elements with a position. V is
 * the latent row itself: a query is multiplied by the key matrix of its head before attention, the
 * output by the value matrix after it. All fields are 0 when the model has none. */
typedef struct cn_latent {
    uint32_t q_rank;     /* of the two factors of the query matrix; 0: it is one matrix */
    uint32_t rank;       /* r */
    uint32_t nope, rope; /* elements of a query head: without position, then with it */
    uint32_t value;      /* elements of a value head */
    bool interleaved;    /* RoPE of the files pairs dimensions 2i and 2i + 1 */
    bool has_switch;     /* rope_interleave of config.json says so */
} cn_latent;

typedef enum cn_attn_kind { CN_ATTN_HEADS, CN_ATTN_LATENT, CN_N_ATTN_KINDS } cn_attn_kind;

typedef enum cn_mlp_kind { CN_MLP_DENSE, CN_MLP_EXPERTS, CN_N_MLP_KINDS } cn_mlp_kind;

/* What a layer is made of. */
typedef struct cn_layer_kind {
    cn_attn_kind attn;
    cn_mlp_kind mlp;
    uint32_t dense; /* intermediate size of the MLP that every token takes; 0: none */
} cn_layer_kind;

enum { CN_DRAFT_LAYERS = 3 }; /* whose input a retrieval head reads, if it reads any */

/* The retrieval head of selector `spec` (retrieval_file.h): RoPE attention of one layer over
 * embeddings and, with hidden layers, states of the model; without values. Its kv heads are those
 * of the model. */
typedef struct cn_draft_head {
    uint32_t n_heads, head_dim;
    uint32_t n_hidden_layers;                /* 0 or CN_DRAFT_LAYERS */
    uint32_t hidden_layers[CN_DRAFT_LAYERS]; /* ascending */
    uint32_t context; /* positions it was trained on; YaRN extends them to those of the model */
    double rope_theta;
} cn_draft_head;

/* The fused matrices of a layer that can be FP8. */
typedef enum cn_quant_part {
    CN_QUANT_QKV,
    CN_QUANT_O,
    CN_QUANT_GATE_UP,
    CN_QUANT_DOWN,
    CN_QUANT_EXPERT_GATE_UP,
    CN_QUANT_EXPERT_DOWN,
    CN_QUANT_LATENT_Q_A,
    CN_QUANT_LATENT_Q, /* the only factor, or the second one */
    CN_QUANT_LATENT_KV_A,
    CN_QUANT_LATENT_KV_B, /* FP8 in the files alone: heads_gemm multiplies plain values */
    CN_N_QUANT_PARTS
} cn_quant_part;

/* What has one scale of its own: a tensor of the files, a row of it, or a block of 128 x 128. */
typedef enum cn_quant_scale {
    CN_QUANT_TENSOR,
    CN_QUANT_ROW,
    CN_QUANT_BLOCK
} cn_quant_scale;

/* Which weights are FP8. All fields are 0 when none is. */
typedef struct cn_quant {
    bool fp8;
    bool at_load;   /* the files have plain weights, and loading makes blocks of them */
    bool is_static; /* the files have an input_scale for each matrix */
    cn_quant_scale scale;
    cn_x_form x; /* of the products */
    uint64_t plain[CN_N_QUANT_PARTS][CN_MAX_LAYERS / 64]; /* bit l: not FP8 in layer l */
} cn_quant;

typedef struct cn_model_config {
    char architecture[64];
    /* n_kv_heads and head_dim: of the rows of K, and of the queries that are multiplied with them.
     * Latent attention has one kv head of latent.rank + latent.rope. */
    uint32_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab;
    uint32_t max_position; /* context length; with YaRN the extended one */
    float rms_eps;
    double rope_theta;
    cn_rope_scaling rope;
    bool tied;    /* lm_head is the embedding matrix */
    bool qk_norm; /* RMS norm of each query and key head before RoPE */
    bool qkv_bias, o_bias;
    uint32_t rotary; /* first dimensions of a head that RoPE rotates; the others have no position */
    cn_latent latent;
    cn_experts experts;
    cn_quant quant;
    cn_draft_head draft; /* all 0: no declared selector needs one. No part of config.json */
    cn_dtype dtype; /* of the weights, by config.json; CN_BF16 if it does not say */
    uint32_t eos[CN_MAX_EOS];
    uint32_t n_eos;
    int64_t bos; /* -1: none */
    float initializer_range;
    /* n_ranks > 0: what rank `rank` has of a model that is split over several. n_heads, n_kv_heads
     * and intermediate are those of the rank. 0: the whole model. */
    uint32_t rank, n_ranks;
} cn_model_config;

/* Elements of the state that each block keeps for the retrieval head. */
static inline uint32_t cn_draft_state_width(const cn_model_config *m)
{
    return m->draft.n_hidden_layers > 0 ? m->hidden : 0;
}

/* The rows of the head that a rank has: from the first row of its rank on, up to that of the next
 * one. */
static inline uint32_t cn_head_first_row(const cn_model_config *m, uint32_t rank)
{
    return m->n_ranks > 0 ? (uint32_t)((uint64_t)m->vocab * rank / m->n_ranks) : 0;
}

static inline uint32_t cn_head_rows(const cn_model_config *m)
{
    if (m->n_ranks == 0) return m->vocab;
    return cn_head_first_row(m, m->rank + 1) - cn_head_first_row(m, m->rank);
}

/* Elements of a head that the rope tables cover. */
static inline uint32_t cn_rope_dim(const cn_model_config *m)
{
    return m->latent.rank > 0 ? m->latent.rope : m->head_dim;
}

/* Elements that attention gives the output matrix. */
static inline uint32_t cn_attn_width(const cn_model_config *m)
{
    return m->n_heads * (m->latent.rank > 0 ? m->latent.value : m->head_dim);
}

/* By which products of queries and keys are multiplied. */
float cn_model_config_scale(const cn_model_config *c);

/* Reads model_dir/config.json. CN_ERR_IO when the file is missing. CN_ERR_MODEL when it is
 * malformed or requires an unsupported feature; the text names the key, the value and the supported
 * values. */
cn_status cn_model_config_load(cn_model_config *out, const char *model_dir);

/* Refuses an architecture that is not supported, as cn_model_config_load does, and reads nothing
 * else. CN_OK without a config.json. */
cn_status cn_model_config_check_architecture(const char *model_dir);

/* The same as cn_model_config_load from the text of a config.json; `what` names it in errors. */
cn_status cn_model_config_parse(cn_model_config *out, const char *text, size_t n,
                                const char *what);

/* The config of one of n_ranks ranks; of one alone, the whole model. CN_ERR_ARG names what n_ranks
 * does not divide, or what is not split over ranks yet. */
cn_status cn_model_config_rank(cn_model_config *out, const cn_model_config *whole, uint32_t rank,
                               uint32_t n_ranks);

/* The kind of a layer. All that differs between layers follows from it. */
cn_layer_kind cn_model_config_layer(const cn_model_config *c, uint32_t layer);

/* Whether a fused matrix of a layer is FP8. */
bool cn_model_config_is_fp8(const cn_model_config *c, cn_quant_part part, uint32_t layer);

/* Of the parameters that a step of n_tokens tokens reads, how many are FP8. */
uint64_t cn_model_config_n_fp8(const cn_model_config *c, uint32_t n_tokens);

/* The intermediate size of the largest MLP that every token takes; 0: no layer has one. */
uint32_t cn_model_config_widest_mlp(const cn_model_config *c);

/* Number of parameters of the model; a tied embedding counts once. */
uint64_t cn_model_config_n_params(const cn_model_config *c);

/* How many of the E experts of a layer a step of n_tokens tokens is expected to read, if each token
 * takes any k of them: E (1 - (1 - k/E)^n_tokens). 0 for a model without experts. */
double cn_model_config_experts_read(const cn_model_config *c, uint32_t n_tokens);

/* n_params without those of the experts that a step of n_tokens tokens does not read. */
uint64_t cn_model_config_n_read(const cn_model_config *c, uint32_t n_tokens);

/* Hash of all fields that change a result. Used to reject a resume or a cache of another model. */
uint64_t cn_model_config_hash(const cn_model_config *c);
