/* barrier.cuh - barriers in shared memory (mbarrier). A phase ends when all its arrivals have
 * occurred and all bytes of bulk copies that it expects have arrived. Needs compute capability 8.0;
 * counting bytes needs 9.0. */
#pragma once

#include <stdint.h>

__device__ static inline uint32_t cn_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void cn_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cn_shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* Makes the inits visible to other units. Call after the inits and before the block's barrier. */
__device__ static inline void cn_barrier_init_done(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ static inline void cn_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(cn_shared_address(barrier))
                 : "memory");
}

/* Arrives when all cp.async that this thread has issued so far are complete. */
__device__ static inline void cn_barrier_arrive_copied(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(cn_shared_address(barrier))
        : "memory");
}

/* Arrives, and makes the phase wait for `bytes` more bytes of copies. */
__device__ static inline void cn_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(cn_shared_address(barrier)),
        "r"(bytes)
        : "memory");
#else
    (void)barrier;
    (void)bytes;
    __trap();
#endif
}

/* Waits until the phase of this parity (0 for the first) has ended. */
__device__ static inline void cn_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
                     "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(cn_shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (!done);
}

/* Copies bytes to shared memory; the barrier counts them. Compute capability 9.0. */
__device__ static inline void cn_bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                           uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(cn_shared_address(barrier))
                 : "memory");
#endif
}

/* Waits at one of the block's 16 hardware barriers (0 is __syncthreads()) for n_threads threads. */
__device__ static inline void cn_sync_some(uint32_t id, uint32_t n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}
