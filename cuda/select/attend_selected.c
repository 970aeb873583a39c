/* attend_selected.c - attend_selected: `score` and `select` of each stage, then attention to the
 * lists. CPU version: cpu_attend_selected.c.
 *
 * In layers above 0 the first `score` reads digests before the kernels before it have ended: the
 * attention of the layer below has waited for whatever wrote them. */
#include "cuda/select/select_route.h"

/* Bits of the keys (cn_sel_key) of some forms. */
static uint32_t keys_of_forms(uint32_t forms)
{
    uint32_t keys = 0;
    for (uint32_t key = 0; key < CN_N_SEL_KEYS; key++)
        if (forms & cn_sel_forms_of_key((cn_sel_key)key)) keys |= 1u << key;
    return keys;
}

uint32_t cn_cuda_select_route(const cn_sel_forms *need, const cn_sel_forms *declared)
{
    const uint32_t tokens = need->stage[1];
    const bool has_max = tokens & CN_SEL_FORMS_MAX;
    uint32_t keys = keys_of_forms(tokens), route = CN_ROUTE_SELECTS;
    /* One key has kernels of its own. One graph serves rows of several keys, whichever they are. */
    if (keys & (keys - 1))
        keys = keys_of_forms(declared->stage[1] & (has_max ? ~0u : ~CN_SEL_FORMS_MAX));
    if (need->stage[0]) route |= CN_ROUTE_TILES;
    if (has_max) route |= CN_ROUTE_MAX;
    if (tokens && !(tokens & ~CN_SEL_FORMS_IN_TILES)) route |= CN_ROUTE_FEW;
    return route | keys << CN_ROUTE_KEYS_LOG2;
}

/* `score` and `select` of a stage. */
static cn_status run_stage(cn_stream *s, const cn_attend_selected_args *a, uint32_t i,
                           uint32_t *done)
{
    cn_score_args score = cn_selected_score(a, i, i > 0 && (a->route & CN_ROUTE_MAX));
    if (i == 0) score.route = CN_ROUTE_SELECTS | 1u << (CN_ROUTE_KEYS_LOG2 + CN_KEY_BOUNDS);
    const cn_select_args select = cn_selected_select(a, i, &score);
    const bool after_select = i > 0 && (a->route & CN_ROUTE_TILES);
    uint32_t *counts;
    CN_TRY(cn_score_launch(s, &score, a->attn.layer > 0, after_select, &counts));
    return cn_select_launch(s, &select, score.route & CN_ROUTE_FEW, counts, done);
}

cn_status cn_cuda_attend_selected(cn_stream *s, const cn_attend_selected_args *a)
{
    const cn_batch_view batch = cn_selected_batch(a);
    const cn_list_attn_args attention = cn_selected_attention(a, &batch);
    uint32_t *done = NULL;
    if (a->n_rows == 0) return CN_OK;
    if (cn_route_keys(a->route)) {
        done = cn_select_done(s, a->n_rows * a->attn.layout.n_kv_heads);
        if (a->route & CN_ROUTE_TILES) CN_TRY(run_stage(s, a, 0, NULL));
        CN_TRY(run_stage(s, a, 1, done));
    }
    return cn_cuda_attn_lists(s, &attention, done);
}
