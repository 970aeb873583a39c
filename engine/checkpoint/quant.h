/* quant.h - which matrices of a checkpoint are FP8, from config.json or hf_quant_config.json.
 *
 * Owner: none; plain functions. Thread: any. Stage: start, as a part of model_config.h.
 *
 * Supported, with e4m3 weights:
 *   quant_method fp8                blocks of 128 x 128 (weight_scale_inv), or a scale for a tensor
 *   quant_method compressed-tensors format float-quantized: strategy block, channel or tensor
 *   quant_method modelopt           quant_algo FP8 (a scale for a tensor, static inputs) and
 *                                   FP8_PER_CHANNEL_PER_TOKEN
 * Embedding, head, norms, biases and routers are plain. So is what modules_to_not_convert,
 * ignored_layers, ignore or exclude_modules name: a module, or one of its parents; "re:" and a
 * regular expression that matches from the start of the name; or a name with the wildcards * and ?.
 * Other formats are refused by name. */
#pragma once

#include "engine/base/json.h"
#include "engine/checkpoint/model_config.h"
#include "engine/options/options.h"

/* Fills c->quant from config.json. The sizes and experts of c are known. */
cn_status cn_quant_read(const cn_json_at *a, cn_model_config *c);

/* Fills c->quant from dir/hf_quant_config.json, if it is there. */
cn_status cn_quant_read_file(cn_model_config *c, const char *dir);

/* Applies --quantization and --fp8-activations. CN_ERR_ARG if one has no effect on this model. */
cn_status cn_quant_choose(cn_model_config *c, const cn_config *options);
