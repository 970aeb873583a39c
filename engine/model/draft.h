/* draft.h - the retrieval head of selector `spec` in a forward pass: it writes the draft K of a
 * step's tokens and, before layer 0, selects the tokens that all layers of a row attend to.
 * SELECTION.md §9.
 *
 * A head with hidden layers reads, beside the embedding of a token, the fused state of the token
 * before. Decode rows take it from the block of that token. Other tokens need states of this pass:
 * their draft K is stored when the last of the hidden layers begins.
 *
 * Owner: cn_engine. Thread: engine. Stage: 6 of the path of a request. */
#pragma once

#include "engine/checkpoint/checkpoint.h"
#include "engine/select/select_step.h"
#include "engine/start/start_plan.h"

typedef struct cn_draft {
    /* Memory of the start plan. */
    void *norm, *q_proj, *k_proj; /* [h], [hq * d, w], [hk * d, w]; w is h or, with states, 2 h */
    /* With hidden layers. */
    void *fc, *hidden_norm; /* [h, 3 h], [h] */
    void *states;           /* act [T, 3 h] that entered the hidden layers */
    void *fused;            /* act [T, h] their products with fc */
    void *before;           /* act [T, h] the fused states of the tokens before */
    void *input;            /* act [T, 2 h] */
    /* With every head. */
    float *cos, *sin;             /* [max_position, d/2]; cn_draft_cover writes them */
    void *normed;                 /* act [T, h] */
    void *queries;                /* act [rows, hq, d] */
    void *keys;                   /* act [T, hk, d] */
    /* Set by cn_draft_load. */
    cn_backend *be; /* NULL: no declared selector needs a head */
    cn_draft_head head;
    cn_model_config rope; /* what cn_rope_table reads */
    uint32_t hidden;
    float eps;
} cn_draft;

/* Adds its memory to the start plan, if p->model has a head. */
void cn_draft_declare(cn_start_plan *p, cn_draft *d);

/* Reads the weights. Does nothing without a head. CN_ERR_MODEL names the file. ck: of the model; it
 * gives dummy weights. */
cn_status cn_draft_load(cn_draft *d, cn_backend *be, cn_stream *s, const cn_config *c,
                        const cn_model_config *m, const cn_checkpoint *ck);

/* Writes the tables of RoPE for positions [first, first + n_positions), and waits for s. */
cn_status cn_draft_cover(const cn_draft *d, cn_stream *s, uint32_t first, uint32_t n_positions);

/* Stores the draft K of all tokens of a batch, or with hidden layers those of its decode rows, and
 * computes the queries of these. embedded: act [T, h], not changed. */
cn_status cn_draft_store(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                         const cn_pools *pools, void *embedded);

/* Called when a layer begins. residual: act [T, h], the states that enter it, not changed. With
 * hidden layers the last of them stores the other draft K, and the fused states. */
cn_status cn_draft_enter_layer(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                               const cn_pools *pools, const void *residual, uint32_t layer);

/* Selects for the rows that rank before layer 0. Their lists are in step->scratch->list then. */
cn_status cn_draft_select(const cn_draft *d, const cn_select_step *step);
