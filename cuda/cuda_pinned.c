/* cuda_pinned.c - pinned host memory. cudaMallocHost touches pages with one thread, which takes
 * minutes for a home of a hundred GiB. Large memory is therefore mapped in huge pages, touched by
 * several threads, and then registered. Where the machine has several NUMA nodes, its pages prefer
 * the node of the GPU, because copies from another node are slower, and the threads run there,
 * because pages of another node take longer to be written. */
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "cuda/cuda_ops.h"

enum { HUGE_PAGE = 2 << 20, PAGE = 4096, MAX_TOUCHERS = 16, MAX_NODES = 1024 };
#define LARGE_BYTES ((size_t)64 << 20) /* from here on memory is mapped and registered */
#define PIECE_BYTES ((size_t)64 << 20) /* that a thread touches at once */
#define PROGRESS_S 5.0

static double pinned_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the NUMA node of the GPU ---- */

/* Reads the first line of a file of sysfs. */
static bool try_read_line(const char *path, char *line, int size)
{
    FILE *f = fopen(path, "r");
    const bool read = f && fgets(line, size, f);
    if (f) fclose(f);
    return read;
}

/* Returns the node; -1 if it is unknown or the only one. */
static int gpu_node(const cn_cuda_device *d)
{
    char path[96], line[64];
    const bool many = try_read_line("/sys/devices/system/node/online", line, sizeof line) &&
                      strpbrk(line, "-,");
    if (!many) return -1;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", d->bus);
    if (!try_read_line(path, line, sizeof line)) return -1;
    const long node = strtol(line, NULL, 10);
    return node >= 0 && node < MAX_NODES ? (int)node : -1;
}

/* Lets pages that are not touched yet prefer the node. If the kernel refuses, they lie where the
 * threads run. */
static void prefer_node(int node, void *at, size_t bytes)
{
    enum { BITS = 8 * sizeof(unsigned long) };
    unsigned long nodes[MAX_NODES / BITS] = {0};
    if (node < 0) return;
    nodes[node / BITS] = 1UL << node % BITS;
    if (syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, nodes, (unsigned long)MAX_NODES, 0) == 0)
        cn_log(CN_LOG_DEBUG, "host memory prefers NUMA node %d", node);
    else
        cn_log(CN_LOG_WARN, "host memory may be on another NUMA node than the GPU's, %d (%s)", node,
               strerror(errno));
}

/* Adds the cores of a list such as "0-15,32-47" to a set. */
static void add_cores(cpu_set_t *set, const char *list)
{
    while (*list >= '0' && *list <= '9') {
        char *end;
        const unsigned long first = strtoul(list, &end, 10);
        const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++) CPU_SET(i, set);
        list = *end == ',' ? end + 1 : end;
    }
}

/* Returns the cores that the process may use; with a node, those of the node, if it has any. */
static cpu_set_t cores_of(int node)
{
    char path[64], line[1024];
    cpu_set_t mine, set, both;
    CPU_ZERO(&mine);
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof mine, &mine)) CPU_SET(0, &mine);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    if (node < 0 || !try_read_line(path, line, sizeof line)) return mine;
    add_cores(&set, line);
    CPU_AND(&both, &mine, &set);
    return CPU_COUNT(&both) > 0 ? both : mine;
}

/* ---- touching ---- */

typedef struct toucher {
    cpu_set_t cores;
    char *at;
    size_t bytes;
    atomic_size_t next; /* first byte that no thread has taken */
    atomic_size_t done; /* bytes */
    atomic_int error;   /* errno of a piece that cannot be touched; 0: none */
} toucher;

static void touch_piece(toucher *t, char *at, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return;
    const int error = errno;
    if (error != EINVAL) {
        atomic_store(&t->error, error);
        return;
    }
#endif
    for (size_t i = 0; i < bytes; i += PAGE) ((volatile char *)at)[i] = 0; /* an older kernel */
}

/* Touches the next piece. Returns false if none is left. */
static bool touch_next(toucher *t)
{
    const size_t from = atomic_fetch_add(&t->next, PIECE_BYTES);
    if (from >= t->bytes || atomic_load(&t->error)) return false;
    const size_t left = t->bytes - from, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    touch_piece(t, t->at + from, n);
    atomic_fetch_add(&t->done, n);
    return true;
}

static void *touch_all(void *ctx)
{
    toucher *t = ctx;
    (void)pthread_setaffinity_np(pthread_self(), sizeof t->cores, &t->cores);
    while (touch_next(t)) continue;
    return NULL;
}

