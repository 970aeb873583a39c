/* model_config.c - reads config.json into a checked struct. See model_config.h. Absent keys get the
 * defaults of the configuration classes of transformers. */
#include "engine/checkpoint/model_config.h"

#include <math.h>

#include "engine/base/json.h"
#include "engine/checkpoint/checkpoint_dir.h"
#include "engine/checkpoint/model_experts.h"
#include "engine/checkpoint/model_latent.h"
#include "engine/checkpoint/quant.h"

enum {
    CONFIG_MAX_BYTES = 4 << 20,
    CONFIG_MAX_DEPTH = 16,
    MAX_HEADS = 1024,
    MAX_VOCAB = 1 << 22,
    MAX_POSITION = 1 << 24,
    MAX_HEAD_DIM = 256,
    HEAD_DIM_STEP = 16,
    PLACE_BYTES = 512,
};

typedef enum bias {
    BIAS_NONE,
    BIAS_QKV,
    BIAS_BY_KEY,     /* attention_bias: q, k, v and o */
    BIAS_QKV_BY_KEY, /* attention_bias: q, k and v */
} bias;

typedef enum qk_norm { QK_NORM_NONE, QK_NORM_ALWAYS, QK_NORM_BY_KEY /* use_qk_norm */ } qk_norm;

/* How the class in transformers reads sliding_window. */
typedef enum sliding {
    SLIDING_NEVER,
    SLIDING_BY_SWITCH, /* only with use_sliding_window, from layer max_window_layers on */
    SLIDING_ALL_BY_SWITCH, /* only with use_sliding_window, in every layer */
    SLIDING_BY_VALUE   /* in every layer, unless the value is null */
} sliding;

typedef struct architecture {
    const char *name;
    qk_norm qk_norm;
    bias bias;
    sliding sliding;
    uint32_t head_dim;       /* when absent; 0: hidden / heads */
    uint32_t max_position;   /* when absent */
    int64_t bos, eos;        /* when absent; -1: none */
    double rms_eps;          /* when absent */
    double rotary;           /* share of a head that RoPE rotates, when absent; 0: all, always */
    cn_read_experts_fn *read_experts; /* NULL: all layers are dense */
    const cn_latent *latent; /* latent attention when keys are absent; NULL: there is none */
} architecture;

static const cn_latent latent_deepseek2 = {1536, 512, 128, 64, 128, true, false};
static const cn_latent latent_deepseek3 = {1536, 512, 128, 64, 128, true, true};
static const cn_latent latent_glm4_lite = {768, 512, 192, 64, 256, true, true};

static const architecture architectures[] = {
    {"Qwen3ForCausalLM", QK_NORM_ALWAYS, BIAS_BY_KEY, SLIDING_BY_SWITCH, 128, 32768, -1, -1,
     1e-6, 0, NULL, NULL},
    {"Qwen2ForCausalLM", QK_NORM_NONE, BIAS_QKV, SLIDING_BY_SWITCH, 0, 32768, -1, -1, 1e-6, 0,
     NULL, NULL},
    {"LlamaForCausalLM", QK_NORM_NONE, BIAS_BY_KEY, SLIDING_NEVER, 0, 2048, 1, 2, 1e-6, 0, NULL,
     NULL},
    {"MistralForCausalLM", QK_NORM_NONE, BIAS_NONE, SLIDING_BY_VALUE, 0, 131072, 1, 2, 1e-6,
     0, NULL, NULL},
    {"Qwen3MoeForCausalLM", QK_NORM_ALWAYS, BIAS_BY_KEY, SLIDING_ALL_BY_SWITCH, 0, 32768, -1, -1,
     1e-6, 0, cn_read_qwen3_experts, NULL},
    {"Glm4MoeForCausalLM", QK_NORM_BY_KEY, BIAS_QKV_BY_KEY, SLIDING_NEVER, 0, 131072, -1, -1,
     1e-5, 0.5, cn_read_glm4_experts, NULL},
    {"DeepseekV2ForCausalLM", QK_NORM_NONE, BIAS_NONE, SLIDING_NEVER, 0, 2048, 1, 2, 1e-6, 0,
     cn_read_deepseek2_experts, &latent_deepseek2},
    {"DeepseekV3ForCausalLM", QK_NORM_NONE, BIAS_NONE, SLIDING_NEVER, 0, 4096, 0, 1, 1e-6, 0,
     cn_read_deepseek3_experts, &latent_deepseek3},
    {"Glm4MoeLiteForCausalLM", QK_NORM_NONE, BIAS_NONE, SLIDING_NEVER, 0, 202752, 0, 1, 1e-5, 0,
     cn_read_glm4_lite_experts, &latent_glm4_lite},
};

