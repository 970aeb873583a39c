/* model.c - see model.h.
 *
 * Workspace, with T = max_tokens and R = max_rows: three [T, h] arrays; one region that attention
 * (qkv, q, attn) and the MLP (gate_up, act, and what the experts of a layer need) share, because
 * they run one after the other; picked [R, h]; logits; rope tables. With experts, P = T * the
 * experts of a token is the number of pairs (cn_route_args). */
#include "engine/model/model.h"

#include <math.h>

#include "engine/model/rope.h"
#include "engine/select/select_step.h"
#include "engine/start/device_choice.h"

enum { ALIGN_BYTES = 256 };

/* Byte offsets into the model's memory. */
typedef struct workspace {
    size_t residual; /* [T, h] the running sum of all branches */
    size_t normed;   /* [T, h] */
    size_t branch;   /* [T, h] output of attention or the MLP, added by the next norm */
    size_t squares;  /* [T, h / CN_NORM_COLUMNS] f32, of a cn_norm_link */
    size_t qkv;      /* [T, (hq+2hk)*d] */
    size_t q, attn;  /* [T, hq*d] */
    size_t gate_up;  /* [T, 2I], shares its start with qkv */
    size_t act;      /* [T, I] */
    size_t router;   /* [T, E] f32, logits */
    size_t starts, pair_tokens, pairs, weights; /* the outputs of route */
    size_t rounded;  /* [T, most columns of an FP8 matrix], if products round their input */
    size_t pair_in;  /* [P, h] gathered for the experts, then their outputs */
    size_t pair_gate_up, pair_act; /* [P, 2I], [P, I] with the I of an expert */
    size_t picked;   /* [R, h] */
    size_t logits;   /* [R, V] f32 */
    size_t cos, sin; /* [max_position, d/2] f32 */
    size_t bytes;
} workspace;

struct cn_model {
    cn_backend *be;
    cn_model_config cfg;
    const cn_weights *weights;
    void *memory;
    workspace ws;
    uint32_t max_tokens, max_rows, max_position;
    uint32_t n_covered; /* positions in the rope tables */
    const cn_select_scratch *select;
    const cn_draft *draft; /* NULL: there is none */
    uint32_t dense_layers;
    cn_dump *dump;
    cn_select_probe *probe;
    bool is_normed; /* the final norm of the last pass has run */
    uint64_t n_passes;
};

/* ---- workspace ---- */

/* Reserves elems * elem_bytes at *offset and advances *offset. */
static size_t take(size_t *offset, size_t elems, size_t elem_bytes)
{
    size_t at = *offset;
    *offset = cn_round_up(at + elems * elem_bytes, ALIGN_BYTES);
    return at;
}

/* Adds what a layer with experts needs. */
static void lay_out_experts(workspace *ws, const cn_experts *x, size_t hidden, size_t max_tokens,
                            size_t e, size_t *at)
{
    const size_t n_pairs = max_tokens * x->router.n_used;
    if (x->router.n_experts == 0) return;
    ws->router = take(at, max_tokens * x->router.n_experts, sizeof(float));
    ws->starts = take(at, x->router.n_experts + 1, sizeof(uint32_t));
    ws->pair_tokens = take(at, n_pairs, sizeof(uint32_t));
    ws->pairs = take(at, n_pairs, sizeof(uint32_t));
    ws->weights = take(at, n_pairs, sizeof(float));
    ws->pair_in = take(at, n_pairs * hidden, e);
    ws->pair_gate_up = take(at, n_pairs * 2 * x->intermediate, e);
    ws->pair_act = take(at, n_pairs * x->intermediate, e);
}

/* The most columns of a matrix whose product rounds its input; 0: there is none. */
static size_t rounded_columns(const cn_model_config *c)
{
    if (!c->quant.fp8 || c->quant.x == CN_X_PLAIN) return 0;
    const uint32_t inputs = cn_max_u32(c->hidden, c->n_heads * c->head_dim);
    return cn_max_u32(inputs, cn_model_config_widest_mlp(c));
}

