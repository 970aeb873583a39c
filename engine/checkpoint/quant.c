/* quant.c - see quant.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/checkpoint/quant.h"

#include <fnmatch.h>
#include <pcre2.h>
#include <unistd.h>

enum { FILE_MAX_BYTES = 4 << 20, FILE_MAX_DEPTH = 16, PLACE_BYTES = 512 };

#define WAY_OUT                                                                              \
    "; supported are FP8 checkpoints (quant_method fp8, compressed-tensors float-quantized, " \
    "modelopt FP8): take one of these, or the bf16 checkpoint of the model, which "          \
    "--quantization fp8 loads in eight bits"

/* ---- what is refused ---- */

/* What people call the formats that are not supported. */
static const char *known_name(const char *method)
{
    static const struct {
        const char *method, *name;
    } known[] = {
        {"gptq", "int4 (GPTQ)"},
        {"awq", "int4 (AWQ)"},
        {"pack-quantized", "int4"},
        {"int-quantized", "int8"},
        {"nvfp4-pack-quantized", "NVFP4"},
        {"NVFP4", "NVFP4"},
        {"mxfp4-pack-quantized", "MXFP4"},
        {"mxfp4", "MXFP4"},
        {"MXFP4", "MXFP4"},
        {"W4A16_AWQ", "int4 (AWQ)"},
        {"W4A8_AWQ", "int4 (AWQ)"},
        {"INT4_AWQ", "int4 (AWQ)"},
        {"bitsandbytes", "bitsandbytes"},
        {"gguf", "GGUF"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(method, known[i].method) == 0) return known[i].name;
    return "quantized";
}

/* key: of the value that names the format. */
static cn_status refuse_format(const cn_json_at *q, const char *key)
{
    char shown[96];
    const json_t *value = json_object_get(q->object, key);
    const char *name = json_is_string(value) ? known_name(json_string_value(value)) : "quantized";
    return cn_fail(q->error, "%s: %s %s: %s weights are not supported" WAY_OUT, q->where, key,
                   value ? cn_json_describe(value, shown, sizeof shown) : "not given", name);
}

static cn_status refuse_value(const cn_json_at *q, const char *key, const char *supported)
{
    char shown[96];
    const json_t *value = json_object_get(q->object, key);
    return cn_fail(q->error, "%s: %s %s of FP8 weights is not supported; supported is %s", q->where,
                   key, value ? cn_json_describe(value, shown, sizeof shown) : "not given",
                   supported);
}

/* ---- names of modules ---- */

/* The modules that are parts of a fused matrix, and of those of every expert. */
static const char *const modules[CN_N_QUANT_PARTS][4] = {
    [CN_QUANT_QKV] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    [CN_QUANT_O] = {"self_attn.o_proj"},
    [CN_QUANT_GATE_UP] = {"gate_proj", "up_proj"},
    [CN_QUANT_DOWN] = {"down_proj"},
    [CN_QUANT_EXPERT_GATE_UP] = {"gate_proj", "up_proj"},
    [CN_QUANT_EXPERT_DOWN] = {"down_proj"},
    [CN_QUANT_LATENT_Q_A] = {"self_attn.q_a_proj"},
    [CN_QUANT_LATENT_Q] = {"self_attn.q_b_proj"},
    [CN_QUANT_LATENT_KV_A] = {"self_attn.kv_a_proj_with_mqa"},
    [CN_QUANT_LATENT_KV_B] = {"self_attn.kv_b_proj"},
};

static bool is_of_latent(cn_quant_part part)
{
    return part >= CN_QUANT_LATENT_Q_A && part <= CN_QUANT_LATENT_KV_B;
}

/* Whether attention has the matrix, if it is one of attention. */
static bool has_attention(const cn_model_config *c, cn_quant_part part)
{
    if (part == CN_QUANT_LATENT_Q_A) return c->latent.q_rank > 0;
    if (part == CN_QUANT_QKV) return c->latent.rank == 0;
    return c->latent.rank > 0 || !is_of_latent(part);
}

/* Modules of a fused matrix in a layer; 0: the layer has no such matrix. */
static uint32_t n_modules(const cn_model_config *c, uint32_t layer, cn_quant_part part)
{
    const cn_layer_kind kind = cn_model_config_layer(c, layer);
    const bool is_expert = part == CN_QUANT_EXPERT_GATE_UP || part == CN_QUANT_EXPERT_DOWN;
    const bool is_dense = part == CN_QUANT_GATE_UP || part == CN_QUANT_DOWN;
    uint32_t n = 0;
    while (modules[part][n]) n++;
    if (!has_attention(c, part)) return 0;
    if (is_expert) return kind.mlp == CN_MLP_EXPERTS ? n * c->experts.router.n_experts : 0;
    return is_dense && kind.dense == 0 ? 0 : n;
}

enum { NAME_BYTES = 96 };

/* The name of a module of these. */
static void name_module(char name[NAME_BYTES], const cn_model_config *c, uint32_t layer,
                        cn_quant_part part, uint32_t i)
{
    const bool is_attention =
        part == CN_QUANT_QKV || part == CN_QUANT_O || is_of_latent(part);
    const bool is_whole = part == CN_QUANT_LATENT_Q && c->latent.q_rank == 0;
    const bool shared = cn_model_config_layer(c, layer).mlp == CN_MLP_EXPERTS;
    const uint32_t n_experts = c->experts.router.n_experts;
    int n = snprintf(name, NAME_BYTES, "model.layers.%u.", layer);
    if (part == CN_QUANT_EXPERT_GATE_UP || part == CN_QUANT_EXPERT_DOWN) {
        snprintf(name + n, (size_t)(NAME_BYTES - n), "mlp.experts.%u.%s", i % n_experts,
                 modules[part][i / n_experts]);
        return;
    }
    snprintf(name + n, (size_t)(NAME_BYTES - n), "%s%s",
             is_attention ? "" : shared ? "mlp.shared_experts." : "mlp.",
             is_whole ? "self_attn.q_proj" : modules[part][i]);
}

/* A name or pattern of a list. */
typedef struct pattern {
    const char *text;
    pcre2_code *regex; /* NULL: text is a name, with wildcards or without */
    pcre2_match_data *match;
} pattern;

static void free_pattern(pattern *p)
{
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->regex);
}

