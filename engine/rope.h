/* rope.h - rotary position embedding: frequencies and the cos/sin table.
 *
 * Owner: engine (weights and tables are made once at start). Thread: any. Stage: loading.
 *
 * The arithmetic follows transformers, in which the models were trained and are evaluated:
 * frequencies are f32 and an angle is the f32 product of position and frequency; only the cosine
 * and sine of that angle are taken in double and rounded once. At position 100,000 an angle
 * computed wholly in double would differ by up to 0.004 rad. */
#ifndef CN_ROPE_H
#define CN_ROPE_H

#include "engine/base.h"
#include "engine/checkpoint/model_config.h"

/* inv_freq[head_dim/2], f32: radians per position of each dimension pair (i, i + head_dim/2), after
 * llama3 or YaRN scaling. */
void cn_rope_inv_freq(const cn_model_config *c, float *inv_freq);

/* cos and sin, each [n_positions, head_dim/2] f32, of positions 0..n_positions-1, times the
 * attention factor of YaRN. */
void cn_rope_table(const cn_model_config *c, uint32_t n_positions, float *cos_out, float *sin_out);

#endif
