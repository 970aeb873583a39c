/* step_graph.h - decode steps that are recorded once and replayed, so that one host call runs a
 * whole step (forward pass and sampling).
 *
 * Owner: cn_engine. Thread: engine only.
 *
 * A graph has a fixed number of rows, its bucket; a smaller step is padded. Everything that changes
 * between steps is in device arrays (engine/batch.h). Their addresses are fixed, except that steps
 * alternate between two sets of output arrays (cn_flight); each bucket is therefore recorded once
 * for each set. Only steps in which every row decodes, samples and attends to all its tokens are
 * replayed. Others run op by op. */
#ifndef CN_STEP_GRAPH_H
#define CN_STEP_GRAPH_H

#include "engine/engine_state.h"

enum { CN_GRAPH_ROWS_STEP = 8 }; /* buckets are 1, 2, 4 and its multiples */

/* Records all buckets up to max_num_seqs and logs one line. Does nothing for a backend without
 * graphs, with --enforce-eager, or with --dump. */
cn_status cn_step_graphs_record(cn_engine *e);
void cn_step_graphs_free(cn_engine *e);

/* Rows of the smallest bucket that holds the plan, or 0 when it must run op by op. */
uint32_t cn_step_graph_rows(const cn_engine *e, const cn_plan *plan);

/* Replays the step of `rows` (from cn_step_graph_rows) into flight f. */
cn_status cn_step_graph_launch(cn_engine *e, uint32_t rows, const cn_flight *f);

/* In engine.c: enqueues the ops of a step on the model's stream, for n_rows logit rows. */
cn_status cn_engine_run_ops(cn_engine *e, cn_flight *f, uint32_t n_rows);

#endif
