/* fake_cuda.c - a CUDA runtime and cuBLASLt without a GPU, to which the objects of the GPU backend
 * are linked for tests (tests/pair_check.sh). Memory is host memory. Copies run at once, kernels do
 * nothing. Every call must find the device of its stream, event or memory current: otherwise the
 * process prints the call and aborts. One GPU cannot show this error.
 *
 *   FAKE_GPUS=2      devices
 *   FAKE_GPU_MIB     memory of each (4096)
 *   FAKE_PEERS=0     no device can address the memory of another
 *   FAKE_LIBRARY=0   cuBLASLt has no algorithm
 *   FAKE_LOST=1:900  GPU 1 fails from its 900th kernel on
 *   FAKE_REPORT=1    at the end prints the kernels of GPU 0 and the 2-D copies */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_GPUS = 8, MAX_SPANS = 512, MAX_FUNCTIONS = 1024, LEAST_SHARED = 48 << 10 };

struct CUstream_st {
    int device;
};
struct CUevent_st {
    int device;
    bool timed;
    double at_s;
};
typedef struct span {
    char *base;
    size_t bytes;
    int device; /* -1: host memory */
} span;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static span spans[MAX_SPANS];
static struct {
    const void *function;
    int device, shared_bytes;
} functions[MAX_FUNCTIONS];
static size_t used_bytes[MAX_GPUS];
static unsigned long long n_launched[MAX_GPUS], n_2d_copies;
static _Thread_local int current;
static _Thread_local cudaError_t last_error;

static unsigned long setting(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoul(text, NULL, 10) : otherwise;
}

static int n_gpus(void) { return (int)setting("FAKE_GPUS", 2); }
static size_t gpu_bytes(void) { return setting("FAKE_GPU_MIB", 4096) << 20; }

static cudaError_t result(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

static void need(const char *call, int device)
{
    if (device == current) return;
    fprintf(stderr, "fake CUDA: %s: the current device is %d, expected %d\n", call, current,
            device);
    abort();
}
#define NEED(device) need(__func__, device)

static bool is_lost(int device)
{
    const char *text = getenv("FAKE_LOST");
    char *end;
    if (!text || (int)strtol(text, &end, 10) != device || *end != ':') return false;
    return n_launched[device] >= strtoull(end + 1, NULL, 10);
}

static void report(void)
{
    fprintf(stderr, "fake CUDA: %llu kernels of GPU 0, %llu 2-D copies\n", n_launched[0],
            n_2d_copies);
}

/* ---- devices ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
    static bool reports;
    if (!reports && setting("FAKE_REPORT", 0)) atexit(report);
    reports = true;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = n_gpus();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= n_gpus()) return result(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    *p = (struct cudaDeviceProp){.major = 9,
                                 .hostRegisterSupported = 1,
                                 .canUseHostPointerForRegisteredMem = 1,
                                 .multiProcessorCount = 132,
                                 .sharedMemPerBlockOptin = 227 << 10,
                                 .memPitch = INT32_MAX};
    snprintf(p->name, sizeof p->name, "fake %d", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b)
{
    *can = a != b && setting("FAKE_PEERS", 1) != 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    static bool enabled[MAX_GPUS][MAX_GPUS];
    (void)flags;
    if (enabled[current][peer]) return result(cudaErrorPeerAccessAlreadyEnabled);
    enabled[current][peer] = true;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorECCUncorrectable ? "uncorrectable ECC error encountered"
                                              : "an error of the fake runtime";
}

static int encode_tiled(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    int (*const entry)(void) = encode_tiled;
    (void)name;
    (void)version;
    (void)flags;
    memcpy(function, &entry, sizeof entry);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* ---- memory ---- */

static void add_span(void *p, size_t bytes, int device)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MAX_SPANS && spans[i].base) i++;
    if (i == MAX_SPANS) abort();
    spans[i] = (span){p, bytes, device};
    if (device >= 0) used_bytes[device] += bytes;
    pthread_mutex_unlock(&lock);
}

