/* draft.c - see draft.h. */
#include "engine/model/draft.h"

#include <math.h>

#include "engine/checkpoint/retrieval_file.h"
#include "engine/model/rope.h"

enum { STAGING_ELEMS = 1 << 18 };

/* What a head with hidden layers needs besides. */
static void declare_states(cn_start_plan *p, cn_draft *d)
{
    const cn_backend *be = p->backend;
    const uint64_t h = p->model->hidden, n_tokens = cn_start_max_tokens(p->config);
    const uint64_t row = h * cn_dtype_bytes(be->act_dtype);
    const uint64_t matrix = cn_dtype_bytes(be->matrix_dtype);
    cn_start_add(p, "fc of the retrieval head", CN_PART_WEIGHTS, CN_DRAFT_LAYERS * h * h * matrix,
                 &d->fc);
    cn_start_add(p, "norm of states of the retrieval head", CN_PART_WEIGHTS,
                 h * cn_dtype_bytes(be->vector_dtype), &d->hidden_norm);
    cn_start_add(p, "draft states", CN_PART_WORKSPACE, n_tokens * CN_DRAFT_LAYERS * row,
                 &d->states);
    cn_start_add(p, "fused draft states", CN_PART_WORKSPACE, n_tokens * row, &d->fused);
    cn_start_add(p, "draft states before", CN_PART_WORKSPACE, n_tokens * row, &d->before);
    cn_start_add(p, "draft pairs", CN_PART_WORKSPACE, n_tokens * 2 * row, &d->input);
}

void cn_draft_declare(cn_start_plan *p, cn_draft *d)
{
    const cn_model_config *m = p->model;
    const cn_backend *be = p->backend;
    const uint64_t act = cn_dtype_bytes(be->act_dtype), matrix = cn_dtype_bytes(be->matrix_dtype);
    const uint64_t dim = m->draft.head_dim, q = m->draft.n_heads * dim, k = m->n_kv_heads * dim;
    const uint64_t n_tokens = cn_start_max_tokens(p->config), h = m->hidden;
    const uint64_t table = cn_start_max_model_len(p->config, m) * (dim / 2) * sizeof(float);
    const uint64_t width = m->draft.n_hidden_layers > 0 ? 2 * h : h;
    if (m->draft.n_heads == 0) return;
    if (m->draft.n_hidden_layers > 0) declare_states(p, d);
    cn_start_add(p, "norm of the retrieval head", CN_PART_WEIGHTS,
                 h * cn_dtype_bytes(be->vector_dtype), &d->norm);
    cn_start_add(p, "q_proj of the retrieval head", CN_PART_WEIGHTS, q * width * matrix,
                 &d->q_proj);
    cn_start_add(p, "k_proj of the retrieval head", CN_PART_WEIGHTS, k * width * matrix,
                 &d->k_proj);
    cn_start_add(p, "cosines of the retrieval head", CN_PART_WORKSPACE, table, &d->cos);
    cn_start_add(p, "sines of the retrieval head", CN_PART_WORKSPACE, table, &d->sin);
    cn_start_add(p, "draft input", CN_PART_WORKSPACE, n_tokens * h * act, &d->normed);
    cn_start_add(p, "draft queries", CN_PART_WORKSPACE, cn_start_max_rows(p->config) * q * act,
                 &d->queries);
    cn_start_add(p, "draft keys", CN_PART_WORKSPACE, n_tokens * k * act, &d->keys);
}

/* ---- loading ---- */

static cn_status write_draft_part(const cn_draft *d, cn_stream *s, const cn_checkpoint *ck,
                                  const cn_weight_part *part, cn_dtype dtype, void *to)
{
    const uint64_t n = part->tensor.rows * part->tensor.cols, elem = cn_dtype_bytes(dtype);
    CN_TRY(cn_checkpoint_check_finite(part));
    void *staging = cn_calloc(STAGING_ELEMS, elem);
    if (!staging) return cn_fail(CN_ERR_MEMORY, "out of memory for the retrieval head");
    cn_status status = CN_OK;
    for (uint64_t first = 0; first < n && status == CN_OK; first += STAGING_ELEMS) {
        const uint64_t count = n - first < STAGING_ELEMS ? n - first : STAGING_ELEMS;
        cn_checkpoint_read(ck, part, first, count, dtype, staging);
        status = d->be->mem_write(s, (char *)to + first * elem, staging, (size_t)(count * elem));
        if (status == CN_OK) status = d->be->stream_sync(s);
    }
    cn_free(staging);
    return status;
}

