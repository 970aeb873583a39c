/* checkpoint.c - maps tensors of a file to fused matrices, checks them, and converts elements to a
 * weight dtype. See checkpoint.h.
 *
 * Extra tensors. A tensor outside the model's parts (another layer number, a vision tower) is
 * ignored, as in other loaders. A tensor that belongs to a part computed here (a bias, a norm, a
 * quantization scale) would change the result, so it is refused. */
#include "engine/checkpoint/checkpoint.h"

#include <math.h>
#include <stdlib.h>

#include "engine/checkpoint/dummy_weight.h"
#include "engine/checkpoint/fp8_weights.h"
#include "engine/checkpoint/safetensors.h"

struct cn_checkpoint {
    cn_model_config config;
    cn_safetensors *tensors; /* NULL for dummy weights */
    cn_weight_part *parts;
    size_t n_parts;
    uint64_t seed;
    float dummy_scale, dummy_router_scale;
};

/* HEADS, LATENT: the kind of attention; then with a query matrix of two factors, and of one. DENSE:
 * a layer without experts. The last four: a layer with experts; each expert has a tensor of
 * its own (SEPARATE), or all are in one (FUSED). */
typedef enum need {
    ALWAYS, HEADS, LATENT, LATENT_FACTORS, LATENT_WHOLE, QK_NORM, QKV_BIAS, O_BIAS, UNTIED, DENSE,
    SHARED, ROUTED, ROUTER_BIAS, SEPARATE, FUSED
} need;
typedef enum dim {
    ONE, HIDDEN, QUERY, KV, HEAD, ATTN_OUT, Q_RANK, LATENT_QUERY, RANK, LATENT_ROW, LATENT_KV,
    INTER, VOCAB, EXPERTS, EXPERT_INTER, EXPERT_GATE_UP, SHARED_INTER
} dim;

/* A tensor's name (after "model.layers.N." in a layer), matrix and shape. The parts of one matrix
 * are adjacent rows of the table, in the matrix's order. */
typedef struct part_spec {
    const char *name;
    cn_weight_id id;
    dim rows, cols;
    need need;
} part_spec;

static const part_spec head_specs[] = {
    {"model.embed_tokens.weight", CN_W_EMBED, VOCAB, HIDDEN, ALWAYS},
    {"model.norm.weight", CN_W_FINAL_NORM, ONE, HIDDEN, ALWAYS},
    {"lm_head.weight", CN_W_LM_HEAD, VOCAB, HIDDEN, UNTIED},
};