/* Why an architecture that looks like a supported one is not. */
static const char *why_not(const char *name)
{
    static const struct {
        const char *name, *why;
    } known[] = {
        {"DeepseekV32ForCausalLM", " (its attention has an indexer)"},
        {"GlmMoeDsaForCausalLM", " (its attention has an indexer)"},
        {"DeepseekV4ForCausalLM", " (hyper-connections, compressed keys)"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) return known[i].why;
    return "";
}

static cn_status find_architecture(const cn_json_at *a, const architecture **out)
{
    json_t *list = NULL;
    char shown[96];
    CN_TRY(cn_json_arr(a, "architectures", CN_JSON_REQUIRED, &list));
    const json_t *first = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_string(first))
        return cn_fail(a->error, "%s: architectures: expected one name, got %s", a->where,
                       cn_json_describe(list, shown, sizeof shown));
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        *out = &architectures[i];
        if (strcmp(json_string_value(first), (*out)->name) == 0) return CN_OK;
    }
    return cn_fail(a->error,
                   "%s: architectures: %s is not supported%s; supported are Qwen3ForCausalLM, "
                   "Qwen2ForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen3MoeForCausalLM, "
                   "Glm4MoeForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM and "
                   "Glm4MoeLiteForCausalLM",
                   a->where, cn_json_describe(first, shown, sizeof shown),
                   why_not(json_string_value(first)));
}

static cn_status read_heads(const cn_json_at *a, const architecture *arch, cn_model_config *c)
{
    c->n_kv_heads = c->n_heads;
    CN_TRY(cn_json_u32(a, "num_key_value_heads", CN_JSON_OPTIONAL, 1, MAX_HEADS, &c->n_kv_heads));
    if (c->n_heads % c->n_kv_heads != 0)
        return cn_fail(a->error,
                       "%s: num_attention_heads %u is not a multiple of num_key_value_heads %u",
                       a->where, c->n_heads, c->n_kv_heads);

    c->head_dim = arch->head_dim ? arch->head_dim : c->hidden / c->n_heads;
    CN_TRY(cn_json_u32(a, "head_dim", CN_JSON_OPTIONAL, 1, CN_MAX_WIDTH, &c->head_dim));
    if (c->head_dim % HEAD_DIM_STEP != 0 || c->head_dim > MAX_HEAD_DIM || c->head_dim == 0)
        return cn_fail(a->error,
                       "%s: head_dim %u is not supported; supported are multiples of %d to %d",
                       a->where, c->head_dim, HEAD_DIM_STEP, MAX_HEAD_DIM);
    return CN_OK;
}

/* Reads the sizes and checks their divisibility. */
static cn_status read_sizes(const cn_json_at *a, const architecture *arch, cn_model_config *c)
{
    CN_TRY(cn_json_u32(a, "hidden_size", CN_JSON_REQUIRED, 2, CN_MAX_WIDTH, &c->hidden));
    CN_TRY(
        cn_json_u32(a, "intermediate_size", CN_JSON_REQUIRED, 2, CN_MAX_WIDTH, &c->intermediate));
    CN_TRY(cn_json_u32(a, "num_hidden_layers", CN_JSON_REQUIRED, 1, CN_MAX_LAYERS, &c->n_layers));
    CN_TRY(cn_json_u32(a, "num_attention_heads", CN_JSON_REQUIRED, 1, MAX_HEADS, &c->n_heads));
    CN_TRY(cn_json_u32(a, "vocab_size", CN_JSON_REQUIRED, 2, MAX_VOCAB, &c->vocab));

    CN_TRY(arch->latent ? cn_read_latent(a, arch->latent, c) : read_heads(a, arch, c));
    c->max_position = arch->max_position;
    return cn_json_u32(a, "max_position_embeddings", CN_JSON_OPTIONAL, 1, MAX_POSITION,
                       &c->max_position);
}

