/* attend_lists.h - attend_selected without a stage: attention to given lists. */
#pragma once

#include "tests/lib/paged_batch.h"

/* Lists and tails of decode rows, in the backend's memory (cn_select_rows). */
typedef struct attend_lists {
    uint32_t *index, stride; /* [n_decode, hk, stride] */
    const uint32_t *list_len, *tail, *lengths;
} attend_lists;

static inline cn_status attend_to_lists(cn_backend *be, cn_stream *s, const cn_attn_args *attn,
                                        const attend_lists *lists)
{
    static const cn_sel_stage none[PAGED_MAX_SEQS];
    static const uint32_t zeros[PAGED_MAX_SEQS];
    const cn_sel_forms no_forms = {{0}};
    cn_attend_selected_args a = {.attn = *attn,
                                 .pools = {.layout = attn->layout, .n_heads = attn->n_heads},
                                 .rows = {.n_forced = zeros,
                                          .seed = zeros,
                                          .list_len = lists->list_len,
                                          .tail = lists->tail,
                                          .lengths = lists->lengths},
                                 .scratch = {.list = lists->index, .list_stride = lists->stride},
                                 .n_rows = attn->batch->n_decode};
    for (uint32_t i = 0; i < CN_SELECT_STAGES; i++) a.rows.stage[i].stage = none;
    if (be->select_route) a.route = be->select_route(&no_forms, &no_forms);
    return be->attend_selected(s, &a);
}
