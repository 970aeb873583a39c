/* cpu_pool.c - a thread pool around a lock-free gate. See cpu_pool.h.
 *
 * The gate is one word: an epoch that identifies the loop, an OPEN bit, and the number of workers
 * inside. The caller opens the gate (epoch + 1), runs tasks, closes the gate, and waits until no
 * worker is inside. A worker enters by adding 1 to an open gate whose epoch it has not served.
 *   1. The fields of the job change only while the gate is closed and no worker is inside.
 *   2. A worker reads them only inside; its entry synchronises with the opening.
 *   3. A worker cannot enter a closed gate, so the caller never waits for a late worker. */
#include "engine/cpu/cpu_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static const uint64_t GATE_OPEN = (uint64_t)1 << 16;
static const uint64_t GATE_EPOCH = (uint64_t)1 << 17;
static const uint64_t GATE_INSIDE = ((uint64_t)1 << 16) - 1;

enum { SPIN_ROUNDS = 2000, MAX_THREADS = 1024 };

typedef struct worker {
    cn_cpu_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct cn_cpu_pool {
    _Atomic uint64_t gate;
    _Atomic uint32_t next_task;
    _Atomic uint32_t n_asleep; /* workers, and the caller while it waits */
    _Atomic bool stop;
    cn_cpu_task_fn fn;
    void *ctx;
    uint32_t n_tasks;

    pthread_mutex_t mutex; /* for sleeping only; the gate is lock-free */
    pthread_cond_t changed;
    uint32_t n_threads, n_started;
    worker *workers; /* [n_threads - 1] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void run_pool_tasks(cn_cpu_pool *p, uint32_t worker_index)
{
    for (;;) {
        uint32_t task = atomic_fetch_add(&p->next_task, 1);
        if (task >= p->n_tasks) return;
        p->fn(p->ctx, task, worker_index);
    }
}

/* Wakes sleeping threads after a change of gate or stop. Sequential consistency makes this safe: a
 * thread increments n_asleep before it last reads the gate, and the gate changes before n_asleep is
 * read here. */
static void wake_all(cn_cpu_pool *p)
{
    if (atomic_load(&p->n_asleep) == 0) return;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

static bool is_new_loop(uint64_t gate, uint64_t served)
{
    return (gate & GATE_OPEN) && gate / GATE_EPOCH != served;
}

static bool nobody_inside(uint64_t gate) { return (gate & GATE_INSIDE) == 0; }

static void wait_for_loop(cn_cpu_pool *p, uint64_t served)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (is_new_loop(atomic_load(&p->gate), served) || atomic_load(&p->stop)) return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->n_asleep, 1);
    while (!is_new_loop(atomic_load(&p->gate), served) && !atomic_load(&p->stop))
        pthread_cond_wait(&p->changed, &p->mutex);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->mutex);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    cn_cpu_pool *p = w->pool;
    uint64_t served = 0;
    while (!atomic_load(&p->stop)) {
        wait_for_loop(p, served);
        uint64_t gate = atomic_load(&p->gate);
        if (!is_new_loop(gate, served)) continue;
        if (!atomic_compare_exchange_strong(&p->gate, &gate, gate + 1)) continue;
        served = gate / GATE_EPOCH;
        run_pool_tasks(p, w->index);
        uint64_t left = atomic_fetch_sub(&p->gate, 1) - 1;
        if (!(left & GATE_OPEN) && nobody_inside(left)) wake_all(p);
    }
    return NULL;
}

cn_status cn_cpu_pool_create(cn_cpu_pool **out, uint32_t n_threads)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return cn_fail(CN_ERR_ARG, "%u threads: expected 1 to %d", n_threads, MAX_THREADS);
    cn_cpu_pool *p = cn_calloc(1, sizeof *p);
    if (!p) return cn_fail(CN_ERR_MEMORY, "thread pool: out of memory");
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->n_threads = n_threads;
    p->workers = cn_calloc(n_threads, sizeof *p->workers);
    bool ok = p->workers != NULL;
    for (uint32_t i = 0; ok && i + 1 < n_threads; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.pool = p, .index = i + 1};
        ok = pthread_create(&w->thread, NULL, worker_main, w) == 0;
        if (ok) p->n_started++;
    }
    if (!ok) {
        cn_cpu_pool_free(p);
        return cn_fail(CN_ERR_MEMORY, "thread pool: cannot start %u threads; use fewer", n_threads);
    }
    *out = p;
    return CN_OK;
}

void cn_cpu_pool_free(cn_cpu_pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    wake_all(p);
    for (uint32_t i = 0; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    cn_free(p->workers);
    cn_free(p);
}

uint32_t cn_cpu_pool_n_threads(const cn_cpu_pool *p) { return p->n_threads; }

static void wait_until_empty(cn_cpu_pool *p)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (nobody_inside(atomic_load(&p->gate))) return;
        relax();
    }
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->n_asleep, 1);
    while (!nobody_inside(atomic_load(&p->gate))) pthread_cond_wait(&p->changed, &p->mutex);
    atomic_fetch_sub(&p->n_asleep, 1);
    pthread_mutex_unlock(&p->mutex);
}

void cn_cpu_pool_run(cn_cpu_pool *p, uint32_t n_tasks, cn_cpu_task_fn fn, void *ctx)
{
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (uint32_t i = 0; i < n_tasks; i++) fn(ctx, i, 0);
        return;
    }
    CN_ASSERT(n_tasks < UINT32_MAX - MAX_THREADS); /* each thread may add 1 past n_tasks */
    p->fn = fn;
    p->ctx = ctx;
    p->n_tasks = n_tasks;
    atomic_store(&p->next_task, 0);
    atomic_fetch_add(&p->gate, GATE_EPOCH + GATE_OPEN);
    wake_all(p);
    run_pool_tasks(p, 0);
    atomic_fetch_and(&p->gate, ~GATE_OPEN);
    wait_until_empty(p);
}

uint32_t cn_cpu_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (uint32_t)n;
}