static cn_status refuse_flag(const cn_json_at *a, const char *key)
{
    bool on = false;
    CN_TRY(cn_json_bool(a, key, CN_JSON_OPTIONAL, &on));
    return on ? cn_fail(a->error, "%s: %s true is not supported", a->where, key) : CN_OK;
}

/* A window that holds every position changes nothing. */
static cn_status refuse_window_of_all_layers(const cn_json_at *a, const cn_model_config *c)
{
    uint32_t window = 4096; /* when absent */
    if (json_is_null(json_object_get(a->object, "sliding_window"))) return CN_OK;
    CN_TRY(cn_json_u32(a, "sliding_window", CN_JSON_OPTIONAL, 1, UINT32_MAX, &window));
    if (window >= c->max_position) return CN_OK;
    return cn_fail(a->error,
                   "%s: sliding_window: a window of %u tokens is not supported; supported is null, "
                   "or a context of at most as many tokens (max_position_embeddings %u)",
                   a->where, window, c->max_position);
}

static cn_status refuse_sliding_window(const cn_json_at *a, const architecture *arch,
                                       const cn_model_config *c)
{
    if (arch->sliding == SLIDING_BY_VALUE) return refuse_window_of_all_layers(a, c);
    json_t *types = NULL, *type;
    size_t layer;
    CN_TRY(cn_json_arr(a, "layer_types", CN_JSON_OPTIONAL, &types));
    json_array_foreach(types, layer, type)
    {
        const char *name = json_string_value(type);
        char shown[96];
        if (!name || strcmp(name, "full_attention") != 0)
            return cn_fail(a->error,
                           "%s: layer_types[%zu]: %s is not supported; supported is "
                           "full_attention",
                           a->where, layer, cn_json_describe(type, shown, sizeof shown));
    }
    bool on = false;
    uint32_t window = UINT32_MAX, first = 28;
    CN_TRY(cn_json_bool(a, "use_sliding_window", CN_JSON_OPTIONAL, &on));
    if (!on || arch->sliding == SLIDING_NEVER || types) return CN_OK;
    if (!cn_json_find(a, "sliding_window")) window = 4096;
    CN_TRY(cn_json_u32(a, "sliding_window", CN_JSON_OPTIONAL, 0, UINT32_MAX, &window));
    CN_TRY(cn_json_u32(a, "max_window_layers", CN_JSON_OPTIONAL, 0, UINT32_MAX, &first));
    if (arch->sliding == SLIDING_ALL_BY_SWITCH) first = 0;
    if (first >= c->n_layers || window >= c->max_position) return CN_OK;
    return cn_fail(a->error,
                   "%s: use_sliding_window: a window of %u tokens from layer %u on is not "
                   "supported; only full attention is",
                   a->where, window, first);
}

/* Refuses features that change the result and that cinch does not have. */
static cn_status refuse_unsupported(const cn_json_at *a, const architecture *arch,
                                    const cn_model_config *c)
{
    char shown[96];
    const char *act = "silu";
    CN_TRY(cn_json_str(a, "hidden_act", CN_JSON_OPTIONAL, &act));
    if (strcmp(act, "silu") != 0)
        return cn_fail(a->error, "%s: hidden_act \"%s\" is not supported; supported is silu",
                       a->where, cn_json_printable(act, shown, sizeof shown));
    CN_TRY(refuse_flag(a, "mlp_bias"));
    return refuse_sliding_window(a, arch, c);
}

/* The rope dictionary: rope_scaling if it is not empty, else rope_parameters, else NULL. */
static cn_status find_rope(const cn_json_at *a, cn_json_at *rope, char *place)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    rope->object = NULL;
    for (size_t i = 0; i < 2; i++) {
        json_t *dict = NULL;
        CN_TRY(cn_json_obj(a, keys[i], CN_JSON_OPTIONAL, &dict));
        if (!dict || json_object_size(dict) == 0) continue;
        snprintf(place, PLACE_BYTES, "%s: %s", a->where, keys[i]);
        *rope = (cn_json_at){dict, place, a->error};
        const char *key;
        json_t *value;
        json_object_foreach(dict, key, value)
        {
            char shown[96];
            if (json_is_object(value))
                return cn_fail(a->error, "%s: %s: parameters per layer type are not supported",
                               place, cn_json_printable(key, shown, sizeof shown));
        }
        return CN_OK;
    }
    return CN_OK;
}

