/* model_experts.c - see model_experts.h. Absent keys get the defaults of the configuration classes
 * of transformers. */
#include "engine/checkpoint/model_experts.h"

/* Refuses a key that has another value than the one that is computed. */
static cn_status refuse_other_text(const cn_json_at *a, const char *key, const char *supported)
{
    char shown[96];
    const char *value = supported;
    CN_TRY(cn_json_str(a, key, CN_JSON_OPTIONAL, &value));
    if (strcmp(value, supported) == 0) return CN_OK;
    return cn_fail(a->error, "%s: %s \"%s\" is not supported; supported is %s", a->where, key,
                   cn_json_printable(value, shown, sizeof shown), supported);
}

cn_status cn_refuse_other_number(const cn_json_at *a, const char *key, uint32_t supported)
{
    uint32_t value = supported;
    CN_TRY(cn_json_u32(a, key, CN_JSON_OPTIONAL, 0, UINT32_MAX, &value));
    if (value == supported) return CN_OK;
    return cn_fail(a->error, "%s: %s %u is not supported; supported is %u", a->where, key, value,
                   supported);
}

/* Reads what all families have; the caller has set the defaults. n_key: the key of E. */
static cn_status read_router(const cn_json_at *a, const char *n_key, cn_model_config *c)
{
    cn_experts *x = &c->experts;
    cn_router *r = &x->router;
    CN_TRY(cn_json_u32(a, n_key, CN_JSON_OPTIONAL, 1, CN_MAX_EXPERTS, &r->n_experts));
    CN_TRY(cn_json_u32(a, "num_experts_per_tok", r->n_used ? CN_JSON_OPTIONAL : CN_JSON_REQUIRED, 1,
                       CN_MAX_USED, &r->n_used));
    if (r->n_used > r->n_experts)
        return cn_fail(a->error, "%s: num_experts_per_tok %u exceeds %s %u", a->where, r->n_used,
                       n_key, r->n_experts);
    CN_TRY(cn_json_u32(a, "moe_intermediate_size", CN_JSON_OPTIONAL, 2, CN_MAX_WIDTH,
                       &x->intermediate));
    return cn_json_bool(a, "norm_topk_prob", CN_JSON_OPTIONAL, &r->normalized);
}

static void set_layer(cn_experts *x, uint32_t layer, bool has_experts)
{
    const uint64_t bit = UINT64_C(1) << layer % 64;
    if (has_experts) x->layers[layer / 64] |= bit;
    else x->layers[layer / 64] &= ~bit;
}

/* A model of which no layer has experts is dense. */
static void drop_unused_experts(cn_model_config *c)
{
    for (size_t i = 0; i < sizeof c->experts.layers / sizeof *c->experts.layers; i++)
        if (c->experts.layers[i]) return;
    memset(&c->experts, 0, sizeof c->experts);
}

cn_status cn_read_qwen3_experts(const cn_json_at *a, cn_model_config *c)
{
    cn_experts *x = &c->experts;
    uint32_t step = 1;
    json_t *dense = NULL, *item;
    size_t i;
    x->router = (cn_router){.n_experts = 128, .n_used = 8, .score = CN_ROUTE_SOFTMAX, .scale = 1};
    x->intermediate = 768;
    const bool local = !cn_json_find(a, "num_experts") && cn_json_find(a, "num_local_experts");
    CN_TRY(read_router(a, local ? "num_local_experts" : "num_experts", c));
    CN_TRY(refuse_other_text(a, "scoring_func", "softmax"));
    CN_TRY(cn_refuse_other_number(a, "n_shared_experts", 0));
    CN_TRY(cn_refuse_other_number(a, "shared_expert_intermediate_size", 0));
    CN_TRY(cn_json_u32(a, "decoder_sparse_step", CN_JSON_OPTIONAL, 1, UINT32_MAX, &step));
    CN_TRY(cn_json_arr(a, "mlp_only_layers", CN_JSON_OPTIONAL, &dense));
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        set_layer(x, layer, (layer + 1) % step == 0);
    json_array_foreach(dense, i, item)
    {
        char shown[96];
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return cn_fail(a->error,
                           "%s: mlp_only_layers[%zu]: expected the number of a layer, got %s",
                           a->where, i, cn_json_describe(item, shown, sizeof shown));
        if (json_integer_value(item) < c->n_layers)
            set_layer(x, (uint32_t)json_integer_value(item), false);
    }
    drop_unused_experts(c);
    return CN_OK;
}

