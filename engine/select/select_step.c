/* select_step.c - see select_step.h. */
#include "engine/select/select_probe.h"

/* Elements of the predicted queries of a sequence: all layers that select. */
static size_t predicted_stride(const cn_select_step *p)
{
    const cn_kv_layout *l = &p->pools->layout;
    return (size_t)(l->n_layers - p->first_layer) * p->pools->n_heads * l->head_dim;
}

/* The queries of one layer, predicted as they are in the ring, then multiplied. */
static cn_status predict_latent(const cn_backend *be, cn_stream *s, const cn_pools *pools,
                                const cn_predict_args *a, uint32_t layer, void *raw)
{
    const cn_kv_layout *l = &pools->layout;
    const uint32_t rank = l->part[CN_KV_V].width, n_rotated = l->head_dim - rank;
    const size_t at = (size_t)layer * a->n_heads * l->head_dim * cn_dtype_bytes(pools->act_dtype);
    cn_predict_args one = *a;
    one.head_dim = l->query_dim;
    one.n_fixed = l->query_dim - n_rotated;
    one.first_layer = a->first_layer + layer;
    one.n_layers = 1;
    one.out = raw;
    one.out_stride = (size_t)a->n_heads * l->query_dim;
    CN_TRY(be->predict(s, &one));
    const cn_heads_gemm_args product = {.out = (char *)a->out + at,
                                        .x = raw,
                                        .weight = pools->latent.weights[one.first_layer],
                                        .weight_stride = pools->latent.weight_stride,
                                        .out_stride = a->out_stride,
                                        .n_tokens = a->n_seqs,
                                        .n_heads = a->n_heads,
                                        .n = rank,
                                        .k = one.n_fixed,
                                        .n_copied = n_rotated,
                                        .by_rows = true};
    return be->heads_gemm(s, &product);
}

cn_status cn_select_predict_keys(const cn_backend *be, cn_stream *s, const cn_pools *pools,
                                 cn_predict_args a, void *raw)
{
    a.head_dim = pools->layout.head_dim;
    if (!cn_kv_layout_is_shared(&pools->layout)) return be->predict(s, &a);
    for (uint32_t i = 0; i < a.n_layers; i++)
        CN_TRY(predict_latent(be, s, pools, &a, i, raw));
    return CN_OK;
}

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
        .out_stride = predicted_stride(p),
    };
    return cn_select_predict_keys(p->be, p->stream, p->pools, a, p->scratch->raw_predicted);
}

/* The queries that were predicted for a layer. */
static const void *predicted_of(const cn_select_step *p, uint32_t layer)
{
    const size_t q_row = (size_t)p->pools->n_heads * p->pools->layout.head_dim;
    const size_t at = (layer - p->first_layer) * q_row * cn_dtype_bytes(p->pools->act_dtype);
    return p->scratch->predicted ? (const char *)p->scratch->predicted + at : NULL;
}

cn_status cn_select_attend(const cn_select_step *p, const cn_attn_args *attn)
{
    const cn_select_view *v = p->view;
    cn_attend_selected_args a = {
        .attn = *attn,
        .pools = *p->pools,
        .rows = v->rows,
        .scratch = *p->scratch,
        .predicted = predicted_of(p, attn->layer),
        .predicted_stride = predicted_stride(p),
        .route = v->route,
    };
    for (uint32_t i = 0; i < v->n_ranges; i++) {
        a.first_row = v->ranges[i].start;
        a.n_rows = v->ranges[i].end - a.first_row;
        CN_TRY(p->be->attend_selected(p->stream, &a));
    }
    return p->probe ? cn_select_probe_observe(p->probe, p, &a) : CN_OK;
}