static cn_status read_llama3(const cn_json_at *r, cn_rope_scaling *s)
{
    CN_TRY(cn_json_f64(r, "factor", CN_JSON_REQUIRED, 1, 1e6, &s->factor));
    CN_TRY(cn_json_f64(r, "low_freq_factor", CN_JSON_REQUIRED, 1e-6, 1e6, &s->low_freq_factor));
    CN_TRY(cn_json_f64(r, "high_freq_factor", CN_JSON_REQUIRED, 1e-6, 1e6, &s->high_freq_factor));
    if (s->high_freq_factor <= s->low_freq_factor)
        return cn_fail(r->error, "%s: high_freq_factor %g must exceed low_freq_factor %g", r->where,
                       s->high_freq_factor, s->low_freq_factor);
    return CN_OK;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* YaRN (Peng et al. 2023) as transformers reads it: a beta of 0 means the default. */
static cn_status read_yarn(const cn_json_at *r, cn_model_config *c)
{
    cn_rope_scaling *s = &c->rope;
    s->factor = (double)c->max_position / s->original_max_position;
    CN_TRY(cn_json_f64(r, "factor", CN_JSON_OPTIONAL, 1, 1e6, &s->factor));
    CN_TRY(cn_json_f64(r, "beta_fast", CN_JSON_OPTIONAL, 0, 1e6, &s->beta_fast));
    CN_TRY(cn_json_f64(r, "beta_slow", CN_JSON_OPTIONAL, 0, 1e6, &s->beta_slow));
    if (s->beta_fast == 0) s->beta_fast = 32;
    if (s->beta_slow == 0) s->beta_slow = 1;
    s->truncate = true;
    CN_TRY(cn_json_bool(r, "truncate", CN_JSON_OPTIONAL, &s->truncate));

    double mscale = 0, all_dim = 0;
    CN_TRY(cn_json_f64(r, "mscale", CN_JSON_OPTIONAL, 0, 1e3, &mscale));
    CN_TRY(cn_json_f64(r, "mscale_all_dim", CN_JSON_OPTIONAL, 0, 1e3, &all_dim));
    s->attention_factor = yarn_mscale(s->factor, 1);
    if (mscale > 0 && all_dim > 0)
        s->attention_factor = yarn_mscale(s->factor, mscale) / yarn_mscale(s->factor, all_dim);
    CN_TRY(cn_json_f64(r, "attention_factor", CN_JSON_OPTIONAL, 0, 1e3, &s->attention_factor));
    if (c->latent.rank > 0 && all_dim > 0)
        s->logit_factor = pow(yarn_mscale(s->factor, all_dim), 2);

    double stretched = floor(s->original_max_position * s->factor);
    if (stretched > MAX_POSITION)
        return cn_fail(r->error, "%s: %u positions times factor %g exceed the limit of %d",
                       r->where, s->original_max_position, s->factor, MAX_POSITION);
    c->max_position = cn_max_u32(c->max_position, (uint32_t)stretched);
    return CN_OK;
}

/* RoPE of a part of the head. Other scalings of it are not in any file that is known. */
static cn_status read_rotary(const cn_json_at *a, const architecture *arch, double partial,
                             const char *type, cn_model_config *c)
{
    const double n_rotated = cn_rope_dim(c) * partial;
    c->rotary = (uint32_t)n_rotated;
    if (partial == 1.0) return CN_OK;
    if (arch->rotary == 0)
        return cn_fail(a->error, "%s: partial_rotary_factor %g is not supported; supported is 1",
                       a->where, partial);
    if (strcmp(type, "default") != 0)
        return cn_fail(a->error,
                       "%s: partial_rotary_factor %g with a scaling of RoPE is not supported; "
                       "supported is rope_type default",
                       a->where, partial);
    if (n_rotated != c->rotary || c->rotary < 2 || c->rotary % 2 != 0)
        return cn_fail(a->error,
                       "%s: partial_rotary_factor %g of head_dim %u is %g dimensions: expected an "
                       "even number from 2",
                       a->where, partial, c->head_dim, n_rotated);
    return CN_OK;
}

static cn_status read_rope(const cn_json_at *a, const architecture *arch, cn_model_config *c)
{
    cn_json_at r;
    char place[PLACE_BYTES];
    double partial = arch->rotary > 0 ? arch->rotary : 1.0;
    const char *type = "default";
    c->rope_theta = 10000.0;
    c->rope.attention_factor = 1.0;
    c->rope.logit_factor = 1.0;
    CN_TRY(find_rope(a, &r, place));
    CN_TRY(cn_json_f64(a, "rope_theta", CN_JSON_OPTIONAL, 1.001, 1e15, &c->rope_theta));
    CN_TRY(cn_json_f64(a, "partial_rotary_factor", CN_JSON_OPTIONAL, 0, 1, &partial));
    if (r.object) {
        CN_TRY(cn_json_f64(&r, "rope_theta", CN_JSON_OPTIONAL, 1.001, 1e15, &c->rope_theta));
        CN_TRY(cn_json_f64(&r, "partial_rotary_factor", CN_JSON_OPTIONAL, 0, 1, &partial));
        CN_TRY(cn_json_str(&r, "type", CN_JSON_OPTIONAL, &type));
        CN_TRY(cn_json_str(&r, "rope_type", CN_JSON_OPTIONAL, &type));
    }
    CN_TRY(read_rotary(a, arch, partial, type, c));
    if (strcmp(type, "default") == 0) return CN_OK;

    /* A length outside the dictionary has priority, as in the files of Phi-3. */
    const char *key = "original_max_position_embeddings";
    uint32_t *original = &c->rope.original_max_position;
    *original = c->max_position;
    CN_TRY(cn_json_u32(&r, key, CN_JSON_OPTIONAL, 1, MAX_POSITION, original));
    CN_TRY(cn_json_u32(a, key, CN_JSON_OPTIONAL, 1, MAX_POSITION, original));
    if (strcmp(type, "llama3") == 0) {
        c->rope.type = CN_ROPE_LLAMA3;
        return read_llama3(&r, &c->rope);
    }
    if (strcmp(type, "yarn") == 0) {
        c->rope.type = CN_ROPE_YARN;
        return read_yarn(&r, c);
    }
    char shown[96];
    return cn_fail(a->error,
                   "%s: rope_type \"%s\" is not supported; supported are default, llama3 and yarn",
                   r.where, cn_json_printable(type, shown, sizeof shown));
}

static cn_status read_eos(const cn_json_at *a, const architecture *arch, cn_model_config *c)
{
    bool none = json_is_null(json_object_get(a->object, "bos_token_id"));
    c->bos = none || arch->bos >= c->vocab ? -1 : arch->bos;
    CN_TRY(cn_json_i64(a, "bos_token_id", CN_JSON_OPTIONAL, -1, (int64_t)c->vocab - 1, &c->bos));
    CN_TRY(cn_json_token_ids(a, "eos_token_id", c->vocab, CN_MAX_EOS, c->eos, &c->n_eos));
    bool absent = !json_object_get(a->object, "eos_token_id");
    if (absent && arch->eos >= 0 && arch->eos < c->vocab) c->eos[c->n_eos++] = (uint32_t)arch->eos;
    return CN_OK;
}

static cn_status read_dtype(const cn_json_at *a, cn_model_config *c)
{
    const char *name = "bfloat16";
    CN_TRY(cn_json_str(a, "torch_dtype", CN_JSON_OPTIONAL, &name));
    CN_TRY(cn_json_str(a, "dtype", CN_JSON_OPTIONAL, &name));
    c->dtype = CN_BF16;
    if (strcmp(name, "float16") == 0) c->dtype = CN_F16;
    if (strcmp(name, "float32") == 0) c->dtype = CN_F32;
    return CN_OK;
}

static cn_status read_model_config(const cn_json_at *a, void *out)
{
    cn_model_config *c = out;
    const architecture *arch = NULL;
    double eps, range = 0.02;
    CN_TRY(find_architecture(a, &arch));
    eps = arch->rms_eps;
    snprintf(c->architecture, sizeof c->architecture, "%s", arch->name);
    CN_TRY(read_sizes(a, arch, c));
    CN_TRY(refuse_unsupported(a, arch, c));

    c->qk_norm = arch->qk_norm == QK_NORM_ALWAYS;
    if (arch->qk_norm == QK_NORM_BY_KEY)
        CN_TRY(cn_json_bool(a, "use_qk_norm", CN_JSON_OPTIONAL, &c->qk_norm));
    c->qkv_bias = arch->bias == BIAS_QKV;
    if (arch->bias == BIAS_BY_KEY || arch->bias == BIAS_QKV_BY_KEY)
        CN_TRY(cn_json_bool(a, "attention_bias", CN_JSON_OPTIONAL, &c->qkv_bias));
    c->o_bias = arch->bias == BIAS_BY_KEY && c->qkv_bias;
    if (arch->read_experts) CN_TRY(arch->read_experts(a, c));
    CN_TRY(cn_quant_read(a, c));
    CN_TRY(cn_json_bool(a, "tie_word_embeddings", CN_JSON_OPTIONAL, &c->tied));
    CN_TRY(cn_json_f64(a, "rms_norm_eps", CN_JSON_OPTIONAL, 0, 1, &eps));
    CN_TRY(cn_json_f64(a, "initializer_range", CN_JSON_OPTIONAL, 0, 1e3, &range));
    c->rms_eps = (float)eps;
    c->initializer_range = range > 0 ? (float)range : 0.02f;
    CN_TRY(read_dtype(a, c));
    CN_TRY(read_eos(a, arch, c));
    return read_rope(a, arch, c);
}

cn_status cn_model_config_parse(cn_model_config *out, const char *text, size_t n, const char *what)
{
    memset(out, 0, sizeof *out);
    return cn_json_read_object(text, n, what, CONFIG_MAX_BYTES, CONFIG_MAX_DEPTH, CN_ERR_MODEL,
                               read_model_config, out);
}

static cn_status read_architecture(const cn_json_at *a, void *out)
{
    return find_architecture(a, out);
}

cn_status cn_model_config_check_architecture(const char *model_dir)
{
    const architecture *found;
    return cn_json_read_optional_file(model_dir, "config.json", CONFIG_MAX_BYTES, CONFIG_MAX_DEPTH,
                                      read_architecture, &found);
}

cn_status cn_model_config_load(cn_model_config *out, const char *model_dir)
{
    cn_buf path = {0}, text = {0};
    CN_TRY(cn_checkpoint_dir_check(model_dir));
    cn_status status = cn_buf_addf(&path, "%s/config.json", model_dir);
    if (status == CN_OK) status = cn_json_read_file(&text, path.data, CONFIG_MAX_BYTES);
    if (status == CN_OK) status = cn_model_config_parse(out, text.data, text.len, path.data);
    if (status == CN_OK && !out->quant.fp8) status = cn_quant_read_file(out, model_dir);
    cn_buf_free(&text);
    cn_buf_free(&path);
    return status;
}

cn_layer_kind cn_model_config_layer(const cn_model_config *c, uint32_t layer)
{
    CN_ASSERT(layer < c->n_layers);
    const cn_attn_kind attn = c->latent.rank > 0 ? CN_ATTN_LATENT : CN_ATTN_HEADS;
    if (c->experts.layers[layer / 64] >> layer % 64 & 1)
        return (cn_layer_kind){attn, CN_MLP_EXPERTS, c->experts.shared};
    return (cn_layer_kind){attn, CN_MLP_DENSE, c->intermediate};
}

float cn_model_config_scale(const cn_model_config *c)
{
    const cn_latent *l = &c->latent;
    if (l->rank == 0) return 1.0f / sqrtf((float)c->head_dim);
    return (float)(c->rope.logit_factor / sqrt((double)l->nope + l->rope));
}

bool cn_model_config_is_fp8(const cn_model_config *c, cn_quant_part part, uint32_t layer)
{
    CN_ASSERT(layer < c->n_layers);
    return c->quant.fp8 && !(c->quant.plain[part][layer / 64] >> layer % 64 & 1);
}

static uint64_t expert_params(const cn_model_config *c)
{
    return 3 * (uint64_t)c->hidden * c->experts.intermediate;
}

uint64_t cn_model_config_n_fp8(const cn_model_config *c, uint32_t n_tokens)
{
    const double n_experts = cn_model_config_experts_read(c, n_tokens);
    const uint64_t experts = (uint64_t)llround(n_experts * (double)(expert_params(c) / 3));
    const uint64_t h = c->hidden, q = c->n_heads * (uint64_t)c->head_dim;
    const uint64_t kv = c->n_kv_heads * (uint64_t)c->head_dim;
    const cn_latent *l = &c->latent;
    const uint64_t raw_q = c->n_heads * (uint64_t)(l->nope + l->rope);
    const bool latent = l->rank > 0;
    uint64_t n = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        const cn_layer_kind kind = cn_model_config_layer(c, layer);
        const uint64_t mlp = h * kind.dense, routed = kind.mlp == CN_MLP_EXPERTS ? experts : 0;
        const uint64_t sizes[CN_N_QUANT_PARTS] = {
            [CN_QUANT_QKV] = latent ? 0 : (q + 2 * kv) * h,
            [CN_QUANT_O] = h * cn_attn_width(c),
            [CN_QUANT_LATENT_Q_A] = l->q_rank * h,
            [CN_QUANT_LATENT_Q] = raw_q * (l->q_rank > 0 ? l->q_rank : h),
            [CN_QUANT_LATENT_KV_A] = latent ? kv * h : 0,
            [CN_QUANT_GATE_UP] = 2 * mlp,
            [CN_QUANT_DOWN] = mlp,
            [CN_QUANT_EXPERT_GATE_UP] = 2 * routed,
            [CN_QUANT_EXPERT_DOWN] = routed,
        };
        for (cn_quant_part part = 0; part < CN_N_QUANT_PARTS; part++)
            if (cn_model_config_is_fp8(c, part, layer)) n += sizes[part];
    }
    return n;
}

