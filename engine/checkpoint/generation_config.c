/* generation_config.c - generation_config.json. See generation_config.h. */
#include "engine/checkpoint/generation_config.h"

#include "engine/base/json.h"

enum { CONFIG_MAX_BYTES = 1 << 20, CONFIG_MAX_DEPTH = 16, MAX_NEW_TOKENS = 1 << 30 };

static cn_status read_generation_f32(const cn_json_at *a, const char *key, double min, double max,
                                     bool *has, float *out)
{
    double x = 0;
    *has = cn_json_find(a, key) != NULL;
    CN_TRY(cn_json_f64(a, key, CN_JSON_OPTIONAL, min, max, &x));
    *out = (float)x;
    return CN_OK;
}

static cn_status read_generation_config(const cn_json_at *a, void *out)
{
    cn_generation_config *g = out;
    bool sample = true;
    int64_t top_k = 0;
    CN_TRY(read_generation_f32(a, "temperature", 0, 100, &g->has_temperature, &g->temperature));
    CN_TRY(read_generation_f32(a, "top_p", 1e-9, 1, &g->has_top_p, &g->top_p));
    CN_TRY(read_generation_f32(a, "min_p", 0, 1, &g->has_min_p, &g->min_p));
    CN_TRY(read_generation_f32(a, "repetition_penalty", 1e-3, 1e3, &g->has_repetition_penalty,
                               &g->repetition_penalty));
    g->has_top_k = cn_json_find(a, "top_k") != NULL;
    CN_TRY(cn_json_i64(a, "top_k", CN_JSON_OPTIONAL, -1, INT32_MAX, &top_k));
    g->top_k = (int32_t)top_k;
    CN_TRY(
        cn_json_u32(a, "max_new_tokens", CN_JSON_OPTIONAL, 1, MAX_NEW_TOKENS, &g->max_new_tokens));
    CN_TRY(cn_json_bool(a, "do_sample", CN_JSON_OPTIONAL, &sample));
    g->greedy = !sample;
    return cn_json_token_ids(a, "eos_token_id", UINT32_MAX, CN_MAX_EOS, g->eos, &g->n_eos);
}

cn_status cn_generation_config_parse(cn_generation_config *out, const char *text, size_t n,
                                     const char *what)
{
    memset(out, 0, sizeof *out);
    return cn_json_read_object(text, n, what, CONFIG_MAX_BYTES, CONFIG_MAX_DEPTH, CN_ERR_MODEL,
                               read_generation_config, out);
}

cn_status cn_generation_config_load(cn_generation_config *out, const char *model_dir)
{
    memset(out, 0, sizeof *out);
    return cn_json_read_optional_file(model_dir, "generation_config.json", CONFIG_MAX_BYTES,
                                      CONFIG_MAX_DEPTH, read_generation_config, out);
}

void cn_generation_config_apply(const cn_generation_config *g, cn_sampling *s)
{
    if (g->has_temperature) s->temperature = g->temperature;
    if (g->has_top_p) s->top_p = g->top_p;
    if (g->has_top_k) s->top_k = g->top_k;
    if (g->has_min_p) s->min_p = g->min_p;
    if (g->has_repetition_penalty) s->repetition_penalty = g->repetition_penalty;
    if (g->greedy) s->temperature = 0;
}

static bool contains_generation(const uint32_t *list, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

cn_status cn_generation_config_eos(const cn_generation_config *g, const cn_model_config *c,
                                   uint32_t *out, uint32_t *n_out)
{
    *n_out = 0;
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (!contains_generation(out, *n_out, c->eos[i])) out[(*n_out)++] = c->eos[i];
    for (uint32_t i = 0; i < g->n_eos; i++) {
        if (g->eos[i] >= c->vocab)
            return cn_fail(CN_ERR_MODEL,
                           "generation_config.json: eos_token_id %u is outside the vocabulary of "
                           "%u tokens",
                           g->eos[i], c->vocab);
        if (!contains_generation(out, *n_out, g->eos[i])) out[(*n_out)++] = g->eos[i];
    }
    return CN_OK;
}
