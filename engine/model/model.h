/* model.h - the forward pass, written once over a backend's op table.
 *
 * Owner: engine. Thread: engine. Stage: 6 of the path of a request: a batch in, logits out.
 *
 * cn_model_config and cn_weights describe what differs between architectures (q/k norms, biases,
 * tied embeddings, rope scaling). An op gets NULL for a norm or bias that the model does not have.
 */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/model/draft.h"
#include "engine/model/dump.h"
#include "engine/model/model_ranks.h"
#include "engine/model/pass.h"
#include "engine/model/weights.h"
#include "engine/ops.h"
#include "engine/select/select_step.h"
#include "engine/start/start_plan.h"

typedef struct cn_model cn_model;

typedef struct cn_model_opts {
    cn_backend *backend;
    cn_stream *stream; /* writes the rope tables; each forward pass is given its own stream */
    const cn_model_config *config; /* copied; of the rank when the model is split */
    const cn_model_ranks *ranks;   /* borrowed; NULL: the model is not split */
    const cn_weights *weights;     /* borrowed */
    void *memory;                  /* backend memory, cn_model_workspace_bytes; borrowed */
    uint32_t max_tokens;           /* of a batch */
    uint32_t max_rows;             /* of logits */
    uint32_t max_position;         /* every position is less than this */
    uint32_t eager_positions;      /* in the rope tables at creation; 0: all */
    const cn_select_scratch *select; /* borrowed; unused by passes that select nothing */
    const cn_draft *draft;         /* borrowed; NULL, or its `be` is NULL: no retrieval head */
    uint32_t dense_layers;         /* first layers, in which every row attends to all tokens */
} cn_model_opts;

/* Lays out the workspace and writes the rope tables. CN_ERR_DEVICE names an op that the backend
 * lacks. */
cn_status cn_model_create(cn_model **out, const cn_model_opts *o);
void cn_model_free(cn_model *m); /* NULL is fine */

/* Extends the rope tables to the first n_positions positions. Call it before a pass with later ones
 * than eager_positions; it waits for s if it has to extend. */
cn_status cn_model_cover(cn_model *m, cn_stream *s, uint32_t n_positions);

/* Bytes of backend memory that a model needs. Reads only the dtypes of be. */
size_t cn_model_workspace_bytes(const cn_model_config *cfg, const cn_backend *be,
                                uint32_t max_tokens, uint32_t max_rows, uint32_t max_position);

/* Adds this memory to the start plan. *slot becomes cn_model_opts.memory. */
void cn_model_declare(cn_start_plan *p, void **slot);

/* Dumps tensors of later passes to d, which is borrowed (NULL: no dump). Pass n is step n. */
void cn_model_set_dump(cn_model *m, cn_dump *d);

/* Lets p, which is borrowed, observe the selections of later passes (NULL: nothing does). */
void cn_model_set_probe(cn_model *m, cn_select_probe *p);

/* The rope tables [max_position, d/2], on the device. */
void cn_model_rope(const cn_model *m, const float **cos, const float **sin);

/* Runs all layers over the batch of p and stores its K, V and observed queries in the pools.
 * Computes the logits of its logit rows. Enqueues on s and returns. */
cn_status cn_model_forward(cn_model *m, cn_stream *s, const cn_model_pass *p);
/* The f32 logits [n_rows, V] of the last pass, on the device; valid until the next pass. Of a split
 * model: those of rank 0, when all ranks have run the pass. */
float *cn_model_logits(const cn_model *m);

/* Computes the logits of other tokens of the last pass, whose view is b. They replace those of
 * before. */
cn_status cn_model_more_logits(cn_model *m, cn_stream *s, const cn_batch_view *b,
                               const uint32_t *logit_rows, uint32_t n_rows);

/* Enqueues only the matrix products of a pass of n_tokens tokens and n_rows rows of logits, on
 * whatever data the last pass left in the workspace. Benchmarks compare a prefill with it. */
cn_status cn_model_products(cn_model *m, cn_stream *s, uint32_t n_tokens, uint32_t n_rows);
