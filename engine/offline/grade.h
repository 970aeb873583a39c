/* grade.h - does an answer equal its reference? The rules of run-batch --grade.
 *
 * Owner: none, pure functions. Thread: any. Stage: after the output is complete.
 *
 * Only the text after the reasoning is graded. If the tags are tokens, cn_event.answer_at is where
 * that text begins, and the output given here is that text. Tags in the text count as well: the
 * answer is the text after the last </think>, or nothing if a <think> is not closed.
 *   exact        both are the same bytes, after white space is trimmed at both ends;
 *   boxed        the last \boxed{...}, braces balanced, or else the text after the last "####";
 *   last-number  the last number, in any notation: 1,234 = 1234.0.
 * The reference is read by the same rule if it has that form ("#### 18", "\boxed{3}"), else it is
 * taken whole. Two boxed texts that are both numbers are compared as numbers. With last-number, a
 * reference without a number matches nothing. */
#pragma once

#include "engine/options/options.h"

/* True if output[n] matches the reference. rule must not be CN_OPT_GRADE_NONE. */
bool cn_grade(cn_opt_grade rule, const char *output, size_t n, const char *reference);

/* The 95 % Wilson interval of the share matched / n; 0 to 1 if n is 0. */
void cn_grade_interval(uint64_t matched, uint64_t n, double *low, double *high);