static cudaError_t take(void **out, size_t bytes, int device)
{
    const size_t all = bytes ? bytes : 1;
    void *p = mmap(NULL, all, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return result(cudaErrorMemoryAllocation);
    add_span(p, all, device);
    *out = p;
    return cudaSuccess;
}

/* Forgets a span that begins at p, and unmaps it if it is not the caller's. */
static cudaError_t give(const char *call, void *p, bool host, bool unmap)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; p && i < MAX_SPANS; i++) {
        if (spans[i].base != p || (spans[i].device < 0) != host) continue;
        if (!host) need(call, spans[i].device);
        if (!host) used_bytes[spans[i].device] -= spans[i].bytes;
        if (unmap) munmap(p, spans[i].bytes);
        spans[i] = (span){0};
        p = NULL;
    }
    pthread_mutex_unlock(&lock);
    return p ? result(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    if (used_bytes[current] + bytes > gpu_bytes()) return result(cudaErrorMemoryAllocation);
    return take(out, bytes, current);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) { return take(out, bytes, -1); }
cudaError_t cudaFree(void *p) { return give(__func__, p, false, true); }
cudaError_t cudaFreeHost(void *p) { return give(__func__, p, true, true); }
cudaError_t cudaHostUnregister(void *p) { return give(__func__, p, true, false); }

/* Its pages must have been touched, so that no single thread has to. */
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    enum { PAGE = 4096, PAGES = 1 << 14 };
    static unsigned char resident[PAGES];
    (void)flags;
    for (size_t at = 0; at < bytes; at += PAGES * PAGE) {
        const size_t n = bytes - at < PAGES * PAGE ? bytes - at : PAGES * PAGE;
        if (mincore((char *)p + at, n, resident) != 0) return result(cudaErrorInvalidValue);
        for (size_t i = 0; i < (n + PAGE - 1) / PAGE; i++)
            if (!(resident[i] & 1)) {
                fprintf(stderr, "fake CUDA: registered memory is not touched\n");
                abort();
            }
    }
    add_span(p, bytes, -1);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = gpu_bytes();
    *available = *total - used_bytes[current];
    return cudaSuccess;
}

/* The device of an address; -1: host memory; -2: unknown. */
static int device_of(const void *p)
{
    int device = -2;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_SPANS; i++)
        if (spans[i].base && (const char *)p >= spans[i].base &&
            (const char *)p < spans[i].base + spans[i].bytes)
            device = spans[i].device;
    pthread_mutex_unlock(&lock);
    return device;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    const int device = device_of(p);
    *a = (struct cudaPointerAttributes){
        .type = device == -2   ? cudaMemoryTypeUnregistered
                : device == -1 ? cudaMemoryTypeHost
                               : cudaMemoryTypeDevice,
        .device = device < 0 ? 0 : device};
    return cudaSuccess;
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    NEED(device_of(p));
    if (value != 0) memset(p, value, bytes); /* new memory is zero */
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    NEED(s->device);
    memset(p, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    NEED(s->device);
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_stride, const void *from, size_t from_stride,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t s)
{
    (void)kind;
    NEED(s->device);
    n_2d_copies++;
    for (size_t i = 0; i < height; i++)
        memmove((char *)to + i * to_stride, (const char *)from + i * from_stride, width);
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    *out = calloc(1, sizeof **out);
    if (!*out) return result(cudaErrorMemoryAllocation);
    (*out)->device = current;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    NEED(s->device);
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s == cudaStreamLegacy) return cudaSuccess;
    NEED(s->device);
    return is_lost(s->device) ? result(cudaErrorECCUncorrectable) : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void)e;
    (void)flags;
    NEED(s->device);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return result(cudaErrorMemoryAllocation);
    (*out)->device = current;
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    NEED(e->device);
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    struct timespec now;
    NEED(s->device);
    need("cudaEventRecord of the event", e->device);
    clock_gettime(CLOCK_MONOTONIC, &now);
    e->at_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    NEED(e->device);
    return is_lost(e->device) ? result(cudaErrorECCUncorrectable) : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) { return cudaEventQuery(e); }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->timed || !to->timed || from->device != to->device || from->at_s <= 0 ||
        to->at_s <= 0)
        return result(cudaErrorInvalidResourceHandle);
    *ms = (float)((to->at_s - from->at_s) * 1e3);
    return cudaSuccess;
}

/* ---- kernels and graphs ---- */

