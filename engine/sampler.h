/* sampler.h - a request's sampling parameters on the host: checks, the seed, and the row that the
 * sample op reads. Stage 7 of a request's way; the draw itself is the backend's.
 * Thread: any; nothing here keeps state. */
#ifndef CN_SAMPLER_H
#define CN_SAMPLER_H

#include "engine/base.h"
#include "engine/ops.h"

enum {
    CN_MAX_SAMPLES = 1024, /* n */
    CN_MAX_STOP_STRINGS = 64,
    CN_MAX_STOP_BYTES = 1024, /* of one stop string */
    CN_MAX_STOP_TOKEN_IDS = 1024,
    CN_MAX_LOGIT_BIASES = 1024,
    CN_MAX_REPETITION_PATTERN = 1024 /* tokens */
};

/* CN_ERR_ARG names the field, its value and what is allowed. `vocab` bounds the token ids,
 * `max_model_len` the lengths. */
cn_status cn_sampling_check(const cn_sampling *p, uint32_t vocab, uint32_t max_model_len);

/* The request's own seed, or else a hash of the engine's with custom_id, or with request_number
 * where custom_id is NULL: the same request of another run, in another order, draws the same. */
uint64_t cn_sampling_seed(const cn_sampling *p, uint64_t engine_seed, const char *custom_id,
                          uint64_t request_number);

/* Whether a penalty is on, so that the request needs a row of token counts. */
bool cn_sampling_needs_counts(const cn_sampling *p);

/* Sets what the parameters say of a row; seed, sample, position, count_slot, bans and biases are
 * the caller's. No token is forced. */
void cn_sampling_row(const cn_sampling *p, cn_sample_row *row);

#endif