static const part_spec layer_specs[] = {
    {"input_layernorm.weight", CN_W_ATTN_NORM, ONE, HIDDEN, ALWAYS},
    {"self_attn.q_proj.weight", CN_W_QKV, QUERY, HIDDEN, HEADS},
    {"self_attn.k_proj.weight", CN_W_QKV, KV, HIDDEN, HEADS},
    {"self_attn.v_proj.weight", CN_W_QKV, KV, HIDDEN, HEADS},
    {"self_attn.q_proj.bias", CN_W_QKV_BIAS, ONE, QUERY, QKV_BIAS},
    {"self_attn.k_proj.bias", CN_W_QKV_BIAS, ONE, KV, QKV_BIAS},
    {"self_attn.v_proj.bias", CN_W_QKV_BIAS, ONE, KV, QKV_BIAS},
    {"self_attn.q_norm.weight", CN_W_Q_NORM, ONE, HEAD, QK_NORM},
    {"self_attn.k_norm.weight", CN_W_K_NORM, ONE, HEAD, QK_NORM},
    {"self_attn.q_a_proj.weight", CN_W_Q_A, Q_RANK, HIDDEN, LATENT_FACTORS},
    {"self_attn.q_a_layernorm.weight", CN_W_Q_A_NORM, ONE, Q_RANK, LATENT_FACTORS},
    {"self_attn.q_b_proj.weight", CN_W_Q, LATENT_QUERY, Q_RANK, LATENT_FACTORS},
    {"self_attn.q_proj.weight", CN_W_Q, LATENT_QUERY, HIDDEN, LATENT_WHOLE},
    {"self_attn.kv_a_proj_with_mqa.weight", CN_W_KV_A, LATENT_ROW, HIDDEN, LATENT},
    {"self_attn.kv_a_layernorm.weight", CN_W_KV_A_NORM, ONE, RANK, LATENT},
    {"self_attn.kv_b_proj.weight", CN_W_KV_B, LATENT_KV, RANK, LATENT},
    {"self_attn.o_proj.weight", CN_W_O, HIDDEN, ATTN_OUT, ALWAYS},
    {"self_attn.o_proj.bias", CN_W_O_BIAS, ONE, HIDDEN, O_BIAS},
    {"post_attention_layernorm.weight", CN_W_MLP_NORM, ONE, HIDDEN, ALWAYS},
    {"mlp.gate_proj.weight", CN_W_GATE_UP, INTER, HIDDEN, DENSE},
    {"mlp.up_proj.weight", CN_W_GATE_UP, INTER, HIDDEN, DENSE},
    {"mlp.shared_experts.gate_proj.weight", CN_W_GATE_UP, SHARED_INTER, HIDDEN, SHARED},
    {"mlp.shared_experts.up_proj.weight", CN_W_GATE_UP, SHARED_INTER, HIDDEN, SHARED},
    {"mlp.down_proj.weight", CN_W_DOWN, HIDDEN, INTER, DENSE},
    {"mlp.shared_experts.down_proj.weight", CN_W_DOWN, HIDDEN, SHARED_INTER, SHARED},
    {"mlp.gate.weight", CN_W_ROUTER, EXPERTS, HIDDEN, ROUTED},
    {"mlp.gate.e_score_correction_bias", CN_W_ROUTER_BIAS, ONE, EXPERTS, ROUTER_BIAS},
    {"mlp.experts.gate_up_proj", CN_W_EXPERT_GATE_UP, EXPERT_GATE_UP, HIDDEN, FUSED},
    {"mlp.experts.down_proj", CN_W_EXPERT_DOWN, HIDDEN, EXPERT_INTER, FUSED},
};

/* Once for each expert, after "model.layers.N.mlp.experts.E.". */
static const part_spec expert_specs[] = {
    {"gate_proj.weight", CN_W_EXPERT_GATE_UP, EXPERT_INTER, HIDDEN, SEPARATE},
    {"up_proj.weight", CN_W_EXPERT_GATE_UP, EXPERT_INTER, HIDDEN, SEPARATE},
    {"down_proj.weight", CN_W_EXPERT_DOWN, HIDDEN, EXPERT_INTER, SEPARATE},
};

enum {
    N_HEAD_SPECS = sizeof head_specs / sizeof *head_specs,
    N_LAYER_SPECS = sizeof layer_specs / sizeof *layer_specs,
    N_EXPERT_SPECS = sizeof expert_specs / sizeof *expert_specs,
};

/* Whether the tensor of all gate and up matrices of a layer is in the files. */
static bool is_fused(const cn_checkpoint *ck, uint32_t layer)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", layer);
    return ck->tensors && cn_safetensors_find(ck->tensors, name);
}

static uint64_t size_of(const cn_model_config *c, dim d)
{
    const cn_latent *l = &c->latent;
    switch (d) {
    case ONE:
        return 1;
    case HIDDEN:
        return c->hidden;
    case QUERY:
        return (uint64_t)c->n_heads * c->head_dim;
    case KV:
        return (uint64_t)c->n_kv_heads * c->head_dim;
    case HEAD:
        return c->head_dim;
    case ATTN_OUT:
        return cn_attn_width(c);
    case Q_RANK:
        return l->q_rank;
    case LATENT_QUERY:
        return (uint64_t)c->n_heads * (l->nope + l->rope);
    case RANK:
        return l->rank;
    case LATENT_ROW:
        return (uint64_t)l->rank + l->rope;
    case LATENT_KV:
        return (uint64_t)c->n_heads * (l->nope + l->value);
    case INTER:
        return c->intermediate;
    case VOCAB:
        return c->vocab;
    case EXPERTS:
        return c->experts.router.n_experts;
    case EXPERT_INTER:
        return c->experts.intermediate;
    case EXPERT_GATE_UP:
        return 2 * (uint64_t)c->experts.intermediate;
    case SHARED_INTER:
        return c->experts.shared;
    }
    return 0;
}