/* The RoPE of the head: its own theta, and YaRN if the model has more positions than the head was
 * trained on (SpeContext §4.3). It depends on the model alone, not on --max-model-len. */
static cn_model_config rope_of(const cn_draft_head *head, const cn_model_config *m)
{
    cn_model_config c = {.head_dim = head->head_dim,
                         .rotary = head->head_dim,
                         .rope_theta = head->rope_theta,
                         .rope = {.type = CN_ROPE_DEFAULT, .attention_factor = 1}};
    if (m->max_position <= head->context) return c;
    const double factor = (double)m->max_position / head->context;
    c.rope = (cn_rope_scaling){.type = CN_ROPE_YARN,
                               .factor = factor,
                               .original_max_position = head->context,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .attention_factor = 0.1 * log(factor) + 1,
                               .truncate = true};
    return c;
}

cn_status cn_draft_cover(const cn_draft *d, cn_stream *s, uint32_t first, uint32_t n_positions)
{
    const size_t half = d->head.head_dim / 2, n = n_positions * half, bytes = n * sizeof(float);
    float *tables = cn_calloc(2 * n, sizeof *tables);
    if (!tables)
        return cn_fail(CN_ERR_MEMORY, "retrieval head: out of memory for %u positions",
                       n_positions);
    cn_rope_table(&d->rope, first, n_positions, tables, tables + n);
    cn_status status = d->be->mem_write(s, d->cos + first * half, tables, bytes);
    if (status == CN_OK) status = d->be->mem_write(s, d->sin + first * half, tables + n, bytes);
    if (status == CN_OK) status = d->be->stream_sync(s);
    cn_free(tables);
    return status;
}

static cn_status write_parts(const cn_draft *d, cn_stream *s, const cn_checkpoint *ck,
                             const cn_weight_part *parts)
{
    const cn_dtype matrix = d->be->matrix_dtype;
    CN_TRY(write_draft_part(d, s, ck, &parts[CN_HEAD_NORM], d->be->vector_dtype, d->norm));
    CN_TRY(write_draft_part(d, s, ck, &parts[CN_HEAD_Q], matrix, d->q_proj));
    CN_TRY(write_draft_part(d, s, ck, &parts[CN_HEAD_K], matrix, d->k_proj));
    if (d->head.n_hidden_layers == 0) return CN_OK;
    CN_TRY(write_draft_part(d, s, ck, &parts[CN_HEAD_FC], matrix, d->fc));
    return write_draft_part(d, s, ck, &parts[CN_HEAD_STATE_NORM], d->be->vector_dtype,
                            d->hidden_norm);
}

cn_status cn_draft_load(cn_draft *d, cn_backend *be, cn_stream *s, const cn_config *c,
                        const cn_model_config *m, const cn_checkpoint *ck)
{
    cn_retrieval_file *f;
    if (m->draft.n_heads == 0) return CN_OK;
    CN_TRY(cn_retrieval_open(&f, c->model, m, c->load_format));
    d->be = be;
    d->head = m->draft;
    d->hidden = m->hidden;
    d->eps = m->rms_eps;
    d->rope = rope_of(&d->head, m);
    const cn_draft_head *now = cn_retrieval_head(f), *then = &m->draft;
    const bool same = now->n_heads == then->n_heads && now->head_dim == then->head_dim &&
                      now->context == then->context && now->rope_theta == then->rope_theta &&
                      now->n_hidden_layers == then->n_hidden_layers &&
                      memcmp(now->hidden_layers, then->hidden_layers,
                             sizeof now->hidden_layers) == 0;
    cn_status status = same ? write_parts(d, s, ck, cn_retrieval_parts(f))
                            : cn_fail(CN_ERR_MODEL, "the file changed during the start");
    cn_retrieval_close(f);
    return status == CN_OK ? CN_OK : cn_fail_within(status, "%s", CN_RETRIEVAL_FILE);
}

/* ---- a step ---- */

/* Elements of a row that the projections read. */
static uint32_t input_width(const cn_draft *d)
{
    return d->head.n_hidden_layers > 0 ? 2 * d->hidden : d->hidden;
}

static void *input_rows(const cn_draft *d)
{
    return d->head.n_hidden_layers > 0 ? d->input : d->normed;
}

static cn_status multiply_head_rows(const cn_draft *d, cn_stream *s, const cn_gemm_args *a)
{
    return a->n_tokens > 0 ? d->be->gemm(s, a) : CN_OK;
}

