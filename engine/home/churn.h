/* churn.h - forced churn, for benchmarks: the set that an exchange wants is a run of candidates
 * that advances by a share of its length a step, whatever the scores. So churn is the same in every
 * layer and kv head, also with random weights, whose scores change with every step.
 *
 * Owner: cn_home. Thread: engine. Stage: 6 of the path of a request. */
#pragma once

#include "engine/options/options.h"

enum { CN_CHURN_BUFFERS = 2 * CN_MAX_PACKS + 1 }; /* two steps of all packs, and fills */

typedef struct cn_churn {
    float share; /* of the wanted set */
    struct {
        uint16_t *at;
        size_t n;
    } buffers[CN_CHURN_BUFFERS]; /* host: scores on their way to the device */
} cn_churn;

/* The first of the k wanted candidates of n when the newest query is at this position. The run goes
 * around in the largest power of two that n holds, so that a few more candidates do not move it. */
uint32_t cn_churn_start(float share, uint32_t newest, uint32_t k, uint32_t n);
/* Writes the scores of n candidates: the run of k is above all others. */
void cn_churn_scores(uint16_t *score, uint32_t newest, uint32_t k, uint32_t n, float share);
/* Sets *score to a buffer of at least n scores. CN_ERR_MEMORY. */
cn_status cn_churn_take(cn_churn *c, uint32_t buffer, size_t n, uint16_t **score);
void cn_churn_free(cn_churn *c);
