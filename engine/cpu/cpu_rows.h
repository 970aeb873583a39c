/* cpu_rows.h - rows of K and V in the pool, in either form (cn_kv_form).
 *
 * Owner: none; plain functions. Thread: any. Stage: ops that read or write K and V. */
#pragma once

#include "paged/kv_layout.h"

enum { CN_CPU_MAX_ROW = 576 }; /* elements */

/* The place of a row. Its slot counts in the block. */
typedef struct cn_cpu_place {
    uint32_t layer, block, head, slot;
} cn_cpu_place;

/* Returns rows [n, d] in f32 of n neighbouring slots of a tile; `part` is CN_KV_K or CN_KV_V. Plain
 * rows are returned in place; rows in eight bits are written to room[n, d]. */
const float *cn_cpu_rows(const cn_kv_layout *l, const void *kv, cn_cpu_place at, cn_kv_part part,
                         uint32_t n, float *room);

/* The same rows, written to out[n, d]. */
void cn_cpu_read_rows(const cn_kv_layout *l, const void *kv, cn_cpu_place at, cn_kv_part part,
                      uint32_t n, float *out);

/* Stores the row x[d] of a part, CN_KV_K or CN_KV_V. */
void cn_cpu_store_row(const cn_kv_layout *l, void *kv, cn_cpu_place at, cn_kv_part part,
                      const float *x);