/* What is left of a family whose router is in c: scale, shared experts, dense first layers. */
static cn_status read_shared(const cn_json_at *a, uint32_t n_shared, uint32_t first,
                             cn_model_config *c)
{
    cn_experts *x = &c->experts;
    double scale = (double)x->router.scale;
    CN_TRY(cn_json_u32(a, "n_shared_experts", CN_JSON_OPTIONAL, 0, 64, &n_shared));
    CN_TRY(cn_json_u32(a, "first_k_dense_replace", CN_JSON_OPTIONAL, 0, UINT32_MAX, &first));
    CN_TRY(cn_json_f64(a, "routed_scaling_factor", CN_JSON_OPTIONAL, 0, 1e6, &scale));
    CN_TRY(cn_refuse_other_number(a, "moe_layer_freq", 1));
    x->router.scale = (float)scale;
    x->shared = n_shared * x->intermediate;
    for (uint32_t layer = first; layer < c->n_layers; layer++) set_layer(x, layer, true);
    return CN_OK;
}

/* Groups of experts. The router of c has the defaults, and the rule that ranks a group. */
static cn_status read_groups(const cn_json_at *a, cn_model_config *c)
{
    cn_router *r = &c->experts.router;
    CN_TRY(cn_json_u32(a, "n_group", CN_JSON_OPTIONAL, 1, CN_MAX_GROUPS, &r->n_groups));
    CN_TRY(cn_json_u32(a, "topk_group", CN_JSON_OPTIONAL, 1, CN_MAX_GROUPS, &r->n_used_groups));
    const uint32_t each = r->n_experts / cn_max_u32(r->n_groups, 1);
    const bool fits = r->n_groups > 0 && r->n_used_groups <= r->n_groups &&
                      each * r->n_groups == r->n_experts && each >= r->group_best &&
                      each * r->n_used_groups >= r->n_used;
    if (!fits)
        return cn_fail(a->error,
                       "%s: n_group %u and topk_group %u do not fit %u experts of which a token "
                       "takes %u: expected groups of one size, with at least %u experts each and "
                       "enough in topk_group of them",
                       a->where, r->n_groups, r->n_used_groups, r->n_experts, r->n_used,
                       cn_max_u32(r->group_best, 1));
    if (r->n_groups == 1) r->n_groups = r->n_used_groups = r->group_best = 0;
    return CN_OK;
}

cn_status cn_read_glm4_experts(const cn_json_at *a, cn_model_config *c)
{
    c->experts.router = (cn_router){
        .n_experts = 128, .n_used = 8, .score = CN_ROUTE_SIGMOID, .normalized = true, .scale = 1};
    c->experts.bias = true;
    c->experts.intermediate = 1408;
    CN_TRY(read_router(a, "n_routed_experts", c));
    CN_TRY(refuse_other_text(a, "scoring_func", "sigmoid"));
    CN_TRY(refuse_other_text(a, "topk_method", "noaux_tc"));
    CN_TRY(cn_refuse_other_number(a, "n_group", 1));
    CN_TRY(cn_refuse_other_number(a, "topk_group", 1));
    CN_TRY(read_shared(a, 1, 1, c));
    drop_unused_experts(c);
    return CN_OK;
}

