/* cuda_device.c - finds and checks the GPU, turns CUDA errors into status codes, and divides the
 * one allocation of device memory (first fit). */

#include "cuda/cuda_ops.h"

enum { LEAST_COMPUTE = 80, HOPPER = 90 };

#ifdef CN_CUDA_HAS_SM90A /* CUDA_ARCHS of the build includes sm_90a */
static const bool has_hopper_code = true;
#else
static const bool has_hopper_code = false;
#endif

/* What an error means for the user, and the way out. */
static const char *advice(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "too little GPU memory is free: lower --gpu-memory-utilization (--home-space on a "
               "cache GPU), or stop other programs on this GPU";
    case cudaErrorDevicesUnavailable:
        return "another program holds the GPU alone: stop it, or choose another GPU with --device "
               "or --cache-device";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
        return "the backend was not built for this GPU: rebuild it (make cuda), or use --device "
               "cpu";
    case cudaErrorSystemNotReady:
        return "the GPU is not ready: start nvidia-fabricmanager, or restart the machine";
    case cudaErrorSystemDriverMismatch:
        return "parts of the NVIDIA driver have different versions: restart the machine";
    case cudaErrorECCUncorrectable:
        return "the GPU's memory is faulty (nvidia-smi -q -d ECC shows it): choose another GPU "
               "with --device or --cache-device";
    default: return "start cinch again; if it happens again, use --device cpu and report it";
    }
}

cn_status cn_cuda_failed(cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* clears the error, so that the next call does not report it again */
    cn_status status = error == cudaErrorMemoryAllocation ? CN_ERR_MEMORY : CN_ERR_DEVICE;
    int gpu = 0;
    if (cudaGetDevice(&gpu) != cudaSuccess)
        return cn_fail(status, "CUDA error %d in %s: %s", (int)error, what, advice(error));
    return cn_fail(status, "CUDA error %d of GPU %d in %s: %s", (int)error, gpu, what,
                   advice(error));
}

/* ---- device ---- */

static cn_status count_devices(int *n)
{
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return cn_fail(CN_ERR_DEVICE, "no NVIDIA driver (libcuda.so.1): install it, or use "
                                      "--device cpu");
    cudaError_t error = cudaGetDeviceCount(n);
    if (error == cudaErrorInsufficientDriver)
        return cn_fail(CN_ERR_DEVICE,
                       "the NVIDIA driver supports CUDA %d.%d, but this build needs %d.%d: update "
                       "the driver, or use --device cpu",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && *n == 0))
        return cn_fail(CN_ERR_DEVICE, "the NVIDIA driver finds no GPU: use --device cpu");
    if (error != cudaSuccess) return cn_cuda_failed(error, "counting GPUs");
    return CN_OK;
}

/* *can: kernels of each device can address the memory of the other. */
static cn_status are_peers(int a, int b, bool *can)
{
    int there = 0, back = 0;
    CN_CUDA(cudaDeviceCanAccessPeer(&there, a, b));
    CN_CUDA(cudaDeviceCanAccessPeer(&back, b, a));
    *can = there && back;
    return CN_OK;
}

static cn_status refuse_non_peers(int a, int b)
{
    return cn_fail(CN_ERR_DEVICE,
                   "GPU %d and GPU %d cannot address each other's memory: use two GPUs with NVLink "
                   "or peer access over PCIe",
                   a, b);
}

/* There is no GPU `ordinal` among n. */
static cn_status refuse_ordinal(const cn_cuda_backend_opts *o, uint32_t ordinal, uint32_t n)
{
    struct cudaDeviceProp p;
    if (n == 1 && cudaGetDeviceProperties(&p, 0) == cudaSuccess && strstr(p.name, " MIG "))
        return cn_fail(CN_ERR_DEVICE,
                       "cuda:%u: a process has only one MIG instance (%s): run a process for each "
                       "(--shard)",
                       ordinal, p.name);
    return cn_fail(CN_ERR_DEVICE, "--%s cuda:%u: expected cuda:0 to cuda:%u",
                   o->beside ? "cache-device" : "device", ordinal, n - 1);
}

