/* step_graph.h - decode steps recorded once and replayed: a device runs a whole step, forward pass
 * and sampling, at one call of the host. Owner: cn_engine. Thread: engine only.
 *
 * A graph has a fixed number of rows, its bucket; a smaller step is padded. What changes from step
 * to step lies in device arrays (engine/batch.h); addresses do not change, except that two sets of
 * output arrays take turns (cn_flight), so each bucket is recorded once for either. Only steps in
 * which every row decodes and samples are replayed; others run op by op. */
#ifndef CN_STEP_GRAPH_H
#define CN_STEP_GRAPH_H

#include "engine/engine_state.h"

enum { CN_GRAPH_ROWS_STEP = 8 }; /* buckets are 1, 2, 4 and the multiples of it */

/* Records all buckets up to max_num_seqs, with a line of progress. Does nothing for a backend
 * without graphs, under --enforce-eager, or while tensors are dumped. */
cn_status cn_step_graphs_record(cn_engine *e);
void cn_step_graphs_free(cn_engine *e);

/* Rows of the smallest bucket that holds the plan, or 0 when it must run op by op. */
uint32_t cn_step_graph_rows(const cn_engine *e, const cn_plan *plan);

/* Replays the step of `rows` (from cn_step_graph_rows) into flight f. */
cn_status cn_step_graph_launch(cn_engine *e, uint32_t rows, const cn_flight *f);

/* engine.c: the step's ops themselves, on stream 0, for n_rows logit rows. */
cn_status cn_engine_run_ops(cn_engine *e, cn_flight *f, uint32_t n_rows);

#endif
