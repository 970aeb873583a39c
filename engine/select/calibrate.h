/* calibrate.h - measures which channels of the keys matter: runs a model densely over text on the
 * CPU and ranks the channels of each kv head by the products of queries and keys. The mean of a
 * channel moves all logits of a query alike, so it is subtracted from keys before.
 *
 * Owner: `cinch calibrate`. Thread: one. Stage: none; no engine exists. */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"

typedef struct cn_calibrator cn_calibrator;

/* Loads the model. max_tokens is the largest window. CN_ERR_ARG when it exceeds the model's context
 * length; other errors are those of the checkpoint. */
cn_status cn_calibrator_create(cn_calibrator **out, const char *dir, uint32_t max_tokens);
void cn_calibrator_free(cn_calibrator *c); /* NULL is fine */

/* Runs the model over one window of 1 to max_tokens tokens and adds its queries and keys, both
 * after RoPE, to the sums. */
cn_status cn_calibrator_add(cn_calibrator *c, const uint32_t *tokens, uint32_t n);

const cn_model_config *cn_calibrator_config(const cn_calibrator *c);
uint64_t cn_calibrator_tokens(const cn_calibrator *c); /* added so far */

/* Writes the channels with the largest importance, ascending, and the mean of each of them over all
 * tokens, to arrays [n_layers, n_kv_heads, n]. Ties: the lower channel. Importance is
 * the sum over the query heads of a group of the maximum over tokens of |q * k|. */
void cn_calibrator_result(const cn_calibrator *c, uint16_t *channels, float *offsets);
