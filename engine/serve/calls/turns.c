/* turns.c - see turns.h. The one who leaves hands the turn to the next; nobody else can take it. */
#include "engine/serve/calls/turns.h"

#include <pthread.h>

#include "engine/base/list.h"

typedef struct waiter {
    cn_list_node node;
    pthread_cond_t granted_now;
    bool granted;
} waiter;

enum { FIRST, LATER, N_LISTS };

struct cn_turns {
    pthread_mutex_t lock;
    cn_list waiting[N_LISTS]; /* waiters */
    bool taken;
};

cn_status cn_turns_create(cn_turns **out)
{
    *out = cn_calloc(1, sizeof **out);
    if (!*out) return cn_fail(CN_ERR_MEMORY, "out of memory for turns");
    pthread_mutex_init(&(*out)->lock, NULL);
    return CN_OK;
}

void cn_turns_free(cn_turns *t)
{
    if (!t) return;
    CN_ASSERT(!t->taken);
    pthread_mutex_destroy(&t->lock);
    cn_free(t);
}

/* Waits in a list; the lock is held. */
static void wait_in(cn_turns *t, int list)
{
    waiter w = {.granted = false};
    pthread_cond_init(&w.granted_now, NULL);
    cn_list_append(&t->waiting[list], &w.node);
    while (!w.granted) pthread_cond_wait(&w.granted_now, &t->lock);
    pthread_cond_destroy(&w.granted_now);
}

/* Hands the turn to the next waiter; the lock is held. False: nobody waits. */
static bool try_hand_on(cn_turns *t)
{
    for (int list = 0; list < N_LISTS; list++) {
        waiter *w = CN_CONTAINER_OF(cn_list_pop(&t->waiting[list]), waiter, node);
        if (!w) continue;
        w->granted = true;
        pthread_cond_signal(&w->granted_now);
        return true;
    }
    return false;
}

void cn_turns_enter(cn_turns *t, bool first)
{
    pthread_mutex_lock(&t->lock);
    if (t->taken)
        wait_in(t, first ? FIRST : LATER);
    else
        t->taken = true;
    pthread_mutex_unlock(&t->lock);
}

void cn_turns_pass(cn_turns *t)
{
    pthread_mutex_lock(&t->lock);
    if (try_hand_on(t)) wait_in(t, LATER);
    pthread_mutex_unlock(&t->lock);
}

void cn_turns_leave(cn_turns *t)
{
    pthread_mutex_lock(&t->lock);
    CN_ASSERT(t->taken);
    if (!try_hand_on(t)) t->taken = false;
    pthread_mutex_unlock(&t->lock);
}
