/* device_times.h - how fast the device of an engine reads memory, multiplies matrices and replays
 * steps.
 *
 * Owner: the caller. Thread: the engine's. Stage: between steps, never inside one. */
#pragma once

#include "engine/engine.h"

/* Bytes per second at which the device reads the KV pool in one pass (op mem_sum); the best of 3
 * passes. 0 for a backend without the op. Waits for all work. */
cn_status cn_engine_read_bandwidth(cn_engine *e, double *bytes_per_s);

/* Seconds that the matrix products of a prefill of n_tokens tokens take, and nothing else of it.
 * The prefill is split into steps as by the scheduler and has one row of logits. The best of 3
 * runs. Waits for all work. */
cn_status cn_engine_products_time(cn_engine *e, uint32_t n_tokens, double *seconds);

/* Seconds of the last launched step without host work between steps: replays its graph n times in a
 * row. 0 when it ran op by op. The requests of the step can continue, but their KV and output are
 * invalid afterwards. Waits for all work. */
cn_status cn_engine_replay_time(cn_engine *e, uint32_t n, double *seconds);