/* The row of a token in an array of `width` elements a token. */
static void *row_of(const cn_draft *d, const void *rows, uint32_t token, uint32_t width)
{
    return (char *)(uintptr_t)rows + (size_t)token * width * cn_dtype_bytes(d->be->act_dtype);
}

/* Stores the draft K of n tokens from `first` on, whose input is complete. The first n_queries of
 * them are decode rows, which get queries. */
static cn_status store_keys(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                            const cn_pools *pools, uint32_t first, uint32_t n, uint32_t n_queries)
{
    const cn_kv_layout layout = cn_kv_layout_draft(&pools->layout);
    const uint32_t width = input_width(d);
    const cn_gemm_args q = {.out = d->queries,
                            .x = row_of(d, input_rows(d), first, width),
                            .weight = {.data = d->q_proj},
                            .n_tokens = n_queries,
                            .n = d->head.n_heads * layout.head_dim,
                            .k = width};
    const cn_gemm_args k = {.out = d->keys,
                            .x = q.x,
                            .weight = {.data = d->k_proj},
                            .n_tokens = n,
                            .n = layout.n_kv_heads * layout.head_dim,
                            .k = width};
    const cn_draft_store_args store = {.q = d->queries,
                                       .k = d->keys,
                                       .cos = d->cos,
                                       .sin = d->sin,
                                       .positions = b->positions + first,
                                       .kv_slots = b->kv_slots + first,
                                       .n_tokens = n,
                                       .n_queries = n_queries,
                                       .n_heads = d->head.n_heads,
                                       .layout = layout,
                                       .draft = pools->draft};
    if (n == 0) return CN_OK;
    CN_TRY(multiply_head_rows(d, s, &q));
    CN_TRY(multiply_head_rows(d, s, &k));
    return d->be->draft_store(s, &store);
}

/* normed = norm of n rows. */
static cn_status norm_rows(const cn_draft *d, cn_stream *s, void *rows, const void *weight,
                           uint32_t n)
{
    const cn_rmsnorm_args a = {.out = d->normed,
                               .residual = rows,
                               .weight = weight,
                               .n_tokens = n,
                               .hidden = d->hidden,
                               .eps = d->eps};
    return d->be->rmsnorm(s, &a);
}

/* Writes the normed rows to part `part` of the input of n tokens from `first` on. */
static cn_status set_input(const cn_draft *d, cn_stream *s, uint32_t part, uint32_t first,
                           uint32_t n)
{
    const cn_draft_part_args a = {.out = row_of(d, d->input, first, 2 * d->hidden),
                                  .x = d->normed,
                                  .n_tokens = n,
                                  .width = d->hidden,
                                  .out_width = 2 * d->hidden,
                                  .at = part * d->hidden};
    return d->be->draft_part(s, &a);
}

/* The second part of the input of n tokens from `first` on, those of sequences [first_seq, n_seqs):
 * the fused state of the token before, normed. */
static cn_status set_before(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                            const cn_pools *pools, uint32_t first_seq, uint32_t n_seqs,
                            uint32_t first, uint32_t n)
{
    const cn_draft_before_args a = {.out = d->before,
                                    .fused = d->fused,
                                    .state = pools->state,
                                    .q_start = b->q_start,
                                    .kv_len = b->kv_len,
                                    .tables = b->tables,
                                    .table_stride = b->table_stride,
                                    .block_tokens = pools->layout.block_tokens,
                                    .first_seq = first_seq,
                                    .n_seqs = n_seqs,
                                    .first_token = first,
                                    .n_tokens = n,
                                    .width = d->hidden};
    if (n == 0) return CN_OK;
    CN_TRY(d->be->draft_before(s, &a));
    CN_TRY(norm_rows(d, s, row_of(d, d->before, first, d->hidden), d->hidden_norm, n));
    return set_input(d, s, 1, first, n);
}

cn_status cn_draft_store(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                         const cn_pools *pools, void *embedded)
{
    CN_TRY(norm_rows(d, s, embedded, d->norm, b->n_tokens));
    if (d->head.n_hidden_layers == 0)
        return store_keys(d, s, b, pools, 0, b->n_tokens, b->n_decode);
    CN_TRY(set_input(d, s, 0, 0, b->n_tokens));
    CN_TRY(set_before(d, s, b, pools, 0, b->n_decode, 0, b->n_decode));
    return store_keys(d, s, b, pools, 0, b->n_decode, b->n_decode);
}

