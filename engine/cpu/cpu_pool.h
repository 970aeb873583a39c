/* cpu_pool.h - a thread pool that runs the tasks of one loop at a time.
 *
 * Owner: the CPU backend. Thread: one caller at a time, which also runs tasks, as worker 0. Stage:
 * inside every op of an immediate stream.
 *
 * A step runs about fifty short loops. A worker without tasks therefore spins for a few tens of
 * microseconds before it sleeps. A loop never waits for a worker that has not joined it: on a busy
 * machine the caller finishes alone instead of waiting for a thread that was not scheduled. */
#pragma once

#include "engine/base/base.h"

typedef struct cn_cpu_pool cn_cpu_pool;

/* One task of a loop. `worker` < n_threads identifies the thread, for its scratch memory. */
typedef void (*cn_cpu_task_fn)(void *ctx, uint32_t task, uint32_t worker);

/* n_threads >= 1 counts the caller. CN_ERR_MEMORY when a thread cannot be started. */
cn_status cn_cpu_pool_create(cn_cpu_pool **out, uint32_t n_threads);
void cn_cpu_pool_free(cn_cpu_pool *p); /* p may be NULL; no loop may be running */

uint32_t cn_cpu_pool_n_threads(const cn_cpu_pool *p);

/* Calls fn(ctx, task, worker) once for every task in [0, n_tasks), in any order and on any thread,
 * and returns when all calls have returned. */
void cn_cpu_pool_run(cn_cpu_pool *p, uint32_t n_tasks, cn_cpu_task_fn fn, void *ctx);

/* Returns the number of cores that this process may run on. */
uint32_t cn_cpu_count(void);