static cn_status read_pattern(const cn_json_at *q, const char *key, const json_t *item, pattern *p)
{
    int error;
    PCRE2_SIZE where;
    char shown[96];
    *p = (pattern){.text = json_string_value(item)};
    if (!p->text || strlen(p->text) != json_string_length(item))
        return cn_fail(q->error, "%s: %s: expected names of modules, got %s", q->where, key,
                       cn_json_describe(item, shown, sizeof shown));
    if (strncmp(p->text, "re:", 3) != 0) return CN_OK;
    p->regex = pcre2_compile((PCRE2_SPTR)p->text + 3, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_ANCHORED, &error, &where, NULL);
    if (!p->regex)
        return cn_fail(q->error, "%s: %s: %s is not a regular expression (PCRE2 code %d)", q->where,
                       key, cn_json_describe(item, shown, sizeof shown), error);
    p->match = pcre2_match_data_create_from_pattern(p->regex, NULL);
    return p->match ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for a pattern");
}

static bool pattern_names(const pattern *p, const char *module)
{
    const size_t n = strlen(p->text), n_module = strlen(module);
    if (p->regex)
        return pcre2_match(p->regex, (PCRE2_SPTR)module, n_module, 0, 0, p->match, NULL) >= 0;
    if (strpbrk(p->text, "*?")) return fnmatch(p->text, module, 0) == 0;
    if (n == 0 || n > n_module) return false;
    if (strncmp(p->text, module, n) == 0) return module[n] == '\0' || module[n] == '.';
    const char *end = module + n_module - n;
    return strcmp(end, p->text) == 0 && end[-1] == '.';
}

typedef struct pattern_list {
    pattern *patterns;
    size_t n;
} pattern_list;

static void free_patterns(pattern_list *l)
{
    for (size_t i = 0; i < l->n; i++) free_pattern(&l->patterns[i]);
    cn_free(l->patterns);
}

