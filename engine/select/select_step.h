/* select_step.h - the selection ops of a forward pass: predicts queries at the step's start, ranks
 * and selects in each layer, then attends. SELECTION.md §2.
 *
 * Owner: none; plain functions over a backend. Thread: engine. Stage: 6 of the path of a
 * request. */
#pragma once

#include "engine/select/select.h"

/* eps of SELECTION.md §4. The paper gives no value. */
#define CN_SELECT_RIDGE 0.01f

typedef struct cn_select_probe cn_select_probe; /* select_probe.h */

/* The arguments of one pass, for all its layers. */
typedef struct cn_select_step {
    const cn_backend *be;
    cn_stream *stream;
    const cn_batch_view *batch;
    const cn_pools *pools;
    const cn_select_view *view;
    const cn_select_scratch *scratch;
    uint32_t first_layer; /* layers below it are dense */
    const float *cos, *sin;
    cn_select_probe *probe; /* NULL: nothing is measured */
} cn_select_step;

/* Runs the op `predict` with a->head_dim, n_fixed and, of latent attention, the product of the
 * predicted queries with the key matrices: a->out [S, n_layers, hq, head_dim of K]. raw: memory of
 * the queries of one layer before that product, [S, hq, query_dim]; not used without. */
cn_status cn_select_predict_keys(const cn_backend *be, cn_stream *s, const cn_pools *pools,
                                 cn_predict_args a, void *raw);

/* Predicts the queries of all layers from the rings. Call before any layer writes a ring. */
cn_status cn_select_predict(const cn_select_step *p);

/* Attention of the decode rows in a layer that selects, after its K is stored. attn: as for
 * attn_decode, lengths unset. */
cn_status cn_select_attend(const cn_select_step *p, const cn_attn_args *attn);
