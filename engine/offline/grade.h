/* grade.h - does an answer equal its reference? The rules of run-batch --grade.
 *
 * Owner: none, pure functions. Thread: any. Stage: after the output is complete.
 *
 * What is graded is what follows the reasoning. Where the tags are tokens, cn_event.answer_at says
 * where that begins, and the output given here is that part. Tags in the text count besides: the
 * answer stands behind the last </think>, and is nothing when a <think> is never closed.
 *   exact        both, with white space trimmed at both ends, are the same bytes;
 *   boxed        the last \boxed{...}, braces balanced, or else what follows the last "####";
 *   last-number  the last number, whatever its notation: 1,234 = 1234.0.
 * The reference is read by the same rule when it has that form ("#### 18", "\boxed{3}"), else taken
 * whole. Two boxed texts that are both numbers are compared as numbers. */
#ifndef CN_GRADE_H
#define CN_GRADE_H

#include "engine/base.h"
#include "engine/options/options.h"

/* Grades output[n]. rule is not CN_OPT_GRADE_NONE. */
bool cn_grade(cn_opt_grade rule, const char *output, size_t n, const char *reference);

/* The Wilson interval of 95 % around the share matched / n; 0 to 1 when n is 0. */
void cn_grade_interval(uint64_t matched, uint64_t n, double *low, double *high);

#endif