/* `layer` is unused outside the layers. */
static bool needed(const cn_checkpoint *ck, need n, uint32_t layer)
{
    const cn_model_config *c = &ck->config;
    const cn_layer_kind kind = cn_model_config_layer(c, layer);
    const bool routed = kind.mlp == CN_MLP_EXPERTS, latent = kind.attn == CN_ATTN_LATENT;
    switch (n) {
    case ALWAYS:
        return true;
    case HEADS:
        return !latent;
    case LATENT:
        return latent;
    case LATENT_FACTORS:
        return latent && c->latent.q_rank > 0;
    case LATENT_WHOLE:
        return latent && c->latent.q_rank == 0;
    case QK_NORM:
        return c->qk_norm;
    case QKV_BIAS:
        return c->qkv_bias;
    case O_BIAS:
        return c->o_bias;
    case UNTIED:
        return !c->tied;
    case DENSE:
        return !routed;
    case SHARED:
        return routed && c->experts.shared > 0;
    case ROUTED:
        return routed;
    case ROUTER_BIAS:
        return routed && c->experts.bias;
    case SEPARATE:
        return routed && !is_fused(ck, layer);
    case FUSED:
        return routed && is_fused(ck, layer);
    }
    return false;
}

/* ---- the parts ---- */

/* Elements of one expert in a matrix of all experts; 0 for other matrices. */
static uint64_t expert_elems(const cn_model_config *c, cn_weight_id id)
{
    const uint64_t one = (uint64_t)c->hidden * c->experts.intermediate;
    return id == CN_W_EXPERT_GATE_UP ? 2 * one : id == CN_W_EXPERT_DOWN ? one : 0;
}

/* Whether RoPE rotates the rows of a matrix. */
static bool is_rotated(const part_spec *s)
{
    const char *name = s->name;
    return strstr(name, "q_proj") || strstr(name, "k_proj") || s->id == CN_W_Q_NORM ||
           s->id == CN_W_K_NORM;
}

/* Says in which order the file has the rows of a head that RoPE rotates. */
static void set_order(cn_weight_part *p, const part_spec *s, const cn_model_config *c)
{
    const cn_latent *l = &c->latent;
    if (l->rank > 0) {
        if (!l->interleaved || (s->id != CN_W_Q && s->id != CN_W_KV_A)) return;
        p->rotary = l->rope;
        p->head_dim = s->id == CN_W_Q ? l->nope + l->rope : l->rank + l->rope;
        p->last = true;
    } else if (c->rotary != c->head_dim && is_rotated(s)) {
        p->rotary = c->rotary;
        p->head_dim = c->head_dim;
    }
}

/* expert: whose part of a matrix of all experts it is, else 0. */
static void add_parts(cn_checkpoint *ck, const part_spec *specs, size_t n, const char *prefix,
                      uint32_t layer, uint32_t expert)
{
    const cn_model_config *c = &ck->config;
    uint64_t next = 0; /* first free element of the current matrix */
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || specs[i].id != specs[i - 1].id)
            next = expert * expert_elems(c, specs[i].id);
        if (!needed(ck, specs[i].need, layer)) continue;
        cn_weight_part *p = &ck->parts[ck->n_parts++];
        int length = snprintf(p->name, sizeof p->name, "%s%s", prefix, specs[i].name);
        CN_ASSERT(length > 0 && (size_t)length < sizeof p->name);
        p->id = specs[i].id;
        p->layer = layer;
        p->first_elem = next;
        p->tensor.rows = size_of(c, specs[i].rows);
        p->tensor.cols = size_of(c, specs[i].cols);
        if (specs[i].need == FUSED) {
            p->stack = c->experts.router.n_experts;
            p->tensor.rows *= p->stack;
        }
        set_order(p, &specs[i], c);
        next += p->tensor.rows * p->tensor.cols;
    }
}

