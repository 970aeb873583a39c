/* fp8_pool.h - a pool of K and V in eight bits, made from a pool in f32, for tests of ops. An op
 * must then give the same for both pools, because the f32 pool gets the values of the stored rows.
 * Thread: the test's. */
#pragma once

#include "paged/kv_layout.h"

typedef struct fp8_pool {
    cn_kv_layout layout;
    void *kv;
} fp8_pool;

/* Stores every row of the f32 pool in eight bits, and replaces it there by its new values. */
fp8_pool fp8_pool_make(const cn_kv_layout *l, float *kv);
void fp8_pool_free(fp8_pool *p);

/* Fails the test unless every row of the two pools has the same values. NaN equals NaN. */
void fp8_pool_assert_equal(const fp8_pool *p, const cn_kv_layout *l, const float *kv);

/* Returns the values of all rows, rounded to bf16, in the layout `l` of plain rows. Free with
 * cn_free. */
uint16_t *fp8_pool_take_bf16(const fp8_pool *p, const cn_kv_layout *l);