static cn_status compile_list(const cn_json_at *q, const char *key, pattern_list *out)
{
    json_t *list = NULL;
    *out = (pattern_list){0};
    CN_TRY(cn_json_arr(q, key, CN_JSON_OPTIONAL, &list));
    const size_t n = json_array_size(list);
    out->patterns = cn_calloc(n + 1, sizeof *out->patterns);
    if (!out->patterns) return cn_fail(CN_ERR_MEMORY, "out of memory for %zu patterns", n);
    cn_status status = CN_OK;
    while (out->n < n && status == CN_OK) {
        status = read_pattern(q, key, json_array_get(list, out->n), &out->patterns[out->n]);
        out->n++;
    }
    return status;
}

static bool any_names(const pattern_list *l, const char *module)
{
    for (size_t i = 0; i < l->n; i++)
        if (pattern_names(&l->patterns[i], module)) return true;
    return false;
}

/* Whether the list names the one tensor that some files have for the experts of a layer. */
static bool names_fused(const pattern_list *l, uint32_t layer, cn_quant_part part)
{
    char name[NAME_BYTES];
    if (part != CN_QUANT_EXPERT_GATE_UP && part != CN_QUANT_EXPERT_DOWN) return false;
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s", layer,
             part == CN_QUANT_EXPERT_DOWN ? "down_proj" : "gate_up_proj");
    return any_names(l, name);
}

/* Leaves a matrix plain if the list names its modules, or with `inverted` if it does not. */
static cn_status apply_list(const cn_json_at *q, const char *key, const pattern_list *l,
                            bool inverted, cn_model_config *c, uint32_t layer, cn_quant_part part)
{
    char name[NAME_BYTES], last[NAME_BYTES];
    const uint32_t n = n_modules(c, layer, part);
    uint32_t n_named = 0;
    if (n == 0) return CN_OK;
    for (uint32_t i = 0; i < n; i++) {
        name_module(name, c, layer, part, i);
        n_named += any_names(l, name);
    }
    if (names_fused(l, layer, part)) n_named = n;
    if (n_named != 0 && n_named != n) {
        name_module(name, c, layer, part, 0);
        name_module(last, c, layer, part, n - 1);
        return cn_fail(q->error,
                       "%s: %s names some of %s to %s of layer %u and not all: one matrix cannot "
                       "be FP8 in part; name all of them or none",
                       q->where, key, name, last, layer);
    }
    if ((n_named != 0) != inverted)
        c->quant.plain[part][layer / 64] |= UINT64_C(1) << layer % 64;
    return CN_OK;
}

/* Leaves plain what the list of key names, or with `inverted` what it does not name. */
static cn_status read_list(const cn_json_at *q, const char *key, bool inverted, cn_model_config *c)
{
    pattern_list l;
    cn_status status = compile_list(q, key, &l);
    for (uint32_t layer = 0; layer < c->n_layers && status == CN_OK; layer++)
        for (cn_quant_part part = 0; part < CN_N_QUANT_PARTS && status == CN_OK; part++)
            status = apply_list(q, key, &l, inverted, c, layer, part);
    free_patterns(&l);
    return status;
}

/* ---- quant_method fp8 ---- */

static cn_status refuse_other_str(const cn_json_at *q, const char *key, const char *supported)
{
    const char *value = supported;
    CN_TRY(cn_json_str(q, key, CN_JSON_OPTIONAL, &value));
    return strcmp(value, supported) == 0 ? CN_OK : refuse_value(q, key, supported);
}

static cn_status check_block_size(const cn_json_at *q, const char *key)
{
    const json_t *size = cn_json_find(q, key);
    int64_t n = 0, k = 0;
    if (json_array_size(size) != 2 ||
        !cn_json_as_i64(json_array_get(size, 0), INT64_MIN, INT64_MAX, &n) ||
        !cn_json_as_i64(json_array_get(size, 1), INT64_MIN, INT64_MAX, &k))
        return refuse_value(q, key, "[128, 128]");
    if (n == CN_FP8_COLUMNS && k == CN_FP8_COLUMNS) return CN_OK;
    return cn_fail(q->error, "%s: %s [%lld, %lld] of FP8 weights is not supported; supported is "
                   "[128, 128]", q->where, key, (long long)n, (long long)k);
}

