/* rope.h - rotary position embedding: frequencies and the cos/sin table.
 *
 * Owner: engine (it computes the tables once at start). Thread: any. Stage: loading.
 *
 * The arithmetic follows transformers, with which the models were trained and are evaluated.
 * Frequencies are f32, and an angle is the f32 product of position and frequency. Only cosine and
 * sine are computed in double and rounded once. At position 100,000 an angle computed entirely in
 * double would differ by up to 0.004 rad. */
#pragma once

#include "engine/checkpoint/model_config.h"

/* inv_freq[head_dim/2], f32: radians per position of each dimension pair (i, i + head_dim/2), after
 * llama3 or YaRN scaling. */
void cn_rope_inv_freq(const cn_model_config *c, float *inv_freq);

/* cos_out and sin_out, each [n_positions, head_dim/2] f32, for positions first .. first +
 * n_positions - 1, times the attention factor of YaRN. */
void cn_rope_table(const cn_model_config *c, uint32_t first, uint32_t n_positions, float *cos_out,
                   float *sin_out);
