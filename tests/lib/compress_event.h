/* compress_event.h - a compression event on both backends, drawn at random, and the comparison of
 * what it did: which slots are kept, the new global score, and where rows moved. Origins identify
 * the slot from which a kept row came.
 *
 * A decision is a slot that is kept because of its score. Slots of the window are always kept, and
 * a request that keeps all its slots has no choice: neither counts. A near tie is a slot that one
 * side keeps and the other drops, if its score is so close to the lowest score that the CPU keeps
 * that rounding may decide (nearly_equal). Two exchanged slots are two near ties. Any other
 * difference fails the test at once. Too many near ties in the whole run fail it at the end
 * (op_cases.h). Thread: the test's. */
#pragma once

#include "tests/lib/compress_placement.h"
#include "tests/lib/op_cases.h"

enum { MAX_REQS = 4, MAX_BLOCKS = 400, QUERY_SLOTS = 5, EVENT_LAYERS = 4 };

/* rank > 0: latent attention, where V is the first `rank` elements of a row of K, and a query has
 * `nope` elements before the product with the key matrix of its head. */
typedef struct event_shape {
    uint32_t n_layers, n_kv_heads, group, head_dim, block_tokens, ring, n_reqs;
    uint32_t rank, nope;
} event_shape;

/* The pools before the event, and the requests. `pools` is the CPU's side of the tensors. If K and
 * V of the GPU are in eight bits, `codes` is its pool, and kv has the same values. */
typedef struct event {
    cn_pools pools;
    op_tensor codes; /* n 0: plain rows */
    cn_kv_layout codes_layout;
    op_tensor kv, q_window, score, origin;
    /* Latent attention: what the GPU has in the window, and key matrices. The CPU has the products
     * of both, rounded as those of the GPU. */
    op_tensor raw, keys; /* n 0: none */
    const void *keys_of[EVENT_LAYERS]; /* of each layer, on the GPU */
    cn_latent_keys latent;
    uint32_t raw_dim;
    cn_compress_req reqs[MAX_REQS];
    uint32_t n_reqs;
    uint32_t tables[MAX_REQS][MAX_BLOCKS], targets[MAX_REQS][MAX_BLOCKS];
} event;

/* The GPU's pools after the event. */
typedef struct outcome {
    uint16_t *kv;
    float *score;
    uint32_t *origin;
} outcome;

/* Draws pools. The caller sets the requests, then their tables. */
event *event_create(op_env *env, const event_shape *s, uint32_t n_blocks);
void event_free(op_env *env, event *e);

/* Draws the tables of request i from the pool's blocks at *next: n_blocks source blocks, and as
 * many new ones. */
void draw_tables(op_env *env, event *e, uint32_t i, compress_placement how, uint32_t *next);

/* Returns the pools of the GPU's side. */
cn_pools gpu_pools(const event *e);

/* Runs the event on the LOW stream, on the pools as they were before it, with this much scratch
 * (0: the size that the backend requests). Overwrites the arguments before any wait, because the
 * call must have read them. */
cn_status event_run(op_env *env, const event *e, size_t scratch_bytes, outcome *out);
void outcome_free(outcome *o);

/* Both outcomes must have the same bits. */
void assert_same_outcome(const cn_kv_layout *l, const outcome *a, const outcome *b);

/* Compares the event with the CPU, and with a second run, which must have the same bits. */
void check_event(op_env *env, const event *e);
