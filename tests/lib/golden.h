/* golden.h - reads the golden figures of tests/golden/models (its README describes them).
 * When a file or tensor is missing, prints its name and aborts. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct golden golden;

/* Opens tests/golden/models/<name>/golden.safetensors. Tests run in the root of the tree. */
golden *golden_open(const char *name);
void golden_close(golden *g);

/* Returns a vector of ids or positions, [*n]. Borrowed from g. */
const uint32_t *golden_u32(const golden *g, const char *tensor, size_t *n);

/* Returns a matrix [*rows, *cols], or a vector as one row. Borrowed from g. */
const float *golden_f32(const golden *g, const char *tensor, size_t *rows, size_t *cols);

/* Returns the largest |a[i] - b[i]|; infinite when an element is not a number. */
double golden_max_diff(const float *a, const float *b, size_t n);

/* The names of the tiny random checkpoints with logits and greedy text; ends with NULL. */
extern const char *const golden_models[];
