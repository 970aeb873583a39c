/* history.h - the engine's figures over the last minutes and the last day, for the server's page. A
 * timer samples them into two rings.
 *
 * Owner: the status part. Thread: one. Memory: fixed at creation. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

enum {
    CN_HISTORY_STEP_S = 2,      /* between two samples */
    CN_HISTORY_LONG_STEPS = 150 /* samples per point of the day ring: 5 minutes */
};

typedef enum cn_history_span {
    CN_HISTORY_RECENT, /* 6 minutes in steps of 2 s */
    CN_HISTORY_DAY,    /* 24 hours in steps of 5 minutes */
    CN_HISTORY_N_SPANS
} cn_history_span;

typedef struct cn_history cn_history;
cn_status cn_history_create(cn_history **out);
void cn_history_free(cn_history *h); /* NULL is fine */

/* Adds a sample at now_s (cn_now_s). Rates are per second since the previous sample, so the first
 * sample adds no point. */
void cn_history_add(cn_history *h, const cn_stats *s, double now_s);

/* {"step_s", "points", "output_tokens_per_s": [...], "prompt_tokens_per_s", "running", "waiting",
 * "kv_used", "kv_spared"}. points: the capacity. Arrays are oldest first; the last value is the
 * newest. kv_* are fractions of all blocks. kv_spared: the blocks that running requests would hold
 * in addition if nothing had been evicted. NULL: out of memory. */
json_t *cn_history_json(const cn_history *h, cn_history_span span);

/* Output tokens per second over the last n_samples samples. */
double cn_history_rate(const cn_history *h, uint32_t n_samples);