static workspace lay_out(const cn_model_config *c, cn_dtype act_dtype, size_t max_tokens,
                         size_t max_rows, size_t max_position)
{
    workspace ws = {0};
    size_t e = cn_dtype_bytes(act_dtype), d = c->head_dim, at = 0;
    size_t heads = c->n_heads * d, kv_heads = c->n_kv_heads * d;
    ws.residual = take(&at, max_tokens * c->hidden, e);
    ws.normed = take(&at, max_tokens * c->hidden, e);
    ws.branch = take(&at, max_tokens * c->hidden, e);
    ws.squares = take(&at, max_tokens * c->hidden / CN_NORM_COLUMNS, sizeof(float));
    ws.rounded = take(&at, max_tokens * rounded_columns(c), e);
    size_t attention = at, mlp = at;
    ws.qkv = take(&attention, max_tokens * (heads + 2 * kv_heads), e);
    ws.q = take(&attention, max_tokens * heads, e);
    ws.attn = take(&attention, max_tokens * heads, e);
    const size_t widest = cn_model_config_widest_mlp(c);
    ws.gate_up = take(&mlp, max_tokens * 2 * widest, e);
    ws.act = take(&mlp, max_tokens * widest, e);
    lay_out_experts(&ws, &c->experts, c->hidden, max_tokens, e, &mlp);
    at = attention > mlp ? attention : mlp;
    ws.picked = take(&at, max_rows * c->hidden, e);
    ws.logits = take(&at, max_rows * c->vocab, sizeof(float));
    ws.cos = take(&at, max_position * (d / 2), sizeof(float));
    ws.sin = take(&at, max_position * (d / 2), sizeof(float));
    ws.bytes = at;
    return ws;
}

size_t cn_model_workspace_bytes(const cn_model_config *cfg, const cn_backend *be,
                                uint32_t max_tokens, uint32_t max_rows, uint32_t max_position)
{
    return lay_out(cfg, be->act_dtype, max_tokens, max_rows, max_position).bytes;
}

void cn_model_declare(cn_start_plan *p, void **slot)
{
    const cn_config *c = p->config;
    const uint64_t bytes =
        cn_model_workspace_bytes(p->model, p->backend, cn_start_max_tokens(c),
                                 cn_start_max_rows(c), cn_start_max_model_len(c, p->model));
    cn_start_add(p, "workspace", CN_PART_WORKSPACE, bytes, slot);
}

static void *at(const cn_model *m, size_t offset) { return (char *)m->memory + offset; }

static const void *weight(const cn_model *m, cn_weight_id id, uint32_t layer)
{
    return cn_weights_at(m->weights, id, layer);
}

/* The workspace in which a product with w rounds its input; NULL: it does not. */
static void *rounded(const cn_model *m, const cn_matrix *w)
{
    return w->x == CN_X_PLAIN ? NULL : at(m, m->ws.rounded);
}

/* ---- life ---- */

cn_status cn_model_cover(cn_model *m, cn_stream *s, uint32_t n_positions)
{
    enum { STEP_POSITIONS = 16384 };
    CN_ASSERT(n_positions <= m->max_position);
    if (n_positions <= m->n_covered) return CN_OK;
    const uint32_t first = m->n_covered, half = m->cfg.head_dim / 2;
    const uint64_t end = cn_round_up(n_positions, STEP_POSITIONS);
    const uint32_t n = (uint32_t)(end < m->max_position ? end : m->max_position) - first;
    const size_t n_values = (size_t)n * half, offset = (size_t)first * half * sizeof(float);
    float *tables = cn_calloc(2 * n_values, sizeof *tables);
    if (!tables) return cn_fail(CN_ERR_MEMORY, "rope: out of memory for %u positions", n);
    cn_rope_table(&m->cfg, first, n, tables, tables + n_values);
    const size_t bytes = n_values * sizeof *tables;
    cn_status status = m->be->mem_write(s, at(m, m->ws.cos + offset), tables, bytes);
    if (status == CN_OK)
        status = m->be->mem_write(s, at(m, m->ws.sin + offset), tables + n_values, bytes);
    if (status == CN_OK) status = m->be->stream_sync(s);
    if (status == CN_OK && m->draft) status = cn_draft_cover(m->draft, s, first, n);
    if (status == CN_OK) m->n_covered = first + n;
    cn_free(tables);
    return status;
}

