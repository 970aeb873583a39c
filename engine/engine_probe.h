/* engine_probe.h - checks and figures beyond the engine's statistics: whether requests can run
 * together, the bytes that a step must read, the time that requests waited for compression, and
 * what selectors choose.
 *
 * Owner: cn_engine. Thread: the engine's. Stage: between steps, never inside one. */
#pragma once

#include "compress/events.h"
#include "engine/engine.h"
#include "engine/select/select_probe.h"

/* CN_ERR_ARG when the engine would refuse every request with these parameters. */
cn_status cn_engine_check_kv(const cn_engine *e, const cn_kv_params *kv);

/* CN_ERR_ARG, with the numbers, when n requests of these lengths and parameters can never decode at
 * the same time: one is refused, the pool of the device or of the home has too few blocks, or the
 * device too few query slots. */
cn_status cn_engine_check_batch(const cn_engine *e, uint32_t n, uint32_t n_prompt,
                                uint32_t max_output, const cn_kv_params *kv);

/* Submits a request and drops it again, so that the engine runs nothing. Its errors are those of
 * cn_engine_submit. */
cn_status cn_engine_check_request(cn_engine *e, const cn_request_params *p);

/* Bytes of weights that a decode step of n_rows requests reads (cn_weights_step_bytes). */
double cn_engine_step_weight_bytes(const cn_engine *e, uint32_t n_rows);

/* Bytes that a decode step reads for a request that holds `resident` tokens: K and V of all, or
 * what its selector reads (engine/select/select_cost.h). Weights are not included. */
double cn_engine_row_bytes(const cn_engine *e, const cn_kv_params *kv, double resident);

/* True on the CPU backend. */
bool cn_engine_is_on_cpu(const cn_engine *e);

/* Rows of a step whose matrix products take as long as reading the weights, roughly: a property of
 * the device's kind. */
double cn_engine_rows_of_weights(const cn_engine *e);

/* Blocks at which a request with these parameters is compressed; 0: never. */
uint32_t cn_engine_cap_blocks(const cn_engine *e, const cn_kv_params *kv);

/* Entries of the exchange area of a request, over all layers and kv heads; 0 with home `device`. */
uint32_t cn_engine_exchange_entries(const cn_engine *e, const cn_kv_params *kv);

/* Forces churn on the exchanges of the steps that are launched from now on (engine/home/churn.h).
 * share: 0: scores decide. */
void cn_engine_force_churn(cn_engine *e, float share);

/* Totals since the engine's start; zeros if no declared policy compresses. */
const cn_event_stats *cn_engine_event_stats(const cn_engine *e);

/* From now on measures the selections of the decode steps whose position is a multiple of `every`.
 * Call once, with every > 0, on an engine that runs on the CPU and declares a selector.
 * CN_ERR_MEMORY. */
cn_status cn_engine_probe_selection(cn_engine *e, uint32_t every);

/* Returns the sums since the last call; zeros if selection is not measured. The next step of a
 * request then has no churn. */
cn_select_figures cn_engine_take_selection(cn_engine *e);
