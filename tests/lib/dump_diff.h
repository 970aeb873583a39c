/* dump_diff.h - compares two directories that --dump wrote and finds the first difference.
 * Thread: the caller's. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* Compares the tensors of directory a, in the order of the forward pass, with the tensors of the
 * same names in b. Returns false when a has no tensors, or at the first tensor that is missing, has
 * another shape, or has an element that differs by more than `tolerance`. A NaN differs from every
 * value. Writes the result of each comparison to out. */
bool dump_diff(const char *a, const char *b, double tolerance, FILE *out);