cn_status cn_model_create(cn_model **out, const cn_model_opts *o)
{
    *out = NULL;
    CN_TRY(cn_backend_check_ops(o->backend, 0, 0, 0));
    CN_TRY(cn_backend_check_model(o->backend, o->config));
    cn_model *m = cn_calloc(1, sizeof *m);
    if (!m) return cn_fail(CN_ERR_MEMORY, "model: out of memory");
    *m = (cn_model){.be = o->backend,
                    .cfg = *o->config,
                    .weights = o->weights,
                    .memory = o->memory,
                    .ws = lay_out(o->config, o->backend->act_dtype, o->max_tokens, o->max_rows,
                                  o->max_position),
                    .max_tokens = o->max_tokens,
                    .max_rows = o->max_rows,
                    .max_position = o->max_position,
                    .select = o->select,
                    .draft = o->draft && o->draft->be ? o->draft : NULL,
                    .dense_layers = o->dense_layers};
    const uint32_t n_eager = o->eager_positions ? o->eager_positions : o->max_position;
    const cn_status status = cn_model_cover(m, o->stream, cn_min_u32(n_eager, o->max_position));
    if (status != CN_OK) {
        cn_model_free(m);
        return status;
    }
    *out = m;
    return CN_OK;
}

void cn_model_free(cn_model *m) { cn_free(m); }

void cn_model_set_dump(cn_model *m, cn_dump *d) { m->dump = d; }
void cn_model_set_probe(cn_model *m, cn_select_probe *p) { m->probe = p; }

void cn_model_rope(const cn_model *m, const float **cos, const float **sin)
{
    *cos = at(m, m->ws.cos);
    *sin = at(m, m->ws.sin);
}

/* ---- the forward pass ---- */

/* The arguments of one pass, for all its steps. */
typedef struct pass {
    cn_model *m;
    cn_stream *s;
    const cn_batch_view *batch;
    const cn_pools *pools;
    const cn_select_view *select; /* NULL: every row attends to all tokens */
    const cn_plane_view *plane;   /* NULL: no row reads the plane */
    const cn_batch_view *drafts;  /* where a retrieval head keeps its keys */
    /* The norms of the MLP, and those of attention but the first, are part of the products around
     * them (cn_norm_link). */
    bool links_mlp, links_attention;
} pass;

static cn_status dump(const pass *p, cn_dump_name name, int32_t layer, size_t offset, uint32_t rows,
                      uint32_t cols)
{
    const cn_model *m = p->m;
    if (!m->dump) return CN_OK;
    cn_dtype dtype = name == CN_DUMP_LOGITS ? CN_F32 : m->be->act_dtype;
    return cn_dump_tensor(m->dump, p->s, name, layer, at(m, offset), dtype, rows, cols);
}

static cn_status embed(const pass *p)
{
    const cn_model *m = p->m;
    cn_embed_args a = {.out = at(m, m->ws.residual),
                       .table = weight(m, CN_W_EMBED, 0),
                       .tokens = p->batch->tokens,
                       .sampled_row = p->batch->sampled_row,
                       .sampled = p->batch->sampled,
                       .n_tokens = p->batch->n_tokens,
                       .hidden = m->cfg.hidden,
                       .vocab = m->cfg.vocab};
    CN_TRY(m->be->embed(p->s, &a));
    return dump(p, CN_DUMP_EMBED, CN_DUMP_NO_LAYER, m->ws.residual, a.n_tokens, a.hidden);
}

/* If `add`, residual += branch. Then normed = norm of residual. */
static cn_status norm(const pass *p, bool add, cn_weight_id id, uint32_t layer, cn_dump_name name)
{
    const cn_model *m = p->m;
    cn_rmsnorm_args a = {.out = at(m, m->ws.normed),
                         .residual = at(m, m->ws.residual),
                         .x = add ? at(m, m->ws.branch) : NULL,
                         .weight = weight(m, id, layer),
                         .n_tokens = p->batch->n_tokens,
                         .hidden = m->cfg.hidden,
                         .eps = m->cfg.rms_eps};
    CN_TRY(m->be->rmsnorm(p->s, &a));
    int32_t where = id == CN_W_FINAL_NORM ? CN_DUMP_NO_LAYER : (int32_t)layer;
    return dump(p, name, where, m->ws.normed, a.n_tokens, a.hidden);
}

