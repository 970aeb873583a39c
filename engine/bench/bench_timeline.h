/* bench_timeline.h - a CSV file of an engine's activity over time, with a row per interval.
 *
 * Owner: the caller. Thread: the engine's. Stage: between steps.
 * Columns: time_s since the first tick. steps, output_tokens, preemptions, recomputed_tokens and
 * compressions count within the interval. running, waiting, compressing and blocks_used are the
 * values at its end. */
#pragma once

#include "engine/engine.h"

typedef struct cn_timeline cn_timeline;

cn_status cn_timeline_open(cn_timeline **out, const char *path, double interval_s);

/* Call before each step. Writes a row when the interval is over. */
cn_status cn_timeline_tick(cn_timeline *t, const cn_engine *e);

/* Writes the last row, closes the file and frees t (NULL is fine). CN_ERR_IO if anything could not
 * be written. */
cn_status cn_timeline_close(cn_timeline *t, const cn_engine *e);