static cn_status read_fp8(const cn_json_at *q, cn_model_config *c)
{
    const char *scheme = "dynamic", *scale_fmt = "float";
    CN_TRY(refuse_other_str(q, "fmt", "e4m3"));
    CN_TRY(cn_json_str(q, "activation_scheme", CN_JSON_OPTIONAL, &scheme));
    CN_TRY(cn_json_str(q, "scale_fmt", CN_JSON_OPTIONAL, &scale_fmt));
    c->quant.fp8 = true;
    c->quant.is_static = strcmp(scheme, "static") == 0;
    if (!c->quant.is_static && strcmp(scheme, "dynamic") != 0)
        return refuse_value(q, "activation_scheme", "dynamic or static");
    if (strcmp(scale_fmt, "float") != 0 && strcmp(scale_fmt, "ue8m0") != 0)
        return refuse_value(q, "scale_fmt", "float or ue8m0");
    if (cn_json_find(q, "weight_block_size")) {
        CN_TRY(check_block_size(q, "weight_block_size"));
        if (c->quant.is_static) return refuse_value(q, "activation_scheme", "dynamic for blocks");
        c->quant.scale = CN_QUANT_BLOCK;
        c->quant.x = CN_X_BLOCKS;
    } else {
        c->quant.scale = CN_QUANT_TENSOR;
        c->quant.x = c->quant.is_static ? CN_X_STATIC : CN_X_ROWS;
    }
    CN_TRY(read_list(q, "modules_to_not_convert", false, c));
    return read_list(q, "ignored_layers", false, c);
}

/* ---- compressed-tensors ---- */

static cn_status read_ct_weights(const cn_json_at *w, cn_model_config *c)
{
    const char *type = "int", *strategy = "";
    uint32_t bits = 8;
    bool is_dynamic = false;
    CN_TRY(cn_json_str(w, "type", CN_JSON_OPTIONAL, &type));
    CN_TRY(cn_json_str(w, "strategy", CN_JSON_REQUIRED, &strategy));
    CN_TRY(cn_json_u32(w, "num_bits", CN_JSON_OPTIONAL, 1, 64, &bits));
    CN_TRY(cn_json_bool(w, "dynamic", CN_JSON_OPTIONAL, &is_dynamic));
    if (strcmp(type, "float") != 0) return refuse_format(w, "type");
    if (bits != 8) return refuse_format(w, "num_bits");
    if (is_dynamic) return refuse_value(w, "dynamic", "false");
    if (strcmp(strategy, "tensor") == 0) c->quant.scale = CN_QUANT_TENSOR;
    else if (strcmp(strategy, "channel") == 0) c->quant.scale = CN_QUANT_ROW;
    else if (strcmp(strategy, "block") == 0) c->quant.scale = CN_QUANT_BLOCK;
    else return refuse_value(w, "strategy", "tensor, channel or block");
    return c->quant.scale == CN_QUANT_BLOCK ? check_block_size(w, "block_structure") : CN_OK;
}

static cn_status read_ct_inputs(const cn_json_at *x, cn_model_config *c)
{
    const char *type = "int", *strategy = "tensor";
    uint32_t bits = 8, group = 0;
    cn_quant *quant = &c->quant;
    CN_TRY(cn_json_str(x, "type", CN_JSON_OPTIONAL, &type));
    CN_TRY(cn_json_str(x, "strategy", CN_JSON_OPTIONAL, &strategy));
    CN_TRY(cn_json_u32(x, "num_bits", CN_JSON_OPTIONAL, 1, 64, &bits));
    CN_TRY(cn_json_u32(x, "group_size", CN_JSON_OPTIONAL, 1, UINT32_MAX, &group));
    const json_t *dynamic = cn_json_find(x, "dynamic");
    if (strcmp(type, "float") != 0) return refuse_value(x, "type", "float");
    if (bits != 8) return refuse_value(x, "num_bits", "8");
    if (dynamic && !json_is_boolean(dynamic)) return refuse_value(x, "dynamic", "true or false");
    quant->is_static = !json_is_true(dynamic);
    if (quant->scale == CN_QUANT_BLOCK) {
        if (quant->is_static || strcmp(strategy, "group") != 0 || group != CN_FP8_COLUMNS)
            return refuse_value(x, "strategy", "group of 128, dynamic, for blocks");
        quant->x = CN_X_BLOCKS;
        return CN_OK;
    }
    if (quant->is_static && strcmp(strategy, "tensor") != 0)
        return refuse_value(x, "strategy", "tensor for static inputs");
    if (!quant->is_static && strcmp(strategy, "token") != 0)
        return refuse_value(x, "strategy", "token for dynamic inputs");
    quant->x = quant->is_static ? CN_X_STATIC : CN_X_ROWS;
    return CN_OK;
}