/* The norm `id` of a layer, for the products around it. */
static cn_norm_link link_of(const pass *p, cn_weight_id id, uint32_t layer)
{
    const cn_model *m = p->m;
    return (cn_norm_link){.residual = at(m, m->ws.residual),
                          .scaled = at(m, m->ws.normed),
                          .weight = weight(m, id, layer),
                          .squares = at(m, m->ws.squares),
                          .eps = m->cfg.rms_eps};
}

/* out[T, n] = x[T, k] * W^T + bias, in a layer. */
typedef struct product {
    size_t out, x; /* of the workspace */
    cn_weight_id id;
    cn_product_shape shape;
    const void *bias;
    cn_dump_name name;
    const cn_norm_link *adds, *norms; /* NULL: none */
} product;

static cn_status linear(const pass *p, uint32_t layer, const product *l)
{
    const cn_model *m = p->m;
    const cn_matrix w = cn_weights_matrix(m->weights, l->id, layer);
    const cn_gemm_args a = {.out = at(m, l->out),
                            .x = at(m, l->x),
                            .weight = w,
                            .rounded = rounded(m, &w),
                            .bias = l->bias,
                            .n_tokens = p->batch->n_tokens,
                            .n = l->shape.n,
                            .k = l->shape.k,
                            .adds = l->adds,
                            .norms = l->norms};
    CN_TRY(m->be->gemm(p->s, &a));
    return dump(p, l->name, (int32_t)layer, l->out, a.n_tokens, a.n);
}

/* The products of a layer, without links. */
static product qkv_of(const cn_model *m, uint32_t layer)
{
    const cn_model_config *c = &m->cfg;
    const void *bias = weight(m, CN_W_QKV_BIAS, layer);
    const uint32_t n = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    return (product){.out = m->ws.qkv,
                     .x = m->ws.normed,
                     .id = CN_W_QKV,
                     .shape = {.n = n, .k = c->hidden, .has_bias = bias != NULL},
                     .bias = bias,
                     .name = CN_DUMP_QKV};
}

static product o_of(const cn_model *m, uint32_t layer)
{
    const cn_model_config *c = &m->cfg;
    const void *bias = weight(m, CN_W_O_BIAS, layer);
    const uint32_t k = c->n_heads * c->head_dim;
    return (product){.out = m->ws.branch,
                     .x = m->ws.attn,
                     .id = CN_W_O,
                     .shape = {.n = c->hidden, .k = k, .has_bias = bias != NULL},
                     .bias = bias,
                     .name = CN_DUMP_O};
}

static product gate_up_of(const cn_model *m, uint32_t layer)
{
    const uint32_t width = cn_model_config_layer(&m->cfg, layer).dense;
    return (product){.out = m->ws.gate_up,
                     .x = m->ws.normed,
                     .id = CN_W_GATE_UP,
                     .shape = {.n = 2 * width, .k = m->cfg.hidden},
                     .name = CN_DUMP_GATE_UP};
}

static product down_of(const cn_model *m, uint32_t layer)
{
    const uint32_t width = cn_model_config_layer(&m->cfg, layer).dense;
    return (product){.out = m->ws.branch,
                     .x = m->ws.act,
                     .id = CN_W_DOWN,
                     .shape = {.n = m->cfg.hidden, .k = width},
                     .name = CN_DUMP_DOWN};
}

/* Sets which norms are part of the products around them. A dump needs their outputs, and the
 * products of experts and of FP8 weights compute none. */
