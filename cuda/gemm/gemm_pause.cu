/* gemm_pause.cu - a stand-in for decode attention, for timing the products of a layer. As there, a
 * block on each multiprocessor takes all shared memory, so the next product starts when it ends. It
 * runs for CLOCKS, about 5 us, the time of a short attention. */
#include "cuda/gemm/gemm_tune.h"
#include "cuda/launch.cuh"

enum { BLOCK = 192, CLOCKS = 9000 };

__global__ static void __launch_bounds__(BLOCK) pause_kernel(void)
{
    cn_wait_previous();
    cn_overlap_next();
    const long long start = clock64();
    while (clock64() - start < CLOCKS) continue;
}

extern "C" cn_status cn_gemm_pause(cn_stream *s)
{
    const cn_cuda_device *d = &s->cuda->device;
    return cn_cuda_launch(s, "pause", pause_kernel, {dim3(d->n_sms), BLOCK, d->shared_bytes});
}
