/* plan_gpu.h - a backend for `cinch plan --gpu-memory`: the sizes of the CUDA backend, without a
 * GPU and without its shared object. It has the functions that a start plan calls, and no ops; it
 * lacks what the CUDA backend lacks: KV in eight bits, and retrieval heads that read states.
 *
 * Owner: cn_cmd_plan. Thread: main. Stage: none. */
#pragma once

#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

/* Memory of a GPU that the driver takes for a process before its first allocation, with the kernels
 * of cinch-cuda.so. An assumption, which the plan prints: the real figure depends on the driver and
 * the GPU, and no allocation of the engine counts it. */
enum { CN_PLAN_CONTEXT_MIB = 546 };

typedef struct cn_plan_gpu {
    cn_backend backend;
    uint64_t avail_bytes;
} cn_plan_gpu;

/* Describes a GPU of c->gpu_memory bytes that no other process uses. */
void cn_plan_gpu_init(cn_plan_gpu *g, const cn_config *c, const cn_model_config *m);

/* If --cache-device is this GPU, takes what an engine would take there before the model: *bytes,
 * else 0. CN_ERR_ARG: --cache-device. CN_ERR_MEMORY: it does not fit. The options of homes have
 * been checked. */
cn_status cn_plan_gpu_take_cache(cn_plan_gpu *g, const cn_config *c, const cn_model_config *m,
                                 uint64_t *bytes);
