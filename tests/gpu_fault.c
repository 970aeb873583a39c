/* gpu_fault.c - a library for LD_PRELOAD, for tests/gpu_fault.sh: when a file appears, runs a
 * kernel that traps, or that never ends, on one GPU, in the process's context of it.
 *
 *   GPU_FAULT=trap:1:/tmp/go LD_PRELOAD=gpu_fault.so cinch ... (trap or spin, the GPU, the file)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                          ".visible .entry do_trap() { trap; ret; }\n"
                          ".visible .entry do_spin() { again: nanosleep.u32 1000; bra again; }\n";
/* Every block that fits on the GPU, so that no other kernel gets a place. */
enum { BLOCKS = 132 * 64, THREADS = 1024, NON_BLOCKING = 1, LOOK_US = 20000 };

/* The functions of libcuda.so.1 that are called; 0 is success. */
typedef int (*init_fn)(unsigned flags);
typedef int (*retain_fn)(void **context, int device);
typedef int (*push_fn)(void *context);
typedef int (*load_fn)(void **module, const void *image);
typedef int (*get_fn)(void **kernel, void *module, const char *name);
typedef int (*stream_fn)(void **stream, unsigned flags);
typedef int (*launch_fn)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                         void *stream, void **args, void **extra);

static char kind[16], path[256];
static int device;

static int launch(void *lib)
{
    void *context = NULL, *module = NULL, *kernel = NULL, *stream = NULL;
    char name[sizeof kind + 3];
    snprintf(name, sizeof name, "do_%s", kind);
    int rc = ((init_fn)dlsym(lib, "cuInit"))(0);
    if (!rc) rc = ((retain_fn)dlsym(lib, "cuDevicePrimaryCtxRetain"))(&context, device);
    if (!rc) rc = ((push_fn)dlsym(lib, "cuCtxPushCurrent_v2"))(context);
    if (!rc) rc = ((load_fn)dlsym(lib, "cuModuleLoadData"))(&module, ptx);
    if (!rc) rc = ((get_fn)dlsym(lib, "cuModuleGetFunction"))(&kernel, module, name);
    if (!rc) rc = ((stream_fn)dlsym(lib, "cuStreamCreate"))(&stream, NON_BLOCKING);
    if (rc) return rc;
    return ((launch_fn)dlsym(lib, "cuLaunchKernel"))(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0,
                                                     stream, NULL, NULL);
}

static void *wait_and_fail(void *unused)
{
    (void)unused;
    while (access(path, F_OK) != 0) usleep(LOOK_US);
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    const int rc = lib ? launch(lib) : -1;
    fprintf(stderr, "gpu_fault: %s on GPU %d: code %d\n", kind, device, rc);
    return NULL;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;
    const char *text = getenv("GPU_FAULT");
    if (!text || sscanf(text, "%15[a-z]:%d:%255s", kind, &device, path) != 3) return;
    unsetenv("LD_PRELOAD");
    if (pthread_create(&thread, NULL, wait_and_fail, NULL) == 0) pthread_detach(thread);
}
