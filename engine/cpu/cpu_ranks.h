/* cpu_ranks.h - where the ranks of a split model meet on the CPU.
 *
 * Owner: who created the barrier. Thread: each rank waits on the thread of its stream, so streams
 * must be threaded. */
#pragma once

#include "engine/ops.h"

cn_status cn_cpu_barrier_create(cn_backend *be, uint32_t n_ranks, double timeout_s,
                                cn_barrier **out);
void cn_cpu_barrier_add(cn_barrier *b, uint32_t rank, cn_stream *s);
void cn_cpu_barrier_break(cn_barrier *b, const char *why);
void cn_cpu_barrier_free(cn_barrier *b); /* NULL is fine */

/* For tests: this rank does not reach its sums from number `sum` on (0: its next one) before the
 * others have given up. */
void cn_cpu_barrier_hold(cn_barrier *b, uint32_t rank, uint64_t sum);
