/* model.c - see model.h. The ops of a layer share memory (workspace.h). */
#include "engine/model/model.h"

#include "engine/model/rope.h"
#include "engine/model/workspace.h"
#include "engine/start/device_choice.h"

struct cn_model {
    cn_backend *be;
    cn_model_config cfg;
    const cn_weights *weights;
    const cn_model_ranks *ranks; /* NULL: the model is not split */
    void *memory;
    cn_workspace ws;
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

size_t cn_model_workspace_bytes(const cn_model_config *cfg, const cn_backend *be,
                                uint32_t max_tokens, uint32_t max_rows, uint32_t max_position)
{
    return cn_workspace_lay_out(cfg, be, max_tokens, max_rows, max_position).bytes;
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
    const uint32_t first = m->n_covered, half = cn_rope_dim(&m->cfg) / 2;
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
                    .ranks = o->ranks,
                    .memory = o->memory,
                    .ws = cn_workspace_lay_out(o->config, o->backend, o->max_tokens, o->max_rows,
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
    if (!m->dump || name == CN_DUMP_COUNT) return CN_OK;
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

/* The branch that the norm `id` adds to the residual. */
static size_t added_branch(const cn_model *m, cn_weight_id id)
{
    return id == CN_W_MLP_NORM ? m->ws.branch : m->ws.mlp_branch;
}

/* residual += the branches of all ranks. Then normed = norm of residual. */
static cn_status reduce_norm(const pass *p, cn_weight_id id, uint32_t layer)
{
    const cn_model *m = p->m;
    cn_reduce_norm_args a = cn_model_ranks_sum(m->ranks, &m->cfg, added_branch(m, id));
    a.out = at(m, m->ws.normed);
    a.residual = at(m, m->ws.residual);
    a.weight = weight(m, id, layer);
    a.n_tokens = p->batch->n_tokens;
    a.is_mlp = id != CN_W_MLP_NORM;
    a.layer = id == CN_W_FINAL_NORM ? m->cfg.n_layers - 1 : layer - a.is_mlp;
    return m->be->reduce_norm(p->s, &a);
}

/* If `add`, residual += branch. Then normed = norm of residual. */
static cn_status norm(const pass *p, bool add, cn_weight_id id, uint32_t layer, cn_dump_name name)
{
    const cn_model *m = p->m;
    if (add && m->ranks) return reduce_norm(p, id, layer);
    cn_rmsnorm_args a = {.out = at(m, m->ws.normed),
                         .residual = at(m, m->ws.residual),
                         .x = add ? at(m, added_branch(m, id)) : NULL,
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

/* out[T, n] = x[T, k] * W^T + bias, in a layer. name: CN_DUMP_COUNT for none. */
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
    const uint32_t k = cn_attn_width(c);
    return (product){.out = m->ws.branch,
                     .x = c->latent.rank > 0 ? m->ws.values : m->ws.attn,
                     .id = CN_W_O,
                     .shape = {.n = c->hidden, .k = k, .has_bias = bias != NULL},
                     .bias = bias,
                     .name = CN_DUMP_O};
}

/* The products before latent attention: of the query matrix or of its first factor, of its second
 * factor, and of the row of K. */
static product latent_q_a_of(const cn_model *m)
{
    const cn_latent *l = &m->cfg.latent;
    return (product){.out = m->ws.q_rank,
                     .x = m->ws.normed,
                     .id = CN_W_Q_A,
                     .shape = {.n = l->q_rank, .k = m->cfg.hidden},
                     .name = CN_DUMP_COUNT};
}

static product latent_q_of(const cn_model *m)
{
    const cn_latent *l = &m->cfg.latent;
    const bool factors = l->q_rank > 0;
    return (product){.out = m->ws.raw_q,
                     .x = factors ? m->ws.q_normed : m->ws.normed,
                     .id = CN_W_Q,
                     .shape = {.n = m->cfg.n_heads * (l->nope + l->rope),
                               .k = factors ? l->q_rank : m->cfg.hidden},
                     .name = CN_DUMP_COUNT};
}

static product latent_row_of(const cn_model *m)
{
    return (product){.out = m->ws.row,
                     .x = m->ws.normed,
                     .id = CN_W_KV_A,
                     .shape = {.n = m->cfg.head_dim, .k = m->cfg.hidden},
                     .name = CN_DUMP_QKV};
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
    return (product){.out = m->ws.mlp_branch,
                     .x = m->ws.act,
                     .id = CN_W_DOWN,
                     .shape = {.n = m->cfg.hidden, .k = width},
                     .name = CN_DUMP_DOWN};
}

/* Sets which norms are part of the products around them. A dump needs their outputs, and the
 * products of experts, of FP8 weights, of latent attention and of ranks compute none. */
static void plan_links(pass *p)
{
    const cn_model *m = p->m;
    cn_backend *be = m->be;
    if (!be->links_norm || m->dump || m->cfg.experts.router.n_experts > 0 || m->cfg.quant.fp8 ||
        m->cfg.latent.rank > 0 || m->ranks)
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
                      .scale = cn_model_config_scale(&m->cfg)};
    if (p->select && layer >= m->dense_layers) {
        const cn_select_step step = select_step(p);
        CN_TRY(cn_select_attend(&step, &a));
    } else if (p->batch->n_decode > 0) {
        CN_TRY(attend_dense(p, &a));
    }
    return p->batch->n_seqs > p->batch->n_decode ? m->be->attn_prefill(p->s, &a) : CN_OK;
}

/* Attention of the normed residual, into branch or, with links_mlp, added to the residual. */
static cn_status heads_branch(const pass *p, uint32_t layer)
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
    CN_TRY(dump(p, CN_DUMP_ATTN, (int32_t)layer, m->ws.attn, p->batch->n_tokens,
                cn_attn_width(&m->cfg)));
    return linear(p, layer, &o);
}

/* ---- latent attention ---- */

#define LATENT_EPS 1e-6F /* of its two norms, whatever rms_norm_eps is */

/* The queries of all heads, before RoPE. */
static cn_status latent_queries(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    const product q_a = latent_q_a_of(m), q = latent_q_of(m);
    if (q_a.shape.n == 0) return linear(p, layer, &q);
    CN_TRY(linear(p, layer, &q_a));
    const cn_rmsnorm_args norm = {.out = at(m, m->ws.q_normed),
                                  .residual = at(m, m->ws.q_rank),
                                  .weight = weight(m, CN_W_Q_A_NORM, layer),
                                  .n_tokens = p->batch->n_tokens,
                                  .hidden = q_a.shape.n,
                                  .eps = LATENT_EPS};
    CN_TRY(m->be->rmsnorm(p->s, &norm));
    return linear(p, layer, &q);
}

static cn_status latent_store(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    cn_latent_store_args a = {.q = at(m, m->ws.raw_q),
                              .row = at(m, m->ws.row),
                              .norm = weight(m, CN_W_KV_A_NORM, layer),
                              .eps = LATENT_EPS,
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
    CN_TRY(m->be->latent_store(p->s, &a));
    if (reads_plane(p, layer)) {
        cn_batch_view batch = *p->batch;
        batch.kv_slots = p->plane->slots;
        a.batch = &batch;
        a.layout = p->plane->layout;
        a.kv = p->plane->kv;
        a.q = NULL; /* they have been rotated */
        CN_TRY(m->be->latent_store(p->s, &a));
    }
    return dump(p, CN_DUMP_Q, (int32_t)layer, m->ws.raw_q, p->batch->n_tokens,
                m->cfg.n_heads * a.layout.query_dim);
}

/* The products with the matrix of each head: of keys before attention, of values after it. */
static cn_status multiply_heads(const pass *p, uint32_t layer, bool values)
{
    const cn_model *m = p->m;
    const cn_latent *l = &m->cfg.latent;
    const cn_matrix w = cn_weights_matrix(m->weights, CN_W_KV_B, layer);
    const size_t first = values ? (size_t)l->nope * l->rank : 0;
    const cn_heads_gemm_args a = {
        .out = at(m, values ? m->ws.values : m->ws.q),
        .x = at(m, values ? m->ws.attn : m->ws.raw_q),
        .weight = (const char *)w.data + first * cn_dtype_bytes(m->be->matrix_dtype),
        .weight_stride = (l->nope + l->value) * l->rank,
        .n_tokens = p->batch->n_tokens,
        .n_heads = m->cfg.n_heads,
        .n = values ? l->value : l->rank,
        .k = values ? l->rank : l->nope,
        .n_copied = values ? 0 : l->rope,
        .by_rows = !values};
    return m->be->heads_gemm(p->s, &a);
}

/* Latent attention of the normed residual, into branch. Decode rows and prompts alike multiply
 * queries and outputs instead of rows of K and V. */
static cn_status latent_branch(const pass *p, uint32_t layer)
{
    const cn_model *m = p->m;
    const product row = latent_row_of(m), o = o_of(m, layer);
    CN_TRY(norm(p, layer > 0, CN_W_ATTN_NORM, layer, CN_DUMP_ATTN_NORM));
    if (m->draft)
        CN_TRY(cn_draft_enter_layer(m->draft, p->s, p->drafts, p->pools, at(m, m->ws.residual),
                                    layer));
    CN_TRY(latent_queries(p, layer));
    CN_TRY(linear(p, layer, &row));
    CN_TRY(latent_store(p, layer));
    CN_TRY(multiply_heads(p, layer, false));
    CN_TRY(attend(p, layer));
    CN_TRY(multiply_heads(p, layer, true));
    CN_TRY(dump(p, CN_DUMP_ATTN, (int32_t)layer, m->ws.values, p->batch->n_tokens,
                cn_attn_width(&m->cfg)));
    return linear(p, layer, &o);
}

typedef cn_status branch_fn(const pass *p, uint32_t layer);
static branch_fn *const attentions[CN_N_ATTN_KINDS] = {
    [CN_ATTN_HEADS] = heads_branch,
    [CN_ATTN_LATENT] = latent_branch,
};

/* ---- the MLP ---- */

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
    const cn_matrix gate_up_w = cn_weights_matrix(m->weights, CN_W_EXPERT_GATE_UP, layer);
    const cn_matrix down_w = cn_weights_matrix(m->weights, CN_W_EXPERT_DOWN, layer);
    const cn_expert_gate_up_args gate_up = {.out = at(m, m->ws.pair_act),
                                            .x = at(m, m->ws.normed),
                                            .weight = gate_up_w,
                                            .starts = at(m, m->ws.starts),
                                            .pair_tokens = at(m, m->ws.pair_tokens),
                                            .gathered = at(m, m->ws.pair_in),
                                            .rounded = rounded(m, &gate_up_w),
                                            .gate_up = m->be->gates_apart
                                                           ? at(m, m->ws.pair_gate_up)
                                                           : NULL,
                                            .n_tokens = n_tokens,
                                            .n_experts = x->router.n_experts,
                                            .n_used = x->router.n_used,
                                            .intermediate = x->intermediate,
                                            .k = hidden};
    const cn_expert_down_args down = {.out = at(m, m->ws.pair_in),
                                      .x = at(m, m->ws.pair_act),
                                      .weight = down_w,
                                      .rounded = rounded(m, &down_w),
                                      .starts = at(m, m->ws.starts),
                                      .n_tokens = n_tokens,
                                      .n_experts = x->router.n_experts,
                                      .n_used = x->router.n_used,
                                      .n = hidden,
                                      .intermediate = x->intermediate};
    const cn_expert_sum_args sum = {.out = at(m, m->ws.mlp_branch),
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
    return dump(p, CN_DUMP_EXPERTS, (int32_t)layer, m->ws.mlp_branch, p->batch->n_tokens,
                m->cfg.hidden);
}

static branch_fn *const mlps[CN_N_MLP_KINDS] = {
    [CN_MLP_DENSE] = dense_branch,
    [CN_MLP_EXPERTS] = experts_branch,
};

static cn_status lm_head(const pass *p, uint32_t n_rows)
{
    const cn_model *m = p->m;
    cn_gemm_args a = {.out = m->ranks ? cn_model_ranks_logits(m->ranks, &m->cfg, m->ws.logits)
                                      : at(m, m->ws.logits),
                      .x = at(m, m->ws.picked),
                      .weight = cn_weights_matrix(m->weights, CN_W_LM_HEAD, 0),
                      .n_tokens = n_rows,
                      .n = cn_head_rows(&m->cfg),
                      .k = m->cfg.hidden,
                      .out_f32 = true,
                      .out_stride = m->ranks ? m->cfg.vocab : 0};
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
    const cn_layer_kind kind = cn_model_config_layer(&p->m->cfg, layer);
    CN_TRY(attentions[kind.attn](p, layer));
    CN_TRY(mlps[kind.mlp](p, layer));
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
        const bool heads = kind.attn == CN_ATTN_HEADS;
        const product all[] = {heads ? qkv_of(m, layer) : latent_q_of(m),
                               heads ? (product){0} : latent_q_a_of(m),
                               heads ? (product){0} : latent_row_of(m),
                               o_of(m, layer),
                               gate_up_of(m, layer),
                               down_of(m, layer)};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (all[i].shape.n > 0 && all[i].shape.k > 0) CN_TRY(linear(&p, layer, &all[i]));
        for (int values = 0; !heads && values < 2; values++)
            CN_TRY(multiply_heads(&p, layer, values));
        if (kind.mlp == CN_MLP_EXPERTS) {
            CN_TRY(route(&p, layer));
            CN_TRY(run_experts(&p, layer, kind.dense > 0));
        }
    }
    return n_rows > 0 ? lm_head(&p, n_rows) : CN_OK;
}