static cn_status touch(int node, char *at, size_t bytes)
{
    toucher t = {.cores = cores_of(node), .at = at, .bytes = bytes};
    pthread_t threads[MAX_TOUCHERS];
    uint32_t n = 0;
    const uint32_t most = cn_min_u32((uint32_t)CPU_COUNT(&t.cores), MAX_TOUCHERS) - 1;
    while (n < most && pthread_create(&threads[n], NULL, touch_all, &t) == 0) n++;
    for (double said_s = pinned_now_s(); touch_next(&t);) {
        if (pinned_now_s() - said_s < PROGRESS_S) continue;
        said_s = pinned_now_s();
        cn_log(CN_LOG_INFO, "taking host memory: %.1f of %.1f GiB", cn_gib(atomic_load(&t.done)),
               cn_gib(bytes));
    }
    for (uint32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    const int error = atomic_load(&t.error);
    if (error)
        return cn_fail(CN_ERR_MEMORY, "host memory: %.2f GiB cannot be touched (%s)",
                       cn_gib(bytes), strerror(error));
    return CN_OK;
}

/* GiB of the process that lie in huge pages. */
static double huge_gib(void)
{
    char line[128];
    double kib = 0;
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "AnonHugePages: %lf kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib / (1024 * 1024);
}

/* ---- regions ---- */

static cn_status map_region(cn_cuda_pinned *r, size_t bytes)
{
    /* Begins at a huge page, so that all of it can have huge pages. */
    r->mapped_bytes = cn_round_up(bytes, HUGE_PAGE) + HUGE_PAGE;
    r->mapped = mmap(NULL, r->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    if (r->mapped == MAP_FAILED) {
        r->mapped = NULL;
        return cn_fail(CN_ERR_MEMORY, "host memory: %.2f GiB cannot be mapped (%s)", cn_gib(bytes),
                       strerror(errno));
    }
    r->at = r->mapped + (HUGE_PAGE - (uintptr_t)r->mapped % HUGE_PAGE) % HUGE_PAGE;
    (void)madvise(r->at, bytes, MADV_HUGEPAGE); /* smaller pages take longer */
    (void)madvise(r->at, bytes, MADV_DONTDUMP); /* a core file need not have it */
    return CN_OK;
}

static cn_status fill_region(const cn_cuda *c, cn_cuda_pinned *r, size_t bytes)
{
    const double began_s = pinned_now_s(), began_gib = huge_gib();
    const int node = gpu_node(&c->device);
    CN_TRY(map_region(r, bytes));
    prefer_node(node, r->at, bytes);
    CN_TRY(touch(node, r->at, bytes));
    const double touched_s = pinned_now_s();
    CN_CUDA(cudaHostRegister(r->at, bytes, cudaHostRegisterPortable));
    r->registered = true;
    const double s = pinned_now_s() - began_s;
    cn_log(CN_LOG_INFO,
           "host memory: %.2f GiB pinned in %.1f s, %.3f s a GiB (%.1f s touched by threads; %.1f "
           "GiB in huge pages)",
           cn_gib(bytes), s, s / cn_gib(bytes), touched_s - began_s, huge_gib() - began_gib);
    return CN_OK;
}

static void free_region(cn_cuda_pinned *r)
{
    if (r->registered) cudaHostUnregister(r->at);
    if (r->mapped) munmap(r->mapped, r->mapped_bytes);
    cn_free(r);
}

static cn_status take_region(cn_cuda *c, size_t bytes, void **out)
{
    cn_cuda_pinned *r = cn_calloc(1, sizeof *r);
    if (!r) return cn_fail(CN_ERR_MEMORY, "out of host memory for a region");
    const cn_status status = fill_region(c, r, bytes);
    if (status != CN_OK) {
        free_region(r);
        return status;
    }
    r->next = c->pinned;
    c->pinned = r;
    *out = r->at;
    return CN_OK;
}

cn_status cn_cuda_host_alloc(cn_backend *be, size_t bytes, void **out)
{
    cn_cuda *c = be->ctx;
    *out = NULL;
    cn_cuda_use(c);
    if (bytes >= LARGE_BYTES && c->device.registers) return take_region(c, bytes, out);
    CN_CUDA(cudaMallocHost(out, bytes ? bytes : 1));
    memset(*out, 0, bytes);
    return CN_OK;
}

void cn_cuda_host_free(cn_backend *be, void *p)
{
    cn_cuda *c = be->ctx;
    cn_cuda_use(c);
    for (cn_cuda_pinned **at = &c->pinned; *at; at = &(*at)->next) {
        cn_cuda_pinned *r = *at;
        if (r->at != p) continue;
        *at = r->next;
        free_region(r);
        return;
    }
    cudaFreeHost(p);
}