static cn_status list_parts(cn_checkpoint *ck)
{
    const uint32_t n_experts = ck->config.experts.router.n_experts;
    size_t most = N_HEAD_SPECS + (N_LAYER_SPECS + (size_t)N_EXPERT_SPECS * n_experts) *
                                     ck->config.n_layers;
    ck->parts = cn_calloc(most, sizeof *ck->parts);
    if (!ck->parts) return cn_fail(CN_ERR_MEMORY, "out of memory for a table of %zu tensors", most);
    add_parts(ck, head_specs, N_HEAD_SPECS, "", 0, 0);
    for (uint32_t layer = 0; layer < ck->config.n_layers; layer++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
        add_parts(ck, layer_specs, N_LAYER_SPECS, prefix, layer, 0);
        for (uint32_t e = 0; e < n_experts; e++) {
            snprintf(prefix, sizeof prefix, "model.layers.%u.mlp.experts.%u.", layer, e);
            add_parts(ck, expert_specs, N_EXPERT_SPECS, prefix, layer, e);
        }
    }
    return CN_OK;
}

/* ---- checks ---- */

static bool weight_dtype(cn_st_dtype from, cn_dtype *to)
{
    switch (from) {
    case CN_ST_F32:
        *to = CN_F32;
        return true;
    case CN_ST_BF16:
        *to = CN_BF16;
        return true;
    case CN_ST_F16:
        *to = CN_F16;
        return true;
    default:
        return false;
    }
}

/* Why a tensor in F8_E4M3 is refused. */
static const char *fp8_fault(const cn_weight_part *p)
{
    if (p->id == CN_W_EMBED || p->id == CN_W_LM_HEAD)
        return ": FP8 of the embedding and of lm_head is not supported: use a checkpoint that "
               "leaves them plain, or the bf16 checkpoint";
    return ": config.json does not say that this tensor is FP8";
}

/* The dtype of a tensor that has the right shape. */
static cn_status bind_dtype(const cn_checkpoint *ck, cn_weight_part *p, const cn_st_tensor *t)
{
    if (cn_part_is_fp8_in_file(&ck->config, p))
        return cn_part_bind_fp8(p, t, ck->tensors, &ck->config.quant);
    if (!weight_dtype(t->dtype, &p->tensor.dtype))
        return cn_fail(CN_ERR_MODEL, "%s: tensor %s: expected dtype F32, BF16 or F16, got %s%s",
                       t->file, t->name, cn_st_dtype_name(t->dtype),
                       t->dtype == CN_ST_F8_E4M3 ? fp8_fault(p) : "");
    return CN_OK;
}

static cn_status bind(const cn_checkpoint *ck, cn_weight_part *p, const cn_st_tensor *t,
                      const char *dir)
{
    uint64_t rows = p->tensor.rows, cols = p->tensor.cols;
    char want[64], found[128];
    if (p->stack)
        snprintf(want, sizeof want, "[%u, %llu, %llu]", p->stack,
                 (unsigned long long)rows / p->stack, (unsigned long long)cols);
    else if (rows == 1)
        snprintf(want, sizeof want, "[%llu]", (unsigned long long)cols);
    else
        snprintf(want, sizeof want, "[%llu, %llu]", (unsigned long long)rows,
                 (unsigned long long)cols);
    if (!t) return cn_fail(CN_ERR_MODEL, "%s: tensor %s %s is missing", dir, p->name, want);
    bool fits = rows == 1 ? t->n_dims == 1 && t->shape[0] == cols
                          : t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols;
    if (p->stack)
        fits = t->n_dims == 3 && t->shape[0] == p->stack && t->shape[1] == rows / p->stack &&
               t->shape[2] == cols;
    if (!fits)
        return cn_fail(CN_ERR_MODEL, "%s: tensor %s: expected shape %s from config.json, got %s",
                       t->file, t->name, want, cn_st_shape_text(t, found, sizeof found));
    CN_TRY(bind_dtype(ck, p, t));
    p->tensor.data = t->data;
    return CN_OK;
}

