/* weight_slice.c - see weight_slice.h. */
#include "engine/model/weight_slice.h"

/* Keeps the rank's share of `first` and `n`, which n_ranks divides. */
static void keep_share(const cn_model_config *c, uint64_t *first, uint64_t *n)
{
    CN_ASSERT(*n % c->n_ranks == 0);
    *n /= c->n_ranks;
    *first = *n * c->rank;
}

cn_weight_slice cn_weight_slice_of(const cn_model_config *c, const cn_weight_part *p)
{
    cn_weight_slice s = {.n_rows = p->tensor.rows,
                         .n_cols = p->tensor.cols,
                         .first_elem = p->first_elem};
    if (c->n_ranks == 0) return s;
    switch (p->id) {
    case CN_W_QKV:
    case CN_W_GATE_UP:
        keep_share(c, &s.first_row, &s.n_rows);
        s.first_elem /= c->n_ranks; /* of the parts before it the rank has a share too */
        break;
    case CN_W_QKV_BIAS:
        keep_share(c, &s.first_col, &s.n_cols);
        s.first_elem /= c->n_ranks;
        break;
    case CN_W_O:
    case CN_W_DOWN:
        keep_share(c, &s.first_col, &s.n_cols);
        break;
    case CN_W_O_BIAS:
        if (c->rank > 0) s.n_rows = 0;
        break;
    case CN_W_LM_HEAD: /* n_ranks may not divide the vocabulary */
        s.first_row = cn_head_first_row(c, c->rank);
        s.n_rows = cn_head_rows(c);
        break;
    default:
        break;
    }
    return s;
}
