/* backend.h - which device runs the model: --device auto|cpu|cuda[:i], and the shared object of the
 * CUDA backend, which is opened only when it is wanted, so that one build runs everywhere.
 *
 * Owner: the engine. Thread: its own. Stage: start, before weights are read. */
#ifndef CN_BACKEND_H
#define CN_BACKEND_H

#include "engine/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

/* Opens the backend that --device asks for, ready for this model and the largest step of these
 * options. A device's memory is what --gpu-memory-utilization gives; with --kv-cache-memory-bytes
 * it is what the start takes (start_plan.h), at least least_bytes. auto takes the first GPU when
 * everything it needs is there, else the CPU; why not is logged at debug level. CN_ERR_ARG when
 * --device is no name of one; CN_ERR_DEVICE or CN_ERR_MEMORY say in one line what is missing. Close
 * with (*out)->close. */
cn_status cn_backend_open(cn_backend **out, const cn_config *c, const cn_model_config *m,
                          uint64_t least_bytes);

/* CN_ERR_DEVICE names an op that the backend lacks and a model or one of the policies needs, or a
 * policy that it does not support. Bit i of `policies` is cn_kv_policy i. */
cn_status cn_backend_check_ops(const cn_backend *be, uint32_t policies);

/* Loads cinch-cuda.so and opens its backend; fills in base, version and header_bytes of the
 * options. The file is looked for beside the program, in the folder above, in ../lib/cinch, then
 * where the dynamic loader looks. */
cn_status cn_backend_cuda_load(cn_backend **out, cn_cuda_backend_opts o);

#endif
