/* cpu_sample.h - the sampling ops of the CPU backend, the specification for other backends.
 * Thread: rows with different scratch may run at once, because two rows never share a count slot.
 * Nothing here allocates. */
#pragma once

#include "engine/ops.h"

/* Returns the scratch that one row needs, a multiple of 64 bytes. n threads need n times this. */
size_t cn_cpu_sample_scratch_bytes(uint32_t vocab);

/* Samples one row: writes a->tokens[row] and the requested logprobs, and updates the counts. */
void cn_cpu_sample_row(const cn_sample_args *a, uint32_t row, void *scratch);

/* The distribution that a row draws from: ids in ascending order and their weights
 * (sample_math.h; probability = weight / sum). Both arrays are in `scratch`. Greedy rows and forced
 * rows have one id. */
typedef struct cn_cpu_distribution {
    const uint32_t *ids;     /* [n] */
    const uint64_t *weights; /* [n] */
    uint32_t n;
} cn_cpu_distribution;
cn_cpu_distribution cn_cpu_sample_distribution(const cn_sample_args *a, uint32_t row,
                                               void *scratch);

/* CN_ERR_SHAPE when a token is not in the vocabulary. */
cn_status cn_cpu_count_reset(cn_stream *s, const cn_count_reset_args *a);