static void plan_links(pass *p)
{
    const cn_model *m = p->m;
    cn_backend *be = m->be;
    if (!be->links_norm || m->dump || m->cfg.experts.router.n_experts > 0 || m->cfg.quant.fp8)
        return;
    const uint32_t n = p->batch->n_tokens;
    const product qkv = qkv_of(m, 0), o = o_of(m, 0), down = down_of(m, 0);
    product gate_up = gate_up_of(m, 0);
    gate_up.shape.gated = be->gemm_silu_mul != NULL;
    p->links_mlp = be->links_norm(be, n, &o.shape, &gate_up.shape);
    p->links_attention = be->links_norm(be, n, &down.shape, &qkv.shape);
}

/* Returns true when some row keeps K and V of the layer in the plane. */
static bool reads_plane(const pass *p, uint32_t layer)
{
    return p->plane && layer < p->m->dense_layers;
}

/* Attention of the decode rows in a dense layer: rows with a plane read it, others the pool. */
static cn_status attend_dense(const pass *p, const cn_attn_args *attn)
{
    const cn_model *m = p->m;
    cn_attn_args a = *attn;
    if (reads_plane(p, a.layer)) {
        const cn_plane_view *plane = p->plane;
        cn_batch_view batch = *p->batch;
        batch.tables = plane->tables;
        batch.table_stride = plane->table_stride;
        batch.max_kv = plane->max_kv;
        batch.kv_len = a.lengths = plane->lengths;
        a.batch = &batch;
        a.layout = plane->layout;
        a.kv = plane->kv;
        CN_TRY(m->be->attn_decode(p->s, &a));
        a = *attn;
        a.lengths = plane->pool_lengths;
    }
    return m->be->attn_decode(p->s, &a);
}

static cn_status rope_store(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    cn_rope_store_args a = {.q = at(m, m->ws.q),
                            .qkv = at(m, m->ws.qkv),
                            .q_norm = weight(m, CN_W_Q_NORM, layer),
                            .k_norm = weight(m, CN_W_K_NORM, layer),
                            .eps = m->cfg.rms_eps,
                            .cos = at(m, m->ws.cos),
                            .sin = at(m, m->ws.sin),
                            .batch = p->batch,
                            .n_heads = m->cfg.n_heads,
                            .layer = layer,
                            .layout = p->pools->layout,
                            .kv = p->pools->kv,
                            .q_window = p->pools->q_window,
                            .n_query_slots = p->pools->n_query_slots,
                            .window = p->pools->window};
    CN_TRY(m->be->rope_store(p->s, &a));
    if (reads_plane(p, layer)) {
        cn_batch_view batch = *p->batch;
        batch.kv_slots = p->plane->slots;
        a.batch = &batch;
        a.layout = p->plane->layout;
        a.kv = p->plane->kv;
        a.q_window = NULL;
        CN_TRY(m->be->rope_store(p->s, &a));
    }
    return dump(p, CN_DUMP_Q, (int32_t)layer, m->ws.q, p->batch->n_tokens,
                m->cfg.n_heads * m->cfg.head_dim);
}

static cn_select_step select_step(const pass *p)
{
    const cn_model *m = p->m;
    return (cn_select_step){.be = m->be,
                            .stream = p->s,
                            .batch = p->batch,
                            .pools = p->pools,
                            .view = p->select,
                            .scratch = m->select,
                            .first_layer = m->dense_layers,
                            .cos = at(m, m->ws.cos),
                            .sin = at(m, m->ws.sin),
                            .probe = m->probe};
}

static cn_status attend(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    cn_attn_args a = {.out = at(m, m->ws.attn),
                      .q = at(m, m->ws.q),
                      .kv = p->pools->kv,
                      .batch = p->batch,
                      .layout = p->pools->layout,
                      .n_heads = m->cfg.n_heads,
                      .layer = layer,
                      .scale = 1.0f / sqrtf((float)m->cfg.head_dim)};
    if (p->select && layer >= m->dense_layers) {
        const cn_select_step step = select_step(p);
        CN_TRY(cn_select_attend(&step, &a));
    } else if (p->batch->n_decode > 0) {
        CN_TRY(attend_dense(p, &a));
    }
    if (p->batch->n_seqs > p->batch->n_decode) CN_TRY(m->be->attn_prefill(p->s, &a));
    return dump(p, CN_DUMP_ATTN, (int32_t)layer, m->ws.attn, p->batch->n_tokens,
                m->cfg.n_heads * m->cfg.head_dim);
}