/* Kernels of the fake runtime have no static shared memory. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)attribute;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < MAX_FUNCTIONS && functions[i].function &&
           (functions[i].function != function || functions[i].device != current))
        i++;
    if (i == MAX_FUNCTIONS) abort();
    functions[i].function = function;
    functions[i].device = current;
    functions[i].shared_bytes = value;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* The dynamic shared memory that a kernel may have on the current device. */
static size_t allowed_bytes(const void *function)
{
    for (int i = 0; i < MAX_FUNCTIONS && functions[i].function; i++)
        if (functions[i].function == function && functions[i].device == current)
            return (size_t)functions[i].shared_bytes;
    return LEAST_SHARED;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *function, void **args)
{
    (void)args;
    NEED(how->stream->device);
    const unsigned long long blocks =
        (unsigned long long)how->gridDim.x * how->gridDim.y * how->gridDim.z;
    if (blocks == 0 || how->gridDim.y > 65535 || how->gridDim.z > 65535 || how->blockDim.x > 1024 ||
        how->dynamicSmemBytes > allowed_bytes(function))
        return result(cudaErrorInvalidValue);
    if (is_lost(current)) return result(cudaErrorECCUncorrectable);
    n_launched[current]++;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    NEED(s->device);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    NEED(s->device);
    *out = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)graph;
    (void)flags;
    *out = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t g, cudaStream_t s)
{
    (void)g;
    NEED(s->device);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    (void)g;
    NEED(s->device);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    (void)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    (void)g;
    return cudaSuccess;
}

/* What nvcc calls to make kernels known. */
int __cudaGetKernel(void *kernel, const void *function);
int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t shared, void *s);
unsigned __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *s);
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *function, char *name,
                            const char *device_name, int limit, void *tid, void *bid, void *block,
                            void *grid, int *size);
void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int ext,
                       size_t bytes, int constant, int global);
void __cudaUnregisterFatBinary(void **handle);

int __cudaGetKernel(void *kernel, const void *function)
{
    (void)kernel;
    (void)function;
    return 0;
}

int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t shared, void *s)
{
    (void)kernel;
    (void)grid;
    (void)block;
    (void)args;
    (void)shared;
    (void)s;
    abort(); /* launch.cuh launches all kernels */
}

unsigned __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *s)
{
    (void)grid;
    (void)block;
    (void)shared;
    (void)s;
    abort();
}

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

void __cudaRegisterFunction(void **handle, const char *function, char *name,
                            const char *device_name, int limit, void *tid, void *bid, void *block,
                            void *grid, int *size)
{
    (void)handle;
    (void)function;
    (void)name;
    (void)device_name;
    (void)limit;
    (void)tid;
    (void)bid;
    (void)block;
    (void)grid;
    (void)size;
}

void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int ext,
                       size_t bytes, int constant, int global)
{
    (void)handle;
    (void)variable;
    (void)address;
    (void)name;
    (void)ext;
    (void)bytes;
    (void)constant;
    (void)global;
}

void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

/* ---- cuBLASLt ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    static struct cublasLtContext *const handle;
    *out = handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "an error of the fake cuBLASLt";
}

size_t cublasLtGetVersion(void) { return 1; }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *scratch,
                              size_t scratch_bytes, cudaStream_t s)
{
    (void)handle;
    (void)product;
    (void)alpha;
    (void)a;
    (void)a_layout;
    (void)b;
    (void)b_layout;
    (void)beta;
    (void)c;
    (void)c_layout;
    (void)d;
    (void)d_layout;
    (void)algorithm;
    (void)scratch;
    (void)scratch_bytes;
    NEED(s->device);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *out)
{
    (void)handle;
    (void)product;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)algorithm;
    memset(out, 0, sizeof *out);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t out[], int *n)
{
    (void)handle;
    (void)product;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)preference;
    *n = most > 0 && setting("FAKE_LIBRARY", 1) != 0;
    if (*n) memset(out, 0, sizeof *out);
    return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t product, size_t bytes,
                                               cublasComputeType_t compute, cudaDataType_t scale)
{
    (void)compute;
    (void)scale;
    memset(product, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    (void)product;
    (void)attribute;
    (void)value;
    (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t p, size_t bytes)
{
    memset(p, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    (void)p;
    (void)attribute;
    (void)value;
    (void)bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t m, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t stride)
{
    (void)type;
    (void)rows;
    (void)cols;
    (void)stride;
    memset(m, 0, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
