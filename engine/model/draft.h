/* draft.h - the retrieval head of selector `spec` in a forward pass: it writes the draft K of a
 * step's tokens and, before layer 0, selects the tokens that all layers of a row attend to.
 * SELECTION.md §9.
 *
 * Owner: cn_engine. Thread: engine. Stage: 6 of the path of a request. */
#ifndef CN_DRAFT_H
#define CN_DRAFT_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/select/select_step.h"
#include "engine/start/start_plan.h"

typedef struct cn_draft {
    /* Memory of the start plan. */
    void *norm, *q_proj, *k_proj; /* [h], [hq * d, h], [hk * d, h] */
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

/* Stores the draft K of all tokens of a batch, and computes the queries of its decode rows.
 * embedded: act [T, h], not changed. */
cn_status cn_draft_store(const cn_draft *d, cn_stream *s, const cn_batch_view *b,
                         const cn_pools *pools, void *embedded);

/* Selects for the rows that rank before layer 0. Their lists are in step->scratch->list then. */
cn_status cn_draft_select(const cn_draft *d, const cn_select_step *step);

#endif
