/* cpu_stream.h - in-order queues of work on the CPU, and fences between them.
 *
 * Owner: the CPU backend. Thread: one submitter (the engine thread). Stage: every op.
 *
 * An immediate stream runs an op on the caller and the pool before the submission returns.
 * A threaded stream is a thread with a bounded queue: a submission copies the argument struct and
 * returns; it blocks only while the queue is full, and fails then after an error. Memory that the
 * struct points to must stay valid until the stream has run the op (engine/ops.h). A threaded
 * stream never uses the pool, so that compression does not delay the model.
 *
 * An error of a threaded stream is permanent: the stream skips later ops, and cn_cpu_stream_sync
 * and the fences recorded on it report the text of the first error. */
#pragma once

#include "engine/base/base.h"
#include "engine/ops.h"

struct cn_cpu;

/* An op. It runs on the thread of the stream. */
typedef cn_status (*cn_cpu_op_fn)(cn_stream *s, const void *args);

enum { CN_CPU_MAX_ARGS_BYTES = 1024 };

cn_status cn_cpu_stream_create(cn_stream **out, struct cn_cpu *cpu, bool threaded,
                               uint32_t worker);
void cn_cpu_stream_free(cn_stream *s); /* runs queued ops first; s may be NULL */
/* The worker index that a threaded stream passes to tasks; no other stream uses it. */
uint32_t cn_cpu_stream_worker(const cn_stream *s);
struct cn_cpu *cn_cpu_stream_owner(const cn_stream *s);
bool cn_cpu_stream_is_threaded(const cn_stream *s);

/* Runs fn(s, args) now (immediate), or queues it with a copy of args[bytes] (threaded). */
cn_status cn_cpu_stream_submit(cn_stream *s, cn_cpu_op_fn fn, const void *args, size_t bytes);
cn_status cn_cpu_stream_sync(cn_stream *s);
/* The same, but returns as soon as there is an error: the op that runs then may not have ended. */
cn_status cn_cpu_stream_wait(cn_stream *s);
/* Any thread. Ops that have not begun are skipped, as after an error of the stream's own. */
void cn_cpu_stream_fail(cn_stream *s, cn_status status, const char *why);

/* The fence entries of the op table. A fence that was never recorded counts as done. */
cn_status cn_cpu_fence_create(cn_backend *be, cn_fence **out);
void cn_cpu_fence_free(cn_fence *f); /* waits for queued records and waits; f may be NULL */
cn_status cn_cpu_fence_record(cn_fence *f, cn_stream *s);
cn_status cn_cpu_fence_wait(cn_stream *s, cn_fence *f);
cn_status cn_cpu_fence_done(cn_fence *f, bool *done);
cn_status cn_cpu_fence_sync(cn_fence *f);
cn_status cn_cpu_fence_seconds(cn_fence *from, cn_fence *to, double *seconds);
