/* select_cost.c - see select_cost.h. */
#include "engine/select/select_cost.h"

#include "compress/away.h"

/* A score is written once and read twice: once for the threshold, once for the list. */
enum { SCORE_BYTES = 3 * sizeof(uint16_t) };

/* The layout of one block. */
static cn_kv_layout layout_of(const cn_select_shape *z)
{
    cn_kv_layout l = cn_kv_layout_form(z->n_layers, 1, z->n_kv_heads, z->block_tokens, z->head_dim,
                                       z->act_dtype, z->kv_form);
    cn_kv_layout_share(&l, z->value_dim, z->query_dim);
    l.draft_dim = z->draft_dim;
    l.draft_state = z->draft_state;
    return l;
}

/* K and V of a token in one layer and head, with their scales. */
static uint64_t token_bytes(const cn_select_shape *z)
{
    const cn_kv_layout l = layout_of(z);
    return l.tile_bytes / l.tile_tokens;
}

/* K alone. V has as many bytes, unless it is a part of K. */
static uint64_t row_bytes(const cn_select_shape *z)
{
    return z->value_dim > 0 ? token_bytes(z) : token_bytes(z) / 2;
}

uint64_t cn_select_kv_bytes(const cn_select_shape *z)
{
    return (uint64_t)z->n_layers * z->n_kv_heads * token_bytes(z);
}

uint64_t cn_select_digest_bytes(const cn_select_shape *z, uint32_t planes)
{
    const cn_kv_layout l = layout_of(z);
    uint64_t bytes = 0;
    for (int i = CN_PLANE_LABELS; i < CN_N_BLOCK_PLANES; i++)
        if (planes >> i & 1)
            bytes += cn_block_plane_bytes(&l, (cn_block_plane)i) *
                     cn_block_plane_layers(&l, (cn_block_plane)i);
    return bytes / z->block_tokens;
}

/* Bytes that a stage reads and writes for one candidate of one layer and head. */
static uint64_t candidate_bytes(const cn_select_shape *z, const cn_sel_stage *stage)
{
    const cn_kv_layout l = layout_of(z);
    const uint64_t label = cn_layout_label_channels(&l) / 2 + sizeof(uint16_t);
    switch (stage->key) {
    case CN_KEY_ROWS: return row_bytes(z) + SCORE_BYTES;
    case CN_KEY_BOUNDS: return 2 * z->head_dim * cn_dtype_bytes(z->act_dtype) + SCORE_BYTES;
    case CN_KEY_LABELS: return label * (stage->group == CN_GROUP_MAX ? 2 : 1) + SCORE_BYTES;
    default: return SCORE_BYTES;
    }
}

/* Bytes that the layers that select read for a request whose KV lies elsewhere: what is resident.
 * The exchange with the home is not part of the step. */
static uint64_t away_head_bytes(const cn_select_shape *z, const cn_kv_params *kv, uint32_t position)
{
    const uint32_t b = z->block_tokens, n_max = cn_away_n_max(kv, b);
    const bool capped = position >= n_max * b;
    const uint64_t resident = (capped ? (n_max - 1) * b + position % b : position) + UINT64_C(1);
    const cn_select_span s = cn_select_span_away(kv, b);
    if (!capped || !s.listed) return token_bytes(z) * resident;
    return token_bytes(z) * (s.list_len + resident - s.tail) +
           s.n[1] * candidate_bytes(z, &s.stage[1]);
}

/* Bytes that a step reads once for all layers: the keys of the retrieval head. */
static uint64_t ahead_bytes(const cn_select_shape *z, const cn_select_span *s)
{
    const uint64_t row = z->draft_dim * cn_dtype_bytes(z->act_dtype) + SCORE_BYTES;
    return s->ahead.active ? z->n_kv_heads * s->n[1] * row : 0;
}

/* Bytes of the step at one position. */
static uint64_t position_bytes(const cn_select_shape *z, const cn_kv_params *kv, uint32_t position)
{
    const uint64_t all = (position + UINT64_C(1)) * cn_select_kv_bytes(z);
    const uint32_t n_selecting = z->n_layers - z->dense_layers;
    if (cn_kv_is_away(kv))
        return all / z->n_layers * z->dense_layers +
               n_selecting * z->n_kv_heads * away_head_bytes(z, kv, position);
    const cn_select_span s = cn_select_span_at(kv, 1, position, z->block_tokens);
    if (!s.listed) return all;
    uint64_t head = token_bytes(z) * (s.list_len + position + 1 - s.tail);
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++)
        if (s.stage[i].active) head += s.n[i] * candidate_bytes(z, &s.stage[i]);
    const uint64_t ring = (uint64_t)cn_selector_ring_rows(kv) * z->n_heads *
                          layout_of(z).query_dim * cn_dtype_bytes(z->act_dtype);
    return all / z->n_layers * z->dense_layers + ahead_bytes(z, &s) +
           n_selecting * (z->n_kv_heads * head + ring);
}

double cn_select_row_bytes(const cn_select_shape *z, const cn_kv_params *kv, uint32_t n_tokens)
{
    CN_ASSERT(z->dense_layers <= z->n_layers && z->block_tokens > 0);
    const uint32_t b = z->block_tokens, first = n_tokens > b / 2 ? n_tokens - b / 2 : 1;
    double bytes = 0;
    for (uint32_t i = 0; i < b; i++) bytes += (double)position_bytes(z, kv, first + i);
    return bytes / b;
}

double cn_select_speed_up(const cn_select_shape *z, const cn_kv_params *kv, uint32_t n_rows,
                          uint32_t n_tokens)
{
    cn_kv_params dense = *kv;
    dense.select = CN_SELECT_NONE;
    const double weights = (double)z->weight_bytes;
    return (weights + n_rows * cn_select_row_bytes(z, &dense, n_tokens)) /
           (weights + n_rows * cn_select_row_bytes(z, kv, n_tokens));
}

/* The speed-up is 1 while all steps are dense. It falls when candidates appear and then rises with
 * the number of tokens, so a binary search finds where it passes a value of at least 1. */
uint32_t cn_select_tokens_for(const cn_select_shape *z, const cn_kv_params *kv, uint32_t n_rows,
                              double speed_up, uint32_t most)
{
    CN_ASSERT(speed_up >= 1);
    uint32_t below = 0, above = most;
    if (cn_select_speed_up(z, kv, n_rows, most) <= speed_up) return 0;
    while (above - below > 1) {
        const uint32_t n = below + (above - below) / 2;
        if (cn_select_speed_up(z, kv, n_rows, n) > speed_up)
            above = n;
        else
            below = n;
    }
    return above;
}
