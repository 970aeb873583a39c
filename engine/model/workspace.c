/* workspace.c - see workspace.h. */
#include "engine/model/workspace.h"

enum { ALIGN_BYTES = 256 };

/* Reserves elems * elem_bytes at *offset and advances *offset. */
static size_t take(size_t *offset, size_t elems, size_t elem_bytes)
{
    size_t at = *offset;
    *offset = cn_round_up(at + elems * elem_bytes, ALIGN_BYTES);
    return at;
}

/* Adds what a layer with experts needs. */
static void lay_out_experts(cn_workspace *ws, const cn_model_config *c, const cn_backend *be,
                            size_t max_tokens, size_t *at)
{
    const cn_experts *x = &c->experts;
    const size_t n_pairs = max_tokens * x->router.n_used, e = cn_dtype_bytes(be->act_dtype);
    const size_t columns = c->quant.fp8 ? cn_round_up(c->hidden, CN_FP8_COLUMNS) : c->hidden;
    if (x->router.n_experts == 0) return;
    ws->router = take(at, max_tokens * x->router.n_experts, sizeof(float));
    ws->starts = take(at, x->router.n_experts + 1, sizeof(uint32_t));
    ws->pair_tokens = take(at, n_pairs, sizeof(uint32_t));
    ws->pairs = take(at, n_pairs, sizeof(uint32_t));
    ws->weights = take(at, n_pairs, sizeof(float));
    ws->pair_in = take(at, n_pairs * columns, e);
    ws->pair_gate_up = take(at, be->gates_apart ? n_pairs * 2 * x->intermediate : 0, e);
    ws->pair_act = take(at, n_pairs * x->intermediate, e);
}

static void lay_out_heads(cn_workspace *ws, const cn_model_config *c, size_t max_tokens, size_t e,
                          size_t *at)
{
    const size_t d = c->head_dim, heads = c->n_heads * d, kv_heads = c->n_kv_heads * d;
    ws->qkv = take(at, max_tokens * (heads + 2 * kv_heads), e);
    ws->q = take(at, max_tokens * heads, e);
    ws->attn = take(at, max_tokens * heads, e);
}

static void lay_out_latent(cn_workspace *ws, const cn_model_config *c, size_t max_tokens, size_t e,
                           size_t *at)
{
    const cn_latent *l = &c->latent;
    const size_t n_rows = max_tokens * c->n_heads;
    ws->q_rank = take(at, max_tokens * l->q_rank, e);
    ws->q_normed = take(at, max_tokens * l->q_rank, e);
    ws->raw_q = take(at, n_rows * (l->nope + l->rope), e);
    ws->row = take(at, max_tokens * c->head_dim, e);
    ws->q = take(at, n_rows * c->head_dim, e);
    ws->attn = take(at, n_rows * l->rank, e);
    ws->values = take(at, n_rows * l->value, e);
}

/* The most elements that a product rounds for one token; 0: none does. */
static size_t rounded_columns(const cn_model_config *c)
{
    if (!c->quant.fp8 || c->quant.x == CN_X_PLAIN) return 0;
    const uint32_t inputs = cn_max_u32(cn_max_u32(c->hidden, c->latent.q_rank), cn_attn_width(c));
    const size_t dense = cn_round_up(cn_max_u32(inputs, cn_model_config_widest_mlp(c)),
                                     CN_FP8_COLUMNS);
    const size_t pairs = c->experts.router.n_used *
                         cn_round_up(c->experts.intermediate, CN_FP8_COLUMNS);
    return pairs > dense ? pairs : dense;
}

cn_workspace cn_workspace_lay_out(const cn_model_config *c, const cn_backend *be,
                                  size_t max_tokens, size_t max_rows, size_t max_position)
{
    cn_workspace ws = {0};
    size_t e = cn_dtype_bytes(be->act_dtype), at = 0;
    if (c->quant.fp8) max_tokens = cn_round_up(max_tokens, CN_FP8_ROWS);
    ws.residual = take(&at, max_tokens * c->hidden, e);
    ws.normed = take(&at, max_tokens * c->hidden, e);
    ws.branch = ws.mlp_branch = take(&at, max_tokens * c->hidden, e);
    if (c->n_ranks > 0) ws.mlp_branch = take(&at, max_tokens * c->hidden, e);
    ws.squares = take(&at, max_tokens * c->hidden / CN_NORM_COLUMNS, sizeof(float));
    ws.rounded = take(&at, max_tokens * rounded_columns(c), e);
    size_t attention = at, mlp = at;
    if (c->latent.rank > 0) lay_out_latent(&ws, c, max_tokens, e, &attention);
    else lay_out_heads(&ws, c, max_tokens, e, &attention);
    const size_t widest = cn_model_config_widest_mlp(c);
    ws.gate_up = take(&mlp, max_tokens * 2 * widest, e);
    ws.act = take(&mlp, max_tokens * widest, e);
    lay_out_experts(&ws, c, be, max_tokens, &mlp);
    at = attention > mlp ? attention : mlp;
    ws.picked = take(&at, max_rows * c->hidden, e);
    ws.logits = take(&at, c->rank == 0 ? max_rows * c->vocab : 0, sizeof(float));
    ws.cos = take(&at, max_position * (cn_rope_dim(c) / 2), sizeof(float));
    ws.sin = take(&at, max_position * (cn_rope_dim(c) / 2), sizeof(float));
    ws.bytes = at;
    return ws;
}
