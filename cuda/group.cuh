/* group.cuh - groups of thread blocks that work on one row and exchange partial results.
 *
 * A group is CN_GROUP_PARTS blocks. Every part fills its board, and all call cn_group_exchange.
 * After that each part may read all boards of that exchange, until the exchange after the next: a
 * part has two boards and alternates between them. On Hopper a group is a cluster, and a part reads
 * the shared memory of the others. On other devices boards are copied to device memory, and a
 * counter of arrivals is the barrier. This barrier spins, so groups must be numbered in the order
 * in which their blocks start (cn_group_ticket). */
#pragma once

#include "cuda/util.cuh"

enum { CN_GROUP_PARTS = 8 };

typedef struct cn_group {
    char *own;       /* shared memory: [2, bytes] */
    uint32_t bytes;  /* of a board; a multiple of 16 */
    uint32_t part;   /* this block's number */
    uint32_t n_done; /* exchanges so far */
    /* Device memory without clusters; NULL with clusters. */
    char *boards;       /* [2, CN_GROUP_PARTS, bytes] */
    uint32_t *arrivals; /* 0 at the start of the kernel */
} cn_group;

/* The two halves of a barrier of the cluster. */
__device__ static inline void cn_group_cluster_arrive(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ static inline void cn_group_cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ static inline void cn_group_cluster_barrier(void)
{
    cn_group_cluster_arrive();
    cn_group_cluster_wait();
}

/* Returns the address in another part's shared memory that corresponds to p in this part's. */
__device__ static inline const void *cn_group_peer_address(const void *p, uint32_t part)
{
    const void *there = p;
#if __CUDA_ARCH__ >= 900
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(part));
#endif
    return there;
}

/* Numbers the blocks of a launch in the order in which they call. All threads of a block get its
 * number. `next` must be 0 at the start of the kernel; `shared` is a word of shared memory. */
__device__ static inline uint32_t cn_group_ticket(uint32_t *next, uint32_t *shared)
{
    if (threadIdx.x == 0) *shared = atomicAdd(next, 1u);
    __syncthreads();
    return *shared;
}

/* Returns which of the two boards to fill before the next exchange. */
__device__ static inline uint32_t cn_group_turn(const cn_group *g) { return g->n_done & 1; }

__device__ static inline void cn_group_exchange_in_memory(const cn_group *g)
{
    const uint32_t turn = cn_group_turn(g);
    const uint4 *from = (const uint4 *)(g->own + turn * g->bytes);
    uint4 *to = (uint4 *)(g->boards + ((size_t)turn * CN_GROUP_PARTS + g->part) * g->bytes);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < g->bytes / sizeof *to; i += blockDim.x) to[i] = from[i];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(g->arrivals, 1u);
        while (*(volatile uint32_t *)g->arrivals < CN_GROUP_PARTS * (g->n_done + 1)) continue;
        __threadfence();
    }
    __syncthreads();
}

/* The barrier of the group. After it the boards that were filled before it can be read. */
__device__ static inline void cn_group_exchange(cn_group *g)
{
    if (g->boards) cn_group_exchange_in_memory(g);
    else cn_group_cluster_barrier();
    g->n_done++;
}

/* Returns the board of a part in the last exchange. Read it with cn_group_load. */
__device__ static inline const void *cn_group_shown(const cn_group *g, uint32_t part)
{
    const uint32_t last = (g->n_done - 1) & 1;
    if (g->boards) return g->boards + ((size_t)last * CN_GROUP_PARTS + part) * g->bytes;
    return cn_group_peer_address(g->own + last * g->bytes, part);
}

template <typename T> __device__ static inline T cn_group_load(const T *shown)
{
    return *(const volatile T *)shown;
}

/* Must be the last call of a kernel: no block may end while others read its boards. */
__device__ static inline void cn_group_leave(const cn_group *g)
{
    if (!g->boards) cn_group_cluster_barrier();
}
