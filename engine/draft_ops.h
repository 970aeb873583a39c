/* draft_ops.h - the arguments of the ops of a retrieval head (selector `spec`). A part of ops.h,
 * whose conventions hold here. A leaf. */
#pragma once

#include "paged/kv_layout.h"

/* Rotates the queries and keys of a retrieval head (selector `spec`). Stores the keys, draft K, at
 * kv_slots. Queries are those of the first n_queries tokens. */
typedef struct cn_draft_store_args {
    void *q;       /* [n_queries, hq, d] act, in place */
    const void *k; /* [T, hk, d] act */
    const float *cos, *sin; /* [max_position, d/2] of the head, as in cn_rope_store_args */
    const uint32_t *positions, *kv_slots; /* [T] as in cn_batch_view */
    uint32_t n_tokens, n_queries, n_heads;
    cn_kv_layout layout; /* cn_kv_layout_draft */
    void *draft;
} cn_draft_store_args;

/* out[t, at + i] = x[t, i] for i < width: one part of the rows that a retrieval head reads. */
typedef struct cn_draft_part_args {
    void *out;     /* [T, out_width] act */
    const void *x; /* [T, width] act */
    uint32_t n_tokens, width, out_width, at;
} cn_draft_part_args;

/* out[t] = the fused state of the token before t, for the n_tokens tokens, from first_token on, of
 * sequences [first_seq, n_seqs). For the first token of a sequence in the batch it is the state of
 * the block of the slot before it, or 0 in slot 0 and in padding rows (kv_len 0). */
typedef struct cn_draft_before_args {
    void *out;         /* [T, width] act */
    const void *fused; /* [T, width] act; not read of a sequence with one token */
    const void *state; /* [n_blocks, width] act */
    const uint32_t *q_start, *kv_len, *tables; /* as in cn_batch_view */
    uint32_t table_stride, block_tokens, first_seq, n_seqs, first_token, n_tokens, width;
} cn_draft_before_args;

/* Each block keeps the fused state of its newest token in the batch: state[b] = fused[t] where
 * t + 1 is not in block b. */
typedef struct cn_draft_keep_args {
    void *state;
    const void *fused;
    const uint32_t *kv_slots;
    uint32_t n_tokens, block_tokens, width;
} cn_draft_keep_args;