/* transformers ignores norm_topk_prob here; published models have false. */
cn_status cn_read_deepseek2_experts(const cn_json_at *a, cn_model_config *c)
{
    cn_router *r = &c->experts.router;
    const char *method = "greedy";
    char shown[96];
    *r = (cn_router){.n_experts = 64, .score = CN_ROUTE_SOFTMAX, .scale = 1};
    c->experts.intermediate = 1407;
    CN_TRY(read_router(a, "n_routed_experts", c));
    CN_TRY(refuse_other_text(a, "scoring_func", "softmax"));
    if (r->normalized)
        return cn_fail(a->error, "%s: norm_topk_prob true is not supported; supported is false",
                       a->where);
    CN_TRY(cn_json_str(a, "topk_method", CN_JSON_OPTIONAL, &method));
    if (strcmp(method, "group_limited_greedy") == 0) {
        r->group_best = 1;
        CN_TRY(read_groups(a, c));
    } else if (strcmp(method, "greedy") != 0) {
        return cn_fail(a->error,
                       "%s: topk_method \"%s\" is not supported; supported are greedy and "
                       "group_limited_greedy",
                       a->where, cn_json_printable(method, shown, sizeof shown));
    }
    CN_TRY(read_shared(a, 2, 0, c));
    drop_unused_experts(c);
    return CN_OK;
}

/* Sigmoid, and a bias on the scores that choose. The router of c has the defaults. */
static cn_status read_noaux(const cn_json_at *a, uint32_t first, cn_model_config *c)
{
    c->experts.bias = true;
    c->experts.router.score = CN_ROUTE_SIGMOID;
    c->experts.router.normalized = true;
    c->experts.router.group_best = 2;
    CN_TRY(read_router(a, "n_routed_experts", c));
    CN_TRY(refuse_other_text(a, "scoring_func", "sigmoid"));
    CN_TRY(refuse_other_text(a, "topk_method", "noaux_tc"));
    CN_TRY(read_groups(a, c));
    return read_shared(a, 1, first, c);
}

cn_status cn_read_deepseek3_experts(const cn_json_at *a, cn_model_config *c)
{
    c->experts.router = (cn_router){
        .n_experts = 256, .n_used = 8, .scale = 2.5F, .n_groups = 8, .n_used_groups = 4};
    c->experts.intermediate = 2048;
    CN_TRY(read_noaux(a, 3, c));
    drop_unused_experts(c);
    return CN_OK;
}

/* mlp_layer_types says which layers have experts, or else first_k_dense_replace. */
static cn_status read_layer_types(const cn_json_at *a, cn_model_config *c)
{
    json_t *types = NULL, *type;
    size_t layer;
    char shown[96];
    CN_TRY(cn_json_arr(a, "mlp_layer_types", CN_JSON_OPTIONAL, &types));
    if (types && json_array_size(types) != c->n_layers)
        return cn_fail(a->error, "%s: mlp_layer_types: expected %u values, got %zu", a->where,
                       c->n_layers, json_array_size(types));
    json_array_foreach(types, layer, type)
    {
        const char *name = json_is_string(type) ? json_string_value(type) : "";
        const bool sparse = strcmp(name, "sparse") == 0;
        if (!sparse && strcmp(name, "dense") != 0)
            return cn_fail(a->error,
                           "%s: mlp_layer_types[%zu]: expected \"dense\" or \"sparse\", got %s",
                           a->where, layer, cn_json_describe(type, shown, sizeof shown));
        set_layer(&c->experts, (uint32_t)layer, sparse);
    }
    return CN_OK;
}

cn_status cn_read_glm4_lite_experts(const cn_json_at *a, cn_model_config *c)
{
    c->experts.router = (cn_router){
        .n_experts = 64, .n_used = 4, .scale = 1.8F, .n_groups = 1, .n_used_groups = 1};
    c->experts.intermediate = 1536;
    CN_TRY(read_noaux(a, 1, c));
    CN_TRY(read_layer_types(a, c));
    drop_unused_experts(c);
    return CN_OK;
}
