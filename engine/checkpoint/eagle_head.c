/* eagle_head.c - see eagle_head.h. */
#include "engine/checkpoint/eagle_head.h"

#include "engine/base/json.h"
#include "engine/checkpoint/retrieval_file.h"

enum { CONFIG_BYTES = 1 << 16, CONFIG_DEPTH = 8 };

/* In the order of CN_HEAD_*. */
static const char *const midlayer[] = {
    "midlayer.input_layernorm.weight", "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.k_proj.weight", "fc.weight", "midlayer.hidden_norm.weight"};
static const char *const first_layer[] = {
    "layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight", "fc.weight", "layers.0.hidden_norm.weight"};

const char *const *cn_eagle_names(const cn_safetensors *s)
{
    if (cn_safetensors_find(s, midlayer[1])) return midlayer;
    if (cn_safetensors_find(s, first_layer[1])) return first_layer;
    return NULL;
}

/* ---- tensors ---- */

/* Returns whether queries and keys are as without the tensor. */
static bool is_rest(const char *name)
{
    static const char *const whole[] = {"norm.weight", "lm_head.weight", "embed_tokens.weight",
                                        "d2t", "t2d"};
    static const char *const in_layer[] = {
        "self_attn.v_proj.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight",
        "mlp.up_proj.weight", "mlp.down_proj.weight", "post_attention_layernorm.weight"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(name, whole[i]) == 0) return true;
    if (strncmp(name, "midlayer.", 9) != 0 && strncmp(name, "layers.0.", 9) != 0) return false;
    for (size_t i = 0; i < sizeof in_layer / sizeof *in_layer; i++)
        if (strcmp(name + 9, in_layer[i]) == 0) return true;
    return false;
}

static cn_status check_eagle_names(const cn_safetensors *s, const char *path)
{
    const char *const *parts = cn_eagle_names(s);
    for (size_t i = 0; i < cn_safetensors_count(s); i++) {
        const char *name = cn_safetensors_at(s, i)->name;
        bool known = is_rest(name);
        for (size_t k = 0; k < sizeof midlayer / sizeof *midlayer; k++)
            known |= strcmp(name, parts[k]) == 0;
        if (!known)
            return cn_fail(CN_ERR_MODEL,
                           "%s: %s: expected only the tensors of an EAGLE-3 head of one layer "
                           "without biases",
                           path, name);
    }
    return CN_OK;
}

/* The rows of a tensor are those of a vocabulary. */
static cn_status check_rows(const cn_safetensors *s, const char *path, const char *name,
                            uint64_t rows, const char *of)
{
    const cn_st_tensor *t = cn_safetensors_find(s, name);
    if (!t || (t->n_dims > 0 && t->shape[0] == rows)) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: %s: expected %llu rows, %s, got %llu", path, name,
                   (unsigned long long)rows, of,
                   (unsigned long long)(t->n_dims > 0 ? t->shape[0] : 0));
}

/* d2t[i] is the id of draft token i, less i. */
static cn_status check_draft_tokens(const cn_st_tensor *d2t, const char *path, uint32_t vocab)
{
    if (d2t->n_dims != 1 || d2t->dtype != CN_ST_I64)
        return cn_fail(CN_ERR_MODEL, "%s: d2t: expected a vector of I64, got %s", path,
                       cn_st_dtype_name(d2t->dtype));
    for (uint64_t i = 0; i < d2t->shape[0]; i++) {
        int64_t shift;
        memcpy(&shift, (const char *)d2t->data + i * sizeof shift, sizeof shift);
        const int64_t max = (int64_t)vocab - 1 - (int64_t)i;
        if (shift > max || shift < -(int64_t)i)
            return cn_fail(CN_ERR_MODEL,
                           "%s: d2t: draft token %llu plus %lld: expected a token below %u: the "
                           "head is of a model with another vocabulary",
                           path, (unsigned long long)i, (long long)shift, vocab);
    }
    return CN_OK;
}

static cn_status check_vocabulary(const cn_safetensors *s, const char *path, uint32_t vocab)
{
    const cn_st_tensor *d2t = cn_safetensors_find(s, "d2t");
    if (d2t) CN_TRY(check_draft_tokens(d2t, path, vocab));
    CN_TRY(check_rows(s, path, "t2d", vocab, "the vocabulary of the model"));
    CN_TRY(check_rows(s, path, "embed_tokens.weight", vocab, "the vocabulary of the model"));
    return check_rows(s, path, "lm_head.weight", d2t ? d2t->shape[0] : vocab,
                      d2t ? "as d2t" : "the vocabulary of the model");
}

/* ---- its config.json ---- */

typedef struct eagle_config {
    const cn_model_config *m;
    cn_draft_head *head;
} eagle_config;

static cn_status check_config_size(const cn_json_at *a, const char *key, uint32_t expected)
{
    uint32_t got = 0;
    CN_TRY(cn_json_u32(a, key, CN_JSON_REQUIRED, 1, INT32_MAX, &got));
    if (got == expected) return CN_OK;
    return cn_fail(CN_ERR_MODEL, "%s: %s %u: expected %u, as of the model", a->where, key, got,
                   expected);
}

