/* dump_diff.h - compares two folders that --dump wrote and finds where they first part.
 * Thread: the caller's. */
#ifndef CN_TEST_DUMP_DIFF_H
#define CN_TEST_DUMP_DIFF_H

#include <stdbool.h>
#include <stdio.h>

/* Goes through the tensors of folder a in the order of the forward pass and compares each with
 * its namesake in b. True when none is missing, of another shape, or more than `tolerance` apart in
 * an element (a NaN is apart from everything); what was found goes to out. */
bool dump_diff(const char *a, const char *b, double tolerance, FILE *out);

#endif
