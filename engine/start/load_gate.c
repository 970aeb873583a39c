/* load_gate.c - see load_gate.h. */
#include "engine/start/load_gate.h"

#include <pthread.h>

struct cn_load_gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n_missing; /* engines that have not arrived */
    bool opened; /* none waits for the others any more */
    bool taken;
};

cn_status cn_load_gate_create(cn_load_gate **out, uint32_t n)
{
    cn_load_gate *g = *out = cn_calloc(1, sizeof *g);
    if (!g) return cn_fail(CN_ERR_MEMORY, "out of memory for %u engines", n);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->n_missing = n;
    return CN_OK;
}

void cn_load_gate_free(cn_load_gate *g)
{
    if (!g) return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    cn_free(g);
}

void cn_load_gate_arrive(cn_load_gate *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    CN_ASSERT(g->n_missing > 0);
    g->n_missing--;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void cn_load_gate_enter(cn_load_gate *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    while ((g->n_missing > 0 && !g->opened) || g->taken)
        pthread_cond_wait(&g->changed, &g->lock);
    g->taken = true;
    pthread_mutex_unlock(&g->lock);
}

void cn_load_gate_leave(cn_load_gate *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    g->taken = false;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void cn_load_gate_open(cn_load_gate *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    g->opened = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}
