/* step_graph.h - decode steps that are recorded once and replayed, so that one host call runs the
 * forward pass of a step. The sample op runs behind it.
 *
 * Owner: cn_engine. Thread: engine only.
 *
 * A graph has a fixed number of rows, its bucket; a smaller step is padded. Everything that changes
 * between steps is in device arrays (engine/batch.h). Their addresses are fixed, except that steps
 * alternate between two sets of output arrays (cn_flight); each bucket is therefore recorded once
 * for each set, and once for each route of selection (engine/select/select.h) that a declared
 * selector can need. Only steps in which every row decodes and samples, and in which all candidates
 * fit the scratch together, are replayed. Others run op by op. The op `digest` follows the graph:
 * its tiles are arguments, and few steps complete one. */
#ifndef CN_STEP_GRAPH_H
#define CN_STEP_GRAPH_H

#include "engine/engine_state.h"

/* Records all buckets up to max_num_seqs in each route and logs one line. Does nothing for a
 * backend without graphs, with --enforce-eager, or with --dump. */
cn_status cn_step_graphs_record(cn_engine *e);
void cn_step_graphs_free(cn_engine *e);

/* The smallest bucket that holds the plan, and the route that it needs; 0 rows when it must run
 * op by op. */
cn_step_shape cn_step_graph_shape(const cn_engine *e, const cn_plan *plan);

/* Replays the model's ops of a shape (from cn_step_graph_shape) for flight f. */
cn_status cn_step_graph_launch(cn_engine *e, cn_step_shape shape, const cn_flight *f);

/* In engine.c: enqueues the model's ops of a step, for n_rows logit rows. hook: as in
 * cn_model_pass. */
cn_status cn_engine_run_model(cn_engine *e, uint32_t n_rows, const cn_layer_hook *hook);

#endif