/* The files of a tied model may contain lm_head, but it must equal the embedding. */
static cn_status check_tied(const cn_checkpoint *ck, const cn_st_tensor *head)
{
    const cn_st_tensor *embed = cn_safetensors_find(ck->tensors, head_specs[0].name);
    if (head->dtype == embed->dtype && head->n_bytes == embed->n_bytes &&
        memcmp(head->data, embed->data, (size_t)head->n_bytes) == 0)
        return CN_OK;
    return cn_fail(CN_ERR_MODEL,
                   "%s: tensor %s differs from %s, but config.json ties them: set "
                   "tie_word_embeddings to false",
                   head->file, head->name, embed->name);
}

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool is_layer_beyond(const cn_model_config *c, const char *name)
{
    const char *layers = "model.layers.";
    char *end;
    if (!starts_with(name, layers)) return false;
    const unsigned long layer = strtoul(name + strlen(layers), &end, 10);
    return *end == '.' && layer >= c->n_layers;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n > n_end && strcmp(text + n - n_end, end) == 0;
}

/* Whether a tensor is a scale of K or V that was measured for a cache in eight bits. */
static bool is_kv_scale(const char *name)
{
    return ends_with(name, ".k_scale") || ends_with(name, ".v_scale");
}

/* Whether a tensor belongs to a part of the model that is computed here. */
static bool within_model(const cn_model_config *c, const char *name)
{
    if (ends_with(name, ".rotary_emb.inv_freq")) return false;
    if (starts_with(name, "model.layers.")) return !is_layer_beyond(c, name);
    return starts_with(name, "model.embed_tokens.") || starts_with(name, "model.norm.") ||
           starts_with(name, "lm_head.");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts the names of the tensors that parts use. Returns how many there are, at most 3 per part. */
static size_t list_names(const cn_checkpoint *ck, const char **names)
{
    size_t n = 0;
    for (size_t i = 0; i < ck->n_parts; i++) {
        const cn_weight_part *p = &ck->parts[i];
        names[n++] = p->name;
        if (p->scale) names[n++] = p->scale->name;
        if (p->x_scale) names[n++] = p->x_scale->name;
    }
    qsort(names, n, sizeof *names, by_name);
    return n;
}

/* Refuses tensors that no part uses but that would change the result. */
static cn_status check_extras(const cn_checkpoint *ck)
{
    const char **names = cn_calloc(3 * ck->n_parts, sizeof *names);
    if (!names) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu names", 3 * ck->n_parts);
    const size_t n_names = list_names(ck, names);
    cn_status status = CN_OK;
    size_t ignored = 0, beyond = 0, kv_scales = 0;
    const char *first_beyond = "";
    for (size_t i = 0; i < cn_safetensors_count(ck->tensors) && status == CN_OK; i++) {
        const cn_st_tensor *t = cn_safetensors_at(ck->tensors, i);
        if (bsearch(&t->name, names, n_names, sizeof *names, by_name)) continue;
        if (is_kv_scale(t->name))
            kv_scales++;
        else if (strcmp(t->name, "lm_head.weight") == 0)
            status = check_tied(ck, t);
        else if (within_model(&ck->config, t->name))
            status = cn_fail(CN_ERR_MODEL,
                             "%s: tensor %s is not supported: %s with this config.json has no such "
                             "tensor",
                             t->file, t->name, ck->config.architecture);
        else if (is_layer_beyond(&ck->config, t->name))
            first_beyond = beyond++ ? first_beyond : t->name;
        else
            ignored++;
    }
    cn_free(names);
    if (status == CN_OK && beyond)
        cn_log(CN_LOG_WARN,
               "ignored %zu tensors of layers beyond the %u of config.json, such as %s (layers "
               "that predict several tokens are not used)",
               beyond, ck->config.n_layers, first_beyond);
    if (status == CN_OK && kv_scales)
        cn_log(CN_LOG_INFO, "ignored %zu scales of K and V (k_scale, v_scale) of the checkpoint: "
                            "with --kv-cache-dtype fp8 each row has its own scale",
               kv_scales);
    if (status == CN_OK && ignored) cn_log(CN_LOG_DEBUG, "ignored %zu tensors", ignored);
    return status;
}

static cn_status bind_all(cn_checkpoint *ck, const char *dir)
{
    for (size_t i = 0; i < ck->n_parts; i++)
        CN_TRY(bind(ck, &ck->parts[i], cn_safetensors_find(ck->tensors, ck->parts[i].name), dir));
    return check_extras(ck);
}

cn_status cn_checkpoint_open(cn_checkpoint **out, const char *dir, const cn_model_config *c,
                             cn_opt_load_format format, uint64_t seed)
{
    *out = NULL;
    cn_checkpoint *ck = cn_calloc(1, sizeof *ck);
    if (!ck) return cn_fail(CN_ERR_MEMORY, "out of memory for a checkpoint");
    ck->config = *c;
    ck->seed = seed;
    ck->dummy_scale = (float)((double)c->initializer_range / sqrt(4294967295.0 / 3));
    ck->dummy_router_scale = (float)(1 / sqrt((double)c->hidden * 4294967295.0 / 3));
    cn_status status = CN_OK;
    if (format != CN_OPT_LOAD_DUMMY) status = cn_safetensors_open(&ck->tensors, dir);
    if (status == CN_OK) status = list_parts(ck);
    if (status == CN_OK && format != CN_OPT_LOAD_DUMMY) status = bind_all(ck, dir);
    if (status != CN_OK) {
        cn_checkpoint_close(ck);
        return status;
    }
    *out = ck;
    return CN_OK;
}

void cn_checkpoint_close(cn_checkpoint *ck)
{
    if (!ck) return;
    cn_safetensors_close(ck->tensors);
    cn_free(ck->parts);
    cn_free(ck);
}

const cn_weight_part *cn_checkpoint_parts(const cn_checkpoint *ck, size_t *n)
{
    *n = ck->n_parts;
    return ck->parts;
}

const cn_model_config *cn_checkpoint_config(const cn_checkpoint *ck) { return &ck->config; }

/* ---- elements ---- */

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float cn_f32_of_f16(uint16_t half)
{
    /* The exponent biases differ by 112. The product also converts subnormals exactly. */
    uint32_t bits = to_bits(from_bits((uint32_t)(half & 0x7fff) << 13) * 0x1p112f);
    if ((half & 0x7c00) == 0x7c00) bits |= UINT32_C(0x7f800000); /* infinity and NaN */
    return from_bits(bits | (uint32_t)(half & 0x8000) << 16);
}

static uint16_t bf16_of_f32(float x)
{
    uint32_t bits = to_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static bool is_norm(cn_weight_id id)
{
    return id == CN_W_FINAL_NORM || id == CN_W_ATTN_NORM || id == CN_W_Q_NORM ||
           id == CN_W_K_NORM || id == CN_W_MLP_NORM || id == CN_W_Q_A_NORM ||
           id == CN_W_KV_A_NORM;
}

bool cn_checkpoint_is_random(const cn_checkpoint *ck, const cn_weight_part *p, uint64_t *key,
                             float *scale)
{
    if (p->tensor.data || is_norm(p->id)) return false;
    *key = cn_hash64(cn_hash64(0, &ck->seed, sizeof ck->seed), p->name, strlen(p->name));
    *scale = p->id == CN_W_ROUTER ? ck->dummy_router_scale : ck->dummy_scale;
    return true;
}

/* Reads n elements as f32, in the order of the file. memcpy, because data may have any
 * alignment. */
static void read_in_order(const cn_checkpoint *ck, const cn_weight_part *p, uint64_t first,
                          uint64_t n, float *out)
{
    const unsigned char *data = p->tensor.data;
    uint64_t key;
    float scale;
    uint16_t half;
    if (cn_checkpoint_is_random(ck, p, &key, &scale)) {
        for (uint64_t k = 0; k < n; k++)
            out[k] = from_bits((uint32_t)cn_dummy_weight(key, scale, first + k) << 16);
    } else if (!data) {
        for (uint64_t k = 0; k < n; k++) out[k] = 1;
    } else if (p->tensor.dtype == CN_F32) {
        memcpy(out, data + first * 4, (size_t)n * 4);
    } else if (p->tensor.dtype == CN_E4M3) {
        cn_part_dequantise(p, &ck->config.quant, first, n, out);
    } else {
        data += first * 2;
        bool is_bf16 = p->tensor.dtype == CN_BF16;
        for (uint64_t k = 0; k < n; k++) {
            memcpy(&half, data + k * 2, 2);
            out[k] = is_bf16 ? from_bits((uint32_t)half << 16) : cn_f32_of_f16(half);
        }
    }
}

/* The row of a head in the file that is row i of the head here. With r = rotary / 2, pairs
 * (i, r + i) become (i, head_dim / 2 + i); the rows without a position fill the other places. With
 * `last`, (first + 2i, first + 2i + 1) become (first + i, first + r + i). */
static uint32_t head_row_in_file(const cn_weight_part *p, uint32_t i)
{
    const uint32_t half = p->head_dim / 2, r = p->rotary / 2, first = p->head_dim - p->rotary;
    if (p->last && i < first) return i;
    if (p->last) return first + (i - first < r ? 2 * (i - first) : 2 * (i - first - r) + 1);
    if (i < r) return i;
    if (i < half) return i + r;
    return i < half + r ? i - half + r : i;
}

uint64_t cn_part_row_in_file(const cn_weight_part *p, uint64_t row)
{
    if (!p->rotary) return row;
    const uint32_t i = (uint32_t)(row % p->head_dim);
    return row - i + head_row_in_file(p, i);
}

static void read_f32(const cn_checkpoint *ck, const cn_weight_part *p, uint64_t first, uint64_t n,
                     float *out)
{
    if (!p->rotary || !p->tensor.data) {
        read_in_order(ck, p, first, n, out);
        return;
    }
    const uint64_t cols = p->tensor.rows == 1 ? 1 : p->tensor.cols;
    for (uint64_t done = 0; done < n;) {
        const uint64_t row = (first + done) / cols, col = (first + done) % cols;
        const uint64_t count = cols - col < n - done ? cols - col : n - done;
        read_in_order(ck, p, cn_part_row_in_file(p, row) * cols + col, count, out + done);
        done += count;
    }
}

/* Whether one of n elements has all bits of the exponent, which are in the two bytes at `data` and
 * every `stride` on. memcpy, because data may have any alignment. Inline, so that the stride is
 * a constant and the loop is vectorised. */
static inline __attribute__((always_inline)) bool has_exponent(const unsigned char *data,
                                                               uint64_t n, size_t stride,
                                                               uint16_t exponent)
{
    bool found = false;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, data + i * stride, sizeof half);
        found |= (half & exponent) == exponent;
    }
    return found;
}

