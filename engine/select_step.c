/* select_step.c - see select_step.h. */
#include "engine/select_probe.h"

cn_status cn_select_predict(const cn_select_step *p)
{
    const cn_select_view *v = p->view;
    const cn_kv_layout *l = &p->pools->layout;
    const uint32_t n_layers = l->n_layers - p->first_layer;
    if (!v->runs_predict) return CN_OK;
    const cn_predict_args a = {
        .ring = p->pools->q_window,
        .n_query_slots = p->pools->n_query_slots,
        .rows = p->pools->window,
        .n_heads = p->pools->n_heads,
        .head_dim = l->head_dim,
        .slots = v->ring_slots,
        .newest = v->newest,
        .modulus = v->modulus,
        .n_window = v->n_window,
        .weights = v->weights,
        .rotate = v->rotate,
        .n_seqs = p->batch->n_decode,
        .first_layer = p->first_layer,
        .n_layers = n_layers,
        .eps = CN_SELECT_RIDGE,
        .cos = p->cos,
        .sin = p->sin,
        .out = p->scratch->predicted,
        .out_stride = (size_t)n_layers * p->pools->n_heads * l->head_dim,
    };
    return p->be->predict(p->stream, &a);
}

/* A row of an array of n elements for each row of the batch; NULL stays NULL. */
static void *at_row(void *array, size_t row, size_t n, size_t elem_bytes)
{
    return array ? (char *)array + row * n * elem_bytes : NULL;
}

/* What a stage of the rows of a range does in one layer. `score` has no progress. */
typedef struct stage_args {
    cn_score_args score;
    cn_select_args select;
} stage_args;

static stage_args args_of(const cn_select_step *p, uint32_t layer, const void *q, uint32_t i,
                          cn_row_range range)
{
    const cn_select_view *v = p->view;
    const cn_select_stage_view *st = &v->stage[i];
    const cn_select_scratch *m = p->scratch;
    const cn_kv_layout *l = &p->pools->layout;
    const bool last = i + 1 == CN_SELECT_STAGES;
    const uint32_t r = range.start;
    const size_t e = cn_dtype_bytes(p->pools->act_dtype);
    const size_t q_row = (size_t)p->pools->n_heads * l->head_dim;
    const size_t predicted_row = q_row * (l->n_layers - p->first_layer);
    uint32_t *tiles = at_row(m->tiles, r, (size_t)l->n_kv_heads * m->tile_stride, sizeof *tiles);
    uint32_t *list = at_row(m->list, r, (size_t)l->n_kv_heads * m->list_stride, sizeof *list);
    char *predicted = at_row(m->predicted, r, predicted_row, e);
    const cn_score_args score = {
        .q = {[CN_SEL_TRUE] = (const char *)q + r * q_row * e,
              [CN_SEL_PREDICTED] =
                  predicted ? predicted + (layer - p->first_layer) * q_row * e : NULL},
        .q_stride = {[CN_SEL_TRUE] = q_row, [CN_SEL_PREDICTED] = predicted_row},
        .stage = st->stage + r,
        .pools = *p->pools,
        .tables = p->batch->tables + (size_t)r * p->batch->table_stride,
        .table_stride = p->batch->table_stride,
        .first = st->first + r,
        .n = st->n + r,
        .base = st->base + r,
        .seed = v->seed + r,
        .tiles = last ? tiles : NULL,
        .tile_stride = m->tile_stride,
        .keys = st->keys,
        .n_seqs = range.end - r,
        .first_layer = layer,
        .n_layers = 1,
        .early = layer > 0, /* the attention of the previous layer has waited for all before it */
        .logits = st->runs_max ? m->logits : NULL,
        .out = m->score,
    };
    const cn_select_args select = {
        .score = m->score,
        .stage = score.stage,
        .first = score.first,
        .n = score.n,
        .base = score.base,
        .k = st->k + r,
        .n_forced = v->n_forced + r,
        .tiles = score.tiles,
        .tile_stride = m->tile_stride,
        .n_seqs = score.n_seqs,
        .n_layers = 1,
        .n_kv_heads = l->n_kv_heads,
        .tokens = last,
        .list = last ? list : tiles,
        .list_stride = last ? m->list_stride : m->tile_stride,
        .done = last ? at_row(m->done, r, l->n_kv_heads, sizeof(uint32_t)) : NULL,
    };
    return (stage_args){score, select};
}

/* Runs a stage of the rows of a range. */
static cn_status run_stage(const cn_select_step *p, stage_args a)
{
    cn_score_progress progress = {0};
    a.score.progress = &progress;
    a.select.progress = &progress;
    CN_TRY(p->be->score(p->stream, &a.score));
    return p->be->select(p->stream, &a.select);
}

/* Runs both stages of rows that rank tokens of tiles, if they rank any. */
static cn_status run_in_tiles(const cn_select_step *p, stage_args tiles, const stage_args *tokens)
{
    cn_score_progress progress = {0};
    tiles.score.progress = &progress;
    tiles.select.progress = &progress;
    CN_TRY(p->be->score(p->stream, &tiles.score));
    const cn_in_tiles_args a = {tiles.select, tokens->score, tokens->select};
    return p->be->select_in_tiles(p->stream, &a);
}

/* Selects for the rows of a range in one layer. */
static cn_status run_range(const cn_select_step *p, uint32_t layer, const void *q,
                           cn_row_range range)
{
    if (p->view->only_tiles && p->be->select_in_tiles) {
        const stage_args tokens = args_of(p, layer, q, 1, range);
        return run_in_tiles(p, args_of(p, layer, q, 0, range), &tokens);
    }
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++)
        if (p->view->stage[i].runs) CN_TRY(run_stage(p, args_of(p, layer, q, i, range)));
    return CN_OK;
}

cn_status cn_select_attend(const cn_select_step *p, const cn_attn_args *attn)
{
    const cn_select_view *v = p->view;
    for (uint32_t g = 0; g < v->n_ranges; g++)
        CN_TRY(run_range(p, attn->layer, attn->q, v->ranges[g]));
    /* The ranges hold all rows, so if the last stage runs, it makes all lists. */
    const bool makes_lists = v->stage[CN_SELECT_STAGES - 1].runs;
    const cn_attn_sparse_args sparse = {
        .attn = *attn,
        .index = p->scratch->list,
        .index_stride = p->scratch->list_stride,
        .list_len = v->list_len,
        .tail = v->tail,
        .lengths = v->lengths,
        .done = makes_lists ? p->scratch->done : NULL,
    };
    CN_TRY(p->be->attn_sparse(p->stream, &sparse));
    return p->probe ? cn_select_probe_observe(p->probe, p, &sparse) : CN_OK;
}
