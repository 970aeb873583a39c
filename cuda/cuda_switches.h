/* cuda_switches.h - what tests and benchmarks change in the CUDA backend
 * (cn_cuda_backend_opts.switches). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Which matrix products the backend uses: the fastest measured, or one kind only. */
typedef enum cn_cuda_gemm_kind {
    CN_CUDA_GEMM_FASTEST,
    CN_CUDA_GEMM_LIBRARY,
    CN_CUDA_GEMM_OWN /* cinch's kernels, for the shapes they support */
} cn_cuda_gemm_kind;

/* The tiles of grouped products on Hopper: a thread block multiplies `rows` weight rows of an
 * expert by up to `tokens` of its pairs. tokens 0: the default. */
typedef struct cn_cuda_expert_tile {
    uint32_t tokens, rows; /* rows: 64 or 128 */
    uint32_t blocks;       /* of a multiprocessor, which share its memory: 1 or more */
} cn_cuda_expert_tile;

typedef struct cn_cuda_switches {
    cn_cuda_gemm_kind gemm;
    bool portable;  /* use only features of compute capability 8.0 on any device */
    uint32_t host_blocks; /* thread blocks of a fetch from host memory; 0: the default */
    cn_cuda_expert_tile experts;
    bool latent;    /* the table has the ops of latent attention */
    bool impatient; /* thread blocks of `score` do not wait for the results of others */
} cn_cuda_switches;