static cn_status read_eagle_layers(const cn_json_at *a, const cn_model_config *m,
                                   cn_draft_head *head)
{
    json_t *object = NULL, *list = NULL;
    CN_TRY(cn_json_obj(a, "eagle_config", CN_JSON_OPTIONAL, &object));
    if (!object) return CN_OK;
    const cn_json_at in = {object, a->where, a->error};
    CN_TRY(cn_json_arr(&in, "eagle_aux_hidden_state_layer_ids", CN_JSON_OPTIONAL, &list));
    if (!list) return CN_OK;
    int64_t least = -1;
    bool good = json_array_size(list) == CN_DRAFT_LAYERS;
    for (size_t i = 0; good && i < CN_DRAFT_LAYERS; i++) {
        int64_t layer = 0;
        good = cn_json_as_i64(json_array_get(list, i), least, (int64_t)m->n_layers - 2, &layer);
        head->hidden_layers[i] = (uint32_t)(layer + 1);
        least = layer + 1;
    }
    if (good) return CN_OK;
    return cn_fail(CN_ERR_MODEL,
                   "%s: eagle_aux_hidden_state_layer_ids: expected three ascending layers from -1 "
                   "to %lld",
                   a->where, (long long)m->n_layers - 2);
}

static cn_status read_eagle_rope(const cn_json_at *a, cn_draft_head *head)
{
    json_t *scaling = NULL, *parameters = NULL;
    const char *type = "default";
    head->rope_theta = 10000;
    CN_TRY(cn_json_f64(a, "rope_theta", CN_JSON_OPTIONAL, 1.001, 1e15, &head->rope_theta));
    CN_TRY(cn_json_obj(a, "rope_scaling", CN_JSON_OPTIONAL, &scaling));
    CN_TRY(cn_json_obj(a, "rope_parameters", CN_JSON_OPTIONAL, &parameters));
    const cn_json_at in = {scaling ? scaling : parameters, a->where, a->error};
    if (!in.object) return CN_OK;
    CN_TRY(cn_json_f64(&in, "rope_theta", CN_JSON_OPTIONAL, 1.001, 1e15, &head->rope_theta));
    CN_TRY(cn_json_str(&in, "type", CN_JSON_OPTIONAL, &type));
    CN_TRY(cn_json_str(&in, "rope_type", CN_JSON_OPTIONAL, &type));
    if (strcmp(type, "default") == 0) return CN_OK;
    return cn_fail(CN_ERR_MODEL,
                   "%s: rope_type %.20s: supported of an EAGLE-3 head is default; YaRN extends it "
                   "beyond max_position_embeddings",
                   a->where, type);
}

static cn_status read_eagle_config(const cn_json_at *a, void *out)
{
    const eagle_config *c = out;
    CN_TRY(check_config_size(a, "hidden_size", c->m->hidden));
    CN_TRY(check_config_size(a, "vocab_size", c->m->vocab));
    CN_TRY(check_config_size(a, "num_key_value_heads", c->m->n_kv_heads));
    CN_TRY(cn_json_u32(a, "max_position_embeddings", CN_JSON_REQUIRED, 1, INT32_MAX,
                       &c->head->context));
    CN_TRY(cn_json_u32(a, "head_dim", CN_JSON_OPTIONAL, 1, UINT16_MAX, &c->head->head_dim));
    CN_TRY(read_eagle_rope(a, c->head));
    return read_eagle_layers(a, c->m, c->head);
}

cn_status cn_eagle_read(cn_draft_head *head, const cn_safetensors *s, const char *dir,
                        const char *path, const cn_model_config *m)
{
    const cn_st_tensor *keys = cn_safetensors_find(s, cn_eagle_names(s)[2]);
    const uint32_t n = m->n_layers;
    CN_TRY(check_eagle_names(s, path));
    CN_TRY(check_vocabulary(s, path, m->vocab));
    *head = (cn_draft_head){.n_hidden_layers = CN_DRAFT_LAYERS,
                            .hidden_layers = {2, n / 2, n - 3},
                            .context = CN_EAGLE_CONTEXT,
                            .rope_theta = m->rope_theta};
    const bool deep = n >= 7; /* else the three layers are not ascending */
    if (!deep) head->hidden_layers[2] = 0;
    eagle_config c = {m, head};
    CN_TRY(cn_json_read_optional_file(dir, CN_RETRIEVAL_CONFIG, CONFIG_BYTES, CONFIG_DEPTH,
                                      read_eagle_config, &c));
    if (head->hidden_layers[2] == 0)
        return cn_fail(CN_ERR_MODEL,
                       "%s: the layers that the EAGLE-3 head reads are not known for a model of %u "
                       "layers: set eagle_config.eagle_aux_hidden_state_layer_ids in "
                       CN_RETRIEVAL_CONFIG,
                       path, n);
    /* retrieval_file.c checks the shape. */
    if (keys && keys->n_dims == 2 && head->head_dim == 0)
        head->head_dim = (uint32_t)(keys->shape[0] / m->n_kv_heads);
    return CN_OK;
}
