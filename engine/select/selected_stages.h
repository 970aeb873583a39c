/* selected_stages.h - the parts of the op attend_selected, for backends that run them one after the
 * other: `score` and `select` of each stage, then attention to the lists. SELECTION.md §2. */
#pragma once

#include "engine/ops.h"

/* Attention of decode rows to their lists and tails (cn_select_rows). attn.lengths is not used. */
typedef struct cn_list_attn_args {
    cn_attn_args attn;
    const uint32_t *index; /* [n_decode, hk, index_stride] slot numbers in the sequence */
    uint32_t index_stride;
    const uint32_t *list_len, *tail, *lengths; /* [n_decode] */
} cn_list_attn_args;

/* Elements of a row of queries. */
static inline size_t cn_selected_q_row(const cn_attend_selected_args *a)
{
    return (size_t)a->attn.n_heads * a->attn.layout.head_dim;
}

/* Returns row first_row of an array with n elements a row; NULL stays NULL. */
static inline void *cn_selected_at(const cn_attend_selected_args *a, const void *array, size_t n,
                                   size_t elem_bytes)
{
    return array ? (char *)(uintptr_t)array + a->first_row * n * elem_bytes : NULL;
}

/* The lists of a stage: of tiles, or of tokens. */
static inline uint32_t *cn_selected_list(const cn_attend_selected_args *a, uint32_t stage)
{
    const bool tokens = stage + 1 == CN_SELECT_STAGES;
    const size_t stride = tokens ? a->scratch.list_stride : a->scratch.tile_stride;
    return (uint32_t *)cn_selected_at(a, tokens ? a->scratch.list : a->scratch.tiles,
                                      a->attn.layout.n_kv_heads * stride, sizeof(uint32_t));
}

/* `score` of a stage. has_max: a row may rank by group rule max. */
static inline cn_score_args cn_selected_score(const cn_attend_selected_args *a, uint32_t stage,
                                              bool has_max)
{
    const cn_batch_view *b = a->attn.batch;
    const size_t elem = cn_dtype_bytes(a->pools.act_dtype), q_row = cn_selected_q_row(a);
    const uint32_t r = a->first_row;
    cn_score_args s;
    s.q[CN_SEL_TRUE] = cn_selected_at(a, a->attn.q, q_row, elem);
    s.q[CN_SEL_PREDICTED] = cn_selected_at(a, a->predicted, a->predicted_stride, elem);
    s.q_stride[CN_SEL_TRUE] = q_row;
    s.q_stride[CN_SEL_PREDICTED] = a->predicted_stride;
    s.stage = a->rows.stage[stage].stage + r;
    s.pools = a->pools;
    s.tables = b->tables + (size_t)r * b->table_stride;
    s.table_stride = b->table_stride;
    s.first = a->rows.stage[stage].first + r;
    s.n = a->rows.stage[stage].n + r;
    s.base = a->rows.stage[stage].base + r;
    s.seed = a->rows.seed + r;
    s.tiles = stage > 0 ? cn_selected_list(a, stage - 1) : NULL;
    s.tile_stride = a->scratch.tile_stride;
    s.route = a->route;
    s.n_seqs = a->n_rows;
    s.first_layer = a->attn.layer;
    s.n_layers = 1;
    s.logits = has_max ? a->scratch.logits : NULL;
    s.out = a->scratch.score;
    return s;
}

/* `select` of a stage, after its score. */
static inline cn_select_args cn_selected_select(const cn_attend_selected_args *a, uint32_t stage,
                                                const cn_score_args *score)
{
    const bool tokens = stage + 1 == CN_SELECT_STAGES;
    cn_select_args s;
    s.score = score->out;
    s.stage = score->stage;
    s.first = score->first;
    s.n = score->n;
    s.base = score->base;
    s.k = a->rows.stage[stage].k + a->first_row;
    s.n_forced = a->rows.n_forced + a->first_row;
    s.tiles = score->tiles;
    s.tile_stride = score->tile_stride;
    s.n_seqs = a->n_rows;
    s.n_layers = 1;
    s.n_kv_heads = a->attn.layout.n_kv_heads;
    s.tokens = tokens;
    s.list = cn_selected_list(a, stage);
    s.list_stride = tokens ? a->scratch.list_stride : a->scratch.tile_stride;
    return s;
}

/* The rows as a batch of their own. */
static inline cn_batch_view cn_selected_batch(const cn_attend_selected_args *a)
{
    cn_batch_view b = *a->attn.batch;
    b.tables += (size_t)a->first_row * b.table_stride;
    if (b.kv_len) b.kv_len += a->first_row;
    b.n_tokens = b.n_seqs = b.n_decode = a->n_rows;
    return b;
}

/* Attention of the rows. batch: cn_selected_batch. */
static inline cn_list_attn_args cn_selected_attention(const cn_attend_selected_args *a,
                                                      const cn_batch_view *batch)
{
    const size_t elem = cn_dtype_bytes(a->pools.act_dtype), q_row = cn_selected_q_row(a);
    const size_t out_row = (size_t)a->attn.n_heads * a->attn.layout.part[CN_KV_V].width;
    cn_list_attn_args t;
    t.attn = a->attn;
    t.attn.batch = batch;
    t.attn.q = cn_selected_at(a, a->attn.q, q_row, elem);
    t.attn.out = cn_selected_at(a, a->attn.out, out_row, elem);
    t.index = cn_selected_list(a, CN_SELECT_STAGES - 1);
    t.index_stride = a->scratch.list_stride;
    t.list_len = a->rows.list_len + a->first_row;
    t.tail = a->rows.tail + a->first_row;
    t.lengths = a->rows.lengths + a->first_row;
    return t;
}
