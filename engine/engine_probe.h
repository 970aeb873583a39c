/* engine_probe.h - what benchmarks ask of an engine beyond its statistics: the bytes that a step
 * must read, the yardsticks of its device, and what compression made requests wait.
 *
 * Owner: cn_engine. Thread: the engine's. Stage: between steps, never inside one. */
#ifndef CN_ENGINE_PROBE_H
#define CN_ENGINE_PROBE_H

#include "compress/events.h"
#include "engine/engine.h"

/* Weights that every decode step reads: all but the embedding table, of which it reads a row per
 * request, unless that table is the output matrix too. */
uint64_t cn_engine_step_weight_bytes(const cn_engine *e);

/* K and V of one resident token, all layers. */
uint64_t cn_engine_kv_token_bytes(const cn_engine *e);

/* Bytes a second at which the device reads the KV pool in one pass (op mem_sum), the best of a few.
 * 0 for a backend without the op. Waits for all work. */
cn_status cn_engine_read_bandwidth(cn_engine *e, double *bytes_per_s);

/* Seconds of the matrix products of a prefill of n_tokens tokens alone, cut into steps as the
 * scheduler would, with one row of logits; the best of a few. Waits for all work. */
cn_status cn_engine_products_time(cn_engine *e, uint32_t n_tokens, double *seconds);

/* Seconds of one decode step of `rows` requests when nothing lies between it and the next: the
 * recorded graph of the step last launched, started n times in a row. 0 when that backend runs
 * without graphs. The last step must have been a decode step of that many rows. Its requests can
 * go on, but what they hold and say is of no use any more. Waits for all work. */
cn_status cn_engine_replay_time(cn_engine *e, uint32_t rows, uint32_t n, double *seconds);

/* Totals since the engine's start; zeros where no declared policy compresses. */
const cn_event_stats *cn_engine_event_stats(const cn_engine *e);

#endif
