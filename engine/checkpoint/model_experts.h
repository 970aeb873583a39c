/* model_experts.h - which layers of a model have experts, and how their router chooses, from
 * config.json: a function for each family, in the row of its architecture (model_config.c).
 *
 * Owner: none; plain functions. Thread: any. Stage: start, as a part of model_config.h. */
#pragma once

#include "engine/base/json.h"
#include "engine/checkpoint/model_config.h"

/* Fills c->experts, which stays 0 if no layer has experts. The sizes of c are known. CN_ERR_MODEL
 * names a router that cn_route_args does not describe. */
typedef cn_status cn_read_experts_fn(const cn_json_at *a, cn_model_config *c);

cn_read_experts_fn cn_read_qwen3_experts, cn_read_glm4_experts, cn_read_deepseek2_experts,
    cn_read_deepseek3_experts, cn_read_glm4_lite_experts;

/* Refuses a key that has another value than the one that is computed. */
cn_status cn_refuse_other_number(const cn_json_at *a, const char *key, uint32_t supported);