/* "Linear" is a class: it names every module of the lists. */
static bool names_all(const json_t *targets)
{
    const json_t *item;
    size_t i;
    if (!targets) return true;
    json_array_foreach(targets, i, item)
        if (json_is_string(item) && strcmp(json_string_value(item), "Linear") == 0) return true;
    return false;
}

static cn_status read_ct_group(const cn_json_at *g, cn_model_config *c)
{
    json_t *weights = NULL, *inputs = NULL, *targets = NULL;
    char place[PLACE_BYTES + 32];
    CN_TRY(cn_json_obj(g, "weights", CN_JSON_REQUIRED, &weights));
    CN_TRY(cn_json_obj(g, "input_activations", CN_JSON_OPTIONAL, &inputs));
    CN_TRY(cn_json_arr(g, "targets", CN_JSON_OPTIONAL, &targets));
    c->quant.fp8 = true;
    snprintf(place, sizeof place, "%s.weights", g->where);
    CN_TRY(read_ct_weights(&(cn_json_at){weights, place, g->error}, c));
    if (cn_json_find(g, "output_activations"))
        return refuse_value(g, "output_activations", "null");
    snprintf(place, sizeof place, "%s.input_activations", g->where);
    if (inputs) CN_TRY(read_ct_inputs(&(cn_json_at){inputs, place, g->error}, c));
    return names_all(targets) ? CN_OK : read_list(g, "targets", true, c);
}

/* Transforms change the inputs of products, and sparse weights the tensors of the file. */
static cn_status check_ct_extras(const cn_json_at *q)
{
    const char *format = "";
    json_t *transforms = NULL, *sparsity = NULL;
    char place[PLACE_BYTES + 32];
    CN_TRY(cn_json_obj(q, "transform_config", CN_JSON_OPTIONAL, &transforms));
    CN_TRY(cn_json_obj(q, "sparsity_config", CN_JSON_OPTIONAL, &sparsity));
    if (json_object_size(transforms) > 0)
        return cn_fail(q->error,
                       "%s: transform_config: transforms of weights and inputs are not supported"
                       WAY_OUT, q->where);
    if (json_object_size(sparsity) == 0) return CN_OK;
    snprintf(place, sizeof place, "%s: sparsity_config", q->where);
    const cn_json_at at = {sparsity, place, q->error};
    CN_TRY(cn_json_str(&at, "format", CN_JSON_OPTIONAL, &format));
    return strcmp(format, "dense") == 0 ? CN_OK : refuse_value(&at, "format", "dense");
}

static cn_status read_compressed(const cn_json_at *q, cn_model_config *c)
{
    const char *format = "";
    json_t *groups = NULL, *group = NULL;
    char place[PLACE_BYTES], shown[96];
    CN_TRY(cn_json_str(q, "format", CN_JSON_OPTIONAL, &format));
    if (strcmp(format, "float-quantized") != 0 && strcmp(format, "naive-quantized") != 0)
        return refuse_format(q, "format");
    CN_TRY(check_ct_extras(q));
    CN_TRY(cn_json_obj(q, "config_groups", CN_JSON_REQUIRED, &groups));
    if (json_object_size(groups) != 1)
        return cn_fail(q->error,
                       "%s: config_groups: %zu groups are not supported; supported is one",
                       q->where, json_object_size(groups));
    const char *name = json_object_iter_key(json_object_iter(groups));
    CN_TRY(cn_json_obj(&(cn_json_at){groups, q->where, q->error}, name, CN_JSON_REQUIRED, &group));
    snprintf(place, sizeof place, "%s: config_groups.%s", q->where,
             cn_json_printable(name, shown, sizeof shown));
    CN_TRY(read_ct_group(&(cn_json_at){group, place, q->error}, c));
    return read_list(q, "ignore", false, c);
}