/* Attention of the normed residual, into branch or, with links_mlp, added to the residual. */
static cn_status attention_branch(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    const cn_norm_link before = link_of(p, CN_W_ATTN_NORM, layer);
    const cn_norm_link behind = link_of(p, CN_W_MLP_NORM, layer);
    product qkv = qkv_of(m, layer), o = o_of(m, layer);
    if (p->links_attention && layer > 0) qkv.norms = &before;
    else CN_TRY(norm(p, layer > 0, CN_W_ATTN_NORM, layer, CN_DUMP_ATTN_NORM));
    if (m->draft)
        CN_TRY(cn_draft_enter_layer(m->draft, p->s, p->drafts, p->pools, at(m, m->ws.residual),
                                    layer));
    if (p->links_mlp) o.adds = &behind;
    CN_TRY(linear(p, layer, &qkv));
    CN_TRY(rope_store(p, layer));
    CN_TRY(attend(p, layer));
    return linear(p, layer, &o);
}

/* The gated half of the MLP: one op, or two if the backend lacks it or a dump needs gate_up. norms:
 * as in cn_gemm_args. */
static cn_status gate(const pass *p, uint32_t layer, const cn_norm_link *norms)
{
    const cn_model *m = p->m;
    product gate_up = gate_up_of(m, layer);
    const uint32_t width = gate_up.shape.n / 2;
    gate_up.norms = norms;
    if (m->be->gemm_silu_mul && !m->dump) {
        const cn_matrix w = cn_weights_matrix(m->weights, CN_W_GATE_UP, layer);
        const cn_gemm_silu_mul_args a = {.out = at(m, m->ws.act),
                                         .x = at(m, gate_up.x),
                                         .weight = w,
                                         .rounded = rounded(m, &w),
                                         .gate_up = at(m, gate_up.out),
                                         .n_tokens = p->batch->n_tokens,
                                         .intermediate = width,
                                         .k = gate_up.shape.k,
                                         .norms = gate_up.norms};
        return m->be->gemm_silu_mul(p->s, &a);
    }
    CN_TRY(linear(p, layer, &gate_up));
    cn_silu_mul_args a = {.out = at(m, m->ws.act),
                          .gate_up = at(m, m->ws.gate_up),
                          .n_tokens = p->batch->n_tokens,
                          .intermediate = width};
    CN_TRY(m->be->silu_mul(p->s, &a));
    return dump(p, CN_DUMP_SILU_MUL, (int32_t)layer, m->ws.act, a.n_tokens, a.intermediate);
}

/* SwiGLU MLP of the normed residual, into branch or, with links_attention, added to the residual.
 * The last layer has no link behind it: rows are gathered between the final norm and the head. */
static cn_status dense_branch(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    const bool is_last = layer + 1 == m->cfg.n_layers;
    const cn_norm_link before = link_of(p, CN_W_MLP_NORM, layer);
    const cn_norm_link behind = link_of(p, CN_W_ATTN_NORM, is_last ? layer : layer + 1);
    product down = down_of(m, layer);
    if (!p->links_mlp) CN_TRY(norm(p, true, CN_W_MLP_NORM, layer, CN_DUMP_MLP_NORM));
    CN_TRY(gate(p, layer, p->links_mlp ? &before : NULL));
    if (p->links_attention && !is_last) down.adds = &behind;
    return linear(p, layer, &down);
}

/* Which experts the tokens take. */
static cn_status route(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    const cn_router *r = &m->cfg.experts.router;
    const cn_gemm_args logits = {.out = at(m, m->ws.router),
                                 .x = at(m, m->ws.normed),
                                 .weight = cn_weights_matrix(m->weights, CN_W_ROUTER, layer),
                                 .n_tokens = p->batch->n_tokens,
                                 .n = r->n_experts,
                                 .k = m->cfg.hidden,
                                 .out_f32 = true};
    CN_TRY(m->be->gemm(p->s, &logits));
    const cn_route_args a = {.starts = at(m, m->ws.starts),
                             .pair_tokens = at(m, m->ws.pair_tokens),
                             .pairs = at(m, m->ws.pairs),
                             .weights = at(m, m->ws.weights),
                             .logits = at(m, m->ws.router),
                             .bias = weight(m, CN_W_ROUTER_BIAS, layer),
                             .router = *r,
                             .n_tokens = p->batch->n_tokens};
    return m->be->route(p->s, &a);
}