/* The states that entered the hidden layers are complete. */
static cn_status fuse(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                      const cn_pools *pools)
{
    const uint32_t first = b->n_decode, n = b->n_tokens - first;
    const cn_gemm_args fused = {.out = d->fused,
                                .x = d->states,
                                .weight = {.data = d->fc},
                                .n_tokens = b->n_tokens,
                                .n = d->hidden,
                                .k = CN_DRAFT_LAYERS * d->hidden};
    const cn_draft_keep_args keep = {.state = pools->state,
                                     .fused = d->fused,
                                     .kv_slots = b->kv_slots,
                                     .n_tokens = b->n_tokens,
                                     .block_tokens = pools->layout.block_tokens,
                                     .width = d->hidden};
    CN_TRY(multiply_head_rows(d, s, &fused));
    CN_TRY(set_before(d, s, b, pools, b->n_decode, b->n_seqs, first, n));
    CN_TRY(store_keys(d, s, b, pools, first, n, 0));
    return d->be->draft_keep(s, &keep); /* last: set_before reads the states of earlier passes */
}

cn_status cn_draft_enter_layer(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                               const cn_pools *pools, const void *residual, uint32_t layer)
{
    for (uint32_t i = 0; i < d->head.n_hidden_layers; i++) {
        const cn_draft_part_args a = {.out = d->states,
                                      .x = residual,
                                      .n_tokens = b->n_tokens,
                                      .width = d->hidden,
                                      .out_width = CN_DRAFT_LAYERS * d->hidden,
                                      .at = i * d->hidden};
        if (d->head.hidden_layers[i] != layer) continue;
        CN_TRY(d->be->draft_part(s, &a));
        if (i + 1 == d->head.n_hidden_layers) return fuse(d, s, b, pools);
    }
    return CN_OK;
}

/* Scores and selects for rows [r, r + n). */
static cn_status select_rows(const cn_draft *d, const cn_select_step *p, uint32_t r, uint32_t n)
{
    const cn_select_view *v = p->view;
    const cn_batch_view *b = p->batch;
    const cn_select_scratch *z = p->scratch;
    const uint32_t hk = p->pools->layout.n_kv_heads, tokens = CN_SELECT_STAGES - 1;
    const size_t q_row = (size_t)d->head.n_heads * d->head.head_dim;
    const size_t elem = cn_dtype_bytes(p->pools->act_dtype);
    const cn_sel_stage stage = cn_selector_token_stage(&(cn_kv_params){.select = CN_SELECT_SPEC});
    const cn_sel_forms forms = {.stage = {[CN_SELECT_STAGES - 1] = cn_sel_form(&stage)}};
    const cn_score_args score = {
        .q = {[CN_SEL_TRUE] = (const char *)d->queries + r * q_row * elem},
        .q_stride = {[CN_SEL_TRUE] = q_row},
        .stage = v->ahead + r,
        .pools = {.layout = cn_kv_layout_draft(&p->pools->layout),
                  .kv = p->pools->draft,
                  .n_heads = d->head.n_heads,
                  .act_dtype = p->pools->act_dtype},
        .tables = b->tables + (size_t)r * b->table_stride,
        .table_stride = b->table_stride,
        .first = v->rows.stage[tokens].first + r,
        .n = v->rows.stage[tokens].n + r,
        .base = v->rows.stage[tokens].base + r,
        .seed = v->rows.seed + r,
        .route = cn_select_route_of(d->be, &forms, &forms),
        .n_seqs = n,
        .n_layers = 1,
        .logits = z->logits,
        .out = z->score,
    };
    const cn_select_args select = {
        .score = score.out,
        .stage = score.stage,
        .first = score.first,
        .n = score.n,
        .base = score.base,
        .k = v->rows.stage[tokens].k + r,
        .n_forced = v->rows.n_forced + r,
        .n_seqs = n,
        .n_layers = 1,
        .n_kv_heads = hk,
        .tokens = true,
        .list = z->list + (size_t)r * hk * z->list_stride,
        .list_stride = z->list_stride,
    };
    CN_TRY(p->be->score(p->stream, &score));
    return p->be->select(p->stream, &select);
}

cn_status cn_draft_select(const cn_draft *d, const cn_select_step *step)
{
    const cn_select_view *v = step->view;
    if (!v->ranks_ahead) return CN_OK;
    for (uint32_t i = 0; i < v->n_ranges; i++)
        CN_TRY(select_rows(d, step, v->ranges[i].start, v->ranges[i].end - v->ranges[i].start));
    return CN_OK;
}
