/* launch.cuh - launches kernels and lets them overlap. Only this file calls cudaLaunchKernelEx.
 *
 * Programmatic dependent launch: on compute capability 9.0 every kernel may start while the kernel
 * before it in the stream still runs. A kernel calls cn_overlap_next() as early as possible, so
 * that blocks of the next kernel start on multiprocessors that become free. It calls
 * cn_wait_previous() before it accesses memory that another kernel writes. Every kernel must call
 * it, even one that reads nothing of the kernel before. Then the end of a kernel implies the end of
 * all kernels before it. Attention and `score` wait first and only then let the next kernel start.
 * So kernels after attention may rely on everything before it (attn_decode.cu). `select` follows
 * `score`, and reads the arrays of the step before it waits. Where `score` counts what it has
 * stored, blocks of `select` wait for the counts of their unit, and for the end of
 * `score` only at their own end. This cannot deadlock. A kernel starts only when each block of the
 * kernel before it has called cn_overlap_next() or ended. So all blocks that will count have
 * started, and none of them waits for a later kernel. Where blocks of `score` compute shares
 * (score_ring_shares.cuh), they wait for each other, for a limited time.
 * attn_lists, after `select`, reads queries, K and V before it waits for the same reason, and
 * lists before it waits because `select` counts their finished parts (select.cu). expert_gate_up
 * waits before it lets expert_down start, which therefore reads what `route` wrote before it waits.
 * rope_store of later layers reads the arrays of the step and the tables of angles before it waits:
 * copies write them before the first kernel of the step. Weights are never written and may be read
 * before the wait. */
#pragma once

#include <cuda_runtime.h>

#include "cuda/cuda_ops.h"

/* ---- in a kernel ---- */

__device__ static inline void cn_overlap_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ static inline void cn_wait_previous(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Reads all parameters of the kernel once. Each warp reads other lines of the parameters. They are
 * in constant memory, and each launch has its own, so the first access to each line takes long.
 * With this the warps wait for all lines at the same time, not one after another. */
template <typename T> __device__ static inline void cn_touch_params(const T &params)
{
    enum { LINE_WORDS = 16, WARP = 32, WARPS = 8, N = sizeof(T) / sizeof(uint32_t) };
    __shared__ volatile uint32_t touched[WARPS];
    const uint32_t *words = reinterpret_cast<const uint32_t *>(&params);
    const uint32_t warp = threadIdx.x / WARP;
    if (threadIdx.x % WARP > 0 || warp >= WARPS) return;
#pragma unroll 1
    for (uint32_t at = warp * LINE_WORDS; at < N; at += WARPS * LINE_WORDS)
        touched[warp] = words[at];
}

/* Reads a tensor map ahead of the first copy that uses it. */
__device__ static inline void cn_map_prefetch(const void *map)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/* ---- on the host ---- */

enum { CN_LAUNCH_RESERVED = 1024 }; /* bytes of shared memory that the GPU takes for each block */

/* Returns the shared memory, static and dynamic, of each of n equal blocks of a multiprocessor. */
static inline size_t cn_launch_shared_of(const cn_cuda *c, uint32_t n)
{
    return (c->device.shared_bytes + CN_LAUNCH_RESERVED) / n - CN_LAUNCH_RESERVED;
}

/* The parameters of a launch: {grid, block} or {grid, block, shared_bytes}, the rest by name. */
typedef struct cn_launch {
    dim3 grid;
    unsigned block;              /* threads */
    size_t shared_bytes = 0;     /* dynamic shared memory of a block */
    bool shared_is_set = false;  /* cn_launch_set_shared was called at start with the most bytes */
    unsigned cluster = 0;        /* blocks of a cluster, along x; 0: no clusters. 9.0 only */
    /* Takes the largest L1 cache. Other kernels take the most shared memory: a multiprocessor must
     * be idle before this division changes, so blocks of kernels with different divisions do not
     * run beside each other. */
    bool large_l1 = false;
    bool model_priority = false; /* run at the priority of the model's stream, on any stream */
} cn_launch;

/* Allows the kernel up to `bytes` of dynamic shared memory per block. */
template <typename... Params>
static cn_status cn_launch_set_shared(const cn_cuda *c, const char *op, void (*kernel)(Params...),
                                      size_t bytes)
{
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess) return CN_OK;
    if (error != cudaErrorInvalidValue) return cn_cuda_failed(error, op);
    cudaGetLastError(); /* the GPU can be used further */
    return cn_fail(CN_ERR_SHAPE,
                   "%s: %zu bytes of shared memory and the arrays of fixed size of a block exceed "
                   "the %zu bytes of the GPU",
                   op, bytes, c->device.shared_bytes);
}

/* A launch as the CUDA runtime takes it; `config` points to `attributes`. */
typedef struct cn_launch_terms {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attributes[4];
} cn_launch_terms;

static inline cudaLaunchAttribute *cn_launch_add(cn_launch_terms *t, cudaLaunchAttributeID id)
{
    cudaLaunchAttribute *a = &t->attributes[t->config.numAttrs++];
    a->id = id;
    return a;
}

static inline cn_status cn_launch_describe(cn_launch_terms *t, const cn_stream *s,
                                           const cn_launch &how)
{
    *t = {};
    t->config.gridDim = how.grid;
    t->config.blockDim = dim3(how.block);
    t->config.dynamicSmemBytes = how.shared_bytes;
    t->config.stream = s->handle;
    t->config.attrs = t->attributes;
    CN_ASSERT(how.cluster == 0 || s->cuda->device.hopper);
    if (s->cuda->device.hopper)
        cn_launch_add(t, cudaLaunchAttributeProgrammaticStreamSerialization)
            ->val.programmaticStreamSerializationAllowed = 1;
    cn_launch_add(t, cudaLaunchAttributePreferredSharedMemoryCarveout)->val.sharedMemCarveout =
        how.large_l1 ? cudaSharedmemCarveoutMaxL1 : cudaSharedmemCarveoutMaxShared;
    if (how.cluster > 0) {
        cudaLaunchAttribute *a = cn_launch_add(t, cudaLaunchAttributeClusterDimension);
        a->val.clusterDim.x = how.cluster;
        a->val.clusterDim.y = a->val.clusterDim.z = 1;
    }
    if (how.model_priority) {
        cudaLaunchAttribute *a = cn_launch_add(t, cudaLaunchAttributePriority);
        a->val.priority = s->cuda->priority[CN_PRIORITY_HIGH];
    }
    return CN_OK;
}

/* Launches the kernel on the stream, with overlap if the device supports it. `op` names the kernel
 * in errors. */
template <typename... Params, typename... Args>
static cn_status cn_cuda_launch(cn_stream *s, const char *op, void (*kernel)(Params...),
                                const cn_launch &how, const Args &...args)
{
    cn_launch_terms t;
    if (how.shared_bytes > 0 && !how.shared_is_set)
        CN_TRY(cn_launch_set_shared(s->cuda, op, kernel, how.shared_bytes));
    CN_TRY(cn_launch_describe(&t, s, how));
    const cudaError_t error = cudaLaunchKernelEx(&t.config, kernel, args...);
    return error == cudaSuccess ? CN_OK : cn_cuda_failed(error, op);
}