/* The experts of the normed residual, into branch; added to it if `adds`. */
static cn_status run_experts(const pass *p, uint32_t layer, bool adds)
{
    const cn_model *m = p->m;
    const cn_experts *x = &m->cfg.experts;
    const uint32_t n_tokens = p->batch->n_tokens, hidden = m->cfg.hidden;
    const cn_expert_gate_up_args gate_up = {.out = at(m, m->ws.pair_act),
                                            .x = at(m, m->ws.normed),
                                            .weight = weight(m, CN_W_EXPERT_GATE_UP, layer),
                                            .starts = at(m, m->ws.starts),
                                            .pair_tokens = at(m, m->ws.pair_tokens),
                                            .gathered = at(m, m->ws.pair_in),
                                            .gate_up = at(m, m->ws.pair_gate_up),
                                            .n_tokens = n_tokens,
                                            .n_experts = x->router.n_experts,
                                            .n_used = x->router.n_used,
                                            .intermediate = x->intermediate,
                                            .k = hidden};
    const cn_expert_down_args down = {.out = at(m, m->ws.pair_in),
                                      .x = at(m, m->ws.pair_act),
                                      .weight = weight(m, CN_W_EXPERT_DOWN, layer),
                                      .starts = at(m, m->ws.starts),
                                      .n_tokens = n_tokens,
                                      .n_experts = x->router.n_experts,
                                      .n_used = x->router.n_used,
                                      .n = hidden,
                                      .intermediate = x->intermediate};
    const cn_expert_sum_args sum = {.out = at(m, m->ws.branch),
                                    .x = at(m, m->ws.pair_in),
                                    .pairs = at(m, m->ws.pairs),
                                    .weights = at(m, m->ws.weights),
                                    .n_tokens = n_tokens,
                                    .n_used = x->router.n_used,
                                    .n = hidden,
                                    .adds = adds};
    CN_TRY(m->be->expert_gate_up(p->s, &gate_up));
    CN_TRY(m->be->expert_down(p->s, &down));
    return m->be->expert_sum(p->s, &sum);
}

/* The MLP that every token takes, if there is one, plus the experts of each token, into branch. */
static cn_status experts_branch(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    const bool shares = cn_model_config_layer(&m->cfg, layer).dense > 0;
    CN_TRY(norm(p, true, CN_W_MLP_NORM, layer, CN_DUMP_MLP_NORM));
    if (shares) {
        product down = down_of(m, layer);
        CN_TRY(gate(p, layer, NULL));
        CN_TRY(linear(p, layer, &down));
    }
    CN_TRY(route(p, layer));
    CN_TRY(run_experts(p, layer, shares));
    return dump(p, CN_DUMP_EXPERTS, (int32_t)layer, m->ws.branch, p->batch->n_tokens,
                m->cfg.hidden);
}

typedef cn_status mlp_fn(const pass *p, uint32_t layer);
static mlp_fn *const mlps[CN_N_MLP_KINDS] = {
    [CN_MLP_DENSE] = dense_branch,
    [CN_MLP_EXPERTS] = experts_branch,
};

static cn_status lm_head(const pass *p, uint32_t n_rows)
{
    const cn_model *m = p->m;
    cn_gemm_args a = {.out = at(m, m->ws.logits),
                      .x = at(m, m->ws.picked),
                      .weight = cn_weights_matrix(m->weights, CN_W_LM_HEAD, 0),
                      .n_tokens = n_rows,
                      .n = m->cfg.vocab,
                      .k = m->cfg.hidden,
                      .out_f32 = true};
    CN_TRY(m->be->gemm(p->s, &a));
    return dump(p, CN_DUMP_LOGITS, CN_DUMP_NO_LAYER, m->ws.logits, n_rows, a.n);
}

