/* golden.h - reads the golden figures of tests/golden/models (its README says what they hold).
 * A missing file or tensor is a broken test: it prints what is missing and aborts. */
#ifndef CN_GOLDEN_H
#define CN_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

typedef struct golden golden;

/* Opens tests/golden/models/<name>/golden.safetensors; tests run in the root of the tree. */
golden *golden_open(const char *name);
void golden_close(golden *g);

/* A vector of ids or positions, [*n]. Borrowed from g. */
const uint32_t *golden_u32(const golden *g, const char *tensor, size_t *n);

/* A matrix [*rows, *cols], or a vector as one row. Borrowed from g. */
const float *golden_f32(const golden *g, const char *tensor, size_t *rows, size_t *cols);

/* Largest |a[i] - b[i]|; infinite when one of them is not a number. */
double golden_max_diff(const float *a, const float *b, size_t n);

/* The tiny random checkpoints that have logits and greedy text, ended by NULL. */
extern const char *const golden_models[];

#endif