uint32_t cn_model_config_widest_mlp(const cn_model_config *c)
{
    uint32_t most = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        most = cn_max_u32(most, cn_model_config_layer(c, layer).dense);
    return most;
}

static uint64_t mlp_params(const cn_model_config *c, uint32_t layer)
{
    const cn_layer_kind kind = cn_model_config_layer(c, layer);
    const uint64_t h = c->hidden, dense = 3 * h * kind.dense;
    const uint64_t n = c->experts.router.n_experts;
    if (kind.mlp == CN_MLP_DENSE) return dense;
    return dense + n * (h + expert_params(c)) + (c->experts.bias ? n : 0);
}

static uint64_t latent_params(const cn_model_config *c)
{
    const cn_latent *l = &c->latent;
    const uint64_t h = c->hidden, rank = l->rank, q = c->n_heads * (uint64_t)(l->nope + l->rope);
    const uint64_t queries = l->q_rank ? l->q_rank * (h + 1 + q) : q * h;
    return queries + (rank + l->rope) * h + rank +
           c->n_heads * (uint64_t)(l->nope + l->value) * rank + h * cn_attn_width(c);
}

static uint64_t head_params(const cn_model_config *c)
{
    const uint64_t h = c->hidden, d = c->head_dim;
    const uint64_t q = c->n_heads * d, kv = c->n_kv_heads * d;
    uint64_t n = (q + 2 * kv) * h + h * q;
    if (c->qk_norm) n += 2 * d;
    if (c->qkv_bias) n += q + 2 * kv;
    if (c->o_bias) n += h;
    return n;
}