/* ---- ModelOpt ---- */

static cn_status read_modelopt(const cn_json_at *q, cn_model_config *c)
{
    const char *algo = "";
    CN_TRY(cn_json_str(q, "quant_algo", CN_JSON_OPTIONAL, &algo));
    c->quant.fp8 = true;
    if (strcmp(algo, "FP8") == 0) {
        c->quant.scale = CN_QUANT_TENSOR;
        c->quant.is_static = true;
        c->quant.x = CN_X_STATIC;
    } else if (strcmp(algo, "FP8_PER_CHANNEL_PER_TOKEN") == 0) {
        c->quant.scale = CN_QUANT_ROW;
        c->quant.x = CN_X_ROWS;
    } else {
        return refuse_format(q, "quant_algo");
    }
    CN_TRY(read_list(q, "exclude_modules", false, c));
    return read_list(q, "ignore", false, c);
}

/* ---- the files and the options ---- */

static cn_status read_method(const cn_json_at *q, cn_model_config *c)
{
    static const struct {
        const char *method;
        cn_status (*read)(const cn_json_at *q, cn_model_config *c);
    } methods[] = {
        {"fp8", read_fp8},
        {"compressed-tensors", read_compressed},
        {"modelopt", read_modelopt},
    };
    const char *method = "";
    CN_TRY(cn_json_str(q, "quant_method", CN_JSON_OPTIONAL, &method));
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(method, methods[i].method) != 0) continue;
        return methods[i].read(q, c);
    }
    return refuse_format(q, "quant_method");
}

cn_status cn_quant_read(const cn_json_at *a, cn_model_config *c)
{
    static const char *const keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < 2; i++) {
        json_t *found = NULL;
        char place[PLACE_BYTES];
        CN_TRY(cn_json_obj(a, keys[i], CN_JSON_OPTIONAL, &found));
        if (!found) continue;
        snprintf(place, sizeof place, "%s: %s", a->where, keys[i]);
        return read_method(&(cn_json_at){found, place, a->error}, c);
    }
    return CN_OK;
}

static cn_status read_quant_file(const cn_json_at *a, void *out)
{
    json_t *found = NULL;
    char place[PLACE_BYTES];
    cn_model_config *c = out;
    CN_TRY(cn_json_obj(a, "quantization", CN_JSON_OPTIONAL, &found));
    if (!found || !cn_json_find(&(cn_json_at){found, "", a->error}, "quant_algo")) return CN_OK;
    snprintf(place, sizeof place, "%s: quantization", a->where);
    const cn_json_at q = {found, place, a->error};
    return read_modelopt(&q, c);
}

cn_status cn_quant_read_file(cn_model_config *c, const char *dir)
{
    return cn_json_read_optional_file(dir, "hf_quant_config.json", FILE_MAX_BYTES, FILE_MAX_DEPTH,
                                      read_quant_file, c);
}

cn_status cn_quant_choose(cn_model_config *c, const cn_config *options)
{
    cn_quant *q = &c->quant;
    if (options->quantization == CN_OPT_QUANT_FP8 && q->fp8)
        cn_log(CN_LOG_INFO, "--quantization fp8 changes nothing: the checkpoint has FP8 weights");
    if (options->quantization == CN_OPT_QUANT_FP8 && !q->fp8) {
        *q = (cn_quant){
            .fp8 = true, .at_load = true, .scale = CN_QUANT_BLOCK, .x = CN_X_BLOCKS};
    }
    if (options->fp8_activations) return CN_OK;
    if (!q->fp8)
        return cn_fail(CN_ERR_ARG, "--no-fp8-activations: no weight of this checkpoint is FP8: "
                                   "leave it out, or set --quantization fp8");
    if (q->x == CN_X_PLAIN)
        cn_log(CN_LOG_INFO,
               "--no-fp8-activations changes nothing: the checkpoint rounds no activations");
    q->x = CN_X_PLAIN;
    return CN_OK;
}
