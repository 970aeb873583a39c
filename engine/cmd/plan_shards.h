/* plan_shards.h - how many GPUs a file of requests can use: `cinch plan --lines N`.
 *
 * A GPU begins with loading the model. While lines are left all its seats are taken; then it ends
 * with ever fewer requests, at the length of the longest. Both are lost time, the more of it the
 * fewer lines a GPU has. A step of n requests takes base + n * each seconds, and every request
 * grows by one token in a step.
 *
 * Owner: plan.c. Thread: main. */
#pragma once

#include <jansson.h>

#include "engine/options/options.h"

typedef struct cn_shard_model {
    uint32_t slots;                 /* requests at once */
    double base_s, each_s, start_s; /* of a step, of a request in it, before the first step */
    bool measured;                  /* the times of a step */
    /* Output tokens of a request: drawn from these, or if n is 0 lognormal with this median, a
     * sigma of 1 and this maximum. */
    uint32_t *lengths;
    size_t n_lengths;
    double median;
    uint32_t most;
} cn_shard_model;

typedef struct cn_plan_shards {
    cn_shard_model model;
    uint64_t n_lines;          /* 0: not asked for */
    uint64_t n_lines_of_a_gpu; /* with fewer, over a tenth of the time is lost */
    uint64_t n_gpus;           /* with more, over a tenth is lost */
    double lost;               /* part of the time with n_gpus */
    double mean_tokens;        /* of the lengths that were drawn */
} cn_plan_shards;

/* The part of a GPU's time that is lost with this many lines, the mean of four draws. */
double cn_shard_loss(const cn_shard_model *m, uint64_t n_lines, double *mean_tokens);

/* s->model has slots and times. Reads the lengths and sets the rest. CN_ERR_ARG: the file of
 * --lengths has no answer. */
cn_status cn_plan_shards_make(cn_plan_shards *s, const cn_config *c, uint32_t context);
void cn_plan_shards_print(const cn_plan_shards *s, const cn_config *c);
json_t *cn_plan_shards_json(const cn_plan_shards *s); /* null: not asked for */
void cn_plan_shards_free(cn_plan_shards *s);