static cn_status logits_of(const pass *p, const uint32_t *rows, uint32_t n_rows)
{
    const cn_model *m = p->m;
    cn_gather_args g = {.out = at(m, m->ws.picked),
                        .x = at(m, m->ws.normed),
                        .rows = rows,
                        .n_rows = n_rows,
                        .hidden = m->cfg.hidden};
    CN_TRY(m->be->gather(p->s, &g));
    return lm_head(p, n_rows);
}

/* The ops of one layer, between the calls of the hook. */
static cn_status run_layer(const pass *p, uint32_t layer, const cn_layer_hook *hook)
{
    if (hook) CN_TRY(hook->enter(hook->ctx, layer));
    CN_TRY(attention_branch(p, layer));
    CN_TRY(mlps[cn_model_config_layer(&p->m->cfg, layer).mlp](p, layer));
    return hook ? hook->leave(hook->ctx, layer) : CN_OK;
}

cn_status cn_model_forward(cn_model *m, cn_stream *s, const cn_model_pass *in)
{
    const cn_batch_view *b = in->batch;
    CN_ASSERT(b->n_tokens > 0 && b->n_tokens <= m->max_tokens && in->n_rows <= m->max_rows);
    pass p = {.m = m,
              .s = s,
              .batch = b,
              .pools = in->pools,
              .select = in->select,
              .plane = in->plane,
              .drafts = in->drafts ? in->drafts : b};
    plan_links(&p);
    if (m->dump) cn_dump_begin_step(m->dump, m->n_passes);
    m->n_passes++;
    CN_TRY(embed(&p));
    if (m->draft) {
        CN_TRY(cn_draft_store(m->draft, s, p.drafts, in->pools, at(m, m->ws.residual)));
        if (in->hook) CN_TRY(in->hook->drafted(in->hook->ctx, m->draft->queries));
    }
    if (p.select) {
        const cn_select_step step = select_step(&p);
        CN_TRY(cn_select_predict(&step));
        if (m->draft) CN_TRY(cn_draft_select(m->draft, &step));
    }
    for (uint32_t layer = 0; layer < m->cfg.n_layers; layer++)
        CN_TRY(run_layer(&p, layer, in->hook));
    m->is_normed = false;
    return in->n_rows > 0 ? cn_model_more_logits(m, s, b, in->logit_rows, in->n_rows) : CN_OK;
}

cn_status cn_model_more_logits(cn_model *m, cn_stream *s, const cn_batch_view *b,
                               const uint32_t *logit_rows, uint32_t n_rows)
{
    const pass p = {.m = m, .s = s, .batch = b};
    CN_ASSERT(n_rows > 0 && n_rows <= m->max_rows);
    if (!m->is_normed) CN_TRY(norm(&p, true, CN_W_FINAL_NORM, 0, CN_DUMP_FINAL_NORM));
    m->is_normed = true;
    return logits_of(&p, logit_rows, n_rows);
}

float *cn_model_logits(const cn_model *m) { return at(m, m->ws.logits); }

cn_status cn_model_products(cn_model *m, cn_stream *s, uint32_t n_tokens, uint32_t n_rows)
{
    CN_ASSERT(n_tokens > 0 && n_tokens <= m->max_tokens && n_rows <= m->max_rows && !m->dump);
    const cn_batch_view batch = {.n_tokens = n_tokens};
    const pass p = {.m = m, .s = s, .batch = &batch};
    for (uint32_t layer = 0; layer < m->cfg.n_layers; layer++) {
        const cn_layer_kind kind = cn_model_config_layer(&m->cfg, layer);
        const product all[] = {qkv_of(m, layer), o_of(m, layer), gate_up_of(m, layer),
                               down_of(m, layer)};
        const size_t n = kind.dense > 0 ? sizeof all / sizeof *all : 2;
        for (size_t i = 0; i < n; i++) CN_TRY(linear(&p, layer, &all[i]));
        if (kind.mlp == CN_MLP_EXPERTS) {
            CN_TRY(route(&p, layer));
            CN_TRY(run_experts(&p, layer, kind.dense > 0));
        }
    }
    return n_rows > 0 ? lm_head(&p, n_rows) : CN_OK;
}
