/* time_forecast.h - how long a batch will still run.
 *
 * Time is counted in bytes that the device reads: a step reads the weights once, and the KV of each
 * running line; the products of a line count as bytes too. Contexts grow and the longest lines run
 * alone at the end, so the second half of a batch may cost much more or less than the first. A line
 * that begins costs time too, because its prompt is computed: the bytes missed when lines began
 * tell how much. The bytes per second so far give the time left.
 *
 * Owner: the caller; plain values. Thread: any. Stage: beside all stages. */
#pragma once

#include "engine/base/base.h"

/* What a step costs. The zero value counts tokens alone. */
typedef struct cn_step_cost {
    double weights, token; /* bytes of the weights, and of a token in the KV cache */
    double rows;           /* rows of a step whose products take as long as reading the weights */
    double most_kv;        /* most tokens that a line holds in the KV cache; 0: no bound */
} cn_step_cost;

/* What a batch has done and has to do, at one time. */
typedef struct cn_batch_work {
    uint64_t tokens, begun;     /* so far: output tokens, and lines that have one */
    uint64_t running;           /* lines that have a token and have not ended */
    uint64_t to_begin;          /* lines that have no token */
    uint64_t running_tokens;    /* output tokens of lines that have not ended */
    uint64_t most_tokens;       /* that one of them may have */
    double kv;                  /* tokens in the KV cache of the running lines */
    double to_come, kv_to_come; /* estimates, see cn_to_come */
    double steps;               /* cn_steps_to_come */
    bool at_most;               /* no line has finished: every line counts with its limit */
} cn_batch_work;

/* Weighed sums over the samples. The weight of a sample falls by e in as much time as the batch
 * will still run, at least a minute: a slow phase that is short beside the time left counts little,
 * and near the end the newest pace counts. */
typedef struct cn_pace {
    double at_s; /* of the last sample; 0: none */
    uint64_t at_tokens, at_begun;
    double seconds, tokens, bytes, begun;
    double begun_bytes, begun_begun; /* sums of products over seconds */
    double left_s;                   /* known if tokens > 0 */
} cn_pace;                           /* zero-initialise */

/* Adds a sample at now_s (cn_now_s) and sets left_s. Time before the first token does not count. */
void cn_pace_add(cn_pace *p, double now_s, const cn_step_cost *cost, const cn_batch_work *w);

/* Output tokens per second. 0: not known. */
double cn_pace_tokens_per_s(const cn_pace *p);
