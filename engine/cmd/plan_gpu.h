/* plan_gpu.h - a backend for `cinch plan --gpu-memory`: the sizes of the CUDA backend, without a
 * GPU and without its shared object. It has the functions that a start plan calls, and no ops.
 *
 * Owner: cn_cmd_plan. Thread: main. Stage: none. */
#ifndef CN_PLAN_GPU_H
#define CN_PLAN_GPU_H

#include "engine/ops.h"
#include "engine/options/options.h"

typedef struct cn_plan_gpu {
    cn_backend backend;
    uint64_t avail_bytes;
} cn_plan_gpu;

/* Describes a GPU of c->gpu_memory bytes that no other process uses. */
void cn_plan_gpu_init(cn_plan_gpu *g, const cn_config *c);

#endif
