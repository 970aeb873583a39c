/* backend.h - chooses the device that runs the model: --device auto|cpu|cuda[:i].
 *
 * The CUDA backend is a shared object. It is opened only when --device selects a GPU, so one build
 * runs on machines with and without one.
 *
 * Owner: the engine. Thread: its own. Stage: start, before weights are read. */
#ifndef CN_BACKEND_H
#define CN_BACKEND_H

#include "engine/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"

/* Opens the backend of --device, sized for this model and for the largest step of these options.
 *
 * On a GPU it takes the memory that --gpu-memory-utilization allows. With --kv-cache-memory-bytes
 * it takes what the engine needs at start (start_plan.h), at least least_bytes.
 * auto takes the first GPU if it can be opened, else the CPU. The reason is logged: as a warning
 * when the machine has an NVIDIA driver, else at debug level.
 *
 * CN_ERR_ARG when --device is not a valid name; CN_ERR_DEVICE or CN_ERR_MEMORY with one line that
 * says what is missing. Close with (*out)->close. */
cn_status cn_backend_open(cn_backend **out, const cn_config *c, const cn_model_config *m,
                          uint64_t least_bytes);

/* CN_ERR_DEVICE names the first missing op that every model, one of the policies or one of the
 * selectors needs, or the first policy that the backend does not support. Bit i of `policies` is
 * cn_kv_policy i, bit i of `selectors` cn_kv_select i. */
cn_status cn_backend_check_ops(const cn_backend *be, uint32_t policies, uint32_t selectors);

/* Loads cinch-cuda.so and opens its backend. Sets base, version and header_sum of the options.
 * Searches the program's folder, its parent, ../lib/cinch, then the paths of the dynamic loader. */
cn_status cn_backend_cuda_load(cn_backend **out, cn_cuda_backend_opts o);

#endif