/* Chooses the device of the options among n. */
static cn_status choose_device(const cn_cuda_backend_opts *o, uint32_t n, uint32_t *ordinal)
{
    bool peers = false;
    const int model = (int)o->beside - 1;
    *ordinal = o->device;
    if (o->device == CN_CUDA_ANY_PEER) {
        for (*ordinal = 0; *ordinal < n; (*ordinal)++) {
            if ((int)*ordinal == model) continue;
            CN_TRY(are_peers(model, (int)*ordinal, &peers));
            if (peers) return CN_OK;
        }
        return cn_fail(CN_ERR_DEVICE,
                       "--cache-device auto: none of %u GPUs is a peer of GPU %d: make another GPU "
                       "visible, or set --cache-device cuda:%d to use the model's GPU",
                       n, model, model);
    }
    if (*ordinal >= n) return refuse_ordinal(o, *ordinal, n);
    if (!o->beside || (int)*ordinal == model || model >= (int)n) return CN_OK;
    CN_TRY(are_peers(model, (int)*ordinal, &peers));
    return peers ? CN_OK : refuse_non_peers(model, (int)*ordinal);
}

cn_status cn_cuda_device_open(cn_cuda_device *out, const cn_cuda_backend_opts *o)
{
    int n = 0;
    uint32_t ordinal;
    CN_TRY(count_devices(&n));
    CN_TRY(choose_device(o, (uint32_t)n, &ordinal));
    struct cudaDeviceProp p;
    CN_CUDA(cudaGetDeviceProperties(&p, (int)ordinal));
    const int capability = p.major * 10 + p.minor;
    *out = (cn_cuda_device){.ordinal = (int)ordinal,
                            .hopper = capability == HOPPER && has_hopper_code,
                            .n_sms = (uint32_t)p.multiProcessorCount,
                            .shared_bytes = p.sharedMemPerBlockOptin,
                            .max_pitch = p.memPitch,
                            .registers =
                                p.hostRegisterSupported && p.canUseHostPointerForRegisteredMem};
    snprintf(out->name, sizeof out->name, "%s", p.name);
    snprintf(out->bus, sizeof out->bus, "%04x:%02x:%02x.0", (unsigned)p.pciDomainID,
             (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
    if (capability < LEAST_COMPUTE)
        return cn_fail(CN_ERR_DEVICE,
                       "GPU %u (%s) has compute capability %d.%d, expected at least %d.%d: use "
                       "another GPU or --device cpu",
                       ordinal, p.name, p.major, p.minor, LEAST_COMPUTE / 10, LEAST_COMPUTE % 10);
    cudaError_t error = cudaSetDevice((int)ordinal);
    if (error != cudaSuccess) return cn_cuda_failed(error, p.name);
    if (o->beside) cn_log(CN_LOG_INFO, "cache device: GPU %u (%s)", ordinal, p.name);
    return CN_OK;
}

void cn_cuda_use(const cn_cuda *c) { cudaSetDevice(c->device.ordinal); }

static cn_status enable_peer(const cn_cuda *from, const cn_cuda *to)
{
    cn_cuda_use(from);
    cudaError_t error = cudaDeviceEnablePeerAccess(to->device.ordinal, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return CN_OK;
    }
    return error == cudaSuccess ? CN_OK : cn_cuda_failed(error, "enabling peer access");
}

cn_status cn_cuda_join(const cn_cuda *a, const cn_cuda *b)
{
    bool peers = false;
    if (a->device.ordinal == b->device.ordinal) return CN_OK;
    CN_TRY(are_peers(a->device.ordinal, b->device.ordinal, &peers));
    if (!peers) return refuse_non_peers(a->device.ordinal, b->device.ordinal);
    CN_TRY(enable_peer(a, b));
    return enable_peer(b, a);
}

/* ---- the one allocation ---- */

static cn_status choose_bytes(const cn_cuda_backend_opts *o, size_t *bytes, size_t *planned)
{
    size_t available = 0, total = 0;
    CN_CUDA(cudaMemGetInfo(&available, &total));
    size_t in_use = total - available, share = (size_t)((double)total * o->memory_share);
    *bytes = o->memory_bytes ? o->memory_bytes : share > in_use ? share - in_use : 0;
    *bytes = *bytes / CN_CUDA_ALIGN_BYTES * CN_CUDA_ALIGN_BYTES;
    if (*bytes == 0)
        return cn_fail(CN_ERR_MEMORY,
                       "GPU memory: %.2f of %.2f GiB are in use and --gpu-memory-utilization %.2f "
                       "leaves none: raise it, or free GPU memory",
                       cn_gib(in_use), cn_gib(total), (double)o->memory_share);
    if (*bytes > available)
        return cn_fail(CN_ERR_MEMORY,
                       "GPU memory: %.2f GiB needed, but %.2f of %.2f GiB are free: lower %s",
                       cn_gib(*bytes), cn_gib(available), cn_gib(total),
                       o->beside         ? "--home-space or --max-num-seqs"
                       : o->memory_bytes ? "--kv-cache-memory-bytes, --max-num-seqs or "
                                           "--max-num-batched-tokens"
                                         : "--gpu-memory-utilization");
    *planned = in_use + *bytes;
    return CN_OK;
}

cn_status cn_cuda_arena_open(cn_cuda_arena *a, const cn_cuda_backend_opts *o)
{
    CN_TRY(choose_bytes(o, &a->bytes, &a->planned_bytes));
    void *base = NULL;
    cudaError_t error = cudaMalloc(&base, a->bytes);
    if (error != cudaSuccess) return cn_cuda_failed(error, "allocating GPU memory");
    a->base = base;
    return CN_OK;
}

void cn_cuda_arena_close(cn_cuda_arena *a)
{
    if (a->base) cudaFree(a->base);
    cn_free(a->used);
    *a = (cn_cuda_arena){0};
}

void cn_cuda_mem_usage(cn_backend *be, uint64_t *planned, uint64_t *used)
{
    const cn_cuda *c = be->ctx;
    size_t available = 0, total = 0;
    cn_cuda_use(c);
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) (void)cudaGetLastError();
    *planned = c->arena.planned_bytes;
    *used = total - available;
}

/* Returns the gap before span i; for i = n_used, the gap after the last span. */
static cn_cuda_span gap_before(const cn_cuda_arena *a, size_t i)
{
    size_t from = i > 0 ? a->used[i - 1].at + a->used[i - 1].bytes : 0;
    size_t to = i < a->n_used ? a->used[i].at : a->bytes;
    return (cn_cuda_span){from, to - from};
}

static cn_status insert_span(cn_cuda_arena *a, size_t i, cn_cuda_span span)
{
    if (a->n_used == a->capacity) {
        size_t capacity = a->capacity ? 2 * a->capacity : 64;
        cn_cuda_span *used = cn_realloc(a->used, capacity, sizeof *used);
        if (!used) return cn_fail(CN_ERR_MEMORY, "out of host memory for %zu spans", capacity);
        a->used = used;
        a->capacity = capacity;
    }
    memmove(a->used + i + 1, a->used + i, (a->n_used - i) * sizeof *a->used);
    a->used[i] = span;
    a->n_used++;
    return CN_OK;
}

cn_status cn_cuda_arena_take(cn_cuda_arena *a, size_t bytes, void **out)
{
    *out = NULL;
    size_t need = cn_round_up(bytes ? bytes : 1, CN_CUDA_ALIGN_BYTES);
    for (size_t i = 0; need >= bytes && i <= a->n_used; i++) {
        cn_cuda_span gap = gap_before(a, i);
        if (gap.bytes < need) continue;
        CN_TRY(insert_span(a, i, (cn_cuda_span){gap.at, need}));
        *out = a->base + gap.at;
        return CN_OK;
    }
    return cn_fail(CN_ERR_MEMORY,
                   "GPU memory: %zu bytes needed, but the largest free piece has %zu of the %zu "
                   "bytes allocated at start: raise --gpu-memory-utilization",
                   bytes, cn_cuda_arena_largest(a), a->bytes);
}

void cn_cuda_arena_give(cn_cuda_arena *a, void *p)
{
    size_t at = (size_t)((char *)p - a->base), i = 0;
    while (i < a->n_used && a->used[i].at != at) i++;
    CN_ASSERT(i < a->n_used);
    a->n_used--;
    memmove(a->used + i, a->used + i + 1, (a->n_used - i) * sizeof *a->used);
}

size_t cn_cuda_arena_largest(const cn_cuda_arena *a)
{
    size_t largest = 0;
    for (size_t i = 0; i <= a->n_used; i++) {
        cn_cuda_span gap = gap_before(a, i);
        if (gap.bytes > largest) largest = gap.bytes;
    }
    return largest;
}
