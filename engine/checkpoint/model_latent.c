/* model_latent.c - see model_latent.h. */
#include "engine/checkpoint/model_latent.h"

#include "engine/checkpoint/model_experts.h"

enum { STEP = 16, MAX_RANK = 512, MAX_ROPE = 64, MAX_HEAD = 512 };

/* A size in steps: the ops use vectors. */
static cn_status read_size(const cn_json_at *a, const char *key, uint32_t step, uint32_t most,
                           uint32_t *out)
{
    CN_TRY(cn_json_u32(a, key, CN_JSON_OPTIONAL, 1, CN_MAX_WIDTH, out));
    if (*out % step == 0 && *out <= most) return CN_OK;
    return cn_fail(a->error, "%s: %s %u is not supported; supported are multiples of %u to %u",
                   a->where, key, *out, step, most);
}

/* Sparse attention by an indexer (DeepSeek V3.2, GLM-5), and more than one residual (V4). */
static cn_status refuse_other_attention(const cn_json_at *a)
{
    static const char *const keys[] = {"index_topk", "index_n_heads", "index_head_dim",
                                       "hc_mult"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (cn_json_find(a, keys[i]))
            return cn_fail(a->error, "%s: %s is not supported: %s", a->where, keys[i],
                           i < 3 ? "attention with an indexer is not"
                                 : "hyper-connections are not");
    bool bias = false;
    CN_TRY(cn_json_bool(a, "attention_bias", CN_JSON_OPTIONAL, &bias));
    if (!bias) return CN_OK;
    return cn_fail(a->error, "%s: attention_bias true is not supported with latent attention",
                   a->where);
}

cn_status cn_read_latent(const cn_json_at *a, const cn_latent *defaults, cn_model_config *c)
{
    cn_latent *l = &c->latent;
    *l = *defaults;
    CN_TRY(refuse_other_attention(a));
    CN_TRY(cn_refuse_other_number(a, "num_key_value_heads", c->n_heads));
    CN_TRY(cn_json_u32(a, "q_lora_rank", CN_JSON_OPTIONAL, 1, CN_MAX_WIDTH, &l->q_rank));
    if (json_is_null(json_object_get(a->object, "q_lora_rank"))) l->q_rank = 0;
    CN_TRY(read_size(a, "kv_lora_rank", STEP, MAX_RANK, &l->rank));
    CN_TRY(read_size(a, "qk_rope_head_dim", STEP, MAX_ROPE, &l->rope));
    CN_TRY(read_size(a, "qk_nope_head_dim", STEP / 2, MAX_HEAD, &l->nope));
    CN_TRY(read_size(a, "v_head_dim", STEP / 2, MAX_HEAD, &l->value));
    if (l->has_switch)
        CN_TRY(cn_json_bool(a, "rope_interleave", CN_JSON_OPTIONAL, &l->interleaved));
    c->n_kv_heads = 1;
    c->head_dim = l->rank + l->rope;
    return CN_OK;
}
