/* attend_selected.c - attend_selected: `score` and `select` of each stage, then attention to the
 * lists. CPU version: cpu_attend_selected.c.
 *
 * In layers above 0 the first `score` reads digests before the kernels before it have ended: the
 * attention of the layer below has waited for whatever wrote them. */
#include "cuda/select/select_route.h"

uint32_t cn_cuda_select_route(const cn_sel_forms *need, const cn_sel_forms *declared)
{
    const bool has_max = need->stage[1] & CN_SEL_FORMS_MAX, has_tiles = need->stage[0] != 0;
    /* One graph serves all keys that rows can have. */
    const uint32_t forms = has_max ? declared->stage[1] : declared->stage[1] & ~CN_SEL_FORMS_MAX;
    const bool ranks = need->stage[1] != 0;
    uint32_t route = CN_ROUTE_SELECTS;
    if (has_tiles) route |= CN_ROUTE_TILES;
    if (has_max) route |= CN_ROUTE_MAX;
    if (ranks && !(declared->stage[1] & ~CN_SEL_FORMS_IN_TILES)) route |= CN_ROUTE_IN_TILES;
    for (uint32_t key = 0; ranks && key < CN_N_SEL_KEYS; key++)
        if (forms & cn_sel_forms_of_key((cn_sel_key)key))
            route |= 1u << (CN_ROUTE_KEYS_LOG2 + key);
    return route;
}

/* `score` and `select` of a stage. */
typedef struct selected_stage {
    cn_score_args score;
    cn_select_args select;
} selected_stage;

static selected_stage stage_of(const cn_attend_selected_args *a, uint32_t i)
{
    selected_stage st;
    st.score = cn_selected_score(a, i, i > 0 && (a->route & CN_ROUTE_MAX));
    if (i == 0) st.score.route = CN_ROUTE_SELECTS | 1u << (CN_ROUTE_KEYS_LOG2 + CN_KEY_BOUNDS);
    st.select = cn_selected_select(a, i, &st.score);
    return st;
}

static cn_status run_stage(cn_stream *s, const cn_attend_selected_args *a, uint32_t i,
                           uint32_t *done)
{
    const selected_stage st = stage_of(a, i);
    uint32_t *counts;
    CN_TRY(cn_score_launch(s, &st.score, a->attn.layer > 0, &counts));
    return cn_select_launch(s, &st.select, counts, done);
}

/* Both stages, where tokens are ranked in the kernel that selects tiles. Rows that all rank an
 * exchange area have no tiles to select. */
static cn_status run_in_tiles(cn_stream *s, const cn_attend_selected_args *a,
                              const selected_stage *tokens, uint32_t *done)
{
    const selected_stage tiles = stage_of(a, 0);
    cn_in_tiles both = {tiles.select, tokens->score, tokens->select, NULL, done, true};
    if (a->route & CN_ROUTE_TILES) {
        both.is_first = false;
        CN_TRY(cn_score_launch(s, &tiles.score, a->attn.layer > 0, &both.counts));
    }
    return cn_in_tiles_launch(s, &both);
}

cn_status cn_cuda_attend_selected(cn_stream *s, const cn_attend_selected_args *a)
{
    const cn_batch_view batch = cn_selected_batch(a);
    const cn_list_attn_args attention = cn_selected_attention(a, &batch);
    uint32_t *done = NULL;
    if (a->n_rows == 0) return CN_OK;
    if (cn_route_keys(a->route)) {
        const selected_stage tokens = stage_of(a, 1);
        done = cn_select_done(s, a->n_rows * a->attn.layout.n_kv_heads);
        if ((a->route & CN_ROUTE_IN_TILES) && cn_in_tiles_fits(s, &tokens.score)) {
            CN_TRY(run_in_tiles(s, a, &tokens, done));
        } else {
            if (a->route & CN_ROUTE_TILES) CN_TRY(run_stage(s, a, 0, NULL));
            CN_TRY(run_stage(s, a, 1, done));
        }
    }
    return cn_cuda_attn_lists(s, &attention, done);
}
