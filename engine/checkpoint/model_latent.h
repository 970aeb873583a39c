/* model_latent.h - latent attention (MLA) of a model, from config.json.
 *
 * Owner: none; plain functions. Thread: any. Stage: start, as a part of model_config.h. */
#pragma once

#include "engine/base/json.h"
#include "engine/checkpoint/model_config.h"

/* Fills c->latent, n_kv_heads and head_dim; `defaults` are those of absent keys. n_heads is known.
 * CN_ERR_MODEL names what is not supported. */
cn_status cn_read_latent(const cn_json_at *a, const cn_latent *defaults, cn_model_config *c);
