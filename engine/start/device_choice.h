/* device_choice.h - chooses the device that runs the model: --device auto|cpu|cuda[:i].
 *
 * The CUDA backend is a shared object. It is opened only when --device selects a GPU, so one build
 * runs on machines with and without one.
 *
 * Owner: the engine. Thread: its own. Stage: start, before weights are read. */
#pragma once

#include "engine/base/base.h"
#include "engine/checkpoint/model_config.h"
#include "engine/ops.h"
#include "engine/options/options.h"
#include "engine/start/gpu_uuid.h"

/* Which device was chosen, for people. */
typedef struct cn_device_choice {
    char why[512];   /* "cuda:0 (GPU-ca95b138-...): --device auto", "cpu: no GPU found" */
    char uuid[CN_GPU_UUID_BYTES]; /* of the GPU, "" if it is not known */
    bool gpu_unused; /* the machine has a GPU, but --device auto took the CPU */
} cn_device_choice;

/* What a device has to hold, from those who know it. */
typedef struct cn_device_needs {
    /* CN_ERR_DEVICE names what the model or the options need and be lacks. It is called before
     * bytes. */
    cn_status (*check)(const void *ctx, const cn_backend *be);
    /* Sets *bytes to the device memory that the options need; 0: as much as allowed. be has no
     * memory yet. */
    cn_status (*bytes)(const void *ctx, cn_backend *be, uint64_t *bytes);
    const void *ctx;
    uint32_t score_layers; /* as in cn_cuda_backend_opts */
} cn_device_needs;

/* Opens the backend of --device, sized for this model and for the largest step of these options.
 *
 * On a GPU it takes the memory that --gpu-memory-utilization allows, or exactly needs->bytes if
 * those are not 0, as with --kv-cache-memory-bytes.
 * auto takes the first GPU if it can be opened, else the CPU. *choice says why. A GPU that opens
 * but lacks what the options need is an error, also with auto.
 *
 * CN_ERR_ARG when --device is not a valid name; CN_ERR_DEVICE or CN_ERR_MEMORY with one line that
 * says what is missing. Close with (*out)->close. */
cn_status cn_backend_open(cn_backend **out, const cn_config *c, const cn_model_config *m,
                          const cn_device_needs *needs, cn_device_choice *choice);

/* What --device auto knows when it takes the CPU. */
typedef struct cn_cpu_reason {
    bool has_gpu;        /* the machine has an NVIDIA driver */
    bool float32;        /* --dtype float32 */
    const char *missing; /* where the CUDA backend was expected; NULL: it is there */
    bool installed;      /* the program is not in a build directory */
    const char *error;   /* why the GPU could not be opened */
} cn_cpu_reason;
void cn_device_explain_cpu(cn_device_choice *out, const cn_cpu_reason *r);

/* Opens the backend of --cache-device, with exactly the device memory of needs->bytes. Call before
 * cn_backend_open: where both use one GPU, the model gets its share of what is left. `auto` takes
 * the first peer of the model's GPU. On a CPU it is a second, threaded backend. With --device auto,
 * `auto` leaves a GPU that cannot be opened, but not one that lacks what the options need.
 *
 * CN_ERR_ARG when --cache-device is not a valid name beside --device; CN_ERR_DEVICE when there is
 * no such GPU or no peer, with one line that says so. */
cn_status cn_backend_open_cache(cn_backend **out, const cn_config *c, const cn_model_config *m,
                                const cn_device_needs *needs);

/* Sets *shares to whether --cache-device is the GPU of a model that runs on a GPU. CN_ERR_ARG: as
 * above, or it is the CPU. */
cn_status cn_backend_cache_shares_gpu(const cn_config *c, bool *shares);

/* CN_ERR_DEVICE when --device auto took another kind of device than --cache-device. */
cn_status cn_backend_check_pair(const cn_backend *model_be, const cn_backend *cache_be,
                                const cn_config *c);

/* CN_ERR_DEVICE names the first missing op that every model, one of the policies, selectors or
 * homes needs, or the first policy that the backend does not support. Bit i of `policies` is
 * cn_kv_policy i, bit i of `selectors` cn_kv_select i, bit i of `homes` cn_kv_home i. */
cn_status cn_backend_check_ops(const cn_backend *be, uint32_t policies, uint32_t selectors,
                               uint32_t homes);

/* CN_ERR_DEVICE when the backend has no ops for KV of the form of --kv-cache-dtype, or none for it
 * together with the selectors or homes of c. */
cn_status cn_backend_check_kv(const cn_backend *be, const cn_config *c, const cn_model_config *m);

/* Opens the backend of a rank of a split model, on the CPU. */
cn_status cn_backend_open_rank(cn_backend **out);

/* CN_ERR_DEVICE when c splits the model and the backend has no ops for that. */
cn_status cn_backend_check_ranks(const cn_backend *be, const cn_config *c);

/* CN_ERR_DEVICE when the backend has no products with the FP8 weights of the model. */
cn_status cn_backend_check_fp8(const cn_backend *be, const cn_model_config *m);

/* CN_ERR_DEVICE when the model has latent attention and the backend lacks its ops. */
cn_status cn_backend_check_latent(const cn_backend *be, const cn_model_config *m);

/* Both, and all other ops that only some models need: the text names the model and the first op. */
cn_status cn_backend_check_model(const cn_backend *be, const cn_model_config *m);

/* Loads cinch-cuda.so and opens its backend. Sets base, version and header_sum of the options.
 * Searches the program's folder, its parent, ../lib/cinch, then the paths of the dynamic loader. */
cn_status cn_backend_cuda_load(cn_backend **out, cn_cuda_backend_opts o);
