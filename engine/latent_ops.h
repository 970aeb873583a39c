/* latent_ops.h - the arguments of the ops of latent attention. A part of ops.h, whose conventions
 * hold here. A leaf.
 *
 * A token has one row of K for all heads: c[r] and k[dr] (cn_latent). Its V is c. A query head has
 * dn + dr elements. Before attention its first dn are multiplied by the key matrix of its head and
 * become r, as c has; behind attention the output [r] is multiplied by the value matrix. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "paged/kv_layout.h"

typedef struct cn_batch_view cn_batch_view;

/* Applies the RMS norm to c and RoPE (rotate-half) to k and to the last dr elements of each query
 * head. Stores the row of K in the pool at kv_slots, and the queries in the observation window at
 * q_rows where that is >= 0. */
typedef struct cn_latent_store_args {
    void *q;          /* [T, hq, dn+dr] act, in place; NULL: only the rows are stored */
    const void *row;  /* [T, r+dr] act */
    const void *norm; /* [r] */
    float eps;
    const float *cos, *sin; /* [max_position, dr/2] f32, as in cn_rope_store_args */
    const cn_batch_view *batch;
    uint32_t n_heads, layer;
    cn_kv_layout layout; /* head_dim r+dr, query_dim dn+dr, V of r */
    void *kv;
    void *q_window; /* [L, n_query_slots, window, hq, dn+dr] or NULL */
    uint32_t n_query_slots, window;
} cn_latent_store_args;

/* A product for each head: out[t, h, 0:n] = W_h x[t, h, 0:k], where W_h has n rows and k columns.
 * With `by_rows` it has k rows and n columns, and out[t, h, 0:n] = x[t, h, 0:k] W_h. Besides,
 * out[t, h, n+i] = x[t, h, k+i] for i < n_copied. The bits of an output row depend on that row
 * alone. */
typedef struct cn_heads_gemm_args {
    void *out;          /* [T, hq, n + n_copied] act */
    const void *x;      /* [T, hq, k + n_copied] act */
    const void *weight; /* of head 0 */
    uint32_t weight_stride; /* elements from the matrix of one head to that of the next */
    size_t out_stride;      /* elements from a token to the next; 0: the heads alone */
    uint32_t n_tokens, n_heads, n, k, n_copied;
    bool by_rows;
} cn_heads_gemm_args;

/* The key matrices of latent attention: dn rows and r columns for each head. */
typedef struct cn_latent_keys {
    const void *const *weights; /* host, [L] that of head 0 */
    uint32_t weight_stride;     /* elements from the matrix of one head to that of the next */
} cn_latent_keys;
