/* sampler.h - a request's sampling parameters on the host: checks, the seed, and the row that the
 * sample op reads. The backend draws the token.
 *
 * Thread: any; no state. Stage 7 of the path of a request. */
#pragma once

#include "engine/base/base.h"
#include "engine/ops.h"

enum {
    CN_MAX_SAMPLES = 1024, /* n */
    CN_MAX_STOP_STRINGS = 64,
    CN_MAX_STOP_BYTES = 1024, /* of one stop string */
    CN_MAX_STOP_TOKEN_IDS = 1024,
    CN_MAX_LOGIT_BIASES = 1024,
    CN_MAX_BAD_WORDS = 1024,
    CN_MAX_BAD_WORD_BYTES = 1024, /* of one bad word */
    CN_MAX_REPETITION_PATTERN = 1024 /* tokens */
};

#define CN_WHITE_SPACE " \t\n\r\f\v"

/* CN_ERR_ARG names the field, its value and the allowed values. `vocab` bounds the token ids,
 * `max_model_len` the lengths. */
cn_status cn_sampling_check(const cn_sampling *p, uint32_t vocab, uint32_t max_model_len);

/* The request's own seed if it has one. Otherwise a hash of the engine's seed and custom_id, or of
 * the engine's seed and request_number if custom_id is NULL. A request with a custom_id therefore
 * draws the same tokens in another run, in any order of requests. */
uint64_t cn_sampling_seed(const cn_sampling *p, uint64_t engine_seed, const char *custom_id,
                          uint64_t request_number);

/* Whether the request needs a row of token counts, because a penalty is on. */
bool cn_sampling_needs_counts(const cn_sampling *p);

/* Sets the fields of a row that come from the parameters, and forces no token. The caller sets
 * seed, sample, position, count_slot, bans and biases. */
void cn_sampling_row(const cn_sampling *p, cn_sample_row *row);