cn_status cn_checkpoint_check_finite(const cn_weight_part *p)
{
    const cn_host_tensor *t = &p->tensor;
    const uint64_t n = t->rows * t->cols;
    if (!t->data) return CN_OK;
    const unsigned char *data = t->data;
    const bool found = t->dtype == CN_F32    ? has_exponent(data + 2, n, 4, 0x7f80)
                       : t->dtype == CN_BF16 ? has_exponent(data, n, 2, 0x7f80)
                                             : has_exponent(data, n, 2, 0x7c00);
    if (!found) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "the tensor has an infinite value or a NaN: the file is damaged; "
                                 "copy or download it again");
}

void cn_checkpoint_read(const cn_checkpoint *ck, const cn_weight_part *p, uint64_t first,
                        uint64_t n, cn_dtype dtype, void *out)
{
    enum { CHUNK = 1024 };
    CN_ASSERT(dtype == CN_F32 || dtype == CN_BF16);
    CN_ASSERT(first <= p->tensor.rows * p->tensor.cols);
    CN_ASSERT(n <= p->tensor.rows * p->tensor.cols - first);
    if (dtype == CN_F32) {
        read_f32(ck, p, first, n, out);
        return;
    }
    uint16_t *to = out;
    float chunk[CHUNK];
    for (uint64_t done = 0; done < n; done += CHUNK) {
        uint64_t count = n - done < CHUNK ? n - done : CHUNK;
        read_f32(ck, p, first + done, count, chunk);
        for (uint64_t k = 0; k < count; k++) to[done + k] = bf16_of_f32(chunk[k]);
    }
}
