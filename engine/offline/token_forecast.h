/* token_forecast.h - how many output tokens a batch will still generate, and in how many steps. The
 * lengths of finished lines, and of running lines, whose final length is at least that so far, give
 * the distribution of lengths (Kaplan-Meier). The mean of the finished lines would be too low,
 * because short lines finish first. Without finished lines every line counts with its limit.
 *
 * Owner: the caller; plain values. Thread: any. Stage: beside all stages. */
#pragma once

#include "engine/base/base.h"

/* Lengths to 63 have a bucket each; longer ones have 16 buckets for each doubling. */
enum { CN_LENGTH_EXACT = 64, CN_LENGTH_STEPS = 16, CN_LENGTH_BUCKETS = 64 + 24 * 16 };

typedef struct cn_lengths {
    uint32_t n[CN_LENGTH_BUCKETS];
    uint64_t count, sum;
} cn_lengths; /* zero-initialise */

void cn_lengths_add(cn_lengths *l, uint64_t tokens);

/* Lines that have not finished. */
typedef struct cn_unfinished {
    cn_lengths running; /* tokens so far */
    uint64_t limit_sum; /* most tokens that the running lines may have, summed */
    uint64_t unread;    /* lines that have not begun */
    uint64_t limit;     /* most tokens of a line that has not begun, if no line is running */
    double prompt;      /* mean prompt tokens of a line */
    double most_kv;     /* most tokens that a line holds in the KV cache; 0: no bound */
} cn_unfinished;

/* What the unfinished lines are expected to add. kv: for each output token, the tokens that its
 * line then holds in the KV cache, summed. */
typedef struct cn_to_come {
    double tokens, kv;
} cn_to_come;
cn_to_come cn_tokens_to_come(const cn_lengths *finished, const cn_unfinished *u);

/* Tokens that the running lines hold in the KV cache. */
double cn_kv_now(const cn_unfinished *u);

/* Steps until the last line is expected to end, if the running lines that have a token keep their
 * number and each gets one token per step. More than the tokens over the running lines, because the
 * longest lines run alone at the end. 0: no line runs. */
double cn_steps_to_come(const cn_lengths *finished, const cn_unfinished *u);