uint64_t cn_model_config_n_params(const cn_model_config *c)
{
    const uint64_t h = c->hidden;
    const uint64_t attention = 2 * h + (c->latent.rank > 0 ? latent_params(c) : head_params(c));
    uint64_t mlps = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) mlps += mlp_params(c, layer);
    return c->n_layers * attention + mlps + h + (c->tied ? 1u : 2u) * c->vocab * h;
}

double cn_model_config_experts_read(const cn_model_config *c, uint32_t n_tokens)
{
    const double n = c->experts.router.n_experts;
    if (n == 0) return 0;
    return n * (1 - pow(1 - c->experts.router.n_used / n, n_tokens));
}

uint64_t cn_model_config_n_read(const cn_model_config *c, uint32_t n_tokens)
{
    const double unread = c->experts.router.n_experts - cn_model_config_experts_read(c, n_tokens);
    uint64_t n_layers = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        n_layers += cn_model_config_layer(c, layer).mlp == CN_MLP_EXPERTS;
    return cn_model_config_n_params(c) -
           (uint64_t)llround(unread * (double)(n_layers * expert_params(c)));
}

/* What is not split over ranks. */
static cn_status check_ranks(const cn_model_config *m, uint32_t n_ranks)
{
    const struct {
        bool has;
        const char *what;
    } parts[] = {{m->latent.rank > 0, "latent attention"},
                 {m->experts.router.n_experts > 0, "layers with experts"},
                 {m->quant.fp8, "FP8 weights"}};
    const struct {
        const char *name;
        uint32_t n;
    } sizes[] = {{"num_key_value_heads", m->n_kv_heads},
                 {"num_attention_heads", m->n_heads},
                 {"intermediate_size", m->intermediate}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].has)
            return cn_fail(CN_ERR_ARG,
                           "--tensor-parallel-size %u: %s has %s; this is not split over ranks "
                           "yet: leave the option out",
                           n_ranks, m->architecture, parts[i].what);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].n % n_ranks != 0)
            return cn_fail(CN_ERR_ARG,
                           "--tensor-parallel-size %u: %s of config.json is %u, which is not a "
                           "multiple of it: choose a smaller size",
                           n_ranks, sizes[i].name, sizes[i].n);
    return CN_OK;
}

