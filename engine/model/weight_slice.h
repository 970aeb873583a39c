/* weight_slice.h - which elements of a tensor a rank holds when a model is split over several.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start.
 *
 * Rows are split where they are outputs that the rank goes on with: query and kv heads, gate and up
 * rows, rows of the vocabulary. Columns are split where they are inputs that the rank has: of O and
 * DOWN, whose outputs are added up. Heads follow their groups, so each rank has the query heads of
 * its kv heads. */
#pragma once

#include "engine/checkpoint/checkpoint.h"

typedef struct cn_weight_slice {
    uint64_t first_row, n_rows; /* of the tensor; n_rows 0: the rank has nothing of it */
    uint64_t first_col, n_cols;
    uint64_t first_elem; /* offset of the slice in the rank's fused matrix */
} cn_weight_slice;

/* What the rank of c has of a part of the whole model's checkpoint. */
cn_weight_slice cn_weight_slice_of(const cn_model_config *c, const cn_weight_part *p);
