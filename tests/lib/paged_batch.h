/* paged_batch.h - seeded random numbers and random paged batches for tests of ops.
 * Thread: the test's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/ops.h"

typedef struct test_rng {
    uint64_t state;
} test_rng;
uint32_t test_rng_below(test_rng *r, uint32_t n); /* 0 .. n-1 */
float test_rng_uniform(test_rng *r);              /* -1 .. 1 */
void test_rng_fill(test_rng *r, float *p, size_t n);

enum { PAGED_MAX_SEQS = 720 };

/* A batch and its pool. Sequence i has n_q[i] query tokens, the last of its kv_len[i] resident
 * slots. Block tables are a random permutation of the pool's blocks. */
typedef struct paged_batch {
    cn_batch_view view;
    cn_kv_layout layout;
    uint32_t n_heads;
    float *kv;
    uint32_t *tokens, *positions, *kv_slots, *q_start, *kv_len, *tables;
    int32_t *q_rows;
} paged_batch;

typedef struct paged_shape {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, block_tokens;
    uint32_t value_dim; /* of cn_kv_layout_share; 0: K and V are two parts */
    uint32_t query_dim; /* of cn_kv_layout_share; 0: head_dim */
    uint32_t n_seqs, n_decode;
    uint32_t n_q[PAGED_MAX_SEQS], kv_len[PAGED_MAX_SEQS];
} paged_shape;

/* The bounds of a random shape. Half of the lengths are at most most_edges blocks, plus or minus a
 * slot. The others are fewer than most_blocks blocks plus up to 40 slots. */
typedef struct paged_limits {
    const uint32_t *dims; /* [n_dims] head_dim */
    uint32_t n_dims, most_seqs;
    uint32_t most_blocks, most_edges;
    uint32_t most_q; /* most query tokens of a prefill */
} paged_limits;

/* Draws a shape with two layers. Decode sequences come first; there may be none. */
paged_shape paged_shape_draw(test_rng *r, const paged_limits *most);

/* Fills the pool with random K and V. Slots beyond kv_len are NaN: no op may use them. */
paged_batch *paged_batch_create(const paged_shape *s, test_rng *r);
void paged_batch_free(paged_batch *b);

/* Returns the stored row of resident slot `slot` of a sequence. */
float *paged_batch_row(const paged_batch *b, uint32_t layer, uint32_t seq, uint32_t kv_head,
                       uint32_t slot, cn_kv_part part);
