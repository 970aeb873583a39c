/* token_forecast.h - how many output tokens a batch will still generate. The lengths of finished
 * lines, and of running lines, whose final length is at least that so far, give the distribution of
 * lengths (Kaplan-Meier). Without finished lines every line counts with its limit.
 *
 * Owner: the caller; plain values. Thread: any. Stage: beside all stages. */
#ifndef CN_TOKEN_FORECAST_H
#define CN_TOKEN_FORECAST_H

#include "engine/base.h"

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
} cn_unfinished;

/* Output tokens that the unfinished lines are expected to add. */
double cn_tokens_to_come(const cn_lengths *finished, const cn_unfinished *u);

#endif