cn_status cn_model_config_rank(cn_model_config *out, const cn_model_config *whole, uint32_t rank,
                               uint32_t n_ranks)
{
    CN_ASSERT(rank < n_ranks && whole->n_ranks == 0);
    *out = *whole;
    if (n_ranks == 1) return CN_OK;
    CN_TRY(check_ranks(whole, n_ranks));
    out->n_heads /= n_ranks;
    out->n_kv_heads /= n_ranks;
    out->intermediate /= n_ranks;
    out->rank = rank;
    out->n_ranks = n_ranks;
    return CN_OK;
}

uint64_t cn_model_config_hash(const cn_model_config *c)
{
    const cn_rope_scaling *r = &c->rope;
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "%s %u %u %u %u %u %u %u %u %.9g %.17g %d%d%d%d "
                     "%d %.17g %u %.17g %.17g %.17g %.17g %.17g %d",
                     c->architecture, c->hidden, c->intermediate, c->n_layers, c->n_heads,
                     c->n_kv_heads, c->head_dim, c->vocab, c->max_position, (double)c->rms_eps,
                     c->rope_theta, c->tied, c->qk_norm, c->qkv_bias, c->o_bias, (int)r->type,
                     r->factor, r->original_max_position, r->low_freq_factor, r->high_freq_factor,
                     r->beta_fast, r->beta_slow, r->attention_factor, r->truncate);
    CN_ASSERT(n > 0 && (size_t)n < sizeof text);
    uint64_t hash = cn_hash64(0, text, (size_t)n);
    if (c->experts.router.n_experts > 0 || c->rotary != c->head_dim) {
        const cn_experts *x = &c->experts;
        n = snprintf(text, sizeof text, "%u %u %u %d %d %.9g %d %u %u", c->rotary,
                     x->router.n_experts, x->router.n_used, (int)x->router.score,
                     x->router.normalized, (double)x->router.scale, x->bias, x->intermediate,
                     x->shared);
        CN_ASSERT(n > 0 && (size_t)n < sizeof text);
        hash = cn_hash64(cn_hash64(hash, text, (size_t)n), x->layers, sizeof x->layers);
        if (x->router.n_groups > 0) {
            const uint32_t groups[] = {x->router.n_groups, x->router.n_used_groups,
                                       x->router.group_best};
            hash = cn_hash64(hash, groups, sizeof groups);
        }
    }
    if (c->latent.rank > 0) {
        const cn_latent *l = &c->latent;
        n = snprintf(text, sizeof text, "latent %u %u %u %u %u %d %.17g", l->q_rank, l->rank,
                     l->nope, l->rope, l->value, l->interleaved, r->logit_factor);
        CN_ASSERT(n > 0 && (size_t)n < sizeof text);
        hash = cn_hash64(hash, text, (size_t)n);
    }
    if (c->quant.fp8) {
        const cn_quant *q = &c->quant;
        n = snprintf(text, sizeof text, "fp8 %d%d %d %d", q->at_load, q->is_static, (int)q->scale,
                     (int)q->x);
        CN_ASSERT(n > 0 && (size_t)n < sizeof text);
        hash = cn_hash64(cn_hash64(hash, text, (size_t)n), q->plain, sizeof q->plain);
    }
    return cn_hash64(hash, c->eos, c->n_eos * sizeof *c->eos);
}
