/* count_reset.cu - rebuilds one row of token counts: high bit = in the prompt, low 15 bits = times
 * in the output, saturating.
 * counts [slots, V] u16; prompt [n_prompt], output [n_output] ids. An id outside the vocabulary is
 * ignored. Two launches: clear the row, then one thread per token with a 16-bit compare-and-swap.
 * Bytes moved: 2*V + 4*(n_prompt + n_output). CPU version: cpu_sample.c. */
#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum { BLOCK = 256, IN_PROMPT = 0x8000, MAX_COUNT = 0x7fff };

__global__ static void clear_kernel(uint16_t *row, uint32_t vocab)
{
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    cn_overlap_next();
    cn_wait_previous();
    if (i < vocab) row[i] = 0;
}

__device__ static void count_token(unsigned short *count, bool in_prompt)
{
    unsigned short seen = *count, want;
    do {
        const unsigned short before = seen;
        want = in_prompt                            ? before | IN_PROMPT
               : (before & MAX_COUNT) == MAX_COUNT ? before
                                                   : before + 1;
        seen = atomicCAS(count, before, want);
        if (seen == before) return;
    } while (true);
}

__global__ static void count_kernel(uint16_t *row, uint32_t vocab, const uint32_t *prompt,
                                    const uint32_t *output, uint32_t n_prompt, uint32_t n_output)
{
    const uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
    cn_overlap_next();
    cn_wait_previous();
    if (i >= n_prompt + n_output) return;
    const bool in_prompt = i < n_prompt;
    const uint32_t id = in_prompt ? prompt[i] : output[i - n_prompt];
    if (id < vocab) count_token(row + id, in_prompt);
}

extern "C" cn_status cn_cuda_count_reset(cn_stream *s, const cn_count_reset_args *a)
{
    uint16_t *row = a->counts + (size_t)a->slot * a->vocab;
    const uint32_t n = a->n_prompt + a->n_output;
    const dim3 clear((unsigned)cn_ceil_div(a->vocab, BLOCK));
    const dim3 count((unsigned)cn_ceil_div(n, BLOCK));
    CN_TRY(cn_cuda_launch(s, "count_reset", clear_kernel, {clear, BLOCK}, row, a->vocab));
    if (n == 0) return CN_OK;
    return cn_cuda_launch(s, "count_reset", count_kernel, {count, BLOCK}, row, a->vocab, a->prompt,
                          a->output, a->n_prompt, a->n_output);
}
