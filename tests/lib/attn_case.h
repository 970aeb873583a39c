/* attn_case.h - a random batch for the attention ops, on both sides, for tests of the CUDA ops.
 * Thread: the test's. */
#pragma once

#include "tests/lib/op_cases.h"

/* A batch with its pool, queries and results. The test makes kv, q and out. */
typedef struct attn_case {
    paged_batch *b;
    op_batch batch;
    op_tensor kv, q, out;
    cn_attn_args cpu, cuda;
} attn_case;

/* Draws the batch of a case. */
void attn_case_draw(op_env *e, attn_case *c, const paged_shape *s);
/* Sets the arguments of both sides, on the last layer, with rows in bf16 on the GPU. They point
 * into *c. */
void attn_case_set_args(attn_case *c, const paged_shape *s, float scale);
void attn_case_close(op_env *e, attn_case *c);
