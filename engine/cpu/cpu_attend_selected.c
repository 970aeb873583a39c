/* cpu_attend_selected.c - attend_selected: ranks tiles, then tokens, then attends to the lists. */
#include "engine/cpu/cpu_ops.h"

static bool stage_runs(const cn_attend_selected_args *a, uint32_t stage)
{
    for (uint32_t r = a->first_row; r < a->first_row + a->n_rows; r++)
        if (a->rows.stage[stage].stage[r].active) return true;
    return false;
}

cn_status cn_cpu_attend_selected(cn_stream *s, const cn_attend_selected_args *a)
{
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++) {
        if (!stage_runs(a, i)) continue;
        const cn_score_args score = cn_selected_score(a, i, true);
        const cn_select_args select = cn_selected_select(a, i, &score);
        CN_TRY(cn_cpu_score(s, &score));
        CN_TRY(cn_cpu_select(s, &select));
    }
    const cn_batch_view batch = cn_selected_batch(a);
    const cn_list_attn_args attention = cn_selected_attention(a, &batch);
    return cn_cpu_attn_lists(s, &attention);
}
